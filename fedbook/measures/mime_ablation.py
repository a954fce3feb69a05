"""The Mime ablation of the chapter: cosines and distances along the local trajectories of all clients, cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from fedcore import IID, Dirichlet, Federation, federation, models, probes, rng, simulate
from fedcore.algorithms import FedAvg, Mime

from ..results import page_cache

SPLITS = {"0.1": Dirichlet(0.1), "0.3": Dirichlet(0.3), "1": Dirichlet(1.0), "IID": IID()}
PATHS = {"FedAvg": FedAvg(), "Mime": Mime(0.0)}
COSINES = ("A, C", "A-B+C, C", "A-B, C", "A, B")
PLAN: dict[str, Any] = {
    "source": "digits", "clients": 10, "cohort": 10, "name": "MLP 64-32-10, float64", "K": 7, "lr": 0.1, "steps": 40,
    "rounds": (0, 10, 40), "targets": (1, 5, 20, 40),
}  # fmt: skip
SMALL = {"steps": 6, "rounds": (0, 3), "targets": (1, 6)}
Run = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Ablation:
    """The results of the ablation, one mapping per seed: name in `probes.mime_ablation` -> mean over clients by step.

    study: by split, local method and round.  exact: with full batches at the first split, by local method.
    runs: `(split, local method, round) -> list of Run`, computed where they are not stored; a split is one of the
    study's or the concentration of a Dirichlet partition, such as "0.2"; a round is at most the plan's last.
    """

    plan: dict[str, Any]
    study: dict[tuple[str, str, int], list[Run]]
    exact: dict[str, list[Run]]
    runs: Callable[[str, str, int], list[Run]]

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(split for split, _, _ in self.study))

    @staticmethod
    def curve(runs: Sequence[Run], name: str) -> np.ndarray:
        """`[seeds, steps]`."""
        return np.array([run[name] for run in runs])

    @classmethod
    def average(cls, runs: Sequence[Run], name: str) -> np.ndarray:
        """Mean over the steps, as in the FedUp study: `[seeds]`."""
        return cls.curve(runs, name).mean(1)

    @classmethod
    def ratio(cls, runs: Sequence[Run]) -> np.ndarray:
        """Mean distance of A-B+C from the gradient of F over that of A: `[seeds, targets]`."""
        return cls.curve(runs, "A-B+C error") / cls.curve(runs, "A error")


@cache
def clients(split: str, seed: int) -> Federation:
    """The ten clients of a split."""
    model = lambda shape, classes: models.mlp(shape, classes, hidden=(32,))  # noqa: E731
    partition = SPLITS.get(split) or Dirichlet(float(split))
    return federation("digits", PLAN["clients"], partition, model, seed=seed, dtype=torch.float64)


def ablation(profile: str, seed: int, again: bool = False) -> Ablation:
    """The ablation of a profile, beginning with this seed; `again` recomputes and stores it (`page_cache.Runs`)."""
    tiny, batch_size = profile == "test", 20
    plan, splits = PLAN | (SMALL if tiny else {}), ("0.1", "IID") if tiny else tuple(SPLITS)
    kept = page_cache.Runs("mime_runs", profile, plan, again=again)

    @cache
    def trained(split: str, s: int) -> list[Any]:
        """The server models of one FedAvg run after 0, 1, ... rounds, to the last of the plan."""
        found: list[Any] = []
        work = {"lr": plan["lr"], "local_steps": plan["K"], "batch_size": batch_size, "seed": s}
        look = lambda r, y: found.append(r.x.clone()) or {}  # noqa: E731  (round t starts from the model after t rounds)
        simulate(FedAvg(), clients(split, s), rounds=max(plan["rounds"]) + 1, probes=[look], **work)
        return found

    @kept.keep
    def ablation(split: str, path: str, t: int, s: int, batch: int | None) -> dict[str, list[float]]:
        fed = clients(split, s)
        run = probes.mime_ablation(
            PATHS[path], fed, trained(split, s)[t], steps=plan["steps"], lr=plan["lr"], batch_size=batch, seed=s, t=t,
            cohort=rng.cohort(s, t, fed.n, plan["cohort"]), targets=plan["targets"],
        )  # fmt: skip
        means = {name: np.nanmean(values, axis=1) for name, values in run.items()}
        means["A-B, C below 0"] = (run["A-B, C"] < 0).mean(1)
        return {name: [float(f"{v:.9g}") for v in values] for name, values in means.items()}

    seeds = range(seed, seed + (1 if tiny else 3))

    def runs(split: str, path: str, t: int) -> list[Run]:
        return [ablation(split, path, t, s, batch_size) for s in seeds]

    places = [(split, path, t) for split in splits for t in plan["rounds"] for path in PATHS]
    study = {place: runs(*place) for place in places}
    exact = {path: [ablation(splits[0], path, plan["rounds"][1], s, None) for s in seeds] for path in PATHS}
    kept.store()
    return Ablation(plan, study, exact, runs)
