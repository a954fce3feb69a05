"""fedcore: `--variant auto`, `batched` (through autograd) or `bfloat16` (auto, with convolutions in that type)."""

import numpy as np
import torch
from task import BATCH, LR, Clock, report, start

import fedcore as fc
from fedcore import models

args, task = start()
clock = Clock()


class Timed(fc.FedAvg):
    """FedAvg that looks at the clock when a round has been averaged."""

    def aggregate(self, r, y):
        out = super().aggregate(r, y)
        clock()
        return out


owner = np.zeros(len(task.y), int)
for client, part in enumerate(task.parts):
    owner[part] = client
arrays = {"train_images": task.x, "train_labels": task.y, "test_images": task.test_x, "test_labels": task.test_y}
options = {"compute": torch.bfloat16} if args.variant == "bfloat16" else {"path": args.variant}
model = {"cnn": "femnist_cnn"}.get(args.model, args.model)
options |= {"partition": fc.ByOwner(), "model": model, "start": models.flatten(task.net()), "device": "cpu"}
fed = fc.federation({**arrays, "train_owner": owner}, **options)
rounds = args.rounds + args.warmup
fed.evaluate(fed.x0)
clock.ends.clear(), clock()
history = fc.simulate(
    Timed(),
    fed,
    rounds=rounds,
    cohort=task.cohorts.shape[1],
    lr=LR,
    batch_size=BATCH,
    eval_every=rounds,
    progress=False,
)
assert np.array_equal(history.cohorts, task.cohorts[:rounds]), "other clients took part"

report(args, task, clock, history.final())
