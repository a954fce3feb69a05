"""What bfloat16 costs in accuracy: three cells of the profile desk with and without `compute=torch.bfloat16`.

    python benchmarks/bfloat16.py results/benchmarks/bfloat16.json [--seeds 3] [--root DATA] [--threads 1]

Each cell runs with the setting that its search chose, and the same seeds for both types, so that a difference of one
seed has the same data, batches and first parameters on both sides.  lost: accuracy in float32 minus that in bfloat16,
in points, by seed.  The data are those of the cells: `--root`, or FEDCORE_DATA, has them.
"""

from __future__ import annotations

import json
import os
import time
from statistics import mean

from common import arguments, record

from fedbook.results import batch, cells
from fedbook.studies import training, tuning

CELLS = (
    "fedup-table4/CIFAR-10-q=0.3-FedAvg",
    "fedup-table4/FEMNIST-105-writers-FedAvg",
    "feddse-table3.5/EMNIST-letters-HeteroFL",
)


def main() -> None:
    """Train, print, write the JSON after each seed."""
    args = arguments(__doc__, 1, seeds={"type": int, "default": 3}, root={})
    if args.root:
        os.environ["FEDCORE_DATA"] = args.root
    rows = []
    for name in CELLS:
        file = batch.results() / "desk" / f"{name}.json"
        stored = cells.load(file, json.loads(file.read_text())["spec"])
        chosen = tuning.merged(stored.spec, stored.tuned["setting"] if stored.tuned else {})
        row = {"cell": name, "model": stored.spec["federation"]["model"], "float32": [], "bfloat16": [], "seconds": {}}
        rows.append(row)
        for seed in range(args.seeds):
            for kind in ("float32", "bfloat16"):
                spec = tuning.merged(chosen, {"federation": {"compute": kind}} if kind == "bfloat16" else {})
                begin = time.perf_counter()
                row[kind].append(training.simulate(spec, seed, None, args.device)["final"])
                row["seconds"][kind] = row["seconds"].get(kind, 0.0) + time.perf_counter() - begin
            row["lost"] = [a - b for a, b in zip(row["float32"], row["bfloat16"], strict=False)]
            print(name, seed, row["float32"][-1], row["bfloat16"][-1], f"{mean(row['lost']):+.2f}", flush=True)
            record(args, "accuracy in float32 and in bfloat16, profile desk", rows, seeds=args.seeds)


if __name__ == "__main__":
    main()
