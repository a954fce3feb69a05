"""Performance profiles of stored cells whose truth is known."""

import numpy as np
import pytest
from helpers import SPEC
from tables import store, table_of

from fedbook import Cell
from fedbook.results.batch import ResultFolder
from fedbook.verdicts import performance


@pytest.fixture
def ratios(tmp_path, monkeypatch):
    """Four settings in which "slow" takes twice the rounds of "fast" and "never" does not get there."""
    method = {"fast": "FedAvg", "slow": "FedAvg", "never": "FedAvg", "twice": "FedSAM"}
    cells = [
        Cell(f"{row} {column}", {**SPEC, "method": [method[row], {}], "name": f"{row} {column}"}, row, column)
        for column in "abcd"
        for row in method
    ]
    reached = {"fast": [[0, 10.0], [1, 80.0], [4, 90.0]], "slow": [[0, 10.0], [2, 88.0], [4, 90.0]],
               "never": [[0, 10.0], [4, 60.0]], "twice": [[0, 10.0], [1, 90.0], [4, 90.0]]}  # fmt: skip
    reached["fast"][1][1] = 88.0
    table = table_of(cells)
    monkeypatch.setattr(performance, "tables", lambda: {table.name: table})
    for cell in cells:
        history = reached[cell.row]
        runs = {seed: {"final": history[-1][1], "history": history} for seed in cell.reporting(None)}
        store(ResultFolder(tmp_path, "quick", table.name), cell, runs)
    return lambda measure: performance.ratios(tmp_path, "quick", measure)


def test_a_profile_counts_rounds_gradients_and_bytes_against_the_most_economical(ratios):
    rounds, gradients, sent = map(ratios, performance.MEASURES)
    assert set(rounds) == {"fast", "slow", "never", "twice"}
    for row, of_rounds, of_gradients in (("fast", 1, 1), ("slow", 2, 2), ("twice", 1, 2), ("never", np.inf, np.inf)):
        np.testing.assert_array_equal(rounds[row], [of_rounds] * 4)
        np.testing.assert_array_equal(gradients[row], [of_gradients] * 4)
        np.testing.assert_array_equal(sent[row], [of_rounds] * 4)
    with pytest.raises(ValueError, match="measure='seconds'; use one of rounds"):
        ratios("seconds")


def test_a_run_that_diverges_solves_nothing_although_it_was_fast():
    run = {"final": 90.0, "history": [[0, 10.0], [1, 95.0], [4, 90.0]]}
    assert performance._first(run, 88.0) == 1
    assert performance._first(run | {"final": None}, 88.0) == np.inf


def test_a_row_of_few_settings_has_no_profile(ratios, monkeypatch):
    least = performance.ratios
    monkeypatch.setattr(performance, "ratios", lambda *args: least(*args, least=5))
    assert ratios("rounds") == {}
