"""What the benchmarks share: their arguments, and a JSON that says where the figures come from."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import fedcore as fc
from fedbook.results import provenance
from fedcore.storage import sources


class Unevaluated(fc.Federation):
    """A federation whose evaluation takes no time, so that rounds alone are measured."""

    def evaluate(self, x: torch.Tensor, reading: str | None = None) -> dict[str, torch.Tensor]:
        return {}


def unevaluated(fed: fc.Federation) -> Unevaluated:
    """The same federation without evaluation."""
    return Unevaluated(fed.data, fed.engine, fed.x0, fed.partition, fed.seed)


def in_turns(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of processor and of wall of every run, one after the other in turns; a first turn is a rehearsal."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: seen[1:] for name, seen in times.items()}


def arguments(doc: str, repeats: int, threads: int = 1, **more: dict[str, Any]) -> argparse.Namespace:
    """`out`, `--repeats`, `--device`, `--threads` (fixed from here on), and `more`: name -> argparse's settings.

    Raises provenance.UncommittedCode where `out` would be kept and the code is no commit's.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=threads)
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    args = parser.parse_args()
    provenance.check_committed(args.out)
    torch.set_num_threads(args.threads)
    return args


def record(args: argparse.Namespace, what: str, cases: Iterable[dict[str, Any]], **more: Any) -> None:
    """Write the cases with their provenance, and `more`, to `args.out`."""
    told = {"what": what, "repeats": args.repeats, "code": sources.library(), **provenance.machine(args.device)}
    told |= {"cores": os.cpu_count(), "capability": torch.backends.cpu.get_cpu_capability()}
    told |= {"load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d"), **more, "cases": list(cases)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(told, indent=1) + "\n")


KINDS = {  # kind of operator: what its name holds
    "recurrent kernel": ("rnn",),
    "convolution": ("conv",),
    "products": ("mm", "matmul", "dot"),
    "copies": ("copy", "clone", "contiguous", "cat", "zero", "fill", "empty"),
    "indexing": ("index", "gather", "scatter", "embedding"),
    "pooling": ("pool",),
    "norms": ("batch_norm", "group_norm"),
}


def kind_of(event: Any) -> str:
    """The kind of a profiled operator: the part of the round that it is in, else what its name says."""
    at = event
    while at is not None:
        if at.name in ("data", "server"):
            return at.name
        at = at.cpu_parent
    name = event.name.removeprefix("aten::")
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "pointwise, sums")


class Watched:
    """A method whose work on the server is seen by the profiler as "server"; put it before the method's class."""

    def aggregate(self, r: Any, y: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.profiler.record_function("server"):
            return super().aggregate(r, y)


def by_kind(go: Callable[[], object]) -> dict[str, float]:
    """Seconds of a run by kind of operator, most first; "Python" is what no operator took.  Run twice, seen once."""
    go()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        begin = time.perf_counter()
        go()
        whole = time.perf_counter() - begin
    found: dict[str, float] = defaultdict(float)
    for event in seen.events():
        found[kind_of(event)] += 1e-6 * event.self_cpu_time_total
    found["Python"] = whole - sum(found.values())
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
