"""Probes of the loss around a point: closed forms on quadratics, autograd on networks, and the consensus distance."""

from __future__ import annotations

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedcore as fc
from fedcore import probes

A, B = h.problem(4, 3)
FED = fc.quadratic(A, B)
MEAN = A.mean(0)
TOP = np.linalg.eigvalsh(MEAN)[-1]
BOTH = [probes.zeroth_order_flatness, probes.first_order_flatness]


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


@pytest.mark.parametrize("x", [0.0, 0.5, -2.0])
def test_in_one_dimension_the_sphere_is_two_points(x):
    a, rho = 2.0, 0.1
    fed = fc.quadratic([[[a]]], [[0.0]])
    zeroth, first = (f(fed, torch.tensor([x], dtype=torch.float64), rho) for f in BOTH)
    h.close(zeroth["ascent"], a / 2 * ((abs(x) + rho) ** 2 - x**2), 1e-12)
    h.close(first["ascent"], rho * a * (abs(x) + rho), 1e-12)


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


def test_flatness_of_a_function_is_that_of_the_federation_that_has_it():
    x = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    for flatness in BOTH:
        a, b = (flatness(f, x, 0.2, samples=5, steps=4) for f in (FED, FED.objective))
        assert a.keys() == b.keys() == {"mean", "sampled", "ascent"}
        for k in a:
            h.close(a[k], b[k], 1e-12)


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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rho": 0}, ValueError, "rho=0 .*rho > 0"),
        ({"rho": -1.0}, ValueError, "rho=-1 .*rho > 0"),
        ({"rho": 0.1, "samples": 0}, ValueError, "samples=0 .*samples>=1"),
        ({"rho": 0.1, "steps": -1}, ValueError, "steps=-1 .*steps>=0"),
    ],
)
def test_wrong_radii_and_counts_are_refused(options, error, message):
    for flatness in BOTH:
        with pytest.raises(error, match=message):
            flatness(FED, FED.optimum, **options)


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


def test_everyone_a_neighbour_means_consensus_after_every_round():
    fed = fc.quadratic(*h.problem(5, 3))
    history = fc.simulate(fc.DFedAvg(fc.Complete()), fed, rounds=3, lr=0.1, probes=[probes.consensus])
    assert history.curve("consensus")[1].max() < 1e-15
