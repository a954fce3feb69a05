"""From parameters to a module and back: as accurate as the history says, a fresh copy, and a run's start to the bit."""

from __future__ import annotations

import copy
from functools import partial

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import DISTINCT, thin
from torch import nn

import fedcore as fc

RUN = {"rounds": 2, "lr": 0.05, "local_steps": 2, "batch_size": 4, "eval_every": 2}


class Own(nn.Module):
    """A user's network: its own forward, batch norm, dropout, and a buffer that is no statistic."""

    def __init__(self, width: int = 6, factor: float = 0.5):
        super().__init__()
        self.inner, self.norm = nn.Linear(16, width), nn.BatchNorm1d(width, momentum=0.3)
        self.drop, self.outer = nn.Dropout(0.5), nn.Linear(width, 3)
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x):
        return self.outer(self.drop(self.norm(self.inner(self.factor * x.flatten(1))).relu()))


def trained(**options) -> tuple[fc.Federation, fc.History]:
    fed = h.network(**options)
    return fed, fc.simulate(fc.FedAvg(), fed, **RUN)


@pytest.fixture(scope="module")
def own():
    return trained(model=Own())


def heads(shape, classes) -> nn.Module:
    return fc.submodels.with_heads(two_layers(shape, classes), classes)


def two_layers(shape, classes) -> nn.Module:
    return fc.models.mlp(shape, classes, (8, 6))


def assert_as_evaluated(fed: fc.Federation, params: torch.Tensor, accuracy: float | None = None) -> nn.Module:
    """The module's hits are `fed.correct`'s, sample by sample, and its loss is `fed.evaluate`'s."""
    module = fed.module(params)
    with torch.no_grad():
        logits = module(torch.as_tensor(fed.source.test_x))
    labels = torch.as_tensor(fed.source.test_y)
    hits, found = logits.argmax(1) == labels, fed.evaluate(params)
    assert torch.equal(hits, fed.correct(params))
    assert float(hits.double().mean()) == float(found["accuracy"])
    assert accuracy is None or float(found["accuracy"]) == accuracy
    h.close(F.cross_entropy(logits, labels), found["loss"], 1e-12)
    assert not module.training
    return module


# --- as accurate as the history says ------------------------------------------------------------------------------


MODELS = {
    name: (partial(thin, name), shape) for name, shape, *_ in DISTINCT if not name.startswith(("thesis", "cifar"))
}
MODELS |= {"a user's": (Own(), (1, 4, 4)), "heads": (heads, (1, 4, 4))}
MODELS["projected"] = fc.models.projected(two_layers, 5), (1, 4, 4)


@pytest.mark.parametrize("kind", MODELS)
def test_a_module_classifies_every_test_image_as_the_history_did(kind):
    model, shape = MODELS[kind]
    fed = h.network(sizes=(6, 4), model=model, shape=shape)
    history = fc.simulate(fc.FedAvg(), fed, rounds=1, lr=0.05, local_steps=1, batch_size=4)
    assert_as_evaluated(fed, history.params, history.final())


def test_a_module_of_a_text_model_takes_symbols_of_any_whole_type():
    x = np.random.default_rng(0).integers(0, 80, (40, 6)).astype(np.uint8)
    source = fc.data.Source("texts", x, np.arange(40) % 80, x[:15], np.arange(15), 80, text=True)
    fed = fc.federation(source, clients=2, model="lstm", dtype=torch.float64)
    history = fc.simulate(fc.FedAvg(), fed, **RUN)
    module, raw = assert_as_evaluated(fed, history.params, history.final()), torch.as_tensor(x[:15])
    assert fed.d == 133_520
    assert torch.equal(module(raw), module(raw.int()))


def test_a_network_with_heads_answers_by_their_mean_and_in_training_mode_by_each():
    fed, history = trained(model=heads)
    module, x = fed.module(history.params), torch.as_tensor(fed.source.test_x)
    each = copy.deepcopy(module).train()(x)
    assert each.shape == (10, 2, 3)
    h.close(module(x), each.mean(1), 1e-14)


def test_depthfl_gives_a_module_on_the_federation_that_it_ran_on_and_refuses_the_other():
    fed, method = h.network(model=two_layers), fc.DepthFL({1: 0.5, 0.5: 0.5})
    history = fc.simulate(method, fed, **RUN)
    for wrong in (fed.module, fed.evaluate, fed.correct, fed.objective):
        with pytest.raises(ValueError, match=rf"\({len(history.params)},\).*\({fed.d},\).*method.on\(fed\)"):
            wrong(history.params)
    assert_as_evaluated(method.on(fed), history.params, history.final())


@pytest.mark.parametrize("normalise", ["pooled", "half"])
def test_images_are_normalised_inside_however_they_come(normalise):
    fed, history = trained(sizes=(12, 8), normalise=normalise)
    module, x = fed.module(history.params), torch.as_tensor(fed.source.test_x)
    want = module(x)
    for same in (x[:, 0], x.float(), x.permute(0, 2, 3, 1), x.double()[:, 0]):
        assert torch.equal(module(same), want)
    with pytest.raises(ValueError, match=r"\(10, 5, 5\).*\(1, 4, 4\)"):
        module(torch.zeros(10, 5, 5))


# --- an ordinary module -------------------------------------------------------------------------------------------


def test_a_module_is_a_copy_that_shares_nothing_with_the_federation_or_another_copy(own):
    fed, history = own
    before, params = fed.evaluate(history.params), history.params.clone()
    module, other = fed.module(history.params), fed.module(history.params)
    for tensor in module.state_dict().values():
        tensor.zero_()
    assert torch.equal(history.params, params)
    assert fed.evaluate(history.params) == before
    assert all(v.abs().sum() > 0 for k, v in other.state_dict().items() if k.endswith("weight"))
    assert all(p.requires_grad and p.is_leaf for p in other.parameters())


def test_a_state_dict_loads_into_another_copy_and_its_network_into_the_users_class(own):
    fed, history = own
    module, x = fed.module(history.params), torch.as_tensor(fed.source.test_x)
    again = fed.module(fed.x0)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(x), module(x))
    own = Own().double().eval()
    own.load_state_dict(module.network.state_dict())
    h.close(own(fed.inputs(fed.test[0])), module(x), 1e-14)


def test_a_layer_that_stands_twice_and_a_frozen_parameter_stay_so():
    layer = nn.Linear(8, 8)
    layer.bias.requires_grad_(False)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), layer, nn.ReLU(), layer, nn.Linear(8, 3))
    fed, history = trained(model=net)
    module = assert_as_evaluated(fed, history.params, history.final())
    assert module.network[3].weight is module.network[5].weight
    assert not module.network[3].bias.requires_grad
    assert module.network.state_dict().keys() == net.state_dict().keys()


def test_torch_exports_a_module_for_batches_of_any_size(own):
    fed, history = own
    module, x = fed.module(history.params), torch.as_tensor(fed.source.test_x)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("B")},))
    for part in (x, x[:3]):
        h.close(program.module()(part), module(part), 1e-12)


def test_onnx_runs_a_module(tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")
    fed, history = trained(model="digit_cnn", shape=(1, 8, 8), dtype=torch.float32)
    module, x = fed.module(history.params), torch.as_tensor(fed.source.test_x)
    torch.onnx.export(module, (x,), str(tmp_path / "model.onnx"), dynamo=True)
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    h.close(logits, module(x), 1e-4)


# --- a warm start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vector", "array", "state_dict", "network", "module", "its state_dict"])
def test_parameters_go_out_and_come_back_to_the_bit(kind, own):
    fed, history = own
    module = fed.module(history.params)
    start = {
        "vector": history.params, "array": history.params.numpy(), "state_dict": module.network.state_dict(),
        "network": module.network, "module": module, "its state_dict": module.state_dict(),
    }[kind]  # fmt: skip
    warm = h.network(model=Own(), start=start)
    assert torch.equal(warm.x0, history.params)
    assert warm.evaluate(warm.x0) == fed.evaluate(history.params)
    assert fc.simulate(fc.FedAvg(), warm, rounds=0).final() == history.final()


def test_a_start_and_its_buffers_are_part_of_a_runs_identity_and_leave_the_users_module_alone():
    model, other = Own(), Own(factor=2.0)
    before = copy.deepcopy(model.state_dict())
    fed, history = trained(model=model)
    warm = h.network(model=model, start=history.params)
    assert warm.fingerprint() != fed.fingerprint() == h.network(model=model).fingerprint()
    assert warm.fingerprint() == h.network(model=model, start=fed.module(history.params)).fingerprint()
    assert h.network(model=model, start=fed.x0).fingerprint() == fed.fingerprint()
    doubled = h.network(model=model, start={**fed.module(fed.x0).network.state_dict(), "factor": other.factor})
    assert float(doubled.engine.module.factor) == 2.0
    assert torch.equal(doubled.x0, fed.x0)
    assert doubled.fingerprint() != fed.fingerprint()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
