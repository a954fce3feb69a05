"""Descriptions of the documents: tables and figures, their cells in every profile, claims, and printed numbers."""

from __future__ import annotations

import csv
import importlib
import os
import pkgutil
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from fedcore.support import checks
from fedcore.support.checks import brief

from ..studies import specification, user_files

FOLDER = Path(__file__).parent  # with the texts of claims, captions and settings that the documents leave open
PRINTED = FOLDER / "printed"  # every number that the documents print
PROFILES = ("quick", "desk", "paper")
Key = tuple[str, str]  # row, column
# row, the row that it is compared with, column; and the column of the second row, where that is another one
Question = tuple[str, str, str] | tuple[str, str, str, str]


@dataclass(frozen=True)
class Cell:
    """One entry of a table, with a `name` that is unique in its table and the specification `spec`.

    row, column: the position in our table.  source: the value that the document prints, None if it prints none.
    seeds: the number of reporting seeds of a complete cell.
    """

    name: str
    spec: Mapping[str, Any]
    row: checks.Text = ""
    column: checks.Text = ""
    source: Annotated[float, checks.Within(-1e300, 1e300)] | None = None
    seeds: checks.Count = 3

    def reporting(self, seeds: Sequence[int] | None = None) -> list[int]:
        """The reporting seeds: `seeds` if given, else 0, 1, ... for the number of the cell."""
        return list(range(self.seeds) if seeds is None else seeds)

    def at(self, folder: str | os.PathLike) -> Cell:
        """The cell with absolute paths for files of the user ("file.py:Name"), resolved from a folder."""
        return replace(self, spec=user_files.absolute(self.spec, folder))


@dataclass(frozen=True)
class Table:
    """A table or figure of a source document.

    name: as on the command line.  document: S000 to S004, or "known" for numbers that others published.  make: profile
    -> its cells.  captions: profile -> what was computed (data, size, seeds), for each profile of the table; on a
    second line, how settings were tuned.  A piece `[[COLUMN:words]]` is about columns whose names begin with COLUMN.
    left_open: `(setting that the source leaves open, our choice)`.  figure: a figure rather than a table.
    drawn_from: the name of the table whose cells it shows.  beside: the name of the figure whose cells it shows too.
    against: the reference row of gaps.  proposed: the row that the document proposes.  axis: the horizontal axis of a
    figure, "round" or the quantity that the columns vary; see `show.drawing`.
    """

    name: str
    title: str
    document: str
    make: Callable[[str], Sequence[Cell]]
    captions: dict[str, str]
    left_open: tuple[tuple[str, str], ...] = ()
    figure: bool = False
    drawn_from: str | None = None
    beside: str = ""
    against: str = "FedAvg"
    proposed: str | None = None
    unit: str = "%"
    axis: str = ""

    @property
    def compared(self) -> str:
        """The data for comparing two cells by seed: "images" (correctness of each test image), "values" (final values
        other than accuracies), or "logs" of final values, whose differences are ratios."""
        return {"cosine": "values", "points": "values", "rounds": "logs"}.get(self.unit, "images")

    def __post_init__(self) -> None:
        """Raise ValueError for a name that cannot name a folder, and for invalid captions."""
        if not isinstance(self.name, str) or slug(self.name) != self.name or not self.name.strip("."):
            raise ValueError(f"a table is called {self.name!r}; use letters, digits, '-', '_', '=' and '.' alone")
        if not isinstance(self.captions, Mapping) or not set(self.captions) <= set(PROFILES):
            raise ValueError(
                f"table {self.name}: captions={brief(self.captions)}; use a mapping to texts from {', '.join(PROFILES)}"
            )

    def caption(self, profile: str, columns: Collection[str] | None = None) -> tuple[str, str]:
        """What was computed, and how settings were tuned ("" if it is not said), with the pieces of these columns
        alone; None: of all."""

        def piece(found: re.Match[str]) -> str:
            shown = columns is None or any(column.startswith(found[1]) for column in columns)
            return found[2] if shown else ""

        computed, _, tuned = re.sub(r"\[\[(.+?):(.*?)\]\]", piece, self.captions[profile]).partition("\n")
        return computed.strip(), tuned

    def cells(self, profile: str) -> list[Cell]:
        """The cells of a profile; an empty list if the table does not have the profile.

        Raises ValueError if `make` fails or does not return valid cells, and for two cells that would share a file.
        """
        if profile not in self.captions:
            return []
        try:
            cells = list(self.make(profile))
        except ValueError:
            raise
        except Exception as e:  # any error of a user's function
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

    name: short and unique.  place: its place in the document.  text: the claim in our words.  printed: the evidence in
    the document.  table, questions: the table that decides the claim, and the comparisons by profile.  expected,
    margin: as in `judge.verdict` and `judge.decide`.  settled: `(verdict, reason, test)` if no run is needed.  own: a
    question of this book that the document leaves open; it has a verdict and is not counted as a claim.  compares:
    what is compared, as in `overview.answered`, where this is not what the table compares.  family: the name that the
    claims of one sentence about several rivals share.  tables: profile -> the table that decides there, where it is
    another than `table`.
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
    compares: str = ""
    family: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)

    def decided_by(self, profile: str) -> str:
        """The table whose results decide the claim in a profile."""
        return self.tables.get(profile, self.table)


def sides(question: Question) -> tuple[Key, Key]:
    """The two cells that a question compares, each as (row, column)."""
    row, base, column, *other = question
    return (row, column), (base, *(other or [column]))


def claims(
    document: str,
    questions: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Mapping[str, str]] = {},
) -> list[Claim]:
    """The claims of a document, from `claims.csv`.

    questions: claim -> the questions that decide it, by profile.  A row of the file whose text has "{rival}" stands for
    one claim per rival, or another part of its sentence, "NAME-rival"; its questions are rival -> the questions by
    profile.  tables: claim -> profile -> table, as in `Claim`.
    """
    found = []
    for row in (row for row in rows(FOLDER / "claims.csv") if row["document"] == document):
        asked = questions.get(row["name"], {})
        named = asked if "{rival}" in row["text"] else {"": asked}
        same = {key: row[key] for key in ("document", "place", "printed", "table", "compares")}
        same |= {"expected": row["expected"] or "better", "margin": float(row["margin"]) if row["margin"] else None}
        same |= {"settled": (row["verdict"], row["reason"], row["test"]) if row["verdict"] else None}
        same |= {"own": row["own"] == "yes", "tables": tables.get(row["name"], {})}
        for rival, of_profile in named.items():
            name, family = (f"{row['name']}-{slug(rival).lower()}", row["name"]) if rival else (row["name"], "")
            text = row["text"].replace("{rival}", rival)
            found.append(Claim(name, text=text, questions=of_profile, family=family, **same))
    return found


def captions(name: str) -> dict[str, str]:
    """Profile -> caption (`Table.captions`), from the rows of `captions.csv` with this name.

    The column `search` has the second line, or the name of a sentence in the file and the values in that sentence.
    """
    lines = rows(FOLDER / "captions.csv")
    sentences, found = {row["name"]: row["text"] for row in lines if row["profile"] == "search"}, {}
    for row in (row for row in lines if row["name"] == name):
        which, _, values = row["search"].partition(": ")
        tuned = sentences[which].format(*values.split("; ")) if which in sentences else row["search"]
        found[row["profile"]] = "\n".join(filter(None, (row["text"], tuned)))
    return found


def left_open(name: str) -> tuple[tuple[str, str], ...]:
    """`(setting that the source leaves open, our choice)`, from the rows of `left_open.csv` with this name."""
    return tuple((row["setting"], row["ours"]) for row in rows(FOLDER / "left_open.csv") if row["name"] == name)


def frame(document: str, **defaults: Any) -> Callable[..., Table]:
    """A constructor for the tables of a document, `(name, title, cells, **more) -> Table`, with shared `defaults` and
    the texts in the CSV files under the table's name, unless others are given."""

    def table(name: str, title: str, cells: Callable[[str], Sequence[Cell]], **more: Any) -> Table:
        texts = {"captions": captions(name), "left_open": left_open(name)}
        return Table(name, title, document, cells, **{**texts, **defaults, **more})

    return table


def slug(name: str) -> str:
    """A file name from a cell's name: letters and digits of any script, `.`, `_` and `=` stay; others become
    hyphens."""
    return "-".join(filter(None, "".join(c if c.isalnum() or c in "._=" else "-" for c in name).split("-")))


_added: list[tuple[Path, Table]] = []  # (file that defines it, table)


def tables() -> dict[str, Table]:
    """Every table of the folder `documents` and of `add`, by name, in the order of the documents.  Raises ValueError if
    two have the same name."""
    found = [*(table for module in documents() for table in module.TABLES), *(table for _, table in _added)]
    names = [table.name for table in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two definitions share a name: {sorted(n for n in set(names) if names.count(n) > 1)}")
    return {table.name: table for table in found}


@cache
def documents() -> tuple[ModuleType, ...]:
    """The modules of the folder `documents`: one for each source document, and the known numbers."""
    names = sorted(m.name for m in pkgutil.iter_modules([Path(__file__).parent]) if re.match(r"s\d|known", m.name))
    return tuple(importlib.import_module(f"{__package__}.{name}") for name in names)


def add(file: str | os.PathLike) -> None:
    """Add your own tables from a Python file that defines `TABLES`.  Relative paths in their cells ("file.py:Name")
    start from the file's folder.  A file that is added again replaces its earlier tables.

    Raises ValueError for a file that is missing, for one that raises an error (with the line), and for one without
    `TABLES`.
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
    """The table called `name`.  Raises ValueError with the nearest names for an unknown one."""
    import difflib

    if name not in tables():
        near = difflib.get_close_matches(name, tables(), 3, 0.3) or list(tables())
        raise ValueError(
            f"no table or figure is called {name!r}; did you mean {', '.join(near[:3])}? `list` shows all; one of your "
            "own needs --definitions FILE.py"
        )
    return tables()[name]


def printed(file: str, **where: str) -> float | None:
    """The value that a source prints: the only row of `documents/printed/FILE` with the columns `where`.

    "441.19k" is 441190.  None if there is no such row, or no number in it.  Raises ValueError for several rows.
    """
    found = [row for row in rows(PRINTED / file) if all(row[key] == value for key, value in where.items())]
    if len(found) > 1:
        raise ValueError(f"{len(found)} rows of {file} have {where}; name more columns")
    if not found:
        return None
    value, unit = found[0]["value"], {"k": 1e3, "M": 1e6}
    try:
        return float(value) if value[-1] not in unit else float(value[:-1]) * unit[value[-1]]
    except (IndexError, ValueError):  # "-", "yes": no number
        return None


def printed_table(file: str) -> Any:
    """All numbers that a source prints in a table (pandas.DataFrame), from `documents/printed/FILE`.

    Columns: table, dataset, setting, method, value, unit, bold, note.  Raises FileNotFoundError for an unknown file.
    """
    import pandas as pd

    return pd.read_csv(PRINTED / file)


@cache
def rows(file: Path) -> list[dict[str, Any]]:
    """The lines of a CSV file by the names of their columns."""
    with open(file, encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))
