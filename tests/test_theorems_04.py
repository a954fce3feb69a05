"""Mime's proposition as numbers, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import network, problem

import fedcore as fc


def study(A, b, x, lr, steps=30, method=None):
    fed = fc.quadratic(A, b)
    method = method or fc.Mime(0.0)
    return fc.probes.mime_ablation(method, fed, torch.as_tensor(x), steps=steps, lr=lr)


def condition(A_i, lr, k):
    e = 1 - (1 - lr * np.linalg.eigvalsh(A_i)) ** k
    return e.max() / e.min()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.01, 0.45, 0.99])
def test_thm_forced_negative(seed, share):
    A, b = problem(n=5, p=4, seed=seed)
    x, steps = np.random.default_rng(seed).normal(size=4), 30
    largest = np.linalg.eigvalsh(A).max()
    C = np.einsum("npq,nq->p", A, x - b) / 5
    lr = share * 2 / largest
    found = study(A, b, x, lr, steps)
    for i, A_i in enumerate(A):
        for k in range(1, steps + 1):
            # the closed form, then the sign, then the ceiling by Kantorovich's inequality
            D = -C + np.linalg.matrix_power(np.eye(4) - lr * A_i, k) @ C
            cosine = D @ C / np.linalg.norm(D) / np.linalg.norm(C)
            assert found["A-B, C"][k - 1, i] == pytest.approx(cosine, abs=1e-9)
            kappa = condition(A_i, lr, k)
            assert found["A-B, C"][k - 1, i] <= -2 * kappa**0.5 / (kappa + 1) + 1e-9 < 0
    if share < 0.5:  # later the direction is down at rounding's size
        assert (found["A-B+C, C"][:8] > 0).all()


def test_thm_forced_negative_needs_positive_curvature():
    A, b = problem(n=3, p=2)
    A[0] = -np.eye(2)
    found = study(A, b, np.ones(2), 0.05, steps=5)
    np.testing.assert_allclose(found["A-B, C"][:, 0], 1.0, atol=1e-12)
    assert (found["A-B, C"][:, 1:] < 0).all()


def test_thm_forced_negative_needs_the_path_along_c():
    """On FedAvg's path a client descends along its own gradient, and the sign can be either."""
    A, b = np.stack([np.eye(1), 3 * np.eye(1)]), np.array([[1.0], [-1.0]])
    found = study(A, b, np.zeros(1), 0.1, steps=5, method=fc.FedAvg())
    np.testing.assert_allclose(found["A-B, C"], np.tile([1.0, -1.0], (5, 1)), atol=1e-12)


def test_thm_forced_negative_first_step_holds_on_a_network_with_mini_batches():
    """y_1 = x - lr C whatever the batch, because A = B at k = 0: A - B = -lr H C with the batch's Hessian H."""
    fed = network(sizes=(30, 25, 40))
    plan = fed.plan(0, 0, np.arange(3), steps=2, batch_size=8)
    X = fed.x0.expand(3, -1)
    C = fed.full_gradient(X, plan).mean(0)
    lr = 1e-4
    found = fc.probes.mime_ablation(fc.Mime(0.0), fed, fed.x0, steps=1, lr=lr, batch_size=8)
    eps = 1e-5
    HC = (fed.gradient(X + eps * C, plan, 1) - fed.gradient(X - eps * C, plan, 1)) / (2 * eps)
    expected = -(HC @ C) / HC.norm(dim=1) / C.norm()
    np.testing.assert_allclose(found["A-B, C"][0], expected.numpy(), atol=1e-3)
