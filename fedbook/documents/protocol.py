"""Shared parts of the documents' tables: tuning, equal for every method, rows of comparisons, questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .definitions import Cell, Question

MLP = ["mlp", {"hidden": [64]}]
LRS = [0.02, 0.05, 0.1, 0.2, 0.5]


class Row(NamedTuple):
    """A row of a comparison.

    method: a name, or "file.py:Name".  fixed: the arguments that are not tuned.  searched: argument -> the initial
    values for tuning; "run.server_lr" is an argument of the run.  limits: argument -> the open interval for
    tuning, (0, infinity) by default.
    """

    method: str
    fixed: Mapping[str, Any] = {}
    searched: Mapping[str, Sequence[float]] = {}
    limits: Mapping[str, Sequence[float]] = {}


_BELOW_ONE = [0.0, 1.0]
_MOMENTUM, _REGULARISED, _RADII = [0.3, 0.6, 0.9], [0.01, 0.03, 0.1], [0.01, 0.03, 0.1]
_SERVER_STEPS, _SHARES = [0.01, 0.03, 0.1], [0.1, 0.3, 0.6]
METHODS = {
    "FedAvg": Row("FedAvg"),
    "FedAvg + server momentum": Row("FedAvg", {}, {"server_momentum": _MOMENTUM}, {"server_momentum": _BELOW_ONE}),
    "FedUp": Row("FedUp", {}, {"alpha_K": [0.25, 0.5, 0.75]}),
    "FedProx": Row("FedProx", {}, {"mu": [0.001, 0.01, 0.1]}),
    "SCAFFOLD": Row("SCAFFOLD"),
    "MOON": Row("MOON", {}, {"mu": [0.1, 1.0, 10.0]}),
    "MimeLite": Row("MimeLite", {}, {"beta": _MOMENTUM}, {"beta": _BELOW_ONE}),
    "FedDyn": Row("FedDyn", {}, {"alpha": _REGULARISED}),
    "STEM": Row("STEM", {}, {"a": [0.1, 0.3, 0.9]}, {"a": _BELOW_ONE}),
    "FedSMOO": Row("FedSMOO", {"rho": 0.05}, {"alpha": _REGULARISED}),
    "FedPVR": Row("FedPVR"),
    "FedSplit": Row("FedSplit", {}, {"s": [0.3, 1.0, 3.0]}),
    "FedSGD": Row("FedSGD"),
    "FedSMB": Row("FedSMB"),
    "FedDC": Row("FedDC", {}, {"alpha": _REGULARISED}),
    "Mime": Row("Mime", {}, {"beta": _MOMENTUM}, {"beta": _BELOW_ONE}),
    "FedSAM": Row("FedSAM", {}, {"rho": _RADII}),
    "FedAdam": Row("FedAdam", {}, {"run.server_lr": _SERVER_STEPS}),
    "FedNova": Row("FedNova"),
    "FedCM": Row("FedCM", {}, {"alpha": _SHARES}, {"alpha": _BELOW_ONE}),
    "FedAdagrad": Row("FedAdagrad", {}, {"run.server_lr": _SERVER_STEPS}),
    "FedYogi": Row("FedYogi", {}, {"run.server_lr": _SERVER_STEPS}),
    "FedExP": Row("FedExP", {}, {"eps": [0.001, 0.01, 0.1]}),
    "MoFedSAM": Row("MoFedSAM", {"rho": 0.05}, {"beta": _SHARES}, {"beta": _BELOW_ONE}),
    "FedGamma": Row("FedGamma", {}, {"rho": _RADII}),
    "FedSpeed": Row("FedSpeed", {"rho": 0.05}, {"lam": [1.0, 10.0, 100.0]}),
}
BASELINES = {
    row: METHODS[row]
    for row in ("FedAvg", "FedAvg + server momentum", "FedProx", "SCAFFOLD", "FedDyn", "FedUp", "FedSAM", "FedAdam",
                "FedNova", "FedCM")
}  # fmt: skip


def search(arguments: Mapping[str, Sequence[float]], lrs: Sequence[float] = LRS, **more: Any) -> dict[str, Any]:
    """The protocol's tuning: the same learning rates for every method, times the values of its own parameters.

    more: `seeds`, `rounds`, `finalists`, `growth` and `limits` of `tuning`.
    """
    axes = {"run.lr": list(lrs), **{_axis(name): list(values) for name, values in arguments.items()}}
    return {"axes": axes, "seeds": [1000, 1001], **more}


def _axis(name: str) -> str:
    return name if "." in name else f"method.{name}"


def simulation(method: str, federation: Mapping[str, Any], run: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A specification of the study `simulate`."""
    return {"study": "simulate", "method": [method, {}], "federation": dict(federation), "run": dict(run), **more}


def searched_cells(
    profile: str,
    column: str,
    federation: Mapping[str, Any],
    run: Mapping[str, Any],
    short: int | list[int] | None,
    rows: Mapping[str, Row],
    seeds: int = 10,
    lrs: Sequence[float] = LRS,
    finalists: int | None = 2,
) -> list[Cell]:
    """A column of `quick` or `desk`: every method with the protocol's tuning, settings chosen on validation data.

    short: rounds of the first tuning runs, or [first, finalists']; None for full runs.  seeds: the number of
    reporting seeds.  finalists: the number of finalists of tuning in `desk`; `quick` has three.
    """
    stages: dict[str, Any] = {"seeds": list(range(1000, 1005))} if profile == "quick" else {"finalists": finalists}
    stages = {name: value for name, value in {"rounds": short, **stages}.items() if value is not None}
    cells = []
    for name, row in rows.items():
        model = federation["model"]
        if row.method == "MOON":  # its projection head
            model = ["projected", {"model": model, "dim": 32 if profile == "quick" else 256}]
        limits = {_axis(key): list(ends) for key, ends in row.limits.items()}
        spec = {
            "study": "simulate", "method": [row.method, dict(row.fixed)], "run": dict(run),
            "federation": {**federation, "model": model, "validation": True},
            "tune": search(row.searched, lrs, **stages, limits=limits),
        }  # fmt: skip
        cells.append(Cell(f"{column} {name}", spec, name, column, seeds=seeds))
    return cells


def asked(
    rows: Sequence[str], rivals: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> dict[str, list[Question]]:
    """The questions of a claim: is each row better than each rival, in the columns of each profile?"""
    return {
        profile: [(row, rival, column) for column in names for row in rows for rival in rivals]
        for profile, names in columns.items()
    }
