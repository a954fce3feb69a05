"""Performance profiles: in which share of the stored settings a method is nearly as fast as the fastest (Dolan and
Moré 2002)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..documents.definitions import tables
from ..results.batch import ResultFolder
from ..results.cells import Result
from ..studies.from_spec import method_class
from .overview import stored_cells

SOLVED = 0.95  # of the highest late accuracy in a setting
MEASURES = ("rounds", "gradients", "bytes")


def ratios(root: Path, profile: str = "desk", measure: str = "rounds", least: int = 4) -> dict[str, np.ndarray]:
    """Row of the tables -> for each setting in which it was run, what it spent until it was solved, over what the most
    economical row spent there; inf where it did not solve the setting.

    A setting is the column of a table with at least three complete rows.  It is solved where a run's accuracy first
    reaches `SOLVED` of the highest late accuracy of the rows; a run that diverges solves nothing, and a row spends the
    median over its seeds.  measure: "rounds"; "gradients", by mini-batch gradients in a local step, a Hessian-vector
    product as two; or "bytes", sent and received per client.  Rows of fewer than `least` settings are left out, as are
    those whose cost by this measure depends on the clients: on their number, or on how much data they have.
    Raises ValueError for another measure.
    """
    if measure not in MEASURES:
        raise ValueError(f"measure={measure!r}; use one of {', '.join(MEASURES)}")
    found: dict[str, list[float]] = {}
    for table in (t for t in tables().values() if not t.drawn_from and profile in t.captions and t.unit == "%"):
        columns: dict[str, dict[str, Result]] = {}
        for (row, column), (cell, result) in stored_cells(table, ResultFolder(root, profile, table.name)).items():
            if result and cell.spec["study"] == "simulate" and set(cell.reporting(None)) <= set(result.runs):
                columns.setdefault(column, {})[row] = result
        for rows in columns.values():
            spent = _spent(rows, measure) if len(rows) > 2 else {}
            fastest = min(spent.values(), default=math.inf)
            for row, value in spent.items() if math.isfinite(fastest) else ():
                found.setdefault(row, []).append(value / fastest)
    return {row: np.array(values) for row, values in found.items() if len(values) >= least}


def _spent(rows: Mapping[str, Result], measure: str) -> dict[str, float]:
    """What each row spends in one setting until it is solved."""
    ends = [result.finals() for result in rows.values()]
    target = SOLVED * max((np.mean(values) for values in ends if np.isfinite(values).all()), default=math.inf)
    out = {}
    for row, result in rows.items():
        cost = method_class(result.spec["method"][0])().cost()
        each = {
            "rounds": 1.0,
            "gradients": None if cost.full_gradients else cost.gradients + 2 * cost.products,
            "bytes": None if cost.down is None or cost.up is None else cost.down + cost.up,
        }[measure]
        first = [_first(run, target) for run in result.runs.values()]
        if each:
            out[row] = each * float(np.median(first))
    return out


def _first(run: Mapping[str, Any], target: float) -> float:
    """The first recorded round whose accuracy reaches the target; inf if there is none, and for a diverged run."""
    if run["final"] is None:
        return math.inf
    return min((float(t) for t, value in run.get("history", ()) if t and value >= target), default=math.inf)
