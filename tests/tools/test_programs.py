"""Programs as newcomers write them: short, run in an empty folder from a wheel, and accepted by a type checker."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedbook import reproduce
from fedcore.storage import checkpoint

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((Path(__file__).parents[1] / "programs").glob("*.py"))


# Runs programs one after another, each in a folder of its own, and says what became of them.
EACH = """
import json, os, pathlib, runpy, sys, traceback
import fedcore
from fedbook.documents import definitions as table
said = {"fedcore": fedcore.__file__}
for program in map(pathlib.Path, sys.argv[1:]):
    os.chdir(program.parent)
    table._added.clear()
    try:
        runpy.run_path(str(program), run_name="__main__")
        said[program.stem] = ""
    except BaseException:
        said[program.stem] = traceback.format_exc()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What became of each program with the package installed from a wheel, outside of the repository."""
    base = tmp_path_factory.mktemp("programs")
    source, site = base / "source", base / "site"
    keep = shutil.ignore_patterns("__pycache__")
    for package in ("fedcore", "fedbook"):
        shutil.copytree(ROOT / package, source / package, ignore=keep)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", source, "--no-deps", "--no-build-isolation", "-w", base], check=True)
    subprocess.run([*pip, "install", *base.glob("*.whl"), "--no-deps", "--target", site], check=True)
    for program in PROGRAMS:
        (base / program.stem).mkdir()
        shutil.copy(program, base / program.stem)
    call = [sys.executable, "-c", EACH, *(base / p.stem / p.name for p in PROGRAMS)]
    env = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(call, cwd=base, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert Path(said["fedcore"]).is_relative_to(site), "the repository's package was imported"
    return said


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_a_program_of_at_most_25_lines_does_what_it_says(program, said):
    assert len(program.read_text().splitlines()) <= 25
    assert not said[program.stem], said[program.stem]


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
    reproduce.command()
    assert written.getvalue().split() == ["✓".encode()]


def test_a_wheel_holds_every_file_of_the_package():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for name in ("fedcore", "fedbook"):
        package = ROOT / name
        named = {f for pattern in settings["package-data"][name] for f in package.glob(pattern) if f.suffix != ".py"}
        files = {f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
        assert {f for f in files if f.suffix != ".py"} == named
        assert all((f.parent / "__init__.py").exists() for f in files if f.suffix == ".py")
        assert (package / "py.typed" in named) == (name == "fedcore")
