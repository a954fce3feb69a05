"""The state that a run carries from round to round, and the draw of a round."""

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
    """The state between two rounds: the server's vectors `[d]` and the clients' rows `[n, d]`, by name.

    `visits [n]`: in how many rounds each client took part, on the host.  origin: the method's class and a description
    of the data, compared when the state is used; None is not compared.
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
        """A copy that a round may write to, because a round writes the clients' rows in place."""
        for name, v in self.clients.items():
            memory.check(
                v.nbytes, v.device, f"a copy of the state {name} {tuple(v.shape)}", "fc.simulate, which makes none"
            )
        clients = {k: v.clone() for k, v in self.clients.items()}
        return replace(self, server=dict(self.server), clients=clients, visits=self.visits.copy())


@dataclass(frozen=True)
class Drawn:
    """The draw of a round: the `cohort`, the clients `dealt` to each process, the `plan` of this process's batches,
    the function `planned` that plans batches for any clients, and the function `rows` that returns the states of this
    process's clients."""

    cohort: list[int]
    dealt: list[np.ndarray]
    plan: Plan
    planned: Callable[[np.ndarray], Plan]
    rows: Callable[[], dict[str, Tensor]]
