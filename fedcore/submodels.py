"""Sub-models: which neuron owns which entries of the flat vector, and the really smaller networks made of some of them.

A *stream* is a group of hidden units that are kept or dropped together: the outputs of one layer, or all layers that
add up in a residual stream (the sum needs one channel set).  Inputs and classes are always kept.  A keep-set is a
sorted index tensor `[m, k]` per stream, one row a client; k = ceil(ratio * width), so no layer is ever empty.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import checks
from .models import MODELS, Heads, Layout, PreAct, Projected, Residual, Scaler

Axis = tuple[int, int]  # (stream, entries per unit); stream -1 is kept whole
WHOLE = -1
TIE = 64  # units of rounding of the largest score within which scores count as equal
_POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid)
_PASS = (*_POINTWISE, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, Scaler)


def kept(ratio: float, width: int) -> int:
    """ceil(ratio * width), at least 1: 64/127/254/507 of 64/128/256/512 at 0.99 (HeteroFL's rounding)."""
    return math.ceil(round(ratio * width, 9))  # 0.07 * 100 is 7.000000000000001


@dataclass(frozen=True)
class Neurons:
    """The hidden units of a network and the entries they own in its flat vector.

    Per stream: `names` (its first layer), `widths`, `sites` (the layer whose output is its activation; of a residual
    stream the last one), `before` (the layer before that activation) and `outputs` (the linear layer or convolution
    that writes it, before any normalisation; the last one, too).  Per parameter tensor: `axes`, the stream and
    the entries per unit of its leading axes (H*W columns a channel after a Flatten), and `classes`, whether its first
    axis are the classes.
    """

    layout: Layout
    names: tuple[str, ...]
    widths: tuple[int, ...]
    sites: tuple[str, ...]
    before: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[tuple[Axis, ...], ...]
    classes: tuple[bool, ...]

    @staticmethod
    def of(module: nn.Module, aligned: bool = True) -> Neurons:
        """Walk a module.  aligned=False gives every layer of a residual stream its own keep-set (a known mistake).

        Raises ValueError for layers that mix channels or that no rule is known for.
        """
        return _Walk(module, aligned).neurons()

    @staticmethod
    def none(d: int) -> Neurons:
        """No hidden units: d entries that are all kept."""
        layout = Layout(("x",), (torch.Size([d]),), (slice(0, d),), d)
        return Neurons(layout, (), (), (), (), (), (((WHOLE, 1),),), (False,))

    def places(self, keep: Sequence[Tensor]) -> Tensor:
        """Flat indices `[m, d_r]` of the entries kept by the keep-sets `[m, k]`, in the order of the smaller module."""
        device, pieces = keep[0].device, []
        for shape, place, axes in zip(self.layout.shapes, self.layout.slices, self.axes, strict=True):
            index = torch.zeros(1, 1, dtype=torch.int64, device=device)
            for size, (stream, block) in zip(shape, axes, strict=False):
                if stream == WHOLE:
                    along = torch.arange(size, device=device)[None]
                else:
                    inside = torch.arange(block, device=device)
                    along = (keep[stream][:, :, None] * block + inside).flatten(1)
                index = (index[:, :, None] * size + along[:, None, :]).flatten(1)
            rest = math.prod(shape[len(axes) :])
            index = (index[:, :, None] * rest + torch.arange(rest, device=device)).flatten(1)
            pieces.append((index + place.start).expand(len(keep[0]), -1))
        return torch.cat(pieces, 1)

    def top(self, scores: Sequence[Tensor], ratio: float) -> list[Tensor]:
        """Keep-sets: the ceil(ratio * width) units of highest score `[m, width]` per stream; ties to lower indices.

        Neighbours in the order that differ by rounding alone (`TIE` of the largest score) are tied as well.
        """
        first = [_ranks(s).sort(dim=1, stable=True).indices[:, : kept(ratio, s.shape[1])] for s in scores]
        return [k.sort(1).values for k in first]

    def prefix(self, ratio: float, device: torch.device | str = "cpu") -> list[Tensor]:
        """The keep-sets `[1, k]` of the first units of each stream."""
        return [torch.arange(kept(ratio, w), device=device)[None] for w in self.widths]

    def only_owned(self, mask: Tensor, owned: Tensor) -> Tensor:
        """The mask `[m, d]` without the classifier's rows and biases of labels that a client does not own, `[m, C]`."""
        mask = mask.clone()
        for shape, place, ours in zip(self.layout.shapes, self.layout.slices, self.classes, strict=True):
            if ours:
                mask[:, place] &= owned.repeat_interleave(math.prod(shape[1:]), 1)
        return mask


def _ranks(scores: Tensor) -> Tensor:
    """Ranks `[m, width]` of scores, 0 the highest; equal ones have equal ranks."""
    ordered, units = scores.sort(dim=1, descending=True)
    room = TIE * torch.finfo(scores.dtype).eps * scores.abs().amax(1, keepdim=True) if scores.is_floating_point() else 0
    below = (ordered[:, :-1] - ordered[:, 1:] > room).cumsum(1)
    return torch.zeros_like(units).scatter_(1, units[:, 1:], below)


class _Walk:
    """One pass through a module: streams, who owns what, and where activations are read."""

    def __init__(self, module: nn.Module, aligned: bool) -> None:
        self.layout, self.aligned = Layout.of(module), aligned
        self.width: list[int | None] = [None]  # stream 0: the inputs
        self.name, self.parent, self.fixed = [""], [0], {0}
        self.axes: dict[str, tuple[Axis, ...]] = {}
        self.events: list[tuple[int, str, str]] = []
        self.writes: list[tuple[int, str]] = []
        self.outputs: set[int] = set()
        self.last = ""
        if len(list(module.named_parameters(remove_duplicate=False))) > len(self.layout.names):
            raise ValueError("the model shares parameters between layers; sub-models need a tensor per layer")
        self.out(self.walk(module, "", 0, False))

    def out(self, state: tuple[int, bool]) -> None:
        self.fixed.add(self.root(state[0]))
        self.outputs.add(state[0])

    def root(self, s: int) -> int:
        while self.parent[s] != s:
            s = self.parent[s]
        return s

    def join(self, a: int, b: int) -> int:
        """A sum of two streams: one keep-set for both, that of the second where nothing is aligned."""
        a, b = self.root(a), self.root(b)
        if self.aligned and a != b:
            first, second = min(a, b), max(a, b)
            self.parent[second] = first
            if second in self.fixed:
                self.fixed.add(first)
        return b

    def new(self, width: int, name: str) -> int:
        self.width.append(width)
        self.name.append(name)
        self.parent.append(len(self.parent))
        self.writes.append((len(self.parent) - 1, name))
        return len(self.parent) - 1

    def walk(self, module: nn.Module, name: str, s: int, picture: bool) -> tuple[int, bool]:
        """The stream that leaves the module, and whether it is a picture."""
        at = f"{name}." if name else ""
        go = lambda child, s, picture: self.walk(getattr(module, child), f"{at}{child}", s, picture)  # noqa: E731
        if type(module) is nn.Sequential:
            for child, layer in module._modules.items():
                s, picture = self.walk(layer, f"{at}{child}", s, picture)
        elif type(module) is Residual:
            short, _ = go("shortcut", s, picture)
            body, picture = go("body", s, picture)
            s = self.join(short, body)
            self.events.append((s, name, name))
        elif type(module) is PreAct:
            h = s
            for child in module.ENTER:
                h, _ = go(child, h, True)
            short = go("shortcut", h, True)[0] if hasattr(module, "shortcut") else s
            for child in module.BODY:
                h, _ = go(child, h, True)
            s = self.join(short, h)
        elif type(module) is Projected:
            s, picture = go("classifier", *go("encoder", s, picture))
        elif type(module) is Heads:
            for i, (stage, head) in enumerate(zip(module.stages, module.heads, strict=True)):
                s, picture = self.walk(stage, f"{at}stages.{i}", s, picture)
                leaf = self.walk(head, f"{at}heads.{i}", s, picture)
                self.out(leaf)
            s = leaf[0]
        elif type(module) is nn.Conv2d and module.groups == 1:
            new = self.new(module.out_channels, name)
            self.own(at, module, ((new, 1), (s, 1)))
            s, picture = new, True
        elif type(module) is nn.Linear and not picture:
            new = self.new(module.out_features, name)
            self.own(at, module, ((new, 1), (s, self.block(s, module.in_features, name))))
            s = new
        elif type(module) in (nn.BatchNorm1d, nn.BatchNorm2d):
            self.own(at, module, ((s, self.block(s, module.num_features, name)),))
        elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            picture = False
        elif type(module) in _PASS:
            if type(module) in _POINTWISE:
                self.events.append((s, name, self.last))
        else:
            raise ValueError(
                f"no rule says which neurons own what in {type(module).__name__} ({name or 'the model'}); GroupNorm, "
                "LayerNorm, grouped convolutions and recurrent layers mix channels: use a model of Linear, Conv2d, "
                "BatchNorm and pointwise layers, such as 'thesis_cnn', or capacities=1"
            )
        self.last = name
        return s, picture

    def block(self, s: int, features: int, name: str) -> int:
        width = self.width[s]
        if width is None:
            return 1
        if features % width:
            raise ValueError(f"{name} takes {features} features, which is no multiple of {width} channels before it")
        return features // width

    def own(self, at: str, module: nn.Module, axes: tuple[Axis, ...]) -> None:
        self.axes[f"{at}weight"], self.axes[f"{at}bias"] = axes, axes[:1]

    def neurons(self) -> Neurons:
        streams = [s for s in range(len(self.parent)) if self.root(s) == s and s not in self.fixed]
        number = {s: i for i, s in enumerate(streams)}
        site = {s: (self.name[s], self.name[s]) for s in streams}
        for s, at, before in self.events:  # the last one on a stream stands
            site[self.root(s)] = (at, before)
        output = {self.root(s): name for s, name in self.writes}  # here, too

        def axis(a: Axis) -> Axis:
            return (number.get(self.root(a[0]), WHOLE), a[1])

        return Neurons(
            self.layout,
            tuple(self.name[s] for s in streams),
            tuple(self.width[s] for s in streams),
            tuple(site[s][0] for s in streams),
            tuple(site[s][1] for s in streams),
            tuple(output[s] for s in streams),
            tuple(tuple(axis(a) for a in self.axes[name]) for name in self.layout.names),
            tuple(self.axes[name][0][0] in self.outputs for name in self.layout.names),
        )


# --- really smaller networks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Width:
    """module -> the module with the first ceil(ratio * width) units of each stream; `scaled`: its scalers have rate
    `ratio` (else 1)."""

    ratio: float
    scaled: bool = True

    def __call__(self, module: nn.Module) -> nn.Module:
        walk, small = _Walk(module, True), copy.deepcopy(module)
        neurons, tensors = walk.neurons(), dict(module.named_parameters())
        for name, shape, axes in zip(neurons.layout.names, neurons.layout.shapes, neurons.axes, strict=True):
            cut = tuple(
                slice(size if s == WHOLE else kept(self.ratio, neurons.widths[s]) * block)
                for size, (s, block) in zip(shape, axes, strict=False)
            )
            at, _, leaf = name.rpartition(".")
            part = nn.Parameter(tensors[name].detach()[cut].clone(), requires_grad=tensors[name].requires_grad)
            setattr(small.get_submodule(at), leaf, part)
        number = {name: s for s, name in enumerate(neurons.names)}
        for name, layer in small.named_modules():
            if isinstance(layer, nn.Linear):
                layer.out_features, layer.in_features = layer.weight.shape
            elif isinstance(layer, nn.Conv2d):
                layer.out_channels, layer.in_channels = layer.weight.shape[:2]
            elif isinstance(layer, Scaler):
                layer.rate = float(self.ratio) if self.scaled else 1.0
            elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
                s, block = walk.axes[f"{name}.weight"][0]
                stream = number.get(walk.name[walk.root(s)])
                if stream is not None:
                    layer.num_features = kept(self.ratio, neurons.widths[stream]) * block
                for buffer in ("running_mean", "running_var"):
                    if getattr(layer, buffer) is not None:
                        setattr(layer, buffer, getattr(layer, buffer)[: layer.num_features].clone())
        return small


@dataclass(frozen=True)
class Depth:
    """A network with heads -> its first `stages` stages and heads."""

    stages: int

    def __call__(self, module: nn.Module) -> nn.Module:
        if self.stages == stages(module):
            return copy.deepcopy(module)
        small = Heads(module.stages[: self.stages], module.heads[: self.stages])
        return copy.deepcopy(small)

    def places(self, layout: Layout) -> Tensor:
        """Flat indices `[d_D]` of these stages and heads in the whole network's vector."""
        ours = [
            torch.arange(place.start, place.stop)
            for name, place in zip(layout.names, layout.slices, strict=True)
            if not name.startswith(("stages.", "heads.")) or int(name.split(".")[1]) < self.stages
        ]
        return torch.cat(ours)


def stages(module: nn.Module) -> int:
    """How many stages with heads a network has; 1 for one without heads."""
    return len(module.heads) if isinstance(module, Heads) else 1


def with_heads(net: nn.Module, classes: int) -> Heads:
    """A sequential network with a new classifier after every stage but the last, which keeps its own.

    A stage ends before each layer that changes the number of channels (`thesis_cnn` and the ResNets: four).  A new
    head is global average pooling, where there are pictures, and a linear layer; DepthFL's code has an attention
    bottleneck before it, which is left out here.  Raises ValueError for networks that have one stage or are no
    `nn.Sequential` ending in a linear layer.
    """
    if type(net) is not nn.Sequential or not isinstance(net[-1], nn.Linear):
        raise ValueError("heads need a torch.nn.Sequential that ends in a linear layer; use such a model")
    parts: list[list[nn.Module]] = [[]]
    widths: list[int] = []
    for layer in net[:-1]:
        inside = [m.weight.shape for m in layer.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        if inside and widths and widths[-1] != inside[-1][0]:
            parts.append([])
        if inside:
            widths[len(parts) - 1 :] = [inside[-1][0]]
        parts[-1].append(layer)
    if len(widths) < 2:
        raise ValueError("heads need stages; use a model with two or more hidden layers of different width")
    tail = [net[-1]]
    while isinstance(parts[-1][-1], nn.Flatten | nn.AdaptiveAvgPool2d):
        tail.insert(0, parts[-1].pop())
    pictures = any(isinstance(m, nn.Conv2d) for m in net.modules())
    pool = lambda: [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if pictures else []  # noqa: E731
    heads = [nn.Sequential(*pool(), nn.Linear(w, classes)) for w in widths[:-1]]
    return Heads([nn.Sequential(*part) for part in parts], [*heads, nn.Sequential(*tail)])


def multihead(model: str | Callable[[Sequence[int], int], nn.Module]) -> Callable[[Sequence[int], int], nn.Module]:
    """DepthFL's form of a model, `with_heads` of it.  Returns a function for `model=`."""
    if isinstance(model, str):
        checks.choice("model", model, MODELS)
        model = MODELS[model]
    return lambda shape, classes: with_heads(model(shape, classes), classes)


def cost(module: nn.Module, shape: Sequence[int]) -> dict[str, int]:
    """`parameters` and `macs` (multiply-adds of linear and convolution layers, one sample forward), both counted.

    `cost(Width(0.5)(module), shape)` is that of the sub-model of ratio 0.5.
    """
    module, macs, hooks = copy.deepcopy(module).eval(), [0], []

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        macs[0] += out[0].numel() * layer.weight[0].numel()

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            hooks.append(layer.register_forward_hook(count))
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        module(torch.zeros(1, *shape, dtype=dtype))
    return {"parameters": sum(p.numel() for p in module.parameters()), "macs": macs[0]}


# --- what comes back ------------------------------------------------------------------------------------------------


def combine(
    x: Tensor, Y: Tensor, mask: Tensor, p: Tensor, server_lr: float = 1.0, total: Callable = lambda v: v
) -> Tensor:
    """Each entry: the weighted mean over the clients that trained it; unchanged where nobody did.  `[d]`.

    x `[d]`, Y `[m, d]`, mask `[m, d]` bool, p `[m, 1]` weights, total: `Round.total`.  where(count > 0, sum / count,
    old); the FedDSE study's eq. (3-4) as printed sets entries that nobody trained to zero.  With full masks it is
    FedAvg's step, bit for bit.
    """
    delta = torch.mv(torch.where(mask, Y - x, 0).T, p[:, 0])
    share = torch.mv(mask.to(p.dtype).T, p[:, 0])
    delta, share, missing = total(torch.stack([delta, share, (~mask).any(0).to(p.dtype)]))
    delta = torch.where(missing == 0, delta, delta / share)
    return torch.where(share > 0, x + server_lr * delta, x)
