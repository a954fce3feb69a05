"""A study of gossip: overfitting of the clients' models, their consensus distance, and the accuracy of their mean."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedcore import Federation
from fedcore.round import Round

from .from_spec import federation_of, trained
from .personal import right


def overfitting(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """The local overfitting of a gossip method in points of accuracy, as the mean over clients in the last round.

    For client i's model y_i after its local steps and before mixing, overfitting is the accuracy on the client's own
    training samples minus the accuracy on test samples with the same distribution of labels (`expected`); label skew
    alone therefore does not count as overfitting.  Further numbers, in %: `own`, the mean of the clients' accuracies
    on the whole test set after mixing; `accuracy` and `train`, the accuracy of the mean model on the test samples and
    on all training samples.  `consensus` and `consensus_local` are the mean distance of the clients' models from their
    mean, after and before mixing.

    Raises ValueError for a method with a server.
    """
    fed, T = federation_of(spec, seed, device), spec["run"]["rounds"]
    last: dict[str, Any] = {}

    def look(r: Round, y: Tensor) -> dict[str, Tensor]:
        if r.t + 1 == T:
            last["y"], last["ids"] = y.clone(), r.ids.tolist()
        return {}

    history, ended = trained(spec, fed, seed, checkpoint_dir=folder, probes=[look])
    if ended:
        return {"final": None, "mean": None, **ended, "history": []}
    if "X" not in history.state:
        name = spec["method"][0]
        raise ValueError(f"{name} has a server, and its clients no models of their own; use a gossip method")
    if not last:  # resumed after the last round; checkpoints lack the models before mixing
        return overfitting(spec, seed, None, device)
    X, Y = history.state["X"], last["y"]
    gaps = [on_own(fed, y, i) - expected(fed, y, i) for y, i in zip(Y, last["ids"], strict=True)]
    sizes = fed.sizes / fed.sizes.sum()
    gap = 100 * float(np.mean(gaps))
    return {
        "final": gap,
        "mean": gap,
        "history": [],
        "own": round(100 * float(np.mean([float(right(fed, x, i).double().mean()) for i, x in enumerate(X)])), 4),
        "accuracy": round(100 * history.final("accuracy"), 4),
        "train": round(100 * float(sizes @ [on_own(fed, history.params, i) for i in range(fed.n)]), 4),
        "consensus": round(apart(X), 4),
        "consensus_local": round(apart(Y), 4),
    }


def apart(X: Tensor) -> float:
    """The mean distance of models `[n, d]` from their mean."""
    return float((X - X.mean(0)).norm(dim=1).mean())


def expected(fed: Federation, x: Tensor, i: int) -> float:
    """The accuracy of model `x [d]` on test samples, weighted by the label distribution of client i's training data."""
    hits, labels = right(fed, x, i).cpu().numpy(), fed.test[1].cpu().numpy()
    counts = fed.data.label_counts[i]
    shares = counts / counts.sum()
    return float(sum(share * hits[labels == c].mean() for c, share in enumerate(shares) if share))


def on_own(fed: Federation, x: Tensor, i: int) -> float:
    """The accuracy of model `x [d]` on client i's own training samples."""
    own = partial(fed.data.train_chunks, i)
    return float(fed.engine.scores(x.to(fed.device), own(), own)[1].mean())
