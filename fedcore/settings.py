"""The settings of a run, checked once, and the check of the arguments that a method's hooks take."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

import numpy as np
import torch

from . import rng
from .algorithms import contract
from .algorithms.method import Method, Work
from .data.arrays import as_array
from .engine import OneSample
from .objective.base import Objective
from .storage import callbacks
from .support import checks
from .support.checks import Within

HOOKS = tuple(name for name, f in vars(Method).items() if inspect.isfunction(f) and not name.startswith("_"))

BatchSize = Annotated[int, Within(1, checks.MOST, hint="or None for the full local batch")]
Weighting = Annotated[str, checks.OneOf(("uniform", "samples"))]
Cohort = int | float | Sequence[int] | np.ndarray | torch.Tensor | None
Amount = int | Sequence[int] | np.ndarray | torch.Tensor  # local work: one number for all clients, or one per client
Amounts = Amount | Callable[[int, np.ndarray], Amount]
F = TypeVar("F", bound=Callable[..., Any])


class Given(TypedDict, total=False):
    """The settings as keywords of `simulate`, for tools that read code; `Settings` has the defaults."""

    cohort: Cohort | Callable[[int], Cohort]
    lr: float | Callable[[int], float]
    lr_decay: float
    local_epochs: Amounts
    local_steps: Amounts | None
    batch_size: int | None
    server_lr: float
    weight_decay: float
    clip: float | None
    momentum: float
    weighting: str
    seed: int


class ByRound(tuple):
    """A setting that is a function of the round: its values in rounds 0, 1, ..."""

    __slots__ = ()


@dataclass(frozen=True)
class Settings:
    """How rounds are run, with all settings and their defaults; `fedcore.simulate` says what each setting means.

    After `checked`, `cohort` is a size or the clients' numbers, and a setting that is a function of the round is a
    `ByRound`.
    """

    cohort: Cohort | Callable[[int], Cohort] = None
    lr: float | Callable[[int], float] = 0.1
    lr_decay: checks.Positive = 1.0
    local_epochs: Amounts = 1
    local_steps: Amounts | None = None
    batch_size: BatchSize | None = 20
    server_lr: checks.Positive = 1.0
    weight_decay: checks.NonNegative = 0.0
    clip: checks.Positive | None = None
    momentum: checks.BelowOne = 0.0
    weighting: Weighting = "uniform"
    seed: checks.Seed = 0

    @staticmethod
    def checked(method: Method, fed: Objective, rounds: int, given: Mapping[str, Any]) -> Settings:
        """The settings of `rounds` rounds of a method.

        Raises ValueError and TypeError for values out of range and for settings that the method does not allow.
        """
        ranges = checks.ranges(Settings)
        s = Settings(**{k: ranges[k].check(k, v) if k in ranges else v for k, v in given.items()})
        lr = _by_round("lr", s.lr, s.seed, rounds, lambda v: checks.number("lr", v, 0, open_low=True))
        alone = method.full_participation and fed.n == 1  # all data on one machine: there is no cohort to draw
        cohort = _by_round("cohort", None if alone else s.cohort, s.seed, rounds, lambda v: _cohort(v, fed.n))
        largest = torch.finfo(fed.dtype).max
        for name, value in (("server_lr", s.server_lr), ("weight_decay", s.weight_decay), ("clip", s.clip or 1.0)):
            checks.number(name, value, 0, largest)
        s = replace(s, cohort=cohort, lr=lr)
        s = replace(s, local_epochs=_amounts("local_epochs", s.local_epochs, s, rounds, fed.n))
        if s.local_steps is not None:
            if s.local_epochs != 1:
                checks.warn("local_steps is given, so that local_epochs has no effect; leave one of the two out")
            s = replace(s, local_steps=_amounts("local_steps", s.local_steps, s, rounds, fed.n))
        for rate in {min(s.lr, default=1), max(s.lr, default=1)} if isinstance(s.lr, ByRound) else {s.lr}:
            end = math.log(rate) + rounds * math.log(s.lr_decay)
            if end < -700 or end > math.log(largest):
                raise ValueError(
                    f"lr={rate:g} with lr_decay={s.lr_decay:g} leaves the numbers of {fed.dtype} (up to {largest:.2g}) "
                    f"within rounds={rounds}; use a smaller lr, an lr_decay nearer to 1, or fewer rounds"
                )
        name = type(method).__name__
        if method.full_participation and min(map(_size, s.cohorts), default=fed.n) < fed.n:
            raise ValueError(f"{name} needs all {fed.n} clients in every round, cohort={cohort}; use cohort=None")
        if not method.has_server and s.server_lr != 1:
            raise ValueError(f"server_lr={s.server_lr:g} but {name} has no server; use server_lr=1.0")
        return s

    @property
    def cohorts(self) -> Sequence[int | tuple[int, ...]]:
        """The cohort of each round, as a size or as the clients' numbers; one entry if all rounds have the same."""
        return self.cohort if isinstance(self.cohort, ByRound) else (self.cohort,)

    @property
    def size(self) -> int:
        """The size of the largest cohort."""
        return max(map(_size, self.cohorts), default=1)

    def cohort_of(self, t: int, n: int) -> list[int]:
        """The cohort of round t out of n clients, in ascending order: the clients that the setting names, or a random
        draw of the size that it gives."""
        cohort = self.cohort[t] if isinstance(self.cohort, ByRound) else self.cohort
        return rng.cohort(self.seed, t, n, cohort) if isinstance(cohort, int) else list(cohort)

    def work(self, method: Method, t: int, cohort: Sequence[int]) -> Work:
        """The local work of round t for its cohort, after the method's `local_work`."""
        lr = (self.lr[t] if isinstance(self.lr, ByRound) else self.lr) * self.lr_decay**t
        epochs, steps = (_amount_of(amount, t, cohort) for amount in (self.local_epochs, self.local_steps))
        work = Work(t, lr, self.momentum, epochs, steps, self.batch_size, seed=self.seed)
        return contract.local_work(method, work, len(cohort))

    def named(self) -> dict[str, Any]:
        """The settings by name; a setting that is a function of the round becomes {"by round": its values}."""
        return {k: {"by round": list(v)} if isinstance(v, ByRound) else v for k, v in vars(self).items()}


def with_settings(function: F) -> F:
    """The function, with the fields of `Settings` after `rounds` in its signature, in place of its **settings."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    ours = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in fields(Settings)
    ]
    at = 1 + [p.name for p in parameters].index("rounds")
    function.__signature__ = signature.replace(parameters=[*parameters[:at], *ours, *parameters[at:]])
    function.__annotations__ |= get_type_hints(Settings, include_extras=True)
    return function


def check_batches(fed: Objective, cohort: Sequence[int], work: Work) -> None:
    """Raise OneSample (a ValueError) if the model has batch norm and a client of the cohort has batches of 1."""
    if getattr(fed, "takes_one_sample", True):
        return
    clients = np.array(cohort)
    lone = clients if work.batch_size == 1 else clients[fed.sizes[clients] == 1]
    if len(lone):
        size = int(fed.sizes[lone[0]])
        raise OneSample(
            f"client {lone[0]} of round {work.t} has {size} sample{'s'[: size > 1]} and batch_size={work.batch_size}: "
        )


def _by_round(
    name: str,
    f: Any,
    seed: int,
    rounds: int,
    check: Callable[..., Any],
    clients: Callable[[int], np.ndarray] | None = None,
) -> Any:
    """The checked value, or for a function f the checked values f(0), ..., f(rounds - 1); errors of the check name the
    round.

    clients: returns the cohort of round t; f and check then take it as second argument.  What f draws from the global
    generators depends on the seed and the round alone, so that a run can be repeated.  Warns of a generator of its own.
    """
    if not callable(f):
        return check(f)
    checks.takes(name, f, "t" if clients is None else "t, clients [m]", "the value in round t")
    values, before = [], callbacks.generators(f)
    for t in range(rounds):
        given = () if clients is None else (clients(t),)
        with rng.seeded(rng.word(seed, rng.SCHEDULE, *name.encode(), t)):
            value = f(t, *given)
        try:
            values.append(check(value, *given))
        except (ValueError, TypeError) as e:
            raise type(e)(f"{name} in round {t}: {e}") from None
    if callbacks.generators(f) != before:
        checks.warn(
            f"{name}={callbacks.named(f)} draws from a generator outside of itself, so that another run with the same "
            "seed gets other values; draw from np.random.default_rng([seed, t])"
        )
    return ByRound(values)


def _amounts(name: str, given: Amounts, s: Settings, rounds: int, n: int) -> int | tuple[int, ...] | ByRound:
    """Local work: one number for all clients, one for each of n clients, or by round (for all or for each client of
    its cohort)."""
    if not callable(given):
        return _amount(name, given, n, "clients")

    def check(value: Any, clients: np.ndarray) -> int | tuple[int, ...]:
        return _amount(name, value, len(clients), "clients in the cohort")

    return _by_round(name, given, s.seed, rounds, check, lambda t: np.array(s.cohort_of(t, n)))


def _amount(name: str, given: Amount, n: int, of: str) -> int | tuple[int, ...]:
    """Whole numbers from 1, one for each of n clients or one for all; n equal numbers become one."""
    hint = f"or one for each of {n} {of}" + (", or None for local_epochs" if name == "local_steps" else "")
    each = plain(given)
    if not isinstance(each, Sequence) or isinstance(each, str):
        return checks.integer(name, each, 1, checks.MOST, hint=hint)
    if len(each) != n:
        raise ValueError(f"{name} has {len(each)} numbers for {n} {of}; use one number, {hint}")
    hint = "a client that is to do nothing in a round is left out of it: cohort=f(t)"
    for i, amount in enumerate(each):
        if type(amount) is not int or not 0 < amount <= checks.MOST:  # skips the slow check of numbers that are fine
            checks.integer(f"{name}[{i}]", amount, 1, checks.MOST, hint=hint)
    return int(each[0]) if len(set(each)) == 1 else tuple(map(int, each))


def _amount_of(amount: int | tuple[int, ...] | ByRound | None, t: int, cohort: Sequence[int]) -> Any:
    """The local work in round t: one number for all clients, or `[m]` for the clients of the cohort."""
    if isinstance(amount, ByRound):
        return np.array(amount[t]) if isinstance(amount[t], tuple) else amount[t]
    return np.array([amount[i] for i in cohort]) if isinstance(amount, tuple) else amount


def plain(values: Any) -> Any:
    """Arrays, tensors, and scalars of NumPy and torch as lists and numbers of Python; anything else as it is."""
    values = as_array(values) if isinstance(values, torch.Tensor) else values
    return values.tolist() if hasattr(values, "tolist") else values


def _size(cohort: int | tuple[int, ...]) -> int:
    return cohort if isinstance(cohort, int) else len(cohort)


def _cohort(cohort: Cohort, n: int) -> int | tuple[int, ...]:
    if cohort is None:
        return n
    cohort = plain(cohort)
    if isinstance(cohort, numbers.Real) and not isinstance(cohort, numbers.Integral):
        return max(1, round(checks.number("cohort", cohort, 0, 1, open_low=True) * n))
    if isinstance(cohort, Sequence) and not isinstance(cohort, str):
        clients = tuple(sorted(checks.integer("cohort: client", i, 0, n - 1) for i in cohort))
        if not clients:
            raise ValueError(f"cohort=[]; a round needs at least one client, out of 0 to {n - 1}")
        if len(set(clients)) < len(clients):
            raise ValueError(
                f"cohort={checks.brief(list(cohort))}; use different clients from 0 to {n - 1}, or a number of clients"
            )
        return clients
    if isinstance(cohort, numbers.Integral) and not isinstance(cohort, bool) and cohort > n:
        raise ValueError(f"cohort={cohort} but the federation has {n} clients; use cohort<={n}, a fraction, or None")
    return checks.integer("cohort", cohort, 1, n, hint="or a fraction in (0, 1], a list of clients, or None for all")


_TOLD: weakref.WeakSet[type] = weakref.WeakSet()  # classes whose functions' names have been checked


def check_method(method: Any) -> None:
    """Raise TypeError unless `method` is a method whose hooks take the arguments that they are called with.

    Warns once per class of a function whose name looks like a misspelt hook, because no round would ever call it.
    """
    if not isinstance(method, Method):
        hint = "an instance such as fc.FedAvg()" if isinstance(method, type) else "a method such as fc.FedAvg()"
        raise TypeError(f"method={checks.brief(method)}; use {hint}")
    for name in HOOKS:
        hook, ours = getattr(method, name), getattr(Method, name)
        if getattr(hook, "__func__", None) is ours:
            continue
        wanted = list(inspect.signature(ours).parameters)[1:]
        try:
            inspect.signature(hook).bind(*wanted)
        except TypeError as e:
            raise TypeError(
                f"{type(method).__name__}.{name} does not take the arguments that it is called with ({e}); "
                f"write def {name}({', '.join(['self', *wanted])})"
            ) from None
    for kind in (k for k in type(method).__mro__ if not checks.is_ours(k) and k not in _TOLD):
        _TOLD.add(kind)
        for name in (n for n, v in vars(kind).items() if callable(v) and not hasattr(Method, n)):
            near = difflib.get_close_matches(name, set(HOOKS) - vars(kind).keys(), 1, 0.85)
            if near and not name.startswith("_"):
                checks.warn(
                    f"{kind.__name__}.{name} is no hook and is never called by a round; rename it to {near[0]} if you "
                    "mean this hook, or else give it a less similar name",
                )
