"""The written-out path, blocks of clients, bfloat16: what is computed does not depend on how."""

from __future__ import annotations

from functools import partial

import helpers as h
import numpy as np
import pytest
import torch
from networks import DISTINCT, NETS, batch, by_autograd, by_cross_entropy, relative, rows, thin
from torch import nn

import fedcore as fc
from fedcore import models
from fedcore.engine import Batch, Engine, choose


def strange(shape, classes) -> nn.Module:
    """Strides, paddings and dilations that differ by axis, a kernel larger than its picture, no bias, an Identity."""
    body = nn.Sequential(nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1, bias=False), nn.GroupNorm(3, 12), nn.Identity())
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, (3, 2), stride=(1, 2), padding=(1, 0)), nn.MaxPool2d(2, 1, 1), nn.ReLU(),
        nn.Conv2d(6, 12, 2, dilation=2, stride=2), models.Residual(body), nn.Conv2d(12, 70, 3, 2, 1),
        nn.GroupNorm(2, 70, affine=False), nn.ReLU(), nn.Conv2d(70, 70, 3, padding=1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.ReLU(), nn.Linear(70, classes, bias=False),
    )  # fmt: skip


def normed(shape, classes) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, classes)
    )


def four_groups(shape, classes) -> nn.Module:
    net = thin("resnet18_gn_3x3", shape, classes)
    for layer in net.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.num_groups = 4
    return net


NETWORKS = {n[0]: (partial(thin, n[0]), *n[1:3]) for n in DISTINCT if not n[0].startswith(("preact", "digit_model"))}
NETWORKS |= {kind: (make, (2, 8, 8), 5) for kind, make in {
    "strange": strange, "four groups": four_groups, "batch norm": normed, "batch norm, even batches": normed,
}.items()}  # fmt: skip


def even(b: Batch) -> Batch:
    return Batch(b.x, b.y, torch.full_like(b.w, 1 / 4), [4] * len(b.y), b.key)


def setting(name: str, m: int, dtype=torch.float64) -> tuple[nn.Module, torch.Tensor, list[Batch]]:
    """A module, a row of parameters for each of m clients, and three batches."""
    make, shape, classes = NETWORKS[name]
    torch.manual_seed(0)
    module = make(shape, classes).to(dtype)
    batches = [batch(m, 4, shape, classes, dtype, seed=k) for k in range(3)]
    return module, rows(module, m, dtype), [even(b) for b in batches] if "even" in name else batches


# --- equality -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("block", [None, 1])
def test_the_written_gradient_is_autograds(name, block):
    module, Y, (b, *_) = setting(name, 3)
    engine = Engine(module, "written", block=block)
    G, losses = engine.gradient(Y, b)
    assert engine._writes(Y, b) == (not engine.norms or block == 1 or "even" in name)  # no statistics of padding
    assert max(relative(g, t) for g, t in zip(G, by_autograd(module, Y, b), strict=True)) < 1e-12
    assert relative(losses, by_cross_entropy(module, Y, b)) < 1e-13


@pytest.mark.parametrize("path", ["written", "batched"])
def test_layers_of_one_channel_keep_their_clients_apart(path):
    def norms() -> list[nn.Module]:
        return [nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1), nn.ReLU(), nn.Conv2d(1, 1, 3), nn.GroupNorm(1, 1)]

    module = nn.Sequential(*norms(), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)).double()
    Y, b = rows(module, 3), batch(3, 4, (1, 8, 8), 5)
    b = even(b)
    Y += torch.arange(3)[:, None]  # scales and shifts that no other client's stand in for
    assert relative(Engine(module, path).gradient(Y, b)[0], by_autograd(module, Y, b)) < 1e-12


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("decay", "clip", "dtype", "tolerance"), [
    (0.0, None, torch.float32, 2e-4), (0.0, None, torch.float64, 1e-12), (0.3, None, torch.float64, 1e-12),
    (0.3, 0.5, torch.float64, 1e-12),
])  # fmt: skip
def test_decay_and_clip_in_place_are_those_of_gradients_then_steps(name, decay, clip, dtype, tolerance):
    """The clip is one that cuts some clients and not others."""
    module, Y, batches = setting(name, 4, dtype)
    counts = np.array([batches[0].count] * 3) * (np.array([3, 2, 2, 1]) > np.arange(3)[:, None])
    want, exact = Y.clone(), Engine(module, "sequential")
    for k, a in enumerate((4, 3, 1)):
        v = exact.gradient(want[:a], batches[k].rows(slice(a)))[0] + decay * want[:a]
        if clip is not None:
            clip = float(v.norm(dim=1).median()) if k == 0 else clip
            v *= (clip / v.norm(dim=1, keepdim=True)).clamp_max(1.0)
        want[:a] -= 0.1 * v
    for path in ("written", "batched", "sequential"):
        for block in (None, 2):
            Z = Y.clone()
            step = (lambda k, part: batches[k].rows(part), 0.1, decay, clip)
            Engine(module, path, block=block).descend(Z, counts, *step)
            assert relative(Z - Y, want - Y) < tolerance


@pytest.mark.parametrize(("method", "more"), [
    (fc.FedAvg(), {}), (fc.FedAvg(), {"weight_decay": 0.01, "clip": 1.0}), (fc.SCAFFOLD(), {}),
], ids=["steps", "clipped steps", "gradients"])  # fmt: skip
@pytest.mark.parametrize("model", ["digit_cnn", "lenet"])
def test_equal_runs_are_equal_to_the_bit_on_any_number_of_threads(method, model, more):
    shape = (1, 8, 8) if model == "digit_cnn" else (3, 32, 32)
    net = partial(thin, model)
    fed = fc.federation(h.images(70, shape), clients=7, partition=fc.Dirichlet(0.5), model=net, block=2)
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            runs.append(fc.simulate(method, fed, rounds=2, lr=0.05, batch_size=8, local_steps=2, **more).params)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(runs[1], runs[2])
    h.close(runs[0], runs[1], 1e-5)


@pytest.mark.parametrize(("method", "path"), [
    (fc.SCAFFOLD(), "auto"), (fc.SCAFFOLD(), "batched"), (fc.SCAFFOLD(), "sequential"), (fc.DFedAvg(fc.Ring()), "auto"),
], ids=repr)  # fmt: skip
def test_another_number_of_threads_gives_the_same_to_rounding(method, path):
    fed, before, runs = h.network(path=path), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            runs.append(fc.simulate(method, fed, rounds=3, lr=0.05, batch_size=8))
    finally:
        torch.set_num_threads(before)
    h.close(runs[0].params, runs[1].params, 1e-13)
    assert runs[0].cohorts == runs[1].cohorts


@pytest.mark.parametrize("method", [m for m in h.ASKING if not isinstance(m, fc.MOON)], ids=repr)
def test_whatever_methods_ask_of_the_engine_is_the_same_on_every_path(method):
    fed = fc.federation(h.images(60), clients=5, partition=fc.Dirichlet(0.5), model="digit_cnn", dtype=torch.float64)
    options = {"rounds": 2, "lr": 0.1, "batch_size": 8, "cohort": None if method.full_participation else 3}
    want = fc.simulate(method, fed.forced("sequential"), **options).params
    for path in ("written", "batched"):
        h.close(fc.simulate(method, fed.forced(path), **options).params, want, 1e-11)


@pytest.mark.parametrize("path", ["written", "batched"])
@pytest.mark.parametrize("method", [fc.FedAvg(), fc.FedSAM(0.05)], ids=repr)
def test_a_cohort_in_blocks_gives_the_same(method, path, monkeypatch):
    options = {"clients": 7, "partition": fc.Dirichlet(0.5), "model": "digit_cnn", "dtype": torch.float64}
    run = {"rounds": 2, "lr": 0.1, "batch_size": 8}
    want = fc.simulate(method, fc.federation(h.images(90), path=path, **options), **run).params
    for block in (1, 3):
        fed = fc.federation(h.images(90), path=path, block=block, **options)
        h.close(fc.simulate(method, fed, **run).params, want, 1e-12)
    if path == "batched":  # the whole cohort, unless told otherwise
        return
    fed = fc.federation(h.images(90), path=path, **options)
    seen, blocks = [], fed.engine._blocks
    monkeypatch.setitem(choose.ROOM, "cpu", 5 * 8 * 8 * 10_000)  # no room for all: the rule splits by itself
    monkeypatch.setattr(fed.engine, "_blocks", lambda *a: seen.append(blocks(*a)) or seen[-1])
    h.close(fc.simulate(method, fed, **run).params, want, 1e-12)
    assert max(map(len, seen)) > 1


def test_representations_in_blocks_are_those_of_the_whole_cohort():
    fed = fc.federation(h.images(90), clients=7, model=fc.models.projected("cnn", 8), dtype=torch.float64)
    blocks = fc.federation(h.images(90), clients=7, model=fc.models.projected("cnn", 8), dtype=torch.float64, block=3)
    a, b = (fc.simulate(fc.MOON(1.0), f, rounds=2, lr=0.1, batch_size=8) for f in (fed, blocks))
    h.close(a.params, b.params, 1e-12)


# --- bfloat16 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digit_cnn", "resnet18_gn"])
@pytest.mark.parametrize("path", ["written", "sequential"])
def test_gradients_in_bfloat16_are_within_its_rounding_and_stay_float32(name, path):
    shape = next(n[1] for n in NETS if n[0] == name)
    module = thin(name, shape, 10)
    Y, b = models.flatten(module).repeat(2, 1), batch(2, 8, shape, 10, torch.float32)
    exact = Engine(module, path).gradient(Y, b)[0]
    rounded = Engine(module, path, compute=torch.bfloat16).gradient(Y, b)[0]
    assert rounded.dtype == torch.float32
    # 8 bits of mantissa, and maxima and ReLUs that fall to the other side; a ResNet has twenty layers of them
    assert 1e-4 < relative(rounded, exact) < (0.2 if name == "resnet18_gn" else 0.08)


def test_linear_layers_in_bfloat16_keep_its_digits_and_logits_keep_all():
    def gradients(model, compute):
        fed = fc.federation(h.images(60), clients=5, model=model, path="written", compute=compute)
        prints.add(fed.fingerprint())
        Y = fed.x0.repeat(5, 1)
        return fed.gradient(Y, fed.plan(0, 0, np.arange(5), steps=1, batch_size=8), 0)

    prints = set()
    exact, rounded = (gradients("mlp", compute) for compute in (None, torch.bfloat16))
    assert len(prints) == 2
    assert rounded.dtype == torch.float32
    assert 1e-4 < relative(rounded, exact) < 0.03
    # ten outputs: no faster in bfloat16, so these stay as they are
    assert torch.equal(*(gradients("logistic", compute) for compute in (None, torch.bfloat16)))


# --- what it costs ------------------------------------------------------------------------------------------------


def test_the_fastest_path_is_measured_on_request_and_told():
    fed = fc.federation(h.images(60), clients=5, model="digit_cnn").fastest(cohort=3, batch_size=4)
    assert set(fed.engine.times) == {"written", "batched", "sequential"}
    assert fed.engine.chosen(fed.device) == min(fed.engine.times, key=fed.engine.times.get)
    odd = fc.federation(h.images(60), clients=5, model=nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(64, 5)))
    assert set(odd.fastest(cohort=100).engine.times) == {"sequential"}
