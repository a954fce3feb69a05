"""What the user's own code does beside computing its result is computed rightly, warned of, or refused by its cause."""

import itertools
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedcore as fc

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 3


class Net(nn.Module):
    """Two layers, and between them what `inner` does; `parts` are modules and numbers by name."""

    def __init__(self, inner=lambda net, z: F.relu(z), **parts):
        super().__init__()
        self.a, self.o, self.inner = nn.Linear(6, 8), nn.Linear(8, 3), inner
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.o(self.inner(self, self.a(x)))


class Unit(torch.autograd.Function):
    """The identity, whose gradient has the norm 1 over the whole batch."""

    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, g):
        return g / g.norm()


def hooked(net, z):
    if z.requires_grad:
        z.register_hook(lambda g: g / g.norm())
    return F.relu(z)


def centred(net, z):
    return z - z.mean(0) if net.training else z


def symbols(net, z):
    return net.e(z.detach().clamp(0, 3).long()).flatten(1)[:, :8] + z


MIXING = {
    "and dropout of a layer": lambda: Net(lambda net, z: net.d(centred(net, z)), d=nn.Dropout(1e-9)),
    "and dropout of rows": lambda: Net(lambda net, z: net.d(centred(net, z)[..., None])[..., 0], d=nn.Dropout1d(1e-9)),
    "and a function's dropout": lambda: Net(lambda net, z: F.dropout(centred(net, z), 1e-9, net.training)),
    "and random numbers of no effect": lambda: Net(lambda net, z: centred(net, z) + 0 * torch.randn_like(z)),
    "in the backward pass alone": lambda: Net(lambda net, z: F.relu(Unit.apply(z))),
    "in a hook of the backward pass": lambda: Net(hooked),
    "by the frequencies of symbols": lambda: Net(symbols, e=nn.Embedding(4, 2, scale_grad_by_freq=True)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MIXING)
def test_a_full_batch_whose_samples_a_module_mixes_is_not_cut(kind, monkeypatch):
    for name in ("SAMPLE_CHUNK", "CLIENT_CHUNK"):
        monkeypatch.setattr(f"fedcore.objective.federation.{name}", 10)
    torch.manual_seed(0)
    net = MIXING[kind]()
    fed = fc.federation(((X, Y), (X, Y)), partition=[np.arange(40)], model=net, path="sequential")
    found = fed.x0 - fc.simulate(fc.FedSGD(), fed, rounds=1, lr=1.0).params
    F.cross_entropy(net.train()(torch.tensor(X)), torch.tensor(Y)).backward()
    torch.testing.assert_close(found, torch.cat([p.grad.flatten() for p in net.parameters()]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("inner", [
    lambda: Net(lambda net, z: net.d(F.relu(z)), d=nn.Dropout(0.5)),
    lambda: Net(lambda net, z: net.l(z[:, None])[0][:, 0], l=nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)),
    lambda: Net(lambda net, z: net.l(z[:, None])[:, 0], l=nn.TransformerEncoderLayer(8, 2, 8, 0.5, batch_first=True)),
])  # fmt: skip
def test_dropout_alone_mixes_no_samples(inner):
    trial = fc.federation((X, Y), clients=2, model=inner(), path="sequential").engine.trial
    assert trial.draws
    assert not trial.mixes


# --- losses -----------------------------------------------------------------------------------------------------------


def each(z, y):
    return F.cross_entropy(z, y, reduction="none")


class Counting(nn.Module):
    """A loss that changes after 30 calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, z, y):
        self.calls += torch.is_grad_enabled()
        return each(z, y) * (2 if self.calls > 30 else 1)


def fed_with(loss):
    return fc.federation((X, Y), clients=2, model="logistic", loss=loss)


def test_a_loss_that_keeps_memory_is_told_of_once():
    fed = fed_with(Counting())
    with pytest.warns(UserWarning, match=r"Counting changed self.calls during the run.*gets other results") as told:
        fc.simulate(fc.FedAvg(), fed, rounds=4, local_steps=2)
    assert len(told) == 1


held, seen, calls = torch.Generator(), itertools.count(1), itertools.count()


@pytest.mark.parametrize(("loss", "words"), [
    (lambda z, y: each(z, y) * torch.rand(len(y)) if z.requires_grad else each(z, y), "draws random numbers"),
    (lambda z, y: each(z, y) if z.requires_grad else each(z, y) * torch.rand(len(y)), "draws random numbers"),
    (lambda z, y: each(z + torch.randn_like(z), y), "draws random numbers"),
    (lambda z, y: F.cross_entropy(F.dropout(z, 0.5), y), "draws random numbers"),
    (lambda z, y: each(z, y) * random.random(), "draws random numbers"),
    (lambda z, y: each(z, y) * torch.rand(len(y), generator=held), "keeps memory"),
    (lambda z, y: each(z, y) / next(seen), "keeps memory"),
    (lambda z, y: F.cross_entropy(z, y) / next(seen), "keeps memory"),
    (lambda z, y: each(z, y) * (2 if next(calls) > 15 else 1), "keeps memory"),
])  # fmt: skip
def test_a_loss_that_draws_or_gives_other_values_each_time_is_refused_by_its_cause(loss, words):
    with pytest.raises(ValueError, match=words):
        fed_with(loss)


@pytest.mark.parametrize("loss", [each, F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_a_loss_of_logits_and_targets_alone_is_not_spoken_of(loss):
    with warnings.catch_warnings(action="error"):
        fc.simulate(fc.FedAvg(), fed_with(loss), rounds=2)


# --- models -----------------------------------------------------------------------------------------------------------


def kept_in_evaluation():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    return Frozen(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Compiled(Net):
    def __init__(self):
        super().__init__()
        self.a = torch.compile(self.a, backend="eager")


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Net(symbols, e=nn.Embedding(4, 2, sparse=True)), r"sparse gradient by .* 'e\.weight'.*sparse=False"),
    (kept_in_evaluation, r"batch norm '1' stays in evaluation mode.*F\.batch_norm.*buffers"),
    (lambda: torch.compile(Net(), backend="eager"), r"OptimizedModule, 'itself'.*_orig_mod"),
    (Compiled, r"OptimizedModule, 'a'.*_orig_mod"),
])  # fmt: skip
def test_a_model_is_refused_by_its_cause(make, words):
    with pytest.raises(ValueError, match=words):
        fc.federation((X, Y), clients=2, model=make())


def test_the_remedy_for_a_batch_norm_in_evaluation_mode_works():
    class Fixed(Net):
        def __init__(self):
            super().__init__(lambda net, z: F.relu(F.batch_norm(z, net.mean, net.var)))
            self.register_buffer("mean", torch.ones(8))
            self.register_buffer("var", torch.ones(8))

    fed = fc.federation((X, Y), clients=2, model=Fixed())
    assert torch.isfinite(fc.simulate(fc.FedAvg(), fed, rounds=1).params).all()
