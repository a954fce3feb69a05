"""What a round costs does not depend on how many clients are registered."""

from __future__ import annotations

import functools
import tracemalloc
from dataclasses import dataclass

import helpers as h
import pytest
import torch
from battery import METHODS, contrastive
from torch.utils._python_dispatch import TorchDispatchMode

import fedcore as fc
from fedcore import run

RUN = {"rounds": 4, "cohort": 3, "batch_size": 2, "eval_every": 4}


@dataclass(frozen=True)
class Shared:
    """Clients of 4 samples each, drawn with replacement: the data set is the same for any number of clients."""

    overlapping = True

    def split(self, labels, clients, rng, owner):
        return list(rng.integers(0, len(labels), (clients, 4)))


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that an operation made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if not function._schema.is_mutable:  # written in place: no new tensor
            made = [t for t in (out if isinstance(out, tuple | list) else [out]) if isinstance(t, torch.Tensor)]
            self.numel = max([self.numel, *(t.numel() for t in made)])
        return out


@functools.cache
def registered(n: int) -> fc.Federation:
    """n clients; 40,000 of them take longer to register than the rounds of a method."""
    x, y = h.images(300, (1, 4, 4), 3)
    return fc.federation(((x, y), (x[:10], y[:10])), clients=n, partition=Shared(), model=contrastive, device="cpu")


def costs(method: fc.Method, n: int, monkeypatch, **options) -> tuple[int, int]:
    """Bytes that NumPy and Python allocate in a round, and the numbers of its largest new tensor."""
    fed, seen, plain = registered(n), [], run.play

    def spy(*given):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        with Largest() as largest:
            out = plain(*given)
        seen.append((tracemalloc.get_traced_memory()[1] - before, largest.numel))
        return out

    tracemalloc.start()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(run, "play", spy)
            fc.simulate(method, fed, **{**RUN, **options})
    finally:
        tracemalloc.stop()
    return min(size for size, _ in seen[1:]), max(numel for _, numel in seen[1:])  # the first round fills caches


CASES = [(m, {}) for m in METHODS if not m.full_participation]
CASES += [(fc.FedAvg(), {"local_steps": 3}), (fc.FedAvg(), {"batch_size": None}), (fc.FedAvg(), {"momentum": 0.5})]


@pytest.mark.parametrize(("method", "options"), CASES, ids=str)
def test_a_round_allocates_nothing_that_grows_with_the_registered_clients(method, options, monkeypatch):
    few, many = (costs(method, n, monkeypatch, **options) for n in (100, 40_000))
    assert many[0] - few[0] < 20_000, "half a byte for each of 40,000 clients"
    assert many[1] == few[1]


def test_a_client_at_home_keeps_its_list_of_samples_and_little_else():
    """32 bytes for the numbers of its 4 samples, 8 for where they end, 8 for how many it has."""

    def kept(n: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        fed = registered.__wrapped__(n)
        fc.simulate(fc.FedAvg(), fed, **RUN)
        return tracemalloc.get_traced_memory()[0] - before

    kept(100)  # what is made once
    tracemalloc.start()
    try:
        few, many = kept(100), kept(10_100)
    finally:
        tracemalloc.stop()
    assert many - few <= 50 * 10_000
