"""A study of speed: the number of rounds that a method needs to reach a given accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcore import Diverged
from fedcore import simulate as run

from .from_spec import build_method, curve, federation_of


def rounds(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """The first round after which the accuracy is at least `spec["target"]` %, evaluated after every round.

    The run ends at that round.  A run that never reaches the target counts with all its rounds, which favours it, and
    `reached` is False; a run that diverges first has no number.
    """
    fed, target = federation_of(spec, seed, device), spec["target"] / 100

    def there(t: int, metrics: Mapping[str, float]) -> bool:
        return metrics["accuracy"] >= target - 1e-9  # rounding must not decide when the count of images is exact

    options = {**spec["run"], "eval_every": 1}
    diverged = None
    try:
        history = run(
            build_method(spec["method"], fed, spec["run"]), fed, seed=seed, on_evaluate=there, checkpoint_dir=folder,
            checkpoint_every=10, **options,
        )  # fmt: skip
    except Diverged as e:
        history, diverged = e.history, e.round
    at, values = history.curve()
    reached = bool(values[-1] >= target - 1e-9)
    final = None if diverged is not None else float(at[-1])
    return {
        "final": final,
        "mean": final,
        "history": curve(at, 100 * values),
        "reached": reached,
        **({} if diverged is None else {"diverged": diverged}),
    }
