"""The proposition of the chapter on the engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import fedcore as fc
from fedcore.engine import Engine


def counted(model, clients, batch):
    """Operations of the products of one step of a cohort, on the batched path."""
    own = np.zeros((12 * clients, 1, 28, 28), np.float32), np.arange(12 * clients) % 10
    fed = fc.federation((own, own), clients, fc.IID(), model=model, path="batched", device="cpu")
    Y = fed.x0.expand(clients, fed.d).clone()
    with FlopCounterMode(display=False) as counter:
        fed.gradient(Y, fed.plan(0, 0, np.arange(clients), steps=1, batch_size=batch), 0)
    return counter.get_total_flops()


def work(model):
    """Operations of one sample, parameters, and numbers that the layers give for one sample, which it counts too."""
    net = fc.models.MODELS[model]((1, 28, 28), 10)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(net(torch.zeros(1, 1, 28, 28)), torch.zeros(1, dtype=torch.int64)).backward()
    engine = Engine(net)
    return counter.get_total_flops(), engine.layout.d, engine.width(torch.zeros(2, 1, 28, 28))


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_thm_engine_intensity(model):
    one = counted(model, 1, 4)
    assert one > 0
    assert counted(model, 7, 4) == 7 * one, "operations are those of one client, m times"
    assert counted(model, 1, 12) == 3 * one, "and in proportion to the batch"
    f, d, w = work(model)
    assert one == 4 * f
    grown = [B * f / (8 * (d + B * w)) for B in (1, 2, 5, 20, 100, 10_000)]
    assert all(np.diff(grown) > 0), "a larger batch raises the intensity"
    assert all(np.array(grown) < f / (8 * w))


def test_a_linear_layers_operations_are_those_of_the_three_products():
    """Forward, the gradient of the weights, and, but for the first layer, that of the inputs: 2 m B in out each."""
    assert work("logistic")[0] == 2 * 2 * 784 * 10
    assert work("mlp")[0] == 2 * 2 * 784 * 200 + 3 * 2 * (200 * 200 + 200 * 10)
