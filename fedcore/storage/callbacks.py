"""The user's functions that a run calls: each run has its own copy, because the functions may have memory.

For example, a stopping rule counts evaluations.  If several runs shared it, it would end one run because of another,
and the result would depend on the number of processes.  Therefore each run of a sweep gets a copy, which is made before
the first run, and a function whose memory cannot be copied is refused.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType
from typing import Any

from torch import nn

from .. import rng
from ..support import checks
from .identity import GENERATORS, Describer, digest, is_own, state

CURE = "let a function without arguments make one for each run, such as on_evaluate=lambda: Stop(2)"


def made(name: str, listener: Callable[..., Any], wanted: str, answer: str) -> Callable[..., Any]:
    """The function `listener` if it takes the two arguments `wanted`, or the function that it makes if it takes none.

    Raises TypeError if the result is not a function of two arguments.
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
    """Copies of the arguments of a run; an object that two arguments share is shared by their copies too.

    keep: objects that are not copied.  Python copies no plain function, so that one which writes to an object outside
    of itself raises RuntimeError when it is called.  Raises TypeError for an argument that cannot be copied.
    """
    memo: dict[int, Any] = {id(one): one for one in keep}
    own = {}
    for name, value in settings.items():
        try:
            own[name] = copy.deepcopy(value, memo)
        except Exception as e:  # a class of the user may raise any error
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
    """The function `f`, a copy of `given`, that raises RuntimeError once it has written to an object that both share.

    `given` is never called.  Therefore an object that it reaches changes only if `f` writes to it.
    """
    seen = _Reached()
    before = seen.text(given)
    first = 0 if id(random) in seen.known else 1  # other threads may draw from Python's generator, as Dask's do

    @functools.wraps(f)
    def watched(*arguments: Any) -> Any:
        states = rng.global_states()[first:]
        answer = f(*arguments)
        if rng.global_states()[first:] != states or key(given) != before:
            raise RuntimeError(
                f"{argument}: {named(given)} wrote to an object or drew from a generator that the runs of one process "
                f"share, so results would depend on `workers`; {CURE}, or draw from np.random.default_rng([seed, t])"
            )
        return answer

    return watched


class _Reached(Describer):
    """Describes also the objects of built-in methods, and objects of libraries (loggers) by their names."""

    def parts(self, value: Any) -> Iterable[Any]:
        if isinstance(value, BuiltinFunctionType | MethodWrapperType):
            return (value.__self__,)
        code = functools.partial | MethodType | FunctionType | CodeType | type | staticmethod | classmethod | property
        if isinstance(value, code | nn.Module | GENERATORS | Iterator) or is_own(type(value)):
            return super().parts(value)
        return (getattr(value, "__wrapped__", None),)  # the function in a cache


def key(value: Any) -> str:
    """A text that differs between functions that compute different results or read different variables."""
    return _Reached().text(value)


def generators(f: Callable[..., Any]) -> str:
    """A hash of the states of the generators of random numbers and of the iterators that a function reaches."""
    seen = _Reached()
    seen.text(f)
    return digest([state(one) for one in seen.alive if isinstance(one, GENERATORS | Iterator)])


def named(f: Any) -> str:
    """A function's name, or an object's repr."""
    return getattr(f, "__qualname__", None) or checks.brief(f)
