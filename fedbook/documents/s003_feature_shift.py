"""The feature-shift study (S003): Figures 5 and 6, and the effect of each of its three measures.

It prints no table; its curves are described in words only.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from .definitions import Cell, Question, captions, claims, frame, left_open
from .protocol import asked, search

FIVE = ("MNIST", "MNIST-M", "SVHN", "SynthDigits", "USPS")
METHODS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "FedAvg": (["FedAvg", {}], {"normalise": "half"}),
    "FedProx": (["FedProx", {"mu": 0.01}], {"normalise": "half"}),
    "FedBN": (["FedBN", {}], {"normalise": "half"}),
    "normalisation + ALA": (["FedALA", {"layers": 5, "sample": 0.8, "lr": 1.0}], {"normalise": "client"}),
}


# personal methods, with FedAvg, local training and centralised training
PERSONAL: dict[str, tuple[list[Any], dict[str, list[float]]]] = {
    "FedAvg": (["FedAvg", {}], {}),
    "FedBN": (["FedBN", {}], {}),
    "FedALA": (["FedALA", {"layers": 5, "sample": 0.8}], {"lr": [0.1, 1.0, 10.0]}),
    "FedPer": (["FedPer", {}], {}),
    "FedRep": (["FedRep", {}], {"share": [0.2, 0.5, 0.8]}),
    "Ditto": (["Ditto", {}], {"lam": [0.1, 1.0, 10.0]}),
    "pFedMe": (["pFedMe", {}], {"lam": [1.0, 5.0, 15.0]}),
    "clients alone": (["LocalOnly", {}], {}),
    "all data in one place": (["Central", {}], {}),
}
OURS = "normalisation + ALA"
# the initial values for tuning a method's own parameter
OWN: dict[str, dict[str, list[float]]] = {
    "FedProx": {"mu": [0.001, 0.01, 0.1]},
    "FedALA": {"lr": [0.1, 1.0, 10.0]},
}
AUGMENTED = {"num_ops": 2, "magnitude": 10}
EXPANDED = {**AUGMENTED, "once": True}  # once before training, as in the study's text; its algorithm repeats it
# profile -> domains of the clients in the order of their owners, sources of images, run, tuning, seeds; SVHN's small
# pack has 47 training and 18 test images of its rarest digit
DOMAINS = {
    "quick": ("plain", "patches", "inverted", "street", "fonts"),
    "desk": ("MNIST", "MNIST-M", "SVHN", "fonts (for SynthDigits)", "USPS"),
    "paper": FIVE,
}
SOURCES: dict[str, list[Any]] = {
    "quick": ["digit_domains", {"train": 200, "test": 150, "size": 12}],
    "desk": ["digits_five", {"train": 460, "test": 180}],
    "paper": ["digits_five", {}],
}
# local steps: one epoch of the expanded data, and equally many without expansion
RUNS: dict[str, dict[str, Any]] = {
    "quick": {"rounds": 24, "local_steps": 10, "batch_size": 32, "eval_every": 4},
    "desk": {"rounds": 40, "local_steps": 24, "batch_size": 32, "eval_every": 4},
    "paper": {"rounds": 20, "batch_size": 32, "eval_every": 1, "lr": 0.005},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "quick": {"rounds": 8, "finalists": 2}, "desk": {"rounds": [8, 20], "finalists": 2},
}  # fmt: skip
SEEDS = {"quick": 10, "desk": 5, "paper": 3}
# column -> the domains for training and for testing, as indices of FIVE and DOMAINS
COLUMNS: dict[str, dict[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "quick": {"five domains": ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4)), "unseen domains": ((0, 3, 4), (1, 2))},
    "desk": {"five domains": ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4)), "unseen domains": ((0, 2, 3), (1, 4))},
}
COLUMNS["paper"] = COLUMNS["desk"]


def clients(
    profile: str,
    row: str,
    column: str,
    method: list[Any],
    data: dict[str, Any],
    study: str = "clients",
    searched: dict[str, list[float]] | None = None,
) -> Cell:
    """The mean accuracy of the clients' models: one run for all of them.  Settings are searched, except in paper."""
    make, arguments = SOURCES[profile]
    trained, tested = COLUMNS[profile]["five domains" if study == "domains" else column]
    names = DOMAINS["quick"] if profile == "quick" else FIVE  # what `data.domains` calls them
    source = {"train_on": [names[k] for k in trained], "test_on": [names[k] for k in tested]}
    model = "digit_model" if profile == "paper" else "digit_model_small"
    federation = {"source": [make, {**arguments, **source}], "partition": ["ByOwner", {}], "model": model, **data}
    spec: dict[str, Any] = {
        "study": study, "method": method, "federation": federation, "run": RUNS[profile],
        "clients": [DOMAINS[profile][k] for k in trained],
    }  # fmt: skip
    if profile != "paper":
        federation["validation"] = True
        spec["tune"] = search(OWN.get(method[0], {}) if searched is None else searched, **SEARCHES[profile])
        if method[0] == "FedRep":
            spec["tune"]["limits"] = {"method.share": [0.0, 1.0]}
    return Cell(f"{column} {row}", spec, row, column, seeds=SEEDS[profile])


def _panels(train_on: tuple[int, ...], test_on: tuple[int, ...]) -> list[Cell]:
    """The profile paper of Figures 5 and 6: a panel for each client, and one for the server's model."""
    cells = []
    for row, (method, data) in METHODS.items():
        for i, k in [*enumerate(train_on), ("global", None)]:
            names = {"train_on": [FIVE[k] for k in train_on], "test_on": [FIVE[k] for k in test_on]}
            federation = {"source": ["digits_five", names], "partition": ["ByOwner", {}], "model": "digit_model",
                          "augment": AUGMENTED, **data}  # fmt: skip
            column = "global" if k is None else FIVE[k]
            if row == "FedBN" and k is None:
                continue  # it has no global model
            run = {"rounds": 20, "lr": 0.005, "batch_size": 32, "eval_every": 1}
            spec = {"study": "personal", "method": method, "federation": federation, "run": run, "client": i}
            cells.append(Cell(f"{column} {row}", spec, row, column))
    return cells


def _methods(profile: str, column: str) -> list[Cell]:
    """The methods of the figures, all with augmented images."""
    return [
        clients(profile, row, column, method, {"augment": EXPANDED, **data}) for row, (method, data) in METHODS.items()
    ]


def figure5(profile: str) -> list[Cell]:
    """Five clients, one domain each; tested on the union of the five test sets."""
    return _panels((0, 1, 2, 3, 4), (0, 1, 2, 3, 4)) if profile == "paper" else _methods(profile, "five domains")


def figure6(profile: str) -> list[Cell]:
    """Clients with three domains, in the study MNIST, SVHN, SynthDigits; tested on the two others."""
    return _panels((0, 2, 3), (1, 4)) if profile == "paper" else _methods(profile, "unseen domains")


def personal(profile: str) -> list[Cell]:
    """Personal methods, each client's model on images of its own domain; with as many samples in all for `Central`."""
    cells = []
    for row, (method, searched) in PERSONAL.items():
        cell = clients(profile, row, "own domain", method, {"normalise": "half"}, "domains", searched)
        if method[0] == "Central":  # its round is the work of one client, a federated round that of five
            run = {**RUNS[profile], "local_steps": 5 * RUNS[profile]["local_steps"]}
            cell = replace(cell, spec={**cell.spec, "run": run})
        cells.append(cell)
    return cells


MEASURES = ("augmentation", "normalisation", "ALA")


def ablation(profile: str) -> list[Cell]:
    """Each of the three measures on and off: FedAvg, with augmented images, with the client's statistics, with ALA."""
    cells = []
    for column in COLUMNS[profile]:
        for on in product((False, True), repeat=3):
            augmented, normalised, start = on
            row = " + ".join(name for name, used in zip(MEASURES, on, strict=True) if used) or "none (FedAvg)"
            data: dict[str, Any] = {"normalise": "client" if normalised else "half"}
            if augmented:
                data["augment"] = EXPANDED
            cells.append(clients(profile, row, column, METHODS[OURS if start else "FedAvg"][0], data))
    return cells


LEFT_OPEN = left_open("S003")
_table = frame("S003")
_drawn = {"captions": captions("shift"), "left_open": LEFT_OPEN, "figure": True, "axis": "round and client",
          "proposed": OURS}  # fmt: skip
TABLES = [
    _table("shift-figure5", "Five clients and the global model", figure5, **_drawn),
    _table("shift-figure6", "Tested on two other domains", figure6, **_drawn),
    _table(
        "shift-ablation", "Each of the three measures on and off", ablation,
        left_open=LEFT_OPEN, against="none (FedAvg)", proposed=" + ".join(MEASURES),
    ),
    _table("shift-personal", "Personal models, each client on its own domain", personal),
]  # fmt: skip


def _asked(row: str, rivals: tuple[str, ...], *columns: str) -> dict[str, list[Question]]:
    return asked([row], rivals, dict.fromkeys(("quick", "desk"), columns))


_RIVALS = ("FedAvg", "FedProx", "FedBN")
_ALONE = ("none (FedAvg)",)
_BOTH = ("five domains", "unseen domains")
QUESTIONS = {
    "shift-accuracy": _asked(OURS, _RIVALS, "five domains"),
    "shift-unseen": _asked(OURS, _RIVALS, "unseen domains"),
    "shift-fast": {rival: _asked(OURS, (rival,), "five domains") for rival in _RIVALS},
    "shift-normalisation": _asked("normalisation", _ALONE, *_BOTH),
    "shift-augmentation": _asked("augmentation", _ALONE, "unseen domains"),
    "shift-start": _asked("ALA", _ALONE, *_BOTH),
}
CLAIMS = claims("S003", QUESTIONS)
