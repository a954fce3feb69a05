"""Cells: the entries of tables and figures.  A cell is plain data; its result is one JSON file with provenance.

A specification names a study (a function of `studies`) and everything except the seed that determines the result:

    {"study": "simulate", "method": ["FedUp", {"alpha": 0.05}],
     "federation": {"source": "digits", "clients": 50, "partition": ["Dirichlet", {"q": 0.3}], "model": "mlp"},
     "run": {"rounds": 40, "cohort": 5, "lr": 0.1, "local_steps": 10}}

Methods, models, partitions and sources are names of the package, or "file.py:Name" (`user_files`).

With `"tune"`, candidate settings are compared first on separate seeds and validation data (`tuning`); the best setting
is used for all reporting seeds.

This module needs only torch and its dependencies, so that a machine without notebooks can run experiments.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcore import distributed
from fedcore.storage import archives
from fedcore.storage.checkpoint import atomic, sweep
from fedcore.storage.identity import short
from fedcore.support import checks

from .. import studies
from ..studies import specification, user_files
from ..studies.training import late
from ..studies.tuning import choose, merged, of_seed
from . import form, provenance, tracing

FORMAT = 1  # of the result files; raise it when the meaning of their contents changes


class CorruptResult(ValueError):
    """A result file is damaged: its checksum fails, or its JSON does not have the form that `run_cell` writes."""


@dataclass
class Result:
    """The stored results of a cell.

    runs: seed -> {final, history, seconds, ...}, each with the hash of the code that computed it.  tuned: the setting
    that tuning chose, with its trials.  trace: the `values` of `tracing.trace`, the `code` that computed them, and in
    `same` the code of later runs that leaves the same trace.  aside: the suffix under which the old result file is kept
    before this result replaces it, such as "replaced" in `cell.json.replaced`; "" if no result of the old file is lost.
    file: the result file, None if there is none.
    """

    spec: Mapping[str, Any]
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    tuned: dict[str, Any] | None = None
    trace: dict[str, Any] | None = None
    aside: str = ""
    file: Path | None = None

    @property
    def searches(self) -> list[Mapping[str, Any]]:
        """The results of tuning: one for all seeds, or with `"each"` one for each seed, in their order."""
        return [self.tuned] if self.tuned else [run["tuned"] for _, run in sorted(self.runs.items()) if "tuned" in run]

    def finals(self, seeds: Sequence[int] | None = None) -> list[float]:
        """The values that are judged, in the order of the seeds; NaN for a run that diverged.

        They are accuracies late in a run (`training.late`) where the study records single images by round, else final
        values.
        """
        chosen = sorted(self.runs) if seeds is None else [s for s in seeds if s in self.runs]
        return [self._value(self.runs[s]) for s in chosen]

    def _value(self, run: Mapping[str, Any]) -> float:
        if run["final"] is None:
            return math.nan
        if "late" in run:
            return run["late"]
        return late(run["history"]) if self._late_by_curve(run) else run["final"]

    def _late_by_curve(self, run: Mapping[str, Any]) -> bool:
        """Whether the late accuracy of a run stands in its curve alone: its images were recorded at the last round."""
        of_accuracy = self.spec["study"] == "simulate" and "accuracy" in self.spec.get("metric", "accuracy")
        return of_accuracy and "correct" in run and bool(run.get("history"))

    def correct(self, seeds: Sequence[int]) -> np.ndarray:
        """The share of a run's evaluations in which each test image is classified correctly, `[seeds, images]`, for
        `judge.compare`.

        The evaluations are those late in the run.  Older results record single images at the last round alone; they
        are moved to the accuracy late in the run, so that the spread over images is an upper bound.  For a run with
        several reported `models` the entry is the share of models that are correct; for a diverged run it is
        1 / classes.  Raises ValueError for a seed without a record of single images.
        """
        rows = []
        for seed in seeds:
            run = self.runs.get(seed, {})
            if "images" not in run:
                raise ValueError(f"seed {seed} has no record of single test images; run the cell again")
            if run["final"] is None:
                rows.append(np.full(run["images"], 1 / run["classes"]))
            else:
                rows.append(self._shares(run))
        return np.stack(rows)

    def _shares(self, run: Mapping[str, Any]) -> np.ndarray:
        if "right" in run:
            counts = zlib.decompress(base64.b64decode(run["right"]))
            return np.frombuffer(counts, np.uint8) / run["evaluations"]
        bits, shape = np.frombuffer(base64.b64decode(run["correct"]), np.uint8), (run.get("models", 1), -1)
        shares = np.unpackbits(bits, count=shape[0] * run["images"]).reshape(shape).mean(0)
        return shares + (self._value(run) / 100 - shares.mean() if self._late_by_curve(run) else 0.0)

    def outdated(self, seeds: Sequence[int] | None = None) -> list[int]:
        """Seeds whose run, or whose tuning, is older than the code: the code that computed it is not `current`, or the
        run does not say which it was."""
        chosen = [s for s in (sorted(self.runs) if seeds is None else seeds) if s in self.runs]
        current = self.current() if chosen else set()
        tuned = self.tuned is None or self.tuned.get("code") in current
        return [s for s in chosen if not tuned or self.runs[s].get("code") not in current]

    def current(self) -> set[str]:
        """The hashes of code whose results are not older: of today's, and of all that left the stored trace if today's
        leaves it too, in a run or as `confirm` found."""
        today, traced = provenance.code(self.spec), self.traced()
        same = today in traced or (traced and confirmed(self.file) == [self.trace["code"], today])
        return {today, *traced} if same else {today}

    def traced(self) -> set[str]:
        """The hashes of the code whose runs are stored and that left the stored trace."""
        return {self.trace["code"], *self.trace.get("same", ())} if self.trace else set()

    def replaces(self, file: Path) -> list[str]:
        """The warning that storing this result renames a file of another specification, or an empty list."""
        if self.aside != "replaced":
            return []
        said = f"{file} holds results of another specification or data pack; before it is replaced, it is renamed to "
        return [said + _aside(file, self.aside).name]

    def untraced(self) -> bool:
        """Whether runs of today's code have no trace, because the process ended before it stored the trace."""
        codes = {run.get("code") for run in self.runs.values()} - self.traced()
        return bool(codes) and provenance.code(self.spec) in codes


def identity(spec: Mapping[str, Any], seed: int | None = None) -> str:
    """A hash of the specification and the seed.  The hash of the code is `provenance.code`."""
    return _hash(_text(spec), seed)


def _text(spec: Mapping[str, Any]) -> str:
    """The part of `identity` that all seeds share: the specification as canonical JSON."""
    return _json(user_files.portable(spec), sort_keys=True)


def _json(spec: Any, **options: Any) -> str:
    """A specification as JSON.  Raises ValueError for a value that JSON cannot represent."""
    try:
        return json.dumps(spec, allow_nan=False, **options)
    except (ValueError, TypeError) as e:
        raise ValueError(
            f"the specification has a value that JSON does not have ({e}); use finite numbers, texts, true or false, "
            "lists and mappings"
        ) from e


def _hash(text: str, more: int | str | None) -> str:
    return short(f"[{FORMAT}, {text}, {json.dumps(more)}]")


def load(file: str | os.PathLike, spec: Mapping[str, Any]) -> Result:
    """The results in `file` for this specification and data pack, computed by any version of the code.

    Raises CorruptResult for a damaged file, OSError for a file that cannot be read.
    """
    content = _content(Path(file))
    result = Result(spec) if content is None else replace(_standing(content, spec), file=Path(file))
    if content and (len(result.runs) < len(content["runs"]) or (content["tuned"] and not result.tuned)):
        result.aside = "replaced"
    return result


def _aside(file: Path, why: str) -> Path:
    """An unused name for a file that is to be replaced; it does not end with `.json`, so it is not read as a result."""
    name = file.with_name(f"{file.name}.{why}")
    return next(n for n in itertools.chain([name], (Path(f"{name}.{k}") for k in itertools.count(2))) if not n.exists())


def _content(file: Path) -> dict[str, Any] | None:
    """The content of a result file, None if there is no file.  Raises CorruptResult if it is damaged, OSError if it
    cannot be read."""
    try:
        content = archives.unsealed(file)
        _text(content["spec"])
        form.check(content)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:  # it may hold finished seeds, so it must not be replaced
        raise OSError(
            e.errno,
            f"{file} cannot be read ({e.strerror or e}) and is left as it is: make it a file that you may read, or "
            "move it away",
        ) from e
    except (ValueError, KeyError, RecursionError) as e:
        raise CorruptResult(f"{file} is damaged ({e}); it is left out, and run again by the next batch") from e
    return content


def _standing(content: Mapping[str, Any], spec: Mapping[str, Any]) -> Result:
    """The part of a file's content that belongs to this specification and data pack."""
    data, text = provenance.data(spec), _text(spec)

    def stands(stored: Mapping[str, Any], seed: int | None = None) -> bool:
        return stored["id"] == _hash(text, seed) and data in (None, stored.get("data", data))

    runs = {int(seed): run for seed, run in content["runs"].items() if stands(run, int(seed))}
    tuned = content["tuned"] if content["tuned"] and stands(content["tuned"]) else None
    return Result(spec, runs, tuned, content.get("trace") if runs else None)


def _store(file: Path, result: Result) -> None:
    content = {
        "spec": user_files.portable(result.spec),
        "tuned": result.tuned,
        "runs": {str(s): result.runs[s] for s in sorted(result.runs)},
        "trace": result.trace,
    }
    sealed = archives.sealed(content)
    try:
        if result.aside:
            file.rename(_aside(file, result.aside))
            result.aside = ""
        with atomic(file) as f:
            f.write(sealed)
    except OSError as e:
        raise OSError(
            e.errno,
            f"{file} cannot be written ({e.strerror or e}); results that were finished before are as they were: make "
            "room, or use another results folder",
        ) from e


def _made_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The hash of the code and, if the data are a pack, which can be replaced, the hash of the data of a result."""
    data = provenance.data(spec)
    return {"code": provenance.code(spec)} | ({} if data is None else {"data": data})


def run_cell(
    spec: Mapping[str, Any],
    seeds: Sequence[int] = (0,),
    *,
    file: str | os.PathLike | None = None,
    workshop: str | os.PathLike | None = None,
    device: str | None = None,
    outdated: bool = False,
) -> Result:
    """Run a cell at each seed that `file` does not hold yet, and store each seed as soon as it is finished.

    file: the JSON file of the result; None stores nothing.  workshop: a folder for checkpoints, removed when the cell
    is finished; an interrupted cell resumes from them, bit-identically.  outdated: rerun the seeds that are older than
    the code (`Result.outdated`), and their tuning.  Of two processes on one file the second waits and then finds the
    work done.  Under torchrun the processes share every run, and the first of them writes the file.

    Raises ValueError for an invalid specification, `provenance.UncommittedCode` if the repository would keep a result
    of uncommitted code (before any computation), OSError if a file cannot be read or written, and the errors of the
    study.  A diverged run is a result (`final` is None, `diverged` the round).
    """
    spec = json.loads(_json(spec))
    study = studies.find(spec)
    specification.check(spec)
    if not isinstance(seeds, Iterable):
        raise ValueError(f"seeds={checks.brief(seeds)} is no list; use [0, 1, 2], or range(3) for as many")
    seeds = [checks.integer("seed", seed, 0) for seed in seeds]
    file, world = None if file is None else Path(file), distributed.world()
    folder = None if workshop is None else Path(workshop) / f"{identity(spec)}-{provenance.code(spec)}"

    def run(chosen: Mapping[str, Any], seed: int, name: str) -> dict[str, Any]:
        if folder is None:
            return study(chosen, seed, None, device)
        # Kept, because the checkpoints of a setting may be further: a race goes on from them in its next stage.
        kept = folder / f"{name}-{short(_json(chosen))}.json"
        found = world.first(lambda: json.loads(kept.read_text("utf-8")) if kept.exists() else None)
        if found is None:
            found = study(chosen, seed, folder / name, device)
            if world.rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic(kept) as f:
                    f.write(json.dumps(found).encode())
        return found

    def store() -> None:
        if file is not None and world.rank == 0:
            _store(file, result)

    with world.together(), _alone(file if world.rank == 0 else None):
        result = world.first(lambda: Result(spec) if file is None else _usable(file, spec, seeds, outdated))
        missing = [seed for seed in seeds if seed not in result.runs]
        if missing and file is not None:
            world.first(lambda: provenance.check_committed(file, spec))
        each = "tune" in spec and spec["tune"].get("each", False)

        def searched(searching: Mapping[str, Any]) -> dict[str, Any]:
            begin = time.perf_counter()
            found = {"id": identity(spec), **choose(searching, run), **_made_of(spec)}
            return {**found, "seconds": round(time.perf_counter() - begin, 2)}  # beside the seconds of the runs

        if missing and "tune" in spec and not each and result.tuned is None:
            result.tuned = searched(spec)
            store()
        for seed in missing:
            own = {"tuned": searched(of_seed(spec, seed))} if each else {}
            begin = time.perf_counter()
            found = run(merged(spec, own["tuned"]["setting"]) if own else _chosen(result), seed, f"seed{seed}")
            seconds = time.perf_counter() - begin
            result.runs[seed] = {
                "id": identity(spec, seed),
                **found,
                **own,
                **_made_of(spec),
                **provenance.machine(device, spec),
                **({"processes": world.size} if world.size > 1 else {}),
                "seconds": round(seconds, 2),
            }
            store()
        if file is not None and result.untraced():
            values, today = _trace(result, device), provenance.code(spec)
            if result.trace and _as_before(result, values):
                result.trace["same"] = [*result.trace.get("same", ()), today]
            else:
                result.trace = {"values": values, "code": today}
            store()
        if folder is not None and world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return result


def confirm(file: str | os.PathLike, spec: Mapping[str, Any], *, device: str | None = None) -> bool | None:
    """Whether today's code still computes the stored result.  If so, its runs are no longer older than the code, except
    those of a code that left another trace or none.

    Today's tuning must choose the stored setting from the stored scores, and the first rounds must leave the stored
    trace (`tracing`).  The answer yes is a line in `confirmed.csv`, in the folder that contains the file's folder; the
    file stays as it is.  None if no run is older than the code or no trace is stored.  Raises
    `provenance.UncommittedCode` like `run_cell`.
    """
    file, spec = Path(file), json.loads(_json(spec))
    result = load(file, spec)
    if not result.outdated() or result.trace is None:
        return None
    provenance.check_committed(file, spec)
    if not _as_before(result, tracing.trace(_chosen(result), device)):
        return False
    record(file, [result.trace["code"], provenance.code(spec)])
    return True


def confirmed(file: Path) -> list[str] | None:
    """The hashes of the code that left the trace of a result file and of the code that was last confirmed to leave it
    too; None if no code was."""
    listed, name = _listed(file)
    return _confirmations(listed).get(name)


def record(file: Path, codes: list[str]) -> None:
    """Store what `confirmed` returns for a result file, and drop the lines of files that are gone."""
    listed, name = _listed(file)
    with _alone(listed):
        found = {**_confirmations(listed), name: codes}
        lines = sorted(",".join([name, *codes]) for name, codes in found.items() if (listed.parent / name).exists())
        with atomic(listed) as f:
            f.write("\n".join(["result,code,confirmed", *lines, ""]).encode())


def _listed(file: Path) -> tuple[Path, str]:
    """The file with the confirmations of a profile, and the name `table/cell.json` of a result file in it."""
    table = file.resolve().parent
    return table.parent / "confirmed.csv", f"{table.name}/{file.name}"


def _confirmations(listed: Path) -> dict[str, list[str]]:
    """`table/cell.json` -> `confirmed`.  A file that is damaged or unreadable confirms nothing, with a warning."""
    try:
        lines = listed.read_text("utf-8").splitlines()[1:]
        return {name: [code, today] for name, code, today in (line.rsplit(",", 2) for line in lines)}
    except (ValueError, OSError) as e:
        if not isinstance(e, FileNotFoundError):
            warnings.warn(f"{listed} is damaged ({e}) and left out; --confirm confirms its results again", stacklevel=3)
        return {}


def _trace(result: Result, device: str | None) -> list[float]:
    """The trace of today's code.  For a study without training, whose trace is the result of seed 0, a stored result of
    today's code is reused."""
    run = result.runs.get(0, {})
    if result.spec["study"] not in tracing.TRAINED and run.get("code") == provenance.code(result.spec):
        return [run["final"]]
    return tracing.trace(_chosen(result), device)


def _as_before(result: Result, values: list[float]) -> bool:
    """Whether today's tuning and trace agree with the stored ones."""
    specs = [result.spec] if result.tuned else [of_seed(result.spec, seed) for seed in sorted(result.runs)]
    chosen = all(map(tracing.same_choice, specs, result.searches))
    return chosen and tracing.alike(result.trace["values"], values)


def _chosen(result: Result) -> dict[str, Any]:
    """The specification with the setting that tuning chose, for the first seed if each has its own."""
    return merged(result.spec, result.searches[0]["setting"] if result.searches else {})


def _usable(file: Path, spec: Mapping[str, Any], seeds: Sequence[int], outdated: bool) -> Result:
    """The stored result without the runs that must be computed again."""
    try:
        result = load(file, spec)
    except CorruptResult as e:
        kept = _aside(file, "damaged").name
        warnings.warn(f"{e}; before it is replaced, it is renamed to {kept}", stacklevel=3)
        return Result(spec, aside="damaged")
    if set(seeds) - set(result.runs):
        for said in result.replaces(file):
            warnings.warn(said, stacklevel=3)
    again = result.outdated(seeds) if outdated else []
    if again and result.tuned and result.tuned.get("code") not in result.current():
        return Result(spec, aside=result.aside)  # all seeds must use the setting that is tuned again
    runs = {seed: run for seed, run in result.runs.items() if seed not in again}
    return replace(result, runs=runs)


@contextlib.contextmanager
def _alone(file: Path | None) -> Iterator[None]:
    """Hold a lock beside the file; the system releases it even if the process is killed."""
    if file is None:
        yield
        return
    from filelock import FileLock

    file.parent.mkdir(parents=True, exist_ok=True)
    name = file.with_name(f".{file.stem}.lock")
    try:
        lock = FileLock(name).acquire()
    except PermissionError as e:
        raise PermissionError(
            e.errno,
            f"{name} cannot be opened ({e.strerror}); it is another user's: let its owner make it readable and "
            "writable for you, remove it if nobody runs this cell, or use another results folder",
        ) from e
    with lock:
        sweep(file.parent)
        yield
