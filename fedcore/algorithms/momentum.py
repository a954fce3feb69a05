"""Methods that carry the server's momentum into the local steps: Mime, MimeLite, STEM."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..models import Layout
from ..support.checks import BelowOne, Fraction, NonNegative, Positive
from .method import Cost, Gradient, Method, Round, Work


@dataclass(frozen=True)
class MimeLite(Method):
    """Server momentum in every local step, fixed during the round (Karimireddy et al. 2021).

    v = (1 - beta) g + beta s;  s <- (1 - beta) mean_S grad F_i(x) + beta s, full local gradients at the server's
    model.  This is the averaged form; the form g + beta s differs by the factor 1 / (1 - beta) in the learning rate.
    beta = 0 is FedAvg.

    beta: 0, 0.9 or 0.99 in the paper; default 0.9.  Raises ValueError unless 0 <= beta < 1.

    Use it where clients cannot keep state and server momentum should act within the local steps. Not where a full
    pass over the local data in each round is too expensive.
    """

    beta: BelowOne = 0.9

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "s": torch.zeros_like(x)}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return (1 - self.beta) * G(y) + self.beta * r.s

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        C = r.mean(r.full_gradient(r.x.expand_as(y)))
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "s": (1 - self.beta) * C + self.beta * r.s}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=2, up=2, full_gradients=1)


@dataclass(frozen=True)
class Mime(Method):
    """MimeLite with an SVRG correction by the cohort's gradient (Karimireddy et al. 2021).

    Phase 1: C = mean_S grad F_i(x), full local gradients.  Phase 2: v = (1 - beta)(g(y) - g(x) + C) + beta s, both
    g on one mini-batch, s fixed.  s <- (1 - beta) C + beta s.  Two exchanges per round: 3 d down (x, s, C), 2 d up.

    beta: as MimeLite.  Raises ValueError unless 0 <= beta < 1.

    Use it where clients cannot keep state and a second exchange in each round is affordable. Not over a slow link:
    a round sends three models down and two up.
    """

    beta: BelowOne = 0.9
    start = MimeLite.start

    def prepare(self, r: Round) -> Round:
        return r.extended(server={"C": r.mean(r.full_gradient(r.x.expand(r.m, -1)))})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return (1 - self.beta) * (G(y) - G(r.x.expand_as(y)) + r.C) + self.beta * r.s

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "s": (1 - self.beta) * r.C + self.beta * r.s}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=3, up=2, gradients=2, full_gradients=1, note="two exchanges a round")


@dataclass(frozen=True)
class STEM(Method):
    """Two-sided momentum with variance-reduced directions (Khanduri et al. 2021), written in rounds.

    y_1 = x - lr d;  then d_i <- g(y_k) + (1 - a)(d_i - g(y_{k-1})), both g on one mini-batch, y_{k+1} = y_k - lr d_i;
    x and d become the means of y_K and d_i(y_K).  d starts at the mean full gradient of the first cohort.

    STEM(a): constant a.  STEM(kappa=..., w=..., c=...): lr_t = kappa / (w + t)^(1/3) replaces the run's learning
    rate, a_{t+1} = min(1, c lr_t^2), and `a` is that of round 0; the method's theory assumes decreasing steps.  Our
    sources leave open which iterate enters the first correction after a synchronisation; here it is the average.  The
    method is stated for full participation; partial participation uses the same rule.  Raises ValueError for a outside
    [0, 1], kappa or w <= 0, c < 0, and for w or c without kappa.

    Use it where two vectors can be sent each way and gradients are noisy. Not where traffic is limited, and not
    with a constant rate if its theory is needed.
    """

    a: Fraction = 0.1
    kappa: Positive | None = None
    w: Positive = 1.0
    c: NonNegative = 1.0

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "d": torch.zeros_like(x)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kappa is None and (self.w, self.c) != (1, 1):
            raise ValueError(f"w={self.w:g}, c={self.c:g} have no effect without kappa; give kappa, or leave them out")

    def rate(self, t: int) -> float:
        """The decreasing learning rate lr_t."""
        return self.kappa / (self.w + t) ** (1 / 3)

    def a_of(self, t: int) -> float:
        """a in round t; with decreasing steps it follows from the learning rate of the round before."""
        return self.a if self.kappa is None or t == 0 else min(1.0, self.c * self.rate(t - 1) ** 2)

    def local_work(self, work: Work) -> Work:
        return work if self.kappa is None else replace(work, lr=self.rate(work.t))

    def prepare(self, r: Round) -> Round:
        d = r.mean(r.full_gradient(r.x.expand(r.m, -1))) if r.t == 0 else r.d
        x = r.x.expand(r.m, -1)
        return r.extended(memory={"d_i": d.expand_as(x).clone(), "y_prev": x.clone()})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        if r.step:
            r.d_i.copy_(G(y) + (1 - self.a_of(r.t)) * (r.d_i - G(r.y_prev)))
        r.y_prev.copy_(y)
        return r.d_i

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        # step 0 takes no gradient, so its batch is free for the direction at the last iterate
        d_i = r.gradient(y, 0) + (1 - self.a_of(r.t)) * (r.d_i - r.gradient(r.y_prev, 0))
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "d": r.mean(d_i)}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=2, up=2, gradients=2, note="and a full local gradient in round 0")
