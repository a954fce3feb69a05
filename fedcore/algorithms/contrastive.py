"""Methods that change the local loss through the model's representation: MOON."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..engine import Loss
from ..models import Layout
from ..support.checks import NonNegative, Positive
from .method import Cost, Gradient, Method, Round


@dataclass(frozen=True)
class MOON(Method):
    """Model-contrastive learning (Li, He and Song 2021): local SGD on cross-entropy + mu l_con.

    l_con = -log(e^(cos(z, z_glob)/tau) / (e^(cos(z, z_glob)/tau) + e^(cos(z, z_prev)/tau))), where z, z_glob, z_prev
    are the representations under the current, the server's and the client's previous local model; the last two are
    constants, without dropout.  `prev [n, d]` starts at the initial model, as in the authors' code: in round 0 the two
    references agree and l_con is constant, and a client that takes part for the first time later is contrasted with the
    initial model.  Needs a model with a representation layer (`fc.models.projected("cnn")`).  mu = 0 is FedAvg.

    mu: 0.001 to 10 in the paper (5 for its CIFAR-10 example); default 1.  tau: 0.5.  Raises ValueError for mu < 0,
    tau <= 0, and for models without a representation layer.

    Use it with networks that have a representation layer, where labels are skewed. Not where memory or time is
    short: clients keep a model and run three networks in each step.
    """

    mu: NonNegative = 1.0
    tau: Positive = 0.5
    client_state = ("prev",)

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"prev": x}

    def contrast(self, z: Tensor, z_glob: Tensor, z_prev: Tensor) -> Tensor:
        """mu l_con per sample, `[..., f]` -> `[...]`."""
        near, far = (F.cosine_similarity(z, other, dim=-1) / self.tau for other in (z_glob, z_prev))
        return self.mu * F.softplus(far - near)

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y, loss=Loss(penalty=self.contrast, references=(r.x.expand_as(y), r.prev)))

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "prev": y}

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, forwards=2)
