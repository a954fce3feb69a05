"""fedcore: `--variant auto`, `batched` (through autograd), `bfloat16` (auto, convolutions in that type), or `users`
(auto, evaluated after each round).
"""

import numpy as np
import torch
from task import Clock, report, start

import fedcore as fc
from fedcore import models

args, task = start()
users, clock = args.variant == "users", Clock()


class Timed(fc.FedAvg):
    """FedAvg that looks at the clock when a round has been averaged, unless all rounds are evaluated."""

    def aggregate(self, r, y):
        out = super().aggregate(r, y)
        if not users:
            clock()
        return out


owner = np.zeros(len(task.y), int)
for client, part in enumerate(task.parts):
    owner[part] = client
arrays = {"train_images": task.x, "train_labels": task.y, "test_images": task.test_x, "test_labels": task.test_y}
options = {"path": "auto" if users else args.variant}
if args.variant == "bfloat16":
    options = {"compute": torch.bfloat16}
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
    **task.settings,
    eval_every=1 if users else rounds,
    on_evaluate=(lambda t, _: clock() if t else None) if users else None,
    progress=False,
)
assert np.array_equal(history.cohorts, task.cohorts[:rounds]), "other clients took part"

report(args, task, clock, history.final())
