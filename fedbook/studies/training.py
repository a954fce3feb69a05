"""Studies that train: accuracy of a run, and accuracy of one client's model."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedcore import Diverged
from fedcore import simulate as run

from .from_spec import build_method, curve, federation_of


def simulate(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """A run of `fc.simulate`; the metric is the test accuracy in % unless `spec["metric"]` says "loss".

    `correct`: whether the last model classifies each of the `images` test images correctly, as base64 of packed bits.
    """
    fed = federation_of(spec, seed, device)
    metric = spec.get("metric", "accuracy")
    scale = 100.0 if "accuracy" in metric else 1.0
    diverged = None
    try:
        method = build_method(spec["method"], fed, spec["run"])
        history = run(method, fed, seed=seed, checkpoint_dir=folder, **spec["run"])
    except Diverged as e:
        history, diverged = e.history, e.round
    rounds, values = history.curve(metric)
    values = scale * values
    return {
        "final": None if diverged is not None else float(values[-1]),
        "mean": float(values[1:].mean()) if len(values) > 1 else float(values.mean()),
        "history": curve(rounds, values),
        # the model that the method trained: DepthFL's has heads that the federation's lacks
        **({"correct": packed(method.on(fed).correct(history.params))} if diverged is None else {"diverged": diverged}),
        "images": len(fed.test[1]),
        "classes": fed.classes,
    }


def packed(bits: Tensor) -> str:
    """Base64 of bits `[T]`, packed eight to a byte."""
    return base64.b64encode(np.packbits(bits.cpu().numpy())).decode()


def personal(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Accuracy in % on the union test set: of the model of client `spec["client"]`, or of the server's for "global"."""
    fed = federation_of(spec, seed, device)
    method = build_method(spec["method"], fed, spec["run"])
    history = run(method, fed, seed=seed, checkpoint_dir=folder, personal="local", **spec["run"])
    rounds, values = history.curve(client=None if spec["client"] == "global" else spec["client"])
    values = 100 * values
    return {"final": float(values[-1]), "mean": float(values[1:].mean()), "history": curve(rounds, values)}
