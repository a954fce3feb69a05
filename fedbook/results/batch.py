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
from .cells import CorruptResult, Result, identity, load, run_cell, sweep_checkpoints
from .notebooks import NotebookFailed, execute

NOTEBOOK = Path(__file__).with_name("experiment.ipynb")
RETRIES = 2  # of a cell whose worker died
SECONDS = 10  # until a scheduler must have answered
LOOPBACK = "127.0.0.1:0"  # by default Dask's status pages are open to the network


@dataclass(frozen=True)
class ResultFolder:
    """Where the results of a table in a profile live: `root/profile/table/`."""

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
    """The project's results folder, seen from the book's folder or from above it.

    Raises FileNotFoundError where there is none, unless it may be a new one.
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
    """What a batch did: cells computed, cells that stood already and which of them are older than the code, failures
    `(cell, notebook, error)`, and what there is to say of files that were damaged or of another specification."""

    done: list[str] = field(default_factory=list)
    stood: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    failed: list[tuple[str, str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def standing(place: ResultFolder, cell: Cell) -> Result:
    """The cell's current results; raises CorruptResult, and OSError for a file that cannot be read."""
    return load(place.file(cell), cell.spec)


def stored(place: ResultFolder, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Result | None, str]]:
    """Each cell with what is stored of it; of a file that is damaged or cannot be read None, and what is wrong."""
    for cell in cells:
        try:
            yield cell, standing(place, cell), ""
        except (CorruptResult, OSError) as e:
            yield cell, None, str(e)


def missing(
    place: ResultFolder, cells: Iterable[Cell], seeds: Sequence[int] | None = None, outdated: bool = False
) -> tuple[list[Cell], Outcome]:
    """The cells that lack a seed or their trace (or, with `outdated`, have a seed older than the code), and what stands
    already."""
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
        except (ValueError, OSError):  # unreadable, or a file that it names is missing or broken: running it says so
            complete = False
        if complete:
            outcome.stood.append(cell.name)
            with contextlib.suppress(ValueError):  # without a file that it names nobody can say
                outcome.older += [cell.name] if result.outdated(asked) else []
        else:
            todo.append(cell)
    return todo, outcome


def take_over(place: ResultFolder, cells: Iterable[Cell]) -> None:
    """Copy the results of cells without a file that another table of the profile has too: equal specifications are one
    run.
    """
    waiting = {identity(cell.spec): place.file(cell) for cell in cells if not place.file(cell).exists()}
    for table in tables().values() if waiting else ():
        other = ResultFolder(place.root, place.profile, table.name)
        if table.drawn_from or table.name == place.table or not other.folder.exists():
            continue
        with contextlib.suppress(ValueError):  # cells that cannot be made, which running that table says
            for twin in table.cells(place.profile):
                file = waiting.get(key := identity(twin.spec))
                if file and (theirs := _with_runs(other, twin)):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with atomic(file) as copy:
                        copy.write(theirs.read_bytes())
                    del waiting[key]


def _with_runs(place: ResultFolder, cell: Cell) -> Path | None:
    """The file with another table's runs of a cell; what cannot be read is for that table to say."""
    with contextlib.suppress(CorruptResult, OSError):
        return place.file(cell) if standing(place, cell).runs else None
    return None


def one(
    place: ResultFolder,
    cell: Cell,
    seeds: Sequence[int] | None = None,
    *,
    notebook: bool = True,
    device: str | None = None,
    outdated: bool = False,
) -> str:
    """Run one cell, as a notebook or plainly; returns its name.  Raises NotebookFailed naming the notebook."""
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

    notebooks: each cell is a papermill run, kept under `notebooks/`; else plain calls, one after another, in this
    process, or shared by the processes of torchrun.  scheduler: the address of a Dask scheduler; None starts a local
    cluster with `workers` workers (default: one per GPU, else one per core).  outdated: also run again what is older
    than the code.  Ctrl-C leaves what is finished, and checkpoints of what is not.  What another table has run already
    is taken over (`take_over`).
    """
    world = distributed.world()
    cells = [cell.at(Path.cwd()) for cell in cells]  # a kernel or a worker has another current folder

    def left() -> tuple[list[Cell], Outcome]:
        take_over(place, cells)
        return missing(place, cells, seeds, outdated)

    todo, outcome = world.first(left)
    for cell in cells if world.rank == 0 else ():
        if cell.name in outcome.stood:
            sweep_checkpoints(place.file(cell), cell.spec, place.workshop)
    shown = Bar(place.table, len(cells), len(outcome.stood), "cell", progress and world.rank == 0, each=True)
    call = partial(one, place, seeds=seeds, device=device, outdated=outdated)

    def collect(cell: Cell, result: Callable[[], Any]) -> None:
        try:
            result()
            outcome.done.append(cell.name)
        except distributed.Lost:  # without the others no cell can run
            raise
        except Exception as e:  # whatever a study, a notebook or a worker raises: the others go on
            kind = "" if isinstance(e, NotebookFailed) else f"{type(e).__name__}: "
            outcome.failed.append((cell.name, str(place.notebook(cell)), f"{kind}{e}"))
        shown.update()

    if notebooks and todo:
        _on_cluster(call, todo, collect, shown.set_postfix_str, scheduler, workers)
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
    name_running: Callable[[str], None],
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
    # a worker gets its next cell when it is free, so that what "is running" is running
    dask.config.set({"distributed.scheduler.worker-saturation": 1.0})
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
            for k, cell in enumerate(todo):
                on = call.keywords["device"] or (f"cuda:{k % gpus}" if gpus > 1 and cluster is not None else None)
                key = f"{cell.name}-{k}"
                futures[client.submit(call, cell=cell, device=on, key=key, pure=False, retries=RETRIES)] = cell
            name_running(", ".join(cell.name for cell in todo[: sum(client.nthreads().values())]))
            for future in as_completed(futures):
                collect(futures[future], future.result)
                threads = client.nthreads()  # a scheduler that others started may hand a worker more cells than it runs
                at_work = (key for worker, keys in client.processing().items() for key in list(keys)[: threads[worker]])
                name_running(", ".join(key.rpartition("-")[0] for key in at_work))
        except KeyboardInterrupt:  # at once: threads at work in this process end with it, workers elsewhere are told
            if scheduler is not None:
                client.cancel(list(futures), force=True)
            stack.pop_all()
            raise


def _room_for_files(needed: int) -> None:
    """Allow so many open files and sockets, of which a worker and its kernel take some thirty; ValueError where not."""
    if os.name != "posix":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and hard < needed:
        raise ValueError(
            f"{hard} open files are allowed and this batch of notebooks needs about {needed}; say ulimit -n {needed} "
            "first, or use fewer --workers, or --plain"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _cores() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
