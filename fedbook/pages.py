"""The parts of a chapter's page besides prose and pictures: parameters, claim box, departures, tables, record.

Every part has two representations: HTML for the page, and plain text for a terminal and for the tests that compare
stored outputs. Hardware and seconds, which differ from machine to machine, are put into an element of class
`fc-machine`, and what holds for today's code alone into `fc-today`; those tests ignore both. Text may contain maths as
`\\( ... \\)`; all other text is escaped.
"""

from __future__ import annotations

import ast
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedcore.storage.checkpoint import atomic
from fedcore.support import checks

from .pictures.widgets import Html, asset, explained

PROFILES = ("quick", "paper", "test")
COLUMN = 88  # letters of a table that fit into the text column
VERDICTS = ("holds", "holds in part", "does not hold", "not testable here", "cannot be decided here")


@dataclass(frozen=True)
class Claim:
    """One line of the claim box: the claim of `source`, the value `measured` here, and the verdict.

    `measured` is built from numbers (see `spread`), never typed by hand; `test` names the test that checks
    the claim; `own` marks a question of this book that `source` leaves open; `said` stands in place of the verdict,
    which then only chooses the colour. Raises ValueError for a verdict that is not one of `VERDICTS` and for an empty
    text.
    """

    source: str
    claim: str
    measured: str
    verdict: str
    test: str | None = None
    own: bool = False
    said: str = ""

    @property
    def asked(self) -> str:
        """The words that introduce the claim, or this book's own question."""
        return f"{self.source} leaves open whether" if self.own else f"{self.source} claims"

    def __post_init__(self) -> None:
        checks.choice("verdict", self.verdict, VERDICTS)
        for field in ("source", "claim", "measured"):
            if not str(getattr(self, field)).strip():
                raise ValueError(f"{field} of a claim is empty; say what is claimed and what was measured")


def parameters(**values: Any) -> None:
    """Check a chapter's parameters; call it in the cell after the one tagged `parameters`, with all of them.

    papermill writes a misspelt parameter into the notebook as a new variable that no code reads. This function
    therefore reads the cell that papermill injected (its first line is `# Parameters`) and refuses a name that is not
    among `values`. A live session has no such cell. Calling the function twice is harmless.

    Raises ValueError or TypeError for an unknown name, a profile other than "quick", "paper" and "test", a `seed` or a
    number of `networks` that is not a whole number from 0, an `again` that is neither True nor False, and `results`
    that do not name a folder.
    """
    for name in _injected_names():
        if name not in values:
            raise ValueError(f"unknown parameter {name!r}; this chapter takes: {', '.join(values)}")
    checks.choice("profile", values.get("profile", "quick"), PROFILES)
    checks.integer("seed", values.get("seed", 0), 0)
    checks.TRUTH.check("again", values.get("again", False), bool)  # True may take hours and replaces stored results
    checks.integer("networks", values.get("networks", 0), 0)
    results = values.get("results", "")
    if not isinstance(results, str) or (results and not Path(results).is_dir()):
        raise ValueError(f"results={results!r} is no folder of results; name one, or leave it empty for the project's")


def _injected_names() -> list[str]:
    try:
        from IPython import get_ipython
    except ImportError:
        return []
    shell = get_ipython()
    cells = [] if shell is None else shell.user_ns.get("In", [])
    injected = [cell for cell in cells if cell.lstrip().startswith("# Parameters\n")]
    # Only the newest cell counts: a reader of papermill's output may correct the cell and run it again.
    tree = ast.parse(injected[-1] if injected else "")
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def spread(values: Iterable[float], digits: int = 1, count: bool = True) -> str:
    """Mean of `values`, half the width of its 95 % interval (Student's t) and their number, as "95.2 ± 2.2 (n=3)".

    One value has no interval.  count=False leaves out the number.  Raises ValueError if there are no values or a value
    is not finite.
    """
    numbers = [float(v) for v in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"spread() needs at least one value, all finite; got {numbers}")
    mean, n = math.fsum(numbers) / len(numbers), len(numbers)
    counted = f" (n={n})" if count else ""
    if n == 1:
        return f"{mean:.{digits}f}{counted}"
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in numbers) / (n - 1))
    return f"{mean:.{digits}f} ± {half_width(deviation, n):.{digits}f}{counted}"


def half_width(sd: float, n: int) -> float:
    """Half the width of the 95 % interval of a mean of n values with standard deviation `sd` (Student's t); NaN for
    fewer than two values."""
    from scipy.stats import t

    return sd / math.sqrt(n) * t.ppf(0.975, n - 1) if n > 1 else math.nan


def claims(
    items: Sequence[Claim], *, seeds: int | None = None, seconds: float | None = None, setting: str = ""
) -> Html:
    """The claim box of a chapter, placed after the cell that computed its numbers.

    `seeds` is the number of seeds behind the numbers (None if each line states its own), `seconds` the time of the
    computation, `setting` the data, clients and rounds in words. Hardware and versions are read from the machine.
    """
    blocks, lines = [], []
    for c in items:
        rows = [(c.asked, escape(c.claim)), ("measured here", escape(c.measured))]
        rows += [("checked by", f"<code>{escape(c.test)}</code>")] if c.test else []
        listed = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in rows)
        said = c.said or c.verdict
        mark = f'<p class="fc-verdict" data-verdict="{c.verdict}">Verdict: <strong>{escape(said)}</strong></p>'
        blocks.append(f'<div class="fc-claim"><dl>{listed}</dl>{mark}</div>')
        lines += [
            f"{c.asked}: {c.claim}",
            f"  measured here: {c.measured}",
            f"  verdict: {said}",
        ]
    counted = "" if seeds is None else f"{seeds} seed{'s' * (seeds != 1)}"
    how = explained("; ".join(filter(None, [setting, counted])), *lines)
    return Html(
        '<div class="fc-claims tex2jax_process" role="group" aria-label="Claims and verdicts">'
        f'{"".join(blocks)}<p class="fc-how">{escape(how)}</p>'
        f'<p class="fc-machine">{"" if seconds else "this page was run on "}{escape(machine(seconds))}</p></div>',
        "\n".join([*lines, how]),
    )


def setting(*, seconds: float | None = None, today: str = "", **facts: Any) -> Html:
    """One line under a result that states how the result was obtained.

    `facts` are shown in the order given, `setting(data="digits", clients=20, partition="Dirichlet(0.3)",
    rounds=50, seeds=3, device="cpu")`; facts that are None are left out. Tests ignore `seconds` and `today` (a
    remark that holds only until the code changes); a refresh keeps the stored seconds, but not the remark.
    """
    line = " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items() if value is not None)
    rest = {"machine": "" if seconds is None else f"{seconds:.1f} s", "today": today}
    rest = "".join(f' <span class="fc-{kind}">· {escape(text)}</span>' for kind, text in rest.items() if text)
    return Html(f'<p class="fc-how tex2jax_process">{escape(line)}{rest}</p>', line)


def departures(items: Sequence[tuple[str, str, str]]) -> Html:
    """A folded, numbered list of the departures from a chapter's source: *the paper*, *this book*, *why*."""
    heads = ("The paper", "This book", "Why")
    rows, lines = [], []
    for number, item in enumerate(items, 1):
        parts = [f"<dt>{head}</dt><dd>{escape(part)}</dd>" for head, part in zip(heads, item, strict=True)]
        rows.append(f"<li><dl>{''.join(parts)}</dl></li>")
        lines += [f"{number}. the paper: {item[0]}", f"   this book: {item[1]}", f"   why: {item[2]}"]
    places = "One place" if len(items) == 1 else f"{len(items)} places"
    summary = f"<summary>{places}, each with what the paper has, what stands here, and why</summary>"
    text = f'<details class="fc-departures tex2jax_process">{summary}<ol>{"".join(rows)}</ol></details>'
    return Html(text, "\n".join(lines))


def folded(summary: str, *parts: Any) -> Html:
    """Tables and pictures that a page keeps folded under the line `summary` until a reader opens them.

    parts: at least one object with an HTML representation (`pages.table`, `fc.show`, `fc.explore`, `show.result`).
    Raises TypeError for a part without an HTML representation.
    """
    body = "\n".join([f"<summary>{escape(summary)}</summary>", *map(_html, parts)])
    text = "\n\n".join([summary, *map(repr, parts)])
    return Html(f'<details class="fc-fold tex2jax_process">{body}</details>', text)


def _html(part: Any) -> str:
    if hasattr(part, "_repr_mimebundle_"):
        return part._repr_mimebundle_()["text/html"]
    if hasattr(part, "_repr_html_"):
        return part._repr_html_()
    raise TypeError(f"{part!r} has no HTML; give a table or a picture")


def table(frame: Any, caption: str, digits: int = 4) -> Html:
    """A small table from a pandas frame, with a caption.

    A column called "verdict" comes first. Words wrap and numbers do not. A table of at most three rows that is still
    too wide for the text column is transposed, and a table that remains too wide scrolls beside its first column.
    Floats are shown with `digits` significant digits. A plain 0, 1, 2, ... index is left out.
    """
    import pandas as pd

    frame = _verdict_first(frame)
    heads = [_joined(name) for name in frame.columns]
    rows = [[_entry(value, digits) for value in row] for row in frame.itertuples(index=False)]
    names = None if isinstance(frame.index, pd.RangeIndex) else [_joined(name) for name in frame.index]
    corner = "" if names is None else _joined(frame.index.name or frame.columns.name or "")
    if len(rows) <= 3 < len(heads) and _width(heads, rows, names) > COLUMN:
        turned = [list(row) for row in zip(*rows, strict=True)]
        heads, rows, names, corner = names or [f"{k}" for k in range(1, len(rows) + 1)], turned, heads, ""
    kinds = [_kind([row[k] for row in rows]) for k in range(len(heads))]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(heads, kinds, strict=True))
    if names is not None:
        head = (f'<th scope="col">{escape(corner)}</th>' if corner else "<td></td>") + head
    lines = []
    for k, row in enumerate(rows):
        first = "" if names is None else f'<th scope="row">{escape(names[k])}</th>'
        cells = "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(kinds, row, strict=True))
        lines.append(f"<tr>{first}{cells}</tr>")
    text = frame.to_string(index=names is not None, float_format=lambda v: f"{v:.{digits}g}", na_rep="–")
    caption = explained(caption, text)
    return Html(
        f'<div class="fc-scroll tex2jax_process" role="region" tabindex="0" aria-label="{_label(caption)}">'
        f'<table class="fc-table"><caption>{_titled(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{chr(10).join(lines)}</tbody></table></div>",
        f"{caption}\n{text}",
    )


def _verdict_first(frame: Any) -> Any:
    names = list(frame.columns)
    return frame[["verdict", *(name for name in names if name != "verdict")]] if "verdict" in names else frame


def _joined(name: Any) -> str:
    return ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _entry(value: Any, digits: int) -> str:
    value = value.item() if hasattr(value, "item") else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


_NUMBER = r"[-+\u2212]?[\d.,]+(?:e[-+]?\d+)?"
_SHORT = re.compile(
    rf"{_NUMBER}(?: ?[%\u00d7])?(?: \u00b1 [\d.]+)?(?: \({_NUMBER}\))?(?: [\u2713\u2717=~])?|\u2013|nan|-?inf|diverged"
)


def _kind(texts: Sequence[str]) -> str:
    """The CSS class of a column of numbers (also with intervals, printed values and marks), which is right-aligned and
    not wrapped; "" for a column of words."""
    return ' class="fc-n"' if all(map(_SHORT.fullmatch, texts)) else ""


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str] | None) -> int:
    """The least width in characters: the sum over the columns of the longest word or number."""
    columns = [[head, *(row[k] for row in rows)] for k, head in enumerate(heads)]
    columns += [list(names)] if names else []
    return sum(
        2 + max(len(word) for text in column for word in ([text] if _kind([text]) else text.split() or [""]))
        for column in columns
    )


def _label(caption: str) -> str:
    """The first sentence of a caption, as the name of the region in which its table scrolls."""
    return escape(caption.partition(". ")[0])


def _titled(caption: str) -> str:
    """A caption of several sentences with its first one in bold."""
    rest = caption.partition(". ")[2]
    return f"<b>{_label(caption)}.</b> {escape(rest)}" if rest else escape(caption)


def filtered(frame: Any, caption: str, menus: Sequence[str] = ()) -> Html:
    """A long table of texts that a reader can sort by its headers and filter by words and by menus.

    `frame` is a pandas frame of at most 8 columns. A column called "verdict" comes first, texts wrap, and `Html` values
    are inserted unescaped.
    Each column in `menus` gets a menu of its values. A categorical column sorts in the order of its categories, every
    other column by its text. The table scrolls in its own window. It works offline and by keyboard; without
    JavaScript all rows are shown.
    """
    frame = _verdict_first(frame)
    names = [str(name) for name in frame.columns]
    orders = [list(column.cat.categories) if column.dtype == "category" else None for _, column in frame.items()]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows, lines = [], []
    for row in frame.itertuples(index=False):
        cells = (value.html if isinstance(value, Html) else escape(str(value)) for value in row)
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        lines.append(" | ".join(str(value) for value in row))
    caption = explained(caption, *lines)
    lines = [caption, *lines]
    # Narrow windows show a row as a card, whose labels are these CSS variables (filter.css).
    labels = ";".join(f"--label-{i}:{json.dumps(name)}" for i, name in enumerate(names, 1))
    plan = json.dumps({"menus": [names.index(name) for name in menus], "orders": orders}, ensure_ascii=False)
    # Without "<" no text in the data can close the script element around the data.
    plan = plan.replace("<", "\\u003c")
    return Html(
        f'<div class="fc-filter tex2jax_process">\n<style>\n{asset("filter.css")}\n</style>\n'
        f'<div class="fc-window" role="region" tabindex="0" aria-label="{_label(caption)}">'
        f'<table class="fc-rows" style="{escape(labels)}"><caption>{_titled(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{chr(10).join(rows)}</tbody></table></div>\n"
        f'<script type="application/json">{plan}</script>\n<script>\n{asset("filter.js")}\n</script></div>',
        "\n".join(lines),
    )


def source(*functions: Any) -> Any:
    """The source of functions of the package as highlighted code."""
    import inspect
    from textwrap import dedent

    from IPython.display import Markdown

    return Markdown("```python\n" + "\n".join(dedent(inspect.getsource(f)) for f in functions).rstrip() + "\n```")


def record(**numbers: Any) -> Html:
    """The chapter's results by name; call it as the last expression of the last cell.

    The page shows one result per line, floats with four significant digits. If the environment variable
    `FEDCORE_RECORD` names a file, the results are written to it as JSON with six digits, atomically; the batch run
    takes the file as the sign that the chapter ran to its end. Numbers may be nested in lists and mappings.

    Raises ValueError for an empty record, NaN, infinity, and values other than numbers, texts, lists and mappings.
    """
    if not numbers:
        raise ValueError("the record is empty; give the chapter's results by name")
    values = {name: _rounded(name, value, 6) for name, value in numbers.items()}
    if target := os.environ.get("FEDCORE_RECORD"):
        with atomic(target) as file:
            file.write((json.dumps(values, indent=1) + "\n").encode())
    text = "\n".join(f"{name} = {json.dumps(_rounded(name, value, 4))}" for name, value in values.items())
    return Html(f'<pre class="fc-record">{escape(text)}</pre>', text)


def _rounded(name: str, value: Any, digits: int) -> Any:
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays alike
        value = value.tolist()
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} is not finite; a record takes finite numbers only")
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(key): _rounded(f"{name}[{key}]", item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(f"{name}[{i}]", item, digits) for i, item in enumerate(value)]
    kind = type(value).__name__
    raise ValueError(f"{name} is a {kind}; a record takes numbers, texts, lists and mappings of them")


def machine(seconds: float | None = None) -> str:
    """Hardware and versions in words, with the computing time if `seconds` is given."""
    import torch

    from .results.provenance import processor

    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        threads = torch.get_num_threads()
        device = f"{processor()}, {threads} thread{'s' * (threads != 1)}"
    took = "" if seconds is None else f"{seconds:.1f} s on "
    return f"{took}{device}; torch {torch.__version__}, Python {platform.python_version()}"
