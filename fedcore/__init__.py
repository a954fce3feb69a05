"""fedcore: federated learning under heterogeneity, one round in three verbs on matrices whose rows are clients.

    import fedcore as fc
    fed = fc.federation("digits", clients=20, partition=fc.Dirichlet(0.3), model="cnn", seed=0)
    history = fc.simulate(fc.FedUp(alpha=0.05), fed, rounds=50, cohort=5, lr=0.1)
    history.plot()

Importing needs torch and numpy only; everything else is imported where it is used.
"""

from . import algorithms, distributed, models, probes, submodels, topology
from .algorithms import *  # noqa: F403  (the methods, by the names that this room gives)
from .algorithms import Round
from .checkpoint import CheckpointError
from .citations import cite
from .data import (
    IID,
    ByOwner,
    CropFlip,
    DataNotFound,
    Dirichlet,
    RandAugment,
    Shards,
)
from .history import Diverged, History
from .listing import Shown, shown
from .objective.network import Federation, federation
from .objective.quadratic import Quadratic, quadratic
from .playing import playground
from .round import one_round, start
from .run import simulate
from .submodel_playing import submodel_playground
from .sweeping import SweepFailed, sweep
from .together import simulate_many
from .topology import Complete, DirectedRandom, Exponential, Graph, Matrix, RandomRegular, Ring, Torus
from .widgets import explore, show

__version__ = "0.1.0"

__all__ = [
    *algorithms.__all__,
    "IID", "ByOwner", "CheckpointError", "Complete", "CropFlip", "DataNotFound", "DirectedRandom", "Dirichlet",
    "Diverged", "Exponential", "Federation", "Graph", "History", "Matrix", "Quadratic", "RandAugment",
    "RandomRegular", "Ring", "Round", "Shards", "Shown", "SweepFailed", "Torus", "cite", "distributed", "explore",
    "federation", "models", "one_round", "playground", "probes", "quadratic", "show", "shown", "simulate",
    "simulate_many", "start", "submodel_playground", "submodels", "sweep", "topology",
]  # fmt: skip
