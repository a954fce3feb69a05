"""An environment for each peer: a venv and what pip finds, under one folder.

    python benchmarks/runners/environments.py ~/.cache/fedcore/peers [fedjax pfl fedlab fluke flower]

Peers on PyTorch see this interpreter's packages too (one line in a .pth file), so that all of them run the same torch
as fedcore; what pip installs for a peer comes before it.  FedJAX needs the versions of its last release's time.
A peer that cannot be installed leaves `NAME/failed.txt` with pip's last words.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PEERS: dict[str, list[str]] = {
    "fedjax": ["fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "numpy<2", "scipy<1.13"],
    "pfl": ["pfl[pytorch]"],
    "fedlab": ["fedlab"],
    "fluke": ["fluke-fl"],
    "flower": ["flwr[simulation]"],
}
PACKAGES = {"fedjax": "fedjax", "pfl": "pfl", "fedlab": "fedlab", "fluke": "fluke-fl", "flower": "flwr"}


def python(folder: Path, peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return folder / peer / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def last_words(stderr: str) -> str:
    """The end of what a program complained about, without the folders of this machine."""
    return re.sub(r"(?<![:./\w])/[\w./+-]*/", "", " | ".join(stderr.strip().splitlines()[-3:]))[-600:]


def make(folder: Path, peer: str) -> str:
    """Make a peer's environment where there is none; the reason why there is none, or ""."""
    failed = folder / peer / "failed.txt"
    if failed.exists():
        return failed.read_text()
    if (folder / peer / "installed.txt").exists():
        return ""
    venv.create(folder / peer, with_pip=True, clear=True)
    own = python(folder, peer)
    if peer != "fedjax":
        where = [str(own), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
        (site / "fedcore-torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS[peer]]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        failed.write_text(last_words(done.stderr))
        return failed.read_text()
    (folder / peer / "installed.txt").write_text("\n".join(PEERS[peer]) + "\n")
    return ""


if __name__ == "__main__":
    for name in sys.argv[2:] or PEERS:
        print(name, make(Path(sys.argv[1]), name) or "is there", flush=True)
