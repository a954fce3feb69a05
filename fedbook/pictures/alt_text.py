"""Alt text from the data of a matplotlib figure, and the formatting of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcore.support import checks
from fedcore.support.extras import needs


def rounded(value: Any, digits: int = 4) -> str:
    """A number with `digits` significant digits; whole numbers below a million have no exponent."""
    value = value.item() if hasattr(value, "item") else value  # scalars of numpy and torch
    if isinstance(value, str | bool | int):
        return str(value)
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    value = float(f"{value:.{digits}g}") + 0.0  # + 0.0 turns -0 into 0
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.{digits}g}"


def printed(numbers: Mapping[str, Any] | None) -> dict[str, str]:
    """Name -> printed number.  Raises ValueError for a value that is neither a number nor a string, and if two names
    are printed alike."""
    out = {}
    if numbers is not None and not isinstance(numbers, Mapping):
        raise ValueError(f"numbers is a {type(numbers).__name__}; give a dictionary name -> number")
    for name, value in (numbers or {}).items():
        label = plain(str(name))
        if label in out:
            raise ValueError(f"numbers holds {label!r} twice, once the names are printed; give each its own name")
        try:
            out[label] = rounded(value)
        except (ValueError, RuntimeError, TypeError) as e:
            raise ValueError(f"numbers[{name!r}] is {checks.brief(value)}; give one number or a string") from e
    return out


def numbered(words: str, numbers: Mapping[str, Any] | None) -> str:
    """Words, followed by the numbers as they are printed."""
    pairs = ", ".join(f"{name} {value}" for name, value in printed(numbers).items())
    return " ".join(f"{words} Numbers: {pairs}.".split() if pairs else words.split())


def plain(text: str) -> str:
    """Text without TeX commands, for screen readers."""
    text = re.sub(r"\\(?:mathrm|mathbf|mathcal|mathit|text|left|right|bar|hat|tilde)\b", "", text)
    return " ".join(re.sub(r"[\\${}]", "", re.sub(r"\\[ ,;!]", " ", text)).split())


def _range(values: np.ndarray) -> str:
    values = values[np.isfinite(values)]
    return f"{rounded(values.min(), 3)} to {rounded(values.max(), 3)}" if values.size else "no finite value"


def _line_text(line: Any, ax: Any) -> str | None:
    """A line in words: its first and last point, its lowest and highest value."""
    label = plain(str(line.get_label()))
    name = "A line" if label.startswith("_") else label
    xy = np.column_stack([np.ravel(np.asarray(v, dtype=float)) for v in line.get_data(orig=False)])
    frame = line.get_transform()  # compared by identity: transforms with equal matrices count as equal
    if frame is ax.get_yaxis_transform(which="grid"):
        return f"{name}: horizontal at {rounded(xy[0, 1], 3)}"
    if frame is ax.get_xaxis_transform(which="grid"):
        return f"{name}: vertical at {rounded(xy[0, 0], 3)}"
    if frame is not ax.transData:
        return None
    finite = xy[np.isfinite(xy).all(axis=1)]
    if not len(finite):
        return f"{name}: no finite point" if len(xy) else None
    (x0, y0), (x1, y1) = ([rounded(v, 3) for v in finite[i]] for i in (0, -1))
    if len(finite) == 1:
        return f"{name}: one point at ({x0}, {y0})"
    gap = "" if len(finite) == len(xy) else f", {len(xy) - len(finite)} points missing"
    if line.get_gid() == "path" or (np.diff(finite[:, 0]) < 0).any():
        return f"{name}: path of {len(finite)} points from ({x0}, {y0}) to ({x1}, {y1}){gap}"
    low, high = (rounded(v, 3) for v in (finite[:, 1].min(), finite[:, 1].max()))
    return f"{name}: from {y0} at {x0} to {y1} at {x1}, lowest {low}, highest {high}{gap}"


def _bars_text(bars: Any, ax: Any) -> str:
    upright = getattr(bars, "orientation", "vertical") != "horizontal"
    size = np.array([p.get_height() if upright else p.get_width() for p in bars.patches], dtype=float)
    label = plain(str(bars.get_label()))
    name = "Bars" if label.startswith("_") else f"Bars of {label}"
    if not size.size:
        return f"{name}: none"
    if size.size > 8:
        return f"{name}: {size.size}, from {_range(size)}, {rounded(size.sum(), 3)} in all"
    at = [p.get_x() + p.get_width() / 2 if upright else p.get_y() + p.get_height() / 2 for p in bars.patches]
    ticks = (ax.xaxis if upright else ax.yaxis).get_major_formatter().format_ticks(at)
    places = [plain(t.replace("−", "-")) or rounded(a, 3) for t, a in zip(ticks, at, strict=True)]
    return f"{name}: " + ", ".join(f"{p} {rounded(v, 3)}" for p, v in zip(places, size, strict=True))


def _mappable_text(artist: Any) -> str | None:
    """Heat maps, contours, scatters and arrows as words."""
    from matplotlib import collections, contour, image, quiver

    bar = getattr(artist, "colorbar", None)
    unit = plain(bar.ax.get_ylabel() or bar.ax.get_xlabel()) if bar else ""
    label = plain(str(artist.get_label()))
    named = "" if label.startswith("_") or not label else f" ({label})"
    if isinstance(artist, contour.ContourSet):
        return f"{len(artist.levels)} level lines{named} from {_range(np.asarray(artist.levels, dtype=float))}"
    if isinstance(artist, image.AxesImage | collections.QuadMesh):
        grid = np.ma.filled(np.ma.asarray(artist.get_array(), dtype=float), np.nan)
        if grid.ndim != 2 or not np.isfinite(grid).any():
            return f"Picture of {' by '.join(map(str, grid.shape))} values"
        row, column = np.unravel_index(np.nanargmax(grid), grid.shape)
        return (
            f"Heat map{named} of {grid.shape[0]} rows by {grid.shape[1]} columns, {unit or 'values'} from "
            f"{_range(grid)}, highest in row {row}, column {column}, {rounded(float((grid == 0).mean() * 100), 3)} "
            "percent are zero"
        )
    if isinstance(artist, quiver.Quiver):
        length = np.hypot(np.asarray(artist.U, dtype=float), np.asarray(artist.V, dtype=float))
        return f"{length.size} arrows{named} of length {_range(length)}"
    if isinstance(artist, collections.PathCollection):
        x, y = np.ma.filled(np.ma.asarray(artist.get_offsets(), dtype=float), np.nan).reshape(-1, 2).T
        return f"{len(x)} points{named}, across from {_range(x)}, up from {_range(y)}"
    if isinstance(artist, collections.LineCollection):
        return f"{len(artist.get_segments())} line segments{named}"
    return None


def _message(ax: Any) -> str:
    """The message of a panel: the plotted quantities, and the curves that end highest and lowest."""
    title = " ".join(filter(None, (plain(ax.get_title(loc=loc)) for loc in ("left", "center", "right"))))
    x, y = plain(ax.get_xlabel()), plain(ax.get_ylabel())
    x, y = (t + " (log scale)" * (s == "log") for t, s in ((x or "x", ax.get_xscale()), (y or "y", ax.get_yscale())))
    what = f"{title}: {y} against {x}" if title else f"{y[:1].upper()}{y[1:]} against {x}"
    ends = {}
    for line in _named(ax):
        xy = np.column_stack([np.ravel(np.asarray(v, dtype=float)) for v in line.get_data(orig=False)])
        xy = xy[np.isfinite(xy).all(axis=1)]
        if line.get_transform() is ax.transData and len(xy) > 1 and line.get_gid() != "path":
            ends[plain(str(line.get_label()))] = xy[-1, 1]
    if all(name.startswith("_") for name in ends):  # no curve, or none with a label
        return f"{what}."
    heights = ax.yaxis.get_transform().transform(np.clip([*ax.get_ybound(), *ends.values()], *ax.get_ybound()))
    at = 100 * (heights[2:] - heights[0]) / (heights[1] - heights[0])  # in % of the panel: no eye tells 1 % apart
    high, low = (dict(e for e, y in zip(ends.items(), at, strict=True) if abs(y - m) <= 1) for m in (max(at), min(at)))
    if high.keys() & low.keys():  # one curve, or all end together
        return f"{what}."
    above = f"{' and '.join(high)} end{'s' * (len(high) == 1)} highest, at {rounded(max(high.values()), 3)}"
    return f"{what}. {above}, {' and '.join(low)} lowest, at {rounded(min(low.values()), 3)}."


def _named(ax: Any) -> list[Any]:
    """The labelled lines; all lines if none is labelled."""
    return [line for line in ax.lines if not str(line.get_label()).startswith("_")] or list(ax.lines)


def _details(ax: Any) -> list[str]:
    items = [_bars_text(c, ax) for c in ax.containers if hasattr(c, "patches")]
    items += [_line_text(line, ax) for line in _named(ax)]
    items += [_mappable_text(artist) for artist in (*ax.images, *ax.collections)]
    bands = sum(type(c).__name__ in ("PolyCollection", "FillBetweenPolyCollection") for c in ax.collections)
    items += [f"{bands} shaded band{'s' * (bands > 1)}"] if bands else []
    notes = [plain(t.get_text()) for t in ax.texts if t.get_text().strip()]
    items += ["Notes: " + ", ".join(notes[:6])] if notes else []
    items = [item for item in items if item]
    more = [f"{len(items) - 8} more are drawn."] if len(items) > 8 else []
    return [f"{item}." for item in items[:8]] + more


def describe(figure: Any, numbers: Mapping[str, Any] | None = None) -> str:
    """Alt text from the data of a matplotlib figure: the message of each panel, then `numbers`, then details.

    The message states the plotted quantities, and which curves end highest and lowest.  Details follow up to a total of
    about 100 words: for a line its first, last, lowest and highest value (three significant digits), for bars, heat
    maps, scatters, contours and arrows a short summary; lines without a label only if no line has one.  The text is
    deterministic and never empty.  Raises ValueError if `figure` is not a matplotlib figure.
    """
    check_figure(figure, "figure")
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>" and ax.get_visible()]
    several = len(panels) > 1
    sentences = [plain(figure.get_suptitle()) + "."] if figure.get_suptitle() else []
    sentences += [f"Panel {k}: {_message(ax)}" if several else _message(ax) for k, ax in enumerate(panels, 1)]
    sentences = sentences or ["A picture without axes."]
    if numbers:
        sentences.append(numbered("", numbers))
    words = sum(len(sentence.split()) for sentence in sentences)
    for k, ax in enumerate(panels, 1):
        for place, sentence in enumerate(_details(ax)):
            words += len(sentence.split())
            if words > 100:
                return " ".join([*sentences, "The rest is left out."])
            sentences.append(f"Panel {k}: {sentence}" if several and not place else sentence)
    return " ".join(sentences)


@needs("pictures", "a picture")
def check_figure(figure: Any, name: str) -> None:
    from matplotlib.figure import Figure

    if not isinstance(figure, Figure):
        remedy = "give its .figure" if hasattr(figure, "figure") else "give a matplotlib.figure.Figure"
        raise ValueError(f"{name} is a {type(figure).__name__}, not a matplotlib Figure; {remedy}")
