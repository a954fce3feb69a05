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

from .. import algorithms, checks, models, probes, submodels, topology
from ..data import RandAugment, domains, partitions
from ..objective.network import Federation, federation
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
    return known[name](**{key: _argument(key, value) for key, value in arguments.items()})


def _argument(key: str, value: Any) -> Any:
    """JSON has texts for keys and no topologies: capacities get numbers, `mixing` is `["Ring", {}]`."""
    if key == "mixing":
        name, arguments = value
        return getattr(topology, name)(**arguments)
    return {float(k): v for k, v in value.items()} if isinstance(value, Mapping) else value


def build_model(told: Any) -> Any:
    """A name, or `[name, arguments]`; the argument `model` of `projected` is again one of the two."""
    if isinstance(told, str):
        return told
    name, arguments = told
    if name == "projected":
        return models.projected(build_model(arguments["model"]), arguments.get("dim", 256))
    return partial(models.MODELS[name], **arguments)


def build_federation(told: Mapping[str, Any], seed: int, device: str | None) -> Federation:
    """`{"source", "clients", "partition": ["Dirichlet", {"q": 0.3}], "model": name or [name, arguments], ...}`.

    source: a name, or `[a function of data.domains, arguments]`.  augment: the arguments of RandAugment.
    """
    told = dict(told)
    kind, arguments = told.pop("partition", ["IID", {}])
    partition = getattr(partitions, kind)(**arguments)
    if "dtype" in told:
        told["dtype"] = getattr(torch, told["dtype"])
    model, source = build_model(told.pop("model", "cnn")), told.pop("source")
    if isinstance(source, list):
        source = getattr(domains, source[0])(**source[1])
    if "augment" in told:
        told["augment"] = RandAugment(**told["augment"])
    return federation(source, partition=partition, model=model, seed=seed, device=device, **told)


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


def personal(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Accuracy in % on the union test set of client `spec["client"]`'s own model, or of the server's for "global"."""
    fed = build_federation(spec["federation"], seed, device)
    method = build_method(spec["method"], fed, spec["run"])
    history = _simulate(method, fed, seed=seed, checkpoint_dir=folder, personal="local", **spec["run"])
    rounds, values = history.curve(client=None if spec["client"] == "global" else spec["client"])
    curve = [[int(t), round(100 * float(v), 4)] for t, v in zip(rounds, values, strict=True)]
    return {"final": 100 * float(values[-1]), "mean": 100 * float(values[1:].mean()), "history": curve}


def profiles(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """How alike two clients' mean activations are at layer `spec["layer"]` after training: the mean cosine of pairs."""
    fed = build_federation(spec["federation"], seed, device)
    history = _simulate(
        build_method(spec["method"], fed, spec["run"]), fed, seed=seed, checkpoint_dir=folder, **spec["run"]
    )
    h = fed.activations(history.params, np.arange(fed.n))[spec["layer"]]
    h = h / h.norm(dim=1, keepdim=True).clamp_min(1e-12)
    pairs = (h @ h.T)[*np.triu_indices(fed.n, 1)]
    value = float(pairs.mean())
    return {"final": value, "mean": value, "history": []}


def gap(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Updates of sub-models against those of the whole network (`probes.submodel_gap`), looked at in every round.

    `spec["what"]`: "accumulated" is the mean over the cohort, summed over the rounds; "median" that over rounds and
    clients below full capacity (the curve is their mean by round); "accuracy" the test accuracy of the same run in %.
    `sums` stands beside: the accumulated difference of the sums of entries.
    """
    checks.choice("what", spec["what"], ("accumulated", "median", "accuracy"))
    fed, run = build_federation(spec["federation"], seed, device), {**spec["run"], "eval_every": 1}
    method = build_method(spec["method"], fed, run)
    probe = probes.submodel_gap(method.labels, run.get("momentum", 0.0))
    history = _simulate(method, fed, seed=seed, checkpoint_dir=folder, probes=[probe], **run)

    def column(name: str) -> np.ndarray:
        return np.array([v for _, what, client, v in history.rows if what == name and client is not None])

    def by_round(values: np.ndarray, of: np.ndarray) -> np.ndarray:
        return np.array([values[of & (rounds == t)].mean() for t in np.unique(rounds[of])])

    gaps, partial_ = column("gap"), column("capacity") < 1
    rounds, everyone = np.repeat(np.arange(1, run["rounds"] + 1), len(history.cohorts[0])), np.ones_like(partial_)
    sums = float(by_round(column("sum_gap"), everyone).sum())
    if spec["what"] == "accuracy":
        t, values = history.curve()
        final, values = 100 * float(values[-1]), 100 * values
    elif spec["what"] == "median":
        t, values = np.unique(rounds[partial_]), by_round(gaps, partial_)
        final = float(np.median(gaps[partial_]))
    else:
        t, values = np.unique(rounds), by_round(gaps, everyone).cumsum()
        final = float(values[-1])
    curve = [[int(a), round(float(v), 4)] for a, v in zip(t, values, strict=True)]
    return {"final": final, "mean": float(values.mean()), "history": curve, "sums": sums}


def size(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Mean `parameters` or `macs` (in millions) of the sub-models of `spec["capacities"]`, counted."""
    shape, classes = tuple(spec["shape"]), spec["classes"]
    module = models.build(build_model(spec["model"]), shape, classes, seed)
    if spec["by"] == "depth":
        module = submodels.with_heads(module, classes)
        whole = submodels.stages(module)
        makers = [submodels.Depth(int(np.ceil(float(r) * whole))) for r in spec["capacities"]]
    else:
        makers = [submodels.Width(float(r)) for r in spec["capacities"]]
    costs = [submodels.cost(make(module), shape)[spec["what"]] for make in makers]
    value = float(np.mean(costs)) / 1e6
    return {"final": value, "mean": value, "history": []}


def cost(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """What a method's rule costs, read from its class: `state` (vectors a client keeps) or `traffic` (d a round)."""
    method = {m.__name__: m for m in algorithms.ALL}[spec["method"][0]]
    value = len(method.client_state) if spec["cost"] == "state" else method.uplink + method.downlink
    return {"final": float(value), "mean": float(value), "history": []}


STUDIES: dict[str, Study] = {
    f.__name__: f for f in (simulate, mime, personal, profiles, gap, size, cost)
}  # fmt: skip
