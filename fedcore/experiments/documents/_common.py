"""What definitions share: grids of equal size for every method, and small federations that need no download."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TUNING_SEEDS = [1000]
MLP = ["mlp", {"hidden": [64]}]


def grid(arguments: Sequence[Mapping[str, Any]], lrs: Sequence[float], size: int = 6) -> dict[str, Any]:
    """`size` settings: every argument of the method with as many learning rates as fit, the best known ones first."""
    each = size // len(arguments)
    return {
        "grid": [{"method": dict(a), "run": {"lr": lr}} for a in arguments for lr in lrs[:each]],
        "seeds": TUNING_SEEDS,
    }


def simulation(method: str, federation: Mapping[str, Any], run: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A specification of the study `simulate`."""
    return {"study": "simulate", "method": [method, {}], "federation": dict(federation), "run": dict(run), **more}
