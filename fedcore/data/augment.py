"""Random augmentation of images on the device, whose random numbers are hashes of seed, round, client and sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import rng
from ..support import checks
from ..support.extras import needs
from .arrays import Source

UNSIGNED = ("Identity", "AutoContrast", "Equalize", "Solarize", "Posterize")
SIGNED = (
    "Rotate", "Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
OPERATIONS = UNSIGNED + SIGNED


@dataclass(frozen=True)
class RandAugment(checks.Named):
    """`num_ops` successive operations on each training image, drawn uniformly with replacement (Cubuk et al. 2020).

    The 14 operations of the paper, through `torchvision.transforms.v2`, share one magnitude from 0 to 10, where 10 is
    full strength (11 bins; torchvision's default has 31 bins, so its 10 is a third of full strength).  Operations with
    a direction (rotation, shear, translation, and the four enhancements) draw its sign.  Full strength is 30 degrees,
    shear 0.3, translation by 150/331 of the side, enhancement by 1 +- 0.9, 4 bits, and every pixel solarized.
    Color does not change grey images.

    once: False augments each batch anew.  True does it before training: each client's data are expanded by one
    augmented copy of every image, so N_i doubles.
    Raises ValueError for num_ops < 1 and magnitudes outside 0..10.
    """

    num_ops: Annotated[int, checks.Within(1, 100)] = 2
    magnitude: Annotated[int, checks.Within(0, 10)] = 10
    once: bool = False

    __post_init__ = checks.fields

    def draws(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The operations' indices, and whether their signs are negative, `[num_ops, N]` each, from N random words."""
        h = np.stack([rng.words(words, slot) for slot in range(self.num_ops)])
        operation = (h % np.uint64(len(OPERATIONS))).astype(int)
        return operation, (h >> np.uint64(63)).astype(bool) & (operation >= len(UNSIGNED))

    def __call__(self, x: Tensor, words: np.ndarray) -> Tensor:
        """Augmented copies of the uint8 images `x [N, C, H, W]`, C = 1 or 3, with one random word for each.

        Images with the same operation are computed together, in at most 22 calls for each of the num_ops slots.
        """
        operation, negative = self.draws(words)
        group = 2 * operation + negative
        order = np.argsort(group, axis=1, kind="stable")
        places, x = torch.as_tensor(order).to(x.device), x.clone()
        for slot in range(self.num_ops):
            kinds, counts = np.unique(group[slot], return_counts=True)
            for kind, place in zip(kinds.tolist(), places[slot].split(counts.tolist()), strict=True):
                if kind > 1:  # 0 is the identity
                    x[place] = self.operation(OPERATIONS[kind // 2], bool(kind % 2), x.shape[2:])(x[place])
        return x

    @needs("data", "RandAugment")
    def operation(self, name: str, negative: bool, size: tuple[int, int]) -> Callable[[Any], Any]:
        """One operation at this magnitude, a function of images."""
        from torchvision.transforms.v2 import functional as F

        m = self.magnitude / 10
        sign = -1 if negative else 1
        by = 1 + sign * 0.9 * m
        if name.startswith(("Shear", "Translate")):
            shear = [0.0, 0.0]
            shift, axis = [0, 0], int(name.endswith("Y"))
            if name.startswith("Shear"):
                shear[axis] = math.degrees(math.atan(sign * 0.3 * m))
                return lambda x: F.affine(x, angle=0.0, translate=shift, scale=1.0, shear=shear, center=[0, 0])
            shift[axis] = sign * int(150 / 331 * size[1 - axis] * m)
            return lambda x: F.affine(x, angle=0.0, translate=shift, scale=1.0, shear=shear)
        return {
            "Identity": lambda x: x,
            "AutoContrast": F.autocontrast,
            "Equalize": F.equalize,
            "Rotate": lambda x: F.rotate(x, sign * 30.0 * m),
            "Solarize": lambda x: F.solarize(x, 255 * (1 - m)),
            "Color": lambda x: _blend(x, F.rgb_to_grayscale(x), by) if x.shape[1] == 3 else x,
            "Posterize": lambda x: F.posterize(x, round(8 - 4 * m)),
            "Contrast": lambda x: _blend(x, F.rgb_to_grayscale(x).float().mean((1, 2, 3), keepdim=True), by),
            "Brightness": lambda x: F.adjust_brightness(x, by),
            "Sharpness": lambda x: F.adjust_sharpness(x, by),
        }[name]


@dataclass(frozen=True)
class CropFlip(checks.Named):
    """A random crop of each training image padded by `padding` black pixels, and a left-right flip half the time.

    The usual augmentation of CIFAR (He et al. 2016: 4 pixels), for images of any size and any number of channels, drawn
    anew for each image in each batch.  flip: False leaves the flip out.
    Raises TypeError or ValueError for a padding that is no whole number from 0 to 1000.
    """

    padding: Annotated[int, checks.Within(0, 1000)] = 4
    flip: bool = True
    once = False

    __post_init__ = checks.fields

    def __call__(self, x: Tensor, words: np.ndarray) -> Tensor:
        """Augmented copies of the uint8 images `x [N, C, H, W]`, with one random word for each."""
        p, (height, width) = self.padding, x.shape[2:]
        down, right, side = (rng.words(words, slot) for slot in range(3))
        rows = (down % np.uint64(2 * p + 1)).astype(int)[:, None] + np.arange(height)
        columns = (right % np.uint64(2 * p + 1)).astype(int)[:, None] + np.arange(width)
        if self.flip:
            columns = np.where((side >> np.uint64(63)).astype(bool)[:, None], columns[:, ::-1], columns)
        rows, columns = (torch.as_tensor(at).to(x.device) for at in (rows, columns))
        n, c = (torch.arange(size, device=x.device) for size in x.shape[:2])
        padded = F.pad(x, (p, p, p, p))
        return padded[n[:, None, None, None], c[:, None, None], rows[:, None, :, None], columns[:, None, None]]


@dataclass(frozen=True)
class Own:
    """A user's function `(uint8 images [N, C, H, W], torch.Generator) -> images`, called for one client's batch at a
    time, so that its draws do not depend on other clients."""

    function: Callable[[Tensor, torch.Generator], Tensor]
    once = False

    def __call__(self, x: Tensor, word: int) -> Tensor:
        """Augmented copies of one client's images; ValueError for another type, shape or device."""
        out = self.function(x.clone(), torch.Generator(x.device).manual_seed(int(word) & 0x7FFFFFFFFFFFFFFF))
        usual = isinstance(out, Tensor) and out.dtype == torch.uint8
        if not usual or out.shape != x.shape or out.device != x.device:
            what = f"{out.dtype} {tuple(out.shape)} on {out.device}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"augment={checks.brief(self.function)} gave {what}; return uint8 images of shape {tuple(x.shape)} on "
                f"{x.device}, as they were given"
            )
        return out

    def batches(self, x: Tensor, words: np.ndarray, counts: Sequence[int]) -> Tensor:
        """Augmented copies of the images `x [m, B, C, H, W]` of m clients, with one random word for each client.

        Client i has `counts[i]` images; padding is not changed.
        """
        out = x.clone()
        for row, word, count in zip(range(len(x)), words, counts, strict=True):
            if count:
                out[row, :count] = self(x[row, :count], word)
        return out

    def checked(self, x: Tensor) -> Own:
        """Itself, after a trial on some images; ValueError where it draws from a global generator."""
        with rng.seeded(0):
            before = rng.global_states()
            try:
                first, again = self(x, 0), self(x, 0)
            except Exception as e:  # whatever a function of the user's raises
                raise ValueError(
                    f"augment={checks.brief(self.function)} does not take uint8 images {tuple(x.shape)} and a "
                    f"torch.Generator ({type(e).__name__}: {e}); use a function (images [N, C, H, W], generator) -> "
                    "images, or fc.CropFlip(4)"
                ) from e
            if rng.global_states() != before or not torch.equal(first, again):
                raise ValueError(
                    f"augment={checks.brief(self.function)} draws from another generator than the one that it is "
                    "given, so runs could not be repeated; draw with torch.rand(n, generator=generator), or use "
                    "fc.CropFlip(4)"
                )
        return self


def augmentation(given: Any, source: Source) -> RandAugment | CropFlip | Own | None:
    """The augmentation given as `augment=`, or None.

    Raises TypeError for anything but an augmentation or a function, ValueError where the source's samples are no images
    for it, and for a function that does not take them.
    """
    if given is None:
        return None
    if not callable(given) or isinstance(given, type):
        raise TypeError(
            f"augment={checks.brief(given)}; use fc.RandAugment(), fc.CropFlip(4), a function (uint8 images "
            "[N, C, H, W], torch.Generator) -> images, or None"
        )
    x, few = source.train_x, isinstance(given, RandAugment)
    if source.text or x.dtype != np.uint8 or x.ndim != 4 or (few and x.shape[1] not in (1, 3)):
        raise ValueError(
            f"augment={given!r} needs uint8 images{' with 1 or 3 channels' if few else ''}, the data is {x.dtype} of "
            f"shape {x.shape[1:]}; use augment=None"
        )
    known = isinstance(given, RandAugment | CropFlip)
    return given if known else Own(given).checked(torch.as_tensor(x[:8].copy()))


def _blend(x: Tensor, other: Tensor, factor: float) -> Tensor:
    """factor x + (1 - factor) other of uint8 images, as torchvision computes it in float32 with a fused multiply-add.

    Many of these sums are whole numbers up to rounding and are then truncated, so a processor that rounds product and
    sum separately would give other images.  Here the sum is exact in float64 and rounded once.
    """
    rest = torch.tensor(1 - factor, dtype=torch.float32, device=x.device).double()
    return ((factor * x.float()).double() + rest * other.double()).float().clamp(0, 255).to(torch.uint8)
