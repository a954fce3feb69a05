"""Objectives: one protocol for networks and quadratics, full batches that are full, and data that nothing changes."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedcore as fc
from fedcore.data.normalisation import channel_statistics
from fedcore.engine import PLAIN, Loss
from fedcore.objective import federation
from fedcore.submodels import Width

CLIENTS = np.arange(3)


def vectors(shape, classes) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))


def pictures(shape, classes) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, classes)
    )  # fmt: skip


def rows(fed, m: int = 3, scale: float = 0.1) -> torch.Tensor:
    noise = torch.randn(m, fed.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return fed.x0 + scale * noise


# --- full batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [2, 10_000])
@pytest.mark.parametrize("path", ["batched", "sequential", "auto"])
@pytest.mark.parametrize("model", [vectors, pictures])
def test_a_full_batch_goes_through_batch_norm_in_one_piece(model, path, together, monkeypatch):
    """257 samples are not 256 and one; 600 are not three batches with statistics of their own."""
    monkeypatch.setattr(federation, "SAMPLE_CHUNK", 257 * together)  # so many clients of equal size go together
    fed = h.network(sizes=(257, 300, 600, 257), model=model, path=path)
    Y, plan = rows(fed, 4), fed.plan(0, 0, np.arange(4), batch_size=None)
    G, losses = fed.gradient_and_losses(Y, plan, 0)
    module = fed.engine.module.train()
    for i in range(4):
        inputs, labels = h.whole(fed, i)
        h.close(G[i], h.gradient(module, Y[i], inputs, labels), 1e-12)
        logits = torch.func.functional_call(module, fed.layout.views(Y[i]), (inputs,))
        h.close(losses[i], F.cross_entropy(logits, labels), 1e-12)


@pytest.mark.parametrize("chunk", [7, 4096])
@pytest.mark.parametrize(
    ("model", "path"), [("mlp", "auto"), (vectors, "auto"), ("mlp", "batched"), ("mlp", "sequential")]
)
def test_a_loss_with_rows_and_samples_of_its_own_is_cut_like_the_full_batch(monkeypatch, model, path, chunk):
    monkeypatch.setattr(federation, "SAMPLE_CHUNK", chunk)
    fed = h.network(sizes=(13, 7, 20), model=model, path=path, block=2)
    Y, plan = rows(fed), fed.plan(0, 0, CLIENTS, batch_size=None)
    scale, weight = torch.tensor([1.0, 2.0, 3.0]).double(), torch.rand(3, 20, dtype=torch.float64)

    def weighted(logits, y, scale, weight):
        each = -logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return scale.unsqueeze(-1) * weight * each

    G = fed.gradient(Y, plan, 0, Loss(weighted, rows={"scale": scale}, samples={"weight": weight}))
    for i in CLIENTS:
        inputs, labels = h.whole(fed, i)
        leaf = Y[i].clone().requires_grad_()
        logits = torch.func.functional_call(fed.engine.module.train(), fed.layout.views(leaf), (inputs,))
        each = F.cross_entropy(logits, labels, reduction="none")
        (want,) = torch.autograd.grad(scale[i] * (weight[i, : len(labels)] * each).mean(), leaf)
        h.close(G[i], want, 1e-12)


@pytest.mark.parametrize("batch_size", [5, None])
@pytest.mark.parametrize("model", ["mlp", vectors])
def test_logits_are_those_of_the_step_as_in_training(model, batch_size, monkeypatch):
    monkeypatch.setattr(federation, "SAMPLE_CHUNK", 9)
    fed = h.network(sizes=(12, 7, 20), model=model)
    Y, plan = rows(fed), fed.plan(0, 0, CLIENTS, batch_size=batch_size)
    got, module = fed.logits(Y, plan, 0), fed.engine.module.train()
    assert got.shape[1] == (batch_size or 20)
    for row, i in enumerate(plan.clients):
        picked = fed.index[i] if batch_size is None else plan.indices[0, row, : plan.counts[0, row]]
        inputs = fed.inputs(fed.x[torch.as_tensor(picked)])
        want = torch.func.functional_call(module, fed.layout.views(Y[row]), (inputs,))
        h.close(got[row, : len(want)], want, 1e-12)


# --- normalisation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 1500])
def test_statistics_of_bytes_are_exact(n):
    x = np.random.default_rng(n).integers(0, 256, (n, 3, 3, 5)).astype(np.uint8)
    for c, (mean, std) in enumerate(zip(*channel_statistics(x), strict=True)):
        values = x[:, c].ravel().tolist()
        exact = Fraction(sum(values), len(values))
        assert mean == float(exact)
        assert std == np.sqrt(float(Fraction(sum(v * v for v in values), len(values)) - exact**2))


# --- one protocol -------------------------------------------------------------------------------------------------

ABSENT = ("logits", "shrink", "label_counts", "activations", "module")


@pytest.mark.parametrize("name", ABSENT)
def test_a_quadratic_says_that_it_is_no_network(name):
    with pytest.raises(ValueError, match=r"a quadratic has no .*fc\.federation"):
        getattr(fc.quadratic(*h.problem()), name)()


def test_a_quadratic_refuses_the_losses_of_networks_and_takes_a_plain_one_however_it_is_made():
    fed = fc.quadratic(*h.problem())
    plan, Y = fed.plan(0, 0, np.arange(4)), torch.zeros(4, 3, dtype=torch.float64)
    assert torch.equal(fed.gradient(Y, plan, 0, Loss()), fed.gradient(Y, plan, 0, PLAIN))
    for loss in (Loss(per_sample=F.mse_loss), Loss(penalty=F.mse_loss, references=(Y,))):
        with pytest.raises(ValueError, match="a quadratic has no logits"):
            fed.gradient(Y, plan, 0, loss)


def test_a_quadratic_descends_by_the_noisy_gradients_of_a_class_of_ones_own_and_its_full_gradient_stays_exact():
    class Noisy(fc.Quadratic):
        def gradient(self, Y, plan, k=0, loss=PLAIN, along=None):
            return super().gradient(Y, plan, k, loss, along) + 1 + k

    exact = fc.quadratic(*h.problem())
    noisy = Noisy(exact.A, exact.b, exact.x0)
    plan, Y = noisy.plan(0, 0, np.arange(4), steps=2), torch.ones(4, 3, dtype=torch.float64)
    h.close(noisy.gradient(Y, plan, 1) - exact.gradient(Y, plan, 1), 2 * torch.ones(4, 3), 1e-15)
    assert torch.equal(noisy.gradient_and_losses(Y, plan, 1)[0], noisy.gradient(Y, plan, 1))
    e = Y - exact.b
    by_hand = torch.einsum("np,npq,nq->n", e, exact.A, e) / 2
    h.close(noisy.gradient_and_losses(Y, plan, 1)[1], by_hand, 1e-14)
    h.close(noisy.objective(Y[0]), by_hand.mean(), 1e-14)
    assert torch.equal(noisy.full_gradient(Y, plan), exact.full_gradient(Y, plan))
    stepped, by_hand = Y.clone(), Y.clone()
    noisy.descend(stepped, plan, 0.1)
    for k in range(2):
        by_hand -= 0.1 * noisy.gradient(by_hand, plan, k)
    h.close(stepped, by_hand, 1e-14)


ROUND = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]  # a rotation


@pytest.mark.parametrize(("A", "dtype", "wanted"), [
    (np.diag([1.0, 1e-20, 1e20]), np.float64, [1.0, 1, 1]),
    (ROUND @ np.diag([1.0, 1e-5, 1]) @ ROUND.T, np.float32, [1.0, 1, 1]),
    (np.diag([2.0, 0.0, 1.0]), np.float32, [1.0, 0, 1]), (np.zeros((3, 3)), np.float64, [0.0, 0, 0]),
    (np.outer([1.0, 2, 3], [1, 2, 3]) / 7, np.float32, 6 / 14 * np.arange(1.0, 4)),
    (np.outer([1.0, 2, 3], [1, 2, 3]) / 7, np.float64, 6 / 14 * np.arange(1.0, 4)),
    (np.diag([1.0, -2.0, 3.0]), np.float64, [1.0, 1, 1]),
])  # fmt: skip
def test_the_optimum_is_right_where_badly_conditioned_and_the_smallest_where_singular(A, dtype, wanted):
    fed = fc.quadratic(np.stack([(A + A.T) / 2] * 2).astype(dtype), np.ones((2, 3), dtype))
    np.testing.assert_allclose(fed.optimum, wanted, rtol=0, atol=2e-2 if dtype is np.float32 else 1e-9)
    assert fed.optimum.dtype == fed.dtype


def test_symmetry_of_a_quadratic_is_judged_by_its_own_entries():
    A, b = np.array([[[1.0, 5.0], [0.0, 1.0]]]), np.ones((1, 2))
    for by in (1.0, 1e-9, 1e-300):
        with pytest.raises(ValueError, match="A_i must be symmetric"):
            fc.quadratic(by * A, b)
        fc.quadratic(by * np.array([[[1.0, 1e-16], [0.0, 1.0]]]), b)


def test_a_quadratic_descends_with_weight_decay_and_a_clip():
    problem = fc.quadratic(*h.problem())
    plan, Y = problem.plan(0, 0, np.arange(4), steps=2), torch.ones(4, 3, dtype=torch.float64)
    norms = problem.gradient(Y, plan, 0).norm(dim=1)
    clip, stepped, by_hand = float(norms.median()), Y.clone(), Y.clone()  # it cuts some clients and not others
    problem.descend(stepped, plan, 0.1, 0.5, clip)
    for k in range(2):
        v = problem.gradient(by_hand, plan, k) + 0.5 * by_hand
        by_hand -= 0.1 * torch.stack([row * min(1.0, clip / float(row.norm())) for row in v])
    h.close(stepped, by_hand, 1e-14)


# --- data that nothing changes ------------------------------------------------------------------------------------


def test_a_federation_and_its_data_cannot_be_written_to():
    fed = h.network()
    for thing, name in ((fed, "x0"), (fed.data, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)


@pytest.mark.parametrize("change", [
    lambda fed: fed.to(dtype=torch.float32), lambda fed: fed.forced("sequential"), lambda fed: fed.shrink(Width(0.5)),
    lambda fed: fed.set_aside(1), lambda fed: fed.with_model(lambda net: nn.Sequential(*net)),
    lambda fed: fed.with_public(h.images(3, (1, 4, 4), 3, seed=9)[0], np.arange(3)),
])  # fmt: skip
def test_a_changed_federation_is_another_one(change):
    fed = h.network(sizes=(30, 20))
    engine, before = fed.engine, fed.fingerprint()
    other = change(fed)
    assert other is not fed
    assert fed.engine is engine
    assert fed.fingerprint() == before
    assert fed.public is None
    assert other.evaluate(other.x0)["loss"] > 0


@pytest.mark.parametrize("change", [lambda fed: fed, lambda fed: fed.set_aside(9).to(dtype=torch.float64)])
@pytest.mark.parametrize("normalise", ["pooled", "client"])
def test_inputs_are_the_same_where_validation_data_evaluate(normalise, change):
    made = fc.federation("digit-domains", partition=fc.ByOwner(), model="mlp", normalise=normalise, validation=True)
    fed = change(made)
    on, clients = fed.on_validation(), torch.arange(fed.n)
    for i in (None, *clients):
        assert torch.equal(on.inputs(fed.x[:5], i), fed.inputs(fed.x[:5], i))
    ends = [
        fc.simulate(fc.FedAvg(), fed, rounds=1, local_steps=2, eval_on=name).params for name in ("test", "validation")
    ]
    assert torch.equal(*ends)


# --- modules ------------------------------------------------------------------------------------------------------


class Pushed(fc.Quadratic):
    """A quadratic with gradients of its own."""

    def gradient(self, Y, plan, k=0, loss=PLAIN, along=None):
        return super().gradient(Y, plan, k, loss, along) + 100


def test_a_quadratic_of_ones_own_keeps_its_gradients_in_another_type():
    plain = fc.quadratic(np.ones((2, 1, 1)), np.zeros((2, 1)))
    own = Pushed(plain.A, plain.b, plain.x0)
    own.noise = torch.ones(3, dtype=torch.float64)
    moved = own.to(dtype=torch.float32)
    assert type(moved) is Pushed
    assert {moved.A.dtype, moved.optimum.dtype, moved.noise.dtype, moved.dtype} == {torch.float32}
    assert own.A.dtype == torch.float64  # which stays as it is
    ends = [float(fc.simulate(fc.FedAvg(), own, rounds=1, lr=0.1, local_steps=1, dtype=dtype).params) for dtype in
            (torch.float64, torch.float32)]  # fmt: skip
    assert ends == pytest.approx([-10, -10])


def test_statistics_of_all_clients_are_of_samples_that_a_client_has():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(160, 6)), draw.integers(0, 3, 160)
    x[100:] += 100  # nobody's
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    given = {"model": net, "dtype": torch.float64, "partition": [np.arange(50), np.arange(50, 100)]}
    found, wanted = (
        float(fed.evaluate(fed.x0)["loss"])
        for fed in (fc.federation(((x[:n], y[:n]), (x[:50], y[:50])), **given) for n in (160, 100))
    )
    assert found == pytest.approx(wanted, rel=1e-12)


# --- quadratics of one's own --------------------------------------------------------------------------------------


class Quartic(fc.Quadratic):
    """F_i(x) = 1/4 sum (x - b_i)^4."""

    def _gradients(self, i, Y, along=None):
        e = Y - self.b[i]
        return e**3 if along is None else 3 * e**2 * along

    def _losses(self, i, Y):
        return 0.25 * (Y - self.b[i]).pow(4).sum(1)

    def _minimiser(self):
        return self.b.mean(0)


def own(kind: type, n: int = 3) -> fc.Quadratic:
    q = fc.quadratic(np.stack([np.eye(2)] * n), np.arange(2.0 * n).reshape(n, 2))
    return kind(q.A, q.b, q.x0)


def test_the_loss_of_another_problem_is_the_mean_of_the_losses_that_it_defines():
    fed = own(Quartic)
    history = fc.simulate(fc.FedAvg(), fed, rounds=2, lr=0.01)
    x = history.params
    wanted = float(((x - fed.b) ** 4).sum() / 4 / 3)
    assert history.final("loss") == pytest.approx(wanted, rel=1e-12)
    assert float(fed.objective(x.numpy())) == pytest.approx(wanted, rel=1e-12)
    _, losses = fed.gradient_and_losses(x.expand(3, -1), fed.plan(0, 0, CLIENTS))
    assert float(losses.mean()) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("kind", "names"), [
    (Pushed, "gradient"), (Quartic, "_gradients, _losses, _minimiser"),
    (type("Frozen", (fc.Quadratic,), {"trained": torch.tensor([True, False])}), "trained"),
])  # fmt: skip
def test_what_a_class_of_ones_own_computes_is_not_dropped_where_clients_are_pooled(kind, names):
    with pytest.raises(ValueError, match=rf"{kind.__name__} has its own {names}, .* not pooled; .*pooled\(self\)"):
        fc.simulate(fc.Central(), own(kind), rounds=1)
    alone = own(kind, 1)  # one client is all clients
    assert alone.pooled() is alone


def test_a_class_with_no_more_than_a_name_or_with_a_rule_of_its_own_is_pooled():
    class Named(fc.Quadratic):
        """Its values are a quadratic's."""

    class Pooling(Pushed):
        def pooled(self):
            return Pooling(self.A[:1], self.b[:1], self.x0)

    assert torch.equal(own(Named).pooled().objective(torch.ones(2)), own(fc.Quadratic).objective(torch.ones(2)))
    assert type(fc.Central().on(own(Pooling))) is Pooling
    mean = own(fc.Quadratic).pooled()
    assert mean.pooled() is mean
