"""Studies that count instead of training: the sizes of sub-models, and the cost of a method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcore import models, submodels

from .from_spec import build_model, method_class


def size(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Mean number of `parameters` or `macs`, in millions, of the sub-models of `spec["capacities"]`."""
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
    """The cost that a method states: `state` (vectors that a client keeps) or `traffic` (communication per client and
    round in units of d).  Raises ValueError if the method does not state its cost."""
    method = method_class(spec["method"][0])()
    cost = method.cost()
    if not cost.stated:
        raise ValueError(str(cost))
    value = len(method.client_state) if spec["cost"] == "state" else cost.up + cost.down
    return {"final": float(value), "mean": float(value), "history": []}
