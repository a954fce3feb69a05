"""Tables and figures of the source documents, run again: python -m fedcore.reproduce list | NAME ... | report

    list                       every table and figure: cells, settings left open, estimated time, what is done
    fedup-table4 --seeds 3     run what is missing of a table (or of `all`), as notebooks on a local Dask cluster
    report [NAME ...]          rebuild the tidy tables from the results, and print a verdict on each claim
    new NAME                   write NAME.py: a method of yours in a table beside ten baselines, to be edited and run

    torchrun --nproc_per_node=2 -m fedcore.reproduce fedup-table4 --plain      every run shared by two processes

Started again, a batch does only what is missing.  Exit status: 0, or 1 when a cell failed, or 2 for a wrong call, or
130 when it was stopped, by Ctrl-C or after its `--hours`.

From Python: `run_cell(spec)` runs one cell, `load` reads a result file, `tables` and `get` return the definitions.  The
implementation is in `fedbook`.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedcore import distributed
from fedcore.data import data_root
from fedcore.data.readers import found
from fedcore.storage.checkpoint import atomic
from fedcore.support import checks
from fedcore.support.extras import needs
from fedcore.support.progress import say, streams

from . import new
from .documents import definitions
from .documents.definitions import PROFILES, Cell, Table, get, printed, tables
from .results import batch, estimate, provenance
from .results.batch import ResultFolder
from .results.cells import CorruptResult, Result, confirm, load, run_cell
from .show import curves, export, summary
from .verdicts import claims, overview

__all__ = [
    "Cell", "CorruptResult", "Result", "Table", "confirm", "curves", "get", "load", "main", "printed", "run_cell",
    "summary", "tables",
]  # fmt: skip

INTERRUPTED = 130  # the exit status of shells after Ctrl-C
PER_NOTEBOOK = 4.0  # seconds that a cell's notebook adds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.  arguments: replace those of the command line."""
    given = _parse(arguments)
    if given.debug:
        return _main(given)
    try:
        with needs("batches", "this command"):
            return _main(given)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, distributed.Lost, provenance.UncommittedCode) as e:
        say(_short(str(e)))
        return 2


def _main(given: argparse.Namespace) -> int:
    root = Path(given.results)
    if root.exists() and not root.is_dir():
        raise ValueError(f"--results {root} is no folder; name one")
    root = root / "uncommitted" if given.uncommitted else root
    seeds = list(range(given.seeds)) if given.seeds else None
    if given.definitions:
        definitions.add(given.definitions)
    if given.names[0] != "report" and (given.format or given.output or given.plot):
        raise ValueError("--format, --output and --plot belong to `report`; run tables without them")
    if given.output and not given.format:
        raise ValueError(f"--output {given.output} needs --format, one of {', '.join(export.FORMATS)}")
    if given.names == ["list"]:
        return _list(root, given.profile, seeds, given.workers)
    if given.names[0] == "new":
        if len(given.names) != 2:
            raise ValueError(f"`new` takes one name, not {len(given.names) - 1}; such as: new FedNew")
        print(new.table(given.names[1], given.profile))
        return 0
    if given.names[0] == "report":
        if damaged := export.damaged(given.names[1:], root):
            say("\n".join(damaged))
        if given.format or given.plot:
            return _export(root, seeds, given)
        return _report(root, seeds, given.names[1:])
    if distributed.world().size > 1 and not given.plain:
        raise ValueError("torchrun shares plain runs and no notebooks; add --plain")
    chosen = export.chosen([] if given.names == ["all"] else given.names)
    for one in chosen if given.names != ["all"] else ():
        if given.profile not in one.captions:
            known = ", ".join(one.captions) or "none; a line of fedbook/documents/captions.csv adds one"
            raise ValueError(f"the table {one.name} has no profile {given.profile}; it has {known}")
    cells = {t.name: _asked(t.cells(given.profile), given.only) for t in chosen}
    if given.only and not any(cells.values()):
        names = [cell.name for t in chosen for cell in t.cells(given.profile)]
        raise ValueError(f"no cell's name contains {given.only!r}; {checks.nearest(given.only, names)}")
    failures, over = 0, threading.Event()
    clock = threading.Timer(3600 * (given.hours or 0), _interrupt, [over])
    clock.daemon = True
    # A process that a script starts with & ignores SIGINT, the signal by which the clock stops it.
    main = threading.current_thread() is threading.main_thread()  # others may not choose what a signal does
    ignored = given.hours and main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    try:
        if ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if given.hours:
            clock.start()
        for one in chosen:
            failures += _run(cells[one.name], ResultFolder(root, given.profile, one.name), seeds, given)
    except KeyboardInterrupt:
        when = f" after {given.hours:g} hours" if over.is_set() else ""
        left = "; ".join(_left(cells, ResultFolder(root, given.profile, ""), seeds)) or "nothing"
        say(f"\nstopped{when}; finished runs are kept, and the same command continues from here\nleft: {left}")
        return INTERRUPTED
    finally:
        clock.cancel()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    return 1 if failures else 0


def _interrupt(over: threading.Event) -> None:
    """Set `over`, and stop the main thread as Ctrl-C does, also where it waits."""
    over.set()
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    else:  # Windows
        _thread.interrupt_main()


def _left(cells: Mapping[str, Sequence[Cell]], place: ResultFolder, seeds: Sequence[int] | None) -> list[str]:
    """Each table with missing cells, and their names."""
    found = {name: batch.missing(replace(place, table=name), asked, seeds)[0] for name, asked in cells.items()}
    return [f"{name} ({', '.join(c.name for c in todo)})" for name, todo in found.items() if todo]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fedcore.reproduce",
        usage="%(prog)s NAME [NAME ...] [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="list, report, new, all, or names of tables and figures"
    )
    parser.add_argument("--profile", choices=PROFILES, default="quick")
    parser.add_argument("--seeds", type=_positive, help="how many seeds, from 0 on (default: as the table has)")
    parser.add_argument("--results", default="results", help="the results folder (default: results)")
    parser.add_argument("--scheduler", help="address of a Dask scheduler, such as tcp://10.0.0.1:8786")
    parser.add_argument("--workers", type=_positive, help="cells at once on this machine (default: GPUs, else cores)")
    parser.add_argument(
        "--hours", type=_hours, help="stop after so many hours, such as 2.5, and say what is left; it continues later"
    )
    parser.add_argument("--plain", action="store_true", help="without notebooks and Dask: needs torch only")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: CUDA where there is one)")
    parser.add_argument("--definitions", help="a Python file with tables of your own, TABLES = [...]")
    parser.add_argument(
        "--format", choices=list(export.FORMATS), help="report: print tables, rows by columns, in this format"
    )
    parser.add_argument("--output", metavar="FILE", help="report --format: write them to this file")
    parser.add_argument(
        "--plot", metavar="FILE", help="report: draw each table's paired differences (.png, .svg, .pdf)"
    )
    parser.add_argument("--only", help="only the cell of this name, or those whose name contains it")
    parser.add_argument("--outdated", action="store_true", help="also run again what is older than the code")
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="run nothing, but see whether today's code still computes what is older than it: a few rounds a cell",
    )
    parser.add_argument("--debug", action="store_true", help="show errors with their whole traceback")
    parser.add_argument(
        "--uncommitted", action="store_true",
        help="use RESULTS/uncommitted, which git ignores: for trials of code that no commit holds",
    )  # fmt: skip
    return parser.parse_intermixed_args(arguments)  # names may stand after options


def _hours(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (hours := float(text)) <= 10_000:
            return hours
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of hours above 0 and at most 10000")


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= len(text) <= 5 or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from 1 to 10000")
    return int(text)


def _asked(cells: Sequence[Cell], only: str | None) -> list[Cell]:
    """The cells whose name contains `only`; a full name selects one cell, though longer names may contain it."""
    return [c for c in cells if c.name == only] or [c for c in cells if not only or only in c.name]


def _short(text: str, lines: int = 6) -> str:
    """The first lines of an error; `--debug` shows all."""
    kept = [line[:500] for line in text.strip().splitlines()]
    return "\n".join(kept if len(kept) <= lines else [*kept[: lines - 1], "... (--debug shows all)"])


def _run(cells: list[Cell], place: ResultFolder, seeds: list[int] | None, given: argparse.Namespace) -> int:
    if given.confirm:
        return _confirm(place, cells, given.device)
    outcome = batch.run(
        place, cells, seeds, notebooks=not given.plain, scheduler=given.scheduler, workers=given.workers,
        device=given.device, outdated=given.outdated,
    )  # fmt: skip
    if distributed.world().rank:  # the first process speaks for all
        return len(outcome.failed)
    for message in outcome.said:
        say(message)
    for name, notebook, error in outcome.failed:
        shown = error.rstrip() if given.debug else _short(error.splitlines()[0], 1)
        where = "" if given.plain else f"\n  notebook: {notebook}"
        say(f"\nFAILED {place.table}: {name}{where}\n  {shown}")
    older = f" ({n} older than the code, which --outdated runs again)" if (n := len(outcome.older)) else ""
    print(
        f"{place.table} ({given.profile}): {len(outcome.done)} cells run, {len(outcome.stood)} stood already{older}, "
        f"{len(outcome.failed)} failed; results in {place.folder}"
    )
    return len(outcome.failed)


def _confirm(place: ResultFolder, cells: list[Cell], device: str | None) -> int:
    """Print for how many of the cells older than the code today's code computes the same; returns how many differ or
    fail."""
    answers: dict[str, bool | None] = {}
    broken = 0
    for cell in cells:
        try:
            answers[cell.name] = confirm(place.file(cell), cell.spec, device=device)
        except (ValueError, OSError) as e:  # the result file, a file it names or the data are missing or broken
            say(f"{place.table}: {cell.name}: {e}")
            broken += 1
    differ = [name for name, answer in answers.items() if answer is False]
    for name in differ:
        print(f"{place.table}: {name} has other first rounds now, by code or this processor; --outdated runs it")
    for cell in (cell for cell in cells if answers.get(cell.name)):
        if older := load(place.file(cell), cell.spec).outdated():
            print(f"{place.table}: {cell.name}: seeds {older} stay older: the trace of their code is not stored")
    same = sum(answer is True for answer in answers.values())
    print(
        f"{place.table} ({place.profile}): {same} cells are what today's code computes, {len(differ)} are not, "
        f"{len(answers) - same - len(differ)} are not older or left no trace"
    )
    return len(differ) + broken


def _list(root: Path, profile: str, seeds: list[int] | None, workers: int | None) -> int:
    at_once = workers or torch.cuda.device_count() or len(batch._cores())
    shown = [t for t in tables().values() if profile in t.captions]
    stored = {t.name: _stored(t, ResultFolder(root, profile, t.name)) for t in shown if not t.drawn_from}
    pace = estimate.Pace((cell.spec, result) for part in stored.values() for cell, result in part)
    for t in shown:
        results = stored[t.drawn_from or t.name]
        left = [(cell.spec, estimate.rounds_left(cell.spec, result, cell.reporting(seeds))) for cell, result in results]
        left = [(pace.seconds(spec), rounds) for spec, rounds in left if rounds]
        known = [PER_NOTEBOOK + each * rounds for each, rounds in left if each is not None]
        print(f"{t.name}  [{'figure' if t.figure else 'table'} of {t.document}]  {t.title}")
        time = _time(sum(known) / at_once, len(left) - len(known)) if left else "done"
        counts = " or ".join(sorted({str(len(cell.reporting(seeds))) for cell, _ in results}))
        done = len(results) - len(left)
        print(f"    {profile}: {done} of {len(results)} cells done x {counts} seeds; {time}")
        if absent := _absent(cell for cell, result in results if set(cell.reporting(seeds)) - set(result.runs)):
            print(f"    data not in {data_root()}: {', '.join(absent)}; put them there, or let a run download them")
        if older := sum(bool(result.outdated(cell.reporting(seeds))) for cell, result in results):
            print(f"    {older} of {len(results)} cells are older than the code; --outdated runs them again")
        print("   ", *t.caption(profile), f"Drawn from the cells of {t.drawn_from}." * bool(t.drawn_from))
        for what, choice in t.left_open:
            print(f"    left open: {what}; ours: {choice}")
    return 0


def _absent(cells: Iterable[Cell]) -> list[str]:
    """The data sets of the cells, by name, of which the data root has no file."""
    sources = [cell.spec.get("federation", {}).get("source") for cell in cells]
    names = dict.fromkeys(name for name in sources if isinstance(name, str))
    return [name for name in names if not found(name, data_root())]


def _stored(t: Table, place: ResultFolder) -> list[tuple[Cell, Result]]:
    found = list(batch.stored(place, t.cells(place.profile)))
    for said in (said for _, _, said in found if said):
        say(said)
    return [(cell, result or Result(cell.spec)) for cell, result, _ in found]


def _time(seconds: float, unknown: int) -> str:
    """The remaining time in words.  unknown: how many cells have no finished cell to estimate their time from."""
    if not seconds:
        return "time not known before the first cell"
    more = f", and {unknown} cell{'s' * (unknown > 1)} that cannot be estimated yet" if unknown else ""
    return f"about {_duration(seconds)} left{more}"


def _duration(seconds: float) -> str:
    for size, unit, upto in ((1, "s", 100), (60, "min", 6000), (3600, "h", 360_000)):
        if seconds < upto:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def _report(root: Path, seeds: list[int] | None, names: Sequence[str]) -> int:
    chosen = export.chosen(names)
    if not root.is_dir():
        raise ValueError(f"the results folder {root} does not exist; run a table first, or name another by --results")
    for profile in PROFILES:
        frames = {}
        for t in chosen:
            place = ResultFolder(root, profile, t.name)
            if not place.folder.exists():
                continue
            frames[t.name] = tidy = overview.frame(t, place, seeds)
            # whether a result is older than the code depends on today's code, so the table leaves it out
            with atomic(place.folder / "table.csv") as f:
                tidy.drop(columns="older").to_csv(f, index=False, float_format="%.6g")
        if frames:
            print(f"{profile}: tidy values in {root / profile}/*/table.csv\n{overview.progress(frames)}\n")
            for sentence in overview.reservations(frames):
                print(sentence)
    for claim in claims.every():
        if names and claim.table not in {*names, *(t.name for t in chosen)}:
            continue
        best = claims.strongest(claims.judged(claim, root))
        verdict = best.said if best else overview.NOT_RUN
        print(f"{claim.document} {claim.name}: {verdict} ({claims.confidence(best)})")
    return 0


def _export(root: Path, seeds: list[int] | None, given: argparse.Namespace) -> int:
    names = given.names[1:]
    if given.format:
        text = export.text(names, given.format, root, seeds)
        if not text:
            what = ", ".join(names) or "any table"
            raise ValueError(
                f"nothing is stored of {what} in {root}; run a table first, or add --uncommitted for trials"
            )
        if given.output:
            Path(given.output).write_text(text + "\n", encoding="utf-8")
        else:
            print(text)
    if given.plot:
        files = export.pictures(names, Path(given.plot), root, seeds)
        if not files:
            raise ValueError(f"no comparison of {', '.join(names) or 'any table'} is complete in {root}; run one first")
        say("\n".join(map(str, files)))
    return 0


@streams()
def command() -> int:
    """Run `main`; if the reader of a pipe has closed it (`list | head`), end quietly with the shell's status 141."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # any terminal's encoding
            if not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
                stream.reconfigure(encoding="utf-8")  # else files on Windows get the code page, which has no check mark
    try:
        status = main()
        sys.stdout.flush()
        if status == INTERRUPTED:  # do not wait for running threads; kernels end with their parent
            os._exit(status)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports the broken pipe at exit
        return 141
    return status


if __name__ == "__main__":
    sys.exit(command())
