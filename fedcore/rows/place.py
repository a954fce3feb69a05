"""Where the rows of a run are stored: on one device, in chunks, in host memory, or split over processes.

The round is one function (`round.py`).  This module gives it the rows, divides the cohort so that the local steps fit
into memory, and writes the new state back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from .. import distributed
from ..algorithms import contract
from ..algorithms.method import Cut, Method, Round
from ..data.batches import Plan
from ..objective.base import Objective
from ..settings import Settings
from ..submodels import Part
from ..support import memory
from .chunks import Chunked
from .host import Carrier, _too_large
from .state import Drawn, State


class Place:
    """Where a run stores its rows.

    Clients' states are on `home`: the federation's device, or host memory if they would fill it.  The rows of a round
    are on `base`: the device, or host memory if an accelerator computes them in chunks of `chunk` clients.  Process r
    of N keeps the states of the clients c with c mod N = r.
    """

    def __init__(
        self,
        method: Method,
        fed: Objective,
        s: Settings | None = None,
        world: distributed.World = distributed.ALONE,
        chunk: int | None = None,
        rounds: int = 0,
    ) -> None:
        self.method, self.fed, self.s, self.world, self.rounds = method, fed, s, world, rounds
        if world.size > fed.n:
            raise ValueError(f"{world.size} processes but {fed.n} clients; use --nproc_per_node<={fed.n}")
        self.owned = [np.arange(r, fed.n, world.size) for r in range(world.size)]
        self.chunk = chunk if s is not None and chunk is not None and chunk < s.size else None
        self.hosted = self.chunk is not None and memory.has_own_memory(fed.device)
        kept = self.hosted or (rounds > 0 and _too_large(method, fed, len(self.clients)))
        self.carrier = Carrier(fed.device) if kept else None
        self.home, self.base = (torch.device("cpu") if host else fed.device for host in (kept, self.hosted))
        self.objective = fed if self.chunk is None else Chunked(fed, self.chunk)
        if s is not None:
            m, vectors = -(-s.size // world.size), 1 + len(method.client_state)
            what = f"the models and states of {m:,} clients in a round ({vectors} x {fed.d:,} numbers each)"
            memory.check(
                m * vectors * fed.d * fed.x0.element_size(), self.base, what, "a smaller cohort, or a smaller model"
            )
        self.next: Drawn | None = None  # the next round, whose states are being copied

    @property
    def clients(self) -> np.ndarray:
        """The clients whose states this process keeps."""
        return self.owned[self.world.rank]

    def start(self) -> State:
        """The state before round 0."""
        x = self.fed.x0
        server, first, clients = contract.start(self.method, x), contract.client_start(self.method, x), {}
        names, n, d = self.method.client_state, len(self.clients), self.fed.d
        memory.check(
            len(names) * n * d * x.element_size(),
            self.home,
            f"the states {', '.join(names)} of {type(self.method).__name__} ({n:,} clients x {d:,} parameters x "
            f"{x.element_size()} bytes each)",
            "fewer clients, a smaller model, or a method without states of its clients, such as fc.FedAvg()",
        )
        for name in self.method.client_state:
            clients[name] = torch.zeros(len(self.clients), self.fed.d, dtype=x.dtype, device=self.home)
            if name in first:
                clients[name] += first[name].to(self.home)
        return State(server, clients, np.zeros(self.fed.n, int), self.origin)

    @property
    def origin(self) -> tuple[type[Method], str]:
        """Where the states of this run come from: the method's class, and a description of the data."""
        source = getattr(self.fed, "source", None)
        data = f"{source.name!r}, {self.fed.partition}, seed {self.fed.seed}" if source else f"{self.fed.n} quadratics"
        return type(self.method), data

    def check(self, state: State) -> None:
        """Raise ValueError unless `state` is a state of this method on this federation."""
        want = dict.fromkeys(self.method.start(self.fed.x0), (self.fed.d,))
        want |= dict.fromkeys(self.method.client_state, (self.fed.n, self.fed.d))
        given = {k: tuple(v.shape) for k, v in state.items()} if isinstance(state, State) else type(state).__name__
        if given != want:
            raise ValueError(
                f"the state has {given}, but {self.method!r} on this federation has {want}; "
                "use the state that fc.start(method, fed) or fc.one_round(method, fed, ...) returned"
            )
        (kind, data), (ours, here) = state.origin or self.origin, self.origin
        if data != here or not (issubclass(kind, ours) or issubclass(ours, kind)):
            raise ValueError(
                f"the state is one of {kind.__name__} on {data}, not of {ours.__name__} on {here}; to go on from its "
                'model on purpose, use fc.start(method, fed).updated(x=state["x"])'
            )
        x = state["x"]
        if (x.device, x.dtype) != (self.fed.device, self.fed.x0.dtype):
            raise ValueError(
                f"the state is {x.dtype} on {x.device}, the federation {self.fed.x0.dtype} on {self.fed.device}; "
                "use fed.to(device, dtype), or a state of this federation"
            )

    # --- before the local steps ---------------------------------------------------------------------------------------

    def draw(self, state: State, t: int) -> Drawn:
        """Draw round t: its cohort, the clients of each process, and this process's plan; start to copy the clients'
        states to where the round needs them."""
        if self.next is not None:
            drawn, self.next = self.next, None
            return drawn
        s, fed = self.s, self.fed
        cohort = s.cohort_of(t, fed.n)
        dealt = self._deal(np.array(cohort))
        work = s.work(self.method, t, cohort)

        def planned(clients: np.ndarray) -> Plan:
            rows = np.searchsorted(cohort, clients).clip(max=len(cohort) - 1)  # clipped for a client outside the cohort
            epochs, steps = (v[rows] if isinstance(v, np.ndarray) else v for v in (work.epochs, work.steps))
            more = {"batch_size": work.batch_size, "walk": work.walk}
            return fed.plan(s.seed, t, clients, epochs=epochs, steps=steps, **more)

        here = dealt[self.world.rank]
        # a process without clients in this round computes one of its own clients, and its result is not used
        plan = planned(here if len(here) else self.clients[[fed.sizes[self.clients].argmin()]])
        at = self._at_home(plan)
        if self.carrier is None:
            return Drawn(cohort, dealt, plan, planned, lambda: {k: v[at] for k, v in state.clients.items()})
        rows = {k: self.carrier.gather(v, at) for k, v in state.clients.items()}
        return Drawn(cohort, dealt, plan, planned, (lambda: rows) if self.hosted else self.carrier.send(rows))

    def _deal(self, cohort: np.ndarray) -> list[np.ndarray]:
        """The clients of the cohort that each process computes: those whose states it keeps, or, for a method without
        client states, even shares."""
        N = self.world.size
        if self.method.client_state:
            return [cohort[cohort % N == r] for r in range(N)]
        if N == 1:
            return [cohort]
        order = cohort[np.argsort(-self.fed.sizes[cohort], kind="stable")]
        return [np.sort(order[r::N]) for r in range(N)]

    def _at_home(self, plan: Plan) -> Tensor:
        """The row numbers of the plan's clients in this process's states, computed on the host."""
        rows = plan.rows if self.carrier is None else torch.as_tensor(plan.clients)
        return rows if self.world.size == 1 else rows // self.world.size

    def dealt(self, drawn: Drawn) -> np.ndarray:
        """The clients of the cohort that this process computes."""
        return drawn.dealt[self.world.rank]

    def column(self, values: np.ndarray) -> Tensor:
        """One number per client as a tensor `[m, 1]`."""
        return torch.as_tensor(values, dtype=self.fed.dtype).to(self.base)[:, None]

    def total(self, drawn: Drawn) -> Callable[[Tensor], Tensor]:
        """A function that sums over the processes; a process without clients in this round adds zero."""
        if self.world.size == 1:
            return lambda v: v
        counts = len(self.dealt(drawn)) > 0
        return lambda v: self.world.total(v if counts else torch.zeros_like(v))

    def iterates(self, y: Tensor, m: int) -> Tensor:
        """The broadcast `[d]` or `[m, d]` as a matrix `[m, d]` that the local steps may write to."""
        Y = y.expand(m, self.fed.d)
        return self.carrier.empty(*Y.shape, dtype=Y.dtype).copy_(Y) if self.hosted else Y.clone()

    # --- the local steps ----------------------------------------------------------------------------------------------

    def pieces(self, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
        """The round in pieces whose clients take their local steps together, each with its iterates.

        Iterates and memory of a piece are written back to the round when the next piece is requested.
        """
        if r.parts is not None:
            yield from self._parts(r, Y)
        elif self.chunk is None:
            yield r, Y
        else:
            yield from self._chunks(r, Y)

    def _parts(self, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
        """The pieces of a round whose clients train smaller networks: their entries are cut out and written back."""
        if r.memory:
            raise ValueError(f"{type(self.method).__name__} has parts and memory; in a round with parts use rows alone")
        for whole in r.parts:
            for part in whole.split(self.chunk or len(whole.rows)):
                y = part.take(Y).to(self.fed.device)
                yield replace(r, objective=self.fed).within(part).to(self.fed.device), y
                part.put(Y, y.to(self.base))

    def _chunks(self, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
        """Chunks of neighbouring rows, which have similar numbers of steps because the rows are sorted by them.

        Rows in host memory are copied to the device while it computes the chunk before; iterates and memory are copied
        back.
        """
        send = self.carrier.send if self.hosted else (lambda rows: lambda: rows)
        r = replace(r, objective=self.fed, server=r.to(self.fed.device).server)
        cuts = [slice(a, a + self.chunk) for a in range(0, len(Y), self.chunk)]
        pieces = [(r.some(cut), Y[cut]) for cut in cuts]
        coming = [send(_tensors(*pieces[0]))]
        for i, (small, y) in enumerate(pieces):
            there = coming.pop()()
            if i + 1 < len(pieces):
                coming.append(send(_tensors(*pieces[i + 1])))
            here = _with(small, there)
            yield here, there["y"]
            if self.hosted:
                for back, v in [(y, there["y"]), *((small.memory[k], v) for k, v in here.memory.items())]:
                    back.copy_(v, non_blocking=True)
            del there, here  # frees their memory before another chunk is copied
        if self.hosted:
            self.carrier.wait()

    # --- rows of other processes --------------------------------------------------------------------------------------

    def prepare(self, method: Method, r: Round, drawn: Drawn) -> Round:
        """`method.prepare`; if `method.across` is "rows" it sees the rows of all processes, and this process keeps the
        results for its own rows."""
        if self.world.size == 1 or method.across == "sums":
            return contract.prepared(method, method.prepare(r))
        whole = self.whole(r, drawn)
        ready, here = contract.prepared(method, method.prepare(whole)), self._here(whole.ids, drawn)
        if not len(here):  # this process has no client of the cohort
            return method.prepare(replace(r, total=lambda v: v))
        rows, memory = (
            {n: getattr(ready, kind)[n][here] for n in getattr(ready, kind) if n not in getattr(r, kind)}
            for kind in ("rows", "memory")
        )
        loss = ready.loss if ready.loss is whole.loss else ready.loss.cut(here)
        parts = ready.parts and [part for part in (p.among(here) for p in ready.parts) if len(part.rows)]
        return replace(r.extended(rows=rows, memory=memory), server=ready.server, loss=loss, parts=parts)

    def aggregate(self, method: Method, r: Round, Y: Tensor, drawn: Drawn, state: State) -> dict[str, Tensor]:
        """`method.aggregate`, on the rows of all processes if `method.across` is "rows"; the client states returned
        are this process's rows."""
        if self.world.size == 1 or method.across == "sums":
            return contract.aggregate(method, r, Y, list(state))
        whole = self.whole(r, drawn)
        new = contract.aggregate(method, whole, self.gather(Y, drawn), list(state))
        here = self._here(whole.ids, drawn)
        return {k: v[here] if k in method.client_state else v for k, v in new.items()}

    def whole(self, r: Round, drawn: Drawn) -> Round:
        """The round with the rows of all processes; each matrix is gathered when it is first read."""
        plan = drawn.planned(np.sort(np.concatenate(drawn.dealt)))
        gather = partial(self.gather, drawn=drawn)
        fields = {"p": gather(r.p), "K": gather(r.K), "visits": gather(torch.as_tensor(r.visits)).numpy()}
        rows = {kind: Cut(getattr(r, kind), gather) for kind in ("rows", "memory")}
        loss, parts = r.loss.gathered(gather), self._all_parts(r, drawn, plan.clients)
        return replace(r, plan=plan, total=lambda v: v, loss=loss, parts=parts, **fields, **rows)

    def _all_parts(self, r: Round, drawn: Drawn, clients: np.ndarray) -> list[Part] | None:
        """The parts of all processes, with rows numbered as in `clients`, largest networks first as in one process."""
        if r.parts is None:
            return None
        rows = np.flatnonzero(np.isin(clients, self.dealt(drawn)))
        here = [part.to_device("cpu").renumbered(rows) for part in r.parts] if len(rows) else []
        networks: list[list[Part]] = []
        for part in chain(*self.world.objects(here)):
            same = next((parts for parts in networks if parts[0].to == part.to), None)
            networks.append([part]) if same is None else same.append(part)
        joined = [Part.joined(parts).to_device(self.base) for parts in networks]
        return sorted(joined, key=lambda part: -math.inf if part.places is None else -part.places.shape[1])

    def gather(self, rows: Tensor, drawn: Drawn) -> Tensor:
        """The rows of all processes, in the order that they have in a run of one process."""
        clients = drawn.planned(np.sort(np.concatenate(drawn.dealt))).clients
        return self.world.gather(rows, [np.flatnonzero(np.isin(clients, part)) for part in drawn.dealt])

    def _here(self, clients: np.ndarray, drawn: Drawn) -> Tensor:
        """The positions in `clients` of those that this process computes."""
        return torch.as_tensor(np.flatnonzero(np.isin(clients, self.dealt(drawn)))).to(self.base)

    # --- after the round ----------------------------------------------------------------------------------------------

    def put(self, state: State, new: Mapping[str, Tensor], drawn: Drawn, t: int) -> State:
        """The state after round t: `state` with the new tensors; rows of clients and visits are written in place."""
        if self.carrier is not None and not self.hosted and t + 1 < self.rounds:
            self.next = self.draw(state, t + 1)  # copied while the device still computes this round
        server = dict(state.server)
        for name, value in new.items():
            if name not in state.clients:
                server[name] = value.to(self.fed.device)
            elif len(self.dealt(drawn)):
                state.clients[name][self._at_home(drawn.plan)] = value.to(self.home)
                if self.next is not None:  # rows already copied for the next round that this round changes
                    rows = np.intersect1d(drawn.plan.clients, self.next.plan.clients, return_indices=True)[1:]
                    now, then = (torch.as_tensor(at).to(self.fed.device) for at in rows)
                    self.next.rows()[name][then] = value[now]
        state.visits[drawn.cohort] += 1
        return replace(state, server=server)

    def everyone(self, state: State, to: int | None = None) -> dict[str, Tensor | None]:
        """The state with the rows of all clients, on process `to` alone, or on all if it is None."""
        if self.world.size == 1:
            return dict(state)
        return {**state.server, **{k: self.world.gather(v.cpu(), self.owned, to) for k, v in state.clients.items()}}


def _tensors(r: Round, y: Tensor) -> dict[str, Tensor]:
    """All tensors with one row per client."""
    rows = {f"{kind}/{name}": v for kind in ("rows", "memory") for name, v in getattr(r, kind).items()}
    return {"y": y, "p": r.p, "K": r.K, **rows}


def _with(r: Round, tensors: Mapping[str, Tensor]) -> Round:
    """The round with these tensors instead of its own."""
    rows = {kind: {n: tensors[f"{kind}/{n}"] for n in getattr(r, kind)} for kind in ("rows", "memory")}
    return replace(r, p=tensors["p"], K=tensors["K"], loss=r.loss.to(tensors["y"].device), **rows)
