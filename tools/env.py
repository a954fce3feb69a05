"""Make `.venv`, or bring it up to date; prints nothing if it is up to date.

On Linux x86-64 with Python 3.11 to 3.13 the packages of requirements.lock are installed, checked by their hashes;
elsewhere, and if the package index lacks one of them, the newest packages that requirements.txt allows.
REQUIREMENTS=requirements.txt chooses the latter; with REQUIREMENTS=requirements.lock the program fails if the locked
packages cannot be installed.

`python tools/env.py lock` writes requirements.lock anew from requirements.txt.

Run it with the Python for the environment. This file uses only the standard library and old syntax, so that a Python
that is too old can still print the message.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".ready"
LOCK, BOUNDS = "requirements.lock", "requirements.txt"
UV = "uv==0.13.9"  # the program that writes the lock
LOCKED = ("Linux", "x86_64", (3, 11), (3, 13))


def main():
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"{sys.executable} is Python {version}; this needs 3.11 or newer: PYTHON=python3.12 make book")
    asked = os.environ.get("REQUIREMENTS", "")
    if asked not in ("", LOCK, BOUNDS):
        sys.exit(f"REQUIREMENTS={asked}; use {LOCK} or {BOUNDS}, or leave it out")
    if made_for() != version:
        print(f"making .venv with Python {version}", flush=True)
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    # Compare contents, since a checkout changes times. The folder is included because `-e .` points to it.
    sources = [ROOT / name for name in (BOUNDS, LOCK, "pyproject.toml")]
    parts = [str(ROOT).encode(), asked.encode(), *(f.read_bytes() for f in sources)]
    wanted = hashlib.sha256(b"\0".join(parts)).hexdigest()
    if not STAMP.exists() or STAMP.read_text() != wanted:
        locked = False
        if asked == LOCK or (not asked and fits()):
            print(f"installing {LOCK} (some minutes the first time)", flush=True)
            status, differs = install("--require-hashes", "-r", LOCK)
            if status and (asked or differs):
                sys.exit(f"{LOCK} cannot be installed here; REQUIREMENTS={BOUNDS} goes without it")
            if status:
                print(f"not every package of {LOCK} can be had here; the newest that {BOUNDS} allows:", flush=True)
            locked = not status
        else:
            print(f"installing {BOUNDS} (some minutes the first time)", flush=True)
        # Nothing beyond the lock is installed, so this package is built by the setuptools in the lock.
        last = ["--no-build-isolation", "--no-deps", "-e", "."] if locked else ["-r", BOUNDS]
        if install(*last)[0]:
            sys.exit(f"failed: pip install {' '.join(last)}")
        STAMP.write_text(wanted)


def fits():
    """Whether the lock is for this machine and Python."""
    system, machine, first, last = LOCKED
    return (platform.system(), platform.machine()) == (system, machine) and first <= sys.version_info[:2] <= last


def install(*arguments):
    """Run pip, print its output, and return its status and whether the hash of a file did not match."""
    differs = False
    call = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout:
            print(line, end="", flush=True)
            differs = differs or "DO NOT MATCH THE HASHES" in line
    return pip.returncode, differs


def lock():
    """Rewrite requirements.lock with the newest packages that requirements.txt allows, and the hash of every file."""
    text = (ROOT / BOUNDS).read_text()
    with tempfile.TemporaryDirectory() as folder:
        bounds, tool = Path(folder, BOUNDS), Path(folder, "uv")
        bounds.write_text("".join(line for line in text.splitlines(True) if not line.startswith("-e ")))
        run(str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-q", "--target", str(tool), UV)
        call = [str(tool / "bin" / "uv"), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        options = ["--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header", "--upgrade"]
        run(*call, *options, str(bounds), "-o", str(ROOT / LOCK))


def made_for():
    """The Python version of the existing environment, or None if there is none that works."""
    show = "import sys; print(*sys.version_info[:2], sep='.')"
    try:
        return subprocess.run([str(PYTHON), "-c", show], check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def run(*command):
    status = subprocess.run(command, cwd=ROOT).returncode
    if status:
        sys.exit(f"failed ({status}): {' '.join(command)}")


if __name__ == "__main__":
    lock() if sys.argv[1:] == ["lock"] else main()
