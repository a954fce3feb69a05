"""What every runner shares: the work to do, read from one .npz, and the line that it prints.

    python run_NAME.py TASK.npz --model mlp --rounds 6 --warmup 2 --threads 2

One round of the task: 10 of 100 clients, one local epoch of plain SGD each from the server's model, then the mean of
their models.  Needs NumPy alone (PyTorch for `net` and `accuracy`), so that it loads in any peer's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

import numpy as np

LR, BATCH = 0.1, 32


class Task:
    """x, y, test_x, test_y (float32 images `[N, C, h, w]`), parts (a client's samples each), cohorts, params.

    settings: of the local training, by the names of `fedcore.simulate`.
    """

    def __init__(self, file: str, model: str) -> None:
        with np.load(file) as z:
            mean, std = z["statistics"]
            self.x, self.test_x = ((z[k].astype(np.float32) - mean) / std for k in ("x", "test_x"))
            self.y, self.test_y = z["y"], z["test_y"]
            self.parts = np.split(z["order"], np.cumsum(z["sizes"])[:-1])
            self.cohorts = z["cohorts"]
            self.params = [z[k] for k in sorted(z) if k.startswith(f"{model}.")]
            self.settings = json.loads(str(z["settings"]))
        self.model = model

    def net(self) -> Any:
        """The model in PyTorch, at the initial parameters."""
        import torch
        from torch import nn

        if self.model == "mlp":
            layers = [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
        elif self.model == "lenet":
            layers = [
                *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
            ]
        else:
            layers = [
                *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
                *(nn.Flatten(), nn.Linear(320, 10)),
            ]
        net = nn.Sequential(*layers)
        with torch.no_grad():
            for p, start in zip(net.parameters(), self.params, strict=True):
                p.copy_(torch.as_tensor(start))
        return net

    def tensors(self) -> list[tuple[Any, Any]]:
        """Each client's samples as tensors."""
        import torch

        return [(torch.as_tensor(self.x[part]), torch.as_tensor(self.y[part])) for part in self.parts]

    def accuracy(self, net: Any) -> float:
        """Of a PyTorch model on the test images."""
        import torch

        with torch.no_grad():
            return float((net(torch.as_tensor(self.test_x)).argmax(1) == torch.as_tensor(self.test_y)).double().mean())


@cache
def resident(file: str, model: str) -> tuple[list[tuple[Any, Any]], Any]:
    """What a worker process keeps between the clients that it is given: their data and a network."""
    task = Task(file, model)
    return task.tensors(), task.net()


def batches(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """One epoch of shuffled mini-batches: the loader for peers that leave it to their user."""
    import torch

    for part in torch.randperm(len(y)).split(BATCH):
        yield x[part], y[part]


def start() -> tuple[argparse.Namespace, Task]:
    """The arguments and the task; threads are fixed from here on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--model", choices=("mlp", "cnn", "lenet"), required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variant", default="")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(args.threads)
        torch.manual_seed(0)
    return args, Task(args.file, args.model)


class Clock:
    """Times of the ends of rounds; call it when a round is done."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def __call__(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())


def report(args: argparse.Namespace, task: Task, clock: Clock, accuracy: float) -> None:
    """The runner's last line."""
    each = np.diff(clock.ends)
    assert len(each) == args.rounds + args.warmup, f"{len(each)} rounds were timed"
    seconds = median(each[args.warmup :])
    samples = np.mean([sum(len(task.parts[i]) for i in cohort) for cohort in task.cohorts])
    told = {"seconds_per_round": seconds, "samples_per_second": samples / seconds, "accuracy": accuracy}
    print("\n" + json.dumps({**told, "load": os.getloadavg()[0]}), flush=True)
