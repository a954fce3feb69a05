"""What a chapter shows of results that it reads and does not compute: tables, sweeps, paired differences, provenance.

Whatever is missing is called so, and nothing breaks: a page can be built before, while and after a batch runs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from .. import pages, plots
from ..checkpoint import atomic
from .batch import Place, results
from .cells import Cell, provenance
from .report import held, paired
from .table import get

Key = tuple[str, str]  # row, column
MISSING = "not computed yet"


class Stored:
    """The stored results of a table or figure, by (row, column).

    root: the results folder, by default the project's, seen from the book's folder or from above it.
    """

    def __init__(self, name: str, profile: str, seeds: Sequence[int], root: Path | None = None) -> None:
        self.table, self.seeds = get(name), list(seeds)
        place = Place(root or results(), profile, self.table.drawn_from or name)
        self.cells = held(self.table, place)
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

    def words(self, key: Key) -> str:
        """A cell as text: mean ± standard deviation, the number of seeds if not all; "–" where nothing is stored."""
        finals = self.finals(key)
        finite = finals[np.isfinite(finals)]
        if not len(finite):
            return "diverged" if len(finals) else "–"
        text = f"{finite.mean():.1f}" + (f" ± {finite.std(ddof=1):.1f}" if len(finite) > 1 else "")
        text += f" (n={len(finals)})" if len(finals) < len(self.seeds) else ""
        return text + (f", {len(finals) - len(finite)} diverged" if len(finite) < len(finals) else "")

    def draw(self, ax: Any, lines: Mapping[str, Sequence[Key]], x: Sequence[float], **labels: Any) -> None:
        """Means with bars of one standard deviation, a line for each of `lines` (label -> cells), side by side in x."""
        x, drawn = np.asarray(x, dtype=float), False
        for k, (label, keys) in enumerate(lines.items()):
            values = [v[np.isfinite(v)] for v in map(self.finals, keys)]
            if any(map(len, values)):
                at = x + 0.012 * np.ptp(x) * (k - (len(lines) - 1) / 2)
                mean = [v.mean() if len(v) else np.nan for v in values]  # a missing cell breaks the line
                sd = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
                style = {"linestyle": plots.LINES[k], "marker": plots.MARKERS[k], "linewidth": 1.6, "markersize": 4.5}
                ax.plot(at, mean, label=label, color=plots.COLOURS[k], **style)
                ax.errorbar(at, mean, sd, fmt="none", ecolor=plots.COLOURS[k], elinewidth=1.2)
                drawn = True
        if not drawn:
            ax.text(0.5, 0.5, MISSING, ha="center", transform=ax.transAxes)
        ax.set(xticks=x, **labels)


def beside(stored: Stored, caption: str, across: str = "column") -> pages.Html:
    """The source's value and ours in every cell of a table, its columns (or rows) side by side, and what stands in."""
    import pandas as pd

    by_column, lines = across == "column", []
    for head in stored.rows if by_column else stored.columns:
        line = {"method" if by_column else "setting": head}
        for name in stored.columns if by_column else stored.rows:
            key = (head, name) if by_column else (name, head)
            line[name] = f"{points(stored.source(key), plus='', digits=2)} | {stored.words(key)}"
        lines.append(line)
    whose: dict[str, dict[str, None]] = {}  # stand-in -> the data that it stands for
    for (_, column), (cell, _) in stored.cells.items():
        whose.setdefault(stand_in(cell), {})[column.split(",")[0]] = None
    words = (
        "; ".join(f"{', '.join(data)}: {name}" for name, data in whose.items()) if len(whose) > 1 else next(iter(whose))
    )
    words = f"Each entry: the source | ours ± sd over seeds. Stand-ins for the source's data: {words}."
    missing = sum(not len(stored.finals(key)) for key in stored.cells)
    words += f" {missing} of {len(stored.cells)} cells are {MISSING} (–)." if missing else ""
    return noted(pages.table(pd.DataFrame(lines), caption), words)


def leads(items: Iterable[tuple[str, Stored, Sequence[str], str, Sequence[str]]], caption: str | None) -> pages.Html:
    """How far a method is ahead of its best rival: items `(label, stored, columns, method, rivals)`.

    A table with a line per column, unless `caption` is None, and for each item a sentence that counts.  The best rival
    is the one with the highest mean, so that chance favours it.  A column that lacks a method is not counted.
    """
    import pandas as pd

    lines, sentences = [], []
    for label, stored, columns, method, rivals in items:
        ours, theirs = [], []
        for column in columns:
            means = {row: np.nanmean(v) for row in rivals if np.isfinite(v := stored.finals((row, column))).any()}
            best = max(means, key=means.get) if len(means) == len(rivals) else "–"
            gap, half = stored.gap((method, column), (best, column)) if best in means else (math.nan, math.nan)
            printed = {row: stored.source((row, column)) for row in rivals}
            said = stored.source((method, column)) - np.max(list(printed.values()))  # NaN where one is not printed
            ours += [(gap, told(gap, half))] if not math.isnan(gap) else []
            theirs += [said] if not math.isnan(said) else []
            line = {"where": label, "column": column, "best rival": best, "lead": points(gap, half)}
            by = "–" if math.isnan(said) else f"{max(printed, key=printed.get)} {points(said, digits=2)}"
            lines.append(line | {"told": told(gap, half), "in the source": by})
        kinds = [kind for _, kind in ours]
        ahead = sum(gap > 0 for gap, _ in ours)
        text = (
            f"{label}: the highest mean in {ahead} of {len(ours)} columns; its lead over the best rival is told apart "
        )
        text += f"from 0 in {kinds.count('higher')}, its lag in {kinds.count('lower')}."
        text += f" In the source it is ahead in {sum(v > 0 for v in theirs)} of {len(theirs)}." if theirs else ""
        sentences.append(text if ours else f"{label}: {MISSING}.")
    table = pages.Html("", "") if caption is None else pages.table(pd.DataFrame(lines), caption)
    return noted(table, *sentences)


def steps(items: Iterable[tuple[str, str, Stored, Key, Key]], caption: str) -> pages.Html:
    """Paired differences as a table and a sentence: items `(where, words, stored, from, to)`, `to` minus `from`."""
    import pandas as pd

    lines = []
    for where, words, stored, start, end in items:
        gap, half = stored.gap(end, start)
        line = {"where": where, "step": words, "difference": points(gap, half), "told": told(gap, half)}
        lines.append(line | {"source": points(stored.source(end) - stored.source(start), digits=2)})
    apart = [f"{r['where']}, {r['step']}: {r['difference']}" for r in lines if r["told"] in ("higher", "lower")]
    known = sum(line["told"] != MISSING for line in lines)
    words = f"{len(apart)} of {known} steps that are computed are told apart from zero"
    return noted(pages.table(pd.DataFrame(lines), caption), f"{words}{': ' if apart else ''}{'; '.join(apart)}.")


def told(gap: float, half: float) -> str:
    """What an interval gap ± half says about the sign of the gap."""
    if math.isnan(half):
        return MISSING if math.isnan(gap) else "too few seeds"
    return "not told apart" if abs(gap) <= half else ("higher" if gap > 0 else "lower")


def points(value: float, half: float = math.nan, plus: str = "+", digits: int = 1) -> str:
    """A number, and the half-width of its interval where there is one, as text."""
    text = "–" if math.isnan(value) else f"{value:{plus}.{digits}f}"
    return text if math.isnan(half) else f"{text} ± {half:.{digits}f}"


def stand_in(cell: Cell) -> str:
    """The data and the network that a cell was computed with, in words."""
    data, model = (cell.spec["federation"][what] for what in ("source", "model"))
    if not isinstance(data, str):  # a function of data.domains and its arguments
        data = f"{' + '.join(data[1]['train_on'])} {data[0].split('_')[0]}s"
    return f"{data}, {model}".replace("_", " ")


def noted(shown: pages.Html, *sentences: str) -> pages.Html:
    """Something shown, with sentences below it."""
    below = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return pages.Html(f"{shown.html}\n{below}", "\n".join(filter(None, [shown.text, *sentences])))


def origin(*parts: Stored) -> pages.Html:
    """One line under stored results: how many cells, of which data, with what settings, and where they come from."""
    cells = [cell for part in parts for cell, _ in part.cells.values()]
    runs = [run for part in parts for _, r in part.cells.values() if r for s, run in r.runs.items() if s in part.seeds]
    whole = sum(len(part.finals(key)) == len(part.seeds) for part in parts for key in part.cells)

    def each(values: Iterable[Any]) -> str:
        return ", ".join(sorted({f"{v:g}" if isinstance(v, float) else str(v) for v in values})) or "–"

    told_of = ("cohort", "rounds", "local_epochs", "batch_size", "lr_decay", "momentum", "weight_decay")
    grids = [cell.spec["tune"]["grid"] for cell in cells if "tune" in cell.spec]
    tried = each(setting["run"]["lr"] for grid in grids for setting in grid)
    return pages.setting(
        cells=f"{whole} of {len(cells)} computed",
        stand_ins=" / ".join(dict.fromkeys(map(stand_in, cells))),
        clients=each(cell.spec["federation"]["clients"] for cell in cells),
        **{what: each(cell.spec["run"].get(what, 0) for cell in cells) for what in told_of},
        lr=f"best of {tried} on a seed of its own" if grids else each(cell.spec["run"]["lr"] for cell in cells),
        seeds=each(s for part in parts for s in part.seeds),
        device=each(run["device"] for run in runs),
        computed_at=f"version {each(run['version'] for run in runs)}, commit {each(run['commit'] for run in runs)}",
        timed="the runs, without tuning",
        seconds=sum(run["seconds"] for run in runs),
    )


def computed(
    name: str,
    profile: str,
    plan: Mapping[str, Any],
    compute: Callable[[], Any],
    *,
    again: bool = False,
    root: Path | None = None,
) -> tuple[Any, str]:
    """What `compute()` gives for `plan`, read where it is stored, and a few words on where it comes from.

    For training that a page rests on but does not repeat: searches over learning rates, and unstable settings, where a
    run is one draw on its processor. `results/PROFILE/NAME.json` is read if it was made for the same `plan`; otherwise
    `compute` is called, and with `again` its result is stored there, with the plan and its provenance. Plan and result
    consist of numbers, texts, lists and mappings with texts as keys. root: the results folder, by default the
    project's.
    """
    file = (root or results()) / profile / f"{name}.json"
    plan = json.loads(json.dumps(plan))  # tuples become lists, as they are read
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not again and found.get("plan") == plan:
        made = found["provenance"]
        return found["result"], f"stored runs ({made['device']}, torch {made['torch']}, fedcore {made['version']})"
    began = time.perf_counter()
    result = json.loads(json.dumps(compute()))
    if again:
        made = {"seconds": round(time.perf_counter() - began, 1), **provenance(None)}
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file) as f:
            f.write((json.dumps({"plan": plan, "provenance": made, "result": result}, indent=1) + "\n").encode())
    return result, "computed with this page"
