"""Write a table or a chapter from a template that already runs, for you to edit.

python -m fedbook.new table NAME       NAME.py: your own method in a table beside ten baselines, all tuned alike
python -m fedbook.new chapter NAME     book/NAME.ipynb: a chapter with its frame, listed in _toc.yml
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from fedcore.support.progress import say

from .documents.definitions import tables
from .results import provenance
from .studies import user_files

TEMPLATES = Path(__file__).with_name("templates")
_PROFILES = {
    "quick": {
        "source": '"digits", "clients": 50', "model": "protocol.MLP", "short": "15", "seeds": "10",
        "run": '{"rounds": 40, "cohort": 5, "local_epochs": 4, "batch_size": 10, "eval_every": 5}',
        "caption": "8x8 digits, Dirichlet 0.3, an MLP",
    },
    "desk": {
        "source": '"cifar10", "clients": 100', "model": '"cifar_cnn"', "short": "[30, 120]", "seeds": "5",
        "run": '{"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 32, "eval_every": 10}',
        "caption": "CIFAR-10, Dirichlet 0.3, a small CNN",
    },
}  # fmt: skip
_TO_DO = """\
{file} runs as it stands and is the last chapter of _toc.yml; then
  write it, and run it by        {python} tools/book.py run {name}
  say where it leaves its source in fedbook/verdicts/departures.csv, and show that in the cell above its summary
  ask stored results for claims in a module of fedbook/documents, CLAIMS, and show them by show.box([...])
  store what it shows by         {python} tools/page_cells.py {name} && {python} tools/book.py refresh {name}
  store its small run's numbers  {python} tools/expect.py {name}
  declare typed results of prose in tests/expected/prose.csv; {python} tools/lacking.py says what is missing"""
_TO_RUN = """\
{file} has a method and its table; edit it, then run
  {python} -m fedbook {name} --definitions {file}{more}
  {python} -m fedbook report {name} --definitions {file} --format markdown{trial}"""


def table(name: str, profile: str = "quick", folder: Path = Path()) -> str:
    """Write `NAME.py` with a method and its table, called NAME; returns the next steps as text.

    Raises ValueError if the name is not a Python identifier, or is that of a table, a baseline, a word of the command
    or an importable module; if the profile has no template; and if the file exists.
    """
    from fedcore import algorithms

    from .documents.protocol import BASELINES

    title = name[:1].upper() + name[1:]
    if not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_":
        raise ValueError(f"{name!r} cannot name a module; use letters, digits and _, such as FedNew")
    taken = {*tables(), *algorithms.__all__, *BASELINES, "Table", "all", "list", "new", "report"}
    if {name, title} & taken:
        raise ValueError(f"{name!r} is taken by the package; choose another name")
    file = folder / f"{name}.py"
    if not file.exists() and _is_importable(name):
        raise ValueError(f"{file} would hide the module {name}, which Python imports; choose another name")
    if profile not in _PROFILES:
        raise ValueError(f"profile {profile!r} has no template; use one of {', '.join(_PROFILES)}")
    _write(file, "table.py.txt", _PROFILES[profile] | {"name": name, "title": title, "profile": profile})
    trial = " --uncommitted" if provenance.is_trial(Path("results")) else ""
    more = ("" if profile == "quick" else f" --profile {profile}") + trial
    return _TO_RUN.format(python=_python(), name=name, file=file, more=more, trial=trial)


def chapter(name: str, folder: Path = Path()) -> str:
    """Write `book/NAME.ipynb`, a chapter that already runs, and list it in `_toc.yml`; returns the next steps as text.

    The chapter has the usual frame: a title with learning goals, parameters, imports, a question with its claim box,
    a summary, and the record.  folder: the folder of the book, which contains `_toc.yml`.

    Raises ValueError if the name has characters other than lower-case letters and _, if `folder` has no `_toc.yml`
    with chapters, and if the page exists.
    """
    contents, file = folder / "_toc.yml", folder / "book" / f"{name}.ipynb"
    if not re.fullmatch("[a-z]+(_[a-z]+)*", name):
        raise ValueError(f"{name!r} cannot name a chapter; use lower-case letters and _, such as feature_shift")
    listed = contents.read_text("utf-8") if contents.is_file() else ""
    parts = re.fullmatch(r"(.*numbered: true\n    chapters:\n(?:      - file: book/\w+\n)+)(.*)", listed, re.DOTALL)
    if parts is None:
        raise ValueError(f"{contents.resolve()} does not exist or lists no chapters; start in the folder of the book")
    if file.with_suffix(".md").exists():
        raise ValueError(f"{file.with_suffix('.md')} is a page of this name; choose another name")
    _write(file, "chapter.ipynb", {"title": name.replace("_", " ").capitalize(), "name": name})
    contents.write_text(f"{parts[1]}      - file: book/{name}\n{parts[2]}", encoding="utf-8")
    return _TO_DO.format(python=_python(), name=name, file=file)


def _python() -> str:
    """This interpreter as one types it here."""
    used = Path(sys.executable)
    return str(used.relative_to(Path.cwd()) if used.is_relative_to(Path.cwd()) else used)


def _write(file: Path, template: str, values: Mapping[str, str]) -> None:
    text = Template((TEMPLATES / template).read_text("utf-8")).substitute(values)
    try:
        with open(file, "x", encoding="utf-8") as f:
            f.write(text)
    except FileExistsError as e:
        raise ValueError(f"{file} exists and is left as it is; choose another name") from e


def _is_importable(name: str) -> bool:
    """Whether a module has this name in any case: some file systems do not distinguish `Torch.py` from `torch.py`."""
    found = [importlib.util.find_spec(one) for one in {name, name.lower()}]
    return any(spec is not None and str(Path(spec.origin or "").parent) not in user_files.ADDED for spec in found)


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0, or 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        prog="python -m fedbook.new", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("table", "chapter"))
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--profile", default="quick", help="of a table: quick or desk")
    given = parser.parse_args(words)
    try:
        print(table(given.name, given.profile) if given.kind == "table" else chapter(given.name))
    except ValueError as e:
        say(str(e))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
