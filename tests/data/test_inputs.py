"""Data as users have them: datasets, lists of clients, index arrays, layouts; the same federation whatever the way."""

from __future__ import annotations

import sys

import helpers as h
import numpy as np
import pytest
import torch
from torch import nn

import fedcore as fc
from fedcore.data.arrays import LAYOUTS

X, Y = h.images(40, (1, 4, 4), 3)
TX, TY = h.images(15, (1, 4, 4), 3, seed=1)
RNG = np.random.default_rng(0)


def fed(source=((X, Y), (TX, TY)), **options) -> fc.Federation:
    return fc.federation(source, **{"clients": 4, "model": "logistic", "dtype": torch.float64, **options})


def same(a: fc.Federation, b: fc.Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


class Pairs(torch.utils.data.Dataset):
    """A map-style dataset of items (x, y)."""

    def __init__(self, x, y, change=lambda x: x):
        self.x, self.y, self.change = x, y, change

    def __len__(self):
        return len(self.y)

    def __getitem__(self, k):
        return self.change(self.x[k]), int(self.y[k])


class Label:
    """What `datasets.ClassLabel` says."""

    def __init__(self, num_classes: int):
        self.num_classes = num_classes


class Columns:
    """What of Hugging Face's `datasets.Dataset` is used: a length, rows by number, names and features of columns."""

    def __init__(self, num_classes: int = 3, **columns):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: Label(num_classes) if name == "label" else None for name in columns}
        self.shape = (len(self), len(columns))

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, k):
        return {name: column[k] for name, column in self.columns.items()}


# --- datasets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda x, y: Pairs(x, y), lambda x, y: Pairs(x, y, torch.tensor), lambda x, y: Pairs(x, y, lambda x: x.tolist()),
    lambda x, y: Columns(image=x, label=y), lambda x, y: Columns(labels=y.tolist(), img=list(x)),
    lambda x, y: torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
    lambda x, y: torch.utils.data.Subset(Pairs(x, y), range(len(y))),
])  # fmt: skip
def test_a_dataset_is_the_source_that_its_arrays_are(make):
    arrays = fed().source
    given = fed((make(X, Y), make(TX, TY))).source
    for name in ("train_x", "train_y", "test_x", "test_y"):
        assert np.array_equal(getattr(given, name), getattr(arrays, name)), name
    assert given.classes == 3
    one = fc.data.load(make(X, Y))
    assert np.array_equal(one.test_x, X[4::5])
    assert np.array_equal(one.train_y, fc.data.load((X, Y)).train_y)


def test_a_dict_of_splits_is_training_and_test_data():
    splits = {"train": Columns(image=X, label=Y), "test": Columns(image=TX, label=TY), "unsupervised": None}
    assert same(fed(splits), fed())
    assert "datasets" not in sys.modules


def test_the_number_of_classes_is_that_of_the_label_column():
    assert fed((Columns(7, image=X, label=Y), Columns(7, image=TX, label=TY))).classes == 7


def test_torchvision_images_come_upright_as_bytes():
    tv = pytest.importorskip("torchvision.datasets")
    images = tv.FakeData(20, (3, 6, 5), num_classes=3)
    source = fc.data.load(images)
    assert (source.train_x.shape, source.train_x.dtype) == ((16, 3, 6, 5), np.uint8)
    assert np.array_equal(source.train_x[0], np.asarray(images[0][0]).transpose(2, 0, 1))


def test_an_item_is_read_once():
    seen = []
    fed((Pairs(X, Y, lambda x: seen.append(0) or x), (TX, TY)))
    assert len(seen) == 41  # the first one more, to see what items are


# --- clients one by one -------------------------------------------------------------------------------------------

CUTS = [slice(0, 5), slice(5, 17), slice(17, 40)]


@pytest.mark.parametrize("make", [lambda x, y: (x, y), lambda x, y: (torch.tensor(x), y.tolist()), Pairs])
def test_a_list_of_clients_is_a_federation_of_these_clients(make):
    given = fed(([make(X[cut], Y[cut]) for cut in CUTS], (TX, TY)), clients=None)
    assert given.sizes.tolist() == [5, 12, 23]
    for i, cut in enumerate(CUTS):
        assert np.array_equal(given.x[torch.as_tensor(given.index[i])].numpy(), X[cut])
        assert np.array_equal(given.y[torch.as_tensor(given.index[i])].numpy(), Y[cut])
    assert same(given, fed(partition=[np.arange(40)[cut] for cut in CUTS], clients=None))


def test_without_a_test_set_every_fifth_sample_of_each_client_is_held_out():
    given = fed([(X[cut], Y[cut]) for cut in CUTS], clients=3)
    assert given.sizes.tolist() == [4, 10, 19]
    assert given.source.test_owner.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert np.array_equal(given.source.test_x, X[[4, 9, 14, 21, 26, 31, 36]])


def test_clients_with_test_data_of_their_own_are_evaluated_on_them():
    clients, tests = ([(x[a], y[a]) for a in (slice(0, 6), slice(6, 15))] for x, y in ((X, Y), (TX, TY)))
    given = fed((clients, tests), clients=None)
    own = given.evaluate_clients(given.x0.expand(2, -1))["own_accuracy"]
    hits = given.correct(given.x0).double()
    h.close(own, [hits[:6].mean(), hits[6:].mean()], 1e-15)


def test_another_partition_of_a_list_of_clients_is_ones_own_choice():
    given = fed([(X[cut], Y[cut]) for cut in CUTS], partition=fc.IID(), clients=5)
    assert given.n == 5


# --- index arrays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, list, torch.as_tensor, lambda part: part.astype(np.uint8)])
def test_index_arrays_say_which_sample_is_whose(kind):
    parts = np.split(RNG.permutation(40)[:30], [3, 10])  # ten belong to nobody
    given = fed(partition=[kind(part) for part in parts], clients=None)
    assert [index.tolist() for index in given.index] == [part.tolist() for part in parts]
    assert given.index[0].dtype == np.int64
    assert "3 index arrays" in repr(given)


def test_index_arrays_count_the_samples_as_they_were_given():
    parts = [np.arange(0, 13), np.arange(13, 40)]
    whole = fed(partition=parts, clients=2)
    for options in ({"source": (X, Y)}, {"validation": True}, {"public": 2}):
        given = fed(partition=parts, clients=2, **options)
        rows = [given.x[torch.as_tensor(index)].numpy() for index in given.index]
        assert len(given.x) == sum(map(len, rows)) < 40  # some were taken out, and nobody else got the others
        for mine, index in zip(rows, whole.index, strict=True):
            theirs = {row.tobytes() for row in X[index]}
            assert all(row.tobytes() in theirs for row in mine)
    both = fed((X, Y), partition=parts, clients=2, validation=True)
    taken = np.concatenate([both.source.validation[0], both.source.test_x, both.source.train_x])
    assert sorted(row.tobytes() for row in taken) == sorted(row.tobytes() for row in X)
    assert (both.source.given[both.source.given >= 0] == np.arange(len(both.y))).all()


class Split:
    """A partition of one's own."""

    def __init__(self, *parts):
        self.parts = parts

    def split(self, labels, clients, rng, owner):
        return list(self.parts)


@pytest.mark.parametrize("way", [Split, lambda *parts: list(parts)])
@pytest.mark.parametrize(("parts", "exception", "words"), [
    (([0, 1], [2]), ValueError, "clients=3 2 index arrays one per client"),
    (([0], [1], [2], [3]), ValueError, "clients=3 4 index arrays one per client"),
    (([0, 1], [2, 40], [3]), ValueError, "client 1 index 40 40 samples 0 to 39"),
    (([0, 1], [2, 5000], [3]), ValueError, "client 1 index 5000 40 samples 0 to 39"),
    (([0, -1], [2], [3]), ValueError, "client 0 index -1 0 to 39"),
    (([0, 1], [2, 7, 7], [3]), ValueError, "index 7 client 1 has it twice one client"),
    (([0, 1], [2, 7], [9, 1]), ValueError, "index 1 clients 0 and 2 one client"),
    (([0, 1], [], [3]), ValueError, "client 1 no samples at least"),
    (([0, 1], [2.0], [3]), TypeError, "client 1 float64 integers"),
    (([0, 1], [3], [True] * 40), TypeError, "client 2 bool integers np.flatnonzero(mask)"),
    (([0, 1], [[2], [3]], [4]), ValueError, "client 1 (2, 1) one axis"),
])  # fmt: skip
def test_a_wrong_partition_names_client_and_index_whoever_made_it(way, parts, exception, words):
    with pytest.raises(exception) as e:
        fed(partition=way(*parts), clients=3)
    missing = [word for word in words.split() if word not in str(e.value)]
    assert not missing, f"{missing} not in: {e.value}"


def test_a_partition_that_gives_no_list_is_refused():
    class Lazy(Split):
        def split(self, labels, clients, rng, owner):
            return (part for part in self.parts)

    with pytest.raises(TypeError, match=r"the partition gave a generator; use a list of index arrays"):
        fed(partition=Lazy([0], [1]), clients=2)


def test_owners_that_are_drawn_may_leave_samples_out():
    source = fc.data.Source("s", X, Y, TX, TY, 3, train_owner=np.repeat(np.arange(8), 5))
    assert fed(source, partition=fc.ByOwner(subset=True), clients=3).sizes.tolist() == [5, 5, 5]


# --- layouts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype", "layout", "sample"), [
    ((20, 6, 5), np.uint8, None, (1, 6, 5)), ((20, 6, 6), np.float64, None, (1, 6, 6)), ((20, 7), int, None, (7,)),
    ((20, 6, 5), np.float32, "image", (1, 6, 5)), ((20, 6, 5), np.float32, "sequence", (6, 5)),
    ((20, 6, 6), np.float32, "sequence", (6, 6)), ((20, 6), np.float32, "sequence", (6,)),
    ((20, 5), np.uint8, "features", (5,)), ((20,), np.float32, "features", (1,)), ((20, 6), np.int64, "text", (6,)),
    ((20, 5, 4, 3), np.uint8, "image", (3, 5, 4)),
])  # fmt: skip
def test_a_layout_says_what_a_sample_is(shape, dtype, layout, sample):
    x = RNG.integers(0, 9, shape).astype(dtype)
    source = fc.data.load((x, np.arange(20) % 2), layout=layout)
    assert source.train_x.shape == (16, *sample)
    assert source.text == (layout == "text")
    assert layout is None or source.layout == ("features" if shape == (20, 6) and layout == "sequence" else layout)


def test_numbers_that_may_be_images_or_sequences_are_asked_about():
    with pytest.raises(ValueError, match=r"\(40, 20, 6\)") as e:
        fed((np.zeros((50, 20, 6)), np.arange(50) % 2), clients=2)
    assert all(f"layout='{name}'" in str(e.value) for name in LAYOUTS if "channels" not in name)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("layout", ["features", "sequence"])
def test_features_and_sequences_are_numbers_that_nobody_normalises(layout, dtype):
    x = RNG.integers(0, 200, (40, 5) if layout == "features" else (40, 5, 2)).astype(dtype)
    given = fed((x, np.arange(40) % 3), layout=layout)
    assert np.array_equal(given.inputs(given.x[:3]).numpy(), given.source.train_x[:3])
    h.close(given.evaluate(given.x0)["loss"], nn.functional.cross_entropy(
        given.engine.module(given.test[0].double()), given.test[1]), 1e-12)  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


@pytest.mark.parametrize("model", ["mlp", Recurrent()])
@pytest.mark.parametrize("batch_size", [4, None])
def test_gradients_on_sequences_are_those_of_plain_autograd(model, batch_size):
    x, y = RNG.normal(size=(30, 5, 3)), np.arange(30) % 2
    given = fed(((x, y), (x, y)), clients=3, model=model, layout="sequence")
    plan, clients = given.plan(0, 0, np.arange(3), batch_size=batch_size), 3
    G = given.gradient(given.x0.repeat(clients, 1), plan, 0)
    for row, i in enumerate(plan.clients):
        picked = given.index[i] if batch_size is None else plan.samples[0, row]
        want = h.gradient(given.engine.module, given.x0, *h.samples(given, picked))
        h.close(G[row], want, 1e-12)
    assert torch.isfinite(fc.simulate(fc.FedAvg(), given, rounds=1, batch_size=4).params).all()
    module = given.module(given.x0)
    h.close((module(given.test[0]).argmax(1) == given.test[1]).double().mean(), given.evaluate(given.x0)["accuracy"], 0)


def test_a_path_without_rules_for_sequences_says_so():
    source = (RNG.normal(size=(30, 5, 3)), np.arange(30) % 2)
    # over the channels of pictures, and what torch.vmap does not take
    model = nn.Sequential(nn.LogSoftmax(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(15, 2))
    with pytest.raises(ValueError, match=r"path='batched'.*samples \(5, 3\).*'auto' or 'sequential'"):
        fed(source, layout="sequence", model=model, path="batched")
    for path in ("written", "batched"):
        with pytest.raises(ValueError, match=rf"path='{path}' has no rule for"):
            fed(source, layout="sequence", model=model).forced(path)
    assert fed(source, layout="sequence", model=model).fastest(2, 4).engine.path == "sequential"


def test_text_needs_no_more_than_its_layout():
    x, y = RNG.integers(0, 12, (40, 6)), np.arange(40) % 12
    given = fed((x, y), layout="text", model=lambda shape, c: fc.models.CharLSTM(c, 4, 8))
    assert given.source.text
    assert given.inputs(given.x[:2]).dtype == torch.int64
    assert torch.isfinite(fc.simulate(fc.FedAvg(), given, rounds=1).params).all()


def test_public_data_of_the_callers_have_the_layout_of_the_source():
    x, y = RNG.normal(size=(40, 5, 2)), np.arange(40) % 2
    given = fed((x, y), layout="sequence").with_public(RNG.normal(size=(6, 5, 2)), np.arange(6) % 2)
    assert given.public[0].shape == (6, 5, 2)


def test_a_packs_inputs_have_a_layout_too(tmp_path):
    x, y = RNG.normal(size=(20, 5, 2)), np.arange(20) % 2
    np.savez(tmp_path / "waves.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    assert fc.data.load("waves", tmp_path, layout="sequence").train_x.shape == (20, 5, 2)


def test_clients_share_samples_where_the_partition_says_so():
    class Shared:
        overlapping = True

        def split(self, labels, clients, rng, owner):
            return [np.array([0, 1, 1]), np.array([1, 2])]

    x, y = np.random.default_rng(0).random((9, 4), np.float32), np.arange(9) % 3
    fed = fc.federation(((x, y), (x, y)), 2, Shared(), "logistic")
    assert fed.sizes.tolist() == [3, 2]
    Shared.overlapping = False
    with pytest.raises(ValueError, match=r"index 1 stands twice .*overlapping = True"):
        fc.federation(((x, y), (x, y)), 2, Shared(), "logistic")
