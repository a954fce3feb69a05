"""`fc.sweep`: settings times seeds, one tidy frame, nothing computed twice."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import fedcore as fc

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


def test_values_and_seeds_may_be_arrays():
    listed = fc.sweep(bowls, {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=[3, 5], rounds=3)
    arrays = fc.sweep(bowls, {"lr": np.array([0.1, 0.2])}, method=fc.FedAvg(), seeds=np.array([3, 5]), rounds=3)
    pd.testing.assert_frame_equal(listed, arrays, check_exact=True)


def test_processes_give_what_one_gives():
    alone = fc.sweep(bowls, {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=[3, 5], rounds=3)
    both = fc.sweep(bowls, {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=[3, 5], rounds=3, workers=2)
    pd.testing.assert_frame_equal(alone, both, check_exact=True)


def test_workers_of_a_dask_cluster_give_what_one_process_gives():
    joblib, distributed = pytest.importorskip("joblib"), pytest.importorskip("distributed")
    settings = {"method": fc.FedAvg(), "seeds": [3, 5], "rounds": 3}
    alone = fc.sweep(bowls, {"lr": [0.1, 0.2]}, **settings)
    where = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.Client(**where), joblib.parallel_config(backend="dask"):
        there = fc.sweep(bowls, {"lr": [0.1, 0.2]}, workers=None, **settings)
    pd.testing.assert_frame_equal(alone, there, check_exact=True)


def test_runs_that_train_at_once_give_what_one_after_another_gives(tmp_path):
    doubles = partial(digits64, count=4)
    alone = fc.sweep(doubles, GRID, seeds=2, **RUN)
    for more in ({"at_once": None}, {"at_once": 3, "folder": tmp_path}, {"at_once": None, "workers": 2}):
        both = fc.sweep(doubles, GRID, seeds=2, **RUN, **more)
        pd.testing.assert_frame_equal(alone, both, rtol=1e-10)
    assert len(list(tmp_path.glob("*.json"))) == 16


@pytest.mark.parametrize("at_once", [1, None])
def test_a_cut_file_is_put_aside_and_its_run_made_again(tmp_path, at_once):
    call = partial(fc.sweep, bowls(0), {"lr": [0.1, 0.2]}, method=fc.FedAvg(), seeds=1, folder=tmp_path, **RUN)
    whole = call()
    file = min(tmp_path.glob("*.json"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=rf"{file.name} is damaged .*made again"):
        pd.testing.assert_frame_equal(call(at_once=at_once), whole, check_exact=True)
    assert file.with_suffix(".damaged").exists()
    pd.testing.assert_frame_equal(call(), whole, check_exact=True)


def test_a_run_that_fails_leaves_those_at_its_side():
    with pytest.raises(fc.SweepFailed) as failed:
        fc.sweep(digits64(0), {"method": [fc.FedAvg(), Breaks()]}, seeds=2, at_once=None, **RUN)
    assert len(failed.value.failures) == 2
    assert failed.value.frame["seed"].nunique() == 2


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


@pytest.mark.parametrize(
    "other",
    [{"rounds": 4}, {"server_lr": 0.5}, {"method": fc.FedUp(0.1)}, {"lr": 0.3}, {"lr": lambda t: 0.1 / (1 + t)}],
    ids=["rounds", "server_lr", "method", "lr", "schedule"],
)
def test_a_stored_run_is_taken_for_no_other(tmp_path, other):
    settings = {"method": fc.FedAvg(), "rounds": 3, "lr": 0.1, "seeds": 1}
    fc.sweep(bowls, {"local_steps": [2]}, folder=tmp_path, **settings)
    kept = fc.sweep(bowls, {"local_steps": [2]}, folder=tmp_path, **settings | other)
    pd.testing.assert_frame_equal(kept, fc.sweep(bowls, {"local_steps": [2]}, **settings | other))
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_schedule_is_known_by_what_it_takes_from_around_it(tmp_path):
    def run(base):
        return fc.sweep(
            bowls, {"lr": [lambda t: base / (1 + t)]}, method=fc.FedAvg(), seeds=1, rounds=3, folder=tmp_path
        )

    first = run(0.1)["value"].tolist()
    assert first != run(0.2)["value"].tolist()
    more = [(lambda: None) for _ in range(99)]  # so that the next schedule stands elsewhere in memory
    assert run(0.1)["value"].tolist() == first
    assert len(more) == 99
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_stopped_sweep_goes_on_from_its_checkpoints(tmp_path, monkeypatch):
    class Stopped(BaseException):
        pass

    def stops(t, metrics):
        if t == 2 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise Stopped

    call = partial(fc.sweep, bowls, {"lr": [0.1]}, method=fc.FedAvg(), seeds=1, rounds=4, folder=tmp_path / "runs")
    with pytest.raises(Stopped):
        call(on_evaluate=stops)
    assert len(list((tmp_path / "runs").glob("*/checkpoint.npz"))) == 1
    pd.testing.assert_frame_equal(
        call(on_evaluate=stops), fc.sweep(bowls, {"lr": [0.1]}, method=fc.FedAvg(), seeds=1, rounds=4)
    )


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


@pytest.mark.parametrize(
    ("grid", "more", "words"),
    [
        ({"lr": 0.1}, {}, r"grid\['lr'\]=0.1; use a list of values"),
        ({"lr": []}, {}, r"grid\['lr'\]=\[\]; use a list"),
        ({"lr": [0.1]}, {"lr": 0.2}, "lr stands in the grid and beside it"),
        ({"rate": [0.1]}, {}, "'rate' is an argument of neither simulate nor the federation; known: .*lr, "),
        ({"seed": [0, 1]}, {}, "seed is the sweep's own; use seeds="),
        ({"lr": [0.1]}, {"resume": True}, "resume is the sweep's own; use folder="),
        ({"lr": [0.1]}, {"seeds": [1, 1]}, r"seeds=\[1, 1\]; use different seeds"),
        ({"lr": [0.1]}, {"seeds": 0}, "seeds=0 is out of range"),
        ({"lr": [0.1]}, {"workers": 0}, "workers=0 is out of range"),
        ({"lr": [0.1]}, {"at_once": 0}, "at_once=0 is out of range"),
        ({"lr": [0.1]}, {"method": None}, "no method"),
        ({"lr": [0.1]}, {"rounds": None}, "no rounds; use rounds=100"),
        ({"lr": [0.1, 0.2, 0.1]}, {}, r"grid\['lr'\] has 0.1 more than once; use each value once"),
        ({"server_lr": [1, 1]}, {}, r"grid\['server_lr'\] has 1 more than once"),
        ({"partition": [fc.Dirichlet(0.1), fc.Dirichlet(0.1)]}, {}, r"has Dirichlet\(.* more than once"),
    ],
)
def test_a_wrong_call_is_refused_before_any_run(grid, more, words):
    settings = {"method": fc.FedAvg(), "rounds": 1} | more
    settings = {k: v for k, v in settings.items() if v is not None}
    with pytest.raises(ValueError, match=words):
        fc.sweep(bowls, grid, **settings)
