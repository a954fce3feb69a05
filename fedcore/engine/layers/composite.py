"""Layers that contain other layers: in sequence, residual, or with branches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

from ..shapes import Activations
from ..traced import Step

if TYPE_CHECKING:
    from ..units import Streams
    from ..written import Sink
from .pointwise import MaxPool2d, ReLU
from .rule import Back, Pass, Rule, Stream, aten
from .sequences import Recurrent


class Walk(Rule):
    """A layer whose forward consists of layers and additions of their outputs."""

    def walked(self, x: Any, through: Callable[[Rule, Any], Any], added: Callable[[Any, Any], Any]) -> Any:
        """The output for x, where each layer is computed by `through(rule, x)` and each sum by `added(a, b)`."""
        raise NotImplementedError

    def leaves(self, axes: int, written: bool = False) -> int:
        return self.walked(axes, lambda rule, a: rule.leaves(a, written), lambda a, b: a if a == b else 0)

    def batched(self, x: Activations, p: Pass) -> Activations:
        return self.walked(x, lambda rule, h: rule(h, p), torch.add)

    def units(self, streams: Streams, s: int, axes: int) -> int:
        def added(a: Stream, b: Stream) -> Stream:
            return streams.join(a[0], b[0]), a[1]

        return self.walked((s, axes), lambda rule, entering: streams.through(rule, *entering), added)[0]


class Sequential(Walk):
    """`nn.Sequential`: one after another."""

    def __init__(self, module: nn.Module, name: str, parts: Iterable[tuple[str, nn.Module]] | None = None) -> None:
        super().__init__(module, name)
        # named_children() would skip a layer that is used twice
        self.rules_of(module._modules.items() if parts is None else parts)
        self.order = pooled_first(self.children)
        for before, part in itertools.pairwise(self.order):
            if isinstance(part, ReLU):
                part.spares = not before.fresh

    def walked(self, x: Any, through: Callable[[Rule, Any], Any], added: Callable[[Any, Any], Any]) -> Any:
        for child in self.children:
            x = through(child, x)
        return x

    def problem(self) -> str | None:
        if type(self) is Sequential and any(isinstance(child, Recurrent) for child in self.children):
            return "a recurrent layer in nn.Sequential, which hands on its states as well"
        return super().problem()

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        backs = []
        for child in self.order:
            x, back = child.written(x, s, need)
            backs.append(back)
            need = need or child.trains

        def back(e: Tensor) -> Tensor | None:
            for b in reversed(backs):
                if e is not None:
                    e = b(e)
            return e

        return x, back


def pooled_first(parts: Iterable[Rule]) -> list[Rule]:
    """The layers with each max pooling before the ReLU that precedes it, which then has fewer numbers to treat.

    max(relu(x)) = relu(max(x)), and where the maximum is positive both orders choose the same pixel.
    """
    order = list(parts)
    for i in range(len(order) - 1):
        if isinstance(order[i], ReLU) and isinstance(order[i + 1], MaxPool2d):
            order[i : i + 2] = order[i + 1], order[i]
    return order


class Chain(Sequential):
    """A module of the user's own whose forward is one layer after another."""


class Branches(Walk):
    """A module of the user's own whose forward consists of layers and additions of their outputs."""

    def __init__(self, module: nn.Module, name: str, steps: Sequence[Step]) -> None:
        super().__init__(module, name)
        layers = [(step, layer) for step, layer, _ in steps if layer is not None]
        rules = dict(zip((step for step, _ in layers), self.rules_of(layers), strict=True))
        self.steps = [(step, rules.get(step), reads) for step, _, reads in steps]

    def walked(self, x: Any, through: Callable[[Rule, Any], Any], added: Callable[[Any, Any], Any]) -> Any:
        values = {"": x}
        for step, rule, reads in self.steps:
            inputs = [values[one] for one in reads]
            values[step] = added(*inputs) if rule is None else through(rule, *inputs)
        return values[self.steps[-1][0]]


class Residual(Branches):
    """`models.Residual`: relu(body(x) + shortcut(x))."""

    def __init__(self, module: nn.Module, name: str) -> None:
        short, body = ("shortcut", module.shortcut, ("",)), ("body", module.body, ("",))
        super().__init__(module, name, [short, body, ("sum", None, ("shortcut", "body"))])

    def batched(self, x: Activations, p: Pass) -> Activations:
        return torch.relu(super().batched(x, p))

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        (b, back_b), (a, back_a) = (child.written(x, s, need) for child in self.children)
        out = torch.add(a, b).relu_()

        def back(e: Tensor) -> Tensor | None:
            e = aten.threshold_backward(e, out, 0)
            over, under = back_b(e.sum_to_size(b.shape)), back_a(e.sum_to_size(a.shape))
            return under + over if need else None

        return out, back

    def units(self, streams: Streams, s: int, axes: int) -> int:
        s = super().units(streams, s, axes)
        streams.activation(s, self.name, self.name)
        return s


class PreAct(Branches):
    """`models.PreAct`: h = enter(x); body(h) + (shortcut(h), or x)."""

    def __init__(self, module: nn.Module, name: str) -> None:
        enter, body = ("enter", module.enter, ("",)), ("body", module.body, ("enter",))
        short = [] if module.shortcut is None else [("shortcut", module.shortcut, ("enter",))]
        total = ("sum", None, ("shortcut" if short else "", "body"))
        super().__init__(module, name, [enter, *short, body, total])


class Heads(Rule):
    """`models.Heads`: a classifier after every stage."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.stages = self.rules_of((f"stages.{i}", stage) for i, stage in enumerate(module.stages))
        self.heads = self.rules_of((f"heads.{i}", head) for i, head in enumerate(module.heads))

    def leaves(self, axes: int, written: bool = False) -> int:
        ends = set()
        for stage, head in zip(self.stages, self.heads, strict=True):
            axes = stage.leaves(axes, written)
            ends.add(head.leaves(axes, written))
        return ends.pop() if len(ends) == 1 else 0

    def batched(self, x: Activations, p: Pass) -> Annotated[Tensor, "m B heads C"]:
        logits = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x, p)
            logits.append(head(x, p))
        return torch.stack(logits, 2)

    def units(self, streams: Streams, s: int, axes: int) -> int:
        for stage, head in zip(self.stages, self.heads, strict=True):
            s, axes = streams.through(stage, s, axes)
            out, _ = streams.through(head, s, axes)
            streams.output(out)
        return out


class Projected(Sequential):
    """`models.Projected`: classifier(encoder(x)), where the encoder's output is the representation."""

    def is_written(self) -> bool:
        return False

    def batched(self, x: Activations, p: Pass) -> Activations:
        encoder, classifier = self.children
        p.z = encoder(x, p)
        return classifier(p.z, p)
