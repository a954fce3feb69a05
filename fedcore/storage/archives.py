"""Reading files that may be damaged: archives of arrays (`.npz`), whose sizes are checked first, and JSON with a
checksum."""

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

PACKED = 200  # largest ratio of uncompressed to compressed bytes; images with wide margins reach a few tens
SMALL = 2**28  # uncompressed bytes that are allowed whatever the ratio


def read(
    file: str | os.PathLike, packed: bool = False, only: Collection[str] | None = None
) -> Mapping[str, np.ndarray]:
    """The arrays of an archive by name; no code in the archive is executed.

    packed: whether the archive may be compressed.  only: the names of the arrays to read; None: all.  Raises ValueError
    if the archive, or an array in it, claims to be larger than it is, the errors of `zipfile` and NumPy for other
    damage, and OSError if the file cannot be read or is a pipe or a device.
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
