"""The rules of layers: one class for each kind of layer, and one table of these classes.

A class has up to three methods: `batched`, the forward pass of many clients at once, which autograd differentiates;
`written`, the forward pass together with a function for the backward pass; and `units`, the stream of neurons in the
layer's output and the entries that belong to them.  If a method is missing, gradients take another path, and sub-models
raise an error with the layer's name.  To add a layer, write its class and enter it in `table.RULES`.

Features of m clients are `[m, B, F]`; images are `[B, m*C, H, W]`, so that the channels of one client lie together and
a convolution's or norm's groups are the clients.  Sequences, samples of two axes, are images of one channel,
`[B, m, L, F]`; `takes` says which kinds of samples a layer accepts.
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


AXES = (1, 2, 3)  # of a sample: features or a text's symbols, a sequence, a picture
Stream = tuple[int, int]  # which stream of neurons, and how many axes a sample has


Weights = Annotated[Tensor, "m O C kh kw"]


@dataclass
class Pass:
    """The inputs and records of one batched forward pass, shared by all layers.

    params: name -> `[m, *shape]`.  real: a mask of the samples that are not padding, None without padding.  rate: for
    all scalers, a number or one per client; None: their own.  sites: gets the outputs of the layers whose names it has.
    z: gets the representation of a `models.Projected`.  count, key: the number of real samples of each client, and the
    seed of its dropout; without keys there is no dropout.
    """

    params: dict[str, Tensor]
    clients: int
    real: PerSample | None = None
    rate: PerClient | float | None = None
    sites: dict[str, Tensor | None] = field(default_factory=dict)
    z: Tensor | None = None
    count: Sequence[int] = ()
    key: Sequence[int] = ()
    drawing: list[torch.Generator] = field(default_factory=list)

    def generators(self, device: torch.device) -> list[torch.Generator]:
        """One generator per client, in the state in which the previous layers have left it."""
        if not self.drawing:
            self.drawing += [torch.Generator(device).manual_seed(key) for key in self.key]
        return self.drawing


class Rule:
    """The rule of one layer in a module; for a layer that is not in `RULES`, a rule without methods.

    takes: the numbers of axes that samples may have: 1 (features, or a text's symbols), 2 (sequences) or 3 (images);
    all of these unless a rule says less.
    writes: the same for the written path, if it accepts fewer.
    fresh: whether its output is new memory that its backward pass does not read, so that an activation may overwrite
    it.
    """

    takes: Sequence[int] = AXES
    writes: Sequence[int] | None = None
    fresh = False

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self.weight, self.bias = self.below("weight"), self.below("bias")
        self.children: list[Rule] = []
        self.trains = any(True for _ in module.parameters())

    def below(self, name: str) -> str:
        """The full name of a parameter or layer inside this layer."""
        return f"{self.name}.{name}" if self.name else name

    def rules_of(self, named: Iterable[tuple[str, nn.Module]]) -> list[Rule]:
        """The rules of these parts of the layer, which become its children."""
        from .table import rule_of  # which knows all layers

        rules = [rule_of(module, self.below(name)) for name, module in named]
        self.children += rules
        return rules

    def parameters(self) -> Iterator[str]:
        """The names of the parameters of all layers that have rules."""
        for part in self.all():
            if not part.children:
                yield from (part.below(name) for name, _ in part.module.named_parameters(recurse=False))

    def leaves(self, axes: int, written: bool = False) -> int:
        """How many axes samples have after this layer if they had `axes` before it; 0: the layer does not take them."""
        return axes if axes in (self.writes if written and self.writes is not None else self.takes) else 0

    # --- batched ---

    def problem(self) -> str | None:
        """Why `batched` cannot compute this layer; None if it can."""
        return type(self.module).__name__ if type(self).batched is Rule.batched else None

    def all(self) -> Iterator[Rule]:
        """This rule and the rules of all layers in it."""
        yield self
        for child in self.children:
            yield from child.all()

    def problems(self) -> Iterator[str]:
        """Why `batched` cannot compute this layer and the layers in it."""
        for part in self.all():
            held = vars(part.module).items()  # with any of these it does not compute as its type does
            own = [v for name, v in held if name.endswith(("ward_hooks", "ward_pre_hooks")) or name == "forward"]
            problem = type(part.module).__name__ if any(own) else part.problem()
            if problem is not None:
                yield problem

    def __call__(self, x: Activations, p: Pass) -> Activations:
        out = self.batched(x, p)
        if self.name in p.sites:
            p.sites[self.name] = out
        return out

    def entering(self, x: Tensor) -> Activations:
        """A batch `x [m, B, ...]` in the layout of the batched rules."""
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
        """Whether this layer and all layers in it have a rule for the written path."""
        return type(self).written is not Rule.written and all(child.is_written() for child in self.children)

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        """The output, and the backward pass: a function from the gradient of the output to that of x, which also puts
        the gradients of the parameters into s.

        need: whether the gradient of x is needed.
        """
        raise NotImplementedError

    # --- units ---

    def units(self, streams: Streams, s: int, axes: int) -> int:
        """The stream of the layer's output if s is the stream of its input, whose samples have so many axes; raises
        ValueError if there is none."""
        raise ValueError(
            f"no rule says which neurons own what in {type(self.module).__name__} ({self.name or 'the model'}); "
            "GroupNorm, LayerNorm, grouped convolutions and recurrent layers mix channels: use a model of Linear, "
            "Conv2d, BatchNorm and pointwise layers, such as 'thesis_cnn', or capacities=1"
        )


class ByClient(Rule):
    """Layers that compute on arrays `[m, B, ...]` with the clients first, whatever kind of samples these have."""

    def batched(self, x: Activations, p: Pass) -> Activations:
        if x.dim() < 4:
            return self.of_clients(x, p)
        return self.of_clients(x.unflatten(1, (p.clients, -1)).transpose(0, 1), p).transpose(0, 1).flatten(1, 2)

    def of_clients(self, x: Annotated[Tensor, "m B ..."], p: Pass) -> Annotated[Tensor, "m B ..."]:
        """`batched` for samples `[m, B, ...]`: features, or sequences and pictures with an axis of channels."""
        raise NotImplementedError


def side_by_side(x: Annotated[Tensor, "m B C H W"], dtype: torch.dtype) -> Pictures:
    """Images `[m, B, C, H, W]` as `[B, m*C, H, W]` in channels_last.

    Two copies, of whole pictures and then from one layout to the other, are faster than one from end to end.
    """
    return x.to(dtype).transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)


def channels_last(W: Weights, dtype: torch.dtype) -> Annotated[Tensor, "m O kh kw C"]:
    """`[m, O, C, kh, kw]` as a contiguous `[m, O, kh, kw, C]`; no copy if it has this layout already."""
    W = W.permute(LAST)
    if W.dtype == dtype and W.is_contiguous():
        return W
    return torch.empty(W.shape, dtype=dtype, device=W.device).copy_(W)
