"""Federations, models and methods from the plain data of a specification.

Names are those of the package, or "file.py:Name" (`user_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedcore import (
    CropFlip,
    Diverged,
    Federation,
    Gaussians,
    History,
    RandAugment,
    algorithms,
    data,
    federation,
    models,
    simulate,
    topology,
)
from fedcore.algorithms.averaging import FedAvg
from fedcore.data import domains, partitions
from fedcore.engine import replay
from fedcore.support import checks

from . import user_files
from .published import DealtBySeed


def method_class(name: str) -> type[algorithms.Method]:
    """The class of a method.  Raises ValueError for an unknown name, and for a name in a file that is not a method."""
    if user_files.is_reference(name):
        found = user_files.find(name)
        if not (isinstance(found, type) and issubclass(found, algorithms.Method)):
            raise ValueError(f"{name} is a {type(found).__name__} and no method; use a subclass of fedcore.Method")
        return found
    return _known("method", name, {method.__name__: method for method in algorithms.ALL})


def _known(kind: str, name: str, known: Mapping[str, Any], files: bool = True) -> Any:
    """What has this name.  Raises ValueError for an unknown name.  files: whether "file.py:Name" is possible too."""
    if name not in known:
        remedy = f'use one of {", ".join(known)}, or "file.py:Name"' if files else checks.nearest(name, known)
        raise ValueError(f"{kind} {name!r} is not known; {remedy}")
    return known[name]


def _made(name: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """`make(**arguments)`.  Raises ValueError for arguments that `make` does not take."""
    try:
        return make(**arguments)
    except TypeError as e:
        raise ValueError(f"{name}: {e}") from e


def build_method(entry: Any, fed: Federation, run: Mapping[str, Any]) -> algorithms.Method:
    """`["FedUp", {"alpha": 0.1}]` -> `fc.FedUp(alpha=0.1)`; `alpha_K` is alpha times the mean number of local steps."""
    name, arguments = entry[0], dict(entry[1])
    if "alpha_K" in arguments:
        batch = run.get("batch_size", 20)
        per_epoch = 1 if batch is None else float(np.ceil(fed.sizes / batch).mean())
        steps = np.mean(run.get("local_steps") or np.multiply(run.get("local_epochs", 1), per_epoch))
        arguments["alpha"] = arguments.pop("alpha_K") / float(steps)
    return _made(name, method_class(name), {key: _argument(key, value, fed.seed) for key, value in arguments.items()})


def _argument(key: str, value: Any, seed: int) -> Any:
    """An argument from JSON, which has only texts as keys and no topologies: keys of a mapping become numbers, and
    `mixing`, such as `["Ring", {}]`, becomes a topology.  `public`, if not a number, becomes `["Gaussians", {}]` or
    what a function of `data.domains` gives with this seed, such as `["printed_digits", {}]`."""
    if key == "public" and not isinstance(value, int):
        name, arguments = value
        if name == "Gaussians":
            return _made(name, Gaussians, arguments)
        return build_source([name, {"seed": seed, **arguments}])
    if key == "mixing":
        name, arguments = value
        known = {kind.__name__: kind for kind in topology.Topology.__subclasses__()}
        return _made(name, _known("topology", name, known, files=False), arguments)
    return {float(k): v for k, v in value.items()} if isinstance(value, Mapping) else value


def build_model(entry: Any) -> Any:
    """The model of an entry, a name or `[name, arguments]`; the argument `model` of `projected` is such an entry too.

    A name in a file is a function `(shape, classes, ...) -> nn.Module`.  Raises ValueError for an unknown name.
    """
    name, arguments = (entry, {}) if isinstance(entry, str) else entry
    if user_files.is_reference(name):
        return partial(user_files.find(name), **arguments)
    if isinstance(entry, str):
        return entry
    if name == "projected":
        return models.projected(build_model(arguments["model"]), arguments.get("dim", 256))
    return partial(_known("model", name, models.MODELS), **arguments)


def build_partition(entry: Any) -> Any:
    """`["Dirichlet", {"q": 0.3}]` -> `fc.Dirichlet(q=0.3)`; a partition without arguments may be its name alone, and
    lists of indices, one per client, are a partition too.

    A name in a file makes an object with a method `split(labels, clients, rng, owner)`.  Raises ValueError for an
    unknown name.
    """
    if not isinstance(entry, str) and not isinstance(entry[0], str):
        return partitions.Listed(tuple(map(np.asarray, entry)))
    name, arguments = (entry, {}) if isinstance(entry, str) else entry
    if user_files.is_reference(name):
        return _made(name, user_files.find(name), arguments)
    places = {**vars(data), "DealtBySeed": DealtBySeed}
    known = {key: kind for key, kind in places.items() if isinstance(kind, type) and hasattr(kind, "split")}
    make = _known("partition", name, dict(sorted(known.items())))
    inner = {key: build_partition(arguments[key]) for key in ("partition", "sizes") if _is_named(arguments.get(key))}
    return _made(name, make, {**arguments, **inner})


def _is_named(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], str)


def build_source(entry: Any) -> Any:
    """The source of an entry: a name, or `[name, arguments]` with a function of `data.domains`; a name in a file is a
    function, which is called, or the data themselves.

    Raises ValueError for an unknown function of `data.domains`.
    """
    name, arguments = (entry, {}) if isinstance(entry, str) else entry
    if user_files.is_reference(name):
        found = user_files.find(name)
        return found(**arguments) if callable(found) else found
    if isinstance(entry, str):
        return entry
    if not hasattr(domains, name):
        raise ValueError(f'source {name!r} is not known; use a function of fedcore.data.domains, or "file.py:Name"')
    return _made(name, getattr(domains, name), arguments)


def build_augment(entry: Any) -> Any:
    """`["CropFlip", {"padding": 4}]` -> `fc.CropFlip(padding=4)`; a mapping has the arguments of `fc.RandAugment`.

    Raises ValueError for an unknown name, and for arguments that the augmentation does not take.
    """
    name, arguments = ("RandAugment", entry) if isinstance(entry, Mapping) else entry
    known = {kind.__name__: kind for kind in (CropFlip, RandAugment)}
    return _made(name, _known("augment", name, known, files=False), arguments)


def federation_of(spec: Mapping[str, Any], seed: int, device: str | None) -> Federation:
    """The federation of a specification; in tuning its test set is the validation data."""
    fed = build_federation(spec["federation"], seed, device)
    return fed.on_validation() if spec.get("on") == "validation" else fed


def trained(
    spec: Mapping[str, Any], fed: Federation, seed: int, method: algorithms.Method | None = None, **more: Any
) -> tuple[History, dict[str, int]]:
    """The history of the run of a specification, and {}; of a run that diverged the part before, and its `diverged`.

    method: None for that of the specification.  more: further arguments of `simulate`, in place of the run's.
    """
    method = build_method(spec["method"], fed, spec["run"]) if method is None else method
    try:
        return simulate(method, fed, seed=seed, **{**spec["run"], **more}), {}
    except Diverged as e:
        return e.history, {"diverged": e.round}


def curve(rounds: Iterable[Any], values: Iterable[Any]) -> list[list[float]]:
    """The curve `[[round, value], ...]` of a result, without values that are not finite."""
    pairs = zip(rounds, values, strict=True)
    return [[int(t), round(float(value), 4)] for t, value in pairs if np.isfinite(value)]


def build_federation(entry: Mapping[str, Any], seed: int, device: str | None) -> Federation:
    """`{"source", "clients", "partition": ["Dirichlet", {"q": 0.3}], "model": name or [name, arguments], ...}`.

    partition: also lists of indices, one per client.  augment: `["CropFlip", {"padding": 4}]`, or the arguments of
    RandAugment.  start:
    `{"lr", "epochs"}` replaces the initial model by one that the server has trained on its public images.
    """
    settings = dict(entry)
    partition = build_partition(settings.pop("partition", ["IID", {}]))
    for kind_of_number in ("dtype", "compute"):
        if kind_of_number in settings:
            settings[kind_of_number] = getattr(torch, settings[kind_of_number])
    model, source = build_model(settings.pop("model", "cnn")), build_source(settings.pop("source"))
    if "augment" in settings:
        settings["augment"] = build_augment(settings["augment"])
    begin = settings.pop("start", None)
    fed = federation(source, partition=partition, model=model, seed=seed, device=device, **settings)
    if fed.device.type == "cuda":  # small networks wait for the launch of their kernels
        fed = replay.graphed(fed)
    if begin is None:
        return fed
    images = tuple(part.cpu().numpy() for part in fed.public)
    alone = federation((images, images), clients=1, model=model, seed=seed, device=device)
    alone = replace(alone, x0=fed.x0.to(alone.x0))
    work = {"lr": begin["lr"], "local_epochs": begin["epochs"], "batch_size": max(1, len(images[1]) // 4)}
    return replace(fed, x0=simulate(FedAvg(), alone, rounds=1, seed=seed, **work).params.to(fed.x0))
