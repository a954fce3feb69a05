"""The methods that a reviewer asks for beside those of the sources: closed forms and limits, in float64.

The oracles are numpy; none calls the package.  Tolerances are relative to max(1, |value|).
"""

from __future__ import annotations

from dataclasses import replace

import helpers as h
import numpy as np
import pytest
import torch
from test_exact import FULL, LR, K, last, linear, powers

import fedcore as fc

c = np.array([[1.0, -2.0, 0.25], [3.0, 0.5, 0.25], [-1.0, 0.0, 0.25]])  # gradients of three linear losses
NETWORK = {"rounds": 4, "cohort": 3, "lr": 0.3, "batch_size": 4, "local_epochs": 2}  # clients of 2 to 10 local steps


def fixed_point(M: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The x with sum_i M_i (x - b_i) = 0."""
    return np.linalg.solve(M.sum(0), np.einsum("npq,nq->p", M, b))


def assert_same_bits(a: fc.Method, b: fc.Method, fed=None, **options) -> None:
    fed = h.network(path="batched") if fed is None else fed
    one, two = (fc.simulate(method, fed, **NETWORK | options) for method in (a, b))
    assert torch.equal(one.params, two.params)
    assert not torch.equal(one.params, fed.x0)


class Unequal(fc.Quadratic):
    """Quadratics whose client i takes `steps[i]` local steps."""

    steps = np.array([1, 2, 5, 9])

    def plan(self, seed, t, clients, **work):
        clients = clients[np.argsort(-self.steps[clients], kind="stable")]
        return replace(super().plan(seed, t, clients, **work), steps=self.steps[clients])


def unequal(A: np.ndarray, b: np.ndarray) -> Unequal:
    return Unequal(*(torch.as_tensor(part) for part in (A, b, np.zeros_like(b[0]))))


# --- FedAdagrad, FedAdam, FedYogi -----------------------------------------------------------------------------------


def moments(delta: np.ndarray, rule, beta1: float, tau: float, rounds: int) -> tuple[list, list]:
    """m_t by its closed form for a constant update, and v_t by a rule (t, v) -> v, t = 0, 1, ..."""
    m = [(1 - beta1 ** (t + 1)) * delta for t in range(rounds)]
    v = [np.full_like(delta, tau**2)]
    for t in range(rounds):
        v.append(rule(t, v[-1]))
    return m, v[1:]


@pytest.mark.parametrize("name", ["FedAdagrad", "FedAdam", "FedYogi"])
def test_the_moments_of_a_constant_update_have_closed_forms(name):
    beta1, beta2, tau, eta, rounds = 0.6, 0.8, 0.05, 0.1, 12
    delta = -LR * K * c.mean(0)
    s = delta**2
    method, rule = {
        "FedAdagrad": (fc.FedAdagrad(beta1, tau), lambda t, v: tau**2 + (t + 1) * s),
        "FedAdam": (fc.FedAdam(beta1, beta2, tau), lambda t, v: beta2 ** (t + 1) * tau**2 + (1 - beta2 ** (t + 1)) * s),
        "FedYogi": (fc.FedYogi(beta1, beta2, tau), lambda t, v: np.where(v < s, v + 0.2 * s, v - 0.2 * s)),
    }[name]
    m, v = moments(delta, rule, beta1, tau, rounds)
    run = fc.simulate(method, linear(c.tolist()), rounds=rounds, server_lr=eta, **FULL)
    h.close(run.state["m_t"], m[-1], 1e-12)
    h.close(run.state["v_t"], v[-1], 1e-12)
    h.close(run.params, sum(eta * m_t / (np.sqrt(v_t) + tau) for m_t, v_t in zip(m, v, strict=True)), 1e-12)
    if name == "FedYogi":  # its second moment has passed Delta^2 and turned round
        assert (np.diff(v, axis=0) < 0).any()
        assert (np.diff(v, axis=0) > 0).any()


def test_adam_without_memory_moves_every_entry_by_nearly_the_server_learning_rate():
    tau, delta = 1e-3, -LR * K * c.mean(0)
    run = fc.simulate(fc.FedAdam(0.0, 0.0, tau), linear(c.tolist()), rounds=3, server_lr=0.1, **FULL)
    h.close(run.params, 3 * 0.1 * delta / (abs(delta) + tau), 1e-12)


@pytest.mark.parametrize("method", [fc.FedAdagrad(0.0, 1e8), fc.FedYogi(0.0, 0.9, 1e8)], ids=repr)
def test_a_large_tau_makes_the_adaptive_server_fedavg(method):
    A, b = h.problem(4, 3)  # sqrt(v) + tau is 2 tau until the squares of the updates reach tau^2
    h.close(last(method, fc.quadratic(A, b), 6, server_lr=2e8), last(fc.FedAvg(), fc.quadratic(A, b), 6), 1e-13)


def test_adagrads_momentum_is_fedavgms_with_the_averaged_scale():
    A, b = h.problem(4, 3)
    beta = 0.7
    adaptive = last(fc.FedAdagrad(beta, 1e8), fc.quadratic(A, b), 6, server_lr=2e8)
    h.close(adaptive, last(fc.FedAvg(beta), fc.quadratic(A, b), 6, server_lr=1 - beta), 1e-13)


# --- FedNova --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_fednova_with_equal_numbers_of_steps_is_fedavg(momentum):
    options = NETWORK | {"local_steps": 6, "momentum": momentum, "server_lr": 0.8, "weighting": "samples"}
    nova, avg = (fc.simulate(m, h.network(path="batched"), **options) for m in (fc.FedNova(), fc.FedAvg()))
    h.close(nova.params, avg.params, 1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_fednova_gives_linear_losses_equal_weight_whatever_their_steps(momentum):
    """y_i - x = -lr |a_i| c_i: FedAvg's direction is sum_i p_i |a_i| c_i, FedNova's is sum_i p_i c_i."""
    gradients = np.vstack([c, [[0.5, 4.0, 0.0]]])
    fed = linear(gradients.tolist())
    fed = Unequal(fed.A, fed.b, fed.x0)
    a = np.array([sum(momentum**j for k in range(n) for j in range(n - k)) for n in fed.steps])
    nova, avg = (fc.simulate(m, fed, rounds=3, lr=0.1, momentum=momentum).params for m in (fc.FedNova(), fc.FedAvg()))
    h.close(nova, -3 * 0.1 * a.mean() * gradients.mean(0), 1e-12)
    h.close(avg, -3 * 0.1 * (a[:, None] * gradients).mean(0), 1e-12)


def test_fednovas_fixed_point_is_its_closed_form():
    A, b = h.problem(4, 3)
    M = np.array(
        [np.eye(3) - np.linalg.matrix_power(np.eye(3) - LR * a, k) for a, k in zip(A, Unequal.steps, strict=True)]
    )
    nova, avg = (
        fc.simulate(m, unequal(A, b), rounds=400, lr=LR, eval_every=400).params for m in (fc.FedNova(), fc.FedAvg())
    )
    h.close(nova, fixed_point(M / Unequal.steps[:, None, None], b), 1e-12)
    h.close(avg, fixed_point(M, b), 1e-12)


def test_fednova_heads_for_the_optimum_and_fedavg_for_one_weighted_by_steps():
    """Small steps remove the drift, and what is left is the objective that the weights make."""
    A, b = h.problem(4, 3)
    small = {"rounds": 400, "lr": 0.005, "eval_every": 400}
    nova, avg = (fc.simulate(m, unequal(A, b), **small).params.numpy() for m in (fc.FedNova(), fc.FedAvg()))
    optimum, weighted = h.optimum(A, b), fixed_point(Unequal.steps[:, None, None] * A, b)
    apart = np.linalg.norm(weighted - optimum)
    assert np.linalg.norm(nova - optimum) < 0.05 * apart
    assert np.linalg.norm(avg - weighted) < 0.05 * apart
    assert apart > 1


# --- FedExP ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 8])
def test_fedexp_steps_half_the_number_of_clients_where_updates_are_orthogonal(n):
    fed = fc.quadratic(np.repeat(np.eye(n)[None], n, 0), np.eye(n))  # client i wants the i-th unit vector
    s = 1 - (1 - LR) ** K
    h.close(last(fc.FedExP(eps=1e-14), fed, 1), max(1, n / 2) * s * np.ones(n) / n, 1e-10)


def test_fedexp_with_equal_clients_is_fedavg():
    A, b = h.problem(1, 3)
    fed = fc.quadratic(np.repeat(A, 4, 0), np.repeat(b, 4, 0))  # the ratio is below 1/2
    assert np.array_equal(last(fc.FedExP(), fed, 5), last(fc.FedAvg(), fed, 5))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedexp_steps_at_least_as_far_as_fedavg_along_the_same_mean(weighting):
    fed, eps, etas = h.network(), 1e-4, []

    def record(r, y):
        delta, p = (y - r.x).numpy(), r.p[:, 0].numpy()
        mean = p @ delta
        etas.append((max(1, p @ (delta**2).sum(1) / (2 * (mean @ mean + eps))), mean))
        return {}

    path = h.trajectory(fc.FedExP(eps), fed, 4, cohort=3, lr=0.3, batch_size=4, weighting=weighting)
    fc.simulate(fc.FedExP(eps), fed, rounds=4, cohort=3, lr=0.3, batch_size=4, weighting=weighting, probes=[record])
    for t, (eta, mean) in enumerate(etas):
        h.close(path[t + 1] - path[t], eta * mean, 1e-12)
    assert max(eta for eta, _ in etas) > 1


def test_fedexp_keeps_the_iterate_before_for_the_papers_average():
    A, b = h.problem(4, 3)
    path = h.trajectory(fc.FedExP(), fc.quadratic(A, b), 5, **FULL)
    run = fc.simulate(fc.FedExP(), fc.quadratic(A, b), rounds=5, **FULL)
    assert np.array_equal(run.state["x_prev"], path[4])


# --- FedCM, MoFedSAM ------------------------------------------------------------------------------------------------


def test_fedcm_with_the_whole_gradient_is_fedavg_to_the_bit():
    assert_same_bits(fc.FedCM(1.0), fc.FedAvg())
    assert_same_bits(fc.FedCM(1.0), fc.FedAvg(), clip=0.5)


def test_fedcms_direction_of_linear_losses_approaches_their_mean_gradient():
    alpha, rounds = 0.3, 7
    run = fc.simulate(fc.FedCM(alpha), linear(c.tolist()), rounds=rounds, **FULL)
    Delta = [(1 - (1 - alpha) ** t) * c.mean(0) for t in range(rounds + 1)]
    h.close(run.state["Delta"], Delta[rounds], 1e-12)
    h.close(run.params, -LR * K * sum(Delta[1:]), 1e-12)


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_fedcms_fixed_point_is_that_of_fedavg_with_alpha_times_the_learning_rate(alpha):
    A, b = h.problem(4, 3)  # there Delta = 0: the local steps are FedAvg's, scaled
    M = np.eye(3) - powers(A, alpha * LR, K)
    h.close(last(fc.FedCM(alpha), fc.quadratic(A, b), 500, eval_every=500), fixed_point(M, b), 1e-10)


def test_fedcm_counts_each_clients_own_steps():
    A, b = h.problem(4, 3)
    P = [np.linalg.matrix_power(np.eye(3) - 0.4 * LR * a, k) for a, k in zip(A, Unequal.steps, strict=True)]
    run = fc.simulate(fc.FedCM(0.4), unequal(A, b), rounds=1, lr=LR)
    moved = [(np.eye(3) - P[i]) @ b[i] for i in range(4)]
    h.close(run.state["Delta"], -np.mean([moved[i] / (Unequal.steps[i] * LR) for i in range(4)], 0), 1e-13)


def test_mofedsam_without_perturbation_is_fedcm_and_without_momentum_fedsam_to_the_bit():
    assert_same_bits(fc.MoFedSAM(rho=0.0, beta=0.3), fc.FedCM(alpha=0.3))
    assert_same_bits(fc.MoFedSAM(rho=0.2, beta=1.0), fc.FedSAM(rho=0.2))


# --- FedGamma -------------------------------------------------------------------------------------------------------


def test_fedgamma_without_perturbation_is_scaffold_to_the_bit():
    assert_same_bits(fc.FedGamma(rho=0.0), fc.SCAFFOLD("II"))


def test_fedgammas_first_round_is_fedsams():
    assert_same_bits(fc.FedGamma(rho=0.2), fc.FedSAM(rho=0.2), rounds=1)


def test_fedgammas_variates_are_mean_perturbed_gradients_and_sum_to_the_servers():
    A, b = h.problem(4, 3)
    rho = 0.3
    run = fc.simulate(fc.FedGamma(rho), fc.quadratic(A, b), rounds=6, cohort=2, seed=1, **FULL)
    x, server, variates = np.zeros(3), np.zeros(3), np.zeros((4, 3))
    for S in run.cohorts:
        ends, before = [], variates.copy()
        for i in S:
            y, path = x, []
            for _ in range(K):
                g = A[i] @ (y - b[i])
                path.append(A[i] @ (y + rho * g / np.linalg.norm(g) - b[i]))
                y = y - LR * (path[-1] - before[i] + server)
            ends.append(y)
            variates[i] = np.mean(path, 0)
        x, server = np.mean(ends, 0), server + (variates - before).sum(0) / 4
    h.close(run.params, x, 1e-10)
    h.close(run.state["c_i"], variates, 1e-10)
    h.close(run.state["c"], run.state["c_i"].mean(0), 1e-13)


# --- FedSpeed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fc.FedSpeed(rho=0.0, lam=2.0), fc.FedSpeed(alpha=0.0, lam=2.0)], ids=repr)
def test_fedspeed_without_perturbation_is_feddyn_where_all_take_part(method):
    options = NETWORK | {"cohort": None}
    speed, dyn = (fc.simulate(m, h.network(path="batched"), **options).params for m in (method, fc.FedDyn(0.5)))
    h.close(speed, dyn, 1e-12)


@pytest.mark.parametrize(("rho", "alpha"), [(0.0, 1.0), (0.2, 1.0), (0.2, 0.5)])
def test_fedspeeds_fixed_point_is_the_optimum_of_the_merged_gradients(rho, alpha):
    """g_2 = A (y + rho g_1 - b): the merged gradient is (A + alpha rho A^2)(y - b), and no drift is left."""
    A, b = h.problem(4, 3)
    M = A + alpha * rho * A @ A
    run = fc.simulate(fc.FedSpeed(rho, alpha, 1.0), fc.quadratic(A, b), rounds=500, eval_every=500, **FULL)
    x = fixed_point(M, b)
    h.close(run.params, x, 1e-10)
    h.close(run.state["g_i"], np.einsum("npq,nq->np", M, x - b), 1e-9)
    if rho:
        assert np.linalg.norm(x - h.optimum(A, b)) > 1e-3


def test_fedspeeds_very_first_step_is_that_of_a_merged_gradient():
    A, b = h.problem(4, 3)
    rho, alpha, lam = 0.2, 0.7, 3.0
    step = [-LR * ((np.eye(3) + alpha * rho * A[i]) @ A[i] @ -b[i]) for i in range(4)]  # at x = 0, with g_i = 0
    run = fc.simulate(fc.FedSpeed(rho, alpha, lam), fc.quadratic(A, b), rounds=1, lr=LR, local_steps=1)
    h.close(run.state["g_i"], -np.array(step) / lam, 1e-13)
    h.close(run.params, 2 * np.mean(step, 0), 1e-13)  # y - lam g_i = 2 y
