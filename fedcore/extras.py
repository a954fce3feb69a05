"""Packages that not everyone installs: what lacks one says how to get it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXTRAS = ("data", "batches", "pictures")  # of pyproject.toml


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Inside, or in a function that it decorates, an ImportError of a package that is not installed says which of
    `EXTRAS` has it; `what` needs it."""
    try:
        yield
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package in ("", "fedcore"):
            raise
        remedy = f"pip install 'fedcore[{extra}]'"
        raise ImportError(f"{what} needs {package}, which is not installed: {remedy}", name=package) from e
