"""The round loop: cohorts, seeds, local steps, evaluation, progress, checkpoints, History."""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import checkpoint, checks, distributed, rng, travel
from .algorithms.method import Method, Part, Round, moved
from .data.federation import Federation, Plan, Quadratic
from .progress import bar as progress_bar

Probe = Callable[[Round, Tensor], Mapping[str, Tensor]]
Row = tuple[int, str, int | None, float]


class Diverged(FloatingPointError):
    """A client's parameters are no longer finite.  `.round`, `.client`, and `.history` of everything before.

    The history's `params` and server vectors are those of the last evaluation, its `cohorts` end with this round;
    client states are as the failing round left them.
    """

    def __init__(self, round: int, client: int, history: History) -> None:
        self.round, self.client, self.history = round, client, history
        lr = history.settings["lr"]
        super().__init__(
            f"client {client} left the finite numbers in round {round} with lr={lr:g}; use a smaller lr, clip, or a "
            "milder hyper-parameter. The history up to there is in this error's .history"
        )


@dataclass
class History:
    """What a run leaves: `params [d]`, `state`, `cohorts`, and metrics by round.

    Row `round=r` of a metric is the model after r rounds; round 0 is the initial model.  `seconds` is the wall time
    of this process and no part of `frame()`, which is the same to the bit when a run is repeated or resumed.
    """

    params: Tensor
    state: dict[str, Tensor]
    method: Method
    settings: dict[str, Any]
    cohorts: list[list[int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    def frame(self) -> Any:
        """Tidy pandas.DataFrame: round, metric, client (None for the server), value."""
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=["round", "metric", "client", "value"])
        return frame.astype({"round": int, "client": "Int64", "value": float})

    def curve(self, metric: str = "accuracy", client: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and values of a metric of the server, or of one client; raises KeyError naming those there are."""
        pairs = [(t, v) for t, name, i, v in self.rows if name == metric and i == client]
        if not pairs:
            known = sorted({name for _, name, i, _ in self.rows if i == client})
            raise KeyError(f"metric={metric!r} was not recorded; use one of {known}")
        t, v = zip(*pairs, strict=True)
        return np.array(t), np.array(v)

    def final(self, metric: str = "accuracy", client: int | None = None) -> float:
        """The last value of a metric, of the server or of one client."""
        return float(self.curve(metric, client)[1][-1])

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """A metric against rounds (a matplotlib Figure); the default is accuracy, or loss where there is none."""
        from . import plots

        if metric is None:
            metric = "accuracy" if any(name == "accuracy" for _, name, _, _ in self.rows) else "loss"
        t, v = self.curve(metric)
        figure, axes = (ax.figure, ax) if ax is not None else plots.figure()
        plots.curves(axes, {repr(self.method): v[None]}, x=t)
        axes.set(xlabel="communication round", ylabel=metric)
        return figure


def simulate(
    method: Method,
    fed: Federation | Quadratic,
    *,
    rounds: int,
    cohort: int | float | None = None,
    lr: float = 0.1,
    lr_decay: float = 1.0,
    local_epochs: int = 1,
    local_steps: int | None = None,
    batch_size: int | None = 20,
    server_lr: float = 1.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    momentum: float = 0.0,
    weighting: str = "uniform",
    seed: int = 0,
    eval_every: int = 1,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    progress: bool | None = None,
    probes: Sequence[Probe] = (),
    personal: bool | str = False,
    chunk: int | None = None,
) -> History:
    """Run a method on a federation for `rounds` rounds and return its `History`.

    cohort: clients per round, an int, a fraction (float), or None for all.  lr: local learning rate, times `lr_decay`
    after every round.  local_epochs: K_i = local_epochs * ceil(N_i / batch_size) steps, different for clients of
    different size; `local_steps`, when given, is K for all.  batch_size: None is the full local batch.  A local step
    is gradient, + weight_decay * y, + the method's correction, then `clip` (each client's norm), then `momentum` (a
    buffer that is new every round), then the step.  weighting: p_i = 1/m ("uniform") or N_i / sum N ("samples").

    seed: decides cohorts and batches, each a function of (seed, round, client) alone.  eval_every: rounds between
    evaluations of the server model; the last round is always evaluated.  dtype, device: default the federation's.
    probes: functions `(round, y [m, d]) -> {name: scalar or [m]}`, recorded at evaluations.  What round t (from 0)
    shows stands under t + 1, although its `x` is the model before it.
    personal: also evaluate the clients' models, with their numbers in the history (`Federation.evaluate_clients`).
    True: after the round, every client the model it uses (`Method.personal`, else the server's).  "local": the
    cohort's models at the end of their local training, before they are averaged.

    chunk: clients of a cohort that take their local steps together at most; None: all of them, or as many as there is
    memory for (asked once, with a warning).  On an accelerator the cohort's rows then live in host memory and travel.
    Results are equal to rounding; to the bit where clients are computed one by one or in blocks that chunks hold whole.

    checkpoint_dir: a folder for `checkpoint.npz`, written atomically every `checkpoint_every` rounds (default: at
    evaluations); with `resume` a run continues from it and ends bit-identical to one that was never stopped.
    progress: a bar; None shows one for runs over a second on a terminal or in a live notebook.

    In a process group of torch.distributed, as under torchrun, the processes share the run: `fedcore.distributed`.

    Raises ValueError and TypeError for arguments out of range, Diverged when a client leaves the finite numbers,
    CheckpointError for a damaged or foreign checkpoint, OSError for a folder that cannot be written.
    """
    if not isinstance(method, Method):
        hint = "an instance such as fc.FedAvg()" if isinstance(method, type) else "a method such as fc.FedAvg()"
        raise TypeError(f"method={method!r}; use {hint}")
    if not isinstance(fed, Federation | Quadratic):
        raise TypeError(f"fed={type(fed).__name__}; make one with fc.federation(...) or fc.quadratic(A, b)")
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype={dtype}; use torch.float32, torch.float64, or None for the federation's own")
    if batch_size is not None:
        batch_size = checks.integer("batch_size", batch_size, 1, hint="or None for the full local batch")
    if local_steps is not None:
        local_steps = checks.integer("local_steps", local_steps, 1, hint="or None for local_epochs")
    rounds = checks.integer("rounds", rounds, 0)
    eval_every = checks.integer("eval_every", eval_every, 1)
    if checkpoint_every is not None:
        checkpoint_every = checks.integer("checkpoint_every", checkpoint_every, 1)
    if clip is not None:
        clip = checks.number("clip", clip, 0, open_low=True)
    if callable(probes):
        raise TypeError(f"probes={probes!r} is one probe; use a list of them, probes=[...]")
    if not isinstance(personal, bool):
        checks.choice("personal", personal, ("local",))
    if personal and not isinstance(fed, Federation):
        raise ValueError(f"personal={personal!r}, but a quadratic has no test set; use personal=False")
    fed = method.on(fed.to(device, dtype))
    settings = {
        "lr": checks.number("lr", lr, 0, open_low=True),
        "lr_decay": checks.number("lr_decay", lr_decay, 0, open_low=True),
        "cohort": _cohort_size(cohort, fed.n),
        "local_epochs": checks.integer("local_epochs", local_epochs, 1),
        "local_steps": local_steps,
        "batch_size": batch_size,
        "server_lr": checks.number("server_lr", server_lr, 0, open_low=True),
        "weight_decay": checks.number("weight_decay", weight_decay, 0),
        "clip": clip,
        "momentum": checks.number("momentum", momentum, 0, 0.999999),
        "weighting": checks.choice("weighting", weighting, ("uniform", "samples")),
        "seed": checks.integer("seed", seed, 0),
        "eval_every": eval_every,
    }
    if abs(math.log(settings["lr"]) + rounds * math.log(settings["lr_decay"])) > 700:
        raise ValueError(
            f"lr={lr:g} with lr_decay={lr_decay:g} leaves the floating-point numbers within rounds={rounds}; "
            "use an lr_decay nearer to 1, or fewer rounds"
        )
    if method.full_participation and settings["cohort"] < fed.n:
        raise ValueError(
            f"{type(method).__name__} needs all {fed.n} clients in every round, cohort={cohort}; use cohort=None"
        )
    if chunk is None:
        chunk = _chunk(method, fed, settings)
    else:
        chunk = checks.integer("chunk", chunk, 1, hint="or None for as many as there is memory for")
    world = distributed.world()
    with world.together():
        run = _Run(method, fed, settings, list(probes), rounds, personal, world, chunk)
        store = checkpoint.Store(checkpoint_dir, run.identity()) if checkpoint_dir is not None else None
        if store and resume:
            run.restore(store.load(rounds))
        return run.go(store, checkpoint_every or eval_every, False if world.rank else progress)


class Drawn(NamedTuple):
    """A round before it begins: its cohort, each process's share of it, how plans are made, our plan and states."""

    cohort: list[int]
    dealt: list[np.ndarray]
    planned: Callable[..., Plan]
    plan: Plan
    states: Callable[[], dict[str, Tensor]]


class _Run:
    """One simulation: the state between rounds, and the round itself."""

    def __init__(
        self,
        method: Method,
        fed: Federation | Quadratic,
        settings: dict,
        probes: list[Probe],
        rounds: int,
        personal: bool | str,
        world: distributed.World,
        chunk: int | None,
    ) -> None:
        self.method, self.fed, self.s, self.probes, self.rounds = method, fed, settings, probes, rounds
        self.personal, self.visits, self.world = personal, np.zeros(fed.n, int), world
        if world.size > 1:
            _shareable(method, fed, world.size)
        self.owned = [np.arange(r, fed.n, world.size) for r in range(world.size)]  # whose states each process keeps
        self.own = self.owned[world.rank]
        self.spare = self.own[[fed.sizes[self.own].argmin()]]
        self.chunk = chunk if chunk is not None and chunk < settings["cohort"] else None
        self.state = {k: v.clone() for k, v in method.start(fed.x0).items()}
        rows = method.client_start(fed.x0)
        self.travels = self.chunk is not None and travel.apart(fed.device)  # the cohort's rows live in host memory
        self.away = self.travels or _away(method, fed, len(self.own))  # the clients' states do
        self.carrier = travel.Carrier(fed.device) if self.away else None
        self.home, self.base = (torch.device("cpu") if far else fed.device for far in (self.away, self.travels))
        self.ahead: Drawn | None = None  # the next round's, sent for
        for name in method.client_state:
            self.state[name] = torch.zeros(len(self.own), fed.d, dtype=fed.dtype, device=self.home)
            if name in rows:
                self.state[name] += rows[name].to(self.home)
        self.history = History(self.state["x"], self.state, method, settings)
        self.t = 0
        self.unchecked: list[tuple[int, np.ndarray, np.ndarray, Tensor, Tensor]] = []
        self.largest: tuple | None = None

    def identity(self) -> dict[str, Any]:
        """All that determines the result, but for the number of rounds."""
        more = {"personal": self.personal} if self.personal else {}
        return {"method": repr(self.method), "federation": self.fed.fingerprint(), **self.s, **more}

    def restore(self, saved: checkpoint.Saved | None) -> None:
        found = self.world.objects(saved and saved.t)
        if len(set(found)) > 1:
            raise checkpoint.CheckpointError(
                f"the processes found checkpoints of {found} rounds; use a checkpoint_dir that is one folder for all"
            )
        if saved is None:
            return
        self.t = saved.t
        for k, v in saved.state.items():
            if k in self.method.client_state:
                self.state[k].copy_(v[self.world.rank :: self.world.size])
            else:
                self.state[k] = v.to(self.fed.device)
        self.history.cohorts, self.history.rows = saved.cohorts, saved.rows
        for cohort in saved.cohorts:
            self.visits[cohort] += 1
        self.history.params, self.history.state = self.state["x"], dict(self.state)

    def whole(self, to: int | None = None) -> dict[str, Tensor | None]:
        """The state with the rows of all clients; on process `to` alone, else on all."""
        if self.world.size == 1:
            return dict(self.state)
        rows = {k: self.world.gather(self.state[k].cpu(), self.owned, to) for k in self.method.client_state}
        return {**self.state, **rows}

    def go(self, store: checkpoint.Store | None, checkpoint_every: int, progress: bool | None) -> History:
        begin = time.perf_counter()
        bar = _bar(self.method, self.t, self.rounds, progress)
        if self.t == 0:
            self.evaluate(None, None)
        for t in range(self.t, self.rounds):
            r, y = self.round(t)
            last = t + 1 == self.rounds
            saving = store is not None and ((t + 1) % checkpoint_every == 0 or last)
            evaluating = (t + 1) % self.s["eval_every"] == 0 or last
            if saving or evaluating:
                self.check_finite()
            if evaluating:
                self.evaluate(r, y)
            if saving:
                state = self.whole(to=0)
                if self.world.rank == 0:
                    store.save(self.t, state, self.history.cohorts, self.history.rows)
            self.visits[self.history.cohorts[-1]] += 1
            bar.update()
        bar.close()
        self.history.params, self.history.state = self.state["x"], self.whole()
        self.history.seconds = time.perf_counter() - begin
        return self.history

    def round(self, t: int) -> tuple[Round, Tensor]:
        """One federated round: broadcast, local steps, aggregate.  Returns what it saw and the last local iterates."""
        s, fed, method = self.s, self.fed, self.method
        (cohort, self.dealt, self.planned, plan, states), self.ahead = self.ahead or self._draw(t), None
        mine = self.dealt[self.world.rank]
        lr = method.learning_rate(t, s["lr"] * s["lr_decay"] ** t)
        view = self._view(t, lr, plan, states())
        r = method.prepare(view)
        # local SGD on mini-batches and nothing else is the engine's
        plain = plan.indices is not None and method.descends() and r.gradient is view.gradient
        plain = plain and not (s["clip"] or s["weight_decay"] or method.local_momentum(s["momentum"]))
        y = method.broadcast(r)
        Y = y.expand(len(plan.clients), fed.d)
        Y = self.carrier.empty(*Y.shape, dtype=Y.dtype).copy_(Y) if self.travels else Y.clone()
        parts = method.parts(r)
        if parts is None and self.chunk is None:
            self._local(r, Y, plan, lr, plain)
        elif parts is None:
            self._chunks(r, Y, plan, lr, plain)
        for part in self._pieces(parts or ()):  # rows on smaller networks: out of the matrix, local steps, back
            rows = torch.as_tensor(part.rows).to(self.base)
            at = rows if part.places is None else (rows[:, None], part.places)
            small, inside = Y[at].to(fed.device), plan.of(part.rows)
            own = {"p": r.p[rows], "K": r.K[rows], "clients": inside.rows, "ids": inside.clients}
            own |= {"x": small.clone(), **part.more}
            smaller = self._smaller(part.to)
            shared = {**r._shared, **self._gradients(smaller, inside)}
            self._local(Round(shared, own).to(fed.device), small, inside, lr, plain, smaller)
            Y[at] = small.to(self.base)
        if self.away and not self.travels and t + 1 < self.rounds:
            self.ahead = self._draw(t + 1)  # the device is still at this round's work

        seen, Z = self._whole_round(r, Y) if method.across == "rows" else (r, Y)
        own = slice(None) if seen is r else np.flatnonzero(np.isin(seen.ids, mine))
        for name, value in method.aggregate(seen, Z).items():
            if name not in method.client_state:
                self.state[name] = value.to(fed.device)
            elif len(mine):
                value = value[own]
                self.state[name][self._at_home(plan)] = value.to(self.home)
                if self.ahead:  # what this round changes of the rows that were sent for
                    _, now, then = np.intersect1d(plan.clients, self.ahead.plan.clients, return_indices=True)
                    now, then = (torch.as_tensor(rows).to(fed.device) for rows in (now, then))
                    self.ahead.states()[name][then] = value[now]
        self.history.cohorts.append(cohort)
        if len(mine):
            self.unchecked.append((t, plan.clients, plan.steps, *_size(Y)))
        self.t = t + 1
        return r, Y

    def _deal(self, cohort: np.ndarray) -> list[np.ndarray]:
        """Each process's clients of the cohort: those whose states it keeps, or where there are none even shares."""
        N = self.world.size
        if self.method.client_state:
            return [cohort[cohort % N == r] for r in range(N)]
        if N == 1:
            return [cohort]
        order = cohort[np.argsort(-self.fed.sizes[cohort], kind="stable")]
        return [np.sort(order[r::N]) for r in range(N)]

    def _whole_round(self, r: Round, Y: Tensor) -> tuple[Round, Tensor]:
        """The round at hand and its local iterates with the rows of all processes, in the order of one process."""
        if self.world.size == 1:
            return r, Y
        plan = self.planned(np.sort(np.concatenate(self.dealt)))
        places = [np.flatnonzero(np.isin(plan.clients, part)) for part in self.dealt]
        shared = {k: v for k, v in r._shared.items() if k != "total"} | self._of(r.t, plan)
        rows = {k: self.world.gather(v, places) for k, v in r._rows.items() if k != "ids"}
        return Round(shared, {**rows, "ids": plan.clients}), self.world.gather(Y, places)

    def _draw(self, t: int) -> Drawn:
        """Cohort, shares and plan of round t, and the clients' states on their way to where the round needs them."""
        s, fed = self.s, self.fed
        cohort = rng.cohort(s["seed"], t, fed.n, s["cohort"])
        work = {"epochs": s["local_epochs"], "steps": s["local_steps"], "batch_size": s["batch_size"]}
        dealt = self._deal(np.array(cohort))
        mine = dealt[self.world.rank]
        planned = partial(fed.plan, s["seed"], t, **self.method.local_work(work))
        # a process without clients in this round works on one of its own that does not count
        plan = planned(mine if len(mine) else self.spare)
        names, at = self.method.client_state, self._at_home(plan)
        if not self.away:
            return Drawn(cohort, dealt, planned, plan, lambda: {k: self.state[k][at] for k in names})
        rows = {k: self.carrier.gather(self.state[k], at) for k in names}
        return Drawn(cohort, dealt, planned, plan, (lambda: rows) if self.travels else self.carrier.send(rows))

    def _pieces(self, parts: Sequence[Part]) -> Iterator[Part]:
        """The parts, none of more than `chunk` rows."""
        for part in parts:
            size = self.chunk or len(part.rows)
            for a in range(0, len(part.rows), size):
                cut = slice(a, a + size)
                places, more = part.places, {k: v[cut] for k, v in part.more.items()}
                yield Part(part.rows[cut], part.to, None if places is None else places[cut], more)

    def _chunks(self, r: Round, Y: Tensor, plan: Plan, lr: float, plain: bool) -> None:
        """The local steps, neighbouring rows at a time (sorted by steps, they have much in common).

        Rows in host memory travel: the next chunk's while the device is at this one's, and back what was written to.
        """
        cuts = [slice(a, a + self.chunk) for a in range(0, len(Y), self.chunk)]
        shared, send = moved(r._shared, self.fed.device), self.carrier.send if self.travels else _stay
        whole = {"": Y, **r._rows}
        coming = send({k: v[cuts[0]] for k, v in whole.items()})
        for cut, then in itertools.zip_longest(cuts, cuts[1:]):
            rows = coming()
            if then:
                coming = send({k: v[then] for k, v in whole.items()})
            tensors = {k: v for k, v in rows.items() if isinstance(v, Tensor)}
            written, inside = {k: v._version for k, v in tensors.items()}, plan.of(np.arange(len(Y))[cut])
            seen = Round({**shared, **self._gradients(self.fed, inside)}, {k: v for k, v in rows.items() if k})
            self._local(seen, rows[""], inside, lr, plain)
            for k in tensors if self.travels else ():
                if tensors[k]._version != written[k]:
                    whole[k][cut].copy_(tensors[k], non_blocking=True)
            del rows, tensors, seen  # before the next but one is sent for
        if self.travels:
            self.carrier.wait()

    def _over(self, gradient: Callable[..., Tensor], Y: Tensor, plan: Plan, *k: int, **more: Any) -> Tensor:
        """`gradient(Y, plan, *k, **more)`, `chunk` rows at a time, `along` and `losses` too; back to where Y is."""
        if self.chunk is None or (len(Y) <= self.chunk and Y.device == self.fed.device):
            return gradient(Y, plan, *k, **more)
        G, losses = torch.empty_like(Y, memory_format=torch.contiguous_format), []
        for a in range(0, len(Y), self.chunk):
            cut = slice(a, a + self.chunk)
            own = {name: v[cut].to(self.fed.device) if isinstance(v, Tensor) else v for name, v in more.items()}
            own |= {"losses": losses} if "losses" in more else {}
            inside = plan.of(np.arange(len(Y))[cut], *k)  # of step k alone, when given: there it is step 0
            G[cut] = gradient(Y[cut].to(self.fed.device), inside, *[0 for _ in k], **own)
        if "losses" in more:
            more["losses"].append(torch.cat(losses).to(Y.device))
        return G

    def _local(
        self, r: Round, Y: Tensor, plan: Plan, lr: float, plain: bool = False, fed: Federation | None = None
    ) -> None:
        """The local steps of all rows of `Y [m, d]`, in place; plain: y <- y - lr g on `fed` and nothing else."""
        if plain:
            (fed or self.fed).descend(Y, plan, lr)
            return
        s, seen = self.s, r
        momentum = self.method.local_momentum(s["momentum"])
        velocity = torch.zeros_like(Y) if momentum else None
        for k in range(int(plan.steps[0])):
            a = int((plan.steps > k).sum())  # rows are sorted by their number of steps: those still at work come first
            if a < len(seen.p):
                seen = r.head(a)
            seen.step = k
            v = self.method.direction(partial(r.gradient, k=k), Y[:a], seen)
            if s["clip"] is not None:
                v = v * (s["clip"] / v.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1.0)
            if velocity is not None:
                v = velocity[:a].mul_(momentum).add_(v)
            Y[:a].sub_(v, alpha=lr)
            del v  # or it would take its room while the next gradient is computed

    def _smaller(self, to: Callable | None) -> Federation | Quadratic:
        return self.fed if to is None else self.fed.shrink(to)

    def _gradients(self, fed: Federation | Quadratic, plan: Plan) -> dict[str, Any]:
        def within(rows: np.ndarray, to: Callable | None, k: int, decay: bool = True) -> Callable:
            """The gradient of local step k for some rows on a smaller network, as a function of their parameters."""
            smaller, step = self._smaller(to), plan.of(rows, k)
            plain = lambda Y, **more: smaller.gradient(Y, step, 0, **more)  # noqa: E731
            return (lambda Y, **more: self._decayed(plain(Y, **more), Y)) if decay else plain

        return {
            "within": within,
            "gradient": lambda Y, k, **more: self._decayed(
                self._over(fed.gradient, Y, plan, k, **more), more.get("along", Y)
            ),
            "full_gradient": lambda Y: self._decayed(self._over(fed.full_gradient, Y, plan), Y),
        }

    def _of(self, t: int, plan: Plan) -> dict[str, Any]:
        """What all rows of a plan share and other rows do not."""
        visits, share = self.visits[plan.clients], partial(self._share, t, plan.clients)
        return {"m": len(plan.clients), "visits": visits, "share": share, **self._gradients(self.fed, plan)}

    def _view(self, t: int, lr: float, plan: Plan, states: dict[str, Tensor]) -> Round:
        fed, s, cohort = self.fed, self.s, np.concatenate(self.dealt)
        weight = (lambda i: fed.sizes[i]) if s["weighting"] == "samples" else (lambda i: np.ones(len(i)))

        def column(a: np.ndarray) -> Tensor:
            return torch.as_tensor(a, dtype=fed.dtype).to(self.base)[:, None]

        shared = {"seed": s["seed"], "t": t, "n": fed.n, "lr": lr, "server_lr": s["server_lr"]}
        shared["layout"] = fed.engine.layout if isinstance(fed, Federation) else None
        shared |= {"fed": fed, **self._of(t, plan)}
        server = {k: v for k, v in self.state.items() if k not in self.method.client_state}
        shared |= moved(server, self.base)
        if self.world.size > 1:
            counts = len(self.dealt[self.world.rank]) > 0
            shared["total"] = lambda v: self.world.total(v if counts else torch.zeros_like(v))
        rows = {"p": column(weight(plan.clients) / weight(cohort).sum()), "K": column(plan.steps)}
        rows |= {"clients": plan.rows.to(self.base), "ids": plan.clients, **states}
        return Round(shared, rows)

    def _share(self, t: int, clients: np.ndarray, share: float, epoch: int) -> tuple[np.ndarray, Callable[..., Tensor]]:
        more = {"batch_size": self.s["batch_size"], "share": share, "epoch": epoch}
        plan = self.fed.plan(self.s["seed"], t, clients, **more)
        return plan.steps, lambda Y, k, **kept: self._over(self.fed.gradient, Y, plan, k, **kept)

    def _at_home(self, plan: Plan) -> Tensor:
        """The plan's rows where the clients' states live; the host knows them, so no device is asked."""
        rows = torch.as_tensor(plan.clients) if self.away else plan.rows
        return rows if self.world.size == 1 else rows // self.world.size

    def _decayed(self, g: Tensor, y: Tensor) -> Tensor:
        return g + self.s["weight_decay"] * y if self.s["weight_decay"] else g

    def check_finite(self) -> None:
        """Look at the rounds since the last look; one synchronisation for all of them."""
        lost = None
        for t, clients, steps, finite, size in self.unchecked:
            if not bool(finite.all()):
                row = int((~finite).int().argmax())
                lost = (t, -int(steps[row]), int(clients[row]))  # in the order of the whole plan's rows
                break
            row = int(size.argmax())
            self.largest = (t, float(size[row]), int(steps[row]), -int(clients[row]))
        self.unchecked = []
        told = self.world.objects((lost, self.largest))
        losses = [lost for lost, _ in told if lost is not None]
        if losses:
            t, _, client = min(losses)
            raise self._diverged(t, client)
        self.largest = max(largest for _, largest in told if largest is not None)

    def _diverged(self, t: int, client: int) -> Diverged:
        self.history.cohorts = self.history.cohorts[: t + 1]
        self.history.state |= {k: v for k, v in self.whole().items() if k in self.method.client_state}
        return Diverged(t, client, self.history)

    def evaluate(self, r: Round | None, y: Tensor | None) -> None:
        measure = lambda: {k: float(v) for k, v in self.fed.evaluate(self.state["x"]).items()}  # noqa: E731
        metrics = self.world.first(measure)
        if r is not None and not all(map(math.isfinite, metrics.values())):
            raise self._diverged(self.largest[0], -self.largest[3])
        h = self.history
        h.params, h.state = self.state["x"], dict(self.state)
        h.rows += [(self.t, name, None, value) for name, value in metrics.items()]
        if self.personal:
            self.evaluate_clients(r, y)
        if self.probes and r is not None:
            whole = self._whole_round(r, y)
            h.rows += self.world.first(lambda: self.probe(*whole))

    def probe(self, r: Round, y: Tensor) -> list[Row]:
        rows: list[Row] = []
        for probe in self.probes:
            for name, value in probe(r, y).items():
                value = torch.as_tensor(value).detach().cpu().double()
                if value.ndim == 0:
                    rows.append((self.t, name, None, float(value)))
                else:
                    pairs = sorted(zip(r.clients.tolist(), value.tolist(), strict=True))
                    rows += [(self.t, name, client, v) for client, v in pairs]
        return rows

    def evaluate_clients(self, r: Round | None, y: Tensor | None) -> None:
        """The clients' models, one row of the history for each client and metric."""
        fed, x, clients = self.fed, self.state["x"], self.own
        if self.personal == "local" and r is not None:
            mine = len(self.dealt[self.world.rank])
            X, clients = y[:mine], r.ids[:mine]
        else:
            own = None if self.personal == "local" else self.method.personal(self.state, fed.engine.layout)
            X = x.expand(len(clients), -1) if own is None else own
        found = fed.evaluate_clients(X, clients)
        told = self.world.objects({k: list(zip(clients.tolist(), v.tolist(), strict=True)) for k, v in found.items()})
        for name in max(told, key=len):  # a process without clients has no metrics
            pairs = sorted(pair for one in told for pair in one.get(name, ()))
            self.history.rows += [(self.t, name, client, value) for client, value in pairs]
        if fed.normalise == "client":
            pooled = self.world.first(lambda: float(fed.evaluate(x, "pooled")["accuracy"]))
            self.history.rows.append((self.t, "accuracy_pooled", None, pooled))


def _size(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each row of Y is finite, and the largest size of its entries, without room for another Y."""
    size = torch.maximum(Y.amax(1), -Y.amin(1))  # NaN stays NaN
    return torch.isfinite(size), size


def _shareable(method: Method, fed: Federation | Quadratic, processes: int) -> None:
    if processes > fed.n:
        raise ValueError(f"{processes} processes but {fed.n} clients; use --nproc_per_node<={fed.n}")
    for verb in ("prepare", "aggregate"):
        owner = next(c for c in type(method).__mro__ if verb in vars(c))
        if not (owner.__module__.startswith(f"{__package__}.") or "across" in vars(owner)):
            raise ValueError(
                f"{owner.__name__}.{verb} does not say how it sees the other clients; on several processes write "
                "across = 'sums' in the class (it uses r.mean and r.sum alone) or across = 'rows' (it needs all rows)"
            )


def _away(method: Method, fed: Federation | Quadratic, n: int) -> bool:
    """Whether n clients' states live in host memory, because they would fill the federation's device."""
    size = len(method.client_state) * n * fed.d * fed.x0.element_size()
    free = _free(fed.device)
    if size <= free / 2:
        return False
    warnings.warn(
        f"the client states {', '.join(method.client_state)} of {type(method).__name__} take {size / 1e9:.2f} GB "
        f"({n:,} clients x {fed.d:,} parameters) and {fed.device} has {free / 1e9:.2f} GB free: they are kept in "
        "host memory, and each round copies the cohort's rows",
        stacklevel=4,
    )
    return True


def _free(device: torch.device) -> float:
    """Free bytes of an accelerator; a CPU has nowhere to move its states to."""
    return travel.free(device) if travel.apart(device) else math.inf


def _chunk(method: Method, fed: Federation | Quadratic, s: dict[str, Any]) -> int | None:
    """How many clients may take their local steps together: None for all, fewer where memory is short.

    Vectors of a client: through the round its parameters, their update, and its states, old and new; in its local steps
    a gradient, a direction, what a direction is made of, and a velocity; activations, unless they come in blocks.
    """
    m, vector, states = s["cohort"], fed.d * fed.x0.element_size(), len(method.client_state)
    kept, steps = (2 + 2 * states) * vector, (3 + bool(method.local_momentum(s["momentum"]))) * vector
    steps += _activations(fed, s["batch_size"])
    room = 0.8 * travel.free(fed.device)
    if m * (kept + steps) <= room:
        return None
    if travel.apart(fed.device):  # two chunks at a time, one computed and one on its way
        most = room // (steps + 2 * (1 + states) * vector)
    else:
        most = (room - m * kept) // steps
    chunk = max(1, min(m, int(most)))
    block = fed.engine.block or 1 if isinstance(fed, Federation) else 1
    chunk = max(chunk // block * block, min(chunk, block))  # whole blocks, so that the result is the same to the bit
    if chunk == m:
        return None
    warnings.warn(
        f"a round of {m:,} clients with {fed.d:,} parameters takes about {m * (kept + steps) / 1e9:.2f} GB and "
        f"{fed.device} has {room / 0.8e9:.2f} GB free: local steps are taken by {chunk:,} clients at a time",
        stacklevel=3,
    )
    return chunk


def _activations(fed: Federation | Quadratic, batch_size: int | None) -> float:
    """Bytes of activations and their gradients for one client's mini-batch; 0 where the engine bounds them itself."""
    if not isinstance(fed, Federation) or batch_size is None:
        return 0
    if fed.engine.general(fed.device) != "batched" or fed.engine.block is not None:
        return 0
    return 2 * min(batch_size, int(fed.sizes.max())) * fed.engine.width(fed._inputs(fed.x[:2])) * fed.x0.element_size()


def _cohort_size(cohort: int | float | None, n: int) -> int:
    if cohort is None:
        return n
    if isinstance(cohort, float):
        checks.number("cohort", cohort, 0, 1, open_low=True)
        return max(1, round(cohort * n))
    if isinstance(cohort, int | np.integer) and cohort > n:
        raise ValueError(f"cohort={cohort} but the federation has {n} clients; use cohort<={n}, a fraction, or None")
    return checks.integer("cohort", cohort, 1, n, hint="or a fraction in (0, 1], or None for all")


def _stay(rows: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    return lambda: rows


def _bar(method: Method, start: int, rounds: int, progress: bool | None) -> Any:
    if progress is None:
        live = "ipykernel" in sys.modules or sys.stderr.isatty()
        progress = live and not os.environ.get("FEDCORE_BATCH")
    return progress_bar(type(method).__name__, rounds, start, "round", progress, delay=1, leave=False)
