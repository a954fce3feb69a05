"""One round is a function: pure, equal to `simulate`, mistakes have names, and a user's methods fit in it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from typing import get_type_hints

import helpers as h
import numpy as np
import pytest
import torch
from battery import METHODS, contrastive, make, needs_a_network
from torch import nn

import fedcore as fc
from fedcore import settings
from fedcore.engine import Loss

WORK = {"lr": 0.1, "batch_size": 4, "seed": 3}
LOCAL = {"weight_decay": 0.01, "clip": 1.0, "momentum": 0.5, "weighting": "samples", "lr_decay": 0.9}


def rounds(method, fed, T, **settings):
    """T rounds by `one_round`, as its docstring says."""
    state = fc.start(method, fed)
    for t in range(T):
        state, seen = fc.one_round(method, fed, state, t, **settings)
    return state, seen


def suited(kind: str) -> list[fc.Method]:
    return [m for m in METHODS if kind == "network" or not needs_a_network(m)]


def cohort_of(method) -> int | None:
    return None if method.full_participation else 3


@pytest.mark.parametrize(("method", "kind"), [(m, k) for k in ("network", "quadratic") for m in suited(k)], ids=repr)
def test_simulate_is_a_loop_over_one_round_to_the_bit(method, kind):
    fed, settings = make(kind), WORK | LOCAL | {"cohort": cohort_of(method)}
    state, _ = rounds(method, fed, 2, **settings)
    history = fc.simulate(method, fed, rounds=2, **settings)
    assert state.keys() == history.state.keys()
    for name, value in history.state.items():
        assert torch.equal(state[name], value), name


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_round_leaves_the_state_that_it_is_given(method):
    fed, settings = make("network"), WORK | {"cohort": cohort_of(method)}
    state, _ = rounds(method, fed, 1, **settings)
    before, visits = {k: v.clone() for k, v in state.items()}, state.visits.copy()
    first, _ = fc.one_round(method, fed, state, 1, **settings)
    assert all(torch.equal(v, before[k]) for k, v in state.items())
    assert np.array_equal(state.visits, visits)
    again, _ = fc.one_round(method, fed, state, 1, **settings)
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
    with pytest.raises(ValueError, match=r"one of FedAvg on .*, not of FedProx on .*updated\(x="):  # of the same names
        fc.one_round(fc.FedProx(), fed, fc.start(fc.FedAvg(), fed), 0)
    with pytest.raises(ValueError, match=r"one of FedAvg on .*, not of FedAvg on .*"):  # of as many clients
        fc.one_round(fc.FedAvg(), h.network(seed=1), fc.start(fc.FedAvg(), fed), 0)
    fc.one_round(fc.FedProx(), fed, fc.start(fc.FedProx(), fed).updated(x=fed.x0), 0, **WORK)
    with pytest.raises(ValueError, match="the state has dict"):
        fc.one_round(fc.FedAvg(), fed, {"x": fed.x0}, 0)
    with pytest.raises(ValueError, match=r"float32 on cpu, the federation torch\.float64"):
        fc.one_round(fc.FedAvg(), fed, fc.start(fc.FedAvg(), fed.to(dtype=torch.float32)), 0)


def test_a_state_takes_no_tensor_that_it_does_not_have():
    fed = h.network()
    state = fc.start(fc.SCAFFOLD(), fed)
    with pytest.raises(TypeError, match="no 'ci'; did you mean 'c_i'"):
        state.updated(x=fed.x0, ci=fed.x0)
    new = state.updated(x=fed.x0 + 1)
    assert torch.equal(new["x"], fed.x0 + 1)
    assert torch.equal(new["c_i"], state["c_i"])


def mine(kind, **hooks) -> fc.Method:
    """A method of the user's with these hooks."""
    return type("Mine", (kind,), hooks)()


def kept(name):
    """A hook that keeps something undeclared: runs would go on elsewhere after a resume."""
    return lambda self, *given: setattr(self, "last", 1) or getattr(fc.FedAvg, name)(self, *given)


FORGET = "declare it as a state in start or client_state"
WRONG = [
    (fc.SCAFFOLD, "direction", lambda s, G, y, r: r.c_i.add_(1), r"wrote to 'c_i', which is no memory .*extended\("),
    (fc.FedAvg, "direction", lambda s, G, y, r: y.sub_(G(y)), r"wrote to 'y', which is no memory .*extended\(memory="),
    (fc.SCAFFOLD, "prepare", lambda s, r: (r.c.add_(1), r)[1], "wrote to 'c', .*compute a new tensor"),
    (fc.FedAvg, "aggregate", lambda s, r, y: {"x": r.mean(y.mul_(2))}, "wrote to 'y', .*compute a new tensor"),
    (fc.FedAvg, "direction", kept("direction"), f"set self.last.*{FORGET}"),
    (fc.FedAvg, "aggregate", kept("aggregate"), f"set self.last.*{FORGET}"),
]


@pytest.mark.parametrize(("kind", "name", "hook", "words"), WRONG)
def test_a_hook_that_writes_to_the_state_or_keeps_something_undeclared_is_refused(kind, name, hook, words):
    method, fed = mine(kind, **{name: hook}), h.network()
    with pytest.raises(ValueError, match=f"Mine.{name} {words}"):
        fc.one_round(method, fed, fc.start(method, fed), 0, **WORK)


@pytest.mark.parametrize(
    ("hook", "kind", "write"),
    [
        ("start", fc.FedAvg, lambda s, x: {"x": x.mul_(2)}),
        ("client_start", fc.SCAFFOLD, lambda s, x: {"c_i": x.zero_()}),
        ("personal", fc.SCAFFOLD, lambda s, state, layout: state["c_i"].mul_(0.5)),
    ],
)
def test_a_hook_outside_the_round_that_writes_to_the_state_is_refused(hook, kind, write):
    fed = h.network()
    before = fed.x0.clone()
    with pytest.raises(ValueError, match=f"Mine.{hook} wrote to '(x|c_i)', .*compute a new tensor"):
        fc.simulate(mine(kind, **{hook: write}), fed, rounds=2, personal=True)
    assert torch.equal(fed.x0, before)


def test_the_autograd_graph_of_what_a_hook_returns_ends_with_the_hook():
    learnt = lambda v: v * torch.ones((), dtype=v.dtype, requires_grad=True)  # noqa: E731
    hooks = {
        "start": lambda s, x: {"x": learnt(x)},
        "client_start": lambda s, x: {"v_i": learnt(x)},
        "broadcast": lambda s, r: learnt(r.x),
        "direction": lambda s, G, y, r: learnt(G(y)),
        "aggregate": lambda s, r, y: {"x": learnt(r.mean(y)), "v_i": learnt(y)},
    }
    method = mine(fc.FedAvg, client_state=("v_i",), **hooks)
    history, plain = (fc.simulate(m, h.golden(), rounds=2) for m in (method, fc.FedAvg()))
    assert not any(v.requires_grad for v in (history.params, *history.state.values()))
    h.close(history.params, plain.params, 1e-12)


class Keeps(fc.FedAvg):
    """Memory in something that the method holds: a dict, a generator, or a network."""

    def __init__(self, write, **held):
        self.write = write
        vars(self).update(held)

    def aggregate(self, r, y):
        self.write(self, r, y)
        return super().aggregate(r, y)


HELD = {
    "dict": (lambda s, r, y: s.held.update({r.t: y}), {}),
    "generator": (lambda s, r, y: s.held.random(), np.random.default_rng(0)),
    "network": (lambda s, r, y: s.held.weight.data.mul_(0.9), nn.Linear(3, 1)),
    "late": (lambda s, r, y: s.held.append(r.t) if r.t == 3 else None, []),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_method_that_writes_to_what_it_holds_is_told_of_once(kind, tmp_path):
    write, held = HELD[kind]
    method = Keeps(write, held=held)
    with pytest.warns(UserWarning, match=f"Keeps changed self.held .*{FORGET}.*resumed run gets other results") as told:
        fc.simulate(method, h.golden(), rounds=5, checkpoint_dir=tmp_path)
    assert len(told) == 1


def test_a_network_that_a_method_reads_is_not_spoken_of():
    reads = Keeps(lambda s, r, y: s.held(torch.ones(3)).detach(), held=nn.Linear(3, 1))
    with warnings.catch_warnings(action="error"):
        fc.simulate(reads, h.golden(), rounds=3)


def test_a_hook_that_takes_other_arguments_is_named_before_the_first_round():
    for hook, words in (
        ({"direction": lambda self, y, r: y}, r"Mine.direction does not take .* write def direction\(self, G, y, r\)"),
        ({"aggregate": 3}, r"Mine.aggregate does not take .*def aggregate\(self, r, y\)"),
    ):
        for call in (lambda m: fc.start(m, h.golden()), lambda m: fc.simulate(m, h.golden(), rounds=1)):
            with pytest.raises(TypeError, match=words):
                call(mine(fc.FedAvg, **hook))


class WritesMemory(fc.FedAvg):
    """The declared way: a sum of the directions so far."""

    across = "sums"

    def prepare(self, r):
        return r.extended(memory={"past": torch.zeros_like(r.x.expand(r.m, -1))})

    def direction(self, G, y, r):
        r.past.add_(G(y))
        return r.past


def test_a_method_may_cache_what_follows_from_its_fields():
    class Caches(fc.FedAvg):
        @functools.cached_property
        def factor(self):
            return 0.5

        def direction(self, G, y, r):
            return self.factor * G(y)

    assert len(fc.simulate(Caches(), h.golden(), rounds=2).params)


def test_a_verb_that_a_mixin_brings_sees_the_rows_of_all_processes():
    median = type("Median", (), {"aggregate": lambda self, r, y: {"x": y.median(0).values}})
    assert type("Robust", (median, fc.FedAvg), {}).across == "rows"
    assert type(mine(fc.FedAvg, direction=lambda self, G, y, r: 0.5 * G(y))).across == fc.FedAvg.across == "sums"


def test_declared_memory_may_be_written_to_and_survives_chunks():
    run = lambda **more: fc.simulate(WritesMemory(), h.network(), rounds=3, **WORK, **more).params  # noqa: E731
    h.close(run(chunk=2), run(), 1e-12)


# --- what a hook may ask for beside local steps ---------------------------------------------------------------------


class PerRow(fc.FedAvg):
    """Moves x by gradients with a pull of each client's own, asked for before and after the steps."""

    across = "sums"

    def pulled(self, r, y):
        weight = 1.0 + r.clients.to(r.p.dtype)
        penalty = lambda z, ref, weight: weight.view(*z.shape[:-2], 1) * (z - ref).square().sum(-1)  # noqa: E731
        references = (r.x + 0.1 * weight[:, None] * torch.ones_like(r.x),)
        loss = Loss(penalty=penalty, references=references, rows={"weight": weight})
        return r.mean(r.gradient(y, 0, loss=loss))

    def prepare(self, r):
        return r.extended(server={"before": self.pulled(r, r.x.expand(r.m, -1))})

    def aggregate(self, r, y):
        return {"x": r.x + r.mean(y - r.x) - 0.01 * r.before - 0.01 * self.pulled(r, y)}


@pytest.mark.parametrize("path", ["batched", "sequential"])
def test_per_row_arguments_outside_local_steps_see_their_own_rows_in_chunks(path):
    fed = h.network(model=contrastive, path=path)
    whole = fc.simulate(PerRow(), fed, rounds=2, **WORK).params
    assert (whole - fc.simulate(fc.FedAvg(), fed, rounds=2, **WORK).params).abs().max() > 1e-4
    h.close(fc.simulate(PerRow(), fed, rounds=2, chunk=2, **WORK).params, whole, 1e-12)


class Remembers(fc.FedAvg):
    """Keeps the clients' losses at the received model, asked for before the steps, and at their own models."""

    client_state = ("before", "after")

    def prepare(self, r):
        return r.extended(rows={"first": r.losses(r.x.expand(r.m, -1))})

    def aggregate(self, r, y):
        ones = torch.ones_like(y)
        return super().aggregate(r, y) | {
            "before": r.first[:, None] * ones,
            "after": r.losses(y)[:, None] * ones,
        }


@pytest.mark.parametrize(("chunk", "batch_size"), [(None, 4), (2, None)])
def test_a_round_knows_its_clients_losses_on_all_their_data(chunk, batch_size):
    fed = h.network()
    run = {"lr": 0.1, "rounds": 1, "local_steps": 2, "batch_size": batch_size, "weight_decay": 0.1}
    state = fc.simulate(Remembers(), fed, chunk=chunk, **run).state
    _, seen = fc.one_round(fc.FedAvg(), fed, fc.start(fc.FedAvg(), fed), 0, **{k: run[k] for k in run if k != "rounds"})
    models = dict(zip(seen.round.ids.tolist(), seen.y, strict=True))
    for i, rows in enumerate(map(list, fed.index)):
        for name, x in (("before", fed.x0), ("after", models[i])):
            loss = nn.functional.cross_entropy(fed.module(x)(fed.x[rows]), fed.y[rows])
            h.close(state[name][i, 0], loss, 1e-12)
    A, b = h.problem()
    state = fc.simulate(Remembers(), fc.quadratic(A, b), rounds=1, lr=0.1, chunk=chunk).state
    h.close(state["before"][:, 0], np.einsum("np,npq,nq->n", b, A, b) / 2, 1e-13)


def test_tools_that_read_code_see_every_setting():
    assert list(get_type_hints(settings.Given)) == [f.name for f in dataclasses.fields(settings.Settings)]
    assert set(get_type_hints(settings.Given)) <= set(inspect.signature(fc.simulate).parameters)
