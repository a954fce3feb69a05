"""What the stored results say, as numbers: tidy tables, paired differences, and verdicts by rule.

Whatever is missing is NaN or named as missing, and nothing breaks: this can be asked before, while and after a batch
runs.  How it is shown is `show`'s.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import judge
from .batch import Place, results, standing
from .cells import Cell, CorruptResult, Result
from .judge import Answer
from .table import PROFILES, Table, get, tables

Key = tuple[str, str]  # row, column
MISSING = "not computed yet"
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


def stored_cells(table: Table, place: Place) -> dict[Key, tuple[Cell, Result | None]]:
    """(row, column) -> the cell and what is stored of it, in the table's order; None where the file is damaged."""
    out: dict[Key, tuple[Cell, Result | None]] = {}
    for cell in table.cells(place.profile):
        try:
            out[cell.row, cell.column] = cell, standing(place, cell)
        except CorruptResult:
            out[cell.row, cell.column] = cell, None
    return out


class Stored:
    """The stored results of a table or figure, by (row, column).

    root: the results folder, by default the project's, seen from the book's folder or from above it.
    """

    def __init__(self, name: str, profile: str, seeds: Sequence[int], root: Path | None = None) -> None:
        self.table, self.seeds = get(name), list(seeds)
        place = Place(root or results(), profile, self.table.drawn_from or name)
        self.cells = stored_cells(self.table, place)
        self.rows, self.columns = (list(dict.fromkeys(names)) for names in zip(*self.cells, strict=True))

    def finals(self, key: Key) -> np.ndarray:
        """One final value a seed; NaN for a run that diverged, empty where nothing is stored."""
        result = self.cells[key][1]
        return np.array(result.finals(self.seeds) if result else [])

    def source(self, key: Key) -> float:
        """The printed value; NaN where there is none."""
        value = self.cells[key][0].source
        return math.nan if value is None else value

    def gap(self, key: Key, base: Key) -> tuple[float, float]:
        """Cell minus base, paired by seed, and half its 95 % interval; NaN where they cannot be known."""
        return paired(self.cells[key][1], self.cells[base][1], self.seeds)

    def curve(self, key: Key) -> tuple[np.ndarray, np.ndarray]:
        """Rounds [points] and recorded values [seeds, points], as far as every seed has them; empty if none has."""
        result = self.cells[key][1]
        runs = [np.array(result.runs[s]["history"]) for s in self.seeds if s in result.runs] if result else []
        common = min(map(len, runs), default=0)
        return (runs[0][:common, 0], np.stack([run[:common, 1] for run in runs])) if common else (np.empty(0),) * 2


def frame(table: Table, place: Place, seeds: Sequence[int] | None = None) -> Any:
    """Tidy pandas.DataFrame of a table: one line per cell and what it says beside the source.

    seeds: None for each cell's own.

    Columns: table, row, column, source, mean, sd, n, complete, diverged, difference, source_gap, gap, gap_halfwidth,
    verdict; detectable (the smallest gap that would have been found), setting (that was chosen) and edge (the axes of
    the search at whose end it is); older (runs that are older than the code) and superseded (why they must not be
    relied on).  Where runs say which test images are classified correctly, all gaps are one family of `judge.decide`.
    """
    import pandas as pd

    results = stored_cells(table, place)
    answers = judged(table, results, seeds)
    lines = []
    for (row, column), (cell, result) in results.items():
        asked = cell.reporting(seeds)
        finals = np.array(result.finals(asked) if result else [])
        finite = finals[np.isfinite(finals)]
        base_cell, base = results.get((table.against, column), (None, None))
        answer = answers.get((row, column))
        gap, half = paired(result, base, asked) if row != table.against else (math.nan, math.nan)
        if answer:
            gap, half = answer.comparison.gap, answer.comparison.half
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
                "complete": len(finals) == len(asked),
                "diverged": int((~np.isfinite(finals)).sum()),
                "difference": finite.mean() - cell.source if len(finite) and cell.source is not None else math.nan,
                "source_gap": source_gap,
                "gap": gap,
                "gap_halfwidth": half,
                "verdict": answer.word if answer else verdict(len(finals), source_gap, gap, half, row == table.against),
                "detectable": answer.detectable if answer else math.nan,
                "setting": json.dumps(result.tuned["setting"]) if result and result.tuned else "",
                "edge": ", ".join(result.tuned.get("edges", ())) if result and result.tuned else "",
                "older": len(result.outdated(asked)) if result else 0,
                "superseded": result.superseded(asked) if result else "",
            }
        )
    return pd.DataFrame(lines)


def listing(root: Path) -> Any:
    """Every stored cell of every table and profile, a line each (pandas.DataFrame of texts): table, profile, column,
    row, value (mean ± sd over seeds), gap (to the row that the table is measured from, and what is said of it), chosen
    (the setting; "at an end" names an axis of the search that ends there), notes (divergences, age, the result's file).
    """
    import pandas as pd

    lines = []
    for table, place in stored_tables(root):
        tidy = frame(table, place)
        for line, cell in zip(tidy.to_dict("records"), table.cells(place.profile), strict=True):
            if not line["n"]:
                continue
            sd = "" if math.isnan(line["sd"]) else f" ± {line['sd']:.2f}"
            gap = "" if math.isnan(line["gap_halfwidth"]) else f"{line['gap']:+.2f} ± {line['gap_halfwidth']:.2f}: "
            notes = [f"diverged at {line['diverged']} of {line['n']} seeds"] if line["diverged"] else []
            notes += [f"{line['older']} runs older than the code"] if line["older"] else []
            lines.append(
                {
                    "table": table.name,
                    "profile": place.profile,
                    "column": line["column"],
                    "row": line["row"],
                    "value": "diverged" if math.isnan(line["mean"]) else f"{line['mean']:.2f}{sd} ({line['n']} seeds)",
                    "gap": gap + line["verdict"],
                    "chosen": _setting(line["setting"]) + (f"; at an end: {line['edge']}" if line["edge"] else ""),
                    "notes": "; ".join([*notes, place.file(cell).relative_to(root).as_posix()]),
                }
            )
    return pd.DataFrame(lines)


def _setting(text: str) -> str:
    """A setting as JSON in short: "lr 0.1, mu 0.01"."""
    parts = json.loads(text).values() if text else ()
    return ", ".join(f"{name} {value:g}" for part in parts for name, value in part.items())


def compute(root: Path) -> Any:
    """What the stored results cost, a line for each table and profile (pandas.DataFrame).

    Columns: table, profile, cells, runs, diverged (runs), at an edge (cells whose chosen setting stands at an end of
    its search), hours (of one process, tuning included).
    """
    import pandas as pd

    lines = []
    for table, place in stored_tables(root):
        found = [result for _, result in stored_cells(table, place).values() if result and result.runs]
        runs = [run for result in found for run in result.runs.values()]
        seconds = sum(run["seconds"] for run in runs) + sum((r.tuned or {}).get("seconds", 0.0) for r in found)
        if runs:
            lines.append(
                {
                    "table": table.name,
                    "profile": place.profile,
                    "cells": len(found),
                    "runs": len(runs),
                    "diverged": sum(run["final"] is None for run in runs),
                    "at an edge": sum(bool((r.tuned or {}).get("edges")) for r in found),
                    "hours": round(seconds / 3600, 2),
                }
            )
    return pd.DataFrame(lines)


def stored_tables(root: Path) -> Iterator[tuple[Table, Place]]:
    """Tables with results of their own, profile by profile, the profile nearest to the document's first."""
    for profile in reversed(PROFILES):
        for table in tables().values():
            place = Place(root, profile, table.name)
            if not table.drawn_from and profile in table.captions and place.folder.exists():
                yield table, place


def judged(
    table: Table, results: Mapping[Key, tuple[Cell, Result | None]], seeds: Sequence[int] | None = None
) -> dict[Key, Answer]:
    """The answers of a whole table as one family, `table.against` being the other side of every question."""
    asked = [(row, table.against, column) for row, column in results if row != table.against]
    return {(row, column): a for (row, _, column), a in answered(results, asked, seeds).items()}


def answered(
    results: Mapping[Key, tuple[Cell, Result | None]],
    asked: Sequence[tuple[str, str, str]],
    seeds: Sequence[int] | None = None,
    margin: float | None = None,
    by_value: bool = False,
) -> dict[tuple[str, str, str], Answer]:
    """Answers to the questions `(row, base, column)` of one family, as far as both cells are complete.

    A cell is complete when its runs at all seeds (default: its own) say which test images are classified correctly.
    by_value: their final values are compared instead, for what is no accuracy.
    """

    def complete(key: Key) -> Result | None:
        cell, result = results.get(key, (None, None))
        runs = [result.runs.get(seed, {}) for seed in cell.reporting(seeds)] if result else [{}]
        known = all("final" in run if by_value else "images" in run for run in runs)
        return result if known else None

    found = {}
    for row, base, column in asked:
        ours, theirs = complete((row, column)), complete((base, column))
        if ours and theirs:
            common = results[row, column][0].reporting(seeds)
            if by_value:
                found[row, base, column] = judge.compare_values(ours.finals(common), theirs.finals(common))
                continue
            diverged = tuple(sum(r.runs[seed]["final"] is None for seed in common) for r in (ours, theirs))
            found[row, base, column] = judge.compare(ours.correct(common), theirs.correct(common), diverged)
    return dict(zip(found, judge.decide(list(found.values()), margin), strict=True))


def paired(result: Result | None, base: Result | None, seeds: Sequence[int]) -> tuple[float, float]:
    """Mean of the paired differences and half the width of its 95 % interval (Student's t, over the seeds that both
    have and neither diverged at); NaN where it cannot be known."""
    from scipy.stats import ttest_rel

    if result is None or base is None:
        return math.nan, math.nan
    common = [s for s in seeds if s in result.runs and s in base.runs]
    pairs = np.array([result.finals(common), base.finals(common)])
    ours, theirs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if len(ours) < 2:
        return (float(ours[0] - theirs[0]) if len(ours) else math.nan), math.nan
    with warnings.catch_warnings():  # of the statistic, where all differences are equal: their interval is a point
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = ttest_rel(ours, theirs).confidence_interval(0.95)
    return round(float((ours - theirs).mean()), 9), round(float(high - low) / 2, 9)  # no sign from rounding noise


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


def verdicts(frames: Mapping[str, Any]) -> Any:
    """One line per table: its document, cells, gaps by kind, the mean of tau over its columns, and the verdict.

    frames: table -> its `frame`.  Columns: source, table, what, cells, same sign, opposite sign, not told apart,
    order (tau), older (cells with a run that is older than the code), verdict.
    """
    import pandas as pd

    lines = []
    for name, tidy in frames.items():
        table = get(name)
        counts, verdict = together(tidy)
        order, run = orderings(table, tidy), int(tidy["complete"].sum())
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
             "order (tau)": f"{taus.mean():+.2f}" if len(taus) else "\u2013", "older": int((tidy["older"] > 0).sum()),
             "verdict": verdict}
        )  # fmt: skip
    return pd.DataFrame(lines)


def sign(gap: float, half: float) -> str:
    """What an interval gap ± half says about the sign of the gap."""
    if math.isnan(half):
        return MISSING if math.isnan(gap) else "too few seeds"
    return "not told apart" if abs(gap) <= half else ("higher" if gap > 0 else "lower")


@dataclass(frozen=True)
class Lead:
    """How far a method is ahead of its best rival in a column: ours, and the source's `printed`; NaN where unknown."""

    column: str
    rival: str
    gap: float
    half: float
    printed_rival: str
    printed: float


def leads(stored: Stored, columns: Sequence[str], method: str, rivals: Sequence[str]) -> Iterator[Lead]:
    """A `Lead` for each column.

    The best rival is the one with the highest mean, so that chance favours it; there is none where a rival is missing.
    """
    for column in columns:
        means = {row: np.nanmean(v) for row in rivals if np.isfinite(v := stored.finals((row, column))).any()}
        best = max(means, key=means.get) if len(means) == len(rivals) else ""
        gap, half = stored.gap((method, column), (best, column)) if best else (math.nan, math.nan)
        printed = {row: stored.source((row, column)) for row in rivals}
        ahead = float(stored.source((method, column)) - np.max(list(printed.values())))  # NaN where one is not printed
        top = "" if math.isnan(ahead) else max(printed, key=printed.get)
        yield Lead(column, best, gap, half, top, ahead)


def reservations(frames: Mapping[str, Any]) -> list[str]:
    """What speaks against the results of these tables (name -> `frame`), a sentence each: age, and what is known."""
    out = []
    for name, tidy in frames.items():
        if runs := int(tidy["older"].sum()):
            out.append(f"{name}: {runs} of {int(tidy['n'].sum())} runs are older than the code.")
        for reason, part in tidy[tidy["superseded"] != ""].groupby("superseded"):
            out.append(f"{name}: {len(part)} of {len(tidy)} cells are superseded: {reason}.")
    return out


def age(root: Path) -> tuple[int, int]:
    """How many of the stored runs under a results folder are older than the code, and how many there are."""
    found = [
        result
        for profile in PROFILES
        for table in tables().values() if not table.drawn_from
        for _, result in stored_cells(table, Place(root, profile, table.name)).values() if result
    ]  # fmt: skip
    return sum(len(result.outdated()) for result in found), sum(len(result.runs) for result in found)
