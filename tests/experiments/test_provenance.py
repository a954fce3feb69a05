"""A result names the code that computed it; other code makes it older; uncommitted code keeps nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tables import table_of

import fedbook
import fedcore as fc
from fedbook import reproduce, studies
from fedbook.documents import definitions
from fedbook.results import batch, cells, provenance, tracing
from fedbook.results.provenance import SOURCES, roots
from fedbook.studies import tuning
from fedbook.studies.tuning import merged
from fedbook.verdicts import overview
from fedcore.data import DataNotFound
from fedcore.storage.sources import Sources

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"source": "digits", "clients": 4, "model": "thesis_mlp"}
RUN = {"rounds": 2, "cohort": 2, "lr": 0.1, "local_steps": 1}
SPEC = {"study": "simulate", "method": ["FedAvg", {}], "federation": SMALL, "run": RUN}
HETEROFL = ["HeteroFL", {"capacities": {"1.0": 0.5, "0.25": 0.5}}]
SPECS = {
    "a run": SPEC,
    "a tuned run": {**SPEC, "tune": {"grid": [{"run": {"lr": 0.1}}]}},
    "a decentralised run": {**SPEC, "method": ["DFedSAM", {"mixing": ["Ring", {}]}], "run": {**RUN, "cohort": None}},
    "a contrastive run": merged(SPEC, {"federation": {"model": ["projected", {"model": "thesis_mlp"}]}})
    | {"method": ["MOON", {}]},
    "sub-models": {**SPEC, "method": HETEROFL},
    "a probe of sub-models": {**SPEC, "study": "gap", "what": "median", "method": HETEROFL},
    "the Mime ablation": {**SPEC, "study": "mime", "pair": "A, C", "steps": 2},
    "a size": {"study": "size", "what": "macs", "by": "width", "capacities": [0.5], "model": "thesis_mlp",
               "shape": [1, 8, 8], "classes": 10},
    "a cost": {"study": "cost", "cost": "traffic", "method": ["SCAFFOLD", {}]},
}  # fmt: skip


def changed(**texts: str) -> Sources:
    """The package with other texts of some modules."""
    return Sources(SOURCES.texts | texts, SOURCES.packages, SOURCES.left_out)


# --- the code of a result -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_module_that_computes_a_cell_counts(spec):
    """Watched while it runs: a function of a module that is not covered could change the result unnoticed."""
    ran = set()
    packages = tuple(str(provenance.ROOT / name) for name in ("fedcore", "fedbook"))
    names = {str(file): name for name, file in provenance.FILES.items()}

    def watch(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(packages):
            ran.add(names[file])

    covered = set(SOURCES.reached(roots(spec))) | {name for name in provenance.FILES if SOURCES.leaves_out(name)}
    sys.setprofile(watch)
    try:
        cells.run_cell(spec)
    finally:
        sys.setprofile(None)
    assert ran - covered <= {"fedbook.studies"}, "a list of names, whose entries are covered"


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_change_of_any_of_them_changes_the_code(spec):
    code = SOURCES.digest(roots(spec))
    for module in SOURCES.reached(roots(spec)):
        assert changed(**{module: SOURCES.texts[module] + "\nCHANGED = 1\n"}).digest(roots(spec)) != code, module


def test_comments_docstrings_hints_and_layout_do_not_change_the_code():
    here = roots(SPEC)
    bare = {module: ast.unparse(ast.parse(SOURCES.texts[module])) for module in SOURCES.reached(here)}  # no comments
    assert changed(**bare).digest(here) == SOURCES.digest(here)
    before = 'def f(a: int, *, b=2) -> int:\n    """Adds."""\n    return a + b\n\n\nclass C:\n    x: int = 1\n'
    after = '"A module."\nclass C:\n    x: int = 1\ndef f(a, *, b = 2):  # why\n    return (a +\n            b)'
    assert small(a=before) == small(a=after)
    for old, new in (("a + b", "a - b"), ("b=2", "b=3"), ("x: int = 1", "x: int = 2"), ("x: int", "x: float")):
        assert small(a=before) != small(a=before.replace(old, new))


def small(packages=("p",), **texts):
    """The code of `a` in a package of a few modules."""
    texts = {f"p.{name.replace('__', '.')}": text for name, text in texts.items()}
    return Sources({"p": "", **texts}, packages, {"p.drawing.*"}).digest(["p.a"])


def test_where_a_definition_stands_does_not_count_and_which_is_meant_does():
    f, g, use = "def f(x):\n    return x + 1\n", "def g(x):\n    return 2 * x\n", "y = f(1)\n"
    here = small(a=f"from .b import f, g\n{use}", b=f + g)
    assert small(a=f"from .c import g, f\n{use}", c=f"from .b import f\n{g}", b=f) == here, "split into two modules"
    assert small(a=f"from . import b\n{use.replace('f(', 'b.f(')}", b=f + g) == small(
        a=f"from .d import b as e\n{use.replace('f(', 'e.f(')}", d="", d__b=f + g, packages=("p", "p.d")
    ), "a module that moves and has another name"
    other = f.replace("1", "3")
    both = {"b": f, "c": other}
    assert small(a=f"from .b import f\nfrom . import c\n{use}c.f(2)", **both) != small(
        a=f"from .c import f\nfrom . import c\n{use}c.f(2)", **both
    ), "of two definitions of one name, the other"
    assert small(a="from math import exp\ny = exp(1)") != small(a="from torch import exp\ny = exp(1)")
    assert small(a="import math as m\ny = m.exp(1)") != small(a="import torch as m\ny = m.exp(1)")


def test_texts_of_errors_and_lists_of_names_do_not_count():
    before = "def f(x):\n    if x < 0:\n        raise ValueError(f'x={x} is below 0')\n    return x\n"
    assert small(a=before) == small(a="__all__ = ['f']\n" + before.replace("is below 0", "must be 0 or more; use abs"))
    assert small(a=before) != small(a=before.replace("x < 0", "x < 1"))
    assert small(a=before) != small(a=before.replace("ValueError", "TypeError"))
    told = "import warnings\ndef f(x):\n    warnings.warn('odd', stacklevel=2)\n    return {'odd': x}\n"
    assert small(a=told) == small(a=told.replace("'odd', s", "'strange', s"))
    assert small(a=told) != small(a=told.replace("{'odd'", "{'strange'"))
    drawn = "from .drawing import plots\ny = plots.draw()\n"
    assert small(a=drawn, drawing="", drawing__plots="def draw(): pass", packages=("p", "p.drawing")) == small(
        a=drawn, drawing="", drawing__plots="def draw(): return 1", packages=("p", "p.drawing")
    )
    typed = "from typing import TYPE_CHECKING\n{}def f(x: T): return x\n"
    block = "if TYPE_CHECKING:\n    from .b import T\n"
    assert small(a=typed.format(""), b="z = 1") == small(a=typed.format(block), b="z = 1")


@pytest.mark.parametrize(
    "module",
    ["fedcore", "fedbook.pictures.widgets", "fedbook.pictures.plots", "fedcore.probes", "fedcore.algorithms",
     "fedbook.measures.masks",
     "fedcore.algorithms.submodels", "fedbook.show", "fedbook.documents.s004_submodels"],
)  # fmt: skip
def test_what_a_run_of_fedavg_does_not_use_leaves_its_code_alone(module):
    text = SOURCES.texts[module] + "\nCHANGED = 1\n"
    assert changed(**{module: text}).digest(roots(SPEC)) == SOURCES.digest(roots(SPEC))


def test_a_study_of_ones_own_counts_with_its_file(tmp_path, monkeypatch):
    file = tmp_path / "own.py"

    def code(value):
        file.write_text(f"def own(spec, seed, folder, device):\n    return {{'final': {value}}}\n")
        scope = {}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        monkeypatch.setitem(studies.STUDIES, "own", scope["own"])
        return changed().digest(roots({"study": "own"}))

    assert code(1.0) == code(1.0) != code(2.0)


# --- older than the code ------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """A study that lists its calls, and a way to let the package become other code."""
    calls = []

    def study(spec, seed, folder, device):
        calls.append((spec["lr"], seed))
        value = spec["lr"] + len(provenance.code(spec).split("-")[0])  # another number on another day
        return {"final": value, "mean": value, "history": []}

    def become(code):
        monkeypatch.setattr(provenance, "code", lambda spec: code)

    monkeypatch.setitem(studies.STUDIES, "counted", study)
    become("monday")
    return calls, become


def test_a_run_of_other_code_is_older_kept_not_confirmed_and_run_again_on_request(tmp_path, counted, capsys):
    calls, become = counted
    place, cell = batch.ResultFolder(tmp_path, "quick", "t"), fedbook.Cell("c", {"study": "counted", "lr": 0.5})
    file, spec = place.file(cell), cell.spec
    assert cells.run_cell(spec, [0, 1], file=file).outdated() == []
    become("tuesday")
    kept = cells.run_cell(spec, [0, 1, 2], file=file)
    assert kept.outdated() == [0, 1]
    assert kept.outdated([1, 2]) == [1]
    assert calls[2] == (0.5, 2)
    become("tuesday-tidied")
    assert reproduce._confirm(place, [cell], None) == 0
    assert "t: c: seeds [0, 1] stay older" in capsys.readouterr().out
    become("tuesday")
    del calls[:]
    again = cells.run_cell(spec, [0, 1], file=file, outdated=True)
    assert again.outdated() == []
    assert calls == [(0.5, 0), (0.5, 1)]


def test_a_setting_that_other_code_chose_makes_its_runs_older(tmp_path, counted):
    calls, become = counted
    file = tmp_path / "cell.json"
    spec = {"study": "counted", "lr": 0.0, "tune": {"grid": [{"lr": 0.1}, {"lr": 0.2}], "seeds": [1000]}}
    cells.run_cell(spec, [0], file=file)
    become("tuesday")
    assert cells.run_cell(spec, [0, 1], file=file).outdated() == [0, 1]
    del calls[:]
    assert cells.run_cell(spec, [1], file=file, outdated=True).outdated() == []
    assert calls[:3] == [(0.1, 1000), (0.2, 1000), (0.2, 1)]
    assert set(cells.load(file, spec).runs) == {1}, "seed 0 had the setting of the old choice"


# --- what older code computed, confirmed --------------------------------------------------------------------------

TUNED = {**SPEC, "run": {**RUN, "rounds": 6}, "tune": {"grid": [{"run": {"lr": 0.05}}, {"run": {"lr": 0.1}}]}}


def older(monkeypatch):
    """As if a module of the run had been edited since."""
    monkeypatch.setattr(provenance, "code", lambda spec: "edited")


def test_a_result_that_todays_code_computes_too_is_not_older_and_its_file_stays_as_it_is(tmp_path, monkeypatch):
    file, listed = tmp_path / "t" / "cell.json", tmp_path / "confirmed.csv"
    assert cells.confirm(file, TUNED) is None, "nothing is stored"
    cells.run_cell(TUNED, [0, 1], file=file)
    assert cells.confirm(file, TUNED) is None, "nothing is older"
    code, before = provenance.code(TUNED), file.read_bytes()
    older(monkeypatch)
    assert cells.load(file, TUNED).outdated() == [0, 1]
    assert cells.confirm(file, TUNED) is True
    assert cells.load(file, TUNED).outdated() == []
    assert cells.confirm(file, TUNED) is None, "it is no longer older"
    assert file.read_bytes() == before
    assert listed.read_text() == f"result,code,confirmed\nt/cell.json,{code},edited\n"
    listed.unlink()
    assert cells.load(file, TUNED).outdated() == [0, 1]


@pytest.mark.parametrize("text", ["result,code,confirmed\nt/cell.json", "\n<<<<<<< HEAD\n", "\n\xff"])
def test_a_damaged_file_of_confirmations_is_named_and_confirms_nothing(text, tmp_path, counted):
    _, become = counted
    file, listed, spec = tmp_path / "t" / "cell.json", tmp_path / "confirmed.csv", {"study": "counted", "lr": 0.5}
    cells.run_cell(spec, [0], file=file)
    listed.write_bytes(text.encode("latin-1"))
    assert cells.load(file, spec).outdated() == [], "a run of today's code needs no confirmation"
    become("monday-tidied")
    with pytest.warns(UserWarning, match=r"confirmed\.csv is damaged .* --confirm confirms its results again"):
        assert cells.load(file, spec).outdated() == [0]
    with pytest.warns(UserWarning, match="damaged"):
        assert cells.confirm(file, spec) is True
    assert cells.load(file, spec).outdated() == []


def test_confirmations_of_several_tables_at_once_lose_none(tmp_path):
    files = [tmp_path / f"t{k % 8}" / f"{k}.json" for k in range(40)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: cells.record(file, ["before", "today"]), files))
    first, *lines = (tmp_path / "confirmed.csv").read_text().splitlines()
    assert first == "result,code,confirmed"
    assert lines == sorted(f"{file.parent.name}/{file.name},before,today" for file in files)
    files[0].unlink()
    cells.record(files[1], ["before", "tomorrow"])
    assert cells.confirmed(files[0]) is None, "a file that is gone"
    assert [cells.confirmed(file)[1] for file in files[1:3]] == ["tomorrow", "today"]


def test_what_was_confirmed_of_a_result_does_not_hold_for_one_that_replaced_it(tmp_path, counted):
    _, become = counted
    file, spec = tmp_path / "t" / "cell.json", {"study": "counted", "lr": 0.5}
    cells.run_cell(spec, [0], file=file)
    become("monday-tidied")
    assert cells.confirm(file, spec) is True
    become("wednesday")
    assert cells.confirm(file, spec) is False
    cells.run_cell(spec, [0], file=file, outdated=True)
    become("monday-tidied")
    assert cells.load(file, spec).outdated() == [0]


def test_a_result_that_is_taken_over_from_another_table_stays_confirmed(tmp_path, counted, monkeypatch):
    _, become = counted
    cell = fedbook.Cell("c", {"study": "counted", "lr": 0.5}, seeds=1)
    monkeypatch.setattr(definitions, "_added", [(tmp_path, table_of([cell], name)) for name in ("t", "twin")])
    first, twin = (batch.ResultFolder(tmp_path, "quick", name) for name in ("t", "twin"))
    cells.run_cell(cell.spec, [0], file=first.file(cell))
    become("monday-tidied")
    assert cells.confirm(first.file(cell), cell.spec) is True
    batch.take_over(twin, [cell])
    assert twin.file(cell).read_bytes() == first.file(cell).read_bytes()
    assert batch.standing(twin, cell).outdated() == []


def test_a_cell_whose_data_are_not_here_is_named_and_the_others_are_confirmed(tmp_path, monkeypatch, capsys):
    asked = []

    def without_cifar10(file, spec, device=None):
        asked.append(file)
        if len(asked) == 1:
            raise DataNotFound("cifar10: no data at /nowhere")
        return True

    monkeypatch.setattr(reproduce, "confirm", without_cifar10)
    assert reproduce.main(["fedup-table5", "--confirm", "--results", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "cifar10: no data at /nowhere" in err
    assert f"{len(asked) - 1} cells are what today's code computes" in out


def test_a_rule_that_changed_by_one_per_cent_is_not_confirmed(tmp_path, monkeypatch):
    file = tmp_path / "cell.json"
    cells.run_cell(TUNED, [0], file=file)
    older(monkeypatch)
    rule = fc.FedAvg.aggregate
    monkeypatch.setattr(fc.FedAvg, "aggregate", lambda self, r, y: rule(self, r, r.x + 1.01 * (y - r.x)))
    assert cells.confirm(file, TUNED) is False
    assert cells.load(file, TUNED).outdated() == [0]


@pytest.mark.parametrize(
    ("place", "size", "within", "beyond"),
    [(place, size, 0.99e-3, 1.01e-3) for place, size in ((0, 4.0), (1, 4.0), (4, 4.0), (5, 0.5), (7, 1.0))]
    + [(6, 1.0, 0.0059, 0.0061)],
)
def test_two_traces_are_alike_up_to_a_thousandth_and_an_accuracy_up_to_an_image_or_two(place, size, within, beyond):
    """Of the update's length, of the loss, and of a cosine's 1."""
    kept = [4.0, 1.0, -2.0, 0.5, 3.0, 0.5, 0.9, 0.7]
    for sign in (1, -1):
        for share, same in ((within, True), (beyond, False)):
            other = [*kept[:place], kept[place] + sign * share * size, *kept[place + 1 :]]
            assert tracing.alike(kept, other) == same
    assert tracing.alike([50.0], [50.049])
    assert not tracing.alike([50.0], [50.051])
    assert not tracing.alike(kept, kept[:5])


def test_where_no_cell_is_stored_confirming_leaves_nothing_and_the_report_counts_nothing(tmp_path):
    place = batch.ResultFolder(tmp_path, "desk", "shift-figure6")
    assert cells.confirm(place.folder / "cell.json", TUNED) is None
    assert not list(tmp_path.iterdir())
    (place.folder / "unfinished").mkdir(parents=True)
    assert not list(overview.stored_tables(tmp_path))
    (place.folder / "cell.json").write_text("{}")
    assert [found for _, found in overview.stored_tables(tmp_path)] == [place]


def test_a_method_that_adds_parameters_leaves_a_trace(tmp_path, monkeypatch):
    federation = {**TUNED["federation"], "model": ["thesis_mlp", {}]}
    spec = {**TUNED, "federation": federation, "method": ["DepthFL", {"capacities": {"1.0": 0.5, "0.5": 0.5}}]}
    file = tmp_path / "t" / "cell.json"
    cells.run_cell(spec, [0], file=file)
    older(monkeypatch)
    assert cells.confirm(file, spec) is True


def test_a_cosines_trace_hangs_neither_on_float32_nor_on_rounds_that_multiply_rounding(monkeypatch):
    spec = {**SPEC, "study": "mime", "pair": "A, C", "steps": 2}
    kept = tracing.trace(spec)
    assert tracing.trace(merged(spec, {"federation": {"dtype": "float64"}}))[-1] == kept[-1]
    assert tracing.trace(merged(spec, {"run": {"rounds": 50}})) == tracing.trace(merged(spec, {"run": {"rounds": 5}}))
    assert not tracing.alike(tracing.trace(merged(spec, {"run": {"lr": 1.01 * RUN["lr"]}})), kept)
    cosine = fc.probes._cosine
    monkeypatch.setattr(fc.probes, "_cosine", lambda a, b: 0.9 * cosine(a, b))
    assert not tracing.alike(tracing.trace(spec), kept)


def test_a_trace_ends_before_rounding_can_make_a_unit_tip_over():
    def rounds(steps, method=("FedAvg", {})):  # the fewest that leave the same trace as more do
        spec = merged(SPEC, {"method": method[1], "run": {"local_steps": steps}}) | {"method": list(method)}
        traces = [tracing.trace(merged(spec, {"run": {"rounds": n}})) for n in range(1, 7)]
        return 1 + traces.index(traces[-1])

    assert [rounds(steps) for steps in (4, 10, 13, 24, 60)] == [5, 5, 3, 2, 2]
    assert rounds(10, ("pFedMe", {"inner_steps": 5})) == 2, "its inner steps multiply rounding too"
    assert rounds(10, ("FedSAM", {})) == 5
    assert tracing.trace(merged(SPEC, {"run": {"local_steps": None, "local_epochs": 1}})), "epochs, said in full"
    steps, epochs = {"local_steps": 25, "batch_size": 1}, {"local_steps": None, "local_epochs": 500, "batch_size": 1}
    assert tracing.trace(merged(SPEC, {"run": epochs})) == tracing.trace(merged(SPEC, {"run": steps})), "long rounds"


def test_a_search_that_would_choose_or_try_otherwise_is_not_confirmed(tmp_path, monkeypatch):
    file = tmp_path / "cell.json"
    tuned = cells.run_cell(TUNED, [0], file=file).tuned
    assert tracing.same_choice(TUNED, tuned)
    other = next(trial["setting"] for trial in tuned["tried"] if trial["setting"] != tuned["setting"])
    assert not tracing.same_choice(TUNED, {**tuned, "setting": other})
    assert not tracing.same_choice(TUNED, {**tuned, "tried": tuned["tried"][:1]})
    older(monkeypatch)
    monkeypatch.setattr(tuning.Search, "best", lambda self: other)
    assert cells.confirm(file, TUNED) is False


def test_a_run_of_code_that_computes_the_same_confirms_those_before_which_keep_their_code(tmp_path, counted):
    _, become = counted
    file, spec = tmp_path / "t" / "cell.json", {"study": "counted", "lr": 0.5}
    cells.run_cell(spec, [0], file=file)
    become("monday-tidied")
    both = cells.run_cell(spec, [0, 1], file=file)
    assert [run["code"] for run in both.runs.values()] == ["monday", "monday-tidied"]
    assert both.outdated() == []
    become("monday-tidied again")
    assert cells.load(file, spec).outdated() == [0, 1]
    assert cells.confirm(file, spec) is True
    assert cells.load(file, spec).outdated() == []


def test_a_later_run_whose_process_ended_before_its_trace_is_confirmed_with_the_others(tmp_path, counted, monkeypatch):
    _, become = counted
    file, spec = tmp_path / "t" / "cell.json", {"study": "counted", "lr": 0.5}
    cells.run_cell(spec, [0], file=file)
    become("monday-tidied")
    with monkeypatch.context() as patch:
        patch.setattr(cells, "_trace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cells.run_cell(spec, [0, 1], file=file)
    assert cells.load(file, spec).untraced()
    assert not cells.run_cell(spec, [0, 1], file=file).untraced()
    become("monday-tidied again")
    assert cells.confirm(file, spec) is True
    assert cells.load(file, spec).outdated() == []


def test_a_cell_whose_process_ended_before_its_trace_gets_it_from_the_next_batch(tmp_path, monkeypatch):
    place, cell, take = batch.ResultFolder(tmp_path, "quick", "t"), fedbook.Cell("c", TUNED, seeds=2), cells._trace
    file = place.file(cell)
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(cells, "_trace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cells.run_cell(TUNED, [0, 1], file=file)
    before = cells.load(file, TUNED)
    assert before.untraced()
    assert set(before.runs) == {0, 1}, "the runs are kept"
    monkeypatch.setattr(cells, "_trace", take)
    assert batch.run(place, [cell], notebooks=False, progress=False).done == ["c"]
    after = cells.load(file, TUNED)
    assert after.runs == before.runs, "nothing was run again"
    assert not after.untraced()
    assert batch.run(place, [cell], notebooks=False, progress=False).stood == ["c"]
    older(monkeypatch)
    assert cells.confirm(file, TUNED) is True


def test_a_run_that_does_not_say_which_code_computed_it_is_older():
    spec = {"study": "simulate", "method": ["FedAvg", {}]}
    result = cells.Result(spec, {0: {"final": 1.0, "commit": "e5f4d24d0dde+"}})
    assert result.outdated() == [0]
    assert result.outdated([1]) == []


def test_no_stored_result_comes_from_uncommitted_code():
    runs = [
        (file, run)
        for file in ROOT.glob("results/*/*/*.json")
        for run in json.loads(file.read_text())["runs"].values()
    ]  # fmt: skip
    assert len(runs) > 1000
    assert not [file.name for file, run in runs if "code" in run and (run["commit"] or "").endswith("+")]


# --- in a repository ----------------------------------------------------------------------------------------------

TRIAL = f"""
from fedbook import Cell, Table

SPEC = {SPEC!r}
TABLES = [Table("trial", "a trial", "S000", lambda profile: [Cell("one", SPEC, "FedAvg", "a")],
                {{"quick": "tiny", "paper": "tiny"}})]
"""


@pytest.fixture
def repository(tmp_path):
    """The package, committed to a repository of its own."""
    root = tmp_path / "project"
    hidden = shutil.ignore_patterns("__pycache__")
    for package in ("fedcore", "fedbook"):
        shutil.copytree(ROOT / package, root / package, ignore=hidden)
    shutil.copy(ROOT / ".gitignore", root)
    (root / "trial.py").write_text(TRIAL)
    git(root, "init", "-q")
    commit(root)
    return root


def git(root, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True).stdout


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a state")


def commands(root, *lines):
    """What the commands print, in one process that began when they began; "PATH = TEXT" writes a file in between."""
    code = "from pathlib import Path\nfrom fedcore import reproduce\n"
    for line in lines:
        path, writes, text = line.partition(" = ")
        words = [*line.split(), "--definitions", "trial.py"] if line == lines[0] else line.split()
        code += f"Path({path!r}).write_text({text!r})\n" if writes else f"print('end', reproduce.main({words!r}))\n"
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_results_of_uncommitted_code_are_refused_and_those_of_other_code_are_named(repository):
    method = repository / "fedcore" / "algorithms" / "averaging.py"
    first = repository / "results" / "quick" / "trial" / "one.json"

    out, _ = commands(repository, "trial --plain --seeds 1", "list --seeds 1")
    assert "older than the code" not in out
    assert len(json.loads(first.read_text())["runs"]["0"]["code"]) == 16

    method.write_text(method.read_text() + "\nCHANGED = 1\n")
    out, err = commands(
        repository, "list --seeds 1", "report --seeds 1", "trial --plain --seeds 2",
        "trial --plain --seeds 2 --uncommitted",
    )  # fmt: skip
    assert "1 of 1 cells are older than the code" in out
    assert "trial: 1 of 1 runs are older than the code." in out
    (refused,) = [line for line in err.splitlines() if "not committed" in line]
    assert "fedcore/algorithms/averaging.py changed. Commit first" in refused
    assert "FAILED" not in err, "the batch was refused before its first cell"
    assert re.findall(r"^end (\d)$", out, re.MULTILINE) == ["0", "0", "2", "0"]
    assert set(json.loads(first.read_text())["runs"]) == {"0"}
    trial = json.loads((repository / "results" / "uncommitted" / "quick" / "trial" / "one.json").read_text())
    assert all(run["commit"].endswith("+") for run in trial["runs"].values())

    commit(repository)
    assert "uncommitted" not in git(repository, "ls-files")
    out, _ = commands(repository, "trial --confirm", "list --seeds 1")
    assert "1 cells are what today's code computes, 0 are not" in out
    assert "older than the code" not in out
    changed = git(repository, "status", "--porcelain").splitlines()
    assert changed == ["?? results/quick/confirmed.csv"], "no result file is written for a hash alone"
    (repository / "results" / "quick" / "confirmed.csv").unlink()
    out, _ = commands(repository, "trial --plain --seeds 1 --outdated", "list --seeds 1")
    assert "1 cells run, 0 stood already" in out
    assert "older than the code" not in out


def test_a_change_that_a_result_does_not_reach_leaves_its_commit_unmarked(repository):
    """A result that may be kept is one whose commit holds its code."""
    drawing = repository / "fedbook" / "pictures" / "plots.py"
    drawing.write_text(drawing.read_text() + "\n# a comment\n")
    commands(repository, "trial --plain --seeds 1")
    stored = json.loads((repository / "results" / "quick" / "trial" / "one.json").read_text())
    assert stored["runs"]["0"]["commit"] == git(repository, "rev-parse", "--short=12", "HEAD").strip()


def test_a_result_elsewhere_may_come_from_uncommitted_code(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "uncommitted", lambda *names: ("fedcore/rng.py",))
    assert reproduce.run_cell(SPEC, [0], file=tmp_path / "cell.json").runs
    with pytest.raises(fedbook.UncommittedCode, match=r"fedcore/rng\.py changed\. Commit first"):
        reproduce.run_cell(SPEC, [0], file=ROOT / "results" / "cell.json")
    assert not (ROOT / "results" / "cell.json").exists()
