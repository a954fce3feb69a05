"""Own partitions: index arrays, and a class with a rule."""

import numpy as np

import fedcore as fc


class Halves:
    """Even clients have the labels below 5, odd ones the others."""

    def split(self, y: np.ndarray, n: int, rng: np.random.Generator, owner: np.ndarray | None) -> list[np.ndarray]:
        low, high = np.flatnonzero(y < 5), np.flatnonzero(y >= 5)
        evens, odds = np.array_split(low, (n + 1) // 2), np.array_split(high, n // 2)
        return [(odds if i % 2 else evens)[i // 2] for i in range(n)]


fed = fc.federation("digits", clients=6, partition=Halves(), model="logistic")
assert all((counts[:5].sum() == 0) == bool(i % 2) for i, counts in enumerate(fed.label_counts()))
listed = fc.federation("digits", partition=[np.arange(100), np.arange(100, 180)], model="logistic")
assert listed.n == 2
history = fc.simulate(fc.SCAFFOLD(), fed, rounds=3, lr=0.1, progress=False)
assert [len(cohort) for cohort in history.cohorts] == [6, 6, 6]
