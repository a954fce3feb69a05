"""Randomness is a hash of (seed, purpose, round, client): order, path, company and interruptions change nothing.

Statistical tolerances are derived: 6 sigma of the law under test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import ClassVar

import helpers as h
import numpy as np
import pytest
import torch
from battery import private
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedcore as fc
from fedcore import rng

integers = st.integers(-(2**63), 2**63 - 1)
METHODS = [
    fc.FedAvg(), fc.FedAvg(server_momentum=0.7), fc.FedSGD(), fc.FedProx(mu=0.4), fc.SCAFFOLD("I"), fc.SCAFFOLD("II"),
    fc.FedUp(alpha=0.1), fc.FedAdam(tau=0.1), fc.FedNova(), fc.FedExP(), fc.FedCM(0.3), fc.FedGamma(), fc.FedSpeed(),
    fc.FedPer(), fc.FedRep(), fc.Ditto(), fc.pFedMe(2.0), fc.LocalOnly(),
]  # fmt: skip


# --- the hash -----------------------------------------------------------------------------------------------------


def splitmix64(*parts):
    """The same in Python's integers, one part after another."""
    h, full = 0, 2**64 - 1
    for part in parts:
        h = ((h ^ (part & full)) + 0x9E3779B97F4A7C15) & full
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & full
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & full
        h ^= h >> 31
    return h


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(integers, min_size=1, max_size=5), st.lists(integers, min_size=1, max_size=8))
def test_the_vectorised_hash_is_the_hash_of_each_element(parts, last):
    assert [splitmix64(*parts, v) for v in last] == rng.words(*parts, np.array(last)).tolist()
    assert [splitmix64(v, *parts) for v in last] == rng.words(np.array(last), *parts).tolist()
    assert splitmix64(*parts) == rng.word(*parts)


def test_the_hash_is_splitmix64():
    # the first three outputs of SplitMix64 seeded with 1234567, a published test vector; state k is seed + (k-1) gamma
    gamma, seed = 0x9E3779B97F4A7C15, 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [rng.word((seed + k * gamma) % 2**64) for k in range(3)] == expected


def test_each_purpose_has_a_stream_of_its_own():
    purposes = [rng.COHORT, rng.BATCH, rng.DROPOUT, rng.INIT, rng.PARTITION, rng.DATA]
    assert len({rng.word(0, p) for p in purposes}) == len(set(purposes)) == 6


# --- cohorts ------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(1, 60), st.data())
def test_a_cohort_is_drawn_without_replacement_and_sorted(seed, t, n, data):
    m = data.draw(st.integers(1, n))
    cohort = rng.cohort(seed, t, n, m)
    assert cohort == sorted(set(cohort))
    assert len(cohort) == m
    assert set(cohort) <= set(range(n))
    assert rng.cohort(seed, t, n, m) == cohort


@pytest.mark.parametrize(("n", "m"), [(20, 5), (7, 3), (10, 9), (50, 1)])
def test_cohorts_are_uniform_over_clients_and_pairs(n, m):
    T = 4000
    member = np.zeros((T, n))
    for t in range(T):
        member[t, rng.cohort(0, t, n, m)] = 1
    # Counts of n clients with covariance T p (1-p) n/(n-1) (I - 1/n): the scaled sum of squares is chi-square with
    # n - 1 degrees of freedom, of mean n - 1 and variance 2 (n - 1).
    p = m / n
    chi = ((member.sum(0) - T * p) ** 2).sum() / (T * p * (1 - p) * n / (n - 1))
    assert abs(chi - (n - 1)) < 6 * np.sqrt(2 * (n - 1))
    # a pair is drawn together with probability m (m-1) / (n (n-1))
    together = member.T @ member
    q = m * (m - 1) / (n * (n - 1))
    assert abs(together[np.triu_indices(n, 1)] - T * q).max() <= 6 * np.sqrt(T * q * (1 - q))


# --- batches ------------------------------------------------------------------------------------------------------


def samples(plan, row: int) -> list[list[int]]:
    return [plan.indices[k, row, : plan.counts[k, row]].tolist() for k in range(plan.steps[row])]


FED = h.network(sizes=(13, 7, 20, 4, 9))


@pytest.mark.parametrize("batch_size", [1, 4, 7, 50])
def test_every_epoch_visits_every_sample_once(batch_size):
    plan = FED.plan(3, 8, np.arange(5), epochs=3, batch_size=batch_size)
    for row, i in enumerate(plan.clients):
        steps, per_epoch = samples(plan, row), -(-FED.sizes[i] // batch_size)
        epochs = [np.concatenate(steps[e * per_epoch : (e + 1) * per_epoch]).tolist() for e in range(3)]
        assert all(sorted(epoch) == FED.index[i].tolist() for epoch in epochs)
        assert len({tuple(e) for e in epochs}) == 3 or FED.sizes[i] < 5  # in a fresh order


def test_batch_weights_are_those_of_a_mean_and_zero_where_padded():
    plan = FED.plan(3, 8, np.arange(5), batch_size=6)
    for row, i in enumerate(plan.clients):
        counts = plan.counts[: plan.steps[row], row]
        assert counts.tolist() == [len(part) for part in np.split(np.arange(FED.sizes[i]), range(6, FED.sizes[i], 6))]
    h.close(plan.weights.sum(2), (plan.counts > 0).astype(float), 1e-15)
    assert ((plan.weights > 0).sum(2).numpy() == plan.counts).all()


@pytest.mark.parametrize("options", [{"epochs": 2}, {"steps": 9}, {"steps": 1, "walk": True}], ids=str)
def test_a_clients_batches_do_not_depend_on_who_else_is_in_the_cohort(options):
    for i in range(5):
        alone = FED.plan(3, 8, np.array([i]), batch_size=4, **options)
        for company in ([0, 1, 2, 3, 4], sorted({i, 2}), sorted({i, 0, 3})):
            plan = FED.plan(3, 8, np.array(company), batch_size=4, **options)
            row = plan.clients.tolist().index(i)
            assert samples(plan, row) == samples(alone, 0)
            assert plan.keys[row] == alone.keys[0]


def test_batches_differ_between_seeds_rounds_and_clients():
    fed = h.network(sizes=(20, 20))
    orders = []
    for seed, t in ((0, 0), (0, 1), (1, 0)):
        plan = fed.plan(seed, t, np.arange(2), batch_size=4)
        orders += [tuple(np.concatenate(samples(plan, row)) - fed.index[i][0]) for row, i in enumerate(plan.clients)]
    assert len(set(orders)) == 6


def test_batches_do_not_depend_on_where_a_client_stands_in_the_federation():
    # the same samples in the same order of draws, whatever sizes the clients before it have
    a, b = h.network(sizes=(5, 12)), h.network(sizes=(9, 12))
    first, second = (fed.plan(1, 2, np.array([1]), batch_size=4) for fed in (a, b))
    relative = [[np.array(s) - fed.index[1][0] for s in samples(p, 0)] for fed, p in ((a, first), (b, second))]
    assert all(np.array_equal(s, r) for s, r in zip(*relative, strict=True))


def test_the_first_batch_is_uniform_over_the_clients_samples():
    fed, T, N, B = h.network(sizes=(12,)), 3000, 12, 3
    count = np.zeros(N)
    for t in range(T):
        count[samples(fed.plan(0, t, np.array([0]), batch_size=B), 0)[0]] += 1
    p = B / N
    chi = ((count - T * p) ** 2).sum() / (T * p * (1 - p) * N / (N - 1))
    assert abs(chi - (N - 1)) < 6 * np.sqrt(2 * (N - 1))


def test_rows_of_a_plan_are_sorted_so_that_clients_at_work_are_a_prefix():
    plan = FED.plan(0, 0, np.arange(5), batch_size=4)
    assert plan.steps.tolist() == sorted(plan.steps, reverse=True)
    assert (plan.counts > 0).sum(0).tolist() == plan.steps.tolist()


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_relabelling_the_clients_relabels_the_result(method):
    A, b = h.problem(6, 3)
    order = np.random.default_rng(1).permutation(6)
    a = fc.simulate(method, fc.quadratic(A, b), rounds=6, local_steps=4, lr=0.1)
    c = fc.simulate(method, fc.quadratic(A[order], b[order]), rounds=6, local_steps=4, lr=0.1)
    h.close(a.params, c.params, 1e-13)
    for name, value in a.state.items():
        h.close(value[order] if name in method.client_state else value, c.state[name], 1e-12)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_order_in_which_clients_are_computed_does_not_change_the_result(method, monkeypatch):
    # unequal sizes make the rows of a round come in another order than the cohort; equal steps keep it
    options = {"rounds": 4, "cohort": 3, "lr": 0.1, "batch_size": 4}
    plain = fc.simulate(method, FED, **options)
    original = fc.Federation.plan

    def reversed_plan(self, seed, t, clients, **work):
        return original(self, seed, t, clients[::-1].copy(), **work)

    monkeypatch.setattr(fc.Federation, "plan", reversed_plan)
    h.close(fc.simulate(method, FED, **options).params, plain.params, 1e-13)


@pytest.mark.parametrize("path", ["written", "batched", "sequential"])
def test_one_path_gives_one_result_to_the_bit_and_the_other_the_same_to_rounding(path):
    options = {"rounds": 4, "cohort": 3, "lr": 0.1, "batch_size": 4}
    a, b = (fc.simulate(fc.SCAFFOLD(), FED.forced(path), **options) for _ in range(2))
    assert torch.equal(a.params, b.params)
    assert a.rows == b.rows
    h.close(fc.simulate(fc.SCAFFOLD(), FED, **options).params, a.params, 1e-13)


def test_a_run_does_not_depend_on_what_ran_before_it():
    options = {"rounds": 3, "cohort": 3, "lr": 0.1, "batch_size": 4}
    first = fc.simulate(fc.FedAvg(), FED, **options).params
    fc.simulate(fc.SCAFFOLD(), FED, seed=9, rounds=2)
    torch.manual_seed(99)
    assert torch.equal(fc.simulate(fc.FedAvg(), FED, **options).params, first)


# --- dropout ------------------------------------------------------------------------------------------------------


def dropping(shape, classes) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def local_gradient(
    fed, company: list[int], i: int, t: int = 0, seed: int = 0, k: int = 0, batch_size=4
) -> torch.Tensor:
    plan = fed.plan(seed, t, np.array(company), batch_size=batch_size)
    row = plan.clients.tolist().index(i)
    return fed.gradient(fed.x0.repeat(len(company), 1), plan, k)[row]


@pytest.mark.parametrize("batch_size", [4, None])
def test_dropout_of_a_client_depends_on_seed_round_client_and_step_alone(batch_size, monkeypatch):
    # several chunks per client, so that chunks too would show a dependence on the others
    monkeypatch.setattr(fc.objective.federation, "SAMPLE_CHUNK", 6)
    fed = h.network(sizes=(20, 20, 20, 20), model=dropping)
    one = local_gradient(fed, [1], 1, batch_size=batch_size)
    torch.manual_seed(7)
    for company in ([0, 1], [1, 2, 3], [0, 1, 2, 3]):
        assert torch.equal(local_gradient(fed, company, 1, batch_size=batch_size), one)
    others = [local_gradient(fed, [1], 1, batch_size=batch_size, **o) for o in ({"seed": 1}, {"t": 1}, {"k": 1})]
    assert not any(torch.equal(one, other) for other in others)


def test_dropout_differs_between_clients_that_hold_the_same_data():
    x, y = h.images(10, (1, 4, 4), 3)
    arrays = {"train_images": np.concatenate([x, x]), "train_labels": np.concatenate([y, y]), "test_images": x,
              "test_labels": y, "train_owner": np.repeat([0, 1], 10)}  # fmt: skip
    fed = fc.federation(arrays, partition=fc.ByOwner(), model=dropping, dtype=torch.float64)
    a, b = (local_gradient(fed, [0, 1], i, batch_size=None) for i in (0, 1))
    assert (a - b).norm() > 1e-3


# --- initial weights ----------------------------------------------------------------------------------------------

INITIAL = """
import hashlib
from fedcore import models
for name, shape in (("thesis_mlp", (1, 8, 8)), ("thesis_cnn_small", (1, 8, 8)), ("cnn", (1, 28, 28))):
    x0 = models.flatten(models.build(name, shape, 10, 3))
    print(name, hashlib.sha256(x0.detach().numpy().tobytes()).hexdigest())
"""


def test_initial_weights_are_the_same_bits_on_every_instruction_set(capsys):
    """Without a fused multiply-add PyTorch's own draws differ in the last bit of half of the weights."""
    exec(INITIAL, {})
    here, plain = capsys.readouterr().out, os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    there = subprocess.run([sys.executable, "-c", INITIAL], env=plain, check=True, capture_output=True, text=True)
    assert here.count("\n") == 3
    assert here == there.stdout


@pytest.mark.parametrize("make", [lambda: nn.Linear(9, 7), lambda: nn.Conv2d(3, 8, 3), lambda: nn.LSTM(3, 5)])
def test_initial_weights_are_those_of_pytorch_up_to_their_last_bit(make):
    with torch.random.fork_rng():
        torch.manual_seed(rng.word(3, rng.INIT))
        own = fc.models.flatten(make())
    ours = fc.models.flatten(fc.models.build(lambda shape, classes: make(), (1,), 1, 3))
    assert (ours - own).abs().max() <= 2**-24 * own.abs().max() * 2
    assert len(ours.unique()) > 0.9 * len(ours)


# --- noise in a method ------------------------------------------------------------------------------------------------


NOISY = {"rounds": 4, "cohort": 3, "lr": 0.2, "batch_size": 4, "local_steps": [3, 1, 4, 2, 3], "seed": 5}


@pytest.mark.parametrize("where", ["aggregate", "direction", "all"])
def test_a_run_with_noise_is_the_same_to_the_bit_resumed_and_in_chunks(where, tmp_path):
    fed, method = h.network(block=1), private(where)
    whole = fc.simulate(method, fed, **NOISY)
    assert torch.equal(whole.params, fc.simulate(method, fed, **NOISY).params)
    assert not torch.equal(whole.params, fc.simulate(method, fed, **NOISY | {"seed": 6}).params)
    assert not torch.equal(whole.params, fc.simulate(private(where, 0.0), fed, **NOISY).params)
    fc.simulate(method, fed, **NOISY | {"rounds": 2}, checkpoint_dir=tmp_path)
    assert torch.equal(whole.params, fc.simulate(method, fed, **NOISY, checkpoint_dir=tmp_path).params)
    for chunk in (1, 2):
        assert torch.equal(whole.params, fc.simulate(method, fed, **NOISY, chunk=chunk).params)


class Listening(fc.Method):
    """Keeps what every hook hears, by hook, round, step, call and client."""

    across = "sums"
    heard: ClassVar[dict] = {}  # of the class: a method that writes to what it holds is told of

    def hear(self, name, r, y):
        for call in range(2):
            for i, row in zip(r.ids.tolist(), r.noise(y), strict=True):
                self.heard[name, r.t, r.step, call, i] = row
        return r

    def prepare(self, r):
        return self.hear("prepare", r, r.x.expand(r.m, -1))

    def broadcast(self, r):
        return self.hear("broadcast", r, r.x.expand(r.m, -1)).x

    def direction(self, G, y, r):
        self.hear("direction", r, y)
        if r.step == 0 and 0 in r.ids:
            r.noise(y)  # a call more, which later steps do not notice
        return G(y)

    def aggregate(self, r, y):
        self.hear("aggregate", r, y)
        for call in range(2):
            self.heard["aggregate", r.t, 0, call, -1] = r.noise(r.x)
        return {"x": r.x}


def heard(cohort, **options):
    Listening.heard = {}
    fc.simulate(Listening(), h.network(), rounds=2, local_steps=[3, 1, 4, 2, 3], cohort=cohort, **options)
    return Listening.heard


def test_a_clients_noise_belongs_to_it_its_round_hook_step_and_call_and_to_nobody_beside_it():
    everyone, some = heard(None), heard([1, 3])
    assert len(everyone) == 2 * (3 * 2 * 5 + 2 * 13 + 2)
    drawn = torch.stack(list(everyone.values()))
    assert len(drawn.unique(dim=0)) == len(drawn)  # no two are equal
    for key, row in some.items():
        assert torch.equal(everyone[key], row)


def test_noise_is_standard_normal_and_independent():
    Z = rng.normals(rng.words(3, np.arange(40)), 10_001)
    N = Z.size
    bound = 6 / np.sqrt(N)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((Z**power).mean() - moment) < bound * np.sqrt(variance)
    assert abs((np.abs(Z) > 3).mean() - 0.0026998) < bound * np.sqrt(0.0027)
    for a, b in ((Z[:, :-1], Z[:, 1:]), (Z[:-1], Z[1:]), (Z[:, :5000], Z[:, 5001:])):  # neighbours, clients, the pairs
        assert abs((a * b).mean()) < 6 / np.sqrt(a.size)
        assert abs((a**2 * b**2).mean() - 1) < 6 * np.sqrt(8 / a.size)
    assert torch.equal(torch.tensor(Z[7]), torch.tensor(rng.normals(rng.words(3, np.arange(7, 8)), 10_001)[0]))


def test_noise_has_the_shape_and_type_of_what_it_is_for():
    fed = h.network(dtype=torch.float32)
    _, seen = fc.one_round(fc.FedAvg(), fed, fc.start(fc.FedAvg(), fed), 0, cohort=[0, 2])
    r = seen.round
    for like in (seen.y, seen.y.double(), r.x, r.p, torch.zeros(2, 3, 4)):
        assert (r.noise(like).shape, r.noise(like).dtype) == (like.shape, like.dtype)
    assert r.trained is None
    with pytest.raises(ValueError, match=r"shape \(3, 4\), but the round has 2 clients"):
        r.noise(torch.zeros(3, 4))
    for wrong in (3, torch.zeros(2, 4, dtype=torch.int64), None):
        with pytest.raises(TypeError, match="real numbers"):
            r.noise(wrong)


def test_noise_may_leave_frozen_parameters_alone():
    net = h.small_mlp((1, 4, 4), 3)
    next(net.parameters()).requires_grad_(False)
    fed = h.network(model=net)
    history = fc.simulate(private("aggregate"), fed, **NOISY)
    moved = history.params != fed.x0
    assert torch.equal(moved, fed.trained)


@pytest.mark.parametrize("name", ["lr", "cohort", "local_steps"])
def test_a_function_of_the_round_that_draws_from_a_generator_of_its_own_is_told_of(name):
    """The second of two equal runs would get other values; with a generator made for the round it does not."""
    fed, own = fc.federation("digits", clients=6, model="logistic"), np.random.default_rng(0)
    draw = {"lr": lambda g: g.uniform(0.1, 0.2), "cohort": lambda g: g.choice(6, 2, replace=False)}
    draw["local_steps"] = lambda g: int(g.integers(1, 4))

    def run(f):
        given = f if name != "local_steps" else lambda t, clients: f(t)
        return fc.simulate(fc.FedAvg(), fed, rounds=2, **{"lr": 0.1, name: given}).params

    with pytest.warns(UserWarning, match=rf"{name}=.* draws from a generator outside of itself"):
        run(lambda t: draw[name](own))
    first, second = (run(lambda t: draw[name](np.random.default_rng([0, t]))) for _ in range(2))
    assert torch.equal(first, second)
