"""Federations, models and methods from the plain data of a specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from .. import Federation, RandAugment, algorithms, federation, models, simulate, topology
from ..algorithms.averaging import FedAvg
from ..data import domains, partitions


def build_method(entry: Any, fed: Federation, run: Mapping[str, Any]) -> algorithms.Method:
    """`["FedUp", {"alpha": 0.1}]` -> `fc.FedUp(alpha=0.1)`; `alpha_K` is alpha times the mean number of local steps."""
    name, arguments = entry[0], dict(entry[1])
    if "alpha_K" in arguments:
        batch = run.get("batch_size", 20)
        per_epoch = 1 if batch is None else float(np.ceil(fed.sizes / batch).mean())
        steps = run.get("local_steps") or run.get("local_epochs", 1) * per_epoch
        arguments["alpha"] = arguments.pop("alpha_K") / steps
    known = {method.__name__: method for method in algorithms.ALL}
    if name not in known:
        raise ValueError(f"method {name!r} is not known; use one of {', '.join(known)}")
    return known[name](**{key: _argument(key, value) for key, value in arguments.items()})


def _argument(key: str, value: Any) -> Any:
    """JSON has texts for keys and no topologies: capacities get numbers, `mixing` is `["Ring", {}]`."""
    if key == "mixing":
        name, arguments = value
        return getattr(topology, name)(**arguments)
    return {float(k): v for k, v in value.items()} if isinstance(value, Mapping) else value


def build_model(entry: Any) -> Any:
    """A name, or `[name, arguments]`; the argument `model` of `projected` is again one of the two."""
    if isinstance(entry, str):
        return entry
    name, arguments = entry
    if name == "projected":
        return models.projected(build_model(arguments["model"]), arguments.get("dim", 256))
    return partial(models.MODELS[name], **arguments)


def build_federation(entry: Mapping[str, Any], seed: int, device: str | None) -> Federation:
    """`{"source", "clients", "partition": ["Dirichlet", {"q": 0.3}], "model": name or [name, arguments], ...}`.

    source: a name, or `[a function of data.domains, arguments]`.  augment: the arguments of RandAugment.  start:
    `{"lr", "epochs"}`, the initial model is one that the server has trained on its public images alone.
    """
    settings = dict(entry)
    kind, arguments = settings.pop("partition", ["IID", {}])
    partition = getattr(partitions, kind)(**arguments)
    for kind_of_number in ("dtype", "compute"):
        if kind_of_number in settings:
            settings[kind_of_number] = getattr(torch, settings[kind_of_number])
    model, source = build_model(settings.pop("model", "cnn")), settings.pop("source")
    if isinstance(source, list):
        source = getattr(domains, source[0])(**source[1])
    if "augment" in settings:
        settings["augment"] = RandAugment(**settings["augment"])
    begin = settings.pop("start", None)
    fed = federation(source, partition=partition, model=model, seed=seed, device=device, **settings)
    if begin is None:
        return fed
    images = tuple(part.cpu().numpy() for part in fed.public)
    alone = federation((images, images), clients=1, model=model, seed=seed, device=device)
    alone = replace(alone, x0=fed.x0.to(alone.x0))
    work = {"lr": begin["lr"], "local_epochs": begin["epochs"], "batch_size": max(1, len(images[1]) // 4)}
    return replace(fed, x0=simulate(FedAvg(), alone, rounds=1, seed=seed, **work).params.to(fed.x0))
