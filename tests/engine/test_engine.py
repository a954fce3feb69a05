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
from networks import NETS, batch, build, by_autograd, by_cross_entropy, normed, relative, rows, thin
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


class Custom(nn.Module):
    """A forward of its own, with functional layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 12), nn.Linear(12, 10)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        z = F.gelu(self.a(x.flatten(1)))
        return self.scale * self.b(z + z.mean(1, keepdim=True))


class Tied(nn.Module):
    """Two layers share one weight matrix."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(torch.tanh(self.b(torch.tanh(self.a(x.flatten(1))))))


class Unused(nn.Module):
    """A layer that takes no part in the forward pass."""

    def __init__(self):
        super().__init__()
        self.idle, self.out = nn.Linear(3, 3), nn.Linear(64, 10)

    def forward(self, x):
        return self.out(x.flatten(1))


class Standardised(nn.Conv2d):
    """A subclass of a layer the batched path knows, with another forward."""

    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def used_twice() -> nn.Module:
    relu, square = nn.ReLU(), nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), relu, square, relu, square, relu, nn.Linear(16, 10))


def one_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), relu, nn.Linear(16, 16), relu, nn.Linear(16, 10))


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module[1].register_forward_hook(lambda _m, _i, out: 2 * out)
    return module


ODD = {
    "custom forward": Custom,
    "tied weights": Tied,
    "layer used twice": used_twice,
    "one ReLU used twice": one_relu,
    "subclass of Conv2d": lambda: nn.Sequential(Standardised(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)),
    "forward hook": hooked,
    "grouped convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(128, 10)
    ),
    "padding='same'": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(128, 10)),
    "reflecting padding": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(128, 10)
    ),
    "stride, dilation, no bias": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, bias=False), nn.Tanh(), nn.Conv2d(3, 4, 2, dilation=2),
        nn.Flatten(), nn.Linear(4, 10)
    ),
    "group norm on vectors": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 10, bias=False)
    ),
    "group norm without affine": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    ),
    "linear along picture rows": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Linear(6, 4), nn.Flatten(), nn.Linear(72, 10)
    ),
    "flatten of some axes": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(64, 8), nn.Flatten(), nn.Linear(8, 10)),
    "average pooling": lambda: nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sigmoid()),
    "layer norm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10)),
    "bent activations": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.LeakyReLU(0.1), nn.Linear(9, 9), nn.ReLU6(), nn.Linear(9, 10), nn.Hardswish()
    ),
    "weight norm": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 10))
    ),
    "unused parameter": Unused,
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_any_module_is_differentiated_as_autograd_does_it(kind):
    torch.manual_seed(0)
    module = ODD[kind]().double()
    Y, b = rows(module, 3), batch(3, 4, (1, 8, 8), 10)
    truth = by_autograd(module, Y, b)
    assert relative(Engine(module, "auto").gradient(Y, b)[0], truth) < 1e-12
    assert relative(Engine(module, "sequential").gradient(Y, b)[0], truth) < 1e-12


@pytest.mark.parametrize("kind", ["layer used twice", "tied weights", "one ReLU used twice"])
def test_a_federation_survives_its_runs_and_is_copied_after_them(kind):
    torch.manual_seed(0)
    fed = h.network(shape=(1, 8, 8), classes=5, model=ODD[kind]())
    first, second = (fc.simulate(fc.FedAvg(), fed, rounds=2, batch_size=4) for _ in range(2))
    other = fc.simulate(fc.FedAvg(), fed.to(dtype=torch.float32), rounds=2, batch_size=4)
    again = fc.simulate(fc.FedAvg(), fed.forced("sequential"), rounds=2, batch_size=4)
    assert torch.equal(first.params, second.params)
    h.close(again.params, first.params, 1e-12)
    h.close(other.params, first.params, 1e-5)


class Counting(nn.Module):
    """Its forward writes to a buffer that the next forward reads, as power iterations do."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 10)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.out(x.flatten(1)) * self.calls


def test_a_buffer_written_by_one_client_is_not_seen_by_the_next():
    module = Counting().double()
    Y, b = rows(module, 3), batch(3, 4, (1, 8, 8), 10)
    engine = Engine(module)
    truth = by_autograd(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double(), Y, b)  # the first call multiplies by 1
    for _ in range(2):
        assert relative(engine.gradient(Y, b)[0], truth) < 1e-12
    assert module.calls == 0


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
    assert {path(ODD[k]()) for k in ("custom forward", "tied weights", "layer used twice", "forward hook")} == {
        "sequential"
    }
    assert {k: path(ODD[k]()) for k in ("one ReLU used twice", "group norm on vectors")} == {
        "one ReLU used twice": "written", "group norm on vectors": "batched"
    }  # fmt: skip


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
