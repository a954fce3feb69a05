"""What a teacher needs, made from the book.

    python tools/kit.py          write into kit/: notebooks without solutions, nbgrader's assignments, slides, the sheet
                                 of methods and the syllabus
    python tools/kit.py pdf      print the pages in _build/html into kit/book.pdf, by Chromium

Nothing in kit/ is committed, and no file there asks another host for anything.
"""

from __future__ import annotations

import ast
import bisect
import copy
import functools
import html
import inspect
import io
import itertools
import math
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fedcore as fc  # noqa: E402
from fedbook.live import base  # noqa: E402
from fedbook.pictures import svg, widgets  # noqa: E402
from tools import book, cards, chapter_runs  # noqa: E402

STUB = "# Your answer: change what stands above."
CONFIG = f"""# Run nbgrader here. For a student this line takes the place of a solution; the definition above it stays.
c = get_config()
c.ClearSolutions.code_stub = {{"python": "{STUB}"}}
"""
RULE = "one minute for 120 words, three for a figure, five for a star of an exercise, rounded up to ten minutes"
SHORT = ("averaging", "heterogeneity", "drift", "difference", "scaffold")  # what a course of six weeks reads
SHORT += ("proximal", "fedup", "personal", "comparison", "conclusion")
MORE = (fc.FedNova(), fc.FedSAM(), fc.ExactDiffusion())  # on the sheet, besides the methods of the conclusion's picture
HEAD = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n<style>\n{style}\n</style>\n'


# ---- notebooks and assignments


def without_solutions(text: str) -> str:
    return re.sub(r"^(`{3,})\{solution\}.*?^\1$\n?", "", text, flags=re.DOTALL | re.MULTILINE).strip()


def student(notebook: Any) -> Any:
    """The chapter without the solutions of its exercises."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = without_solutions(cell.source)
    notebook.cells = [cell for cell in notebook.cells if cell.source]
    return notebook


def assignment(notebook: Any, solved: bool) -> Any:
    """The chapter up to its last exercise in code, without outputs; None if it has no such exercise.

    Each exercise becomes two cells of nbgrader: the answer, and the check as a locked test with a point for each star.
    solved: the instructor's version, where nbgrader's command replaces each solution by `STUB`, which gives the other.
    """
    exercises = [k for k, cell in enumerate(notebook.cells) if "exercise" in cell.metadata.get("tags", [])]
    if not exercises:
        return None
    out, text = nbformat.from_dict({**notebook, "cells": []}), ""
    for k, cell in enumerate(notebook.cells[: exercises[-1] + 1]):
        if k in exercises:
            solution = chapter_runs.solution_of(cell, notebook.cells)
            points = len(re.findall(r"\{exercise\} (★+)", text)[-1])
            out.cells += _graded(cell, solution if solved else None, _split(cell, solution), points)
        else:
            out.cells.append(_cleared(cell))
            text += cell.source
    return student(out)


def _cleared(cell: Any, **changes: Any) -> Any:
    """A copy of the cell, without outputs."""
    empty = {"outputs": [], "execution_count": None} if cell.cell_type == "code" else {}
    return nbformat.from_dict({**cell, **empty, **changes})


def _split(cell: Any, solution: str) -> tuple[str, str]:
    """An exercise's stub, and its check as an assertion."""
    written = {node.name for node in chapter_runs.definitions(solution)}
    end = max(node.end_lineno for node in chapter_runs.definitions(cell.source) if node.name in written)
    lines = cell.source.splitlines()
    stub, check = "\n".join(lines[:end]), "\n".join(lines[end:]).strip()
    match ast.parse(check).body[-1:]:
        case [ast.Expr(ast.Call(args=[ast.IfExp(test=test)])) as printed]:
            before = "".join(f"{line}\n" for line in check.splitlines()[: printed.lineno - 1])
            return stub, f'{before}assert ({ast.get_source_segment(check, test)}), "not yet"'
    raise ValueError(f'exercise {cell.id} must end with print("right" if ... else "not yet")')


def _graded(cell: Any, solution: str | None, parts: tuple[str, str], points: int) -> Iterator[Any]:
    answer = STUB if solution is None else f"### BEGIN SOLUTION\n{solution.strip()}\n### END SOLUTION"
    for name, source, is_check in ((cell.id, f"{parts[0]}\n\n\n{answer}", False), (f"{cell.id}-check", parts[1], True)):
        nbgrader = {"schema_version": 3, "cell_type": "code", "grade_id": name, "task": False}
        nbgrader |= {"grade": is_check, "locked": is_check, "solution": not is_check}
        nbgrader |= {"points": points} if is_check else {}
        yield _cleared(cell, id=name, source=source, metadata={**cell.metadata, "nbgrader": nbgrader})


# ---- words and formulas


@functools.cache
def formula(tex: str) -> str:
    """TeX as an image in the line, drawn by matplotlib, so that a page needs no script and no font."""
    from matplotlib import font_manager, mathtext

    out, size = io.BytesIO(), 10
    braced = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", tex)
    font = font_manager.FontProperties(size=size, math_fontfamily="cm")
    depth = mathtext.math_to_image(f"${braced}$", out, font, dpi=72, format="svg") / size
    text = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue().decode(), flags=re.DOTALL)
    height = float(re.search(r'height="([\d.]+)pt"', text)[1]) / size
    place = f"height:{height:.3f}em;vertical-align:{-depth:.3f}em"
    image = f'<img alt="{html.escape(tex)}" style="{place}" src="{svg.uri(text[text.index("<svg") :])}">'
    return image.replace("*", "&#42;")  # no mark of Markdown


def plain(text: str) -> str:
    """Markdown without the roles of MyST: their words, and nothing for a citation."""
    text = re.sub(r" ?\{cite(?::\w+)?\}`[^`]*`", "", text)
    return re.sub(r"\{[\w:]+\}`([^`<]*?)(?: ?<[^`]*)?`", r"\1", text)


def rendered(text: str) -> str:
    """A paragraph of Markdown as HTML, with formulas drawn."""
    words, *rest = re.split(r"\$([^$]+)\$", plain(text))
    out = html.escape(words)
    for tex, words in zip(rest[::2], rest[1::2], strict=True):
        out += formula(" ".join(tex.split())) + html.escape(words)
    for mark, tag in ((r"\*\*", "b"), (r"\*", "i"), ("`", "code")):
        out = re.sub(rf"{mark}(\S.*?){mark}", rf"<{tag}>\1</{tag}>", out)
    return out


def goal(notebook: Any) -> str:
    """What a reader can do after the chapter, by the chapter's own sentence."""
    found = re.search(r"After this page you can\s+(.*?\.)(?=\n|\s[A-Z]|$)", notebook.cells[0].source, re.DOTALL)
    if not found:
        raise ValueError('the first cell of a chapter must say "After this page you can ...", as others do')
    return " ".join(plain(found[1]).split())


def title(notebook: Any) -> str:
    return notebook.cells[0].source.splitlines()[0].lstrip("# ")


# ---- slides

SLIDES = """
html{color-scheme:light;background:var(--fc-paper);color:var(--fc-ink);}
body{margin:0;font:1.4rem/1.4 var(--fc-sans);}
section{display:none;box-sizing:border-box;min-height:100vh;padding:3vh 6vw;}
section.on{display:flex;flex-direction:column;justify-content:center;}
h1, h2{font-family:var(--fc-serif);line-height:1.2;margin:0 0 2vh;}
figure{max-width:min(88vw, 112vh) !important;width:100%;margin:0 auto !important;}
figure.fc-picture img{max-height:54vh;object-fit:contain;}
figcaption{font-size:1.1rem !important;}
footer{position:fixed;right:2vw;bottom:2vh;font-size:1rem;color:var(--fc-muted);}
@media print{@page{size:landscape;} section{display:block;break-after:page;} footer{display:none;}}
"""
KEYS = """
const slides = [...document.querySelectorAll("section")];
let at = 0;
const show = (to) => {
  slides[at].classList.remove("on");
  at = Math.min(Math.max(to, 0), slides.length - 1);
  slides[at].classList.add("on");
  document.querySelector("footer").textContent = `${at + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${at + 1}`);
};
show(location.hash.slice(1) - 1);
const step = {ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1, Home: -Infinity, End: Infinity};
addEventListener("keydown", (event) => {  // the controls of a picture keep their keys
  if (event.key in step && !event.target.closest("figure")) { event.preventDefault(); show(at + step[event.key]); }
});
"""


def figures(notebook: Any) -> Iterator[tuple[str, str]]:
    """(heading above it, HTML) of each figure that the chapter shows."""
    heading = title(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = (heading, *re.findall(r"^##+ (.*)", cell.source, re.MULTILINE))[-1]
        for output in cell.get("outputs", []):
            body = output.get("data", {}).get("text/html", "")
            yield from ((heading, found) for found in re.findall(r'<figure class="fc-p.*?</figure>', body, re.DOTALL))


def slides(notebook: Any) -> str:
    """The chapter's slides as one HTML file: its goal, each figure with its caption, and its summary."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    short = re.findall(r"^- (.*(?:\n  .*)*)", text.rpartition("\n## In short\n")[2], re.MULTILINE)
    pages = [f"<h1>{rendered(title(notebook))}</h1>\n<p>After this lecture you can {rendered(goal(notebook))}</p>"]
    pages += [f"<h2>{rendered(heading)}</h2>\n{figure}" for heading, figure in figures(notebook)]
    pages += [f"<h2>In short</h2>\n<ul>{''.join(f'<li>{rendered(line)}</li>' for line in short)}</ul>"]
    body = "".join(f"<section>\n{page}\n</section>\n" for page in pages)
    style = widgets.asset("tokens.css") + base.page_style() + SLIDES
    head = HEAD.format(title=title(notebook), style=style)
    return f"{head}<body>\n{body}<footer></footer>\n<script>\n{base.page_script()}</script>\n<script>{KEYS}</script>\n"


# ---- the sheet of methods

SHEET = """
@page{size:A4 landscape;margin:7mm;}
body{margin:0;font:7.2pt/1.25 "Source Sans 3", "Noto Sans", "DejaVu Sans", Arial, sans-serif;color:#1d232b;}
h1{font-size:12pt;margin:0;} p{margin:1mm 0;}
table{border-collapse:collapse;width:100%;}
th, td{text-align:left;vertical-align:top;padding:.5mm 1mm;border-bottom:.2mm solid #c9c4b8;}
td:first-child{font-weight:600;} td:nth-child(3){min-width:36mm;}
"""
LEGEND = r"""
**A round.** The server broadcasts, each client takes $K$ local steps $y \leftarrow y - \eta \cdot$ (local step), where
$g$ is its gradient at $y$, and the server aggregates. **Fixed point.** Of two clients with curvatures 1 and 3 and local
optima 1 and −1, with $\eta = 0.1$ and $K = 5$; ★ is the optimum, −0.5; two numbers are two models. **Cost.** Per client
and round, in models of $d$ numbers."""
COLUMNS = ("method", "broadcast", "local step", "aggregate", "state", "fixed point", "cost", "when")


def sheet() -> str:
    """The methods of the conclusion's picture and `MORE`: rule, state, fixed point, cost, and when to use them."""
    cells = book.read(ROOT / "book" / "conclusion.ipynb").cells
    names: dict[str, Any] = {"fc": fc}
    exec(next(cell.source for cell in cells if cell.id == "fixed-points"), names)
    ends = names["limits"] | {cards.title(type(method)): names["fixed_point"](method) for method in MORE}
    map_of = cards.rows((ROOT / "book" / "map.md").read_text(encoding="utf-8"))
    lines = "".join(f"<th>{column}</th>" for column in COLUMNS)
    for kind in fc.ALL:
        if (name := cards.title(kind)) in ends:
            points = ("★" if abs(x + 0.5) < 1e-6 else f"{x:.4f}".replace("-", "−") for x in ends[name])
            advice = " ".join((inspect.getdoc(kind) or "").split("\n\n")[-1].split())
            row = (name, *map_of[name][1:], ", ".join(points), _spent(kind().cost()), advice)
            lines += "\n<tr>" + "".join(f"<td>{rendered(cell)}</td>" for cell in row)
    head = HEAD.format(title="Methods of federated learning", style=SHEET)
    return f"{head}<h1>Methods of federated learning</h1>\n<p>{rendered(LEGEND)}</p>\n<table>\n<tr>{lines}\n</table>\n"


def _spent(cost: fc.Cost) -> str:
    """A cost in words, without what is as in FedAvg."""
    more = {"gradients per step": cost.gradients - 1 and cost.gradients, "full gradient per round": cost.full_gradients}
    more |= {"Hessian products per step": cost.products, "forward passes per step": cost.forwards}
    spent = {"down": cost.down, "up": cost.up} | {words: value for words, value in more.items() if value}
    return ", ".join(f"{cards.number(value)} {words}" for words, value in spent.items())


# ---- the syllabus


def minutes(notebook: Any) -> int:
    """The minutes that a chapter takes, by `RULE`."""
    text = " ".join(without_solutions(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    stars = sum(map(len, re.findall(r"\{exercise\} (★+)", text)))
    return 10 * math.ceil((len(text.split()) / 120 + 3 * len(list(figures(notebook))) + 5 * stars) / 10)


def weeks(spent: Sequence[int], count: int) -> tuple[int, ...]:
    """The week of each chapter, in order, such that the weeks are as equally long as they can be."""
    upto = [0, *itertools.accumulate(spent)]
    cuts = min(
        itertools.combinations(range(1, len(spent)), count - 1),
        key=lambda at: sum((upto[b] - upto[a]) ** 2 for a, b in itertools.pairwise((0, *at, len(spent)))),
    )
    return tuple(1 + bisect.bisect(cuts, k) for k in range(len(spent)))


def syllabus(notebooks: Mapping[str, Any]) -> str:
    """What to read in each week, of chapters by name, as Markdown."""
    spent = {name: minutes(notebook) for name, notebook in notebooks.items()}
    out = ["# Syllabus", "", f"The minutes are computed from the chapters: {RULE}. Solutions are not counted."]
    for count, names in ((12, list(notebooks)), (6, [name for name in notebooks if name in SHORT])):
        out += ["", f"## {count} weeks, {len(names)} of {len(notebooks)} chapters", ""]
        out += ["| week | minutes | chapter | after it you can |", "|---|---|---|---|"]
        for name, week in zip(names, weeks([spent[name] for name in names], count), strict=True):
            chapter = notebooks[name]
            out.append(f"| {week} | {spent[name]} | {title(chapter)} (`{name}`) | {goal(chapter)} |")
    return "\n".join(out) + "\n"


def chapters() -> dict[str, Any]:
    """Name -> notebook of the chapters that a course can read; `field` is a table to look things up."""
    return {file.stem: book.read(file) for file in book.chapters() if file.stem != "field"}


# ---- the book on paper


def pdf(folder: Path, target: Path) -> None:
    """Print the pages of the built book in `folder` into one PDF.

    Raises RuntimeError, with the remedy, if pages, playwright or Chromium are missing.
    """
    import pytest

    from tests.browser import chromium

    pages = {name: folder / f"{name}.html" for name in book.pages()}
    if missing := [name for name, file in pages.items() if not file.exists()]:
        raise RuntimeError(f"{folder} has no page {missing[0]}; run make pages first")
    whole = folder / "book" / "whole.html"
    try:
        with chromium() as browser:
            whole.write_text(together({name: file.read_text("utf-8") for name, file in pages.items()}), "utf-8")
            tab = browser.new_page()
            tab.goto(whole.as_uri(), timeout=0)
            tab.evaluate("window.MathJax?.startup?.promise")  # all formulas are drawn
            tab.pdf(path=target, format="A4", print_background=True)
    except pytest.skip.Exception as lacking:
        raise RuntimeError(lacking.msg) from None
    finally:
        whole.unlink(missing_ok=True)


def together(pages: Mapping[str, str]) -> str:
    """One page with the articles of several, whose links to each other become links within it."""
    out = []
    for name, page in pages.items():

        def link(to: re.Match[str], name: str = name) -> str:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), to[1]))
            return f' href="#{other}--{to[2] or ""}"' if other in pages else ""

        article = re.search(r'<article class="bd-article">.*?</article>', page, re.DOTALL)[0]
        article = re.sub(r'( id="| href="#|url\(#)', rf"\1{name}--", article)
        article = re.sub(r' href="([\w./]+)\.html(?:#([^"]*))?"', link, article)
        out.append(f'<div id="{name}--" style="break-before:page">{article}</div>')
    head = next(iter(pages.values())).partition("<body")[0]
    return f'{head}<body><main class="bd-content">{"".join(out)}</main></body></html>'


def write(folder: Path) -> None:
    """Write the kit's files, all but the PDF, into a folder."""
    notebooks = chapters()
    texts = {"methods.html": sheet(), "syllabus.md": syllabus(notebooks), "assignments/nbgrader_config.py": CONFIG}
    for name, notebook in notebooks.items():
        texts |= {f"notebooks/{name}.ipynb": book.written(student(notebook)), f"slides/{name}.html": slides(notebook)}
        if (source := assignment(notebook, solved=True)) is not None:
            texts[f"assignments/source/{name}/{name}.ipynb"] = book.written(source)
            texts[f"assignments/release/{name}/{name}.ipynb"] = book.written(assignment(notebook, solved=False))
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(texts)} files in {folder}")


if __name__ == "__main__":
    if sys.argv[1:] == ["pdf"]:
        (ROOT / "kit").mkdir(exist_ok=True)
        try:
            pdf(ROOT / "_build" / "html", ROOT / "kit" / "book.pdf")
        except RuntimeError as error:
            sys.exit(f"no PDF was written: {error}")
        print(ROOT / "kit" / "book.pdf")
    else:
        write(ROOT / "kit")
