"""The drawing style of all figures in the book, and the plots that several chapters use.

Figures are made through matplotlib's object API, without pyplot, so there is no global state and no figure to close.
Every plot takes axes and returns them, so the same code serves a chapter, a live slider and a batch run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.support.extras import needs

from .styles import COLOURS, LINES, looks
from .styles import MARKERS as MARKERS  # re-exported for chapters

STYLE = Path(__file__).with_name("book.mplstyle")
SOLID = {"linewidth": 1, "linestyle": "-"}  # error bars
LEGEND = {"frameon": False, "fontsize": 8.8}
# No legend covers the data: it stands beside the axes, or below several.
BESIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handlelength": 1.6}
BELOW = {"loc": "outside lower center", "ncols": 4}


@needs("pictures", "a picture")
def figure(width: float = 6.4, height: float = 2.95, ncols: int = 1, nrows: int = 1) -> tuple[Any, Any]:
    """A figure in the book's style, and its axes: one `Axes`, or an array of them as from `plt.subplots`.

    `width` and `height` are in inches; on a page the figure fills the text column.  `ax.legend()` stands beside its
    axes, on a phone above them; that of one of several axes stands below all.
    Lines drawn with `ax.plot` take the colours and dashes of `COLOURS` and `LINES` in order.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib import style
    from matplotlib.figure import Figure

    cycle = cycler(color=COLOURS[: len(LINES)], linestyle=LINES)
    with style.context([STYLE, {"axes.prop_cycle": cycle}]):
        fig = Figure(figsize=(width, height), layout="constrained")
        axes, size = fig.subplots(nrows, ncols), matplotlib.rcParams["axes.titlesize"]
    # matplotlib reads these settings when the method is called; binding them leaves the global settings unchanged.
    for ax in fig.axes:
        ax.set_title = partial(ax.set_title, loc="left", fontsize=size)
        ax.legend = partial(ax.legend, **LEGEND, **BESIDE) if len(fig.axes) == 1 else partial(_below, fig, ax)
    return fig, axes


def _below(fig: Any, ax: Any, handles: Any = None, labels: Any = None, **options: Any) -> Any:
    """The legend of one of several axes, below all of them."""
    found = ax.get_legend_handles_labels()
    return fig.legend(handles or found[0], labels or found[1], **LEGEND | BELOW | options)


def curves(ax: Any, series: Mapping[str, Any], x: Any = None, legend: bool = True) -> Any:
    """Mean over seeds as a line, plus and minus one standard deviation as a band; returns `ax`.

    `series` maps a label to an array [seeds, points] (or [points] for one seed); `x` has shape [points], by default
    1, 2, ....  A label that begins with a method's name is drawn in that method's style (`styles.looks`).  The
    standard deviation is that of the sample (n - 1); one seed has no band.
    Raises ValueError for wrong shapes.
    """
    for k, ((label, values), look) in enumerate(zip(series.items(), looks(list(series)), strict=True)):
        values = np.atleast_2d(np.asarray(values, dtype=float))
        at = np.arange(1, values.shape[1] + 1) if x is None else np.asarray(x, dtype=float)
        if not values.size or at.shape != values.shape[1:]:
            raise ValueError(
                f"series[{label!r}] has shape {values.shape} and x {at.shape}; give equal numbers of points"
            )
        mean = values.mean(axis=0)
        if len(values) > 1:
            sd = values.std(axis=0, ddof=1)
            ax.fill_between(at, mean - sd, mean + sd, color=look.colour, alpha=0.16, linewidth=0)
        every = max(1, len(at) // 6)
        # Markers are shifted between curves, so that both of two equal curves are visible.
        marks = {"marker": look.marker, "markersize": 5.5, "markevery": (k * every // 3 % every, every)}
        ax.plot(at, mean, label=label, color=look.colour, linestyle=look.line, linewidth=2, **marks)
    if legend and len(series) > 1:
        ax.legend()
    return ax


@needs("pictures", "a picture")
def density(ax: Any, groups: Mapping[str, Any]) -> Any:
    """The density of each group's values by a Gaussian kernel (`seaborn.kdeplot`), between their lowest and highest;
    returns `ax`.

    `groups` maps a label to finite numbers that are not all equal.  Raises ValueError for other values.
    """
    import seaborn

    for k, ((label, values), look) in enumerate(zip(groups.items(), looks(list(groups)), strict=True)):
        values = np.asarray(values, dtype=float)
        if not len(values) or not np.isfinite(values).all() or values.min() == values.max():
            raise ValueError(f"group {label!r} has no density; give at least two finite numbers that differ")
        marks = {"marker": look.marker, "markersize": 5.5, "markevery": (10 * k % 50, 50)}
        line = {"color": look.colour, "linestyle": look.line, "linewidth": 2, "label": label, **marks}
        seaborn.kdeplot(x=values, ax=ax, cut=0, **line)
    return ax


@needs("pictures", "a picture")
def grouped(ax: Any, groups: Mapping[str, Mapping[Any, Any]], bars: bool = False) -> Any:
    """The mean of each group at each tick, plus and minus one standard deviation, in the style of its label; returns
    `ax`.

    `groups` maps a label to tick -> values over seeds; a tick with a value that is not finite is left out.  Groups
    stand beside each other (seaborn), as points joined by lines or as bars.  Ticks that are numbers are in order.
    """
    import pandas as pd
    import seaborn

    ticks = list(dict.fromkeys(tick for at in groups.values() for tick in at))
    order = ticks if any(isinstance(tick, str) for tick in ticks) else sorted(ticks)
    lines = [(label, at, v) for label, values in groups.items() for at, known in values.items()
             for v in known if np.isfinite(known).all()]  # fmt: skip
    data, styles = pd.DataFrame(lines, columns=["group", "tick", "value"]), looks(list(groups))
    given = {"x": "tick", "y": "value", "hue": "group", "order": order, "hue_order": list(groups), "legend": False,
             "palette": [look.colour for look in styles], "errorbar": "sd", "err_kws": SOLID}  # fmt: skip
    if bars:
        seaborn.barplot(data, ax=ax, saturation=1, **given)
        ax.set_xticks(range(len(order)), order, rotation=30, ha="right")
    else:
        shapes = {"markers": [look.marker for look in styles], "linestyles": [look.line for look in styles]}
        dodge = 0.35 if len(groups) > 1 else False
        seaborn.pointplot(data, ax=ax, dodge=dodge, linewidth=1.4, markersize=5, **shapes, **given)
    ax.set(xlabel="", ylabel="")
    return ax


@needs("pictures", "a picture")
def heat(ax: Any, grid: Any, label: str = "", **options: Any) -> Any:
    """A heat map of `grid [rows, columns]` (`seaborn.heatmap`, which takes `options`), the first row on top, with a
    colour bar if it has a label; returns `ax`."""
    import seaborn
    from matplotlib import style

    sizes = np.shape(grid)
    edges = {"linewidths": 0.6, "linecolor": "#f0f0f0"} if max(sizes) <= 40 else {}
    steps = [next(s for s in (1, 2, 5, 10, 20, 50, 100, 10**9) if size <= 12 * s) for size in sizes]
    bar = {"label": label, "pad": 0.02, "aspect": 18}
    with style.context(STYLE):
        seaborn.heatmap(np.asarray(grid), ax=ax, cbar=bool(label), cbar_kws=bar, **{
            "yticklabels": steps[0], "xticklabels": steps[1], **edges, **options})  # fmt: skip
    ax.grid(False)
    ax.tick_params(rotation=0)
    return ax


@needs("pictures", "a picture")
def partition(counts: Any, ax: Any = None) -> Any:
    """A heat map of the samples per client and label, `counts` [clients, labels], one column per client; returns the
    axes.

    The colour scale is the square root of the number of samples, so that one sample is visible beside none.
    Without `ax` a figure of fitting height is made; it is the `.figure` of the returned axes.
    Raises ValueError unless `counts` is a non-empty matrix of finite numbers >= 0.
    """
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    counts = np.asarray(counts, dtype=float)
    if counts.ndim != 2 or not counts.size or not np.isfinite(counts).all() or counts.min() < 0:
        raise ValueError(f"counts has shape {counts.shape}; give finite numbers >= 0 as [clients, labels]")
    if ax is None:
        ax = figure(height=min(4.6, max(2.95, 2.0 + 0.13 * counts.shape[1])))[1]
    shades = LinearSegmentedColormap.from_list("samples", ["#ffffff", "#cfe0f1", "#6ba3d8", COLOURS[0], "#0b2f57"])
    top = max(1.0, counts.max())
    heat(ax, counts.T, "samples", cmap=shades, norm=PowerNorm(0.5, vmin=0, vmax=top))
    ticks = sorted({0, *(max(1, round(float(f"{top * share:.1g}"))) for share in (0.05, 0.25)), int(top)})
    ax.collections[0].colorbar.set_ticks(ticks)
    ax.invert_yaxis()
    ax.set(xlabel="client", ylabel="label")
    return ax


def legend(figure: Any, labels: Sequence[str], bars: bool = False) -> None:
    """A legend below the panels of a figure: the style of each label, or its colour alone for bars."""
    from matplotlib.lines import Line2D

    shapes = [("s", "none") if bars else look[1:] for look in looks(labels)]
    keys = [
        Line2D([], [], color=look.colour, marker=marker, linestyle=line, label=label)
        for label, look, (marker, line) in zip(labels, looks(labels), shapes, strict=True)
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, **LEGEND)


def arrows(ax: Any, paths: Mapping[str, Any] | Sequence[Any], legend: bool = True) -> Any:
    """Trajectories of iterates in the plane, one arrow per step; returns `ax` with equal scales on both axes.

    `paths` maps a label to points [k, 2]; a sequence of such arrays is drawn without labels.
    The last point has the path's marker.  Raises ValueError for wrong shapes.
    """
    named = paths if isinstance(paths, Mapping) else {f"_path {i}": p for i, p in enumerate(paths)}
    for (label, points), look in zip(named.items(), looks(list(named)), strict=True):
        points = np.asarray(points, dtype=float)
        if points.ndim != 2 or points.shape[1] != 2 or not len(points):
            raise ValueError(f"path {label!r} has shape {points.shape}; give points as [k, 2] with k >= 1")
        colour, steps = look.colour, np.diff(points, axis=0)
        marks = {"marker": look.marker, "markersize": 6, "markevery": [-1]}
        ax.plot(*points.T, color=colour, linestyle="-", linewidth=0.9, zorder=3, label=label, gid="path", **marks)
        if len(steps):
            head = {"units": "inches", "width": 0.022, "headwidth": 5, "headlength": 6, "headaxislength": 5.4}
            true = {"angles": "xy", "scale_units": "xy", "scale": 1}  # an arrow is as long as its step
            ax.quiver(*points[:-1].T, *steps.T, color=colour, zorder=4, **true, **head)
    ax.set_aspect("equal", adjustable="datalim")
    if legend and any(not label.startswith("_") for label in named):
        ax.legend()
    return ax


def contours(ax: Any, f: Callable, xlim: tuple, ylim: tuple, levels: int = 8, colour: str = "#9a9a9a") -> Any:
    """Level lines of a function of two variables; returns `ax`.

    `f` takes points [n, 2] and returns values [n].  The levels grow quadratically from the minimum, so that a quadratic
    has evenly spaced ellipses.
    """
    x, y = np.linspace(*xlim, 121), np.linspace(*ylim, 121)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    values = np.asarray(f(grid), dtype=float)
    low, high = values.min(), values.max()
    heights = low + (high - low) * np.linspace(0, 1, levels + 2)[1:-1] ** 2
    if high > low:
        ax.contour(x, y, values.reshape(121, 121), levels=heights, colors=colour, linewidths=0.8, zorder=1)
    return ax


def plane(ax: Any, problem: Any, xlim: tuple, ylim: tuple) -> Any:
    """A quadratic problem in two dimensions: level lines of the global objective F, an open square at each client's
    minimiser, a star at the global one; returns `ax`.
    """
    A, b = problem.A.cpu().numpy(), problem.b.cpu().numpy()

    def objective(points: np.ndarray) -> np.ndarray:
        e = points[:, None] - b
        return 0.5 * np.einsum("gnp,npq,gnq->gn", e, A, e).mean(1)

    contours(ax, objective, xlim, ylim, levels=4, colour="#c4c4c4")
    for i, point in enumerate(b):
        ax.plot(*point, "s", color=COLOURS[i % len(COLOURS)], markersize=7, markerfacecolor="white")
    ax.plot(*problem.optimum.cpu(), "*", color="white", markersize=14, markeredgecolor="black", zorder=5)
    ax.grid(False)
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlim=xlim, ylim=ylim)
    return ax


def walks(ax: Any, problem: Any, methods: Mapping[str, Any], xlim: tuple, ylim: tuple, **run: Any) -> dict[str, float]:
    """The server's models under each method on a quadratic problem in the plane, drawn as by `plane` and `arrows`.

    Returns the distance of each method's last model from the optimum.

    methods: label -> `Method`.  run: arguments of `simulate`.
    """
    import fedcore

    paths = {}
    for label, method in methods.items():
        points: list[Any] = []
        seen = [lambda r, y, points=points: points.append(r.x) or {}]
        points.append(fedcore.simulate(method, problem, probes=seen, **run).params)
        paths[label] = np.stack([x.numpy() for x in points])
    arrows(plane(ax, problem, xlim, ylim), paths, legend=False)
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlim=xlim, ylim=ylim)
    ax.legend()
    star = problem.optimum.numpy()
    return {label: float(np.linalg.norm(path[-1] - star)) for label, path in paths.items()}
