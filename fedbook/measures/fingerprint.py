"""A fingerprint of every method, a number that depends on its update rule: four rounds on sixty random images, float64.

The numbers say nothing about quality.  A page shows them, and a test changes each method by one per cent and checks
that its number changes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedcore import algorithms as alg
from fedcore import federation, models, simulate, submodels
from fedcore.algorithms.method import Method
from fedcore.data import ByOwner

from . import platform

HALF = {1.0: 0.4, 0.5: 0.6}


def every_method() -> dict[str, Method]:
    """Name -> method, for all methods, with settings under which each part of the rule matters (or the defaults)."""
    chosen = {
        "FedAvg": alg.FedAvg(), "FedAvg, server momentum": alg.FedAvg(server_momentum=0.5), "FedSGD": alg.FedSGD(),
        "FedSMB": alg.FedSMB(), "FedProx": alg.FedProx(0.5), "SCAFFOLD, option I": alg.SCAFFOLD("I"),
        "SCAFFOLD, option II": alg.SCAFFOLD("II"), "FedDC": alg.FedDC(0.5), "Mime": alg.Mime(0.5),
        "MimeLite": alg.MimeLite(0.5), "FedDyn": alg.FedDyn(0.5), "MOON": alg.MOON(1.0),
        "FedSplit": alg.FedSplit(1.0), "STEM": alg.STEM(0.3), "STEM, decreasing steps": alg.STEM(kappa=0.2),
        "FedSMOO": alg.FedSMOO(0.5, 0.1), "FedPVR": alg.FedPVR(), "FedUp": alg.FedUp(0.1), "FedSAM": alg.FedSAM(0.1),
        "DPSGD": alg.DPSGD(), "DFedAvg": alg.DFedAvg(), "DFedAvgM": alg.DFedAvgM(momentum=0.5),
        "DFedSAM": alg.DFedSAM(rho=0.1), "DFedGAM, literal": alg.DFedGAM(rho=0.1),
        "DFedGAM, gam": alg.DFedGAM(rho=0.1, form="gam"),
        "DFedGAM, accelerated": alg.DFedGAM(rho=0.1, form="accelerated"), "FedBN": alg.FedBN(), "FixBN": alg.FixBN(2),
        "FedALA": alg.FedALA(2),
        "HeteroFL": alg.HeteroFL(HALF), "HeteroFL, own labels": alg.HeteroFL(HALF, labels="zero"),
        "FjORD": alg.FjORD(HALF), "FederatedDropout": alg.FederatedDropout(HALF), "FedRolex": alg.FedRolex(HALF),
        "DepthFL": alg.DepthFL(HALF, ramp=4), "FedDSE": alg.FedDSE(HALF),
        "FedDSE, drawn": alg.FedDSE(HALF, temperature=0.1), "FedGSE, CSL": alg.FedGSE(HALF, public=2),
        "FedGSE, SPL": alg.FedGSE(HALF, "SPL", public=2), "FedAdagrad": alg.FedAdagrad(0.3, 0.1),
        "FedAdam": alg.FedAdam(0.6, 0.8, 0.1), "FedYogi": alg.FedYogi(0.6, 0.8, 0.1), "FedNova": alg.FedNova(),
        "FedExP": alg.FedExP(), "FedCM": alg.FedCM(0.3), "MoFedSAM": alg.MoFedSAM(0.1, 0.3),
        "FedGamma": alg.FedGamma(0.1), "FedSpeed": alg.FedSpeed(0.1, 0.7, 3.0), "FedPer": alg.FedPer(),
        "FedRep": alg.FedRep(), "Ditto": alg.Ditto(0.5), "pFedMe": alg.pFedMe(2.0, 3, 0.1),
        "LocalOnly": alg.LocalOnly(), "Central": alg.Central(),
        "shipped SCAFFOLD": platform.PlatformSCAFFOLD(),
        "shipped FedDyn": platform.PlatformFedDyn(0.5),
    }  # fmt: skip
    kinds = {type(method) for method in chosen.values()}
    return chosen | {kind.__name__: kind() for kind in alg.ALL if kind not in kinds}


def fingerprint(method: Method) -> float:
    """The movement of a model along a fixed direction in four rounds with three of five clients.

    The model is the server's, or the mean of the personal models if the method has these.
    """
    fed = federation(_pictures(), partition=ByOwner(), model=_network(method), seed=0, dtype=torch.float64)
    fed = method.on(fed) if isinstance(method, alg.FixBN) else fed  # whose model has more parameters
    steps = None if isinstance(method, alg.FedNova) else 3  # its rule concerns clients with unequal numbers of steps
    work = {"cohort": None if method.full_participation else 3, "local_steps": steps, "batch_size": 4, "lr": 0.3}
    run = simulate(method, fed, rounds=4, eval_every=4, weight_decay=0.01, seed=0, **work)
    clients = method.personal(run.state, fed.layout)
    moved = (run.params if clients is None else clients.mean(0)) - fed.x0
    return float(moved @ torch.cos(torch.arange(len(moved), dtype=moved.dtype)))


def _pictures() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), (16, 8, 12, 14, 10))
    labels = (owner + draw.integers(0, 2, 60)) % 3  # every client has two of three labels
    pictures = draw.integers(0, 256, (60, 1, 4, 4)).astype(np.uint8)
    return {
        "train_images": pictures, "train_labels": labels, "test_images": pictures[:9], "test_labels": labels[:9],
        "train_owner": owner,
    }  # fmt: skip


def _narrow(shape: tuple[int, ...], classes: int) -> nn.Module:
    return models.mlp(shape, classes, hidden=(8, 6))


def _network(method: Method) -> object:
    """A network with two hidden layers and the parts that the method requires."""

    def projected(shape: tuple[int, ...], classes: int) -> nn.Module:
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 6))
        return models.Projected(encoder, nn.Linear(6, classes))

    def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
        hidden = [nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(6, classes))

    if isinstance(method, alg.DepthFL):
        return submodels.multihead(_narrow)
    return {alg.MOON: projected, alg.FedBN: normed, alg.FixBN: normed}.get(type(method), _narrow)
