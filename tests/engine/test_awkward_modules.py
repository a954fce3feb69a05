"""A network is more than its parameters: awkward modules against a loop that a reader would write with torch.optim.SGD.

Each is computed rightly on every path that it is offered, or refused by name before the first round.
"""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedcore as fc
from fedcore import models, rng

ROUNDS, LR, BATCH = 2, 0.3, 4
X = np.random.default_rng(0).normal(size=(46, 6)).astype(np.float32)
Y = np.arange(46) % 3
PARTS = [np.arange(0, 13), np.arange(13, 25), np.arange(25, 37)]


class Net(nn.Module):
    """Two layers, and between them what `inner` does; `parts` are modules, parameters and buffers by name."""

    def __init__(self, inner=lambda net, z: F.relu(z), **parts):
        super().__init__()
        self.a, self.o, self.inner = nn.Linear(6, 8), nn.Linear(8, 3), inner
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.o(self.inner(self, self.a(x)))


def layers(change=lambda net: None):
    """An MLP whose layers are then changed as objects."""
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    change(net)
    return net


def running(net, z):  # statistics of the user's own, written in place
    if net.training:
        net.mean.lerp_(z.mean(0).detach(), 0.2)
    return torch.relu(z - net.mean)


def assigned(net, z):  # the same, by assignment
    if net.training:
        net.mean = 0.8 * net.mean + 0.2 * z.mean(0).detach()
    return torch.relu(z - net.mean)


def warm_up(net, z):  # a whole number
    if net.training:
        net.seen += 1
    return torch.relu(z) * (net.seen.to(z.dtype) / 5).clamp(max=1)


def added_to_dropout(net, z):  # which is in place of its own input where nothing is dropped
    h = net.drop(z)
    h += net.h(z)
    return h + z


def noise(net, z):  # by Python's numbers and NumPy's
    return z * random.uniform(0.5, 1.5) * float(np.random.uniform(0.5, 1.5)) if net.training else z  # noqa: NPY002


class Dropping(nn.Module):
    """Layers of which each is left out by chance, by torch's numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, z):
        for layer in self.layers:
            if not self.training or torch.rand(()) < 0.7:
                z = z + F.relu(layer(z))
        return z


class Sized(Net):
    """Another function of few samples."""

    def forward(self, x):
        return self.o(F.relu(self.a(x)) if len(x) > 3 else torch.tanh(self.a(x)))


def hooked_beside_dropout():
    """Dropout as a function, so little that it does nothing, behind a layer that is not what its kind is."""
    net = Net(lambda net, z: F.dropout(F.relu(z), 1e-12, net.training))
    net.a.register_full_backward_pre_hook(lambda layer, out: (2 * out[0],))
    return net


class Bounded(nn.Linear):
    """Keeps its weights within bounds that they are in at first."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return super().forward(x)


class InTraining(nn.Linear):
    def forward(self, x):
        return (super().forward(x), x) if self.training else super().forward(x)


class Asleep(nn.Sequential):
    """Its first layers stay in evaluation, as those of a body that is to stay as it is."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval()
        return self


class Renorm(nn.BatchNorm1d):
    def forward(self, z):
        out = super().forward(z)
        return out * self.running_var.sqrt() if self.training else out


class Compiled(Net):
    def __init__(self):
        super().__init__()
        self.a = torch.compile(self.a, backend="eager")


CALLS = {"n": 0}


def counted(net, z):  # changes after a while
    CALLS["n"] += net.training
    return torch.relu(z) if CALLS["n"] < 50 else torch.tanh(z)


def rarely(net, z):  # does something else, by a generator of the user's own
    draw = torch.rand((), generator=net.g)
    return torch.tanh(z) if net.training and draw < 0.01 else torch.relu(z)


def evaluated(net, z):  # adapts to what is evaluated
    if not net.training:
        net.mean.lerp_(z.mean(0).detach(), 0.2)
    return torch.relu(z - net.mean)


def moded(net, z):
    if not net.training:
        net.mode = "evaluated"
    return torch.tanh(z) if hasattr(net, "mode") else torch.relu(z)


def symbols(net, z):
    return net.e(z.detach().clamp(0, 3).long()).flatten(1)[:, :8] + z


STATEFUL = {
    "running statistics": lambda: Net(running, mean=torch.zeros(8)),
    "running statistics, assigned": lambda: Net(assigned, mean=torch.zeros(8)),
    "a warm-up counter": lambda: Net(warm_up, seen=torch.zeros((), dtype=torch.int64)),
    "spectral norm": lambda: layers(lambda net: nn.utils.parametrizations.spectral_norm(net[0])),
}
RANDOM = {
    "added to dropout's output": lambda: Net(added_to_dropout, h=nn.Linear(8, 8), drop=nn.Dropout(0.5)),
    "noise of Python and NumPy": lambda: Net(noise),
    "layers left out by chance": lambda: nn.Sequential(nn.Linear(6, 8), Dropping(), nn.Linear(8, 3)),
}
PLAIN = {
    "a forward hook": lambda: layers(lambda net: net[0].register_forward_hook(lambda layer, given, out: 2 * out)),
    "a part that stays in evaluation": lambda: Asleep(
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), nn.ReLU(), nn.Linear(8, 3)
    ),
    "another function of few samples": Sized,
    "dropout, and a backward hook": hooked_beside_dropout,
    "batch norm with statistics of its own": lambda: Net(
        lambda net, z: F.relu(F.batch_norm(z, net.mean, net.var)), mean=torch.ones(8), var=torch.full((8,), 2.0)
    ),
    "weight norm": lambda: layers(lambda net: nn.utils.parametrizations.weight_norm(net[0])),
    "in place behind layers that hand on": lambda: nn.Sequential(
        nn.Linear(6, 8),
        models.Residual(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(8, 8))),
        nn.Linear(8, 3),
    ),
    "several rows a sample in between": lambda: Net(
        lambda net, z: torch.relu(net.h(z.view(-1, 4))).view(-1, 8), h=nn.Linear(4, 4)
    ),
}
CHANGES = "changes what it was called with"
REFUSED = {
    "two rows a sample": (lambda: Net(lambda net, z: z.reshape(-1, 4), o=nn.Linear(4, 3)), "one row a sample"),
    "a batch of one loses its axis": (lambda: Net(lambda net, z: F.relu(z).squeeze()), "squeeze"),
    "not initialised": (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy layers"),
    "a generator of its own, seldom": (lambda: Net(rarely, g=torch.Generator()), CHANGES),
    "a mode that an evaluation sets": (lambda: Net(moded), CHANGES),
    "a count in a global": (lambda: Net(counted), CHANGES),
    "bounds that are not reached at first": (
        lambda: nn.Sequential(Bounded(6, 8), nn.ReLU(), nn.Linear(8, 3)), "writes to its parameter '0.weight'",
    ),
    "a hook on a gradient": (
        lambda: layers(lambda net: net[0].weight.register_hook(lambda g: 0 * g)), "hook on its gradient",
    ),
    "a tuple in training": (lambda: nn.Sequential(InTraining(6, 3)), "a tuple in training"),
    "written in evaluation": (lambda: Net(evaluated, mean=torch.zeros(8)), "under `if self.training:`"),
    "statistics without a call": (
        lambda: Net(
            lambda net, z: F.batch_norm(z, net.n.running_mean, net.n.running_var, training=net.training),
            n=nn.BatchNorm1d(8),
        ),
        "reads 'n.running_mean' without calling this batch norm",
    ),
    "renormalised by running statistics": (lambda: Net(lambda net, z: net.n(z), n=Renorm(8)), "running statistics"),
    "batch norm in evaluation": (
        lambda: Asleep(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), nn.ReLU(), nn.Linear(8, 3)),
        r"batch norm '0\.1' stays in evaluation mode.*F\.batch_norm.*buffers",
    ),
    "a sparse gradient": (
        lambda: Net(symbols, e=nn.Embedding(4, 2, sparse=True)), r"sparse gradient by .* 'e\.weight'.*sparse=False",
    ),
    "a compiled layer": (Compiled, r"OptimizedModule, 'a'.*_orig_mod"),
}  # fmt: skip


def built(make):
    torch.manual_seed(0)
    return make()


def federation(module, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fc.federation(
            ((X, Y), (X[:9], Y[:9])), partition=PARTS, model=module, seed=0, dtype=torch.float64, **more
        )


def run(fed, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = {"rounds": ROUNDS, "lr": LR, "batch_size": BATCH, "local_epochs": 1, "eval_every": ROUNDS}
        return fc.simulate(fc.FedAvg(), fed, **work | more)


def by_hand(module, fed, draws=False):
    """FedAvg one client after another: torch.optim.SGD, and the mean of all floating states."""
    server = models.copied(module).double()
    x, y = torch.tensor(X, dtype=torch.float64), torch.tensor(Y)
    for t in range(ROUNDS):
        plan, left = fed.plan(0, t, np.arange(3), epochs=1, batch_size=BATCH), []
        for row in np.argsort(plan.clients):
            net = models.copied(server).train()
            optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], LR)
            for k in range(int(plan.steps[row])):
                picked = plan.indices[k, row][: int(plan.counts[k, row])]
                key = int(rng.words(plan.keys[row], rng.DROPOUT, k)[0]) & 0x7FFFFFFFFFFFFFFF
                optimiser.zero_grad()
                if draws:
                    torch.manual_seed(key)
                    random.seed(key)
                    np.random.seed(key % 2**32)  # noqa: NPY002
                F.cross_entropy(net(x[picked]), y[picked]).backward()
                optimiser.step()
            left.append(net.state_dict())
        mean = {k: torch.stack([s[k].double() for s in left]).mean(0) for k in left[0]}
        server.load_state_dict({k: v.round().to(left[0][k].dtype) if not left[0][k].is_floating_point() else v
                                for k, v in mean.items()})  # fmt: skip
    return server


def paths_of(module):
    """The paths that a module can be forced on."""
    for path in ("auto", "sequential", "batched", "written"):
        try:
            yield path, federation(module, path=path)
        except ValueError:
            if path in ("auto", "sequential"):
                raise


@pytest.mark.parametrize("kind", [*STATEFUL, *RANDOM, *PLAIN])
def test_a_module_is_trained_as_one_client_after_another_would_be_by_hand(kind):
    module = built({**STATEFUL, **RANDOM, **PLAIN}[kind])
    before = copy.deepcopy(module.state_dict())
    for path, fed in paths_of(module):
        states = rng.global_states()
        history = run(fed)
        assert torch.equal(run(fed).params, history.params), "two equal runs differ"
        assert rng.global_states() == states
        torch.testing.assert_close(run(fed, chunk=1).params, history.params, rtol=1e-9, atol=1e-9)
        if kind in RANDOM and path != "sequential" and not fed.engine.one_by_one:
            continue  # dropout by a rule draws numbers of its own; that it is seeded, other tests see
        want, found = by_hand(module, fed, draws=kind in RANDOM), fed.module(history.params).network
        compared = [want.named_parameters(), want.named_buffers() if kind in STATEFUL else ()]
        state = dict([*found.named_parameters(), *found.named_buffers()])
        for name, value in (pair for named in compared for pair in named):
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-9, msg=f"{path}: {name}")
    after = module.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before), "the user's module was changed"


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_computed_is_refused_before_the_first_round(kind):
    make, said = REFUSED[kind]
    with pytest.raises(ValueError, match=said):
        federation(built(make))


def test_a_layer_that_is_computed_anew_in_the_backward_pass_is_read_by_its_rule_or_refused():
    """By then the module holds its own parameters again, and no client's."""

    def checkpointed(net, z):
        return checkpoint(lambda z: torch.relu(net.h(z)), z, use_reentrant=False)

    module = built(lambda: Net(checkpointed, h=nn.Linear(8, 8)))
    fed = federation(module)
    want = by_hand(module, fed)
    torch.testing.assert_close(fed.module(run(fed).params).network.a.weight, want.a.weight, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"torch\.utils\.checkpoint"):
        federation(module, path="sequential")


def test_what_an_evaluation_writes_to_is_as_it_was_behind_it():
    """As a cache: it is filled in evaluation, too, and gives what it gave without."""

    def cached(net, z):
        if not bool(net.filled):
            net.cache.copy_(torch.linspace(0, 1, 8))
            net.filled.fill_(True)
        return torch.relu(z + net.cache)

    fed = federation(built(lambda: Net(cached, cache=torch.zeros(8), filled=torch.tensor(False))))
    first, x = fed.evaluate(fed.x0), fed.x0.clone()
    assert fed.evaluate(fed.x0) == first
    assert torch.equal(fed.x0, x)
    assert run(fed, eval_every=1).rows[-1] == run(fed).rows[-1]


@pytest.mark.parametrize("kind", ["features", "normalised", "text"])
def test_a_forward_pass_that_writes_over_its_input_leaves_the_data_as_they_are(kind):
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.n, self.o = nn.Embedding(9, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x):
            x[:, 0] //= 2
            x = self.e(x).mean(1) if kind == "text" else x
            return self.o(self.n(x) if kind == "normalised" else x)

    x, more = (np.arange(276).reshape(46, 6) % 9, {"layout": "text"}) if kind == "text" else (X, {})
    torch.manual_seed(0)
    fed = fc.federation(((x, Y), (x, Y)), clients=3, model=Halved(), path="sequential", **more)
    before, evaluated = fed.fingerprint(), fed.evaluate(fed.x0)
    assert fed.inputs(fed.x).data_ptr() != fed.x.data_ptr()
    fed.module(fed.x0)(fed.test[0])
    run(fed, personal=True)
    fed.objective(fed.x0)
    assert (fed.fingerprint(), fed.evaluate(fed.x0)) == (before, evaluated)
    for stored in (fed.x, fed.test[0]):
        np.testing.assert_array_equal(stored, x)


def test_noise_in_evaluation_is_the_same_in_two_equal_runs():
    fed = federation(built(lambda: Net(lambda net, z: F.relu(z + torch.randn_like(z)) * random.random())))
    first = run(fed, eval_every=1)
    torch.manual_seed(1)
    random.seed(1)
    states = rng.global_states()
    assert run(fed, eval_every=1).rows == first.rows
    assert rng.global_states() == states


@pytest.mark.parametrize("kind", ["a forward hook", "weight norm", "spectral norm"])
def test_sub_models_of_such_a_module_are_refused_by_name(kind):
    fed = federation(built({**STATEFUL, **PLAIN}[kind]))
    with pytest.raises(ValueError, match=r"layer|shares"):
        fc.simulate(fc.HeteroFL(), fed, rounds=1)


def clamped(net):
    net[2].forward = lambda z: F.linear(z, net[2].weight, net[2].bias).clamp(-2, 2)


def clamping(net):
    net[2].register_full_backward_hook(lambda layer, to, of: (to[0].clamp(-1, 1),))


@pytest.mark.parametrize("changed", [clamped, clamping], ids=["a forward of its own", "a backward hook"])
def test_a_layer_that_is_changed_as_an_object_is_not_computed_by_the_rule_of_its_type(changed):
    """Also where the change shows only after some steps."""
    assert fc.federation((X, Y), clients=3, model=layers(changed)).engine.written is None


def test_a_buffer_that_the_first_samples_leave_as_it_is_goes_along_all_the_same():
    """A running maximum that starts above what the first samples reach."""

    def largest(net, z):
        net.most.copy_(torch.maximum(net.most, z.detach().abs().max()))
        return F.relu(z) / net.most

    fed = fc.federation((X, Y), clients=3, model=Net(largest, most=torch.tensor(100.0)))
    assert models.carried(fed.engine.module) == ("most",)


# --- full batches of samples that a module mixes ----------------------------------------------------------------------


def hooked(net, z):
    if z.requires_grad:
        z.register_hook(lambda g: g / g.norm())
    return F.relu(z)


def centred(net, z):
    return z - z.mean(0) if net.training else z


MIXING = {
    "and dropout of rows": lambda: Net(lambda net, z: net.d(centred(net, z)[..., None])[..., 0], d=nn.Dropout1d(1e-9)),
    "and random numbers of no effect": lambda: Net(lambda net, z: centred(net, z) + 0 * torch.randn_like(z)),
    "in the backward pass alone": lambda: Net(hooked),
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_full_batch_whose_samples_a_module_mixes_is_not_cut(kind, monkeypatch):
    for name in ("SAMPLE_CHUNK", "CLIENT_CHUNK"):
        monkeypatch.setattr(f"fedcore.objective.federation.{name}", 10)
    net = built(MIXING[kind])
    fed = fc.federation(((X, Y), (X, Y)), partition=[np.arange(46)], model=net, path="sequential")
    found = fed.x0 - fc.simulate(fc.FedSGD(), fed, rounds=1, lr=1.0).params
    F.cross_entropy(net.train()(torch.tensor(X)), torch.tensor(Y)).backward()
    torch.testing.assert_close(found, torch.cat([p.grad.flatten() for p in net.parameters()]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [
    lambda: Net(lambda net, z: net.d(F.relu(z)), d=nn.Dropout(0.5)),
    lambda: Net(lambda net, z: net.l(z[:, None])[0][:, 0], l=nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)),
])  # fmt: skip
def test_dropout_alone_mixes_no_samples(make):
    trial = fc.federation((X, Y), clients=2, model=make(), path="sequential").engine.trial
    assert trial.draws
    assert not trial.mixes
