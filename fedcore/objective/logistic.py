"""Logistic regression with exact gradients: convex, with a curvature that changes from place to place."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.batches import Plan
from ..engine import PLAIN, Loss
from .devices import available
from .quadratic import Quadratic


class Logistic(Quadratic):
    """n clients with F_i(x) = mean_j [log(1 + exp(a_ij' x)) - q_ij a_ij' x], the cross-entropy of their samples a_ij.

    `a [n, s, p]` are the samples and `b [n, p]` the clients' own models: the labels are the probabilities
    q_ij = sigmoid(a_ij' b_i), so that b_i minimises F_i, as in a `Quadratic`.  `optimum [p]` minimises F (Newton's
    method); `A [n, p, p]` holds the Hessians at x = 0.  Its methods are those of `objective.Objective`.
    """

    def __init__(self, a: Tensor, b: Tensor, x0: Tensor) -> None:
        super().__init__(torch.einsum("nsp,nsq->npq", a, a) / (4 * a.shape[1]), b, x0)
        self.a, self.q = a, torch.sigmoid(torch.einsum("nsp,np->ns", a, b))
        self.optimum = self._newton()

    def __repr__(self) -> str:
        return f"Logistic(clients={self.n}, d={self.d}, dtype={self.dtype}, device={self.device})"

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Logistic:
        """The same problem on another device or in another type."""
        device, dtype = available(self.device if device is None else device), dtype or self.dtype
        if device == self.device and dtype == self.dtype:
            return self
        return type(self)(*(part.to(device, dtype) for part in (self.a, self.b, self.x0)))

    def fingerprint(self) -> str:
        """A hash of a, b, x0 and the number type."""
        parts = (t.detach().cpu().double().numpy().tobytes() for t in (self.a, self.b, self.x0))
        return hashlib.sha256(b"logistic" + str(self.dtype).encode() + b"".join(parts)).hexdigest()[:16]

    def gradient(self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None) -> Tensor:
        """mean_j (sigmoid(a_ij' y_i) - q_ij) a_ij for the first len(Y) clients of the plan `[a, p]`; with directions
        `along [a, p]`, the Hessian-vector products mean_j sigmoid'(a_ij' y_i) (a_ij' along_i) a_ij.

        Raises ValueError for another loss than the objective itself.
        """
        if not loss.plain:
            raise ValueError("this objective has a loss of its own; use a federation with a network for another")
        return self._gradient(plan.rows[: len(Y)], Y, along)

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient`, and F_i(y_i) `[a]`."""
        i = plan.rows[: len(Y)]
        return self.gradient(Y, plan, k, loss, along), self._losses(i, Y)

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """The same gradients: exact, also where a class of your own adds noise in `gradient`."""
        return Logistic.gradient(self, Y, plan, k, loss, along)

    def objective(self, x: Tensor) -> Tensor:
        """F(x) = (1/n) sum_i F_i(x)."""
        return self._losses(torch.arange(self.n, device=self.device), x.expand(self.n, -1)).mean()

    def _gradient(self, i: Tensor, Y: Tensor, along: Tensor | None = None) -> Tensor:
        a = self.a[i]
        p = torch.sigmoid(torch.einsum("nsp,np->ns", a, Y))
        w = p - self.q[i] if along is None else p * (1 - p) * torch.einsum("nsp,np->ns", a, along)
        return torch.einsum("ns,nsp->np", w, a) / a.shape[1]

    def _losses(self, i: Tensor, Y: Tensor) -> Tensor:
        z = torch.einsum("nsp,np->ns", self.a[i], Y)
        return (F.softplus(z) - self.q[i] * z).mean(1)

    def _newton(self) -> Tensor:
        """The minimiser of F, from the mean of the clients' own; a step that makes the gradient longer is halved."""
        a = self.a.double().cpu().numpy().reshape(-1, self.d)  # in NumPy: thousands of tiny products
        q, x = self.q.double().cpu().numpy().ravel(), self.b.mean(0).double().cpu().numpy()

        def slope(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            p = 0.5 * (1 + np.tanh(a @ x / 2))
            return (p - q) @ a, p

        g, p = slope(x)
        for _ in range(60):
            step = np.linalg.lstsq(a.T @ ((p * (1 - p))[:, None] * a), g, rcond=None)[0]
            for scale in 0.5 ** np.arange(14):
                g_new, p_new = slope(x - scale * step)
                if np.linalg.norm(g_new) < np.linalg.norm(g):
                    x, g, p = x - scale * step, g_new, p_new
                    break
            else:
                break
        return torch.as_tensor(x).to(self.b)
