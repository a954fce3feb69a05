"""A probe of bias: with full batches and all clients there is no noise, so the remaining gap to the minimum is bias."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedcore import simulate
from fedcore.algorithms import FedAvg, Round
from fedcore.objective.federation import Federation


def gap(fed: Federation, *, decay: float = 0.02, rounds: int = 400) -> Callable[[Round, Tensor], dict[str, Tensor]]:
    """A probe `gap`: F(x) + decay/2 ||x||^2 at the server's model minus its minimum.

    The minimum is approximated by `rounds` steps of gradient descent with momentum 0.9 and learning rate 1; use a
    strongly convex problem, and `weight_decay=decay` in the probed run.
    """

    def objective(x: Tensor) -> float:
        return float(fed.objective(x)) + decay / 2 * float(x @ x)

    descent = {"rounds": rounds, "eval_every": rounds, "lr": 1.0, "local_steps": 1, "batch_size": None}
    best = simulate(FedAvg(server_momentum=0.9), fed, weight_decay=decay, **descent)
    lowest = objective(best.params)

    def probe(r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"gap": torch.tensor(objective(r.x) - lowest)}

    return probe
