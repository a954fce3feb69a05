"""What is stored, looked at before it is taken: archives of arrays (`.npz`), which must be as long as they claim, and
JSON with a checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

PACKED = 200  # times that a large compressed archive may grow; pictures with wide margins reach a few tens
SMALL = 2**28  # bytes that any may grow to


def read(
    file: str | os.PathLike, packed: bool = False, only: Collection[str] | None = None
) -> Mapping[str, np.ndarray]:
    """The arrays of an archive by name, nothing of it executed.

    packed: whether it may be compressed.  only: names of arrays, the others are left out.  Raises ValueError for an
    archive, or an array in it, that claims to be larger than it is, what `zipfile` and NumPy raise for damage, and
    OSError, for a pipe or a device too.
    """
    size = regular(file)
    with zipfile.ZipFile(file) as z:
        members = z.infolist()
        most = max(PACKED * size, SMALL) if packed else size
        if sum(m.file_size for m in members) > most or (not packed and any(m.compress_type for m in members)):
            raise ValueError(f"{size:,} bytes claim to hold {sum(m.file_size for m in members):,}")
        for member in members:
            with z.open(member) as f:
                version = np.lib.format.read_magic(f)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = header[version](f)
                if not dtype.hasobject and math.prod(shape) * dtype.itemsize != member.file_size - f.tell():
                    raise ValueError(f"{member.filename} claims to be {dtype} {shape} and is not as long")
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if only is None or name in only}


def regular(file: str | os.PathLike) -> int:
    """The bytes of a file; OSError for a pipe, a device or a folder too, which may have no end of them."""
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
    """What `sealed` made; ValueError for anything else, and OSError."""
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
