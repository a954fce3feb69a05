"""A name leads to one thing: no module of the package is hidden, no script stands beside a folder of its name, and the
tests that a page names are there."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedcore
from fedbook.verdicts import claims
from fedbook.verdicts.findings import findings

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(module.name for module in pkgutil.walk_packages(fedcore.__path__, "fedcore."))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_what_its_name_gives(name):
    module = importlib.import_module(name)
    package, _, last = name.rpartition(".")
    assert getattr(sys.modules[package], last) is module, f"{name} is hidden by another object of that name"


def test_no_file_stands_beside_a_folder_of_its_name():
    folders = {path.parent for path in ROOT.rglob("*.py") if not {".venv", "_build"} & set(path.parts)}
    assert not [folder.name for folder in folders if folder.with_suffix(".py").exists()]


def test_no_test_file_imports_another():
    """What several share stands in files of its own, so that each can be run, moved and deleted alone."""
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in getattr(node, "names", [])] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = [name for name in names if name.split(".")[-1].startswith("test_")]
            assert not wrong, f"{file.name} imports {wrong[0]}; move what they share to helpers, battery or networks"


def test_every_test_that_a_page_a_finding_or_a_claim_names_is_there():
    known = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests = re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
        known |= {f"{path.relative_to(ROOT).as_posix()}::{name}" for name in tests}
    page = (ROOT / "book" / "decisions.md").read_text(encoding="utf-8").split("## Does the rule keep its word?")[1]
    lines = re.findall(r"^\| .*$(?!\n\|---)", page, re.M)  # of two tables, without their heads
    named = [re.findall(r"`(tests/\w+/\w+\.py::\w+)`", line) for line in lines]
    assert len(named) >= 15
    assert all(named)
    shown = {finding.shown_by.partition("[")[0] for finding in findings() if "::" in finding.shown_by}
    settled = {claim.settled[2] for claim in claims.every() if claim.settled}
    assert not shown.union(settled, *named) - known


def test_an_old_place_gives_the_new_module_with_a_warning_that_names_it():
    program = """
import importlib, warnings
from fedcore.support.moved import MOVED
for old, new in {**MOVED, "experiments.documents.s000_fedup": "fedbook.documents.s000_fedup"}.items():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module = importlib.import_module(new)
        assert importlib.import_module(f"fedcore.{old}") is module, old
        assert module.__spec__.name == new, f"{new} is no longer known by its own name"
    assert any(f"fedcore.{old} is now {new}" in str(one.message) for one in told), old
from fedcore.experiments import Cell, Table, protocol, show
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
