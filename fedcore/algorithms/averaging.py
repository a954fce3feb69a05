"""Methods that average the clients' models: FedAvg, and FedSGD and FedSMB with one local step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..support.checks import BelowOne
from .method import Method, Round, Work


@dataclass(frozen=True)
class FedAvg(Method):
    """Local SGD, then the weighted mean of the cohort's models (McMahan et al. 2017; FedUp study eqs. 2-3).

    y <- y - lr g;  v <- server_momentum v + mean_S(y_i - x);  x <- x + server_lr v.

    server_momentum: 0 is FedAvg; above 0 it is FedAvgM (Hsu et al. 2019), and `v [d]` becomes state.
    Raises ValueError unless 0 <= server_momentum < 1.

    Use it first, everywhere: other methods are measured from it, it keeps no state, and it costs one model each way.
    Not alone where many local steps meet different curvatures and a low training loss counts, because it then
    converges to another point than the optimum.
    """

    server_momentum: BelowOne = 0.0

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "v": torch.zeros_like(x)} if self.server_momentum else {"x": x}

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        delta = r.mean(y - r.x)
        if not self.server_momentum:
            return {"x": r.x + r.server_lr * delta}
        v = self.server_momentum * r.v + delta
        return {"x": r.x + r.server_lr * v, "v": v}


@dataclass(frozen=True)
class FedSGD(Method):
    """One gradient step on the full local batch: x <- x - lr mean_S grad F_i(x)  (McMahan et al. 2017).

    The method fixes the local work: `local_steps`, `local_epochs` and `batch_size` are not used.

    Use it as a reference without client drift, or where communication is free. Not over a slow link: it needs a
    round for every gradient step.
    """

    def local_work(self, work: Work) -> Work:
        return replace(work, epochs=1, steps=1, batch_size=None)


@dataclass(frozen=True)
class FedSMB(Method):
    """One mini-batch step per round (Nasirigerdeh et al. 2020, federated single mini-batch).

    The batch of round t is the t-th batch of the client's shuffled data; an epoch continues over rounds, and each epoch
    shuffles the data anew.  `local_steps` and `local_epochs` are not used.

    Use it as a reference with the noise of mini-batches and no client drift. Not over a slow link: it needs a round
    for every mini-batch.
    """

    def local_work(self, work: Work) -> Work:
        return replace(work, epochs=1, steps=1, walk=True)
