"""Federations: the objectives of one network on the data of n clients."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import models, rng
from ..data import batches
from ..data.arrays import as_array
from ..data.augment import CropFlip, Own, RandAugment
from ..data.batches import Plan
from ..data.clients import READINGS, Clients
from ..data.lists import Lists
from ..data.partitions import Partition
from ..data.sources import Source
from ..engine import PATHS, PLAIN, Batch, CustomLoss, Engine, Loss, OneSample
from ..engine.units import Neurons
from ..models import Layout, parts
from ..storage.identity import digest, last_computed, network
from ..support import checks
from .base import Objective
from .targets import Metric, measured

SAMPLE_CHUNK = 4096  # samples of a cohort per forward and backward pass of a full local gradient


CLIENT_CHUNK = 256  # samples of one client per pass, where its result must not depend on the other clients


def taking(data: Clients, engine: Engine) -> Engine:
    """The engine; ValueError where its path has no rule for samples of this shape."""
    axes = {"batched": engine.axes, "written": engine.written.axes if engine.written else ()}
    if data.x.dim() - 1 not in axes.get(engine.path, [data.x.dim() - 1]):
        raise ValueError(
            f"path={engine.path!r} has no rule for samples {tuple(data.x.shape[1:])}; use path='auto' or 'sequential'"
        )
    return engine


@dataclass(frozen=True, eq=False, repr=False)
class Federation(Objective):
    """n clients, each with a share of the data; a client's objective is the mean loss of one network on its data.

    data: the clients' samples (`data.Clients`), from which the attributes `x [N, ...]`, `y [N]`, `index`, `sizes [n]`,
    `source`, `public`, `normalise` and `augment` are taken.  engine: computes losses and gradients (`engine.Engine`).
    x0 `[d]`: the initial server parameters.  metrics: the user's, beside loss and accuracy.  `fc.federation` makes a
    federation.

    normalise: uint8 images are used as (x - mean) / std per channel, with the statistics of the whole training set
    ("pooled"), of each client's own training images before any augmentation ("client", also for float images), with
    mean and std 1/2 of the range ("half", also for float images), divided by the range ("unit"), or unchanged as floats
    from 0 to 255 ("none").  A constant channel has std 1 instead of 0.  With "client", other images can be read with
    three statistics: the client's "own", those of the image's domain ("target"), or those of all clients' data
    ("pooled").
    """

    data: Clients
    engine: Engine
    x0: Tensor
    partition: Partition
    seed: int
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    drop_last: bool = False
    _smaller: dict[Any, Federation] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._made()

    def __repr__(self) -> str:
        return (
            f"Federation({self.source.name!r}, clients={self.n}, partition={checks.brief(self.partition)}, "
            f"d={self.d:,}, samples={self.sizes.sum()}, {self.sizes.min()} to {self.sizes.max()} a client, "
            f"device={self.device}, path={self.engine.described(self.device, self.data.x.dim() - 1)})"
        )

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.data.n

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.engine.layout.d

    @property
    def layout(self) -> Layout:
        """Names, shapes and positions of the parameters in the flat vector."""
        return self.engine.layout

    @property
    def stages(self) -> int:
        """The number of heads of a network with heads, else 1."""
        return parts.stages(self.engine.module)

    @property
    def classes(self) -> int:
        """The number of labels; where targets are no class labels, the number of values in a sample's target."""
        return self.source.classes

    @property
    def classifies(self) -> bool:
        """Whether the largest logit is the predicted class, so that there is an accuracy."""
        return self.engine.classifies

    @property
    def block(self) -> int | None:
        """The largest number of clients computed together, or None for no bound."""
        return self.engine.block

    @property
    def sizes(self) -> np.ndarray:
        """Training samples per client, `[n]`, read-only."""
        return self.data.sizes

    @property
    def device(self) -> torch.device:
        """The device of data and parameters."""
        return self.data.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of parameters and inputs."""
        return self.data.dtype

    @property
    def normalise(self) -> str:
        """How inputs are normalised: "pooled", "client", "half", "unit" or "none"."""
        return self.data.normalise

    @property
    def augment(self) -> RandAugment | CropFlip | Callable[..., Tensor] | None:
        """How training images are augmented, or None."""
        augment = self.data.augment
        return augment.function if isinstance(augment, Own) else augment

    @property
    def source(self) -> Source:
        """The data set."""
        return self.data.source

    @property
    def x(self) -> Tensor:
        """All training inputs as they are stored, `[N, ...]`."""
        return self.data.x

    @property
    def y(self) -> Tensor:
        """Their labels, `[N]`.

        What is written over x and y (`fed.y[rows] = 3`) holds for everything that is made of them from then on: runs,
        `label_counts`, `pooled`, `set_aside`, `fingerprint`.  Statistics that normalise images stay as they were.
        """
        return self.data.y

    @property
    def index(self) -> Lists:
        """Each client's rows of x and y."""
        return self.data.index

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """The test set's inputs as they are stored, `[T, ...]`, and labels `[T]`."""
        return self.data.test_x, self.data.test_y

    @property
    def public(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and labels of samples that no client has, or None."""
        return self.data.public

    @property
    def trained(self) -> Tensor | None:
        """Which parameters are trained, `[d]` bool; None where all are (`requires_grad=False` freezes one)."""
        return self.engine.trained

    def inputs(self, x: Tensor, client: Tensor | int | None = None) -> Tensor:
        """Samples `x [B, ...]` as inputs of the model, with images normalised.

        client: with normalise="client", the client whose statistics are used, one for all samples or one for each
        leading index of x; None: the statistics of all clients' images.
        """
        return self.data.inputs(x, client)

    # --- the same federation, changed -------------------------------------------------------------------------------

    def _moved(self, device: torch.device, dtype: torch.dtype) -> Federation:
        engine = self.engine.to(device, dtype)
        return replace(self, data=self.data.to(device, dtype), engine=engine, x0=self.x0.to(device, dtype))

    @checks.arguments
    def forced(self, path: Annotated[str, checks.OneOf(PATHS)]) -> Federation:
        """The same federation with the engine's path forced ("written", "batched" or "sequential").

        Raises ValueError where the path has no rule for the model or the samples.
        """
        return replace(self, engine=taking(self.data, self.engine.forced(path)))

    @checks.arguments
    def fastest(self, cohort: checks.Count = 10, batch_size: checks.Count = 20) -> Federation:
        """The same federation with the path forced that is fastest here for one local step of such a cohort.

        `fed.engine.times` has the seconds of each path.  Paths agree to rounding only, and another machine may choose
        another path; a run there is then equal to rounding instead of to the bit.
        """
        clients = np.arange(min(cohort, self.n))
        plan = self.plan(self.seed, 0, clients, steps=1, batch_size=batch_size)
        Y, batch = self.x0.repeat(len(clients), 1), self.batch(plan, 0)
        times: dict[str, float] = {}
        for path in PATHS:
            try:
                engine = self.forced(path).engine
            except ValueError:  # no rule for this module
                continue
            for _ in range(3):  # the first warms up
                begin = time.perf_counter()
                engine.descend(Y, plan.counts, lambda _k, rows: batch.rows(rows), 0.0)
                if Y.is_cuda:
                    torch.cuda.synchronize(Y.device)
                times[path] = time.perf_counter() - begin
        fed = self.forced(min(times, key=times.get))
        fed.engine.times = times
        return fed

    @checks.arguments
    def shrink(self, to: checks.Function) -> Federation:
        """The same clients with the smaller model `to(module)`, such as `submodels.Width(0.5)`; made once for equal
        `to`.

        `x0` are the parameters of the smaller module.  `fed.shrink(Width(r)).evaluate(x[places])` evaluates a sub-model
        of x.
        """
        if to not in self._smaller:
            engine = self.engine.shrink(to)
            self._smaller[to] = replace(self, engine=engine, x0=models.flatten(engine.module))
        return self._smaller[to]

    @checks.arguments
    def with_model(self, change: checks.Function) -> Federation:
        """The same clients and data with the model `change(module)`, which draws from the federation's seed."""
        e = self.engine
        with e.turn.lock:
            module = models.holding(e.module, self.x0).cpu()
        module = models.build(lambda shape, classes: change(module), (), 0, self.seed)
        loss = e.criterion.function if isinstance(e.criterion, CustomLoss) else None
        from .making import on_network

        fed = on_network(self.data, module, self.partition, self.seed, e.path, e.compute, e.block, loss, self.metrics)
        return replace(fed, drop_last=self.drop_last)

    def with_public(self, x: Any, y: Any) -> Federation:
        """The same clients with the caller's public data `(x, y)`.

        Raises ValueError where a sample is a client's or a test sample, or of another shape or type than the source's.
        """
        return replace(self, data=self.data.with_public(x, y))

    def set_aside(self, k: int) -> Federation:
        """A federation whose `public` data are k samples per class, taken from the clients.

        Raises ValueError where a client keeps no data.  `fc.federation(..., public=k)` takes public data before the
        partition instead.
        """
        return replace(self, data=self.data.set_aside(k, self.seed))

    def on_validation(self) -> Federation:
        """The same federation evaluated on its validation data instead of the test data, for hyperparameter tuning.

        Raises ValueError where it was made without `validation=True`.
        """
        return replace(self, data=self.data.on_validation())

    def pooled(self) -> Federation:
        """A federation of one client with all data, in the order of the data set; self where n = 1."""
        if self.n == 1:
            return self
        d = self.data
        source = replace(d.now, train_owner=None, test_owner=None)  # one client mixes all owners
        one = d.like(source, [np.sort(d.parts.rows)], seed=self.seed)
        statistics = one.statistics if d.normalise == "client" else d.statistics
        held = {name: getattr(d, name) for name in ("x", "y", "test_x", "test_y", "public")}
        return replace(self, data=replace(one, **held, statistics=statistics))

    # --- batches and gradients --------------------------------------------------------------------------------------

    def plan(
        self,
        seed: int,
        t: int,
        clients: np.ndarray,
        *,
        epochs: int | np.ndarray = 1,
        steps: int | np.ndarray | None = None,
        batch_size: int | None = 20,
        walk: bool = False,
        share: float | None = None,
        epoch: int = 0,
    ) -> Plan:
        """The batches of round t for these clients, a function of (seed, t, client) alone.

        Mini-batches for `epochs` passes over the data or for `steps` steps, one number for all clients or `[m]`
        (`data.batches.mini_batches`); with batch_size=None the whole local data in each step; with `share`, epoch
        number `epoch` over a random share of each client's samples (`data.batches.share_batches`).
        """
        if share is None and batch_size is None:
            return batches.full_batches(seed, t, clients, epochs if steps is None else steps, self.device)
        samples = [self.index[i] for i in clients]
        least = batch_size if self.drop_last else 1 if batch_size == 1 or self.takes_one_sample else 2
        how = {"batch_size": batch_size, "device": self.device, "dtype": self.dtype, "least": least or 2}
        if share is not None:
            return batches.share_batches(seed, t, clients, samples, share=share, epoch=epoch, **how)
        return batches.mini_batches(seed, t, clients, samples, epochs=epochs, steps=steps, walk=walk, **how)

    def batch(self, plan: Plan, k: int, rows: slice = slice(None)) -> Batch:
        """The mini-batches of local step k for a slice of the clients of a plan with mini-batches."""
        samples, step = plan.samples[k, rows], plan.first + k
        picked = plan.indices[k, rows]
        counts, words = plan.counts[k, rows].tolist(), self._augmentation(plan.keys[rows], step, samples)
        x = self.data.local_inputs(picked, plan.rows[rows], counts, words)
        keys = self._dropout(plan.keys[rows], step)
        return Batch(x, self.y[picked], plan.weights[k, rows], counts, keys)

    def gradient(self, Y: Tensor, plan: Plan, k: int, loss: Loss = PLAIN, along: Tensor | None = None) -> Tensor:
        """Gradients `[a, d]` of local step k for the first a = len(Y) clients of the plan.

        loss: the loss to differentiate, with tensors for these a clients.  along: directions `[a, d]`; the result is
        then the Hessian-vector product of each row.
        """
        return self.gradient_and_losses(Y, plan, k, loss, along)[0]

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`gradient`, and the clients' losses `[a]` on the same batches."""
        if plan.indices is not None:
            return self.engine.gradient(Y, self.batch(plan, k, slice(len(Y))), loss, along)
        G, losses = torch.zeros_like(Y), Y.new_zeros(len(Y))
        for rows, columns, batch in self._full_batches(plan, k, len(Y)):
            direction = None if along is None else along[rows]
            g, each = self.engine.gradient(Y[rows], batch, loss.cut(rows, columns), direction)
            G[rows] += g
            losses[rows] += each
        return G, losses

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """Gradients `[a, d]` of the clients' whole local objectives at the rows of Y, as local step k sees them."""
        return self.gradient(Y, replace(plan, indices=None), k, loss, along)

    def descend(self, Y: Tensor, plan: Plan, lr: float, decay: float = 0.0, clip: float | None = None) -> None:
        """All local steps of a plan with mini-batches in place, `Y <- Y - lr * gradient(Y, plan, k)`, to rounding.

        decay: weight decay, added to the gradients.  clip: the largest norm of a client's gradient with weight decay.
        """
        self.engine.descend(Y, plan.counts, partial(self.batch, plan), lr, decay, clip)

    def carry(self, Y: Tensor, plan: Plan, k: int) -> Tensor | None:
        """The buffers `[a, b]` that training updates, after the forward pass of local step k from the buffers in the
        rows of Y; None where the network has no such buffers."""
        if not self.engine.trial.carried:
            return None
        if plan.indices is not None:
            return self.engine.carry(Y, self.batch(plan, k, slice(len(Y))))
        kept = Y[:, self.layout.carried].clone()
        for rows, _, batch in self._full_batches(plan, k, len(Y)):
            kept[rows] = self.engine.carry(Y[rows], batch)
        return kept

    def logits(self, Y: Tensor, plan: Plan, k: int) -> Tensor:
        """Logits `[a, B, ...]` under the rows of `Y [a, d]` on local step k's batches, forward only.

        As in training, batch norm uses the batch.  Entries of padded samples have no meaning.
        """
        if plan.indices is not None:
            return self.engine.logits(Y, self.batch(plan, k, slice(len(Y))))
        found, width = None, int(self.sizes[plan.clients[: len(Y)]].max())
        for rows, columns, batch in self._full_batches(plan, k, len(Y)):
            logits = self.engine.logits(Y[rows], batch)
            if found is None:
                found = logits.new_zeros(len(Y), width, *logits.shape[2:])
            found[rows, columns] = logits
        return found

    @property
    def takes_one_sample(self) -> bool:
        """Whether local steps may have batches of one sample.

        They may not where the network divides by the deviation of a batch, as batch norm does; one sample then raises
        an error or gives NaN.
        """
        return self.engine.trial.takes_one

    def _full_batches(self, plan: Plan, k: int, a: int) -> Iterator[tuple[slice | Tensor, slice, Batch]]:
        """All samples of the plan's first a clients in parts: the clients, the columns of their samples, and the batch.

        Batch norm and other layers that mix samples need all samples of a client at once.  Clients of equal size then
        go together, so that no sample is padded and no result depends on the other clients of the cohort.
        """
        clients, sizes, step = plan.clients[:a], self.sizes[plan.clients[:a]], plan.first + k
        order, start = np.concatenate([self.index[i] for i in clients]), np.cumsum(sizes) - sizes

        def batch(rows: np.ndarray, low: int, high: int) -> Batch:
            j = np.arange(low, high)
            valid = j < sizes[rows, None]
            samples = order[start[rows, None] + np.where(valid, j, 0)]
            picked = torch.as_tensor(samples).to(self.device)
            words, counts = self._augmentation(plan.keys[rows], step, samples, low), valid.sum(1).tolist()
            x = self.data.local_inputs(picked, plan.rows[torch.as_tensor(rows).to(self.device)], counts, words)
            weight = torch.as_tensor(valid / sizes[rows, None], dtype=self.dtype).to(self.device)
            keys = self._dropout(plan.keys[rows], step, low)
            return Batch(x, self.y[picked], weight, counts, keys)

        if self.engine.norms or self.engine.trial.mixes:
            for size in np.unique(sizes)[::-1].tolist():
                same = np.flatnonzero(sizes == size)
                for rows in np.array_split(same, -(-len(same) // max(1, SAMPLE_CHUNK // size))):
                    yield torch.as_tensor(rows).to(self.device), slice(0, size), batch(rows, 0, size)
            return
        # with dropout or a user's augmentation, the draws of a chunk must not depend on the other clients
        random = self.engine.random or isinstance(self.data.augment, Own)
        width, longest = CLIENT_CHUNK if random else max(1, SAMPLE_CHUNK // a), int(sizes.max())
        for low in range(0, longest, width):
            high = min(low + width, longest)
            yield slice(None), slice(low, high), batch(np.arange(a), low, high)

    def _augmentation(self, keys: np.ndarray, step: int, samples: np.ndarray, low: int = 0) -> np.ndarray | None:
        """Random words for augmentation in each step: one per sample `[m, B]`, or for a user's function one per client
        and chunk `[m]`; None where images are not augmented in each step."""
        augment = self.data.augment
        if augment is None or augment.once:
            return None
        if isinstance(augment, Own):
            return rng.words(keys, rng.AUGMENT, step, low)
        return rng.words(keys[:, None], rng.AUGMENT, step, samples)

    def _dropout(self, keys: np.ndarray, *parts: int) -> list[int]:
        """A random word per client, or zeros where the network draws no random numbers."""
        if not self.engine.random:
            return [0] * len(keys)
        return [int(key) & 0x7FFFFFFFFFFFFFFF for key in rng.words(keys, rng.DROPOUT, *parts)]

    def activation_bytes(self, batch_size: int | None) -> float:
        """Bytes of activations and their gradients for one client's mini-batch.

        0 where memory is bounded in another way: full batches are computed in parts, and so are clients on every path
        but the batched one without recurrent layers.
        """
        e = self.engine
        if batch_size is None or e.general(self.device) != "batched" or e.block is not None or e.recurs:
            return 0.0
        outputs = e.width(self.inputs(self.x[:2]))
        return 2.0 * min(batch_size, int(self.sizes.max())) * outputs * self.x0.element_size()

    # --- sub-models -------------------------------------------------------------------------------------------------

    def neurons(self, aligned: bool = True) -> Neurons:
        """The model's hidden units and their entries in the flat vector; ValueError as in `Neurons.of`."""
        return self.engine.neurons(aligned, self.x.dim() - 1)

    def activations(self, x: Tensor, clients: np.ndarray, budget: int | None = None, key: int = 0) -> list[Tensor]:
        """Mean activations of the model `x [d]` over the clients' samples and positions, `[a, width]` for each stream.

        budget: samples per client, a subset drawn from (key, client); None uses all.  Batch norm uses the statistics of
        chunks of up to `CLIENT_CHUNK` samples of one client; scalers are off.
        """
        samples = [self.index[i] for i in clients]
        if budget is not None:
            hashes = (rng.words(key, int(i), np.arange(len(s))) for i, s in zip(clients, samples, strict=True))
            samples = [s[np.argsort(h)[:budget]] for s, h in zip(samples, hashes, strict=True)]
        # with batch norm, a client's chunks must not depend on the other clients
        width = CLIENT_CHUNK if self.engine.norms else max(1, SAMPLE_CHUNK // len(clients))
        chunks = [np.array_split(s, -(-len(s) // width)) for s in samples]
        back, total, rows = x.device, None, torch.as_tensor(np.asarray(clients)).to(self.device)
        Y = x.to(self.device).expand(len(clients), -1)
        for c in range(max(map(len, chunks))):
            sizes = np.array([len(parts[c]) if c < len(parts) else 0 for parts in chunks])
            order = np.stack([np.resize(parts[min(c, len(parts) - 1)], sizes.max()) for parts in chunks])
            valid = np.arange(sizes.max()) < sizes[:, None]
            weight = torch.as_tensor(valid / [[len(s)] for s in samples], dtype=self.dtype).to(self.device)
            picked = torch.as_tensor(order).to(self.device)
            inputs = self.inputs(self.x[picked], rows[:, None])
            batch = Batch(inputs, self.y[picked], weight, sizes.tolist(), [])
            seen = self.engine.observe(Y, batch, self.neurons().sites)
            means = [torch.einsum("mb,mbcs->mc", weight, h) / h.shape[3] for h in seen]
            total = means if total is None else [a + b for a, b in zip(total, means, strict=True)]
        return [h.to(back) for h in total]

    def public_logits(self, Y: Tensor) -> Tensor:
        """Logits `[m, P, classes]` of the public samples under each row of `Y [m, d]`, batch norm on all of them."""
        x, y = self.inputs(self.public[0])[None], self.public[1][None]
        batch = Batch(x, y, torch.ones_like(y, dtype=self.dtype), [y.shape[1]], [0])
        rows = (row[None].to(self.device) for row in Y)
        return torch.cat([self.engine.logits(row, batch).to(Y.device) for row in rows])

    def public_sensitivities(
        self, x: Tensor, picked: Tensor, labels: Tensor, w: Tensor, sites: Sequence[str], loss: Loss = PLAIN
    ) -> list[Tensor]:
        """Derivatives `[m, S, width, positions]` of a loss of the model `x [d]` by its activations at each of `sites`.

        picked `[m, S]`: indices of public samples.  labels `[m, S]`, weights w `[m, S]` (0: not used); loss for m
        clients.
        """
        batch = Batch(*(t.to(self.device) for t in (self.inputs(self.public[0][picked]), labels, w)), [0] * len(w), [])
        D = self.engine.observe(x.to(self.device).expand(len(w), -1), batch, sites, loss.to(self.device))
        return [h.to(x.device) for h in D]

    # --- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, x: Tensor, reading: str | None = None) -> dict[str, Tensor]:
        """`accuracy`, mean `loss` and the user's metrics of the flat parameters `x [d]` on the whole test set.

        The loss is the cross-entropy or the federation's `loss`; accuracy is left out where targets are no classes.

        reading: with normalise="client", the statistics for test images, "target" or "pooled"; the default is "target"
        where test images have owners, else "pooled".  Raises ValueError for an x of another length and for an unknown
        reading.
        """
        x = self._flat("x", x)
        reading = self._reading if reading is None else checks.choice("reading", reading, READINGS[1:])
        seen = [] if self.metrics else None
        found = self.engine.evaluate(x, self.data.test_chunks(reading), self.data.train_chunks, seen)
        return found | self._measured(seen)

    @property
    def _reading(self) -> str:
        return "pooled" if self.source.test_owner is None else "target"

    def _measured(self, seen: list[tuple[Tensor, Tensor]] | None) -> dict[str, Tensor]:
        """The user's metrics of all logits and targets at once, because a metric need not be a mean over samples."""
        T = len(self.data.test_y)  # without the clients' own test data
        return measured(self.metrics, *(torch.cat(column)[:T] for column in zip(*seen, strict=True))) if seen else {}

    def correct(self, x: Tensor) -> Tensor:
        """Which test samples the flat parameters `x [d]` classify correctly, `[T]` bool, with `evaluate`'s reading.

        Raises ValueError for an x of another length, and where targets are no classes.
        """
        x = self._flat("x", x)
        if not self.classifies:
            raise ValueError("targets that are no classes have no correct answers; use fed.evaluate, or metrics=")
        return self.engine.scores(x, self.data.test_chunks(self._reading), self.data.train_chunks)[1].bool()

    def with_statistics(self, Y: Tensor, clients: np.ndarray) -> Tensor:
        """A copy of the models `Y [a, d]` of these clients in which the fixed statistics of each
        `models.FixableBatchNorm` are those of the client's training data."""
        rows = zip(Y.to(self.device), clients.tolist(), strict=True)
        found = [self.engine.with_statistics(y, partial(self.data.train_chunks, i)) for y, i in rows]
        return torch.stack(found).to(Y.device)

    def evaluate_clients(self, X: Tensor, clients: np.ndarray | None = None) -> dict[str, Tensor]:
        """Metrics `[a]` of the models `X [a, d]` of these clients (default: all), each on the whole test set.

        `accuracy`, `loss` and the user's metrics use the client's own normalisation and batch-norm statistics of its
        training data.  `own_accuracy` (`own_loss` where targets are no classes) is on the client's own test data
        (`own_test`), NaN for a client without any.  With normalise="client", `accuracy_target` and `accuracy_pooled`
        are the accuracies with the other two readings.

        Raises ValueError for an X of another shape and for clients that do not exist.
        """
        clients = np.arange(self.n) if clients is None else as_array(clients)
        known = clients.ndim == 1 and clients.dtype.kind in "iu" and len(clients) > 0
        if not known or (clients < 0).any() or (clients >= self.n).any():
            raise ValueError(
                f"clients={checks.brief(clients.tolist())} do not exist; use clients from 0 to {self.n - 1}"
            )
        hint = f"one row of the model's {self.d:,} parameters for each client"
        X = self._vector("X", X, (len(clients), self.d), hint)
        lone = [i for i in clients.tolist() if self.sizes[i] == 1]
        if lone and not self.takes_one_sample:
            raise OneSample(f"client {lone[0]} has 1 sample, whose statistics its model would be evaluated with: ")
        data, own, T, rows = self.data, self.data.own, len(self.data.test_y), []
        for x, i in zip(X, clients.tolist(), strict=True):
            train, seen = partial(data.train_chunks, i), [] if self.metrics else None
            tests = itertools.chain(data.test_chunks("own", i), data.kept_chunks(i))
            loss, hits = self.engine.scores(x, tests, train, seen)
            row = {"loss": loss[:T].mean()} | self._measured(seen)
            if self.classifies:
                row = {"accuracy": hits[:T].mean()} | row
            if own is not None:
                name, scores = ("own_accuracy", hits) if self.classifies else ("own_loss", loss)
                kept = data.kept is not None
                row[name] = (scores[T:] if kept else scores[torch.as_tensor(own[i]).to(loss.device)]).mean()
            for reading in READINGS[1:] if self.normalise == "client" and self.classifies else ():
                row[f"accuracy_{reading}"] = self.engine.scores(x, data.test_chunks(reading), train)[1].mean()
            rows.append(row)
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def own_test(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's own test data as they are stored, inputs `[T_i, ...]` and labels `[T_i]`; T_i may be 0.

        They are the samples that it keeps with `fc.federation(..., own_test=0.2)`; without own_test, the test samples
        of its owner, such as its entry in a list of test data.
        """
        client, own = checks.integer("client", client, 0, self.n - 1), self.data.own
        rows = torch.as_tensor([] if own is None else own[client], dtype=torch.long, device=self.device)
        x, y, *_ = self.data.kept or self.test
        return x[rows], y[rows]

    def objective(self, x: Tensor) -> Tensor:
        """F(x): the mean over clients of their mean training losses, the function that federated learning minimises.

        Raises ValueError for an x of another length.
        """
        x = self._flat("x", x)
        loss, _ = self.engine.scores(x, self.data.train_chunks(), self.data.train_chunks)
        share = np.repeat(1 / (self.n * self.sizes), self.sizes)  # of each sample in F
        if not self.data.apart:
            share = np.bincount(self.index.rows, share)
        return torch.as_tensor(share[share > 0], device=self.device) @ loss

    def module(self, params: Tensor, client: int | None = None) -> nn.Module:
        """The flat parameters `[d]` as an ordinary module in evaluation mode: `module(x)` are logits of `x [B, ...]`.

        x: samples on the scale of the source, such as bytes.  The module is `normalise`, which holds the mean and the
        standard deviation of images, followed by `network`, a copy of the model with these parameters and with the
        batch-norm statistics of `evaluate`; its accuracy on the test set is therefore the history's.  A network with
        heads gives the mean of their logits (in training mode: every head's logits); scalers are off.
        `module.network.state_dict()` fits the class of the model; under FixBN leave out `fixed_mean` and `fixed_var`,
        which are also the running statistics.  The copy has the federation's device and type.

        client: the module is the one that `evaluate_clients` uses for this client, with batch-norm statistics of its
        training data and, with normalise="client", the mean and deviation of its images.  The parameters of personal
        models are `history.method.personal(history.state, fed.layout)[client]`.  Without client, images are normalised
        by the statistics of all clients' data, which with normalise="client" is the reading "pooled".
        The module of a sub-model is `fed.shrink(to).module(params[places])`.

        Raises ValueError for parameters of another length and for a client that does not exist.
        """
        x = self._flat("params", params)
        if client is not None:
            client = checks.integer("client", client, 0, self.n - 1)
        network = self.engine.evaluated(x, partial(self.data.train_chunks, client))
        normalise = self.data.normaliser(client, self.engine.lays(self.x))
        return nn.Sequential(OrderedDict(normalise=normalise, network=network)).eval()

    def _flat(self, name: str, x: Tensor) -> Tensor:
        """The parameters; ValueError where their number differs from d."""
        hint = (
            f"a flat vector of this model's {self.d:,} parameters, such as the history.params of a run on it (a method "
            "that changes the model, as DepthFL adds heads, ran on method.on(fed))"
        )
        return self._vector(name, x, (self.d,), hint)

    def label_counts(self) -> np.ndarray:
        """Samples per client and label, `[n, classes]`, as `y` is now; read-only, as `sizes` is."""
        return self.data.label_counts

    def plot(self, ax: Any = None) -> Any:
        """A matplotlib Figure of the partition, clients x labels."""
        from fedbook.pictures import plots

        return plots.partition(self.label_counts(), ax=ax).figure

    def identity(self) -> dict[str, Any]:
        """Everything that determines a run on this federation, by name, with hashes of large values.

        "answers": logits of three samples, equal to rounding for the same model; all other values are equal to the bit.
        """
        s, e, d = self.data.now, self.engine, self.data
        collected = [b for norm in e.norms for b in norm.buffers()]  # by evaluations
        N = len(s.train_y)
        copies = [] if d.augment is None or not d.augment.once else [self.x[N:]]
        if copies and not torch.equal(self.y[:N], self.y[N:]):
            copies.append(self.y[N:])
        with e.turn.lock, rng.seeded(0, self.device), torch.no_grad():
            module = models.copied(e.module).eval()
            for layer in module.modules():
                if isinstance(layer, nn.modules.batchnorm._NormBase):
                    layer.reset_running_stats()  # evaluations collect them
            answers = module(d.inputs(self.x[:3])).flatten().tolist()
        described = digest(network(e.module, without=[*collected, *last_computed(e.module, module)]))
        return {
            "data": digest(s.name, s.train_x, s.train_y, s.test_x, s.test_y, self.public),
            "owners": digest(s.test_owner, None if s.test_owner is None else s.train_owner),
            "clients": digest(self.sizes, self.index.rows),
            "model": described,
            "x0": digest(self.x0),
            "answers": {"about": answers},
            "dtype": str(self.dtype),
            "normalise": self.normalise,
            "augment": [
                digest(d.augment) if isinstance(d.augment, Own) else repr(d.augment),
                digest(*copies) if copies else "",
            ],
            "loss": digest(e.criterion),
            "metrics": {name: digest(metric) for name, metric in self.metrics.items()},
            "path": e.path,
            "compute": str(e.compute),
            "block": self.block,
            **({"drop_last": True} if self.drop_last else {}),
            **({"own_test": digest(*d.kept[:2], d.kept[2].rows, d.kept[2].ends)} if d.kept is not None else {}),
        }
