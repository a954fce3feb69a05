"""Methods that treat the last layers of the network apart: FedPer, FedRep, FedBABU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..models import Layout
from ..support.checks import CountFromZero, Fraction, Within
from .method import Cost, Gradient, Method, Round, share
from .personal import FedALA, merged


@dataclass(frozen=True)
class FedPer(Method):
    """Personal last layers, trained together with the shared ones (Arivazhagan et al. 2019).

    y_i starts from x with the client's own last layers (`head_i [n, d]`, 0 in the other entries once a client has
    taken part).  All of y_i takes the local steps; then the shared layers are averaged, and the personal ones stay with
    the client.  In `x` the personal entries are the mean over the cohort, for evaluation only: no client receives them.

    layers: how many of the last weight layers are personal, counted as FedALA counts them; default 1, the classifier.
    0 is FedAvg, bit for bit; all layers are LocalOnly.  Buffers that training updates are averaged in all layers.
    Raises ValueError for more layers than the model has, and for last layers that have a tensor of a layer before them.

    Use it where clients share features and differ in labels. Not where a client has too few samples to train its
    own last layer.
    """

    layers: CountFromZero = 1
    client_state = ("head_i",)
    last = FedALA.last

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"head_i": x}

    def prepare(self, r: Round) -> Round:
        return r.extended(server={"top": self.top(r.layout, r.x)})

    def top(self, layout: Layout | None, x: Tensor) -> Tensor:
        """True where the flat vector `x [d]` is personal."""
        top = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        top[self.last(layout, len(x))] = True
        return top

    def broadcast(self, r: Round) -> Tensor:
        return torch.where(r.top, r.head_i, r.x)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        x = r.x + r.server_lr * r.mean(y - r.x)
        return {"x": torch.where(r.top, r.mean(y), x), "head_i": torch.where(r.top, y, 0)}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return merged(self.top(layout, state["x"]), state["head_i"], state["x"])

    def cost(self, layout: Layout | None = None) -> Cost:
        sent = 1 - share(layout, self.top(layout, torch.zeros(layout.d if layout else 1)))
        return Cost.of(layout, down=sent, up=sent)


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer that trains the last layers first and then the shared layers (Collins et al. 2021, Algorithm 1).

    Of a client's K_i local steps the first ceil(share K_i) change only its last layers, the others only the shared
    layers.  The paper takes many steps on the last layers and one on the shared ones; its experiments take ten epochs
    and one, which is local_epochs=11 with share=10/11.  Leave the run's momentum at 0, because momentum would continue
    to move the last layers after their steps.

    layers: as FedPer, at least 1.  share: of the local steps, default 0.5.
    Raises ValueError as FedPer, and for share outside [0, 1].

    Use it as FedPer where the last layer shall be nearly solved before the shared layers move. Not together with
    momentum.
    """

    layers: Annotated[int, Within(1, hint="FedAvg has no personal layers")] = 1
    share: Fraction = 0.5

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        head_first = r.step < self.share * r.K - 1e-3  # so that rounding of a whole share * K adds no step
        return torch.where(r.top == head_first, G(y), 0)


@dataclass(frozen=True)
class FedBABU(FedPer):
    """FedAvg on the body alone; the last layers keep their initial values in all clients (Oh et al. 2022).

    v = g in the entries of the body, 0 in those of the last layers, which are neither trained nor sent.  The paper then
    fine-tunes the whole network on each client's data; `fc.LocalOnly` for a few steps on a federation with
    `start=history.params` does that.  Without fine-tuning the clients use the server's model.

    layers: as FedPer.  0 is FedAvg.  Raises ValueError as FedPer, and unless the model has more layers than these.

    Use it where clients fine-tune the model afterwards. Not where the common model is used as it is: its last layer
    is never trained.
    """

    client_state = ()

    def prepare(self, r: Round) -> Round:
        layers = len(r.layout.layers()) if r.layout else 1
        if self.layers >= layers:
            raise ValueError(
                f"layers={self.layers} but the model has {layers} with weights, so that FedBABU would train nothing; "
                "use a deeper model, or layers=0, which is FedAvg"
            )
        return super().prepare(r)

    def broadcast(self, r: Round) -> Tensor:
        return r.x

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return torch.where(r.top, 0, G(y))

    aggregate = Method.aggregate
    personal = Method.personal
    client_start = Method.client_start
