"""Where a result comes from: the code that can change it, the machine, and what is known against it.

The code of a result is a hash over the modules of the package that its computation imports, read from the source: the
module of its study, that of its method, and everything that these import.  Comments, docstrings, annotations of
arguments and the layout of lines do not count, and neither do modules that only draw or store.  Modules that merely
list names (`CATALOGUES`) are left out, so that a new method makes no older result out of date.  What a definitions
file decides is the specification, which has a hash of its own (`cells.identity`).  Files of the user that a
specification names ("file.py:Name") count whole, with the files beside them and the modules of the package that they
import; whether they are committed is the user's matter.

The sources are read once, when the process starts: an edit while a batch runs does not change what the batch says.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..data.arrays import data_root
from ..data.readers import pack
from . import files

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
CATALOGUES = {"fedcore.algorithms", "fedcore.experiments.studies"}  # the specification says which entry is used
WITHOUT_RESULTS = {  # they draw, print or keep what was computed, or write specifications
    f"fedcore.{name}"
    for name in ("alt", "citations", "notebooks", "pages", "plots", "progress", "reproduce", "widgets",
                 "experiments.cells", "experiments.protocol", "experiments.provenance", "experiments.show",
                 "experiments.table", "experiments.tracing")
}  # fmt: skip


class UncommittedCode(RuntimeError):
    """A result that is to be kept would come from code that no commit holds."""


# --- the code of a result -----------------------------------------------------------------------------------------


@cache
def normalised(source: str) -> str:
    """The source as a tree in one line, the same for every layout and, so far as we know, every Python."""
    return _written(ast.parse(source))


def _written(node: Any) -> str:
    if isinstance(node, list):
        return "[" + ",".join(map(_written, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list) and value and _is_text(value[0]):
            value = value[1:]  # a docstring
        hint = name == "returns" or (name == "annotation" and isinstance(node, ast.arg))
        if value not in (None, []) and not hint:  # a newer Python has fields that are empty for older syntax
            fields.append(f"{name}={_written(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _imports(source: str, package: str) -> tuple[tuple[str, str, str], ...]:
    """(module, name there, name here) of all that a module in `package` imports, at its top or inside of a function.

    Of `import fedcore as fc` these are the names that are used of it: `fc.models.mlp` is `models` of `fedcore`, and
    `mlp` of `fedcore.models`.
    """
    out, tree = [], ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                used = _used(tree, alias) if alias.name.split(".")[0] == "fedcore" else [(alias.name, "")]
                out += [(base, name, "") for base, name in used]
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            out += [(base, alias.name, alias.asname or alias.name) for alias in node.names]
    return tuple(out)


def _used(tree: ast.AST, alias: ast.alias) -> list[tuple[str, str]]:
    """(module, name) of the attributes that are taken from an imported module of the package, and from these."""
    here, module = (alias.asname, alias.name) if alias.asname else ("fedcore", "fedcore")
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *names = ast.unparse(node).split(".")
            if first == here and all(name.isidentifier() for name in names):
                out.append((".".join([module, *names[:-1]]), names[-1]))
    return out


class Sources:
    """The source of the package, `module -> text`; `packages` are the modules that are an `__init__`."""

    def __init__(self, texts: Mapping[str, str], packages: Collection[str]) -> None:
        self.texts, self.packages = texts, packages
        self._digests: dict[tuple[str, ...], str] = {}

    def digest(self, roots: tuple[str, ...]) -> str:
        """A hash, 16 hexadecimal digits, of the modules that `roots` import and that can change a result."""
        if roots not in self._digests:
            parts = [(Path(module).name, normalised(self._text(module))) for module in self.reached(roots)]
            self._digests[roots] = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return self._digests[roots]

    def reached(self, roots: tuple[str, ...]) -> list[str]:
        """The modules that `digest` covers, sorted.  A root outside of the package is the path of a file."""
        found: set[str] = set()
        todo = list(roots)
        while todo:
            module = todo.pop()
            if module not in found | CATALOGUES | WITHOUT_RESULTS:
                found.add(module)
                package = module if module in self.packages else module.rpartition(".")[0]
                for base, name, _ in _imports(self._text(module), package):
                    todo += self._home(base, name)
                    if module not in self.texts:  # a file of the user may import those beside it
                        beside = Path(module).parent.joinpath(*base.split(".")).with_suffix(".py")
                        todo += [str(beside)] if beside.is_file() else []
        return sorted(found)

    def _text(self, module: str) -> str:
        return self.texts[module] if module in self.texts else files.source(module)

    def _home(self, base: str, name: str) -> list[str]:
        """The module that defines `name` of the module or package `base`; none outside of the package."""
        if f"{base}.{name}" in self.texts:
            return [f"{base}.{name}"]
        if base in self.packages:
            imported = _imports(self.texts[base], base)
            for module, there, here in imported:
                if here == name and module != base:
                    return self._home(module, there)
            for module, _, here in imported:
                if here == "*" and (found := self._home(module, name)) != [module]:
                    return found
        return [base] if base in self.texts else []


def _name(file: Path) -> str:
    return ".".join(("fedcore", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


FILES = {_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}
SOURCES = Sources(
    {name: file.read_text(encoding="utf-8") for name, file in FILES.items()},
    {name for name, file in FILES.items() if file.name == "__init__.py"},
)
LIBRARY = ("fedcore.run", *(name for name in FILES if name.startswith("fedcore.algorithms.")))


def code(spec: Mapping[str, Any]) -> str:
    """The hash of the source that can change a result of this specification."""
    return SOURCES.digest(roots(spec))


def data(spec: Mapping[str, Any]) -> str | None:
    """The hash of the data pack that a specification names; None where its data are no pack, which can be replaced."""
    federation = spec.get("federation") or {}
    name = federation.get("source")
    if not isinstance(name, str) or files.is_reference(name):
        return None
    file = pack(name.lower(), data_root(federation.get("root")))
    try:
        stat = file.stat()
        return _content(file, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return None


@cache
def _content(file: Path, size: int, changed: int) -> str:
    with open(file, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()[:16]


def library() -> str:
    """The hash of the source that can change a run of any method, for results that no specification describes."""
    return SOURCES.digest(LIBRARY)


def of_run(modules: Iterable[str]) -> str:
    """The hash of the source that can change a run of what these modules define; the user's may use any method."""
    ours = set(modules) - set(sys.builtin_module_names) - {"abc"}
    return SOURCES.digest(("fedcore.run", *sorted(ours))) if ours <= FILES.keys() else library()


def roots(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules where the computation begins; a study of the user's own by its file, if it has one, and so all files that
    the specification names.  Raises ValueError for one of these that is missing or no Python."""
    from .. import algorithms
    from . import studies

    methods = {method.__name__: method for method in algorithms.ALL}
    defined = [studies.find(spec), methods.get(spec.get("method", [""])[0])]
    found = [one.__module__ if one.__module__ in FILES else _file(one) for one in defined if one is not None]
    return (*filter(None, found), *files.named(spec), "fedcore.experiments.tuning")


def _file(defined: Any) -> str | None:
    functions = [f for f in (defined, *vars(defined).values()) if inspect.isfunction(f)]
    return next((name for f in functions if Path(name := f.__code__.co_filename).exists()), None)


# --- what may be kept ---------------------------------------------------------------------------------------------


def check_committed(file: Path, spec: Mapping[str, Any] | None = None) -> None:
    """Refuse to compute what `file` would keep while the code of the result differs from the last commit.

    spec: None for a result of `library()`.  A file is kept when it lies in the package's own git repository and git
    does not ignore it.  Raises UncommittedCode.
    """
    if (changed := _changed(spec)) and _is_kept(file.resolve()):
        raise UncommittedCode(
            f"{file} would keep a result of code that no commit holds: {', '.join(changed)} changed. Commit first; or "
            "use a results folder that git ignores, which `--uncommitted` does"
        )


def _changed(spec: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The uncommitted files that a result reaches; None: one of `library()`."""
    return uncommitted(*SOURCES.reached(LIBRARY if spec is None else roots(spec)))


@cache
def uncommitted(*names: str) -> tuple[str, ...]:
    """Which files of these modules differ from the last commit, as git names them; none outside of a repository."""
    changed = _git("status", "--porcelain", "--", *(str(FILES[name]) for name in names if name in FILES))
    return tuple(line[3:] for line in (changed or "").splitlines())


@cache
def _is_kept(file: Path) -> bool:
    ignored = _git("check-ignore", "-q", str(file)) is not None
    return file.is_relative_to(ROOT) and not ignored and _git("rev-parse", "--git-dir") is not None


def _git(*words: str) -> str | None:
    """What git says of the package's repository; None where it says nothing: no git, no repository, status not 0."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip()


# --- what is known against a result -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Superseded:
    """Results that rest on something known to be wrong: `applies(specification, run)`, and the reason in words."""

    reason: str
    applies: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


def _partition(spec: Mapping[str, Any]) -> str:
    return spec.get("federation", {}).get("partition", ["IID"])[0]


SUPERSEDED = [
    Superseded(
        "labels were dealt in a cycle, so that clients shared few sets of labels",
        lambda spec, run: _partition(spec) == "Shards" and "code" not in run,
    ),
    Superseded(
        "FedGSE ranked its neurons by the printed score, which batch norm cancels",
        lambda spec, run: spec.get("method", [""])[0] == "FedGSE" and "code" not in run,
    ),
]


def superseded(spec: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Why a stored run must not be relied on; "" where nothing is known against it."""
    return "; ".join(known.reason for known in SUPERSEDED if known.applies(spec, run))


# --- the machine --------------------------------------------------------------------------------------------------


def machine(device: str | None, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Device, threads, versions, the commit of a result of `spec`, and the yardstick of the machine that computes."""
    from .. import __version__

    used = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "device": torch.cuda.get_device_name(used) if used.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "version": __version__,
        "commit": commit(spec),
        "yardstick": round(yardstick(), 5),
    }


def commit(spec: Mapping[str, Any] | None = None) -> str | None:
    """The commit of the package's own repository, with "+" where `check_committed` would refuse to keep a result of
    `spec`; None outside of one."""
    head = _head()
    return head and head + ("+" if _changed(spec) else "")


@cache
def _head() -> str | None:
    return _git("rev-parse", "--short=12", "HEAD")


def processor() -> str:
    """The name of the CPU."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def yardstick() -> float:
    """Seconds of a small fixed amount of work (the best of three), to carry an estimate from machine to machine."""
    a = torch.linspace(-1, 1, 200 * 200, dtype=torch.float64).view(200, 200)

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(20):
            torch.tanh(a @ a)
        return time.perf_counter() - begin

    return min(once() for _ in range(3))
