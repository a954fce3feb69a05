"""What several test files share: the book's flow as a module, and the book built once for all of them."""

import os
import sys
from pathlib import Path

import matplotlib
import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `from tools import book` in a bare `pytest` call too
matplotlib.use("Agg")  # not by MPLBACKEND: kernels that tests start would inherit it


@pytest.fixture(scope="session")
def built_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the HTML book, rendered from the stored notebooks without running them; once for all workers."""
    from tools import book

    base = tmp_path_factory.getbasetemp()
    html = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built" / "html"
    html.parent.mkdir(exist_ok=True)
    with FileLock(html.parent / "lock"):
        if not (html / "index.html").exists():
            book.render(html)
    return html
