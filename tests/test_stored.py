"""Chapters read stored results: what is there is told with its spread, what is missing is called so."""

from __future__ import annotations

import json
import math

import pytest

from fedcore import plots
from fedcore.experiments import Cell, Stored, Table, cells, overview, show, stored
from fedcore.experiments import table as definitions
from fedcore.experiments.batch import Place

FINALS = {  # (row, column): by seed; None: diverged
    ("ours", "a"): [50.0, 60.0, 70.0],
    ("first", "a"): [45.0, 54.9, 65.1],
    ("second", "a"): [10.0, 90.0, 40.0],
    ("ours", "b"): [50.0, None, 52.0],
    ("first", "b"): [70.0, 71.0],
}
PRINTED = {("ours", "a"): 95.0, ("first", "a"): 90.0, ("second", "a"): 93.5}
KEYS = [(row, column) for column in ("a", "b") for row in ("ours", "first", "second")]


def spec(key):
    run = {"rounds": 2, "local_epochs": 1, "batch_size": 10, "lr": 0.1, "cohort": 0.5}
    federation = {"source": "digits", "clients": 4, "model": "thesis_mlp"}
    return {"study": "simulate", "method": list(key), "federation": federation, "run": run}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of which one column is complete, and the other is not."""
    listed = [Cell(" ".join(key), spec(key), *key, PRINTED.get(key)) for key in KEYS]
    whole = Table("whole", "", "S004", lambda profile: listed, {"quick": "tiny"})
    monkeypatch.setattr(
        definitions, "_added", [whole, Table("drawn", "", "S004", whole.cells, {"quick": "tiny"}, drawn_from="whole")]
    )
    place = Place(tmp_path, "quick", "whole")
    place.folder.mkdir(parents=True)
    for cell in listed:
        runs = {}
        for seed, final in enumerate(FINALS.get((cell.row, cell.column), [])):
            history = [[0, 10.0], [1, 20.0 + seed], [2, final]][: 3 if final is not None else 2]
            provenance = {"device": "a processor", "version": "0", "commit": "abc", "seconds": 2.0}
            runs[seed] = {"id": cells.identity(cell.spec, seed), "final": final, "history": history, **provenance}
        if runs:
            cells._store(place.file(cell), cells.Result(cell.spec, runs))
    return Stored("whole", "quick", range(3), tmp_path)


def test_a_cell_is_told_with_its_spread_and_with_what_it_lacks(table):
    assert show.words(table, ("ours", "a")) == "60.0 ± 10.0"
    assert show.words(table, ("ours", "b")) == "51.0 ± 1.4, 1 diverged"
    assert show.words(table, ("first", "b")) == "70.5 ± 0.7 (n=2)"
    assert show.words(table, ("second", "b")) == "–"


def test_a_table_has_the_source_beside_ours_and_names_what_stands_in(table):
    text = " ".join(show.beside(table, "Whole").text.split())
    assert "ours 95.00 | 60.0 ± 10.0 – | 51.0 ± 1.4, 1 diverged first 90.00 | 55.0 ± 10.1 – | 70.5 ± 0.7 (n=2)" in text
    assert "Stand-ins for the source's data: digits, thesis mlp. 1 of 6 cells are not computed yet" in text
    by_row = " ".join(show.beside(table, "Whole", "row").text.split())
    assert "b – | 51.0 ± 1.4, 1 diverged – | 70.5 ± 0.7 (n=2) – | –" in by_row


def test_a_lead_is_paired_by_seed_and_taken_from_the_best_rival(table):
    shown = show.leads([("here", table, ["a", "b"], "ours", ("first", "second"))], "Leads")
    # the differences from `first` are 5.0, 5.1, 4.9; unpaired, seeds differ by ten
    assert "first +5.0 ± 0.2" in " ".join(shown.text.split())
    assert "higher second +1.50" in " ".join(shown.text.split())  # the source's best rival is another one
    assert overview.MISSING in shown.text  # column b lacks a rival, and is not counted
    counted = (
        "here: the highest mean in 1 of 1 columns; its lead over the best rival is told apart from 0 in 1, its lag"
    )
    assert counted in shown.text
    assert "<table" in shown.html
    assert "<table" not in show.leads([("here", table, ["a"], "ours", ("first", "second"))], None).html


def test_a_step_says_whether_it_can_be_told_and_what_the_source_prints(table):
    items = [("Figure 1", "up", table, ("first", "a"), ("ours", "a")), ("Figure 1", "far", table, KEYS[0], KEYS[5])]
    text = " ".join(show.steps(items, "Steps").text.split())
    assert "+5.0 ± 0.2 higher +5.00" in text
    assert "1 of 1 steps that are computed are told apart from zero: Figure 1, up: +5.0 ± 0.2." in text


@pytest.mark.parametrize(
    ("gap", "half", "words"),
    [(1.0, 0.5, "higher"), (-1.0, 0.5, "lower"), (0.0, 0.0, "not told apart"), (1.0, math.nan, "too few seeds")],
)
def test_an_interval_is_put_into_words(gap, half, words):
    assert overview.sign(gap, half) == words


def test_curves_end_where_the_shortest_seed_ends(table):
    t, values = table.curve(("ours", "b"))  # seed 1 diverged after its second record
    assert t.tolist() == [0, 1]
    assert values.tolist() == [[10, 20], [10, 21], [10, 22]]
    assert len(table.curve(("second", "b"))[0]) == 0


def test_a_sweep_is_drawn_with_its_gaps_and_says_when_it_is_empty(table):
    _, axes = plots.figure(ncols=2)
    show.sweep(table, axes[0], {"ours": [("ours", "a"), ("second", "b")]}, [0, 1], xlabel="x")
    (line,) = axes[0].lines
    assert line.get_ydata()[0] == 60
    assert math.isnan(line.get_ydata()[1])
    show.sweep(table, axes[1], {"second": [("second", "b")]}, [0], xlabel="x")
    assert [text.get_text() for text in axes[1].texts] == [overview.MISSING]


def test_a_figure_drawn_from_a_table_reads_the_tables_files(table, tmp_path):
    drawn = Stored("drawn", "quick", range(3), tmp_path)
    assert show.words(drawn, ("ours", "a")) == show.words(table, ("ours", "a"))


def test_a_damaged_or_absent_result_is_missing_and_nothing_breaks(table, tmp_path):
    file = next((tmp_path / "quick" / "whole").glob("ours-a.json"))
    file.write_text(file.read_text().replace("60.0", "99.0"))
    for read in (
        Stored("whole", "quick", range(3), tmp_path),
        Stored("whole", "quick", [0], tmp_path / "no"),
    ):
        assert show.words(read, ("ours", "a")) == "–"
        show.beside(read, "Table")
        show.leads([("here", read, read.columns, "ours", ("first", "second"))], "Leads")
        show.steps([("Figure 1", "up", read, ("first", "a"), ("ours", "a"))], "Steps")
        show.origin(read)


def test_the_origin_names_what_stands_in_how_much_is_there_and_where_it_was_computed(table):
    shown = show.origin(table)
    text = shown.text
    runs = sum(len(result.runs) for _, result in table.cells.values() if result)
    assert f"{2.0 * runs:.1f} s" in shown.html
    for told in ("4 of 6 computed", "digits, thesis mlp", "rounds: 2", "seeds: 0, 1, 2", "a processor", "commit abc"):
        assert told in text
    domains = json.loads(json.dumps(spec(("x", "y"))))
    domains["federation"]["source"] = ["digit_domains", {"train_on": ["plain", "patches"]}]
    assert show.stand_in(Cell("n", domains)) == "plain + patches digits, thesis mlp"


def test_runs_that_are_not_repeated_are_read_for_the_same_plan_only(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"FedAvg": [91.5, 0.1 + 0.2]}

    def asked(plan, again=False):
        return stored.computed("01_tuning", "quick", plan, compute, again=again, root=tmp_path)

    plan = {"rates": (0.1, 0.2), "seeds": [1000]}
    assert asked(plan) == ({"FedAvg": [91.5, 0.1 + 0.2]}, "computed with this page")
    assert not (tmp_path / "quick").exists(), "a page that is built stores nothing"
    asked(plan, again=True)
    assert len(calls) == 2
    result, origin = asked(plan)
    assert (result["FedAvg"][1], len(calls)) == (0.1 + 0.2, 2)
    assert origin.startswith("stored runs (")
    assert asked(plan | {"seeds": [1001]})[1] == "computed with this page"
    written = json.loads((tmp_path / "quick" / "01_tuning.json").read_text())
    assert {"code", "device", "torch", "commit", "seconds"} <= set(written["provenance"])


def test_runs_that_depend_on_others_are_read_by_their_arguments(tmp_path):
    calls = []

    def page(seeds=(0, 1), plan="small", again=False):
        runs = stored.Runs("08_runs", "quick", {"size": plan}, again=again, root=tmp_path)

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
    assert page(again=True)[2] == 8
    assert page(again=True)[2] == 12, "again means all of them"
    read, origin, count = page()
    assert (read, count) == (found, 12)
    assert origin.startswith("stored runs (")
    assert page(seeds=(0, 2))[1:] == (f"{origin}; others computed with this page", 13)
    assert page(plan="large")[1:] == ("computed with this page", 17)
    written = json.loads((tmp_path / "quick" / "08_runs.json").read_text())
    assert {"code", "device", "torch", "commit", "seconds"} <= set(written["provenance"])
    assert len(written["result"]) == 4
