"""Killed at random moments, changed, started again: a short instance of `tools/kill_trials.py`."""

import json

import pytest

from tools import kill_trials


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Runs of one process and few rounds."""
    drawn = kill_trials.drawn
    monkeypatch.setenv("FEDCORE_TIMEOUT", "10")  # which `trials` sets, and this takes back
    monkeypatch.setattr(
        kill_trials, "drawn", lambda rng: drawn(rng) | {"processes": 1, "regrouped": False, "rounds": 25}
    )


@pytest.mark.parametrize("kinds", ["run", "batch"])
def test_what_is_killed_at_random_ends_as_if_nobody_had_touched_it(kinds, tmp_path):
    total = kill_trials.trials(tmp_path, kills=3, kinds=kinds)
    assert total["failed"] == 0, (tmp_path / "log.jsonl").read_text()
    assert total["kills"] >= 3
    assert total["cases"] > 0
    assert kinds == "batch" or total["runs to the bit"] == total["cases"]
    # started again it goes on after the cases that it has
    assert kill_trials.trials(tmp_path, kills=3, kinds=kinds) == total
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == total["cases"]


def test_a_run_that_ends_otherwise_is_a_failed_case(tmp_path, monkeypatch):
    monkeypatch.setattr(kill_trials, "MOST", 1)
    monkeypatch.setattr(kill_trials, "same", lambda *_: False)
    total = kill_trials.trials(tmp_path, kills=1000, kinds="run")
    assert total["failed"] == 1
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert line["error"] == "Failed: the run ended otherwise than the same that nobody touched"
