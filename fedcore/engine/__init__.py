"""Gradients of a whole cohort: `[m, d]` in, `[m, d]` out.  The only room that knows how they are computed.

Three paths, equal to rounding.  *batched* stacks the clients: linear layers become one batched product, convolutions
one grouped convolution whose groups are the clients.  *sequential* takes one client after another and runs any
`torch.nn.Module`; it is the oracle for the others.  *written* is batched without autograd, for fewer layers
(`fast.py`), and what a CPU takes where it can.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .. import checks, fast, models, submodels
from .loss import PLAIN as PLAIN
from .loss import Loss as Loss

Extra = Callable[[Tensor, Any], Tensor]
PerSample = Callable[[Tensor, Tensor, Any], Tensor]
Chunks = Iterable[tuple[Tensor, Tensor]]
PATHS = ("written", "batched", "sequential")
ONE_SAMPLE = (
    "batch norm got a batch of 1 sample, which has no variance; use a batch_size that leaves no single sample over, "
    "None for full batches, or GroupNorm"
)
SEQUENTIAL_FROM = 300_000  # on a CPU, larger models are faster one client after another (caches, no weight copies)
ROOM = {"cpu": 1 << 25, "cuda": 1 << 33}  # bytes of activations and gradients that the clients of one block may take


@dataclass(frozen=True)
class Batch:
    """One mini-batch per client: `x [m, B, ...]`, `y [m, B]`, sample weights `w [m, B]` (0 where padded).

    The loss of client i is `sum_j w[i, j] * loss(x[i, j], y[i, j])`: weights are 1/B_i for a mini-batch mean.  `count`
    is the number of real samples of each client, `key` one random word per client for dropout (both on the host).
    """

    x: Tensor
    y: Tensor
    w: Tensor
    count: list[int]
    key: list[int]

    def rows(self, part: slice) -> Batch:
        """The mini-batches of some of the clients."""
        return Batch(self.x[part], self.y[part], self.w[part], self.count[part], self.key[part])

    def trimmed(self) -> Batch:
        """Without the places that no client has a sample for."""
        width = max(self.count)
        if width == self.y.shape[1]:
            return self
        return Batch(self.x[:, :width], self.y[:, :width], self.w[:, :width], self.count, self.key)


class Engine:
    """Losses and gradients of one architecture at many parameter vectors.

    module: any `torch.nn.Module` that maps `[B, ...]` to logits `[B, classes]`.
    path: "auto", "written", "batched" or "sequential"; ValueError where a path has no rule for the module.  "auto" is
    written on a CPU where it has rules, else batched or sequential (a GPU's written path is not measured yet).
    "written" is for the gradient of the cross-entropy alone: calls that ask for more go batched or sequential.
    compute: torch.bfloat16 for convolutions (on paths with autograd: for what autocast takes) in that type, with
    parameters, gradients and evaluation as they were.  block: clients that are computed together at most; by default
    the whole cohort, and on the written path a rule of sizes alone, so that equal runs are equal to the bit on any
    machine of a kind.
    Batch-norm modules train on batch statistics; `evaluate` first collects statistics over the training data
    (static batch norm), so no running buffer travels or is silently left at a client.
    """

    def __init__(
        self,
        module: nn.Module,
        path: str = "auto",
        loss: Callable[..., Tensor] = F.cross_entropy,
        compute: torch.dtype | None = None,
        block: int | None = None,
    ) -> None:
        checks.choice("path", path, ("auto", *PATHS))
        self.module = copy.deepcopy(module)
        self.layout = models.Layout.of(module)
        if not self.layout.d:
            raise ValueError("the model has no parameters; use a torch.nn.Module with at least one")
        if compute not in (None, torch.bfloat16):
            raise ValueError(f"compute={compute!r}; use torch.bfloat16, or None for the type of the parameters")
        self.block = block if block is None else checks.integer("block", block, 1)
        self.loss, self.path, self.compute = loss, path, compute
        places = zip(self.layout.slices, module.parameters(), strict=True)
        self.frozen = [place for place, p in places if not p.requires_grad]
        self.norms = [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in self.norms:
            norm.momentum = None  # statistics are a cumulative mean over the chunks of an evaluation
        self.scalers = [m for m in self.module.modules() if isinstance(m, models.Scaler)]
        self.shrunk: dict[Any, Engine] = {}
        self._neurons: dict[bool, submodels.Neurons] = {}
        self.unsupported = sorted({type(m).__name__ for m in module.modules() if not _has_rule(m)})
        if len(list(module.named_parameters(remove_duplicate=False))) > len(self.layout.names):
            self.unsupported.append("shared parameters")
        # a module outside the rules may draw random numbers or mix samples, in its layers or in its own forward
        self.random = bool(self.unsupported)
        self.layers, self.call = _run, _call  # how the paths through autograd go forward
        self.written, self.numbers = None, {}
        if path in ("auto", "written") and loss is F.cross_entropy and not (self.unsupported or self.frozen):
            with contextlib.suppress(LookupError):
                self.written = fast.Written(self.module, self.layout, compute)
        if path == "written" and self.written is None:
            raise ValueError(f"path='written' has no rule for this {type(module).__name__}; use path='auto'")
        if path == "batched" and self.unsupported:
            raise ValueError(
                f"path='batched' has no rule for {', '.join(self.unsupported)}; use path='auto' or 'sequential'"
            )

    def chosen(self, device: torch.device) -> str:
        """The path that runs on this device when nothing is forced."""
        if self.path != "auto":
            return self.path
        return "written" if self.written is not None and device.type == "cpu" else self.general(device)

    def general(self, device: torch.device) -> str:
        """The path with autograd, for modules and arguments that the written one has no rule for."""
        if self.path in ("batched", "sequential"):
            return self.path
        large = self.layout.d >= SEQUENTIAL_FROM and device.type == "cpu"
        return "sequential" if self.unsupported or large else "batched"

    def neurons(self, aligned: bool = True) -> submodels.Neurons:
        """`submodels.Neurons.of` the module, walked once."""
        if aligned not in self._neurons:
            self._neurons[aligned] = submodels.Neurons.of(self.module, aligned)
        return self._neurons[aligned]

    def shrink(self, to: Callable[[nn.Module], nn.Module]) -> Engine:
        """The engine of the smaller module `to(module)`, made once; `to` is hashable (`submodels.Width`, `Depth`)."""
        if to not in self.shrunk:
            self.shrunk[to] = Engine(to(self.module), self.path, self.loss, self.compute, self.block)
            self.shrunk[to].start = models.flatten(self.shrunk[to].module)
        return self.shrunk[to]

    def gradient(
        self,
        Y: Tensor,
        batch: Batch,
        extra: Extra | None = None,
        loss: PerSample | None = None,
        rate: Sequence[float] | None = None,
        along: Tensor | None = None,
        losses: list[Tensor] | None = None,
    ) -> Tensor:
        """Gradients `[m, d]` of the clients' losses at their own rows of `Y [m, d]`.

        extra: a further loss per sample from the representation, `(z [..., B, f], row) -> [..., B]`, for models that
        have one (`models.Projected`); row picks the clients that z belongs to.  loss: replaces the cross-entropy,
        `(logits [..., B, classes], y [..., B], row) -> [..., B]`.  rate: one rate per client for all `models.Scaler`.
        along: directions `[m, d]`; the result is then the derivative of the gradients in them, the Hessian-vector
        products `[m, d]`, by double backward (measured as fast as forward over reverse, which lacks group norm).
        losses: a list that receives the clients' losses `[m]`.
        """
        if extra is not None and not isinstance(self.module, models.Projected):
            raise ValueError(
                f"{type(self.module).__name__} has no representation layer; use model=fc.models.projected('cnn') or "
                "a fc.models.Projected of your own"
            )
        general = extra is not None or loss is not None or rate is not None or along is not None or losses is not None
        if not general and self._writes(Y, batch):
            return self._write(Y, batch, torch.empty_like(Y))
        if self.general(Y.device) == "sequential":
            G = self._sequential(Y, batch, extra, loss, rate, along, losses)
        elif self.block is None or self.block >= len(Y):
            G = self._batched(Y, batch, extra, loss, rate, along, losses)
        else:
            G = self._in_blocks(Y, batch, extra, loss, rate, along, losses)
        for place in self.frozen:  # requires_grad=False: these parameters stay what they are
            G[:, place] = 0
        return G

    def _in_blocks(self, Y, batch, extra, loss, rate, along, losses) -> Tensor:
        """The batched gradients, `block` clients at a time."""
        G, totals = torch.empty_like(Y), None if losses is None else []
        for part in self._blocks(Y, batch):
            G[part] = self._batched(
                Y[part],
                batch.rows(part),
                None if extra is None else lambda z, _row, part=part: extra(z, part),
                None if loss is None else lambda logits, y, _row, part=part: loss(logits, y, part),
                None if rate is None else rate[part],
                None if along is None else along[part],
                totals,
            )
        if losses is not None:
            losses.append(torch.cat(totals))
        return G

    def descend(self, Y: Tensor, counts: np.ndarray, batch: Callable[[int, slice], Batch], lr: float) -> None:
        """Local SGD in place, to rounding: `Y <- Y - lr * gradient(Y, batch(k, rows))` for k = 0, 1, ...

        counts: samples of each row in each step, `[K, m]`; rows that have taken all their steps have 0 and stay, and no
        row takes more steps than the one before it.  Written, it needs no room for gradients.
        """
        first = batch(0, slice(1)) if self.chosen(Y.device) == "written" else None
        parts = self._blocks(Y, first) if first and first.x.dim() - 2 in self.written.ranks else []
        rows = [row[part] for row in counts for part in parts] if self.norms else []
        if not parts or not all(_even(row[row > 0]) for row in rows):
            self._descend_by_gradients(Y, counts, batch, lr)
            return

        kept = threading.local()  # the copy that a thread has loaded last: memory that is new is slow to touch

        def walk(part: slice) -> None:
            m = part.stop - part.start
            P = kept.P if getattr(kept, "m", None) == m else None
            P = own = kept.P = self.written.load(Y[part], P)
            kept.m = m
            for k, a in enumerate((counts[:, part] > 0).sum(1).tolist()):
                if not a:
                    break
                if a < m:
                    m, own = a, {name: v[:a] for name, v in own.items()}
                b = batch(k, slice(part.start, part.start + a)).trimmed()
                self.written.step(own, b.x, b.y, b.w, lr)
            self.written.store(P, Y[part])

        _shared_out(walk, parts, Y.device)

    def _descend_by_gradients(self, Y: Tensor, counts: np.ndarray, batch: Callable, lr: float) -> None:
        for k, a in enumerate((counts > 0).sum(1).tolist()):
            Y[:a].sub_(self.gradient(Y[:a], batch(k, slice(a))), alpha=lr)

    def _writes(self, Y: Tensor, batch: Batch) -> bool:
        if self.chosen(Y.device) != "written" or batch.x.dim() - 2 not in self.written.ranks:
            return False
        return not self.norms or all(_even(batch.count[part]) for part in self._blocks(Y, batch))

    def _write(self, Y: Tensor, batch: Batch, G: Tensor) -> Tensor:
        """The written-out gradients into G."""

        def work(part: slice) -> None:
            b = batch.rows(part).trimmed()
            if b.y.shape[1]:
                self.written.gradient(Y[part], b.x, b.y, b.w, G[part])
            else:
                G[part] = 0

        _shared_out(work, self._blocks(Y, batch), Y.device)
        return G

    def _blocks(self, Y: Tensor, batch: Batch) -> list[slice]:
        """The clients that are computed together: as many as `ROOM` holds activations and gradients of.

        A rule of sizes alone, whatever the number of threads; a power of two of blocks, which threads can share.
        """
        m, rows = len(Y), self.block
        if rows is not None:
            return [slice(a, min(a + rows, m)) for a in range(0, m, rows)]
        each = 2 * Y.element_size() * (batch.x.shape[1] * self.width(batch.x[0, :2]) + self.layout.d)
        fill = m * each / ROOM.get(Y.device.type, ROOM["cuda"])
        alone = Y.device.type == "cpu" and self.layout.d >= SEQUENTIAL_FROM
        parts = m if alone else min(m, 1 << math.ceil(math.log2(max(1, fill))))
        ends = [m * i // parts for i in range(parts + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(ends)]

    def width(self, x: Tensor) -> int:
        """Numbers in the outputs of all layers for one sample of `x [B, ...]`; looked up once for a shape."""
        if x.shape[1:] not in self.numbers:
            self.numbers[x.shape[1:]] = _numbers(self.module.eval(), x)
        return self.numbers[x.shape[1:]]

    def features(self, Y: Tensor, batch: Batch) -> Tensor:
        """Representations `[m, B, f]` of the batch under each row of Y, without gradient."""
        Z: list[Tensor] = []

        def keep(z: Tensor, row: Any) -> Tensor:
            if not Z:
                Z.append(z.new_zeros(*batch.y.shape, z.shape[-1]))
            Z[0][row] = z.detach()
            return torch.zeros_like(z[..., 0])

        self.gradient(Y, batch, keep)
        return Z[0]

    def logits(self, Y: Tensor, batch: Batch) -> Tensor:
        """Logits `[m, B, ...]` of the batch under each row of Y as in training, without gradient; 0 where padded."""
        out: list[Tensor] = []

        def keep(logits: Tensor, y: Tensor, row: Any) -> Tensor:
            if not out:
                out.append(logits.new_zeros(*batch.y.shape, *logits.shape[y.dim() :]))
            out[0][row] = logits.detach()
            return 0 * logits.flatten(y.dim()).sum(-1)

        self.gradient(Y, batch, loss=keep)
        return out[0]

    def observe(self, Y: Tensor, batch: Batch, sites: Sequence[str], loss: bool | Loss = False) -> list[Tensor]:
        """Activations at the named layers, `[m, B, channels, positions]` each, scalers off, batch norm on the batch.

        loss: the derivatives of the clients' losses by these activations instead; True is the cross-entropy, a function
        replaces it as in `gradient`.  Needs a rule for every layer.
        """
        rows = [slice(None)] if self.general(Y.device) != "sequential" else [slice(i, i + 1) for i in range(len(Y))]
        parts = [self._observe(Y[row], batch, row, sites, loss) for row in rows]
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _observe(self, Y: Tensor, batch: Batch, row: slice, sites: Sequence[str], loss: bool | Loss) -> list[Tensor]:
        with torch.set_grad_enabled(bool(loss)):
            scope: dict[str, Any] = {k: v.requires_grad_(bool(loss)) for k, v in self.layout.views(Y.detach()).items()}
            full = min(batch.count[row]) == batch.y.shape[1]
            scope |= {"valid": None if full else batch.w[row] > 0, "single": 1 in batch.count[row], "rate": 1.0}
            seen = scope["sites"] = dict.fromkeys(f"{site}." if site else "" for site in sites)
            logits = _run(self.module, "", _enter(batch.x[row]), scope, len(Y))
            if loss:
                each = self._per_sample(logits, batch.y[row], None if loss is True else loss, row)
                seen = dict(zip(seen, torch.autograd.grad((each * batch.w[row]).sum(), seen.values()), strict=True))
        views = (h.unflatten(1, (len(Y), -1)).transpose(0, 1) if h.dim() == 4 else h for h in seen.values())
        return [h.flatten(3) if h.dim() > 3 else h.unsqueeze(3) for h in views]

    def _per_sample(self, logits: Tensor, y: Tensor, loss: PerSample | None, row: Any) -> Tensor:
        """Losses `[..., B]` of logits `[..., B, classes]`, or the sum over heads of `[..., B, heads, classes]`."""
        if loss is not None:
            return loss(logits, y, row)
        heads = logits.shape[y.dim() : -1]
        each = self.loss(logits.flatten(0, -2), y.view(*y.shape, *[1] * len(heads)).expand(*y.shape, *heads).flatten(),
                         reduction="none")  # fmt: skip
        return each.view(*y.shape, *heads).sum(-1) if heads else each.view(y.shape)

    def _batched(
        self,
        Y: Tensor,
        batch: Batch,
        extra: Extra | None,
        loss: PerSample | None,
        rate: Sequence[float] | None,
        along: Tensor | None,
        losses: list[Tensor] | None,
    ) -> Tensor:
        m = len(Y)
        # one leaf per parameter, a strided view of the rows: differentiating with respect to the flat matrix
        # would split and concatenate it once more
        leaves = {k: v.requires_grad_() for k, v in self.layout.views(Y.detach()).items()}
        scope = dict(leaves)
        scope["valid"] = None if min(batch.count) == batch.y.shape[1] else batch.w > 0
        scope["single"] = 1 in batch.count
        scope["rate"] = None if rate is None else torch.tensor(rate, dtype=Y.dtype).to(Y.device)
        forward = self.layers if extra is None and along is None else _run
        with self._autocast(Y):
            logits = forward(self.module, "", _enter(batch.x), scope, m)
        if self.compute is not None:
            logits = logits.to(Y.dtype)
        each = self._per_sample(logits, batch.y, loss, slice(None))
        if extra is not None:
            each = each + extra(scope["z"].to(Y.dtype), slice(None))
        if losses is not None:
            losses.append((each.detach() * batch.w).sum(1))
        G, grads = torch.empty_like(Y), self._derivatives((each * batch.w).sum(), leaves, along)
        for place, g in zip(self.layout.views(G).values(), grads, strict=True):
            place.zero_() if g is None else place.copy_(g)
        return G

    def _autocast(self, Y: Tensor) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self.compute is None else torch.autocast(Y.device.type, self.compute)

    def _derivatives(self, loss: Tensor, leaves: dict[str, Tensor], along: Tensor | None) -> Iterator[Tensor | None]:
        """Gradients of a scalar, or their derivatives along a direction, let go one by one; None: zero."""
        wrt = list(leaves.values())
        grads = torch.autograd.grad(loss, wrt, create_graph=along is not None, allow_unused=True)
        if along is not None:
            pairs = zip(grads, self.layout.views(along.detach()).values(), strict=True)
            slope = sum((g * v).sum() for g, v in pairs if g is not None)
            grads = torch.autograd.grad(slope, wrt, allow_unused=True)
        grads = list(grads)[::-1]
        while grads:
            yield grads.pop()

    def _sequential(
        self,
        Y: Tensor,
        batch: Batch,
        extra: Extra | None,
        loss: PerSample | None,
        rate: Sequence[float] | None,
        along: Tensor | None,
        losses: list[Tensor] | None,
    ) -> Tensor:
        own = [scaler.rate for scaler in self.scalers]
        self.module.train()
        G, totals = torch.empty_like(Y), Y.new_zeros(len(Y))
        for i, (row, count, key) in enumerate(zip(Y, batch.count, batch.key, strict=True)):
            if not count:
                G[i] = 0
                continue
            for scaler in self.scalers if rate is not None else ():
                scaler.rate = rate[i]
            leaves = {k: v.requires_grad_() for k, v in self.layout.views(row.detach()).items()}
            buffers = {k: b.clone() for k, b in self.module.named_buffers()}  # forward passes may write to them
            with torch.random.fork_rng(devices=[Y.device] if Y.is_cuda else [], enabled=self.random):
                if self.random:
                    torch.manual_seed(key)
                try:
                    with self._autocast(Y):
                        forward = self.call if extra is None and along is None else _call
                        logits = forward(self.module, {**leaves, **buffers}, (batch.x[i, :count],))
                except ValueError as e:
                    if count > 1 or not self.norms:
                        raise
                    raise ValueError(ONE_SAMPLE) from e
            if self.compute is not None:
                logits = logits.to(Y.dtype)
            each = self._per_sample(logits, batch.y[i, :count], loss, (i, slice(count)))
            if extra is not None:
                each = each + extra(self.module.z.to(Y.dtype), (i, slice(count)))
            total = (each * batch.w[i, :count]).sum()
            totals[i] = total.detach()
            grads = self._derivatives(total, leaves, None if along is None else along[i])
            for place, g in zip(self.layout.views(G[i]).values(), grads, strict=True):
                place.zero_() if g is None else place.copy_(g)
        for scaler, mine in zip(self.scalers, own, strict=True):
            scaler.rate = mine
        if losses is not None:
            losses.append(totals)
        if extra is not None:
            self.module.z = None  # a module that holds a graph cannot be copied
        return G

    @torch.no_grad()
    def evaluate(self, x: Tensor, test: Chunks, train: Callable[[], Chunks]) -> dict[str, Tensor]:
        """Mean loss and accuracy of the flat model `x [d]` over the chunks of `test`, as tensors on its device.

        train: gives the chunks of the training inputs; only called when the module has batch norm.
        """
        params = self.layout.views(x)
        if self.norms:
            self._collect_statistics(params, train())
        self.module.eval()
        loss = torch.zeros((), device=x.device, dtype=torch.float64)
        hits, count = torch.zeros((), device=x.device, dtype=torch.int64), 0
        for inputs, labels in test:
            logits = functional_call(self.module, params, (inputs,))
            loss += self.loss(logits, labels, reduction="sum")
            hits += (logits.argmax(-1) == labels).sum()
            count += labels.numel()
        return {"accuracy": hits.double() / count, "loss": loss / count}

    @torch.no_grad()
    def scores(self, x: Tensor, test: Chunks, train: Callable[[], Chunks]) -> tuple[Tensor, Tensor]:
        """Loss and hit (1 or 0) of each sample of `test`, two `[N]`, for the flat model `x [d]`; else as `evaluate`."""
        params = self.layout.views(x)
        if self.norms:
            self._collect_statistics(params, train())
        self.module.eval()
        loss, hits = [], []
        for inputs, labels in test:
            logits = functional_call(self.module, params, (inputs,))
            loss.append(self.loss(logits, labels, reduction="none").double())
            hits.append((logits.argmax(-1) == labels).double())
        return torch.cat(loss), torch.cat(hits)

    def _collect_statistics(self, params: dict[str, Tensor], chunks: Chunks) -> None:
        for norm in self.norms:
            norm.reset_running_stats()
        self.module.eval()  # dropout stays off
        for norm in self.norms:
            norm.train()
        for inputs, _ in chunks:
            functional_call(self.module, params, (inputs,))


def _call(module: nn.Module, params: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    """`functional_call` as a function of this package, which `torch.compile` follows; PyTorch's own it would skip."""
    return functional_call(module, params, inputs)


def _even(counts: Iterable[int]) -> bool:
    """Whether batch norm can be written out: no padding, no single sample."""
    return set(counts) != {1} and len(set(counts)) < 2


def _shared_out(work: Callable[[slice], None], parts: list[slice], device: torch.device) -> None:
    """`work(part)` for all parts; on a CPU the threads share the parts, each part with its own share of the threads.

    The kernels let go of Python's lock, so that this scales better than threads inside each kernel.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(parts)) if device.type == "cpu" else 1
    if workers == 1:
        for part in parts:
            work(part)
        return
    try:
        # a new thread's number of threads is its own, but what it sets is what later ones start with
        with ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, threads // workers)) as pool:
            list(pool.map(work, parts))
    finally:
        torch.set_num_threads(threads)


def _numbers(module: nn.Module, x: Tensor) -> int:
    """Numbers in the outputs of all layers for one sample of `x [B, ...]`."""
    sizes = [x.numel()]
    hooks = [
        layer.register_forward_hook(lambda _m, _in, out: sizes.append(out.numel()))
        for layer in module.modules()
        if not list(layer.children())
    ]
    with torch.no_grad():
        module(x)
    for hook in hooks:
        hook.remove()
    return sum(sizes) // len(x)


def _has_rule(module: nn.Module) -> bool:
    if type(module) not in _RULES or module._forward_hooks or module._forward_pre_hooks:
        return False
    if type(module) is nn.Conv2d:
        return module.groups == 1 and not isinstance(module.padding, str) and module.padding_mode == "zeros"
    if type(module) is nn.Flatten:
        return (module.start_dim, module.end_dim) == (1, -1)
    return True


# --- the batched path: one rule per layer -------------------------------------------------------------------------
# Images of all clients travel as [B, m*C, H, W] (client-major channels), vectors as [m, B, F].


def _enter(x: Tensor) -> Tensor:
    if x.dim() < 5:
        return x
    m, B, C, H, W = x.shape
    return x.transpose(0, 1).reshape(B, m * C, H, W)


def _run(module: nn.Module, prefix: str, x: Tensor, p: dict[str, Tensor], m: int) -> Tensor:
    out = _RULES[type(module)](module, prefix, x, p, m)
    if prefix in p.get("sites", ()):
        p["sites"][prefix] = out
        return out.clone()  # a layer that works in place would overwrite what is observed
    return out


def _sequence(module, prefix, x, p, m):
    for name, child in module._modules.items():  # named_children() would skip a layer that is used twice
        x = _run(child, f"{prefix}{name}.", x, p, m)
    return x


def _residual(module, prefix, x, p, m):
    body = _run(module.body, f"{prefix}body.", x, p, m)
    return torch.relu(body + _run(module.shortcut, f"{prefix}shortcut.", x, p, m))


def _preact(module, prefix, x, p, m):
    h = x
    for name in module.ENTER:
        h = _run(getattr(module, name), f"{prefix}{name}.", h, p, m)
    short = _run(module.shortcut, f"{prefix}shortcut.", h, p, m) if hasattr(module, "shortcut") else x
    for name in module.BODY:
        h = _run(getattr(module, name), f"{prefix}{name}.", h, p, m)
    return h + short


def _heads(module, prefix, x, p, m):
    logits = []
    for s, (stage, head) in enumerate(zip(module.stages, module.heads, strict=True)):
        x = _run(stage, f"{prefix}stages.{s}.", x, p, m)
        logits.append(_run(head, f"{prefix}heads.{s}.", x, p, m))
    return torch.stack(logits, 2)


def _scaler(module, prefix, x, p, m):
    rate = module.rate if p["rate"] is None else p["rate"]
    if isinstance(rate, Tensor):  # one a client
        if x.dim() == 4:
            return (x.unflatten(1, (m, -1)) / rate.view(m, 1, 1, 1)).flatten(1, 2)
        return x / rate.view(m, 1, 1)
    return x if rate == 1 else x / rate


def _projected(module, prefix, x, p, m):
    p["z"] = _run(module.encoder, f"{prefix}encoder.", x, p, m)
    return _run(module.classifier, f"{prefix}classifier.", p["z"], p, m)


def _linear(module, prefix, x, p, m):
    if x.dim() == 4:  # along the last axis of pictures
        rows = x.unflatten(1, (m, -1)).transpose(0, 1)
        out = _linear(module, prefix, rows.flatten(1, 3), p, m)
        return out.view(*rows.shape[:-1], -1).transpose(0, 1).flatten(1, 2)
    weight = p[prefix + "weight"].transpose(1, 2)
    if module.bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(p[prefix + "bias"].unsqueeze(1), x, weight)


def _conv(module, prefix, x, p, m):
    bias = None if module.bias is None else p[prefix + "bias"].reshape(-1)
    weight = p[prefix + "weight"].flatten(0, 1)
    return F.conv2d(x, weight, bias, module.stride, module.padding, module.dilation, groups=m)


def _group_norm(module, prefix, x, p, m):
    w, b = (p[prefix + k].reshape(-1).contiguous() if module.affine else None for k in ("weight", "bias"))
    if x.dim() == 3:  # vectors: channels are features
        flat = x.transpose(0, 1).flatten(1)
        return F.group_norm(flat, m * module.num_groups, w, b, module.eps).view(-1, m, x.shape[2]).transpose(0, 1)
    return F.group_norm(x, m * module.num_groups, w, b, module.eps)


def _batch_norm(module, prefix, x, p, m):
    """Each client's own batch statistics; where batches differ in size, those of the real samples alone."""
    w, b = (p[prefix + k] if module.affine else None for k in ("weight", "bias"))
    valid = p["valid"]
    if p["single"] and (x.dim() == 3 or x.shape[2:].numel() == 1):
        raise ValueError(ONE_SAMPLE)
    if x.dim() == 4 and valid is None:
        w, b = (None if part is None else part.reshape(-1).contiguous() for part in (w, b))
        return F.batch_norm(x, None, None, w, b, training=True, eps=module.eps)
    rows = x.unflatten(1, (m, -1)).transpose(0, 1).flatten(3) if x.dim() == 4 else x.unsqueeze(3)  # [m, B, C, H*W]
    real = torch.ones_like(rows[..., :1]) if valid is None else valid[..., None, None].to(x.dtype)
    count = (real.sum(1, keepdim=True) * rows.shape[3]).clamp_min(1)
    mean = (rows * real).sum((1, 3), keepdim=True) / count
    rows = rows - mean
    rows = rows * torch.rsqrt((rows.square() * real).sum((1, 3), keepdim=True) / count + module.eps)
    if module.affine:
        rows = rows * w[:, None, :, None] + b[:, None, :, None]
    return rows.transpose(0, 1).flatten(1, 2).view_as(x) if x.dim() == 4 else rows.squeeze(3)


def _flatten_rule(module, prefix, x, p, m):
    if x.dim() == 4:  # leave the picture world: [B, m*C, H, W] -> [m, B, C*H*W]
        return x.reshape(x.shape[0], m, -1).transpose(0, 1)
    return x.flatten(2)


def _each(module, prefix, x, p, m):
    return module(x)


_RULES: dict[type, Callable] = {
    nn.Sequential: _sequence, models.Residual: _residual, nn.Linear: _linear, nn.Conv2d: _conv,
    nn.GroupNorm: _group_norm, nn.BatchNorm1d: _batch_norm, nn.BatchNorm2d: _batch_norm, nn.Flatten: _flatten_rule,
    models.Projected: _projected, models.PreAct: _preact, models.Heads: _heads, models.Scaler: _scaler,
    nn.ModuleList: _sequence,
    **dict.fromkeys(
        (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _each
    ),
}  # fmt: skip
