"""What the launch buttons open: chapters whose first cell installs the book where it is missing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import nbformat
import pytest

from tools import book, launch

ADDRESS = "https://github.com/me/book"


def commands_of_first_cell(notebook, monkeypatch, installed):
    """The commands that the cell runs, without running them, and what it puts before the other modules."""
    ran, spec = [], object() if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    monkeypatch.setattr(sys, "path", ["before"])
    exec("".join(notebook["cells"][0]["source"]), {})
    return ran, sys.path


def test_a_chapter_installs_the_book_from_its_address_only_where_it_is_missing(monkeypatch):
    chapter = json.loads((book.ROOT / "book" / "averaging.ipynb").read_text("utf-8"))
    opened = launch.with_install_cell(chapter, ADDRESS)
    nbformat.validate(nbformat.from_dict(opened))
    assert opened["cells"][1:] == chapter["cells"]
    assert launch.with_install_cell(opened, ADDRESS) == opened, "one cell, however often it is written"
    assert commands_of_first_cell(opened, monkeypatch, installed=True) == ([], ["before"])
    (clone, install), path = commands_of_first_cell(opened, monkeypatch, installed=False)
    assert clone[:2] == ["git", "clone"]
    assert ADDRESS in clone
    assert path[0] == clone[-1], "the results of the batches lie beside the package"
    assert install[-1].startswith(path[0])


def test_what_is_no_address_of_a_repository_is_refused():
    for address in ("", "github.com/me/book", 'https://github.com/me/book"; import os #'):
        with pytest.raises(ValueError, match="give one such as https"):
            launch.with_install_cell({"cells": []}, address)
