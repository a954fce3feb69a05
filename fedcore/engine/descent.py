"""Local SGD step by step: the gradient, + weight decay, clipped, then the step."""

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

    working: how many clients take step k; they are the first rows.  clip: None leaves every norm.
    """
    for k, a in enumerate(working):
        y = Y[:a]
        v = decayed(gradient(y, k), y, decay, trained)
        y.sub_(v if clip is None else clipped(v, clip), alpha=lr)
        del v  # or it would take its room while the next gradient is computed


def decayed(G: Parameters, Y: Parameters, decay: float, trained: Flat | None = None) -> Parameters:
    """G + decay * Y; trained: the entries that change at all (bool), None for all: the others do not shrink either."""
    if not decay:
        return G
    return G + decay * (Y if trained is None else torch.where(trained.to(Y.device), Y, 0))


def clipped(V: Parameters, clip: float) -> Parameters:
    """Each client's row, shortened to the norm `clip` where it is longer."""
    return V * (clip / V.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1.0)
