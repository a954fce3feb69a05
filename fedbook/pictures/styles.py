"""The style of each method: one colour, marker and line in every figure of the book and in the playground.

The colours are named in `live/tokens.css`, with values for light and for dark pages.  Related methods share a colour
and differ in marker and line; methods that are often compared have different colours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Ordered by contrast, for curves that do not belong to a method.
NAMES = ("blue", "red", "green", "pink", "amber", "sky", "ink", "violet", "olive", "brown")
# Markers and dashes distinguish curves for readers and printers without colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5)), (0, (4, 1, 1, 1, 1, 1)), (0, (2, 2)), (0, (8, 2, 2, 2)))


class Look(NamedTuple):
    """The style of a curve: its colour on light pages, and matplotlib's marker and line style."""

    colour: str
    marker: str
    line: str | tuple


_METHODS = {
    "Central": "ink o -", "LocalOnly": "ink s --",
    "FedAvg": "blue o -", "FedAvg + server momentum": "ink D -", "FedSGD": "olive s --", "FedSMB": "sky ^ -.",
    "DFedAvg": "blue s --", "D-PSGD": "olive o -",
    "DFedAvgM": "green v --", "DSGT": "red v -.", "Exact Diffusion": "amber ^ -.", "QG-DSGDm": "brown D -",
    "FedProx": "green ^ -", "FedSplit": "green X :", "FedNova": "green D --", "FedExP": "green P -.",
    "FedAdagrad": "brown s --", "FedAdam": "brown ^ -", "FedYogi": "brown v -.",
    "SCAFFOLD": "red s -", "FedPVR": "red D --", "FedGamma": "red P -.", "ProxSkip": "violet D :",
    "FedUp": "pink D -", "DFedGAM": "pink P --",
    "FedDyn": "amber v -", "FedDC": "violet X -", "FedSMOO": "amber P -.", "FedSpeed": "amber * :",
    "Mime": "sky P -", "MimeLite": "amber o --", "FedCM": "sky D :", "STEM": "olive X -.",
    "FedSAM": "violet ^ -", "DFedSAM": "violet v --", "MoFedSAM": "violet P -.",
    "MOON": "brown * -", "FedLC": "pink ^ -", "FedNTD": "brown o :",
    "FedBN": "sky s -", "FixBN": "sky * --", "FedALA": "sky X --", "FedPer": "olive ^ -", "FedRep": "olive v --",
    "Ditto": "red o --", "pFedMe": "pink s --", "FedBABU": "olive P :", "APFL": "violet s --",
    "Per-FedAvg": "green s -.", "HeteroFL": "green o -", "FjORD": "olive D -", "Federated Dropout": "sky v -",
    "FedRolex": "amber s -", "DepthFL": "brown P --", "FedDSE": "pink X -", "FedGSE": "violet * -",
}  # fmt: skip


USUAL = {
    "DPSGD": "D-PSGD", "FederatedDropout": "Federated Dropout", "ExactDiffusion": "Exact Diffusion",
    "QGDSGDm": "QG-DSGDm", "PerFedAvg": "Per-FedAvg",
}  # fmt: skip


def usual(method: str) -> str:
    """A method's usual name, given that of its class."""
    return USUAL.get(method, method)


LIVE = Path(__file__).parents[1] / "live"  # the styles and scripts of pages


@cache
def colours(dark: bool = False) -> dict[str, str]:
    """Name -> colour (`#rrggbb`) of light or dark pages, from the design tokens."""
    light, night = LIVE.joinpath("tokens.css").read_text("utf-8").split("html[data-theme", 1)
    return dict(re.findall(r"--fc-([a-z-]+): (#[0-9a-f]{6})", night if dark else light))


COLOURS = tuple(colours()[name] for name in NAMES)
METHODS = {
    name: Look(colours()[colour], marker, LINES[("-", "--", "-.", ":").index(line)])
    for name, (colour, marker, line) in ((name, text.split()) for name, text in _METHODS.items())
}
"""The usual name of a method -> its style."""


def method(label: str) -> str | None:
    """The method with whose name a label begins, as in "FedUp, alpha = 0.1" or "FedGSE, SPL"; else None."""
    return max((name for name in METHODS if re.match(rf"{re.escape(name)}(?![\w-])", label)), key=len, default=None)


def looks(labels: Sequence[str]) -> list[Look]:
    """A distinct style for each label of one figure.

    The first label of a method has the method's style; further labels of the same method keep its colour and take
    another marker and line.  Labels without a method take colours that no method of the figure has, while any remain.
    """
    named = [method(label) for label in labels]
    taken = {METHODS[name] for name in named if name}
    free = [c for c in COLOURS if c not in {look.colour for look in taken}] or list(COLOURS)
    out, others = [], 0
    for k, name in enumerate(named):
        if name and name not in named[:k]:
            out.append(METHODS[name])
            continue
        if name:
            first = METHODS[name]
        else:
            turn = others + others // len(free)  # a repeated colour has another marker and line
            first = Look(free[others % len(free)], MARKERS[turn % 8], LINES[turn % 8])
            others += 1
        at, dash = MARKERS.index(first.marker), LINES.index(first.line)
        tries = [Look(first.colour, MARKERS[(at + k) % 8], LINES[(dash + k + k // 8) % 8]) for k in range(64)]
        out.append(next((look for look in tries if look not in taken), first))
        taken.add(out[-1])
    return out


def dark(colour: str) -> str:
    """The colour on dark pages for a colour of light pages (`#rrggbb`): its pair in tokens.css, or else the same hue
    with inverted lightness, so that white becomes the page's background and a scale keeps its order."""
    for name, value in colours().items():
        if value == colour:
            return colours(dark=True)[name]
    lightness, a, b = _oklab(colour)
    return _hex(0.93 - 0.725 * lightness, 0.92 * a, 0.92 * b)


def _linear(colour: str) -> list[float]:
    values = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


# Oklab (Ottosson 2020): linear sRGB -> cone responses -> lightness and two colour axes.
_CONES = np.array([(0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
                   (0.0883024619, 0.2817188376, 0.6299787005)])  # fmt: skip
_AXES = np.array([(0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
                  (0.0259040371, 0.7827717662, -0.8086757660)])  # fmt: skip


def _oklab(colour: str) -> np.ndarray:
    return _AXES @ np.cbrt(_CONES @ _linear(colour))


def _hex(lightness: float, a: float, b: float) -> str:
    rgb = np.linalg.solve(_CONES, np.linalg.solve(_AXES, (lightness, a, b)) ** 3)
    shown = [12.92 * v if v <= 0.0031308 else 1.055 * max(v, 0.0) ** (1 / 2.4) - 0.055 for v in rgb]
    return "#" + "".join(f"{round(255 * min(max(v, 0.0), 1.0)):02x}" for v in shown)
