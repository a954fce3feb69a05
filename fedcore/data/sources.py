"""Sources: where images, texts and labels come from, online or offline.

A name is looked for in this order: `NAME.npz` in the data root; scikit-learn's digits for "digits"; LEAF folders for
"femnist" and "shakespeare"; an ImageFolder tree for "tiny-imagenet"; `domains` for "digit-domains" and
"digits-five"; torchvision for the rest.  "roles" is synthetic and made on the spot.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import rng

# The 80 symbols of the Shakespeare task, in the order of FedProx's `language_utils`.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
EMNIST_SPLITS = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")
NAMES = (
    "digits", "mnist", "fashionmnist", *(f"emnist-{s}" for s in EMNIST_SPLITS), "cifar10", "cifar100", "svhn", "usps",
    "femnist", "shakespeare", "tiny-imagenet", "digit-domains", "digits-five", "roles",
)  # fmt: skip
_CLASSES = {"cifar100": 100, "femnist": 62, "shakespeare": 80, "roles": 80, "tiny-imagenet": 200}
_TEXTS = ("shakespeare", "roles")
_REMEDY = "an .npz with train_images, train_labels, test_images, test_labels (optional train_owner, test_owner)"


class DataNotFound(FileNotFoundError):
    """The data is not on this machine and could not be downloaded."""


@dataclass(frozen=True)
class Source:
    """Arrays of one data set.  Images are `[N, C, H, W]` (uint8 where the data is), features `[N, F]`, texts `[N, L]`.

    owner: natural client of each sample, or None.  `text` marks token sequences, which are never normalised.
    domains: the names of the owners by their number, where they have names.
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


def data_root(root: str | os.PathLike | None = None) -> Path:
    """The data root: the argument, else the environment's FEDCORE_DATA, else `~/.cache/fedcore`."""
    return Path(root or os.environ.get("FEDCORE_DATA") or Path.home() / ".cache" / "fedcore").expanduser()


def load(source: Any, root: str | os.PathLike | None = None, download: bool = True) -> Source:
    """A `Source` from a name, a `Source`, a mapping with npz keys, `(x, y)` or `((x, y), (test_x, test_y))`.

    From a single pair every fifth sample is held out as the test set.  Raises DataNotFound when the named data is
    neither in the data root nor downloadable, ValueError for unknown names and malformed arrays.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        return _named(source.lower(), data_root(root), download)
    if isinstance(source, Mapping):
        return _from_mapping("arrays", source)
    if isinstance(source, tuple) and len(source) == 2:
        if isinstance(source[0], tuple):
            (x, y), (tx, ty) = source
            return from_arrays("arrays", x, y, tx, ty)
        x, y = (_array(part) for part in source)
        if not x.ndim or not y.ndim or len(x) != len(y):
            raise ValueError(f"inputs {x.shape} do not fit labels {y.shape}; give one integer label per input")
        held_out = np.arange(len(y)) % 5 == 4
        return from_arrays("arrays", x[~held_out], y[~held_out], x[held_out], y[held_out])
    raise TypeError(f"source={type(source).__name__}; use a name ({', '.join(NAMES)}), a pair of arrays, or a mapping")


def from_arrays(name: str, x: Any, y: Any, test_x: Any, test_y: Any, **extra: Any) -> Source:
    """Check and shape arrays or tensors; raises ValueError for NaN, wrong shapes and labels that are not 0..C-1."""
    x, y, test_x, test_y = (_array(part) for part in (x, y, test_x, test_y))
    for what, inputs, labels in (("training", x, y), ("test", test_x, test_y)):
        if not inputs.ndim or labels.ndim != 1 or len(inputs) != len(labels):
            raise ValueError(
                f"{what} inputs {inputs.shape} do not fit labels {labels.shape}; give one integer label per input"
            )
        if len(labels) == 0:
            raise ValueError(f"the {what} set is empty; give at least one sample")
        if inputs.dtype.kind not in "fiub":
            raise ValueError(f"{what} inputs of type {inputs.dtype} are not numbers; use an array of real numbers")
        if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
            bad = int((~np.isfinite(inputs.reshape(len(inputs), -1)).all(1)).sum())
            raise ValueError(f"{bad} {what} inputs hold NaN or infinity; clean or drop them first")
        if labels.dtype.kind not in "iub" and not (labels.dtype.kind == "f" and (labels == np.rint(labels)).all()):
            raise ValueError(f"{what} labels of type {labels.dtype} are not integers; use classes 0..C-1")
    y, test_y = y.astype(np.int64), test_y.astype(np.int64)
    low, high = min(y.min(), test_y.min()), max(y.max(), test_y.max())
    classes = extra.pop("classes", None) or int(high) + 1
    if low < 0 or high >= classes:
        raise ValueError(f"labels run from {low} to {high}; allowed are 0..{classes - 1}")
    text = extra.get("text", False)
    x, test_x = (part if text else _pictures(part) for part in (x, test_x))
    if x.shape[1:] != test_x.shape[1:]:
        raise ValueError(f"training inputs {x.shape[1:]} and test inputs {test_x.shape[1:]} differ in shape")
    for key, labels in (("train_owner", y), ("test_owner", test_y)):
        owner = extra.get(key)
        if owner is not None and owner.shape != labels.shape:
            raise ValueError(f"{key} has shape {owner.shape}, the labels {labels.shape}; give one owner per sample")
    return Source(name, x, y, test_x, test_y, classes, **extra)


def _array(part: Any) -> np.ndarray:
    if hasattr(part, "detach"):
        part = part.detach().cpu().numpy()
    return np.asarray(part)


def _pictures(x: np.ndarray) -> np.ndarray:
    """uint8 and float64 stay; other numbers become float32; channels come first."""
    x = x if x.dtype in (np.uint8, np.float64) else x.astype(np.float32)
    if x.ndim == 1:
        x = x[:, None]
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim not in (2, 4):
        raise ValueError(f"inputs of shape {x.shape}; use [N, F], [N, H, W], [N, C, H, W] or [N, H, W, C]")
    return np.ascontiguousarray(x)


def _named(name: str, root: Path, download: bool) -> Source:
    name = {"emnist": "emnist-balanced", "fashion-mnist": "fashionmnist", "tinyimagenet": "tiny-imagenet"}.get(
        name, name
    )
    packed = root / f"{name}.npz"
    if packed.is_file():
        try:
            with np.load(packed, allow_pickle=False) as z:
                return _from_mapping(name, z)
        except Exception as e:  # damage shows in many ways: zip, npy header, or what the arrays hold
            raise ValueError(f"{packed} is not readable as a data pack ({e}); it should be {_REMEDY}") from e
    if name not in NAMES:
        raise ValueError(f"source={name!r} is not known and {packed} does not exist; known are {', '.join(NAMES)}")
    if name == "digits":
        return _digits()
    if name in ("digit-domains", "digits-five"):
        from . import domains

        five = name == "digits-five"
        return domains.digits_five(root=root, download=download) if five else domains.digit_domains()
    if name == "roles":
        return _roles()
    if name in ("femnist", "shakespeare"):
        return _leaf(name, root)
    if name == "tiny-imagenet":
        return _image_folder(name, root)
    return _torchvision(name, root, download)


def _from_mapping(name: str, z: Mapping[str, Any]) -> Source:
    try:
        arrays = [z[k] for k in ("train_images", "train_labels", "test_images", "test_labels")]
    except KeyError as e:
        raise ValueError(f"{e} is missing; a source of arrays is {_REMEDY}") from e
    extra = {k: np.asarray(z[k]) for k in ("train_owner", "test_owner") if k in z}
    return from_arrays(name, *arrays, classes=_CLASSES.get(name), text=name in _TEXTS, **extra)


def _digits() -> Source:
    from sklearn.datasets import load_digits

    z = load_digits()
    x, y = z.images.astype(np.uint8)[:, None], z.target.astype(np.int64)
    test = np.arange(len(y)) % 5 == 4  # every fifth image: 1,438 to train on, 359 to test
    return Source("digits", x[~test], y[~test], x[test], y[test], 10)


@cache
def _roles(roles: int = 40, train: int = 200, test: int = 40, length: int = 20) -> Source:
    """A synthetic play: `roles` speakers, each with sentences of its own, cut into windows and the next character.

    96 words of one to three syllables are shared.  A role says 16 of them, ranked by its own taste (Zipf's law), in an
    order that the word before makes likely, 3 to 8 words a sentence, with its favourite mark at the end.  Windows of
    `length` symbols start every third character; the test windows are the end of each role's text.
    """
    g = rng.numpy_generator(0, rng.DATA)
    syllables = [c + v for c in "bdfghklmnprstvw" for v in "aeiou"]
    lexicon = sorted({"".join(g.choice(syllables, g.integers(1, 4))) for _ in range(110)})[:96]
    where = {symbol: k for k, symbol in enumerate(ALPHABET)}
    windows, labels = [], []
    for _ in range(roles):
        words = g.choice(lexicon, 16, replace=False)
        taste = 1 / np.arange(1, 17)
        follow = np.stack([g.permutation(taste) + taste for _ in words])  # what is said after each word
        follow /= follow.sum(1, keepdims=True)
        mark, text, word = g.choice(list(".!?;")), "", 0
        while len(text) < 3 * (train + test) + 2 * length:
            said = []
            for _ in range(g.integers(3, 9)):
                word = g.choice(16, p=follow[word])
                said.append(words[word])
            text += " ".join(said).capitalize() + mark + " "
        symbols = np.array([where[c] for c in text], np.uint8)
        # a gap of one window: no character of a test window was seen in training
        at = np.r_[3 * np.arange(train), 3 * train + length + 3 * np.arange(test)]
        windows.append(symbols[at[:, None] + np.arange(length)])
        labels.append(symbols[at + length].astype(np.int64))
    x, y, owner = np.stack(windows), np.stack(labels), np.arange(roles)
    parts = (part.reshape(-1, *part.shape[2:]) for part in (x[:, :train], y[:, :train], x[:, train:], y[:, train:]))
    owners = {"train_owner": np.repeat(owner, train), "test_owner": np.repeat(owner, test)}
    return from_arrays("roles", *parts, classes=80, text=True, **owners)


def _missing(name: str, looked: Path, put: str, why: object = "not there") -> DataNotFound:
    return DataNotFound(
        f"{name}: no data at {looked} ({why}). Put {put} there, or {_REMEDY} as {name}.npz into the data root; the "
        "root is the argument root=..., else the environment's FEDCORE_DATA, else ~/.cache/fedcore"
    )


def _torchvision(name: str, root: Path, download: bool) -> Source:
    import torchvision.datasets as tv

    folder = root / "torchvision"
    kinds: dict[str, tuple[type, list[dict]]] = {
        "mnist": (tv.MNIST, [{"train": True}, {"train": False}]),
        "fashionmnist": (tv.FashionMNIST, [{"train": True}, {"train": False}]),
        "cifar10": (tv.CIFAR10, [{"train": True}, {"train": False}]),
        "cifar100": (tv.CIFAR100, [{"train": True}, {"train": False}]),
        "usps": (tv.USPS, [{"train": True}, {"train": False}]),
        "svhn": (tv.SVHN, [{"split": "train"}, {"split": "test"}]),
    }
    if name.startswith("emnist-"):
        split = name.removeprefix("emnist-")
        kind, parts = tv.EMNIST, [{"split": split, "train": True}, {"split": split, "train": False}]
    else:
        kind, parts = kinds[name]
    try:
        sets = [kind(root=str(folder), download=download, **part) for part in parts]
    except Exception as e:  # torchvision raises whatever the network raised
        why = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'download failed'}"
        raise _missing(name, folder, f"torchvision's {kind.__name__} files", why) from e
    x = [np.asarray(s.data) for s in sets]
    y = [np.asarray(s.labels if name == "svhn" else s.targets) for s in sets]
    if name.startswith("emnist-"):  # the canonical files are transposed; "letters" counts from 1
        x = [part.transpose(0, 2, 1) for part in x]
        y = [part - 1 for part in y] if name == "emnist-letters" else y
    return from_arrays(name, x[0], y[0], x[1], y[1], classes=_CLASSES.get(name))


def _leaf(name: str, root: Path) -> Source:
    """LEAF's JSON: `NAME/{train,test}/*.json` with users and user_data[user] = {x, y}."""
    folder, parts = root / name, {}
    users: dict[str, int] = {}
    for part in ("train", "test"):
        xs, ys, owner = [], [], []
        for file in sorted((folder / part).glob("*.json")):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                for user in content["users"]:
                    x, y = (content["user_data"][user][k] for k in "xy")
                    xs += x
                    ys += y
                    owner += [users.setdefault(user, len(users))] * len(y)
            except (ValueError, KeyError, TypeError) as e:
                raise ValueError(f"{file} is not LEAF JSON ({e!r}); make it again with LEAF's scripts") from e
        if not xs:
            raise _missing(name, folder / part, f"LEAF's {name} JSON files (train/*.json and test/*.json)")
        parts[part] = (xs, ys, np.array(owner))
    (x, y, owner), (tx, ty, t_owner) = parts["train"], parts["test"]
    if name == "shakespeare":
        where = {c: k for k, c in enumerate(ALPHABET)}
        x, tx = (np.array([[where.get(c, 1) for c in line] for line in part], np.uint8) for part in (x, tx))
        y, ty = (np.array([where.get(c, 1) for c in part]) for part in (y, ty))
    else:  # floats in [0, 1]: back to the bytes they came from
        x, tx = (np.rint(np.array(part, np.float32) * 255).astype(np.uint8).reshape(-1, 28, 28) for part in (x, tx))
    text, classes = name == "shakespeare", _CLASSES[name]
    return from_arrays(name, x, y, tx, ty, classes=classes, text=text, train_owner=owner, test_owner=t_owner)


def _image_folder(name: str, root: Path) -> Source:
    from torchvision.datasets import ImageFolder

    folder, parts, kinds = root / name, [], None
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise _missing(name, folder / part, "an ImageFolder tree (one folder per class)")
        images = ImageFolder(str(folder / part))
        if kinds not in (None, images.classes):
            raise ValueError(f"{folder} has other classes in train than in val; use the same folder names in both")
        kinds, sizes = images.classes, {im.size for im, _ in images}
        if len(sizes) > 1:
            raise ValueError(f"{folder / part} has images of sizes {sorted(sizes)[:4]}; resize them to one size")
        parts.append((np.stack([np.asarray(im.convert("RGB")) for im, _ in images]), np.array(images.targets)))
    (x, y), (tx, ty) = parts
    return from_arrays(name, x, y, tx, ty)
