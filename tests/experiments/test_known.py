"""Numbers that others published for FedAvg come out of a run of today's code, in their settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import fedcore as fc
from fedbook.documents.definitions import get
from fedbook.results.batch import ResultFolder, standing
from fedbook.studies import training
from fedbook.studies.flower_scaffold import FlowerSCAFFOLD
from fedbook.studies.published import DealtBySeed
from fedcore.data import arrays, readers

STORED = ResultFolder(Path(__file__).resolve().parents[2] / "results", "desk", "known-mlp")


@pytest.mark.skipif(
    not readers.found("mnist", arrays.data_root()),
    reason="needs MNIST: mnist.npz in the data root (FEDCORE_DATA, or else ~/.cache/fedcore)",
)
@pytest.mark.parametrize("name", ["IID round 10", "two shards round 10"])
def test_one_run_is_as_near_to_the_published_one_as_two_runs_are_to_each_other(name):
    """Half a minute each.  Two runs differ by sqrt(2) times the standard deviation of one, which ten stored runs
    estimate; 95 % of such differences are within `limit`: 0.4 points for equal clients, 17 for two shards."""
    (cell,) = (cell for cell in get("known-mlp").cells("desk") if cell.name == name)
    several = np.array([run["final"] for run in standing(STORED, cell).runs.values()])
    limit = stats.t.ppf(0.975, len(several) - 1) * np.sqrt(2) * several.std(ddof=1)
    found = training.simulate(cell.spec, 0, None, "cpu")["final"]
    assert abs(found - cell.source) <= limit, f"{found:.2f} %, published {cell.source:.2f} %, limit {limit:.2f}"


def test_a_published_seed_deals_the_published_clients():
    """Sizes by an independent program for 5,000 samples of ten labels, as CIFAR-10 has them.  Which samples stand
    where does not matter for them."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    flower = DealtBySeed(0.5, 42, legacy=False).split(labels, 10, None, None)
    assert [len(part) for part in flower] == [1785, 5453, 5426, 5263, 7013, 5062, 5051, 6092, 5142, 3713]
    older = DealtBySeed(0.5, 0, legacy=True).split(labels, 10, None, None)
    assert (min(map(len, older)), max(map(len, older))) == (3688, 8078)
    assert all(np.array_equal(np.sort(np.concatenate(parts)), np.arange(50_000)) for parts in (flower, older))


def test_flowers_scaffold_takes_the_steps_of_its_program():
    """The program: torch's own SGD with momentum, and the correction after its step.  Three quadratics, four rounds."""
    draw, K, lr, beta, decay = np.random.default_rng(0), 5, 0.05, 0.9, 0.01
    M = draw.normal(size=(3, 4, 4))
    A, b = M @ M.transpose(0, 2, 1) / 4 + np.eye(4), draw.normal(size=(3, 4))
    x = torch.ones(4, dtype=torch.float64)
    c, c_i = x.clone(), [x.clone() for _ in range(3)]
    for _ in range(4):
        ends, new = [], []
        for A_i, b_i, control in zip(torch.as_tensor(A), torch.as_tensor(b), c_i, strict=True):
            y = torch.nn.Parameter(x.clone())
            sgd = torch.optim.SGD([y], lr=lr, momentum=beta, weight_decay=decay)
            for _ in range(K):
                sgd.zero_grad()
                ((y - b_i) @ A_i @ (y - b_i) / 2).backward()
                sgd.step()
                y.data -= lr * (c - control)
            ends.append(y.detach())
            new.append(control - c + (x - y.detach()) / (K * lr))
        c = c + torch.stack([after - before for after, before in zip(new, c_i, strict=True)]).mean(0)
        x, c_i = torch.stack(ends).mean(0), new
    fed = fc.quadratic(A, b, x0=np.ones(4))
    history = fc.simulate(FlowerSCAFFOLD(beta), fed, rounds=4, local_steps=K, lr=lr, weight_decay=decay)
    torch.testing.assert_close(history.params, x, rtol=1e-12, atol=1e-12)
