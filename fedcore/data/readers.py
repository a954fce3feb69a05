"""Readers: one data set by its name, from a pack, scikit-learn, LEAF folders, an ImageFolder tree or torchvision."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from .. import rng
from ..storage import archives
from .arrays import CLASSES, PACK, DataNotFound, Source, data_root, from_arrays, from_mapping
from .datasets import from_dataset

# The 80 symbols of the Shakespeare task, in the order of FedProx's `language_utils`.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
EMNIST_SPLITS = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")


def pack(name: str, root: Path) -> Path:
    """The path of a data pack of this name: `NAME.npz` in the data root."""
    return root / f"{name}.npz"


def has_pack(name: str, root: Path) -> bool:
    """Whether there is a data pack of this name; PermissionError where a root that was asked for has no access."""
    try:
        return stat.S_ISREG(os.stat(pack(name, root)).st_mode)
    except PermissionError:
        if root != data_root() or os.environ.get("FEDCORE_DATA"):
            raise
        return False
    except (OSError, ValueError):  # there is none, or none can have this name
        return False


def found(name: str, root: Path) -> bool:
    """Whether the data root has files of a data set, as a pack or where `read` looks next; True for other names, which
    need none or those of several sets."""
    family = name.partition("-")[0]
    looked = {  # an interrupted download leaves folders without files
        "femnist": "femnist/*/*.json", "shakespeare": "shakespeare/*/*.json", "tiny": "tiny-imagenet/*/*",
        "mnist": "torchvision/MNIST/raw/*", "fashionmnist": "torchvision/FashionMNIST/raw/*",
        "emnist": "torchvision/EMNIST/raw/*", "usps": "torchvision/usps*", "svhn": "torchvision/*32x32.mat",
        "cifar10": "torchvision/cifar-10-*", "cifar100": "torchvision/cifar-100-*",
    }  # fmt: skip
    return has_pack(name, root) or family not in looked or any(root.glob(looked[family]))


def read(name: str, root: Path, download: bool = True, layout: str | None = None, targets: bool = False) -> Source:
    """One data set by its name: from its pack where there is one, else from its usual origin.

    root: the data root.  download: whether torchvision may download.  layout, targets: of a pack, as for
    `arrays.from_arrays`.  Raises DataNotFound where the data cannot be found, and ValueError for damaged files.
    """
    file = pack(name, root)
    if has_pack(name, root):
        try:
            return from_mapping(name, archives.read(file), layout, targets)
        except Exception as e:  # damage shows in many ways: zip, npy header, or what the arrays hold
            raise ValueError(f"{file} is not readable as a data pack ({e}); it should be {PACK}") from e
    return READERS[name](name, root) if name in READERS else _torchvision(name, root, download)


def _digits(name: str, root: Path) -> Source:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = x.astype(np.uint8).reshape(-1, 1, 8, 8), y.astype(np.int64)
    test = np.arange(len(y)) % 5 == 4  # every fifth image: 1,438 to train on, 359 to test
    return Source(name, x[~test], y[~test], x[test], y[test], 10)


@cache
def _roles(roles: int = 40, train: int = 200, test: int = 40, length: int = 20) -> Source:
    """A synthetic play with `roles` speakers: windows of `length` symbols as inputs, the next character as label.

    96 words of one to three syllables are shared.  A role uses 16 of them with its own ranking (Zipf's law) and its own
    transition probabilities from word to word; a sentence has 3 to 8 words and ends in the role's punctuation mark.
    Windows start every third character; the test windows are at the end of each role's text.
    """
    g = rng.numpy_generator(0, rng.DATA)
    syllables = [c + v for c in "bdfghklmnprstvw" for v in "aeiou"]
    lexicon = sorted({"".join(g.choice(syllables, g.integers(1, 4))) for _ in range(110)})[:96]
    where = {symbol: k for k, symbol in enumerate(ALPHABET)}
    windows, labels = [], []
    for _ in range(roles):
        words = g.choice(lexicon, 16, replace=False)
        taste = 1 / np.arange(1, 17)
        follow = np.stack([g.permutation(taste) + taste for _ in words])  # transition probabilities, one row per word
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
    return from_arrays("roles", *parts, "text", classes=80, **owners)


def _missing(name: str, looked: Path, put: str, why: object = "not there") -> DataNotFound:
    return DataNotFound(
        f"{name}: no data at {looked} ({why}). Put {put} there, or {PACK} as {name}.npz into the data root; the "
        "root is the argument root=..., else the environment's FEDCORE_DATA, else ~/.cache/fedcore"
    )


def _torchvision(name: str, root: Path, download: bool) -> Source:
    import torchvision.datasets as tv

    folder = root / "torchvision"
    kinds = (tv.MNIST, tv.FashionMNIST, tv.CIFAR10, tv.CIFAR100, tv.USPS, tv.SVHN, tv.EMNIST)
    family, _, split = name.partition("-")
    kind = next(kind for kind in kinds if kind.__name__.lower() == family)
    parts = [{"train": True}, {"train": False}]
    if family == "svhn":
        parts = [{"split": "train"}, {"split": "test"}]
    if family == "emnist":
        parts = [{"split": split, **part} for part in parts]
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
    return from_arrays(name, x[0], y[0], x[1], y[1], classes=CLASSES.get(name))


def _leaf(name: str, root: Path) -> Source:
    """LEAF's JSON: `NAME/{train,test}/*.json` with users and user_data[user] = {x, y}."""
    folder, users, parts = root / name, {}, {}
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
    layout, classes = "text" if name == "shakespeare" else "image", CLASSES[name]
    return from_arrays(name, x, y, tx, ty, layout, classes=classes, train_owner=owner, test_owner=t_owner)


def _image_folder(name: str, root: Path) -> Source:
    from torchvision.datasets import ImageFolder

    folder, sets = root / name, []
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise _missing(name, folder / part, "an ImageFolder tree (one folder per class)")
        sets.append(ImageFolder(str(folder / part)))
    if sets[0].classes != sets[1].classes:
        raise ValueError(f"{folder} has other classes in train than in val; use the same folder names in both")
    (x, y, _), (tx, ty, _) = map(from_dataset, sets)
    return from_arrays(name, x, y, tx, ty, "channels_first")


READERS: dict[str, Callable[[str, Path], Source]] = {
    "digits": _digits,
    "roles": lambda name, root: _roles().copied(),
    "femnist": _leaf,
    "shakespeare": _leaf,
    "tiny-imagenet": _image_folder,
}
