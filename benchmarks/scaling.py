"""Time per round and memory against cohort, registered clients and model size.

    python benchmarks/scaling.py results/benchmarks/scaling.json [--repeats 9] [--device cpu] [--threads 1]

One data set of 4,096 random images serves any number of clients: each holds 20 of them, drawn with replacement, so that
only the clients grow and not the data.  A round is timed from one average to the next, inside one run, so that what
is done once a run is left out: processor time on a CPU, elapsed time with synchronisation on CUDA.

Registered clients: 10 of n take part, 5 steps of batch 20, in logistic regression, whose rounds are so short that any
work for all n would show.  Each repeat times every n in turns; ratios are medians of the repeats' ratios to
n = 1,000.  SCAFFOLD keeps a vector per client: `state_bytes` is that matrix, n x d; memory that was never written to
may not be resident.  Cohort: FEMNIST CNN.  Size: networks with two hidden layers, 10 clients.
`peak_bytes` is measured before all timing, each case in a fork of the process: the peak of resident memory while two
rounds run, less what was resident before the federation was made, behind a rehearsal with two clients (Linux; on CUDA
the peak of allocated memory; elsewhere null).
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import arguments, record

import fedcore as fc
from fedcore import models

REGISTERED, BASE = (100, 1_000, 10_000, 100_000), 1_000
COHORTS = (1, 3, 10, 30, 100, 300, 1_000)
HIDDEN = ((25, 25), (100, 100), (200, 200), (800, 400), (2_000, 1_000))
GOAL = 1.05  # a round with 100,000 registered clients over one with 1,000
SAMPLES, BATCH = 20, 20


@dataclass(frozen=True)
class Shared:
    """Clients of `SAMPLES` samples each, drawn with replacement from one data set."""

    overlapping = True

    def split(self, labels, clients, rng, owner):
        return list(rng.integers(0, len(labels), (clients, SAMPLES)))


def federation(clients: int, model: Any, device: str) -> fc.Federation:
    """n clients on one data set; made before anything is timed."""
    g = np.random.default_rng(0)
    x, y = g.integers(0, 256, (4096, 1, 28, 28), np.uint8), np.arange(4096) % 10
    data = ((x, y), (x[:10], y[:10]))
    return fc.federation(data, clients=clients, partition=Shared(), model=model, device=device)


def timed(kind: type[fc.Method], fed: fc.Federation, rounds: int, **run: Any) -> tuple[float, fc.History]:
    """Median seconds of a round (the first is a rehearsal), and the history."""
    cuda, ends = fed.device.type == "cuda", []

    class Timed(kind):
        def aggregate(self, r, y):
            out = super().aggregate(r, y)
            if cuda:
                torch.cuda.synchronize()
            ends.append(time.perf_counter() if cuda else time.process_time())
            return out

    options = {"lr": 0.01, "batch_size": BATCH, "progress": False} | run
    history = fc.simulate(Timed(), fed, rounds=rounds + 1, eval_every=rounds + 1, **options)
    return float(median(np.diff(ends))), history


def resident(device: str, peak: bool) -> int | None:
    """Bytes of this process now, or at their peak."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return 1024 * int(status.split("VmHWM:" if peak else "VmRSS:")[1].split()[0])


def memory(kind: type[fc.Method], clients: int, model: Any, device: str, **run: Any) -> dict[str, int | None]:
    """What a federation and two rounds of it take, in a fork of this process."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return {"peak_bytes": None, "state_bytes": None}
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(False)

    def work() -> None:
        timed(kind, federation(2, model, device), 1, **{**run, "cohort": 1})
        gc.collect()
        before = resident(device, False)
        fed = federation(clients, model, device)
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        elif before is not None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        _, history = timed(kind, fed, 1, **run)
        peak = None if before is None else resident(device, True) - before
        there.send({"peak_bytes": peak, "state_bytes": sum(history.state[name].nbytes for name in kind.client_state)})

    process = fork.Process(target=work)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the run of {kind.__name__} with {clients:,} clients ended with code {process.exitcode}")
    return here.recv()


def sweep(cases: list[dict], runs: list[Any], repeats: int) -> list[list[float]]:
    """Seconds of every case in turns; `[repeats][cases]`."""
    table = []
    for i in range(repeats):
        seconds = [0.0] * len(runs)
        for j in sorted(range(len(runs)), reverse=bool(i % 2)):
            seconds[j] = runs[j]()
        table.append(seconds)
    for case, column in zip(cases, zip(*table, strict=True), strict=True):
        case |= {"seconds_per_round": median(column), "seconds_min": min(column), "seconds_max": max(column)}
    return table


def settings() -> list[tuple[dict, Any, type[fc.Method], int, dict]]:
    """Case, model, method, timed rounds in proportion, and the arguments of its runs."""
    out, few = [], {"local_steps": 2}
    for m in COHORTS:
        case = {"against": "cohort", "clients": 1_000, "cohort": m}
        out.append((case, "femnist_cnn", fc.FedAvg, 1 if m > 100 else 3, {"cohort": m, **few}))
    for hidden in HIDDEN:
        case = {"against": "d", "clients": 1_000, "cohort": 10}
        out.append((case, partial(models.mlp, hidden=hidden), fc.FedAvg, 3, {"cohort": 10, **few}))
    for kind in (fc.FedAvg, fc.FedUp, fc.SCAFFOLD):
        for n in REGISTERED:
            case = {"against": "registered", "clients": n, "cohort": 10}
            out.append((case, "logistic", kind, 60, {"cohort": 10, "local_steps": 5}))
    return out


def main() -> None:
    """Measure, print, write the JSON."""
    args, todo, cases = arguments(__doc__, 9), settings(), []
    for case, model, kind, _, run in todo:
        cases.append({**case, "method": kind.__name__, **memory(kind, case["clients"], model, args.device, **run)})
    groups: dict[tuple[str, str], list[tuple[dict, Any]]] = defaultdict(list)
    for case, (_, model, kind, rounds, run) in zip(cases, todo, strict=True):
        fed = federation(case["clients"], model, args.device)
        case["d"] = fed.d
        work = lambda kind=kind, fed=fed, rounds=rounds, run=run: timed(kind, fed, rounds, **run)[0]  # noqa: E731
        groups[case["against"], case["method"]].append((case, work))
    for (against, _), group in groups.items():
        few = args.repeats if against == "registered" else max(1, args.repeats // 3)
        table = sweep(*map(list, zip(*group, strict=True)), few)
        for j, (case, _) in enumerate(group if against == "registered" else ()):
            ratios = [float(seconds[j] / seconds[REGISTERED.index(BASE)]) for seconds in table]
            case |= {"ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    for case in cases:
        peak, state = (float("nan") if case[k] is None else case[k] / 1e6 for k in ("peak_bytes", "state_bytes"))
        print(
            f"{case['against']:10} {case['method']:9} n={case['clients']:7,} m={case['cohort']:5,} d={case['d']:9,}: "
            f"{case['seconds_per_round'] * 1e3:9.2f} ms, peak {peak:8.1f} MB, states {state:8.1f} MB, "
            f"over n={BASE:,} {case.get('ratio', float('nan')):.3f}"
        )
    goals = [
        {"method": c["method"], "kind": f"{max(REGISTERED):,} over {BASE:,} registered clients", "goal": GOAL,
         "ratio": c["ratio"], "reached": c["ratio"] < GOAL}
        for c in cases if c["clients"] == max(REGISTERED) and not getattr(fc, c["method"]).client_state
    ]  # fmt: skip
    record(args, "time per round and memory, 20 samples a client from one data set", cases, goals=goals)


if __name__ == "__main__":
    main()
