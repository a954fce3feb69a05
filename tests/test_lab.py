"""Chapters in JupyterLab: what MyST markdown adds to plain markdown is drawn there too, not shown as raw text."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from browser import chromium

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "scaffold.ipynb"
SHOWN = {  # what is looked for, and a word in it
    "aside#alg-scaffold": "Algorithm",
    "aside#thm-scaffold-convergence": "Theorem",
    "div#eq-scaffold-step": "(1)",
}
# Scrolls until an element is there: JupyterLab draws cells when they come near.
FIND = """async css => {
    const pane = document.querySelector('.jp-WindowedPanel-outer') || document.querySelector('.jp-Notebook');
    for (let pass = 0; pass < 20; pass++)
        for (let y = 0; y <= pane.scrollHeight; y += 400) {
            pane.scrollTop = y;
            await new Promise(done => setTimeout(done, 50));
            const found = document.querySelector(css);
            if (found && found.innerText.trim()) return found.innerText;
        }
    return '';
}"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab of its own on a folder with one chapter."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(ROOT / "book" / CHAPTER, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kinds = ("CONFIG", "DATA", "RUNTIME")
    env = os.environ | {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in kinds}
    env |= {f"JUPYTERLAB_{kind}_DIR": str(folder / kind) for kind in ("SETTINGS", "WORKSPACES")}
    options = [f"--ServerApp.port={port}", "--ServerApp.ip=localhost", "--IdentityProvider.token=", "--no-browser"]
    options += [f"--ServerApp.root_dir={folder}", "--ServerApp.allow_root=True", "--ServerApp.port_retries=0"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://localhost:{port}/lab/tree/{CHAPTER}"
        for _ in range(600):
            assert server.poll() is None, (folder / "log").read_text()
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def test_an_algorithm_a_theorem_and_a_numbered_equation_are_drawn(lab):
    with chromium() as browser:
        tab, errors = browser.new_page(viewport={"width": 1280, "height": 1000}), []
        tab.on("pageerror", lambda e: errors.append(e.message))
        tab.goto(f"{lab}?reset", timeout=120_000)
        tab.wait_for_selector(".jp-Notebook .jp-MarkdownCell", timeout=120_000)
        for css, word in SHOWN.items():
            assert word in tab.evaluate(FIND, css), f"{css} is not drawn"
        assert "{prf:" not in tab.inner_text(".jp-Notebook")
        assert not errors
