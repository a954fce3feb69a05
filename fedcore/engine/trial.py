"""A module is tried on a few samples before any round: what a forward pass does besides computing logits.

The engine computes the gradients of a module's parameters at each client's own values.  What else a forward pass does
is not known from the kinds of a module's layers, so a copy is run, in training and in evaluation, and looked at: which
states it wrote, which generators it drew from, and whether the same question has the same answer twice.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
import types
import warnings
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import models, rng
from ..storage.identity import GENERATORS, codes, is_own, state
from .batch import Batch
from .loss import PLAIN

SAMPLES = 3  # that a module is tried on
STEPS = (1, 10, 1000)  # added to a state, to see whether later passes read it
SEED = 20_000  # of the generators during a trial
CLOSE = 1e-4  # of the largest logit: float32 rounds to 1e-6
STATES = GENERATORS | int | float | complex | tuple | list | dict | deque | set | np.ndarray | Tensor
CODE = type | types.FunctionType | types.MethodType | types.BuiltinFunctionType | types.ModuleType | nn.Module


SCALES = (-100.0, 0.01)  # factors of the parameters, to see whether a pass keeps them within bounds
WRITES = (
    "a forward pass of the model writes to {}, on which later passes depend, and which a client's steps would lose; "
    "keep it in a buffer (register_buffer), which is carried from step to step and averaged, or let gradients move it, "
    "a weight with bounds by a parametrisation"
)


class Unfit(ValueError):
    """A module whose forward pass no path of the engine would compute rightly; says why, and the remedy."""


@dataclass(frozen=True)
class Trial:
    """What a module's forward pass does: whether it `draws` random numbers, draws `outside` of torch (from Python's or
    NumPy's generator), draws when `evaluated`, and `mixes` the samples of a training batch.

    carried: the buffers that a training pass writes and a later one reads, by name.  alone: why only the module itself
    can be asked, for one client after another; "" where nothing speaks against other paths.  called: layers with
    parameters in the order of the forward pass, where that is another than the module's.  takes_one: whether a
    training batch may have one sample, without an error and without NaN.  asleep: whether training calls a layer that
    is in evaluation, as where the module's `train` leaves a part there.
    """

    draws: bool = False
    outside: bool = False
    evaluated: bool = False
    mixes: bool = False
    carried: tuple[str, ...] = ()
    alone: str = ""
    called: tuple[str, ...] = ()
    takes_one: bool = True
    asleep: bool = False


def tried(module: nn.Module, x: Tensor) -> Trial:
    """What the module does on samples `x [B, ...]`, inputs as it sees them; the module is left as it is.

    Raises Unfit for what no path of the engine would compute rightly: rows that are not one a sample, states other than
    buffers that a pass writes and a later one reads, and passes that give something else each time they are called.
    """
    x = x[:SAMPLES] if len(x) > 1 else x.repeat(2, *[1] * (x.dim() - 1))  # batch norm has no variance of one
    with torch.enable_grad(), torch.inference_mode(False):
        run = _Run(module, x)
        before = _held(run.module, kept=True)
        evaluated, written = run.call(False), dict(run.written)
        in_evaluation = any(run.draws(False))
        _one_row_a_sample(run, evaluated)
        trained, drawn = run.call(True), run.draws(True)
        if not isinstance(trained, Tensor):
            raise Unfit(
                f"the model returns a {type(trained).__name__} in training, and logits in evaluation; use a model that "
                "returns logits [B, classes] alone in both"
            )
        _evaluations_change_nothing(run, written, evaluated, trained)
        carried = tuple(name for name in run.written if _read(run, name))
        _keeps_nothing_else(run, before)
        _keeps_its_parameters(run)
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
    alone = "random numbers of Python's or NumPy's generator" if drawn[1] else alone
    called, asleep = run.called()
    return Trial(any(drawn), drawn[1], in_evaluation, mixes, carried, alone, called, takes_one, asleep)


class _Run:
    """A copy of a module that is called from one state of its buffers and of the generators each time.

    drawn: whether the last call moved torch's generator, and Python's or NumPy's; written: buffers that calls have
    changed, but for batch norm's, which an evaluation collects anew.
    """

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.module, self.x = models.copied(module), x
        buffers = self.module.named_buffers(remove_duplicate=False)
        self.buffers = {name: b.clone() for name, b in buffers}
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
            before = rng.global_states()
            out = self.module.train(training)((self.x if x is None else x).clone())
            moved = [a != b for a, b in zip(before, rng.global_states(), strict=True)]
            self.drawn = [any(moved[3:]), any(moved[:3])]
        for name, b in self.module.named_buffers():
            if not given and name not in self.statistics and not _equal(b, self.buffers.get(name)):
                self.written[name] = b.detach().clone()
        return out.detach().clone() if isinstance(out, Tensor) else out

    def draws(self, training: bool) -> list[bool]:
        """Whether passes draw from torch's generator, and from Python's or NumPy's: where the last one did, others are
        asked, as another thread may have drawn, too."""
        drawn = self.drawn
        for _ in range(2 * any(drawn)):
            self.call(training)
            drawn = [a and b for a, b in zip(drawn, self.drawn, strict=True)]
        return drawn

    def called(self) -> tuple[tuple[str, ...], bool]:
        """The layers with parameters in the order of the forward pass, where that is not the module's own order; and
        whether a training pass calls a layer that is in evaluation."""
        order: list[nn.Module] = []
        names = {layer: name for name, layer in self.module.named_modules()}
        hooks = [m.register_forward_pre_hook(lambda m, _given: order.append(m)) for m in names]
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: [hook.remove() for hook in hooks])
            self.call(False)
            held = list(dict.fromkeys(names[m] for m in order if m._parameters))
            hooks += [m.register_forward_pre_hook(lambda m, _given: order.append(m.training)) for m in names]
            self.call(True)
        usual = [name for layer, name in names.items() if layer._parameters and name in held]
        return () if held == usual else tuple(held), False in order

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


def _evaluations_change_nothing(run: _Run, written: Mapping[str, Tensor], evaluated: Tensor, trained: Tensor) -> None:
    """Unfit where an evaluation leaves buffers `written` behind with which later passes give something else."""
    if written and not (
        _close(run.call(False, given=written), evaluated) and _close(run.call(True, given=written), trained)
    ):
        raise Unfit(
            f"in evaluation, too, a forward pass of the model writes to its buffer {next(iter(written))!r}, on which "
            "later passes depend, so that each evaluation would change the model; write to it under `if self.training:`"
        )


def _keeps_nothing_else(run: _Run, before: Mapping[Any, _Held]) -> None:
    """Unfit where a pass wrote to a parameter, drew from a generator of the user's own, or changed what later passes
    read, be it an attribute, an object or a list in one, or a variable outside of the module."""
    for where, now in _held(run.module, kept=False).items():
        old = before.get(where)
        if old and old.print == now.print:
            continue
        if not (now.parameter or now.draws or _is_read(run, old.value if old else GONE, now)):
            continue
        if now.draws and not now.parameter:
            raise Unfit(
                f"a forward pass of the model draws from a generator of its own, {now.name}, and so gives other logits "
                "each time; draw from torch's global generator, which is seeded for each client and step"
            )
        raise Unfit(WRITES.format(now.name))


def _keeps_its_parameters(run: _Run) -> None:
    """Unfit where a pass writes to parameters of other values, as one that keeps weights within bounds."""
    parameters = dict(run.module.named_parameters())
    first = {name: p.detach().clone() for name, p in parameters.items()}
    for scale in SCALES:
        given = {name: scale * p for name, p in first.items()}
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(given[name])
        for training in (True, False):
            with contextlib.suppress(Exception):  # of values that the module cannot work with
                run.call(training)
        for name, p in parameters.items():
            if not _equal(p, given[name]):
                raise Unfit(WRITES.format(f"its parameter {name!r}"))
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(first[name])


def _is_read(run: _Run, old: Any, place: _Held) -> bool:
    """Whether logits change with the value at a place: the value before the pass, the one after it, and others."""
    kept = _now(place.owner, place.key)
    try:
        for training in (True, False):
            first = None
            for value in (old, *_copies(kept), *_others(kept)):
                place.put((_copies(value) or [value])[0])
                try:
                    out = run.call(training)
                except Exception:  # of a value that the module cannot work with
                    return True
                if first is not None and not _close(out, first):
                    return True
                first = out
    finally:
        place.put(kept)
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
    """Other values of the same type as a state; in a list or an object, every value that it holds is changed."""
    return [other for other in (_further(value, step) for step in STEPS) if _print(other) != _print(value)]


def _further(value: Any, step: int) -> Any:
    """A value `step` further on."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | complex | np.number):
        return value + step
    if isinstance(value, Tensor):
        return ~value if value.dtype == torch.bool else value + step
    if isinstance(value, np.ndarray):
        return ~value if value.dtype == bool else value + step if value.dtype.kind in "iufc" else value
    if type(value) is tuple:
        return tuple(_further(v, step) for v in value)
    if not isinstance(value, dict | list | deque) and (isinstance(value, CODE) or not hasattr(value, "__dict__")):
        return value
    for other in _copies(value):
        if isinstance(value, list | deque):
            more = [_further(v, step) for v in value] * (1 + step if len(value) < 10 else 2)
            other.clear()
            other.extend(more)
        else:
            held = other if isinstance(value, dict) else vars(other)
            held.update({k: _further(v, step) for k, v in held.items()})
        return other
    return value


GONE = object()  # the value of a name that is not bound


class _Held:
    """The value at a place, `owner[key]` or `owner.key`: a text that changes with it (`print`) and, if it is kept, a
    copy.  name: how messages call the place."""

    def __init__(self, owner: Any, key: str, name: str, kept: bool) -> None:
        self.owner, self.key, self.name = owner, key, name
        there = _now(owner, key)
        self.value = (_copies(there) or [there])[0] if kept else None
        self.print, self.parameter = _print(there), isinstance(there, nn.Parameter)

    @property
    def draws(self) -> bool:
        """Whether the value is a generator, or holds one."""
        return _draws(_now(self.owner, self.key), set())

    def put(self, value: Any) -> None:
        """Set the value at the place."""
        if not isinstance(self.owner, dict):
            setattr(self.owner, self.key, value)
        elif value is GONE:
            self.owner.pop(self.key, None)
        else:
            self.owner[self.key] = value


def _held(module: nn.Module, kept: bool) -> dict[Any, _Held]:
    """Everything but buffers that a pass may write to: parameters, attributes of layers, and in the user's code the
    attributes of classes and the closure variables and globals that functions use."""
    found: dict[Any, _Held] = {}
    usual, code, seen = vars(nn.Module()), [], set()

    def add(owner: Any, key: str, name: str) -> None:
        found[id(owner), key] = _Held(owner, key, name, kept)

    for at, layer in module.named_modules():
        dot, kind = f"{at}." if at else "", type(layer).__name__
        for key in layer._parameters:
            add(layer._parameters, key, f"its parameter {dot + key!r} (of {kind})")
        for key in vars(layer).keys() - usual.keys():
            add(vars(layer), key, f"its attribute {dot + key!r} (of {kind})")
        code += [*type(layer).__mro__, *vars(layer).values()]
        code += [hook for key in usual if key.endswith("_hooks") for hook in vars(layer)[key].values()]
    while code:
        one = code.pop()
        # the function of a method, of a partial, or of a property
        one = getattr(one, "__func__", getattr(one, "func", getattr(one, "fget", one)))
        one = one if isinstance(one, type | types.FunctionType) else type(one)
        if one in seen or not is_own(one):
            continue
        seen.add(one)
        around: list[tuple[Any, str]] = []
        if isinstance(one, types.FunctionType):
            names = {name for inner in codes(one.__code__) for name in inner.co_names}
            around += [(one.__globals__, name) for name in names & one.__globals__.keys()]
            around += [(cell, "cell_contents") for cell in one.__closure__ or ()]
            around += [(one, "__defaults__"), *((vars(one), key) for key in vars(one))]
        else:
            around += [(one, key) for key in vars(one) if not key.startswith("__")]
        for owner, key in around:
            value = vars(one).get(key) if owner is one and isinstance(one, type) else _now(owner, key)
            code.append(value)
            if isinstance(value, STATES) or not (isinstance(value, CODE) or not is_own(type(value))):
                add(
                    owner, key, f"{key!r}, which is outside of it" if owner is not one else f"{key!r} of {one.__name__}"
                )
    return found


def _now(owner: Any, key: str) -> Any:
    """The value at a place now."""
    if isinstance(owner, dict):
        return owner.get(key, GONE)
    try:
        return getattr(owner, key)
    except ValueError:  # a variable that is not bound yet
        return GONE


def _copies(value: Any) -> list[Any]:
    """A list with a copy of the value; empty if it cannot be copied."""
    try:
        return [value if value is GONE else copy.deepcopy(value)]
    except Exception:  # a file, a lock, whatever an object of the user's raises
        return []


def _parts(value: Any) -> Iterable[Any]:
    """What a collection or an object holds."""
    if isinstance(value, dict):
        return itertools.chain(*value.items())
    if isinstance(value, list | tuple | deque | set | frozenset):
        return value
    return [] if isinstance(value, CODE | Tensor) else itertools.chain(*getattr(value, "__dict__", {}).items())


def _print(value: Any, seen: set[int] | None = None) -> str:
    """A text that differs for different states; "" for a value without state, such as a function or a layer."""
    if isinstance(value, GENERATORS):
        return repr(state(value))
    if isinstance(value, Tensor):
        value = value.detach().to_dense().cpu().resolve_conj().contiguous().view(-1).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape} {zlib.crc32(np.ascontiguousarray(value).data)}"
    seen = set() if seen is None else seen
    if isinstance(value, CODE) or id(value) in seen:
        return ""
    if isinstance(value, dict | list | tuple | deque | set | frozenset) or hasattr(value, "__dict__"):
        seen.add(id(value))
        return f"{type(value).__name__}({', '.join(_print(part, seen) for part in _parts(value))})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _draws(value: Any, seen: set[int]) -> bool:
    """Whether this is a generator, or holds one."""
    if isinstance(value, GENERATORS) or id(value) in seen:
        return isinstance(value, GENERATORS)
    seen.add(id(value))
    return any(_draws(part, seen) for part in _parts(value))


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    at, _, leaf = name.rpartition(".")
    return module.get_submodule(at), leaf


def _equal(a: Any, b: Any) -> bool:
    return _print(a) == _print(b)


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


def computed(module: nn.Module, x: Tensor, trial: Trial, engine: Any) -> bool:
    """Whether the path that an engine of the module takes through autograd has the gradients that torch computes for
    the module itself, at two clients' parameters.

    A hook, a parametrisation or a forward pass of an instance's own is seen here, and in no layer's kind.  engine:
    makes one of a module.  In float64 where float32 leaves room for doubt.
    """
    own = next(module.parameters()).dtype
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-6)):
        if own == torch.float64 != dtype:
            continue
        still = _without_dropout(models.copied(module).to(dtype))  # a rule draws numbers of its own
        made, inputs = engine(still), x[: SAMPLES - 1]
        _without_dropout(still, *(part.module for part in made.batched.rule.all()))  # as a function, too
        by_rules = x.dim() - 1 in made.axes
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        start, draw = models.flatten(still), torch.Generator(x.device).manual_seed(0)
        Y = start + 0.01 * torch.randn(2, len(start), generator=draw, dtype=dtype, device=x.device)
        weights = torch.full((2, len(inputs)), 1 / len(inputs), dtype=dtype, device=x.device)
        labels, counts = torch.zeros(2, len(inputs), dtype=torch.int64, device=x.device), [len(inputs)] * 2
        batch = Batch(torch.stack([inputs, inputs.flip(0)]), labels, weights, counts, [0, 0])
        found, wanted = (
            torch.empty_like(Y),
            torch.stack([_plainly(still, batch, Y, k, trial, made.criterion, not by_rules) for k in range(2)]),
        )
        (made.batched if by_rules else made.sequential).gradient(Y, batch, PLAIN, None, found)
        for place in made.layout.frozen:
            found[:, place] = 0
        if float((found - wanted).norm()) <= tolerance * float(wanted.norm()):
            return True
    return False


def _plainly(module: nn.Module, batch: Batch, Y: Tensor, k: int, trial: Trial, criterion: Any, drops: bool) -> Tensor:
    """The gradient `[d]` of client k's mean loss, as torch has it of a module that holds the parameters; drops: with
    dropout where a forward pass calls it as a function."""
    module, layout = models.copied(module).train(), models.Layout.of(module)
    values = models.called_with(module, layout.views(Y[k]))
    with torch.no_grad():
        for name, tensor in models.entries(module):
            tensor.copy_(values[name])
    with rng.seeded(batch.key[k], Y.device, trial.outside), contextlib.nullcontext() if drops else _WithoutDropout():
        logits = module(batch.x[k].clone())
        (PLAIN.client(k, len(logits)).of_samples(logits, batch.y[k], criterion) * batch.w[k]).sum().backward()
    grads = ((t.grad if t.grad is not None else torch.zeros_like(t)) for _, t in models.entries(module))
    return torch.cat([g.reshape(-1).to(Y.dtype) for g in grads])


def _drops(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.dropout._DropoutNd)


def _without_dropout(module: nn.Module, *more: nn.Module) -> nn.Module:
    for layer in filter(_drops, (*module.modules(), *more)):
        layer.p = 0.0
    return module


class _WithoutDropout(TorchFunctionMode):
    """`F.dropout` returns its input."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (F.dropout, torch.dropout):
            return args[0] if args else kwargs["input"]
        return function(*args, **(kwargs or {}))
