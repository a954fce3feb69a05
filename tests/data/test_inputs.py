"""Data as users have them: read as they are meant, the same whatever the way, refused with a cure, and copied."""

from __future__ import annotations

import dataclasses
import sys
import warnings

import helpers as h
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import fedcore as fc
from fedcore.algorithms.submodels import with_public_data

X, Y = h.images(60, (1, 6, 6), 3)
TX, TY = h.images(15, (1, 6, 6), 3, seed=1)
TEST = TX, TY
RNG = np.random.default_rng(0)
PACK = {"train_images": X, "train_labels": Y, "test_images": TX, "test_labels": TY}
DATA = TensorDataset(torch.tensor(X), torch.tensor(Y))


def fed(source=((X, Y), TEST), **options) -> fc.Federation:
    return fc.federation(source, **{"clients": 4, "model": "logistic", **options})


@pytest.fixture
def silent():
    """What warns, fails."""
    with warnings.catch_warnings(action="error"):
        yield


# --- copies -----------------------------------------------------------------------------------------------------------


def zeroed(*given) -> None:
    for part in given:
        part[...] = 0


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize("form", [
    lambda x, y, tx, ty, o: ((x, y), (tx, ty)),
    lambda x, y, tx, ty, o: {"train": (x, y), "test": (tx, ty), "validation": (tx, ty)},
    lambda x, y, tx, ty, o: ([(x, y), (tx, ty)], [(tx, ty)] * 2), lambda x, y, tx, ty, o: (x, y),
    lambda x, y, tx, ty, o: PACK | {"train_images": x, "train_labels": y, "test_images": tx, "train_owner": o},
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:the images")
def test_data_may_be_changed_after_the_federation_was_made(form, kind):
    for dtype in (np.uint8, np.float64):
        given = [kind(part) for part in (X.astype(dtype), Y, TX.astype(dtype), TY, Y)]
        made = fed(form(*given), clients=2)
        before, answers = made.fingerprint(), made.evaluate(made.x0)
        zeroed(*given)
        assert made.fingerprint() == before
        assert made.evaluate(made.x0) == answers
        assert made.on_validation().evaluate(made.x0) if made.source.validation else True


def test_a_source_and_data_by_name_may_be_changed_afterwards():
    source = fc.data.load(((X, Y), TEST))
    made = fed(source)
    before = made.fingerprint()
    zeroed(source.train_x, source.test_x, source.train_y)
    assert made.fingerprint() == before
    roles = fc.federation("roles", model="lstm", partition=fc.ByOwner())
    before = roles.fingerprint()
    zeroed(roles.x, roles.source.train_x)
    assert fc.federation("roles", model="lstm", partition=fc.ByOwner()).fingerprint() == before


def test_index_arrays_starts_public_data_and_modules_may_be_changed_afterwards():
    parts, start, module = np.split(np.arange(60), 4), torch.zeros(111), h.small_mlp((1, 6, 6), 3)
    public = [RNG.integers(0, 255, (5, 1, 6, 6), dtype=np.uint8), np.arange(5) % 3]
    made = fed(partition=parts, clients=None, start=start).with_public(*public)
    own = fed(model=module)
    before, weights, x0 = made.fingerprint(), made.public[0].clone(), own.x0.clone()
    zeroed(*parts, start, *public)
    with torch.no_grad():
        zeroed(*module.parameters())
    assert made.fingerprint() == before
    assert torch.equal(made.public[0], weights)
    assert made.partition.parts[1][0] == 15
    assert torch.equal(fc.simulate(fc.FedAvg(), own, rounds=0).params, x0)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_quadratics_matrices_and_hyperparameters_may_be_changed_afterwards(kind):
    A, b, x0, W = (kind(part) for part in (np.eye(2)[None], np.ones((1, 2)), np.ones(2), np.full((2, 2), 0.5)))
    capacities, public = {1.0: 0.5, 0.5: 0.5}, [kind(X[:6]), kind(Y[:6])]
    problem, matrix = fc.quadratic(A, b, x0), fc.Matrix(W)
    methods = fc.HeteroFL(capacities), fc.FedGSE(public=tuple(public))
    zeroed(A, b, x0, W, *public)
    capacities[1.0] = 0.0
    assert problem.A.sum() == problem.b.sum() == problem.x0.sum() == 2
    assert matrix.W.sum() == 2
    assert methods == (fc.HeteroFL({1.0: 0.5, 0.5: 0.5}), fc.FedGSE(public=(X[:6], Y[:6])))


def test_sizes_and_counts_of_labels_are_read_only():
    one, q = fed(), fc.quadratic(np.stack([np.eye(2)] * 3), np.ones((3, 2)))
    for given in (one.sizes, one.label_counts(), q.pooled().sizes, q.sizes):
        with pytest.raises(ValueError, match="read-only"):
            given.fill(1)


def apart(one: fc.Federation) -> fc.Federation:
    """The federation with samples that are no views of the source's arrays, as on a GPU."""
    own = {name: getattr(one.data, name).clone() for name in ("x", "y", "test_x", "test_y")}
    return dataclasses.replace(one, data=dataclasses.replace(one.data, **own))


PLACES = [fed, lambda: apart(fed()), lambda: fed(augment=fc.RandAugment(1, 2, once=True))]


@pytest.mark.parametrize("what", ["y", "x"])
@pytest.mark.parametrize("make", PLACES)
def test_what_is_written_over_the_samples_holds_for_all_that_is_made_of_them(make, what):
    clean, written = make(), make()
    getattr(written, what)[-7:].fill_(1)
    assert clean.fingerprint() != written.fingerprint()
    one = written.pooled()
    for name in ("x", "y", "test"):
        assert all(map(torch.equal, getattr(one, name), getattr(written, name)))
    for fed_now in (written, one):
        assert fed_now.label_counts().sum(0).tolist() == written.y.bincount(minlength=3).tolist()
    assert not torch.equal(*(fc.simulate(fc.Central(), f, rounds=1, lr=0.1).params for f in (clean, written)))
    rest, moved = written.set_aside(2), written.to(dtype=torch.float64)
    assert torch.equal(moved.pooled().y, written.y)
    inputs = {(a.numpy().tobytes(), int(b)) for a, b in zip(written.x, written.y, strict=True)}
    for some in (rest.public, (rest.x, rest.y)):
        assert {(a.numpy().tobytes(), int(b)) for a, b in zip(*some, strict=True)} <= inputs


@pytest.mark.parametrize("make", PLACES)
def test_what_a_server_draws_and_refuses_as_public_follows_the_samples_as_they_are_now(make):
    clean, written = make(), make()
    written.x.copy_(255 - written.x)
    drawn = [with_public_data(f, fc.Gaussians(2)).public[0].double().mean() for f in (clean, written)]
    assert drawn[0] + drawn[1] == pytest.approx(255, abs=15)
    with pytest.raises(ValueError, match="1 public samples are clients' or test samples too"):
        written.with_public(written.x[:1].numpy().copy(), [0])


@pytest.mark.parametrize("make", [fed, lambda: fc.quadratic(np.stack([np.eye(2)] * 3), np.ones((3, 2)))])
def test_a_run_from_parameters_that_were_written_over_is_refused(make):
    one = make()
    x = one.x0
    x -= 1
    for other in (one, one.pooled(), one.to("cpu")):
        for begun in (fc.start, lambda *given: fc.simulate(*given, rounds=1)):
            with pytest.raises(ValueError, match=r"fed\.x0, .* was written over; .* x = fed\.x0\.clone\(\)"):
                begun(fc.FedAvg(), other)
    fc.simulate(fc.FedAvg(), make(), rounds=1, progress=False)


# --- what is told of --------------------------------------------------------------------------------------------------

FEATURES, ROWS = RNG.random((60, 36)), RNG.random((60, 6, 6))
SCALED = r"images .*x / \d+.*x.astype\(np.uint8\)"
HIGH = "are used as they are"


def both(change, **options) -> fc.Federation:
    return fed(((change(X), Y), (change(TX), TY)), **options)


def labelled(change) -> fc.Federation:
    return fed(((X, change(Y)), (TX, change(TY))))


def splits(**parts) -> fc.Federation:
    return fed({"train": (X, Y), "test": TEST} | parts, clients=2)


TOLD = {
    "float images of bytes": (lambda: both(np.float32), SCALED),
    "numbers of 16 bits, by unit": (lambda: both(np.uint16, normalise="unit"), SCALED),
    "images to 16, by half": (lambda: both(lambda x: (x % 17).astype(float), normalise="half"), SCALED),
    "centred images": (lambda: both(lambda x: x - 120.5), SCALED),
    "large features": (lambda: fed((255.0 * FEATURES, Y)), HIGH),
    "sequences of bytes": (lambda: fed((np.uint8(255 * ROWS), Y), layout="sequence"), HIGH),
    "test images on another scale": (lambda: fed(((X / 255, Y), (1.0 * TX, TY))), "test inputs reach .* training inp"),
    "validation on another scale": (lambda: splits(val=(np.uint8(TX > 100), TY)), "validation inputs reach .* train"),
    "labels from 1": (lambda: labelled(lambda y: y + 1), "no training sample has a label of 0, of 4 .*np.unique"),
    "one label": (lambda: labelled(lambda y: 0 * y), "all 60 training samples have the label 0"),
    "labels of the test set alone": (lambda: fed(((X, Y), (TX[:3], [0, 4, 7]))), "of 3, .*7, .* 2 of 3 test samples"),
    "keys of a mapping": (lambda: splits(unsupervised=None), "unsupervised of the source"),
    "keys of a pack": (lambda: fed(PACK | {"train_owners": Y}), "train_owners are not read"),
    "whole numbers with a loss": (
        lambda: fed((FEATURES, 2 * Y), loss=nn.CrossEntropyLoss()), r"if they are no classes.*astype\(float\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", TOLD)
def test_a_user_is_told_of_such_data(what):
    call, words = TOLD[what]
    with pytest.warns(UserWarning, match=words) as told:
        call()
    assert told[0].filename == __file__


def test_a_packs_images_and_labels_are_told_of_too(tmp_path):
    np.savez(tmp_path / "mine.npz", **PACK | {"train_images": 1.0 * X, "test_images": 1.0 * TX, "train_labels": Y + 1})
    with pytest.warns(UserWarning, match="images"), pytest.warns(UserWarning, match="no training sample has a label"):
        fed("mine", root=tmp_path)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("change", [
    lambda x: x, lambda x: (x > 128).astype(float), lambda x: torch.tensor(x) / 255,
    lambda x: 10 * ((x - x.mean()) / x.std()), lambda x: np.random.default_rng(1).standard_normal((len(x), 5)),
    lambda x: 16 * np.random.default_rng(1).random((len(x), 5)).round(1),
])  # fmt: skip
def test_bytes_features_of_size_1_and_the_digits_of_scikit_learn_have_no_wrong_scale(change):
    both(change)
    both(lambda x: x.astype(float), normalise="client")


@pytest.mark.usefixtures("silent")
def test_labels_of_a_known_number_of_classes_and_truth_values_are_not_spoken_of(tmp_path):
    assert labelled(lambda y: y > 0).classes == 2
    np.savez(tmp_path / "femnist.npz", **PACK | {"train_labels": Y + 40, "test_labels": TY + 40})
    assert fed("femnist", root=tmp_path).classes == 62


class Drawn:
    """A partition and sizes of clients that do not use the generator that they are given."""

    def split(self, labels, clients, rng, owner):
        return np.array_split(np.random.default_rng().permutation(len(labels)), clients)

    def sizes(self, samples, clients, rng):
        return np.random.default_rng().multinomial(samples - clients, np.ones(clients) / clients) + 1


@pytest.mark.parametrize("partition", [
    lambda labels, clients, rng: np.array_split(np.random.permutation(len(labels)), clients),  # noqa: NPY002
    lambda labels, clients, rng: np.array_split(torch.randperm(len(labels)).numpy(), clients),
    Drawn(), fc.FeatureShift("noise", 0.1, Drawn()), fc.LabelSwap(0.5, partition=fc.Dirichlet(1.0, sizes=Drawn())),
])  # fmt: skip
def test_a_partition_that_draws_from_elsewhere_is_told_of_also_inside_one_of_the_package(partition):
    with pytest.warns(UserWarning, match="deals other samples when it is called again"):
        fed("digits", partition=partition)


# --- what is refused --------------------------------------------------------------------------------------------------


def masked(x) -> np.ma.MaskedArray:
    return np.ma.masked_greater(np.asarray(x), 0)


def inputs(change) -> None:
    """Takes inputs that are no array of numbers, first to train on and then to test on; raises what both do."""
    x, y = RNG.random((20, 5)).round(2), np.arange(20) % 2
    with pytest.raises(ValueError) as e:
        fed(((change(x), y), (x, y)))
    assert "\n" not in str(e.value)
    fed(((x, y), (change(x), y)))


def table() -> None:
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame({"a": RNG.random(20), "b": range(20)}).astype({"b": "Int64"})
    y = pd.Series(np.arange(20) % 2, dtype="Int64")
    assert fed((x.assign(b=x.b / 20), y)).x.shape == (16, 2)
    fed((x.assign(b=x.b.where(x.b > 3)), y))


def replaced(**change) -> fc.Federation:
    return fed(dataclasses.replace(fc.data.load((X, Y)), **change))


def owned(*owner) -> fc.Federation:
    return fed(PACK | {"train_owner": [*owner, *owner[1:] * 58][:60]})


TWO = [(X[:30], Y[:30]), (X[30:], Y[30:])]
HALVES = [Subset(DATA, range(45)), Subset(DATA, range(45, 60))]
ALONE = [(np.full((n, 3), n, np.float32), np.array(labels)) for n, labels in ((1, [2]), (6, [0, 1, 0, 1, 0, 1]))]
REFUSED = {
    "labels as a column": (lambda: labelled(lambda y: y[:, None]), r"y.ravel\(\)"),
    "labels as text": (lambda: labelled(lambda y: y.astype(str)), "np.unique"),
    "labels from -1": (lambda: labelled(lambda y: y - 1), "labels run from -1"),
    "labels with fractions": (lambda: labelled(lambda y: y + 0.5), "not integers"),
    "missing labels": (lambda: labelled(lambda y: [None, *y[1:]]), "values are missing"),
    "masked inputs": (lambda: inputs(masked), "masked"),
    "a list of masked inputs": (lambda: inputs(lambda x: [masked(row) for row in x]), "masked"),
    "a sparse tensor": (lambda: inputs(lambda x: torch.tensor(x).to_sparse()), r"x.to_dense\(\)"),
    "complex inputs": (lambda: inputs(lambda x: torch.tensor(x) * 1j), "complex|numbers"),
    "a table's missing inputs": (table, "missing"),
    "an owner that is NaN": (lambda: owned(np.nan, 1.0), "owner"),
    "owners of two kinds": (lambda: owned("a", np.nan), "mixes"),
    "owners of another kind in the test set": (
        lambda: fed(PACK | {"train_owner": Y, "test_owner": TY.astype(str)}), "numbers and texts"),
    "validation data without labels": (lambda: splits(validation=(TX[:6], TY)), "validation inputs"),
    "validation data of another type": (lambda: splits(val=(TX / 255, TY)), "validation images float64"),
    "test data for one of two clients": (lambda: splits(train=TWO, test=[TEST]), "1 clients .*lists of as many cli"),
    "validation data for three of two": (lambda: splits(train=TWO, val=[TEST] * 3), "3 clients .*lists of as many cli"),
    "a source's other labels": (lambda: replaced(train_y=np.full(48, 3)), "labels run from"),
    "a source's NaN": (lambda: replaced(train_x=np.full((48, 1, 6, 6), np.nan)), "NaN"),
    "a source's cut test images": (lambda: replaced(test_x=X[:12, :, :3]), "differ in shape"),
    "a source's empty test set": (lambda: replaced(test_x=X[:0], test_y=Y[:0]), "test set is empty"),
    "a source's few owners": (lambda: replaced(train_owner=np.zeros(3)), "one owner per sample"),
    "a source's fewer samples": (lambda: replaced(train_x=X[:9], train_y=Y[:9]), "given=None"),
    "a list of training and test data": (lambda: fed(HALVES, clients=4), r"list of two.*clients=4.*tuple"),
    "public data that take a client's last sample": (
        lambda: fed((ALONE, ALONE), clients=None, public=1),
        "take all samples of 1 of 2 clients; use a smaller public, or clients=1"),
    "index arrays for two of three clients": (lambda: dealt([0, 1], [2]), "clients=3.* 2 index arrays"),
    "index arrays beyond the samples": (lambda: dealt([0, 1], [2, 5000], [3]), "0 to 5000.* 60 samples.* 0 to 59"),
    "negative index arrays": (lambda: dealt([0, -1], [2], [3]), "from -1.* 0 to 59"),
    "an index at two clients": (lambda: dealt([0, 1], [2, 7], [9, 1]), "index 1.*twice.*overlapping = True"),
    "a client without index": (lambda: dealt([0, 1], [], [3]), r"client 1.*\(0,\)"),
    "a mask for an index array": (lambda: dealt([0, 1], [3], [True] * 60), r"client 2.*bool.*np.flatnonzero\(mask\)"),
    "a function that deals samples twice": (lambda: fed(partition=lambda y, n, rng: [np.arange(9)] * n), "twice"),
}  # fmt: skip
NO_DATA = {
    "a loader": (lambda: fed(DataLoader(DATA, 8)), r"DataLoader is loader\.dataset"),
    "pairs of training and test data": (lambda: fed([((X, Y), TEST)] * 2), r"of two .*\[\(test_x, test_y\), ...\]"),
    "a partition of two arguments": (lambda: fed(partition=Short()), r"a function \(labels, clients, rng, owner\)"),
    "a function of one argument": (lambda: fed(partition=lambda y: [y]), r"a function \(labels, clients, rng\)"),
    "a function that gives a generator": (lambda: fed(partition=lambda y, n, rng: (i for i in y)), "gave a generator"),
    "the class of a partition": (lambda: fed(partition=fc.IID), r"a function \(labels, clients, rng\)"),
    "the name of a partition": (lambda: fed(partition="iid"), "an object with split"),
}


class Short:
    def split(self, labels, clients):
        return np.array_split(np.arange(len(labels)), clients)


def dealt(*parts) -> fc.Federation:
    return fed(partition=list(parts), clients=3)


@pytest.mark.parametrize("what", REFUSED | NO_DATA)
def test_such_data_are_refused_with_the_cure(what):
    call, words = (REFUSED | NO_DATA)[what]
    with pytest.raises(ValueError if what in REFUSED else TypeError, match=words):
        call()


def test_what_resembles_refused_data_and_is_clear_is_taken():
    for name in ("test", "validation"):
        assert splits(**{"train": TWO, name: [TEST, (TX[:0], TY[:0])]}).n == splits(**{"train": TWO, name: TEST}).n == 2
    assert fed(HALVES, clients=2).n == fed(HALVES, clients=None).n == 2
    assert fed(tuple(HALVES), clients=4).n == 4
    assert fed(HALVES, clients=1, partition=fc.ByOwner(subset=True)).n == 1
    with warnings.catch_warnings(action="error"):  # whole numbers that are targets of a regression
        assert fed((FEATURES, 2.0 * Y), loss=lambda z, y: (z[:, 0] - y) ** 2).y.is_floating_point()


# --- channels of images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "sample"), [
    ((8, 8, 4), (4, 8, 8)), ((4, 8, 8), (4, 8, 8)), ((8, 8, 12), (12, 8, 8)), ((12, 8, 8), (12, 8, 8)),
    ((16, 4, 4), (16, 4, 4)), ((7, 9, 4), (4, 7, 9)), ((7, 9, 3), (3, 7, 9)), ((1, 7, 9), (1, 7, 9)),
    ((1, 1, 1), (1, 1, 1)),
])  # fmt: skip
def test_channels_are_the_odd_axis_first_or_last(shape, sample):
    x = RNG.integers(0, 256, (20, *shape), dtype=np.uint8)
    source = fc.data.load(((x, np.arange(20) % 2), (x, np.arange(20) % 2)))
    wanted = x if shape == sample else x.transpose(0, 3, 1, 2)
    assert np.array_equal(source.train_x, wanted)
    assert np.array_equal(source.test_x, wanted)


@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 8, 16), (3, 9, 3), (8, 3, 3)])
def test_images_whose_channels_may_be_first_or_last_are_asked_about(shape):
    x, y = RNG.integers(0, 256, (20, *shape), dtype=np.uint8), np.arange(20) % 2
    for layout in (None, "image"):
        with pytest.raises(ValueError, match=r"layout='channels_first'.*layout='channels_last'"):
            fc.data.load((x, y), layout=layout)
    assert fc.data.load((x, y), layout="channels_first").train_x.shape[1:] == shape
    made = fed((x, y), layout="channels_last")
    assert made.source.train_x.shape[1:] == (shape[2], *shape[:2])
    again = made.with_public(255 - x.transpose(0, 3, 1, 2), y)  # as the source has them
    assert again.public[0].shape[1:] == made.x.shape[1:]


def test_pictures_become_what_they_show():
    Image = pytest.importorskip("PIL.Image")
    colours = RNG.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    pictures = [Image.fromarray(c) for c in colours]

    def read(change):
        return fc.data.load(([change(im) for im in pictures], np.arange(20) % 2)).train_x

    assert np.array_equal(read(lambda im: im)[0], colours[0].transpose(2, 0, 1))
    for mode, channels in (("P", 3), ("CMYK", 3), ("RGBA", 4), ("LA", 2), ("L", 1), ("1", 1)):
        x = read(lambda im: im.convert(mode))  # noqa: B023
        assert (x.shape[1:], x.dtype) == ((channels, 6, 5), np.uint8)
    shown = np.asarray(pictures[0].quantize(4).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(read(lambda im: im.quantize(4))[0], shown)
    assert set(np.unique(read(lambda im: im.convert("1")))) == {0, 255}


def test_pictures_that_are_targets_keep_the_numbers_of_their_classes():
    Image = pytest.importorskip("PIL.Image")
    x, y = RNG.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8), RNG.integers(0, 3, (20, 6, 5), dtype=np.uint8)
    for mask, mode in ((y, "P"), (y > 0, "1")):
        pictures = [Image.fromarray(part) for part in mask]
        for picture in pictures if mode == "P" else ():
            picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        assert {picture.mode for picture in pictures} == {mode}
        items = list(zip(map(Image.fromarray, x), pictures, strict=True))
        for source in (([a for a, _ in items], pictures), h.Items(items)):
            assert np.array_equal(fc.data.load(source, targets=True).train_y[:4], mask[:4])


# --- mappings, sources and datasets -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("key", ["validation", "val", "valid"])
def test_a_mappings_validation_data_are_the_validation_data(key):
    splits = {"train": (X, Y), "test": TEST, key: (TX[:6], TY[:6])}
    for validation in (False, True):
        made = fed(splits, validation=validation)
        assert len(made.y) == 60
        assert np.array_equal(made.on_validation().test[0], TX[:6])


@pytest.mark.usefixtures("silent")
def test_a_source_is_the_same_however_its_samples_are_held():
    source = fc.data.load(((X, Y), TEST))
    other = dataclasses.replace(source, train_x=torch.tensor(source.train_x), train_y=source.train_y.tolist())
    assert fed(source).fingerprint() == fed(other).fingerprint() == fed().fingerprint()


class Pairs(Dataset):
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


@pytest.mark.parametrize("make", [
    Pairs, lambda x, y: Pairs(x, y, torch.tensor), lambda x, y: Columns(image=x, label=y),
    lambda x, y: Columns(labels=y.tolist(), img=list(x)), lambda x, y: Subset(Pairs(x, y), range(len(y))),
])  # fmt: skip
def test_a_dataset_is_the_source_that_its_arrays_are(make):
    assert fed((make(X, Y), make(TX, TY))).fingerprint() == fed().fingerprint()
    one = fc.data.load(make(X, Y))
    assert np.array_equal(one.test_x, X[4::5])
    assert np.array_equal(one.train_y, fc.data.load((X, Y)).train_y)
    assert "datasets" not in sys.modules


def test_the_number_of_classes_is_that_of_the_label_column():
    assert fed((Columns(7, image=X, label=Y), Columns(7, image=TX, label=TY))).classes == 7


def test_an_item_is_read_once_and_a_dataset_may_return_one_buffer_for_all_its_items():
    buffer, seen = np.empty_like(X[0]), []

    def reused(x):
        seen.append(0)
        buffer[...] = x
        return buffer

    assert np.array_equal(fc.data.load(Pairs(X, Y, reused)).test_x, X[4::5])
    assert len(seen) == 60


# --- clients one by one -----------------------------------------------------------------------------------------------


CUTS = [slice(0, 5), slice(5, 17), slice(17, 60)]


@pytest.mark.parametrize("make", [lambda x, y: (x, y), lambda x, y: (torch.tensor(x), y.tolist()), Pairs])
def test_a_list_of_clients_is_a_federation_of_these_clients(make):
    given = fed(([make(X[cut], Y[cut]) for cut in CUTS], TEST), clients=None)
    assert given.sizes.tolist() == [5, 12, 43]
    for i, cut in enumerate(CUTS):
        assert np.array_equal(given.x[torch.as_tensor(given.index[i])].numpy(), X[cut])
        assert np.array_equal(given.y[torch.as_tensor(given.index[i])].numpy(), Y[cut])


def test_without_a_test_set_every_fifth_sample_of_each_client_is_held_out():
    given = fed([(X[cut], Y[cut]) for cut in CUTS], clients=3)
    assert given.sizes.tolist() == [4, 10, 35]
    assert given.source.test_owner.tolist() == [0, 1, 1, *[2] * 8]
    assert np.array_equal(given.source.test_x, X[[4, 9, 14, *range(21, 60, 5)]])


def test_clients_with_test_data_of_their_own_are_evaluated_on_them():
    clients, tests = ([(x[a], y[a]) for a in (slice(0, 6), slice(6, 15))] for x, y in ((X, Y), TEST))
    given = fed((clients, tests), clients=None)
    own = given.evaluate_clients(given.x0.expand(2, -1))["own_accuracy"]
    hits = given.correct(given.x0).double()
    h.close(own, [hits[:6].mean(), hits[6:].mean()], 1e-15)


# --- partitions of one's own ------------------------------------------------------------------------------------------


def test_a_partition_may_be_a_plain_function_that_may_change_the_labels_that_it_is_given():
    def dealt(labels, clients, rng):
        assert labels.tolist() == Y.tolist()
        labels[:] = 0
        return np.array_split(rng.permutation(len(labels)), clients)

    made = fed(partition=dealt)
    assert made.fingerprint() == fed(partition=dealt).fingerprint() != fed(partition=dealt, seed=1).fingerprint()
    assert np.array_equal(made.source.train_y, Y)
    assert sorted(made.index.rows) == list(range(60))
    assert "partition=dealt" in repr(made)


@pytest.mark.parametrize("kind", [list, torch.as_tensor, lambda part: part.astype(np.uint8)])
def test_index_arrays_say_which_sample_is_whose(kind):
    parts = np.split(RNG.permutation(60)[:30], [3, 10])  # ten belong to nobody
    given = fed(partition=[kind(part) for part in parts], clients=None)
    assert [index.tolist() for index in given.index] == [part.tolist() for part in parts]
    assert given.index[0].dtype == np.int64
    assert "3 index arrays" in repr(given)


def test_index_arrays_count_the_samples_as_they_were_given():
    parts = [np.arange(0, 13), np.arange(13, 60)]
    whole = fed(partition=parts, clients=2)
    for options in ({"source": (X, Y)}, {"public": 2}, {"source": (X, Y), "validation": True}):
        given = fed(partition=parts, clients=2, **options)
        rows = [given.x[torch.as_tensor(index)].numpy() for index in given.index]
        assert len(given.x) == sum(map(len, rows)) < 60  # some were taken out, and nobody else got the others
        for mine, index in zip(rows, whole.index, strict=True):
            assert {row.tobytes() for row in mine} <= {row.tobytes() for row in X[index]}
    taken = np.concatenate([given.source.validation[0], given.source.test_x, given.source.train_x])
    assert sorted(row.tobytes() for row in taken) == sorted(row.tobytes() for row in X)
    assert (given.source.given[given.source.given >= 0] == np.arange(len(given.y))).all()


# --- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype", "layout", "sample"), [
    ((20, 6, 5), np.uint8, None, (1, 6, 5)), ((20, 6, 6), np.float64, None, (1, 6, 6)), ((20, 7), int, None, (7,)),
    ((20, 6, 5), np.float32, "image", (1, 6, 5)), ((20, 6, 6), np.float32, "sequence", (6, 6)),
    ((20, 6), np.float32, "sequence", (6,)), ((20,), np.float32, "features", (1,)), ((20, 6), np.int64, "text", (6,)),
    ((20, 5, 4, 3), np.uint8, "image", (3, 5, 4)),
])  # fmt: skip
def test_a_layout_says_what_a_sample_is(shape, dtype, layout, sample):
    x = RNG.integers(0, 9, shape).astype(dtype)
    source = fc.data.load((x, np.arange(20) % 2), layout=layout)
    assert source.train_x.shape == (16, *sample)
    assert source.text == (layout == "text")
    assert layout is None or source.layout == ("features" if shape == (20, 6) and layout == "sequence" else layout)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("layout", ["features", "sequence"])
def test_features_and_sequences_are_numbers_that_nobody_normalises(layout, dtype):
    x = RNG.integers(0, 200, (40, 5) if layout == "features" else (40, 5, 2)).astype(dtype)
    given = fed((x, np.arange(40) % 3), layout=layout, dtype=torch.float64)
    assert np.array_equal(given.inputs(given.x[:3]).numpy(), given.source.train_x[:3])
    h.close(given.evaluate(given.x0)["loss"], nn.functional.cross_entropy(
        given.engine.module(given.test[0].double()), given.test[1]), 1e-12)  # fmt: skip


def test_a_path_without_rules_for_sequences_says_so():
    # over the channels of pictures, and what torch.vmap does not take
    model = nn.Sequential(nn.LogSoftmax(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(15, 2))
    given = {"source": (RNG.normal(size=(30, 5, 3)), np.arange(30) % 2), "layout": "sequence", "model": model}
    with pytest.raises(ValueError, match=r"path='batched'.*samples \(5, 3\).*'auto' or 'sequential'"):
        fed(**given, path="batched")
    for path in ("written", "batched"):
        with pytest.raises(ValueError, match=rf"path='{path}' has no rule for"):
            fed(**given).forced(path)
    assert fed(**given).fastest(2, 4).engine.path == "sequential"


def test_unit_and_half_fill_their_range_by_255_or_the_largest_byte_and_unit_leaves_floats():
    for x, scale in ((X, 255.0), (X / 255, 1.0)):
        made = fed(((x, Y), (x, Y)), normalise="unit", dtype=torch.float64)
        assert torch.equal(made.inputs(made.x), made.x.double() / scale)
    for normalise, low in (("unit", 0.0), ("half", -1.0)):
        made = fed("digits", normalise=normalise)
        inputs = made.inputs(made.x)
        assert (float(inputs.min()), float(inputs.max())) == (low, 1.0)
