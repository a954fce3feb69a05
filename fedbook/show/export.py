"""Export of stored tables: as text for a paper or a program, and as figures of paired differences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import show
from ..documents.definitions import PROFILES, Table, get, tables
from ..results.batch import ResultFolder
from ..verdicts import overview

PICTURES = (".png", ".svg", ".pdf")


def chosen(names: Sequence[str]) -> list[Table]:
    """The tables with these names, without duplicates; all tables if `names` is empty.  A table that is drawn from the
    cells of another one is replaced by that one."""
    asked = [get(name) for name in names] or list(tables().values())
    return list({t.name: t for t in (get(t.drawn_from) if t.drawn_from else t for t in asked)}.values())


def text(names: Sequence[str], form: str, root: Path, seeds: Sequence[int] | None = None) -> str:
    """The stored tables, rows by columns, in a format of `FORMATS`; "" if nothing is stored.

    An entry has our mean and half the width of its 95 % interval over seeds (Student's t), the source's value if it
    prints one, and the mark of the verdict.  In every format the title states reservations (`overview.reservations`).
    """
    parts = []
    for table, place in _stored(names, root):
        tidy = overview.frame(table, place, seeds)
        if len(tidy) and tidy["n"].any():
            against = "; ".join(overview.reservations({table.name: tidy}))
            title = _line(f"{table.name}, {place.profile}: {table.title}{against and f' ({against})'}")
            grid = show.grid(table, tidy).rename(index=_line, columns=_line)
            parts.append(FORMATS[form](grid, title, _line(_legend(table, tidy))))
    return "\n\n".join(parts)


def pictures(names: Sequence[str], file: Path, root: Path, seeds: Sequence[int] | None = None) -> list[Path]:
    """Draw the paired differences of every stored table to its reference row, and return the written files.

    A single figure is written to `file`; the names of several have table and profile appended.  Raises ValueError for
    an ending that is not in `PICTURES`.
    """
    if file.suffix not in PICTURES:
        raise ValueError(f"{file} ends with {file.suffix!r}; use one of {', '.join(PICTURES)}")
    drawn = [
        (f"{file.stem}-{table.name}-{place.profile}", figure)
        for table, place in _stored(names, root)
        if (figure := show.differences(table, place, seeds))
    ]
    files = [file] if len(drawn) == 1 else [file.with_stem(stem) for stem, _ in drawn]
    for path, (_, figure) in zip(files, drawn, strict=True):
        figure.savefig(path)
    return files


def damaged(names: Sequence[str], root: Path) -> list[str]:
    """The errors of damaged files of these tables, which the export leaves out."""
    return [said for table, place in _stored(names, root) for said in overview.damaged(table, place)]


def _stored(names: Sequence[str], root: Path) -> list[tuple[Table, ResultFolder]]:
    places = [(table, ResultFolder(root, profile, table.name)) for profile in PROFILES for table in chosen(names)]
    return [(table, place) for table, place in places if place.profile in table.captions and place.folder.exists()]


def _legend(table: Table, tidy: Any) -> str:
    parts = ["Mean and half its 95 % interval over seeds (Student's t)"]
    parts += ["in brackets, what the source prints"] if tidy["source"].notna().any() else []
    marks = show.legend(table, tidy)
    return "; ".join([*parts, *([f"{marks}, on the same seeds and test data"] if marks else [])]) + "."


def _line(name: str) -> str:
    """A user's name in one line, because a line break would end the comment or the table cell that contains it."""
    return " ".join(str(name).split())


def _markdown(grid: Any, title: str, legend: str) -> str:
    grid = grid.rename(index=_marked, columns=_marked)
    lines = [["", *grid.columns], ["---"] * (1 + len(grid.columns)), *_rows(grid)]
    body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([f"**{_marked(title)}**", "", *body, "", _marked(legend)])


def _marked(name: str) -> str:
    return re.sub(r"([\\`*_|<>&\[\]!])", r"\\\1", name)


def _latex(grid: Any, title: str, legend: str) -> str:
    head, *body = (" & ".join(map(_escaped, line)) + r" \\" for line in [["", *grid.columns], *_rows(grid)])
    return "\n".join(
        [f"% {title}", "% \\checkmark is of the package amssymb", r"\begin{tabular}{l" + "r" * len(grid.columns) + "}",
         r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", f"% {legend}"]
    )  # fmt: skip


_IN_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "<": "$<$",
        ">": "$>$",
        "^": r"\^{}",
        "±": r"$\pm$",
        "\u2013": "--",
        "~": r"$\sim$",
        "=": "$=$",
    }
    | {"\u2713": r"$\checkmark$", "\u2717": r"$\times$"}
)


def _escaped(entry: str) -> str:
    return entry.translate(_IN_LATEX)


def _csv(grid: Any, title: str, legend: str) -> str:
    body = grid.rename_axis("row").reset_index().to_csv(index=False, lineterminator="\n")
    return f"# {title}\n{body}".rstrip("\n")


def _rows(grid: Any) -> list[list[str]]:
    return [[name, *line] for name, line in zip(grid.index, grid.to_numpy().tolist(), strict=True)]


FORMATS: dict[str, Callable[[Any, str, str], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}
