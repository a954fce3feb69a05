"""The DFedGAM study (S002): Table 1 and its curves, Figure 2."""

from __future__ import annotations

from typing import Any

from ..cells import Cell
from ..table import Table, printed
from ._common import MLP, grid

GOSSIP = {"quick": ["RandomRegular", {"degree": 4}], "paper": ["RandomRegular", {"degree": 10}]}
# row -> method, the arguments that are tried in `quick`; those with a mixing get the profile's
METHODS: dict[str, tuple[str, list[dict[str, Any]], bool]] = {
    "FedAvg": ("FedAvg", [{}], False),
    "FedSAM": ("FedSAM", [{"rho": 0.05}, {"rho": 0.2}], False),
    "SCAFFOLD": ("SCAFFOLD", [{}], False),
    "D-PSGD": ("DPSGD", [{}], True),
    "DFedAvg": ("DFedAvg", [{}], True),
    "DFedAvgM": ("DFedAvgM", [{"momentum": 0.5}, {"momentum": 0.9}], True),
    "DFedSAM": ("DFedSAM", [{"rho": 0.05}, {"rho": 0.2}], True),
    "DFedGAM": ("DFedGAM", [{"rho": 0.05}, {"rho": 0.2}], True),
}
COLUMNS = {"Dir-0.3": ["Dirichlet", {"q": 0.3}], "Dir-0.6": ["Dirichlet", {"q": 0.6}], "IID": ["IID", {}]}
LRS = [0.2, 0.1, 0.5, 0.05, 0.02, 1.0]


def table1(profile: str) -> list[Cell]:
    """Accuracy of the server's or the mean model."""
    cells = []
    for column, partition in COLUMNS.items():
        for row, (method, arguments, gossip) in METHODS.items():
            mixing = {"mixing": GOSSIP[profile]} if gossip else {}
            if profile == "quick":
                federation = {"source": "digits", "clients": 20, "partition": partition, "model": MLP}
                run = {"rounds": 20, "local_steps": 4, "batch_size": 10, "eval_every": 2}
            else:
                federation = {"source": "cifar10", "clients": 100, "partition": partition, "model": "lenet"}
                run = {"rounds": 1000, "local_epochs": 5, "batch_size": 50, "lr": 0.1, "lr_decay": 0.995,
                       "weight_decay": 0.0005, "clip": 10.0, "eval_every": 10}  # fmt: skip
            run["cohort"] = None if gossip else (4 if profile == "quick" else 0.1)
            spec: dict[str, Any] = {"study": "simulate", "federation": federation, "run": run}
            if profile == "quick":
                spec |= {"method": [method, mixing], "tune": grid(arguments, LRS)}
            else:
                spec["method"] = [method, {**mixing, **({"rho": 0.1} if "SAM" in row or "GAM" in row else {})}]
            value = printed("seed002_table1.csv", setting=column, method=row)
            cells.append(Cell(f"{column} {row}", spec, row, column, value))
    return cells


LEFT_OPEN = (
    ("rounds, local epochs, batch, weight decay, momentum", "paper: 1000, 5, 50, 5e-4, 0.9 in DFedAvgM only"),
    ("the random topology", "an undirected regular graph drawn each round, Metropolis weights"),
    ("rho of each method, seeds, LeNet's shape", "quick: tuned; paper: 0.1; three seeds; 64-64-384-192"),
    ("whether accuracy is that of the mean model", "it is"),
)
TABLES = [
    Table(
        "dfedgam-table1", "Centralised and decentralised methods", "S002", table1,
        {"quick": "Small scale: digits, 20 clients (a server asks 4, a client hears 4), 20 rounds; six settings tuned.",
         "paper": "CIFAR-10, LeNet, 100 clients."},
        LEFT_OPEN, proposed="DFedGAM",
    ),
    Table(
        "dfedgam-figure2", "Curves of Table 1", "S002", table1,
        {"quick": "The recorded curves of Table 1's cells.", "paper": "The recorded curves of Table 1's cells."},
        figure=True, axis="round", drawn_from="dfedgam-table1", proposed="DFedGAM",
    ),
]  # fmt: skip
