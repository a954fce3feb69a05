"""Run notebooks as programs: each in a fresh kernel of this interpreter, with parameters and an environment."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import forked

_serial = itertools.count()
FORKS = "FEDBOOK_FORKS"  # in a kernel's environment: the address of `forks`


class NotebookFailed(Exception):
    """A notebook did not run to its end: a cell raised an error or timed out, or the kernel died."""


def execute(
    source: Path,
    output: Path,
    parameters: Mapping[str, Any],
    *,
    workshop: Path,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """Run `source` with papermill and write the executed notebook to `output`, also after a failure.

    workshop: a folder for the kernel's specification while it runs.  env: added to the kernel's environment.
    timeout: seconds per cell, None for no limit.  A kernel that never answers is started once more.

    Raises NotebookFailed.  A normal return does not prove that the notebook did its work: let its last cell write a
    file, and check for the file.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    with _kernel(workshop, env or {}) as kernel:
        for attempt in (1, 2):
            try:
                papermill.execute_notebook(
                    str(source),
                    str(output),
                    dict(parameters),
                    kernel_name=kernel,
                    language="python",
                    # papermill's cwd= would change the current folder of the whole process, other threads included.
                    resources={"metadata": {"path": str(source.parent)}},
                    progress_bar=False,
                    start_timeout=60,
                    execution_timeout=timeout,
                )
                return
            except PapermillExecutionError as error:
                where = f"{source.name}, cell [{error.exec_count}]"
                traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))  # without colours
                raise NotebookFailed(f"{where}: {error.ename}: {error.evalue}\n{traceback}") from None
            except Exception as error:  # the cell timed out, or the kernel died or never answered
                never_started = "respond in" in str(error) or "before replying" in str(error)
                if attempt == 2 or not never_started:
                    kind = type(error).__name__
                    raise NotebookFailed(f"{source.name}: {kind}: {str(error).strip()}") from error


@contextlib.contextmanager
def forks(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment `env` with which `execute` starts kernels by forks (`forked`), on Linux; elsewhere only `env`.

    Kernels have the packages of PYTHONPATH in `env`, which must be the same for all of them.
    """
    with contextlib.ExitStack() as stack:
        address = f"{stack.enter_context(tempfile.TemporaryDirectory())}/forks"
        ready = ""
        if sys.platform == "linux":
            command = [sys.executable, forked.__file__, "serve", address]
            process = subprocess.Popen(command, env=os.environ | _environment(env), stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ready = stack.enter_context(process.stdout).readline()
        yield {**env, FORKS: address} if ready else dict(env)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """What the environment of a kernel has besides the caller's."""
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "FEDCORE_LIVE": "0",  # stored pages contain HTML, no ipywidgets
        "FEDCORE_BATCH": "1",
        "TQDM_DISABLE": "1",
        **env,
    }


@contextlib.contextmanager
def _kernel(workshop: Path, env: Mapping[str, str]) -> Iterator[str]:
    """The name of a temporary kernel specification for one run: this interpreter with the run's environment.

    Jupyter finds the specification through JUPYTER_PATH, so the user's own Jupyter folders are not changed.  Each
    specification contains its environment, so notebooks can run in threads of one process.
    """
    from ipykernel.kernelspec import get_kernel_dict  # the kernel of this interpreter

    jupyter = workshop.resolve() / "jupyter"
    name = f"notebook-{os.getpid()}-{next(_serial)}"
    folder = jupyter / "kernels" / name
    paths = os.environ.get("JUPYTER_PATH", "").split(os.pathsep)
    if str(jupyter) not in paths:
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(jupyter), *paths]))
    spec = {**get_kernel_dict(), "env": {key: v.replace("$", "$$") for key, v in _environment(env).items()}}
    if FORKS in env:
        spec["argv"][1:3] = ["-S", forked.__file__, env[FORKS]]  # in the place of -m ipykernel_launcher
    spec["argv"] += ["--log-level=CRITICAL"]  # else the kernel warns that local sockets are not encrypted
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    try:
        yield name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
