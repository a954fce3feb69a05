"""The sub-model thesis (S004): FedDSE (chapter 3) and FedGSE (chapter 4), tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cells import Cell
from ..table import Table, printed

LOW_QUALITY, HIGH_QUALITY = (0.99, 0.5, 0.25, 0.125, 0.0625), (1.0, 0.5, 0.25, 0.125, 0.0625)


def _domains(*names: str) -> list[Any]:
    return ["digit_domains", {"train_on": list(names), "test_on": list(names)}]


# column -> the quick stand-in (source, model), the paper's source and model, rounds, labels in all
DATA: dict[str, tuple[Any, str, str, str, int, int]] = {
    "EMNIST": ("digits", "thesis_cnn_small", "emnist-mnist", "thesis_cnn", 800, 10),
    "CIFAR-10": (_domains("plain", "patches"), "thesis_cnn_small", "cifar10", "preact_resnet18", 2500, 10),
    "CIFAR-100": ("digits", "thesis_mlp", "cifar100", "preact_resnet18", 2500, 100),
    "TinyImageNet": (_domains("plain", "inverted"), "thesis_mlp", "tiny-imagenet", "preact_resnet34", 2500, 200),
}
# quick: rounds and decay of the learning rate; the multilayer perceptron, without batch norm, learns more slowly
QUICK_RUNS = {"thesis_cnn_small": {"rounds": 40, "lr_decay": 0.97}, "thesis_mlp": {"rounds": 80, "lr_decay": 0.985}}
SHORT = {"rounds": 25, "lr_decay": 0.95}  # of the figures with many cells
CLASSES = {"HIGH": {10: 2, 100: 8, 200: 16}, "LOW": {10: 4, 100: 16, 200: 32}}  # Table 3.2
METHODS: dict[str, list[Any]] = {
    "HeteroFL": ["HeteroFL", {}],
    "Federated Dropout": ["FederatedDropout", {}],
    "FedRolex": ["FedRolex", {}],
    "DepthFL": ["DepthFL", {}],
    "FedDSE": ["FedDSE", {"temperature": 0.0}],
    "FedGSE-CSL": ["FedGSE", {"variant": "CSL"}],
    "FedGSE-SPL": ["FedGSE", {"variant": "SPL"}],
}


def cell(
    profile: str,
    row: str,
    data: str,
    skew: str | int,
    capacities: Sequence[float] | dict[float, float],
    *,
    column: str = "",
    source: float | None = None,
    participation: float | None = None,
    gse: bool = False,
    short: bool = False,
    **arguments: Any,
) -> Cell:
    """A run of one method; skew: "HIGH", "LOW", "IID", or so many classes a client; capacities: in equal shares."""
    quick_source, quick_model, paper_source, paper_model, rounds, labels = DATA[data]
    quick = profile == "quick"
    name, own = METHODS[row]
    classes = (CLASSES[skew][10 if quick else labels] if skew != "IID" else None) if isinstance(skew, str) else skew
    partition = ["IID", {}] if classes is None else ["Shards", {"classes": classes}]
    if not isinstance(capacities, dict):
        capacities = {r: 1 / len(capacities) for r in capacities}
    shares = {str(float(r)): share for r, share in capacities.items() if share}
    run: dict[str, Any] = {"local_epochs": 2, "batch_size": 10, "weight_decay": 0.0005}
    if quick:
        run |= {"cohort": participation or 0.2, "eval_every": 5, **(SHORT if short else QUICK_RUNS[quick_model])}
    else:
        run |= {"cohort": participation or 0.1, "rounds": rounds, "eval_every": 50, "lr": 0.001, "momentum": 0.9}
    federation = {"source": quick_source if quick else paper_source, "clients": 40 if quick else 100,
                  "partition": partition, "model": quick_model if quick else paper_model}  # fmt: skip
    if gse:  # the same images are kept from the clients of every method
        federation["public"] = 5 if quick else 10
    spec: dict[str, Any] = {
        "study": "simulate", "federation": federation, "run": run,
        "method": [name, {"capacities": shares, "labels": "zero", **own, **arguments}],
    }  # fmt: skip
    if quick:
        spec["tune"] = {"grid": [{"run": {"lr": lr}} for lr in (0.05, 0.15)], "seeds": [1000]}
    column = column or data
    return Cell(f"{column} {row}", spec, row, column, source)


def _printed(file: str, data: str, row: str) -> float | None:
    return printed(file, dataset=data, method=row)


def main_table(rows: Sequence[str], skew: str, capacities: Sequence[float], file: str, gse: bool = False):
    """Tables 3.4, 3.5, 4.3, 4.4: methods by data set."""

    def cells(profile: str) -> list[Cell]:
        return [
            cell(profile, row, data, skew, capacities, source=_printed(file, data, row), gse=gse)
            for data in DATA
            for row in rows
        ]

    return cells


def table3_6(profile: str) -> list[Cell]:
    """FedRolex, FedDSE at T = 0 and T = 1; one capacity for all, or five; three heterogeneities."""
    cells = []
    kinds = {"homogeneous capacity 1/4": (0.25,), "homogeneous capacity 1/2": (0.5,)}
    kinds["heterogeneous capacity r={0.99,0.5,0.25,0.125,0.0625}"] = LOW_QUALITY
    for kind, capacities in kinds.items():
        for skew in ("HIGH", "LOW", "IID"):
            short = f"{kind.split(' r=')[0]}, {skew}"
            for row, arguments in (
                ("FedRolex", {}),
                ("FedDSE (T=0)", {"temperature": 0.0}),
                ("FedDSE (T=1)", {"temperature": 1.0}),
            ):
                source = printed("seed004_table3_6.csv", setting=f"{kind}; data heterogeneity {skew}", method=row)
                made = cell(profile, row.split(" (")[0], "EMNIST", skew, capacities, column=short, **arguments)
                cells.append(Cell(f"{short} {row}", made.spec, row, short, source))
    return cells


def table4_2(profile: str) -> list[Cell]:
    """Parameters and multiply-adds, the mean over five levels, in millions; counted at the thesis' own networks."""
    nets = {"CONV": ("thesis_cnn", (1, 32, 32), 10), "ResNet18": ("preact_resnet18", (3, 32, 32), 10),
            "ResNet34": ("preact_resnet34", (3, 32, 32), 200)}  # fmt: skip
    cells = []
    for net, (model, shape, classes) in nets.items():
        for what, setting in (("parameters", "average parameters"), ("macs", "average MACs")):
            for row, by in (("DepthFL", "depth"), ("others", "width")):
                source = printed("seed004_table4_2.csv", dataset=net, setting=setting, method=row)
                spec = {"study": "size", "model": model, "shape": list(shape), "classes": classes, "by": by,
                        "what": what, "capacities": list(HIGH_QUALITY)}  # fmt: skip
                value = None if source is None else source / 1e6
                cells.append(Cell(f"{net} {what} {row}", spec, row, f"{net}, {what}", value))
    return cells


def table4_5(profile: str) -> list[Cell]:
    """FedGSE-SPL against the number of classes a client has."""
    cells = []
    for data, printed_name in (("EMNIST", "EMNIST (4-block CNN)"), ("CIFAR-10", "CIFAR-10 (ResNet18)")):
        for k in (2, 4, 6, 8, 10):
            source = printed("seed004_table4_5.csv", dataset=printed_name, setting=f"{k} classes per client")
            cells.append(
                cell(
                    profile, "FedGSE-SPL", data, k, HIGH_QUALITY, column=f"{data}, {k} classes", source=source, gse=True
                )
            )
    return cells


def profiles(profile: str) -> list[Cell]:
    """Figures 3.2, 3.3: how alike the clients' mean activations are, layer by layer, before and after training."""
    cells = []
    for rounds, row in ((1, "after one round"), (20, "after training")):
        for layer in (0, 1):
            federation = {"source": "digits" if profile == "quick" else "emnist-mnist", "clients": 5,
                          "partition": ["Shards", {"classes": 2}], "model": "thesis_mlp"}  # fmt: skip
            run = {"rounds": rounds, "lr": 0.1, "batch_size": 10, "eval_every": rounds}
            spec = {"study": "profiles", "method": ["FedAvg", {}], "federation": federation, "run": run, "layer": layer}
            cells.append(Cell(f"layer {layer + 1} {row}", spec, row, f"layer {layer + 1}"))
    return cells


RHO = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def shares(rows: Sequence[str], data: str, capacities: tuple[float, float], gse: bool = False, rhos=RHO):
    """Accuracy against rho, the share of clients with the larger of two capacities; HIGH and LOW."""

    def cells(profile: str) -> list[Cell]:
        return [
            cell(profile, row, data, skew, dict(zip(capacities, (rho, 1 - rho), strict=True)),
                 column=f"{skew}, rho={rho:g}", gse=gse, short=True)
            for skew in ("HIGH", "LOW")
            for rho in rhos
            for row in rows
        ]  # fmt: skip

    return cells


def classes3_8(profile: str) -> list[Cell]:
    """FedDSE against the number of classes a client has."""
    known = {2: "2 classes per client (Fig. 3.8)", 4: "4 classes per client (Fig. 3.8)"}
    return [
        cell(profile, "FedDSE", "EMNIST", k, LOW_QUALITY, column=f"{k} classes",
             source=printed("seed004_text_numbers.csv", setting=known.get(k, "")))
        for k in (2, 4, 6, 8, 10)
    ]  # fmt: skip


def participation(row: str, capacities: Sequence[float], gse: bool = False):
    """Accuracy against the share of clients in a round; HIGH and LOW."""

    def cells(profile: str) -> list[Cell]:
        return [
            cell(profile, row, "EMNIST", skew, capacities, column=f"{skew}, {share:.0%}", participation=share, gse=gse,
                 source=printed("seed004_text_numbers.csv", method=row,
                                setting=f"participation frc={share:.0%}, {skew} heterogeneity (Fig. 3.9)"))
            for skew in ("HIGH", "LOW")
            for share in (0.05, 0.1, 0.15, 0.2)
        ]  # fmt: skip

    return cells


def scoring(profile: str) -> list[Cell]:
    """Figure 3.10: FedDSE against the number of local samples that it scores with (quick clients have about 36)."""
    budgets = (4, 8, 16, None) if profile == "quick" else (64, 128, 256, None)
    return [
        cell(profile, "FedDSE", "EMNIST", skew, LOW_QUALITY, column=f"{skew}, {b or 'all'}", budget=b)
        for skew in ("HIGH", "LOW")
        for b in budgets
    ]


def similar(profile: str) -> list[Cell]:
    """Figure 4.10: FedGSE against the number of similar public samples."""
    counts = (8, 16, 32, 50) if profile == "quick" else (64, 128, 256, 512)
    return [
        cell(profile, row, "EMNIST", skew, HIGH_QUALITY, column=f"{skew}, {k}", gse=True, similar=k)
        for skew in ("HIGH", "LOW")
        for k in counts
        for row in ("FedGSE-CSL", "FedGSE-SPL")
    ]


def differences(columns: Sequence[str]):
    """Figures 4.3, 4.4: how far the sub-models' updates are from the whole network's, each method on its own run.

    Columns: "median", "accuracy", or the share of the rounds over which differences are added up.
    """

    def cells(profile: str) -> list[Cell]:
        rounds, lr = (40, {"lr": 0.1}) if profile == "quick" else (100, {})
        made = []
        for told in columns:
            what, share = ("accumulated", float(told)) if told[0].isdigit() else (told, 1.0)
            upto = round(share * rounds)
            column = {"median": "median difference", "accuracy": "accuracy (%)"}.get(told, f"AD, {upto}")
            for row in ("HeteroFL", "Federated Dropout", "FedRolex", "FedGSE-CSL"):
                spec = dict(cell(profile, row, "EMNIST", "HIGH", HIGH_QUALITY, gse=True).spec)
                spec.pop("tune", None)  # one learning rate: a small one makes every difference small
                spec |= {"study": "gap", "what": what, "run": {**spec["run"], **lr, "rounds": upto, "eval_every": 1}}
                made.append(Cell(f"{column} {row}", spec, row, column))
        return made

    return cells


LEFT_OPEN = (
    ("batch size", "10, as in both public code bases"),
    ("masked cross-entropy", "logits of foreign labels are 0, as in HeteroFL's code"),
    ("decay of the learning rate, seeds", "paper: none; three"),
    ("FedDSE's score", "mean activation behind the ReLU over local samples and positions"),
    ("the public data", "taken out of the training pool, the same images kept from every method's clients"),
    ("capacities of DepthFL", "the first ceil(4 r) of four stages"),
)
DSE = ("HeteroFL", "Federated Dropout", "FedRolex", "DepthFL", "FedDSE")
GSE = ("HeteroFL", "Federated Dropout", "FedRolex", "DepthFL", "FedGSE-CSL", "FedGSE-SPL")
_QUICK = {
    "quick": "Small scale: digits, plain and on patches (a small CNN), plain and inverted (the thesis' MLP) stand in "
    "for the data; 40 clients, 8 a round, 25, 40 or 80 rounds, no momentum, decaying learning rate; two tuned a cell.",
    "paper": "The thesis' data, networks and rounds.",
}


_AXES = {
    "3.2": "layer", "3.5": "data", "3.5-low": "data", "3.6": "rho", "3.7": "rho", "3.8": "classes a client",
    "3.9": "clients in a round", "3.10": "scoring samples", "4.5a": "rho", "4.5b": "rho", "4.6": "rho", "4.7": "rho",
    "4.8": "round", "4.9": "clients in a round", "4.10": "similar public samples",
}  # fmt: skip


def _table(name: str, title: str, cells: Any, proposed: str, against: str = "HeteroFL", **more: Any) -> Table:
    more["axis"] = _AXES.get(name.partition("figure")[2], "")
    return Table(name, title, "S004", cells, _QUICK, LEFT_OPEN, against=against, proposed=proposed, **more)


_dse_high, _dse_low = (main_table(DSE, s, LOW_QUALITY, f"seed004_table3_{k}.csv") for s, k in (("HIGH", 4), ("LOW", 5)))
_gse_high, _gse_low = (
    main_table(GSE, s, HIGH_QUALITY, f"seed004_table4_{k}.csv", gse=True) for s, k in (("HIGH", 3), ("LOW", 4))
)
_drawn = {"figure": True}
_difference = {
    "quick": "Small scale: digits, a small CNN, 40 clients with two classes, 40 rounds, one learning rate, 0.1. ",
    "paper": "The thesis' data and network, 100 rounds. ",
}


def _gap(name: str, title: str, columns: Sequence[str], axis: str, more: str) -> Table:
    captions = {profile: words + more for profile, words in _difference.items()}
    open_ = (("the difference", "the norm; the source subtracts sums of entries, in which signs cancel"), *LEFT_OPEN)
    return Table(
        name, title, "S004", differences(columns), captions, open_,
        figure=True, against="HeteroFL", proposed="FedGSE-CSL", axis=axis, unit="as the column says",
    )  # fmt: skip


_of_gse = shares(GSE, "EMNIST", (1.0, 0.0625), True)
TABLES = [
    _table("feddse-table3.4", "Low-quality clients, strong label skew", _dse_high, "FedDSE"),
    _table("feddse-table3.5", "Low-quality clients, weaker label skew", _dse_low, "FedDSE"),
    _table("feddse-table3.6", "Temperature, capacities and skew", table3_6, "FedDSE (T=1)", "FedRolex"),
    _table("feddse-figure3.2", "Activation profiles of clients (and 3.3)", profiles, "", "", unit="cosine", **_drawn),
    _table("feddse-figure3.5", "Table 3.4 drawn", _dse_high, "FedDSE", drawn_from="feddse-table3.4", **_drawn),
    _table("feddse-figure3.5-low", "Table 3.5 drawn", _dse_low, "FedDSE", drawn_from="feddse-table3.5", **_drawn),
    _table("feddse-figure3.6", "By rho, EMNIST", shares(("FedDSE",), "EMNIST", (0.5, 0.0625)), "FedDSE", **_drawn),
    _table("feddse-figure3.7", "By rho, CIFAR-10", shares(("FedDSE",), "CIFAR-10", (0.5, 0.0625)), "FedDSE", **_drawn),
    _table("feddse-figure3.8", "FedDSE by classes a client", classes3_8, "FedDSE", **_drawn),
    _table("feddse-figure3.9", "By participation", participation("FedDSE", LOW_QUALITY), "FedDSE", **_drawn),
    _table("feddse-figure3.10", "FedDSE by scoring samples", scoring, "FedDSE", **_drawn),
    _table("fedgse-table4.2", "Mean size of sub-models, in millions", table4_2, "", "", unit="millions"),
    _table("fedgse-table4.3", "High-quality clients, strong label skew", _gse_high, "FedGSE-CSL"),
    _table("fedgse-table4.4", "High-quality clients, weaker label skew", _gse_low, "FedGSE-SPL"),
    _table("fedgse-table4.5", "FedGSE-SPL by classes a client", table4_5, "FedGSE-SPL"),
    _gap(
        "fedgse-figure4.3", "Updates of sub-models against the whole network's, by round", ["median"], "round",
        "The source draws densities, nearest to 0 for FedGSE-CSL.",
    ),
    _gap(
        "fedgse-figure4.4", "Accumulated difference (AD) and accuracy",
        ["0.2", "0.4", "0.6", "0.8", "1", "accuracy"], "rounds",
        "The source prints an order, Federated Dropout > FedRolex > HeteroFL > FedGSE-CSL, reversed in accuracy.",
    ),
    *(
        _table(
            f"fedgse-figure4.5{part}", f"FedGSE by rho, {data}",
            shares(("FedGSE-CSL", "FedGSE-SPL"), data, (1.0, 0.0625), True), "FedGSE-CSL",
            drawn_from=f"fedgse-figure4.{of}", **_drawn,
        )
        for part, data, of in (("a", "EMNIST", 6), ("b", "CIFAR-10", 7))
    ),
    _table("fedgse-figure4.6", "All methods by rho, EMNIST", _of_gse, "FedGSE-CSL", **_drawn),
    _table(
        "fedgse-figure4.7", "All methods by rho, CIFAR-10",
        shares(GSE, "CIFAR-10", (1.0, 0.0625), True), "FedGSE-CSL", **_drawn,
    ),
    _table(
        "fedgse-figure4.8", "Curves by rho", shares(GSE, "EMNIST", (1.0, 0.0625), True, RHO[1:-1]), "FedGSE-CSL",
        drawn_from="fedgse-figure4.6", **_drawn,
    ),
    _table(
        "fedgse-figure4.9", "By participation", participation("FedGSE-CSL", HIGH_QUALITY, True), "FedGSE-CSL", **_drawn
    ),
    _table("fedgse-figure4.10", "FedGSE by similar samples", similar, "FedGSE-CSL", **_drawn),
]  # fmt: skip
