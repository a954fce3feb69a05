"""FedAvg here and in other simulators: the same work, the same threads, in turns; accuracies must agree.

    python benchmarks/peers.py results/benchmarks/peers.json --threads 2 [--repeats 5] [--rounds 6]
        [--environments ~/.cache/fedcore/peers] [--source mnist --root DATA]

100 clients of 600 images of 28x28 in 10 classes, 10 per round, one local epoch of plain SGD, batch 32, one learning
rate for all; the 784-200-200-10 MLP, a CNN of two 5x5 convolutions (10, 20) and a linear layer, and the CIFAR LeNet on
images of 3x32x32, a sixth as many of them.  Partition, initial
parameters and cohorts come from one file (Flower draws its cohorts itself).  Every client has the same number of
samples, so nobody pads.  Images are synthetic unless a source is named: each class has three blocky patterns, shifted
and noisy.

Each repeat starts each runner of `runners/` once in a process of its own, pinned to as many cores as threads where the
system can; the order turns from repeat to repeat.  A runner gives the median time of its rounds after the warm-up; the
figures are medians over the repeats, ratios medians of the repeats' ratios to the fastest peer.  A peer that cannot
be installed or run stands under `missing` with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
from common import arguments, record

from fedbook.show.benchmarked import PEERS
from fedcore import models, rng
from fedcore.data import sources

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "runners"))
import environments  # noqa: E402
from task import BATCH, LR  # noqa: E402

CLIENTS, COHORT, WARMUP = 100, 10, 2
TOLERANCE = 0.02  # of accuracy, between any runner and fedcore's float32; orders of samples differ
OURS = {"mlp": ("auto", "batched"), "cnn": ("auto", "batched", "bfloat16"), "lenet": ("auto", "bfloat16")}
NAMES = {"cnn": "femnist_cnn"}  # elsewhere in fedcore
SHARE = {"lenet": 6}  # what the number of samples is divided by
SETTINGS = {"lr": LR, "batch_size": BATCH}
TIMEOUT = 600


def pictures(n: int, seed: int = 0, shape: tuple[int, int] = (1, 28)) -> tuple[np.ndarray, np.ndarray]:
    """n noisy uint8 images `[n, C, h, h]`, shape (C, h), with labels: one of three blocky patterns of the class,
    shifted."""
    (channels, side), g = shape, np.random.default_rng(0)
    patterns = np.kron(g.standard_normal((10, 3, channels, side // 4, side // 4)), np.ones((4, 4)))
    g = np.random.default_rng([1, seed])
    y, which, dx, dy = g.integers(0, 10, n), g.integers(0, 3, n), g.integers(-3, 4, n), g.integers(-3, 4, n)
    x = patterns[y, which]
    rows, columns = ((np.arange(side) + d[:, None]) % side for d in (dy, dx))
    x = x.transpose(0, 2, 3, 1)[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].transpose(
        0, 3, 1, 2
    )
    x = 128 + 40 * x + 60 * g.standard_normal(x.shape, np.float32)
    return np.clip(x, 0, 255).astype(np.uint8), y


def deal(labels: np.ndarray) -> list[np.ndarray]:
    """As many random samples for each client as for the others."""
    order = np.random.default_rng(0).permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, CLIENTS)]


def write(
    file: Path, model: str, source: str, root: str | None, rounds: int, per_client: int,
    split: Callable[[np.ndarray], list[np.ndarray]] = deal, settings: Mapping[str, float] = SETTINGS,
) -> None:  # fmt: skip
    """The task that all runners read: data, partition, cohorts, initial parameters, settings of local training."""
    if source == "synthetic":
        shape = (3, 32) if model == "lenet" else (1, 28)
        (x, y), (test_x, test_y) = pictures(CLIENTS * per_client, 0, shape), pictures(10_000, 1, shape)
    else:
        data = sources.load(source, root)
        x, y, test_x, test_y = data.train_x, data.train_y, data.test_x, data.test_y
    parts = split(y)
    net = models.build(NAMES.get(model, model), x.shape[1:], 10, 0)
    starts = {f"{model}.{k:02d}": p.detach().numpy() for k, p in enumerate(net.parameters())}
    np.savez(
        file, x=x, y=y, test_x=test_x, test_y=test_y, statistics=np.array([x.mean(), x.std()], np.float32),
        order=np.concatenate(parts), sizes=[len(part) for part in parts],
        cohorts=[rng.cohort(0, t, CLIENTS, COHORT) for t in range(rounds)], settings=json.dumps(settings), **starts,
    )  # fmt: skip


def run(
    python: Path | str, runner: str, variant: str, model: str, file: Path, args: Namespace, warmup: int = WARMUP
) -> dict:
    """One runner's line; {"failed": reason} where it gives none."""
    words = [str(python), str(HERE / "runners" / f"run_{runner}.py"), str(file), "--model", model]
    given = {"--rounds": args.rounds, "--warmup": warmup, "--threads": args.threads, "--variant": variant}
    words += [str(word) for pair in given.items() for word in pair]
    quiet = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "FLWR_TELEMETRY_ENABLED": "0"}
    quiet |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": str(args.threads)}
    paths = [str(HERE / "runners"), *([str(HERE.parent)] if runner == "fedcore" else [])]
    try:
        done = subprocess.run(
            words, env={**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True,
            timeout=TIMEOUT, preexec_fn=_pin(args.threads), cwd=file.parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {TIMEOUT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds_per_round"')]
    if lines:
        return json.loads(lines[-1])
    return {"failed": environments.last_words(done.stderr)}


def _pin(threads: int):
    if not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return lambda: os.sched_setaffinity(0, cores)


def versions(python: Path, peer: str) -> dict[str, str]:
    """Of the peer and what it computes with."""
    cloned = {"commit": environments.CLONED[peer][1][:12]} if peer in environments.CLONED else {}
    names = [
        *(() if cloned else (environments.PACKAGES[peer],)),
        *(("jax", "jaxlib") if peer == "fedjax" else ("torch",)),
        "numpy",
    ]
    names += ["ray"] if peer == "flower" else []
    code = "import sys, json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    return cloned | json.loads(done.stdout)


def summary(model: str, lines: dict[str, list[dict]]) -> list[dict]:
    """A case for each runner of one model, with its ratio to the fastest peer in the same repeat."""
    speed = {name: [line["samples_per_second"] for line in each] for name, each in lines.items()}
    peers = [name for name in lines if not name.startswith(("fedcore", "loop"))]
    best = max(peers, key=lambda name: median(speed[name]), default=None)
    reference = median(line["accuracy"] for line in lines["fedcore auto"])
    cases = []
    for name, each in lines.items():
        accuracy = median(line["accuracy"] for line in each)
        case = {"model": model, "runner": name, "repeats": len(each), "samples_per_second": median(speed[name])}
        case |= {"seconds_per_round": median(line["seconds_per_round"] for line in each), "accuracy": accuracy}
        case |= {"agrees": abs(accuracy - reference) <= TOLERANCE, "load": max(line["load"] for line in each)}
        if best is not None:
            ratios = [a / b for a, b in zip(speed[name], speed[best], strict=False)]
            case |= {"ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios), "to": best}
        cases.append(case)
    return cases


def reached(cases: list[dict]) -> list[dict]:
    """The goals, and the figure that answers each: in float32 that of the path which nobody has to choose."""
    out = []
    for (model, kind), goal in PEERS.items():
        name = f"fedcore {'auto' if kind == 'float32' else kind}"
        for case in cases:
            if (case["model"], case["runner"]) == (model, name) and "ratio" in case:
                told = {"model": model, "kind": kind, "goal": goal}
                out.append(told | {"ratio": case["ratio"], "reached": case["ratio"] >= goal})
    return out


def main() -> None:
    """Make the environments and the task, run all in turns, write the JSON."""
    args = arguments(
        __doc__, 5,
        rounds={"type": int, "default": 6},
        environments={"type": Path, "default": Path.home() / ".cache" / "fedcore" / "peers"},
        source={"default": "synthetic"}, root={}, samples={"type": int, "default": 600},
        models={"nargs": "*", "default": list(OURS)}, only={"nargs": "*"},
    )  # fmt: skip
    missing, told, runners = {}, {}, {"fedcore": sys.executable, "loop": sys.executable}
    for peer in environments.PEERS:
        if args.only is None or peer in args.only:
            why = environments.make(args.environments, peer)
            python = environments.python(args.environments, peer)
            if why:
                missing[peer] = why
            else:
                runners[peer], told[peer] = python, versions(python, peer)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            file = Path(folder) / f"{model}.npz"
            write(file, model, args.source, args.root, args.rounds + WARMUP, args.samples // SHARE.get(model, 1))
            jobs = [("fedcore", variant) for variant in OURS[model]] + [
                (name, "") for name in runners if name != "fedcore"
            ]
            lines: dict[str, list[dict]] = defaultdict(list)
            for repeat in range(args.repeats):
                turn = repeat % len(jobs)
                for runner, variant in jobs[turn:] + jobs[:turn]:
                    name = f"{runner} {variant}".strip()
                    if name in missing:
                        continue
                    line = run(runners[runner], runner, variant, model, file, args)
                    if "failed" in line:
                        missing[name] = f"{model}: {line['failed']}"
                        lines.pop(name, None)
                    else:
                        lines[name].append(line)
                    print(repeat, model, name, line, flush=True)
            cases += summary(model, lines)
    for case in cases:
        print(f"{case['model']} {case['runner']:18} {case['samples_per_second']:9,.0f} samples/s "
              f"{case.get('ratio', float('nan')):5.2f} x {case.get('to')}  accuracy {case['accuracy']:.4f}"
              f"{'' if case['agrees'] else '  DIFFERS'}")  # fmt: skip
    more = {"rounds": args.rounds, "source": args.source, "samples": args.samples, "tolerance": TOLERANCE}
    what = f"FedAvg, {CLIENTS} clients, {COHORT} per round, one epoch, batch 32, {args.rounds + WARMUP} rounds"
    record(args, what, cases, **more, goals=reached(cases), versions=told, missing=missing)


if __name__ == "__main__":
    main()
