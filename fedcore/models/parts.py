"""Parts of networks: residual blocks, heads, a projection, and batch norms with fixed statistics."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """`relu(body(x) + shortcut(x))`; the identity where no shortcut is given."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Scaler(nn.Module):
    """HeteroFL's scaler, inverted dropout for whole sub-models (FedDSE study, section 2.2).

    In training it returns x / rate, so that a layer of which a share `rate` is kept has outputs on the scale of the
    full layer; in evaluation it returns x.
    """

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or (isinstance(self.rate, float | int) and self.rate == 1):
            return x
        return x / self.rate

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class PreAct(nn.Module):
    """HeteroFL's pre-activation block: h = relu(norm(scaler(x))); conv(relu(norm(scaler(conv(h))))) + shortcut.

    The shortcut is x itself, or a 1x1 convolution of h where width or stride changes; convolutions have no bias.
    """

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(Scaler(), nn.BatchNorm2d(a), nn.ReLU())
        first, second = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.body = nn.Sequential(first, Scaler(), nn.BatchNorm2d(b), nn.ReLU(), second)
        self.shortcut = None if a == b and stride == 1 else nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        return self.body(h) + (x if self.shortcut is None else self.shortcut(h))


class Heads(nn.Module):
    """A classifier after every stage (DepthFL).  Training: logits `[B, heads, classes]`; evaluation: their mean."""

    def __init__(self, stages: Sequence[nn.Module], heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        logits = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            logits.append(head(x))
        out = torch.stack(logits, 1)
        return out if self.training else out.mean(1)


def stages(module: nn.Module) -> int:
    """The number of stages with heads of a network; 1 for a network without heads."""
    return len(module.heads) if isinstance(module, Heads) else 1


class Projected(nn.Module):
    """`classifier(encoder(x))`, where the encoder ends in the representation that MOON contrasts."""

    def __init__(self, encoder: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, classifier

    def forward(self, x: Tensor) -> Tensor:
        self.z = self.encoder(x)
        return self.classifier(self.z)

    def __getstate__(self) -> dict[str, Any]:
        """The state for a copy, without the representation of the last batch, whose graph cannot be copied."""
        return {**vars(self), "z": None}


STATISTICS = ("fixed_mean", "fixed_var")


class FixableBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm that normalises by `fixed_mean [C]` and `fixed_var [C]`, in training as in evaluation, once they are
    set.

    A negative `fixed_var`, as at first, is not set: the channel then has the statistics of a batch norm.  Both are
    parameters that are not trained, and are thereby part of the flat vector.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.unset()

    def unset(self) -> None:
        """Set no statistics."""
        self.fixed_mean = nn.Parameter(torch.zeros(self.num_features), requires_grad=False)
        self.fixed_var = nn.Parameter(-torch.ones(self.num_features), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.fixed_mean.detach(), self.fixed_var.detach().clamp_min(0)
        fixed = F.batch_norm(x, mean, var, self.weight, self.bias, training=False, eps=self.eps)
        is_set = (self.fixed_var >= 0).view(-1, *[1] * (x.dim() - 2))
        return torch.where(is_set, fixed, super().forward(x))


class FixableBatchNorm1d(FixableBatchNorm, nn.BatchNorm1d):
    """`FixableBatchNorm` of features `[B, C]` or sequences `[B, C, L]`."""


class FixableBatchNorm2d(FixableBatchNorm, nn.BatchNorm2d):
    """`FixableBatchNorm` of pictures `[B, C, H, W]`."""


FIXABLE = {nn.BatchNorm1d: FixableBatchNorm1d, nn.BatchNorm2d: FixableBatchNorm2d}


def with_fixable_norms(module: nn.Module) -> nn.Module:
    """A copy of the network in which every `nn.BatchNorm1d` and `nn.BatchNorm2d` is a `FixableBatchNorm`."""
    module = copy.deepcopy(module)
    for norm in module.modules():
        if type(norm) in FIXABLE:
            norm.__class__ = FIXABLE[type(norm)]
            norm.unset()
    return module
