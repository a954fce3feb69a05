"""Sub-models: the really smaller networks made of some neurons, what they cost, and how the server combines them.

Which neuron owns which entries of the flat vector is `engine.units`' to say.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import checks
from .engine.units import WHOLE, Axis, Neurons, kept
from .models import MODELS, Heads, Layout, Scaler


@dataclass(frozen=True)
class Width:
    """module -> the module with the first ceil(ratio * width) units of each stream; `scaled`: its scalers have rate
    `ratio` (else 1)."""

    ratio: checks.PositiveFraction
    scaled: bool = True

    __post_init__ = checks.fields

    def __call__(self, module: nn.Module) -> nn.Module:
        neurons, small = Neurons.of(module), copy.deepcopy(module)
        tensors = dict(module.named_parameters())

        def share(axis: Axis, size: int) -> int:
            s, entries = axis
            return size if s == WHOLE else kept(self.ratio, neurons.widths[s]) * entries

        for name, shape, axes in zip(neurons.layout.names, neurons.layout.shapes, neurons.axes, strict=True):
            cut = tuple(slice(share(axis, size)) for size, axis in zip(shape, axes, strict=False))
            at, _, leaf = name.rpartition(".")
            part = nn.Parameter(tensors[name].detach()[cut].clone(), requires_grad=tensors[name].requires_grad)
            setattr(small.get_submodule(at), leaf, part)
        for name, layer in small.named_modules():
            if isinstance(layer, nn.Linear):
                layer.out_features, layer.in_features = layer.weight.shape
            elif isinstance(layer, nn.Conv2d):
                layer.out_channels, layer.in_channels = layer.weight.shape[:2]
            elif isinstance(layer, Scaler):
                layer.rate = float(self.ratio) if self.scaled else 1.0
            elif name in neurons.norms:
                layer.num_features = share(neurons.norms[name], layer.num_features)
                for buffer in ("running_mean", "running_var"):
                    if getattr(layer, buffer) is not None:
                        setattr(layer, buffer, getattr(layer, buffer)[: layer.num_features].clone())
        return small


@dataclass(frozen=True)
class Depth:
    """A network with heads -> its first `stages` stages and heads."""

    stages: checks.Count

    __post_init__ = checks.fields

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
        model = MODELS[checks.choice("model", model, MODELS)]
    if not callable(model):
        raise TypeError(f"model={checks.brief(model)}; use a name, or a function (shape, classes) -> torch.nn.Module")
    return lambda shape, classes: with_heads(model(shape, classes), classes)


def cost(module: nn.Module, shape: Sequence[int]) -> dict[str, int]:
    """`parameters` and `macs` (multiply-adds of linear and convolution layers, one sample forward), both counted.

    `cost(Width(0.5)(module), shape)` is that of the sub-model of ratio 0.5.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    module = copy.deepcopy(module).eval()
    x = torch.zeros(1, *shape, dtype=next(module.parameters()).dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    return {"parameters": sum(p.numel() for p in module.parameters()), "macs": counter.get_total_flops() // 2}


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
