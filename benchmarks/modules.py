"""What a module of the user's own costs: `class Net(nn.Module)` beside the same layers as `nn.Sequential`, and beside
one client after another.  Ratios of one run, medians of several rounds that take turns; `python benchmarks/modules.py
OUT.json`.

The LSTM in float32 cannot gain much on one thread: a step of this cohort are 11.8 GFLOP, which oneDNN's kernel computes
one client after another at more than half of what the processor can.  The same LSTM in float64, and GRUs, have no such
kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import arguments, record
from torch import Tensor, nn

import fedcore as fc

COHORT, BATCH, STEPS, TEXT_STEPS, CLIENTS = 10, 20, 20, 4, 20


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


class CharGRU(nn.Module):
    """`models.CharLSTM` with GRUs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(80, 8), nn.GRU(8, 100, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(100, 80)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.gru(self.embedding(x))[0][:, -1])


def data(classes: int, text: bool) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Random images, or texts of 80 symbols; what they show does not matter here."""
    draw = np.random.default_rng(0)
    n = CLIENTS * 60
    x = draw.integers(0, 80, (n, 80)) if text else draw.integers(0, 256, (n, 28, 28), np.uint8)
    y = np.arange(n) % classes
    return (x, y), (x[:100], y[:100])


def seconds(runs: list[tuple[Callable[..., nn.Module] | str, str]], classes: int, rounds: int, **more: Any) -> Any:
    """Median seconds of a round of each (model, path), in turns, and the path that the first one takes."""
    text = more.get("layout") == "text"
    source, steps = data(classes, text), TEXT_STEPS if text else STEPS
    feds = [fc.federation(source, CLIENTS, model=make, path=path, **more) for make, path in runs]
    settings = {"cohort": COHORT, "local_steps": steps, "batch_size": BATCH, "lr": 0.01}
    states, times = [fc.start(fc.FedAvg(), fed) for fed in feds], [[] for _ in feds]
    for t in range(rounds + 1):
        for k, fed in enumerate(feds):
            begin = time.perf_counter()
            states[k], _ = fc.one_round(fc.FedAvg(), fed, states[k], t, **settings)
            times[k].append(time.perf_counter() - begin)
    return [float(np.median(some[1:])) for some in times], feds[0].engine.chosen(feds[0].device)


def main() -> None:
    args = arguments(__doc__, 5, threads=torch.get_num_threads())
    rows, text, double = [], {"layout": "text"}, {"dtype": torch.float64}
    for name, own, plain, classes, more in (
        ("MLP", MLP, "mlp", 10, {}),
        ("FEMNIST CNN", CNN, "femnist_cnn", 62, {}),
        ("attention", Transformer, None, 10, {}),
        ("Shakespeare LSTM", fc.models.CharLSTM, None, 80, text),
        ("Shakespeare LSTM in float64", fc.models.CharLSTM, None, 80, text | double),
        ("Shakespeare GRU", CharGRU, None, 80, text),
    ):
        make = lambda shape, classes, own=own: own()  # noqa: E731
        runs = [(make, "auto"), (make, "sequential"), *([(plain, "auto")] if plain else [])]
        (fast, slow, *others), path = seconds(runs, classes, args.repeats, **more)
        row = {"module": name, "path": path, "speed over one client after another": slow / fast}
        if others:
            row["time over nn.Sequential"] = fast / others[0]
        row["seconds of a round"] = fast
        rows.append(row)
        print(row, flush=True)
    steps = {"local steps": STEPS, "local steps on texts": TEXT_STEPS}
    record(args, "modules of a user's own", rows, cohort=COHORT, batch=BATCH, **steps)


if __name__ == "__main__":
    main()
