"""The theorems of the chapter on proximal methods as numbers, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import optimum, turned, watched

import fedcore as fc


@pytest.mark.parametrize("mu", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("K", [1, 5, 40])
def test_thm_fedprox_fixed_point(mu, K):
    A, b, fed = turned(0)
    I, lr = np.eye(3), 0.1
    stiff = A + mu * I
    G = (I - np.linalg.matrix_power(I - lr * stiff, K)) @ np.linalg.inv(stiff) @ A
    limit = optimum(G, b)
    found = fc.simulate(fc.FedProx(mu), fed, rounds=900, lr=lr, local_steps=K, eval_every=900).params.numpy()
    np.testing.assert_allclose(found, limit, atol=1e-10)
    one = fc.simulate(fc.FedProx(mu), fed, rounds=1, lr=lr, local_steps=K).params.numpy()
    x = 3 * np.ones(3)
    np.testing.assert_allclose(one, x - np.einsum("npq,nq->p", G, x - b) / 4, atol=1e-12)


@pytest.mark.parametrize("method", [fc.FedDyn(0.7), fc.FedDC(0.7)], ids=str)
@pytest.mark.parametrize("K", [1, 4, 15])
def test_thm_feddyn_stationary(method, K):
    A, b, fed = turned(1)
    run, seen = watched(method, fed, rounds=1500, lr=0.1, local_steps=K, eval_every=1500)
    gradients = np.einsum("npq,nq->np", A, run.params.numpy() - b)
    np.testing.assert_allclose(gradients.mean(0), 0, atol=1e-9)
    r, y = seen[-1]
    assert (y - r.x).norm() < 1e-9  # at rest nobody moves, though the clients' optima differ
    if isinstance(method, fc.FedDyn):
        np.testing.assert_allclose(0.7 * r.h_i.numpy(), -gradients, atol=1e-8)
    assert torch.linalg.vector_norm(r.h_i.mean(0)) < 1e-8


@pytest.mark.parametrize("phi", [20, 90, 150, 180])
def test_moons_term_is_least_beyond_the_servers_representation(phi):
    degrees = torch.arange(-180, 180, dtype=torch.float64)
    z, server, last = (
        torch.stack([a.cos(), a.sin()], -1) for a in map(torch.deg2rad, (degrees, 0 * degrees, 0 * degrees + phi))
    )
    lowest = degrees[fc.MOON(tau=0.5).contrast(z, server, last).argmin()]
    assert float(lowest) == -(90 - phi / 2)
