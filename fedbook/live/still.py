"""The static pictures of the playgrounds: SVGs of a plane with level lines and trajectories, and of a small network.

Attributes set default colours; the playground's CSS replaces them by the colours of light or dark pages.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedcore.objective.quadratic import Quadratic

from ..pictures.styles import colours, dark

WIDTH, HEIGHT = 440, 400  # of the drawing, as in playground.js
RADIUS = 0.55  # of the ellipse of curvature 1, in units of the parameters


def svg_of_playground(
    fed: Quadratic,
    optimum: np.ndarray | None,
    clients: Sequence[Mapping[str, Any]],
    paths: Mapping[str, np.ndarray],
    looks: Mapping[str, Mapping[str, Any]],
    alt: str,
    words: Sequence[str],
) -> str:
    """HTML of the picture: the plane with each method's trajectory `[rounds + 1, 2]`, a legend, and sentences.

    optimum: the minimiser of F `[2]`, None if F has no unique minimiser.
    """
    start = next(iter(paths.values()))[0] if paths else fed.x0.numpy()
    half = max(3.05, 1.2 * max(float(np.abs(start).max()), *(max(map(abs, c["optimum"])) for c in clients)))
    scale = WIDTH / 2 / half

    def at(x: Sequence[float]) -> tuple[str, str]:
        return f"{WIDTH / 2 + scale * x[0]:.1f}", f"{HEIGHT / 2 - scale * x[1]:.1f}"

    def moved(x: Sequence[float]) -> str:
        return f"translate({' '.join(at(x))})"

    def line(points: np.ndarray) -> str:
        return "M" + "L".join(" ".join(at(p)) for p in points)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" class="pg-paper" fill="none" stroke="#8886"/>']
    contours = "".join(map(line, _levels(fed, half))) if optimum is not None else ""
    parts.append(f'<g class="pg-contours" fill="none" stroke="#8885"><path d="{contours}"/></g>')
    parts.append('<g class="pg-ellipses" fill="#8883" stroke="#888">')
    for c in clients:
        rx, ry = (scale * RADIUS / math.sqrt(max(v, 0.012)) for v in c["curvature"])
        parts.append(
            f'<ellipse rx="{rx:.1f}" ry="{ry:.1f}" transform="{moved(c["optimum"])} rotate({-c["angle"]:.1f})"/>'
        )
    parts.append('</g><g class="pg-paths" fill="none" stroke-width="2.6">')
    near = {name: path[np.abs(path).max(1) < 1e6] for name, path in paths.items()}
    for name, path in near.items():
        dash = f' stroke-dasharray="{looks[name]["dash"]}"' if looks[name]["dash"] else ""
        colour = looks[name]["colour"]
        parts.append(f'<path style="--k:{_mixed(looks[name])}" stroke="{colour}" d="{line(path)}"{dash}/>')
    parts.append('</g><g class="pg-star" fill="#f2c230" stroke="#1d2430">')
    if optimum is not None:
        turns = [(r, k * math.pi / 5) for k, r in enumerate((15, 6.3) * 5)]
        star = "L".join(f"{r * math.sin(t):.1f} {-r * math.cos(t):.1f}" for r, t in turns)
        parts.append(f'<path d="M{star}Z" transform="{moved(optimum)}"/>')
    parts.append('</g><g class="pg-now">')
    for name, path in near.items():
        colour = looks[name]["colour"]
        parts.append(f'<circle style="--k:{_mixed(looks[name])}" fill="{colour}" r="6" transform="{moved(path[-1])}"/>')
    parts.append('</g><g class="pg-words" font-size="13" fill="currentColor">')
    for word, x in (("optimum", optimum), ("start", start)):
        if x is None:
            continue
        u, v = at(x)
        parts.append(f'<text x="{float(u) + 17:.1f}" y="{float(v) + 4:.1f}">{word}</text>')
    parts.append(f'</g><g class="pg-start" fill="#fff" stroke="#1d2430"><circle r="8" transform="{moved(start)}"/></g>')
    for i, c in enumerate(clients):
        parts.append(
            f'<g class="pg-client" transform="{moved(c["optimum"])}">'
            f'<rect x="-11" y="-11" width="22" height="22" rx="5" fill="#fff" stroke="#1d2430"/>'
            f'<text y="4.6" font-size="13" text-anchor="middle" fill="#1d2430">{i + 1}</text></g>'
        )
    return _staged(parts, {name: looks[name] for name in paths}, alt, " ".join(words))


def _staged(parts: Sequence[str], legend: Mapping[str, Mapping[str, Any]], alt: str, words: str) -> str:
    """HTML of a picture with its parts, a legend (words -> their colours), and a sentence below."""
    items = "".join(f'<li style="--k:{_mixed(look)}">{text}</li>' for text, look in legend.items())
    return (
        f'<div class="pg-stage"><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" class="pg-plane" role="img" '
        f'aria-label="{html.escape(alt)}">{"".join(parts)}</svg></div><ul class="pg-side pg-legend">{items}</ul>'
        f'<p class="pg-says">{html.escape(words)}</p>'
    )


def _mixed(look: Mapping[str, Any]) -> str:
    """A method's colour on light or dark pages, selected by the variable `--day` of the playground's CSS."""
    return f"color-mix(in srgb,{look['colour']} var(--day),{look['dark']})"


def _levels(fed: Quadratic, half: float, levels: int = 9, points: int = 61) -> list[np.ndarray]:
    """Level lines of F in the plane, evenly spaced in the square root of F; none if contourpy is missing."""
    try:
        from contourpy import contour_generator
    except ImportError:
        return []
    x = np.linspace(-half, half, points)
    y = x[np.abs(x) <= 1.05 * half * HEIGHT / WIDTH]
    grid = torch.tensor([[u, v] for v in y for u in x], dtype=torch.float64)
    F = np.array([float(fed.objective(p)) for p in grid]).reshape(len(y), len(x))
    low, high = float(fed.objective(fed.optimum)), F.max()
    lines = contour_generator(x, y, F)
    heights = low + (high - low) * (np.arange(1, levels + 1) / (levels + 1)) ** 2
    return [line for height in heights for line in lines.lines(height)]


CLIENTS = [
    {"colour": colour, "dark": dark(colour)}
    for colour in (colours()[name] for name in ("blue", "amber", "green", "pink", "sky", "ink"))
]
"""The colours of clients on light and dark pages."""


def svg_of_network(
    sizes: Sequence[int], kept: np.ndarray, conflict: np.ndarray, legend: Sequence[str], alt: str, words: str
) -> str:
    """HTML of a small network with a legend: a ring around each hidden neuron shows which clients train the neuron.

    sizes: units of each layer.  kept `[n, hidden]`: whether a client trains a neuron.  conflict `[hidden]`: the mean
    cosine of the clients' updates of a neuron, NaN if fewer than two train it.  legend: the words for each client.
    """

    def place(layer: int, unit: int) -> tuple[float, float]:
        return 36 + layer * (WIDTH - 72) / (len(sizes) - 1), HEIGHT / 2 + (unit - (sizes[layer] - 1) / 2) * 48

    trained = [np.ones(sizes[0], bool), *np.split(kept.any(0), np.cumsum(sizes[1:-2])), np.ones(sizes[-1], bool)]
    lines = [
        "M{:.1f} {:.1f}L{:.1f} {:.1f}".format(*place(layer, a), *place(layer + 1, b))
        for layer in range(len(sizes) - 1)
        for a in np.flatnonzero(trained[layer])
        for b in np.flatnonzero(trained[layer + 1])
    ]
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" class="pg-paper" fill="none" stroke="#8886"/>'
        f'<g class="pg-lines" fill="none" stroke="#8884"><path d="{"".join(lines)}"/></g><g class="pg-ends" '
        'fill="#fff" stroke="#888">'
    ]
    for layer, names in ((0, "xyz"), (len(sizes) - 1, "ABCDEF")):
        for unit, name in enumerate(names[: sizes[layer]]):
            x, y = place(layer, unit)
            parts.append(
                f'<g transform="translate({x:.1f} {y:.1f})"><circle r="13"/><text y="4.5" font-size="13" stroke="none" '
                f'text-anchor="middle" fill="#1d2430">{name}</text></g>'
            )
    parts.append("</g>")
    hidden = [(layer, unit) for layer in range(1, len(sizes) - 1) for unit in range(sizes[layer])]
    for j, (layer, unit) in enumerate(hidden):
        x, y = place(layer, unit)
        pull = max(0.0, -np.nan_to_num(conflict[j]))
        parts.append(f'<g class="pg-neuron" transform="translate({x:.1f} {y:.1f})">')
        parts += [_sector(i, len(legend), bool(own[j])) for i, own in enumerate(kept)]
        parts.append(
            f'<circle r="14.5" class="pg-core" style="--c:{100 * pull:.0f}%" fill="rgb({255 - 37 * pull:.0f} '
            f'{255 - 142 * pull:.0f} {255 - 134 * pull:.0f})"/><text y="4.5" font-size="13" text-anchor="middle" '
            f'fill="#1d2430">{_inside(conflict[j])}</text></g>'
        )
    return _staged(parts, dict(zip(legend, CLIENTS, strict=False)), alt, words)


def _sector(i: int, n: int, takes: bool) -> str:
    """The sector of client i of n in a neuron's ring, clockwise from the top."""

    def corner(radius: float, end: int) -> str:
        t = 2 * math.pi * (i + end) / n - math.pi / 2 + (-1.6 if end else 1.6) / radius
        return f"{radius * math.cos(t):.1f} {radius * math.sin(t):.1f}"

    fill = 'fill="none" stroke="#8886" stroke-width="0.8"'
    if takes:
        fill = f'fill="{CLIENTS[i]["colour"]}" style="fill:{_mixed(CLIENTS[i])}"'
    d = f"M{corner(15.5, 0)}A15.5 15.5 0 0 1 {corner(15.5, 1)}L{corner(22, 1)}A22 22 0 0 0 {corner(22, 0)}Z"
    return f'<path {fill} d="{d}"/>'


def _inside(cosine: float) -> str:
    """A cosine as printed in a neuron, such as −.4."""
    if not math.isfinite(cosine):
        return ""
    text = f"{cosine:.1f}".replace("-", "−").replace("0.", ".")
    return {"−1.0": "−1", "1.0": "1", ".0": "0", "−.0": "0"}.get(text, text)
