"""The structure of the packages: no part grows unseen, and no parts of the simulator import each other in a cycle."""

from __future__ import annotations

import re

import pytest

from tools import structure

LAZY = ("__init__.py", "moved.py", "reproduce.py", "history.py", "federation.py")  # import the book when asked to


def test_no_part_has_more_lines_of_code_than_it_is_allowed():
    grown = structure.grown()
    assert not grown, "; ".join(grown) + ": make it smaller, or accept it by python tools/structure.py --accept"


@pytest.mark.parametrize("package", structure.PACKAGES)
def test_no_parts_of_a_package_import_each_other_in_a_cycle(package):
    assert structure.cycles(structure.imports(package)) == []


def test_the_simulator_imports_nothing_of_the_book():
    for file in (structure.ROOT / "fedcore").rglob("*.py"):
        assert file.name in LAZY or not re.search(r"^\s*(import|from) fedbook", file.read_text("utf-8"), re.M), file


def test_a_part_that_grew_and_a_cycle_are_named(monkeypatch, tmp_path, capsys):
    c = '"""A module."""\n\ndef f():  # only lines with code count\n    """Docs."""\n    from .a import y\nx = 1\n'
    texts = {"a": "from . import b\n", "b": "from .c import x\n", "c": c}
    (tmp_path / "fedcore").mkdir()
    for name, text in {**texts, "__init__": ""}.items():
        (tmp_path / "fedcore" / f"{name}.py").write_text(text)
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    monkeypatch.setattr(structure, "ALLOWED", tmp_path / "structure.csv")
    structure.ALLOWED.write_text("package,part,lines\nfedcore,a,1\nfedcore,b,1\nfedcore,c,2\n")
    assert structure.grown() == ["fedcore/c has 3 lines of code, 2 are allowed"]
    assert structure.cycles(structure.imports("fedcore")) == [["a", "b", "c"]]
    structure.accept(["fedcore/a"])
    assert structure.grown(), "accepted for another part"
    structure.accept(["fedcore/c"])
    assert "accepted: fedcore/c has 3 lines of code, 2 are allowed" in capsys.readouterr().out
    assert not structure.grown()


def test_the_picture_shows_every_part_of_the_simulator():
    drawn = set(re.findall(r">(\w+)</text>", structure.PICTURE.read_text("utf-8")))
    assert drawn >= {part for part in structure.lines("fedcore") if not part.startswith("_") and part != "reproduce"}
