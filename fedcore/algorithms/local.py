"""Methods whose clients keep a personal model of all d parameters: LocalOnly, Ditto, APFL, pFedMe, Per-FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.descent import clipped
from ..models import Layout
from ..support.checks import Count, Fraction, NonNegative, Positive
from .method import Cost, Gradient, Method, Round


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client trains alone by mini-batch SGD (Robbins and Monro 1951); nothing is communicated.

    The clients of a round's cohort continue from their own `x_i [n, d]`; the models of the others do not change.  `x`
    is the plain mean of all clients' models and serves evaluation only: `server_lr` must be 1, and `weighting` has no
    effect.

    Use it as the reference that every personal method has to beat. Not where clients have few samples and are
    alike.
    """

    has_server = False
    client_state = ("x_i",)

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x_i": x}

    def broadcast(self, r: Round) -> Tensor:
        return r.x_i

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.sum(y - r.x_i) / r.n, "x_i": y}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["x_i"]

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=0, up=0)


def carry(r: Round, v: Tensor, at: Tensor) -> None:
    """Write to the rows of `v [a, d]` the buffers that training updates, as they are after a forward pass on the local
    step's mini-batch at `at [a, d]`."""
    if r.layout and r.layout.carried:
        v[:, r.layout.carried] = r.objective.carry(at, r.plan, r.step)


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and for each client a personal model that is pulled towards the server's (Li et al. 2021, Algorithm 1).

    In each local step, on the same mini-batch, y <- y - lr g(y) and v_i <- v_i - lr (g(v_i) + lam (v_i - x)), with x
    the model that the client received.  The y_i are averaged; `v_i [n, d]` stays with its client and is its model.
    Clip and momentum are applied to each of the two models by itself, and each has its own buffers that training
    updates.  With lam = 0 the v_i are those of LocalOnly.

    lam (lambda): strength of the pull; the default 1 is ours, tune it.  Raises ValueError for lam < 0.

    Use it where each client wants a model of its own and robustness against others counts; lam moves between alone
    and common. Not where training two models per client is too expensive.
    """

    lam: NonNegative = 1.0
    client_state = ("v_i",)

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"v_i": x}

    def prepare(self, r: Round) -> Round:
        velocity = {"velocity": torch.zeros_like(r.v_i)} if r.momentum else {}
        return r.extended(memory={"v": r.v_i.clone(), **velocity})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        step = G(r.v) + self.lam * (r.v - r.x)
        if r.trained is not None:
            step = torch.where(r.trained, step, 0)
        carry(r, r.v, at=r.v)
        if r.clip is not None:
            step = clipped(step, r.clip)
        if r.momentum:
            step = r.velocity.mul_(r.momentum).add_(step)
        r.v.sub_(step, alpha=r.lr)
        return G(y)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "v_i": r.v}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["v_i"]

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, gradients=2)


@dataclass(frozen=True)
class APFL(Method):
    """FedAvg, and for each client a model that is mixed with the server's (Deng et al. 2020, Algorithm 1).

    In each local step, on the same mini-batch, y <- y - lr g(y) and v_i <- v_i - lr alpha_i g(z_i), where the client's
    model is z_i = alpha_i v_i + (1 - alpha_i) y.  The y_i are averaged; `v_i [n, d]` stays with its client, which uses
    alpha_i v_i + (1 - alpha_i) x after the round.  alpha = 0 leaves all clients the server's model.  Clip and momentum
    apply to y alone.  Both steps start from the values before them.  Buffers that training updates are mixed like the
    parameters, and those of v_i are taken from the pass at z_i.  The authors' code takes y after its step and mixes the
    two models' outputs instead of their parameters.

    alpha: of every client, or its start with `adaptive`, where the first step of each round takes alpha_i <- alpha_i -
    lr <v_i - y, g(z_i)>, cut to [0, 1] (eq. 11; the authors' code adds 0.02 alpha_i to this gradient).
    Raises ValueError for alpha outside [0, 1].

    Use it where it is unknown how far clients differ: the weight between own and common model can be learnt. Not
    where training two models per client is too expensive.
    """

    alpha: Fraction = 0.5
    adaptive: bool = False

    @property
    def client_state(self) -> tuple[str, ...]:
        """v_i, and with `adaptive` alpha_i, whose d entries are equal."""
        return ("v_i", "alpha_i") if self.adaptive else ("v_i",)

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"v_i": x, "alpha_i": torch.full_like(x, self.alpha)} if self.adaptive else {"v_i": x}

    def prepare(self, r: Round) -> Round:
        alpha = torch.full_like(r.p, self.alpha)
        if self.adaptive:  # all entries are equal, but those of frozen parameters keep the first value
            trained = r.objective.trained
            alpha = r.alpha_i[:, :1] if trained is None else (r.alpha_i * trained).amax(1, keepdim=True)
        return r.extended(memory={"v": r.v_i.clone(), "alpha": alpha.clone()})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        apart = r.v - y
        z = y + r.alpha * apart
        g = G(z)
        carry(r, r.v, at=z)
        r.v.sub_(r.alpha * g, alpha=r.lr)
        if self.adaptive and r.step == 0:
            r.alpha.sub_((apart * g).sum(1, keepdim=True), alpha=r.lr).clamp_(0, 1)
        return G(y)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        new = {"x": r.x + r.server_lr * r.mean(y - r.x), "v_i": r.v}
        return new | {"alpha_i": r.alpha.expand_as(y)} if self.adaptive else new

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        alpha, v_i = state["alpha_i"] if self.adaptive else self.alpha, state["v_i"]
        return alpha * v_i + (1 - alpha) * state["x"].to(v_i.device)

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, gradients=2)


@dataclass(frozen=True)
class pFedMe(Method):
    """SGD on the clients' Moreau envelopes, min_theta F_i(theta) + lam/2 ||theta - y||^2 (T. Dinh et al. 2020).

    A local step of Algorithm 1 approximates the minimiser on its mini-batch by `inner_steps` steps from theta = y,
    theta <- theta - inner_lr (g(theta) + lam (theta - y)), and moves y <- y - lr lam (y - theta).  The server sets
    x <- (1 - beta) x + beta mean_S y_i, where beta is the run's server_lr.  The clients' models are the last theta_i.
    The paper leaves the start of theta open; its authors' code continues from the theta of the previous local step.  In
    that code all clients train in every round, and only those drawn are averaged; the steps of theta have a weight
    decay of 0.001 (here the run's `weight_decay`); and it evaluates the y_i as personal models instead of the theta_i,
    because y_i overwrites the network's parameters, which held theta_i.

    lam (lambda): default 15; keep lr lam below 1 (lr 0.005 in the authors' MNIST run).  inner_steps: the paper's K,
    default 5.  inner_lr: default 0.05 (0.09 in that run); it must be below 2 / (curvature + lam).
    Raises ValueError for lam <= 0, inner_steps < 1, inner_lr <= 0.

    Use it where each client wants a model near the common one and gradients are cheap. Not where time is short:
    each local step contains several gradients.
    """

    lam: Positive = 15.0
    inner_steps: Count = 5
    inner_lr: Positive = 0.05
    client_state = ("theta_i",)

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"theta_i": x}

    def prepare(self, r: Round) -> Round:
        return r.extended(memory={"theta": r.theta_i.clone()})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        theta = y
        for _ in range(self.inner_steps):
            theta = theta - self.inner_lr * (G(theta) + self.lam * (theta - y))
        r.theta.copy_(theta)
        carry(r, r.theta, at=theta)
        return self.lam * (y - theta)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "theta_i": r.theta}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["theta_i"]

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, gradients=self.inner_steps)


@dataclass(frozen=True)
class PerFedAvg(Method):
    """Per-FedAvg (Fallah et al. 2020): a server's model that is good after one gradient step of each client.

    Local SGD on F_i(y - alpha grad F_i(y)): v = (I - alpha H(y)) g(y - alpha g(y)), with H the Hessian; without it if
    `first_order` (the paper's Per-FedAvg (FO)).  The paper draws a mini-batch for each of the three derivatives; here
    they are of one, the local step's.  alpha = 0 is FedAvg.

    A client's own model is theta_i = x - alpha grad F_i(x), one full step from the model x that it received in its last
    round; `theta_i [n, d]` serves evaluation alone.

    alpha: default 0.01, as in the authors' runs.  Raises ValueError for alpha < 0.

    Use it where every client takes one gradient step before it uses the model. Not where Hessian products are too
    expensive; the first-order form avoids them.
    """

    alpha: NonNegative = 0.01
    first_order: bool = False
    client_state = ("theta_i",)
    client_start, personal = pFedMe.client_start, pFedMe.personal

    def prepare(self, r: Round) -> Round:
        x = r.x.expand(r.m, -1)
        return r.extended(rows={"theta": x - self.alpha * r.full_gradient(x)})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        g = G(y - self.alpha * G(y))
        return g if self.first_order else g - self.alpha * G(y, along=g)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "theta_i": r.theta}

    def cost(self, layout: Layout | None = None) -> Cost:
        note = "the full gradient gives the client's own model, for evaluation"
        return Cost.of(layout, gradients=2, products=0 if self.first_order else 1, full_gradients=1, note=note)
