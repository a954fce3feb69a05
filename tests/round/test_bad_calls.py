"""Wrong calls of everything public: a value that an argument cannot take is one clear error, and never a result.

Every argument of every public function, class and method is given each of `VALUES` in turn, beside arguments that are
right.  What it may take follows from its annotation, or stands in `TAKES`; all else must be refused.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import warnings
from typing import Any

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.support import checks


class Mute:
    """What has no repr."""

    def __repr__(self):
        raise RuntimeError("no repr")


VALUES: dict[str, Any] = {
    "None": None, "True": True, "False": False, "text": "zzz", "digit": "3", "empty": "", "bytes": b"1",
    "-1": -1, "0": 0, "1": 1, "2": 2, "-0.5": -0.5, "0.5": 0.5, "1.5": 1.5, "1e300": 1e300, "nan": math.nan,
    "inf": math.inf, "-inf": -math.inf, "2**64": 2**64, "10**30": 10**30, "10**400": 10**400, "complex": 1j,
    "list": [], "tuple": (), "dict": {}, "[None]": [None], "['a']": ["a"], "[3]": [3], "object": object(),
    "mute": Mute(), "function": lambda *given, **named: 0, "array": np.array([1.0, 2.0]), "tensor": torch.ones(2, 2),
}  # fmt: skip
CLEAR = (ValueError, TypeError, fc.CheckpointError, fc.DataNotFound, FloatingPointError, fc.SweepFailed, KeyError)
REMEDY = re.compile(
    r"\b(use|give|add|make|return|write|choose|did you mean|allowed|known|declare|name|needs|takes|scale|number them|"
    r"say|unexpected keyword)\b"
)
SLOW = {("sweep", "workers", "None"), ("sweep", "workers", "2")}  # they start processes

NOTHING: frozenset[str] = frozenset()
NUMBERS = [k for k, v in VALUES.items() if isinstance(v, int | float) and not isinstance(v, bool)]
TRUE_FALSE, NONE = frozenset({"True", "False"}), frozenset({"None"})


def numbers(
    low: float, high: float = sys.float_info.max, open_low: bool = False, whole: bool = False
) -> frozenset[str]:
    """The names of the values that are numbers from low to high."""
    named = {k for k in NUMBERS if low <= VALUES[k] <= high and not (open_low and VALUES[k] == low)}
    return frozenset(k for k in named if not whole or isinstance(VALUES[k], int))


PLAIN = h.network(dtype=torch.float32)
BOXES = h.problem()
QUADRATIC = fc.quadratic(*BOXES)
RUN = fc.simulate(fc.FedAvg(), QUADRATIC, rounds=1)
STATE = fc.start(fc.FedAvg(), QUADRATIC)
x0 = PLAIN.x0
IMAGES = h.images(40, (1, 4, 4), 3)


def net(shape, classes):
    return h.small_mlp(shape, classes)


class Drawn(Exception):
    """The call went through."""


def figure(a=1):
    raise Drawn


# what is called, and arguments that are right
RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (getattr(fc, name), {}) for name in fc.algorithms.__all__ if name not in ("ALL", "Method")},
    **{kind: (getattr(fc, kind), {}) for kind in
       ("IID", "ByOwner", "Quantity", "FeatureShift", "LabelSwap", "CropFlip", "RandAugment", "Gaussians", "Ring",
        "Complete", "Torus", "Exponential", "RandomRegular", "DirectedRandom")},
    "Dirichlet": (fc.Dirichlet, {"q": 0.3}), "Shards": (fc.Shards, {"classes": 2}),
    "Graph": (fc.Graph, {"graph": [(0, 1), (1, 2)]}), "Matrix": (fc.Matrix, {"W": np.full((2, 2), 0.5)}),
    "submodels.Width": (fc.submodels.Width, {"ratio": 0.5}), "submodels.Depth": (fc.submodels.Depth, {"stages": 1}),
    "simulate": (fc.simulate, {"method": fc.FedAvg(), "fed": QUADRATIC, "rounds": 1}),
    "one_round": (fc.one_round, {"method": fc.FedAvg(), "fed": QUADRATIC, "state": STATE, "t": 0, "lr": 0.1}),
    "start": (fc.start, {"method": fc.FedAvg(), "fed": QUADRATIC}),
    "federation": (fc.federation, {"source": IMAGES, "clients": 2, "model": "logistic", "device": "cpu"}),
    "quadratic": (fc.quadratic, {"A": BOXES[0], "b": BOXES[1]}),
    "sweep": (fc.sweep, {"federation": QUADRATIC, "grid": {"method": [fc.FedAvg()]}, "seeds": 1, "rounds": 1}),
    "simulate_many": (fc.simulate_many, {"runs": [{}], "fed": QUADRATIC, "method": fc.FedAvg(), "rounds": 1}),
    "playground": (fc.playground, {}), "submodel_playground": (fc.submodel_playground, {}),
    "explore": (fc.explore, {"fn": figure, "a": [1, 2]}), "show": (fc.show, {"figure": None}),
    "shown": (fc.shown, {"method": fc.FedAvg()}), "cite": (lambda names: fc.cite(names), {"names": "FedAvg"}),
    "topology.mixing": (fc.topology.mixing, {"topology": fc.Ring(), "n": 4}),
    "topology.topology": (fc.topology.topology, {"value": fc.Ring()}),
    "topology.spectrum": (fc.topology.spectrum, {"W": np.eye(2)}), "topology.gap": (fc.topology.gap, {"W": np.eye(2)}),
    "topology.check": (fc.topology.check, {"W": np.full((2, 2), 0.5)}),
    "models.projected": (fc.models.projected, {"model": "mlp"}),
    "submodels.multihead": (fc.submodels.multihead, {"model": "mlp"}),
    "probes.loss_along": (fc.probes.loss_along, {"fed": QUADRATIC, "a": QUADRATIC.x0, "b": QUADRATIC.x0}),
    "probes.loss_slice": (fc.probes.loss_slice, {"fed": QUADRATIC, **dict.fromkeys("xuv", QUADRATIC.x0)}),
    "probes.zeroth_order_flatness": (
        fc.probes.zeroth_order_flatness, {"fed": QUADRATIC, "x": QUADRATIC.x0, "rho": 0.1, "samples": 1}),
    "probes.first_order_flatness": (
        fc.probes.first_order_flatness, {"fed": QUADRATIC, "x": QUADRATIC.x0, "rho": 0.1, "samples": 1}),
    "probes.gradient_estimate": (fc.probes.gradient_estimate, {"alpha": 0.1}),
    "probes.submodel_gap": (fc.probes.submodel_gap, {}),
    "probes.mime_ablation": (
        fc.probes.mime_ablation, {"method": fc.FedAvg(), "fed": QUADRATIC, "x": QUADRATIC.x0, "steps": 1, "lr": 0.1}),
    "Federation.evaluate": (PLAIN.evaluate, {"x": x0}), "Federation.correct": (PLAIN.correct, {"x": x0}),
    "Federation.objective": (PLAIN.objective, {"x": x0}), "Federation.module": (PLAIN.module, {"params": x0}),
    "Federation.evaluate_clients": (PLAIN.evaluate_clients, {"X": x0.expand(5, -1)}),
    "Federation.forced": (PLAIN.forced, {"path": "batched"}), "Federation.set_aside": (PLAIN.set_aside, {"k": 1}),
    "Federation.own_test": (PLAIN.own_test, {"client": 0}),
    "Federation.to": (PLAIN.to, {}), "Federation.fastest": (PLAIN.fastest, {}),
    "Federation.with_model": (PLAIN.with_model, {"change": lambda module: module}),
    "Federation.with_public": (PLAIN.with_public, {"x": IMAGES[0][:2], "y": IMAGES[1][:2]}),
    "Quadratic.to": (QUADRATIC.to, {}), "Quadratic.objective": (QUADRATIC.objective, {"x": QUADRATIC.x0}),
    "Quadratic.evaluate": (QUADRATIC.evaluate, {"x": QUADRATIC.x0}),
    "History.curve": (RUN.curve, {"metric": "loss"}), "History.final": (RUN.final, {"metric": "loss"}),
    "History.plot": (RUN.plot, {"metric": "loss"}),
}  # fmt: skip

# values that arguments may take whose annotation has no range: by argument, or by "what: argument" where it differs
TAKES: dict[str, frozenset[str]] = {
    "mixing": NOTHING, "layers": NONE | {"text", "digit", "tuple", "list", "['a']"}, "graph": NOTHING, "W": NOTHING,
    "capacities": numbers(0, 1, open_low=True), "temperature": numbers(0) | {"inf"},
    "FedGSE: public": NONE | numbers(1, 2**63 - 1, whole=True), "scoring": NOTHING,
    "method": NOTHING, "fed": NOTHING, "state": NOTHING, "probes.mime_ablation: state": NONE | {"dict"},
    "t": numbers(0, 1, whole=True),
    "local_epochs": numbers(1, checks.MOST, whole=True),
    "local_steps": NONE | numbers(1, checks.MOST, whole=True),
    "cohort": NONE | {"1", "2", "0.5", "[3]", "function"}, "lr": numbers(0, open_low=True) | {"function"},
    "on_evaluate": NONE, "personal": {"False"}, "watch": NONE,
    "dtype": NONE, "device": NONE, "checkpoint_dir": NONE | {"text", "digit"},
    "source": NOTHING, "partition": NONE, "federation: model": NOTHING, "root": NONE | {"text", "digit"},
    "path": NOTHING,
    "sizes": NONE | {"[3]"}, "pairs": NONE,
    "compute": NONE, "augment": NONE, "start": NONE, "layout": NONE, "loss": NONE, "metrics": NONE | {"dict"},
    "A": NOTHING, "b": NOTHING, "x0": NONE, "federation": NOTHING, "grid": NOTHING, "sweep: seeds": {"1", "2", "[3]"},
    "runs": NOTHING,
    "folder": NONE | {"text", "digit"}, "fn": NOTHING, "a": NOTHING, "explore: start": NONE | {"dict"},
    "caption": NONE | {"text", "digit", "empty"}, "play": NONE | TRUE_FALSE, "figure": NOTHING,
    "names": NOTHING, "topology": NOTHING, "connected": TRUE_FALSE,
    "topology.spectrum: W": {"tensor"}, "topology.gap: W": {"tensor"}, "topology.check: W": NOTHING,
    "value": NOTHING, "n": numbers(1, 2, whole=True), "numbers": NONE | {"dict"},
    "alt": NONE | {"text", "digit", "empty"},
    "model": {"function"}, "x": NOTHING, "params": NOTHING, "client": NONE | {"0", "1", "2"}, "X": NOTHING,
    "Federation.own_test: client": frozenset({"0", "1", "2"}),
    "clients": NONE, "k": numbers(1, 2, whole=True), "to": NOTHING, "change": NOTHING, "y": {"array"},
    "others": NONE | {"dict"}, "targets": {"list", "tuple"}, "probes.mime_ablation: cohort": NONE | {"[3]"},
    "playground: clients": {"2"}, "playground: methods": {"list", "tuple", "dict"}, "problem": NOTHING,
    "playground: start": {"array"}, "uneven": numbers(0, 1), "playground: topology": NOTHING,
    "playground: lr": numbers(0, 10, open_low=True), "playground: server_lr": numbers(0, 10, open_low=True),
    "playground: cohort": NONE | {"1", "2"}, "playground: seed": numbers(0, 10**6, whole=True),
    "playground: local_steps": numbers(1, 200, whole=True), "playground: rounds": numbers(1, 200, whole=True),
    "submodel_playground: clients": {"2"}, "ratio": numbers(0, 1, open_low=True), "side": NOTHING,
    "submodel_playground: temperature": numbers(0, 10), "submodel_playground: lr": numbers(0, 10, open_low=True),
    "submodel_playground: local_steps": numbers(1, 50, whole=True),
    "submodel_playground: rounds": numbers(1, 60, whole=True),
    "submodel_playground: seed": numbers(0, 10**6, whole=True),
    **{f"{kind}playground: {name}": values for kind in ("", "submodel_")
       for name, values in (("name", {"text"}), ("caption", {"text", "digit", "empty"}))},
    "reading": NONE, "History.curve: metric": NOTHING, "History.curve: client": NONE,
    "History.final: client": NONE, "History.plot: metric": NONE, "metric": NOTHING, "ax": NONE,
}  # fmt: skip


def allowed(what: str, function: Any, name: str) -> frozenset[str] | None:
    """The names of the values that an argument may take; None where nothing says."""
    for key in (f"{what}: {name}", name):
        if key in TAKES and (key != name or name not in checks.ranges(inspect.unwrap(function))):
            return frozenset(TAKES[key])
    found = checks.ranges(inspect.unwrap(function)).get(name)
    if found is None:
        return None
    if isinstance(found.by, checks.Kind):
        values = frozenset(k for k, v in VALUES.items() if found.by.test(v))
    elif isinstance(found.by, checks.OneOf):
        values = frozenset(k for k, v in VALUES.items() if isinstance(v, str) and v in found.by.words)
    else:
        most = 2**63 - 1 if found.kind is int else sys.float_info.max
        high = most if found.by.high is None else found.by.high
        values = numbers(found.by.low, high, found.by.open_low, whole=found.kind is int)
    return values | NONE if found.none else values


def arguments_of(function: Any) -> list[str]:
    named = inspect.signature(function).parameters.values()
    return [p.name for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def calls() -> list[tuple[str, str, str]]:
    """What is called, the argument that is varied, and the name of its value."""
    every = [(what, name, v) for what, (f, _) in RIGHT.items() for name in arguments_of(f) for v in VALUES]
    return [call for call in every if call not in SLOW]


def outcome(what: str, name: str, value: str) -> str:
    """How a call ends: "right", "clear" (one error with a remedy), "silent", or "obscure" and how."""
    function, right = RIGHT[what]
    may = allowed(what, function, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**right | {name: VALUES[value]})
    except Drawn:
        pass
    except CLEAR as e:
        message = str(e)
        ok = REMEDY.search(message) and len(message) < 1500
        return "clear" if ok else f"obscure: {type(e).__name__}: {message[:300]}"
    except Exception as e:
        return f"obscure: {type(e).__name__}: {str(e)[:300]}"
    return "right" if may is not None and value in may else "silent"


@pytest.mark.parametrize("what", RIGHT)
def test_a_wrong_value_of_any_argument_is_one_clear_error(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, _ = RIGHT[what]
    unknown = [name for name in arguments_of(function) if allowed(what, function, name) is None]
    assert not unknown, f"say in TAKES what these take, or annotate them with a range: {unknown}"
    ends = {(name, value): outcome(what, name, value) for at, name, value in calls() if at == what}
    wrong = {k: v for k, v in ends.items() if v not in ("right", "clear")}
    assert not wrong, "\n".join(f"{name}={value}: {end}" for (name, value), end in wrong.items())


# what is called through others, and what takes what others made
BESIDE = {
    "ALL", "Method", "CheckpointError", "DataNotFound", "Diverged", "SweepFailed", "Federation", "History", "Quadratic",
    "Round", "Shown", "Federation.shrink", "Federation.public_logits", "Federation.public_sensitivities",
    *(f"{kind}.{name}" for kind in ("Federation", "Quadratic") for name in vars(fc.Quadratic)),  # what a round calls
    "Federation.inputs", "Federation.batch", "Federation.plot", "Federation.with_statistics",
}  # fmt: skip


def test_no_public_function_or_method_with_arguments_is_left_out():
    public = {name: getattr(fc, name) for name in fc.__all__}
    for kind in (fc.Federation, fc.Quadratic, fc.History):
        public |= {f"{kind.__name__}.{k}": v for k, v in vars(kind).items() if k[0] != "_" and inspect.isfunction(v)}
    left = {k: v for k, v in public.items() if k not in {*RIGHT, *BESIDE} and callable(v) and checks.is_ours(v)}
    assert not [name for name, function in left.items() if arguments_of(function) not in ([], ["self"])]
