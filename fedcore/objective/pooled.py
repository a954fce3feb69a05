"""All clients' data on one machine, as a federation of one client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batches import Plan
from ..data.clients import Clients
from ..engine import PLAIN, Loss
from .federation import Federation
from .logistic import Logistic
from .quadratic import Quadratic


def pooled(fed: Any) -> Any:
    """The federation of one client with all data of `fed`, in the order of the data set whatever the partition was.

    Of quadratics the client's objective is F, their mean.  A federation of one client is returned as it is.
    """
    if fed.n == 1:
        return fed
    if isinstance(fed, Federation):
        return replace(fed, data=_union(fed.data, fed.seed))
    if isinstance(fed, Logistic):
        raise ValueError("logistic clients are not pooled; use quadratics, or a federation with a network")
    return Mean(fed.A, fed.b, fed.x0)


def _union(data: Clients, seed: int) -> Clients:
    source = replace(data.source, train_owner=None, test_owner=None)  # one client mixes all owners
    one = Clients.of(
        source, [np.sort(data.parts.rows)], normalise=data.normalise, augment=data.augment, seed=seed,
        device=data.device, dtype=data.dtype,
    )  # fmt: skip
    statistics = one.statistics if data.normalise == "client" else data.statistics
    return replace(one, public=data.public, statistics=statistics)


class Mean(Quadratic):
    """One client whose objective is the mean of n quadratics: its loss and its optimum are those of all of them."""

    def __init__(self, A: Tensor, b: Tensor, x0: Tensor) -> None:
        super().__init__(A, b, x0)
        self.n, self.sizes = 1, np.ones(1, int)

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Mean:
        """The same problem on another device or in another type."""
        each = Quadratic(self.A, self.b, self.x0).to(device, dtype)
        return Mean(each.A, each.b, each.x0)

    def gradient(self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None) -> Tensor:
        """(1/n) sum_i A_i (y - b_i) at the one row of `Y [1, d]`; with directions `along [1, d]`, mean(A_i) along."""
        every = Plan(np.arange(len(self.b)), torch.arange(len(self.b), device=self.device), plan.steps, plan.keys)
        each = super().gradient(
            Y.expand_as(self.b), every, k, loss, along if along is None else along.expand_as(self.b)
        )
        return each.mean(0, keepdim=True)

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient`, and F(y) `[1]`."""
        return self.gradient(Y, plan, k, loss, along), self.objective(Y[0])[None]

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """The same gradients."""
        return self.gradient(Y, plan, k, loss, along)

    def objective(self, x: Tensor) -> Tensor:
        """F(x)."""
        return super().objective(x) / len(self.b)
