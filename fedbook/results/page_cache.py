"""Stored training runs of chapters, so that building a page does not repeat the tuning of learning rates."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from fedcore.storage import archives, sources
from fedcore.storage.checkpoint import atomic

from ..documents.definitions import PROFILES
from . import provenance
from .batch import results


class Runs:
    """A cache of the results of a page's functions, by their arguments: stored results are read, others computed.

    Calls may depend on the results of earlier ones, as a comparison depends on the learning rates that tuning chose:

        runs = Runs("08_runs", profile, plan, again=again)

        @runs.keep
        def accuracy(method, lr, seed): ...

        origin = runs.store()  # after the last call

    Results are read from `results/PROFILE/NAME.json` if that file was made for the same `plan`, which states everything
    besides the arguments that the results depend on.  With `again` all results are computed, and `store` writes them to
    this file, with the plan and their provenance.  Plan and results consist of numbers, texts, lists and mappings with
    texts as keys.  root: the results folder, by default the project's.

    Raises `provenance.UncommittedCode` if `again` would store results of uncommitted code in the repository.
    """

    def __init__(
        self, name: str, profile: str, plan: Mapping[str, Any], *, again: bool = False, root: Path | None = None
    ) -> None:
        self.file, self.plan, self.again = (root or results(new=True)) / profile / f"{name}.json", _as_read(plan), again
        if again:
            provenance.check_committed(self.file)
        saved = None if again else _content(self.file)
        self.saved = saved if saved and saved["plan"] == self.plan else None
        self.results: dict[str, Any] = dict(self.saved["result"]) if self.saved else {}
        self.seconds = 0.0

    def keep(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator that caches the function's results by the repr of its positional arguments."""

        @wraps(function)
        def read(*given: Any) -> Any:
            key = f"{function.__name__}({', '.join(map(repr, given))})"
            if key not in self.results:
                began = time.perf_counter()
                self.results[key] = _as_read(function(*given))
                self.seconds += time.perf_counter() - began
            return self.results[key]

        return read

    def store(self) -> str:
        """Write the results to the file if `again` is set; returns a few words on their origin for the page."""
        if self.again:
            made = {"code": sources.library(), **provenance.machine(None), "seconds": round(self.seconds, 1)}
            self.file.parent.mkdir(parents=True, exist_ok=True)
            content = {"plan": self.plan, "provenance": made, "result": self.results}
            with atomic(self.file) as f:
                f.write(archives.sealed(content, nan=True, indent=1))
        elif self.saved:
            made = self.saved["provenance"]
            return f"stored runs ({made['device']}, torch {made['torch']})" + (
                f"; others {HERE}" if self.seconds else ""
            )
        return HERE


HERE = "computed with this page"


def _as_read(value: Any) -> Any:
    return json.loads(json.dumps(value))  # tuples become lists


def _content(file: Path) -> dict[str, Any] | None:
    """The content of a file; None if there is no file, and None with a warning if it is damaged."""
    try:
        content = archives.unsealed(file)
        made, _, _ = (content[name] for name in ("provenance", "plan", "result"))
        if not all(isinstance(made[name], str) for name in ("code", "device", "torch")):
            raise ValueError("its provenance is incomplete")
        return content
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as e:
        warnings.warn(f"{file} is damaged ({type(e).__name__}: {e}) and left out", stacklevel=4)
        return None


def outdated(root: Path | None = None) -> list[Path]:
    """The files of `Runs` in a results folder whose code hash differs from today's."""
    root = root or results(new=True)
    made = {file: _content(file) for profile in PROFILES for file in sorted((root / profile).glob("*.json"))}
    return [file for file, content in made.items() if content and content["provenance"]["code"] != sources.library()]
