"""Modules on texts `[L]` and sequences `[L, F]`: their gradients are autograd's on the module alone, on the batched
path where it has rules for them."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import Net, batch, by_autograd, relative, rows
from torch import nn

import fedcore as fc
from fedcore.engine import Engine

L, V, F, C = 7, 9, 4, 5  # steps, symbols, features, classes
CPU = torch.device("cpu")


def text(forward, **layers: nn.Module) -> nn.Module:
    return Net(lambda m, x: m.out(forward(m, m.e(x))), e=nn.Embedding(V, F), out=nn.Linear(6, C), **layers)


def series(forward, **layers: nn.Module) -> nn.Module:
    return Net(lambda m, x: m.out(forward(m, x)), **{"out": nn.Linear(6, C)} | layers)


def lstm(hidden_size=6, **options):
    return nn.LSTM(F, hidden_size, **{"batch_first": True} | options)


def gru(**options):
    return nn.GRU(F, 6, **{"batch_first": True} | options)


TEXTS = {
    "LSTM": lambda: text(lambda m, x: m.r(x)[0][:, -1], r=lstm()),
    "LSTM, h_n squeezed": lambda: text(lambda m, x: m.r(x)[1][0].squeeze(0), r=lstm(bias=False)),
    "LSTM between layers": lambda: text(
        lambda m, x: torch.relu(m.b(m.n(m.r(m.a(x))[0])))[:, -1], a=nn.Linear(F, F), r=lstm(), n=nn.LayerNorm(6),
        b=nn.Linear(6, 6)),
    "GRU": lambda: text(lambda m, x: m.r(x)[0][:, -1], r=gru()),
    "GRU of two layers, h_n": lambda: text(lambda m, x: m.r(x)[1][-1], r=gru(num_layers=2, bias=False)),
    "an LSTM, then a GRU": lambda: text(
        lambda m, x: m.s(torch.tanh(m.r(x)[0]))[0][:, -1], r=lstm(), s=nn.GRU(6, 6, batch_first=True)),
    "bag of symbols": lambda: Net(
        lambda m, x: m.out(m.e(x.long()).mean(dim=1)), e=nn.Embedding(V, 6, padding_idx=2), out=nn.Linear(6, C)),
    "convolution of a text": lambda: text(
        lambda m, x: torch.relu(m.c(x.transpose(1, 2))).mean(2), c=nn.Conv1d(F, 6, 3)),
}  # fmt: skip
SERIES = {
    "LSTM of two layers": lambda: series(lambda m, x: m.r(x)[0][:, -1, :], r=lstm(num_layers=2)),
    "1-D CNN": lambda: nn.Sequential(
        nn.Conv1d(L, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 8, 2, groups=2),
        nn.GroupNorm(2, 8), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, C)),
    "1-D CNN, functions": lambda: series(
        lambda m, x: nn.functional.max_pool1d(torch.relu(m.c(x)), 2, 2, 0, 1, True).flatten(1),
        c=nn.Conv1d(L, 6, 3, padding="same"), out=nn.Linear(12, C)),
    "1-D CNN, largest": lambda: nn.Sequential(
        nn.Conv1d(L, 6, 3), nn.AvgPool1d(2), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(6, C)),
    "residual": lambda: series(
        lambda m, x: (x + m.c(x)).mean(1), c=nn.Conv1d(L, L, 3, padding=1), out=nn.Linear(F, C)),
    "MLP": lambda: nn.Sequential(nn.Flatten(), nn.Linear(L * F, 6), nn.ReLU(), nn.Linear(6, C)),
}  # fmt: skip
BY_CLIENT = {
    "LSTM with options": lambda: series(
        lambda m, x: m.r(x)[0][:, -1], r=lstm(bidirectional=True), out=nn.Linear(12, C)),
    "GRU with options": lambda: series(lambda m, x: m.r(x)[0][:, -1], r=nn.GRU(F, 6)),  # along the samples
    "a recurrent layer in nn.Sequential": lambda: nn.Sequential(
        lstm(), Net(lambda m, out: out[0][:, -1]), nn.Linear(6, C)),
}  # fmt: skip
ALL = [*((kind, (L,), make) for kind, make in TEXTS.items()), *((k, (L, F), make) for k, make in SERIES.items())]


def setting(make, shape, dtype=torch.float64):
    torch.manual_seed(0)
    module, b = make().to(dtype), batch(3, 4, shape, C, dtype)
    if shape == (L,):
        b = replace(b, x=torch.randint(0, V, b.x.shape, generator=torch.Generator().manual_seed(0)))
    return module, rows(module, 3, dtype), b


@pytest.mark.parametrize(("kind", "shape", "make"), ALL, ids=lambda v: str(v) if isinstance(v, str | tuple) else "")
def test_gradients_are_autograds_on_the_module_alone(kind, shape, make):
    module, Y, b = setting(make, shape)
    engine = Engine(module)
    assert engine.described(CPU, len(shape)) == ("'written'" if kind == "MLP" else "'batched'")
    truth = by_autograd(copy.deepcopy(module), Y, b)
    for one in (engine, engine.forced("batched"), Engine(module, "batched", block=2)):
        assert relative(one.gradient(Y, b)[0], truth) < 1e-10
    along = torch.ones_like(Y)
    curved = engine.forced("sequential").gradient(Y, b, along=along)[0]
    assert relative(engine.gradient(Y, b, along=along)[0], curved) < 1e-8
    real = b.w > 0
    assert relative(engine.logits(Y, b)[real], engine.forced("sequential").logits(Y, b)[real]) < 1e-10


@pytest.mark.parametrize("reason", BY_CLIENT)
def test_what_has_no_rule_goes_one_by_one_and_says_why(reason):
    module, Y, b = setting(BY_CLIENT[reason], (L, F))
    engine = Engine(module)
    assert "which is slow: no rule for" in engine.described(CPU, 2)
    assert reason in engine.described(CPU, 2)
    with pytest.warns(UserWarning, match=reason):
        assert relative(engine.gradient(Y, b)[0], by_autograd(module, Y, b)) < 1e-12


def test_a_slow_path_is_said_once_and_not_where_it_was_asked_for(recwarn):
    def run(model, path="auto"):
        draw = np.random.default_rng(0)
        source = draw.integers(0, V, (60, L)), draw.integers(0, C, 60)
        fed = fc.federation(source, clients=5, model=model, path=path, layout="text")
        for _ in range(2):
            fc.simulate(fc.FedAvg(), fed, rounds=2, local_steps=1)

    slow = text(lambda m, x: m.r(x)[0][:, -1], r=lstm(bidirectional=True, hidden_size=3))
    run(slow)
    run(slow, "sequential")
    run(TEXTS["GRU"]())
    (notice,) = [str(w.message) for w in recwarn]
    for words in ("Net is 'sequential' (one client after another", "LSTM with options", "path='sequential'"):
        assert words in notice


def test_dropout_on_sequences_is_what_a_client_would_draw_alone():
    module, Y, b = setting(lambda: text(lambda m, x: m.r(m.d(x))[0][:, -1], r=lstm(), d=nn.Dropout(0.4)), (L,))
    engine = Engine(module)
    assert relative(engine.gradient(Y, b)[0], engine.forced("sequential").gradient(Y, b)[0]) < 1e-12
