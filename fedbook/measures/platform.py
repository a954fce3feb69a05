"""Two methods with the errors of a public platform, to compare with the correct ones; not methods of this package.

The platform is FedML, single-process simulation, from 21 September 2022 on (commit da4b88f7d).  Its deviations from the
papers are reproduced; the rest of each round is that of the correct class.
"""

from __future__ import annotations

from torch import Tensor

from fedcore.algorithms.method import Method, Round
from fedcore.algorithms.variates import SCAFFOLD, FedDyn


class PlatformSCAFFOLD(SCAFFOLD):
    """SCAFFOLD whose server uses the last client's update only, and whose clients do not store their variates.

    `agg_operator.py`: after summing over the cohort, the sums of model and variate updates are overwritten by those of
    the last client.  `scaffold/client.py`: the new c_i is bound to a name and never stored, so c_i = 0 for ever.
    """

    across = "rows"  # the last client's row may be on another process

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        last = r.clients.argmax()[None]  # cohorts are in ascending order, rows are sorted by their steps
        delta = (y[last] - r.x)[0]
        c_plus = -r.c - delta / (r.K[last][0] * r.lr)
        return {"x": r.x + r.server_lr * delta, "c": r.c + c_plus / r.n, "c_i": r.c_i}


class PlatformFedDyn(FedDyn):
    """FedDyn whose clients run plain SGD, and whose server takes the last client's model for its own old one.

    `feddyn_trainer.py`: both regularisers are made of `param.data`, so they have no gradient.  `sp/feddyn`: all clients
    train in one shared model, and the server reads its old model from there after they have trained; the division of h
    by alpha is commented out.  State `h [d]` is the paper's h.
    """

    client_state = ()
    across = "rows"  # the last client's row may be on another process
    direction = Method.direction

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        last = y[r.clients.argmax()]
        h = r.h - self.alpha * r.sum(y - last) / r.n
        return {"x": r.mean(y) - h, "h": h}
