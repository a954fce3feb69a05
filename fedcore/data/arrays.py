"""Sources: arrays of one data set, checked and brought into one shape."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import checks, rng

CLASSES = {"cifar100": 100, "femnist": 62, "shakespeare": 80, "roles": 80, "tiny-imagenet": 200}
MOST_CLASSES = 1_000_000
TEXTS = ("shakespeare", "roles")
LAYOUTS = {
    "image": "[N, H, W], [N, C, H, W] or [N, H, W, C]", "features": "[N, F]", "sequence": "[N, L] or [N, L, F]",
    "text": "[N, L] of whole numbers",
}  # fmt: skip
PACK = "an .npz with train_images, train_labels, test_images, test_labels (optional train_owner, test_owner)"


class DataNotFound(FileNotFoundError):
    """The data is not on this machine and could not be downloaded."""


@dataclass(frozen=True)
class Source:
    """Arrays of one data set: images `[N, C, H, W]` (uint8 where the data is), features `[N, F]`, sequences `[N, L, F]`
    or `[N, L]`, texts `[N, L]`.

    owner: natural client of each sample, or None.  `text` marks token sequences, which are never normalised.
    domains: the names of the owners by their number, where they have names.  validation: samples, labels and owners
    that were taken from the training set to choose settings on (`with_validation`).  by_client: whether the owners are
    the clients, since the data came client by client.  given: for each training sample of the data as they were given,
    its row of train_x, or -1 where it was taken out; None: all are there.
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    train_owner: np.ndarray | None = None
    test_owner: np.ndarray | None = None
    text: bool = False
    domains: tuple[str, ...] = ()
    validation: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None
    by_client: bool = False
    given: np.ndarray | None = None

    @property
    def layout(self) -> str:
        """What a sample is: one of `LAYOUTS`."""
        return "text" if self.text else {2: "features", 3: "sequence", 4: "image"}[self.train_x.ndim]

    @property
    def has_classes(self) -> bool:
        """Whether targets are class labels `[N]`, and not real numbers or several a sample."""
        return self.train_y.ndim == 1 and self.train_y.dtype.kind in "iu"

    def keeping(self, kept: np.ndarray) -> Source:
        """The source with these of its training samples alone, `[N]` bool."""
        rows = np.where(kept, np.cumsum(kept) - 1, -1)
        given = rows if self.given is None else np.where(self.given < 0, -1, rows[self.given])
        owner = None if self.train_owner is None else self.train_owner[kept]
        return replace(self, train_x=self.train_x[kept], train_y=self.train_y[kept], train_owner=owner, given=given)

    def with_validation(self) -> Source:
        """The source with part of its training samples as validation data; the same part in every run.

        Every fifth training sample where there are fewer than 10,000, else 10 % of them, at most 5,000; of each owner
        his share where there are owners.  Which ones does not depend on a seed.  ValueError where an owner or the
        source has too few samples to give one.
        """
        owner = np.zeros(len(self.train_y), int) if self.train_owner is None else self.train_owner
        small = len(owner) < 10_000
        share = 0.2 if small else min(0.1, 5000 / len(owner))
        # every fifth in the order of the data; in large sets, which may be ordered by label, drawn without a seed
        order = np.arange(len(owner)) if small else np.argsort(rng.words(0, rng.DATA, np.arange(len(owner))))
        taken = np.zeros(len(owner), bool)
        for one in np.unique(owner):
            rows = order[owner[order] == one]
            taken[rows[np.diff(np.floor(np.arange(len(rows) + 1) * share)) > 0]] = True
        if not taken.any():
            raise ValueError(f"{len(owner)} training samples are too few for validation data; use validation=False")
        out = None if self.train_owner is None else self.train_owner[taken]
        return replace(self.keeping(~taken), validation=(self.train_x[taken], self.train_y[taken], out))


def data_root(root: str | os.PathLike | None = None) -> Path:
    """The data root: the argument, else the environment's FEDCORE_DATA, else `~/.cache/fedcore`."""
    return Path(os.path.expanduser(root or os.environ.get("FEDCORE_DATA") or Path("~", ".cache", "fedcore")))


def from_arrays(
    name: str,
    x: Any,
    y: Any,
    test_x: Any,
    test_y: Any,
    layout: str | None = None,
    targets: bool = False,
    **extra: Any,
) -> Source:
    """Check and shape arrays or tensors.

    targets: y may be other than classes: real numbers, or several a sample, `[N, ...]`.
    layout: one of `LAYOUTS`; None: `[N]` and `[N, F]` are features, `[N, H, W]` of bytes or of squares and arrays with
    four axes images.  extra: fields of `Source`.

    Raises ValueError for NaN, wrong shapes, labels that are not 0..C-1, and arrays that may be images or sequences.
    """
    x, y, test_x, test_y = (as_array(part) for part in (x, y, test_x, test_y))
    for what, inputs, labels in (("training", x, y), ("test", test_x, test_y)):
        if not inputs.ndim or not labels.ndim or len(inputs) != len(labels) or (labels.ndim > 1 and not targets):
            more = "" if targets or labels.ndim < 2 else ", or loss= for several targets per input"
            raise ValueError(
                f"{what} inputs {inputs.shape} do not fit labels {labels.shape}; give one integer label per input{more}"
            )
        if len(labels) == 0:
            raise ValueError(f"the {what} set is empty; give at least one sample")
        if inputs.dtype.kind not in "fiub":
            raise ValueError(f"{what} inputs of type {inputs.dtype} are not numbers; use an array of real numbers")
        if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
            bad = int((~np.isfinite(inputs.reshape(len(inputs), -1)).all(1)).sum())
            raise ValueError(f"{bad} {what} inputs hold NaN or infinity; clean or drop them first")
        if not math.prod(inputs.shape):
            raise ValueError(
                f"{what} inputs of shape {inputs.shape} hold no numbers; give samples of one number at least"
            )
        if inputs.dtype.kind == "f" and np.abs(inputs).max() > np.finfo(np.float32).max:
            raise ValueError(f"{what} inputs reach {np.abs(inputs).max():g}, beyond float32; scale them")
        _check_labels(what, labels, targets)
    y, test_y, classes = _classes(y, test_y, targets, extra.pop("classes", None))
    layout = _guess(x) if layout is None else checks.choice("layout", layout, LAYOUTS)
    x, test_x = (_laid_out(part, layout) for part in (x, test_x))
    if x.ndim == 4 and (x.dtype == np.uint8) != (test_x.dtype == np.uint8):
        raise ValueError(
            f"training images are {x.dtype} and test images {test_x.dtype}, but bytes are normalised and other numbers "
            "are not; give both in one type"
        )
    if x.shape[1:] != test_x.shape[1:]:
        raise ValueError(f"training inputs {x.shape[1:]} and test inputs {test_x.shape[1:]} differ in shape")
    for key, labels in (("train_owner", y), ("test_owner", test_y)):
        owner = extra.get(key)
        if owner is not None and owner.shape != labels.shape[:1]:
            raise ValueError(f"{key} has shape {owner.shape}, the labels {labels.shape}; give one owner per sample")
    return Source(name, x, y, test_x, test_y, classes, text=layout == "text", **extra)


def _check_labels(what: str, labels: np.ndarray, targets: bool) -> None:
    whole = labels.dtype.kind in "iub" or (
        labels.dtype.kind == "f" and not targets and (labels == np.rint(labels)).all()
    )
    if not whole and not (targets and labels.dtype.kind == "f"):
        more = ", or loss= for targets that are no classes" if labels.dtype.kind == "f" else ""
        raise ValueError(f"{what} labels of type {labels.dtype} are not integers; use classes 0..C-1{more}")
    if targets and labels.dtype.kind == "f" and not np.isfinite(labels).all():
        bad = int((~np.isfinite(labels.reshape(len(labels), -1)).all(1)).sum())
        raise ValueError(f"{bad} {what} targets hold NaN or infinity; clean or drop them first")


def _classes(
    y: np.ndarray, test_y: np.ndarray, targets: bool, classes: int | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Labels as int64 and how many classes there are; or targets, and how many numbers a sample has."""
    if y.shape[1:] != test_y.shape[1:]:
        raise ValueError(f"training targets {y.shape[1:]} and test targets {test_y.shape[1:]} differ in shape")
    real = targets and "f" in (y.dtype.kind, test_y.dtype.kind)
    kind = np.result_type(np.float32, y.dtype, test_y.dtype) if real else np.int64
    y, test_y = y.astype(kind), test_y.astype(kind)
    if real or y.ndim > 1:
        return y, test_y, math.prod(y.shape[1:])
    low, high = min(y.min(), test_y.min()), max(y.max(), test_y.max())
    classes = classes or int(high) + 1
    if classes > MOST_CLASSES:
        raise ValueError(
            f"labels run from {low} to {high}, which would be {classes:,} classes; number them 0..C-1 without gaps, as "
            "np.unique(y, return_inverse=True)[1] does"
        )
    if low < 0 or high >= classes:
        raise ValueError(f"labels run from {low} to {high}; allowed are 0..{classes - 1}")
    return y, test_y, classes


def as_array(part: Any) -> np.ndarray:
    """An array of an array, a tensor, or a list of either; ValueError where samples differ in shape."""
    if hasattr(part, "detach"):
        part = part.detach().cpu().numpy()
    if isinstance(part, list | tuple) and part and hasattr(part[0], "detach"):
        return stacked(part, "sample")
    try:
        array = np.asarray(part)
    except ValueError:  # NumPy's own message does not say which sample it is
        return stacked(part, "sample")
    return stacked(array, "sample") if array.dtype == object and array.ndim == 1 and len(array) else array


def stacked(parts: Sequence[Any], what: str) -> np.ndarray:
    """One array of samples; ValueError naming the first that differs from sample 0 in shape."""
    arrays = [as_array(part) for part in parts]
    for k, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ValueError(
                f"{what} {k} has shape {array.shape}, {what} 0 has {arrays[0].shape}; give samples of one shape "
                "(resize, crop or pad them)"
            )
    return np.stack(arrays)


def _guess(x: np.ndarray) -> str:
    if x.ndim == 3 and x.dtype != np.uint8 and x.shape[1] != x.shape[2]:
        raise ValueError(
            f"inputs of shape {x.shape} and type {x.dtype} may be grey images or sequences; say which: layout='image' "
            "[N, H, W], layout='sequence' [N, L, F], or layout='features' of x.reshape(len(x), -1) (layout='text' "
            "takes whole numbers [N, L])"
        )
    if x.ndim > 4:
        raise ValueError(f"inputs of shape {x.shape}; use [N, F], [N, H, W], [N, C, H, W] or [N, H, W, C]")
    return "image" if x.ndim > 2 else "features"


def _laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """Whole numbers of texts, uint8 and float64 stay; other numbers become float32; channels come first."""
    axes = x.ndim
    if layout == "text":
        if x.dtype.kind not in "iu" or axes != 2:
            raise _unfit(x, layout)
        return np.ascontiguousarray(x)
    x = x if x.dtype in (np.uint8, np.float64) else x.astype(np.float32)
    if axes not in {"image": (3, 4), "features": (1, 2), "sequence": (2, 3)}[layout]:
        raise _unfit(x, layout)
    if (layout, axes) in (("image", 3), ("features", 1)):
        x = x[:, None]
    if axes == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _unfit(x: np.ndarray, layout: str) -> ValueError:
    others = "; ".join(f"{name!r}: {shape}" for name, shape in LAYOUTS.items())
    return ValueError(
        f"inputs of shape {x.shape} and type {x.dtype} do not fit layout={layout!r}; give one of {others}"
    )


def from_mapping(name: str, z: Mapping[str, Any], layout: str | None = None, targets: bool = False) -> Source:
    try:
        arrays = [z[k] for k in ("train_images", "train_labels", "test_images", "test_labels")]
    except KeyError as e:
        raise ValueError(f"{e} is missing; give {PACK}") from e
    extra = {k: np.asarray(z[k]) for k in ("train_owner", "test_owner") if k in z}
    layout = "text" if name in TEXTS else layout
    return from_arrays(name, *arrays, layout, targets, classes=CLASSES.get(name), **extra)
