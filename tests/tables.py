"""Tables and stored results that several test files share."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from fedbook import Cell
from fedbook.documents import definitions
from fedbook.results import cells
from fedbook.results.batch import ResultFolder


def table_of(listed: list[Cell], name: str = "t", **options: Any) -> definitions.Table:
    """A table of these cells in the profile quick."""
    return definitions.Table(name, "a title", "S000", lambda profile: listed, {"quick": "tiny"}, **options)


def store(place: ResultFolder, cell: Cell, runs: dict[int, dict[str, Any]], *more: Any) -> None:
    """Store the entries of a cell's runs as a batch does; more: its search and its trace."""
    place.folder.mkdir(parents=True, exist_ok=True)
    kept = {seed: {"id": cells.identity(cell.spec, seed), **run} for seed, run in runs.items()}
    cells._store(place.file(cell), cells.Result(cell.spec, kept, *more))


def images(right: np.ndarray) -> dict[str, Any]:
    """What a run keeps that classifies these of its test images correctly."""
    bits = base64.b64encode(np.packbits(right)).decode()
    return {"images": len(right), "classes": 10, "final": 100 * float(right.mean()), "correct": bits}
