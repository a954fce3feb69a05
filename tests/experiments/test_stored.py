"""What a chapter computes once and keeps: read for the same plan only, with its provenance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedbook.results import page_cache
from fedcore.storage import archives


def test_runs_that_depend_on_others_are_read_by_their_arguments(tmp_path):
    calls = []

    def page(seeds=(0, 1), plan="small", again=False):
        runs = page_cache.Runs("08_runs", "quick", {"size": plan}, again=again, root=tmp_path)

        @runs.keep
        def accuracy(name, lr, seed):
            calls.append((name, lr, seed))
            return (lr, seed)

        rate = max((0.1, 0.3), key=lambda lr: accuracy("FedAvg", lr, 100)[0])
        found = [accuracy("FedAvg", rate, s) for s in seeds for _ in "ab"]
        return found, runs.store(), len(calls)

    found = [[0.3, 0], [0.3, 0], [0.3, 1], [0.3, 1]]
    assert page() == (found, "computed with this page", 4), "every run once, and lists as a file gives them"
    assert not (tmp_path / "quick").exists()
    assert [page(again=True)[2] for _ in range(2)] == [8, 12], "again means all of them"
    read, origin, count = page()
    assert (read, count) == (found, 12)
    assert origin.startswith("stored runs (")
    assert page(seeds=(0, 2))[1:] == (f"{origin}; others computed with this page", 13)
    assert page(plan="large")[1:] == ("computed with this page", 17)
    written = json.loads((tmp_path / "quick" / "08_runs.json").read_text())
    assert {"code", "device", "torch", "commit", "seconds"} <= set(written["provenance"])
    assert len(written["result"]) == 4


def test_a_file_that_is_not_what_was_written_is_left_out_with_a_warning(tmp_path):
    def asked(again=False):
        runs = page_cache.Runs("01_tuning", "quick", {}, again=again, root=tmp_path)
        return runs.keep(lambda: [0.5])(), runs.store()

    asked(again=True)
    file = tmp_path / "quick" / "01_tuning.json"
    whole = file.read_bytes()
    assert asked()[1].startswith("stored runs")
    odd = archives.sealed({**archives.unsealed(file), "provenance": 3})
    for damaged in (whole.replace(b"0.5", b"0.6"), whole[:-9], b"[" * 100_000, odd):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match="01_tuning.json is damaged .* left out"):
            assert asked() == ([0.5], "computed with this page")
        with pytest.warns(UserWarning, match="damaged"):
            assert page_cache.outdated(tmp_path) == []
    file.write_bytes(whole)
    assert asked()[1].startswith("stored runs")


def test_the_projects_own_files_are_whole():
    files = sorted(Path(__file__).parents[2].glob("results/[qdp]*/*.json"))
    assert files
    assert all(page_cache._content(file) for file in files)
