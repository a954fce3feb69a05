"""Federations: n clients on one device, their objectives, and the batches a round will use."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import checks, distributed, models, rng
from ..engine import PATHS, Batch, Engine, Loss
from ..submodels import Neurons
from .augment import RandAugment
from .partitions import IID, ByOwner, Partition
from .sources import Source, from_arrays, load

Contrast = tuple[Sequence[Tensor], Callable[..., Tensor]]
EVAL_CHUNK = 2048  # test samples per forward pass
NORM_CHUNK = 256  # samples of one client whose statistics batch norm uses where no batch size says so
SAMPLE_CHUNK = 4096  # samples of a cohort per forward and backward pass of a full local gradient
NORMALISE = ("pooled", "client", "half")
READINGS = ("own", "target", "pooled")


@dataclass(frozen=True)
class Plan:
    """Which samples each client of a cohort uses in which local step; made on the host, sent to the device once.

    steps: K_i per row.  indices `[K, m, B]`, weights `[K, m, B]` (1/B_i, 0 where padded), counts `[K, m]`, samples
    (the indices on the host, where images are augmented).  For full batches and quadratics the arrays are None: the
    step needs no choice.
    """

    clients: np.ndarray
    rows: Tensor
    steps: np.ndarray
    keys: np.ndarray
    indices: Tensor | None = None
    weights: Tensor | None = None
    counts: np.ndarray | None = None
    samples: np.ndarray | None = None
    first: int = 0

    def of(self, rows: np.ndarray, step: int | None = None) -> Plan:
        """The plan of some of its rows, given in ascending order; of one step only, when given."""
        at, steps = torch.as_tensor(rows).to(self.rows.device), self.steps[rows]
        ks = slice(int(steps.max())) if step is None else slice(step, step + 1)
        parts = (None if a is None else a[ks][:, at] for a in (self.indices, self.weights))
        hosted = (None if a is None else a[ks][:, rows] for a in (self.counts, self.samples))
        return Plan(self.clients[rows], self.rows[at], steps, self.keys[rows], *parts, *hosted, first=step or 0)

    def useful(self) -> dict[str, float]:
        """The share of real samples among those computed: `prefix` as the rows are sorted, `padded` in lock-step."""
        if self.counts is None:
            return {"prefix": 1.0, "padded": 1.0}
        width, active = self.weights.shape[2], (self.steps > np.arange(self.steps.max())[:, None]).sum()
        return {k: float(self.counts.sum() / (width * n)) for k, n in
                (("prefix", active), ("padded", self.steps.max() * len(self.steps)))}  # fmt: skip


class Federation:
    """n clients whose training data are two tensors `x [N, ...]`, `y [N]` on one device, and an index per client.

    uint8 images stay uint8 until a batch is used.  `sizes [n]`: samples per client.  `x0 [d]`: the initial server
    parameters.  `index[i]`: the rows of client i.  Make one with `fc.federation`.

    normalise: uint8 images are used as (x - mean) / std per channel, with the statistics of the whole training set
    ("pooled"), of each client's own training images before any augmentation ("client", also for float images), or
    with mean and std 1/2 of the range ("half").  A constant channel has std 0, taken as 1.  For images of others a
    client's model needs a reading of "client": its "own" statistics, those of the image's domain ("target"), or those
    of all clients' data ("pooled").
    """

    def __init__(
        self,
        source: Source,
        parts: Sequence[np.ndarray],
        module: nn.Module,
        *,
        partition: Partition,
        seed: int,
        path: str = "auto",
        compute: torch.dtype | None = None,
        block: int | None = None,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        normalise: str = "pooled",
        augment: RandAugment | None = None,
        public: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.source, self.partition, self.seed = source, partition, seed
        self.device, self.dtype, self.normalise, self.augment = device, dtype, normalise, augment
        self.sizes = np.array([len(p) for p in parts])
        if not self.sizes.all():
            empty = np.flatnonzero(self.sizes == 0).tolist()
            raise ValueError(f"clients {empty[:10]} have no training data; use fewer clients or another partition")
        self.n, self.index = len(parts), [np.asarray(p) for p in parts]
        self._parts = self.index  # without the copies that augmentation may add
        self.x, self.y = self._put(source.train_x), self._put(source.train_y)
        self._test = (self._put(source.test_x), self._put(source.test_y))
        self._norm, train_rows, test_rows = _normalisation(source, self.index, normalise)
        self._norm = self._norm.to(device, dtype)
        if augment is not None and augment.once:
            words = rng.words(seed, rng.AUGMENT, np.arange(len(self.y)))
            self.x = torch.cat([self.x, augment(self.x, words)])
            self.index, train_rows = [np.concatenate([p, p + len(self.y)]) for p in self.index], np.tile(train_rows, 2)
            self.y, self.sizes = torch.cat([self.y, self.y]), 2 * self.sizes
        self._rows, self._test_rows = self._put(train_rows), self._put(test_rows)
        self._start = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self._order = np.concatenate(self.index)
        self._owned: np.ndarray | None = None
        self.public = None if public is None else tuple(self._put(part) for part in public)
        self.engine = Engine(module, path, compute=compute, block=block)
        self.engine.module.to(device, dtype)
        self.x0 = models.flatten(module).to(device, dtype)
        if not torch.isfinite(self.x0).all():
            raise ValueError("the model's initial parameters hold NaN or infinity; give a module with finite ones")
        self.d = self.engine.layout.d
        self._check_model()

    def __repr__(self) -> str:
        return (
            f"Federation({self.source.name!r}, clients={self.n}, partition={self.partition}, d={self.d:,}, "
            f"samples={self.sizes.sum()}, {self.sizes.min()} to {self.sizes.max()} a client, device={self.device})"
        )

    def _put(self, a: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(a)).to(self.device)

    def _check_model(self) -> None:
        try:
            with torch.no_grad():
                logits = self.engine.module.eval()(self._inputs(self.x[:2]))
        except Exception as e:  # whatever a module of the user's raises
            raise ValueError(
                f"the model does not take inputs of shape {tuple(self.x.shape[1:])} ({_first_line(e)}); "
                "use a model made for this shape, or model='mlp'"
            ) from e
        if not isinstance(logits, Tensor):
            raise ValueError(
                f"the model returns a {type(logits).__name__}; use a model that returns logits [B, classes] alone"
            )
        if logits.ndim != 2 or logits.shape[1] < self.source.classes:
            raise ValueError(
                f"the model gives {tuple(logits.shape[1:])} logits a sample, the source has {self.source.classes} "
                f"classes; make its last layer {self.source.classes} wide"
            )

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Federation:
        """The same federation on another device or with parameters of another type; self is left as it is."""
        device = _device(device or self.device)
        if device == self.device and dtype in (None, self.dtype):
            return self
        fed = copy.copy(self)
        fed.device, fed.dtype = device, dtype or self.dtype
        fed.engine = copy.deepcopy(self.engine)
        fed.engine.module.to(device, fed.dtype)
        fed.x, fed.y, fed.x0 = self.x.to(device), self.y.to(device), self.x0.to(device, fed.dtype)
        fed._test, fed._norm = tuple(part.to(device) for part in self._test), self._norm.to(device, fed.dtype)
        fed._rows, fed._test_rows = self._rows.to(device), self._test_rows.to(device)
        fed.public = None if self.public is None else tuple(part.to(device) for part in self.public)
        fed.engine.shrunk = {}  # they hold parameters of the other device or type
        return fed

    def forced(self, path: str) -> Federation:
        """The same federation with the engine's path forced ("written", "batched" or "sequential")."""
        fed = copy.copy(self)
        fed.engine = Engine(self.engine.module, path, self.engine.loss, self.engine.compute, self.engine.block)
        return fed

    def fastest(self, cohort: int = 10, batch_size: int = 20) -> Federation:
        """The same federation with the path forced that took the least time here for one step of such a cohort.

        `fed.engine.times` has the seconds of each path.  Paths agree to rounding only: a run on another machine, which
        may time them differently, is then equal to rounding and not to the bit.
        """
        clients = np.arange(min(checks.integer("cohort", cohort, 1), self.n))
        plan = self.plan(self.seed, 0, clients, steps=1, batch_size=checks.integer("batch_size", batch_size, 1))
        Y, batch = self.x0.repeat(len(clients), 1), self._batch(plan, 0, slice(len(clients)))
        times: dict[str, float] = {}
        for path in PATHS:
            try:
                engine = self.forced(path).engine
            except ValueError:  # no rule for this module
                continue
            for _ in range(3):  # the first is a rehearsal
                begin = time.perf_counter()
                engine.descend(Y, plan.counts, lambda _k, rows: batch.rows(rows), 0.0)
                if Y.is_cuda:
                    torch.cuda.synchronize(Y.device)
                times[path] = time.perf_counter() - begin
        fed = self.forced(min(times, key=times.get))
        fed.engine.times = times
        return fed

    # --- sub-models and public data ---------------------------------------------------------------------------------

    def neurons(self, aligned: bool = True) -> Neurons:
        """The model's hidden units and what they own; ValueError for models that mix channels."""
        return self.engine.neurons(aligned)

    def shrink(self, to: Callable[[nn.Module], nn.Module]) -> Federation:
        """The same clients with the smaller model `to(module)` (`submodels.Width(0.5)`), its engine made once.

        `x0` is the smaller module's.  `fed.shrink(Width(r)).evaluate(x[places])` evaluates a sub-model of x.
        """
        fed = copy.copy(self)
        fed.engine = self.engine.shrink(to)
        fed.d, fed.x0 = fed.engine.layout.d, fed.engine.start
        return fed

    def owned(self, clients: np.ndarray) -> Tensor:
        """Which labels each of these clients holds, `[m, classes]` bool."""
        if self._owned is None:
            self._owned = self.label_counts() > 0
        return torch.as_tensor(self._owned[clients]).to(self.device)

    def activations(self, x: Tensor, clients: np.ndarray, budget: int | None = None, key: int = 0) -> list[Tensor]:
        """Mean activation `[m, width]` per stream of the model `x [d]` over the clients' samples and positions.

        budget: samples per client, a subset drawn from (key, client); None = all.  Batch norm uses the statistics of
        chunks of up to `NORM_CHUNK` samples of one client, scalers are off.
        """
        mine = [self.index[i] for i in clients]
        if budget is not None:
            hashes = (rng.words(key, int(i), np.arange(len(part))) for i, part in zip(clients, mine, strict=True))
            mine = [part[np.argsort(h)[:budget]] for part, h in zip(mine, hashes, strict=True)]
        # with batch norm, a client's chunks must not depend on who else is in the cohort
        width = NORM_CHUNK if self.engine.norms else max(1, SAMPLE_CHUNK // len(clients))
        chunks = [np.array_split(part, -(-len(part) // width)) for part in mine]
        back, total, rows = x.device, None, torch.as_tensor(np.asarray(clients)).to(self.device)
        Y = x.to(self.device).expand(len(clients), -1)
        for c in range(max(map(len, chunks))):
            sizes = np.array([len(parts[c]) if c < len(parts) else 0 for parts in chunks])
            order = np.stack([np.resize(parts[min(c, len(parts) - 1)], sizes.max()) for parts in chunks])
            valid = np.arange(sizes.max()) < sizes[:, None]
            weight = torch.as_tensor(valid / [[len(part)] for part in mine], dtype=self.dtype).to(self.device)
            picked = torch.as_tensor(order).to(self.device)
            x = self._inputs(self.x[picked], rows[:, None])
            batch = Batch(x, self.y[picked], weight, sizes.tolist(), [])
            seen = self.engine.observe(Y, batch, self.neurons().sites)
            means = [torch.einsum("mb,mbcs->mc", weight, h) / h.shape[3] for h in seen]
            total = means if total is None else [a + b for a, b in zip(total, means, strict=True)]
        return [h.to(back) for h in total]

    def public_logits(self, Y: Tensor) -> Tensor:
        """Logits `[m, P, classes]` of the public samples under each row of `Y [m, d]`, batch norm on all of them."""
        x, y = self._inputs(self.public[0])[None], self.public[1][None]
        batch = Batch(x, y, torch.ones_like(y, dtype=self.dtype), [y.shape[1]], [])
        rows = (row[None].to(self.device) for row in Y)
        return torch.cat([self.engine.observe(row, batch, [""])[0][..., 0].to(Y.device) for row in rows])

    def public_sensitivities(
        self, x: Tensor, picked: Tensor, labels: Tensor, w: Tensor, sites: Sequence[str], loss: bool | Loss = True
    ) -> list[Tensor]:
        """Derivatives `[m, S, width, positions]` of the loss of the model `x [d]` by its activations at `sites`.

        picked `[m, S]` among the public samples, labels `[m, S]`, weights w `[m, S]` (0: not used).  loss: True is the
        cross-entropy, a function replaces it as in the engine's gradient.
        """
        batch = Batch(*(t.to(self.device) for t in (self._inputs(self.public[0][picked]), labels, w)), [0] * len(w), [])
        D = self.engine.observe(x.to(self.device).expand(len(w), -1), batch, sites, loss)
        return [h.to(x.device) for h in D]

    def with_public(self, x: Any, y: Any) -> Federation:
        """The same clients with public data of the caller's; ValueError where a sample is a client's or a test sample,
        or of another shape or type than the source's."""
        s = self.source
        given = from_arrays("public", x, y, x, y, classes=s.classes)
        if given.train_x.shape[1:] != s.train_x.shape[1:] or given.train_x.dtype != s.train_x.dtype:
            raise ValueError(
                f"public samples are {given.train_x.dtype} {given.train_x.shape[1:]}, the source's are "
                f"{s.train_x.dtype} {s.train_x.shape[1:]}; use the same"
            )
        known = {row.tobytes() for row in given.train_x}
        for what, theirs in (("clients'", s.train_x[np.concatenate(self._parts)]), ("test", s.test_x)):
            both = sum(row.tobytes() in known for row in theirs)
            if both:
                raise ValueError(
                    f"{both} public samples are {what} samples too; take public data out of the training pool with "
                    "fc.federation(..., public=k), never from the test set"
                )
        fed = copy.copy(self)
        fed.public = self._put(given.train_x), self._put(given.train_y)
        return fed

    def set_aside(self, k: int) -> Federation:
        """A federation whose `public` data are k samples per class taken from the clients (ValueError if one is left
        without data).  `fc.federation(..., public=k)` takes them before the partition instead."""
        if self.public is not None:
            raise ValueError("this federation has public data already; use them, or make one without public=")
        source, public, left = _set_aside(self.source, checks.integer("public", k, 1), self.seed)
        new = np.full(len(self.source.train_y), -1)
        new[left] = np.arange(len(left))
        parts = [new[part][new[part] >= 0] for part in self._parts]
        return self._again(source=source, parts=parts, public=public)

    def with_model(self, change: Callable[[nn.Module], nn.Module]) -> Federation:
        """The same clients and data with the model `change(module)`; what it draws comes from the federation's seed."""
        module = copy.deepcopy(self.engine.module).cpu()
        nn.utils.vector_to_parameters(self.x0.cpu(), module.parameters())
        return self._again(module=models.build(lambda shape, classes: change(module), (), 0, self.seed))

    def _again(self, **new: Any) -> Federation:
        public = None if self.public is None else tuple(part.cpu().numpy() for part in self.public)
        settings = {
            "source": self.source, "parts": self._parts, "module": self.engine.module, "partition": self.partition,
            "seed": self.seed, "path": self.engine.path, "compute": self.engine.compute, "block": self.engine.block,
            "device": self.device, "dtype": self.dtype, "public": public,
            "normalise": self.normalise, "augment": self.augment,
        }  # fmt: skip
        fed = Federation(**settings | new)
        fed._norm = self._norm
        if "module" not in new:
            fed.x0 = self.x0
        return fed

    # --- batches --------------------------------------------------------------------------------------------------

    def plan(
        self,
        seed: int,
        t: int,
        clients: np.ndarray,
        *,
        epochs: int = 1,
        steps: int | None = None,
        batch_size: int | None = 20,
        walk: bool = False,
        share: float | None = None,
        epoch: int = 0,
    ) -> Plan:
        """The batches of round t for these clients, a function of (seed, t, client) alone.

        Every epoch visits each sample once, in a fresh order; the last batch of an epoch may be smaller.  K_i is
        `steps`, or `epochs * ceil(N_i / batch_size)`.  walk: the batches continue over rounds instead (FedSMB).
        The plan's rows are sorted by K_i, largest first, so that the clients still at work are always a prefix.

        share: instead, epoch number `epoch` over a random share of each client's samples, at least one, drawn for the
        round from (seed, t, client); the rows stay in the order of `clients`.
        """
        sizes = self.sizes[clients]  # of these clients alone: a round must not cost more where more are registered
        if share is not None:
            sizes = np.maximum(1, (share * sizes + 1e-9).astype(int))
            batch_size = int(sizes.max()) if batch_size is None else batch_size
        per_epoch = np.ones_like(sizes) if batch_size is None else -(-sizes // batch_size)
        K = np.full_like(sizes, steps) if steps is not None else epochs * per_epoch
        if share is None:
            order = np.argsort(-K, kind="stable")
            clients, sizes, per_epoch, K = (a[order] for a in (clients, sizes, per_epoch, K))
        keys = rng.words(seed, rng.BATCH, t, clients)
        if share is not None:
            subset = self._shares(clients, rng.words(seed, rng.RESAMPLE, t, clients), sizes)
            keys = rng.words(seed, rng.RESAMPLE, t, clients, epoch)
        rows = torch.as_tensor(clients, device=self.device)
        if batch_size is None:
            return Plan(clients, rows, K, keys)
        first = np.full_like(K, t if walk else 0)
        # one entry per (row, epoch, sample) that the round may touch: hash, then sort within (row, epoch)
        e0, e1 = first // per_epoch, (first + K - 1) // per_epoch + 1
        groups = e1 - e0
        g_row = np.repeat(np.arange(len(clients)), groups)
        g_epoch = np.arange(groups.sum()) - np.repeat(np.cumsum(groups) - groups, groups) + e0[g_row]
        length = sizes[g_row]
        begin = np.cumsum(length) - length
        g = np.repeat(np.arange(len(g_row)), length)
        j = np.arange(length.sum()) - begin[g]
        stream = rng.words(seed, rng.BATCH, -1) if walk else keys[g_row][g]
        h = rng.words(stream, clients[g_row][g], g_epoch[g], j) >> np.uint64(24)
        order = np.argsort((g.astype(np.uint64) << np.uint64(40)) | h, kind="stable")
        position = j  # the k-th smallest hash of a group stands at place k
        k = (g_epoch * per_epoch[g_row])[g] + position // batch_size - first[g_row][g]
        inside = (k >= 0) & (k < K[g_row][g])
        begins, of = self._start[clients], self._order
        if share is not None:
            begins, of = np.cumsum(sizes) - sizes, subset
        sample = of[begins[g_row][g] + j[order]]
        shape = (int(K.max()), len(clients), int(min(batch_size, sizes.max())))
        indices, valid = np.zeros(shape, np.int64), np.zeros(shape, np.float64)
        place = (k[inside], g_row[g][inside], (position % batch_size)[inside])
        indices[place], valid[place] = sample[inside], 1.0
        counts = valid.sum(2).astype(int)
        weights = torch.as_tensor(valid / np.maximum(counts, 1)[..., None], dtype=self.dtype)
        on_device = torch.as_tensor(indices).to(self.device)
        return Plan(clients, rows, K, keys, on_device, weights.to(self.device), counts, indices)

    def _shares(self, clients: np.ndarray, keys: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """A random subset of each client's samples, of these sizes, one behind the other."""
        parts = zip((self.index[i] for i in clients), keys, sizes, strict=True)
        hashes = ((part, rng.words(key, -1, np.arange(len(part))), size) for part, key, size in parts)
        return np.concatenate([part[np.argsort(h, kind="stable")[:size]] for part, h, size in hashes])

    def gradient(self, Y: Tensor, plan: Plan, k: int, contrast: Contrast | None = None, **more: Any) -> Tensor:
        """Gradients `[a, d]` of local step k for the first a = len(Y) clients of the plan.

        contrast: `(references, penalty)`: a further loss per sample, `penalty(z, z_1, z_2, ...)` of the
        representations under Y and under each reference `[a, d]` (which are not differentiated).
        more: `along`, `losses`, `loss` and `rate` as the engine's gradient has them; teacher: `(federation, Z)`, a
        network whose logits on the same batch are the loss's second argument.
        """
        if plan.indices is None:
            return self.full_gradient(Y, plan, k, contrast, **more)
        return self._engine_gradient(Y, self._batch(plan, k, slice(len(Y))), contrast, **more)

    def descend(self, Y: Tensor, plan: Plan, lr: float) -> None:
        """All local steps of a plan with mini-batches in place, `Y <- Y - lr * gradient(Y, plan, k)`, to rounding."""
        self.engine.descend(Y, plan.counts, partial(self._batch, plan), lr)

    def _batch(self, plan: Plan, k: int, rows: slice) -> Batch:
        """The mini-batches of local step k for some neighbouring clients of the plan."""
        picked, step = plan.indices[k, rows], plan.first + k
        x = self._seen(picked, plan.samples[k, rows], plan, step, rows)
        keys = self._keys(plan.keys[rows], step)
        return Batch(x, self.y[picked], plan.weights[k, rows], plan.counts[k, rows].tolist(), keys)

    def _seen(self, picked: Tensor, samples: np.ndarray, plan: Plan, step: int, rows: slice | None = None) -> Tensor:
        """The training samples `[a, B]` as a local step of the round sees them: augmented and normalised.

        rows: whose of the plan; the first a unless given.
        """
        rows = slice(len(picked)) if rows is None else rows
        # whole rows, faster than x[picked]
        x = self.x.index_select(0, picked.flatten()).unflatten(0, picked.shape)
        if self.augment is not None and not self.augment.once:
            words = rng.words(plan.keys[rows, None], rng.AUGMENT, step, samples)
            x = self.augment(x.flatten(0, 1), words.reshape(-1)).view_as(x)
        return self._inputs(x, plan.rows[rows, None])

    def _engine_gradient(
        self, Y: Tensor, batch: Batch, contrast: Contrast | None, teacher: tuple | None = None, **more: Any
    ) -> Tensor:
        if teacher is not None:  # loss(logits, teacher's logits of the same batch, without gradient)
            other, Z = teacher
            soft, T = more["loss"], other.engine.observe(Z, batch, [""])[0][..., 0]
            more["loss"] = lambda logits, y, row: soft(logits, T[row])
        if contrast is None:
            return self.engine.gradient(Y, batch, **more)
        references, penalty = contrast
        others = [self.engine.features(reference, batch) for reference in references]
        return self.engine.gradient(Y, batch, lambda z, row: penalty(z, *(other[row] for other in others)), **more)

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, contrast: Contrast | None = None, **more: Any
    ) -> Tensor:
        """Gradients `[a, d]` of the clients' whole local objectives at the rows of Y, as local step k sees them."""
        clients, keys = plan.clients[: len(Y)], plan.keys[: len(Y)]
        sizes, start = self.sizes[clients], self._start[clients]
        G = torch.zeros_like(Y)
        # with dropout and batch norm, a client's chunks must not depend on who else is in the cohort
        width = NORM_CHUNK if self.engine.random or self.engine.norms else max(1, SAMPLE_CHUNK // len(Y))
        for low in range(0, int(sizes.max()), width):
            j = np.arange(low, min(low + width, int(sizes.max())))
            valid = j < sizes[:, None]
            rows = self._order[np.where(valid, start[:, None] + j, start[:, None])]
            picked = torch.as_tensor(rows).to(self.device)
            weight = torch.as_tensor(valid / sizes[:, None], dtype=Y.dtype).to(self.device)
            counts, words = valid.sum(1).tolist(), self._keys(keys, plan.first + k, low)
            batch = Batch(self._seen(picked, rows, plan, plan.first + k), self.y[picked], weight, counts, words)
            G += self._engine_gradient(Y, batch, contrast, **more)
        return G

    def _keys(self, keys: np.ndarray, *parts: int) -> list[int]:
        if not self.engine.random:
            return [0] * len(keys)
        return [int(key) & 0x7FFFFFFFFFFFFFFF for key in rng.words(keys, rng.DROPOUT, *parts)]

    def _inputs(self, x: Tensor, rows: Tensor | int | None = None) -> Tensor:
        """Samples as the model sees them; rows: whose statistics, one for each leading index, default pooled."""
        if self.source.text:
            return x.long()
        if x.dtype != torch.uint8 and self.normalise == "pooled":
            return x.to(self.dtype)
        mean, std = self._norm[:, -1 if rows is None or self.normalise != "client" else rows]
        return (x.to(self.dtype) - mean).div_(std)

    # --- evaluation -----------------------------------------------------------------------------------------------

    def evaluate(self, x: Tensor, reading: str | None = None) -> dict[str, Tensor]:
        """`accuracy` and mean cross-entropy `loss` of the flat parameters `x [d]` on the whole test set.

        reading: with normalise="client", whose statistics test images get; "target" where they have owners, else
        "pooled".
        """
        reading = reading or ("pooled" if self.source.test_owner is None else "target")
        checks.choice("reading", reading, READINGS[1:])
        return self.engine.evaluate(x, self._test_chunks(reading), self._train_chunks)

    def evaluate_clients(self, X: Tensor, clients: np.ndarray | None = None) -> dict[str, Tensor]:
        """Metrics `[a]` of the models `X [a, d]` of these clients (default: all), each on the whole test set.

        `accuracy` and `loss` with the client's own normalisation and batch-norm statistics of its own training data;
        `own_accuracy` on the test images of its own domain alone, where the source has test owners and each client
        one; with normalise="client" also `accuracy_target` and `accuracy_pooled`, the other two readings.
        """
        clients = np.arange(self.n) if clients is None else clients
        domains, columns = self._domains(), {}
        for x, i in zip(X, clients.tolist(), strict=True):
            x, data = x.to(self.device), torch.as_tensor(self.index[i], device=self.device)

            def train(data: Tensor = data) -> Iterator[tuple[Tensor, Tensor]]:
                return self._chunks(self.x[data], self.y[data], self._rows[data])

            loss, hits = self.engine.scores(x, self._test_chunks("own", i), train)
            row = {"accuracy": hits.mean(), "loss": loss.mean()}
            if domains is not None:
                own = np.flatnonzero(self.source.test_owner == domains[i])
                row["own_accuracy"] = hits[torch.as_tensor(own).to(hits.device)].mean()
            for reading in READINGS[1:] if self.normalise == "client" else ():
                row[f"accuracy_{reading}"] = self.engine.scores(x, self._test_chunks(reading), train)[1].mean()
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        return {name: torch.stack(column) for name, column in columns.items()}

    def _domains(self) -> np.ndarray | None:
        """The owner of each client's samples `[n]`, or None where clients mix owners or the test set has not all."""
        owner, tested = self.source.train_owner, self.source.test_owner
        if owner is None or tested is None:
            return None
        known = [np.unique(owner[part % len(owner)]) for part in self.index]
        ok = all(len(o) == 1 for o in known) and np.isin(np.concatenate(known), tested).all()
        return np.concatenate(known) if ok else None

    def _train_chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._chunks(self.x, self.y, self._rows)

    def _test_chunks(self, reading: str, client: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        rows = {"own": client, "target": self._test_rows, "pooled": None}[reading]
        return self._chunks(*self._test, rows)

    def objective(self, x: Tensor) -> Tensor:
        """F(x): the mean over clients of their mean training losses, the function that federated learning minimises."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in self.index:
            rows = torch.as_tensor(part, device=self.device)
            chunks = self._chunks(self.x[rows], self.y[rows], self._rows[rows])
            total += self.engine.evaluate(x, chunks, self._train_chunks)["loss"]
        return total / self.n

    def _chunks(self, x: Tensor, y: Tensor, rows: Tensor | int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        parts = -(-len(y) // EVAL_CHUNK)  # of equal size, to one: a last chunk of one sample has no variance
        of = rows.tensor_split(parts) if isinstance(rows, Tensor) else [rows] * parts
        for a, b, r in zip(x.tensor_split(parts), y.tensor_split(parts), of, strict=True):
            yield self._inputs(a, r), b

    def label_counts(self) -> np.ndarray:
        """Samples per client and label, `[n, classes]`."""
        y = self.source.train_y
        return np.stack([np.bincount(y[part % len(y)], minlength=self.source.classes) for part in self.index])

    def plot(self, ax: Any = None) -> Any:
        """The partition as a picture: clients x labels (a matplotlib Figure)."""
        from .. import plots

        return plots.partition(self.label_counts(), ax=ax).figure

    def fingerprint(self) -> str:
        """A hash of what determines a run here: data, partition, model and initial parameters."""
        parts = (self.source.name, self.n, str(self.dtype), repr(self.engine.module), self.normalise, self.augment)
        h = hashlib.sha256(repr(parts).encode())
        h.update(str(self.engine.compute or "").encode())
        s = self.source
        for a in (self.sizes, self._order, s.train_x, s.train_y, s.test_x, s.test_y, self.x0.cpu().numpy()):
            h.update(repr((a.dtype.str, a.shape)).encode())
            h.update(np.ascontiguousarray(a).reshape(-1).data)
        for part in self.public or ():
            h.update(part.cpu().numpy().tobytes())
        return h.hexdigest()[:16]


def _device(device: str | torch.device | None) -> torch.device:
    device = device or distributed.device()
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as e:
        raise ValueError(
            f"device={str(device)!r} is not available here ({_first_line(e)}); use 'cpu', 'cuda' on a machine with an "
            "NVIDIA GPU, or None"
        ) from e


def _first_line(e: Exception) -> str:
    return (str(e).splitlines() or [type(e).__name__])[0]


def _normalisation(source: Source, index: list[np.ndarray], kind: str) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Rows of statistics `[2, r, C, 1, 1]`, pooled last, and the rows of the training and the test images.

    For "client": n clients; then the domains of the test images, by their training images, or where the source has
    none of them by the test images; last all clients' images.  Training images of no client are of the last row.
    """
    x, n = source.train_x, len(index)
    train_rows, test_rows = np.full(len(x), -1), np.full(len(source.test_x), -1)
    if kind == "pooled":
        return _statistics(source)[:, None], train_rows, test_rows
    if source.text or x.ndim != 4:
        raise ValueError(f"normalise={kind!r} needs images [N, C, H, W], the data has {x.shape}; use 'pooled'")
    if kind == "half":
        half = 127.5 if x.dtype == np.uint8 else 0.5
        return torch.full((2, 1, 1, 1, 1), half, dtype=torch.float64), train_rows, test_rows
    parts = [x[part] for part in index]
    weights = np.array([len(part) for part in index]) / sum(map(len, index))
    for i, part in enumerate(index):
        train_rows[part] = i
    if source.test_owner is not None:
        owners, test_rows = np.unique(source.test_owner, return_inverse=True)
        test_rows = test_rows + n
        held = [np.empty(0, bool) if source.train_owner is None else source.train_owner == o for o in owners]
        parts += [x[h] if h.any() else source.test_x[source.test_owner == o] for h, o in zip(held, owners, strict=True)]
    mean, std = (np.stack([f(p, axis=(0, 2, 3), dtype=np.float64) for p in parts]) for f in (np.mean, np.std))
    centre = weights @ mean[:n]
    spread = np.sqrt(weights @ (std[:n] ** 2 + (mean[:n] - centre) ** 2))
    mean, std = np.vstack([mean, centre]), np.vstack([std, spread])
    std = np.where(std > 1e-9 * np.abs(mean), std, 1.0)  # that of equal numbers may be off 0 by rounding
    return torch.as_tensor(np.stack([mean, std]))[..., None, None], train_rows, test_rows


def _statistics(source: Source) -> Tensor:
    """Per-channel mean and standard deviation of uint8 training images `[2, C, 1, 1]`; 0 and 1 for other inputs."""
    if source.text or source.train_x.dtype != np.uint8 or source.train_x.ndim != 4:
        return torch.tensor([0.0, 1.0], dtype=torch.float64)
    x = source.train_x[:: max(1, len(source.train_x) // 10_000)].astype(np.float64)
    std = x.std((0, 2, 3))
    return torch.as_tensor(np.stack([x.mean((0, 2, 3)), np.where(std > 0, std, 1.0)]))[:, :, None, None]


def _set_aside(source: Source, k: int, seed: int) -> tuple[Source, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """k training samples of each class as public data, the source without them, and the rows that are left."""
    order = np.argsort(rng.words(seed, rng.DATA, np.arange(len(source.train_y))), kind="stable")
    by_class = [order[source.train_y[order] == c][:k] for c in np.unique(source.train_y)]
    if min(map(len, by_class)) < k:
        raise ValueError(
            f"public={k} samples per class, but one class has {min(map(len, by_class))} training samples; use fewer"
        )
    taken = np.sort(np.concatenate(by_class))
    left = np.setdiff1d(np.arange(len(source.train_y)), taken)
    owner = None if source.train_owner is None else source.train_owner[left]
    rest = replace(source, train_x=source.train_x[left], train_y=source.train_y[left], train_owner=owner)
    return rest, (source.train_x[taken], source.train_y[taken]), left


def federation(
    source: Any = "digits",
    clients: int | None = None,
    partition: Partition | None = None,
    model: str | nn.Module | Callable[..., nn.Module] = "cnn",
    seed: int = 0,
    *,
    root: str | None = None,
    download: bool = True,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    path: str = "auto",
    compute: torch.dtype | None = None,
    block: int | None = None,
    normalise: str = "pooled",
    augment: RandAugment | None = None,
    public: int | None = None,
) -> Federation:
    """A federation of real data.

    source: a name (`fc.data.sources.NAMES`), `(x, y)`, `((x, y), (test_x, test_y))`, or a mapping with npz keys.
    clients: how many; None with `ByOwner()` means all owners.  partition: `IID()` (default), `Dirichlet(q)`,
    `Shards(c)`, `ByOwner()`.  model: a name, a `torch.nn.Module`, or a function `(shape, classes) -> Module`.
    seed: decides partition and initial weights.  root: the data root.  device: default CUDA where there is one.
    path, compute, block: how gradients are computed (`Engine`): "auto" or a path forced; torch.bfloat16 for faster
    convolutions with 8 bits of mantissa; clients computed together at most.
    normalise: "pooled", "client" or "half", see `Federation`.  augment: `RandAugment()` for the training images.
    public: training samples per class that no client gets, for methods with public data (`fed.public`).

    Raises DataNotFound, ValueError (unknown names, NaN, shapes, clients without data), TypeError.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype={dtype}; use torch.float32 or torch.float64")
    source = load(source, root, download)
    seed = checks.integer("seed", seed, 0)
    aside = None
    if public is not None:
        source, aside, _ = _set_aside(source, checks.integer("public", public, 1), seed)
    partition = IID() if partition is None else partition
    if not hasattr(partition, "split") or isinstance(partition, type | str):
        raise TypeError(f"partition={partition!r}; use fc.IID(), fc.Dirichlet(q), fc.Shards(c) or fc.ByOwner()")
    if clients is None:
        if not isinstance(partition, ByOwner) or source.train_owner is None:
            raise ValueError("clients=None works with partition=ByOwner() on a source with owners; use clients=n")
        clients = len(np.unique(source.train_owner)) * partition.parts
    clients = checks.integer("clients", clients, 1)
    checks.choice("normalise", normalise, NORMALISE)
    if augment is not None:
        _augmentable(augment, source)
    parts = partition.split(source.train_y, clients, rng.numpy_generator(seed, rng.PARTITION), source.train_owner)
    module = models.build(model, source.train_x.shape[1:], source.classes, seed)
    return Federation(
        source, parts, module, partition=partition, seed=seed, path=path, compute=compute, block=block,
        device=_device(device), dtype=dtype, normalise=normalise, augment=augment, public=aside,
    )  # fmt: skip


def _augmentable(augment: RandAugment, source: Source) -> None:
    if not isinstance(augment, RandAugment):
        raise TypeError(f"augment={augment!r}; use fc.RandAugment() or None")
    x = source.train_x
    if source.text or x.dtype != np.uint8 or x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ValueError(
            f"augment={augment!r} needs uint8 images with 1 or 3 channels, the data is {x.dtype} of shape "
            f"{x.shape[1:]}; use augment=None"
        )


class Quadratic:
    """n clients with F_i(x) = 0.5 (x - b_i)' A_i (x - b_i) and exact gradients A_i (x - b_i).

    `A [n, p, p]`, `b [n, p]`, `optimum [p]` = (sum A_i)^-1 sum A_i b_i.  `evaluate` gives `loss` = F(x) (mean over
    clients) and `distance` = ||x - optimum||.
    """

    partition, public = None, None

    def __init__(self, A: Tensor, b: Tensor, x0: Tensor) -> None:
        self.A, self.b, self.x0 = A, b, x0
        self.n, self.d = b.shape
        self.sizes, self.device, self.dtype = np.ones(self.n, int), b.device, b.dtype
        self.optimum = torch.linalg.lstsq(A.mean(0), torch.einsum("npq,nq->p", A, b)[:, None] / self.n).solution[:, 0]

    def __repr__(self) -> str:
        return f"Quadratic(clients={self.n}, d={self.d}, dtype={self.dtype}, device={self.device})"

    def neurons(self, aligned: bool = True) -> Neurons:
        """A quadratic has no hidden units."""
        return Neurons.none(self.d)

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Quadratic:
        """The same problem on another device or in another type."""
        device, dtype = _device(device or self.device), dtype or self.dtype
        if device == self.device and dtype == self.dtype:
            return self
        return Quadratic(*(part.to(device, dtype) for part in (self.A, self.b, self.x0)))

    def plan(
        self, seed: int, t: int, clients: np.ndarray, *, epochs: int = 1, steps: int | None = None, **_: Any
    ) -> Plan:
        """Exact gradients need no batches; an epoch is one step."""
        K = np.full(len(clients), epochs if steps is None else steps)
        return Plan(clients, torch.as_tensor(clients, device=self.device), K, rng.words(seed, rng.BATCH, t, clients))

    def gradient(
        self,
        Y: Tensor,
        plan: Plan,
        k: int = 0,
        contrast: Contrast | None = None,
        along: Tensor | None = None,
        losses: list[Tensor] | None = None,
    ) -> Tensor:
        """A_i (y_i - b_i) for the first len(Y) clients of the plan; with directions `along [a, d]`, A_i along_i."""
        if contrast is not None:
            raise ValueError("a quadratic has no representation to contrast; use a federation with a network")
        i = plan.rows[: len(Y)]
        e = Y - self.b[i] if along is None else along
        G = torch.bmm(self.A[i], e.unsqueeze(2)).squeeze(2)
        if losses is not None:
            losses.append(0.5 * (G * e).sum(1))
        return G

    full_gradient = gradient

    def objective(self, x: Tensor) -> Tensor:
        """F(x) = (1/n) sum_i F_i(x)."""
        e = x - self.b
        return 0.5 * (torch.bmm(self.A, e.unsqueeze(2)).squeeze(2) * e).sum() / self.n

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """`loss` = F(x) and `distance` to the optimum."""
        return {"loss": self.objective(x), "distance": (x - self.optimum).norm()}

    def fingerprint(self) -> str:
        """A hash of A, b, x0 and the number type."""
        parts = (t.detach().cpu().double().numpy().tobytes() for t in (self.A, self.b, self.x0))
        return hashlib.sha256(str(self.dtype).encode() + b"".join(parts)).hexdigest()[:16]


def quadratic(A: Any, b: Any, x0: Any = None, *, device: str | torch.device | None = None) -> Quadratic:
    """The quadratic federation: `A [n, p, p]`, `b [n, p]`, `x0 [p]` (default zeros); float64 unless given in float32.

    Raises ValueError for shapes that do not fit, NaN, and A_i that are not symmetric.
    """
    device = None if device is None else _device(device)
    try:
        A, b = (part if hasattr(part, "dtype") else np.asarray(part, np.float64) for part in (A, b))
        A, b = (torch.as_tensor(part, device=device).detach().clone() for part in (A, b))
    except (TypeError, ValueError) as e:
        raise ValueError(f"A or b is no array of numbers ({e}); use A [n, p, p] and b [n, p] with n, p >= 1") from e
    dtype = torch.float32 if A.dtype == b.dtype == torch.float32 else torch.float64
    A, b = A.to(dtype), b.to(dtype)
    if b.ndim != 2 or A.shape != (*b.shape, b.shape[1]) or not len(b):
        raise ValueError(
            f"A has shape {tuple(A.shape)} and b {tuple(b.shape)}; use A [n, p, p] and b [n, p] with n, p >= 1"
        )
    x0 = torch.zeros_like(b[0]) if x0 is None else torch.as_tensor(x0, dtype=dtype, device=b.device).detach().clone()
    if x0.shape != b[0].shape:
        raise ValueError(f"x0 has shape {tuple(x0.shape)}; use [{b.shape[1]}], the p of b [n, p]")
    for name, part in (("A", A), ("b", b), ("x0", x0)):
        if not torch.isfinite(part).all():
            raise ValueError(f"{name} holds NaN or infinity; give finite numbers")
    if not torch.allclose(A, A.transpose(1, 2)):
        raise ValueError("A_i must be symmetric; use (A + A') / 2")
    return Quadratic(A, b, x0)
