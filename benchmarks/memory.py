"""Memory that a round of FedAvg takes at its peak, against the least that it needs.

    python benchmarks/memory.py results/benchmarks/memory.json [--repeats 3]

Each case runs in a process of its own, one thread.  After the federation is built, a round of one client and one
sample loads what libraries load once; then the process's high-water mark of resident memory is reset (Linux), three
local steps are run, and the mark is read.  taken = data + server's vector + what the mark rose by; needed = data +
server's vector + parameters, gradients and activations (outputs of all layers) of the cohort, the last two of a chunk
where there are chunks.  The written path may take less: it has no matrix of gradients and computes clients in blocks.
The goal is taken <= 1.5 needed.

"returned": the C library gives freed blocks back at once (MALLOC_MMAP_THRESHOLD_), so the mark is what the round holds.
"kept": as users run it; what the library keeps for later counts.  `evaluation`: the rise by an evaluation alone.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from common import arguments, record, unevaluated

import fedcore as fc

BATCH, STEPS, CLIENTS, SAMPLES = 20, 3, 100, 100
MODELS = {"mlp": 10, "femnist_cnn": 62}
KINDS = [
    (10, "batched", None),
    (10, "written", None),
    (50, "batched", None),
    (50, "written", None),
    (50, "batched", 10),
]
CASES = [{"model": m, "cohort": n, "path": path, "chunk": chunk} for m in MODELS for n, path, chunk in KINDS]


def status(name: str) -> int:
    """A line of this process's status, in bytes: VmRSS is resident memory, VmHWM its high-water mark."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def rise(work) -> int:
    """Bytes by which resident memory exceeds what it is now, at most, while `work` runs."""
    Path("/proc/self/clear_refs").write_text("5")  # the mark falls to what is resident now
    before = status("VmRSS")
    work()
    return max(0, status("VmHWM") - before)


def child(model: str, cohort: int, path: str, chunk: int | None) -> dict:
    """One case, in this process."""
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (CLIENTS * SAMPLES, 1, 28, 28), np.uint8), None
    y = draw.integers(0, MODELS[model], len(x))
    fed = fc.federation(((x, y), (x[:2000], y[:2000])), clients=CLIENTS, model=model, device="cpu", path=path)
    run = {"rounds": 1, "lr": 0.01, "progress": False}
    rounds_alone = unevaluated(fed)
    fc.simulate(fc.FedAvg(), rounds_alone, cohort=1, local_steps=1, batch_size=1, **run)
    run |= {"cohort": cohort, "local_steps": STEPS, "batch_size": BATCH, "chunk": chunk}
    taken = rise(lambda: fc.simulate(fc.FedAvg(), rounds_alone, **run))
    plan = fed.plan(0, 0, np.arange(cohort), steps=1, batch_size=BATCH)
    batch = fed.batch(plan, 0, slice(cohort))
    together, number = min(cohort, chunk or cohort), fed.x0.element_size()
    fixed = sum(t.numel() * t.element_size() for t in (fed.x, fed.y, *fed.test)) + fed.d * number
    parts = {
        "parameters": cohort * fed.d * number,
        "gradients": together * fed.d * number,
        "activations": together * BATCH * fed.engine.width(batch.x[0, :2]) * number,
    }
    return {"fixed": fixed, **parts, "rise": taken, "evaluation": rise(lambda: fed.evaluate(fed.x0))}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(**json.loads(sys.argv[2]))))
        return
    args, lines = arguments(__doc__, 3), []
    for case in CASES:
        command, line = [sys.executable, __file__, "--child", json.dumps(case)], {**case, "batch": BATCH}
        for blocks, setting in (("returned", {"MALLOC_MMAP_THRESHOLD_": "131072"}), ("kept", {})):
            work = {"capture_output": True, "text": True, "check": True, "env": {**os.environ, **setting}}
            seen = [json.loads(subprocess.run(command, **work).stdout) for _ in range(args.repeats)]
            sizes = {k: statistics.median(s[k] for s in seen) for k in seen[0]}
            rises = {k: sizes.pop(k) for k in ("rise", "evaluation")}
            needed = sum(sizes.values())
            ratio = (sizes["fixed"] + rises["rise"]) / needed
            line |= {**sizes, "needed": needed, blocks: {**rises, "ratio": ratio, "reached": ratio <= 1.5}}
        lines.append(line)
        print(
            f"{case['model']:12} cohort {case['cohort']:3} {case['path']:8} chunk {case['chunk']}: "
            f"{line['returned']['ratio']:.2f} of the {needed / 1e6:.1f} MB that are needed "
            f"({line['kept']['ratio']:.2f} with the blocks that the C library keeps)", flush=True,
        )  # fmt: skip
    record(args, "peak of resident memory of a round of FedAvg, in bytes", lines)


if __name__ == "__main__":
    main()
