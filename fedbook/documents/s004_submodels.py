"""The sub-model thesis (S004): FedDSE (chapter 3) and FedGSE (chapter 4), tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from .definitions import Cell, Question, Table, captions, claims, frame, left_open, printed
from .protocol import asked, search

LOW_QUALITY, HIGH_QUALITY = (0.99, 0.5, 0.25, 0.125, 0.0625), (1.0, 0.5, 0.25, 0.125, 0.0625)
# column in the thesis -> source, model, rounds, number of labels
DATA: dict[str, tuple[str, str, int, int]] = {
    "EMNIST": ("emnist-mnist", "thesis_cnn", 800, 10),
    "CIFAR-10": ("cifar10", "preact_resnet18", 2500, 10),
    "CIFAR-100": ("cifar100", "preact_resnet18", 2500, 100),
    "TinyImageNet": ("tiny-imagenet", "preact_resnet34", 2500, 200),
}
STRONG, WEAKER = "strong skew", "weaker skew"  # of labels
CLASSES = {STRONG: {10: 2, 100: 8, 200: 16}, WEAKER: {10: 4, 100: 16, 200: 32}}  # Table 3.2
THESIS = {STRONG: "HIGH", WEAKER: "LOW", "IID": "IID"}  # its names for them
METHODS: dict[str, list[Any]] = {
    "HeteroFL": ["HeteroFL", {}],
    "Federated Dropout": ["FederatedDropout", {}],
    "FedRolex": ["FedRolex", {}],
    "DepthFL": ["DepthFL", {}],
    "FedDSE": ["FedDSE", {"temperature": 0.0}],
    "FedGSE-CSL": ["FedGSE", {"variant": "CSL"}],
    "FedGSE-SPL": ["FedGSE", {"variant": "SPL"}],
}
# FedGSE as printed, by eq. 4-3 and Algorithms 4.2 and 4.3, beside the score of the code attributed to the authors
PRINTED = ("FedGSE-CSL, printed score", "FedGSE-SPL, printed score")
# quick and desk: two references, in which every client trains the same network: no method is needed for the first, the
# second is what capacities forbid
SMALLEST, WHOLE = "FedAvg, smallest network for all", "FedAvg, whole network for all"
CLASSES_HELD = (2, 4, 6, 8, 10)
TEMPERATURES = {"temperature": [0.0, 0.5, 1.0]}


@dataclass(frozen=True)
class Column:
    """The shared settings of the columns of quick and desk with one name.

    model: the whole network.  smallest: the sub-model of a client of capacity 1/16, as a separate network.  classes:
    skew -> classes per client.  public: samples per class at FedGSE's server.  source_name: the thesis' data set, if it
    is the same.  without: rows that the column leaves out.
    """

    source: str
    model: Any
    smallest: Any
    run: Mapping[str, Any]
    search: Mapping[str, Any]
    clients: int = 40
    classes: Mapping[str, int] = field(default_factory=lambda: {STRONG: 2, WEAKER: 4})
    public: int = 5
    seeds: int = 10
    source_name: str = ""
    without: Sequence[str] = ()


_LOCAL = {"local_epochs": 2, "batch_size": 10, "weight_decay": 0.0005}
_DIGITS = {**_LOCAL, "cohort": 0.2, "eval_every": 5}
_NARROW = ["thesis_cnn", {"widths": [8, 16, 32, 64]}], ["thesis_cnn", {"widths": [1, 1, 2, 4]}]
_QUARTER = ["thesis_cnn", {"widths": [16, 32, 64, 128]}], ["thesis_cnn", {"widths": [1, 2, 4, 8]}]
_DESK = {**_LOCAL, "cohort": 0.1, "rounds": 40, "lr_decay": 0.97, "eval_every": 10}
_SHORT = {"rounds": 4, "finalists": 2}
_EARLIER = {"rounds": [6, 20], "finalists": 2}  # for letters in Tables 3.6 and 4.4, whose finalists are stopped early
COLUMNS: dict[str, dict[str, Column]] = {
    "quick": {
        "digits, CNN": Column(
            "digits", "thesis_cnn_small", ["thesis_cnn", {"widths": [1, 2, 4]}],
            {**_DIGITS, "rounds": 25, "lr_decay": 0.95}, {"rounds": 10, "finalists": 2},
        ),
        "digits, MLP": Column(
            "digits", "thesis_mlp", ["mlp", {"hidden": [4, 2]}],
            {**_DIGITS, "rounds": 30, "lr_decay": 0.95}, {"rounds": 10, "finalists": 2},
        ),
    },
    "desk": {
        "EMNIST letters": Column(
            "emnist-letters", *_NARROW, {**_DESK, "rounds": 50}, {"rounds": 6, "finalists": 2}, 100,
            {STRONG: 4, WEAKER: 8}, 10, 5,
        ),
        # until the curves are flat, with five evaluations in the last sixth
        "MNIST": Column(
            "mnist", *_QUARTER, {**_DESK, "rounds": 90, "clip": 10.0, "eval_every": 3},
            {"rounds": [9, 45], "finalists": 2}, 100, public=10, seeds=3, without=("DepthFL", SMALLEST, WHOLE),
        ),
        "CIFAR-10": Column("cifar10", *_NARROW, _DESK, _SHORT, 100, public=10, seeds=3, source_name="CIFAR-10"),
        "CIFAR-100": Column(
            "cifar100", *_NARROW, _DESK, _SHORT, 100, {STRONG: 8, WEAKER: 16}, 10, 3, "CIFAR-100",
        ),
        # a fifth of the thesis' images, with a quarter of its pixels
        "Tiny-ImageNet": Column("tiny-imagenet32", *_NARROW, _DESK, _SHORT, 100, {STRONG: 16, WEAKER: 32}, 10, 3),
    },
}  # fmt: skip
# the figures sweep one setting over digits; the MLP trains three times as fast as the CNN
_SWEPT = replace(
    COLUMNS["quick"]["digits, MLP"], run={**_DIGITS, "rounds": 20, "lr_decay": 0.95},
    search={"rounds": 8, "finalists": 2},
)  # fmt: skip


def _method(row: str) -> tuple[str, dict[str, Any]]:
    """The method of a row and its arguments; HeteroFL, which is FedAvg at one capacity, for the two references."""
    name, own = METHODS.get(row.removesuffix(", printed score").partition(" (")[0], ["HeteroFL", {}])
    return name, {**own, **({"scoring": "printed"} if row in PRINTED else {})}


def _twice(rows: Sequence[str]) -> list[str]:
    """The rows, and for each of FedGSE one with the printed score."""
    return [*rows, *(row for row in PRINTED if row.partition(",")[0] in rows)]


def _shares(capacities: Sequence[float] | Mapping[float, float]) -> dict[str, float]:
    """Capacity -> share of the clients, equal ones unless they are given."""
    if not isinstance(capacities, Mapping):
        capacities = {r: 1 / len(capacities) for r in capacities}
    return {str(float(r)): share for r, share in capacities.items() if share}


def _partition(classes: int | None) -> list[Any]:
    return ["IID", {}] if classes is None else ["Shards", {"classes": classes}]


def cell(
    row: str,
    data: str,
    skew: str | int,
    capacities: Sequence[float] | dict[float, float],
    *,
    column: str = "",
    source: float | None = None,
    participation: float | None = None,
    gse: bool = False,
    **arguments: Any,
) -> Cell:
    """A cell of the profile paper.  skew: STRONG, WEAKER, "IID", or a number of classes per client."""
    data_source, model, rounds, labels = DATA[data]
    name, own = _method(row)
    classes = (CLASSES[skew][labels] if skew != "IID" else None) if isinstance(skew, str) else skew
    federation = {"source": data_source, "clients": 100, "partition": _partition(classes), "model": model,
                  "augment": ["CropFlip", {"padding": 4, "flip": data != "EMNIST"}]}  # fmt: skip
    if gse:  # the same images are kept from the clients of every method
        federation["public"] = 10
    spec: dict[str, Any] = {
        "study": "simulate", "federation": federation,
        "run": {"local_epochs": 2, "batch_size": 10, "weight_decay": 0.0005, "cohort": participation or 0.1,
                "rounds": rounds, "eval_every": 50, "lr": 0.001, "momentum": 0.9},
        "method": [name, {"capacities": _shares(capacities), "labels": "zero", **own, **arguments}],
    }  # fmt: skip
    column = column or data
    return Cell(f"{column} {row}", spec, row, column, source)


def searched(
    row: str,
    data: Column,
    skew: str | int,
    capacities: Sequence[float] | Mapping[float, float],
    column: str,
    *,
    participation: float | None = None,
    gse: bool = False,
    source: float | None = None,
    **arguments: Any,
) -> Cell:
    """A cell of the profiles quick and desk: settings are tuned on validation data, equally for every method.

    FedDSE's temperature is tuned too, unless it is given.
    """
    name, own = _method(row)
    arguments = {"capacities": _shares(capacities), "labels": "zero", **own, **arguments}
    axes = TEMPERATURES if row == "FedDSE" else {}
    model = data.model
    if row in (SMALLEST, WHOLE):
        arguments["capacities"] = {"1.0": 1.0}
        model = data.smallest if row == SMALLEST else data.model
    classes = skew if isinstance(skew, int) else data.classes.get(skew)  # none: IID
    federation: dict[str, Any] = {
        "source": data.source, "clients": data.clients, "partition": _partition(classes), "model": model,
        "validation": True, **({"public": data.public} if gse else {}),
    }  # fmt: skip
    run = {**data.run, **({"cohort": participation} if participation else {})}
    spec = {
        "study": "simulate", "method": [name, arguments], "federation": federation, "run": run,
        "tune": search(axes, **data.search),
    }  # fmt: skip
    return Cell(f"{column} {row}", spec, row, column, source, data.seeds)


def _printed(file: str, data: str, row: str) -> float | None:
    return printed(file, dataset=data, method=row.removesuffix(", printed score"))


def _earlier(data: Column) -> Column:
    return replace(data, search=_EARLIER) if data.source == "emnist-letters" else data


def main_table(
    rows: Sequence[str], skew: str, capacities: Sequence[float], file: str, gse: bool = False, earlier: bool = False
):
    """Tables 3.4, 3.5, 4.3, 4.4: methods by data set."""

    def cells(profile: str) -> list[Cell]:
        if profile == "paper":
            return [
                cell(row, data, skew, capacities, source=_printed(file, data, row), gse=gse)
                for data in DATA
                for row in _twice(rows)
            ]
        return [
            searched(row, data, skew, capacities, column, gse=gse, source=_printed(file, data.source_name, row))
            for column, data in ((k, _earlier(v) if earlier else v) for k, v in COLUMNS[profile].items())
            for row in (*_twice(rows), SMALLEST, WHOLE)
            if row not in data.without
        ]

    return cells


def table3_6(profile: str) -> list[Cell]:
    """FedRolex, FedDSE at T = 0 and T = 1; one capacity for all, or five; three heterogeneities, in paper."""
    cells = []
    rows = {"FedRolex": {}, "FedDSE (T=0)": {"temperature": 0.0}, "FedDSE (T=1)": {"temperature": 1.0}}
    if profile != "paper":
        first, *more = COLUMNS[profile]
        kinds = {"capacity 1/4": (0.25,), "five capacities": LOW_QUALITY, "capacity 1/2": (0.5,)}
        asked = [(first, kind) for kind in kinds if kind != "capacity 1/2" or profile == "quick"]
        asked += [("MNIST", "capacity 1/4")] * ("MNIST" in more)
        places = [(*place, skew) for place, skew in product(asked, (STRONG, WEAKER))]
        places += [(first, "capacity 1/4", "IID")] * (profile == "quick")
        for (name, kind, skew), (row, own) in product(places, rows.items()):
            data = _earlier(COLUMNS[profile][name])
            cells.append(searched(row, data, skew, kinds[kind], f"{name}, {kind}, {skew}", **own))
        return cells
    kinds = {"homogeneous capacity 1/4": (0.25,), "homogeneous capacity 1/2": (0.5,)}
    kinds["heterogeneous capacity r={0.99,0.5,0.25,0.125,0.0625}"] = LOW_QUALITY
    for kind, capacities in kinds.items():
        for skew in (STRONG, WEAKER, "IID"):
            short = f"{kind.split(' r=')[0]}, {skew}"
            for row, own in rows.items():
                source = printed(
                    "seed004_table3_6.csv", setting=f"{kind}; data heterogeneity {THESIS[skew]}", method=row
                )
                made = cell(row.split(" (")[0], "EMNIST", skew, capacities, column=short, **own)
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
    """FedGSE-SPL against the number of classes per client."""
    row = "FedGSE-SPL"
    if profile == "quick":
        data = COLUMNS["quick"]["digits, CNN"]
        return [searched(row, data, k, HIGH_QUALITY, f"digits, {k} classes", gse=True) for k in CLASSES_HELD]
    cells = []
    for data, printed_name in (("EMNIST", "EMNIST (4-block CNN)"), ("CIFAR-10", "CIFAR-10 (ResNet18)")):
        for k in CLASSES_HELD:
            source = printed("seed004_table4_5.csv", dataset=printed_name, setting=f"{k} classes per client")
            column = f"{data}, {k} classes"
            cells += [cell(r, data, k, HIGH_QUALITY, column=column, source=source, gse=True) for r in _twice([row])]
    return cells


SPLITS = {"2 classes each": _partition(2), "4 classes each": _partition(4), "8 classes each": _partition(8),
          "IID": _partition(None)}  # fmt: skip
LAYERS = 3  # 50, 24, 10


def profiles(profile: str) -> list[Cell]:
    """Figures 3.2, 3.3: the clients' mean activations and their conflicts by layer, after one round and after 40."""
    cells = []
    for (split, partition), rounds, layer in product(SPLITS.items(), (1, 40), range(LAYERS)):
        row, column = f"{split}, {rounds} round{'s' * (rounds > 1)}", f"layer {layer + 1}"
        federation = {"source": "digits" if profile == "quick" else "emnist-mnist", "clients": 5,
                      "partition": partition, "model": "thesis_mlp"}  # fmt: skip
        run = {"rounds": rounds, "lr": 0.1, "local_steps": 5, "batch_size": 20, "eval_every": rounds}
        spec = {"study": "profiles", "method": ["FedAvg", {}], "federation": federation, "run": run, "layer": layer}
        cells.append(Cell(f"{column} {row}", spec, row, column))
    return cells


def _swept(
    rows: Sequence[str],
    quick: Sequence[Any],
    paper: Sequence[Any],
    setting: Callable[[Any], tuple[str, dict[str, Any]]],
    *,
    skews: Sequence[str | int] = (STRONG, WEAKER),
    data: str = "EMNIST",
    source: Callable[[str], dict[str, str]] = lambda column: {},
    **more: Any,
) -> Callable[[str], list[Cell]]:
    """The cells of a figure of accuracy against one setting.

    quick, paper: the values of the setting in each profile.  setting: a value -> the column's name, and arguments of
    the cell.  source: a column -> the keys of its value among the printed numbers in the text.
    """

    def cells(profile: str) -> list[Cell]:
        made = []
        values, all_rows = (quick, rows) if profile == "quick" else (paper, _twice(rows))
        for skew, value, row in product(skews, values, all_rows):
            name, arguments = setting(value)
            arguments = {"skew": skew, "column": f"{skew}, {name}", **more, **arguments}
            if profile == "quick":
                made.append(searched(row, _SWEPT, **arguments))
            else:
                where = source(arguments["column"])
                value = printed("seed004_text_numbers.csv", **where) if where else None
                made.append(cell(row, data, source=value, **arguments))
        return made

    return cells


RHO = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def shares(rows: Sequence[str], data: str, capacities: tuple[float, float], gse: bool = False, *, inner: bool = False):
    """Accuracy against rho, the share of clients with the larger of two capacities; inner: 0 < rho < 1 only."""

    def setting(rho: float) -> tuple[str, dict[str, Any]]:
        return f"rho={rho:g}", {"capacities": dict(zip(capacities, (rho, 1 - rho), strict=True))}

    values = [rho for rho in RHO if 0 < rho < 1 or not inner]
    return _swept(rows, values, values, setting, data=data, gse=gse)


def participation(rows: Sequence[str], capacities: Sequence[float], gse: bool = False):
    """Accuracy against the share of clients in a round, at both skews."""

    def source(column: str) -> dict[str, str]:
        skew, share = column.split(", ")
        return {"method": rows[0], "setting": f"participation frc={share}, {THESIS[skew]} heterogeneity (Fig. 3.9)"}

    values = (0.05, 0.1, 0.15, 0.2)
    return _swept(
        rows, values, values, lambda share: (f"{share:.0%}", {"participation": share}), capacities=capacities, gse=gse,
        source=source,
    )  # fmt: skip


# FedDSE against the number of classes per client
classes3_8 = _swept(
    ["FedDSE"], CLASSES_HELD, CLASSES_HELD, lambda k: (f"{k} classes", {"skew": k, "column": f"{k} classes"}),
    skews=[""], capacities=LOW_QUALITY, source=lambda column: {"setting": f"{column} per client (Fig. 3.8)"},
)  # fmt: skip
# FedDSE against the number of local samples that it scores with (quick clients have about 29)
scoring = _swept(
    ["FedDSE"], (4, 8, 16, None), (64, 128, 256, None), lambda b: (str(b or "all"), {"budget": b}),
    capacities=LOW_QUALITY,
)  # fmt: skip
# FedGSE against the number of similar public samples
similar = _swept(
    ["FedGSE-CSL", "FedGSE-SPL"], (8, 16, 32, 50), (64, 128, 256, 512), lambda k: (str(k), {"similar": k}),
    capacities=HIGH_QUALITY, gse=True,
)  # fmt: skip


def differences(columns: Sequence[str]):
    """Figures 4.3, 4.4: the gap between updates of the sub-models and of the whole network, each method on its own run.

    Columns: "median", "accuracy", or the share of the rounds over which differences are accumulated.
    """

    def cells(profile: str) -> list[Cell]:
        rounds, made = 40 if profile == "quick" else 100, []
        for told in columns:
            what, share = ("accumulated", float(told)) if told[0].isdigit() else (told, 1.0)
            upto = round(share * rounds)
            column = {"median": "median difference", "accuracy": "accuracy (%)"}.get(told, f"AD, {upto}")
            rows = ["HeteroFL", "Federated Dropout", "FedRolex", "FedGSE-CSL"]
            for row in rows if profile == "quick" else _twice(rows):
                if profile == "quick":
                    spec = dict(searched(row, COLUMNS["quick"]["digits, CNN"], STRONG, HIGH_QUALITY, "", gse=True).spec)
                    spec.pop("tune")  # one learning rate for all: a smaller one makes differences smaller
                    spec["federation"] = {k: v for k, v in spec["federation"].items() if k != "validation"}
                    spec["run"] = {**spec["run"], "lr": 0.1, "lr_decay": 0.97}
                else:
                    spec = dict(cell(row, "EMNIST", STRONG, HIGH_QUALITY, gse=True).spec)
                spec |= {"study": "gap", "what": what, "run": {**spec["run"], "rounds": upto, "eval_every": 1}}
                made.append(Cell(f"{column} {row}", spec, row, column))
        return made

    return cells


ALONE = "the server's model as it is"


def from_public(profile: str) -> list[Cell]:
    """Our control: every method starts from a model that the server has trained on its public images."""
    begin, cells = {"lr": 0.1, "epochs": 40}, []
    rows = [ALONE, *GSE[:3], *GSE[4:], WHOLE]  # without DepthFL, whose model has heads that the server's lacks
    for row in rows if profile == "quick" else _twice(rows):
        method = row if row in (*METHODS, *PRINTED) else "HeteroFL"
        if profile == "paper":
            capacities = (1.0,) if row == WHOLE else HIGH_QUALITY
            spec = dict(cell(method, "EMNIST", STRONG, capacities, gse=True).spec)
        else:
            name = WHOLE if row == WHOLE else method
            spec = dict(searched(name, COLUMNS["quick"]["digits, MLP"], STRONG, HIGH_QUALITY, "", gse=True).spec)
        spec["federation"] = {**spec["federation"], "start": begin}
        if row == ALONE:
            spec.pop("tune", None)
            spec["run"] = {"rounds": 0, "lr": 0.1}
        column = "EMNIST" if profile == "paper" else "digits, MLP"
        cells.append(Cell(f"{column} {row}", spec, row, column, seeds=3 if profile == "paper" else 10))
    return cells


WAYS = {"uploads": {}, "printed digits": {"public": ["printed_digits", {"per_class": 5}]},
        "generated": {"public": ["Gaussians", {"per_class": 5}]}}  # fmt: skip


def ways(profile: str) -> list[Cell]:
    """FedGSE with the three kinds of public data that the thesis names, and HeteroFL, which needs none."""
    data, cells = COLUMNS[profile]["digits, MLP"], []
    for column in ("FedGSE-CSL", "FedGSE-SPL"):
        for row, method, own in [
            *((way, column, own) for way, own in WAYS.items()),
            ("none: HeteroFL", "HeteroFL", {}),
        ]:
            made = searched(method, data, STRONG, HIGH_QUALITY, "", gse=True, **own)
            cells.append(Cell(f"{column} {row}", made.spec, row, column, seeds=made.seeds))
    return cells


LEFT_OPEN = left_open("S004")
DSE = ("HeteroFL", "Federated Dropout", "FedRolex", "DepthFL", "FedDSE")
GSE = ("HeteroFL", "Federated Dropout", "FedRolex", "DepthFL", "FedGSE-CSL", "FedGSE-SPL")
_TABLES, _FIRST, _WEAKER, _CNN, _MLP, _PAPER, _FROM_PUBLIC, _UNTUNED, _COUNTED = (
    captions(f"S004 {name}")
    for name in ("tables", "tables, first", "tables, weaker skew", "figures, CNN", "figures, MLP", "figures, paper",
                 "from public images", "untuned", "counted")
)  # fmt: skip
_AXES = {
    "3.2": "neuron", "3.3": "distance of labels", "3.5": "skew", "3.5-low": "skew", "3.6": "rho", "3.7": "rho",
    "3.8": "classes per client", "3.9": "clients in a round", "3.10": "scoring samples", "4.5a": "rho", "4.5b": "rho",
    "4.6": "rho", "4.7": "rho", "4.8": "round", "4.9": "clients in a round", "4.10": "similar public samples",
}  # fmt: skip


_framed = frame("S004", left_open=LEFT_OPEN)


def _table(
    name: str, title: str, cells: Any, proposed: str, said: dict[str, str], against: str = "HeteroFL", **more: Any
) -> Table:
    axis = _AXES.get(name.partition("figure")[2], "")
    return _framed(name, title, cells, captions=said, against=against, proposed=proposed, axis=axis, **more)


_dse_high, _dse_low = (
    main_table(DSE, s, LOW_QUALITY, f"seed004_table3_{k}.csv") for s, k in ((STRONG, 4), (WEAKER, 5))
)
_gse_high, _gse_low = (
    main_table(GSE, s, HIGH_QUALITY, f"seed004_table4_{k}.csv", gse=True, earlier=s == WEAKER)
    for s, k in ((STRONG, 3), (WEAKER, 4))
)
_drawn = {"figure": True}


def _skewed(cells: Callable[[str], list[Cell]], skew: str) -> Callable[[str], list[Cell]]:
    return lambda profile: [replace(c, column=f"{c.column}, {skew}") for c in cells(profile) if c.row in DSE]


def _gap(name: str, title: str, columns: Sequence[str], axis: str, unit: str = "as the column says") -> Table:
    return _framed(
        name, title, differences(columns), left_open=(*left_open("S004 differences"), *LEFT_OPEN),
        figure=True, against="HeteroFL", proposed="FedGSE-CSL", axis=axis, unit=unit,
    )  # fmt: skip


_of_gse = shares(GSE, "EMNIST", (1.0, 0.0625), True)
TABLES = [
    _table("feddse-table3.4", "Largest capacity 0.99, strong label skew", _dse_high, "FedDSE", _TABLES),
    _table("feddse-table3.5", "Largest capacity 0.99, weaker label skew", _dse_low, "FedDSE", _TABLES),
    _table("feddse-table3.6", "Temperature, capacities and skew", table3_6, "FedDSE (T=1)", _FIRST, "FedRolex"),
    _table(
        "feddse-figure3.2", "Activations of five clients by neuron, and conflicts of all ten pairs (and 3.3)", profiles,
        "", _UNTUNED, "", unit="cosine", **_drawn,
    ),
    _table(
        "feddse-figure3.3", "Neurons in conflict by layer and by how far labels differ", profiles, "", _UNTUNED, "",
        drawn_from="feddse-figure3.2", unit="% of neurons in conflict", **_drawn,
    ),
    _table(
        "feddse-figure3.5", "Tables 3.4 and 3.5 drawn", _skewed(_dse_high, STRONG), "FedDSE", _TABLES,
        drawn_from="feddse-table3.4", beside="feddse-figure3.5-low", **_drawn,
    ),
    _table(
        "feddse-figure3.5-low", "Table 3.5 drawn", _skewed(_dse_low, WEAKER), "FedDSE", _TABLES,
        drawn_from="feddse-table3.5", **_drawn,
    ),
    _table(
        "feddse-figure3.6", "By the share rho of large clients (in the thesis: EMNIST)",
        shares(("FedDSE",), "EMNIST", (0.5, 0.0625)), "FedDSE", _MLP, **_drawn,
    ),
    _table(
        "feddse-figure3.7", "By the share rho of large clients, CIFAR-10",
        shares(("FedDSE",), "CIFAR-10", (0.5, 0.0625)), "FedDSE", _PAPER, **_drawn,
    ),
    _table("feddse-figure3.8", "FedDSE by classes per client", classes3_8, "FedDSE", _MLP, **_drawn),
    _table("feddse-figure3.9", "By participation", participation(("FedDSE",), LOW_QUALITY), "FedDSE", _MLP, **_drawn),
    _table("feddse-figure3.10", "FedDSE by scoring samples", scoring, "FedDSE", _MLP, **_drawn),
    _table("fedgse-table4.2", "Mean size of sub-models, in millions", table4_2, "", _COUNTED, "", unit="millions"),
    _table("fedgse-table4.3", "Largest capacity 1, strong label skew", _gse_high, "FedGSE-CSL", _TABLES),
    _table("fedgse-table4.4", "Largest capacity 1, weaker label skew", _gse_low, "FedGSE-SPL", _WEAKER),
    _table("fedgse-table4.5", "FedGSE-SPL by classes per client", table4_5, "FedGSE-SPL", _CNN),
    _table(
        "fedgse-public", "A start from the server's public images, strong label skew", from_public,
        "FedGSE-CSL", _FROM_PUBLIC,
    ),
    _table(
        "fedgse-ways", "Three ways to public data, strong label skew", ways, "", captions("fedgse-ways"), "uploads",
        left_open=(*left_open("fedgse-ways"), *LEFT_OPEN),
    ),
    _gap(
        "fedgse-figure4.3", "Updates of sub-models against the whole network's", ["median"], "round and density",
        "difference of updates",
    ),
    _gap(
        "fedgse-figure4.4", "Accumulated difference (AD) and accuracy",
        ["0.2", "0.4", "0.6", "0.8", "1", "accuracy"], "rounds",
    ),
    *(
        _table(
            f"fedgse-figure4.5{part}", f"FedGSE by the share rho of large clients (in the thesis: {data})",
            shares(("FedGSE-CSL", "FedGSE-SPL"), data, (1.0, 0.0625), True), "FedGSE-CSL", said,
            drawn_from=f"fedgse-figure4.{of}", **_drawn,
        )
        for part, data, of, said in (("a", "EMNIST", 6, _MLP), ("b", "CIFAR-10", 7, _PAPER))
    ),
    _table(
        "fedgse-figure4.6", "All methods by the share rho of large clients (in the thesis: EMNIST)", _of_gse,
        "FedGSE-CSL", _MLP, **_drawn,
    ),
    _table(
        "fedgse-figure4.7", "All methods by the share rho of large clients, CIFAR-10",
        shares(GSE, "CIFAR-10", (1.0, 0.0625), True), "FedGSE-CSL", _PAPER, **_drawn,
    ),
    _table(
        "fedgse-figure4.8", "Curves by the share rho of large clients",
        shares(GSE, "EMNIST", (1.0, 0.0625), True, inner=True), "FedGSE-CSL", _MLP, drawn_from="fedgse-figure4.6",
        **_drawn,
    ),
    _table(
        "fedgse-figure4.9", "By participation", participation(("FedGSE-CSL", "FedGSE-SPL"), HIGH_QUALITY, True),
        "FedGSE-CSL", _MLP, **_drawn,
    ),
    _table("fedgse-figure4.10", "FedGSE by similar samples", similar, "FedGSE-CSL", _MLP, **_drawn),
]  # fmt: skip


def _asked(rows: Sequence[str], *rivals: str) -> dict[str, list[Question]]:
    """Every row against every rival: both networks on digits; the letters on the desk, which have five seeds."""
    return asked(rows, rivals, {"quick": tuple(COLUMNS["quick"]), "desk": ("EMNIST letters",)})


def _asked3_6(row: str, rival: str, kind: str) -> dict[str, list[Question]]:
    names = {"quick": "digits, CNN", "desk": "EMNIST letters"}
    return asked(
        [row], [rival], {p: [f"{name}, {kind}, {skew}" for skew in (STRONG, WEAKER)] for p, name in names.items()}
    )


def _step(row: str, column: str, other: str, profile: str = "quick") -> dict[str, list[Question]]:
    """One row in one column against the same row in another column."""
    return {profile: [(row, row, column, other)]}


def _one(row: str, rival: str, column: str) -> dict[str, list[Question]]:
    return asked([row], [rival], {"quick": (column,)})


_BY_WIDTH = ("HeteroFL", "Federated Dropout", "FedRolex")
_BOTH = ("FedGSE-CSL", "FedGSE-SPL")
QUESTIONS = {
    "feddse-high": _asked(["FedDSE"], *DSE[:-1]),
    "feddse-low": _asked(["FedDSE"], *DSE[:-1]),
    "feddse-warm": _asked3_6("FedDSE (T=1)", "FedDSE (T=0)", "capacity 1/4"),
    "feddse-cold": _asked3_6("FedDSE (T=0)", "FedDSE (T=1)", "five capacities"),
    "fedgse-high": _asked(_BOTH, *_BY_WIDTH),
    "fedgse-low": _asked(_BOTH, *_BY_WIDTH),
    "fedgse-depthfl": _asked(_BOTH, "DepthFL"),
    "fedgse-csl": _asked(["FedGSE-CSL"], "FedGSE-SPL"),
    "fedgse-spl": _asked(["FedGSE-SPL"], "FedGSE-CSL"),
    "feddse-classes": _step("FedDSE", "4 classes", "2 classes"),
    "feddse-classes-fast": _step("FedDSE", "4 classes", "2 classes"),
    "feddse-classes-enough": _step("FedDSE", "10 classes", "4 classes"),
    "feddse-large-high": _step("FedDSE", "strong skew, rho=0.6", "strong skew, rho=0"),
    "feddse-large-low": _step("FedDSE", "weaker skew, rho=0.6", "weaker skew, rho=0"),
    "feddse-large-more": _step("FedDSE", "strong skew, rho=0.6", "strong skew, rho=0.2"),
    "feddse-large-enough": _step("FedDSE", "weaker skew, rho=0.6", "weaker skew, rho=0.2"),
    "feddse-large-cifar-high": _step("FedDSE", "strong skew, rho=1", "strong skew, rho=0.2", "paper"),
    "feddse-large-cifar-low": _step("FedDSE", "weaker skew, rho=1", "weaker skew, rho=0.2", "paper"),
    "feddse-clients-high": _step("FedDSE", "strong skew, 10%", "strong skew, 5%"),
    "feddse-clients-enough": _step("FedDSE", "strong skew, 20%", "strong skew, 10%"),
    "feddse-clients-low": _step("FedDSE", "weaker skew, 10%", "weaker skew, 5%"),
    "feddse-samples-high": _step("FedDSE", "strong skew, 16", "strong skew, 4"),
    "feddse-samples-enough": _step("FedDSE", "strong skew, all", "strong skew, 16"),
    "feddse-samples-low": _step("FedDSE", "weaker skew, all", "weaker skew, 4"),
    "fedgse-gap-gse": _one("FedGSE-CSL", "HeteroFL", "AD, 40"),
    "fedgse-gap-heterofl": _one("HeteroFL", "FedRolex", "AD, 40"),
    "fedgse-gap-fedrolex": _one("FedRolex", "Federated Dropout", "AD, 40"),
    "fedgse-order-gse": _one("FedGSE-CSL", "HeteroFL", "accuracy (%)"),
    "fedgse-order-heterofl": _one("HeteroFL", "FedRolex", "accuracy (%)"),
    "fedgse-order-fedrolex": _one("FedRolex", "Federated Dropout", "accuracy (%)"),
    "fedgse-large-high": _step("FedGSE-CSL", "strong skew, rho=0.2", "strong skew, rho=0"),
    "fedgse-large-low": _step("FedGSE-CSL", "weaker skew, rho=0.2", "weaker skew, rho=0"),
    "fedgse-large-skew": _step("FedGSE-CSL", "strong skew, rho=0.6", "weaker skew, rho=0.6"),
    "fedgse-large-cifar-high": _step("FedGSE-CSL", "strong skew, rho=0.2", "strong skew, rho=0", "paper"),
    "fedgse-large-cifar-low": _step("FedGSE-CSL", "weaker skew, rho=0.2", "weaker skew, rho=0", "paper"),
    "fedgse-large-rival": {
        f"{rival} (rho={rho:g})": _one("FedGSE-CSL", rival, f"strong skew, rho={rho:g}")
        for rival, rho in product((*_BY_WIDTH, "DepthFL"), (RHO[1], RHO[-2]))
    },
    "fedgse-clients-high": _step("FedGSE-CSL", "strong skew, 10%", "strong skew, 5%"),
    "fedgse-clients-low": _step("FedGSE-CSL", "weaker skew, 10%", "weaker skew, 5%"),
    "fedgse-clients-enough-high": _step("FedGSE-CSL", "strong skew, 20%", "strong skew, 10%"),
    "fedgse-clients-enough-low": _step("FedGSE-CSL", "weaker skew, 20%", "weaker skew, 10%"),
    "fedgse-samples-high": _step("FedGSE-CSL", "strong skew, 50", "strong skew, 8"),
    "fedgse-samples-low": _step("FedGSE-CSL", "weaker skew, 50", "weaker skew, 8"),
    "fedgse-classes": _step("FedGSE-SPL", "digits, 4 classes", "digits, 2 classes"),
    "fedgse-classes-enough": _step("FedGSE-SPL", "digits, 10 classes", "digits, 4 classes"),
}
CLAIMS = claims("S004", QUESTIONS)
