"""Where the rows of a run are: on one device, in chunks, in host memory, or shared among processes.

The round is one function (`round.py`).  What stands here hands it its rows, calls its local steps for as many clients
at a time as there is memory for, and puts the new state where it belongs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checks, distributed, hooks
from .algorithms.method import Cut, Method, Round
from .data.batches import Plan
from .engine import PLAIN, Loss
from .objective.protocol import Objective
from .room import check, free, has_own_memory
from .settings import Settings
from .submodels import Part


@dataclass(frozen=True)
class State(Mapping[str, Tensor]):
    """What goes from round to round: the server's vectors `[d]` and the clients' rows `[n, d]`, by name.

    `visits [n]`: in how many rounds each client took part, on the host.  origin: the method's class and the data that
    it began with; None is not compared.
    """

    server: dict[str, Tensor]
    clients: dict[str, Tensor]
    visits: np.ndarray
    origin: tuple[type[Method], str] | None = None

    def __repr__(self) -> str:
        """One line: the names of the server's vectors and the clients' rows, with their shapes."""
        return f"State({', '.join(f'{name}={checks.form(v)}' for name, v in self.items())})"

    def __getitem__(self, name: str) -> Tensor:
        return self.clients[name] if name in self.clients else self.server[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.server, **self.clients})

    def __len__(self) -> int:
        return len(self.server) + len(self.clients)

    def updated(self, **tensors: Tensor) -> State:
        """The same state with some of its tensors replaced, by name."""
        server = {k: tensors.get(k, v) for k, v in self.server.items()}
        return replace(self, server=server, clients={k: tensors.get(k, v) for k, v in self.clients.items()})

    def copy(self) -> State:
        """The same state in memory of its own: a round writes its clients' rows in place."""
        for name, v in self.clients.items():
            check(v.nbytes, v.device, f"a copy of the state {name} {tuple(v.shape)}", "fc.simulate, which makes none")
        clients = {k: v.clone() for k, v in self.clients.items()}
        return replace(self, server=dict(self.server), clients=clients, visits=self.visits.copy())


@dataclass(frozen=True)
class Drawn:
    """A round before it begins: its cohort, the clients of it that each process takes, the plan of this process's
    clients, what makes plans like it, and what gives these clients' states."""

    cohort: list[int]
    dealt: list[np.ndarray]
    plan: Plan
    planned: Callable[[np.ndarray], Plan]
    rows: Callable[[], dict[str, Tensor]]


class Place:
    """Where a run keeps its rows.

    Clients' states are at `home`: the federation's device, or host memory where they would fill it.  The rows of a
    round are at `base`: the device, or host memory where they are worked on in chunks of `chunk` clients and the
    device has memory of its own.  Of the clients, process r of N keeps the states of those with number r mod N.
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
        self.hosted = self.chunk is not None and has_own_memory(fed.device)
        kept = self.hosted or (rounds > 0 and _too_large(method, fed, len(self.clients)))
        self.carrier = Carrier(fed.device) if kept else None
        self.home, self.base = (torch.device("cpu") if host else fed.device for host in (kept, self.hosted))
        self.objective = fed if self.chunk is None else Chunked(fed, self.chunk)
        if s is not None:
            m, vectors = -(-s.size // world.size), 1 + len(method.client_state)
            what = f"the models and states of {m:,} clients in a round ({vectors} x {fed.d:,} numbers each)"
            check(m * vectors * fed.d * fed.x0.element_size(), self.base, what, "a smaller cohort, or a smaller model")
        self.next: Drawn | None = None  # the round after this one, whose states are on their way

    @property
    def clients(self) -> np.ndarray:
        """The clients whose states this process keeps."""
        return self.owned[self.world.rank]

    def start(self) -> State:
        """The state before round 0."""
        x = self.fed.x0
        server, first, clients = hooks.start(self.method, x), hooks.client_start(self.method, x), {}
        names, n, d = self.method.client_state, len(self.clients), self.fed.d
        check(
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
        """What the states of this run say of themselves: the method's class, and whose data."""
        source = getattr(self.fed, "source", None)
        data = f"{source.name!r}, {self.fed.partition}, seed {self.fed.seed}" if source else f"{self.fed.n} quadratics"
        return type(self.method), data

    def check(self, state: State) -> None:
        """ValueError for a state that is not one of this method on this federation."""
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
        """Cohort, shares and plan of round t, and the clients' states on their way to where the round needs them."""
        if self.next is not None:
            drawn, self.next = self.next, None
            return drawn
        s, fed = self.s, self.fed
        cohort = s.cohort_of(t, fed.n)
        dealt = self._deal(np.array(cohort))
        work = s.work(self.method, t, cohort)

        def planned(clients: np.ndarray) -> Plan:
            rows = np.searchsorted(cohort, clients).clip(max=len(cohort) - 1)  # one that does not count: any client's
            epochs, steps = (v[rows] if isinstance(v, np.ndarray) else v for v in (work.epochs, work.steps))
            more = {"batch_size": work.batch_size, "walk": work.walk}
            return fed.plan(s.seed, t, clients, epochs=epochs, steps=steps, **more)

        here = dealt[self.world.rank]
        # a process without clients in this round works on one of its own that does not count
        plan = planned(here if len(here) else self.clients[[fed.sizes[self.clients].argmin()]])
        at = self._at_home(plan)
        if self.carrier is None:
            return Drawn(cohort, dealt, plan, planned, lambda: {k: v[at] for k, v in state.clients.items()})
        rows = {k: self.carrier.gather(v, at) for k, v in state.clients.items()}
        return Drawn(cohort, dealt, plan, planned, (lambda: rows) if self.hosted else self.carrier.send(rows))

    def _deal(self, cohort: np.ndarray) -> list[np.ndarray]:
        """Each process's clients of the cohort: those whose states it keeps, or where there are none even shares."""
        N = self.world.size
        if self.method.client_state:
            return [cohort[cohort % N == r] for r in range(N)]
        if N == 1:
            return [cohort]
        order = cohort[np.argsort(-self.fed.sizes[cohort], kind="stable")]
        return [np.sort(order[r::N]) for r in range(N)]

    def _at_home(self, plan: Plan) -> Tensor:
        """The plan's rows where the clients' states are; the host knows them, so no device is asked."""
        rows = plan.rows if self.carrier is None else torch.as_tensor(plan.clients)
        return rows if self.world.size == 1 else rows // self.world.size

    def dealt(self, drawn: Drawn) -> np.ndarray:
        """The clients of the cohort that this process takes."""
        return drawn.dealt[self.world.rank]

    def column(self, values: np.ndarray) -> Tensor:
        """One number a row, `[m, 1]`."""
        return torch.as_tensor(values, dtype=self.fed.dtype).to(self.base)[:, None]

    def total(self, drawn: Drawn) -> Callable[[Tensor], Tensor]:
        """Sums over the processes; one without clients in this round adds nothing."""
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
        """The round in pieces whose clients take their local steps together: each with its iterates.

        What was written to the iterates and to the round's memory is put back when the next piece is asked for.
        """
        if r.parts is not None:
            yield from self._parts(r, Y)
        elif self.chunk is None:
            yield r, Y
        else:
            yield from self._chunks(r, Y)

    def _parts(self, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
        """Rows on smaller networks: out of the matrix, local steps, back."""
        if r.memory:
            raise ValueError(f"{type(self.method).__name__} has parts and memory; in a round with parts use rows alone")
        for whole in r.parts:
            for part in whole.split(self.chunk or len(whole.rows)):
                y = part.take(Y).to(self.fed.device)
                yield replace(r, objective=self.fed).within(part).to(self.fed.device), y
                part.put(Y, y.to(self.base))

    def _chunks(self, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
        """Neighbouring rows at a time (sorted by steps, they have much in common).

        Rows in host memory are copied to the device while it computes the chunk before theirs; what the local steps
        may write to is copied back.
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
            del there, here  # before the next but one is sent for
        if self.hosted:
            self.carrier.wait()

    # --- rows of other processes --------------------------------------------------------------------------------------

    def prepare(self, method: Method, r: Round, drawn: Drawn) -> Round:
        """`method.prepare`; a method that sees rows sees those of all processes, and this one goes on with its own."""
        if self.world.size == 1 or method.across == "sums":
            return hooks.prepared(method, method.prepare(r))
        whole = self.whole(r, drawn)
        ready, here = hooks.prepared(method, method.prepare(whole)), self._here(whole.ids, drawn)
        if not len(here):  # this process's row is no client of the cohort
            return method.prepare(replace(r, total=lambda v: v))
        rows, memory = (
            {n: getattr(ready, kind)[n][here] for n in getattr(ready, kind) if n not in getattr(r, kind)}
            for kind in ("rows", "memory")
        )
        loss = ready.loss if ready.loss is whole.loss else ready.loss.cut(here)
        parts = ready.parts and [part for part in (p.among(here) for p in ready.parts) if len(part.rows)]
        return replace(r.extended(rows=rows, memory=memory), server=ready.server, loss=loss, parts=parts)

    def aggregate(self, method: Method, r: Round, Y: Tensor, drawn: Drawn, state: State) -> dict[str, Tensor]:
        """`method.aggregate` on the rows that it sees; of client states, this process's rows."""
        if self.world.size == 1 or method.across == "sums":
            return hooks.aggregate(method, r, Y, list(state))
        whole = self.whole(r, drawn)
        new = hooks.aggregate(method, whole, self.gather(Y, drawn), list(state))
        here = self._here(whole.ids, drawn)
        return {k: v[here] if k in method.client_state else v for k, v in new.items()}

    def whole(self, r: Round, drawn: Drawn) -> Round:
        """The round with the rows of all processes, each gathered when it is first looked at."""
        plan = drawn.planned(np.sort(np.concatenate(drawn.dealt)))
        gather = partial(self.gather, drawn=drawn)
        fields = {"p": gather(r.p), "K": gather(r.K), "visits": gather(torch.as_tensor(r.visits)).numpy()}
        rows = {kind: Cut(getattr(r, kind), gather) for kind in ("rows", "memory")}
        loss, parts = r.loss.gathered(gather), self._all_parts(r, drawn, plan.clients)
        return replace(r, plan=plan, total=lambda v: v, loss=loss, parts=parts, **fields, **rows)

    def _all_parts(self, r: Round, drawn: Drawn, clients: np.ndarray) -> list[Part] | None:
        """The parts of all processes, their rows numbered as `clients`; the largest networks first, as on one."""
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
        """The rows of all processes in the order of one process."""
        clients = drawn.planned(np.sort(np.concatenate(drawn.dealt))).clients
        return self.world.gather(rows, [np.flatnonzero(np.isin(clients, part)) for part in drawn.dealt])

    def _here(self, clients: np.ndarray, drawn: Drawn) -> Tensor:
        """Which of these clients are this process's."""
        return torch.as_tensor(np.flatnonzero(np.isin(clients, self.dealt(drawn)))).to(self.base)

    # --- after the round ----------------------------------------------------------------------------------------------

    def put(self, state: State, new: Mapping[str, Tensor], drawn: Drawn, t: int) -> State:
        """The state after round t: `state` with what is new, its clients' rows and visits written in place."""
        if self.carrier is not None and not self.hosted and t + 1 < self.rounds:
            self.next = self.draw(state, t + 1)  # the device is still at this round's work
        server = dict(state.server)
        for name, value in new.items():
            if name not in state.clients:
                server[name] = value.to(self.fed.device)
            elif len(self.dealt(drawn)):
                state.clients[name][self._at_home(drawn.plan)] = value.to(self.home)
                if self.next is not None:  # what this round changes of the rows that were sent for
                    rows = np.intersect1d(drawn.plan.clients, self.next.plan.clients, return_indices=True)[1:]
                    now, then = (torch.as_tensor(at).to(self.fed.device) for at in rows)
                    self.next.rows()[name][then] = value[now]
        state.visits[drawn.cohort] += 1
        return replace(state, server=server)

    def everyone(self, state: State, to: int | None = None) -> dict[str, Tensor | None]:
        """The state with the rows of all clients; on process `to` alone, else on all."""
        if self.world.size == 1:
            return dict(state)
        return {**state.server, **{k: self.world.gather(v.cpu(), self.owned, to) for k, v in state.clients.items()}}


def _tensors(r: Round, y: Tensor) -> dict[str, Tensor]:
    """All tensors with one row a client."""
    rows = {f"{kind}/{name}": v for kind in ("rows", "memory") for name, v in getattr(r, kind).items()}
    return {"y": y, "p": r.p, "K": r.K, **rows}


def _with(r: Round, tensors: Mapping[str, Tensor]) -> Round:
    """The round with such tensors in place of its own."""
    rows = {kind: {n: tensors[f"{kind}/{n}"] for n in getattr(r, kind)} for kind in ("rows", "memory")}
    return replace(r, p=tensors["p"], K=tensors["K"], loss=r.loss.to(tensors["y"].device), **rows)


class Chunked:
    """Clients' objectives whose gradients are computed for `chunk` clients at a time, and given back where Y is."""

    def __init__(self, objective: Objective, chunk: int) -> None:
        self.objective, self.chunk = objective, chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def gradient(self, Y: Tensor, *given: Any) -> Tensor:
        """Gradients `[a, d]`, as the objective's."""
        return self.gradient_and_losses(Y, *given)[0]

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradients `[a, d]` and losses `[a]`, as the objective's."""
        results = (
            # of step k alone, which is step 0 there
            self.objective.gradient_and_losses(y, plan.of(rows, k), 0, some, direction)
            for rows, y, some, direction in self._cut(Y, loss, along)
        )
        G, losses = zip(*((g.to(Y.device), values.to(Y.device)) for g, values in results), strict=True)
        return torch.cat(G), torch.cat(losses)

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """Gradients `[a, d]` of the whole local objectives, as the objective's."""
        pieces = self._cut(Y, loss, along)
        G = [self.objective.full_gradient(y, plan.of(rows), k, some, v).to(Y.device) for rows, y, some, v in pieces]
        return torch.cat(G)

    def logits(self, Y: Tensor, plan: Plan, k: int) -> Tensor:
        """Logits on local step k's batch, as the objective's."""
        return torch.cat([self.objective.logits(y, plan.of(rows, k), 0).to(Y.device) for rows, y, *_ in self._cut(Y)])

    def _cut(self, Y: Tensor, loss: Loss = PLAIN, along: Tensor | None = None) -> Iterator[tuple[Any, ...]]:
        device = self.objective.device
        for a in range(0, len(Y), self.chunk):
            cut = slice(a, a + self.chunk)
            direction = None if along is None else along[cut].to(device)
            yield np.arange(len(Y))[cut], Y[cut].to(device), loss.cut(cut).to(device), direction


def _too_large(method: Method, fed: Objective, n: int) -> bool:
    """Whether n clients' states live in host memory, because they would fill the federation's device."""
    size = len(method.client_state) * n * fed.d * fed.x0.element_size()
    room = room_for_states(fed.device)
    if size <= room / 2:
        return False
    checks.warn(
        f"the client states {', '.join(method.client_state)} of {type(method).__name__} take {size / 1e9:.2f} GB "
        f"({n:,} clients x {fed.d:,} parameters) and {fed.device} has {room / 1e9:.2f} GB free: they are kept in "
        "host memory, and each round copies the cohort's rows",
    )
    return True


def room_for_states(device: torch.device) -> float:
    """Free bytes of an accelerator; a CPU has nowhere to move its states to."""
    return free(device) if has_own_memory(device) else math.inf


def chunk_size(method: Method, fed: Objective, s: Settings) -> int | None:
    """How many clients may take their local steps together: None for all, fewer where memory is short.

    Vectors of a client: through the round its parameters, their update, and its states, old and new; in its local steps
    a gradient, a direction, what a direction is made of, and a velocity; activations, unless they come in blocks.
    """
    m, vector, states = s.size, fed.d * fed.x0.element_size(), len(method.client_state)
    work = s.work(method, 0, s.cohort_of(0, fed.n))
    kept, steps = (2 + 2 * states) * vector, (3 + bool(work.momentum)) * vector
    steps += fed.activation_bytes(work.batch_size)
    room = 0.8 * free(fed.device)
    if m * (kept + steps) <= room:
        return None
    if has_own_memory(fed.device):  # two chunks at a time, one computed and one on its way
        most = room // (steps + 2 * (1 + states) * vector)
    else:
        most = (room - m * kept) // steps
    chunk = max(1, min(m, int(most)))
    block = fed.block or 1
    chunk = max(chunk // block * block, min(chunk, block))  # whole blocks, so that the result is the same to the bit
    if chunk == m:
        return None
    checks.warn(
        f"a round of {m:,} clients with {fed.d:,} parameters takes about {m * (kept + steps) / 1e9:.2f} GB and "
        f"{fed.device} has {room / 0.8e9:.2f} GB free: local steps are taken by {chunk:,} clients at a time",
    )
    return chunk


class Carrier:
    """Copies rows to a device beside what the device computes (on CUDA: a stream of its own, from pinned memory)."""

    def __init__(self, device: torch.device) -> None:
        self.device, cuda = device, device.type == "cuda"
        self.side = torch.cuda.Stream(device) if cuda else None

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Host memory that the device can read by itself."""
        return torch.empty(*shape, dtype=dtype, pin_memory=self.side is not None)

    def gather(self, rows: Tensor, at: Tensor) -> Tensor:
        """`rows[at]` in such memory."""
        return torch.index_select(rows, 0, at, out=self.empty(len(at), *rows.shape[1:], dtype=rows.dtype))

    def send(self, rows: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
        """Start copying the tensors among `rows`; the function returned has the copies wait for their arrival."""
        if self.side is None:
            copies = {k: v.to(self.device, copy=True) if isinstance(v, Tensor) else v for k, v in rows.items()}
            return lambda: copies
        with torch.cuda.stream(self.side):
            copies = {k: v.to(self.device, non_blocking=True) if _on_host(v) else v for k, v in rows.items()}

        def arrived() -> dict[str, Any]:
            main = torch.cuda.current_stream(self.device)
            main.wait_stream(self.side)
            for k, v in copies.items():
                if _on_host(rows[k]):
                    v.record_stream(main)  # its memory is the side stream's: not to be freed while main reads
            return copies

        return arrived

    def wait(self) -> None:
        """Wait until all that was sent back has arrived in host memory."""
        if self.side is not None:
            torch.cuda.current_stream(self.device).synchronize()


def _on_host(v: Any) -> bool:
    return isinstance(v, Tensor) and not v.is_cuda
