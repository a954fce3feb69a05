"""Losses and metrics of the user's: the gradients of plain autograd, and metrics evaluated like accuracy."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from functools import partial

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Net
from torch import nn
from torch.func import functional_call

import fedcore as fc
from fedcore import rng
from fedcore.submodels import Width

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6))
REAL = X @ RNG.normal(size=(6,)) + 0.1 * RNG.normal(size=60)  # [N]
SEVERAL = np.stack([REAL, REAL**2], 1)  # [N, 2]
LABELS = (X @ RNG.normal(size=(6, 4)) > 0).astype(float)  # [N, 4], several at once
CLASSES = X[:, :3].argmax(1)
RUN = {"rounds": 2, "lr": 0.05, "local_steps": 3, "batch_size": 5}

PICTURES, MASKS = RNG.random((60, 2, 6, 5)), RNG.integers(0, 3, (60, 6, 5))
TOKENS = RNG.integers(0, 7, (60, 9))
NEXT = np.where(RNG.random((60, 9)) < 0.3, -100, RNG.integers(0, 7, (60, 9)))
NEXT[:, 0] = TOKENS[:, 1]  # one token of each sample counts at least


def pixels(z, y):
    return F.cross_entropy(z, y, reduction="none").flatten(1).mean(1)


def tokens(z, y):
    return F.cross_entropy(z, y, ignore_index=-100, reduction="none").sum(1) / (y != -100).sum(1)


# name: loss as the user writes it, inputs, targets
KINDS = {
    "regression": (lambda z, y: (z[:, 0] - y) ** 2, X, REAL),
    "regression, mean": (lambda z, y: F.mse_loss(z.squeeze(1), y), X, REAL),
    "two numbers": (nn.MSELoss(), X, SEVERAL),
    "labels": (F.binary_cross_entropy_with_logits, X, LABELS),
    "classes": (partial(F.cross_entropy, label_smoothing=0.1), X, CLASSES),
    "segmentation": (pixels, PICTURES, MASKS),
    "segmentation, mean": (nn.CrossEntropyLoss(), PICTURES, MASKS),
    "next token": (tokens, TOKENS, NEXT),
    "one number": (nn.MSELoss(), X, REAL),
}


def small(shape, outputs) -> nn.Module:
    return fc.models.mlp(shape, outputs, hidden=(8,))


def normed(shape, outputs) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs))


def plain(shape, outputs) -> nn.Module:
    """A user's network."""
    return Net(lambda m, x: m.b(torch.tanh(m.a(x))), a=nn.Linear(6, 5), b=nn.Linear(5, outputs))


def channels(*_) -> nn.Module:
    """Logits of tokens `[B, V, L]`, as the cross-entropy takes them."""
    layers = {"embedding": nn.Embedding(7, 4), "head": nn.Linear(4, 7)}
    return Net(lambda m, x: m.head(torch.tanh(m.embedding(x))).transpose(1, 2), **layers)


def spread(*_) -> nn.Module:
    """Pixels by a forward with a condition that torch.vmap does not take."""
    forward = lambda m, x: m.conv(x) if float(x.detach().abs().sum()) >= 0 else -m.conv(x)  # noqa: E731
    return Net(forward, conv=nn.Conv2d(2, 3, 3, padding=1))


def one_number(*_) -> nn.Module:
    """A number per sample, `[B]`."""
    return Net(lambda m, x: m.b(torch.tanh(m.a(x))).squeeze(1), a=nn.Linear(6, 4), b=nn.Linear(4, 1))


def convolutions(*_) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))


def fed(kind="regression", model=small, **options) -> fc.Federation:
    loss, x, y = KINDS[kind]
    made = {"source": ((x[:45], y[:45]), (x[45:], y[45:])), "loss": loss, "model": model, "dtype": torch.float64}
    made["partition"] = [np.arange(0, 13), np.arange(13, 20), np.arange(20, 45)]
    return fc.federation(**made | ({"layout": "text"} if kind == "next token" else {}) | options)


# --- gradients ----------------------------------------------------------------------------------------------------

USUAL = [(small, "batched"), (small, "sequential"), (normed, "batched"), (plain, "auto")]
# outputs of other shapes than [B, C]
OTHERS = [("segmentation", convolutions), ("segmentation, mean", convolutions), ("segmentation", spread)]
OTHERS += [("next token", channels), ("one number", one_number)]
CASES = [(kind, *how) for kind in list(KINDS)[:5] for how in USUAL]
CASES += [(kind, model, path) for kind, model in OTHERS for path in ("auto", "sequential")]


@pytest.mark.filterwarnings("ignore:.*one client after another")
@pytest.mark.parametrize("batch_size", [5, None])
@pytest.mark.parametrize(("kind", "model", "path"), CASES)
def test_gradients_and_evaluations_are_those_of_plain_autograd(kind, model, path, batch_size):
    one, loss = fed(kind, model, path=path), KINDS[kind][0]
    plan, module = one.plan(0, 0, np.arange(3), batch_size=batch_size), one.engine.module.train()
    Y = one.x0 + 0.1 * torch.randn(3, one.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G, losses = one.gradient_and_losses(Y, plan, 0)
    for row, i in enumerate(plan.clients):
        picked = one.index[i] if batch_size is None else plan.samples[0, row, : plan.counts[0, row]]
        leaf, rows = Y[row].clone().requires_grad_(), torch.as_tensor(picked)
        value = loss(functional_call(module, one.layout.views(leaf), (one.inputs(one.x[rows]),)), one.y[rows]).mean()
        h.close(G[row], torch.autograd.grad(value, leaf)[0], 1e-10)
        h.close(losses[row], value, 1e-10)
    found, net = one.evaluate(Y[0]), one.module(Y[0])
    h.close(found["loss"], loss(net(one.test[0]), one.test[1]).mean(), 1e-10)
    assert ("accuracy" in found) == (kind == "classes")
    if model is not normed:
        h.close(one.evaluate_clients(Y[:1].expand(3, -1))["loss"], found["loss"].repeat(3), 1e-10)


@pytest.mark.parametrize("kind", ["regression", "regression, mean"])
def test_hessian_vector_products_are_derivatives_of_these_gradients(kind):
    one = fed(kind, plain)
    plan, along = one.plan(0, 0, np.arange(3), batch_size=None), torch.ones(3, one.d, dtype=torch.float64)
    Y, step = one.x0.repeat(3, 1), 1e-6
    ahead, behind = (one.gradient(Y + s * along, plan, 0) for s in (step, -step))
    h.close(one.gradient(Y, plan, 0, along=along), (ahead - behind) / (2 * step), 1e-6)


def test_every_head_has_the_loss_and_the_prediction_is_their_mean():
    one = fed(model=lambda shape, outputs: fc.submodels.with_heads(fc.models.mlp(shape, outputs, (8, 5)), outputs))
    plan = one.plan(0, 0, np.arange(3), batch_size=None)
    G, leaf = one.gradient(one.x0.repeat(3, 1), plan, 0), one.x0.clone().requires_grad_()
    inputs, y = h.whole(one, 0)
    z = functional_call(one.engine.module.train(), one.layout.views(leaf), (inputs,))
    h.close(G[0], torch.autograd.grad(sum(F.mse_loss(z[:, k, 0], y) for k in range(2)), leaf)[0], 1e-10)
    z = one.module(one.x0)(one.test[0])
    h.close(one.evaluate(one.x0)["loss"], F.mse_loss(z[:, 0], one.test[1]), 1e-12)


@pytest.mark.parametrize("method", [fc.MimeLite(), fc.FedALA(1), fc.FedBN(), fc.HeteroFL({1: 0.5, 0.5: 0.5})], ids=repr)
def test_methods_run_on_any_loss(method):
    history = fc.simulate(method, fed("labels"), **RUN)
    assert history.final("loss") < history.curve("loss")[1][0]


def test_the_cross_entropy_as_ones_own_loss_is_the_default_to_rounding():
    a, b = (fc.simulate(fc.FedAvg(), fed("classes", loss=loss), **RUN) for loss in (None, F.cross_entropy))
    h.close(b.params, a.params, 1e-12)
    assert b.final("accuracy") == a.final("accuracy")
    h.close(b.final("loss"), a.final("loss"), 1e-12)


def test_targets_come_from_datasets_and_clients_too():
    dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABELS))
    a, b = (fed("labels", source=source, partition=None, clients=3) for source in (dataset, (X, LABELS)))
    assert a.fingerprint() == b.fingerprint()
    c = fed(source=[(X[:20], REAL[:20]), (X[20:], REAL[20:])], partition=None)
    assert (c.n, c.y.dtype, c.classes) == (2, torch.float64, 1)


W = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
LABELLED = h.images(60, (1, 4, 4), 3)
ORDERED = (LABELLED[0], np.sort(LABELLED[1]))  # the first samples are of one class


def test_a_weighted_loss_for_each_sample_is_taken():
    fed = fc.federation(
        ORDERED, 4, model="logistic", loss=nn.CrossEntropyLoss(weight=W, reduction="none"), dtype=torch.float64
    )
    z, y = fed.module(fed.x0)(fed.test[0]), fed.test[1]
    h.close(fed.evaluate(fed.x0)["loss"], (W[y] * F.cross_entropy(z, y, reduction="none")).mean(), 1e-9)


@pytest.mark.parametrize(("options", "words"), [
    ({"loss": nn.CrossEntropyLoss(reduction="none")}, r"shape \(20, 6, 5\) for 20 samples.*flatten\(1\).mean\(1\)"),
    ({"loss": None}, "or loss= for several targets per input"),
    ({"loss": None, "source": (PICTURES, MASKS[:, 0, 0])}, r"\(3, 6, 5\) a sample.*give loss="),
    ({"model": nn.Sequential(nn.Flatten(0))}, "return one row a sample"),
])  # fmt: skip
def test_outputs_that_the_loss_does_not_take_say_how(options, words):
    with pytest.raises(ValueError, match=words):
        fed("segmentation", **{"model": convolutions} | options)


TILT = torch.tensor([1.0, 3.0, 1.0])


@pytest.mark.parametrize(("loss", "ignored"), [
    (nn.CrossEntropyLoss(), -100), (nn.CrossEntropyLoss(ignore_index=2), 2),
    (lambda z, y: F.cross_entropy(z, y, TILT.to(z)), 1),
])  # fmt: skip
@pytest.mark.parametrize("first", [20, 46])
def test_a_mean_over_few_ignored_or_weighted_targets_is_refused_wherever_they_stand(loss, ignored, first):
    masks = np.zeros((60, 6, 5), int)
    masks[first, 1:3, 2] = masks[33, 0, 0] = ignored
    with pytest.raises(ValueError, match=r"weight= or ignore_index= .*reduction='none' and .flatten\(1\)"):
        fed("segmentation", convolutions, loss=loss, source=(PICTURES, masks))
    with pytest.raises(ValueError, match=r"weight= or ignore_index= .* use reduction='none'"):
        fc.federation(ORDERED, 4, model="logistic", loss=nn.CrossEntropyLoss(TILT))


# --- evaluation ---------------------------------------------------------------------------------------------------


def r2(z, y):
    return 1 - ((z[:, 0] - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()


def test_metrics_are_in_the_history_beside_the_loss_and_there_is_no_accuracy():
    one = fed(metrics={"R2": r2, "error": lambda z, y: (z[:, 0] - y).abs(), "ratio": lambda z, y: math.nan})
    history = fc.simulate(fc.FedAvg(), one, **RUN)
    assert set(history.frame().metric) == {"loss", "R2", "error", "ratio"}
    z, y = one.module(history.params)(one.test[0]), one.test[1]
    h.close(history.final("loss"), F.mse_loss(z[:, 0], y), 1e-12)
    h.close(history.final("R2"), r2(z, y), 1e-12)
    h.close(history.final("error"), F.l1_loss(z[:, 0], y), 1e-12)
    assert math.isnan(history.final("ratio"))
    assert history.plot() is not None
    with pytest.raises(ValueError, match=r"no classes.*metrics="):
        one.correct(history.params)


@pytest.mark.parametrize("mean", [False, True])
def test_a_loss_that_writes_over_what_it_is_given_leaves_labels_and_logits_as_they_are(mean):
    def masked(z, y):
        z.clamp_(-0.01, 0.01)
        valid = y > 0
        y.sub_(1).clamp_(min=0)
        each = F.cross_entropy(z, y, reduction="none") * valid
        return each.mean() if mean else each

    x, y = RNG.normal(size=(40, 6)), np.arange(40) % 3
    one = fc.federation(((x, y), (x, y)), clients=2, model=small, loss=masked, dtype=torch.float64)
    first = one.evaluate(one.x0)
    fc.simulate(fc.FedAvg(), one, **RUN | {"batch_size": None})
    one.objective(one.x0)
    for stored in (one.y, one.test[1]):
        np.testing.assert_array_equal(stored, y)
    assert one.evaluate(one.x0) == first
    z = one.module(one.x0)(one.test[0])
    assert float(one.correct(one.x0).double().mean()) == float((z.argmax(1) == one.test[1]).double().mean())


def test_a_metric_sees_the_whole_test_set_at_once():
    x, y = RNG.normal(size=(1300, 6)), RNG.normal(size=1300)
    sizes = []
    one = fc.federation(((x[:40], y[:40]), (x, y)), clients=2, model=small, loss=KINDS["regression"][0],
                        metrics={"n": lambda z, y: sizes.append(tuple(z.shape)) or len(y)})  # fmt: skip
    assert float(one.evaluate(one.x0)["n"]) == 1300
    assert sizes == [(1300, 1)]


def test_a_metric_may_write_and_draw_and_changes_neither_the_next_one_nor_the_generators():
    def drawn(z, y):
        z.sub_(z.amax()).exp_()
        y.clamp_(max=0)
        return torch.rand(()) + np.random.random()  # noqa: NPY002

    error = lambda z, y: F.mse_loss(z[:, 0], y)  # noqa: E731
    one = fed("regression", metrics={"drawn": drawn, "error": error, "again": drawn})
    states = rng.global_states()
    first = one.evaluate(one.x0)
    assert rng.global_states() == states
    assert first["error"] == fed("regression", metrics={"error": error}).evaluate(one.x0)["error"]
    assert one.evaluate(one.x0) == first


def test_metrics_come_with_class_labels_too_and_by_client():
    top2 = lambda z, y: (z.topk(2).indices == y[:, None]).any(1)  # noqa: E731
    one = fed("classes", loss=None, metrics={"top 2": top2}, model=normed)
    history = fc.simulate(fc.FedBN(), one, personal=True, **RUN | {"batch_size": None})
    X_ = history.method.personal(history.state, one.layout)
    for i in range(one.n):
        z = one.module(X_[i], client=i)(one.test[0])
        h.close(history.final("top 2", i), top2(z, one.test[1]).double().mean(), 1e-12)
        assert history.final("accuracy", i) <= history.final("top 2", i)


def test_a_loss_of_one_logit_on_class_labels_has_no_accuracy():
    binary = fed("classes", model=lambda shape, classes: small(shape, 1),
                 loss=lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], (y > 0).to(z.dtype)))  # fmt: skip
    assert binary.evaluate(binary.x0).keys() == {"loss"}


# --- identity -----------------------------------------------------------------------------------------------------


def test_the_loss_its_constants_and_the_metrics_are_part_of_a_runs_identity():
    def power(p):
        return lambda z, y: (z[:, 0] - y).abs() ** p

    losses = [power(2), power(4), *(partial(lambda f, z, y: f(z[:, 0], y), nn.HuberLoss(delta=d)) for d in (1.0, 2.0))]
    prints = [fed(loss=loss).fingerprint() for loss in losses]
    assert len(set(prints)) == len(losses)
    assert fed(loss=power(2)).fingerprint() == prints[0]
    assert fed(metrics={"R2": r2}).fingerprint() != fed().fingerprint() == fed(metrics={}).fingerprint()


def test_a_changed_federation_keeps_loss_and_metrics():
    one = fed("two numbers", metrics={"n": lambda z, y: len(y)})
    for other in (one.to(dtype=torch.float32), one.forced("sequential"), one.shrink(Width(0.5)),
                  one.with_model(lambda net: nn.Sequential(*net)), one.fastest(2, 4)):  # fmt: skip
        found = other.evaluate(other.x0)
        assert found.keys() == {"loss", "n"}
        z = other.module(other.x0)(other.test[0])
        h.close(found["loss"], F.mse_loss(z, other.test[1].to(z.dtype)), 1e-6)


# --- what cannot be ------------------------------------------------------------------------------------------------


def test_methods_that_replace_the_cross_entropy_say_so():
    with pytest.raises(ValueError, match=r"replaces the cross-entropy.*loss=None"):
        fc.simulate(fc.HeteroFL({1: 0.5, 0.5: 0.5}, labels="zero"), fed("classes"), **RUN)


@pytest.mark.parametrize(
    ("last", "loss", "words"),
    [
        (nn.Softmax(1), None, "probabilities, of which the cross-entropy takes a softmax once more"),
        (nn.Identity(), nn.NLLLoss(), r"loss=NLLLoss takes log-probabilities.*nn.LogSoftmax\(1\)"),
        (nn.Softmax(1), F.nll_loss, "loss=nll_loss takes log-probabilities"),
        (nn.LogSoftmax(1), nn.NLLLoss(), None),
        (nn.Softmax(1), lambda z, y: F.nll_loss(z.log(), y), None),
    ],
)
def test_a_model_whose_outputs_are_not_what_a_loss_of_torchs_takes_is_told_of(last, loss, words):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), last)
    with pytest.warns(UserWarning, match=words) if words else warnings.catch_warnings(action="error"):
        fc.federation(h.images(40, (1, 4, 4), 3), clients=2, model=model, loss=loss)


def test_what_needs_class_labels_says_so():
    one = fed()
    for call in (one.label_counts, lambda: one.set_aside(1), one.plot,
                 lambda: one.with_public(X[:3], np.arange(3)), lambda: fed(public=1)):  # fmt: skip
        with pytest.raises(ValueError, match=r"class labels"):
            call()
    with pytest.raises(ValueError, match=r"partitions by label need class labels"):
        fed(partition=fc.LabelSwap(partition=fc.Dirichlet(0.5)), clients=3)


def test_a_metric_that_is_no_number_is_named_before_the_first_round():
    with pytest.raises(TypeError, match=r"'m'.* str.* no number"):
        fc.simulate(fc.FedAvg(), fed(metrics={"m": lambda z, y: "good"}), **RUN)
    with pytest.raises(ValueError, match=r"'m'.*\(15, 1\).*15 samples.*\[T\]"):
        fc.simulate(fc.FedAvg(), fed(metrics={"m": lambda z, y: z}), **RUN)


def each(z, y):
    return F.cross_entropy(z, y, reduction="none")


held, calls = torch.Generator(), itertools.count()


@pytest.mark.parametrize(("loss", "words"), [
    (lambda z, y: each(z, y) * torch.rand(len(y)) if z.requires_grad else each(z, y), "draws random numbers"),
    (lambda z, y: each(z, y) if z.requires_grad else each(z, y) * torch.rand(len(y)), "draws random numbers"),
    (lambda z, y: F.cross_entropy(F.dropout(z, 0.5), y), "draws random numbers"),
    (lambda z, y: each(z, y) * random.random(), "draws random numbers"),
    (lambda z, y: each(z, y) * torch.rand(len(y), generator=held), "keeps memory"),
    (lambda z, y: each(z, y) * (2 if next(calls) > 15 else 1), "keeps memory"),
])  # fmt: skip
def test_a_loss_that_draws_or_gives_other_values_each_time_is_refused_by_its_cause(loss, words):
    with pytest.raises(ValueError, match=words):
        fed("classes", loss=loss)


def test_a_loss_that_keeps_memory_is_told_of_once_and_no_other():
    class Counting(nn.Module):
        """A loss that changes after 30 calls."""

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, z, y):
            self.calls += torch.is_grad_enabled()
            return each(z, y) * (2 if self.calls > 30 else 1)

    with pytest.warns(UserWarning, match=r"Counting changed self.calls during the run.*gets other results") as told:
        fc.simulate(fc.FedAvg(), fed("classes", loss=Counting()), **RUN | {"rounds": 4})
    assert len(told) == 1
    with warnings.catch_warnings(action="error"):
        fc.simulate(fc.FedAvg(), fed("classes", loss=nn.CrossEntropyLoss(label_smoothing=0.1)), **RUN)


def test_float32_federations_take_targets_in_float64():
    history = fc.simulate(fc.FedAvg(), fed(dtype=torch.float32), **RUN)
    assert history.params.dtype == torch.float32
    assert history.final("loss") < history.curve("loss")[1][0]
