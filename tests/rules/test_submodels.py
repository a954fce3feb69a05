"""Sub-models: who owns which entry, smaller networks that equal masked ones, what comes back, and the methods' limits.

Whole rounds of every method are compared in `test_reference`, and the theorems of the chapters in `test_theorems_*`.
"""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import LEVELS, NARROWED, Net, batch, preact, relative, rows
from torch import nn

import fedcore as fc
from fedcore import models, submodels
from fedcore.algorithms.submodels import own_labels
from fedcore.engine import Engine, Loss
from fedcore.submodels import Depth, Neurons, Part, Width, combine, cost, kept, multihead, stages, with_heads


def plus_inputs(shape, classes):
    layers = {"fc": nn.Linear(6, 6), "a": nn.Linear(6, 4), "out": nn.Linear(4, classes)}
    return Net(lambda m, x: m.out(torch.relu(m.a(x + m.fc(x)))), **layers)


def sequences(shape, classes):
    before = nn.BatchNorm1d(6), nn.MaxPool1d(2), nn.Flatten()
    return nn.Sequential(*before, nn.Linear(24, 4), nn.ReLU(), nn.Linear(4, classes))


NETS = NARROWED | {"plus_inputs": plus_inputs, "sequences": sequences}
SHAPES = dict.fromkeys(NETS, (1, 8, 8)) | {"plus_inputs": (6,), "sequences": (6, 8)}


def module(net: str) -> nn.Module:
    return models.build(NETS[net], SHAPES[net], 5, seed=0).double()


def random_keep(neurons: Neurons, m: int, ratio: float) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    return neurons.top([torch.rand(m, w, generator=g) for w in neurons.widths], ratio)


def mask_of(neurons: Neurons, keep) -> torch.Tensor:
    return torch.zeros(len(keep[0]), neurons.layout.d, dtype=torch.bool).scatter_(1, neurons.places(keep), True)


# --- neurons and their entries ------------------------------------------------------------------------------------


def test_a_place_is_kept_when_both_its_neurons_are():
    net = models.build("thesis_mlp", (1, 2, 2), 3, 0)
    neurons = Neurons.of(net)
    keep = [torch.tensor([[1, 4, 49]]), torch.tensor([[0, 20]])]
    mask = neurons.layout.views(mask_of(neurons, keep)[0])
    a, b = torch.zeros(50, dtype=torch.bool), torch.zeros(24, dtype=torch.bool)
    a[keep[0][0]], b[keep[1][0]] = True, True
    whole = torch.ones
    assert torch.equal(mask["1.weight"], a[:, None] & whole(1, 4, dtype=bool))  # all inputs
    assert torch.equal(mask["1.bias"], a)
    assert torch.equal(mask["3.weight"], b[:, None] & a)
    assert torch.equal(mask["5.weight"], b & whole(3, 1, dtype=bool))  # all classes
    assert mask["5.bias"].all()


def test_a_channel_owns_all_its_columns_after_a_flatten():
    net = models.digit_cnn((1, 8, 8), 10)
    neurons = Neurons.of(net)
    keep = [torch.arange(16)[None], torch.tensor([[3, 30]])]
    columns = neurons.layout.views(mask_of(neurons, keep)[0])["7.weight"][0].view(32, 2, 2)
    assert columns.flatten(1).all(1).nonzero().flatten().tolist() == [3, 30]
    assert columns.sum() == 8


def test_widths_are_rounded_up():
    assert [kept(r, 254) for r in (0.5, 0.25, 0.99)] == [127, 64, 252]
    assert kept(0.07, 100) == 7  # 0.07 * 100 is a little more than 7 in floating point
    assert kept(1e-6, 3) == 1  # no layer is ever empty


def test_a_residual_stream_has_one_keep_set_and_inner_convolutions_their_own():
    neurons = Neurons.of(module("preact"))
    assert neurons.widths == (8, 8, 12, 12)  # stem and its block, inner, shortcut and second block, inner
    axes = dict(zip(neurons.layout.names, neurons.axes, strict=True))
    assert axes["0.weight"][0] == axes["1.body.4.weight"][0] == axes["2.enter.1.weight"][0] == (0, 1)
    assert axes["2.shortcut.weight"] == ((2, 1), (0, 1))
    assert axes["2.body.4.weight"][0] == axes["4.weight"][0] == (2, 1)
    assert neurons.sites[0] == "2.enter.2"  # the stream's last activation, after all additions


def test_a_stream_is_written_by_its_last_linear_layer_or_convolution():
    assert Neurons.of(module("preact")).outputs == ("1.body.4", "1.body.0", "2.body.4", "2.body.0")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_noise_ranks_no_unit(dtype):
    """Scores that differ in their last bits are tied, and ties go to the lower index; a difference is a difference."""
    score = torch.tensor([[3.0, 1.0, 2.0, 1.0, 2.0, 3.0], [0.0, 0.0, 5.0, 0.0, 0.0, 0.0]], dtype=dtype)
    neurons = Neurons.of(module("thesis_mlp"))
    for seed in range(5):
        noise = torch.randn(score.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        noisy = score + 2 * torch.finfo(dtype).eps * noise
        assert neurons.top([noisy], 0.5)[0].tolist() == [[0, 2, 5], [0, 1, 2]]
        assert neurons.top([noisy], 2 / 3)[0].tolist() == [[0, 2, 4, 5], [0, 1, 2, 3]]
    apart = torch.tensor([[1.0, 1.0 + 1e-4, 1.0 + 2e-4]], dtype=dtype)
    assert neurons.top([apart], 1 / 3)[0].tolist() == [[2]]


def summed(forward) -> nn.Module:
    """A network with these of its layers."""
    layers = {"conv": nn.Conv2d(1, 4, 3), "fc": nn.Linear(144, 144), "wide": nn.Conv2d(1, 16, 3, stride=2)}
    return Net(forward, **{k: layer for k, layer in layers.items() if k in forward.__code__.co_names})


REFUSED = {  # a network, how many axes its samples have, and what is said
    "groups": ([nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)], 3, "Conv2d.*mix channels"),
    "norms over units": ([nn.Linear(4, 6), nn.Linear(6, 6), nn.LayerNorm(6)], 1, "LayerNorm.*mix channels"),
    "pooled units": ([nn.Linear(6, 6), nn.MaxPool1d(3, 1, 1), nn.Linear(6, 3)], 1,
                     r"MaxPool1d \(1\) .*axes=1, only for axes in \[2\].*capacities=1"),
    "layers on sequences": ([nn.Linear(5, 4), nn.Flatten(), nn.Linear(24, 3)], 2,
                            "Linear .*axes=2.*nn.Flatten.*capacities=1"),
    "layers on images": ([nn.Conv2d(1, 3, 3), nn.Linear(6, 4), nn.Flatten(), nn.Linear(72, 3)], 3, "Linear .*axes=3"),
    # a network alone does not say that its first layer reads sequences; the number of columns does
    "units of many columns": ([nn.Linear(5, 4), nn.Flatten(), nn.Linear(24, 3)], None,
                              r"2 takes 24 features.*4 units.*nn\.Flatten"),
    "a sum of a convolution and a layer": ([summed(lambda m, x: (h := m.conv(x).flatten(1)) + m.fc(h))], 3,
                                           "sum of conv .*4 units.*fc .*144 units.*capacities=1"),
    "a sum of convolutions": ([summed(lambda m, x: m.conv(x).flatten(1) + m.wide(x).flatten(1))], 3,
                              "sum of conv .*4 units.*wide .*16 units"),
}  # fmt: skip


@pytest.mark.parametrize(("layers", "axes", "words"), REFUSED.values(), ids=REFUSED)
def test_units_that_have_no_entries_of_their_own_are_refused_by_name(layers, axes, words):
    with pytest.raises(ValueError, match=words):
        Neurons.of(nn.Sequential(*layers) if len(layers) > 1 else layers[0], axes=axes)


def test_all_layers_that_add_up_to_the_logits_are_classifiers():
    layers = {"fc": nn.Linear(6, 4), "deep": nn.Linear(4, 3), "wide": nn.Linear(6, 3)}
    neurons = Neurons.of(Net(lambda m, x: m.deep(m.fc(x)) + m.wide(x), **layers))
    rows = {name for name, ours in zip(neurons.layout.names, neurons.classes, strict=True) if ours}
    assert rows == {"deep.weight", "deep.bias", "wide.weight", "wide.bias"}


# --- compact = masked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [1, 0.5, 0.0625])
@pytest.mark.parametrize("net", NETS)
def test_the_smaller_network_is_the_masked_one_forward_and_backward(net, ratio):
    whole, m = module(net), 3
    small = Width(ratio)(whole)
    neurons, b = Neurons.of(whole), batch(m, 5, SHAPES[net], 5)
    keep = random_keep(neurons, m, ratio)
    places = neurons.places(keep)
    assert places.shape == (m, models.Layout.of(small).d)
    Y = rows(whole, m)
    mask = mask_of(neurons, keep)
    for path in ("batched", "sequential"):
        g = Engine(small, path).gradient(Y.gather(1, places), b)[0]
        G = Engine(whole, path).gradient(Y * mask, b, Loss(rate=[ratio] * m))[0] * mask
        assert relative(torch.zeros_like(Y).scatter_(1, places, g), G) < 1e-10, path
    a, c = Engine(small).logits(Y.gather(1, places), b), Engine(whole).logits(Y * mask, b)
    if ratio == 1 or net not in ("thesis_cnn_small", "preact", "heads"):  # scalers of the masked network have rate 1
        assert relative(a, c) < 1e-12


def test_a_scaler_divides_in_training_and_is_the_identity_in_evaluation():
    scaler, x = models.Scaler(0.25), torch.randn(3)
    assert torch.equal(scaler(x), 4 * x)
    assert torch.equal(scaler.eval()(x), x)


# --- combine ------------------------------------------------------------------------------------------------------


def masks(m: int = 5, d: int = 400) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(3)
    x, Y = torch.randn(d, generator=g).double(), torch.randn(m, d, generator=g).double()
    p = torch.rand(m, 1, generator=g).double()
    return x, Y, torch.rand(m, d, generator=g) < 0.3, p / p.sum()


def test_combine_is_the_weighted_mean_over_who_trained_it_and_exactly_the_old_value_elsewhere():
    x, Y, mask, p = masks()
    new = combine(x, Y, mask, p)
    for j in range(len(x)):
        who = mask[:, j]
        if who.any():
            h.close(new[j], (p[who, 0] * Y[who, j]).sum() / p[who].sum(), 1e-12)
        else:
            assert new[j] == x[j]
    assert not mask.any(0).all()  # there were such entries


def test_the_sums_over_sub_models_are_those_over_all_entries_and_look_nowhere_else():
    x, Y, mask, p = masks()
    own = torch.stack([torch.arange(40), torch.arange(100, 140)])
    shared = torch.arange(20, 220)[None].expand(2, -1)
    parts = [Part(np.array([3])), Part(np.array([0, 4]), Width(0.5), shared), Part(np.array([1, 2]), Width(0.25), own)]
    inside = torch.zeros_like(mask)
    for part in parts:
        part.put(inside, torch.ones(part.take(inside).shape, dtype=torch.bool))
    assert inside.sum(1).tolist() == [200, 40, 40, 400, 200]
    mask, Z = mask & inside, torch.where(inside, Y, torch.nan)
    h.close(combine(x, Z, mask, p, 0.7, parts=parts), combine(x, Y, mask, p, 0.7), 1e-14)


@pytest.mark.parametrize("some", [[1, 3], [0, 1, 2, 3, 4]])
def test_a_part_takes_and_puts_what_an_index_of_rows_and_entries_does(some):
    Y = masks()[1]
    for places in (torch.arange(9)[None].expand(len(some), -1), torch.arange(9 * len(some)).view(len(some), 9)):
        part, at = Part(np.array(some), Width(0.5), places), (torch.tensor(some)[:, None], places)
        assert torch.equal(part.take(Y), Y[at])
        assert torch.equal(part.take(Y[0].expand(5, -1)), Y[0].expand(5, -1)[at])
        put, want = Y.clone(), Y.clone()
        part.put(put, -Y[at])
        want[at] = -Y[at]
        assert torch.equal(put, want)


# --- heads, costs -------------------------------------------------------------------------------------------------


def test_a_stage_ends_where_the_number_of_channels_changes():
    assert stages(module("heads")) == 3
    assert stages(multihead("preact_resnet18")((3, 32, 32), 10)) == 4
    assert stages(multihead("thesis_mlp")((1, 8, 8), 10)) == 2
    assert stages(module("preact")) == 1
    with pytest.raises(ValueError, match="two or more hidden layers"):
        with_heads(models.mlp((4,), 3, hidden=(5,)), 3)
    with pytest.raises(ValueError, match="Sequential"):
        with_heads(module("vectors"), 5)


def test_the_first_stages_are_a_network_whose_entries_are_those_of_the_whole():
    whole = module("heads")
    layout, flat = models.Layout.of(whole), models.flatten(whole)
    for D in (1, 2, 3):
        small = Depth(D)(whole)
        assert stages(small) == D
        assert torch.equal(models.flatten(small), flat[Depth(D).places(layout)])


def test_costs_are_counted_and_are_those_of_the_catalogue():
    """Averages over the five levels; the study's Table 4.2 prints 441.19k / 16.12M and 3.08M / 155.12M."""

    def average(name, shape, classes):
        net = models.MODELS[name](shape, classes)
        each = [cost(Width(r)(net), shape) for r in LEVELS]
        return [np.mean([c[k] for c in each]) for k in ("parameters", "macs")]

    h.close(average("thesis_cnn", (1, 28, 28), 10), [415.8e3, 10.7e6], 5e-3)
    h.close(average("preact_resnet18", (3, 32, 32), 10), [2.98e6, 148.2e6], 5e-3)


# --- activations and public data ----------------------------------------------------------------------------------


def test_a_budget_scores_with_that_many_samples_drawn_per_client():
    fed = h.network(sizes=(13, 7, 20), shape=(1, 8, 8), classes=5, model="thesis_mlp")
    clients = np.arange(3)
    whole = fed.activations(fed.x0, clients)
    some, again, other = (fed.activations(fed.x0, clients, 8, key=k) for k in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(some, again, strict=True))
    assert not torch.equal(some[0][0], other[0][0])
    h.close(some[0][1], whole[0][1], 1e-12)  # client 1 has 7 samples: all of them
    assert not torch.equal(some[0][2], whole[0][2])
    alone = fed.activations(fed.x0, clients[2:], 8, key=1)
    h.close(alone[0][0], some[0][2], 1e-12)  # whoever else is there


def test_public_samples_are_of_every_class_and_of_no_client():
    x, y = h.images(200, (1, 4, 4), 5)
    x.reshape(200, -1)[:, 2] = np.arange(200)  # every picture is its own
    fed = fc.federation((x, y), clients=4, model="logistic", public=3, device="cpu")
    later = fc.federation((x, y), clients=4, model="logistic", device="cpu").set_aside(3)
    assert torch.equal(later.public[0], fed.public[0])  # the same samples, taken after the partition
    mine = {row.tobytes() for row in fed.public[0].numpy()}
    assert len(mine) == 15
    for one in (fed, later):
        assert one.public[1].bincount().tolist() == [3] * 5
        assert one.sizes.sum() == 160 - 15
        theirs = [one.test[0], *(one.x[torch.as_tensor(part)] for part in one.index)]
        assert not mine & {row.tobytes() for row in torch.cat(theirs).numpy()}


PUBLIC = h.images(100, (1, 4, 4), 5)
REFUSED_PUBLIC = {
    "more than there are": (lambda fed: fed.set_aside(17), r"public=17 samples per class, but one class has 14"),
    "training samples": (lambda fed: fed.with_public(fed.source.train_x[:3], np.zeros(3, int)),
                         r"3 public samples are .* samples too; .*never from the"),
    "test samples": (lambda fed: fed.with_public(fed.source.test_x[:2], np.zeros(2, int)),
                     r"2 public samples are .* samples too; .*never from the"),
    "another type": (lambda fed: fed.with_public(fed.source.train_x[:2] / 3, np.zeros(2, int)), r"float64 .*uint8"),
    "twice": (lambda fed: fed.set_aside(1).set_aside(1), "has public data already"),
    "all of a client's": (lambda fed: h.network(sizes=(20, 1), classes=3).set_aside(7),
                          r"clients \[.*1\] have no training data"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED_PUBLIC.values(), ids=REFUSED_PUBLIC)
def test_public_data_that_cannot_be_are_refused(change, words):
    fed = fc.federation(PUBLIC, clients=4, model="logistic")
    with pytest.raises(ValueError, match=words):
        change(fed)


# --- capacities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "words"), [
    (lambda: fc.HeteroFL({1: 0.5, 0.5: 0.4}), r"shares sum to 0.9; .*sum to 1"),
    (lambda: fc.HeteroFL({1: 1.2, 0.5: -0.2}), "share=-0.2|share=1.2"),
    (lambda: fc.HeteroFL(((1, 0.5), (1.0, 0.5))), "different ratios"),
    (lambda: fc.FederatedDropout(aligned=False, training="masked"), "aligned=False has no masked form"),
    (lambda: fc.DepthFL(training="masked"), "training='masked'"),
])  # fmt: skip
def test_capacities_and_trainings_that_cannot_be_are_refused(method, words):
    with pytest.raises(ValueError, match=words):
        method()


@pytest.mark.parametrize(("method", "fed", "words"), [
    (fc.HeteroFL(0.5), lambda: h.network(model="logistic"),
     r"capacity 0.5, but the model has no hidden neurons.*capacities=1"),
    (fc.DepthFL(0.5), lambda: fc.quadratic(*h.problem()), "a quadratic has no stages"),
    (fc.HeteroFL(1, labels="zero"), lambda: fc.quadratic(*h.problem()), r"a quadratic has no .*labels"),
    (fc.FedGSE(0.5, public=5), lambda: h.network(sizes=(30, 20), public=2),
     r"public=5 .*set 6 samples aside.*public=None"),
])  # fmt: skip
def test_federations_that_do_not_suit_are_refused_before_the_first_round(method, fed, words):
    with pytest.raises(ValueError, match=words):
        fc.simulate(method, fed(), rounds=1)


def test_methods_with_public_arrays_are_told_apart_by_their_content():
    x, y = h.images(6, (1, 4, 4), 3)
    a, b, c = (fc.FedGSE(0.5, public=(part, y)) for part in (x, x.copy(), 255 - x))
    assert a == b != c
    assert repr(a) == repr(b) != repr(c)


SIZES = (13, 7, 20, 14, 9, 11)
RUN = {
    "rounds": 3, "lr": 0.1, "batch_size": 4, "local_epochs": 2, "momentum": 0.5, "clip": 1.0, "weight_decay": 1e-3,
}  # fmt: skip
BRIEF = RUN | {"rounds": 2, "local_epochs": 1}
methods = lambda given: pytest.mark.parametrize("method", given, ids=lambda m: repr(m).replace(" ", ""))  # noqa: E731


def federation(model="thesis_mlp", sizes=SIZES, classes=5, **options):
    return h.network(sizes=sizes, shape=(1, 8, 8), classes=classes, model=NARROWED.get(model, model), **options)


# --- limits -------------------------------------------------------------------------------------------------------


@methods([
    fc.HeteroFL(1), fc.FjORD(1), fc.FederatedDropout(1), fc.FedRolex(1), fc.DepthFL(1, alpha=0), fc.FedDSE(1, 1.0),
    fc.FedGSE(1), fc.HeteroFL(1, training="masked"),
])  # fmt: skip
@pytest.mark.parametrize("model", ["thesis_cnn_small", "quadratic"])
def test_capacity_one_is_fedavg_bit_for_bit(method, model):
    fed = fc.quadratic(*h.problem()) if model == "quadratic" else federation(model)
    for options in (BRIEF, {"rounds": 3, "cohort": 3, "weighting": "samples", "server_lr": 0.7, "batch_size": None}):
        a, b = (fc.simulate(m, fed, **options) for m in (fc.FedAvg(), method))
        assert torch.equal(a.params, b.params)
        assert a.rows == b.rows


def test_capacity_one_needs_no_rule_for_the_layers():
    fed = federation(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, classes)))
    assert torch.equal(*(fc.simulate(m, fed, **RUN).params for m in (fc.HeteroFL(1), fc.FedAvg())))


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


# --- what is kept -------------------------------------------------------------------------------------------------


@methods([fc.HeteroFL(0.5), fc.FedDSE({0.25: 1.0}), fc.FedGSE(0.25, public=1)])
def test_entries_that_nobody_trained_stay_exactly_what_they_were(method):
    fed, options = federation("thesis_cnn_small"), {"cohort": 2, "lr": 0.1, "batch_size": 5, "momentum": 0.5}
    after = torch.as_tensor(h.trajectory(method, fed, 3, **options))
    for t, (r, _) in enumerate(h.watched(method, fed, rounds=3, **options)[1]):
        untouched = ~r.mask.any(0)
        assert untouched.sum() > 1000
        assert torch.equal(after[t + 1][untouched], after[t][untouched])
        assert not torch.equal(after[t + 1], after[t])


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
        _, ((r, _),) = h.watched(fc.FederatedDropout(0.5, aligned=aligned), fed, rounds=1, batch_size=5)
        views = fed.engine.layout.views(r.mask)
        stem, block = (views[name].flatten(2).any(2) for name in ("0.weight", "1.body.4.weight"))
        apart.append((stem != block).any().item())
        assert (stem.sum(1) == block.sum(1)).all()
    assert apart == [False, True]


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


@pytest.mark.parametrize("method", [fc.HeteroFL, fc.FedGSE, fc.DepthFL], ids=lambda m: m.__name__)
def test_logits_beyond_the_labels_are_nobodys(method):
    x, y = h.images(120, (1, 8, 8), 4)
    net = multihead("thesis_cnn_small")((1, 8, 8), 6) if method is fc.DepthFL else fc.models.digit_cnn((1, 8, 8), 6)
    fed = fc.federation((x, y), 3, fc.IID(), net, seed=0, dtype=torch.float64)
    work = {"rounds": 2, "lr": 0.1, "local_steps": 2, "batch_size": 8}
    end = fc.simulate(method({1: 0.5, 0.5: 0.5}, labels="zero"), fed, **work).params
    moved = (end - fed.x0)[fed.layout.slices[-1]]
    assert moved[:4].abs().min() > 0
    assert moved[4:].abs().max() == 0


# --- DepthFL ------------------------------------------------------------------------------------------------------


def test_depthfl_gives_a_model_without_heads_its_heads():
    fed, headed = federation("thesis_cnn_small"), federation("heads")
    a, b = fc.simulate(fc.DepthFL(LEVELS), fed, **RUN), fc.simulate(fc.DepthFL(LEVELS), headed, **RUN)
    assert len(a.params) == len(b.params) == headed.d > fed.d


def test_depthfl_sends_the_share_of_its_first_stages_and_heads():
    fed = fc.federation("digits", 4, model=multihead("thesis_cnn_small"), seed=0)
    for ratio in (0.5, 0.25):
        part = submodels.Depth(math.ceil(ratio * fed.stages))(fed.engine.module)
        share = sum(p.numel() for p in part.parameters()) / fed.d
        assert fc.DepthFL(ratio).cost(fed.layout).up == pytest.approx(share)
    assert fc.DepthFL(0.5).cost().down is None  # the network's matter
    assert fc.DepthFL(1).cost().down == fc.DepthFL(1).cost(fed.layout).down == 1


# --- FedGSE -------------------------------------------------------------------------------------------------------


def normed(shape, classes):
    """Convolutions and a linear layer, each with scaler, batch norm and ReLU: 3, 7 and 12."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), models.Scaler(), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 3, 3), models.Scaler(), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(48, 6), models.Scaler(), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes),
    )  # fmt: skip


def test_the_printed_score_warns_by_name_where_it_vanishes_and_the_first_units_are_kept_there():
    fed, method = federation(normed, public=3), fc.FedGSE(0.5, scoring="printed")
    with pytest.warns(UserWarning, match="eq. 4-3 is zero up to rounding in 7, whose .*public-code"):
        _, ((r, _),) = h.watched(method, fed, rounds=1, batch_size=4)
    for name, first in (("0.bias", False), ("4.bias", True), ("9.bias", False)):
        kept = fed.engine.layout.views(r.mask)[name]
        assert kept[:, : kept[0].sum()].all() == first, name


def test_no_other_score_and_no_model_without_batch_norm_warns():
    with warnings.catch_warnings(action="error"):
        fc.FedGSE(0.5, scoring="printed-before").on(federation(normed, public=3))
        fc.FedGSE(0.5, public=2, scoring="printed").on(federation())


def test_spl_keeps_what_the_clients_model_gets_right_and_csl_all_with_its_labels():
    truth = torch.tensor([0, 0, 1, 1, 2, 2])
    guess = torch.stack([truth, torch.zeros(6, dtype=int), torch.tensor([1, 1, 2, 2, 0, 0])])  # right, constant, wrong
    r, everything = SimpleNamespace(seed=0, t=0, ids=np.arange(3), x=truth.double(), p=torch.ones(3, 1)), set(range(6))
    spl, csl = (fc.FedGSE(0.5, v).similar_samples(r, guess, truth, guess == truth) for v in ("SPL", "CSL"))
    for picked, _, w in (spl, csl):
        assert (picked.sort(1).values == torch.arange(6)).all()
        h.close(w.sum(1), torch.ones(3), 1e-12)
    for (picked, _, w), sets in ((spl, [everything, {0, 1}, everything]), (csl, [everything] * 3)):
        assert [set(picked[i][w[i] > 0].tolist()) for i in range(3)] == sets  # nothing right: SPL takes all of them
    assert torch.equal(spl[1], truth[spl[0]])
    assert torch.equal(csl[1], guess.gather(1, csl[0]))


def test_fedgse_takes_its_public_data_from_the_clients_when_none_is_set_aside():
    fed, (x, y) = federation(), h.images(10, seed=5)
    a = fc.simulate(fc.FedGSE(0.5, public=2), fed, **RUN).params
    b = fc.simulate(fc.FedGSE(0.5), fed.set_aside(2), **RUN).params
    assert torch.equal(a, b)
    c = fc.simulate(fc.FedGSE(0.5, public=(x, y)), fed, **RUN).params
    d = fc.simulate(fc.FedGSE(0.5), fed.with_public(torch.tensor(x), y), **RUN).params
    assert torch.equal(c, d)
    assert not torch.equal(a, c)


@pytest.mark.filterwarnings("ignore:no training sample has a label")
def test_generated_samples_are_normal_with_the_mean_and_variance_of_each_class_over_all_clients():
    x, y = np.random.default_rng(0).normal(3, 2, (300, 5)).astype(np.float32), np.arange(300) % 3
    y[y == 1] = 3  # nobody has class 1

    def made(clients, partition, seed):
        fed = fc.federation(((x, y), (x[:1], y[:1])), clients, partition, "logistic", seed=seed)
        return fc.Gaussians(20_000).samples(fed.source, fed.data.parts, fed.seed)

    drawn, labels = made(4, fc.IID(), 0)
    assert drawn.dtype == np.float32
    assert np.bincount(labels).tolist() == [20_000, 0, 20_000, 20_000]
    for c in (0, 2, 3):
        h.close(drawn[labels == c].mean(0), x[y == c].astype(float).mean(0), 0.06)
        h.close(drawn[labels == c].std(0), x[y == c].astype(float).std(0), 0.06)
    h.close(made(7, fc.Dirichlet(0.5), 0)[0], drawn, 1e-5)  # however the samples are dealt out
    assert not np.allclose(made(4, fc.IID(), 1)[0], drawn, atol=1)


def test_a_large_offset_of_the_inputs_leaves_the_spread_of_generated_samples():
    """Around 1e6 neighbouring float32 are 1/16 apart; mean square minus squared mean would lose a spread as small."""
    spread = np.random.default_rng(0).choice([0, 1 / 16], (300, 5)).astype(np.float32)
    x, y = spread + np.float32(1e6), np.zeros(300, int)
    a, b, c = (fc.data.generated.moments(x[i], y[i], 1) for i in np.split(np.arange(300), [40, 41]))
    _, mean, squares = fc.data.generated.merged(fc.data.generated.merged(a, b), c)
    h.close(mean[0] - 1e6, spread.mean(0, dtype=float), 1e-6)
    h.close(squares[0] / 300, spread.var(0, dtype=float), 1e-8)


def test_fedgse_runs_on_generated_samples_as_on_the_same_ones_that_are_given():
    fed, made = federation(), fc.Gaussians(2)
    x, y = made.samples(fed.source, fed.data.parts, fed.seed)
    assert x.dtype == np.uint8
    a, b = (fc.simulate(fc.FedGSE(0.5, public=public), fed, **RUN).params for public in (made, (x, y)))
    assert torch.equal(a, b)


def test_a_class_of_one_sample_cannot_be_generated_because_its_mean_is_the_sample():
    x, y = h.images(60, (1, 4, 4), 3)
    fed = fc.federation((x, np.where(np.arange(60) == 0, 3, y)), clients=4, model=h.small_mlp)
    with pytest.raises(ValueError, match="one class has a single sample, which its mean would hand over"):
        fc.FedGSE(0.5, public=fc.Gaussians(2)).on(fed)


def test_texts_have_no_gaussians():
    fed = fc.federation("roles", partition=fc.ByOwner(), model="lstm")
    with pytest.raises(ValueError, match=r"Gaussians\(per_class=2\) needs inputs of numbers .*not texts; give"):
        fc.Gaussians(2).samples(fed.source, fed.data.parts, 0)


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


@pytest.mark.parametrize("net", sorted({*NARROWED} - {"vectors", "heads"}))
def test_heads_leave_the_trunk_and_its_last_classifier_as_they_were(net):
    whole = module(net)
    headed, x = with_heads(whole, 5).double().eval(), torch.randn(4, 1, 8, 8, dtype=torch.float64)
    out = x
    for stage in headed.stages:
        out = stage(out)
    assert torch.equal(headed.heads[-1](out), whole.eval()(x))


def test_activations_under_batch_norm_do_not_depend_on_the_other_clients(monkeypatch):
    monkeypatch.setattr(fc.objective.federation, "CLIENT_CHUNK", 6)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    fed = h.network(sizes=(13, 7, 19), shape=(1, 8, 8), classes=5, model=net)  # 13 = 2 * 6 + 1: none stands alone
    together = fed.activations(fed.x0, np.arange(3))[0]
    for i in range(3):
        h.close(fed.activations(fed.x0, np.array([i]))[0][0], together[i], 1e-12)


@pytest.mark.parametrize("n", [7, 10])
def test_capacities_are_dealt_out_in_exact_proportion_by_the_seed(n):
    ratio, other = (fc.HeteroFL(LEVELS).ratios(seed, n) for seed in (0, 1))
    assert all(abs((ratio == r).sum() - share * n) < 1 for r, share in LEVELS.items())
    assert not np.array_equal(ratio, other)


def test_shared_parameters_are_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    with pytest.raises(ValueError, match="shares parameters"):
        Neurons.of(net)


def test_a_sub_model_of_a_federation_starts_at_its_part_and_is_evaluated_at_its_width():
    fed = h.network(sizes=(30, 20), shape=(1, 8, 8), model="thesis_cnn_small")
    places, small = fed.neurons().places(fed.neurons().prefix(0.5))[0], fed.shrink(Width(0.5))
    assert torch.equal(small.x0, fed.x0[places])
    masked = torch.zeros_like(fed.x0).index_copy(0, places, fed.x0[places])
    h.close(small.evaluate(fed.x0[places])["loss"], fed.evaluate(masked)["loss"], 1e-12)
