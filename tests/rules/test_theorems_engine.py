"""The proposition of the chapter on the engine, with the counters that its pictures use."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

import fedcore as fc
from fedbook.show import benchmarked
from tools import book


def counted(model, clients, batch):
    """Operations of the products of one step of a cohort, on the batched path."""
    own = np.zeros((12 * clients, 1, 28, 28), np.float32), np.arange(12 * clients) % 10
    fed = fc.federation((own, own), clients, fc.IID(), model=model, path="batched", device="cpu")
    Y = fed.x0.expand(clients, fed.d).clone()
    with FlopCounterMode(display=False) as counter:
        fed.gradient(Y, fed.plan(0, 0, np.arange(clients), steps=1, batch_size=batch), 0)
    return counter.get_total_flops()


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_thm_engine_intensity(model):
    one = counted(model, 1, 4)
    assert one > 0
    assert counted(model, 7, 4) == 7 * one, "operations are those of one client, m times"
    assert counted(model, 1, 12) == 3 * one, "and in proportion to the batch"
    work = benchmarked.work(model)
    grown = [work.intensity(B) for B in (1, 2, 5, 20, 100, 10_000)]
    assert all(np.diff(grown) > 0), "a larger batch raises the intensity"
    for B, found in zip((1, 2, 5, 20, 100, 10_000), grown, strict=True):
        assert found == B * work.operations / (8 * (work.d + B * work.width))
        assert found < min(B * work.operations / (8 * work.d), work.operations / (8 * work.width))


def test_a_linear_layers_operations_are_those_of_the_three_products():
    """Forward, the gradient of the weights, and, but for the first layer, that of the inputs: 2 m B in out each."""
    assert benchmarked.work("logistic").operations == 2 * 2 * 784 * 10
    assert benchmarked.work("mlp").operations == 2 * 2 * 784 * 200 + 3 * 2 * (200 * 200 + 200 * 10)


def test_the_counted_models_are_those_that_were_timed():
    tree = ast.parse((book.ROOT / "benchmarks" / "paths.py").read_text(encoding="utf-8"))
    values = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)
              and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    timed = ast.literal_eval(values["SETTINGS"])
    assert {name: case[:2] for name, case in timed.items()} == benchmarked.SHAPES
