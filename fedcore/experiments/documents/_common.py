"""What definitions share: the search that is equal for every method, and small models and specifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MLP = ["mlp", {"hidden": [64]}]


LRS = [0.02, 0.05, 0.1, 0.2, 0.5]


def search(arguments: Mapping[str, Sequence[float]], lrs: Sequence[float] = LRS, **more: Any) -> dict[str, Any]:
    """The protocol's search: the same learning rates for every method, times the values of its own parameters.

    more: `seeds`, `rounds`, `finalists`, `growth` and `limits` of `tuning`.
    """
    axes = {"run.lr": list(lrs), **{f"method.{name}": list(values) for name, values in arguments.items()}}
    return {"axes": axes, "seeds": [1000, 1001], **more}


def simulation(method: str, federation: Mapping[str, Any], run: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A specification of the study `simulate`."""
    return {"study": "simulate", "method": [method, {}], "federation": dict(federation), "run": dict(run), **more}
