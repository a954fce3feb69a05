"""Build the book: run chapters with papermill, normalise the notebooks, render them with jupyter-book.

    python tools/book.py build                        run every chapter, render the book into _build/html, and
                                                      compare the chapters' outputs with the stored ones
    python tools/book.py pages                        render the stored outputs into _build/html without a run
    python tools/book.py run scaffold -p seed 1       run one chapter with parameters, into _build/runs
    python tools/book.py refresh [scaffold ...]       run chapters and store their outputs in book/*.ipynb
    python tools/book.py check --isa default [...]    run chapters on another instruction set, compare their outputs
                                                      with the stored ones and their small runs with tests/expected

Sphinx never executes a notebook, because its caches show old numbers after a change in the package. Every
chapter runs in a fresh kernel of this interpreter, and it has succeeded only if papermill reports no error *and* the
record of its last cell was written (a killed kernel leaves a notebook that looks complete).
"""

from __future__ import annotations

import argparse
import ast
import configparser
import contextlib
import copy
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fedbook.results.notebooks import NotebookFailed, execute, forks  # noqa: E402
from fedcore.storage.checkpoint import atomic  # noqa: E402
from tools import outputs  # noqa: E402

# Instruction sets by name: environment variables that stop torch, numpy and their libraries from using the best one.
# A number that depends on the last bit differs between them, as it would between processors.
ISAS = {
    "native": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "HASWELL",
    },
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "NEHALEM",
    },
}
CELL_TIMEOUT = 300  # seconds, for one cell in the quick profile
LINES = 6  # printed lines of an error of `run` without --debug
PARALLEL = 2  # chapters at once, in threads, because separate processes race for the kernels' ports


class ChapterFailed(Exception):
    """A chapter did not run to its end."""


class WrongCall(ChapterFailed):
    """The call names a chapter or a parameter that does not exist."""


@dataclass(frozen=True)
class Run:
    """An executed chapter: the normalised notebook, the numbers of its record, and the seconds it took."""

    notebook: Any
    numbers: dict[str, Any]
    seconds: float


# ---- pages and chapters


def pages(root: Path = ROOT) -> list[str]:
    """The pages in the order of _toc.yml: `book/index`, `book/averaging`, ..."""
    from sphinx_external_toc.parsing import parse_toc_yaml  # by which jupyter-book reads it

    return list(parse_toc_yaml(root / "_toc.yml"))


def chapters(root: Path = ROOT) -> list[Path]:
    """The executable pages of the book: those of _toc.yml that are notebooks."""
    return [path for page in pages(root) if (path := root / f"{page}.ipynb").exists()]


def in_turn(day: int, root: Path = ROOT) -> list[Path]:
    """The two chapters that `make test` compares with nbval on a day, besides that on the engine: the next two a day
    later, so that all have their turn."""
    others = [path for path in chapters(root) if path.stem != "engine"]
    return [others[k % len(others)] for k in (2 * day, 2 * day + 1)]


def day(root: Path = ROOT) -> int:
    """The day of the last commit, counted from 1970, so that a commit is tested alike wherever and whenever; outside of
    a repository, today."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    seconds = subprocess.run(command, capture_output=True, check=False).stdout if shutil.which("git") else b""
    return int(seconds or time.time()) // 86_400


def defaults(source: Path) -> dict[str, Any]:
    """The parameters of a chapter with their default values, read from its cell tagged `parameters`.

    Raises ChapterFailed if there is no such cell or more than one, and for a value that is not a literal, because
    papermill would not recompute derived values.
    """
    cells = [c for c in read(source).cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ChapterFailed(f"{source.name} has {len(cells)} cells tagged 'parameters'; it needs exactly one")
    values = {}
    for statement in ast.parse(cells[0].source).body:
        try:
            (target,) = statement.targets
            values[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError):
            line = ast.unparse(statement)
            raise ChapterFailed(f"{source.name}: `{line}` in the parameters cell is not `name = literal`") from None
    return values


# ---- running


def run_chapter(
    source: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    root: Path = ROOT,
    output: Path | None = None,
    timeout: float = CELL_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run one chapter in a fresh kernel of this interpreter, with the packages of `root`.

    `parameters` replace the chapter's defaults; `output` is the executed notebook (default
    `_build/runs/NAME.ipynb`, its record beside it as `.json`); `timeout` is in seconds per cell; `env` is
    added to the kernel's environment.

    Raises ChapterFailed for an unknown parameter, a failing cell, a time-out, a dead kernel and a missing
    record.
    """
    parameters = dict(parameters or {})
    known = defaults(source)
    if unknown := sorted(set(parameters) - set(known)):
        raise WrongCall(f"{source.name} has no parameter {', '.join(unknown)}; it takes: {', '.join(known)}")
    output = output or root / "_build" / "runs" / source.name
    output.parent.mkdir(parents=True, exist_ok=True)
    record = output.with_suffix(".json")
    record.unlink(missing_ok=True)
    added = {"FEDCORE_RECORD": str(record.resolve()), "PYTHONPATH": _path(root), **(env or {})}
    started = time.perf_counter()
    try:
        execute(source, output, parameters, workshop=root / "_build", env=added, timeout=timeout)
    except NotebookFailed as error:
        raise ChapterFailed(str(error)) from error
    if not record.exists():
        raise ChapterFailed(f"{source.name}: no record was written; its last cell must be pages.record(...)")
    seconds = time.perf_counter() - started
    notebook = normalise(read(output), source.stem, refuse_injected=False)
    return Run(notebook, json.loads(record.read_text(encoding="utf-8")), seconds)


def _path(root: Path) -> str:
    """PYTHONPATH of the kernels: the packages of `root`."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))


def run_all(
    sources: Sequence[Path],
    *,
    root: Path = ROOT,
    timeout: float = CELL_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> dict[Path, Run]:
    """Run chapters, `PARALLEL` at once, and print a line for each.  Raises ChapterFailed after all have run."""
    width = max((len(s.stem) for s in sources), default=0)
    print(f"running {len(sources)} chapters, {PARALLEL} at once", flush=True)
    done: dict[Path, Run] = {}
    failures: list[str] = []
    stack, env = contextlib.ExitStack(), {"PYTHONPATH": _path(root), **(env or {})}
    if len(sources) > PARALLEL:
        env = stack.enter_context(forks(env))
    pool = ThreadPoolExecutor(PARALLEL)
    jobs = {pool.submit(run_chapter, s, root=root, timeout=timeout, env=env): s for s in sources}
    try:
        for job in as_completed(jobs):
            source = jobs[job]
            try:
                done[source] = job.result()
                print(f"  {source.stem:{width}}  {done[source].seconds:6.1f} s", flush=True)
            except ChapterFailed as error:
                failures.append(str(error))
                print(f"  {source.stem:{width}}  FAILED", flush=True)
    finally:  # after a Ctrl-C do not wait for running chapters: `_command` ends them
        pool.shutdown(wait=False, cancel_futures=True)
        stack.close()
    if failures:
        raise ChapterFailed("\n\n".join(failures))
    return done


# ---- comparing


def differences(new: Any, stored: Any, rules: Path = ROOT / "tests" / "nbval_sanitize.cfg") -> list[str]:
    """The cells whose outputs differ from the stored notebook's (tools/outputs.py), one line each."""
    patterns = _patterns(rules)
    if [c.source for c in new.cells] != [c.source for c in stored.cells]:
        return ["the cells are not those that are stored"]
    lines = []
    for number, (fresh, old) in enumerate(zip(new.cells, stored.cells, strict=True)):
        if fresh.cell_type == "code":
            values = "chaotic" not in old.metadata.get("tags", [])
            found = outputs.compare(old.outputs, fresh.outputs, clean=lambda t: _replaced(t, patterns), values=values)
            lines += [f"cell {number}: {found}"] if found else []
    return lines


def unlike_stored(done: Mapping[Path, Run]) -> list[str]:
    """One line for every cell of executed chapters whose output differs from the stored notebook's."""
    return [
        f"{source.stem}, {line}"
        for source in sorted(done)
        for line in differences(done[source].notebook, normalise(read(source), source.stem))
    ]


def check(sources: Sequence[Path], isa: str, *, root: Path = ROOT, timeout: float = CELL_TIMEOUT) -> None:
    """Run chapters on the instruction set `isa` of ISAS, and compare outputs and records with the stored ones.

    Raises ChapterFailed with a line for every cell and number that differs.
    """
    from tools import chapter_runs, expect

    done = run_all(sources, root=root, timeout=timeout, env=ISAS[isa])
    records = chapter_runs.records([chapter_runs.Job(source.stem) for source in sources], ISAS[isa])
    failures = unlike_stored(done)
    for source, numbers in zip(sources, records, strict=True):
        failures += [f"{source.stem}, {line}" for line in expect.deviations(source.stem, numbers)]
    if failures:
        raise ChapterFailed(f"on instruction set {isa!r}:\n" + "\n".join(failures))
    print(f"{len(sources)} chapters show and record on instruction set {isa!r} what is stored")


# ---- normalising


def normalise(notebook: Any, name: str = "notebook", *, refuse_injected: bool = True) -> Any:
    """The notebook reduced to the content that is committed, so that the same code gives the same bytes.

    The metadata keep each cell's tags and `mystnb`; cells folded on the page are folded in JupyterLab too. Executions
    are numbered 1, 2, ..., streams are joined, stderr is dropped with a notice, and cells without a valid id get one
    from their content.

    Raises ChapterFailed for an error output, a live widget, and, if `refuse_injected`, papermill's injected cell.
    """
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    ids: set[str] = set()
    executions = itertools.count(1)
    for number, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags", [])
        if refuse_injected and "injected-parameters" in tags:
            raise ChapterFailed(f"{name}, cell {number} was injected by papermill; store a run without parameters")
        folded = {"hide-input", "remove-input"} & set(tags) and "parameters" not in tags
        kept = {"tags": tags, "mystnb": cell.metadata.get("mystnb"), "jupyter": folded and {"source_hidden": True}}
        cell.metadata = nbformat.from_dict({name: value for name, value in kept.items() if value})
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", cell.get("id", "")) or cell.id in ids:
            cell.id = hashlib.sha256(f"{number} {cell.source}".encode()).hexdigest()[:8]
        ids.add(cell.id)
        if cell.cell_type == "code":
            cell.execution_count = next(executions) if cell.source.strip() else None
            cell.outputs = _outputs(cell, f"{name}, cell {number}")
    return notebook


def _outputs(cell: Any, where: str) -> list[Any]:
    outputs: list[Any] = []
    for output in cell.outputs:
        if output.output_type == "error":
            raise ChapterFailed(f"{where} holds an error: {output.ename}: {output.evalue}")
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
            raise ChapterFailed(f"{where} shows a live widget; a stored notebook is made with FEDCORE_LIVE=0")
        if output.output_type == "stream" and output.name == "stderr":
            print(f"  notice: {where} wrote to stderr: {output.text.strip()[-200:]}", flush=True)
        elif output.output_type == "stream" and outputs and outputs[-1].output_type == "stream":
            outputs[-1].text += output.text
        else:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            outputs.append(output)
    return outputs


def keep_timings(new: Any, old: Any, rules: Path = ROOT / "tests" / "nbval_sanitize.cfg") -> Any:
    """`new`, with the stored output of `old` in every cell where only hardware and seconds differ.

    The kept hardware and seconds stay true for the stored run, and a refresh without other changes changes no byte.
    """
    if [c.source for c in new.cells] == [c.source for c in old.cells]:
        for fresh, stored in zip(new.cells, old.cells, strict=True):
            if fresh.cell_type == "code" and _timeless(fresh.outputs, rules) == _timeless(stored.outputs, rules):
                fresh.outputs = stored.outputs
    return new


def _patterns(rules: Path, names: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """The (pattern, replacement) pairs of the sanitiser file, of all sections or of the given ones."""
    parser = configparser.ConfigParser(delimiters=(":",), interpolation=None)
    parser.read(rules, encoding="utf-8")
    return [(parser[name]["regex"], parser[name]["replace"]) for name in names or parser.sections()]


def _replaced(text: str, patterns: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in patterns:
        text = re.sub(pattern, replacement, text)
    return text


def _timeless(value: Any, rules: Path) -> Any:
    patterns = _patterns(rules, ("machine", "seconds"))

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return _replaced(value, patterns)
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return clean(value)


def refresh(sources: Sequence[Path], *, root: Path = ROOT, timeout: float = CELL_TIMEOUT) -> None:
    """Run chapters and store their outputs in their notebooks, which are written only after all have succeeded."""
    for source, run in run_all(sources, root=root, timeout=timeout).items():
        old = source.read_text(encoding="utf-8")
        text = written(keep_timings(run.notebook, normalise(read(source), source.stem)))
        print(f"  {source.stem}: {'unchanged' if text == old else 'updated'}")
        if text != old:
            with atomic(source) as f:
                f.write(text.encode())


def read(path: Path) -> Any:
    """A stored notebook."""
    return nbformat.read(path, as_version=4)


def written(notebook: Any) -> str:
    """A notebook as it is stored."""
    return nbformat.writes(notebook, indent=1).rstrip() + "\n"


def age(results: Path = ROOT / "results") -> str:
    """A line that states which stored results are older than the code."""
    from fedbook.results import page_cache
    from fedbook.show import benchmarked
    from fedbook.verdicts import overview

    older, runs = overview.age(results)
    words = f"{older} of {runs} stored runs are older than the code: python -m fedcore.reproduce list names them"
    files = ", ".join(file.name for file in page_cache.outdated(results))
    words += f"; so is the training that pages read from {files}" if files else ""
    measured = ", ".join(benchmarked.outdated(results / "benchmarks"))
    return words + (f"; benchmarks of other code than today's: {measured}" if measured else "")


# ---- rendering


def render(target: Path, *, root: Path = ROOT, executed: Mapping[Path, Any] | None = None) -> Path:
    """Build the HTML book into the folder `target` from a clean staging copy beside it; returns its
    index.html.

    `executed` replaces stored notebooks by executed ones. Every build is clean, because an incremental build loses the
    warnings of pages that it does not read again. Raises ChapterFailed for a warning and for a missing page.
    """
    stage = target.parent / f"{target.name}-stage"
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "fedbook" / "documents").mkdir(parents=True)
    (stage / "tools").mkdir()
    for name in ("_config.yml", "_toc.yml", "fedbook/documents/references.bib", "tools/sphinx_fedcore.py"):
        shutil.copy(root / name, stage / name)
    shutil.copytree(root / "book", stage / "book", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for source, notebook in (executed or {}).items():
        (stage / source.relative_to(root)).write_text(written(notebook), encoding="utf-8")
    main = "from jupyter_book.cli.main import main; main()"
    options = ["build", str(stage), "-W", "-n", "--keep-going", "-q"]
    result = subprocess.run([sys.executable, "-c", main, *options], capture_output=True, text=True)
    if result.returncode:
        raise ChapterFailed(f"jupyter-book failed ({result.returncode}):\n{result.stdout}\n{result.stderr}")
    html = stage / "_build" / "html"
    if missing := [page for page in pages(root) if not (html / f"{page}.html").exists()]:
        raise ChapterFailed(f"jupyter-book built no page for: {', '.join(missing)}")
    shutil.rmtree(target, ignore_errors=True)  # only after the new one is complete
    html.rename(target)
    shutil.rmtree(stage)
    return target / "index.html"


# ---- command line


def _chosen(names: Sequence[str], root: Path = ROOT) -> list[Path]:
    available = {path.stem: path for path in chapters(root)}
    stems = [Path(name).stem for name in names]
    if unknown := [stem for stem in stems if stem not in available]:
        raise WrongCall(f"no chapter {', '.join(unknown)}; the book has: {', '.join(available)}")
    return [available[stem] for stem in stems] or list(available.values())


def _value(text: str) -> Any:
    """The value of a parameter: `1` is a number, `[1, 2]` a list, `true` a bool, `01` and all other words are texts."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _timed(label: str, work: Callable[[], Any]) -> Any:
    print(label, flush=True)
    started = time.perf_counter()
    result = work()
    print(f"  {time.perf_counter() - started:.1f} s", flush=True)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "pages", "run", "refresh", "check", "turn"):
        command = commands.add_parser(name)
        command.add_argument("--debug", action="store_true", help="show errors with their whole traceback")
        command.add_argument("--timeout", type=float, default=CELL_TIMEOUT, help="seconds per cell")
        if name == "run":
            command.add_argument("chapter")
            pair = {"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")}
            command.add_argument("-p", "--parameter", **pair)
        elif name not in ("build", "pages", "turn"):
            command.add_argument("chapters", nargs="*")
        if name == "check":
            command.add_argument("--isa", choices=ISAS, default="default", help="instruction set")
    given = parser.parse_args(arguments)
    try:
        if given.command == "build":
            done = run_all(chapters(), timeout=given.timeout)
            executed = {source: run.notebook for source, run in done.items()}
            index = _timed("rendering", lambda: render(ROOT / "_build" / "html", executed=executed))
            print(age())
            print(f"the book is ready, open\n{index}")
            if lines := unlike_stored(done):
                raise ChapterFailed("cells show what is not stored (make refresh stores it):\n" + "\n".join(lines))
        elif given.command == "pages":
            print(_timed("rendering what is stored", lambda: render(ROOT / "_build" / "html")))
        elif given.command == "turn":
            print(*(path.relative_to(ROOT) for path in in_turn(day())))
        elif given.command == "refresh":
            refresh(_chosen(given.chapters), timeout=given.timeout)
        elif given.command == "check":
            check(_chosen(given.chapters), given.isa, timeout=given.timeout)
        else:
            (source,) = _chosen([given.chapter])
            parameters = {name: _value(value) for name, value in given.parameter}
            run = run_chapter(source, parameters, timeout=given.timeout)
            print(json.dumps(run.numbers, indent=1))
            print(f"{run.seconds:.1f} s; {ROOT / '_build' / 'runs' / source.name}")
    except ChapterFailed as failure:
        lines = str(failure).strip().splitlines()
        if given.command == "run" and not given.debug and len(lines) > LINES:  # mostly wrong parameters
            lines = [*lines[: LINES - 2], "...", "(--debug shows all)"]
        print("\n" + "\n".join(lines), file=sys.stderr)
        sys.exit(2 if isinstance(failure, WrongCall) else 1)


def _command() -> None:
    """Run `main`; Ctrl-C ends it at once together with running kernels, which end with their parent."""
    for stream in (sys.stdout, sys.stderr):  # terminals of any encoding
        stream.reconfigure(errors="backslashreplace")
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped; stored notebooks are whole; start the same command again", file=sys.stderr)
        sys.stderr.flush()
        os._exit(130)


if __name__ == "__main__":
    _command()
