"""Time of one mixing step X <- W X: neighbour lists against a dense product, the same rows, paired runs.

    python benchmarks/mixing.py results/benchmarks/mixing.json [--repeats 9] [--device cpu]

Random 10-regular graphs of 100 and 1,000 clients; d of the CIFAR LeNet (797,962) where it fits, 100,000 otherwise.
The lists are forced; `chosen` says which of the two `W @ X` takes by itself at this size.
Each repeat times both products one after the other, in turns, so that both see the same machine; the ratio is the
median of the paired ratios.  On a CPU it is processor time of one thread, on CUDA elapsed time between events.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, record

from fedcore import topology

CASES = [(100, 100_000), (100, 797_962), (1000, 100_000)]
DEGREE = 10


def seconds(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Time of one call."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3
    start = time.process_time()
    work()
    return time.process_time() - start


def case(n: int, d: int, dtype: torch.dtype, device: torch.device, repeats: int) -> dict:
    """One line of the table."""
    X = torch.randn(n, d, dtype=dtype, device=device)
    W = topology.mixing(topology.RandomRegular(DEGREE), n, device=device, dtype=dtype)
    dense, chosen = W.dense(), "dense" if W.indices.shape[1] * topology.SPARSE > n else "lists"
    works = {"lists": lambda: W @ X, "dense": lambda: dense @ X}
    limit, topology.SPARSE = topology.SPARSE, 0
    error = float((works["lists"]() - works["dense"]()).abs().max())  # also the warm-up
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(repeats):
        for name in sorted(works, reverse=bool(i % 2)):
            times[name].append(seconds(works[name], device))
    topology.SPARSE = limit
    draws = []
    for t in range(repeats):
        start = time.process_time()
        topology.mixing(topology.RandomRegular(DEGREE), n, seed=1, t=t)
        draws.append(time.process_time() - start)
    ratios = [b / a for a, b in zip(times["lists"], times["dense"], strict=True)]
    return {
        "clients": n, "chosen": chosen, "degree": DEGREE, "d": d, "dtype": str(dtype).removeprefix("torch."),
        "lists_seconds": statistics.median(times["lists"]), "dense_seconds": statistics.median(times["dense"]),
        "dense_over_lists": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        "draw_seconds": statistics.median(draws), "largest_difference": error,
    }  # fmt: skip


def main() -> None:
    args, lines = arguments(__doc__, 9), []
    for dtype in (torch.float32, torch.float64):
        for n, d in CASES:
            line = case(n, d, dtype, torch.device(args.device), args.repeats)
            lines.append(line)
            print(
                f"n={n:5,} d={d:8,} {line['dtype']}: lists {line['lists_seconds'] * 1e3:8.1f} ms, dense "
                f"{line['dense_seconds'] * 1e3:8.1f} ms, dense/lists {line['dense_over_lists']:.2f} "
                f"({line['ratio_min']:.2f} to {line['ratio_max']:.2f}), drawing W {line['draw_seconds'] * 1e3:.1f} ms; "
                f"chosen: {line['chosen']}"
            )
    record(args, "one mixing step X <- W X, random regular graph", lines)


if __name__ == "__main__":
    main()
