"""The SCAFFOLD page (S001): its one figure, an illustration there, drawn from runs here."""

from __future__ import annotations

from dataclasses import replace

from .definitions import Cell, claims, frame
from .protocol import METHODS, asked, searched_cells
from .s000_fedup import COLUMNS4, table4

ROWS = ("FedAvg", "FedAvg + server momentum", "FedProx", "SCAFFOLD")
COLUMNS = {
    "quick": ("digits, q=0.1", "digits, q=0.3"),
    "desk": ("CIFAR-10, q=0.3", "FEMNIST, 105 writers", "MNIST by writer"),
    "paper": ("CIFAR-10 q=0.3", "FEMNIST"),
}


def figure(profile: str) -> list[Cell]:
    """FedAvg, FedProx and SCAFFOLD against rounds: the cells of the FedUp study's Table 4, which trains all of them."""
    return [cell for cell in table4(profile) if cell.row in ROWS and cell.column in COLUMNS[profile]]


# column of Table 4 -> the accuracy to reach in %, and the rounds after which a run ends without it
TARGETS = {
    "quick": {"digits, q=0.1": (80.0, 40), "digits, q=0.3": (80.0, 40)},
    "desk": {"CIFAR-10, q=0.3": (45.0, 100), "MNIST by writer": (95.0, 60)},
}


def speed(profile: str) -> list[Cell]:
    """Rounds to a given accuracy, with their own search, because the fastest setting is not the best at the end."""
    cells = []
    rows = {name: METHODS[name] for name in (*ROWS, "FedUp")}
    for column, (target, rounds) in TARGETS[profile].items():
        federation, run, _ = COLUMNS4[profile][column]
        seeds = 10 if profile == "quick" else 5 if column.startswith("CIFAR") else 3
        run = {**run, "rounds": rounds}
        for cell in searched_cells(profile, column, federation, run, None, rows, seeds, finalists=None):
            study = {"study": "rounds", "better": "lower", "target": target}
            cells.append(replace(cell, spec={**cell.spec, **study}))
    return cells


_table = frame("S001", proposed="SCAFFOLD")
TABLES = [
    _table(
        "scaffold-figure", "SCAFFOLD against FedAvg and FedProx by round", figure,
        figure=True, axis="round", drawn_from="fedup-table4",
    ),
    _table("scaffold-rounds", "Rounds to a given accuracy", speed, unit="rounds"),
]  # fmt: skip


_SKEWED = {"quick": ("digits, q=0.1", "digits, q=0.3"), "desk": ("CIFAR-10, q=0.3",)}
QUESTIONS = {
    "scaffold-accuracy": asked(["SCAFFOLD"], ["FedAvg"], _SKEWED),
    "scaffold-fedprox": asked(["SCAFFOLD"], ["FedProx"], _SKEWED),
    "scaffold-faster": {"quick": [("SCAFFOLD", "FedAvg", f"digits, q={q}") for q in (0.1, 0.3)]},
}
# Without a clip, its best rates overflow in a network without normalisation: runs with clipped gradients decide.
CLAIMS = claims("S001", QUESTIONS, tables={name: {"desk": "fedup-clipped"} for name in QUESTIONS})
