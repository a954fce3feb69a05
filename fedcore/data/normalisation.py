"""Means and standard deviations that normalise images, and normalisation as a layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..support import checks
from .arrays import Source

NORMALISE = ("pooled", "client", "half", "unit", "none")
IMAGES_AT_A_TIME = 1024  # bounds the memory for the squares


def normalisation(source: Source, parts: Sequence[np.ndarray], kind: str) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Statistics `[2, r, C, 1, 1]`, the pooled ones last, and the index of each training and each test image's.

    parts: each client's rows of the training set.  kind: one of `NORMALISE`.  For "client" there are statistics of the
    n clients; then of the test images' domains, from their training images or, where the source has none, from the test
    images; last of all clients' images together.  A training image of no client has the last ones.  A constant channel
    has std 1.  The range of "half" and "unit" is from 0 to 255 for bytes, but to the largest training byte where this
    is below 128, as the 16 of "digits"; for other images it is from 0 to 1.

    Raises ValueError for "client", "half" and "unit" where the inputs are no images.
    """
    x, n = source.train_x, len(parts)
    train_rows, test_rows = np.full(len(x), -1), np.full(len(source.test_x), -1)
    images = x.ndim == 4 and not source.text
    if kind in ("pooled", "none"):  # "pooled" normalises images of bytes alone
        used = kind == "none" or not images or x.dtype != np.uint8
        pooled = (np.zeros(1), np.ones(1)) if used else channel_statistics(x)
        return _stacked(*(part[None] for part in pooled)), train_rows, test_rows
    if not images:
        raise ValueError(f"normalise={kind!r} needs images [N, C, H, W], the data has {x.shape}; use 'pooled'")
    if kind in ("half", "unit"):
        top = 1.0 if x.dtype != np.uint8 else 255.0 if x.max() > 127 else float(x.max() or 255)
        largest = np.full((1, 1), top)
        mean, std = (largest / 2, largest / 2) if kind == "half" else (0 * largest, largest)
        return _stacked(mean, std), train_rows, test_rows
    groups = [x[part] for part in parts]
    weights = np.array([len(part) for part in parts]) / sum(map(len, parts))
    for i, part in enumerate(parts):
        train_rows[part] = i
    if source.test_owner is not None:
        owners, test_rows = np.unique(source.test_owner, return_inverse=True)
        test_rows = test_rows + n
        for owner in owners:
            same = np.zeros(len(x), bool) if source.train_owner is None else source.train_owner == owner
            groups.append(x[same] if same.any() else source.test_x[source.test_owner == owner])
    mean, std = (np.stack(column) for column in zip(*map(channel_statistics, groups), strict=True))
    centre = weights @ mean[:n]
    spread = np.sqrt(weights @ (std[:n] ** 2 + (mean[:n] - centre) ** 2))
    return _stacked(np.vstack([mean, centre]), np.vstack([std, spread])), train_rows, test_rows


def told_of_scale(source: Source, kind: str) -> None:
    """Warns of large inputs that are not normalised, and of test and validation inputs on another scale than the
    training inputs.

    Inputs of byte type that are no images, and images of other types, are large beyond 20 in absolute value, or where
    they are whole numbers from 0 to more than 10; features and sequences of other types are large beyond 100.  Scales
    differ where the largest absolute values differ by a factor above 20.
    """
    if source.text:
        return
    x, images = source.train_x, source.train_x.ndim == 4
    low, high = float(x.min()), float(x.max())
    held = {"test": source.test_x} | ({} if source.validation is None else {"validation": source.validation[0]})
    for name, part in held.items():
        size = max(-float(part.min()), float(part.max()))
        if size and max(-low, high) and not 1 / 20 <= size / max(-low, high) <= 20:
            checks.warn(
                f"{name} inputs reach {size:g} and training inputs {max(-low, high):g}; scale both in the same way"
            )
    if (images and x.dtype == np.uint8) or (images and kind not in ("pooled", "half", "unit")):
        return
    most = 20 if images or x.dtype == np.uint8 else 100
    if max(-low, high) <= most and (most == 100 or not (low >= 0 and high > 10 and (x == np.rint(x)).all())):
        return
    what = {"sequence": "sequences", "image": "images"}.get(source.layout, "features")
    checks.warn(
        f"the {what} are {x.dtype} from {low:g} to {high:g} and are used as they are, which few models train on; give "
        f"numbers of size 1, such as x / {255 if -low <= high <= 255 else high:g}, or of images bytes "
        "(x.astype(np.uint8)), which are normalised"
    )


def channel_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel of the images `x [N, C, H, W]`, over all images: `[C]` each.

    For bytes they follow from sums of integers, which are the same on every machine.
    """
    if x.dtype != np.uint8:
        return x.mean((0, 2, 3), dtype=np.float64), x.std((0, 2, 3), dtype=np.float64)
    total = square = np.zeros(x.shape[1], np.int64)
    for low in range(0, len(x), IMAGES_AT_A_TIME):
        some = x[low : low + IMAGES_AT_A_TIME]
        total = total + some.sum((0, 2, 3), dtype=np.int64)
        square = square + np.square(some, dtype=np.uint16).sum((0, 2, 3), dtype=np.int64)  # 255^2 < 2^16
    N = x.size // x.shape[1]
    variance = [(N * int(q) - int(s) ** 2) / N**2 for s, q in zip(total, square, strict=True)]  # Python's integers
    return total / N, np.sqrt(variance)


def _stacked(mean: np.ndarray, std: np.ndarray) -> Tensor:
    std = np.where(std > 1e-9 * np.abs(mean), std, 1.0)  # the std of a constant channel may differ from 0 by rounding
    return torch.as_tensor(np.stack([mean, std]))[..., None, None]


class Normalise(nn.Module):
    """The layer in front of a network that computes its inputs from samples of the source.

    shape: of one sample as it is stored, `[C, H, W]`, `[F]`, `[L, F]` or `[L]`.  mean, std: `[C, 1, 1]` for images,
    else a number, as buffers; None for texts, which become whole numbers.  channels_last: whether the outputs are laid
    out in memory with channels last (`Engine.laid`); their values are the same.

    Also takes grey images `[B, H, W]` and images `[B, H, W, C]`; raises ValueError for other shapes.
    """

    def __init__(
        self, shape: Sequence[int], mean: Tensor | None = None, std: Tensor | None = None, channels_last: bool = False
    ) -> None:
        super().__init__()
        self.shape, self.channels_last = tuple(shape), channels_last
        self.register_buffer("mean", None if mean is None else mean.clone())
        self.register_buffer("std", None if std is None else std.clone())

    def forward(self, x: Tensor) -> Tensor:
        x = x if tuple(x.shape[1:]) == self.shape else self._reshaped(x)
        if self.mean is None:
            return x.to(torch.long, copy=True)  # the network may write over it
        x = (x.to(self.mean.dtype) - self.mean) / self.std
        return with_channels_last(x) if self.channels_last else x

    def _reshaped(self, x: Tensor) -> Tensor:
        channels, *size = self.shape
        if len(size) == 2 and tuple(x.shape[1:]) == (*size, channels):
            return x.permute(0, 3, 1, 2)
        if channels == 1 and tuple(x.shape[1:]) == tuple(size):
            return x[:, None]
        raise ValueError(f"inputs have shape {tuple(x.shape)}; use samples as the source has them, [B, *{self.shape}]")

    def extra_repr(self) -> str:
        return f"shape={self.shape}"


def with_channels_last(x: Tensor) -> Tensor:
    """Images `x [B, C, H, W]` laid out in memory as `[B, H, W, C]`.

    For grey images `memory_format=torch.channels_last` would change no stride, and the following layers would use the
    slower layout.
    """
    return x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
