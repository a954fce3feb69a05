"""Display of stored results: tables in their source's layout, figures, and claims with their verdicts.

`verdicts.overview` computes the numbers and verdicts.  Missing results are marked as missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedcore.history import over_clients

from .. import pages
from ..documents.definitions import PROFILES, Cell, Claim, Table, documents, get, tables
from ..pictures import plots, widgets
from ..pictures.styles import looks
from ..results.batch import ResultFolder, results
from ..results.cells import Result
from ..verdicts import judge, overview, performance
from ..verdicts.claims import (
    KINDS,
    Judgement,
    chapter,
    compared,
    confidence,
    contradiction,
    every,
    judged,
    label,
    ours,
    printed_gaps,
    strongest,
)
from ..verdicts.claims import matrix as claim_lines
from ..verdicts.findings import DOCUMENTS
from ..verdicts.judge import BETTER, EQUAL, OPEN, WORSE, Answer
from ..verdicts.overview import MISSING, NOT_RUN

MARKS = {BETTER: "\u2713", WORSE: "\u2717", EQUAL: "=", OPEN: "~"}
ENDS = dict(zip(
    (*KINDS, MISSING),
    ["hold", "hold in part", "hold in some comparisons", "do not hold", "are not testable here",
     "cannot be decided here", MISSING],
    strict=True,
))  # fmt: skip  # verdict of one claim -> of several
RESTS = {
    "proof": "proved or counted", "paper": "the document's setting", "desk": "larger data, scaled down",
    "quick": "small or synthetic data",
}  # fmt: skip
SIGNS = dict(zip((*KINDS, ""), ["✓", "(✓)", "✓?", "✗", "–", "?", "…"], strict=True))  # verdict -> sign
BARS = ("client", "skew")  # kinds of a figure that are drawn as bars
WIDEST = 15  # limit of the axis of gaps, in points of accuracy
LONGEST = 56  # characters of a label on one line; longer labels leave no room for the picture on a phone


def grid(table: Table, tidy: Any) -> Any:
    """A table in its source's layout (pandas.DataFrame of texts).  An entry has our mean and half its 95 % interval
    over seeds (Student's t), the source's value in brackets if it prints one, and the mark of the verdict (`MARKS`).

    If some runs diverged, the entry states their number, and the mean is over the other runs.
    """
    digits = 3 if table.unit in ("cosine", "millions") else 1

    def entry(line: Any) -> str:
        if not line["n"]:
            return "not run yet"
        ours = "diverged" if math.isnan(line["mean"]) else f"{line['mean']:.{digits}f}"
        spread = pages.half_width(line["sd"], line["n"] - line["diverged"])
        counted = spread == 0 or table.unit == "millions"
        ours += "" if math.isnan(spread) or counted else f" \u00b1 {spread:.{digits}f}"
        some = 0 < line["diverged"] < line["n"]
        ours += f", {line['diverged']} of {line['n']} diverged" if some else ""
        theirs = "" if math.isnan(line["source"]) else f" ({line['source']:.{digits}f})"
        return f"{ours}{theirs} {MARKS.get(line['verdict'], '')}".strip()

    entries = tidy.assign(entry=[entry(line) for line in tidy.to_dict("records")])
    rows, columns = (list(dict.fromkeys(tidy[name])) for name in ("row", "column"))
    out = entries.pivot(index="row", columns="column", values="entry").reindex(index=rows, columns=columns)
    return out.fillna("\u2013").rename_axis(index=None, columns=None)


def drawing(table: Table, place: ResultFolder, seeds: Sequence[int] | None = None, caption: str | None = None) -> Any:
    """A figure drawn from its cells through `fc.show`, with mean and one standard deviation over the seeds; None if no
    cell is complete.

    A panel for each column and each kind in `table.axis`, which joins kinds by "and".  "round": the recorded curves;
    "density": how often their values occur, over all rounds and seeds; "client": the last accuracy of each client.
    "distance of labels": neurons in conflict for pairs of clients, a panel for each length of training.  Otherwise the
    final values: the text of a column before its last comma names the panel, the rest is the tick on the axis.
    """
    if table.axis == "neuron":
        return _neurons(table, place, caption)
    stored, kinds = overview.stored_cells(table, place), table.axis.split(" and ")
    if table.beside:
        other = get(table.beside)
        stored |= overview.stored_cells(other, replace(place, table=other.drawn_from or other.name))
    panels: dict[tuple[str, str], dict[str, dict[Any, list[float]]]] = {}  # kind, title -> row -> tick -> values
    finals: dict[tuple[str, str], list[float]] = {}
    for cell, result in stored.values():
        asked = cell.reporting(seeds)
        if result is None or any(seed not in result.runs for seed in asked):
            continue
        for seed, kind in product(asked, kinds):
            title, row, points = _points(kind, cell, result.runs[seed])
            for at, value in points:
                panels.setdefault((kind, title), {}).setdefault(row, {}).setdefault(at, []).append(value)
            if kind == kinds[0]:
                told = result.finals([seed]) if kind == "round" else [value for _, value in points]
                finals.setdefault((title, row), []).extend(told)
    if not panels:
        return None
    rows = list(dict.fromkeys(row for lines in panels.values() for row in lines))
    wide = 4 if len(panels) == 8 else min(3, len(panels))
    tall = -(-len(panels) // wide)
    figure, axes = plots.figure(width=7.4 if wide > 1 else 6.4, height=1.2 + (2.4 if wide < 3 else 1.9) * tall,
                                ncols=wide, nrows=tall)  # fmt: skip
    drawn, rounds = list(np.atleast_1d(axes).flat), "round" if wide > 3 else "communication round"
    for k, (ax, ((kind, title), lines)) in enumerate(zip(drawn, panels.items(), strict=False)):
        lines = {row: lines.get(row, {}) for row in rows}  # all rows in all panels, for equal colours
        if k and kind == kinds[0] != "round" and table.unit != "as the column says":
            ax.sharey(drawn[0])
        if kind == "round":
            at = sorted({t for points in lines.values() for t in points})
            most = max(len(values) for points in lines.values() for values in points.values())
            series = {
                row: np.array([(points.get(t, []) + [math.nan] * most)[:most] for t in at]).T
                for row, points in lines.items()
            }
            plots.curves(ax, series, x=at, legend=False)
            for line in ax.lines if wide > 1 else ():
                line.set(linewidth=1.2, markersize=3.5)
        elif kind == "density":
            plots.density(ax, {row: points[""] for row, points in lines.items() if points})
        else:
            plots.grouped(ax, lines, bars=kind in BARS)
        ax.set_title(title, fontsize=10)
        if kind != kinds[0] or k >= len(panels) - wide:
            ax.set_xlabel({"round": rounds, "density": table.unit}.get(kind, kind))
        if kind != kinds[0] or k % wide == 0:
            ax.set_ylabel("density" if kind == "density" else table.unit)
    for ax in drawn[len(panels) :]:
        ax.set_visible(False)
    plots.legend(figure, rows, bars=all(kind in BARS for kind in kinds))
    shared = {title for (kind, title), lines in panels.items() if kind == kinds[0] and len(lines) == len(rows)}
    by_panel = len(finals) <= 12 or not shared  # means need all rows
    several = len({title for title, _ in finals})
    part = f"{len(shared)} of " * (len(shared) < several)
    over = f", mean of {part}{several} panels" if several > 1 else ""
    means: dict[str, list[float]] = {}
    for (title, row), values in finals.items():
        if by_panel or title in shared:
            name = f"{title} {row}".strip() if by_panel else row + over
            means.setdefault(name, []).extend(np.array(values)[np.isfinite(values)])
    numbers = {name: np.mean(values) if values else "diverged" for name, values in means.items()}
    titles = "; ".join(filter(None, (title for _, title in panels)))
    words = f"{table.title}: {len(panels)} panels ({titles}), one colour for each of {', '.join(rows)}"
    return widgets.show(figure, numbers, alt=words, caption=caption)


def _final(run: Mapping[str, Any]) -> float:
    return math.nan if run["final"] is None else run["final"]


def _points(kind: str, cell: Cell, run: Mapping[str, Any]) -> tuple[str, str, Sequence[tuple[Any, float]]]:
    """What a run adds to the panels of a kind (`drawing`): the panel's title, the row, and pairs (tick, value)."""
    if kind == "round":
        return cell.column, cell.row, run.get("history", ())
    if kind == "density":
        return "all rounds and seeds", cell.row, [("", value) for _, value in run["history"]]
    if kind == "client":
        known = {name.partition(" (")[0]: value for name, value in run.get("clients", {}).items()}
        if known and cell.row != "FedBN":  # whose server has no model
            known = {**known, "server": run["server"]}
        return "last round, by client", cell.row, list(known.items())
    if kind == "distance of labels":
        shares = [100 * np.mean(neurons) for neurons in run["conflicts"]]
        pairs = [(round(4 * apart) / 4, share) for apart, share in zip(run["apart"], shares, strict=True)]
        return cell.row.rpartition(", ")[2], cell.column, pairs
    title, _, tick = cell.column.rpartition(", ")
    return title, cell.row, [(tick.removeprefix("rho="), _final(run))]


def _neurons(table: Table, place: ResultFolder, caption: str | None) -> Any:
    """The first row of a table of `studies.probing.profiles` after the longest training, seed 0, a line of panels for
    each layer: mean activations by client, and for each pair of clients the neurons at which they conflict."""
    from matplotlib.colors import ListedColormap

    stored = [result for cell, result in overview.stored_cells(table, place).values() if result and 0 in result.runs]
    longest = max((result.spec["run"]["rounds"] for result in stored), default=0)
    runs = [result.runs[0] for result in stored if result.spec["run"]["rounds"] == longest]
    runs = runs[: len({cell.column for cell in table.cells(place.profile)})]
    if not runs:
        return None
    figure, axes = plots.figure(width=7.4, height=5.0, ncols=2, nrows=len(runs))
    numbers, shades = {}, ListedColormap(["#ffffff", plots.COLOURS[1]])
    for k, (run, (left, right)) in enumerate(zip(runs, np.atleast_2d(axes), strict=True), 1):
        h, against = np.array(run["activations"]), np.array(run["conflicts"])
        pairs = [f"{i}, {j}" for i, j in zip(*np.triu_indices(len(h), 1), strict=True)]
        every = {"xticklabels": h.shape[1] // 5}
        plots.heat(left, h, "activation", cmap="Blues", vmin=0, **every)
        plots.heat(right, against, cmap=shades, vmin=0, vmax=1, yticklabels=pairs, **every)
        left.set(title=f"layer {k}: mean activation", ylabel="client")
        right.set(title="in conflict", ylabel="pair")
        right.tick_params(axis="y", labelsize=7.5)
        numbers |= {f"layer {k}, neurons in conflict, of {h.shape[1]}": against.sum(1).mean()}
        numbers |= {f"layer {k}, cosine of activations": run["final"]}
    for ax in (left, right):
        ax.set_xlabel("neuron")
    words = f"{table.title}: {len(runs)} layers, mean activations by client and neurons in conflict by pair of clients"
    return widgets.show(figure, numbers, alt=words, caption=caption)


def result(name: str, root: Path | None = None, *, pictures: bool = True, title: str = "") -> pages.Html:
    """The stored results of a table or figure in every profile, beginning with the one nearest to the document.

    root: the results folder, by default the project's.  pictures: False leaves figures out.  title: what the caption
    says first, by default the table's title.  A profile without results
    is left out.  The caption names rows and columns without results, and a fold says how settings were tuned; a table
    without any results is marked as not run yet.  Raises KeyError for an unknown name.
    """
    table, root = get(name), root or results()
    parts, tuning = [], {}
    for profile in reversed(PROFILES):
        place = ResultFolder(root, profile, table.drawn_from or name)
        if profile not in table.captions or not place.folder.exists():
            continue
        tidy, waiting = _run_so_far(overview.frame(table, place))
        computed, tuned = table.caption(profile, set(tidy["column"]))
        words, said = f"{name}, {profile}: {title or table.title}. {computed}", legend(table, tidy)
        if not table.figure and len(tidy):
            parts.append(pages.table(grid(table, tidy), f"{words}{waiting}{said and f' {said}.'}"))
        elif table.figure and pictures and (picture := drawing(table, place, caption=words)):
            parts.append(pages.Html(picture.html(), f"{name}\n{picture!r}"))
        else:
            continue
        tuning[profile] = tuned or None
    if any(tuning.values()):
        parts.append(pages.folded("How settings were tuned (rules: How this book decides)", pages.setting(**tuning)))
    return together(parts or [pages.setting(not_run_yet=name)])


def _run_so_far(tidy: Any) -> tuple[Any, str]:
    """The rows and columns of a table with results, and a sentence that names the others."""
    run, waiting = tidy[tidy["n"] > 0], []
    for what in ("column", "row"):
        left = [name for name in dict.fromkeys(tidy[what]) if name not in set(run[what])]
        waiting += [f"{what}{'s' * (len(left) > 1)} {'; '.join(left)}"] if left else []
    shown = tidy[tidy["row"].isin(run["row"]) & tidy["column"].isin(run["column"])]
    return shown, f" Not run yet: {', and '.join(waiting)}." if waiting else ""


def legend(table: Table, tidy: Any) -> str:
    """The legend of a table's marks; "" if it has no marks."""
    marks = ", ".join(f"{mark} {word}" for word, mark in MARKS.items() if (tidy["verdict"] == word).any())
    return marks and f"{marks}: against {table.against}; all cells of the table are tested as one family (Holm's rule)"


def beside(name: str, column: str, words: Mapping[str, str], caption: str, root: Path | None = None) -> pages.Html:
    """Means over seeds of additional numbers that the runs of a column store, one line per row with results.

    words: the key of each number in a stored run -> its name on the page.  The profile is the one with this column.
    """
    import pandas as pd

    table, found = get(name), {}
    profile = next(p for p in PROFILES if column in {cell.column for cell in table.cells(p)})
    for (row, at), (_, stored) in overview.stored_cells(table, ResultFolder(root or results(), profile, name)).items():
        if at == column and stored and stored.runs:
            runs = [run for run in stored.runs.values() if run["final"] is not None]
            found[row] = {said: np.mean([run[k] for run in runs]) if runs else math.nan for k, said in words.items()}
    return pages.table(pd.DataFrame(found).T, caption, digits=3) if found else pages.setting(not_run_yet=name)


def by_client(
    name: str, column: str, owner: Any, caption: str, rows: Sequence[str] = (), root: Path | None = None
) -> pages.Html:
    """Accuracy in % by client in a column of profile quick: mean, standard deviation and worst tenth over the clients,
    each as the mean over the seeds, one line per row with results.

    owner: the client of each test image, `[images]`.  An image counts as in the column itself (`Result.correct`).
    rows: those to show; all without them.
    """
    import pandas as pd

    owner, found = np.asarray(owner), {}
    place = ResultFolder(root or results(), "quick", name)
    for (row, at), (_, stored) in overview.stored_cells(get(name), place).items():
        if at == column and stored and stored.runs and (not rows or row in rows):
            correct = 100 * stored.correct(sorted(stored.runs))
            clients = np.stack([correct[:, owner == one].mean(1) for one in np.unique(owner)], 1)
            over = pd.DataFrame([over_clients("", values, np.ones(len(values))) for values in clients]).mean()
            found[row] = {said: over[f"_{said.replace(' ', '_')}"] for said in ("mean", "spread", "worst tenth")}
    frame = pd.DataFrame(found).T.map("{:.1f}".format)
    return pages.table(frame, caption) if found else pages.setting(not_run_yet=name)


def rates(name: str, column: str, rows: Sequence[str], profile: str = "quick", root: Path | None = None) -> Any:
    """Validation accuracy against the learning rate in the short tuning runs, one line per row, at the best
    value of the method's own parameter.  A cross at the bottom marks a rate at which all runs diverged.  None if a row
    is not tuned yet."""
    table = get(name)
    stored = overview.stored_cells(table, ResultFolder(root or results(), profile, table.drawn_from or name))
    figure, ax = plots.figure()
    numbers: dict[str, float] = {}
    tried: set[float] = set()
    for row, look in zip(rows, looks(rows), strict=True):
        _, result = stored[row, column]
        if not (result and result.searches):
            return None
        trials = result.searches[0]["tried"]
        short = min(trial["rounds"] or math.inf for trial in trials)
        best: dict[float, float] = {}
        for trial in trials:
            if (trial["rounds"] or math.inf) == short:
                lr, score = trial["setting"]["run"]["lr"], trial["score"]
                best[lr] = max(best.get(lr, -math.inf), -math.inf if score is None else score)
        lrs = sorted(best)
        tried |= set(lrs)
        values = [best[lr] if math.isfinite(best[lr]) else math.nan for lr in lrs]
        ax.plot(lrs, values, color=look.colour, marker=look.marker, linestyle=look.line, label=row)
        lost = [lr for lr in lrs if not math.isfinite(best[lr])]
        ax.plot(lost, [0] * len(lost), "x", color=look.colour)
        numbers[f"{row}, best in short runs"] = lrs[int(np.nanargmax(values))]
    ax.set(xscale="log", xlabel="local learning rate", ylabel="validation accuracy (%)", ylim=(-3, 100), title=column)
    ax.set_xticks(sorted(tried), [f"{lr:g}" for lr in sorted(tried)])
    ax.minorticks_off()
    ax.legend()
    return widgets.show(
        figure,
        numbers,
        caption=f"Which rate suits which row: short tuning runs ({profile}). A cross: all runs diverged.",
    )


def together(parts: Sequence[pages.Html]) -> pages.Html:
    """Several parts, one below the other."""
    return pages.Html("\n".join(p.html for p in parts), "\n\n".join(p.text for p in parts))


def glance(root: Path | None = None) -> pages.Html:
    """The documents' central claims at a glance: one line per document, one sign per claim for its verdict.

    The frame of a sign shows the kind of evidence; its tooltip has the claim, and it links to the claim's line in
    `evidence`.
    """
    rows, lines = [], []
    for document, name in DOCUMENTS.items():
        chosen = [claim for claim in every() if claim.document == document and not claim.own]
        found = [(claim, strongest(judged(claim, root or results()))) for claim in chosen]
        found.sort(key=lambda pair: [*SIGNS].index(pair[1].kind if pair[1] else ""))
        entries = []
        for claim, best in found:
            verdict, said, rests = (best.verdict, best.said, best.profile or "proof") if best else ("", MISSING, "")
            words = escape(f"{claim.text}: {said} ({confidence(best)})")
            entries.append(
                f'<a href="#claim-{claim.name}" data-verdict="{verdict}" data-rests="{rests}" title="{words}" '
                f'aria-label="{words}">{SIGNS[best.kind if best else ""]}</a>'
            )
            lines.append(f"{name} | {claim.text} | {said} | {confidence(best)}")
        rows.append(f'<tr><th scope="row">{escape(name)}</th><td>{" ".join(entries)}</td></tr>')
    signs = ", ".join(f"{sign} {verdict or MISSING}" for verdict, sign in SIGNS.items())
    rests = " ".join(f'<span data-rests="{kind}">{words}</span>' for kind, words in RESTS.items())
    caption = f"One sign for each claim: {signs}. The frame says what a verdict rests on: "
    return pages.Html(
        '<div class="fc-glance tex2jax_process"><table class="fc-table">'
        f"<caption>{escape(caption)}{rests}. Point at a sign to read the claim; a click opens its line.</caption>"
        f"<tbody>{chr(10).join(rows)}</tbody></table></div>",
        "\n".join(lines),
    )


def headline(root: Path | None = None) -> pages.Html:
    """How many claims have each verdict by each kind of evidence, as a table, and in words the counts of answers and
    the gaps that could have been detected."""
    best = [(claim, strongest(judged(claim, root or results()))) for claim in every() if not claim.own]
    own = sum(claim.own for claim in every())
    answers = [(claim, answer) for claim, found in best if found for answer in found.answers.values()]
    words = [(claim, word) for claim, found in best if found for word in found.words().values()]
    one = Counter(judge.verdict([word], claim.expected) for claim, word in words)
    smallest = [a.detectable for claim, a in answers if compared(claim) == "images"]
    printed = {(claim.table, asked): abs(gap) for claim, _ in best for asked, gap in printed_gaps(claim).items()}
    first = f"Of {len(answers)} questions put to runs, {one['holds']} came out as the document says, "
    first += f"{one['does not hold']} contradict it, and "
    first += f"{one['cannot be decided here']} remain open."
    power = f" The documents print {len(printed)} gaps, with a median of {np.median([*printed.values()]):.1f} points"
    if smallest:
        power += f". {len(smallest)} of our questions compare accuracies, and half of these could only detect gaps of "
        power += f"{np.nanmedian(smallest):.1f} points or more"
    said = f"{first}{power}." + f" We added {own} claims, which are not counted." * bool(own)
    caption = f"The {len(best)} central claims by verdict, and by the strongest evidence for it"
    return together([pages.table(_by_evidence(best), caption), pages.Html(f'<p class="fc-said">{said}</p>', said)])


def _by_evidence(best: Sequence[tuple[Claim, Judgement | None]]) -> Any:
    """The number of claims with each verdict (row) that rest on each kind of evidence (column; pandas.DataFrame)."""
    import pandas as pd

    counts = Counter((found.kind, found.profile or "proof") for _, found in best if found)
    table = pd.DataFrame({rests: [counts[kind, rests] for kind in KINDS] for rests in RESTS}, index=[*KINDS])
    table["none yet"] = 0
    waiting = [claim for claim, found in best if not found]
    large = sum({*claim.questions} == {"paper"} for claim in waiting)
    for name, number in ((MISSING, large), (NOT_RUN, len(waiting) - large)):
        table.loc[name] = [0] * len(RESTS) + [number]
    table["all"] = table.sum(axis=1)
    table = table.loc[table["all"] > 0, table.any()].rename(columns=RESTS)
    return pd.concat([table, table.sum().to_frame("all").T])


def contradictions(root: Path | None = None) -> pages.Html:
    """The claims about which runs of two profiles contradict each other significantly, one line each, with what
    differs; a line links to the claim's own in `evidence`."""
    found = {claim.name: contradiction(claim, judged(claim, root or results())) for claim in every()}
    said = {name: words for name, words in found.items() if words}
    number = f"{len(said)} claim{'s' * (len(said) != 1)}" if said else "no claim"
    first = f"Small runs and larger ones contradict each other significantly in {number}"
    first += "; the verdict is that of the larger:" if said else "."
    return _listed(first, {claim.name: f"{claim.text}: {said[claim.name]}" for claim in every() if claim.name in said})


def _listed(first: str, lines: Mapping[str, str]) -> pages.Html:
    """A sentence, and a list below it; each line, under the name of a claim, links to the claim's own in `evidence`."""
    items = "".join(f'<li><a href="#claim-{name}">{escape(line)}</a></li>' for name, line in lines.items())
    html = f'<div class="fc-said tex2jax_process"><p>{first}</p><ul>{items}</ul></div>'
    return pages.Html(html, "\n".join([first, *lines.values()]))


def profile(root: Path | None = None) -> Any:
    """The performance profile of the desk cells (`performance.ratios`), by rounds, gradients and bytes.

    None if no row was run in enough settings.
    """
    found = {measure: performance.ratios(root or results(), measure=measure) for measure in performance.MEASURES}
    names = sorted({name for rows in found.values() for name in rows})
    if not names:
        return None
    figure, axes = plots.figure(7.0, 3.4, ncols=3)
    factors = np.geomspace(1, 8, 100)
    for ax, (measure, rows) in zip(axes, found.items(), strict=True):
        for name, look in zip(names, looks(names), strict=True):
            if name in rows:
                shares = (rows[name] <= factors[:, None] + 1e-9).mean(1)
                ax.step(factors, shares, where="post", label=name, color=look.colour, linestyle=look.line)
        ax.set(xscale="log", ylim=(-0.03, 1.03), xlabel=f"times the fewest {measure}")
        ax.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        ax.minorticks_off()
    axes[0].set_ylabel("share of settings")
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, **plots.LEGEND)
    counts = {f"{name}, settings": len(found["rounds"].get(name, ())) for name in names}
    said = ", ".join(f"{name} in {(rows <= 2).mean():.0%} of {len(rows)}" for name, rows in found["rounds"].items())
    caption = (
        f"The cost to reach {performance.SOLVED:.0%} of the highest late accuracy, desk cells. Vertical: the share of "
        "a method's settings in which its cost is at most x times that of the cheapest method (horizontal)."
    )
    return widgets.show(figure, counts, alt=f"With at most twice the fewest rounds: {said}", caption=caption)


def _ways(counts: Mapping[str, int]) -> str:
    """The number of claims with each verdict, and of those without one, in words."""
    return ", ".join(f"{counts[word]} {word if counts[word] == 1 else ENDS[word]}" for word in ENDS if counts[word])


def ended(root: Path | None = None) -> pages.Html:
    """The claim box of all documents together: the counts of verdicts by document, and the claims that hold by a
    proof, by a count, or on larger data."""
    chosen = [(claim, strongest(judged(claim, root or results()))) for claim in every() if not claim.own]
    found: dict[str, Counter] = {claim.document: Counter() for claim, _ in chosen}
    for claim, best in chosen:
        found[claim.document][best.kind if best else MISSING] += 1
    counts = [f"{DOCUMENTS[document]}: {_ways(verdicts)}" for document, verdicts in found.items()]
    total = sum(found.values(), Counter())
    words = [word for word in KINDS if total[word]] or [pages.VERDICTS[-1]]
    said = words[0] if len(words) == 1 else f"{total['holds']} of {len(chosen)} hold"
    verdict = said if said in pages.VERDICTS else "holds in part"
    one = pages.Claim("The documents'", f"{len(chosen)} central claims", "; ".join(counts), verdict, said=said)
    box = pages.claims([one], setting="the strongest evidence for each claim")
    sure = [claim for claim, best in chosen if best and best.kind == "holds" and best.profile != "quick"]
    lines = {claim.name: f"{DOCUMENTS[claim.document]}, {claim.place}: {claim.text}" for claim in sure}
    return together(
        [box, _listed("Claims that hold by a proof, by a count, or on larger data:", lines)][: 1 + bool(sure)]
    )


def matrix(document: str, root: Path | None = None) -> pages.Html:
    """The central claims of a document as a sortable and filterable table: verdict, evidence, and where to look it
    up."""
    chosen = [claim for claim in every() if claim.document == document]
    lines = claim_lines(chosen, root or results())
    lines["verdict"] = lines["verdict"].replace("", MISSING)
    lines["claim"] = [pages.Html(f'<span id="claim-{c.name}">{escape(c.text)}</span>', c.text) for c in chosen]
    lines["look up"] = [_lookup(claim) for claim in chosen]
    words = (
        f"Claims: {DOCUMENTS[document]} ({document}). Detectable: the smallest gap that an experiment with as many "
        "runs would find with probability 0.8. Ahead in: every run of the side named first is paired with every run "
        "of the other; the share of these pairs in which the first is better, near 0% where a claim says that it is "
        "worse. Look up: chapter, file of the definition, and test or table. python -m fedcore.reproduce TABLE makes "
        "a table; its results stand in results/PROFILE/TABLE."
    )
    return pages.filtered(lines, words, ["verdict"])


def _lookup(claim: Claim) -> pages.Html:
    """A claim's chapter, the file that defines it, and its test or the table that decides it."""
    module = next(m.__name__ for m in documents() if claim in getattr(m, "CLAIMS", ()))
    tables = dict.fromkeys([claim.table, *claim.tables.values()])
    decides = claim.settled[2].rpartition("/")[2] if claim.settled else ", ".join(tables)
    places = [module.rpartition(".")[2] + ".py", decides]
    name = chapter(claim).replace("_", " ")
    codes = "; ".join(f"<code>{escape(place)}</code>" for place in places)
    return pages.Html(f'<a href="{chapter(claim)}.html">{name}</a>; {codes}', "; ".join([name, *places]))


def evidence(document: str, root: Path | None = None) -> pages.Html:
    """All claims of a document, folded: the table of `matrix`, and the gaps of its questions drawn by `forest`."""
    chosen = [claim.name for claim in every() if claim.document == document]
    drawn = gaps(chosen, "Filled points are decided, open ones are not. Crosses: the document's own gaps.", root)
    name = DOCUMENTS[document]
    own = sum(claim.own for claim in every() if claim.name in chosen)
    number = f"{len(chosen) - own} claims" + f" and {own} of ours" * bool(own)
    words = f"The {name}, {number}: what was printed, what we measured, and where to look it up"
    return pages.folded(words, *filter(None, [matrix(document, root), drawn]))


LARGE = ("feddse-figure3.2", "feddse-figure3.3")  # a page of all documents has no room for each neuron


def whole(document: str, root: Path | None = None, *, pictures: bool = True) -> pages.Html:
    """The tables and figures of a document as `result` shows them, folded.

    Curves by round that are drawn from a table's cells, and `LARGE` pictures, are only named, because a chapter draws
    them.
    """
    own = [table for table in tables().values() if table.document == document]
    curves = [table.name for table in own if (table.drawn_from and table.axis == "round") or table.name in LARGE]
    shown = [table.name for table in own if table.name not in {*curves, *(table.beside for table in own)}]
    parts = [result(name, root, pictures=pictures) for name in shown]
    parts += [pages.setting(curves_in_the_chapter=", ".join(curves))] if curves else []
    count = "one figure" if len(own) == 1 else f"{len(own)} tables and figures"
    return pages.folded(f"The {DOCUMENTS[document]}: {count}, cell by cell", *parts)


def _named(names: Sequence[str]) -> list[Claim]:
    """The claims with these names, or of the families with these names."""
    found = {name: [claim for claim in every() if name in (claim.name, claim.family)] for name in names}
    if unknown := [name for name in names if not found[name]]:
        raise KeyError(", ".join(unknown))
    return [claim for name in names for claim in found[name]]


def box(names: Sequence[str], root: Path | None = None, setting: str = "") -> pages.Html:
    """The claim box of a chapter: the central claims with these names, judged from the stored results.

    Raises KeyError for an unknown name.
    """
    lines = []
    for claim in _named(names):
        best = strongest(found := judged(claim, root or results()))
        runs = "; ".join(f"{j.profile}: {ours(j)}" for j in found) or MISSING
        measured = claim.settled[1] if claim.settled else runs
        rests = confidence(best) + "; runs that are incomplete do not decide" * any(j.missing for j in found)
        verdict, said = (best.verdict, best.said) if best else (pages.VERDICTS[-1], MISSING)
        source = f"{DOCUMENTS[claim.document]}, {claim.place},"
        test = claim.settled[2] if claim.settled else None
        lines.append(pages.Claim(source, claim.text, f"{measured} ({rests})", verdict, test, claim.own, said))
    return pages.claims(lines, setting=setting)


def verdicts(names: Sequence[str], root: Path | None = None, setting: str = "", more: Sequence[str] = ()) -> pages.Html:
    """A summary of a long claim box, one line per claim with its verdict, with the box itself folded below.

    names, root, setting: as for `box`.  more: further claims, with summary and box in the fold.  Raises KeyError for an
    unknown name.
    """
    words = "What was measured, and what checks it"
    if more:
        words += f"; and {len(_named(more))} further claims"
    speed = f"; of those on speed: rounds to {overview.SHARE:.0%} of the worse method's late accuracy"
    folded = [box(names, root, setting), *([_short(more, root, speed), box(more, root)] if more else [])]
    return together([_short(names, root), pages.folded(words, *folded)])


def _short(names: Sequence[str], root: Path | None, also: str = "") -> pages.Html:
    """One line per claim with its verdict.  also: the end of the caption."""
    lines = claim_lines(_named(names), root or results())
    lines["verdict"] = lines["verdict"].replace("", MISSING)
    documents = dict.fromkeys(DOCUMENTS[claim.document] for claim in _named(names))
    table = pages.table(lines[["verdict", "claim"]], f"Verdicts on the {' and the '.join(documents)}{also}")
    meaning = " (<a href='report.html#how-is-a-verdict-reached'>what they mean</a>)</caption>"
    return pages.Html(table.html.replace("</caption>", meaning, 1), table.text)


def gaps(names: Sequence[str], caption: str, root: Path | None = None) -> Any:
    """The comparisons behind the central claims with these names, drawn by `forest`.  Raises KeyError for an unknown
    name."""
    return forest([j for claim in _named(names) for j in judged(claim, root or results())], caption)


def forest(judgements: Sequence[Judgement], caption: str) -> Any:
    """A forest plot of gaps in accuracy with their 95 % intervals, one line per question; None if none is answered.

    Decided questions have filled points; one colour marks the small data of `quick`, another the document's kind of
    data; a cross marks the gap that the document prints for the same data.
    """
    judgements = [j for j in judgements if j.answers and compared(j.claim) == "images"]
    lines = [
        Line(label(question), replace(answer, word=word), int(j.profile != "quick"), j.printed.get(question, math.nan))
        for j in judgements
        for (question, answer), word in zip(j.answers.items(), j.words().values(), strict=True)
    ]
    return _forest(lines, caption, (RESTS["quick"], RESTS["desk"]))


def paired(names: Sequence[str], asked: Sequence[tuple[str, str, str]], caption: str, profile: str = "quick") -> Any:
    """Paired differences `(row, base, column)` over the cells of several tables as one family, drawn by `forest`; None
    if no question is answered.  names: the tables, whose cells share one profile and one set of seeds."""
    cells: dict[overview.Key, tuple[Any, Result | None]] = {}
    for name in names:
        cells |= overview.stored_cells(get(name), ResultFolder(results(), profile, name))
    return _forest(_by_column(overview.answered(cells, asked)), caption)


def _by_column(answers: Mapping[tuple[str, str, str], Answer]) -> list[Line]:
    """The lines of a forest plot with alternating colours by column."""
    columns = list(dict.fromkeys(column for *_, column in answers))
    return [Line(label(question), answer, columns.index(question[2]) % 2) for question, answer in answers.items()]


def _forest(lines: Sequence[Line], caption: str, colours: Sequence[str] = ()) -> Any:
    """The forest plot with its caption, None without lines.  colours: the meaning of the two colours, for a legend."""
    if not lines:
        return None
    figure, cut = _dots(lines)
    if len({line.colour for line in lines}) == len(colours):
        for colour, said in zip(plots.COLOURS, colours, strict=False):
            figure.axes[0].plot([], [], "o", color=colour, label=said)
        figure.legend(loc="outside upper right", ncols=2, **plots.LEGEND)
    decided = sum(line.answer.word != OPEN for line in lines)
    alt = f"{decided} of {len(lines)} comparisons are decided; each is a point with its 95 % interval beside zero"
    caption += f" The axis is cut at {WIDEST} points." * cut
    low_high = [line.answer.comparison.interval for line in lines if line.answer.word == OPEN]
    if any(not low <= 0 <= high for low, high in low_high):
        caption += " An open point whose interval leaves out zero fails Holm's rule for many comparisons."
    return widgets.show(figure, {"comparisons": len(lines), "decided": decided}, alt=alt, caption=caption)


def differences(table: Table, place: ResultFolder, seeds: Sequence[int] | None = None) -> Any:
    """A forest plot of the paired differences of a table's rows to `table.against`, with alternating colours by column;
    None if no question is answered."""
    answers = overview.judged(table, overview.stored_cells(table, place), seeds)
    lines = _by_column({(row, table.against, column): answer for (row, column), answer in answers.items()})
    if not lines:
        return None
    units = {"cosine": "difference in cosine", "rounds": "logarithm of the ratio of rounds"}
    return _dots(lines, units.get(table.unit, "gap in points of accuracy"))[0]


class Line(NamedTuple):
    """One line of a forest plot: label, answer, index of the colour, and the gap that the document prints."""

    label: str
    answer: Answer
    colour: int
    printed: float = math.nan


def _dots(lines: Sequence[Line], unit: str = "gap in points of accuracy") -> tuple[Any, bool]:
    """The forest plot, and whether its axis is cut at `WIDEST`."""
    import pandas as pd
    import seaborn

    labels = [x.label.replace(", ", ",\n", 1) if len(x.label) > LONGEST else x.label for x in lines]
    rows = (0.33 if "\n" in "".join(labels) else 0.24) * len(lines)
    figure, ax = plots.figure(width=7.0, height=max(3.2, 0.9 + rows))
    ends = [
        (k, end, plots.COLOURS[line.colour], "#ffffff" if line.answer.word == OPEN else plots.COLOURS[line.colour])
        for k, line in enumerate(lines)
        for c in [line.answer.comparison]
        for end in np.clip(c.gap, -WIDEST, WIDEST) + np.array([0, -c.half, c.half])
    ]
    data = pd.DataFrame(ends, columns=["line", "gap", "colour", "fill"])
    whole = {"estimator": "median", "errorbar": ("pi", 100), "order": range(len(lines)), "err_kws": plots.SOLID}
    for (colour, fill), part in data.groupby(["colour", "fill"]):
        look = {"color": colour, "markerfacecolor": fill, "linestyle": "none", "markersize": 5.5, "markeredgewidth": 1}
        seaborn.pointplot(part, x="gap", y="line", orient="y", ax=ax, **whole, **look)
    for k, line in enumerate(lines):
        ax.plot(line.printed, k, "x", color="#000000")
    ax.axvline(0, color="#7d8590", linewidth=1)
    ends = [end for line in lines for end in line.answer.comparison.interval]
    left, right = np.clip([min(ends), max(ends)], -WIDEST, WIDEST)
    cut = (left, right) != (min(ends), max(ends))
    if cut:  # the gap of a diverged method would compress all others
        ax.set_xlim(min(left, 0) - 1, max(right, 0) + 1)
    ax.set_yticks(range(len(lines)), labels, fontsize=7.8)
    ax.set_ylabel("")
    ax.set_xlabel(unit, loc="right")  # a phone has no room to its right
    return figure, cut


# --- one cell, for the notebook of its run ------------------------------------------------------------------------


def summary(result: Result, seeds: Sequence[int], name: str) -> pages.Html:
    """The cell's final values by seed, with setting, device and versions."""
    finals = {seed: value for seed, value in zip(sorted(result.runs), result.finals(), strict=True) if seed in seeds}
    last = result.runs[max(finals)]
    facts = {f"seed {seed}": "diverged" if math.isnan(v) else f"{v:.4g}" for seed, v in finals.items()}
    if result.searches:
        facts["tuned to"] = "; ".join(dict.fromkeys(str(one["setting"]) for one in result.searches))
    where = {k: last[k] for k in ("device", "threads", "torch", "version", "commit") if k in last}
    seconds = sum(result.runs[seed].get("seconds", 0) for seed in finals)
    return pages.setting(cell=name, **facts, **where, seconds=seconds)


def curves(result: Result, seeds: Sequence[int]) -> Any:
    """The recorded curve of every seed (shown through `fc.show`); None if the study records no curve."""
    runs = {seed: run["history"] for seed, run in result.runs.items() if seed in seeds and run.get("history")}
    if not runs:
        return None
    figure, axes = plots.figure()
    for seed, history in runs.items():
        t, v = zip(*history, strict=True)
        axes.plot(t, v, label=f"seed {seed}")
    axes.set(xlabel="communication round", ylabel=result.spec.get("metric", "accuracy"))
    axes.legend()
    return widgets.show(figure, {f"seed {seed}": history[-1][1] for seed, history in runs.items()})
