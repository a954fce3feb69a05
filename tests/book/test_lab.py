"""JupyterLab: chapters show what MyST markdown adds, not raw text, and a playground outlives its kernel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from browser import chromium

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "scaffold.ipynb"
SHOWN = {"aside#alg-scaffold": "Algorithm", "aside#thm-scaffold-convergence": "Theorem", "div#eq-scaffold-step": "(1)"}
NOTEBOOKS = {
    "playground.ipynb": ("import fedcore\npg = fedcore.playground()\npg", "pg.lr = 0.3\npg.start"),
    "explorer.ipynb": (
        """\
import time

import fedcore
from fedbook.pictures import plots


def power(a, K):
    for _ in range(60_000 if K == 8 else 0):  # ten minutes
        time.sleep(0.01)
    figure, ax = plots.figure(4, 2)
    ax.plot([0, 1, 2], [a * x**K for x in (0, 1, 2)])
    return figure, {"at 2": a * 2**K}


shown = fedcore.explore(power, a=[1.0, 2.0], K=[1, 2], live={"a": (0.0, 3.0), "K": (1, 9)})
shown""",
        "shown.widget.children[0].value",
    ),
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
    """The address of a JupyterLab of its own on a folder with one chapter and a notebook with a playground."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(ROOT / "book" / CHAPTER, folder)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for name, sources in NOTEBOOKS.items():
        cells = list(map(nbformat.v4.new_code_cell, sources))
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kinds = ("CONFIG", "DATA", "RUNTIME")
    env = {name: v for name, v in os.environ.items() if name not in ("FEDCORE_LIVE", "FEDCORE_BATCH")}
    env |= {"PYTHONPATH": str(ROOT)} | {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in kinds}
    env |= {f"JUPYTERLAB_{kind}_DIR": str(folder / kind) for kind in ("SETTINGS", "WORKSPACES")}
    options = [f"--ServerApp.port={port}", "--ServerApp.ip=localhost", "--IdentityProvider.token=", "--no-browser"]
    options += [f"--ServerApp.root_dir={folder}", "--ServerApp.allow_root=True", "--ServerApp.port_retries=0"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://localhost:{port}/lab/tree/"
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
        tab.goto(f"{lab}{CHAPTER}?reset", timeout=120_000)
        tab.wait_for_selector(".jp-Notebook .jp-MarkdownCell", timeout=120_000)
        for css, word in SHOWN.items():
            assert word in tab.evaluate(FIND, css), f"{css} is not drawn"
        assert "{prf:" not in tab.inner_text(".jp-Notebook")
        assert not errors


@contextmanager
def opened(lab, notebook):
    """A notebook with its kernel: the page, what runs a cell, and what ends all kernels and opens it anew."""
    with chromium() as browser:
        tab, errors, dialogs = browser.new_page(viewport={"width": 1280, "height": 1200}), [], []
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda e: errors.append(e.message))
        tab.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)

        def answer(dialog):  # JupyterLab has something to say of the machine, and waits
            dialogs.append(dialog.inner_text())
            assert len(dialogs) < 6, dialogs
            errors[:] = [e for e in errors if "Failed to load resource" not in e]
            dialog.locator("button.jp-mod-accept").click()

        tab.add_locator_handler(tab.locator("dialog.jp-Dialog").first, answer, no_wait_after=True)
        base, ask = lab.removesuffix("/lab/tree/"), tab.context.request
        ask.get(f"{base}/lab")
        token = {"X-XSRFToken": {c["name"]: c["value"] for c in tab.context.cookies()}["_xsrf"]}
        # A page that asks for a kernel itself shows a dialog for good when a slow machine gives it none at once.
        made = {"path": notebook, "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        for _ in range(5):
            reply = ask.post(f"{base}/api/sessions", data=made, headers=token, timeout=120_000)
            if reply.ok:
                break
        assert reply.ok, reply.text()

        def run(cell):
            for _ in range(60):  # it says that the kernel is idle before it listens to it
                tab.locator(".jp-CodeCell .jp-Editor .cm-content").nth(cell).click()
                tab.keyboard.press("Control+Enter")
                tab.wait_for_timeout(1000)
                if tab.locator(".jp-CodeCell .jp-InputPrompt").nth(cell).inner_text().strip() != "[ ]:":
                    return

        def end():
            tab.keyboard.press("Control+s")
            tab.wait_for_selector(".jp-mod-current:not(.jp-mod-dirty)")
            for session in ask.get(f"{base}/api/sessions").json():
                ask.delete(f"{base}/api/sessions/{session['id']}", headers=token)
            tab.goto("about:blank")
            tab.goto(f"{lab}{notebook}?reset", timeout=120_000)

        tab.goto(f"{lab}{notebook}?reset", timeout=120_000)
        yield tab, run, end
        assert "Error" not in tab.locator(".jp-OutputArea-output").first.inner_text()
        assert not errors


def test_a_playground_and_the_kernel_hold_one_state_and_without_the_kernel_the_saved_picture_moves(lab):
    """Once with the kernel that made it, once more after that is gone and the notebook was opened anew."""
    pytest.importorskip("anywidget")
    mounted = "document.querySelector('figure.fc-ready')?.playground"
    with opened(lab, "playground.ipynb") as (tab, run, end):
        run(0)
        tab.wait_for_function("Object.keys(globalThis.fcModels || {}).length", timeout=120_000)
        tab.wait_for_function(mounted)
        tab.locator(".pg-start").press("ArrowRight")
        tab.wait_for_timeout(500)  # a hand's change is told when it has settled
        run(1)
        tab.wait_for_function(f"{mounted}.get().lr === 0.3")
        assert tab.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output").inner_text() == "[-1.55, 1.9]"

        end()
        tab.wait_for_function(mounted)
        tab.wait_for_timeout(3000)  # a widget's view would by now have given up
        assert not tab.evaluate("Object.keys(globalThis.fcModels || {}).length"), "the kernel is still there"
        tab.locator(".pg-start").hover()
        box = tab.locator(".pg-start").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        before = tab.evaluate(f"{mounted}.get().start")
        tab.mouse.move(x, y)
        tab.mouse.down()
        tab.mouse.move(x + 40, y + 40)
        tab.mouse.up()
        after = tab.evaluate(f"{mounted}.get().start")
        assert after[0] > before[0]
        assert after[1] < before[1]


def test_an_explorer_computes_in_the_kernel_what_no_frame_has_and_without_the_kernel_shows_its_frames(lab):
    """A value is typed beside a slider of ipywidgets, and the picture and its numbers follow."""
    pytest.importorskip("anywidget")
    with opened(lab, "explorer.ipynb") as (tab, run, end):
        run(0)
        panel, frames = tab.locator(".fc-recomputed"), tab.locator("figure.fc-explorer")
        panel.locator(".fc-numbers").wait_for()
        assert not frames.is_visible()
        assert panel.locator("img").is_visible()

        def put(slider, value):
            field = panel.locator(".widget-readout").nth(slider)
            field.fill(value)
            field.press("Enter")

        put(0, "1.3")
        tab.wait_for_function("/at 2\\s2.6/.test(document.querySelector('.fc-recomputed .fc-numbers')?.innerText)")
        assert "At a 1.3, K 1." in panel.locator("img").get_attribute("alt")
        run(1)
        assert tab.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output").inner_text() == "1.3"
        put(1, "8")
        panel.get_by_role("button", name="Cancel").click()
        panel.locator("progress").wait_for(state="hidden")
        tab.wait_for_function("document.querySelectorAll('.fc-recomputed .widget-readout')[1].innerText === '1'")

        end()
        tab.locator(".fc-ready .fc-controls").wait_for()
        tab.wait_for_timeout(3000)  # a widget's view would by now have given up
        assert not panel.count(), "the kernel is still there"
        frames.get_by_role("button", name="2").first.click()
        assert "At a 2, K 1." in frames.locator("img").get_attribute("alt")
