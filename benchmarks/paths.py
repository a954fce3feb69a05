"""The engine's paths against one another and against two floors, in samples per second of CPU time.

    python benchmarks/paths.py results/benchmarks/paths.json [--quick] [--threads 1] [--repeats 5] [--models mlp lenet]

Floors: plain SGD of one model on as many samples, and the fastest known kernels of the same networks' products and
convolutions (`kernels`).  peaks: the machine's, 10^9 operations a second.
A path is timed as whole rounds of FedAvg (`simulate` without evaluation).  Runs are interleaved, and a ratio is the
median over the repeats of pairs.  Wall time is noted beside CPU time where there are more threads than one.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import kernels
import numpy as np
import torch
import torch.nn.functional as F
from common import arguments, in_turns, record, unevaluated
from torch import nn

import fedcore as fc
from fedcore.engine import products

# name: input shape, classes, local steps of a round, largest cohort
SETTINGS = {
    "logistic": ((1, 28, 28), 10, 20, 100),
    "mlp": ((1, 28, 28), 10, 20, 100),
    "femnist_cnn": ((1, 28, 28), 62, 10, 100),
    "lenet": ((3, 32, 32), 10, 8, 50),
    "thesis_cnn": ((1, 28, 28), 10, 10, 10),
    "resnet18_gn": ((3, 32, 32), 10, 10, 10),
    "resnet18_gn_3x3": ((3, 32, 32), 10, 5, 5),
}
COHORTS, BATCHES = (5, 10, 50, 100), (10, 20, 32, 50)
LARGE = ("thesis_cnn", "resnet18_gn", "resnet18_gn_3x3")  # minutes a cell: one cell only


def federation(model: str, clients: int, **options) -> fc.Federation:
    """Random images, at least 100 a client; what they show does not matter for speed."""
    shape, classes, _, _ = SETTINGS[model]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (max(4000, 100 * clients), *shape), np.uint8), None
    y = rng.integers(0, classes, len(x))
    return fc.federation(((x, y), (x[:2], y[:2])), clients=clients, model=model, device="cpu", **options)


def plain(fed, steps: int, batch: int) -> Callable[[], None]:
    """One model, mini-batch SGD as the PyTorch tutorial writes it, inputs normalised beforehand."""
    net = fed.engine.module
    opt, x, y = torch.optim.SGD(net.parameters(), lr=0.01), fed.inputs(fed.x), fed.y
    g = torch.Generator().manual_seed(0)

    def go() -> None:
        for _ in range(steps):
            i = torch.randint(0, len(y), (batch,), generator=g)
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(net(x[i]), y[i]).backward()
            opt.step()

    return go


def bare(fed, cohort: int, steps: int, batch: int) -> Callable[[], None]:
    """The fastest known products and convolutions of all layers with weights, and nothing else."""
    m = cohort if fed.d < fc.engine.SEQUENTIAL_FROM else 1
    with kernels.by(library := products.library()):
        calls = kernels.step(fed, m, batch)

    def go() -> None:
        with torch.no_grad(), kernels.by(library):
            for _ in range(steps * cohort // m):
                for call in calls:
                    call()

    return go


def rounds(fed, path: str, cohort: int, steps: int, batch: int) -> Callable[[], None]:
    fed = unevaluated(fed.forced(path))  # where there is batch norm it reads all data
    run = {"rounds": 1, "cohort": cohort, "lr": 0.01, "local_steps": steps, "batch_size": batch, "progress": False}
    return lambda: fc.simulate(fc.FedAvg(), fed, **run)


def measure(model: str, cohort: int, batch: int, repeats: int) -> dict:
    """Samples per second of every path and floor, and the ratios to plain SGD."""
    steps = SETTINGS[model][2]
    feds = {"": federation(model, max(cohort, 100 if cohort < 50 else cohort))}
    if any(isinstance(layer, nn.Conv2d) for layer in feds[""].engine.module.modules()):
        feds[" bfloat16"] = federation(model, feds[""].n, compute=torch.bfloat16)
    runs = {"plain SGD": plain(feds[""], steps * cohort, batch), "bare work": bare(feds[""], cohort, steps, batch)}
    for name, fed in feds.items():
        for path in fc.engine.PATHS if not name else ("written",):
            if path == "batched" and feds[""].d > 1e6:  # takes minutes, and nobody's choice on a CPU
                continue
            try:
                runs[path + name] = rounds(fed, path, cohort, steps, batch)
            except ValueError:  # no rule for this model
                continue
    times = in_turns(runs, repeats)
    samples = steps * cohort * batch
    row = {"model": model, "cohort": cohort, "batch": batch, "local_steps": steps, "parameters": feds[""].d}
    row["samples_per_cpu_second"] = {k: samples / median(t for t, _ in v) for k, v in times.items()}
    row["samples_per_second"] = {k: samples / median(t for _, t in v) for k, v in times.items()}
    row["ratio_to_plain"] = {
        k: median(p / t for (p, _), (t, _) in zip(times["plain SGD"], v, strict=True)) for k, v in times.items()
    }
    return row


def main() -> None:
    """Measure, print a table, write the JSON."""
    models = {"nargs": "*", "default": [m for m in SETTINGS if m in fc.models.MODELS]}
    quick = {"action": "store_true", "help": "only cohort 10 and batch 20"}
    args, rows = arguments(__doc__, 5, models=models, quick=quick), []
    peaks = kernels.peaks()
    swept = [*((m, 20) for m in COHORTS), *((10, B) for B in BATCHES if B != 20)]
    for model in args.models:
        largest = SETTINGS[model][3]
        cells = [(10, 20)] if args.quick or model in LARGE else swept
        for cohort, batch in dict.fromkeys((min(m, largest), B) for m, B in cells):
            row = measure(model, cohort, batch, args.repeats)
            rows.append(row)
            ratios = "  ".join(f"{k} {v:.2f}" for k, v in row["ratio_to_plain"].items())
            print(f"{model:16} m={cohort:<4} B={batch:<3} {ratios}", flush=True)
            record(
                args, "whole rounds of FedAvg against plain SGD of one model", rows, peaks=peaks
            )  # a long run keeps what it has


if __name__ == "__main__":
    main()
