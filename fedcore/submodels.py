"""Sub-models: smaller networks made of some neurons, their cost, and their aggregation.

`engine.units` defines the entries of the flat vector that belong to each neuron.
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
    """A function from a module to the module with the first ceil(ratio * width) units of each stream.

    scaled: whether its scalers have rate `ratio` instead of 1.
    """

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
    """A function from a network with heads to the network of its first `stages` stages and heads."""

    stages: checks.Count

    __post_init__ = checks.fields

    def __call__(self, module: nn.Module) -> nn.Module:
        whole = self.stages == stages(module)
        return copy.deepcopy(module if whole else Heads(module.stages[: self.stages], module.heads[: self.stages]))

    def places(self, layout: Layout) -> Tensor:
        """The indices `[d_D]` of these stages and heads in the whole network's flat vector."""
        ours = [
            torch.arange(place.start, place.stop)
            for name, place in zip(layout.names, layout.slices, strict=True)
            if not name.startswith(("stages.", "heads.")) or int(name.split(".")[1]) < self.stages
        ]
        return torch.cat(ours)


def with_heads(net: nn.Module, classes: int) -> Heads:
    """A sequential network with a new classifier after every stage but the last, which keeps its own.

    A stage ends before each layer that changes the number of channels; `thesis_cnn` and the ResNets have four stages.
    A new head is a linear layer, after global average pooling in convolutional networks; the attention bottleneck of
    DepthFL's code is left out.  Raises ValueError for networks that have one stage or are no `nn.Sequential` ending in
    a linear layer.
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
    """A function for `model=` that makes DepthFL's form of a model by `with_heads`."""
    if isinstance(model, str):
        model = MODELS[checks.choice("model", model, MODELS)]
    if not callable(model):
        raise TypeError(f"model={checks.brief(model)}; use a name, or a function (shape, classes) -> torch.nn.Module")
    return lambda shape, classes: with_heads(model(shape, classes), classes)


def cost(module: nn.Module, shape: Sequence[int]) -> dict[str, int]:
    """The numbers of `parameters` and `macs`: multiply-adds of linear and convolution layers for one sample, forward.

    `cost(Width(0.5)(module), shape)` is the cost of the sub-model of ratio 0.5.
    """
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    module = copy.deepcopy(module).eval()
    x = torch.zeros(1, *shape, dtype=next(module.parameters()).dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x)
    return {"parameters": sum(p.numel() for p in module.parameters()), "macs": counter.get_total_flops() // 2}


# --- the sub-models of a round, and their aggregation -----------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The m_g clients of a cohort whose local steps run on the same smaller network of d_g parameters.

    rows: their rows in the cohort, ascending, on the host.  to: makes the smaller network (`submodels.Width` or
    `Depth`; None: the whole network).  places: indices `[m_g, d_g]` of its entries in the flat vector (None: all).
    """

    rows: np.ndarray
    to: Callable[[Any], Any] | None = None
    places: Tensor | None = None

    def take(self, v: Tensor) -> Tensor:
        """These rows and entries of `v [m, d]`, as `[m_g, d_g]`; v itself where they are all rows and entries."""
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
        """Add sum_i weights_i y_i to the part's entries of `v [d]`; `y [m_g, d_g]`, `weights [m_g, 1]`."""
        if self.places is None:
            v += torch.mv(y.T, weights[:, 0])
            return
        places = self.places.to(v.device)
        if places.stride(0) == 0:  # the same for all
            v.index_add_(0, places[0], torch.mv(y.T, weights[:, 0]))
            return
        for at, row in zip(places, weights * y, strict=True):  # in a fixed order, which determines the last bit
            v.index_add_(0, at, row)

    def _rows(self, v: Tensor) -> Tensor:
        return torch.as_tensor(self.rows).to(v.device)

    def _flat(self, v: Tensor) -> Tensor:
        """Indices of the entries in `v.view(-1)`, which are faster on a CPU than indices of rows and columns."""
        return (self._rows(v)[:, None] * v.shape[1] + self.places.to(v.device)).flatten()

    def among(self, rows: Tensor) -> Part:
        """The part restricted to some rows (ascending) of the cohort, with rows numbered within them."""
        some = rows.cpu().numpy()
        chosen = np.flatnonzero(np.isin(self.rows, some))
        return self._some(chosen, np.searchsorted(some, self.rows[chosen]))

    @staticmethod
    def joined(parts: Sequence[Part]) -> Part:
        """Several parts with the same network as one part."""
        first, rows = parts[0], np.concatenate([part.rows for part in parts])
        places = None if first.places is None else torch.cat([part.places for part in parts])
        order = np.argsort(rows)
        return Part(rows, first.to, places)._some(order, rows[order])

    def moved(self, device: str | torch.device, rows: np.ndarray | None = None) -> Part:
        """The part with its places on a device; `rows [m]` gives the new numbers of the cohort's rows."""
        places = None if self.places is None else self.places.to(device)
        return Part(self.rows if rows is None else rows[self.rows], self.to, places)

    def split(self, size: int) -> list[Part]:
        """Parts of at most `size` rows each."""
        cuts = [slice(a, a + size) for a in range(0, len(self.rows), size)]
        return [self._some(cut, self.rows[cut]) for cut in cuts]

    def _some(self, chosen: slice | np.ndarray, rows: np.ndarray) -> Part:
        """The part restricted to its `chosen` rows, which get the numbers `rows`."""
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
    """The server's next parameters `[d]`: each entry moves to the weighted mean over the clients that trained it.

    An entry that no client trained does not change; the FedDSE study's eq. (3-4) as printed sets it to zero.  With full
    masks this is FedAvg's step, bit for bit.

    x `[d]`, Y `[m, d]`, mask `[m, d]` bool (the entries that a client trained), p `[m, 1]` weights, total:
    `Round.total`.  parts: the clients' sub-models (`Round.parts`), so that sums run over their entries alone; None:
    over all entries.
    """
    delta, share, count = sums = x.new_zeros(3, len(x))  # sum p_i (y_i - x), sum p_i, and how many clients trained
    for part in parts or [Part(np.arange(len(Y)))]:
        trained, weights = part.take(mask), p[torch.as_tensor(part.rows).to(p.device)]
        update = part.take(Y) - part.take(x.expand(Y.shape))
        part.add(delta, torch.where(trained, update, 0), weights)
        part.add(share, trained.to(p.dtype), weights)
        part.add(count, trained.to(p.dtype), torch.ones_like(weights))
    count.copy_(count < len(Y))
    delta, share, missing = total(sums)  # over the processes; missing > 0: some client did not train the entry
    mean = torch.where(missing == 0, delta, delta / share)
    return torch.where(share > 0, x + server_lr * mean, x)
