"""Quadratic objectives with exact gradients."""

from __future__ import annotations

import copy
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from ..data import batches
from ..data.arrays import real_numbers
from ..data.batches import Plan
from ..data.clients import read_only
from ..engine import PLAIN, Loss
from ..engine.descent import descend
from ..engine.units import Neurons
from ..models import Layout
from ..storage.identity import digest
from ..support import checks
from ..support.devices import available
from .base import Objective


class Quadratic(Objective):
    """n clients with F_i(x) = 0.5 (x - b_i)' A_i (x - b_i) and exact gradients A_i (x - b_i).

    `A [n, p, p]`, `b [n, p]`, `optimum [p]` = (sum A_i)^-1 sum A_i b_i, computed in float64; where the sum is singular,
    the minimiser of smallest norm.  `evaluate` gives `loss` = F(x) (mean over
    clients) and `distance` = ||x - optimum||.

    For noisy gradients, override `gradient` in a class of your own; `gradient_and_losses` and `descend` use it, and
    `full_gradient` stays exact.  Draw the noise of row i from `np.random.default_rng((int(plan.keys[i]), k))`, where
    `plan.keys` are numbers of the seed, the round and the client; with `torch.randn` equal runs differ, and a warning
    says so.  For another problem override `_gradients`, `_losses` and `_minimiser`, from which all else follows.
    """

    layout: Layout | None = None
    stages = 1
    trained: Tensor | None = None
    block: int | None = None

    def __init__(self, A: Tensor, b: Tensor, x0: Tensor) -> None:
        self.A, self.b, self.x0 = A, b, x0
        self.n, self.d = b.shape
        self.sizes, self.device, self.dtype = read_only(np.ones(self.n, int)), b.device, b.dtype
        self.optimum = self._minimiser()
        self._made()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clients={self.n}, d={self.d}, dtype={self.dtype}, device={self.device})"

    def _moved(self, device: torch.device, dtype: torch.dtype) -> Self:
        """A copy with all tensors moved, also those of a user's class."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device, dtype if value.is_floating_point() else value.dtype))
        moved.device, moved.dtype, moved.optimum = moved.b.device, dtype, moved._minimiser()
        return moved

    def identity(self) -> dict[str, Any]:
        """Hashes of A, b and x0, and of the class with all other attributes."""
        more = {k: v for k, v in vars(self).items() if k not in ("A", "b", "x0", "optimum", "device")}
        return {"A": digest(self.A), "b": digest(self.b), "x0": digest(self.x0), "class": digest(type(self), more)}

    # A subclass for another problem overrides these three functions.

    def _gradients(self, i: Tensor, Y: Tensor, along: Tensor | None = None) -> Tensor:
        return _times(self.A[i], Y - self.b[i] if along is None else along)

    def _losses(self, i: Tensor, Y: Tensor) -> Tensor:
        e = Y - self.b[i]
        return 0.5 * (_times(self.A[i], e) * e).sum(1)

    def _minimiser(self) -> Tensor:
        A = self.A.mean(0, dtype=torch.float64).cpu()
        linear = torch.einsum("npq,nq->p", self.A.double(), self.b.double()).cpu() / len(self.b)
        scale = A.diagonal().abs().sqrt()
        scale[scale == 0] = 1
        # scaled, A is well conditioned where it is badly so by the units of x alone
        U, S, V = torch.linalg.svd(A / scale / scale[:, None])
        least = 4 * torch.finfo(self.A.dtype).eps * S[0]  # the rounding of A
        regular = least < S
        x = V[regular].T @ (U.T @ (linear / scale) / S)[regular] / scale
        free = torch.linalg.qr((V[~regular] / scale).T).Q  # directions in which F is constant
        return (x - free @ (free.T @ x)).to(self.b)

    # --- gradients --------------------------------------------------------------------------------------------------

    def plan(
        self,
        seed: int,
        t: int,
        clients: np.ndarray,
        *,
        epochs: int | np.ndarray = 1,
        steps: int | np.ndarray | None = None,
        **_: Any,
    ) -> Plan:
        """The plan of a round with exact gradients: an epoch is one step, and only `epochs` and `steps` are used."""
        return batches.full_batches(seed, t, clients, epochs if steps is None else steps, self.device)

    def gradient(self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None) -> Tensor:
        """A_i (y_i - b_i) for the first len(Y) clients of the plan; with directions `along [a, d]`, A_i along_i.

        Raises ValueError for another loss than the objective itself.
        """
        if not loss.plain:
            raise ValueError("a quadratic has no logits and no representation; use a federation with a network")
        return self._gradients(plan.rows[: len(Y)], Y, along)

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient`, and F_i(y_i) `[a]`."""
        return self.gradient(Y, plan, k, loss, along), self._losses(plan.rows[: len(Y)], Y)

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """The exact gradients, also where a class of your own adds noise in `gradient`."""
        return Quadratic.gradient(self, Y, plan, k, loss, along)

    def descend(self, Y: Tensor, plan: Plan, lr: float, decay: float = 0.0, clip: float | None = None) -> None:
        """All local steps of a plan in place, `Y <- Y - lr * gradient(Y, plan, k)`; rows sorted by their steps.

        decay: weight decay, added to the gradients.  clip: the largest norm of a client's gradient with weight decay.
        """
        descend(lambda y, k: self.gradient(y, plan, k), Y, plan.working, lr, decay, clip)

    # --- what only a network has ------------------------------------------------------------------------------------

    def neurons(self, aligned: bool = True) -> Neurons:
        """A quadratic has no hidden units."""
        return Neurons.none(self.d)

    def carry(self, Y: Tensor, plan: Plan, k: int) -> None:
        """A quadratic has no buffers."""

    def activation_bytes(self, batch_size: int | None) -> float:
        """A quadratic has no activations."""
        return 0.0

    def _absent(self, *_: Any, **__: Any) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(
            "a quadratic has no network: no logits, labels, activations, sub-models, module; use a federation with a "
            "network (fc.federation)"
        )

    logits = shrink = label_counts = activations = module = _absent

    # --- evaluation -------------------------------------------------------------------------------------------------

    def objective(self, x: Tensor) -> Tensor:
        """F(x) = (1/n) sum_i F_i(x); ValueError for an x of another length."""
        return self._losses(torch.arange(self.n, device=self.device), self._flat(x).expand(self.n, -1)).mean()

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """`loss` = F(x) and `distance` to the optimum."""
        return {"loss": self.objective(x), "distance": (self._flat(x) - self.optimum).norm()}

    def pooled(self) -> Quadratic:
        """One client whose objective is F; self where n = 1.

        Raises ValueError for a class of your own that computes anything in its own way, which would be dropped.
        """
        if self.n == 1:
            return self
        kind, known = type(self), {k: v for k, v in vars(Quadratic).items() if not k.startswith("__")}
        if own := [name for name, value in known.items() if getattr(kind, name) is not value]:
            raise ValueError(
                f"{kind.__name__} has its own {', '.join(own)}, and such clients are not pooled; write "
                f"{kind.__name__}.pooled(self), which returns one client with the mean of all objectives, or use "
                "fc.quadratic or fc.federation"
            )
        return Mean(self.A, self.b, self.x0)

    def _flat(self, x: Any) -> Tensor:
        return self._vector("x", x, (self.d,), f"a vector [d] of {self.d} numbers")


class Mean(Quadratic):
    """One client whose objective is F, the mean of n quadratics."""

    def __init__(self, A: Tensor, b: Tensor, x0: Tensor) -> None:
        super().__init__(A, b, x0)
        self.n, self.sizes = 1, read_only(np.ones(1, int))

    def _gradients(self, i: Tensor, Y: Tensor, along: Tensor | None = None) -> Tensor:
        every = torch.arange(len(self.b), device=self.device)
        along = None if along is None else along.expand_as(self.b)
        return super()._gradients(every, Y.expand_as(self.b), along).mean(0, keepdim=True)

    def _losses(self, i: Tensor, Y: Tensor) -> Tensor:
        every = torch.arange(len(self.b), device=self.device)
        return super()._losses(every, Y.expand_as(self.b)).mean(0, keepdim=True)


def _times(A: Tensor, v: Tensor) -> Tensor:
    """A_i v_i, `[a, p, p]` and `[a, p]` -> `[a, p]`."""
    return torch.bmm(A, v.unsqueeze(2)).squeeze(2)


@checks.arguments
def quadratic(A: Any, b: Any, x0: Any = None, *, device: checks.Device | None = None) -> Quadratic:
    """The quadratic federation: `A [n, p, p]`, `b [n, p]`, `x0 [p]` (default zeros); float64 unless given in float32.

    device: by default that of b where b is a tensor, else the CPU.  Raises ValueError for shapes that do not fit, NaN,
    and A_i that are not symmetric up to rounding, relative to the largest entry of A_i.
    """
    hint = "A [n, p, p], b [n, p] and x0 [p] with n, p >= 1"
    given = {"A": A, "b": b} | ({} if x0 is None else {"x0": x0})
    arrays = {name: real_numbers(name, part, hint) for name, part in given.items()}
    device = available((b.device if isinstance(b, Tensor) else "cpu") if device is None else device)
    dtype = np.float32 if arrays["A"].dtype == arrays["b"].dtype == np.float32 else np.float64
    A, b, *start = (torch.tensor(array.astype(dtype), device=device) for array in arrays.values())
    if b.ndim != 2 or not len(b) or A.shape != (*b.shape, b.shape[1]) or any(x.shape != b.shape[1:] for x in start):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"the shapes are {shapes}; use {hint}")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinity; give finite numbers")
    other, largest = A.transpose(1, 2), A.abs().amax((1, 2), keepdim=True)
    if ((A - other).abs() > 1e-5 * other.abs() + max(1e-8, 8 * torch.finfo(A.dtype).eps) * largest).any():
        raise ValueError("A_i must be symmetric; use (A + A') / 2")
    return Quadratic(A, b, *start or [torch.zeros_like(b[0])])
