"""Heterogeneity beside label skew: other sizes (Quantity), other inputs (FeatureShift), other labels (LabelSwap).

FeatureShift and LabelSwap deal the samples by another partition and then change each client's own copy of them, by
`changed`.  The test set of the source stays as it is; a client's `own_test` data are changed with its training data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F

from ..support import checks
from .arrays import Source
from .partitions import IID, Indices, enough


def _deals(value: Any) -> bool:
    return hasattr(value, "split") and not (isinstance(value, type | str | bytes) or hasattr(value, "changed"))


def _pairs(value: Any) -> bool:
    pairs = list(value) if isinstance(value, list | tuple) else []
    labels = [label for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2 for label in pair]
    whole = all(isinstance(label, int | np.integer) for label in labels)
    return 0 < len(labels) == 2 * len(pairs) and whole and len(set(labels)) == len(labels)


Dealing = Annotated[Any, checks.Kind(_deals, "a partition that leaves the data as they are, such as fc.IID()")]
Pairs = Annotated[list | tuple, checks.Kind(_pairs, "pairs of different labels, such as ((3, 8), (1, 7))")]


@dataclass(frozen=True)
class Quantity(checks.Named):
    """Quantity skew: clients differ in how many samples they have, not in their labels' shares.

    law "lognormal": client i's share is proportional to exp(spread z_i), z_i standard normal; "power": the shares are
    proportional to k^(-spread), k = 1, ..., n in random order.  Every client has one sample at least.  spread = 0 gives
    equal sizes.  `fc.Dirichlet(q, sizes=fc.Quantity(spread))` has skewed labels within these sizes.

    Raises ValueError for spread < 0 and another law.
    """

    spread: checks.NonNegative = 1.0
    law: Annotated[str, checks.OneOf(("lognormal", "power"))] = "lognormal"

    __post_init__ = checks.fields

    def sizes(self, N: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """How many of N samples each client gets, `[clients]`; they sum to N."""
        if self.law == "power":
            share = rng.permutation(np.arange(1, clients + 1) ** -float(self.spread))
        else:
            z = self.spread * rng.standard_normal(clients)
            share = np.exp(z - z.max())  # of which none overflows
        exact = share / share.sum() * (N - clients)
        sizes = 1 + np.floor(exact).astype(int)
        sizes[np.argsort(sizes - exact, kind="stable")[: N - sizes.sum()]] += 1
        return sizes

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        enough(labels, clients)
        ends = np.cumsum(self.sizes(len(labels), clients, rng))[:-1]
        return [np.sort(part) for part in np.split(rng.permutation(len(labels)), ends)]


@dataclass(frozen=True)
class FeatureShift(checks.Named):
    """Feature skew: client i of n sees its images turned, blurred or with noise, the more the larger i.

    kind "rotation": by `strength` degrees times 2 i / (n - 1) - 1, so from -strength to strength; "blur": by a Gaussian
    whose standard deviation is strength i / (n - 1) pixels; "noise": Gaussian noise of standard deviation
    strength i / (n - 1) in units of the range of the training inputs, 255 for most images of bytes and 16 for "digits"
    (Li et al. 2022, noise-based feature imbalance).  Bytes stay bytes, from 0 to the largest training input.

    partition: how the samples are dealt; default IID.  Raises ValueError for strength < 0, another kind, inputs that
    are not images, and a partition in which clients share samples.
    """

    kind: Annotated[str, checks.OneOf(("rotation", "blur", "noise"))] = "rotation"
    strength: checks.NonNegative = 45.0
    partition: Dealing = IID()  # noqa: RUF009  (a frozen value)

    __post_init__ = checks.fields

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Any:
        if getattr(self.partition, "overlapping", False):
            raise ValueError(
                f"partition={checks.brief(self.partition)} gives a sample to several clients, for which it cannot be "
                "changed in different ways; use a partition without overlapping = True, such as fc.IID()"
            )
        return self.partition.split(labels, clients, rng, owner)

    def changed(self, source: Source, parts: Indices, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The training samples and their labels, changed for the client that has them."""
        if source.layout != "image":
            raise ValueError(
                f"{self} turns, blurs or disturbs images; the source has samples {source.train_x.shape[1:]}"
            )
        x = source.train_x.copy()
        low, high = float(x.min()), float(x.max())
        for i, part in enumerate(parts):
            by = self.strength * i / max(1, len(parts) - 1)
            y = x[part].astype(np.float64)
            if self.kind == "rotation":
                y = rotated(y, 2 * by - self.strength if len(parts) > 1 else 0.0)
            elif self.kind == "blur":
                y = blurred(y, by)
            else:
                y += by * (high - low) * rng.standard_normal(y.shape)
            # rounded before it is rounded to bytes, so that no last bit decides between two
            x[part] = np.rint(np.clip(np.round(y, 6), 0, high)) if x.dtype == np.uint8 else y
        return x, source.train_y


@dataclass(frozen=True)
class LabelSwap(checks.Named):
    """Concept shift: a group of clients calls things by other names: it has each pair of labels exchanged.

    No model is right for both groups.  share: of the clients, the last ones, to the nearest number, halves upwards.
    pairs: of labels to exchange, such as ((3, 8),); None exchanges 0 with 1, 2 with 3, and so on.

    partition: how the samples are dealt; default IID.  Raises ValueError for a share outside [0, 1], labels that the
    source does not have or that occur twice, and a partition in which clients share samples.
    """

    share: checks.Fraction = 0.5
    pairs: Pairs | None = None
    partition: Dealing = IID()  # noqa: RUF009  (a frozen value)

    def __post_init__(self) -> None:
        checks.fields(self)
        if self.pairs is not None:
            object.__setattr__(self, "pairs", tuple((int(a), int(b)) for a, b in self.pairs))

    split = FeatureShift.split

    def changed(self, source: Source, parts: Indices, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The training samples and their labels, changed for the client that has them."""
        if not source.has_classes:
            raise ValueError(f"{self} exchanges class labels, which the targets {source.train_y.shape} are not")
        pairs = self.pairs or tuple((c, c + 1) for c in range(0, source.classes - 1, 2))
        if outside := [c for pair in pairs for c in pair if not 0 <= c < source.classes]:
            raise ValueError(f"pairs={self.pairs} has label {outside[0]}; use 0 to {source.classes - 1}")
        other = np.arange(source.classes)
        for a, b in pairs:
            other[[a, b]] = b, a
        y = source.train_y.copy()
        for part in parts[len(parts) - math.floor(self.share * len(parts) + 0.5) :]:
            y[part] = other[y[part]]
        return source.train_x, y


def rotated(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images `[N, C, H, W]` turned anticlockwise about their centre; bilinear, with 0 outside."""
    angle, (H, W) = math.radians(degrees), x.shape[2:]
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[[cos, -sin * H / W, 0], [sin * W / H, cos, 0]]], dtype=torch.float64)
    images = torch.as_tensor(x)
    grid = F.affine_grid(turn.expand(len(x), -1, -1), images.shape, align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).numpy()


def blurred(x: np.ndarray, sigma: float) -> np.ndarray:
    """Images `[N, C, H, W]` convolved with a Gaussian up to four standard deviations; edges are repeated."""
    if sigma == 0:
        return x
    reach = math.ceil(4 * sigma)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / sigma) ** 2)
    weights /= weights.sum()
    images = torch.as_tensor(x).flatten(0, 1).unsqueeze(1)
    images = F.conv2d(F.pad(images, (reach, reach, 0, 0), "replicate"), weights.view(1, 1, 1, -1))
    images = F.conv2d(F.pad(images, (0, 0, reach, reach), "replicate"), weights.view(1, 1, -1, 1))
    return images.view(x.shape).numpy()
