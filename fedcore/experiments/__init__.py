"""Tables and figures of the source documents as batches of cells: definitions, studies, results, verdicts, pages.

`python -m fedcore.reproduce` is the command over it.  `run_cell` needs torch and what comes with it only; batches need
papermill and dask.distributed, verdicts pandas and scipy, pages matplotlib.
"""

from . import batch, cells, estimate, judge, overview, protocol, provenance, show, studies, table
from .cells import Cell, CorruptResult, Result, load, run_cell
from .provenance import UncommittedCode
from .show import curves, summary
from .table import Table, get, printed, tables

__all__ = [
    "Cell", "CorruptResult", "Result", "Table", "UncommittedCode", "batch", "cells", "curves", "estimate", "get",
    "judge", "load", "overview", "printed", "protocol", "provenance", "run_cell", "show", "studies",
    "summary", "table", "tables",
]  # fmt: skip
