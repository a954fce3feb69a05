"""The drift-correcting, momentum, sharpness, splitting and contrastive methods, against closed forms and each other.

Numbers of P1 (two clients, a = (1, 3), b = (1, -1), lr 0.1, K = 5, x0 = 0) are those of independent hand-written loops.
"""

import math

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedcore as fc
from fedcore.algorithms.method import Work
from fedcore.engine import Loss

P1 = {"lr": 0.1, "local_steps": 5}
ROUNDS = [
    (fc.FedDC(0.5), [-0.38682625, -0.6371071848, -0.6409024887]),
    (fc.Mime(0.0), [-0.34341, -0.4509591438, -0.4846413847]),
    (fc.Mime(0.9), [-0.0480493041, -0.1347255106, -0.2478364666]),
    (fc.MimeLite(0.9), [-0.0461280121, -0.1311118728, -0.2429409245]),
    (fc.FedDyn(1.0), [-0.35552, -0.476912128, -0.4945305586]),
    (fc.STEM(0.3), [-0.30237, -0.3553276092, -0.3650392027]),
    (fc.FedSMOO(1.0, rho=0.05), [-0.373296, -0.5007577344, -0.5192570865]),
    (fc.FedSAM(0.05), [-0.2217705, -0.3058836152, -0.3377860376]),
    (fc.FedPVR("all"), [-0.21121, -0.3733769128, -0.4546854771]),
]
QUADRATICS = h.problem(4, 3)
# FedSplit's fixed point is exact for exact prox steps; of curvatures up to 5, a step leaves at most half the distance
EXACT_PROX = {"rounds": 120, "lr": 0.3, "local_steps": 40}


def run(method, fed=None, rounds=3, **options):
    return fc.simulate(method, fed or h.golden(), rounds=rounds, eval_every=max(1, rounds), **P1 | options)


@pytest.mark.parametrize(("method", "values"), ROUNDS, ids=lambda v: repr(v) if isinstance(v, fc.Method) else "")
def test_golden_rounds(method, values):
    h.close(h.trajectory(method, h.golden(), 3, **P1)[1:, 0], values, 1e-9)


def test_golden_rounds_of_fedsplit_with_exact_prox_steps():
    split = h.trajectory(fc.FedSplit(1 / math.sqrt(3)), h.golden(), 3, lr=0.1, local_steps=500)
    h.close(split[1:, 0], [-0.2679491924, -0.5358983849, -0.5166604984], 1e-9)


@pytest.mark.parametrize(
    "method",
    [
        fc.FedDC(0.5), fc.FedDyn(1.0), fc.FedDyn(0.1), fc.Mime(0.0), fc.Mime(0.5), fc.Mime(0.9), fc.FedSplit(0.5),
        fc.FedSMOO(1.0, rho=0.0), fc.FedPVR("all"),
    ],
    ids=repr,
)  # fmt: skip
def test_reaches_the_optimum_of_many_quadratics(method):
    A, b = QUADRATICS
    work = EXACT_PROX if isinstance(method, fc.FedSplit) else {"rounds": 600, "lr": 0.1, "local_steps": 5}
    end = fc.simulate(method, fc.quadratic(A, b), eval_every=600, **work).params
    h.close(end, h.optimum(A, b), 1e-8)


@pytest.mark.parametrize("method", [fc.MimeLite(0.9), fc.STEM(0.3), fc.FedSAM(0.0)], ids=repr)
def test_is_biased_with_several_local_steps(method):
    A, b = QUADRATICS
    end = fc.simulate(method, fc.quadratic(A, b), rounds=400, lr=0.1, local_steps=5, eval_every=400).params
    assert np.abs(end.numpy() - h.optimum(A, b)).max() > 1e-3


@pytest.mark.parametrize(
    "method", [fc.MimeLite(0.0), fc.FedSAM(0.0), fc.FedPVR(()), fc.FedProx(0.0), fc.FedUp(0.0)], ids=repr
)
def test_switched_off_is_fedavg(method):
    fed = h.network()
    options = {"rounds": 3, "cohort": 3, "lr": 0.2, "batch_size": 4}
    h.close(fc.simulate(method, fed, **options).params, fc.simulate(fc.FedAvg(), fed, **options).params, 1e-12)


@pytest.mark.parametrize("K", [1, 3])
def test_fedpvr_on_all_layers_is_scaffold(K):
    fed, options = h.network(), {"rounds": 4, "cohort": 3, "lr": 0.2, "batch_size": 4, "local_steps": K}
    a, b = fc.simulate(fc.FedPVR("all"), fed, **options), fc.simulate(fc.SCAFFOLD("II"), fed, **options)
    h.close(a.params, b.params, 1e-12)


def test_fedpvr_corrects_only_its_layers_and_keeps_the_invariant_there():
    fed = h.network()
    history = fc.simulate(fc.FedPVR(), fed, rounds=4, cohort=3, lr=0.2, batch_size=4)
    head = torch.zeros(fed.d, dtype=torch.bool)
    for name, place in zip(fed.engine.layout.names, fed.engine.layout.slices, strict=True):
        head[place] = name.startswith("3.")  # Flatten, Linear, ReLU, Linear
    c, c_i = history.state["c"], history.state["c_i"]
    assert not c_i[:, ~head].any()
    assert c_i[:, head].any()
    h.close(c, c_i.mean(0), 1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("kind", [fc.Mime, fc.MimeLite])
def test_one_full_step_of_mime_is_gradient_descent_with_momentum(kind, beta):
    A, b = QUADRATICS
    x, s, path = np.zeros(3), np.zeros(3), [np.zeros(3)]
    for _ in range(9):
        g = np.einsum("npq,nq->p", A, x - b) / len(b)
        x, s = x - 0.1 * ((1 - beta) * g + beta * s), (1 - beta) * g + beta * s
        path.append(x)
    h.close(h.trajectory(kind(beta), fc.quadratic(A, b), 9, lr=0.1, local_steps=1), path, 1e-12)


@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_one_full_step_of_stem_is_gradient_descent(a):
    A, b = QUADRATICS
    stem = h.trajectory(fc.STEM(a), fc.quadratic(A, b), 9, lr=0.1, local_steps=1)
    descent = h.trajectory(fc.FedSGD(), fc.quadratic(A, b), 9, lr=0.1)
    h.close(stem, descent, 1e-12)


def test_stem_with_a_schedule_decreases_its_learning_rate():
    method = fc.STEM(kappa=0.2, w=2.0, c=3.0)
    assert method.local_work(Work(t=0, lr=9.0)).lr == pytest.approx(0.2 / 2 ** (1 / 3))
    assert method.local_work(Work(t=6, lr=9.0)).lr == pytest.approx(0.1)
    given = run(method, lr=0.5).params
    assert torch.equal(given, run(method, lr=0.001).params)


@pytest.mark.parametrize("cohort", [None, 2, 1])
def test_feddyn_of_the_paper_is_feddyn_of_the_code(cohort):
    """g_i <- g_i - alpha delta, h <- h - (alpha/n) sum delta, x <- mean y_i - h/alpha, as the paper has it."""
    A, b = QUADRATICS
    alpha, lr, K, n = 0.4, 0.05, 5, len(b)
    history = fc.simulate(fc.FedDyn(alpha), fc.quadratic(A, b), rounds=12, cohort=cohort, lr=lr, local_steps=K)
    x, g, server = np.zeros(3), np.zeros((n, 3)), np.zeros(3)
    for S in history.cohorts:
        Y = np.repeat(x[None], len(S), 0)
        for _ in range(K):
            Y = Y - lr * (np.einsum("npq,nq->np", A[S], Y - b[S]) - g[S] + alpha * (Y - x))
        g[S] -= alpha * (Y - x)
        server -= alpha / n * (Y - x).sum(0)
        x = Y.mean(0) - server / alpha
    h.close(history.params, x, 1e-12)
    h.close(-alpha * history.state["h_i"], g, 1e-12)


def test_feddyn_at_rest_knows_every_clients_gradient():
    A, b = QUADRATICS
    history = fc.simulate(fc.FedDyn(0.5), fc.quadratic(A, b), rounds=400, lr=0.1, local_steps=5, eval_every=400)
    at_optimum = np.einsum("npq,nq->np", A, h.optimum(A, b) - b)
    h.close(-0.5 * history.state["h_i"], at_optimum, 1e-7)


def test_feddyn_with_small_alpha_is_not_fedavg():
    tiny, plain = run(fc.FedDyn(1e-9)).params, run(fc.FedAvg()).params
    assert abs(tiny - plain) > 0.05


@pytest.mark.parametrize("cohort", [None, 2])
def test_fedsmoo_without_perturbation_is_feddyn(cohort):
    A, b = QUADRATICS
    options = {"rounds": 10, "cohort": cohort, "lr": 0.05, "local_steps": 4}
    smoo = fc.simulate(fc.FedSMOO(0.3, rho=0.0), fc.quadratic(A, b), **options)
    dyn = fc.simulate(fc.FedDyn(0.3), fc.quadratic(A, b), **options)
    h.close(smoo.params, dyn.params, 1e-12)


def test_means_over_all_clients_are_kept_under_partial_participation():
    A, b = QUADRATICS
    for method in (fc.FedDyn(0.3), fc.FedDC(0.3), fc.FedSMOO(0.3, 0.1)):
        s = fc.simulate(method, fc.quadratic(A, b), rounds=9, cohort=2, lr=0.05, local_steps=4).state
        h.close(s["h"], s["h_i"].mean(0), 1e-12)
        if "c" in s:
            h.close(s["c"], s["c_i"].mean(0), 1e-12)


def test_fedsplit_rests_where_the_client_gradients_balance():
    A, b = QUADRATICS
    history = fc.simulate(fc.FedSplit(0.5), fc.quadratic(A, b), eval_every=300, **EXACT_PROX)
    x = h.optimum(A, b)
    h.close(history.state["z_i"], x - 0.5 * np.einsum("npq,nq->np", A, x - b), 1e-7)


def test_fedsam_on_a_scalar_quadratic_ends_in_a_two_cycle():
    a, rho, lr = 2.0, 0.3, 0.1
    fed = fc.quadratic([[[a]]], [[0.0]], x0=[1.0])
    ends = [fc.simulate(fc.FedSAM(rho), fed, rounds=T, lr=lr, local_steps=1, eval_every=T).params for T in (400, 401)]
    amplitude = lr * a * rho / (2 - lr * a)
    h.close(torch.stack(ends).abs(), amplitude, 1e-10)
    assert ends[0] * ends[1] < 0


def test_identical_clients_make_mime_and_mimelite_equal():
    A, b = h.problem(1, 3)
    fed = fc.quadratic(np.repeat(A, 3, 0), np.repeat(b, 3, 0))
    h.close(run(fc.Mime(0.6), fed).params, run(fc.MimeLite(0.6), fed).params, 1e-12)


# --- MOON ----------------------------------------------------------------------------------------------------------


def contrastive(path: str = "auto") -> fc.Federation:
    return h.network(model=fc.models.projected("mlp", dim=6), path=path)


MOON_RUN = {"rounds": 3, "cohort": 3, "lr": 0.2, "batch_size": 4}


def test_moon_without_contrast_is_fedavg():
    fed = contrastive()
    h.close(fc.simulate(fc.MOON(0.0), fed, **MOON_RUN).params, fc.simulate(fc.FedAvg(), fed, **MOON_RUN).params, 1e-12)


def test_moon_of_equal_models_adds_log_2_and_no_gradient():
    z = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    other = torch.randn(5, 4, dtype=torch.float64)
    loss = fc.MOON(2.0).contrast(z, other, other)
    h.close(loss, 2 * math.log(2), 1e-12)
    h.close(torch.autograd.grad(loss.sum(), z)[0], 0.0, 1e-14)


def test_moons_first_round_is_fedavgs():
    fed = contrastive()
    one = MOON_RUN | {"rounds": 1}
    h.close(fc.simulate(fc.MOON(5.0), fed, **one).params, fc.simulate(fc.FedAvg(), fed, **one).params, 1e-12)


def test_moon_is_the_same_on_both_paths_and_moves_what_it_should():
    a, b = (fc.simulate(fc.MOON(5.0), contrastive(path), **MOON_RUN).params for path in ("batched", "sequential"))
    h.close(a, b, 1e-10)
    assert (a - fc.simulate(fc.FedAvg(), contrastive(), **MOON_RUN).params).abs().max() > 1e-4


def test_moons_direction_is_the_gradient_of_its_loss():
    fed = contrastive("sequential")
    plan = fed.plan(0, 0, np.array([2]), steps=1, batch_size=None)
    y, x, prev = (fed.x0 + 0.1 * torch.randn(fed.d, dtype=torch.float64) for _ in range(3))
    method = fc.MOON(3.0, tau=0.4)
    got = fed.gradient(y[None], plan, 0, Loss(penalty=method.contrast, references=(x[None], prev[None])))[0]
    inputs, labels = h.whole(fed, 2)

    def parts(flat):
        views = fed.engine.layout.views(flat)
        inner = {k.removeprefix("encoder."): v for k, v in views.items() if k.startswith("encoder.")}
        z = torch.func.functional_call(fed.engine.module.encoder, inner, (inputs,))
        return z, z @ views["classifier.weight"].T + views["classifier.bias"]

    leaf = y.clone().requires_grad_()
    z, logits = parts(leaf)
    near, far = (torch.exp(F.cosine_similarity(z, parts(other)[0].detach(), dim=1) / 0.4) for other in (x, prev))
    loss = F.cross_entropy(logits, labels) - 3.0 * torch.log(near / (near + far)).mean()
    h.close(got, torch.autograd.grad(loss, leaf)[0], 1e-10)


# --- wrong calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fc.FedDyn(0), ["alpha=0", "alpha > 0"]),
        (lambda: fc.FedDC(-1), ["alpha=-1", "alpha >= 0"]),
        (lambda: fc.Mime(1.0), ["beta=1", "<="]),
        (lambda: fc.MimeLite(-0.1), ["beta=-0.1", ">= 0"]),
        (lambda: fc.STEM(1.5), ["a=1.5", "<= 1"]),
        (lambda: fc.STEM(kappa=0), ["kappa=0", "> 0"]),
        (lambda: fc.FedSplit(0), ["s=0", "> 0"]),
        (lambda: fc.FedSMOO(0.1, rho=-1), ["rho=-1", ">= 0"]),
        (lambda: fc.FedSAM(-1), ["rho=-1", ">= 0"]),
        (lambda: fc.MOON(mu=-1), ["mu=-1", ">= 0"]),
        (lambda: fc.MOON(tau=0), ["tau=0", "> 0"]),
        (lambda: run(fc.MOON(), h.network()), ["no representation layer", "projected"]),
        (lambda: run(fc.MOON()), ["quadratic", "network"]),
        (lambda: run(fc.FedPVR(("nope",)), h.network()), ["'nope'", "3.weight"]),
        (lambda: run(fc.FedPVR(("3",))), ["quadratic", "'all'"]),
        (lambda: run(fc.FedSplit(), cohort=1), ["FedSplit needs all 2 clients", "cohort=1", "cohort=None"]),
        (lambda: fc.models.projected("nope"), ["'nope'", "'cnn'"]),
    ],
)
def test_wrong_values_are_refused_with_value_range_and_remedy(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("path", ["batched", "sequential"])
def test_moons_references_are_without_dropout(path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
    model = fc.models.projected(lambda shape, classes: net)
    fed = fc.federation("digits", 6, model=model, seed=0, dtype=torch.float64).forced(path)
    seen = []

    class Watched(fc.MOON):
        def contrast(self, z, z_glob, z_prev):
            seen.append((z.detach(), z_glob, z_prev))
            return super().contrast(z, z_glob, z_prev)

    fc.simulate(Watched(), fed, rounds=1, cohort=2, local_steps=1, lr=0.1, batch_size=8)
    for z, z_glob, z_prev in seen:
        torch.testing.assert_close(z_glob, z_prev)
        assert (z - z_glob).norm() > 0.1 * z.norm()


def test_fedpvr_corrects_all_of_what_is_one_layer():
    whole = run(fc.FedPVR("all"))
    torch.testing.assert_close(run(fc.FedPVR()).params, whole.params, rtol=0, atol=0)
    fed = fc.federation("digits", 6, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), seed=0)
    assert bool(fc.FedPVR().mask(fed.layout, fed.x0).all())
    bare = fc.federation((np.eye(8), np.arange(8) % 4), 2, fc.IID(), nn.Linear(8, 4), seed=0)
    assert bool(fc.FedPVR().mask(bare.layout, bare.x0).all())
