"""What the benchmarks share: their arguments, and a JSON that says where the figures come from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fedcore.reproduce.cells import provenance


def arguments(doc: str, repeats: int) -> argparse.Namespace:
    """`out`, `--repeats`, `--device`; one thread from here on."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--device", default="cpu")
    torch.set_num_threads(1)
    return parser.parse_args()


def record(args: argparse.Namespace, what: str, cases: Iterable[dict[str, Any]]) -> None:
    """Write the cases with their provenance to `args.out`."""
    told = {"what": what, "repeats": args.repeats, **provenance(args.device), "cases": list(cases)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(told, indent=1) + "\n")
