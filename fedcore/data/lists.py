"""A list of index arrays that costs little more than its numbers, for any number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..support import checks


@dataclass(frozen=True, eq=False)
class Lists(Sequence[np.ndarray]):
    """Index arrays one after another in `rows`; array i ends before `ends[i]`.  Each is a view, made when asked for."""

    rows: np.ndarray
    ends: np.ndarray

    __repr__ = checks.as_call

    @staticmethod
    def of(parts: Sequence[np.ndarray]) -> Lists:
        """The same arrays; one at least."""
        return parts if isinstance(parts, Lists) else Lists(np.concatenate(parts), np.cumsum([len(p) for p in parts]))

    @property
    def sizes(self) -> np.ndarray:
        """The length of each, `[n]`."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> np.ndarray:
        i = range(len(self))[i]
        return self.rows[self.ends[i - 1] if i else 0 : self.ends[i]]
