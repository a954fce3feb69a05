"""What the objectives of networks on data and those that are written down as formulas have in common."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import as_array
from ..storage.identity import digest
from ..support import checks
from ..support.devices import available


class Objective:
    """n clients' objectives of d parameters, F = (1/n) sum_i F_i: a `Federation` or a `Quadratic`.

    Both have `n`, `d`, `sizes [n]`, `x0 [d]`, `device` and `dtype`; a `layout` (None of a quadratic), the number of
    `stages` with heads, which parameters are `trained` `[d]` (None: all), and the `block` of clients that are computed
    together at most (None: no bound).  What a round calls: `plan`, `gradient`, `gradient_and_losses`, `full_gradient`,
    `descend`, `carry` and `activation_bytes`; an evaluation, `evaluate` and `objective`.  A class of your own derives
    from `fc.Quadratic`.
    """

    device: torch.device
    dtype: torch.dtype

    @checks.arguments
    def to(self, device: checks.Device | None = None, dtype: checks.FloatType | None = None) -> Self:
        """The same objectives on another device or with parameters of another type; self is left as it is."""
        device, dtype = available(self.device if device is None else device), dtype or self.dtype
        return self if (device, dtype) == (self.device, self.dtype) else self._moved(device, dtype)

    def fingerprint(self) -> str:
        """A hash of what determines a run here: all of `identity` but what is equal to rounding only."""
        return digest({k: v for k, v in self.identity().items() if k != "answers"})

    def _vector(self, name: str, x: Any, wanted: tuple[int, ...], hint: str) -> Tensor:
        """Parameters of any real type on any device, of NumPy too, as this objective's."""
        x = torch.as_tensor(as_array(x)) if isinstance(x, np.ndarray) and x.dtype.kind in "fiu" else x
        checks.shape(name, x, wanted, hint)
        if not isinstance(x, Tensor) or x.is_complex():
            raise TypeError(f"{name} is {checks.brief(x)}; use a tensor or an array of real numbers, {hint}")
        return x.detach().to(self.device, self.dtype)
