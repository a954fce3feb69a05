"""What `Method` says of the shapes of its verbs holds for those of every class: jaxtyping checks them in runs."""

from __future__ import annotations

import types
import typing

import beartype
import jaxtyping
import pytest
from battery import METHODS, make, run
from torch import Tensor

from fedcore.algorithms import Gradient, Method, Round


def shaped(hint):
    """An annotation with `Annotated[Tensor, "m d"]` as jaxtyping writes it; functions as they are."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return jaxtyping.Shaped[arguments] if arguments[0] is Tensor else hint
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.Union[tuple(shaped(a) for a in arguments)]  # noqa: UP007
    return dict[str, shaped(arguments[1])] if typing.get_origin(hint) is dict else hint


def hints(function) -> dict[str, typing.Any]:
    local = dict.fromkeys(("Federation", "Plan", "Layout", "Objective"), typing.Any)  # imported for annotations alone
    return typing.get_type_hints(function, localns=local, include_extras=True)


def checking(f: types.FunctionType, annotated: types.FunctionType) -> types.FunctionType:
    """f with the annotations of another function of the same arguments, checked at every call."""
    copy = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    of = {k: shaped(v) for k, v in hints(annotated).items()}
    copy.__kwdefaults__, copy.__annotations__ = f.__kwdefaults__, {k: v for k, v in of.items() if v is not Gradient}
    copy.__qualname__ = f.__qualname__
    return jaxtyping.jaxtyped(copy, typechecker=beartype.beartype)


VERBS = ("start", "client_start", "broadcast", "direction", "aggregate")


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_verbs_take_and_return_the_shapes_that_method_names(method, monkeypatch):
    for owner in {c for c in type(method).__mro__ if issubclass(c, Method)}:
        for name in set(VERBS) & set(vars(owner)):
            monkeypatch.setattr(owner, name, checking(vars(owner)[name], getattr(Method, name)))
    for name in ("mean", "sum", "full_gradient"):
        monkeypatch.setattr(Round, name, checking(getattr(Round, name), getattr(Round, name)))
    run(method, make("network"), rounds=2)
