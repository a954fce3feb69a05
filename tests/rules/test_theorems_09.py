"""Propositions on masks, in float64 and by enumeration: what a mask does to a gradient, what a score promises."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbook.measures import masks
from tools import book

SIZES, MASKS = (3, 6, 3), masks.all_masks([6], [3])


def row_norms(p, layer):
    """Length of the gradient of each unit's incoming weights and bias."""
    dW, db = p.gradient[layer]
    return (dW.square().sum(-1) + db.square()).sqrt()


@pytest.mark.parametrize("sizes", [SIZES, (4, 7, 5, 3)])
def test_thm_one_factor(sizes):
    """One sample: row norm = |df/dz| times a factor that all units of the layer share."""
    net, x, y = masks.random_networks(200, sizes, 1)
    p = masks.backward(net, x, y)
    for layer in range(len(sizes) - 2):
        factor = (p.h[layer].square().sum(-1) + 1).sqrt()  # the 1 is the bias
        torch.testing.assert_close(row_norms(p, layer), p.dz[layer][..., 0, :].abs() * factor, rtol=1e-12, atol=1e-15)


def test_thm_one_factor_fails_behind_the_relu_of_a_dead_unit():
    net, x, y = masks.random_networks(200, SIZES, 1)
    p = masks.backward(net, x, y)
    dead = p.h[1][..., 0, :] == 0
    assert dead.sum() > 400
    assert (row_norms(p, 0)[dead] == 0).all()
    assert (p.dh[0][..., 0, :][dead].abs() > 0).all()


def test_thm_one_factor_fails_for_a_sum_over_samples():
    net, x, y = masks.random_networks(2000, SIZES, 16)
    p = masks.backward(net, x, y)
    order = lambda score: score.argsort(-1)  # noqa: E731
    other = (order(p.dh[0].sum(-2).abs()) != order(row_norms(p, 0))).any(-1).double().mean()
    assert other > 0.9


def test_thm_dead_unit():
    """Eq. 4-3 keeps a dead unit: the other mask has gap 0, its own one a gap larger than the gradient itself."""
    net, x, y = two_units()
    p, score = masks.backward(net, x, y), masks.scores(net, x, y)["eq. 4-3"][0]
    share = 1 / (1 + torch.tensor(2.0, dtype=torch.float64).exp())  # probability of the wrong label
    torch.testing.assert_close(score, torch.stack([2 * share, 4 * share])[None])
    keep = masks.top([score], [1])
    assert keep[0].tolist() == [[False, True]]
    gap = masks.gaps(net, x, y, masks.all_masks([2], [1]))["sub-model"][0]
    assert gap[0] == 0
    whole = sum(dW.square().sum() + db.square().sum() for dW, db in p.gradient).sqrt()
    torch.testing.assert_close(gap[1] ** 2, 10 * share**2 + 2 * (0.5 - share) ** 2)
    assert gap[1] > 1.5 * whole > 0.6


def test_thm_dead_unit_says_whether_there_are_biases():
    """The network that the proposition describes, by autograd: without biases its formula would be another one."""
    cells = json.loads((book.ROOT / "book" / "fedgse.ipynb").read_text(encoding="utf-8"))["cells"]
    (text,) = (s for s in ("".join(cell["source"]) for cell in cells) if ":label: thm-dead-unit" in s)
    said = text.split(":label: thm-dead-unit")[1].split("````")[0]
    share = 1 / (1 + torch.tensor(2.0, dtype=torch.float64).exp())
    gaps = {}
    for biased in (False, True):
        net = nn.Sequential(nn.Linear(1, 2, biased), nn.ReLU(), nn.Linear(2, 2, biased)).double()
        whole, kept = (gradient(net, units) for units in ([0, 1], [1]))
        gaps[biased] = sum((a - b).square().sum() for a, b in zip(whole, kept, strict=True))
    torch.testing.assert_close(gaps[True], 10 * share**2 + 2 * (0.5 - share) ** 2)
    torch.testing.assert_close(gaps[False], 6 * share**2)
    assert r"\sqrt{10 p^2 + 2 (\frac12 - p)^2}" in said
    assert "biases of units and logits are part of the model" in " ".join(said.split())
    assert not re.search(r"(without|no) bias", said)


def gradient(net, units):
    """The gradients by all parameters, all biases 0, with the other of the two units set to zero: input 1, label 0."""
    keep = torch.tensor([unit in units for unit in range(2)], dtype=torch.float64)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]) * keep[:, None])
        net[2].weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, -2.0]]) * keep)
    loss = F.cross_entropy(net(torch.ones(1, 1, dtype=torch.float64)), torch.zeros(1, dtype=torch.long))
    return torch.autograd.grad(loss, list(net.parameters()))


def two_units():
    """One input, units (1, 0) and (-1, 0), one sample x = 1 of label 0, outgoing weights 1, -1 and 2, -2."""
    W = [[[[1.0], [-1.0]]], [[[1.0, 2.0], [-1.0, -2.0]]]]
    net = [(torch.tensor(w, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)) for w in W]
    return net, torch.ones(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.long)


@pytest.mark.parametrize(("sizes", "k"), [(SIZES, [3]), ((3, 5, 4, 3), [2, 3])])
def test_thm_two_parts(sizes, k):
    """The gradient of the sub-model is 0 off the mask, so the squared gap splits; the masked gap is the smaller one."""
    net, x, y = masks.random_networks(100, sizes, 8)
    every = masks.all_masks(sizes[1:-1], k)
    g = masks.gaps(net, x, y, every)
    torch.testing.assert_close(g["sub-model"] ** 2, g["masked"] ** 2 + g["kept"] ** 2, rtol=1e-10, atol=1e-14)
    assert (g["sub-model"] >= g["masked"] * (1 - 1e-12)).all()
    assert (g["kept"] > 0.01 * g["masked"]).double().mean() > 0.9
    for c in (0, len(every[0]) - 1):
        keeps = [m[c].expand(100, -1) for m in every]
        sub = masks.backward(masks.times(net, masks.entries(keeps, net)), x, y).gradient
        for (dW, db), (M, B) in zip(sub, masks.entries(keeps, net), strict=True):
            assert (dW[~M] == 0).all()
            assert (db[~B.expand_as(db)] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_thm_masked_optimum(seed):
    """Unit masks, one hidden layer: of all 20, the one of largest row and column norms has the smallest masked gap."""
    net, x, y = masks.random_networks(3000, SIZES, 16, seed=seed)  # so many that the masks come in pieces
    gap = masks.gaps(net, x, y, MASKS)["masked"]
    score = masks.scores(net, x, y)["row and column norm"]
    hit, ratio = masks.standing(gap, masks.find(masks.top(score, [3]), MASKS))
    assert hit.all()
    assert (ratio == 1).all()
    dropped = torch.where(MASKS[0], 0, score[0].unsqueeze(-2).square()).sum(-1).sqrt()  # every mask, not the best alone
    torch.testing.assert_close(gap, dropped, rtol=1e-10, atol=1e-14)


def test_thm_masked_optimum_by_rows_at_any_depth():
    sizes, k = (3, 5, 4, 3), [2, 2]
    net, x, y = masks.random_networks(300, sizes, 16)
    every = masks.all_masks(sizes[1:-1], k)
    gap = masks.gaps(net, x, y, every, columns=False)["masked"]
    rows = masks.scores(net, x, y)["row norm"]
    assert masks.standing(gap, masks.find(masks.top(rows, k), every))[0].all()


@pytest.mark.parametrize("score", ["eq. 4-3", "eq. 4-3 before ReLU", "sum |df/dz|", "mean activation", "row norm"])
def test_thm_masked_optimum_needs_both_norms(score):
    net, x, y = masks.random_networks(1000, SIZES, 16)
    chosen = masks.find(masks.top(masks.scores(net, x, y)[score], [3]), MASKS)
    assert masks.standing(masks.gaps(net, x, y, MASKS)["masked"], chosen)[0].double().mean() < 0.5


def derivatives(layer, shape, seed, statistics="batch"):
    """dF/dh `[samples, units, positions]` where h goes through `layer`, batch norm, ReLU and a classifier."""
    torch.manual_seed(seed)
    h = torch.randn(24, *shape, dtype=torch.float64).relu().requires_grad_()
    layer = layer.double()
    norm = (nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d)(len(layer.weight)).double()
    norm.train(statistics == "batch")
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    z = norm(layer(h)).relu().flatten(1)
    logits = z @ torch.randn(z.shape[1], 4, dtype=torch.float64)
    loss = F.cross_entropy(logits, torch.randint(4, (24,)))
    return torch.autograd.grad(loss, h)[0].flatten(2) if len(shape) > 1 else torch.autograd.grad(loss, h)[0][..., None]


def eq_4_3(D):
    return D.sum(0).abs().sum(-1)


@pytest.mark.parametrize("seed", range(3))
def test_thm_batch_norm_cancels(seed):
    """A linear layer and batch norm on batch statistics: eq. 4-3 is 0 for every unit, the absolute values are not."""
    D = derivatives(nn.Linear(5, 7), (5,), seed)
    assert eq_4_3(D).max() < 1e-14 < 1e-3 < D.abs().sum((0, 2)).min()
    # a convolution without padding: the sum over samples and positions is 0, as in the study's text, eq. 4-3 is not
    D = derivatives(nn.Conv2d(5, 7, 3), (5, 6, 6), seed)
    assert D.sum((0, 2)).abs().max() < 1e-14 < 1e-3 < eq_4_3(D).min()
    # maps of one pixel: both
    D = derivatives(nn.Conv2d(5, 7, 3, padding=1), (5, 1, 1), seed)
    assert eq_4_3(D).max() < 1e-14 < 1e-3 < D.abs().sum((0, 2)).min()


@pytest.mark.parametrize("seed", range(3))
def test_thm_batch_norm_cancels_needs_batch_statistics_and_no_padding(seed):
    fixed = derivatives(nn.Linear(5, 7), (5,), seed, "fixed")
    assert eq_4_3(fixed).min() > 1e-3
    padded = derivatives(nn.Conv2d(5, 7, 3, padding=1), (5, 6, 6), seed)
    assert padded.sum((0, 2)).abs().min() > 1e-6


def test_eq_4_3_violates_theorem_1_of_the_source_on_a_stored_seed():
    net, x, y = masks.random_networks(2000, SIZES, 16, seed=0)
    gap = masks.gaps(net, x, y, MASKS)["sub-model"]
    hit, ratio = masks.standing(gap, masks.find(masks.top(masks.scores(net, x, y)["eq. 4-3"], [3]), MASKS))
    assert 0.11 < hit.double().mean() < 0.18  # 14.5 % +- 4 binomial standard errors; Theorem 1 says 100 %
    assert not hit[0]
    assert ratio[0] > 1.05
    assert ratio.mean() > 1.3


def test_the_masked_optimum_need_not_be_the_best_sub_model():
    net, x, y = masks.random_networks(2000, SIZES, 16)
    chosen = masks.find(masks.top(masks.scores(net, x, y)["row and column norm"], [3]), MASKS)
    hit, ratio = masks.standing(masks.gaps(net, x, y, MASKS)["sub-model"], chosen)
    assert 0.72 < hit.double().mean() < 0.80
    assert ratio.mean() < 1.06


def test_two_hidden_layers_couple_so_greedy_top_k_is_no_longer_optimal():
    sizes, k = (3, 5, 5, 3), [2, 2]
    net, x, y = masks.random_networks(300, sizes, 16)
    every = masks.all_masks(sizes[1:-1], k)
    gap = masks.gaps(net, x, y, every)["masked"]
    greedy = masks.top(masks.scores(net, x, y)["row and column norm"], k)
    better = masks.alternate(masks.backward(net, x, y).gradient, greedy)
    before, after = (gap.gather(-1, masks.find(m, every)[:, None])[:, 0] for m in (greedy, better))
    assert (after <= before * (1 + 1e-12)).all()
    assert (after < before * (1 - 1e-6)).any()
    hits = [masks.standing(gap, masks.find(m, every))[0].double().mean() for m in (greedy, better)]
    assert 0.5 < hits[0] < 0.95 < hits[1]
