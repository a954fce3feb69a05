"""Packages that not everyone installs: what lacks one says how to get it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXTRAS = ("data", "batches", "pictures")  # of pyproject.toml


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Inside, or in a function that it decorates, an ImportError of a package that is not installed says which of
    `EXTRAS` has it; `what` needs it.  Also where torchvision was built for another torch than the one here."""
    try:
        yield
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package in ("", "fedcore", "fedbook"):
            raise
        remedy = f"pip install 'fedcore[{extra}]'"
        raise ImportError(f"{what} needs {package}, which is not installed: {remedy}", name=package) from e
    except (RuntimeError, AttributeError) as e:
        if "operator torchvision::" not in str(e) and "partially initialized module 'torchvision'" not in str(e):
            raise
        raise ImportError(
            f"{what} needs torchvision, but torch and torchvision are of different builds ({str(e).splitlines()[0]}); "
            "install both from one index, as pip install --force-reinstall torch torchvision does",
            name="torchvision",
        ) from e
