"""Store what the chapters' small runs should give: `python tools/expect.py [02_scaffold ...]`.

Each chapter is run with `profile="test"` at SEEDS seeds.  The expectation of a recorded number is its mean over the
seeds, the tolerance 4 standard deviations (so a true change of rounding or version passes, and a number that does
not depend on the seed must stay where it is), and never less than 2e-5 of its size: a record holds six digits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import book  # noqa: E402

SEEDS, SDS, FLOOR = 5, 4.0, 2e-5


def flat(value: Any, name: str = "") -> dict[str, float]:
    """A record's numbers under one name each: lists and mappings are opened, texts left out."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, part in parts for k, v in flat(part, f"{name}/{key}".lstrip("/")).items()}
    return {} if isinstance(value, str) else {name: float(value)}


def main() -> None:
    for source in book.chapters():
        if sys.argv[1:] and source.stem not in sys.argv[1:]:
            continue
        output = ROOT / "_build" / "expect" / source.name
        runs = []
        for seed in range(SEEDS):
            runs.append(flat(book.run_chapter(source, {"profile": "test", "seed": seed}, output=output).numbers))
            print(f"{source.stem}  seed {seed}", flush=True)
        numbers = {}
        for name in sorted(runs[0]):
            values = [run[name] for run in runs]
            tolerance = max(SDS * stdev(values), FLOOR * max(map(abs, values)), 1e-9)
            numbers[name] = {"value": mean(values), "tolerance": tolerance}
        path = ROOT / "tests" / "expected" / f"{source.stem}.json"
        path.write_text(json.dumps({"seeds": SEEDS, "numbers": numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
