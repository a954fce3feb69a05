"""Killed at random moments, changed, started again: a short instance of `tools/kill_trials.py`."""

import pytest

from tools import kill_trials


@pytest.mark.parametrize("kinds", ["run", "batch"])
def test_what_is_killed_at_random_ends_as_if_nobody_had_touched_it(kinds, tmp_path, monkeypatch):
    drawn, short = kill_trials.drawn, {"processes": 1, "regrouped": False, "rounds": 25}
    monkeypatch.setattr(kill_trials, "drawn", lambda rng: drawn(rng) | short)
    monkeypatch.setenv("FEDCORE_TIMEOUT", "10")  # which `trials` sets, and this takes back
    total = kill_trials.trials(tmp_path, kills=3, kinds=kinds)
    assert total["failed"] == 0, (tmp_path / "log.jsonl").read_text()
    assert total["kills"] >= 3
    assert kinds == "batch" or total["runs to the bit"] == total["cases"]
    # started again it goes on after the cases that it has
    assert kill_trials.trials(tmp_path, kills=3, kinds=kinds) == total
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == total["cases"]
