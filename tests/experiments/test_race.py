"""Races: short runs, then the better settings go on from their checkpoints; and a search for each reporting seed."""

from __future__ import annotations

import math
from collections import Counter

import pytest

import fedcore as fc
from fedbook import reproduce, studies
from fedbook.results import cells, estimate, provenance
from fedbook.studies import specification, training, tuning

RATES = [0.01, 0.02, 0.04, 0.08, 0.16]
SPEC = {
    "study": "simulate", "method": ["FedAvg", {}],
    "federation": {"source": "digits", "clients": 5, "model": "logistic", "validation": True},
    "run": {"rounds": 8, "lr": 0.1, "cohort": 2, "eval_every": 2},
    "tune": {"axes": {"run.lr": [0.1, 0.3]}, "seeds": [1000], "race": [2, 4, 8], "finalists": 1, "growth": 0},
}  # fmt: skip


def searched(value, better="higher", **tune):
    """The search, and how many runs had each number of rounds; value: (learning rate, rounds) -> the score."""
    ran = Counter()
    tune = {"axes": {"run.lr": RATES}, "seeds": [1000], "growth": 0, **tune}
    spec = {"run": {"rounds": 80}, "better": better, "tune": tune}

    def run(chosen, seed, name):
        rounds = chosen["run"]["rounds"]
        ran[rounds] += 1
        return {"final": value(chosen["run"]["lr"], rounds)}

    return tuning.choose(spec, run), ran


def test_settings_far_behind_leave_after_the_first_stage_and_the_better_half_after_each_other():
    race = {"race": [10, 20, 40, 80], "finalists": 1}
    score = lambda lr, rounds: {0.01: 48, 0.02: 51, 0.04: 60, 0.08: 57, 0.16: 54}[lr]  # noqa: E731
    found, ran = searched(score, **race)
    assert found["setting"] == {"run": {"lr": 0.04}}
    assert ran == {10: 5, 20: 3, 40: 2, 80: 1 + 1}, "the best of the last has the lowest rate, so the next one joins"
    _, ran = searched(score, race=[10, 20, 80], finalists=4, behind=10)
    assert ran == {10: 5, 20: 4, 80: 4}, "as many points behind as are given; at least as many as `finalists` go on"
    loss = lambda lr, rounds: {0.01: 30, 0.02: 21, 0.04: 20, 0.08: 24, 0.16: 29}[lr]  # noqa: E731
    found, ran = searched(loss, better="lower", **race)
    assert (found["setting"], ran[20]) == ({"run": {"lr": 0.04}}, 3), "of losses, lower ones are better"


def test_a_race_is_decided_by_late_accuracies_and_runs_every_stage_on_all_tuning_seeds():
    ran = Counter()

    def run(chosen, seed, name):
        rounds, lr = chosen["run"]["rounds"], chosen["run"]["lr"]
        ran[rounds, seed] += 1
        return {"final": 50 + lr, "late": 50 - lr + seed}

    tune = {"axes": {"run.lr": RATES}, "seeds": [3, 4, 5], "race": [10, 20, 80], "finalists": 1, "growth": 0}
    found = tuning.choose({"run": {"rounds": 80}, "tune": tune}, run)
    assert found["setting"] == {"run": {"lr": 0.01}}
    assert found["tried"][0]["score"] == pytest.approx(50 - 0.01 + 4)
    assert ran == {(rounds, seed): count for rounds, count in ((10, 5), (20, 5), (80, 3)) for seed in (3, 4, 5)}


def test_the_finals_grow_at_their_slow_end_until_the_slowest_loses():
    late = lambda lr, rounds: 50 + 4 * math.log2(lr / 0.01) if rounds < 80 else 60 - 3 * abs(math.log2(lr / 0.02))  # noqa: E731
    found, ran = searched(late, race=[10, 20, 80], finalists=1, behind=100)
    assert found["setting"] == {"run": {"lr": 0.02}}
    assert ran[80] == 5, "the fastest three of five stood in the finals; 0.02 joined, won, and 0.01 lost"


def test_a_setting_that_diverges_leaves():
    found, ran = searched(lambda lr, rounds: None if lr > 0.1 else 50 + lr, race=[10, 80], finalists=1, behind=100)
    assert found["setting"] == {"run": {"lr": 0.08}}
    assert ran == {10: 5, 80: 4}
    found, ran = searched(lambda lr, rounds: None, race=[10, 80])
    assert found["setting"] == {"run": {"lr": 0.01}}
    assert ran == {10: 5, 80: 1}, "where all diverge, the first alone is run in full"


def test_a_longer_run_goes_on_from_the_checkpoint_of_a_shorter_one_and_ends_as_one_without(tmp_path, monkeypatch):
    places = set()

    def watched(method, fed, **settings):
        places.add(settings["checkpoint_dir"])
        return fc.simulate(method, fed, **settings)

    monkeypatch.setattr(training, "run", watched)
    with_folder = cells.run_cell(SPEC, [0], file=tmp_path / "a.json", workshop=tmp_path / "work")
    assert len(places) == 3, "two settings and the reported run: a setting keeps its folder through the stages"
    without = cells.run_cell(SPEC, [0])
    assert with_folder.tuned["tried"] == without.tuned["tried"]
    assert with_folder.runs[0]["late"] == without.runs[0]["late"]


def test_a_race_that_is_killed_ends_as_one_that_was_not(tmp_path, monkeypatch):
    """The first setting's checkpoint is by then further than the stage that asks for it again."""
    ran, simulate, whole = [], training.simulate, cells.run_cell(SPEC, [0])

    def killed(spec, *more):
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(spec["run"]["rounds"])
        return simulate(spec, *more)

    place = {"file": tmp_path / "cell.json", "workshop": tmp_path / "work"}
    monkeypatch.setattr(provenance, "code", lambda spec: "the same")  # `killed` is no other version of the study
    with monkeypatch.context() as patch:
        patch.setitem(studies.STUDIES, "simulate", killed)
        with pytest.raises(KeyboardInterrupt):
            cells.run_cell(SPEC, [0], **place)
    resumed = cells.run_cell(SPEC, [0], **place)
    assert resumed.tuned["tried"] == whole.tuned["tried"]
    assert resumed.runs[0]["late"] == whole.runs[0]["late"]
    assert ran == [2, 2, 4]


def test_each_reporting_seed_has_a_search_on_seeds_of_its_own(tmp_path):
    spec = {**SPEC, "tune": {**SPEC["tune"], "each": True}}
    file = tmp_path / "cell.json"
    result = reproduce.run_cell(spec, [2], file=file)
    assert result.tuned is None
    (search,) = result.searches
    own = {**SPEC, "tune": {**SPEC["tune"], "seeds": [1020]}}
    assert search["tried"] == reproduce.run_cell(own, [2]).tuned["tried"]
    chosen = tuning.merged(spec, search["setting"])
    assert result.runs[2]["late"] == training.simulate(chosen, 2, None, None)["late"]
    other, again = reproduce.run_cell(spec, [2, 0], file=file).searches
    assert again["tried"] == search["tried"] != other["tried"]
    assert estimate.rounds_left(spec, cells.Result(spec), [0, 1]) == 2 * (8 + 2 * 4 + 4)


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ({"race": [4]}, "race.*stages"),
        ({"race": [2, 4], "rounds": 3}, "race replaces rounds"),
        ({"each": 1}, "each"),
    ],
)
def test_a_wrong_race_is_explained_before_it_is_run(tune, words):
    with pytest.raises(ValueError, match=words):
        specification.check({**SPEC, "tune": {"axes": {"run.lr": [0.1, 0.2]}, **tune}})
