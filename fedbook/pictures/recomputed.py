"""Explorers that the kernel computes anew: controls of ipywidgets for any value, instead of the stored frames.

A cell's output stays the HTML of the frames, which a saved notebook keeps and a page shows.  While a kernel runs, a
hidden anywidget puts the controls where the frames stand (`recomputed.js`); without the kernel the frames are back.
"""

from __future__ import annotations

import contextvars
import ctypes
import html
import importlib.util
import math
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from fedcore.support.extras import needs

from .widgets import asset, control_kind, labels_of, scale_of, title

if TYPE_CHECKING:
    from .widgets import Explorer

DRAGGED = 0.4  # seconds: a picture that takes longer is drawn when the slider is released
SOON = 1.0  # seconds: a picture that takes longer has a bar and a button that cancels it
WIDE = {"style": {"description_width": "initial"}, "layout": {"width": "100%"}}
WORKING = '<progress aria-label="computing" style="width:100%"></progress>'


class Cancelled(SystemExit):
    """Raised within a function that a reader cancelled.  Its `except Exception` does not stop it, and a thread that
    ends by it prints nothing."""


class Background:
    """One function at a time in a thread of its own, so that the kernel hears meanwhile that it shall stop."""

    def __init__(self) -> None:
        self._turn, self._thread = threading.Lock(), None

    def run(self, fn: Callable[[], None]) -> None:
        """Cancel what still runs and call `fn`; return when it has returned, or after `SOON` seconds."""
        self.cancel()

        def alone() -> None:
            with suppress(Cancelled), self._turn:
                fn()

        # The context says which cell's messages these are.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(alone,), daemon=True)
        self._thread.start()
        self._thread.join(SOON)

    def cancel(self) -> None:
        """Raise `Cancelled` in the thread; it arrives when the call of C code that runs there returns."""
        if self._thread and self._thread.is_alive():
            number = ctypes.c_ulong(self._thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(Cancelled))


@needs("pictures", "a control that recomputes")
def panel(explorer: Explorer) -> Any:
    """An `ipywidgets.VBox`: a control for each parameter, a bar with a button that cancels while `fn` computes for
    more than a second, and the picture of the controls' values, or the error that `fn` raised."""
    import ipywidgets

    drawn = explorer.at_start()  # the values of the picture
    controls = {name: _control(ipywidgets, name, v, explorer.live.get(name), drawn[name])
                for name, v in explorer.values.items()}  # fmt: skip
    bar, shown = ipywidgets.HTML(**WIDE), ipywidgets.HTML(explorer.at(**drawn).html())
    button = ipywidgets.Button(description="Cancel", tooltip="Stop computing; the controls go back to the picture")
    waiting, background = ipywidgets.HBox([bar, button], layout={"display": "none"}), Background()

    def wait(working: bool) -> None:
        bar.value, waiting.layout.display = WORKING if working else "", None if working else "none"

    def compute(_: Any = None) -> None:
        values, done = {name: control.value for name, control in controls.items()}, threading.Event()

        def draw() -> None:
            begun = time.perf_counter()
            try:
                picture = explorer.at(**values).html()
            except Exception as error:
                said = "".join(traceback.format_exception_only(error))
                picture = f'<pre class="fc-error" role="alert">{html.escape(said)}</pre>'
            seconds = time.perf_counter() - begun
            for control in controls.values():
                if control.has_trait("continuous_update"):
                    control.continuous_update = seconds < DRAGGED
            shown.value = picture
            drawn.update(values)
            done.set()
            wait(False)

        background.run(draw)
        wait(not done.is_set())
        if done.is_set():  # meanwhile
            wait(False)

    def cancel(_: Any) -> None:
        background.cancel()
        for name, control in controls.items():
            control.unobserve(compute, names="value")
            control.value = drawn[name]
            control.observe(compute, names="value")
        wait(False)

    button.on_click(cancel)
    for control in controls.values():
        control.observe(compute, names="value")
    return ipywidgets.VBox([*controls.values(), waiting, shown])


def _control(ipywidgets: Any, name: str, values: Sequence, ends: tuple | None, start: Any) -> Any:
    """A slider between the ends: of whole numbers, of numbers, or of their logarithms; without ends a choice.

    A mask, such as "110100", gets a button for each place.
    """
    said = {"description": title(name), "value": start, **WIDE}
    if all(isinstance(v, str) and len(v) == len(start) > 1 and not set(v) - set("01") for v in values):
        return _mask(ipywidgets, title(name), start)
    if ends is None:
        kind = {"toggle": "ToggleButtons", "slider": "SelectionSlider"}.get(control_kind(values), "Dropdown")
        return getattr(ipywidgets, kind)(options=list(zip(labels_of(values), values, strict=True)), **said)
    (low, high), scale = ends, scale_of(values, ends)
    if scale == "whole":
        return ipywidgets.IntSlider(min=low, max=high, **said)
    said |= {"step": None, "readout_format": ".4g"}  # without a step JupyterLab leaves the value where it is
    if scale == "log":
        return ipywidgets.FloatLogSlider(min=math.log10(low), max=math.log10(high), **said)
    return ipywidgets.FloatSlider(min=low, max=high, **said)


def _mask(ipywidgets: Any, words: str, start: str) -> Any:
    import traitlets

    buttons = [ipywidgets.ToggleButton(value=c == "1", description=str(k), layout={"width": "3em"})
               for k, c in enumerate(start, 1)]  # fmt: skip
    box = ipywidgets.HBox([ipywidgets.Label(words), *buttons])
    box.add_traits(value=traitlets.Unicode(start))

    def read(_: Any) -> None:
        box.value = "".join("01"[button.value] for button in buttons)

    for button in buttons:
        button.observe(read, names="value")
    return box


def can_be_live() -> bool:
    """Whether widgets can work: FEDCORE_LIVE is not 0, anywidget is installed, and a kernel runs."""
    if os.environ.get("FEDCORE_LIVE", "1") == "0" or not importlib.util.find_spec("anywidget"):
        return False
    from IPython import get_ipython  # comes with anywidget

    return getattr(get_ipython(), "kernel", None) is not None


def connected(explorer: Explorer, page: str) -> str:
    """The HTML of the frames, which the controls of the kernel replace."""
    bridge = _bridge()(panel=explorer.widget, key=uuid.uuid4().hex)
    tell = '<script>dispatchEvent(new Event("fc-explorers"))</script>'
    return f'<figure data-key="{bridge.key}"{page.removeprefix("<figure").removesuffix("</figure>")}{tell}\n</figure>'


@cache
def _bridge() -> type:
    import anywidget
    import ipywidgets
    import traitlets

    class Bridge(anywidget.AnyWidget):
        """Hidden: shows the panel in the figure of this key."""

        _esm = asset("recomputed.js")
        panel = traitlets.Instance(ipywidgets.Widget).tag(sync=True, **ipywidgets.widget_serialization)
        key = traitlets.Unicode().tag(sync=True)

    return Bridge
