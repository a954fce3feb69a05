"""What a new method, layer, data set, table or chapter still lacks is said in words; and nothing is lacking today."""

from __future__ import annotations

import nbformat
import pytest
from torch import nn

import fedcore as fc
from fedbook import Cell, Table
from tools import lacking


def test_nothing_is_lacking():
    assert not lacking.everything(), "\n".join(lacking.everything())


class FedNewest(fc.Method):
    """y <- y - lr g, from somewhere else."""

    def broadcast(self, r):
        return 2 * r.x


@pytest.mark.parametrize(
    ("listed", "files"),
    [
        (False, ["fedcore/algorithms/__init__.py"]),
        (
            True,
            [
                "test_lacking.py",
                "test_lacking.py",
                "map.md",
                "references.bib",
                "reference.py",
                "expect.py comparison",
                "styles.py",
            ],
        ),
    ],
)
def test_a_new_method_needs_six_places_and_what_is_stored(monkeypatch, listed, files):
    if listed:
        monkeypatch.setattr(fc, "ALL", (*fc.ALL, FedNewest))
    found = list(lacking.of_method(FedNewest))
    assert len(found) == len(files)
    assert all(file in line and "FedNewest" in line for file, line in zip(files, found, strict=True))


def test_a_method_that_is_defined_and_not_listed_is_found(monkeypatch):
    monkeypatch.setattr(fc, "ALL", tuple(kind for kind in fc.ALL if kind is not fc.FedUp))
    assert fc.FedUp in lacking.defined()


def test_a_method_that_is_drawn_as_fedavg_is_named_with_the_file_to_edit(monkeypatch):
    assert not [line for kind in fc.ALL for line in lacking.of_method(kind) if "drawn as FedAvg" in line]
    monkeypatch.delitem(lacking.styles.METHODS, "FixBN")
    (line,) = lacking.of_method(fc.FixBN)
    assert line.startswith("FixBN")
    assert "fedbook/pictures/styles.py" in line


def test_a_layer_and_a_data_set_without_a_test_are_named():
    assert "tests/engine" in next(lacking.of_layer(nn.Hardsigmoid))
    told = list(lacking.of_source("kuzushiji"))
    assert [file in line for file, line in zip(("test_data.py", "references.bib"), told, strict=True)] == [True, True]


def test_a_table_without_a_profile_or_a_result_says_what_to_run():
    table = Table("newest-table", "t", "S000", lambda profile: [Cell("FedAvg, IID", {})], {"quick": "digits"})
    (result,) = lacking.of_table(table)
    assert "commit its code, then run -m fedbook newest-table" in result
    assert "captions" in next(lacking.of_table(Table("newest", "t", "S000", list, {})))


def test_a_chapter_says_what_it_lacks(tmp_path, monkeypatch):
    path = tmp_path / "newest.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("profile = 'quick'")]), path)
    assert ["_toc.yml" in line for line in lacking.of_chapter(path)] == [True]
    monkeypatch.setattr(lacking.book, "pages", lambda root: ["book/newest"])
    words = ("departures.csv", "index.md", "expect.py newest")
    found = list(lacking.of_chapter(path))
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_a_reader_that_no_name_leads_to_is_found(monkeypatch):
    def _newest(name: str, root: str) -> Source: ...  # noqa: F821

    monkeypatch.setattr(lacking.readers, "_newest", _newest, raising=False)
    monkeypatch.setattr(lacking, "text", lambda *names: "def _newest(name, root): ...")
    assert ["_newest" in line and "READERS" in line for line in lacking.of_readers()] == [True]


def test_a_method_or_a_table_that_its_page_does_not_show_is_found():
    assert ["refresh comparison" in line for line in lacking.unshown("comparison", ["FedAvg", "FedNewest"])] == [True]


def test_a_failing_test_is_quoted_with_its_words_and_its_name(tmp_path):
    file = tmp_path / "test_newest.py"
    file.write_text("def test_a():\n    assert 1 == 2, 'add a line to x.csv'\n\n\ndef test_b():\n    pass\n")
    (line,) = lacking.failing(str(file))
    assert line.startswith("add a line to x.csv (")
    assert line.endswith("test_newest.py::test_a)")


def test_every_test_that_is_asked_exists():
    for name in lacking.TESTS:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (lacking.ROOT / file).read_text("utf-8") if test else (lacking.ROOT / file).is_file()
