"""The mini-batches of a cohort."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .shapes import PerSample

ONE_SAMPLE = (
    "a batch of 1 sample has no variance, which batch norm or a layer like it divides by; use batch_size>=2 and "
    "clients with two samples each or more, or GroupNorm"
)


class OneSample(ValueError):
    """A batch has one sample and thus no variance for batch norm; the message names the client if it is known."""

    def __init__(self, client: str = "") -> None:
        super().__init__(f"{client}{ONE_SAMPLE}")


@dataclass(frozen=True)
class Batch:
    """One mini-batch per client: `x [m, B, ...]`, labels or targets `y [m, B, ...]`, weights `w [m, B]` (0 if padded).

    The loss of client i is `sum_j w[i, j] * loss(x[i, j], y[i, j])`: weights are 1/B_i for a mini-batch mean.  `count`
    is the number of real samples of each client, which come first, and `key` one random word per client for dropout;
    both are Python lists, so that nothing here waits for a device.
    """

    x: Tensor
    y: Tensor
    w: PerSample
    count: list[int]
    key: list[int]

    def rows(self, part: slice) -> Batch:
        """The mini-batches of some of the clients."""
        return Batch(self.x[part], self.y[part], self.w[part], self.count[part], self.key[part])

    def trimmed(self) -> Batch:
        """The batch without positions that are padding for all clients."""
        width = max(self.count)
        if width == self.y.shape[1]:
            return self
        return Batch(self.x[:, :width], self.y[:, :width], self.w[:, :width], self.count, self.key)

    def real(self) -> PerSample | None:
        """A mask `[m, B]` of the samples that are not padding; None if there is no padding."""
        return None if min(self.count) == self.y.shape[1] else torch.gt(self.w, 0)
