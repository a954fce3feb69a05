"""`pytest --nbval book/scaffold.ipynb` from here: nbval runs the cells, `tools.outputs` compares what they show."""

import os
import sys
from pathlib import Path

from nbval.plugin import IPyNbCell

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools import outputs  # noqa: E402

for name, value in {"FEDCORE_LIVE": "0", "FEDCORE_BATCH": "1", "OMP_NUM_THREADS": "1"}.items():
    os.environ.setdefault(name, value)

# Files that take longest begin first: with two workers, what is left at the end is then short.
LONG = ["test_chapters.py", "test_playground.py", "test_book.py", "test_reproduce.py"]
LONG += ["test_gpu_ready.py", "test_memory.py", "test_distributed.py"]


def pytest_collection_modifyitems(items):
    def place(item):
        name = item.path.name
        return LONG.index(name) if name in LONG else len(LONG) + (item.path.suffix != ".ipynb")

    items.sort(key=place)


def pytest_configure(config):
    if config.option.nbval:
        config.option.nbval_current_env = config.option.nbval_kernel_name is None
        config.option.nbval_sanitize_with = config.option.nbval_sanitize_with or str(ROOT / "tests/nbval_sanitize.cfg")


def compare_outputs(cell, test, ref, skip_compare=None):
    """In place of nbval's comparison, which is one of texts: a digit that rounds otherwise elsewhere is no failure."""
    chaotic = "chaotic" in cell.cell.metadata.get("tags", [])
    found = outputs.compare(ref, test, clean=cell.sanitize, values=not chaotic)
    cell.comparison_traceback = [found] if found else []
    return found is None


IPyNbCell.compare_outputs = compare_outputs
