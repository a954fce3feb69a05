"""The choice of the path, of the clients that are computed together, and of their threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

PATHS = ("written", "batched", "sequential")
SEQUENTIAL_FROM = 300_000  # on a CPU, larger models are faster one client after another (caches, no weight copies)
ROOM = {"cpu": 1 << 25, "cuda": 1 << 33}  # bytes of activations and gradients that the clients of one block may take


def is_large(d: int, device: torch.device) -> bool:
    """Whether d parameters are too many for the caches of this device to hold a cohort of them."""
    return d >= SEQUENTIAL_FROM and device.type == "cpu"


def blocks(m: int, block: int | None, bytes_each: int, d: int, device: torch.device) -> list[slice]:
    """The clients of m that are computed together: `block` at a time, or as many as `ROOM` holds at `bytes_each`.

    The rule depends on sizes and not on the number of threads, so that results are the same on any number.  The number
    of blocks is a power of two, which threads can share evenly.
    """
    if block is not None:
        return [slice(a, min(a + block, m)) for a in range(0, m, block)]
    fill = m * bytes_each / ROOM.get(device.type, ROOM["cuda"])
    parts = m if is_large(d, device) else min(m, 1 << math.ceil(math.log2(max(1, fill))))
    ends = [m * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def even(counts: Iterable[int]) -> bool:
    """Whether the written batch norm allows clients with these numbers of samples: all equal, and more than one."""
    return set(counts) != {1} and len(set(counts)) < 2


def share(work: Callable[[slice], None], parts: list[slice], device: torch.device) -> None:
    """`work(part)` for all parts; on a CPU the threads share the parts, each part with its own share of the threads.

    The kernels release Python's global lock, so that this scales better than threads within each kernel.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(parts)) if device.type == "cpu" else 1
    if workers == 1:
        for part in parts:
            work(part)
        return
    try:
        # `set_num_threads` in a new thread changes that thread, and also the default of threads started later
        with ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, threads // workers)) as pool:
            list(pool.map(work, parts))
    finally:
        torch.set_num_threads(threads)
