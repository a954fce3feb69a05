"""With PyTorch and NumPy alone, simulation works; what needs more says how to get it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedcore as fc
from fedcore.support.extras import EXTRAS, needs

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = [
    "sklearn", "pandas", "matplotlib", "torchvision", "scipy", "dask", "distributed", "joblib", "papermill", "tqdm",
    "IPython", "ipykernel", "seaborn", "anywidget", "ipywidgets", "traitlets", "pybtex", "nbformat", "PIL", "yaml",
]  # fmt: skip
# what is tried -> the extra that its error names, or None where it must work
TRIED = {
    "fc.simulate(fc.FedAvg(), fed, rounds=1, lr=0.1)": None,
    "fc.simulate(fc.FedAvg(), fed, rounds=1, lr=0.1)._repr_html_()": None,
    "fc.playground().html()": None,
    "fc.SCAFFOLD().cost()": None,
    "fc.simulate(fc.FedAvg(), fed, rounds=1, lr=0.1).frame()": "pictures",
    "fc.simulate(fc.FedAvg(), fed, rounds=1, lr=0.1).plot()": "pictures",
    "fed.plot()": "pictures",
    "fc.explore(lambda a: None, a=[1, 2])": "pictures",
    "fc.cite('FedAvg')": "pictures",
    "fc.federation('digits', 3)": "data",
    "fc.federation('mnist', 3, root='nowhere')": "data",
    "fc.federation('digits-five', 5)": "data",
    "fc.sweep(fed, {'lr': [0.1]}, method=fc.FedAvg(), seeds=1, rounds=1)": "batches",
}
PROGRAM = f"""
import json, sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None
import numpy as np
import fedcore as fc
rng = np.random.default_rng(0)
fed = fc.federation((rng.random((60, 4), np.float32), np.arange(60) % 3), 3, model="logistic")
said = {{}}
for tried in json.loads(sys.argv[1]):
    try:
        eval(tried)
        said[tried] = None
    except BaseException as e:
        said[tried] = [type(e).__name__, str(e)]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    call = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(list(TRIED))]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("tried", TRIED)
def test_what_lacks_a_package_says_which_extra_has_it(said, tried):
    if TRIED[tried] is None:
        assert said[tried] is None
    else:
        kind, words = said[tried]
        assert (kind, words.endswith(f"pip install 'fedcore[{TRIED[tried]}]'")) == ("ImportError", True), words


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


def test_a_module_of_the_package_that_is_missing_is_no_extra():
    with pytest.raises(ModuleNotFoundError, match=r"fedcore[.]nothing"), needs("data", "this"):
        import fedcore.nothing  # noqa: F401


@pytest.mark.parametrize("wrong", [
    RuntimeError("operator torchvision::nms does not exist"),
    AttributeError("partially initialized module 'torchvision' has no attribute 'extension'"),
])  # fmt: skip
def test_torchvision_of_another_build_is_named_as_that(wrong, tmp_path, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "torchvision":
                raise wrong

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ImportError, match=r"torchvision are of different builds .*; install both from one index"):
        fc.federation("cifar10", 3, root=tmp_path)


def test_other_errors_stay_what_they_are():
    for wrong in (RuntimeError("no room"), FileNotFoundError("no torchvision/cifar10"), AttributeError("'x'")):
        with pytest.raises(type(wrong), match=str(wrong)), needs("data", "this"):
            raise wrong
