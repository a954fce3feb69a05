"""How long cells will take on this machine: from finished cells like them, else from counted work."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from .. import models, submodels
from . import studies
from .cells import Result

# source -> training samples, shape of a sample, classes, owners: an estimate reads no data
SOURCES: dict[str, tuple[int, tuple[int, ...], int, int]] = {
    "digits": (1438, (1, 8, 8), 10, 0), "digit-domains": (2000, (3, 16, 16), 10, 5), "roles": (8000, (20,), 80, 40),
    "cifar10": (50_000, (3, 32, 32), 10, 0), "cifar100": (50_000, (3, 32, 32), 100, 0),
    "emnist-mnist": (60_000, (1, 28, 28), 10, 0), "tiny-imagenet": (100_000, (3, 32, 32), 200, 0),
    "femnist": (700_000, (1, 28, 28), 62, 3400), "shakespeare": (3_600_000, (80,), 80, 1100),
    "digit_domains": (1000, (3, 16, 16), 10, 5), "digits_five": (3715, (3, 28, 28), 10, 5),
}  # fmt: skip
# yardsticks (`cells.yardstick`) that a call, a local step of clients with one network and 10^9 multiply-adds cost:
# rounded from the quick cells on a busy machine; a cell may take a third or three times of what they give
CALL, STEP, WORK = 20.0, 0.3, 40.0


def counted(spec: Mapping[str, Any]) -> float:
    """About how many yardsticks one run takes: local steps, and sample gradients times the model's multiply-adds.

    Methods differ by a factor of a few, and evaluations are not counted.  NaN for a source not in `SOURCES`.
    """
    if "federation" not in spec or "run" not in spec:
        return CALL
    fed, run = spec["federation"], spec["run"]
    source = fed["source"] if isinstance(fed["source"], str) else fed["source"][0]
    if source not in SOURCES:
        return math.nan
    samples, shape, classes, owners = SOURCES[source]
    if isinstance(fed["source"], list):  # some of the domains
        owners = len(fed["source"][1].get("train_on", range(owners)))
    clients = fed.get("clients") or owners * fed.get("partition", ["", {}])[1].get("parts", 1)
    cohort = run.get("cohort") or clients
    cohort = max(1, round(cohort * clients)) if isinstance(cohort, float) else cohort
    each = samples / clients
    batch = min(run.get("batch_size", 20) or each, each)
    steps = run.get("local_steps") or run.get("local_epochs", 1) * math.ceil(each / batch)
    steps = run["rounds"] * steps + spec.get("steps", 0)
    work = steps * cohort * batch * 3 * _multiply_adds(json.dumps(fed.get("model", "cnn")), shape, classes)
    networks = len(spec.get("method", ["", {}])[1].get("capacities", "1"))
    return CALL + STEP * steps * networks + WORK * work / 1e9


@cache
def _multiply_adds(model: str, shape: tuple[int, ...], classes: int) -> int:
    module = models.build(studies.build_model(json.loads(model)), shape, classes, 0)
    if len(shape) == 1:  # a text: every weight at every character
        return shape[0] * sum(p.numel() for p in module.parameters())
    return submodels.cost(module, shape)["macs"]


def runs_left(spec: Mapping[str, Any], result: Result, seeds: Sequence[int]) -> int:
    """Runs that a cell still needs: the missing seeds and, before the first of them, every setting of its grid."""
    missing = len(set(seeds) - set(result.runs))
    tune = spec.get("tune") if missing and result.tuned is None else None
    return missing + (len(tune["grid"]) * len(tune.get("seeds", [1000])) if tune else 0)


class Pace:
    """What finished runs took over what was counted for them, by kind of cell.

    Where there is a GPU only runs on the same one are taken, elsewhere only those of processors.
    """

    def __init__(self, finished: Iterable[tuple[Mapping[str, Any], Result]]) -> None:
        here = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        self.found: dict[tuple, list[float]] = {}  # kind -> yardsticks taken, yardsticks counted
        for spec, result in finished:
            for run in result.runs.values():
                if here == (run["device"] if "NVIDIA" in run["device"] else None) and math.isfinite(counted(spec)):
                    for kind in _kinds(spec):
                        sums = self.found.setdefault(kind, [0.0, 0.0])
                        sums[0] += run["seconds"] / run["yardstick"]
                        sums[1] += counted(spec)

    def seconds(self, spec: Mapping[str, Any], yardstick: float) -> tuple[float, bool]:
        """Seconds of one run here, and whether finished cells of the same study, source and model told it."""
        near = next((kind for kind in _kinds(spec) if kind in self.found), None)
        taken, expected = self.found[near] if near else (1.0, 1.0)
        return counted(spec) * yardstick * taken / expected, near is not None


def _kinds(spec: Mapping[str, Any]) -> list[tuple]:
    """The kinds that a cell belongs to, the nearest first: with its method, and without."""
    fed = spec.get("federation", {})
    kind = (spec["study"], json.dumps(fed.get("source")), json.dumps(fed.get("model", spec.get("model"))))
    return [(*kind, spec.get("method", [""])[0]), kind]
