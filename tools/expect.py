"""Store what the chapters' small runs should give: `python tools/expect.py [02_scaffold ...]`.

Each chapter is run with `profile="test"` at one seed: short, stable training in float64, so that its recorded numbers
are the same on every processor up to rounding.  A number has to be within RELATIVE of the stored one, or within NOISE
where it is the rounding error of a zero.  A change of one per cent in a method's rule is a hundred times that.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import book  # noqa: E402

RELATIVE, NOISE = 1e-4, 1e-9
PARAMETERS = {"profile": "test", "seed": 0}


def flat(value: Any, name: str = "") -> dict[str, float]:
    """A record's numbers under one name each: lists and mappings are opened, texts left out."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, part in parts for k, v in flat(part, f"{name}/{key}".lstrip("/")).items()}
    return {} if isinstance(value, str) else {name: float(value)}


def small(source: Path, env: Mapping[str, str] | None = None, *, root: Path = ROOT) -> dict[str, float]:
    """The numbers that a chapter records in its small run, in a kernel with `env` added to its environment."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / source.name
        return flat(book.run_chapter(source, PARAMETERS, root=root, output=output, env=env).numbers)


def deviations(chapter: str, numbers: Mapping[str, float], root: Path = ROOT) -> list[str]:
    """A line for every recorded number that is not the stored one, and for every name that only one side has."""
    stored = json.loads((root / "tests" / "expected" / f"{chapter}.json").read_text(encoding="utf-8"))
    lines = [f"{name} is recorded, but not stored: run tools/expect.py" for name in sorted(set(numbers) - set(stored))]
    for name, expected in stored.items():
        if name not in numbers:
            lines.append(f"{name} is no longer recorded")
        elif not abs(numbers[name] - expected) <= max(RELATIVE * abs(expected), NOISE):
            lines.append(f"{name} is {numbers[name]:g}, stored: {expected:g}")
    return lines


def main() -> None:
    for source in book.chapters():
        if sys.argv[1:] and source.stem not in sys.argv[1:]:
            continue
        numbers = dict(sorted(small(source).items()))
        path = ROOT / "tests" / "expected" / f"{source.stem}.json"
        path.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
        print(f"{source.stem}: {len(numbers)} numbers", flush=True)


if __name__ == "__main__":
    main()
