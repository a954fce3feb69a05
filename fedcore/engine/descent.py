"""Local SGD: the gradient plus weight decay, clipped, and then the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .shapes import Flat, Parameters


def descend(
    gradient: Callable[[Parameters, int], Parameters],
    Y: Parameters,
    working: Sequence[int],
    lr: float,
    decay: float = 0.0,
    clip: float | None = None,
    trained: Flat | None = None,
) -> None:
    """Y <- Y - lr * clipped(gradient(Y, k) + decay * Y) in place, for k = 0, 1, ...

    working: how many clients take step k; they are the first rows of Y.  clip: None is without clipping.
    """
    for k, a in enumerate(working):
        y = Y[:a]
        v = decayed(gradient(y, k), y, decay, trained)
        y.sub_(v if clip is None else clipped(v, clip), alpha=lr)
        del v  # frees its memory before the next gradient is computed


def decayed(G: Parameters, Y: Parameters, decay: float, trained: Flat | None = None) -> Parameters:
    """G + decay * Y; trained: a mask `[d]` of the entries that weight decay applies to, None for all."""
    if not decay:
        return G
    return G + decay * (Y if trained is None else torch.where(trained.to(Y.device), Y, 0))


def clipped(V: Parameters, clip: float) -> Parameters:
    """Each client's row, scaled down to the norm `clip` if its norm is larger."""
    return V * (clip / V.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1.0)
