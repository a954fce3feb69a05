"""A run: check the arguments, loop over the rounds, evaluate the models and write checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from torch import Tensor

from . import distributed, rng
from .algorithms import contract
from .algorithms.method import Method, Round
from .engine.heap import keeping_freed
from .engine.undisturbed import as_usual
from .history import BY_CLIENT, Diverged, History, Row, over_clients
from .objective.base import Objective
from .objective.federation import Federation
from .round import Seen, check_both, on, play
from .rows.host import chunk_size
from .rows.rows import Rows
from .settings import Given, Settings, check_batches, with_settings
from .storage import callbacks, checkpoint, sources
from .storage.identity import digest, without_address
from .support import checks
from .support.progress import Bar, shows

Probe = Callable[[Round, Tensor], Mapping[str, Tensor]]
OnEvaluate = Callable[[int, dict[str, float]], bool | None]
PROBES = checks.Kind(
    lambda value: isinstance(value, list | tuple) and all(map(callable, value)),
    "a list of functions (round, y [m, d]) -> {name: value}, as in probes=[...]",
)
ON_EVALUATE = checks.Kind(callable, "a function of the rounds done and the metrics")
PERSONAL = checks.Kind(
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value == "local"), "True, False or 'local'"
)


@checks.arguments
@as_usual()
@keeping_freed()
@with_settings
def simulate(
    method: Method,
    fed: Objective,
    *,
    rounds: checks.CountFromZero,
    eval_every: checks.Count = 1,
    eval_on: Annotated[str, checks.OneOf(("test", "validation"))] = "test",
    keep: Annotated[str, checks.OneOf(("last", "best"))] = "last",
    on_evaluate: Annotated[OnEvaluate, ON_EVALUATE] | None = None,
    dtype: checks.FloatType | None = None,
    device: checks.Device | None = None,
    checkpoint_dir: checks.Folder | None = None,
    checkpoint_every: checks.Count | None = None,
    resume: bool = True,
    progress: bool | None = None,
    probes: Annotated[Sequence[Probe], PROBES] = (),
    personal: Annotated[bool | str, PERSONAL] = False,
    chunk: Annotated[int, checks.Within(1, hint="or None for as many as there is memory for")] | None = None,
    **settings: Unpack[Given],
) -> History:
    """Run a method on a federation for `rounds` rounds and return its `History`.

    cohort: the clients of a round: how many, as a whole number or a fraction in (0, 1], None for all clients, or a
    list, array or tensor of their numbers.  lr: local learning rate, multiplied by `lr_decay` after every round.  Both
    may be functions of the round t (from 0), for schedules, client selection, or client failures
    (`fedcore.rng.cohort(seed, t, n, m)` draws m of n clients).  local_epochs: client i takes
    K_i = local_epochs * ceil(N_i / batch_size) steps; `local_steps`, when given, is K_i itself.  Both may be one whole
    number for all clients, a list, array or tensor `[n]` with one number per client, or a function `(t, clients [m])`
    of the round and its cohort that returns one number for all or `[m]`.  All these functions are called for all rounds
    before round 0, and their draws from the global generators of torch, NumPy and Python depend on the seed and the
    round alone.  Local work is at least 1: to let a client do nothing in a round, leave it out of the `cohort`.
    batch_size: None is the full local batch.
    A local step is y <- y - lr v, where v is the gradient plus weight_decay * y plus the method's correction, with
    each client's norm clipped to `clip`, and then added to the client's momentum buffer, which is zero at the
    beginning of a round and decays by `momentum` in each step.  weighting: p_i = 1/m ("uniform") or
    N_i / sum N ("samples") in the server's mean.  Sums over all clients, such as c of SCAFFOLD and h of FedDyn, count
    every client once, as published: these methods converge to the optimum of the plain mean with either weighting.

    seed: decides cohorts and batches, each a function of (seed, round, client) alone.  eval_every: rounds between
    evaluations of the server model; the last round is always evaluated.  eval_on: the "test" data, or the "validation"
    data of a federation that has some.  keep: "best" returns the model and state with the highest accuracy (without
    accuracy, the lowest loss; of equal ones, the first) as `history.params` and `.state`, and their round as `.kept`.
    It needs eval_on="validation", because the test accuracy of a model chosen on the test data is biased upwards, and
    twice the memory for the clients' states.  on_evaluate: called after every evaluation with the number of rounds done
    and the server's metrics by name; True ends the run (early stopping).  A resumed run first calls it with the
    evaluations of its checkpoint, so that a function that counts (patience) or writes a log continues correctly.
    Instead of `on_evaluate` or a probe, you may give a function without arguments that makes it.  Neither may change
    variables or attributes that the code of the model or the loss reads: the federation has its own copy of the model,
    most paths read the constants of its forward pass only once, before the run, and a resumed run does not have these
    changes.
    dtype, device: None for those of the federation.
    probes: functions `(round, y [m, d]) -> {name: scalar or [m]}`, recorded at evaluations.  The values of round t
    (from 0) are recorded under t + 1, although the round's `x` is the model before it.  A probe may not write to what
    it is given, and its draws from the global generators depend on the seed and the round alone.
    personal: also evaluate the clients' models and record each client's metrics (`Federation.evaluate_clients`).
    True: the model that every client uses after the round (`Method.personal`, or the server's model if the method does
    not define it; a method of your own must return its personal models there).  "local": the cohort's models at the end
    of their local training, before they are averaged.  A client's `accuracy` is on the whole test set, where a model
    trained for one client's labels scores low; for personalised methods report `own_accuracy`, on the client's own
    test data if it has some (`fc.federation(..., own_test=0.2)`, or a source with test owners).  Batch norm uses the
    statistics of the client's own training data, even if its model is the server's; `fed.module(params)` on
    `fed.own_test(i)` uses those of all clients.  `History.clients` has the mean, weighted mean, spread and worst tenth
    over the clients (`own_accuracy_mean`, `_weighted`, `_spread`, `_worst_tenth`).

    chunk: the largest number of clients that take their local steps together.  None: the whole cohort, or as many as
    memory allows (determined once, with a warning).  On an accelerator the cohort's rows are then kept in host memory.
    Results do not depend on `chunk` up to rounding, and bit for bit if clients are computed one by one or in blocks
    that no chunk divides.

    checkpoint_dir: a folder for `checkpoint.npz`, written atomically every `checkpoint_every` rounds (default: at
    evaluations), which is refused without a folder.  With `resume` the run continues from it.  Its result is
    bit-identical to that of a run without interruption if processor, number of threads and processes, and torch are the
    same; otherwise it is equal to rounding, and a warning says what differs.
    progress: a bar with the last metrics; None shows one for runs over a second on a terminal or in a live notebook.
    True writes one line per evaluation where there is no terminal.

    In a process group of torch.distributed, as under torchrun, the processes share the run: `fedcore.distributed`.

    Raises ValueError and TypeError for arguments out of range, MemoryError for clients' states that do not fit,
    Diverged if a model is no longer finite, CheckpointError for a checkpoint that is damaged or belongs to another run
    or another version of the package, OSError for a folder that cannot be written.  Every error that ends the rounds,
    and a KeyboardInterrupt, has the history so far as `.history`.  An error in `on_evaluate`, and a Ctrl-C in a run of
    one process, leave a checkpoint of the rounds that are done.
    """
    check_both(method, fed)
    fed.check_x0()
    if checkpoint_every is not None and checkpoint_dir is None:
        raise ValueError(f"checkpoint_every={checkpoint_every}, but there is no folder; give checkpoint_dir= too")
    if personal and not isinstance(fed, Federation):
        raise ValueError(f"personal={personal!r}, but a quadratic has no test set; use personal=False")
    if eval_on == "validation":
        if not isinstance(fed, Federation):
            raise ValueError("eval_on='validation', but a quadratic has no data; use eval_on='test', its own measures")
        fed = fed.on_validation()
    elif keep == "best":
        raise ValueError(
            f"keep='best' with eval_on={eval_on!r} would choose the model by the data that evaluate it; use "
            "eval_on='validation' and a federation made with validation=True"
        )
    fed = on(method, fed.to(device, dtype))
    s = Settings.checked(method, fed, rounds, settings)
    # `on_evaluate` may end the run, so only the rounds up to its first call are certain to take place
    certain = rounds if on_evaluate is None else min(rounds, eval_every)
    for t in range(0 if getattr(fed, "takes_one_sample", True) else certain):
        cohort = s.cohort_of(t, fed.n)
        check_batches(fed, cohort, s.work(method, t, cohort))
    on_evaluate = on_evaluate and callbacks.made("on_evaluate", on_evaluate, "t, metrics", "True to end the run")
    probes = [callbacks.made("probes", probe, "round, y", "{name: value}") for probe in probes]
    if chunk is None and rounds:
        chunk = chunk_size(method, fed, s)
    world = distributed.world()
    with world.together():
        rows = Rows(method, fed, s, world, chunk, rounds)
        named = s.named() | {"eval_every": eval_every}
        named |= {k: v for k, v in {"eval_on": eval_on, "keep": keep}.items() if v not in ("test", "last")}
        run = Run(method, fed, s, rows, probes, personal, named, on_evaluate)
        if checkpoint_dir is not None:
            run.store = checkpoint.Store(checkpoint_dir, run.identity(), run.bits(), run.code(), run.memory)
            if resume:
                run.restore(run.store.load(rounds, run.like()), rounds)
            if run.t < rounds or not resume:
                run.store.open()
        return run.go(rounds, checkpoint_every or eval_every, False if world.rank else progress)


@dataclass
class Run:
    """A loop over rounds.  After a round it may evaluate the models (`evaluate`), write a checkpoint (`save`), and ask
    whether the run ends (`stops`)."""

    method: Method
    fed: Objective
    s: Settings
    rows: Rows
    probes: list[Probe]
    personal: bool | str
    settings: dict[str, Any]
    on_evaluate: OnEvaluate | None = None
    store: checkpoint.Store | None = None
    t: int = 0
    unchecked: list[tuple[int, np.ndarray, np.ndarray, Tensor, Tensor, Tensor]] = field(default_factory=list)
    largest: tuple[int, float, int, int] | None = None
    whole: tuple[int, ...] = ()
    best: dict[str, Tensor] = field(default_factory=dict)  # with keep="best": the state of the best round so far

    def __post_init__(self) -> None:
        self.state = self.rows.start()
        self.history = History(self.state["x"], dict(self.state), self.method, self.settings)
        self.attributes: Mapping[tuple[str, str], str] | None = contract.attributes(self.method, self.fed)

    def identity(self) -> dict[str, Any]:
        """Everything that determines the result except the number of rounds."""
        return {
            "method": without_address(checks.told(self.method)),
            "method's fields and code": digest(self.method, containers=False),
            **{f"federation's {name}": value for name, value in self.fed.identity().items()},
            **self.settings,
            "personal": self.personal,
            "probes": [[getattr(p, "__qualname__", repr(type(p))), digest(p, containers=False)] for p in self.probes],
        }

    def code(self) -> str:
        """The hash of the package's code that the run may execute."""
        parts = [getattr(part, "__module__", "") for part in (*type(self.method).__mro__, *self.probes)]
        return sources.of_run(parts)

    def memory(self) -> str:
        """A hash of the probes' own memory, which a checkpoint does not contain."""
        return digest(self.probes, containers=False)

    def like(self) -> dict[str, Tensor]:
        """Tensors with the shapes and initial values of the state of all clients."""
        like = {**self.state.server, **{k: v[:1].expand(self.fed.n, -1) for k, v in self.state.clients.items()}}
        return like | ({f"best/{k}": v for k, v in like.items()} if self.keeps_best else {})

    def bits(self) -> dict[str, Any]:
        """The hardware, versions and settings on which the last bits of a result may depend."""
        cuda = self.fed.device.type == "cuda"
        return {
            "threads": torch.get_num_threads(),
            "processes": self.rows.world.size,
            "chunk": self.rows.chunk,
            "device": torch.cuda.get_device_name(self.fed.device) if cuda else torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            checkpoint.AROUND: callbacks.key(self.method),
        }

    def restore(self, saved: checkpoint.Saved | None, to: int) -> None:
        """Continue from a checkpoint (None: from the start), up to round `to`.

        Raises CheckpointError if the processes read different checkpoints.
        """
        world = self.rows.world
        rounds = world.objects(saved and saved.t)
        if len(set(rounds)) > 1:
            raise checkpoint.CheckpointError(
                f"the processes read checkpoints of {rounds} rounds; use a checkpoint_dir that is one folder for all"
            )
        if saved is None:
            return
        self.t, server = saved.t, dict(self.state.server)
        for k, v in saved.state.items():
            if k.startswith("best/"):
                self.best[k.removeprefix("best/")] = v.to(self.state[k.removeprefix("best/")].device)
            elif k in self.state.clients:
                self.state.clients[k].copy_(v[world.rank :: world.size])
            else:
                server[k] = v.to(self.fed.device)
        for cohort in saved.cohorts:
            self.state.visits[cohort] += 1
        self.state = replace(self.state, server=server)
        every = self.settings["eval_every"]  # a shorter run also evaluated its last round
        self.history.cohorts = saved.cohorts
        self.history.rows = [row for row in saved.rows if row[0] % every == 0 or row[0] == to]
        self.choose()

    def go(self, rounds: int, save_every: int, progress: bool | None) -> History:
        """Run the remaining rounds and return the history."""
        begin, h = time.perf_counter(), self.history
        bar = Bar(type(self.method).__name__, rounds, self.t, "round", shows(progress), delay=1, leave=False)
        try:
            if self.t == 0:
                self.evaluate(None)
            ended = self.stopped()
            while self.t < rounds and not ended:
                ended = self.advance(rounds, save_every, bar)
            if not self.keeps_best:
                h.params, h.state = self.state["x"], self.rows.everyone(self.state)
        except BaseException as e:
            self.leave(e)
            raise
        finally:
            bar.close()
            h.seconds = time.perf_counter() - begin
        return h

    def advance(self, rounds: int, save_every: int, bar: Bar) -> bool:
        """Run one round, then evaluate and save if it is time for that; return whether the run ends here."""
        before = self.state.server
        self.state, seen = play(self.method, self.fed, self.state, self.t, self.s, self.rows)
        self.history.cohorts.append(seen.cohort)
        if len(self.rows.dealt(seen.drawn)):
            found = *_size(seen.y), _finite(before.values())
            self.unchecked.append((self.t, seen.round.ids, seen.round.plan.steps, *found))
        self.t += 1
        last = self.t == rounds
        if self.t < 3 or last:
            self.look_at_attributes()
        saving = self.store is not None and (self.t % save_every == 0 or last)
        evaluating = self.t % self.settings["eval_every"] == 0 or last
        if saving or evaluating:
            self.check_finite()
        if evaluating:
            self.evaluate(seen)
        self.whole = self.marks()
        if saving:
            self.save()
        bar.update()
        ends = False
        if evaluating:
            bar.set_postfix_str(", ".join(f"{k} {v:.4g}" for k, v in self.metrics(self.t).items()))
            ends = True
            try:
                ends = self.stops(self.t)
            finally:  # so that an error in `on_evaluate` loses no round
                if ends and not saving:
                    self.save()
        return ends

    def marks(self) -> tuple[int, ...]:
        """Numbers that change with every write of a round: if they are equal, no round has begun since."""
        versions = (v._version for v in self.state.values())  # torch counts the writes to a tensor
        return self.t, len(self.history.rows), int(self.state.visits.sum()), *versions

    def leave(self, e: BaseException) -> None:
        """Attach the history to an error that ends the rounds; save a checkpoint at an interrupt between two rounds.

        Only a run of one process saves, because the other processes of a run may be at another point of the round.
        """
        h, alone = self.history, self.rows.world.size == 1
        if getattr(e, "history", None) is h:  # it was attached already
            return
        if alone and not self.keeps_best:
            h.params, h.state = self.state["x"], dict(self.state)
        e.history = h
        e.add_note(f"raised after {len(h.cohorts)} rounds; the history up to there is this error's .history")
        if isinstance(e, KeyboardInterrupt) and alone and self.whole == self.marks():
            try:
                self.check_finite()
                self.save()
            except Exception as failure:
                e.add_note(f"there is no checkpoint of them: {failure}")

    def save(self) -> None:
        """Write a checkpoint of the rounds done, if the run has a `checkpoint_dir`."""
        if self.store is None:
            return
        self.look_at_attributes()
        state = self.rows.everyone(self.state, to=0) | {f"best/{k}": v for k, v in self.best.items()}
        if self.rows.world.rank == 0:
            self.store.save(self.t, state, self.history.cohorts, self.history.rows)

    def metrics(self, t: int) -> dict[str, float]:
        """The server's metrics after t rounds."""
        return {name: value for at, name, client, value in self.history.rows if at == t and client is None}

    def stopped(self) -> bool:
        """Whether `on_evaluate` ends the run at an evaluation of its checkpoint, or of round 0."""
        for t in sorted({t for t, _, client, _ in self.history.rows if client is None}):
            if self.stops(t):
                if t == self.t:
                    return True
                raise checkpoint.CheckpointError(
                    f"on_evaluate ends this run after {t} rounds, the checkpoint has {self.t}; use another "
                    "checkpoint_dir, or resume=False"
                )
        return False

    def stops(self, t: int) -> bool:
        """Whether `on_evaluate` ends the run at this evaluation."""
        if self.on_evaluate is None:
            return False
        raised: list[Exception] = []

        def ask() -> tuple[bool, str]:
            try:
                answer = self.on_evaluate(t, self.metrics(t))
                if not isinstance(answer, bool | np.bool_ | None):
                    raise TypeError(
                        f"on_evaluate returned {checks.brief(answer)}; return True to end the run, else False or None"
                    )
                return bool(answer), ""
            except Exception as e:
                raised.append(e)
                return True, f"{type(e).__name__}: {e}"

        ends, failure = self.rows.world.first(ask)
        if failure:  # known to all processes, so that they raise together
            if not self.keeps_best:
                self.history.state = self.rows.everyone(self.state)
            raise raised[0] if raised else RuntimeError(f"on_evaluate failed on process 0: {failure}")
        return ends

    def check_finite(self) -> None:
        """Raise Diverged if a model of the rounds since the last check is not finite.  One check for several rounds
        waits for the device only once."""
        lost = None
        for t, clients, steps, finite, size, began in self.unchecked:
            if not bool(finite.all()):
                row = int((~finite).int().argmax())
                lost = (t, -int(steps[row]), int(clients[row]), bool(began))  # compared in the order of the plan's rows
                break
            row = int(size.argmax())
            self.largest = (t, float(size[row]), int(steps[row]), -int(clients[row]))
        self.unchecked = []
        reports = self.rows.world.objects((lost, self.largest))
        losses = [lost for lost, _ in reports if lost is not None]
        self.largest = max((largest for _, largest in reports if largest is not None), default=None)
        if losses:
            t, _, client, began = min(losses)
            raise self._diverged(t, client) if began or not self.moderate() else self._diverged(t - 1, None)

    def moderate(self) -> bool:
        """Whether the clients' models in the last checked round are so small that their sums and squares are finite.

        If so, `aggregate` and not a client caused a server vector that is not finite.
        """
        return self.largest is not None and self.largest[1] < torch.finfo(self.fed.dtype).max ** 0.5

    def _diverged(self, t: int, client: int | None) -> Diverged:
        self.history.cohorts = self.history.cohorts[: t + 1]
        everyone = self.rows.everyone(self.state)
        if not self.keeps_best:
            self.history.state |= {k: v for k, v in everyone.items() if k in self.state.clients}
        lr = self.s.work(self.method, t, self.history.cohorts[t]).lr
        return Diverged(t, client, self.history, lr)

    def evaluate(self, seen: Seen | None) -> None:
        """Evaluate the server's model, the clients' models if wanted, and the probes; add rows to the history."""
        world, h = self.rows.world, self.history
        metrics = world.first(lambda: {k: float(v) for k, v in self.fed.evaluate(self.state["x"]).items()})
        if seen is not None and not math.isfinite(metrics.get("loss", 0.0)):
            if self.moderate() and not _finite([self.state["x"]]):
                raise self._diverged(self.t - 1, None)
            raise self._diverged(self.largest[0], -self.largest[3])
        h.rows += [(self.t, name, None, value) for name, value in metrics.items()]
        self.choose()
        if self.personal:
            self.evaluate_clients(seen)
        if self.probes and seen is not None:
            r, y = seen.round, seen.y
            if world.size > 1:
                r, y = self.rows.whole(r, seen.drawn), self.rows.gather(y, seen.drawn)
                r = replace(r, rows=dict(r.rows), memory=dict(r.memory))  # all gather, process 0 probes
            h.rows += world.first(lambda: self.probe(r, y))

    @property
    def keeps_best(self) -> bool:
        """Whether the history is to contain the best model instead of the last one."""
        return "keep" in self.settings

    def choose(self) -> None:
        """Set the history's model after an evaluation: the last model, or with keep="best" that of the best round.

        `self.best` is chosen among the multiples of `eval_every`, which a longer run evaluates too.  The last round of
        this run may be another round, and better.
        """
        h, every = self.history, self.settings["eval_every"]
        if not self.keeps_best:
            h.params, h.state = self.state["x"], dict(self.state)
            return
        metric, sign = ("accuracy", 1) if self.fed.classifies else ("loss", -1)
        scores = {t: sign * value for t, name, client, value in h.rows if name == metric and client is None}
        h.kept = max(scores, key=scores.get)
        if self.t == max((t for t in scores if t % every == 0), key=scores.get) or self.t == h.kept:
            alone = self.rows.world.size == 1
            now = dict(self.state.copy()) if alone else self.rows.everyone(self.state)
            self.best = self.best if self.t % every else now
        h.state = now if self.t == h.kept else self.best
        h.params = h.state["x"]

    def look_at_attributes(self) -> None:
        """Tell once of a user's method, quadratics or loss that keep memory, and of a model whose code reads a variable
        that has changed."""
        if self.attributes is not None and contract.told_of_memory(self.method, self.fed, self.attributes):
            self.attributes = None

    def probe(self, r: Round, y: Tensor) -> list[Row]:
        """The values of the probes as rows of the history; each draws numbers of the seed and the round.

        Raises TypeError or ValueError unless a probe gives numbers, or `[m]`, by names that nothing else has,
        ValueError for one that writes to what it is given, and AttributeError for one that reads what the round of this
        method does not have.
        """
        rows: list[Row] = []
        first = itertools.takewhile(lambda row: row[0] == 0, self.history.rows)  # round 0 has no values of probes
        used = {(name, client is None) for _, name, client, _ in first}
        # before the generators, as in an evaluation, so that threads do not wait for one another
        turn = self.fed.engine.turn.lock if isinstance(self.fed, Federation) else contextlib.nullcontext()
        for probe in self.probes:
            who, wrote_to = f"the probe {callbacks.named(probe)}", contract.writes(contract.tensors_of(r, y))
            with turn, rng.seeded(rng.word(self.s.seed, rng.SCHEDULE, *b"probes", self.t), self.fed.device):
                try:
                    found = probe(r, y)
                except AttributeError as e:
                    if not isinstance(e.obj, Round):
                        raise
                    what = f"{who} cannot measure {checks.told(self.method)}: {e}"
                    raise AttributeError(f"{what}; use a method that has this, or leave the probe out") from e
            if wrote := wrote_to():
                raise ValueError(
                    f"{who} wrote to {wrote[0]!r}, which other probes and rounds read; compute a new tensor, such as "
                    "y - r.x for y.sub_(r.x)"
                )
            wanted = f"return a mapping of names to numbers, or to one for each client [{r.m}]"
            if not isinstance(found, Mapping) or not all(isinstance(name, str) and name for name in found):
                raise TypeError(f"{who} gave {checks.brief(found)}; {wanted}")
            for name, value in found.items():
                try:
                    value = torch.as_tensor(value).detach().cpu().double()
                except (TypeError, ValueError, RuntimeError) as e:
                    raise TypeError(f"{who} gave {name!r}: {checks.brief(value)}; {wanted}") from e
                if value.ndim and value.shape != (r.m,):
                    raise ValueError(f"{who} gave {name!r} of shape {tuple(value.shape)}; {wanted}")
                if (name, value.ndim == 0) in used:
                    raise ValueError(f"{who} gave {name!r}, the name of a metric or of another value; use another name")
                used.add((name, value.ndim == 0))
                each = zip(r.ids.tolist(), value.tolist(), strict=True) if value.ndim else [(None, float(value))]
                rows += [(self.t, name, client, v) for client, v in sorted(each)]
        return rows

    def evaluate_clients(self, seen: Seen | None) -> None:
        """Evaluate the clients' models: one row of the history for each client and metric."""
        fed, x, world, clients = self.fed, self.state["x"], self.rows.world, self.rows.clients
        X = x.expand(len(clients), -1)
        if self.personal != "local":
            own = contract.personal(self.method, self.state, fed.layout, (len(clients), fed.d))
            X = X if own is None else own
        elif seen is not None:
            m = len(self.rows.dealt(seen.drawn))
            X, clients = seen.y[:m], seen.round.ids[:m]
        metrics = fed.evaluate_clients(X, clients) if len(clients) else {}  # empty in a process without clients
        columns = {k: list(zip(clients.tolist(), v.tolist(), strict=True)) for k, v in metrics.items()}
        everyone, found = world.objects(columns), {}
        for name in max(everyone, key=len):  # a process without clients has no metrics
            pairs = sorted(pair for one in everyone for pair in one.get(name, ()))
            if name in ("own_accuracy", "own_loss"):
                pairs = [(client, value) for client, value in pairs if len(fed.data.own[client])]
            self.history.rows += [(self.t, name, client, value) for client, value in pairs]
            found[name] = pairs
        name = next(name for name in BY_CLIENT if found.get(name))  # all clients have a loss
        of, values = zip(*found[name], strict=True)
        told = over_clients(name, values, fed.sizes[list(of)])
        self.history.rows += [(self.t, name, None, value) for name, value in told.items()]
        if fed.normalise == "client" and fed.classifies:
            pooled = world.first(lambda: float(fed.evaluate(x, "pooled")["accuracy"]))
            self.history.rows.append((self.t, "accuracy_pooled", None, pooled))


def _finite(vectors: Iterable[Tensor]) -> Tensor:
    """Whether all vectors are finite, as a tensor that stays on the device."""
    ends = [end for v in vectors for end in v.aminmax()]  # NaN stays NaN; an eighth of the time of `isfinite` of all
    return torch.isfinite(torch.stack(ends)).all()


def _size(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each row of Y is finite, and its largest absolute entry, without memory for a copy of Y."""
    size = torch.maximum(Y.amax(1), -Y.amin(1))  # NaN stays NaN
    return torch.isfinite(size), size
