"""Several runs on one federation, one after another, each with its own copies of its arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from . import listeners, run
from .history import Diverged, History
from .objective.base import Objective
from .support import checks
from .support.progress import Bar, shows

AT_ONCE = Annotated[int, checks.Within(1, 10_000, hint="or None")]
RUNS = checks.Kind(lambda runs: isinstance(runs, list | tuple), "a list of mappings, the arguments of each run")
IS_FEDERATION = checks.Kind(lambda fed: isinstance(fed, Objective), "a federation, from fc.federation or quadratic")


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

    runs: arguments of `simulate` in which the runs differ (methods, rates, batch sizes, seeds, ...); shared: those in
    which they do not.  at_once: has no effect; it is accepted so that earlier calls still work.  progress: a bar that
    counts the runs; None shows it on a terminal and in a notebook.
    As in `sweep`, every run gets its own copies of its arguments; `on_evaluate=lambda: Stop(2)` makes one for each run.

    The histories come in the order of `runs`, each equal to that of `simulate`.  In place of a run whose model is no
    longer finite is its `Diverged`, whose `.history` ends there.  `sweep` runs on several cores and keeps files.

    Raises ValueError for no runs, for arguments that are given twice, and for one `checkpoint_dir` for several runs.
    Any other error of a run is raised when all have ended; its `.results` are what the others gave.
    """
    if not runs:
        raise ValueError("runs is empty; give at least one mapping of arguments of simulate")
    if "checkpoint_dir" in shared and len(runs) > 1:
        raise ValueError(f"checkpoint_dir={shared['checkpoint_dir']!r} for {len(runs)} runs; give each run its own")
    folders: dict[Path, int] = {}
    for number, one in enumerate(runs):
        if not isinstance(one, Mapping):
            raise TypeError(f"runs[{number}]={checks.brief(one)}; use a mapping of arguments of simulate")
        if twice := sorted(set(one) & set(shared)):
            raise ValueError(f"{twice[0]} stands in runs[{number}] and beside it; use one of the two")
        if strange := [name for name in one if not isinstance(name, str)]:
            raise TypeError(f"runs[{number}] has {checks.brief(strange[0])}; use names of arguments of simulate")
        if ours := [name for name in ("fed", "progress") if name in one]:
            raise ValueError(f"{ours[0]} stands in runs[{number}]; give it beside the runs, for all of them")
        folder = one.get("checkpoint_dir")
        known = isinstance(folder, str | os.PathLike)  # else `simulate` says what is allowed
        if known and (first := folders.setdefault(Path(folder).resolve(), number)) != number:
            raise ValueError(
                f"checkpoint_dir={str(folder)!r} of runs[{number}] is that of runs[{first}]; give each run its own"
            )
    own = [listeners.of_one_run({**shared, **one}, keep=[fed]) for one in runs]
    shown, results = Bar("runs", len(runs), 0, "run", shows(progress), each=True), []
    for one in own:
        try:
            results.append(run.simulate(fed=fed, progress=False, **one))
        except Exception as e:  # whatever a method, a model or a disk raises: the other runs go on
            results.append(e)
        shown.update()
    shown.close()
    for number, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, Diverged):
            result.results = results
            result.add_note(f"raised by runs[{number}] of {len(runs)}; this error's .results has what all runs gave")
            raise result
    return results
