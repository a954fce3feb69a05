"""Gradients of a whole cohort: two paths, one answer, and that answer is autograd's on the module alone."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import NETS, Net, batch, build, by_autograd, by_cross_entropy, normed, relative, rows, thin
from torch import nn

import fedcore as fc
from fedcore import models
from fedcore.engine import Batch, Engine

ROOT = Path(__file__).resolve().parents[2]


# --- networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape", "classes", "d"), NETS, ids=lambda v: str(v))
def test_parameter_counts_are_the_published_ones(name, shape, classes, d):
    module = build(name, shape, classes)
    assert sum(p.numel() for p in module.parameters()) == d
    assert models.Layout.of(module).d == d == len(models.flatten(module))


def test_every_named_model_is_among_the_nets_tested_here():
    assert {n[0] for n in NETS} | {"lstm"} == set(models.MODELS)


def test_the_layout_puts_every_parameter_at_its_place_and_views_share_memory():
    module = models.digit_cnn((1, 8, 8), 10)
    layout, flat = models.Layout.of(module), models.flatten(module)
    for name, p in module.named_parameters():
        assert torch.equal(layout.views(flat)[name], p)
    layout.views(flat)[layout.names[-1]].zero_()
    assert (flat[-10:] == 0).all()


# --- gradients ----------------------------------------------------------------------------------------------------


every_model = pytest.mark.parametrize(("name", "shape", "classes"), [n[:3] for n in NETS], ids=[n[0] for n in NETS])


@every_model
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


def one_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), relu, nn.Linear(16, 16), relu, nn.Linear(16, 10))


@pytest.mark.parametrize("kind", ["auto", "sequential"])
def test_the_automatic_path_is_one_that_can_and_pays(kind):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    small, large = models.digit_cnn((1, 8, 8), 10), models.lenet((3, 32, 32), 10)
    path = lambda module, device=cpu: Engine(module, kind).chosen(device)  # noqa: E731
    if kind == "sequential":
        assert {path(m, d) for m in (small, large) for d in (cpu, cuda)} == {"sequential"}
        return
    assert (path(small), path(large), path(large, cuda)) == ("written", "written", "batched")
    assert path(normed((1, 4, 4), 3)) == "batched"  # dropout
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Softplus(), nn.Linear(9, 10))
    assert (path(smooth), path(nn.Sequential(nn.Linear(600, 600), *smooth[1:3]))) == ("batched", "sequential")
    tied = Net(lambda m, x: m.out(m.a(m.a(x.flatten(1)))), a=nn.Linear(64, 64), out=nn.Linear(64, 5))
    assert (path(one_relu()), path(tied)) == ("written", "sequential")


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


def test_batch_norm_is_evaluated_with_the_statistics_of_the_training_data():
    fed = h.network(sizes=(30, 20), model=normed)
    history = fc.simulate(fc.FedAvg(), fed, rounds=2, lr=0.1, batch_size=5)
    net = normed((1, 4, 4), 3).double()
    nn.utils.vector_to_parameters(history.params, net.parameters())
    conv, norm = net[0], net[1]
    z = conv(fed.inputs(fed.x))
    norm.running_mean, norm.running_var = z.mean((0, 2, 3)).detach(), z.var((0, 2, 3), unbiased=True).detach()
    net.eval()
    loss = F.cross_entropy(net(fed.inputs(fed.test[0])), fed.test[1])
    h.close(history.final("loss"), loss, 1e-12)
    losses = [F.cross_entropy(net(x), y) for x, y in (h.whole(fed, 0), h.whole(fed, 1))]
    h.close(fed.objective(history.params), sum(losses) / 2, 1e-12)


def test_what_a_diverged_model_left_in_batch_norm_does_not_reach_the_next_evaluation():
    fed = h.network(sizes=(30, 20), model=normed)
    before = fed.evaluate(fed.x0)
    fed.evaluate(torch.full_like(fed.x0, math.nan))
    assert fed.evaluate(fed.x0) == before


class Viewed(nn.Module):
    """A convolution whose output is flattened with `view`, which wants the usual strides."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Linear(32, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)).view(len(x), -1))


def test_a_module_that_views_its_images_is_evaluated_as_it_is():
    fed = h.network(model=Viewed(), shape=(3, 4, 4))
    net = Viewed().double()
    nn.utils.vector_to_parameters(fed.x0, net.parameters())
    x, y = fed.inputs(fed.test[0]), fed.test[1]
    h.close(fed.evaluate(fed.x0)["loss"], F.cross_entropy(net(x), y), 1e-12)
    assert torch.equal(fed.correct(fed.x0), net(x).argmax(1) == y)


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


def test_the_character_lstm_has_the_studys_size_and_trains_on_text():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 80, (24, 12)).astype(np.uint8), rng.integers(0, 80, 24)
    text = fc.data.Source("text", x, y, x[:6], y[:6], 80, train_owner=np.repeat([0, 1, 2], 8), text=True)
    fed = fc.federation(text, partition=fc.ByOwner(), model="lstm", dtype=torch.float64)
    assert fed.d == 133_520
    plan = fed.plan(0, 0, np.array([1]), batch_size=None)
    module = models.build("lstm", (12,), 80, 0).double()
    want = h.gradient(module, fed.x0, fed.x[8:16].long(), fed.y[8:16])
    h.close(fed.full_gradient(fed.x0[None], plan)[0], want, 1e-10)
    before, after = fc.simulate(fc.FedAvg(), fed, rounds=3, lr=1.0, batch_size=4).curve("loss")[1][[0, -1]]
    assert after < before
