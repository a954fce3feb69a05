"""The stored results as numbers: tidy tables, answers to their questions, cost and age.

Missing results are NaN or marked as missing and raise no error, so these functions work before, during and after a
batch.  `show` displays the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..documents.definitions import PROFILES, Cell, Key, Question, Table, sides, tables
from ..pages import half_width
from ..results.batch import ResultFolder, stored
from ..results.cells import Result
from ..studies.training import late
from ..studies.tuning import lower_is_better
from . import judge
from .judge import Answer

MISSING = "not computed yet"
NOT_RUN, BASE = "not run yet", "baseline"  # in place of a verdict


def stored_cells(
    table: Table, place: ResultFolder, only: Collection[Key] | None = None
) -> dict[Key, tuple[Cell, Result | None]]:
    """(row, column) -> the cell and its stored result, None if the file is damaged or unreadable; in the table's order.

    only: the (row, column) to read; None reads all.
    """
    cells = [cell for cell in table.cells(place.profile) if only is None or (cell.row, cell.column) in only]
    return {(cell.row, cell.column): (cell, result) for cell, result, _ in stored(place, cells)}


def frame(table: Table, place: ResultFolder, seeds: Sequence[int] | None = None) -> Any:
    """A table as a tidy pandas.DataFrame: one line per cell, with the source's value beside ours.

    seeds: None for the seeds of each cell.

    Columns: table, row, column, source, mean, sd, n, complete, diverged, difference, source_gap; gap, gap_halfwidth,
    verdict and detectable (the smallest gap that would have been found) of the answer to "is it better than the row
    `table.against`?", all gaps of the table being one family of `judge.decide`; setting (chosen by tuning) and edge
    (the axes of tuning on whose boundary it lies); older (the number of runs older than the code). The verdict is
    empty until both cells are complete, and for numbers that are counted.
    """
    import pandas as pd

    results = stored_cells(table, place)
    answers = judged(table, results, seeds)
    lines = []
    for (row, column), (cell, result) in results.items():
        asked = cell.reporting(seeds)
        result = result or Result(cell.spec)
        finals = np.array(result.finals(asked))
        finite = finals[np.isfinite(finals)]
        base_cell, _ = results.get((table.against, column), (None, None))
        answer = answers.get((row, column))
        waiting = "" if len(finals) else NOT_RUN
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
                "gap": answer.comparison.gap if answer else math.nan,
                "gap_halfwidth": answer.comparison.half if answer else math.nan,
                "verdict": answer.word if answer else BASE if len(finals) and row == table.against else waiting,
                "detectable": answer.detectable if answer else math.nan,
                "setting": json.dumps(result.searches[0]["setting"]) if result.searches else "",
                "edge": ", ".join(sorted({e for one in result.searches for e in one.get("edges", ())})),
                "older": len(result.outdated(asked)),
            }
        )
    return pd.DataFrame(lines)


def curves(table: Table, place: ResultFolder, column: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rounds `[points]` and, for every row of a column with results, the recorded values `[seeds, points]` (accuracy in
    %), NaN after a run diverged."""
    found = {
        row: [result.runs[seed].get("history", []) for seed in cell.reporting(None) if seed in result.runs]
        for (row, name), (cell, result) in stored_cells(table, place).items()
        if name == column and result and result.runs
    }
    at = sorted({t for runs in found.values() for run in runs for t, _ in run})
    series = {row: np.array([[dict(run).get(t, math.nan) for t in at] for run in runs]) for row, runs in found.items()}
    return np.array(at), series


def everything(root: Path) -> tuple[Any, list[str]]:
    """`frame` of every table and profile with results, concatenated, and the errors of damaged files."""
    import pandas as pd

    places = list(stored_tables(root))
    frames = [frame(*here) for here in places] or [pd.DataFrame()]
    return pd.concat(frames, ignore_index=True), [said for here in places for said in damaged(*here)]


def damaged(table: Table, place: ResultFolder) -> list[str]:
    """The errors of a table's damaged or unreadable files, which `stored_cells` leaves out."""
    return [said for _, _, said in stored(place, table.cells(place.profile)) if said]


def listing(root: Path) -> Any:
    """Every stored cell of every table and profile, one per line (pandas.DataFrame of texts).

    Columns: table, profile, column, row, value (mean ± half its 95 % interval over seeds, and its unit), gap (to the
    table's reference row, and the answer), chosen (the setting; "at an end" names the axes of tuning on whose
    boundary it lies), notes (divergences, the result's file). Age depends on today's code, and is left out.
    """
    import pandas as pd

    lines = []
    for table, place in stored_tables(root):
        tidy, unit = frame(table, place), "" if table.unit == "as the column says" else f" {table.unit}"
        for line, cell in zip(tidy.to_dict("records"), table.cells(place.profile), strict=True):
            if not line["n"]:
                continue
            half = half_width(line["sd"], line["n"] - line["diverged"])
            half = "" if math.isnan(half) else f" ± {half:.2f}"
            gap = "" if math.isnan(line["gap_halfwidth"]) else f"{line['gap']:+.2f} ± {line['gap_halfwidth']:.2f}: "
            gap = gap and "log ratio " * (table.compared == "logs") + gap
            holm = line["verdict"] == judge.OPEN and abs(line["gap"]) > line["gap_halfwidth"]
            notes = [f"diverged at {line['diverged']} of {line['n']} seeds"] if line["diverged"] else []
            lines.append(
                {
                    "table": table.name,
                    "profile": place.profile,
                    "column": line["column"],
                    "row": line["row"],
                    "value": "diverged"
                    if math.isnan(line["mean"])
                    else f"{line['mean']:.2f}{half}{unit} ({line['n']} seed{'s' * (line['n'] != 1)})",
                    "gap": gap + line["verdict"] + " (by Holm's rule)" * holm,
                    "chosen": _setting(line["setting"]) + (f"; at an end: {line['edge']}" if line["edge"] else ""),
                    "notes": "; ".join([*notes, place.file(cell).relative_to(root).as_posix()]),
                }
            )
    return pd.DataFrame(lines)


def _setting(text: str) -> str:
    """A setting as JSON in short: "lr 0.1, mu 0.01"."""
    parts = json.loads(text).values() if text else ()
    pairs = [pair for part in parts for pair in (part.items() if isinstance(part, dict) else [("", part)])]
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}".strip() for name, value in pairs
    )


def progress(frames: Mapping[str, Any]) -> str:
    """The progress of tables (name -> `frame`) as text: complete cells, diverged runs, and counts of each answer."""
    import pandas as pd

    lines = {
        name: {
            "cells": f"{int(tidy['complete'].sum())} of {len(tidy)}",
            "diverged": int(tidy["diverged"].sum()),
            **{word: int((tidy["verdict"] == word).sum()) for word in judge.WORDS},
        }
        for name, tidy in frames.items()
    }
    return pd.DataFrame.from_dict(lines, orient="index").to_string()


def compute(root: Path) -> Any:
    """The computing time of the stored results, one line per table and profile (pandas.DataFrame).

    Columns: table, profile, cells, runs, diverged (runs), trials (settings tried by tuning), trials diverged (a
    run of theirs diverged, so that they have no score), cells at an end (a chosen value is the first or last of its
    list), hours (of one process, tuning included), of which tuning.
    """
    import pandas as pd

    lines = []
    for table, place in stored_tables(root):
        found = [result for _, result in stored_cells(table, place).values() if result and result.runs]
        runs = [run for result in found for run in result.runs.values()]
        search = sum(one.get("seconds", 0.0) for r in found for one in r.searches)
        tried = [trial for r in found for one in r.searches for trial in one.get("tried", ())]
        seconds = sum(run.get("seconds", 0.0) for run in runs) + search
        if runs:
            lines.append(
                {
                    "table": table.name,
                    "profile": place.profile,
                    "cells": len(found),
                    "runs": len(runs),
                    "diverged": sum(run["final"] is None for run in runs),
                    "trials": len(tried),
                    "trials diverged": sum(trial["score"] is None for trial in tried),
                    "cells at an end": sum(any(one.get("edges") for one in r.searches) for r in found),
                    "hours": round(seconds / 3600, 2),
                    "of which tuning": round(search / 3600, 2),
                }
            )
    names = ["table", "profile", "cells", "runs", "diverged", "trials", "trials diverged", "cells at an end"]
    return pd.DataFrame(lines, columns=[*names, "hours", "of which tuning"])


def stored_tables(root: Path) -> Iterator[tuple[Table, ResultFolder]]:
    """Tables with stored results, profile by profile, beginning with the profile nearest to the document."""
    for profile in reversed(PROFILES):
        for table in tables().values():
            place = ResultFolder(root, profile, table.name)
            if not table.drawn_from and profile in table.captions and any(place.folder.glob("*.json")):
                yield table, place


def judged(
    table: Table, results: Mapping[Key, tuple[Cell, Result | None]], seeds: Sequence[int] | None = None
) -> dict[Key, Answer]:
    """The answers of a whole table as one family, in which every row is compared with `table.against`."""
    asked = [(row, table.against, column) for row, column in results if row != table.against]
    found = answered(results, asked, seeds, compared=table.compared)
    return {(row, column): answer for (row, _, column), answer in found.items()}


def answered(
    results: Mapping[Key, tuple[Cell, Result | None]],
    asked: Sequence[Question],
    seeds: Sequence[int] | None = None,
    margin: float | None = None,
    compared: str = "images",
) -> dict[Question, Answer]:
    """Answers to those questions of one family for which both cells are complete.

    A cell is complete if its runs at all seeds (default: its own) record which test images are classified correctly.
    compared: see `Table.compared`; for values and logs, smaller is better if the specifications say so
    (`tuning.lower_is_better`).  "lower values" are values of which smaller ones are better.  "speed": the logarithms of
    `rounds_to`, which are read from the stored curves of accuracy.  "start": the late accuracy of the first row
    with its accuracy before the first round, which also stands for the late accuracy of a run that diverged.
    """

    def complete(key: Key) -> Result | None:
        cell, result = results.get(key, (None, None))
        runs = [result.runs.get(seed, {}) for seed in cell.reporting(seeds)] if result else [{}]
        known = all("images" in run if compared == "images" else "final" in run for run in runs)
        return result if known else None

    found = {}
    for question in asked:
        here, there = sides(question)
        ours, theirs = complete(here), complete(there)
        if ours and theirs and _images(ours) == _images(theirs):
            common = results[here][0].reporting(seeds)
            if compared == "images":
                diverged = tuple(sum(r.runs[seed]["final"] is None for seed in common) for r in (ours, theirs))
                owners = _owners(results[here][0], ours)
                found[question] = judge.compare(ours.correct(common), theirs.correct(common), diverged, owners)
                continue
            if compared == "speed":
                values, step = rounds_to((ours, theirs), common)
            elif compared == "start":
                begun = np.array([ours.runs[seed]["history"][0][1] for seed in common])
                last = np.array(ours.finals(common))
                values, step = np.array([np.where(np.isfinite(last), last, begun), begun]), 1.0
            else:
                values, step = np.array([result.finals(common) for result in (ours, theirs)]), 1.0
            one = 0.0
            if compared in ("logs", "speed"):  # rounds are counted, so the interval is at least one wide to either side
                known = values[np.isfinite(values)]
                one, values = float(np.log1p(step / known.mean())) if len(known) else 0.0, np.log(values)
            found[question] = judge.compare_values(*values, one)
    lower = compared in ("lower values", "speed") or (
        compared != "images" and any(lower_is_better(results[sides(question)[0]][0].spec) for question in found)
    )
    return dict(zip(found, judge.decide(list(found.values()), margin, lower_is_better=lower), strict=True))


SHARE = 0.9  # of the lower of two late accuracies: the accuracy to which speed is measured


def rounds_to(pair: tuple[Result, Result], seeds: Sequence[int]) -> tuple[np.ndarray, float]:
    """The rounds after which the stored curves of two cells first reach a common accuracy, `[2, seeds]`, and the number
    of rounds between two evaluations.

    The accuracy is the part `SHARE` of the lower of the two mean late accuracies, so that both cells usually reach it.
    A run that does not counts with all its rounds; one that diverges before has no number (NaN).
    """
    target = SHARE * min(float(np.nanmean(result.finals(seeds))) for result in pair)
    curves = [[result.runs[seed]["history"] for seed in seeds] for result in pair]

    def first(curve: list[list[float]], final: float) -> float:
        reached = [t for t, value in curve if t and value >= target]
        return float(reached[0]) if reached else float(curve[-1][0]) if math.isfinite(final) else math.nan

    rounds = [
        [first(*run) for run in zip(of_cell, result.finals(seeds), strict=True)]
        for of_cell, result in zip(curves, pair, strict=True)
    ]
    return np.array(rounds), max(float(curve[-1][0] - curve[-2][0]) for of_cell in curves for curve in of_cell)


def rise(result: Result, seeds: Sequence[int]) -> tuple[float, int]:
    """How much the recorded accuracy still rose, in points, and the number of rounds.

    The rise is the mean over the last sixth of the rounds minus that over the sixth before, the mean over seeds; 0 if
    the runs did not record both or diverged.
    """
    rises, rounds = [], 0
    for run in (result.runs[seed] for seed in seeds):
        curve = [(t, value) for t, value in run.get("history", ()) if t]
        end = curve[-1][0] if curve else 0
        early = [value for t, value in curve if end - end // 3 <= t < end - max(0, end - 1) // 6]
        if early and run["final"] is not None:
            rises.append(late(curve) - float(np.mean(early)))
            rounds = max(rounds, end)
    return float(np.mean(rises)) if rises else 0.0, rounds


OWNERS = json.loads(Path(__file__).with_name("owners.json").read_text(encoding="utf-8"))


def _owners(cell: Cell, result: Result) -> list[int]:
    """How many consecutive test images each writer or role has, from the source's `test_owner`; none for other sizes of
    these test sets and for all others, whose single images are then compared."""
    owners = OWNERS.get(str(cell.spec.get("federation", {}).get("source")).lower(), [])
    return owners if _images(result) == {sum(owners)} else []


def _images(result: Result) -> set[int]:
    return {run["images"] for run in result.runs.values() if "images" in run}


def reservations(frames: Mapping[str, Any]) -> list[str]:
    """How many runs of these tables (name -> `frame`) are older than the code, a sentence for each with such runs."""
    out = []
    for name, tidy in frames.items():
        if runs := int(tidy["older"].sum()):
            out.append(f"{name}: {runs} of {int(tidy['n'].sum())} runs are older than the code.")
    return out


def age(root: Path) -> tuple[int, int]:
    """The number of stored runs in a results folder that are older than the code, and the number of all runs."""
    found = [result for here in stored_tables(root) for _, result in stored_cells(*here).values() if result]
    return sum(len(result.outdated()) for result in found), sum(len(result.runs) for result in found)
