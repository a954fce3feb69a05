"""What a run carries from round to round, and what a round draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..algorithms.method import Method
from ..data.batches import Plan
from ..support import checks, memory


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
            memory.check(
                v.nbytes, v.device, f"a copy of the state {name} {tuple(v.shape)}", "fc.simulate, which makes none"
            )
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
