"""What the results say: tidy tables, verdicts by rule, and the views of a single cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import pages
from .batch import Place, standing
from .cells import Cell, CorruptResult, Result
from .table import Table, get

RULE = (
    "A row's gap is its mean over seeds minus that of the row it is measured from, paired by seed, with a 95 % "
    "interval (Student's t). 'same sign': the interval leaves out 0 and the gap has the source's sign. 'opposite "
    "sign': it leaves out 0 and has the other sign. 'not told apart': it holds 0. 'within the source's margin' is "
    "added when the interval holds the source's own gap. Fewer than two seeds, or a source that prints no value, give "
    "no verdict."
)
TOGETHER = (
    "A table or a document 'cannot be told at this scale' unless more than half of its printed gaps were decided; then "
    "it 'holds' or 'does not hold' when all decided signs agree or all disagree, else 'holds in part'. Where values "
    "are printed but no gap is asked, the order of the rows is judged instead: 'order holds' when Kendall's tau is 1 "
    "in every column, 'order does not hold' when it is 0 or less in every column, else 'order holds in part'."
)
KINDS = ("same sign", "opposite sign", "not told apart")
MARKS = dict(zip(KINDS, ("\u2713", "\u2717", "~"), strict=True))


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
    """Per column: the source's best row and ours, and Kendall's tau between the source's values and our means.

    In a table of one row the columns are what is ordered.
    """
    import pandas as pd

    lines, (by, what) = [], ("column", "row") if tidy["row"].nunique() > 1 else ("row", "column")
    for name, part in tidy.groupby(by, sort=False):
        both = part[part["source"].notna() & part["mean"].notna()]
        if len(both) < 2:
            continue
        lines.append(
            {
                "table": table.name,
                "column": name,
                "source's best": both[what].iloc[int(both["source"].argmax())],
                "our best": both[what].iloc[int(both["mean"].argmax())],
                "rank agreement (tau)": both["source"].corr(both["mean"], method="kendall"),
                "rows": len(both),
            }
        )
    return pd.DataFrame(lines)


def together(tidy: Any) -> tuple[dict[str, int], str]:
    """Lines of `frame` whose gap the source prints: how many of each of `KINDS`, and the verdict of `TOGETHER`."""
    asked = tidy[tidy["source_gap"].notna()]
    found = asked["verdict"].str.split(",").str[0].value_counts()
    counts = {kind: int(found.get(kind, 0)) for kind in KINDS}
    same, opposite = counts["same sign"], counts["opposite sign"]
    if 2 * (same + opposite) <= len(asked):
        return counts, "cannot be told at this scale"
    return counts, "holds in part" if same and opposite else "holds" if same else "does not hold"


def verdicts(frames: Mapping[str, Any], seeds: int) -> Any:
    """One line per table: its document, cells, gaps by kind, the mean of tau over its columns, and the verdict.

    frames: table -> its `frame`.  Columns: source, table, what, cells, same sign, opposite sign, not told apart,
    order (tau), verdict.
    """
    import pandas as pd

    lines = []
    for name, tidy in frames.items():
        table = get(name)
        counts, verdict = together(tidy)
        order, run = orderings(table, tidy), int((tidy["n"] >= seeds).sum())
        taus = order["rank agreement (tau)"] if len(order) else pd.Series(dtype=float)
        if not (tidy["n"] > 0).any():
            verdict = "not run yet"
        elif tidy["source"].isna().all():
            verdict = "the source prints no numbers"
        elif tidy["source_gap"].isna().all():
            kind = "holds" if (taus == 1).all() else "does not hold" if (taus <= 0).all() else "holds in part"
            verdict = f"order {kind}" if len(taus) else "no order to compare"
        lines.append(
            {"source": table.document, "table": name, "what": table.title, "cells": f"{run} of {len(tidy)}", **counts,
             "order (tau)": f"{taus.mean():+.2f}" if len(taus) else "\u2013", "verdict": verdict}
        )  # fmt: skip
    return pd.DataFrame(lines)


def grid(table: Table, tidy: Any) -> Any:
    """A table as its source prints it, a line for each row: our mean and standard deviation, the source's value in
    brackets where it prints one, and the mark of the verdict (`MARKS`)."""
    digits = 3 if table.unit in ("cosine", "millions") else 1

    def entry(line: Any) -> str:
        if not line["n"]:
            return "not run yet"
        ours = "diverged" if math.isnan(line["mean"]) else f"{line['mean']:.{digits}f}"
        ours += "" if math.isnan(line["sd"]) else f" \u00b1 {line['sd']:.{digits}f}"
        theirs = "" if math.isnan(line["source"]) else f" ({line['source']:.{digits}f})"
        return f"{ours}{theirs} {MARKS.get(line['verdict'].split(',')[0], '')}".strip()

    entries = tidy.assign(entry=[entry(line) for line in tidy.to_dict("records")])
    rows, columns = (list(dict.fromkeys(tidy[name])) for name in ("row", "column"))
    out = entries.pivot(index="row", columns="column", values="entry").reindex(index=rows, columns=columns)
    return out.fillna("\u2013").rename_axis(index=None, columns=None)


def drawing(table: Table, place: Place, seeds: Sequence[int], caption: str | None = None) -> Any:
    """A figure from its cells, mean and one standard deviation over the seeds; None where nothing was run.

    With `table.axis` "round", a panel for each column shows the recorded curves.  Else the final values stand over the
    columns, a panel for each text before their last comma.  Shown through `fc.show`.
    """
    from .. import plots
    from ..widgets import show

    panels: dict[str, dict[str, dict[Any, list[float]]]] = {}  # panel -> row -> tick -> a value for each seed
    finals: dict[tuple[str, str], list[float]] = {}
    for cell, result in held(table, place).values():
        if result is None or any(seed not in result.runs for seed in seeds):
            continue
        runs = result.runs
        panel, _, tick = (cell.column, "", "") if table.axis == "round" else cell.column.rpartition(", ")
        tick = tick.removeprefix("rho=")
        points = panels.setdefault(panel, {}).setdefault(cell.row, {})
        for run in (runs[seed] for seed in seeds):
            final = math.nan if run["final"] is None else run["final"]
            finals.setdefault((panel, cell.row), []).append(final)
            for at, value in run["history"] if table.axis == "round" else [(tick, final)]:
                points.setdefault(at, []).append(value)
    if not panels:
        return None
    rows = list(dict.fromkeys(row for lines in panels.values() for row in lines))
    wide = min(3, len(panels))
    tall = -(-len(panels) // wide)
    figure, axes = plots.figure(width=7.4 if wide > 1 else 6.4, height=1.2 + (2.4 if wide == 1 else 1.9) * tall,
                                ncols=wide, nrows=tall)  # fmt: skip
    drawn = list(np.atleast_1d(axes).flat)
    for ax, (panel, lines) in zip(drawn, panels.items(), strict=False):
        ticks = list(dict.fromkeys(at for points in lines.values() for at in points))
        at = sorted(ticks) if table.axis == "round" else ticks
        series = {row: np.full((len(seeds), len(at)), math.nan) for row in rows}  # every method keeps its colour
        for row, points in lines.items():
            for k, tick in enumerate(at):
                series[row][: len(points.get(tick, [])), k] = points.get(tick, [])
        plots.curves(ax, series, x=at if table.axis == "round" else range(len(at)), legend=False)
        if table.axis != "round":
            ax.set_xticks(range(len(at)), at)
        for line in ax.lines if wide > 1 else ():
            line.set(linewidth=1.2, markersize=3.5)
        ax.set_title(panel, fontsize=10)
        k = drawn.index(ax)
        if k >= len(panels) - wide:
            ax.set_xlabel("communication round" if table.axis == "round" else table.axis)
        if k % wide == 0:
            ax.set_ylabel(table.unit)
    for ax in drawn[len(panels) :]:
        ax.set_visible(False)
    figure.legend(*drawn[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    by_panel = len(finals) <= 12
    means: dict[str, list[float]] = {}
    for (panel, row), values in finals.items():
        means.setdefault(f"{panel} {row}".strip() if by_panel else row, []).extend(
            np.array(values)[np.isfinite(values)]
        )
    numbers = {name: np.mean(values) if values else "diverged" for name, values in means.items()}
    words = (
        f"{table.title}: {len(panels)} panels ({'; '.join(filter(None, panels))}), a line for each of {', '.join(rows)}"
    )
    return show(figure, numbers, alt=words, caption=caption)


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
