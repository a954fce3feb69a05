"""How stored results are shown: tables as their source prints them, sweeps, figures, provenance.

Numbers and verdicts are `overview`'s.  What is missing is called so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from .. import pages, plots
from . import overview
from .batch import Place, results
from .cells import Cell, Result
from .claims import Judgement, confidence, every, judged, ours, strongest
from .claims import matrix as claim_lines
from .findings import DOCUMENTS
from .judge import BETTER, EQUAL, OPEN, WORSE
from .overview import MISSING, Key, Stored
from .table import PROFILES, Table, get

MARKS = {BETTER: "\u2713", WORSE: "\u2717", EQUAL: "=", OPEN: "~"}


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
        return f"{ours}{theirs} {MARKS.get(line['verdict'], '')}".strip()

    entries = tidy.assign(entry=[entry(line) for line in tidy.to_dict("records")])
    rows, columns = (list(dict.fromkeys(tidy[name])) for name in ("row", "column"))
    out = entries.pivot(index="row", columns="column", values="entry").reindex(index=rows, columns=columns)
    return out.fillna("\u2013").rename_axis(index=None, columns=None)


def drawing(table: Table, place: Place, seeds: Sequence[int] | None = None, caption: str | None = None) -> Any:
    """A figure from its cells, mean and one standard deviation over the seeds; None where nothing was run.

    With `table.axis` "round", a panel for each column shows the recorded curves.  Else the final values stand over the
    columns, a panel for each text before their last comma.  Shown through `fc.show`.
    """
    from ..widgets import show

    panels: dict[str, dict[str, dict[Any, list[float]]]] = {}  # panel -> row -> tick -> a value for each seed
    finals: dict[tuple[str, str], list[float]] = {}
    for cell, result in overview.stored_cells(table, place).values():
        asked = cell.reporting(seeds)
        if result is None or any(seed not in result.runs for seed in asked):
            continue
        runs = result.runs
        panel, _, tick = (cell.column, "", "") if table.axis == "round" else cell.column.rpartition(", ")
        tick = tick.removeprefix("rho=")
        points = panels.setdefault(panel, {}).setdefault(cell.row, {})
        for run in (runs[seed] for seed in asked):
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
        most = max(len(values) for points in lines.values() for values in points.values())
        series = {row: np.full((most, len(at)), math.nan) for row in rows}  # every method keeps its colour
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


def result(name: str, root: Path | None = None, *, pictures: bool = True) -> pages.Html:
    """What is stored of a table or figure, in every profile, the one nearest to the document first.

    root: the results folder, by default the project's.  pictures: False leaves figures out.  A profile without results
    is left out; a table without any says that it is not run yet.  Raises KeyError for an unknown name.
    """
    table, root = get(name), root or results()
    parts = []
    for profile in reversed(PROFILES):
        place = Place(root, profile, table.drawn_from or name)
        if profile not in table.captions or not place.folder.exists():
            continue
        words = f"{name}, {profile}: {table.title}. {table.captions[profile]}"
        if not table.figure:
            tidy = overview.frame(table, place)
            parts += [pages.table(grid(table, tidy), words)] if tidy["n"].any() else []
        elif pictures and (picture := drawing(table, place, caption=words)):
            parts.append(pages.Html(picture.html(), f"{name}\n{picture!r}"))
    return together(parts or [pages.setting(not_run_yet=name)])


def together(parts: Sequence[pages.Html]) -> pages.Html:
    """Several things shown, one below the other."""
    return pages.Html("\n".join(p.html for p in parts), "\n\n".join(p.text for p in parts))


def matrix(document: str, root: Path | None = None) -> pages.Html:
    """The central claims of a document with their verdicts, which a reader can sort and filter."""
    chosen = [claim for claim in every() if claim.document == document]
    return pages.filtered(
        claim_lines(chosen, root or results()), f"Claims: {DOCUMENTS[document]} ({document})", ["verdict"]
    )


def box(names: Sequence[str], root: Path | None = None, setting: str = "") -> pages.Html:
    """The claim box of a chapter: central claims by their names, judged from the stored results.

    Raises KeyError for a name that no claim has.
    """
    by_name = {claim.name: claim for claim in every()}
    lines = []
    for claim in (by_name[name] for name in names):
        best = strongest(found := judged(claim, root or results()))
        runs = "; ".join(f"{j.profile}: {ours(j)}" for j in found) or MISSING
        measured = claim.settled[1] if claim.settled else runs
        verdict = best.verdict if best and best.verdict in pages.VERDICTS else pages.VERDICTS[-1]
        source = f"{DOCUMENTS[claim.document]}, {claim.place},"
        test = claim.settled[2] if claim.settled else None
        lines.append(pages.Claim(source, claim.text, f"{measured} ({confidence(best)})", verdict, test))
    return pages.claims(lines, setting=setting)


def forest(judgements: Sequence[Judgement], caption: str) -> Any:
    """Gaps in accuracy with their 95 % intervals, a line a question, filled where decided; a cross where the document
    prints its own gap on the same data.  None where no question is answered."""
    from ..widgets import show

    judgements = [j for j in judgements if j.answers and get(j.claim.table).unit != "cosine"]
    lines = [(j, question, answer) for j in judgements for question, answer in j.answers.items()]
    if not lines:
        return None
    figure, ax = plots.figure(width=7.0, height=0.9 + 0.24 * len(lines))
    for k, (j, question, answer) in enumerate(lines):
        c, colour = answer.comparison, plots.COLOURS[judgements.index(j) % 2]
        ax.errorbar(c.gap, k, xerr=c.half, fmt="o", color=colour, mfc=colour if answer.word != OPEN else "white")
        ax.plot(j.printed.get(question, math.nan), k, "x", color="#222222")
    labels = [f"{row} − {base}, {column}" for _, (row, base, column), _ in lines]
    ax.axvline(0, color="#8a8a8a", linewidth=1)
    ax.set_yticks(range(len(lines)), labels, fontsize=9)
    ax.invert_yaxis()
    ax.set_xlabel("gap in points of accuracy")
    decided = sum(answer.word != OPEN for *_, answer in lines)
    alt = f"{decided} of {len(lines)} comparisons are decided; each is a point with its 95 % interval beside zero"
    return show(figure, {"comparisons": len(lines), "decided": decided}, alt=alt, caption=caption)


# --- for chapters ---


def words(stored: Stored, key: Key) -> str:
    """A cell as text: mean ± standard deviation, the number of seeds if not all; "–" where nothing is stored."""
    finals = stored.finals(key)
    finite = finals[np.isfinite(finals)]
    if not len(finite):
        return "diverged" if len(finals) else "–"
    text = f"{finite.mean():.1f}" + (f" ± {finite.std(ddof=1):.1f}" if len(finite) > 1 else "")
    text += f" (n={len(finals)})" if len(finals) < len(stored.seeds) else ""
    return text + (f", {len(finals) - len(finite)} diverged" if len(finite) < len(finals) else "")


def sweep(stored: Stored, ax: Any, lines: Mapping[str, Sequence[Key]], x: Sequence[float], **labels: Any) -> None:
    """Means with bars of one standard deviation, a line for each of `lines` (label -> cells), side by side in x.

    labels: more for `ax.set`.
    """
    x, drawn = np.asarray(x, dtype=float), False
    for k, (label, keys) in enumerate(lines.items()):
        values = [v[np.isfinite(v)] for v in map(stored.finals, keys)]
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
            line[name] = f"{points(stored.source(key), plus='', digits=2)} | {words(stored, key)}"
        lines.append(line)
    whose: dict[str, dict[str, None]] = {}  # stand-in -> the data that it stands for
    for (_, column), (cell, _) in stored.cells.items():
        whose.setdefault(stand_in(cell), {})[column.split(",")[0]] = None
    names = (
        "; ".join(f"{', '.join(data)}: {name}" for name, data in whose.items()) if len(whose) > 1 else next(iter(whose))
    )
    note = f"Each entry: the source | ours ± sd over seeds. Stand-ins for the source's data: {names}."
    missing = sum(not len(stored.finals(key)) for key in stored.cells)
    note += f" {missing} of {len(stored.cells)} cells are {MISSING} (–)." if missing else ""
    return noted(pages.table(pd.DataFrame(lines), caption), note)


def leads(items: Iterable[tuple[str, Stored, Sequence[str], str, Sequence[str]]], caption: str | None) -> pages.Html:
    """How far a method is ahead of its best rival (`overview.leads`): items `(label, stored, columns, method, rivals)`.

    A table with a line per column, unless `caption` is None, and for each item a sentence that counts.  A column that
    lacks a method is not counted.
    """
    import pandas as pd

    lines, sentences = [], []
    for label, stored, columns, method, rivals in items:
        found = list(overview.leads(stored, columns, method, rivals))
        for lead in found:
            by = f"{lead.printed_rival} {points(lead.printed, digits=2)}" if lead.printed_rival else "–"
            line = {"where": label, "column": lead.column, "best rival": lead.rival or "–"}
            line |= {"lead": points(lead.gap, lead.half), "told": overview.sign(lead.gap, lead.half)}
            lines.append(line | {"in the source": by})
        ours = [lead for lead in found if not math.isnan(lead.gap)]
        theirs = [lead.printed for lead in found if not math.isnan(lead.printed)]
        signs = [overview.sign(lead.gap, lead.half) for lead in ours]
        text = (
            f"{label}: the highest mean in {sum(lead.gap > 0 for lead in ours)} of {len(ours)} columns; its lead over "
            f"the best rival is told apart from 0 in {signs.count('higher')}, its lag in {signs.count('lower')}."
        )
        text += f" In the source it is ahead in {sum(v > 0 for v in theirs)} of {len(theirs)}." if theirs else ""
        sentences.append(text if ours else f"{label}: {MISSING}.")
    table = pages.Html("", "") if caption is None else pages.table(pd.DataFrame(lines), caption)
    return noted(table, *sentences)


def steps(items: Iterable[tuple[str, str, Stored, Key, Key]], caption: str) -> pages.Html:
    """Paired differences as a table and a sentence: items `(where, step, stored, from, to)`, `to` minus `from`."""
    import pandas as pd

    lines = []
    for where, step, stored, start, end in items:
        gap, half = stored.gap(end, start)
        line = {"where": where, "step": step, "difference": points(gap, half), "told": overview.sign(gap, half)}
        lines.append(line | {"source": points(stored.source(end) - stored.source(start), digits=2)})
    apart = [f"{r['where']}, {r['step']}: {r['difference']}" for r in lines if r["told"] in ("higher", "lower")]
    known = sum(line["told"] != MISSING for line in lines)
    counts = f"{len(apart)} of {known} steps that are computed are told apart from zero"
    return noted(pages.table(pd.DataFrame(lines), caption), f"{counts}{': ' if apart else ''}{'; '.join(apart)}.")


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

    settings = ("cohort", "rounds", "local_epochs", "batch_size", "lr_decay", "momentum", "weight_decay")
    grids = [cell.spec["tune"]["grid"] for cell in cells if "tune" in cell.spec]
    tried = each(setting["run"]["lr"] for grid in grids for setting in grid)
    return pages.setting(
        cells=f"{whole} of {len(cells)} computed",
        stand_ins=" / ".join(dict.fromkeys(map(stand_in, cells))),
        clients=each(cell.spec["federation"]["clients"] for cell in cells),
        **{what: each(cell.spec["run"].get(what, 0) for cell in cells) for what in settings},
        lr=f"best of {tried} on a seed of its own" if grids else each(cell.spec["run"]["lr"] for cell in cells),
        seeds=each(s for part in parts for s in part.seeds),
        device=each(run["device"] for run in runs),
        computed_at=f"version {each(run['version'] for run in runs)}, commit {each(run['commit'] for run in runs)}",
        timed="the runs, without tuning",
        seconds=sum(run["seconds"] for run in runs),
        today=" ".join(against(parts)),
    )


def against(parts: Sequence[Stored]) -> list[str]:
    """What speaks against stored results, a sentence each: that they are older than the code, or superseded and why."""
    kept = [(result, part.seeds) for part in parts for _, result in part.cells.values() if result]
    older, runs = sum(len(r.outdated(s)) for r, s in kept), sum(len(r.finals(s)) for r, s in kept)
    reasons = dict.fromkeys(filter(None, (result.superseded(seeds) for result, seeds in kept)))
    return [f"{older} of {runs} runs are older than the code."] * bool(older) + [f"Superseded: {r}." for r in reasons]


# --- one cell, for its notebook -----------------------------------------------------------------------------------


def summary(result: Result, seeds: Sequence[int], name: str) -> pages.Html:
    """The cell's final values by seed, and how they were obtained."""
    finals = {seed: value for seed, value in zip(sorted(result.runs), result.finals(), strict=True) if seed in seeds}
    last = result.runs[max(finals)]
    facts = {f"seed {seed}": "diverged" if math.isnan(v) else f"{v:.4g}" for seed, v in finals.items()}
    if result.tuned:
        facts["tuned to"] = str(result.tuned["setting"])
    where = {k: last[k] for k in ("device", "threads", "torch", "version", "commit")}
    seconds = sum(result.runs[seed]["seconds"] for seed in finals)
    return pages.setting(cell=name, **facts, **where, seconds=seconds)


def curves(result: Result, seeds: Sequence[int]) -> Any:
    """The recorded curve of every seed (shown through `fc.show`); None where the study records none."""
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
