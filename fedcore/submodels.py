"""Sub-models: the really smaller networks made of some neurons, what they cost, and how the server combines them.

Which neuron owns which entries of the flat vector is `engine.units`' to say.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .engine.units import WHOLE, Axis, Neurons, kept
from .models import MODELS, Heads, Layout, Scaler
from .models.parts import stages
from .support import checks


@dataclass(frozen=True)
class Width(checks.Named):
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
class Depth(checks.Named):
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


# --- the smaller networks of a round, and what comes back -------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Rows of a cohort whose local steps run on a smaller network.

    rows: which, ascending, on the host.  to: what makes the smaller network (`submodels.Width` or `Depth`; None: the
    whole one).  places: flat indices `[m_g, d_g]` of its entries in the whole vector (None: all of it).
    """

    rows: np.ndarray
    to: Callable[[Any], Any] | None = None
    places: Tensor | None = None

    def take(self, v: Tensor) -> Tensor:
        """These rows and entries of `v [m, d]`, as `[m_g, d_g]`; v itself where they are all of it."""
        if self.places is None:
            return v if len(v) == len(self.rows) else v[self._rows(v)]
        places = self.places.to(v.device)
        if v.stride(0) == 0:  # one row for all
            own = places[:1] if places.stride(0) == 0 else places
            return v[0].index_select(0, own.flatten()).view(own.shape).expand(places.shape)
        if len(v) == len(self.rows):
            return v.gather(1, places)
        return v.reshape(-1).index_select(0, self._flat(v)).view(places.shape)

    def put(self, v: Tensor, y: Tensor) -> None:
        """Write `y [m_g, d_g]` to these rows and entries of `v [m, d]`."""
        if self.places is None:
            if y is not v:
                v[self._rows(v)] = y
        elif len(v) == len(self.rows):
            v.scatter_(1, self.places.to(v.device), y)
        else:
            v.view(-1).scatter_(0, self._flat(v), y.reshape(-1))

    def add(self, v: Tensor, y: Tensor, weights: Tensor) -> None:
        """v += sum_i weights_i y_i, where `y [m_g, d_g]` has its entries in `v [d]`; `weights [m_g, 1]`."""
        if self.places is None:
            v += torch.mv(y.T, weights[:, 0])
            return
        places = self.places.to(v.device)
        if places.stride(0) == 0:  # the same for all
            v.index_add_(0, places[0], torch.mv(y.T, weights[:, 0]))
            return
        for at, row in zip(places, weights * y, strict=True):  # one after the other: the order of a sum is its last bit
            v.index_add_(0, at, row)

    def _rows(self, v: Tensor) -> Tensor:
        return torch.as_tensor(self.rows).to(v.device)

    def _flat(self, v: Tensor) -> Tensor:
        """Where the entries stand in `v.view(-1)`: faster on a CPU than an index of rows and places."""
        return (self._rows(v)[:, None] * v.shape[1] + self.places.to(v.device)).flatten()

    def among(self, rows: Tensor) -> Part:
        """The part's share of some rows (ascending), numbered as in these."""
        some = rows.cpu().numpy()
        chosen = np.flatnonzero(np.isin(self.rows, some))
        return self._some(chosen, np.searchsorted(some, self.rows[chosen]))

    @staticmethod
    def joined(parts: Sequence[Part]) -> Part:
        """Parts of one network as one."""
        first, rows = parts[0], np.concatenate([part.rows for part in parts])
        places = None if first.places is None else torch.cat([part.places for part in parts])
        order = np.argsort(rows)
        return Part(rows, first.to, places)._some(order, rows[order])

    def moved(self, device: str | torch.device, rows: np.ndarray | None = None) -> Part:
        """The same with its places on a device, in a matrix whose rows `rows [m]` are those of this one."""
        places = None if self.places is None else self.places.to(device)
        return Part(self.rows if rows is None else rows[self.rows], self.to, places)

    def split(self, size: int) -> list[Part]:
        """Parts of at most `size` rows each."""
        cuts = [slice(a, a + size) for a in range(0, len(self.rows), size)]
        return [self._some(cut, self.rows[cut]) for cut in cuts]

    def _some(self, chosen: slice | np.ndarray, rows: np.ndarray) -> Part:
        """These of its rows, with other numbers."""
        return Part(rows, self.to, None if self.places is None else self.places[chosen])


def combine(
    x: Tensor,
    Y: Tensor,
    mask: Tensor,
    p: Tensor,
    server_lr: float = 1.0,
    total: Callable[[Tensor], Tensor] = lambda v: v,
    parts: Sequence[Part] | None = None,
) -> Tensor:
    """Each entry: the weighted mean over the clients that trained it; unchanged where nobody did.  `[d]`.

    x `[d]`, Y `[m, d]`, mask `[m, d]` bool, p `[m, 1]` weights, total: `Round.total`.  parts: the sub-models that the
    masks lie in (`Round.parts`), so that the sums run over their own entries; None: over all.  where(count > 0, sum /
    count, old); the FedDSE study's eq. (3-4) as printed sets entries that nobody trained to zero.  With full masks it
    is FedAvg's step, bit for bit.
    """
    delta, share, count = found = x.new_zeros(3, len(x))
    for part in parts or [Part(np.arange(len(Y)))]:
        trained, weights = part.take(mask), p[torch.as_tensor(part.rows).to(p.device)]
        part.add(delta, torch.where(trained, part.take(Y) - part.take(x.expand(Y.shape)), 0), weights)
        trained = trained.to(p.dtype)
        part.add(share, trained, weights)
        part.add(count, trained, torch.ones_like(weights))
    torch.lt(count, len(Y), out=count)
    delta, share, missing = total(found)  # missing: more than 0 where some client did not train the entry
    delta = torch.where(missing == 0, delta, delta / share)
    return torch.where(share > 0, x + server_lr * delta, x)
