"""Storage of the rows of a run, and their way from there into a round and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .. import distributed
from ..algorithms.method import Method, Round
from ..data.batches import Plan
from ..objective.base import Objective
from ..support import memory
from .host import Carrier, too_large
from .pieces import Chunked
from .processes import Processes
from .state import Drawn, State, first

if TYPE_CHECKING:
    from ..settings import Settings


class Rows(Processes):
    """The rows of a run, one per client, and the operations that bring the cohort's rows into a round and back.

    The states of all clients are on the device `home`: the federation's device, or the CPU if they would fill it.  The
    rows of a round's cohort are on `base`: the federation's device, or the CPU if an accelerator computes the cohort in
    chunks of `chunk` clients.
    """

    def __init__(
        self,
        method: Method,
        fed: Objective,
        s: Settings,
        world: distributed.World = distributed.ALONE,
        chunk: int | None = None,
        rounds: int = 0,
    ) -> None:
        super().__init__(method, fed, world)
        self.s, self.rounds = s, rounds
        self.chunk = chunk if chunk is not None and chunk < s.size else None
        self.hosted = self.chunk is not None and memory.has_own_memory(fed.device)
        kept = self.hosted or (rounds > 0 and too_large(method, fed, len(self.clients)))
        self.carrier = Carrier(fed.device) if kept else None
        self.home, self.base = (torch.device("cpu") if host else fed.device for host in (kept, self.hosted))
        self.objective = fed if self.chunk is None else Chunked(fed, self.chunk)
        m, vectors = -(-s.size // world.size), 1 + len(method.client_state)
        what = f"the models and states of {m:,} clients in a round ({vectors} x {fed.d:,} numbers each)"
        size = m * vectors * fed.d * fed.x0.element_size()
        memory.check(size, self.base, what, "a smaller cohort, or a smaller model")
        self.next: Drawn | None = None  # the draw of the next round, while its states are copied

    def start(self) -> State:
        """The state before round 0."""
        return first(self.method, self.fed, len(self.clients), self.home)

    def draw(self, state: State, t: int) -> Drawn:
        """Draw round t: its cohort, the clients of each process, and the plan of this process's batches.  Start to
        copy the clients' states to the device `base`."""
        if self.next is not None:
            drawn, self.next = self.next, None
            return drawn
        s, fed = self.s, self.fed
        cohort = s.cohort_of(t, fed.n)
        dealt = self.deal(np.array(cohort))
        work = s.work(self.method, t, cohort)

        def planned(clients: np.ndarray) -> Plan:
            rows = np.searchsorted(cohort, clients).clip(max=len(cohort) - 1)  # any row for a client outside of it
            epochs, steps = (v[rows] if isinstance(v, np.ndarray) else v for v in (work.epochs, work.steps))
            more = {"batch_size": work.batch_size, "walk": work.walk}
            return fed.plan(s.seed, t, clients, epochs=epochs, steps=steps, **more)

        here = dealt[self.world.rank]
        # a process without clients in this round computes its smallest client and drops the result
        plan = planned(here if len(here) else self.clients[[fed.sizes[self.clients].argmin()]])
        at, rows = self._at_home(plan), state.clients
        if self.carrier is None:
            return Drawn(cohort, dealt, work, plan, planned, lambda: {k: v[at] for k, v in rows.items()})
        rows = {k: self.carrier.gather(v, at) for k, v in rows.items()}
        return Drawn(cohort, dealt, work, plan, planned, (lambda: rows) if self.hosted else self.carrier.send(rows))

    def round(self, state: State, drawn: Drawn, t: int) -> Round:
        """Round t as the method sees it: the server's vectors, and one row for each client of this process."""
        s, plan, work = self.s, drawn.plan, drawn.work
        p = np.full(len(plan.clients), 1 / len(drawn.cohort))
        if s.weighting == "samples":
            p = self.fed.sizes[plan.clients] / self.fed.sizes[drawn.cohort].sum()
        return Round(
            objective=self.objective, plan=plan, seed=s.seed, t=t, n=self.fed.n, lr=work.lr, server_lr=s.server_lr,
            p=self._column(p), K=self._column(plan.steps), visits=state.visits[plan.clients],
            weight_decay=s.weight_decay, clip=s.clip, momentum=work.momentum, batch_size=work.batch_size,
            server={k: v.to(self.base) for k, v in state.server.items()}, rows=drawn.rows(), total=self.total(drawn),
        )  # fmt: skip

    def iterates(self, y: Tensor, m: int) -> Tensor:
        """A copy `[m, d]` of the broadcast `[d]` or `[m, d]`, on which the local steps run in place."""
        Y = y.expand(m, self.fed.d)
        return self.carrier.empty(*Y.shape, dtype=Y.dtype).copy_(Y) if self.hosted else Y.clone()

    def put(self, state: State, new: Mapping[str, Tensor], drawn: Drawn, t: int) -> State:
        """The state after round t: the new server vectors, and the rows and visits of `state`, updated in place."""
        if self.carrier is not None and not self.hosted and t + 1 < self.rounds:
            self.next = self.draw(state, t + 1)  # its states are copied while the device still computes
        server = dict(state.server)
        for name, value in new.items():
            if name not in state.clients:
                server[name] = value.to(self.fed.device)
            elif len(self.dealt(drawn)):
                state.clients[name][self._at_home(drawn.plan)] = value.to(self.home)
                if self.next is not None:  # this round's results for clients whose old rows are copied already
                    rows = np.intersect1d(drawn.plan.clients, self.next.plan.clients, return_indices=True)[1:]
                    now, then = (torch.as_tensor(at).to(self.fed.device) for at in rows)
                    self.next.rows()[name][then] = value[now]
        state.visits[drawn.cohort] += 1
        return replace(state, server=server)

    def _at_home(self, plan: Plan) -> Tensor:
        """The row numbers of the plan's clients in this process's states."""
        rows = plan.rows if self.carrier is None else torch.as_tensor(plan.clients)
        return rows if self.world.size == 1 else rows // self.world.size

    def _column(self, values: np.ndarray) -> Tensor:
        """One number per client as a tensor `[m, 1]`."""
        return torch.as_tensor(values, dtype=self.fed.dtype).to(self.base)[:, None]
