"""Accuracy late in training: the mean over the evaluations in the last sixth of the rounds, image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook.results import cells
from fedbook.studies import training

SPEC = {
    "study": "simulate",
    "method": ["SCAFFOLD", {}],
    "federation": {"source": "digits", "clients": 10, "partition": ["Dirichlet", {"q": 0.3}], "model": "logistic"},
    "run": {"rounds": 13, "cohort": 3, "lr": 0.1, "eval_every": 4},
}
ROUNDS = [9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    ("rounds", "every", "expected"),
    [
        (600, 20, [520, 540, 560, 580, 600]),
        (13, 4, ROUNDS),
        (100, 10, [88, 90, 91, 94, 97, 100]),
        (3, 1, [1, 2, 3]),
        (0, 1, [0]),
    ],
)
def test_five_evaluations_at_least_lie_in_the_last_sixth_where_it_has_so_many_rounds(rounds, every, expected):
    assert training.late_rounds(rounds, every) == expected


def test_counts_are_those_of_single_models_and_the_last_model_is_that_of_a_run_without_stops():
    found = training.simulate(SPEC, 0, None, None)
    fed = fc.federation("digits", clients=10, partition=fc.Dirichlet(0.3), model="logistic", seed=0)

    def after(rounds):
        return fc.simulate(fc.SCAFFOLD(), fed, seed=0, **{**SPEC["run"], "rounds": rounds})

    right = sum(fed.correct(after(t).params).int() for t in ROUNDS).numpy()
    shares = cells.Result(SPEC, {0: found}).correct([0])[0]
    assert np.array_equal(shares, right / len(ROUNDS))
    assert found["late"] == pytest.approx(100 * right.mean() / len(ROUNDS))
    assert found["final"] == 100 * after(13).final("accuracy")
    assert [t for t, _ in found["history"]] == [0, 4, 8, 12, 13]
    assert cells.Result(SPEC, {0: found}).finals() == [found["late"]]


def test_a_run_that_was_stopped_between_two_late_evaluations_gives_the_same_counts(tmp_path, monkeypatch):
    whole = training.simulate(SPEC, 0, tmp_path / "whole", None)
    calls = iter(range(3))

    def interrupted(*args, **kwargs):
        next(calls)
        return fc.simulate(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(training, "run", interrupted)
        with pytest.raises(StopIteration):
            training.simulate(SPEC, 0, tmp_path / "stopped", None)
    assert len(list((tmp_path / "stopped").glob("right*.npy"))) == 3
    assert training.simulate(SPEC, 0, tmp_path / "stopped", None) == whole


def test_the_curves_of_older_results_are_judged_late_with_the_images_of_the_last_round():
    bits = np.array([1, 1, 0, 0, 0, 0, 0, 0], bool)
    history = [[0, 10.0], [4, 20.0], [10, 22.0], [11, 28.0], [12, 25.0]]
    kept = {"images": 8, "classes": 2, "correct": training.packed(torch.as_tensor(bits))}
    run = {"final": 25.0, "history": history, **kept}
    result = cells.Result(SPEC, {0: run})
    assert result.finals() == [26.5], "the mean over rounds 11 and 12"
    np.testing.assert_allclose(result.correct([0]), [bits + 0.015], err_msg="moved from 25 % to 26.5 %")
    assert training.late([[0, 12.0]]) == 12.0, "a run of no rounds"
    other = cells.Result({**SPEC, "study": "clients"}, {0: run})
    assert other.finals() == [25.0]
    np.testing.assert_array_equal(other.correct([0]), [bits])


def test_a_run_of_no_rounds_counts_the_images_of_its_start(tmp_path):
    spec = {**SPEC, "run": {**SPEC["run"], "rounds": 0}}
    found = training.simulate(spec, 0, tmp_path / "new" / "folder", None)
    assert found["evaluations"] == 1
    assert found["late"] == pytest.approx(found["final"])


def test_a_loss_is_judged_at_the_last_round_and_so_are_its_images():
    spec = {**SPEC, "metric": "loss"}
    found = training.simulate(spec, 0, None, None)
    result = cells.Result(spec, {0: found})
    assert result.finals() == [found["final"]]
    accuracy = training.simulate(SPEC, 0, None, None)["final"]
    assert 100 * result.correct([0]).mean() == pytest.approx(accuracy)
