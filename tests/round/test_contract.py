"""What every method, federation and history promises; one battery over all public methods."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
from fractions import Fraction

import helpers as h
import numpy as np
import pytest
import torch
from battery import METHODS, both_federations, every_method, make, run, same
from torch import nn

import fedcore as fc
from fedcore.algorithms import Submodel
from fedcore.engine import Engine


@functools.cache
def plain(method, kind: str, dtype: torch.dtype = torch.float64, cohort: int | None = 3) -> fc.History:
    """The run at seed 0, once for all tests that look at what it leaves."""
    return run(method, make(kind, dtype), cohort=cohort)


# --- runs ---------------------------------------------------------------------------------------------------------


@both_federations
@every_method
def test_one_seed_gives_one_result_and_another_seed_another(method, kind):
    fed = make(kind)
    first, again, other = plain(method, kind), run(method, fed), run(method, fed, seed=6)
    assert same(first, again)
    if not method.full_participation:
        assert first.cohorts != other.cohorts
    if not method.full_participation or kind == "network":  # exact gradients of all clients know no seed
        assert not torch.equal(first.params, other.params)


def test_the_dtype_argument_converts_the_run_and_not_the_federation():
    fed = make("network", torch.float32)
    assert run(fc.FedAvg(), fed, dtype=torch.float64).params.dtype == torch.float64
    assert fed.dtype == fed.x0.dtype == torch.float32
    assert next(fed.engine.module.parameters()).dtype == torch.float32


@both_federations
@every_method
def test_a_run_changes_neither_its_inputs_nor_the_global_random_state(method, kind):
    fed = make(kind)
    tensors = [fed.A, fed.b, fed.x0] if kind == "quadratic" else [fed.x, fed.y, fed.x0, *fed.test]
    before = [t.clone() for t in tensors]
    word, numpy_word = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    method_before = repr(method)
    run(method, fed, momentum=0.5, clip=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
    assert torch.equal(word, torch.get_rng_state())
    assert np.array_equal(numpy_word, np.random.get_state()[1])  # noqa: NPY002
    assert repr(method) == method_before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@both_federations
@every_method
def test_the_state_has_a_row_per_client_or_none_on_the_runs_device_and_of_its_type(method, kind, dtype):
    history, fed = plain(method, kind, dtype), make(kind)
    assert torch.equal(history.params, history.state["x"])
    for name, tensor in history.state.items():
        assert tensor.shape == ((fed.n, fed.d) if name in method.client_state else (fed.d,)), name
        assert tensor.dtype == dtype
        assert tensor.device.type == "cpu"
        assert torch.isfinite(tensor).all()
        assert not tensor.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@both_federations
@every_method
def test_a_run_on_cuda_is_the_run_on_the_cpu_to_rounding(method, kind):
    fed = make(kind)
    on_cpu, on_cuda = run(method, fed), run(method, fed, device="cuda")
    assert all(v.device.type == "cuda" for v in (on_cuda.params, *on_cuda.state.values()))
    h.close(on_cuda.params.cpu(), on_cpu.params, 1e-10)
    assert on_cuda.cohorts == on_cpu.cohorts


@both_federations
@every_method
def test_a_run_that_was_stopped_ends_as_one_that_was_not_and_is_read_back_without_pickle(method, kind, tmp_path):
    fed, whole = make(kind), plain(method, kind)
    run(method, fed, rounds=2, checkpoint_dir=tmp_path)
    assert same(run(method, fed, checkpoint_dir=tmp_path), whole)
    with np.load(tmp_path / "checkpoint.npz", allow_pickle=False) as z:
        assert all(z[k].dtype != object for k in z.files)


@every_method
def test_cohorts_are_paired_between_methods(method):
    cohort = None if method.full_participation else 3
    expected = plain(fc.FedAvg(), "network", cohort=cohort).cohorts
    if isinstance(method, fc.Central):  # on one client
        expected = run(fc.FedAvg(), method.on(make("network")), cohort=None).cohorts
    assert plain(method, "network").cohorts == expected


MODELS = {"X", "x_i", "v_i", "theta_i"}  # states that are the clients' models themselves
MASKED = {"bn_i": fc.FedBN.mask, "head_i": fc.FedPer.top}  # and those that are a part of them
OTHERS = {"c_i", "h_i", "mu_i", "g_i", "z_i", "m_i", "prev", "last", "W_i", "alpha_i"}  # corrections, duals, memory


@every_method
def test_personal_rows_are_the_models_that_the_clients_states_hold(method):
    fed = h.network(model=normed)
    cohort = None if method.full_participation else [0, 2, 4]  # two clients never take part
    history = fc.simulate(method, fed, rounds=2, cohort=cohort, lr=0.3, local_steps=2, personal=True, progress=False)
    fed, state = method.on(fed), history.state
    assert set(method.client_state) <= MODELS | MASKED.keys() | OTHERS  # a new state is said to be the one or the other
    X = state["x"].expand(fed.n, -1)
    for name in method.client_state:
        if name in MODELS:
            X = state[name]
        elif name in MASKED:
            X = torch.where(MASKED[name](method, fed.layout, state["x"]), state[name], X)
    if isinstance(method, fc.APFL):  # which mixes its own with the server's
        X = torch.lerp(state["x"].expand_as(X), X, state.get("alpha_i", torch.tensor(method.alpha).double()))
    own = (MODELS | MASKED.keys()) & set(method.client_state)
    if "X" in own and ((fc.topology.mixing(method.mixing, fed.n).dense() - 1 / fed.n).abs() < 1e-9).all():
        own = set()  # every client hears all, and but for rounding all models are equal
    assert (float((X - X.mean(0)).abs().max()) > 1e-6) == bool(own)
    for name, values in fed.evaluate_clients(X).items():
        assert [history.final(name, i) for i in range(fed.n)] == values.tolist()
        if own and name == "loss":
            assert len({history.final("loss"), *values.tolist()}) > 2


def normed(shape, classes) -> nn.Module:
    """As `contrastive`, with batch norm."""
    encoder = [nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU()]
    return fc.models.Projected(nn.Sequential(*encoder), nn.Linear(6, classes))


# --- methods as values --------------------------------------------------------------------------------------------


VALUES = [
    fc.IID(), fc.Dirichlet(0.1), fc.Dirichlet(1, equal_sizes=True), fc.Dirichlet(0.5, min_size=3), fc.Shards(2),
    fc.Quantity(1.5, "power"), fc.Dirichlet(0.5, sizes=fc.Quantity(2.0)), fc.FeatureShift("blur", 2.0, fc.Shards(3)),
    fc.LabelSwap(0.3, pairs=((0, 2),)),
    fc.ByOwner(), fc.ByOwner(subset=True), fc.ByOwner(parts=3), fc.RandAugment(), fc.RandAugment(1, once=True),
    fc.CropFlip(), fc.CropFlip(2, flip=False), fc.Gaussians(), fc.Gaussians(3), fc.FedGSE(0.5, public=fc.Gaussians(2)),
    fc.Ring(), fc.Complete(), fc.Torus(), fc.Exponential(),
    fc.RandomRegular(), fc.RandomRegular(2), fc.DirectedRandom(3), fc.Graph([(0, 1), (1, 2)]), fc.submodels.Width(0.5),
    fc.submodels.Width(0.5, scaled=True), fc.submodels.Depth(2), *METHODS, *(kind() for kind in fc.ALL),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_repr_makes_the_value_again_and_leaves_out_what_is_as_by_default(value):
    again = eval(repr(value), vars(fc).copy() | vars(fc.submodels))
    assert again == value
    assert type(again) is type(value)
    assert hash(again) == hash(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.anything = 1
    given = ast.parse(repr(value), mode="eval").body
    fields = {f.name: f for f in dataclasses.fields(value)}
    required = [name for name, f in fields.items() if f.default is dataclasses.MISSING]
    assert len(given.args) == len(required)
    assert {k.arg for k in given.keywords} == {
        name for name, f in fields.items() if name not in required and getattr(value, name) != f.default
    }


def test_reprs_are_short_and_of_methods_of_ones_own_too():
    @dataclasses.dataclass(frozen=True)
    class Mine(fc.FedAvg):
        rate: float = 0.5
        seen: tuple = dataclasses.field(default_factory=tuple)

    class Plain(fc.Method):
        def __init__(self, a=1):
            self.a = a

    assert repr(Mine()) == "Mine()"
    assert repr(Mine(0.1, seen=(3,))) == "Mine(server_momentum=0.1, seen=(3,))"
    assert repr(Plain()) == "Plain(a=1)"


@pytest.mark.parametrize("method", fc.ALL, ids=lambda m: m.__name__)
def test_a_method_documents_each_hyper_parameter(method):
    for f in dataclasses.fields(method):
        assert re.search(rf"\b{f.name}\b", method.__doc__), f"{f.name} is not explained"


# --- arguments ----------------------------------------------------------------------------------------------------


def test_simulate_has_the_contracts_arguments_and_defaults():
    defaults = {k: p.default for k, p in inspect.signature(fc.simulate).parameters.items()}
    contract = {
        "cohort": None, "lr_decay": 1.0, "local_epochs": 1, "local_steps": None, "batch_size": 20, "server_lr": 1.0,
        "weight_decay": 0.0, "clip": None, "weighting": "uniform", "seed": 0, "eval_every": 1, "dtype": None,
        "device": None, "checkpoint_dir": None, "resume": True, "progress": None,
    }  # fmt: skip
    assert {k: defaults[k] for k in contract} == contract
    assert {"method", "fed", "rounds", "lr"} <= defaults.keys()


@pytest.mark.parametrize(("cohort", "size"), [
    (None, 5), (5, 5), (0.4, 2), (0.01, 1), (1.0, 5), (np.array(3), 3), (torch.tensor(0.4), 2), (Fraction(3, 5), 3),
])  # fmt: skip
def test_a_cohort_is_a_number_a_fraction_or_all(cohort, size):
    history = run(fc.FedAvg(), make("quadratic"), cohort=cohort)
    assert [len(c) for c in history.cohorts] == [size] * 4
    assert all(c == sorted(set(c)) and set(c) <= set(range(5)) for c in history.cohorts)


@pytest.mark.parametrize("cohort", [[3, 1], torch.tensor([3, 1]), range(1, 4, 2), [np.int8(1), 3]], ids=str)
def test_a_cohort_may_be_the_clients_numbers_in_any_sequence(cohort):
    assert run(fc.FedAvg(), make("quadratic"), cohort=cohort).cohorts == [[1, 3]] * 4
    assert run(fc.FedAvg(), make("quadratic"), cohort=lambda t: cohort).cohorts == [[1, 3]] * 4


@pytest.mark.parametrize(("options", "steps"), [
    ({"batch_size": 4}, [4, 2, 5, 1, 3]), ({"batch_size": 4, "local_epochs": 3}, [12, 6, 15, 3, 9]),
    ({"batch_size": None, "local_epochs": 3}, [3] * 5), ({"batch_size": 4, "local_steps": 6}, [6] * 5),
])  # fmt: skip
def test_clients_of_unequal_size_take_steps_by_their_batches_and_epochs_or_as_many_as_asked_for(options, steps):
    fed = h.network(sizes=(13, 7, 20, 4, 9))
    _, seen = fc.one_round(fc.FedAvg(), fed, fc.start(fc.FedAvg(), fed), 0, **options)
    assert seen.round.K[seen.round.clients.argsort(), 0].tolist() == steps


def test_numpy_numbers_are_as_good_as_pythons(tmp_path):
    plain = {"rounds": 3, "cohort": 2, "local_steps": 3, "batch_size": 4, "eval_every": 2, "clip": 0.5, "lr": 0.25}
    arrays = {k: np.float32(v) if isinstance(v, float) else np.int64(v) for k, v in plain.items()}
    fed = make("network")
    whole = fc.simulate(fc.FedProx(0.5), fed, **plain)
    fc.simulate(fc.FedProx(0.5), fed, checkpoint_dir=tmp_path, **plain | {"rounds": 1})
    assert same(fc.simulate(fc.FedProx(np.float32(0.5)), fed, checkpoint_dir=tmp_path, **arrays), whole)


# --- histories ----------------------------------------------------------------------------------------------------


@both_federations
def test_a_frame_is_tidy_with_one_row_per_number(kind):
    history = run(fc.SCAFFOLD(), make(kind), rounds=5, eval_every=2, probes=[fc.probes.drift, fc.probes.control_error])
    frame = history.frame()
    assert list(frame.columns) == ["round", "metric", "client", "value"]
    assert [str(t) for t in frame.dtypes[["round", "client", "value"]]] == ["int64", "Int64", "float64"]
    server = {"loss", "accuracy"} if kind == "network" else {"loss", "distance"}
    assert set(frame.metric) == server | {"drift", "control_error"}
    for metric in server:
        part = frame[frame.metric == metric]
        assert part["round"].tolist() == [0, 2, 4, 5]  # the start, every second, and the last
        assert part.client.isna().all()
    per_client = frame[frame.metric == "control_error"]
    assert [sorted(g.client) for _, g in per_client.groupby("round")] == [history.cohorts[t - 1] for t in (2, 4, 5)]
    assert frame.value.notna().all()


def test_curve_and_final_give_the_numbers_of_the_frame():
    history = run(fc.FedAvg(), make("network"))
    frame = history.frame()
    t, v = history.curve("loss")
    assert t.tolist() == [0, 1, 2, 3, 4]
    assert v.tolist() == frame[frame.metric == "loss"].value.tolist()
    assert history.final("loss") == v[-1]
    with pytest.raises(KeyError, match=r"metric='los'.*accuracy.*loss"):
        history.curve("los")


def test_evaluation_is_that_of_the_server_model_after_the_round():
    fed = make("network")
    history = run(fc.FedAvg(), fed)
    inputs, labels = fed.inputs(fed.test[0]), fed.test[1]
    net = fed.engine.module
    nn.utils.vector_to_parameters(history.params, net.parameters())
    logits = net(inputs)
    h.close(history.final("loss"), nn.functional.cross_entropy(logits, labels), 1e-12)
    assert history.final("accuracy") == (logits.argmax(1) == labels).double().mean()


def test_the_objective_is_the_mean_over_clients_of_their_mean_losses():
    fed = h.network(sizes=(13, 7, 20))
    net, x = fed.engine.module, fed.x0
    data = [h.whole(fed, i) for i in range(3)]
    losses = [nn.functional.cross_entropy(net(inputs), labels) for inputs, labels in data]
    h.close(fed.objective(x), sum(losses) / 3, 1e-12)


# --- the public face ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(fc.__all__))
def test_every_public_name_is_documented(name):
    thing = getattr(fc, name)
    if name == "ALL":  # a tuple cannot carry a text
        assert all(inspect.getdoc(m) for m in thing)
        return
    assert len(inspect.getdoc(thing) or "") > 20
    for member, value in vars(thing).items() if inspect.isclass(thing) else ():
        # an override of a documented verb inherits its text; a fixed `split` and fields are explained by their class
        if member == "split" or member in getattr(thing, "__dataclass_fields__", {}):
            continue
        if inspect.isfunction(value) and not member.startswith("_"):
            assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


def test_batches_are_paired_between_methods(monkeypatch):
    seen: list = []
    plain = Engine.gradient

    def spy(self, Y, batch, *args, **more):
        seen.append((batch.x.clone(), batch.y.clone(), batch.w.clone()))
        return plain(self, Y, batch, *args, **more)

    monkeypatch.setattr(Engine, "gradient", spy)
    fed, logs = make("network"), []
    # more gradients, or clients, or parts of the cohort one after the other
    more = (fc.Mime, fc.MimeLite, fc.STEM, fc.FedSMOO, fc.FedSAM, fc.FedSpeed, fc.MOON, fc.FedSplit)
    more += (fc.Ditto, fc.APFL, fc.pFedMe, fc.PerFedAvg, Submodel)
    own_work = (fc.FedSGD, fc.FedSMB, fc.FedALA, *more)
    centralised = [m for m in METHODS if not m.full_participation]
    for method in (
        m for m in centralised if not isinstance(m, own_work) and m != fc.SCAFFOLD("I")
    ):  # one gradient per step
        seen.clear()
        run(method, fed)
        logs.append(list(seen))
    assert len(logs) > 15
    for log in logs[1:]:
        assert len(log) == len(logs[0]) > 10
        for batch, first in zip(log, logs[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, first, strict=True))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_aggregation_weights_are_uniform_or_by_samples(weighting):
    fed, rounds = h.network(sizes=(13, 7, 20, 4, 9)), []
    history = run(fc.FedAvg(), fed, weighting=weighting, probes=[lambda r, y: rounds.append(r) or {}])
    for r, cohort in zip(rounds, history.cohorts, strict=True):
        assert sorted(r.clients.tolist()) == cohort
        N = fed.sizes[r.clients.numpy()] if weighting == "samples" else np.ones(3)
        h.close(r.p[:, 0], N / N.sum(), 1e-15)
