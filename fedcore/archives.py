"""Archives of arrays (`.npz`), looked at before they are read: what they claim to hold must be what they are long."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

PACKED = 200  # times that a large compressed archive may grow; pictures with wide margins reach a few tens
SMALL = 2**28  # bytes that any may grow to


def read(file: str | os.PathLike, packed: bool = False) -> Mapping[str, np.ndarray]:
    """The arrays of an archive by name, nothing of it executed.

    packed: whether it may be compressed.  Raises ValueError for an archive, or an
    array in it, that claims to be larger than it is, what `zipfile` and NumPy raise for damage, and OSError.
    """
    size = Path(file).stat().st_size
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
        return {name: arrays[name] for name in arrays.files}
