"""Methods, models, partitions and sources from files of the user: "file.py:Name" in place of a name of the package.

A path is relative to the definitions file that names it (`definitions.add`), elsewhere to the current folder.  A cell's
identity contains the name of the file but not its folder, so that results stay valid when a project moves; the content
of the file counts as code of the result (`provenance.code`).

A file is executed once, in the process that runs the cell, in any current folder: let the file find its neighbours by
`Path(__file__)`.  Data that the file reads are not part of the hash of the code.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedcore.storage.identity import short
from fedcore.storage.sources import readable

_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*)", re.DOTALL)
ADDED: set[str] = set()  # folders that `load` added to sys.path


def is_reference(name: Any) -> bool:
    """Whether this is "file.py:Name", not a name of the package."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def absolute(spec: Any, folder: str | os.PathLike) -> Any:
    """The specification with an absolute path in every "file.py:Name", resolved from a folder."""
    return _each(spec, lambda file, name: f"{Path(folder, file).resolve()}:{name}")


def portable(spec: Any) -> Any:
    """The specification with every "file.py:Name" reduced to the file's name without its folder."""
    return _each(spec, lambda file, name: f"{Path(file).name}:{name}")


def named(spec: Any) -> list[str]:
    """The paths of all files that a specification names, without duplicates."""
    found: dict[str, None] = {}
    _each(spec, lambda file, name: found.setdefault(str(Path(file).resolve())))
    return list(found)


def _each(value: Any, change: Callable[[str, str], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _each(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_each(inner, change) for inner in value]
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return change(found["file"], found["name"]) if found else value


def load(file: str | os.PathLike) -> ModuleType:
    """A file as a module, executed at the first call in a process.  The file can import other files in its folder.

    Raises ValueError for an unreadable file (`sources.readable`) and, with the line, if the file raises an error.
    """
    return _load(str(Path(file).resolve()))


@cache
def _load(file: str) -> ModuleType:
    text, folder = readable(file), str(Path(file).parent)
    module = ModuleType(f"{Path(file).stem}_{short(file)[:8]}")
    module.__file__ = file
    if folder not in sys.path:
        sys.path.append(folder)
        ADDED.add(folder)
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except Exception as e:
        del sys.modules[module.__name__]
        line = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == file][-1]
        raise ValueError(f"{file}, line {line}: {type(e).__name__}: {e}; correct the file") from e
    return module


def find(reference: str) -> Any:
    """The object "file.py:Name".  Raises ValueError for a file that does not load, and for a name that it lacks."""
    file, name = _REFERENCE.fullmatch(reference).group("file", "name")
    module = load(file)
    if not hasattr(module, name):
        there = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ValueError(f"{file} defines no {name!r}; use one of {', '.join(there) or 'what it defines: nothing'}")
    return getattr(module, name)
