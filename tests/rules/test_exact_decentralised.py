"""Decentralised methods against loops written from their equations, closed forms on quadratics, and limits; float64.

The oracles are numpy, or autograd on one plain module; none calls the package's methods.
"""

from __future__ import annotations

import copy

import helpers as h
import networkx as nx
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import fedcore as fc
from fedcore import topology
from fedcore.engine import Batch, Engine, Loss

LR, K = 0.1, 5
FULL = {"lr": LR, "local_steps": K}
WORK = {"lr": 0.2, "local_epochs": 2, "batch_size": 4, "seed": 3}
PATH = fc.Graph(nx.path_graph(5))
ALL = [
    fc.DPSGD(PATH), fc.DFedAvg(PATH), fc.DFedAvgM(PATH, 0.7), fc.DFedSAM(PATH, 0.2), fc.DFedSAM(PATH, 0.2, 3),
    fc.DFedGAM(PATH, 0.2), fc.DFedGAM(PATH, 0.2, form="gam", alpha=0.6), fc.DFedGAM(PATH, 0.2, form="accelerated"),
    fc.DFedAvg(fc.RandomRegular(2)), fc.DFedGAM(fc.DirectedRandom(2), 0.2),
]  # fmt: skip
every_method = pytest.mark.parametrize("method", ALL, ids=range(len(ALL)))


def identity(n: int) -> fc.Matrix:
    return fc.Matrix(np.eye(n), connected=False)


def rows(method, fed, rounds: int, **options) -> np.ndarray:
    return fc.simulate(method, fed, rounds=rounds, **FULL | options).state["X"].numpy()


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
    X = np.tile([0.5, -1.0, 2.0], (5, 1))
    for t in range(4):
        h.close(
            rows(method(top), fc.quadratic(A, b, X[0] * 0 + [0.5, -1.0, 2.0]), t), X, 1e-10
        )  # the 1e-12 beside the norms
        Y = X.copy()
        for _ in range(K):
            Y = np.array([Y[i] - LR * v(A[i], Y[i] - b[i], 0.3) for i in range(5)])
        X = W @ Y


@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_dfedgam_is_dfedsam_where_the_hessian_is_a_multiple_of_the_identity(rho):
    _, b = h.problem(5, 4)
    fed = fc.quadratic(np.array([a * np.eye(4) for a in (0.3, 1, 2, 0.5, 3)]), b)
    h.close(rows(fc.DFedGAM(fc.Ring(), rho), fed, 5), rows(fc.DFedSAM(fc.Ring(), rho), fed, 5), 1e-12)


def test_dfedgam_is_dfedsam_in_one_dimension():
    A, b = h.problem(5, 1)
    fed = fc.quadratic(A, b)
    h.close(rows(fc.DFedGAM(fc.Ring(), 0.3), fed, 6), rows(fc.DFedSAM(fc.Ring(), 0.3), fed, 6), 1e-11)


def test_dfedgam_is_not_dfedsam_where_curvatures_differ():
    fed = fc.quadratic(*h.problem(5, 3))
    assert np.abs(rows(fc.DFedGAM(fc.Ring(), 0.3), fed, 2) - rows(fc.DFedSAM(fc.Ring(), 0.3), fed, 2)).max() > 1e-3


@pytest.mark.parametrize(("e", "cosine"), [((0, 0.4, 1), 0.998), ((1, 1, 1), 0.98692)])
def test_the_two_perturbations_are_close_but_differ_for_curvatures_of_a_fifth_one_and_five(e, cosine):
    A, seen = torch.diag(torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)), []

    def G(y, along=None):
        seen.append(y if along is None else None)
        return (y if along is None else along) @ A

    y = torch.tensor([e], dtype=torch.float64)
    for method in (fc.DFedSAM(rho=0.1), fc.DFedGAM(rho=0.1)):
        method.direction(G, y, None)
    p, q = (v - y for v in seen if v is not None and not torch.equal(v, y))
    h.close(p.norm(), 0.1, 1e-10)
    h.close(q.norm(), 0.1, 1e-10)
    h.close(F.cosine_similarity(p, q), cosine, 5e-5 if cosine < 0.99 else 5e-4)


@pytest.mark.parametrize("method", [fc.DFedSAM(fc.Complete(), 0.3), fc.DFedGAM(fc.Complete(), 0.3)], ids=repr)
def test_in_one_dimension_both_end_in_a_two_cycle_of_known_amplitude(method):
    a, rho = 2.0, 0.3
    fed = fc.quadratic([[[a]]] * 2, [[0.0]] * 2, x0=[1.0])
    path = h.trajectory(method, fed, 200, lr=LR, local_steps=1)[-6:, 0]
    h.close(np.abs(path), LR * a * rho / (2 - LR * a), 1e-10)
    assert (np.sign(path[1:]) == -np.sign(path[:-1])).all()


def test_the_accelerated_form_perturbs_as_the_literal_one_does_on_a_quadratic():
    fed = fc.quadratic(*h.problem(5, 3))
    near = fc.DFedGAM(fc.Ring(), 0.3, form="accelerated", rho_inner=1e-6, beta1=0.0, gamma=0.0)
    h.close(rows(near, fed, 2), rows(fc.DFedGAM(fc.Ring(), 0.3), fed, 2), 1e-5)


# --- limits -------------------------------------------------------------------------------------------------------

both = pytest.mark.parametrize("kind", ["quadratic", "network"])


def make(kind: str):
    return (fc.quadratic(*h.problem(5, 3)), FULL) if kind == "quadratic" else (h.network(), WORK)


@both
@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (fc.DFedSAM(PATH, 0.0), fc.DFedAvg(PATH)),
        (fc.DFedGAM(PATH, 0.0), fc.DFedAvg(PATH)),
        (fc.DFedGAM(PATH, 0.0, form="gam"), fc.DFedAvg(PATH)),
        (fc.DFedAvgM(PATH, 0.0), fc.DFedAvg(PATH)),
        (fc.DFedGAM(PATH, 0.3, form="gam", alpha=0.0), fc.DFedAvg(PATH)),
    ],
)
def test_rho_0_and_momentum_0_are_dfedavg(kind, method, plain):
    fed, options = make(kind)
    a, b = (fc.simulate(m, fed, rounds=3, **options) for m in (method, plain))
    h.close(a.state["X"], b.state["X"], 1e-12)


@both
def test_the_accelerated_form_without_radii_is_dfedavg(kind):
    fed, options = make(kind)
    none = fc.DFedGAM(PATH, 0.0, form="accelerated", rho_inner=0.0)
    a, b = (fc.simulate(m, fed, rounds=3, **options) for m in (none, fc.DFedAvg(PATH)))
    h.close(a.state["X"], b.state["X"], 1e-12)


@both
@pytest.mark.parametrize(
    ("method", "server", "more"),
    [
        (fc.DFedAvg(fc.Complete()), fc.FedAvg(), {}),
        (fc.DFedAvgM(fc.Complete(), 0.8), fc.FedAvg(), {"momentum": 0.8}),
        (fc.DFedSAM(fc.Complete(), 0.2), fc.FedSAM(0.2), {}),
    ],
)
def test_with_everyone_a_neighbour_it_is_the_method_with_a_server(kind, method, server, more):
    fed, options = make(kind)
    a, b = fc.simulate(method, fed, rounds=4, **options), fc.simulate(server, fed, rounds=4, **options | more)
    h.close(a.params, b.params, 1e-12)
    h.close(a.state["X"], b.params.expand(5, -1), 1e-12)


def test_with_everyone_a_neighbour_and_one_step_dfedavg_is_gradient_descent():
    A, b = h.problem(5, 3)
    path = h.trajectory(fc.DFedAvg(fc.Complete()), fc.quadratic(A, b), 6, lr=LR, local_steps=1)
    x = np.zeros(3)
    for t in range(6):
        x = x - LR * np.mean([A[i] @ (x - b[i]) for i in range(5)], 0)
        h.close(path[t + 1], x, 1e-13)


def test_dpsgd_with_everyone_a_neighbour_is_gradient_descent_in_its_first_round_only():
    A, b = h.problem(5, 3)
    path = h.trajectory(fc.DPSGD(fc.Complete()), fc.quadratic(A, b), 10, lr=LR)
    x = np.zeros(3)
    for t in range(10):
        x = x - LR * np.mean([A[i] @ (x - b[i]) for i in range(5)], 0)
        if t == 0:
            h.close(path[1], x, 1e-14)
    assert np.abs(path[10] - x).max() > 1e-3  # the gradients are taken at the clients' own points


@pytest.mark.parametrize(
    "top", [fc.Ring(), PATH, fc.RandomRegular(2), fc.DirectedRandom(2)], ids=lambda x: type(x).__name__
)
def test_dpsgd_mixes_and_takes_the_gradient_before_mixing(top):
    A, b = h.problem(5, 3)
    X = np.zeros((5, 3))
    for t in range(6):
        g = np.array([A[i] @ (X[i] - b[i]) for i in range(5)])
        X = topology.mixing(top, 5, seed=4, t=t).dense().numpy() @ X - LR * g
    h.close(rows(fc.DPSGD(top), fc.quadratic(A, b), 6, seed=4), X, 1e-13)


@pytest.mark.parametrize("top", [fc.RandomRegular(2), fc.DirectedRandom(2)], ids=repr)
def test_a_topology_that_is_drawn_anew_is_drawn_from_seed_and_round(top):
    A, b = h.problem(5, 3)
    X = np.zeros((5, 3))
    for t in range(4):
        for _ in range(K):
            X = np.array([X[i] - LR * A[i] @ (X[i] - b[i]) for i in range(5)])
        X = topology.mixing(top, 5, seed=4, t=t).dense().numpy() @ X
    h.close(rows(fc.DFedAvg(top), fc.quadratic(A, b), 4, seed=4), X, 1e-12)


@pytest.mark.parametrize("name", STEPS)
def test_without_neighbours_every_client_runs_on_its_own(name):
    method = STEPS[name][0]
    A, b = h.problem(5, 3)
    together = rows(method(identity(5)), fc.quadratic(A, b), 3)
    for i in range(5):
        alone = fc.quadratic(A[i : i + 1], b[i : i + 1])
        h.close(together[i], rows(method(fc.Complete()), alone, 3)[0], 1e-13)


def test_without_neighbours_every_client_of_a_network_runs_plain_sgd():
    fed = h.network()
    X = fc.simulate(fc.DFedAvg(identity(5)), fed, rounds=3, **WORK).state["X"]
    for i in range(5):
        x = fed.x0
        for t in range(3):
            for inputs, labels in h.batches(fed, 3, t, i, epochs=2, batch_size=4):
                x = x - 0.2 * h.gradient(fed.engine.module, x, inputs, labels)
        h.close(X[i], x, 1e-12)


@both
@every_method
def test_mixing_keeps_the_mean_of_the_local_models(method, kind):
    if isinstance(method.mixing, fc.DirectedRandom):
        pytest.skip("not doubly stochastic")
    fed, options = make(kind)
    seen = []
    history = fc.simulate(method, fed, rounds=3, probes=[lambda r, y: seen.append(y.mean(0)) or {}], **options)
    h.close(history.params, seen[-1], 1e-14)
    h.close(history.params, history.state["X"].mean(0), 1e-15)


def test_the_directed_draw_does_not_keep_the_mean():
    fed, seen = fc.quadratic(*h.problem(5, 3)), []
    method = fc.DFedAvg(fc.DirectedRandom(2))
    history = fc.simulate(method, fed, rounds=3, probes=[lambda r, y: seen.append(y.mean(0)) or {}], **FULL)
    assert (history.params - seen[-1]).norm() > 1e-3


@both
@pytest.mark.parametrize("Q", [2, 5])
def test_q_gossip_steps_are_one_step_of_w_to_the_q(kind, Q):
    fed, options = make(kind)
    W = np.linalg.matrix_power(topology.mixing(fc.Ring(), 5).dense().numpy(), Q)
    a = fc.simulate(fc.DFedSAM(fc.Ring(), 0.2, gossip_steps=Q), fed, rounds=3, **options)
    b = fc.simulate(fc.DFedSAM(W, 0.2), fed, rounds=3, **options)
    h.close(a.state["X"], b.state["X"], 1e-12)


def test_endless_gossip_is_the_complete_graph():
    fed = fc.quadratic(*h.problem(5, 3))
    many = rows(fc.DFedSAM(fc.Ring(), 0.2, gossip_steps=60), fed, 3)
    h.close(many, rows(fc.DFedSAM(fc.Complete(), 0.2), fed, 3), 1e-12)


# --- networks, by hand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.5, 0.9])
def test_dfedavgm_is_torchs_sgd_with_momentum_and_a_fresh_buffer_every_round(theta):
    fed = h.network()
    W = topology.mixing(PATH, 5).dense()
    history = fc.simulate(fc.DFedAvgM(PATH, theta), fed, rounds=3, weight_decay=0.01, **WORK)
    X = fed.x0.expand(5, -1)
    for t in range(3):
        ends = []
        for i in range(5):
            w = torch.nn.Parameter(X[i].clone())
            sgd = torch.optim.SGD([w], lr=0.2, momentum=theta, weight_decay=0.01)
            for inputs, labels in h.batches(fed, 3, t, i, epochs=2, batch_size=4):
                w.grad = h.gradient(fed.engine.module, w, inputs, labels)
                sgd.step()
            ends.append(w.detach())
        X = W @ torch.stack(ends)
    h.close(history.state["X"], X, 1e-12)


def test_dfedavgm_is_the_heavy_ball_of_its_equation():
    A, b = h.problem(5, 3)
    W, theta = topology.mixing(fc.Ring(), 5).dense().numpy(), 0.7
    X = np.zeros((5, 3))
    for _ in range(3):
        Y = last = X
        for _ in range(K):
            g = np.array([A[i] @ (Y[i] - b[i]) for i in range(5)])
            Y, last = Y - LR * g + theta * (Y - last), Y
        X = W @ Y
    h.close(rows(fc.DFedAvgM(fc.Ring(), theta), fc.quadratic(A, b), 3), X, 1e-12)


def curved(module: nn.Module, flat, x, y, v, decay: float):
    """Gradient and Hessian-vector product of the decayed loss at `flat`, by autograd on one plain module."""
    flat = flat.detach().clone().requires_grad_()
    named, at = {}, 0
    for name, p in module.named_parameters():
        named[name] = flat[at : at + p.numel()].reshape(p.shape)
        at += p.numel()
    loss = F.cross_entropy(functional_call(copy.deepcopy(module), named, (x,)), y) + decay / 2 * flat.square().sum()
    (g,) = torch.autograd.grad(loss, flat, create_graph=True)
    return g.detach(), None if v is None else torch.autograd.grad(g @ v, flat)[0]


@pytest.mark.parametrize("form", ["literal", "gam"])
def test_dfedgam_on_a_network_is_its_equation_with_the_hessian_of_the_decayed_mini_batch_loss(form):
    fed, rho, alpha, decay = h.network(), 0.2, 0.6, 0.05
    W = topology.mixing(PATH, 5).dense()
    method = fc.DFedGAM(PATH, rho, form=form, alpha=alpha)
    history = fc.simulate(method, fed, rounds=2, weight_decay=decay, **WORK)
    X = fed.x0.expand(5, -1)
    for t in range(2):
        ends = []
        for i in range(5):
            y = X[i]
            for batch in h.batches(fed, 3, t, i, epochs=2, batch_size=4):
                G = lambda z, v=None, batch=batch: curved(fed.engine.module, z, *batch, v, decay)  # noqa: E731
                g = G(y)[0]
                u = G(y, g)[1]
                a = y + rho * u / u.norm()
                ga = G(a)[0]
                v = ga if form == "literal" else g + alpha * rho * G(a, ga)[1] / ga.norm()
                y = y - 0.2 * v
            ends.append(y)
        X = W @ torch.stack(ends)
    h.close(history.state["X"], X, 1e-11)


@every_method
@pytest.mark.parametrize("batch_size", [4, None])
def test_the_result_does_not_depend_on_the_path_of_the_engine(method, batch_size):
    fed, options = h.network(), WORK | {"batch_size": batch_size, "weight_decay": 0.01, "clip": 0.5}
    a, b = (fc.simulate(method, fed.forced(p), rounds=3, **options) for p in ("batched", "sequential"))
    h.close(a.state["X"], b.state["X"], 1e-11)


@both
@every_method
def test_a_run_that_was_stopped_and_resumed_ends_bit_identical(method, kind, tmp_path):
    fed, options = make(kind)
    whole = fc.simulate(method, fed, rounds=5, **options)
    fc.simulate(method, fed, rounds=2, checkpoint_dir=tmp_path, **options)
    resumed = fc.simulate(method, fed, rounds=5, checkpoint_dir=tmp_path, **options)
    assert torch.equal(whole.state["X"], resumed.state["X"])
    assert torch.equal(whole.params, resumed.params)
    assert whole.rows == resumed.rows


def test_a_checkpoint_of_another_matrix_is_refused(tmp_path):
    fed = fc.quadratic(*h.problem(5, 3))
    W = [topology.mixing(top, 5).dense() for top in (fc.Ring(), fc.Complete())]
    fc.simulate(fc.DFedAvg(W[0]), fed, rounds=1, checkpoint_dir=tmp_path, **FULL)
    with pytest.raises(fc.CheckpointError, match="another run"):
        fc.simulate(fc.DFedAvg(W[1]), fed, rounds=2, checkpoint_dir=tmp_path, **FULL)


def test_methods_see_the_same_graphs():
    fed, draws = h.network(), []

    def record(r, y):
        draws.append(r.W.dense())
        return {}

    for method in (fc.DPSGD, fc.DFedAvg, fc.DFedSAM, fc.DFedGAM):
        fc.simulate(method(fc.RandomRegular(2)), fed, rounds=3, probes=[record], **WORK)
    for t in range(3):
        assert all(torch.equal(draws[t + 3 * k], draws[t]) for k in range(4))
        assert torch.equal(draws[t], topology.mixing(fc.RandomRegular(2), 5, 3, t).dense())
    assert len({W.numpy().tobytes() for W in draws}) > 1


@pytest.mark.parametrize(
    ("method", "cost"),
    [
        (fc.DFedAvg(fc.RandomRegular(10)), (10, 10)), (fc.DFedSAM(fc.Torus(), gossip_steps=4), (16, 16)),
        (fc.DPSGD(fc.Complete()), (None, None)), (fc.DFedSAM(fc.Complete(), gossip_steps=4), (None, None)),
        (fc.DFedAvg(np.full((5, 5), 0.2)), (4, 4)), (fc.DFedGAM(fc.DirectedRandom(3)), (3, 3)),
    ],
)  # fmt: skip
def test_a_client_sends_its_model_to_each_neighbour_in_each_gossip_step(method, cost):
    assert (method.cost().up, method.cost().down) == cost


# --- Hessian-vector products --------------------------------------------------------------------------------------

NETS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6, bias=False), nn.Tanh(), nn.Linear(6, 4)),
    "relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4)),
    "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
    "conv": lambda: nn.Sequential(
        nn.Conv2d(1, 5, 3, stride=2, padding=1), nn.Sigmoid(), nn.Conv2d(5, 3, 3, bias=False), nn.Flatten(),
        nn.Linear(12, 4)),
    "max-pool": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4)),
    "pools": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 12), nn.GroupNorm(3, 12),
        nn.Linear(12, 4)),
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 6), nn.BatchNorm1d(6),
        nn.Linear(6, 4)),
    "residual": lambda: nn.Sequential(
        fc.models.Residual(nn.Conv2d(1, 1, 3, padding=1)), nn.Flatten(), nn.Linear(64, 4)),
}  # fmt: skip


def slope(G, Y: torch.Tensor, V: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    """The derivative of G at Y along V by central differences of two widths, exact to step^4."""
    near, far = (G(Y + s * V) - G(Y - s * V) for s in (step, 2 * step))
    return (8 * near - far) / (12 * step)


def setting(net: str, counts: list[int], seed: int = 0) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Batch]:
    g = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = NETS[net]().double()
    m, B = len(counts), max(counts)
    d = sum(p.numel() for p in module.parameters())
    Y, V = (torch.randn(m, d, generator=g, dtype=torch.float64) for _ in range(2))
    real = torch.arange(B) < torch.tensor(counts)[:, None]
    batch = Batch(
        torch.randn(m, B, 1, 8, 8, generator=g, dtype=torch.float64), torch.randint(0, 4, (m, B), generator=g),
        real.double() / torch.tensor(counts)[:, None], counts, [0] * m,
    )  # fmt: skip
    return module, 0.3 * Y, V, batch


@pytest.mark.parametrize("counts", [[6, 6, 6], [6, 4, 2]], ids=["equal", "padded"])
@pytest.mark.parametrize("path", ["batched", "sequential"])
@pytest.mark.parametrize("net", NETS)
def test_hessian_vector_products_are_the_finite_differences_of_gradients(net, path, counts):
    module, Y, V, batch = setting(net, counts)
    engine = Engine(module, path)
    difference = slope(lambda y: engine.gradient(y, batch)[0], Y, V)
    assert difference.norm() > 1e-2
    h.close(engine.gradient(Y, batch, along=V)[0], difference, 1e-7)


@pytest.mark.parametrize("net", NETS)
def test_both_paths_give_the_same_symmetric_and_linear_hessian(net):
    module, Y, V, batch = setting(net, [6, 4, 3])
    U = torch.randn(V.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    batched, sequential = (Engine(module, path) for path in ("batched", "sequential"))
    HV = batched.gradient(Y, batch, along=V)[0]
    h.close(HV, sequential.gradient(Y, batch, along=V)[0], 1e-11)
    h.close((U * HV).sum(1), (V * batched.gradient(Y, batch, along=U)[0]).sum(1), 1e-11)
    h.close(batched.gradient(Y, batch, along=2 * V - U)[0], 2 * HV - batched.gradient(Y, batch, along=U)[0], 1e-11)


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


def test_products_of_a_module_without_rules_and_of_a_client_without_samples():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)
            self.out, self.idle = nn.Linear(64, 4), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.out(torch.tanh(self.layer(torch.tanh(self.layer(x.flatten(1))))))

    _, _, _, batch = setting("relu", [6, 4, 3])
    batch = Batch(batch.x, batch.y, batch.w, [6, 0, 3], batch.key)
    module = Twice().double()
    engine = Engine(module)
    Y = fc.models.flatten(module).expand(3, -1)
    V = torch.randn(Y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = engine.gradient(Y, batch, along=V)[0]
    h.close(found, slope(lambda y: engine.gradient(y, batch)[0], Y, V), 1e-7)
    assert (found[1] == 0).all()
    assert found[0].abs().max() > 1e-3


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_federations_products_are_the_finite_differences_of_its_gradients(batch_size, monkeypatch):
    monkeypatch.setattr(fc.objective.federation, "SAMPLE_CHUNK", 20)  # several chunks per client
    fed = h.network()
    plan = fed.plan(0, 0, np.arange(5), steps=3, batch_size=batch_size)
    g = torch.Generator().manual_seed(2)
    Y, V = (torch.randn(5, fed.d, generator=g, dtype=torch.float64) for _ in range(2))
    h.close(fed.gradient(Y, plan, 1, along=V), slope(lambda y: fed.gradient(y, plan, 1), Y, V), 1e-7)


def test_a_contrast_has_a_hessian_too():
    module = fc.models.Projected(nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh()), nn.Linear(6, 3))
    fed = h.network(model=module)
    plan = fed.plan(0, 0, np.arange(5), steps=1, batch_size=4)
    g = torch.Generator().manual_seed(4)
    Y, V, other = (torch.randn(5, fed.d, generator=g, dtype=torch.float64) for _ in range(3))
    contrast = Loss(penalty=fc.MOON(2.0).contrast, references=(other, -other))
    found = fed.gradient(Y, plan, 0, contrast, along=V)
    h.close(found, slope(lambda y: fed.gradient(y, plan, 0, contrast), Y, V), 1e-7)


def test_a_quadratics_products_are_with_a_i():
    A, b = h.problem(4, 3)
    fed = fc.quadratic(A, b)
    plan = fed.plan(0, 0, np.array([2, 0]))
    V = torch.tensor([[1.0, 2, 3], [0, 1, 0]], dtype=torch.float64)
    h.close(fed.gradient(V * 0, plan, along=V), [A[2] @ [1, 2, 3], A[0] @ [0, 1, 0]], 1e-14)
