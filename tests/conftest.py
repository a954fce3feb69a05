"""What several test files share: the book's flow as a module, and the book built once for all of them.

Tests that look at built pages are marked `built`: `make book` runs them on the pages that it made, `make test` leaves
them out, and a plain `pytest tests` runs them too.
"""

import os
import sys
from pathlib import Path

# Workers share the cores: threads of several torches on one core wait for each other in loops that keep it busy, and
# the same tests take two to five times as long.  Set before torch is imported; processes that tests start inherit it.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))

import matplotlib
import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `from tools import book` in a bare `pytest` call too
matplotlib.use("Agg")  # not by MPLBACKEND: kernels that tests start would inherit it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "built_book" in getattr(item, "fixturenames", ()):
            item.add_marker("built")


@pytest.fixture(scope="session")
def built_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the HTML book: FEDCORE_BOOK where it is set, and else rendered from the stored notebooks without
    running them, once for all workers."""
    from tools import book

    if built := os.environ.get("FEDCORE_BOOK"):
        assert (ROOT / built / "index.html").exists(), f"FEDCORE_BOOK={built} holds no book: run tools/book.py build"
        return ROOT / built
    base = tmp_path_factory.getbasetemp()
    html = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built" / "html"
    html.parent.mkdir(exist_ok=True)
    with FileLock(html.parent / "lock"):
        if not (html / "index.html").exists():
            book.render(html)
    return html


@pytest.fixture(scope="module")
def browser():
    """A running Chromium; what asks for it is skipped where there is none."""
    from browser import chromium

    with chromium() as running:
        yield running
