"""Mixing matrices, and the methods that mix: closed forms and limits in float64, and wrong graphs refused.

Whole rounds of every method are compared in `test_reference`; the oracles here are numpy and finite differences.
"""

from __future__ import annotations

import hashlib
import math
import random

import helpers as h
import networkx as nx
import numpy as np
import pytest
import torch
from helpers import FULL, LR, K
from torch import nn

import fedcore as fc
from fedcore import topology
from fedcore.engine import Loss

FIXED = [fc.Ring(), fc.Torus(), fc.Exponential(), fc.Complete()]
SYMMETRIC = [*FIXED, fc.RandomRegular(3), fc.Graph(nx.star_graph(23))]


def dense(top, n: int, **where) -> np.ndarray:
    return topology.mixing(top, n, **where).dense().numpy()


# --- spectra ------------------------------------------------------------------------------------------------------


def circle(n: int, hops) -> np.ndarray:
    """Eigenvalues of a circle whose clients hear those at these hops, each as loud: a mean of cosines."""
    return sum(np.cos(2 * np.pi * np.arange(n) * hop / n) for hop in hops) / len(hops)


def torus(a: int, b: int) -> np.ndarray:
    """Of a torus of a times b clients: a fifth of one and of two cosines in each direction."""
    return ((3 * circle(a, [0, 1, -1])[:, None] + 3 * circle(b, [0, 1, -1]) - 1) / 5).ravel()


SPECTRA = [
    *[(fc.Ring(), circle(n, [0, 1, -1])) for n in (1, 2, 7)],
    *[(fc.Torus(), torus(a, b)) for a, b in ((2, 3), (3, 4))],
    (fc.Exponential(), circle(5, range(5))),
    (fc.Exponential(), circle(12, [0, 1, 2, 4, 8, 10, 11])),
    *[(fc.Complete(), np.eye(n)[0]) for n in (1, 9)],  # it forgets all but the mean
]


@pytest.mark.parametrize(("top", "values"), SPECTRA, ids=lambda v: repr(v) if isinstance(v, topology.Topology) else "")
def test_the_spectrum_of_a_ring_torus_exponential_or_complete_graph_is_a_mean_of_cosines(top, values):
    h.close(topology.mixing(top, len(values)).spectrum(), np.sort(values)[::-1], 1e-14)


def test_the_gap_is_one_less_the_second_largest_modulus():
    W = dense(fc.Ring(), 16)
    h.close(topology.gap(W), 1 - np.sort(np.abs(np.linalg.eigvalsh(W)))[-2], 1e-14)
    h.close(topology.gap(np.array([[0.1, 0.9], [0.9, 0.1]])), 0.2, 1e-14)  # the modulus, not the value -0.8


# --- what a mixing matrix is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", SYMMETRIC, ids=lambda top: type(top).__name__)
def test_a_topology_is_symmetric_and_doubly_stochastic_and_keeps_the_mean(top):
    n = 24
    W = dense(top, n, seed=2, t=3)
    assert np.array_equal(topology.check(W), W)
    assert np.array_equal(W, W.T)
    assert (W.diagonal() > 0).all()
    h.close(W.sum(0), np.ones(n), 1e-14)
    Y = torch.tensor(np.random.default_rng(1).normal(size=(n, 700)))
    h.close((topology.mixing(top, n, seed=2, t=3) @ Y).mean(0), Y.mean(0), 1e-15)


def test_neighbours_are_those_of_the_drawing():
    hear = {type(top).__name__: np.flatnonzero(dense(top, 12)[0]).tolist() for top in FIXED}
    assert hear == {
        "Ring": [0, 1, 11], "Torus": [0, 1, 3, 4, 8], "Exponential": [0, 1, 2, 4, 8, 10, 11],
        "Complete": list(range(12)),
    }  # fmt: skip


def test_metropolis_weights_of_a_path_are_those_of_the_formula():
    third = 1 / 3
    h.close(dense(fc.Graph([(0, 1), (1, 2)]), 3), [[2 / 3, third, 0], [third, third, third], [0, third, 2 / 3]], 1e-15)


class Lists(topology.Topology):
    """Neighbours of one's own."""

    def __init__(self, indices, weight=1.0):
        self.indices, self.weight = np.array(indices), weight

    def lists(self, n, seed, t):
        return self.indices, np.full(self.indices.shape, self.weight)


def test_a_networkx_graph_keeps_its_numbers_in_any_order():
    path = [(2, 0), (0, 1)]
    assert fc.Graph(nx.Graph(path)) == fc.Graph(path) == fc.Graph(nx.Graph([(1, 0), (0, 2), (1, 1)]))
    assert topology.topology(nx.path_graph(3)) == fc.Graph([(0, 1), (1, 2)]) == fc.Graph(torch.tensor([[0, 1], [1, 2]]))


# --- graphs that are drawn anew -----------------------------------------------------------------------------------


def test_the_matrix_of_a_100_client_random_regular_graph_is_doubly_stochastic_every_round_and_never_the_same():
    seen = {dense(fc.RandomRegular(10), 100, seed=5).tobytes()}
    for t in range(30):
        W = dense(fc.RandomRegular(10), 100, seed=4, t=t)
        assert set(np.unique(W)) == {0, 1 / 11, W[0, 0]}
        assert ((W > 0).sum(1) == 11).all()
        topology.check(W)  # symmetric, doubly stochastic, and connected, too
        seen.add(W.tobytes())
    assert len(seen) == 31


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (4, 3), (5, 2), (8, 5), (11, 8), (30, 27)])
def test_random_regular_graphs_exist_for_every_degree(n, degree):
    for t in range(20):
        W = dense(fc.RandomRegular(degree), n, t=t)
        assert ((W > 0).sum(1) == degree + 1).all()
        assert np.array_equal(W, W.T)


def test_the_directed_draw_is_row_stochastic_only_and_moves_the_mean():
    n, k = 50, 10
    W = dense(fc.DirectedRandom(k), n, seed=3, t=1)
    h.close(W.sum(1), np.ones(n), 1e-14)
    assert ((W > 0).sum(1) == k + 1).all()
    assert (W.diagonal() > 0).all()
    with pytest.raises(ValueError, match="symmetric matrix whose rows sum to 1"):
        topology.check(W)
    Y = np.random.default_rng(0).normal(size=n)
    assert np.abs((W @ Y).mean() - Y.mean()) > 1e-3
    counts = sum(dense(fc.DirectedRandom(2), 6, t=t) > 0 for t in range(900))
    off = counts[~np.eye(6, dtype=bool)]
    assert np.abs(off - 360).max() < 4.5 * np.sqrt(900 * 0.4 * 0.6)


def test_a_draw_is_the_same_in_every_process():
    tops = fc.RandomRegular(6), fc.DirectedRandom(6)
    draws = [dense(top, 40, seed=7, t=t) for top in tops for t in (3, 0)]
    assert hashlib.sha256(b"".join(W.tobytes() for W in draws)).hexdigest()[:16] == "49fc956815ac4b78"


# --- the product --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("d", [3, 1300])
@pytest.mark.parametrize("top", [fc.RandomRegular(10), fc.DirectedRandom(4), fc.Graph(nx.star_graph(119))])
def test_the_product_over_neighbours_is_the_dense_product(top, d, dtype):
    W = topology.mixing(top, 120, dtype=dtype)
    Y = torch.tensor(np.random.default_rng(0).normal(size=(120, d)), dtype=dtype)
    assert (W @ Y).dtype == dtype
    h.close(W @ Y, W.dense().double() @ Y.double(), 1e-15 * 20 if dtype == torch.float64 else 2e-6)


@pytest.mark.parametrize("top", [fc.RandomRegular(10), fc.Graph(nx.star_graph(119))], ids=["sparse", "dense"])
def test_rows_in_another_order_are_mixed_with_their_own_neighbours(top):
    W, Y = topology.mixing(top, 120), torch.tensor(np.random.default_rng(0).normal(size=(120, 4)))
    clients = torch.tensor(np.random.default_rng(1).permutation(120))
    h.close(W.ordered(clients) @ Y[clients], (W @ Y)[clients], 1e-15)


# --- wrong matrices and graphs ------------------------------------------------------------------------------------

EYE, HALF = np.eye(4), np.full((2, 2), 0.5)
TWO_PAIRS = np.kron(np.eye(2), HALF)
FED = fc.quadratic(*h.problem(4, 3))


def spoiled(value: float) -> np.ndarray:
    W = np.full((4, 4), 0.25)
    W[2, 1] = value
    return W


def run(method, fed=FED, **options):
    return fc.simulate(method if isinstance(method, fc.Method) else fc.DFedAvg(method), fed, rounds=1, **options)


WRONG = [
    (lambda: topology.check(np.ones((3, 4))), ValueError, "shape (3, 4) [n, n]"),
    (lambda: topology.check(spoiled(np.nan)), ValueError, "NaN finite"),
    (lambda: topology.check(spoiled(-0.1)), ValueError, "weights from -0.1 >= 0"),
    (lambda: topology.check(spoiled(0.5)), ValueError, "sum to 1 to 1.25 Metropolis fc.Graph"),
    (lambda: topology.check(np.array([[0.5, 0.5], [0.2, 0.8]])), ValueError, "mirror 0.3 symmetric Metropolis"),
    (lambda: topology.check(TWO_PAIRS), ValueError, "disconnected client 0 [2, 3] 2 of 4 RandomRegular"),
    (lambda: topology.check(EYE), ValueError, "no edges but self-loops add edges"),
    (lambda: topology.check(np.array([[0.0, 1.0], [1.0, 0.0]])), ValueError, "eigenvalue -1 (W + I) / 2"),
    (lambda: fc.DFedAvg("ring"), TypeError, "mixing='ring' fc.Ring() networkx [n, n]"),
    (lambda: fc.Graph(nx.DiGraph([(0, 1)])), ValueError, "directed to_undirected() fc.DirectedRandom"),
    (lambda: fc.Graph(nx.Graph([(0, 1), (2, 3)])), ValueError, "graph is disconnected [2, 3] add edges"),
    (lambda: fc.Graph([[0, 1, 2]]), ValueError, "[[0, 1, 2]] pairs (i, j)"),
    (lambda: fc.Graph(nx.path_graph([1, 2, 3])), ValueError, "3 nodes 0 to 2 convert_node_labels_to_integers"),
    (lambda: fc.Matrix([["0.5", "0.5"]] * 2), ValueError, "array of numbers <U3 [n, n]"),
    (lambda: topology.mixing(Lists([[9], [0], [1], [2]]), 4), ValueError, "(4, 1) numbers from 0 to 3"),
    (lambda: topology.mixing(Lists([[-1], [0], [1], [2]]), 4), ValueError, "(4, 1) numbers from 0 to 3"),
    (lambda: topology.mixing(Lists([[0], [1], [2]]), 4), ValueError, "(3, 1) [4, k]"),
    (lambda: topology.mixing(Lists([[0]] * 4, math.nan), 4), ValueError, "weights finite sum to 1"),
    (lambda: run(fc.Graph([(0, 1), (1, 2)])), ValueError, "graph 3 nodes 4 clients 4 nodes"),
    (lambda: run(np.full((3, 3), 1 / 3)), ValueError, "(3, 3) 4 clients [4, 4]"),
    (lambda: run(fc.RandomRegular(4)), ValueError, "degree=4 degree>=1 degree<=3 4 clients"),
    (lambda: topology.mixing(fc.RandomRegular(3), 5), ValueError, "degree=3 5 clients odd even"),
    (lambda: topology.mixing(fc.Torus(), 7), ValueError, "torus of 7 clients fc.Ring()"),
    (lambda: fc.DSGT(fc.DirectedRandom(2)), ValueError, "DirectedRandom(degree=2) doubly stochastic RandomRegular"),
    (lambda: run(fc.DSGT(Lists([[0, 0], [0, 1], [0, 2], [0, 3]], 0.5))), ValueError, "doubly"),
    (lambda: run(fc.ExactDiffusion([[0.33, 0.67], [0.67, 0.33]], lazy=False), fc.quadratic(*h.problem(2))),
     ValueError, "-0.34 lazy=True"),
    (lambda: run(fc.Ring(), cohort=2), ValueError, "DFedAvg all 4 clients cohort=2 cohort=None"),
    (lambda: run(fc.Ring(), server_lr=0.5), ValueError, "server_lr=0.5 DFedAvg no server server_lr=1.0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_graph_is_refused_with_what_is_wrong_where_and_what_to_do(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words.split():
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def test_parts_are_allowed_when_asked_for_and_a_matrix_is_a_value():
    one, again, other = fc.Matrix(EYE, connected=False), fc.Matrix(torch.eye(4), connected=False), fc.Matrix(HALF)
    assert one == again != other
    assert hash(one) == hash(again)
    assert repr(one) == repr(again) != repr(other)  # tells two runs apart in a checkpoint
    with pytest.raises(ValueError, match="read-only"):
        one.W[0, 0] = 2
    with pytest.raises(ValueError, match=r"weights from -0\.1 on"):
        fc.Matrix(spoiled(-0.1), connected=False)


def test_the_identity_is_the_limit_without_mixing_and_says_so():
    with pytest.warns(UserWarning, match="no client receives another's model"):
        method = fc.DFedAvg(EYE)
    apart, alone = (fc.simulate(m, FED, rounds=3, **FULL).state for m in (method, fc.LocalOnly()))
    h.close(apart["X"], alone["x_i"], 1e-12)


class Circle(topology.Topology):
    """One's own: a circle with weights that may change, and with errors that may be planted."""

    def __init__(self, by=0.1, wrong=None, varies=False):
        self.by, self.wrong, self.varies = by, wrong, varies

    def lists(self, n, seed, t):
        i, by = np.arange(n), self.by
        later = {"from round 3 on": 0.1 * (t >= 3), "by round": 0.1 * t, "by seed": 0.1 * seed}
        by += {None: 0, "by chance": random.random() / 10, **later}[self.wrong]
        return np.stack([i, (i + 1) % n, (i - 1) % n], 1), np.tile([1 - 2 * by, by, by], (n, 1))


def test_a_topology_of_ones_own_that_changed_is_read_anew():
    fed, changed = fc.quadratic(*h.problem()), Circle()
    models = {by: fc.simulate(fc.DPSGD(Circle(by)), fed, rounds=3).state["X"] for by in (0.1, 0.3)}
    for by, X in models.items():
        changed.by = by
        assert torch.equal(fc.simulate(fc.DPSGD(changed), fed, rounds=3).state["X"], X)
    assert not torch.equal(*models.values())


def test_a_matrix_that_somebody_wrote_to_is_not_the_next_runs():
    fed = fc.quadratic(*h.problem())
    first = fc.simulate(fc.DPSGD(), fed, rounds=3).state["X"]
    for part in ("weights", "indices"):
        getattr(topology.mixing(fc.Ring(), fed.n), part).zero_()
        assert torch.equal(fc.simulate(fc.DPSGD(), fed, rounds=3).state["X"], first)


@pytest.mark.parametrize(("wrong", "varies"), [
    ("by round", False), ("by seed", False), ("by chance", True), ("from round 3 on", False),
])  # fmt: skip
def test_lists_that_differ_when_they_are_asked_for_again_are_refused(wrong, varies):
    with pytest.raises(ValueError, match=r"seed and the round" if varies else "varies = True"):
        fc.simulate(fc.DPSGD(Circle(0.1, wrong, varies)), fc.quadratic(*h.problem()), rounds=4)


def test_lists_may_differ_by_the_round_where_the_topology_says_so():
    fc.simulate(fc.DPSGD(Circle(0.1, "by round", True)), fc.quadratic(*h.problem()), rounds=2)


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
def test_rounds_on_quadratics_are_the_closed_form_step_and_w_y(name):
    make, v = STEPS[name]
    A, b = h.problem(5, 3)
    W, fed = dense(fc.Ring(), 5), fc.quadratic(A, b, [0.5, -1.0, 2.0])
    X = np.tile(fed.x0.numpy(), (5, 1))
    for t in range(4):
        found = fc.simulate(make(fc.Ring()), fed, rounds=t, **FULL).state["X"]
        h.close(found, X, 1e-10)  # the 1e-12 beside the norms
        Y = X.copy()
        for _ in range(K):
            Y = np.array([Y[i] - LR * v(A[i], Y[i] - b[i], 0.3) for i in range(5)])
        X = W @ Y


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["quadratic", "network"])
@pytest.mark.parametrize(("method", "other", "more"), [
    *[(method, fc.DFedAvg(PATH), {}) for method in (
        fc.DFedSAM(PATH, 0.0), fc.DFedAvgM(PATH, 0.0), fc.DFedGAM(PATH, 0.0),
        fc.DFedGAM(PATH, 0.3, form="gam", alpha=0.0),
        fc.DFedGAM(PATH, 0.0, form="accelerated", rho_inner=0.0), fc.QGDSGDm(PATH, 0.0, nesterov=True),
    )],
    (fc.DSGT(fc.Complete()), fc.SCAFFOLD("II"), {}), (fc.DFedAvg(fc.Complete()), fc.FedAvg(), {}),
    (fc.DFedAvgM(fc.Complete(), 0.8), fc.FedAvg(), {"momentum": 0.8}),
    (fc.DFedSAM(fc.Complete(), 0.2), fc.FedSAM(0.2), {}),
])  # fmt: skip
def test_without_its_term_it_is_dfedavg_and_with_everyone_a_neighbour_the_method_with_a_server(
    kind, method, other, more
):
    fed, options = h.network(), {"rounds": 3, "lr": 0.2, "local_epochs": 2, "batch_size": 4, "seed": 3}
    if kind == "quadratic":
        fed, options = fc.quadratic(*h.problem(5, 3)), {"rounds": 3, **FULL}
    a, b = fc.simulate(method, fed, **options), fc.simulate(other, fed, **options | more)
    h.close(a.params, b.params, 1e-12)
    h.close(a.state["X"], b.state.get("X", b.params.expand(5, -1)), 1e-12)


@pytest.mark.parametrize(("mixing", "neighbours"), [
    (fc.Complete(), None), (np.full((5, 5), 0.2), 4), (fc.DirectedRandom(3), 3), (fc.Graph([(0, 1), (1, 2)]), 4 / 3),
])  # fmt: skip
def test_a_client_sends_its_model_to_each_neighbour_in_each_gossip_step(mixing, neighbours):
    for steps in (1, 4):
        cost = fc.DFedSAM(mixing, gossip_steps=steps).cost()
        assert cost.up == cost.down == (neighbours and pytest.approx(steps * neighbours))


# --- methods that correct their drift -----------------------------------------------------------------------------


def corrected(top) -> list[fc.Method]:
    return [fc.DSGT(top), fc.ExactDiffusion(top), fc.ExactDiffusion(top, lazy=False)]


def uneven(t, clients):
    """From 1 to 5 local steps, other ones in every round."""
    return 1 + (3 * clients + 2 * t) % 5


@pytest.mark.parametrize(
    ("top", "steps"), [(fc.Ring(), 1), (PATH, uneven)], ids=["ring, 1 step", "path, unequal steps"]
)
def test_corrected_clients_come_to_rest_at_the_optimum_where_gossip_does_not(top, steps):
    A, b = h.problem(5, 3)
    x, options = h.optimum(A, b), {"rounds": 900, "lr": 0.05, "local_steps": steps, "eval_every": 900}
    fed = fc.quadratic(A, b)
    for method in corrected(top):
        state = fc.simulate(method, fed, **options).state
        h.close(state["X"], np.tile(x, (5, 1)), 1e-10)
        h.close(state["c_i"], np.einsum("npq,nq->np", A, b - x), 1e-9)  # each takes its own gradient away
        h.close(state["c_i"].sum(0), np.zeros(3), 1e-10)
    assert np.abs(fc.simulate(fc.DFedAvg(top), fed, **options).state["X"] - x).max() > 0.1


@pytest.mark.parametrize("top", [fc.Ring(), (1 - torch.eye(4).roll(2, 0)) / 3], ids=["float64", "float32"])
def test_an_eigenvalue_of_minus_a_third_is_allowed_without_laziness_whatever_its_rounding(top):
    end = fc.simulate(fc.ExactDiffusion(top, lazy=False), FED, rounds=100, lr=0.05).params
    assert (end.abs() < 10).all()


def tracking(W, g, X, rounds):
    """Gradient tracking: each client's Z follows the mean gradient."""
    Z = g(X)
    for _ in range(rounds):
        before, X = X, W @ (X - LR * Z)
        Z = W @ Z + g(X) - g(before)
    return X


def d2(W, g, X, rounds):
    """D2, and Exact Diffusion with its own W."""
    before, X = X, W @ (X - LR * g(X))
    for _ in range(rounds - 1):
        before, X = X, W @ (2 * X - before - LR * (g(X) - g(before)))
    return X


def test_with_one_local_step_corrected_methods_are_the_recursions_of_their_papers():
    A, b = h.problem(5, 3)
    fed, W = fc.quadratic(A, b, [0.5, -1.0, 2.0]), dense(PATH, 5)
    start = np.tile(fed.x0.numpy(), (5, 1))
    rules = (tracking, W), (d2, (np.eye(5) + W) / 2), (d2, W)
    for method, (rule, mixing) in zip(corrected(PATH), rules, strict=True):
        found = fc.simulate(method, fed, rounds=7, lr=LR, local_steps=1).state["X"]
        h.close(found, rule(mixing, lambda X: np.einsum("npq,nq->np", A, X - b), start, 7), 1e-12)


@pytest.mark.parametrize("method", [fc.DSGT(fc.Complete()), fc.ExactDiffusion(fc.Complete(), lazy=False)], ids=repr)
@pytest.mark.parametrize("kind", ["quadratic", "network"])
def test_corrected_methods_with_everyone_a_neighbour_are_scaffold_round_by_round(kind, method):
    fed = fc.quadratic(*h.problem(5, 3)) if kind == "quadratic" else h.network()
    options = {"lr": 0.1, "local_steps": 3, "batch_size": 4, "seed": 3}
    found, scaffold = (h.trajectory(m, fed, 6, **options) for m in (method, fc.SCAFFOLD("II")))
    h.close(found, scaffold, 1e-12)


# --- Hessian-vector products --------------------------------------------------------------------------------------


def slope(G, Y: torch.Tensor, V: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    """The derivative of G at Y along V by central differences of two widths, exact to step^4."""
    near, far = (G(Y + s * V) - G(Y - s * V) for s in (step, 2 * step))
    return (8 * near - far) / (12 * step)


@pytest.mark.parametrize("path", ["batched", "sequential"])
@pytest.mark.parametrize(("batch_size", "frozen"), [(4, True), (None, False)])
def test_a_federations_products_are_the_finite_differences_of_its_gradients(path, batch_size, frozen, monkeypatch):
    monkeypatch.setattr(fc.objective.federation, "SAMPLE_CHUNK", 20)  # several chunks per client
    first = nn.Linear(16, 6)
    first.weight.requires_grad_(not frozen)
    fed = h.network(
        model=fc.models.Projected(nn.Sequential(nn.Flatten(), first, nn.Tanh()), nn.Linear(6, 3)), path=path
    )
    plan = fed.plan(0, 0, np.arange(5), steps=3, batch_size=batch_size)
    g = torch.Generator().manual_seed(4)
    Y, V, other = torch.randn(3, 5, fed.d, generator=g, dtype=torch.float64)
    loss = Loss(penalty=fc.MOON(2.0).contrast, references=(other, -other))
    h.close(fed.gradient(Y, plan, 1, loss, along=V), slope(lambda y: fed.gradient(y, plan, 1, loss), Y, V), 1e-7)
