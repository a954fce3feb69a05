"""Digit domains: same labels and shares, strongly different looks, the same images from the same seed."""

from __future__ import annotations

import numpy as np
import pytest

import fedcore as fc
from fedcore.data import domains

SMALL = {"train": 50, "test": 20}


@pytest.fixture(scope="module")
def small() -> fc.data.Source:
    return fc.data.digit_domains(**SMALL)


def arrays(source):
    return source.train_x, source.train_y, source.test_x, source.test_y, source.train_owner, source.test_owner


def test_the_same_seed_gives_the_same_images_and_another_seed_others(small):
    domains._made.cache_clear()
    again, other = fc.data.digit_domains(**SMALL), fc.data.digit_domains(**SMALL, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(small), arrays(again), strict=True))
    for k in range(5):
        assert not np.array_equal(small.train_x[small.train_owner == k], other.train_x[other.train_owner == k])


def test_every_domain_has_a_name_and_as_many_rgb_images_of_one_size_of_each_label(small):
    for y, owner, share in ((small.train_y, small.train_owner, 5), (small.test_y, small.test_owner, 2)):
        counts = np.zeros((5, 10), int)
        np.add.at(counts, (owner, y), 1)
        assert (counts == share).all()
    assert small.train_x.dtype == small.test_x.dtype == np.uint8
    assert small.train_x.shape == (250, 3, 16, 16)
    assert small.domains == ("plain", "patches", "inverted", "street", "fonts")
    assert fc.data.digit_domains(10, 10, size=28).train_x.shape == (50, 3, 28, 28)


def test_printed_digits_are_grey_with_as_much_ink_as_asked_for_and_the_same_from_one_seed():
    x, y = domains.printed_digits(3, size=8, ink=16, seed=4)
    assert x.dtype == np.uint8
    assert x.shape == (30, 1, 8, 8)
    assert np.bincount(y).tolist() == [3] * 10
    assert x.min() == 0
    assert 12 < x.max() <= 16
    assert np.array_equal(x, domains.printed_digits(3, seed=4)[0])
    assert not np.array_equal(x, domains.printed_digits(3, seed=5)[0])


def test_no_handwritten_digit_is_used_twice():
    """Neither in training and test nor in two domains; scikit-learn's digits hold no image twice."""
    used = np.concatenate([domains._handwritten(0, k, 58).reshape(580, -1) for k in range(3)])
    assert len(np.unique(used, axis=0)) == len(used) == 1740


def test_the_looks_differ_strongly(small):
    """Between domains the mean colours are further apart than three standard errors, channel spread included."""
    part = [small.train_x[small.train_owner == k].astype(float) for k in range(5)]
    grey = [np.abs(x - x.mean(1, keepdims=True)).max() for x in part]
    assert grey[0] < 1e-9
    assert grey[2] < 1e-9
    assert min(grey[1], grey[3], grey[4]) > 20
    corner = [x[:, :, 0, 0].mean() for x in part]  # the paper
    assert corner[0] < 5
    assert corner[2] > 200
    assert all(30 < corner[k] < 220 for k in (1, 3, 4))


def test_patches_are_the_absolute_difference_of_digit_and_photograph():
    photo = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    g = lambda: np.random.default_rng(3)  # noqa: E731
    black, white = (np.full((16, 16, 3), v, np.uint8) for v in (0, 255))
    patch = domains._on_patch(black, [photo], g())  # a black digit leaves the patch
    windows = np.lib.stride_tricks.sliding_window_view(photo, (16, 16, 3))[..., 0, :, :, :]
    assert (windows == patch).all((2, 3, 4)).sum() == 1
    assert np.array_equal(domains._on_patch(white, [photo], g()), 255 - patch)  # a white one inverts it


def test_a_domain_does_not_depend_on_which_others_are_asked_for(small):
    part = fc.data.digit_domains(**SMALL, train_on=("street", "plain"), test_on=("patches", "inverted"))
    assert np.unique(part.train_owner).tolist() == [0, 3]
    assert np.unique(part.test_owner).tolist() == [1, 2]
    for x, owner, full, f_owner in (
        (part.train_x, part.train_owner, small.train_x, small.train_owner),
        (part.test_x, part.test_owner, small.test_x, small.test_owner),
    ):
        assert all(np.array_equal(x[owner == k], full[f_owner == k]) for k in np.unique(owner))
    fed = fc.federation(part, partition=fc.ByOwner(), normalise="client")
    assert fed.n == 2
    assert "own_accuracy" not in fed.evaluate_clients(fed.x0.expand(2, -1))  # the test set has none of theirs


def test_the_name_gives_one_client_per_domain_and_a_model_that_fits():
    fed = fc.federation("digit-domains", partition=fc.ByOwner())
    assert fed.sizes.tolist() == [400] * 5
    assert fed.d == 24_546
    assert np.array_equal(fed.label_counts(), np.full((5, 10), 40))
    assert len(fed.source.test_y) == 750


@pytest.mark.parametrize(("options", "message"), [
    ({"train": 45}, "train=45 is no multiple of 10.*use 40"), ({"train": 500, "test": 100}, "600 images a domain.*580"),
    ({"train_on": "plain"}, "train_on='plain'"), ({"test_on": ("svhn",)}, r"test_on=.*plain, patches, inverted"),
])  # fmt: skip
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fc.data.digit_domains(**options)


# --- the five data sets of the literature -------------------------------------------------------------------------


def write_pack(root, name, shape, n=200) -> np.ndarray:
    g = np.random.default_rng(len(name))
    x, y = g.integers(0, 256, (n, *shape)).astype(np.uint8), np.arange(n) % 10
    np.savez(root / f"{name}.npz", train_images=x, train_labels=y, test_images=x[::3], test_labels=y[::3])
    return x


def five(root, **options):
    return fc.data.digits_five(**{"train": 50, "test": 20, "root": root, "download": False} | options)


def test_what_is_missing_of_the_five_is_made_and_each_is_balanced_rgb(tmp_path):
    for name, shape in (("mnist", (28, 28)), ("svhn", (32, 32, 3)), ("usps", (16, 16))):
        write_pack(tmp_path, name, shape)
    source = five(tmp_path)
    assert source.train_x.shape == (250, 3, 28, 28)
    assert source.domains == ("MNIST", "MNIST-M", "SVHN", "SynthDigits", "USPS")
    counts = np.zeros((5, 10), int)
    np.add.at(counts, (source.train_owner, source.train_y), 1)
    assert (counts == 5).all()
    made = np.concatenate([x[owner == 3] for x, owner in (
        (source.train_x, source.train_owner), (source.test_x, source.test_owner),
    )])  # fmt: skip
    assert len(np.unique(made.reshape(70, -1), axis=0)) == 70, "no SynthDigits twice"
    assert all(np.array_equal(a, b) for a, b in zip(arrays(source), arrays(five(tmp_path)), strict=True))


def test_mnist_m_is_made_of_other_digits_than_mnist(tmp_path, monkeypatch):
    write_pack(tmp_path, "mnist", (28, 28))
    monkeypatch.setattr(domains, "_on_patch", lambda image, *_: image)  # leave the digits bare
    source = five(tmp_path, train_on=("MNIST", "MNIST-M"), test_on=("MNIST",))
    assert len(np.unique(source.train_x.reshape(100, -1), axis=0)) == 100


def test_a_pack_comes_before_what_is_made_here(tmp_path):
    known = {image.transpose(2, 0, 1).tobytes() for image in write_pack(tmp_path, "mnist-m", (28, 28, 3))}
    source = five(tmp_path, train_on=("MNIST-M",), test_on=("MNIST-M",))
    assert all(image.tobytes() in known for image in source.train_x)


def test_too_few_images_of_a_digit_and_missing_data_are_clear_errors(tmp_path):
    write_pack(tmp_path, "usps", (16, 16), n=40)
    with pytest.raises(ValueError, match="USPS has 4 images of digit 0"):
        five(tmp_path, train_on=("USPS",), test_on=("USPS",))
    with pytest.raises(fc.DataNotFound, match=r"digits-five: mnist.*digits-five\.npz"):
        five(tmp_path)
