"""Modules as users write them: the path that they take, and gradients that are autograd's on the module alone."""

from __future__ import annotations

import copy

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Net, batch, by_autograd, relative, rows
from torch import nn

import fedcore as fc
from fedcore import models
from fedcore.engine import Engine
from fedcore.engine.mapped import maps
from fedcore.engine.units import Neurons
from fedcore.models.parts import FixableBatchNorm1d, FixableBatchNorm2d

# --- what users write -------------------------------------------------------------------------------------------------


def mlp(forward, width=64) -> nn.Module:
    return Net(forward, fc1=nn.Linear(width, 20), fc2=nn.Linear(20, 5))


def cnn(forward, **more: nn.Module) -> nn.Module:
    layers = {"c1": nn.Conv2d(1, 6, 3, padding=1), "c2": nn.Conv2d(6, 8, 3, padding=1), "out": nn.Linear(32, 5)}
    return Net(forward, **layers | more)


def pooled(x):
    return F.max_pool2d(F.relu(x), 2)


class Block(nn.Module):
    def __init__(self, c, norm, act):
        super().__init__()
        self.a, self.b, self.n, self.act = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 1), norm(c), act

    def forward(self, x):
        out = self.n(self.b(self.act(self.a(x))))
        out += x
        return self.act(out)


def residual(norm, act) -> nn.Module:
    body = {"stem": nn.Conv2d(1, 8, 3, padding=1), "b1": Block(8, norm, act), "b2": Block(8, norm, act)}
    return Net(lambda m, x: m.out(m.b2(m.b1(m.stem(x))).mean((2, 3))), **body, out=nn.Linear(8, 5))


def fixed(module) -> nn.Module:
    """The module, whose batch norms have statistics of their own but for every third channel."""
    for norm in module.modules():
        if isinstance(norm, models.FixableBatchNorm):
            torch.nn.init.normal_(norm.fixed_mean)
            torch.nn.init.uniform_(norm.fixed_var, 0.5, 2)[::3] = -1
    return module


WRITTEN, BATCHED, SEQUENTIAL = "written", "batched", "sequential"
gn = lambda c: nn.GroupNorm(2, c)  # noqa: E731

MODULES = {
    "MLP, view(size)": (lambda: mlp(lambda m, x: m.fc2(torch.relu(m.fc1(x.view(x.size(0), -1))))), WRITTEN),
    "MLP, reshape(shape)": (lambda: mlp(lambda m, x: m.fc2(F.relu(m.fc1(x.reshape(x.shape[0], -1))))), WRITTEN),
    "MLP, in place": (lambda: mlp(lambda m, x: m.fc2(m.fc1(x.flatten(1)).relu_())), WRITTEN),
    "MLP, tanh": (lambda: mlp(lambda m, x: m.fc2(torch.tanh(m.fc1(x.flatten(1))))), WRITTEN),
    "MLP, GELU": (lambda: mlp(lambda m, x: m.fc2(F.gelu(m.fc1(x.flatten(1)), approximate="tanh"))), WRITTEN),
    "MLP, SiLU": (lambda: mlp(lambda m, x: m.fc2(F.silu(m.fc1(x.flatten(1)), inplace=True))), WRITTEN),
    "MLP, ELU": (lambda: mlp(lambda m, x: m.fc2(F.elu(m.fc1(x.flatten(1)), 0.7))), WRITTEN),
    "MLP, leaky ReLU": (lambda: mlp(lambda m, x: m.fc2(F.leaky_relu(m.fc1(x.flatten(1)), 0.2))), WRITTEN),
    "MLP, softplus": (lambda: mlp(lambda m, x: m.fc2(F.softplus(m.fc1(x.flatten(1))))), BATCHED),
    "LayerNorm": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.LayerNorm(9), nn.ReLU(), nn.Linear(9, 5)),
                  BATCHED),
    "CNN, functions": (lambda: cnn(lambda m, x: m.out(torch.flatten(pooled(m.c2(pooled(m.c1(x)))), 1))), WRITTEN),
    "CNN, mean": (
        lambda: Net(lambda m, x: m.out(F.relu(m.c(x)).mean(dim=(2, 3))), c=nn.Conv2d(1, 6, 3), out=nn.Linear(6, 5)),
        WRITTEN),
    "CNN, average pooling": (
        lambda: cnn(lambda m, x: m.out(F.avg_pool2d(m.c2(F.avg_pool2d(m.c1(x), 2)), 2).flatten(1))), BATCHED),
    "CNN, adaptive pooling": (
        lambda: Net(lambda m, x: m.out(F.adaptive_avg_pool2d(m.c(x), (1, 1)).flatten(1)), c=nn.Conv2d(1, 6, 3),
                    out=nn.Linear(6, 5)), WRITTEN),
    "batch norm": (
        lambda: cnn(lambda m, x: m.out(pooled(m.n2(m.c2(pooled(m.n1(m.c1(x)))))).flatten(1)), n1=nn.BatchNorm2d(6),
                    n2=nn.BatchNorm2d(8)), WRITTEN),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 6, 3, groups=2), nn.Flatten(), nn.Linear(96, 5)),
                BATCHED),
    "padding same": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding="same"), nn.Flatten(), nn.Linear(192, 5)),
                     BATCHED),
    "padding circular": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(192, 5)),
        BATCHED),
    "residual, group norm": (lambda: residual(gn, nn.ReLU(inplace=True)), BATCHED),
    "residual, batch norm": (lambda: residual(nn.BatchNorm2d, nn.ReLU()), BATCHED),
    "fixed batch norms": (lambda: fixed(residual(FixableBatchNorm2d, nn.ReLU())), BATCHED),
    "fixed batch norms of features": (
        lambda: fixed(nn.Sequential(nn.Flatten(), nn.Linear(64, 9), FixableBatchNorm1d(9), nn.Tanh(), nn.Linear(9, 5))),
        BATCHED),
    "torchvision ResNet18, group norm": (lambda: thin_resnet(), BATCHED),
    "torchvision vision transformer": (lambda: vision_transformer(), "mapped"),
    "one ReLU twice": (lambda: one_relu(), WRITTEN),
    "a kind of Conv2d": (lambda: nn.Sequential(Standardised(1, 4, 3), nn.Flatten(), nn.Linear(144, 5)), "mapped"),
    "group norm on vectors": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.GroupNorm(4, 16), nn.Linear(16, 5, bias=False)),
        BATCHED),
    "linear along picture rows": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Linear(6, 4), nn.Flatten(), nn.Linear(72, 5)), "any"),
    "flatten of some axes": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Linear(64, 8), nn.Flatten(), nn.Linear(8, 5)), "any"),
    "bent activations": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.LeakyReLU(0.1), nn.Linear(9, 9), nn.ReLU6(),
                              nn.Linear(9, 5), nn.Hardswish()), "any"),
    "average pooling": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 5)), "any"),
    "in place, after and as a layer": (
        lambda: nn.Sequential(relu(), nn.Conv2d(1, 4, 3), relu(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), relu(),
                              nn.Flatten(), nn.Linear(64, 5)), WRITTEN),
    "in place, inside a residual body": (
        lambda: bodied(models.Residual(nn.Sequential(nn.Conv2d(4, 4, 1), relu(), nn.Conv2d(4, 4, 1)))), WRITTEN),
    "a representation": (
        lambda: models.Projected(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()), nn.Linear(6, 5)), BATCHED),
    "a parameter of its own": (
        lambda: Net(lambda m, x: m.out(x.flatten(1) * m.scale), scale=nn.Parameter(torch.rand(64)),
                    out=nn.Linear(64, 5)), "mapped"),
    "tied weights": (
        lambda: Net(lambda m, x: m.out(F.relu(m.fc(F.relu(m.fc(x.flatten(1)))))), fc=nn.Linear(64, 64),
                    out=nn.Linear(64, 5)), "mapped"),
    "an unused layer": (lambda: Net(lambda m, x: m.out(x.flatten(1)), out=nn.Linear(64, 5), idle=nn.Linear(2, 2)),
                        "mapped"),
    "recurrent": (
        lambda: Net(lambda m, x: m.out(m.lstm(x.squeeze(1))[0][:, -1]), lstm=nn.LSTM(8, 6, batch_first=True),
                    out=nn.Linear(6, 5)), SEQUENTIAL),
    "mixes samples": (lambda: Net(lambda m, x: m.out(x.flatten(1) - x.flatten(1).mean(0)), out=nn.Linear(64, 5)),
                      SEQUENTIAL),
    "branches on data": (
        lambda: Net(lambda m, x: m.out(x.flatten(1)) if x.sum() > 0 else -m.out(x.flatten(1)), out=nn.Linear(64, 5)),
        SEQUENTIAL),
}  # fmt: skip


class Standardised(nn.Conv2d):
    """A kind of a layer that there is a rule for, with another forward."""

    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def bodied(body: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), body, nn.Flatten(), nn.Linear(144, 5))


def one_relu() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), relu, nn.Linear(16, 16), relu, nn.Linear(16, 5))


def vision():
    """torchvision's models, read where they are used: that takes seconds, in each process that collects the tests."""
    import torchvision

    return torchvision.models


def vision_transformer() -> nn.Module:
    """Two blocks on four patches of a picture of one channel."""
    net = vision().VisionTransformer(8, 4, num_layers=2, num_heads=2, hidden_dim=12, mlp_dim=16, num_classes=5)
    net.conv_proj = nn.Conv2d(1, 12, 4, 4)
    return net


def thin_resnet() -> nn.Module:
    net = vision().ResNet(
        vision().resnet.BasicBlock, [1, 1, 1, 1], num_classes=5, norm_layer=lambda c: nn.GroupNorm(2, c)
    )
    net.conv1, net.layer3, net.layer4 = nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.Identity(), nn.Identity()
    net.fc = nn.Linear(128, 5)
    return net


def built(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[kind][0]().double()


@pytest.mark.parametrize("kind", MODULES)
def test_gradients_are_autograds_on_the_module_alone(kind):
    module, expected = built(kind), MODULES[kind][1]
    b = batch(3, 4, (1, 8, 8), 5)
    Y, mapped = rows(module, 3), not Engine(module).axes and maps(module, b.x[0, :3])
    engine = Engine(module, mapped=mapped)
    path = engine.chosen(torch.device("cpu"))
    if expected != "any":
        large = path == SEQUENTIAL and expected == BATCHED and engine.layout.d > 2e5  # which pays one by one
        assert large or path == (BATCHED if expected == "mapped" else expected), (
            f"the network takes the path {path}: its layers need RULES, and BACKWARD if written, in "
            "fedcore/engine/layers, and its calls F.name need LAYERS in fedcore/engine/traced.py"
        )
        assert engine.mapped == (expected == "mapped")
    truth, before = by_autograd(copy.deepcopy(module), Y, b), b.x.clone()
    along = Y - Y.mean(0)  # along ones the loss of a linear layer is constant
    curved = engine.forced("sequential").gradient(Y, b, along=along)[0] if engine.layout.d < 1e5 else None
    for one in (engine, *([] if engine.one_by_one else [engine.forced("batched")])):
        assert relative(one.gradient(Y, b)[0], truth) < 1e-10
        if engine.layout.d < 1e5:
            assert relative(one.gradient(Y, b, along=along)[0], curved) < 1e-8
    assert torch.equal(b.x, before)


def test_dropout_of_a_client_is_what_it_would_draw_alone():
    torch.manual_seed(0)
    module = cnn(
        lambda m, x: m.out(m.drop(pooled(m.c2(F.dropout(pooled(m.c1(x)), 0.3)))).flatten(1)), drop=nn.Dropout(0.5)
    )
    engine, Y, b = Engine(module.double()), rows(module, 3), batch(3, 6, (1, 8, 8), 5)
    assert (engine.chosen(torch.device("cpu")), engine.random) == (BATCHED, True)
    assert relative(engine.gradient(Y, b)[0], engine.forced("sequential").gradient(Y, b)[0]) < 1e-12


def test_neurons_of_a_module_are_those_of_its_layers():
    own = cnn(lambda m, x: m.out(torch.flatten(pooled(m.c2(pooled(m.c1(x)))), 1)))
    layers = nn.Sequential(
        own.c1, nn.ReLU(), nn.MaxPool2d(2), own.c2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), own.out
    )
    a, b = Neurons.of(own), Neurons.of(layers)
    assert a.widths == b.widths == (6, 8)
    assert all(torch.equal(x, y) for x, y in zip(a.places(a.prefix(0.5)), b.places(b.prefix(0.5)), strict=True))
    with pytest.raises(ValueError, match="no rule says which neurons own what in VisionTransformer"):
        Neurons.of(vision_transformer())


def test_a_federation_names_its_path_and_why_it_is_slow():
    def shown(kind, **more):
        return repr(fc.federation(h.images(60), clients=5, model=lambda shape, classes: built(kind), **more))

    assert shown("CNN, functions").endswith("path='written')")
    assert repr(fc.federation("digits", clients=3, model="thesis_cnn_small")).endswith("path='written')")
    assert shown("torchvision vision transformer").endswith("path='batched')")
    assert "path='sequential' (one client after another, which is slow: no rule for Net" in shown("recurrent")
    assert shown("recurrent", path="sequential").endswith("path='sequential')")


def test_a_forward_is_read_without_being_changed():
    module = Net(lambda m, x: (setattr(m, "last", x), m.fc(x.flatten(1)))[1], fc=nn.Linear(64, 5), last=None)
    fed = fc.federation(h.images(60), clients=5, model=module)
    assert fed.engine.chosen(fed.device) == WRITTEN
    assert module.last is None
    assert np.isfinite(fc.simulate(fc.FedAvg(), fed, rounds=1).final("loss"))


def test_layers_under_a_context_that_a_graph_does_not_show_are_left_to_the_module():
    def forward(context):
        def inner(m, x):
            with context:
                h = F.relu(m.fc1(x.flatten(1)))
            return m.fc2(h)

        return inner

    assert Engine(mlp(forward(torch.autocast("cpu", torch.bfloat16)))).one_by_one
    module, b = mlp(forward(torch.no_grad())).double(), batch(3, 4, (1, 8, 8), 5)
    engine, Y = Engine(module), rows(module, 3)
    assert engine.one_by_one
    G = engine.gradient(Y, b)[0]
    assert (G[:, : 64 * 20 + 20] == 0).all()
    assert relative(G, by_autograd(module, Y, b)) < 1e-12


def test_calls_mean_what_they_mean_in_torch():
    def chain(forward):
        return Engine(Net(forward, c=nn.Conv2d(1, 3, 3), out=nn.Linear(27, 5)).double())

    pooled_up = chain(lambda m, x: m.out(torch.max_pool2d(m.c(x), 2, 2, 0, 1, True).flatten(1)))  # ceil_mode: 6 -> 3
    odd = chain(lambda m, x: m.out(torch.max_pool2d(m.c(x), 3, 2, 1, 1, True)[:, :, :3, :3].flatten(1)))
    pixels = chain(lambda m, x: m.out(F.max_pool2d(F.log_softmax(m.c(x), dim=1), 2).flatten(1)))
    assert not pooled_up.one_by_one
    assert odd.one_by_one, "a slice is no layer"
    for engine in (pooled_up, pixels):
        Y, b = rows(engine.module, 3), batch(3, 4, (1, 8, 8), 5)
        assert relative(engine.gradient(Y, b)[0], by_autograd(engine.module, Y, b)) < 1e-12
    assert chain(lambda m, x: m.out(x.flatten().unflatten(0, (len(x), -1))[:, :27])).one_by_one
