"""Parts of networks: residual blocks, heads, and a projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
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
