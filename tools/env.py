"""Make `.venv` from requirements.txt, or bring it up to date; says nothing when there is nothing to do.

Run with the Python that the environment shall have. Only the standard library, and no syntax that an old Python
cannot read: the message for a Python that is too old must still appear.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".ready"


def main():
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"{sys.executable} is Python {version}; this needs 3.11 or newer: PYTHON=python3.12 make book")
    if made_for() != version:
        print(f"making .venv with Python {version}", flush=True)
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    # Contents, not times: a checkout touches files. The folder belongs to it because `-e .` points there.
    sources = (ROOT / "requirements.txt", ROOT / "pyproject.toml")
    wanted = hashlib.sha256(b"\0".join([str(ROOT).encode(), *(f.read_bytes() for f in sources)])).hexdigest()
    if not STAMP.exists() or STAMP.read_text() != wanted:
        print("installing requirements.txt (some minutes the first time)", flush=True)
        run(str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-r", "requirements.txt")
        STAMP.write_text(wanted)


def made_for():
    """The Python version of the environment that stands there, or None when there is none that runs."""
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
    main()
