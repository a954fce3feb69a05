"""Sources: the arrays of one data set, checked and in a standard layout."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..support import checks

CLASSES = {"cifar100": 100, "femnist": 62, "shakespeare": 80, "roles": 80, "tiny-imagenet": 200}
MOST_CLASSES = 1_000_000
TEXTS = ("shakespeare", "roles")
LAYOUTS = {  # the numbers of axes that inputs may have, and their meaning
    "image": ((3, 4), "[N, H, W], [N, C, H, W] or [N, H, W, C]"), "channels_first": ((4,), "[N, C, H, W]"),
    "channels_last": ((4,), "[N, H, W, C]"), "features": ((1, 2), "[N, F]"),
    "sequence": ((2, 3), "[N, L] or [N, L, F]"), "text": ((2,), "[N, L] of whole numbers"),
}  # fmt: skip
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
PACK = f"an .npz with {', '.join(PARTS)} (optional train_owner, test_owner)"
NUMPYS = (torch.float16, torch.float32, torch.float64)
READ_AS = {"1": "L", **dict.fromkeys(("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "RGBa"), "RGB")}  # PIL modes


class DataNotFound(FileNotFoundError):
    """The data is not on this machine and could not be downloaded."""


@dataclass(frozen=True)
class Source:
    """Arrays of one data set: images `[N, C, H, W]` (uint8 where the data are bytes), features `[N, F]`, sequences
    `[N, L, F]` or `[N, L]`, texts `[N, L]`.

    train_owner, test_owner: the natural client of each sample, or None.  text: whether inputs are token sequences,
    which are never normalised.  domains: the owners' names by their number, if any.  validation: samples, labels and
    owners taken from the training set for hyperparameter tuning (`with_validation`).  by_client: whether the owners are
    the clients, because the data were given client by client.  given: for each training sample as it was given, its row
    of train_x, or -1 where it was taken out; None: no sample was taken out.
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

    __repr__ = checks.as_call

    @property
    def layout(self) -> str:
        """The kind of samples, a name in `LAYOUTS`."""
        return "text" if self.text else {2: "features", 3: "sequence", 4: "image"}[self.train_x.ndim]

    @property
    def has_classes(self) -> bool:
        """Whether targets are class labels `[N]` instead of real numbers or several values per sample."""
        return self.train_y.ndim == 1 and self.train_y.dtype.kind in "iu"

    def copied(self) -> Source:
        """The source with copies of its arrays, checked again because the caller may have replaced fields."""
        x, owner = self.train_x, None if self.validation is None else self.validation[2]
        layout = "text" if self.text else {2: "features", 3: "sequence"}.get(np.ndim(x), "channels_first")
        names = ("classes", "train_owner", "test_owner", "domains", "by_client", "given")
        held = {name: copy.copy(getattr(self, name)) for name in names}
        if self.given is not None and (as_array(self.given) >= 0).sum() != len(x):
            raise ValueError(f"{len(x)} training samples do not fit the source's given; use given=None")
        validation = None if self.validation is None else (*self.validation[:2], copy.copy(owner))
        return from_arrays(self.name, x, self.train_y, self.test_x, self.test_y, layout, True, validation, **held)

    def keeping(self, kept: np.ndarray) -> Source:
        """The source with only those training samples where `kept [N]` is true."""
        rows = np.where(kept, np.cumsum(kept) - 1, -1)
        given = rows if self.given is None else np.where(self.given < 0, -1, rows[self.given])
        owner = None if self.train_owner is None else self.train_owner[kept]
        return replace(self, train_x=self.train_x[kept], train_y=self.train_y[kept], train_owner=owner, given=given)

    def with_validation(self) -> Source:
        """The source with part of its training samples as validation data; the same part in every run.

        They are every fifth training sample where there are fewer than 10,000, else 10 % of them, at most 5,000; where
        there are owners, the same share of each owner's samples.  The choice does not depend on a seed.  Raises
        ValueError where the source has too few samples.
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
    validation: tuple[Any, Any, np.ndarray | None] | None = None,
    **extra: Any,
) -> Source:
    """Check and shape arrays or tensors; the source has copies of them.

    targets: whether y may be real numbers or several values per sample, `[N, ...]`, instead of classes.
    layout: a name in `LAYOUTS`.  None: `[N]` and `[N, F]` are features; arrays with four axes, and `[N, H, W]` of bytes
    or with H = W, are images.  The channels of images with four axes are axis 1 or the last axis: the one of length 1
    or 3, the one beside two equal sides, or the one shorter than 5; where these rules disagree or none applies, a
    ValueError asks for the layout.
    validation: inputs, labels and owners of validation data.  extra: fields of `Source`; without `classes` their number
    is the largest label plus 1.

    Raises ValueError for NaN, wrong shapes, missing or masked values, labels that are negative or no whole numbers,
    missing owners, and arrays that allow two layouts.
    """
    given = {"training": (x, y), "test": (test_x, test_y)}
    if validation is not None:
        given["validation"] = validation[:2]
    xs, ys = ([as_array(pair[k], label=k == 1) for pair in given.values()] for k in range(2))
    for what, inputs, labels in zip(given, xs, ys, strict=True):
        check_inputs(what, inputs, labels, targets)
        _check_labels(what, labels, targets)
    ys, classes = _classes(ys, targets, extra.pop("classes", None))
    layout = _guess(xs[0]) if layout is None else checks.choice("layout", layout, LAYOUTS)
    shaped = [_laid_out(part, layout) for part in xs]
    shaped = [b.copy() if np.may_share_memory(a, b) else b for a, b in zip(xs, shaped, strict=True)]
    x = shaped[0]
    for what, part in zip(given, shaped, strict=True):
        bytes_differ = x.ndim == 4 and (x.dtype == np.uint8) != (part.dtype == np.uint8)
        if x.shape[1:] != part.shape[1:] or bytes_differ:
            kind = "images" if x.ndim == 4 else "inputs"
            raise ValueError(
                f"training {kind} {x.dtype} {x.shape[1:]} and {what} {kind} {part.dtype} {part.shape[1:]} differ in "
                "shape, or are bytes, which are normalised, and other numbers; give both in one shape and one type"
            )
    for key, labels in (("train_owner", ys[0]), ("test_owner", ys[1])):
        if extra.get(key) is not None:
            extra[key] = _owners(key, np.array(as_array(extra[key])), labels)
    kinds = {extra[key].dtype.kind in "US" for key in ("train_owner", "test_owner") if extra.get(key) is not None}
    if len(kinds) > 1:
        raise ValueError("train_owner and test_owner are numbers and texts; give both in one kind, or none is the same")
    if validation is not None:
        extra["validation"] = (shaped[2], ys[2], validation[2])
    return Source(name, x, ys[0], shaped[1], ys[1], classes, text=layout == "text", **extra)


def check_inputs(what: str, inputs: np.ndarray, labels: np.ndarray, targets: bool) -> None:
    """ValueError for inputs that are no finite numbers, or do not fit the labels; what: the set's name."""
    if not inputs.ndim or not labels.ndim or len(inputs) != len(labels) or (labels.ndim > 1 and not targets):
        raise ValueError(
            f"{what} inputs {inputs.shape} do not fit labels {labels.shape}; give one integer label per input, as "
            "y.ravel() of a column and y.argmax(1) of one-hot rows are, or loss= for several targets per input"
        )
    if not inputs.size:
        raise ValueError(f"the {what} set is empty: inputs {inputs.shape} hold no numbers; give at least one sample")
    kind = inputs.dtype.kind
    if kind not in "fiub" or (kind == "f" and not (np.abs(inputs) <= np.finfo(np.float32).max).all()):
        raise ValueError(
            f"{what} inputs of type {inputs.dtype} are not numbers, or hold NaN, infinity or numbers beyond float32; "
            "clean or drop or scale them"
        )


def _check_labels(what: str, labels: np.ndarray, targets: bool) -> None:
    kind = labels.dtype.kind
    if kind == "f":
        fits = np.isfinite(labels).all() and (targets or (labels == np.rint(labels)).all())
    else:
        fits = kind in "iub"
    if not fits:
        raise ValueError(
            f"{what} labels of type {labels.dtype} are not integers, or hold NaN or infinity; clean or drop missing "
            "values and use classes 0..C-1, as np.unique(y, return_inverse=True)[1] makes them, or loss= for finite "
            "targets that are no classes"
        )


def _owners(key: str, owner: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if owner.shape != labels.shape[:1]:
        raise ValueError(f"{key} has shape {owner.shape}, the labels {labels.shape}; give one owner per sample")
    if owner.dtype.kind not in "fiubUS" or (owner.dtype.kind == "f" and np.isnan(owner).any()):
        raise ValueError(f"{key} holds NaN, or values that are no numbers or texts; give every sample an owner")
    return owner


def _classes(ys: Sequence[np.ndarray], targets: bool, classes: int | None) -> tuple[list[np.ndarray], int]:
    """Labels as int64 and the number of classes; or targets and the number of values per sample."""
    y = ys[0]
    for other in ys:
        if y.shape[1:] != other.shape[1:]:
            raise ValueError(f"training targets {y.shape[1:]} and other targets {other.shape[1:]} differ in shape")
    real = any(part.dtype.kind == "f" for part in ys) and targets
    ys = [part.astype(np.result_type(np.float32, *ys) if real else np.int64) for part in ys]
    if real or y.ndim > 1:
        return ys, math.prod(y.shape[1:])
    low, high = min(int(part.min()) for part in ys), max(int(part.max()) for part in ys)
    classes = classes or min(high + 1, MOST_CLASSES)
    if low < 0 or high >= classes:
        raise ValueError(f"labels run from {low} to {high}; allowed are 0..{classes - 1}, {numbering(targets)}")
    return ys, classes


def numbering(targets: bool) -> str:
    """What to do with labels that are not 0..C-1.  targets: whether a loss is given, so that they may be no classes."""
    new = "numbered without gaps, as np.unique(y, return_inverse=True)[1] does"
    whole = "; with loss= too, whole numbers [N] are class labels: if they are no classes, give y.astype(float)"
    return new + whole if targets else new


def as_array(part: Any, label: bool = False) -> np.ndarray:
    """A NumPy array from an array, a tensor, a PIL image, a table, or a list of them; it may share their memory.

    Floating-point types that NumPy lacks, such as bfloat16, become float32.  PIL images become `[H, W]` or, channels
    first, `[C, H, W]`: images with a palette or in another colour space become RGB, and images of one bit become grey
    bytes.  label: keep the numbers of such images, because they are the classes of targets.

    Raises ValueError where samples differ in shape, for masked and missing values, and for tensors that are sparse,
    quantised, nested, or without values.
    """
    if isinstance(part, Tensor):
        return _of_tensor(part)
    if hasattr(part, "getbands"):  # an image of PIL, which is not imported
        array = np.asarray(part if label else part.convert(READ_AS.get(part.mode, part.mode)))
        return array if array.ndim == 2 else array.transpose(2, 0, 1)
    if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
        raise ValueError("values are masked; use x.filled(0), or leave out their samples")
    if isinstance(part, list | tuple) and any(map(_is_array, part)):
        return stacked(part, "sample", label)
    array = np.asarray(part)
    texts = array.dtype.kind in "US" and isinstance(part, list | tuple)
    if texts and not all(isinstance(e, str | bytes) for e in part):
        raise ValueError(f"{checks.brief(part)} mixes texts and other values; give one kind")
    if array.dtype != object or not array.ndim:
        return array
    listed = array.tolist()
    if any(map(_is_array, listed)):
        return stacked(listed, "sample", label)
    if any(e is None or type(e).__name__ in ("NAType", "NaTType") or e != e for e in listed):
        raise ValueError("values are missing (None, NA or NaN); give numbers, or leave out their samples")
    return np.asarray(listed)


def real_numbers(name: str, value: Any, hint: str) -> np.ndarray:
    """`as_array` of real numbers; ValueError for anything else.  hint: what to use."""
    try:
        array = as_array(value)
        if array.dtype.kind in "fiub":
            return array
        raise TypeError(f"it holds {array.dtype}")
    except (TypeError, ValueError, RuntimeError, OverflowError) as e:
        raise ValueError(f"{name} is no array of numbers ({e}); use {hint}") from e


def _is_array(part: Any) -> bool:
    """Whether it is a list, an array or a PIL image."""
    array = hasattr(part, "__array__") and not isinstance(part, np.generic)
    return array or isinstance(part, list | tuple) or hasattr(part, "getbands")


def _of_tensor(part: Tensor) -> np.ndarray:
    try:
        part = part.detach().cpu().resolve_conj().resolve_neg()
        return (part.float() if part.is_floating_point() and part.dtype not in NUMPYS else part).numpy()
    except (RuntimeError, TypeError) as e:
        raise ValueError(
            f"a {type(part).__name__} of {part.dtype} is no array of numbers; use a plain tensor with values "
            "(x.to_dense(), x.dequantize(), x.to_padded_tensor(0.0))"
        ) from e


def stacked(parts: Sequence[Any], what: str, label: bool = False) -> np.ndarray:
    """The samples as one array; a ValueError names the first sample whose shape differs from that of sample 0."""
    arrays = [as_array(part, label) for part in parts]
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
    """The inputs with channels first; other types than uint8, float64 and the integers of texts become float32."""
    if x.ndim not in LAYOUTS[layout][0] or (layout == "text" and x.dtype.kind not in "iu"):
        others = "; ".join(f"{name!r}: {shape}" for name, (_, shape) in LAYOUTS.items())
        raise ValueError(
            f"inputs of shape {x.shape} and type {x.dtype} do not fit layout={layout!r}; give one of {others}"
        )
    if layout != "text" and x.dtype not in (np.uint8, np.float64):
        x = x.astype(np.float32)
    if (layout, x.ndim) in (("image", 3), ("features", 1)):
        x = x[:, None]
    elif layout == "channels_last" or (layout == "image" and _channels_last(x.shape)):
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether images of this shape, with four axes, have their channels last; ValueError where both are possible."""
    _, a, b, c = shape
    signs = [(a in (1, 3), c in (1, 3)), (b == c, a == b)]
    said = {last for first, last in signs if first != last} or ({c < 5} if (a < 5) != (c < 5) else set())
    if len(said) == 1 or a == b == c == 1:
        return said == {True}
    raise ValueError(
        f"images of shape {shape} may have their channels first or last; say which: layout='channels_first' "
        "[N, C, H, W] or layout='channels_last' [N, H, W, C]"
    )


def from_mapping(name: str, z: Mapping[str, Any], layout: str | None = None, targets: bool = False) -> Source:
    """The source from a mapping with the keys of a pack; warns of keys that are not read."""
    owners = ("train_owner", "test_owner")
    if missing := [key for key in PARTS if key not in z]:
        raise ValueError(f"{missing[0]} is missing; give {PACK}")
    if unread := [str(key) for key in z if key not in (*PARTS, *owners)]:
        checks.warn(f"{name}: {', '.join(unread[:10])} are not read; a source is {PACK}")
    layout = "text" if name in TEXTS else layout
    extra = {k: z[k] for k in owners if k in z}
    return from_arrays(name, *(z[k] for k in PARTS), layout, targets, classes=CLASSES.get(name), **extra)
