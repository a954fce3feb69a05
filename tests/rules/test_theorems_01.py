"""The propositions on averaging, heterogeneity and drift, checked numerically in float64 through the package."""

import re
from pathlib import Path

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc


def fixed_point(A, b, lr, K):
    """Equation eq-fixed-point, with nothing taken from the package."""
    return h.optimum(np.eye(A.shape[-1]) - np.linalg.matrix_power(np.eye(A.shape[-1]) - lr * A, K), b)


def limit(A, b, lr, K, rounds=900, **settings):
    fed = fc.quadratic(A, b, x0=np.full(b.shape[1], 2.0))
    run = fc.simulate(fc.FedAvg(), fed, rounds=rounds, lr=lr, local_steps=K, eval_every=rounds, **settings)
    return run.params.numpy(), fed.optimum.numpy()


def scalar(a, b):
    return np.array(a, float)[:, None, None], np.array(b, float)[:, None]


# --- thm-models-or-gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("local_steps", [7, None])  # None: one epoch, so that K_i differs between the clients
def test_thm_models_or_gradients(weighting, local_steps):
    """sum p_i y_i = x - lr sum p_i g_i, with g_i the sum of the gradients along the client's own path."""
    part = fc.Dirichlet(0.3)
    fed = fc.federation("digits", clients=8, partition=part, model="logistic", seed=1, dtype=torch.float64)
    run = fc.simulate(
        fc.FedAvg(), fed, rounds=1, cohort=5, lr=0.3, local_steps=local_steps, weighting=weighting, seed=3
    )
    plan = fed.plan(3, 0, np.array(run.cohorts[0]), steps=local_steps)
    weights = fed.sizes[plan.clients] if weighting == "samples" else np.ones(5)
    p = torch.as_tensor(weights / weights.sum(), dtype=torch.float64)
    assert (len(set(plan.steps)) > 1) == (local_steps is None)

    Y, g = fed.x0.repeat(5, 1), torch.zeros(5, fed.d, dtype=torch.float64)
    for k in range(plan.steps[0]):
        a = int((plan.steps > k).sum())
        step = fed.gradient(Y[:a].clone(), plan, k)
        g[:a] += step
        Y[:a] -= 0.3 * step
    by_models, by_gradients = p @ Y, fed.x0 - 0.3 * (p @ g)
    torch.testing.assert_close(by_models, by_gradients, rtol=0, atol=1e-13)
    torch.testing.assert_close(run.params, by_gradients, rtol=0, atol=1e-13)
    # the gradients along the path are not those at x: the form does not say that FedAvg is SGD with step K lr
    at_x = sum(fed.gradient(fed.x0.repeat(5, 1), plan, k) for k in range(plan.steps.min()))
    assert (p @ at_x - p @ g).norm() > 0.1 * (p @ g).norm()


def test_weights_that_do_not_sum_to_one_shrink_the_model():
    """Equation (3) of the FedUp study as printed, 1/n with m < n clients: twenty clients at 1, five take part."""
    n, m, literal = 20, 5, 0.0
    A, b = scalar([1.0] * n, [1.0] * n)
    for _ in range(60):
        one = fc.quadratic(A, b, x0=[literal])
        literal = fc.simulate(fc.FedAvg(), one, rounds=1, cohort=m, lr=0.1, local_steps=5).params.item() * m / n
    left = 0.9**5
    assert literal == pytest.approx(m / n * (1 - left) / (1 - m / n * left), rel=1e-12)
    assert limit(A, b, 0.1, 5, cohort=m)[0] == pytest.approx(1, rel=1e-12)


# --- thm-fedavg-fixed-point -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 2, 5, 30])
@pytest.mark.parametrize("lr", [0.1, 0.7, 1.7])  # 1.7: local steps overshoot, eta * lambda_max is still below 2
def test_thm_fedavg_fixed_point(K, lr):
    A, b = h.problem(low=0.1, high=1)
    P = np.eye(3) - lr * A
    fed = fc.quadratic(A, b, x0=[2.0, -1.0, 0.5])
    one = fc.simulate(fc.FedAvg(), fed, rounds=1, lr=lr, local_steps=K).params.numpy()
    moved = np.einsum("npq,nq->np", np.linalg.matrix_power(P, K), fed.x0.numpy() - b)
    np.testing.assert_allclose(one, (b + moved).mean(0), rtol=0, atol=1e-13)  # eq-round-map

    end, optimum = limit(A, b, lr, K)
    np.testing.assert_allclose(end, fixed_point(A, b, lr, K), rtol=0, atol=1e-9)  # eq-fixed-point
    if K == 1:
        np.testing.assert_allclose(end, optimum, rtol=0, atol=1e-9)
    else:
        assert np.linalg.norm(end - optimum) > 1e-3


def test_the_limit_for_many_local_steps_is_the_mean_of_the_optima():
    A, b = h.problem(seed=1, low=0.1, high=1)
    np.testing.assert_allclose(limit(A, b, 1.0, 400, rounds=3)[0], b.mean(0), rtol=0, atol=1e-12)


def test_the_server_learning_rate_does_not_move_the_limit():
    A, b = h.problem(seed=3, low=0.1, high=1)
    end, _ = limit(A, b, 0.5, 8, server_lr=0.4)
    np.testing.assert_allclose(end, fixed_point(A, b, 0.5, 8), rtol=0, atol=1e-9)


# --- thm-no-bias ----------------------------------------------------------------------------------------------------


def bias_operator(A, lr, K):
    """The bias as a linear map of (b_1, ..., b_n): its norm is 0 exactly if there is no bias for any b."""
    n, p = A.shape[:2]
    unit = np.eye(n * p).reshape(n * p, n, p)
    return np.array([fixed_point(A, b, lr, K) - h.optimum(A, b) for b in unit])


def test_thm_no_bias():
    A, b = h.problem(seed=4, low=0.1, high=1)
    # 1. sufficient: one step, or equal curvatures, or equal optima
    no_bias = {"K = 1": (A, b, 1), "equal A": (A[:1].repeat(4, 0), b, 9), "equal b": (A, b[:1].repeat(4, 0), 9)}
    for case, (A_, b_, K) in no_bias.items():
        end, optimum = limit(A_, b_, 0.9, K)
        np.testing.assert_allclose(end, optimum, rtol=0, atol=1e-9, err_msg=case)
    # 2. otherwise, with lr lambda_max <= 1, there is a bias for almost every b
    rng = np.random.default_rng(5)
    for K in (2, 3, 4, 9):
        for lr in (0.1, 0.9):
            assert np.linalg.norm(bias_operator(A, lr, K)) > 1e-3
            assert all(np.linalg.norm(fixed_point(A, b_, lr, K) - fixed_point(A, b_, lr, 1)) > 1e-6
                       for b_ in rng.normal(size=(50, *b.shape)))  # fmt: skip
    # 3. to first order: -(lr (K - 1) / 2) (sum A)^-1 sum A_i^2 (b_i - x*); halving lr halves the relative error
    optimum = fc.quadratic(A, b).optimum.numpy()
    errors = []
    for lr in (0.002, 0.001):
        first = -lr * 4 / 2 * np.linalg.solve(A.sum(0), np.einsum("npq,nqr,nr->p", A, A, b - optimum))
        bias = fixed_point(A, b, lr, 5) - optimum
        errors.append(np.linalg.norm(bias - first) / np.linalg.norm(bias))
    assert errors[0] < 0.02
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.05)


def test_the_condition_on_the_step_cannot_be_dropped():
    """lr lambda_max > 1 and odd K: different curvatures may weigh the same, and no b gives a bias."""
    A, _ = scalar([1.3, 1.7], [0, 0])
    assert np.linalg.norm(bias_operator(A, 1.0, 3)) < 1e-14
    assert np.linalg.norm(bias_operator(A / 2, 1.0, 3)) > 0.05
    end, optimum = limit(A, np.array([[1.0], [-1.0]]), 1.0, 3)
    assert end.item() == pytest.approx(optimum.item(), abs=1e-12)


@pytest.mark.parametrize(("q", "n"), [(0.1, 20), (1.0, 20), (0.3, 100)])
def test_thm_dirichlet_holders(q, n):
    """The mean over draws of sum_i p_i^2, by NumPy's Dirichlet; and what the chapter reads off it."""
    p = np.random.default_rng(0).dirichlet(np.full(n, q), size=40_000)
    assert (p**2).sum(1).mean() == pytest.approx((q + 1) / (n * q + 1), rel=0.02)


def test_the_chapter_counts_the_holders_of_a_label_as_proved():
    text = (Path(__file__).parents[2] / "book" / "heterogeneity.ipynb").read_text(encoding="utf-8")
    counted = re.search(
        r"With \$q = ([\d.]+)\$ this gives ([\d.]+) of (\d+) clients, ([\d.]+) of (\d+) and (\d+) of (\d+)", text
    )
    q, *pairs = map(float, counted.groups())
    for holders, n in zip(pairs[::2], pairs[1::2], strict=True):
        assert holders == round((n * q + 1) / (q + 1), 1)


# --- the exercises --------------------------------------------------------------------------------------------------


def test_unequal_numbers_of_steps_bias_the_limit_although_all_curvatures_are_equal():
    """The first exercise on heterogeneity."""
    K, b = [5, 20], np.array([1.0, -1.0])
    w = 1 - 0.9 ** np.array(K)
    assert limit(*scalar([1, 1], b), 0.1, K)[0] == pytest.approx((w @ b) / w.sum(), abs=1e-12)
    assert w / w.sum() == pytest.approx([0.318, 0.682], abs=5e-4)


def test_smaller_steps_at_equal_walking_distance_keep_the_bias():
    """The first exercise on drift: lr -> 0 with lr K = 0.5 tends to the gradient-flow limit, not to the optimum."""
    flow = 1 - np.exp(-0.5 * np.array([1.0, 3.0]))
    wanted = (flow[0] - flow[1]) / flow.sum()
    assert wanted == pytest.approx(-0.3276, abs=5e-5)
    end, _ = limit(*scalar([1, 3], [1, -1]), lr=0.5 / 1000, K=1000, rounds=60)
    assert end.item() == pytest.approx(wanted, abs=1e-4)
