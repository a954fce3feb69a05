"""Methods with a proximal term: FedProx, FedUp, FedSplit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..models import Layout
from ..support.checks import NonNegative, Positive
from .method import Cost, Gradient, Method, Round


@dataclass(frozen=True)
class FedProx(Method):
    """Local SGD on F_i(y) + mu/2 ||y - x||^2 (Li et al. 2020).

    v = g + mu (y - x).  mu = 0 is FedAvg.

    mu: the default 0.01 is the value of FedBN's digit experiments; tune it.  Raises ValueError for mu < 0.

    Use it where clients do unequal or very many local steps and updates must stay bounded; it needs no state. Not
    to remove the bias of FedAvg: its fixed point is still not the optimum.
    """

    mu: NonNegative = 0.01

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.mu * (y - r.x)


@dataclass(frozen=True)
class FedUp(Method):
    """Local SGD on F_i plus an estimated upper bound of F (Wan et al. 2024, eq. 6).

    v = g + (alpha / lr) (x_prev - x) + alpha (y - x), with x_prev the server's model of the round before (x in round
    0).  Line 5 of the source's Algorithm 1 omits F_i; this is eq. 6.

    alpha: each local step moves by alpha (x - x_prev), so alpha K is a momentum coefficient: keep alpha K below 1.
    The source prints no value; the default 0.05 suits K = 10.  alpha = 0 is FedAvg.  A client of the
    last cohort already has x_prev; any other downloads 2 d.  Raises ValueError for alpha < 0.

    Use it where server momentum is wanted within the local steps without state at clients. Not with alpha K near 1
    or above, where it becomes unstable; compare it with FedAvg with server momentum first.
    """

    alpha: NonNegative = 0.05

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "x_prev": x}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.alpha / r.lr * (r.x_prev - r.x) + self.alpha * (y - r.x)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "x_prev": r.x}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=2, note="a client of the last cohort has x_prev: d down")


@dataclass(frozen=True)
class FedSplit(Method):
    """Peaceman-Rachford splitting (Pathak and Wainwright 2020); all clients in every round.

    u_i = 2 x - z_i;  y_i = prox_{s F_i}(u_i), by K local steps from x with v = g + (y - u_i) / s;
    z_i <- z_i + 2 (y_i - x);  x <- mean_i z_i.  With exact prox steps the fixed point is the optimum of sum_i F_i.

    s: the prox step; 1 / sqrt(l L) for l-strongly convex, L-smooth F_i.  The default 1.0 is ours.
    Raises ValueError for s <= 0, and under partial participation.

    Use it on convex problems where all clients take part and solve their local problems nearly exactly. Not with
    sampled clients, for which it is not defined.
    """

    s: Positive = 1.0
    client_state = ("z_i",)
    full_participation = True

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"z_i": x}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + (y - (2 * r.x - r.z_i)) / self.s

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        z_i = r.z_i + 2 * (y - r.x)
        return {"x": r.x + r.server_lr * (r.mean(z_i) - r.x), "z_i": z_i}
