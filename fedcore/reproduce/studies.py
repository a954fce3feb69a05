"""Studies: what a cell can compute.  `(specification, seed, checkpoint folder, device) -> {final, mean, history, ...}`.

`final` is the number of the table (None when the run diverged), `mean` the mean over the recorded rounds, `history`
the recorded curve `[[round, value], ...]`; further numbers may stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import algorithms, models, probes
from ..data import partitions
from ..data.federation import Federation, federation
from ..simulate import Diverged
from ..simulate import simulate as _simulate

Study = Callable[[Mapping[str, Any], int, Path | None, str | None], dict[str, Any]]


def find(spec: Mapping[str, Any]) -> Study:
    """The study that a specification names; raises ValueError naming those there are."""
    name = spec.get("study") if isinstance(spec, Mapping) else None
    if name not in STUDIES:
        raise ValueError(f"study={name!r} is not known; use one of {', '.join(map(repr, STUDIES))}")
    return STUDIES[name]


def build_method(told: Any, fed: Federation, run: Mapping[str, Any]) -> algorithms.Method:
    """`["FedUp", {"alpha": 0.1}]` -> `fc.FedUp(alpha=0.1)`; `alpha_K` is alpha times the mean number of local steps."""
    name, arguments = told
    arguments = dict(arguments)
    if "alpha_K" in arguments:
        batch = run.get("batch_size", 20)
        per_epoch = 1 if batch is None else float(np.ceil(fed.sizes / batch).mean())
        steps = run.get("local_steps") or run.get("local_epochs", 1) * per_epoch
        arguments["alpha"] = arguments.pop("alpha_K") / steps
    known = {method.__name__: method for method in algorithms.ALL}
    if name not in known:
        raise ValueError(f"method {name!r} is not known; use one of {', '.join(known)}")
    return known[name](**{key: _keys(value) for key, value in arguments.items()})


def _keys(value: Any) -> Any:
    """JSON's keys are texts; capacities have numbers."""
    if isinstance(value, Mapping):
        return {float(k): v for k, v in value.items()}
    return value


def build_model(told: Any) -> Any:
    """A name, or `[name, arguments]`; the argument `model` of `projected` is again one of the two."""
    if isinstance(told, str):
        return told
    name, arguments = told
    if name == "projected":
        return models.projected(build_model(arguments["model"]), arguments.get("dim", 256))
    return partial(models.MODELS[name], **arguments)


def build_federation(told: Mapping[str, Any], seed: int, device: str | None) -> Federation:
    """`{"source", "clients", "partition": ["Dirichlet", {"q": 0.3}], "model": name or [name, arguments], ...}`."""
    told = dict(told)
    kind, arguments = told.pop("partition", ["IID", {}])
    partition = getattr(partitions, kind)(**arguments)
    if "dtype" in told:
        told["dtype"] = getattr(torch, told["dtype"])
    model = build_model(told.pop("model", "cnn"))
    return federation(told.pop("source"), partition=partition, model=model, seed=seed, device=device, **told)


def simulate(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """A run of `fc.simulate`; the metric is the test accuracy in % unless `spec["metric"]` says "loss"."""
    fed = build_federation(spec["federation"], seed, device)
    metric = spec.get("metric", "accuracy")
    scale = 100.0 if "accuracy" in metric else 1.0
    diverged = None
    try:
        method = build_method(spec["method"], fed, spec["run"])
        history = _simulate(method, fed, seed=seed, checkpoint_dir=folder, **spec["run"])
    except Diverged as e:
        history, diverged = e.history, e.round
    rounds, values = history.curve(metric)
    values = scale * values
    return {
        "final": None if diverged is not None else float(values[-1]),
        "mean": float(values[1:].mean()) if len(values) > 1 else float(values.mean()),
        "history": [[int(t), round(float(v), 4)] for t, v in zip(rounds, values, strict=True) if np.isfinite(v)],
        **({} if diverged is None else {"diverged": diverged}),
    }


def mime(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """One cosine of `probes.mime_ablation` (`spec["pair"]`), the mean over steps and clients, after `run["rounds"]`."""
    fed = build_federation(spec["federation"], seed, device)
    method = build_method(spec["method"], fed, spec["run"])
    history = _simulate(method, fed, seed=seed, checkpoint_dir=folder, **spec["run"])
    state = {k: v for k, v in history.state.items() if k not in method.client_state}
    told = {key: spec["run"][key] for key in ("lr", "batch_size") if key in spec["run"]}
    t = spec["run"]["rounds"]
    cosines = probes.mime_ablation(
        method, fed, history.params, steps=spec["steps"], seed=seed, t=t, state=state, **told
    )
    by_step = np.nanmean(cosines[spec["pair"]], axis=1)
    mean = float(by_step.mean())
    return {"final": mean, "mean": mean, "history": [[k + 1, round(float(v), 4)] for k, v in enumerate(by_step)]}


def cost(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """What a method's rule costs, read from its class: `state` (vectors a client keeps) or `traffic` (d a round)."""
    method = {m.__name__: m for m in algorithms.ALL}[spec["method"][0]]
    value = len(method.client_state) if spec["cost"] == "state" else method.uplink + method.downlink
    return {"final": float(value), "mean": float(value), "history": []}


STUDIES: dict[str, Study] = {"simulate": simulate, "mime": mime, "cost": cost}
