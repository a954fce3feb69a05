"""FL-Simulator: the server and clients of its checkout, one client after another.

`--variant users`: images are flipped and cropped at random, and the server's model is tested on all training and all
test images after each round, as its train.py does; otherwise neither.  Its clip at norm 10 is always there.
"""

import sys
from argparse import Namespace
from pathlib import Path

import torch
from task import Clock, report, start

sys.path.insert(0, str(Path(sys.prefix) / "checkout"))
from server import FedAvg
from utils import get_mdl_params

args, task = start()
users, rounds, clock = args.variant == "users", args.rounds + args.warmup, Clock()


class Rounds(FedAvg):
    """The server with the task's cohorts, looking at the clock after each round."""

    def _activate_clients_(self, t):
        return task.cohorts[t]

    def _test_(self, t, selected_clients):
        if users:
            super()._test_(t, selected_clients)

    def _lr_scheduler_(self):
        super()._lr_scheduler_()
        clock()

    def _save_results_(self):
        pass


work = task.settings
settings = Namespace(
    method="FedAvg", comm_rounds=rounds, total_client=len(task.parts), active_ratio=0.1, seed=20, use_RI=False,
    dataset="CIFAR10" if users else "mnist",  # the name chooses between random copies and the images as they are
    local_learning_rate=work["lr"], lr_decay=work.get("lr_decay", 1.0), weight_decay=work.get("weight_decay", 0.0),
    batchsize=work["batch_size"], local_epochs=work.get("local_epochs", 1), global_learning_rate=1.0,
)  # fmt: skip
data = Namespace(
    client_x=[task.x[part] for part in task.parts],
    client_y=[task.y[part].reshape(-1, 1) for part in task.parts],
    test_x=task.test_x,
    test_y=task.test_y.reshape(-1, 1),
)
net = task.net()
server = Rounds(torch.device("cpu"), task.net, net, get_mdl_params(net), data, "FedAvg", settings)
clock.ends.clear(), clock()
server.train()
report(args, task, clock, task.accuracy(net))
