"""Functions of the user's that a run calls, where they remember: each run has its own.

A stopping rule that counts is an object or a function with memory.  Shared by several runs it would end one of them by
what it saw of another, and in other processes otherwise than in one.  So each run of a sweep has a copy of its own,
taken before the first run, and what a copy cannot keep apart is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
from torch import Tensor, nn

from .. import rng
from ..support import checks
from .identity import GENERATORS, around, digest, is_own, stored_globals

STATES = int | float | str | np.ndarray | Tensor | nn.Module | None | GENERATORS | Iterator
PYTHONS = "Python's own generator"
CURE = "let a function without arguments make one for each run, such as on_evaluate=lambda: Stop(2)"


def made(name: str, listener: Callable[..., Any], wanted: str, answer: str) -> Callable[..., Any]:
    """The function itself, which takes the two arguments `wanted`; of a function that takes none, what it makes.

    Raises TypeError where that is no function of two arguments.
    """
    if _takes(listener, 2) or not _takes(listener, 0):
        checks.takes(name, listener, wanted, answer)
        return listener
    found = listener()
    if not callable(found) or not _takes(found, 2):
        raise TypeError(f"{named(listener)} made {checks.brief(found)}; let it make a function of two arguments")
    return found


def _takes(f: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(f).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return count == 2
    return True


def of_one_run(settings: Mapping[str, Any], keep: Sequence[Any] = ()) -> dict[str, Any]:
    """The arguments of a run as copies of its own, which remember together what they remembered together.

    keep: what is no part of them.  A copy of a function is the function itself: where it writes to what it refers to,
    it raises RuntimeError.  Raises TypeError for an argument that cannot be copied.
    """
    memo: dict[int, Any] = {id(one): one for one in keep}
    own = {}
    for name, value in settings.items():
        try:
            own[name] = copy.deepcopy(value, memo)
        except Exception as e:  # whatever a class of the user's raises
            raise TypeError(
                f"{name}={checks.brief(value)} cannot be copied for each run ({type(e).__name__}: {e}); {CURE}"
            ) from e
    for name in ("lr", "cohort", "local_steps", "local_epochs", "on_evaluate"):
        if callable(own.get(name)):
            own[name] = _watched(name, own[name], settings[name])
    if isinstance(own.get("probes"), list | tuple):
        pairs = zip(own["probes"], settings["probes"], strict=True)
        own["probes"] = [_watched("probes", probe, given) if callable(probe) else probe for probe, given in pairs]
    return own


def _watched(argument: str, f: Callable[..., Any], given: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises RuntimeError once it has written to what stands around it, or to itself where its
    copy is what was given."""
    outside = _outside(f)
    if f is given and is_own(type(f)):
        outside["itself"] = lambda: f
    first = 0 if outside.pop(PYTHONS, None) else 1  # other threads may draw from Python's generator, as Dask's do
    before = {name: digest(read()) for name, read in outside.items()}

    @functools.wraps(f)
    def watched(*given: Any) -> Any:
        states = rng.global_states()[first:]
        answer = f(*given)
        changed = [repr(name) for name, read in outside.items() if digest(read()) != before[name]]
        if rng.global_states()[first:] != states:
            changed.append("torch's, NumPy's or Python's global generator")
        if changed:
            raise RuntimeError(
                f"{argument}: {named(f)} wrote to or drew from {changed[0]}, which all runs would share in one process "
                f"and none with another; {CURE}, read the history, or draw from np.random.default_rng([seed, t])"
            )
        return answer

    return watched


def _outside(f: Any) -> dict[str, Callable[[], Any]]:
    """What a function could write to and a copy of it would share, by name: how it is read.

    Of a closure, globals, defaults, attributes of functions and of classes, all that functions of the user's reach.
    Objects of libraries, such as a logger, are not looked into.
    """
    found: dict[str, Callable[[], Any]] = {}
    seen: set[int] = set()
    todo: list[tuple[str, Callable[[], Any]]] = [("", lambda: f)]  # without a name: what is copied
    while todo:
        name, read = todo.pop()
        value = read()
        if value is random:
            found[PYTHONS] = read
        if id(value) in seen or isinstance(value, ModuleType):
            continue
        seen.add(id(value))
        if isinstance(value, functools.partial):
            todo += [("", lambda v=value: v.func), (name or "arguments", lambda v=value: [*v.args, v.keywords])]
        elif isinstance(value, MethodType):
            todo += [("", lambda v=value: v.__func__), (name, lambda v=value: v.__self__)]
        elif isinstance(value, FunctionType):
            todo += [(k, _reader(value, k, v)) for k, v in around(value).items()]
            if is_own(value):
                found |= {k: lambda v=value, k=k: v.__globals__.get(k) for k in stored_globals(value)}
                found[f"attributes of {named(value)}"] = lambda v=value: _attributes(v)
                defaults = [*(value.__defaults__ or ()), value.__kwdefaults__]
                todo += [("its defaults", lambda d=default: d) for default in defaults]
        elif isinstance(value, BuiltinFunctionType) or type(value).__name__ == "method-wrapper":
            todo.append((f"{named(value)} of what it belongs to", lambda v=value: getattr(v, "__self__", None)))
        elif isinstance(value, type):
            if is_own(value):
                found[named(value)] = lambda v=value: _attributes(v)
                todo += [("", lambda v=v: v) for v in (*vars(value).values(), *value.__bases__)]
        else:
            own = is_own(type(value))
            if own:
                todo.append(("", lambda v=value: type(v)))
            if not name:  # what is copied may hold functions, which are not
                parts = vars(value) if own and hasattr(value, "__dict__") else value
                parts = parts.values() if isinstance(parts, dict) else parts
                todo += [("", lambda v=v: v) for v in parts] if isinstance(parts, Iterable) and _is_plain(parts) else []
            elif own or _is_plain(value) or (isinstance(value, STATES) and not isinstance(value, io.IOBase)):
                found[name] = read
            todo.append(("", lambda v=value: getattr(v, "__wrapped__", None)))  # of a cache
    return found


def _is_plain(value: Any) -> bool:
    """Whether this is one of Python's own containers."""
    kinds = list | tuple | dict | set | bytearray | type({}.values())
    return isinstance(value, kinds) or type(value).__module__ == "collections"


def _attributes(value: Any) -> dict[str, Any]:
    """What somebody has set on a function or a class, beside its functions."""
    code = FunctionType | staticmethod | classmethod | property | GetSetDescriptorType | MemberDescriptorType
    return {k: v for k, v in vars(value).items() if not k.startswith("__") and not isinstance(v, code)}


def _reader(f: FunctionType, name: str, value: Any) -> Callable[[], Any]:
    """How a function's name of `around` is read, as it is then."""
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    module, _, attribute = name.partition(".")
    if name in cells:
        return lambda: cells[name].cell_contents if cells[name] != CellType() else None
    if name in f.__globals__:
        return lambda: f.__globals__.get(name)
    there = f.__globals__.get(module)
    return (lambda: getattr(there, attribute, None)) if isinstance(there, ModuleType) else lambda: value


def key(value: Any) -> str:
    """What tells a function that a run calls from others: what it computes, and what it reads around it."""
    return digest(value, {name: read() for name, read in _outside(value).items()}, containers=False)


def named(f: Any) -> str:
    """A function's name, or an object's repr."""
    return getattr(f, "__qualname__", None) or checks.brief(f)
