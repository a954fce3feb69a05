"""A study of speed: the number of rounds that a method needs to reach a given accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .from_spec import curve, federation_of, trained


def rounds(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """The first round after which the accuracy is at least `spec["target"]` %, evaluated after every round.

    The run ends at that round.  A run that never reaches the target counts with all its rounds, which favours it, and
    `reached` is False; a run that diverges first has no number.
    """
    fed, target = federation_of(spec, seed, device), spec["target"] / 100

    def there(t: int, metrics: Mapping[str, float]) -> bool:
        return metrics["accuracy"] >= target - 1e-9  # rounding must not decide when the count of images is exact

    options = {"on_evaluate": there, "checkpoint_dir": folder, "checkpoint_every": folder and 10, "eval_every": 1}
    history, ended = trained(spec, fed, seed, **options)
    at, values = history.curve()
    reached = bool(values[-1] >= target - 1e-9)
    final = None if ended else float(at[-1])
    return {"final": final, "mean": final, "history": curve(at, 100 * values), "reached": reached, **ended}
