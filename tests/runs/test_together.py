"""`fc.simulate_many`: several runs in one call are those of `simulate`, to the bit."""

import dataclasses

import numpy as np
import pytest
import torch

import fedcore as fc

METHODS = [
    fc.FedAvg(), fc.SCAFFOLD(), fc.FedUp(0.05), fc.FedDyn(0.1), fc.MimeLite(), fc.FedSAM(0.05), fc.MOON(), fc.FedBN(),
    fc.HeteroFL(), fc.DFedGAM(), fc.FedSMOO(),
]  # fmt: skip


def federation(model="mlp", **more):
    return fc.federation("digits", 12, fc.Dirichlet(0.3), model, seed=0, dtype=torch.float64, **more)


def both(runs, fed, **shared):
    """What runs of one call give, and what each gives in a call of its own."""
    return fc.simulate_many(runs, fed, **shared), [fc.simulate(fed=fed, **one, **shared) for one in runs]


def equal(one, other):
    assert torch.equal(one.params, other.params)
    assert one.cohorts == other.cohorts
    assert one.rows == other.rows


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


def test_a_run_that_diverges_stands_in_its_place():
    runs = [{"lr": 0.1}, {"lr": 1e6}, {"lr": 0.2}]
    good, bad, other = fc.simulate_many(
        runs, federation(), method=fc.FedAvg(), rounds=8, cohort=3, local_steps=50, weight_decay=0.9
    )
    assert isinstance(bad, fc.Diverged)
    assert bad.history.cohorts
    assert len(good.cohorts) == len(other.cohorts) == 8


def test_quadratics_too():
    fed = fc.quadratic(np.eye(2)[None].repeat(3, 0), np.random.default_rng(0).normal(size=(3, 2)))
    for one, other in zip(*both([{"lr": 0.1}, {"lr": 0.2}], fed, method=fc.SCAFFOLD(), rounds=3), strict=True):
        equal(one, other)


def test_at_once_has_no_effect():
    runs, shared = [{"seed": seed} for seed in range(3)], {"method": fc.FedAvg(), "rounds": 2, "cohort": 2}
    for one, other in zip(*(fc.simulate_many(runs, federation(), at_once=k, **shared) for k in (2, None)), strict=True):
        equal(one, other)


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
    torch.testing.assert_close(fc.simulate_many(runs[:1], steeper, **shared)[0].params, once.params, rtol=0, atol=1e-11)


def test_an_error_is_raised_when_the_others_have_ended():
    runs = [{"method": fc.FedAvg()}, {"method": Breaks()}, {"method": fc.SCAFFOLD()}]
    with pytest.raises(RuntimeError, match="no server today") as raised:
        fc.simulate_many(runs, federation(), rounds=3, cohort=3)
    assert "runs[1] of 3" in raised.value.__notes__[-1]
    assert [len(raised.value.results[k].cohorts) for k in (0, 2)] == [3, 3]
    assert raised.value.results[1] is raised.value


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
