"""One federated round as a function from the old state to the new one: broadcast, local steps, aggregate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from .algorithms import contract
from .algorithms.method import DIRECTION, Method, Round
from .engine.descent import clipped
from .engine.products import fastest
from .engine.undisturbed import as_usual
from .objective.base import Objective
from .rows.pieces import pieces
from .rows.rows import Rows
from .rows.state import Drawn, State, check, first
from .settings import Settings, check_batches, check_method
from .support import checks

Watch = Callable[[Round, Tensor], None]


@dataclass(frozen=True)
class Seen:
    """What a round used and computed: `round` (the server's vectors and the cohort's states before the round), the
    last local iterates `y [m, d]` with one row per client, and `drawn` (the cohort and its batches)."""

    round: Round
    y: Tensor
    drawn: Drawn

    def __repr__(self) -> str:
        """Three lines: the iterates, the round, and its plan."""
        return f"Seen(y={checks.form(self.y)})\n{self.round!r}\n{self.round.plan!r}"

    @property
    def cohort(self) -> list[int]:
        """The clients that took part, in ascending order."""
        return self.drawn.cohort


@as_usual()
def start(method: Method, fed: Objective) -> State:
    """The state before round 0: server vectors `[d]` and clients' rows `[n, d]` by name.

    Raises TypeError if `method` is not a method, if one of its hooks has the wrong arguments, or if `fed` is not a
    federation, and ValueError if the method cannot run on this federation.
    """
    fed = on(method, fed)
    fed.check_x0()
    return first(method, fed, fed.n, fed.device)


def check_both(method: Method, fed: Objective) -> None:
    """Raise TypeError unless `method` is a method and `fed` a federation."""
    check_method(method)
    if not isinstance(fed, Objective):
        raise TypeError(f"fed={type(fed).__name__}; make one with fc.federation(...) or fc.quadratic(A, b)")


def on(method: Method, fed: Objective) -> Objective:
    """The federation in the form that the method needs; raises TypeError as `check_both` does."""
    check_both(method, fed)
    return contract.on(method, fed, Objective)


@checks.arguments
@as_usual()
def one_round(
    method: Method,
    fed: Objective,
    state: State,
    t: checks.CountFromZero,
    *,
    cohort: int | float | Sequence[int] | None = None,
    watch: checks.Function | None = None,
    **settings: Any,
) -> tuple[State, Seen]:
    """Run round t (counted from 0) of a method and return the new state and a `Seen`; `state` itself is not changed.

    cohort: as in `simulate`.  settings: `lr`, `lr_decay`, `local_epochs`, `local_steps`, `batch_size`, `server_lr`,
    `weight_decay`, `clip`, `momentum`, `weighting`, `seed`, as in `simulate`.
    watch: a function called before each local step with the round and the iterates `y [a, d]` of the a clients that
    have not finished their local steps.  A sub-model method that trains smaller networks has one part of the round for
    each of their sizes, one after another, and `watch` gets the iterates `[a, d_g]` of one part, with the d_g
    parameters of its network.

    `simulate` computes the same as this loop, bit for bit:

        state = fc.start(method, fed)
        for t in range(rounds):
            state, seen = fc.one_round(method, fed, state, t, lr=0.1)

    Raises ValueError for a state of another method or federation and for settings out of range, and TypeError as
    `start` does and for an unknown setting.
    """
    checks.known("one_round", settings, [f.name for f in fields(Settings)])
    fed = on(method, fed)
    s = Settings.checked(method, fed, t + 1, {"cohort": cohort, **settings})
    check(state, method, fed)
    return play(method, fed, state.copy(), t, s, Rows(method, fed, s), watch)


@fastest()
def play(
    method: Method, fed: Objective, state: State, t: int, s: Settings, rows: Rows, watch: Watch | None = None
) -> tuple[State, Seen]:
    """Compute round t and return the new state, with the clients' rows overwritten in place, and the round's `Seen`.

    `rows` stores the clients' states and knows on which devices and in which processes the round is computed.
    """
    drawn = rows.draw(state, t)  # the cohort, its batches, and its clients' states
    check_batches(fed, drawn.cohort, drawn.work)
    r = rows.prepare(rows.round(state, drawn, t), drawn)
    Y = rows.iterates(contract.broadcast(method, r), r.m)
    for some, y in pieces(rows, r, Y):  # the whole cohort, a chunk, or the clients of one smaller network
        local_steps(method, some, y, watch)
    new = _kept(method, fed, r, Y, rows.aggregate(r, Y, drawn, state))
    return rows.put(state, new, drawn, t), Seen(r, Y, drawn)


def local_steps(method: Method, r: Round, Y: Tensor, watch: Watch | None = None) -> None:
    """Take K_i local steps y_i <- y_i - lr v for every client i, in place in `Y [m, d]`.

    The direction v of a step is the gradient plus weight decay plus the method's correction.  Each client's v is then
    clipped to the norm `clip` and added to its momentum buffer, which is zero at the beginning of a round.  Raises
    ValueError if `direction` writes to anything but the round's memory.
    """
    places = r.objective.layout and r.objective.layout.carried  # where Y holds buffers that the forward pass updates
    alone = not (r.momentum or watch or places) and r.loss.plain and r.plan.indices is not None
    if alone and method.takes_gradients:  # plain SGD: one call of the engine takes all steps
        with contract.told_of_draws(method, None, r):
            return r.objective.descend(Y, r.plan, r.lr, r.weight_decay, r.clip)
    velocity = torch.zeros_like(Y) if r.momentum else None
    seen = r.in_hook(DIRECTION)
    for k, a in enumerate(r.plan.working):  # the first a clients take step k: rows are sorted by number of steps
        seen = seen.head(a)
        seen.step, y, G = k, Y[:a], seen.gradient
        if watch is not None:
            watch(seen, y)
        seen.draws = itertools.count()
        v = contract.direction(method, G, y, seen)
        kept = r.objective.carry(y, r.plan, k) if places else None
        if r.objective.trained is not None:  # frozen parameters and buffers stay, whatever a method adds to them
            v = torch.where(r.objective.trained.to(v.device), v, 0)
        if r.clip is not None:
            v = clipped(v, r.clip)
        if velocity is not None:
            v = velocity[:a].mul_(r.momentum).add_(v)
        Y[:a].sub_(v, alpha=r.lr)
        if kept is not None:
            Y[:a, places] = kept
        del v  # frees its memory before the next gradient is computed


def _kept(method: Method, fed: Objective, r: Round, Y: Tensor, new: dict[str, Tensor]) -> dict[str, Tensor]:
    """The new state in which frozen parameters keep their old values bit for bit, whatever the method's `aggregate`
    computed (statistics of a `FixableBatchNorm` excepted), and the server's buffers that training updates (running
    statistics) are the mean of the clients' buffers."""
    if fed.trained is None:
        return new
    moved, carried = fed.layout.moving, fed.layout.carried  # on the host: no round waits for the device
    for place in fed.layout.statistics():
        moved[place] = True
    new = {k: torch.where(moved.to(v.device), v, getattr(r, k).to(v.device)) for k, v in new.items()}
    if carried and method.has_server:
        new["x"] = new["x"].clone()
        new["x"][carried] = r.mean(Y)[carried]
    return new
