"""Several runs at once (`fc.simulate_many`) against the same runs one after another: a grid of rates times seeds.

    python benchmarks/together.py results/benchmarks/together.json [--repeats 5] [--threads 2]

FedAvg on 28x28 images, 100 of them a client, batches of 20; three rounds and one evaluation a run.  All ways take
turns, so that they see the same machine; the figure is the median of the paired ratios of elapsed time.  The goal is
1.5 for the MLP and the FEMNIST CNN with a cohort of 10.  Where one run on two threads is s times as fast as on one,
two cores have room for a gain of 2 / s at most.  "processes": the runs shared by as many processes of one thread each,
as `fc.sweep` does it; they are started before, and so is their federation made.
"""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from common import arguments, in_turns, record

import fedcore as fc

CLIENTS, SAMPLES, BATCH, ROUNDS = 40, 100, 20, 3
RATES, SEEDS, GOAL = (0.01, 0.02, 0.05, 0.1, 0.2), (0, 1), 1.5
CASES = (("mlp", 10), ("femnist_cnn", 10), ("mlp", 2), ("femnist_cnn", 2), ("logistic", 10), ("logistic", 2))


def federation(model: str, device: str) -> fc.Federation:
    """The clients that all runs share."""
    draw, n = np.random.default_rng(0), CLIENTS * SAMPLES
    x, y = draw.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n) % 10
    return fc.federation(((x, y), (x[:500], y[:500])), CLIENTS, model=model, device=device)


def prepared(model: str, device: str) -> None:
    """A process with one thread and the federation."""
    torch.set_num_threads(1)
    globals()["fed"] = federation(model, device)


def run(settings: dict[str, Any]) -> None:
    """A run in such a process."""
    fc.simulate(fed=globals()["fed"], progress=False, **settings)


def case(model: str, cohort: int, args: Any) -> dict[str, Any]:
    """One line of the table."""
    fed = federation(model, args.device)
    runs = [{"lr": lr, "seed": seed} for lr in RATES for seed in SEEDS]
    settings = {"method": fc.FedAvg(), "rounds": ROUNDS, "cohort": cohort, "batch_size": BATCH, "eval_every": ROUNDS}
    found: dict[str, Any] = {}

    def one_after_another() -> None:
        found["alone"] = [fc.simulate(fed=fed, progress=False, **settings, **one) for one in runs]

    def at_once() -> None:
        found["together"] = fc.simulate_many(runs, fed, progress=False, **settings)

    def in_processes() -> None:
        list(pool.map(run, [settings | one for one in runs]))

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.threads, spawn, initializer=prepared, initargs=(model, args.device)) as pool:
        seen = in_turns({work.__name__: work for work in (one_after_another, at_once, in_processes)}, args.repeats)
    times = {name: [wall for _, wall in each] for name, each in seen.items()}
    pairs = zip(found["alone"], found["together"], strict=True)
    speed, processes = (
        [a / b for a, b in zip(times["one_after_another"], times[way], strict=True)]
        for way in ("at_once", "in_processes")
    )
    return {
        "model": model, "cohort": cohort, "batch": BATCH, "runs": len(runs), "speedup": statistics.median(speed),
        "speedup_min": min(speed), "speedup_max": max(speed), "processes": statistics.median(processes),
        "processes_min": min(processes), "processes_max": max(processes),
        "samples_per_second": {
            name: len(runs) * ROUNDS * cohort * SAMPLES / statistics.median(some) for name, some in times.items()
        },
        "largest_difference": max(float((a.params - b.params).abs().max()) for a, b in pairs),
        **({"goal": GOAL, "reached": statistics.median(speed) >= GOAL} if cohort == 10 and model != "logistic" else {}),
    }  # fmt: skip


def main() -> None:
    args = arguments(__doc__, 5)
    lines = []
    for model, cohort in CASES:
        lines.append(case(model, cohort, args))
        print(lines[-1], flush=True)
    record(args, f"{len(RATES) * len(SEEDS)} runs at once against one after another", lines)


if __name__ == "__main__":
    main()
