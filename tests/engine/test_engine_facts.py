"""What the engine promises beside equal gradients: losses, passes, in-place layers, frozen entries, large batches."""

from __future__ import annotations

import warnings

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import batch, by_autograd, relative, rows
from torch import nn
from torch.func import functional_call

import fedcore as fc
from fedcore import models
from fedcore.engine import PATHS, PLAIN, Batch, Engine, Loss, counting
from fedcore.engine.layers import pointwise, table
from fedcore.engine.units import Neurons
from fedcore.support import devices

GENERAL = ("batched", "sequential")


def representing() -> nn.Module:
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 6))
    return models.Projected(trunk, nn.Linear(6, 5)).double()


def setting(module: nn.Module | None = None, m: int = 3, B: int = 4) -> tuple[nn.Module, torch.Tensor, Batch]:
    torch.manual_seed(0)
    module = representing() if module is None else module.double()
    return module, rows(module, m), batch(m, B, (1, 8, 8), 5)


# --- what a step differentiates -----------------------------------------------------------------------------------


def tilted(logits, y, *, slope, tilt):
    """A loss that needs something of each client and something of each sample."""
    picked = logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -slope.unsqueeze(-1) * picked + logits[..., 0] * tilt


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("path", ["auto", *GENERAL])
def test_a_loss_of_ones_own_sees_its_rows_and_samples_on_every_path(path, block):
    module, Y, b = setting()
    g = torch.Generator().manual_seed(5)
    slope, tilt = torch.rand(3, generator=g).double(), torch.rand(3, 4, generator=g).double()
    loss = Loss(tilted, rows={"slope": slope}, samples={"tilt": tilt})
    G, losses = Engine(module, path, block=block).gradient(Y, b, loss)
    for i, k in enumerate(b.count):
        flat = Y[i].clone().requires_grad_()
        logits = functional_call(module, models.Layout.of(module).views(flat), (b.x[i, :k],))
        each = slope[i] * F.cross_entropy(logits, b.y[i, :k], reduction="none") + logits[:, 0] * tilt[i, :k]
        h.close(losses[i], each.mean(), 1e-13)
        assert relative(G[i], torch.autograd.grad(each.mean(), flat)[0]) < 1e-12


# --- passes -------------------------------------------------------------------------------------------------------


def pull(z, *others):
    return sum((z - other).square().sum(-1) for other in others)


@pytest.mark.parametrize("path", GENERAL)
def test_a_penalty_against_representations_costs_one_backward_pass(path):
    module, Y, b = setting()
    engine, other = Engine(module, path), torch.zeros_like(Y[:1]).expand_as(Y)
    with counting() as passes:
        engine.gradient(Y, b, Loss(penalty=pull, references=(other, -Y)))
    assert sum(passes) == 3
    with counting() as passes:
        engine.logits(Y, b)
    assert not passes


@pytest.mark.parametrize("path", PATHS)
def test_passes_are_counted_for_each_client(path):
    module, Y, b = setting(models.digit_cnn((1, 8, 8), 5))
    engine, counts = Engine(module, path, block=2), np.array([b.count, b.count]) * np.array([[1, 1, 1], [1, 1, 0]])
    with counting() as passes:
        engine.gradient(Y, b)
    assert sum(passes) == 3
    with counting() as passes:
        engine.gradient(Y, b, along=Y)
    assert sum(passes) == 6  # a Hessian-vector product goes back twice
    with counting() as passes:
        engine.descend(Y.clone(), counts, lambda k, part: b.rows(part), 0.1)
    assert sum(passes) == 5
    with counting() as passes:
        engine.observe(Y, b, ["0"])
    assert not passes


def test_a_step_of_moon_goes_back_once():
    fed = h.network(shape=(1, 8, 8), model=fc.models.projected("cnn", 8))
    with counting() as passes:
        fc.simulate(fc.MOON(1.0), fed, rounds=2, batch_size=8, local_steps=3)
    assert sum(passes) == 2 * 5 * 3


# --- layers in place ----------------------------------------------------------------------------------------------


def test_an_in_place_layer_whose_input_is_read_twice_is_left_to_the_module():
    body = models.Residual(nn.Sequential(nn.ReLU(inplace=True), conv(4, 4)))
    with pytest.raises(ValueError, match="path='batched' has no rule for an in-place activation whose input is read"):
        Engine(nn.Sequential(conv(1, 4), body, *head(4)), "batched")


def conv(a: int, b: int) -> nn.Module:
    return nn.Conv2d(a, b, 3, padding=1)


def head(c: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 5)]


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
    module, Y, b = setting(nn.Sequential(nn.Flatten(), nn.RMSNorm(64), nn.Linear(64, 5)))
    with pytest.raises(ValueError, match="activations cannot be read in a model with RMSNorm"):
        Engine(module).observe(Y, b, ["1"])


# --- what is trained ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["auto", *GENERAL])
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


# --- batches ------------------------------------------------------------------------------------------------------


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


# --- the table of rules -------------------------------------------------------------------------------------------


def test_a_layer_is_added_in_one_place(monkeypatch):
    class Hardshrink(pointwise.Each):
        def units(self, streams, s, picture):
            streams.activation(s, self.name, streams.before)
            return s, picture

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
