"""List what a new method, layer, data set, table or chapter still lacks, with the file to edit.

    python tools/lacking.py     print one line for each missing part; the exit status is 0 if nothing is missing

A test runs `everything` first, so that a new method without its row in the map fails with one sentence, and not in
forty tests with a KeyError.  Where that finds nothing, `stale` looks further.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fedcore as fc  # noqa: E402
from fedbook.documents import citations  # noqa: E402
from fedbook.documents.definitions import Table, slug, tables  # noqa: E402
from fedbook.pictures import styles  # noqa: E402
from fedcore import algorithms  # noqa: E402
from fedcore.data import readers, sources  # noqa: E402
from fedcore.engine.layers.table import RULES  # noqa: E402
from tools import book, cards, chapter_runs, expect, page_cells  # noqa: E402

OF_NO_SOURCE = ("your_own", "systems", "conclusion")  # chapters without a source that they could leave
TESTS = (  # whose messages say what to edit
    "tests/tools/test_structure.py::test_no_part_has_more_lines_of_code_than_it_is_allowed",
    "tests/book/test_cards.py::test_pages_are_what_the_code_and_the_results_give",
    "tests/book/test_notation.py", "tests/book/test_prose.py",
    "tests/engine/test_modules.py::test_gradients_are_autograds_on_the_module_alone",
    "tests/book/test_book.py::test_a_chapter_is_stored_as_refresh_writes_it_with_every_cell_run",
    "tests/book/test_book.py::test_a_chapter_checks_all_its_parameters_and_ends_with_its_record",
)  # fmt: skip


def text(*names: str) -> str:
    """The joined texts of these files, and of all Python files in these folders."""
    found = [ROOT / name for name in names]
    files = [file for path in found for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def unshown(chapter: str, names: Iterable[str]) -> Iterator[str]:
    """Those of these names that a chapter's stored outputs do not have."""
    outputs = str([cell.get("outputs") for cell in book.read(ROOT / "book" / f"{chapter}.ipynb").cells])
    for name in names:
        if not re.search(rf"\b{re.escape(name)}\b", outputs):
            yield f"{name} is not on the page {chapter}: run tools/book.py refresh {chapter}"


def failing(*tests: str) -> list[str]:
    """The first line of what each failing test says, with the test's name."""
    words = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "COLUMNS": "3000"}, capture_output=True, text=True)
    found = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - (?:AssertionError: )?(.*))?$", done.stdout, re.MULTILINE)
    return [f"{said} ({name})" for name, said in found]


def stale() -> list[str]:
    """What TESTS say, and the small run of the report, which counts tables and findings: half a minute."""
    (numbers,) = chapter_runs.records([chapter_runs.Job("report")])
    remedy = "run tools/expect.py report and tools/book.py refresh report"
    named = tables().keys() - {table.beside for table in tables().values()}  # the report shows these within another
    found = [*unshown("comparison", (kind.__name__ for kind in fc.ALL)), *unshown("report", named), *failing(*TESTS)]
    return found + [f"the report: {line}; {remedy}" for line in expect.deviations("report", numbers)]


def defined() -> list[type[fc.Method]]:
    """The methods in the modules of `fedcore.algorithms`: classes in `fc.ALL`, and classes without subclasses there."""
    modules = [import_module(f"fedcore.algorithms.{module.name}") for module in iter_modules(algorithms.__path__)]
    kinds = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
    kinds = {kind for kind in kinds if issubclass(kind, fc.Method) and kind.__module__.startswith("fedcore.algorithms")}
    return sorted(
        (kind for kind in kinds if kind in fc.ALL or not any(kind in other.__mro__[1:] for other in kinds)),
        key=lambda kind: kind.__name__,
    )


def is_cited(name: str) -> bool:
    """Whether the bibliography has an entry for this name."""
    try:
        return bool(citations.cite(name))
    except ValueError:
        return False


def of_method(kind: type[fc.Method]) -> Iterator[str]:
    """What a method lacks."""
    name, title = kind.__name__, cards.title(kind)
    file = Path(inspect.getsourcefile(kind)).relative_to(ROOT)
    if kind not in fc.ALL:
        yield f"{name} is in no list: import it and add it to ALL in fedcore/algorithms/__init__.py"
        return
    if not re.search(r"\b(19|20)\d\d\b", inspect.getdoc(kind) or ""):
        yield f"{name} names no source: write its equation, authors and year in the docstring in {file}"
    if not kind().cost().stated:
        yield f"{name} changes the round and does not say what it costs: write cost(self, layout=None) in {file}"
    if f"{{doc}}`{title} <methods/{cards.page(kind)}>`" not in text("book/map.md"):
        yield f"{title} has no row in book/map.md: what is broadcast, a local step, what is aggregated, the state"
    if not is_cited(name):
        yield f"{name} has no entry in fedbook/documents/references.bib: one whose keywords have {name}"
    if not re.search(rf"^class {name}\b", text("tests/reference.py"), re.M):
        yield f"{name} has no loop in tests/reference.py: a class {name} that computes the round client by client"
    if f'"fingerprint/{name}' not in text("tests/expected/comparison.json"):
        yield f"{name} has no stored number in the comparison's small run: run tools/expect.py comparison"
    if kind is not fc.FedAvg and styles.looks([title]) == styles.looks(["FedAvg"]):
        yield f"{title} is drawn as FedAvg is: give it a colour, a marker and a line in fedbook/pictures/styles.py"


def of_layer(kind: type) -> Iterator[str]:
    """What a layer of the engine's table lacks; the engine's own classes represent calls in a module's forward."""
    tested = re.search(rf"\b{kind.__name__}\b", text("tests/engine", "tests/networks.py"), re.I)
    if not tested and not kind.__module__.startswith("fedcore.engine"):
        yield f"{kind.__name__} has a rule and no test: put it into a network of tests/engine"


def of_readers() -> Iterator[str]:
    """Readers that no name leads to."""
    code = text("fedcore/data/readers.py")
    for name, f in inspect.getmembers(readers, inspect.isfunction):
        if f.__annotations__.get("return") == "Source" and len(re.findall(rf"\b{name}\b", code)) == 1:
            yield f"the reader {name} has no entry in READERS, at the end of fedcore/data/readers.py"


def of_source(name: str) -> Iterator[str]:
    """What a data set lacks."""
    if not re.search(rf"\b{re.escape(name.partition('-')[0])}", text("tests/data"), re.IGNORECASE):
        yield f"the source {name!r} has no test: read a file of its format in tests/data/test_data.py"
    # the package makes the roles itself
    if name != "roles" and not is_cited(name) and not is_cited(name.partition("-")[0]):
        yield f"the source {name!r} has no entry in fedbook/documents/references.bib: one whose keywords have {name}"


def of_table(table: Table) -> Iterator[str]:
    """What a table or figure of a document lacks."""
    if not table.captions:
        yield f"the table {table.name} has no profile: say what was computed, in fedbook/documents/captions.csv"
    folder = ROOT / "results" / "quick" / (table.drawn_from or table.name)
    missing = [cell.name for cell in table.cells("quick") if not (folder / f"{slug(cell.name)}.json").exists()]
    if missing:
        yield f"{table.name} has no result for {missing[0]}: commit its code, then run -m fedbook {table.name}"


def of_chapter(path: Path) -> Iterator[str]:
    """What a chapter lacks."""
    name, source = path.stem, "\n".join(cell.source for cell in book.read(path).cells)
    if f"book/{name}" not in book.pages(ROOT):
        yield f"the chapter {name} is in no list: add book/{name} to _toc.yml"
        return
    if name not in OF_NO_SOURCE and not re.search(r"^[^#\n]*departures\(", source, re.MULTILINE):
        yield (
            f"the chapter {name} does not say where it leaves its source: show its lines of "
            f"fedbook/verdicts/departures.csv by fedbook.verdicts.findings.departures({name!r})"
        )
    if f"{{doc}}`{name}`" not in text("book/index.md"):
        yield f"the chapter {name} is not among those of the landing page: add a line to book/index.md"
    if not (ROOT / "tests" / "expected" / f"{name}.json").exists():
        yield f"the chapter {name} has no stored numbers of its small run: run tools/expect.py {name}"
    tagged = page_cells.set_tags(book.read(path), name)
    if [cell.metadata for cell in tagged.cells] != [cell.metadata for cell in book.read(path).cells]:
        yield f"the chapter {name} has cells without the tags of its page: run tools/page_cells.py {name}"


def everything() -> list[str]:
    """All that is lacking."""
    found = [line for kind in defined() for line in of_method(kind)]
    found += [line for kind in RULES for line in of_layer(kind)]
    found += of_readers()
    found += [line for name in sources.NAMES for line in of_source(name)]
    found += [line for table in tables().values() for line in of_table(table)]
    return found + [line for path in sorted((ROOT / "book").glob("*.ipynb")) for line in of_chapter(path)]


if __name__ == "__main__":
    lines = everything() or stale()
    print("\n".join(lines) or "nothing is lacking")
    sys.exit(bool(lines))
