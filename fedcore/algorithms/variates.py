"""Methods that correct client drift with control variates: SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import checks
from .method import Gradient, Method, Round


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Stochastic controlled averaging (Karimireddy et al. 2020).

    v = g - c_i + c.  After K_i steps, option "I": c_i+ = grad F_i(x), one full local pass at the server's model;
    option "II": c_i+ = c_i - c + (x - y_i) / (K_i lr), the mean gradient along the local path.
    x <- x + server_lr mean_S(y_i - x);  c <- c + (1/n) sum_S (c_i+ - c_i), so that c = mean_i c_i in every round.

    The page on SCAFFOLD among the sources prints c <- c + (1/|S|) sum_S instead: it lacks the factor |S|/n.
    Raises ValueError for another option.
    """

    option: str = "II"
    client_state = ("c_i",)
    uplink, downlink = 2, 2

    def __post_init__(self) -> None:
        checks.choice("option", self.option, ("I", "II"))

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "c": torch.zeros_like(x)}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) - r.c_i + r.c

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        if self.option == "I":
            c_i = r.full_gradient(r.x.expand_as(y))
        else:
            c_i = r.c_i - r.c + (r.x - y) / (r.K * r.lr)
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "c": r.c + (c_i - r.c_i).sum(0) / r.n, "c_i": c_i}
