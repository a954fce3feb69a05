"""FL-Simulator as its users run it, and the same federation here: seconds and accuracy side by side.

    python benchmarks/flsimulator.py results/benchmarks/flsimulator.json --source cifar10 --root DATA --threads 2
        [--repeats 1] [--rounds 10] [--environments ~/.cache/fedcore/peers]

Its documented setting: CIFAR-10, Dirichlet 0.6 with clients of equal size, 100 clients, 10 per round, LeNet, five
local epochs, batch 50, lr 0.1 times 0.998 a round, weight decay 0.001, clip 10; partition, cohorts and initial
parameters come from one file (its train.py flips a coin for each client).  FL-Simulator runs twice: as it is, with
images flipped and cropped at random and a test on all training and test images after each round; and without both.
fedcore flips and crops nothing, and runs without tests and with a test on the test images after each round.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np
import peers
from common import arguments, record
from peers import environments

import fedcore as fc

SETTING = {"lr": 0.1, "lr_decay": 0.998, "weight_decay": 0.001, "clip": 10.0, "batch_size": 50, "local_epochs": 5}
RUNS = (  # runner, variant, what it does beside the same training
    ("flsimulator", "users", "random copies; tests on training and test images"),
    ("flsimulator", "", "nothing"),
    ("fedcore", "users", "tests on test images"),
    ("fedcore", "auto", "nothing"),
    ("fedcore", "bfloat16", "nothing"),
)


def main() -> None:
    """Write the task, run all in turns, write the JSON."""
    args = arguments(
        __doc__, 1, threads=2,
        rounds={"type": int, "default": 10},
        source={"default": "synthetic"}, root={}, samples={"type": int, "default": 500},
        environments={"type": Path, "default": Path.home() / ".cache" / "fedcore" / "peers"},
    )  # fmt: skip
    if why := environments.make(args.environments, "flsimulator"):
        raise SystemExit(f"FL-Simulator could not be installed: {why}")
    pythons = {"fedcore": sys.executable, "flsimulator": environments.python(args.environments, "flsimulator")}
    lines: dict[tuple[str, str], list[dict]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.npz"

        def split(labels: np.ndarray) -> list[np.ndarray]:
            return fc.Dirichlet(0.6, equal_sizes=True).split(labels, peers.CLIENTS, np.random.default_rng(0), None)

        peers.write(file, "lenet", args.source, args.root, args.rounds, args.samples, split, SETTING)
        for repeat in range(args.repeats):
            for runner, variant, _ in RUNS[repeat % len(RUNS) :] + RUNS[: repeat % len(RUNS)]:
                line = peers.run(pythons[runner], runner, variant, "lenet", file, args, warmup=0)
                if "failed" in line:
                    raise SystemExit(f"{runner} {variant}: {line['failed']}")
                lines[runner, variant].append(line)
                print(repeat, runner, variant, line, flush=True)
    cases = []
    for runner, variant, more in RUNS:
        each, pairs = lines[runner, variant], lines["flsimulator", "users"]
        ratios = [b["seconds_per_round"] / a["seconds_per_round"] for a, b in zip(each, pairs, strict=True)]
        case = {"runner": f"{runner} {variant}".strip(), "beside training": more, "ratio": median(ratios)}
        case |= {"ratio_min": min(ratios), "ratio_max": max(ratios), "load": max(line["load"] for line in each)}
        cases.append(case | {key: median(line[key] for line in each) for key in ("seconds_per_round", "accuracy")})
    what = f"LeNet, {args.rounds} rounds, Dirichlet 0.6, 100 clients, 10 per round, five local epochs, batch 50"
    told = peers.versions(pythons["flsimulator"], "flsimulator")
    told = {"FL-Simulator": told.pop("commit"), "fedcore": fc.__version__, **told}
    record(args, what, cases, rounds=args.rounds, source=args.source, setting=SETTING, versions=told)


if __name__ == "__main__":
    main()
