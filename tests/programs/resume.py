"""A run that is killed goes on from its last checkpoint, to the bit."""

import torch

import fedcore as fc


def run(rounds: int, folder: str | None = None, fails: int | None = None) -> fc.History:
    def watch(t: int, metrics: dict[str, float]) -> bool:
        if t == fails:
            raise KeyboardInterrupt
        return False

    fed = fc.federation("digits", clients=6, model="logistic")
    settings = {"cohort": 3, "lr": 0.1, "local_steps": 2, "progress": False}
    return fc.simulate(fc.SCAFFOLD(), fed, rounds=rounds, checkpoint_dir=folder, on_evaluate=watch, **settings)


try:
    run(6, "checkpoints", fails=4)
except KeyboardInterrupt:
    print("killed in round 4")
assert torch.equal(run(6, "checkpoints").params, run(6).params)
