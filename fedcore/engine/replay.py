"""Optional: gradients that are replayed as CUDA graphs.

Use `from fedcore.engine import replay`, then `fed = replay.graphed(fed)`.  With CUDA graphs, the many small kernels of
a local step cost one launch.  They need CUDA, a module with rules for all its layers, and memory for a step's inputs,
activations and gradients for each captured number of clients.  Four computations are not replayed: batch norm, which
depends on the number of a client's samples, dropout, which draws new numbers in each step, gradients of more than the
cross-entropy, and the smaller networks of sub-model methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .batch import Batch
from .core import Engine
from .loss import PLAIN, Loss
from .shapes import Parameters, PerClient

if TYPE_CHECKING:
    from ..objective.federation import Federation

Shape = tuple[Any, ...]
Gradients = tuple[Parameters, PerClient]


def graphed(fed: Federation) -> Federation:
    """The same federation with gradients that are captured once per shape and then replayed."""
    return replace(fed, engine=Graphed(fed.engine.module, **fed.engine.settings))


def capture(work: Callable[[], Gradients], device: torch.device) -> tuple[Callable[[], None], Gradients]:
    """A function that replays `work`, and the tensors that have its result after a replay (torch: CUDA graphs)."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # the first calls choose algorithms and make workspaces
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph.replay, out


class Graphed(Engine):
    """An engine that replays the plain gradient for a few numbers of clients.

    Graphs are captured for m, m/2, m/4, ... clients, where m is the largest number so far.  A step of fewer clients
    runs in the smallest graph that has room for them; the results of the other rows, with weight 0, are not used.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.graphs: dict[Shape, tuple[Tensor, Batch, Callable[[], None], Gradients]] = {}
        self.largest: dict[Shape, int] = {}

    def gradient(self, Y: Parameters, batch: Batch, loss: Loss = PLAIN, along: Parameters | None = None) -> Gradients:
        """As `Engine.gradient`."""
        plain = loss.plain and along is None and not (self.norms or self.random)
        if not plain or self.chosen(Y.device) == "sequential" or not _on_cuda(Y):
            return super().gradient(Y, batch, loss, along)
        a, kind = len(Y), (batch.x.shape[1:], batch.x.dtype, batch.y.dtype, Y.dtype, Y.device)
        size = self.largest[kind] = max(a, self.largest.get(kind, 0))
        while size // 2 >= a:
            size //= 2
        if (size, *kind) not in self.graphs:
            self.graphs[size, *kind] = self._captured(Y, batch, size)
        rows, inputs, replay, out = self.graphs[size, *kind]
        rows[:a].copy_(Y)
        for name in ("x", "y", "w"):
            getattr(inputs, name)[:a].copy_(getattr(batch, name))
        inputs.w[a:].zero_()
        replay()
        G, losses = out
        return G[:a].clone(), losses[:a].clone()  # the next replay writes here

    def descend(self, Y: Parameters, counts: np.ndarray, batch: Callable, lr: float, *more: float | None) -> None:
        """Local SGD in place, by replayed gradients."""
        (self._descend_by_gradients if _on_cuda(Y) else super().descend)(Y, counts, batch, lr, *more)

    def __deepcopy__(self, memo: dict[int, Any]) -> Graphed:
        return Graphed(self.module, **self.settings)  # graphs cannot be copied

    def _captured(self, Y: Parameters, batch: Batch, size: int) -> tuple[Tensor, Batch, Callable[[], None], Gradients]:
        def like(t: Tensor) -> Tensor:
            return t.new_zeros(size, *t.shape[1:])

        full = [batch.y.shape[1]] * size  # padded samples have weight 0 and are computed like the others
        rows, inputs = like(Y), Batch(like(batch.x), like(batch.y), like(batch.w), full, [0] * size)
        return rows, inputs, *capture(lambda: Engine.gradient(self, rows, inputs), Y.device)


def _on_cuda(Y: Tensor) -> bool:
    return Y.is_cuda
