"""Gradients of a whole cohort: two paths, one answer, and that answer is autograd's on the module alone."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from pathlib import Path

import helpers as h
import pytest
import torch
import torch.nn.functional as F
from networks import NETS, Centred, Net, batch, build, by_autograd, by_cross_entropy, normed, relative, rows, thin
from torch import nn

import fedcore as fc
from fedcore import models
from fedcore.engine import PLAIN, Batch, Engine
from fedcore.engine.layers import pointwise, table
from fedcore.engine.layers.weights import Conv2d
from fedcore.engine.units import Neurons
from fedcore.support import devices

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


@pytest.mark.parametrize("name", ["lenet", "niid_cnn", "resnet18_gn", "strided and dilated"])
def test_convolutions_as_products_as_a_gpu_takes_them_are_convolutions(name, monkeypatch):
    shape = (2, 11, 9)
    if name in models.__all__:
        module = thin(name, shape := next(n[1] for n in NETS if n[0] == name), 10).double()
    else:
        layers = nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 0), (1, 2), bias=False), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=2)
        module = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10)).double()
        module(torch.zeros(1, *shape, dtype=torch.float64))
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


# --- layers in place, observed and added, and what is trained -----------------------------------------------------


def conv(a: int, b: int) -> nn.Module:
    return nn.Conv2d(a, b, 3, padding=1)


def head(c: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 5)]


def setting(module: nn.Module) -> tuple[nn.Module, torch.Tensor, Batch]:
    torch.manual_seed(0)
    return module.double(), rows(module, 3), batch(3, 4, (1, 8, 8), 5)


@pytest.mark.parametrize("loss", [None, PLAIN], ids=["output", "derivative"])
def test_a_layers_output_is_observed_before_another_writes_over_it(loss):
    def net(inplace: bool) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(conv(1, 4), nn.ReLU(inplace), conv(4, 4), nn.ReLU(inplace), *head(4)).double()

    seen = [
        Engine(net(inplace), "batched").observe(rows(net(inplace), 3), batch(3, 4, (1, 8, 8), 5), ["0", "1"], loss)
        for inplace in (False, True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert not torch.equal(seen[0][0], seen[0][1])


def test_a_model_without_rules_cannot_be_observed():
    module, Y, b = setting(nn.Sequential(nn.Flatten(), Centred(), nn.Linear(64, 5)))
    with pytest.raises(ValueError, match="activations cannot be read in a model with Centred"):
        Engine(module).observe(Y, b, ["1"])


@pytest.mark.parametrize("path", ["auto", "batched", "sequential"])
def test_the_engine_says_which_entries_are_trained(path):
    net = h.small_mlp((1, 8, 8), 5)
    assert Engine(net, path).trained is None
    net[1].weight.requires_grad_(False)
    engine = Engine(net, path).to(torch.device("cpu"), torch.float64)
    views = engine.layout.views(engine.trained)
    assert {name: bool(v.any()) for name, v in views.items()} == {name: name != "1.weight" for name in views}
    _, Y, b = setting(net)
    G = engine.gradient(Y, b)[0]
    assert (G[:, ~engine.trained] == 0).all()
    assert (G[:, engine.trained] != 0).any(0).sum() > 0.9 * engine.trained.sum()


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


def test_a_layer_is_added_in_one_place(monkeypatch):
    class Hardshrink(pointwise.Each):
        def units(self, streams, s, axes):
            streams.activation(s, self.name, streams.before)
            return s

    module, Y, b = setting(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Hardshrink(), nn.Linear(6, 5)))
    assert Engine(module).unsupported == ["Hardshrink"]
    with pytest.raises(ValueError, match="Hardshrink"):
        Neurons.of(module)
    monkeypatch.setitem(table.RULES, nn.Hardshrink, Hardshrink)
    assert Neurons.of(module).sites == ("2",)
    assert relative(Engine(module, "batched").gradient(Y, b)[0], by_autograd(module, Y, b)) < 1e-12
    with pytest.raises(ValueError, match="path='written' has no rule"):
        Engine(module, "written")


def test_parameters_outside_the_layers_are_left_to_the_module():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    net[0].idle = nn.Linear(2, 2)
    module, Y, b = setting(net)
    assert Engine(module).unsupported == ["parameters that are shared or outside its layers"]
    assert (Engine(module).gradient(Y, b)[0][:, :6] == 0).all()


@pytest.mark.parametrize(
    ("bound", "instructions", "told"),
    [
        (None, True, False), (None, False, True), ("AVX512_CORE", True, True), ("AVX512_CORE_AMX", True, False),
    ],
)  # fmt: skip
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
