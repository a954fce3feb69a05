"""Data as users have them: read as they are meant, the same whatever the way, refused with a cure, and copied."""

from __future__ import annotations

import dataclasses
import random
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
from fedcore.data.arrays import as_array

X, Y = h.images(60, (1, 6, 6), 3)
TX, TY = h.images(15, (1, 6, 6), 3, seed=1)
RNG = np.random.default_rng(0)
PACK = {"train_images": X, "train_labels": Y, "test_images": TX, "test_labels": TY}


def fed(source=((X, Y), (TX, TY)), **options) -> fc.Federation:
    return fc.federation(source, **{"clients": 4, "model": "logistic", **options})


@pytest.fixture
def silent():
    """What warns, fails."""
    with warnings.catch_warnings(action="error"):
        yield


def same(a: fc.Federation, b: fc.Federation) -> bool:
    return a.fingerprint() == b.fingerprint()


# --- copies -----------------------------------------------------------------------------------------------------------


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


def test_sizes_and_counts_of_labels_are_read_only_and_counts_follow_the_labels():
    one, q = fed(), fc.quadratic(np.stack([np.eye(2)] * 3), np.ones((3, 2)))
    for change in (lambda: one.sizes.sort(), lambda: one.label_counts().fill(1), lambda: q.pooled().sizes.sort(),
                   lambda: q.sizes.sort()):  # fmt: skip
        with pytest.raises(ValueError, match="read-only"):
            change()
    before, rows = one.label_counts(), torch.as_tensor(one.index[0])
    one.y[rows] = 2
    assert one.label_counts()[0].tolist() == [0, 0, len(rows)]
    assert (one.label_counts()[1:] == before[1:]).all()


def apart(one: fc.Federation) -> fc.Federation:
    """The federation with samples that are no views of the source's arrays, as on a GPU."""
    own = {name: getattr(one.data, name).clone() for name in ("x", "y", "test_x", "test_y")}
    return dataclasses.replace(one, data=dataclasses.replace(one.data, **own))


PLACES = [fed, lambda: apart(fed()), lambda: fed(augment=fc.RandAugment(1, 2, once=True))]
CHANGES = {
    "labels": lambda one: one.y.copy_(2 - one.y), "inputs": lambda one: one.x.copy_(255 - one.x),
    "the last labels": lambda one: one.y[-7:].fill_(1), "the last inputs": lambda one: one.x[-7:].fill_(9),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", PLACES)
def test_what_is_written_over_the_samples_holds_for_all_that_is_made_of_them(make, change):
    clean, written = make(), make()
    CHANGES[change](written)
    assert not same(clean, written)
    one = written.pooled()
    for name in ("x", "y", "test"):
        assert all(map(torch.equal, getattr(one, name), getattr(written, name)))
    assert one.label_counts().sum(0).tolist() == written.label_counts().sum(0).tolist()
    assert not torch.equal(*(fc.simulate(fc.Central(), f, rounds=1, lr=0.1).params for f in (clean, written)))
    rest, moved = written.set_aside(2), written.to(dtype=torch.float64)
    assert torch.equal(moved.pooled().y, written.y)
    counted = rest.label_counts().sum(0) / (len(rest.y) / len(rest.source.train_y))
    held = rest.public[1].bincount(minlength=3).numpy()
    assert np.array_equal(counted + held, written.label_counts().sum(0) / (len(written.y) / len(Y)))
    inputs = {(a.numpy().tobytes(), int(b)) for a, b in zip(written.x, written.y, strict=True)}
    assert {(a.numpy().tobytes(), int(b)) for a, b in zip(*rest.public, strict=True)} <= inputs
    assert {(a.numpy().tobytes(), int(b)) for a, b in zip(rest.x, rest.y, strict=True)} <= inputs


@pytest.mark.parametrize("make", PLACES)
def test_what_a_server_draws_and_refuses_as_public_follows_the_samples_as_they_are_now(make):
    clean, written = make(), make()
    written.x.copy_(255 - written.x)
    drawn = [with_public_data(f, fc.Gaussians(2)).public[0].double().mean() for f in (clean, written)]
    assert drawn[0] + drawn[1] == pytest.approx(255, abs=15)
    with pytest.raises(ValueError, match="1 public samples are clients' or test samples too"):
        written.with_public(written.x[:1].numpy().copy(), [0])


@pytest.mark.parametrize("make", PLACES)
def test_a_checkpoint_of_other_test_labels_is_refused(make, tmp_path):
    one = make()
    fc.simulate(fc.FedAvg(), one, rounds=1, checkpoint_dir=tmp_path)
    one.test[1].copy_(2 - one.test[1])
    with pytest.raises(fc.CheckpointError, match="data"):
        fc.simulate(fc.FedAvg(), one, rounds=2, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("make", [
    fed, lambda: fed(dtype=torch.float64), lambda: fc.quadratic(np.stack([np.eye(2)] * 3), np.ones((3, 2))),
])  # fmt: skip
def test_a_run_from_parameters_that_were_written_over_is_refused(make):
    one = make()
    x = one.x0
    x -= 1
    for other in (one, one.pooled(), one.to("cpu")):
        for begun in (fc.start, lambda *given: fc.simulate(*given, rounds=1)):
            with pytest.raises(ValueError, match=r"fed\.x0, .* was written over; .* x = fed\.x0\.clone\(\)"):
                begun(fc.FedAvg(), other)
    fc.simulate(fc.FedAvg(), make(), rounds=1, progress=False)


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


# --- scale and channels of images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    lambda x: x.astype(np.float32), lambda x: x.astype(np.float64), lambda x: x.astype(np.int64),
    lambda x: x.astype(np.uint16), lambda x: x.astype(np.float16), lambda x: torch.tensor(x).bfloat16(),
    lambda x: x.astype(float).tolist(), lambda x: x.astype(np.float32) - 120.5, lambda x: x.astype(np.int32) * 200,
    lambda x: (x % 17).astype(np.float64), lambda x: torch.tensor(x).float()[:, 0],
])  # fmt: skip
def test_images_on_the_scale_of_bytes_are_told_of(change):
    for normalise in ("pooled", "half", "unit"):
        with pytest.warns(UserWarning, match=r"images .*x / \d+.*x.astype\(np.uint8\)") as told:
            fc.federation(((change(X), Y), (change(TX), TY)), 2, model="logistic", normalise=normalise)
        assert told[0].filename == __file__


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("change", [
    lambda x: x, lambda x: x / 255, lambda x: (x > 128).astype(float), lambda x: x / 127.5 - 1,
    lambda x: ((x - x.mean()) / x.std()).astype(np.float32), lambda x: torch.tensor(x) / 255,
    lambda x: 10 * ((x - x.mean()) / x.std()), lambda x: np.random.default_rng(1).standard_normal((len(x), 5)),
    lambda x: 16 * np.random.default_rng(1).random((len(x), 5)).round(1),
])  # fmt: skip
def test_bytes_features_of_size_1_and_the_digits_of_scikit_learn_have_no_wrong_scale(change):
    fed(((change(X), Y), (change(TX), TY)))
    fed(((X.astype(float), Y), (TX.astype(float), TY)), normalise="client")


@pytest.mark.parametrize("change", [
    lambda x: 255.0 * x, lambda x: 300.0 * x - 150, lambda x: np.where(x > 0.9, 1e6, x),
    lambda x: torch.tensor(1000 * x), lambda x: np.uint8(255 * x),
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


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "words"), [
    (lambda y: y + 1, "no training sample has a label of 0, of 4 classes"),
    (lambda y: np.where(y == 2, 900, 5), "of 901 classes.*np.unique"),
    (lambda y: 0 * y, "all 60 training samples have the label 0"),
    (lambda y: torch.tensor(y + 1), "no training sample has a label of 0"),
    (lambda y: (y + 1).astype(float).tolist(), "no training sample has a label of 0"),
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


def test_whole_numbers_that_may_be_targets_of_a_regression_are_not_to_be_numbered_anew():
    x, words = RNG.normal(size=(60, 4)), r"loss= .*class labels.*if they are no classes.*astype\(float\)"
    options = {"loss": lambda z, y: (z[:, 0] - y) ** 2, "model": nn.Linear(4, 1)}
    target = 2 * (x @ np.arange(4)).round().astype(int)
    with pytest.raises(ValueError, match=f"labels run from -.*{words}"):
        fed((x, target), **options)
    with pytest.warns(UserWarning, match=f"no training sample has a label of 1.*{words}"):
        fed((x, abs(target)), **options)
    with warnings.catch_warnings(action="error"):
        assert fed((x, target.astype(float)), **options).y.is_floating_point()


def test_a_packs_images_and_labels_are_told_of_too(tmp_path):
    changed = {"train_images": 1.0 * X, "test_images": 1.0 * TX, "train_labels": Y + 1, "test_labels": TY + 1}
    np.savez(tmp_path / "mine.npz", **PACK | changed)
    with (
        pytest.warns(UserWarning, match="images"),
        pytest.warns(UserWarning, match="no training sample has a label of 0"),
    ):
        fed("mine", root=tmp_path)


@pytest.mark.usefixtures("silent")
def test_labels_of_a_known_number_of_classes_and_truth_values_are_not_spoken_of(tmp_path):
    assert fed(((X, Y > 0), (TX, TY > 0))).classes == 2
    np.savez(tmp_path / "femnist.npz", **PACK | {"train_labels": Y + 40, "test_labels": TY + 40})
    assert fed("femnist", root=tmp_path).classes == 62


# --- what is no array of numbers --------------------------------------------------------------------------------------


def masked(x) -> np.ma.MaskedArray:
    return np.ma.masked_greater(np.asarray(x), 0)


AWKWARD = {
    "masked": (masked, "masked"),
    "list of masked": (lambda x: [masked(row) for row in x], "masked"),
    "second of a list": (lambda x: [x[0].tolist(), *map(masked, x[1:])], "masked"),
    "nested lists of masked": (lambda x: [[masked(row)] for row in x], "masked"),
    "sparse": (lambda x: torch.tensor(x).to_sparse(), r"x.to_dense\(\)"),
    "quantised": (lambda x: torch.quantize_per_tensor(torch.tensor(x).float(), 1.0, 0, torch.qint8), "dequantize"),
    "nested": (lambda x: torch.nested.nested_tensor(list(torch.tensor(x).float())), "to_padded_tensor"),
    "meta": (lambda x: torch.tensor(x).to("meta"), "tensor with values"),
    "missing": (lambda x: np.where(x > 0.5, x, None), "missing"),
    "complex": (lambda x: x * 1j, "complex|numbers"),
    "text": (lambda x: x.astype(str), "numbers|array of"),
    "masked tensor": (lambda x: torch.masked.masked_tensor(torch.tensor(x), torch.tensor(x > 0.5)), "plain tensor"),
    "complex tensor": (lambda x: torch.tensor(x) * 1j, "complex|numbers"),
}


@pytest.mark.parametrize("form", [lambda one: one, lambda one: [one, one], lambda one: ((X, Y), one)])
def test_loaders_are_asked_for_their_samples(form):
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 8)
    with pytest.raises(TypeError, match=r"DataLoader is loader\.dataset"):
        fed(form(loader))
    assert fed(loader.dataset).n == 4


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["test", "validation"])
def test_lists_for_other_numbers_of_clients_are_refused(name, count):
    given = {"train": [(X[:30], Y[:30]), (X[30:], Y[30:])], "test": (TX, TY), name: [(TX, TY)] * count}
    with pytest.raises(ValueError, match=rf"{count} clients have .* as lists of as many clients"):
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


@pytest.mark.parametrize("owner", [
    [np.nan, *range(59)], [None, *range(59)], ["a", np.nan, *"b" * 58], ["a", None, *"b" * 58],
])  # fmt: skip
def test_a_sample_without_owner_is_refused(owner):
    for partition in (fc.IID(), fc.ByOwner()):
        with pytest.raises(ValueError, match=r"owner|missing|mixes"):
            fed(PACK | {"train_owner": owner}, partition=partition)


# --- mappings ---------------------------------------------------------------------------------------------------------


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
    with pytest.warns(UserWarning, match="train_owners are not read"):
        fed(PACK | {"train_owners": Y})


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
    with pytest.raises(ValueError, match="numbers and texts"):
        fed(PACK | {"train_owner": Y, "test_owner": TY.astype(str)})


# --- datasets ---------------------------------------------------------------------------------------------------------


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
    lambda x, y: Pairs(x, y), lambda x, y: Pairs(x, y, torch.tensor), lambda x, y: Pairs(x, y, lambda x: x.tolist()),
    lambda x, y: Columns(image=x, label=y), lambda x, y: Columns(labels=y.tolist(), img=list(x)),
    lambda x, y: TensorDataset(torch.tensor(x), torch.tensor(y)),
    lambda x, y: Subset(Pairs(x, y), range(len(y))),
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


def test_a_dataset_may_return_one_buffer_for_all_its_items():
    class Reuses(Pairs):
        def __getitem__(self, k):
            x, y = super().__getitem__(k)
            self.buffer = getattr(self, "buffer", np.empty_like(x))
            self.buffer[...] = x
            return self.buffer, y

    a, b = (fc.data.load(kind(X, Y)) for kind in (Pairs, Reuses))
    assert np.array_equal(a.train_x, b.train_x)
    assert len(np.unique(b.train_x, axis=0)) > 1


def test_an_item_is_read_once():
    seen = []
    fed((Pairs(X, Y, lambda x: seen.append(0) or x), (TX, TY)))
    assert len(seen) == 60


# --- clients one by one -----------------------------------------------------------------------------------------------


CUTS = [slice(0, 5), slice(5, 17), slice(17, 60)]


@pytest.mark.parametrize("make", [lambda x, y: (x, y), lambda x, y: (torch.tensor(x), y.tolist()), Pairs])
def test_a_list_of_clients_is_a_federation_of_these_clients(make):
    given = fed(([make(X[cut], Y[cut]) for cut in CUTS], (TX, TY)), clients=None)
    assert given.sizes.tolist() == [5, 12, 43]
    for i, cut in enumerate(CUTS):
        assert np.array_equal(given.x[torch.as_tensor(given.index[i])].numpy(), X[cut])
        assert np.array_equal(given.y[torch.as_tensor(given.index[i])].numpy(), Y[cut])
    assert same(given, fed(partition=[np.arange(60)[cut] for cut in CUTS], clients=None))


def test_without_a_test_set_every_fifth_sample_of_each_client_is_held_out():
    given = fed([(X[cut], Y[cut]) for cut in CUTS], clients=3)
    assert given.sizes.tolist() == [4, 10, 35]
    assert given.source.test_owner.tolist() == [0, 1, 1, *[2] * 8]
    assert np.array_equal(given.source.test_x, X[[4, 9, 14, *range(21, 60, 5)]])


def test_clients_with_test_data_of_their_own_are_evaluated_on_them():
    clients, tests = ([(x[a], y[a]) for a in (slice(0, 6), slice(6, 15))] for x, y in ((X, Y), (TX, TY)))
    given = fed((clients, tests), clients=None)
    own = given.evaluate_clients(given.x0.expand(2, -1))["own_accuracy"]
    hits = given.correct(given.x0).double()
    h.close(own, [hits[:6].mean(), hits[6:].mean()], 1e-15)


# --- partitions of one's own ------------------------------------------------------------------------------------------


def test_a_partition_may_be_a_plain_function():
    def dealt(labels, clients, rng):
        assert labels.tolist() == Y.tolist()
        return np.array_split(rng.permutation(len(labels)), clients)

    made = fed(partition=dealt)
    assert made.fingerprint() == fed(partition=dealt).fingerprint() != fed(partition=dealt, seed=1).fingerprint()
    assert sorted(made.index.rows) == list(range(60))
    assert "partition=dealt" in repr(made)


@pytest.mark.parametrize("kind", [np.asarray, list, torch.as_tensor, lambda part: part.astype(np.uint8)])
def test_index_arrays_say_which_sample_is_whose(kind):
    parts = np.split(RNG.permutation(60)[:30], [3, 10])  # ten belong to nobody
    given = fed(partition=[kind(part) for part in parts], clients=None)
    assert [index.tolist() for index in given.index] == [part.tolist() for part in parts]
    assert given.index[0].dtype == np.int64
    assert "3 index arrays" in repr(given)


def test_index_arrays_count_the_samples_as_they_were_given():
    parts = [np.arange(0, 13), np.arange(13, 60)]
    whole = fed(partition=parts, clients=2)
    for options in ({"source": (X, Y)}, {"validation": True}, {"public": 2}):
        given = fed(partition=parts, clients=2, **options)
        rows = [given.x[torch.as_tensor(index)].numpy() for index in given.index]
        assert len(given.x) == sum(map(len, rows)) < 60  # some were taken out, and nobody else got the others
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
    (([0, 1], [2, 5000], [3]), ValueError, "indices from 0 to 5000 60 samples 0 to 59"),
    (([0, -1], [2], [3]), ValueError, "indices from -1 0 to 59"),
    (([0, 1], [2, 7, 7], [3]), ValueError, "index 7 twice one client overlapping = True"),
    (([0, 1], [2, 7], [9, 1]), ValueError, "index 1 twice one client"),
    (([0, 1], [], [3]), ValueError, "client 1 (0,) one integer at least"),
    (([0, 1], [2.0], [3]), ValueError, "client 1 float64 integer"),
    (([0, 1], [3], [True] * 60), ValueError, "client 2 bool integer np.flatnonzero(mask)"),
    (([0, 1], [[2], [3]], [4]), ValueError, "client 1 (2, 1) one axis"),
])  # fmt: skip
def test_a_wrong_partition_says_what_is_wrong_whoever_made_it(way, parts, exception, words):
    with pytest.raises(exception) as e:
        fed(partition=way(*parts), clients=3)
    missing = [word for word in words.split() if word not in str(e.value)]
    assert not missing, f"{missing} not in: {e.value}"


class Lazy(Split):
    def split(self, labels, clients, rng, owner):
        return (part for part in self.parts)


class Short:
    def split(self, labels, clients):
        return np.array_split(np.arange(len(labels)), clients)


@pytest.mark.parametrize(("partition", "exception", "words"), [
    (Short(), TypeError, r"a function \(labels, clients, rng, owner\)"),
    (Lazy([0], [1]), TypeError, "the partition gave a generator; use a list of index arrays"),
    (lambda labels: [labels], TypeError, r"takes other arguments .*a function \(labels, clients, rng\)"),
    (lambda labels, clients, rng: labels, TypeError, "the partition gave a ndarray"),
    (lambda labels, clients, rng: [np.arange(9)] * clients, ValueError, "occurs twice"),
    (lambda labels, clients, rng: [np.ma.masked_equal(np.arange(9), 3)] * clients, ValueError, "masked"),
    (fc.IID, TypeError, r"a function \(labels, clients, rng\)"), ("iid", TypeError, "an object with split"),
])  # fmt: skip
def test_a_function_that_deals_no_samples_is_refused(partition, exception, words):
    with pytest.raises(exception, match=words):
        fed(partition=partition)


@pytest.mark.parametrize("drawn", [
    lambda labels, clients, rng: np.random.permutation(len(labels)),  # noqa: NPY002
    lambda labels, clients, rng: torch.randperm(len(labels)).numpy(),
    lambda labels, clients, rng: np.random.default_rng().permutation(len(labels)),
    lambda labels, clients, rng: np.array(random.sample(range(len(labels)), len(labels))),
])  # fmt: skip
def test_a_partition_that_draws_from_elsewhere_is_told_of(drawn):
    with pytest.warns(UserWarning, match="deals other samples when it is called again"):
        fed(partition=lambda labels, clients, rng: np.array_split(drawn(labels, clients, rng), clients))


class Drawn:
    """A partition and sizes of clients that do not use the generator that they are given."""

    def split(self, labels, clients, rng, owner):
        return np.array_split(np.random.default_rng().permutation(len(labels)), clients)

    def sizes(self, samples, clients, rng):
        return np.random.default_rng().multinomial(samples - clients, np.ones(clients) / clients) + 1


@pytest.mark.parametrize("partition", [
    Drawn(), fc.FeatureShift("noise", 0.1, Drawn()), fc.LabelSwap(0.5, partition=Drawn()),
    fc.Dirichlet(1.0, sizes=Drawn()), fc.LabelSwap(0.5, partition=fc.Dirichlet(1.0, sizes=Drawn())),
])  # fmt: skip
def test_so_is_one_inside_a_partition_of_the_package(partition):
    with pytest.warns(UserWarning, match="deals other samples when it is called again"):
        fc.federation("digits", clients=4, partition=partition, model="logistic")


def test_a_client_that_loses_its_last_sample_to_public_data_does_not_vanish():
    data = [
        (np.full((n, 3), i, np.float32), np.resize(labels, n)) for i, (n, labels) in enumerate(((1, [2]), (9, [0, 1])))
    ]
    test = [(np.zeros((2, 3), np.float32), np.array([2, 2])), (np.zeros((4, 3), np.float32), np.resize([0, 1], 4))]
    with pytest.raises(ValueError, match="take all samples of 1 of 2 clients; use a smaller public, or clients=1"):
        fc.federation((data, test), model="logistic", public=1)


def test_owners_that_are_drawn_may_leave_samples_out():
    source = fc.data.Source("s", X, Y, TX, TY, 3, train_owner=np.repeat(np.arange(12), 5))
    assert fed(source, partition=fc.ByOwner(subset=True), clients=3).sizes.tolist() == [5, 5, 5]


# --- layouts ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("layout", ["features", "sequence"])
def test_features_and_sequences_are_numbers_that_nobody_normalises(layout, dtype):
    x = RNG.integers(0, 200, (40, 5) if layout == "features" else (40, 5, 2)).astype(dtype)
    given = fed((x, np.arange(40) % 3), layout=layout, dtype=torch.float64)
    assert np.array_equal(given.inputs(given.x[:3]).numpy(), given.source.train_x[:3])
    h.close(given.evaluate(given.x0)["loss"], nn.functional.cross_entropy(
        given.engine.module(given.test[0].double()), given.test[1]), 1e-12)  # fmt: skip


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


def test_unit_scales_bytes_by_255_and_leaves_floats():
    for x, scale in ((X, 255.0), (X / 255, 1.0)):
        fed = fc.federation(((x, Y), (x, Y)), 2, model="logistic", normalise="unit", dtype=torch.float64)
        assert torch.equal(fed.data.inputs(fed.data.x), fed.data.x.double() / scale)


@pytest.mark.parametrize(("normalise", "low"), [("unit", 0.0), ("half", -1.0)])
def test_digits_whose_largest_byte_is_16_fill_the_range_of_unit_and_half(normalise, low):
    inputs = fed("digits", normalise=normalise).inputs(fed("digits").x)
    assert (float(inputs.min()), float(inputs.max())) == (low, 1.0)


def test_a_list_of_training_and_test_data_is_told_from_two_clients_for_every_number_of_clients():
    data = TensorDataset(torch.tensor(X), torch.tensor(Y))
    both = [Subset(data, range(45)), Subset(data, range(45, 60))]
    for clients in (1, 4):
        with pytest.raises(ValueError, match=rf"list of two.*clients={clients}.*tuple"):
            fed(both, clients=clients)
    assert fed(both, clients=2).n == fed(both, clients=None).n == 2
    assert fed(tuple(both), clients=4).n == 4
    assert fed(both, clients=1, partition=fc.ByOwner(subset=True)).n == 1
