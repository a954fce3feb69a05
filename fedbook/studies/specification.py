"""Whether a cell's specification is one: its keys and their kinds, before anything is computed."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fedcore import federation, simulate
from fedcore.support import checks

TRAINED = ("method", "federation", "run")
NEEDED = {  # keys by study, beside those that every study may have; those of a study of the user's are its own
    "simulate": TRAINED, "personal": (*TRAINED, "client"), "profiles": (*TRAINED, "layer"),
    "clients": (*TRAINED, "clients"), "mime": (*TRAINED, "pair", "steps"), "gap": (*TRAINED, "what"),
    "size": ("by", "capacities", "classes", "model", "shape", "what"), "cost": ("cost", "method"),
}  # fmt: skip
OF_ALL = ("study", "tune", "better", "metric", "on")
TUNE = ("grid", "axes", "seeds", "rounds", "finalists", "growth", "limits")
BETTER = ("higher", "lower")
OURS = {"method", "fed", "seed", "device", "checkpoint_dir", "resume", "progress", "probes", "on_evaluate", "personal"}


def check(spec: Mapping[str, Any]) -> None:
    """Raises ValueError for keys that are missing, unknown or of another kind, with the nearest known one."""
    form(spec)
    needed = NEEDED.get(spec.get("study", ""))
    if needed is not None:
        _known("the specification", spec, {*OF_ALL, *itertools.chain(*NEEDED.values())}, needed)
        if "run" in needed:
            _known("run", spec["run"], set(inspect.signature(simulate).parameters) - OURS, ("rounds",))
            for name, allowed in checks.ranges(simulate).items():  # a search would come to the run's own check last
                if name in spec["run"]:
                    allowed.check(f"run: {name}", spec["run"][name])
            fed = set(inspect.signature(federation).parameters) - {"seed", "device"}
            _known("federation", spec["federation"], fed, ("source",))
            _dealt(spec["federation"].get("partition", "IID"))
    if "better" in spec:
        checks.choice("better", spec["better"], BETTER)
    if "tune" in spec:
        _check_search(spec)


def form(spec: Mapping[str, Any]) -> None:
    """Raises ValueError where a part is of another kind than all readers of a specification take it for."""
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


def _check_search(spec: Mapping[str, Any]) -> None:
    tune, metric = spec["tune"], spec.get("metric", "accuracy")
    _known("tune", tune, TUNE, ())
    if "grid" in tune:
        if not isinstance(tune["grid"], Sequence) or not all(isinstance(part, Mapping) for part in tune["grid"]):
            raise ValueError(
                f"tune: grid={checks.brief(tune['grid'])}; use a list of settings, {{part: {{name: value}}}}"
            )
    else:
        axes = tune.get("axes")
        if not isinstance(axes, Mapping) or not all(isinstance(v, Sequence) and len(v) for v in axes.values()):
            raise ValueError(
                f"tune: axes={checks.brief(axes)}; use {{'run.lr': [0.1, 0.2]}}, each with one value at least"
            )
    seeds = tune.get("seeds", [1000])
    if not isinstance(seeds, Sequence) or not len(seeds):
        raise ValueError(f"tune: seeds={seeds!r}; use a list of one seed at least, or leave it out for [1000]")
    for seed in seeds:
        checks.integer("tune: seed", seed, 0)
    for name, low in (("rounds", 1), ("finalists", 1), ("growth", 0)):
        given = tune.get(name)
        both = name == "rounds" and isinstance(given, list) and len(given) == 2  # those of the finalists too
        for value in given if both else [] if given is None else [given]:
            checks.integer(f"tune: {name}", value, low)
    if "better" not in spec and "accuracy" not in metric and "loss" not in metric:
        raise ValueError(f"a search by metric={metric!r} needs better='higher' or 'lower'; say which")


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


def called(what: str, make: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """`make(**arguments)`; ValueError naming the nearest argument where it takes others."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # written in C
        return make(**arguments)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in arguments:
            if key not in parameters:
                raise ValueError(f"{what} takes no {key!r}; {checks.nearest(key, list(parameters))}")
    for key, parameter in parameters.items():
        variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not variable and key not in arguments:
            raise ValueError(f"{what} needs {key!r}; give it")
    return make(**arguments)
