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
from fedcore.storage.sources import Sources

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"source": "digits", "clients": 4, "model": "thesis_mlp"}
RUN = {"rounds": 2, "cohort": 2, "lr": 0.1, "local_steps": 1}
SPEC = {"study": "simulate", "method": ["FedAvg", {}], "federation": SMALL, "run": RUN}
HETEROFL = ["HeteroFL", {"capacities": {"1.0": 0.5, "0.25": 0.5}}]
SPECS = {
    "a tuned run": {**SPEC, "tune": {"grid": [{"run": {"lr": 0.1}}]}},
    "a decentralised run": {**SPEC, "method": ["DFedSAM", {"mixing": ["Ring", {}]}], "run": {**RUN, "cohort": None}},
    "a contrastive run": merged(SPEC, {"federation": {"model": ["projected", {"model": "thesis_mlp"}]}})
    | {"method": ["MOON", {}]},
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


def test_a_change_of_any_of_them_changes_the_code_and_of_what_the_run_does_not_use_leaves_it_alone():
    code, reached = SOURCES.digest(roots(SPEC)), SOURCES.reached(roots(SPEC))
    unused = ("fedcore", "fedcore.probes", "fedcore.algorithms", "fedcore.algorithms.submodels", "fedbook.show",
              "fedbook.pictures.plots", "fedbook.measures.masks", "fedbook.documents.s004_submodels")  # fmt: skip
    for module in (*reached, *unused):
        text = SOURCES.texts[module] + "\nCHANGED = 1\n"
        assert (changed(**{module: text}).digest(roots(SPEC)) == code) == (module in unused), module


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
    drawn = {"a": "from .drawing import plots\ny = plots.draw()\n", "drawing": "", "packages": ("p", "p.drawing")}
    assert small(drawing__plots="def draw(): pass", **drawn) == small(drawing__plots="def draw(): return 1", **drawn)


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

COUNTED = {"study": "counted", "lr": 0.5}


class Counted:
    """The stored cell of a study that lists its calls, in a package whose code has the name of a day."""

    def __init__(self, folder, monkeypatch):
        self.place, self.cell = batch.ResultFolder(folder, "quick", "t"), fedbook.Cell("c", COUNTED, seeds=1)
        self.spec, self.calls, self.file = COUNTED, [], self.place.file(self.cell)
        self.patch = monkeypatch
        monkeypatch.setitem(studies.STUDIES, "counted", self.study)

    def study(self, spec, seed, folder, device):
        self.calls.append((spec["lr"], seed))
        value = spec["lr"] + len(provenance.code(spec).split("-")[0])  # another number on another day
        return {"final": value, "mean": value, "history": []}

    def on(self, day):
        """The same cell when the code is that of this day; "monday-tidied" computes what "monday" does."""
        self.patch.setattr(provenance, "code", lambda spec: day)
        del self.calls[:]
        return self

    def run(self, *seeds, **options):
        return cells.run_cell(self.spec, seeds, file=self.file, **options)

    def outdated(self):
        return cells.load(self.file, self.spec).outdated()

    def confirm(self):
        return cells.confirm(self.file, self.spec)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    return Counted(tmp_path, monkeypatch)


def test_a_run_of_other_code_is_older_kept_not_confirmed_and_run_again_on_request(counted, capsys):
    assert counted.on("monday").run(0, 1).outdated() == []
    kept = counted.on("tuesday").run(0, 1, 2)
    assert (kept.outdated(), kept.outdated([1, 2])) == ([0, 1], [1])
    assert counted.calls == [(0.5, 2), (0.5, 0)], "the seed that was missing, and seed 0 for a trace"
    counted.on("tuesday-tidied")
    assert reproduce._confirm(counted.place, [counted.cell], None) == 0
    assert "t: c: seeds [0, 1] stay older" in capsys.readouterr().out
    assert counted.on("tuesday").run(0, 1, outdated=True).outdated() == []
    assert counted.calls == [(0.5, 0), (0.5, 1)]


def test_a_setting_that_other_code_chose_makes_its_runs_older(counted):
    counted.spec = {**COUNTED, "tune": {"grid": [{"lr": 0.1}, {"lr": 0.2}], "seeds": [1000]}}
    counted.on("monday").run(0)
    assert counted.on("tuesday").run(0, 1).outdated() == [0, 1]
    assert counted.on("tuesday").run(1, outdated=True).outdated() == []
    assert counted.calls[:3] == [(0.1, 1000), (0.2, 1000), (0.2, 1)]
    assert set(cells.load(counted.file, counted.spec).runs) == {1}, "seed 0 had the setting of the old choice"


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


@pytest.mark.parametrize("text", ["\n<<<<<<< HEAD\n", "\n\xff"])
def test_a_damaged_file_of_confirmations_is_named_and_confirms_nothing(text, counted):
    counted.on("monday").run(0)
    counted.place.folder.with_name("confirmed.csv").write_bytes(text.encode("latin-1"))
    assert counted.outdated() == [], "a run of today's code needs no confirmation"
    counted.on("monday-tidied")
    with pytest.warns(UserWarning, match=r"confirmed\.csv is damaged .* --confirm confirms its results again"):
        assert counted.outdated() == [0]
    with pytest.warns(UserWarning, match="damaged"):
        assert counted.confirm() is True
    assert counted.outdated() == []


def test_confirmations_of_several_tables_at_once_lose_none(tmp_path):
    files = [tmp_path / f"t{k % 8}" / f"{k}.json" for k in range(24)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda file: cells.record(file, ["before", "today"]), files))
    assert [cells.confirmed(file) for file in files] == [["before", "today"]] * 24
    files[0].unlink()
    cells.record(files[1], ["before", "tomorrow"])
    assert [cells.confirmed(file) for file in files[:3]] == [None, ["before", "tomorrow"], ["before", "today"]]


def test_what_was_confirmed_of_a_result_does_not_hold_for_one_that_replaced_it(counted):
    counted.on("monday").run(0)
    assert counted.on("monday-tidied").confirm() is True
    assert counted.on("wednesday").confirm() is False
    counted.run(0, outdated=True)
    assert counted.on("monday-tidied").outdated() == [0]


def test_a_result_that_is_taken_over_from_another_table_stays_confirmed(tmp_path, counted, monkeypatch):
    listed = [(tmp_path, table_of([counted.cell], name)) for name in ("t", "twin")]
    monkeypatch.setattr(definitions, "_added", listed)
    counted.on("monday").run(0)
    assert counted.on("monday-tidied").confirm() is True
    twin = batch.ResultFolder(tmp_path, "quick", "twin")
    batch.take_over(twin, [counted.cell])
    assert twin.file(counted.cell).read_bytes() == counted.file.read_bytes()
    assert batch.standing(twin, counted.cell).outdated() == []


def test_a_rule_that_changed_by_one_per_cent_is_not_confirmed(tmp_path, monkeypatch):
    file = tmp_path / "cell.json"
    cells.run_cell(TUNED, [0], file=file)
    older(monkeypatch)
    rule = fc.FedAvg.aggregate
    monkeypatch.setattr(fc.FedAvg, "aggregate", lambda self, r, y: rule(self, r, r.x + 1.01 * (y - r.x)))
    assert cells.confirm(file, TUNED) is False
    assert cells.load(file, TUNED).outdated() == [0]


def test_two_traces_are_alike_up_to_a_thousandth_and_an_accuracy_up_to_an_image_or_two():
    kept = [4.0, 1.0, -2.0, 0.5, 3.0, 0.5, 0.9, 0.7]
    limits = {0: 0.004, 4: 0.004, 5: 0.0005, 6: 0.006, 7: 0.001}  # of the update's length, of the loss, of 1
    for place, limit in limits.items():
        for share, same in ((0.99, True), (-0.99, True), (1.01, False), (-1.01, False)):
            other = [*kept[:place], kept[place] + share * limit, *kept[place + 1 :]]
            assert tracing.alike(kept, other) == same, (place, share)
    assert tracing.alike([50.0], [50.049])
    assert not tracing.alike([50.0], [50.051])
    assert not tracing.alike(kept, kept[:5])


def test_a_cosines_trace_hangs_neither_on_float32_nor_on_rounds_that_multiply_rounding(monkeypatch):
    spec = {**SPEC, "study": "mime", "pair": "A, C", "steps": 2}
    kept = tracing.trace(spec)
    assert tracing.trace(merged(spec, {"federation": {"dtype": "float64"}}))[-1] == kept[-1]
    assert tracing.trace(merged(spec, {"run": {"rounds": 50}})) == tracing.trace(merged(spec, {"run": {"rounds": 5}}))
    cosine = fc.probes._cosine
    monkeypatch.setattr(fc.probes, "_cosine", lambda a, b: 0.9 * cosine(a, b))
    assert not tracing.alike(tracing.trace(spec), kept)


def test_a_trace_ends_before_rounding_can_make_a_unit_tip_over():
    def same(run, other, method=("FedAvg", {})):  # from these settings of a run and from those
        settings = ({"rounds": 5, **one} for one in (run, other))
        one, two = ({**merged(SPEC, {"run": chosen}), "method": list(method)} for chosen in settings)
        return tracing.trace(one) == tracing.trace(two)

    for steps, rounds in ((10, 5), (13, 3), (60, 2)):
        assert same({"local_steps": steps, "rounds": rounds}, {"local_steps": steps, "rounds": 7})
        assert not same({"local_steps": steps, "rounds": rounds - 1}, {"local_steps": steps})
    inner = ("pFedMe", {"inner_steps": 5})
    assert same({"local_steps": 10, "rounds": 2}, {"local_steps": 10}, inner), "inner steps multiply rounding too"
    steps, epochs = {"local_steps": 25, "batch_size": 1}, {"local_steps": None, "local_epochs": 500, "batch_size": 1}
    assert same(epochs, steps), "long rounds"


def test_a_search_that_would_choose_or_try_otherwise_is_not_confirmed(tmp_path, monkeypatch):
    file = tmp_path / "cell.json"
    tuned = cells.run_cell(TUNED, [0], file=file).tuned
    other = next(trial["setting"] for trial in tuned["tried"] if trial["setting"] != tuned["setting"])
    assert not tracing.same_choice(TUNED, {**tuned, "tried": tuned["tried"][:1]})
    older(monkeypatch)
    monkeypatch.setattr(tuning.Search, "best", lambda self: other)
    assert cells.confirm(file, TUNED) is False


def test_a_run_of_code_that_computes_the_same_confirms_those_before_which_keep_their_code(counted):
    counted.on("monday").run(0)
    both = counted.on("monday-tidied").run(0, 1)
    assert [run["code"] for run in both.runs.values()] == ["monday", "monday-tidied"]
    assert both.outdated() == []
    assert counted.on("monday-tidied again").outdated() == [0, 1]
    assert counted.confirm() is True
    assert counted.outdated() == []


def test_a_cell_whose_process_ended_before_its_trace_gets_it_from_the_next_batch(tmp_path, monkeypatch):
    spec = {**TUNED, "method": ["DepthFL", {"capacities": {"1.0": 0.5, "0.5": 0.5}}]}  # which adds parameters
    place, cell = batch.ResultFolder(tmp_path, "quick", "t"), fedbook.Cell("c", spec, seeds=2)
    file = place.file(cell)
    with monkeypatch.context() as patch:
        patch.setattr(cells, "_trace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cells.run_cell(spec, [0, 1], file=file)
    before = cells.load(file, spec)
    assert before.untraced()
    assert set(before.runs) == {0, 1}, "the runs are kept"
    assert batch.run(place, [cell], notebooks=False, progress=False).done == ["c"]
    after = cells.load(file, spec)
    assert after.runs == before.runs, "nothing was run again"
    assert not after.untraced()
    assert batch.run(place, [cell], notebooks=False, progress=False).stood == ["c"]
    older(monkeypatch)
    assert cells.confirm(file, spec) is True


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


def git(root, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True).stdout


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a state")


def commands(root, *lines):
    """What the commands print, in one process."""
    code = "from fedbook import reproduce\nfrom fedbook.documents import definitions\ndefinitions.add('trial.py')\n"
    code += "".join(f"print('end', reproduce.main({line.split()!r}))\n" for line in lines)
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_results_of_uncommitted_code_are_refused_and_those_of_other_code_are_named(tmp_path):
    repository = tmp_path / "project"  # the package, in a repository of its own
    for package in ("fedcore", "fedbook"):
        shutil.copytree(ROOT / package, repository / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", repository)
    (repository / "trial.py").write_text(TRIAL)
    git(repository, "init", "-q")
    commit(repository)
    method = repository / "fedcore" / "algorithms" / "averaging.py"
    drawing = repository / "fedbook" / "pictures" / "plots.py"
    first = repository / "results" / "quick" / "trial" / "one.json"

    drawing.write_text(drawing.read_text() + "\n# a change that no result reaches\n")
    out, _ = commands(repository, "trial --plain --seeds 1", "list --seeds 1")
    assert "older than the code" not in out
    stored = json.loads(first.read_text())["runs"]["0"]
    assert len(stored["code"]) == 16
    assert stored["commit"] == git(repository, "rev-parse", "--short=12", "HEAD").strip(), "unmarked"

    method.write_text(method.read_text() + "\nCHANGED = 1\n")
    again = "trial --plain --seeds 2"
    out, err = commands(repository, "list --seeds 1", "report --seeds 1", again, f"{again} --uncommitted")
    assert "1 of 1 cells are older than the code" in out
    assert "trial: 1 of 1 runs are older than the code." in out
    (refused,) = [line for line in err.splitlines() if "not committed" in line]
    assert "not committed: fedcore/algorithms/averaging.py changed. Commit first" in refused
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


def test_a_result_elsewhere_may_come_from_uncommitted_code(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "uncommitted", lambda *names: ("fedcore/rng.py",))
    assert reproduce.run_cell(SPEC, [0], file=tmp_path / "cell.json").runs
    with pytest.raises(fedbook.UncommittedCode, match=r"fedcore/rng\.py changed\. Commit first"):
        reproduce.run_cell(SPEC, [0], file=ROOT / "results" / "cell.json")
    assert not (ROOT / "results" / "cell.json").exists()
