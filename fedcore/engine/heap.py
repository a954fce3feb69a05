"""Memory that a run frees and asks for again, kept by the C library in between."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from functools import cache

TRIM, MAPPED = -1, -3  # glibc's names for mallopt: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
MOST = 2**31 - 1  # of bytes, in a C int
USUAL = 2**25  # the largest block that glibc's own rule comes to keep; it trims beyond twice as much
CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")

_lock, _inside = threading.Lock(), 0


@cache
def _library() -> ctypes.CDLL | None:
    """glibc; None where this is another C library, or the environment says what its allocator keeps."""
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or os.name != "posix" or any(name in os.environ for name in CHOSEN):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _keep(block: int, beyond: int) -> None:
    """Blocks of up to `block` bytes are kept when they are freed, as long as no more than `beyond` bytes are unused."""
    library = _library()
    if library is not None:
        library.mallopt(MAPPED, block)
        library.mallopt(TRIM, beyond)


@contextlib.contextmanager
def keeping_freed() -> Iterator[None]:
    """A block, or with `@keeping_freed()` a function, in which freed memory stays with the process until the end.

    By itself, glibc gives every freed block of over 32 MB back to the operating system, which clears its pages anew for
    the next one: with 100 clients and an MLP, more than half the time of methods that add matrices `[m, d]` to each
    gradient.  At the end all unused memory is given back.  Other C libraries, and settings of glibc's allocator that
    the caller made by environment variables, are left as they are.
    """
    global _inside
    with _lock:
        if not _inside:
            _keep(MOST, MOST)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and (library := _library()) is not None:
                _keep(USUAL, 2 * USUAL)
                library.malloc_trim(0)
