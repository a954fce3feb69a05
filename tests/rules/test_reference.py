"""fedcore against the second implementation in `reference`, for every method and every rule of its options.

Small networks, unequal clients, partial participation, real mini-batches, four rounds, float64: after every round the
server's model agrees to 1e-9.
"""

from __future__ import annotations

import helpers as h
import numpy as np
import pytest
import reference
import torch
from networks import deep, heads, scaled
from torch import nn

import fedcore as fc

CLASSES, SHAPE, SIZES = 4, (1, 4, 4), (13, 7, 23, 9, 12)
PLAIN = {"lr": 0.2, "batch_size": 4, "local_epochs": 2}
RICH = {
    "lr": 0.2, "lr_decay": 0.9, "batch_size": 5, "local_epochs": 2, "weight_decay": 0.01, "clip": 1.0, "momentum": 0.5,
    "weighting": "samples", "seed": 3,
}  # fmt: skip


def mlp(shape, classes):
    return fc.models.mlp(shape, classes, hidden=(8,))


def cnn(shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, classes)
    )  # fmt: skip


def plain_cnn(shape, classes):
    """Two convolutions without norms, where eq. (4-3) does not vanish."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(6, classes),
    )  # fmt: skip


def idle(shape, classes):
    return mlp(shape, classes + 2)


def residual(shape, classes):
    body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), fc.models.Residual(body), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, classes)
    )  # fmt: skip


def eleven(shape, classes):
    """Layers named 1 and 10."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), *(nn.Identity() for _ in range(7)), nn.Linear(6, classes)
    )


projected = fc.models.projected(mlp, dim=4)
LEVELS = {1.0: 0.4, 0.5: 0.4, 0.2: 0.2}
W = [[0.5, 0.5, 0, 0, 0], [0.5, 0.2, 0.3, 0, 0], [0, 0.3, 0.3, 0.4, 0], [0, 0, 0.4, 0.2, 0.4], [0, 0, 0, 0.4, 0.6]]


def case(method, *, model=mlp, rounds=4, cohort=3, name="", public=None, **options):
    """One comparison; decentralised methods and FedSplit have all clients in every round."""
    if method.full_participation:
        cohort = None
    label = f"{method!r} {name}".strip().replace(" ", "")
    return pytest.param(method, model, rounds, public, {"cohort": cohort, **options}, id=label)


def both(method, rich=RICH, **more):
    """A method in a plain run on an MLP, and with every option of a local step on a network with batch norm."""
    return [
        case(method, **PLAIN, **more),
        case(method, name="rich", **{"model": scaled, **rich} | more),
    ]


CASES = [
    *(c for method in (
        fc.FedSGD(), fc.FedProx(0.5), fc.FedLC(0.7), fc.FedNTD(0.6, 2.0), fc.FedNova(), fc.FedExP(eps=1e-3),
        fc.FedCM(0.3), fc.FedSpeed(0.2, 0.7, 3.0), fc.FedBABU(), fc.Ditto(0.6), fc.pFedMe(2.0, 3, 0.1), fc.APFL(0.3),
        fc.PerFedAvg(0.2),
    ) for c in both(method, server_lr=0.7)),
    *(c for method in (
        fc.FedAvg(), fc.SCAFFOLD("I"), fc.SCAFFOLD("II"), fc.FedDC(0.3), fc.Mime(0.6), fc.MimeLite(0.6), fc.FedDyn(0.3),
        fc.FedSplit(0.5), fc.STEM(0.3), fc.STEM(0.3, kappa=0.2, w=1.0, c=20.0), fc.FedPVR(), fc.FedUp(0.1),
        fc.FedSAM(0.2), fc.FedExP(eps=10.0), fc.MoFedSAM(0.2, 0.3), fc.FedGamma(0.2), fc.FedPer(), fc.LocalOnly(),
        fc.PerFedAvg(0.2, first_order=True), fc.Central(), fc.FedBN(), fc.FixBN(),
        fc.DFedAvg(), fc.DFedAvgM(fc.RandomRegular(2), momentum=0.7), fc.DFedSAM(fc.Matrix(W), rho=0.2, gossip_steps=3),
        fc.DFedGAM(rho=0.2), fc.DFedGAM(rho=0.2, form="gam", alpha=0.7),
        fc.DFedGAM(rho=0.2, form="accelerated", rho_inner=0.05, beta0=0.3, beta1=0.6, gamma=0.2),
        fc.DSGT(fc.Matrix(W)), fc.ExactDiffusion(fc.Matrix(W)), fc.ExactDiffusion(lazy=False),
        fc.QGDSGDm(fc.RandomRegular(2), 0.6), fc.QGDSGDm(beta=0.6, mu=0.3, nesterov=True),
        fc.HeteroFL(LEVELS), fc.FedRolex(LEVELS), fc.FederatedDropout(LEVELS), fc.FedDSE(LEVELS), fc.FjORD(LEVELS),
    ) for c in both(method)),
    *(c for method in (
        fc.FedAdagrad(beta1=0.3, tau=0.05), fc.FedAdam(beta1=0.6, beta2=0.8, tau=0.05),
        fc.FedYogi(beta1=0.6, beta2=0.8, tau=0.05),
    ) for c in both(method, server_lr=0.1)),
    case(fc.FedAvg(), model=cnn, name="cnn", **PLAIN | {"server_lr": 0.7, "weighting": "samples"}),
    case(fc.FedAvg(), name="full", **PLAIN | {"batch_size": None, "local_epochs": 3}),
    case(fc.FedAvg(), name="steps", **PLAIN | {"local_steps": 7}),
    *both(fc.FedAvg(server_momentum=0.8), server_lr=0.5),
    *both(fc.FedSMB(), rounds=8, server_lr=0.7),
    case(fc.SCAFFOLD("II"), model=cnn, name="server_lr", **PLAIN | {"server_lr": 0.7}),
    case(fc.MOON(2.0, 0.3), model=projected, rounds=6, **PLAIN),
    case(fc.MOON(1.0), model=projected, rounds=6, name="rich", **RICH),
    *both(fc.FedSMOO(0.3, 0.2), rounds=5),
    case(fc.FedPVR(("1.weight", "3")), model=deep, name="named", **PLAIN),
    case(fc.FedPVR(("1",)), model=eleven, name="1 and 10", **PLAIN),
    case(fc.FedPVR("all"), model=deep, name="all", **PLAIN),
    *both(fc.ProxSkip(0.4), rounds=6),
    case(fc.ProxSkip(1.0), name="one step", **PLAIN),
    case(fc.ProxSkip(0.3), name="full", **PLAIN | {"batch_size": None}),
    case(fc.FedLC(0.0), name="plain", **PLAIN),
    case(fc.FedLC(2.0), model=idle, name="two logits without a label", **PLAIN),
    case(fc.FedNTD(0.0), name="plain", **PLAIN),
    case(fc.FedNTD(3.0, 0.5), model=idle, name="two logits without a label", **PLAIN),
    case(fc.FedPer(layers=2), model=deep, name="two layers", **PLAIN | {"server_lr": 0.7}),
    case(fc.FedBABU(layers=2), model=deep, name="two layers", **PLAIN),
    *both(fc.FedRep(share=0.3), rich=RICH | {"momentum": 0.0}),
    *both(fc.APFL(0.3, adaptive=True), rounds=6),
    case(fc.APFL(0.9, adaptive=True), name="cut to 1", rounds=8, **PLAIN | {"lr": 2.0}),
    case(fc.Central(), name="steps", **PLAIN | {"local_steps": 7, "server_lr": 0.7}),
    *both(fc.DPSGD(fc.Matrix(W)), rounds=8),
    case(fc.DFedGAM(rho=0.2), model=residual, rounds=2, name="residual", **PLAIN),
    case(fc.FedBN(), model=scaled, name="server_lr", **PLAIN | {"server_lr": 0.7}),
    case(fc.FixBN(2), model=scaled, **PLAIN | {"server_lr": 0.7}),
    case(fc.FixBN(1), model=residual, name="residual", **PLAIN | {"weighting": "samples"}),
    case(fc.FixBN(2), model=scaled, name="rich", **RICH),
    *both(fc.FedALA(lr=5.0), rounds=6),
    case(fc.FedALA(layers=2, sample=0.5, clip=False), model=deep, rounds=6, name="two layers", **PLAIN),
    case(fc.HeteroFL(LEVELS, labels="zero"), model=scaled, name="zero", **RICH),
    case(fc.HeteroFL(LEVELS, mode="dynamic", training="masked"), model=deep, name="dynamic", **PLAIN),
    case(fc.HeteroFL(LEVELS, training="masked"), model=scaled, name="masked", **RICH),
    case(fc.FedRolex({0.5: 0.5, 0.3: 0.5}, labels="-inf"), model=deep, name="-inf", **PLAIN | {"server_lr": 0.7}),
    case(fc.FedDSE(LEVELS, 0.5, 4, standardise=True, labels="zero"), model=scaled, name="drawn", **PLAIN),
    case(fc.FjORD(LEVELS, distil=False, labels="zero"), model=deep, name="alone", **PLAIN),
    case(fc.DepthFL({1: 0.4, 0.4: 0.3, 0.3: 0.3}, ramp=3), model=heads, rounds=5, **PLAIN),
    case(fc.DepthFL({1: 0.4, 0.5: 0.6}, alpha=0.0, labels="zero"), model=heads, name="zero", **PLAIN),
    case(fc.DepthFL({1: 0.4, 0.3: 0.6}, ramp=2, alpha=0.2), model=heads, name="rich", **RICH),
    case(fc.FedGSE(LEVELS, similar=7), model=plain_cnn, public=4, **PLAIN),
    case(fc.FedGSE(LEVELS, "SPL", similar=5), model=scaled, public=4, **RICH),
    case(fc.FedGSE(LEVELS, similar=9, labels="zero"), model=scaled, public=4, name="zero", **PLAIN),
    case(fc.FedGSE(LEVELS, similar=7, scoring="printed"), model=plain_cnn, public=4, **PLAIN),
    case(fc.FedGSE(LEVELS, "SPL", similar=5, scoring="printed-before"), model=plain_cnn, public=4, **RICH),
    case(fc.FedGSE(LEVELS, "SPL", scoring="absolute"), model=scaled, public=4, **PLAIN),
    case(fc.FedGSE(LEVELS, scoring="absolute-before"), model=scaled, public=4, **RICH),
]  # fmt: skip
CASES += [c for kind in set(reference.LOOPS) - {type(c.values[0]) for c in CASES} for c in both(kind())]


def federation(model, public):
    """Clients of one or two of the four labels, so that masks of labels and shares of data matter."""
    x, y = h.images(sum(SIZES) + CLASSES * (public or 0), SHAPE, CLASSES)
    order = np.argsort(y, kind="stable")
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    owner = owner[np.linspace(0, len(owner) - 1, len(y)).round().astype(int)]  # as many more as become public
    source = {
        "train_images": x[order], "train_labels": y[order], "train_owner": owner,
        "test_images": x[:10], "test_labels": y[:10],
    }  # fmt: skip
    options = {"dtype": torch.float64, "device": "cpu", "public": public}
    return fc.federation(source, partition=fc.ByOwner(), model=model, **options)


@pytest.mark.parametrize(("method", "model", "rounds", "public", "options"), CASES)
def test_rounds_are_those_of_the_independent_loop(method, model, rounds, public, options):
    gaps = reference.deviation(method, federation(model, public), model, rounds, **options)
    assert max(gaps) < 1e-9, [f"{gap:.1e}" for gap in gaps]


def uneven(t, clients):
    """From 1 to 5 local steps, other ones in every round."""
    return 1 + (3 * clients + 2 * t) % 5


EACH = list({type(c.values[0]): c for c in reversed(CASES) if "rich" not in c.id}.values())  # one case a method
UNEVEN = [
    *[pytest.param(*c.values[:4], c.values[4] | {"local_steps": uneven}, id=f"steps-{c.id}") for c in EACH],
    *[
        pytest.param(m, mlp, 3, None, PLAIN | {"cohort": 3, name: amounts, "batch_size": size},
                     id=f"{name}-{size}-{m!r}")
        for name, amounts, size in (("local_steps", [4, 1, 3, 6, 2], 4), ("local_epochs", [2, 1, 3, 1, 4], None))
        for m in (fc.FedAvg(), fc.SCAFFOLD(), fc.FedNova(), fc.FedDyn(0.3), fc.FedRep(share=0.3))
    ],
    case(fc.FedNova(), name="momentum", **PLAIN | {"local_steps": uneven, "momentum": 0.6}),
    case(fc.SCAFFOLD(), name="clip", model=scaled, **RICH | {"local_steps": uneven}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "model", "rounds", "public", "options"), UNEVEN)
def test_local_work_may_differ_by_client_and_round_for_every_method(method, model, rounds, public, options):
    gaps = reference.deviation(method, federation(model, public), model, rounds, **options)
    assert max(gaps) < 1e-9, [f"{gap:.1e}" for gap in gaps]
