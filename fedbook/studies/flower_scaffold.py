"""SCAFFOLD as Flower's baseline niid_bench computes it, to compare with the number that this baseline published.

`documents.known` names this file as a user names a method of their own (`user_files`); no other result depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import fedcore as fc
from fedcore.algorithms.method import Gradient, Round
from fedcore.support.checks import BelowOne


@dataclass(frozen=True)
class FlowerSCAFFOLD(fc.Method):
    """SCAFFOLD, option II (`fc.SCAFFOLD`), with the four departures of Flower's program.

    b <- beta b + g, y <- y - lr (b + c - c_i): the correction is added after the momentum.  c and all c_i start at
    the initial parameters instead of zero, which cancels where all clients take part.  c_i+ = c_i - c + (x - y_i) /
    (K_i lr) as in the rule, although with momentum y_i moves up to 1 / (1 - beta) times as far.  c moves by |S|/n
    times the mean of c_i+ - c_i with the run's weights, Flower's by samples; the rule has equal weights.

    beta: the momentum; leave the run's own `momentum` at 0.  Raises ValueError unless 0 <= beta < 1.
    """

    beta: BelowOne = 0.9
    client_state = ("c_i",)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "c": x}

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"c_i": x}

    def prepare(self, r: Round) -> Round:
        return r.extended(memory={"b": torch.zeros_like(r.c_i)})

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        r.b.mul_(self.beta).add_(G(y))
        return r.b + r.c - r.c_i

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        c_i = r.c_i - r.c + (r.x - y) / (r.K * r.lr)
        c = r.c + r.m / r.n * r.mean(c_i - r.c_i)
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "c": c, "c_i": c_i}
