"""What a module of the user's own costs: `class Net(nn.Module)` beside the same layers as `nn.Sequential`, and beside
one client after another.  Ratios of one run, medians of several rounds; `python benchmarks/modules.py OUT.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedcore as fc
from fedcore.checkpoint import atomic
from fedcore.experiments import provenance

COHORT, BATCH, STEPS, CLIENTS = 10, 20, 20, 20


class MLP(nn.Module):
    """`models.mlp` as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(784, 200), nn.Linear(200, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))


class CNN(nn.Module):
    """`models.femnist_cnn` as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        plain = fc.models.build("femnist_cnn", (1, 28, 28), 62, seed=0)
        self.conv1, self.conv2 = (m for m in plain if isinstance(m, nn.Conv2d))
        self.linear = nn.ModuleList(m for m in plain if isinstance(m, nn.Linear))
        self.pool = [m for m in plain if isinstance(m, nn.MaxPool2d)]

    def forward(self, x: Tensor) -> Tensor:
        for conv, pool in zip((self.conv1, self.conv2), self.pool, strict=True):
            x = F.max_pool2d(F.relu(conv(x)), pool.kernel_size)
        x = torch.flatten(x, 1)
        for layer in self.linear[:-1]:
            x = F.relu(layer(x))
        return self.linear[-1](x)


class Transformer(nn.Module):
    """Attention over the rows of an image: no rule knows it, `torch.vmap` takes it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.qkv, self.mix = nn.Linear(28, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.squeeze(1))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out((x + self.mix(F.scaled_dot_product_attention(q, k, v))).mean(1))


def data(classes: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Random images; what they show does not matter here."""
    draw = np.random.default_rng(0)
    n = CLIENTS * 60
    x, y = draw.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n) % classes
    return (x, y), (x[:100], y[:100])


def seconds(make: Callable[..., nn.Module] | str, classes: int, path: str, rounds: int) -> tuple[float, str]:
    """Median seconds of a round, and the path that ran."""
    fed = fc.federation(data(classes), CLIENTS, model=make, path=path)
    settings = {"cohort": COHORT, "local_steps": STEPS, "batch_size": BATCH, "lr": 0.01}
    state, times = fc.start(fc.FedAvg(), fed), []
    for t in range(rounds + 1):
        begin = time.perf_counter()
        state, _ = fc.one_round(fc.FedAvg(), fed, state, t, **settings)
        times.append(time.perf_counter() - begin)
    return float(np.median(times[1:])), fed.engine.chosen(fed.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for name, own, plain, classes in (
        ("MLP", MLP, "mlp", 10),
        ("FEMNIST CNN", CNN, "femnist_cnn", 62),
        ("attention", Transformer, None, 10),
    ):
        fast, path = seconds(lambda shape, classes, own=own: own(), classes, "auto", given.rounds)
        slow, _ = seconds(lambda shape, classes, own=own: own(), classes, "sequential", given.rounds)
        row = {"module": name, "path": path, "speed over one client after another": slow / fast}
        if plain:
            row["time over nn.Sequential"] = fast / seconds(plain, classes, "auto", given.rounds)[0]
        rows.append(row)
        print(row, flush=True)
    result = {"rows": rows, "threads": given.threads, "cohort": COHORT, "batch": BATCH, "local steps": STEPS}
    with atomic(given.out) as f:
        f.write(json.dumps(result | {"run": provenance.machine(None)}, indent=1).encode())


if __name__ == "__main__":
    main()
