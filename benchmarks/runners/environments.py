"""An environment for each peer: a venv and what pip finds, under one folder.

    python benchmarks/runners/environments.py ~/.cache/fedcore/peers [fedjax pfl fedlab fluke flower blazefl flsim
        flsimulator]

Peers on PyTorch see this interpreter's packages too (one line in a .pth file), so that all of them run the same torch
as fedcore; what pip installs for a peer comes before it.  FedJAX needs the versions of its last release's time.  Two
peers need another Python, which has to be on the path as pythonX.Y, and a torch of their own: BlazeFL's code has the
syntax of 3.12, FLSim's settings are refused by 3.11 and later.  FL-Simulator is no package: its repository is cloned.
A peer that cannot be installed leaves `NAME/failed.txt` with pip's last words.
"""

from __future__ import annotations

import re
import shutil
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
    "blazefl": ["blazefl[contrib,reproducibility]==2.0.3", "torch"],
    "flsim": ["flsim==0.1.0", "torch", "torchvision", "numpy<2"],
    "flsimulator": [],
}
# peer: its repository and the commit that is run
CLONED = {
    "flsimulator": ("https://github.com/woodenchild95/FL-Simulator", "653ebb565e8b035138bf43326ca30e57a472acf2"),
}
PYTHONS = {"blazefl": "3.12", "flsim": "3.10"}
PACKAGES = {name: name for name in PEERS} | {"fluke": "fluke-fl", "flower": "flwr"}


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
    if peer in PYTHONS:
        other = shutil.which(f"python{PYTHONS[peer]}")
        if other is None:
            return f"no python{PYTHONS[peer]} on the path"
        made = subprocess.run([other, "-m", "venv", "--clear", str(folder / peer)], capture_output=True, text=True)
        if made.returncode:
            return f"no python{PYTHONS[peer]} on the path that makes an environment"
    else:
        venv.create(folder / peer, with_pip=True, clear=True)
    own = python(folder, peer)
    if peer != "fedjax" and peer not in PYTHONS:
        where = [str(own), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
        (site / "fedcore-torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    commands = [[str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS[peer]]]
    if peer in CLONED:
        if shutil.which("git") is None:
            return "no git on the path"
        url, commit = CLONED[peer]
        checkout = str(folder / peer / "checkout")
        commands = [["git", "clone", "--quiet", url, checkout], ["git", "-C", checkout, "checkout", "--quiet", commit]]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failed.write_text(last_words(done.stderr))
            return failed.read_text()
    (folder / peer / "installed.txt").write_text("\n".join(PEERS[peer]) + "\n")
    return ""


if __name__ == "__main__":
    for name in sys.argv[2:] or PEERS:
        print(name, make(Path(sys.argv[1]), name) or "is there", flush=True)
