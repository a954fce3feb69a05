"""Races: short runs, then the better settings go on from their checkpoints; and a search for each reporting seed."""

from __future__ import annotations

import math
from collections import Counter

import pytest

import fedcore as fc
from fedbook import reproduce
from fedbook.results import cells, estimate
from fedbook.studies import specification, training, tuning

RATES = [0.01, 0.02, 0.04, 0.08, 0.16]
SPEC = {
    "study": "simulate", "method": ["FedAvg", {}],
    "federation": {"source": "digits", "clients": 5, "model": "logistic", "validation": True},
    "run": {"rounds": 8, "lr": 0.1, "cohort": 2, "eval_every": 2},
    "tune": {"axes": {"run.lr": [0.1, 0.3]}, "seeds": [1000], "race": [2, 4, 8], "finalists": 1, "growth": 0},
}  # fmt: skip


def searched(value, axes=None, **tune):
    """The search, and how often each length was run; value: (setting, rounds or infinity) -> the score."""
    ran = Counter()
    spec = {"run": {"rounds": 80}, "tune": {"axes": axes or {"run.lr": RATES}, "seeds": [1000], "growth": 0, **tune}}

    def run(chosen, seed, name):
        rounds = chosen["run"]["rounds"]
        ran[rounds] += 1
        return {"final": value(chosen["run"]["lr"], rounds)}

    return tuning.choose(spec, run), ran


def test_settings_far_behind_leave_after_the_first_stage_and_the_better_half_after_each_other():
    race = {"race": [10, 20, 40, 80], "finalists": 1}
    peak = lambda lr, rounds: 60 - 3 * abs(math.log2(lr / 0.04))  # noqa: E731
    found, ran = searched(peak, **race)
    assert found["setting"] == {"run": {"lr": 0.04}}
    assert ran == {10: 5, 20: 5, 40: 3, 80: 2}
    _, ran = searched(lambda lr, rounds: peak(lr, rounds) - 20 * (lr < 0.03), **race)
    assert ran == {10: 5, 20: 3, 40: 2, 80: 1 + 1}, (
        "two rates are more than 8 points behind; the slowest of the last wins"
    )


def test_the_finals_grow_at_their_slow_end_until_the_slowest_loses():
    late = lambda lr, rounds: 50 + 4 * math.log2(lr / 0.01) if rounds < 80 else 60 - 3 * abs(math.log2(lr / 0.02))  # noqa: E731
    found, ran = searched(late, race=[10, 20, 80], finalists=1, behind=100)
    assert found["setting"] == {"run": {"lr": 0.02}}
    assert ran[80] == 5, "the fastest three of five stood in the finals; 0.02 joined, won, and 0.01 lost"


def test_a_setting_that_diverges_leaves():
    found, ran = searched(lambda lr, rounds: None if lr > 0.1 else 50 + lr, race=[10, 80], finalists=1, behind=100)
    assert found["setting"] == {"run": {"lr": 0.08}}
    assert ran == {10: 5, 80: 4}


def test_a_longer_run_goes_on_from_the_checkpoint_of_a_shorter_one_and_ends_as_a_run_that_was_never_short(
    tmp_path, monkeypatch
):
    steps = []
    simulate = fc.simulate

    def watched(method, fed, **settings):
        history = simulate(method, fed, on_evaluate=lambda t, metrics: None, **settings)
        steps.append((settings["rounds"], settings["checkpoint_dir"]))
        return history

    monkeypatch.setattr(training, "run", watched)
    with_folder = cells.run_cell(SPEC, [0], file=tmp_path / "a.json", workshop=tmp_path / "work")
    places = {folder for rounds, folder in steps if folder is not None}
    assert len(places) == 3, "two settings and the reported run: a setting keeps its folder through the stages"
    without = cells.run_cell(SPEC, [0])
    assert with_folder.tuned["tried"] == without.tuned["tried"]
    assert with_folder.runs[0]["late"] == without.runs[0]["late"]


def test_each_reporting_seed_has_a_search_on_seeds_of_its_own(tmp_path):
    spec = {**SPEC, "tune": {**SPEC["tune"], "each": True}}
    file = tmp_path / "cell.json"
    result = reproduce.run_cell(spec, [0, 2], file=file)
    assert result.tuned is None
    first, second = result.searches
    for seed, search in ((0, first), (2, second)):
        own = {**SPEC, "tune": {**SPEC["tune"], "seeds": [1000 + 10 * seed]}}
        assert search["tried"] == reproduce.run_cell(own, [seed]).tuned["tried"]
        chosen = tuning.merged(spec, search["setting"])
        assert result.runs[seed]["late"] == training.simulate(chosen, seed, None, None)["late"]
    again = reproduce.run_cell(spec, [0, 2, 1], file=file)
    assert [one["tried"] for one in again.searches][::2] == [first["tried"], second["tried"]]
    assert estimate.rounds_left(spec, cells.Result(spec), [0, 1]) == 2 * (8 + 2 * 4 + 4)


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ({"race": [4]}, "race.*stages"),
        ({"race": [4, 2]}, "race.*stages"),
        ({"race": [2, 4], "rounds": 3}, "race replaces rounds"),
        ({"each": 1}, "each"),
    ],
)
def test_a_wrong_race_is_explained_before_it_is_run(tune, words):
    with pytest.raises(ValueError, match=words):
        specification.check({**SPEC, "tune": {"axes": {"run.lr": [0.1, 0.2]}, **tune}})
