"""What a new method, layer, data set, table or chapter still lacks is said in words; and nothing is lacking today."""

from __future__ import annotations

from dataclasses import replace

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


TABLE = Table("newest-table", "t", "S000", lambda profile: [Cell("FedAvg, IID", {})], {})


@pytest.mark.parametrize(
    ("lacks", "files"),
    [
        (lacking.of_method(FedNewest), ["fedcore/algorithms/__init__.py"]),
        (lacking.of_layer(nn.Hardsigmoid), ["tests/engine"]),
        (lacking.of_source("kuzushiji"), ["test_data.py", "references.bib"]),
        (lacking.of_table(TABLE), ["captions.csv"]),
        (lacking.of_table(replace(TABLE, captions={"quick": "digits"})), ["-m fedbook newest-table"]),
        (lacking.unshown("comparison", ["FedAvg", "FedNewest"]), ["refresh comparison"]),
    ],
    ids=["method", "layer", "source", "table", "result", "page"],
)
def test_what_a_new_part_lacks_is_said_with_the_file_or_the_command(lacks, files):
    for file, line in zip(files, lacks, strict=True):
        assert file in line


def test_a_new_method_in_the_list_needs_six_places_and_what_is_stored(monkeypatch):
    monkeypatch.setattr(fc, "ALL", (*fc.ALL, FedNewest))
    files = "test_lacking.py", "test_lacking.py", "map.md", "references.bib", "reference.py", "comparison", "styles.py"
    for file, line in zip(files, lacking.of_method(FedNewest), strict=True):
        assert file in line
        assert "FedNewest" in line


def test_a_method_that_is_defined_and_not_listed_is_found(monkeypatch):
    monkeypatch.setattr(fc, "ALL", tuple(kind for kind in fc.ALL if kind is not fc.FedUp))
    assert fc.FedUp in lacking.defined()


def test_a_chapter_says_what_it_lacks(tmp_path, monkeypatch):
    path = tmp_path / "newest.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("profile = 'quick'")]), path)
    assert ["_toc.yml" in line for line in lacking.of_chapter(path)] == [True]
    monkeypatch.setattr(lacking.book, "pages", lambda root: ["book/newest"])
    for words, line in zip(("departures.csv", "index.md", "expect.py newest"), lacking.of_chapter(path), strict=True):
        assert words in line


def test_a_reader_that_no_name_leads_to_is_found(monkeypatch):
    def _newest(name: str, root: str) -> Source: ...  # noqa: F821

    monkeypatch.setattr(lacking.readers, "_newest", _newest, raising=False)
    monkeypatch.setattr(lacking, "text", lambda *names: "def _newest(name, root): ...")
    assert ["_newest" in line and "READERS" in line for line in lacking.of_readers()] == [True]


def test_every_test_that_is_asked_exists():
    for name in lacking.TESTS:
        file, _, test = name.partition("::")
        assert f"def {test}" in (lacking.ROOT / file).read_text("utf-8")
