"""Kill trials: start runs and batches, kill them at random moments, change them and start them again.

    python tools/kill_trials.py FOLDER --kills 200          until so many kills, or --minutes; a second call continues

Case k is drawn from (seed, k): a run of a random method with random settings on one or two processes, or a batch in a
random profile, plain, on two processes, or as notebooks.  Every case must give the same result as without kills: to the
bit, or up to rounding if the number of processes changes.  Stored results are kept and never computed again, another
run's checkpoint is refused and left unchanged, and no process outlives its launcher.  `FOLDER/log.jsonl` gets one line
per case; the exit status is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.processes import fork, runs  # noqa: E402

SERVER = multiprocessing.get_context("forkserver")  # imports once and forks for each start
ENDS = 40  # seconds within which killed processes and their children must have ended
MOST = 10  # failed cases after which the trials stop
BY_SCORE = {"FedDSE", "FedGSE"}  # rounding may change their choices
DEFINITIONS = """
import json, os
from fedcore import distributed
from fedbook import Cell, Table, studies

SIMULATE = studies.STUDIES["simulate"]


def killed(spec, seed, folder, device):
    if distributed.world().rank == 0:
        with open("log.txt", "a") as f:
            f.write(json.dumps([spec["method"], seed]) + "\\n")
    return SIMULATE(spec, seed, folder, device)


studies.STUDIES["killed"] = killed
CELLS = [Cell(f"{{name}} {{k}}", spec) for k, (name, spec) in enumerate({cells!r})]
TABLES = [Table("killed", "a trial", "S000", lambda profile: CELLS, dict.fromkeys({profiles!r}, "tiny"))]
"""


class Failed(Exception):
    """A case did not end as required."""


# --- a run ----------------------------------------------------------------------------------------------------------


def drawn(rng: random.Random) -> dict[str, Any]:
    """A random run: method, settings, and the number of processes."""
    import fedcore as fc

    method = rng.choice([m for m in fc.ALL if m is not fc.Central])
    settings = {
        "cohort": None if method.full_participation else rng.choice([None, 3, 0.5]), "lr": rng.choice([0.01, 0.05]),
        "lr_decay": rng.choice([1.0, 0.99]), "batch_size": rng.choice([4, 10]), "seed": rng.randrange(100),
        "weighting": rng.choice(["uniform", "samples"]), "eval_every": rng.choice([1, 1, 3]),
        "checkpoint_every": rng.choice([None, 1, 2, 5]), "personal": rng.choice([False, False, True, "local"]),
        "chunk": rng.choice([None, None, 2]), "local_steps": rng.choice([None, 2]),
    }  # fmt: skip
    processes = rng.choice([1, 1, 1, 2])
    path = rng.choice([None, None, "batched", "sequential"])
    regrouped = processes == 2 and method.__name__ not in BY_SCORE and rng.random() < 0.5
    return {
        "kind": "run", "method": method.__name__, "settings": settings, "path": path, "processes": processes,
        "regrouped": regrouped, "probes": rng.random() < 0.5, "rounds": rng.randrange(30, 90), "data": rng.randrange(9),
    }  # fmt: skip


def train(case: dict[str, Any], folder: Path | None, out: Path, rounds: int, processes: int) -> None:
    """Run in this process or in forks of it, and write the result, or the name of the error, to `out`."""
    import torch

    import fedcore as fc

    def work() -> None:
        torch.set_num_threads(1)
        sys.stderr = out.with_name("said.txt").open("a")
        method, settings = getattr(fc, case["method"])(), dict(case["settings"])
        settings["checkpoint_every"] = folder and settings["checkpoint_every"]
        data = np.random.default_rng(case["data"])
        y = data.permutation(np.arange(240) % 4)
        x = data.normal(size=(240, 1, 4, 4)).astype(np.float32) + y[:, None, None, None]

        def model(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
            if case["method"] == "MOON":
                body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 32), torch.nn.ReLU())
                return fc.models.Projected(body.append(torch.nn.Linear(32, 8)), torch.nn.Linear(8, classes))
            return fc.models.mlp(shape, classes, (64, 32))

        options = {} if case["path"] is None else {"path": case["path"]}
        fed = fc.federation((x, y), clients=8, model=model, dtype=torch.float64, device="cpu", **options)
        probes = [fc.probes.drift, fc.probes.consensus] if case["probes"] else []
        try:
            h = fc.simulate(method, fed, rounds=rounds, checkpoint_dir=folder, probes=probes, **settings)
        except fc.CheckpointError as e:
            left = f"CheckpointError: {e}"
        else:
            tensors = {"params": h.params, **h.state}
            left = {k: v.numpy() for k, v in tensors.items()}, h.cohorts, h.rows
        if fc.distributed.world().rank == 0:
            out.write_bytes(pickle.dumps(left))

    if processes > 1:
        sys.exit(fork(processes, work))
    work()


def same(a: Any, b: Any, exactly: bool) -> bool:
    """Whether two runs left the same results, to the bit or up to rounding."""
    (first, cohorts, rows), (second, others, more) = a, b
    if cohorts != others or first.keys() != second.keys() or [r[:3] for r in rows] != [r[:3] for r in more]:
        return False
    values = [np.array([r[3] for r in part]) for part in (rows, more)]
    pairs = [values, *((first[k], second[k]) for k in first)]
    if exactly:
        return all(np.array_equal(v, w, equal_nan=True) for v, w in pairs)
    return all(np.allclose(v, w, rtol=1e-6, atol=1e-8, equal_nan=True) for v, w in pairs)


def run(case: dict[str, Any], folder: Path, rng: random.Random, count: collections.Counter) -> None:
    """One run: alone, and then killed, grown, regrouped and taken for another."""
    kept, out = folder / "run", folder / "out.pkl"

    def start(rounds: int, at: Path | None = kept, processes: int = case["processes"], **changes: Any) -> Any:
        changed = {**case, "settings": {**case["settings"], **changes}}
        return SERVER.Process(target=train, args=(changed, at, out, rounds, processes))

    begin = time.monotonic()
    expected, rounds = whole(start(case["rounds"], None), out, count), case["rounds"]
    took, processes = time.monotonic() - begin, case["processes"]
    for _ in range(rng.randrange(2, 8)):
        asked = rng.choice([rounds, rounds, max(1, rounds // 2)]) if not (kept / "checkpoint.npz").exists() else rounds
        process = start(asked, processes=processes)
        hit = struck(process, processes, rng.uniform(0, 0.6 * took), rng, count)
        count["during a write"] += hit and any(kept.glob(".checkpoint.npz.*"))
        if case["regrouped"]:
            processes = rng.choice([1, 2])
        file = kept / "checkpoint.npz"
        if file.exists() and rng.random() < 0.3:
            before, other = file.read_bytes(), rng.choice(["seed", "lr", "batch_size"])
            changed = {other: case["settings"][other] * 2 + (other != "lr")}
            answer = whole(start(rounds, processes=processes, **changed), out, count)
            if not isinstance(answer, str) or file.read_bytes() != before:
                raise Failed(f"another {other} went on with this run's checkpoint")
            count["foreign refused"] += 1
    for _ in range(2):  # to the end, and read back
        if not same(whole(start(rounds, processes=processes), out, count), expected, not case["regrouped"]):
            raise Failed("the run ended otherwise than the same that nobody touched")
    if [file.name for file in kept.iterdir() if not file.name.startswith(".")] != ["checkpoint.npz"]:
        raise Failed(f"the folder holds {sorted(file.name for file in kept.iterdir())}")
    count["runs to rounding" if case["regrouped"] else "runs to the bit"] += 1


# --- a batch --------------------------------------------------------------------------------------------------------


def drawn_batch(rng: random.Random) -> dict[str, Any]:
    """A batch of cells with two seeds each."""
    from fedbook.documents.definitions import PROFILES

    methods = rng.sample(["FedAvg", "SCAFFOLD", "FedUp", "Mime", "FedProx", "FedDyn", "STEM", "FedAdam"], 3)
    federation = {"source": "digits", "clients": 10, "partition": ["Dirichlet", {"q": 0.3}], "model": "logistic"}
    how = rng.choices(["plain", "two processes", "notebooks"], [6, 3, 1])[0]
    study, cells = "simulate" if how == "notebooks" else "killed", []  # a kernel knows no study of this file's
    for name in methods:
        run = {"rounds": rng.randrange(10, 40), "cohort": 3, "lr": 0.1, "eval_every": rng.choice([1, 2, 5])}
        cells.append((name, {"study": study, "method": [name, {}], "federation": federation, "run": run}))
    return {"kind": "batch", "how": how, "profile": rng.choice(list(PROFILES)), "cells": cells}


def command(case: dict[str, Any], folder: Path) -> None:
    """Run the batch in this process, or in two forks of it."""
    import torch

    from fedbook import reproduce

    def work() -> None:
        torch.set_num_threads(1)
        with (
            (folder / "said.txt").open("a") as said,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            status = reproduce.main(arguments(case, folder))
        sys.exit(status)

    os.chdir(folder)
    if case["how"] == "two processes":
        sys.exit(fork(2, work))
    work()


def arguments(case: dict[str, Any], folder: Path) -> list[str]:
    plain = [] if case["how"] == "notebooks" else ["--plain"]
    where = ["--definitions", str(folder / "killed.py"), "--results", str(folder / "results")]
    return ["killed", "--profile", case["profile"], "--seeds", "2", *plain, *where]


class Command:
    """The batch as a user starts it, where it has kernels of its own; in the clothes of a `multiprocessing.Process`."""

    def __init__(self, case: dict[str, Any], folder: Path) -> None:
        self.call, self.folder = [sys.executable, "-m", "fedcore.reproduce", *arguments(case, folder)], folder

    def start(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (self.folder / "said.txt").open("a") as said:
            self.process = subprocess.Popen(self.call, cwd=self.folder, env=env, stdout=said, stderr=said)
        self.pid = self.process.pid

    def join(self, timeout: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        return self.process.poll()


def stored(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """The finished runs, `{cell and seed: stored result}`; every result file must be complete at any time."""
    found = {}
    for file in (folder / "results" / case["profile"] / "killed").glob("[!.]*.json"):
        result = json.loads(file.read_text())
        for seed, one in result["runs"].items():
            found[json.dumps([result["spec"]["method"], int(seed)])] = one
    return found


def computed(runs: dict[str, Any]) -> dict[str, Any]:
    """The results without the speed of the machine."""
    return {key: {k: v for k, v in one.items() if k != "seconds"} for key, one in runs.items()}


def within(some: dict[str, Any], all_of_them: dict[str, Any]) -> bool:
    return all(key in all_of_them and all_of_them[key] == one for key, one in some.items())


def batch(case: dict[str, Any], folder: Path, rng: random.Random, count: collections.Counter) -> None:
    """One batch: alone, and then killed and started again until it is done."""

    def start(at: Path) -> Any:
        return Command(case, at) if case["how"] == "notebooks" else SERVER.Process(target=command, args=(case, at))

    from fedbook.documents.definitions import PROFILES

    alone, killed, members = folder / "alone", folder / "killed", 1 if case["how"] == "plain" else 2
    for at in (alone, killed):
        at.mkdir()
        text = DEFINITIONS.format(cells=case["cells"], profiles=list(PROFILES))
        (at / "killed.py").write_text(text)
        (at / "log.txt").touch()
    begin = time.monotonic()
    finish(start(alone), count)
    expected, took = stored(alone, case), time.monotonic() - begin
    for _ in range(rng.randrange(2, 8)):
        if not struck(start(killed), members, rng.uniform(0, 0.6 * took), rng, count):
            break
        finished, lines = stored(killed, case), len((killed / "log.txt").read_text().splitlines())
        if not within(computed(finished), computed(expected)):
            raise Failed("a stored run is not that of a batch that nobody touched")
        count["finished when killed"] += len(finished)
        again = start(killed)
        struck(again, members, rng.uniform(0, 0.6 * took), rng, count)
        after = (killed / "log.txt").read_text().splitlines()[lines:]
        if twice := set(after) & set(finished):
            raise Failed(f"finished and run again: {sorted(twice)}")
        if not within(finished, stored(killed, case)):
            raise Failed(f"finished and lost or stored anew, of {sorted(finished)}")
    finish(start(killed), count)
    if computed(stored(killed, case)) != computed(expected):
        raise Failed("the batch ended otherwise than the same that nobody touched")
    if left := list((killed / "results").rglob("unfinished/*")):
        raise Failed(f"left behind: {left}")
    count[f"batches {case['how']}"] += 1


# --- starting and killing -------------------------------------------------------------------------------------------


def whole(process: Any, out: Path, count: collections.Counter) -> Any:
    """The result of a start without a kill."""
    out.unlink(missing_ok=True)
    finish(process, count)
    return pickle.loads(out.read_bytes())


def finish(process: Any, count: collections.Counter) -> None:
    process.start()
    count["starts"] += 1
    process.join(600)
    if process.exitcode != 0:
        raise Failed(f"ended with status {process.exitcode}")


def struck(process: Any, how_many: int, delay: float, rng: random.Random, count: collections.Counter) -> bool:
    """Start, wait, kill: all processes, or, if there are workers, only the launcher or one worker.

    how_many: the number of processes.  Returns False if the process had ended before the kill.
    """
    process.start()
    count["starts"] += 1
    process.join(delay)
    if process.exitcode is not None:
        if process.exitcode != 0:
            raise Failed(f"ended with status {process.exitcode}")
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(process.pid)
        workers = [] if how_many == 1 else top.children(recursive=True)
        everyone = [top, *workers]
        how = rng.choice(["all", "launcher", "worker"] if workers else ["all"])
        for victim in {"all": everyone, "launcher": [top], "worker": [rng.choice(workers or everyone)]}[how]:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        ended = time.monotonic()
        process.join(ENDS)
        # a batch of notebooks continues when one of its kernels dies, and reports that the cell failed
        if process.exitcode is None and how == "worker" and isinstance(process, Command):
            process.join(600)
        _, alive = psutil.wait_procs([p for p in workers if runs(p)], ENDS)
        if process.exitcode is None or any(map(runs, alive)):
            raise Failed(f"{how} killed, and something still runs after {ENDS} s")
        count["kills"] += 1
        count[f"killed: {how}"] += 1
        count["slowest end in ms"] = max(count["slowest end in ms"], round(1000 * (time.monotonic() - ended)))
    return True


# --- the loop -------------------------------------------------------------------------------------------------------


def trials(folder: Path, kills: int, minutes: float = 1e9, seed: int = 0, kinds: str = "any") -> collections.Counter:
    """Run further cases in `folder` until so many kills or minutes; returns the counts of all cases."""
    os.environ["FEDCORE_TIMEOUT"] = str(ENDS // 4)  # for a worker whose only peer died before they connected
    SERVER.set_forkserver_preload(["torch", "sklearn.datasets", "fedcore.reproduce"])
    folder.mkdir(parents=True, exist_ok=True)
    log, total, end = folder / "log.jsonl", collections.Counter(), time.monotonic() + 60 * minutes
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for line in lines:
        add(total, line["count"])
    k = len(lines)
    while total["kills"] < kills and time.monotonic() < end and total["failed"] < MOST:
        rng, count = random.Random(f"{seed}-{k}"), collections.Counter()
        case = drawn_batch(rng) if kinds == "batch" or (kinds == "any" and rng.random() < 0.25) else drawn(rng)
        place, error = folder / f"case{k}", None
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        try:
            (batch if case["kind"] == "batch" else run)(case, place, rng, count)
            shutil.rmtree(place)
        except Exception as e:
            error = f"{type(e).__name__}: {e}" if isinstance(e, Failed) else traceback.format_exc()
            print(f"case {k} failed, its files are in {place}: {error}\n{case}", file=sys.stderr, flush=True)
        count["cases"] += 1
        count["failed"] += error is not None
        with log.open("a") as f:
            f.write(json.dumps({"case": case, "count": count, "error": error}) + "\n")
        add(total, count)
        k += 1
    return total


def add(total: collections.Counter, count: dict[str, int]) -> None:
    slowest = max(total["slowest end in ms"], count.get("slowest end in ms", 0))
    total.update(count)
    total["slowest end in ms"] = slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", choices=("any", "run", "batch"), default="any")
    given = parser.parse_args()
    total = trials(given.folder, given.kills, given.minutes, given.seed, given.kinds)
    print("\n".join(f"{n:8,}  {name}" for name, n in sorted(total.items())))
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
