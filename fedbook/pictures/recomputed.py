"""Explorers that the kernel computes anew: controls of ipywidgets for any value, instead of the stored frames.

A cell's output stays the HTML of the frames, which a saved notebook keeps and a page shows.  While a kernel runs, a
hidden anywidget puts the controls where the frames stand (`recomputed.js`); without the kernel the frames are back.
"""

from __future__ import annotations

import html
import importlib.util
import math
import os
import time
import traceback
import uuid
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from fedcore.support.extras import needs

from .widgets import asset, control_kind, labels_of, scale_of, title

if TYPE_CHECKING:
    from .widgets import Explorer

DRAGGED = 0.4  # seconds: a picture that takes longer is drawn when the slider is released
WIDE = {"style": {"description_width": "initial"}, "layout": {"width": "100%"}}
# A bar that stays invisible in the first second.
WORKING = (
    "<style>@keyframes fc-late{from{opacity:0}to{opacity:1}}</style>"
    '<progress aria-label="computing" style="width:100%;animation:fc-late 0s 1s both"></progress>'
)


@needs("pictures", "a control that recomputes")
def panel(explorer: Explorer) -> Any:
    """An `ipywidgets.VBox`: a control for each parameter, a bar while `fn` computes for more than a second, and the
    picture of the controls' values, or the error that `fn` raised."""
    import ipywidgets

    start = explorer.at_start()
    controls = {name: _control(ipywidgets, name, v, explorer.live.get(name), start[name])
                for name, v in explorer.values.items()}  # fmt: skip
    bar, shown = ipywidgets.HTML(), ipywidgets.HTML(explorer.at(**start).html())

    def compute(_: Any = None) -> None:
        bar.value, begun = WORKING, time.perf_counter()
        try:
            shown.value = explorer.at(**{name: control.value for name, control in controls.items()}).html()
        except Exception as error:
            said = "".join(traceback.format_exception_only(error))
            shown.value = f'<pre class="fc-error" role="alert">{html.escape(said)}</pre>'
        seconds = time.perf_counter() - begun
        for control in controls.values():
            if control.has_trait("continuous_update"):
                control.continuous_update = seconds < DRAGGED
        bar.value = ""

    for control in controls.values():
        control.observe(compute, names="value")
    return ipywidgets.VBox([*controls.values(), bar, shown])


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
