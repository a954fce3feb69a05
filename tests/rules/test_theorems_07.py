"""Feature shift's propositions as numbers, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kurtosis, skew
from torch import nn

import fedcore as fc
from fedcore.data import domains


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_thm_standardised(scale):
    """Mean 0 and std 1; skewness and kurtosis as before; brightness and contrast of the raw pixels do not matter."""
    options = {"model": "digit_model_small", "normalise": "client", "dtype": torch.float64}
    fed = fc.federation(domains.digit_domains(20, 10, size=8), partition=fc.ByOwner(), **options)
    rng = np.random.default_rng(0)
    for i in range(fed.n):
        x = fed.source.train_x[fed.index[i]]
        z = fed.inputs(torch.as_tensor(x), i).numpy()
        for c in range(3):
            v, w = x[:, c].astype(float).ravel(), z[:, c].ravel()
            assert abs(w.mean()) < 1e-12
            assert abs(w.std() - 1) < 1e-12
            assert skew(w) == pytest.approx(skew(v), abs=1e-10)
            assert kurtosis(w) == pytest.approx(kurtosis(v), abs=1e-10)
            assert abs(kurtosis(w)) > 0.1  # not normal
    x, y = rng.random((20, 3, 8, 8)), np.arange(20) % 2
    seen = []
    for raw in (x, scale * x + 0.3):
        made = fc.federation((raw, y), clients=2, model="mlp", normalise="client", dtype=torch.float64)
        seen.append(made.inputs(made.x[made.index[1]], 1))
    assert torch.allclose(*seen, atol=1e-12)


def test_thm_bn_absorbs():
    """Any shifts and one scale: the same outputs behind batch norm; two scales, or padding: not."""
    torch.manual_seed(0)
    x, shift = torch.rand(16, 3, 9, 9, dtype=torch.float64), torch.tensor([0.1, -0.4, 2.0])[:, None, None]

    def change(scale, padding=0):
        """Largest change of the outputs, and of the gradient of a function of them."""
        first = nn.Sequential(nn.Conv2d(3, 5, 3, padding=padding), nn.BatchNorm2d(5, eps=1e-30)).double()
        found = []
        for seen in (x, (x - shift) / torch.as_tensor(scale)[:, None, None]):
            out = first(seen)
            found.append(
                (out, torch.autograd.grad((out.tanh() * torch.arange(5)[:, None, None]).sum(), first[0].weight)[0])
            )
        return max(float((a - b).detach().abs().max()) for a, b in zip(*found, strict=True))

    assert change([0.3, 0.3, 0.3]) < 1e-9
    assert change([0.3, 0.3, 0.6]) > 0.1
    assert change([0.3, 0.3, 0.3], padding=1) > 0.1


@pytest.mark.parametrize("a", [0.5, 3.0])
@pytest.mark.parametrize("q", [0.3, 1.0, 1.95, 2.05, 2.6])
def test_thm_ala_diverges(a, q):
    """W - W* is multiplied by 1 - q in every step, unclipped; clipped, W ends in [0, 1]."""
    fed = fc.quadratic(np.array([a, 1.0])[:, None, None], np.array([[1.0], [-1.0]]), x0=[0.2])
    at = {"lr": 0.05, "local_steps": 2}
    first = fc.simulate(fc.FedALA(1), fed, rounds=1, **at)
    theta, theta_i = float(first.params), float(first.state["theta_i"][0])
    best = (1.0 - theta_i) / (theta - theta_i)  # W*, with b = 1
    lr = q / (a * (theta - theta_i) ** 2)
    W = float(fc.simulate(fc.FedALA(1, lr=lr, clip=False), fed, rounds=2, **at).state["W_i"][0])
    epochs = np.arange(1, 101)
    paths = best + (1 - best) * (1 - q) ** epochs.astype(float)
    assert np.min(np.abs(paths - W) / np.maximum(1, np.abs(paths))) < 1e-8
    assert (abs(W - best) > abs(1 - best)) == (q > 2)
    clipped = float(fc.simulate(fc.FedALA(1, lr=lr), fed, rounds=2, **at).state["W_i"][0])
    assert 0 <= clipped <= 1
    if q <= 1:
        assert clipped == pytest.approx(min(max(best, 0), 1), abs=1e-3)
