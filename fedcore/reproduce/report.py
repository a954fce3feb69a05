"""What the results say: tidy tables, verdicts by rule, and the views of a single cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import pages
from .batch import Place, standing
from .cells import Cell, CorruptResult, Result
from .table import Table

RULE = (
    "A row's gap is its mean over seeds minus that of the row it is measured from, paired by seed, with a 95 % "
    "interval (Student's t). 'same sign': the interval leaves out 0 and the gap has the source's sign. 'opposite "
    "sign': it leaves out 0 and has the other sign. 'not told apart': it holds 0. 'within the source's margin' is "
    "added when the interval holds the source's own gap. Fewer than two seeds, or a source that prints no value, give "
    "no verdict."
)


def held(table: Table, place: Place) -> dict[tuple[str, str], tuple[Cell, Result | None]]:
    """(row, column) -> the cell and what is stored of it, in the table's order; None where the file is damaged."""
    found: dict[tuple[str, str], tuple[Cell, Result | None]] = {}
    for cell in table.cells(place.profile):
        try:
            found[cell.row, cell.column] = cell, standing(place, cell)
        except CorruptResult:
            found[cell.row, cell.column] = cell, None
    return found


def frame(table: Table, place: Place, seeds: Sequence[int]) -> Any:
    """Tidy pandas.DataFrame of a table: one line per cell and what it says beside the source.

    Columns: table, row, column, source, mean, sd, n, diverged, difference, source_gap, gap, gap_halfwidth, verdict.
    """
    import pandas as pd

    results = held(table, place)
    lines = []
    for (row, column), (cell, result) in results.items():
        finals = np.array(result.finals(seeds) if result else [])
        finite = finals[np.isfinite(finals)]
        base_cell, base = results.get((table.against, column), (None, None))
        gap, half = paired(result, base, seeds) if row != table.against else (math.nan, math.nan)
        known = cell.source is not None and base_cell is not None and base_cell.source is not None
        source_gap = cell.source - base_cell.source if known and row != table.against else math.nan
        lines.append(
            {
                "table": table.name,
                "row": row,
                "column": column,
                "source": math.nan if cell.source is None else cell.source,
                "mean": finite.mean() if len(finite) else math.nan,
                "sd": finite.std(ddof=1) if len(finite) > 1 else math.nan,
                "n": len(finals),
                "diverged": int((~np.isfinite(finals)).sum()),
                "difference": finite.mean() - cell.source if len(finite) and cell.source is not None else math.nan,
                "source_gap": source_gap,
                "gap": gap,
                "gap_halfwidth": half,
                "verdict": verdict(len(finals), source_gap, gap, half, row == table.against),
            }
        )
    return pd.DataFrame(lines)


def paired(result: Result | None, base: Result | None, seeds: Sequence[int]) -> tuple[float, float]:
    """Mean of the paired differences and half the width of its 95 % interval; NaN where it cannot be known."""
    from scipy.stats import t

    if result is None or base is None:
        return math.nan, math.nan
    common = [s for s in seeds if s in result.runs and s in base.runs]
    gaps = np.array(result.finals(common)) - np.array(base.finals(common))
    gaps = gaps[np.isfinite(gaps)]
    if len(gaps) < 2:
        return (float(gaps[0]) if len(gaps) else math.nan), math.nan
    return float(gaps.mean()), float(t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps)))


def verdict(n: int, source_gap: float, gap: float, half: float, baseline: bool = False) -> str:
    """The words of `RULE` for one cell."""
    if n == 0:
        return "not run yet"
    if baseline:
        return "baseline"
    if math.isnan(source_gap):
        return "no source value"
    if math.isnan(half):
        return "too few seeds" if not math.isnan(gap) else "diverged"
    if abs(gap) <= half:
        words = "not told apart"
    else:
        words = "same sign" if gap * source_gap > 0 else "opposite sign"
    return words + (", within the source's margin" if abs(gap - source_gap) <= half else "")


def orderings(table: Table, tidy: Any) -> Any:
    """Per column: the source's best row and ours, and Kendall's tau between the source's values and our means."""
    import pandas as pd

    lines = []
    for column, part in tidy.groupby("column", sort=False):
        both = part[part["source"].notna() & part["mean"].notna()]
        if len(both) < 2:
            continue
        lines.append(
            {
                "table": table.name,
                "column": column,
                "source's best": both["row"].iloc[int(both["source"].argmax())],
                "our best": both["row"].iloc[int(both["mean"].argmax())],
                "rank agreement (tau)": both["source"].corr(both["mean"], method="kendall"),
                "rows": len(both),
            }
        )
    return pd.DataFrame(lines)


# --- one cell, for its notebook -----------------------------------------------------------------------------------


def summary(result: Result, seeds: Sequence[int], name: str) -> pages.Html:
    """The cell's final values by seed, and how they were obtained."""
    finals = {seed: value for seed, value in zip(sorted(result.runs), result.finals(), strict=True) if seed in seeds}
    last = result.runs[max(finals)]
    told = {f"seed {seed}": "diverged" if math.isnan(v) else f"{v:.4g}" for seed, v in finals.items()}
    if result.tuned:
        told["tuned to"] = str(result.tuned["setting"])
    where = {k: last[k] for k in ("device", "threads", "torch", "version", "commit")}
    seconds = sum(result.runs[seed]["seconds"] for seed in finals)
    return pages.setting(cell=name, **told, **where, seconds=seconds)


def curves(result: Result, seeds: Sequence[int]) -> Any:
    """The recorded curve of every seed (shown through `fc.show`); None where the study records none."""
    from .. import plots
    from ..widgets import show

    runs = {seed: run["history"] for seed, run in result.runs.items() if seed in seeds and run.get("history")}
    if not runs:
        return None
    figure, axes = plots.figure()
    for seed, history in runs.items():
        t, v = zip(*history, strict=True)
        axes.plot(t, v, label=f"seed {seed}")
    axes.set(xlabel="communication round", ylabel=result.spec.get("metric", "accuracy"))
    axes.legend()
    return show(figure, {f"seed {seed}": history[-1][1] for seed, history in runs.items()})
