"""Methods whose clients keep a personal model of all d parameters: LocalOnly, Ditto, pFedMe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.descent import clipped
from ..models import Layout
from ..support.checks import Count, NonNegative, Positive
from .method import Cost, Gradient, Method, Round


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client trains alone by mini-batch SGD (Robbins and Monro 1951); nothing is communicated.

    The clients of a round's cohort continue from their own `x_i [n, d]`; the models of the others do not change.  `x`
    is the plain mean of all clients' models and serves evaluation only: `server_lr` must be 1, and `weighting` has no
    effect.
    """

    client_state = ("x_i",)

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x_i": x}

    def prepare(self, r: Round) -> Round:
        if r.server_lr != 1:
            raise ValueError(f"server_lr={r.server_lr:g} but LocalOnly has no server; use server_lr=1.0")
        return r

    def broadcast(self, r: Round) -> Tensor:
        return r.x_i

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.sum(y - r.x_i) / r.n, "x_i": y}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["x_i"]

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=0, up=0)


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and for each client a personal model that is pulled towards the server's (Li et al. 2021, Algorithm 1).

    In each local step, on the same mini-batch, y <- y - lr g(y) and v_i <- v_i - lr (g(v_i) + lam (v_i - x)), with x
    the model that the client received.  The y_i are averaged; `v_i [n, d]` stays with its client and is its model.
    Clip and momentum are applied to each of the two models by itself.  With lam = 0 the v_i are those of LocalOnly.

    lam (lambda): strength of the pull; the default 1 is ours, tune it.  Raises ValueError for lam < 0.
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
        return self.lam * (y - theta)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "theta_i": r.theta}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["theta_i"]

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, gradients=self.inner_steps)
