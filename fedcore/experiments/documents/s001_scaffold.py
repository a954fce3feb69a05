"""The SCAFFOLD page (S001): its one figure, whose curves are invented there, drawn from runs here."""

from __future__ import annotations

from ..cells import Cell
from ..table import Table, printed
from ._common import MLP, grid, simulation
from .s000_fedup import LRS, METHODS


def figure(profile: str) -> list[Cell]:
    """FedAvg, FedProx and SCAFFOLD against rounds; the source's value is that of its round 100, in %."""
    federation = {"source": "digits", "clients": 50, "partition": ["Dirichlet", {"q": 0.1}], "model": MLP}
    run = {"rounds": 100, "cohort": 5, "local_steps": 10, "batch_size": 10, "eval_every": 10}
    cells = []
    for row in ("FedAvg", "FedProx", "SCAFFOLD"):
        value = printed("seed001_figure1.csv", setting="communication round 100", method=row)
        method, arguments = METHODS[row]
        spec = simulation(method, federation, run, tune=grid(arguments, LRS))
        cells.append(Cell(row, spec, row, "non-IID", None if value is None else 100 * value))
    return cells


TABLES = [
    Table(
        "scaffold-figure", "SCAFFOLD against FedAvg and FedProx over 100 rounds", "S001", figure,
        {
            "quick": "Small scale: digits, Dirichlet 0.1, 50 clients, 5 a round; six settings tuned per method. "
            "The source's curves are invented ('simulated'): they are an illustration, not results.",
            "paper": "As quick: the source has no experiment.",
        },
        (("data, model, everything", "digits and a small MLP"),), figure=True, axis="round", proposed="SCAFFOLD",
    )
]  # fmt: skip
