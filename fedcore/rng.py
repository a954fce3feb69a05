"""Counter-based randomness: every random choice is a hash of (seed, purpose, round, client, ...) and of nothing else.

Therefore a draw does not depend on earlier draws, the order of clients, the device, or whether the run was resumed, and
two methods that run with one seed see the same cohorts and the same batches.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

# purposes: each has its own stream of random numbers
(COHORT, BATCH, DROPOUT, INIT, PARTITION, DATA, MIXING, AUGMENT, RESAMPLE, MASK, CAPACITY, NOISE, EVALUATION, OWN,
 SCHEDULE, PUBLIC, COINS, SHIFT) = range(1, 19)  # fmt: skip
BLOCK = 1 << 20  # normal numbers that are drawn together, which bounds the memory

_GAMMA, _A, _B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the constants of SplitMix64
_MASK = (1 << 64) - 1


def word(*parts: int) -> int:
    """Hash integers to one 64-bit word (SplitMix64, chained)."""
    return int(words(*parts)[0])


def words(*parts: int | np.ndarray) -> np.ndarray:
    """The hash of `word` over broadcast integer arrays, as an array of uint64."""
    h = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            if isinstance(part, np.ndarray):
                part = part.astype(np.int64).view(np.uint64)
            else:
                part = np.uint64(int(part) & _MASK)
            h = (h ^ part) + np.uint64(_GAMMA)
            h = (h ^ (h >> np.uint64(30))) * np.uint64(_A)
            h = (h ^ (h >> np.uint64(27))) * np.uint64(_B)
            h = h ^ (h >> np.uint64(31))
    return h


def geometric(p: float, *parts: int) -> int:
    """The number of throws up to the first success, which has probability p; a function of (p, parts)."""
    u = (float(words(*parts)[0] >> np.uint64(11)) + 0.5) / 2.0**53
    return 1 if p == 1 else 1 + math.floor(math.log(u) / math.log1p(-p))


def normals(keys: np.ndarray, size: int) -> np.ndarray:
    """Standard normal numbers `[m, size]`; row i depends on `keys[i]` alone (Box and Muller 1958)."""
    half = -(-size // 2)

    def rows(keys: np.ndarray) -> np.ndarray:
        u = ((words(keys[:, None], np.arange(2 * half)) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        radius, angle = np.sqrt(-2 * np.log(u[:, :half])), 2 * np.pi * u[:, half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)[:, :size]

    return np.concatenate([rows(part) for part in np.array_split(keys, max(1, len(keys) * size // BLOCK))])


def cohort(seed: int, t: int, n: int, m: int) -> list[int]:
    """The m clients of round t, drawn uniformly without replacement from n, in ascending order.

    Floyd's algorithm, which needs m draws for any n.
    """
    if m == n:
        return list(range(n))
    last = np.arange(n - m, n)
    draws = words(seed, COHORT, t, last) % (last + 1).astype(np.uint64)
    chosen: set[int] = set()
    for j, r in zip(last.tolist(), draws.tolist(), strict=True):
        chosen.add(j if r in chosen else r)
    return sorted(chosen)


def numpy_generator(seed: int, purpose: int) -> np.random.Generator:
    """A NumPy generator for draws before the first round (partitions, synthetic data)."""
    return np.random.default_rng(word(seed, purpose))


_GLOBAL = threading.RLock()  # all threads of the process share the global generators


@contextmanager
def seeded(key: int, device: torch.device | None = None, outside: bool = True) -> Iterator[None]:
    """A block in which the global generators of torch and, with `outside`, of Python and NumPy are seeded with `key`.

    Use it for code that draws from the global generators, such as a module's layers and forward pass.  Other threads
    wait at their own such blocks, so that the draws depend on the key alone; afterwards the old states are restored.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _GLOBAL, torch.random.fork_rng(devices=devices):
        states = (random.getstate(), np.random.get_state()) if outside else None  # noqa: NPY002
        torch.manual_seed(key)
        if outside:
            random.seed(key)
            np.random.seed(key % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            if states is not None:
                random.setstate(states[0])
                np.random.set_state(states[1])  # noqa: NPY002


def global_states(device: torch.device | None = None) -> tuple[Any, ...]:
    """The states of Python's, NumPy's and torch's generators (on the CPU, and on a CUDA device).  It waits for other
    threads to leave their `seeded` blocks."""
    with _GLOBAL:
        drawn = np.random.get_state()  # noqa: NPY002
        torchs = [torch.get_rng_state()]
        torchs += [torch.cuda.get_rng_state(device)] if device is not None and device.type == "cuda" else []
        return random.getstate(), drawn[1].tobytes(), drawn[2:], *(state.numpy().tobytes() for state in torchs)
