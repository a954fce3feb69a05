"""On request: gradients replayed as CUDA graphs, or compiled by `torch.compile`.

`import fedcore.graphs`, then `fed = fedcore.graphs.compiled(fed)`, or `graphed(fed)`: a local step of many small
kernels costs one launch.  The latter needs CUDA, a module with rules for all its layers, and room for a step's inputs,
activations and gradients for each number of clients that is captured.  What cannot be replayed runs as before: batch
norm, which looks at how many samples a client has, gradients that ask for more than the cross-entropy, and the smaller
networks of sub-model methods.  No GPU was at hand when this was written: what surrounds the capture is tested with a
stand-in, the capture itself by the same test on a machine that has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .engine import Batch, Engine
from .objective.network import Federation

Shape = tuple[Any, ...]


def graphed(fed: Federation) -> Federation:
    """The same federation with gradients that are captured once per shape and then replayed."""
    e = fed.engine
    return replace(fed, engine=Graphed(e.module, e.path, e.loss, e.compute, e.block))


def capture(work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """What replays `work`, and the tensor that then holds its result (torch's notes on CUDA graphs)."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # the first calls choose algorithms and make workspaces: not to be captured
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph.replay, out


def compiled(fed: Federation) -> Federation:
    """The same federation with the paths through autograd compiled by `torch.compile`, instead of the written one.

    On a CPU that needs a C++ compiler.  Each number of clients and each size of batch is compiled anew, in seconds to
    minutes, and after some of them PyTorch goes on uncompiled.  Smaller networks, Hessian-vector products and
    representations are never compiled.
    """
    e = fed.engine
    return replace(fed, engine=Compiled(e.module, e.path, e.loss, e.compute, e.block))


class Compiled(Engine):
    """An engine whose forward and backward passes are compiled."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layers, self.call = torch.compile(self.layers), torch.compile(self.call)

    def chosen(self, device: torch.device) -> str:
        return self.general(device)


class Graphed(Engine):
    """An engine that replays the plain gradient for a few numbers of clients.

    A step of fewer clients runs in the graph of the next number among m, m/2, m/4, ... of its first step; the rows
    beyond are computed from what stands there, with weight 0, and left.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.graphs: dict[Shape, tuple[Tensor, Batch, Callable[[], None], Tensor]] = {}
        self.largest: dict[Shape, int] = {}

    def gradient(self, Y: Tensor, batch: Batch, *args: Any, **more: Any) -> Tensor:
        path = self.chosen(Y.device)
        if args or any(v is not None for v in more.values()) or self.norms or path == "sequential" or not _here(Y):
            return super().gradient(Y, batch, *args, **more)
        a, kind = len(Y), (batch.x.shape[1:], batch.x.dtype, batch.y.dtype, Y.dtype, Y.device)
        size = self.largest[kind] = max(a, self.largest.get(kind, 0))
        while size // 2 >= a:
            size //= 2
        if (size, *kind) not in self.graphs:
            self.graphs[size, *kind] = self._captured(Y, batch, size)
        rows, held, replay, out = self.graphs[size, *kind]
        rows[:a].copy_(Y)
        for name in ("x", "y", "w"):
            getattr(held, name)[:a].copy_(getattr(batch, name))
        held.w[a:].zero_()
        replay()
        return out[:a].clone()  # the next replay writes here

    def descend(self, Y: Tensor, counts: np.ndarray, batch: Callable[[int, slice], Batch], lr: float) -> None:
        """Local SGD in place, by replayed gradients."""
        (self._descend_by_gradients if _here(Y) else super().descend)(Y, counts, batch, lr)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed:
        return Graphed(self.module, self.path, self.loss, self.compute, self.block)  # graphs cannot be copied

    def _captured(self, Y: Tensor, batch: Batch, size: int) -> tuple[Tensor, Batch, Callable[[], None], Tensor]:
        def like(t: Tensor) -> Tensor:
            return t.new_zeros(size, *t.shape[1:])

        full = [batch.y.shape[1]] * size  # padded samples have weight 0 and are computed like the others
        rows, held = like(Y), Batch(like(batch.x), like(batch.y), like(batch.w), full, [0] * size)
        return rows, held, *capture(lambda: Engine.gradient(self, rows, held), Y.device)


def _here(Y: Tensor) -> bool:
    return Y.is_cuda
