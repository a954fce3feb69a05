"""Which parameters are the last layers, for networks whose forward pass is not the order of their modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import fedcore as fc

linear = nn.Linear
DATA = torch.linspace(-1, 1, 96).sin().view(12, 8), torch.arange(12) % 3


class Network(nn.Module):
    """These modules in this order of declaration, called as `run(self, x)` says."""

    def __init__(self, run, **modules):
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.run(self, x)


def tied():
    net = Network(lambda s, x: s.o(s.h(s.e(x))), e=nn.Linear(8, 3, bias=False), h=nn.Linear(3, 8), o=nn.Linear(8, 3))
    net.o.weight = net.e.weight
    return net


def bare():
    net = Network(lambda s, x: nn.functional.linear(s.a(x).relu(), s.w), a=nn.Linear(8, 4))
    net.w = nn.Parameter(torch.randn(3, 4))
    return net


def head_called_by_its_weight(s, x):
    return nn.functional.linear(s.body(x).relu(), s.head.weight, s.head.bias)


def attention(s, x):
    h = s.body(x)[:, None]
    return s.head(s.attention(h, h, h)[0][:, 0])


NETWORKS = {
    "norms are declared behind the layers": (
        lambda: Network(lambda s, x: s.c(s.p(s.b(s.n(s.a(x))))), a=linear(8, 4), b=linear(4, 4), c=linear(4, 3),
                        n=nn.LayerNorm(4), p=nn.LayerNorm(4)),
        ["c.weight", "c.bias"], ["b.weight", "b.bias", "p.weight", "p.bias"],
    ),
    "the head comes first and a layer within attention is not called": (
        lambda: Network(attention, head=linear(4, 3), body=linear(8, 4),
                        attention=nn.MultiheadAttention(4, 1, batch_first=True)),
        ["head.weight", "head.bias"], ["attention.out_proj.weight", "attention.out_proj.bias"],
    ),
    "the head is not called but read": (
        lambda: Network(head_called_by_its_weight, head=linear(4, 3), body=linear(8, 4)),
        ["head.weight", "head.bias"], ["body.weight", "body.bias"],
    ),
    "experts of which a pass uses one": (
        lambda: Network(lambda s, x: s.e[0](s.a(x)), e=nn.ModuleList([linear(4, 3), linear(4, 3)]), a=linear(8, 4)),
        ["e.1.weight", "e.1.bias"], ["e.0.weight", "e.0.bias"],
    ),
    "the head is a parameter of the whole": (bare, ["w"], ["a.weight", "a.bias"]),
    "the last layer is also the first": (
        lambda: Network(lambda s, x: s.end(s.a(s.b(s.a(x)))), end=nn.Identity(), a=linear(8, 8), b=linear(8, 8)),
        ["a.weight", "a.bias"], ["b.weight", "b.bias"],
    ),
    "vectors of the spectral norm are carried": (
        lambda: nn.Sequential(parametrizations.spectral_norm(linear(8, 4)), linear(4, 3)),
        ["1.weight", "1.bias"], ["0.bias", "0.parametrizations.weight.original"],
    ),
    "the head is parametrised": (
        lambda: nn.Sequential(linear(8, 4), parametrizations.weight_norm(linear(4, 3))),
        ["1.bias", *(f"1.parametrizations.weight.original{k}" for k in (0, 1))], ["0.weight", "0.bias"],
    ),
}  # fmt: skip


def federation(make):
    torch.manual_seed(0)
    return fc.federation(DATA, clients=2, partition=fc.IID(), model=make(), path="sequential")


def names(layout, mask):
    return [name for name, place in zip(layout.names, layout.slices, strict=True) if mask[place].any()]


@pytest.mark.parametrize(("make", "last", "before"), NETWORKS.values(), ids=NETWORKS)
def test_the_last_layers_are_those_that_the_forward_pass_uses_last(make, last, before):
    fed = federation(make)
    for method in (fc.FedPer(), fc.FedRep(), fc.FedBABU()):
        assert names(fed.layout, method.top(fed.layout, fed.x0)) == last
    assert names(fed.layout, fc.FedPVR().mask(fed.layout, fed.x0)) == last
    for layers, wanted in ((1, last), (2, [*before, *last])):
        top = torch.zeros(fed.d)
        top[fc.FedALA(layers=layers).last(fed.layout, fed.d)] = 1
        assert sorted(names(fed.layout, top)) == sorted(wanted)


@pytest.mark.parametrize("method", [fc.FedPer(), fc.FedRep(), fc.FedBABU(), fc.FedALA(), fc.FedPVR()], ids=repr)
def test_a_last_layer_that_has_its_weight_from_another_layer_is_refused(method):
    fed = federation(tied)
    with pytest.raises(ValueError, match=r"the last 1 of 3 layers .* 'o' and 'e' have a tensor in common; give each"):
        fc.simulate(method, fed, rounds=2, progress=False)


def test_layers_that_share_a_weight_may_all_be_personal_or_all_common():
    fed = federation(tied)
    for layers in (0, 3):
        mask = fc.FedPer(layers=layers).top(fed.layout, fed.x0)
        assert mask.all() if layers else not mask.any()
