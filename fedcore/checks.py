"""Argument checks that name the value, the allowed range and the remedy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import Any


def number(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    """A finite number in [low, high] (or (low, high] with `open_low`); raises TypeError or ValueError."""
    allowed = f"{name} {'>' if open_low else '>='} {low:g}" + ("" if high == math.inf else f" and <= {high:g}")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is not a number; use a number with {allowed}")
    value = float(value)
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        raise ValueError(f"{name}={value:g} is out of range; use {allowed}")
    return value


def integer(name: str, value: int, low: int, high: int | None = None, *, hint: str = "") -> int:
    """An integer in [low, high]; raises TypeError or ValueError."""
    allowed = f"{name}>={low}" + ("" if high is None else f" and {name}<={high}") + (f" ({hint})" if hint else "")
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} is not an integer; use {allowed}")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name}={value} is out of range; use {allowed}")
    return int(value)


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """One of the allowed words; raises ValueError."""
    allowed = list(allowed)
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not known; use one of {', '.join(map(repr, allowed))}")
    return value


def boolean(name: str, value: bool) -> bool:
    """True or False; raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is neither True nor False; use one of them")
    return bool(value)


def shape(name: str, value: Any, wanted: tuple[int, ...], hint: str) -> None:
    """An array or tensor of one shape; raises TypeError or ValueError.  hint: what has this shape."""
    if not hasattr(value, "shape"):
        raise TypeError(f"{name}={type(value).__name__} is no tensor; use {hint}")
    if tuple(value.shape) != wanted:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, needed is {wanted}; use {hint}")
