"""The setting of a grid that a cell's reporting seeds use."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def scores(
    spec: Mapping[str, Any], run: Callable[[Mapping[str, Any], int, str], Mapping[str, Any]]
) -> list[float | None]:
    """The mean of the metric over rounds and tuning seeds, for each setting of the grid; None where a run diverged.

    run: `(specification with the setting put in, seed, a name for its checkpoints) -> what a study gives`.
    """
    out: list[float | None] = []
    for j, setting in enumerate(spec["tune"]["grid"]):
        seeds = spec["tune"].get("seeds", [1000])
        runs = [run(merged(spec, setting), seed, f"tune{j}-{seed}") for seed in seeds]
        out.append(None if any(r["final"] is None for r in runs) else float(np.mean([r["mean"] for r in runs])))
    return out


def best(scores: Sequence[float | None], lower_is_better: bool = False) -> int:
    """The place of the best score, the first of equal ones; a setting that diverged comes last."""
    sign = -1 if lower_is_better else 1
    return max(range(len(scores)), key=lambda j: -math.inf if scores[j] is None else sign * scores[j])


def merged(spec: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with a setting of the grid put in; mappings are merged, a method's arguments too."""
    out = copy.deepcopy(dict(spec))
    out.pop("tune", None)
    for key, value in setting.items():
        if key == "method":
            name, arguments = out["method"]
            out["method"] = [name, {**arguments, **value}]
        elif isinstance(value, Mapping):
            out[key] = {**out.get(key, {}), **value}
        else:
            out[key] = value
    return out
