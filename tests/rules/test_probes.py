"""Probes: what a study of one round measures, and the loss around a point.

Closed forms on quadratics, autograd on networks, and the consensus distance.
"""

from __future__ import annotations

import itertools

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedcore as fc
from fedbook.studies import probing
from fedbook.studies.from_spec import build_federation
from fedcore import probes
from fedcore.engine import Loss

COSINES = ("A, C", "A-B+C, C", "A-B, C", "A, B")
A, B = h.problem(4, 3)
FED = fc.quadratic(A, B)
MEAN = A.mean(0)
TOP = np.linalg.eigvalsh(MEAN)[-1]
BOTH = [probes.zeroth_order_flatness, probes.first_order_flatness]


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_dissimilarity_is_one_plus_the_relative_spread_of_the_clients_gradients(weighting):
    fed = h.network()
    share = np.full(fed.n, 1 / fed.n) if weighting == "uniform" else fed.sizes / fed.sizes.sum()
    who = np.arange(fed.n)
    g = fed.full_gradient(fed.x0.expand(fed.n, -1), fed.plan(0, 0, who, batch_size=None)).numpy()
    mean = share @ g
    spread = share @ ((g - mean) ** 2).sum(1)
    work = {"rounds": 1, "lr": 0.1, "weighting": weighting, "probes": [probes.dissimilarity]}
    found = fc.simulate(fc.FedAvg(), fed, **work).final("dissimilarity")
    assert found == pytest.approx(1 + spread / (mean @ mean), rel=1e-9)


@pytest.mark.parametrize("mime", [False, True])
def test_mime_ablation_is_what_the_equations_give_on_quadratics(mime):
    A_, b = h.problem()
    x, lr = np.array([1.0, -2.0, 0.5]), 0.1
    method = fc.Mime(0.0) if mime else fc.FedAvg()
    fed = fc.quadratic(A_, b)
    found = probes.mime_ablation(method, fed, torch.tensor(x), steps=6, lr=lr, targets=(2, 6))
    grad = lambda i, y: A_[i] @ (y - b[i])  # noqa: E731
    mean = lambda y: np.mean([grad(i, y) for i in range(4)], axis=0)  # noqa: E731
    C = mean(x)
    for i in range(4):
        y = x.copy()
        for k in range(7):
            A, B = grad(i, y), grad(i, x)
            if k:
                expected = cosine(A, C), cosine(A - B + C, C), cosine(A - B, C), cosine(A, B)
                np.testing.assert_allclose([found[name][k - 1, i] for name in COSINES], expected, atol=1e-12)
            if k in (2, 6):
                at, g = (2, 6).index(k), mean(y)
                errors = np.linalg.norm(A - g), np.linalg.norm(A - B + C - g)
                expected = *errors, cosine(A, g), cosine(A - B + C, g), cosine(g, C)
                names = ("A error", "A-B+C error", "A, g", "A-B+C, g", "g, C")
                measured = [found[name][at, i] for name in names]
                np.testing.assert_allclose(measured, expected, atol=1e-12)
            y = y - lr * (A - B + C if mime else A)


def test_mime_ablation_walks_the_path_of_the_simulation_on_a_network():
    fed, seen = h.network(), []

    class Watched(fc.FedAvg):
        def direction(self, G, y, r):
            A, B = G(y), G(r.x.expand_as(y))
            seen.append([A.numpy(), B.numpy(), r.mean(r.full_gradient(r.x.expand_as(y))).numpy()])
            return A

    fc.simulate(Watched(), fed, rounds=1, lr=0.3, local_steps=5, batch_size=4, seed=7)
    found = probes.mime_ablation(fc.FedAvg(), fed, fed.x0, steps=4, lr=0.3, batch_size=4, seed=7)
    for k, (A, B, C) in enumerate(seen[1:]):
        for i in range(fed.n):
            expected = [cosine(A[i], C), cosine(A[i] - B[i] + C, C), cosine(A[i] - B[i], C), cosine(A[i], B[i])]
            np.testing.assert_allclose([found[name][k, i] for name in COSINES], expected, atol=1e-9)


def test_a_cosine_does_not_hang_on_the_length_of_a_gradient_and_is_missing_for_a_zero_one():
    b = torch.tensor([[1.0, 2.0], [-2.0, 1.0]])
    tiny = fc.quadratic(1e-25 * torch.eye(2).expand(2, 2, 2), b)
    found = probes.mime_ablation(fc.FedAvg(), tiny, tiny.x0, steps=2, lr=0.1)
    expected = [cosine(row, b.mean(0).numpy()) for row in b.numpy()]
    np.testing.assert_allclose(found["A, C"], [expected] * 2, atol=1e-6)
    at_rest = fc.quadratic(torch.eye(2).expand(2, 2, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    found = probes.mime_ablation(fc.FedAvg(), at_rest, at_rest.x0, steps=1, lr=0.1)
    np.testing.assert_allclose(found["A, C"], [[np.nan, 1]])


def study(rounds, lr, steps, local_steps=1):
    federation = {"source": "digits", "clients": 4, "model": "thesis_mlp"}
    run = {"rounds": rounds, "lr": lr, "batch_size": 10, "local_steps": local_steps}
    spec = {"method": ["FedAvg", {}], "federation": federation, "run": run, "steps": steps, "pair": "A, C"}
    return probing.mime(spec, 0, None, None)


@pytest.mark.parametrize("layer", [0, 2])
def test_clients_conflict_at_a_neuron_whose_parameters_they_pull_apart(layer):
    federation = {"source": "digits", "clients": 4, "partition": ["Shards", {"classes": 4}], "model": "thesis_mlp"}
    run = {"rounds": 2, "lr": 0.1, "batch_size": 20, "local_steps": 3}
    spec = {"method": ["FedAvg", {}], "federation": federation | {"dtype": "float64"}, "run": run, "layer": layer}
    found, fed = probing.profiles(spec, 0, None, None), build_federation(spec["federation"], 0, None)
    x = fc.simulate(fc.FedAvg(), fed, seed=0, **run).params
    gradients, means = [], []
    for i in range(4):
        module = fed.module(x, i)
        linear = [part for part in module.network if isinstance(part, torch.nn.Linear)][layer]
        seen = []
        linear.register_forward_hook(lambda m, given, out, seen=seen: seen.append(out))
        F.cross_entropy(module(fed.x[fed.index[i]]), fed.y[fed.index[i]]).backward()
        gradients.append(torch.cat([linear.weight.grad, linear.bias.grad[:, None]], 1))
        means.append((seen[0].relu() if layer < 2 else seen[0].softmax(1)).mean(0).detach())
    np.testing.assert_allclose(found["activations"], torch.stack(means), atol=6e-4)
    labels = [np.bincount(fed.y[part], minlength=10) / len(part) for part in fed.index]
    for k, (a, b) in enumerate(itertools.combinations(range(4), 2)):
        inner = (gradients[a] * gradients[b]).sum(1)
        assert found["conflicts"][k] == (inner < 0).int().tolist()
        assert found["apart"][k] == pytest.approx(np.abs(labels[a] - labels[b]).sum() / 2, abs=1e-3)
    assert 0 < np.mean(found["conflicts"]) < 1


def test_a_cosine_of_what_leaves_the_finite_numbers_in_the_run_or_on_local_paths_is_counted_as_diverged():
    for found, after in ((study(3, 1e6, 60, 20), 0), (study(1, 1e10, 60), 1)):
        assert (found["final"], found["diverged"]) == (None, after)


def test_a_local_path_that_leaves_the_finite_numbers_is_named_though_the_others_stay():
    A = torch.stack([torch.eye(2), 3 * torch.eye(2)])  # lr = 1 jumps to client 0's optimum and overshoots client 1's
    fed = fc.quadratic(A, torch.tensor([[1.0, 2.0], [-2.0, 1.0]]))
    with pytest.raises(FloatingPointError, match="client 1 left the finite numbers within steps=2000 with lr=1"):
        probes.mime_ablation(fc.FedAvg(), fed, fed.x0, steps=2000, lr=1.0)


def test_a_step_where_every_gradient_is_zero_is_no_divergence(monkeypatch):
    rest = iter(torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], dtype=torch.bool))
    monkeypatch.setattr(probes, "_cosine", lambda a, b: (a * b).sum(-1).sign().where(next(rest), torch.nan))
    assert [k for k, _ in study(1, 0.1, 3)["history"]] == [1, 3]
    monkeypatch.setattr(probes, "_cosine", lambda a, b: torch.full(a.shape[:1], torch.nan))
    with pytest.raises(ValueError, match="every gradient is zero after 1 rounds"):
        study(1, 0.1, 3)


def test_mime_ablation_keeps_the_order_of_the_cohort():
    work = {"steps": 2, "lr": 0.1}
    there, back = (probes.mime_ablation(fc.FedAvg(), FED, FED.x0, cohort=c, **work) for c in ([0, 1, 2], [2, 1, 0]))
    for name in COSINES:
        np.testing.assert_allclose(there[name], back[name][:, ::-1], atol=1e-12)


def test_mime_ablation_continues_from_the_servers_momentum():
    momentum = {"s": torch.ones(3, dtype=torch.float64)}
    work = {"steps": 3, "lr": 0.1}
    cold, warm = (probes.mime_ablation(fc.Mime(0.9), FED, FED.x0, state=s, **work)["A, C"] for s in (None, momentum))
    assert abs(cold - warm).max() > 1e-3


@pytest.mark.parametrize(("wrong", "word"), [
    ({"cohort": [0, 9]}, "cohort"), ({"cohort": [1, 1]}, "cohort"), ({"targets": [4]}, "targets"),
    ({"x": torch.zeros(2)}, "x has shape"),
])  # fmt: skip
def test_mime_ablation_refuses_what_does_not_exist(wrong, word):
    with pytest.raises(ValueError, match=word):
        probes.mime_ablation(fc.FedAvg(), FED, **{"x": FED.x0, "steps": 3, "lr": 0.1} | wrong)


def test_the_gap_is_that_of_two_runs_with_one_client():
    fed = fc.federation("digits", clients=6, partition=fc.Shards(2), model="thesis_mlp", dtype=torch.float64)
    work = {"rounds": 1, "cohort": 1, "lr": 0.1, "weight_decay": 0.01, "momentum": 0.9, "seed": 3}
    whole, half = (
        fc.simulate(fc.HeteroFL(r, labels="zero"), fed, probes=[probes.submodel_gap("zero", 0.9)], **work)
        for r in (1.0, 0.5)
    )
    apart, client = whole.params - half.params, half.cohorts[0][0]  # the server takes over the client's update
    assert half.final("gap", client) == pytest.approx(float(apart.norm()), rel=1e-9)
    assert half.final("sum_gap", client) == pytest.approx(abs(float(apart.sum())), rel=1e-9)


@pytest.mark.parametrize(("method", "run"), [
    (fc.HeteroFL({1: 0.5, 0.5: 0.5}, labels="-inf", training="masked"), {}), (fc.FedRolex(0.5), {"momentum": 0.9}),
    (fc.DepthFL({1: 0.5, 0.5: 0.5}, labels="zero"), {"momentum": 0.5}),
], ids=repr)  # fmt: skip
def test_the_gap_has_the_labels_and_the_momentum_of_the_run_unless_others_are_given(method, run):
    fed = fc.federation("digits", clients=5, partition=fc.Shards(2), model="thesis_mlp")
    work = {"rounds": 1, "lr": 0.1, "local_steps": 2, "progress": False, **run}
    told, other = {"labels": method.labels, "momentum": run.get("momentum", 0.0)}, {"momentum": 0.7}
    found, wanted, different = (
        fc.simulate(method, fed, probes=[probes.submodel_gap(**given)], **work).frame().query("metric == 'length'")
        for given in ({}, told, other)
    )
    assert (found["value"] == wanted["value"]).all()
    assert (found["value"] != different["value"]).all()


def test_the_gap_of_a_run_with_a_loss_of_its_own_needs_labels():
    class Own(fc.HeteroFL):
        def prepare(self, r):
            r = super().prepare(r)
            return r.extended(loss=Loss(lambda logits, y: logits.square().sum(-1)))

    fed = fc.federation("digits", clients=4, model="thesis_mlp")
    with pytest.raises(ValueError, match=r"loss of its own.*submodel_gap\(labels=...\)"):
        fc.simulate(Own(0.5), fed, rounds=1, progress=False, probes=[probes.submodel_gap()])


@pytest.mark.parametrize("other", [fc.HeteroFL(0.5), fc.FedAvg()], ids=repr)
def test_a_method_without_masks_cannot_be_compared_by_its_gap(other):
    with pytest.raises(ValueError, match=r"others\['one'\]=.*training='masked'"):
        probes.submodel_gap(others={"one": other})


def test_submodels_that_share_no_neuron_share_the_classifiers_bias_alone_and_do_not_conflict():
    fed = h.network(sizes=(13, 7))  # 16 inputs, 8 hidden neurons, 3 classes
    scores = torch.arange(8, dtype=torch.float64)
    found = probes.submodel_conflict(fed, fed.x0, [torch.stack([scores, -scores])], 0.5)
    assert found["shared"][0, 1] == pytest.approx(3 / (16 * 4 + 4 + 4 * 3 + 3))
    assert found["cosine"][0, 1] == 0
    assert torch.diagonal(found["shared"]).tolist() == [1, 1]


def test_submodels_of_all_neurons_are_the_model():
    fed = h.network()
    found = probes.submodel_conflict(fed, fed.x0, [torch.zeros(fed.n, 8, dtype=torch.float64)], 1.0)
    G, losses = [], []
    for inputs, labels in (h.whole(fed, i) for i in range(fed.n)):
        G.append(h.gradient(fed.engine.module, fed.x0, inputs, labels)[:-3])  # without the classifier's bias
        logits = torch.func.functional_call(fed.engine.module, fed.layout.views(fed.x0), (inputs,))
        losses.append(F.cross_entropy(logits, labels).detach())
    expected = torch.stack([torch.cosine_similarity(g, torch.stack(G), dim=1) for g in G])
    torch.testing.assert_close(found["cosine"], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["loss"], torch.stack(losses), rtol=1e-12, atol=0)
    assert (found["shared"] == 1).all()


def test_masks_of_other_methods_are_compared_on_the_same_models_and_batches():
    """A method beside itself has its own gap, the whole network none, and the run is not disturbed."""
    levels = {"capacities": {1.0: 0.5, 0.5: 0.5}, "labels": "zero", "training": "masked"}
    fed = fc.federation("digits", 6, fc.Shards(2), "thesis_mlp", dtype=torch.float64, public=2)
    others = {"itself": fc.FedGSE(**levels), "whole": fc.HeteroFL(1.0, labels="zero", training="masked")}
    work = {"rounds": 2, "lr": 0.1, "local_steps": 3, "batch_size": 10, "seed": 0}
    h = fc.simulate(fc.FedGSE(**levels), fed, probes=[probes.submodel_gap("zero", others=others)], **work)
    found = h.frame().groupby("metric")["value"].apply(np.array)
    np.testing.assert_allclose(found["gap itself"], found["gap"], rtol=1e-12, atol=1e-14)
    assert (found["gap whole"] == 0).all()
    assert (found["length"] > 0).all()
    assert torch.equal(h.params, fc.simulate(fc.FedGSE(**levels), fed, **work).params)


# --- flatness, segments and slices ----------------------------------------------------------------------------------


def test_at_the_minimum_of_a_quadratic_both_are_the_largest_curvature():
    rho = 0.3
    zeroth, first = (f(FED, FED.optimum, rho, steps=300) for f in BOTH)
    h.close(zeroth["ascent"], TOP * rho**2 / 2, 1e-10)
    h.close(first["ascent"], TOP * rho**2, 1e-10)
    assert zeroth["mean"] < zeroth["sampled"] < zeroth["ascent"]
    assert first["mean"] < first["sampled"] < first["ascent"]


def test_the_mean_over_the_sphere_is_the_trace_of_the_hessian():
    rho, samples = 0.3, 4000
    found = probes.zeroth_order_flatness(FED, FED.optimum, rho, samples=samples, steps=0)
    spread = rho**2 / 2 * (TOP - np.linalg.eigvalsh(MEAN)[0]) / 2  # no larger than half the range
    assert abs(found["mean"] - rho**2 / 2 * np.trace(MEAN) / 3) < 5 * spread / samples**0.5


@pytest.mark.parametrize("flatness", BOTH)
def test_ascent_finds_the_maximum_over_the_sphere_away_from_the_minimum(flatness):
    x, rho = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64), 0.5
    directions = np.random.default_rng(0).normal(size=(200_000, 3))
    e = rho * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    slope = MEAN @ (x.numpy() - FED.optimum.numpy())
    rise = e @ slope + np.einsum("np,pq,nq->n", e, MEAN, e) / 2
    steep = rho * np.linalg.norm(slope + e @ MEAN, axis=1)
    best = (rise if flatness is BOTH[0] else steep).max()
    found = flatness(FED, x, rho, steps=60)["ascent"]
    assert best <= found <= best * (1 + 1e-3)


def test_a_network_is_measured_on_the_mean_of_its_clients_training_losses():
    fed = h.network()
    x, rho = fed.x0, 0.2
    named = [tuple(h.whole(fed, i)) for i in range(5)]

    def objective(flat):
        parts = fed.engine.layout.views(flat)
        call = torch.func.functional_call
        return sum(F.cross_entropy(call(fed.engine.module, parts, (inputs,)), y) for inputs, y in named) / 5

    for flatness in BOTH:
        a, b = (flatness(f, x, rho, samples=3, steps=3) for f in (fed, objective))
        for k in a:
            h.close(a[k], b[k], 1e-9)


def test_one_seed_gives_one_measurement():
    a, b, c = (probes.zeroth_order_flatness(FED, FED.optimum, 0.1, steps=0, seed=s) for s in (1, 1, 2))
    assert a == b
    assert a["mean"] != c["mean"]


def test_the_loss_along_a_segment_of_a_quadratic_is_a_parabola():
    a, b = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    s, values = probes.loss_along(FED, a, b, points=11)
    assert (s[0], s[-1], len(s)) == (0, 1, 11)
    h.close(values[[0, -1]], [FED.objective(a), FED.objective(b)], 1e-14)
    h.close(np.diff(values, 2), (b.numpy() @ MEAN @ b.numpy()) * 0.01, 1e-12)
    with pytest.raises(ValueError, match=r"points=1 .*points>=2"):
        probes.loss_along(FED, a, b, points=1)


def test_the_loss_on_a_slice_has_s_along_columns_and_t_along_rows():
    x = torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    u, v = torch.eye(3, dtype=torch.float64)[:2]
    s, grid = probes.loss_slice(FED, x, u, v, radius=2.0, points=5)
    assert s.tolist() == [-2, -1, 0, 1, 2]
    for i, j in ((0, 0), (1, 4), (3, 2)):
        h.close(grid[i, j], FED.objective(x + s[j] * u + s[i] * v), 1e-14)


def test_consensus_is_the_mean_distance_to_the_mean_before_and_after_local_work():
    fed, seen = fc.quadratic(*h.problem(5, 3)), []
    options = {"lr": 0.1, "local_steps": 3, "probes": [probes.consensus, lambda r, y: seen.append((r.X, y)) or {}]}
    history = fc.simulate(fc.DFedAvg(fc.Ring()), fed, rounds=3, **options)
    for name, which in (("consensus", 0), ("consensus_local", 1)):
        rows = [pair[which].numpy() for pair in seen]
        spread = [np.linalg.norm(Z - Z.mean(0), axis=1).mean() for Z in rows]
        h.close(history.curve(name)[1], spread, 1e-13)
    assert history.curve("consensus")[1][0] == 0  # all start alike
    server = fc.simulate(fc.FedAvg(), fed, rounds=3, **options | {"probes": [probes.consensus]})
    assert (server.curve("consensus")[1] == 0).all()
    assert (server.curve("consensus_local")[1] > 0).all()
