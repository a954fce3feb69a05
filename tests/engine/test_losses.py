"""Losses and metrics of the user's: the gradients of plain autograd, and metrics evaluated like accuracy."""

from __future__ import annotations

import math
import warnings
from functools import partial

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
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

# name: loss as the user writes it, its mean by plain autograd, targets
KINDS = {
    "regression": (lambda z, y: (z[:, 0] - y) ** 2, lambda z, y: F.mse_loss(z[:, 0], y), REAL),
    "regression, mean": (lambda z, y: F.mse_loss(z.squeeze(1), y), lambda z, y: F.mse_loss(z[:, 0], y), REAL),
    "two numbers": (nn.MSELoss(), F.mse_loss, SEVERAL),
    "two numbers, sums": (lambda z, y: (z - y).abs().sum(1), lambda z, y: (z - y).abs().sum(1).mean(), SEVERAL),
    "labels": (F.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, LABELS),
    "labels, module": (nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits, LABELS),
    "classes": (partial(F.cross_entropy, label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.1), CLASSES),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def small(shape, outputs) -> nn.Module:
    return fc.models.mlp(shape, outputs, hidden=(8,))


def normed(shape, outputs) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs))


class Plain(nn.Module):
    """A user's network, which no rule knows."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, outputs)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def fed(kind="regression", model=small, **options) -> fc.Federation:
    loss, _, y = KINDS[kind]
    parts = [np.arange(0, 13), np.arange(13, 20), np.arange(20, 45)]
    options = {"loss": loss, "partition": parts, "model": model, "dtype": torch.float64} | options
    return fc.federation(((X[:45], y[:45]), (X[45:], y[45:])), **options)


def gradient(fed, kind, row, picked, module=None):
    """The gradient of the mean loss on these samples by plain autograd, and the loss."""
    leaf, rows = row.detach().clone().requires_grad_(), torch.as_tensor(picked)
    net = (module or fed.engine.module).train()
    value = KINDS[kind][1](functional_call(net, fed.layout.views(leaf), (fed.inputs(fed.x[rows]),)), fed.y[rows])
    return torch.autograd.grad(value, leaf)[0], value.detach()


# --- gradients ----------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("batch_size", [5, None])
@pytest.mark.parametrize(("model", "path"), [(small, "batched"), (small, "sequential"), (small, "auto"),
                                             (normed, "batched"), (Plain, "auto")])  # fmt: skip
def test_gradients_are_those_of_plain_autograd(kind, batch_size, model, path):
    one = fed(kind, model, path=path)
    plan = one.plan(0, 0, np.arange(3), batch_size=batch_size)
    Y = one.x0 + 0.1 * torch.randn(3, one.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    G, losses = one.gradient_and_losses(Y, plan, 0)
    for row, i in enumerate(plan.clients):
        picked = one.index[i] if batch_size is None else plan.samples[0, row, : plan.counts[0, row]]
        want, value = gradient(one, kind, Y[row], picked)
        h.close(G[row], want, 1e-10)
        h.close(losses[row], value, 1e-10)


@every_kind
def test_hessian_vector_products_are_derivatives_of_these_gradients(kind):
    one = fed(kind, Plain)
    plan, along = one.plan(0, 0, np.arange(3), batch_size=None), torch.ones(3, one.d, dtype=torch.float64)
    Y, step = one.x0.repeat(3, 1), 1e-6
    ahead, behind = (one.gradient(Y + s * along, plan, 0) for s in (step, -step))
    if kind != "two numbers, sums":  # whose second derivative is none
        h.close(one.gradient(Y, plan, 0, along=along), (ahead - behind) / (2 * step), 1e-6)


def test_every_head_has_the_loss_and_the_prediction_is_their_mean():
    one = fed(model=lambda shape, outputs: fc.submodels.with_heads(fc.models.mlp(shape, outputs, (8, 5)), outputs))
    plan = one.plan(0, 0, np.arange(3), batch_size=None)
    G, leaf = one.gradient(one.x0.repeat(3, 1), plan, 0), one.x0.clone().requires_grad_()
    inputs, y = h.whole(one, 0)
    z = functional_call(one.engine.module.train(), one.layout.views(leaf), (inputs,))
    (want,) = torch.autograd.grad(sum(F.mse_loss(z[:, k, 0], y) for k in range(2)), leaf)
    h.close(G[0], want, 1e-10)
    z = one.module(one.x0)(one.test[0])
    h.close(one.evaluate(one.x0)["loss"], F.mse_loss(z[:, 0], one.test[1]), 1e-12)


@pytest.mark.parametrize("method", [
    fc.SCAFFOLD(), fc.FedDyn(0.1), fc.MimeLite(), fc.FedSAM(0.05), fc.FedBN(), fc.FedALA(1), fc.DFedAvg(fc.Complete()),
    fc.HeteroFL({1: 0.5, 0.5: 0.5}), fc.FedProx(0.1),
], ids=repr)  # fmt: skip
def test_methods_run_on_any_loss(method):
    history = fc.simulate(method, fed("labels"), **RUN)
    assert history.final("loss") < history.curve("loss")[1][0]


def test_the_cross_entropy_as_ones_own_loss_is_the_default_to_rounding():
    a, b = (fc.simulate(fc.FedAvg(), fed("classes", loss=loss), **RUN) for loss in (None, F.cross_entropy))
    h.close(b.params, a.params, 1e-12)
    assert b.final("accuracy") == a.final("accuracy")
    h.close(b.final("loss"), a.final("loss"), 1e-12)


def test_float32_federations_take_targets_in_float64():
    history = fc.simulate(fc.FedAvg(), fed(dtype=torch.float32), **RUN)
    assert history.params.dtype == torch.float32
    assert history.final("loss") < history.curve("loss")[1][0]


def test_targets_come_from_datasets_and_clients_too():
    dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABELS))
    options = {"loss": nn.BCEWithLogitsLoss(), "model": small, "dtype": torch.float64}
    a = fc.federation(dataset, clients=3, **options)
    b = fc.federation((X, LABELS), clients=3, **options)
    assert a.fingerprint() == b.fingerprint()
    c = fc.federation([(X[:20], REAL[:20]), (X[20:], REAL[20:])], model=small, loss=KINDS["regression"][0])
    assert c.n == 2
    assert c.y.dtype == torch.float64
    assert c.classes == 1


# --- outputs of other shapes than [B, C]: the same as in a plain loop, on every path ----------------------------------

PICTURES, MASKS = RNG.random((48, 2, 6, 5)), RNG.integers(0, 3, (48, 6, 5))
TOKENS = RNG.integers(0, 7, (48, 9))
NEXT = np.where(RNG.random((48, 9)) < 0.3, -100, RNG.integers(0, 7, (48, 9)))
NEXT[:, 0] = TOKENS[:, 1]  # one token of each sample counts at least
FEATURES, HEIGHTS = RNG.random((48, 5)), RNG.random(48)


class Channels(nn.Module):
    """Logits of tokens `[B, V, L]`, as the cross-entropy takes them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x))).transpose(1, 2)


class One(nn.Module):
    """One number per sample, `[B]`."""

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


DENSE = {
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
    "matrices": (linears, nn.MSELoss(), (FEATURES, RNG.random((48, 3, 2))), {}),
}  # fmt: skip


def made(kind, **options):
    model, loss, source, layout = DENSE[kind]
    torch.manual_seed(0)
    settings = {"clients": 4, "loss": loss, "dtype": torch.float64, **layout}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fc.federation(source, model=model(), **settings | options)


@pytest.mark.filterwarnings("ignore:.*one client after another")
@pytest.mark.parametrize("batch_size", [5, None])
@pytest.mark.parametrize("path", ["auto", "sequential"])
@pytest.mark.parametrize("kind", DENSE)
def test_a_run_on_outputs_of_any_shape_is_the_plain_loop(kind, path, batch_size):
    fed = made(kind, path=path)
    run = {"rounds": 2, "lr": 0.3, "local_steps": 2, "batch_size": batch_size}
    history = fc.simulate(fc.FedAvg(), fed, **run)
    module, loss, x = DENSE[kind][0]().double(), DENSE[kind][1], fed.x0
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
    options = {"source": (PICTURES, MASKS), "model": convolutions(), "loss": pixels} | options
    with pytest.raises(ValueError, match=words):
        fc.federation(options.pop("source"), 4, dtype=torch.float64, **options)


TILT = torch.tensor([1.0, 3.0, 1.0])


@pytest.mark.parametrize(("loss", "ignored"), [
    (nn.CrossEntropyLoss(), -100), (nn.CrossEntropyLoss(ignore_index=2), 2), (nn.CrossEntropyLoss(TILT), 1),
    (nn.CrossEntropyLoss(TILT), -100), (lambda z, y: F.cross_entropy(z, y, TILT.to(z)), 1),
])  # fmt: skip
@pytest.mark.parametrize("last", [False, True])
def test_a_mean_over_few_ignored_or_weighted_targets_is_refused_wherever_they_stand(loss, ignored, last):
    masks = np.zeros((48, 6, 5), int)
    masks[47 - 1 if last else 20, 1:3, 2] = ignored
    masks[33, 0, 0] = ignored
    for network in (convolutions(), Spread()):
        with pytest.raises(ValueError, match=r"weight= or ignore_index= .*reduction='none' and .flatten\(1\)"):
            fc.federation((PICTURES, masks), clients=4, model=network, loss=loss)
    with pytest.raises(ValueError, match=r"weight= or ignore_index= .* use reduction='none'"):
        fc.federation(ORDERED, 4, model="logistic", loss=nn.CrossEntropyLoss(TILT))


# --- evaluation ---------------------------------------------------------------------------------------------------


def r2(z, y):
    return 1 - ((z[:, 0] - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()


def error(z, y):
    return (z[:, 0] - y).abs()


def test_metrics_are_in_the_history_beside_the_loss_and_there_is_no_accuracy():
    one = fed(metrics={"R2": r2, "mean absolute error": error, "samples": lambda z, y: len(y)})
    history = fc.simulate(fc.FedAvg(), one, **RUN)
    assert set(history.frame().metric) == {"loss", "R2", "mean absolute error", "samples"}
    z, y = one.module(history.params)(one.test[0]), one.test[1]
    h.close(history.final("loss"), F.mse_loss(z[:, 0], y), 1e-12)
    h.close(history.final("R2"), r2(z, y), 1e-12)
    h.close(history.final("mean absolute error"), error(z, y).mean(), 1e-12)
    assert history.final("samples") == 15
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


def test_a_loss_of_ones_own_on_class_labels_keeps_the_accuracy_where_logits_are_classes():
    one = fed("classes")
    z = one.module(one.x0)(one.test[0])
    assert float(one.evaluate(one.x0)["accuracy"]) == float((z.argmax(1) == one.test[1]).double().mean())
    binary = fed("classes", model=lambda shape, classes: small(shape, 1),
                 loss=lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], (y > 0).to(z.dtype)))  # fmt: skip
    assert binary.evaluate(binary.x0).keys() == {"loss"}


def test_a_metric_that_is_undefined_is_recorded_and_ends_no_run():
    history = fc.simulate(fc.FedAvg(), fed(metrics={"ratio": lambda z, y: math.nan}), **RUN)
    assert len(history.curve("ratio")[1]) == 3
    assert math.isnan(history.final("ratio"))


# --- identity -----------------------------------------------------------------------------------------------------


def power(p, offset=torch.zeros(1)):
    return lambda z, y: (z[:, 0] - y + offset).abs() ** p


class Power:
    def __init__(self, p):
        self.p = p

    def __call__(self, z, y):
        return (z[:, 0] - y).abs() ** self.p


def test_the_loss_and_its_constants_are_part_of_a_runs_identity():
    losses = [
        power(2), power(4), power(2, torch.ones(1)), Power(2), Power(4), lambda z, y: (z[:, 0] - y).exp(),
        partial(lambda z, y, p: (z[:, 0] - y).abs() ** p, p=2), partial(lambda z, y, p: (z[:, 0] - y).abs() ** p, p=3),
        nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0),
    ]  # fmt: skip
    losses[-2:] = [partial(lambda f, z, y: f(z[:, 0], y), f) for f in losses[-2:]]
    prints = [fed(loss=loss).fingerprint() for loss in losses]
    assert len(set(prints)) == len(losses)
    assert fed(loss=power(2)).fingerprint() == prints[0]
    assert fed(loss=Power(4)).fingerprint() == prints[4]
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


@pytest.mark.parametrize("method", [
    fc.HeteroFL({1: 0.5, 0.5: 0.5}, labels="zero"), fc.FjORD({1: 0.5, 0.5: 0.5}), fc.DepthFL({1: 0.5, 0.5: 0.5}),
], ids=repr)  # fmt: skip
def test_methods_that_replace_the_cross_entropy_say_so(method):
    one = fed("classes", model=lambda shape, c: fc.models.mlp(shape, c, (8, 5)))
    with pytest.raises(ValueError, match=r"replaces the cross-entropy.*loss=None"):
        fc.simulate(method, one, **RUN)


@pytest.mark.parametrize(
    ("last", "loss", "words"),
    [
        (nn.Softmax(1), None, "probabilities, of which the cross-entropy takes a softmax once more"),
        (nn.Softmax(1), nn.CrossEntropyLoss(), "leave the softmax out of the model"),
        (nn.Identity(), nn.NLLLoss(), r"loss=NLLLoss takes log-probabilities.*nn.LogSoftmax\(1\)"),
        (nn.Softmax(1), F.nll_loss, "loss=nll_loss takes log-probabilities"),
        (nn.Identity(), None, None),
        (nn.LogSoftmax(1), None, None),
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
    for partition in (fc.Dirichlet(0.5), fc.Shards(2), fc.LabelSwap(partition=fc.Dirichlet(0.5))):
        with pytest.raises(ValueError, match=r"partitions by label need class labels"):
            fed(partition=partition, clients=3)


def test_a_metric_that_is_no_number_is_named_before_the_first_round():
    with pytest.raises(TypeError, match=r"'m'.* str.* no number"):
        fc.simulate(fc.FedAvg(), fed(metrics={"m": lambda z, y: "good"}), **RUN)
    with pytest.raises(ValueError, match=r"'m'.*\(15, 1\).*15 samples.*\[T\]"):
        fc.simulate(fc.FedAvg(), fed(metrics={"m": lambda z, y: z}), **RUN)
