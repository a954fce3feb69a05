"""Where a result comes from: the code that can change it, the machine, and what is known against it.

The code of a result is a hash (`storage.sources`) over the modules that its computation imports: the module of its
study, that of its method, and everything that these import.  Modules that only draw or store do not count, nor do those
that merely list names (`CATALOGUES`), so that a new method makes no older result out of date.  What a definitions file
decides is the specification, which has a hash of its own (`cells.identity`).  Files of the user that a specification
names ("file.py:Name") count whole, with the files beside them and the modules of the package that they import; whether
they are committed is the user's matter.

The sources are read once, when the process starts: an edit while a batch runs does not change what the batch says.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedcore.data.arrays import data_root
from fedcore.data.readers import pack
from fedcore.storage import sources
from fedcore.storage.sources import Sources

from ..studies import user_files

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = sources.CATALOGUES | {"fedbook.studies"}  # the specification says which entry is used
WITHOUT_RESULTS = sources.WITHOUT_RESULTS | {  # they draw, print or keep, or write or check specifications
    "fedbook.pages", "fedbook.reproduce", "fedbook.show", "fedbook.documents.*",
    "fedbook.pictures.*", "fedbook.results.*", "fedbook.show.*", "fedbook.studies.specification",
}  # fmt: skip
FILES = sources.read("fedcore", "fedbook")
SOURCES = Sources.of(FILES, CATALOGUES | WITHOUT_RESULTS)


class UncommittedCode(RuntimeError):
    """A result that is to be kept would come from code that no commit holds."""


# --- the code of a result -----------------------------------------------------------------------------------------


def code(spec: Mapping[str, Any]) -> str:
    """The hash of the source that can change a result of this specification."""
    return SOURCES.digest(roots(spec))


def data(spec: Mapping[str, Any]) -> str | None:
    """The hash of the data pack that a specification names; None where its data are no pack, which can be replaced."""
    federation = spec.get("federation") or {}
    name = federation.get("source")
    if not isinstance(name, str) or user_files.is_reference(name):
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


def roots(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules where the computation begins; a study of the user's own by its file, if it has one, and so all files that
    the specification names.  Raises ValueError for one of these that is missing or no Python."""
    from fedcore import algorithms

    from .. import studies

    methods = {method.__name__: method for method in algorithms.ALL}
    defined = [studies.find(spec), methods.get(spec.get("method", [""])[0])]
    found = [one.__module__ if one.__module__ in FILES else _file(one) for one in defined if one is not None]
    return (*filter(None, found), *user_files.named(spec), "fedbook.studies.tuning")


def _file(defined: Any) -> str | None:
    functions = [f for f in (defined, *vars(defined).values()) if inspect.isfunction(f)]
    return next((name for f in functions if Path(name := f.__code__.co_filename).exists()), None)


# --- what may be kept ---------------------------------------------------------------------------------------------


def check_committed(file: Path, spec: Mapping[str, Any] | None = None) -> None:
    """Refuse to compute what `file` would keep while the code of the result differs from the last commit.

    spec: None for a result of `sources.library`.  A file is kept when it lies in the package's own git repository and
    git does not ignore it.  Raises UncommittedCode.
    """
    if (changed := _changed(spec)) and _is_kept(file.resolve()):
        raise UncommittedCode(
            f"{file} would keep a result of code that no commit holds: {', '.join(changed)} changed. Commit first; or "
            "use a results folder that git ignores, which `--uncommitted` does"
        )


def _changed(spec: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The uncommitted files that a result reaches; None: one of `sources.library`."""
    return uncommitted(*SOURCES.reached(sources.library_roots() if spec is None else roots(spec)))


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
    from fedcore import __version__

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
