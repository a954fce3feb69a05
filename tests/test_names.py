"""A name leads to one thing: no module of the package is hidden, no script stands beside a folder of its name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import fedcore

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(fedcore.__path__, "fedcore."))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_what_its_name_gives(name):
    module = importlib.import_module(name)
    package, _, last = name.rpartition(".")
    assert getattr(sys.modules[package], last) is module, f"{name} is hidden by another object of that name"


def test_no_file_stands_beside_a_folder_of_its_name():
    folders = {path.parent for path in ROOT.rglob("*.py") if not {".venv", "_build"} & set(path.parts)}
    assert not [folder.name for folder in folders if folder.with_suffix(".py").exists()]
