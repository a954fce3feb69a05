"""Checks of arguments that name the value, the allowed range and the remedy.

The annotation of a dataclass's field or a function's parameter has the range, as in `alpha: NonNegative = 0.05`.
`fields` and `arguments` check it, and that a value annotated `bool` is True or False.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

MOST = 10**9  # the largest count of anything
OTHERWISE = {  # names in other packages for arguments here
    "alpha": "q", "concentration": "q", "topology": "mixing", "graph": "mixing", "dataset": "source", "data": "source",
    "num_clients": "clients", "n_clients": "clients", "learning_rate": "lr", "epochs": "local_epochs",
    "num_rounds": "rounds", "random_state": "seed", "transform": "augment", "criterion": "loss",
}  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def number(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    """A finite number in [low, high] (or (low, high] with `open_low`); raises TypeError or ValueError."""
    allowed = f"{name} {'>' if open_low else '>='} {low:g}" + ("" if high == math.inf else f" and <= {high:g}")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={brief(value)} is not a number; use a number with {allowed}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        raise ValueError(f"{name}={value:g} is out of range; use {allowed}")
    return value


def integer(name: str, value: int, low: int, high: int | None = None, *, hint: str = "") -> int:
    """An integer in [low, high], at most 2^63 - 1; raises TypeError or ValueError."""
    allowed = f"{name}>={low}" + ("" if high is None else f" and {name}<={high}") + (f" ({hint})" if hint else "")
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={brief(value)} is not an integer; use {allowed}")
    if high is None and value >= 2**63:
        high, allowed = 2**63 - 1, f"{name}<=2**63 - 1"
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name}={brief(value)} is out of range; use {allowed}")
    return int(value)


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """One of the allowed words; raises ValueError."""
    allowed = list(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={brief(value)} is not known; use one of {', '.join(map(repr, allowed))}")
    return value


def shape(name: str, value: Any, wanted: tuple[int, ...], hint: str) -> None:
    """An array or tensor of one shape; raises TypeError or ValueError.  hint: what has this shape."""
    if not isinstance(getattr(value, "shape", None), tuple):  # a class has another
        raise TypeError(f"{name}={type(value).__name__} is no tensor; use {hint}")
    if tuple(value.shape) != wanted:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, needed is {wanted}; use {hint}")


def takes(name: str, f: Callable[..., Any], wanted: str, answer: str) -> None:
    """Raise TypeError unless f takes the arguments `wanted`, named as in a call; answer: what f is to return."""
    try:
        inspect.signature(f).bind(*wanted.split(", "))
    except TypeError as e:
        raise TypeError(
            f"{name}={brief(f)} takes other arguments ({e}); use a function ({wanted}) -> {answer}"
        ) from None
    except ValueError:  # a function of another language has no signature
        pass


def nearest(key: Any, known: Collection[str]) -> str:
    """The remedy in the error for an unknown key: the most similar known key, or all of them."""
    near = [OTHERWISE[key]] if OTHERWISE.get(key) in known else difflib.get_close_matches(str(key), list(known), 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"


def told(value: Any) -> str:
    """The repr, or the type if the repr raises: a message or a picture must not fail because of it."""
    try:
        return repr(value)
    except Exception:
        return f"<a {type(value).__name__}>"


def as_call(self: Any) -> str:
    """The repr of a value: the call that makes it again, without arguments that equal their default: `Dirichlet(0.1)`.

    For a dataclass, arguments without a default are positional, others are named.  Arrays are shown as type and shape.
    """
    if not is_dataclass(self):
        return f"{type(self).__name__}({', '.join(f'{k}={form(v)}' for k, v in vars(self).items() if k[0] != '_')})"
    given = []
    for f in (f for f in dataclass_fields(self) if f.init and f.repr):
        value, required = getattr(self, f.name), f.default is MISSING and f.default_factory is MISSING
        if required or not _equal(value, f.default if f.default_factory is MISSING else f.default_factory()):
            given.append(f"{'' if required and not f.kw_only else f'{f.name}='}{form(value)}")
    return f"{type(self).__name__}({', '.join(given)})"


def form(value: Any) -> str:
    """The repr, or for an array or a tensor its type and shape."""
    if isinstance(value, np.ndarray | Tensor):
        return f"<{str(value.dtype).removeprefix('torch.')} {list(value.shape)}>"
    return told(value)


def _equal(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except Exception:  # arrays, and whatever a class of the user's compares
        return False


def brief(value: Any) -> str:
    """The repr on one line; the middle of a long repr is left out."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"{'-' if value < 0 else ''}1e{int(math.log10(abs(value)))}"
    text = re.sub(r"\s*\n\s*", " ", told(value))
    return text if len(text) <= 200 else f"{text[:120]}...{text[-60:]}"


def warn(message: str) -> None:
    """A UserWarning that points at the line of the caller's own code, however deep in the package it arises."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("fedcore", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


# --- ranges in annotations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Within:
    """Numbers from low to high; open_low: low itself is excluded.  hint: added to the error for a whole number."""

    low: float
    high: float | None = None
    open_low: bool = False
    hint: str = ""

    def check(self, name: str, value: Any, kind: type) -> Any:
        if kind is int:
            return integer(name, value, int(self.low), None if self.high is None else int(self.high), hint=self.hint)
        return number(name, value, self.low, math.inf if self.high is None else self.high, open_low=self.open_low)


@dataclass(frozen=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def check(self, name: str, value: Any, kind: type) -> Any:
        return choice(name, value, self.words)


@dataclass(frozen=True)
class Kind:
    """Values that pass a test; wanted: what they are, in words."""

    test: Callable[[Any], bool]
    wanted: str

    def check(self, name: str, value: Any, kind: type) -> Any:
        if not self.test(value):
            kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
            fits = any(type(k) is type and isinstance(value, k) for k in kinds)
            wrong = ValueError if fits else TypeError
            raise wrong(f"{name}={brief(value)}; use {self.wanted}")
        return value


TRUTH = Kind(lambda value: isinstance(value, bool), "True or False")
Positive = Annotated[float, Within(0, open_low=True)]
NonNegative = Annotated[float, Within(0)]
Fraction = Annotated[float, Within(0, 1)]
PositiveFraction = Annotated[float, Within(0, 1, open_low=True)]
BelowOne = Annotated[float, Within(0, 0.999999)]
Count = Annotated[int, Within(1, MOST)]
CountFromZero = Annotated[int, Within(0, MOST)]
Seed = Annotated[int, Within(0)]
Points = Annotated[int, Within(2, 10_000)]
Function = Annotated[Callable[..., Any], Kind(callable, "a function")]
Text = Annotated[str, Kind(lambda value: isinstance(value, str), "a text")]
Folder = Annotated[
    str | os.PathLike,
    Kind(
        lambda value: isinstance(value, str | os.PathLike) and str(value) and "\0" not in str(value),
        "the path of a folder",
    ),
]
Vector = Annotated[Tensor, Kind(lambda value: isinstance(value, Tensor) and value.ndim == 1, "a vector [d], a tensor")]
FloatType = Annotated[
    torch.dtype,
    Kind(lambda value: value is torch.float32 or value is torch.float64, "torch.float32 or torch.float64"),
]
Device = Annotated[
    str | torch.device, Kind(lambda value: isinstance(value, str | torch.device), "'cpu', 'cuda' or 'cuda:1'")
]
Mapped = Annotated[Mapping, Kind(lambda value: isinstance(value, Mapping), "a mapping")]


class Named:
    """A base class of values: the error for an unknown keyword names the most similar one, and the repr is the call
    that makes the value again (`as_call`)."""

    __repr__ = as_call

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.__repr__ is Named.__repr__:
            cls.__repr__ = Named.__repr__  # else `dataclass` writes a repr with all defaults

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments; use {cls.__name__}(), or give it fields or __init__")
        takes = inspect.signature(cls.__init__).parameters if kwargs else {}
        if kwargs and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            known(cls.__name__, kwargs, [name for name in takes if name != "self"])
        return super().__new__(cls)


def known(function: str, given: Iterable[str], names: Collection[str]) -> None:
    """Raise TypeError if a function is given an argument that is none of its names."""
    for name in given:
        if name not in names:
            raise TypeError(f"{function}() takes no {name!r}; {nearest(name, names)}")


def is_ours(kind: Any) -> bool:
    """Whether a class or function is defined in this project's packages, and not by a user."""
    return kind.__module__.startswith(("fedcore.", "fedbook."))


def fields(instance: Any) -> None:
    """Check the fields of a dataclass by their annotations, and replace NumPy's numbers by Python's; raises TypeError
    or ValueError."""
    for name, allowed in ranges(type(instance)).items():
        value = getattr(instance, name)
        allowed.check(name, value)
        if isinstance(value, np.generic):
            object.__setattr__(instance, name, value.item())


def arguments(function: F) -> F:
    """A decorator: check arguments by their annotations, and convert whole numbers and numbers to int and float."""
    signature = inspect.signature(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not takes_any:
            known(function.__name__, kwargs, signature.parameters)
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as e:
            raise TypeError(f"{function.__name__}(): {e}") from None
        for name, allowed in ranges(function).items():
            if name in given.arguments:
                given.arguments[name] = allowed.check(name, given.arguments[name])
        return function(*given.args, **given.kwargs)

    return checked  # type: ignore[return-value]


@dataclass(frozen=True)
class Allowed:
    """What an annotation allows: a range (`by`) of values of type `kind`, and whether None."""

    by: Within | OneOf | Kind
    kind: type
    none: bool

    def check(self, name: str, value: Any) -> Any:
        """The value; raises TypeError or ValueError."""
        return None if self.none and value is None else self.by.check(name, value, self.kind)


@functools.cache
def ranges(thing: Any) -> dict[str, Allowed]:
    """The allowed values of the fields of a class or the parameters of a function whose annotations have a range."""
    found = {}
    for part in reversed(thing.__mro__) if isinstance(thing, type) else [thing]:
        there = vars(sys.modules[part.__module__])
        for name, hint in inspect.get_annotations(part).items():
            try:
                hint = eval(hint, there) if isinstance(hint, str) else hint
            except Exception:  # a type that is imported for annotations alone has no range
                continue
            found[name] = _allowed(hint, is_ours(part))
    return {name: allowed for name, allowed in found.items() if allowed is not None and name != "return"}


def _allowed(hint: Any, ours: bool) -> Allowed | None:
    """The range of an annotation, or None; `bool` alone counts as a range in this package, but not in user code."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    marked = [get_args(kind) for kind in kinds if get_origin(kind) is Annotated]
    found = [(by, kind) for kind, by in marked if isinstance(by, Within | OneOf | Kind)]
    if not found and ours and set(kinds) <= {bool, type(None)} and bool in kinds:
        found = [(TRUTH, bool)]
    if len(found) != 1:
        return None
    (by, kind), none = found[0], type(None) in kinds
    return Allowed(replace(by, wanted=f"{by.wanted}, or None") if none and isinstance(by, Kind) else by, kind, none)
