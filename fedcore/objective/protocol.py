"""What a round asks of n clients' objectives F_1, ..., F_n, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batches import Plan
from ..engine import PLAIN, Loss
from ..engine.units import Neurons
from ..models import Layout


@runtime_checkable
class Objective(Protocol):
    """n clients' objectives of d parameters, F = (1/n) sum_i F_i; `Federation` and `Quadratic` implement it.

    A class of your own derives from `fc.Quadratic`.  Noise on a quadratic's gradients belongs into
    `gradient`, from which `gradient_and_losses` and `descend` are made; `full_gradient` then stays exact.
    """

    @property
    def n(self) -> int:
        """How many clients."""

    @property
    def d(self) -> int:
        """How many parameters."""

    @property
    def sizes(self) -> np.ndarray:
        """Samples per client `[n]`, the weights of `weighting="samples"`."""

    @property
    def x0(self) -> Tensor:
        """The parameters that a run starts from, `[d]`."""

    @property
    def device(self) -> torch.device:
        """Where parameters and gradients are."""

    @property
    def dtype(self) -> torch.dtype:
        """Their type."""

    @property
    def layout(self) -> Layout | None:
        """Names and places of the parameters; None of a quadratic."""

    @property
    def stages(self) -> int:
        """Heads of a network with heads, else 1."""

    @property
    def trained(self) -> Tensor | None:
        """Which parameters local steps may change, `[d]` bool; None for all."""

    @property
    def block(self) -> int | None:
        """How many clients are computed together at most; None: no bound of the user's."""

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Objective:
        """The same objectives on another device or in another type; self is left as it is."""

    def identity(self) -> dict[str, Any]:
        """What determines a run here, by name: texts, numbers and hashes, and {"about": numbers} for what is equal to
        rounding only."""

    def fingerprint(self) -> str:
        """A hash of what determines a run here."""

    def plan(
        self,
        seed: int,
        t: int,
        clients: np.ndarray,
        *,
        epochs: int | np.ndarray = 1,
        steps: int | np.ndarray | None = None,
        batch_size: int | None = 20,
        walk: bool = False,
        share: float | None = None,
        epoch: int = 0,
    ) -> Plan:
        """The local steps and batches of round t for these clients `[m]`, from (seed, t, client) alone.

        epochs, steps: for all of them, or `[m]` with one for each; the plan's rows are sorted by their steps, the most
        first.
        """

    def carry(self, Y: Tensor, plan: Plan, k: int) -> Tensor | None:
        """Buffers of a network that training carries, `[a, b]`, after local step k; None where there are none."""

    def gradient(self, Y: Tensor, plan: Plan, k: int, loss: Loss = PLAIN, along: Tensor | None = None) -> Tensor:
        """Gradients `[a, d]` at the rows of `Y [a, d]` in local step k, for the first a clients of the plan.

        loss: what is differentiated, its tensors for these a clients.  along: directions `[a, d]`; the result is then
        the derivative of the gradients in them, Hessian-vector products.
        """

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient`, and the clients' losses `[a]` on the same batches."""

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """Gradients `[a, d]` of the whole local objectives; k: the local step whose randomness (dropout) is used."""

    def descend(self, Y: Tensor, plan: Plan, lr: float, decay: float = 0.0, clip: float | None = None) -> None:
        """All local steps of the plan in place, `Y <- Y - lr * gradient(Y, plan, k)`, to rounding.

        decay, clip: weight decay, added to the gradients, and the norm that each client's sum is cut to.
        """

    def logits(self, Y: Tensor, plan: Plan, k: int) -> Tensor:
        """Logits `[a, B, ...]` under each row of Y on local step k's batch as in training; padded ones mean nothing."""

    def shrink(self, to: Callable[[nn.Module], nn.Module]) -> Objective:
        """The same clients with the smaller network `to(module)` (`submodels.Width`, `Depth`); made once."""

    def neurons(self, aligned: bool = True) -> Neurons:
        """The hidden units and the parameters they own; none of a quadratic."""

    def owned(self, clients: np.ndarray) -> Tensor:
        """Which labels each of these clients has samples of, `[a, classes]` bool."""

    def activations(self, x: Tensor, clients: np.ndarray, budget: int | None = None, key: int = 0) -> list[Tensor]:
        """Mean activation `[a, width]` of each group of hidden units on the clients' data, under the model `x [d]`."""

    def activation_bytes(self, batch_size: int | None) -> float:
        """Bytes of activations and their gradients for one client's mini-batch; 0 where they are bounded anyway."""

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Metrics of the model `x [d]`, each a scalar."""

    def objective(self, x: Tensor) -> Tensor:
        """F(x)."""
