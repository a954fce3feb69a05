"""Methods with nested sub-models and self-distillation: nested in width (FjORD) or in depth (DepthFL)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..engine import Loss
from ..models import Layout
from ..submodels import Depth, Part, Width, combine, with_heads
from ..support.checks import Count, NonNegative, OneOf
from .method import Cost, Gradient, Round, share
from .submodels import Submodel, own_labels

Compact = Annotated[str, OneOf(("compact",))]


@dataclass(frozen=True)
class FjORD(Submodel):
    """Ordered dropout: every mini-batch draws a width p up to the client's own p_max (Horvath et al. 2021).

    p is uniform over the capacities <= p_max and the same for all layers, which keep their first ceil(p width) units;
    there is no scaler.  With self-distillation each step adds two gradients: of the cross-entropy at p_max, and of the
    cross-entropy of the outputs at p against softmax(outputs at p_max), a constant.  Each entry becomes the mean over
    the clients whose p_max covers it; the authors' code weighs clients by samples: `weighting="samples"`.  With one
    capacity it is HeteroFL without scaler.

    distil: self-distillation; default True.  capacities, labels, mode: as HeteroFL; training is always compact.
    Raises ValueError as HeteroFL.

    Use it where one client must be able to run several widths after training. Not where the two gradients of self-
    distillation are too expensive for weak clients.
    """

    distil: bool = True
    training: Compact = field(default="compact", kw_only=True)
    scaled = False

    def prepare(self, r: Round) -> Round:
        r = super().prepare(r)
        return r.extended(server={"widths": self.widths(r)}, parts=None)

    def widths(self, r: Round) -> dict[float, Tensor | None]:
        """Every capacity, smallest first, and the indices of its network in the flat vector (None: all)."""
        levels = sorted(ratio for ratio, _ in self.capacities)
        neurons = r.neurons() if levels[0] < 1 else None
        return {c: None if c == 1 else neurons.places(neurons.prefix(c, r.x.device))[0] for c in levels}

    def drawn(self, r: Round, most: np.ndarray) -> np.ndarray:
        """The width p of each client in local step `r.step`, at most its own p_max, `most [m]`: `[m]`."""
        levels = np.array(list(r.widths))
        allowed = np.searchsorted(levels, most, side="right")
        return levels[(rng.words(r.seed, rng.MASK, r.t, r.ids, r.step) % allowed.astype(np.uint64)).astype(int)]

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        most, v = self.ratios(r.seed, r.n, r.t, r.ids), torch.zeros_like(y)
        p = self.drawn(r, most)
        taught = most if self.distil else p  # with distillation, the labels train the width p_max
        for c in np.unique(taught):
            small, part = self.at(r, taught == c, c)
            part.put(v, part.take(v) + small.gradient(part.take(y)))
        for c, q in sorted(set(zip(most, p, strict=True))) if self.distil else ():
            if q < c:
                (whole, wide), (small, narrow) = (self.at(r, (most == c) & (p == q), width) for width in (c, q))
                teacher = Loss(_soft, samples={"teacher": whole.logits(wide.take(y))})
                taught_by = small.gradient(narrow.take(y), loss=teacher, decay=False)
                narrow.put(v, narrow.take(v) + taught_by)
        return v

    def at(self, r: Round, rows: np.ndarray, width: float) -> tuple[Round, Part]:
        """The round of some clients on the network of one width, and its part of `y [m, d]`."""
        rows, places = np.flatnonzero(rows), r.widths[width]
        to = None if places is None else Width(float(width), scaled=False)
        part = Part(rows, to, None if places is None else places.expand(len(rows), -1))
        return r.within(part), part

    def cost(self, layout: Layout | None = None) -> Cost:
        taught = self.distil and len(self.capacities) > 1
        note = "the second, and the teacher's forward pass, where p < p_max"
        return replace(super().cost(layout), gradients=2 if taught else 1, forwards=int(taught), note=note)


def _soft(logits: Tensor, y: Tensor, teacher: Tensor, **_: Tensor) -> Tensor:
    """Cross-entropy of logits `[..., B, classes]` against softmax(teacher), `[..., B]`."""
    return -(teacher.softmax(-1) * logits.log_softmax(-1)).sum(-1)


@dataclass(frozen=True)
class DepthFL(Submodel):
    """Clients train the first D stages and their D classifiers, with mutual distillation (Kim et al. 2023).

    Loss: sum_j CE(y_j) + lambda_t sum_j sum_{k != j} KL(softmax(y_k) || softmax(y_j)) / (D - 1), targets constant,
    lambda_t = exp(-5 (1 - min(t, ramp) / ramp)^2); plus FedDyn: v = g + alpha (y - x + h_i), h_i <- h_i + y_i - x,
    h = (1/n) sum h_j, x <- mean over the clients that own a tensor + h.  The prediction is the mean of all logits.
    A model without heads gets them (`submodels.with_heads`; make the federation with
    `model=fc.submodels.multihead("thesis_cnn")` to use `history.params` with it), unless all capacities are 1: then it
    has one stage, and DepthFL is FedDyn.  A client of capacity r trains D = ceil(r S) of S stages; this is our reading,
    because the sources do not say how five capacities map to depths.

    alpha: FedDyn's, default 0.1; 0 leaves FedDyn out.  distil: whether to add the KL terms; default True.  ramp: rounds
    until lambda_t = 1.
    capacities, labels, mode: as HeteroFL; training is always compact.  Raises ValueError as HeteroFL, for alpha < 0,
    and for capacities < 1 on models without stages.

    Use it where clients differ in memory and the network has stages with exits. Not where the wide first stages are
    what weak clients cannot train.
    """

    alpha: NonNegative = 0.1
    distil: bool = True
    ramp: Count = 300
    training: Compact = field(default="compact", kw_only=True)

    @property
    def client_state(self) -> tuple[str, ...]:
        """FedDyn's h_i, where alpha > 0."""
        return ("h_i",) if self.alpha else ()

    def on(self, fed: Any) -> Any:
        """The federation with heads on its model."""
        if self.smallest == 1 or fed.stages > 1:
            return fed
        if fed.layout is None:
            raise ValueError(
                f"DepthFL with capacity {self.smallest:g}, but a quadratic has no stages; use capacities=1"
            )
        return fed.with_model(lambda net: with_heads(net, fed.classes))

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "h": torch.zeros_like(x)} if self.alpha else {"x": x}

    def prepare(self, r: Round) -> Round:
        r = super().prepare(r)
        if not self.distil or r.objective.stages == 1:
            return r
        strength = math.exp(-5 * (1 - min(r.t, self.ramp) / self.ramp) ** 2)
        labels = r.loss.per_sample or partial(own_labels, reading="all")
        return r.extended(loss=replace(r.loss, per_sample=partial(_teach, labels=labels, strength=strength)))

    def split(self, r: Round, ratio: np.ndarray) -> list[Part]:
        depth, parts = _depth(ratio, r.objective.stages), []
        for D in np.unique(depth)[::-1]:
            rows, to = np.flatnonzero(depth == D), Depth(int(D)) if r.objective.stages > D else None
            parts.append(Part(rows, to, None if to is None else to.places(r.layout).expand(len(rows), -1)))
        return parts

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.alpha * (y - r.x + r.h_i) if self.alpha else G(y)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        x = combine(r.x, y, r.mask, r.p, r.server_lr, r.total, r.parts)
        if not self.alpha:
            return {"x": x}
        delta = torch.where(r.mask, y - r.x, 0)
        h = r.h + r.sum(delta) / r.n
        return {"x": torch.where(r.sum(r.mask.to(x.dtype)) > 0, x + h, x), "h": h, "h_i": r.h_i + delta}

    def cost(self, layout: Layout | None = None) -> Cost:
        """The share of the parameters in the first D stages and heads, which depends on the network's layout."""
        heads = {name.split(".")[1] for name in layout.names if name.startswith("heads.")} if layout else ()
        if not heads:
            whole = 1 if self.smallest == 1 else None
            note = "the share of the first D stages and heads, by the network's layout"
            return Cost.of(layout, down=whole, up=whole, note=note)
        inside = {r: torch.zeros(layout.d, dtype=torch.bool) for r, _ in self.capacities}
        for r, entries in inside.items():
            entries[Depth(int(_depth(r, len(heads)))).places(layout)] = True
        size = sum(part * share(layout, inside[r]) for r, part in self.capacities)
        return Cost.of(layout, down=size, up=size)


def _depth(ratio: Any, stages: int) -> Any:
    """How many stages clients of these capacities train."""
    return np.ceil(np.round(np.asarray(ratio) * stages, 9)).astype(int)


def _teach(logits: Tensor, y: Tensor, *, labels: Callable[..., Tensor], strength: float, **rows: Tensor) -> Tensor:
    """Per sample, the sum over heads of cross-entropy and `strength` times the mean KL divergence from the other
    heads, `[..., B]`."""
    each = labels(logits, y, **rows)
    D = logits.shape[-2] if logits.dim() == y.dim() + 2 else 1
    if D == 1:
        return each
    log_q = logits.log_softmax(-1)
    p = log_q.detach().exp()
    # sum_{k, j} KL(p_k || q_j); k = j adds nothing, and its gradient is zero
    own = (p * log_q.detach()).sum((-1, -2))
    cross = torch.einsum("...kc,...jc->...", p, log_q)
    return each + strength * (D * own - cross) / (D - 1)
