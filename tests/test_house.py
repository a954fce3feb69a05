"""The house: no room grows unseen, and no rooms of the core import each other in a circle."""

from __future__ import annotations

import re

from tools import house


def test_no_room_has_more_lines_of_code_than_it_is_allowed():
    grown = house.grown()
    assert not grown, "; ".join(grown) + ": make it smaller, or accept it by python tools/house.py --accept"


def test_rooms_of_the_core_import_each_other_in_no_circle_and_nothing_of_the_book():
    graph = house.arrows("fedcore")
    assert house.circles(graph) == []
    for file in (house.ROOT / "fedcore").rglob("*.py"):
        if file.name not in ("__init__.py", "_moved.py", "reproduce.py", "history.py", "federation.py"):  # lazy faces
            assert "import fedbook" not in (text := file.read_text("utf-8")), file
            assert "from fedbook" not in text, file


def test_code_lines_are_lines_with_code():
    text = '"""A module."""\n\nimport os  # why\n\n\ndef f(a,\n      b):\n    """Doc\n    string."""\n    return "x"\n'
    assert house.code_lines(text) == 4


def test_a_room_that_grew_and_a_circle_are_named(monkeypatch, tmp_path):
    for name, text in {"a": "from . import b\n", "b": "from .c import x\n", "c": "from .a import y\nx = 1\n"}.items():
        (tmp_path / "fedcore").mkdir(exist_ok=True)
        (tmp_path / "fedcore" / f"{name}.py").write_text(text)
    ledger = tmp_path / "house.csv"
    ledger.write_text("package,room,lines\nfedcore,a,1\nfedcore,b,1\nfedcore,c,1\n")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "LEDGER", ledger)
    assert house.grown() == ["fedcore/c has 2 lines of code, 1 are allowed"]
    assert house.circles(house.arrows("fedcore")) == [["a", "b", "c"]]
    house.accept()
    assert house.grown() == []


def test_the_picture_shows_every_room_of_the_core():
    drawn = set(re.findall(r">(\w+)</text>", house.PICTURE.read_text("utf-8")))
    assert drawn >= {room for room in house.rooms("fedcore") if not room.startswith("_") and room != "reproduce"}
