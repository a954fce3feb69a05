"""Sources: what is looked for where, and that pictures, labels and owners arrive upright, counted from 0, undamaged."""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
from pathlib import Path

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.data import readers, sources

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_a, **_k):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def pack(folder: Path, name: str, n: int = 20, shape=(1, 4, 4), classes: int = 3, **extra) -> dict[str, np.ndarray]:
    x, y = h.images(n, shape, classes)
    arrays = {"train_images": x, "train_labels": y, "test_images": x[:5], "test_labels": y[:5]} | extra
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return arrays


# --- digits -------------------------------------------------------------------------------------------------------


def test_digits_are_the_1797_real_ones_with_every_fifth_held_out():
    from sklearn.datasets import load_digits

    real, source = load_digits(), fc.data.load("digits")
    assert (len(source.train_y), len(source.test_y), source.train_x.dtype, source.classes) == (1438, 359, np.uint8, 10)
    assert np.array_equal(source.test_x[:, 0], real.images[4::5])
    assert np.array_equal(source.test_y, real.target[4::5])
    held_out = np.arange(1797) % 5 == 4
    assert np.array_equal(source.train_x[:, 0], real.images[~held_out])
    assert np.array_equal(source.train_y, real.target[~held_out])


# --- roles --------------------------------------------------------------------------------------------------------


def test_roles_are_forty_speakers_of_the_alphabet_and_the_same_every_time():
    a, b = fc.data.load("roles"), fc.data.load("roles")
    assert (a.train_x.shape, a.test_x.shape, a.classes, a.text) == ((8000, 20), (1600, 20), 80, True)
    assert np.array_equal(a.train_x, b.train_x)
    assert np.array_equal(a.test_y, b.test_y)
    assert np.bincount(a.train_owner).tolist() == [200] * 40
    assert np.bincount(a.test_owner).tolist() == [40] * 40
    assert set(np.unique(a.train_x)) < set(range(80))


def test_roles_speak_differently_and_no_test_window_was_trained_on():
    a = fc.data.load("roles")
    texts = ["".join(readers.ALPHABET[c] for c in a.train_x[a.train_owner == i][::7].ravel()) for i in range(40)]
    words = [{w for w in t.replace(".", " ").split() if w.islower()} for t in texts]
    assert max(len(p & q) / len(p | q) for i, p in enumerate(words) for q in words[:i]) < 0.6
    assert {max(".!?;", key=t.count) for t in texts} == set(".!?;")
    for i in range(40):
        joined = {w.tobytes() for w in a.train_x[a.train_owner == i]}
        assert np.mean([w.tobytes() in joined for w in a.test_x[a.test_owner == i]]) < 0.1  # said twice


def test_the_label_of_a_role_is_the_character_after_its_window():
    a = fc.data.load("roles")
    own = a.train_owner == 7
    x, y = a.train_x[own], a.train_y[own]
    for k in range(len(x) - 1):  # windows start every third character
        assert np.array_equal(x[k + 1, :-3], x[k, 3:])
        assert x[k + 1, -3] == y[k]


# --- the data root ------------------------------------------------------------------------------------------------


def test_the_data_root_is_the_argument_then_the_environment_then_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path / "environment"))
    assert fc.data.data_root(tmp_path / "argument") == tmp_path / "argument"
    assert fc.data.data_root() == tmp_path / "environment"
    monkeypatch.delenv("FEDCORE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fc.data.data_root() == tmp_path / ".cache" / "fedcore"
    assert fc.data.data_root("~/data") == tmp_path / "data"


@pytest.mark.parametrize("name", sources.NAMES)
def test_a_pack_in_the_data_root_is_tried_before_anything_else(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    text = name in ("shakespeare", "roles")
    arrays = pack(tmp_path, name, shape=(80,) if text else (1, 4, 4))
    source = fc.data.load(name)
    assert np.array_equal(source.train_x, arrays["train_images"])
    assert np.array_equal(source.test_y, arrays["test_labels"])
    assert source.text == text


def test_a_pack_of_any_name_is_a_source_and_its_owners_make_a_partition(tmp_path):
    owner = np.array([7, 3, 7, 9] * 5)
    pack(tmp_path, "mine", train_owner=owner, test_owner=owner[:5])
    fed = fc.federation("mine", partition=fc.ByOwner(), model="logistic", root=tmp_path)
    assert fed.n == 3
    assert fed.sizes.tolist() == [5, 10, 5]  # owners 3, 7, 9
    assert np.array_equal(fed.source.test_owner, owner[:5])


def test_names_are_read_without_case_and_with_their_common_spellings(tmp_path):
    for name, asked in (("mnist", "MNIST"), ("fashionmnist", "Fashion-MNIST"), ("emnist-balanced", "emnist")):
        pack(tmp_path, name)
        assert fc.data.load(asked, tmp_path).name == name


@pytest.mark.parametrize("name", [n for n in sources.NAMES if n not in ("digits", "digit-domains", "roles")])
def test_missing_data_says_where_it_looked_and_what_to_put_there(name, tmp_path):
    with pytest.raises(fc.DataNotFound) as e:
        fc.federation(name, clients=2, model="mlp", root=tmp_path, download=False)
    message = str(e.value)
    for word in (str(tmp_path), f"{name}.npz", "train_images", "train_labels", "test_images", "FEDCORE_DATA", "root="):
        assert word in message, word
    assert isinstance(e.value, FileNotFoundError)


def test_a_download_without_network_ends_in_the_same_error(tmp_path):
    with pytest.raises(fc.DataNotFound, match="mnist"):
        fc.federation("mnist", clients=2, root=tmp_path)


# --- arrays from memory -------------------------------------------------------------------------------------------


def test_bytes_stay_bytes_until_a_batch_is_used_and_then_have_mean_0_and_deviation_1_of_the_training_set():
    x = RNG.integers(0, 100, (200, 3, 5, 5)).astype(np.uint8)
    x[:, 1] //= 4  # channels of unequal brightness
    x[:, 2] = 9  # a constant one
    y = np.arange(200) % 4
    fed = fc.federation(((x, y), (x + 100, y)), clients=4, model="mlp", dtype=torch.float64)
    assert fed.x.dtype == torch.uint8
    inputs = fed.inputs(fed.x)
    assert inputs.dtype == torch.float64
    h.close(inputs.mean((0, 2, 3)), np.zeros(3), 1e-12)
    h.close(inputs.std((0, 2, 3), unbiased=False), np.array([1, 1, 0]), 1e-12)
    assert float(fed.inputs(fed.test[0]).mean()) > 2


# --- torchvision --------------------------------------------------------------------------------------------------


def idx(path: Path, array: np.ndarray) -> None:
    """MNIST's file format: two zero bytes, the type (8 = unsigned byte), the number of axes, the sizes, the data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def glyphs(n: int, labels: np.ndarray) -> np.ndarray:
    """n pictures 28x28 with a bright top row and a brighter left end of it: upright, they cannot be confused."""
    x = np.zeros((n, 28, 28), np.uint8)
    x[:, 0, :] = 100
    x[:, 0, 0] = 200
    x[:, 5, 9] = labels
    return x


def assert_upright(source, labels):
    x = source.train_x[:, 0]
    assert (x[:, 0, 1:] == 100).all()
    assert (x[:, 0, 0] == 200).all()
    assert (x[:, 1:, 0] == 0).all()
    assert np.array_equal(x[:, 5, 9], labels)


PARTS = {"train": "train", "test": "t10k"}
FIRST = {"letters": (1, 26), "byclass": (0, 62), "bymerge": (0, 47), "balanced": (0, 47)}  # label, classes


@pytest.mark.parametrize("name", ["mnist", "fashionmnist", *(f"emnist-{split}" for split in sources.EMNIST_SPLITS)])
def test_files_of_the_mnist_family_are_read_upright_with_labels_from_0(name, tmp_path):
    folder = {"m": "MNIST", "f": "FashionMNIST", "e": "EMNIST"}[name[0]]
    first, classes = FIRST.get(name.partition("-")[2], (0, 10))
    y = {"train": np.arange(2 * classes, dtype=np.uint8) % classes, "test": np.arange(classes, dtype=np.uint8)}
    for part, labels in y.items():
        x = glyphs(len(labels), labels)
        file = f"{name}-{part}" if folder == "EMNIST" else PARTS[part]
        raw = tmp_path / "torchvision" / folder / "raw"
        idx(raw / f"{file}-images-idx3-ubyte", x.transpose(0, 2, 1).copy() if folder == "EMNIST" else x)
        idx(raw / f"{file}-labels-idx1-ubyte", labels + np.uint8(first))
    source = fc.data.load(name, tmp_path, download=False)
    assert_upright(source, y["train"])
    assert np.array_equal(source.train_y, y["train"])
    assert np.array_equal(source.test_y, y["test"])
    assert (source.classes, source.train_x.dtype) == (classes, np.uint8)


@pytest.mark.parametrize(("kind", "shape", "classes"), [
    ("USPS", (16, 16), 10), ("SVHN", (3, 32, 32), 10), ("CIFAR10", (32, 32, 3), 10), ("CIFAR100", (32, 32, 3), 100),
])  # fmt: skip
def test_what_torchvision_has_read_gets_channels_first(kind, shape, classes, tmp_path, monkeypatch):
    y = np.arange(2 * classes) % classes
    x = RNG.integers(0, 256, (len(y), *shape), dtype=np.uint8)

    class Files:
        def __init__(self, root, download, **part):
            first = part in ({"train": True}, {"split": "train"})
            self.data, labels = (x, y) if first else (x[:classes], y[:classes])
            setattr(self, "labels" if kind == "SVHN" else "targets", labels.tolist())

    Files.__name__ = kind
    monkeypatch.setattr(f"torchvision.datasets.{kind}", Files)
    source = fc.data.load(kind.lower(), tmp_path, download=False)
    upright = x[:, None] if kind == "USPS" else x if kind == "SVHN" else x.transpose(0, 3, 1, 2)
    assert np.array_equal(source.train_x, upright)
    assert np.array_equal(source.test_x, upright[:classes])
    assert np.array_equal(source.train_y, y)
    assert source.classes == classes


# --- LEAF ---------------------------------------------------------------------------------------------------------


def leaf(folder: Path, part: str, files: list[dict]) -> None:
    (folder / part).mkdir(parents=True)
    for k, user_data in enumerate(files):
        content = {
            "users": list(user_data),
            "num_samples": [len(d["y"]) for d in user_data.values()],
            "user_data": user_data,
        }
        (folder / part / f"all_data_{k}.json").write_text(json.dumps(content))


def test_femnist_of_leaf_has_one_owner_per_writer_across_files(tmp_path):
    ramp = (np.arange(784) % 256 / 255).tolist()

    def draw(*labels):
        return {"x": [ramp] * len(labels), "y": list(labels)}

    leaf(tmp_path / "femnist", "train", [{"ann": draw(3, 61)}, {"bob": draw(0), "ann": draw(5)}])
    leaf(tmp_path / "femnist", "test", [{"bob": draw(1), "cyd": draw(2)}])
    source = fc.data.load("femnist", tmp_path)
    assert source.train_x.shape == (4, 1, 28, 28)
    assert source.train_x.dtype == np.uint8
    assert np.array_equal(source.train_x[0].ravel(), np.arange(784) % 256)  # back to the bytes it came from
    assert source.train_y.tolist() == [3, 61, 0, 5]
    assert source.train_owner.tolist() == [0, 0, 1, 0]
    assert source.test_owner.tolist() == [1, 2]
    assert source.classes == 62
    fed = fc.federation("femnist", partition=fc.ByOwner(), root=tmp_path)
    assert fed.sizes.tolist() == [3, 1]
    assert fed.d == 25_182


def test_shakespeare_of_leaf_becomes_numbers_of_the_alphabet(tmp_path):
    line = "To be, or not to be".ljust(80)
    leaf(tmp_path / "shakespeare", "train", [{"HAMLET": {"x": [line, line[1:] + "x"], "y": ["x", "~"]}}])
    leaf(tmp_path / "shakespeare", "test", [{"HAMLET": {"x": [line], "y": ["}"]}}])
    source = fc.data.load("shakespeare", tmp_path)
    assert len(readers.ALPHABET) == len(set(readers.ALPHABET)) == source.classes == 80
    assert "".join(readers.ALPHABET[k] for k in source.train_x[0]) == line
    assert source.train_y.tolist() == [readers.ALPHABET.index("x"), readers.ALPHABET.index(" ")]  # unknown: a space
    assert source.test_y.tolist() == [79]
    assert source.text


@pytest.mark.parametrize("content", ["{", '{"users": ["a"]}', '{"users": ["a"], "user_data": {"a": {"x": [[1]]}}}'])
def test_a_file_that_is_not_leaf_json_is_named(content, tmp_path):
    (tmp_path / "femnist" / "train").mkdir(parents=True)
    file = tmp_path / "femnist" / "train" / "bad.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="LEAF") as e:
        fc.data.load("femnist", tmp_path)
    assert str(file) in str(e.value)


# --- image folders ------------------------------------------------------------------------------------------------


def tree(root: Path, part: str, kinds: list[str], size=(6, 4), n: int = 2) -> None:
    from PIL import Image

    for k, kind in enumerate(kinds):
        (root / part / kind).mkdir(parents=True)
        for j in range(n):
            picture = np.zeros((size[1], size[0], 3), np.uint8)
            picture[0, :, 2], picture[1, 0, 0] = 250, 10 * k
            Image.fromarray(picture).save(root / part / kind / f"{j}.png")


def test_an_image_folder_is_read_upright_with_classes_by_name(tmp_path):
    tree(tmp_path / "tiny-imagenet", "train", ["ant", "bee", "cat"])
    tree(tmp_path / "tiny-imagenet", "val", ["ant", "bee", "cat"], n=1)
    source = fc.data.load("tiny-imagenet", tmp_path)
    assert source.train_x.shape == (6, 3, 4, 6)
    assert source.train_y.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.test_y.tolist() == [0, 1, 2]
    assert (source.train_x[:, 2, 0] == 250).all()
    assert np.array_equal(source.train_x[:, 0, 1, 0], 10 * source.train_y)


def test_an_image_folder_whose_parts_have_other_classes_is_refused(tmp_path):
    # ImageFolder numbers the folders it finds: without "ant" in val, "bee" would silently become class 0
    tree(tmp_path / "tiny-imagenet", "train", ["ant", "bee"])
    tree(tmp_path / "tiny-imagenet", "val", ["bee"])
    with pytest.raises(ValueError, match="other classes"):
        fc.data.load("tiny-imagenet", tmp_path)


def test_images_of_unequal_size_are_refused_with_the_sizes(tmp_path):
    tree(tmp_path / "tiny-imagenet", "train", ["ant"], size=(6, 4))
    tree(tmp_path / "tiny-imagenet", "train", ["bee"], size=(5, 5))
    tree(tmp_path / "tiny-imagenet", "val", ["ant", "bee"])
    with pytest.raises(ValueError, match=r"item 2 has shape \(3, 5, 5\), item 0 has \(3, 4, 6\).*resize"):
        fc.data.load("tiny-imagenet", tmp_path)


# --- real packs, where there are some -----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["truncated", "text", "gzip"])
def test_a_damaged_pack_is_named_with_what_it_should_be(damage, tmp_path):
    pack(tmp_path, "mnist")
    file = tmp_path / "mnist.npz"
    whole = file.read_bytes()
    file.write_bytes({"truncated": whole[: len(whole) // 2], "text": b"hello", "gzip": gzip.compress(whole)}[damage])
    with pytest.raises(ValueError, match="train_images") as e:
        fc.data.load("mnist", tmp_path)
    assert str(file) in str(e.value)


def test_a_pickle_in_a_pack_is_never_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    pack(tmp_path, "mine", test_labels=np.array([Bomb()] * 5, object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        fc.data.load("mine", tmp_path)
    assert not (tmp_path / "exploded").exists()


# --- data that come client by client, and what they may look like -----------------------------------------------------


def test_a_folder_without_access_is_an_error_where_it_was_asked_for(tmp_path, monkeypatch):
    """Otherwise scikit-learn's digits would silently replace those of a pack in it."""

    class Closed:
        def __fspath__(self):
            raise PermissionError(13, "Permission denied")

    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    monkeypatch.setattr("fedcore.data.readers.pack", lambda name, root: Closed())
    assert fc.federation("digits", 4).n == 4
    with pytest.raises(PermissionError):
        fc.federation("digits", 4, root=tmp_path)


def test_empty_folders_are_no_data(tmp_path):
    (tmp_path / "torchvision/MNIST/raw").mkdir(parents=True)
    assert not readers.found("mnist", tmp_path)
