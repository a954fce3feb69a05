"""Batches of cells: what stands is not run again, what was stopped goes on, what failed is said."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import helpers as h
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import SPEC, environment
from tables import images, store, table_of

import fedcore as fc
from fedbook import Cell, reproduce, show, studies
from fedbook.documents import definitions
from fedbook.pictures import widgets
from fedbook.results import batch, cells, estimate
from fedbook.results.batch import ResultFolder, slug
from fedbook.results.cells import identity
from fedbook.results.notebooks import NotebookFailed
from fedbook.studies import tuning
from fedbook.studies.from_spec import build_federation, build_method
from fedbook.studies.tuning import merged
from fedbook.verdicts import judge, overview

ROOT = Path(__file__).resolve().parents[2]
TRIAL = """
from fedbook import Cell, Table, studies

SPEC = {spec!r}
LOG = {log!r}


def counted(spec, seed, folder, device):
    with open(LOG, "a") as f:
        f.write(f"{{spec['name']}} {{seed}}\\n")
    import time

    time.sleep(0.2)
    if spec["name"] == "bad":
        raise RuntimeError("this cell cannot work")
    return {{"final": float(seed), "mean": 0.0, "history": []}}


studies.STUDIES["counted"] = counted


def table(name, cells):
    return Table(name, "a trial", "S000", lambda profile: cells, {{"quick": "tiny", "paper": "tiny"}})


def of(method):
    return {{**SPEC, "method": [method, {{}}]}}


def count(name):
    return Cell(name, {{"study": "counted", "name": name}})


TABLES = [
    table("two", [Cell("FedAvg", of("FedAvg"), "FedAvg"), Cell("FedUp \u4e2d\u6587 \u00e9", of("FedUp"), "FedUp")]),
    table("long", [Cell("long", {{**SPEC, "run": {{**SPEC["run"], "rounds": 200, "eval_every": 10}}}})]),
    table("counted", [count(f"c{{k}}") for k in range(4)]),
    table("broken", [count("good"), count("bad"), count("last")]),
]
"""


@pytest.fixture
def trial(tmp_path):
    """A folder with a blank and a letter beyond ASCII in its name, the definitions, and the log of runs."""
    folder = tmp_path / "a folder é"
    folder.mkdir()
    log = folder / "log.txt"
    (folder / "trial.py").write_text(TRIAL.format(spec=SPEC, log=str(log)), encoding="utf-8")
    return folder


def command(folder: Path, *arguments: str) -> list[str]:
    given = ["--definitions", str(folder / "trial.py"), "--results", str(folder / "results")]
    return [sys.executable, "-m", "fedcore.reproduce", *arguments, *given]


@pytest.fixture
def here(trial, monkeypatch, capsys):
    """The command in this process: `here("list", ...)` gives its exit status, its output and its errors."""
    monkeypatch.setattr(definitions, "_added", [])
    monkeypatch.setattr(studies, "STUDIES", dict(studies.STUDIES))

    def run(*arguments):
        definitions._added.clear()
        return reproduce.main(command(trial, *arguments)[3:]), *capsys.readouterr()

    return run


# in processes of their own, forked where the package has been read


def begun(folder: Path, *arguments: str) -> None:
    """The command."""
    sys.exit(reproduce.main(command(folder, *arguments)[3:]))


def result(folder: Path, table: str, cell: str) -> dict:
    return json.loads((folder / "results" / "quick" / table / f"{slug(cell)}.json").read_text())


# --- cells --------------------------------------------------------------------------------------------------------


def test_a_cell_is_computed_once_and_a_further_seed_adds_to_it(tmp_path, monkeypatch):
    file, ran = tmp_path / "cell.json", []
    real = studies.STUDIES["simulate"]
    monkeypatch.setitem(studies.STUDIES, "simulate", lambda *a: ran.append(a[1]) or real(*a))
    first = reproduce.run_cell(SPEC, [0], file=file)
    both = reproduce.run_cell(SPEC, [0, 1], file=file)
    assert ran == [0, 1]
    assert both.runs[0] == first.runs[0]
    assert set(both.runs) == {0, 1}


def test_the_results_of_a_definition_that_is_changed_are_kept_beside_the_new_ones(tmp_path, monkeypatch, capsys):
    ran, place, edited = [], ResultFolder(tmp_path, "quick", "t"), {"lr": 0.1}

    def study(spec, seed, *_):
        ran.append((spec["lr"], seed))
        return {"final": spec["lr"] + seed, "mean": 0.0, "history": []}

    def run(*words):
        status = reproduce.main(["t", "--plain", "--results", str(tmp_path), *words])
        return status, *capsys.readouterr()

    def make(profile):
        return [Cell("c", {"study": "counted", **edited}, seeds=3)]

    monkeypatch.setitem(studies.STUDIES, "counted", study)
    monkeypatch.setattr(definitions, "_added", [(tmp_path, definitions.Table("t", "t", "own", make, {"quick": "c"}))])
    file = place.file(*make("quick"))
    assert run()[0] == 0
    first = json.loads(file.read_text())["runs"]
    edited["lr"] = 0.2
    with pytest.warns(UserWarning, match="holds results of another specification"):
        err = run("--seeds", "2")[2]
    kept = next(path for path in place.folder.glob("c.json.*"))
    assert kept.name == "c.json.replaced"
    assert f"before it is replaced, it is renamed to {kept.name}" in err
    assert json.loads(kept.read_text())["runs"] == first
    assert ran == [(0.1, 0), (0.1, 1), (0.1, 2), (0.2, 0), (0.2, 1)]
    del ran[:]

    twin = ResultFolder(tmp_path, "quick", "twin")
    batch.take_over(twin, make("quick"))
    assert reproduce.load(twin.file(*make("quick")), make("quick")[0].spec).finals() == [0.2, 1.2]
    edited["lr"] = 0.1
    kept.replace(file)  # put back by hand, its results stand
    assert "0 cells run, 1 stood already" in run()[1]
    assert ran == []


def test_a_result_of_a_data_pack_that_was_replaced_does_not_stand(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), np.arange(60) % 3
    pack = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y}
    spec = SPEC | {"federation": {"source": "mine", "clients": 5, "model": "logistic"}}
    np.savez(tmp_path / "mine.npz", **pack)
    reproduce.run_cell(spec, [0], file=tmp_path / "cell.json")
    assert reproduce.load(tmp_path / "cell.json", spec).runs
    np.savez(tmp_path / "mine.npz", **pack | {"train_labels": y[::-1]})
    assert not reproduce.load(tmp_path / "cell.json", spec).runs
    with pytest.warns(UserWarning, match="another specification or data pack"):
        reproduce.run_cell(spec, [3], file=tmp_path / "cell.json")
    (tmp_path / "cell.json.replaced").replace(tmp_path / "cell.json")
    np.savez(tmp_path / "mine.npz", **pack)
    assert set(reproduce.load(tmp_path / "cell.json", spec).runs) == {0}, "those of the other pack were kept"
    (tmp_path / "mine.npz").unlink()  # results without the data, as on a laptop
    assert reproduce.load(tmp_path / "cell.json", spec).runs


def test_a_link_in_the_place_of_a_lock_keeps_its_target(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".cell.lock").symlink_to(target)
    with pytest.raises(OSError, match=r"cell\.lock"):
        reproduce.run_cell(SPEC, [0], file=tmp_path / "cell.json")
    assert target.read_text() == "kept"


def test_the_order_of_keys_does_not_make_another_cell():
    assert identity(dict(reversed(SPEC.items())), 0) == identity(SPEC, 0)
    assert identity(SPEC, 0) != identity(SPEC, 1)


def test_a_result_says_where_it_came_from(tmp_path):
    run = reproduce.run_cell(SPEC, [0], file=tmp_path / "cell.json").runs[0]
    assert {"device", "threads", "torch", "python", "version", "commit", "seconds"} <= set(run)
    assert [t for t, _ in run["history"]] == [0, 2, 4]
    assert run["history"][-1][1] == pytest.approx(run["final"], abs=1e-4)


def test_a_setting_that_diverges_is_never_chosen_and_a_run_that_diverges_is_a_result():
    wild = {"run": {"lr": 1e38, "rounds": 3}}
    spec = {**SPEC, "tune": {"grid": [wild, {"run": {"lr": 0.1}}]}}
    assert reproduce.run_cell(spec, [0]).tuned["setting"] == {"run": {"lr": 0.1}}
    run = reproduce.run_cell(merged(SPEC, wild), [0]).runs[0]
    assert run["final"] is None
    assert run["diverged"] >= 0


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_a_damaged_result_is_reported_and_run_again_never_read(damage, tmp_path):
    file = tmp_path / "cell.json"
    good = reproduce.run_cell(SPEC, [0], file=file).runs[0]["final"]
    text = file.read_text()
    texts = {"cut": text[:-20], "changed": text.replace(f'"final":{good}', '"final":99.5'), "empty": "", "other": "[1]"}
    file.write_text(texts[damage])
    with pytest.raises(reproduce.CorruptResult, match="damaged"):
        reproduce.load(file, SPEC)
    for kept in ("cell.json.damaged", "cell.json.damaged.2"):
        broken = file.read_bytes()
        with pytest.warns(UserWarning, match=f"run again.* is renamed to {kept}$"):
            again = reproduce.run_cell(SPEC, [0], file=file)
        assert again.runs[0]["final"] == good
        assert reproduce.load(file, SPEC).runs[0]["final"] == good
        assert (tmp_path / kept).read_bytes() == broken, "seeds may be saved from it by hand"
        file.write_text("again")


def test_a_result_that_cannot_be_read_is_left_as_it_is_and_nothing_takes_its_place(tmp_path, monkeypatch, capsys):
    cells_here = [Cell("bad", SPEC, seeds=1), Cell("good", merged(SPEC, {"run": {"lr": 0.2}}), seeds=1)]
    place = ResultFolder(tmp_path, "quick", "t")
    listed = table_of(cells_here)
    monkeypatch.setattr(definitions, "_added", [(tmp_path, listed)])
    file = place.file(cells_here[0])
    reproduce.run_cell(SPEC, [0], file=file)
    before, read = file.read_bytes(), Path.read_bytes

    def refused(path):
        if path == file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    ran, real = [], studies.STUDIES["simulate"]
    monkeypatch.setitem(studies.STUDIES, "simulate", lambda *a: ran.append(a[0]["run"]["lr"]) or real(*a))
    with pytest.raises(OSError, match=r"bad\.json cannot be read .* left as it is: make it a file that you may"):
        reproduce.run_cell(SPEC, [0], file=file)
    with warnings.catch_warnings(action="error"):
        assert reproduce.main(["t", "--plain", "--results", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "FAILED t: bad" in said.err
    assert "1 cells run, 0 stood already, 1 failed" in said.out
    assert ran == [0.2]
    assert [path.name for path in place.folder.glob("[!.]*.json*")] == ["bad.json", "good.json"]
    for words in (["list"], ["t", "--confirm"]):
        reproduce.main([*words, "--results", str(tmp_path)])
        assert "bad.json cannot be read" in capsys.readouterr().err
    assert overview.everything(tmp_path)[1][0].count("bad.json cannot be read")
    monkeypatch.undo()
    assert file.read_bytes() == before


def test_a_partition_without_arguments_may_be_its_name_alone():
    bare, pair = (merged(SPEC, {"federation": {"partition": given}}) for given in ("IID", ["IID", {}]))
    assert reproduce.run_cell(bare, [0]).finals() == reproduce.run_cell(pair, [0]).finals()


# --- batches ------------------------------------------------------------------------------------------------------


def test_two_batches_on_one_folder_run_no_cell_twice(trial):
    both = [h.SERVER.Process(target=begun, args=(trial, "counted", "--plain", "--seeds", "2")) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    runs = (trial / "log.txt").read_text().splitlines()
    assert sorted(runs) == [f"c{k} {seed}" for k in range(4) for seed in range(2)]
    for k in range(4):
        assert reproduce.load(
            trial / "results" / "quick" / "counted" / f"c{k}.json", {"study": "counted", "name": f"c{k}"}
        ).runs


def test_list_names_the_data_that_a_table_still_needs_and_that_are_not_here(tmp_path, monkeypatch, capsys):
    fed = {"clients": 2, "model": "logistic"}
    needs = [Cell(name, merged(SPEC, {"federation": {**fed, "source": name}}), name, "c", seeds=1)
             for name in ("digits", "cifar100", "emnist-letters", "femnist", "tiny-imagenet32")]  # fmt: skip
    monkeypatch.setattr(definitions, "_added", [(tmp_path, table_of(needs))])
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    (tmp_path / "femnist" / "train").mkdir(parents=True)  # as LEAF leaves it
    (tmp_path / "femnist" / "train" / "all_data_0.json").touch()
    (tmp_path / "torchvision" / "cifar-100-python").mkdir(parents=True)
    reproduce.main(["list", "--results", str(tmp_path / "results")])
    assert f"    data not in {tmp_path}: emnist-letters, tiny-imagenet32; put them there" in capsys.readouterr().out
    for name in ("emnist-letters", "tiny-imagenet32"):
        (tmp_path / f"{name}.npz").touch()
    reproduce.main(["list", "--results", str(tmp_path / "results")])
    assert "emnist-letters; put" not in capsys.readouterr().out.rpartition("a title")[2]


def test_a_reader_that_ends_early_ends_the_command_quietly(trial):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment()}
    with subprocess.Popen(command(trial, "list"), **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(120), process.stderr.read()) == (141, "")


def test_a_failing_cell_is_reported_and_the_others_go_on(trial, here):
    status, out, err = here("broken", "--plain", "--seeds", "1")
    assert status == 1
    assert "FAILED broken: bad" in err
    assert "this cell cannot work" in err
    assert "2 cells run, 0 stood already, 1 failed" in out
    assert result(trial, "broken", "last")["runs"]["0"]["final"] == 0.0


def test_a_failing_notebook_is_named_with_its_error(trial):
    place = ResultFolder(trial / "results", "quick", "broken")
    cell = Cell("bad", {**SPEC, "method": ["FedAvg", {"server_momentum": 7}]})
    with pytest.raises(NotebookFailed, match=r"cell \[3\]: ValueError: server_momentum=7 is out of range"):
        batch.one(place, cell, [0])
    assert place.notebook(cell).exists()


def test_a_table_runs_end_to_end_as_notebooks_and_a_dead_worker_costs_its_running_cells_only(trial, here):
    scheduler_file = trial / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_"]
    quiet = {"cwd": trial, "env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    where = ["--scheduler-file", str(scheduler_file)]
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen([*dask[:2], dask[2] + "scheduler", *where, *options], **quiet)
    start = [*dask[:2], dask[2] + "worker", *where, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    workers = [subprocess.Popen(start, **quiet) for _ in range(2)]
    try:
        until = time.monotonic() + 180
        while not scheduler_file.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        address = json.loads(scheduler_file.read_text())["address"]
        with subprocess.Popen(
            command(trial, "two", "--seeds", "2", "--scheduler", address),
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            while not list(trial.glob("results/quick/two/notebooks/*.ipynb")):  # both have begun, or nearly
                assert time.monotonic() < until
                assert process.poll() is None
                time.sleep(0.02)
            workers[0].kill()
            out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
    assert "2 cells run, 0 stood already, 0 failed" in out
    notebooks = sorted((trial / "results" / "quick" / "two" / "notebooks").glob("*.ipynb"))
    assert [n.name for n in notebooks] == ["FedAvg.ipynb", "FedUp-中文-é.ipynb"]
    assert "image/svg+xml" in notebooks[0].read_text()
    assert "0 cells run, 2 stood already" in here("two", "--seeds", "2")[1]
    assert "2 of 2 cells done" in here("list", "--seeds", "2")[1]
    here("report", "--seeds", "2")
    tidy = (trial / "results" / "quick" / "two" / "table.csv").read_text()
    assert tidy.count("\n") == 3
    plain = reproduce.run_cell({**SPEC, "method": ["FedUp", {}]}, [0])
    assert result(trial, "two", "FedUp 中文 é")["runs"]["0"]["final"] == plain.runs[0]["final"]


MISTAKES = {
    "a definitions file with a syntax error": ("x = (", ["mine"], "line 1"),
    "one that imports what is not there": ("import nothere", ["mine"], "nothere"),
    "one whose tables are none": ("TABLES = [3]", ["mine"], "TABLES is [3]"),
    "a table whose cells cannot be made": (
        "[3].nope",
        ["mine"],
        "AttributeError: 'list' object has no attribute 'nope'",
    ),
    "a table that gives no cells": ("[7]", ["mine"], "gives 7; use Cell(name, specification)"),
    "two cells with one file": ("[Cell('lr 0.1', {}), Cell('lr-0.1', {})]", ["mine"], "'lr 0.1' and 'lr-0.1'"),
    "a name outside of the results": ("../../x", ["mine"], "a table is called '../../x'"),
    "a cell without a name": ("[Cell('?', {})]", ["mine"], "'?', which names no file"),
    "no cell of that name": ("[Cell('abc', {})]", ["mine", "--only", "abd"], "did you mean 'abc'?"),
    "a profile that the table does not have": ("[]", ["mine", "--profile", "desk"], "no profile desk; it has quick"),
    "a scheduler that is none": ("[Cell('abc', {})]", ["mine", "--scheduler", "nonsense"], "no scheduler answers"),
    "results that are a file": ("[Cell('abc', {})]", ["mine", "--results", __file__], "is no folder"),
    "a report on nothing": ("[]", ["report", "--results", "nowhere"], "the results folder nowhere does not exist"),
    "a file without definitions": ("x = 1", ["mine"], "TABLES is None"),
    "a name that is nearly right": ("[]", ["mien"], "did you mean mine"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_the_command_line_is_a_few_lines_and_status_2(mistake, tmp_path, monkeypatch, capsys):
    made, arguments, words = MISTAKES[mistake]
    name, cells = ("../../x", "[]") if made == "../../x" else ("mine", made)
    whole = made.startswith(("x =", "import", "TABLES"))
    text = f"TABLES = [Table({name!r}, 't', 'own', lambda profile: {cells}, {{'quick': 'c'}})]"
    (tmp_path / "mine.py").write_text(made if whole else f"from fedbook import Cell, Table\n{text}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(definitions, "_added", [])
    assert reproduce.main([*arguments, "--definitions", "mine.py"]) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert len(err.splitlines()) <= 6
    assert "Traceback" not in out + err


def test_a_name_in_full_chooses_that_cell_alone_and_a_part_of_it_all_that_contain_it(tmp_path, monkeypatch):
    cells = [Cell("ALA", SPEC), Cell("ALA, printed score", SPEC)]
    monkeypatch.setattr(definitions, "_added", [(tmp_path, table_of(cells))])
    run = []
    monkeypatch.setattr(reproduce, "_run", lambda chosen, *_: run.append([c.name for c in chosen]) or 0)
    for only in ("ALA", "AL"):
        assert reproduce.main(["t", "--only", only, "--results", str(tmp_path)]) == 0
    assert run == [["ALA"], ["ALA", "ALA, printed score"]]


def test_a_cell_that_another_table_has_run_is_taken_over_and_not_run_again(tmp_path, monkeypatch):
    ran, spec = [], {"study": "counted", "name": "same"}
    study = lambda spec, seed, *_: ran.append((spec["name"], seed)) or {"final": 1.0, "mean": 1.0, "history": []}  # noqa: E731
    monkeypatch.setitem(studies.STUDIES, "counted", study)
    other = {**spec, "name": "other"}
    made = {
        "first": [Cell("as it is called here", spec)], "broken": None,
        "second": [Cell("and there", spec, seeds=4), Cell("own", other)],
    }  # fmt: skip
    listed = [table_of(c, n) for n, c in made.items()]
    monkeypatch.setattr(definitions, "_added", [(tmp_path, one) for one in listed])
    places = {name: ResultFolder(tmp_path, "quick", name) for name in made}
    places["broken"].folder.mkdir(parents=True)  # its cells cannot be made: that is no fault of the others
    batch.run(places["first"], made["first"], notebooks=False, progress=False)
    done = batch.run(places["second"], made["second"], notebooks=False, progress=False)
    assert ran.count(("same", 0)) == 1
    assert sorted(ran) == sorted([("same", s) for s in range(4)] + [("other", s) for s in range(3)])
    assert set(done.done) == {"and there", "own"}
    damaged, lost = places["first"].file(made["first"][0]), places["second"].file(made["second"][0])
    damaged.write_text(damaged.read_text()[:-9])
    lost.unlink()
    batch.take_over(places["second"], made["second"])
    assert not lost.exists(), "a damaged file is nobody's result"


def test_debug_shows_the_whole_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        reproduce.main(["report", "--results", "nowhere", "--debug"])


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "10" * 20, "²"])
def test_a_number_out_of_range_is_refused_before_anything_is_made(number, capsys):
    with pytest.raises(SystemExit) as e:
        reproduce.main(["list", "--seeds", number])
    assert e.value.code == 2
    assert "whole number from 1 to 10000" in (err := capsys.readouterr().err)
    assert len(err.splitlines()) <= 6


def test_ctrl_c_ends_a_batch_in_five_seconds_and_says_what_is_kept(trial):
    """Also where the tests run in the background, whose processes inherit that Ctrl-C is ignored."""
    with subprocess.Popen(
        command(trial, "long"), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        until = time.monotonic() + 60
        while not list(trial.glob("results/quick/long/notebooks/*")):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert "finished runs are kept" in err
    assert "Traceback" not in err


def test_a_local_cluster_listens_on_no_interface_but_loopback():
    psutil = pytest.importorskip("psutil")
    known, seen = set(psutil.Process().net_connections()), []

    def look(cell, device):
        return [c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN" and c not in known]

    call = functools.partial(look, device=None)
    batch._on_cluster(call, [Cell("a", {})], lambda cell, result: seen.extend(result()), None, 1)
    assert set(seen) == {"127.0.0.1"}


def test_differences_add_up_over_the_rounds_of_one_run():
    run = {"rounds": 3, "cohort": 3, "lr": 0.1}
    federation = {**SPEC["federation"], "model": "thesis_mlp"}
    method = ["HeteroFL", {"capacities": {"1.0": 0.5, "0.25": 0.5}, "labels": "zero"}]
    spec = {"study": "gap", "what": "accumulated", "federation": federation, "method": method, "run": run}

    def found(**change):
        return reproduce.run_cell({**spec, **change}, [0]).runs[0]

    whole = found()
    assert [t for t, _ in whole["history"]] == [1, 2, 3]
    assert whole["history"][-1][1] == pytest.approx(whole["final"], abs=1e-4)
    assert found(run={**run, "rounds": 2})["final"] == pytest.approx(whole["history"][1][1], abs=1e-4)
    assert found(method=["HeteroFL", {"capacities": {"1.0": 1.0}, "labels": "zero"}])["final"] < 1e-5
    accuracy = reproduce.run_cell({**SPEC, "federation": federation, "method": method, "run": run}, [0]).runs[0][
        "final"
    ]
    assert found(what="accuracy")["final"] == accuracy
    median = found(what="median")
    assert 0 < median["final"] < whole["final"]


DOMAINS = {
    "study": "clients", "method": ["FedBN", {}], "clients": ["plain", "fonts"],
    "federation": {
        "source": ["digit_domains", {"train": 20, "test": 10, "size": 8, "train_on": ["plain", "fonts"]}],
        "partition": ["ByOwner", {}], "model": "digit_model_small", "normalise": "client", "validation": True,
    },
    "run": {"rounds": 2, "lr": 0.1, "batch_size": 8},
}  # fmt: skip


def test_one_run_of_clients_has_the_accuracies_that_a_run_for_each_client_has():
    run = reproduce.run_cell(DOMAINS, [0]).runs[0]
    alone = [reproduce.run_cell({**DOMAINS, "study": "personal", "client": i}, [0]).finals()[0] for i in range(2)]
    assert list(run["clients"].values()) == pytest.approx(alone, abs=1e-3)
    assert run["final"] == pytest.approx(np.mean(alone), abs=1e-4)
    assert run["images"] == 50  # five domains of 10, whoever trained


def of(capacity_method):
    run = {"rounds": 3, "local_epochs": 1, "batch_size": 20, "lr": 0.1, "eval_every": 3}
    method = [capacity_method, {"capacities": {"1.0": 0.5, "0.5": 0.5}}]
    federation = {"source": "digits", "clients": 10, "model": "thesis_mlp"}
    return {"study": "simulate", "method": method, "federation": federation, "run": run}


@pytest.mark.parametrize("spec", [DOMAINS, of("HeteroFL"), of("DepthFL")], ids=["domains", "HeteroFL", "DepthFL"])
def test_the_images_that_are_classified_correctly_are_those_of_the_reported_accuracy(spec):
    """DepthFL's model has heads; with a model for each client an image counts by the share that classifies it so."""
    found = reproduce.run_cell(spec, [0, 1])
    correct = found.correct([0, 1])
    parts = 2 if spec is DOMAINS else found.runs[0]["evaluations"]  # two models, or the evaluations late in the run
    assert np.allclose(correct * parts, np.rint(correct * parts))
    assert 100 * correct.mean(1) == pytest.approx(found.finals())


def test_settings_for_unseen_domains_are_chosen_on_images_of_the_seen_ones():
    assert reproduce.run_cell({**DOMAINS, "on": "validation"}, [0]).runs[0]["images"] == 8  # a fifth of 40
    for cell in reproduce.get("shift-figure6").cells("quick"):
        source = cell.spec["federation"]["source"][1]
        assert not set(source["train_on"]) & set(source["test_on"])
        assert cell.spec["federation"]["validation"]


# --- estimates ----------------------------------------------------------------------------------------------------


def finished(spec, seconds, device="a processor"):
    return spec, cells.Result(spec, {0: {"seconds": seconds, "device": device}})


def test_the_estimate_counts_the_grid_until_the_cell_is_tuned():
    spec = {**SPEC, "tune": {"grid": [{"run": {"lr": lr}} for lr in (0.1, 0.2, 0.3)], "seeds": [1000, 1001]}}
    tuned, run, rounds = {"setting": {}}, {"seconds": 1.0}, SPEC["run"]["rounds"]
    assert estimate.rounds_left(spec, cells.Result(spec), [0, 1, 2]) == (3 + 6) * rounds
    assert estimate.rounds_left(spec, cells.Result(spec, {1: run}, tuned), [0, 1, 2]) == 2 * rounds
    assert estimate.rounds_left(spec, cells.Result(spec, {0: run}, None), [0]) == 0
    assert estimate.rounds_left(SPEC, cells.Result(SPEC), [0, 1]) == 2 * rounds


def test_a_cell_of_no_rounds_is_left_until_it_is_stored():
    spec = merged(SPEC, {"run": {"rounds": 0}})
    assert estimate.rounds_left(spec, cells.Result(spec), [0, 1]) == 2
    assert estimate.rounds_left(spec, cells.Result(spec, {0: {}, 1: {}}), [0, 1]) == 0
    assert estimate.Pace([finished(spec, 3.0)]).seconds(spec) == pytest.approx(3.0)


def test_the_estimate_counts_what_a_search_really_runs():
    axes = {"run.lr": [0.1, 0.2], "method.mu": [0.1, 1.0, 10.0]}
    for stages in ({}, {"rounds": 1}, {"rounds": [1, 2]}, {"rounds": [1, 2], "finalists": 2, "seeds": [7, 8, 9]}):
        tune, ran = {"axes": axes, "seeds": [7, 8], "growth": 0, **stages}, []

        def run(spec, seed, name, ran=ran):
            ran.append(spec["run"]["rounds"])
            return {"final": 1.0}

        tuning.choose({**SPEC, "tune": tune}, run)
        assert tuning.planned(tune, SPEC["run"]["rounds"]) == sum(ran)


def test_the_pace_is_that_of_the_nearest_finished_cells_and_scales_with_rounds():
    other = merged(SPEC, {"federation": {"model": "mlp"}})
    up = {**SPEC, "method": ["FedUp", {}]}
    pace = estimate.Pace([finished(SPEC, 2.0), finished(up, 6.0), finished(SPEC, 99.0, device="NVIDIA H200")])
    twice = merged(SPEC, {"run": {"rounds": 8}})
    rounds = SPEC["run"]["rounds"]
    assert pace.seconds(twice) * 2 * rounds == pytest.approx(2.0 * 2)
    assert pace.seconds(up) * rounds == pytest.approx(6.0)
    assert pace.seconds({**SPEC, "method": ["MOON", {}]}) * rounds == pytest.approx(4.0)  # its siblings' mean
    assert pace.seconds(other) is None
    many = merged(SPEC, {"run": {"cohort": 40}})
    pace = estimate.Pace([finished(SPEC, 2.0), finished(merged(many, {"method": {}}), 20.0)])
    assert pace.seconds({**many, "method": ["MOON", {}]}) * rounds == pytest.approx(20.0)  # of its cohort


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["usual", "in the background"])
def test_a_batch_stops_after_its_hours_and_says_what_is_left(tmp_path, monkeypatch, capsys, request, handler):
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, handler)))
    monkeypatch.setattr(batch, "run", lambda *args, **settings: time.sleep(60))
    begin = time.monotonic()
    asked = ["fedup-table4", "--results", str(tmp_path), "--only", "digits, q=0.3 FedUp", "--hours", "0.0001"]
    assert reproduce.main(asked) == reproduce.INTERRUPTED
    assert time.monotonic() - begin < 30
    said = capsys.readouterr().err
    assert "stopped after 0.0001 hours; finished runs are kept" in said
    assert "left: fedup-table4 (digits, q=0.3 FedUp)" in said
    with pytest.raises(SystemExit):
        reproduce.main(["fedup-table4", "--hours", "-1"])
    assert signal.getsignal(signal.SIGINT) is handler


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_progress_counts_cells_divergences_and_answers():
    verdicts = [judge.BETTER, judge.OPEN, overview.BASE, overview.NOT_RUN]
    complete = [True, True, True, False]
    tidy = pd.DataFrame({"verdict": verdicts, "diverged": [0, 2, 0, 0], "complete": complete, "older": 0, "n": 3})
    text = " ".join(overview.progress({"fedup-table4": tidy.assign(source_gap=1.0)}).split())
    assert "fedup-table4 3 of 4 2 1 0 0 1" in text


def pictures_of(monkeypatch):
    """The matplotlib figures that `show.drawing` shows from now on."""
    seen, real = [], widgets.show
    monkeypatch.setattr(widgets, "show", lambda figure, *a, **b: seen.append(figure) or real(figure, *a, **b))
    return seen


@pytest.mark.parametrize(
    ("axis", "panels"), [("round", ["strong skew, 5%", "strong skew, 10%"]), ("share", ["strong skew"])]
)
def test_a_figure_is_drawn_from_its_cells(axis, panels, tmp_path, monkeypatch):
    drawn = [Cell(c, {**SPEC, "name": c}, "FedAvg", c) for c in ("strong skew, 5%", "strong skew, 10%")]
    figure, place = table_of(drawn, figure=True, axis=axis), ResultFolder(tmp_path, "quick", "t")
    assert show.drawing(figure, place, [0, 1]) is None
    for k, cell in enumerate(drawn):
        finals = {seed: k + seed + 1.0 for seed in (0, 1)}
        store(place, cell, {s: {"final": v, "history": [[0, 0.0], [4, v]]} for s, v in finals.items()})
    seen = pictures_of(monkeypatch)
    picture = show.drawing(figure, place, [0, 1])
    axes = [ax for ax in seen[0].axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in axes] == panels
    curves = [list(ax.lines[0].get_ydata()) for ax in axes]
    assert curves == ([[0.0, 1.5], [0.0, 2.5]] if axis == "round" else [[1.5, 2.5]])
    assert "FedAvg" in picture.alt


def test_a_figure_has_a_panel_by_client_where_runs_have_it_and_no_server_for_fedbn(tmp_path, monkeypatch):
    drawn = [Cell(row, {**SPEC, "name": row}, row, "five domains") for row in ("FedAvg", "FedBN")]
    figure, place = table_of(drawn, figure=True, axis="round and client"), ResultFolder(tmp_path, "quick", "t")
    seen = pictures_of(monkeypatch)
    for k, cell in enumerate(drawn):
        run = {"final": 50.0 + k, "history": [[4, 40.0], [8, 50.0 + k]]}
        store(place, cell, {0: {**run, "clients": {"plain": 60.0 + k, "fonts (made)": 40.0}, "server": 70.0}})
    assert "five domains FedBN = 51" in repr(show.drawing(figure, place, [0]))
    curves, clients = seen[0].axes
    assert [len(curves.lines), curves.get_title(loc="left")] == [2, "five domains"]
    assert [t.get_text() for t in clients.get_xticklabels()] == ["plain", "fonts", "server"]
    assert [[bar.get_height() for bar in bars] for bars in clients.containers] == [[60, 40, 70], [61, 40]]
    for cell in drawn:  # the runs of another study have no clients
        store(place, cell, {0: {"final": 50.0, "history": [[4, 40.0]]}})
    show.drawing(figure, place, [0])
    assert len(seen[1].axes) == 1


def test_a_figure_shows_the_cells_of_two_tables_beside_each_other(tmp_path, monkeypatch):
    high, low = (
        [Cell("c", {**SPEC, "name": skew}, "FedAvg", f"digits, {skew}")] for skew in ("strong skew", "weaker skew")
    )
    other = table_of(low, name="other", figure=True, axis="skew", drawn_from="low")
    monkeypatch.setattr(show, "get", {"other": other}.__getitem__)
    for value, skewed, name in ((60.0, high, "high"), (80.0, low, "low")):
        store(ResultFolder(tmp_path, "quick", name), skewed[0], {0: {"final": value, "history": []}})
    seen = pictures_of(monkeypatch)
    both = table_of(high, figure=True, axis="skew", beside="other")
    assert "digits FedAvg = 70" in repr(show.drawing(both, ResultFolder(tmp_path, "quick", "high"), [0]))
    assert [bar.get_height() for bar in seen[0].axes[0].patches] == [60, 80]


def test_densities_count_the_recorded_values_of_all_rounds_and_seeds(tmp_path, monkeypatch):
    cell = Cell("c", SPEC, "HeteroFL", "median difference")
    figure, place = table_of([cell], figure=True, axis="round and density"), ResultFolder(tmp_path, "quick", "t")
    store(place, cell, {s: {"final": 0.5, "history": [[1, 0.2 + s], [2, 0.4 + s]]} for s in (0, 1)})
    seen = pictures_of(monkeypatch)
    assert "median difference HeteroFL = 0.5" in repr(show.drawing(figure, place, [0, 1]))
    x = seen[0].axes[1].lines[0].get_xdata()
    assert (x[0], x[-1]) == pytest.approx((0.2, 1.4))


def test_conflicts_are_drawn_by_layer_and_distance_of_labels_and_by_neuron(tmp_path, monkeypatch):
    spec = merged(SPEC, {"run": {"rounds": 40}})
    drawn = [Cell(f"{k}", {**spec, "layer": k}, "IID, 40 rounds", f"layer {k}") for k in (1, 2)]
    place, seen = ResultFolder(tmp_path, "quick", "t"), pictures_of(monkeypatch)
    for k, cell in enumerate(drawn):
        run = {"activations": [[0.0] * 10, [1.0] * 10, [2.0] * 10], "apart": [1.0, 0.02, 0.98]}
        conflicts = [[1] * 5 + [0] * 5, [0] * 10, [1] * (5 + 2 * k) + [0] * (5 - 2 * k)]
        store(place, cell, {0: {"final": 0.25, "history": [], **run, "conflicts": conflicts}})
    said = repr(show.drawing(table_of(drawn, figure=True, axis="distance of labels"), place, [0]))
    assert "40 rounds layer 2 = 40" in said
    (ax,) = seen[0].axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.0", "1.0"]
    lines = [list(line.get_ydata()) for line in ax.lines if line.get_marker() != "None"]
    assert lines == [[0, 50], [0, 60]]
    said = repr(show.drawing(table_of(drawn, figure=True, axis="neuron"), place))
    assert "layer 2, neurons in conflict, of 10 = 4" in said
    maps = [np.asarray(ax.collections[0].get_array()).shape for ax in seen[1].axes if ax.get_label() != "<colorbar>"]
    assert maps == [(3, 10)] * 4


def test_the_numbers_of_a_figure_are_means_over_the_columns_that_all_its_lines_have(tmp_path):
    columns, rows = [f"column {k}" for k in range(7)], ("FedAvg", "FedUp")
    drawn = [Cell(c + r, {**SPEC, "name": c + r}, r, c) for c in columns for r in rows][:-1]
    place = ResultFolder(tmp_path, "quick", "t")
    for cell in drawn:
        final = 90.0 if cell.column == columns[-1] else 50.0  # the easy column has FedAvg alone
        store(place, cell, {0: {"final": final, "history": [[0, 0.0], [4, final]]}})
    said = repr(show.drawing(table_of(drawn, figure=True, axis="round"), place, [0]))
    assert "FedAvg, mean of 6 of 7 panels = 50" in said
    assert "FedUp, mean of 6 of 7 panels = 50" in said


TRAINED = ("fedup-table1", "fedup-table4", "fedup-table5", "fedup-figure2", "fedup-figure3", "scaffold-figure")
THESIS = ("feddse-table3.4", "feddse-table3.5", "fedgse-table4.3", "fedgse-table4.4")


def test_stand_ins_never_stand_beside_a_value_of_other_data():
    for name in (*TRAINED, "fedup-table2", *THESIS):
        for cell in reproduce.get(name).cells("quick"):
            assert cell.source is None
            assert not any(word in cell.name for word in ("CIFAR", "MNIST", "Shakespeare"))
    columns = {"fedup-table4": 5, "fedup-table2": 2, "scaffold-figure": 2, "fedup-table5": 0}
    columns |= {"feddse-table3.4": 2, "feddse-table3.5": 2, "fedgse-table4.3": 2}
    for name, count in columns.items():
        beside = {
            cell.column: cell.spec["federation"]["source"]
            for cell in reproduce.get(name).cells("desk") if cell.source is not None
        }  # fmt: skip
        assert set(beside.values()) <= {"cifar10", "cifar100", "femnist"}
        assert len(beside) == count


@pytest.mark.parametrize("profile", ["quick", "desk"])
@pytest.mark.parametrize("name", [*TRAINED, *THESIS, "shift-ablation", "fedup-further", "shift-personal"])
def test_every_method_of_a_column_is_searched_alike(name, profile):
    by_column = {}
    for cell in reproduce.get(name).cells(profile):
        if cell.spec["study"] == "cost":  # counted, not trained
            continue
        search = cell.spec["tune"]
        assert len(search["axes"]["run.lr"]) == 5
        assert all(len(values) == 3 for axis, values in search["axes"].items() if axis != "run.lr")
        assert cell.spec["federation"]["validation"]
        assert not set(range(10)) & set(search["seeds"])
        same = {key: search.get(key) for key in ("seeds", "rounds", "finalists", "growth")}
        by_column.setdefault(cell.column, set()).add(repr((search["axes"]["run.lr"], same, cell.seeds)))
    assert all(len(searches) == 1 for searches in by_column.values())


@pytest.mark.parametrize("profile", ["quick", "desk"])
@pytest.mark.parametrize("name", ["fedup-table4", "fedup-table5", "fedup-figure2", "fedup-figure3", "dfedgam-table1"])
def test_momentum_at_the_server_is_a_row_and_settings_are_chosen_on_validation_data(name, profile):
    cells = reproduce.get(name).cells(profile)
    rows = {column: {cell.row for cell in cells if cell.column == column} for column in {cell.column for cell in cells}}
    assert all({"FedAvg", "FedAvg + server momentum"} <= names for names in rows.values())
    assert all(cell.spec["federation"]["validation"] for cell in cells)


@pytest.mark.parametrize("profile", ["quick", "desk"])
@pytest.mark.parametrize("method", ["FedAvg", "SCAFFOLD"])
def test_with_equal_gradients_a_servers_clients_take_as_many_local_steps_as_gossiping_ones(method, profile):
    def steps(run, clients):
        cohort = run["cohort"]
        asked = clients if cohort is None else cohort if isinstance(cohort, int) else round(cohort * clients)
        return run["rounds"] * asked * run.get("local_steps", 1)

    cells = {(cell.row, cell.column): cell.spec for cell in reproduce.get("dfedgam-table1").cells(profile)}
    columns = {column for row, column in cells if row == f"{method}, equal gradients"}
    assert len(columns) == {"quick": 3, "desk": 1}[profile]  # in desk where each row has a search of its own
    for column in columns:
        gossip, equal, few = (cells[row, column] for row in ("DFedGAM", f"{method}, equal gradients", method))
        clients = gossip["federation"]["clients"]
        assert steps(equal["run"], clients) == steps(gossip["run"], clients) > steps(few["run"], clients)
        for spec in (equal, few):  # evaluated and searched in the same proportion, with a rate that falls as far
            run, first = spec["run"], np.atleast_1d(spec["tune"]["rounds"])[0]
            assert run["rounds"] / run["eval_every"] == 10
            assert first / run["rounds"] == {"quick": 0.4, "desk": 0.1}[profile]
            assert run.get("lr_decay", 1.0) ** run["rounds"] == pytest.approx(
                few["run"].get("lr_decay", 1.0) ** few["run"]["rounds"], rel=1e-3
            )


@pytest.mark.parametrize("profile", ["quick", "desk", "paper"])
def test_a_figure_that_is_drawn_from_a_table_asks_for_its_cells(profile):
    for table in reproduce.tables().values():
        if table.drawn_from:
            stored = {cell.name: identity(cell.spec) for cell in reproduce.get(table.drawn_from).cells(profile)}
            assert all(stored[cell.name] == identity(cell.spec) for cell in table.cells(profile))


def test_a_profile_that_a_table_does_not_have_has_no_cells():
    assert reproduce.get("fedup-figure2").cells("desk") == []


def test_cells_that_keep_single_images_are_judged_by_the_one_rule(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    spec = {"study": "simulate", "method": ["FedAvg", {}]}
    listed = [Cell(row, {**spec, "row": row}, row, "c") for row in ("FedAvg", "much", "same", "lost")]
    place, judged = ResultFolder(tmp_path, "quick", "t"), table_of(listed)
    base = draw.random((4, 400)) < 0.7
    bits = {"FedAvg": base, "much": base | (draw.random((4, 400)) < 0.6), "same": base ^ (draw.random((4, 400)) < 0.02)}
    lost = [{"images": 400, "classes": 10, "final": None}] * 4
    for cell in listed:
        runs = [images(right) for right in bits[cell.row]] if cell.row in bits else lost
        store(place, cell, {seed: {**run, "seconds": 1} for seed, run in enumerate(runs)})
    tidy = overview.frame(judged, place, range(4)).set_index("row")
    assert tidy["verdict"].to_dict() == {
        "FedAvg": "baseline", "much": "better", "same": "no significant difference", "lost": "worse",
    }  # fmt: skip
    assert tidy.loc["lost", "diverged"] == 4
    assert tidy.loc["lost", "gap"] == pytest.approx(10 - 100 * base.mean())
    assert 0 < tidy.loc["same", "detectable"] < 10

    monkeypatch.setattr(overview, "tables", lambda: {"t": judged})
    one = overview.listing(tmp_path).set_index("row")
    assert one.loc["lost", ["table", "profile", "value", "gap"]].tolist()[:3] == ["t", "quick", "diverged"]
    assert one.loc["lost", "gap"].endswith(": worse")
    assert one.loc["lost", "notes"].startswith("diverged at 3 of 3 seeds")
    assert one.loc["much", "notes"].endswith("quick/t/much.json")
    assert overview.compute(tmp_path).to_dict("records")[0] | {"hours": 0} == {
        "table": "t", "profile": "quick", "cells": 4, "runs": 16, "diverged": 4, "trials": 0, "trials diverged": 0,
        "cells at an end": 0, "hours": 0, "of which tuning": 0,
    }  # fmt: skip


def test_the_table_of_computing_counts_the_trials_of_a_search_that_diverged(tmp_path, monkeypatch):
    cell = Cell("x", {"study": "simulate", "method": ["FedAvg", {}]}, "x", "c")
    monkeypatch.setattr(overview, "tables", lambda: {"t": table_of([cell])})
    scores = {0.1: 60.0, 9.0: None}
    trials = [
        {"setting": {"run": {"lr": lr}}, "rounds": 5, "score": score, "values": [60.0, score]}
        for lr, score in scores.items()
    ]
    tuned = {"id": identity(cell.spec), "setting": trials[0]["setting"], "tried": trials, "edges": []}
    store(ResultFolder(tmp_path, "quick", "t"), cell, {0: {"final": 60.0}}, {**tuned, "seconds": 7200.0})
    (line,) = overview.compute(tmp_path).to_dict("records")
    assert (line["diverged"], line["trials"], line["trials diverged"]) == (0, 2, 1)
    assert (line["hours"], line["of which tuning"]) == (2.0, 2.0)


def test_the_images_of_the_thesis_are_cropped_in_paper_alone():
    trained = [
        (profile, cell.spec["federation"])
        for table in reproduce.tables().values()
        for profile in (set(table.captions) if table.document == "S004" else ())
        for cell in table.cells(profile)
        if cell.spec["study"] in ("simulate", "gap")
    ]
    for profile, federation in trained:
        crop = ["CropFlip", {"padding": 4, "flip": federation["source"] != "emnist-mnist"}]  # digits are not mirrored
        assert federation.get("augment") == (crop if profile == "paper" else None)
    fed = build_federation({"source": "digits", "clients": 2, "augment": crop, "model": "logistic"}, 0, None)
    assert fed.augment == fc.CropFlip(**crop[1])
    with pytest.raises(ValueError, match=r"augment 'Crop' is not known.*CropFlip"):
        build_federation({"source": "digits", "clients": 2, "augment": ["Crop", {}]}, 0, None)


def test_in_paper_every_row_of_fedgse_has_the_score_of_the_code_and_the_printed_one():
    seen = 0
    for table in reproduce.tables().values():
        rows = {cell.name: cell.spec for cell in table.cells("paper") if cell.spec.get("method", [""])[0] == "FedGSE"}
        code = {name: spec for name, spec in rows.items() if "scoring" not in spec["method"][1]}
        for name, spec in code.items():
            twin = {**spec, "method": ["FedGSE", {**spec["method"][1], "scoring": "printed"}]}
            assert identity(rows[f"{name}, printed score"]) == identity(twin)
        assert len(rows) == 2 * len(code)
        seen += len(rows)
    assert seen


RADII = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]  # section 4.1 of the study


def test_the_dfedgam_study_searches_its_six_radii_in_paper_and_nothing_else():
    for cell in reproduce.get("dfedgam-table1").cells("paper"):
        searched = cell.spec.get("tune", {}).get("axes", {})
        assert searched == ({"method.rho": RADII} if cell.row in ("FedSAM", "DFedSAM", "DFedGAM") else {})
        assert cell.spec["federation"]["validation"], "all rows train on the same images"


def test_a_start_from_public_images_sees_no_client():
    entry = {"source": "digits", "clients": 5, "model": "thesis_mlp", "public": 5, "validation": True}
    begin, skewed = {"lr": 0.1, "epochs": 40}, ["Shards", {"classes": 2}]
    one = build_federation({**entry, "start": begin}, 0, None)
    other = build_federation({**entry, "start": begin, "partition": skewed}, 0, None)
    plain = build_federation(entry, 0, None)
    assert torch.equal(one.x0, other.x0)
    assert torch.equal(one.x0, one.on_validation().x0)
    assert one.evaluate(one.x0)["accuracy"] > 0.5 > plain.evaluate(plain.x0)["accuracy"]


def test_the_control_starts_every_method_from_one_model():
    listed = reproduce.get("fedgse-public").cells("quick")
    assert len({json.dumps(cell.spec["federation"]) for cell in listed}) == 1
    assert listed[0].spec["run"]["rounds"] == 0  # the model as it is


def test_three_ways_to_public_data_differ_in_these_data_alone():
    cells = {(cell.column, cell.row): cell.spec for cell in reproduce.get("fedgse-ways").cells("quick")}
    for column in ("FedGSE-CSL", "FedGSE-SPL"):
        uploads = cells[column, "uploads"]
        assert "public" not in uploads["method"][1], "it takes the samples that the federation keeps from all clients"
        for row in ("printed digits", "generated"):
            arguments = cells[column, row]["method"][1]
            assert arguments["public"][1]["per_class"] == uploads["federation"]["public"]
            without = {key: value for key, value in arguments.items() if key != "public"}
            assert {**cells[column, row], "method": ["FedGSE", without]} == uploads


def test_public_data_in_a_specification_are_drawn_with_the_federations_seed():
    for name in ("printed_digits", "Gaussians"):
        drawn = []
        for seed in (3, 3, 4):
            fed = build_federation({"source": "digits", "clients": 4, "model": "thesis_mlp"}, seed, None)
            method = build_method(["FedGSE", {"capacities": {"0.5": 1.0}, "public": [name, {"per_class": 2}]}], fed, {})
            drawn.append(method.on(fed).public[0])
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])
        assert drawn[0].shape == (20, 1, 8, 8)


IN_NO_DOCUMENT = (
    "fedup-further", "fedup-clipped", "shift-personal", "scaffold-rounds", "dfedgam-local", "fedgse-ways", "known-mlp",
    "known-2nn", "known-niid", "known-cifar",
)  # fmt: skip


def test_every_definition_has_cells_captions_and_specifications_that_build():
    for table in reproduce.tables().values():
        assert set(table.captions) <= set(definitions.PROFILES)
        assert "paper" in table.captions or table.name in IN_NO_DOCUMENT
        for profile, caption in table.captions.items():
            listed = table.cells(profile)
            assert caption
            assert listed
            assert len({slug(cell.name) for cell in listed}) == len(listed)
            for cell in listed:
                studies.find(cell.spec)
                json.dumps(cell.spec, allow_nan=False)
            for column in re.findall(r"\[\[(.+?):", caption):
                assert any(cell.column.startswith(column) for cell in listed), f"{table.name} has no column {column}"


def test_a_caption_speaks_only_of_the_columns_that_are_shown():
    table = reproduce.Table("t", "T", "S000", list, {"quick": "In [0, 1]. [[A:A: all. ]][[B:B: two.]]\nTen trials"})
    assert table.caption("quick") == ("In [0, 1]. A: all. B: two.", "Ten trials")
    assert table.caption("quick", {"A, q=1"}) == ("In [0, 1]. A: all.", "Ten trials")
    assert table.caption("quick", ()) == ("In [0, 1].", "Ten trials")
