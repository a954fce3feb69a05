"""The feature-shift study (S003): Figures 5 and 6.  It prints no table; its curves are described in words only."""

from __future__ import annotations

from typing import Any

from ..cells import Cell
from ..table import Table

FIVE = ("MNIST", "MNIST-M", "SVHN", "SynthDigits", "USPS")
QUICK = ("plain", "patches", "street", "fonts", "inverted")  # the offline domains that stand for them
METHODS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "FedAvg": (["FedAvg", {}], {"normalise": "half"}),
    "FedProx": (["FedProx", {"mu": 0.01}], {"normalise": "half"}),
    "FedBN": (["FedBN", {}], {"normalise": "half"}),
    "normalisation + ALA": (["FedALA", {"layers": 5, "sample": 0.8, "lr": 1.0}], {"normalise": "client"}),
}


def _cells(profile: str, train_on: tuple[int, ...], test_on: tuple[int, ...]) -> list[Cell]:
    cells = []
    for row, (method, data) in METHODS.items():
        for i, k in [*enumerate(train_on), ("global", None)]:
            augment = {"num_ops": 2, "magnitude": 10}  # the same for every method
            if profile == "quick":
                names = {"train_on": [QUICK[k] for k in train_on], "test_on": [QUICK[k] for k in test_on]}
                source: Any = ["digit_domains", {"train": 200, "test": 100, **names}]
                model, run = "digit_model_small", {"rounds": 10, "lr": 0.05, "batch_size": 32, "eval_every": 2}
            else:
                names = {"train_on": [FIVE[k] for k in train_on], "test_on": [FIVE[k] for k in test_on]}
                source = ["digits_five", names]
                model, run = "digit_model", {"rounds": 20, "lr": 0.005, "batch_size": 32, "eval_every": 1}
            federation = {"source": source, "partition": ["ByOwner", {}], "model": model, "augment": augment, **data}
            column = "global" if k is None else FIVE[k]
            if row == "FedBN" and k is None:
                continue  # it has no global model
            spec = {"study": "personal", "method": method, "federation": federation, "run": run, "client": i}
            cells.append(Cell(f"{column} {row}", spec, row, column))
    return cells


def figure5(profile: str) -> list[Cell]:
    """Five clients, one domain each; tested on the union of the five test sets."""
    return _cells(profile, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4))


def figure6(profile: str) -> list[Cell]:
    """Clients with MNIST, SVHN, SynthDigits; tested on MNIST-M and USPS."""
    return _cells(profile, (0, 2, 3), (1, 4))


LEFT_OPEN = (
    ("network, local epochs, FedProx's mu, seeds", "FedBN's digit model, 1, 0.01, three"),
    ("whether the baselines' data are augmented", "the same RandAugment for every method"),
    ("whose statistics foreign images get", "a client's own; the server's model: each domain's"),
    ("which model of a client is tested", "the one after local training, before averaging"),
)
_QUICK = "Small scale: five domains of digits made on the spot, 200 images each, a small CNN, 10 rounds; untuned."
TABLES = [
    Table(
        f"shift-figure{k}", title, "S003", cells,
        {"quick": _QUICK, "paper": "MNIST, MNIST-M, SVHN, SynthDigits and USPS; 20 rounds."},
        LEFT_OPEN, figure=True, axis="round", proposed="normalisation + ALA",
    )
    for k, title, cells in (
        (5, "Five clients and the global model", figure5), (6, "Tested on two other domains", figure6),
    )
]  # fmt: skip
