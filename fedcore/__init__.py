"""fedcore: federated learning under heterogeneity, one round in three verbs on matrices whose rows are clients.

    import fedcore as fc
    fed = fc.federation("digits", clients=20, partition=fc.Dirichlet(0.3), model="cnn", seed=0)
    history = fc.simulate(fc.FedUp(alpha=0.05), fed, rounds=50, cohort=5, lr=0.1)
    history.plot()

Importing needs torch and numpy only; everything else is imported where it is used.
"""

from . import models, probes
from .algorithms import (
    ALL,
    MOON,
    SCAFFOLD,
    STEM,
    FedALA,
    FedAvg,
    FedBN,
    FedDC,
    FedDyn,
    FedProx,
    FedPVR,
    FedSAM,
    FedSGD,
    FedSMB,
    FedSMOO,
    FedSplit,
    FedUp,
    Method,
    Mime,
    MimeLite,
)  # fmt: skip
from .checkpoint import CheckpointError
from .citations import cite
from .data import (
    IID,
    ByOwner,
    DataNotFound,
    Dirichlet,
    Federation,
    Quadratic,
    RandAugment,
    Shards,
    federation,
    quadratic,
)
from .simulate import Diverged, History, simulate
from .widgets import explore, show

__version__ = "0.1.0"

__all__ = [
    "ALL", "IID", "MOON", "SCAFFOLD", "STEM", "ByOwner", "CheckpointError", "DataNotFound", "Dirichlet", "Diverged",
    "FedALA", "FedAvg", "FedBN", "FedDC", "FedDyn", "FedPVR", "FedProx", "FedSAM", "FedSGD", "FedSMB", "FedSMOO",
    "FedSplit", "FedUp", "Federation", "History", "Method", "Mime", "MimeLite", "Quadratic", "RandAugment", "Shards",
    "cite", "explore", "federation", "models", "probes", "quadratic", "show", "simulate",
]  # fmt: skip
