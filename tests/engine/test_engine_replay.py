"""Replayed gradients are the gradients; what surrounds the capture is tested on any machine with a stand-in for it."""

from __future__ import annotations

import helpers as h
import pytest
import torch
from torch import nn

import fedcore as fc
from fedcore.engine import replay

METHODS = [fc.FedAvg(), fc.SCAFFOLD("I"), fc.Mime(0.6), fc.HeteroFL(0.5)]
SIZES = (13, 7, 20, 4, 9, 3, 8)


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if request.param == "cpu":

        def stand_in(work, device):
            out = work()

            def again():
                for old, new in zip(out, work(), strict=True):
                    old.copy_(new)

            return again, out

        monkeypatch.setattr(replay, "capture", stand_in)
        monkeypatch.setattr(replay, "_on_cuda", lambda Y: True)
    return request.param


@pytest.mark.parametrize("path", ["batched", "written"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_replayed_gradients_give_the_same_run(method, path, device):
    options = {"rounds": 3, "lr": 0.1, "lr_decay": 0.9, "batch_size": 4, "momentum": 0.5, "device": device}
    for model in ("mlp", "digit_cnn"):
        fed = h.network(SIZES, model, (1, 8, 8), path=path)
        want, got = (fc.simulate(method, f, **options).params.cpu() for f in (fed, replay.graphed(fed)))
        h.close(got, want, 1e-11)


def test_dropout_draws_new_numbers_in_each_step_also_where_other_gradients_are_replayed(device):
    def dropping(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, classes))

    fed = h.network(SIZES, dropping, (1, 8, 8))
    options = {"rounds": 2, "lr": 0.1, "batch_size": 4, "device": device}
    want, got = (fc.simulate(fc.FedAvg(), f, **options).params.cpu() for f in (fed, replay.graphed(fed)))
    h.close(got, want, 1e-11)


def test_a_graph_is_captured_for_a_few_numbers_of_clients_only(device):
    fed = replay.graphed(h.network(SIZES)).to(device)
    fc.simulate(fc.FedSAM(0.05), fed, rounds=2, batch_size=2, device=device)
    assert {size for size, *_ in fed.engine.graphs} == {7, 3, 1}  # of prefixes of 7, 6, 5, 4, 3, 2 and 1


def test_without_cuda_the_engine_runs_as_before():
    fed = h.network(SIZES)
    again = replay.graphed(fed)
    a, b = (fc.simulate(fc.FedAvg(), f, rounds=2, batch_size=4, device="cpu") for f in (fed, again))
    assert torch.equal(a.params, b.params)
    assert not again.engine.graphs
