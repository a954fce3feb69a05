"""Validation of a cell's specification, its keys and the kinds of their values, before anything is computed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from fedcore import federation, simulate
from fedcore.support import checks
from fedcore.support.checks import Kind

TRAINED = ("method", "federation", "run")
NEEDED = {  # required keys by study, besides the optional ones of all studies; a user's own study is not checked
    "simulate": TRAINED, "best": TRAINED, "personal": (*TRAINED, "client"), "profiles": (*TRAINED, "layer"),
    "clients": (*TRAINED, "clients"), "mime": (*TRAINED, "pair", "steps"), "gap": (*TRAINED, "what"),
    "size": ("by", "capacities", "classes", "model", "shape", "what"), "cost": ("cost", "method"),
}  # fmt: skip
OF_ALL = ("study", "tune", "better", "metric", "on")
BETTER = ("higher", "lower")
OURS = {"method", "fed", "seed", "device", "checkpoint_dir", "resume", "progress", "probes", "on_evaluate", "personal"}


def check(spec: Mapping[str, Any]) -> None:
    """Raise ValueError for keys that are missing, or unknown (with the nearest known key), and for values of the wrong
    kind."""
    form(spec)
    needed = NEEDED.get(spec.get("study", ""))
    if needed is not None:
        _known("the specification", spec, {*OF_ALL, *itertools.chain(*NEEDED.values())}, needed)
        if "run" in needed:
            _known("run", spec["run"], set(inspect.signature(simulate).parameters) - OURS, ("rounds",))
            for name, allowed in checks.ranges(simulate).items():  # a search would reach the checks of `simulate` late
                if name in spec["run"]:
                    allowed.check(f"run: {name}", spec["run"][name])
            fed = set(inspect.signature(federation).parameters) - {"seed", "device"}
            _known("federation", spec["federation"], fed, ("source",))
            _dealt(spec["federation"].get("partition", "IID"))
    if "better" in spec:
        checks.choice("better", spec["better"], BETTER)
    if "tune" in spec:
        try:
            _search(**spec["tune"])
        except (TypeError, ValueError) as e:
            raise ValueError(f"tune: {e}") from e
        metric = spec.get("metric", "accuracy")
        if "better" not in spec and "accuracy" not in metric and "loss" not in metric:
            raise ValueError(f"a search by metric={metric!r} needs better='higher' or 'lower'; say which")


def form(spec: Mapping[str, Any]) -> None:
    """Raise ValueError for a part whose kind would break the code that reads specifications."""
    if not isinstance(spec.get("study", ""), str):
        raise ValueError(f"study={checks.brief(spec['study'])}; use the name of a study, such as 'simulate'")
    for part, least in (("federation", "source"), ("run", "rounds"), ("tune", "axes or grid")):
        if not isinstance(spec.get(part, {}), Mapping):
            raise ValueError(f"{part} is {checks.brief(spec[part])}; use a mapping with {least}")
    if "method" in spec:
        _named("method", spec["method"])
    named = {"source": spec.get("federation", {}), "model": {**spec, **spec.get("federation", {})}}
    for what, given in named.items():
        if not isinstance(given.get(what, ""), str):
            _named(what, given[what], '"digits", or ["rotated", {"clients": 5}]' if what == "source" else '"mlp"')


def _are(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0 and all(map(test, value))


def _counts(low: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= checks.MOST


Grid = Kind(lambda v: _are(v, lambda part: isinstance(part, Mapping)), "a list of settings, {part: {name: value}}")
Axes = Kind(
    lambda v: isinstance(v, Mapping) and all(_are(values, lambda value: True) for values in v.values()),
    "{'run.lr': [0.1, 0.2]}, each with one value at least",
)
Seeds = Kind(lambda v: _are(v, _counts(0)), "a list of one seed at least, or leave it out for [1000]")
Rounds = Kind(
    lambda v: _counts(1)(v) or (_are(v, _counts(1)) and len(v) == 2),
    "rounds>=1, or two such numbers, [first, finalists']",
)


Race = Kind(
    lambda v: _are(v, _counts(1)) and len(v) > 1 and list(v) == sorted(set(v)),
    "the rounds of the stages, each longer than the one before, such as [30, 60, 120, 300]",
)


@checks.arguments
def _search(
    *,
    grid: Annotated[Any, Grid] | None = None,
    axes: Annotated[Any, Axes] | None = None,
    seeds: Annotated[Any, Seeds] = (1000,),
    rounds: Annotated[Any, Rounds] | None = None,
    race: Annotated[Any, Race] | None = None,
    behind: checks.NonNegative = 8.0,
    each: bool = False,
    finalists: checks.Count | None = None,
    growth: checks.CountFromZero | None = None,
    limits: checks.Mapped | None = None,
) -> None:
    """Check the arguments of tuning (`tuning`) by their annotations."""
    if grid is None and axes is None:
        raise ValueError("a search needs axes or grid; give axes={'run.lr': [0.1, 0.2]}")
    if race is not None and (rounds is not None or axes is None):
        raise ValueError("race replaces rounds and needs axes; leave rounds and grid out")


def _known(what: str, given: Any, known: Collection[str], needed: Collection[str]) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} is {checks.brief(given)}; use a mapping with {', '.join(needed) or 'its settings'}")
    for key in given:
        if key not in known:
            raise ValueError(f"{what} has {key!r}, which nothing reads; {checks.nearest(key, known)}")
    for key in needed:
        if key not in given:
            raise ValueError(f"{what} lacks {key!r}; it needs {', '.join(needed)}")


def _named(what: str, entry: Any, example: str = '["FedUp", {"alpha": 0.1}]') -> None:
    pair = isinstance(entry, list | tuple) and len(entry) == 2
    if not (pair and isinstance(entry[0], str) and isinstance(entry[1], Mapping)):
        raise ValueError(f"{what}={checks.brief(entry)}; use [name, {{arguments}}], such as {example}")


def _dealt(entry: Any) -> None:
    lists = isinstance(entry, list | tuple) and entry and not any(isinstance(part, str | Mapping) for part in entry)
    if not isinstance(entry, str) and not lists:
        _named("partition", entry, '["IID", {}], or lists of indices')
