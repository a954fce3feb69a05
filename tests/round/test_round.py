"""One round is a function: pure, equal to `simulate`, mistakes have names, and a user's methods fit in it."""

from __future__ import annotations

import functools
import math

import helpers as h
import numpy as np
import pytest
import torch
from battery import METHODS, make, same
from torch import nn

import fedcore as fc
from fedcore.engine import Loss

WORK = {"lr": 0.1, "batch_size": 4, "seed": 3}
LOCAL = {"weight_decay": 0.01, "clip": 1.0, "momentum": 0.5, "weighting": "samples", "lr_decay": 0.9}


def rounds(method, fed, T, **settings):
    """T rounds by `one_round`, as its docstring says."""
    state = fc.start(method, fed)
    for t in range(T):
        state, seen = fc.one_round(method, fed, state, t, **settings)
    return state, seen


SUITED = pytest.mark.parametrize(
    ("method", "kind"),
    [(m, "network") for m in METHODS]
    + [(m, "quadratic") for m in METHODS if not isinstance(m, fc.MOON) and getattr(m, "smallest", 1) == 1],
    ids=repr,
)


def cohort_of(method) -> int | None:
    return None if method.full_participation else 3


@SUITED
@pytest.mark.parametrize("more", [{}, LOCAL], ids=["plain", "with decay, clip and momentum"])
def test_simulate_is_a_loop_over_one_round_to_the_bit(method, kind, more):
    fed, settings = make(kind), WORK | more | {"cohort": cohort_of(method)}
    state, _ = rounds(method, fed, 3, **settings)
    history = fc.simulate(method, fed, rounds=3, **settings)
    assert state.keys() == history.state.keys()
    for name, value in history.state.items():
        assert torch.equal(state[name], value), name


@SUITED
def test_a_round_leaves_the_state_that_it_is_given(method, kind):
    fed, settings = make(kind), WORK | {"cohort": cohort_of(method)}
    state, _ = rounds(method, fed, 2, **settings)
    before, visits = {k: v.clone() for k, v in state.items()}, state.visits.copy()
    first, _ = fc.one_round(method, fed, state, 2, **settings)
    assert all(torch.equal(v, before[k]) for k, v in state.items())
    assert np.array_equal(state.visits, visits)
    again, _ = fc.one_round(method, fed, state, 2, **settings)
    assert all(torch.equal(v, again[k]) for k, v in first.items())


def test_what_a_round_saw():
    fed = h.network()
    state, seen = fc.one_round(fc.FedAvg(), fed, fc.start(fc.FedAvg(), fed), 0, cohort=[4, 1, 2], **WORK)
    assert seen.cohort == [1, 2, 4]
    assert sorted(seen.round.clients.tolist()) == [1, 2, 4]
    assert seen.y.shape == (3, fed.d)
    h.close(seen.y.mean(0), state["x"], 1e-12)
    assert state.visits.tolist() == [0, 1, 1, 0, 1]


def test_a_watch_sees_every_local_step_and_changes_nothing():
    fed, steps = h.network(), []
    method = fc.SCAFFOLD()
    state = fc.start(method, fed)
    plain, _ = fc.one_round(method, fed, state, 0, **WORK)
    seen, _ = fc.one_round(method, fed, state, 0, watch=lambda r, y: steps.append((r.step, len(y))), **WORK)
    assert steps == [(0, 5), (1, 4), (2, 3), (3, 2), (4, 1)]  # sizes 20, 13, 9, 7, 4 in batches of 4: 5, 4, 3, 2, 1
    assert torch.equal(plain["x"], seen["x"])


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_a_state_of_another_method_or_federation_is_refused():
    fed = h.network()
    with pytest.raises(ValueError, match=r"has \{'x': .*but SCAFFOLD.*'c_i'.*fc.start"):
        fc.one_round(fc.SCAFFOLD(), fed, fc.start(fc.FedAvg(), fed), 0)
    with pytest.raises(ValueError, match=r"fc.start\(method, fed\)"):
        fc.one_round(fc.SCAFFOLD(), h.network(sizes=(5, 5)), fc.start(fc.SCAFFOLD(), fed), 0)
    with pytest.raises(ValueError, match=r"one of FedAvg on .*, not of FedProx on .*updated\(x="):  # of the same names
        fc.one_round(fc.FedProx(), fed, fc.start(fc.FedAvg(), fed), 0)
    with pytest.raises(ValueError, match=r"one of FedAvg on .*, not of FedAvg on .*"):  # of as many clients
        fc.one_round(fc.FedAvg(), h.network(seed=1), fc.start(fc.FedAvg(), fed), 0)
    fc.one_round(fc.FedProx(), fed, fc.start(fc.FedProx(), fed).updated(x=fed.x0), 0, **WORK)
    with pytest.raises(ValueError, match="the state has dict"):
        fc.one_round(fc.FedAvg(), fed, {"x": fed.x0}, 0)
    with pytest.raises(ValueError, match=r"float32 on cpu, the federation torch\.float64"):
        fc.one_round(fc.FedAvg(), fed, fc.start(fc.FedAvg(), fed.to(dtype=torch.float32)), 0)


def test_settings_of_a_round_are_checked_as_those_of_a_run():
    fed = h.golden()
    state = fc.start(fc.FedAvg(), fed)
    for wrong, message in (
        ({"lr": -1}, "lr=-1 is out of range"),
        ({"cohort": 3}, "cohort=3 but the federation has 2 clients"),
        ({"cohort": [0, 0]}, "use different clients from 0 to 1"),
        ({"cohort": [2]}, "cohort: client=2 is out of range"),
        ({"cohort": []}, "use different clients"),
    ):
        with pytest.raises(ValueError, match=message):
            fc.one_round(fc.FedAvg(), fed, state, 0, **wrong)
    with pytest.raises(ValueError, match="needs all 2 clients"):
        fc.one_round(fc.DFedAvg(), fed, fc.start(fc.DFedAvg(), fed), 0, cohort=1)


class WrongSignature(fc.Method):
    def direction(self, y, r):
        return y


class NoFunction(fc.Method):
    aggregate = 3


def test_a_hook_that_takes_other_arguments_is_named_before_the_first_round():
    for call in (lambda m: fc.start(m, h.golden()), lambda m: fc.simulate(m, h.golden(), rounds=1)):
        with pytest.raises(
            TypeError, match=r"WrongSignature.direction does not take .* write def direction\(self, G, y, r\)"
        ):
            call(WrongSignature())
        with pytest.raises(TypeError, match=r"NoFunction.aggregate does not take .*def aggregate\(self, r, y\)"):
            call(NoFunction())


class WritesState(fc.SCAFFOLD):
    def direction(self, G, y, r):
        r.c_i.add_(1)
        return G(y)


class WritesServer(fc.FedAvg):
    def direction(self, G, y, r):
        r.x.mul_(2)
        return G(y)


class WritesIterates(fc.FedAvg):
    def direction(self, G, y, r):
        return y.sub_(G(y))


class WritesMemory(fc.FedAvg):
    """The declared way: a sum of the directions so far."""

    across = "sums"

    def prepare(self, r):
        return r.extended(memory={"past": torch.zeros_like(r.x.expand(r.m, -1))})

    def direction(self, G, y, r):
        r.past.add_(G(y))
        return r.past


@pytest.mark.parametrize(("method", "name"), [(WritesState(), "c_i"), (WritesServer(), "x"), (WritesIterates(), "y")])
def test_a_direction_that_writes_to_what_is_no_memory_is_refused(method, name):
    with pytest.raises(ValueError, match=rf"direction wrote to '{name}', which is no memory .*r.extended\(memory="):
        fc.simulate(method, h.network(), rounds=2, **WORK)


class WritesModel(fc.FedAvg):
    def aggregate(self, r, y):
        return {"x": r.x.add_(r.mean(y - r.x))}


class WritesControl(fc.SCAFFOLD):
    def prepare(self, r):
        r.c.add_(1)
        return super().prepare(r)


class WritesLast(fc.FedAvg):
    def aggregate(self, r, y):
        return {"x": r.mean(y.mul_(2))}


@pytest.mark.parametrize(
    ("method", "hook", "name"),
    [(WritesModel(), "aggregate", "x"), (WritesControl(), "prepare", "c"), (WritesLast(), "aggregate", "y")],
)
def test_a_hook_that_writes_to_the_state_is_refused_and_the_state_stays_as_it_was(method, hook, name):
    with pytest.raises(ValueError, match=rf"{hook} wrote to '{name}', .*compute a new tensor"):
        fc.one_round(method, h.network(), fc.start(method, h.network()), 0, **WORK)


class KeepsInDirection(fc.FedAvg):
    def direction(self, G, y, r):
        self.last = G(y)
        return self.last


class KeepsInAggregate(fc.FedAvg):
    kept = 0

    def aggregate(self, r, y):
        self.kept = self.kept + 1
        return super().aggregate(r, y)


@pytest.mark.parametrize(("method", "what"), [(KeepsInDirection, "direction set self.last"),
                                              (KeepsInAggregate, "aggregate set self.kept")])  # fmt: skip
def test_a_method_that_keeps_something_undeclared_is_refused(method, what):
    """Runs would go on elsewhere after a resume, and differ between one process and several."""
    with pytest.raises(ValueError, match=f"{what}.*declare it as a state in start or client_state"):
        fc.simulate(method(), h.golden(), rounds=2)


def test_a_method_may_cache_what_follows_from_its_fields():
    class Caches(fc.FedAvg):
        @functools.cached_property
        def factor(self):
            return 0.5

        def direction(self, G, y, r):
            return self.factor * G(y)

    assert len(fc.simulate(Caches(), h.golden(), rounds=2).params)


def test_a_verb_that_a_mixin_brings_sees_the_rows_of_all_processes():
    class Median:
        def aggregate(self, r, y):
            return {"x": y.median(0).values}

    class Robust(Median, fc.FedAvg):
        pass

    class Slower(fc.FedAvg):
        def direction(self, G, y, r):
            return 0.5 * G(y)

    assert (Robust.across, Slower.across, fc.FedAvg.across) == ("rows", "sums", "sums")


def test_declared_memory_may_be_written_to_and_survives_chunks():
    run = lambda **more: fc.simulate(WritesMemory(), h.network(), rounds=3, **WORK, **more).params  # noqa: E731
    h.close(run(chunk=2), run(), 1e-12)


def test_a_name_that_the_round_does_not_have_is_said_with_those_it_has():
    class Asks(fc.SCAFFOLD):
        def direction(self, G, y, r):
            return G(y) - r.c_j

    with pytest.raises(
        AttributeError, match=r"the round has no 'c_j'; states and what prepare\(\) added are: c, c_i, x"
    ):
        fc.simulate(Asks(), h.golden(), rounds=1)


def test_a_state_may_not_have_a_name_of_the_round():
    class Takes(fc.FedAvg):
        def start(self, x):
            return {"x": x, "m": torch.zeros_like(x)}

    with pytest.raises(ValueError, match="Takes has a state 'm', which is a name of the round; use another"):
        fc.simulate(Takes(), h.golden(), rounds=1)


# --- per-row arguments outside local steps, in chunks ----------------------------------------------------------------


class PerRow(fc.FedAvg):
    """Moves x by gradients whose loss, penalty or rate is each client's own, asked for before and after the steps."""

    across = "sums"

    def __init__(self, kind):
        self.kind = kind

    def own(self, r):
        weight = 1.0 + r.clients.to(r.p.dtype)
        if self.kind == "loss":
            size = lambda logits, y, weight: weight.view(*y.shape[:-1], 1) * logits.square().sum(-1)  # noqa: E731
            return Loss(size, rows={"weight": weight})
        if self.kind == "penalty":
            references = (r.x + 0.1 * weight[:, None] * torch.ones_like(r.x),)
            return Loss(
                penalty=lambda z, ref, weight: weight.view(*z.shape[:-2], 1) * (z - ref).square().sum(-1),
                references=references,
                rows={"weight": weight},
            )
        return Loss(rate=weight)

    def prepare(self, r):
        return r.extended(server={"before": r.mean(r.gradient(r.x.expand(r.m, -1), 0, loss=self.own(r)))})

    def aggregate(self, r, y):
        after = r.mean(r.gradient(y, 0, loss=self.own(r)))
        return {"x": r.x + r.mean(y - r.x) - 0.01 * r.before - 0.01 * after}


def scaled(shape, classes) -> nn.Module:
    """A network with a representation and a scaler, for all three kinds."""
    layers = [nn.Flatten(), nn.Linear(16, 8), fc.models.Scaler(), nn.Tanh(), nn.Linear(8, 6)]
    return fc.models.Projected(nn.Sequential(*layers), nn.Linear(6, classes))


@pytest.mark.parametrize("kind", ["loss", "penalty", "rate"])
@pytest.mark.parametrize("path", ["batched", "sequential"])
def test_per_row_arguments_outside_local_steps_see_their_own_rows_in_chunks(kind, path):
    fed = h.network(model=scaled, path=path)
    whole = fc.simulate(PerRow(kind), fed, rounds=2, **WORK).params
    assert (whole - fc.simulate(fc.FedAvg(), fed, rounds=2, **WORK).params).abs().max() > 1e-4
    for chunk in (1, 2, 3):
        h.close(fc.simulate(PerRow(kind), fed, rounds=2, chunk=chunk, **WORK).params, whole, 1e-12)


# --- methods of a user's own ------------------------------------------------------------------------------------------


class FedNova(fc.Method):
    """Normalised averaging (Wang et al. 2020): the mean of d_i = (x - y_i) / (K_i lr), times the mean K_i."""

    def aggregate(self, r, y):
        d = (r.x - y) / r.K
        return {"x": r.x - r.server_lr * r.mean(r.K) * r.mean(d)}


class FedExP(fc.Method):
    """Extrapolation (Jhunjhunwala et al. 2023): eta_g = max(1, sum ||delta_i||^2 / (2 m (||mean delta||^2 + eps)))."""

    eps = 0.001

    def aggregate(self, r, y):
        delta = y - r.x
        mean = r.mean(delta)
        size = r.mean(delta.square().sum(1))
        return {"x": r.x + torch.clamp(size / (2 * (mean.square().sum() + self.eps)), min=1.0) * mean}


class FedAdam(fc.Method):
    """Adam at the server (Reddi et al. 2021), without bias correction."""

    beta1, beta2, tau = 0.9, 0.99, 0.001

    def start(self, x):
        return {"x": x, "first": torch.zeros_like(x), "second": torch.full_like(x, self.tau**2)}

    def aggregate(self, r, y):
        delta = r.mean(y - r.x)
        m = self.beta1 * r.first + (1 - self.beta1) * delta
        v = self.beta2 * r.second + (1 - self.beta2) * delta**2
        return {"x": r.x + r.server_lr * m / (v.sqrt() + self.tau), "first": m, "second": v}


def local(A, b, x, K, lr):
    y = x.copy()
    for _ in range(K):
        y = y - lr * (A @ (y - b))
    return y


@pytest.mark.parametrize("kind", [FedNova, FedExP, FedAdam])
def test_a_users_method_of_a_few_lines_is_its_equation(kind):
    A, b = h.problem()
    fed, x, lr, K = fc.quadratic(A, b), np.zeros(3), 0.1, 3
    got = fc.simulate(kind(), fed, rounds=5, lr=lr, local_epochs=K).params
    m, v = np.zeros(3), np.full(3, 0.001**2)
    for _ in range(5):
        delta = np.stack([local(A[i], b[i], x, K, lr) - x for i in range(4)])
        if kind is FedNova:
            x = x + K * (delta / K).mean(0)
        elif kind is FedExP:
            scale = (delta**2).sum(1).mean() / (2 * ((delta.mean(0) ** 2).sum() + 0.001))
            x = x + max(1.0, scale) * delta.mean(0)
        else:
            m, v = 0.9 * m + 0.1 * delta.mean(0), 0.99 * v + 0.01 * delta.mean(0) ** 2
            x = x + m / (np.sqrt(v) + 0.001)
    h.close(got, x, 1e-12)


def test_a_users_method_with_unequal_clients_sees_their_numbers_of_steps():
    fed, seen = h.network(), []

    class Looks(FedNova):
        def aggregate(self, r, y):
            seen.append(r.K[:, 0].tolist())
            return super().aggregate(r, y)

    history = fc.simulate(Looks(), fed, rounds=1, **WORK)
    assert seen == [[math.ceil(n / 4) for n in (20, 13, 9, 7, 4)]]
    assert not same(history, fc.simulate(fc.FedAvg(), fed, rounds=1, **WORK))
