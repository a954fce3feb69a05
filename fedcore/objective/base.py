"""The base class of objectives: networks on data, and functions given by formulas."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..data.arrays import as_array
from ..storage.identity import digest
from ..support import checks
from ..support.devices import available

_MADE = WeakIdKeyDictionary()  # how often each x0 had been written to when its objective was made


class Objective:
    """n clients' objectives of d parameters, F = (1/n) sum_i F_i: a `Federation` or a `Quadratic`.

    Both have `n`, `d`, `sizes [n]`, `x0 [d]`, `device` and `dtype`; a `layout` (None for a quadratic), the number of
    `stages` with heads, which parameters are `trained` `[d]` (None: all), and `block`, the largest number of clients
    computed together (None: no bound).  A round calls `plan`, `gradient`, `gradient_and_losses`, `full_gradient`,
    `descend`, `carry` and `activation_bytes`; an evaluation calls `evaluate` and `objective`.  Derive a class of your
    own from `fc.Quadratic`.
    """

    x0: Tensor
    device: torch.device
    dtype: torch.dtype

    def _made(self) -> None:
        """Take note of x0, which is not to be written over from now on."""
        if not self.x0.is_inference():  # torch counts no writes to a tensor of an inference
            _MADE.setdefault(self.x0, self.x0._version)

    def check_x0(self) -> None:
        """ValueError where x0 was written over after the objective was made."""
        if self.x0 in _MADE and self.x0._version != _MADE[self.x0]:
            raise ValueError(
                "fed.x0, from which all runs start, was written over; write to a copy, x = fed.x0.clone(), and for "
                "another start make another federation: fc.federation(..., start=x) or fc.quadratic(A, b, x)"
            )

    @checks.arguments
    def to(self, device: checks.Device | None = None, dtype: checks.FloatType | None = None) -> Self:
        """The same objectives on another device or with parameters of another type, as a new object."""
        device, dtype = available(self.device if device is None else device), dtype or self.dtype
        return self if (device, dtype) == (self.device, self.dtype) else self._moved(device, dtype)

    def fingerprint(self) -> str:
        """A hash of all parts of `identity` that are equal to the bit for the same objectives."""
        return digest({k: v for k, v in self.identity().items() if k != "answers"})

    def _vector(self, name: str, x: Any, wanted: tuple[int, ...], hint: str) -> Tensor:
        """Real numbers, a tensor or a NumPy array, as a tensor on this objective's device and in its type.

        Raises ValueError for a shape other than `wanted`, TypeError for anything but real numbers.
        """
        x = torch.as_tensor(as_array(x)) if isinstance(x, np.ndarray) and x.dtype.kind in "fiu" else x
        checks.shape(name, x, wanted, hint)
        if not isinstance(x, Tensor) or x.is_complex():
            raise TypeError(f"{name} is {checks.brief(x)}; use a tensor or an array of real numbers, {hint}")
        return x.detach().to(self.device, self.dtype)
