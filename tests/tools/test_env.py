"""The environment: the lock is what requirements.txt allows, every file by its hash, and it is used where it fits."""

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import env

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements():
    """The lines of requirements.txt."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and line[0] not in "#-"]


def test_every_requirement_is_locked_at_a_version_that_it_allows():
    locked = [Requirement(line) for line in re.findall(r"^\S+==\S+", LOCK, re.M)]
    for one in requirements():
        versions = [str(pin.specifier)[2:] for pin in locked if canonical(pin.name) == canonical(one.name)]
        assert versions, f"{one} is not in the lock; make lock"
        assert all(one.specifier.contains(version) for version in versions), f"{one}: {versions}; make lock"


def test_what_is_imported_is_required():
    """An optional import of a script counts as well."""
    required = {canonical(name) for one in requirements() for name in (one.name, *one.extras)}
    owners = {module: {*map(canonical, names)} for module, names in metadata.packages_distributions().items()}
    imported = set()
    for folder in ("fedcore", "fedbook", "tools", "tests", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
                imported |= {name.partition(".")[0] for name in names}
    packages = {module for module in imported - OTHERS if module in owners and "fedcore" not in owners[module]}
    missing = {module for module in packages if not owners[module] & required}
    assert not missing, f"imported, but not in requirements.txt: {missing}"


# Simulators that benchmarks/peers.py is timed against, where they are installed.
OTHERS = {"blazefl", "fedjax", "fedlab", "fl_sim", "flsim", "flwr", "fluke", "jax", "pfl", "setuptools", "tools"}


def test_every_locked_package_has_hashes_and_no_address():
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert len(entries) > 150
    for entry in entries:
        assert re.match(r"[\w.\[\]-]+==\S+( ; .*)? \\\n    --hash=sha256:[0-9a-f]{64}", entry), entry[:80]
    assert "://" not in LOCK


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A place for an environment, where pip answers as a test says: `{file: (status, a hash differs)}`."""
    for name in (env.BOUNDS, env.LOCK, "pyproject.toml"):
        (tmp_path / name).write_text(name)
    asked, answers = [], dict.fromkeys((env.BOUNDS, env.LOCK, "."), (0, False))
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(env, "ROOT", tmp_path)
    monkeypatch.setattr(env, "STAMP", tmp_path / ".venv" / ".ready")
    monkeypatch.setattr(env, "made_for", lambda: ".".join(map(str, env.sys.version_info[:2])))
    monkeypatch.setattr(env, "install", lambda *given: asked.append(given[-1]) or answers[given[-1]])
    monkeypatch.setattr(env, "fits", lambda: True)
    monkeypatch.delenv("REQUIREMENTS", raising=False)
    return asked, answers


def test_the_lock_is_installed_once_where_it_fits_and_elsewhere_the_bounds(place, monkeypatch):
    asked, _ = place
    env.main()
    env.main()
    assert asked == [env.LOCK, "."]  # this package alone, built by what the lock has
    (env.ROOT / env.LOCK).write_text("another")
    env.main()
    assert len(asked) == 4
    monkeypatch.setenv("REQUIREMENTS", env.BOUNDS)
    env.main()
    monkeypatch.delenv("REQUIREMENTS")
    monkeypatch.setattr(env, "fits", lambda: False)
    env.main()
    assert asked[4:] == [env.BOUNDS, env.BOUNDS], "as asked, and elsewhere"


def test_all_that_runs_while_packages_are_installed_is_named_exactly():
    """Else whoever can change an index or a tag runs code here: tools that build, the lock's writer, actions."""
    assert re.search(r"^setuptools==", LOCK, re.M)
    assert "==" in env.UV
    workflow = (ROOT / ".github/workflows/pages.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", workflow)
    assert len(used) == 6
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used), used
    jobs = r"\n  (?:deploy|# The branch that the launch buttons open.*\n  launch):\n"
    build, deploy, launch = re.split(jobs, workflow)
    assert "write" not in build
    assert "run:" not in deploy
    assert not re.search(r"pip|make|setup-python", launch), "what may push installs nothing"


def test_where_a_package_cannot_be_had_the_bounds_are_installed_but_not_where_a_file_is_another(place, monkeypatch):
    asked, answers = place
    answers[env.LOCK] = (1, False)
    env.main()
    assert asked == [env.LOCK, env.BOUNDS]
    env.STAMP.unlink()
    for another, wanted in ((True, ""), (False, env.LOCK)):
        answers[env.LOCK] = (1, another)
        monkeypatch.setenv("REQUIREMENTS", wanted)
        with pytest.raises(SystemExit, match=r"requirements.lock cannot be installed here; REQUIREMENTS="):
            env.main()
    assert asked[2:] == [env.LOCK, env.LOCK]
    assert not env.STAMP.exists()
