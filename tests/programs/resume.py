"""A run whose process is killed goes on from its last checkpoint, to the bit."""

import os
import signal
import subprocess
import sys

import torch

import fedcore as fc


def run(folder: str | None = None, dies: int | None = None) -> fc.History:
    def watch(t: int, metrics: dict[str, float]) -> bool:
        return os.kill(os.getpid(), signal.SIGTERM) is None if t == dies else False

    fed = fc.federation("digits", clients=6, model="logistic")
    settings = {"cohort": 3, "lr": 0.1, "local_steps": 2, "progress": False}
    return fc.simulate(fc.SCAFFOLD(), fed, rounds=6, checkpoint_dir=folder, on_evaluate=watch, **settings)


if "dies" in sys.argv:
    run("checkpoints", dies=4)
assert subprocess.run([sys.executable, __file__, "dies"]).returncode, "it was not killed"
assert torch.equal(run("checkpoints").params, run().params)
