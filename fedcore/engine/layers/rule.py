"""What the engine knows of layers: one class a layer, and one table of them.

A class says up to three things of its layer: `batched`, the forward pass of many clients at once, for autograd to go
back; `written`, that pass together with the function that goes back without autograd; `units`, which stream of neurons
leaves the layer and which entries they own.  What a class leaves out is refused by name: gradients then take another
path, sub-models raise.  To add a layer, write its class and enter it in `table.RULES`.

Features of m clients are `[m, B, F]`; images are `[B, m*C, H, W]`, so that the channels of one client lie together and
a convolution's or norm's groups are the clients.  Sequences, samples of two axes, are images of one channel,
`[B, m, L, F]`: a layer that treats their axes otherwise than those of an image says so in what it `takes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor, nn

from ..shapes import Activations, PerClient, PerSample, Pictures

if TYPE_CHECKING:
    from ..units import Streams
    from ..written import Sink


aten = torch.ops.aten


LAST, FIRST = (0, 1, 3, 4, 2), (0, 1, 4, 2, 3)  # a convolution's weights with channels last, and back


Back = Callable[[Tensor], Tensor | None]


Stream = tuple[int, bool]  # which stream of neurons, and whether it is pictures


Weights = Annotated[Tensor, "m O C kh kw"]


READ_TWICE = "an in-place activation whose input is read elsewhere"


@dataclass
class Pass:
    """What the layers of one batched forward pass read besides their input, and what is noted on the way.

    params: name -> `[m, *shape]`.  real: where samples are real, None where all are.  single: whether a client has one
    sample.  rate: for all scalers, a number or one per client; None: their own.  sites: outputs of layers by name, for
    the names that are in it.  z: the representation of a `models.Projected`.  count, key: real samples of each client,
    and the seed of its dropout; without keys nothing is dropped.
    """

    params: dict[str, Tensor]
    clients: int
    real: PerSample | None = None
    single: bool = False
    rate: PerClient | float | None = None
    sites: dict[str, Tensor | None] = field(default_factory=dict)
    z: Tensor | None = None
    count: Sequence[int] = ()
    key: Sequence[int] = ()
    drawing: list[torch.Generator] = field(default_factory=list)

    def generators(self, device: torch.device) -> list[torch.Generator]:
        """One a client, at the place in its stream that the layers before have left it."""
        if not self.drawing:
            self.drawing += [torch.Generator(device).manual_seed(key) for key in self.key]
        return self.drawing


class Rule:
    """What is known of one layer in its place; of a layer that is not in `RULES`: nothing.

    takes: what the layer reads, samples with 1 axis (features, or a text's symbols), 2 (sequences) or 3 (pictures).
    writes: the same on the written path, where that is less.
    fresh: its output is new memory that its own way back does not read, so that an activation may write over it.
    passes_on: its output may be its input itself.  overwrites: it writes over its input, as `nn.ReLU(inplace=True)`.
    rereads: the parts of it whose input others read too, so that they must not write over it.
    """

    takes: Sequence[int] = (1, 3)
    writes: Sequence[int] | None = None
    fresh = passes_on = overwrites = False
    rereads: Sequence[Rule] = ()

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self.weight, self.bias = self.below("weight"), self.below("bias")
        self.children: list[Rule] = []
        self.trains = any(True for _ in module.parameters())

    def below(self, name: str) -> str:
        """The full name of something inside this layer."""
        return f"{self.name}.{name}" if self.name else name

    def rules_of(self, named: Iterable[tuple[str, nn.Module]]) -> list[Rule]:
        """The rules of these parts of the layer, which become its children."""
        from .table import rule_of  # which knows all layers

        rules = [rule_of(module, self.below(name)) for name, module in named]
        self.children += rules
        return rules

    def parameters(self) -> Iterator[str]:
        """Names of all parameters that the rules see, one by one."""
        for part in self.all():
            if not part.children:
                yield from (part.below(name) for name, _ in part.module.named_parameters(recurse=False))

    def leaves(self, axes: int, written: bool = False) -> int:
        """How many axes the samples that leave have for those that enter; 0: these cannot enter."""
        return axes if axes in (self.writes if written and self.writes is not None else self.takes) else 0

    # --- batched ---

    def problem(self) -> str | None:
        """Why `batched` cannot stand for this layer; None where it can."""
        if type(self).batched is Rule.batched:
            return type(self.module).__name__
        return READ_TWICE if any(part.overwrites for part in self.rereads) else None

    def all(self) -> Iterator[Rule]:
        """This rule and those of the layers in it."""
        yield self
        for child in self.children:
            yield from child.all()

    def problems(self) -> Iterator[str]:
        """Why `batched` cannot stand for this layer and those in it."""
        for part in self.all():
            hooked = part.module._forward_hooks or part.module._forward_pre_hooks
            problem = type(part.module).__name__ if hooked else part.problem()
            if problem is not None:
                yield problem

    def __call__(self, x: Activations, p: Pass) -> Activations:
        out = self.batched(x, p)
        if self.name in p.sites:
            p.sites[self.name] = out
        return out

    def entering(self, x: Tensor) -> Activations:
        """A batch `x [m, B, ...]` as the batched rules take it."""
        if x.dim() < 5:
            return x.transpose(0, 1) if x.dim() == 4 else x
        if x.device.type == "cpu" and x.dtype != torch.float64:  # oneDNN is faster so, and has no kernels for float64
            return side_by_side(x, x.dtype)
        m, B, C, H, W = x.shape
        return x.transpose(0, 1).reshape(B, m * C, H, W)

    def batched(self, x: Activations, p: Pass) -> Activations:
        """The output, computed for all clients at once.  Never in place: others may read x."""
        raise NotImplementedError

    # --- written ---

    def is_written(self) -> bool:
        """Whether `written` stands for this layer."""
        return type(self).written is not Rule.written and all(child.is_written() for child in self.children)

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        """The output and the function from its gradient to that of x, which puts the parameters' into s on its way.

        need: whether the gradient of x is asked for.
        """
        raise NotImplementedError

    # --- units ---

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        """The stream of neurons that leaves when s enters; ValueError where there is no single one."""
        raise ValueError(
            f"no rule says which neurons own what in {type(self.module).__name__} ({self.name or 'the model'}); "
            "GroupNorm, LayerNorm, grouped convolutions and recurrent layers mix channels: use a model of Linear, "
            "Conv2d, BatchNorm and pointwise layers, such as 'thesis_cnn', or capacities=1"
        )


def side_by_side(x: Annotated[Tensor, "m B C H W"], dtype: torch.dtype) -> Pictures:
    """Images `[m, B, C, H, W]` as `[B, m*C, H, W]` in channels_last."""
    m, B, C, H, W = x.shape
    out = torch.empty(B, H, W, m, C, dtype=dtype, device=x.device).copy_(x.permute(1, 3, 4, 0, 2))
    return out.view(B, H, W, m * C).permute(0, 3, 1, 2)


def channels_last(W: Weights, dtype: torch.dtype) -> Annotated[Tensor, "m O kh kw C"]:
    """`[m, O, C, kh, kw]` as a contiguous `[m, O, kh, kw, C]`; no copy where it lies so already."""
    W = W.permute(LAST)
    if W.dtype == dtype and W.is_contiguous():
        return W
    return torch.empty(W.shape, dtype=dtype, device=W.device).copy_(W)
