"""The interface of a method (broadcast, direction of a local step, aggregate) and the round that its hooks see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..engine import PLAIN, Loss
from ..engine.descent import decayed
from ..engine.shapes import Flat, Parameters, PerClient
from ..submodels import Part
from ..support import checks

if TYPE_CHECKING:  # types only: methods reach data and networks through the round
    from ..data.batches import Plan
    from ..engine.units import Neurons
    from ..models import Layout
    from ..objective.base import Objective


VERBS = ("prepare", "broadcast", "direction", "aggregate")
PREPARE, BROADCAST, DIRECTION, AGGREGATE = range(4)  # numbers of the hooks, so that each draws its own noise


class Gradient(Protocol):
    """The mini-batch gradient of a local step, with weight decay: `[m, d]` parameters -> `[m, d]`.

    All calls in a local step use the same mini-batch.  loss: differentiated in place of the round's own loss.
    along: directions `[m, d]`; the result is then the Hessian-vector product of each row.
    """

    def __call__(self, y: Parameters, *, loss: Loss | None = None, along: Parameters | None = None) -> Parameters: ...


@dataclass(frozen=True)
class Work:
    """The local work of round t: learning rate, momentum, and `steps`, or `epochs` over batches of `batch_size`.

    seed: of the run, for a number of steps that is drawn.
    steps, epochs: one whole number for all clients, or `[m]`, one for each client of the cohort in ascending order.
    batch_size None: full local batches.  walk: an epoch continues over rounds, one mini-batch after another (FedSMB).
    """

    t: int
    lr: float
    momentum: float = 0.0
    epochs: int | np.ndarray = 1
    steps: int | np.ndarray | None = None
    batch_size: int | None = 20
    walk: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Cost:
    """The cost of a round for one client of the cohort: communication and computation.

    down, up: numbers received and sent in a round, in units of d; None where they depend on the number of clients.
    `up` excludes what the server can compute from the other uploads.
    gradients: mini-batch gradients in a local step.  products: Hessian-vector products in a local step, each the work
    of two gradients.  forwards: further forward passes in a local step.  full_gradients: gradients of the whole local
    objective in a round.  note: what these numbers leave out.  stated: False for a user's method that changes the round
    and has no `cost`; all numbers are then NaN.

    Frozen parameters are not sent; they are left out where the layout is known.  `simulate` nevertheless keeps the
    clients' states as `[n, d]`.
    """

    down: float | None = 1
    up: float | None = 1
    gradients: float = 1
    products: float = 0
    forwards: float = 0
    full_gradients: float = 0
    note: str = ""
    stated: bool = True

    @classmethod
    def of(cls, layout: Layout | None, down: float | None = 1, up: float | None = 1, **more: Any) -> Cost:
        """The cost from `down` and `up` in units of the trained parameters, which are fewer than d where some are
        frozen."""
        part = layout.moving.double().mean().item() if layout else 1
        return cls(*(None if v is None else v * part for v in (down, up)), **more)

    def __repr__(self) -> str:
        if not self.stated:
            return f"Cost(not stated: {self.note})"
        return checks.as_call(self)


def and_one(layout: Layout | None) -> float:
    """The size of a vector and one number (the number of local steps), in units of the trained parameters."""
    return 1 + (1 / max(1, int(layout.moving.sum())) if layout else 0)


def share(layout: Layout | None, mask: Tensor) -> float:
    """The share of the trained parameters for which `mask [d]` is true; a quadratic trains all its parameters."""
    if layout is not None:
        mask = mask[layout.moving]
    return mask.double().mean().item() if len(mask) else 0.0


def _not_stated(self: Method, layout: Layout | None = None) -> Cost:
    """The cost of a user's method that changes the round and has no `cost` of its own."""
    note = f"{type(self).__name__} changes the round; write its cost(self, layout) -> fedcore.algorithms.method.Cost"
    return Cost(*[math.nan] * 6, note=note, stated=False)


def on_host(v: Tensor) -> bool:
    """A truth value of the device as a bool of the host, which waits for all pending work of the device.

    Methods read the device within a round only through this function.  FedALA alone uses it: once an epoch from the
    eleventh on, in rounds with a client that takes part for the second time.
    """
    return bool(v)


@dataclass
class Round:
    """One round as a method sees it; the letters are those of the equations.

    For the whole round: `seed`, `t` (from 0), `n` clients, `lr` (local learning rate), `server_lr`, and the server's
    vectors by their state name, such as `x [d]`.  With a row for each client of the cohort: `p [m, 1]` (aggregation
    weights, sum 1), `K [m, 1]` (local steps), `clients [m]` (numbers; `ids` are the same on the host), `visits [m]`
    (earlier rounds with this client, on the host), and the clients' states, such as `c_i [m, d]`.  Rows with more local
    steps come first.  `step` is the number k of the local step, `hook` the number of the hook, and `draws` counts the
    hook's calls of `noise`.

    The rows are the cohort, or one process's share of it (`fedcore.distributed`).  `mean` and `sum` are over the whole
    cohort and belong in `prepare` and `aggregate`; a direction treats every row by itself.
    """

    objective: Objective
    plan: Plan
    seed: int
    t: int
    n: int
    lr: float
    server_lr: float
    p: Tensor
    K: Tensor
    visits: np.ndarray
    weight_decay: float = 0.0
    clip: float | None = None
    momentum: float = 0.0
    batch_size: int | None = None
    step: int = 0
    hook: int = PREPARE
    draws: Iterator[int] = field(default_factory=itertools.count)
    loss: Loss = PLAIN
    parts: Sequence[Part] | None = None
    server: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    total: Callable[[Tensor], Tensor] = lambda v: v

    def __repr__(self) -> str:
        """One line: the round, its clients, and the names of its states and of its memory."""
        kinds = {"server": self.server, "clients": self.rows, "memory": self.memory}
        held = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
        return f"Round(t={self.t}, clients={checks.brief(self.ids.tolist())} of {self.n}, lr={self.lr:g}; {held})"

    def __getattr__(self, name: str) -> Any:
        """A server vector, a client state, or a tensor that `prepare` added, by its name."""
        known = [self.__dict__.get(kind, {}) for kind in ("rows", "server", "memory")]
        for values in known:
            if name in values:
                return values[name]
        names = ", ".join(sorted({name for values in known for name in values}))
        raise AttributeError(f"the round has no {name!r}; states and what prepare() added are: {names}")

    @property
    def m(self) -> int:
        """The number of rows: clients of the cohort, or of this process's share of it."""
        return len(self.p)

    @property
    def ids(self) -> np.ndarray:
        """The clients' numbers `[m]` on the host."""
        return self.plan.clients[: self.m]

    @property
    def clients(self) -> Tensor:
        """The clients' numbers `[m]` on the round's device."""
        return self.plan.rows[: self.m].to(self.p.device)

    @property
    def layout(self) -> Layout | None:
        """The position of each parameter tensor in the flat vector; None for a quadratic."""
        return self.objective.layout

    @property
    def trained(self) -> Tensor | None:
        """Which parameters are trained, `[d]` bool; None where all are.  `requires_grad=False` freezes a parameter."""
        trained = self.objective.trained
        return None if trained is None else trained.to(self.p.device)

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers of the shape and type of `like`: a row for each client, `[m, ...]`, or a vector `[d]`
        for the server.

        The numbers depend on the seed, the round, the client, the hook, the local step, and the number of earlier calls
        in the same hook and step, so each call returns new numbers.  Unlike with `torch.randn`, a resumed run is the
        same to the bit, and the order, chunks and processes of the cohort make no difference.  They are drawn on the
        host.
        Raises TypeError unless `like` is a tensor of real numbers, ValueError for a matrix without one row per client.
        """
        if not isinstance(like, Tensor) or not like.is_floating_point():
            raise TypeError(f"noise(like={checks.brief(like)}); use a tensor of real numbers [m, d] or [d], such as y")
        if like.ndim > 1 and len(like) != self.m:
            raise ValueError(
                f"noise(like) has shape {tuple(like.shape)}, but the round has {self.m} clients here; use a row for "
                "each client, or a vector for the server's noise"
            )
        who, size = (self.ids, like[0].numel()) if like.ndim > 1 else (-1, like.numel())
        keys = rng.words(self.seed, rng.NOISE, self.t, self.hook, self.step, next(self.draws), who)
        return torch.as_tensor(rng.normals(keys, size), dtype=like.dtype).to(like.device).view(like.shape)

    # --- over the cohort ---------------------------------------------------------------------------------------------

    def mean(self, rows: Parameters | PerClient) -> Tensor:
        """sum_i p_i rows_i: `[m, d]` -> `[d]`, or one number for each client `[m]` -> a number."""
        if rows.ndim == 1:
            return self.mean(rows[:, None])[0]
        return self.total(torch.mv(rows.T, self.p[:, 0]))

    def sum(self, rows: Parameters) -> Flat:
        """sum_i rows_i: `[m, d]` -> `[d]`."""
        return self.total(rows.sum(0))

    # --- gradients ---------------------------------------------------------------------------------------------------

    def gradient(
        self,
        Y: Tensor,
        k: int | None = None,
        *,
        loss: Loss | None = None,
        along: Tensor | None = None,
        decay: bool = True,
    ) -> Tensor:
        """Gradients `[a, d]` of the first a = len(Y) clients on the mini-batch of local step k (None: `step`).

        loss: the loss to differentiate, None for the round's own.  along: directions `[a, d]`, for Hessian-vector
        products.  decay: whether to add weight decay.
        """
        loss = (self.loss if loss is None else loss).cut(slice(len(Y)))
        G = self.objective.gradient(Y, self.plan, self.step if k is None else k, loss, along)
        return self._decayed(G, Y if along is None else along) if decay else G

    def full_gradient(self, Y: Parameters) -> Parameters:
        """Gradients `[m, d]` of the whole local objectives at the rows of Y, with weight decay, by the federation's own
        loss."""
        return self._decayed(self.objective.full_gradient(Y, self.plan), Y)

    def losses(self, Y: Parameters) -> PerClient:
        """Losses `[m]` of the whole local objectives at the rows of Y, without weight decay, by the federation's loss.

        `r.losses(r.x.expand(r.m, -1))` are those at the received model.
        """
        return self.objective.gradient_and_losses(Y, replace(self.plan, indices=None), -1)[1]

    def _decayed(self, G: Tensor, Y: Tensor) -> Tensor:
        return decayed(G, Y, self.weight_decay, self.objective.trained)

    def share(self, part: float, epoch: int) -> tuple[np.ndarray, Callable[[Tensor, int], tuple[Tensor, Tensor]]]:
        """Epoch number `epoch` over a random share of each client's samples, drawn for this round.

        Returns the numbers of mini-batches `[m]`, and a function `(Y [m, d], k) -> gradients [m, d], losses [m]` on
        mini-batch k, without weight decay.  part: the share of the samples.
        """
        work = {"batch_size": self.batch_size, "share": part, "epoch": epoch}
        plan = self.objective.plan(self.seed, self.t, self.ids, **work)
        return plan.steps, lambda Y, k: self.objective.gradient_and_losses(Y, plan, k)

    # --- the network -------------------------------------------------------------------------------------------------

    def neurons(self, aligned: bool = True) -> Neurons:
        """The network's hidden units and their entries in the flat vector."""
        return self.objective.neurons(aligned)

    def label_counts(self) -> Tensor:
        """How many samples of each label each client has, `[m, classes]`."""
        return torch.as_tensor(self.objective.label_counts()[self.ids]).to(self.p.device)

    def owned(self) -> Tensor:
        """Which labels each client holds, `[m, classes]` bool."""
        return self.label_counts() > 0

    def activations(self, budget: int | None = None) -> list[Tensor]:
        """Mean activations of the server's model over each client's data, `[m, width]` for each stream.

        budget: at most so many samples of each client; None uses all.
        """
        return self.objective.activations(self.x, self.ids, budget, rng.word(self.seed, rng.RESAMPLE, self.t))

    def with_statistics(self, Y: Parameters) -> Parameters:
        """A copy of the models `Y [m, d]` in which the fixed statistics of each `models.FixableBatchNorm` are those of
        the client's training data."""
        return self.objective.with_statistics(Y, self.ids)

    def logits(self, Y: Tensor) -> Tensor:
        """Logits of the local step's mini-batch under each row of Y, without gradient."""
        return self.objective.logits(Y, self.plan, self.step)

    # --- other views of the same round --------------------------------------------------------------------------------

    def extended(
        self,
        server: Mapping[str, Any] | None = None,
        rows: Mapping[str, Tensor] | None = None,
        memory: Mapping[str, Tensor] | None = None,
        **fields: Any,
    ) -> Round:
        """The same round with further tensors.

        server: values shared by all clients.  rows: one row for each client, `[m, ...]`.  memory: rows `[m, ...]` that
        `direction` may write to in place; it may write to nothing else.  fields: `loss`, which G differentiates, and
        `parts`, the clients that train smaller networks; in the round of a part, `y`, `x` and all rows hold only the
        entries of its network.  Raises ValueError for a name that the round has already.
        """
        added = {"server": server, "rows": rows, "memory": memory}
        for kind, name in ((kind, name) for kind, new in added.items() for name in new or ()):
            if is_taken(name) or any(name in getattr(self, other) for other in added if other != kind):
                field = f", or r.extended({name}=...) for the field itself" * (name in Round.__dataclass_fields__)
                raise ValueError(f"r.extended({kind}=...) has {name!r}, a name of the round; use another name{field}")
        more = {kind: {**getattr(self, kind), **new} for kind, new in added.items() if new}
        return replace(self, **more, **fields)

    def in_hook(self, number: int) -> Round:
        """The same round as hook `number` sees it; each hook has its own noise."""
        return replace(self, hook=number, draws=itertools.count())

    def head(self, a: int) -> Round:
        """The same round for its first a clients (the others have taken all their local steps); rows are views."""
        return self if a == self.m else replace(self, **self._cut(slice(a)))

    def some(self, part: slice) -> Round:
        """The same round for the clients of a slice; rows are views."""
        return replace(self, plan=self.plan.of(np.arange(self.m)[part]), **self._cut(part))

    def within(self, part: Part) -> Round:
        """The same round for the clients of a part: `x` and all matrices hold only the entries of its network."""
        at, whole = torch.as_tensor(part.rows).to(self.p.device), (self.m, len(self.x))

        def cut(v: Tensor) -> Tensor:
            return part.take(v) if v.shape[:2] == whole else v[at]

        return replace(
            self,
            objective=self.objective if part.to is None else self.objective.shrink(part.to),
            plan=self.plan.of(part.rows),
            p=self.p[at],
            K=self.K[at],
            visits=self.visits[part.rows],
            loss=self.loss.cut(at),
            parts=None,
            rows=Cut({**self.rows, "x": self.x.expand(whole)}, cut),
        )

    def to(self, device: torch.device) -> Round:
        """The same round with its tensors on another device."""
        moved = {kind: _each(getattr(self, kind), lambda v: v.to(device)) for kind in ("server", "rows", "memory")}
        return replace(self, p=self.p.to(device), K=self.K.to(device), loss=self.loss.to(device), **moved)

    def _cut(self, part: slice) -> dict[str, Any]:
        cut = {kind: _each(getattr(self, kind), lambda v: v[part]) for kind in ("rows", "memory")}
        fields = {name: getattr(self, name)[part] for name in ("p", "K", "visits")}
        return {**cut, **fields, "loss": self.loss.cut(part)}


def is_taken(name: str) -> bool:
    """Whether the round has a field or a method of this name, which a tensor of this name would not replace."""
    return hasattr(Round, name) or name in Round.__dataclass_fields__


class Cut(Mapping[str, Tensor]):
    """Tensors that are cut at their first use, because a part reads only a few of a round's matrices."""

    def __init__(self, whole: Mapping[str, Tensor], cut: Callable[[Tensor], Tensor]) -> None:
        self.whole, self.cut, self.cached = whole, cut, {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.cached:
            self.cached[name] = self.cut(self.whole[name])
        return self.cached[name]

    def __contains__(self, name: object) -> bool:
        return name in self.whole  # without cutting, as Mapping's own test would

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def _each(values: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> Mapping[str, Any]:
    """The same values with `change` applied to all tensors; lazily where the values are a `Cut`."""
    if isinstance(values, Cut):
        return Cut(values, change)
    return {k: change(v) if isinstance(v, Tensor) else v for k, v in values.items()}


class Method(checks.Named):
    """FedAvg's round; a method overrides the verbs in which it differs.

    client_state: names of per-client states, matrices `[n, d]`.
    full_participation: whether the rule needs all clients in every round.
    has_server: whether the server's model `x` is what the clients train.  Otherwise it serves evaluation only: it is
    what `aggregate` returns, buffers included, and `server_lr` must be 1.
    across: which rows `prepare` and `aggregate` see where several processes share a round.  "rows": all rows of the
    cohort.  "sums": only the process's own rows; the two hooks then combine clients with `Round.mean` and `Round.sum`
    alone, which add up over the processes.  A class of yours that overrides one of the two sees "rows" unless it sets
    across = "sums".
    """

    full_participation: bool = False
    has_server: bool = True
    client_state: tuple[str, ...] = ()
    across: str = "sums"

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        inherited = [b for b in cls.__bases__ if issubclass(b, Method)]
        as_a_base = any(b.prepare is cls.prepare and b.aggregate is cls.aggregate for b in inherited)
        if "across" not in vars(cls) and not as_a_base and not checks.is_ours(cls):
            cls.across = "rows"  # also where the verb comes from a mixin that is no Method
        first = {name: next(k for k in cls.__mro__ if name in vars(k)) for name in (*VERBS, "cost")}
        cost = cls.__mro__.index(first.pop("cost"))
        users = (k for k in first.values() if not checks.is_ours(k))
        if any(cls.__mro__.index(k) < cost for k in users):
            cls.cost = _not_stated
        if not isinstance(cls.takes_gradients, property | cached_property) and cls.takes_gradients:
            raise TypeError(
                f"{cls.__name__}.takes_gradients={cls.takes_gradients!r}, with which a direction would not be called; "
                "leave it out, as the direction tells, or set it to False"
            )

    def __post_init__(self) -> None:
        """Check the fields of a dataclass whose annotations have a range (`checks`)."""
        checks.fields(self)

    def on(self, fed: Any) -> Any:
        """The federation as this method needs it; raises ValueError for a federation that does not suit the method."""
        return fed

    def start(self, x: Flat) -> dict[str, Tensor]:
        """The server's state before round 0, from the initial parameters `x [d]`."""
        return {"x": x}

    def client_start(self, x: Flat) -> dict[str, Flat]:
        """The initial row `[d]` of each client state, by name; a state that is left out starts at zero."""
        return {}

    def local_work(self, work: Work) -> Work:
        """The local work of a round; a method whose rule fixes some of its fields replaces them."""
        return work

    def prepare(self, r: Round) -> Round:
        """The round with what its local steps need: results of another exchange with the server, or local memory."""
        return r

    def broadcast(self, r: Round) -> Flat | Parameters:
        """The parameters from which the clients of the cohort start: `[d]` for all, or `[m, d]`."""
        return r.x

    def direction(self, G: Gradient, y: Parameters, r: Round) -> Parameters:
        """The direction v `[m, d]` of the local step y <- y - lr * v."""
        return G(y)

    @property
    def takes_gradients(self) -> bool:
        """Whether v is the client's plain gradient, so that the engine may take the local steps itself."""
        return getattr(self.direction, "__func__", None) is Method.direction

    def aggregate(self, r: Round, y: Parameters) -> dict[str, Flat | Parameters]:
        """The new state from the last local iterates `y [m, d]`: server vectors `[d]`, client states `[m, d]`."""
        return {"x": r.x + r.server_lr * r.mean(y - r.x)}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Parameters | None:
        """The models `[n, d]` that the clients use after a round; None where all use the server's `x`.

        A method that keeps models in its clients' states returns them here.  Without this hook, `personal=True`
        evaluates the server's model for every client.
        """
        return None

    def cost(self, layout: Layout | None = None) -> Cost:
        """The cost of a round; layout: the model's, for methods whose traffic depends on its layers.

        For a class of yours that overrides a verb, all numbers are NaN until it overrides `cost` too, such as with
        `return Cost.of(layout, down=2)`.
        """
        return Cost.of(layout)
