"""Reading files that may be damaged: archives of arrays (`.npz`), and JSON with a checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read(file: str | os.PathLike, only: Collection[str] | None = None) -> Mapping[str, np.ndarray]:
    """The arrays of an archive by name; no code in the archive is executed.

    only: the names of the arrays to read; None: all.  Raises ValueError and the errors of `zipfile` and NumPy for
    damage, and OSError if the file cannot be read or is a pipe or a device.
    """
    regular(file)
    with zipfile.ZipFile(file):  # NumPy would also read files of other kinds
        pass
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if only is None or name in only}


def regular(file: str | os.PathLike) -> int:
    """The size of a file in bytes; raises OSError for a folder, and for a pipe or a device, which may have no end."""
    found = Path(file).stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, and no file")
    return found.st_size


def sealed(content: Mapping[str, Any], nan: bool = False, indent: int | None = None) -> bytes:
    """The content as JSON with its checksum, for `unsealed`.  nan: whether numbers may be NaN or infinite."""
    content = json.loads(json.dumps(content, allow_nan=nan))
    content["checksum"] = _checksum(content)
    return (json.dumps(content, indent=indent, separators=None if indent else (",", ":")) + "\n").encode()


def unsealed(file: str | os.PathLike) -> dict[str, Any]:
    """The content of a file that `sealed` made; raises ValueError for any other content, and OSError."""
    regular(file)
    try:
        content = json.loads(Path(file).read_bytes().decode("utf-8"))
        if content.pop("checksum") == _checksum(content):
            return content
        raise ValueError("its checksum differs")
    except (KeyError, TypeError, AttributeError, RecursionError, MemoryError) as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
