"""Own data and an own network: texts of symbols, and a GRU."""

import numpy as np
import torch
from torch import Tensor, nn

import fedcore as fc


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(20, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0][:, -1])


rng = np.random.default_rng(0)
x = rng.integers(0, 20, (400, 6))
fed = fc.federation((x, x[:, -1] // 5), clients=8, model=lambda s, c: Reader(), layout="text")
history = fc.simulate(fc.FedAvg(), fed, rounds=12, cohort=4, lr=1.0, progress=False)
assert history.final("accuracy") > 0.5
net = fed.module(history.params)
assert net(torch.tensor(x[:3])).shape == (3, 4)
