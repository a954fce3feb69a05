"""Studies of the clients' models: tested on the images of all clients, or on the images of the client's domain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcore import Federation
from fedcore.round import Round

from .from_spec import build_method, federation_of, trained
from .training import packed


def clients(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Mean over the clients of their models' accuracy in %, each on the whole test set, before the server averages.

    Client i's model is tested with the client's own statistics of pixels and batch norm.  Each client has one domain,
    and all clients take part in every round.  `correct`: bits `[models, images]` as base64, whether each client's last
    model classifies an image correctly; `clients`: the accuracy of each client by its name in `spec["clients"]`;
    `server`: the accuracy of the server's model.  A run takes minutes at most, so it stores no checkpoints in `folder`.
    """
    fed = federation_of(spec, seed, device)
    curve: list[list[float]] = []
    last: dict[int, np.ndarray] = {}

    def look(r: Round, y: Tensor) -> dict[str, Tensor]:
        for x, i in zip(y, r.ids.tolist(), strict=True):
            last[i] = right(fed, x, i).cpu().numpy()
        curve.append([r.t + 1, round(100 * float(np.mean(list(last.values()))), 4)])
        return {}

    history, ended = trained(spec, fed, seed, probes=[look])
    found: dict[str, Any] = {
        "history": curve, "models": fed.n, "images": len(fed.test[1]), "classes": fed.classes,
    }  # fmt: skip
    if ended:
        return {**found, "final": None, "mean": None, **ended}
    hits = np.stack([last[i] for i in range(fed.n)])
    return {
        **found,
        "final": 100 * float(hits.mean()),
        "mean": float(np.mean([value for _, value in curve])),
        "clients": dict(zip(spec["clients"], (100 * hits.mean(1)).round(4).tolist(), strict=True)),
        "server": round(100 * float(history.curve()[1][-1]), 4),
        "correct": packed(torch.as_tensor(hits)),
    }


def domains(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Accuracy in % of the model that each client uses after the run, on the test images of its own domain.

    The model is the client's personal one (`Method.personal`), or the server's if the method has none.  Each test image
    is classified by the model of the client with its domain, `test_owner`.  `correct`: one bit per image, as base64;
    `clients`: the accuracy of each client by its name in `spec["clients"]`; `server`: the accuracy of the server's
    model on all images.
    """
    fed = federation_of(spec, seed, device)
    method = build_method(spec["method"], fed, spec["run"])
    found: dict[str, Any] = {"history": [], "images": len(fed.test[1]), "classes": fed.classes}
    history, ended = trained(spec, fed, seed, method)
    if ended:
        return {**found, "final": None, "mean": None, **ended}
    X = method.personal(history.state, fed.layout)
    owner = np.asarray(fed.data.source.test_owner)
    hits = np.zeros(len(owner), dtype=bool)
    for i in range(fed.n):
        of_client = owner == i
        hits[of_client] = right(fed, history.params if X is None else X[i], i).cpu().numpy()[of_client]
    return {
        **found,
        "final": 100 * float(hits.mean()),
        "mean": 100 * float(hits.mean()),
        "clients": {name: round(100 * float(hits[owner == i].mean()), 4) for i, name in enumerate(spec["clients"])},
        "server": round(100 * float(history.curve()[1][-1]), 4),
        "correct": packed(torch.as_tensor(hits)),
    }


def right(fed: Federation, x: Tensor, i: int) -> Tensor:
    """Whether model `x [d]` of client i, with its own statistics, classifies each test image correctly: `[T]` bool."""
    tests, own = fed.data.test_chunks("own", i), partial(fed.data.train_chunks, i)
    return fed.engine.scores(x.to(fed.device), tests, own)[1].bool()
