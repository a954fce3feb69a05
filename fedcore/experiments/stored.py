"""Training that a page rests on but does not repeat: searches over learning rates, and runs in unstable settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint import atomic
from . import provenance
from .batch import results


def computed(
    name: str,
    profile: str,
    plan: Mapping[str, Any],
    compute: Callable[[], Any],
    *,
    again: bool = False,
    root: Path | None = None,
) -> tuple[Any, str]:
    """What `compute()` gives for `plan`, read where it is stored, and a few words on where it comes from.

    `results/PROFILE/NAME.json` is read if it was made for the same `plan`; otherwise `compute` is called, and with
    `again` its result is stored there, with the plan and its provenance.  Plan and result consist of numbers, texts,
    lists and mappings with texts as keys.  root: the results folder, by default the project's.

    Raises `provenance.UncommittedCode` before the project would keep a result of code that no commit holds.
    """
    file = (root or results()) / profile / f"{name}.json"
    plan = json.loads(json.dumps(plan))  # tuples become lists, as they are read
    saved = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not again and saved.get("plan") == plan:
        made = saved["provenance"]
        return saved["result"], f"stored runs ({made['device']}, torch {made['torch']})"
    if again:
        provenance.check_committed(file)
    began = time.perf_counter()
    result = json.loads(json.dumps(compute()))
    if again:
        seconds = round(time.perf_counter() - began, 1)
        made = {"code": provenance.library(), **provenance.machine(None), "seconds": seconds}
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file) as f:
            f.write((json.dumps({"plan": plan, "provenance": made, "result": result}, indent=1) + "\n").encode())
    return result, "computed with this page"


def outdated(root: Path | None = None) -> list[Path]:
    """The files of `computed` in a results folder that are older than the code."""
    files = sorted((root or results()).glob("*/*.json"))
    made = {file: json.loads(file.read_text(encoding="utf-8")).get("provenance") for file in files}
    return [file for file in files if made[file] and made[file].get("code") != provenance.library()]
