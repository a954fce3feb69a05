"""Gradients of a whole cohort: two paths, one answer, and that answer is autograd's on the module alone."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import helpers as h
import pytest
import torch
import torch.nn.functional as F
from networks import DISTINCT, NETS, Net, batch, by_autograd, by_cross_entropy, normed, relative, rows, thin
from torch import nn

from fedcore import models
from fedcore.engine import Batch, Engine
from fedcore.engine.layers.weights import Conv2d
from fedcore.support import devices

ROOT = Path(__file__).resolve().parents[2]


# --- networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape", "classes", "d"), NETS, ids=lambda v: str(v))
def test_parameter_counts_are_the_published_ones(name, shape, classes, d):
    module = models.build(name, shape, classes, seed=0)
    assert sum(p.numel() for p in module.parameters()) == d
    assert models.Layout.of(module).d == d == len(models.flatten(module))


def test_every_named_model_is_among_the_nets_tested_here():
    assert {n[0] for n in NETS} | {"lstm"} == set(models.MODELS)


# --- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape", "classes"), [n[:3] for n in DISTINCT], ids=[n[0] for n in DISTINCT])
def test_both_paths_are_autograd_on_the_module(name, shape, classes):
    module = thin(name, shape, classes).double()
    # Clients of 6, 5 and 4 samples.  Batch norm makes of two samples +1 and -1, whatever they are: what then comes
    # through to the layers before it is the difference of nearly equal numbers, and rounding is all that is compared.
    Y, b = rows(module, 3), batch(3, 6, shape, classes)
    truth = by_autograd(module, Y, b)
    for path in ("batched", "sequential"):
        G, losses = Engine(module, path).gradient(Y, b)
        assert G.shape == Y.shape
        assert not G.requires_grad
        assert not Y.requires_grad
        assert relative(losses, by_cross_entropy(module, Y, b)) < 1e-13
        assert max(relative(g, t) for g, t in zip(G, truth, strict=True)) < 1e-12, path


def strided_and_dilated(shape, classes) -> nn.Module:
    first = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(4, 3, 3, padding=2), nn.Flatten(), nn.Linear(216, classes))


@pytest.mark.parametrize(("make", "shape"), [(partial(thin, "lenet"), (3, 32, 32)), (strided_and_dilated, (2, 11, 9))])
def test_convolutions_as_products_as_a_gpu_takes_them_are_convolutions(make, shape, monkeypatch):
    module = make(shape, 10).double()
    Y, b, engine = rows(module, 3), batch(3, 5, shape, 10), Engine(module, "batched")
    along = torch.randn(Y.shape, generator=torch.Generator().manual_seed(3), dtype=Y.dtype)
    want = [engine.gradient(Y, b)[0], engine.gradient(Y, b, along=along)[0]]
    called = []
    monkeypatch.setattr(Conv2d, "batched", lambda self, x, p: called.append(self) or self.by_product(x, p))
    for G, again in zip(want, (engine.gradient(Y, b)[0], engine.gradient(Y, b, along=along)[0]), strict=True):
        assert relative(again, G) < 1e-12
    assert called


@pytest.mark.parametrize("path", ["batched", "sequential"])
def test_padding_has_no_influence(path):
    module = models.digit_cnn((1, 8, 8), 10).double()
    Y, b, engine = rows(module, 3), batch(3, 5, (1, 8, 8), 10), Engine(module, path)
    G = engine.gradient(Y, b)[0]
    x, y = b.x.clone(), b.y.clone()
    for i, k in enumerate(b.count):
        x[i, k:], y[i, k:] = 1e3, 9
    assert torch.equal(engine.gradient(Y, Batch(x, y, b.w, b.count, b.key))[0], G)


# --- modules of the user's ----------------------------------------------------------------------------------------


def test_the_automatic_path_is_one_that_can_and_pays():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    small, large = models.digit_cnn((1, 8, 8), 10), models.lenet((3, 32, 32), 10)
    path = lambda module, device=cpu: Engine(module).chosen(device)  # noqa: E731
    assert (path(small), path(large), path(large, cuda)) == ("written", "written", "batched")
    assert path(normed((1, 4, 4), 3)) == "batched"  # dropout
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Softplus(), nn.Linear(9, 10))
    assert (path(smooth), path(nn.Sequential(nn.Linear(600, 600), *smooth[1:3]))) == ("batched", "sequential")
    tied = Net(lambda m, x: m.out(m.a(m.a(x.flatten(1)))), a=nn.Linear(64, 64), out=nn.Linear(64, 5))
    assert path(tied) == "sequential"


# --- batch norm and dropout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", ["pictures", "vectors"])
@pytest.mark.parametrize("uneven", [True, False])
def test_batch_norm_over_clients_is_batch_norm_of_each_client(kind, affine, uneven):
    if kind == "pictures":
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=affine), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    else:
        layers = [nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8, affine=affine), nn.ReLU(), nn.Linear(8, 3)]
    net, b = nn.Sequential(*layers).double(), batch(4, 6, (1, 4, 4), 3)
    if not uneven:
        b = Batch(b.x, b.y, torch.full_like(b.w, 1 / 6), [6] * 4, b.key)
    Y = rows(net, 4)
    assert Engine(net).chosen(Y.device) == ("written" if kind == "pictures" else "batched")
    for path in ("batched", "written") if kind == "pictures" else ("batched",):
        assert relative(Engine(net, path).gradient(Y, b)[0], by_autograd(net.train(), Y, b)) < 1e-12


def test_what_a_diverged_model_left_in_batch_norm_does_not_reach_the_next_evaluation():
    fed = h.network(sizes=(30, 20), model=normed)
    before = fed.evaluate(fed.x0)
    fed.evaluate(torch.full_like(fed.x0, math.nan))
    assert fed.evaluate(fed.x0) == before


def test_a_module_that_views_its_images_is_evaluated_as_it_is():
    """`view` wants the usual strides."""
    forward = lambda m, x: m.b(torch.relu(m.a(x)).view(len(x), -1))  # noqa: E731
    net = Net(forward, a=nn.Conv2d(3, 8, 3), b=nn.Linear(32, 3)).double()
    fed = h.network(model=net, shape=(3, 4, 4))
    x, y = fed.inputs(fed.test[0]), fed.test[1]
    h.close(fed.evaluate(fed.x0)["loss"], F.cross_entropy(net(x), y), 1e-12)
    assert torch.equal(fed.correct(fed.x0), net(x).argmax(1) == y)


# --- rules and rounding -----------------------------------------------------------------------------------------


def test_a_model_without_rules_cannot_be_observed_or_written_out():
    module = nn.Sequential(nn.Flatten(), nn.Hardshrink(), nn.Linear(64, 5))
    with pytest.raises(ValueError, match="activations cannot be read in a model with Hardshrink"):
        Engine(module).observe(rows(module, 3), batch(3, 4, (1, 8, 8), 5), ["1"])
    with pytest.raises(ValueError, match="path='written' has no rule"):
        Engine(module, "written")


def test_a_clients_result_does_not_depend_on_its_place_in_the_cohort_to_the_bit():
    """One client after another; operands that begin elsewhere in memory would round otherwise."""
    module = models.mlp((1, 8, 8), 5, hidden=(7,))
    Y, b = rows(module, 5, torch.float32), batch(5, 9, (1, 8, 8), 5, torch.float32)
    engine = Engine(module, "sequential")
    G, losses = engine.gradient(Y, b)
    for i in range(5):
        g, loss = engine.gradient(Y[i:], b.rows(slice(i, None)))
        assert torch.equal(g, G[i:])
        assert torch.equal(loss, losses[i:])


@pytest.mark.parametrize(
    ("bound", "instructions", "told"), [(None, True, False), (None, False, True), ("AVX512_CORE", True, True)]
)
def test_bfloat16_is_warned_of_where_the_processor_emulates_it(bound, instructions, told, monkeypatch):
    monkeypatch.setattr(devices.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for name in devices.ISA:
        monkeypatch.delenv(name, raising=False)
    if bound:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", bound)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        h.network(compute=torch.bfloat16)
        h.network()
    assert [w for w in seen if "no instructions" in str(w.message)] == seen
    assert len(seen) == told


# --- import -------------------------------------------------------------------------------------------------------


def test_importing_is_light_and_quick():
    heavy = "torchvision matplotlib pandas sklearn scipy seaborn ipywidgets IPython papermill tqdm nbformat"
    code = (
        f"import sys, time, torch, numpy; heavy = set({heavy.split()}); before = heavy & set(sys.modules); "
        "t = time.perf_counter(); import fedcore; t = time.perf_counter() - t; "
        "print(t, *(heavy & set(sys.modules) - before))"
    )
    for _ in range(3):  # a busy machine may be slow once
        out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        seconds, *loaded = out.stdout.split()
        assert loaded == []
        if float(seconds) < 2:
            return
    pytest.fail(f"importing took {seconds} s, three times more than 2 s")
