"""Figures with alt text and numbers: `show` for one figure, `explore` for a family of figures with sliders.

Every figure of the book has alt text made from its data, and its numbers printed below.  `explore` computes all frames
in advance and switches between them by a small script, which works in Jupyter, without a kernel, and in a static page
without internet.
"""

from __future__ import annotations

import base64
import gzip
import html
import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedcore.support import checks

from . import svg
from .alt_text import check_figure, describe, numbered, plain, printed
from .styles import LIVE

CSS_INCH = 110  # CSS pixels per inch of a figure at full size
PLUS_MINUS = "± is half a 95 % interval."
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eta": "η", "theta": "θ", "kappa": "κ", "lambda": "λ",
         "mu": "μ", "rho": "ρ", "sigma": "σ", "tau": "τ"}  # fmt: skip


@dataclass(frozen=True)
class Html:
    """A value that a notebook cell displays as `html`, and a terminal as `text`."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


# --------------------------------------------------------------------------------------------- pictures


class Drawn(NamedTuple):
    """A figure as SVG for a text column and for a phone, with the full size of each in CSS pixels."""

    wide: str
    phone: str
    size: tuple[int, int]
    phone_size: tuple[int, int]


def draw(figure: Any) -> Drawn:
    """Convert a figure to its two SVGs, deterministically."""
    wide, phone = (
        tuple(round(CSS_INCH * v) for v in inches) for inches in (figure.get_size_inches(), svg.size(figure))
    )
    return Drawn(svg.svg(figure), svg.svg(figure, phone=True), wide, phone)


@cache
def asset(name: str) -> str:
    """A style or script of `fedbook/live`, without indentation, comments and blank lines (in Markdown a blank line ends
    HTML).  Text after " // " in a line is a comment.
    """
    text = (LIVE / name).read_text("utf-8")
    lines = (line.partition(" // ")[0].strip() for line in text.splitlines())
    lines = (line for line in lines if line and not line.startswith(("//", "/*")))
    if name.endswith(".css"):
        lines = (re.sub(r" ?([{};]) ?", r"\1", line).replace(": ", ":") for line in lines)
    return "\n".join(lines)


def _row(kind: str, pairs: Mapping[str, str]) -> str:
    spans = "".join(f"<span><span>{html.escape(k)}</span> <b>{html.escape(v)}</b></span>" for k, v in pairs.items())
    live = ' aria-live="polite"' if kind == "fc-numbers" else ""
    return f'<div class="fc-row {kind}"{live}>{spans}</div>'


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of name -> text as aligned columns; missing entries are blank."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    lines = [names, *([row.get(name, "") for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(t.rjust(w) for t, w in zip(line, widths, strict=True)) for line in lines)


def _figure_html(shown: Picture, body: str, frame: int | None = None, tail: str = "") -> str:
    """The HTML of `show` and `explore`.  frame: the index of an explorer's first frame."""
    kind = "fc-picture dark-light" if frame is None else f'fc-picture fc-explorer dark-light" data-frame="{frame}'
    (width, height), (narrow, tall) = shown.drawn.size, shown.drawn.phone_size
    image = f'src="{svg.uri(shown.drawn.wide)}" width="{width}" height="{height}" alt="{html.escape(shown.alt)}"'
    phone = f'srcset="{svg.uri(shown.drawn.phone)}" width="{narrow}" height="{tall}"'
    caption = f'<div class="fc-caption">{html.escape(" ".join(shown.caption.split()))}</div>' if shown.caption else ""
    return (
        f'<figure class="{kind}" style="max-width:{width}px">\n<style>\n{asset("explore.css")}\n</style>\n'
        f'<picture><source media="(max-width: 575.98px)" {phone}>'
        f'<img class="dark-light" {image}></picture>\n<figcaption>{caption}{body}</figcaption>{tail}\n</figure>'
    )


@dataclass(frozen=True)
class Picture:
    """A figure for a page: SVG, alt text, printed numbers (name -> text) and caption."""

    drawn: Drawn = field(repr=False)
    alt: str
    numbers: dict[str, str]
    caption: str = ""

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
    """A figure with alt text, and with its numbers printed below.

    `numbers` maps a name to a number (printed with four significant digits) or to a string (printed unchanged);
    `alt` replaces the description made from the data; the numbers are appended in both cases.
    Raises ValueError if `figure` is not a matplotlib figure, or a value of `numbers` is neither number nor string.
    """
    check_figure(figure, "figure")
    words = numbered(alt, numbers) if alt and alt.strip() else describe(figure, numbers)
    shown = printed(numbers)
    return Picture(draw(figure), words, shown, explained(caption or "", *shown.values()))


def explained(caption: str, *texts: str) -> str:
    """The caption, with the meaning of ± appended if one of the texts contains ±."""
    if not any("±" in text for text in texts) or "95 %" in caption:
        return caption
    return f"{caption.rstrip('.')}{'. ' if caption.endswith('.') else '; ' if caption else ''}{PLUS_MINUS}"


# -------------------------------------------------------------------------------------------- explorers


def _packed(value: Any) -> str:
    """Compressed JSON as a data URI; frames are similar, so all together take the space of two or three."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return "data:application/gzip;base64," + base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _values(name: str, values: Any) -> list:
    """The values of one control as a list.  Raises ValueError unless they are a non-empty sequence without repeats."""
    if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1:  # numpy and torch vectors
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ValueError(
            f"{name}={checks.brief(values)} is not a sequence of values; give a list such as {name}=[...], "
            f"or fix one value with functools.partial"
        )
    if not len(values):
        raise ValueError(f"{name}={values!r} is empty; give at least one value")
    if len(values) > 1000:
        raise ValueError(f"{name} has {len(values):,} values, more than a slider can show; give a few tens at most")
    labels = labels_of(values)
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{name} has the value {label} {labels.count(label)} times; give each value once")
    return list(values)


def labels_of(values: Sequence) -> list[str]:
    """The labels of a control's values: short ones if these are distinct, else exact ones."""
    short = [f"{v:.6g}".replace("inf", "∞") if isinstance(v, float) else str(getattr(v, "__name__", v)) for v in values]
    return short if len(set(short)) == len(short) else [repr(v) for v in values]


def control_kind(values: Sequence) -> str:
    """The kind of control: a toggle for two values, a slider for numbers, a menu otherwise; text for a single value."""
    if len(values) < 3:
        return "toggle" if len(values) == 2 else "text"
    return "slider" if all(isinstance(v, Real) and not isinstance(v, bool) for v in values) else "menu"


def scale_of(values: Sequence, ends: tuple[Real, Real]) -> str:
    """How the numbers of a slider between these ends are spaced: "whole", "log" or "even"."""
    if all(isinstance(v, Integral) for v in (*values, *ends)):
        return "whole"
    return "log" if ends[0] > 0 and ends[1] / ends[0] >= 50 else "even"


def _stops(values: Sequence, ends: tuple[Real, Real] | None) -> list:
    """The values of a control that the page computes: two hundred between the ends, and those of the frames."""
    if ends is None:
        return list(values)
    scale, (low, high) = scale_of(values, ends), ends
    if scale == "whole":
        return list(range(low, high + 1))
    spaced = (np.geomspace if scale == "log" else np.linspace)(low, high, 201)
    return sorted({float(f"{v:.3g}") for v in spaced} | {float(v) for v in values})


def _call(fn: Callable, setting: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The figure and the numbers of one frame."""
    result = fn(**setting)
    figure, numbers = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    check_figure(figure, f"what fn({', '.join(f'{k}={v!r}' for k, v in setting.items())}) returned")
    return figure, numbers


@dataclass(frozen=True)
class Frame:
    """The frame of one setting of the controls: index of the picture, alt text, printed numbers."""

    picture: int
    alt: str
    numbers: dict[str, str]


@dataclass(frozen=True, eq=False)
class Explorer:
    """Frames for every setting, in row-major order of the parameters."""

    values: dict[str, list]
    frames: list[Frame] = field(repr=False)
    pictures: list[Drawn] = field(repr=False)
    start: int
    play: int | None
    caption: str
    fn: Callable | None = field(default=None, repr=False)
    live: dict[str, tuple[Real, Real]] | None = None  # parameter -> ends of its control in the kernel; None: frames
    closed: dict[str, Any] | None = None  # what `closed.js` needs to draw any value in the page

    def at(self, **setting: Any) -> Picture:
        """The picture of any setting, drawn anew by `fn` where no frame has it.

        Raises TypeError unless each parameter has a value, and the errors of `fn`.
        """
        if set(setting) != set(self.values):
            raise TypeError(f"at() was given {', '.join(setting) or 'nothing'}; give {', '.join(self.values)}")
        index = [next((k for k, v in enumerate(vs) if _same(v, setting[n])), -1) for n, vs in self.values.items()]
        if min(index) >= 0:
            return self._picture(int(np.ravel_multi_index(index, [len(v) for v in self.values.values()])))
        figure, numbers = _call(self.fn, setting)
        alt = _frame_alt({name: labels_of([v])[0] for name, v in setting.items()}, figure, numbers)
        return Picture(draw(figure), alt, printed(numbers), self.caption)

    @cached_property
    def widget(self) -> Any:
        """Controls of ipywidgets for any value, and the picture that the kernel draws; made once.

        Raises ImportError without ipywidgets, and ValueError for an explorer without `live`.
        """
        if self.live is None:
            raise ValueError("this explorer shows stored frames; give explore(..., live=True) to compute others")
        from .recomputed import panel

        return panel(self)

    def at_start(self) -> dict[str, Any]:
        """The setting shown first."""
        at = np.unravel_index(self.start, [len(v) for v in self.values.values()])
        return {name: values[k] for (name, values), k in zip(self.values.items(), at, strict=True)}

    def settings(self) -> list[dict[str, str]]:
        """Parameter name -> label, for every frame."""
        labels = [labels_of(v) for v in self.values.values()]
        return [dict(zip(self.values, row, strict=True)) for row in itertools.product(*labels)]

    def html(self) -> str:
        """Self-contained HTML: the first frame, and a script that adds the controls for all frames.

        With `closed` the script computes the other pictures itself, so that only the first is stored.
        """
        titles = [title(name) for name in self.values]
        first, at, values = self.frames[self.start], self.start, self.values
        frames, pictures = self.frames, self.pictures
        if self.closed:
            values = {name: _stops(v, self.live.get(name)) for name, v in values.items()}
            places = [values[name].index(v) for name, v in self.at_start().items()]
            at = int(np.ravel_multi_index(places, [len(v) for v in values.values()]))
            frames, pictures = [replace(first, picture=0)], [pictures[first.picture]]
        store = {
            "names": list(self.values),
            "titles": titles,
            "labels": [labels_of(v) for v in values.values()],
            "kinds": [control_kind(v) for v in values.values()],
            "play": self.play,
            "frames": [{"picture": f.picture, "alt": f.alt, "numbers": list(f.numbers.items())} for f in frames],
            "pictures": _packed([(svg.uri(drawn.wide), svg.uri(drawn.phone)) for drawn in pictures]),
            "closed": self.closed,
        }
        # Without "<" no text in the data can close the script element around the data.
        data = json.dumps(store, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        setting = dict(zip(titles, self.settings()[self.start].values(), strict=True))
        body = _row("fc-setting", setting) + _row("fc-numbers", first.numbers)
        script = (asset("closed.js") + "\n" if self.closed else "") + asset("explore.js")
        tail = f'\n<script type="application/json">{data}</script>\n<script>\n{script}\n</script>'
        return _figure_html(self._picture(self.start), body, at, tail)

    def _picture(self, frame: int) -> Picture:
        shown = self.frames[frame]
        return Picture(self.pictures[shown.picture], shown.alt, shown.numbers, self.caption)

    def __repr__(self) -> str:
        return _table([setting | frame.numbers for setting, frame in zip(self.settings(), self.frames, strict=True)])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        page = self.html()
        if self.live is not None:
            from . import recomputed

            page = recomputed.connected(self, page) if recomputed.can_be_live() else page
        return {"text/html": page, "text/plain": repr(self)}


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same, or numbers that differ by rounding alone."""
    numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in (a, b))
    return math.isclose(a, b, rel_tol=1e-9) if numbers else a == b


def title(name: str) -> str:
    """The title of a parameter's control, with Greek letters, and spaces in place of underscores."""
    return " ".join(GREEK.get(part, part) for part in name.split("_"))


def _frame_alt(labels: Mapping[str, str], figure: Any, numbers: Mapping[str, Any]) -> str:
    at = ", ".join(f"{name.replace('_', ' ')} {label}" for name, label in labels.items())
    return f"At {at}. {describe(figure, numbers)}"


def _pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


@checks.arguments
def explore(
    fn: Callable,
    *,
    start: checks.Mapped | None = None,
    caption: checks.Text | None = None,
    play: Annotated[str | bool, checks.Kind(lambda v: isinstance(v, str | bool), "a name, False or None")]
    | None = None,
    max_frames: checks.Count = 60,
    live: Annotated[
        bool | Mapping, checks.Kind(lambda v: isinstance(v, bool | Mapping), "True, False or a mapping")
    ] = False,
    closed: Annotated[
        str | tuple | None, checks.Kind(lambda v: isinstance(v, str) or _pair(v), "a name, (name, constants) or None")
    ] = None,
    **values: Sequence,
) -> Explorer:
    """A figure with a control for each of `values`: `explore(fn, alpha=[0.1, 1.0], K=[1, 5, 10])`.

    `fn(alpha=..., K=...)` returns a matplotlib Figure or `(Figure, {name: number})`.  `explore` calls it once for
    every combination, so the figure follows a control without delay.  Three or more numbers get a slider, two values
    of any kind a toggle, other values a menu.  `start` is the setting shown first, e.g. `{"K": 5}` (default: first
    values); `play` names the parameter that the play button steps (default: the first with a slider; False: no button).

    live=True: while a kernel with ipywidgets runs, its controls take the place of the frames, and `fn` is called for
    any number between the smallest and the largest of `values`; `live={"K": (1, 50)}` gives other ends.  Texts of
    equal length that have only 0 and 1 are masks: each place gets a button.  Saved notebooks and pages have the frames.
    A picture of stored results has no values between its frames: leave `live` out.

    closed: the name of a formula in `fedbook/live/closed.js`, by which a page draws the lines and areas (`ax.fill`) of
    `fn` for any number between the ends of `live`, without a kernel; or `(name, constants)`, if the formula needs e.g.
    `{"slips": array}`.  The figure's texts and limits, and its legend's place, must not depend on the values.

    Raises ValueError for no parameter, an empty list, values that are not a sequence, a repeated value, a name that
    `fn` does not take, more than `max_frames` combinations, an unknown name or value in `start`, `play`, `live` or
    `closed`, and if `fn` does not return a figure.
    """
    if not callable(fn):
        raise ValueError(f"fn is a {type(fn).__name__}; give a function that returns a matplotlib Figure")
    if not values:
        raise ValueError("explore was given no parameter; give at least one list, e.g. explore(fn, K=[1, 5, 10])")
    try:
        inspect.signature(fn).bind(**dict.fromkeys(values))
    except TypeError as e:
        raise ValueError(f"fn cannot be called with {', '.join(values)} ({e}); give each parameter a list") from e
    lists = {name: _values(name, v) for name, v in values.items()}
    total = math.prod(map(len, lists.values()))
    if total > max_frames:
        sizes = " x ".join(f"{len(v)} {name}" for name, v in lists.items())
        raise ValueError(f"{sizes} = {total} combinations, but at most max_frames={max_frames} are drawn; give fewer")
    first, ends = _start(lists, start), _ends(lists, live or bool(closed))
    formula, constants = (closed, {}) if isinstance(closed, str | None) else closed
    if formula and formula not in (known := re.findall(r"^(\w+): \(\{", asset("closed.js"), re.MULTILINE)):
        raise ValueError(f"closed={formula!r} is no formula of fedbook/live/closed.js; use one of {', '.join(known)}")
    if hidden := [name for name in ends or () if start and not math.isfinite(start.get(name, 0))]:
        raise ValueError(
            f"start has {hidden[0]}={start[hidden[0]]!r}, which a live slider cannot show; use a finite one"
        )
    several = [name for name, v in lists.items() if len(v) > 1]
    if isinstance(play, str) and play not in several:
        raise ValueError(f"play={play!r} is not a parameter with several values; use one of {several or 'none'}")
    sliders = [name for name, v in lists.items() if control_kind(v) == "slider"]
    steps = play if isinstance(play, str) else sliders[0] if sliders and play is not False else None
    labels = [dict(zip(lists, row, strict=True)) for row in itertools.product(*map(labels_of, lists.values()))]
    frames, index, drawn = [], {}, None
    for row, words in zip(itertools.product(*lists.values()), labels, strict=True):
        figure, numbers = _call(fn, dict(zip(lists, row, strict=True)))
        if formula and len(frames) == first:
            given = {name: np.asarray(v).tolist() for name, v in constants.items()}
            drawn = {"formula": formula, "constants": given, **_lines(figure)}
        picture = index.setdefault(draw(figure), len(index))  # identical pictures are stored once
        frames.append(Frame(picture, _frame_alt(words, figure, numbers), printed(numbers)))
    played = None if steps is None else list(lists).index(steps)
    return Explorer(lists, frames, list(index), first, played, caption or "", fn, ends, drawn)


def _lines(figure: Any) -> dict[str, list]:
    """For each line and filled area of the figure: its name in the legend, which points have a marker ([the first, the
    step]), and its scales in the picture for a column and in that for a phone."""
    lines = svg.number_lines(figure)
    every = [getattr(line, "get_markevery", lambda: None)() or 1 for line in lines]  # an area has no markers
    return {
        "lines": ["" if (name := str(line.get_label() or "_")).startswith("_") else plain(name) for line in lines],
        "every": [[0, v] if isinstance(v, Integral) else [int(k) for k in v] for v in every],
        "layouts": [svg.scales(figure), svg.scales(figure, phone=True)],
    }


def _ends(lists: Mapping[str, list], live: bool | Mapping) -> dict[str, tuple[Real, Real]] | None:
    """Parameter -> smallest and largest number of its control in the kernel; None without such controls."""
    if live is False:
        return None
    finite = {  # an infinite value is a frame of its own
        name: [v for v in values if math.isfinite(v)]
        for name, values in lists.items()
        if all(isinstance(v, Real) and not isinstance(v, bool) for v in values)
    }
    ends = {name: (min(values), max(values)) for name, values in finite.items() if values == lists[name]}
    for name, given in ({} if live is True else live).items():
        if name not in lists:
            raise ValueError(f"live names {name!r}, which is no parameter; use some of {', '.join(lists)}")
        fits = isinstance(given, Sequence) and len(given) == 2 and all(isinstance(v, Real) for v in given)
        fits = fits and all(math.isfinite(v) for v in given)
        if not fits or not finite.get(name) or not given[0] <= min(finite[name]) <= max(finite[name]) <= given[1]:
            raise ValueError(
                f"live has {name}={given!r}; give two finite numbers with all values of {name} between them"
            )
        ends[name] = tuple(given)
    return {name: (low, high) for name, (low, high) in ends.items() if low < high}


def _start(lists: Mapping[str, list], start: Mapping[str, Any] | None) -> int:
    """Row-major index of the first frame.  Raises ValueError for names or values that no control has."""
    for name, value in (start or {}).items():
        if name not in lists:
            raise ValueError(f"start names {name!r}, which has no slider; use some of {', '.join(lists)}")
        if value not in lists[name]:
            raise ValueError(f"start has {name}={value!r}; use one of {', '.join(labels_of(lists[name]))}")
    at = [v.index(start[name]) if start and name in start else 0 for name, v in lists.items()]
    return int(np.ravel_multi_index(at, [len(v) for v in lists.values()]))
