"""Gradients, neuron masks and scores against autograd and counting."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from fedbook.measures import masks


def reference(net, x, y, at=()):
    """Loss and autograd's gradients of one network (no leading dimensions), by weights and by values `at`."""
    h, kept = x, []
    for i, (W, b) in enumerate(net):
        z = h @ W.T + b
        h = z.relu() if i < len(net) - 1 else z
        kept += [z, h]
    loss = F.cross_entropy(h, y)
    wanted = [p for layer in net for p in layer] + [kept[i] for i in at]
    return loss, torch.autograd.grad(loss, wanted)


def test_backward_is_autograds_for_every_network():
    net, x, y = masks.random_networks(5, (4, 7, 6, 3), 9)
    p = masks.backward(net, x, y)
    for r in range(5):
        one = [(W[r].clone().requires_grad_(), b[r].clone().requires_grad_()) for W, b in net]
        loss, grads = reference(one, x[r], y[r], at=(0, 1, 2, 3, 4))
        torch.testing.assert_close(p.loss[r], loss.detach())
        for got, expected in zip([t[r] for layer in p.gradient for t in layer], grads[:6], strict=True):
            torch.testing.assert_close(got, expected)
        found = (p.dz[0], p.dh[0], p.dz[1], p.dh[1], p.dz[2])
        for got, expected in zip(found, grads[6:], strict=True):
            torch.testing.assert_close(got[r], expected)


def test_scores_are_their_formulas_for_one_network():
    net, x, y = masks.random_networks(1, (4, 7, 3), 9, seed=3)
    one = [(W[0].requires_grad_(), b[0].requires_grad_()) for W, b in net]
    _, (W1, b1, W2, _, dz, dh) = reference(one, x[0], y[0], at=(0, 1))
    h = (x[0] @ one[0][0].T + one[0][1]).relu().detach()
    expected = {
        "eq. 4-3": [abs(sum(dh[s, i] for s in range(9))) for i in range(7)],
        "eq. 4-3 before ReLU": [abs(sum(dz[s, i] for s in range(9))) for i in range(7)],
        "sum |df/dh|": [sum(abs(dh[s, i]) for s in range(9)) for i in range(7)],
        "sum |df/dz|": [sum(abs(dz[s, i]) for s in range(9)) for i in range(7)],
        "mean activation": [h[:, i].mean() for i in range(7)],
        "row norm": [torch.cat([W1[i], b1[i : i + 1]]).norm() for i in range(7)],
        "row and column norm": [torch.cat([W1[i], b1[i : i + 1], W2[:, i]]).norm() for i in range(7)],
    }
    found = masks.scores([(W.detach(), b.detach()) for W, b in net], x, y)
    assert set(found) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(found[name][0][0], torch.stack(values).detach())


def test_gaps_are_differences_of_gradients_of_whole_networks():
    net, x, y = masks.random_networks(3, (4, 5, 4, 3), 6)
    every = masks.all_masks([5, 4], [2, 3])
    found = masks.gaps(net, x, y, every)
    full = masks.backward(net, x, y).gradient
    flat = lambda parts: torch.cat([t.flatten(1) for layer in parts for t in layer], 1)  # noqa: E731
    for c in (0, 7, len(every[0]) - 1):
        keeps = [m[c].expand(3, -1) for m in every]
        sub = masks.backward(masks.times(net, masks.entries(keeps, net)), x, y).gradient
        M = masks.entries(keeps, net)
        kept = [(dW * a, db * b) for (dW, db), (a, b) in zip(full, M, strict=True)]
        torch.testing.assert_close(found["sub-model"][:, c], (flat(full) - flat(sub)).norm(dim=1))
        torch.testing.assert_close(found["masked"][:, c], (flat(full) - flat(kept)).norm(dim=1))


def test_all_masks_are_all_and_different():
    every = masks.all_masks([6, 4], [3, 1])
    both = torch.cat(every, 1)
    assert len(both) == math.comb(6, 3) * 4 == len(both.unique(dim=0))
    assert (every[0].sum(1) == 3).all()
    assert (every[1].sum(1) == 1).all()
    assert masks.find([m[[5, 70]] for m in every], every).tolist() == [5, 70]


def test_top_keeps_the_first_of_equal_units():
    score = torch.tensor([[1.0, 3.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert masks.top([score], [2])[0].tolist() == [[True, True, False, False]] * 2


def test_standing_tells_zero_gaps_apart():
    gap = torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
    hit, ratio = masks.standing(gap, torch.tensor([1, 1, 1]))
    assert hit.tolist() == [True, False, False]
    assert ratio.tolist() == [1, math.inf, 2]


def test_a_survey_counts_what_standing_says_of_each_score_and_chance_is_the_mean_over_all_masks():
    net, x, y = masks.random_networks(30, (3, 4, 4, 3), 8)
    every = masks.all_masks([4, 4], [2, 2])
    found, gap = masks.survey(net, x, y, every, [2, 2]), masks.gaps(net, x, y, every)["sub-model"]
    at = masks.find(masks.top(masks.scores(net, x, y)["eq. 4-3"], [2, 2]), every)
    least = gap.min(-1).values
    torch.testing.assert_close(found["eq. 4-3"]["sub-model ratio"], gap.gather(-1, at[:, None])[:, 0] / least)
    torch.testing.assert_close(found["any mask"]["sub-model ratio"], gap.mean(-1) / least)
    best = gap <= least[:, None] + 1e-9 * gap.max(-1, keepdim=True).values
    torch.testing.assert_close(found["any mask"]["sub-model"], best.double().mean(-1))  # several where units are dead


def test_other_data_choose_by_their_scores_and_the_gaps_stay_those_of_the_first():
    net, x, y = masks.random_networks(30, (3, 4, 4, 3), 8)
    every = masks.all_masks([4, 4], [2, 2])
    here, elsewhere = (masks.survey(net, x, y, every, [2, 2], **other) for other in ({}, {"data": (-x, y)}))
    assert (elsewhere["eq. 4-3"]["sub-model ratio"] != here["eq. 4-3"]["sub-model ratio"]).any()
    for name, value in elsewhere["any mask"].items():
        torch.testing.assert_close(value, here["any mask"][name])


def test_networks_come_from_the_seed():
    a, b, c = (masks.random_networks(4, (3, 5, 3), 6, seed=s)[0][0][0] for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
