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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import distributed
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import SERVER, SPEC, environment
from tables import images, store, table_of

import fedcore as fc
from fedbook import Cell, reproduce, show, studies
from fedbook.documents import definitions
from fedbook.pictures import widgets
from fedbook.results import batch, cells, estimate, provenance
from fedbook.results.batch import ResultFolder, slug
from fedbook.results.cells import identity
from fedbook.studies import tuning
from fedbook.studies.from_spec import build_federation, build_method
from fedbook.studies.tuning import merged
from fedbook.verdicts import judge, overview

ROOT = Path(__file__).resolve().parents[2]


def begun(folder: Path) -> None:
    """A batch that writes down its runs; in a process of its own, forked where the package has been read."""

    def study(spec, seed, *_):
        with open(folder / "log.txt", "a") as f:
            f.write(f"{spec['name']} {seed}\n")
        time.sleep(0.2)
        return {"final": float(seed), "mean": 0.0, "history": []}

    studies.STUDIES["counted"] = study
    provenance.roots = lambda spec: ()  # without the code, whose reading takes seconds
    made = [Cell(f"c{k}", counted(f"c{k}")) for k in range(4)]
    outcome = batch.run(ResultFolder(folder, "quick", "t"), made, [0, 1], notebooks=False, progress=False)
    sys.exit(len(outcome.failed))


def process(*arguments: str, **options) -> subprocess.Popen:
    """The command in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment()}
    return subprocess.Popen([sys.executable, "-m", "fedcore.reproduce", *arguments], **pipes, **options)


@pytest.fixture
def place(tmp_path):
    """Where the results of the table t lie."""
    return ResultFolder(tmp_path, "quick", "t")


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """`listed(t=cells, ...)`: these are the user's tables."""

    def given(**tables):
        added = [(tmp_path, table_of(cells, name)) for name, cells in tables.items()]
        monkeypatch.setattr(definitions, "_added", added)

    return given


@pytest.fixture
def ran(monkeypatch):
    """The (name, seed) of each run of the study "counted"."""
    runs = []

    def study(spec, seed, folder, device):
        runs.append((spec["name"], seed))
        return {"final": 1.0, "mean": 1.0, "history": []}

    monkeypatch.setitem(studies.STUDIES, "counted", study)
    monkeypatch.setattr(provenance, "roots", lambda spec: ())  # without the code, whose reading takes seconds
    return runs


def counted(name):
    return {"study": "counted", "name": name}


# --- cells --------------------------------------------------------------------------------------------------------


def test_the_results_of_a_definition_that_is_changed_are_kept_beside_the_new_ones(place, ran):
    def run(name, seeds=3):
        return batch.run(place, [Cell("c", counted(name))], range(seeds), notebooks=False, progress=False)

    run("before")
    file, kept = place.folder / "c.json", place.folder / "c.json.replaced"
    first = json.loads(file.read_text())["runs"]
    with pytest.warns(UserWarning, match="holds results of another specification"):
        (said,) = run("after", 2).said
    assert "before it is replaced, it is renamed to c.json.replaced" in said
    assert json.loads(kept.read_text())["runs"] == first
    assert ran == [("before", 0), ("before", 1), ("before", 2), ("after", 0), ("after", 1)]
    kept.replace(file)
    assert run("before").stood == ["c"], "put back by hand, its results stand"


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
    (tmp_path / "mine.npz").unlink()  # results without the data, as on a laptop
    assert reproduce.load(tmp_path / "cell.json", spec).runs


def test_the_order_of_keys_does_not_make_another_cell():
    assert identity(dict(reversed(SPEC.items())), 0) == identity(SPEC, 0)
    assert identity(SPEC, 0) != identity(SPEC, 1)


def test_a_setting_that_diverges_is_never_chosen_and_a_run_that_diverges_is_a_result():
    wild = {"run": {"lr": 1e38, "rounds": 3}}
    spec = {**SPEC, "tune": {"grid": [wild, {"run": {"lr": 0.1}}]}}
    assert reproduce.run_cell(spec, [0]).tuned["setting"] == {"run": {"lr": 0.1}}
    run = reproduce.run_cell(merged(SPEC, wild), [0]).runs[0]
    assert run["final"] is None
    assert run["diverged"] >= 0


def test_a_damaged_result_is_reported_and_run_again_never_read(tmp_path):
    file = tmp_path / "cell.json"
    good = reproduce.run_cell(SPEC, [0], file=file).runs[0]["final"]
    text = file.read_text()
    cut, altered = text[:-20], text.replace(f'"final":{good}', '"final":99.5')
    for damaged, kept in ((cut, "cell.json.damaged"), (altered, "cell.json.damaged.2")):
        file.write_text(damaged)
        with pytest.raises(reproduce.CorruptResult, match="damaged"):
            reproduce.load(file, SPEC)
        with pytest.warns(UserWarning, match=f"run again.* is renamed to {kept}$"):
            again = reproduce.run_cell(SPEC, [0], file=file)
        assert again.runs[0]["final"] == good
        assert reproduce.load(file, SPEC).runs[0]["final"] == good
        assert (tmp_path / kept).read_text() == damaged, "seeds may be saved from it by hand"


def test_a_result_that_cannot_be_read_is_left_as_it_is_and_nothing_takes_its_place(place, listed, monkeypatch, capsys):
    made = [Cell("bad", SPEC, seeds=1), Cell("good", merged(SPEC, {"run": {"lr": 0.2}}), seeds=1)]
    listed(t=made)
    file = place.file(made[0])
    reproduce.run_cell(SPEC, [0], file=file)
    before, read = file.read_bytes(), Path.read_bytes

    def refused(path):
        if path == file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(OSError, match=r"bad\.json cannot be read .* left as it is: make it a file that you may"):
        reproduce.run_cell(SPEC, [0], file=file)
    with warnings.catch_warnings(action="error"):
        assert reproduce.main(["t", "--plain", "--results", str(place.root)]) == 1
    said = capsys.readouterr()
    assert "FAILED t: bad" in said.err
    assert "1 cells run, 0 stood already, 1 failed" in said.out
    assert [path.name for path in place.folder.glob("[!.]*.json*")] == ["bad.json", "good.json"]
    for words, status in ((["list"], 0), (["t", "--confirm"], 1)):  # 2 would mean that it ended there
        assert reproduce.main([*words, "--results", str(place.root)]) == status
        assert "bad.json cannot be read" in capsys.readouterr().err
    monkeypatch.undo()
    assert file.read_bytes() == before


def test_a_partition_without_arguments_may_be_its_name_alone():
    bare, pair = (merged(SPEC, {"federation": {"partition": given}}) for given in ("IID", ["IID", {}]))
    assert reproduce.run_cell(bare, [0]).finals() == reproduce.run_cell(pair, [0]).finals()


# --- batches ------------------------------------------------------------------------------------------------------


def test_two_batches_on_one_folder_run_no_cell_twice(tmp_path):
    both = [SERVER.Process(target=begun, args=(tmp_path,)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(120)
    assert [one.exitcode for one in both] == [0, 0]
    runs = (tmp_path / "log.txt").read_text().splitlines()
    assert sorted(runs) == [f"c{k} {seed}" for k in range(4) for seed in range(2)]


def test_list_names_the_data_that_a_table_still_needs_and_that_are_not_here(tmp_path, listed, monkeypatch, capsys):
    names = ("digits", "cifar100", "emnist-letters", "femnist", "tiny-imagenet32")
    listed(t=[Cell(name, merged(SPEC, {"federation": {"source": name}}), name, "c", seeds=1) for name in names])
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    (tmp_path / "femnist" / "train").mkdir(parents=True)  # as LEAF leaves it
    (tmp_path / "femnist" / "train" / "all_data_0.json").touch()
    (tmp_path / "torchvision" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "emnist-letters.npz").touch()
    reproduce.main(["list", "--results", str(tmp_path / "results")])
    assert f"    data not in {tmp_path}: tiny-imagenet32; put them there" in capsys.readouterr().out


def test_a_reader_that_ends_early_ends_the_command_quietly():
    with process("list") as listing:
        listing.stdout.readline()
        listing.stdout.close()
        assert (listing.wait(120), listing.stderr.read()) == (141, "")


def test_a_failing_notebook_runs_once_and_is_named_with_its_error(place, monkeypatch):
    cell, tried, plain = Cell("bad", merged(SPEC, {"method": {"server_momentum": 7}})), [], batch.execute
    monkeypatch.setattr(batch, "execute", lambda *given, **named: tried.append(1) or plain(*given, **named))
    ((name, notebook, error),) = batch.run(place, [cell], [0], workers=1, progress=False).failed
    assert "cell [3]: ValueError: server_momentum=7 is out of range" in error
    assert (name, Path(notebook)) == ("bad", place.notebook(cell))
    assert place.notebook(cell).exists()
    assert len(tried) == 1


def test_a_table_runs_as_notebooks_and_a_dead_worker_costs_its_running_cells_only(tmp_path, listed, capsys):
    up = Cell("FedUp 中文 é", {**SPEC, "method": ["FedUp", {}]}, "FedUp")
    listed(t=[Cell("FedAvg", SPEC, "FedAvg"), up])
    place, until = ResultFolder(tmp_path / "a folder é", "quick", "t"), time.monotonic() + 180
    asked = ["--seeds", "2", "--results", str(place.root)]

    def kill() -> None:
        while not list(place.folder.glob("notebooks/*.ipynb")):  # both have begun, or nearly
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)

    local = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with local as cluster, ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill)
        assert reproduce.main(["t", *asked, "--scheduler", cluster.scheduler_address]) == 0
        killed.result()
    assert "2 cells run, 0 stood already, 0 failed" in capsys.readouterr().out
    notebooks = sorted(place.folder.glob("notebooks/*.ipynb"))
    assert [n.name for n in notebooks] == ["FedAvg.ipynb", "FedUp-中文-é.ipynb"]
    assert "image/svg+xml" in notebooks[0].read_text()
    reproduce.main(["report", *asked])
    assert (place.folder / "table.csv").read_text().count("\n") == 3
    assert batch.standing(place, up).runs[0]["final"] == reproduce.run_cell(up.spec, [0]).runs[0]["final"]


MISTAKES = {
    "a definitions file with a syntax error": ("x = (", ["mine"], "line 1"),
    "one that imports what is not there": ("import nothere", ["mine"], "nothere"),
    "one whose tables are none": ("TABLES = [3]", ["mine"], "TABLES is [3]"),
    "a table whose cells cannot be made": ("[3].nope", ["mine"], "AttributeError: 'list' object has no attribute"),
    "a table that gives no cells": ("[7]", ["mine"], "gives 7; use Cell(name, specification)"),
    "two cells with one file": ("[Cell('lr 0.1', {}), Cell('lr-0.1', {})]", ["mine"], "'lr 0.1' and 'lr-0.1'"),
    "a name outside of the results": ("../../x", ["mine"], "a table is called '../../x'"),
    "a cell without a name": ("[Cell('?', {})]", ["mine"], "'?', which names no file"),
    "no cell of that name": ("[Cell('abc', {})]", ["mine", "--only", "abd"], "did you mean 'abc'?"),
    "a profile that the table does not have": ("[]", ["mine", "--profile", "desk"], "no profile desk; it has quick"),
    "a scheduler that is none": ("[Cell('abc', {})]", ["mine", "--scheduler", "nonsense"], "no scheduler answers"),
    "results that are a file": ("[Cell('abc', {})]", ["mine", "--results", __file__], "is no folder"),
    "a report on nothing": ("[]", ["report", "--results", "nowhere"], "the results folder nowhere does not exist"),
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


def test_a_name_in_full_chooses_that_cell_alone_and_a_part_of_it_all_that_contain_it(listed, monkeypatch):
    listed(t=[Cell("ALA", SPEC), Cell("ALA, printed score", SPEC)])
    run = []
    monkeypatch.setattr(reproduce, "_run", lambda chosen, *_: run.append([c.name for c in chosen]) or 0)
    for only in ("ALA", "AL"):
        assert reproduce.main(["t", "--only", only]) == 0
    assert run == [["ALA"], ["ALA", "ALA, printed score"]]


def test_a_cell_that_another_table_has_run_is_taken_over_and_not_run_again(tmp_path, listed, ran):
    here, there, own = Cell("here", counted("a")), Cell("there", counted("a"), seeds=4), Cell("own", counted("b"))
    listed(first=[here], broken=None, second=[there, own])
    first, broken, second = (ResultFolder(tmp_path, "quick", name) for name in ("first", "broken", "second"))
    broken.folder.mkdir(parents=True)  # its cells cannot be made: that is no fault of the others
    batch.run(first, [here], notebooks=False, progress=False)
    done = batch.run(second, [there, own], notebooks=False, progress=False)
    assert sorted(ran) == [*(("a", seed) for seed in range(4)), *(("b", seed) for seed in range(3))]
    assert set(done.done) == {"there", "own"}
    damaged, lost = first.file(here), second.file(there)
    damaged.write_text(damaged.read_text()[:-9])
    lost.unlink()
    batch.take_over(second, [there, own])
    assert not lost.exists(), "a damaged file is nobody's result"


def test_debug_shows_the_whole_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        reproduce.main(["report", "--results", "nowhere", "--debug"])


@pytest.mark.parametrize("number", ["0", "1.5", "10" * 20, "²"])
def test_a_number_out_of_range_is_refused_before_anything_is_made(number, capsys):
    with pytest.raises(SystemExit) as e:
        reproduce.main(["list", "--seeds", number])
    assert e.value.code == 2
    assert "whole number from 1 to 10000" in (err := capsys.readouterr().err)
    assert len(err.splitlines()) <= 6


def test_ctrl_c_ends_a_batch_in_five_seconds_and_says_what_is_kept(tmp_path):
    """Also where the tests run in the background, whose processes inherit that Ctrl-C is ignored."""
    until, asked = time.monotonic() + 60, ["fedup-table4", "--workers", "1", "--results", str(tmp_path)]
    listens = {"start_new_session": True, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with process(*asked, **listens) as running:
        while not list(tmp_path.glob("quick/fedup-table4/notebooks/*")):
            assert time.monotonic() < until
            assert running.poll() is None
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=5)
    assert running.returncode == 130
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
    trained = reproduce.run_cell({**spec, "study": "simulate"}, [0]).runs[0]
    assert found(what="accuracy")["final"] == trained["final"]
    assert 0 < found(what="median")["final"] < whole["final"]


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


DEPTHFL = {
    "study": "simulate", "method": ["DepthFL", {"capacities": {"1.0": 0.5, "0.5": 0.5}}],
    "federation": {"source": "digits", "clients": 10, "model": "thesis_mlp"},
    "run": {"rounds": 3, "local_epochs": 1, "batch_size": 20, "lr": 0.1, "eval_every": 3},
}  # fmt: skip


@pytest.mark.parametrize("spec", [DOMAINS, DEPTHFL], ids=["domains", "DepthFL"])
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


def test_the_estimate_counts_what_a_search_really_runs_until_the_cell_is_tuned():
    axes, rounds = {"run.lr": [0.1, 0.2], "method.mu": [0.1, 1.0, 10.0]}, SPEC["run"]["rounds"]
    staged = {"axes": axes, "rounds": [1, 2], "finalists": 2, "seeds": [7, 8, 9]}
    for tune in ({"grid": [{}, {}]}, {"axes": axes}, {"axes": axes, "rounds": 1}, staged):
        spec, ran = {**SPEC, "tune": {"seeds": [7, 8], "growth": 0, **tune}}, []
        tuning.choose(spec, lambda spec, seed, name, ran=ran: ran.append(spec["run"]["rounds"]) or {"final": 1.0})
        assert estimate.rounds_left(spec, cells.Result(spec), [0, 1, 2]) == sum(ran) + 3 * rounds
        tuned = cells.Result(spec, {1: {}}, {"setting": {}})
        assert estimate.rounds_left(spec, tuned, [0, 1, 2]) == 2 * rounds
        assert estimate.rounds_left(spec, tuned, [1]) == 0
    none = merged(SPEC, {"run": {"rounds": 0}})
    assert estimate.rounds_left(none, cells.Result(none), [0, 1]) == 2, "a run of no rounds starts and evaluates"


def test_the_pace_is_that_of_the_nearest_finished_cells_and_scales_with_rounds():
    up, moon = ({**SPEC, "method": [name, {}]} for name in ("FedUp", "MOON"))
    many, rounds = {"run": {"cohort": 40}}, SPEC["run"]["rounds"]
    gpu = finished(SPEC, 99.0, device="NVIDIA H200")
    pace = estimate.Pace([finished(SPEC, 2.0), finished(up, 6.0), finished(merged(up, many), 20.0), gpu])
    assert pace.seconds(merged(SPEC, {"run": {"rounds": 8}})) * rounds == pytest.approx(2.0)
    assert pace.seconds(up) * rounds == pytest.approx(6.0)
    assert pace.seconds(moon) * rounds == pytest.approx(4.0), "its siblings' mean"
    assert pace.seconds(merged(moon, many)) * rounds == pytest.approx(20.0), "of its cohort"
    assert pace.seconds(merged(SPEC, {"federation": {"model": "mlp"}})) is None


def test_a_batch_stops_after_its_hours_and_says_what_is_left(tmp_path, monkeypatch, capsys, request):
    """Also in the background, where Ctrl-C is ignored."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, usual))
    monkeypatch.setattr(batch, "run", lambda *args, **settings: time.sleep(60))
    begin = time.monotonic()
    asked = ["fedup-table4", "--results", str(tmp_path), "--only", "digits, q=0.3 FedUp", "--hours", "0.0001"]
    assert reproduce.main(asked) == reproduce.INTERRUPTED
    assert time.monotonic() - begin < 30
    said = capsys.readouterr().err
    assert "stopped after 0.0001 hours; finished runs are kept" in said
    assert "left: fedup-table4 (digits, q=0.3 FedUp)" in said
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with pytest.raises(SystemExit):
        reproduce.main(["fedup-table4", "--hours", "-1"])


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_progress_counts_cells_divergences_and_answers():
    verdicts = [judge.BETTER, judge.OPEN, overview.BASE, overview.NOT_RUN]
    complete = [True, True, True, False]
    tidy = pd.DataFrame({"verdict": verdicts, "diverged": [0, 2, 0, 0], "complete": complete, "older": 0, "n": 3})
    text = " ".join(overview.progress({"fedup-table4": tidy.assign(source_gap=1.0)}).split())
    assert "fedup-table4 3 of 4 2 1 0 0 1" in text


@pytest.fixture
def seen(monkeypatch):
    """The matplotlib figures that `show.drawing` shows."""
    figures, real = [], widgets.show
    monkeypatch.setattr(widgets, "show", lambda figure, *a, **b: figures.append(figure) or real(figure, *a, **b))
    return figures


@pytest.mark.parametrize(
    ("axis", "panels"), [("round", ["strong skew, 5%", "strong skew, 10%"]), ("share", ["strong skew"])]
)
def test_a_figure_is_drawn_from_its_cells(axis, panels, place, seen):
    drawn = [Cell(c, {**SPEC, "name": c}, "FedAvg", c) for c in ("strong skew, 5%", "strong skew, 10%")]
    figure = table_of(drawn, figure=True, axis=axis)
    assert show.drawing(figure, place, [0, 1]) is None
    for k, cell in enumerate(drawn):
        finals = {seed: k + seed + 1.0 for seed in (0, 1)}
        store(place, cell, {s: {"final": v, "history": [[0, 0.0], [4, v]]} for s, v in finals.items()})
    picture = show.drawing(figure, place, [0, 1])
    axes = [ax for ax in seen[0].axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in axes] == panels
    curves = [list(ax.lines[0].get_ydata()) for ax in axes]
    assert curves == ([[0.0, 1.5], [0.0, 2.5]] if axis == "round" else [[1.5, 2.5]])
    assert "FedAvg" in picture.alt


def test_a_figure_has_a_panel_by_client_where_runs_have_it_and_no_server_for_fedbn(place, seen):
    drawn = [Cell(row, {**SPEC, "name": row}, row, "five domains") for row in ("FedAvg", "FedBN")]
    figure = table_of(drawn, figure=True, axis="round and client")
    for k, cell in enumerate(drawn):
        run = {"final": 50.0 + k, "history": [[4, 40.0], [8, 50.0 + k]]}
        store(place, cell, {0: {**run, "clients": {"plain": 60.0 + k, "fonts (made)": 40.0}, "server": 70.0}})
    assert "five domains FedBN = 51" in repr(show.drawing(figure, place, [0]))
    curves, clients = seen[0].axes
    assert [len(curves.lines), curves.get_title(loc="left")] == [2, "five domains"]
    assert [t.get_text() for t in clients.get_xticklabels()] == ["plain", "fonts", "server"]
    assert [[bar.get_height() for bar in bars] for bars in clients.containers] == [[60, 40, 70], [61, 40]]


def test_a_figure_shows_the_cells_of_two_tables_beside_each_other(tmp_path, monkeypatch, seen):
    high, low = (
        [Cell("c", {**SPEC, "name": skew}, "FedAvg", f"digits, {skew}")] for skew in ("strong skew", "weaker skew")
    )
    other = table_of(low, name="other", figure=True, axis="skew", drawn_from="low")
    monkeypatch.setattr(show, "get", {"other": other}.__getitem__)
    for value, skewed, name in ((60.0, high, "high"), (80.0, low, "low")):
        store(ResultFolder(tmp_path, "quick", name), skewed[0], {0: {"final": value, "history": []}})
    both = table_of(high, figure=True, axis="skew", beside="other")
    assert "digits FedAvg = 70" in repr(show.drawing(both, ResultFolder(tmp_path, "quick", "high"), [0]))
    assert [bar.get_height() for bar in seen[0].axes[0].patches] == [60, 80]


def test_conflicts_are_drawn_by_layer_and_distance_of_labels_and_by_neuron(place):
    spec = merged(SPEC, {"run": {"rounds": 40}})
    drawn = [Cell(f"{k}", {**spec, "layer": k}, "IID, 40 rounds", f"layer {k}") for k in (1, 2)]
    for k, cell in enumerate(drawn):
        run = {"activations": [[0.0] * 10, [1.0] * 10, [2.0] * 10], "apart": [1.0, 0.02, 0.98]}
        conflicts = [[1] * 5 + [0] * 5, [0] * 10, [1] * (5 + 2 * k) + [0] * (5 - 2 * k)]
        store(place, cell, {0: {"final": 0.25, "history": [], **run, "conflicts": conflicts}})
    said = repr(show.drawing(table_of(drawn, figure=True, axis="distance of labels"), place, [0]))
    assert "40 rounds layer 2 = 40" in said
    said = repr(show.drawing(table_of(drawn, figure=True, axis="neuron"), place))
    assert "layer 2, neurons in conflict, of 10 = 4" in said


def test_the_numbers_of_a_figure_are_means_over_the_columns_that_all_its_lines_have(place):
    columns, rows = [f"column {k}" for k in range(7)], ("FedAvg", "FedUp")
    drawn = [Cell(c + r, {**SPEC, "name": c + r}, r, c) for c in columns for r in rows][:-1]
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


@pytest.mark.parametrize("profile", ["quick", "desk", "paper"])
def test_a_figure_that_is_drawn_from_a_table_asks_for_its_cells(profile):
    for table in reproduce.tables().values():
        if table.drawn_from:
            stored = {cell.name: identity(cell.spec) for cell in reproduce.get(table.drawn_from).cells(profile)}
            assert all(stored[cell.name] == identity(cell.spec) for cell in table.cells(profile))


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


def test_the_table_of_computing_counts_the_trials_of_a_search_that_diverged(tmp_path, monkeypatch):
    cell = Cell("x", {"study": "simulate", "method": ["FedAvg", {}]}, "x", "c")
    monkeypatch.setattr(overview, "tables", lambda: {"t": table_of([cell])})
    trials = [{"setting": {"run": {"lr": lr}}, "rounds": 5, "score": score, "values": [60.0, score]}
              for lr, score in ((0.1, 60.0), (9.0, None))]  # fmt: skip
    tuned = {"id": identity(cell.spec), "setting": trials[0]["setting"], "tried": trials, "edges": []}
    runs = {0: {"final": 60.0, "seconds": 1800}, 1: {"final": None, "seconds": 1800}}
    store(ResultFolder(tmp_path, "quick", "t"), cell, runs, {**tuned, "seconds": 7200.0})
    assert overview.compute(tmp_path).to_dict("records") == [{
        "table": "t", "profile": "quick", "cells": 1, "runs": 2, "diverged": 1, "trials": 2, "trials diverged": 1,
        "cells at an end": 0, "hours": 3.0, "of which tuning": 2.0,
    }]  # fmt: skip


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


def test_the_dfedgam_study_searches_its_six_radii_in_paper_and_nothing_else():
    radii = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]  # section 4.1 of the study
    for cell in reproduce.get("dfedgam-table1").cells("paper"):
        searched = cell.spec.get("tune", {}).get("axes", {})
        assert searched == ({"method.rho": radii} if cell.row in ("FedSAM", "DFedSAM", "DFedGAM") else {})
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
