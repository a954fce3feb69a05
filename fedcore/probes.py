"""What chapters measure in a round: functions `(round, y [m, d]) -> {name: value}` for `simulate(probes=...)`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .algorithms.method import Round


def drift(r: Round, y: Tensor) -> dict[str, Tensor]:
    """`drift`: mean distance of the local models from their mean, over the mean length of the updates (0: no drift).

    Unrelated updates of equal length give sqrt(1 - 1/m), and so does mini-batch noise alone; at a fixed point the
    ratio tends to 1, because the updates cancel.
    """
    delta = y - r.x
    spread = (delta - r.mean(delta)).norm(dim=1).mean()
    return {"drift": spread / delta.norm(dim=1).mean().clamp_min(1e-30)}


def control_error(r: Round, y: Tensor) -> dict[str, Tensor]:
    """`control_error [m]`: ||c_i - grad F_i(x)|| / ||grad F_i(x)|| of the cohort before the round."""
    g = r.full_gradient(r.x.expand_as(y))
    return {"control_error": (r.c_i - g).norm(dim=1) / g.norm(dim=1).clamp_min(1e-30)}


def gradient_estimate(alpha: float):
    """A probe of FedUp's estimate (alpha/lr)(x_prev - x) of grad F(x), against the mean of the cohort's gradients.

    Records `estimate_ratio` (length of the estimate's projection on the gradient, over the gradient's length: 1 is
    unbiased in scale), `estimate_cosine` and `estimate_error` (||estimate - gradient|| / ||gradient||).  With all
    clients in the cohort the mean of the cohort's gradients is grad F(x) itself.
    """

    def probe(r: Round, y: Tensor) -> dict[str, Tensor]:
        estimate = alpha / r.lr * (r.x_prev - r.x)
        g = r.mean(r.full_gradient(r.x.expand_as(y)))
        return {
            "estimate_ratio": torch.dot(estimate, g) / torch.dot(g, g).clamp_min(1e-30),
            "estimate_cosine": F.cosine_similarity(estimate, g, dim=0),
            "estimate_error": (estimate - g).norm() / g.norm().clamp_min(1e-30),
        }

    return probe


def quadratic_bound(F_x: Tensor, gradient: Tensor, step: Tensor, mu: float) -> Tensor:
    """The right-hand side of the FedUp study's eq. 5: F(x) + <g, s> + mu/2 ||s||^2 for steps `[..., d]`; `[...]`."""
    return F_x + step @ gradient + mu / 2 * step.square().sum(-1)
