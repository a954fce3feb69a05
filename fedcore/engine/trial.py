"""A trial of a module on a few samples before the first round: the side effects of its forward pass.

The engine computes gradients of a module's parameters at each client's own values.  The types of a module's layers do
not show the side effects of a forward pass.  Therefore a copy is run in training and in evaluation mode, to see which
states it writes, which random generators it uses, and whether it returns the same for the same inputs.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .. import models, rng
from ..models.layout import owner
from ..storage.identity import Describer
from .batch import Batch
from .loss import PLAIN
from .passes import watching
from .undisturbed import exchanged

SAMPLES = 3  # the number of samples in a trial
TRIES = 3  # of which one shows that passes leave all as it was: other threads may change a variable, too
STEPS = (1, 10, 1000)  # added to a buffer, to see whether later passes read it
SEED = 20_000  # seeds the generators during a trial
CLOSE = 1e-4  # tolerance relative to the largest logit: float32 rounds to 1e-6
SCALES = (1.0, -100.0, 0.01)  # factors of the parameters, to see whether a pass keeps them within bounds
DROPOUTS = (
    F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout
)  # fmt: skip
KEEPS = (
    "every forward pass of the model, a {}, changes what it was called with or what later passes compute, as an "
    "attribute, a variable outside of it, or a random generator of its own, which a client's steps would lose; keep "
    "what lasts in a buffer (register_buffer), which is carried from step to step and averaged, and draw from torch's "
    "global generator, which is seeded for each client and step"
)


class Unfit(ValueError):
    """No path of the engine computes the forward pass of this module correctly; the message says why."""


@dataclass(frozen=True)
class Trial:
    """Properties of a module's forward pass: whether it `draws` random numbers, draws `outside` of torch (from Python's
    or NumPy's generator), draws when `evaluated`, and `mixes` the samples of a training batch.

    carried: the names of the buffers that a training pass writes and a later one reads.  alone: the reason why clients
    must be computed one after another, or "".  called: the layers with parameters that a forward pass uses, in its
    order, if these are not all in the module's order.  takes_one: whether a training batch of one sample gives neither
    an error nor NaN.  asleep: whether training calls a layer in evaluation mode, because the module's `train` leaves it
    there.
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
    """Try a module on samples `x [B, ...]` in the form of its inputs; the module itself is not changed.

    Raises Unfit if no path of the engine would compute it correctly: if the output does not have one row per sample, if
    a pass writes to a parameter, if equal passes return different results or change a state other than a buffer, if a
    batch norm stays in evaluation mode while the model is trained, or if a gradient is sparse.
    """
    x = x[:SAMPLES] if len(x) > 1 else x.repeat(2, *[1] * (x.dim() - 1))  # batch norm has no variance of one
    with torch.enable_grad(), torch.inference_mode(False):
        run = _Run(module, x)
        evaluated, written = run.call(False), dict(run.written)
        _one_row_a_sample(run, evaluated)
        _keeps_its_parameters(run)
        run = _Run(module, x)  # of which no pass in evaluation has changed anything
        trained = run.call(True)
        if written and not (
            _close(run.call(False, given=written), evaluated) and _close(run.call(True, given=written), trained)
        ):
            raise Unfit(
                "in evaluation, too, a forward pass of the model writes to its buffer "
                f"{next(iter(written))!r}, on which later passes depend, so that each evaluation would change the "
                "model; write to it under `if self.training:`"
            )
        carried = tuple(name for name in run.written if _carries(run, name))
        if not any(_is_repeatable(run, trained, evaluated) for _ in range(TRIES)):
            raise Unfit(KEEPS.format(type(module).__name__))
        drawn, in_evaluation = run.draws(True), any(run.draws(False))
        further = {name: run.buffers[name] + 1 for name in run.statistics}
        if further and not _close(run.call(True, given=further), trained):
            for name, norm in run.statistics.items():
                if not norm.training:
                    raise Unfit(
                        f"the batch norm {name.rpartition('.')[0]!r} stays in evaluation mode while the model is "
                        "trained, and would normalise by running statistics, which only an evaluation computes here; "
                        "call F.batch_norm(z, self.mean, self.var, self.weight, self.bias) instead of the layer, with "
                        "buffers of your own (register_buffer) for the statistics"
                    )
            raise Unfit(
                "a layer similar to batch norm normalises training batches by its running statistics, but only an "
                "evaluation computes these statistics here; use nn.BatchNorm or nn.GroupNorm"
            )
        for name in run.uncalled():
            if not _close(run.call(False, given={name: run.buffers[name] + 1}), evaluated):
                raise Unfit(
                    f"in evaluation the model reads {name!r} without calling this batch norm, so that an evaluation "
                    "cannot collect its statistics; call the layer, not F.batch_norm, or use nn.GroupNorm"
                )
        if not in_evaluation and not _close(evaluated[:-1], run.call(False, x[:-1])):
            warnings.warn(
                f"in evaluation, too, the logits that the model, a {type(module).__name__}, gives for a sample depend "
                "on the other samples; accuracy and loss then depend on how many are evaluated at once",
                stacklevel=4,
            )
        rows = run.one_by_one()
        mixes = _mixes(run, any(drawn)) or bool(carried) or rows is None
        takes_one = rows is not None and not bool(rows.isnan().any() and not trained.isnan().any())
    alone = "buffers that training carries" if carried else ""
    alone = "random numbers of Python's or NumPy's generator" if drawn[1] else alone
    called, asleep = run.called()
    return Trial(any(drawn), drawn[1], in_evaluation, mixes, carried, alone, called, takes_one, asleep)


class _Run:
    """A copy of a module; every call starts from the same state of its buffers and of the random generators.

    drawn: whether the last call used torch's generator, and Python's or NumPy's.  out: its output.  written: the
    buffers that calls have changed, except those of batch norm, which an evaluation collects anew.
    """

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.module, self.x = models.copied(module), x
        buffers = self.module.named_buffers(remove_duplicate=False)
        self.buffers = {name: b.clone() for name, b in buffers}
        norms = [(at, m) for at, m in self.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.statistics = {
            f"{at}.{k}".lstrip("."): m for at, m in norms for k, b in m._buffers.items() if b is not None
        }
        self.written: dict[str, Tensor] = {}

    def call(self, training: bool, x: Tensor | None = None, given: Mapping[str, Tensor] | None = None) -> Tensor:
        """A copy of the module's logits.  given: values of buffers that replace the initial ones."""
        put = {name: value.clone() for name, value in {**self.buffers, **(given or {})}.items()}
        for name, value in put.items():
            at, _, leaf = name.rpartition(".")
            self.module.get_submodule(at)._buffers[leaf] = value
        with rng.seeded(SEED, self.x.device):
            before = rng.global_states()
            out = self.module.train(training)((self.x if x is None else x).clone())
            moved = [a != b for a, b in zip(before, rng.global_states(), strict=True)]
            self.drawn, self.out = [any(moved[3:]), any(moved[:3])], out
        if not isinstance(out, Tensor):
            raise Unfit(
                f"the model returns a {type(out).__name__} in {'training' if training else 'evaluation'}; use a model "
                "that returns logits [B, classes] alone in both"
            )
        for name, b in self.module.named_buffers():
            touched = b is not put.get(name) or b._version  # also where these few samples leave the value as it was
            if not given and name not in self.statistics and touched:
                self.written[name] = b.detach().clone()
        return out.detach().clone()

    def state(self) -> str:
        """A description of all that passes may change: the module, and the variables that its code and hooks use."""
        hooks = [[h.values() for k, h in vars(m).items() if k.endswith("_hooks")] for m in self.module.modules()]
        return _State().text([self.module, hooks])

    def draws(self, training: bool) -> list[bool]:
        """Whether passes draw from torch's generator, and from Python's or NumPy's: all of a few, as another thread may
        have drawn during one of them."""
        drawn = [True, True]
        for _ in range(TRIES):
            if any(drawn):
                self.call(training)
                drawn = [a and b for a, b in zip(drawn, self.drawn, strict=True)]
        return drawn

    def called(self) -> tuple[tuple[str, ...], bool]:
        """The layers with parameters that a forward pass uses, in the order of its last calls, or of the last uses of
        their parameters where it does not call them; none if these are all in the module's own order.  And whether a
        training pass calls a layer in evaluation mode."""
        held = {id(p): owner(name) for name, p in self.module.named_parameters()}
        owners = {  # a module of others is where its parameters are read
            m: owner(f"{name}.")
            for name, m in self.module.named_modules()
            if [*m.parameters(False)] and not [*m.children()]
        }
        uses: list[tuple[str, bool]] = []
        with watching(owners, lambda layer, _given: uses.append((owners[layer], True))), _Reading(held, uses):
            self.call(False)
        called = {name for name, is_call in uses if is_call}
        order = dict.fromkeys(name for name, is_call in reversed(uses) if is_call or name not in called)
        awake: list[bool] = []
        with watching(self.module.modules(), lambda layer, _given: awake.append(layer.training)):
            self.call(True)
        found = [*reversed(order)]
        for at, part in self.module.named_modules():  # which experts a pass uses may depend on the samples
            members = dict.fromkeys(k for k in held.values() if k.startswith(f"{at}."))
            used = [k for k in found if k in members]
            if isinstance(part, nn.ModuleList | nn.ModuleDict) and used and len(used) < len(members):
                first = found.index(used[0])
                found = [*found[:first], *members, *(k for k in found[first:] if k not in members)]
        found = tuple(found)
        return () if found == tuple(dict.fromkeys(held.values())) else found, not all(awake)

    def uncalled(self) -> list[str]:
        """The statistics of the batch norms that a pass in evaluation does not call."""
        called: set[nn.Module] = set()
        with watching(set(self.statistics.values()), lambda layer, _given: called.add(layer)):
            self.call(False)
        return [name for name, norm in self.statistics.items() if norm not in called]

    def learnt(self, samples: slice) -> tuple[Tensor, Tensor]:
        """The training logits of some of the samples, and the gradient of their sum with weights that are drawn once.

        Raises Unfit for a sparse gradient.
        """
        logits, draws = self.call(True, self.x[samples]), torch.Generator().manual_seed(SEED)
        weights = torch.randn(len(self.x), *logits.shape[1:], generator=draws)[samples].to(logits)
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(self.out, [*trained.values()], weights, allow_unused=True, materialize_grads=True)
        for name, g in zip(trained, grads, strict=True):
            if g.layout != torch.strided:
                raise Unfit(
                    f"the model has a sparse gradient by its parameter {name!r}, and the engine's gradients are dense; "
                    "use sparse=False in the layer"
                )
        return logits, torch.cat([g.flatten() for g in grads])

    def one_by_one(self) -> Tensor | None:
        """Logits of the samples one by one; None if the module does not accept one sample or its output differs."""
        try:
            return torch.cat([self.call(True, x[None]) for x in self.x])
        except Exception:  # a module may raise any error for a batch of one
            return None


def _mixes(run: _Run, draws: bool) -> bool:
    """Whether a sample's logits or its gradient depend on the other samples of a training batch, apart from dropout.

    True also where passes draw other numbers than dropout's or raise errors, because it cannot be told then.
    """
    rates = [(m, "dropout", 0.0) for m in run.module.modules() if isinstance(vars(m).get("dropout"), float)]
    usual = exchanged(rates)  # of attention, recurrent layers, and the user's own
    try:
        with _WithoutDropout():
            if draws and any(run.draws(True)):
                return True
            whole, *alone = (run.learnt(s) for s in (slice(None), *(slice(k, k + 1) for k in range(len(run.x)))))
    except Unfit:
        raise
    except Exception:  # a module may raise any error for a batch of one
        return True
    finally:
        exchanged(usual)
    logits, gradients = zip(*alone, strict=True)
    return not (_close(whole[0], torch.cat(logits)) and _close(whole[1], torch.stack(gradients).sum(0)))


def _one_row_a_sample(run: _Run, logits: Tensor) -> None:
    """Raise Unfit unless a batch of B samples has B rows of logits, for several B."""
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


def _carries(run: _Run, name: str) -> bool:
    """Whether logits depend on a buffer that training writes: they differ between its values, or for values beyond."""
    new = run.written[name]
    further = [~new if new.dtype == torch.bool else new + step for step in STEPS]
    try:
        for training in (True, False):
            first, *others = (run.call(training, given={name: b}) for b in (run.buffers.get(name, new), new, *further))
            if not all(_close(other, first) for other in others):
                return True
    except Exception:  # of a value that the module cannot work with
        return True
    return False


def _is_repeatable(run: _Run, trained: Tensor, evaluated: Tensor) -> bool:
    """Whether passes return what they have returned, and leave every state but buffers as it was."""
    run.call(False)
    before = run.state()
    return _close(run.call(True), trained) and _close(run.call(False), evaluated) and run.state() == before


def _keeps_its_parameters(run: _Run) -> None:
    """Raise Unfit if a pass writes to parameters, now or when their values are out of bounds that it keeps."""
    for scale in SCALES:
        scaled = _Run(run.module, run.x)
        parameters = dict(scaled.module.named_parameters())
        with torch.no_grad():
            given = {name: p.mul_(scale).clone() for name, p in parameters.items()}
        for training in (True, False):
            with contextlib.suppress(Exception):  # of values that the module cannot work with
                scaled.call(training)
        for name, p in parameters.items():
            if not torch.allclose(p, given[name], rtol=0, atol=0, equal_nan=True):
                raise Unfit(
                    f"a forward pass of the model writes to its parameter {name!r}, which a client's steps would lose; "
                    "bound a weight by a parametrisation"
                )


class _State(Describer):
    """A description of a value: a text that differs for different states.  Tensors other than parameters are described
    by their bytes."""

    def text(self, value: Any) -> str:
        if isinstance(value, nn.Parameter):
            return ""
        if isinstance(value, Tensor):
            value = value.detach().to_dense().cpu().resolve_conj().contiguous().view(-1).view(torch.uint8)
        return super().text(value)


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs agree up to rounding."""
    if a.shape != b.shape:
        return False
    size = float(torch.nan_to_num(a).abs().max()) if a.numel() else 0.0
    return bool(torch.allclose(a.double(), b.double(), rtol=0, atol=CLOSE * max(size, 1e-6), equal_nan=True))


def computed(module: nn.Module, x: Tensor, trial: Trial, engine: Any) -> bool:
    """Whether the engine's path with autograd has the same gradients as torch for the module itself, at the parameters
    of two clients.

    This comparison finds hooks, parametrisations, changed forward functions, and layers that write over what others
    read, which the types of layers do not show.
    engine: makes an engine from a module.  If the result in float32 is unclear, float64 decides.
    """
    own = next(module.parameters()).dtype
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-6)):
        if own == torch.float64 != dtype:
            continue
        still, inputs = models.copied(module).to(dtype), x[: SAMPLES - 1]
        made = engine(still)
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        start, draw = models.flatten(still), torch.Generator(x.device).manual_seed(0)
        Y = start + 0.01 * torch.randn(2, len(start), generator=draw, dtype=dtype, device=x.device)
        weights = torch.full((2, len(inputs)), 1 / len(inputs), dtype=dtype, device=x.device)
        labels, counts = torch.zeros(2, len(inputs), dtype=torch.int64, device=x.device), [len(inputs)] * 2
        by_rules = x.dim() - 1 in made.axes  # which draw numbers of their own for dropout: here none is dropped
        batch = Batch(torch.stack([inputs, inputs.flip(0)]), labels, weights, counts, [] if by_rules else [0, 0])
        found = torch.empty_like(Y)
        try:
            (made.batched if by_rules else made.sequential).gradient(Y, batch, PLAIN, None, found)
            with _WithoutDropout() if by_rules else contextlib.nullcontext():
                wanted = torch.stack([_plainly(still, batch, Y, k, trial, made.criterion) for k in range(2)])
        except RuntimeError:  # rules for other shapes, or an output of dropout that is written over
            return False
        for place in made.layout.frozen:
            found[:, place] = 0
        if float((found - wanted).norm()) <= tolerance * float(wanted.norm()):
            return True
    return False


def _plainly(module: nn.Module, batch: Batch, Y: Tensor, k: int, trial: Trial, criterion: Any) -> Tensor:
    """The gradient `[d]` of client k's mean loss, computed by torch on a module with these parameters."""
    module = models.holding(module, Y[k]).train()
    with rng.seeded(0, Y.device, trial.outside):
        logits = module(batch.x[k].clone())
        (PLAIN.client(k, len(logits)).of_samples(logits, batch.y[k], criterion) * batch.w[k]).sum().backward()
    grads = ((t.grad if t.grad is not None else torch.zeros_like(t)) for _, t in models.entries(module))
    return torch.cat([g.reshape(-1).to(Y.dtype) for g in grads])


class _Reading(TorchFunctionMode):
    """Functions of torch report the layers whose parameters they compute with: held[id] is the layer of each."""

    def __init__(self, held: Mapping[int, str], uses: list[tuple[str, bool]]) -> None:
        super().__init__()
        self.held, self.uses = held, uses

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(out)):  # not a mere question for a shape or a device
            read = (self.held.get(id(leaf)) for leaf in tree_leaves((args, kwargs)))
            self.uses.extend((name, False) for name in read if name is not None)
        return out


class _WithoutDropout(TorchFunctionMode):
    """`F.dropout` and its relatives, also a layer's, return their input."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in DROPOUTS:
            return args[0] if args else kwargs["input"]
        return function(*args, **(kwargs or {}))
