"""Numbers that others published for FedAvg come out of a run of today's code, in their settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedbook.documents.definitions import get
from fedbook.results.batch import ResultFolder, standing
from fedbook.studies import training
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
