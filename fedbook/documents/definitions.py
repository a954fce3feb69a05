"""What documents are described by: tables and figures, their cells in every profile, claims, and printed numbers."""

from __future__ import annotations

import csv
import importlib
import os
import pkgutil
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from fedcore.support import checks
from fedcore.support.checks import brief

from ..studies import specification, user_files

FOLDER = Path(__file__).parent  # of the texts: what the documents claim, captions, and what they leave open
PRINTED = FOLDER / "printed"  # every number that the documents print
PROFILES = ("quick", "desk", "paper")
Question = tuple[str, str, str]  # row, the row that it is compared with, column


@dataclass(frozen=True)
class Cell:
    """One entry of a table: `name` (unique in its table), `spec`, and where the source prints its value.

    row, column: where it stands in our table.  source: the value that the document prints (None where it prints none).
    seeds: how many reporting seeds it has when it is complete.
    """

    name: str
    spec: Mapping[str, Any]
    row: checks.Text = ""
    column: checks.Text = ""
    source: Annotated[float, checks.Within(-1e300, 1e300)] | None = None
    seeds: checks.Count = 3

    def reporting(self, seeds: Sequence[int] | None = None) -> list[int]:
        """The reporting seeds: the cell's own, from 0 on, unless others are asked for."""
        return list(range(self.seeds) if seeds is None else seeds)

    def at(self, folder: str | os.PathLike) -> Cell:
        """The cell with files of the user ("file.py:Name") as seen from a folder, by absolute paths."""
        return replace(self, spec=user_files.absolute(self.spec, folder))


@dataclass(frozen=True)
class Table:
    """A table or figure of a source document.

    name: what the command line calls it.  document: S000 to S004.  make: profile -> its cells.  captions: profile ->
    what was computed, honestly (data, size, seeds), for each profile that the table has.  left_open: `(setting the
    source leaves open, our choice)`.  figure: a figure rather than a table.  drawn_from: the name of the table whose
    cells it shows.  against: the row that gaps are measured from.  proposed: the row that the document proposes.
    axis: what a figure has to the right: "round", or what the columns count.
    """

    name: str
    title: str
    document: str
    make: Callable[[str], Sequence[Cell]]
    captions: dict[str, str]
    left_open: tuple[tuple[str, str], ...] = ()
    figure: bool = False
    drawn_from: str | None = None
    against: str = "FedAvg"
    proposed: str | None = None
    unit: str = "%"
    axis: str = ""

    @property
    def compared(self) -> str:
        """What a comparison of two cells takes, seed by seed: which test "images" are classified correctly, the final
        "values" of what is no accuracy, or their "logs", whose differences are ratios."""
        return {"cosine": "values", "points": "values", "rounds": "logs"}.get(self.unit, "images")

    def __post_init__(self) -> None:
        """ValueError for a name that cannot name a folder, and for what are no captions."""
        if not isinstance(self.name, str) or slug(self.name) != self.name or not self.name.strip("."):
            raise ValueError(f"a table is called {self.name!r}; use letters, digits, '-', '_', '=' and '.' alone")
        if not isinstance(self.captions, Mapping) or not set(self.captions) <= set(PROFILES):
            raise ValueError(
                f"table {self.name}: captions={brief(self.captions)}; use a mapping to texts from {', '.join(PROFILES)}"
            )

    def cells(self, profile: str) -> list[Cell]:
        """The cells of a profile; none where the table does not have it.

        Raises ValueError where its function fails or gives no cells, and for two that would share a file.
        """
        if profile not in self.captions:
            return []
        try:
            cells = list(self.make(profile))
        except ValueError:
            raise
        except Exception as e:  # whatever a function of the user's raises
            line = traceback.extract_tb(e.__traceback__)[-1]
            where = f"{Path(line.filename).name}, line {line.lineno}"
            raise ValueError(f"table {self.name} gives no cells ({type(e).__name__}: {e}, {where}); correct it") from e
        files: dict[str, str] = {}
        for cell in cells:
            if not isinstance(cell, Cell) or not isinstance(cell.name, str) or not isinstance(cell.spec, Mapping):
                raise ValueError(f"table {self.name} gives {brief(cell)}; use Cell(name, specification)")
            try:
                checks.fields(cell)
                specification.form(cell.spec)
            except (TypeError, ValueError) as e:
                raise ValueError(f"table {self.name}: the cell {cell.name!r}: {e}") from e
            file = slug(cell.name).casefold()
            if not file or len(file.encode()) > 200:
                raise ValueError(
                    f"table {self.name} has a cell {brief(cell.name)}, which names no file; use another name"
                )
            if file in files:
                raise ValueError(
                    f"table {self.name} has the cells {files[file]!r} and {cell.name!r}, whose results would be one "
                    f"file ({file}.json); use names that differ in letters or digits"
                )
            files[file] = cell.name
        return cells


@dataclass(frozen=True)
class Claim:
    """One statement of a document.

    name: short, unique.  place: where the document says it.  text: what it says, in our words.  printed: the evidence
    that it gives.  table, questions: the table that decides it, and in each profile the comparisons.  expected,
    margin: as `judge.verdict` and `judge.decide` have them.  settled: `(verdict, reason, test)` where no run is needed.
    own: a question of this book that the document does not answer; it has a verdict and is not counted as a claim.
    """

    name: str
    document: str
    place: str
    text: str
    printed: str
    table: str = ""
    questions: Mapping[str, Sequence[Question]] = field(default_factory=dict)
    expected: str = "better"
    margin: float | None = None
    settled: tuple[str, str, str] | None = None
    own: bool = False


def claims(
    document: str, questions: Mapping[str, Mapping[str, Sequence[Question]]], evidence: Mapping[str, str] = {}
) -> list[Claim]:
    """The claims of a document, as `claims.csv` has them.

    questions: by claim, those that decide it.  evidence: by claim, the printed evidence that `printed` gives.
    """
    rows = [row for row in _rows(FOLDER / "claims.csv") if row["document"] == document]
    return [
        Claim(
            row["name"],
            document,
            row["place"],
            row["text"],
            evidence.get(row["name"], row["printed"]),
            row["table"],
            questions.get(row["name"], {}),
            row["expected"] or "better",
            float(row["margin"]) if row["margin"] else None,
            (row["verdict"], row["reason"], row["test"]) if row["verdict"] else None,
            row["own"] == "yes",
        )
        for row in rows
    ]


def captions(name: str) -> dict[str, str]:
    """Profile -> caption, as `captions.csv` has them under this name.

    `search` says how settings were chosen: which sentence stands for `{search}`, and the values that it is given.
    """
    rows = _rows(FOLDER / "captions.csv")
    sentences, found = {row["name"]: row["text"] for row in rows if row["profile"] == "search"}, {}
    for row in (row for row in rows if row["name"] == name):
        which, _, values = row["search"].partition(": ")
        search = sentences[which].format(*values.split("; ")) if which else ""
        found[row["profile"]] = row["text"].replace("{search}", search)
    return found


def left_open(name: str) -> tuple[tuple[str, str], ...]:
    """`(setting the source leaves open, our choice)`, as `left_open.csv` has them under this name."""
    return tuple((row["setting"], row["ours"]) for row in _rows(FOLDER / "left_open.csv") if row["name"] == name)


def frame(document: str, **defaults: Any) -> Callable[..., Table]:
    """What the tables of a document share: a function `(name, title, cells, **more) -> Table`, with the texts that
    stand under the table's name unless it is given others."""

    def table(name: str, title: str, cells: Callable[[str], Sequence[Cell]], **more: Any) -> Table:
        texts = {"captions": captions(name), "left_open": left_open(name)}
        return Table(name, title, document, cells, **{**texts, **defaults, **more})

    return table


def slug(name: str) -> str:
    """A file name from a cell's name: letters and digits of any script stay, all else becomes a hyphen."""
    return "-".join(filter(None, "".join(c if c.isalnum() or c in "._=" else "-" for c in name).split("-")))


_added: list[tuple[Path, Table]] = []  # with the file that defines it


def tables() -> dict[str, Table]:
    """Every definition of the folder `documents` and of `add`, by name, in the order of the documents."""
    found = [*(table for module in documents() for table in module.TABLES), *(table for _, table in _added)]
    names = [table.name for table in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two definitions share a name: {sorted(n for n in set(names) if names.count(n) > 1)}")
    return {table.name: table for table in found}


@cache
def documents() -> tuple[ModuleType, ...]:
    """The modules of the folder `documents`, one for each source document."""
    names = sorted(m.name for m in pkgutil.iter_modules([Path(__file__).parent]) if re.match(r"s\d", m.name))
    return tuple(importlib.import_module(f"{__package__}.{name}") for name in names)


def add(file: str | os.PathLike) -> None:
    """Take in tables of your own: a Python file that defines `TABLES`, whose folder relative paths in their cells
    ("file.py:Name") start from.  A file that is added again is read again, in place of what it gave before.

    Raises ValueError for a file that is missing or does not run, with the line, and for one without `TABLES`.
    """
    found = getattr(user_files.load(file), "TABLES", None)
    if not isinstance(found, Sequence) or not all(isinstance(table, Table) for table in found):
        raise ValueError(f"{file} gives no definitions (TABLES is {found!r}); let it define TABLES = [Table(...), ...]")
    place = Path(file).resolve()
    _added[:] = [pair for pair in _added if pair[0] != place]
    _added.extend((place, _placed(table, place.parent)) for table in found)


def _placed(table: Table, folder: Path) -> Table:
    return replace(
        table,
        make=lambda profile: [cell.at(folder) if isinstance(cell, Cell) else cell for cell in table.make(profile)],
    )


def get(name: str) -> Table:
    """The definition called `name`; raises ValueError with those that are nearest."""
    import difflib

    if name not in tables():
        near = difflib.get_close_matches(name, tables(), 3, 0.3) or list(tables())
        raise ValueError(f"no table or figure is called {name!r}; did you mean {', '.join(near)}? `list` shows all")
    return tables()[name]


def printed(file: str, **where: str) -> float | None:
    """The value that a source prints: the one row of `documents/printed/FILE` whose columns are as `where` says.

    "441.19k" is 441190.  None where there is no such row, or no number in it.
    """
    rows = [row for row in _rows(PRINTED / file) if all(row[key] == value for key, value in where.items())]
    if len(rows) > 1:
        raise ValueError(f"{len(rows)} rows of {file} have {where}; name more columns")
    if not rows:
        return None
    value, unit = rows[0]["value"], {"k": 1e3, "M": 1e6}
    try:
        return float(value) if value[-1] not in unit else float(value[:-1]) * unit[value[-1]]
    except (IndexError, ValueError):  # "-", "yes": no number
        return None


def printed_table(file: str) -> Any:
    """All that a source prints in a table (pandas.DataFrame), as in `documents/printed/FILE`.

    Columns: table, dataset, setting, method, value, unit, bold, note.  Raises FileNotFoundError for an unknown file.
    """
    import pandas as pd

    return pd.read_csv(PRINTED / file)


@cache
def _rows(file: Path) -> list[dict[str, Any]]:
    with open(file, encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))
