"""Methods that seek flat minima by perturbing the local model: FedSAM, FedSMOO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import Layout
from ..support.checks import NonNegative, Positive
from .method import Cost, Gradient, Method, Round

EPS = 1e-12  # added to norms, as in DP-FedSAM; FL-Simulator's 1e-7 would be visible in the exact tests


def ascent(g: Tensor, rho: float) -> Tensor:
    """SAM's perturbation rho g / ||g|| for each row of `g [m, d]`."""
    return rho * g / (g.norm(dim=-1, keepdim=True) + EPS)


@dataclass(frozen=True)
class FedSAM(Method):
    """Sharpness-aware local steps (Qu et al. 2022; Caldarola et al. 2022): v = g(y + rho g / ||g||), one mini-batch.

    rho = 0 is FedAvg.  rho: 0.1 as in FL-Simulator.  Raises ValueError for rho < 0.

    Use it where generalisation of the common model matters more than time. Not as a remedy of client drift, which
    it does not change; every step takes two gradients.
    """

    rho: NonNegative = 0.1

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y + ascent(G(y), self.rho))

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, gradients=2)


@dataclass(frozen=True)
class FedSMOO(Method):
    """FedDyn and SAM, both with consensus constraints (Sun et al. 2023), in the form of its authors' code.

    e = rho ghat / ||ghat||, ghat = g - mu_i - s;  mu_i <- mu_i + e - s;  v = g(y + e) + alpha (y - x + h_i).
    h_i <- h_i + y_i - x;  x <- mean_S y_i + (1/n) sum_j h_j;  s <- rho mean_S mu_i / ||mean_S mu_i||.
    rho = 0 is FedDyn(alpha).  State `h [d]` is (1/n) sum_j h_j.

    alpha (lambda in the authors' code) and rho: 0.1 and 0.1 in that code.  Raises ValueError for alpha <= 0, rho < 0.

    Use it where clients return often and a flat minimum is wanted along with FedDyn's correction. Not where clients
    cannot keep two vectors or a second gradient per step is too expensive.
    """

    alpha: Positive = 0.1
    rho: NonNegative = 0.1
    client_state = ("h_i", "mu_i")

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "h": torch.zeros_like(x), "s": torch.zeros_like(x)}

    def prepare(self, r: Round) -> Round:
        return r.extended(memory={"mu": r.mu_i.clone()})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        e = ascent(G(y) - r.mu - r.s, self.rho)
        r.mu.add_(e - r.s)
        return G(y + e) + self.alpha * (y - r.x + r.h_i)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        delta = y - r.x
        h = r.h + r.sum(delta) / r.n
        x = r.x + r.server_lr * r.mean(delta) + h
        return {"x": x, "h": h, "s": ascent(r.mean(r.mu), self.rho), "h_i": r.h_i + delta, "mu_i": r.mu}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=2, up=2, gradients=2)
