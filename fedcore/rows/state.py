"""The state that a run carries from round to round, and the draw of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..algorithms import contract
from ..algorithms.method import Method, Work
from ..data.batches import Plan
from ..objective.base import Objective
from ..support import checks, memory


@dataclass(frozen=True)
class State(Mapping[str, Tensor]):
    """The state between two rounds: the server's vectors `[d]` and the clients' rows `[n, d]`, by name.

    `visits [n]`: in how many rounds each client took part, a NumPy array.  origin: the method's class and a description
    of the data, which must agree with those of the round that uses the state; None skips this check.
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
        """The same state with some of its tensors replaced, by name; TypeError for a name that it does not have."""
        if unknown := [name for name in tensors if name not in self]:
            raise TypeError(f"the state has no {unknown[0]!r}; {checks.nearest(unknown[0], list(self))}")
        server = {k: tensors.get(k, v) for k, v in self.server.items()}
        return replace(self, server=server, clients={k: tensors.get(k, v) for k, v in self.clients.items()})

    def copy(self) -> State:
        """A copy for a round to overwrite: a round writes the clients' rows in place.  Raises MemoryError."""
        for name, v in self.clients.items():
            memory.check(
                v.nbytes, v.device, f"a copy of the state {name} {tuple(v.shape)}", "fc.simulate, which makes none"
            )
        clients = {k: v.clone() for k, v in self.clients.items()}
        return replace(self, server=dict(self.server), clients=clients, visits=self.visits.copy())


def first(method: Method, fed: Objective, n: int, home: torch.device) -> State:
    """The state before round 0, with the rows of n clients on the device `home`."""
    x, names = fed.x0.clone(), method.client_state
    server, given = contract.start(method, x), contract.client_start(method, x)
    memory.check(
        len(names) * n * fed.d * x.element_size(),
        home,
        f"the states {', '.join(names)} of {type(method).__name__} ({n:,} clients x {fed.d:,} parameters x "
        f"{x.element_size()} bytes each)",
        "fewer clients, a smaller model, or a method without states of its clients, such as fc.FedAvg()",
    )
    clients = {name: torch.zeros(n, fed.d, dtype=x.dtype, device=home) for name in names}
    for name, row in given.items():
        clients[name] += row.to(home)
    return State(server, clients, np.zeros(fed.n, int), _origin(method, fed))


def check(state: State, method: Method, fed: Objective) -> None:
    """Raise ValueError unless `state` is a state of this method on this federation."""
    want = dict.fromkeys(method.start(fed.x0), (fed.d,)) | dict.fromkeys(method.client_state, (fed.n, fed.d))
    given = {k: tuple(v.shape) for k, v in state.items()} if isinstance(state, State) else type(state).__name__
    if given != want:
        raise ValueError(
            f"the state has {given}, but {method!r} on this federation has {want}; "
            "use the state that fc.start(method, fed) or fc.one_round(method, fed, ...) returned"
        )
    ours, here = _origin(method, fed)
    kind, data = state.origin or (ours, here)
    if data != here or not (issubclass(kind, ours) or issubclass(ours, kind)):
        raise ValueError(
            f"the state is one of {kind.__name__} on {data}, not of {ours.__name__} on {here}; to start from its "
            'model nevertheless, use fc.start(method, fed).updated(x=state["x"])'
        )
    x = state["x"]
    if (x.device, x.dtype) != (fed.device, fed.x0.dtype):
        raise ValueError(
            f"the state is {x.dtype} on {x.device}, the federation {fed.x0.dtype} on {fed.device}; "
            "use fed.to(device, dtype), or a state of this federation"
        )


def _origin(method: Method, fed: Objective) -> tuple[type[Method], str]:
    source = getattr(fed, "source", None)
    data = f"{source.name!r}, {fed.partition}, seed {fed.seed}" if source else f"{fed.n} quadratics"
    return type(method), data


@dataclass(frozen=True)
class Drawn:
    """The draw of a round: the `cohort` in ascending order, the clients `dealt` to each process, the local `work`, the
    `plan` of this process's batches, the function `planned` that plans batches for any clients, and the function `rows`
    that returns the states of this process's clients."""

    cohort: list[int]
    dealt: list[np.ndarray]
    work: Work
    plan: Plan
    planned: Callable[[np.ndarray], Plan]
    rows: Callable[[], dict[str, Tensor]]

    @cached_property
    def whole(self) -> Plan:
        """The plan of the whole cohort, over all processes."""
        return self.planned(np.array(self.cohort))

    @cached_property
    def places(self) -> list[np.ndarray]:
        """The positions of each process's clients in the whole plan."""
        return [np.flatnonzero(np.isin(self.whole.clients, clients)) for clients in self.dealt]
