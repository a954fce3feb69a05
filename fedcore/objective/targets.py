"""Checks of the user's losses and metrics on the first samples."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import rng
from ..engine import CustomLoss
from ..engine.trial import TRIES
from ..support.checks import brief, warn
from ..support.devices import first_line

Metric = Callable[[Tensor, Tensor], Any]
LOSS = "use a function (logits [B, C] or other outputs, targets [B, ...]) -> one loss per sample [B], or their mean"
METRIC = "use functions (logits [T, C], targets [T, ...]) -> a number, or one per sample [T]"


def telling(y: Tensor, count: int) -> Tensor:
    """At most `count` different samples on which a loss is tried, as rows of the targets `y [N, ...]`: those with the
    smallest and the largest value, for each class the one with most targets of it, and some evenly spaced.

    Samples are often ordered by label, so the first ones alone would not show the weight of a class.
    """
    each = y.flatten(1).cpu() if y.dim() > 1 else y[:, None].cpu()
    rows = [each.amin(1).argmin().view(1), each.amax(1).argmax().view(1)]
    if not y.is_floating_point():
        rows += [(each == c).sum(1).argmax().view(1) for c in each.unique()[: count // 2]]
    rows.append(torch.linspace(0, len(y) - 1, min(count, len(y))).long())
    seen = dict.fromkeys(torch.cat(rows).tolist())
    return torch.tensor(list(seen)[:count], device=y.device)


def warn_of_outputs(function: Any, z: Tensor) -> None:
    """Warns where torch's loss takes logits and the model gives probabilities `z [B, C]`, or where it takes
    log-probabilities and the model gives other numbers; torch computes a loss without an error in both cases."""
    takes_logits = function is None or function is F.cross_entropy or isinstance(function, nn.CrossEntropyLoss)
    takes_logs = function is F.nll_loss or isinstance(function, nn.NLLLoss)
    if z.dim() < 2 or not (takes_logits or takes_logs):
        return
    z = z.detach() if takes_logits else z.detach().exp()
    are_shares = bool((z.sum(1) - 1).abs().max() < 1e-3 and (z >= 0).all())
    if takes_logits and are_shares:
        warn(
            "the model gives probabilities, of which the cross-entropy takes a softmax once more, so that it learns "
            "slowly and its loss stays high; leave the softmax out of the model"
        )
    elif takes_logs and not are_shares:
        warn(
            f"loss={name(function)} takes log-probabilities, and the model gives other numbers; end the model with "
            "nn.LogSoftmax(1), or leave the loss out: the default is the cross-entropy of logits"
        )


def checked_loss(function: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor, accuracy: bool) -> CustomLoss:
    """The loss as the engine calls it, checked on some logits `z [B, ...]` and targets `y [B, ...]`.

    accuracy: whether the largest logit is a class.  Raises TypeError for anything but a function, ValueError for a
    result of another shape, without a gradient, not finite, or with a parameter of its own, and for a loss that draws
    random numbers, gives other values in a second call, or depends on the other samples.
    """
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"loss={brief(function)}; {LOSS}, such as torch.nn.MSELoss() or F.binary_cross_entropy_with_logits"
        )
    z, y = z.detach().requires_grad_(), y.to(z.dtype) if y.is_floating_point() else y
    try:
        with torch.enable_grad():
            value = function(z.clone(), y.clone())  # copies, because it may write over them
            unsteady = _unsteady(function, z, y, value)
            loss = CustomLoss(function, getattr(value, "ndim", 1) == 0, y.dim() - 1, accuracy, z.dim() - 1)
            if not unsteady:
                loss(z, y)  # a mean is computed by torch.vmap
    except Exception as e:  # whatever a function of the user's raises
        raise ValueError(
            f"loss={name(function)} does not take logits {tuple(z.shape)} and targets {tuple(y.shape)} of {y.dtype}, "
            f"or gives a mean that torch.vmap cannot compute sample by sample ({first_line(e)}); {LOSS}"
        ) from e
    if unsteady:
        raise unsteady
    what = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    usual = isinstance(value, Tensor) and value.requires_grad and not value.is_complex()
    if not usual or tuple(value.shape) not in ((), (len(z),)) or not torch.isfinite(value).all():
        raise ValueError(
            f"loss={name(function)} gives {what} for {len(z)} samples; {LOSS}, of finite real numbers with a gradient "
            "by the logits (no item(), detach() or NumPy), and .flatten(1).mean(1) of several values per sample"
        )
    nodes = [value.grad_fn]
    for node in nodes:
        nodes += [before for before, _ in node.next_functions if before is not None and before not in nodes]
    leaves = [getattr(node, "variable", z) for node in nodes]
    if trained := [tuple(leaf.shape) for leaf in leaves if leaf is not z]:
        raise ValueError(
            f"loss={name(function)} has a parameter of its own, of shape {trained[0]}, which no client trains; put it "
            "into the model, which may return what the loss needs, or freeze it by requires_grad_(False)"
        )
    wrong = _mixed(loss, z.detach(), y)
    # An untrained model gives nearly equal logits for all samples, and a weighted mean of equal losses equals their
    # mean.  Noise whose size grows from sample to sample makes the losses differ, also with many targets per sample.
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z)
    noise *= torch.linspace(0, 4, len(z)).to(z).view(-1, *[1] * (z.dim() - 1))
    with contextlib.suppress(Exception):  # a loss of probabilities, for example, takes no noise
        wrong = wrong or _mixed(loss, z.detach() + noise, y)
    if wrong:
        raise _unsteady(function, z, y, value) or ValueError(
            f"loss={name(function)} gives other values for samples together than one by one, and a sample's loss must "
            "not depend on the others: a mean with weight= or ignore_index= divides by the weights of the whole batch, "
            "so use reduction='none' and .flatten(1).mean(1), one loss per sample; no sum over samples, and no "
            f"broadcasting of [B, 1] against [B] (logits are {tuple(z.shape)}, targets {tuple(y.shape)})"
        )
    return loss


def _unsteady(function: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor, value: Any) -> ValueError | None:
    """An error that says why a loss is no function of logits and targets alone; None if no reason is seen.

    value: what an earlier call has returned.
    """
    drawn, values = True, []
    for _ in range(TRIES):  # another thread may draw during one of them
        with rng.seeded(0, z.device):
            before = rng.global_states(z.device)
            values.append(function(z.clone(), y.clone()))
            function(z.detach().clone(), y.clone())  # as in an evaluation
            drawn &= rng.global_states(z.device) != before
    if drawn:
        return ValueError(
            f"loss={name(function)} draws random numbers, so that equal runs would differ; draw them in the model's "
            "forward pass, where they are seeded for each client and step"
        )
    if not isinstance(value, Tensor) or all(torch.allclose(value, other, equal_nan=True) for other in values):
        return None
    return ValueError(
        f"loss={name(function)} gives other values when it is called again with the same logits and targets: it keeps "
        "memory, such as a counter, a running mean or a generator of its own, which is neither saved in checkpoints "
        "nor the same in equal runs; compute the loss from logits and targets alone"
    )


def _mixed(loss: CustomLoss, z: Tensor, y: Tensor) -> bool:
    """Whether a sample's loss depends on the other samples."""
    function = lambda z, y: loss.function(z.clone(), y.clone())  # noqa: E731
    value, each = function(z, y), loss(z, y)
    alone = torch.stack([function(z[k : k + 1], y[k : k + 1]).reshape(()) for k in range(len(z))])
    pairs = ((value, alone.mean() if loss.mean else alone), (each, alone))
    together = all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in pairs)
    return bool(torch.isfinite(value).all()) and not together


def checked_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """The metrics by name; TypeError for anything but a mapping to functions, ValueError for a name that is taken.

    Their values are checked at the first evaluation, before round 0, because some are undefined on few samples.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(isinstance(k, str) and callable(f) for k, f in metrics.items()):
        raise TypeError(f"metrics={brief(metrics)}; use a mapping name -> function, and {METRIC}")
    for key in metrics:
        if re.fullmatch("loss(_mean|_weighted|_spread|_worst_tenth)?|(accuracy|own_accuracy|own_loss).*", key):
            raise ValueError(f"metrics={key!r} is a metric of the federation's already; use another name")
    return dict(metrics)


def measured(metrics: Mapping[str, Metric], z: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Each metric of logits `z [T, C]` and targets `y [T, ...]`, a scalar by name.

    Raises TypeError where a metric returns no number, ValueError where it returns numbers of another shape.
    """
    y, values = y.to(z.dtype) if y.is_floating_point() else y, {}
    for key, f in metrics.items():
        with rng.seeded(rng.word(rng.EVALUATION, *key.encode()), z.device):  # the same draws in every evaluation
            value = f(z.clone(), y.clone())  # copies, because it may write over them
        try:
            number = torch.as_tensor(value).detach().to(z.device, torch.float64)
        except (TypeError, ValueError, RuntimeError) as e:
            raise TypeError(f"metric {key!r} gave {type(value).__name__}, no number; {METRIC}") from e
        if tuple(number.shape) not in ((), (len(z),)):
            raise ValueError(f"metric {key!r} gave shape {tuple(number.shape)} for {len(z)} samples; {METRIC}")
        values[key] = number.mean()
    return values


def name(function: Any) -> str:
    """The name of a function in error texts."""
    return getattr(function, "__qualname__", type(function).__name__)
