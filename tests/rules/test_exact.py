"""Methods with a server: printed numbers, limits in which one is another, and places of rest, in float64.

Whole rounds of every method are compared in `test_reference`, and the theorems of the chapters in `test_theorems_*`.
Tolerances are relative to max(1, |value|); 1e-12 is a few hundred roundings.
"""

from __future__ import annotations

import math

import helpers as h
import numpy as np
import pytest
import torch
from battery import contrastive
from helpers import FULL, LR, K, last
from torch import nn

import fedcore as fc
from fedcore.algorithms.method import Work

by_repr = {"ids": lambda v: repr(v).replace(" ", "") if isinstance(v, fc.Method) else ""}

# --- the golden problem: two clients in one dimension, numbers of independent hand-written loops --------------------

GOLDEN = [  # x after the first rounds, printed to 10 digits
    (fc.FedAvg(), [-0.21121, -0.2913177288, -0.3217009882]),
    (fc.FedProx(mu=0.5), [-0.193413125, -0.2776878171, -0.314408302]),
    (fc.FedUp(alpha=0.1), [-0.207467461, -0.3584772124, -0.3985203072]),
    (fc.SCAFFOLD("I"), [-0.21121, -0.4235177288, -0.4900808232]),
    (fc.SCAFFOLD("II"), [-0.21121, -0.3733769128, -0.4546854771]),
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


@pytest.mark.parametrize(("method", "rounds"), GOLDEN, **by_repr)
def test_golden_rounds_on_two_quadratics(method, rounds):
    h.close(h.trajectory(method, h.golden(), 3, **FULL)[1:, 0], rounds, 6e-11)


def test_golden_rounds_of_fedsplit_with_exact_prox_steps():
    split = h.trajectory(fc.FedSplit(1 / math.sqrt(3)), h.golden(), 3, lr=0.1, local_steps=500)
    h.close(split[1:, 0], [-0.2679491924, -0.5358983849, -0.5166604984], 6e-11)


# --- what is another method in a limit ------------------------------------------------------------------------------

NETWORK = {"rounds": 4, "cohort": 3, "lr": 0.3, "batch_size": 4, "local_epochs": 2}  # clients of 2 to 10 local steps
FIRST = {"rounds": 1}
STEP = {"rounds": 1, "local_steps": 1, "local_epochs": 1}
RICH = {"clip": 0.5, "momentum": 0.3, "weight_decay": 0.01, "server_lr": 0.7}
EQUAL = {"local_steps": 6, "local_epochs": 1, "momentum": 0.7, "server_lr": 0.8, "weighting": "samples"}
ALL = {"cohort": None}
SAME_BITS = [
    *[(method, fc.FedAvg(), FIRST) for method in (fc.SCAFFOLD("I"), fc.SCAFFOLD("II"))],
    *[(method, fc.FedAvg(), STEP) for method in (fc.FedProx(mu=2.0), fc.FedUp(alpha=0.2))],
    (fc.FedGamma(rho=0.2), fc.FedSAM(rho=0.2), FIRST),
    (fc.FedGamma(rho=0.0), fc.SCAFFOLD("II"), {}),
    (fc.FedCM(1.0), fc.FedAvg(), {"clip": 0.5}),
    (fc.MoFedSAM(rho=0.0, beta=0.3), fc.FedCM(alpha=0.3), {}),
    (fc.MoFedSAM(rho=0.2, beta=1.0), fc.FedSAM(rho=0.2), {}),
    *[(method, fc.FedAvg(), RICH) for method in (
        fc.Ditto(2.0), fc.APFL(0.7), fc.APFL(0.3, adaptive=True), fc.FedLC(0.0), fc.FedNTD(0.0), fc.FedPer(layers=0),
        fc.FedBABU(layers=0),
    )],
]  # fmt: skip
TO_ROUNDING = [
    *[(method, fc.FedAvg(), {}) for method in (
        fc.FedProx(mu=0.0), fc.FedUp(alpha=0.0), fc.MimeLite(0.0), fc.FedSAM(0.0), fc.FedPVR(()), fc.MOON(0.0),
    )],
    (fc.MOON(5.0), fc.FedAvg(), FIRST),
    (fc.FedNTD(2.0), fc.FedAvg(), STEP),  # where the two models agree
    *[(fc.PerFedAvg(0.0, first_order), fc.FedAvg(), RICH) for first_order in (False, True)],
    (fc.FedNova(), fc.FedAvg(), EQUAL),
    (fc.ProxSkip(1.0), fc.FedSGD(), ALL | {"batch_size": None}),
    (fc.FedPVR("all"), fc.SCAFFOLD("II"), {}),
    (fc.FedSMOO(0.3, rho=0.0), fc.FedDyn(0.3), {}),
    *[(fc.FedSpeed(**without, lam=2.0), fc.FedDyn(0.5), ALL) for without in ({"rho": 0.0}, {"alpha": 0.0})],
]  # fmt: skip


def ends(method, other, path="auto", **options):
    fed = h.network(path=path, model=contrastive)
    a, b = (fc.simulate(m, fed, **NETWORK | options).params for m in (method, other))
    assert not torch.equal(a, fed.x0)
    return a, b


@pytest.mark.parametrize(("method", "other", "options"), SAME_BITS, **by_repr)
def test_a_method_is_another_one_to_the_bit(method, other, options):
    assert torch.equal(*ends(method, other, "batched", **options))


@pytest.mark.parametrize(("method", "other", "options"), TO_ROUNDING, **by_repr)
def test_a_method_is_another_one_to_rounding(method, other, options):
    h.close(*ends(method, other, **options), 1e-12)


def test_the_first_fedup_round_is_fedprox_to_the_bit():
    assert torch.equal(*ends(fc.FedUp(alpha=0.4), fc.FedProx(mu=0.4), **FIRST))


def own_models(method: fc.Method, fed, **options) -> torch.Tensor:
    """The models that the clients use after a run, `[n, d]`."""
    return method.personal(fc.simulate(method, fed, **options).state, fed.layout)


@pytest.mark.parametrize("options", [ALL, RICH | {"server_lr": 1.0}], ids=["plain", "rich"])
@pytest.mark.parametrize("method", [fc.FedPer(layers=2), fc.Ditto(0.0)], ids=repr)
def test_a_method_that_shares_nothing_leaves_every_client_alone(method, options):
    fed = h.network(path="batched")
    one, alone = (own_models(m, fed, **NETWORK | options) for m in (method, fc.LocalOnly()))
    h.close(one, alone, 1e-12)
    assert (one - one.mean(0)).abs().max() > 0.1


def test_a_quadratic_is_one_layer_which_fedper_keeps_personal():
    fed = fc.quadratic(*h.problem(4, 3))
    one, alone = (own_models(m, fed, rounds=4, cohort=2, **FULL) for m in (fc.FedPer(), fc.LocalOnly()))
    h.close(one, alone, 1e-13)


# --- averaging ------------------------------------------------------------------------------------------------------


def test_one_client_is_centralised_sgd_with_torchs_own_optimiser():
    fed = h.network(sizes=(37,))
    x = fed.x0.clone()
    options = {"lr": 0.2, "momentum": 0.8, "weight_decay": 0.01}
    for t in range(3):
        w = torch.nn.Parameter(x.clone())
        sgd = torch.optim.SGD([w], **options)  # a fresh momentum buffer every round
        for inputs, labels in h.batches(fed, 3, t, 0, epochs=2, batch_size=8):
            w.grad = h.gradient(fed.engine.module, w, inputs, labels)
            sgd.step()
        x = w.detach()
    run = fc.simulate(fc.FedAvg(), fed, rounds=3, local_epochs=2, batch_size=8, seed=3, **options)
    h.close(run.params, x, 1e-12)


def test_weighting_by_samples_uses_the_shares_of_the_cohort():
    fed = h.network()
    run = fc.simulate(fc.FedSGD(), fed, rounds=3, cohort=3, lr=0.3, weighting="samples", seed=1)
    x = fed.x0.clone()
    for cohort in run.cohorts:
        pooled = [torch.cat(parts) for parts in zip(*(h.whole(fed, i) for i in cohort), strict=True)]
        x = x - 0.3 * h.gradient(fed.engine.module, x, *pooled)  # p_i = N_i / N_S makes it the pooled gradient
    h.close(run.params, x, 1e-12)


def test_fedsmb_is_centralised_sgd_on_the_union_of_the_clients_batches():
    fed = h.network(sizes=(12, 12, 12))
    x = fed.x0.clone()
    for t in range(8):  # over a whole walk through the data, and into the next
        walk = [h.batches(fed, 2, t, i, steps=1, batch_size=4, walk=True)[0] for i in range(3)]
        inputs, labels = (torch.cat(parts) for parts in zip(*walk, strict=True))
        assert len(labels) == 12
        x = x - 0.3 * h.gradient(fed.engine.module, x, inputs, labels)
    run = fc.simulate(fc.FedSMB(), fed, rounds=8, lr=0.3, batch_size=4, local_steps=9, seed=2)
    h.close(run.params, x, 1e-12)


def test_fedsmb_walks_through_all_data_before_it_repeats_a_sample():
    fed = h.network(sizes=(10, 7))
    for client in (0, 1):
        for walk in range(3):
            rounds = -(-len(fed.index[client]) // 4)
            seen = []
            for t in range(walk * rounds, (walk + 1) * rounds):
                plan = fed.plan(0, t, np.array([client]), steps=1, batch_size=4, walk=True)
                seen += plan.indices[0, 0, : plan.counts[0, 0]].tolist()
            assert sorted(seen) == fed.index[client].tolist()


# --- SCAFFOLD, FedUp ------------------------------------------------------------------------------------------------


def test_scaffold_with_one_step_follows_the_published_path():
    h.close(last(fc.SCAFFOLD("II"), h.golden(), 7, local_steps=1), -0.3951424, 5e-8)  # printed to 7 digits


@pytest.mark.parametrize("cohort", [None, 2])
def test_fedup_is_a_pull_back_plus_a_push_along_the_last_displacement(cohort):
    A, b = h.problem(5, 3)
    alpha, decay = 0.15, 0.9
    run = fc.simulate(
        fc.FedUp(alpha=alpha), fc.quadratic(A, b), rounds=7, cohort=cohort, lr_decay=decay, server_lr=0.8, **FULL
    )
    x = x_prev = np.zeros(3)
    for t, S in enumerate(run.cohorts):
        lr, ends = LR * decay**t, []
        for i in S:
            y = x
            for _ in range(K):
                y = y - lr * A[i] @ (y - b[i]) + alpha * (x - x_prev) - lr * alpha * (y - x)
            ends.append(y)
        x_prev, x = x, x + 0.8 * (np.mean(ends, 0) - x)
    h.close(run.params, x, 1e-12)
    h.close(run.state["x_prev"], x_prev, 1e-12)


# --- places of rest on quadratics -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        fc.FedDC(0.5), fc.FedDyn(1.0), fc.FedDyn(0.1), fc.Mime(0.0), fc.Mime(0.5), fc.Mime(0.9), fc.FedSplit(0.5),
        fc.FedSMOO(1.0, rho=0.0), fc.FedPVR("all"),
    ],
    ids=repr,
)  # fmt: skip
def test_reaches_the_optimum_of_many_quadratics(method):
    A, b = h.problem(4, 3)
    work = {"rounds": 600, **FULL}
    if isinstance(method, fc.FedSplit):  # exact for exact prox steps, of which each leaves at most half the distance
        work = {"rounds": 120, "lr": 0.3, "local_steps": 40}
    h.close(fc.simulate(method, fc.quadratic(A, b), eval_every=600, **work).params, h.optimum(A, b), 1e-8)


def test_fednovas_fixed_point_weighs_clients_equally_whatever_their_steps_and_fedavgs_does_not():
    A, b = h.problem(4, 3)
    steps = [1, 2, 5, 9]
    M = np.eye(3) - np.array([np.linalg.matrix_power(np.eye(3) - LR * a, k) for a, k in zip(A, steps, strict=True)])
    work = {"rounds": 400, "lr": LR, "local_steps": steps, "eval_every": 400}
    nova, avg = (fc.simulate(m, fc.quadratic(A, b), **work).params for m in (fc.FedNova(), fc.FedAvg()))
    h.close(nova, h.optimum(M / np.array(steps)[:, None, None], b), 1e-12)
    h.close(avg, h.optimum(M, b), 1e-12)


@pytest.mark.parametrize(("rho", "alpha"), [(0.0, 1.0), (0.2, 0.5)])
def test_fedspeeds_fixed_point_is_the_optimum_of_the_merged_gradients(rho, alpha):
    """g_2 = A (y + rho g_1 - b): the merged gradient is (A + alpha rho A^2)(y - b), and no drift is left."""
    A, b = h.problem(4, 3)
    M = A + alpha * rho * A @ A
    run = fc.simulate(fc.FedSpeed(rho, alpha, 1.0), fc.quadratic(A, b), rounds=500, eval_every=500, **FULL)
    x = h.optimum(M, b)
    h.close(run.params, x, 1e-10)
    h.close(run.state["g_i"], np.einsum("npq,nq->np", M, x - b), 1e-9)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_fedexp_steps_half_the_number_of_clients_where_updates_are_orthogonal(n):
    fed = fc.quadratic(np.repeat(np.eye(n)[None], n, 0), np.eye(n))  # client i wants the i-th unit vector
    s = 1 - (1 - LR) ** K
    h.close(last(fc.FedExP(eps=1e-14), fed, 1), max(1, n / 2) * s * np.ones(n) / n, 1e-10)


def test_fedexp_keeps_the_iterate_before_for_the_papers_average():
    fed = fc.quadratic(*h.problem(4, 3))
    path = h.trajectory(fc.FedExP(), fed, 5, **FULL)
    assert np.array_equal(fc.simulate(fc.FedExP(), fed, rounds=5, **FULL).state["x_prev"], path[4])


# --- ProxSkip -------------------------------------------------------------------------------------------------------


def test_proxskip_throws_the_same_coins_for_all_clients_and_other_ones_in_every_round():
    fed, p = h.golden(), 0.3
    runs = [h.watched(fc.ProxSkip(p), fed, rounds=12, lr=LR, seed=seed)[1] for seed in (0, 0, 1)]
    first, again, other = (torch.cat([r.K for r, _ in seen], 1) for seen in runs)  # `[clients, rounds]`
    assert (first == first[0]).all()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    drawn = [fc.ProxSkip(p).local_work(Work(t, LR, 0.0, seed=9)).steps for t in range(4000)]
    for k in range(1, 6):
        share = p * (1 - p) ** (k - 1)
        assert abs(drawn.count(k) - 4000 * share) < 4.5 * math.sqrt(4000 * share * (1 - share))
    assert abs(np.mean(drawn) - 1 / p) < 4.5 * math.sqrt(1 - p) / p / math.sqrt(4000)


@pytest.mark.parametrize("p", [0.3, 0.8])
def test_thm_proxskip_rate(p):
    """E Psi_T (1 - rate)^-T <= Psi_0 at each communication T, a stopping time, since this holds in every step."""
    A, b = h.problem(4, 3, low=0.2, high=2)
    x, lr = torch.tensor(h.optimum(A, b)), 1 / np.linalg.eigvalsh(A).max()
    rate = min(lr * np.linalg.eigvalsh(A).min(), p**2)
    rest = torch.tensor(np.einsum("npq,nq->np", A, x - b))  # the clients' gradients at the optimum
    fed, seeds, rounds = fc.quadratic(A, b, x0=3 * np.ones(3)), 60, 8
    scaled = np.zeros((seeds, rounds + 1))
    for seed in range(seeds):
        history, seen = h.watched(fc.ProxSkip(p), fed, rounds=rounds, lr=lr, seed=seed)
        states = [*((r.x, r.h_i) for r, _ in seen), (history.params, history.state["h_i"])]
        steps = np.cumsum([0, *(int(r.K[0]) for r, _ in seen)])
        psi = [4 * (y - x).square().sum() + (lr / p) ** 2 * (v - rest).square().sum() for y, v in states]
        scaled[seed] = np.array([float(v) for v in psi]) / (1 - rate) ** steps
    assert (scaled.mean(0) <= scaled[0, 0] * (1 + 1e-12)).all()


def test_thm_proxskip_rate_is_the_root_of_the_condition_number_in_rounds():
    rng = np.random.default_rng(0)
    A = np.array([np.diag([1.0, 1 / 400, a]) for a in rng.uniform(1 / 400, 1, 5)])
    fed = fc.quadratic(A, rng.normal(size=(5, 3)))

    def distance(method, **options):
        return fc.simulate(method, fed, rounds=600, eval_every=600, **options).final("distance")

    assert distance(fc.ProxSkip(1 / 20), lr=1.0) < 1e-8
    assert distance(fc.FedSGD(), lr=1.0) > 0.1
    assert distance(fc.FedAvg(), lr=1 / 20, local_steps=20) > 0.1  # as many gradients, in steps that drift little


# --- layers and representations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "K", "steps"), [(0.5, 4, 2), (0.5, 5, 3), (0.1, 30, 3), (10 / 11, 11, 10), (0.0, 3, 0), (1.0, 3, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fedrep_trains_the_head_for_its_share_of_the_steps_and_then_the_body(share, K, steps, dtype):
    fed, seen = h.network(dtype=dtype), []
    method, head = fc.FedRep(share=share), fed.layout.last(1).start
    state = fc.start(method, fed)
    _, end = fc.one_round(method, fed, state, 0, local_steps=K, batch_size=4, watch=lambda r, y: seen.append(y.clone()))
    moves = [(a != b) for a, b in zip(seen, [*seen[1:], end.y], strict=True)]
    assert [bool(m[:, head:].any()) for m in moves] == [k < steps for k in range(K)]
    assert [bool(m[:, :head].any()) for m in moves] == [k >= steps for k in range(K)]


@pytest.mark.parametrize("first_order", [False, True])
def test_perfedavg_on_quadratics_is_fedavg_on_their_objectives_after_a_step(first_order):
    """grad F_i(y - alpha grad F_i(y)) is (I - alpha A) A (I - alpha A)(y - b), or without the first factor."""
    A, b = h.problem(4, 3)
    after = np.eye(3) - 0.2 * A
    M = A @ after if first_order else after @ A @ after
    method, fed = fc.PerFedAvg(0.2, first_order), fc.quadratic(A, b)
    path = h.trajectory(method, fed, 6, cohort=3, **FULL)
    h.close(path, h.trajectory(fc.FedAvg(), fc.quadratic(M, b), 6, cohort=3, **FULL), 1e-12)
    way = np.eye(3) - np.array([np.linalg.matrix_power(np.eye(3) - LR * m, K) for m in M])  # to b_i in a round
    h.close(last(method, fed, 400), h.optimum(way, b), 1e-10)
    own = own_models(method, fed, rounds=6, **FULL)
    x = last(method, fed, 5)
    h.close(own, x - 0.2 * np.einsum("npq,nq->np", A, x - b), 1e-12)


def test_apfls_clients_use_the_servers_model_at_alpha_0_and_are_alone_at_alpha_1():
    fed, options = h.network(path="batched"), NETWORK | ALL
    h.close(own_models(fc.APFL(1.0), fed, **options), own_models(fc.LocalOnly(), fed, **options), 1e-12)
    run = fc.simulate(fc.APFL(0.0), fed, **options)
    assert torch.equal(fc.APFL(0.0).personal(run.state, fed.layout), run.params.expand(5, -1))


def test_fedbabu_leaves_the_head_as_it_was_and_trains_all_else():
    fed = h.network()
    head = fed.layout.last(1)
    x = fc.simulate(fc.FedBABU(), fed, **NETWORK | {"weight_decay": 0.1}).params
    assert torch.equal(x[head], fed.x0[head])
    assert (x[: head.start] != fed.x0[: head.start]).double().mean() > 0.9


def test_fedpvr_corrects_all_of_what_is_one_layer():
    fed = h.golden()
    assert torch.equal(*(fc.simulate(fc.FedPVR(layers), fed, rounds=3).params for layers in (None, "all")))
    for net in (nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), nn.Linear(16, 3)):
        fed = h.network(model=net, shape=(16,) if isinstance(net, nn.Linear) else (1, 4, 4))
        assert fc.FedPVR().mask(fed.layout, fed.x0).all()


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


@pytest.mark.parametrize(("method", "kind", "words"), [
    (fc.MOON(), h.network, "no representation layer.*projected"),
    (fc.MOON(), h.golden, "quadratic.*network"),
    (fc.FedPVR(("nope",)), h.network, "'nope'.*3.weight"),
    (fc.FedBABU(layers=2), h.network, "layers=2 but the model has 2.*layers=0"),
    (fc.FedBABU(), h.golden, "the model has 1.*FedAvg"),
    (fc.FedLC(), h.golden, "a quadratic has no.*labels"),
    (fc.FedPVR(("3",)), h.golden, "quadratic.*'all'"),
    (fc.FedSplit(), h.golden, "FedSplit needs all 2 clients.*cohort=1.*cohort=None"),
])  # fmt: skip
def test_federations_that_do_not_suit_a_method_are_refused_with_the_remedy(method, kind, words):
    with pytest.raises(ValueError, match=words):
        fc.simulate(method, kind(), rounds=1, cohort=1)


@pytest.mark.parametrize("base", [fc.FedAvg, fc.HeteroFL])
def test_a_direction_that_is_set_on_the_instance_is_that_of_the_local_steps(base):
    class Still(base):
        def __init__(self):
            super().__init__()
            object.__setattr__(self, "direction", self.none)

        def none(self, G, y, r):
            return torch.zeros_like(y)

    fed = h.network()
    assert torch.equal(fc.simulate(Still(), fed, rounds=1).params, fed.x0)


def test_a_class_cannot_say_that_it_takes_gradients_where_its_direction_would_not_be_called():
    def direction(self, G, y, r):
        return torch.zeros_like(y)

    with pytest.raises(TypeError, match=r"Still.takes_gradients=True.*leave it out.*False"):
        type("Still", (fc.FedAvg,), {"takes_gradients": True, "direction": direction})
    kind = type("Plain", (fc.FedAvg,), {"takes_gradients": False, "cost": fc.FedAvg.cost})
    h.close(*(fc.simulate(m, h.network(), rounds=2, lr=0.1).params for m in (kind(), fc.FedAvg())), 1e-12)


@pytest.mark.parametrize("lost", [{"w": 50.0}, {"c": 50.0}, {"w": 50.0, "c": 50.0, "a": 0.5}])
def test_constants_of_stems_decreasing_rate_are_refused_where_the_rate_is_constant(lost):
    with pytest.raises(ValueError, match="no effect without kappa"):
        fc.STEM(**lost)
    fc.STEM(kappa=0.1, **lost)


# --- Central --------------------------------------------------------------------------------------------------------


def test_central_on_quadratics_is_gradient_descent_on_their_mean():
    A, b = h.problem(4, 3)
    x0, optimum = np.array([1.0, -2.0, 0.5]), h.optimum(A, b)
    fed = fc.quadratic(A, b, x0)
    run = fc.simulate(fc.Central(), fed, rounds=6, cohort=2, **FULL)
    h.close(run.params, optimum + np.linalg.matrix_power(np.eye(3) - LR * A.mean(0), 6 * K) @ (x0 - optimum), 1e-13)
    h.close(run.final("loss"), fed.objective(run.params), 1e-13)  # F of the four, not of a client
    h.close(run.final("distance"), np.linalg.norm(run.params.numpy() - optimum), 1e-13)


@pytest.mark.parametrize("normalise", ["pooled", "half", "client"])
def test_central_does_not_depend_on_how_the_data_were_dealt(normalise):
    images = h.images(60, (1, 4, 4), 3)
    feds = [
        fc.federation(images, clients, partition, h.small_mlp, dtype=torch.float64, normalise=normalise)
        for clients, partition in ((1, fc.IID()), (4, fc.IID()), (6, fc.Dirichlet(0.5)))
    ]
    runs = [fc.simulate(fc.Central(), fed, rounds=3, lr=0.2, batch_size=8, cohort=1) for fed in feds]
    alone = fc.simulate(fc.FedAvg(), feds[0], rounds=3, lr=0.2, batch_size=8)
    for run in runs:
        h.close(run.params, alone.params, 1e-12)
        h.close(run.final("loss"), alone.final("loss"), 1e-12)


def test_central_keeps_public_data_and_a_federation_that_is_pooled_already():
    fed = fc.Central().on(h.network(public=2))
    assert len(fed.public[1]) == 6
    assert fc.Central().on(fed) is fed


def test_a_method_on_the_pooled_quadratic_sees_full_gradients_and_curvature_of_the_mean():
    A, b = h.problem(4, 3)
    pooled = fc.Central().on(fc.quadratic(A, b))
    plan, Y = pooled.plan(0, 0, np.array([0])), torch.tensor([[1.0, 2.0, -1.0]], dtype=torch.float64)
    g = np.einsum("npq,nq->p", A, Y.numpy() - b) / 4
    h.close(pooled.full_gradient(Y, plan)[0], g, 1e-13)
    h.close(pooled.gradient(Y, plan, along=Y)[0], A.mean(0) @ Y[0].numpy(), 1e-13)
    gradient, losses = pooled.gradient_and_losses(Y, plan)
    h.close(gradient[0], g, 1e-13)
    h.close(losses, fc.quadratic(A, b).objective(Y[0])[None], 1e-13)
