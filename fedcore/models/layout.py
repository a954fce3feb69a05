"""The position of each parameter of a network, and of the buffers that training updates, in the flat vector."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .parts import STATISTICS, FixableBatchNorm

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and positions of the parameters in the flat vector, in the module's order.

    After the parameters come the buffers that training updates (`carried`), which have no gradient.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    slices: tuple[slice, ...]
    d: int
    kinds: tuple[type, ...] = ()  # the type of the module that holds each parameter
    frozen: tuple[slice, ...] = ()  # the places of parameters that are not trained (requires_grad=False), and buffers
    carried: slice | None = None  # the place of the buffers that training carries
    called: tuple[str, ...] = ()  # the layers that a forward pass uses, in its order; () where it is the module's own
    tied: tuple[tuple[str, str], ...] = ()  # layers that have a parameter of another layer, and that layer

    @staticmethod
    def of(module: nn.Module) -> Layout:
        named = entries(module)
        kinds = tuple(type(module.get_submodule(owner(k))) for k, _ in named)
        ends = list(itertools.accumulate((p.numel() for _, p in named), initial=0))
        slices = tuple(slice(a, b) for a, b in itertools.pairwise(ends))
        names, shapes = tuple(k for k, _ in named), tuple(p.shape for _, p in named)
        frozen = tuple(place for place, (_, p) in zip(slices, named, strict=True) if not p.requires_grad)
        written = slice(ends[len(named) - len(carried(module))], ends[-1]) if carried(module) else None
        first = {id(p): owner(k) for k, p in named}
        pairs = ((owner(k), first[id(p)]) for at, m in module.named_modules() for k, p in m.named_parameters(at, False))
        tied = tuple(pair for pair in pairs if pair[0] != pair[1])
        return Layout(names, shapes, slices, ends[-1], kinds, frozen, written, called(module), tied)

    @property
    def moving(self) -> Tensor:
        """Which of the d numbers a run changes, `[d]` bool: trained parameters, and buffers that training updates."""
        moving = ~self.mask(self.frozen)
        if self.carried:
            moving[self.carried] = True
        return moving

    def batch_norm(self) -> list[slice]:
        """The positions of all batch-norm parameters, found by the type of their module."""
        places = zip(self.kinds, self.slices, strict=True)
        return [place for kind, place in places if issubclass(kind, nn.modules.batchnorm._BatchNorm)]

    def statistics(self) -> list[slice]:
        """The positions of the statistics of all `FixableBatchNorm`, which only a method's `aggregate` changes."""
        named = zip(self.names, self.kinds, self.slices, strict=True)
        fixable = [(name, at) for name, kind, at in named if issubclass(kind, FixableBatchNorm)]
        return [at for name, at in fixable if name.rpartition(".")[2] in STATISTICS]

    def layers(self) -> list[list[str]]:
        """The weight layers from input to output, each by the names of its modules: a layer is a weight, its bias, and
        the norm behind.

        They are in the order of the forward pass, without modules that it does not use, or in that of the module where
        no federation has recorded a pass.  Buffers that training updates are no part of a layer.
        """
        kinds = {owner(name): kind for name, kind, _ in self._parameters()}
        layers: list[list[str]] = []
        for at in self.called or kinds:
            if layers and issubclass(kinds.get(at, nn.Module), NORMS):
                layers[-1].append(at)
            else:
                layers.append([at])
        return layers

    def last(self, count: int) -> slice | Tensor:
        """The entries of the last `count` weight layers: a slice at the end of the flat vector, or their indices.

        Raises ValueError where one of them and a layer before them have the same tensor.
        """
        layers = self.layers()
        chosen = {at for layer in layers[len(layers) - count :] for at in layer}
        for pair in self.tied:
            if len(chosen & {*pair}) == 1:
                raise ValueError(
                    f"the last {count} of {len(layers)} layers are to be apart from the others, but {pair[0]!r} and "
                    f"{pair[1]!r} have a tensor in common; give each layer its own, or choose another number of layers"
                )
        places = [place for name, _, place in self._parameters() if owner(name) in chosen]
        start = self.d - sum(place.stop - place.start for place in places)
        if not places or places[0].start == start:
            return slice(start, None)
        return torch.cat([torch.arange(place.start, place.stop) for place in places])

    def _parameters(self) -> list[tuple[str, type, slice]]:
        """Name, kind of module and position of each parameter, without the buffers that training updates."""
        entries = zip(self.names, self.kinds, self.slices, strict=True)
        return [entry for entry in entries if not (self.carried and entry[2].start >= self.carried.start)]

    def named(self, layers: Iterable[str]) -> list[slice]:
        """The positions of parameters by their names or beginnings of names: "13" is the module 13 of a Sequential,
        "13.weight" its weight.  Raises ValueError for a name that is not in the model."""
        places = []
        for layer in layers:
            named = zip(self.names, self.slices, strict=True)
            hits = [place for name, place in named if f"{name}.".startswith(f"{layer}.")]
            if not hits:
                raise ValueError(f"layer {layer!r} is not in the model; use names among {', '.join(self.names)}")
            places += hits
        return places

    def mask(self, places: Iterable[slice]) -> Tensor:
        """A mask of the flat vector, `[d]` bool, true at these positions."""
        mask = torch.zeros(self.d, dtype=torch.bool)
        for place in places:
            mask[place] = True
        return mask

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Parameters as views of `flat` `[..., d]`: name -> `[..., *shape]`."""
        lead = flat.shape[:-1]
        named = zip(self.names, self.slices, self.shapes, strict=True)
        return {name: flat[..., place].view((*lead, *shape)) for name, place, shape in named}


def flatten(module: nn.Module) -> Tensor:
    """A copy of the module's parameters, followed by the buffers that training updates, as one flat vector `[d]`."""
    kind = next((p.dtype for p in module.parameters()), torch.float32)
    parts = [p.detach().reshape(-1).to(kind if k in carried(module) else p.dtype) for k, p in entries(module)]
    return torch.cat(parts) if parts else torch.zeros(0)


def copied(module: nn.Module) -> nn.Module:
    """A deep copy.  Of tensors that a layer has computed, such as the weight of a pruned layer, only the values are
    copied, because a tensor with its graph cannot be."""
    held = (value for layer in module.modules() for value in vars(layer).values())
    return copy.deepcopy(module, {id(v): v.detach().clone() for v in held if isinstance(v, Tensor) and v.grad_fn})


def holding(module: nn.Module, flat: Tensor) -> nn.Module:
    """A copy of the module with the parameters, and the buffers that training updates, from a flat vector `[d]`."""
    module = copied(module)
    values = called_with(module, Layout.of(module).views(flat))
    with torch.no_grad():
        for name, tensor in entries(module):
            tensor.copy_(values[name])
    return module


def carried(module: nn.Module) -> tuple[str, ...]:
    """The names of the buffers that training writes and later passes read, as found by `engine.trial`.

    A client's local steps update them, and the server takes their weighted mean, rounded where they are whole numbers.
    """
    return getattr(module, "fedcore_carried", ())


def called(module: nn.Module) -> tuple[str, ...]:
    """The names of the layers with parameters that a forward pass uses, in its order, where a federation has found that
    they are not all layers in the order of the module; else none."""
    return getattr(module, "fedcore_called", ())


def owner(name: str) -> str:
    """The name of the layer of a parameter or buffer, of which parametrisations are a part."""
    layer, parametrised, _ = f".{name}".partition(".parametrizations.")
    return (layer if parametrised else layer.rpartition(".")[0])[1:]


def entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The contents of the flat vector by name: the parameters, then the buffers that training updates."""
    buffers = dict(module.named_buffers())
    return [*module.named_parameters(), *((name, buffers[name]) for name in carried(module))]


def called_with(module: nn.Module, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views of a flat vector in the types of the module, with values of integer buffers rounded."""
    kinds = {name: b.dtype for name, b in module.named_buffers() if name in carried(module)}
    whole = {k: views[k].round().to(kind) for k, kind in kinds.items() if not kind.is_floating_point}
    return {**views, **whole}
