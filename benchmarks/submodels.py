"""How much faster a compact sub-model of ratio r trains than the whole network: the thesis CNN on 28x28, paired runs.

    python benchmarks/submodels.py results/benchmarks/submodels.json [--repeats 7] [--device cpu]

Whole federated rounds are timed (extraction, local steps, combination; no evaluation): FedAvg against HeteroFL(r) with
the same clients and batches, one after the other in turns, so that both see the same machine.  The speed-up is the
median of the paired ratios, the goal what it is to be.  "masked" is the same training on the whole network, for
comparison.  On a CPU it is processor time of one thread, on CUDA elapsed time.  profile: seconds of a round by kind of
operator, as `torch.profiler` sees it, of the whole network (ratio 1) and of the compact sub-models.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np
import torch
from common import Watched, arguments, by_kind, record, unevaluated

import fedcore as fc
from fedbook.show.benchmarked import SUBMODELS
from fedcore.submodels import Width, cost

CLIENTS, SAMPLES, BATCH, ROUNDS = 4, 50, 10, 1


class WatchedFedAvg(Watched, fc.FedAvg):
    """FedAvg whose average is seen by the profiler as "server"."""


class WatchedHeteroFL(Watched, fc.HeteroFL):
    """HeteroFL whose combination is seen by the profiler as "server"."""


def seconds(method: fc.Method, fed: fc.Federation) -> float:
    """Time of the rounds of one run."""
    cuda = fed.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    clock = time.perf_counter if cuda else time.process_time
    start = clock()
    fc.simulate(method, fed, rounds=ROUNDS, lr=0.01, batch_size=BATCH, momentum=0.9, progress=False)
    if cuda:
        torch.cuda.synchronize()
    return clock() - start


def case(ratio: float, training: str, fed: fc.Federation, repeats: int) -> dict:
    """One line of the table."""
    methods = {"whole": fc.FedAvg(), "part": fc.HeteroFL(ratio, training=training)}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():  # warm up
        seconds(method, fed)
    for i in range(repeats):
        for name in sorted(methods, reverse=bool(i % 2)):
            times[name].append(seconds(methods[name], fed))
    speed = [a / b for a, b in zip(times["whole"], times["part"], strict=True)]
    full, small = (cost(m, (1, 28, 28)) for m in (fed.engine.module.cpu(), Width(ratio)(fed.engine.module.cpu())))
    fed.engine.module.to(fed.device)
    return {
        "ratio": ratio, "training": training, "speedup": statistics.median(speed), "speedup_min": min(speed),
        "speedup_max": max(speed), "goal": SUBMODELS[ratio], "reached": statistics.median(speed) >= SUBMODELS[ratio],
        "whole_seconds": statistics.median(times["whole"]), "part_seconds": statistics.median(times["part"]),
        "parameters_share": small["parameters"] / full["parameters"], "macs_share": small["macs"] / full["macs"],
    }  # fmt: skip


def main() -> None:
    args, lines = arguments(__doc__, 7), []
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (CLIENTS * SAMPLES, 1, 28, 28)).astype(np.uint8), np.arange(CLIENTS * SAMPLES) % 10
    fed = fc.federation(((x, y), (x[:10], y[:10])), clients=CLIENTS, model="thesis_cnn", device=args.device)
    fed = unevaluated(fed)
    for training in ("compact", "masked"):
        for ratio in SUBMODELS:
            line = case(ratio, training, fed, args.repeats)
            lines.append(line)
            print(
                f"r={ratio} {training}: {line['speedup']:.2f} times as fast ({line['speedup_min']:.2f} to "
                f"{line['speedup_max']:.2f}), goal {line['goal']:.1f}; {line['whole_seconds'] * 1e3:.0f} against "
                f"{line['part_seconds'] * 1e3:.0f} ms; {line['macs_share']:.3f} of the multiply-adds"
            )
    shown = {1.0: WatchedFedAvg(), **{ratio: WatchedHeteroFL(ratio) for ratio in SUBMODELS}}
    profile = [{"ratio": ratio, "seconds": by_kind(partial(seconds, method, fed))} for ratio, method in shown.items()]
    what = f"{CLIENTS} clients, {SAMPLES // BATCH} steps of batch {BATCH} each, thesis CNN on 28x28"
    record(args, what, lines, profile=profile)


if __name__ == "__main__":
    main()
