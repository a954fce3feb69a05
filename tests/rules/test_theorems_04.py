"""Mime's propositions as numbers, in float64, through the public interface."""

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


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("K", "share"), [(1, 0.1), (6, 0.1), (6, 0.95)])
def test_thm_mime_fixed_point(beta, K, share):
    """The optimum with s = 0 is unchanged; no other state is, because a round less the identity is a regular map."""
    A, b = problem(n=4, p=3)
    fed, method = fc.quadratic(A, b), fc.Mime(beta)
    work = {"lr": share * 2 / np.linalg.eigvalsh(A).max(), "local_steps": K}

    def after(z):
        state = fc.start(method, fed).updated(x=z[:3], s=z[3:])
        new = fc.one_round(method, fed, state, 0, **work)[0]
        return torch.cat([new["x"], new["s"]])

    best, zero = torch.cat([fed.optimum, torch.zeros(3).double()]), torch.zeros(6).double()
    torch.testing.assert_close(after(best), best, rtol=0, atol=1e-12)
    M = torch.stack([after(e) - after(zero) for e in torch.eye(6).double()], 1)
    assert torch.linalg.svdvals(M - torch.eye(6)).min() > 1e-4


def test_mimelite_stands_still_elsewhere():
    A, b = problem(n=4, p=3)
    work = {"lr": 0.3 / np.linalg.eigvalsh(A).max(), "local_steps": 6, "rounds": 3000, "eval_every": 3000}
    fed = fc.quadratic(A, b)
    lite, mime = (fc.simulate(method, fed, **work).final("distance") for method in (fc.MimeLite(0.5), fc.Mime(0.5)))
    assert mime < 1e-9 < 1e-4 < lite


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


@pytest.mark.parametrize("a", [0.0, 1.0])
def test_stem_takes_mimes_step_with_its_own_direction_or_fedavgs_from_the_second_step_on(a):
    A, b = problem(n=3, p=2)
    fed, lr, K = fc.quadratic(A, b, x0=np.ones(2)), 0.05, 4
    x = np.ones(2)
    d = np.einsum("npq,nq->p", A, x - b) / 3  # the mean gradient, as in the first round
    ends = []
    for A_i, b_i in zip(A, b, strict=True):
        y = x - lr * d
        for _ in range(K - 1):
            y = y - lr * (A_i @ (y - b_i) + (1 - a) * (d - A_i @ (x - b_i)))
        ends.append(y)
    after = fc.simulate(fc.STEM(a), fed, rounds=1, lr=lr, local_steps=K).params
    assert after.numpy() == pytest.approx(np.mean(ends, axis=0), abs=1e-12)


def test_stem_that_forgets_nothing_stands_still_wherever_its_direction_is_zero():
    A, b = problem(n=3, p=2)
    fed = fc.quadratic(A, b, x0=np.ones(2))
    work = {"lr": 0.05, "local_steps": 4}
    for a, moves in ((0.0, False), (0.3, True)):
        state = fc.start(fc.STEM(a), fed)
        after, _ = fc.one_round(fc.STEM(a), fed, state, 1, **work)  # d is zero before the first round
        assert bool((after["x"] - state["x"]).norm() > 1e-3) == moves
