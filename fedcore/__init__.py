"""fedcore: federated learning under heterogeneity, one round in three verbs on matrices whose rows are clients.

    import fedcore as fc
    fed = fc.federation("digits", clients=20, partition=fc.Dirichlet(0.3), model="cnn", seed=0)
    history = fc.simulate(fc.FedUp(alpha=0.05), fed, rounds=50, cohort=5, lr=0.1)
    history.plot()

Importing needs torch and numpy only; everything else is imported where it is used.
"""

from . import distributed, models, probes, submodels, topology
from .algorithms import (
    ALL,
    DPSGD,
    MOON,
    SCAFFOLD,
    STEM,
    DepthFL,
    DFedAvg,
    DFedAvgM,
    DFedGAM,
    DFedSAM,
    FedALA,
    FedAvg,
    FedBN,
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
from .data import (
    IID,
    ByOwner,
    DataNotFound,
    Dirichlet,
    RandAugment,
    Shards,
)
from .history import Diverged, History
from .objective.network import Federation, federation
from .objective.quadratic import Quadratic, quadratic
from .round import one_round, start
from .run import simulate
from .topology import Complete, DirectedRandom, Exponential, Graph, Matrix, RandomRegular, Ring, Torus
from .widgets import explore, show

__version__ = "0.1.0"

__all__ = [
    "ALL", "DPSGD", "IID", "MOON", "SCAFFOLD", "STEM", "ByOwner", "CheckpointError", "Complete", "DFedAvg", "DFedAvgM",
    "DFedGAM", "DFedSAM", "DataNotFound", "DepthFL", "DirectedRandom", "Dirichlet", "Diverged", "Exponential", "FedALA",
    "FedAvg", "FedBN", "FedDC", "FedDSE", "FedDyn", "FedGSE", "FedPVR", "FedProx", "FedRolex", "FedSAM", "FedSGD",
    "FedSMB", "FedSMOO", "FedSplit", "FedUp", "FederatedDropout", "Federation", "FjORD", "Graph", "HeteroFL", "History",
    "Matrix", "Method", "Mime", "MimeLite", "Quadratic", "RandAugment", "RandomRegular", "Ring", "Shards", "Torus",
    "cite", "distributed", "explore", "federation", "models", "one_round", "probes", "quadratic", "show", "simulate",
    "start", "submodels", "topology",
]  # fmt: skip
