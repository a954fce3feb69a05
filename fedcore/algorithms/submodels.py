"""Methods whose clients train a part of the network: the hidden units of highest score, which each method defines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import rng
from ..data.arrays import as_array
from ..data.generated import Gaussians
from ..engine import PLAIN, Loss
from ..engine.units import Neurons
from ..models import Layout
from ..storage.identity import short
from ..submodels import Part, Width, combine
from ..support import checks
from ..support.checks import Count, OneOf, Within
from .method import Cost, Gradient, Method, Round

LEVELS = {1.0: 0.2, 0.5: 0.2, 0.25: 0.2, 0.125: 0.2, 0.0625: 0.2}  # HeteroFL's five levels, a fifth of clients each
Capacities = float | Mapping[float, float] | tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Submodel(Method):
    """Base of the sub-model methods: capacities, extraction and training of the sub-models, and their aggregation.

    A client of capacity r keeps the ceil(r width) units of highest `score` in every hidden layer and trains the network
    of these units.  Each entry of the server's vector becomes the mean over the clients that trained it; an entry that
    no client trained does not change.  `personal=True` evaluates the server's whole model for every client; the
    accuracy of a sub-model is `fed.shrink(to).evaluate(x[places])`.

    capacities: one ratio in (0, 1], or a mapping ratio -> share of the clients; shares sum to 1.
    labels: "all" is the plain cross-entropy, and r = 1 is FedAvg.  "zero": logits of labels that a client does not
    hold are replaced by 0 (HeteroFL's and FedRolex's code), "-inf": by minus infinity; in both the classifier's rows of
    these labels are not averaged.  mode: "fix" draws each client's capacity once, exactly in proportion to the shares;
    "dynamic" draws it anew each round.  training: "compact" runs the smaller networks, "masked" the whole network with
    the other units set to zero; the results are equal to rounding.
    """

    capacities: Capacities = tuple(LEVELS.items())
    _: KW_ONLY
    labels: Annotated[str, OneOf(("all", "zero", "-inf"))] = "all"
    mode: Annotated[str, OneOf(("fix", "dynamic"))] = "fix"
    training: Annotated[str, OneOf(("compact", "masked"))] = "compact"
    aligned = True
    scaled = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "capacities", _capacities(self.capacities))

    @property
    def smallest(self) -> float:
        """The smallest capacity."""
        return self.capacities[-1][0]

    def on(self, fed: Any) -> Any:
        """The federation itself; ValueError for a model without hidden units to drop, and for labels of a quadratic."""
        if self.smallest < 1 and not fed.neurons(self.aligned).widths:
            raise ValueError(
                f"{type(self).__name__} with capacity {self.smallest:g}, but the model has no hidden neurons to drop; "
                "use a network with hidden layers, or capacities=1"
            )
        if self.labels != "all" and fed.layout is None:
            raise ValueError(f"labels={self.labels!r}, but a quadratic has no labels; use labels='all'")
        return fed

    def ratios(self, seed: int, n: int, t: int = 0, ids: np.ndarray | None = None) -> np.ndarray:
        """Capacities in round t of the clients `ids [m]` or of all n, a function of the seed (if dynamic, of t too)."""
        ids = np.arange(n) if ids is None else ids
        return (
            _drawn(self.capacities, seed, t, ids) if self.mode == "dynamic" else _dealt(self.capacities, seed, n)[ids]
        )

    def score(self, r: Round, neurons: Neurons) -> list[Tensor]:
        """Scores `[m, width]` of the units of each stream; the units of highest score are kept."""
        return [-torch.arange(w, device=r.p.device).expand(r.m, -1) for w in neurons.widths]

    def split(self, r: Round, ratio: np.ndarray) -> list[Part]:
        """The cohort's sub-models, one part for each capacity in `ratio [m]`."""
        neurons = r.neurons(self.aligned) if (ratio < 1).any() else None
        scores = None if neurons is None else self.score(r, neurons)

        def part(c: float, rows: np.ndarray) -> Part:
            if c == 1:
                return Part(rows)
            alike = all(s.stride(0) == 0 for s in scores)  # one row of scores, expanded to all clients
            keep = neurons.top([s[:1] if alike else s[torch.as_tensor(rows).to(s.device)] for s in scores], c)
            return Part(rows, Width(float(c), self.scaled), neurons.places(keep).expand(len(rows), -1))

        return [part(c, np.flatnonzero(ratio == c)) for c in np.unique(ratio)[::-1]]

    def prepare(self, r: Round) -> Round:
        ratio = self.ratios(r.seed, r.n, r.t, r.ids)
        parts = self.split(r, ratio)
        kept = mask = _kept(parts, r)
        loss = r.loss
        if self.labels != "all":  # a client trains the classifier's rows of its own labels alone
            owned = r.owned()
            mask = r.neurons(self.aligned).only_owned(kept, owned)
            loss = Loss(partial(own_labels, reading=self.labels), rows={"owned": owned})
        capacity = torch.as_tensor(ratio, dtype=r.p.dtype).to(r.p.device)
        if self.training == "masked":
            parts = None
            loss = replace(loss, rate=capacity) if self.scaled and self.smallest < 1 else loss
        return r.extended(rows={"kept": kept, "mask": mask, "capacity": capacity}, parts=parts, loss=loss)

    def broadcast(self, r: Round) -> Tensor:
        return r.x if self.training == "compact" else r.x * r.kept

    @property
    def takes_gradients(self) -> bool:
        return self.training == "compact" and getattr(self.direction, "__func__", None) is Submodel.direction

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) if self.training == "compact" else r.kept * G(y)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": combine(r.x, y, r.mask, r.p, r.server_lr, r.total, r.parts)}

    def cost(self, layout: Layout | None = None) -> Cost:
        """About r^2 for a client of capacity r, since most layers shrink in inputs and outputs.  `submodels.cost`
        counts exactly."""
        size = sum(share * r * r for r, share in self.capacities)
        return Cost.of(layout, down=size, up=size)


@dataclass(frozen=True)
class HeteroFL(Submodel):
    """The first ceil(r width) units of each layer, in every round (Diao, Ding and Tarokh 2021; FedDSE study 2.2).

    Units beyond the largest capacity in use are never trained.  r = 1 for all is FedAvg, bit for bit.  As in the public
    code, all clients have the same weight in the mean; `weighting="samples"` weighs them by samples.  The authors'
    scripts add labels="zero" and clip=1.

    capacities, labels, mode, training: as `Submodel` says; the default capacities are 1, 1/2, 1/4, 1/8, 1/16, a
    fifth of the clients each.  Raises ValueError for ratios outside (0, 1], shares that do not sum to 1, and models
    whose layers mix channels.

    Use it first among sub-model methods: it is simple and sends no more than a client trains. Not where no client
    can train the whole network, because the remaining units are then never trained.
    """


@dataclass(frozen=True)
class FederatedDropout(Submodel):
    """An independent uniform subset of ceil(r width) units per layer, client and round (Caldas et al. 2018).

    aligned: True draws one subset per residual stream.  False draws one for every layer, as the baseline in FedRolex's
    public code does: residual sums then add different channels of the whole network.  This option measures
    what that costs.
    capacities, labels, mode, training: as HeteroFL.  Raises ValueError as HeteroFL, and for training="masked" with
    aligned=False.

    Use it where no client can train the whole network and all units shall be trained. Not in very narrow networks,
    where random sub-models have too little in common.
    """

    aligned: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.aligned and self.training == "masked":
            raise ValueError("aligned=False has no masked form, because its channels move; use training='compact'")

    def score(self, r: Round, neurons: Neurons) -> list[Tensor]:
        return noise(r, neurons)


@dataclass(frozen=True)
class FedRolex(Submodel):
    """A window of ceil(r width) units that moves by one unit each round (Alam et al. 2022; FedDSE study 2.2).

    I = {(t + j) mod width, j < ceil(r width)}, the same for all clients of one capacity; in `width` rounds every unit
    is kept ceil(r width) times.  Round 0 is HeteroFL's.  The public code rolls in the opposite direction, which covers
    the units equally often.

    capacities, labels, mode, training: as HeteroFL.  Raises ValueError as HeteroFL.

    Use it where no client can train the whole network: its window trains all units equally often. Not with so few
    rounds that the window does not come back to its start.
    """

    def score(self, r: Round, neurons: Neurons) -> list[Tensor]:
        return [-((torch.arange(w, device=r.p.device) - r.t) % w).expand(r.m, -1) for w in neurons.widths]


@dataclass(frozen=True)
class FedDSE(Submodel):
    """The units with the highest activation on the client's data (FedDSE study 2024, section 3.2, eq. 3-2, Alg. 3.1).

    The client runs the whole model on its data; the score h of a unit is its mean activation (after the nonlinearity)
    over samples and positions, with batch norm on batch statistics and scalers off.  ceil(r width) units are drawn one
    after the other without replacement with probabilities softmax(h / T): those of highest h / T + Gumbel noise.
    T = 0: the highest h, ties to the lower index.  T = inf: Federated Dropout, bit for bit.  The server sends the whole
    model.

    temperature: T, default 0 (Tables 3.4 and 3.5).  standardise: z-scores of h within each layer before T.
    budget: samples a client scores with; None = all.  capacities, labels, mode, training: as HeteroFL.
    Raises ValueError as HeteroFL, and for temperature < 0 or budget < 1.

    Use it where labels are strongly skewed and weak clients can run the whole network forward. Not where they
    cannot even hold it: the whole model is sent and scored.
    """

    temperature: float = 0.0
    budget: Annotated[int, Within(1, hint="or None for all local samples")] | None = None
    standardise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.temperature, float) and self.temperature == math.inf):
            checks.number("temperature", self.temperature, 0)

    def score(self, r: Round, neurons: Neurons) -> list[Tensor]:
        T = self.temperature
        if math.inf == T:
            return noise(r, neurons)
        H = r.activations(self.budget)
        if self.standardise:
            H = [(h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True).clamp_min(1e-12) for h in H]
        if T == 0:
            return H
        return [h / T - torch.log(-torch.log(u)) for h, u in zip(H, noise(r, neurons), strict=True)]

    def cost(self, layout: Layout | None = None) -> Cost:
        note = "the client chooses; one forward pass over its data a round"
        return replace(super().cost(layout), down=Cost.of(layout).down, note=note)


SCORINGS = {  # where the derivatives are taken, and whether those of different samples may cancel
    "public-code": ("outputs", False),
    "printed": ("sites", True),
    "printed-before": ("before", True),
    "absolute": ("sites", False),
    "absolute-before": ("before", False),
}


@dataclass(frozen=True)
class FedGSE(Submodel):
    """The units to which the global loss is most sensitive on public data like the client's (FedGSE study 2024).

    The server picks `similar` random public samples that are like the data of client i, differentiates their
    cross-entropy under the global model, and scores each unit by the derivatives; the ceil(r width) units of highest
    score in each layer are sent.  Batch norm uses the statistics of the picked samples, scalers are off.  Where no
    public sample is like the client's data, all are used.  `last [n, d]` holds the uploads.

    scoring: "public-code", as in the code attributed to the authors (repository GradFL):
    g = sum over samples and positions of |dF/dz|, where z is the output of the layer before any normalisation, and the
    logits of labels that the client lacks are replaced by 0.  variant "SPL" takes the samples of the labels that the
    client holds.  "CSL", which that code lacks, takes all samples and labels each with one of the client's labels, by
    the model that the client last uploaded (before its first upload: by the server's model).
    "printed", as printed in the study: g = sum over positions of |sum over samples of dF/dh| (eq. 4-3), where h is the
    activation and no logits are replaced; "SPL" takes the samples that the client's last model classifies correctly,
    "CSL" all samples with its predictions as labels.  In a layer whose activations reach the loss through a linear
    layer and batch norm alone, this score is zero (proposition "Batch norm cancels" of the book); then there is a
    UserWarning, and the first units are kept.  "printed-before": the same with the derivative by the input of the
    nonlinearity, as Lemma 1 requires.
    "absolute" and "absolute-before": as these two, but with the sum over samples and positions of absolute values.

    variant: "CSL" or "SPL".  public: the study's three ways to public data.  Uploads: None takes the federation's own
    (`fc.federation(..., public=k)` takes them from the training set before the partition), or else 10 samples per
    class; a number takes that many samples per class from the clients where the federation has none.  Other data: a
    pair `(x, y)`, inputs of the clients' shape and type with labels among theirs.  Generated: `fc.Gaussians(k)` draws k
    samples per class from sums that the clients send once.  similar: public samples for each client, 128 in Table 4.1.
    capacities, labels, mode, training: as HeteroFL.  Raises ValueError as HeteroFL, for
    another variant or scoring, and for public data that are too few or overlap the clients' or the test data.

    Use it where the server has public samples like the clients' data. Not without such samples, and not with the
    printed score where batch norm follows each layer, which makes it zero.
    """

    variant: Annotated[str, OneOf(("CSL", "SPL"))] = "CSL"
    public: Any = None
    similar: Count = 128
    scoring: Annotated[str, OneOf(tuple(SCORINGS))] = "public-code"
    client_state = ("last",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.public, tuple | list) and len(self.public) == 2:
            object.__setattr__(self, "public", Samples(*self.public))
        elif self.public is not None and not isinstance(self.public, Samples | Gaussians):
            checks.integer("public", self.public, 1, hint="samples per class, a pair (x, y), fc.Gaussians(k), or None")

    def on(self, fed: Any) -> Any:
        """The federation with public data; a UserWarning where the score vanishes."""
        fed = super().on(fed)
        if self.smallest == 1:  # all units are kept
            return fed
        fed = with_public_data(fed, self.public)
        if self.scoring == "printed" and (layers := vanishing(fed, self.similar)):
            checks.warn(
                f"FedGSE(scoring='printed'): the score of eq. 4-3 is zero up to rounding in {', '.join(layers)}, whose "
                "activations reach the loss through a linear layer and batch norm on batch statistics alone; the first "
                "units are kept there.  Use scoring='public-code', or a model without batch norm behind these layers",
            )
        return fed

    def score(self, r: Round, neurons: Neurons) -> list[Tensor]:
        place, cancel = SCORINGS[self.scoring]
        picked, labels, w, loss = self.public_samples(r)
        D = r.objective.public_sensitivities(r.x, picked, labels, w, getattr(neurons, place), loss)
        return [(cancelled(h) if cancel else h.abs().sum(1)).sum(2) for h in D]

    def public_samples(self, r: Round) -> tuple[Tensor, Tensor, Tensor, Loss]:
        """Public samples for each client, as `similar_samples` gives them, and the loss to differentiate."""
        last = torch.where((r.last != 0).any(1, keepdim=True), r.last, r.x)
        logits, truth, loss = r.objective.public_logits(last), r.objective.public[1].to(r.p.device), PLAIN
        guess = logits.argmax(-1)
        alike = guess == truth
        if self.scoring == "public-code":
            owned = r.owned()
            owned = F.pad(owned, (0, logits.shape[-1] - owned.shape[1]))  # a model may have more logits than labels
            guess, alike = logits.masked_fill(~owned[:, None], -math.inf).argmax(-1), owned[:, truth]
            loss = Loss(partial(own_labels, reading="zero"), rows={"owned": owned})
        return *self.similar_samples(r, guess, truth, alike), loss

    def similar_samples(self, r: Round, guess: Tensor, truth: Tensor, alike: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Public samples for each client: their indices, labels and weights, `[m, S]` each.

        guess: the labels that the client's model predicts, `[m, P]`.  truth: the true labels `[P]`.  alike: whether SPL
        takes a sample, `[m, P]` bool.
        """
        usable, labels = torch.ones_like(alike), guess
        if self.variant == "SPL":
            usable, labels = alike | ~alike.any(1, keepdim=True), truth.expand_as(guess)
        u = rng.words(r.seed, rng.RESAMPLE, r.t, np.asarray(r.ids)[:, None], np.arange(guess.shape[1])) / 2.0**64
        order = (torch.as_tensor(u).to(guess.device) + ~usable).argsort(1)[:, : self.similar]
        w = usable.gather(1, order).to(r.p.dtype)
        return order, labels.gather(1, order), w / w.sum(1, keepdim=True)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {**super().aggregate(r, y), "last": torch.where(r.kept, y, 0)}

    def cost(self, layout: Layout | None = None) -> Cost:
        return replace(super().cost(layout), note="scores at the server, by passes over public data")


def with_public_data(fed: Any, public: Samples | Gaussians | int | None) -> Any:
    """The federation with public data: the caller's samples, generated ones, a number of samples per class, or None for
    its own."""
    if isinstance(public, Samples):
        return fed.with_public(public.x, public.y)
    if isinstance(public, Gaussians):
        return fed.with_public(*public.samples(fed.data.now, fed.data.parts, fed.seed))
    if fed.public is None:
        return fed.set_aside(public or 10)
    if public is not None and public * len(np.unique(fed.data.source.train_y)) != len(fed.public[1]):
        raise ValueError(
            f"public={public} samples per class, but the federation set {len(fed.public[1])} samples aside; "
            "use public=None to take those"
        )
    return fed


def cancelled(D: Tensor) -> Tensor:
    """|Sum over samples| of derivatives `[m, S, ...]`; 0 where the sum is rounding error beside the absolute values."""
    total = D.sum(1).abs()
    return torch.where(total > torch.finfo(D.dtype).eps ** 0.5 * D.abs().sum(1), total, 0)


def vanishing(fed: Any, samples: int) -> list[str]:
    """The names of the layers in which eq. 4-3 is zero for every unit although the loss depends on them, at the initial
    model on about `samples` of the public samples."""
    y, sites = fed.public[1], fed.neurons().sites
    picked = torch.arange(len(y), device=y.device)[:: -(-len(y) // samples)][None]
    w = torch.full(picked.shape, 1 / picked.shape[1], dtype=fed.dtype, device=y.device)
    D = fed.public_sensitivities(fed.x0, picked, y[picked], w, sites)
    return [site for site, h in zip(sites, D, strict=True) if bool(h.any()) and not bool(cancelled(h).any())]


class Samples:
    """The caller's public samples `(x, y)`, which are equal where their contents are."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = (np.array(as_array(a)) for a in (x, y))
        content = (a.tobytes() + repr((a.dtype.str, a.shape)).encode() for a in (self.x, self.y))
        self.digest = short(b"".join(content))

    def __repr__(self) -> str:
        return f"<{len(self.y)} samples {self.digest}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Samples) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def noise(r: Round, neurons: Neurons) -> list[Tensor]:
    """Uniform numbers in (0, 1) from (seed, round, client, stream, unit), `[m, width]` float64 per stream."""
    clients = np.asarray(r.ids)[:, None]
    bits = [rng.words(r.seed, rng.MASK, r.t, clients, s, np.arange(w)) for s, w in enumerate(neurons.widths)]
    flat = (np.concatenate(bits, 1) >> np.uint64(11)).astype(np.float64)  # one transfer to the device
    return list(torch.as_tensor((flat + 0.5) / 2.0**53).to(r.p.device).split(neurons.widths, 1))


def own_labels(logits: Tensor, y: Tensor, *, reading: str, owned: Tensor | None = None) -> Tensor:
    """Cross-entropy `[..., B]` of logits `[..., B, (heads,) classes]`, summed over heads.

    owned `[..., classes]`: the labels that a client holds; logits of the others are replaced by 0 (reading "zero") or
    by minus infinity ("-inf").
    """
    heads = logits.dim() - y.dim() - 1
    if owned is not None:
        owned = F.pad(owned, (0, logits.shape[-1] - owned.shape[-1]))  # a model may have more logits than labels
        owned = owned.view(*y.shape[:-1], *[1] * (1 + heads), -1)
        logits = torch.where(owned, logits, 0.0 if reading == "zero" else -math.inf)
    labels = y.view(*y.shape, *[1] * (heads + 1)).expand(*logits.shape[:-1], 1)
    each = logits.logsumexp(-1) - logits.gather(-1, labels).squeeze(-1)
    return each.sum(-1) if heads else each


def _capacities(given: Any) -> tuple[tuple[float, float], ...]:
    """Pairs (ratio, share), largest ratio first; raises ValueError or TypeError."""
    if isinstance(given, Mapping):
        given = tuple(given.items())
    pairs = given if isinstance(given, tuple | list) else [(given, 1.0)]
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            f"capacities={checks.brief(given)}; use pairs (ratio, share), one ratio, or a mapping ratio -> share such "
            "as {1: .5, .25: .5}"
        )
    for ratio, share in pairs:
        checks.number("capacities: ratio", ratio, 0, 1, open_low=True)
        checks.number("capacities: share", share, 0, 1)
    levels = {float(ratio): float(share) for ratio, share in pairs}
    total = math.fsum(share for _, share in pairs)
    if abs(total - 1) > 1e-6 or len(levels) < len(pairs):
        raise ValueError(f"capacities: the shares sum to {total:g}; use different ratios whose shares sum to 1")
    return tuple(sorted(levels.items(), reverse=True))


def _kept(parts: list[Part], r: Round) -> Tensor:
    """Which entries of the flat vector belong to each client's sub-model, `[m, d]` bool."""
    kept = torch.zeros(r.m, len(r.x), dtype=torch.bool, device=r.x.device)
    for part in parts:
        part.put(kept, kept.new_ones(len(part.rows), len(r.x) if part.places is None else part.places.shape[1]))
    return kept


def _drawn(capacities: tuple[tuple[float, float], ...], seed: int, t: int, clients: np.ndarray) -> np.ndarray:
    """A capacity for each of these clients in round t, drawn with the shares as probabilities: `[m]`."""
    levels, shares = (np.array(column) for column in zip(*capacities, strict=True))
    u = rng.words(seed, rng.CAPACITY, t, clients) / 2.0**64
    return levels[np.minimum(np.searchsorted(np.cumsum(shares), u, side="right"), len(levels) - 1)]


@lru_cache(maxsize=8)  # drawn once a run, not once a round
def _dealt(capacities: tuple[tuple[float, float], ...], seed: int, n: int) -> np.ndarray:
    """The capacities of n clients by their shares (largest remainders), in random order: `[n]`, read-only."""
    levels, shares = (np.array(column) for column in zip(*capacities, strict=True))
    exact = shares * n
    counts = np.floor(exact + 1e-9).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: n - counts.sum()]] += 1  # the largest remainders
    ratios = np.repeat(levels, counts)[np.argsort(np.argsort(rng.words(seed, rng.CAPACITY, np.arange(n))))]
    ratios.setflags(write=False)
    return ratios
