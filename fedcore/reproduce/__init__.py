"""Tables and figures of the source documents as batches of cells; see `python -m fedcore.reproduce --help`.

`run_cell` needs torch and numpy only; batches need papermill and dask.distributed, reports pandas.
"""

from .cells import Cell, CorruptResult, Result, load, run_cell
from .table import Table, get, printed, tables

__all__ = [
    "Cell", "CorruptResult", "Result", "Table", "curves", "get", "load", "printed", "run_cell", "summary", "tables",
]  # fmt: skip


def summary(*args, **kwargs):
    """See `fedcore.reproduce.report.summary`."""
    from .report import summary

    return summary(*args, **kwargs)


def curves(*args, **kwargs):
    """See `fedcore.reproduce.report.curves`."""
    from .report import curves

    return curves(*args, **kwargs)
