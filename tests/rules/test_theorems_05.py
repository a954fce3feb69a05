"""The comparison's propositions as numbers, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import optimum, problem

import fedcore as fc
from fedbook.measures.platform import PlatformFedDyn, PlatformSCAFFOLD

A, B = problem(n=4, p=3, seed=1)
LR, K = 0.5 / float(np.linalg.eigvalsh(A).max()), 5


def limit(method, rounds=600, **more):
    return fc.simulate(method, fc.quadratic(A, B), rounds=rounds, lr=LR, local_steps=K, eval_every=rounds, **more)


def fedavg_fixed_point():
    """(sum_i Q_i)^-1 sum_i Q_i b_i, Q_i = I - (I - lr A_i)^K."""
    return optimum(np.eye(3) - np.linalg.matrix_power(np.eye(3) - LR * A, K), B)


def feddyn_fixed_point():
    """x with mean_i y_i = y_n, and the clients' models y [n, p] from there: y_i = b_i + Q_i (x - b_i)."""
    Q = np.linalg.matrix_power(np.eye(3) - LR * A, K)
    shift = B - np.einsum("npq,nq->np", Q, B)
    x = np.linalg.solve((Q - Q[-1]).mean(0), shift[-1] - shift.mean(0))
    return x, shift + Q @ x


def test_thm_platform_fixed_points():
    best, scaffold = fc.quadratic(A, B).optimum.numpy(), limit(PlatformSCAFFOLD())
    np.testing.assert_allclose(scaffold.params, B[-1], atol=1e-8)  # the last client's own minimum
    np.testing.assert_allclose(scaffold.state["c"], 0, atol=1e-8)
    for alpha in (0.1, 0.3):  # where the mean of the clients' models is the last client's
        x, y = feddyn_fixed_point()
        start = {"x": torch.as_tensor(x), "h": torch.as_tensor(y[-1] - x)}
        there = type("There", (PlatformFedDyn,), {"start": lambda self, x0, start=start: start})
        dyn = fc.simulate(there(alpha), fc.quadratic(A, B, x0=x), rounds=1, lr=LR, local_steps=K)
        np.testing.assert_allclose(dyn.params, x, atol=1e-10)
        np.testing.assert_allclose(dyn.state["h"], y.mean(0) - x, atol=1e-10)
        assert min(np.linalg.norm(x - best), np.linalg.norm(x - fedavg_fixed_point())) > 1e-1
    for correct in (fc.SCAFFOLD(), fc.FedDyn(0.1), fc.FedDyn(0.3)):
        np.testing.assert_allclose(limit(correct).params, best, atol=1e-8)
    assert np.linalg.norm(fedavg_fixed_point() - best) > 1e-3
    assert np.linalg.norm(B[-1] - best) > 1e-1


def test_thm_platform_fixed_points_are_the_only_ones():
    """From the platform's limits the correct rules move away, and from the optimum the platform's do."""
    best = fc.quadratic(A, B).optimum
    for method in (PlatformSCAFFOLD(), PlatformFedDyn(0.1)):
        h = fc.simulate(method, fc.quadratic(A, B, x0=best), rounds=1, lr=LR, local_steps=K)
        assert float((h.params - best).norm()) > 1e-3


def test_platform_scaffold_forgets_its_clients_variates():
    h = limit(PlatformSCAFFOLD(), rounds=3, cohort=2)
    assert not h.state["c_i"].any()
    assert h.state["c"].norm() > 1e-3  # so c is not the mean of the c_i


@pytest.mark.parametrize(("n", "m"), [(50, 5), (200, 2), (20, 20)])
def test_thm_stale(n, m):
    T = 3000
    flat = fc.quadratic(np.zeros((n, 1, 1)), np.zeros((n, 1)))
    cohorts = fc.simulate(fc.FedAvg(), flat, rounds=T, cohort=m, eval_every=T).cohorts
    last, ages = {}, []
    for t, cohort in enumerate(cohorts):
        ages += [t - last[i] for i in cohort if i in last]
        last |= dict.fromkeys(cohort, t)
    # geometric ages: mean n/m, variance (1 - m/n) (n/m)^2; 6 sigma of the mean, and clients still waiting at the end
    sigma = np.sqrt(max(1 - m / n, 0)) * n / m / np.sqrt(len(ages))
    assert np.mean(ages) == pytest.approx(n / m, abs=6 * sigma + 2 * (n / m) ** 2 / T * (m < n) + 1e-12)
    few = 20
    unseen = n - len({i for cohort in cohorts[:few] for i in cohort})
    share = (1 - m / n) ** few
    assert unseen / n == pytest.approx(share, abs=6 * np.sqrt(share * (1 - share) / n) + 1e-12)
