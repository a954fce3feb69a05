"""The eight sub-model methods against their equations: limits, oracles written out by hand, and counted draws."""

from __future__ import annotations

import dataclasses
import math
import warnings
from functools import cache, partial
from types import SimpleNamespace

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import LEVELS, NARROWED, preact
from torch import nn

import fedcore as fc
from fedcore import models, rng, submodels
from fedcore.algorithms import nested
from fedcore.algorithms.nested import DepthFL
from fedcore.algorithms.submodels import noise, own_labels
from fedcore.submodels import Neurons, Width, kept, multihead

SIZES = (13, 7, 20, 14, 9, 11)
RUN = {"rounds": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 2, "momentum": 0.5, "clip": 1.0, "weight_decay": 1e-3}
BRIEF = RUN | {"rounds": 2, "local_epochs": 1}
WHOLE = [
    fc.HeteroFL(1), fc.FjORD(1), fc.FederatedDropout(1), fc.FedRolex(1), fc.DepthFL(1, alpha=0), fc.FedDSE(1),
    fc.FedDSE(1, 1.0), fc.FedGSE(1), fc.FedGSE(1, "SPL"), fc.HeteroFL(1, training="masked"),
]  # fmt: skip
PARTS = [
    fc.HeteroFL(LEVELS), fc.FjORD(LEVELS), fc.FjORD(LEVELS, distil=False, labels="zero"), fc.FederatedDropout(LEVELS),
    fc.FedRolex(LEVELS, labels="-inf"), fc.FedDSE(LEVELS), fc.FedDSE(LEVELS, 1.0, 6, labels="zero"),
    fc.FedGSE(LEVELS, public=1), fc.FedGSE(LEVELS, "SPL", 1, 4, scoring="absolute-before"), fc.DepthFL(LEVELS),
    fc.DepthFL({1: 0.5, 0.3: 0.5}, labels="zero", alpha=0), fc.HeteroFL(LEVELS, mode="dynamic"),
]  # fmt: skip
methods = lambda given: pytest.mark.parametrize("method", given, ids=lambda m: repr(m).replace(" ", ""))  # noqa: E731


def federation(model="thesis_mlp", sizes=SIZES, classes=5, **options):
    return h.network(sizes=sizes, shape=(1, 8, 8), classes=classes, model=NARROWED.get(model, model), **options)


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


def test_feddse_at_infinite_temperature_is_federated_dropout_bit_for_bit():
    fed = federation("thesis_cnn_small")
    a, b, c = (
        fc.simulate(m, fed, **RUN).params
        for m in (fc.FederatedDropout(0.5), fc.FedDSE(0.5, math.inf), fc.FedDSE(0.5, 1.0))
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_fedrolex_in_round_zero_is_heterofl_and_moves_on_from_there():
    fed = federation("thesis_cnn_small")
    one, two = ([fc.simulate(m, fed, **RUN | {"rounds": t}).params for m in (fc.FedRolex(0.5), fc.HeteroFL(0.5))]
                for t in (1, 2))  # fmt: skip
    assert torch.equal(*one)
    assert not torch.equal(*two)


def test_fjord_with_one_width_is_heterofl_without_a_scaler():
    fed = federation("residual")  # a network without scalers
    for options in (RUN, RUN | {"weighting": "samples"}):
        a, b = (fc.simulate(m, fed, **options).params for m in (fc.FjORD(0.5), fc.HeteroFL(0.5)))
        h.close(a, b, 1e-12)
    assert Width(0.5, scaled=False)(models.thesis_cnn_small((1, 8, 8), 5))[1].rate == 1


# --- two trainings, two paths -------------------------------------------------------------------------------------


@methods([m for m in PARTS if not isinstance(m, fc.FjORD | fc.DepthFL)])
@pytest.mark.parametrize("model", ["thesis_mlp", "thesis_cnn_small", "preact"])
def test_compact_and_masked_runs_are_equal_to_rounding(method, model):
    if model == "preact" and type(method) not in (fc.FedDSE, fc.FedRolex):
        pytest.skip("two methods show it")
    fed = federation(model)
    a, b = (fc.simulate(dataclasses.replace(method, training=kind), fed, **BRIEF) for kind in ("compact", "masked"))
    h.close(a.params, b.params, 1e-11)
    assert not torch.equal(a.params, fed.x0)
    for name in method.client_state:
        h.close(a.state[name], b.state[name], 1e-11)


@methods([fc.HeteroFL(LEVELS), fc.FedRolex(LEVELS), fc.FedDSE(LEVELS)])
def test_compact_and_masked_runs_of_plain_sgd_are_equal_too(method):
    """The engine takes the compact ones' steps itself, the masked ones go by gradients."""
    fed, plain = federation("thesis_cnn_small"), {"rounds": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 2}
    a, b = (fc.simulate(dataclasses.replace(method, training=kind), fed, **plain) for kind in ("compact", "masked"))
    h.close(a.params, b.params, 1e-11)


@methods(PARTS)
def test_runs_are_equal_on_both_paths(method):
    fed = federation("heads" if isinstance(method, DepthFL) else "thesis_cnn_small")
    a, b = (fc.simulate(method, fed.forced(path), **BRIEF).params for path in ("batched", "sequential"))
    h.close(a, b, 1e-11)


@methods(PARTS)
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(method, tmp_path):
    fed = federation()
    whole = fc.simulate(method, fed, cohort=3, **RUN | {"rounds": 4})
    fc.simulate(method, fed, cohort=3, checkpoint_dir=tmp_path, **RUN | {"rounds": 2})
    rest = fc.simulate(method, fed, cohort=3, checkpoint_dir=tmp_path, **RUN | {"rounds": 4})
    assert torch.equal(whole.params, rest.params)
    assert whole.rows == rest.rows
    assert all(torch.equal(whole.state[k], rest.state[k]) for k in whole.state)


# --- a round by hand ----------------------------------------------------------------------------------------------


class Keep:
    """A probe that keeps the rounds and the local iterates it is shown."""

    def __init__(self):
        self.seen = []

    def __call__(self, r, y):
        self.seen.append((r, y))
        return {}


def by_hand(fed, method, t: int, x: torch.Tensor, keep: dict[int, list[list[int]]], lr: float) -> torch.Tensor:
    """One round on a 64-50-24-5 network from the equations: lists of kept units, plain SGD, means entry by entry."""
    shapes, num, cnt = [p.shape for p in fed.engine.module.parameters()], torch.zeros_like(x), torch.zeros_like(x)
    ends = np.cumsum([0] + [s.numel() for s in shapes])
    for i, (I1, I2) in keep.items():
        rows = [range(64), I1, I2, range(5)]
        places = []
        for layer, (W, b) in enumerate(zip(range(0, 6, 2), range(1, 6, 2), strict=True)):
            places.append([int(ends[W]) + o * shapes[W][1] + j for o in rows[layer + 1] for j in rows[layer]])
            places.append([int(ends[b]) + o for o in rows[layer + 1]])
        tensors = [x[p].clone().requires_grad_() for p in places]
        for inputs, labels in h.batches(fed, 0, t, i, epochs=1, batch_size=4):
            z = inputs.flatten(1)
            for layer in range(3):
                W = tensors[2 * layer].view(len(rows[layer + 1]), len(rows[layer]))
                z = z @ W.T + tensors[2 * layer + 1]
                z = z.relu() if layer < 2 else z
            grads = torch.autograd.grad(F.cross_entropy(z, labels), tensors)
            tensors = [(w - lr * g).detach().requires_grad_() for w, g in zip(tensors, grads, strict=True)]
        for p, w in zip(places, tensors, strict=True):
            num[p] += w.detach()
            cnt[p] += 1
    return torch.where(cnt > 0, num / cnt.clamp_min(1), x)


@methods([fc.HeteroFL({1: 0.5, 0.3: 0.5}), fc.FedRolex({0.5: 0.5, 0.1: 0.5}), fc.FederatedDropout(0.4)])
def test_rounds_are_those_written_out_by_hand(method):
    fed = federation()
    path = h.trajectory(method, fed, 3, lr=0.2, batch_size=4)
    ratio, x = method.ratios(0, 6), fed.x0
    for t in range(3):
        keep = {}
        for i in range(6):
            k1, k2 = kept(ratio[i], 50), kept(ratio[i], 24)
            if isinstance(method, fc.FedRolex):
                keep[i] = [sorted((t + j) % m for j in range(k)) for k, m in ((k1, 50), (k2, 24))]
            elif isinstance(method, fc.FederatedDropout):
                u = [rng.words(0, rng.MASK, t, i, s, np.arange(m)) for s, m in enumerate((50, 24))]
                keep[i] = [sorted(np.argsort(v)[-k:].tolist()) for v, k in zip(u, (k1, k2), strict=True)]
            else:
                keep[i] = [list(range(k1)), list(range(k2))]
        x = by_hand(fed, method, t, x, keep, 0.2)
        h.close(path[t + 1], x, 1e-12)


@methods([fc.HeteroFL(0.5), fc.FedDSE({0.25: 1.0}), fc.FedGSE(0.25, public=1)])
def test_entries_that_nobody_trained_stay_exactly_what_they_were(method):
    fed, watch = federation("thesis_cnn_small"), Keep()
    after = torch.as_tensor(h.trajectory(method, fed, 3, cohort=2, lr=0.1, batch_size=5, momentum=0.5))
    fc.simulate(method, fed, rounds=3, cohort=2, lr=0.1, batch_size=5, momentum=0.5, probes=[watch])
    for t, (r, _) in enumerate(watch.seen):
        untouched = ~r.mask.any(0)
        assert untouched.sum() > 1000
        assert torch.equal(after[t + 1][untouched], after[t][untouched])
        assert not torch.equal(after[t + 1], after[t])


def test_heterofl_never_moves_what_lies_beyond_its_largest_capacity():
    fed = federation("thesis_cnn_small")
    inside = torch.zeros(fed.d, dtype=torch.bool)
    inside[fed.neurons().places(fed.neurons().prefix(0.5))[0]] = True
    after = fc.simulate(fc.HeteroFL({0.5: 0.5, 0.25: 0.5}, mode="dynamic"), fed, **RUN).params
    assert torch.equal(after[~inside], fed.x0[~inside])
    assert ((after != fed.x0) & inside).sum() > 0.9 * inside.sum()


# --- draws --------------------------------------------------------------------------------------------------------


def round_of(widths, t=0, m=1, seed=0, fed=None, **more):
    """What a score sees of a round."""
    return SimpleNamespace(
        t=t,
        m=m,
        seed=seed,
        ids=np.arange(m),
        p=torch.full((m, 1), 1 / m, dtype=torch.float64),
        activations=fed and (lambda budget: fed.activations(None, np.arange(m), budget)),
        **more,
    ), SimpleNamespace(widths=widths, sites=(), before=())


def sets(method, r, neurons, ratio):
    return Neurons.top(None, method.score(r, neurons), ratio)


@pytest.mark.parametrize("ratio", [0.99, 0.5, 0.25, 0.0625, 0.3])
def test_fedrolex_keeps_every_unit_equally_often(ratio):
    widths = (64, 10, 7)
    for s, w in enumerate(widths):
        counts = torch.zeros(w, dtype=int)
        for t in range(w):
            keep = sets(fc.FedRolex(ratio), *round_of(widths, t=t, m=2), ratio)[s]
            assert torch.equal(keep[0], keep[1])  # the same for clients of one capacity
            counts[keep[0]] += 1
        assert (counts == kept(ratio, w)).all()


def test_federated_dropout_keeps_each_unit_with_probability_k_over_m():
    m, w, k = 4000, 10, 3
    keep = sets(fc.FederatedDropout(0.3), *round_of((w, 6), m=m), 0.3)[0]
    share = keep.flatten().bincount(minlength=w) / m
    assert (share - k / w).abs().max() < 4 * math.sqrt(k / w * (1 - k / w) / m)
    streams = noise(*round_of((w, w), m=m))
    assert abs(np.corrcoef(streams[0].flatten(), streams[1].flatten())[0, 1]) < 4 / math.sqrt(m * w)


def activity(h_, m):
    return SimpleNamespace(activations=lambda x, ids, budget: [torch.tensor(h_).double().expand(m, -1)])


def test_feddse_includes_units_as_draws_without_replacement_do():
    """T = 1, h = (2, 1, .5, 0, -1), k = 2: the inclusion probabilities of successive sampling, by enumeration."""
    h_ = np.array([2, 1, 0.5, 0, -1])
    q = np.exp(h_) / np.exp(h_).sum()
    want = np.array([q[i] + sum(q[j] * q[i] / (1 - q[j]) for j in range(5) if j != i) for i in range(5)])
    h.close(want, [0.8537, 0.5268, 0.3343, 0.2074, 0.0778], 1e-4)
    m = 40_000
    r, neurons = round_of((5,), m=m, fed=activity(h_, m), x=None)
    keep = sets(fc.FedDSE(0.4, 1.0), r, neurons, 0.4)[0]
    share = keep.flatten().bincount(minlength=5).numpy() / m
    assert (np.abs(share - want) < 4 * np.sqrt(want * (1 - want) / m)).all()


@pytest.mark.parametrize("T", [0, 0.7])
def test_feddse_takes_the_highest_scores_and_no_notice_of_a_constant(T):
    scores = [1.0, 3.0, 3.0, 0.0, 3.0, 1.0]
    keep = [
        sets(fc.FedDSE(0.5, T), *round_of((6,), m=3, fed=activity([s + c for s in scores], 3), x=None), 0.5)[0]
        for c in (0, 8)
    ]
    assert torch.equal(*keep)
    if T == 0:
        assert keep[0].tolist() == [[1, 2, 4]] * 3
        r, neurons = round_of((6,), fed=activity(scores, 1), x=None)
        assert sets(fc.FedDSE(1 / 3), r, neurons, 1 / 3)[0].tolist() == [[1, 2]]  # ties: the lower index
        assert sets(fc.FedDSE(0.4), r, neurons, 0.4)[0].tolist() == [[1, 2, 4]]  # 2.4 of six units are three


def test_feddse_standardised_is_free_of_scale():
    method = fc.FedDSE(0.5, 0.5, standardise=True)
    runs = [
        sets(method, *round_of((6,), m=50, fed=activity([5 * c * v + c for v in range(6)], 50), x=None), 0.5)[0]
        for c in (1, 100)
    ]
    assert torch.equal(*runs)


def test_clients_with_the_same_data_choose_the_same_units_whatever_their_order():
    x, y = h.images(20, (1, 8, 8), 5)
    order = np.random.default_rng(0).permutation(20)
    source = {
        "train_images": np.concatenate([x, x[order]]), "train_labels": np.concatenate([y, y[order]]),
        "test_images": x, "test_labels": y, "train_owner": np.repeat([0, 1], 20),
    }  # fmt: skip
    for model in ("thesis_mlp", "thesis_cnn_small"):
        fed = fc.federation(source, partition=fc.ByOwner(), model=model, dtype=torch.float64, device="cpu")
        watch = Keep()
        fc.simulate(fc.FedDSE(0.25), fed, rounds=2, batch_size=5, probes=[watch])
        for r, _ in watch.seen:
            assert torch.equal(r.mask[0], r.mask[1])
            assert 0 < r.mask[0].sum() < fed.d


@methods([fc.FederatedDropout(0.5), fc.FedDSE(0.5, 1.0), fc.FedGSE(0.5, public=1), fc.HeteroFL(LEVELS, mode="dynamic")])
def test_what_a_client_keeps_does_not_depend_on_who_else_takes_part(method):
    fed, seen = federation(), []
    for cohort in (None, 3):
        watch = Keep()
        fc.simulate(method, fed, rounds=1, cohort=cohort, batch_size=4, probes=[watch])
        r = watch.seen[0][0]
        seen.append(dict(zip(r.clients.tolist(), r.mask, strict=True)))
    for i, mask in seen[1].items():
        assert torch.equal(mask, seen[0][i])


def test_misaligned_dropout_adds_channels_of_different_identity():
    fed = federation("preact")
    names = fed.engine.layout.names
    apart = []
    for aligned in (True, False):
        watch = Keep()
        fc.simulate(fc.FederatedDropout(0.5, aligned=aligned), fed, rounds=1, batch_size=5, probes=[watch])
        views = fed.engine.layout.views(watch.seen[0][0].mask)
        stem, block = (views[name].flatten(2).any(2) for name in ("0.weight", "1.body.4.weight"))
        apart.append((stem != block).any().item())
        assert {"0.weight", "1.body.4.weight"} <= set(names)
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


@pytest.mark.parametrize("labels", ["zero", "-inf"])
def test_classifier_rows_move_only_where_a_client_holds_the_label(labels):
    x, y = h.images(60, (1, 8, 8), 6)
    source = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y, "train_owner": y // 2}
    fed = fc.federation(source, partition=fc.ByOwner(), model="thesis_mlp", dtype=torch.float64, device="cpu")
    history = fc.simulate(fc.HeteroFL({1: 0.5, 0.5: 0.5}, labels=labels), fed, rounds=1, cohort=1, **SHORT)
    before, after = (fed.engine.layout.views(v) for v in (fed.x0, history.params))
    mine = np.isin(np.arange(6), [2 * history.cohorts[0][0], 2 * history.cohorts[0][0] + 1])
    for name in ("5.weight", "5.bias"):
        moved = (before[name] != after[name]).view(6, -1).any(1).numpy()
        assert np.array_equal(moved, mine)
    assert not torch.equal(before["1.weight"], after["1.weight"])


SHORT = {"lr": 0.1, "batch_size": 5, "weight_decay": 0.1}


def test_with_all_labels_at_every_client_the_mask_changes_nothing():
    fed = federation(sizes=(20, 30), classes=3)
    assert fed.owned(np.arange(2)).all()
    a, b, c = (fc.simulate(fc.HeteroFL(0.5, labels=v), fed, **RUN).params for v in ("all", "zero", "-inf"))
    h.close(b, a, 1e-12)
    h.close(c, a, 1e-12)


# --- FjORD --------------------------------------------------------------------------------------------------------


def test_fjord_draws_widths_uniformly_up_to_the_clients_own():
    method, n = fc.FjORD(LEVELS), 3000
    r = SimpleNamespace(widths=dict.fromkeys(sorted(LEVELS)), seed=0, t=0, ids=np.arange(n), step=4)
    p = method.drawn(r, np.full(n, 0.25))
    assert set(p) == {0.25, 0.125, 0.0625}
    for q in set(p):
        assert abs((p == q).mean() - 1 / 3) < 4 * math.sqrt(2 / 9 / n)
    r.step = 5
    assert not np.array_equal(method.drawn(r, np.full(n, 0.25)), p)
    assert (method.drawn(r, np.full(n, 0.0625)) == 0.0625).all()


@pytest.mark.parametrize("distil", [True, False])
@pytest.mark.parametrize("batch_size", [5, None])
def test_a_step_of_fjord_is_its_two_losses_by_autograd(distil, batch_size):
    fed, watch, wd = federation(sizes=(10, 10)), Keep(), 0.01
    method = fc.FjORD({1: 0.5, 0.25: 0.5}, distil=distil)
    fc.simulate(method, fed, rounds=1, local_steps=1, lr=1.0, batch_size=batch_size, weight_decay=wd, probes=[watch])
    r, y = watch.seen[0]
    neurons, cap = fed.neurons(), method.ratios(0, 2)
    r.step = 0
    drawn = dict(zip(r.ids.tolist(), method.drawn(r, cap[r.ids]), strict=True))
    assert sorted(cap) == [0.25, 1]
    for row, i in enumerate(r.ids.tolist()):
        inputs, labels = h.whole(fed, i) if batch_size is None else h.batches(fed, 0, 0, i, batch_size=5)[0]

        def logits(ratio, flat, inputs=inputs):
            place = neurons.places(neurons.prefix(ratio))[0]
            small = Width(ratio, scaled=False)(fed.engine.module).train()
            return torch.func.functional_call(small, models.Layout.of(small).views(flat[place]), (inputs,))

        x = fed.x0.clone().requires_grad_()
        p, c = drawn[i], cap[i]
        loss = F.cross_entropy(logits(c if distil else p, x), labels)
        if distil and p < c:
            loss = loss + F.cross_entropy(logits(p, x), logits(c, x).detach().softmax(1))
        g = torch.autograd.grad(loss, x)[0]
        active = torch.zeros(fed.d, dtype=torch.bool)
        active[neurons.places(neurons.prefix(c if distil else p))[0]] = True
        h.close(fed.x0 - y[row], g + wd * torch.where(active, fed.x0, 0), 1e-12)


# --- DepthFL ------------------------------------------------------------------------------------------------------


def test_depthfls_loss_is_cross_entropy_and_mutual_divergences_of_its_heads():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, 4, generator=g).double().requires_grad_()
    y = torch.tensor([0, 3, 1, 1, 2])
    want = 0
    for j in range(3):
        want = want + F.cross_entropy(logits[:, j], y)
        for k in range(3):
            if k != j:
                target = logits[:, k].softmax(1).detach()
                want = want + 0.7 * F.kl_div(logits[:, j].log_softmax(1), target, reduction="batchmean") / 2
    teach = partial(nested._teach, labels=partial(own_labels, reading="all"), strength=0.7)
    got = teach(logits, y).mean()
    h.close(got, want, 1e-12)
    h.close(torch.autograd.grad(got, logits)[0], torch.autograd.grad(want, logits)[0], 1e-12)
    alone = teach(logits[:, :1], y).mean()
    h.close(alone, F.cross_entropy(logits[:, 0], y), 1e-12)  # one head has nobody to learn from


def test_depthfl_leaves_the_deepest_stage_alone_when_no_deep_client_takes_part():
    fed = federation("heads")
    method = fc.DepthFL({1: 0.5, 0.6: 0.5}, alpha=0.2)
    history = fc.simulate(method, fed, rounds=1, cohort=2, lr=0.1, batch_size=5)
    deep = method.ratios(0, 6)[history.cohorts[0]].max() == 1
    before, after = (fed.engine.layout.views(v) for v in (fed.x0, history.params))
    moved = {name: not torch.equal(before[name], after[name]) for name in before}
    assert moved["stages.0.0.weight"]
    assert moved["heads.1.2.weight"]
    assert moved["stages.2.0.weight"] == moved["heads.2.2.weight"] == deep
    shallow = fc.simulate(fc.DepthFL(0.6), fed, rounds=2, lr=0.1, batch_size=5).params
    assert torch.equal(fed.engine.layout.views(shallow)["stages.2.0.weight"], before["stages.2.0.weight"])


def test_depthfls_state_is_feddyns_on_the_tensors_a_client_owns():
    fed, watch = federation("heads"), Keep()
    method = fc.DepthFL({1: 0.5, 0.6: 0.5}, alpha=0.2)
    history = fc.simulate(method, fed, rounds=8, cohort=2, lr=0.1, batch_size=5, probes=[watch])
    h_i, waited = torch.zeros(6, fed.d, dtype=torch.float64), False
    for t, (r, y) in enumerate(watch.seen):
        h_i[r.clients] += torch.where(r.mask, y - r.x, 0)
        mean = torch.where(r.mask, y, 0).sum(0) / r.mask.sum(0).clamp_min(1)
        after = watch.seen[t + 1][0].x if t < 7 else history.params
        h.close(after, torch.where(r.mask.any(0), mean + h_i.mean(0), r.x), 1e-12)
        waited |= bool((~r.mask.any(0) & (h_i.mean(0) != 0)).any())  # nobody deep today: its h waits
    assert waited
    h.close(history.state["h_i"], h_i, 1e-12)
    h.close(history.state["h"], h_i.mean(0), 1e-12)


def test_depthfl_gives_a_model_without_heads_its_heads():
    fed, headed = federation("thesis_cnn_small"), federation("heads")
    a, b = fc.simulate(fc.DepthFL(LEVELS), fed, **RUN), fc.simulate(fc.DepthFL(LEVELS), headed, **RUN)
    assert len(a.params) == len(b.params) == headed.d > fed.d
    trunk = fed.with_model(lambda net: multihead(lambda shape, classes: net)((1, 8, 8), 5))
    old, new = fed.engine.layout.views(fed.x0), trunk.engine.layout.views(trunk.x0)
    assert torch.equal(old["0.weight"], new["stages.0.0.weight"])
    assert torch.equal(old["16.weight"], new["heads.2.2.weight"])


# --- FedGSE -------------------------------------------------------------------------------------------------------


def gse_round(fed, last, x, variant="CSL", similar=128, scoring="public-code"):
    method = fc.FedGSE(0.5, variant, similar=similar, scoring=scoring)
    state = fc.start(method, fed)
    rows = state["last"].clone()
    rows[: len(last)] = last
    settings = {"cohort": range(len(last)), "local_steps": 1, "batch_size": 4, "lr": 1e-3}
    return method, fc.one_round(method, fed, state.updated(x=x, last=rows), 0, **settings)[1].round


def normed_net(inplace=False):
    """Convolutions and a linear layer, each with scaler, batch norm and ReLU: (0, 2, 3), (4, 6, 7) and (9, 11, 12)."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), models.Scaler(), nn.BatchNorm2d(4), nn.ReLU(inplace),
        nn.Conv2d(4, 3, 3), models.Scaler(), nn.BatchNorm2d(3), nn.ReLU(inplace), nn.Flatten(),
        nn.Linear(48, 6), models.Scaler(), nn.BatchNorm1d(6), nn.ReLU(inplace), nn.Linear(6, 5),
    )  # fmt: skip


OUTPUTS, BEFORE, BEHIND = (0, 4, 9), (2, 6, 11), (3, 7, 12)


@cache
def skewed(inplace=False):
    """Five clients of two labels each, and uploads `[5, d]`: client 0 was never here, the others differ."""
    x, y = h.images(100, (1, 8, 8), 5)
    arrays = {"train_images": x, "train_labels": y, "test_images": x[:10], "test_labels": y[:10]}
    with torch.random.fork_rng():
        torch.manual_seed(2)  # every upload gets two or more of the public samples right, as batch norm needs
        net = normed_net(inplace)
    fed = fc.federation(arrays, 5, fc.Shards(2), model=net, public=3, dtype=torch.float64, device="cpu")
    last = fed.x0 + 0.3 * torch.randn(5, fed.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    last[0] = 0
    return fed, last


def run_through(net, fed, w, inputs):
    """The outputs of all layers, batch norm on the batch."""
    z, outputs = inputs, []
    with torch.no_grad():
        nn.utils.vector_to_parameters(w, net.parameters())
    for layer in net.train():
        z = layer(z)
        outputs.append(z)
    return outputs


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("variant", ["CSL", "SPL"])
@pytest.mark.parametrize("scoring", ["public-code", "printed", "printed-before", "absolute", "absolute-before"])
def test_fedgses_score_is_its_formula_by_autograd(scoring, variant, inplace):
    fed, last = skewed(inplace)
    method, r = gse_round(fed, last, fed.x0, variant, scoring=scoring)
    got = method.score(r, fed.neurons())
    net, public = normed_net().double(), (fed.inputs(fed.public[0]), fed.public[1])
    for i in range(5):
        held = torch.zeros(5, dtype=torch.bool)
        held[fed.y[torch.as_tensor(fed.index[i])]] = True
        assert held.sum() == 2
        guess = run_through(net, fed, fed.x0 if i == 0 else last[i], public[0])[-1].detach()
        if scoring == "public-code":
            labels = torch.where(held, guess, -math.inf).argmax(1)
            like = held[public[1]]
        else:
            labels = guess.argmax(1)
            like = labels == public[1]
        if variant == "SPL":
            assert 1 < like.sum() < len(like)
        inputs, labels = (public[0][like], public[1][like]) if variant == "SPL" else (public[0], labels)
        outputs = run_through(net, fed, fed.x0, inputs)
        logits = torch.where(held, outputs[-1], 0) if scoring == "public-code" else outputs[-1]
        at = OUTPUTS if scoring == "public-code" else BEFORE if "before" in scoring else BEHIND
        grads = torch.autograd.grad(F.cross_entropy(logits, labels), [outputs[k] for k in at])
        for s, D in enumerate(grads):
            D = D.reshape(*D.shape[:2], -1)
            h.close(got[s][i], D.sum(0).abs().sum(1) if "printed" in scoring else D.abs().sum((0, 2)), 1e-10)
    assert not torch.allclose(got[0][1], got[0][2])  # clients differ


@pytest.mark.parametrize("scoring", ["public-code", "printed-before"])
def test_a_nonlinearity_that_works_in_place_changes_no_score(scoring):
    (plain, last), (inplace, _) = skewed(), skewed(True)
    a, b = (gse_round(fed, last, plain.x0, scoring=scoring) for fed in (plain, inplace))
    for g, G in zip(*(method.score(r, r.neurons()) for method, r in (a, b)), strict=True):
        assert torch.equal(g, G)


@pytest.mark.parametrize("path", ["batched", "sequential"])
def test_the_score_does_not_depend_on_the_path_nor_on_who_else_is_there(path):
    fed, last = skewed()
    fed = fed.forced(path)
    method, r = gse_round(fed, last, fed.x0)
    together = method.score(r, fed.neurons())
    method, r = gse_round(fed, last[:2], fed.x0)
    for a, b in zip(together, method.score(r, fed.neurons()), strict=True):
        h.close(a[:2], b, 1e-12)


def test_the_printed_score_warns_by_name_where_it_vanishes_and_the_first_units_are_kept_there():
    fed, last = skewed()
    method, r = gse_round(fed, last, fed.x0, scoring="printed")
    with pytest.warns(UserWarning, match="eq. 4-3 is zero up to rounding in 7, whose .*public-code"):
        method.on(fed)
    score = method.score(r, fed.neurons())
    assert (score[1] == 0).all()
    assert torch.equal(fed.neurons().top(score, 0.5)[1], torch.arange(2).expand(5, 2))
    assert (score[0] > 0).all()  # convolutions: batch norm sums over positions as well, the score does not
    assert (score[2] > 0).all()


@pytest.mark.parametrize("scoring", ["public-code", "printed-before", "absolute", "absolute-before"])
def test_no_other_score_vanishes_or_warns(scoring):
    fed, last = skewed()
    with warnings.catch_warnings(action="error"):
        fc.FedGSE(0.5, scoring=scoring).on(fed)
    method, r = gse_round(fed, last, fed.x0, scoring=scoring)
    assert all((s > 0).sum(1).gt(s.shape[1] / 2).all() for s in method.score(r, fed.neurons()))


def test_without_batch_norm_the_printed_score_does_not_warn():
    with warnings.catch_warnings(action="error"):
        fc.FedGSE(0.5, public=2, scoring="printed").on(federation())


def test_a_model_with_more_logits_than_labels_can_be_scored():
    fed = federation(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 7)))
    assert torch.isfinite(fc.simulate(fc.FedGSE(0.5, public=2), fed, **RUN).params).all()


def test_a_unit_without_outgoing_weights_has_score_zero():
    fed = federation(public=2)
    x = fed.x0.clone()
    fed.engine.layout.views(x)["3.weight"][:, 7] = 0
    method, r = gse_round(fed, torch.zeros(1, fed.d, dtype=torch.float64), x)
    score = method.score(r, fed.neurons())[0][0]
    assert score[7] == 0
    assert (score > 0).sum() > 20


def test_spl_keeps_what_the_clients_model_gets_right_and_csl_all_with_its_labels():
    truth = torch.tensor([0, 0, 1, 1, 2, 2])
    guess = torch.stack([truth, torch.zeros(6, dtype=int), torch.tensor([1, 1, 2, 2, 0, 0])])  # right, constant, wrong
    for variant in ("SPL", "CSL"):
        method, (r, _) = fc.FedGSE(0.5, variant), round_of((), m=3)
        picked, labels, w = method.similar_samples(r, guess, truth, guess == truth)
        assert (picked.sort(1).values == torch.arange(6)).all()
        h.close(w.sum(1), torch.ones(3), 1e-12)
        used = [set(picked[i][w[i] > 0].tolist()) for i in range(3)]
        everything = set(range(6))
        if variant == "SPL":
            assert used == [everything, {0, 1}, everything]  # a model that gets nothing right: all of them
            assert torch.equal(labels, truth[picked])
        else:
            assert used == [everything] * 3
            assert torch.equal(labels, guess.gather(1, picked))


def test_similar_samples_are_a_random_subset_of_the_given_size():
    guess = torch.zeros(4000, 20, dtype=int)
    method, (r, _) = fc.FedGSE(0.5, similar=5), round_of((), m=4000)
    picked, _, w = method.similar_samples(r, guess, guess[0], guess == 0)
    assert picked.shape == w.shape == (4000, 5)
    assert (picked.sort(1).values.diff() > 0).all()
    share = picked.flatten().bincount(minlength=20) / 4000
    assert (share - 0.25).abs().max() < 4 * math.sqrt(0.25 * 0.75 / 4000)


def test_fedgse_remembers_the_uploads_of_its_clients_and_nothing_else():
    fed, watch = federation("thesis_cnn_small"), Keep()
    history = fc.simulate(fc.FedGSE(LEVELS, public=1), fed, rounds=2, cohort=2, lr=0.1, batch_size=5, probes=[watch])
    last = torch.zeros(6, fed.d, dtype=torch.float64)
    for r, y in watch.seen:
        last[r.clients] = y * r.mask
    assert torch.equal(history.state["last"], last)
    never = sorted(set(range(6)) - {i for cohort in history.cohorts for i in cohort})
    assert never
    assert (last[never] == 0).all()


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


# --- learning -----------------------------------------------------------------------------------------------------


@methods([fc.HeteroFL(0.5), fc.FjORD({1: 0.5, 0.5: 0.5}), fc.FederatedDropout(0.5), fc.FedRolex(0.5),
          fc.DepthFL({1: 0.5, 0.5: 0.5}), fc.FedDSE(0.5), fc.FedGSE(0.5, public=5)])  # fmt: skip
def test_every_method_learns_the_digits(method):
    fed = fc.federation("digits", clients=5, model="thesis_mlp", device="cpu")
    options = {"rounds": 12, "lr": 0.2, "local_epochs": 2, "batch_size": 20, "eval_every": 12}
    if isinstance(method, fc.HeteroFL):  # half of the units are never trained: judge it at its own width
        history = fc.simulate(method, fed, **options)
        small = fed.shrink(Width(0.5))
        accuracy = float(small.evaluate(history.params[fed.neurons().places(fed.neurons().prefix(0.5))[0]])["accuracy"])
    else:
        accuracy = fc.simulate(method, fed, **options).final()
    assert accuracy > 0.8


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
