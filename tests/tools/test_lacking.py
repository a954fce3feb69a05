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
                "_toc.yml",
                "comparison",
            ],
        ),
    ],
)
def test_a_new_method_needs_five_places_and_a_page_that_is_written(monkeypatch, listed, files):
    if listed:
        monkeypatch.setattr(fc, "ALL", (*fc.ALL, FedNewest))
    found = list(lacking.of_method(FedNewest))
    assert len(found) == len(files)
    assert all(file in line and "FedNewest" in line for file, line in zip(files, found, strict=True))


def test_a_method_that_is_defined_and_not_listed_is_found(monkeypatch):
    monkeypatch.setattr(fc, "ALL", tuple(kind for kind in fc.ALL if kind is not fc.FedUp))
    assert fc.FedUp in lacking.defined()


def test_a_layer_and_a_data_set_without_a_test_are_named():
    assert "tests/engine" in next(lacking.of_layer(nn.Hardsigmoid))
    told = list(lacking.of_source("kuzushiji"))
    assert [file in line for file, line in zip(("test_data.py", "references.bib"), told, strict=True)] == [True, True]


def test_a_table_without_a_profile_or_a_result_says_what_to_run():
    table = Table("newest", "t", "S000", lambda profile: [Cell("FedAvg, IID", {})], {"quick": "digits"})
    assert "python -m fedbook newest" in next(lacking.of_table(table))
    assert "captions" in next(lacking.of_table(Table("newest", "t", "S000", list, {})))


def test_a_chapter_says_what_it_lacks(tmp_path, monkeypatch):
    path = tmp_path / "newest.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("profile = 'quick'")]), path)
    assert ["_toc.yml" in line for line in lacking.of_chapter(path)] == [True]
    monkeypatch.setattr(lacking.book, "pages", lambda root: ["book/newest"])
    words = ("parameters", "pages.parameters", "pages.record", "departures", "index.md", "expect.py newest", "refresh")
    found = list(lacking.of_chapter(path))
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))
