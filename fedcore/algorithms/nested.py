"""Methods whose sub-models are nested and teach each other: widths in widths (FjORD), stages on stages (DepthFL)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import checks, rng
from ..engine import PLAIN, Loss
from ..submodels import Depth, Width, combine, stages, with_heads
from .method import Gradient, Part, Round
from .submodels import Submodel, own_labels, per_head


@dataclass(frozen=True)
class FjORD(Submodel):
    """Ordered dropout: every mini-batch draws a width p up to the client's own p_max (Horvath et al. 2021).

    p is uniform over the capacities <= p_max, one p for all layers: the first ceil(p width) units; no scaler.  With
    self-distillation each step adds two gradients: cross-entropy at p_max, and cross-entropy of the outputs at p
    against softmax(outputs at p_max), a constant.  Each entry becomes the mean over the clients whose p_max covers it;
    their public code weighs them by samples: `weighting="samples"`.  One capacity is HeteroFL without scaler.

    distil: self-distillation; default True.  capacities, labels, mode: as HeteroFL; training is always compact.
    Raises ValueError as HeteroFL.
    """

    distil: bool = True
    scaled = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _compact(self)

    def prepare(self, r: Round) -> Round:
        r = super().prepare(r)
        cap = self.ratios(r.seed, r.n, r.t, r.ids)
        levels = sorted(ratio for ratio, _ in self.capacities)
        nested: dict[float, Tensor | None] = {c: None for c in levels if c == 1}
        if levels[0] < 1:
            neurons = r.fed.neurons()
            nested |= {c: neurons.places(neurons.prefix(c, r.x.device))[0] for c in levels if c < 1}
        return r.extended({"levels": np.array(levels), "nested": nested}, {"cap": cap})

    def parts(self, r: Round) -> None:
        """None: the width changes from batch to batch."""

    def drawn(self, r: Round, a: int) -> np.ndarray:
        """p of the first a clients in local step `r.step`, `[a]`."""
        allowed = np.searchsorted(r.levels, r.cap[:a], side="right")
        return r.levels[(rng.words(r.seed, rng.MASK, r.t, r.ids[:a], r.step) % allowed.astype(np.uint64)).astype(int)]

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        p, cap, v = self.drawn(r, len(y)), r.cap[: len(y)], torch.zeros_like(y)
        for c in np.unique(cap if self.distil else p):  # cross-entropy, at p_max when p learns from it
            self._add(v, y, np.flatnonzero((cap if self.distil else p) == c), c, r)
        if self.distil:
            for c in np.unique(cap):
                for q in np.unique(p[(cap == c) & (p < c)]):
                    self._add(v, y, np.flatnonzero((cap == c) & (p == q)), q, r, teacher=c)
        return v

    def _add(self, v: Tensor, y: Tensor, rows: np.ndarray, c: float, r: Round, teacher: float | None = None) -> None:
        """v += the gradient of these rows at width c, of the distillation loss where a teacher's width is given."""
        at = torch.as_tensor(rows).to(y.device)

        def entries(c: float) -> Any:
            return at if r.nested[c] is None else (at[:, None], r.nested[c])

        def width(c: float) -> Width | None:
            return None if r.nested[c] is None else Width(float(c), False)

        loss = PLAIN
        if teacher is not None:
            logits = r.logits_within(rows, width(teacher), r.step)(y[entries(teacher)])
            loss = Loss(_soft, samples={"teacher": logits})
        elif self.labels != "all":
            loss = own_labels(r.owned[at], self.labels)
        v[entries(c)] += r.within(rows, width(c), r.step, decay=teacher is None)(y[entries(c)], loss=loss)


def _soft(logits: Tensor, y: Tensor, teacher: Tensor) -> Tensor:
    """Cross-entropy against softmax(teacher), `[..., B]`."""
    return -(teacher.softmax(-1) * logits.log_softmax(-1)).sum(-1)


@dataclass(frozen=True)
class DepthFL(Submodel):
    """Clients train the first D stages and their D classifiers, which teach one another (Kim et al. 2023).

    Loss: sum_j CE(y_j) + lambda_t sum_j sum_{k != j} KL(softmax(y_k) || softmax(y_j)) / (D - 1), targets constant,
    lambda_t = exp(-5 (1 - min(t, ramp) / ramp)^2); plus FedDyn: v = g + alpha (y - x + h_i), h_i <- h_i + y_i - x,
    h = (1/n) sum h_j, x <- mean over the clients that own a tensor + h.  The prediction is the mean of all logits.
    A model without heads gets them (`submodels.with_heads`; make the federation with
    `model=fc.submodels.multihead("thesis_cnn")` to use `history.params` with it), unless all capacities are 1: then it
    is one stage, and DepthFL is FedDyn.  D = ceil(r S) of S stages, our reading: the sources do not say how five
    capacities map to depths.

    alpha: FedDyn's, default 0.1; 0 is without it.  distil: the KL terms; default True.  ramp: rounds until lambda = 1.
    capacities, labels, mode: as HeteroFL; training is always compact.  Raises ValueError as HeteroFL, for alpha < 0,
    and for capacities < 1 on models without stages.
    """

    alpha: float = 0.1
    distil: bool = True
    ramp: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("alpha", self.alpha, 0)
        checks.integer("ramp", self.ramp, 1)
        _compact(self)

    @property
    def client_state(self) -> tuple[str, ...]:
        """FedDyn's h_i, where it is used."""
        return ("h_i",) if self.alpha else ()

    def on(self, fed: Any) -> Any:
        """The federation with heads on its model."""
        if self.smallest == 1:
            return fed
        if not hasattr(fed, "engine"):
            raise ValueError(
                f"DepthFL with capacity {self.smallest:g}, but a quadratic has no stages; use capacities=1"
            )
        if stages(fed.engine.module) > 1:
            return fed
        return fed.with_model(lambda net: with_heads(net, fed.source.classes))

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "h": torch.zeros_like(x)} if self.alpha else {"x": x}

    def split(self, r: Round, ratio: np.ndarray) -> list[Part]:
        S, parts = self._stages(r), []
        depth = np.ceil(np.round(ratio * S, 9)).astype(int)
        for D in np.unique(depth)[::-1]:
            rows = np.flatnonzero(depth == D)
            at = torch.as_tensor(rows).to(r.p.device)
            to, places = None, None
            if D < S:
                to = Depth(int(D))
                places = to.places(r.layout).to(at.device)[None].expand(len(rows), -1)
            entries = at if places is None else (at[:, None], places)
            parts.append(Part(rows, to, places, {"h_i": r.h_i[entries]} if self.alpha else {}))
        return parts

    def _stages(self, r: Round) -> int:
        return stages(r.fed.engine.module) if hasattr(r.fed, "engine") else 1

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        loss = own_labels(r.owned, self.labels) if self.labels != "all" else PLAIN
        if self.distil and self._stages(r) > 1:
            loss = self._teach(math.exp(-5 * (1 - min(r.t, self.ramp) / self.ramp) ** 2), loss)
        v = G(y, loss=loss)
        return v + self.alpha * (y - r.x + r.h_i) if self.alpha else v

    def _teach(self, strength: float, first: Loss) -> Loss:
        def loss(logits: Tensor, y: Tensor, **rows: Tensor) -> Tensor:
            if first.per_sample is not None:
                each = first.per_sample(logits, y, **rows)
            else:
                each = -logits.log_softmax(-1).gather(-1, per_head(logits, y)).squeeze(-1)
                each = each.flatten(y.dim()).sum(-1) if each.dim() > y.dim() else each
            D = logits.shape[-2] if logits.dim() == y.dim() + 2 else 1
            if D == 1:
                return each
            log_q = logits.log_softmax(-1)
            log_p = log_q.detach()
            # sum_{k, j} KL(p_k || q_j); k = j adds nothing, and its gradient is zero
            own = (log_p.exp() * log_p).sum(-1).sum(-1)
            cross = torch.einsum("...kc,...jc->...", log_p.exp(), log_q)
            return each + strength * (D * own - cross) / (D - 1)

        return Loss(loss, rows=first.rows)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        x = combine(r.x, y, r.mask, r.p, r.server_lr, r.total)
        if not self.alpha:
            return {"x": x}
        delta = torch.where(r.mask, y - r.x, 0)
        h = r.h + r.sum(delta) / r.n
        return {"x": torch.where(r.sum(r.mask.to(x.dtype)) > 0, x + h, x), "h": h, "h_i": r.h_i + delta}


def _compact(method: Submodel) -> None:
    if method.training != "compact":
        raise ValueError(f"training={method.training!r} is not offered by {type(method).__name__}; use 'compact'")
