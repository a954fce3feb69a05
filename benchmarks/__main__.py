"""How fast training is here: `python -m benchmarks [FOLDER]` writes FOLDER/speed.json and FOLDER/speed.svg.

    python -m benchmarks [results/benchmarks] [--threads 2] [--repeats 5] [--environments FOLDER] [--quick]

desk: whole rounds of the networks of the profile desk, as ratios to plain SGD and as shares of the fastest known
kernels of their layers, with the machine's peak (`desk.py`).  peers: FedAvg here and in other simulators, which are
installed at the first call, into ~/.cache/fedcore/peers if no other folder is given (`peers.py`).  The picture shows
the shares.  About 40 minutes on two cores that do nothing else; quick: ten, with fewer samples and repeats, and figures
for a look alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def measured(script: str, *arguments: str) -> dict:
    """The JSON that a benchmark writes; its exit status, if that is not 0, ends this program."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run([sys.executable, str(HERE / script), str(out), *arguments], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        return json.loads(out.read_text())


def main() -> None:
    """Measure both, write the JSON and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE.parent / "results" / "benchmarks")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--environments", default=str(Path.home() / ".cache" / "fedcore" / "peers"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    from fedbook.results import provenance
    from fedbook.show import engine_pictures

    provenance.check_committed(args.folder / "speed.json")
    both = ("--threads", args.threads, "--repeats", "1" if args.quick else args.repeats)
    quick, few = (("--quick",), ("--rounds", "2")) if args.quick else ((), ())
    found = {
        "desk": measured("desk.py", *both, *quick),
        "peers": measured("peers.py", *both, *few, "--environments", args.environments),
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "speed.json").write_text(json.dumps(found, indent=1) + "\n")
    engine_pictures.yardstick(found["desk"])[0].savefig(args.folder / "speed.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
