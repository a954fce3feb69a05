"""The methods that a reviewer asks for beside those of the sources: closed forms and limits, in float64.

The oracles are numpy; none calls the package.  Tolerances are relative to max(1, |value|).
"""

from __future__ import annotations

from dataclasses import replace

import helpers as h
import numpy as np
import pytest
import torch
from helpers import FULL, LR, K, last, linear, powers

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


# --- LocalOnly ------------------------------------------------------------------------------------------------------


def own_models(method: fc.Method, fed, **options) -> np.ndarray:
    """The models that the clients use after a run, `[n, d]`."""
    return method.personal(fc.simulate(method, fed, **options).state, fed.layout).numpy()


def test_clients_alone_contract_to_their_own_minima():
    A, b = h.problem(4, 3)
    P = powers(A, LR, 6 * K)
    alone = np.array([b[i] - P[i] @ b[i] for i in range(4)])
    h.close(own_models(fc.LocalOnly(), fc.quadratic(A, b), rounds=6, **FULL), alone, 1e-12)
    h.close(last(fc.LocalOnly(), fc.quadratic(A, b), 6), alone.mean(0), 1e-12)


def test_a_client_alone_trains_in_its_own_rounds_and_waits_in_others():
    A, b = h.problem(5, 3)
    run = fc.simulate(fc.LocalOnly(), fc.quadratic(A, b), rounds=7, cohort=2, seed=3, **FULL)
    visits = [sum(i in S for S in run.cohorts) for i in range(5)]
    assert len(set(visits)) > 1
    alone = [b[i] - np.linalg.matrix_power(np.eye(3) - LR * A[i], K * visits[i]) @ b[i] for i in range(5)]
    h.close(run.state["x_i"], np.array(alone), 1e-12)
    h.close(run.params, np.mean(alone, 0), 1e-12)  # of all clients, not of the cohort


# --- FedPer, FedRep -------------------------------------------------------------------------------------------------


def test_fedper_without_personal_layers_is_fedavg_to_the_bit():
    assert_same_bits(fc.FedPer(layers=0), fc.FedAvg())


def test_fedper_with_all_layers_personal_is_every_client_alone():
    fed = h.network(path="batched")
    options = {**NETWORK, "cohort": None}
    personal, alone = (own_models(m, fed, **options) for m in (fc.FedPer(layers=2), fc.LocalOnly()))
    h.close(personal, alone, 1e-13)
    A, b = h.problem(4, 3)  # a quadratic is one layer
    personal, alone = (
        own_models(m, fc.quadratic(A, b), rounds=4, cohort=2, **FULL) for m in (fc.FedPer(), fc.LocalOnly())
    )
    h.close(personal, alone, 1e-13)


def test_fedpers_clients_share_the_body_and_differ_in_the_head():
    fed, x0 = h.network(), h.network().x0.numpy()
    run = fc.simulate(fc.FedPer(), fed, **NETWORK | {"rounds": 1})
    X, head = fc.FedPer().personal(run.state, fed.layout).numpy(), fed.layout.layers()[-1].start
    assert (X[:, :head] == run.params.numpy()[:head]).all()
    for i in range(fed.n):
        assert (X[i, head:] == x0[head:]).all() == (i not in run.cohorts[0])
    assert len({X[i, head:].tobytes() for i in run.cohorts[0]}) == 3
    h.close(run.params[head:], X[run.cohorts[0], head:].mean(0), 1e-14)


@pytest.mark.parametrize(
    ("share", "K", "steps"), [(0.5, 4, 2), (0.5, 5, 3), (0.1, 30, 3), (10 / 11, 11, 10), (0.0, 3, 0), (1.0, 3, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fedrep_trains_the_head_for_its_share_of_the_steps_and_then_the_body(share, K, steps, dtype):
    fed, seen = h.network(dtype=dtype), []
    method, head = fc.FedRep(share=share), fed.layout.layers()[-1].start
    state = fc.start(method, fed)
    _, end = fc.one_round(method, fed, state, 0, local_steps=K, batch_size=4, watch=lambda r, y: seen.append(y.clone()))
    moves = [(a != b) for a, b in zip(seen, [*seen[1:], end.y], strict=True)]
    assert [bool(m[:, head:].any()) for m in moves] == [k < steps for k in range(K)]
    assert [bool(m[:, :head].any()) for m in moves] == [k >= steps for k in range(K)]


def test_fedreps_clients_each_take_the_share_of_their_own_steps():
    fed, method = h.network(), fc.FedRep(share=0.5)
    changed = {}

    def watch(r, y):
        before = changed.setdefault("y", y.clone())
        head = fed.layout.layers()[-1].start
        for i, moved in zip(r.ids, (y[:, head:] != before[: len(y), head:]).any(1), strict=False):
            changed.setdefault(int(i), []).append(bool(moved))
        changed["y"] = y.clone()

    fc.one_round(method, fed, fc.start(method, fed), 0, batch_size=4, local_epochs=2, watch=watch)
    for i, size in enumerate(fed.sizes):  # the first entry is before the first step
        K = 2 * -(-size // 4)
        assert changed[i] == [False] + [True] * (K // 2) + [False] * (K // 2 - 1)


def test_fedrep_on_one_layer_takes_its_share_of_steps_alone():
    A, b = h.problem(4, 3)
    fed = fc.quadratic(A, b)
    rep = own_models(fc.FedRep(share=0.4), fed, rounds=3, lr=LR, local_steps=5)
    h.close(rep, own_models(fc.LocalOnly(), fed, rounds=3, lr=LR, local_steps=2), 1e-13)


# --- Ditto ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_dittos_server_is_fedavgs_to_the_bit(lam):
    assert_same_bits(fc.Ditto(lam), fc.FedAvg(), clip=0.5, momentum=0.3, server_lr=0.7)


@pytest.mark.parametrize("options", [{}, {"clip": 0.5, "momentum": 0.6, "weight_decay": 0.01}], ids=str)
def test_ditto_without_its_pull_leaves_every_client_alone(options):
    fed = h.network(path="batched")
    one, two = (own_models(m, fed, **NETWORK | options) for m in (fc.Ditto(0.0), fc.LocalOnly()))
    h.close(one, two, 1e-12)
    assert abs(one - one.mean(0)).max() > 0.1


@pytest.mark.parametrize("lam", [0.3, 2.0])
def test_dittos_models_settle_between_their_own_minimum_and_the_servers_model(lam):
    A, b = h.problem(4, 3)
    x = fixed_point(np.eye(3) - powers(A, LR, K), b)  # FedAvg's
    v = [np.linalg.solve(A[i] + lam * np.eye(3), A[i] @ b[i] + lam * x) for i in range(4)]
    h.close(own_models(fc.Ditto(lam), fc.quadratic(A, b), rounds=400, eval_every=400, **FULL), np.array(v), 1e-10)


# --- pFedMe ---------------------------------------------------------------------------------------------------------


def test_a_pfedme_round_is_its_closed_form():
    A, b = h.problem(4, 3)
    lam, inner, rate, beta, eye = 2.0, 3, 0.1, 0.6, np.eye(3)
    run = fc.simulate(fc.pFedMe(lam, inner, rate), fc.quadratic(A, b), rounds=2, server_lr=beta, **FULL)
    x = np.zeros(3)
    for _ in range(2):
        ends, models = [], []
        for i in range(4):
            M, w = A[i] + lam * eye, x
            for _ in range(K):
                exact = np.linalg.solve(M, A[i] @ b[i] + lam * w)  # the minimiser, and the inner steps towards it
                theta = exact + np.linalg.matrix_power(eye - rate * M, inner) @ (w - exact)
                w = w - LR * lam * (w - theta)
            ends.append(w)
            models.append(theta)
        x = (1 - beta) * x + beta * np.mean(ends, 0)
    h.close(run.params, x, 1e-12)
    h.close(run.state["theta_i"], np.array(models), 1e-12)


def test_pfedme_with_one_local_step_minimises_the_mean_of_the_moreau_envelopes():
    A, b = h.problem(4, 3)
    lam, eye = 3.0, np.eye(3)
    envelopes = np.array(
        [lam * np.linalg.solve(a + lam * eye, a) for a in A]
    )  # their gradients are these times (x - b)
    x = fixed_point(envelopes, b)
    run = fc.simulate(fc.pFedMe(lam, 60, 0.2), fc.quadratic(A, b), rounds=400, eval_every=400, lr=LR, local_steps=1)
    h.close(run.params, x, 1e-9)
    theta = [np.linalg.solve(A[i] + lam * eye, A[i] @ b[i] + lam * x) for i in range(4)]
    h.close(run.state["theta_i"], np.array(theta), 1e-9)


# --- Central --------------------------------------------------------------------------------------------------------


def test_central_on_quadratics_is_gradient_descent_on_their_mean():
    A, b = h.problem(4, 3)
    x0, optimum = np.array([1.0, -2.0, 0.5]), h.optimum(A, b)
    fed = fc.quadratic(A, b, x0)
    run = fc.simulate(fc.Central(), fed, rounds=6, cohort=2, **FULL)
    h.close(run.params, optimum + np.linalg.matrix_power(np.eye(3) - LR * A.mean(0), 6 * K) @ (x0 - optimum), 1e-13)
    h.close(run.final("loss"), fed.objective(run.params), 1e-13)  # F of the four, not of a client
    h.close(run.final("distance"), np.linalg.norm(run.params.numpy() - optimum), 1e-13)


def test_a_method_on_the_pooled_quadratic_sees_full_gradients_and_curvature_of_the_mean():
    A, b = h.problem(4, 3)
    pooled = fc.Central().on(fc.quadratic(A, b))
    plan, Y = pooled.plan(0, 0, np.array([0])), torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)
    g = np.einsum("npq,nq->p", A, Y.numpy() - b) / 4
    h.close(pooled.full_gradient(Y, plan)[0], g, 1e-13)
    h.close(pooled.gradient(Y, plan, along=Y)[0], A.mean(0) @ Y[0].numpy(), 1e-13)
    gradient, losses = pooled.gradient_and_losses(Y, plan)
    h.close(gradient[0], g, 1e-13)
    h.close(losses, fc.quadratic(A, b).objective(Y[0])[None], 1e-13)


def test_central_is_minibatch_sgd_on_the_union_of_all_data():
    fed = h.network()
    pooled = fc.Central().on(fed)
    x = fed.x0.clone()
    for t in range(3):
        batches = h.batches(pooled, 5, t, 0, epochs=2, batch_size=8)
        assert sum(len(labels) for _, labels in batches) == 2 * 53  # every sample once an epoch
        for inputs, labels in batches:
            x = x - 0.2 * h.gradient(fed.engine.module, x, inputs, labels)
    options = {"rounds": 3, "lr": 0.2, "local_epochs": 2, "batch_size": 8, "seed": 5}
    run = fc.simulate(fc.Central(), fed, cohort=3, weighting="samples", **options)
    h.close(run.params, x, 1e-12)
    assert run.cohorts == [[0]] * 3
    assert np.array_equal(np.sort(pooled.index[0]), np.sort(np.concatenate(fed.index)))


@pytest.mark.parametrize("normalise", ["pooled", "half", "client"])
def test_central_does_not_depend_on_how_the_data_were_dealt(normalise):
    images = h.images(60, (1, 4, 4), 3)
    feds = [
        fc.federation(images, clients, partition, h.small_mlp, dtype=torch.float64, normalise=normalise)
        for clients, partition in ((1, fc.IID()), (4, fc.IID()), (6, fc.Dirichlet(0.5)))
    ]
    runs = [fc.simulate(fc.Central(), fed, rounds=3, lr=0.2, batch_size=8, cohort=1) for fed in feds]
    alone = fc.simulate(fc.FedAvg(), feds[0], rounds=3, lr=0.2, batch_size=8)
    for run in runs:
        h.close(run.params, alone.params, 1e-12)
        h.close(run.final("loss"), alone.final("loss"), 1e-12)


def test_central_keeps_public_data_and_a_federation_that_is_pooled_already():
    fed = fc.Central().on(h.network(public=2))
    assert len(fed.public[1]) == 6
    assert fc.Central().on(fed) is fed
