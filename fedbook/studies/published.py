"""Partitions that others published as a seed of their own generator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcore.data.partitions import Indices
from fedcore.support import checks

LEAST = 10  # samples of a client


@dataclass(frozen=True)
class DealtBySeed(checks.Named):
    """NIID-Bench's Dirichlet partition (Li et al. 2022) as its program or Flower's copy of it draws it from `seed`.

    The rule is that of `fc.Dirichlet`, with at least 10 samples for each client, but the draws come in another order:
    each label's samples are shuffled before its shares are drawn.  Raises ValueError where 1,000 draws never give
    each client 10.  legacy: NumPy's older generator, which
    NIID-Bench uses; Flower uses its newer one, so that equal seeds give different partitions.
    """

    q: checks.Positive
    seed: checks.CountFromZero
    legacy: bool

    __post_init__ = checks.fields

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        draw = np.random.RandomState(self.seed) if self.legacy else np.random.default_rng(self.seed)
        for _ in range(1000):
            parts = [np.zeros(0, int)] * clients
            for label in np.unique(labels):
                samples = np.flatnonzero(labels == label)
                draw.shuffle(samples)
                share = draw.dirichlet(np.full(clients, self.q))
                share *= np.array([len(part) < len(labels) / clients for part in parts])
                cuts = (np.cumsum(share / share.sum()) * len(samples)).astype(int)[:-1]
                parts = [np.append(part, more) for part, more in zip(parts, np.split(samples, cuts), strict=True)]
            if min(map(len, parts)) >= LEAST:
                return parts
        raise ValueError(f"q={self.q} never gave each of {clients} clients {LEAST} samples; use a larger q")
