"""Arrays from map-style datasets of torchvision, Hugging Face or the user, without importing their libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import as_array, stacked

LABELS = ("label", "labels", "target", "targets", "y")


def is_dataset(part: Any) -> bool:
    """Whether it has a length and items by index, and is no array, list, tuple, mapping or text."""
    if isinstance(part, list | tuple | str | bytes | Mapping) or hasattr(part, "__array__"):
        return False
    return hasattr(part, "__len__") and hasattr(part, "__getitem__")


def from_dataset(dataset: Any) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Inputs `[N, ...]`, labels `[N, ...]`, and the number of classes where the dataset's features say it.

    Items are pairs (x, y) or mappings from two column names: the label column has a name in `LABELS`, the other column
    are the inputs.  Each item is read once, so that random transforms are drawn once.

    Raises ValueError for an empty dataset, other items and columns, and items of different shapes.
    """
    if not len(dataset):
        raise ValueError("the dataset is empty; give at least one sample")
    x, y, keys, classes = [], [], (0, 1), None
    for k in range(len(dataset)):
        item = dataset[k]
        if not k and isinstance(item, Mapping):
            keys = _columns(list(getattr(dataset, "column_names", None) or item))
            features = getattr(dataset, "features", None)
            classes = getattr(features.get(keys[1]), "num_classes", None) if isinstance(features, Mapping) else None
        elif keys == (0, 1) and (not isinstance(item, tuple | list) or len(item) != 2):
            raise ValueError(
                f"an item of the dataset is a {type(item).__name__} and no pair; use a dataset with items (x, y), or "
                "named columns of which one is the label"
            )
        x.append(np.array(as_array(item[keys[0]])))  # a copy, because a dataset may return one buffer for all items
        y.append(np.array(as_array(item[keys[1]], label=True)))
    return stacked(x, "item"), stacked(y, "label", label=True), classes


def _columns(names: Sequence[str]) -> tuple[str, str]:
    labels = [name for name in names if name in LABELS]
    inputs = [name for name in names if name not in LABELS]
    if len(labels) != 1 or len(inputs) != 1:
        raise ValueError(
            f"the dataset has columns {names}; use two, the inputs and a label called one of {', '.join(LABELS)}: "
            "dataset.select_columns(['image', 'fine_label']).rename_column('fine_label', 'label')"
        )
    return inputs[0], labels[0]
