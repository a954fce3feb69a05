"""Methods that hold the local model near the server's: FedProx, FedUp."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import checks
from .method import Gradient, Method, Round


@dataclass(frozen=True)
class FedProx(Method):
    """Local SGD on F_i(y) + mu/2 ||y - x||^2 (Li et al. 2020).

    v = g + mu (y - x).  mu = 0 is FedAvg, bit for bit.

    mu: the default 0.01 is the value of FedBN's digit experiments; tune it.  Raises ValueError for mu < 0.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        checks.number("mu", self.mu, 0)

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.mu * (y - r.x)


@dataclass(frozen=True)
class FedUp(Method):
    """Local SGD on F_i plus an estimated upper bound of F (Wan et al. 2024, eq. 6).

    v = g + (alpha / lr) (x_prev - x) + alpha (y - x), with x_prev the server's model of the round before (x in round
    0).  Algorithm 1 of the source leaves F_i out of its line 5; eq. 6 is what is meant.

    alpha: each local step moves by alpha (x - x_prev), so alpha K is a momentum coefficient: keep alpha K below 1.
    The source prints no value; the default 0.05 suits K = 10.  alpha = 0 is FedAvg, bit for bit.  A client of the
    last cohort already has x_prev; any other downloads 2 d.  Raises ValueError for alpha < 0.
    """

    alpha: float = 0.05
    downlink = 2

    def __post_init__(self) -> None:
        checks.number("alpha", self.alpha, 0)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "x_prev": x}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.alpha / r.lr * (r.x_prev - r.x) + self.alpha * (y - r.x)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "x_prev": r.x}
