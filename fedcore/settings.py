"""The settings of a round, checked once; and what a method's hooks take."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import checks
from .algorithms.method import Method, Work
from .objective.protocol import Objective

HOOKS = (
    "on", "start", "client_start", "local_work", "prepare", "broadcast", "direction", "aggregate", "personal", "cost",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How rounds are run; `fedcore.simulate` says what each setting means."""

    cohort: int | tuple[int, ...]
    lr: float = 0.1
    lr_decay: float = 1.0
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int | None = 20
    server_lr: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    momentum: float = 0.0
    weighting: str = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError and TypeError with value, range and remedy."""
        for name in ("lr", "lr_decay", "server_lr"):
            self._set(name, checks.number(name, getattr(self, name), 0, open_low=True))
        self._set("weight_decay", checks.number("weight_decay", self.weight_decay, 0))
        self._set("momentum", checks.number("momentum", self.momentum, 0, 0.999999))
        if self.clip is not None:
            self._set("clip", checks.number("clip", self.clip, 0, open_low=True))
        self._set("local_epochs", checks.integer("local_epochs", self.local_epochs, 1))
        self._set("seed", checks.integer("seed", self.seed, 0))
        for name, instead in (("batch_size", "the full local batch"), ("local_steps", "local_epochs")):
            if getattr(self, name) is not None:
                self._set(name, checks.integer(name, getattr(self, name), 1, hint=f"or None for {instead}"))
        checks.choice("weighting", self.weighting, ("uniform", "samples"))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @staticmethod
    def checked(
        method: Method, fed: Objective, rounds: int, cohort: int | float | Sequence[int] | None = None, **settings: Any
    ) -> Settings:
        """The settings of `rounds` rounds of a method; raises ValueError also where the two do not suit each other."""
        s = Settings(_cohort(None if method.ignores_cohort else cohort, fed.n), **settings)
        if abs(math.log(s.lr) + rounds * math.log(s.lr_decay)) > 700:
            raise ValueError(
                f"lr={s.lr:g} with lr_decay={s.lr_decay:g} leaves the floating-point numbers within rounds={rounds}; "
                "use an lr_decay nearer to 1, or fewer rounds"
            )
        if method.full_participation and s.size < fed.n:
            raise ValueError(
                f"{type(method).__name__} needs all {fed.n} clients in every round, cohort={cohort}; use cohort=None"
            )
        return s

    @property
    def size(self) -> int:
        """Clients of a cohort."""
        return self.cohort if isinstance(self.cohort, int) else len(self.cohort)

    def work(self, method: Method, t: int) -> Work:
        """The local work of round t, as the method takes it."""
        lr = self.lr * self.lr_decay**t
        return method.local_work(Work(t, lr, self.momentum, self.local_epochs, self.local_steps, self.batch_size))


def _cohort(cohort: int | float | Sequence[int] | None, n: int) -> int | tuple[int, ...]:
    if cohort is None:
        return n
    if isinstance(cohort, float):
        checks.number("cohort", cohort, 0, 1, open_low=True)
        return max(1, round(cohort * n))
    if isinstance(cohort, Sequence | np.ndarray) and not isinstance(cohort, str):
        clients = tuple(sorted(checks.integer("cohort: client", i, 0, n - 1) for i in cohort))
        if not clients or len(set(clients)) < len(clients):
            raise ValueError(f"cohort={list(cohort)}; use different clients from 0 to {n - 1}, or a number of clients")
        return clients
    if isinstance(cohort, int | np.integer) and not isinstance(cohort, bool) and cohort > n:
        raise ValueError(f"cohort={cohort} but the federation has {n} clients; use cohort<={n}, a fraction, or None")
    return checks.integer("cohort", cohort, 1, n, hint="or a fraction in (0, 1], or None for all")


def check_method(method: Any) -> None:
    """TypeError for what is no method, and for a hook that takes other arguments than it is called with."""
    if not isinstance(method, Method):
        hint = "an instance such as fc.FedAvg()" if isinstance(method, type) else "a method such as fc.FedAvg()"
        raise TypeError(f"method={method!r}; use {hint}")
    for name in HOOKS:
        wanted = list(inspect.signature(getattr(Method, name)).parameters)[1:]
        try:
            inspect.signature(getattr(method, name)).bind(*wanted)
        except TypeError as e:
            raise TypeError(
                f"{type(method).__name__}.{name} does not take what it is called with ({e}); "
                f"write def {name}({', '.join(['self', *wanted])})"
            ) from None
