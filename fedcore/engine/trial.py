"""A module is tried on a few samples before any round: what a forward pass does besides computing logits.

The engine computes the gradients of a module's parameters at each client's own values.  What else a forward pass does
is not known from the kinds of a module's layers, so a copy is run, in training and in evaluation, and looked at: which
states it wrote, which generators it drew from, and whether the same question has the same answer twice.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import models, rng
from .batch import Batch
from .loss import PLAIN

SAMPLES = 3  # that a module is tried on
STEPS = (1, 10, 1000)  # a state is tried this much further on
SEED = 20_000  # of the generators during a trial
STATES = int | float | complex | bool | str | None | np.ndarray | list | tuple | dict | set
CLOSE = 1e-4  # of the largest logit: float32 rounds to 1e-6


class Unfit(ValueError):
    """A module whose forward pass no path of the engine would compute rightly; says why, and the remedy."""


@dataclass(frozen=True)
class Trial:
    """What a module's forward pass does: whether it `draws` random numbers, draws `outside` of torch (from Python's or
    NumPy's generator), draws when `evaluated`, and `mixes` the samples of a training batch.

    carried: the buffers that a training pass writes and a later one reads, by name.  alone: why only the module itself
    can be asked, for one client after another; "" where nothing speaks against other paths.  called: layers with
    parameters in the order of the forward pass, where that is another than the module's.  takes_one: whether a
    training batch may have one sample, without an error and without NaN.
    """

    draws: bool = False
    outside: bool = False
    evaluated: bool = False
    mixes: bool = False
    carried: tuple[str, ...] = ()
    alone: str = ""
    called: tuple[str, ...] = ()
    takes_one: bool = True


def tried(module: nn.Module, x: Tensor) -> Trial:
    """What the module does on samples `x [B, ...]`, inputs as it sees them; the module is left as it is.

    Raises Unfit for what no path of the engine would compute rightly: rows that are not one a sample, states other than
    buffers that a pass writes and a later one reads, and passes that give something else each time they are called.
    """
    x = x[:SAMPLES] if len(x) > 1 else x.repeat(2, *[1] * (x.dim() - 1))  # batch norm has no variance of one
    with torch.enable_grad(), torch.inference_mode(False):
        run = _Run(module, x)
        before = _states(run.module)
        evaluated, in_evaluation = run.call(False), any(run.drawn)
        _one_row_a_sample(run, evaluated)
        trained, drawn = run.call(True), run.drawn
        carried = tuple(name for name in run.written if _read(run, name))
        _keeps_nothing_else(run, before)
        if not _close(run.call(True), trained) or not _close(run.call(False), evaluated):
            raise Unfit(
                f"the model, a {type(module).__name__}, gives other logits each time it is called, on the same samples "
                "and with the same state of the generators; draw from torch's global generator, which is seeded for "
                "each client and step, and keep in buffers what lasts from call to call"
            )
        _reads_no_statistics(run, trained)
        if not in_evaluation and not _close(evaluated[:-1], run.call(False, x[:-1])):
            warnings.warn(
                f"in evaluation, too, the logits that the model, a {type(module).__name__}, gives for a sample depend "
                "on the other samples; accuracy and loss then depend on how many are evaluated at once",
                stacklevel=4,
            )
        rows = run.one_by_one()
        mixes = bool(carried) or rows is None or not (any(drawn) or _close(trained, rows))
        takes_one = rows is not None and not bool(rows.isnan().any() and not trained.isnan().any())
    alone = "buffers that training carries" if carried else ""
    alone = "random numbers of Python's or NumPy's generator" if any(drawn[1:]) else alone
    return Trial(any(drawn), any(drawn[1:]), in_evaluation, mixes, carried, alone, run.called(), takes_one)


class _Run:
    """A copy of a module that is called from one state of its buffers and of the generators each time.

    drawn: whether the last call moved torch's, Python's and NumPy's generator; written: buffers that calls have
    changed, but for batch norm's, which an evaluation collects anew.
    """

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.module, self.x = models.copied(module), x
        self.buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        layers = self.module.named_modules()
        norms = [(at, m) for at, m in layers if _is_batch_norm(m)]
        self.statistics = {f"{at}.{k}".lstrip(".") for at, m in norms for k, b in m._buffers.items() if b is not None}
        self.written: dict[str, Tensor] = {}

    def call(self, training: bool, x: Tensor | None = None, given: Mapping[str, Tensor] | None = None) -> Any:
        """What the module returns, in memory of its own.  given: buffers, instead of those it had at first."""
        for name, value in {**self.buffers, **(given or {})}.items():
            owner, leaf = _place(self.module, name)
            owner._buffers[leaf] = value.clone()
        with rng.seeded(SEED, self.x.device):
            before = _global_generators()
            out = self.module.train(training)((self.x if x is None else x).clone())
            self.drawn = [not _equal(a, b) for a, b in zip(before, _global_generators(), strict=True)]
        for name, b in self.module.named_buffers():
            if not given and name not in self.statistics and not _equal(b, self.buffers.get(name)):
                self.written[name] = b.detach().clone()
        return out.detach().clone() if isinstance(out, Tensor) else out

    def called(self) -> tuple[str, ...]:
        """The layers with parameters in the order of the forward pass, where that is not the module's own order."""
        order: list[str] = []
        layers = {name: m for name, m in self.module.named_modules() if m._parameters}
        hooks = [m.register_forward_pre_hook(lambda _m, _given, n=name: order.append(n)) for name, m in layers.items()]
        self.call(False)
        for hook in hooks:
            hook.remove()
        order = list(dict.fromkeys(order))
        return () if order == [name for name in layers if name in order] else tuple(order)

    def one_by_one(self) -> Tensor | None:
        """Logits of the samples alone; None where the module does not take one, or gives something else."""
        try:
            rows = [self.call(True, x[None]) for x in self.x]
        except Exception:  # whatever a module of the user's raises for a batch of one
            return None
        return torch.cat(rows) if all(isinstance(row, Tensor) and row.dim() for row in rows) else None


def _one_row_a_sample(run: _Run, logits: Any) -> None:
    """Unfit where a batch of B samples does not have B rows of logits, for several B."""
    if not isinstance(logits, Tensor) or not logits.dim():
        raise Unfit(
            f"the model returns {'a number' if isinstance(logits, Tensor) else type(logits).__name__}; use a model "
            "that returns logits [B, classes] alone"
        )
    for B in sorted({1, len(run.x) - 1, len(run.x)}):
        try:
            out = run.call(False, run.x[:B])
        except ValueError:
            if B == 1:  # batch norm without running statistics, which has the batch's in evaluation, too
                continue
            raise
        if tuple(out.shape) != (B, *logits.shape[1:]):
            raise Unfit(
                f"the model gives logits of shape {tuple(out.shape)} for {B} sample{'s' * (B > 1)} of shape "
                f"{tuple(run.x.shape[1:])}; return one row a sample, [B, classes]: x.flatten(1) keeps the samples "
                "apart, and squeeze(1), unlike squeeze(), keeps a batch of one"
            )


def _read(run: _Run, name: str) -> bool:
    """Whether logits depend on a buffer that training writes: with the values it was given, and others."""
    new = run.written[name]
    for training in (True, False):
        first = run.call(training)
        for value in (new, *_others(new)):
            try:
                if not _close(run.call(training, given={name: value}), first):
                    return True
            except Exception:  # of a value that the module cannot work with
                return True
    return False


def _keeps_nothing_else(run: _Run, before: Mapping[str, Any]) -> None:
    """Unfit where a pass wrote to a parameter, or to an attribute that later passes read."""
    parameters, now = dict(run.module.named_parameters()), _states(run.module)
    for name, old in before.items():
        new = now.get(name)
        if _equal(old, new):
            continue
        owner, leaf = _place(run.module, name)
        if name in parameters or _attribute_is_read(run, owner, leaf, old, new):
            kind = "parameter" if name in parameters else "attribute"
            raise Unfit(
                f"a forward pass of the model writes to its {kind} {name!r} (of {type(owner).__name__}), on which "
                "later passes depend, and which a client's steps would lose; keep it in a buffer (register_buffer), "
                "which is carried from step to step and averaged, or let gradients move it"
            )


def _attribute_is_read(run: _Run, owner: nn.Module, leaf: str, old: Any, new: Any) -> bool:
    for training in (True, False):
        setattr(owner, leaf, copy.deepcopy(old))
        first = run.call(training)
        for value in (new, *_others(new)):
            setattr(owner, leaf, copy.deepcopy(value))
            try:
                if not _close(run.call(training), first):
                    return True
            except Exception:  # of a value that the module cannot work with
                return True
    setattr(owner, leaf, copy.deepcopy(old))
    return False


def _reads_no_statistics(run: _Run, trained: Tensor) -> None:
    """Unfit where a kind of batch norm reads its running statistics in training."""
    further = {name: run.buffers[name] + 1 for name in run.statistics}
    if further and not _close(run.call(True, given=further), trained):
        raise Unfit(
            "a layer of the model's, of the kind of batch norm, normalises training batches by its running statistics; "
            "here an evaluation collects these, and training has none. Use nn.BatchNorm or nn.GroupNorm"
        )


def _others(value: Any) -> list[Any]:
    """Other values of a state, of its kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float) or (isinstance(value, Tensor) and value.dtype != torch.bool):
        return [value + step for step in STEPS]
    return [~value] if isinstance(value, Tensor) else []


def _states(module: nn.Module) -> dict[str, Any]:
    """Copies of what a module holds beside buffers, by name: parameters, and numbers, texts and tensors of its own."""
    found: dict[str, Any] = {name: p.detach().clone() for name, p in module.named_parameters()}
    usual = vars(nn.Module())
    for at, layer in module.named_modules():
        for key, value in vars(layer).items():
            if key in usual:
                continue
            name = f"{at}.{key}" if at else key
            if isinstance(value, Tensor):
                found[name] = value.detach().clone()
            elif isinstance(value, STATES) and not _holds_others(value):
                found[name] = copy.deepcopy(value)
    return found


def _holds_others(value: Any) -> bool:
    """Whether a collection holds more than numbers and texts."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return any(not isinstance(part, STATES) or _holds_others(part) for part in parts)


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    at, _, leaf = name.rpartition(".")
    return module.get_submodule(at), leaf


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        same = isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype
        return same and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _close(a: Any, b: Any) -> bool:
    """Whether two outputs agree but for rounding; True where they are none that can be compared."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return True
    if a.shape != b.shape:
        return False
    size = float(torch.nan_to_num(a).abs().max()) if a.numel() else 0.0
    return bool(torch.allclose(a.double(), b.double(), rtol=0, atol=CLOSE * max(size, 1e-6), equal_nan=True))


def _is_batch_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def _global_generators() -> tuple[Any, ...]:
    """The states of torch's, Python's and NumPy's generators."""
    return torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002


def computed(module: nn.Module, x: Tensor, trial: Trial, engine: Any) -> bool:
    """Whether the path that an engine of the module takes through autograd has the gradients that torch computes for
    the module itself, at two clients' parameters.

    A hook, a parametrisation or a forward pass of an instance's own is seen here, and in no layer's kind.  engine:
    makes one of a module.  In float64 where float32 leaves room for doubt.
    """
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-6)):
        still = _without_dropout(models.copied(module).to(dtype))
        made, inputs = engine(still), x[: SAMPLES - 1]
        by_rules = x.dim() - 1 in made.axes
        if by_rules and trial.draws and not any(map(_drops, still.modules())):
            return True  # dropout as a function, whose rule draws numbers of its own
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        start, draw = models.flatten(still), torch.Generator(x.device).manual_seed(0)
        Y = start + 0.01 * torch.randn(2, len(start), generator=draw, dtype=dtype, device=x.device)
        weights = torch.full((2, len(inputs)), 1 / len(inputs), dtype=dtype, device=x.device)
        labels, counts = torch.zeros(2, len(inputs), dtype=torch.int64, device=x.device), [len(inputs)] * 2
        batch = Batch(torch.stack([inputs, inputs.flip(0)]), labels, weights, counts, [0, 0])
        found, wanted = (
            torch.empty_like(Y),
            torch.stack([_plainly(still, batch, Y, k, trial, made.criterion) for k in range(2)]),
        )
        (made.batched if by_rules else made.sequential).gradient(Y, batch, PLAIN, None, found)
        for place in made.layout.frozen:
            found[:, place] = 0
        if float((found - wanted).norm()) <= tolerance * float(wanted.norm()):
            return True
    return False


def _plainly(module: nn.Module, batch: Batch, Y: Tensor, k: int, trial: Trial, criterion: Any) -> Tensor:
    """The gradient `[d]` of client k's mean loss, as torch has it of a module that holds the parameters."""
    module, layout = models.copied(module).train(), models.Layout.of(module)
    values = models.called_with(module, layout.views(Y[k]))
    with torch.no_grad():
        for name, tensor in models.entries(module):
            tensor.copy_(values[name])
    with rng.seeded(batch.key[k], Y.device, trial.outside):
        logits = module(batch.x[k].clone())
        (PLAIN.client(k, len(logits)).of_samples(logits, batch.y[k], criterion) * batch.w[k]).sum().backward()
    grads = ((t.grad if t.grad is not None else torch.zeros_like(t)) for _, t in models.entries(module))
    return torch.cat([g.reshape(-1).to(Y.dtype) for g in grads])


def _drops(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.dropout._DropoutNd)


def _without_dropout(module: nn.Module) -> nn.Module:
    layers: Iterable[Any] = filter(_drops, module.modules())
    for layer in layers:
        layer.p = 0.0
    return module
