"""Drive a real Chromium over pages, and notice whatever they should not do.

A page may print no error of ours to the console and may ask nothing of any machine but this one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from fedbook.pictures import svg

NO_BROWSER = "no Chromium found; install Debian's chromium: apt-get install chromium, or set FEDCORE_CHROMIUM"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run", "--disable-quic"]
# No name but this machine's is resolved: a request that tries to leave is seen, and fails.
FLAGS.append("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost")
DESKTOP, PHONE = (1280, 900), (390, 844)


def find_chromium() -> str | None:
    """Path of a Chromium, or None; the environment variable FEDCORE_CHROMIUM comes first."""
    named = os.environ.get("FEDCORE_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; skips the calling test, saying what to install, where there is none."""
    path = find_chromium()
    if path is None:
        pytest.skip(NO_BROWSER)
    sync_api = pytest.importorskip("playwright.sync_api", reason="install playwright: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def leaves_machine(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob", "about") and parts.hostname not in ("127.0.0.1", "localhost")


@contextmanager
def opened(
    browser: Any, page: Path | str, size: tuple[int, int] = DESKTOP, whole: bool = True, **options: Any
) -> Iterator[Any]:
    """A page opened from a file or an address; leaving the block fails on errors and on foreign requests.

    whole: with formulas and icons, whose scripts take most of the time that a page takes.
    `options` go to playwright's context, e.g. `java_script_enabled=False`, `reduced_motion="reduce"`.
    `page.clock.run_for(ms)` moves time in the page, which else passes as outside.
    """
    errors, requests = [], []
    context = browser.new_context(viewport=dict(zip(("width", "height"), size, strict=True)), **options)
    try:
        context.on("request", lambda r: requests.append(r.url) if leaves_machine(r.url) else None)
        if not whole:
            nothing = {"content_type": "text/javascript", "body": ""}
            context.route(re.compile(r"mathjax|fontawesome\.js"), lambda route: route.fulfill(**nothing))
        tab = context.new_page()
        tab.on("websocket", lambda s: requests.append(s.url) if leaves_machine(s.url) else None)
        tab.on("pageerror", lambda e: errors.append(e.message))
        tab.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        tab.clock.install()
        tab.goto(page.as_uri() if isinstance(page, Path) else page)
        tab.evaluate("Promise.all([...document.querySelectorAll('figure.fc-explorer')].map(f => f.unpacked))")
        yield tab
        tab.evaluate("0")  # what the page did last has been reported once this answers
        assert not requests, f"requests that leave the machine: {requests}"
        assert not errors, f"errors in the console: {errors}"
    finally:
        context.close()


def shown(figure: Any) -> dict[str, Any]:
    """What a reader sees of an explorer now: controls, picture, words and numbers."""
    return figure.evaluate(
        """figure => ({
            frame: +figure.dataset.frame,
            picture: figure.querySelector("img").src,
            alt: figure.querySelector("img").alt,
            numbers: [...figure.querySelectorAll(".fc-numbers > span")].map(
                s => [s.firstElementChild.textContent, s.lastElementChild.textContent]),
            controls: [...figure.querySelectorAll("[data-name]")].map(e => {
                const one = (value, max, spoken, printed, label) => (
                    {name: e.dataset.name, kind: e.tagName, value: +value, max: +max, spoken, printed, label});
                if (e.tagName === "INPUT") return one(e.value, e.max, e.getAttribute("aria-valuetext"),
                    e.parentElement.querySelector("output").textContent, e.labels[0].textContent);
                if (e.tagName === "SELECT") return one(e.value, e.options.length - 1, e.selectedOptions[0].textContent,
                    e.selectedOptions[0].textContent, e.labels[0].textContent);
                const both = [...e.children], on = both.filter(b => b.ariaPressed === "true");
                return one(both.indexOf(on[0]), both.length - 1, on.map(b => b.textContent).join(), on[0].textContent,
                    e.ariaLabel);
            }),
        })"""
    )


def check_shown(figure: Any, explorer: Any) -> int:
    """Picture, alt text and printed numbers are those of the frame the controls stand on; returns its index."""
    now, rows = shown(figure), explorer.settings()
    labels = {name: list(dict.fromkeys(row[name] for row in rows)) for name in explorer.values}
    movable = [name for name, values in labels.items() if len(values) > 1]
    assert [control["name"] for control in now["controls"]] == movable, "not every parameter has its control"
    setting = {name: values[0] for name, values in labels.items()}
    for control in now["controls"]:
        name, values = control["name"], labels[control["name"]]
        assert control["max"] == len(values) - 1, f"control {name} has a wrong range"
        assert control["label"], f"control {name} has no label"
        setting[name], said = values[control["value"]], {control["spoken"], control["printed"]}
        assert said == {setting[name]}, f"control {name} says another value than {setting[name]}: {said}"
    at = rows.index(setting)
    frame = explorer.frames[at]
    assert now["frame"] == at, f"the figure says frame {now['frame']}, the controls stand on {at}"
    picture = svg.uri(explorer.pictures[frame.picture].wide)
    assert now["picture"] == picture, f"the picture is not that of frame {at}"
    assert now["alt"] == frame.alt, f"the alt text is not that of frame {at}: {now['alt']}"
    numbers = [list(pair) for pair in frame.numbers.items()]
    assert now["numbers"] == numbers, f"the numbers are not those of frame {at}: {now['numbers']}"
    return at


def drive(figure: Any, explorer: Any) -> set[int]:
    """Move every control by keys or choice, checking after each move; returns the frames that were seen."""
    seen = {check_shown(figure, explorer)}
    for slider in figure.get_by_role("slider").all():
        last = int(slider.get_attribute("max"))
        for key, place in (
            ("End", last),
            ("ArrowLeft", last - 1),
            ("Home", 0),
            ("ArrowRight", 1),
            ("ArrowRight", min(2, last)),
        ):
            slider.press(key)
            assert int(slider.input_value()) == place, f"{key} moved the slider to {slider.input_value()}, not {place}"
            seen.add(check_shown(figure, explorer))
    for menu in figure.locator("select").all():
        for place in range(menu.locator("option").count()):
            menu.select_option(index=place)
            seen.add(check_shown(figure, explorer))
    for button in figure.locator(".fc-toggle button").all():
        button.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        seen.add(check_shown(figure, explorer))
    return seen


# ---- the playgrounds: their pages, their state and their words

HEAD = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
NAMELESS = """[...document.querySelectorAll("input, button, select")].filter(e => !(e.ariaLabel || e.textContent.trim()
    || e.labels?.[0]?.textContent.trim())).length"""


def written(folder: Path, html: str) -> Path:
    """A page that holds this HTML."""
    path = folder / "page.html"
    path.write_text(f"{HEAD}<title>t</title><body>{html}", "utf-8")
    return path


def state(tab: Any) -> dict[str, Any]:
    """The settings of the page's first playground."""
    return tab.evaluate("document.querySelector('.fc-pg').playground.get()")


def says(tab: Any) -> str:
    """What it says in words, once it has settled."""
    tab.clock.run_for(300)
    return tab.locator(".pg-says").inner_text()


def slider(tab: Any, name: str) -> Any:
    return tab.locator(f"input[data-name='{name}']")


def with_model(tab: Any, call: str, config: dict[str, Any], state: dict[str, Any]) -> None:
    """Calls the widget of the page with a model, as a kernel would; `model` and `leave` stand in the page then."""
    tab.evaluate(
        f"""([config, state]) => {{
            const values = {{config, state}}, listeners = [];
            window.model = {{values, saved: 0, listeners, get: (k) => values[k], set: (k, v) => (values[k] = v),
                save_changes: () => (model.saved += 1), on: (e, f) => listeners.push(f),
                off: (e, f) => listeners.splice(listeners.indexOf(f), 1)}};
            window.leave = core.widget.{call};
        }}""",
        [config, state],
    )


@contextmanager
def core_of(browser, folder, kind, names):
    """An open page with nothing but the script of a live picture, whose functions of these names stand in `core`."""
    script = f'<script type="module">\n{kind.module()}\nwindow.core = {{{names}}};\n</script>'
    path = folder / "core.html"
    path.write_text(f"{HEAD}<title>core</title>{script}<style>{kind.style()}</style><body>", "utf-8")
    with opened(browser, path) as tab:
        tab.wait_for_function("window.core")
        yield tab
