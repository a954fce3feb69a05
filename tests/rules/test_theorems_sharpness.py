"""The theorems of the chapter on flat minima as numbers, in float64, through the public interface."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import optimum

import fedcore as fc
from fedcore.probes import gradient_of


def problem(seed, n=3, p=2):
    """Quadratics with curvatures between 0.3 and 2.5 and optima that differ: `A [n, p, p]`, `b [n, p]`."""
    rng = np.random.default_rng(seed)
    turns = [np.linalg.qr(rng.normal(size=(p, p)))[0] for _ in range(n)]
    A = np.stack([q @ np.diag(rng.uniform(0.3, 2.5, p)) @ q.T for q in turns])
    return A, 2 * rng.normal(size=(n, p))


def unit(v):
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def slopes(A, b, x):
    """The clients' gradients at x, `[n, p]`."""
    return np.einsum("npq,nq->np", A, x - b)


def slope_of_phi(A, b, rho, x):
    """The gradient of the mean of F_i + rho ||grad F_i||."""
    g = slopes(A, b, x)
    return (g + rho * np.einsum("npq,nq->np", A, unit(g))).mean(0)


def minimiser_of_phi(A, b, rho):
    """By x <- x - (sum A_i)^-1 n grad Phi(x), which knows nothing of rounds."""
    x = optimum(A, b)
    for _ in range(2000):
        x = x - 0.5 * np.linalg.solve(A.mean(0), slope_of_phi(A, b, rho, x))
    np.testing.assert_allclose(slope_of_phi(A, b, rho, x), 0, atol=1e-12)
    return x


def end(method, A, b, rounds=1500, lr=0.1, local_steps=1, **more):
    fed = fc.quadratic(A, b, x0=2 * np.ones(b.shape[1]))
    work = {"rounds": rounds, "lr": lr, "local_steps": local_steps, "eval_every": rounds}
    return fc.simulate(method, fed, **work, **more).params.numpy()


# --- thm-sam-swing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.03, -0.7, 5.0])
@pytest.mark.parametrize(("a", "lr"), [(0.7, 0.3), (2.0, 0.4), (3.0, 0.55)])
def test_thm_sam_swing(a, lr, start):
    rho, c = 0.2, lr * a
    fed = fc.quadratic([[[a]]], [[1.0]], x0=[1.0 + start])
    ends = [
        fc.simulate(fc.FedSAM(rho), fed, rounds=T, lr=lr, local_steps=1, eval_every=T).params.item() for T in (800, 801)
    ]
    np.testing.assert_allclose(np.sort(ends), [1 - c * rho / (2 - c), 1 + c * rho / (2 - c)], atol=1e-10)


# --- thm-fedsam-rest -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_thm_fedsam_rest(seed):
    A, b = problem(seed)
    rho, x = 0.2, np.array([0.7, -1.1])
    # SAM's direction is the gradient of F_i + rho ||grad F_i||, and a round with K = 1 is a step on their mean
    for A_i, b_i in zip(torch.as_tensor(A), torch.as_tensor(b), strict=True):

        def phi(Y, A_i=A_i, b_i=b_i):
            g = (Y - b_i) @ A_i
            return 0.5 * (g * (Y - b_i)).sum(-1) + rho * g.norm(dim=-1)

        y = torch.as_tensor(x)[None]
        loss = gradient_of(lambda Y, A_i=A_i, b_i=b_i: 0.5 * ((Y - b_i) @ A_i * (Y - b_i)).sum(-1))
        torch.testing.assert_close(fc.FedSAM(rho).direction(loss, y, None), gradient_of(phi)(y), rtol=0, atol=1e-10)
    one = fc.simulate(fc.FedSAM(rho), fc.quadratic(A, b, x0=x), rounds=1, lr=0.1, local_steps=1).params.numpy()
    np.testing.assert_allclose(one, x - 0.1 * slope_of_phi(A, b, rho, x), atol=1e-12)
    # where it rests: not at the optimum, and no further from it than the bound
    x_rho, best = minimiser_of_phi(A, b, rho), optimum(A, b)
    np.testing.assert_allclose(end(fc.FedSAM(rho), A, b), x_rho, atol=1e-9)
    assert np.linalg.norm(x_rho - best) > 0.2 * rho
    steepest = np.linalg.eigvalsh(A)[:, -1].mean()
    assert np.linalg.norm(slopes(A, b, x_rho).mean(0)) <= rho * steepest


def test_thm_fedsam_rest_is_the_optimum_for_one_client_and_for_two_of_one_curvature():
    A, b = problem(3, n=2)
    best = np.array([0.5, -0.3])
    together = fc.quadratic(A.mean(0)[None], best[None], x0=2 * np.ones(2))  # SAM with all data in one place
    run = fc.simulate(fc.FedSAM(0.2), together, rounds=3000, lr=0.1, local_steps=1, eval_every=3000)
    c = 0.1 * np.linalg.eigvalsh(A.mean(0))[-1]
    assert np.linalg.norm(run.params.numpy() - best) == pytest.approx(0.2 * c / (2 - c), rel=1e-6)  # it swings there
    alike = np.stack([A[0], A[0]])
    np.testing.assert_allclose(end(fc.FedSAM(0.2), alike, b), b.mean(0), atol=1e-9)
    assert np.linalg.norm(end(fc.FedSAM(0.2), A, b) - optimum(A, b)) > 0.01


@pytest.mark.parametrize("K", [1, 5])
def test_fedgamma_rests_there_for_every_number_of_local_steps_and_fedsam_does_not(K):
    A, b = problem(0)
    x_rho = minimiser_of_phi(A, b, 0.2)
    np.testing.assert_allclose(end(fc.FedGamma(0.2), A, b, local_steps=K), x_rho, atol=1e-9)
    far = np.linalg.norm(end(fc.FedSAM(0.2), A, b, local_steps=K) - x_rho)
    assert far < 1e-9 if K == 1 else far > 1e-2


@pytest.mark.parametrize("K", [1, 5])
def test_mofedsam_rests_where_fedsam_with_a_shorter_step_does(K):
    A, b = problem(0)
    mo = end(fc.MoFedSAM(0.2, beta=0.5), A, b, local_steps=K)
    np.testing.assert_allclose(mo, end(fc.FedSAM(0.2), A, b, lr=0.05, local_steps=K), atol=1e-9)


# --- thm-fedsmoo-rest ------------------------------------------------------------------------------------------------

METHOD = fc.FedSMOO(alpha=0.25, rho=0.2)


def at_the_optimum(A, b, shift=0.0, seed=0):
    """FedSMOO's state at its place of rest, moved by `shift` in all of its vectors."""
    move = np.random.default_rng(seed)
    g = slopes(A, b, optimum(A, b))

    def moved(v):
        return torch.as_tensor(v + shift * move.normal(size=v.shape))

    parts = {"x": moved(optimum(A, b)), "s": moved(np.zeros(2)), "h_i": moved(-g / METHOD.alpha), "mu_i": moved(g)}
    parts["h"] = parts["h_i"].mean(0)
    return parts


def played(method, A, b, parts, rounds, K):
    fed = fc.quadratic(A, b)
    state, path = fc.start(method, fed).updated(**parts), []
    for t in range(rounds):
        state, _ = fc.one_round(method, fed, state, t, lr=0.1, local_steps=K)
        path.append(state["x"].numpy())
    return state, np.array(path)


@pytest.mark.parametrize("K", [1, 5])
def test_thm_fedsmoo_rest(K):
    """With these whole numbers, and four clients, no sum is rounded: e divides by the length of what is zero."""
    A = np.array([[[2.0, 1], [1, 2]], [[3, -1], [-1, 1]], [[3, 0], [0, 5]], [[8, 0], [0, 8]]])
    b = np.array([[4.0, 0], [-2, 3], [0, -4], [1, -1]])
    parts = at_the_optimum(A, b)
    state, _ = played(METHOD, A, b, parts, 1, K)
    for name, value in parts.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-9)
    # a state that looks alike and is none: all perturb by one vector s, and x + s is the optimum
    s = torch.tensor([0.2, 0.0], dtype=torch.float64)
    elsewhere = parts | {"x": parts["x"] - s, "s": s}
    state, _ = played(METHOD, A, b, elsewhere, 1, K)
    assert max(float((state[name] - value).abs().max()) for name, value in elsewhere.items()) > 1e-2


@pytest.mark.parametrize("K", [1, 5])
def test_thm_fedsmoo_rest_paths_scale_with_the_radius(K):
    A, b = problem(1)
    _, small = played(fc.FedSMOO(METHOD.alpha, rho=0.1), A, b, at_the_optimum(A, b, 0.05), 40, K)
    _, large = played(fc.FedSMOO(METHOD.alpha, rho=0.3), A, b, at_the_optimum(A, b, 0.15), 40, K)
    np.testing.assert_allclose(large - optimum(A, b), 3 * (small - optimum(A, b)), atol=1e-9)
    assert np.linalg.norm(large[-1] - optimum(A, b)) > 1e-3  # and they do not come to rest there
