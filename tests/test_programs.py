"""Programs as newcomers write them: short, run in an empty folder, and accepted by a type checker.

They are run here from the repository; nothing in them needs more than what a wheel holds.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedcore import checkpoint, reproduce
from fedcore.experiments import table

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_a_program_of_at_most_25_lines_does_what_it_says(program, tmp_path, monkeypatch):
    assert len(program.read_text().splitlines()) <= 25
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "_added", [])
    file = shutil.copy(program, tmp_path)
    runpy.run_path(str(file), run_name="__main__")


@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright (npm install -g pyright)")
def test_pyright_accepts_the_programs(tmp_path):
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"include": ["."], "extraPaths": [str(ROOT)]}))
    out = subprocess.run(
        ["pyright", "-p", str(tmp_path), "--pythonpath", sys.executable], capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stdout


def test_a_file_is_closed_before_it_gets_its_name_as_windows_wants_it(tmp_path, monkeypatch):
    seen = []
    with checkpoint.atomic(tmp_path / "result.json") as file:
        monkeypatch.setattr(os, "replace", lambda old, new: seen.append((file.closed, Path(new).name)))
    assert seen == [(True, "result.json")]


def test_the_command_writes_utf8_whatever_the_code_page_is(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(reproduce, "main", lambda: print("✓"))
    reproduce._command()
    assert written.getvalue().split() == ["✓".encode()]


def test_a_wheel_holds_every_file_of_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "fedcore"
    named = {f for pattern in settings["package-data"]["fedcore"] for f in package.glob(pattern)}
    files = {f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    assert {f for f in files if f.suffix != ".py"} == named
    assert all((f.parent / "__init__.py").exists() for f in files if f.suffix == ".py")
    assert package / "py.typed" in named
