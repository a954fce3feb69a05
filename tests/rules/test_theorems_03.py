"""FedUp's theorems as numbers: one test per label, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import trajectory, watched

import fedcore as fc
from fedcore.engine import PLAIN


class Linear(fc.Quadratic):
    """F_i(x) = <c_i, x>: gradients c_i `[n, p]`, and Gaussian noise of total variance sigma^2 in every local step."""

    def __init__(self, c, sigma=0.0):
        self.c, self.sigma = torch.as_tensor(c, dtype=torch.float64), sigma
        n, p = self.c.shape
        super().__init__(torch.zeros(n, p, p).double(), torch.zeros(n, p).double(), torch.zeros(p).double())

    def objective(self, x):
        return (self.c @ x).mean()

    def full_gradient(self, Y, plan, k=-1, loss=PLAIN, along=None):
        return self.c[plan.rows[: len(Y)]]

    def gradient(self, Y, plan, k=0, loss=PLAIN, along=None):
        draw = torch.Generator().manual_seed((int(plan.keys[0]) + k) % 2**63)
        noise = torch.randn(Y.shape, dtype=Y.dtype, generator=draw)
        return self.full_gradient(Y, plan) + self.sigma / Y.shape[1] ** 0.5 * noise


def momentum(alpha, lr, K):
    return (1 - (1 - lr * alpha) ** K) / lr


def gradients(n=40, p=20):
    return np.random.default_rng(3).normal(size=(n, p)) / p**0.5


def estimates(method, fed, alpha, rounds, **settings):
    """FedUp's estimate (alpha / lr)(x_prev - x) at the start of rounds 1, 2, ..., rounds: `[rounds, p]`."""
    _, seen = watched(method, fed, rounds=rounds + 1, **settings)
    return np.array([(alpha / r.lr * (r.x_prev - r.x)).numpy() for r, _ in seen[1:]])


def squared_errors(fed, alpha, target, m, rounds, K=10, lr=0.1):
    """||estimate - target||^2 along FedAvg's path, one value per round; cohorts and noise of rounds are independent."""
    found = estimates(fc.FedUp(0.0), fed, alpha, rounds, lr=lr, local_steps=K, cohort=m)
    return ((found - target) ** 2).sum(1)


def at_most_standard_errors(values, mean, k=5.0):
    """Whether the mean of independent values is within k standard errors of `mean`."""
    return abs(values.mean() - mean) <= k * values.std(ddof=1) / len(values) ** 0.5


@pytest.mark.parametrize(("alpha", "lr", "K"), [(0.03, 0.1, 10), (0.05, 0.2, 10), (0.09, 0.4, 10), (0.5, 0.3, 1)])
def test_thm_linear_estimator(alpha, lr, K):
    c, beta = gradients(8, 5), momentum(alpha, lr, K)
    own = estimates(fc.FedUp(alpha), Linear(c), alpha, 20, lr=lr, local_steps=K)
    t = np.arange(1, 21)[:, None]
    np.testing.assert_allclose(own, beta / (1 - beta) * (1 - beta**t) * c.mean(0), rtol=1e-10, atol=1e-13)
    plain = estimates(fc.FedUp(0.0), Linear(c), alpha, 20, lr=lr, local_steps=K)
    np.testing.assert_allclose(plain, np.tile(alpha * K * c.mean(0), (20, 1)), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("eta_alpha", "K", "holds"), [(1.0, 11, True), (1.9, 11, True), (2.0, 11, True), (2.35, 11, False)]
)
def test_thm_linear_estimator_bounds_beta_up_to_eta_alpha_2_and_not_beyond(eta_alpha, K, holds):
    c, lr = gradients(8, 5), 0.2
    alpha = eta_alpha / lr
    own = estimates(fc.FedUp(alpha), Linear(c), alpha, 1, lr=lr, local_steps=K)[0]  # beta times the mean gradient
    beta = (own @ c.mean(0)) / (c.mean(0) @ c.mean(0))
    assert beta == pytest.approx(momentum(alpha, lr, K), rel=1e-9)
    assert (beta <= alpha * K * (1 + 1e-9)) == holds


def test_thm_linear_estimator_unbiased_points_and_the_limit_of_small_alpha():
    c, lr, K = gradients(8, 5), 0.2, 10

    def error(method, alpha, rounds=200):
        last = estimates(method(alpha), Linear(c), alpha, rounds, lr=lr, local_steps=K)[-1]
        return np.linalg.norm(last - c.mean(0)) / np.linalg.norm(c.mean(0))

    half = (1 - (1 - lr / 2) ** (1 / K)) / lr  # beta = 1/2
    assert 1 / (2 * K) < half < 1.1 / (2 * K)
    assert error(fc.FedUp, half) < 1e-10
    assert error(lambda alpha: fc.FedUp(0.0), 1 / K) < 1e-10
    small = [error(fc.FedUp, alpha) for alpha in (1e-2, 1e-3, 1e-4)]
    assert small[0] < small[1] < small[2] < 1
    assert small[2] == pytest.approx(1 - 1e-4 * K, abs=1e-5)  # 1 - beta / (1 - beta): to 100 %, not to 0


def test_thm_estimator_variance():
    c, n, m, K, a, sigma = gradients(), 40, 5, 10, 0.1, 2.0
    zeta2 = ((c - c.mean(0)) ** 2).sum(1).mean()
    noise, sampling = a**2 * K * sigma**2 / m, a**2 * K**2 * zeta2 / m * (n - m) / (n - 1)
    same = np.repeat(c.mean(0, keepdims=True), n, axis=0)
    for fed, variance in (
        (Linear(same, sigma), noise),
        (Linear(c), sampling),
        (Linear(c, sigma), noise + sampling),
    ):
        values = squared_errors(fed, a, a * K * c.mean(0), m, rounds=400)
        assert at_most_standard_errors(values, variance), (values.mean(), variance)
    # Gaussian noise: ||.||^2 has standard deviation variance * sqrt(2 / p), which the empirical one must match.
    values = squared_errors(Linear(same, sigma), a, a * K * c.mean(0), m, rounds=400)
    assert values.std(ddof=1) == pytest.approx(noise * (2 / 20) ** 0.5, rel=5 / (2 * 400) ** 0.5)


def test_thm_fedup_estimate():
    """What can be tested of the source's Theorem 1: the scale in C_3, the noise term, and what its limit leaves out."""
    c, n, m, K, a, sigma = gradients(), 40, 5, 10, 0.1, 2.0
    # C_3 holds (alpha K - 1)^2: with exact, constant, equal gradients that is all the (squared, relative) error.
    same = np.repeat(c.mean(0, keepdims=True), n, axis=0)
    for alpha in (0.0, 0.05, 0.1, 0.15):
        values = squared_errors(Linear(same), alpha, c.mean(0), m, rounds=3) / (c.mean(0) ** 2).sum()
        np.testing.assert_allclose(values, (alpha * K - 1) ** 2, atol=1e-12)
    # The noise term has the cohort's m; the printed n is refuted.
    noisy = squared_errors(Linear(same, sigma), a, a * K * c.mean(0), m, rounds=400)
    assert at_most_standard_errors(noisy, a**2 * K * sigma**2 / m)
    assert not at_most_standard_errors(noisy, a**2 * K * sigma**2 / n, k=50)
    # Quadratics with exact gradients (sigma = 0), equal curvature, started at the optimum with a tiny learning rate:
    # (A1)-(A3) hold and the printed limit is 0.  It is reached with all clients, not with m < n.
    b, n, m = gradients(12, 4), 12, 3
    bowls = fc.quadratic(np.stack([np.eye(4)] * n), b - b.mean(0))
    sampling = a**2 * K**2 * ((b - b.mean(0)) ** 2).sum(1).mean() / m * (n - m) / (n - 1)
    assert squared_errors(bowls, a, 0.0, None, rounds=20, lr=1e-4).max() < 1e-24
    drawn = squared_errors(bowls, a, 0.0, m, rounds=400, lr=1e-5)
    # The curvature shortens a round by K lr = 1e-4, and the server strays by about K lr sqrt(rounds) = 0.2 %.
    assert drawn.mean() == pytest.approx(sampling, rel=0.01 + 5 * drawn.std(ddof=1) / 400**0.5 / sampling)


def test_thm_fedup_fixed_point():
    P1 = fc.quadratic(np.array([1.0, 3.0])[:, None, None], np.array([[1.0], [-1.0]]))

    def limit(method, fed, lr, K, rounds=600):
        return fc.simulate(method, fed, rounds=rounds, lr=lr, local_steps=K, eval_every=1000).params

    assert float(limit(fc.FedUp(0.1), P1, 0.1, 5)) == pytest.approx(-0.34071572415429063, abs=1e-12)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 3, 3))
    A, b = root @ root.transpose(0, 2, 1) / 3 + 0.2 * np.eye(3), rng.normal(size=(4, 3))
    fed, lr, K, alpha = fc.quadratic(A, b), 0.05, 8, 0.06
    G = [np.linalg.solve(M := A_i + alpha * np.eye(3), np.eye(3) - np.linalg.matrix_power(np.eye(3) - lr * M, K)) @ A_i
         for A_i in A]  # fmt: skip
    closed = np.linalg.solve(sum(G), sum(G_i @ b_i for G_i, b_i in zip(G, b, strict=True)))
    for method in (fc.FedUp(alpha), fc.FedProx(alpha)):
        np.testing.assert_allclose(limit(method, fed, lr, K), closed, atol=1e-10)
    plain = limit(fc.FedAvg(), fed, lr, K).numpy()
    assert np.linalg.norm(plain - closed) > 1e-4  # the test can tell FedAvg's fixed point from FedProx's
    assert np.linalg.norm(fed.optimum.numpy() - closed) > 1e-3  # and both are biased


def path(method, a, K, lr, rounds, x=2.0):
    fed = fc.quadratic(np.full((2, 1, 1), a), np.array([[1.0], [-1.0]]), x0=[x])  # mean b = 0
    return trajectory(method, fed, rounds, lr=lr, local_steps=K)[:, 0]


@pytest.mark.parametrize(("a", "alpha", "K"), [(0.8, 0.08, 16), (0.02, 0.05, 16), (2.0, 0.3, 3), (0.0, 0.09, 10)])
def test_thm_isotropic_recursion(a, alpha, K):
    lr = 0.1
    S = sum((1 - lr * (a + alpha)) ** j for j in range(K))
    x = [2.0, 2.0]
    for _ in range(60):
        x.append((1 - lr * a * S + alpha * S) * x[-1] - alpha * S * x[-2])
    np.testing.assert_allclose(path(fc.FedUp(alpha), a, K, lr, 60), x[1:], atol=1e-11)


def test_thm_fedup_stability():
    lr = 0.1

    def sums(a, alpha, K):
        return sum((1 - lr * (a + alpha)) ** j for j in range(K))

    # The criterion is the spectral radius of the recursion, on a grid that has both answers many times.
    answers = []
    for a in np.linspace(0.05, 30, 40):
        for alpha in np.linspace(0, 2, 41):
            for K in (1, 5, 16):
                S = sums(a, alpha, K)
                radius = max(abs(np.roots([1, -(1 - lr * a * S + alpha * S), alpha * S])))
                stable = abs(alpha * S) < 1 and 0 < lr * a * S < 2 + 2 * alpha * S
                if abs(radius - 1) > 1e-9:
                    answers.append(stable)
                    assert stable == (radius < 1), (a, alpha, K)
    assert 100 < sum(answers) < len(answers) - 100
    # And the method does what the criterion says (algorithms of the source's CIFAR-10 setting: K = 16).
    assert 0.08 * sums(0.8, 0.08, 16) < 1 < 0.12 * sums(0.8, 0.12, 16)
    assert abs(path(fc.FedUp(0.08), 0.8, 16, lr, 150)[-20:]).max() < 1e-8
    assert abs(path(fc.FedUp(0.12), 0.8, 16, lr, 150)[-20:]).max() > 10
    # alpha K < 1 is enough on a flat direction, because S_K <= K; and it is not far from necessary.
    for K in (1, 5, 16, 50):
        assert momentum(0.999 / K, lr, K) < 1
        assert momentum(1.2 / K, lr, K) > 1


@pytest.mark.parametrize(("mu", "is_bound"), [(0.05, False), (2.9, False), (3.0, True), (4.0, True)])
def test_a_parabola_flatter_than_the_loss_is_no_upper_bound(mu, is_bound):
    """F = 3/2 (y - 1)^2 at x = 0, with the exact gradient -3: eq. 5 holds for mu >= 3 alone."""
    y = torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None]
    loss = 1.5 * (y[:, 0] - 1) ** 2
    bound = fc.probes.quadratic_bound(1.5, torch.tensor([-3.0], dtype=torch.float64), y, mu)
    assert bool((bound >= loss - 1e-12).all()) == is_bound
