"""Neuron conflict's propositions as numbers, in float64, through the public interface."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import images, network
from torch import nn

import fedcore as fc
from fedcore import submodels


def toy(activation, signs, labels, bias=False, size=12, seed=0):
    """The source's six-parameter network and two clients with x of the given signs."""

    def six(shape, classes):
        return nn.Sequential(nn.Linear(1, 2, bias=False), activation, nn.Linear(2, 2, bias=bias))

    x = (np.abs(np.random.default_rng(seed).normal(size=(2, size))) + 0.05) * np.array(signs)[:, None]
    arrays = {
        "train_images": x.reshape(-1, 1), "train_labels": np.repeat(labels, size),
        "test_images": np.array([[-1.0], [1.0]]), "test_labels": np.arange(2),
        "train_owner": np.repeat([0, 1], size),
    }  # fmt: skip
    return fc.federation(arrays, partition=fc.ByOwner(), model=six, dtype=torch.float64, device="cpu")


def gradients(fed, w):
    """`[2, d]`: the two clients' full gradients at the weights w: a_1, a_2, b_01, b_02, b_11, b_12 (, biases)."""
    return fed.full_gradient(torch.as_tensor(w).expand(2, -1), fed.plan(0, 0, np.arange(2), batch_size=None))


def draws(n=60, d=6, seed=1):
    return np.random.default_rng(seed).normal(size=(n, d))


NEURONS = ([0, 2, 4], [1, 3, 5])


def test_thm_sign_symmetry():
    fed = toy(nn.Identity(), (-1, 1), (0, 1))
    for w in draws():
        g = gradients(fed, w)
        for part in (slice(None), *NEURONS):
            assert float(torch.cosine_similarity(*g[:, part], dim=0)) == pytest.approx(1, abs=1e-12)
    # what client 1 learns alone is right for client 2
    x = fed.x0
    for _ in range(200):
        x = x - 0.5 * gradients(fed, x)[0]
    assert float(fed.evaluate(x)["accuracy"]) == 1


def test_thm_sign_symmetry_needs_a_network_without_biases():
    fed = toy(nn.Identity(), (-1, 1), (0, 1), bias=True)
    cosines = [float(torch.cosine_similarity(*gradients(fed, w), dim=0)) for w in draws(d=8)]
    assert min(cosines) < 0


def test_thm_one_is_silent():
    fed = toy(nn.ReLU(), (-1, 1), (0, 1))
    for w in draws():
        g = gradients(fed, w)
        for j, part in enumerate(NEURONS):
            awake = int(w[j] > 0)  # client 2 has x > 0
            assert g[awake, part].norm() > 0
            assert (g[1 - awake, part] == 0).all()


def test_thm_shared_neuron():
    fed, seen = toy(nn.ReLU(), (1, 1), (0, 1)), 0
    for w in draws():
        g = gradients(fed, w)
        for part in (slice(None), *NEURONS):
            if g[:, part].norm(dim=1).prod() > 0:
                seen += 1
                assert float(torch.cosine_similarity(*g[:, part], dim=0)) == pytest.approx(-1, abs=1e-12)
    assert seen > 60
    agree = toy(nn.ReLU(), (1, 1), (0, 0))  # the same label: no conflict
    assert float(torch.cosine_similarity(*gradients(agree, abs(draws()[0])), dim=0)) == pytest.approx(1, abs=1e-12)


def classified(labels_of, C=5, hidden=6, size=40, seed=0):
    """Clients with the given label sets, and a network whose classifier is zero: uniform outputs."""
    x, _ = images(size * len(labels_of), (1, 4, 4), C, seed)
    y = np.concatenate([np.resize(labels, size) for labels in labels_of])
    arrays = {
        "train_images": x, "train_labels": y, "test_images": x[:C], "test_labels": np.arange(C),
        "train_owner": np.repeat(np.arange(len(labels_of)), size),
    }  # fmt: skip

    def model(shape, classes):
        net = fc.models.mlp(shape, classes, hidden=(7, hidden))
        nn.init.zeros_(net[-1].weight)
        nn.init.zeros_(net[-1].bias)
        return net

    return fc.federation(arrays, partition=fc.ByOwner(), model=model, seed=seed, dtype=torch.float64, device="cpu")


def test_thm_product():
    C = 5
    fed = classified(([0, 1], [2, 3], [1, 2, 4]))
    last = fc.probes.neuron_gradients(fed, fed.x0)[-1]
    alpha, g = last["activation"], last["outgoing"]
    parts = torch.zeros(3, C, alpha.shape[1], dtype=torch.float64)  # alpha_ijc, by hand
    v = fed.engine.layout.views(fed.x0)
    for i, part in enumerate(fed.index):
        h = fed.inputs(fed.x[part]).flatten(1)
        for name in ("1", "3"):
            h = torch.relu(h @ v[f"{name}.weight"].T + v[f"{name}.bias"])
        for c in range(C):
            parts[i, c] = (h * (fed.y[part] == c)[:, None]).mean(0)
    torch.testing.assert_close(parts.sum(1), alpha)
    for i, k in itertools.product(range(3), repeat=2):
        expected = (parts[i] * parts[k]).sum(0) - alpha[i] * alpha[k] / C
        torch.testing.assert_close((g[i] * g[k]).sum(1), expected, rtol=1e-9, atol=1e-13)
    strength = -(g[0] * g[1]).sum(1)
    assert (strength >= 0).all()
    torch.testing.assert_close(strength, alpha[0] * alpha[1] / C, rtol=1e-9, atol=1e-13)


def test_thm_product_gives_the_angle_when_classes_count_equally():
    """Blank images wake a neuron equally for every class: s = 2 of C = 5, cosine -2/3."""
    fed = classified(([0, 1], [2, 3]))
    fed = dataclasses.replace(fed, data=dataclasses.replace(fed.data, x=torch.full_like(fed.x, 7)))
    last = fc.probes.neuron_gradients(fed, fed.x0)[-1]
    awake = last["activation"].min(0).values > 0
    assert awake.any()
    cosine = torch.cosine_similarity(*last["outgoing"][:, awake], dim=1)
    torch.testing.assert_close(cosine, torch.full_like(cosine, -2 / 3), rtol=1e-9, atol=1e-9)


def chosen(h, k, T, m=20_000):
    """The units that m clients with equal scores h keep, `[m, width]` bool, by FedDSE's own scoring."""
    h = torch.as_tensor(h, dtype=torch.float64)
    weights, active = torch.ones(m, 1, dtype=torch.float64), lambda budget: [h.expand(m, -1)]
    r = SimpleNamespace(seed=0, t=0, m=m, ids=np.arange(m), activations=active, p=weights)
    score = fc.FedDSE(0.5, temperature=T).score(r, SimpleNamespace(widths=(len(h),)))[0]
    return torch.zeros(m, len(h), dtype=torch.bool).scatter_(1, score.topk(k, 1).indices, True).numpy()


def successive(h, k, T):
    """Inclusion probabilities of k draws without replacement by softmax(h / T), all orders summed."""
    p, kept = np.exp(np.array(h) / T), np.zeros(len(h))
    for order in itertools.permutations(range(len(h)), k):
        chance, left = 1.0, p.sum()
        for j in order:
            chance *= p[j] / left
            left -= p[j]
        kept[list(order)] += chance
    return kept


H = [2.0, 1.0, 0.5, 0.0, -1.0]


@pytest.mark.parametrize("T", [0.3, 1.0, 5.0])
def test_thm_gumbel(T):
    m, expected = 20_000, successive(H, 2, T)
    if T == 1:
        np.testing.assert_allclose(expected, [0.8537, 0.5268, 0.3343, 0.2074, 0.0778], atol=5e-5)
    seen = chosen(H, 2, T, m).mean(0)
    assert (abs(seen - expected) < 4 * np.sqrt(expected * (1 - expected) / m) + 1e-9).all()


def test_thm_gumbel_limits_shift_and_scale():
    assert (chosen(H, 2, 0, 5) == [True, True, False, False, False]).all()
    np.testing.assert_array_equal(chosen(H, 2, 1e-4, 50), chosen(H, 2, 0, 50))
    np.testing.assert_array_equal(chosen(H, 2, math.inf, 50), chosen(H, 2, 1e12, 50))
    np.testing.assert_array_equal(chosen(np.array(H) + 3, 2, 0.7, 200), chosen(H, 2, 0.7, 200))
    np.testing.assert_array_equal(chosen(10 * np.array(H), 2, 7.0, 200), chosen(H, 2, 0.7, 200))
    assert (chosen(H, 2, 0.7, 200) != chosen(H, 2, 7.0, 200)).any()


def test_thm_gumbel_at_infinity_is_federated_dropout():
    fed = network()
    work = {"rounds": 3, "lr": 0.1, "local_steps": 2, "batch_size": 4, "seed": 0}
    a = fc.simulate(fc.FedDSE(0.5, temperature=math.inf), fed, **work).params
    assert torch.equal(a, fc.simulate(fc.FederatedDropout(0.5), fed, **work).params)


@pytest.mark.parametrize("rate", [0.5, 0.0625])
def test_thm_scaler(rate):
    def block(r, eps):
        torch.manual_seed(0)
        layers = [nn.Linear(6, 4), fc.models.Scaler(r), nn.BatchNorm1d(4, eps=eps), nn.ReLU(), nn.Linear(4, 3)]
        return nn.Sequential(*layers).double().train()

    x = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(9) % 3

    def outcome(net):
        loss = nn.functional.cross_entropy(net(x), y)
        return torch.cat([loss[None], *(g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters())))])

    # the constant r^2 eps and no scaler is the same; the usual eps = 1e-5 leaves next to no difference
    torch.testing.assert_close(outcome(block(rate, 1e-2)), outcome(block(1.0, rate**2 * 1e-2)), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(outcome(block(rate, 1e-5)), outcome(block(1.0, 1e-5)), rtol=1e-3, atol=1e-4)
    plain = [nn.Sequential(*(m for m in block(r, 1e-5) if not isinstance(m, nn.BatchNorm1d))) for r in (rate, 1.0)]
    assert (outcome(plain[0]) - outcome(plain[1])).abs().max() > 1e-3  # without batch norm the scaler matters


@pytest.mark.parametrize("top", [0.8, 0.5])
def test_thm_untrained(top):
    fed = network()  # one hidden layer of 8
    x = fc.simulate(fc.HeteroFL({top: 0.5, 0.25: 0.5}), fed, rounds=4, lr=0.2, local_steps=3, batch_size=4).params
    neurons = fed.neurons()
    trained = torch.zeros(fed.d, dtype=torch.bool)
    trained[neurons.places(neurons.prefix(top))[0]] = True
    assert torch.equal(x[~trained], fed.x0[~trained])
    assert (x[trained] != fed.x0[trained]).any()
    assert int((~trained).sum()) == (8 - submodels.kept(top, 8)) * (16 + 1 + 3)
