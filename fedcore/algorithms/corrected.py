"""Methods that correct the local direction, most of them with SAM's perturbed gradient: FedCM, MoFedSAM, FedGamma,
FedSpeed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import Layout
from ..support.checks import Fraction, NonNegative, Positive, PositiveFraction
from .method import Cost, Gradient, Method, Round, and_one
from .sharpness import FedSAM
from .variates import SCAFFOLD


@dataclass(frozen=True)
class FedCM(Method):
    """Client-level momentum (Xu et al. 2021): the last round's mean direction in every local step.

    v = alpha g + (1 - alpha) Delta;  Delta <- mean_S (x - y_i) / (K_i lr), zero before the first round.
    The paper's x <- x - eta_g Delta is the mean of the y_i, times server_lr = eta_g / (K lr).
    FL-Simulator's code divides every client's update by the number of steps of its first client, E N_0 / B unrounded;
    where clients have unequal numbers of samples, its Delta differs from this one.

    alpha: 0.1 in the paper; 1 is FedAvg.  Raises ValueError unless 0 < alpha <= 1.

    Use it where few of many clients take part and cannot keep state. Not where alpha cannot be tuned: a small share
    of the client's own gradient slows it down.
    """

    alpha: PositiveFraction = 0.1

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "Delta": torch.zeros_like(x)}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return self.alpha * G(y) + (1 - self.alpha) * r.Delta

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "Delta": r.mean((r.x - y) / (r.K * r.lr))}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=2, up=and_one(layout))


@dataclass(frozen=True)
class MoFedSAM(FedSAM):
    """FedSAM with FedCM's momentum (Qu et al. 2022, Algorithm 2).

    v = beta g(y + rho g / ||g||) + (1 - beta) Delta, with FedCM's Delta.  rho = 0 is FedCM(alpha=beta).
    FL-Simulator's code calls beta alpha, divides by ||g|| + 1e-7, and counts steps as in its FedCM.

    rho: radius of the perturbation, 0.1 as in FedSAM.  beta: share of the client's own gradient, default 0.1.
    Raises ValueError for rho < 0, and unless 0 < beta <= 1.

    Use it as FedCM where a flat minimum is wanted and two gradients per step are affordable. Not where alpha and
    rho cannot both be tuned.
    """

    beta: PositiveFraction = 0.1
    start, aggregate = FedCM.start, FedCM.aggregate

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return self.beta * super().direction(G, y, r) + (1 - self.beta) * r.Delta

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=2, up=and_one(layout), gradients=2)


@dataclass(frozen=True)
class FedGamma(FedSAM):
    """SCAFFOLD's correction of SAM's gradient, FedGAMMA (Dai et al. 2023).

    v = g(y + rho g / ||g||) - c_i + c;  c_i and c as SCAFFOLD's option II, so that c_i is the mean of the perturbed
    gradients along the local path.  rho = 0 is SCAFFOLD(option="II").  FL-Simulator's rule differs in one point: it
    uses the number of steps of its first client for all.

    rho: radius of the perturbation, 0.1 as in FedSAM.  Raises ValueError for rho < 0.

    Use it where SCAFFOLD works and a flat minimum is wanted too. Not where clients return rarely, or where a second
    gradient per step is too expensive.
    """

    option = "II"
    client_state = ("c_i",)
    start, aggregate = SCAFFOLD.start, SCAFFOLD.aggregate

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return super().direction(G, y, r) - r.c_i + r.c

    def cost(self, layout: Layout | None = None) -> Cost:
        note = "from y_i and K_i the server computes c_i+; as written 2 d up"
        return Cost.of(layout, down=2, up=and_one(layout), gradients=2, note=note)


@dataclass(frozen=True)
class FedSpeed(Method):
    """A proximal term with its correction, and a gradient merged with a perturbed one (Sun et al. 2023, Algorithm 1).

    g_1 = g(y), g_2 = g(y + rho g_1) on one mini-batch;  v = (1 - alpha) g_1 + alpha g_2 - g_i + (y - x) / lam;
    g_i <- g_i - (y_i - x) / lam;  x <- mean_S (y_i - lam g_i), with the new g_i.

    This is the paper's algorithm.  Its authors' code (FL-Simulator) perturbs by rho g / ||g|| with alpha = 1, and
    corrects the mean of the cohort's y_i by the mean of lam g_i over all clients, as FedDyn does.  With rho = 0 and all
    clients in every round, both are FedDyn(1 / lam).

    rho: size of the ascent step, default 0.1.  alpha: weight of the perturbed gradient, default 1.  lam (lambda): the
    inverse weight of the proximal term, default 10.  Raises ValueError for rho < 0, alpha outside [0, 1], lam <= 0.

    Use it where clients return often and FedDyn's correction and a flat minimum are wanted. Not where clients
    return rarely.
    """

    rho: NonNegative = 0.1
    alpha: Fraction = 1.0
    lam: Positive = 10.0
    client_state = ("g_i",)

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        g_1 = G(y)
        g_2 = G(y + self.rho * g_1)
        return (1 - self.alpha) * g_1 + self.alpha * g_2 - r.g_i + (y - r.x) / self.lam

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        g_i = r.g_i - (y - r.x) / self.lam
        return {"x": r.x + r.server_lr * r.mean(y - self.lam * g_i - r.x), "g_i": g_i}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, gradients=2)
