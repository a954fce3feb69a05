"""Which path computes, how many clients at a time, and on which threads."""

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

    A rule of sizes alone, whatever the number of threads; a power of two of blocks, which threads can share.
    """
    if block is not None:
        return [slice(a, min(a + block, m)) for a in range(0, m, block)]
    fill = m * bytes_each / ROOM.get(device.type, ROOM["cuda"])
    parts = m if is_large(d, device) else min(m, 1 << math.ceil(math.log2(max(1, fill))))
    ends = [m * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def even(counts: Iterable[int]) -> bool:
    """Whether clients with these numbers of samples can go through a written batch norm: no padding, no single one."""
    return set(counts) != {1} and len(set(counts)) < 2


def share(work: Callable[[slice], None], parts: list[slice], device: torch.device) -> None:
    """`work(part)` for all parts; on a CPU the threads share the parts, each part with its own share of the threads.

    The kernels let go of Python's lock, so that this scales better than threads inside each kernel.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(parts)) if device.type == "cpu" else 1
    if workers == 1:
        for part in parts:
            work(part)
        return
    try:
        # a new thread's number of threads is its own, but what it sets is what later ones start with
        with ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, threads // workers)) as pool:
            list(pool.map(work, parts))
    finally:
        torch.set_num_threads(threads)
