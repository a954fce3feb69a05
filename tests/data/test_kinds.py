"""Heterogeneity beside label skew: sizes, inputs and labels that differ by client."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import helpers as h
import numpy as np
import pytest

import fedcore as fc

N, CLIENTS = 600, 6
IMAGES = h.images(N, (1, 9, 9), 4)
TEST = h.images(40, (1, 9, 9), 4, seed=1)


def mine(fed, i):
    """Client i's training samples and labels."""
    rows = fed.data.index[i]
    return fed.source.train_x[rows].astype(float), fed.source.train_y[rows]


def federation(partition, images=IMAGES, **more):
    test = TEST if np.ndim(images[0]) == 4 else (images[0][:40], TEST[1])
    return fc.federation((images, test), **{"clients": CLIENTS, "model": "logistic"} | more, partition=partition)


@pytest.mark.parametrize("partition", [fc.Quantity(1.0), fc.Quantity(1.2, "power"), fc.Quantity(0.0), fc.Quantity(1e4)])
def test_quantity_deals_every_sample_once_and_gives_each_client_one(partition):
    parts = partition.split(np.zeros(N), CLIENTS, np.random.default_rng(0), None)
    assert sorted(np.concatenate(parts)) == list(range(N))
    assert min(map(len, parts)) >= 1


def test_quantity_has_the_sizes_of_its_law_whatever_the_labels():
    draw = np.random.default_rng(0)
    power = np.sort(fc.Quantity(1.0, "power").sizes(10**6, 4, draw))[::-1]
    assert np.allclose(power / power[0], 1 / np.arange(1, 5), atol=1e-5)
    logs = np.log(fc.Quantity(0.7).sizes(10**8, 3000, draw))
    assert logs.std() == pytest.approx(0.7, rel=0.05)
    assert np.ptp(fc.Quantity(0.0).sizes(N, 7, draw)) <= 1
    fed = federation(fc.Quantity(1.0))
    shares = fed.label_counts() / fed.sizes[:, None]
    assert np.abs(shares[fed.sizes > 100] - 0.25).max() < 0.1


def test_dirichlet_keeps_to_the_sizes_that_it_is_given():
    sizes = [50, 10, 200, 1, 30, 9]
    fed = federation(fc.Dirichlet(0.1, sizes=sizes))
    assert fed.sizes.tolist() == sizes
    assert (fed.label_counts()[2] / 200).max() > 0.5, "labels are skewed"
    law = fc.Quantity(1.0)
    assert sorted(federation(fc.Dirichlet(0.1, sizes=law)).sizes)[-1] > 200
    with pytest.raises(ValueError, match="one for each of 6 clients, of sum <= 600"):
        federation(fc.Dirichlet(0.1, sizes=[100] * 7))
    with pytest.raises(ValueError, match="use one of the two"):
        fc.Dirichlet(0.1, equal_sizes=True, sizes=sizes)


def test_a_quarter_turn_is_exact_and_anticlockwise_and_the_middle_client_is_not_turned():
    fed = federation(fc.FeatureShift("rotation", 90.0), normalise="none")
    plain = federation(fc.IID(), normalise="none")
    turned = [np.rot90(x, 1, (2, 3)) for x in (mine(plain, i)[0] for i in range(CLIENTS))]
    assert np.array_equal(mine(fed, CLIENTS - 1)[0], turned[-1])
    assert not np.array_equal(mine(fed, 2)[0], mine(plain, 2)[0])
    odd, same = (federation(p, clients=5) for p in (fc.FeatureShift("rotation", 30.0), fc.IID()))
    assert np.array_equal(mine(odd, 2)[0], mine(same, 2)[0])


def test_blur_and_noise_grow_from_client_to_client_and_leave_the_first_alone():
    plain = federation(fc.IID(), normalise="none")
    for kind, strength in (("blur", 3.0), ("noise", 0.2)):
        fed = federation(fc.FeatureShift(kind, strength), normalise="none")
        apart = [np.abs(mine(fed, i)[0] - mine(plain, i)[0]).mean() for i in range(CLIENTS)]
        assert apart[0] == 0
        assert all(a < b for a, b in pairwise(apart)), kind


def test_blur_and_noise_have_the_deviation_that_they_are_given():
    x = np.zeros((N, 1, 21, 21))
    x[:, 0, 10, 10] = 1.0
    changes = fc.FeatureShift("blur", 1.5), fc.FeatureShift("noise", 0.3)
    blurred, noisy = (mine(fc.federation((x, IMAGES[1]), 2, change, "logistic"), 1)[0] for change in changes)
    spot, at = blurred[0, 0].sum(0), np.arange(21) - 10
    assert spot.sum() == pytest.approx(1)
    assert (spot * at**2).sum() == pytest.approx(1.5**2, rel=0.01)
    assert (noisy - x[0]).std() == pytest.approx(0.3, rel=0.01)


def test_noise_is_measured_in_the_range_of_the_images_whose_bytes_do_not_leave_it():
    clear, noisy = (fc.federation("digits", 2, p, "logistic").source for p in (fc.IID(), fc.FeatureShift("noise", 0.1)))
    assert noisy.train_x.max() == clear.train_x.max() == 16
    inner = (clear.train_x > 5) & (clear.train_x < 11)
    apart = (noisy.train_x.astype(float) - clear.train_x)[inner]
    assert np.sqrt(2 * (apart**2).mean()) == pytest.approx(0.1 * 16, rel=0.05), "the second of two clients has noise"


def test_the_last_clients_have_each_pair_of_labels_exchanged_in_training_and_in_their_own_test_data():
    options = {"own_test": 0.2, "normalise": "none"}
    swapped, plain = (federation(p, **options) for p in (fc.LabelSwap(0.5, pairs=((0, 2),)), fc.IID()))
    other = np.array([2, 1, 0, 3])
    for i in range(CLIENTS):
        both = [[mine(fed, i)[1], fed.own_test(i)[1].numpy()] for fed in (swapped, plain)]
        labels, given = map(np.concatenate, both)
        assert np.array_equal(np.sort(labels), np.sort(other[given] if i >= 3 else given))
    assert np.array_equal(swapped.source.test_y, plain.source.test_y)
    everyone = federation(fc.LabelSwap(1.0))
    assert np.array_equal(everyone.source.train_y, IMAGES[1] ^ 1)


def test_the_data_of_the_caller_stay_as_they_are_and_a_seed_decides_the_noise():
    x, y = IMAGES[0].copy(), IMAGES[1].copy()
    first, again, other = (federation(fc.FeatureShift("noise", 0.1), (x, y), seed=s) for s in (0, 0, 1))
    assert np.array_equal(x, IMAGES[0])
    assert np.array_equal(first.source.train_x, again.source.train_x)
    assert not np.array_equal(first.source.train_x, other.source.train_x)


SHARED = SimpleNamespace(overlapping=True, split=lambda labels, clients, rng, owner: [np.arange(N)] * clients)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: fc.Quantity(-1), "spread"),
    (lambda: fc.Quantity(1, "zipf"), "law"),
    (lambda: fc.FeatureShift("turn"), "kind"),
    (lambda: fc.LabelSwap(partition=fc.FeatureShift()), "leaves the data as they are"),
    (lambda: fc.LabelSwap(1.5), "share"),
    (lambda: fc.Dirichlet(0.5, sizes=fc.Quantity), "whole numbers"),
    (lambda: fc.Dirichlet(0.5, sizes=[5, 0, 7]), r"sizes=\[5, 0, 7\]; use whole numbers from 1"),
    (lambda: fc.Dirichlet(0.5, sizes=[60] * 6, min_size=4), r"min_size=4 has no effect with sizes=\[60, .*one"),
    (lambda: fc.Dirichlet(0.5, sizes=fc.Quantity(), max_draws=9), r"max_draws=9 has no effect with sizes=Quantity"),
    (lambda: fc.Dirichlet(0.5, equal_sizes=True, min_size=1000), "min_size=1000 has no effect with equal_sizes=T"),
    (lambda: fc.LabelSwap(pairs=((3, 4), (4, 5))), r"pairs=\(\(3, 4\), \(4, 5\)\); use pairs of different labels"),
    (lambda: federation(fc.LabelSwap(pairs=((1, 7),))), "label 7; use 0 to 3"),
    (lambda: federation(fc.FeatureShift(partition=SHARED)), "several clients.* without overlapping = True"),
    (lambda: federation(fc.FeatureShift(), (np.zeros((N, 81)), IMAGES[1])), "images"),
])  # fmt: skip
def test_what_does_not_suit_is_refused_by_name(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
