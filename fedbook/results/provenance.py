"""Where a result comes from: the code that can change it, and the machine.

The code of a result is a hash (`storage.sources`) over the modules that its computation imports: the module of its
study, that of its method, and everything that these import.  Modules that only draw or store do not count, nor do those
that merely list names (`CATALOGUES`), so that a new method does not make older results outdated.  A definitions file
determines the specification, which has its own hash (`cells.identity`).  Files of the user that a specification names
("file.py:Name") count whole, with the files beside them and the modules of the package that they import; the user
decides whether to commit them.

The sources are read once, when the process starts, so an edit during a batch does not change the recorded hashes.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedcore.data.arrays import data_root
from fedcore.data.readers import pack
from fedcore.engine import products
from fedcore.storage import sources
from fedcore.storage.sources import Sources

from ..studies import user_files

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = sources.CATALOGUES | {"fedbook.studies"}  # the specification names the entry in use
WITHOUT_RESULTS = sources.WITHOUT_RESULTS | {  # these draw, print, store, or write or check specifications
    "fedbook.pages", "fedbook.reproduce", "fedbook.show", "fedbook.documents.*",
    "fedbook.pictures.*", "fedbook.results.*", "fedbook.show.*", "fedbook.studies.specification",
}  # fmt: skip
FILES = sources.read("fedcore", "fedbook")
SOURCES = Sources.of(FILES, CATALOGUES | WITHOUT_RESULTS)


class UncommittedCode(RuntimeError):
    """The repository would keep a result of code that is not committed."""


# --- the code of a result -----------------------------------------------------------------------------------------


def code(spec: Mapping[str, Any]) -> str:
    """The hash of the source code that can change a result of this specification."""
    return SOURCES.digest(roots(spec))


def data(spec: Mapping[str, Any]) -> str | None:
    """The hash of the data pack that a specification names, because a pack can be replaced; None for other data."""
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
    """The modules where the computation begins, and the files of the user's own studies and of all other names in the
    specification.  Raises ValueError for a file that is missing or is not Python."""
    from fedcore import algorithms

    from .. import studies

    methods = {method.__name__: method for method in algorithms.ALL}
    defined = [studies.find(spec), methods.get(spec.get("method", [""])[0])]
    found = [one.__module__ if one.__module__ in FILES else _file(one) for one in defined if one is not None]
    return (*filter(None, found), *user_files.named(spec), "fedbook.studies.tuning")


def _file(defined: Any) -> str | None:
    functions = [f for f in (defined, *vars(defined).values()) if inspect.isfunction(f)]
    return next((name for f in functions if Path(name := f.__code__.co_filename).exists()), None)


# --- uncommitted code ---------------------------------------------------------------------------------------------


def check_committed(file: Path, spec: Mapping[str, Any] | None = None) -> None:
    """Raise UncommittedCode if the repository would keep `file` and the code of its result is not committed.

    spec: None for a result whose code is `sources.library`.  The repository keeps a file that lies in it and that git
    does not ignore.
    """
    if (changed := _changed(spec)) and _is_kept(file.resolve()):
        raise UncommittedCode(
            f"{file} would keep a result of code that is not committed: {', '.join(changed)} changed. Commit first, "
            "or use a results folder that git ignores, as `--uncommitted` does"
        )


def is_trial(folder: Path) -> bool:
    """Whether results of today's code in `folder` may be refused: code is uncommitted and the repository keeps them."""
    return bool(uncommitted(*FILES)) and _is_kept(folder.resolve())


def _changed(spec: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The uncommitted files among the code of a result.  spec: None for a result whose code is `sources.library`."""
    return uncommitted(*SOURCES.reached(sources.library_roots() if spec is None else roots(spec)))


@cache
def uncommitted(*names: str) -> tuple[str, ...]:
    """The files of these modules that differ from the last commit, as git names them; empty outside a repository."""
    changed = _git("status", "--porcelain", "--", *(str(FILES[name]) for name in names if name in FILES))
    return tuple(line[3:] for line in (changed or "").splitlines())


@cache
def _is_kept(file: Path) -> bool:
    ignored = _git("check-ignore", "-q", str(file)) is not None
    return file.is_relative_to(ROOT) and not ignored and _git("rev-parse", "--git-dir") is not None


def _git(*words: str) -> str | None:
    """The output of git for the package's repository; None without git or a repository, or if git fails."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip()


# --- the machine --------------------------------------------------------------------------------------------------


def machine(device: str | None, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Device, threads, library of products, versions, and commit of a result of `spec`."""
    from fedcore import __version__

    used = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "device": torch.cuda.get_device_name(used) if used.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "products": products.library(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "version": __version__,
        "commit": commit(spec),
    }


def commit(spec: Mapping[str, Any] | None = None) -> str | None:
    """The commit of the package's repository, with "+" if code of a result of `spec` is uncommitted; None outside a
    repository."""
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
