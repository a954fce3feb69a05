"""Sources: where images, texts and labels come from, online or offline.

A name is looked for in this order: `NAME.npz` in the data root; `domains` for "digit-domains" and "digits-five";
scikit-learn's digits for "digits"; LEAF folders for "femnist" and "shakespeare"; an ImageFolder tree for
"tiny-imagenet"; torchvision for the rest.  "roles" is synthetic and made on the spot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .arrays import Source, as_array, data_root, from_arrays, from_mapping
from .domains import digit_domains, digits_five
from .readers import EMNIST_SPLITS, pack, read

NAMES = (
    "digits", "mnist", "fashionmnist", *(f"emnist-{s}" for s in EMNIST_SPLITS), "cifar10", "cifar100", "svhn", "usps",
    "femnist", "shakespeare", "tiny-imagenet", "digit-domains", "digits-five", "roles",
)  # fmt: skip
SPELLINGS = {"emnist": "emnist-balanced", "fashion-mnist": "fashionmnist", "tinyimagenet": "tiny-imagenet"}


def load(source: Any, root: str | os.PathLike | None = None, download: bool = True) -> Source:
    """A `Source` from a name, a `Source`, a mapping with npz keys, `(x, y)` or `((x, y), (test_x, test_y))`.

    From a single pair every fifth sample is taken as the test set.  Raises DataNotFound when the named data is
    neither in the data root nor downloadable, ValueError for unknown names and malformed arrays.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        return _named(source.lower(), root, download)
    if isinstance(source, Mapping):
        return from_mapping("arrays", source)
    if isinstance(source, tuple) and len(source) == 2:
        if isinstance(source[0], tuple):
            (x, y), (tx, ty) = source
            return from_arrays("arrays", x, y, tx, ty)
        x, y = (as_array(part) for part in source)
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise ValueError(f"inputs {x.shape} do not fit labels {y.shape}; give one integer label per input")
        held_out = np.arange(len(y)) % 5 == 4
        return from_arrays("arrays", x[~held_out], y[~held_out], x[held_out], y[held_out])
    raise TypeError(f"source={type(source).__name__}; use a name ({', '.join(NAMES)}), a pair of arrays, or a mapping")


def _named(name: str, root: str | os.PathLike | None, download: bool) -> Source:
    name, folder = SPELLINGS.get(name, name), data_root(root)
    if not pack(name, folder).is_file():
        if name not in NAMES:
            raise ValueError(
                f"source={name!r} is not known and {pack(name, folder)} does not exist; known are {', '.join(NAMES)}"
            )
        if name == "digit-domains":
            return digit_domains()
        if name == "digits-five":
            return digits_five(root=root, download=download)
    return read(name, folder, download)
