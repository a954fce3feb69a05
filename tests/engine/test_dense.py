"""Outputs of other shapes than [B, C], and losses of them: the same as in a plain loop, on every path."""

from __future__ import annotations

import warnings

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedcore as fc

G = np.random.default_rng(0)
PICTURES, MASKS = G.random((48, 2, 6, 5)), G.integers(0, 3, (48, 6, 5))
TOKENS = G.integers(0, 7, (48, 9))
NEXT = np.where(G.random((48, 9)) < 0.3, -100, G.integers(0, 7, (48, 9)))
NEXT[:, 0] = TOKENS[:, 1]  # one token of each sample counts at least
FEATURES, HEIGHTS = G.random((48, 5)), G.random(48)


class Channels(nn.Module):
    """Logits of tokens `[B, V, L]`, as the cross-entropy takes them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x))).transpose(1, 2)


class One(nn.Module):
    """One number a sample, `[B]`."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


class Spread(nn.Module):
    """Pixels that a module of one's own gives, with a condition that torch.vmap does not take."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)

    def forward(self, x):
        z = self.conv(x)
        return z if float(z.detach().abs().sum()) >= 0 else -z


def convolutions():
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))


def linears():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Unflatten(1, (3, 2)))


def pixels(z, y):
    return F.cross_entropy(z, y, reduction="none").flatten(1).mean(1)


def tokens(z, y):
    return F.cross_entropy(z, y, ignore_index=-100, reduction="none").sum(1) / (y != -100).sum(1)


KINDS = {
    "segmentation": (convolutions, pixels, (PICTURES, MASKS), {}),
    "segmentation, mean": (convolutions, nn.CrossEntropyLoss(), (PICTURES, MASKS), {}),
    "segmentation, weighted": (
        convolutions,
        lambda z, y: F.cross_entropy(z, y, torch.tensor([1.0, 2.0, 0.5]).to(z), reduction="none").flatten(1).mean(1),
        (PICTURES, MASKS), {}),
    "segmentation, one after another": (Spread, pixels, (PICTURES, MASKS), {}),
    "next token": (Channels, tokens, (TOKENS, NEXT), {"layout": "text"}),
    "one number": (One, nn.MSELoss(), (FEATURES, HEIGHTS), {}),
    "one number each": (One, lambda z, y: (z - y) ** 2, (FEATURES, HEIGHTS), {}),
    "matrices": (linears, nn.MSELoss(), (FEATURES, G.random((48, 3, 2))), {}),
}  # fmt: skip


def made(kind, **options):
    model, loss, source, layout = KINDS[kind]
    torch.manual_seed(0)
    settings = {"clients": 4, "loss": loss, "dtype": torch.float64, **layout}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fc.federation(source, model=model(), **settings | options)


@pytest.mark.filterwarnings("ignore:.*is trained one client after another")
@pytest.mark.parametrize("batch_size", [5, None])
@pytest.mark.parametrize("path", ["auto", "sequential"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_outputs_of_any_shape_is_the_plain_loop(kind, path, batch_size):
    fed = made(kind, path=path)
    run = {"rounds": 2, "lr": 0.3, "local_steps": 2, "batch_size": batch_size}
    history = fc.simulate(fc.FedAvg(), fed, **run)
    module, loss, x = KINDS[kind][0]().double(), KINDS[kind][1], fed.x0
    for t in range(2):
        ends = []
        for i in range(4):
            nn.utils.vector_to_parameters(x.clone(), module.parameters())
            plan = fed.plan(0, t, np.array([i]), steps=2, batch_size=batch_size)
            for k in range(2):
                rows = torch.as_tensor(fed.index[i]) if batch_size is None else plan.indices[k, 0, : plan.counts[k, 0]]
                value = loss(module(fed.inputs(fed.x[rows])), fed.y[rows]).mean()
                grads = torch.autograd.grad(value, list(module.parameters()))
                with torch.no_grad():
                    for p, g in zip(module.parameters(), grads, strict=True):
                        p -= 0.3 * g
            ends.append(nn.utils.parameters_to_vector(module.parameters()).detach())
        x = torch.stack(ends).mean(0)
    h.close(history.params, x, 1e-10)
    nn.utils.vector_to_parameters(x, module.parameters())
    test_x, test_y = fed.test
    wanted = loss(module(fed.inputs(test_x)), test_y).mean()
    h.close(fed.evaluate(x)["loss"], wanted, 1e-10)
    assert "accuracy" not in history.rows[0]
    h.close(fed.evaluate_clients(x.repeat(4, 1))["loss"], wanted.repeat(4), 1e-10)
    h.close(fed.module(x)(test_x), module(fed.inputs(test_x)), 1e-12)


W = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
X, Y = h.images(60, (1, 4, 4), 3)
ORDERED = (X, np.sort(Y))  # the first samples are of one class


def test_a_weighted_loss_for_each_sample_is_taken():
    fed = fc.federation(
        ORDERED, 4, model="logistic", loss=nn.CrossEntropyLoss(weight=W, reduction="none"), dtype=torch.float64
    )
    z, y = fed.module(fed.x0)(fed.test[0]), fed.test[1]
    h.close(fed.evaluate(fed.x0)["loss"], (W[y] * F.cross_entropy(z, y, reduction="none")).mean(), 1e-9)


@pytest.mark.parametrize(("options", "words"), [
    ({"loss": nn.CrossEntropyLoss(reduction="none")}, r"shape \(20, 6, 5\) for 20 samples.*flatten\(1\).mean\(1\)"),
    ({"loss": None}, "or loss= for several targets per input"),
    ({"loss": None, "source": (PICTURES, MASKS[:, 0, 0])}, r"gives \(3, 6, 5\) logits a sample.*give loss="),
    ({"model": nn.Sequential(nn.Flatten(0))}, "return one row a sample"),
])  # fmt: skip
def test_outputs_that_the_loss_does_not_take_say_how(options, words):
    options = {"source": (PICTURES, MASKS), "model": convolutions(), "loss": pixels} | options
    with pytest.raises(ValueError, match=words):
        fc.federation(options.pop("source"), 4, dtype=torch.float64, **options)


def test_methods_that_need_classes_say_so_of_dense_outputs():
    fed = made("segmentation")
    with pytest.raises(ValueError, match="no classes have no correct answers"):
        fed.correct(fed.x0)
    for method in (fc.SCAFFOLD(), fc.FedDyn(), fc.Ditto(), fc.DFedAvg()):
        assert np.isfinite(fc.simulate(method, fed, rounds=1, lr=0.1).final("loss"))


@pytest.mark.parametrize("ignored", [-100, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_mean_over_few_ignored_or_weighted_targets_is_refused_wherever_they_stand(ignored, weighted, last):
    masks = np.zeros((48, 6, 5), int)
    masks[47 - 1 if last else 20, 1:3, 2] = ignored
    masks[33, 0, 0] = ignored
    few = (
        nn.CrossEntropyLoss(torch.ones(3).index_fill(0, torch.tensor(max(ignored, 0)), 3.0))
        if weighted
        else (nn.CrossEntropyLoss(ignore_index=ignored))
    )
    if weighted and ignored < 0:
        few = nn.CrossEntropyLoss(torch.tensor([3.0, 1, 1]))
    for network in (convolutions(), Spread()):
        with pytest.raises(ValueError, match=r"reduction='none' and .flatten\(1\).mean\(1\)"):
            fc.federation((PICTURES, masks), clients=4, model=network, loss=few)
