"""What tells a run from others: the user's code, wherever it lies, and all that values hold."""

from __future__ import annotations

import datetime
import decimal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.storage import identity

RULE = """
import fedcore as fc

class Own(fc.Method):
    def direction(self, G, y, r):
        return {sign}G(y)
"""


def method(text: str, file: str, monkeypatch) -> fc.Method:
    """The method of a module that lies in a file."""
    module = ModuleType("rules")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "rules", module)
    exec(compile(text, file, "exec"), vars(module))
    return module.Own()


@pytest.mark.parametrize("file", [
    f"{sys.prefix}/src/rules.py", f"{sys.base_prefix}/rules.py", "/somewhere/project.zip/rules.py",
    "rules.py", "<stdin>",
])  # fmt: skip
def test_the_users_code_counts_wherever_it_lies(file, monkeypatch):
    plain, minus = (identity.digest(method(RULE.format(sign=sign), file, monkeypatch)) for sign in ("", "-"))
    assert plain != minus
    assert plain == identity.digest(method(f"# a comment\n{RULE.format(sign='')}", file, monkeypatch))


def test_of_a_library_the_name_counts_alone(monkeypatch):
    file = f"{Path(torch.__file__).parents[1]}/rules.py"
    plain, minus = (identity.digest(method(RULE.format(sign=sign), file, monkeypatch)) for sign in ("", "-"))
    assert plain == minus
    assert not any(map(identity.is_own, (fc.FedAvg, torch.nn.Linear, np.mean, datetime.timedelta)))


USES = {
    "a module's attribute": "import {name}\ndef f(t): return {name}.step(t)",
    "an import inside": "def f(t):\n    import {name}\n    return {name}.step(t)",
    "a name imported inside": "def f(t):\n    from {name} import step\n    return step(t)",
    "a constant of it": "import {name}\ndef f(t): return {name}.BY * t",
    "a module in a folder": "import {name}_all.inner\ndef f(t): return {name}_all.inner.step(t)",
}


@pytest.mark.parametrize("use", USES)
def test_what_the_users_modules_define_counts_where_a_function_uses_it(use, tmp_path, monkeypatch):
    found, name = [], f"helping_{list(USES).index(use)}"
    for by in (2, 3):
        folder = tmp_path / str(by)
        (folder / f"{name}_all").mkdir(parents=True)
        for file in (f"{name}.py", f"{name}_all/inner.py"):
            (folder / file).write_text(f"BY = {by}\ndef step(t): return {by} * t\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            identity._source.cache_clear()
            space = {"__name__": "own"}
            exec(compile(USES[use].format(name=name), "own.py", "exec"), space)
            first = identity.digest(space["f"])
            assert space["f"](1) == by
            assert identity.digest(space["f"]) == first, "also before it was imported"
            found.append(first)
            for module in (name, f"{name}_all", f"{name}_all.inner"):
                sys.modules.pop(module, None)
    assert found[0] != found[1]


@dataclass(frozen=True, slots=True)
class Slotted:
    by: float


@pytest.mark.parametrize("make", [
    Slotted, decimal.Decimal, lambda k: Path(f"/{k}"), lambda k: {"a": [k]}, lambda k: {k}, torch.tensor,
    lambda k: np.array([0] * 1000 + [k] + [0] * 1000),
])  # fmt: skip
def test_what_values_hold_counts_however_they_hold_it(make):
    one, same, other = make(1), make(1), make(2)
    str(one)  # a path keeps its text once it was asked for it
    hash(one) if isinstance(one, Path) else None
    assert identity.digest(one) == identity.digest(same)
    assert identity.digest(one) != identity.digest(other)
    assert identity.digest(lambda: one) != identity.digest(lambda: other)


class Scaled(torch.nn.Linear):
    """A layer that holds more than parameters: what it scales by, and what it computed last."""

    def __init__(self, held):
        super().__init__(4, 3)
        self.held, self.last = held, None

    def forward(self, x):
        self.last = super().forward(x)
        by = self.held["by"] if isinstance(self.held, dict) else self.held
        return self.last * (by[0] if isinstance(by, list | tuple) else by)


HELD = [lambda k: {"by": [k, None]}, lambda k: (k, torch.zeros(2)), lambda k: {"by": torch.tensor(k), "bias": None}]


def of_layer(layer: torch.nn.Module, called: bool = False) -> str:
    torch.manual_seed(0)
    layer.reset_parameters()
    x, y = np.eye(4, dtype=np.float32).repeat(5, 0), np.arange(20) % 3
    for samples in [torch.ones(2, 4)] * called:
        with torch.no_grad():
            layer(samples)
    return fc.federation((x, y), clients=2, model=layer).fingerprint()


@pytest.mark.parametrize("held", HELD)
def test_constants_of_a_layer_count_beside_tensors_and_none_and_what_it_computed_last_does_not(held):
    one = of_layer(Scaled(held(1.0)))
    assert one == of_layer(Scaled(held(1.0))) == of_layer(Scaled(held(1.0)), called=True)
    assert one != of_layer(Scaled(held(2.0)))


def test_objects_of_the_package_are_known_by_their_part_of_the_package_and_not_by_their_file():
    for value in (fc.models.Residual(torch.nn.Identity()), fc.FedAvg()):
        assert identity._name(value) == f"fedcore.{value.__module__.split('.')[1]}.{type(value).__name__}"
