"""A network is more than its parameters: awkward modules against a loop that a reader would write with torch.optim.SGD.

Each is computed rightly on every path that it is offered, or refused by name before the first round.
"""

import copy
import itertools
import random
import warnings
from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import fedcore as fc
from fedcore import models, rng

ROUNDS, LR, BATCH = 3, 0.3, 4
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


def codebook(net, z):  # exponential moving averages of what is assigned to each code
    near = torch.cdist(z, net.codes).argmin(1)
    if net.training:
        with torch.no_grad():
            for k in near.unique():
                net.codes[k] = 0.9 * net.codes[k] + 0.1 * z[near == k].mean(0)
    return z + net.codes[near]


def added(net, z):  # in place, and read under its first name
    h = z
    h += torch.relu(z)
    return z + torch.tanh(h)


def added_to_dropout(net, z):  # which is in place of its own input where nothing is dropped
    h = net.drop(z)
    h += net.h(z)
    return h + z


def layer_drop(net, z):
    return z if net.training and random.random() < 0.5 else z + torch.relu(net.h(z))


def numpy_noise(net, z):
    return torch.relu(z) * float(np.random.uniform(0.5, 1.5)) if net.training else torch.relu(z)  # noqa: NPY002


def torch_noise(net, z):
    return torch.relu(z + 0.1 * torch.randn_like(z)) if net.training else torch.relu(z)


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


class Sized(nn.Module):
    """Another function of few samples."""

    def __init__(self):
        super().__init__()
        self.a, self.o = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.o(F.relu(self.a(x)) if len(x) > 3 else torch.tanh(self.a(x)))


class WithDropout(nn.Module):
    """Dropout as a function, so little that it does nothing, behind a layer that is not what its kind is."""

    def __init__(self, change):
        super().__init__()
        self.a, self.r, self.o = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)
        change(self)

    def forward(self, x):
        return self.o(F.dropout(self.r(self.a(x)), 1e-12, self.training))


class Bounded(nn.Linear):
    """Keeps its weights within bounds that they are in at first."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return super().forward(x)


class InTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.o = nn.Linear(6, 3)

    def forward(self, x):
        return (self.o(x), x) if self.training else self.o(x)


def with_gradient_hook():
    net = nn.Sequential(nn.Linear(6, 3))
    net[0].weight.register_hook(lambda g: 0 * g)
    return net


def at_two_places(norm):
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 8), norm, nn.ReLU(), nn.Linear(8, 3))


class Asleep(nn.Sequential):
    """Its first layers stay in evaluation, as those of a body that is to stay as it is."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval()
        return self


OUTSIDE, CALLS = np.random.default_rng(0), {"n": 0}


class Counter:
    n = 0


def counted(count):
    """What changes after a while, by a count that is kept somewhere."""

    def inner(net, z):
        n = count(net) if net.training else 0
        return torch.relu(z) if n < 50 else torch.tanh(z)

    return inner


def _in_an_object(net):
    net.c.n += 1
    return net.c.n


def _in_a_global(net):
    CALLS["n"] += 1
    return CALLS["n"]


def _in_a_class(net):
    Counter.n += 1
    return Counter.n


def _in_a_closure():
    n = 0

    def count(net):
        nonlocal n
        n += 1
        return n

    return count


def rarely(draw):
    """A forward that seldom does something else, by a generator of the user's own."""
    return lambda net, z: torch.tanh(z) if net.training and draw(net) < 0.01 else torch.relu(z)


def evaluated(net, z):  # adapts to what is evaluated
    if not net.training:
        net.mean.lerp_(z.mean(0).detach(), 0.2)
    return torch.relu(z - net.mean)


def moded(net, z):
    if not net.training:
        net.mode = "evaluated"
    return torch.tanh(z) if hasattr(net, "mode") else torch.relu(z)


def hooked(where):
    def make():
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        if where == "output":
            net[0].register_forward_hook(lambda layer, given, out: 2 * out)
        elif where == "input":
            net[2].register_forward_pre_hook(lambda layer, given: (given[0] + 1,))
        else:
            net[0].register_full_backward_hook(lambda layer, into, out: (None if into[0] is None else 2 * into[0],))
            net[2].register_full_backward_hook(lambda layer, into, out: (2 * into[0],))
        return net

    return make


def own_forward():  # an instance's forward that is not its kind's
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    layer = net[1]
    layer.forward = lambda z: torch.tanh(z)
    return net


def pruned():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    prune.l1_unstructured(net[0], "weight", 0.5)
    return net


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return 2 * z

    @staticmethod
    def backward(ctx, g):
        return 3 * g  # on purpose not the derivative


def parametrised(how):
    def make():
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        how(net[0])
        return net

    return make


def checkpointed(net, z):
    return checkpoint(lambda z: torch.relu(net.h(z)), z, use_reentrant=False)


STATEFUL = {
    "running statistics": lambda: Net(running, mean=torch.zeros(8)),
    "running statistics, assigned": lambda: Net(assigned, mean=torch.zeros(8)),
    "a warm-up counter": lambda: Net(warm_up, seen=torch.zeros((), dtype=torch.int64)),
    "a codebook": lambda: Net(codebook, codes=torch.linspace(-1, 1, 24).reshape(3, 8)),
    "instance norm with statistics": lambda: Net(
        lambda net, z: net.n(z.view(len(z), 2, 4)).flatten(1), n=nn.InstanceNorm1d(2, track_running_stats=True)
    ),
    "spectral norm": parametrised(nn.utils.parametrizations.spectral_norm),
    "spectral norm, the older one": parametrised(nn.utils.spectral_norm),
}
RANDOM = {
    "added to dropout's output": lambda: Net(added_to_dropout, h=nn.Linear(8, 8), drop=nn.Dropout(0.5)),
    "layer drop": lambda: Net(layer_drop, h=nn.Linear(8, 8)),
    "NumPy's noise": lambda: Net(numpy_noise),
    "torch's noise": lambda: Net(torch_noise),
    "layers left out by chance": lambda: nn.Sequential(nn.Linear(6, 8), Dropping(), nn.Linear(8, 3)),
    "dropout": lambda: Net(lambda net, z: net.drop(F.relu(z)), drop=nn.Dropout(0.3)),
    "dropout as a function": lambda: Net(lambda net, z: F.dropout(F.relu(z), 0.3, net.training)),
}
PLAIN = {
    "a forward hook": hooked("output"),
    "a pre-hook": hooked("input"),
    "a backward hook": hooked("gradient"),
    "a forward of its own": own_forward,
    "a part that stays in evaluation": lambda: Asleep(
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), nn.ReLU(), nn.Linear(8, 3)
    ),
    "another function of few samples": Sized,
    "dropout, and a forward of its own": lambda: WithDropout(lambda net: setattr(net.r, "forward", torch.tanh)),
    "dropout, and a backward hook": lambda: WithDropout(
        lambda net: net.a.register_full_backward_pre_hook(lambda layer, out: (2 * out[0],))
    ),
    "batch norm at two places": lambda: at_two_places(nn.BatchNorm1d(8)),
    "weight norm": parametrised(nn.utils.parametrizations.weight_norm),
    "orthogonal": parametrised(nn.utils.parametrizations.orthogonal),
    "pruned": pruned,
    "a layer twice": lambda: Net(lambda net, z: F.relu(net.h(F.relu(net.h(z)))), h=nn.Linear(8, 8)),
    "a parameter outside of layers": lambda: Net(lambda net, z: F.relu(z) * net.s, s=nn.Parameter(torch.tensor(0.7))),
    "a buffer that nobody writes": lambda: Net(lambda net, z: F.relu(z + net.shift), shift=torch.ones(8)),
    "a buffer that nobody reads": lambda: Net(
        lambda net, z: (net.last.copy_(z.detach().mean(0)), F.relu(z))[1], last=torch.zeros(8)
    ),
    "centred over the batch": lambda: Net(lambda net, z: F.relu(z - z.mean(0))),
    "control flow by the data": lambda: Net(lambda net, z: F.relu(z) if z.sum() > 0 else torch.tanh(z)),
    "a function with its own derivative": lambda: Net(lambda net, z: Doubling.apply(F.relu(z))),
    "written over its input": lambda: Net(lambda net, z: F.relu(z.mul_(0.5), inplace=True)),
    "in place where another reads": lambda: Net(lambda net, z: z + net.h(F.relu(z, inplace=True)), h=nn.Linear(8, 8)),
    "in place behind layers that hand on": lambda: nn.Sequential(
        nn.Linear(6, 8),
        models.Residual(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(8, 8))),
        nn.Linear(8, 3),
    ),
    "several rows a sample in between": lambda: Net(
        lambda net, z: torch.relu(net.h(z.view(-1, 4))).view(-1, 8), h=nn.Linear(4, 4)
    ),
    "added in place": lambda: Net(added),
    "a part without a gradient": lambda: Net(lambda net, z: torch.as_tensor(z.detach().numpy())),
}
CHANGES = "changes what it was called with"
REFUSED = {
    "two rows a sample": (lambda: Net(lambda net, z: z.reshape(-1, 4), o=nn.Linear(4, 3)), "one row a sample"),
    "a batch of one loses its axis": (lambda: Net(lambda net, z: F.relu(z).squeeze()), "squeeze"),
    "one row for all": (lambda: Net(lambda net, z: z.mean(0)), "one row a sample"),
    "a parameter that is written": (
        lambda: Net(lambda net, z: (net.a.weight.data.mul_(0.9), F.relu(z))[1]), "writes to its parameter 'a.weight'",
    ),
    "hidden state in an attribute": (
        lambda: Net(lambda net, z: (setattr(net, "h", net.h + 1), F.relu(z) * net.h)[1], h=0), CHANGES,
    ),
    "a counter that nobody reads": (
        lambda: Net(lambda net, z: (setattr(net, "calls", net.calls + 1), F.relu(z))[1], calls=0), CHANGES,
    ),
    "not initialised": (lambda: nn.Sequential(nn.LazyLinear(3)), "lazy layers"),
    "a generator of its own": (
        lambda: Net(lambda net, z: F.relu(z) * float(net.g.uniform(0.5, 1.5)), g=np.random.default_rng(0)),
        CHANGES,
    ),
    "torch's numbers, seldom": (
        lambda: Net(rarely(lambda net: torch.rand((), generator=net.g)), g=torch.Generator()), CHANGES,
    ),
    "numbers from outside, seldom": (lambda: Net(rarely(lambda net: OUTSIDE.random())), CHANGES),
    "a count in an object": (lambda: Net(counted(_in_an_object), c=Counter()), CHANGES),
    "a count of a queue": (
        lambda: Net(counted(lambda net: (net.c.append(0), len(net.c))[1]), c=deque(maxlen=99)), CHANGES,
    ),
    "a count of an iterator": (lambda: Net(counted(lambda net: next(net.c)), c=itertools.count()), CHANGES),
    "a mode that an evaluation sets": (lambda: Net(moded), CHANGES),
    "a count in a global": (lambda: Net(counted(_in_a_global)), CHANGES),
    "a count in a class": (lambda: Net(counted(_in_a_class)), CHANGES),
    "a count in a closure": (lambda: Net(counted(_in_a_closure())), CHANGES),
    "bounds that are not reached at first": (
        lambda: nn.Sequential(Bounded(6, 8), nn.ReLU(), nn.Linear(8, 3)), "writes to its parameter '0.weight'",
    ),
    "a hook on a gradient": (with_gradient_hook, "hook on its gradient"),
    "a tuple in training": (InTraining, "a tuple in training"),
    "written in evaluation": (lambda: Net(evaluated, mean=torch.zeros(8)), "under `if self.training:`"),
    "another tuple": (lambda: nn.LSTM(6, 3), "returns a tuple in evaluation"),
    "statistics without a call": (
        lambda: Net(
            lambda net, z: F.batch_norm(z, net.n.running_mean, net.n.running_var, training=net.training),
            n=nn.BatchNorm1d(8),
        ),
        "reads 'n.running_mean' without calling this batch norm",
    ),
    "renormalised by running statistics": (lambda: Net(lambda net, z: net.n(z), n=Renorm(8)), "running statistics"),
}  # fmt: skip


class Renorm(nn.BatchNorm1d):
    def forward(self, z):
        out = super().forward(z)
        return out * self.running_var.sqrt() if self.training else out


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
    states = (torch.get_rng_state(), random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
    for path, fed in paths_of(module):
        history = run(fed)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert (random.getstate(), repr(np.random.get_state())) == states[1:]  # noqa: NPY002
        if kind in RANDOM and path != "sequential" and not fed.engine.one_by_one:
            continue  # dropout by a rule draws numbers of its own; that it is seeded, other tests see
        with torch.random.fork_rng():
            want = by_hand(module, fed, draws=kind in RANDOM)
        random.setstate(states[1])
        np.random.seed(0)  # noqa: NPY002
        states = (torch.get_rng_state(), random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
        found = fed.module(history.params).network
        for name, p in want.named_parameters():
            torch.testing.assert_close(
                dict(found.named_parameters())[name], p, rtol=1e-9, atol=1e-9, msg=f"{path}: {name}"
            )
        if kind in STATEFUL:
            for name, b in want.named_buffers():
                torch.testing.assert_close(dict(found.named_buffers())[name], b, rtol=1e-9, atol=1e-9)
        assert torch.equal(run(fed).params, history.params), "two equal runs differ"
        torch.testing.assert_close(run(fed, chunk=1).params, history.params, rtol=1e-9, atol=1e-9)
    after = module.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before), "the user's module was changed"


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_computed_is_refused_before_the_first_round(kind):
    make, said = REFUSED[kind]
    with pytest.raises(ValueError, match=said):
        federation(built(make))


def test_a_layer_that_is_computed_anew_in_the_backward_pass_is_read_by_its_rule_or_refused():
    """By then the module holds its own parameters again, and no client's."""
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


@pytest.mark.parametrize("kind", ["layer drop", "NumPy's noise", "running statistics", "a warm-up counter"])
def test_such_a_run_goes_on_from_a_checkpoint_to_the_bit(kind, tmp_path):
    module = built({**STATEFUL, **RANDOM}[kind])
    fed = federation(module)
    run(fed, rounds=2, checkpoint_dir=tmp_path)
    random.seed(99)
    assert torch.equal(run(fed, checkpoint_dir=tmp_path).params, run(fed).params)


def test_noise_in_evaluation_is_the_same_in_two_equal_runs():
    for make in (
        lambda: Net(lambda net, z: F.dropout(F.relu(z), 0.5, True)),
        lambda: Net(lambda net, z: F.relu(z + torch.randn_like(z))),
        lambda: Net(lambda net, z: F.relu(z) * random.random()),
    ):
        fed = federation(built(make))
        first = run(fed, eval_every=1)
        torch.manual_seed(1)
        random.seed(1)
        state = torch.get_rng_state()
        assert run(fed, eval_every=1).rows == first.rows
        assert torch.equal(torch.get_rng_state(), state)


def test_a_model_by_name_is_tried_too_and_keeps_its_path():
    for name in ("mlp", "cnn", "thesis_cnn_small"):
        assert fc.federation("digits", clients=3, model=name).engine.chosen(torch.device("cpu")) == "written"
    assert models.carried(fc.federation("digits", clients=3, model="mlp").engine.module) == ()


@pytest.mark.parametrize("method", [fc.HeteroFL(), fc.FedRolex(), fc.FedDSE()])
@pytest.mark.parametrize("kind", ["a forward hook", "weight norm", "pruned", "a layer twice", "spectral norm"])
def test_sub_models_of_such_a_module_are_refused_by_name(kind, method):
    fed = federation(built({**STATEFUL, **PLAIN}[kind]))
    with pytest.raises(ValueError, match=r"layer|shares"):
        fc.simulate(method, fed, rounds=1)


def clamped(module: nn.Sequential) -> None:
    module[2].forward = lambda z: F.linear(z, module[2].weight, module[2].bias).clamp(-2, 2)


def clamping(module: nn.Sequential) -> None:
    module[2].register_full_backward_hook(lambda layer, to, of: (to[0].clamp(-1, 1),))


@pytest.mark.parametrize("changed", [clamped, clamping], ids=["a forward of its own", "a backward hook"])
def test_a_layer_that_is_changed_as_an_object_is_not_computed_by_the_rule_of_its_type(changed):
    """Also where the change shows only after some steps."""
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    changed(module)
    assert fc.federation((X, Y), clients=3, model=module).engine.written is None


def test_a_buffer_that_the_first_samples_leave_as_it_is_goes_along_all_the_same():
    """A running maximum that starts above what the first samples reach."""

    def largest(net, z):
        net.most.copy_(torch.maximum(net.most, z.detach().abs().max()))
        return F.relu(z) / net.most

    fed = fc.federation((X, Y), clients=3, model=Net(largest, most=torch.tensor(100.0)))
    assert models.carried(fed.engine.module) == ("most",)
