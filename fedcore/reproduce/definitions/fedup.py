"""FedUp study (S000): Table 4 (accuracy by heterogeneity) and Figure 1 (its curves)."""

from __future__ import annotations

from ..cells import Cell
from ..table import Table

LR = [0.05, 0.2, 0.5]
METHODS = {  # the row of the table -> the method, and the values of its own parameter that are tried
    "FedAvg": ("FedAvg", [{}]),
    "FedUp": ("FedUp", [{"alpha": a} for a in (0.025, 0.05, 0.075)]),
    "FedProx": ("FedProx", [{"mu": mu} for mu in (0.001, 0.01, 0.1)]),
    "SCAFFOLD": ("SCAFFOLD", [{}]),
    "MOON": ("MOON", [{"mu": mu} for mu in (0.1, 1.0)]),
    "MimeLite": ("MimeLite", [{"beta": b} for b in (0.5, 0.9)]),
    "FedDyn": ("FedDyn", [{"alpha": a} for a in (0.01, 0.1)]),
    "STEM": ("STEM", [{"a": a} for a in (0.1, 0.5)]),
    "FedSMOO": ("FedSMOO", [{"alpha": 0.1, "rho": 0.05}, {"alpha": 0.01, "rho": 0.05}]),
    "FedPVR": ("FedPVR", [{}]),
}
COLUMNS = {
    "CIFAR-10 (100 clients), ResNet18": {"q=0.3": ("Dirichlet", 0.3), "q=0.4": ("Dirichlet", 0.4)},
}


def table4(profile: str) -> list[Cell]:
    return []


TABLES: list[Table] = []
