"""Chunks of a cohort, clients' states in host memory, and memory that does not grow; devices: test_gpu_ready.py."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import helpers as h
import pytest
import torch
from battery import METHODS, both_federations, every_method, make, run, same

import fedcore as fc
from fedcore.engine import Engine
from fedcore.engine.descent import descend
from fedcore.rows import host
from fedcore.support import memory

LOCAL = {"weight_decay": 0.01, "clip": 1.0, "momentum": 0.5, "weighting": "samples"}
REMEMBERING = [m for m in METHODS if m.client_state]


def close(a: fc.History, b: fc.History, tolerance: float) -> None:
    assert a.cohorts == b.cohorts
    for x, y in zip((a.params, *a.state.values()), (b.params, *b.state.values()), strict=True):
        h.close(x, y, tolerance)


# --- chunks -------------------------------------------------------------------------------------------------------


@both_federations
@every_method
def test_a_cohort_in_chunks_gives_what_the_whole_cohort_gives(method, kind, monkeypatch):
    """Client by client in place, and by two, which leaves a chunk of one, from host memory: where rows are and how
    many go together are two independent parts of `rows.rows.Rows`."""
    fed = make(kind)
    options = {"rounds": 2, **LOCAL}
    whole = run(method, fed, **options)
    close(run(method, fed, chunk=1, **options), whole, 1e-11)
    monkeypatch.setattr(memory, "has_own_memory", lambda device: True)  # as if the device had memory of its own
    close(run(method, fed, chunk=2, **options), whole, 1e-11)


@pytest.mark.parametrize(("path", "block", "chunk"), [("sequential", None, 2), ("written", 2, 4)])
@every_method
def test_chunks_of_whole_blocks_give_the_same_to_the_bit(method, path, block, chunk, monkeypatch):
    if isinstance(method, fc.MOON):
        pytest.skip("needs a model with a representation layer")
    monkeypatch.setattr(memory, "has_own_memory", lambda device: True)
    fed = h.network(sizes=(13, 7, 20, 4, 9, 11, 5), dtype=torch.float32, path=path, block=block)
    options = {"cohort": 7, "rounds": 2}  # all clients: each comes again in round 1, with what it left in round 0
    assert same(run(method, fed, **options), run(method, fed, chunk=chunk, **options))


@both_federations
def test_no_more_clients_than_a_chunk_are_computed_together(kind, monkeypatch):
    fed, seen = make(kind), []
    kind = Engine if kind == "network" else fc.Quadratic
    plain = kind.gradient
    monkeypatch.setattr(kind, "gradient", lambda self, Y, *a, **k: seen.append(len(Y)) or plain(self, Y, *a, **k))
    for method in (fc.FedAvg(), fc.SCAFFOLD("I"), fc.STEM(0.4), fc.FedALA()):  # with gradients beside local steps, too
        run(method, fed, cohort=5)
        assert max(seen) == 5
        seen.clear()
        run(method, fed, cohort=5, chunk=2)
        assert max(seen) == 2
        seen.clear()


@pytest.mark.parametrize("block", [None, 2])
def test_a_cohort_too_large_for_memory_is_split_by_itself(block, monkeypatch):
    sizes = (13, 7, 20, 4, 9, 11, 5, 8)
    fed = h.network(sizes=sizes, block=block)
    whole = run(fc.FedAvg(), fed, cohort=8)  # there is room, and no warning
    steps = 3 * 8 * fed.d + (0 if block else 2 * 8 * 4 * fed.engine.width(fed.inputs(fed.x[:2])))
    monkeypatch.setattr(memory, "free", lambda device: (2 * 8 * 8 * fed.d + 5.5 * steps) / 0.8)
    with pytest.warns(UserWarning, match=rf"8 clients with {fed.d} parameters .* by {4 if block else 5} clients"):
        split = run(fc.FedAvg(), fed, cohort=8)
    close(split, whole, 1e-12)
    monkeypatch.setattr(memory, "free", lambda device: 0)
    with pytest.warns(UserWarning, match="by 1 clients at a time"):
        close(run(fc.FedAvg(), fed, cohort=8), whole, 1e-12)


# --- what would not fit -----------------------------------------------------------------------------------------------


@pytest.fixture
def little(monkeypatch):
    """A machine without memory, on which everything is looked at."""
    monkeypatch.setattr(memory, "LARGE", 0)
    monkeypatch.setattr(memory, "free", lambda device: 0)


def test_states_that_do_not_fit_are_named_before_they_are_made(little, monkeypatch):
    fed = h.network()
    words = rf"h_i, c_i of FedDC \(5 clients x {fed.d} parameters x 8 bytes each\) take .* GB free; use fewer clients"
    with pytest.raises(MemoryError, match=words):
        fc.start(fc.FedDC(), fed)
    monkeypatch.setattr(memory, "free", lambda device: 75 * fed.d)  # a round of three clients fits
    with pytest.raises(MemoryError, match=words):
        run(fc.FedDC(), fed, cohort=3)
    with pytest.raises(MemoryError, match=r"models and states of 5 clients in a round \(3 x .* use a smaller cohort"):
        run(fc.FedDC(), fed, cohort=5)
    run(fc.FedAvg(), fed, cohort=5)


def test_a_copy_of_the_state_and_models_for_evaluation_are_named_too(monkeypatch):
    fed = h.network()
    states = {method: fc.start(method, fed) for method in (fc.SCAFFOLD(), fc.FedPer())}
    monkeypatch.setattr(memory, "LARGE", 0)
    monkeypatch.setattr(memory, "free", lambda device: 30 * fed.d)
    with pytest.raises(MemoryError, match=r"a copy of the state c_i \(5, .* use fc.simulate"):
        fc.one_round(fc.SCAFFOLD(), fed, states[fc.SCAFFOLD()], 0, cohort=1)
    with pytest.raises(MemoryError, match=r"the models of 5 clients .* use personal=False"):
        fc.FedPer().personal(states[fc.FedPer()], fed.layout)


@pytest.mark.parametrize("topology", [fc.Complete(), fc.DirectedRandom(5), fc.Graph([(0, i) for i in range(1, 10)])])
def test_lists_of_neighbours_that_do_not_fit_are_named(topology, little):
    with pytest.raises(MemoryError, match=r"lists of \d+ neighbours for each of 10 clients .* use fewer clients"):
        fc.topology.mixing(topology, 10, 3, 4)


# --- states of clients in host memory -----------------------------------------------------------------------------


@both_federations
@pytest.mark.parametrize("method", REMEMBERING, ids=repr)
def test_client_states_in_host_memory_are_sent_for_a_round_ahead_and_are_the_same(method, kind, monkeypatch):
    fed, sent, send = make(kind), [], host.Carrier.send
    usual = run(method, fed, rounds=6)
    monkeypatch.setattr(host, "room_for_states", lambda device: 0)
    monkeypatch.setattr(host.Carrier, "send", lambda self, rows: sent.append(set(rows)) or send(self, rows))
    with pytest.warns(UserWarning, match=r" take .* GB \(5 clients x .* parameters\).*host memory"):
        moved = run(method, fed, rounds=6)
    assert same(usual, moved)  # cohorts of three of five clients: what a round changes is asked for by the next
    assert sent == [set(method.client_state)] * 6


# --- growth -------------------------------------------------------------------------------------------------------


def live() -> tuple[int, int]:
    """Number and bytes of all tensors there are."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.layout is torch.strided]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return len(tensors), sum(storages.values())


@pytest.mark.parametrize("more", [{}, {"decay": 0.1, "clip": 1.0}], ids=["plain", "decay and clip"])
def test_a_local_step_lets_go_of_its_gradients_before_the_next_are_computed(more):
    given = []

    def gradient(y: torch.Tensor, k: int) -> torch.Tensor:
        assert all(g() is None for g in given)
        G = torch.ones_like(y)
        given.append(weakref.ref(G))
        return G

    descend(gradient, torch.ones(3, 4), [3, 3, 2], 0.1, **more)
    assert len(given) == 3


@pytest.mark.parametrize(("method", "chunk"), [(fc.FedALA(), None), (fc.FedDC(0.3), 2), (fc.FedRolex(0.5), 2)], ids=str)
def test_memory_does_not_grow_over_100_rounds(method, chunk):
    tensors, blocks = [], []

    def count(r, y):
        if r.t in (19, 119):
            tensors.append(live())
            blocks.append(tracemalloc.get_traced_memory()[0])
        return {}

    fed = h.network(sizes=(8, 4, 4, 4, 4))
    tracemalloc.start()  # first: what was allocated before is not counted, and what takes its place would be
    try:
        run(method, fed, rounds=20, eval_every=20, chunk=chunk)  # what is kept once, at first use
        run(method, fed, rounds=120, eval_every=20, probes=[count], chunk=chunk)
    finally:
        tracemalloc.stop()
    assert tensors[0] == tensors[1], "tensors after 20 and after 120 rounds"
    assert blocks[1] - blocks[0] < 100 * 500, "bytes, where a round leaves its cohort and a few numbers"
