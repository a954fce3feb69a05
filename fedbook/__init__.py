"""The machinery of the book: the tables and figures of the source documents as batches of cells, and their display.

`documents` defines the tables, `studies` the computations of a cell, `results` runs and stores cells, `verdicts` judges
claims, `show` and `pictures` draw, `live` holds the interactive pictures, and `measures` the measurements of single
chapters.  `python -m fedbook` is the command line.

`run_cell` needs only torch and its dependencies; batches need papermill and dask.distributed, verdicts need pandas and
scipy, and pages need matplotlib.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .documents.definitions import Cell, Table, get, printed, tables
    from .results.cells import CorruptResult, Result, load, run_cell
    from .results.provenance import UncommittedCode
    from .show import curves, summary

_MODULES = {  # attributes of `fedcore.experiments`, the former name of this package
    "batch": "results", "cells": "results", "estimate": "results", "judge": "verdicts", "overview": "verdicts",
    "protocol": "documents", "provenance": "results", "table": "results",
}  # fmt: skip
_PLACES = {  # imported at first use, so that drawing a picture does not load the batches
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
