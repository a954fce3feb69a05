"""Known numbers: results that others published, in their exact settings, beside ours by the same batches."""

from __future__ import annotations

from pathlib import Path

from .definitions import Cell, frame

_MNIST = {"source": "mnist", "clients": 100}
_SHARDS = ["Shards", {"classes": 2, "cut": True}]
_PARTS = {"IID": "IID", "two shards": _SHARDS}

# the most forked FedAvg repository, README: MNIST, MLP, test accuracy in % of one run
_MLP = {**_MNIST, "model": ["mlp", {"hidden": [200], "dropout": 0.5}]}
_MLP_RUN = {"cohort": 10, "local_epochs": 5, "batch_size": 10, "lr": 0.01, "momentum": 0.5}
_MLP_PUBLISHED = {
    ("IID", 10): 94.57, ("IID", 50): 97.21, ("two shards", 10): 70.44, ("two shards", 50): 93.03,
}  # fmt: skip


def mlp(profile: str) -> list[Cell]:
    """FedAvg after 10 and after 50 rounds."""
    cells = []
    for (part, rounds), value in _MLP_PUBLISHED.items():
        run = {**_MLP_RUN, "rounds": rounds, "eval_every": 10}
        spec = {"study": "simulate", "method": ["FedAvg", {}], "federation": {**_MLP, "partition": _PARTS[part]}}
        cells.append(Cell(f"{part} round {rounds}", {**spec, "run": run}, f"round {rounds}", part, value, seeds=10))
    return cells


# McMahan et al. 2017, Table 1: MNIST 2NN, E = 1, B = 10, C = 0.1, rounds to 97 % with the best learning rate
_2NN_PUBLISHED = {"IID": (87.0, 300), "two shards": (664.0, 1200)}
_2NN_SCALES = {"mean 0, variance 1": "pooled", "[-1, 1]": "half", "[0, 1]": "unit"}
_2NN_RATES = {"IID": (0.05, 0.1, 0.2), "two shards": (0.01, 0.03, 0.06)}


def two_layers(profile: str) -> list[Cell]:
    """Rounds of FedAvg to 97 %, for three scales of the inputs, of which the paper names none."""
    cells = []
    for part, (value, rounds) in _2NN_PUBLISHED.items():
        for row, scale in _2NN_SCALES.items():
            federation = {**_MNIST, "model": "mlp", "partition": _PARTS[part], "normalise": scale}
            run = {"rounds": rounds, "cohort": 10, "local_epochs": 1, "batch_size": 10, "eval_every": 1}
            grid = [{"run": {"lr": lr}} for lr in _2NN_RATES[part]]
            spec = {
                "study": "rounds", "target": 97.0, "better": "lower", "method": ["FedAvg", {}],
                "federation": federation, "run": run, "tune": {"grid": grid, "seeds": [1000]},
            }  # fmt: skip
            cells.append(Cell(f"{part} {row}", spec, row, part, value, seeds=3))
    return cells


# Flower, baselines/niid_bench, README and configuration: the best of 50 rounds, in % (means over seeds)
_NIID_PUBLISHED = {"FedAvg": 98.89, "FedProx": 99.02, "FedNova": 98.03, "Flower's SCAFFOLD": 99.07}
_FLOWER = Path(__file__).parents[1] / "studies" / "flower_scaffold.py"
_NIID_RUN = {
    "rounds": 50, "local_epochs": 10, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5,
    "weighting": "samples", "eval_every": 1,
}  # fmt: skip


def niid(profile: str) -> list[Cell]:
    """The best accuracy of 50 rounds with ten clients, under a Dirichlet partition."""
    partition = ["Dirichlet", {"q": 0.5, "min_size": 10}]
    federation = {"source": "mnist", "clients": 10, "model": "niid_cnn", "partition": partition, "normalise": "unit"}
    cells = []
    for row, value in _NIID_PUBLISHED.items():
        method, run = [row, {"mu": 0.01} if row == "FedProx" else {}], _NIID_RUN
        if row == "Flower's SCAFFOLD":  # which has a momentum of its own, without the correction
            method, run = [f"{_FLOWER}:FlowerSCAFFOLD", {"beta": run["momentum"]}], {**run, "momentum": 0.0}
        spec = {"study": "best", "method": method, "federation": federation, "run": run}
        cells.append(Cell(f"Dirichlet {row}", spec, row, "Dir(0.5)", value, seeds=3))
    return cells


# CIFAR-10 in the same setting: the best of 50 rounds by NIID-Bench's authors and by Flower, in %
_CIFAR_PUBLISHED = {
    "NIID-Bench, seed 0": ({"seed": 0, "legacy": True}, 68.2),
    "Flower, seed 42": ({"seed": 42, "legacy": False}, 62.47),
}


def niid_cifar(profile: str) -> list[Cell]:
    """FedAvg on CIFAR-10 with the clients that NIID-Bench and Flower draw by their own seeds, for half the rounds."""
    federation = {"source": "cifar10", "clients": 10, "model": "niid_cnn", "normalise": "unit"}
    federation |= {"augment": ["CropFlip", {}]}
    cells = []
    for row, (seed, value) in _CIFAR_PUBLISHED.items():
        fed = {**federation, "partition": ["DealtBySeed", {"q": 0.5, **seed}]}
        spec = {"study": "best", "method": ["FedAvg", {}], "federation": fed, "run": {**_NIID_RUN, "rounds": 25}}
        cells.append(Cell(row, spec, row, "Dir(0.5)", value, seeds=1))
    return cells


_table = frame("known")
TABLES = [
    _table("known-mlp", "FedAvg on MNIST, an MLP with dropout", mlp, against=""),
    _table("known-2nn", "FedAvg on MNIST, rounds to 97 %", two_layers, unit="rounds", against=""),
    _table("known-niid", "Four methods on MNIST, best of 50 rounds", niid, against=""),
    _table("known-cifar", "FedAvg on CIFAR-10 with two published partitions", niid_cifar, against=""),
]
