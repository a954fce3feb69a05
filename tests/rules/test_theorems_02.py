"""The propositions on SCAFFOLD, and the bound on FedAvg beside its own, in float64 through the package."""

import itertools

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc

OPTIONS = ("I", "II")


class AsPrinted(fc.SCAFFOLD):
    """The source's server update: the mean over the cohort, where the sum over n belongs."""

    def aggregate(self, r, y):
        new = super().aggregate(r, y)
        return {**new, "c": r.c + (new["c_i"] - r.c_i).mean(0)}


def states(method, fed, rounds, **settings):
    """The state after each round."""
    state = fc.start(method, fed)
    for t in range(rounds):
        state, _ = fc.one_round(method, fed, state, t, **settings)
        yield state


def digits(seed=0, clients=12):
    part = fc.Dirichlet(0.3)
    return fc.federation("digits", clients=clients, partition=part, model="logistic", seed=seed, dtype=torch.float64)


def quadratics(n=4, seed=0, equal=False):
    """Curvatures in (0.3, 2), own eigenvectors (or one A for all), minimisers apart."""
    A, b = h.problem(n, seed=seed, high=2)
    return fc.quadratic(np.repeat(A[:1], n, 0) if equal else A, b, x0=np.ones(3))


def play(method, fed, state, cohort, lr=0.1, K=4, server_lr=1.0):
    """One round of a cohort from a state to the next."""
    settings = {"cohort": list(cohort), "lr": lr, "local_steps": K, "server_lr": server_lr}
    return fc.one_round(method, fed, state, 0, **settings)[0]


def zero_state(fed):
    return fc.start(fc.SCAFFOLD(), fed)


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


# --- thm-path-gradient ----------------------------------------------------------------------------------------------


def variates_and_paths(**settings):
    """After each of some rounds: the variate of each client of the cohort, and the gradients along its path."""
    steps = []

    class Recorded(fc.SCAFFOLD):
        def direction(self, G, y, r):
            g = G(y)
            steps.append((r.clients.clone(), g))
            return super().direction(lambda z: g, y, r)

    for state in states(Recorded("II"), digits(), cohort=5, lr=0.3, seed=2, **settings):
        for client in steps[0][0].tolist():
            yield (
                state["c_i"][client],
                torch.stack([g[clients == client][0] for clients, g in steps if client in clients]),
            )
        steps.clear()


@pytest.mark.parametrize("local_steps", [7, None])  # None: one epoch, so that K_i differs between the clients
def test_thm_path_gradient(local_steps):
    lengths = set()
    for c_i, path in variates_and_paths(rounds=6, local_steps=local_steps):
        close(c_i, path.mean(0))
        lengths.add(len(path))
    assert (len(lengths) > 1) == (local_steps is None)


def test_path_gradient_is_lost_when_the_corrected_step_is_clipped():
    assert all((c_i - g.mean(0)).norm() > 0.1 for c_i, g in variates_and_paths(rounds=1, local_steps=4, clip=0.1))


# --- thm-control-invariant ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("cohort", [1, 4, None])
def test_thm_control_invariant(option, cohort):
    settings = {"cohort": cohort, "lr": 0.3, "lr_decay": 0.9, "weighting": "samples"}
    for state in states(fc.SCAFFOLD(option), digits(), 8, **settings):
        assert state["c"].norm() > 1e-3
        close(state["c"], state["c_i"].mean(0), 1e-14)


def test_control_invariant_leaves_the_mean_over_the_cohort_free():
    _, seen = h.watched(fc.SCAFFOLD(), digits(), rounds=8, cohort=4, lr=0.3, local_steps=3)
    assert min((r.c - r.c_i.mean(0)).norm() for r, _ in seen[1:]) > 1e-2


# --- thm-scaffold-fixed-point ---------------------------------------------------------------------------------------


def optimal_state(fed):
    own = torch.einsum("npq,nq->np", fed.A, fed.optimum - fed.b)
    return zero_state(fed).updated(x=fed.optimum, c_i=own)


def as_vector(state):
    return torch.cat([state["x"], state["c_i"].flatten()])


def from_vector(z, fed):
    c_i = z[fed.d :].reshape(fed.n, fed.d)
    return zero_state(fed).updated(x=z[: fed.d], c=c_i.mean(0), c_i=c_i)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("K", "lr"), [(1, 0.1), (5, 0.1), (12, 0.4), (5, 0.95)])
def test_thm_scaffold_fixed_point(option, K, lr):
    """The optimum is unchanged by every cohort, and no other state with c = mean c_i by a round of all clients."""
    fed, method = quadratics(seed=3), fc.SCAFFOLD(option)
    assert lr < 2 / torch.linalg.eigvalsh(fed.A).max()
    best = optimal_state(fed)
    for m in range(1, fed.n + 1):
        for cohort in itertools.combinations(range(fed.n), m):
            for name, value in play(method, fed, best, cohort, lr, K).items():
                close(value, best[name])

    # a round is an affine map on the states with c = mean c_i; it has one fixed point iff M - 1 is regular
    def after(z):
        return as_vector(play(method, fed, from_vector(z, fed), range(fed.n), lr, K))

    size = fed.d * (1 + fed.n)
    M = torch.stack([after(e) - after(torch.zeros(size).double()) for e in torch.eye(size).double()], 1)
    assert torch.linalg.svdvals(M - torch.eye(size)).min() > 1e-3


@pytest.mark.parametrize("option", OPTIONS)
def test_scaffold_reaches_its_fixed_point_and_fedavg_another_one(option):
    fed = quadratics(seed=3)
    work = {"rounds": 500, "cohort": 3, "lr": 0.1, "local_steps": 5}
    run, best = fc.simulate(fc.SCAFFOLD(option), fed, **work), optimal_state(fed)
    for name, value in best.items():
        close(run.state[name], value, 1e-9)
    fedavg = fc.simulate(fc.FedAvg(), fed, **work | {"cohort": None})
    assert (fedavg.params - fed.optimum).norm() > 1e-2


# --- thm-scaffold-convergence, thm-fedavg-convergence ---------------------------------------------------------------


def mean_excess(kind, fed, **work):
    """The mean over all steps of F(mean of the clients' models), less F at the optimum."""
    means = []

    class Watched(kind):
        def direction(self, G, y, r):
            means.append(y.mean(0))
            return super().direction(G, y, r)

    fc.simulate(Watched(), fed, **work, eval_every=work["rounds"])
    return float(torch.stack([fed.objective(mean) for mean in means]).mean() - fed.objective(fed.optimum))


def terms(fed, lr, K, T):
    """The two terms of the bounds, but for a factor: of the start, and of the clients' optima apart."""
    best, L = fed.optimum, torch.linalg.eigvalsh(fed.A).max()
    apart = torch.einsum("npq,nq->np", fed.A, best - fed.b).square().sum(1).mean()
    return float(2 * (fed.x0 - best).square().sum() / (lr * K * T)), float(L * lr**2 * K * (K - 1) * apart)


def check_bound(kind, K, second):
    """On random convex problems, quadratics without a strong curvature among them, the bound holds and is no bound by
    orders of magnitude everywhere; without its second term it fails."""
    draw, tightest, without = np.random.default_rng(K), [], []
    for T in (1, 10, 60):
        for far in (0.0, 0.01, 1.0, 1.0):
            n, d = 3, int(draw.integers(1, 4))
            roots = draw.normal(size=(n, d, max(1, d - 1)))
            A, b = roots @ roots.transpose(0, 2, 1), draw.normal(size=(n, d))  # singular for d > 1
            fed = fc.quadratic(A, b, x0=fc.quadratic(A, b).optimum.numpy() + far * draw.normal(size=d))
            lr = draw.choice([0.3, 1.0]) / (6 * np.linalg.eigvalsh(A).max() * K)
            first, drift = terms(fed, lr, K, T)
            left, bound = mean_excess(kind, fed, rounds=T, lr=lr, local_steps=K), first + second(drift, T)
            assert left <= bound * (1 + 1e-9) + 1e-12
            tightest.append(left / (bound + 1e-12))
            without.append(left > first + 1e-12)
    assert max(tightest) > 0.02
    assert any(without) == (K > 1)


@pytest.mark.parametrize("K", [1, 4, 12])
def test_thm_scaffold_convergence(K):
    check_bound(fc.SCAFFOLD, K, lambda drift, T: 2 * drift / T)


@pytest.mark.parametrize("K", [1, 4, 12])
def test_thm_fedavg_convergence(K):
    check_bound(fc.FedAvg, K, lambda drift, T: 5 * drift)


def test_fedavg_breaks_the_bound_that_scaffold_keeps():
    A = np.array([[[2.5, 0.6], [0.6, 0.4]], [[0.3, -0.2], [-0.2, 1.6]]])
    b, K, T = np.array([[-4.8, 1.8], [4.2, -2.4]]), 10, 300
    fed = fc.quadratic(A, b, x0=fc.quadratic(A, b).optimum)  # from the optimum itself: what is measured is drift
    work = {"rounds": T, "lr": 1 / (6 * np.linalg.eigvalsh(A).max() * K), "local_steps": K}
    bound = 2 * terms(fed, work["lr"], K, T)[1] / T
    assert mean_excess(fc.SCAFFOLD, fed, **work) <= bound < mean_excess(fc.FedAvg, fed, **work) / 3


# --- thm-literal-scale ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("m", [2, 3, 12])
def test_thm_literal_scale(option, m):
    fed = digits()
    for state in states(AsPrinted(option), fed, 6, cohort=m, lr=0.05):
        assert state["c"].norm() > 1e-3
        close(state["c"], fed.n / m * state["c_i"].mean(0), 1e-13)


# --- thm-literal-momentum -------------------------------------------------------------------------------------------


def mean_path(method, fed, m, rounds=8, **work):
    """E x^t over uniform cohorts: a round is affine in the state, so the mean state needs one average per round."""
    state, path = zero_state(fed), [fed.x0]
    for _ in range(rounds):
        after = [play(method, fed, state, cohort, **work) for cohort in itertools.combinations(range(fed.n), m)]
        state = state.updated(**{name: torch.stack([s[name] for s in after]).mean(0) for name in state})
        path.append(state["x"])
    return path


def recursion_gap(path, fed, beta, lr, K, server_lr):
    """Largest violation of x+ - x = beta (x - x_before) - lr server_lr B grad F(x) for t >= 1."""
    A = fed.A.mean(0)
    P = torch.eye(fed.d).double() - lr * A
    B = sum(torch.linalg.matrix_power(P, k) for k in range(K))
    gaps = [
        x_next - x - beta * (x - x_before) + lr * server_lr * B @ A @ (x - fed.optimum)
        for x_before, x, x_next in zip(path, path[1:], path[2:], strict=False)
    ]
    return float(torch.stack(gaps).abs().max())


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize(("K", "server_lr"), [(1, 1.0), (6, 1.0), (3, 0.7)])
def test_thm_literal_momentum(m, K, server_lr):
    fed, work = quadratics(n=5, equal=True, seed=1), {"lr": 0.1, "K": K, "server_lr": server_lr}
    printed = mean_path(AsPrinted("I"), fed, m, **work)
    correct = mean_path(fc.SCAFFOLD("I"), fed, m, **work)
    assert recursion_gap(printed, fed, 1 - m / fed.n, **work) < 1e-13
    assert recursion_gap(correct, fed, 0.0, **work) < 1e-13
    if m < fed.n:
        assert recursion_gap(printed, fed, 0.0, **work) > 1e-2


def test_literal_momentum_needs_equal_curvatures():
    work = {"lr": 0.1, "K": 6, "server_lr": 1.0}
    fed = quadratics(n=5, seed=1)
    assert recursion_gap(mean_path(AsPrinted("I"), fed, 1, **work), fed, 0.8, **work) > 1e-3


# --- eq-cheap-upload ------------------------------------------------------------------------------------------------


def test_the_server_can_compute_the_second_upload_itself():
    fed = digits()
    run, seen = h.watched(fc.SCAFFOLD(), fed, rounds=6, cohort=4, lr=0.3, lr_decay=0.9, batch_size=20)
    c = torch.zeros(fed.d, dtype=fed.dtype)
    for r, y in seen:
        c = c + (-c - (y - r.x) / (r.K * r.lr)).sum(0) / fed.n
    close(c, run.state["c"], 1e-13)


@pytest.mark.parametrize("coupling", [0.0, 0.5])
def test_a_corrected_parameter_is_exact_where_curvature_does_not_couple_it_to_the_others(coupling):
    class First(fc.FedPVR):
        def mask(self, layout, x):
            return torch.arange(2) == 0

    A = np.array([[[1.0, coupling], [coupling, 2.0]], [[3.0, -coupling], [-coupling, 0.5]]])
    fed = fc.quadratic(A, np.array([[1.0, 2.0], [-1.0, -3.0]]), x0=np.zeros(2))
    off = fc.simulate(First(), fed, rounds=400, lr=0.1, local_steps=8, eval_every=400).params - fed.optimum
    assert bool(abs(off[0]) < 1e-9) == (coupling == 0)
    assert abs(off[1]) > 0.1, "the other one has FedAvg's bias"
