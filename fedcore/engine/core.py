"""The engine: the gradients, steps and evaluations of a federation, computed by the path that suits them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, wraps
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .. import models, rng
from ..data.normalisation import with_channels_last
from ..support import checks
from .batch import Batch
from .batched import Batched, Criterion
from .choose import PATHS, ROOM_OF_LSTM, blocks, even, is_large
from .descent import descend
from .layers.composite import Branches, Chain
from .layers.pointwise import Dropout
from .layers.rule import AXES, Rule
from .layers.sequences import Recurrent
from .layers.table import rule_of
from .loss import PLAIN, CustomLoss, Loss
from .mapped import Mapped
from .passes import watching
from .products import fastest, library
from .recurrent import is_fused
from .sequential import Sequential
from .shapes import Flat, Logits, Parameters, PerClient
from .trial import Trial
from .undisturbed import as_usual, exchanged
from .units import Neurons
from .written import Written

Chunks = Iterable[tuple[Tensor, Tensor]]
Scores = Annotated[Tensor, "N"]


class Turn:
    """A lock, because torch replaces a module's parameters and buffers while it computes: one thread at a time.

    A copy, in memory or in another process, has a new lock.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()


Called = TypeVar("Called", bound=Callable[..., Any])


def in_turn(method: Called) -> Called:
    """A decorator for methods that use the engine's module: one thread at a time calls them."""

    @wraps(method)
    def alone(self: Engine, *given: Any, **named: Any) -> Any:
        with self.turn.lock, as_usual(), fastest():
            return method(self, *given, **named)

    return alone  # type: ignore[return-value]


class Engine:
    """Losses and gradients of one architecture at many parameter vectors.

    module: any `torch.nn.Module` that maps `[B, ...]` to logits `[B, classes]`.
    path: "auto", "written", "batched" or "sequential"; ValueError if a path has no rule for the module.  "auto" is
    written on a CPU if there are rules for all layers, else batched or sequential (on a GPU the written path is faster
    for some models and slower for others).  "written" is for gradients of the cross-entropy alone: other computations
    are batched or sequential.  criterion: the loss, called as `F.cross_entropy` is; a different loss excludes the
    written path.
    compute: torch.bfloat16 computes convolutions and linear layers in this type (`Written`; on paths with autograd, all
    operations of autocast); parameters, gradients and evaluation keep theirs.  block: the largest number of clients
    that are computed together; by default the whole cohort, and on the written path a number that depends on sizes
    alone, so that equal runs on as many threads are equal bit for bit on all machines of a kind.
    mapped: whether the batched path maps the module over the clients by `torch.vmap` (only if `mapped.maps` allows it)
    instead of using its layers' rules.  trial: properties found by running the forward pass (`trial.tried`).
    Batch-norm modules train on batch statistics; `evaluate` first collects the statistics of all training data
    (static batch norm), so no running buffer is sent or silently left at a client.  They are exact: the mean and the
    variance of a layer's inputs, with n - 1 in the denominator, for any order of the samples.

    `trained`: which entries of the flat vector are trained, `[d]` bool; None: all.  The others have
    requires_grad=False: their gradients are 0, and callers must not move them in another way (weight decay).
    """

    def __init__(
        self,
        module: nn.Module,
        path: str = "auto",
        criterion: Criterion = F.cross_entropy,
        compute: torch.dtype | None = None,
        block: int | None = None,
        mapped: bool = False,
        trial: Trial = Trial(),
    ) -> None:
        checks.choice("path", path, ("auto", *PATHS))
        self.module, self.turn = own_copy(module), Turn()
        self.layout = models.Layout.of(module)
        if not self.layout.d:
            raise ValueError("the model has no parameters; use a torch.nn.Module with at least one")
        if compute not in (None, torch.bfloat16):
            raise ValueError(f"compute={compute!r}; use torch.bfloat16, or None for the type of the parameters")
        self.block = block if block is None else checks.integer("block", block, 1)
        self.criterion, self.path, self.compute, self.trial = criterion, path, compute, trial
        self.settings: dict[str, Any] = {"path": path, "criterion": criterion, "compute": compute, "block": block}
        self.settings |= {"mapped": mapped, "trial": trial}  # for engines of other modules
        self.classifies = not isinstance(criterion, CustomLoss) or criterion.accuracy
        self.norms = [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self._calls: list[nn.Module] | None = None  # the batch norms in their order, if each chunk calls each once
        self._noticed = False
        self._neurons: dict[tuple[bool, int | None], Neurons] = {}
        self._widths: dict[torch.Size, int] = {}
        rule = Rule(self.module, "") if trial.alone else rule_of(self.module)
        self.unsupported = [trial.alone] if trial.alone else sorted(set(rule.problems()))
        if not self.unsupported and sorted(rule.parameters()) != sorted(self.layout.names):
            self.unsupported.append("parameters that are shared or outside its layers")
        self.axes = [axes for axes in AXES if not self.unsupported and rule.leaves(axes) == 1]
        if not (self.axes or self.unsupported):
            self.unsupported.append(f"{type(module).__name__}, in which no kind of samples goes from layer to layer")
        self.mapped, self.recurs = mapped, any(isinstance(part, Recurrent) for part in rule.all())
        if self.mapped:
            rule, self.axes = Mapped(self.module, ""), AXES
        # a module outside the rules may draw random numbers or mix samples, in its layers or in its own forward
        self.random = self.one_by_one or any(isinstance(part, Dropout) for part in rule.all())
        self._own_forward = any(type(part) in (Chain, Branches) for part in rule.all())
        self.batched = Batched(rule, self.layout, criterion, compute)
        self.sequential = Sequential(self.module, self.layout, criterion, compute, self.random, trial.outside)
        self.written = None
        by_rules = not (self.unsupported or mapped or self.layout.frozen)
        if path in ("auto", "written") and criterion is F.cross_entropy and by_rules:
            with contextlib.suppress(LookupError):
                self.written = Written(rule, self.layout, compute)
        if path == "written" and self.written is None:
            raise ValueError(f"path='written' has no rule for this {type(module).__name__}; use path='auto'")
        if path == "batched" and self.one_by_one:
            raise ValueError(
                f"path='batched' has no rule for {', '.join(self.unsupported)}; use path='auto' or 'sequential'"
            )

    @property
    def one_by_one(self) -> bool:
        """Whether clients must be computed one after another, by the module itself."""
        return not self.axes

    @property
    def products(self) -> str:
        """Which library computes float32 products on the CPU: "mkl" or "onednn" (`products.use` chooses another)."""
        return library()

    @cached_property
    def trained(self) -> Annotated[Tensor, "d"] | None:
        """A mask of the entries that are trained; None: all."""
        if not self.layout.frozen:
            return None
        return ~self.layout.mask(self.layout.frozen).to(next(self.module.parameters()).device)

    # --- other engines ---

    @in_turn
    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Engine:
        """A copy of the engine on a device, with parameters of type `dtype`."""
        engine = type(self)(self.module, **self.settings)
        engine.module.to(device, dtype)
        return engine

    @in_turn
    def forced(self, path: str) -> Engine:
        """The engine of the same module with this path."""
        return Engine(self.module, **self.settings | {"path": path})

    @in_turn
    def shrink(self, to: Callable[[nn.Module], nn.Module]) -> Engine:
        """The engine of the smaller module `to(module)`."""
        self._known_kinds()
        return Engine(to(self.module), **self.settings)

    def _known_kinds(self) -> None:
        if self.trial.alone or self.mapped:
            what = self.trial.alone or ", ".join(self.unsupported) or "hooks"
            raise ValueError(f"sub-models need layers of known kinds; the model has {what}")

    @in_turn
    def neurons(self, aligned: bool = True, axes: int | None = None) -> Neurons:
        """`Neurons.of` the module for samples with so many axes, computed once, with its errors."""
        self._known_kinds()
        if (aligned, axes) not in self._neurons:
            self._neurons[aligned, axes] = Neurons.of(self.module, aligned, axes)
        return self._neurons[aligned, axes]

    # --- which path ---

    def chosen(self, device: torch.device) -> str:
        """The path of plain gradients on this device."""
        if self.path != "auto":
            return self.path
        return "written" if self.written is not None and device.type == "cpu" else self.general(device)

    def described(self, device: torch.device, axes: int) -> str:
        """The path for samples with so many axes on this device, with the reason if missing rules make it slow."""
        if self.path != "auto" or axes in self.axes:
            return repr(self.chosen(device))
        missing = ", ".join(self.unsupported) or f"samples with {axes} axes in {type(self.module).__name__}"
        return (
            f"'sequential' (one client after another, which is slow: no rule for {missing}, and torch.vmap does not "
            "take the module; layers with rules stand in fedcore.engine.layers.table.RULES)"
        )

    def _notice(self, device: torch.device, axes: int) -> None:
        """Warn once that samples with so many axes need the slow path, unless the user chose the path."""
        if self.path == "auto" and axes not in self.axes and not self._noticed:
            self._noticed = True
            checks.warn(
                f"the path of {type(self.module).__name__} is {self.described(device, axes)}; call such layers one "
                "after another, or take the time, with path='sequential' and without this notice",
            )

    def general(self, device: torch.device) -> str:
        """The path with autograd, for modules and losses for which the written path has no rule."""
        if self.path in ("batched", "sequential"):
            return self.path
        return "sequential" if self.one_by_one or is_large(self.layout.d, device) else "batched"

    def _by_autograd(self, batch: Batch) -> str:
        """`general` for this batch."""
        return self.general(batch.w.device) if batch.x.dim() - 2 in self.axes else "sequential"

    @in_turn
    def width(self, x: Tensor) -> int:
        """How many numbers the outputs of all layers have for one sample of `x [B, ...]`; measured once per shape."""
        if x.shape[1:] not in self._widths:
            with rng.seeded(0, x.device):
                self._widths[x.shape[1:]] = _numbers(self.module.eval(), x.clone())  # it may write over its input
        return self._widths[x.shape[1:]]

    def _blocks(self, Y: Tensor, batch: Batch, room: int | None = None) -> list[slice]:
        """The blocks of clients that are computed together, by `block` or by the rule of sizes in `choose.blocks`."""
        numbers = 0 if self.block else batch.x.shape[1] * self.width(batch.x[0, :2]) + self.layout.d
        return blocks(len(Y), self.block, 2 * Y.element_size() * numbers, self.layout.d, Y.device, room)

    def _parts(self, Y: Tensor, batch: Batch) -> list[slice]:
        """The blocks of clients on the batched path: one, unless with `block` or recurrent layers (memory)."""
        if self.block is None and not self.recurs:
            return [slice(0, len(Y))]
        one_by_one = any(isinstance(m, nn.LSTM) for m in self.module.modules()) and is_fused(batch.x)
        return self._blocks(Y, batch, ROOM_OF_LSTM if one_by_one else None)

    def _writes(self, Y: Tensor, batch: Batch) -> bool:
        """Whether the written path computes plain gradients of this batch."""
        if self.chosen(Y.device) != "written" or batch.x.dim() - 2 not in self.written.axes:
            return False
        return not self.norms or all(even(batch.count[part]) for part in self._blocks(Y, batch))

    # --- gradients ---

    @fastest()
    def gradient(
        self, Y: Parameters, batch: Batch, loss: Loss = PLAIN, along: Parameters | None = None
    ) -> tuple[Parameters, PerClient]:
        """Gradients `[m, d]` of the clients' losses at their own rows of `Y [m, d]`, and the losses `[m]`.

        loss: what is differentiated instead of the mean cross-entropy (`Loss`).  along: directions `[m, d]`; the result
        is then the derivative of the gradients in them, the Hessian-vector products `[m, d]`, by double backward
        (measured as fast as forward over reverse, which lacks group norm).

        Raises ValueError for a penalty on a model without a representation, and for batch norm on one sample.
        """
        if loss.penalty is not None and not isinstance(self.module, models.Projected):
            raise ValueError(
                f"{type(self.module).__name__} has no representation layer; use model=fc.models.projected('cnn') or "
                "a fc.models.Projected of your own"
            )
        G, losses = torch.empty_like(Y), Y.new_zeros(len(Y))
        if loss.plain and along is None and self._writes(Y, batch):
            for part in self._blocks(Y, batch):
                b = batch.rows(part).trimmed()
                if b.y.shape[1]:
                    losses[part] = self.written.gradient(Y[part], b, G[part])
                else:
                    G[part] = 0
            return G, losses
        with self.turn.lock:
            if self._by_autograd(batch) == "sequential":
                self._notice(Y.device, batch.x.dim() - 2)
                losses = self.sequential.gradient(Y, batch, loss, along, G)
            else:
                for part in self._parts(Y, batch):
                    some = None if along is None else along[part]
                    losses[part] = self.batched.gradient(Y[part], batch.rows(part), loss.cut(part), some, G[part])
        for place in self.layout.frozen:
            G[:, place] = 0
        return G, losses

    @fastest()
    def descend(
        self,
        Y: Parameters,
        counts: np.ndarray,
        batch: Callable[[int, slice], Batch],
        lr: float,
        decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        """Local SGD in place, to rounding: `Y <- Y - lr * gradient(Y, batch(k, rows))` for k = 0, 1, ...

        decay, clip: `decay` times Y is added to the gradients, and each row of the sum is scaled down to the norm
        `clip`.  counts: samples of each row in each step, `[K, m]`; 0 for rows that have taken all their steps and do
        not move.  No row takes more steps than the row before it.  The written path without a clip needs no memory for
        gradients.
        """
        first = batch(0, slice(1)) if self.chosen(Y.device) == "written" else None
        parts = self._blocks(Y, first) if first and first.x.dim() - 2 in self.written.axes else []
        rows = [row[part] for row in counts for part in parts] if self.norms else []
        if not parts or not all(even(row[row > 0]) for row in rows):
            self._descend_by_gradients(Y, counts, batch, lr, decay, clip)
            return

        largest = Y[: max(part.stop - part.start for part in parts)]
        memory, grads = self.written.memory(largest), {} if clip is None else self.written.memory(largest)
        for part in parts:
            params = self.written.load(Y[part], memory)
            for k, a in enumerate((counts[:, part] > 0).sum(1).tolist()):
                if not a:
                    break
                some, room = ({name: v[:a] for name, v in each.items()} for each in (params, grads))
                samples = batch(k, slice(part.start, part.start + a)).trimmed()
                self.written.step(some, samples, lr, decay, clip, room)
            self.written.store(params, Y[part])

    def _descend_by_gradients(
        self, Y: Parameters, counts: np.ndarray, batch: Callable[[int, slice], Batch], lr: float, *more: float | None
    ) -> None:
        def gradient(y: Parameters, k: int) -> Parameters:
            return self.gradient(y, batch(k, slice(len(y))))[0]

        descend(gradient, Y, (counts > 0).sum(1).tolist(), lr, *more, trained=self.trained)

    # --- what a network computes on a batch, without a backward pass ---

    @in_turn
    def logits(self, Y: Parameters, batch: Batch) -> Logits:
        """Logits `[m, B, (heads,) C]` of the batch under each row of Y as in training (batch norm on the batch).

        Logits of padding are undefined.
        """
        if self._by_autograd(batch) == "sequential":
            return self.sequential.logits(Y, batch)
        return torch.cat([self.batched.logits(Y[part], batch.rows(part)) for part in self._parts(Y, batch)])

    @in_turn
    def carry(self, Y: Parameters, batch: Batch) -> Parameters:
        """The buffers `[m, b]` that training updates (running statistics), after a training pass over the batch that
        starts from the buffers in Y."""
        return self.sequential.carry(Y, batch)

    @in_turn
    def observe(self, Y: Parameters, batch: Batch, sites: Sequence[str], loss: Loss | None = None) -> list[Tensor]:
        """Activations at the named layers, `[m, B, channels, positions]` each, scalers off, batch norm on the batch.

        loss: if given, the derivatives of this loss with respect to these activations instead.  Raises ValueError for a
        module with layers that have no rule.
        """
        if self.unsupported or self.mapped or batch.x.dim() == 4:
            raise ValueError(
                f"activations cannot be read in a model with {', '.join(self.unsupported) or 'sequences [L, F]'}; use "
                "layers of fedcore.engine.layers.table.RULES, and layout='features' or 'image'"
            )
        step = len(Y) if self.general(Y.device) != "sequential" else 1
        parts = [slice(a, a + step) for a in range(0, len(Y), step)]
        seen = [self.batched.observe(Y[part], batch.rows(part), sites, loss and loss.cut(part)) for part in parts]
        return [torch.cat(part) for part in zip(*seen, strict=True)]

    # --- evaluation ---

    @in_turn
    @torch.no_grad()
    def evaluate(
        self, x: Flat, test: Chunks, train: Callable[[], Chunks], seen: list[tuple[Tensor, Tensor]] | None = None
    ) -> dict[str, Tensor]:
        """Mean loss and accuracy of the flat model `x [d]` over the chunks of `test`, as tensors on its device.

        train: returns the chunks of the training inputs; only called if the module has batch norm.  seen: a list to
        which the logits and labels of each chunk are added.  There is no accuracy if labels are not classes
        (`CustomLoss`).
        """
        loss = torch.zeros((), device=x.device, dtype=torch.float64)
        hits, count = torch.zeros((), device=x.device, dtype=torch.int64), 0
        for logits, labels in self._answered(x, test, train, seen):
            loss += self.criterion(logits, labels, reduction="sum")
            if self.classifies:
                hits += (logits.argmax(-1) == labels).sum()
            count += len(labels)
        accuracy = {"accuracy": hits.double() / count} if self.classifies else {}
        return accuracy | {"loss": loss / count}

    @in_turn
    @torch.no_grad()
    def scores(
        self, x: Flat, test: Chunks, train: Callable[[], Chunks], seen: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Scores, Scores | None]:
        """Loss and hit (1 or 0) of each sample of `test`, two `[N]`, for the flat model `x [d]`; see `evaluate`.

        None instead of hits if labels are not classes.
        """
        loss, hits = [], []
        for logits, labels in self._answered(x, test, train, seen):
            loss.append(self.criterion(logits, labels, reduction="none").double())
            if self.classifies:
                hits.append((logits.argmax(-1) == labels).double())
        return torch.cat(loss), torch.cat(hits) if self.classifies else None

    @in_turn
    @torch.no_grad()
    def evaluated(self, x: Flat, train: Callable[[], Chunks]) -> nn.Module:
        """A copy of the module as `evaluate` uses it: the parameters `x [d]`, batch-norm statistics of `train`."""
        self._for_evaluation(x, train)
        module = models.holding(self.module, x)
        for norm in _fixable(module):  # a plain batch norm has running statistics alone
            is_set = norm.fixed_var >= 0
            norm.running_mean[is_set], norm.running_var[is_set] = norm.fixed_mean[is_set], norm.fixed_var[is_set]
        return module

    @torch.no_grad()
    def with_statistics(self, x: Flat, train: Callable[[], Chunks]) -> Flat:
        """A copy of `x [d]` in which the fixed statistics of each `models.FixableBatchNorm` are those of `train`."""
        module = self.evaluated(x, train)
        for norm in _fixable(module):
            norm.fixed_mean.copy_(norm.running_mean)
            norm.fixed_var.copy_(norm.running_var)
        return models.flatten(module)

    def _answered(
        self, x: Flat, test: Chunks, train: Callable[[], Chunks], seen: list[tuple[Tensor, Tensor]] | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of each chunk, which are also added to `seen`."""
        params = self._for_evaluation(x, train)
        for k, (inputs, labels) in enumerate(test):
            logits = self._answers(params, with_channels_last(inputs) if self.lays(inputs) else inputs, k)
            if seen is not None:
                seen.append((logits, labels))
            yield logits, labels

    def _answers(self, params: dict[str, Tensor], inputs: Tensor, chunk: int) -> Tensor:
        """The module's logits; a module with random numbers in evaluation draws the same ones in every evaluation."""
        own = {name: params[name].clone() for name in models.carried(self.module)}  # a pass may write to them
        seed = rng.word(rng.EVALUATION, chunk)
        with rng.seeded(seed, inputs.device) if self.trial.evaluated else contextlib.nullcontext():
            return functional_call(self.module, {**params, **own}, (inputs,))

    def lays(self, inputs: Tensor) -> bool:
        """Whether an evaluation stores images with their channels last in memory.

        CPUs then convolve and pool two to three times as fast.  A forward function of the user may need the usual
        strides, as `view` does, and gets them.
        """
        return inputs.dim() == 4 and not (self.unsupported or self._own_forward)

    def _for_evaluation(self, x: Flat, train: Callable[[], Chunks]) -> dict[str, Tensor]:
        """The parameters by name; batch norm has collected its statistics over the training data, without dropout."""
        params = models.called_with(self.module, self.layout.views(x))
        self.module.eval()
        for norm in self.norms:
            norm.reset_running_stats()
        if self.norms:
            self._collect(params, train)
        return params

    def _collect(self, params: dict[str, Tensor], train: Callable[[], Chunks]) -> None:
        """Collect the batch-norm statistics of all training data."""
        (inputs, _), more = next(chunks := iter(train())), next(chunks, None)
        calls, once = self._calls, lambda calls: len(set(map(_one, calls))) == len(calls)
        if more is None and (calls is None or once(calls)):
            calls = self._collect_at_once(params, inputs)
            if once(calls):
                return
            for norm in self.norms:
                norm.reset_running_stats()
            every = [calls]
        else:
            every = [self._called(params, inputs) for inputs, _ in train()] if calls is None else [calls]
        if len(every[0]) == len(self.norms) == len(set(every[0])) and all(calls == every[0] for calls in every):
            self._calls = every[0]
        self._collect_by_layers(params, train, [list(map(_one, calls)) for calls in every])

    def _called(self, params: dict[str, Tensor], inputs: Tensor) -> list[nn.Module]:
        """The batch norms that the forward pass of a chunk calls, in their order."""
        calls: list[nn.Module] = []
        with watching(self.norms, lambda layer, _given: calls.append(layer)):
            self._answers(params, inputs, 0)
        return calls

    def _collect_at_once(self, params: dict[str, Tensor], inputs: Tensor) -> list[nn.Module]:
        """Collect the batch-norm statistics of training data in one chunk, by one forward pass; return its calls.

        The statistics of a batch norm that is called several times are those of its last call.
        """
        alone = ("momentum", 1.0), ("training", True)
        usual = exchanged([(norm, name, value) for norm in self.norms for name, value in alone])
        calls = self._called(params, inputs)
        exchanged(usual)
        return calls

    def _collect_by_layers(
        self, params: dict[str, Tensor], train: Callable[[], Chunks], every: Sequence[Sequence[int]]
    ) -> None:
        """Collect the batch-norm statistics of all training data, for any order of samples and any chunks.

        The inputs of a batch norm depend on the statistics of earlier batch norms.  Therefore the batch norms are
        treated in the order of the forward pass, and for each of them all chunks go through the network up to this
        layer.  A batch norm that a forward pass calls several times has the statistics of all its inputs.

        every: the calls of each chunk, by `_one`.  Where they differ, all chunks go through the whole network.
        """
        counts, alike = {}, all(calls == every[0] for calls in every)
        order = every[0] if alike else _in_order(every)
        for k, at in enumerate(order):
            norms = [norm for norm in self.norms if _one(norm) == at]
            pooled = Pooled(calls=order[: k + 1].count(at) if alike else 0)
            with watching(norms, pooled):
                for chunk, (inputs, _) in enumerate(train()):
                    pooled.left = pooled.calls
                    with contextlib.suppress(Enough):
                        self._answers(params, inputs, chunk)
            for norm in norms if pooled.count else ():
                norm.running_mean.copy_(pooled.mean)
                norm.running_var.copy_(pooled.squares / pooled.count)  # as training normalises a batch
                counts[norm] = pooled.count
        for norm, n in counts.items():
            norm.running_var = norm.running_var * (n / max(n - 1, 1))  # as torch keeps running statistics


def _in_order(every: Sequence[Sequence[int]]) -> list[int]:
    """All layers of some sequences of calls, each after those that a sequence calls before it (if there is such an
    order)."""
    left, order = list(dict.fromkeys(itertools.chain(*every))), []
    while left:
        free = (at for at in left if not any(at in c and set(c[: c.index(at)]) & set(left) for c in every))
        order.append(next(free, left[0]))
        left.remove(order[-1])
    return order


def _fixable(module: nn.Module) -> list[models.FixableBatchNorm]:
    """The batch norms whose statistics can be fixed."""
    return [norm for norm in module.modules() if isinstance(norm, models.FixableBatchNorm)]


def _one(norm: nn.Module) -> int:
    """A number that is the same for all copies of one batch norm in the module."""
    return getattr(norm, "_fedcore_same", id(norm))


class Enough(Exception):
    """Ends a forward pass whose later layers are not needed."""


class Pooled:
    """Mean and sum of squared deviations of each channel over all inputs of a layer, chunk by chunk in float64.

    It is a hook before the layer's forward pass, and ends the pass of the whole module at call number `calls`
    (0: at none).
    """

    def __init__(self, calls: int) -> None:
        self.calls = self.left = calls
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def __call__(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].transpose(0, 1).flatten(1)
        n, (variance, mean) = x.shape[1], torch.var_mean(x.double(), 1, correction=0)
        apart, self.count = mean - self.mean, self.count + n
        self.mean = self.mean + apart * n / self.count
        self.squares = self.squares + n * variance + apart**2 * n * (self.count - n) / self.count
        self.left -= 1
        if not self.left:
            raise Enough


def own_copy(module: nn.Module) -> nn.Module:
    """A copy in which a layer that is used twice becomes two layers with the same parameters, and every batch norm
    has buffers for statistics.

    `functional_call` would leave a plain tensor where the parameter of such a layer was.  Without statistics, an
    evaluation would depend on how many samples are evaluated at once.
    """
    module, seen, numbers = models.copied(module), set(), itertools.count()
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if id(child) in seen:
                for part in child.modules():
                    if isinstance(part, nn.modules.batchnorm._BatchNorm) and not hasattr(part, "_fedcore_same"):
                        part._fedcore_same = next(numbers)  # here and in the copy
                tensors = (*child.parameters(), *child.buffers())
                parent._modules[name] = copy.deepcopy(child, {id(t): t for t in tensors})
            seen.add(id(child))
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is None:
            norm.track_running_stats, norm._buffers = True, dict(type(norm)(norm.num_features, affine=False)._buffers)
    return module


def _numbers(module: nn.Module, x: Tensor) -> int:
    """How many numbers the outputs of all layers have per sample of `x [B, ...]`; recurrent layers count as several."""
    sizes = [x.numel()]

    def count(layer: nn.Module, _given: Any, out: Any) -> None:
        sizes.append(out.numel() if isinstance(out, Tensor) else out[0].numel() * getattr(layer, "num_layers", 1))

    leaves = [layer for layer in module.modules() if not list(layer.children())]
    with torch.no_grad(), watching(leaves, count, behind=True):
        module(x)
    return sum(sizes) // len(x)
