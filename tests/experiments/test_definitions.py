"""Methods, models, partitions and data of the user in tables: "file.py:Name"."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from fedbook import Cell, Table, reproduce
from fedbook.documents import definitions
from fedbook.results import batch, cells
from fedbook.results.batch import ResultFolder
from fedbook.results.provenance import SOURCES, roots
from fedbook.studies import user_files
from fedbook.studies.from_spec import build_federation

RUN = {"rounds": 2, "lr": 0.1, "local_steps": 2}
METHOD = """
from __future__ import annotations
from dataclasses import dataclass
import fedcore as fc

@dataclass(frozen=True)
class FedHalf(fc.Method):
    share: float = 0.5

    def aggregate(self, r, y):
        return {"x": r.x + self.share * r.mean(y - r.x)}

class Even:
    def split(self, labels, clients, rng, owner):
        return [list(range(i, len(labels), clients)) for i in range(clients)]

class Uneven:
    def split(self, labels): ...

def net(shape, classes, hidden=5):
    return fc.models.mlp(shape, classes, hidden=(hidden,))

def number(shape, classes):
    return 3

def points(n=40):
    import numpy as np
    x = np.random.default_rng(0).normal(size=(n, 1, 2, 2)).astype("float32")
    return x, (x.sum((1, 2, 3)) > 0).astype(int)
"""
FED = {
    "source": ["parts/user.py:points", {"n": 60}], "clients": 3, "partition": ["parts/user.py:Even", {}],
    "model": ["parts/user.py:net", {"hidden": 4}],
}  # fmt: skip
SPEC = {"study": "simulate", "method": ["parts/user.py:FedHalf", {"share": 0.5}], "federation": FED, "run": RUN}
TABLE = """
from fedbook import Cell, Table

SPEC = {spec!r}
OTHER = {{**SPEC, "method": ["FedAvg", {{}}], "federation": {{"source": "digits", "clients": 3, "model": "logistic"}}}}
TABLES = [Table("trial", "a trial", "S000",
                lambda p: [Cell("half", SPEC, "half", "c", seeds=1), Cell("FedAvg", OTHER, "FedAvg", "c", seeds=1)],
                {{"quick": "tiny"}})]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A definitions file, and the file that it names in a folder beside it; the current folder is another."""
    monkeypatch.setattr(definitions, "_added", [])
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "user.py").write_text(METHOD)
    (tmp_path / "tables.py").write_text(TABLE.format(spec=SPEC))
    return tmp_path


def change(spec, part, value):
    return {**spec, part: value} if part == "method" else {**spec, "federation": {**spec["federation"], part: value}}


def command(folder, *words, table="trial"):
    """The status of the command on the folder's table, as of a process that starts now."""
    definitions._added.clear()
    user_files._load.cache_clear()
    SOURCES._digests.clear()
    places = ["--definitions", str(folder / "tables.py"), "--results", str(folder / "results")]
    plain = ["--plain"] if table == "trial" else []
    return reproduce.main([table, *plain, *places, *words])


# --- where names lead ---------------------------------------------------------------------------------------------


def test_a_partition_in_a_specification_may_be_lists_of_indices():
    listed = {"source": "digits", "partition": [[5, 6, 7], [0, 9]], "model": "logistic"}
    fed = build_federation(json.loads(json.dumps(listed)), 0, None)
    assert [part.tolist() for part in fed.index] == listed["partition"]


def test_a_table_with_a_method_a_model_a_partition_and_data_of_the_user_runs_alike_as_notebook_and_plainly(folder):
    definitions.add(folder / "tables.py")
    cell = definitions.get("trial").cells("quick")[0]
    plain = cells.run_cell(cell.spec, [0]).runs[0]
    place = ResultFolder(folder / "results", "quick", "trial")
    batch.one(place, cell, [0])
    stored = json.loads(place.file(cell).read_text())
    assert stored["runs"]["0"]["history"] == plain["history"]
    assert stored["spec"] == json.loads(json.dumps(SPEC | {"method": ["user.py:FedHalf", {"share": 0.5}]})) | {
        "federation": {**FED, "source": ["user.py:points", {"n": 60}], "partition": ["user.py:Even", {}],
                       "model": ["user.py:net", {"hidden": 4}]}
    }, "results name no folder"  # fmt: skip


def test_a_worker_with_another_current_folder_is_handed_absolute_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    place = ResultFolder(folder / "results", "quick", "trial")
    seen = []
    monkeypatch.setattr(batch, "one", lambda place, cell, **more: seen.append(cell.spec["method"][0]))
    batch.run(place, [Cell("half", SPEC)], [0], notebooks=False, progress=False)
    assert seen == [f"{folder / 'parts' / 'user.py'}:FedHalf"]


def test_the_rule_of_the_file_is_the_one_that_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    whole = change(SPEC, "method", ["parts/user.py:FedHalf", {"share": 1.0}])
    averaged = change(SPEC, "method", ["FedAvg", {}])
    final = [cells.run_cell(spec, [0]).runs[0]["history"] for spec in (whole, averaged, SPEC)]
    assert final[0] == final[1] != final[2]


# --- what makes a result older ------------------------------------------------------------------------------------


def test_a_batch_says_how_many_cells_that_stood_are_older_than_an_edited_rule(folder, capsys):
    for words, said in (
        ((), "2 cells run, 0 stood already, 0 failed"),
        ((), "2 stood already (1 older than the code, which --outdated runs again), 0 failed"),
        (("--outdated",), "1 cells run, 1 stood already, 0 failed"),
    ):
        assert command(folder, *words) == 0
        assert said in capsys.readouterr().out
        (folder / "parts" / "user.py").write_text(METHOD.replace("self.share * r", "0.9 * self.share * r"))


def test_a_file_beside_it_that_it_imports_counts_and_so_does_what_it_takes_from_the_package(folder):
    (folder / "helpers.py").write_text("X = 1\n")
    (folder / "one.py").write_text("import helpers\nimport fedcore as fc\nclass M(fc.FedDyn):\n    x = helpers.X\n")
    covered = SOURCES.reached(roots({"study": "simulate", "method": [f"{folder}/one.py:M", {}]}))
    assert {str(folder / "helpers.py"), "fedcore.algorithms.variates"} <= set(covered)
    assert "fedcore.algorithms.sharpness" not in covered


def test_results_stand_when_the_project_moves(folder):
    cell = definitions._placed(Table("t", "", "", lambda p: [Cell("c", SPEC)], {"quick": ""}), folder).cells("quick")[0]
    os.rename(folder / "parts", folder / "moved")
    moved = json.loads(json.dumps(cell.spec).replace("parts", "moved"))
    assert cells.identity(moved, 0) == cells.identity(cell.spec, 0) == cells.identity(SPEC, 0)
    cells.run_cell(moved, [0], file=folder / "cell.json")
    shutil.copytree(folder / "moved", folder / "again")
    elsewhere = json.loads(json.dumps(moved).replace("moved", "again"))
    assert cells.load(folder / "cell.json", elsewhere).outdated() == []


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("method", ["parts/none.py:X", {}], r"none\.py cannot be read \(No such file.*relative to the definitions"),
        ("method", ["parts/user.py:FedHelf", {}], r"user\.py defines no 'FedHelf'; use one of FedHalf, Even"),
        ("method", ["parts/user.py:Even", {}], "Even is a type and no method; use a subclass of fedcore.Method"),
        ("method", ["FedHalf", {}], 'FedHalf.*is not known; use one of FedAvg.*, or "file.py:Name"'),
        ("partition", ["parts/user.py:Uneven", {}], r"other arguments .*\(labels, clients, rng, owner\) -> a list"),
        ("partition", ["Dirichlett", {}], "Dirichlett.*is not known; use one of ByOwner, DealtBySeed, Dirichlet"),
        ("model", "parts/user.py:number", r"number.* returned 3; return a torch\.nn\.Module"),
        ("model", "parts/user.py:FedHalf", r"other arguments .*use a function \(shape, classes\) -> torch\.nn\.Module"),
        ("source", ["digit_domain", {}], "digit_domain.*is not known"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_to_write(part, value, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        cells.run_cell(change(SPEC, part, value), [0])
    assert "\n" not in str(raised.value)


def test_a_cell_whose_file_is_broken_fails_alone_and_keeps_what_is_stored(folder, capsys):
    assert command(folder) == 0
    file = folder / "results" / "quick" / "trial" / "half.json"
    stored = file.read_bytes()
    (folder / "parts" / "user.py").write_text(METHOD + "\ndef broken(:\n")
    assert command(folder, "--seeds", "2") == 1
    out, err = capsys.readouterr()
    assert "1 cells run, 0 stood already, 1 failed" in out
    assert "user.py, line" in err
    for words, table, status in ((["--outdated"], "trial", 1), (["--confirm"], "trial", 1), ([], "list", 2)):
        assert command(folder, *words, table=table) == status
        assert "user.py, line" in capsys.readouterr().err
    assert file.read_bytes() == stored
