"""Optional packages: the error for a missing one says how to install it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

EXTRAS = ("data", "batches", "pictures")  # of pyproject.toml


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """A block, or a decorator, in which the ImportError for a missing package says that `what` needs the package and
    that the extra `extra` (of `EXTRAS`) installs it, or that torchvision was built for another torch."""
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
