"""On a GPU: gradients are those of plain autograd on the CPU, and equal runs are equal to the bit."""

from __future__ import annotations

from functools import partial

import helpers as h
import pytest
import torch
from networks import NETS, batch, by_autograd, by_cross_entropy, relative, rows, thin

import fedcore as fc
from fedcore.engine import Batch, Engine, replay

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("path", ["batched", "sequential", "written"])
@pytest.mark.parametrize(("name", "shape", "classes"), [n[:3] for n in NETS], ids=[n[0] for n in NETS])
def test_gradients_on_a_gpu_are_autograds_on_the_cpu(name, shape, classes, path):
    module = thin(name, shape, classes).double()
    Y, b = rows(module, 3), batch(3, 6, shape, classes)
    if path == "written" and Engine(module).written is None:
        pytest.skip("no written rule")
    engine = Engine(module, path).to(torch.device("cuda"))
    on_gpu = Batch(b.x.cuda(), b.y.cuda(), b.w.cuda(), b.count, b.key)
    for one in (engine, replay.Graphed(engine.module, **engine.settings)):
        G, losses = one.gradient(Y.cuda(), on_gpu)
        assert relative(losses.cpu(), by_cross_entropy(module, Y, b)) < 1e-12
        assert relative(G.cpu(), by_autograd(module, Y, b)) < 1e-11


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("model", ["digit_cnn", "niid_cnn", "lenet", "resnet18_gn", "digit_model_small"])
def test_equal_runs_on_a_gpu_are_equal_to_the_bit(model, replayed):
    shape = next(shape for name, shape, *_ in NETS if name == model)
    fed = fc.federation(h.images(200, shape), clients=10, model=partial(thin, model), device="cuda")
    fed = replay.graphed(fed) if replayed else fed
    first, again = (fc.simulate(fc.SCAFFOLD(), fed, rounds=3, lr=0.05, batch_size=16).params for _ in range(2))
    assert torch.equal(first, again)
