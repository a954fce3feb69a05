"""The DFedGAM study (S002): Table 1 and its curves, Figure 2."""

from __future__ import annotations

from typing import Any

from .definitions import Cell, Question, claims, frame, left_open, printed
from .protocol import MLP, asked, search

GOSSIP = {
    "quick": ["RandomRegular", {"degree": 4}],
    "desk": ["RandomRegular", {"degree": 10}],
    "paper": ["RandomRegular", {"degree": 10}],
}
RADII = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]  # the document's search over rho, in paper
# row -> method, the values of its own parameter that tuning starts from, and whether clients talk to neighbours
ROWS: dict[str, tuple[str, dict[str, list[float]], bool]] = {
    "FedAvg": ("FedAvg", {}, False),
    "FedAvg + server momentum": ("FedAvg", {"server_momentum": [0.3, 0.6, 0.9]}, False),
    "FedSAM": ("FedSAM", {"rho": [0.02, 0.05, 0.1]}, False),
    "SCAFFOLD": ("SCAFFOLD", {}, False),
    "D-PSGD": ("DPSGD", {}, True),
    "DFedAvg": ("DFedAvg", {}, True),
    "DFedAvgM": ("DFedAvgM", {"momentum": [0.3, 0.6, 0.9]}, True),
    "DFedSAM": ("DFedSAM", {"rho": [0.02, 0.05, 0.1]}, True),
    "DFedGAM": ("DFedGAM", {"rho": [0.02, 0.05, 0.1]}, True),
}
EQUAL, TRAFFIC = ", equal gradients", ", equal traffic"  # rows with as many local steps, or models sent, as gossip
# the factor on a server's rounds; quick: 80 models per gossip round, 8 with a server, 12 with control variates
LONGER = {
    "quick": {f"FedAvg{EQUAL}": 5, f"SCAFFOLD{EQUAL}": 5, f"FedAvg{TRAFFIC}": 10, f"SCAFFOLD{TRAFFIC}": 20 / 3},
    "desk": {f"FedAvg{EQUAL}": 10, f"SCAFFOLD{EQUAL}": 10},
    "paper": {},
}
# row -> learning rate and the method's own parameter, as tuning chose them for Table 1 at Dir-0.3 (tested)
CHOSEN: dict[str, dict[str, tuple[float, dict[str, float]]]] = {
    "quick": {
        "D-PSGD": (0.5, {}), "DFedAvg": (0.5, {}), "DFedAvgM": (0.5, {"momentum": 0.6}),
        "DFedSAM": (0.5, {"rho": 0.05}), "DFedGAM": (0.5, {"rho": 0.008}),
    },
    "desk": {
        "FedAvg": (0.1, {}), "FedAvg + server momentum": (0.1, {"server_momentum": 0.3}),
        "FedSAM": (0.1, {"rho": 0.02}), "SCAFFOLD": (0.1, {}),
        "D-PSGD": (0.2, {}), "DFedAvg": (0.1, {}), "DFedAvgM": (0.1, {"momentum": 0.3}),
        "DFedSAM": (0.2, {"rho": 0.02}), "DFedGAM": (0.2, {"rho": 0.02}),
    },
}  # fmt: skip
BELOW_ONE = {name: [0.0, 1.0] for name in ("method.server_momentum", "method.momentum")}
# column in the document -> its partition
PARTITIONS = {"Dir-0.3": ["Dirichlet", {"q": 0.3}], "Dir-0.6": ["Dirichlet", {"q": 0.6}], "IID": ["IID", {}]}
DATA = {"quick": "digits", "desk": "CIFAR-10", "paper": "CIFAR-10"}


def _settings(profile: str, partition: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Federation and run of a profile."""
    if profile == "quick":
        federation: dict[str, Any] = {"source": "digits", "clients": 20, "model": MLP, "validation": True}
        run: dict[str, Any] = {"rounds": 20, "local_steps": 4, "batch_size": 10, "eval_every": 2}
    else:
        federation = {"source": "cifar10", "clients": 100, "model": "lenet", "validation": True}
        run = {"rounds": 1000, "local_epochs": 5, "batch_size": 50, "lr": 0.1, "lr_decay": 0.995,
               "weight_decay": 0.0005, "clip": 10.0, "eval_every": 10}  # fmt: skip
    if profile == "desk":
        federation |= {"model": "cifar_cnn"}
        run |= {"rounds": 40, "local_epochs": 1, "eval_every": 4}
        run.pop("lr")
    return {**federation, "partition": partition}, run


def table1(profile: str) -> list[Cell]:
    """Accuracy of the server's or the mean model.

    In the profile desk each method is tuned at Dir-0.3 and keeps its settings on the other partitions.  Rows with equal
    gradients have cells at Dir-0.3 only.
    """
    cells = []
    equal = {row: ROWS[row.partition(",")[0]] for row in LONGER[profile]}
    for name, partition in PARTITIONS.items():
        column = f"{DATA[profile]}, {name}"
        for row, (method, own, gossip) in {**ROWS, **equal}.items():
            federation, run = _settings(profile, partition)
            run["cohort"] = None if gossip else (4 if profile == "quick" else 0.1)
            mixing = {"mixing": GOSSIP[profile]} if gossip else {}
            longer = LONGER[profile].get(row, 1)
            spec: dict[str, Any] = {"study": "simulate", "federation": federation, "run": _longer(run, longer)}
            if profile == "paper":
                spec["method"] = [method, mixing]
                if "rho" in own:
                    spec["tune"] = {"axes": {"method.rho": RADII}, "growth": 0}
            elif profile == "quick" or name == "Dir-0.3":
                limits = {key: value for key, value in BELOW_ONE.items() if key.removeprefix("method.") in own}
                short: dict[str, Any] = (
                    {"seeds": list(range(1000, 1005)), "rounds": int(8 * longer)}
                    if profile == "quick"
                    else {"rounds": [4 * longer, 12 * longer], "finalists": 2}
                )
                spec |= {"method": [method, mixing], "tune": search(own, **short, limits=limits)}
            elif row in CHOSEN["desk"]:
                lr, chosen = CHOSEN["desk"][row]
                spec["method"] = [method, {**mixing, **chosen}]
                spec["run"]["lr"] = lr
            else:
                continue
            seeds = 10 if profile == "quick" else 5 if profile == "desk" and name == "Dir-0.3" else 3
            value = None if profile == "quick" else printed("seed002_table1.csv", setting=name, method=row)
            cells.append(Cell(f"{column} {row}", spec, row, column, value, seeds))
    return cells


def _longer(run: dict[str, Any], times: float) -> dict[str, Any]:
    """The run with `times` as many rounds, as many evaluations and the same final learning rate."""
    if times == 1:
        return run
    decay = {"lr_decay": round(run["lr_decay"] ** (1 / times), 6)} if "lr_decay" in run else {}
    return {**run, **decay, "rounds": int(times * run["rounds"]), "eval_every": int(times * run["eval_every"])}


def figure2(profile: str) -> list[Cell]:
    """The document's rows of Table 1, after equally many rounds."""
    return [cell for cell in table1(profile) if not cell.row.endswith((EQUAL, TRAFFIC))]


WIDE = ", \u03c1 = 0.1"  # the same learning rate with a larger radius, which changes the steps noticeably


def local_models(profile: str) -> list[Cell]:
    """How much the clients' own models overfit, at the settings of Table 1 and with a wider radius."""
    column, cells = f"{DATA[profile]}, Dir-0.3", []
    federation, run = _settings(profile, PARTITIONS["Dir-0.3"])
    for row, (lr, own) in CHOSEN[profile].items():
        if not ROWS[row.partition(",")[0]][2]:  # with a server, clients have no models of their own
            continue
        for name, chosen in {row: own, **({row + WIDE: {"rho": 0.1}} if "rho" in own else {})}.items():
            spec = {
                "study": "overfitting", "better": "lower", "federation": federation,
                "method": [ROWS[row][0], {"mixing": GOSSIP[profile], **chosen}],
                "run": {**run, "cohort": None, "lr": lr},
            }  # fmt: skip
            cells.append(Cell(f"{column} {name}", spec, name, column, None, 10 if profile == "quick" else 3))
    return cells


LEFT_OPEN = left_open("S002")
_table = frame("S002", proposed="DFedGAM")
TABLES = [
    _table("dfedgam-table1", "Centralised and decentralised methods", table1, left_open=LEFT_OPEN),
    _table(
        "dfedgam-local", "How much the clients' own models overfit", local_models, against="DFedAvg", unit="points",
    ),
    _table("dfedgam-figure2", "Curves of Table 1", figure2, figure=True, axis="round", drawn_from="dfedgam-table1"),
]  # fmt: skip


def _asked(row: str, *rivals: str) -> dict[str, list[Question]]:
    """In desk, the questions about rows with equal gradients use Dir-0.3 only, the only column with such cells."""

    def partitions(profile: str, rival: str) -> list[str]:
        return list(PARTITIONS) if profile == "quick" or not rival.endswith(EQUAL) else ["Dir-0.3"]

    return {
        profile: [(row, rival, f"{DATA[profile]}, {name}") for rival in rivals for name in partitions(profile, rival)]
        for profile in ("quick", "desk")
    }


QUESTIONS = {
    "dfedgam-sam": _asked("DFedGAM", "DFedSAM"),
    "dfedgam-gossip": _asked("DFedGAM", "D-PSGD", "DFedAvg", "DFedAvgM"),
    "dfedgam-server": _asked("DFedGAM", "FedAvg", "SCAFFOLD"),
    "dfedgam-equal": _asked("DFedGAM", f"FedAvg{EQUAL}", f"SCAFFOLD{EQUAL}"),
    "dfedgam-traffic": {"quick": _asked("DFedGAM", f"FedAvg{TRAFFIC}", f"SCAFFOLD{TRAFFIC}")["quick"]},
    "dfedsam-flat": _asked("DFedSAM", "DFedAvg"),
    "dfedgam-fast": {
        rival: asked(["DFedGAM"], [rival], {p: [f"{DATA[p]}, Dir-0.3"] for p in ("quick", "desk")})
        for rival in ROWS
        if rival not in ("DFedGAM", "FedAvg + server momentum")
    },
    "dfedgam-overfitting": {"quick": [("DFedGAM", "DFedAvg", "digits, Dir-0.3")]},
}
CLAIMS = claims("S002", QUESTIONS)
