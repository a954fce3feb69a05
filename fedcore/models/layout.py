"""Where each parameter of a network lives in the flat vector, and what else a network holds."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of the parameters in the flat vector, in the module's own order.

    Behind them stand the buffers that training carries (`carried`), which no gradient moves.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    slices: tuple[slice, ...]
    d: int
    kinds: tuple[type, ...] = ()  # the type of the module that holds each parameter
    frozen: tuple[slice, ...] = ()  # the places of parameters that are not trained (requires_grad=False), and buffers
    carried: slice | None = None  # the place of the buffers that training carries
    called: tuple[str, ...] = ()  # the layers in the order of the forward pass, where that is not the module's own

    @staticmethod
    def of(module: nn.Module) -> Layout:
        named = entries(module)
        kinds = {id(p): type(m) for m in module.modules() for p in (*m.parameters(False), *m.buffers(False))}
        ends = list(itertools.accumulate((p.numel() for _, p in named), initial=0))
        slices = tuple(slice(a, b) for a, b in itertools.pairwise(ends))
        names, shapes = tuple(k for k, _ in named), tuple(p.shape for _, p in named)
        frozen = tuple(place for place, (_, p) in zip(slices, named, strict=True) if not p.requires_grad)
        written = slice(ends[len(named) - len(carried(module))], ends[-1]) if carried(module) else None
        return Layout(
            names, shapes, slices, ends[-1], tuple(kinds[id(p)] for _, p in named), frozen, written, called(module)
        )

    @property
    def moving(self) -> Tensor:
        """Which of the d numbers a run changes, `[d]` bool: what is trained, and the buffers that training carries."""
        moving = ~self.mask(self.frozen)
        if self.carried:
            moving[self.carried] = True
        return moving

    def batch_norm(self) -> list[slice]:
        """The places of all batch-norm parameters, found by the type of their module and not by their name."""
        places = zip(self.kinds, self.slices, strict=True)
        return [place for kind, place in places if issubclass(kind, nn.modules.batchnorm._BatchNorm)]

    def layers(self) -> list[slice]:
        """The places of the weight layers from input to output: weight, bias, and the norm behind them, as one.

        In the order of the forward pass, as a federation has seen it; else in that of the module.
        """
        owners = [name.rpartition(".")[0] for name in self.names]
        first = [
            k
            for k, kind in enumerate(self.kinds)
            if k == 0 or (owners[k] != owners[k - 1] and not issubclass(kind, NORMS))
        ]
        ends = [*(self.slices[k].start for k in first[1:]), self.d]
        places = [slice(self.slices[k].start, end) for k, end in zip(first, ends, strict=True)]
        if any(owners[k] not in self.called for k in first):
            return places
        order = sorted(range(len(first)), key=lambda i: self.called.index(owners[first[i]]))
        return [places[i] for i in order]

    def last(self, count: int) -> slice | Tensor:
        """Where the last `count` weight layers stand: the end of the flat vector, or their entries one by one."""
        places = sorted(self.layers()[-count:] if count else [], key=lambda place: place.start)
        start = self.d - sum(place.stop - place.start for place in places)
        if not places or places[0].start == start:
            return slice(start, None)
        return torch.cat([torch.arange(place.start, place.stop) for place in places])

    def named(self, layers: Iterable[str]) -> list[slice]:
        """The places of parameters by their names or the beginnings of these: "13" is the module 13 of a Sequential,
        "13.weight" its weight.  Raises ValueError for one that is not in the model."""
        places = []
        for layer in layers:
            named = zip(self.names, self.slices, strict=True)
            hits = [place for name, place in named if f"{name}.".startswith(f"{layer}.")]
            if not hits:
                raise ValueError(f"layer {layer!r} is not in the model; use names among {', '.join(self.names)}")
            places += hits
        return places

    def mask(self, places: Iterable[slice]) -> Tensor:
        """True at these places of the flat vector, `[d]`."""
        mask = torch.zeros(self.d, dtype=torch.bool)
        for place in places:
            mask[place] = True
        return mask

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Parameters as views of `flat` `[..., d]`: name -> `[..., *shape]`."""
        lead = flat.shape[:-1]
        return {
            k: flat[..., s].view((*lead, *shape))
            for k, s, shape in zip(self.names, self.slices, self.shapes, strict=True)
        }


def flatten(module: nn.Module) -> Tensor:
    """The module's parameters as one flat vector `[d]` (a copy), and behind them the buffers that training carries."""
    kind = next((p.dtype for p in module.parameters()), torch.float32)
    parts = [p.detach().reshape(-1).to(kind if k in carried(module) else p.dtype) for k, p in entries(module)]
    return torch.cat(parts) if parts else torch.zeros(0)


def copied(module: nn.Module) -> nn.Module:
    """A deep copy.  Of tensors that a layer has computed last, as pruned layers keep their weight, the values alone:
    with their graph they cannot be copied."""
    held = (value for layer in module.modules() for value in vars(layer).values())
    return copy.deepcopy(module, {id(v): v.detach().clone() for v in held if isinstance(v, Tensor) and v.grad_fn})


def holding(module: nn.Module, flat: Tensor) -> nn.Module:
    """A copy of the module with the parameters, and the buffers that training carries, of a flat vector `[d]`."""
    module = copied(module)
    values = called_with(module, Layout.of(module).views(flat))
    with torch.no_grad():
        for name, tensor in entries(module):
            tensor.copy_(values[name])
    return module


def carried(module: nn.Module) -> tuple[str, ...]:
    """The names of the buffers that training writes and later passes read, as `engine.trial` has seen: a client's steps
    carry them on, and the server takes their weighted mean, rounded where they are whole numbers."""
    return getattr(module, "fedcore_carried", ())


def called(module: nn.Module) -> tuple[str, ...]:
    """The names of the layers with parameters in the order of the forward pass, where a federation has seen that it is
    not the one in which they stand in the module; else none."""
    return getattr(module, "fedcore_called", ())


def entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    """What the flat vector holds: the parameters, then the buffers that training carries."""
    buffers = dict(module.named_buffers())
    return [*module.named_parameters(), *((name, buffers[name]) for name in carried(module))]


def called_with(module: nn.Module, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views of a flat vector as the module takes them: whole numbers where a buffer has these."""
    kinds = {name: b.dtype for name, b in module.named_buffers() if name in carried(module)}
    whole = {k: views[k].round().to(kind) for k, kind in kinds.items() if not kind.is_floating_point}
    return {**views, **whole}
