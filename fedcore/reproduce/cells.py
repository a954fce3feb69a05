"""Cells: the entries of tables and figures.  A cell is plain data; its result is one JSON file with provenance.

A specification names a study (a function of `studies`) and everything that determines its outcome but for the seed:

    {"study": "simulate", "method": ["FedUp", {"alpha": 0.05}],
     "federation": {"source": "digits", "clients": 50, "partition": ["Dirichlet", {"q": 0.3}], "model": "mlp"},
     "run": {"rounds": 40, "cohort": 5, "lr": 0.1, "local_steps": 10}}

With `"tune": {"grid": [{"run": {"lr": 0.1}}, ...], "seeds": [1000]}` the settings of the grid are compared first, on
seeds of their own, by the mean of the metric over the rounds; the best is used for all reporting seeds.

Needs torch and numpy only: this is how a machine without notebooks runs an experiment.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import checks, distributed, pages
from ..checkpoint import atomic
from . import studies

REVISION = 1  # raised when a change of the package changes results: what was computed before is then run again


class CorruptResult(ValueError):
    """A result file that is damaged: not the JSON that was written."""


@dataclass(frozen=True)
class Cell:
    """One entry of a table: `name` (unique in its table), `spec`, and where the source prints its value.

    row, column: where it stands in our table.  source: the value that the document prints (None where it prints none).
    """

    name: str
    spec: Mapping[str, Any]
    row: str = ""
    column: str = ""
    source: float | None = None


@dataclass
class Result:
    """What is known of a cell: `runs`, seed -> {final, history, seconds, ...}, and the setting that tuning chose."""

    spec: Mapping[str, Any]
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    tuned: dict[str, Any] | None = None

    def finals(self, seeds: Sequence[int] | None = None) -> list[float]:
        """Final values in the order of the seeds; a run that diverged is NaN."""
        chosen = sorted(self.runs) if seeds is None else [s for s in seeds if s in self.runs]
        return [math.nan if (v := self.runs[s]["final"]) is None else v for s in chosen]


def identity(spec: Mapping[str, Any], seed: int | None = None) -> str:
    """A hash of everything that determines a run: revision, specification, seed."""
    told = json.dumps([REVISION, spec, seed], sort_keys=True, allow_nan=False)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def load(file: str | os.PathLike, spec: Mapping[str, Any]) -> Result:
    """The current results in `file`; those of another specification or revision are left out.

    Raises CorruptResult for a file that is not what was written.
    """
    file = Path(file)
    if not file.exists():
        return Result(spec)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        checksum = content.pop("checksum")
        if checksum != _checksum(content):
            raise ValueError("its checksum differs")
        runs = {int(seed): run for seed, run in content["runs"].items() if run["id"] == identity(spec, int(seed))}
        tuned = content["tuned"] if (content["tuned"] or {}).get("id") == identity(spec) else None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptResult(f"{file} is damaged ({e}); it is left out, and run again by the next batch") from e
    return Result(spec, runs, tuned)


def _store(file: Path, result: Result) -> None:
    content = {
        "spec": result.spec,
        "tuned": result.tuned,
        "runs": {str(s): result.runs[s] for s in sorted(result.runs)},
    }
    content = json.loads(json.dumps(content, allow_nan=False))
    content["checksum"] = _checksum(content)
    try:
        with atomic(file) as f:
            f.write((json.dumps(content, indent=None, separators=(",", ":")) + "\n").encode())
    except OSError as e:
        raise OSError(
            e.errno,
            f"{file} cannot be written ({e.strerror or e}); results that were finished before are as they were: make "
            "room, or use another results folder",
        ) from e


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run_cell(
    spec: Mapping[str, Any],
    seeds: Sequence[int] = (0,),
    *,
    file: str | os.PathLike | None = None,
    workshop: str | os.PathLike | None = None,
    device: str | None = None,
) -> Result:
    """Run a cell at each seed that `file` does not hold yet, and store every seed as it is done.

    file: the result's JSON; None keeps nothing.  workshop: a folder for checkpoints, removed when the cell is done;
    with it a stopped cell goes on where it stood, bit-identically.  Two processes on one file take turns, and the
    second finds the work done.  Under torchrun the processes share every run, and the first of them keeps the file.

    Raises ValueError for a specification that is not one, OSError when a file cannot be written, and whatever the
    study raises; a run that diverges is a result (`final` None, `diverged` the round).
    """
    spec = json.loads(json.dumps(spec, allow_nan=False))
    study = studies.find(spec)
    seeds = [checks.integer("seed", seed, 0) for seed in seeds]
    file, world = None if file is None else Path(file), distributed.world()
    with world.together(), _alone(file if world.rank == 0 else None):
        result = world.first(lambda: Result(spec) if file is None else _mended(file, spec))
        missing = [seed for seed in seeds if seed not in result.runs]
        folder = None if workshop is None else Path(workshop) / identity(spec)
        if missing and "tune" in spec and result.tuned is None:
            result.tuned = _tune(study, spec, folder, device)
            if file is not None and world.rank == 0:
                _store(file, result)
        for seed in missing:
            chosen = merged(spec, result.tuned["setting"] if result.tuned else {})
            begin = time.perf_counter()
            found = study(chosen, seed, _at(folder, f"seed{seed}"), device)
            seconds = time.perf_counter() - begin
            result.runs[seed] = {
                "id": identity(spec, seed),
                **found,
                **provenance(device),
                **({"processes": world.size} if world.size > 1 else {}),
                "seconds": round(seconds, 2),
            }
            if file is not None and world.rank == 0:
                _store(file, result)
        if folder is not None and world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return result


def _at(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _mended(file: Path, spec: Mapping[str, Any]) -> Result:
    try:
        return load(file, spec)
    except CorruptResult as e:
        warnings.warn(f"{e}: it is run again", stacklevel=3)
        return Result(spec)


def _tune(study: studies.Study, spec: Mapping[str, Any], folder: Path | None, device: str | None) -> dict[str, Any]:
    """The setting of the grid with the best mean of the metric over rounds and tuning seeds; a diverged one is last."""
    grid, seeds = spec["tune"]["grid"], spec["tune"].get("seeds", [1000])
    scores, begin = [], time.perf_counter()
    for j, setting in enumerate(grid):
        found = [study(merged(spec, setting), seed, _at(folder, f"tune{j}-{seed}"), device) for seed in seeds]
        scores.append(None if any(f["final"] is None for f in found) else float(np.mean([f["mean"] for f in found])))
    if all(score is None for score in scores):
        best = 0
    else:
        sign = -1 if spec.get("better") == "lower" else 1
        best = max(range(len(grid)), key=lambda j: -math.inf if scores[j] is None else sign * scores[j])
    seconds = round(time.perf_counter() - begin, 2)  # those of the runs do not hold them
    return {"id": identity(spec), "setting": grid[best], "scores": scores, "seconds": seconds}


def merged(spec: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with a setting of the grid put in; mappings are merged, a method's arguments too."""
    out = copy.deepcopy(dict(spec))
    out.pop("tune", None)
    for key, value in setting.items():
        if key == "method":
            name, arguments = out["method"]
            out["method"] = [name, {**arguments, **value}]
        elif isinstance(value, Mapping):
            out[key] = {**out.get(key, {}), **value}
        else:
            out[key] = value
    return out


@contextlib.contextmanager
def _alone(file: Path | None) -> Iterator[None]:
    """A lock beside the file, which the system gives back when its holder dies, however it dies."""
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # no such locks on this system: do not start two batches on one folder
        yield
        return
    with open(file.with_name(f".{file.stem}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def provenance(device: str | None) -> dict[str, Any]:
    """Device, threads, versions, commit, and the yardstick: where a result comes from."""
    from .. import __version__

    used = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    name = torch.cuda.get_device_name(used) if used.type == "cuda" else pages.processor()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "version": __version__,
        "commit": _commit(),
        "yardstick": round(yardstick(), 5),
    }


def _commit() -> str | None:
    """The commit of the package's own repository, with "+" when files differ from it; None outside of one."""
    try:
        here = ["git", "-C", str(Path(__file__).resolve().parents[2])]
        words = {"capture_output": True, "text": True, "timeout": 10, "check": True}
        commit = subprocess.run([*here, "rev-parse", "--short=12", "HEAD"], **words).stdout.strip()
        changed = subprocess.run([*here, "status", "--porcelain", "--", "fedcore"], **words).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def yardstick() -> float:
    """Seconds of a small fixed amount of work (the best of three), to carry an estimate from machine to machine."""
    a = torch.linspace(-1, 1, 200 * 200, dtype=torch.float64).view(200, 200)

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(20):
            torch.tanh(a @ a)
        return time.perf_counter() - begin

    return min(once() for _ in range(3))
