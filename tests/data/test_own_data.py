"""Clients' own test data: who has which, and the numbers that are made of them."""

from __future__ import annotations

from types import SimpleNamespace

import helpers as h
import numpy as np
import pytest
import torch
from torch import nn

import fedcore as fc

N = 150
X, Y = h.images(N, (3, 4, 4), 5)
X.reshape(N, -1)[:, 1] = np.arange(N)  # so that a sample is known again
TEST = h.images(30, (3, 4, 4), 5, seed=1)
OWNER = np.random.default_rng(0).permutation(np.arange(N) % 6)
SOURCE = {"train_images": X, "train_labels": Y, "test_images": TEST[0], "test_labels": TEST[1], "train_owner": OWNER}
PARTITIONS = {
    "iid": fc.IID(), "dirichlet": fc.Dirichlet(0.3), "shards": fc.Shards(2), "owners": fc.ByOwner(),
    "arrays": [np.flatnonzero(i == OWNER) for i in range(6)],
}  # fmt: skip


def normed(shape, classes):
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)]
    return nn.Sequential(*layers)


def fed(partition="dirichlet", **options):
    partition = PARTITIONS.get(partition, partition) if isinstance(partition, str) else partition
    options = {"clients": None if isinstance(partition, list | fc.ByOwner) else 6, "model": "mlp"} | options
    return fc.federation(SOURCE, partition=partition, **options)


def names(x) -> list[int]:
    """Which samples these are."""
    return sorted(x.reshape(len(x), -1)[:, 1].tolist())


def trained(f, i) -> list[int]:
    return names(f.x[torch.as_tensor(f.data.parts[i])])  # without the copies that augmentation adds


# --- who keeps which samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_each_client_keeps_its_share_of_its_own_samples_in_the_proportions_of_its_labels(partition, share):
    whole, cut = fed(partition), fed(partition, own_test=share)
    for i in range(whole.n):
        own, rest = names(cut.own_test(i)[0]), trained(cut, i)
        size = int(whole.sizes[i])
        assert sorted(own + rest) == trained(whole, i)
        assert len(own) == min(max(round(share * size), 1), size - 1)
        all_labels, kept = (np.bincount(Y[rows], minlength=5) for rows in (trained(whole, i), own))
        assert (np.abs(kept - all_labels * len(own) / size) < 1).all()
        x, y = cut.own_test(i)
        assert torch.as_tensor(Y)[x.reshape(len(x), -1)[:, 1].long()].equal(y)
    assert cut.test[0].equal(whole.test[0])
    assert names(cut.x) == sorted(row for i in range(6) for row in trained(cut, i))


def test_what_a_client_keeps_is_drawn_by_the_seed_alone():
    a, again, other = (fed("arrays", own_test=0.2, seed=seed) for seed in (0, 0, 1))
    kept = [[names(f.own_test(i)[0]) for i in range(6)] for f in (a, again, other)]
    assert kept[0] == kept[1]
    assert all(x != y for x, y in zip(kept[0], kept[2], strict=True))
    assert a.fingerprint() == again.fingerprint() != other.fingerprint()
    assert a.fingerprint() not in (fed("arrays").fingerprint(), fed("arrays", own_test=0.3).fingerprint())


def test_a_client_of_one_sample_keeps_none_and_one_of_two_keeps_one():
    f = fed([[0], [1, 2], list(range(3, 43))], own_test=0.01)
    assert [len(f.own_test(i)[1]) for i in range(3)] == [0, 1, 1]
    assert f.sizes.tolist() == [1, 1, 39]
    history = fc.simulate(fc.FedAvg(), f, rounds=1, personal=True, progress=False)
    assert {i for _, name, i, _ in history.rows if name == "own_accuracy"} == {1, 2}
    assert {i for _, name, i, _ in history.rows if name == "accuracy"} == {None, 0, 1, 2}
    with pytest.raises(ValueError, match=r"own_test=0.2, but no client has two samples"):
        fed([[0], [1]], own_test=0.2)
    with pytest.raises(ValueError, match="own_test=1"):
        fed(own_test=1)


def test_validation_and_public_data_are_taken_first_and_nothing_is_in_two_places():
    f = fed("dirichlet", validation=True, public=2, own_test=0.2)
    without = fed("dirichlet", validation=True, public=2)
    own = [names(f.own_test(i)[0]) for i in range(6)]
    parts = [names(f.source.validation[0]), names(f.public[0]), *own, *(trained(f, i) for i in range(6))]
    assert sorted(row for part in parts for row in part) == list(range(N))
    assert parts[:2] == [names(without.source.validation[0]), names(without.public[0])]
    assert [sorted(own[i] + trained(f, i)) for i in range(6)] == [trained(without, i) for i in range(6)]
    chosen = f.on_validation().evaluate_clients(f.x0.expand(6, -1))
    assert "own_accuracy" not in chosen  # settings are not chosen on test data
    alone = fed("dirichlet", own_test=0.2)
    with pytest.raises(ValueError, match="test samples too"):
        alone.with_public(*alone.own_test(0))
    later = alone.set_aside(1)
    assert all(later.own_test(i)[0].equal(alone.own_test(i)[0]) for i in range(6))


def test_a_sample_of_several_clients_is_kept_out_of_all_training():
    doubled = SimpleNamespace(overlapping=True, split=lambda labels, clients, rng, owner: [np.arange(60)] * clients)
    f = fed(doubled, clients=3, own_test=0.2)
    kept = [names(f.own_test(i)[0]) for i in range(3)]
    assert kept[0] == kept[1] == kept[2]
    assert f.sizes.tolist() == [48, 48, 48]
    assert not set(kept[0]) & set(trained(f, 1))


# --- the numbers made of them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("partition", "normalise", "augment"), [
    ("dirichlet", "pooled", None), ("owners", "pooled", fc.RandAugment(once=True)), ("owners", "client", None),
])  # fmt: skip
def test_own_accuracy_is_that_of_the_clients_module_on_what_it_keeps(partition, normalise, augment):
    f = fed(partition, own_test=0.3, normalise=normalise, augment=augment, model=normed)
    history = fc.simulate(fc.Ditto(0.1), f, rounds=2, local_steps=3, cohort=3, personal=True, progress=False)
    rows = history.method.personal(history.state, f.layout)
    for i in range(6):
        x, y = f.own_test(i)
        logits = f.module(rows[i], client=i)(x)
        assert history.final("own_accuracy", i) == (logits.argmax(1) == y).double().mean()
        assert not set(names(x)) & set(trained(f, i))


def test_the_servers_metrics_and_the_clients_own_metrics_are_of_the_test_set_alone():
    seen = []

    def samples(logits, targets):
        seen.append(len(targets))
        return float(len(targets))

    f = fed("dirichlet", own_test=0.3, metrics={"samples": samples})
    history = fc.simulate(fc.FedAvg(), f, rounds=1, personal=True, progress=False)
    assert set(seen) == {30}
    found = f.evaluate_clients(history.params.expand(6, -1))
    assert found["accuracy"].tolist() == [history.final("accuracy")] * 6


def test_own_test_data_replace_those_of_owners():
    owners = SOURCE | {"test_owner": np.arange(30) % 6}
    by_owner, cut = (fc.federation(owners, partition=fc.ByOwner(), model="mlp", own_test=o) for o in (None, 0.4))
    assert [len(by_owner.own_test(i)[1]) for i in range(6)] == [5] * 6
    assert [len(cut.own_test(i)[1]) for i in range(6)] == [10] * 6
    found = cut.evaluate_clients(cut.x0.expand(6, -1))["own_accuracy"]
    for i in range(6):
        x, y = cut.own_test(i)
        assert found[i] == (cut.module(cut.x0, client=i)(x).argmax(1) == y).double().mean()


def test_clients_without_test_samples_lose_their_own_accuracy_alone():
    draw = np.random.default_rng(0)
    train, test = ([(draw.normal(size=(k, 6)), np.arange(k) % 3) for k in sizes] for sizes in ([40] * 4, [10, 0, 9, 7]))
    f = fc.federation((train, test), model="mlp")
    history = fc.simulate(fc.FedAvg(), f, rounds=1, personal=True, progress=False)
    assert sorted({i for _, name, i, _ in history.rows if name == "own_accuracy"}) == [0, 2, 3]
    assert torch.isnan(f.evaluate_clients(f.x0.expand(4, -1))["own_accuracy"]).tolist() == [False, True, False, False]
    local = fc.simulate(fc.FedAvg(), f, rounds=1, cohort=[1], personal="local", progress=False)
    assert {name for r, name, i, _ in local.rows if r == 1 and i == 1} == {"accuracy", "loss"}


def test_targets_that_are_no_classes_have_an_own_loss():
    x = np.random.default_rng(0).normal(size=(60, 4))
    f = fc.federation((x, x[:, :1] * 2), 4, model="mlp", loss=nn.MSELoss(), own_test=0.25)
    history = fc.simulate(fc.LocalOnly(), f, rounds=2, lr=0.01, personal=True, progress=False)
    rows = history.method.personal(history.state, f.layout)
    for i in range(4):
        x, y = f.own_test(i)
        value = nn.functional.mse_loss(f.module(rows[i])(x), y.float())
        assert history.final("own_loss", i) == pytest.approx(value.item(), rel=1e-5)
    assert history.final("own_loss_worst_tenth") == max(history.final("own_loss", i) for i in range(4))


# --- how the clients fare -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("personal", [True, "local"])
@pytest.mark.parametrize("n", [1, 25])
def test_a_history_has_mean_spread_and_worst_tenth_of_the_clients(n, personal):
    parts = np.random.default_rng(1).permutation(N).reshape(25, 6)[:n]
    f = fed([part[: 3 + i % 4] for i, part in enumerate(parts)], own_test=0.3)  # of unequal sizes
    cohort = max(1, n // 2)
    run = {"rounds": 2, "local_steps": 3, "cohort": cohort, "personal": personal, "progress": False}
    history = fc.simulate(fc.LocalOnly(), f, **run)
    for t in range(3):
        rows = {(name, i): v for r, name, i, v in history.rows if r == t}
        own = {i: v for (name, i), v in rows.items() if name == "own_accuracy"}
        assert len(own) == (n if personal is True or not t else cohort)
        v, N_i = np.array(list(own.values())), f.sizes[list(own)]
        wanted = {"mean": v.mean(), "weighted": (N_i * v).sum() / N_i.sum(), "spread": v.std()}
        wanted["worst_tenth"] = np.mean(sorted(v)[: max(1, len(v) // 10)])
        assert {k: rows[f"own_accuracy_{k}", None] for k in wanted} == pytest.approx(wanted, abs=1e-12)
    assert f"own_accuracy_mean {history.final('own_accuracy_mean'):.4g}" in repr(history)
    assert "own_accuracy_worst_tenth" in history._repr_html_()
    table = history.clients()
    assert table.columns.tolist() == history.frame().columns.tolist()
    assert table["round"].unique().tolist() == [2]
    assert table.loc[table["client"].notna(), "value"].tolist() == list(own.values())
    assert table.loc[table["client"].isna(), "metric"].tolist() == [f"own_accuracy_{k}" for k in wanted]


def test_without_own_data_the_clients_accuracy_on_the_test_set_is_summed_up_and_no_metric_of_a_similar_name():
    run = {"rounds": 1, "local_steps": 5, "personal": True, "progress": False}
    history = fc.simulate(fc.LocalOnly(), fed(normalise="client"), **run)
    values = [history.final("accuracy", i) for i in range(6)]
    assert history.final("accuracy_mean") == pytest.approx(np.mean(values))
    assert history.final("accuracy_worst_tenth") == min(values)
    assert {"accuracy_target", "accuracy_pooled"} <= set(history.frame()["metric"])
    assert set(history.clients()["metric"]) == {
        "accuracy", "accuracy_mean", "accuracy_weighted", "accuracy_spread", "accuracy_worst_tenth",
    }  # fmt: skip
