"""Several runs on one federation at once: their local steps are computed as those of one larger cohort.

Each run is `simulate` in a thread of its own, and one thread works at a time.  A run that asks for mini-batch gradients
waits until every other run waits or has ended; what they ask for is then computed in one call of the engine.  A method
knows nothing of this, and what is no plain gradient (penalties, full gradients, evaluation) each run computes itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import checks, listeners, run
from .data.batches import Plan
from .engine import PLAIN, Batch, Loss
from .engine.choose import share
from .engine.descent import descend
from .history import Diverged, History
from .objective.network import Federation
from .objective.protocol import Objective
from .progress import Bar, shows
from .round import FEDERATIONS

CACHE = 1 << 22  # bytes of parameters and samples that a CPU's core keeps at hand: beyond, larger cohorts are slower
AT_ONCE = Annotated[int, checks.Within(1, 10_000, hint="or None for all of them")]
RUNS = checks.Kind(lambda runs: isinstance(runs, list | tuple), "a list of mappings, the arguments of each run")
IS_FEDERATION = checks.Kind(lambda fed: isinstance(fed, FEDERATIONS), "a federation, from fc.federation or quadratic")


@checks.arguments
def simulate_many(
    runs: Annotated[Sequence[Mapping[str, Any]], RUNS],
    fed: Annotated[Objective, IS_FEDERATION],
    *,
    at_once: AT_ONCE | None = None,
    progress: bool | None = None,
    **shared: Any,
) -> list[History | Diverged]:
    """One `simulate` for each mapping of `runs`, on the same federation, trained as one larger cohort.

        lrs, seeds = [0.03, 0.1, 0.3], range(5)
        runs = [{"lr": lr, "seed": seed} for lr in lrs for seed in seeds]
        histories = fc.simulate_many(runs, fed, method=fc.FedAvg(), rounds=100, cohort=10)

    runs: arguments of `simulate` in which the runs differ (methods, rates, batch sizes, seeds, ...); shared: those in
    which they do not.  at_once: runs that go on together; the next one begins when one of them ends.  None: all.
    progress: a bar of the runs that have ended; None shows one where somebody looks.
    As in `sweep`, a run has copies of its own of its arguments, and `on_evaluate=lambda: Stop(2)` makes one for each.

    The histories come in the order of `runs`; in place of a run that left the finite numbers stands its `Diverged`,
    whose `.history` ends there.  A run's numbers are those of `simulate` up to rounding: the same sums are taken in
    another order.  It is meant for devices that one run leaves idle, such as a GPU (not measured there).  On two
    CPU cores it is slower than one run after another (`benchmarks/together.py`).

    Raises ValueError for no runs, for arguments that are given twice, and for one `checkpoint_dir` for several runs.
    Any other error of a run is raised when all have ended; its `.results` are what the others gave.
    """
    if not runs:
        raise ValueError("runs is empty; give at least one mapping of arguments of simulate")
    if "checkpoint_dir" in shared and len(runs) > 1:
        raise ValueError(f"checkpoint_dir={shared['checkpoint_dir']!r} for {len(runs)} runs; give each run its own")
    folders: dict[Path, int] = {}
    for number, one in enumerate(runs):
        if not isinstance(one, Mapping):
            raise TypeError(f"runs[{number}]={checks.brief(one)}; use a mapping of arguments of simulate")
        if twice := sorted(set(one) & set(shared)):
            raise ValueError(f"{twice[0]} stands in runs[{number}] and beside it; use one of the two")
        if strange := [name for name in one if not isinstance(name, str)]:
            raise TypeError(f"runs[{number}] has {checks.brief(strange[0])}; use names of arguments of simulate")
        if ours := [name for name in ("fed", "progress") if name in one]:
            raise ValueError(f"{ours[0]} stands in runs[{number}]; give it beside the runs, for all of them")
        folder = one.get("checkpoint_dir")
        known = isinstance(folder, str | os.PathLike)  # else `simulate` says what is allowed
        if known and (first := folders.setdefault(Path(folder).resolve(), number)) != number:
            raise ValueError(
                f"checkpoint_dir={str(folder)!r} of runs[{number}] is that of runs[{first}]; give each run its own"
            )
    own = [listeners.of_one_run({**shared, **one}, keep=[fed]) for one in runs]
    shown = Bar("runs", len(runs), 0, "run", shows(progress), each=True)

    def simulate(one: Mapping[str, Any], joined: Objective) -> History | Diverged:
        try:
            return run.simulate(fed=joined, progress=False, **one)
        except Diverged as e:
            return e
        finally:
            shown.update()

    results = each(simulate, own, fed, at_once)
    shown.close()
    for number, result in enumerate(results):
        if isinstance(result, BaseException) and not isinstance(result, Diverged):
            result.results = results
            result.add_note(f"raised by runs[{number}] of {len(runs)}; this error's .results has what all runs gave")
            raise result
    return results


def each(work: Callable[[Any, Objective], Any], jobs: Sequence[Any], fed: Objective, at_once: int | None) -> list[Any]:
    """`work(job, fed)` for all jobs, `at_once` of them together; an error stands in the list in place of a result.

    An interrupt ends all of them where they next ask for a gradient.
    """
    meeting, results = Meeting(torch.get_num_threads()), [None] * len(jobs)
    # a subclass has gradients of its own, which the engine does not know
    joined = Joined.of(fed, meeting) if type(fed) is Federation else fed
    left = iter(enumerate(jobs))

    def worker() -> None:
        torch.set_num_threads(1)  # this thread's: teams of threads for each run would wait at each other's cost
        with meeting.attended():
            for number, job in left:
                try:
                    results[number] = work(job, joined)
                except Exception as e:  # whatever a method, a model or a disk raises: the other runs go on
                    results[number] = e

    count = min(len(jobs), at_once or len(jobs))
    workers = [threading.Thread(target=worker, daemon=True) for _ in range(count)]
    meeting.present = count
    try:
        for one in workers:
            one.start()
        for one in workers:
            one.join()
    except BaseException:
        meeting.over = True
        raise
    finally:
        torch.set_num_threads(meeting.threads)  # threads that begin later take the number that was set last
    return results


@dataclass(eq=False)
class Request:
    """What a run waits for: gradients of step k at the rows of Y, or (lr) all local steps of a plan taken on them."""

    fed: Federation
    Y: Tensor
    plan: Plan
    k: int = 0
    lr: float | None = None
    result: Any = None
    error: Exception | None = None
    done: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for requests that one call of the engine can answer: the same network, samples and step.

        A method may change the federation (`Method.on`), and its samples with it.
        """
        data = self.fed.data
        samples = id(data.x), id(data.y), id(data.statistics), id(data.augment)
        return id(self.fed.engine), samples, self.Y.dtype, self.lr is None, self.plan.first + self.k


class Over(BaseException):
    """The runs were interrupted."""


class Meeting:
    """Where runs wait for each other.  Whoever holds `turn` works; the one that arrives last answers all requests."""

    def __init__(self, threads: int = 1) -> None:
        self.threads, self.present, self.over = threads, 0, False
        self.turn = threading.Condition()
        self.waiting: list[Request] = []

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Inside, one run at a time."""
        with self.turn:
            try:
                yield
            except Over:
                pass
            finally:
                self.present -= 1
                self._answer()

    def ask(self, request: Request) -> Any:
        """The request's result."""
        self.waiting.append(request)
        self._answer()
        while not request.done:
            self.turn.wait(1.0)
            if self.over:
                raise Over
        if request.error is not None:
            raise request.error
        return request.result

    def _answer(self) -> None:
        """Answer all requests once every run has made one."""
        if self.over or not self.waiting or len(self.waiting) < self.present:
            return
        groups: dict[Any, list[Request]] = {}
        for request in self.waiting:
            groups.setdefault(request.kind, []).append(request)
        self.waiting = []
        for group in groups.values():
            _answer(group, self.threads)
        self.turn.notify_all()


@dataclass(frozen=True, eq=False, repr=False)
class Joined(Federation):
    """A federation whose runs ask for their mini-batch gradients together."""

    meeting: Meeting = field(default_factory=Meeting)

    @classmethod
    def of(cls, fed: Federation, meeting: Meeting) -> Joined:
        """The same clients, data and network."""
        return cls(**{f.name: getattr(fed, f.name) for f in fields(Federation) if f.init}, meeting=meeting)

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `Federation.gradient_and_losses`."""
        if plan.indices is None or not loss.plain or along is not None:
            return super().gradient_and_losses(Y, plan, k, loss, along)
        return self.meeting.ask(Request(self, Y, plan, k))

    def descend(self, Y: Tensor, plan: Plan, lr: float, decay: float = 0.0, clip: float | None = None) -> None:
        """As `Federation.descend`; with weight decay or a clip, gradients are what the runs take together."""
        if decay or clip is not None:
            descend(lambda y, k: self.gradient(y, plan, k), Y, plan.working, lr, decay, clip, self.trained)
        else:
            self.meeting.ask(Request(self, Y, plan, lr=lr))


def _answer(group: Sequence[Request], threads: int) -> None:
    """The results of requests of one kind, in as few calls of the engine as serve their speed."""
    fed, Y = group[0].fed, group[0].Y
    numbers = fed.d + group[0].plan.indices.shape[2] * fed.x[0].numel()  # of one row: parameters, and a step's samples
    rows = min(CACHE // (numbers * Y.element_size()), -(-sum(len(r.Y) for r in group) // threads))
    parts = list(packed(group, rows)) if Y.device.type == "cpu" else [group]
    fed.engine.width(fed.inputs(fed.x[:2]))  # looked up by one thread, for all
    aside = fed.engine.chosen(Y.device) == "written" and not fed.engine.norms  # other paths lend out the module
    torch.set_num_threads(threads)
    try:
        if aside:
            share(lambda at: _settle(parts[at.start]), [slice(k, k + 1) for k in range(len(parts))], Y.device)
        else:
            for part in parts:
                _settle(part)
    finally:
        torch.set_num_threads(1)


def packed(group: Sequence[Request], rows: int) -> Iterator[list[Request]]:
    """Neighbouring requests with so many rows together at most, or one alone."""
    part: list[Request] = []
    for request in group:
        if part and sum(len(r.Y) for r in part) + len(request.Y) > rows:
            yield part
            part = []
        part.append(request)
    yield part


def _settle(group: Sequence[Request]) -> None:
    """Give each request its result or its error; what one of them raises is not the others'."""
    try:
        _together(group)
    except Exception as e:
        if len(group) == 1:
            group[0].error = e
        else:  # nothing was written yet: several are computed on a copy of their rows
            for request in group:
                _settle([request])
    for request in group:
        request.done = True


def _together(group: Sequence[Request]) -> None:
    """One call of the engine for requests of one kind."""
    fed, sizes = group[0].fed, [len(r.Y) for r in group]
    if group[0].lr is None:
        plan = stacked([r.plan.of(np.arange(len(r.Y)), r.k) for r in group])
        G, losses = Federation.gradient_and_losses(fed, torch.cat([r.Y for r in group]), plan, 0)
        for request, *result in zip(group, G.split(sizes), losses.split(sizes), strict=True):
            request.result = tuple(result)
        return
    if len(group) == 1:
        Federation.descend(fed, group[0].Y, group[0].plan, group[0].lr)
        return
    plan, Y = stacked([r.plan for r in group]), torch.cat([r.Y for r in group])
    order = np.argsort(-plan.steps, kind="stable")  # those still at work come first
    at = torch.as_tensor(order).to(Y.device)
    plan, Z = plan.of(order), Y[at]
    rates = torch.cat([Y.new_full((len(r.Y), 1), r.lr) for r in group])[at]

    def batch(k: int, rows: slice) -> Batch:
        """A step of size 1 on losses times each run's rate."""
        b = fed.batch(plan, k, rows)
        return replace(b, w=b.w * rates[rows])

    fed.engine.descend(Z, plan.counts, batch, 1.0)
    Y[at] = Z
    for request, y in zip(group, Y.split(sizes), strict=True):
        request.Y.copy_(y)


def stacked(plans: Sequence[Plan]) -> Plan:
    """One plan with the rows of all, one after another; weights are 0 beyond its own steps and samples."""
    if len(plans) == 1:
        return plans[0]
    K, B = (max(p.indices.shape[axis] for p in plans) for axis in (0, 2))

    def wide(v: Tensor) -> Tensor:
        return F.pad(v, (0, B - v.shape[2], 0, 0, 0, K - v.shape[0]))

    def long(v: np.ndarray) -> np.ndarray:
        return np.pad(v, [(0, K - len(v)), (0, 0), (0, B - v.shape[-1])][: v.ndim])

    return Plan(
        clients=np.concatenate([p.clients for p in plans]),
        rows=torch.cat([p.rows for p in plans]),
        steps=np.concatenate([p.steps for p in plans]),
        keys=np.concatenate([p.keys for p in plans]),
        indices=torch.cat([wide(p.indices) for p in plans], 1),
        weights=torch.cat([wide(p.weights) for p in plans], 1),
        counts=np.concatenate([long(p.counts) for p in plans], 1),
        samples=np.concatenate([long(p.samples) for p in plans], 1),
        first=plans[0].first,
    )
