"""Rounds to a given accuracy: the first round that is there, searched for itself, compared as ratios."""

from __future__ import annotations

import numpy as np
import pytest
from tables import store, table_of

import fedcore as fc
from fedbook import Cell, show
from fedbook.documents.definitions import Claim
from fedbook.results import batch, cells
from fedbook.studies import speed
from fedbook.verdicts import claims, overview

SPEC = {
    "study": "rounds", "better": "lower", "target": 70.0, "method": ["FedAvg", {}],
    "federation": {"source": "digits", "clients": 10, "partition": ["Dirichlet", {"q": 0.3}], "model": "logistic",
                   "validation": True},
    "run": {"rounds": 12, "cohort": 5, "lr": 0.1, "local_steps": 5, "batch_size": 10, "eval_every": 6},
}  # fmt: skip


def run(**changed):
    return speed.rounds({**SPEC, **changed}, 0, None, None)


def test_a_run_ends_after_the_first_round_that_is_there_and_a_tie_is_there_whatever_the_rounding():
    fed = fc.federation("digits", 10, fc.Dirichlet(0.3), "logistic", validation=True, seed=0)
    at, values = fc.simulate(fc.FedAvg(), fed, seed=0, **{**SPEC["run"], "eval_every": 1}).curve()
    first = int(at[np.argmax(values >= 0.7)])
    found = run()
    assert 1 < first < 12
    assert (found["final"], found["reached"]) == (first, True)
    assert found["history"] == [[t, round(100 * float(values[t]), 4)] for t in range(first + 1)]
    images = round(found["history"][-1][1] * 359 / 100)
    assert run(target=100 * images / 359)["final"] == first


@pytest.mark.parametrize(("lr", "final"), [(0.1, 12), (1e38, None)])
def test_a_run_that_does_not_get_there_counts_all_its_rounds_and_one_that_diverges_has_no_number(lr, final):
    found = run(target=99.9, run={**SPEC["run"], "lr": lr})
    assert (found["final"], found["reached"]) == (final, False)


def test_the_search_takes_the_fastest_and_looks_at_validation_images():
    searched = {**SPEC, "tune": {"axes": {"run.lr": [0.001, 0.1]}, "seeds": [1000], "growth": 0}}
    tuned = cells.run_cell(searched).tuned
    slow, fast = (trial["score"] for trial in tuned["tried"])
    assert fast < slow
    assert tuned["setting"] == {"run": {"lr": 0.1}}
    on = speed.rounds({**SPEC, "on": "validation"}, 1000, None, None)
    assert fast == on["final"]
    assert on["history"] != speed.rounds(SPEC, 1000, None, None)["history"]


def test_rounds_are_compared_as_ratios_and_fewer_are_better(tmp_path, monkeypatch):
    listed = [Cell(row, {"study": "rounds", "better": "lower", "row": row}, row, "c") for row in "xy"]
    table, place = table_of(listed, unit="rounds", against="y"), batch.ResultFolder(tmp_path, "quick", "t")
    for module in (claims, show):
        monkeypatch.setattr(module, "get", lambda name: table)
    for cell, values in zip(listed, ([10.0, 20.0, 40.0], [20.0, 40.0, 80.0]), strict=True):
        store(place, cell, {s: {"final": v} for s, v in enumerate(values)})
    (found,) = claims.judged(Claim("a", "S001", "§1", "x", "", "t", {"quick": [("x", "y", "c")]}), tmp_path)
    assert found.verdict == "holds"
    assert claims.ours(found) == "better: 0.50 times the rounds, 0.49 to 0.51 (c)"
    assert show.forest([found], "accuracies only") is None
    tidy = overview.frame(table, place)
    assert tidy["gap"].iloc[0] == pytest.approx(np.log(0.5), abs=1e-6)
    assert "\u2713" in show.grid(table, tidy).loc["x", "c"]
    assert "logarithm" in show.differences(table, place).axes[0].get_xlabel()
