"""Sources: arrays of one data set, checked and brought into one shape."""

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
LAYOUTS = {
    "image": "[N, H, W], [N, C, H, W] or [N, H, W, C]", "channels_first": "[N, C, H, W]",
    "channels_last": "[N, H, W, C]", "features": "[N, F]", "sequence": "[N, L] or [N, L, F]",
    "text": "[N, L] of whole numbers",
}  # fmt: skip
AXES = {
    "image": (3, 4), "channels_first": (4,), "channels_last": (4,), "features": (1, 2), "sequence": (2, 3), "text": (2,)
}  # fmt: skip
PARTS = ("train_images", "train_labels", "test_images", "test_labels")
PACK = f"an .npz with {', '.join(PARTS)} (optional train_owner, test_owner)"
NUMPYS = (torch.float16, torch.float32, torch.float64)
DEEPEST = 32  # axes of an array
GREY = ("1",)  # pictures' modes that are read as "L"
COLOUR = ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBX", "RGBa")  # and as "RGB"


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

    __repr__ = checks.as_call

    @property
    def layout(self) -> str:
        """What a sample is: one of `LAYOUTS`."""
        return "text" if self.text else {2: "features", 3: "sequence", 4: "image"}[self.train_x.ndim]

    @property
    def has_classes(self) -> bool:
        """Whether targets are class labels `[N]`, and not real numbers or several a sample."""
        return self.train_y.ndim == 1 and self.train_y.dtype.kind in "iu"

    def copied(self) -> Source:
        """The source with copies of its arrays, checked as others are: fields may have been replaced."""
        x, owner = self.train_x, None if self.validation is None else self.validation[2]
        layout = "text" if self.text else {2: "features", 3: "sequence"}.get(np.ndim(x), "channels_first")
        names = ("classes", "train_owner", "test_owner", "domains", "by_client", "given")
        held = {name: copy.copy(getattr(self, name)) for name in names}
        if self.given is not None and (as_array(self.given) >= 0).sum() != len(x):
            raise ValueError(f"{len(x)} training samples do not fit the source's given; use given=None")
        validation = None if self.validation is None else (*self.validation[:2], copy.copy(owner))
        return from_arrays(self.name, x, self.train_y, self.test_x, self.test_y, layout, True, validation, **held)

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
    validation: tuple[Any, Any, np.ndarray | None] | None = None,
    fresh: bool = False,
    **extra: Any,
) -> Source:
    """Check and shape arrays or tensors; the source has copies of them.

    targets: y may be other than classes: real numbers, or several a sample, `[N, ...]`.
    layout: one of `LAYOUTS`; None: `[N]` and `[N, F]` are features, `[N, H, W]` of bytes or of squares and arrays with
    four axes images.  Of images with four axes the channels are axis 1 or the last: the one of length 1 or 3, the one
    beside two equal sides, or the one shorter than 5; where these disagree or say nothing, a ValueError asks.
    validation: inputs, labels and owners of samples to choose settings on.  fresh: nobody else holds the inputs, so
    that they need no copy.  extra: fields of `Source`; without `classes` there are as many as the largest label says.

    Raises ValueError for NaN, wrong shapes, missing or masked values, labels that are negative or no whole numbers,
    owners that are missing, and arrays that may be read in two ways.
    """
    given = {"training": (x, y), "test": (test_x, test_y)}
    if validation is not None:
        given["validation"] = validation[:2]
    xs, ys = ([as_array(pair[k], label=k == 1) for pair in given.values()] for k in range(2))
    for what, inputs, labels in zip(given, xs, ys, strict=True):
        if not inputs.ndim or not labels.ndim or len(inputs) != len(labels) or (labels.ndim > 1 and not targets):
            more = "" if targets or labels.ndim < 2 else f", {_cure(labels)}or loss= for several targets per input"
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
    ys, classes = _classes(ys, targets, extra.pop("classes", None))
    layout = _guess(xs[0]) if layout is None else checks.choice("layout", layout, LAYOUTS)
    shaped = [_laid_out(part, layout) for part in xs]
    if not fresh:
        shaped = [b.copy() if np.may_share_memory(a, b) else b for a, b in zip(xs, shaped, strict=True)]
    x = shaped[0]
    for what, part in zip(given, shaped, strict=True):
        if part.ndim == 4 and (x.dtype == np.uint8) != (part.dtype == np.uint8):
            raise ValueError(
                f"training images are {x.dtype} and {what} images {part.dtype}, but bytes are normalised and "
                "other numbers are not; give both in one type"
            )
        if x.shape[1:] != part.shape[1:]:
            raise ValueError(f"training inputs {x.shape[1:]} and {what} inputs {part.shape[1:]} differ in shape")
    for key, labels in (("train_owner", ys[0]), ("test_owner", ys[1])):
        if (owner := extra.get(key)) is None:
            continue
        owner = extra[key] = np.array(as_array(owner))
        if owner.shape != labels.shape[:1]:
            raise ValueError(f"{key} has shape {owner.shape}, the labels {labels.shape}; give one owner per sample")
        if owner.dtype.kind not in "fiubUS" or (owner.dtype.kind == "f" and np.isnan(owner).any()):
            raise ValueError(f"{key} holds NaN or what is no number or text; give every sample an owner")
    owners = [extra[key].dtype.kind in "US" for key in ("train_owner", "test_owner") if extra.get(key) is not None]
    if len(set(owners)) > 1:
        raise ValueError("train_owner and test_owner are numbers and texts; give both in one kind, or none is the same")
    if validation is not None:
        extra["validation"] = (shaped[2], ys[2], validation[2])
    return Source(name, x, ys[0], shaped[1], ys[1], classes, text=layout == "text", **extra)


def _cure(labels: np.ndarray) -> str:
    """What makes classes of labels that are none, where that can be seen."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "y.ravel(), "
    if labels.ndim == 2 and labels.dtype.kind in "fiub" and ((labels == 0) | (labels == 1)).all():
        return "y.argmax(1) of one-hot rows, " if (labels.sum(1) == 1).all() else ""
    return ""


def _check_labels(what: str, labels: np.ndarray, targets: bool) -> None:
    if labels.dtype.kind == "f" and not targets and np.isnan(labels).any():
        bad = int(np.isnan(labels.reshape(len(labels), -1)).any(1).sum())
        raise ValueError(
            f"{bad} {what} labels of type {labels.dtype} are NaN, as missing values are; use integers 0..C-1"
        )
    whole = labels.dtype.kind in "iub" or (
        labels.dtype.kind == "f" and not targets and (labels == np.rint(labels)).all()
    )
    if not whole and not (targets and labels.dtype.kind == "f"):
        more = ", or loss= for targets that are no classes" if labels.dtype.kind == "f" else ""
        more = more or (", as np.unique(y, return_inverse=True)[1] makes them" if labels.dtype.kind in "US" else "")
        raise ValueError(f"{what} labels of type {labels.dtype} are not integers; use classes 0..C-1{more}")
    if targets and labels.dtype.kind == "f" and not np.isfinite(labels).all():
        bad = int((~np.isfinite(labels.reshape(len(labels), -1)).all(1)).sum())
        raise ValueError(f"{bad} {what} targets hold NaN or infinity; clean or drop them first")


def _classes(ys: Sequence[np.ndarray], targets: bool, classes: int | None) -> tuple[list[np.ndarray], int]:
    """Labels as int64 and how many classes there are; or targets, and how many numbers a sample has."""
    y = ys[0]
    for other in ys:
        if y.shape[1:] != other.shape[1:]:
            raise ValueError(f"training targets {y.shape[1:]} and other targets {other.shape[1:]} differ in shape")
    real = targets and any(part.dtype.kind == "f" for part in ys)
    kind = np.result_type(np.float32, *(part.dtype for part in ys)) if real else np.int64
    ys = [part.astype(kind) for part in ys]
    if real or y.ndim > 1:
        return ys, math.prod(y.shape[1:])
    low, high = min(int(part.min()) for part in ys), max(int(part.max()) for part in ys)
    classes = classes or high + 1
    if classes > MOST_CLASSES:
        raise ValueError(
            f"labels run from {low} to {high}, which would be {classes:,} classes; number them 0..C-1 without gaps, as "
            "np.unique(y, return_inverse=True)[1] does"
        )
    if low < 0 or high >= classes:
        raise ValueError(f"labels run from {low} to {high}; allowed are 0..{classes - 1}")
    return ys, classes


def as_array(part: Any, label: bool = False) -> np.ndarray:
    """An array of an array, a tensor, a picture, a table, or a list of them; it may share their memory.

    Numbers that NumPy has not, as bfloat16, become float32.  Pictures are `[H, W]` or, channels first, `[C, H, W]`:
    those with a palette and other colours than red, green and blue become RGB, those of one bit grey bytes.  label: not
    where they are targets, whose numbers are classes.

    Raises ValueError where samples differ in shape, for masked and missing values, and for tensors and matrices that
    are sparse, quantised, nested, or without values.
    """
    if isinstance(part, Tensor):
        return _of_tensor(part)
    if hasattr(part, "getbands") and hasattr(part, "convert"):  # PIL's, which is not imported
        mode = part.mode if label else "L" if part.mode in GREY else "RGB" if part.mode in COLOUR else part.mode
        array = np.asarray(part if mode == part.mode else part.convert(mode))
        return array if array.ndim == 2 else array.transpose(2, 0, 1)
    if hasattr(part, "toarray") and hasattr(part, "nnz"):
        raise ValueError(f"a sparse matrix {part.shape} is no array; use x.toarray()")
    if isinstance(part, np.ma.MaskedArray):
        if np.ma.getmaskarray(part).any():
            hidden = int(np.ma.getmaskarray(part).sum())
            raise ValueError(f"{hidden} values are masked; use x.filled(0), or leave out their samples")
        return part.data
    if isinstance(part, list | tuple) and any(map(_is_array, part)):
        return stacked(part, "sample", label)
    try:
        array = np.asarray(part)
    except ValueError:  # NumPy's own message does not say which sample it is
        return stacked(part, "sample", label)
    if (
        array.dtype.kind in "US"
        and isinstance(part, list | tuple)
        and not all(isinstance(e, str | bytes | list | tuple) for e in part)
    ):
        raise ValueError(f"{checks.brief(part)} mixes texts and other values; give one kind")
    if array.dtype != object:
        return array
    if array.ndim and any(map(_is_array, array.flat)):
        return stacked(array, "sample", label)
    missing = sum(e is None or type(e).__name__ in ("NAType", "NaTType") or e != e for e in array.flat)
    if missing:
        raise ValueError(f"{missing} values are missing (None, NA or NaN); give numbers, or leave out their samples")
    return np.asarray(array.tolist()) if array.ndim else array


def _is_array(part: Any) -> bool:
    """Whether it has values of its own, and is no number; or a list that begins with one."""
    for _ in range(DEEPEST):
        if not isinstance(part, list | tuple) or not part:
            break
        part = part[0]
    else:
        raise ValueError(f"a list is nested more than {DEEPEST} times, or holds itself; give an array")
    return (hasattr(part, "__array__") and not isinstance(part, np.generic)) or hasattr(part, "getbands")


def _of_tensor(part: Tensor) -> np.ndarray:
    kind, cure = next(
        (
            (kind, cure)
            for true, kind, cure in (
                (part.is_nested, "nested", "to_padded_tensor(0.0)"),
                (part.layout != torch.strided, "sparse", "to_dense()"),
                (part.is_quantized, "quantised", "dequantize()"),
                (part.is_meta, "on the device 'meta', where there are no values,", ""),
            )
            if true
        ),
        ("", ""),
    )
    if kind:
        raise ValueError(f"a tensor is {kind} and no array; use {f'x.{cure}' if cure else 'one on a real device'}")
    part = part.detach().cpu().resolve_conj().resolve_neg()
    try:
        return (part.float() if part.is_floating_point() and part.dtype not in NUMPYS else part).numpy()
    except (RuntimeError, TypeError) as e:  # subclasses with a mask, types of torch's alone
        raise ValueError(f"a {type(part).__name__} of {part.dtype} is no array of numbers; use a plain tensor") from e


def stacked(parts: Sequence[Any], what: str, label: bool = False) -> np.ndarray:
    """One array of samples; ValueError naming the first that differs from sample 0 in shape."""
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
    """Whole numbers of texts, uint8 and float64 stay; other numbers become float32; channels come first."""
    axes = x.ndim
    if axes not in AXES[layout] or (layout == "text" and x.dtype.kind not in "iu"):
        raise _unfit(x, layout)
    if layout != "text" and x.dtype not in (np.uint8, np.float64):
        x = x.astype(np.float32)
    if (layout, axes) in (("image", 3), ("features", 1)):
        x = x[:, None]
    elif layout == "channels_last" or (layout == "image" and _channels_last(x.shape)):
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether images of this shape, of four axes, have their channels last; ValueError where they may or may not."""
    _, a, b, c = shape
    signs = [(a in (1, 3), c in (1, 3)), (b == c, a == b)]
    said = {last for first, last in signs if first != last} or ({c < 5} if (a < 5) != (c < 5) else set())
    if len(said) == 1:
        return said.pop()
    if a == b == c == 1:
        return False
    raise ValueError(
        f"images of shape {shape} may have their channels first or last; say which: layout='channels_first' "
        "[N, C, H, W] or layout='channels_last' [N, H, W, C]"
    )


def _unfit(x: np.ndarray, layout: str) -> ValueError:
    others = "; ".join(f"{name!r}: {shape}" for name, shape in LAYOUTS.items())
    return ValueError(
        f"inputs of shape {x.shape} and type {x.dtype} do not fit layout={layout!r}; give one of {others}"
    )


def from_mapping(name: str, z: Mapping[str, Any], layout: str | None = None, targets: bool = False) -> Source:
    try:
        arrays = [z[k] for k in PARTS]
    except KeyError as e:
        raise ValueError(f"{e} is missing; give {PACK}") from e
    owners = ("train_owner", "test_owner")
    if unread := [str(key) for key in z if key not in (*PARTS, *owners)]:
        checks.warn(f"{name}: {', '.join(unread[:10])} are not read; a source is {PACK}")
    layout = "text" if name in TEXTS else layout
    extra = {k: z[k] for k in owners if k in z}
    return from_arrays(name, *arrays, layout, targets, classes=CLASSES.get(name), **extra)
