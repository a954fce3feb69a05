"""Estimates of how long missing runs will take, from the stored seconds of finished cells of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..studies.tuning import planned
from .cells import Result


def rounds_left(spec: Mapping[str, Any], result: Result, seeds: Sequence[int]) -> int:
    """The rounds that a cell still needs: for its missing seeds and, if it is not tuned yet, for its tuning."""
    rounds, missing = _rounds(spec), len(set(seeds) - set(result.runs))
    tune = spec.get("tune") if missing and result.tuned is None else None
    searches = missing if tune and tune.get("each") else 1
    return missing * rounds + (searches * planned(tune, rounds) if tune else 0)


class Pace:
    """The mean seconds of a round in finished runs, by kind of cell.

    The estimates hold for machines like those that computed the stored cells; nothing is measured, because a clock on a
    busy machine would say how busy it is.
    On a machine with a GPU only runs on the same GPU model count, on other machines only runs on CPUs.
    """

    def __init__(self, finished: Iterable[tuple[Mapping[str, Any], Result]]) -> None:
        here = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        self.sums: dict[tuple, list[float]] = {}  # kind -> seconds, rounds
        for spec, result in finished:
            for run in (run for run in result.runs.values() if {"device", "seconds"} <= run.keys()):
                if here == (run["device"] if "NVIDIA" in run["device"] else None):
                    for kind in _kinds(spec):
                        sums = self.sums.setdefault(kind, [0.0, 0.0])
                        sums[0] += run["seconds"]
                        sums[1] += _rounds(spec)

    def seconds(self, spec: Mapping[str, Any]) -> float | None:
        """Seconds of one round, from finished cells of the same study, source and model, and if
        possible of the same cohort and method; None if there is no such cell."""
        near = next((self.sums[kind] for kind in _kinds(spec) if kind in self.sums), None)
        return near and near[0] / near[1]


def _rounds(spec: Mapping[str, Any]) -> int:
    """The rounds of a run; 1 for a run of none, which still starts and evaluates."""
    return max(1, spec.get("run", {}).get("rounds", 1))


def _kinds(spec: Mapping[str, Any]) -> list[tuple]:
    """The kinds that a cell belongs to, most specific first: with method and cohort, one of them, neither."""
    fed, method, cohort = spec.get("federation", {}), spec.get("method", [""])[0], spec.get("run", {}).get("cohort")
    kind = (spec["study"], json.dumps(fed.get("source")), json.dumps(fed.get("model", spec.get("model"))))
    return [(*kind, method, cohort), (*kind, cohort), (*kind, method), kind]
