"""Sources by name or from data in memory.

A data set of a name is read from `NAME.npz` in the data root where there is such a file.  Otherwise "digit-domains" and
"digits-five" come from `domains`, "digits" from scikit-learn, "femnist" and "shakespeare" from LEAF folders,
"tiny-imagenet" from an ImageFolder tree, and the others from torchvision; "roles" is synthetic.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..support import checks
from ..support.extras import needs
from .arrays import Source, as_array, check_inputs, data_root, from_arrays, from_mapping, numbering
from .datasets import from_dataset, is_dataset
from .domains import digit_domains, digits_five
from .readers import EMNIST_SPLITS, READERS, has_pack, pack, read

NAMES = (
    *READERS, "mnist", "fashionmnist", *(f"emnist-{s}" for s in EMNIST_SPLITS), "cifar10", "cifar100", "svhn", "usps",
    "digit-domains", "digits-five",
)  # fmt: skip
VALIDATION = ("validation", "val", "valid")
SPELLINGS = {"emnist": "emnist-balanced", "fashion-mnist": "fashionmnist", "tinyimagenet": "tiny-imagenet"}


def load(
    source: Any,
    root: str | os.PathLike | None = None,
    download: bool = True,
    layout: str | None = None,
    targets: bool = False,
) -> Source:
    """A `Source` from a name, a `Source`, a mapping, or data in memory.

    Data are arrays or tensors `(x, y)`, a map-style dataset of items (x, y) or with named columns (`datasets`), or a
    list of either, one per client.  A tuple of two such data, or a mapping with "train" and "test" (and perhaps
    "validation"), are the training and the test set; of a single set every fifth sample (of each client) becomes the
    test set.  A mapping may also have the keys of an npz pack.  All data are copied.
    layout, targets: the layout of inputs in memory or in a pack, and whether targets may be numbers other than class
    labels; see `arrays.from_arrays`.

    Warns of labels without a sample, of test labels without a training sample, of one label alone, and of keys that
    are not read.
    Raises DataNotFound when the named data is neither in the data root nor downloadable, ValueError for unknown names,
    malformed arrays and datasets, and a layout for data that have one, TypeError for anything else.
    """
    if isinstance(source, str):
        with needs("data", f"the source {source!r}"):
            return _named(source.lower(), root, download, layout, targets)
    if isinstance(source, Source):
        if layout is not None:
            raise _has_layout(source.name, layout)
        return source.copied()
    held = None
    if isinstance(source, Mapping):
        if not {"train", "test"} <= source.keys():
            return _told(from_mapping("arrays", source, layout, targets), targets)
        held = next((source[key] for key in VALIDATION if key in source), None)
        if unread := [str(key) for key in source if key not in ("train", "test", *VALIDATION)]:
            checks.warn(f"{', '.join(unread[:10])} of the source are not read; use 'train', 'test' and 'validation'")
        source = (source["train"], source["test"])
    parts = source if isinstance(source, tuple) and len(source) == 2 and _is_part(source[0]) else (source,)
    clients = len(parts[0]) if _is_by_client(parts[0]) else None
    x, y, owner, classes = _part(parts[0])
    extra: dict[str, Any] = {"classes": classes, "by_client": owner is not None}
    if len(parts) == 2:
        test_x, test_y, test_owner, _ = _part(parts[1], clients)
    else:
        check_inputs("training", x, y, targets)
        counted = np.arange(len(y)) if owner is None else np.concatenate([np.arange(n) for n in np.bincount(owner)])
        tested = counted % 5 == 4
        test_x, test_y, x, y = x[tested], y[tested], x[~tested], y[~tested]
        test_owner, owner = (None, None) if owner is None else (owner[tested], owner[~tested])
        extra["given"] = np.where(tested, -1, np.cumsum(~tested) - 1)
    if held is not None:
        extra["validation"] = _part(held, clients)[:3]
    extra |= {"train_owner": owner, "test_owner": test_owner}
    made = from_arrays("arrays", x, y, test_x, test_y, layout, targets, **extra)
    return _told(made, targets, declared=classes is not None)


def _told(source: Source, targets: bool, declared: bool = False) -> Source:
    """The source; a UserWarning where a label in 0..C-1 has no training sample, or where there is only one label.

    targets: as for `numbering`.  declared: whether the number of classes was given; a label without a sample is then no
    sign of a wrong numbering.
    """
    if not source.has_classes:
        return source
    trained = np.unique(source.train_y)
    expected = source.test_y if declared else np.append(np.arange(source.classes), source.test_y)
    if len(without := np.setdiff1d(expected, trained)):
        checks.warn(
            f"no training sample has a label of {', '.join(map(str, without[:10]))}, of {source.classes} classes, and "
            f"{np.isin(source.test_y, without).sum()} of {len(source.test_y)} test samples have one; give samples of "
            f"them, or labels 0..C-1 in both sets, {numbering(targets)}"
        )
    if len(trained) == 1 and not declared:
        checks.warn(
            f"all {len(source.train_y)} training samples have the label {trained[0]}: there is nothing to learn; give "
            "samples of two classes at least"
        )
    return source


def _is_part(part: Any) -> bool:
    """Whether it holds inputs with their labels instead of inputs alone."""
    return isinstance(part, tuple) or is_dataset(part) or _is_by_client(part)


def _is_by_client(part: Any) -> bool:
    """Whether it is a list of clients' data: datasets, or pairs (x, y) with an array y of labels."""
    if not isinstance(part, list) or not part:
        return False
    first = part[0]
    if isinstance(first, tuple):
        return len(first) == 2 and not isinstance(first[0], tuple) and np.ndim(first[1]) > 0
    return is_dataset(first)


def _part(part: Any, clients: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, int | None]:
    """Inputs, labels, each sample's client where the data are given client by client, and the number of classes.

    clients: for test and validation data, the number of clients that have training data.
    """
    if is_dataset(part):
        x, y, classes = from_dataset(part)
        return x, y, None, classes
    if _is_by_client(part):
        each = [_part(one) for one in part]
        shapes = [(x.shape, y.shape) for x, y, *_ in each]
        fit = all(x[:1] and x[:1] == y[:1] and x[1:] == shapes[0][0][1:] for x, y in shapes)
        if not fit or (any(y[0] == 0 for _, y in shapes) if clients is None else len(part) != clients):
            raise ValueError(
                f"{len(part)} clients have inputs and labels of the shapes {checks.brief(shapes)}; give every client "
                "samples of one shape, each with its label: at least one to train on, and test and validation data as "
                "lists of as many clients (empty where one has none), or as one set for all clients, without a list"
            )
        owner = np.repeat(np.arange(len(each)), [y[0] for _, y in shapes])
        x, y = (np.concatenate([client[k] for client in each]) for k in range(2))
        return x, y, owner, max((c for *_, c in each if c is not None), default=None)
    if isinstance(part, tuple) and len(part) == 2:
        return as_array(part[0]), as_array(part[1], label=True), None, None
    raise TypeError(
        f"source={type(part).__name__}; use a name ({', '.join(NAMES)}), a pair of arrays (x, y), a map-style dataset "
        "(that of a DataLoader is loader.dataset), a list of either with one per client, a tuple of two of these for "
        "training and test, ([(x, y), ...], [(test_x, test_y), ...]), or a mapping"
    )


def _has_layout(name: str, layout: str) -> ValueError:
    return ValueError(f"layout={layout!r}, but {name!r} has a layout of its own; use layout=None")


def _named(name: str, root: str | os.PathLike | None, download: bool, layout: str | None, targets: bool) -> Source:
    name, folder = SPELLINGS.get(name, name), data_root(root)
    if not has_pack(name, folder):
        if name not in NAMES:
            raise ValueError(
                f"source={checks.brief(name)} is not known and {checks.brief(str(pack(name, folder)))} does not exist; "
                f"known are {', '.join(NAMES)}"
            )
        if layout is not None:
            raise _has_layout(name, layout)
        if name == "digit-domains":
            return digit_domains()
        if name == "digits-five":
            return digits_five(root=root, download=download)
    source = read(name, folder, download, layout, targets)
    return source if name in NAMES else _told(source, targets)
