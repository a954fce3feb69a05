"""Annotated shapes of the engine and of the methods are those of every call: jaxtyping checks them in runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing

import beartype
import jaxtyping
import pytest
import torch
from battery import METHODS, both_federations, make, run
from networks import NARROWED, batch, rows, thin
from torch import Tensor, nn

import fedcore as fc
import fedcore.engine
from fedcore import models
from fedcore.algorithms import Gradient, Method, Round
from fedcore.engine import Engine, Loss
from fedcore.engine.units import Neurons

MODULES = [
    importlib.import_module(f"fedcore.engine.{found.name}") for found in pkgutil.iter_modules(fedcore.engine.__path__)
]


def shaped(hint):
    """An annotation with `Annotated[Tensor, "m d"]` as jaxtyping writes it."""
    if typing.get_origin(hint) is typing.Annotated:
        kind, shape = typing.get_args(hint)
        return jaxtyping.Shaped[kind, shape] if kind is Tensor else hint
    arguments = typing.get_args(hint)
    if not arguments or typing.get_origin(hint) is typing.Literal:
        return hint
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.Union[tuple(shaped(a) for a in arguments)]  # noqa: UP007
    if typing.get_origin(hint) in (tuple, list):
        return typing.get_origin(hint)[tuple(a if a is Ellipsis else shaped(a) for a in arguments)]
    if typing.get_origin(hint) is dict:
        return dict[arguments[0], shaped(arguments[1])]
    return hint  # functions and other mappings: as they are


def hints(function) -> dict[str, typing.Any]:
    alone = (
        "Streams",
        "Sink",
        "Federation",
        "Plan",
        "Neurons",
        "Layout",
        "Objective",
    )  # imported for annotations alone
    local = dict.fromkeys(alone, typing.Any)
    return typing.get_type_hints(function, localns=local, include_extras=True)


def functions() -> list[tuple[object, str, types.FunctionType]]:
    """All functions and methods of the engine: whose, name, function."""
    owners = [(m, vars(m)) for m in MODULES]
    classes = (c for m in MODULES for c in vars(m).values() if inspect.isclass(c) and c.__module__ == m.__name__)
    owners += [(c, vars(c)) for c in classes]
    return [
        (owner, name, f)
        for owner, members in owners
        for name, f in members.items()
        if inspect.isfunction(f) and f.__module__.startswith("fedcore.engine") and not name.startswith("__")
        and not hasattr(f, "__wrapped__")
    ]  # fmt: skip


def checking(f: types.FunctionType, annotated: types.FunctionType) -> types.FunctionType:
    """f with the annotations of another function of the same arguments, checked at every call."""
    copy = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    of = {k: shaped(v) for k, v in hints(annotated).items()}
    copy.__kwdefaults__, copy.__annotations__ = f.__kwdefaults__, {k: v for k, v in of.items() if v is not Gradient}
    copy.__qualname__ = f.__qualname__
    return jaxtyping.jaxtyped(copy, typechecker=beartype.beartype)


@pytest.fixture
def checked(monkeypatch):
    """The engine with a check of every annotation at every call."""
    for owner, name, f in functions():
        monkeypatch.setattr(owner, name, checking(f, f))


def test_all_functions_of_the_engine_are_annotated():
    for owner, name, f in functions():
        missing = set(inspect.signature(f).parameters) - {"self"} - set(hints(f))
        assert not missing, f"{owner}.{name}: {missing}"
        assert "return" in hints(f), f"{owner}.{name}"


KINDS = {
    **NARROWED, "resnet18_gn": lambda s, c: thin("resnet18_gn", s, c), "mlp": models.mlp,
    "group norm on vectors": lambda s, c: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.GroupNorm(2, 8), nn.Linear(8, c)
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", ["auto", "batched", "sequential"])
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_what_the_annotations_say(kind, path, checked):
    shape = (3, 16, 16) if kind == "resnet18_gn" else (1, 8, 8)
    module = KINDS[kind](shape, 5).double()
    engine, Y, b = Engine(module, path), rows(module, 2), batch(2, 5, shape, 5)
    for loss in (Loss(), Loss(rate=[1.0, 0.5])):
        G, losses = engine.gradient(Y, b, loss)
        assert (G.shape, losses.shape) == (Y.shape, (2,))
    engine.gradient(Y, b, along=torch.ones_like(Y))
    engine.logits(Y, b)
    if isinstance(module, models.Projected):
        engine.gradient(Y, b, Loss(penalty=lambda z, other: (z - other).square().sum(-1), references=(Y,)))
    if "norm" not in kind and kind != "resnet18_gn":
        neurons = Neurons.of(module)
        neurons.places(neurons.prefix(0.5))
        engine.observe(Y, b, neurons.sites)


def test_a_wrong_shape_is_seen(checked):
    module = models.mlp((1, 8, 8), 5)
    Y, b = rows(module, 2, torch.float32), batch(2, 3, (1, 8, 8), 5, torch.float32)
    with pytest.raises(jaxtyping.TypeCheckError):
        Engine(module, "batched").gradient(Y, b, along=Y[:1])


# --- methods: what `Method` says of its verbs holds for those of every class ------------------------------------------

VERBS = ("start", "client_start", "broadcast", "direction", "aggregate")


@both_federations
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_verbs_take_and_return_the_shapes_that_method_names(method, kind, monkeypatch):
    for owner in {c for c in type(method).__mro__ if issubclass(c, Method)}:
        for name in set(VERBS) & set(vars(owner)):
            monkeypatch.setattr(owner, name, checking(vars(owner)[name], getattr(Method, name)))
    for name in ("mean", "sum", "full_gradient"):
        monkeypatch.setattr(Round, name, checking(getattr(Round, name), getattr(Round, name)))
    fed = make(kind)
    h = run(method, fed, rounds=2)
    for name, value in h.state.items():
        n = 1 if isinstance(method, fc.Central) else fed.n
        assert value.shape == ((n, fed.d) if name in method.client_state else (fed.d,)), name


class Flattened(fc.FedAvg):
    def direction(self, G, y, r):
        return G(y).mean(0)


class OneRowMore(fc.FedAvg):
    def broadcast(self, r):
        return r.x.expand(1, r.m, -1)


class AMatrixForAVector(fc.FedAvg):
    def aggregate(self, r, y):
        return {"x": (y - r.x)[None]}


@pytest.mark.parametrize("kind", [Flattened, OneRowMore, AMatrixForAVector])
def test_a_verb_of_another_shape_is_seen(kind, monkeypatch):
    (verb,) = set(VERBS) & set(vars(kind))
    monkeypatch.setattr(kind, verb, checking(vars(kind)[verb], getattr(Method, verb)))
    with pytest.raises(jaxtyping.TypeCheckError):
        run(kind(), make("network"))
