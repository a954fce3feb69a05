"""Store the expected numbers of the chapters' small runs: `python tools/expect.py [scaffold ...]`.

Each chapter is run with `profile="test"` at one seed: short, stable training in float64, so that its recorded numbers
are the same on every processor up to rounding.  A number has to be within the relative tolerance RELATIVE of the stored
one, or within NOISE if it is the rounding error of a zero.  RELATIVE is a hundredth of a one per cent change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import book, chapter_runs  # noqa: E402

RELATIVE, NOISE = 1e-4, 1e-9


def deviations(chapter: str, numbers: Mapping[str, float] | str, only: str | None = None) -> list[str]:
    """One line for every recorded number that differs from the stored one, and for every name that only one side has.

    numbers: a chapter's record, or the traceback of a failed run.  only: compare only names with this prefix.
    """
    if isinstance(numbers, str):
        return [f"the run failed: {numbers}"]
    stored = json.loads((ROOT / "tests" / "expected" / f"{chapter}.json").read_text(encoding="utf-8"))
    stored = {name: value for name, value in stored.items() if name.startswith(only or "")}
    lines = [f"{name} is recorded, but not stored: run tools/expect.py" for name in sorted(set(numbers) - set(stored))]
    for name, expected in stored.items():
        if name not in numbers:
            lines.append(f"{name} is no longer recorded")
        elif not abs(numbers[name] - expected) <= max(RELATIVE * abs(expected), NOISE):
            lines.append(f"{name} is {numbers[name]:g}, stored: {expected:g}")
    return lines


def main() -> None:
    names = [source.stem for source in book.chapters() if not sys.argv[1:] or source.stem in sys.argv[1:]]
    for name, numbers in zip(names, chapter_runs.records([chapter_runs.Job(name) for name in names]), strict=True):
        if isinstance(numbers, str):
            sys.exit(f"{name}: {numbers}")
        path = ROOT / "tests" / "expected" / f"{name}.json"
        path.write_text(json.dumps(dict(sorted(numbers.items())), indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(numbers)} numbers", flush=True)


if __name__ == "__main__":
    main()
