"""Convert a matplotlib figure to a compact SVG with colours for light and dark pages, and to a second one for phones.

The SVG is meant for an `<img>`, where `prefers-color-scheme` is the scheme of the surrounding element, so no script is
needed.  On dark pages white becomes the page's background, palette colours become their dark pairs, and the lightness
of all other colours is inverted (`styles.dark`).  Text stays text, in the reader's own sans-serif font.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from fedcore.engine.undisturbed import Held

from . import styles

PHONE = 3.8  # inches; in a phone's column of 358 CSS pixels, text of 9.5 points is 12.4 pixels high
RESOLUTION = 160  # pixels per inch of rasterised parts, such as heat maps
LONG = 20  # letters: longer names of rows stand above their rows on a phone, and longer legends in one column
MANY = 400  # heat maps with more cells than this are rasterised
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif"

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d*\.\d+(?:e[-+]?\d+)?")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_WHITE, _BLACK = "#ffffff", "#000000"
_parser = Held()


def svg(figure: Any, phone: bool = False) -> str:
    """The figure as SVG text, deterministic.  phone: lay it out `PHONE` inches wide, with stacked panels."""
    photo = any(image.get_array().ndim == 3 for ax in figure.axes for image in ax.images)
    with _prepared(figure, phone):
        return _small(_drawn(figure), photo)


def uri(text: str) -> str:
    """An SVG as a data URI, percent-encoded, because that compresses better than base64."""
    return "data:image/svg+xml," + quote(text, safe="/:;=,.()!*@?+~-_")


def size(figure: Any) -> tuple[float, float]:
    """The figure's width and height in inches on a phone."""
    with _prepared(figure, True):
        return tuple(float(v) for v in figure.get_size_inches())


def number_lines(figure: Any) -> list[Any]:
    """The figure's lines and filled areas, axes by axes; their SVG elements get the ids fc-0, fc-1, ...."""
    from matplotlib.patches import Polygon

    lines = [line for ax in figure.axes for line in (*ax.lines, *(p for p in ax.patches if isinstance(p, Polygon)))]
    for k, line in enumerate(lines):
        line.set_gid(f"fc-{k}")
    return lines


def scales(figure: Any, phone: bool = False) -> list[list[float]]:
    """What takes the data of each of `number_lines` to the SVG: [a, b, c, d, log x, log y] for (a + b x, c + d y).

    log x is 1 where it is a + b log10(x), and log y likewise.
    """
    with _prepared(figure, phone):
        _drawn(figure)
        point, height, out = 72 / figure.dpi, 72 * figure.get_size_inches()[1], []
        for line in number_lines(figure):
            x, y = (line.get_transform().transform([[v, v] for v in (1, 10, 100)]) * point).T
            row, logs = [], []
            for at in (x, height - y):
                log = abs(at[2] - 2 * at[1] + at[0]) < 1e-6  # a decade is as long as the next
                slope = at[1] - at[0] if log else (at[1] - at[0]) / 9
                row, logs = [*row, at[0] - (0 if log else slope), slope], [*logs, int(log)]
            out.append([*(float(v) for v in row), *logs])
        return out


def _drawn(figure: Any) -> str:
    from matplotlib import rc_context, text, textpath
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "fedcore", "image.composite_image": False}
    # One parser for all drawings: it remembers formulas, and reading them takes a third of the time of a drawing.
    with rc_context(settings), _parser.values((text, "TextToPath", lambda: textpath.text_to_path)):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", out.getvalue())  # not allowed in XML


@contextmanager
def _prepared(figure: Any, phone: bool) -> Iterator[None]:
    """Prepare the figure for drawing (layout engine, transparent background, size), and restore it afterwards."""
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import to_hex
    from matplotlib.gridspec import GridSpec

    canvas, dpi, layout, inches = figure.canvas, figure.dpi, figure.get_layout_engine(), figure.get_size_inches().copy()
    patches = [p for p in (figure.patch, *(ax.patch for ax in figure.axes)) if p.get_visible()]
    papers = [p for p in patches if to_hex(p.get_facecolor()) == _WHITE]
    heavy = [c for ax in figure.axes for c in ax.collections if isinstance(c, QuadMesh) and c.get_array().size > MANY]
    heavy = [c for c in heavy if not c.get_rasterized()]
    places = [(ax, ax.get_subplotspec()) for ax in figure.axes if ax.get_subplotspec() is not None]
    grids = {id(spec.get_gridspec()): spec.get_gridspec() for _, spec in places}
    of_axes = [legend for ax in figure.axes if (legend := ax.get_legend())]
    legends = [(legend, legend._ncols) for legend in (*figure.legends, *of_axes)]
    anchors = {legend: legend.axes.transAxes.inverted().transform(legend.get_bbox_to_anchor().p0) for legend in of_axes}
    beside = {legend: (legend._loc, tuple(at)) for legend, at in anchors.items() if at[0] > 0.99}
    rows_of_words = [ax for ax in figure.axes if any(len(name) > LONG for name in _named_rows(ax))]
    try:
        figure.dpi = RESOLUTION
        if layout is None:  # pyplot figures: without a layout engine labels may be cut off
            figure.set_layout_engine("constrained")
        for patch in papers:
            patch.set_visible(False)
        for mesh in heavy:
            mesh.set_rasterized(True)
        if phone:
            height = inches[1]
            if len(grids) == 1 and len(places) > 1:
                (grid,) = grids.values()
                columns = 1 if len(places) <= 3 else 2
                rows = -(-len(places) // columns)
                height *= max(1.0, rows / grid.nrows * (0.85 if grid.ncols > 2 else 0.95))
                stacked = GridSpec(rows, columns, figure=figure)
                for k, (ax, _) in enumerate(places):
                    ax.set_subplotspec(stacked[k // columns, k % columns])
            for legend, columns in legends:
                long = max((len(text.get_text()) for text in legend.get_texts()), default=0) > LONG
                narrow = 1 if long else 2 if legend in beside else min(2, columns)
                _arrange(legend, narrow)
                if legend in beside:  # a phone has no room at the side
                    _place(legend, "lower left", (0, 1))
                    height += 0.2 * -(-len(legend.get_texts()) // narrow)
            for ax in rows_of_words:
                _name_rows(ax, above=True)
                height *= 1.4
            figure.set_size_inches(min(PHONE, inches[0]), height)
            if any(ax.get_label() == "<colorbar>" for ax in figure.axes):
                figure.get_layout_engine().execute(figure)  # one pass alone cuts the labels of stacked colour bars
        yield
    finally:
        for legend, columns in legends:
            _arrange(legend, columns)
        for legend, place in beside.items():
            _place(legend, *place)
        for ax in rows_of_words if phone else ():
            _name_rows(ax, above=False)
        for ax, spec in places:
            ax.set_subplotspec(spec)
        for patch in papers:
            patch.set_visible(True)
        for mesh in heavy:
            mesh.set_rasterized(None)
        figure.set_size_inches(inches)
        figure.dpi = dpi
        figure.set_layout_engine(layout)
        figure.set_canvas(canvas)
        if "matplotlib.pyplot" in sys.modules:  # else the notebook's backend would also show the open figure
            sys.modules["matplotlib.pyplot"].close(figure)


def _arrange(legend: Any, columns: int) -> None:
    """Change the number of columns of a legend (matplotlib has no public method for this)."""
    if legend._ncols != columns:
        legend._ncols = columns
        texts, title = [text.get_text() for text in legend.get_texts()], legend.get_title().get_text()
        legend._init_legend_box(legend.legend_handles, texts)
        legend.set_title(title or None)  # else an empty one takes room
        legend._legend_box.set_offset(legend._findoffset)


def _named_rows(ax: Any) -> list[str]:
    from matplotlib.ticker import FixedLocator

    fixed = isinstance(ax.yaxis.get_major_locator(), FixedLocator)
    return [text.get_text() for text in ax.get_yticklabels()] if fixed else []


def _name_rows(ax: Any, above: bool) -> None:
    """The names of an axis' rows above the rows, within the axes, or beside them."""
    from matplotlib.transforms import ScaledTranslation

    ax.tick_params(axis="y", pad=-2 if above else 3.5, length=0 if above else 3.5)  # and back from any shift
    shift = ScaledTranslation(0, 4 / 72, ax.figure.dpi_scale_trans)  # clear of the row's marker
    for text in ax.get_yticklabels():
        text.set(ha="left" if above else "right", va="bottom" if above else "center_baseline")
        if above:
            text.set_transform(text.get_transform() + shift)


def _place(legend: Any, loc: Any, anchor: tuple[float, float]) -> None:
    legend.set_loc(loc)
    legend.set_bbox_to_anchor(anchor, transform=legend.axes.transAxes)


def _small(text: str, photo: bool) -> str:
    """Shorten matplotlib's SVG: no preamble or unused ids, styles as CSS classes, colours as CSS variables."""
    root = ElementTree.fromstring(text)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    names = {name: f"i{k}" for k, name in enumerate(sorted(used))}
    classes: dict[str, str] = {}
    _, _, width, height = root.attrib["viewBox"].split()
    body = "".join(_written(child, names, classes) for child in root)
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    rules += f"svg{{fill:{_BLACK}}}"  # the default for elements without a colour
    variables = {c: f"--{k}" for k, c in enumerate(sorted(set(_COLOUR.findall(rules))))}
    day = {_WHITE: styles.colours()["paper"], _BLACK: styles.colours()["ink"]}
    rules = _COLOUR.sub(lambda m: f"var({variables[m[0]]})", rules)
    light = "".join(f"{name}:{day.get(c, c)};" for c, name in variables.items())
    night = "".join(f"{name}:{styles.dark(day.get(c, c))};" for c, name in variables.items())
    turned = "" if photo or "<image" not in body else "image{filter:invert(.91) hue-rotate(180deg)}"
    style = (
        f"*{{stroke-linejoin:round;stroke-linecap:butt}}text{{font-family:{FONT};white-space:pre}}{rules}"
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{night}}}{turned}}}"
    )
    w, h = (_rounded(v) for v in (width, height))
    space = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
    return f"<svg {space}><style>{style}</style>{body}</svg>"


def _written(node: Any, names: dict[str, str], classes: dict[str, str]) -> str:
    tag = node.tag.removeprefix(_SVG)
    if tag in ("metadata", "style"):
        return ""
    if tag == "text" and len(node):
        node = _sentence(node)
    inner = (node.text or "").strip("\n") if tag in ("text", "tspan") else ""
    inner = inner.replace("&", "&amp;").replace("<", "&lt;")
    inner += "".join(_written(child, names, classes) for child in node)
    if not inner and tag in ("g", "defs"):
        return ""
    given = {}
    for name, value in node.attrib.items():
        if name == "style":
            if style := _style(value):
                given["class"] = classes.setdefault(style, f"c{len(classes)}")
        elif name == "id":
            if value in names or value.startswith("fc-"):
                given["id"] = names.get(value, value)
        elif name == _LINK:
            given["href"] = "#" + names[value[1:]] if value[0] == "#" else value.replace("\n", "")
        elif name == "clip-path":
            given[name] = f"url(#{names[value[5:-1]]})"
        elif name[0] == "{" or (name == "transform" and value.startswith("rotate(-0 ")):
            continue
        else:
            given[name] = _path(value) if name == "d" else _NUMBER.sub(lambda m: _rounded(m[0]), value)
    if tag == "g" and not given:
        return inner
    attributes = "".join(f' {name}="{value}"' for name, value in given.items())
    return f"<{tag}{attributes}>{inner}</{tag}>" if inner else f"<{tag}{attributes}/>"


def _style(text: str) -> str:
    pairs = [part.split(": ", 1) for part in text.split("; ")]
    out = [f"{name}:{_NUMBER.sub(lambda m: _rounded(m[0]), value)}" for name, value in pairs if name != "font-family"]
    return ";".join(part for part in out if part != "stroke-linejoin:round")


def _path(text: str) -> str:
    text = _NUMBER.sub(lambda m: _rounded(m[0]), text)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(text.split()))


def _rounded(number: str) -> str:
    value = float(number)
    text = f"{value:.{1 if abs(value) >= 10 else 2}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-0.", "-.").removeprefix("0") or "0"


def _sentence(text: Any) -> Any:
    """Join the letters of a formula, which matplotlib positions one by one for its own font, into flowing text."""
    letters = sorted(text, key=lambda t: float(t.get("x").split()[0]))
    base = max((float(t.get("y").split()[0]) for t in letters if "7.7px" not in t.get("style")), default=0.0)
    flow = ElementTree.Element(f"{_SVG}text", {k: v for k, v in text.attrib.items() if k != "style"})
    level, last = 0.0, None
    for letter in letters:
        y, style = float(letter.get("y").split()[0]) - base, letter.get("style")
        if last is not None and (y, style) == (level, last.get("style")):
            last.text += letter.text
            continue
        last = ElementTree.SubElement(flow, f"{_SVG}tspan", {"style": style})
        last.text = letter.text
        if y != level:
            last.set("dy", f"{y - level:.2f}")
        level = y
    flow.set("y", f"{base:.2f}")
    return flow
