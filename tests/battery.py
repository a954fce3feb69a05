"""Every public method with settings of its own, two small federations for them, and one short run."""

from __future__ import annotations

import helpers as h
import pytest
import torch
from torch import nn

import fedcore as fc

METHODS = [
    fc.FedAvg(), fc.FedAvg(server_momentum=0.7), fc.FedSGD(), fc.FedSMB(), fc.FedProx(mu=0.4), fc.SCAFFOLD(),
    fc.SCAFFOLD(option="I"), fc.FedUp(), fc.FedUp(alpha=0.2), fc.FedDC(0.3), fc.FedDyn(0.3), fc.FedPVR("all"),
    fc.Mime(0.6), fc.MimeLite(0.6), fc.STEM(0.4), fc.STEM(kappa=0.1, w=2.0, c=5.0), fc.FedSplit(0.7),
    fc.FedSMOO(0.3, rho=0.05), fc.FedSAM(0.05), fc.MOON(2.0), fc.FedBN(), fc.FedALA(1, 0.8, 0.5), fc.DPSGD(),
    fc.DFedAvg(fc.Complete()), fc.DFedAvgM(fc.Exponential(), 0.7),
    fc.DFedSAM(fc.RandomRegular(2), 0.05, gossip_steps=2),
    fc.DFedGAM(fc.Exponential(), 0.05), fc.DFedGAM(fc.Ring(), 0.05, form="gam"),
    fc.DFedGAM(fc.DirectedRandom(2), 0.05, form="accelerated"),
    fc.HeteroFL({1: 0.5, 0.5: 0.5}), fc.HeteroFL(0.5, labels="zero", mode="dynamic"), fc.FjORD({1: 0.5, 0.5: 0.5}),
    fc.FederatedDropout({1: 0.5, 0.5: 0.5}), fc.FedRolex(0.5, training="masked"), fc.DepthFL(1.0, alpha=0.2),
    fc.FedDSE({1: 0.5, 0.5: 0.5}, 1.0), fc.FedGSE(0.5, "SPL", public=1), fc.FedAdagrad(0.3, 0.1),
    fc.FedAdam(0.6, 0.8, 0.1), fc.FedYogi(0.6, 0.8, 0.1), fc.FedNova(), fc.FedExP(), fc.FedCM(0.3),
    fc.MoFedSAM(0.05, 0.3), fc.FedGamma(0.05), fc.FedSpeed(0.05, 0.7, 3.0), fc.FedPer(), fc.FedRep(), fc.Ditto(0.5),
    fc.pFedMe(2.0, 3, 0.1), fc.LocalOnly(), fc.Central(), fc.APFL(0.4, adaptive=True), fc.PerFedAvg(0.1),
]  # fmt: skip


METHODS += [kind() for kind in fc.ALL if kind not in map(type, METHODS)]
RUN = {"rounds": 4, "cohort": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 1}  # one to five local steps


every_method = pytest.mark.parametrize("method", METHODS, ids=repr)


both_federations = pytest.mark.parametrize("kind", ["quadratic", "network"])


def make(kind: str, dtype: torch.dtype = torch.float64):
    if kind == "network":
        return h.network(dtype=dtype, model=contrastive)
    return fc.quadratic(*(torch.tensor(part, dtype=dtype) for part in h.problem(5, 3)))


def contrastive(shape, classes) -> nn.Module:
    """A small network with a representation layer, so that it suits every method."""
    return fc.models.Projected(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 6)), nn.Linear(6, classes)
    )


def needs_a_network(method: fc.Method) -> bool:
    return isinstance(method, fc.MOON | fc.FedLC | fc.FedNTD | fc.FedBABU) or getattr(method, "smallest", 1) < 1


def run(method, fed, **options) -> fc.History:
    if needs_a_network(method) and isinstance(fed, fc.Quadratic):
        pytest.skip("a quadratic has no representations, logits, head or neurons")
    if method.full_participation:
        options["cohort"] = None
    return fc.simulate(method, fed, **RUN | options)


def same(a: fc.History, b: fc.History) -> bool:
    return (
        torch.equal(a.params, b.params)
        and a.state.keys() == b.state.keys()
        and all(torch.equal(a.state[k], b.state[k]) for k in a.state)
        and a.cohorts == b.cohorts
        and a.rows == b.rows
    )


def private(where, sigma=0.3):
    """Clipped updates with noise (DP-FedAvg), clipped gradients with noise (DP-SGD), or noise in every hook."""

    class Private(fc.Method):
        across = "sums"

        def prepare(self, r):
            return r.extended(rows={"secret": r.noise(r.p)}) if where == "all" else r

        def broadcast(self, r):
            return r.x + sigma * r.noise(r.x.expand(r.m, -1)) if where == "all" else r.x

        def direction(self, G, y, r):
            g = G(y)
            if where == "aggregate":
                return g
            g = g / g.norm(dim=1, keepdim=True).clamp_min(1)
            return g + sigma * (r.noise(g) - r.noise(g))

        def aggregate(self, r, y):
            delta = y - r.x
            if where == "aggregate":
                delta = delta / delta.norm(dim=1, keepdim=True).clamp_min(1) + sigma * r.noise(y)
            mean = r.mean(delta) + (0 if where == "direction" else sigma * r.noise(r.x))
            return {"x": r.x + (mean if r.trained is None else torch.where(r.trained, mean, 0))}

    return Private()
