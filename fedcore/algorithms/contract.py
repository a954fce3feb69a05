"""Calls of a method's hooks, with checks of the values that they return and of the tensors that they write to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .. import rng
from ..storage.identity import digest, is_own
from ..support import checks
from .method import AGGREGATE, BROADCAST, Method, Round, Work, is_taken

if TYPE_CHECKING:  # types only, as in `method`
    from ..objective.base import Objective

MEMORY = "return r.extended(memory={...})"
UNSAVED = "which is neither saved in checkpoints nor sent to other processes"
DECLARE = f"declare it as a state in start or client_state, or as memory of the round in prepare: {MEMORY}"
ROW_NOISE = "for row i of a gradient use np.random.default_rng((int(plan.keys[i]), k))"


def client_state(method: Method) -> tuple[str, ...]:
    """The names of the clients' states; TypeError or ValueError where they are not distinct names."""
    names, what = method.client_state, f"{type(method).__name__}.client_state"
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise TypeError(f'{what}={checks.brief(names)}; use a tuple of names, such as ("h_i",)')
    if len(set(names)) < len(names):
        raise ValueError(f"{what}={names!r} has a name twice; use each name once")
    return tuple(names)


def start(method: Method, x: Tensor) -> dict[str, Tensor]:
    """The server's vectors before round 0, `x` among them."""
    with _unwritten(method, "start", {"x": x}):
        state = method.start(x)
    state, clients = _named(method, "start", state, model=True), client_state(method)
    for name, value in state.items():
        state[name] = _tensor(method, f"start: {name!r}", value, (tuple(x.shape),), x)
    for name in (*state, *clients):
        if is_taken(name):
            raise ValueError(f"{type(method).__name__} has a state {name!r}, a name of the round; use another name")
        if name in clients and name in state:
            raise ValueError(
                f"{type(method).__name__} has a state {name!r} at the server and at the clients; use two names"
            )
    return {name: value.clone() for name, value in state.items()}


def client_start(method: Method, x: Tensor) -> dict[str, Tensor]:
    """The vectors `[d]` from which the clients' states start, by name."""
    with _unwritten(method, "client_start", {"x": x}):
        rows = method.client_start(x)
    rows = _named(method, "client_start", rows, method.client_state)
    for name, value in rows.items():
        rows[name] = _tensor(method, f"client_start: {name!r}", value, (tuple(x.shape),), x)
    return rows


def local_work(method: Method, given: Work, m: int) -> Work:
    """The local work of a round with m clients."""
    work = method.local_work(given)
    if not isinstance(work, Work):
        raise _gave(method, "local_work", work, "the work itself, or dataclasses.replace(work, steps=1)")
    if work is not given:
        at = f"{type(method).__name__}.local_work: "
        checks.number(f"{at}lr", work.lr, 0, open_low=True)
        checks.number(f"{at}momentum", work.momentum, 0, 0.999999)
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(work, name)
            if isinstance(value, np.ndarray) and name != "batch_size":  # one for each client
                checks.shape(f"{at}{name}", value, (m,), f"one whole number, or one for each of {m} clients")
                value = value.min()
            if name == "epochs" or value is not None:
                checks.integer(f"{at}{name}", value, 1)
    return work


def prepare(method: Method, r: Round) -> Round:
    """The round after `prepare`."""
    with _unchanged(method, "prepare", r):
        found = method.prepare(r)
    if not isinstance(found, Round):
        raise _gave(method, "prepare", found, "the round, r or r.extended(...)")
    return found


def broadcast(method: Method, r: Round) -> Tensor:
    """The parameters from which the clients start, `[d]` or `[m, d]`."""
    with _unchanged(method, "broadcast", r):
        y = method.broadcast(r.in_hook(BROADCAST))
    d = len(r.x)
    return _tensor(method, "broadcast", y, ((d,), (r.m, d)), r.x)


def direction(method: Method, G: Any, y: Tensor, r: Round) -> Tensor:
    """The direction v `[m, d]` at the iterates y `[m, d]`; r: the round as this hook sees it."""
    with _unchanged(method, "direction", r, y):
        v = method.direction(G, y, r)
    return _tensor(method, "direction", v, (tuple(y.shape),), y)


def aggregate(method: Method, r: Round, y: Tensor, known: Collection[str]) -> dict[str, Tensor]:
    """The new state: server vectors `[d]` and client matrices `[m, d]`.  known: the names of all states."""
    with _unchanged(method, "aggregate", r, y):
        new = method.aggregate(r.in_hook(AGGREGATE), y)
    new = _named(method, "aggregate", new, known, model=True)
    for name, value in new.items():
        shape = tuple(y.shape) if name in method.client_state else (y.shape[1],)
        new[name] = _tensor(method, f"aggregate: {name!r}", value, (shape,), r.x, at=None)
    return new


def personal(method: Method, state: Mapping[str, Tensor], layout: Any, shape: tuple[int, int]) -> Tensor | None:
    """The clients' models `[n, d]`, or None where every client uses the server's model."""
    with _unwritten(method, "personal", state):
        X = method.personal(state, layout)
    return X if X is None else _tensor(method, "personal", X, (shape,), state["x"], at=None)


def on(method: Method, fed: Any, kind: type) -> Any:
    """The federation as the method needs it; TypeError where the method returns anything but a federation."""
    found = method.on(fed)
    if not isinstance(found, kind):
        raise _gave(method, "on", found, "a federation: fed itself, or one made from it")
    return found


def writes(tensors: Mapping[str, Any]) -> Callable[[], list[str]]:
    """A function that names those of the tensors that have been written to since now."""
    before = {k: (v, v._version) for k, v in tensors.items() if isinstance(v, Tensor)}
    return lambda: [k for k, (v, version) in before.items() if v._version != version]


def tensors_of(r: Round, y: Tensor | None) -> dict[str, Any]:
    """The tensors of the round that hooks and probes may read: its states and the iterates `y`."""
    return {**r.server, **(r.rows if isinstance(r.rows, dict) else {}), "y": y}  # rows of sub-models are copies


@contextlib.contextmanager
def _unchanged(method: Method, hook: str, r: Round, y: Tensor | None = None) -> Iterator[None]:
    """ValueError where a hook writes to the state, to the iterates `y`, or to the method itself; a UserWarning where it
    draws from a global random generator (`told_of_draws`).

    A direction may write to the round's memory.  Writes are seen by the tensors' version counters, which need no
    synchronisation with the device.
    """
    own = dict(getattr(method, "__dict__", {}))
    name = type(method).__name__
    with told_of_draws(method, hook, r), _unwritten(method, hook, tensors_of(r, y)):
        yield
    now = getattr(method, "__dict__", {})
    for k in {**own, **now}:
        if now.get(k) is not own.get(k) and not _is_cache(method, k):
            raise _undeclared(f"{name}.{hook} set self.{k}")


@contextlib.contextmanager
def told_of_draws(method: Method, hook: str | None, r: Round) -> Iterator[None]:
    """In the first local step of the first round of a run, a UserWarning where the block draws from a global random
    generator and the method, whose hook it is, or the objective is of a class of the user's."""
    remedies = {}  # by who may have drawn
    if hook and is_own(type(method)):
        remedies[f"{type(method).__name__}.{hook}"] = "use r.noise(like), or np.random.default_rng((r.seed, r.t))"
    if is_own(type(r.objective)):
        remedies[type(r.objective).__name__] = ROW_NOISE
    looks = r.t == 0 and r.step == 0 and remedies
    drawn = rng.global_states(r.x.device) if looks else None
    yield
    if looks and rng.global_states(r.x.device) != drawn:
        checks.warn(
            f"{' or '.join(remedies)} draws from a global generator, so a repeated or resumed run gets different "
            f"numbers; {'; '.join(remedies.values())}"
        )


@contextlib.contextmanager
def _unwritten(method: Method, hook: str, tensors: Mapping[str, Any]) -> Iterator[None]:
    """ValueError where a hook writes to one of these tensors."""
    wrote_to = writes(tensors)
    yield
    if wrote := wrote_to():
        what = f"{type(method).__name__}.{hook} wrote to {wrote[0]!r}, which is no memory of the round"
        remedy = f"compute a new tensor, such as r.x + v for r.x.add_(v), and leave {wrote[0]!r} as it is"
        if hook == "direction":
            remedy = f"return v and leave {wrote[0]!r} as it is, or declare a copy in prepare: {MEMORY}"
        raise ValueError(f"{what}; {remedy}")


def attributes(method: Method, fed: Objective) -> dict[tuple[str, str], str]:
    """Digests of the attributes of a user's method, loss and quadratics, which show what is written into a list, a
    tensor, a network or a generator that they hold; the package's hold none that they write to.

    The keys are what has happened where a digest changes, and the remedy.
    """
    loss = getattr(fed.engine.criterion, "function", None) if fed.layout else fed
    remedy = "compute a loss from logits and targets alone" if fed.layout else ROW_NOISE
    own = [(one, said) for one, said in ((method, DECLARE), (loss, remedy)) if is_own(type(one))]
    held = [(one, said, k, v) for one, said in own for k, v in vars(one).items() if not _is_cache(one, k)]
    return {(f"{type(one).__name__} changed self.{k}", said): _digest(v) for one, said, k, v in held}


def told_of_memory(method: Method, fed: Objective, before: Mapping[tuple[str, str], str]) -> bool:
    """Whether they have other attributes than those with the digests `before`; then a UserWarning says so.

    It may be a mere record, and is therefore not refused.
    """
    now = attributes(method, fed)
    changed = [k for k in {**before, **now} if before.get(k) != now.get(k)]
    if changed:
        what, remedy = changed[0]
        told = f"{what} during the run, {UNSAVED}; {remedy}"
        checks.warn(f"{told}; if it is more than a record, a repeated or resumed run gets other results")
    return bool(changed)


def _digest(value: Any) -> str:
    try:
        return digest(value)
    except Exception:  # of a class of the user's, or of a tensor without NumPy's type
        return ""


def _is_cache(one: Any, name: str) -> bool:
    return isinstance(getattr(type(one), name, None), cached_property)


def _undeclared(what: str) -> ValueError:
    return ValueError(f"{what}, {UNSAVED}; {DECLARE}")


def _named(
    method: Method, hook: str, given: Any, known: Collection[str] | None = None, model: bool = False
) -> dict[str, Any]:
    """The mapping as a dict.

    Raises TypeError where it is no mapping, ValueError where a name is not in `known` or the model 'x' is missing.
    """
    what = f"{type(method).__name__}.{hook} gave"
    if not isinstance(given, Mapping):
        raise _gave(method, hook, given, 'a mapping of names to tensors, such as {"x": x}')
    if model and "x" not in given:
        raise ValueError(f"{what} {sorted(given)} without the model; return 'x' too")
    if known is not None and (unknown := [name for name in given if name not in known]):
        raise ValueError(
            f"{what} {unknown[0]!r}, which is none of its states ({', '.join(known) or 'it has none'}); correct the "
            "name, or declare the state in start or client_state"
        )
    return dict(given)


def _tensor(
    method: Method, hook: str, value: Any, shapes: Collection[tuple[int, ...]], like: Tensor, at: Any = ...
) -> Tensor:
    """The value without its autograd graph, which would grow from round to round; TypeError where it is no tensor,
    ValueError for another shape, or another dtype or device than like's.

    at=None: any device will do.
    """
    wanted = f"{' or '.join(map(str, shapes))} of {like.dtype}"
    if not isinstance(value, Tensor):
        raise _gave(method, hook, value, f"a tensor {wanted}")
    if tuple(value.shape) not in shapes or value.dtype != like.dtype:
        raise ValueError(
            f"{type(method).__name__}.{hook} gave {tuple(value.shape)} of {value.dtype}; return a tensor {wanted}"
        )
    if at is not None and value.device != like.device:
        raise ValueError(f"{type(method).__name__}.{hook} gave a tensor on {value.device}; return one on {like.device}")
    return value.detach() if value.requires_grad else value


def _gave(method: Method, hook: str, given: Any, wanted: str) -> TypeError:
    return TypeError(f"{type(method).__name__}.{hook} gave {checks.brief(given)}; return {wanted}")
