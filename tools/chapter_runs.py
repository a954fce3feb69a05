"""The chapters' small runs without a kernel and without figures, optionally with errors planted in the package.

`records(jobs)` starts one process, which imports torch and the other libraries once and forks for every job; the fork
runs the code cells of a chapter with `profile="test"` and one seed, and returns the numbers that its last cell records.
A job takes one or two seconds; a kernel that draws figures would take half a minute.

A planted error is (place, right, wrong), as in `tools/planted.py`: in the class or function `place` the text `right`,
which occurs there once, is replaced by `wrong`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import planted  # noqa: E402

PARAMETERS = {"profile": "test", "seed": 0}
SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "FEDCORE_LIVE": "0", "FEDCORE_BATCH": "1"}
SETTINGS |= {"MPLBACKEND": "Agg", "TQDM_DISABLE": "1"}


@dataclass(frozen=True)
class Job:
    """A small run of a chapter, with the unchanged package or with errors planted in it.

    only: a tag; only the cell with this tag runs, after those tagged `parameters` and `setup`, and the variable with
    the name of the tag is recorded.
    """

    chapter: str
    errors: tuple[tuple[str, str, str], ...] = ()
    only: str | None = None


def flat(value: Any, name: str = "") -> dict[str, float]:
    """The numbers of a record by name; lists and mappings are flattened, texts are left out."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, part in parts for k, v in flat(part, f"{name}/{key}".lstrip("/")).items()}
    return {} if isinstance(value, str) else {name: float(value)}


def records(jobs: Sequence[Job], env: Mapping[str, str] | None = None) -> list[dict[str, float] | str]:
    """The numbers that each job records, by name, or the traceback of a failed job.

    Raises LookupError for a planted error that does not fit the package.
    """
    with tempfile.TemporaryDirectory() as folder:
        orders = []
        for number, job in enumerate(jobs):
            root = plant(Path(folder) / f"package{number}", job.errors) if job.errors else ROOT
            order = {"chapter": job.chapter, "only": job.only, "root": str(root)}
            orders.append(order | {"record": str(Path(folder) / f"{number}.json")})
        subprocess.run(
            [sys.executable, "-X", "faulthandler", __file__],
            input=json.dumps(orders),
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **SETTINGS, **(env or {})},
        )
        return [_result(Path(order["record"])) for order in orders]


def _result(record: Path) -> dict[str, float] | str:
    failure = record.with_suffix(".txt")
    if failure.exists() or not record.exists():
        return failure.read_text(encoding="utf-8") if failure.exists() else "no record was written"
    return flat(json.loads(record.read_text(encoding="utf-8")))


def plant(folder: Path, errors: Sequence[tuple[str, str, str]]) -> Path:
    """A copy of the packages in `folder` with these errors planted, beside the project's book.  Raises LookupError for
    an error that does not fit (`planted.planted`)."""
    for package in planted.PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "book").symlink_to(ROOT / "book")  # chapters read files of this folder
    for error in errors:
        file, text = planted.planted(planted.Planted(*error), folder)
        file.write_text(text, encoding="utf-8")
    return folder


# ---- the process that runs the jobs


def _serve(orders: Sequence[Mapping[str, Any]]) -> None:
    from importlib import import_module

    for name in ("torch", "pandas", "scipy.stats", "sklearn.datasets", "matplotlib.pyplot", "IPython.display"):
        import_module(name)  # once, for all forks
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    def draw(canvas: FigureCanvasAgg) -> None:
        """Nothing but what matplotlib needs to find a renderer: it replaces the figure's own method for a moment."""
        if "draw" in vars(canvas.figure):
            canvas.figure.draw(canvas.get_renderer())

    # Figures are drawn as one pixel, because only the numbers are compared.
    FigureCanvasAgg.draw = draw
    FigureCanvasAgg.buffer_rgba = lambda canvas: np.full((1, 1, 4), 255, np.uint8)
    for order in orders:
        if (child := os.fork()) == 0:
            try:
                _run(**order)
            except BaseException:
                Path(order["record"]).with_suffix(".txt").write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(0)
        os.waitpid(child, 0)


def _run(chapter: str, only: str | None, root: str, record: str) -> None:
    sys.path.insert(0, root)
    one_frame_each()
    os.chdir(ROOT / "book")
    os.environ["FEDCORE_RECORD"] = record
    cells = json.loads(Path(f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code" and (only is None or {"parameters", "setup", only} & set(tags)):
            source = "".join(cell["source"])
            exec(compile(source, f"{chapter} {cell['id']}", "exec"), names)
            if "exercise" in tags:
                check_solution(source, solution_of(cell, cells), dict(names), f"{chapter} {cell['id']}")
            if "parameters" in tags:
                names.update(PARAMETERS)
    if only is not None:
        names["pages"].record(**{only: names[only]})


def solution_of(cell: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> str:
    """The code of the solution after an exercise's cell, between lines of `~~~`."""
    texts = ["".join(c["source"]) for c in cells[cells.index(cell) + 1 :] if c["cell_type"] == "markdown"]
    found = re.search(r"^~~~python\n(.*?)^~~~", texts[0] if texts else "", re.DOTALL | re.MULTILINE)
    if not found:
        raise ValueError(f"cell {cell['id']} is an exercise, but the text after it has no solution in ~~~python")
    return found.group(1)


def solved(cell: str, solution: str) -> str:
    """An exercise's cell with its functions and classes replaced by those of the solution."""
    lines, nodes = cell.splitlines(keepends=True), {node.name: node for node in definitions(cell)}
    for new in definitions(solution):
        if new.name not in nodes:
            raise ValueError(f"the solution defines {new.name}, the exercise {', '.join(nodes) or 'nothing'}")
    for new in sorted(definitions(solution), key=lambda node: -nodes[node.name].lineno):
        old = nodes[new.name]
        lines[old.lineno - 1 : old.end_lineno] = [f"{ast.get_source_segment(solution, new)}\n"]
    return "".join(lines)


def definitions(source: str) -> list[ast.FunctionDef | ast.ClassDef]:
    """The functions and classes that stand at the top of a source."""
    return [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def check_solution(cell: str, solution: str, names: dict[str, Any], where: str) -> None:
    """Raise ValueError unless the cell prints "not yet" unchanged, and "right" with the solution."""
    for source, expected in ((cell, "not yet"), (solved(cell, solution), "right")):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(source, where, "exec"), names)
        if said.getvalue().strip() != expected:
            raise ValueError(f"{where} prints {said.getvalue().strip()!r}, expected {expected!r}")


def one_frame_each() -> None:
    """Compute only the first frame of every explorer; the full runs of `make book` compute all frames."""
    from fedbook.pictures import widgets

    frames, draw = {}, widgets._call

    def first(fn: Any, setting: Any) -> Any:
        if fn not in frames:
            frames[fn] = draw(fn, setting)
        return frames[fn]

    widgets._call = first


if __name__ == "__main__":
    _serve(json.load(sys.stdin))
