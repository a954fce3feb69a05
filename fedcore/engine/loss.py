"""The loss that a local step differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .shapes import Parameters, PerClient


@dataclass(frozen=True, eq=False)
class CustomLoss:
    """The user's loss instead of the cross-entropy, called as `F.cross_entropy` is.

    function: `(logits [B, ...], targets [B, ...]) -> [B]`, or with `mean` the mean of these losses; it is then mapped
    over the samples by `torch.vmap`.  axes: how many axes a sample's target has.  accuracy: whether the largest logit
    is the predicted class.  outputs: how many axes the module's output has for one sample, 1 for logits [C].
    Floating-point targets are converted to the type of the logits.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    mean: bool
    axes: int
    accuracy: bool
    outputs: int = 1

    def __call__(self, logits: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
        targets = targets.to(logits.dtype) if targets.is_floating_point() else targets
        logits, targets = logits.clone(), targets.clone()  # the function may write over both
        if self.mean:
            one = lambda z, y: self.function(z.unsqueeze(0), y.unsqueeze(0))  # noqa: E731
            each = torch.vmap(one)(logits, targets)
        else:
            each = self.function(logits, targets)
        return each.sum() if reduction == "sum" else each


def of_any(axes: int) -> Callable[..., Tensor]:
    """A loss for trying out a module whose output has so many axes per sample: cross-entropy for 1, else squares."""
    if axes == 1:
        return F.cross_entropy
    return CustomLoss(lambda z, y: z.reshape(len(z), -1).square().sum(1), False, 0, False, axes)


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss that a local step differentiates if it is not only the mean cross-entropy.

    per_sample: replaces the cross-entropy, `(logits [..., B, (heads,) C], y [..., B], **rows, **samples) -> [..., B]`.
    penalty: is added to it, `(z [..., B, f], z_1, z_2, ..., **rows, **samples) -> [..., B]`, where z is the
    representation of a `models.Projected`, and z_1, z_2, ... are the representations of the same batch under the
    parameters `references`, `[m, d]` each, which are not differentiated.  rows: inputs of the functions per client, by
    name, `[m, ...]`; samples: inputs per sample of the batch, `[m, B, ...]`.  rate: one rate per client `[m]` for all
    `models.Scaler`.

    The functions get either many clients, with a leading axis m, or one client without it.  Therefore they must count
    axes from the end.  A computation for some of the clients uses the loss `cut` to these clients.
    """

    per_sample: Callable[..., Tensor] | None = None
    penalty: Callable[..., Tensor] | None = None
    references: tuple[Parameters, ...] = ()
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    samples: Mapping[str, Tensor] = field(default_factory=dict)
    rate: PerClient | Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Tensor | None):
            object.__setattr__(self, "rate", torch.as_tensor(self.rate, dtype=torch.float64))

    @property
    def plain(self) -> bool:
        """Whether the loss is the cross-entropy alone."""
        return self.per_sample is None and self.penalty is None and self.rate is None

    def cut(self, part: slice | Tensor, among: slice | None = None) -> Loss:
        """The loss of some clients (a slice or a tensor of row numbers) and of some samples of their batches."""
        if self.plain:
            return self
        cut = self._changed(lambda v: v[part])
        return cut if among is None else replace(cut, samples={k: v[:, among] for k, v in cut.samples.items()})

    def client(self, i: int, count: int) -> Loss:
        """The loss of client i alone, without the leading axis m, for the `count` real samples of its batch."""
        if self.plain:
            return self
        one = self._changed(lambda v: v[i])
        return replace(one, samples={k: v[:count] for k, v in one.samples.items()})

    def to(self, device: str | torch.device) -> Loss:
        """The loss with all tensors on a device."""
        return self._changed(lambda v: v.to(device))

    def gathered(self, gather: Callable[[Tensor], Tensor]) -> Loss:
        """The loss of the clients of all processes; gather: returns the rows of all processes for `[m, ...]`."""
        return self if self.plain else self._changed(gather)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Loss:
        named: dict[str, Any] = {k: {n: change(v) for n, v in getattr(self, k).items()} for k in ("rows", "samples")}
        rate = None if self.rate is None else change(self.rate)
        return replace(self, references=tuple(change(v) for v in self.references), rate=rate, **named)

    def of_samples(self, logits: Tensor, y: Tensor, criterion: Callable[..., Tensor]) -> Tensor:
        """Losses `[..., B]` of logits `[..., B, C]`, or of `[..., B, heads, C]`, then summed over the heads.

        For the user's criterion, outputs may have more axes than C, or none.

        Raises ValueError if the method replaces the cross-entropy but the criterion is the user's.
        """
        custom = isinstance(criterion, CustomLoss)
        if self.per_sample is not None:
            if custom:
                raise ValueError(
                    "this method replaces the cross-entropy of class labels (labels=..., distillation), but the "
                    "federation has loss=...; use loss=None, or another method or setting"
                )
            return self.per_sample(logits, y, **self.rows, **self.samples)
        samples, outputs = (y.dim() - criterion.axes, criterion.outputs) if custom else (y.dim(), 1)
        lead, target = y.shape[:samples], y.shape[samples:]
        heads = logits.shape[samples : logits.dim() - outputs]
        labels = y.view(*lead, *[1] * len(heads), *target).expand(*lead, *heads, *target)
        each = criterion(
            logits.flatten(0, samples + len(heads) - 1), labels.flatten(0, samples + len(heads) - 1), reduction="none"
        )
        return each.view(*lead, *heads).sum(-1) if heads else each.view(lead)

    def of_representations(self, z: Tensor, others: Sequence[Tensor]) -> Tensor:
        """The penalty `[..., B]` of representations `z [..., B, f]` and those of the references."""
        return self.penalty(z, *others, **self.rows, **self.samples)


PLAIN = Loss()
