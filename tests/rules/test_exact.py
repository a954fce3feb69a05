"""Every method against closed forms, limits and loops written from its equations, in float64.

The oracles are numpy (or autograd on one plain module); none calls the package.  Tolerances are relative to
max(1, |value|); 1e-12 is a few hundred roundings.
"""

from __future__ import annotations

import itertools

import helpers as h
import numpy as np
import pytest
import torch
from helpers import FULL, LR, K, last, linear, powers

import fedcore as fc

METHODS = [fc.FedAvg(), fc.FedAvg(server_momentum=0.5), fc.FedSGD(), fc.FedSMB(), fc.FedProx(mu=0.3),
           fc.SCAFFOLD("I"), fc.SCAFFOLD("II"), fc.FedUp(alpha=0.1)]  # fmt: skip


# --- the golden problem: two clients in one dimension -------------------------------------------------------------

GOLDEN = {
    "FedAvg": (fc.FedAvg(), [-0.21121, -0.2913177288, -0.3217009882], -0.34026614254414245),
    "FedProx(0.5)": (fc.FedProx(mu=0.5), [-0.193413125, -0.2776878171, -0.314408302], -0.3427631855850747),
    "FedUp(0.1)": (fc.FedUp(alpha=0.1), [-0.207467461, -0.3584772124, -0.3985203072], -0.34071572415429063),
    "SCAFFOLD I": (fc.SCAFFOLD("I"), [-0.21121, -0.4235177288, -0.4900808232], -0.5),
    "SCAFFOLD II": (fc.SCAFFOLD("II"), [-0.21121, -0.3733769128, -0.4546854771], -0.5),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_rounds_and_limit_on_two_quadratics(name):
    method, rounds, limit = GOLDEN[name]
    path = h.trajectory(method, h.golden(), 400, **FULL)[:, 0]
    h.close(path[1:4], rounds, 6e-11)  # printed to 10 digits
    h.close(path[-1], limit, 1e-12)


# --- FedAvg -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_lr", [1.0, 0.4, 1.7])
def test_fedavg_with_one_step_is_gradient_descent(server_lr):
    A, b = h.problem(4, 3)
    path = h.trajectory(fc.FedAvg(), fc.quadratic(A, b), 5, **FULL | {"local_steps": 1, "server_lr": server_lr})
    x = np.zeros(3)
    for t in range(5):
        x = x - LR * server_lr * np.mean([A[i] @ (x - b[i]) for i in range(4)], 0)
        h.close(path[t + 1], x, 1e-13)


def test_identical_clients_are_centralised_gradient_descent():
    A, b = h.problem(1, 3)
    many = fc.quadratic(np.repeat(A, 5, 0), np.repeat(b, 5, 0))
    x = np.zeros(3)
    for _ in range(3 * K):
        x = x - LR * A[0] @ (x - b[0])
    h.close(last(fc.FedAvg(), many, 3), x, 1e-13)


def test_one_client_is_centralised_sgd_with_torchs_own_optimiser():
    fed = h.network(sizes=(37,))
    x = fed.x0.clone()
    options = {"lr": 0.2, "momentum": 0.8, "weight_decay": 0.01}
    for t in range(3):
        w = torch.nn.Parameter(x.clone())
        sgd = torch.optim.SGD([w], **options)  # a fresh momentum buffer every round
        for inputs, labels in h.batches(fed, 3, t, 0, epochs=2, batch_size=8):
            w.grad = h.gradient(fed.engine.module, w, inputs, labels)
            sgd.step()
        x = w.detach()
    run = fc.simulate(fc.FedAvg(), fed, rounds=3, local_epochs=2, batch_size=8, seed=3, **options)
    h.close(run.params, x, 1e-12)


def test_a_cohort_is_averaged_over_its_own_size_and_not_over_all_clients():
    A, b = h.problem(7, 3)
    fed = fc.quadratic(A, b)
    run = fc.simulate(fc.FedAvg(), fed, rounds=6, cohort=3, seed=5, **FULL)
    x, P = np.zeros(3), powers(A, LR, K)
    for cohort in run.cohorts:
        assert len(cohort) == 3
        x = sum(b[i] + P[i] @ (x - b[i]) for i in cohort) / 3
    h.close(run.params, x, 1e-12)


def test_weighting_by_samples_uses_the_shares_of_the_cohort():
    sizes = (13, 7, 20, 4, 9)
    fed = h.network(sizes)
    run = fc.simulate(fc.FedSGD(), fed, rounds=3, cohort=3, lr=0.3, weighting="samples", seed=1)
    x = fed.x0.clone()
    for cohort in run.cohorts:
        pooled = [torch.cat(parts) for parts in zip(*(h.whole(fed, i) for i in cohort), strict=True)]
        x = x - 0.3 * h.gradient(fed.engine.module, x, *pooled)  # p_i = N_i / N_S makes it the pooled gradient
    h.close(run.params, x, 1e-12)


def test_server_momentum_is_heavy_ball_on_gradient_descent():
    a, beta, server_lr, steps = 0.8, 0.6, 1.3, 25
    fed = fc.quadratic(np.full((2, 1, 1), a), [[3.0], [-1.0]])
    path = h.trajectory(fc.FedAvg(server_momentum=beta), fed, steps, lr=LR, local_steps=1, server_lr=server_lr)[:, 0]
    # v' = beta v - lr a e,  e' = e + server_lr v': powers of one 2x2 matrix, applied to (e, v) = (-1, 0)
    M = np.array([[1 - server_lr * LR * a, server_lr * beta], [-LR * a, beta]])
    closed = [(np.linalg.matrix_power(M, t) @ [-1.0, 0.0])[0] + 1.0 for t in range(steps + 1)]
    h.close(path, closed, 1e-13)


def test_server_momentum_amplifies_a_constant_update_by_one_over_one_minus_beta():
    fed, beta = linear([[1.0, -2.0], [3.0, 0.5]]), 0.75
    path = h.trajectory(fc.FedAvg(server_momentum=beta), fed, 120, lr=0.01, local_steps=4)
    h.close(path[-1] - path[-2], -0.01 * 4 * np.array([2.0, -0.75]) / (1 - beta), 1e-10)


# --- FedSGD, FedSMB -----------------------------------------------------------------------------------------------


def test_fedsgd_is_fedavg_with_one_full_batch_step():
    fed = h.network()
    a = fc.simulate(fc.FedSGD(), fed, rounds=4, cohort=3, lr=0.3, local_epochs=7, batch_size=2)
    b = fc.simulate(fc.FedAvg(), fed, rounds=4, cohort=3, lr=0.3, local_steps=1, batch_size=None)
    assert torch.equal(a.params, b.params)


def test_fedsgd_is_gradient_descent_on_the_mean_of_local_losses():
    fed = h.network()
    x = fed.x0.clone()
    for _ in range(4):
        x = x - 0.3 * sum(h.gradient(fed.engine.module, x, *h.whole(fed, i)) for i in range(fed.n)) / fed.n
    h.close(fc.simulate(fc.FedSGD(), fed, rounds=4, lr=0.3).params, x, 1e-12)


def test_fedsmb_is_centralised_sgd_on_the_union_of_the_clients_batches():
    fed = h.network(sizes=(12, 12, 12))
    x = fed.x0.clone()
    for t in range(8):  # over a whole walk through the data, and into the next
        walk = [h.batches(fed, 2, t, i, steps=1, batch_size=4, walk=True)[0] for i in range(3)]
        inputs, labels = (torch.cat(parts) for parts in zip(*walk, strict=True))
        assert len(labels) == 12
        x = x - 0.3 * h.gradient(fed.engine.module, x, inputs, labels)
    run = fc.simulate(fc.FedSMB(), fed, rounds=8, lr=0.3, batch_size=4, local_steps=9, seed=2)
    h.close(run.params, x, 1e-12)


def test_fedsmb_walks_through_all_data_before_it_repeats_a_sample():
    fed = h.network(sizes=(10, 7))
    for client in (0, 1):
        for walk in range(3):
            rounds = -(-len(fed.index[client]) // 4)
            seen = []
            for t in range(walk * rounds, (walk + 1) * rounds):
                plan = fed.plan(0, t, np.array([client]), steps=1, batch_size=4, walk=True)
                seen += plan.indices[0, 0, : plan.counts[0, 0]].tolist()
            assert sorted(seen) == fed.index[client].tolist()


def test_fedsmb_with_the_whole_local_batch_is_fedsgd():
    fed = h.network()
    a, b = (fc.simulate(m, fed, rounds=4, lr=0.3, batch_size=20) for m in (fc.FedSMB(), fc.FedSGD()))
    h.close(a.params, b.params, 1e-13)


# --- what is FedAvg in a limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fc.FedProx(mu=0.0), fc.FedUp(alpha=0.0)], ids=repr)
def test_a_method_without_its_term_is_fedavg(method):
    fed = h.network()
    options = {"rounds": 4, "cohort": 3, "lr": 0.3, "batch_size": 4, "local_epochs": 2}
    h.close(fc.simulate(method, fed, **options).params, fc.simulate(fc.FedAvg(), fed, **options).params, 1e-12)


def assert_same_run(method, options):
    """FedAvg's run: to the bit by gradients, to rounding where the engine takes the steps of FedAvg itself."""
    a, b = (fc.simulate(m, h.network(path="batched"), **options).params for m in (method, fc.FedAvg()))
    assert torch.equal(a, b)
    a, b = (fc.simulate(m, h.network(path="written"), **options).params for m in (method, fc.FedAvg()))
    h.close(a, b, 1e-14)


@pytest.mark.parametrize(
    "method", [fc.FedProx(mu=2.0), fc.SCAFFOLD("I"), fc.SCAFFOLD("II"), fc.FedUp(alpha=0.2)], ids=repr
)
def test_the_very_first_step_is_fedavgs(method):
    options = {"rounds": 1, "local_steps": 1, "lr": 0.3, "batch_size": 4}
    assert_same_run(method, options)


# --- FedProx ------------------------------------------------------------------------------------------------------


def test_fedprox_round_is_its_closed_form():
    A, b = h.problem(4, 3)
    mu, eye = 0.7, np.eye(3)
    P = powers(A + mu * eye, LR, K)
    path = h.trajectory(fc.FedProx(mu=mu), fc.quadratic(A, b), 4, **FULL)
    for t in range(4):
        x = path[t]
        centre = [np.linalg.solve(A[i] + mu * eye, A[i] @ b[i] + mu * x) for i in range(4)]
        h.close(path[t + 1], np.mean([centre[i] + P[i] @ (x - centre[i]) for i in range(4)], 0), 1e-13)


@pytest.mark.parametrize(("mu", "fixed"), [(0.1, -0.03125), (1.0, -0.2), (10.0, -10 / 23), (1000.0, -1000 / 2003)])
def test_exact_fedprox_stands_still_at_the_published_points(mu, fixed):
    # sum (a_i + mu)^-1 a_i (b_i - x) = 0; on P1 it moves from 0 (mu = 0) to the optimum -1/2 (mu -> infinity)
    fed = h.golden(x0=fixed)
    h.close(last(fc.FedProx(mu=mu), fed, 2, lr=min(0.1, 0.5 / mu), local_steps=600), fixed, 1e-12)
    moved = last(fc.FedProx(mu=mu), h.golden(x0=fixed + 0.1), 1, lr=min(0.1, 0.5 / mu), local_steps=600)
    assert abs(moved - fixed)[0] < 0.1  # and it attracts


def test_fedprox_is_weight_decay_on_tilted_losses():
    A, b = h.problem(4, 3)
    mu, x0 = 0.4, np.array([1.0, -2.0, 0.5])
    tilted = np.array([b[i] + mu * np.linalg.solve(A[i], x0) for i in range(4)])  # gradient A_i (y - b_i) - mu x0
    prox = last(fc.FedProx(mu=mu), fc.quadratic(A, b, x0), 1)
    h.close(last(fc.FedAvg(), fc.quadratic(A, tilted, x0), 1, weight_decay=mu), prox, 1e-13)


# --- SCAFFOLD -----------------------------------------------------------------------------------------------------


def scaffold_by_hand(fed, cohorts, option, lr, lr_decay, server_lr, seed, **work):
    """SCAFFOLD with plain lists and autograd; in option II c_i is literally the mean gradient along the path."""
    x, c = fed.x0.clone(), torch.zeros(fed.d, dtype=fed.dtype)
    c_i = [torch.zeros_like(c) for _ in range(fed.n)]
    net = fed.engine.module
    for t, cohort in enumerate(cohorts):
        ends, new = [], {}
        for i in cohort:
            y, path = x.clone(), []
            for inputs, labels in h.batches(fed, seed, t, i, **work):
                path.append(h.gradient(net, y, inputs, labels))
                y = y - lr * lr_decay**t * (path[-1] - c_i[i] + c)
            ends.append(y)
            new[i] = h.gradient(net, x, *h.whole(fed, i)) if option == "I" else sum(path) / len(path)
        x = x + server_lr * (sum(ends) / len(ends) - x)
        c = c + sum(new[i] - c_i[i] for i in cohort) / fed.n
        for i in cohort:
            c_i[i] = new[i]
    return x, c, torch.stack(c_i)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_control_is_the_mean_gradient_of_the_local_path(option):
    fed = h.network()  # clients of 13, 7, 20, 4, 9 samples take 4, 2, 5, 1, 3 steps an epoch
    options = {"lr": 0.2, "lr_decay": 0.8, "server_lr": 0.7, "seed": 4}
    run = fc.simulate(fc.SCAFFOLD(option), fed, rounds=5, cohort=3, batch_size=4, local_epochs=2, **options)
    x, c, c_i = scaffold_by_hand(fed, run.cohorts, option, **options, epochs=2, batch_size=4)
    h.close(run.params, x, 1e-12)
    h.close(run.state["c"], c, 1e-12)
    h.close(run.state["c_i"], c_i, 1e-12)
    assert c.norm() > 0.01


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort", [1, 2, 3, 4, 5])
def test_scaffold_control_is_mean_of_client_controls(option, cohort):
    fed = h.network()
    for rounds in (1, 2, 7):
        run = fc.simulate(fc.SCAFFOLD(option), fed, rounds=rounds, cohort=cohort, lr=0.2, lr_decay=0.9, server_lr=0.6,
                          weight_decay=0.01, weighting="samples", batch_size=4)  # fmt: skip
        h.close(run.state["c"], run.state["c_i"].mean(0), 1e-13)
        assert run.state["c"].norm() > 1e-3


def test_clients_outside_the_cohort_keep_their_controls():
    fed = h.network()
    runs = [fc.simulate(fc.SCAFFOLD(), fed, rounds=t, cohort=2, lr=0.2, batch_size=4) for t in range(6)]
    for before, after in itertools.pairwise(runs):
        out = [i for i in range(fed.n) if i not in after.cohorts[-1]]
        assert torch.equal(before.state["c_i"][out], after.state["c_i"][out])
        assert (before.state["c_i"] != after.state["c_i"])[after.cohorts[-1]].any(1).all()


class Literal(fc.SCAFFOLD):
    """The rule as the page among the sources prints it: the mean over the cohort, without |S| / n."""

    def aggregate(self, r, y):
        state = super().aggregate(r, y)
        return {**state, "c": r.c + (state["c_i"] - r.c_i).sum(0) / r.m}


def test_scaffold_without_the_cohort_share_loses_the_invariant():
    fed = h.network()
    options = {"rounds": 6, "lr": 0.2, "batch_size": 4}
    some = fc.simulate(Literal(), fed, cohort=2, **options).state
    assert (some["c"] - some["c_i"].mean(0)).norm() > 0.1 * some["c"].norm()
    assert torch.equal(fc.simulate(Literal(), fed, **options).params, fc.simulate(fc.SCAFFOLD(), fed, **options).params)


def test_both_options_agree_and_are_gradient_descent_for_one_full_batch_step():
    A, b = h.problem(4, 3)
    fed, options = fc.quadratic(A, b), {"lr": LR, "local_steps": 1, "server_lr": 0.8}
    one, two = (h.trajectory(fc.SCAFFOLD(o), fed, 8, **options) for o in ("I", "II"))
    x = np.zeros(3)
    for t in range(8):
        x = x - LR * 0.8 * np.mean([A[i] @ (x - b[i]) for i in range(4)], 0)
        h.close(one[t + 1], x, 1e-12)
        h.close(two[t + 1], x, 1e-12)


def test_scaffold_with_one_step_follows_the_published_path():
    h.close(last(fc.SCAFFOLD("II"), h.golden(), 7, local_steps=1), -0.3951424, 5e-8)  # printed to 7 digits


@pytest.mark.parametrize("cohort", [None, 2])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_reaches_the_optimum_and_controls_become_local_gradients(option, cohort):
    A, b = h.problem(4, 3)
    run = fc.simulate(fc.SCAFFOLD(option), fc.quadratic(A, b), rounds=900, cohort=cohort, eval_every=900, **FULL)
    x = h.optimum(A, b)
    h.close(run.params, x, 1e-8)
    h.close(run.state["c_i"], np.einsum("npq,nq->np", A, x - b), 1e-8)
    h.close(run.state["c"], np.zeros(3), 1e-8)


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_scaffold_round_is_fedavgs(option):
    assert_same_run(fc.SCAFFOLD(option), {"rounds": 1, "cohort": 3, "lr": 0.3, "batch_size": 4})


# --- FedUp --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cohort", [None, 2])
def test_fedup_is_a_pull_back_plus_a_push_along_the_last_displacement(cohort):
    A, b = h.problem(5, 3)
    alpha, decay = 0.15, 0.9
    run = fc.simulate(
        fc.FedUp(alpha=alpha), fc.quadratic(A, b), rounds=7, cohort=cohort, lr_decay=decay, server_lr=0.8, **FULL
    )
    x = x_prev = np.zeros(3)
    for t, S in enumerate(run.cohorts):
        lr, ends = LR * decay**t, []
        for i in S:
            y = x
            for _ in range(K):
                y = y - lr * A[i] @ (y - b[i]) + alpha * (x - x_prev) - lr * alpha * (y - x)
            ends.append(y)
        x_prev, x = x, x + 0.8 * (np.mean(ends, 0) - x)
    h.close(run.params, x, 1e-12)
    h.close(run.state["x_prev"], x_prev, 1e-12)


def test_the_first_fedup_round_is_fedprox_to_the_bit():
    fed, options = h.network(), {"rounds": 1, "cohort": 3, "lr": 0.3, "batch_size": 4}
    up, prox = (fc.simulate(m, fed, **options).params for m in (fc.FedUp(alpha=0.4), fc.FedProx(mu=0.4)))
    assert torch.equal(up, prox)


@pytest.mark.parametrize(("alpha", "grows"), [(0.08, False), (0.12, True)])
def test_fedup_follows_its_isotropic_recursion_and_diverges_beyond_coefficient_one(alpha, grows):
    a, steps, rounds, b = 0.8, 16, 60, np.array([[1.0, 2.0], [-3.0, 0.0], [0.5, 1.0]])
    path = h.trajectory(fc.FedUp(alpha=alpha), fc.quadratic(np.repeat(a * np.eye(2)[None], 3, 0), b, [4.0, -1.0]),
                        rounds, lr=LR, local_steps=steps)  # fmt: skip
    q = 1 - LR * (a + alpha)
    S = (1 - q**steps) / (LR * (a + alpha))
    e = path - b.mean(0)
    for t in range(rounds):
        h.close(e[t + 1], (1 - LR * a * S + alpha * S) * e[t] - alpha * S * e[max(t - 1, 0)], 1e-12)
    # the recursion's determinant is alpha S, so |e| grows without bound just when it exceeds 1
    assert (alpha * S > 1) == grows
    roots = np.roots([1, -(1 - LR * a * S + alpha * S), alpha * S])
    assert (abs(roots).max() > 1) == grows
    late, early = (np.linalg.norm(e[part], axis=1).max() for part in (slice(50, 60), slice(0, 10)))
    assert (late > early) == grows


@pytest.mark.parametrize(("alpha", "steps"), [(0.05, 4), (0.1, 5), (0.08, 8)])
def test_fedup_estimates_linear_losses_by_beta_over_one_minus_beta(alpha, steps):
    c, lr = np.array([[1.0, -2.0], [3.0, 0.5], [-1.0, 0.0]]), 0.5
    path = h.trajectory(fc.FedUp(alpha=alpha), linear(c.tolist()), 250, lr=lr, local_steps=steps)
    beta = (1 - (1 - lr * alpha) ** steps) / lr
    h.close(alpha / lr * (path[-2] - path[-1]), beta / (1 - beta) * c.mean(0), 1e-9)


def test_fedup_estimate_of_linear_losses_is_unbiased_at_beta_one_half():
    steps, lr = 6, 0.5
    alpha = (1 - (1 - lr * 0.5) ** (1 / steps)) / lr  # beta = 1/2
    path = h.trajectory(fc.FedUp(alpha=alpha), linear([[1.0], [3.0]]), 250, lr=lr, local_steps=steps)[:, 0]
    h.close(alpha / lr * (path[-2] - path[-1]), 2.0, 1e-9)


# --- one step -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 4.0])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_a_step_is_gradient_decay_correction_clip_momentum_in_this_order(momentum, clip):
    A, b = h.problem(3, 3)
    mu, decay, lr, lr_decay = 0.6, 0.25, 0.1, 0.5
    run = fc.simulate(fc.FedProx(mu=mu), fc.quadratic(A, b, [2.0, 0.0, -1.0]), rounds=3, local_steps=4, lr=lr,
                      lr_decay=lr_decay, momentum=momentum, clip=clip, weight_decay=decay)  # fmt: skip
    x, clipped = np.array([2.0, 0.0, -1.0]), 0
    for t in range(3):
        ends = []
        for i in range(3):
            y, buffer = x, 0
            for _ in range(4):
                v = A[i] @ (y - b[i]) + decay * y + mu * (y - x)
                if clip is not None and np.linalg.norm(v) > clip:
                    v, clipped = v * clip / np.linalg.norm(v), clipped + 1
                buffer = momentum * buffer + v
                y = y - lr * lr_decay**t * buffer
            ends.append(y)
        x = np.mean(ends, 0)
    h.close(run.params, x, 1e-13)
    assert clip is None or 5 < clipped < 36 - 5  # both kinds of steps were there


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_server_learning_rate_scales_the_mean_update_of_every_method(method):
    A, b = h.problem(4, 3)
    x0 = np.array([2.0, 0.0, -1.0])
    one, some = (last(method, fc.quadratic(A, b, x0), 1, server_lr=s) for s in (1.0, 0.3))
    h.close(some - x0, 0.3 * (one - x0), 1e-14)
    assert np.linalg.norm(one - x0) > 0.1


def test_weight_decay_is_part_of_scaffolds_full_gradient():
    A, b = h.problem(3, 3)
    run = fc.simulate(fc.SCAFFOLD("I"), fc.quadratic(A, b, [2.0, 0.0, -1.0]), rounds=1, weight_decay=0.25, **FULL)
    x = np.array([2.0, 0.0, -1.0])
    h.close(run.state["c_i"], np.einsum("npq,nq->np", A, x - b) + 0.25 * x, 1e-13)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_every_method_stands_still_where_all_clients_are_at_their_minimum(method):
    A, b = h.problem(4, 3)
    b = np.repeat(b[:1], 4, 0)
    h.close(last(method, fc.quadratic(A, b, b[0]), 5, cohort=2), b[0], 1e-14)
