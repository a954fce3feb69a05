"""A run that was killed and started again ends bit-identical to one that was not; damage is an error with a remedy."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import resource
import warnings
from pathlib import Path
from unittest.mock import Mock

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedcore.storage import checkpoint, sources

METHODS = [fc.FedAvg(server_momentum=0.7), fc.SCAFFOLD(), fc.FedUp(alpha=0.1)]
RUN = {"cohort": 3, "lr": 0.1, "lr_decay": 0.99, "batch_size": 4, "seed": 3, "probes": [fc.probes.drift]}

every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


def dump(history: fc.History) -> dict:
    """All a run leaves, exactly: bytes of the tensors, the cohorts, and the rows with the floats in hexadecimal."""
    tensors = {"params": history.params, **history.state}
    return {
        "tensors": {k: [str(v.dtype), list(v.shape), v.numpy().tobytes().hex()] for k, v in sorted(tensors.items())},
        "cohorts": history.cohorts,
        "rows": [[t, name, client, v.hex()] for t, name, client, v in history.rows],
    }


@functools.cache
def federation() -> fc.Federation:
    return h.network(dtype=torch.float32)


def rounds_in(file: Path) -> int:
    with np.load(file, allow_pickle=False) as z:
        return json.loads(z["head"].tobytes())["t"]


# --- stopping and extending, in one process -----------------------------------------------------------------------


class Stop(Exception):
    pass


def interrupted_in(rounds: set[int]):
    """A probe that raises in the first of these rounds it sees, once: what a Ctrl-C does, at a chosen place."""

    def probe(r, y):
        if r.t in rounds:
            rounds.remove(r.t)
            raise Stop
        return {}

    return probe


@every_method
@pytest.mark.parametrize(("checkpoint_every", "eval_every"), [(None, 1), (2, 3)])
def test_every_place_to_stop_gives_the_same_end(method, checkpoint_every, eval_every, tmp_path):
    fed = federation()
    options = RUN | {"eval_every": eval_every}
    whole = dump(fc.simulate(method, fed, rounds=7, **options))
    for t in range(7):
        folder = tmp_path / str(t)
        kept = options | {"checkpoint_dir": folder, "checkpoint_every": checkpoint_every}
        kept["probes"] = [fc.probes.drift, interrupted_in({t})]
        if (t + 1) % eval_every == 0 or t == 6:
            with pytest.raises(Stop):
                fc.simulate(method, fed, rounds=7, **kept)
        assert dump(fc.simulate(method, fed, rounds=7, **kept)) == whole, t


@every_method
@pytest.mark.parametrize("eval_every", [1, 3])
def test_more_rounds_continue_where_fewer_ended(method, eval_every, tmp_path):
    fed, options = federation(), RUN | {"eval_every": eval_every}
    for rounds in (2, 5, 5, 9):
        grown = fc.simulate(method, fed, rounds=rounds, checkpoint_dir=tmp_path, **options)
        assert dump(grown) == dump(fc.simulate(method, fed, rounds=rounds, **options)), rounds


def test_a_resumed_run_does_not_repeat_the_rounds_it_has_and_resume_false_starts_over(tmp_path):
    seen = []

    def count(r, y):
        seen.append(r.t)
        return {}

    for rounds, resume in ((2, True), (4, True), (3, False)):
        again(tmp_path / "deep" / "er", rounds=rounds, resume=resume, probes=[count])
    assert seen == [0, 1, 2, 3, 0, 1, 2]
    again(tmp_path / "deep" / "er", fc.FedUp(), rounds=1, resume=False)  # another run in the same folder
    assert rounds_in(tmp_path / "deep" / "er" / "checkpoint.npz") == 1


# --- foreign checkpoints ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> Path:
    fc.simulate(fc.SCAFFOLD(), federation(), rounds=3, checkpoint_dir=tmp_path, **RUN)
    return tmp_path / "checkpoint.npz"


def again(folder: Path, method=None, fed=None, rounds: int = 3, **options) -> fc.History:
    return fc.simulate(
        method or fc.SCAFFOLD(), fed or federation(), rounds=rounds, checkpoint_dir=folder, **RUN | options
    )


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_does_not_replace_the_checkpoint_of_one_that_began_after_it(resume, tmp_path):
    if not resume:  # there is one already, which the first run may replace
        again(tmp_path, fc.FedAvg())

    def meanwhile(t, metrics):
        if t == 1:
            again(tmp_path, resume=resume)

    with pytest.raises(fc.CheckpointError, match=r"another run writes to .*lr: saved 0.1, now 0.2.*of its own") as e:
        again(tmp_path, lr=0.2, on_evaluate=meanwhile, checkpoint_every=2, resume=resume)
    assert len(e.value.history.cohorts) == 2
    assert dump(again(tmp_path)) == dump(fc.simulate(fc.SCAFFOLD(), federation(), rounds=3, **RUN))


class Signed(torch.nn.Module):
    """A model of the user's: what it computes hangs on more than its repr shows."""

    def __init__(self, rule="relu", offset=0.0, trained=True):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(16, 4), torch.nn.Linear(4, 3)
        self.register_buffer("offset", torch.tensor(offset))
        self.first.weight.requires_grad_(trained)
        self.rule = getattr(torch, rule)

    def forward(self, x):
        return self.last(self.rule(self.first(x.flatten(1))) + self.offset)


def model(**options) -> dict:
    return {"fed": h.network(dtype=torch.float32, model=Signed(**options))}


def changed(part: str) -> dict:
    fed = h.network(dtype=torch.float32)
    held = getattr(fed.data, part).view(-1)
    held[3] = (held[3] + 1) % 3
    return {"fed": fed}


def owned(*test_owner: int) -> dict:
    x, y = h.images(60, (1, 4, 4), 3)
    arrays = {"train_images": x, "train_labels": y, "test_images": x[:8], "test_labels": y[:8]}
    arrays |= {"train_owner": np.arange(60) % 4, "test_owner": np.array(test_owner)}
    return {"fed": fc.federation(arrays, partition=fc.ByOwner(), model="logistic", device="cpu")}


def public(label: int) -> dict:
    x = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4)
    return {"fed": h.network(dtype=torch.float32).with_public(x, np.array([label, 2]))}


def estimate(radius: float) -> dict:
    return {"probes": [fc.probes.gradient_estimate(radius)], "method": fc.FedUp()}


SAME_BUT = {
    "the method": ({}, {"method": fc.FedAvg()}, "FedAvg"),
    "a hyper-parameter": ({}, {"method": fc.SCAFFOLD("I")}, "option='I'"),
    "the seed": ({}, {"seed": 4}, "seed: saved 3, now 4"),
    "the learning rate": ({}, {"lr": 0.2}, "lr: saved 0.1, now 0.2"),
    "the number type": ({}, {"dtype": torch.float64}, "federation's dtype"),
    "personal": ({"personal": True}, {}, "personal: saved True, now False"),
    "a probe's argument": (estimate(0.1), estimate(0.2), "probes: saved"),
    "a training picture": ({}, changed("x"), "federation's data"),
    "a test picture": ({}, changed("test_x"), "federation's data"),
    "a test label": ({}, changed("test_y"), "federation's data"),
    "public data": (public(0), public(1), "federation's data"),
    "owners of test images": (owned(0, 1, 2, 3, 0, 1, 2, 3), owned(0, 0, 1, 1, 2, 2, 3, 3), "federation's owners"),
    "a buffer of the model": (model(), model(offset=1.0), "federation's model"),
    "a frozen layer": (model(), model(trained=False), "federation's model"),
    "the model's function": (model(), model(rule="square"), "federation's answers"),
    "the path": ({}, {"fed": h.network(dtype=torch.float32, path="sequential")}, "federation's path"),
    "the block": ({}, {"fed": h.network(dtype=torch.float32, block=2)}, "federation's block"),
}


@pytest.mark.parametrize("what", SAME_BUT)
def test_a_checkpoint_of_a_run_that_differs_in_one_thing_is_refused_either_way_round_and_kept(what, tmp_path):
    *both, words = SAME_BUT[what]
    for k, (first, second) in enumerate((both, both[::-1])):
        file = tmp_path / str(k) / "checkpoint.npz"
        again(file.parent, **first)
        before = file.read_bytes()
        again(file.parent, **first)  # it is itself
        with pytest.raises(fc.CheckpointError, match="belongs to another run") as e:
            again(file.parent, **second)
        for word in (words if k == 0 else "", str(file), "checkpoint_dir", "resume=False"):
            assert word in str(e.value), word
        assert file.read_bytes() == before


def test_another_number_of_threads_goes_on_and_says_so(saved, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    with pytest.warns(UserWarning, match=r"made with other threads 1 and 99.*equal to rounding and not to the bit"):
        again(saved.parent, rounds=4)


def test_a_checkpoint_of_more_rounds_than_asked_is_refused(saved):
    with pytest.raises(fc.CheckpointError, match=r"holds 3 rounds, rounds=2.*rounds>=3.*resume=False"):
        again(saved.parent, rounds=2)


# --- damage -------------------------------------------------------------------------------------------------------


def test_a_pickle_in_a_checkpoints_place_is_never_executed(saved):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(saved.parent / "exploded"),)

    for write in (lambda: saved.write_bytes(pickle.dumps(Bomb())), lambda: np.savez(saved, head=np.array([Bomb()]))):
        write()
        with pytest.raises(fc.CheckpointError):
            again(saved.parent)
    assert not (saved.parent / "exploded").exists()


def test_a_flipped_bit_is_noticed_or_harmless(saved):
    # zip keeps a checksum of every array, but not of its own dates and paddings: there a flip changes nothing
    whole, good = saved.read_bytes(), dump(again(saved.parent))
    rng, noticed = np.random.default_rng(0), 0
    for place in rng.choice(8 * len(whole), 40, replace=False):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << (place % 8)
        saved.write_bytes(damaged)
        try:
            assert dump(again(saved.parent)) == good, f"bit {place} changed the run unnoticed"
        except fc.CheckpointError:
            noticed += 1
    assert noticed > 20


def crafted(file: Path, **changes) -> None:
    """The checkpoint with other arrays or, of "head", other entries; None leaves one out."""
    with np.load(file) as z:
        arrays = {k.replace("/", "_"): z[k] for k in z.files}
    head = json.loads(arrays["head"].tobytes()) | changes.pop("head", {})
    arrays["head"] = np.frombuffer(json.dumps({k: v for k, v in head.items() if v is not ...}).encode(), np.uint8)
    for name, change in changes.items():
        arrays[name] = change(arrays[name]) if callable(change) else change
    kept = {k.replace("state_", "state/"): v for k, v in arrays.items() if v is not None}
    np.savez(file, **kept)


def first_is(value):
    return lambda a: np.concatenate([np.full_like(a.reshape(-1)[:1], value), a.reshape(-1)[1:]]).reshape(a.shape)


def cut(share: float):
    return lambda file: file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])


DAMAGED = {
    "an array": lambda file: np.save(file.open("wb"), np.zeros(3)),
    "an archive of other things": lambda file: np.savez(file, train_images=np.zeros(3)),
    "another kind of head": lambda file: np.savez(file, head=np.frombuffer(b"[1]", np.uint8)),
    **{f"{share:.0%} of it": cut(share) for share in (0, 0.3, 0.6, 0.99)},
    "no model": {"state_x": None},
    "rows of fewer clients": {"state_c_i": lambda a: a[:-1]},
    "doubles": {"state_x": lambda a: a.astype(np.float64)},
    "a number that is none": {"state_x": first_is(np.nan)},
    "a client that is none": {"cohorts": first_is(99)},
    "rows in another order": {"rows": lambda a: a[::-1]},
    "no cohort": {"cohorts": None},
    "no identity": {"head": {"identity": None}},
    "no code": {"head": {"code": ...}},
    "a round that is a text": {"head": {"t": "3"}},
    "a negative round": {"head": {"t": -1}},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_file_that_is_no_checkpoint_or_another_form_of_one_is_refused_in_one_line(what, saved):
    damage = DAMAGED[what]
    damage(saved) if callable(damage) else crafted(saved, **damage)
    with pytest.raises(fc.CheckpointError, match=r"checkpoint.npz .*resume=False") as e:
        again(saved.parent, rounds=4)
    assert len(str(e.value).splitlines()) == 1
    again(saved.parent, rounds=4, resume=False)


def test_a_checkpoint_of_an_older_format_or_another_version_is_refused_by_name(saved):
    crafted(saved)
    again(saved.parent)  # it is itself
    cases = {r"another version of fedcore \(code '0123', now ": {"code": "0123"}, "has format 2": {"format": 2}}
    for words, head in cases.items():
        crafted(saved, head=head)
        with pytest.raises(fc.CheckpointError, match=rf"{words}.*resume=False"):
            again(saved.parent)


def test_a_rule_that_changed_makes_another_version_and_one_of_another_method_does_not(monkeypatch):
    package = sources.simulator()
    kept = {m: sources.of_run([m]) for m in (fc.SCAFFOLD.__module__, fc.FedAdam.__module__)}
    for changed in (fc.SCAFFOLD.__module__, "fedcore.round", "fedcore.engine.core"):
        texts = {**package.texts, changed: package.texts[changed] + "\nx = 1\n"}
        monkeypatch.setattr(sources, "simulator", lambda: sources.Sources(texts, package.packages))  # noqa: B023
        sources.library.cache_clear()
        assert sources.of_run([fc.SCAFFOLD.__module__]) != kept[fc.SCAFFOLD.__module__]
        same = sources.of_run([fc.FedAdam.__module__]) == kept[fc.FedAdam.__module__]
        assert same == (changed == fc.SCAFFOLD.__module__)
        assert sources.of_run([fc.SCAFFOLD.__module__, __name__]) == sources.library()
    sources.library.cache_clear()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(make, tmp_path):
    make(tmp_path / "checkpoint.npz")
    with pytest.raises(fc.CheckpointError, match=r"damaged or no checkpoint .*no file"):
        again(tmp_path)


# --- writing ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def room(limit: int):
    """No file can be longer; Python ignores SIGXFSZ, so that a write past the limit is an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_checkpoint_whole_and_no_litter(saved):
    before = saved.read_bytes()
    for limit in (0, 300, len(before) // 2):
        with pytest.raises(OSError, match="cannot be written") as e, room(limit):
            again(saved.parent, rounds=6)
        assert str(saved) in str(e.value)
        assert saved.read_bytes() == before
        assert [p.name for p in saved.parent.iterdir()] == ["checkpoint.npz"]
    assert dump(again(saved.parent, rounds=6)) == dump(fc.simulate(fc.SCAFFOLD(), federation(), rounds=6, **RUN))
    saved.unlink()
    with pytest.raises(OSError, match=r"after 1 rounds.*there is none before it: make room"), room(300):
        again(saved.parent)
    assert not list(saved.parent.iterdir())


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), MemoryError()])
def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(error, saved, monkeypatch):
    monkeypatch.setattr(checkpoint.archives, "read", Mock(side_effect=error))
    with pytest.raises(type(error), match=r"checkpoint.npz cannot be read") as e:
        again(saved.parent)
    assert "delete" not in str(e.value)


def test_a_finished_run_is_read_from_a_folder_that_may_only_be_read(saved, monkeypatch):
    whole = dump(again(saved.parent))
    monkeypatch.setattr(checkpoint.tempfile, "TemporaryFile", Mock(side_effect=OSError(30, "Read-only file system")))
    assert dump(again(saved.parent)) == whole
    with pytest.raises(OSError, match="cannot be written"):
        again(saved.parent, rounds=4)


def test_what_a_killed_run_left_is_swept_and_what_another_writes_is_not(saved):
    left, written = (saved.with_name(f".checkpoint.npz.{k}.unfinished") for k in "ab")
    for file in (left, written):
        file.write_bytes(b"half")
    os.utime(left, (0, 0))
    again(saved.parent, rounds=4)
    assert {file.name for file in saved.parent.iterdir()} == {"checkpoint.npz", written.name}


def test_a_link_in_a_temporary_files_place_is_not_followed(tmp_path, monkeypatch):
    target = tmp_path / "precious"
    target.write_text("kept")
    monkeypatch.setattr(checkpoint.secrets, "token_hex", lambda _: "0" * 16)
    (tmp_path / f".file.{'0' * 16}.unfinished").symlink_to(target)
    with pytest.raises(FileExistsError), checkpoint.atomic(tmp_path / "file"):
        pass
    assert target.read_text() == "kept"


STRENGTH = {"of": 1.0}


class FromAround(fc.Method):
    """A rule with a number that stands in a mapping of its module."""

    def direction(self, G, y, r):
        return STRENGTH["of"] * G(y)


def test_a_rule_whose_numbers_around_it_changed_goes_on_with_a_warning(tmp_path, monkeypatch):
    fed = fc.quadratic(*h.problem())
    fc.simulate(FromAround(), fed, rounds=2, checkpoint_dir=tmp_path)
    with warnings.catch_warnings(action="error"):
        fc.simulate(FromAround(), fed, rounds=3, checkpoint_dir=tmp_path)
    monkeypatch.setitem(STRENGTH, "of", 2.0)
    with pytest.warns(UserWarning, match="mappings and objects .*by another rule.*resume=False"):
        fc.simulate(FromAround(), fed, rounds=4, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_late_leaves_the_old_checkpoint_whole_and_no_litter(step, saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        again(saved.parent, rounds=6)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["checkpoint.npz"]
