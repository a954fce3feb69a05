"""Methods that change the server's step from the cohort's updates: FedAdagrad, FedAdam, FedYogi, FedNova, FedExP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import Layout
from ..support.checks import BelowOne, Positive
from .method import Cost, Method, Round, and_one


class Adaptive(Method):
    """Base of FedAdagrad, FedAdam and FedYogi: a first and a second moment of the updates at the server.

    They are the states `m_t` and `v_t [d]`; in round t, `r.m_t` and `r.v_t` are m_{t-1} and v_{t-1}.
    """

    beta1: BelowOne
    tau: Positive

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "m_t": torch.zeros_like(x), "v_t": torch.full_like(x, self.tau**2)}

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """v_t from v_{t-1} and Delta_t, all `[d]`."""
        raise NotImplementedError

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        delta = r.mean(y - r.x)
        m = self.beta1 * r.m_t + (1 - self.beta1) * delta
        v = self.second_moment(r.v_t, delta)
        return {"x": r.x + r.server_lr * m / (v.sqrt() + self.tau), "m_t": m, "v_t": v}


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAvg with Adagrad at the server (Reddi et al. 2021, Algorithm 2).

    Delta_t = mean_S(y_i - x);  m_t = beta1 m_{t-1} + (1 - beta1) Delta_t;  v_t = v_{t-1} + Delta_t^2, v_{-1} = tau^2;
    x <- x + server_lr m_t / (sqrt(v_t) + tau), entry by entry, without bias correction.

    server_lr is the paper's eta: a step moves an entry by about server_lr, so choose 0.001 to 0.1 instead of 1.  beta1:
    the default 0 is that of the paper's experiments.  tau: default 0.001; a larger tau adapts less.
    The rule has no beta2.  Raises ValueError unless 0 <= beta1 < 1 and tau > 0.

    Use it where parameters need steps of different sizes, such as embeddings of rare words. Not with server_lr = 1:
    a step moves each entry by about server_lr.
    """

    beta1: BelowOne = 0.0
    tau: Positive = 1e-3

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta**2


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAvg with Adam at the server (Reddi et al. 2021, Algorithm 2).

    FedAdagrad's round with v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2.  v starts at tau^2, as in the paper; in
    FL-Simulator's code it starts at 0.  There is no bias correction in any of them.

    server_lr and tau: as FedAdagrad.  beta1, beta2: 0.9 and 0.99 in the paper.  Raises ValueError unless
    0 <= beta1 < 1, 0 <= beta2 < 1 and tau > 0.

    Use it for recurrent or attention networks, whose parameters need steps of different sizes. Not with server_lr =
    1, and not to remove client drift: it has FedAvg's fixed points.
    """

    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta**2


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedAvg with Yogi at the server (Reddi et al. 2021, Algorithm 2).

    FedAdagrad's round with v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2).

    server_lr and tau: as FedAdagrad.  beta1, beta2: 0.9 and 0.99 in the paper.  Raises ValueError unless
    0 <= beta1 < 1, 0 <= beta2 < 1 and tau > 0.

    Use it as FedAdam where the size of updates changes suddenly. Not with server_lr = 1, and not to remove client
    drift: it has FedAvg's fixed points.
    """

    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    tau: Positive = 1e-3

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return v - (1 - self.beta2) * delta**2 * (v - delta**2).sign()


@dataclass(frozen=True)
class FedNova(Method):
    """Normalised averaging (Wang et al. 2020): a client's weight does not grow with its number of local steps.

    d_i = (x - y_i) / (lr |a_i|), where |a_i| is the sum of the weights of the K_i gradients in y_i: K_i for plain SGD,
    (K_i - rho (1 - rho^K_i) / (1 - rho)) / (1 - rho) with the run's local momentum rho.
    x <- x - server_lr lr tau_eff sum_i p_i d_i, tau_eff = sum_i p_i |a_i|.

    Equal K_i make it FedAvg.  p_i are the run's `weighting`; the paper has p_i = N_i / N ("samples").

    Use it where clients do unequal numbers of local steps. Not where the numbers are equal: it is then FedAvg.
    """

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        rho = r.momentum
        a = (r.K - rho * (1 - rho**r.K) / (1 - rho)) / (1 - rho)
        tau_eff = r.mean(a[:, 0])
        return {"x": r.x + r.server_lr * tau_eff * r.mean((y - r.x) / a)}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, up=and_one(layout))


@dataclass(frozen=True)
class FedExP(Method):
    """FedAvg with an extrapolated server step (Jhunjhunwala et al. 2023, Algorithm 1).

    Delta_i = y_i - x;  eta_g = max(1, sum_i |Delta_i|^2 / (2 m (|mean Delta|^2 + eps)));  x <- x + eta_g mean Delta.
    The means are weighted by p_i, with sum_i |Delta_i|^2 / m = sum_i p_i |Delta_i|^2; the run's server_lr multiplies
    eta_g and is 1 in the paper.  The norms are those of the trained parameters.

    The iterates oscillate, and the paper evaluates the mean of the last two.  Here `x` is the iterate itself, which
    the server sends and the history evaluates; `x_prev` is the previous iterate, so the paper evaluates
    (x + x_prev) / 2.  Its authors' code has m eps instead of eps, and before every round multiplies eps by 0.998^2 and
    the learning rate by 0.998.

    eps: bounds eta_g where the updates cancel, and is the same in every round; default 0.001, tune it.
    Raises ValueError for eps <= 0.

    Use it where clients' updates are nearly orthogonal and a larger server step is safe. Not if the last iterate is
    evaluated: its iterates oscillate.
    """

    eps: Positive = 1e-3

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "x_prev": x}

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        delta = y - r.x if r.trained is None else torch.where(r.trained, y - r.x, 0)
        mean = r.mean(delta)
        eta_g = (r.mean((delta**2).sum(1)) / (2 * ((mean**2).sum() + self.eps))).clamp_min(1)
        return {"x": r.x + r.server_lr * eta_g * mean, "x_prev": r.x}
