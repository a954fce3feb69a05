"""Studies that measure models and rounds: cosines of corrections, updates of sub-models, and clients' neurons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedcore import Diverged, probes, simulate
from fedcore.support import checks

from .from_spec import build_method, curve, federation_of


def mime(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """One cosine of `probes.mime_ablation` (`spec["pair"]`) after `run["rounds"]`, as the mean over steps and clients.

    A client whose gradient is zero at a step has no cosine there and is left out of the mean of that step.  Raises
    ValueError if all gradients are zero.
    """
    fed = federation_of(spec, seed, device)
    method = build_method(spec["method"], fed, spec["run"])
    try:
        history = simulate(method, fed, seed=seed, checkpoint_dir=folder, **spec["run"])
        state = {k: v for k, v in history.state.items() if k not in method.client_state}
        options = {key: spec["run"][key] for key in ("lr", "batch_size") if key in spec["run"]}
        t = spec["run"]["rounds"]
        cosines = probes.mime_ablation(
            method, fed, history.params, steps=spec["steps"], seed=seed, t=t, state=state, **options
        )[spec["pair"]]
    except FloatingPointError as e:
        at = e.round if isinstance(e, Diverged) else spec["run"]["rounds"]
        return {"final": None, "mean": None, "diverged": at, "history": []}
    defined = np.flatnonzero(~np.isnan(cosines).all(axis=1))
    if not len(defined):
        raise ValueError(f"every gradient is zero after {t} rounds: {spec['pair']!r} has no cosine; run fewer rounds")
    by_step = np.nanmean(cosines[defined], axis=1)
    mean = float(by_step.mean())
    return {
        "final": mean,
        "mean": mean,
        "history": curve(defined + 1, by_step),
    }


def gap(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """The gap between updates of sub-models and of the whole network (`probes.submodel_gap`), measured in every round.

    `spec["what"]`: "accumulated" is the mean over the cohort, summed over the rounds; "median" the median over rounds
    and clients below full capacity (the curve is their mean by round); "accuracy" the test accuracy of the same run in
    %.  `sums` is the accumulated difference of the sums of entries.
    """
    checks.choice("what", spec["what"], ("accumulated", "median", "accuracy"))
    fed, run = federation_of(spec, seed, device), {**spec["run"], "eval_every": 1}
    method = build_method(spec["method"], fed, run)
    probe = probes.submodel_gap(method.labels, run.get("momentum", 0.0))
    history = simulate(method, fed, seed=seed, checkpoint_dir=folder, probes=[probe], **run)

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
    return {"final": final, "mean": float(values.mean()), "history": curve(t, values), "sums": sums}


def profiles(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """What the clients' data do to one layer of a trained network of fully connected layers (FedDSE study, Figures 3.2
    and 3.3); layer `spec["layer"]`, from 0.

    `final`: the mean cosine between two clients' mean activations, over all pairs.  `activations`: the means `[n,
    width]` after the nonlinearity; of the last layer, the probabilities.  For the pairs (0, 1), (0, 2), ... of clients,
    `apart` is the total variation distance `[pairs]` between their labels, from 0 (alike) to 1 (no label in common),
    and `conflicts [pairs, width]` is 1 for a neuron at which they conflict: the inner product of their gradients by its
    incoming weights and bias is negative.
    """
    fed, layer = federation_of(spec, seed, device), spec["layer"]
    x = simulate(build_method(spec["method"], fed, spec["run"]), fed, seed=seed, checkpoint_dir=folder, **spec["run"])
    x, everyone = x.params, np.arange(fed.n)
    gradient = fed.full_gradient(x.expand(fed.n, -1), fed.plan(0, 0, everyone, batch_size=None))
    weight, bias = list(fed.engine.layout.views(gradient).values())[2 * layer :][:2]
    shares = torch.as_tensor(fed.data.label_counts / fed.data.label_counts.sum(1, keepdims=True)).to(bias)
    hidden = fed.activations(x, everyone)  # the gradient by a logit's bias: its mean probability minus its share
    h = hidden[layer] if layer < len(hidden) else bias + shares
    i, k = np.triu_indices(fed.n, 1)
    value = float(torch.cosine_similarity(h[i], h[k], dim=1).mean())
    against = (weight[i] * weight[k]).sum(2) + bias[i] * bias[k] < 0
    return {
        "final": value,
        "mean": value,
        "history": [],
        "activations": [[round(v, 3) for v in row] for row in h.tolist()],
        "apart": [round(v, 3) for v in ((shares[i] - shares[k]).abs().sum(1) / 2).tolist()],
        "conflicts": against.int().tolist(),
    }
