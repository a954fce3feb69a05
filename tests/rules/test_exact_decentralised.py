"""Decentralised methods in closed form on quadratics and in their limits, and Hessian-vector products; float64.

Whole rounds of every method are compared in `test_reference`; the oracles here are numpy and finite differences.
"""

from __future__ import annotations

import helpers as h
import networkx as nx
import numpy as np
import pytest
import torch
from helpers import FULL, LR, K
from torch import nn

import fedcore as fc
from fedcore import topology
from fedcore.engine import Batch, Engine, Loss

PATH = fc.Graph(nx.path_graph(5))


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


# --- one step on a quadratic, in closed form ----------------------------------------------------------------------


def sam(A, e, rho):
    """v = A e + rho A . A e / ||A e||, e = y - b."""
    return A @ e + rho * A @ unit(A @ e)


def gam_literal(A, e, rho):
    """v = A e + rho A . A^2 e / ||A^2 e||."""
    return A @ e + rho * A @ unit(A @ A @ e)


def gam(A, e, rho, alpha=0.6):
    """v = A e + alpha rho A . A (a - b) / ||A (a - b)||, a = y + rho A^2 e / ||A^2 e||."""
    return A @ e + alpha * rho * A @ unit(A @ (e + rho * unit(A @ A @ e)))


def gam_accelerated(A, e, rho, inner=0.04, beta0=0.2, beta1=0.3, gamma=0.1):
    """The four-gradient rule, from the norms of the gradients at four points."""
    g0 = A @ e
    g1 = A @ (e + inner * unit(g0))
    a = e + rho * unit(g1 - g0)
    g2 = A @ a
    g3 = A @ (a + inner * unit(g2))
    w = beta1 * g1 + (1 - beta1) * g3
    g = g0 + abs(1 - beta0) * g2
    orthogonal = g - unit(w) * (g @ unit(w))
    return w - gamma * orthogonal


ACCELERATED = {"form": "accelerated", "rho_inner": 0.04, "beta0": 0.2, "beta1": 0.3, "gamma": 0.1}
STEPS = {
    "DFedSAM": (lambda top: fc.DFedSAM(top, 0.3), sam),
    "literal": (lambda top: fc.DFedGAM(top, 0.3), gam_literal),
    "gam": (lambda top: fc.DFedGAM(top, 0.3, form="gam", alpha=0.6), gam),
    "accelerated": (lambda top: fc.DFedGAM(top, 0.3, **ACCELERATED), gam_accelerated),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("top", [fc.Ring(), fc.Complete()], ids=repr)
def test_rounds_on_quadratics_are_the_closed_form_step_and_w_y(name, top):
    method, v = STEPS[name]
    A, b = h.problem(5, 3)
    W = topology.mixing(top, 5).dense().numpy()
    fed = fc.quadratic(A, b, [0.5, -1.0, 2.0])
    X = np.tile(fed.x0.numpy(), (5, 1))
    for t in range(4):
        found = fc.simulate(method(top), fed, rounds=t, **FULL).state["X"]
        h.close(found, X, 1e-10)  # the 1e-12 beside the norms
        Y = X.copy()
        for _ in range(K):
            Y = np.array([Y[i] - LR * v(A[i], Y[i] - b[i], 0.3) for i in range(5)])
        X = W @ Y


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["quadratic", "network"])
@pytest.mark.parametrize(
    ("method", "other", "more"),
    [
        (fc.DFedSAM(PATH, 0.0), fc.DFedAvg(PATH), {}),
        (fc.DFedAvgM(PATH, 0.0), fc.DFedAvg(PATH), {}),
        (fc.DFedGAM(PATH, 0.0), fc.DFedAvg(PATH), {}),
        (fc.DFedGAM(PATH, 0.0, form="gam"), fc.DFedAvg(PATH), {}),
        (fc.DFedGAM(PATH, 0.3, form="gam", alpha=0.0), fc.DFedAvg(PATH), {}),
        (fc.DFedGAM(PATH, 0.0, form="accelerated", rho_inner=0.0), fc.DFedAvg(PATH), {}),
        (fc.DFedAvg(fc.Complete()), fc.FedAvg(), {}),
        (fc.DFedAvgM(fc.Complete(), 0.8), fc.FedAvg(), {"momentum": 0.8}),
        (fc.DFedSAM(fc.Complete(), 0.2), fc.FedSAM(0.2), {}),
    ],
)
def test_without_its_term_it_is_dfedavg_and_with_everyone_a_neighbour_the_method_with_a_server(
    kind, method, other, more
):
    fed, options = h.network(), {"rounds": 3, "lr": 0.2, "local_epochs": 2, "batch_size": 4, "seed": 3}
    if kind == "quadratic":
        fed, options = fc.quadratic(*h.problem(5, 3)), {"rounds": 3, **FULL}
    a, b = fc.simulate(method, fed, **options), fc.simulate(other, fed, **options | more)
    h.close(a.params, b.params, 1e-12)
    h.close(a.state["X"], b.state.get("X", b.params.expand(5, -1)), 1e-12)


@pytest.mark.parametrize(
    ("method", "cost"),
    [
        (fc.DFedAvg(fc.RandomRegular(10)), 10), (fc.DFedSAM(fc.Torus(), gossip_steps=4), 16),
        (fc.DPSGD(fc.Complete()), None), (fc.DFedSAM(fc.Complete(), gossip_steps=4), None),
        (fc.DFedAvg(np.full((5, 5), 0.2)), 4), (fc.DFedGAM(fc.DirectedRandom(3)), 3),
    ],
)  # fmt: skip
def test_a_client_sends_its_model_to_each_neighbour_in_each_gossip_step(method, cost):
    assert method.cost().up == method.cost().down == cost


# --- Hessian-vector products --------------------------------------------------------------------------------------


class Twice(nn.Module):
    """A module without rules: one layer is used twice, and one parameter not at all."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.out, self.idle = nn.Linear(64, 4), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.out(torch.tanh(self.layer(torch.tanh(self.layer(x.flatten(1))))))


NETS = {
    "relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4)),
    "pools and group norm": lambda: nn.Sequential(
        fc.models.Residual(nn.Conv2d(1, 1, 3, padding=1)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(),
        nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(),
        nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)),
    "no rules": Twice,
}  # fmt: skip


def slope(G, Y: torch.Tensor, V: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    """The derivative of G at Y along V by central differences of two widths, exact to step^4."""
    near, far = (G(Y + s * V) - G(Y - s * V) for s in (step, 2 * step))
    return (8 * near - far) / (12 * step)


def setting(net: str, counts: list[int]) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Batch]:
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = NETS[net]().double()
    m, B = len(counts), max(counts)
    Y, V = torch.randn(2, m, sum(p.numel() for p in module.parameters()), generator=g, dtype=torch.float64)
    real = torch.arange(B) < torch.tensor(counts)[:, None]
    batch = Batch(
        torch.randn(m, B, 1, 8, 8, generator=g, dtype=torch.float64), torch.randint(0, 4, (m, B), generator=g),
        real.double() / torch.tensor(counts)[:, None].clamp(min=1), counts, [0] * m,
    )  # fmt: skip
    return module, 0.3 * Y, V, batch


@pytest.mark.parametrize("counts", [[6, 4, 2], [6, 0, 3]], ids=str)
@pytest.mark.parametrize("path", ["batched", "sequential"])
@pytest.mark.parametrize("net", NETS)
def test_hessian_vector_products_are_the_finite_differences_of_gradients(net, path, counts):
    module, Y, V, batch = setting(net, counts)
    engine = Engine(module, "auto" if net == "no rules" else path)
    found = engine.gradient(Y, batch, along=V)[0]
    h.close(found, slope(lambda y: engine.gradient(y, batch)[0], Y, V), 1e-7)
    assert [bool(row.abs().max() > 1e-3) for row in found] == [count > 0 for count in counts]


@pytest.mark.parametrize("path", ["batched", "sequential"])
def test_products_of_frozen_parameters_stay_zero(path):
    module, Y, V, batch = setting("relu", [6, 4, 3])
    free = Engine(module, path).gradient(Y, batch, along=V)[0]
    module[1].weight.requires_grad_(False)
    found = Engine(module, path).gradient(Y, batch, along=V)[0]
    frozen = torch.arange(found.shape[1]) < module[1].weight.numel()
    assert (found[:, frozen] == 0).all()
    assert free[:, frozen].abs().max() > 1e-3
    h.close(found[:, ~frozen], free[:, ~frozen], 1e-14)


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("contrast", [True, False])
def test_a_federations_products_are_the_finite_differences_of_its_gradients(batch_size, contrast, monkeypatch):
    monkeypatch.setattr(fc.objective.federation, "SAMPLE_CHUNK", 20)  # several chunks per client
    module = fc.models.Projected(nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh()), nn.Linear(6, 3))
    fed = h.network(model=module)
    plan = fed.plan(0, 0, np.arange(5), steps=3, batch_size=batch_size)
    g = torch.Generator().manual_seed(4)
    Y, V, other = torch.randn(3, 5, fed.d, generator=g, dtype=torch.float64)
    loss = Loss(penalty=fc.MOON(2.0).contrast, references=(other, -other)) if contrast else Loss()
    h.close(fed.gradient(Y, plan, 1, loss, along=V), slope(lambda y: fed.gradient(y, plan, 1, loss), Y, V), 1e-7)
