"""Several runs: `sweep` (all settings with all seeds, in parallel, one tidy frame) and `simulate_many` (a list)."""

from __future__ import annotations

import errno
import inspect
import itertools
import json
import math
import numbers
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from filelock import FileLock

from . import distributed, rng, run
from .history import Diverged, History
from .objective.base import Objective
from .round import on
from .settings import plain
from .storage import archives, callbacks, sources
from .storage.checkpoint import CheckpointError, atomic
from .storage.identity import digest, without_address
from .support import checks
from .support.extras import needs
from .support.progress import Bar, shows, streams

AT_ONCE = Annotated[int, checks.Within(1, 10_000, hint="or None")]
RUNS = checks.Kind(lambda runs: isinstance(runs, list | tuple), "a list of mappings, the arguments of each run")
ARGUMENTS = frozenset(inspect.signature(run.simulate).parameters) - {"fed"}
OURS = {"seed": "seeds=", "checkpoint_dir": "folder=", "resume": "folder=", "progress": "progress="}
LISTENERS = ("probes", "on_evaluate")  # functions that may write to objects that they refer to
FEDERATION = checks.Kind(
    lambda value: callable(value) or isinstance(value, Objective), "a federation, or a function that makes one"
)
IS_FEDERATION = checks.Kind(lambda fed: isinstance(fed, Objective), "a federation, from fc.federation or quadratic")
COLUMNS = ("seed", "diverged", "round", "metric", "client", "value")  # of the frame, after those of the grid
MOST = 10**6  # runs


@checks.arguments
def simulate_many(
    runs: Annotated[Sequence[Mapping[str, Any]], RUNS],
    fed: Annotated[Objective, IS_FEDERATION],
    *,
    at_once: AT_ONCE | None = None,
    progress: bool | None = None,
    **shared: Any,
) -> list[History | Diverged]:
    """One `simulate` for each mapping of `runs`, on the same federation, one after another.

        lrs, seeds = [0.03, 0.1, 0.3], range(5)
        runs = [{"lr": lr, "seed": seed} for lr in lrs for seed in seeds]
        histories = fc.simulate_many(runs, fed, method=fc.FedAvg(), rounds=100, cohort=10)

    runs: arguments of `simulate` in which the runs differ (methods, rates, batch sizes, seeds, ...); shared: arguments
    that are the same for all runs.  at_once: has no effect; it is accepted so that earlier calls still work.  progress:
    a bar that counts the runs; None shows it on a terminal and in a notebook.
    As in `sweep`, every run gets its own copies of its arguments; `on_evaluate=lambda: Stop(2)` makes one for each run.

    The list has the histories in the order of `runs`, each equal to the one that `simulate` returns.  A run whose model
    is no longer finite has its error `Diverged` in this list, with the history up to there as `.history`.  `sweep` runs
    on several cores and keeps files.

    Raises ValueError for an empty list, for an argument that is given twice, and if several runs have the same
    `checkpoint_dir`.  Any other error of a run is raised after all runs have ended, with the results of the other runs
    as `.results`.  A KeyboardInterrupt has those of the runs before it.
    """
    if not runs:
        raise ValueError("runs is empty; give at least one mapping of arguments of simulate")
    for number, one in enumerate(runs):
        if not isinstance(one, Mapping) or not one.keys() <= ARGUMENTS - {"progress"}:
            raise TypeError(
                f"runs[{number}]={checks.brief(one)}; use a mapping of arguments of simulate but fed and progress"
            )
        if twice := sorted(set(one) & set(shared)):
            raise ValueError(f"{twice[0]} is given in runs[{number}] and beside it; use one of the two")
    given = [{**shared, **one}.get("checkpoint_dir") for one in runs]
    folders = [Path(folder).resolve() for folder in given if isinstance(folder, str | os.PathLike)]
    if len(set(folders)) < len(folders):
        raise ValueError("several runs have one checkpoint_dir; give each its own, in `runs`")
    own = [callbacks.of_one_run({**shared, **one}, keep=[fed]) for one in runs]
    shown, results = Bar("runs", len(runs), 0, "run", shows(progress), each=True), []
    for one in own:
        try:
            results.append(run.simulate(fed=fed, progress=False, **one))
        except Exception as e:  # of any kind, so that the other runs still take place
            results.append(e)
        except KeyboardInterrupt as e:
            e.results = results
            e.add_note(f"raised by runs[{len(results)}] of {len(runs)}; this error's .results has the runs before it")
            raise
        shown.update()
    shown.close()
    for number, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, Diverged):
            result.results = results
            result.add_note(f"raised by runs[{number}] of {len(runs)}; this error's .results has what all runs gave")
            raise result
    return results


class SweepFailed(RuntimeError):
    """Some runs of a sweep failed.  `.failures` has their settings and errors, `.frame` the results of all others."""

    def __init__(self, frame: Any, failures: Sequence[tuple[str, Exception]], total: int) -> None:
        self.frame, self.failures = frame, list(failures)
        lines = [f"  {name}: {type(e).__name__}: {e}" for name, e in failures[:5]]
        more = [f"  and {len(failures) - 5} more, in this error's .failures"] if len(failures) > 5 else []
        super().__init__("\n".join([f"{len(failures)} of {total} runs failed; .frame has the others:", *lines, *more]))


@checks.arguments
def sweep(
    federation: Annotated[Objective | Callable[..., Objective], FEDERATION],
    grid: checks.Mapped,
    *,
    seeds: int | Sequence[int] = 3,
    folder: checks.Folder | None = None,
    workers: Annotated[int, checks.Within(1, 10_000, hint="or None for one per core")] | None = 1,
    at_once: AT_ONCE | None = 1,
    progress: bool | None = None,
    **fixed: Any,
) -> Any:
    """Every combination of the settings in `grid` with every seed: one `simulate` each, in one pandas.DataFrame.

        frame = fc.sweep(
            partial(fc.federation, "digits", clients=20, model="mlp"),
            {"method": [fc.FedAvg(), fc.FedUp(0.05)], "partition": [fc.IID(), fc.Dirichlet(0.1)], "lr": [0.03, 0.1]},
            seeds=5, rounds=50, cohort=5, folder="sweep", workers=4,
        )

    federation: a federation, or a function that makes one.  The function is called with `seed=` and with the arguments
    that `simulate` does not have (`partition` above).  Runs with the same seed then differ in their settings alone:
    they have the same clients, cohorts and batches, and the same initial weights, also of a module that the function
    makes.
    grid: lists of values by name, for `method` and arguments of `simulate` or of `federation`; fixed: arguments that
    are the same for all runs.  seeds: how many seeds (0, 1, ...), or a list of seeds.  Arrays may replace lists.
    Every run gets its own copies of its arguments, so that an `on_evaluate` or a probe with memory (patience) begins
    anew in each run; what the copies record is lost after the run.  A function that writes to variables outside of
    itself cannot be copied, and its runs end with an error: `on_evaluate=lambda: Stop(2)` makes one for each run.

    The frame has a column for each name in `grid` (numbers and strings as they are, functions as their name, other
    values as their repr, and values that look alike or are equal, as 1 and 1.0, with their number in the list), `seed`,
    `diverged` (the round, <NA> for runs that stayed finite), and `round`, `metric`, `client`, `value` of
    `History.frame`.

    folder: where each finished run is stored as a file, and an interrupted one as a checkpoint.  The same call again
    computes only the missing runs.  A file is used only for the same settings, federation and code, so that several
    sweeps may share a folder; the folder of a finished sweep may be read-only.  A file that is damaged, or belongs to
    another run than its name says, is renamed with a warning.
    workers: number of processes; None: one per core.  Inside `joblib.parallel_config(backend="dask")` they are the
    workers of a Dask cluster.  at_once: has no effect; it is accepted so that earlier calls still work.  progress: as
    in `simulate`.

    Raises ValueError for unknown names, names of other columns of the frame, empty lists, a value that is given twice
    (also as 1 and 1.0 where both mean the same), and `checkpoint_every` without `folder`.  Raises `SweepFailed` after
    the last run if some runs failed.  A KeyboardInterrupt has the results of the finished runs as `.frame`.
    """
    grid = {name: _listed(values) for name, values in grid.items()}
    seeds = _checked(federation, grid, _listed(seeds), fixed)
    if folder is None and (every := {**grid, **fixed}.get("checkpoint_every")) is not None:
        raise ValueError(f"checkpoint_every={checks.brief(every)}, but no run has a checkpoint; give folder= too")
    with needs("batches", "fc.sweep"):  # fails before the runs instead of after them
        import pandas  # noqa: F401
    jobs, told = (
        [(dict(zip(grid, v, strict=True)), seed) for v in itertools.product(*lists) for seed in seeds]
        for lists in (grid.values(), map(_labels, grid.values()))
    )
    shown, results = Bar("sweep", len(jobs), 0, "run", shows(progress), each=True), {}
    try:
        for number, result in _all(federation, fixed, jobs, folder, workers):
            results[number] = result
            shown.update()
    except KeyboardInterrupt as e:
        e.frame = _frame(grid, told, results)
        e.add_note(f"{len(results)} of {len(jobs)} runs had ended; this error's .frame has their results")
        raise
    shown.close()
    frame = _frame(grid, told, results)
    failures = [(_said(*told[k]), e) for k, e in sorted(results.items()) if isinstance(e, Exception)]
    if failures:
        raise SweepFailed(frame, failures, len(jobs)) from failures[0][1]
    return frame


def _listed(values: Any) -> Any:
    """The values of an array, a tensor or a list, with Python's numbers for NumPy's; anything else as it is."""
    values = plain(values)
    if not isinstance(values, list | tuple):
        return values
    return [plain(v) if isinstance(v, np.generic) else v for v in values]


def _checked(
    federation: Any, grid: Mapping[str, Sequence[Any]], seeds: int | Sequence[int], fixed: Mapping[str, Any]
) -> list[int]:
    """The list of seeds; raises ValueError or TypeError for a wrong argument of `sweep`."""
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise ValueError(f"grid[{name!r}]={checks.brief(values)}; use a list of values, one at least")
        alike = name in ARGUMENTS and name != "cohort"  # where 1 is one client, and 1.0 is all of them
        equal = [v if alike and isinstance(v, numbers.Real) else _key(name, v) for v in values]
        if repeated := [v for v, key in zip(values, equal, strict=True) if equal.count(key) > 1]:
            raise ValueError(f"grid[{name!r}] has {checks.brief(repeated[0])} more than once; use each value once")
    if twice := sorted(set(grid) & set(fixed)):
        raise ValueError(f"{twice[0]} is given in the grid and beside it; use one of the two")
    for name in ("method", "rounds"):
        if name not in grid and name not in fixed:
            raise ValueError(f"no {name}; give it in the grid, or as an argument {name}=")
    for name, values in {**grid, **{name: [value] for name, value in fixed.items()}}.items():
        for value in values if name in ARGUMENTS else ():
            callbacks.of_one_run({name: value}, keep=[federation])  # refuses what cannot be copied, before any run
    takes = _takes(federation)
    for name in [*grid, *fixed]:
        if name in OURS:
            raise ValueError(f"{name} is the sweep's own; use {OURS[name]}")
        if name in grid and name in COLUMNS:
            raise ValueError(
                f"{name!r} in the grid is the name of another column of the frame; give this argument of the function "
                f"that makes the federation another name, such as {name}_"
            )
        if name not in ARGUMENTS and takes is not None and name not in takes:
            known = sorted((ARGUMENTS - set(OURS)) | takes)
            raise ValueError(
                f"{name!r} is an argument of neither simulate nor the federation; known: {', '.join(known)}"
            )
    if not isinstance(seeds, Sequence) or isinstance(seeds, str | bytes):
        seeds = range(checks.integer("seeds", seeds, 1))
    settings = math.prod(map(len, grid.values()))
    if (runs := len(seeds) * settings) > MOST:
        raise ValueError(f"{len(seeds):,} seeds of {settings:,} settings are {runs:,} runs; use {MOST:,} runs or fewer")
    seeds = [checks.integer("seeds: seed", s, 0) for s in seeds]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds}; use different seeds, or how many")
    return seeds


def _takes(federation: Any) -> set[str] | None:
    """The names of the arguments that make a federation: none for a federation, None if the function takes any."""
    if not callable(federation):
        return set()
    parameters = inspect.signature(federation).parameters.values()
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}


def _all(
    federation: Any, fixed: Mapping[str, Any], jobs: Sequence[tuple[dict, int]], folder: Any, workers: int | None
) -> Iterator[tuple[int, Any]]:
    """The number and the result of each run, in the order in which they end."""
    calls = [(k, {**fixed, **setting}, seed) for k, (setting, seed) in enumerate(jobs)]
    if workers == 1:
        yield from (_tried(federation, call, folder) for call in calls)
        return
    with needs("batches", f"workers={workers}, in contrast to workers=1,"):
        import joblib
    parallel = joblib.Parallel(n_jobs=workers or -1, return_as="generator_unordered")
    work = (joblib.delayed(_beside)(os.getpid(), federation, call, folder) for call in calls)
    with streams():
        yield from parallel(work)


Call = tuple[int, Mapping[str, Any], int]  # number, settings, seed


def _beside(parent: int, *given: Any) -> tuple[int, Any]:
    """`_tried` in a worker; if the sweep's process started this worker, it also ends when that process is killed."""
    if os.getppid() == parent:
        distributed.end_with(parent, "the sweep")
    return _tried(*given)


def _tried(federation: Any, call: Call, folder: Any) -> tuple[int, Any]:
    """A run's number, and its result or the error that it ended with."""
    number, setting, seed = call
    try:
        called = {k: v for k, v in setting.items() if k in ARGUMENTS}
        made = {k: v for k, v in setting.items() if k not in ARGUMENTS}
        with rng.seeded(rng.word(seed, rng.INIT)):  # for the initial weights of a module
            fed = federation(seed=seed, **made) if callable(federation) else federation
        return number, _one(fed, called, seed, folder)
    except Exception as e:  # of any kind, so that the other runs still take place
        return number, e


def _one(fed: Objective, called: Mapping[str, Any], seed: int, folder: Any) -> dict[str, Any]:
    """One run: the rows of its history, and the round in which it diverged or None."""
    if folder is None:
        return _run(fed, called, seed)
    used = on(called["method"], fed)  # with what the method makes of it by the federation's own seed
    used = used.on_validation() if called.get("eval_on") == "validation" else used
    belongs = {"code": sources.library(), "federation": used.fingerprint(), "seed": seed}
    belongs |= {k: [without_address(repr(v)), _key(k, v)] for k, v in sorted(called.items())}
    belongs = json.loads(json.dumps(belongs))
    file = Path(folder) / f"{digest(belongs)}.json"
    begun = file.with_suffix("")
    try:
        result = _stored(file, belongs)  # first without a lock, which a read-only folder does not allow
        if result is None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_suffix(".lock")):  # the second of two sweeps waits, and reads the result
                result = _stored(file, belongs, move=True)
                if result is None:
                    result = _resumed(fed, called, seed, begun)
                    with atomic(file) as f:
                        f.write(archives.sealed({"identity": belongs, "result": result}, nan=True))
    except PermissionError as e:
        raise PermissionError(
            e.errno, f"folder={str(folder)!r} cannot be read and written ({e}); use a folder that is yours, or None"
        ) from e
    shutil.rmtree(begun, ignore_errors=True)
    return result


def _stored(file: Path, belongs: Mapping[str, Any], move: bool = False) -> dict[str, Any] | None:
    """The result in a run's file, or None if there is no such file, it is damaged, or it belongs to another run.  move:
    rename a file that is damaged or of another run."""
    try:
        content = archives.unsealed(file)
        if content.get("identity") != belongs:
            raise ValueError("it is of another run")
        return content["result"]
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as e:
        if isinstance(e, OSError) and e.errno != errno.EINVAL:
            raise
        if move:
            _aside(file, e, "its run is made again")
    return None


def _resumed(fed: Objective, called: Mapping[str, Any], seed: int, begun: Path) -> dict[str, Any]:
    """Continue the run from its checkpoint; if that cannot be used, rename it and begin anew."""
    try:
        return _run(fed, called, seed, checkpoint_dir=begun)
    except CheckpointError as e:
        _aside(begun, e, "its run begins anew")
    return _run(fed, called, seed, checkpoint_dir=begun)


def _aside(path: Path, e: Exception, then: str) -> None:
    names = (path.with_suffix(f".damaged{k or ''}") for k in itertools.count())
    aside = next(name for name in names if not name.exists())
    path.replace(aside)
    checks.warn(f"{path} is damaged ({e}) and now {aside.name}; {then}")


def _run(fed: Objective, called: Mapping[str, Any], seed: int, **more: Any) -> dict[str, Any]:
    try:
        own = callbacks.of_one_run(called, keep=[fed])
        history, diverged = run.simulate(fed=fed, seed=seed, progress=False, **own, **more), None
    except Diverged as e:
        history, diverged = e.history, e.round
    return {"rows": history.rows, "diverged": diverged}


def _key(name: str, value: Any) -> str:
    """A hash that differs between different values of a setting."""
    return digest(callbacks.key(value) if name in LISTENERS else value)


def _frame(names: Iterable[str], told: Sequence[tuple[dict, int]], results: Mapping[int, Any]) -> Any:
    import pandas as pd

    rows = [
        (*told[k][0].values(), told[k][1], result["diverged"], *row)
        for k, result in sorted(results.items())
        if not isinstance(result, Exception)
        for row in result["rows"]
    ]
    frame = pd.DataFrame(rows, columns=[*names, *COLUMNS])
    return frame.astype({"seed": int, "diverged": "Int64", "round": int, "client": "Int64", "value": float})


def _labels(values: Sequence[Any]) -> list[Any]:
    """The values as the frame shows them."""
    shown = [
        v if isinstance(v, int | float | str) else getattr(v, "__qualname__", None) or without_address(repr(v))
        for v in values
    ]
    equal, looks = Counter(shown), Counter(map(str, shown))
    return [f"{v} ({k})" if max(equal[v], looks[str(v)]) > 1 else v for k, v in enumerate(shown, 1)]


def _said(setting: Mapping[str, Any], seed: int) -> str:
    return ", ".join([*(f"{k}={v}" for k, v in setting.items()), f"seed={seed}"])
