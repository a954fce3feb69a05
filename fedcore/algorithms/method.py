"""What a method is: broadcast, local direction, aggregate, on matrices whose rows are clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models import Layout

Gradient = Callable[..., Tensor]
"""Mini-batch gradients with weight decay: `[m, d]` local parameters -> `[m, d]`; every call in a step has one batch.
`G(y, along=v)` is their derivative at y in the directions `v [m, d]`: Hessian-vector products."""


@dataclass(frozen=True)
class Part:
    """Rows of a cohort whose local steps run on a smaller network: `rows` (ascending, on the host), `to` (its maker,
    `submodels.Width` or `Depth`; None: the whole one), `places [m_g, d_g]` of its entries in the whole vector (None:
    all of it), and what the direction needs of these clients beside, `more`: name -> `[m_g, ...]`.
    """

    rows: np.ndarray
    to: Callable[[Any], Any] | None
    places: Tensor | None = None
    more: Mapping[str, Tensor] = field(default_factory=dict)


class Round:
    """What a method can see in one round; the letters are those of the equations.

    Shared: `seed`, `t` (round, from 0), `n` (clients), `m` (rows), `lr` (local learning rate of this round),
    `server_lr`, and the server's vectors by their state name, such as `x [d]`.  Per client of the cohort, one row each:
    `K [m, 1]` (local steps), `p [m, 1]` (aggregation weights, sum 1), and the clients' states, such as `c_i [m, d]`.
    `full_gradient(Y)`: gradients `[m, d]` of the whole local objectives (with weight decay) at the rows of Y;
    `gradient(Y, k)`: those of the mini-batch of local step k; `step` is the k of the step at hand.
    For personal models: `share(s, e)`, epoch e over a random share s of each client's samples, drawn for this round:
    steps `[m]` and a `gradient(Y, k)` that gives gradients without weight decay, and losses `[m]`; `visits [m]`, in
    how many earlier rounds each client took part (a NumPy array).
    For sub-models: `ids [m]` (the clients' numbers, on the host), `fed` for its neurons and activations, and
    `within(rows, to, k)`, the gradient of some rows on a smaller network, `logits_within` their logits.

    The rows are the cohort, or this process's share of it (`fedcore.distributed`).  `mean` and `sum` are over the whole
    cohort, in `prepare` and `aggregate`; in a local step every row is on its own.  `total(v)` adds a tensor up over
    the processes.
    """

    total: Callable[[Tensor], Tensor] = staticmethod(lambda v: v)

    def __init__(self, shared: Mapping[str, Any], rows: Mapping[str, Tensor]) -> None:
        self._shared, self._rows = dict(shared), dict(rows)
        self.__dict__.update(self._shared, **self._rows)

    def head(self, a: int) -> Round:
        """The same round seen by the first a clients only (the others have finished their local steps).

        Rows are views: what a method writes to them in place is seen by the whole cohort's round.
        """
        return self.cut(slice(a))

    def cut(self, part: slice) -> Round:
        """The same round seen by some neighbouring clients only; rows are views, as in `head`."""
        return Round(self._shared, {k: v[part] for k, v in self._rows.items()})

    def to(self, device: torch.device) -> Round:
        """The same round with its tensors on a device."""
        return Round(moved(self._shared, device), moved(self._rows, device))

    def extended(self, shared: Mapping[str, Any], rows: Mapping[str, Tensor]) -> Round:
        """The same round with more to see."""
        return Round({**self._shared, **shared}, {**self._rows, **rows})

    def mean(self, rows: Tensor) -> Tensor:
        """sum_i p_i rows_i: `[m, d]` -> `[d]`."""
        return self.total(torch.mv(rows.T, self.p[:, 0]))

    def sum(self, rows: Tensor) -> Tensor:
        """sum_i rows_i: `[m, d]` -> `[d]`."""
        return self.total(rows.sum(0))


def moved(values: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The same values with tensors on a device."""
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()}


class Method:
    """FedAvg's round; a method overrides the verbs in which it differs.

    client_state: names of per-client states, matrices `[n, d]`.  uplink, downlink: numbers sent per client of the
    cohort and round, in units of d.  full_participation: whether the rule needs all clients in every round.
    zero: in a class with a `direction` of its own, names of hyper-parameters; where all are 0, v is the gradient alone
    (`descends`).
    across: how clients see each other when several processes share a round: "sums", in `prepare` and `aggregate` by
    `Round.mean` and `Round.sum` alone; "rows", `aggregate` gets the rows of the whole cohort.  There, a class of yours
    that has one of the two verbs must say which.
    """

    full_participation: bool = False
    client_state: tuple[str, ...] = ()
    uplink: float = 1
    downlink: float = 1
    across: str = "sums"
    zero: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def on(self, fed: Any) -> Any:
        """The federation as this method needs it; raises ValueError for one that it does not suit."""
        return fed

    def start(self, x: Tensor) -> dict[str, Tensor]:
        """The server's state before round 0, from the initial parameters `x [d]`."""
        return {"x": x}

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        """The row `[d]` that each client's state starts from; zero where none is given."""
        return {}

    def learning_rate(self, t: int, lr: float) -> float:
        """The local learning rate of round t, when the method has a schedule of its own."""
        return lr

    def local_momentum(self, momentum: float) -> float:
        """The momentum of the local steps, when the method has one of its own."""
        return momentum

    def broadcast(self, r: Round) -> Tensor:
        """Where each client of the cohort starts from: `[d]` for all, or `[m, d]`."""
        return r.x

    def prepare(self, r: Round) -> Round:
        """What the round needs before its first local step: another exchange with the server, or local memory."""
        return r

    def parts(self, r: Round) -> Sequence[Part] | None:
        """How the cohort splits into rows that train smaller networks; None: all rows train the whole one.

        In a part's round `y`, `x` (the start) and the rows of `Part.more` have one row a client of the part.
        """
        return None

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        """v in the local step y <- y - lr * v, `[m, d]`."""
        return G(y)

    def descends(self) -> bool:
        """Whether v is the client's gradient and nothing else, so that the engine may take the local steps itself."""
        owner = next(c for c in type(self).__mro__ if "direction" in vars(c))
        zero = vars(owner).get("zero")
        return owner is Method or (zero is not None and not any(getattr(self, name) for name in zero))

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        """The new state from the last local iterates `y [m, d]`: server vectors `[d]`, client states `[m, d]`."""
        return {"x": r.x + r.server_lr * r.mean(y - r.x)}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor | None:
        """The models `[n, d]` that the clients use after a round; None where all use the server's `x`."""
        return None

    def local_work(self, work: dict[str, Any]) -> dict[str, Any]:
        """`epochs`, `steps`, `batch_size` of a round as the user asked; a method with a fixed amount replaces them."""
        return work
