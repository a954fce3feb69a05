"""What the benchmarks share: their arguments, and a JSON that says where the figures come from."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import fedcore as fc
from fedcore.experiments import provenance


class Unevaluated(fc.Federation):
    """A federation whose evaluation takes no time, so that rounds alone are measured."""

    def evaluate(self, x: torch.Tensor, reading: str | None = None) -> dict[str, torch.Tensor]:
        return {}


def unevaluated(fed: fc.Federation) -> Unevaluated:
    """The same federation without evaluation."""
    return Unevaluated(fed.data, fed.engine, fed.x0, fed.partition, fed.seed)


def arguments(doc: str, repeats: int, **more: dict[str, Any]) -> argparse.Namespace:
    """`out`, `--repeats`, `--device`, `--threads` (fixed from here on), and `more`: name -> argparse's settings.

    Raises provenance.UncommittedCode where `out` would be kept and the code is no commit's.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    for name, how in more.items():
        parser.add_argument(f"--{name}", **how)
    args = parser.parse_args()
    provenance.check_committed(args.out)
    torch.set_num_threads(args.threads)
    return args


def record(args: argparse.Namespace, what: str, cases: Iterable[dict[str, Any]], **more: Any) -> None:
    """Write the cases with their provenance, and `more`, to `args.out`."""
    told = {"what": what, "repeats": args.repeats, "code": provenance.library(), **provenance.machine(args.device)}
    told |= {"cores": os.cpu_count(), "capability": torch.backends.cpu.get_cpu_capability()}
    told |= {"load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d"), **more, "cases": list(cases)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(told, indent=1) + "\n")
