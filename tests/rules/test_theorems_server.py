"""The theorems of the chapter on the server's optimiser as numbers, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedcore as fc

PAIR = fc.quadratic([[[1.0]], [[3.0]]], [[1.0], [-1.0]], x0=[1.5])
REST = -0.34026614254414245  # FedAvg's, at learning rate 0.1 and K = 5
SERVERS = [
    (fc.FedAvg(server_momentum=0.7), 1.0),
    (fc.FedAdagrad(beta1=0.5), 0.1),
    (fc.FedAdam(), 0.003),
    (fc.FedYogi(), 0.003),
]


@pytest.mark.parametrize(("method", "server_lr"), SERVERS, ids=lambda v: str(v))
def test_thm_server_rest(method, server_lr):
    work = {"lr": 0.1, "local_steps": 5, "server_lr": server_lr}
    there = fc.quadratic([[[1.0]], [[3.0]]], [[1.0], [-1.0]], x0=[REST])
    stayed = fc.simulate(method, there, rounds=2, **work).params.item()
    assert abs(stayed - REST) < 1e-12  # started there with nothing remembered, it stays
    arrived = fc.simulate(method, PAIR, rounds=4000, eval_every=4000, **work).params.item()
    assert abs(arrived - REST) < 1e-3  # and from elsewhere it goes there, not to the optimum -1/2
    elsewhere = fc.quadratic([[[1.0]], [[3.0]]], [[1.0], [-1.0]], x0=[-0.5])
    assert abs(fc.simulate(method, elsewhere, rounds=1, **work).params.item() + 0.5) > 1e-4


@pytest.mark.parametrize("K", [1, 4, 15])
@pytest.mark.parametrize("a", [0.1, 0.8])
def test_thm_server_speed(a, K):
    s = 1 - (1 - 0.1 * a) ** K
    best = (1 - s**0.5) ** 2
    fed = fc.quadratic(np.full((2, 1, 1), a), [[1.0], [-1.0]], x0=[1.0])

    after = fc.simulate(fc.FedAvg(), fed, rounds=3, lr=0.1, local_steps=K).params.item()
    np.testing.assert_allclose(after, (1 - s) ** 3, rtol=1e-12)
    roots = {b: max(abs(np.roots([1, -(1 + b - s), b]))) for b in np.linspace(0, 0.999, 1000)}
    assert abs(min(roots, key=roots.get) - best) < 2e-3
    assert abs(max(abs(np.roots([1, -(1 + best - s), best]))) - (1 - s**0.5)) < 1e-6
    # the recursion behind it is the method's own
    x = [torch.tensor([1.0], dtype=torch.float64)] * 2
    for _ in range(6):
        x.append((1 + best - s) * x[-1] - best * x[-2])
    run = fc.simulate(fc.FedAvg(server_momentum=best), fed, rounds=6, lr=0.1, local_steps=K)
    torch.testing.assert_close(run.params, x[-1], rtol=0, atol=1e-12)
