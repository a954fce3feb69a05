"""Studies, the computations of a cell: `(specification, seed, checkpoint folder, device) -> {final, mean, ...}`.

`final` is the number in the table (None if the run diverged), `mean` the mean over the recorded rounds, `history` the
recorded curve `[[round, value], ...]`; a study may add further numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import local_models, personal, probing, sizes, speed, training

Study = Callable[[Mapping[str, Any], int, Path | None, str | None], dict[str, Any]]

STUDIES: dict[str, Study] = {
    study.__name__: study
    for study in (
        training.simulate, training.best, training.personal, personal.clients, personal.domains, probing.mime,
        probing.gap, probing.profiles, local_models.overfitting, speed.rounds, sizes.size, sizes.cost,
    )
}  # fmt: skip


def find(spec: Mapping[str, Any]) -> Study:
    """The study that a specification names.  Raises ValueError with all known names for an unknown one."""
    name = spec.get("study") if isinstance(spec, Mapping) else None
    if not isinstance(name, str) or name not in STUDIES:
        raise ValueError(f"study={name!r} is not known; use one of {', '.join(map(repr, STUDIES))}")
    return STUDIES[name]
