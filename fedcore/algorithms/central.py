"""What federated learning is measured against: all data on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..models import Layout
from .method import Cost, Method


@dataclass(frozen=True)
class Central(Method):
    """Plain mini-batch SGD on the union of all clients' data (Robbins and Monro 1951); no federated learning.

    The federation becomes one of a single client with all samples: client 0 of the history.  A round is its local
    work, `local_epochs` passes over the union or `local_steps` mini-batches, so a round of as many epochs is n times
    the steps of a client's.  There is no cohort to draw and nothing to weigh: `cohort` and `weighting` are ignored.
    Every sample counts once, the objective of weighting="samples"; of quadratics it is the mean F of all clients'.
    normalise="client" is by the statistics of the union.
    """

    full_participation = True

    def on(self, fed: Any) -> Any:
        return fed.pooled()

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=0, up=0, note="all data go to one machine, once")
