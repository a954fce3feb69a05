"""fedcore: federated learning under heterogeneity, one round in three verbs on matrices whose rows are clients.

    import fedcore as fc
    fed = fc.federation("digits", clients=20, partition=fc.Dirichlet(0.3), model="cnn", seed=0)
    history = fc.simulate(fc.FedUp(alpha=0.05), fed, rounds=50, cohort=5, lr=0.1)
    history.plot()

Importing needs torch and numpy only; everything else is imported where it is used.
"""

from . import models, probes, submodels
from .algorithms import (
    ALL,
    MOON,
    SCAFFOLD,
    STEM,
    DepthFL,
    FedAvg,
    FedDC,
    FedDSE,
    FedDyn,
    FederatedDropout,
    FedGSE,
    FedProx,
    FedPVR,
    FedRolex,
    FedSAM,
    FedSGD,
    FedSMB,
    FedSMOO,
    FedSplit,
    FedUp,
    FjORD,
    HeteroFL,
    Method,
    Mime,
    MimeLite,
)  # fmt: skip
from .checkpoint import CheckpointError
from .citations import cite
from .data import IID, ByOwner, DataNotFound, Dirichlet, Federation, Quadratic, Shards, federation, quadratic
from .simulate import Diverged, History, simulate
from .widgets import explore, show

__version__ = "0.1.0"

__all__ = [
    "ALL", "IID", "MOON", "SCAFFOLD", "STEM", "ByOwner", "CheckpointError", "DataNotFound", "DepthFL", "Dirichlet",
    "Diverged", "FedAvg", "FedDC", "FedDSE", "FedDyn", "FedGSE", "FedPVR", "FedProx", "FedRolex", "FedSAM", "FedSGD",
    "FedSMB", "FedSMOO", "FedSplit", "FedUp", "FederatedDropout", "Federation", "FjORD", "HeteroFL", "History",
    "Method", "Mime", "MimeLite", "Quadratic", "Shards", "cite", "explore", "federation", "models", "probes",
    "quadratic", "show", "simulate", "submodels",
]  # fmt: skip
