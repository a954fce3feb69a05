"""A list of index arrays in two arrays, without a Python object for each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..support import checks


@dataclass(frozen=True, eq=False)
class Lists(Sequence[np.ndarray]):
    """Index arrays one after another in `rows`; array i ends before `ends[i]`.  Item i is a view of `rows`."""

    rows: np.ndarray
    ends: np.ndarray

    __repr__ = checks.as_call

    @staticmethod
    def of(parts: Sequence[np.ndarray]) -> Lists:
        """The list of at least one array."""
        return parts if isinstance(parts, Lists) else Lists(np.concatenate(parts), np.cumsum([len(p) for p in parts]))

    @property
    def sizes(self) -> np.ndarray:
        """The lengths of the arrays, `[n]`."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> np.ndarray:
        i = range(len(self))[i]
        return self.rows[self.ends[i - 1] if i else 0 : self.ends[i]]
