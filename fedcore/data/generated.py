"""Public data that are drawn from what the clients tell about theirs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from .. import rng
from ..support import checks
from .arrays import Source
from .lists import Lists

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Gaussians(checks.Named):
    """Public samples that the server draws from one Gaussian for each class, for `fc.FedGSE(public=fc.Gaussians())`.

    Before the first round each client sends, for each class of which it has samples, how many there are and, entry by
    entry of the inputs as they are stored, their mean and the sum of their squared differences from it: 2 D + 1 numbers
    for inputs of D entries.  The server merges what all clients send and so knows mean and variance `[D]` of each class
    over all clients.  Entries are drawn independently of each other; where the data are bytes they are rounded and cut
    to 0..255, which moves mean and variance a little.  The draws depend on the seed of the federation, the class and
    the sample's number.

    What is sent is not protected: a client with a single sample of a class sends this sample.  The FedGSE study 2024,
    section 4.2.1, names generative models that clients train; this is the simplest model.

    per_class: samples of each class that any client has.
    Raises ValueError for per_class < 1, and, when they are drawn, for targets that are no class labels, for texts, and
    where all clients together have a single sample of a class.
    """

    per_class: checks.Count = 10

    __post_init__ = checks.fields

    def samples(self, source: Source, parts: Lists, seed: int) -> Arrays:
        """Inputs `[P, ...]` in the type of the source's and labels `[P]`, for the clients whose rows are `parts`."""
        if source.text or not source.has_classes:
            what = "texts" if source.text else f"targets {source.train_y.dtype} {source.train_y.shape}"
            raise ValueError(f"public={self!r} needs inputs of numbers and class labels [N], not {what}; give (x, y)")
        sent = (moments(source.train_x[part], source.train_y[part], source.classes) for part in parts)
        count, mean, squares = reduce(merged, sent)
        held = np.flatnonzero(count)
        if count[held].min() < 2:
            raise ValueError(
                f"public={self!r}: one class has a single sample, which its mean would hand over; "
                "give (x, y), or leave this class out of the data"
            )
        mean, variance = mean[held], squares[held] / count[held, None]
        keys = rng.words(seed, rng.PUBLIC, held.repeat(self.per_class), np.tile(np.arange(self.per_class), len(held)))
        x = rng.normals(keys, mean.shape[1]) * np.sqrt(variance).repeat(self.per_class, 0)
        x += mean.repeat(self.per_class, 0)
        if source.train_x.dtype == np.uint8:
            x = np.rint(x).clip(0, 255)
        return x.astype(source.train_x.dtype).reshape(-1, *source.train_x.shape[1:]), held.repeat(self.per_class)


Moments = tuple[np.ndarray, np.ndarray, np.ndarray]


def moments(x: np.ndarray, y: np.ndarray, classes: int) -> Moments:
    """What a client with inputs `x [N, ...]` and labels `y [N]` sends: the number of its samples of each class `[C]`,
    their means `[C, D]` and the sums of their squared differences from these `[C, D]`; 0 for a class without samples.
    """
    flat, own = x.reshape(len(x), -1).astype(np.float64), np.eye(classes)[y]
    count = own.sum(0)
    mean = own.T @ flat / np.maximum(count, 1)[:, None]
    return count, mean, own.T @ (flat - mean[y]) ** 2


def merged(a: Moments, b: Moments) -> Moments:
    """The moments of two sets of samples together.  No large sums are subtracted from each other (Chan, Golub and
    LeVeque 1983), so that an offset of the data costs the variance no digits."""
    count, apart = a[0] + b[0], b[1] - a[1]
    share = (b[0] / np.maximum(count, 1))[:, None]
    return count, a[1] + share * apart, a[2] + b[2] + a[0][:, None] * share * apart**2
