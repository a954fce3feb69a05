"""What one begins with: a method of the user beside ten baselines, and a chapter; both run as they are written."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from fedbook import new, reproduce
from fedbook.documents import definitions, protocol
from fedbook.documents.protocol import BASELINES
from fedbook.results import cells, provenance
from fedcore import algorithms
from tools import book


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """The command in an empty folder: `here("list")` gives its exit status, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(definitions, "_added", [])

    def run(*words):
        definitions._added.clear()
        status = reproduce.main(words)
        return (status, *capsys.readouterr())

    return run


def test_the_template_runs_end_to_end_and_its_table_is_reported(here, tmp_path, monkeypatch):
    _, out, _ = here("new", "FedNew")
    assert all(line.split()[:3] == [sys.executable, "-m", "fedbook"] for line in out.splitlines()[1:])
    run, report = (line.split()[3:] for line in out.splitlines()[1:])
    file = tmp_path / "FedNew.py"
    file.write_text(file.read_text().replace('"rounds": 40', '"rounds": 2'))
    # one setting for each method: what a search does has tests of its own
    monkeypatch.setattr(protocol, "search", lambda arguments, lrs, **more: {"grid": [{"run": {"lr": lrs[2]}}]})
    assert "11 cells run, 0 stood already, 0 failed" in here(*run, "--plain", "--seeds", "1")[1]
    _, out, _ = here(*report, "--seeds", "1")
    assert [line.split(" | ")[0] for line in out.splitlines()[4:-2]] == [f"| {row}" for row in ("FedNew", *BASELINES)]
    assert here(*report[:-2], "--seeds", "1")[0] == 0
    assert (tmp_path / "results" / "quick" / "FedNew" / "table.csv").read_text().count("\n") == 12


@pytest.mark.parametrize("profile", ["quick", "desk"])
def test_the_template_searches_its_method_and_ten_baselines_alike(profile, here):
    here("new", "fedNew", "--profile", profile)
    definitions.add("fedNew.py")
    listed = definitions.get("fedNew").cells(profile)
    assert [cell.row for cell in listed] == ["FedNew", *BASELINES]
    assert len({cells.identity(cell.spec) for cell in listed}) == len(listed) == 11
    assert len({str(cell.spec["federation"]) + str(cell.spec["run"]) for cell in listed}) == 1
    searches = [cell.spec["tune"] for cell in listed]
    assert all(search["axes"]["run.lr"] == protocol.LRS for search in searches)
    assert all(len(values) >= 3 for search in searches for values in search["axes"].values())
    assert len({str([search["seeds"], search["rounds"]]) for search in searches}) == 1
    assert listed[0].spec["federation"]["validation"]
    assert f"rounds={listed[0].spec['run']['rounds']}" in definitions.get("fedNew").captions[profile]
    assert {cell.seeds for cell in listed} == {10 if profile == "quick" else 5}
    assert len(Path("fedNew.py").read_text().splitlines()) <= 40


def test_the_commands_say_that_a_trial_is_one_where_code_is_not_committed(here, monkeypatch):
    monkeypatch.setattr(provenance, "uncommitted", lambda *names: ("fedcore/rng.py",))
    assert "--uncommitted" not in here("new", "FedNew")[1], "results here are in no repository"
    monkeypatch.setattr(provenance, "_is_kept", lambda file: True)
    assert here("new", "FedNewer")[1].count(" --uncommitted") == 2


def test_every_row_of_the_protocol_searches_arguments_that_its_method_takes():
    methods = {method.__name__: method for method in algorithms.ALL}
    for name, row in protocol.METHODS.items():
        own = [key for key in row.searched if "." not in key and key != "alpha_K"]
        for ends in zip(*(row.searched[key] for key in own), strict=True) if own else [()]:
            assert methods[row.method](**row.fixed, **dict(zip(own, ends, strict=True))), name
        for key, (low, high) in row.limits.items():
            assert all(low < value < high for value in row.searched[key]), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["class"], "'class' cannot name a module"),
        (["fedAvg"], "'fedAvg' is taken by the package; choose another name"),
        (["FedNew", "--profile", "paper"], "profile 'paper' has no template; use one of quick, desk"),
        ([], "`new` takes one name, not 0"),
        (["there"], "there.py exists and is left as it is"),
        *(([name], f"{name}.py would hide the module {name}") for name in ("Torch", "beside")),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(words, message, here, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "there.py").write_text("x = 1\n")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "__init__.py").write_text("")
    status, _, err = here("new", *words)
    assert status == 2
    assert message in err
    assert [file.name for file in tmp_path.glob("*.py")] == ["there.py"]
    assert (tmp_path / "there.py").read_text() == "x = 1\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the book's contents and no chapters."""
    (tmp_path / "book").mkdir()
    (tmp_path / "_toc.yml").write_text((book.ROOT / "_toc.yml").read_text("utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_chapter_runs_as_it_stands_and_is_the_last_of_the_contents(checkout, capsys):
    before = book.pages(checkout)
    assert new.main(["chapter", "own_topic"]) == 0
    assert "python tools/expect.py own_topic" in capsys.readouterr().out
    file = checkout / "book" / "own_topic.ipynb"
    place = before.index("book/field")  # the second part begins there
    assert book.pages(checkout) == [*before[:place], "book/own_topic", *before[place:]]
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# Own topic\n")
    headings = [line for cell in notebook.cells for line in cell.source.splitlines() if line.startswith("## ")]
    assert headings[-5:-2] == ["## Does it hold here?", "## Limits", "## Exercises"]
    run = book.run_chapter(file, {"profile": "test"}, output=checkout / "out" / "own_topic.ipynb")
    assert set(run.numbers) == {"IID", "skewed"}
    assert any(
        'class="fc-claims ' in str(o.get("data", "")) for cell in run.notebook.cells for o in cell.get("outputs", [])
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own-topic", "'own-topic' cannot name a chapter; use lower-case letters and _"),
        ("there", "there.ipynb exists and is left as it is"),
        ("page", "page.md is a page of this name"),
    ],
)
def test_a_chapter_that_cannot_be_is_refused_and_nothing_is_written(name, message, checkout, monkeypatch, capsys):
    (checkout / "book" / "there.ipynb").touch()
    (checkout / "book" / "page.md").touch()
    contents = (checkout / "_toc.yml").read_text("utf-8")
    assert new.main(["chapter", name]) == 2
    assert message in capsys.readouterr().err
    assert (checkout / "_toc.yml").read_text("utf-8") == contents
    assert len(list((checkout / "book").iterdir())) == 2
    monkeypatch.chdir(checkout / "book")
    assert new.main(["chapter", "own_topic"]) == 2
    assert "_toc.yml does not exist or lists no chapters; start in the folder of the book" in capsys.readouterr().err
