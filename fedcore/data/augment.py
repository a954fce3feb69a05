"""Random augmentation of images on the device, drawn on the host from hashes alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from .. import checks, rng
from ..extras import needs

UNSIGNED = ("Identity", "AutoContrast", "Equalize", "Solarize", "Posterize")
SIGNED = (
    "Rotate", "Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
OPERATIONS = UNSIGNED + SIGNED


@dataclass(frozen=True)
class RandAugment:
    """`num_ops` operations in a row on each training image, drawn uniformly with replacement (Cubuk et al. 2020).

    The 14 operations of the paper, through `torchvision.transforms.v2`, with one magnitude for all: 0 to 10, where 10
    is full strength (11 bins; torchvision's own default has 31, so that 10 there is a third).  Operations with a
    direction (rotation, shear, translation, and the four enhancements) draw its sign.  At full strength: 30 degrees,
    shear 0.3, translation by 150/331 of the side, enhancement by 1 +- 0.9, 4 bits, and every pixel solarized.
    Grey images: Color leaves them as they are.

    once: False augments each batch anew.  True does it before training: each client's data are expanded by one
    augmented copy of every image, so N_i doubles.
    Raises ValueError for num_ops < 1 and magnitudes outside 0..10.
    """

    num_ops: Annotated[int, checks.Within(1, 100)] = 2
    magnitude: Annotated[int, checks.Within(0, 10)] = 10
    once: bool = False

    __post_init__ = checks.fields

    def draws(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the operations and whether their sign is negative, `[num_ops, N]` each, from N random words."""
        h = np.stack([rng.words(words, slot) for slot in range(self.num_ops)])
        operation = (h % np.uint64(len(OPERATIONS))).astype(int)
        return operation, (h >> np.uint64(63)).astype(bool) & (operation >= len(UNSIGNED))

    def __call__(self, x: Tensor, words: np.ndarray) -> Tensor:
        """Augmented copies of the uint8 images `x [N, C, H, W]`, C = 1 or 3, by one random word each.

        Images with the same operation are treated together: at most 22 calls a slot, whatever N is.
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
            "Color": lambda x: _saturation(x, 1 + sign * 0.9 * m),
            "Posterize": lambda x: F.posterize(x, round(8 - 4 * m)),
            "Contrast": lambda x: _contrast(x, 1 + sign * 0.9 * m),
            "Brightness": lambda x: F.adjust_brightness(x, 1 + sign * 0.9 * m),
            "Sharpness": lambda x: F.adjust_sharpness(x, 1 + sign * 0.9 * m),
        }[name]


def _blend(x: Tensor, other: Tensor, factor: float) -> Tensor:
    """factor x + (1 - factor) other of uint8 images, as torchvision's in float32 with a fused multiply-add.

    Many of these sums are whole numbers but for rounding, and are cut to whole numbers; so a processor that rounds
    product and sum apart would give other images.  The sum is exact in float64, and rounded once.
    """
    rest = torch.tensor(1 - factor, dtype=torch.float32, device=x.device).double()
    return ((factor * x.float()).double() + rest * other.double()).float().clamp(0, 255).to(torch.uint8)


def _saturation(x: Tensor, factor: float) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    return _blend(x, F.rgb_to_grayscale(x), factor) if x.shape[1] == 3 else x


def _contrast(x: Tensor, factor: float) -> Tensor:
    from torchvision.transforms.v2 import functional as F

    return _blend(x, F.rgb_to_grayscale(x).float().mean((1, 2, 3), keepdim=True), factor)
