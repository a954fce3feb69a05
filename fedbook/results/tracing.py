"""Whether today's code still computes a stored result: the trace of a short run, stored with a cell's results.

A renamed variable or a faster layer makes a stored result older than the code without changing the result.  A trace
summarises the first five rounds of seed 0 in seven numbers: five of the model's update, a loss and an accuracy; a cell
of the Mime ablation adds its cosine.  Code with the same trace up to rounding computes the same run; an update rule
that is changed by one per cent gives a different trace.

A trace must not depend on the processor or the number of threads.  It is therefore computed in float64, and ends after
two to four rounds if a round has many steps: at a large learning rate a network with batch norm multiplies rounding
errors by about 1.4 per step, and at about 10^-8 they switch single ReLU units, after which the runs diverge.  Rounds by
epochs that have more than `LONG` steps are cut for the same reason.
This is not always enough: a few cells with batch norm leave another trace on another make of processor.  To confirm
them, both codes are run on one processor: that of the stored trace and today's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedcore import Diverged, Federation, simulate, start
from fedcore.algorithms.method import Method

from .. import studies
from ..studies.from_spec import build_federation, build_method
from ..studies.tuning import choose

TRAINED = ("simulate", "best", "personal", "profiles", "clients", "domains", "gap", "mime", "overfitting", "rounds")
ROUNDS = 5
STEPS, GRADIENTS = 50, 100  # limits per client over the whole trace, which always has two rounds
LONG = 500  # if a round by epochs has as many local steps, each of the trace's rounds has `STEPS` / 2 of them
TOLERANCE = 1e-3  # relative to the update's norm; rounding gives 1e-10


def trace(spec: Mapping[str, Any], device: str | None = None) -> list[float]:
    """The trace of a specification without `tune`: the norm of the update x^R - x^0 after R rounds (`_rounds`), its
    inner products with four random vectors of +1 and -1, and test loss and accuracy; `[-round]` if the run diverges.
    The study "mime" adds the cosine on the first steps after these rounds.

    For a study without training (not in `TRAINED`) the trace is the result for seed 0.
    """
    if spec["study"] not in TRAINED:
        return [float(studies.find(spec)(spec, 0, None, device)["final"])]
    fed = build_federation(spec["federation"], 0, device).to(dtype=torch.float64)
    run = _short(spec["run"], fed)
    method = build_method(spec["method"], fed, run)
    rounds = _rounds(run, method)
    run = {**run, "rounds": rounds, "eval_every": max(rounds, 1)}
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


def _short(run: Mapping[str, Any], fed: Federation) -> Mapping[str, Any]:
    """The settings of a run without very long rounds, in which rounding errors grow until single units switch."""
    epochs = 0 if run.get("local_steps") else run.get("local_epochs") or 1
    if epochs * np.mean(fed.sizes) / (run.get("batch_size") or np.max(fed.sizes)) < LONG:
        return run
    return {name: value for name, value in run.items() if name != "local_epochs"} | {"local_steps": STEPS // 2}


def _rounds(run: Mapping[str, Any], method: Method) -> int:
    """The number of rounds of a trace, at most those of the run."""
    steps = np.mean(run.get("local_steps") or 1)  # runs by epochs have fewer than `LONG`; their traces agree
    most = int(min(STEPS / steps, GRADIENTS / (steps * max(1, method.cost().gradients))))
    return min(run.get("rounds", ROUNDS), max(2, min(ROUNDS, most)))


def alike(a: list[float], b: list[float]) -> bool:
    """Whether two traces agree up to rounding."""
    if len(a) != len(b) or len(a) == 1:
        return len(a) == len(b) and bool(np.isclose(a[0], b[0], rtol=TOLERANCE, atol=0))
    near = np.abs(np.subtract(a, b))
    near[6] = max(0.0, near[6] - 0.005)  # rounding may change the class of single images
    return bool((near <= TOLERANCE * np.array([a[0]] * 5 + [a[5], 1.0, 1.0])[: len(a)]).all())


def same_choice(spec: Mapping[str, Any], tuned: Mapping[str, Any]) -> bool:
    """Whether today's tuning, given the stored scores, makes the same trials and chooses the same setting."""
    scores = iter([value for trial in tuned["tried"] for value in trial["values"]])
    try:
        again = choose(spec, lambda chosen, seed, name: {"final": next(scores)})
    except StopIteration:
        return False
    return all(again[key] == tuned.get(key) for key in ("setting", "tried", "edges"))
