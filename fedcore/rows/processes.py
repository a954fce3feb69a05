"""A round that several processes share: each computes some of the clients, and gathers the rows of all if needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from .. import distributed
from ..algorithms import contract
from ..algorithms.method import Cut, Method, Round
from ..objective.base import Objective
from ..submodels import Part
from .state import Drawn, State


class Processes:
    """The processes of a run.  Process r of N keeps the states of the clients c with c mod N = r."""

    def __init__(self, method: Method, fed: Objective, world: distributed.World) -> None:
        self.method, self.fed, self.world = method, fed, world
        if world.size > fed.n:
            raise ValueError(f"{world.size} processes but {fed.n} clients; use --nproc_per_node<={fed.n}")
        self.owned = [np.arange(r, fed.n, world.size) for r in range(world.size)]
        self.sees_all = world.size > 1 and method.across == "rows"

    @property
    def clients(self) -> np.ndarray:
        """The clients whose states this process keeps."""
        return self.owned[self.world.rank]

    def deal(self, cohort: np.ndarray) -> list[np.ndarray]:
        """The clients of the cohort that each process computes: the clients whose states it keeps, or equal shares of
        the cohort if the method has no client states."""
        N = self.world.size
        if self.method.client_state:
            return [cohort[cohort % N == r] for r in range(N)]
        order = cohort[np.argsort(-self.fed.sizes[cohort], kind="stable")]
        return [np.sort(order[r::N]) for r in range(N)]

    def dealt(self, drawn: Drawn) -> np.ndarray:
        """The clients of the cohort that this process computes."""
        return drawn.dealt[self.world.rank]

    def total(self, drawn: Drawn) -> Callable[[Tensor], Tensor]:
        """A function that sums a tensor over the processes; a process without clients in this round adds zero."""
        counts = len(self.dealt(drawn)) > 0
        return lambda v: self.world.total(v if counts else torch.zeros_like(v))

    def gather(self, rows: Tensor, drawn: Drawn) -> Tensor:
        """The rows of all processes, in the order of a run of one process."""
        return self.world.gather(rows, drawn.places)

    def everyone(self, state: State, to: int | None = None) -> dict[str, Tensor | None]:
        """The state with the rows of all clients: on process `to` (None elsewhere), or on every process if `to` is
        None."""
        if self.world.size == 1:
            return dict(state)
        return {**state.server, **{k: self.world.gather(v.cpu(), self.owned, to) for k, v in state.clients.items()}}

    def prepare(self, r: Round, drawn: Drawn) -> Round:
        """The round after the method's `prepare`.  If `method.across` is "rows", the method sees the rows of all
        processes, and this process keeps the results for its own clients."""
        if not self.sees_all:
            return contract.prepare(self.method, r)
        whole = self.whole(r, drawn)
        ready, here = contract.prepare(self.method, whole), self._here(drawn, r)
        if not len(here):  # this process has no client of the cohort
            return self.method.prepare(replace(r, total=lambda v: v))
        rows, memory = (
            {n: getattr(ready, kind)[n][here] for n in getattr(ready, kind) if n not in getattr(r, kind)}
            for kind in ("rows", "memory")
        )
        loss = ready.loss if ready.loss is whole.loss else ready.loss.cut(here)
        parts = ready.parts and [part for part in (p.among(here) for p in ready.parts) if len(part.rows)]
        own = {"p": ready.p[here], "K": ready.K[here], "visits": r.visits, "plan": r.plan, "total": r.total}
        own |= {"rows": {**r.rows, **rows}, "memory": {**r.memory, **memory}, "loss": loss, "parts": parts}
        return replace(ready, **own)

    def aggregate(self, r: Round, Y: Tensor, drawn: Drawn, state: State) -> dict[str, Tensor]:
        """The server vectors and client states that the method's `aggregate` returns.  If `method.across` is "rows",
        the method sees the rows of all processes, and this process keeps the states of its own clients."""
        if not self.sees_all:
            return contract.aggregate(self.method, r, Y, list(state))
        new = contract.aggregate(self.method, self.whole(r, drawn), self.gather(Y, drawn), list(state))
        here = self._here(drawn, r)
        return {k: v[here] if k in self.method.client_state else v for k, v in new.items()}

    def whole(self, r: Round, drawn: Drawn) -> Round:
        """The round with the rows of all processes; each matrix is gathered when it is first read."""
        gather = partial(self.gather, drawn=drawn)
        fields = {"p": gather(r.p), "K": gather(r.K), "visits": gather(torch.as_tensor(r.visits)).numpy()}
        rows = {kind: Cut(getattr(r, kind), gather) for kind in ("rows", "memory")}
        loss, parts = r.loss.gathered(gather), self._all_parts(r, drawn)
        return replace(r, plan=drawn.whole, total=lambda v: v, loss=loss, parts=parts, **fields, **rows)

    def _all_parts(self, r: Round, drawn: Drawn) -> list[Part] | None:
        """The parts of all processes.  As in a run of one process, rows are numbered by the whole plan and the
        largest network comes first."""
        if r.parts is None:
            return None
        rows = drawn.places[self.world.rank]
        here = [part.moved("cpu", rows) for part in r.parts] if len(rows) else []
        networks: list[list[Part]] = []
        for part in chain(*self.world.objects(here)):
            same = next((parts for parts in networks if parts[0].to == part.to), None)
            networks.append([part]) if same is None else same.append(part)
        joined = [Part.joined(parts).moved(r.p.device) for parts in networks]
        return sorted(joined, key=lambda part: -math.inf if part.places is None else -part.places.shape[1])

    def _here(self, drawn: Drawn, r: Round) -> Tensor:
        """The positions of this process's clients in the whole plan."""
        return torch.as_tensor(drawn.places[self.world.rank]).to(r.p.device)
