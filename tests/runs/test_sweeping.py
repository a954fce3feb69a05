"""`fc.sweep`: settings times seeds, one tidy frame, nothing computed twice."""

import itertools
import os
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import helpers as h
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedcore as fc
from fedcore import sweeping
from tools.processes import runs, until

RUN = {"rounds": 4, "local_steps": 2, "cohort": 2, "eval_every": 2}
GRID = {"method": [fc.FedAvg(), fc.FedUp(0.05)], "partition": [fc.IID(), fc.Dirichlet(0.3)], "lr": [0.05, 0.2]}


def digits(seed, partition=None):
    return fc.federation("digits", 4, partition or fc.IID(), "logistic", seed=seed)


def digits64(seed, partition=None, count=4):
    return fc.federation("digits", count, partition or fc.IID(), "logistic", seed=seed, dtype=torch.float64)


def bowls(seed):
    return fc.quadratic(np.eye(2)[None].repeat(3, 0), np.random.default_rng(seed).normal(size=(3, 2)))


class Breaks(fc.FedAvg):
    def aggregate(self, r, y):
        raise RuntimeError("no server today")


def test_every_setting_with_every_seed_is_the_run_of_simulate():
    frame = fc.sweep(digits, GRID, seeds=2, **RUN)
    assert list(frame) == ["method", "partition", "lr", "seed", "diverged", "round", "metric", "client", "value"]
    assert len(frame.groupby(["method", "partition", "lr", "seed"])) == 2 * 2 * 2 * 2
    for method in GRID["method"]:
        h = fc.simulate(method, digits(1, fc.Dirichlet(0.3)), lr=0.2, seed=1, **RUN)
        at = (frame["method"] == repr(method)) & (frame["partition"] == repr(fc.Dirichlet(0.3)))
        one = frame[at & (frame["lr"] == 0.2) & (frame["seed"] == 1)]
        pd.testing.assert_frame_equal(one[list(h.frame())].reset_index(drop=True), h.frame(), check_exact=True)


def test_a_column_has_numbers_names_of_functions_and_reprs():
    def falls(t):
        return 0.1 / (1 + t)

    grid = {"lr": [falls, lambda t: 0.1, lambda t: 0.2], "cohort": [None, np.int64(2)], "clip": (np.float32(0.5), 1)}
    frame = fc.sweep(bowls, grid, method=fc.FedAvg(), seeds=1, rounds=1)
    here = "test_a_column_has_numbers_names_of_functions_and_reprs.<locals>."
    assert frame["lr"].unique().tolist() == [f"{here}falls", f"{here}<lambda> (2)", f"{here}<lambda> (3)"]
    assert frame["cohort"].unique().tolist() == ["None", 2]
    assert frame["clip"].dtype == float
    assert frame.groupby(["lr", "cohort", "clip"]).ngroups == 3 * 2 * 2


def interrupted(t, metrics):
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_results_of_the_runs_that_had_ended():
    settings = [None, interrupted]
    with pytest.raises(KeyboardInterrupt) as of_sweep:
        fc.sweep(bowls, {"on_evaluate": settings}, method=fc.FedAvg(), seeds=1, rounds=2)
    assert set(of_sweep.value.frame["on_evaluate"]) == {"None"}
    with pytest.raises(KeyboardInterrupt) as of_list:
        fc.simulate_many([{"on_evaluate": s} for s in settings], bowls(0), method=fc.FedAvg(), rounds=2)
    assert [len(history.cohorts) for history in of_list.value.results] == [2]


def test_processes_give_what_one_gives():
    alone = fc.sweep(bowls, {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=[3, 5], rounds=3)
    arrays = {"grid": {"lr": np.array([0.1, 0.2])}, "seeds": np.array([3, 5])}  # as good as lists
    both = fc.sweep(bowls, **arrays, method=fc.FedAvg(), rounds=3, workers=2)
    pd.testing.assert_frame_equal(alone, both, check_exact=True)


def test_workers_of_a_dask_cluster_give_what_one_process_gives():
    joblib, distributed = pytest.importorskip("joblib"), pytest.importorskip("distributed")
    settings = {"method": fc.FedAvg(), "seeds": [3, 5], "rounds": 3}
    alone = fc.sweep(bowls, {"lr": [0.1, 0.2]}, **settings)
    where = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.Client(**where), joblib.parallel_config(backend="dask"):
        there = fc.sweep(bowls, {"lr": [0.1, 0.2]}, workers=None, **settings)
    pd.testing.assert_frame_equal(alone, there, check_exact=True)


def test_a_second_call_does_what_is_missing(tmp_path):
    made = []

    def counted(seed):
        made.append(seed)
        return bowls(seed)

    first = fc.sweep(counted, {"lr": [0.1]}, method=fc.FedAvg(), seeds=2, rounds=3, folder=tmp_path)
    files = {f: f.stat().st_mtime_ns for f in tmp_path.glob("*.json")}
    more = fc.sweep(counted, {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=2, rounds=3, folder=tmp_path)
    assert len(files) == 2
    assert len(list(tmp_path.glob("*.json"))) == 4
    assert all(f.stat().st_mtime_ns == t for f, t in files.items()), "what stood was computed again"
    assert [f for f in tmp_path.iterdir() if f.is_dir()] == [], "checkpoints of finished runs are gone"
    pd.testing.assert_frame_equal(more[more["lr"] == 0.1].reset_index(drop=True), first)


OTHER = {
    "rounds": lambda: {"rounds": 4}, "method": lambda: {"method": fc.FedUp(0.1)},
    "a schedule, wherever it stands in memory": lambda: {"lr": lambda t: 0.1 / (1 + t)},
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_a_stored_run_is_taken_for_no_other(what, tmp_path):
    settings = {"method": fc.FedAvg(), "rounds": 3, "lr": 0.1, "seeds": 1}
    fc.sweep(bowls, {"local_steps": [2]}, folder=tmp_path, **settings)
    made = [OTHER[what]() for _ in range(2)]
    for other in made:
        kept = fc.sweep(bowls, {"local_steps": [2]}, folder=tmp_path, **settings | other)
    pd.testing.assert_frame_equal(kept, fc.sweep(bowls, {"local_steps": [2]}, **settings | other))
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_stored_run_is_of_the_validation_data_that_it_was_evaluated_on(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(150, 4)).astype(np.float32), np.arange(150) % 2

    def run(labels, folder=None):
        source = {"train": (x[:80], y[:80]), "test": (x[80:110], y[80:110]), "validation": (x[110:], labels)}
        fed = fc.federation(source, clients=4, model="logistic")
        how = {"seeds": 1, "method": fc.FedAvg(), "rounds": 2, "eval_on": "validation", "folder": folder}
        return fc.sweep(fed, {"lr": [0.1]}, **how)

    run(1 - y[110:], tmp_path)
    pd.testing.assert_frame_equal(run(y[110:], tmp_path), run(y[110:]))


class Ends(BaseException):
    pass


@pytest.mark.parametrize("what", ["a checkpoint", "a probe that remembers", "a damaged checkpoint"])
def test_a_stopped_sweep_goes_on_from_a_checkpoint_that_is_of_use_and_else_begins_anew(what, tmp_path):
    again, runs = tmp_path / "again", tmp_path / "runs"

    def ends(t, metrics):
        if t == 2 and not again.exists():
            again.touch()
            raise Ends

    probes = [Numbered()] if what == "a probe that remembers" else []
    call = partial(fc.sweep, bowls(0), {"lr": [0.1]}, method=fc.FedAvg(), seeds=1, rounds=4, probes=probes)
    with pytest.raises(Ends):
        call(folder=runs, on_evaluate=ends)
    (file,) = runs.glob("*/checkpoint.npz")
    if what == "a damaged checkpoint":
        file.write_bytes(file.read_bytes()[:-100])
    anew = {"a probe that remembers": "probes remember what they saw.*", "a damaged checkpoint": "damaged or no .*"}
    with pytest.warns(UserWarning, match=anew[what] + "begins anew") if what in anew else nullcontext():
        found = call(folder=runs, on_evaluate=ends)
    pd.testing.assert_frame_equal(found, call(), check_exact=True)


def test_a_run_that_diverges_says_in_which_round_and_the_others_go_on():
    frame = fc.sweep(bowls, {"lr": [0.1, 1e200]}, method=fc.FedAvg(), seeds=1, rounds=5)
    assert frame[frame["lr"] == 0.1]["diverged"].isna().all()
    assert frame[frame["lr"] == 1e200]["diverged"].notna().all()


def test_a_failing_run_is_named_and_costs_no_other(tmp_path):
    methods = {"method": [fc.FedAvg(), Breaks()]}
    with pytest.raises(
        fc.SweepFailed, match=r"2 of 4 runs failed.*\n  method=Breaks.*seed=0: RuntimeError: no server"
    ) as e:
        fc.sweep(bowls, methods, seeds=2, rounds=2, folder=tmp_path)
    assert set(e.value.frame["method"]) == {repr(fc.FedAvg())}
    assert len(e.value.failures) == 2
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_federation_that_is_made_is_the_same_for_all_seeds():
    frame = fc.sweep(bowls(0), {"method": [fc.FedAvg()]}, seeds=2, rounds=2, lr=0.1)
    h = fc.simulate(fc.FedAvg(), bowls(0), rounds=2, lr=0.1)
    assert [list(values) for _, values in frame.groupby("seed")["value"]] == [h.frame()["value"].tolist()] * 2


def drawn(seed):
    """A federation of a module that is made anew, on data that are drawn anew, both from global generators."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    x = np.random.normal(size=(60, 4)).astype(np.float32)  # noqa: NPY002
    return fc.federation((x, np.arange(60) % 3), clients=3, model=net, seed=seed)


def test_a_module_that_is_made_for_a_run_has_the_weights_of_its_seed(tmp_path):
    grid, state = {"lr": [0.1, 0.2]}, torch.get_rng_state()
    frame = fc.sweep(drawn, grid, method=fc.FedAvg(), seeds=2, folder=tmp_path, **RUN)
    assert torch.equal(torch.get_rng_state(), state)
    again = fc.sweep(drawn, grid, method=fc.FedAvg(), seeds=2, workers=2, **RUN)
    pd.testing.assert_frame_equal(again, frame, rtol=1e-5)
    first = frame[(frame["round"] == 0) & (frame["metric"] == "loss")]
    assert first.groupby("seed")["value"].nunique().tolist() == [1, 1], "two rates begin at one model"
    assert first["value"].nunique() == 2
    fc.sweep(drawn, grid, method=fc.FedAvg(), seeds=2, folder=tmp_path, **RUN)
    assert len(list(tmp_path.glob("*.json"))) == 4, "what was done is found again"


@pytest.mark.parametrize(("grid", "more", "words"), [
    ({"lr": 0.1}, {}, r"grid\['lr'\]=0.1; use a list of values"),
    ({"lr": [0.1]}, {"lr": 0.2}, "lr is given in the grid and beside it"),
    ({"rate": [0.1]}, {}, "'rate' is an argument of neither simulate nor the federation; known: .*lr, "),
    ({"seed": [0, 1]}, {}, "seed is the sweep's own; use seeds="),
    ({"lr": [0.1]}, {"seeds": [1, 1]}, r"seeds=\[1, 1\]; use different seeds"),
    ({"lr": [0.1]}, {"seeds": 0}, "seeds=0 is out of range"),
    ({"lr": [0.1]}, {"workers": 0}, "workers=0 is out of range"),
    ({"lr": [0.1]}, {"method": None}, "no method"),
    ({"partition": [fc.Dirichlet(0.1), fc.Dirichlet(0.1)]}, {}, r"has Dirichlet\(.* more than once"),
    ({"lr": [1, 1.0]}, {}, r"grid\['lr'\] has 1 more than once; use each value once"),
    ({"round": [1, 2]}, {}, "'round' in the grid is the name of another column.* as round_"),
])  # fmt: skip
def test_a_wrong_call_is_refused_before_any_run(grid, more, words):
    settings = {"method": fc.FedAvg(), "rounds": 1} | more
    with pytest.raises(ValueError, match=words):
        fc.sweep(bowls, grid, **{k: v for k, v in settings.items() if v is not None})


# --- what runs remember, each for itself --------------------------------------------------------------------------


class Patience:
    """Ends a run whose loss has not fallen for `n` evaluations."""

    def __init__(self, n):
        self.n, self.best, self.left = n, float("inf"), n

    def __call__(self, t, metrics):
        better = metrics["loss"] < self.best - 1e-3
        self.best, self.left = (metrics["loss"], self.n) if better else (self.best, self.left - 1)
        return self.left <= 0

    def look(self, t, metrics):
        return self(t, metrics)


class Numbered:
    """A probe that counts the rounds that it sees."""

    def __init__(self):
        self.count = 0

    def __call__(self, r, y):
        self.count += 1
        return {"number": float(self.count)}


RATES = {"lr": [0.5, 1e-4, 0.3, 1e-5]}
RULES = {
    "an object": lambda: Patience(2),
    "a bound method": lambda: Patience(2).look,
    "a maker": lambda: lambda: Patience(2),
    "a partial": lambda: partial(lambda rule, t, metrics: rule(t, metrics), Patience(2)),
}


@pytest.mark.parametrize("kind", RULES)
def test_a_stopping_rule_and_a_probe_with_memory_are_one_per_run(kind, tmp_path):
    def table(**more):
        rule, probe = RULES[kind](), Numbered()
        call = partial(fc.sweep, digits64(0), RATES, method=fc.FedAvg(), seeds=1, rounds=5, cohort=4, local_steps=1)
        frame = call(on_evaluate=rule, probes=[probe], **more)
        assert probe.count == 0, "the caller's own is as it was"
        return frame

    alone = table()
    done = alone.groupby("lr", sort=False)["round"].max().tolist()
    assert done == [5, 2, 5, 2]
    assert alone[(alone["metric"] == "number") & (alone["round"] == 1)]["value"].tolist() == [1.0] * 4
    for more in ({"folder": tmp_path, "workers": 2}, {"folder": tmp_path}):
        pd.testing.assert_frame_equal(table(**more), alone, rtol=1e-10)
    assert len(list(tmp_path.glob("*.json"))) == 4, "read, and not made again"
    runs = [{"lr": lr} for lr in RATES["lr"]]
    shared = {"method": fc.FedAvg(), "rounds": 5, "cohort": 4, "local_steps": 1}
    many = fc.simulate_many(runs, digits64(0), on_evaluate=RULES[kind](), probes=[Numbered()], **shared)
    assert [len(h.cohorts) for h in many] == done


LOG = []


def to_a_global(t, metrics):
    LOG.append(t)


def nonlocal_counter():
    left = 3

    def stops(t, metrics):
        nonlocal left
        left -= 1
        return left == 0

    return stops


def log():
    rows = []
    return rows.insert


DRAWS, TURNS = np.random.default_rng(0), itertools.count()


WRITERS = {
    "a global list": lambda: to_a_global,
    "a nonlocal": nonlocal_counter,
    "a list's own method": log,
    "a generator of numbers": lambda: lambda t, m: DRAWS.random() > 2,
    "an iterator": lambda: lambda t, m: next(TURNS) < 0,
    "NumPy's own generator": lambda: lambda t, m: np.random.random() > 2,  # noqa: NPY002
}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_remembers_outside_of_itself_is_refused_and_not_shared(kind):
    make = WRITERS[kind]
    for call in (
        lambda **more: fc.sweep(bowls(0), {"lr": [0.1, 0.2]}, seeds=1, **more),
        lambda **more: fc.simulate_many([{"lr": 0.1}, {"lr": 0.2}], bowls(0), **more),
    ):
        with pytest.raises(RuntimeError, match=r"wrote to an object or drew from .*on_evaluate=lambda: Stop\(2\)"):
            call(method=fc.FedAvg(), rounds=4, on_evaluate=make())
    fc.simulate(fc.FedAvg(), bowls(0), rounds=2, on_evaluate=make())  # one run may keep a log


def test_what_cannot_be_copied_is_refused_before_any_run():
    held, asked = Patience(2), []
    held.lock = threading.Lock()
    for more in ({"on_evaluate": held}, {"probes": [held]}):
        with pytest.raises(TypeError, match=r"cannot be copied for each run .*lock.*on_evaluate=lambda: Stop"):
            fc.sweep(lambda seed: asked.append(seed), {"lr": [0.1]}, method=fc.FedAvg(), rounds=1, **more)
    assert not asked
    with pytest.raises(fc.SweepFailed, match="made 3; let it make a function"):
        fc.sweep(bowls, {"lr": [0.1]}, method=fc.FedAvg(), rounds=1, on_evaluate=lambda: 3)


# --- what stands in a folder --------------------------------------------------------------------------------------


def other(file):
    one = next(f for f in file.parent.glob("*.json") if f != file)
    file.write_bytes(one.read_bytes())


DAMAGE = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "another number": lambda file: file.write_bytes(file.read_bytes().replace(b'"loss",null,', b'"loss",null,1')),
    "another run's": other,
    "a list": lambda file: file.write_text("[1]"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_its_name_says_is_set_aside_and_its_run_made_again(damage, tmp_path):
    call = partial(fc.sweep, bowls(0), {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=1, folder=tmp_path, **RUN)
    whole = call()
    file = min(tmp_path.glob("*.json"))
    DAMAGE[damage](file)
    with pytest.warns(UserWarning, match=rf"{file.name} is damaged .*now {file.stem}.damaged; its run is made again"):
        pd.testing.assert_frame_equal(call(), whole, check_exact=True)
    assert file.with_suffix(".damaged").exists()
    pd.testing.assert_frame_equal(call(), whole, check_exact=True)


def test_a_finished_folder_is_read_where_nobody_may_write(tmp_path, monkeypatch):
    call = partial(fc.sweep, bowls(0), {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=1, folder=tmp_path)
    whole = call(**RUN)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    for place in ("FileLock", "atomic"):
        monkeypatch.setattr(sweeping, place, refuse)
    monkeypatch.setattr(sweeping.Path, "mkdir", refuse)
    pd.testing.assert_frame_equal(call(**RUN), whole, check_exact=True)
    with pytest.raises(fc.SweepFailed, match=r"cannot be read and written .*use a folder that is yours"):
        call(**RUN | {"rounds": 5})


def waits(folder):
    def wait(t, metrics):
        Path(folder, str(os.getpid())).touch()
        time.sleep(0.05)

    fc.sweep(bowls(0), {"lr": [0.1, 0.2]}, method=fc.FedAvg(), rounds=10**5, seeds=1, on_evaluate=wait, workers=2)


def test_workers_end_with_a_sweep_that_is_killed(tmp_path):
    process = h.SERVER.Process(target=waits, args=(tmp_path,))
    process.start()
    ready = until(lambda: len(list(tmp_path.iterdir())) == 2, 60)
    process.kill()
    process.join()
    assert ready
    assert until(lambda: not any(runs(int(file.name)) for file in tmp_path.iterdir()), 30)


# --- several runs of one federation -------------------------------------------------------------------------------


def test_several_runs_of_one_call_are_those_of_simulate_to_the_bit():
    """Also of methods that change the federation's data."""
    fed = fc.federation("digits", 4, fc.Shards(3), "digit_model_small", seed=0, normalise="client")
    runs = [
        {"method": fc.FedAvg(), "seed": 1, "weight_decay": 1e-3}, {"method": fc.SCAFFOLD(), "lr": 0.2, "momentum": 0.9},
        {"method": fc.HeteroFL(0.5), "local_steps": range(1, 5)}, {"method": fc.FedGSE(0.5, public=2)},
        {"method": fc.Central(), "rounds": 1}, {"method": fc.FedBN(), "cohort": 3, "batch_size": None},
    ]  # fmt: skip
    runs = [{"rounds": 2, "lr": 0.1} | one for one in runs]
    for one, run in zip(fc.simulate_many(runs, fed, at_once=2), runs, strict=True):
        other = fc.simulate(fed=fed, **run)
        assert torch.equal(one.params, other.params)
        assert (one.cohorts, one.rows) == (other.cohorts, other.rows)


def test_a_run_that_diverges_stands_in_its_place_and_an_error_is_raised_when_the_others_have_ended():
    runs = [{"method": fc.FedAvg(), "lr": 1e200}, {"method": Breaks()}, {"method": fc.SCAFFOLD()}]
    with pytest.raises(RuntimeError, match="no server today") as raised:
        fc.simulate_many(runs, bowls(0), rounds=5)
    assert "runs[1] of 3" in raised.value.__notes__[-1]
    bad, error, good = raised.value.results
    assert isinstance(bad, fc.Diverged)
    assert bad.history.cohorts
    assert error is raised.value
    assert len(good.cohorts) == 5


@pytest.mark.parametrize(("runs", "shared", "error", "words"), [
    ([], {}, ValueError, "runs is empty"),
    ([{"lr": 0.1}], {"lr": 0.2}, ValueError, r"lr is given in runs\[0\] and beside it"),
    ([{"rate": 1}], {}, TypeError, r"runs\[0\]={'rate': 1}; use a mapping of arguments of simulate"),
    ([{"checkpoint_dir": "x"}, {"checkpoint_dir": "x/../x"}], {}, ValueError, "one checkpoint_dir; give each its own"),
    ([{"lr": -1.0}], {}, ValueError, "lr=-1 is out of range"),
])  # fmt: skip
def test_wrong_runs_are_refused(runs, shared, error, words):
    with pytest.raises(error, match=words):
        fc.simulate_many(runs, bowls(0), method=fc.FedAvg(), rounds=1, **shared)


# --- threads ------------------------------------------------------------------------------------------------------


NET = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))


@pytest.mark.parametrize(
    ("kind", "model"), [("made", "thesis_cnn_small"), ("given", NET)], ids=["federations", "one federation"]
)
def test_threads_of_a_worker_give_the_table_of_one_process(kind, model):
    joblib, g = pytest.importorskip("joblib"), np.random.default_rng(0)
    data = g.integers(0, 255, (200, 1, 8, 8), dtype=np.uint8), g.integers(0, 10, 200)
    make = partial(fc.federation, data, clients=4, model=model, dtype=torch.float64)
    work = {"seeds": 2, "rounds": 2, "cohort": 2, "local_steps": 2, "batch_size": 10, "on_evaluate": Patience(1)}
    grid = {"method": [fc.FedAvg(), fc.SCAFFOLD()], "lr": [0.05, 0.1]}
    call = partial(fc.sweep, make if kind == "made" else make(seed=0), grid, **work)
    alone = call()
    with joblib.parallel_config(backend="threading"):
        many = call(workers=4)
    pd.testing.assert_frame_equal(many, alone, rtol=1e-9)


def test_a_stored_run_is_of_the_federation_that_the_method_makes_by_its_seed(tmp_path):
    """DepthFL draws its heads by the federation's seed, which decides nothing else here."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 10))
    how = {"method": fc.DepthFL({1.0: 0.5, 0.5: 0.5}), "seeds": 1, "rounds": 1, "local_steps": 1, "folder": tmp_path}
    for seed in (0, 1):
        fed = fc.federation("digits", partition=np.array_split(np.arange(1400), 4), model=net, seed=seed)
        fc.sweep(fed, {"lr": [0.1]}, **how)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_what_a_function_reads_is_part_of_a_stored_run(tmp_path):
    target = {"loss": -1.0}
    rule = {"on_evaluate": lambda t, metrics: metrics["loss"] < target["loss"]}
    call = partial(fc.sweep, bowls(0), {"lr": [0.1]}, method=fc.FedAvg(), seeds=1, rounds=2, folder=tmp_path)
    assert call(**rule)["round"].max() == 2
    target["loss"] = 1e9
    assert call(**rule)["round"].max() == 0


def test_equal_numbers_that_mean_different_things_stay_apart():
    frame = fc.sweep(bowls, {"cohort": [1, 1.0, 2]}, method=fc.FedAvg(), seeds=1, rounds=1)
    assert frame["cohort"].unique().tolist() == ["1 (1)", "1.0 (2)", 2]


def test_a_rule_and_a_schedule_that_remember_together_do_so_in_each_run():
    class Both:
        asked = 0

        def size(self, t):
            self.asked += 1
            return 1

    both = Both()
    shared = {"cohort": both.size, "on_evaluate": partial(lambda held, t, metrics: held.asked == 0, both)}
    many = fc.simulate_many([{"lr": 0.1}, {"lr": 0.2}], bowls(0), method=fc.FedAvg(), rounds=2, **shared)
    assert [len(history.cohorts) for history in many] == [2, 2]
    assert both.asked == 0
