"""The neurons (hidden units) of a network, and the entries of the flat vector that belong to each of them.

A *stream* is a group of hidden units that are kept or dropped together: the outputs of one layer, or all layers that
add up in a residual stream (the sum needs one channel set).  Inputs and classes are always kept.  A keep-set is a
sorted index tensor `[m, k]` per stream, one row per client; k = ceil(ratio * width), so no layer is ever empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models import Layout
from ..models.parts import STATISTICS
from .layers.rule import AXES, Rule, Stream
from .layers.table import rule_of
from .shapes import Parameters

Axis = tuple[int, int]  # (stream, entries per unit)
TIE = 64  # scores that differ by at most so many rounding errors of the largest score count as equal
WHOLE = -1  # instead of the number of a stream: inputs and classes, which are always kept
KeepSet = Annotated[Tensor, "_ _"]


def kept(ratio: float, width: int) -> int:
    """ceil(ratio * width), at least 1: 64/127/254/507 of 64/128/256/512 at 0.99 (HeteroFL's rounding)."""
    return math.ceil(round(ratio * width, 9))  # 0.07 * 100 is 7.000000000000001


@dataclass(frozen=True)
class Neurons:
    """The hidden units of a network and the entries they own in its flat vector.

    Per stream: `widths`, `sites` (the layer whose output is its activation; of a residual
    stream the last one), `before` (the layer before that activation) and `outputs` (the linear layer or convolution
    that writes it, before any normalisation; the last one, too).  Per parameter tensor: `axes`, the stream and the
    entries per unit of its leading axes (H*W columns a channel after a Flatten), and `classes`, whether its first axis
    are the classes.  `norms`: the same axis of batch norms by name, with or without parameters.
    """

    layout: Layout
    widths: tuple[int, ...]
    sites: tuple[str, ...]
    before: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[tuple[Axis, ...], ...]
    classes: tuple[bool, ...]
    norms: Mapping[str, Axis]

    @staticmethod
    def of(module: nn.Module, aligned: bool = True, axes: int | None = None) -> Neurons:
        """The neurons of a module.  aligned=False gives each layer of a residual stream a keep-set (a known mistake).
        axes: how many a sample has; None: the first number that all layers take.

        Raises ValueError for layers that mix channels or have no rule, linear layers along sequences or the rows of
        images, and sums of layers of different widths.
        """
        layout, rule, streams = Layout.of(module), rule_of(module), Streams(aligned)
        shared = len(list(module.named_parameters(remove_duplicate=False))) > len(layout.names)
        if shared or (not list(rule.problems()) and sorted(rule.parameters()) != sorted(layout.names)):
            raise ValueError(
                "the model shares parameters between layers, calls a layer at two places, or has parameters outside of "
                "its layers; sub-models need a layer with tensors of its own for each place"
            )
        if axes is None:
            axes = next((a for a in AXES if rule.leaves(a)), AXES[0])
        streams.output(streams.through(rule, 0, axes)[0])
        return streams.neurons(layout)

    @staticmethod
    def none(d: int) -> Neurons:
        """No hidden units: d entries that are all kept."""
        layout = Layout(("x",), (torch.Size([d]),), (slice(0, d),), d)
        return Neurons(layout, (), (), (), (), (((WHOLE, 1),),), (False,), {})

    def places(self, keep: Sequence[KeepSet]) -> Annotated[Tensor, "_ _"]:
        """Flat indices `[m, d_r]` of the entries kept by the keep-sets `[m, k]`, in the order of the smaller module."""
        device, pieces = keep[0].device, []
        for shape, place, axes in zip(self.layout.shapes, self.layout.slices, self.axes, strict=True):
            index = torch.zeros(1, 1, dtype=torch.int64, device=device)
            for size, (stream, entries) in zip(shape, axes, strict=False):
                units = torch.arange(size // entries, device=device)[None] if stream == WHOLE else keep[stream]
                along = (units[:, :, None] * entries + torch.arange(entries, device=device)).flatten(1)
                index = (index[:, :, None] * size + along[:, None, :]).flatten(1)
            rest = math.prod(shape[len(axes) :])
            index = (index[:, :, None] * rest + torch.arange(rest, device=device)).flatten(1)
            pieces.append((index + place.start).expand(len(keep[0]), -1))
        return torch.cat(pieces, 1)

    def top(self, scores: Sequence[Annotated[Tensor, "m _"]], ratio: float) -> list[Annotated[Tensor, "m _"]]:
        """Keep-sets: the ceil(ratio * width) units of highest score `[m, width]` per stream; of equal ones, the first.

        Scores that are neighbours in the order and differ by rounding alone (`TIE`) count as equal.
        """
        first = [_ranks(s).sort(dim=1, stable=True).indices[:, : kept(ratio, s.shape[1])] for s in scores]
        return [k.sort(1).values for k in first]

    def prefix(self, ratio: float, device: torch.device | str = "cpu") -> list[KeepSet]:
        """The keep-sets `[1, k]` of the first units of each stream."""
        return [torch.arange(kept(ratio, w), device=device)[None] for w in self.widths]

    def only_owned(self, mask: Parameters, owned: Annotated[Tensor, "m C"]) -> Parameters:
        """The mask `[m, d]` without the classifier's rows and biases of labels that a client does not have.

        owned: which labels each client has, `[m, C]`.  Rows beyond the C labels are left out for all clients.
        """
        mask = mask.clone()
        for shape, place, ours in zip(self.layout.shapes, self.layout.slices, self.classes, strict=True):
            if ours:
                rows = F.pad(owned, (0, shape[0] - owned.shape[1]))
                mask[:, place] &= rows.repeat_interleave(math.prod(shape[1:]), 1)
        return mask


def _ranks(scores: Annotated[Tensor, "m _"]) -> Annotated[Tensor, "m _"]:
    """Ranks `[m, width]` of scores: 0 for the highest score, and equal ranks for equal scores."""
    ordered, units = scores.sort(dim=1, descending=True)
    room = TIE * torch.finfo(scores.dtype).eps * scores.abs().amax(1, keepdim=True) if scores.is_floating_point() else 0
    below = (ordered[:, :-1] - ordered[:, 1:] > room).cumsum(1)
    return torch.zeros_like(units).scatter_(1, units[:, 1:], below)


class Streams:
    """The streams of a module, the axes of its parameters that belong to them, and the layers of their activations, as
    the rules of the layers report them in the order of the forward pass.

    Stream 0 is the inputs.  `before` is the name of the last layer.  channels: the streams whose units are channels,
    which may have several columns each after a Flatten.
    """

    def __init__(self, aligned: bool) -> None:
        self.aligned, self.before = aligned, ""
        self.width: list[int | None] = [None]
        self.name, self.parent, self.fixed = [""], [0], {0}
        self.channels: set[int] = set()
        self.axes: dict[str, tuple[Axis, ...]] = {}
        self.activations: list[tuple[int, str, str]] = []
        self.outputs: set[int] = set()
        self.norms: dict[str, Axis] = {}

    def through(self, rule: Rule, s: int, axes: int) -> Stream:
        """The stream of a layer's output, and how many axes its samples have."""
        s, after = rule.units(self, s, axes), rule.leaves(axes)
        if not after:
            raise ValueError(
                f"{type(rule.module).__name__} ({rule.name or 'the model'}) has no rule for samples with axes={axes}, "
                f"only for axes in {[a for a in AXES if rule.leaves(a)]}; use another layer, or capacities=1"
            )
        self.before = rule.name
        return s, after

    def start(self, width: int, name: str) -> int:
        """A new stream, of the outputs of a layer."""
        self.width.append(width)
        self.name.append(name)
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def join(self, a: int, b: int) -> int:
        """The stream of a sum: with `aligned` both summands get one keep-set, otherwise it is the second stream.

        Raises ValueError unless both have the same width; inputs, which are kept whole, may have any.
        """
        a, b = self.root(a), self.root(b)
        if len({self.width[a], self.width[b]} - {None}) == 2:
            one, other = (f"{self.name[s]} (of {self.width[s]} units)" for s in (a, b))
            raise ValueError(
                f"the model has a sum of {one} and {other}; sub-models need summands of one width, whose units can be "
                "dropped together: make the widths equal, or use capacities=1"
            )
        if self.aligned and a != b:
            first, second = min(a, b), max(a, b)
            self.parent[second] = first
            if second in self.fixed:
                self.fixed.add(first)
        return b

    def root(self, s: int) -> int:
        """The stream that s was joined to."""
        while self.parent[s] != s:
            s = self.parent[s]
        return s

    def entries(self, s: int, features: int, name: str) -> int:
        """How many of a layer's input features one unit of the stream has: H*W for a channel after a Flatten."""
        width = self.width[self.root(s)]
        if width is None:  # inputs, or a sum with them
            return 1
        if features != width and s not in self.channels:
            raise ValueError(
                f"{name} takes {features} features, but the layer before it has {width} units, with one feature each; "
                "if that layer reads sequences or images, put nn.Flatten() before it, or use capacities=1"
            )
        if features % width:
            raise ValueError(f"{name} takes {features} features, which is no multiple of {width} channels before it")
        return features // width

    def owns(self, rule: Rule, axes: tuple[Axis, ...]) -> None:
        """Record the streams of the axes of a layer's weight; the first axis is also that of its bias."""
        self.axes[rule.weight], self.axes[rule.bias] = axes, axes[:1]
        if isinstance(rule.module, nn.modules.batchnorm._BatchNorm):
            self.norms[rule.name] = axes[0]
            self.axes |= {rule.below(name): axes[:1] for name in STATISTICS}

    def activation(self, s: int, name: str, before: str) -> None:
        """Record an activation of the stream: its layer's name, and the name of the layer before it."""
        self.activations.append((s, name, before))

    def output(self, s: int) -> None:
        """Record that this stream is the classes."""
        self.fixed.add(self.root(s))
        self.outputs.add(s)

    def neurons(self, layout: Layout) -> Neurons:
        """The recorded streams as `Neurons`."""
        streams = [s for s in range(len(self.parent)) if self.root(s) == s and s not in self.fixed]
        classes = {self.root(s) for s in self.outputs}
        number = {s: i for i, s in enumerate(streams)}
        site = {s: (self.name[s], self.name[s]) for s in streams}
        for s, at, before in self.activations:  # the last activation of a stream counts
            site[self.root(s)] = (at, before)
        output = {self.root(s): self.name[s] for s in range(len(self.parent))}  # here too

        def axis(a: Axis) -> Axis:
            return (number.get(self.root(a[0]), WHOLE), a[1])

        return Neurons(
            layout,
            tuple(self.width[s] for s in streams),
            tuple(site[s][0] for s in streams),
            tuple(site[s][1] for s in streams),
            tuple(output[s] for s in streams),
            tuple(tuple(axis(a) for a in self.axes[name]) for name in layout.names),
            tuple(self.root(self.axes[name][0][0]) in classes for name in layout.names),
            {name: axis(a) for name, a in self.norms.items()},
        )
