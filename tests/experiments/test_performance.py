"""Performance profiles of stored cells whose truth is known."""

import numpy as np
import pytest
from helpers import SPEC
from tables import store, table_of

from fedbook import Cell
from fedbook.results.batch import ResultFolder
from fedbook.verdicts import performance

ROWS = {  # the method, and the accuracies after so many rounds
    "fast": ("FedAvg", [[0, 10.0], [1, 88.0], [4, 90.0]]),
    "slow": ("FedAvg", [[0, 10.0], [2, 88.0], [4, 90.0]]),
    "never": ("FedAvg", [[0, 10.0], [4, 60.0]]),
    "lost": ("FedAvg", [[0, 10.0], [1, 95.0], [4, None]]),
    "twice": ("FedSAM", [[0, 10.0], [1, 90.0], [4, 90.0]]),
}


@pytest.fixture
def ratios(tmp_path, monkeypatch):
    """Four settings in which "slow" takes twice the rounds of "fast", "never" does not get there, "lost" diverges."""
    cells = [
        Cell(f"{row} {column}", {**SPEC, "method": [method, {}], "name": f"{row} {column}"}, row, column)
        for column in "abcd"
        for row, (method, _) in ROWS.items()
    ]
    table = table_of(cells)
    monkeypatch.setattr(performance, "tables", lambda: {table.name: table})
    for cell in cells:
        _, history = ROWS[cell.row]
        run = {"final": history[-1][1], "history": [point for point in history if point[1] is not None]}
        store(ResultFolder(tmp_path, "quick", table.name), cell, dict.fromkeys(cell.reporting(None), run))
    return lambda *asked: performance.ratios(tmp_path, "quick", *asked)


def test_a_profile_counts_rounds_gradients_and_bytes_against_the_most_economical(ratios):
    rounds, gradients, sent = map(ratios, performance.MEASURES)
    assert set(rounds) == set(ROWS)
    never = np.inf, np.inf
    for row, spent in {"fast": (1, 1), "slow": (2, 2), "twice": (1, 2), "never": never, "lost": never}.items():
        np.testing.assert_array_equal(rounds[row], [spent[0]] * 4)
        np.testing.assert_array_equal(gradients[row], [spent[1]] * 4)
        np.testing.assert_array_equal(sent[row], [spent[0]] * 4)
    assert ratios("rounds", 5) == {}, "a row of few settings has no profile"
    with pytest.raises(ValueError, match="measure='seconds'; use one of rounds"):
        ratios("seconds")
