"""DFedGAM's propositions as numbers, in float64, through the public interface; and what its source's table says."""

from __future__ import annotations

import csv

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook.documents.definitions import PRINTED
from fedcore.probes import gradient_of

TABLE = PRINTED / "seed002_table1.csv"


def bowl(A):
    A = torch.as_tensor(A, dtype=torch.float64)
    return lambda y: 0.5 * ((y @ A) * y).sum(-1)


def asymmetry(direction, y, eps=1e-6):
    """|J - J'| / |J| of a field's Jacobian at y [d], by central differences."""
    steps = eps * torch.eye(len(y), dtype=y.dtype)
    J = (direction(y + steps) - direction(y - steps)) / (2 * eps)
    return float((J - J.T).norm() / J.norm())


# --- thm-consensus ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", [fc.Ring(), fc.Torus(), fc.Exponential(), fc.Complete()])
def test_thm_consensus(topology):
    n = 12
    W = fc.topology.mixing(topology, n)
    rate = 1 - W.gap()
    X = torch.as_tensor(np.random.default_rng(0).normal(size=(n, 5)))
    mean, distance = X.mean(0), (X - X.mean(0)).norm()
    for t in range(1, 9):
        X = W @ X
        torch.testing.assert_close(X.mean(0), mean, rtol=0, atol=1e-14)
        assert (X - mean).norm() <= rate**t * distance + 1e-13
    # equality along the eigenvector of the second largest modulus
    values, vectors = np.linalg.eigh(W.dense().numpy())
    v = vectors[:, np.argsort(np.abs(values))[-2]]
    shrunk = float((W @ torch.as_tensor(v.copy())[:, None]).norm())
    assert shrunk == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(12, 3), (20, 4), (30, 10)])
def test_thm_consensus_of_a_graph_that_is_drawn_anew(n, k):
    """The mean of |W X - mean|^2 over many draws, within six standard errors of the closed form."""
    X = torch.as_tensor(np.random.default_rng(1).normal(size=(n, 3)))
    X = X - X.mean(0)
    draws = [fc.topology.mixing(fc.RandomRegular(k), n, seed, 0) @ X for seed in range(400)]
    ratios = np.array([float(Z.square().sum() / X.square().sum()) for Z in draws])
    expected = (n / (k + 1) - 1) / (n - 1)
    assert abs(ratios.mean() - expected) < 6 * ratios.std() / len(ratios) ** 0.5
    # the trace from which the closed form comes is that of every single draw
    W = fc.topology.mixing(fc.RandomRegular(k), n, 0, 0).dense()
    assert float((W @ W).trace()) == pytest.approx(n / (k + 1), abs=1e-12)


# --- thm-gap-learning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", [fc.Ring(), fc.Torus(), fc.Exponential(), fc.Complete()])
@pytest.mark.parametrize("K", [1, 8])
def test_thm_gap_learning(topology, K):
    """Clients who learn and mix end as far apart as the eigenvalues say, and their mean at the optimum."""
    n, a, lr = 12, 0.7, 0.2
    phi, W = 1 - (1 - lr * a) ** K, fc.topology.mixing(topology, n)
    values, vectors = np.linalg.eigh(W.dense().numpy())
    second, lam = values[-2], np.abs(values[:-1]).max()

    def end(b):
        bowls = fc.quadratic(np.stack([a * np.eye(b.shape[1])] * n), b, x0=5 * np.ones(b.shape[1]))
        run = fc.simulate(fc.DFedAvg(topology), bowls, rounds=400, lr=lr, local_steps=K, eval_every=400)
        X = run.state["X"].numpy()
        np.testing.assert_allclose(X.mean(0), b.mean(0), atol=1e-10)
        return np.linalg.norm(X - X.mean(0)) / np.linalg.norm(b - b.mean(0))

    bound = lam * phi / (1 - lam * (1 - phi))
    assert end(np.random.default_rng(0).normal(size=(n, 3))) <= bound + 1e-10
    slowest = vectors[:, [np.argsort(values)[-2]]] + 3.0  # along the second eigenvector: the factor itself
    assert end(slowest) == pytest.approx(abs(second) * phi / (1 - second * (1 - phi)), abs=1e-10)


# --- thm-corrected-rest ----------------------------------------------------------------------------------------------


def unlike(n=5):
    """Curvatures in (0.3, 2) with own axes, one of them flat in one direction; minimisers apart."""
    A, b = h.problem(n, 2, seed=3, high=2)
    A[0] = np.outer(A[0, 0], A[0, 0])
    return fc.quadratic(A, b)


@pytest.mark.parametrize("kind", [fc.DSGT, fc.ExactDiffusion], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("topology", [fc.Ring(), fc.Graph([(0, 1), (1, 2), (2, 3), (3, 4)])], ids=["ring", "path"])
@pytest.mark.parametrize(("K", "lr"), [(1, 0.1), (5, 0.1), (5, 0.9)])
def test_thm_corrected_rest(kind, topology, K, lr):
    fed, method = unlike(), kind(topology)
    assert lr < 2 / torch.linalg.eigvalsh(fed.A).max()
    best = torch.stack([fed.optimum.expand(5, -1), torch.einsum("npq,nq->np", fed.A, fed.b - fed.optimum)])

    def after(states):
        """A round from the models and corrections `[2, 5, 2]`."""
        before = fc.start(method, fed).updated(x=states[0].mean(0), X=states[0], c_i=states[1])
        end = fc.one_round(method, fed, before, 0, lr=lr, local_steps=K)[0]
        return torch.stack([end["X"], end["c_i"]])

    torch.testing.assert_close(after(best), best, rtol=0, atol=1e-13)
    # a round is an affine map on the states whose c_i sum to 0; it has one fixed point iff M - 1 is regular there
    free = torch.eye(20, dtype=torch.float64).reshape(20, 2, 5, 2)
    free[:, 1] -= free[:, 1].mean(1, keepdim=True)
    moved = torch.stack([(after(z) - after(0 * z) - z).flatten() for z in free])
    assert torch.linalg.matrix_rank(moved, rtol=1e-6) == torch.linalg.matrix_rank(free.flatten(1)) == 18


def test_thm_corrected_rest_gossip_leaves_the_optimum_and_quasi_global_momentum_rests_where_gossip_does():
    fed, at = unlike(), {"lr": 0.1, "local_steps": 5}
    before = fc.start(fc.DFedAvg(), fed).updated(x=fed.optimum, X=fed.optimum.expand(5, -1))
    assert (fc.one_round(fc.DFedAvg(), fed, before, 0, **at)[0]["X"] - fed.optimum).norm() > 0.1
    rules = (fc.DFedAvg(), fc.QGDSGDm(beta=0.5), fc.QGDSGDm(beta=0.9, mu=0.3))
    gossip, *others = (fc.simulate(m, fed, rounds=1500, eval_every=1500, **at).state["X"] for m in rules)
    assert (gossip - fed.optimum).norm() > 0.1
    for other in others:
        torch.testing.assert_close(other, gossip, rtol=0, atol=1e-9)


# --- thm-blind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("omega", [2.0, 3.0, 10.0])
def test_thm_blind(omega):
    A, rho = 0.7, np.pi / 2 + 1e-9
    e = torch.linspace(-rho, rho, 200001, dtype=torch.float64)[:, None]

    def wiggle(y):
        return A * (1 - torch.cos(omega * y[:, 0]))

    assert float(wiggle(e).max()) == pytest.approx(2 * A, abs=1e-6)
    assert rho * float(gradient_of(wiggle)(e).abs().max()) == pytest.approx(rho * A * omega, rel=1e-6)


@pytest.mark.parametrize("rho", [0.1, 1.0, 3.0])
def test_thm_blind_on_quadratics_the_two_flatnesses_are_one(rho):
    A = np.random.default_rng(2).normal(size=(4, 4))
    A = A @ A.T
    top = np.linalg.eigvalsh(A).max()
    fed, x = fc.quadratic(A[None], np.zeros((1, 4))), torch.zeros(4, dtype=torch.float64)
    zeroth = fc.probes.zeroth_order_flatness(fed, x, rho, steps=200)["ascent"]
    first = fc.probes.first_order_flatness(fed, x, rho, steps=200)["ascent"]
    assert zeroth == pytest.approx(rho**2 * top / 2, rel=1e-6)
    assert first == pytest.approx(2 * zeroth, rel=1e-6)


# --- thm-no-objective ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_thm_no_objective(seed):
    noise = np.random.default_rng(seed)
    Q = np.linalg.qr(noise.normal(size=(3, 3)))[0]
    A = torch.as_tensor(Q @ np.diag([0.5, 1.0, 2.0]) @ Q.T)
    F, y, rho = bowl(A), torch.as_tensor(noise.normal(size=(1, 3))), 0.4
    G = gradient_of(F)

    def direction(method):
        return lambda Y: method.direction(G, Y, None)

    sam, literal = direction(fc.FedSAM(rho)), direction(fc.DFedGAM(rho=rho))
    penalised = gradient_of(lambda Y: F(Y) + rho * (Y @ A).norm(dim=-1))
    torch.testing.assert_close(sam(y), penalised(y), rtol=0, atol=1e-10)
    A2y = A @ A @ y[0]
    torch.testing.assert_close(literal(y)[0], A @ y[0] + rho * A @ A2y / A2y.norm(), rtol=0, atol=1e-10)
    assert asymmetry(sam, y[0]) < 1e-7
    assert asymmetry(literal, y[0]) > 1e-3
    # on an isotropic quadratic the literal rule is a gradient field too
    G = gradient_of(bowl(1.7 * np.eye(3)))
    assert asymmetry(direction(fc.DFedGAM(rho=rho)), y[0]) < 1e-7


def test_thm_no_objective_gam_descends_the_penalised_loss_to_first_order():
    A = torch.diag(torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64))
    F, y, alpha = bowl(A), torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), 0.7
    errors = []
    for rho in (1e-2, 5e-3):
        v = fc.DFedGAM(rho=rho, form="gam", alpha=alpha).direction(gradient_of(F), y, None)
        penalised = gradient_of(lambda Y, rho=rho: F(Y) + alpha * rho * (Y @ A).norm(dim=-1))(y)
        errors.append(float((v - penalised).norm()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)  # O(rho^2)


# --- thm-same-as-sam -------------------------------------------------------------------------------------------------


def test_thm_same_as_sam():
    """Isotropic Hessians, a curvature of its own for each client: whole runs agree."""
    noise = np.random.default_rng(3)
    A = noise.uniform(0.2, 2, 6)[:, None, None] * np.eye(4)
    fed = fc.quadratic(A, noise.normal(size=(6, 4)), x0=2 * np.ones(4))
    work = {"rounds": 10, "lr": 0.1, "local_steps": 5}
    sam, literal = (
        fc.simulate(m, fed, **work) for m in (fc.DFedSAM(fc.Ring(), rho=0.5), fc.DFedGAM(fc.Ring(), rho=0.5))
    )
    torch.testing.assert_close(sam.state["X"], literal.state["X"], rtol=0, atol=1e-11)
    for alpha, agrees in ((1.0, True), (0.5, False)):
        gam = fc.simulate(fc.DFedGAM(fc.Ring(), rho=0.5, form="gam", alpha=alpha), fed, **work)
        assert (float((gam.state["X"] - sam.state["X"]).norm()) < 1e-11) == agrees


def test_thm_same_as_sam_needs_isotropy():
    noise = np.random.default_rng(4)
    A = np.tile(np.diag([0.2, 1.0, 5.0]), (6, 1, 1))
    fed = fc.quadratic(A, noise.normal(size=(6, 3)), x0=2 * np.ones(3))
    work = {"rounds": 5, "lr": 0.1, "local_steps": 5}
    sam, literal = (
        fc.simulate(m, fed, **work) for m in (fc.DFedSAM(fc.Ring(), rho=0.5), fc.DFedGAM(fc.Ring(), rho=0.5))
    )
    assert (sam.state["X"] - literal.state["X"]).norm() > 1e-3


def test_thm_same_as_sam_in_one_dimension_where_the_loss_is_convex_and_opposite_elsewhere():
    G = gradient_of(lambda y: 1 + torch.cos(3 * y[:, 0]))
    y = torch.linspace(-2, 2, 41, dtype=torch.float64)[:, None]
    y = y[G(y)[:, 0].abs() > 1e-3]
    curvature, rho = -9 * torch.cos(3 * y), 0.2
    sam, literal, against = (m.direction(G, y, None) for m in (fc.FedSAM(rho), fc.DFedGAM(rho=rho), _Opposite(rho)))
    convex = (curvature > 1e-9)[:, 0]
    torch.testing.assert_close(literal[convex], sam[convex], rtol=0, atol=1e-9)
    torch.testing.assert_close(literal[~convex], against[~convex], rtol=0, atol=1e-9)
    assert 0 < int(convex.sum()) < len(y)
    assert (sam - against).abs().min() > 1e-3


class _Opposite(fc.FedSAM):
    """SAM with the perturbation turned round."""

    def direction(self, G, y, r):
        g = G(y)
        return G(y - self.rho * g / g.norm(dim=1, keepdim=True))


def test_thm_same_as_sam_leaves_a_saddle_that_draws_sam_in():
    """Within rho of the saddle, SAM shrinks b and the literal rule lets it grow."""
    G = gradient_of(lambda y: 0.5 * (y[:, 0] ** 2 - y[:, 1] ** 2))
    y = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    sam, literal = (m.direction(G, y, None)[0, 1] for m in (fc.FedSAM(0.5), fc.DFedGAM(rho=0.5)))
    plain = G(y)[0, 1]
    assert sam > 0 > plain > literal


# --- the source's own table ------------------------------------------------------------------------------------------


def table():
    with TABLE.open(encoding="utf-8") as file:
        return {(row["setting"], row["method"]): float(row["value"]) for row in csv.DictReader(file)}


def test_the_source_table_has_a_baseline_above_dfedgam():
    printed = table()
    above = {s: [m for (at, m), v in printed.items() if at == s and v > printed[s, "DFedGAM"]] for s, _ in printed}
    assert above == {"Dir-0.3": [], "Dir-0.6": ["FedSAM"], "IID": ["FedSAM"]}


def test_the_source_percentages_are_relative():
    printed = table()
    for setting, claimed, points in (("Dir-0.3", 1.19, 0.95), ("Dir-0.6", 1.46, 1.17), ("IID", 1.30, 1.06)):
        gain = printed[setting, "DFedGAM"] - printed[setting, "DFedSAM"]
        assert round(gain, 2) == points
        assert round(100 * gain / printed[setting, "DFedSAM"], 2) == claimed
