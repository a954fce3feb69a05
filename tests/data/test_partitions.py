"""Partitions: properties that hold for any labels, any number of clients and any seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcore as fc

claim = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
labels = st.lists(st.integers(0, 6), min_size=1, max_size=150).map(np.array)


def split(partition, y, clients, seed=0, owner=None):
    return partition.split(np.asarray(y), clients, np.random.default_rng(seed), owner)


def histogram(parts, y, classes=10):
    return np.stack([np.bincount(y[p], minlength=classes) for p in parts])


def skew(parts, y) -> float:
    """Mean total variation between a client's label shares and the population's, weighted by size; 0 is IID."""
    counts = histogram(parts, y)
    share = counts / counts.sum(1, keepdims=True)
    return float((abs(share - counts.sum(0) / counts.sum()).sum(1) / 2 * counts.sum(1)).sum() / counts.sum())


def assert_complete(parts, N, clients):
    assert len(parts) == clients
    assert all(len(p) for p in parts), "a client without data"
    assert sorted(np.concatenate(parts).tolist()) == list(range(N)), "samples lost or duplicated"


@st.composite
def cases(draw):
    y = draw(labels)
    return y, draw(st.integers(1, len(y))), draw(seeds)


@claim
@given(cases(), st.floats(0.01, 100))
def test_iid_and_dirichlet_with_equal_sizes_lose_and_double_nothing_and_sizes_differ_by_one_at_most(case, q):
    y, clients, seed = case
    for partition in (fc.IID(), fc.Dirichlet(q, equal_sizes=True)):
        parts = split(partition, y, clients, seed)
        assert_complete(parts, len(y), clients)
        assert np.ptp([len(p) for p in parts]) <= 1


@claim
@given(st.integers(2, 8), st.floats(0.2, 50), st.integers(1, 12), seeds)
def test_dirichlet_loses_and_doubles_nothing_and_keeps_the_minimum_size(clients, q, least, seed):
    y = np.random.default_rng(seed).integers(0, 5, 40 * clients)
    parts = split(fc.Dirichlet(q, min_size=least), y, clients, seed)
    assert_complete(parts, len(y), clients)
    assert min(map(len, parts)) >= least


@claim
@given(st.integers(1, 7), st.integers(1, 20), seeds)
def test_shards_gives_exactly_c_labels_to_each_client_in_equal_shares(c, clients, seed):
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(7), 60))
    if clients * c < 7:
        with pytest.raises(ValueError, match=f"{clients} clients of {c} classes.* 7 labels.*lost"):
            split(fc.Shards(c), y, clients, seed)
        return
    parts = split(fc.Shards(c), y, clients, seed)
    assert_complete(parts, len(y), clients)
    counts = histogram(parts, y, 7)
    assert ((counts > 0).sum(1) == c).all()
    holders = (counts > 0).sum(0)
    assert np.ptp(holders) <= 1  # every label is held by equally many clients, to one
    for label in range(7):
        shares = counts[counts[:, label] > 0, label]
        assert np.ptp(shares) <= 1


TEN = np.repeat(np.arange(10), 200)


def test_shards_that_are_cut_are_equal_runs_of_the_sorted_samples_and_a_client_may_hold_one_label_or_more_than_two():
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), [3, 17, *[10] * 8]))
    held = set()
    for seed in range(20):
        parts = split(fc.Shards(2, cut=True), y, 10, seed)
        assert_complete(parts, 100, 10)
        assert {len(p) for p in parts} == {10}
        held |= {len(np.unique(y[p])) for p in parts}
    assert held == {1, 2, 3}


@pytest.mark.parametrize("seed", range(2))
def test_shards_are_dealt_at_random_so_that_clients_share_labels_in_many_ways(seed):
    sets = [frozenset(TEN[p].tolist()) for p in split(fc.Shards(2), TEN, 100, seed)]
    # 100 free draws of the 45 pairs would give 40.2 distinct ones; equally many shards of each label give 42
    assert 33 <= len(set(sets)) <= 45
    assert {len(pair) for pair in sets} == {2}  # nobody holds a label twice


@claim
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80).map(np.array), seeds)
def test_by_owner_gives_each_owner_its_own_samples(owner, seed):
    owners = np.unique(owner)
    parts = split(fc.ByOwner(), np.zeros(len(owner), int), len(owners), seed, owner)
    assert_complete(parts, len(owner), len(owners))
    for o, part in zip(owners, parts, strict=True):
        assert (owner[part] == o).all()


@claim
@given(st.integers(1, 9), seeds)
def test_a_subset_of_owners_is_drawn_without_replacement_and_leaves_the_others_out(clients, seed):
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(9), 5))
    parts = split(fc.ByOwner(subset=True), np.zeros(45, int), clients, seed, owner)
    drawn = [int(owner[p[0]]) for p in parts]
    assert len(set(drawn)) == clients
    assert all((owner[p] == o).all() and len(p) == 5 for o, p in zip(drawn, parts, strict=True))


ALL = [fc.IID(), fc.Dirichlet(0.3), fc.Dirichlet(0.3, equal_sizes=True), fc.Shards(2), fc.ByOwner(subset=True)]


@pytest.mark.parametrize("partition", ALL, ids=repr)
def test_the_same_seed_gives_the_same_partition_and_another_seed_another(partition):
    rng = np.random.default_rng(0)
    y, owner = rng.integers(0, 10, 600), rng.integers(0, 30, 600)
    a, b, c = (split(partition, y, 12, seed, owner) for seed in (7, 7, 8))
    assert all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))
    assert not all(np.array_equal(p, q) for p, q in zip(a, c, strict=True))


@pytest.mark.parametrize("equal", [False, True])
def test_small_q_is_more_skewed_than_large_q(equal):
    y = np.repeat(np.arange(10), 200)
    mean = [np.mean([skew(split(fc.Dirichlet(q, equal), y, 20, s), y) for s in range(3)]) for q in (0.05, 0.3, 2, 100)]
    assert mean == sorted(mean, reverse=True)
    assert mean[0] > 0.5
    assert mean[-1] < 0.15
    assert skew(split(fc.IID(), y, 20), y) < 0.15


@pytest.mark.parametrize("q", [0.03, 0.05, 0.1])
def test_dirichlet_draws_again_until_each_client_has_fedmls_ten_samples(q):
    y = np.repeat(np.arange(10), 100)
    for seed in range(5):
        assert min(map(len, split(fc.Dirichlet(q), y, 10, seed))) >= 10
    # without the redraw it would happen: one sample is enough here
    assert min(min(map(len, split(fc.Dirichlet(q, min_size=1), y, 10, s))) for s in range(30)) < 10


def test_dirichlet_needs_fewer_than_ten_samples_only_where_clients_are_small():
    y = np.repeat(np.arange(10), 30)
    for clients, least in ((3, 10), (10, 3), (30, 1), (100, 1)):  # a tenth of the mean size, and at least one
        assert min(map(len, split(fc.Dirichlet(1.0), y, clients))) >= least


def test_dirichlet_gives_no_more_to_a_client_that_holds_its_share():
    # FedML's rule; its last client may still be given the one sample that rounding leaves over
    y = np.repeat(np.arange(10), 100)
    for seed in range(20):
        counts = histogram(split(fc.Dirichlet(0.1), y, 5, seed), y)
        full = np.cumsum(counts, 1) - counts >= 1000 / 5
        assert full.any()
        assert (counts[:-1][full[:-1]] == 0).all()
        assert (counts[-1][full[-1]] <= 1).all()


def test_dirichlet_shares_have_the_mean_and_variance_of_the_dirichlet_law():
    # One label, so no client is full before it is dealt: shares p ~ Dir(q, ..., q) with q = 2 and n = 4 have mean 1/n
    # and variance (n - 1) / (n^2 (n q + 1)) = 1/48.  6 sigma for the mean of 800 draws; the variance's spread is
    # below its own value times sqrt(3 / 800) for these bounded shares.
    y, draws = np.zeros(4000, int), 800
    share = np.array([[len(p) for p in split(fc.Dirichlet(2.0, min_size=1), y, 4, s)] for s in range(draws)]) / 4000
    variance = 3 / (16 * 9)
    assert abs(share[:, 0].mean() - 0.25) < 6 * np.sqrt(variance / draws)
    assert abs(share.var(0).mean() - variance) < 6 * variance * np.sqrt(3 / draws)


IMPOSSIBLE = [
    (fc.IID(), 5, 6, None, ["6", "5", "fewer clients"]),
    (fc.Dirichlet(1.0), 5, 6, None, ["6", "5", "fewer clients"]),
    (fc.Dirichlet(1.0, equal_sizes=True), 5, 6, None, ["6", "5", "fewer clients"]),
    (fc.Dirichlet(1.0, min_size=30), 100, 4, None, ["min_size=30", "120", "100", "min_size<=25"]),
    (fc.Dirichlet(0.001, min_size=24, max_draws=20), 100, 4, None, ["q=0.001", "24", "100", "20 draws", "larger q"]),
    (fc.Shards(11), 100, 20, None, ["classes=11", "10 labels", "<= 10"]),
    (fc.Shards(2), 100, 4, None, ["4 clients of 2", "8 shards", "10 labels", "at least 5"]),
    (fc.Shards(10), 100, 11, None, ["10 samples", "11 clients", "fewer clients"]),
    (fc.ByOwner(), 100, 5, None, ["ByOwner", "owners", "train_owner"]),
    (fc.ByOwner(), 100, 5, np.arange(100) % 4, ["clients=5", "4 owners", "clients=4"]),
    (fc.ByOwner(), 100, 3, np.arange(100) % 4, ["clients=3", "4 owners", "subset=True"]),
    (fc.ByOwner(subset=True), 100, 5, np.arange(100) % 4, ["clients=5", "4 owners"]),
]


@pytest.mark.parametrize(("partition", "N", "clients", "owner", "words"), IMPOSSIBLE, ids=lambda v: str(v)[:40])
def test_an_impossible_partition_says_why_in_numbers(partition, N, clients, owner, words):
    with pytest.raises(ValueError) as e:
        split(partition, np.arange(N) % 10, clients, 0, owner)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_an_owner_in_parts_is_several_clients_that_share_nothing_with_other_owners():
    owner = np.repeat([3, 5, 9], [10, 12, 7])
    labels, generator = np.zeros(29, int), np.random.default_rng(0)
    parts = fc.ByOwner(parts=2).split(labels, 6, generator, owner)
    assert sorted(np.concatenate(parts).tolist()) == list(range(29))
    assert [set(owner[part]) for part in parts] == [{3}, {3}, {5}, {5}, {9}, {9}]
    assert [len(part) for part in parts] == [5, 5, 6, 6, 4, 3]
    with pytest.raises(ValueError, match="3 owners in 2 parts are 6 clients"):
        fc.ByOwner(parts=2).split(labels, 5, generator, owner)
    with pytest.raises(ValueError, match="use clients=6 or None, or parts=1 and subset=True to draw some"):
        fc.ByOwner(subset=True, parts=2).split(labels, 5, generator, owner)
