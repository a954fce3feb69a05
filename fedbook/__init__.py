"""The machinery of the book: tables and figures of the source documents as batches of cells, and what draws them.

`documents` define the tables, `studies` are what a cell may compute, `results` run and store cells, `verdicts` judge
claims, `show` and `pictures` draw, `live` has the pictures that move, `measures` what single chapters measure.
`python -m fedbook` is the command over it.

`run_cell` needs torch and what comes with it only; batches need papermill and dask.distributed, verdicts pandas and
scipy, pages matplotlib.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .documents.definitions import Cell, Table, get, printed, tables
    from .results.cells import CorruptResult, Result, load, run_cell
    from .results.provenance import UncommittedCode
    from .show import curves, summary

_MODULES = {  # that `fedcore.experiments`, the old name of this package, had as attributes
    "batch": "results", "cells": "results", "estimate": "results", "judge": "verdicts", "overview": "verdicts",
    "protocol": "documents", "provenance": "results", "table": "results",
}  # fmt: skip
_PLACES = {  # imported when they are first asked for, so that a picture does not load the batches
    "documents.definitions": ("Cell", "Table", "get", "printed", "tables"),
    "results.cells": ("CorruptResult", "Result", "load", "run_cell"),
    "results.provenance": ("UncommittedCode",),
    "show": ("curves", "summary"),
}
_NAMES = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "Cell", "CorruptResult", "Result", "Table", "UncommittedCode", "curves", "get", "load", "printed", "run_cell",
    "summary", "tables",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    return found
