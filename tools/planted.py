"""Plant one error at a time into a copy of the package, and report which errors the tests catch.

    python -m tools.planted                 # all errors, one process at a time
    python -m tools.planted FedSMOO mixing  # errors whose place or test selection contains one of these words

Each row of `planted.csv` is an error: the fastest tests that must fail for it (a file, and words for pytest's `-k`), a
place in the package, a text that occurs there exactly once, and its replacement.  A place is a dotted name, such as
`FedAvg.aggregate` or `topology.gap`, in any file of the package.  Rows whose place or text no longer fits are refused
by name before any test runs; a selection of tests that is empty, or fails without the error, has a separate verdict.
The exit status is 0 if all errors are caught.
"""

from __future__ import annotations

import ast
import csv
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("fedcore", "fedbook")
COPIED = (*PACKAGES, "tests", "tools", "pyproject.toml", "requirements.txt", "README.md", "USAGE.md")
NO_TEST = "these tests are empty or fail without the error"


class Planted(NamedTuple):
    """An error: in the class, function or module `place`, `text` becomes `error`; `-k words` of the file `tests`."""

    place: str
    text: str
    error: str
    tests: str = ""
    words: str = ""


def table() -> list[Planted]:
    """The errors in `planted.csv`; a text of several lines is written there as in the source."""
    with open(ROOT / "tools" / "planted.csv", newline="", encoding="utf-8") as file:
        return [Planted(**row) for row in csv.DictReader(file)]


# --- finding and planting ----------------------------------------------------------------------------------------


Definition = tuple[str, Path, int, int]


@cache
def definitions() -> list[Definition]:
    """Every module, class and function of the packages: dotted name, file below the root, first and last line."""
    found: list[Definition] = []

    def walk(node: ast.AST, name: str, file: Path) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found.append((f"{name}.{child.name}", file, child.lineno, child.end_lineno))
                walk(child, f"{name}.{child.name}", file)

    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        text, file = path.read_text(), path.relative_to(ROOT)
        name = ".".join(file.with_suffix("").parts)
        found.append((name, file, 1, len(text.splitlines())))
        walk(ast.parse(text), name, file)
    return found


def planted(error: Planted, root: Path = ROOT) -> tuple[Path, str]:
    """The file below `root` with the error's place, and its text with the error.  Raises LookupError if the error does
    not fit."""
    places = [d for d in definitions() if f".{d[0]}".endswith(f".{error.place}")]
    if len(places) != 1:
        raise LookupError(f"{error.place}: {len(places)} definitions of that name")
    _, file, first, last = places[0]
    lines = (root / file).read_text().splitlines(keepends=True)
    body = "".join(lines[first - 1 : last])
    if body.count(error.text) != 1:
        raise LookupError(f"{error.place}: {error.text!r} stands there {body.count(error.text)} times")
    return root / file, "".join([*lines[: first - 1], body.replace(error.text, error.error), *lines[last:]])


def run(folder: Path, tests: str, words: str) -> int:
    """pytest's exit status for a selection of tests, in a fork that has already imported torch."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(folder)
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        import pytest

        file = next(Path("tests").rglob(tests))
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", str(file), "-k", words])
    finally:
        os._exit(int(status))


def main(words: list[str]) -> int:
    """Plant the errors that contain one of the words (default: all), and print a table; returns 0 if all are caught."""
    errors = [e for e in table() if not words or any(w in f"{e.place} {e.tests} {e.words}" for w in words)]
    sys.dont_write_bytecode = True
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # two thirds of a child's time
    for name in ("torch", "numpy", "pytest", "pandas", "hypothesis", "matplotlib.pyplot"):  # imported once for all
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        skip = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=skip)
            else:
                shutil.copy(source, folder / name)
        misfits, texts = [], []
        for error in errors:
            try:
                texts.append(planted(error, folder))
            except LookupError as e:
                misfits.append(str(e))
        if misfits:
            print("these entries no longer fit the source:", *misfits, sep="\n  ")
            return 2
        verdicts: Counter[str] = Counter()
        without: dict[tuple[str, str], int] = {}
        for error, (file, text) in zip(errors, texts, strict=True):
            sound, begin = file.read_text(), time.perf_counter()
            selection = error.tests, error.words
            if selection not in without:
                without[selection] = run(folder, *selection)
            file.write_text(text)
            status = run(folder, *selection)
            file.write_text(sound)
            verdict = {0: "MISSED", 1: "caught"}.get(status, f"exit {status}")
            if without[selection]:
                verdict = f"{NO_TEST} ({without[selection]})"
            verdicts[verdict] += 1
            change = f"{error.text.strip()!r} -> {error.error.strip()!r}"
            print(f"{verdict:7} {time.perf_counter() - begin:5.1f} s  {error.place:28} {change}", flush=True)
        print(*(f"{verdict}: {n}" for verdict, n in verdicts.items()), sep=", ")
    return 0 if set(verdicts) == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
