"""How much a client does in a round: steps and epochs by client and by round, and batches that are left out."""

from __future__ import annotations

import random

import helpers as h
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fedcore as fc

STEPS = [4, 1, 3, 6, 2]


def run(method=None, federation=None, **options):
    options = {"rounds": 4, "cohort": 3, "batch_size": 4, "lr": 0.2, "seed": 1} | options
    return fc.simulate(method or fc.SCAFFOLD(), federation or h.network(), **options)


def by_round(t, clients):
    return 1 + (t + clients) % 3


def equal(one, other):
    assert all(torch.equal(v, other.state[k]) for k, v in one.state.items())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"local_steps": [4, 1, 3]}, "local_steps has 3 numbers for 5 clients; use one number, or one for each"),
        ({"local_steps": [4, 1, 0, 6, 2]}, r"local_steps\[2\]=0 is out of range; .*cohort=f\(t\)"),
        ({"local_steps": 0.5}, "local_steps=0.5 is not an integer; .*one for each of 5 clients, or None"),
        ({"local_steps": lambda t: 3}, r"takes other arguments .*; use a function \(t, clients \[m\]\)"),
        ({"local_steps": lambda t, clients: 3 - t}, "local_steps in round 3: local_steps=0 is out of range"),
        ({"local_epochs": lambda t, clients: [1] * 5}, "local_epochs in round 0: local_epochs has 5 numbers for 3 cl"),
        ({"local_steps": lambda t, clients: clients / 2}, r"local_steps in round 0: local_steps\[0\]=.* is not an int"),
    ],
)  # fmt: skip
def test_wrong_local_work_is_named_before_the_first_round(given, words):
    seen = []
    with pytest.raises((ValueError, TypeError), match=words):
        run(probes=[seen.append], **given)
    assert not seen


@pytest.mark.parametrize("name", ["local_steps", "local_epochs"])
def test_lists_arrays_tensors_and_functions_that_say_the_same_give_the_same_bits(name):
    given = STEPS, tuple(STEPS), np.array(STEPS), torch.tensor(STEPS), lambda t, clients: np.array(STEPS)[clients]
    first, *others = (run(**{name: amounts}) for amounts in given)
    for other in others:
        equal(first, other)
    equal(run(**{name: 3}), run(**{name: lambda t, clients: 3}))


def test_a_quadratic_takes_steps_and_epochs_by_client():
    A, b = h.problem(5)
    h_steps = fc.simulate(fc.FedAvg(), fc.quadratic(A, b), rounds=2, lr=0.1, local_steps=STEPS)
    h_epochs = fc.simulate(fc.FedAvg(), fc.quadratic(A, b), rounds=2, lr=0.1, local_epochs=STEPS)
    x = np.zeros(3)
    for _ in range(2):
        Y = [x] * 5
        for i, K in enumerate(STEPS):
            for _ in range(K):
                Y[i] = Y[i] - 0.1 * A[i] @ (Y[i] - b[i])
        x = np.mean(Y, 0)
    equal(h_steps, h_epochs)
    np.testing.assert_allclose(h_steps.params.numpy(), x, atol=1e-12)


def test_local_work_by_round_resumes_to_the_bit_and_other_work_is_refused(tmp_path):
    whole = run(local_steps=by_round)
    run(local_steps=by_round, rounds=2, checkpoint_dir=tmp_path)
    equal(whole, run(local_steps=by_round, checkpoint_dir=tmp_path))
    for other in (lambda t, clients: by_round(t, clients) + (t == 1), STEPS):
        with pytest.raises(fc.CheckpointError, match="local_steps"):
            run(local_steps=other, rounds=5, checkpoint_dir=tmp_path)
    # a function that differs in later rounds alone has done the same so far
    run(local_steps=lambda t, clients: by_round(t, clients) + (t > 3), rounds=5, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("draw", [np.random.randint, random.randint, torch.randint], ids=["numpy", "python", "torch"])
def test_what_functions_of_the_round_draw_depends_on_seed_and_round_alone(draw, tmp_path):
    def number(t, *clients):
        return int(draw(1, 6, (1,)) if draw is torch.randint else draw(1, 6))

    given = {"local_steps": number, "lr": lambda t: 0.1 * number(t), "cohort": lambda t: min(5, number(t))}
    for f in (random.seed, np.random.seed, torch.manual_seed):
        f(0)
    whole, after = run(rounds=6, **given), draw(1, 10**6, (1,)) if draw is torch.randint else draw(1, 10**6)
    run(rounds=3, checkpoint_dir=tmp_path, **given)
    equal(whole, run(rounds=6, checkpoint_dir=tmp_path, **given))
    assert all(len(set(map(str, whole.settings[name]["by round"]))) > 1 for name in given)
    assert whole.settings["lr"] != {"by round": [0.1 * k for k in whole.settings["local_steps"]["by round"]]}
    assert run(rounds=6, seed=2, **given).settings["lr"] != whole.settings["lr"]
    for f in (random.seed, np.random.seed, torch.manual_seed):
        f(0)
    assert after == (draw(1, 10**6, (1,)) if draw is torch.randint else draw(1, 10**6)), "the caller's generators moved"


def test_steps_beside_epochs_are_told_of():
    with pytest.warns(UserWarning, match="local_epochs has no effect; leave one of the two out"):
        run(local_steps=3, local_epochs=STEPS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lr": lambda t, i: 0.1}, r"lr=.* takes other arguments .*; use a function \(t\) -> the value in round t"),
        ({"cohort": lambda: 2}, r"cohort=.* takes other arguments"),
        ({"on_evaluate": lambda metrics: False}, r"use a function \(t, metrics\) -> True to end the run"),
        ({"probes": [lambda r: {}]}, r"use a function \(round, y\) -> \{name: value\}"),
    ],
)
def test_a_function_of_other_arguments_is_named_before_the_first_round(given, words):
    with pytest.raises(TypeError, match=words):
        run(**given)


def test_a_method_may_change_the_work_of_each_client():
    class Twice(fc.FedAvg):
        def local_work(self, work):
            return fc.algorithms.method.replace(work, steps=2 * work.steps)

    equal(run(Twice(), local_steps=STEPS), run(fc.FedAvg(), local_steps=[2 * K for K in STEPS]))

    class Wrong(fc.FedAvg):
        def local_work(self, work):
            return fc.algorithms.method.replace(work, steps=np.array([1, 2]))

    with pytest.raises(ValueError, match=r"Wrong.local_work: steps has shape \(2,\), needed is \(3,\)"):
        run(Wrong(), local_steps=2)


# --- batches that are left out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["auto", "sequential"])
def test_drop_last_leaves_out_what_torchs_loader_leaves_out(path):
    fed = h.network((13, 8, 20, 3, 9), drop_last=True, path=path)
    plan = fed.plan(0, 0, np.arange(5), batch_size=4, epochs=2)
    for row, i in enumerate(plan.clients):
        loader = DataLoader(range(fed.sizes[i]), 4, shuffle=True, drop_last=bool(fed.sizes[i] >= 4))
        sizes = [len(batch) for batch in loader] * 2
        assert plan.counts[: plan.steps[row], row].tolist() == sizes
        for epoch in plan.samples[: plan.steps[row], row, : sizes[0]].reshape(2, -1):
            assert len(set(epoch)) == len(epoch)
            assert set(epoch) <= set(fed.index[i])
    run(fc.FedNova(), fed, local_epochs=2)


def test_drop_last_is_part_of_what_a_run_is(tmp_path):
    run(None, h.network(), checkpoint_dir=tmp_path)
    with pytest.raises(fc.CheckpointError, match="drop_last"):
        run(None, h.network(drop_last=True), checkpoint_dir=tmp_path, rounds=5)
    assert h.network(drop_last=True).with_model(lambda net: net).drop_last
    assert h.network(drop_last=True).to(dtype=torch.float32).drop_last


def test_drop_last_holds_for_the_batches_a_method_draws_itself():
    fed = h.network((13, 8, 20, 3, 9), drop_last=True)
    plan = fed.plan(0, 0, np.arange(5), batch_size=4, share=0.7, epoch=1)  # 9, 5, 14, 2, 6 samples
    assert plan.steps.tolist() == [2, 1, 3, 1, 1]
    assert plan.counts.sum(0).tolist() == [8, 4, 12, 2, 4]
    run(fc.FedALA(), fed)
