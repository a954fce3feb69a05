"""Logistic regression with exact gradients: a convex problem whose curvature depends on x."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore.objective.quadratic import Quadratic


class Logistic(Quadratic):
    """n clients with F_i(x) = mean_j [log(1 + exp(a_ij' x)) - q_ij a_ij' x], the cross-entropy of their samples a_ij.

    `a [n, s, p]` are the samples and `b [n, p]` the clients' minimisers: the labels are the probabilities
    q_ij = sigmoid(a_ij' b_i), so that b_i minimises F_i, as in a `Quadratic`.  `optimum [p]` minimises F (Newton's
    method); `A [n, p, p]` holds the Hessians at x = 0.
    """

    def __init__(self, a: Tensor, b: Tensor, x0: Tensor) -> None:
        self.a, self.q = a, torch.sigmoid(torch.einsum("nsp,np->ns", a, b))
        super().__init__(torch.einsum("nsp,nsq->npq", a, a) / (4 * a.shape[1]), b, x0)

    def objective(self, x: Tensor) -> Tensor:
        """F(x) = (1/n) sum_i F_i(x)."""
        return self._losses(torch.arange(self.n, device=self.device), x.expand(self.n, -1)).mean()

    def _gradients(self, i: Tensor, Y: Tensor, along: Tensor | None = None) -> Tensor:
        a = self.a[i]
        p = torch.sigmoid(torch.einsum("nsp,np->ns", a, Y))
        w = p - self.q[i] if along is None else p * (1 - p) * torch.einsum("nsp,np->ns", a, along)
        return torch.einsum("ns,nsp->np", w, a) / a.shape[1]

    def _losses(self, i: Tensor, Y: Tensor) -> Tensor:
        z = torch.einsum("nsp,np->ns", self.a[i], Y)
        return (F.softplus(z) - self.q[i] * z).mean(1)

    def _minimiser(self) -> Tensor:
        """The minimiser of F, by Newton's method from the mean of the clients' minimisers; a step that increases the
        norm of the gradient is halved."""
        a = self.a.double().cpu().numpy().reshape(-1, self.d)  # NumPy is faster for thousands of tiny products
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
