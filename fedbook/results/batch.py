"""Batches: the missing cells of a table as papermill runs, on this machine or on a Dask cluster."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedcore import distributed
from fedcore.storage.checkpoint import atomic
from fedcore.support.progress import Bar

from ..documents.definitions import Cell, slug, tables
from . import provenance
from .cells import CorruptResult, Result, confirmed, identity, load, record, run_cell
from .notebooks import NotebookFailed, execute

NOTEBOOK = Path(__file__).with_name("experiment.ipynb")
SECONDS = 10  # time limit for the scheduler's answer
LOOPBACK = "127.0.0.1:0"  # Dask's default would open its status pages to the network


@dataclass(frozen=True)
class ResultFolder:
    """The folder with the results of a table in a profile: `root/profile/table/`."""

    root: Path
    profile: str
    table: str

    @property
    def folder(self) -> Path:
        return self.root / self.profile / self.table

    def file(self, cell: Cell) -> Path:
        return self.folder / f"{slug(cell.name)}.json"

    def notebook(self, cell: Cell) -> Path:
        return self.folder / "notebooks" / f"{slug(cell.name)}.ipynb"

    @property
    def workshop(self) -> Path:
        return self.folder / "unfinished"


def results(new: bool = False) -> Path:
    """The project's results folder, looked up from the folder `book/` or from the project's root.

    Raises FileNotFoundError if there is none, unless `new` allows a folder that does not exist yet.
    """
    found = next((p for p in (Path("../results"), Path("results")) if p.is_dir()), None)
    if found is None and not new:
        raise FileNotFoundError(
            f"the book's stored results are not here: neither {Path('results').resolve()} nor the folder beside it is "
            "a folder; run the chapter in the folder book/ of a checkout, which has them, or start Jupyter there"
        )
    return found or Path("results")


@dataclass
class Outcome:
    """What a batch did.  done: names of the computed cells.  stood: cells that were complete before, and older: those
    among them that are older than the code.  failed: (cell, notebook, error).  said: messages on result files that
    are damaged or belong to another specification."""

    done: list[str] = field(default_factory=list)
    stood: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    failed: list[tuple[str, str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def standing(place: ResultFolder, cell: Cell) -> Result:
    """The stored results of the cell.  Raises CorruptResult for a damaged file, OSError for an unreadable one."""
    return load(place.file(cell), cell.spec)


def stored(place: ResultFolder, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Result | None, str]]:
    """Each cell with its stored result and ""; or, if its file is damaged or unreadable, with None and the error."""
    for cell in cells:
        try:
            yield cell, standing(place, cell), ""
        except (CorruptResult, OSError) as e:
            yield cell, None, str(e)


def missing(
    place: ResultFolder, cells: Iterable[Cell], seeds: Sequence[int] | None = None, outdated: bool = False
) -> tuple[list[Cell], Outcome]:
    """The cells that lack a seed or their trace (with `outdated` also those with a seed older than the code), and an
    `Outcome` with the complete cells."""
    todo, outcome = [], Outcome()
    for cell in cells:
        try:
            result = standing(place, cell)
            asked = cell.reporting(seeds)
            complete = not set(asked) - set(result.runs) and not (outdated and result.outdated(asked))
            complete = complete and not result.untraced()
            outcome.said += [] if complete else result.replaces(place.file(cell))
        except CorruptResult as e:
            outcome.said.append(str(e))
            complete = False
        except (ValueError, OSError):  # the file or one that the cell names is unreadable: running the cell reports it
            complete = False
        if complete:
            outcome.stood.append(cell.name)
            with contextlib.suppress(ValueError):  # a file that the cell names is missing, so its code has no hash
                outcome.older += [cell.name] if result.outdated(asked) else []
        else:
            todo.append(cell)
    return todo, outcome


def take_over(place: ResultFolder, cells: Iterable[Cell]) -> None:
    """For cells without a file, copy the results of a cell of another table with the same specification."""
    waiting = {identity(cell.spec): place.file(cell) for cell in cells if not place.file(cell).exists()}
    for table in tables().values() if waiting else ():
        other = ResultFolder(place.root, place.profile, table.name)
        if table.drawn_from or table.name == place.table or not other.folder.exists():
            continue
        with contextlib.suppress(ValueError):  # a cell cannot be made; running its own table reports that
            twins = (twin for twin in table.cells(place.profile) if identity(twin.spec) in waiting)
            for twin, theirs, _ in stored(other, twins):
                if theirs and theirs.runs:
                    file = waiting.pop(identity(twin.spec))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with atomic(file) as copy:
                        copy.write(theirs.file.read_bytes())
                    if codes := confirmed(theirs.file):
                        record(file, codes)


def one(
    place: ResultFolder,
    cell: Cell,
    seeds: Sequence[int] | None = None,
    *,
    notebook: bool = True,
    device: str | None = None,
    outdated: bool = False,
) -> str:
    """Run one cell, as a notebook or in this process, and return its name.  Raises NotebookFailed with the notebook's
    name."""
    file, workshop = place.file(cell), place.workshop
    if not notebook:
        run_cell(cell.spec, cell.reporting(seeds), file=file, workshop=workshop, device=device, outdated=outdated)
        return cell.name
    output = place.notebook(cell)
    output.parent.mkdir(parents=True, exist_ok=True)
    parameters = {
        "name": f"{place.table}: {cell.name} ({place.profile})",
        "spec": json.loads(json.dumps(cell.spec)),
        "seeds": cell.reporting(seeds),
        "file": str(file.resolve()),
        "workshop": str(workshop.resolve()),
        "device": device,
        "outdated": outdated,
    }
    package = str(provenance.ROOT)
    path = os.pathsep.join(dict.fromkeys([package, *filter(None, sys.path)]))
    execute(NOTEBOOK, output, parameters, workshop=place.root / ".jupyter", env={"PYTHONPATH": path})
    if set(cell.reporting(seeds)) - set(standing(place, cell).runs):
        raise NotebookFailed(f"{output} ended without its result {file}")
    return cell.name


def run(
    place: ResultFolder,
    cells: Sequence[Cell],
    seeds: Sequence[int] | None = None,
    *,
    notebooks: bool = True,
    scheduler: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    outdated: bool = False,
    progress: bool = True,
) -> Outcome:
    """Run the cells that are missing; a failing cell does not stop the others.

    notebooks: each cell is a papermill run whose notebook is kept under `notebooks/`; False runs the cells one after
    another in this process, or shares each run among the processes of torchrun.  scheduler: the address of a Dask
    scheduler; None starts a local cluster with `workers` workers (default: one per GPU, else one per core).
    outdated: also rerun results that are older than the code.  Ctrl-C keeps finished results, and checkpoints of
    unfinished runs.  Results of the same cells in other tables are copied first (`take_over`).

    Raises `provenance.UncommittedCode` before the first cell if the repository would keep a result of code that is not
    committed, ImportError without dask.distributed, ValueError if no scheduler answers, and `distributed.Lost` if a
    process of torchrun is lost; errors of single cells are in `Outcome.failed`.
    """
    world = distributed.world()
    cells = [cell.at(Path.cwd()) for cell in cells]  # kernels and workers have another current folder

    def left() -> tuple[list[Cell], Outcome]:
        take_over(place, cells)
        found, outcome = missing(place, cells, seeds, outdated)
        for cell in found:
            with contextlib.suppress(ValueError):  # a file that the cell names is missing: running the cell reports it
                provenance.check_committed(place.file(cell), cell.spec)
        return found, outcome

    todo, outcome = world.first(left)
    shown = Bar(place.table, len(cells), len(outcome.stood), "cell", progress and world.rank == 0, each=True)
    call = partial(one, place, seeds=seeds, device=device, outdated=outdated)

    def collect(cell: Cell, result: Callable[[], Any]) -> None:
        try:
            result()
            outcome.done.append(cell.name)
        except distributed.Lost:  # without the other processes no cell can run
            raise
        except Exception as e:  # an error of a study, a notebook or a worker: the other cells continue
            kind = "" if isinstance(e, NotebookFailed) else f"{type(e).__name__}: "
            outcome.failed.append((cell.name, str(place.notebook(cell)), f"{kind}{e}"))
        shown.update()

    if notebooks and todo:
        _on_cluster(call, todo, collect, scheduler, workers)
    else:
        for cell in todo:
            shown.set_postfix_str(cell.name)
            collect(cell, partial(call, cell=cell, notebook=False))
    shown.close()
    return outcome


def _on_cluster(
    call: Callable[..., str],
    todo: Sequence[Cell],
    collect: Callable[[Cell, Callable[[], Any]], None],
    scheduler: str | None,
    workers: int | None,
) -> None:
    try:
        import dask
        from distributed import Client, LocalCluster, as_completed
    except ImportError as e:
        raise ImportError(
            "running cells as notebooks needs dask.distributed and papermill: pip install 'fedcore[batches]', or use "
            "--plain"
        ) from e
    import torch

    gpus = torch.cuda.device_count()
    dask.config.set({"distributed.scheduler.worker-saturation": 1.0})  # a worker gets its next cell when it is free
    if scheduler is None:
        count = workers or gpus or len(_cores())
        _room_for_files(64 + 32 * count)
        cluster = LocalCluster(
            n_workers=count, threads_per_worker=1, processes=False, silence_logs=50, dashboard_address=LOOPBACK,
            worker_dashboard_address=LOOPBACK,
        )  # fmt: skip
    else:
        cluster = None
    try:
        client = Client(cluster or scheduler, timeout=SECONDS)
    except (OSError, ValueError, TypeError) as e:
        raise ValueError(
            f"no scheduler answers at {scheduler} ({e}); start one: dask scheduler --host 127.0.0.1"
        ) from e
    futures = {}
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: cluster is not None and cluster.close())
        stack.callback(client.close)
        try:
            for k, cell in enumerate(todo):  # without retries: Dask itself repeats what a dead worker leaves
                on = call.keywords["device"] or (f"cuda:{k % gpus}" if gpus > 1 and cluster is not None else None)
                key = f"{cell.name}-{k}"
                futures[client.submit(call, cell=cell, device=on, key=key, pure=False)] = cell
            for future in as_completed(futures):
                collect(futures[future], future.result)
        except KeyboardInterrupt:  # no waiting: threads of this process end with it, remote workers are cancelled
            if scheduler is not None:
                client.cancel(list(futures), force=True)
            stack.pop_all()
            raise


def _room_for_files(needed: int) -> None:
    """Raise the limit of open files and sockets towards `needed`: a worker and its kernel use about thirty."""
    if os.name != "posix":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))


def _cores() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
