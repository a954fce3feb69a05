"""The setting that a cell's reporting seeds use: a search that is the same for every method.

    "tune": {"axes": {"run.lr": [0.05, 0.1, 0.2], "method.alpha": [0.1, 0.3]}, "seeds": [1000, 1001],
             "rounds": 30, "finalists": 3, "growth": 2, "limits": {"method.alpha": [0, 1]}}

All combinations are run on the tuning seeds; where `rounds` is given, on the first two of them and for that many
rounds.  While the best one stands at an end of an axis, the axis grows there by one value in the ratio of its last two,
with the others fixed, at most `growth` times an axis and within `limits`.  The `finalists` are then run in full on all
tuning seeds ("rounds": [4, 12] stops them after twelve rounds), and where all of them diverge the next ones, until one
does not.  Finalists are so many of the best settings, and the best setting at each of so many of the best learning
rates: a method with a parameter of its own then has as many rates in the last stage as one without.  Short runs favour
fast rates: where a finalist diverges, and while the best one has the lowest rate of them, the best setting at the next
lower rate joins.  Then the axes may grow once more.  Scores are means of the final metric on the validation data, where
the federation has it; the first of equal ones wins, and a setting that diverged with any seed comes last.
`{"grid": [{"run": {"lr": 0.1}}, ...]}` names the settings one by one instead.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Setting = dict[str, Any]
Study = Callable[[Mapping[str, Any], int, str], Mapping[str, Any]]


def choose(spec: Mapping[str, Any], run: Study) -> dict[str, Any]:
    """The best setting for `spec`: `setting`, all that was `tried` with its score, and the axes at whose `edges` it is.

    run: `(specification with the setting put in, seed, a name for its checkpoints) -> what a study gives`.
    Raises ValueError for a search without settings.
    """
    search = Search(spec, run)
    tune = spec["tune"]
    if "grid" in tune:
        for setting in tune["grid"]:
            search.score(setting)
        return {"setting": search.best(), "tried": search.tried, "edges": []}
    axes = {name: sorted(values) for name, values in tune["axes"].items()}
    short, long = stages(tune)
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
        first, others = search.finalists(tune.get("finalists", 3))
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
    """How many rounds a search takes, at most, before any axis grows or a slower rate joins and as long as a finalist
    ends, where a run has so many `rounds`."""
    seeds = len(tune.get("seeds", [1000]))
    if "grid" in tune:
        return len(tune["grid"]) * seeds * rounds
    combinations = math.prod(map(len, tune["axes"].values()))
    short, long = stages(tune)
    if short is None:
        return combinations * seeds * rounds
    count, rates = tune.get("finalists", 3), len(tune["axes"].get("run.lr", [None]))
    others = min(count, rates) - 1 if combinations > rates else 0  # the best at other rates than the best settings'
    return combinations * min(seeds, 2) * short + min(count + others, combinations) * seeds * (long or rounds)


def stages(tune: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Rounds of the first runs and of the finalists'; None for those of the specification."""
    rounds = tune.get("rounds")
    return (rounds[0], rounds[1]) if isinstance(rounds, list) else (rounds, None)


@dataclass
class Search:
    """Scores of settings: `tried` lists `{setting, rounds, score, values}`, rounds None for all rounds."""

    spec: Mapping[str, Any]
    run: Study
    tried: list[dict[str, Any]] = field(default_factory=list)

    def score(self, setting: Setting, rounds: int | None = None, first: bool = False) -> float | None:
        """A setting's score after so many rounds, None: all, over the tuning seeds; over two in a short first run."""
        spec = merged(self.spec, setting)
        if rounds is not None:
            spec["run"] = {**spec["run"], "rounds": rounds}
        if spec.get("federation", {}).get("validation"):
            spec["on"] = "validation"
        seeds = self.spec["tune"].get("seeds", [1000])[: 2 if first and rounds is not None else None]
        values = [self.run(spec, s, f"tune{len(self.tried)}-{s}")["final"] for s in seeds]
        score = None if None in values else float(np.mean(values))
        self.tried.append({"setting": setting, "rounds": rounds, "score": score, "values": values})
        return score

    def leading(self, count: int) -> list[Setting]:
        """The best settings among the longest runs, the best first."""
        if not self.tried:
            raise ValueError("the search has no settings; give `grid` or `axes` with at least one value each")
        longest = max(_length(t) for t in self.tried)
        return self._ordered([t for t in self.tried if _length(t) == longest])[:count]

    def _ordered(self, trials: list[dict[str, Any]]) -> list[Setting]:
        """Their settings, the best first; equal ones keep their order, diverged ones come last."""
        sign = -1 if lower_is_better(self.spec) else 1
        order = sorted(trials, key=lambda t: math.inf if t["score"] is None else -sign * t["score"])
        return [t["setting"] for t in order]

    def finalists(self, count: int) -> tuple[list[Setting], list[Setting]]:
        """The `count` best settings, and after them the best one at each of the `count` best learning rates; and all
        others, the best first."""
        order = self.leading(len(self.tried))
        by_rate: dict[Any, Setting] = {}
        for setting in order:
            by_rate.setdefault(_rate(setting), setting)
        rates = list(by_rate.values())[:count]
        first = order[:count] + [setting for setting in rates if setting not in order[:count]]
        return first, [setting for setting in order if setting not in first]

    def slower(self) -> Setting | None:
        """Of the settings at the next learning rate below those of the longest runs, the one with the best short run;
        None where there is no lower rate."""
        rates = [_rate(setting) for setting in self.leading(len(self.tried))]
        lower = [t for t in self.tried if None not in rates and _rate(t["setting"]) < min(rates)]
        following = max((_rate(t["setting"]) for t in lower), default=None)
        return next(iter(self._ordered([t for t in lower if _rate(t["setting"]) == following])), None)

    def slowest_is_best(self) -> bool:
        """Whether the best setting of the longest runs has the lowest learning rate of them."""
        return _rate(self.best()) == min(map(_rate, self.leading(len(self.tried))))

    def best(self) -> Setting:
        """The best setting."""
        return self.leading(1)[0]


def lower_is_better(spec: Mapping[str, Any]) -> bool:
    """Whether a search looks for the smallest value: `better`, or what the metric says by its name."""
    return spec.get("better", "lower" if "loss" in spec.get("metric", "") else "higher") == "lower"


def beyond(values: list[float], at: float, limits: tuple[float, float]) -> float | None:
    """The value by which an axis grows past its end `at`; None inside the axis, at a limit, and for a single value."""
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
    """The opposite of `named`."""
    return {f"{part}.{key}": value for part, inner in setting.items() for key, value in inner.items()}


def merged(spec: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with a setting of the grid put in; mappings are merged, a method's arguments too."""
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
