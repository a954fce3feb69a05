"""Memory that a run frees and takes again stays with the process until the run ends."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.engine import heap

resource = pytest.importorskip("resource", reason="counts of page faults are Unix's")
needs_glibc = pytest.mark.skipif(heap._library() is None, reason="glibc with its own settings only")
MB = 2**20


def resident():
    """Bytes of this process that are in memory."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS:"))
    return 1024 * int(line.split()[1])


def freed(size):
    """How much more memory this process holds after it filled and freed so many bytes."""
    before = resident()
    block = torch.ones(size, dtype=torch.uint8)
    assert resident() - before > 0.9 * size
    del block
    return resident() - before


@needs_glibc
def test_freed_memory_is_kept_within_a_block_and_within_the_outer_of_two_and_given_back_after_it():
    outside, size = resident(), 200 * MB
    with heap.keeping_freed():
        with heap.keeping_freed():
            assert freed(size) > 0.9 * size
        assert resident() - outside > 0.9 * size
    assert resident() - outside < 0.3 * size
    assert freed(size) < 0.1 * size


@needs_glibc
def test_a_run_takes_its_matrices_from_the_system_once():
    """Of 36 MB, more than glibc keeps by itself: each of FedProx's steps would take several of them anew."""
    x, y = np.ones((200, 45_000), dtype=np.float32), np.arange(200) % 2
    fed = fc.federation((x, y), 100, fc.IID(), torch.nn.Linear(45_000, 2, bias=False), seed=0)
    matrix, faults = 4 * 100 * fed.d, []

    def count(r, y):
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return {}

    fc.simulate(fc.FedProx(1.0), fed, rounds=6, lr=1e-7, local_steps=4, batch_size=1, probes=[count], eval_every=1)
    taken = np.diff(faults)[2:] * resource.getpagesize()
    assert taken.sum() < 4 * matrix, f"{taken / matrix} matrices were taken anew in the last rounds, once about 18 each"


@needs_glibc
@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_the_allocator_stands(monkeypatch, name):
    monkeypatch.setenv(name, "glibc.malloc.trim_threshold=131072")
    assert heap._library.__wrapped__() is None
