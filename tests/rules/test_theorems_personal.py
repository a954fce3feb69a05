"""The propositions of the chapter on personal models as numbers, in float64, through the public interface.

That on the learnt start, thm-ala-diverges, is in test_theorems_07.py.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from helpers import optimum, turned

import fedcore as fc

I = np.eye(3)


@pytest.mark.parametrize(
    ("lam", "K", "lr"), [(1e-6, 6, 0.1), (0.3, 1, 0.1), (1.0, 6, 0.1), (8.0, 15, 0.1), (150.0, 30, 0.01)]
)
def test_thm_ditto_rest(lam, K, lr):
    A, b, fed = turned(0)
    run = fc.simulate(fc.Ditto(lam), fed, rounds=400, lr=lr, local_steps=K, eval_every=400)
    x = optimum(I - np.linalg.matrix_power(I - lr * A, K), b)
    v = np.linalg.solve(A + lam * I, (np.einsum("npq,nq->np", A, b) + lam * x)[..., None])[..., 0]
    np.testing.assert_allclose(run.params.numpy(), x, atol=1e-9)
    np.testing.assert_allclose(run.state["v_i"].numpy(), v, atol=1e-9)
    apart, steep = np.linalg.norm(b - x, axis=1), np.linalg.eigvalsh(A)
    found = run.state["v_i"].numpy()
    assert (np.linalg.norm(found - b, axis=1) <= lam / (steep[:, 0] + lam) * apart + 1e-8).all()
    assert (np.linalg.norm(found - x, axis=1) <= steep[:, -1] / (steep[:, -1] + lam) * apart + 1e-8).all()
    if lam < 1e-3:
        np.testing.assert_allclose(found, b, atol=1e-4)
    if lam > 100:
        np.testing.assert_allclose(found, np.broadcast_to(x, b.shape), atol=0.2)
    assert not np.allclose(found, found.mean(0), atol=1e-3)  # the models are personal


@pytest.mark.parametrize("lam", [0.0, 0.4, 3.0])
def test_thm_best_pull(lam):
    """Errors of plus or minus u, independent: the mean over all sixteen draws is the expectation."""
    a, u, wanted = 2.0, 0.7, np.array([1.0, -0.5, 0.2, -0.1])
    n, U, V = 4, u**2, wanted.var()

    def error(lam):
        runs = []
        for signs in product((-u, u), repeat=n):
            fed = fc.quadratic(np.full((n, 1, 1), a), (wanted + signs)[:, None])
            run = fc.simulate(fc.Ditto(lam), fed, rounds=40, lr=0.2, local_steps=3, eval_every=40)
            runs.append(((run.state["v_i"].numpy()[:, 0] - wanted) ** 2).mean())
        return np.mean(runs)

    w = a / (a + lam)
    closed = (1 - w) ** 2 * V + w**2 * (1 - 1 / n) * U + U / n
    assert error(lam) == pytest.approx(closed, abs=1e-10)
    best = a * (1 - 1 / n) * U / V
    assert error(best) < min(error(0.9 * best), error(1.1 * best))


def test_thm_best_pull_says_when_alone_is_better_than_one_model_for_all():
    rng, n = np.random.default_rng(0), 5
    for spread in (0.6, 1.2):
        wanted = spread * np.array([1.0, -1.0, 1.0, -1.0, 0.0])
        noise = rng.choice([-1.0, 1.0], size=(300, n))  # U = 1; each of the 300 coordinates is a draw
        fed = fc.quadratic(np.stack(n * [np.eye(300)]), (wanted + noise).T)
        run = fc.simulate(fc.LocalOnly(), fed, rounds=1, lr=1.0, local_steps=1)
        alone = ((run.state["x_i"].numpy() - wanted[:, None]) ** 2).mean()
        one = ((run.params.numpy() - wanted[:, None]) ** 2).mean()  # with equal curvatures the mean is FedAvg's limit
        assert (alone < one) == (wanted.var() > 1 - 1 / n)


@pytest.mark.parametrize(("inner", "K"), [(1, 1), (3, 4), (60, 1)])
def test_thm_pfedme_rest(inner, K):
    A, b, fed = turned(1)
    lam, rate, lr = 2.0, 0.15, 0.4
    M = A + lam * I
    B = lam * (I - np.linalg.matrix_power(I - rate * M, inner)) @ np.linalg.solve(M, A)
    x = optimum(I - np.linalg.matrix_power(I - lr * B, K), b)
    run = fc.simulate(fc.pFedMe(lam, inner, rate), fed, rounds=200, lr=lr, local_steps=K, eval_every=200)
    np.testing.assert_allclose(run.params.numpy(), x, atol=1e-9)
    if inner < 60:
        return

    def nearest(at):
        """The clients' minimisers of F_i(theta) + lam/2 |theta - at|^2."""
        return np.linalg.solve(M, (np.einsum("npq,nq->np", A, b) + lam * at)[..., None])[..., 0]

    def envelopes(at):
        theta = nearest(at)
        inside = np.einsum("np,npq,nq->n", theta - b, A, theta - b) + lam * ((theta - at) ** 2).sum(1)
        return inside.mean() / 2

    found = run.params.numpy()
    assert all(envelopes(found) < envelopes(found + step) for step in (*0.01 * I, *-0.01 * I))
    np.testing.assert_allclose(run.state["theta_i"].numpy(), nearest(found), atol=1e-9)
    assert np.linalg.norm(found - fed.optimum.numpy()) > 1e-2  # not the optimum of the mean objective


@pytest.mark.parametrize("share", [0.4, 0.7, 1.0])
def test_apfls_models_rest_at_the_clients_own_optima_for_every_share(share):
    _, b, fed = turned(0)
    run = fc.simulate(fc.APFL(share), fed, rounds=4000, lr=0.3, local_steps=1, eval_every=4000)
    used = share * run.state["v_i"] + (1 - share) * run.params
    np.testing.assert_allclose(used.numpy(), b, atol=1e-8)
