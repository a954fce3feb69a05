"""Hyperparameter tuning for a cell, by one procedure for every method.

    "tune": {"axes": {"run.lr": [0.05, 0.1, 0.2], "method.alpha": [0.1, 0.3]}, "seeds": [1000, 1001],
             "rounds": 30, "finalists": 3, "growth": 2, "limits": {"method.alpha": [0, 1]}}

All combinations are run on the tuning seeds; if `rounds` is given, only on the first two seeds and for that many
rounds.  While the best setting lies at an end of an axis, the axis grows there by one value in the ratio of its last
two, with the other axes fixed, at most `growth` times per axis and within `limits`.  The finalists are then run in full
on all tuning seeds ("rounds": [4, 12] stops them after twelve rounds); if all of them diverge, the next settings follow
until one does not.  With `finalists` = m, the finalists are the m best settings, and the best setting at each of the m
best learning rates, so that a method with its own parameter has as many rates in the last stage as one without.  Short
runs favour high rates: if a finalist diverges, and while the best finalist has the lowest rate of them, the best
setting at the next lower rate joins.  Then the axes may grow once more.  A score is the mean accuracy late in the run
(`training.late_rounds`), or of the final metric where it is no accuracy, on
validation data if the federation has them; of equal scores the first wins, and a setting that diverged with any seed
comes last.  `{"grid": [{"run": {"lr": 0.1}}, ...]}` lists the settings one by one instead.

`{"race": [60, 120, 240, 600], "behind": 8}` replaces `rounds`.  All settings are run for 60 rounds.  Those that diverge
or are more than 8 points behind the best are dropped, and the others continue from their checkpoints to 120 rounds;
then the better half (at least `finalists`) continues to 240, and the better half of these to the end.  There, too, the
next lower rate joins while the slowest wins, and the axes may grow.  With `{"each": true}` every reporting seed j is
tuned separately, on the tuning seeds plus 10 j, so that the spread over seeds contains that of the choice.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcore.storage.identity import short as digest

Setting = dict[str, Any]
Study = Callable[[Mapping[str, Any], int, str], Mapping[str, Any]]


def choose(spec: Mapping[str, Any], run: Study) -> dict[str, Any]:
    """The result of tuning: the best `setting`, all trials (`tried`), and the axes at whose ends it lies (`edges`).

    run: `(specification with a setting merged in, seed, name of its checkpoints) -> the result of a study`.
    Raises ValueError for tuning without settings.
    """
    search = Search(spec, run)
    tune = spec["tune"]
    if "grid" in tune:
        for setting in tune["grid"]:
            search.score(setting)
        return {"setting": search.best(), "tried": search.tried, "edges": []}
    axes = {name: sorted(values) for name, values in tune["axes"].items()}
    race = tune.get("race")
    short, long = stages(tune) if race is None else (race[0], _shorter(race[-1], spec))
    for values in itertools.product(*axes.values()):
        search.score(named(dict(zip(axes, values, strict=True))), short, first=True)
    left = dict.fromkeys(axes, tune.get("growth", 2))

    def grow(rounds: int | None, first: bool = False) -> None:
        for name in axes:
            while left[name]:
                here = flat(search.best())
                more = beyond(axes[name], here[name], tune.get("limits", {}).get(name, (0, math.inf)))
                if more is None:
                    break
                left[name] -= 1
                axes[name] = sorted([*axes[name], more])
                search.score(named({**here, name: more}), rounds, first)

    grow(short, first=True)
    if short is not None:
        first, others = search.finalists(tune.get("finalists", 3)) if race is None else (search.raced(tune), [])
        finals = [search.score(setting, long) for setting in first]
        while others and not any(score is not None for score in finals):
            finals.append(search.score(others.pop(0), long))
        while (slower := search.slower()) and (None in finals or search.slowest_is_best()):
            finals = [search.score(slower, long)]
        grow(long)
    chosen = search.best()
    edges = [name for name, value in flat(chosen).items() if len(axes[name]) > 1 and value in _ends(axes[name])]
    return {"setting": chosen, "tried": search.tried, "edges": edges}


def planned(tune: Mapping[str, Any], rounds: int) -> int:
    """The largest number of rounds of tuning, if no axis grows, no lower rate joins and not all finalists diverge.

    rounds: of a full run.
    """
    seeds = len(tune.get("seeds", [1000]))
    if "grid" in tune:
        return len(tune["grid"]) * seeds * rounds
    combinations = math.prod(map(len, tune["axes"].values()))
    if "race" in tune:
        lengths = tune["race"]
        # Each stage goes on from the one before; from the second on at most half of the settings are left.
        left = [combinations, combinations, *(-(-combinations // 2**k) for k in range(1, len(lengths) - 1))]
        return seeds * sum(n * (b - a) for n, a, b in zip(left, [0, *lengths], lengths, strict=False))
    short, long = stages(tune)
    if short is None:
        return combinations * seeds * rounds
    count, rates = tune.get("finalists", 3), len(tune["axes"].get("run.lr", [None]))
    others = min(count, rates) - 1 if combinations > rates else 0  # the best settings at further rates
    return combinations * min(seeds, 2) * short + min(count + others, combinations) * seeds * (long or rounds)


def _shorter(rounds: int, spec: Mapping[str, Any]) -> int | None:
    """The rounds of a run that is shorter than a full one, None for a full one."""
    return None if rounds == spec.get("run", {}).get("rounds") else rounds


def stages(tune: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The rounds of the first runs and of the finalists; None for the rounds of the specification."""
    rounds = tune.get("rounds")
    return (rounds[0], rounds[1]) if isinstance(rounds, list) else (rounds, None)


@dataclass
class Search:
    """The trials of tuning: `tried` lists `{setting, rounds, score, values}`; rounds is None for full runs."""

    spec: Mapping[str, Any]
    run: Study
    tried: list[dict[str, Any]] = field(default_factory=list)

    def score(self, setting: Setting, rounds: int | None = None, first: bool = False) -> float | None:
        """The score of a setting: the mean over the tuning seeds, or over the first two in a short first run.

        rounds: None for full runs.  None is returned if a run diverges.
        """
        spec = merged(self.spec, setting)
        if rounds is not None:
            spec["run"] = {**spec["run"], "rounds": rounds}
        if spec.get("federation", {}).get("validation"):
            spec["on"] = "validation"
        few = first and rounds is not None and "race" not in self.spec["tune"]
        seeds = self.spec["tune"].get("seeds", [1000])[: 2 if few else None]
        name = digest(json.dumps(setting, sort_keys=True))
        # A longer run of a setting goes on from the checkpoint of a shorter one.
        found = [self.run(spec, s, f"tune-{name}-{s}") for s in seeds]
        values = [one.get("late", one["final"]) for one in found]
        score = None if None in values else float(np.mean(values))
        self.tried.append({"setting": setting, "rounds": rounds, "score": score, "values": values})
        return score

    def leading(self, count: int) -> list[Setting]:
        """The best settings among the longest runs, best first.  Raises ValueError if there is no trial."""
        if not self.tried:
            raise ValueError("the search has no settings; give `grid` or `axes` with at least one value each")
        longest = max(_length(t) for t in self.tried)
        return self._ordered([t for t in self.tried if _length(t) == longest])[:count]

    def raced(self, tune: Mapping[str, Any]) -> list[Setting]:
        """The settings that a race leaves for its last stage; the first stage has been run."""
        sign = -1 if lower_is_better(self.spec) else 1
        known = [t for t in self.tried if t["score"] is not None]
        best = max((sign * t["score"] for t in known), default=0.0)
        left = self._ordered([t for t in known if sign * t["score"] >= best - tune.get("behind", 8.0)])
        for rounds in tune["race"][1:-1]:
            for setting in left:
                self.score(setting, rounds)
            left = self.leading(max(tune.get("finalists", 3), -(-len(left) // 2)))
        return left or self.leading(1)

    def _ordered(self, trials: list[dict[str, Any]]) -> list[Setting]:
        """The settings of the trials, best first; equal scores keep their order, diverged settings come last."""
        sign = -1 if lower_is_better(self.spec) else 1
        order = sorted(trials, key=lambda t: math.inf if t["score"] is None else -sign * t["score"])
        return [t["setting"] for t in order]

    def finalists(self, count: int) -> tuple[list[Setting], list[Setting]]:
        """Two lists: the finalists, that is, the `count` best settings followed by the best setting at each of the
        `count` best learning rates; and all other settings, best first."""
        order = self.leading(len(self.tried))
        by_rate: dict[Any, Setting] = {}
        for setting in order:
            by_rate.setdefault(_rate(setting), setting)
        rates = list(by_rate.values())[:count]
        first = order[:count] + [setting for setting in rates if setting not in order[:count]]
        return first, [setting for setting in order if setting not in first]

    def slower(self) -> Setting | None:
        """The setting with the best short run at the next learning rate below those of the longest runs; None if there
        is no lower rate."""
        rates = [_rate(setting) for setting in self.leading(len(self.tried))]
        lower = [t for t in self.tried if None not in rates and _rate(t["setting"]) < min(rates)]
        following = max((_rate(t["setting"]) for t in lower), default=None)
        return next(iter(self._ordered([t for t in lower if _rate(t["setting"]) == following])), None)

    def slowest_is_best(self) -> bool:
        """Whether the best setting of the longest runs has the lowest learning rate among them."""
        return _rate(self.best()) == min(map(_rate, self.leading(len(self.tried))))

    def best(self) -> Setting:
        """The best setting."""
        return self.leading(1)[0]


def of_seed(spec: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """The specification with the tuning seeds of a reporting seed (`"each"`)."""
    tune = spec.get("tune", {})
    if not tune.get("each"):
        return spec
    return {**spec, "tune": {**tune, "seeds": [s + 10 * seed for s in tune.get("seeds", [1000])]}}


def lower_is_better(spec: Mapping[str, Any]) -> bool:
    """Whether smaller values of the metric are better, by the key `better` or the metric's name."""
    return spec.get("better", "lower" if "loss" in spec.get("metric", "") else "higher") == "lower"


def beyond(values: list[float], at: float, limits: tuple[float, float]) -> float | None:
    """The next value of an axis beyond its end `at`; None inside the axis, at a limit, and for a single value."""
    if len(values) < 2 or at not in _ends(values):
        return None
    end, inner = (values[0], values[1]) if at == values[0] else (values[-1], values[-2])
    if min(end, inner) <= 0:
        return None
    more = float(f"{end * end / inner:.2g}")
    return more if limits[0] < more < limits[1] and more not in values else None


def _length(trial: Mapping[str, Any]) -> float:
    return math.inf if trial["rounds"] is None else trial["rounds"]


def _rate(setting: Setting) -> float | None:
    return flat(setting).get("run.lr")


def _ends(values: list[float]) -> tuple[float, float]:
    return values[0], values[-1]


def named(values: Mapping[str, Any]) -> Setting:
    """`{"run.lr": 0.1, "method.mu": 1}` -> `{"run": {"lr": 0.1}, "method": {"mu": 1}}`."""
    out: Setting = {}
    for name, value in values.items():
        part, _, key = name.partition(".")
        out.setdefault(part, {})[key] = value
    return out


def flat(setting: Setting) -> dict[str, Any]:
    """The inverse of `named`."""
    return {f"{part}.{key}": value for part, inner in setting.items() for key, value in inner.items()}


def merged(spec: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with a setting merged into its mappings and into the method's arguments."""
    out = copy.deepcopy(dict(spec))
    out.pop("tune", None)
    for key, value in setting.items():
        if key == "method":
            name, arguments = out["method"]
            out["method"] = [name, {**arguments, **value}]
        elif isinstance(value, Mapping):
            out[key] = {**out.get(key, {}), **value}
        else:
            out[key] = value
    return out
