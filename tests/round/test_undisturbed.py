"""A run is a function of its arguments: not of other threads, of what the caller has switched on, nor of the order in
which training data lie."""

import copy
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import fedcore as fc
from fedcore import models
from fedcore.data import clients as data

G = np.random.default_rng(0)
X, Y = G.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3
PATHS = ("auto", "batched", "sequential")


def network(*layers, out=8):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, out), *layers, nn.Linear(out, 3))


def federation(model="mlp", **more):
    return fc.federation(((X, Y), (X[:20], Y[:20])), clients=5, model=model, seed=0, **more)


def run(fed, **more):
    return fc.simulate(fc.FedAvg(), fed, **{"rounds": 3, "lr": 0.1, "batch_size": 6, "progress": False} | more)


def normed():
    return network(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))


def carrying():
    """A network whose buffers each run carries on."""
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Linear(6, 8)), nn.ReLU(), norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(("make", "path"), [*((normed, path) for path in PATHS), (carrying, "auto")])
def test_threads_on_one_federation_leave_what_runs_one_after_another_leave(make, path):
    fed, rates, usual = federation(make(), path=path), [0.01, 0.05, 0.1, 0.2, 0.4, 0.8], sys.getswitchinterval()
    alone = [run(fed, lr=lr).rows for lr in rates]
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda lr: run(fed, lr=lr).rows, rates)) == alone
    finally:
        sys.setswitchinterval(usual)


def test_threads_that_make_federations_get_the_weights_of_their_seeds_and_read_modules_as_alone():
    """torch's generator, torch.fx and warnings lend what belongs to the whole process."""

    def made(seed):
        fed = fc.federation("digits", clients=4, model="thesis_cnn_small", seed=seed)
        return fed.x0, federation(HeadFirst()).engine.described(fed.device, 1)

    alone, before = [made(seed) for seed in range(4)], list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        for (x0, path), (want, same) in zip(pool.map(made, range(4)), alone, strict=True):
            assert torch.equal(x0, want)
            assert path == same
    assert warnings.filters == before


def test_initial_weights_are_the_seeds_alone():
    def drawn(shape, classes):  # weights of a user's function, from each generator that there is
        net = models.mlp(shape, classes)
        net[1].bias.data += float(np.random.uniform())  # noqa: NPY002
        return net

    for model in ("mlp", drawn):
        first = federation(model).x0
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(federation(model).x0, first)
        finally:
            torch.set_default_dtype(torch.float32)
        for context in (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)):
            with context:
                assert torch.equal(federation(model).x0, first)


CONTEXTS = {
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "path"), [*((kind, "auto") for kind in CONTEXTS), ("inference_mode", "sequential")])
def test_a_run_within_a_callers_context_is_the_run_outside(kind, path):
    fed, method = federation("mlp", path=path), fc.SCAFFOLD()
    outside = run(fed)
    state, _ = fc.one_round(method, fed, fc.start(method, fed), 0, lr=0.1)
    with CONTEXTS[kind]():
        inside = federation("mlp", path=path)
        assert run(fed).rows == run(inside).rows == outside.rows
        assert fed.evaluate(outside.params) == inside.evaluate(outside.params)
        again, _ = fc.one_round(method, inside, fc.start(method, inside), 0, lr=0.1)
    assert torch.equal(again["x"], state["x"])
    assert run(inside).rows == outside.rows, "made in the context, run outside"


def test_tensors_of_an_inference_may_be_data_and_start():
    with torch.inference_mode():
        x, y, start = torch.tensor(X) * 1, torch.tensor(Y) * 1, models.flatten(models.mlp((6,), 3)) * 1
    fed = fc.federation(((x, y), (x[:20], y[:20])), clients=5, model="mlp", start=start)
    assert np.isfinite(run(fed, batch_size=None).final("loss"))


# --- batch norm's statistics are those of all training data ---

WIDE = np.repeat(5.0 * np.arange(3), 30)[:, None] + X  # three clients, each with a brightness of its own
DEEP = {
    "two": lambda: network(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()),
    "without running statistics": lambda: network(nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU()),
    "a mean over all batches": lambda: network(nn.BatchNorm1d(8, momentum=None), nn.ReLU()),
    "with dropout between": lambda: network(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8)),
    "behind a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ),
}


def at_two_places():
    norm = nn.BatchNorm1d(8)
    return network(norm, nn.Tanh(), nn.Linear(8, 8), norm)


DEEP["at two places"] = at_two_places


def evaluated(model, order, chunk, monkeypatch, **more):
    monkeypatch.setattr(data, "EVAL_CHUNK", chunk)
    given = {"train_images": WIDE[order], "train_labels": Y[order], "test_images": WIDE[::3], "test_labels": Y[::3]}
    given["train_owner"] = np.repeat(np.arange(3), 30)[order]
    fed = fc.federation(given, partition=fc.ByOwner(), model=copy.deepcopy(model), seed=0, dtype=torch.float64, **more)
    return fed, float(fed.evaluate(fed.x0)["loss"])


@pytest.mark.parametrize("kind", DEEP)
def test_neither_the_order_of_the_rows_nor_the_chunks_change_an_evaluation(kind, monkeypatch):
    torch.manual_seed(0)
    model, rows = DEEP[kind](), np.arange(90)
    orders, chunks = [rows, rows[::-1], np.argsort(Y, kind="stable")], [7, 30, 44, 89, 90]
    found = [evaluated(model, order, chunk, monkeypatch)[1] for order in orders for chunk in chunks]
    assert np.ptp(found) < 1e-9 * found[0]


class Branched(nn.Module):
    """Dark and bright samples have batch norms of their own, and a third one follows."""

    def __init__(self):
        super().__init__()
        self.a, self.n, self.o = nn.Linear(6, 8), nn.ModuleList(nn.BatchNorm1d(8) for _ in range(3)), nn.Linear(8, 3)

    def forward(self, x):
        z, bright = self.a(x), x.mean(1) > 2
        for norm, some in zip(self.n, (bright, ~bright), strict=False):
            if some.any():
                z = z.index_put((some,), norm(z[some]))
        return self.o(self.n[2](torch.tanh(z)))


@pytest.mark.parametrize("chunk", [43, 90])
def test_a_batch_norm_called_otherwise_for_other_samples_has_the_statistics_of_all_its_inputs(chunk, monkeypatch):
    x = torch.tensor(WIDE, dtype=torch.float64)
    fed, _ = evaluated(Branched(), np.arange(90), chunk, monkeypatch)
    net, bright = fed.module(fed.x0).network, x.mean(1) > 2
    z = net.a(x)
    for norm, some in zip(net.n, (bright, ~bright), strict=False):
        torch.testing.assert_close(norm.running_mean, z[some].mean(0))
        torch.testing.assert_close(norm.running_var, z[some].var(0))
        z = z.index_put((some,), (z[some] - z[some].mean(0)) / (z[some].var(0, correction=0) + norm.eps).sqrt())
    torch.testing.assert_close(net.n[2].running_mean, torch.tanh(z).mean(0))
    torch.testing.assert_close(net.n[2].running_var, torch.tanh(z).var(0))


def test_statistics_obey_the_law_of_total_variance_and_the_module_has_them(monkeypatch):
    fed, loss = evaluated(DEEP["two"](), np.arange(90), 30, monkeypatch)
    net = fed.module(fed.x0).network
    hidden = net[0](torch.tensor(WIDE, dtype=torch.float64))
    torch.testing.assert_close(net[1].running_mean, hidden.mean(0))
    torch.testing.assert_close(net[1].running_var, hidden.var(0))
    whole = copy.deepcopy(net).train()
    for norm in (whole[1], whole[4]):
        norm.momentum = 1.0
    whole(torch.tensor(WIDE, dtype=torch.float64))
    torch.testing.assert_close(net[4].running_mean, whole[4].running_mean)
    torch.testing.assert_close(net[4].running_var, whole[4].running_var)
    test = net(torch.tensor(WIDE[::3], dtype=torch.float64))
    assert float(nn.functional.cross_entropy(test, torch.tensor(Y[::3]))) == pytest.approx(loss, rel=1e-12)


def test_clients_of_many_samples_have_exact_statistics_too(monkeypatch):
    fed, _ = evaluated(DEEP["two"](), np.arange(90), 90, monkeypatch)
    one = fed.evaluate_clients(fed.x0.expand(3, -1))["loss"]
    fed, _ = evaluated(DEEP["two"](), np.arange(90)[::-1].copy(), 8, monkeypatch)
    torch.testing.assert_close(fed.evaluate_clients(fed.x0.expand(3, -1))["loss"], one)


# --- parameters: frozen ones, the order of layers, other types ---


class HeadFirst(nn.Module):
    """It registers its head before its body."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(8, 3), nn.Sequential(nn.Linear(6, 8), nn.ReLU())

    def forward(self, x):
        return self.head(self.body(x))


EVERY = [fc.FedAvg(), fc.DFedAvgM(), fc.FedSplit(1.0), fc.SCAFFOLD(), fc.FedDyn(0.1), fc.FedAdam(), fc.Ditto(1.0)]
EVERY += [fc.HeteroFL({1: 0.5, 0.5: 0.5})]


@pytest.mark.parametrize("method", EVERY, ids=lambda m: type(m).__name__)
def test_frozen_parameters_stay_to_the_bit(method):
    net = network(nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    net[2].requires_grad_(False)
    fed = federation(net)
    history = fc.simulate(method, fed, rounds=4, lr=0.1, batch_size=6, weight_decay=0.1)
    frozen = ~fed.trained
    for state in (history.params, *(history.state[k] for k in ("X", "v_i") if k in history.state)):
        assert (state[..., frozen] == fed.x0[frozen]).all()


def test_parameters_of_another_type_are_evaluated_as_the_models():
    fed = federation("mlp")
    x = run(fed).params
    for other in (x.double(), x.numpy(), x.numpy().astype(np.float64)):
        assert fed.evaluate(other) == fed.evaluate(x)
        assert torch.equal(fed.correct(other), fed.correct(x))
        assert float(fed.objective(other)) == float(fed.objective(x))
    rows = x.expand(5, -1).clone()
    assert fed.evaluate_clients(rows.numpy())["loss"].tolist() == fed.evaluate_clients(rows)["loss"].tolist()
    quadratic = fc.quadratic(np.eye(2)[None].repeat(3, 0), np.ones((3, 2)))
    assert quadratic.evaluate(np.zeros(2, np.float32)) == quadratic.evaluate(torch.zeros(2))
    with pytest.raises(TypeError, match="real numbers"):
        fed.evaluate(x.to(torch.complex64))


def test_a_federation_is_the_same_on_another_type_and_back():
    fed = federation(normed())
    assert run(fed).rows == run(fed.to(dtype=torch.float64).to(dtype=torch.float32)).rows
