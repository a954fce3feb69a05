"""A result file whose checksum is right and whose form is another is damaged, by name; the others go on."""

from __future__ import annotations

import base64
import zlib

import pytest

from fedbook import Cell, reproduce
from fedbook.documents import definitions
from fedbook.results import cells, provenance
from fedbook.results.batch import ResultFolder
from fedbook.verdicts import overview
from fedcore.storage import archives

SPEC = {
    "study": "simulate", "method": ["FedAvg", {}], "federation": {"source": "digits", "clients": 4},
    "run": {"rounds": 2, "lr": 0.1},
}  # fmt: skip
BITS = base64.b64encode(bytes(5)).decode()


def run(cell, seed):
    return {
        "id": cells.identity(cell.spec, seed), "final": 90.0, "mean": 80.0, "history": [[0, 10.0], [2, 90.0]],
        "correct": BITS, "images": 40, "classes": 10, "code": provenance.code(cell.spec), "device": "cpu",
        "threads": 1, "torch": "2", "python": "3", "version": "0", "commit": None, "seconds": 1.5,
    }  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two stored cells of a table, with a search and a trace."""
    names = ("FedAvg", "other")
    listed = [Cell(name, {**SPEC, "run": {**SPEC["run"], "lr": 0.1 + k}}, name, "c") for k, name in enumerate(names)]
    table = definitions.Table("t", "T", "own", lambda profile: listed, {"quick": "tiny"})
    monkeypatch.setattr(definitions, "_added", [(tmp_path, table)])
    place = ResultFolder(tmp_path, "quick", "t")
    place.folder.mkdir(parents=True)
    tried = [{"setting": {"run": {"lr": 0.1}}, "rounds": None, "score": 1.0, "values": [1.0, None]}]
    for cell in listed:
        tuned = {"id": cells.identity(cell.spec), "setting": {"run": {"lr": 0.1}}, "tried": tried, "edges": ["run.lr"]}
        trace = {"values": [1.0] * 7, "code": "a"}
        runs = {seed: run(cell, seed) for seed in range(3)}
        cells._store(place.file(cell), cells.Result(cell.spec, runs, tuned, trace))
    return place


def at(*path, to=...):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        if to is ...:
            del content[path[-1]]
        else:
            content[path[-1]] = to

    return change


ODD = {
    "runs are a list": at("runs", to=[]),
    "no specification": at("spec"),
    "a run that is a number": at("runs", "1", to=3),
    "a run without id": at("runs", "1", "id"),
    "a final beyond numbers": at("runs", "1", "final", to=10**30),
    "a device without a name": at("runs", "1", "device", to=None),
    "a history that is none": at("runs", "1", "history", to=[3]),
    "a seed that is no number": at("runs", "x", to={"id": "a", "final": 1}),
    "fewer images than said": at("runs", "1", "images", to=41),
    "images of one run alone": at("runs", "1", "images"),
    "other numbers of images": lambda c: [at("runs", "1", "images", to=39)(c), at("runs", "1", "models", to=1)(c)],
    "bits that are none": at("runs", "1", "correct", to="***"),
    "no classes": at("runs", "1", "classes", to=0),
    "counts of fewer images": at("runs", "1", "right", to=base64.b64encode(zlib.compress(bytes(39))).decode()),
    "no evaluations": at("runs", "1", "evaluations", to=0),
    "a search of nothing": at("tuned", "tried", to=[3]),
    "a rate that is no mapping": at("tuned", "setting", to={"run": 3}),
    "an edge that is a number": at("tuned", "edges", to=[3]),
    "a trace without its code": at("trace", "code"),
    "a trace that further code left without a name": at("trace", "same", to=[3]),
}
HARMLESS = {"images of one run alone"}


@pytest.mark.parametrize("odd", ODD)
def test_a_file_of_another_form_is_damaged_by_name_and_ends_nothing(odd, place, capsys):
    first, second = definitions.get("t").cells("quick")
    content = archives.unsealed(place.file(first))
    ODD[odd](content)
    place.file(first).write_bytes(archives.sealed(content))
    if odd not in HARMLESS:
        with pytest.raises(cells.CorruptResult, match=rf"{first.name}.json is damaged .*run again by the next batch"):
            cells.load(place.file(first), first.spec)
    assert len(cells.load(place.file(second), second.spec).runs) == 3
    root = ["--results", str(place.root)]
    for words in (["list"], ["report"], ["report", "t", "--format", "csv"]):
        assert reproduce.main([*words, *root]) == 0, words
        out, err = capsys.readouterr()
        assert odd in HARMLESS or f"{first.name}.json is damaged" in err
        assert words != ["list"] or "of 2 cells done x 3 seeds" in out
    assert overview.compute(place.root)["cells"].tolist()[0] >= 1


def test_a_diverged_run_of_a_study_that_measures_is_stored_and_read_again(tmp_path):
    fed, run = {"source": "digits", "clients": 3, "model": "mlp"}, {"rounds": 2, "lr": 1e30}
    spec = {"study": "mime", "method": ["FedAvg", {}], "federation": fed, "run": run, "steps": 2, "pair": "A, C"}
    cells.run_cell(spec, [0], file=tmp_path / "c.json")
    assert cells.load(tmp_path / "c.json", spec).runs[0]["final"] is None


CELLS = {
    "row": ({"row": None}, "row=None; use a text"),
    "source": ({"source": "71.2"}, "source='71.2' is not a number"),
    "seeds": ({"seeds": "ab"}, "seeds='ab' is not an integer"),
    "study": ({"spec": {"study": []}}, r"study=\[\]; use the name of a study"),
    "no source": ({"spec": {**SPEC, "federation": {"source": None}}}, "source=None; use"),
}


@pytest.mark.parametrize("what", CELLS)
def test_a_cell_that_is_none_is_refused_in_one_line(what, tmp_path, monkeypatch, capsys):
    given, words = CELLS[what]
    cell = Cell(**{"name": "c", "spec": SPEC, **given})
    table = definitions.Table("t", "T", "own", lambda profile: [cell], {"quick": "tiny"})
    monkeypatch.setattr(definitions, "_added", [(tmp_path, table)])
    with pytest.raises(ValueError, match=f"table t: the cell 'c'.* {words}" if "spec" not in given else words):
        table.cells("quick")
    (tmp_path / "quick" / "t").mkdir(parents=True)
    for arguments in (["list"], ["report", "t", "--format", "csv"], ["t", "--plain"]):
        assert reproduce.main([*arguments, "--results", str(tmp_path)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    if "spec" in given:
        with pytest.raises(ValueError, match=words.replace("; use the name of a study", "")):
            cells.run_cell(given["spec"], [0])


def test_code_that_no_commit_holds_is_said_in_one_line_when_it_is_to_be_confirmed(place, monkeypatch, capsys):
    def refuse(file, spec=None):
        raise provenance.UncommittedCode(f"{file} would keep a result of code that is not committed")

    monkeypatch.setattr(provenance, "check_committed", refuse)
    monkeypatch.setattr(provenance, "code", lambda spec: "edited")
    assert reproduce.main(["t", "--confirm", "--results", str(place.root)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "not committed" in err


def test_another_users_lock_is_named_with_what_can_be_done(place, monkeypatch):
    import filelock

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    first = definitions.get("t").cells("quick")[0]
    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(PermissionError, match=r"\.lock cannot be opened .*another user's.*another results folder"):
        cells.run_cell(first.spec, [9], file=place.file(first))
