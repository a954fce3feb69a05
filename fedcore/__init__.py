"""fedcore: federated learning under heterogeneity; a round is three verbs on matrices with one row per client.

    import fedcore as fc
    fed = fc.federation("digits", clients=20, partition=fc.Dirichlet(0.3), model="cnn", seed=0)
    history = fc.simulate(fc.FedUp(alpha=0.05), fed, rounds=50, cohort=5, lr=0.1)
    history.plot()

Importing it needs only torch and numpy; other packages are imported where they are used.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import algorithms, distributed, models, probes, submodels, topology
from .algorithms import *  # noqa: F403  (the methods: the names in its __all__)
from .algorithms import Round
from .algorithms.listing import Shown, shown
from .data import (
    IID,
    ByOwner,
    CropFlip,
    DataNotFound,
    Dirichlet,
    FeatureShift,
    Gaussians,
    LabelSwap,
    Quantity,
    RandAugment,
    Shards,
)
from .history import Diverged, History
from .objective.federation import Federation
from .objective.making import federation
from .objective.quadratic import Quadratic, quadratic
from .round import one_round, start
from .run import simulate
from .storage.checkpoint import CheckpointError
from .support.moved import Moved
from .sweeping import SweepFailed, simulate_many, sweep
from .topology import Complete, DirectedRandom, Exponential, Graph, Matrix, RandomRegular, Ring, Torus

if TYPE_CHECKING:
    from fedbook.documents.citations import cite
    from fedbook.live.playground import playground
    from fedbook.live.submodel_playground import submodel_playground
    from fedbook.pictures.widgets import explore, show

_OF_THE_BOOK = {  # imported at the first use
    "cite": "fedbook.documents.citations",
    "explore": "fedbook.pictures.widgets",
    "playground": "fedbook.live.playground",
    "show": "fedbook.pictures.widgets",
    "submodel_playground": "fedbook.live.submodel_playground",
}

__version__ = "0.1.0"

__all__ = [
    *algorithms.__all__,
    "IID", "ByOwner", "CheckpointError", "Complete", "CropFlip", "DataNotFound", "DirectedRandom", "Dirichlet",
    "Diverged", "Exponential", "FeatureShift", "Federation", "Gaussians", "Graph", "History", "LabelSwap", "Matrix",
    "Quadratic", "Quantity", "RandAugment", "RandomRegular", "Ring", "Round", "Shards", "Shown", "SweepFailed", "Torus",
    "cite", "distributed", "explore", "federation", "models", "one_round", "playground", "probes", "quadratic", "show",
    "shown", "simulate", "simulate_many", "start", "submodel_playground", "submodels", "sweep", "topology",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_BOOK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_OF_THE_BOOK[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_THE_BOOK})


sys.meta_path.insert(0, Moved())  # before Python's own finders, which would load fedbook's files twice
