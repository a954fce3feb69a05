"""Wrong calls: the documented exception, with the value given, the allowed range and the remedy in its message."""

from __future__ import annotations

import math
from dataclasses import replace

import helpers as h
import numpy as np
import pytest
import torch
from torch import nn

import fedcore as fc
from fedbook import reproduce
from fedcore.engine.trial import Unfit

X, Y = h.images(40, (1, 4, 4), 3)
FLAT = np.zeros((40, 20, 6))
FEATURES = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
A, B = h.problem(4, 3)
QUADRATIC = fc.quadratic(A, B)
NET = fc.models.mlp((1, 4, 4), 3)
REALS = X.astype(np.float64)
THREE = {"train_images": X, "train_labels": Y, "test_images": X}
OWNED = THREE | {"test_labels": Y, "train_owner": np.arange(7)}
GRID = {"method": [fc.FedAvg()]}
TWO = [(X[:9], Y[:9]), (X[9:], Y[9:])]
STATE = fc.start(fc.FedAvg(), QUADRATIC)


def fed(source=(X, Y), **options):
    return fc.federation(source, **{"clients": 4, "model": "mlp"} | options)


def run(method=None, federation=QUADRATIC, **options):
    return fc.simulate(method or fc.FedAvg(), federation, **{"rounds": 2} | options)


def mse(z, y):
    return ((z[:, 0] - y) ** 2).mean()


def item_loss(z, y):
    return mse(z, y) if float(y[0]) < 9 else mse(z, y) / 2


def spoiled(value: float) -> np.ndarray:
    x = X.astype(np.float32)
    x[5, 0, 1, 1] = value
    return x


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


class Net(nn.Module):
    """A layer in a forward pass `call(net, x)` of the user's."""

    def __init__(self, call):
        super().__init__()
        self.out, self.call = nn.Linear(16, 3), call

    def forward(self, x):
        return self.call(self, x.flatten(1))


def functional(net, x):
    """Batch norm without a module of batch norm."""
    return nn.functional.batch_norm(net.out(x), torch.zeros(3).to(x), torch.ones(3).to(x), training=net.training)


def divided(net, x):
    """One sample's deviation is NaN."""
    z = net.out(x)
    return (z - z.mean(0)) / z.std(0) if net.training else z


def centred(net, x):
    """It mixes the samples of a batch, which no layer's rule and no mapping over clients does."""
    return net.out(x - x.mean(0))


# (call, exception, words of the message): one example of every kind of refusal; test_bad_calls tries all arguments
RUNS = [
    (lambda: fc.simulate(fc.FedAvg(), QUADRATIC, round=2), TypeError, "simulate() takes no 'round' mean 'rounds'?"),
    (lambda: run().curve("loss", client=1), KeyError, "metric='loss' of client 1 personal=True"),
    (lambda: run(cohort=5), ValueError, "cohort=5 4 clients cohort<=4"),
    (lambda: run(cohort=-2), ValueError, "cohort=-2 cohort>=1"),
    (lambda: run(cohort=1.5), ValueError, "cohort=1.5 cohort > 0 <= 1"),
    (lambda: run(cohort="all"), TypeError, "cohort='all' integer cohort>=1 None"),
    (lambda: run(lr_decay=0.1, rounds=400), ValueError, "lr_decay=0.1 rounds=400 nearer to 1 fewer rounds"),
    (lambda: run(lr_decay=10.0, rounds=400), ValueError, "lr_decay=10 rounds=400 nearer to 1 fewer rounds"),
    (lambda: run(federation=fed(), lr=1e300), ValueError, "lr=1e+300 torch.float32 3.4e+38 smaller lr"),
    (lambda: run(federation=fed(), server_lr=1e300), ValueError, "server_lr=1e+300 <= 3.4"),
    (lambda: run(federation=fed(), local_steps=10**9), ValueError, "1,000,000,000 local steps fewer local steps"),
    (lambda: run(weighting="size"), ValueError, "weighting='size' 'uniform' 'samples'"),
    (lambda: run(probes=fc.probes.drift), TypeError, "probes= drift list probes=[...]"),
    (lambda: run(fc.FedAvg), TypeError, "FedAvg instance fc.FedAvg()"),
    (lambda: run(federation="digits"), TypeError, "fed=str fc.federation fc.quadratic"),
    (lambda: run(fc.FedPer(layers=9)), ValueError, "layers=9 layers<="),
    (lambda: run(fc.LocalOnly(), server_lr=0.5), ValueError, "server_lr=0.5 LocalOnly server_lr=1.0"),
    (lambda: fc.HeteroFL([(1, 0.5), ()]), ValueError, "use pairs (ratio, share)"),
    (lambda: fc.explore(run, rounds=range(10**9)), ValueError, "1,000,000,000 values slider"),
    (lambda: fc.sweep(QUADRATIC, GRID, seeds=10**12, rounds=1), ValueError, "of 1 settings use 1,000,000 runs or"),
    (lambda: fed().evaluate_clients(fed().x0[None], [-1]), ValueError, "[-1] clients from 0 to 3"),
    (lambda: fc.one_round(fc.FedAvg(), QUADRATIC, STATE, 0, rounds=1), TypeError, "one_round 'rounds'; use one of"),
]
NAMES = [
    (lambda: fed(modle="mlp"), TypeError, "federation() takes no 'modle'; did you mean 'model'?"),
    (lambda: fc.Dirichlet(alpha=0.3), TypeError, "takes no 'alpha'; did you mean 'q'"),
    (lambda: fc.DFedAvg(topology=fc.Ring()), TypeError, "takes no 'topology'; did you mean 'mixing'"),
    (lambda: fc.IID(seed=3), TypeError, "takes no 'seed'"),
]
FEDERATION = [
    (lambda: fed(model=nn.ReLU), TypeError, "ReLU (shape, classes) model=Net()"),
    (lambda: fed("minst"), ValueError, "source='minst' mnist cifar10 minst.npz"),
    (lambda: fed(clients=33), ValueError, "clients=33 32 training samples fewer clients"),
    (lambda: fed(clients=None), ValueError, "clients=None ByOwner() clients=n"),
    (lambda: fed(partition=fc.IID), TypeError, "partition= fc.IID() fc.Dirichlet(q)"),
    (lambda: fed(model="resnet"), ValueError, "model='resnet' 'mlp' 'resnet18_gn' torch.nn.Module"),
    (lambda: fed(model=lambda shape, classes: "net"), TypeError, "model= 'net' torch.nn.Module"),
    (lambda: fed(model="cnn"), ValueError, "(1, 4, 4) (1, 28, 28) 'mlp' torch.nn.Module"),
    (lambda: fed((np.zeros((20, 5)), np.arange(20) % 2), model="resnet18_gn"), ValueError, "[C, H, W] (5,) 'mlp'"),
    (lambda: fed(model=flat(nn.Linear(17, 3))), ValueError, "(1, 4, 4) made for this shape 'mlp'"),
    (lambda: fed(model=flat(nn.Linear(16, 2))), ValueError, "(2,) 3 classes 3 wide"),
    (lambda: fed(model=Net(lambda net, x: (net.out(x), None))), ValueError, "tuple logits [B, classes]"),
    (lambda: fed(model=nn.Flatten()), ValueError, "no parameters at least one"),
    (lambda: fed(model=flat(nn.LazyLinear(3))), ValueError, "'1.weight' call lazy once example"),
    (lambda: fed(model=fc.models.mlp((1, 4, 4), 0)), ValueError, "'5.weight' with values"),
    (lambda: fed(model=nn.DataParallel(flat(nn.Linear(16, 3)))), ValueError, "DataParallel model.module"),
    (lambda: fed(model=Net(lambda net, x: net.out(x).detach())), ValueError, "no gradient detach() torch.no_grad()"),
    (lambda: fed(model=flat(nn.Linear(16, 3)).requires_grad_(False)), ValueError, "no parameter trained requires_grad"),
    (lambda: fed(model=flat(nn.Linear(16, 3), nn.PReLU(init=math.nan))), ValueError, "initial parameters NaN finite"),
    (lambda: fed(model=flat(nn.Linear(16, 3).to(torch.cfloat))), ValueError, "'1.weight' real floating-point"),
    (lambda: fed(model=Net(centred), path="batched"), ValueError, "'batched' Net 'auto' 'sequential'"),
    (lambda: fed(model=flat(nn.RReLU(), nn.Linear(16, 3))).forced("batched"), ValueError, "path='batched' RReLU"),
]
START = [
    (lambda: fed(start=torch.zeros(7)), ValueError, "start (7,) (44203,) flat vector 44,203 parameters"),
    (lambda: fed(start=torch.full((44203,), math.nan)), ValueError, "start NaN infinity '1.weight' finite"),
    (lambda: fed(start=torch.zeros(44203) * 1j), ValueError, "start holds"),
    (lambda: fed(start={"1.weight": torch.zeros(200, 16)}), ValueError, "missing '1.bias' 1.weight"),
    (lambda: fed(start={**NET.state_dict(), "x": torch.zeros(1)}), ValueError, "unexpected 'x' 1.weight"),
    (lambda: fed(start={**NET.state_dict(), "1.bias": torch.zeros(3)}), ValueError, "'1.bias' another shape"),
    (lambda: fed(start=run()), TypeError, "start=History history.params state_dict torch.nn.Module"),
    (lambda: QUADRATIC.module(torch.zeros(3)), ValueError, "quadratic no module fc.federation"),
    (lambda: fed().evaluate(torch.zeros(3)), ValueError, "x (3,) (44203,) history.params method.on(fed)"),
    (lambda: fed().evaluate_clients(fed().x0[None], np.ma.masked_equal([0], 0)), ValueError, "masked"),
]
DATA = [
    (lambda: fed((spoiled(math.nan), Y)), ValueError, "training inputs NaN clean or drop"),
    (lambda: fed((REALS * 1e300, Y)), ValueError, "beyond float32 scale"),
    (lambda: fed((X[:, :, :0], Y)), ValueError, "(40, 1, 0, 4) no numbers"),
    (lambda: fed(((X, Y), (REALS, Y))), ValueError, "uint8 float64 one type"),
    (lambda: fed((X, np.where(Y > 1, 10**9, Y))), ValueError, "0 to 1000000000 np.unique"),
    (lambda: fed((X, Y[:-1])), ValueError, "(40, 1, 4, 4) (39,) one integer label per input"),
    (lambda: fed((X[:4], Y[:4])), ValueError, "test set is empty at least one"),
    (lambda: fed((X[:, None], Y)), ValueError, "(32, 1, 1, 4, 4) [N, F] [N, C, H, W]"),
    (lambda: fed(((X, Y), (X[:, :, :3], Y))), ValueError, "(1, 4, 4) (1, 3, 4) differ"),
    (lambda: fed(THREE), ValueError, "test_labels missing train_images train_owner"),
    (lambda: fed(OWNED), ValueError, "train_owner (7,) (40,) one owner per sample"),
    (lambda: fc.quadratic(A, B[:3]), ValueError, "(4, 3, 3) (3, 3) [n, p, p] [n, p]"),
    (lambda: fc.quadratic(A * math.nan, B), ValueError, "A holds NaN finite"),
    (lambda: fc.quadratic(np.triu(A), B), ValueError, "symmetric (A + A') / 2"),
    (lambda: fc.quadratic(A, B, x0=[1.0]), ValueError, "x0 (1,) [p]"),
    (lambda: fc.quadratic([[[1.0]], [[1.0, 2.0]]], [[1.0], [2.0]]), ValueError, "no array of numbers [n, p, p]"),
]
INPUTS = [
    (lambda: fed((FLAT, Y)), ValueError, "(32, 20, 6) float64 layout='image' 'sequence' 'features' 'text'"),
    (lambda: fed((FLAT, Y), layout="features"), ValueError, "(32, 20, 6) 'features' [N, F]"),
    (lambda: fed((FLAT, Y), layout="text"), ValueError, "(32, 20, 6) float64 'text' [N, L] whole numbers"),
    (lambda: fed("digits", layout="image"), ValueError, "layout='image' 'digits' layout=None"),
    (lambda: fed(([*X[:3], X[3][:, :2]], Y[:4])), ValueError, "sample 3 (1, 2, 4) sample 0 (1, 4, 4) resize"),
    (lambda: fed([[0.0], [1.0]]), TypeError, "source=list pair of arrays dataset one per client mapping"),
    (lambda: fed(h.Items([])), ValueError, "dataset empty at least one"),
    (lambda: fed(h.Items([(X[0], 0), (X[1], [1, 2])])), ValueError, "label 1 (2,) label 0 ()"),
    (lambda: fed(h.Items([(X[0], 0), (X[0], 0, 0)])), ValueError, "item tuple (x, y)"),
    (lambda: fed(h.Items([{"image": X[0], "id": 3, "label": 1}])), ValueError, "'image', 'id', 'label' select_columns"),
    (lambda: fed(h.Items([{"image": X[0], "fine": 1}])), ValueError, "'fine' label rename_column"),
    (lambda: fed([(X[:9], Y[:9]), (X[:9], Y[:8])]), ValueError, "2 clients (9, 1, 4, 4) (8,) each with its label"),
    (lambda: fed([(X[:9], Y[:9]), (X[:9, :, 1:], Y[:9])]), ValueError, "2 clients (9, 1, 3, 4) (9, 1, 4, 4)"),
    (lambda: fed(TWO), ValueError, "clients=4 2 owners clients=2 None"),
    (lambda: fed(TWO, partition=fc.IID()), ValueError, "list of two partition=IID() ((x, y), (test_x, test_y)) None"),
    (lambda: fed([(X[:9], Y[:9]), (X[:0], Y[:0])]), ValueError, "2 clients (0,) at least one"),
    (lambda: fed(partition=[[0, 1], [4], [3], [5]]), ValueError, "clients [1] no training data another partition"),
]


def mine(**hooks):
    """A method of the user's with these hooks."""
    return type("Mine", (fc.Method,), hooks)()


def extending(**added):
    """A method of the user's whose round has tensors of these names."""
    kinds = {kind: dict.fromkeys(names, torch.ones(4, 1)) for kind, names in added.items()}
    return mine(prepare=lambda s, r: r.extended(**kinds))


HOOKS = [
    (mine(aggregate=lambda s, r, y: {}), ValueError, "Mine.aggregate [] 'x'"),
    (mine(aggregate=lambda s, r, y: {"x": r.x, "u": r.x}), ValueError, "Mine.aggregate 'u' none of its states declare"),
    (mine(aggregate=lambda s, r, y: {"x": r.x.mean()}), ValueError, "Mine.aggregate: 'x' () (3,) torch.float64"),
    (mine(aggregate=lambda s, r, y: {"x": r.x.long()}), ValueError, "'x' torch.int64 torch.float64"),
    (mine(aggregate=lambda s, r, y: None), TypeError, "Mine.aggregate None mapping"),
    (mine(client_state=("h",), aggregate=lambda s, r, y: {"x": r.x, "h": y[0]}), ValueError, "'h' (3,) (4, 3)"),
    (mine(client_state=("p",)), ValueError, "'p' a name of the round use another"),
    (mine(client_state="h_i"), TypeError, "Mine.client_state='h_i' tuple of names"),
    (mine(client_state=("h", "h")), ValueError, "client_state 'h' twice"),
    (mine(client_state=("x",)), ValueError, "'x' server clients two names"),
    (mine(client_state=("h",), client_start=lambda s, x: {"u": x}), ValueError, "client_start 'u' none of its states"),
    (mine(client_state=("h",), client_start=lambda s, x: {"h": x[:2]}), ValueError, "client_start: 'h' (2,) (3,)"),
    (mine(start=lambda s, x: {"z": x}), ValueError, "Mine.start ['z'] without the model"),
    (mine(direction=lambda s, G, y, r: G(y).mean()), ValueError, "Mine.direction () (4, 3)"),
    (mine(direction=lambda s, G, y, r: None), TypeError, "Mine.direction None tensor (4, 3)"),
    (mine(broadcast=lambda s, r: r.x.mean()), ValueError, "Mine.broadcast () (3,) (4, 3)"),
    (mine(prepare=lambda s, r: None), TypeError, "Mine.prepare None r.extended(...)"),
    (extending(rows={"p": 1}), ValueError, "'p' a name of the round; use another name, or r.extended(p=...)"),
    (extending(server={"lr": 1}), ValueError, "r.extended(server=...) 'lr' use another name, or r.extended(lr=...)"),
    (extending(rows={"x": 1}), ValueError, "r.extended(rows=...) 'x' a name of the round; use another name"),
    (mine(local_work=lambda s, w: {}), TypeError, "Mine.local_work {} dataclasses.replace(work,"),
    (mine(local_work=lambda s, w: replace(w, lr=-1.0)), ValueError, "Mine.local_work: lr=-1 lr > 0"),
    (mine(start=lambda s, x: {"x": x, "m": x}), ValueError, "'m' a name of the round; use another"),
    (mine(direction=lambda s, G, y, r: r.c_j), AttributeError, "the round has no 'c_j' prepare() added are: x"),
    (mine(on=lambda s, f: None), TypeError, "Mine.on None federation"),
]
HOOKS = [(lambda method=method: run(method, cohort=None), *rest) for method, *rest in HOOKS]
REAL, SCALE = (FEATURES, Y / 3), nn.Parameter(torch.ones(1))


LOSSES = [
    (lambda: fed(REAL), ValueError, "labels float64 integers loss= no classes"),
    (lambda: fed((FEATURES, np.eye(3)[Y])), ValueError, "(40, 5) (40, 3) one integer label loss="),
    (lambda: fed(REAL, loss=nn.MSELoss), TypeError, "MSELoss torch.nn.MSELoss()"),
    (lambda: fed(REAL, loss=lambda z, y: z), ValueError, "shape (20, 1) 20 samples [B] mean"),
    (lambda: fed(REAL, loss=lambda z, y: (z.detach()[:, 0] - y) ** 2), ValueError, "gradient logits detach()"),
    (lambda: fed(REAL, loss=lambda z, y: z[:, 0].log()), ValueError, "(20,) 20 samples finite"),
    (lambda: fed(REAL, loss=lambda z, y: z[:, 0] * 1j), ValueError, "complex64 real"),
    (lambda: fed(REAL, loss=nn.MSELoss()), ValueError, "one by one [B, 1] [B] (20, 1) (20,)"),
    (lambda: fed(REAL, loss=nn.MSELoss(reduction="sum")), ValueError, "one by one no sum over samples"),
    (lambda: fed(REAL, loss=item_loss), ValueError, "item_loss mean torch.vmap one loss per sample [B]"),
    (lambda: fed(REAL, loss=lambda z, y: SCALE * (z[:, 0] - y)), ValueError, "of its own shape (1,) model freeze"),
    (lambda: fed((FEATURES, Y / 0.0), loss=mse), ValueError, "training labels NaN or infinity clean or drop"),
    (lambda: fed(((FEATURES, Y / 3), (FEATURES, np.eye(3)[Y])), loss=mse), ValueError, "() (3,) targets differ shape"),
    (lambda: fed(fc.data.load(REAL, targets=True)), ValueError, "float64 (32,) class labels loss=..."),
    (lambda: fed(metrics=[mse]), TypeError, "metrics= mapping name -> function"),
    (lambda: fed(metrics={"accuracy": mse}), ValueError, "'accuracy' already another name"),
]
TABLE = {"runs": RUNS, "names": NAMES, "federation": FEDERATION, "start": START, "data": DATA, "inputs": INPUTS}
TABLE |= {"hooks": HOOKS, "losses": LOSSES}
CALLS = [pytest.param(*row, id=f"{room}-{row[2]}") for room, table in TABLE.items() for row in table]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("call", "exception", "words"), CALLS)
def test_a_wrong_call_names_the_value_the_range_and_the_remedy(call, exception, words):
    with pytest.raises(exception) as e:
        call()
    assert e.type in (exception, Unfit)
    message = str(e.value)
    missing = [word for word in words.split() if word not in message]
    assert not missing, f"{missing} not in: {message}"


# --- outside the process ------------------------------------------------------------------------------------------


def test_a_checkpoint_folder_that_cannot_be_written_is_an_error_before_the_first_round(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    seen = []
    for folder in (file, file / "below"):
        with pytest.raises(OSError, match=r"cannot be written.*use a folder you may write to") as e:
            run(checkpoint_dir=folder, probes=[lambda r, y: seen.append(1) or {}])
        assert str(folder) in str(e.value)
    assert not seen


def normed(*sizes, path="auto"):
    return h.network(sizes, flat(nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), path=path)


@pytest.mark.parametrize("path", ["auto", "sequential"])
@pytest.mark.parametrize("method", [fc.FedAvg(), fc.FedALA(sample=0.5), fc.FedSMB()], ids=repr)
def test_batch_norm_leaves_out_a_last_batch_of_one_sample(method, path):
    federation = normed(8, 9, 17, 5, path=path)
    assert federation.plan(0, 0, np.arange(4), batch_size=4).counts.T.tolist() == [
        [4, 4, 4, 4], [4, 4, 0, 0], [4, 4, 0, 0], [4, 0, 0, 0]]  # fmt: skip
    run(method, federation, batch_size=4, rounds=2)


def test_a_client_of_one_sample_is_named_before_round_0_where_there_is_batch_norm():
    seen, federation = [], normed(8, 1, 8)
    for options in ({"batch_size": 4}, {"batch_size": None}):
        with pytest.raises(ValueError, match=r"client 1 of round 4 has 1 sample and .*batch_size>=2.*GroupNorm"):
            run(federation=federation, rounds=9, cohort=lambda t: [t // 4], probes=[seen.append], **options)
    assert not seen
    # no round has this client
    run(federation=federation, batch_size=4, rounds=3, cohort=lambda t: [0, 2])
    run(federation=federation, batch_size=4, rounds=9, cohort=lambda t: [t // 4], on_evaluate=lambda t, m: t == 3)
    with pytest.raises(ValueError, match=r"client 0 of round 0 has 8 samples and batch_size=1: .*1 sample"):
        run(federation=federation, batch_size=1, cohort=[0])
    with pytest.raises(ValueError, match=r"client 1 of round 0 has 1 sample"):
        fc.one_round(fc.FedAvg(), federation, fc.start(fc.FedAvg(), federation), 0, batch_size=4)


@pytest.mark.filterwarnings("ignore:in evaluation, too")
@pytest.mark.parametrize("call", [functional, divided])
def test_a_module_of_the_users_that_divides_by_a_batchs_deviation_is_as_batch_norm(call):
    federation = h.network((8, 9, 17, 5), Net(call))
    assert federation.plan(0, 0, np.arange(4), batch_size=4).counts.max(1).tolist() == [4, 4, 4, 4]
    assert np.isfinite(run(fc.FedALA(sample=0.5), federation, batch_size=4, rounds=3).final("loss"))
    with pytest.raises(ValueError, match=r"client 1 of round 0 has 1 sample .* no variance"):
        run(federation=h.network((8, 1), Net(call)), batch_size=4)


def test_batch_norm_over_the_places_of_a_picture_takes_one_sample():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    run(federation=h.network((8, 9), model), batch_size=4)


# --- odd values that Python and torch let through ------------------------------------------------------------------

LONG = "x" * 5000


def itself():
    """A list that holds itself."""
    held: list = []
    held.append(held)
    return held


@pytest.mark.parametrize("call", [
    lambda: fc.DFedSAM((itself(),)), lambda: QUADRATIC.evaluate(np.float64), lambda: fc.federation(LONG),
    lambda: fc.playground(2, name=LONG + "!"), lambda: run().curve(LONG), lambda: fc.playground(2, np.array(1.0)),
    lambda: fc.probes.first_order_flatness(QUADRATIC, torch.ones(3) * 1j, 0.1),
    lambda: run(local_steps=torch.ones(4, device="meta")), lambda: run(cohort=torch.eye(2).to_sparse()),
    lambda: fc.probes.mime_ablation(fc.FedAvg(), QUADRATIC, QUADRATIC.x0, steps=1, lr=0.1, state={"c": 0.5}),
])  # fmt: skip
def test_an_odd_value_is_one_line_with_a_remedy(call):
    with pytest.raises((ValueError, TypeError, KeyError), match=r"\b(use|known names|known are|give)\b") as e:
        call()
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 3000


@pytest.mark.parametrize("device", ["gpu", "meta", "cpu:5", "cuda:99"])
def test_a_device_that_is_not_here_is_one_line(device):
    with pytest.raises(ValueError, match=r"is not available here \(.*\); use 'cpu', 'cuda'") as e:
        fed(device=device)
    assert len(str(e.value)) < 300
    assert fed(device=torch.device("cpu", 0)).device.type == "cpu"


def test_classes_of_ones_own_keep_their_keywords():
    class Mine(fc.Method):
        def __init__(self, strength, **more):
            self.strength = strength

    class Bare(fc.Method):
        pass

    assert Mine(strength=3, other=4).strength == Mine(3).strength == 3
    for call in (lambda: Bare(3), lambda: Bare(strength=3), lambda: fc.topology.Topology(3), lambda: fc.Method(x=1)):
        with pytest.raises(TypeError, match="takes no arguments"):
            call()


def test_definitions_that_are_no_file_are_refused_and_not_read_for_ever(capsys):
    assert reproduce.main(["list", "--definitions", "/dev/zero"]) == 2
    assert "cannot be read" in capsys.readouterr().err


# --- divergence ---------------------------------------------------------------------------------------------------


class Poisoned(fc.Method):
    """Client 3 leaves the finite numbers in round 4."""

    def direction(self, G, y, r):
        bad = (r.clients == 3)[:, None] & (r.t == 4)
        return torch.where(bad, torch.inf, G(y))


@pytest.mark.parametrize("eval_every", [1, 50])
def test_divergence_names_its_round_and_client_whenever_it_is_looked_for(eval_every):
    with pytest.raises(fc.Diverged, match=r"client 3 .*round 4 with lr=0.1; use a smaller lr, clip") as e:
        run(Poisoned(), rounds=20, eval_every=eval_every)
    assert (e.value.round, e.value.client) == (4, 3)
    assert isinstance(e.value, FloatingPointError)


class DividesByZero(fc.SCAFFOLD):
    """The server's vector `which` is infinite after round 4."""

    def __init__(self, which):
        super().__init__()
        self.which = which

    def aggregate(self, r, y):
        new = super().aggregate(r, y)
        return new | {self.which: new[self.which] / (r.t != 4)}


@pytest.mark.parametrize("which", ["x", "c"])
@pytest.mark.parametrize("eval_every", [1, 50])
def test_an_aggregate_that_leaves_the_finite_numbers_is_blamed_on_no_client(which, eval_every):
    with pytest.raises(fc.Diverged, match=r"DividesByZero.aggregate left the finite numbers in round 4, .* 0") as e:
        run(DividesByZero(which), rounds=20, eval_every=eval_every)
    assert (e.value.round, e.value.client) == (4, None)
    assert len(e.value.history.cohorts) == 5


def test_clients_whose_sum_is_too_large_are_blamed_themselves():
    with pytest.raises(fc.Diverged, match=r"client .* use a smaller lr") as e:
        run(rounds=2000, lr=1e200, local_steps=1, eval_every=50)
    assert e.value.client is not None


def test_a_diverged_run_keeps_its_history():
    with pytest.raises(fc.Diverged) as e:
        run(Poisoned(), rounds=20, cohort=None)
    whole, kept = run(fc.FedAvg(), rounds=4), e.value.history
    assert kept.rows == whole.rows  # rounds 0 to 4, before the poison
    assert torch.equal(kept.params, whole.params)
    assert torch.equal(kept.state["x"], whole.params)
    assert kept.cohorts == [*whole.cohorts, [0, 1, 2, 3]]
    assert kept.frame().value.notna().all()


def test_a_diverged_run_leaves_the_last_good_checkpoint(tmp_path):
    with pytest.raises(fc.Diverged):
        run(Poisoned(), rounds=20, checkpoint_dir=tmp_path)
    again = run(Poisoned(), rounds=4, checkpoint_dir=tmp_path)
    assert torch.equal(again.params, run(rounds=4).params)
