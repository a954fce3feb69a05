"""Buffers that training updates belong to each model, and count in no length that methods and probes measure."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedcore as fc
from fedcore import probes

WORK = {"lr": 0.1, "local_steps": 3, "batch_size": 4}


class Warmed(nn.Module):
    """A network that becomes stronger with the number of its training passes, and one layer of which is not trained."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
        self.layers[0].bias.requires_grad_(False)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.passes += 1
        return self.layers(x) * (self.passes / 6).clamp(max=1)


@pytest.fixture
def fed():
    torch.manual_seed(0)
    data = torch.randn(24, 8, dtype=torch.float64), torch.arange(24) % 3
    return fc.federation(data, 3, fc.Dirichlet(1.0), Warmed(), path="sequential", dtype=torch.float64)


@pytest.mark.parametrize(
    ("own", "more"), [(fc.Ditto(0.0), {}), (fc.Ditto(0.0), {"clip": 0.05, "momentum": 0.5}), (fc.APFL(1.0), {})]
)
def test_an_own_model_without_a_pull_has_the_parameters_and_buffers_of_a_client_that_trains_alone(fed, own, more):
    runs = [fc.simulate(m, fed, rounds=2, progress=False, **WORK, **more) for m in (own, fc.LocalOnly())]
    one, alone = (run.method.personal(run.state, fed.layout) for run in runs)
    torch.testing.assert_close(one, alone, rtol=0, atol=1e-12)
    assert (alone[:, fed.layout.carried] == 6).all()


def test_a_pull_does_not_move_or_clip_by_buffers(fed):
    """The pull on passes that x lacks would be longer than any gradient, and the clip would hold all else back."""
    state = fc.start(fc.Ditto(1.0), fed)
    state.clients["v_i"][:, fed.layout.carried] = 1000.0
    after, _ = fc.one_round(fc.Ditto(1.0), fed, state, 0, clip=0.5, lr=0.1, local_steps=1)
    assert (after["v_i"][:, fed.layout.carried] == 1001).all()
    assert (after["v_i"] - state["v_i"])[:, fed.trained].norm(dim=1).min() > 0.02


def test_pfedmes_models_have_the_buffers_after_their_own_passes(fed):
    after, _ = fc.one_round(fc.pFedMe(), fed, fc.start(fc.pFedMe(), fed), 0, lr=0.005, local_steps=1)
    assert (after["theta_i"][:, fed.layout.carried] == 1).all()


def test_fedexps_step_and_the_probes_have_the_lengths_of_the_trained_parameters(fed):
    method = fc.FedExP(1e-6)
    state = fc.one_round(method, fed, fc.start(method, fed), 0, **WORK)[0]
    new, seen = fc.one_round(method, fed, state, 1, **WORK)
    D = (seen.y - state["x"])[:, fed.trained]
    mean = D.mean(0)
    eta = (D.square().sum(1).mean() / (2 * (mean.square().sum() + 1e-6))).clamp_min(1)
    torch.testing.assert_close((new["x"] - state["x"])[fed.trained], eta * mean)
    spread = (D - mean).norm(dim=1).mean()
    torch.testing.assert_close(probes.drift(seen.round, seen.y)["drift"], spread / D.norm(dim=1).mean())
    torch.testing.assert_close(probes.consensus(seen.round, seen.y + seen.round.clients[:, None] * ~fed.trained), {
        "consensus": torch.tensor(0.0, dtype=torch.float64), "consensus_local": spread
    })  # fmt: skip


def test_control_error_is_that_of_the_trained_parameters(fed):
    method = fc.SCAFFOLD()
    state = fc.one_round(method, fed, fc.start(method, fed), 0, **WORK)[0]
    r = fc.one_round(method, fed, state, 1, **WORK)[1].round
    g = r.full_gradient(r.x.expand(3, -1))
    wanted = (r.c_i - g)[:, fed.trained].norm(dim=1) / g.norm(dim=1)
    torch.testing.assert_close(probes.control_error(r, r.x.expand(3, -1))["control_error"], wanted)


def test_fedups_estimate_is_that_of_the_trained_parameters(fed):
    method, found = fc.FedUp(0.2), {}

    def probe(r, y):
        g = r.mean(r.full_gradient(r.x.expand_as(y)))[fed.trained]
        estimate = (0.2 / r.lr * (r.x_prev - r.x))[fed.trained]
        found["error"] = float((estimate - g).norm() / g.norm())
        return {}

    history = fc.simulate(method, fed, rounds=2, progress=False, probes=[probe, probes.gradient_estimate(0.2)], **WORK)
    assert history.final("estimate_error") == pytest.approx(found["error"], rel=1e-9)


@pytest.mark.parametrize(
    "method", [fc.DFedAvg(), fc.DFedAvg(fc.DirectedRandom(2)), fc.DSGT(), fc.LocalOnly()], ids=repr
)
def test_without_a_server_the_evaluated_buffers_are_the_plain_mean(fed, method):
    own = {"cohort": [0, 1]} if isinstance(method, fc.LocalOnly) else {}
    work = {"local_epochs": 1, "batch_size": 4, "lr": 0.1, "weighting": "samples"}
    h = fc.simulate(method, fed, rounds=3, progress=False, **work, **own)
    torch.testing.assert_close(h.params, method.personal(h.state, fed.layout).mean(0), rtol=0, atol=1e-12)


def test_buffers_that_training_carries_are_sent_and_what_is_frozen_is_not(fed):
    assert fed.d == 8 * 4 + 4 + 4 * 3 + 3 + 1
    assert fc.FedAvg().cost(fed.layout).up * fed.d == pytest.approx(fed.d - 4)
