"""The choice of the path and of the clients that are computed together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch

PATHS = ("written", "batched", "sequential")
SEQUENTIAL_FROM = 300_000  # on a CPU, larger models are faster one client after another (caches, no weight copies)
ROOM = {"cpu": 3 << 24, "cuda": 1 << 33}  # bytes of activations and gradients that the clients of one block may take
ROOM_OF_LSTM = 1 << 21  # the same if clients are computed one by one: what the way back reads is still in the caches


def is_large(d: int, device: torch.device) -> bool:
    """Whether d parameters are too many for the caches of this device to hold a cohort of them."""
    return d >= SEQUENTIAL_FROM and device.type == "cpu"


def blocks(
    m: int, block: int | None, bytes_each: int, d: int, device: torch.device, room: int | None = None
) -> list[slice]:
    """The clients of m that are computed together: `block` at a time, or as many as `room` bytes (by default `ROOM`)
    hold at `bytes_each`.

    The rule depends on sizes alone, so that equal runs have equal blocks on all machines.  Blocks follow one another,
    and the kernels of each use all threads: with threads of their own, blocks would wait for Python's global lock.
    """
    if block is not None:
        return [slice(a, min(a + block, m)) for a in range(0, m, block)]
    fill = m * bytes_each / (room or ROOM.get(device.type, ROOM["cuda"]))
    parts = m if is_large(d, device) else min(m, math.ceil(fill))
    ends = [m * i // parts for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def even(counts: Iterable[int]) -> bool:
    """Whether the written batch norm allows clients with these numbers of samples: all equal, and more than one."""
    return set(counts) != {1} and len(set(counts)) < 2
