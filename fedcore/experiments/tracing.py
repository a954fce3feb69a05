"""Whether today's code still computes what older code computed: the trace of a short run, kept with a cell's results.

A name that changes, or a faster layer, makes a stored result older than the code and changes nothing in it.  A trace is
the first five rounds of seed 0 in seven numbers: five of the update of the model, a loss and an accuracy; a cell of the
Mime ablation adds its cosine after them.  Code that
gives the same trace but for rounding computes the same run; a rule that is changed by one per cent does not.  It is
taken in float64: five rounds of a network with batch norm at a large rate multiply the rounding of float32 by 10^5, and
a trace of float32 would tell one processor, or one number of threads, from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .. import Diverged, simulate, start
from . import studies
from .building import build_federation, build_method
from .tuning import choose

TRAINED = ("simulate", "personal", "profiles", "clients", "domains", "gap", "mime", "overfitting", "rounds")
ROUNDS = 5
TOLERANCE = 1e-3  # of the update's length; rounding makes 1e-10


def trace(spec: Mapping[str, Any], device: str | None = None) -> list[float]:
    """The trace of a specification without `tune`: the length of the update x^5 - x^0, its products with four
    directions of +1 and -1, and test loss and accuracy; `[-round]` of a run that diverges before.  Of the study "mime"
    also the cosine on the first steps after these rounds.

    Of a study that is no training run it is the study's number with seed 0.
    """
    if spec["study"] not in TRAINED:
        return [float(studies.find(spec)(spec, 0, None, device)["final"])]
    fed = build_federation(spec["federation"], 0, device).to(dtype=torch.float64)
    rounds = min(ROUNDS, spec["run"].get("rounds", ROUNDS))
    run = {**spec["run"], "rounds": rounds, "eval_every": max(rounds, 1)}
    method = build_method(spec["method"], fed, spec["run"])
    try:
        history = simulate(method, fed, seed=0, **run)
    except Diverged as e:
        return [-float(e.round)]
    update = (history.params - start(method, fed)["x"]).double().cpu().numpy()
    signs = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (4, update.size)) * 2 - 1
    seen = [float(history.curve(metric)[1][-1]) for metric in ("loss", "accuracy")]
    if spec["study"] == "mime":
        exact = {name: value for name, value in spec["federation"].items() if name != "compute"} | {"dtype": "float64"}
        short = {**spec, "federation": exact, "run": run, "steps": min(ROUNDS, spec["steps"])}
        found = studies.find(short)(short, 0, None, device)
        seen.append(-float(found["diverged"]) if found["final"] is None else found["final"])
    return [float(np.linalg.norm(update)), *(signs @ update).tolist(), *seen]


def alike(a: list[float], b: list[float]) -> bool:
    """Whether two traces are those of one computation but for rounding."""
    if len(a) != len(b) or len(a) == 1:
        return len(a) == len(b) and bool(np.isclose(a[0], b[0], rtol=TOLERANCE, atol=0))
    near = np.abs(np.subtract(a, b))
    near[6] = max(0.0, near[6] - 0.005)  # an image may tip over
    return bool((near <= TOLERANCE * np.array([a[0]] * 5 + [a[5], 1.0, 1.0])[: len(a)]).all())


def same_choice(spec: Mapping[str, Any], tuned: Mapping[str, Any]) -> bool:
    """Whether today's search, given the scores that are stored, asks for the same runs and chooses the same setting."""
    scores = iter([value for trial in tuned["tried"] for value in trial["values"]])
    try:
        again = choose(spec, lambda chosen, seed, name: {"final": next(scores)})
    except StopIteration:
        return False
    return all(again[key] == tuned.get(key) for key in ("setting", "tried", "edges"))
