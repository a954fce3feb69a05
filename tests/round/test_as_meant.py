"""What is given is read as it is meant, or refused with a cure; and it may be changed afterwards."""

from __future__ import annotations

import dataclasses
import random
import warnings

import helpers as h
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fedcore as fc
from fedcore.data.arrays import as_array

X, Y = h.images(60, (1, 6, 6), 3)
TX, TY = h.images(15, (1, 6, 6), 3, seed=1)
RNG = np.random.default_rng(0)


def fed(source=((X, Y), (TX, TY)), **options) -> fc.Federation:
    return fc.federation(source, **{"clients": 4, "model": "logistic", **options})


@pytest.fixture
def silent():
    """What warns, fails."""
    with warnings.catch_warnings(action="error"):
        yield


# --- copies ---------------------------------------------------------------------------------------------------------


def zeroed(*given) -> None:
    for part in given:
        part[...] = 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, np.float32, np.int64])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize("form", [
    lambda x, y, tx, ty, o: ((x, y), (tx, ty)), lambda x, y, tx, ty, o: {"train": (x, y), "test": (tx, ty)},
    lambda x, y, tx, ty, o: {"train": (x, y), "test": (tx, ty), "validation": (tx, ty)},
    lambda x, y, tx, ty, o: ([(x, y), (tx, ty)], [(tx, ty)] * 2), lambda x, y, tx, ty, o: (x, y),
    lambda x, y, tx, ty, o: {"train_images": x, "train_labels": y, "test_images": tx, "test_labels": ty,
                             "train_owner": o},
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:the images")
def test_data_may_be_changed_after_the_federation_was_made(form, kind, dtype):
    given = [kind(part) for part in (X.astype(dtype), Y, TX.astype(dtype), TY, Y)]
    made = fed(form(*given), clients=2)
    before, answers = made.fingerprint(), made.evaluate(made.x0)
    zeroed(*given)
    assert made.fingerprint() == before
    assert made.evaluate(made.x0) == answers
    assert made.on_validation().evaluate(made.x0) if made.source.validation else True


def test_a_source_and_data_by_name_may_be_changed_afterwards():
    source = fc.data.load(((X, Y), (TX, TY)))
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
    assert str(made.partition) == "<4 index arrays>"
    assert made.partition.parts[1][0] == 15
    assert torch.equal(fc.simulate(fc.FedAvg(), own, rounds=0).params, x0)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_quadratics_matrices_and_capacities_may_be_changed_afterwards(kind):
    A, b, x0, W = (kind(part) for part in (np.eye(2)[None], np.ones((1, 2)), np.ones(2), np.full((2, 2), 0.5)))
    capacities = {1.0: 0.5, 0.5: 0.5}
    problem, matrix, method = fc.quadratic(A, b, x0), fc.Matrix(W), fc.HeteroFL(capacities)
    zeroed(A, b, x0, W)
    capacities[1.0] = 0.0
    assert problem.A.sum() == problem.b.sum() == problem.x0.sum() == 2
    assert matrix.W.sum() == 2
    assert method == fc.HeteroFL({1.0: 0.5, 0.5: 0.5})
    public = [kind(X[:6]), kind(Y[:6])]
    method = fc.FedGSE(public=tuple(public))
    zeroed(*public)
    assert method == fc.FedGSE(public=(X[:6], Y[:6]))
    with pytest.raises(ValueError, match="masked"):
        fc.FedGSE(public=(np.ma.masked_less(X[:6], 99), Y[:6]))


def test_a_partition_of_ones_own_may_change_the_labels_and_owners_that_it_is_given():
    class Sorting:
        def split(self, labels, clients, rng, owner):
            for part in (labels, owner):
                part.sort()
                part[:] = 0
            return np.array_split(np.arange(len(labels)), clients)

    source = fc.data.load(([(X[:30], Y[:30]), (X[30:], Y[30:])], [(TX, TY)] * 2))
    made = fed(source, partition=Sorting())
    assert np.array_equal(made.source.train_y, Y)
    assert np.array_equal(made.source.train_owner, np.repeat([0, 1], 30))


# --- scale and channels of images -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    lambda x: x.astype(np.float32), lambda x: x.astype(np.float64), lambda x: x.astype(np.int64),
    lambda x: x.astype(np.uint16), lambda x: x.astype(np.float16), lambda x: torch.tensor(x).bfloat16(),
    lambda x: x.astype(float).tolist(), lambda x: x.astype(np.float32) - 120.5, lambda x: x.astype(np.int32) * 200,
    lambda x: (x % 17).astype(np.float64), lambda x: torch.tensor(x).float()[:, 0],
])  # fmt: skip
def test_images_on_the_scale_of_bytes_are_told_of(change):
    for normalise in ("pooled", "half"):
        with pytest.warns(UserWarning, match=r"images .*x.astype\(np.uint8\).*x / \d+") as told:
            fc.federation(((change(X), Y), (change(TX), TY)), 2, model="logistic", normalise=normalise)
        assert told[0].filename == __file__


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("change", [
    lambda x: x, lambda x: x / 255, lambda x: (x > 128).astype(float), lambda x: x / 127.5 - 1,
    lambda x: ((x - x.mean()) / x.std()).astype(np.float32), lambda x: torch.tensor(x) / 255,
    lambda x: 10 * ((x - x.mean()) / x.std()),
])  # fmt: skip
def test_images_of_bytes_or_of_size_1_are_not_spoken_of(change):
    fed(((change(X), Y), (change(TX), TY)))


@pytest.mark.usefixtures("silent")
def test_images_that_each_client_normalises_have_no_wrong_scale():
    fed(((X.astype(float), Y), (TX.astype(float), TY)), normalise="client")


def test_a_packs_float_images_are_told_of_too(tmp_path):
    np.savez(tmp_path / "mine.npz", train_images=X.astype(float), train_labels=Y, test_images=TX.astype(float),
             test_labels=TY)  # fmt: skip
    with pytest.warns(UserWarning, match="images"):
        fed("mine", root=tmp_path)


def test_flattened_bytes_are_told_of():
    with pytest.warns(UserWarning, match="features are uint8 from 0 to 255"):
        fed(((X.reshape(60, -1), Y), (TX.reshape(15, -1), TY)))


@pytest.mark.parametrize(("shape", "sample"), [
    ((8, 8, 4), (4, 8, 8)), ((4, 8, 8), (4, 8, 8)), ((8, 8, 12), (12, 8, 8)), ((12, 8, 8), (12, 8, 8)),
    ((16, 4, 4), (16, 4, 4)), ((8, 8, 2), (2, 8, 8)), ((7, 9, 4), (4, 7, 9)), ((4, 7, 9), (4, 7, 9)),
    ((7, 9, 3), (3, 7, 9)), ((1, 7, 9), (1, 7, 9)), ((1, 1, 1), (1, 1, 1)), ((64, 64, 200), (200, 64, 64)),
])  # fmt: skip
def test_channels_are_the_odd_axis_first_or_last(shape, sample):
    x = RNG.integers(0, 256, (20, *shape), dtype=np.uint8)
    source = fc.data.load(((x, np.arange(20) % 2), (x, np.arange(20) % 2)))
    assert source.train_x.shape[1:] == source.test_x.shape[1:] == sample
    wanted = x if shape == sample else x.transpose(0, 3, 1, 2)
    assert np.array_equal(source.train_x, wanted)


@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 8, 16), (3, 3, 3), (3, 9, 3), (2, 5, 4), (8, 3, 3)])
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
    y = np.arange(20) % 2
    pictures = [Image.fromarray(c) for c in colours]
    for mode in ("RGB", "P", "CMYK"):
        x = fc.data.load(([im.convert(mode) for im in pictures], y)).train_x
        assert x.shape == (16, 3, 6, 5)
    assert np.array_equal(fc.data.load((pictures, y)).train_x[0], colours[0].transpose(2, 0, 1))
    palette = pictures[0].quantize(4)
    shown = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(as_array(palette), shown)
    for mode, channels in (("RGBA", 4), ("LA", 2), ("L", 1), ("1", 1)):
        x = fc.data.load(([im.convert(mode) for im in pictures], y)).train_x
        assert x.shape[1:] == (channels, 6, 5)
        assert x.dtype == np.uint8
    black = as_array(Image.fromarray(np.eye(4, dtype=bool)))
    assert np.array_equal(black, 255 * np.eye(4))
    deep = [Image.fromarray(RNG.integers(0, 65536, (6, 5), dtype=np.uint16)) for _ in y]
    with pytest.warns(UserWarning, match="images are float32 from"):
        fed((deep, y), layout="image")


def test_pictures_that_are_targets_keep_the_numbers_of_their_classes():
    Image = pytest.importorskip("PIL.Image")
    x, y = RNG.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8), RNG.integers(0, 3, (20, 6, 5), dtype=np.uint8)
    for mask in (y, y > 0):
        pictures = [Image.fromarray(part) for part in mask]
        for picture in pictures if mask is y else ():
            picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        assert {picture.mode for picture in pictures} == {"P" if mask is y else "1"}
        items = list(zip(map(Image.fromarray, x), pictures, strict=True))
        for source in (([a for a, _ in items], pictures), h.Items(items)):
            assert np.array_equal(fc.data.load(source, targets=True).train_y[:4], mask[:4])


@pytest.mark.parametrize("change", [
    lambda x: 255.0 * x, lambda x: 300.0 * x - 150, lambda x: np.where(x > 0.9, 1e6, x),
    lambda x: torch.tensor(1000 * x),
])  # fmt: skip
@pytest.mark.parametrize(("shape", "layout"), [((60, 36), None), ((60, 6, 6), "sequence")])
def test_features_on_the_scale_of_bytes_are_told_of_whatever_their_type(change, shape, layout):
    x = RNG.random(shape)
    with pytest.warns(UserWarning, match="are used as they are") as told:
        fed((change(x), np.arange(60) % 3), layout=layout)
    assert told[0].filename == __file__


@pytest.mark.parametrize(("change", "other"), [
    (lambda x: x / 255, lambda x: 1.0 * x), (lambda x: x, lambda x: np.uint8(x > 100)),
    (lambda x: x / 255 - 0.5, lambda x: x - 127.5), (lambda x: x.reshape(-1, 36) / 255, lambda x: x.reshape(-1, 36)),
])  # fmt: skip
@pytest.mark.parametrize("validation", [False, True])
def test_test_inputs_on_another_scale_than_the_training_inputs_are_told_of(change, other, validation):
    test = (other(TX), TY)
    source = ((change(X), Y), test)
    if validation:
        source = {"train": (change(X), Y), "test": (change(TX), TY), "validation": test}
    with pytest.warns(UserWarning, match=f"{'validation' if validation else 'test'} inputs reach .* training inputs"):
        fed(source, normalise="pooled")


@pytest.mark.usefixtures("silent")
def test_features_of_size_1_and_the_digits_of_scikit_learn_have_no_wrong_scale():
    for x in (RNG.standard_normal((60, 5)), 16 * RNG.random((60, 5)).round(1), 3 * RNG.standard_normal((60, 5))):
        fed(((x, Y), (x[:15], TY)))


@pytest.mark.parametrize("call", [
    lambda made, x: made.evaluate(x), lambda made, x: made.module(x), lambda made, x: made.correct(x),
    lambda made, x: made.objective(x), lambda made, x: made.evaluate_clients(np.ma.stack([x] * 4)),
])  # fmt: skip
def test_parameters_with_a_mask_are_refused(call):
    made = fed()
    with pytest.raises(ValueError, match="masked"):
        call(made, np.ma.masked_less(made.x0.numpy(), 0))
    with pytest.raises(ValueError, match="masked"):
        fc.quadratic([[[1.0]]], [[1.0]]).evaluate(np.ma.masked_equal([1.0], 1))


# --- labels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "words"), [
    (lambda y: y + 1, "no sample has a label of 0, but labels up to 3 make 4 classes"),
    (lambda y: np.where(y == 2, 900, 5), "make 901 classes.*np.unique"),
    (lambda y: 0 * y, "all 60 training samples have the label 0"),
    (lambda y: torch.tensor(y + 1), "no sample has a label of 0"),
    (lambda y: (y + 1).astype(float).tolist(), "no sample has a label of 0"),
])  # fmt: skip
def test_labels_that_are_not_0_to_c_1_are_told_of(change, words):
    with pytest.warns(UserWarning, match=words) as told:
        fed(((X, change(Y)), (TX, change(TY))))
    assert told[0].filename == __file__


@pytest.mark.parametrize(("labels", "words"), [
    (lambda y: np.eye(3)[y], r"y.argmax\(1\)"), (lambda y: y[:, None], r"y.ravel\(\)"),
    (lambda y: y.astype(str), "np.unique"), (lambda y: [str(k) for k in y], "np.unique"),
    (lambda y: [str(k).encode() for k in y], "np.unique"),
    (lambda y: y - 1, "labels run from -1"), (lambda y: y + 0.5, "not integers"), (lambda y: y * 1j, "not integers"),
    (lambda y: np.ma.masked_equal(y, 1), "values are masked"), (lambda y: [None, *y[1:]], "values are missing"),
])  # fmt: skip
def test_labels_that_are_no_whole_numbers_are_refused_with_the_cure(labels, words):
    with pytest.raises(ValueError, match=words):
        fed(((X, labels(Y)), (TX, labels(TY))))


def test_a_packs_labels_are_told_of_too(tmp_path):
    np.savez(tmp_path / "mine.npz", train_images=X, train_labels=Y + 1, test_images=TX, test_labels=TY + 1)
    with pytest.warns(UserWarning, match="no sample has a label of 0"):
        fed("mine", root=tmp_path)


@pytest.mark.usefixtures("silent")
def test_labels_of_a_known_number_of_classes_and_truth_values_are_not_spoken_of(tmp_path):
    assert fed(((X, Y > 0), (TX, TY > 0))).classes == 2
    np.savez(tmp_path / "femnist.npz", train_images=X, train_labels=Y + 40, test_images=TX, test_labels=TY + 40)
    assert fed("femnist", root=tmp_path).classes == 62


# --- what is no array of numbers ------------------------------------------------------------------------------------


def masked(x) -> np.ma.MaskedArray:
    return np.ma.masked_greater(np.asarray(x), 0)


AWKWARD = {
    "masked": (masked, "masked"),
    "list of masked": (lambda x: [masked(row) for row in x], "masked"),
    "second of a list": (lambda x: [x[0].tolist(), *map(masked, x[1:])], "masked"),
    "nested lists of masked": (lambda x: [[masked(row)] for row in x], "masked"),
    "sparse": (lambda x: torch.tensor(x).to_sparse(), r"x.to_dense\(\)"),
    "csr": (lambda x: __import__("scipy.sparse").sparse.csr_matrix(x.reshape(len(x), -1)), r"x.toarray\(\)"),
    "quantised": (lambda x: torch.quantize_per_tensor(torch.tensor(x).float(), 1.0, 0, torch.qint8), "dequantize"),
    "nested": (lambda x: torch.nested.nested_tensor(list(torch.tensor(x).float())), "to_padded_tensor"),
    "meta": (lambda x: torch.tensor(x).to("meta"), "no values"),
    "missing": (lambda x: np.where(x > 0.5, x, None), "missing"),
    "complex": (lambda x: x * 1j, "complex|numbers"),
    "text": (lambda x: x.astype(str), "numbers|array of"),
    "masked tensor": (lambda x: torch.masked.masked_tensor(torch.tensor(x), torch.tensor(x > 0.5)), "plain tensor"),
    "complex tensor": (lambda x: torch.tensor(x) * 1j, "complex|numbers"),
}


@pytest.mark.parametrize("form", [
    lambda one: one, lambda one: [one, one], lambda one: (one, one), lambda one: ([one, one], one),
    lambda one: ((X, Y), one), lambda one: {"train": (X, Y), "test": one}, lambda one: (X, one),
])  # fmt: skip
def test_loaders_are_asked_for_their_samples(form):
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 8)
    with pytest.raises(TypeError, match=r"DataLoader; use its samples, loader\.dataset"):
        fed(form(loader))
    assert fed(loader.dataset).n == 4


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["test", "validation"])
def test_lists_for_other_numbers_of_clients_are_refused(name, count):
    given = {"train": [(X[:30], Y[:30]), (X[30:], Y[30:])], "test": (TX, TY), name: [(TX, TY)] * count}
    with pytest.raises(ValueError, match=f"2 clients have training data, and {count} {name} data; give one for each"):
        fed(given, clients=2)
    assert fed(given | {name: [(TX, TY), (TX[:0], TY[:0])]}, clients=2).n == 2
    assert fed(given | {name: (TX, TY)}, clients=2).n == 2


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:torch.quantize", "ignore:The PyTorch API of Mask"
)
@pytest.mark.parametrize("kind", AWKWARD)
def test_inputs_that_are_no_array_of_numbers_are_refused_with_the_cure(kind):
    make, words = AWKWARD[kind]
    x = RNG.random((20, 5)).round(2)
    for train, test in ((make(x), x), (x, make(x))):
        with pytest.raises(ValueError, match=words) as e:
            fed(((train, np.arange(20) % 2), (test, np.arange(20) % 2)))
        assert "\n" not in str(e.value)


def test_tables_with_missing_values_are_refused_and_others_read():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame({"a": RNG.random(20), "b": range(20)}).astype({"b": "Int64"})
    y = pd.Series(np.arange(20) % 2, dtype="Int64")
    assert fed((x.assign(b=x.b / 20), y)).x.shape == (16, 2)
    with pytest.raises(ValueError, match="missing"):
        fed((x.assign(b=x.b.where(x.b > 3)), y))
    with pytest.raises(ValueError, match="missing"):
        fed((x[["a"]], y.where(x.b > 3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_short_floats_are_read_as_float32(dtype):
    x = torch.rand(20, 5).to(dtype)
    made = fed((x, torch.arange(20) % 2), layout="features")
    assert made.x.dtype == torch.float32
    assert torch.equal(made.x[:4], x[:4].float())


@pytest.mark.parametrize("owner", [
    [np.nan, *range(59)], [None, *range(59)], ["a", np.nan, *"b" * 58], ["a", None, *"b" * 58],
])  # fmt: skip
def test_a_sample_without_owner_is_refused(owner):
    pack = {"train_images": X, "train_labels": Y, "test_images": TX, "test_labels": TY, "train_owner": owner}
    for partition in (fc.IID(), fc.ByOwner()):
        with pytest.raises(ValueError, match=r"owner|missing|mixes"):
            fed(pack, partition=partition)


# --- mappings -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("key", ["validation", "val", "valid"])
def test_a_mappings_validation_data_are_the_validation_data(key):
    splits = {"train": (X, Y), "test": (TX, TY), key: (TX[:6], TY[:6])}
    for validation in (False, True):
        made = fed(splits, validation=validation)
        assert len(made.y) == 60
        assert np.array_equal(made.on_validation().test[0], TX[:6])


def test_validation_data_are_checked_as_the_others():
    with pytest.raises(ValueError, match="validation inputs"):
        fed({"train": (X, Y), "test": (TX, TY), "validation": (TX[:6], TY)})
    with pytest.raises(ValueError, match="validation images float64"):
        fed({"train": (X, Y), "test": (TX, TY), "validation": (TX / 255, TY)})


def test_keys_that_are_not_read_are_named():
    with pytest.warns(UserWarning, match="unsupervised of the source"):
        fed({"train": (X, Y), "test": (TX, TY), "unsupervised": (TX, TY)})
    pack = {"train_images": X, "train_labels": Y, "test_images": TX, "test_labels": TY}
    with pytest.warns(UserWarning, match="train_owners are not read"):
        fed(pack | {"train_owners": Y})


# --- partitions by a function ---------------------------------------------------------------------------------------


def test_a_partition_may_be_a_plain_function():
    def dealt(labels, clients, rng):
        assert labels.tolist() == Y.tolist()
        return np.array_split(rng.permutation(len(labels)), clients)

    made = fed(partition=dealt)
    assert made.fingerprint() == fed(partition=dealt).fingerprint() != fed(partition=dealt, seed=1).fingerprint()
    assert sorted(made.index.rows) == list(range(60))
    assert "partition=dealt" in repr(made)


@pytest.mark.parametrize(("partition", "exception", "words"), [
    (lambda labels: [labels], TypeError, "does not take what it is called with"),
    (lambda labels, clients, rng: labels, TypeError, "the partition gave a ndarray"),
    (lambda labels, clients, rng: [np.arange(9)] * clients, ValueError, "stands twice"),
    (lambda labels, clients, rng: [np.ma.masked_equal(np.arange(9), 3)] * clients, ValueError, "masked"),
    (fc.IID, TypeError, r"a function \(labels, clients, rng\)"), ("iid", TypeError, "an object with split"),
])  # fmt: skip
def test_a_function_that_deals_no_samples_is_refused(partition, exception, words):
    with pytest.raises(exception, match=words):
        fed(partition=partition)


def test_a_partition_class_with_other_arguments_is_told_so():
    class Short:
        def split(self, labels, clients):
            return np.array_split(np.arange(len(labels)), clients)

    with pytest.raises(TypeError, match=r"a method split\(labels, clients, rng, owner\)"):
        fed(partition=Short())


# --- numbers of quadratics, devices, names, models ------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    [[["1"]]], np.array([[[1j]]]), torch.ones(1, 1, 1) * 1j, np.ma.masked_equal([[[1.0]]], 1), [[[None]]],
    torch.ones(1, 1, 1).to_sparse(), torch.ones(1, 1, 1, device="meta"),
])  # fmt: skip
def test_quadratics_of_what_are_no_real_numbers_are_refused(wrong):
    for A, b, x0 in ((wrong, [[1.0]], None), ([[[1.0]]], wrong[0], None), ([[[1.0]]], [[1.0]], wrong[0][0])):
        with pytest.raises(ValueError, match="is no array of numbers") as e:
            fc.quadratic(A, b, x0)
        assert "\n" not in str(e.value)
    assert fc.quadratic(torch.ones(1, 1, 1).bfloat16(), [[1]]).A.item() == 1


@pytest.mark.parametrize("device", ["mps", "gpu", "hpu", "", "meta", "cpu:5", "xla", torch.device("meta"), "cuda:99"])
def test_a_device_that_is_not_here_is_one_line(device):
    for call in (lambda: fed(device=device), lambda: fc.quadratic([[[1.0]]], [[1.0]], device=device),
                 lambda: fc.topology.mixing(fc.Ring(), 4, device=device), lambda: fed().to(device)):  # fmt: skip
        with pytest.raises(ValueError, match=r"is not available here \(.*\); use 'cpu', 'cuda'") as e:
            call()
        assert len(str(e.value)) < 300
    assert fed(device=torch.device("cpu", 0)).device.type == "cpu"


def test_a_type_by_its_name_is_no_type():
    for dtype in ("torch.float32", "float32", np.float32, torch.float16):
        with pytest.raises((TypeError, ValueError), match=r"use torch.float32 or torch.float64"):
            fed(dtype=dtype)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: fc.Dirichlet(alpha=0.3), "takes no 'alpha'; did you mean 'q'"),
    (lambda: fc.DFedAvg(topology=fc.Ring()), "takes no 'topology'; did you mean 'mixing'"),
    (lambda: fc.FedUp(alhpa=0.1), "did you mean 'alpha'"), (lambda: fc.Shards(class_=2), "did you mean 'classes'"),
    (lambda: fc.RandAugment(magnitud=3), "did you mean 'magnitude'"),
    (lambda: fc.Matrix(conected=1), "did you mean 'connected'"),
    (lambda: fc.RandomRegular(degre=3), "did you mean 'degree'"), (lambda: fc.IID(seed=3), "takes no 'seed'"),
    (lambda: fc.submodels.Width(rate=0.5), "did you mean 'ratio'"), (lambda: fc.CropFlip(pad=4), "'padding'"),
    (lambda: fed(num_clients=4), "did you mean 'clients'"),
])  # fmt: skip
def test_a_name_of_another_package_is_answered_with_ours(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_classes_of_ones_own_keep_their_keywords():
    class Mine(fc.Method):
        def __init__(self, strength, **more):
            self.strength = strength

    class Bare(fc.Method):
        pass

    assert Mine(strength=3, other=4).strength == 3
    assert Mine(3).strength == 3
    for call in (lambda: Bare(3), lambda: Bare(strength=3), lambda: fc.topology.Topology(3), lambda: fc.Method(x=1)):
        with pytest.raises(TypeError, match="takes no arguments"):
            call()


@pytest.mark.parametrize("pairs", [[(1, 0.5, 3)], [(1,)], [(1, 0.5), ()]])
def test_capacities_that_are_no_pairs_are_one_line(pairs):
    with pytest.raises(ValueError, match=r"use pairs \(ratio, share\)"):
        fc.HeteroFL(pairs)


M = fc.models


@pytest.mark.parametrize("call", [
    lambda: M.mlp((4,), 3, hidden=(0,)), lambda: M.mlp((4,), 3, hidden=(-1,)), lambda: M.mlp((4,), 3, hidden=("a",)),
    lambda: M.mlp((4,), 3, hidden=(2.5,)), lambda: M.mlp((4,), 3, hidden=5), lambda: M.mlp((0,), 3),
    lambda: M.mlp((), 3), lambda: M.mlp((4,), 0), lambda: M.logistic((4,), -1), lambda: M.logistic((4,), 2.5),
    lambda: M.thesis_cnn((1, 8, 8), 3, widths=()), lambda: M.thesis_cnn((1, 8, 8), 3, widths=(4, 0)),
    lambda: M.resnet18_gn((3, 8, 8), 3, groups=0), lambda: M.resnet18_gn((3, 8, 8), 3, groups=3),
    lambda: M.resnet18_gn((3, 8, 8), 3, stem="7x7"), lambda: M.preact_resnet((3, 8, 8), 3, (1, 1)),
    lambda: M.lenet((3, 32, 32), 3, channels=(4,)), lambda: M.lenet((3, 32, 32), 3, hidden=(4, 4, 4)),
    lambda: M.lstm((8,), 3, hidden=0), lambda: M.build("mlp", (4,), 3, seed=-1), lambda: M.mlp((4,), 3, hiden=(3,)),
])  # fmt: skip
def test_models_of_no_size_are_refused(call):
    with pytest.raises((TypeError, ValueError), match=r"\b(use|did you mean)\b"):
        call()


def test_models_and_losses_of_complex_numbers_are_refused():
    class Complex(torch.nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(36, 3).to(dtype), requires_grad=False)

        def forward(self, x):
            return (x.flatten(1).to(self.w.dtype) @ self.w).real

    for dtype in (torch.complex64, torch.int32):
        with pytest.raises(ValueError, match=r"parameter 'w' is torch.*real floating-point"):
            fed(model=Complex(dtype))
    with pytest.raises(ValueError, match="complex"):
        fed(loss=lambda z, y: torch.nn.functional.cross_entropy(z, y, reduction="none") * (1 + 1j))
    for start in (torch.zeros(111) * 1j, np.array(["1"] * 111), np.ma.masked_equal(np.zeros(111), 0)):
        with pytest.raises(ValueError, match=r"start holds|masked"):
            fed(start=start)


# --- sources changed by hand, partitions that draw from elsewhere ---------------------------------------------------


@pytest.mark.parametrize(("change", "words"), [
    (lambda s: {"train_y": s.train_y + 1}, "labels run from"),
    (lambda s: {"train_y": s.train_y - 1}, "labels run from"),
    (lambda s: {"train_y": s.train_y[:-1]}, "do not fit"), (lambda s: {"classes": 2}, "labels run from"),
    (lambda s: {"train_x": np.ma.masked_greater(s.train_x, 9)}, "masked"),
    (lambda s: {"train_x": s.train_x * np.nan}, "NaN"), (lambda s: {"test_x": s.test_x[:, :, :3]}, "differ in shape"),
    (lambda s: {"test_x": s.test_x[:0], "test_y": s.test_y[:0]}, "test set is empty"),
    (lambda s: {"train_owner": np.zeros(3)}, "one owner per sample"),
    (lambda s: {"train_x": s.train_x[:9], "train_y": s.train_y[:9]}, "given=None"),
])  # fmt: skip
def test_a_source_whose_fields_were_replaced_is_checked_as_others_are(change, words):
    source = fc.data.load((X, Y))
    with pytest.raises(ValueError, match=words):
        fed(dataclasses.replace(source, **change(source)))


@pytest.mark.usefixtures("silent")
def test_a_source_is_the_same_however_its_samples_are_held():
    source = fc.data.load(((X, Y), (TX, TY)))
    other = dataclasses.replace(source, train_x=torch.tensor(source.train_x), train_y=source.train_y.tolist())
    assert fed(source).fingerprint() == fed(other).fingerprint() == fed().fingerprint()
    pack = {"train_images": X, "train_labels": Y, "test_images": TX, "test_labels": TY}
    with pytest.raises(ValueError, match="numbers and texts"):
        fed(pack | {"train_owner": Y, "test_owner": TY.astype(str)})


@pytest.mark.parametrize("drawn", [
    lambda labels, clients, rng: np.random.permutation(len(labels)),  # noqa: NPY002
    lambda labels, clients, rng: torch.randperm(len(labels)).numpy(),
    lambda labels, clients, rng: np.random.default_rng().permutation(len(labels)),
    lambda labels, clients, rng: np.array(random.sample(range(len(labels)), len(labels))),
])  # fmt: skip
def test_a_partition_that_draws_from_elsewhere_is_told_of(drawn):
    def dealt(labels, clients, rng):
        return np.array_split(drawn(labels, clients, rng), clients)

    class Own:
        def split(self, labels, clients, rng, owner):
            return dealt(labels, clients, rng)

    for partition in (dealt, Own()):
        with pytest.warns(UserWarning, match="deals other samples when it is asked again"):
            fed(partition=partition)
