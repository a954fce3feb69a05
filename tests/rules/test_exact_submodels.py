"""The sub-model methods in their limits, and what of them no loop of its own shows; float64.

Whole rounds of every method are compared in `test_reference`, and the theorems of the chapters in `test_theorems_*`.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from types import SimpleNamespace

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import LEVELS, NARROWED, preact
from torch import nn

import fedcore as fc
from fedcore import models, submodels
from fedcore.algorithms.nested import DepthFL
from fedcore.algorithms.submodels import own_labels
from fedcore.submodels import Neurons, multihead

SIZES = (13, 7, 20, 14, 9, 11)
SGD = {"rounds": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 2}
RUN = SGD | {"momentum": 0.5, "clip": 1.0, "weight_decay": 1e-3}
BRIEF = RUN | {"rounds": 2, "local_epochs": 1}
WHOLE = [
    fc.HeteroFL(1), fc.FjORD(1), fc.FederatedDropout(1), fc.FedRolex(1), fc.DepthFL(1, alpha=0), fc.FedDSE(1),
    fc.FedDSE(1, 1.0), fc.FedGSE(1), fc.FedGSE(1, "SPL"), fc.HeteroFL(1, training="masked"),
]  # fmt: skip
NARROW = [
    fc.HeteroFL(LEVELS), fc.FederatedDropout(LEVELS), fc.FedRolex(LEVELS, labels="-inf"), fc.FedDSE(LEVELS),
    fc.FedDSE(LEVELS, 1.0, 6, labels="zero"), fc.FedGSE(LEVELS, public=1),
    fc.FedGSE(LEVELS, "SPL", 1, 4, scoring="absolute-before"), fc.HeteroFL(LEVELS, mode="dynamic"),
]  # fmt: skip
PARTS = [
    *NARROW, fc.FjORD(LEVELS), fc.FjORD(LEVELS, distil=False, labels="zero"), fc.DepthFL(LEVELS),
    fc.DepthFL({1: 0.5, 0.3: 0.5}, labels="zero", alpha=0),
]  # fmt: skip
methods = lambda given: pytest.mark.parametrize("method", given, ids=lambda m: repr(m).replace(" ", ""))  # noqa: E731


def federation(model="thesis_mlp", sizes=SIZES, classes=5, **options):
    return h.network(sizes=sizes, shape=(1, 8, 8), classes=classes, model=NARROWED.get(model, model), **options)


def seen(method, fed, **options) -> list:
    """The rounds that a probe is shown."""
    rounds = []
    fc.simulate(method, fed, probes=[lambda r, y: rounds.append(r) or {}], **options)
    return rounds


# --- limits -------------------------------------------------------------------------------------------------------


@methods(WHOLE)
@pytest.mark.parametrize("model", ["thesis_mlp", "thesis_cnn_small", "quadratic"])
def test_capacity_one_is_fedavg_bit_for_bit(method, model):
    fed = fc.quadratic(*h.problem()) if model == "quadratic" else federation(model)
    for options in (BRIEF, {"rounds": 3, "cohort": 3, "weighting": "samples", "server_lr": 0.7, "batch_size": None}):
        a, b = (fc.simulate(m, fed, **options) for m in (fc.FedAvg(), method))
        assert torch.equal(a.params, b.params)
        assert a.rows == b.rows


@methods([fc.HeteroFL(1), fc.FedDSE(1)])
def test_capacity_one_needs_no_rule_for_the_layers(method):
    fed = federation(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, classes)))
    assert torch.equal(*(fc.simulate(m, fed, **RUN).params for m in (method, fc.FedAvg())))


def test_depthfl_of_one_stage_is_feddyn_bit_for_bit():
    for fed in (federation(), fc.quadratic(*h.problem())):
        a, b = (fc.simulate(m, fed, cohort=3, **RUN) for m in (fc.FedDyn(0.3), fc.DepthFL(1, alpha=0.3)))
        assert torch.equal(a.params, b.params)
        assert torch.equal(a.state["h_i"], b.state["h_i"])


def test_depthfl_at_full_depth_without_its_additions_is_fedavg_of_the_network_with_heads():
    fed = federation("heads")
    assert torch.equal(
        *(fc.simulate(m, fed, **RUN).params for m in (fc.FedAvg(), fc.DepthFL(1, alpha=0, distil=False)))
    )


# --- two trainings, two paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "model", "options"),
    [
        *[(m, "thesis_cnn_small", BRIEF) for m in NARROW],
        # the engine takes the compact ones' steps of plain SGD itself, the masked ones go by gradients
        *[(m, "preact", SGD) for m in (fc.FedRolex(LEVELS), fc.FedDSE(LEVELS))],
        (fc.HeteroFL(LEVELS), "thesis_mlp", SGD),
    ],
)
def test_compact_and_masked_runs_are_equal_to_rounding(method, model, options):
    fed = federation(model)
    a, b = (fc.simulate(dataclasses.replace(method, training=kind), fed, **options) for kind in ("compact", "masked"))
    h.close(a.params, b.params, 1e-11)
    assert not torch.equal(a.params, fed.x0)
    for name in method.client_state:
        h.close(a.state[name], b.state[name], 1e-11)


@methods(PARTS)
def test_runs_are_equal_on_both_paths(method):
    fed = federation("heads" if isinstance(method, DepthFL) else "thesis_cnn_small")
    a, b = (fc.simulate(method, fed.forced(path), **BRIEF).params for path in ("batched", "sequential"))
    h.close(a, b, 1e-11)


# --- what is kept -------------------------------------------------------------------------------------------------


@methods([fc.HeteroFL(0.5), fc.FedDSE({0.25: 1.0}), fc.FedGSE(0.25, public=1)])
def test_entries_that_nobody_trained_stay_exactly_what_they_were(method):
    fed, options = federation("thesis_cnn_small"), {"cohort": 2, "lr": 0.1, "batch_size": 5, "momentum": 0.5}
    after = torch.as_tensor(h.trajectory(method, fed, 3, **options))
    for t, r in enumerate(seen(method, fed, rounds=3, **options)):
        untouched = ~r.mask.any(0)
        assert untouched.sum() > 1000
        assert torch.equal(after[t + 1][untouched], after[t][untouched])
        assert not torch.equal(after[t + 1], after[t])


@methods([fc.FederatedDropout(0.5), fc.FedDSE(0.5, 1.0), fc.FedGSE(0.5, public=1), fc.HeteroFL(LEVELS, mode="dynamic")])
def test_what_a_client_keeps_does_not_depend_on_who_else_takes_part(method):
    fed = federation()
    whole, some = (seen(method, fed, rounds=1, cohort=m, batch_size=4)[0] for m in (None, 3))
    for i, mask in zip(some.ids, some.mask, strict=True):
        assert torch.equal(mask, whole.mask[whole.ids == i][0])


@pytest.mark.parametrize("T", [0, 0.7])
def test_feddse_takes_the_highest_scores_and_no_notice_of_a_constant(T):
    def kept(scores, ratio):
        m, given = 3, torch.tensor(scores, dtype=torch.float64)
        r = SimpleNamespace(t=0, m=m, seed=0, ids=np.arange(m), p=torch.full((m, 1), 1 / m, dtype=torch.float64))
        r.activations = lambda budget: [given.expand(m, -1)]
        score = fc.FedDSE(ratio, T).score(r, SimpleNamespace(widths=(len(scores),)))
        return Neurons.top(None, score, ratio)[0].tolist()

    scores = [1.0, 3.0, 3.0, 0.0, 3.0, 1.0]
    assert kept(scores, 0.5) == kept([s + 8 for s in scores], 0.5)
    if T == 0:
        assert kept(scores, 0.5) == [[1, 2, 4]] * 3
        assert kept(scores, 1 / 3) == [[1, 2]] * 3  # ties: the lower index
        assert kept(scores, 0.4) == [[1, 2, 4]] * 3  # 2.4 of six units are three


def test_misaligned_dropout_adds_channels_of_different_identity():
    fed, apart = federation("preact"), []
    for aligned in (True, False):
        r = seen(fc.FederatedDropout(0.5, aligned=aligned), fed, rounds=1, batch_size=5)[0]
        views = fed.engine.layout.views(r.mask)
        stem, block = (views[name].flatten(2).any(2) for name in ("0.weight", "1.body.4.weight"))
        apart.append((stem != block).any().item())
        assert (stem.sum(1) == block.sum(1)).all()
    assert apart == [False, True]
    a, b = (fc.simulate(fc.FederatedDropout(1, aligned=aligned), fed, **RUN).params for aligned in (True, False))
    assert torch.equal(a, b)


# --- labels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reading", "fill"), [("zero", 0.0), ("-inf", -math.inf)])
def test_masked_cross_entropy_replaces_foreign_logits(reading, fill):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=g).double().requires_grad_()
    owned = torch.tensor([[True, False, True, False], [True, True, True, True]])
    y = torch.tensor([[0, 2, 2], [3, 1, 0]])
    want = F.cross_entropy(torch.where(owned[:, None], logits, fill).flatten(0, 1), y.flatten(), reduction="none")
    got = own_labels(logits, y, reading=reading, owned=owned)
    h.close(got.flatten(), want, 1e-12)
    one = own_labels(logits[0, :2], y[0, :2], reading=reading, owned=owned[0])  # as the sequential path asks
    h.close(one, want[:2], 1e-12)
    assert (torch.autograd.grad(got.sum(), logits)[0][0][:, ~owned[0]] == 0).all()


@pytest.mark.parametrize("reading", ["zero", "-inf"])
@pytest.mark.parametrize("method", [fc.HeteroFL, fc.FedGSE, fc.DepthFL], ids=lambda m: m.__name__)
def test_logits_beyond_the_labels_are_nobodys(method, reading):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 1, 8, 8)).astype(np.float32), np.arange(60) % 4
    net = multihead("thesis_cnn_small")((1, 8, 8), 6) if method is fc.DepthFL else fc.models.digit_cnn((1, 8, 8), 6)
    fed = fc.federation(((x, y), (x, y)), 3, fc.IID(), net, seed=0, dtype=torch.float64)
    whole = method({1: 0.5, 0.5: 0.5}, labels=reading)
    end = fc.simulate(whole, fed, rounds=2, lr=0.1, local_steps=2, batch_size=8).params
    last = fed.layout.slices[-1]
    moved = (end - fed.x0)[last]
    assert moved[:4].abs().min() > 0
    assert moved[4:].abs().max() == 0


# --- DepthFL ------------------------------------------------------------------------------------------------------


def test_depthfl_gives_a_model_without_heads_its_heads():
    fed, headed = federation("thesis_cnn_small"), federation("heads")
    a, b = fc.simulate(fc.DepthFL(LEVELS), fed, **RUN), fc.simulate(fc.DepthFL(LEVELS), headed, **RUN)
    assert len(a.params) == len(b.params) == headed.d > fed.d
    trunk = fed.with_model(lambda net: multihead(lambda shape, classes: net)((1, 8, 8), 5))
    old, new = fed.engine.layout.views(fed.x0), trunk.engine.layout.views(trunk.x0)
    assert torch.equal(old["0.weight"], new["stages.0.0.weight"])
    assert torch.equal(old["16.weight"], new["heads.2.2.weight"])


def test_depthfl_sends_the_share_of_its_first_stages_and_heads():
    net = multihead("thesis_cnn_small")
    fed = fc.federation("digits", 4, model=net, seed=0)
    stages = fed.stages
    for ratio in (1.0, 0.5, 0.25, 0.0625):
        part = submodels.Depth(math.ceil(ratio * stages))(fed.engine.module)
        count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
        share = count(part) / fed.d
        assert fc.DepthFL(ratio).cost(fed.layout).up == pytest.approx(share if ratio < 1 else 1)
    assert fc.DepthFL(0.5).cost().down is None  # the network's matter
    assert fc.DepthFL(1).cost().down == 1


# --- FedGSE -------------------------------------------------------------------------------------------------------


def normed(inplace=False):
    """Convolutions and a linear layer, each with scaler, batch norm and ReLU: 3, 7 and 12."""
    return lambda shape, classes: nn.Sequential(
        nn.Conv2d(1, 4, 3), models.Scaler(), nn.BatchNorm2d(4), nn.ReLU(inplace),
        nn.Conv2d(4, 3, 3), models.Scaler(), nn.BatchNorm2d(3), nn.ReLU(inplace), nn.Flatten(),
        nn.Linear(48, 6), models.Scaler(), nn.BatchNorm1d(6), nn.ReLU(inplace), nn.Linear(6, classes),
    )  # fmt: skip


@pytest.mark.parametrize("scoring", ["public-code", "printed-before"])
def test_a_nonlinearity_that_works_in_place_changes_no_score(scoring):
    plain, inplace = (federation(normed(kind), public=3) for kind in (False, True))
    assert torch.equal(*(fc.simulate(fc.FedGSE(0.5, scoring=scoring), fed, **BRIEF).params for fed in (plain, inplace)))


def test_the_printed_score_warns_by_name_where_it_vanishes_and_the_first_units_are_kept_there():
    fed, method = federation(normed(), public=3), fc.FedGSE(0.5, scoring="printed")
    with pytest.warns(UserWarning, match="eq. 4-3 is zero up to rounding in 7, whose .*public-code"):
        (r,) = seen(method, fed, rounds=1, batch_size=4)
    for name, first in (("0.bias", False), ("4.bias", True), ("9.bias", False)):
        kept = fed.engine.layout.views(r.mask)[name]
        assert kept[:, : kept[0].sum()].all() == first, name


@pytest.mark.parametrize("scoring", ["public-code", "printed-before", "absolute", "absolute-before"])
def test_no_other_score_and_no_model_without_batch_norm_warns(scoring):
    with warnings.catch_warnings(action="error"):
        fc.FedGSE(0.5, scoring=scoring).on(federation(normed(), public=3))
        fc.FedGSE(0.5, public=2, scoring="printed").on(federation())


def test_spl_keeps_what_the_clients_model_gets_right_and_csl_all_with_its_labels():
    truth = torch.tensor([0, 0, 1, 1, 2, 2])
    guess = torch.stack([truth, torch.zeros(6, dtype=int), torch.tensor([1, 1, 2, 2, 0, 0])])  # right, constant, wrong
    r, everything = SimpleNamespace(seed=0, t=0, ids=np.arange(3), x=truth.double(), p=torch.ones(3, 1)), set(range(6))
    for variant in ("SPL", "CSL"):
        picked, labels, w = fc.FedGSE(0.5, variant).similar_samples(r, guess, truth, guess == truth)
        assert (picked.sort(1).values == torch.arange(6)).all()
        h.close(w.sum(1), torch.ones(3), 1e-12)
        used = [set(picked[i][w[i] > 0].tolist()) for i in range(3)]
        if variant == "SPL":
            assert used == [everything, {0, 1}, everything]  # a model that gets nothing right: all of them
            assert torch.equal(labels, truth[picked])
        else:
            assert used == [everything] * 3
            assert torch.equal(labels, guess.gather(1, picked))


def test_fedgse_takes_its_public_data_from_the_clients_when_none_is_set_aside():
    fed = federation()
    a = fc.simulate(fc.FedGSE(0.5, public=2), fed, **RUN).params
    b = fc.simulate(fc.FedGSE(0.5), fed.set_aside(2), **RUN).params
    assert torch.equal(a, b)
    rng_ = np.random.default_rng(5)
    x, y = rng_.integers(0, 256, (10, 1, 8, 8)).astype(np.uint8), np.arange(10) % 5
    c = fc.simulate(fc.FedGSE(0.5, public=(x, y)), fed, **RUN).params
    d = fc.simulate(fc.FedGSE(0.5), fed.with_public(torch.tensor(x), y), **RUN).params
    assert torch.equal(c, d)
    assert not torch.equal(a, c)


def test_preact_is_the_thesis_block():
    """out = relu(n1(x)); shortcut = conv1x1(out) or x; out = conv1(out); out = conv2(relu(n2(out))) + shortcut."""
    net = preact((1, 8, 8), 3).double().train()
    for block in net[1:3]:
        norm1, conv1, norm2, conv2 = block.enter[1], block.body[0], block.body[2], block.body[4]
        x = torch.randn(4, conv1.in_channels, 8, 8, dtype=torch.float64)
        out = F.relu(F.batch_norm(x, None, None, norm1.weight, norm1.bias, True))
        short = x if block.shortcut is None else F.conv2d(out, block.shortcut.weight, stride=2)
        out = conv1(out)
        out = conv2(F.relu(F.batch_norm(out, None, None, norm2.weight, norm2.bias, True))) + short
        h.close(block(x), out, 1e-12)
