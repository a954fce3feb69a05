"""What the engine knows of layers: one class a layer, and one table of them.

A class says up to three things of its layer: `batched`, the forward pass of many clients at once, for autograd to go
back; `written`, that pass together with the function that goes back without autograd; `units`, which stream of neurons
leaves the layer and which entries they own.  What a class leaves out is refused by name: gradients then take another
path, sub-models raise.  To add a layer, write its class and enter it in `RULES`.

Features of m clients are `[m, B, F]`; images are `[B, m*C, H, W]`, so that the channels of one client lie together and
a convolution's or norm's groups are the clients.  Sequences, samples of two axes, are images of one channel,
`[B, m, L, F]`: a layer that treats their axes otherwise than those of an image says so in what it `takes`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models
from . import recurrent, traced
from .batch import OneSample
from .shapes import Activations, PerClient, PerSample, Pictures, Sequences, Vectors
from .traced import Step, steps

if TYPE_CHECKING:
    from .units import Streams
    from .written import Sink

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
        rules = [rule_of(module, self.below(name)) for name, module in named]
        self.children += rules
        return rules

    def parameters(self) -> Iterator[str]:
        """Names of all parameters that the rules see, one by one."""
        if not self.children:
            yield from (self.below(name) for name, _ in self.module.named_parameters(recurse=False))
        for child in self.children:
            yield from child.parameters()

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
        if self.module._forward_hooks or self.module._forward_pre_hooks:
            yield type(self.module).__name__
        elif (problem := self.problem()) is not None:
            yield problem
        for child in self.children:
            yield from child.problems()

    def __call__(self, x: Activations, p: Pass) -> Activations:
        out = self.batched(x, p)
        if self.name in p.sites:
            p.sites[self.name] = out
        return out

    def entering(self, x: Tensor) -> Activations:
        """A batch `x [m, B, ...]` as the batched rules take it."""
        return entering(x)

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


# --- layers made of layers ------------------------------------------------------------------------------------------


class Sequential(Rule):
    """`nn.Sequential`: one after another."""

    def __init__(self, module: nn.Module, name: str, parts: Iterable[tuple[str, nn.Module]] | None = None) -> None:
        super().__init__(module, name)
        # named_children() would skip a layer that is used twice
        self.rules_of(module._modules.items() if parts is None else parts)
        self.passes_on, self.overwrites = all(part.passes_on for part in self.children), overwrites(self.children)
        for before, part in itertools.pairwise(self.children):
            if isinstance(part, ReLU):
                part.spares = not before.fresh

    def batched(self, x: Activations, p: Pass) -> Activations:
        for child in self.children:
            x = child(x, p)
        return x

    def problem(self) -> str | None:
        if type(self) is Sequential and any(isinstance(child, Recurrent) for child in self.children):
            return "a recurrent layer in nn.Sequential, which hands on its states as well"
        return super().problem()

    def leaves(self, axes: int, written: bool = False) -> int:
        for child in self.children:
            axes = child.leaves(axes, written)
        return axes

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        backs = []
        for child in self.children:
            x, back = child.written(x, s, need)
            backs.append(back)
            need = need or child.trains

        def back(e: Tensor) -> Tensor | None:
            for b in reversed(backs):
                if e is not None:
                    e = b(e)
            return e

        return x, back

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        for child in self.children:
            s, picture = streams.through(child, s, picture)
        return s, picture


def overwrites(parts: Sequence[Rule]) -> bool:
    """Whether layers, one after another, write over what enters the first: not what a layer before has made anew."""
    for part in parts:
        if part.overwrites:
            return True
        if not part.passes_on:
            return False
    return False


class Residual(Rule):
    """`models.Residual`: relu(body(x) + shortcut(x))."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.body, self.shortcut = self.rereads = self.rules_of(module._modules.items())
        self.overwrites = self.body.overwrites or self.shortcut.overwrites

    def batched(self, x: Activations, p: Pass) -> Activations:
        return torch.relu(self.body(x, p) + self.shortcut(x, p))

    def leaves(self, axes: int, written: bool = False) -> int:
        ends = {self.body.leaves(axes, written), self.shortcut.leaves(axes, written)}
        return ends.pop() if len(ends) == 1 else 0

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        (a, back_a), (b, back_b) = self.body.written(x, s, need), self.shortcut.written(x, s, need)
        out = torch.add(a, b).relu_()

        def back(e: Tensor) -> Tensor | None:
            e = aten.threshold_backward(e, out, 0)
            over, under = back_b(e.sum_to_size(b.shape)), back_a(e.sum_to_size(a.shape))
            return under + over if need else None

        return out, back

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        short, _ = streams.through(self.shortcut, s, picture)
        body, picture = streams.through(self.body, s, picture)
        s = streams.join(short, body)
        streams.activation(s, self.name, self.name)
        return s, picture


class PreAct(Rule):
    """`models.PreAct`: h = enter(x); body(h) + (shortcut(h), or x)."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.enter, self.body, *shortcut = self.rereads = self.rules_of(module.named_children())
        self.shortcut = next(iter(shortcut), None)

    def leaves(self, axes: int, written: bool = False) -> int:
        h = self.enter.leaves(axes, written)
        short = axes if self.shortcut is None else self.shortcut.leaves(h, written)
        return short if self.body.leaves(h, written) == short else 0

    def batched(self, x: Activations, p: Pass) -> Activations:
        h = self.enter(x, p)
        short = x if self.shortcut is None else self.shortcut(h, p)
        return self.body(h, p) + short

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        h, _ = streams.through(self.enter, s, True)
        short = s if self.shortcut is None else streams.through(self.shortcut, h, True)[0]
        h, _ = streams.through(self.body, h, True)
        return streams.join(short, h), picture


class Chain(Sequential):
    """A module of the user's own whose forward is one layer after another."""


class Branches(Rule):
    """A module of the user's own whose forward is layers, and additions of what they give."""

    def __init__(self, module: nn.Module, name: str, steps: Sequence[Step]) -> None:
        super().__init__(module, name)
        layers = [(step, layer) for step, layer, _ in steps if layer is not None]
        rules = dict(zip((step for step, _ in layers), self.rules_of(layers), strict=True))
        self.steps = [(step, rules.get(step), reads) for step, _, reads in steps]
        read = [one for _, _, reads in steps for one in reads]
        shared = {one for one in read if read.count(one) > 1}  # also under another name, where a layer passes it on
        for step, rule, reads in self.steps:
            if rule is not None and rule.passes_on and reads[0] in shared:
                shared.add(step)
        self.rereads = [rule for _, rule, reads in self.steps if rule is not None and reads[0] in shared]

    def leaves(self, axes: int, written: bool = False) -> int:
        values = {"": axes}
        for step, rule, reads in self.steps:
            inputs = [values[one] for one in reads]
            joined = inputs[0] if len(set(inputs)) == 1 else 0
            values[step] = joined if rule is None else rule.leaves(joined, written)
        return values[self.steps[-1][0]]

    def batched(self, x: Activations, p: Pass) -> Activations:
        values = {"": x}
        for step, rule, reads in self.steps:
            inputs = [values[one] for one in reads]
            values[step] = inputs[0] + inputs[1] if rule is None else rule(inputs[0], p)
        return values[self.steps[-1][0]]

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        values = {"": (s, picture)}
        for step, rule, reads in self.steps:
            inputs = [values[one] for one in reads]
            joined = rule is None and (streams.join(inputs[0][0], inputs[1][0]), inputs[0][1])
            values[step] = joined or streams.through(rule, *inputs[0])
        return values[self.steps[-1][0]]


class Heads(Rule):
    """`models.Heads`: a classifier after every stage."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.stages = self.rules_of((f"stages.{i}", stage) for i, stage in enumerate(module.stages))
        self.heads = self.rules_of((f"heads.{i}", head) for i, head in enumerate(module.heads))
        self.rereads = (*self.stages[1:], *self.heads)

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

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        for stage, head in zip(self.stages, self.heads, strict=True):
            s, picture = streams.through(stage, s, picture)
            out, _ = streams.through(head, s, picture)
            streams.output(out)
        return out, False


class Projected(Rule):
    """`models.Projected`: classifier(encoder(x)), where the encoder's output is the representation."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.encoder, self.classifier = self.rules_of(module._modules.items())
        self.rereads = [self.classifier]

    def leaves(self, axes: int, written: bool = False) -> int:
        return self.classifier.leaves(self.encoder.leaves(axes, written), written)

    def batched(self, x: Activations, p: Pass) -> Activations:
        p.z = self.encoder(x, p)
        return self.classifier(p.z, p)

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        return streams.through(self.classifier, *streams.through(self.encoder, s, picture))


# --- layers with parameters -----------------------------------------------------------------------------------------


class Linear(Rule):
    """`nn.Linear`: one product per client."""

    takes, writes, fresh = (1, 2, 3), (1,), True

    def batched(self, x: Activations, p: Pass) -> Activations:
        if x.dim() == 4:  # along the last axis
            rows = x.unflatten(1, (p.clients, -1)).transpose(0, 1)
            out = self.batched(rows.flatten(1, 3), p)
            return out.view(*rows.shape[:-1], -1).transpose(0, 1).flatten(1, 2)
        weight = p.params[self.weight].transpose(1, 2)
        if self.module.bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(p.params[self.bias].unsqueeze(1), x, weight)

    def written(self, x: Vectors, s: Sink, need: bool) -> tuple[Vectors, Back]:
        W = s.params[self.weight]
        if self.module.bias is None:
            out = torch.bmm(x, W.transpose(1, 2))
        else:
            out = torch.baddbmm(s.params[self.bias].unsqueeze(1), x, W.transpose(1, 2))

        def back(e: Tensor) -> Tensor | None:
            down = torch.bmm(e, W) if need else None  # before W may move
            s.product(self.weight, e.transpose(1, 2), x)
            if self.module.bias is not None:
                s.put(self.bias, e.sum(1))
            return down

        return out, back

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        if picture:
            return super().units(streams, s, picture)
        new = streams.start(self.module.out_features, self.name)
        streams.owns(self, ((new, 1), (s, streams.entries(s, self.module.in_features, self.name))))
        return new, picture


class Conv2d(Rule):
    """`nn.Conv2d`: one convolution whose groups are the clients, each with the groups of the layer."""

    takes, fresh = (3,), True

    def batched(self, x: Pictures, p: Pass) -> Pictures:
        c, padding = self.module, self.module.padding
        if c.padding_mode != "zeros":
            x, padding = F.pad(x, c._reversed_padding_repeated_twice, c.padding_mode), 0
        bias = None if c.bias is None else p.params[self.bias].reshape(-1)
        weight = p.params[self.weight].flatten(0, 1)
        return F.conv2d(x, weight, bias, c.stride, padding, c.dilation, groups=p.clients * c.groups)

    def is_written(self) -> bool:
        c = self.module
        return c.groups == 1 and not isinstance(c.padding, str) and c.padding_mode == "zeros"

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        c, b, W = self.module, s.clients, s.params[self.weight]
        _, O, C, kh, kw = W.shape
        out = [
            (n + 2 * p - g * (k - 1) - 1) // t + 1
            for n, k, t, p, g in zip(x.shape[2:], c.kernel_size, c.stride, c.padding, c.dilation, strict=True)
        ]
        if len(x) * out[0] * out[1] <= O and c.dilation == (1, 1):  # more weights than columns: touch each but once
            return self.by_columns(x, s, need, out)
        whole, stride, (sh, sw) = x, c.stride, c.stride
        if (kh, kw) == (1, 1) and c.padding == (0, 0) and stride != (1, 1):
            # The pixels that are read, alone: oneDNN's way back through strided 1x1 convolutions in channels_last
            # writes outside of its memory where there are fewer than 8 channels (3.13, seen on an AMD EPYC).
            x, stride = x[:, :, ::sh, ::sw].contiguous(memory_format=torch.channels_last), (1, 1)
        bias = None if c.bias is None else s.params[self.bias].reshape(-1).to(x.dtype)
        w = channels_last(W, x.dtype).view(b * O, kh, kw, C).permute(0, 3, 1, 2)
        out = F.conv2d(x, w, bias, stride, c.padding, c.dilation, groups=b)

        def back(e: Tensor) -> Tensor | None:
            sizes = None if bias is None else [b * O]
            dx, dw, db = aten.convolution_backward(
                e, x, w, sizes, stride, c.padding, c.dilation, False, (0, 0), b, (need, True, bias is not None)
            )
            if need and x is not whole:
                dx, some = torch.zeros_like(whole), dx
                dx[:, :, ::sh, ::sw] = some
            s.put(self.weight, dw.unflatten(0, (b, O)))
            if bias is not None:
                s.put(self.bias, db.view(b, O))
            return dx

        return out, back

    def by_columns(self, x: Pictures, s: Sink, need: bool, out: list[int]) -> tuple[Pictures, Back]:
        """The convolution as a product of its weights, as they lie, with the pictures' columns."""
        b, (B, _, H, Wd), (ph, pw), (sh, sw) = s.clients, x.shape, self.module.padding, self.module.stride
        W, tap = s.params[self.weight], None
        if (H, Wd, *out) == (1, 1, 1, 1):  # one pixel: only one tap of the kernel ever sees it
            tap, ph, pw = (slice(ph, ph + 1), slice(pw, pw + 1)), 0, 0
            W = W[..., tap[0], tap[1]]
        _, O, C, kh, kw = W.shape
        whole = F.pad(x, (pw, pw, ph, ph)).unfold(2, kh, sh).unfold(3, kw, sw)  # [B, b*C, oh, ow, kh, kw]
        whole = whole.unflatten(1, (b, C)).permute(1, 0, 3, 4, 5, 6, 2)
        h, M = whole.reshape(b, -1, kh * kw * C), W.permute(LAST).flatten(2).to(x.dtype)
        z = torch.bmm(h, M.transpose(1, 2))
        if self.module.bias is not None:
            z += s.params[self.bias].unsqueeze(1)

        def back(e: Tensor) -> Tensor | None:
            e = e.unflatten(1, (b, O)).permute(1, 0, 3, 4, 2).reshape(b, -1, O)
            down = torch.bmm(e, M) if need else None  # before the weights may move
            if s.steps and x.dtype == W.dtype and (s.keep == 1 or not tap):  # M are the parameters, with a tap a part
                M.baddbmm_(e.transpose(1, 2), h, beta=s.keep, alpha=-s.lr)
            else:
                dw = torch.bmm(e.transpose(1, 2), h).view(b, O, kh, kw, C)
                s.put(self.weight, dw.permute(FIRST), tap)
            if self.module.bias is not None:
                s.put(self.bias, e.sum(1))
            if not need:
                return None
            down, dx = down.view(whole.shape), x.new_zeros(b, B, H + 2 * ph, Wd + 2 * pw, C)
            for i in range(kh):
                for j in range(kw):
                    dx[:, :, i : i + sh * out[0] : sh, j : j + sw * out[1] : sw] += down[:, :, :, :, i, j]
            dx = dx[:, :, ph : ph + H, pw : pw + Wd]
            return side_by_side(dx.permute(0, 1, 4, 2, 3), x.dtype)

        return side_by_side(z.view(b, B, *out, O).permute(0, 1, 4, 2, 3), x.dtype), back

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        if self.module.groups != 1:
            return super().units(streams, s, picture)
        new = streams.start(self.module.out_channels, self.name)
        streams.owns(self, ((new, 1), (s, 1)))
        return new, True


class GroupNorm(Rule):
    """`nn.GroupNorm`: groups of one client never mix with another's, so one call serves all.  It mixes channels."""

    takes, writes, fresh = (1, 2, 3), (3,), True

    def batched(self, x: Activations, p: Pass) -> Activations:
        n, groups = self.module, p.clients * self.module.num_groups
        if x.dim() == 4 and x.shape[1] != p.clients * n.num_channels:  # a sequence, whose first axis are the channels
            return as_sequences(self.batched(as_pictures(x), p), p)
        w, b = scale_and_shift(self, p.params)
        if x.dim() == 3:  # features are channels
            flat = x.transpose(0, 1).flatten(1)
            return F.group_norm(flat, groups, w, b, n.eps).view(-1, p.clients, x.shape[2]).transpose(0, 1)
        return F.group_norm(x, groups, w, b, n.eps)

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        (B, C, H, W), (w, b) = x.shape, scale_and_shift(self, s.params)
        sizes = (B, C, H * W, s.clients * self.module.num_groups)
        out, mean, rstd = aten.native_group_norm(x, w, b, *sizes, self.module.eps)

        def back(e: Tensor) -> Tensor | None:
            e = e.contiguous(memory_format=torch.channels_last)
            mask = (need, self.module.affine, self.module.affine)
            return put_norm(self, s, *aten.native_group_norm_backward(e, x, mean, rstd, w, *sizes, mask))

        return out, back


class LayerNorm(Rule):
    """`nn.LayerNorm`: over the last axes of each sample."""

    takes, fresh = (1, 2, 3), True

    def batched(self, x: Activations, p: Pass) -> Activations:
        n, m = self.module, p.clients
        rows = x.unflatten(1, (m, -1)).transpose(0, 1) if x.dim() == 4 else x  # [m, B, ...]
        rows = F.layer_norm(rows, n.normalized_shape, None, None, n.eps)
        shape = (m, *(1,) * (rows.dim() - 1 - len(n.normalized_shape)), *n.normalized_shape)
        if n.elementwise_affine:
            rows = rows * p.params[self.weight].view(shape)
            if n.bias is not None:
                rows = rows + p.params[self.bias].view(shape)
        return rows.transpose(0, 1).flatten(1, 2) if x.dim() == 4 else rows


class BatchNorm(Rule):
    """`nn.BatchNorm1d` and `nn.BatchNorm2d`, on the statistics of each client's own batch."""

    fresh = True

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.takes = (1, 2) if isinstance(module, nn.BatchNorm1d) else (3,)

    def batched(self, x: Activations, p: Pass) -> Activations:
        """Where clients have different numbers of samples: the statistics of the real ones alone."""
        if x.dim() == 4 and isinstance(self.module, nn.BatchNorm1d):  # sequences, whose first axis are the channels
            return as_sequences(self.on_pictures(as_pictures(x), p), p)
        return self.on_pictures(x, p)

    def on_pictures(self, x: Activations, p: Pass) -> Activations:
        """`batched` for features and pictures."""
        n, real = self.module, p.real
        if p.single and (x.dim() == 3 or x.shape[2:].numel() == 1):
            raise OneSample
        if x.dim() == 4 and real is None:
            return F.batch_norm(x, None, None, *scale_and_shift(self, p.params), training=True, eps=n.eps)
        # [m, B, C, positions]
        rows = x.unflatten(1, (p.clients, -1)).transpose(0, 1).flatten(3) if x.dim() == 4 else x.unsqueeze(3)
        real = torch.ones_like(rows[..., :1]) if real is None else real[..., None, None].to(x.dtype)
        count = (real.sum(1, keepdim=True) * rows.shape[3]).clamp_min(1)
        mean = (rows * real).sum((1, 3), keepdim=True) / count
        rows = rows - mean
        rows = rows * torch.rsqrt((rows.square() * real).sum((1, 3), keepdim=True) / count + n.eps)
        if n.affine:
            rows = rows * p.params[self.weight][:, None, :, None] + p.params[self.bias][:, None, :, None]
        return rows.transpose(0, 1).flatten(1, 2).view_as(x) if x.dim() == 4 else rows.squeeze(3)

    def is_written(self) -> bool:
        return isinstance(self.module, nn.BatchNorm2d)

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        """The caller sees to it that all samples are real."""
        eps, (w, b) = self.module.eps, scale_and_shift(self, s.params)
        out, mean, scale = aten.native_batch_norm(x, w, b, None, None, True, 0.0, eps)

        def back(e: Tensor) -> Tensor | None:
            mask = (need, self.module.affine, self.module.affine)
            grads = aten.native_batch_norm_backward(e, x, w, None, None, mean, scale, True, eps, mask)
            return put_norm(self, s, *grads)

        return out, back

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        streams.owns(self, ((s, streams.entries(s, self.module.num_features, self.name)),))
        return s, picture


def scale_and_shift(norm: Rule, params: dict[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """A norm's weights and biases, all clients' in a row.

    Contiguous, as the kernels read them: those of a norm with one channel are far apart in the rows.
    """
    if not norm.module.affine:
        return None, None
    return params[norm.weight].reshape(-1).contiguous(), params[norm.bias].reshape(-1).contiguous()


def put_norm(norm: Rule, s: Sink, dx: Tensor | None, dw: Tensor | None, db: Tensor | None) -> Tensor | None:
    """Put the gradients of a norm's weights and biases where they go; that of its input goes on."""
    if norm.module.affine:
        s.put(norm.weight, dw.view(s.clients, -1))
        s.put(norm.bias, db.view(s.clients, -1))
    return dx


# --- layers without parameters --------------------------------------------------------------------------------------


class Each(Rule):
    """Layers that treat every sample and channel alone, so that it does not matter whose they are."""

    def batched(self, x: Activations, p: Pass) -> Activations:
        return self.module(x)

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        return s, picture


# e, input, output, layer -> the derivative of an activation times e
BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor, Tensor, nn.Module], Tensor]] = {
    nn.Tanh: lambda e, x, out, layer: aten.tanh_backward(e, out),
    nn.Sigmoid: lambda e, x, out, layer: aten.sigmoid_backward(e, out),
    nn.GELU: lambda e, x, out, layer: aten.gelu_backward(e, x, approximate=layer.approximate),
    nn.SiLU: lambda e, x, out, layer: aten.silu_backward(e, x),
    nn.LeakyReLU: lambda e, x, out, layer: aten.leaky_relu_backward(e, x, layer.negative_slope, False),
    nn.ELU: lambda e, x, out, layer: aten.elu_backward(e, layer.alpha, 1, 1, False, x),
}


class Pointwise(Each):
    """Activations: one number in, one number out."""

    takes = (1, 2, 3)

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.overwrites = getattr(module, "inplace", False)
        if self.overwrites:
            self.module = copy.copy(module)
            self.module.inplace = False
        self.fresh = type(module) not in (nn.Tanh, nn.Sigmoid)

    def is_written(self) -> bool:
        return type(self.module) in BACKWARD

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        out = self.module(x)
        return out, lambda e: BACKWARD[type(self.module)](e, x, out, self.module) if need else None

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        streams.activation(s, self.name, streams.before)
        return s, picture


class ReLU(Pointwise):
    """`nn.ReLU`.  spares: on the written path, it leaves its input as it is."""

    spares = True

    def batched(self, x: Activations, p: Pass) -> Activations:
        return torch.relu(x)

    def is_written(self) -> bool:
        return True

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        out = x.relu() if self.spares else x.relu_()
        return out, lambda e: aten.threshold_backward(e, out, 0)


class Identity(Each):
    """`nn.Identity`."""

    takes, passes_on = (1, 2, 3), True

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        return x, lambda e: e


class MaxPool2d(Each):
    """`nn.MaxPool2d`."""

    takes, fresh = (3,), True

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        pool = self.module
        sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        options = (*((v, v) if isinstance(v, int) else tuple(v) for v in sizes), pool.ceil_mode)
        out, where = aten.max_pool2d_with_indices(x, *options)
        return out, lambda e: aten.max_pool2d_with_indices_backward(e, x, *options, where) if need else None


class AdaptiveAvgPool2d(Each):
    """`nn.AdaptiveAvgPool2d`; written where it averages to one pixel."""

    takes, fresh = (3,), True

    def is_written(self) -> bool:
        return self.module.output_size in (1, (1, 1))

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        size = x.shape[2] * x.shape[3]
        return x.mean((2, 3), keepdim=True), lambda e: (e / size).expand_as(x) if need else None


class LogSoftmax(Each):
    """`nn.LogSoftmax` of the logits, which the cross-entropy takes for them."""

    takes, writes = (1, 3), (1,)

    def problem(self) -> str | None:
        return None if self.module.dim in (1, -1) else "LogSoftmax over another axis than the classes"

    def batched(self, x: Activations, p: Pass) -> Activations:
        if x.dim() == 4:  # of pictures: over the channels of each client
            rows = x.unflatten(1, (p.clients, -1))
            return torch.log_softmax(rows, 2 if self.module.dim == 1 else -1).flatten(1, 2)
        return torch.log_softmax(x, -1)

    def written(self, x: Vectors, s: Sink, need: bool) -> tuple[Vectors, Back]:
        out = torch.log_softmax(x, -1)
        return out, lambda e: e - out.exp() * e.sum(-1, keepdim=True)

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        return Rule.units(self, streams, s, picture)


class Dropout(Rule):
    """`nn.Dropout`: every client draws for its own samples, by its own generator, as it would alone."""

    takes, passes_on = (1, 2, 3), True

    def batched(self, x: Activations, p: Pass) -> Activations:
        rate = self.module.p
        if rate == 0 or not p.key:
            return x
        rows = x.unflatten(1, (p.clients, -1)).transpose(0, 1) if x.dim() == 4 else x  # [m, B, ...]
        keep = torch.zeros_like(rows)
        for mask, count, generator in zip(keep, p.count, p.generators(x.device), strict=True):
            mask[:count] = torch.empty_like(rows[0, :count]).contiguous().bernoulli_(1 - rate, generator=generator)
        out = rows * keep.div_(1 - rate) if rate < 1 else rows * keep
        return out.transpose(0, 1).flatten(1, 2) if x.dim() == 4 else out


class Flatten(Rule):
    """`nn.Flatten` of all axes but the first: from pictures to features, a channel becoming a block of columns."""

    takes, passes_on = (1, 2, 3), True

    def problem(self) -> str | None:
        return None if (self.module.start_dim, self.module.end_dim) == (1, -1) else "Flatten of some axes"

    def batched(self, x: Activations, p: Pass) -> Vectors:
        if x.dim() == 4:
            return x.reshape(x.shape[0], p.clients, -1).transpose(0, 1)
        return x.flatten(2)

    def leaves(self, axes: int, written: bool = False) -> int:
        return min(axes, 1)

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Vectors, Back]:
        if x.dim() == 3:
            return x, lambda e: e
        (B, _, H, W), b = x.shape, s.clients
        out = x.view(B, b, -1, H, W).transpose(0, 1).reshape(b, B, -1)
        return out.to(s.dtype), lambda e: side_by_side(e.view(b, B, -1, H, W), s.compute)

    def units(self, streams: Streams, s: int, picture: bool) -> Stream:
        return super().units(streams, s, picture) if self.problem() else (s, False)


class Scaler(Each):
    """`models.Scaler`: x / rate."""

    takes, passes_on = (1, 2, 3), True

    def batched(self, x: Activations, p: Pass) -> Activations:
        rate = self.module.rate if p.rate is None else p.rate
        if isinstance(rate, Tensor):  # one a client
            if x.dim() == 4:
                return (x.unflatten(1, (p.clients, -1)) / rate.view(-1, 1, 1, 1)).flatten(1, 2)
            return x / rate.view(-1, 1, 1)
        return x if rate == 1 else x / rate

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        rate = self.module.rate
        return (x, lambda e: e) if rate == 1 else (x / rate, lambda e: e / rate)


# --- sequences ------------------------------------------------------------------------------------------------------


class Embedding(Rule):
    """`nn.Embedding`: each client looks its symbols up in its own table."""

    takes, fresh = (1,), True

    def problem(self) -> str | None:
        e = self.module
        unusual = e.max_norm is not None or e.sparse or e.scale_grad_by_freq
        return "Embedding with max_norm, sparse or scale_grad_by_freq" if unusual else None

    def leaves(self, axes: int, written: bool = False) -> int:
        return 2 if axes == 1 else 0

    def batched(self, x: Annotated[Tensor, "m B L"], p: Pass) -> Sequences:
        e, tables = self.module, p.params[self.weight]
        first = torch.arange(len(x), device=x.device).view(-1, 1, 1) * e.num_embeddings
        out = F.embedding(x + first, tables.flatten(0, 1))
        if e.padding_idx is not None:  # is looked up, but never learned
            out = torch.where((x == e.padding_idx).unsqueeze(3), out.detach(), out)
        return out.transpose(0, 1)


class Recurrent(Rule):
    """`nn.LSTM` and `nn.GRU`: the states of the last layer, all of them."""

    takes, fresh = (2,), True

    def problem(self) -> str | None:
        layer, kind = self.module, type(self.module).__name__
        for is_so, what in (
            (not self.name, "the whole model"),
            (layer.bidirectional, "bidirectional=True"),
            (layer.dropout and layer.num_layers > 1, "dropout between its layers (use one layer each, and nn.Dropout)"),
            (layer.proj_size, "proj_size"),
        ):
            if is_so:
                return f"{kind} with {what}"
        return None

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        params = [p.params[self.below(name)] for name, _ in self.module.named_parameters()]
        return recurrent.states(self.module, x.transpose(0, 1), params).transpose(0, 1)


class Select(Rule):
    """`x[:, index]`: one step of each sequence."""

    takes, passes_on = (2,), True

    def leaves(self, axes: int, written: bool = False) -> int:
        return 1 if axes == 2 else 0

    def batched(self, x: Sequences, p: Pass) -> Vectors:
        return x[:, :, self.module.index].transpose(0, 1)


class Mean(Select):
    """The mean over the first or the second axis of each sequence."""

    passes_on = False

    def batched(self, x: Sequences, p: Pass) -> Vectors:
        return x.mean(self.module.axis + 1).transpose(0, 1)


class Swap(Rule):
    """The two axes of each sequence in the other order."""

    takes, passes_on = (2,), True

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        return x.transpose(2, 3)


class Symbols(Each):
    """`x.long()`: the symbols of texts, whatever the type of their numbers."""

    takes, passes_on = (1,), True


class Conv1d(Rule):
    """`nn.Conv1d`: one convolution whose groups are the clients, each with the groups of the layer."""

    takes, fresh = (2,), True

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        c, padding, rows = self.module, self.module.padding, x.flatten(1, 2)
        if c.padding_mode != "zeros":
            rows, padding = F.pad(rows, c._reversed_padding_repeated_twice, c.padding_mode), 0
        bias = None if c.bias is None else p.params[self.bias].reshape(-1)
        weight = p.params[self.weight].flatten(0, 1)
        out = F.conv1d(rows, weight, bias, c.stride, padding, c.dilation, groups=p.clients * c.groups)
        return out.unflatten(1, (p.clients, -1))


class Pool1d(Each):
    """`nn.MaxPool1d`, `nn.AvgPool1d` and the adaptive ones."""

    takes, fresh = (2,), True

    def problem(self) -> str | None:
        return "a pooling that returns its indices" if getattr(self.module, "return_indices", False) else None

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        return self.module(x.flatten(1, 2)).unflatten(1, (p.clients, -1))


def as_pictures(x: Sequences) -> Pictures:
    """Sequences `[B, m, C, L]` as pictures `[B, m*C, 1, L]`: their first axis are the channels."""
    return x.flatten(1, 2).unsqueeze(2)


def as_sequences(x: Pictures, p: Pass) -> Sequences:
    """Pictures `[B, m*C, 1, L]` as sequences `[B, m, C, L]`."""
    return x.squeeze(2).unflatten(1, (p.clients, -1))


RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Sequential: Sequential,
    models.Residual: Residual,
    models.PreAct: PreAct,
    models.Heads: Heads,
    models.Projected: Projected,
    nn.Linear: Linear,
    nn.Conv2d: Conv2d,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.ReLU: ReLU,
    nn.Tanh: Pointwise,
    nn.Sigmoid: Pointwise,
    nn.GELU: Pointwise,
    nn.SiLU: Pointwise,
    nn.ELU: Pointwise,
    nn.LeakyReLU: Pointwise,
    nn.ReLU6: Pointwise,
    nn.Hardswish: Pointwise,
    nn.Softplus: Pointwise,
    nn.Dropout: Dropout,
    nn.LogSoftmax: LogSoftmax,
    nn.Identity: Identity,
    nn.MaxPool2d: MaxPool2d,
    nn.AvgPool2d: Each,
    nn.AdaptiveAvgPool2d: AdaptiveAvgPool2d,
    nn.Flatten: Flatten,
    models.Scaler: Scaler,
    nn.Embedding: Embedding,
    nn.LSTM: Recurrent,
    nn.GRU: Recurrent,
    nn.Conv1d: Conv1d,
    nn.MaxPool1d: Pool1d,
    nn.AvgPool1d: Pool1d,
    nn.AdaptiveAvgPool1d: Pool1d,
    nn.AdaptiveMaxPool1d: Pool1d,
    traced.Select: Select,
    traced.Mean: Mean,
    traced.Swap: Swap,
    traced.Symbols: Symbols,
}


def rule_of(module: nn.Module, name: str = "") -> Rule:
    """The rule of a module and of all that is in it; a subclass of a known layer is not that layer.

    A module of no known kind is what its forward calls, where that is layers and additions.
    """
    if type(module) in RULES:
        return RULES[type(module)](module, name)
    called = steps(module, lambda part: type(part) in RULES)
    if called is None:
        return Rule(module, name)
    names = [step for step, _, _ in called]
    if [reads for _, _, reads in called] == [(before,) for before in ["", *names[:-1]]]:
        return Chain(module, name, [(step, layer) for step, layer, _ in called])
    return Branches(module, name, called)


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


def entering(x: Tensor) -> Activations:
    """A batch `x [m, B, ...]` as the batched rules take it."""
    if x.dim() < 5:
        return x.transpose(0, 1) if x.dim() == 4 else x
    if x.device.type == "cpu" and x.dtype != torch.float64:  # oneDNN is faster so, and has no kernels for float64
        return side_by_side(x, x.dtype)
    m, B, C, H, W = x.shape
    return x.transpose(0, 1).reshape(B, m * C, H, W)
