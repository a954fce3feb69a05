"""With PyTorch and NumPy alone, simulation works; what needs more says how to get it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedcore.support.extras import EXTRAS, needs

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = [
    "sklearn", "pandas", "matplotlib", "torchvision", "scipy", "dask", "distributed", "joblib", "papermill", "tqdm",
    "IPython", "ipykernel", "seaborn", "anywidget", "ipywidgets", "traitlets", "pybtex", "nbformat", "PIL", "yaml",
]  # fmt: skip
# what is tried -> the extra that its error names, or None where it must work
TRIED = {
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


@pytest.mark.parametrize(("tried", "extra"), TRIED.items())
def test_what_lacks_a_package_says_which_extra_has_it(said, tried, extra):
    if extra is None:
        assert said[tried] is None
    else:
        kind, words = said[tried]
        assert (kind, words.endswith(f"pip install 'fedcore[{extra}]'")) == ("ImportError", True), words


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


@pytest.mark.parametrize("wrong", [
    RuntimeError("operator torchvision::nms does not exist"),
    AttributeError("partially initialized module 'torchvision' has no attribute 'extension'"),
])  # fmt: skip
def test_torchvision_of_another_build_is_named_as_that(wrong):
    words = r"torchvision are of different builds .*; install both from one index"
    with pytest.raises(ImportError, match=words), needs("data", "this"):
        raise wrong


@pytest.mark.parametrize("wrong", [
    ModuleNotFoundError("No module named 'fedcore.nothing'", name="fedcore.nothing"),
    RuntimeError("no room"), FileNotFoundError("no torchvision/cifar10"), AttributeError("'x'"),
])  # fmt: skip
def test_other_errors_stay_what_they_are(wrong):
    with pytest.raises(type(wrong)) as raised, needs("data", "this"):
        raise wrong
    assert raised.value is wrong
