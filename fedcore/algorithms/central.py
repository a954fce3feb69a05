"""The centralised baseline of federated learning: all data on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..models import Layout
from .method import Cost, Method


@dataclass(frozen=True)
class Central(Method):
    """Plain mini-batch SGD on the union of all clients' data (Robbins and Monro 1951); no federated learning.

    The federation becomes one with a single client, client 0, that holds all samples.  A round is `local_epochs` passes
    over the union or `local_steps` mini-batches; for the same number of epochs it has about n times as many steps as a
    client's local work has.  `cohort`, `weighting` and the clients' own test data (`own_test`) are ignored.  Every
    sample has the same weight, as with weighting="samples"; for quadratics the objective is F, the mean over all
    clients.  normalise="client" uses the statistics of the union.

    Use it as the reference of what all data in one place would give. Not as a method: the data leave the clients.
    """

    full_participation = True

    def on(self, fed: Any) -> Any:
        return fed.pooled()

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=0, up=0, note="all data go to one machine, once")
