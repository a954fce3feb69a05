"""Whether `torch.compile` makes the batched gradient of a cohort faster: CPU time of a step, and the time it compiles.

    python benchmarks/compile.py results/benchmarks/compile.json [--repeats 20] [--device cpu]

`fedcore.engine.replay.compiled` against the engine's batched and written paths.  One thread; runs in turns, medians of
processor time (on CUDA: elapsed).  Another shape is compiled again.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from common import arguments, record

import fedcore as fc
from fedcore.engine import replay

COHORT, BATCH = 10, 20
MODELS = {"mlp": 10, "femnist_cnn": 62}


def case(model: str, classes: int, repeats: int, device: torch.device) -> dict:
    """One model's line."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (1000, 1, 28, 28), np.uint8), np.arange(1000) % classes
    feds = {
        path: fc.federation(((x, y), (x[:9], y[:9])), clients=COHORT, model=model, path=path, device=device)
        for path in ("batched", "written")
    }
    feds["compiled"] = replay.compiled(feds["batched"])
    fed = feds["batched"]
    Y, plan = fed.x0.repeat(COHORT, 1), fed.plan(0, 0, np.arange(COHORT), steps=1, batch_size=BATCH)
    batch = fed.batch(plan, 0, slice(COHORT))
    works = {path: lambda f=f: f.engine.gradient(Y, batch)[0] for path, f in feds.items()}
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in works}
    start = time.perf_counter()
    error = float((works["compiled"]() - works["batched"]()).abs().max())
    first = time.perf_counter() - start
    for _ in range(repeats + 3):
        for name, work in works.items():
            begin = clock()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(clock() - begin)
    medians = {f"{name}_seconds": statistics.median(t[3:]) for name, t in times.items()}
    return {
        "model": model,
        "cohort": COHORT,
        "batch": BATCH,
        "compiling_seconds": first,
        "difference": error,
        **medians,
    }


def main() -> None:
    args = arguments(__doc__, 20)
    lines = [case(model, classes, args.repeats, torch.device(args.device)) for model, classes in MODELS.items()]
    for line in lines:
        print(line)
    record(args, "one gradient of a cohort, in seconds", lines)


if __name__ == "__main__":
    main()
