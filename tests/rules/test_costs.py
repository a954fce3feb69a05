"""What a round of each method costs, derived from its rule, against `Method.cost`.

Traffic is counted in numbers per client of the cohort and round, for one network of d = 357 parameters; `up` is what
the server must be sent to apply the rule, given what it has: where an update is a function of the client's last iterate
(SCAFFOLD's option II, FedDC's drift and variate), it is not sent, only the number of local steps is.
"""

from __future__ import annotations

import helpers as h
import numpy as np
import pytest
from battery import METHODS, contrastive
from networks import scaled

import fedcore as fc
from fedcore import rng
from fedcore.engine import counting
from fedcore.engine.batched import Batched
from fedcore.engine.sequential import Sequential

SHAPE = (1, 4, 4)
LAYOUT = fc.models.Layout.of(scaled(SHAPE, 3))
d = 40 + 8 + 222 + 12 + 75  # convolution, batch norm, convolution, batch norm, linear
NORM, HEAD = 8 + 12, 75

# method: numbers down, numbers up, gradients and Hessian-vector products per local step, full local gradients per round
COSTS = [
    *[(method, d, d, 1, 0, 0) for method in (
        fc.FedAvg(), fc.FedAvg(server_momentum=0.9), fc.FedProx(), fc.FedDyn(), fc.FedSplit(), fc.FedPVR(()),
        fc.FedSGD(),  # its one step takes the whole local batch
        fc.FedSMB(), fc.FedLC(), fc.FedALA(layers=0), fc.FedAdagrad(), fc.FedAdam(), fc.FedYogi(), fc.FedExP(),
        fc.FedPer(layers=0), fc.FedBABU(layers=0),
        fc.ProxSkip(),  # all clients know the coins, and h_i follows from the new x
        fc.MOON(), fc.FedNTD(),  # and two forward passes, or one of the server's model
        fc.FixBN(),  # and once the statistics
    )],
    *[(method, d, d, 2, 0, 0) for method in (fc.FedSAM(), fc.FedSpeed(), fc.Ditto(), fc.APFL())],
    *[(method, 0, 0, 1, 0, 0) for method in (fc.LocalOnly(), fc.Central())],
    (fc.pFedMe(), d, d, 5, 0, 0),
    (fc.SCAFFOLD("I"), 2 * d, 2 * d, 1, 0, 1),
    (fc.SCAFFOLD("II"), 2 * d, d + 1, 1, 0, 0),
    (fc.FedDC(), 2 * d, d + 1, 1, 0, 0),
    (fc.FedNova(), d, d + 1, 1, 0, 0),
    (fc.FedCM(), 2 * d, d + 1, 1, 0, 0),
    *[(method, 2 * d, d + 1, 2, 0, 0) for method in (fc.MoFedSAM(), fc.FedGamma())],
    (fc.Mime(), 3 * d, 2 * d, 2, 0, 1),
    (fc.MimeLite(), 2 * d, 2 * d, 1, 0, 1),
    (fc.STEM(), 2 * d, 2 * d, 2, 0, 0),  # and one full gradient in round 0
    (fc.FedSMOO(), 2 * d, 2 * d, 2, 0, 0),
    (fc.FedPVR(), d + HEAD, d + 1, 1, 0, 0),
    (fc.FedPVR(("5", "10")), d + 222 + HEAD, d + 1, 1, 0, 0),
    (fc.FedPVR("all"), 2 * d, d + 1, 1, 0, 0),
    (fc.FedUp(), 2 * d, d, 1, 0, 0),  # a client of the last cohort has x_prev: d
    *[(method, 2 * d, 2 * d, 1, 0, 0)  # two neighbours on a ring
      for method in (fc.DPSGD(), fc.DFedAvg(), fc.DFedAvgM(), fc.ExactDiffusion())],
    *[(method, 4 * d, 4 * d, 1, 0, 0) for method in (fc.DFedAvg(fc.Torus()), fc.QGDSGDm(fc.Torus()))],
    (fc.DFedAvg(fc.RandomRegular(3)), 3 * d, 3 * d, 1, 0, 0),
    (fc.DFedSAM(), 2 * d, 2 * d, 2, 0, 0),
    (fc.DFedSAM(gossip_steps=4), 8 * d, 8 * d, 2, 0, 0),
    (fc.DFedGAM(), 2 * d, 2 * d, 2, 1, 0),
    (fc.DFedGAM(form="gam"), 2 * d, 2 * d, 2, 2, 0),
    (fc.DFedGAM(form="accelerated"), 2 * d, 2 * d, 4, 0, 0),
    (fc.DSGT(), 4 * d, 4 * d, 1, 0, 0),  # two vectors to each of two neighbours
    *[(method, d - HEAD, d - HEAD, 1, 0, 0) for method in (fc.FedPer(), fc.FedBABU())],
    (fc.FedRep(layers=2), 48, 48, 1, 0, 0),  # of three layers the first, with its norm
    (fc.FedBN(), d - NORM, d - NORM, 1, 0, 0),
    (fc.FedALA(sample=0.8), d, d, 1, 0, 0.8),  # from a client's third round on; 0 in its first, 8.8 to 80 in its second
    (fc.PerFedAvg(), d, d, 2, 1, 1),  # the full gradient for the client's own model
    (fc.PerFedAvg(first_order=True), d, d, 2, 0, 1),
]  # fmt: skip


@pytest.mark.parametrize(("method", "down", "up", "gradients", "products", "full"), COSTS, ids=lambda v: repr(v))
def test_a_method_costs_what_its_rule_says(method, down, up, gradients, products, full):
    cost = method.cost(LAYOUT)
    assert (cost.down * d, cost.up * d) == (pytest.approx(down), pytest.approx(up))
    assert (cost.gradients, cost.products, cost.full_gradients) == pytest.approx((gradients, products, full))


@pytest.mark.parametrize(("method", "down", "up", "gradients", "products", "full"), COSTS, ids=lambda v: repr(v))
def test_what_is_frozen_costs_no_traffic(method, down, up, gradients, products, full):
    """A network whose head alone is trained sends a share HEAD / d of what it sent; one without frozen ones all."""
    net = scaled(SHAPE, 3)
    for p in list(net.parameters())[:-2]:
        p.requires_grad_(False)
    cost, whole = method.cost(fc.models.Layout.of(net)), method.cost(LAYOUT)
    assert (cost.gradients, cost.full_gradients, cost.note) == (whole.gradients, whole.full_gradients, whole.note)
    if isinstance(method, fc.FedPer):
        assert cost.down == cost.up == (method.layers == 0) * HEAD / d  # the head stays, and the rest is frozen
    elif isinstance(method, fc.FedBN):
        assert cost.down == cost.up == pytest.approx(HEAD / d)
    elif isinstance(method, fc.FedPVR):
        vectors = 2 if method.layers != () else 1  # the head is corrected
        assert (cost.down * d, cost.up * d) == pytest.approx((vectors * HEAD, HEAD + (vectors == 2)))
    else:
        numbers = [n // d * HEAD + n % d for n in (down, up)]  # vectors, and a number of steps
        assert (cost.down * d, cost.up * d) == pytest.approx(tuple(numbers))


def test_a_frozen_network_sends_nothing():
    net = h.small_mlp((1, 4, 4), 3).requires_grad_(False)
    cost = fc.SCAFFOLD().cost(fc.models.Layout.of(net))
    assert (cost.down, cost.up) == (0, 0)


def own(base=fc.Method, **verbs):
    return type("Own", (base,), verbs)()


@pytest.mark.parametrize("base", [fc.Method, fc.SCAFFOLD, fc.FedPer, fc.DFedAvg, fc.HeteroFL])
def test_a_method_of_ones_own_that_changes_the_round_states_no_cost_until_it_has_one(base):
    for verbs in ({"aggregate": lambda self, r, y: {"x": r.x}}, {"broadcast": lambda self, r: r.x},
                  {"prepare": lambda self, r: r}, {"direction": lambda self, G, y, r: G(y) + G(2 * y)}):  # fmt: skip
        cost = own(base, **verbs).cost(LAYOUT)
        assert not cost.stated
        assert all(np.isnan(v) for v in (cost.down, cost.up, cost.gradients, cost.full_gradients))
        assert repr(cost).startswith("Cost(not stated: Own changes the round; write its cost(self, layout)")
        stated = own(base, **verbs, cost=lambda self, layout=None: fc.algorithms.method.Cost.of(layout, up=0.5))
        assert (stated.cost().stated, stated.cost().up) == (True, 0.5)
        again = own(type(stated), **verbs).cost()  # what a base of one's own states is not what a new verb costs
        assert not again.stated
    mixin = type("Mixin", (), {"broadcast": lambda self, r: 2 * r.x})  # no method
    assert not type("Own", (mixin, base), {})().cost().stated
    for same in ({}, {"local_work": lambda self, work: work}, {"personal": lambda self, state, layout: None}):
        assert own(base, **same).cost(LAYOUT) == base().cost(LAYOUT)


def work(method, fed, state, K) -> tuple[float, int]:
    """In a fourth round with K local steps, backward passes per client, and forward passes without a backward one over
    all clients."""
    looks = []
    with pytest.MonkeyPatch.context() as patch, counting() as clients:
        for cls, name, count in (
            (Batched, "features", lambda Y, *_: len(Y)), (Batched, "logits", lambda Y, *_: len(Y)),
            (Sequential, "_features", lambda *_: 1), (Sequential, "logits", lambda Y, *_: len(Y)),
        ):  # fmt: skip
            plain = getattr(cls, name)
            patch.setattr(cls, name, lambda self, *a, f=plain, c=count: looks.append(c(*a)) or f(self, *a))
        fc.one_round(method, fed, state, 3, local_steps=K, batch_size=4, lr=0.05)
    return sum(clients) / fed.n, sum(looks)


def below_p_max(method, fed, state) -> int:
    """In how many of all clients' third and fourth local steps FjORD draws a width below the client's own."""
    narrow = []

    def look(r, y):
        most = method.ratios(r.seed, r.n, r.t, r.ids)
        narrow.append(int((method.drawn(r, most) < most).sum()))

    fc.one_round(method, fed, state, 3, local_steps=4, batch_size=4, lr=0.05, watch=look)
    return sum(narrow[2:])


ON_PATHS = [
    *[(method, "batched") for method in METHODS],
    *[(method, "written") for method in METHODS if not isinstance(method, fc.MOON)],  # which needs representations
    *[(method, "sequential") for method in (
        fc.FedAvg(), fc.Mime(0.6), fc.MOON(2.0), fc.FedALA(1, 0.8, 0.5), fc.DFedGAM(), fc.FjORD({1: 0.5, 0.5: 0.5}),
    )],
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ON_PATHS, ids=repr)
def test_a_round_takes_the_gradients_that_its_method_states(method, path):
    fed = method.on(h.network(model="mlp" if path == "written" else contrastive, path=path))
    state = fc.start(method, fed)
    for t in range(3):
        state, _ = fc.one_round(method, fed, state, t, local_steps=1, batch_size=4, lr=0.05)
    (two, few), (four, many) = (work(method, fed, state, K) for K in (2, 4))
    cost = method.cost(fed.layout)
    step = cost.gradients + 2 * cost.products
    looked = many - few
    if isinstance(method, fc.FjORD):
        narrow = below_p_max(method, fed, state)
        assert 0 < narrow < 2 * fed.n  # local steps of the two
        assert ((four - two) * fed.n, looked) == (pytest.approx(2 * fed.n + narrow), cost.forwards * narrow)
        return
    if isinstance(method, fc.FedSGD | fc.FedSMB | fc.DPSGD):  # one step, whatever was asked for
        assert (two, four) == (step, step)
    elif isinstance(method, fc.ProxSkip):  # as many as the coins say
        steps = rng.geometric(method.p, 0, rng.COINS, 3)
        assert (two, four) == (steps * step, steps * step)
    else:
        assert ((four - two) / 2, looked) == (step, 2 * cost.forwards * fed.n)
        once = two - 2 * step
        if isinstance(method, fc.FedALA):  # an epoch of mini-batches of its share; batched clients are in lock-step
            each = np.ceil((fed.sizes * method.sample + 1e-9).astype(int) / 4)
            assert once == pytest.approx(each.mean() if path == "sequential" else each.max())
        elif isinstance(method, fc.FedGSE):  # the server's look at public data
            assert once == 1
        else:
            assert once == cost.full_gradients


def test_every_method_whose_traffic_does_not_depend_on_capacities_is_in_the_table():
    submodels = {m for m in fc.ALL if "capacities" in m.__dataclass_fields__}
    assert {type(row[0]) for row in COSTS} == set(fc.ALL) - submodels
