"""Methods, models, partitions and sources from files of the user: "file.py:Name" in place of a shipped name.

A path is relative to the definitions file that names it (`table.add`), elsewhere to the current folder.  A cell's
identity has the name of the file and not its folder, so that results stand when a project moves; what is in the file
counts as the code of the result (`provenance.code`).

A file is executed once, in the process that runs the cell, whose current folder may be any: let it look for what lies
beside it by `Path(__file__)`.  Data that it reads are not part of its content.
"""

from __future__ import annotations

import inspect
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
ADDED: set[str] = set()  # folders of definitions that `load` made importable


def is_reference(name: Any) -> bool:
    """Whether this is "file.py:Name" and no name of the package."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def absolute(spec: Any, folder: str | os.PathLike) -> Any:
    """The specification with every "file.py:Name" in it as seen from a folder, by an absolute path."""
    return _each(spec, lambda file, name: f"{Path(folder, file).resolve()}:{name}")


def portable(spec: Any) -> Any:
    """The specification with every "file.py:Name" in it without the folder."""
    return _each(spec, lambda file, name: f"{Path(file).name}:{name}")


def named(spec: Any) -> list[str]:
    """The paths of all files that a specification names, each once."""
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
    """A file as a module, executed at the first call in a process.  Files beside it can be imported from it.

    Raises ValueError with the line, as `sources.readable` does, and where the file itself raises an error.
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
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except Exception as e:
        del sys.modules[module.__name__]
        line = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == file][-1]
        raise ValueError(f"{file}, line {line}: {type(e).__name__}: {e}; correct the file") from e
    return module


def find(reference: str) -> Any:
    """What "file.py:Name" names; raises ValueError for a file that does not load and for a name it does not define."""
    file, name = _REFERENCE.fullmatch(reference).group("file", "name")
    module = load(file)
    if not hasattr(module, name):
        there = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ValueError(f"{file} defines no {name!r}; use one of {', '.join(there) or 'what it defines: nothing'}")
    return getattr(module, name)


def accepts(function: Any, *arguments: Any, **named_arguments: Any) -> bool:
    """Whether a function, a class or a bound method can be called like this."""
    try:
        inspect.signature(function).bind(*arguments, **named_arguments)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return callable(function)
    return True
