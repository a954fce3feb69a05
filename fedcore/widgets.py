"""Pictures with words and numbers: `show` for one, `explore` for a family of them behind sliders.

A picture of the book always comes with alt text made from its data and with its numbers in print.  `explore`
gives two faces in one output: live ipywidgets in a running Jupyter, and frames rendered beforehand with a small
script of our own, which work in a static page without kernel and without internet.
"""

from __future__ import annotations

import base64
import html
import inspect
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from . import checks
from .alt import check_figure, describe, numbered, printed

DPI = 160  # 1024 pixels for a 6.4 inch figure: sharp on a phone and in a text column
CSS_INCH = 110  # CSS pixels an inch of the figure takes where there is room
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ",
         "mu": "μ", "rho": "ρ", "sigma": "σ", "tau": "τ"}  # fmt: skip


# --------------------------------------------------------------------------------------------- pictures


def _png(figure: Any) -> bytes:
    """A palette PNG of at most 64 colours on white, the same bytes for the same figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    # `savefig` would walk the figure twice; the figure gets its own canvas and resolution back afterwards.
    canvas, dpi, layout = figure.canvas, figure.dpi, figure.get_layout_engine()
    try:
        agg = FigureCanvasAgg(figure)
        figure.dpi = DPI
        if layout is None:  # a figure of pyplot's: without a layout its labels may lie outside
            figure.set_layout_engine("constrained")
        agg.draw()
        picture = Image.fromarray(np.array(agg.buffer_rgba()))  # four channels: RGBA
    finally:
        figure.dpi = dpi
        figure.set_layout_engine(layout)
        figure.set_canvas(canvas)
    if "matplotlib.pyplot" in sys.modules:  # else the notebook's backend prints an open figure once more, without words
        sys.modules["matplotlib.pyplot"].close(figure)
    paper, out = Image.new("RGBA", picture.size, "white"), io.BytesIO()
    paper.alpha_composite(picture)
    flat = paper.convert("RGB").quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    flat.save(out, format="PNG", optimize=True)
    return out.getvalue()


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


@cache
def asset(name: str) -> str:
    """A style or script of `fedcore/assets`, without indent, comments and blank lines (these end HTML in Markdown)."""
    lines = (line.strip() for line in (Path(__file__).parent / "assets" / name).read_text("utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("//", "/*")))


def _row(kind: str, pairs: Mapping[str, str]) -> str:
    spans = "".join(f"<span><span>{html.escape(k)}</span> <b>{html.escape(v)}</b></span>" for k, v in pairs.items())
    live = ' aria-live="polite"' if kind == "fc-numbers" else ""
    return f'<div class="fc-row {kind}"{live}>{spans}</div>'


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of name -> text as aligned columns; a name that a row lacks is left blank."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    lines = [names, *([row.get(name, "") for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(t.rjust(w) for t, w in zip(line, widths, strict=True)) for line in lines)


def _figure_html(shown: Picture, body: str, frame: int | None = None, tail: str = "") -> str:
    """The one piece of markup behind `show` and `explore`; `frame` is the index of an explorer's start frame."""
    kind = "fc-picture dark-light" if frame is None else f'fc-picture fc-explorer dark-light" data-frame="{frame}'
    width, height = shown.size
    image = f'src="{_uri(shown.png)}" width="{width}" height="{height}" alt="{html.escape(shown.alt)}"'
    if shown.caption:
        body += f'<div class="fc-caption">{html.escape(" ".join(shown.caption.split()))}</div>'
    return (
        f'<figure class="{kind}" style="max-width:{width}px">\n<style>\n{asset("explore.css")}\n</style>\n'
        f'<img class="dark-light" {image}>\n<figcaption>{body}</figcaption>{tail}\n</figure>'
    )


def _css_size(figure: Any) -> tuple[int, int]:
    return tuple(round(CSS_INCH * inches) for inches in figure.get_size_inches())


@dataclass(frozen=True)
class Picture:
    """A picture as shown in a page: PNG, alt text, printed numbers (name -> text) and caption."""

    png: bytes = field(repr=False)
    alt: str
    numbers: dict[str, str]
    caption: str = ""
    size: tuple[int, int] = (704, 396)

    def html(self) -> str:
        """Self-contained HTML, without script."""
        return _figure_html(self, _row("fc-numbers", self.numbers) if self.numbers else "")

    def __repr__(self) -> str:
        return "\n".join(f"{k} = {v}" for k, v in self.numbers.items()) or f"Picture: {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}


def show(
    figure: Any, numbers: Mapping[str, Any] | None = None, *, alt: str | None = None, caption: str | None = None
) -> Picture:
    """One picture with alt text and its numbers printed underneath.

    `numbers` maps a name to a number (printed with four significant digits) or to a string (printed as it is);
    `alt` replaces the description made from the data, the numbers are added to it all the same.
    Raises ValueError when `figure` is not a matplotlib figure or a number is neither.
    """
    check_figure(figure, "figure")
    words = numbered(alt, numbers) if alt and alt.strip() else describe(figure, numbers)
    return Picture(_png(figure), words, printed(numbers), caption or "", _css_size(figure))


# -------------------------------------------------------------------------------------------- explorers


def _values(name: str, values: Any) -> list:
    """The values of one slider as a list; raises ValueError unless they are a non-empty sequence without repeats."""
    if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1:  # numpy and torch vectors
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ValueError(
            f"{name}={values!r} is not a sequence of values; give a list such as {name}=[...], "
            f"or fix one value with functools.partial"
        )
    if not len(values):
        raise ValueError(f"{name}={values!r} is empty; give at least one value")
    if len(values) > 1000:
        raise ValueError(f"{name} has {len(values):,} values, more than a slider can show; give a few tens at most")
    labels = _labels(values)
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{name} has the value {label} {labels.count(label)} times; give each value once")
    return list(values)


def _labels(values: Sequence) -> list[str]:
    """What stands beside a slider: short if that distinguishes the values, else exact."""
    short = [f"{v:.6g}" if isinstance(v, float) else str(getattr(v, "__name__", v)) for v in values]
    return short if len(set(short)) == len(short) else [repr(v) for v in values]


def _check_names(fn: Callable, names: Sequence[str]) -> None:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [n for n in names if n not in takes]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(f"fn does not take {', '.join(unknown)}; it takes {', '.join(takes) or 'nothing'}")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [p.name for p in parameters if p.default is p.empty and p.name not in names and p.kind not in kinds]
    if missing:
        raise ValueError(f"fn needs {', '.join(missing)}; give {', '.join(f'{m}=[...]' for m in missing)} as well")


def _call(fn: Callable, setting: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """One frame: the figure and its numbers."""
    result = fn(**setting)
    figure, numbers = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    check_figure(figure, f"what fn({', '.join(f'{k}={v!r}' for k, v in setting.items())}) returned")
    return figure, numbers


@dataclass(frozen=True)
class Frame:
    """What one setting of the sliders shows: index of the picture, alt text, printed numbers."""

    picture: int
    alt: str
    numbers: dict[str, str]


@dataclass(frozen=True, eq=False)
class Explorer:
    """Frames for every setting, in row-major order of the parameters, and the function that made them."""

    fn: Callable = field(repr=False)
    values: dict[str, list]
    frames: list[Frame] = field(repr=False)
    pictures: list[bytes] = field(repr=False)
    start: int
    play: int | None
    caption: str
    size: tuple[int, int]

    def settings(self) -> list[dict[str, str]]:
        """Parameter name -> label, for every frame."""
        labels = [_labels(v) for v in self.values.values()]
        return [dict(zip(self.values, row, strict=True)) for row in itertools.product(*labels)]

    def html(self) -> str:
        """Self-contained HTML: the start frame, and a script that makes sliders over all frames."""
        titles = [_title(name) for name in self.values]
        first = self.frames[self.start]
        store = {
            "names": list(self.values),
            "titles": titles,
            "labels": [_labels(v) for v in self.values.values()],
            "play": self.play,
            "frames": [{"picture": f.picture, "alt": f.alt, "numbers": list(f.numbers.items())} for f in self.frames],
            "pictures": [None if k == first.picture else _uri(png) for k, png in enumerate(self.pictures)],
        }
        # Without "<" no text in the data can end the script element that holds it.
        data = json.dumps(store, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        setting = dict(zip(titles, self.settings()[self.start].values(), strict=True))
        body = _row("fc-setting", setting) + _row("fc-numbers", first.numbers)
        tail = f'\n<script type="application/json">{data}</script>\n<script>\n{asset("explore.js")}\n</script>'
        return _figure_html(self._start_picture(), body, self.start, tail)

    @cached_property
    def live(self) -> Any:
        """ipywidgets that call `fn` again on every change of a slider (made once, shared by all displays)."""
        import ipywidgets

        # A batch run hangs at random on Output widgets, so none is used: the words go into an HTML widget.
        image = ipywidgets.Image(layout={"width": "100%", "max_width": f"{self.size[0]}px", "height": "auto"})
        below = ipywidgets.HTML()
        sliders = {}

        def place(picture: Picture) -> None:
            image.value, below.value = picture.png, _words_html(picture)

        def draw(change: Any = None) -> None:
            at = {name: slider.index for name, slider in sliders.items()}
            try:
                figure, numbers = _call(self.fn, {name: self.values[name][k] for name, k in at.items()})
                alt = _frame_alt({name: _labels(self.values[name])[k] for name, k in at.items()}, figure, numbers)
                place(Picture(_png(figure), alt, printed(numbers), self.caption))
            except Exception as error:  # a callback's exception is shown nowhere else, and an old picture misleads
                image.value, below.value = b"", f"<b>{html.escape(f'{type(error).__name__}: {error}')}</b>"

        start = np.unravel_index(self.start, [len(v) for v in self.values.values()])
        for (name, values), at in zip(self.values.items(), start, strict=True):
            sliders[name] = ipywidgets.SelectionSlider(
                options=_labels(values),
                index=int(at),
                description=_title(name),
                continuous_update=False,
                style={"description_width": "initial"},
                layout={"width": "100%", "max_width": "32rem"},
            )
            sliders[name].observe(draw, names="value")
        place(self._start_picture())
        return ipywidgets.VBox([image, *sliders.values(), below])

    def _start_picture(self) -> Picture:
        first = self.frames[self.start]
        return Picture(self.pictures[first.picture], first.alt, first.numbers, self.caption, self.size)

    def __repr__(self) -> str:
        return _table([setting | frame.numbers for setting, frame in zip(self.settings(), self.frames, strict=True)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/html": self.html(), "text/plain": repr(self)}
        if can_be_live():
            view = "application/vnd.jupyter.widget-view+json"
            bundle[view] = {"version_major": 2, "version_minor": 0, "model_id": self.live.model_id}
        return bundle


def _title(name: str) -> str:
    """How a parameter is written beside its slider: Greek letters as such, underscores as spaces."""
    return " ".join(GREEK.get(part, part) for part in name.split("_"))


def _frame_alt(labels: Mapping[str, str], figure: Any, numbers: Mapping[str, Any]) -> str:
    at = ", ".join(f"{name.replace('_', ' ')} {label}" for name, label in labels.items())
    return f"At {at}. {describe(figure, numbers)}"


def _words_html(picture: Picture) -> str:
    """Numbers, caption, and the alt text for screen readers only: the Image widget has no place for it."""
    caption = f'<div class="fc-caption">{html.escape(picture.caption)}</div>' if picture.caption else ""
    hidden = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
    return (
        f"<style>\n{asset('explore.css')}\n</style>{_row('fc-numbers', picture.numbers)}{caption}"
        f'<div style="{hidden}">{html.escape(picture.alt)}</div>'
    )


def can_be_live() -> bool:
    """Whether live widgets make sense: not switched off, ipywidgets there, and a kernel that would answer."""
    if os.environ.get("FEDCORE_LIVE", "1") == "0":
        return False
    try:
        import ipywidgets  # noqa: F401
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


@checks.arguments
def explore(
    fn: Callable,
    *,
    start: checks.Mapped | None = None,
    caption: checks.Text | None = None,
    play: Annotated[str | bool, checks.Kind(lambda v: isinstance(v, str | bool), "a name, False or None")]
    | None = None,
    max_frames: checks.Count = 60,
    **values: Sequence,
) -> Explorer:
    """A picture with a slider for each of `values`: `explore(fn, alpha=[0.1, 1.0], K=[1, 5, 10])`.

    `fn(alpha=..., K=...)` returns a matplotlib Figure or `(Figure, {name: number})`.  It is called here once for
    every combination, and once more for each move of a live slider.  `start` is the setting shown first, e.g.
    `{"K": 5}` (default: first values); `play` names the parameter that the play button steps (default: the first
    with more than one value; False: no button).  FEDCORE_LIVE=0 in the environment leaves the live face out.
    Raises ValueError for no parameter, an empty list, something that is not a sequence, a repeated value, a name
    that `fn` does not take, more than `max_frames` combinations, or a `start`, `play` or result that fits nothing.
    """
    if not callable(fn):
        raise ValueError(f"fn is a {type(fn).__name__}; give a function that returns a matplotlib Figure")
    if not values:
        raise ValueError("explore was given no parameter; give at least one list, e.g. explore(fn, K=[1, 5, 10])")
    _check_names(fn, list(values))
    lists = {name: _values(name, v) for name, v in values.items()}
    total = math.prod(map(len, lists.values()))
    if total > max_frames:
        sizes = " x ".join(f"{len(v)} {name}" for name, v in lists.items())
        raise ValueError(f"{sizes} = {total} combinations, but at most max_frames={max_frames} are drawn; give fewer")
    first = _start(lists, start)
    several = [name for name, v in lists.items() if len(v) > 1]
    if isinstance(play, str) and play not in several:
        raise ValueError(f"play={play!r} is not a parameter with several values; use one of {several or 'none'}")
    steps = play if isinstance(play, str) else several[0] if several and play is not False else None
    labels = [dict(zip(lists, row, strict=True)) for row in itertools.product(*map(_labels, lists.values()))]
    frames, index, sizes = [], {}, []
    for row, words in zip(itertools.product(*lists.values()), labels, strict=True):
        figure, numbers = _call(fn, dict(zip(lists, row, strict=True)))
        picture = index.setdefault(_png(figure), len(index))  # equal pictures are stored once
        frames.append(Frame(picture, _frame_alt(words, figure, numbers), printed(numbers)))
        sizes.append(_css_size(figure))
    played = None if steps is None else list(lists).index(steps)
    return Explorer(fn, lists, frames, list(index), first, played, caption or "", sizes[first])


def _start(lists: Mapping[str, list], start: Mapping[str, Any] | None) -> int:
    """Row-major index of the frame shown first; raises ValueError for names or values that have no slider."""
    for name, value in (start or {}).items():
        if name not in lists:
            raise ValueError(f"start names {name!r}, which has no slider; use some of {', '.join(lists)}")
        if value not in lists[name]:
            raise ValueError(f"start has {name}={value!r}; use one of {', '.join(_labels(lists[name]))}")
    at = [v.index(start[name]) if start and name in start else 0 for name, v in lists.items()]
    return int(np.ravel_multi_index(at, [len(v) for v in lists.values()]))
