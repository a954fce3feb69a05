"""`fc.simulate_many`: several runs trained as one larger cohort are the runs of `simulate`."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore import together

METHODS = [
    fc.FedAvg(), fc.SCAFFOLD(), fc.FedUp(0.05), fc.FedDyn(0.1), fc.MimeLite(), fc.FedSAM(0.05), fc.MOON(), fc.FedBN(),
    fc.HeteroFL(), fc.DFedGAM(), fc.FedSMOO(),
]  # fmt: skip


def federation(model="mlp", **more):
    return fc.federation("digits", 12, fc.Dirichlet(0.3), model, seed=0, dtype=torch.float64, **more)


def both(runs, fed, **shared):
    """What runs at once give, and what they give one after another."""
    return fc.simulate_many(runs, fed, **shared), [fc.simulate(fed=fed, **one, **shared) for one in runs]


def equal(one, other):
    torch.testing.assert_close(one.params, other.params, rtol=0, atol=1e-11)
    assert one.cohorts == other.cohorts
    assert [row[:3] for row in one.rows] == [row[:3] for row in other.rows]
    np.testing.assert_allclose([row[3] for row in one.rows], [row[3] for row in other.rows], atol=1e-10)


def suits(method, fed):
    try:
        fc.simulate(method, fed, rounds=1, cohort=2, local_steps=1)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "model", ["mlp", "thesis_cnn_small", fc.models.projected("cnn")], ids=["mlp", "bn", "projected"]
)
def test_methods_seeds_rates_and_batches_side_by_side(model):
    fed = federation(model)
    methods = [m for m in METHODS if suits(m, fed)]
    assert len(methods) >= 6
    runs = [
        {"method": method, "lr": lr, "seed": seed, "batch_size": batch}
        for method in methods
        for lr, seed, batch in ((0.1, 0, 16), (0.05, 1, 32))
    ]
    for one, other in zip(*both(runs, fed, rounds=2, cohort=3, local_steps=2), strict=True):
        equal(one, other)


def test_weight_decay_clip_momentum_unequal_steps_and_full_batches():
    fed = federation()
    runs = [
        {"weight_decay": 1e-3, "clip": 1.0}, {"momentum": 0.9}, {"local_epochs": 2}, {"batch_size": None},
        {"local_steps": 4}, {"rounds": 1}, {"cohort": None}, {"method": fc.FedProx(0.1)},
        {"local_steps": range(1, 13)}, {"local_epochs": lambda t, clients: 1 + (t + clients) % 3},
    ]  # fmt: skip
    runs = [{"method": fc.FedAvg(), "rounds": 3, "cohort": 0.25, "seed": k} | one for k, one in enumerate(runs)]
    for one, other in zip(*both(runs, fed), strict=True):
        equal(one, other)


def test_runs_ask_the_engine_in_one_call(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # with more, the rows are divided among them
    fed, calls = federation("logistic"), []
    descend = type(fed.engine).descend
    monkeypatch.setattr(type(fed.engine), "descend", lambda *a: calls.append(len(a[1])) or descend(*a))
    fc.simulate_many([{"lr": lr} for lr in (0.05, 0.1, 0.2)], fed, method=fc.FedAvg(), rounds=2, cohort=4)
    assert calls == [12, 12]


def test_only_so_many_at_once(monkeypatch):
    seen = []
    answer = together._answer
    monkeypatch.setattr(together, "_answer", lambda group, n: seen.append(len(group)) or answer(group, n))
    runs = [{"seed": seed} for seed in range(5)]
    histories = fc.simulate_many(runs, federation(), method=fc.FedAvg(), rounds=2, cohort=2, at_once=2)
    assert max(seen) == 2
    assert [h.settings["seed"] for h in histories] == list(range(5))


def test_a_run_that_diverges_stands_in_its_place():
    runs = [{"lr": 0.1}, {"lr": 1e6}, {"lr": 0.2}]
    good, bad, other = fc.simulate_many(
        runs, federation(), method=fc.FedAvg(), rounds=8, cohort=3, local_steps=50, weight_decay=0.9
    )
    assert isinstance(bad, fc.Diverged)
    assert bad.history.cohorts
    assert len(good.cohorts) == len(other.cohorts) == 8


def test_threads_change_runs_by_rounding_alone():
    fed, before = federation(), torch.get_num_threads()
    runs = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in range(2)]
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(fc.simulate_many(runs, fed, method=fc.FedAvg(), rounds=2, cohort=4))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.params, other.params, rtol=0, atol=1e-11)


def test_quadratics_too():
    fed = fc.quadratic(np.eye(2)[None].repeat(3, 0), np.random.default_rng(0).normal(size=(3, 2)))
    for one, other in zip(*both([{"lr": 0.1}, {"lr": 0.2}], fed, method=fc.SCAFFOLD(), rounds=3), strict=True):
        assert torch.equal(one.params, other.params)


class Breaks(fc.FedAvg):
    def aggregate(self, r, y):
        raise RuntimeError("no server today")


def test_a_federation_with_gradients_of_its_own_keeps_them():
    class Steeper(fc.Federation):
        def gradient_and_losses(self, Y, plan, k, *more):
            gradient, losses = super().gradient_and_losses(Y, plan, k, *more)
            return 2 * gradient, losses

        def descend(self, Y, plan, lr, decay=0.0, clip=None):
            super().descend(Y, plan, 2 * lr, decay, clip)

    plain = federation()
    steeper = Steeper(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain) if f.init})
    shared = {"rounds": 2, "cohort": 3, "local_steps": 2}
    runs = [{"method": fc.FedAvg(), "lr": 0.05}, {"method": fc.SCAFFOLD(), "lr": 0.05}]
    for fast, slow in zip(*both(runs, steeper, **shared), strict=True):
        equal(fast, slow)
    once = fc.simulate(fc.FedAvg(), plain, lr=0.1, **shared)
    equal(fc.simulate_many(runs[:1], steeper, **shared)[0], once)


def test_an_error_is_raised_when_the_others_have_ended():
    runs = [{"method": fc.FedAvg()}, {"method": Breaks()}]
    with pytest.raises(RuntimeError, match="no server today") as raised:
        fc.simulate_many(runs, federation(), rounds=3, cohort=3)
    assert "runs[1] of 2" in raised.value.__notes__[-1]
    assert len(raised.value.results[0].cohorts) == 3


@pytest.mark.parametrize("cache", [1, together.CACHE], ids=["each alone", "all in one call"])
def test_a_run_whose_steps_fail_does_not_repeat_those_of_others(cache, monkeypatch):
    fed, descend = federation(), fc.Federation.descend
    alone = fc.simulate(fc.FedAvg(), fed, rounds=2, cohort=4, lr=0.1)

    def fails(self, Y, plan, lr):
        if lr == 0.2:
            raise RuntimeError("no such step")
        descend(self, Y, plan, lr)

    def never_together(self, Y, counts, batch, lr, *more):
        if len(Y) > 4:
            raise RuntimeError("too many")
        whole(self, Y, counts, batch, lr, *more)

    whole = type(fed.engine).descend
    monkeypatch.setattr(together, "CACHE", cache)
    monkeypatch.setattr(fc.Federation, "descend", fails)
    monkeypatch.setattr(type(fed.engine), "descend", never_together)
    with pytest.raises(RuntimeError, match="no such step") as raised:
        fc.simulate_many([{"lr": 0.1}, {"lr": 0.2}], fed, method=fc.FedAvg(), rounds=2, cohort=4)
    equal(raised.value.results[0], alone)


def test_an_interrupt_ends_the_threads(monkeypatch):
    before, join = threading.active_count(), threading.Thread.join
    once = iter([True])

    def interrupted(thread, *a):
        if next(once, False):
            raise KeyboardInterrupt
        return join(thread, *a)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fc.simulate_many([{"seed": k} for k in range(3)], federation(), method=fc.FedAvg(), rounds=10**6)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(5)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("runs", "shared", "error", "words"),
    [
        ([], {}, ValueError, "runs is empty"),
        ([{"lr": 0.1}], {"lr": 0.2}, ValueError, r"lr stands in runs\[0\] and beside it"),
        ([3], {}, TypeError, r"runs\[0\]=3; use a mapping"),
        ([{}, {}], {"checkpoint_dir": "x"}, ValueError, "for 2 runs; give each run its own"),
        (
            [{"checkpoint_dir": "x", "lr": 0.2}, {"checkpoint_dir": "x/../x"}],
            {},
            ValueError,
            r"checkpoint_dir='x/../x' of runs\[1\] is that of runs\[0\]; give each run its own",
        ),
        ([{"lr": -1.0}], {}, ValueError, "lr=-1 is out of range"),
        ([{}], {"at_once": 0}, ValueError, "at_once=0 is out of range"),
    ],
)
def test_wrong_calls(runs, shared, error, words):
    with pytest.raises(error, match=words):
        fc.simulate_many(runs, federation(), method=fc.FedAvg(), rounds=1, **shared)


DATA_OF_THEIR_OWN = {
    "FedGSE takes public samples": (fc.FedGSE({1: 0.5, 0.5: 0.5}), {}),
    "another number of them": (fc.FedGSE(0.5, public=2), {}),
    "Central joins the clients": (fc.Central(), {"normalise": "client"}),
}


@pytest.mark.parametrize("name", DATA_OF_THEIR_OWN)
def test_a_method_that_changes_the_federations_data_keeps_its_own(name):
    method, more = DATA_OF_THEIR_OWN[name]
    fed = fc.federation("digits", 8, fc.Shards(2), "digit_model_small", seed=0, dtype=torch.float64, **more)
    runs = [{"method": each} for each in (fc.FedAvg(), method, fc.FedGSE(0.5, public=1), fc.HeteroFL(0.5))]
    for one, other in zip(*both(runs, fed, rounds=2, lr=0.1, local_steps=2), strict=True):
        equal(one, other)


def test_validation_images_do_not_part_runs(monkeypatch):
    rows = []
    asked = together.Federation.gradient_and_losses
    monkeypatch.setattr(
        together.Federation, "gradient_and_losses", lambda fed, Y, *args: rows.append(len(Y)) or asked(fed, Y, *args)
    )
    fed = federation(validation=True)
    fc.simulate_many([{"seed": s} for s in range(3)], fed, method=fc.FedProx(0.1), rounds=1, cohort=2, local_steps=2,
                     eval_on="validation")  # fmt: skip
    assert max(rows) > 2
