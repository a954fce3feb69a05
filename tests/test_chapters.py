"""Every chapter, re-run small, gives the numbers that are stored; and would not, were a method wrong."""

import json
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import book  # noqa: E402
from tools.expect import flat  # noqa: E402

CHAPTERS = [source.stem for source in book.chapters()]
METHODS = "fedcore/algorithms/"
# chapter -> (file, what stands there, what a wrong method would have)
MUTATIONS = [
    ("01_averaging", METHODS + "averaging.py", "r.x + r.server_lr * delta", "r.x - r.server_lr * delta"),
    ("01_averaging", "fedcore/simulate.py", "range(int(plan.steps[0]))", "range(int(plan.steps[0]) - 1)"),
    ("02_scaffold", METHODS + "variates.py", "G(y) - r.c_i + r.c", "G(y) + r.c_i - r.c"),
    ("02_scaffold", METHODS + "variates.py", "r.sum(c_i - r.c_i) / r.n", "r.sum(c_i - r.c_i) / r.m"),
    ("03_fedup", METHODS + "proximal.py", " * (r.x_prev - r.x)", " * (r.x - r.x_prev)"),
    ("03_fedup", METHODS + "proximal.py", "G(y) + self.mu * (y - r.x)", "G(y)"),
    ("04_mime", METHODS + "momentum.py", "G(r.x.expand_as(y)) + r.C", "G(r.x.expand_as(y)) - r.C"),
    ("05_comparison", METHODS + "variates.py", "self.alpha * (y - r.x + r.h_i)", "self.alpha * (y - r.x - r.h_i)"),
    ("05_comparison", METHODS + "platform.py", "r.clients.argmax()", "r.clients.argmin()"),
    ("06_dfedgam", METHODS + "decentralised.py", "a = y + ascent(", "a = y - ascent("),
    ("06_dfedgam", METHODS + "decentralised.py", "return r.W @ y", "return y"),
    ("07_feature_shift", METHODS + "personal.py", "W[:, top] -= active", "W[:, top] += active"),
    ("07_feature_shift", METHODS + "personal.py", "torch.where(r.bn, r.bn_i, r.x)", "torch.where(r.bn, r.x, r.x)"),
    ("08_feddse", METHODS + "submodels.py", "            return H\n", "            return [-h for h in H]\n"),
    ("08_feddse", "fedcore/submodels.py", "server_lr * delta, x)", "server_lr * delta, 0 * x)"),
    ("09_fedgse", "fedcore/masks.py", "dz.insert(0, dh[0] * (before > 0))", "dz.insert(0, dh[0])"),
    ("09_fedgse", "fedcore/masks.py", "(a - c, b - d) for (a, b)", "(a + c, b + d) for (a, b)"),
    ("09_fedgse", METHODS + "submodels.py", "if cancel else h.abs().sum(1)", "if cancel else h.sum(1)"),
    ("10_report", METHODS + "proximal.py", " * (r.x_prev - r.x)", " * (r.x - r.x_prev)"),
    ("11_engine", "fedcore/engine/rules.py", "s.product(self.weight, e.transp", "s.product(self.weight, -e.transp"),
    ("11_engine", "fedcore/engine/rules.py", "s.put(self.weight, dw.unflatten", "s.put(self.weight, -dw.unflatten"),
]


def deviations(chapter: str, numbers: dict[str, float]) -> dict[str, tuple[float, float, float]]:
    """The recorded numbers outside their tolerance: name -> (got, expected, tolerance)."""
    stored = json.loads((ROOT / "tests" / "expected" / f"{chapter}.json").read_text())["numbers"]
    assert set(numbers) == set(stored), "the chapter records other numbers than are stored: run tools/expect.py"
    return {
        name: (got, stored[name]["value"], stored[name]["tolerance"])
        for name, got in numbers.items()
        if not abs(got - stored[name]["value"]) <= stored[name]["tolerance"]
    }


def run(chapter: str, root: Path, output: Path) -> dict[str, float]:
    parameters = {"profile": "test", "seed": 0}
    return flat(book.run_chapter(root / "book" / f"{chapter}.ipynb", parameters, root=root, output=output).numbers)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_gives_the_stored_numbers(chapter, tmp_path):
    assert not deviations(chapter, run(chapter, ROOT, tmp_path / "out.ipynb"))


@pytest.mark.parametrize(("chapter", "file", "right", "wrong"), MUTATIONS)
def test_chapter_turns_red_when_a_method_is_wrong(chapter, file, right, wrong, tmp_path):
    for part in ("fedcore", "book"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    text = (tmp_path / file).read_text()
    assert right in text, f"the mutation of {file} no longer fits its source"
    (tmp_path / file).write_text(text.replace(right, wrong, 1))  # in variates.py SCAFFOLD comes first
    assert deviations(chapter, run(chapter, tmp_path, tmp_path / "out.ipynb"))


def test_every_chapter_has_a_mutation():
    assert {chapter for chapter, *_ in MUTATIONS} == set(CHAPTERS)
