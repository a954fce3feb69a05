"""What a local step differentiates."""

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
    """A loss of the user's in place of the cross-entropy, called as `F.cross_entropy` is.

    function: `(logits [B, ...], targets [B, ...]) -> [B]`, or their mean, where `mean` says so; it is then asked for
    each sample by `torch.vmap`.  axes: those of one sample's target.  accuracy: whether the largest logit is a class.
    outputs: the axes of what the module gives for one sample, 1 of logits [C].
    Targets that are not whole numbers come in the logits' type.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    mean: bool
    axes: int
    accuracy: bool
    outputs: int = 1

    def __call__(self, logits: Tensor, targets: Tensor, reduction: str = "none") -> Tensor:
        targets = targets.to(logits.dtype) if targets.is_floating_point() else targets
        if self.mean:
            one = lambda z, y: self.function(z.unsqueeze(0), y.unsqueeze(0))  # noqa: E731
            each = torch.vmap(one)(logits, targets)
        else:
            each = self.function(logits, targets)
        return each.sum() if reduction == "sum" else each


def of_any(axes: int) -> Callable[..., Tensor]:
    """A loss of what a module gives for a sample, with so many axes, whatever it means; labels count for logits."""
    if axes == 1:
        return F.cross_entropy
    return CustomLoss(lambda z, y: z.reshape(len(z), -1).square().sum(1), False, 0, False, axes)


@dataclass(frozen=True, eq=False)
class Loss:
    """What a local step differentiates, where it is not the mean cross-entropy alone.

    per_sample: replaces the cross-entropy, `(logits [..., B, (heads,) C], y [..., B], **rows, **samples) -> [..., B]`.
    penalty: is added, `(z [..., B, f], z_1, z_2, ..., **rows, **samples) -> [..., B]`, from the representation of a
    `models.Projected`; `references`, `[m, d]` each: the parameters whose representations of the same batch are z_1,
    z_2, ..., which are not differentiated.  rows: name -> `[m, ...]`, what the functions need of each client; samples:
    name -> `[m, B, ...]`, of each sample of the batch.  rate: one rate per client `[m]` for all `models.Scaler`.

    The functions get many clients at once, with a leading m, or one client without it, so they count axes from the
    end.  Whoever takes some of the clients takes the loss of these clients by `cut`.
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
        """Whether it is the cross-entropy alone."""
        return self.per_sample is None and self.penalty is None and self.rate is None

    def cut(self, part: slice | Tensor, among: slice | None = None) -> Loss:
        """The same for some clients, a slice or a tensor of row numbers, and for some samples of their batches."""
        if self.plain:
            return self
        cut = self._changed(lambda v: v[part])
        return cut if among is None else replace(cut, samples={k: v[:, among] for k, v in cut.samples.items()})

    def client(self, i: int, count: int) -> Loss:
        """That of client i alone, without the leading m, for the `count` real samples of its batch."""
        if self.plain:
            return self
        one = self._changed(lambda v: v[i])
        return replace(one, samples={k: v[:count] for k, v in one.samples.items()})

    def to(self, device: str | torch.device) -> Loss:
        """The same with all tensors on a device."""
        return self._changed(lambda v: v.to(device))

    def gathered(self, gather: Callable[[Tensor], Tensor]) -> Loss:
        """The same for the clients of all processes; gather: of `[m, ...]` all processes' rows."""
        return self if self.plain else self._changed(gather)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Loss:
        named: dict[str, Any] = {k: {n: change(v) for n, v in getattr(self, k).items()} for k in ("rows", "samples")}
        rate = None if self.rate is None else change(self.rate)
        return replace(self, references=tuple(change(v) for v in self.references), rate=rate, **named)

    def of_samples(self, logits: Tensor, y: Tensor, criterion: Callable[..., Tensor]) -> Tensor:
        """Losses `[..., B]` of logits `[..., B, C]`, or of `[..., B, heads, C]`, then summed over the heads.

        A criterion of the user's may take more axes than C, or none.

        Raises ValueError where the method replaces the cross-entropy and the criterion is another.
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
        """The penalty `[..., B]` of representations `z [..., B, f]` beside those of the references."""
        return self.penalty(z, *others, **self.rows, **self.samples)


PLAIN = Loss()
