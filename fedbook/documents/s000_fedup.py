"""The FedUp study (S000): Tables 1, 2, 4 and 5, Figures 1 to 3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .definitions import Cell, Question, claims, frame, left_open, printed
from .protocol import METHODS, MLP, Row, asked, searched_cells, simulation

# the paper profile: arguments that the source does not print, as the authors of each method chose them
CHOSEN: dict[str, dict[str, Any]] = {
    "FedProx": {"mu": 0.0001}, "FedDyn": {"alpha": 0.01}, "FedSMOO": {"alpha": 0.1, "rho": 0.1}, "MOON": {"mu": 1.0},
    "MimeLite": {"beta": 0.9}, "STEM": {"a": 0.1}, "FedAvg + server momentum": {"server_momentum": 0.9},
}  # fmt: skip
LEFT_OPEN = left_open("S000")

# the rows of Table 4, and the methods that only Table 1 lists
ROWS = {
    row: METHODS[row]
    for row in ("FedAvg", "FedAvg + server momentum", "FedUp", "FedProx", "SCAFFOLD", "MOON", "MimeLite", "FedDyn",
                "STEM", "FedSMOO", "FedPVR")
}  # fmt: skip
OTHERS = {row: METHODS[row] for row in ("FedSGD", "FedSMB", "FedDC", "Mime")}
# methods that the study does not compare, with its own method and the best known baselines
FURTHER = {
    row: METHODS[row]
    for row in ("FedAvg", "FedAvg + server momentum", "FedUp", "FedAdagrad", "FedAdam", "FedYogi", "FedNova", "FedExP",
                "FedCM", "FedSAM", "MoFedSAM", "FedGamma", "FedSpeed")
}  # fmt: skip
_TEXT_LRS = [0.5, 1.0, 2.0, 4.0, 8.0]


_DIRICHLET = {q: ["Dirichlet", {"q": q}] for q in (0.02, 0.1, 0.3, 0.4, 0.6, 0.8)}
_FEMNIST, _CIFAR10, _CIFAR100 = (
    "FEMNIST (3400 clients), CNN",
    "CIFAR-10 (100 clients), ResNet18",
    "CIFAR-100 (100 clients), ResNet18",
)
_CIFAR1000 = "CIFAR-10 (1000 clients, q=0.8), ResNet18"
_DIGITS = {"source": "digits", "clients": 50, "model": MLP}
_DOMAINS = {"source": "digit-domains", "partition": ["ByOwner", {"parts": 10}], "model": MLP}
_WRITERS = {"source": "mnist-writers", "partition": ["ByOwner", {}], "model": "femnist_cnn"}
_SOME_WRITERS = {**_WRITERS, "clients": 100, "partition": ["ByOwner", {"subset": True}]}
# the source's FEMNIST, in the paper profile
_PAPER_FEMNIST = {
    "paper": {"source": "femnist", "partition": ["ByOwner", {}], "model": "femnist_cnn"},
    "run": {"rounds": 1000, "lr": 0.02, "batch_size": 20},
}


def _columns4() -> list[dict[str, Any]]:
    columns = [{"name": "FEMNIST", "dataset": _FEMNIST, "setting": "non-IID, 10% sampling", **_PAPER_FEMNIST}]
    for name, dataset, levels, batch, rounds in (
        ("CIFAR-10", _CIFAR10, (0.3, 0.4, 0.6, None), 32, 1500),
        ("CIFAR-100", _CIFAR100, (0.02, 0.1, 0.3, 0.4, 0.6, None), 16, 1000),
    ):
        for q in levels:
            columns.append(
                {
                    "name": f"{name} q={q}" if q else f"{name} IID",
                    "dataset": dataset,
                    "setting": f"q={q}, 10% sampling" if q else "IID, 10% sampling",
                    "paper": {"source": name.lower().replace("-", ""), "clients": 100,
                              "partition": _DIRICHLET[q] if q else ["IID", {}], "model": "resnet18_gn"},
                    "run": {"rounds": rounds, "lr": 0.2, "batch_size": batch},
                }
            )  # fmt: skip
    return columns


def _paper_cells(file: str, columns: list[dict[str, Any]]) -> list[Cell]:
    """The cells of the paper profile: settings as the source prints them, no tuning."""
    cells = []
    for column in columns:
        run = {"cohort": column.get("cohort", 0.1), "local_epochs": 1, "eval_every": 10, **column["run"]}
        for row, (method, *_) in ROWS.items():
            source = printed(file, dataset=column["dataset"], setting=column["setting"], method=row)
            federation = dict(column["paper"])
            if row == "MOON":
                federation["model"] = ["projected", {"model": federation["model"]}]
            variants = {row: CHOSEN.get(row, {})}
            if row == "FedUp":  # alpha times the mean number of local steps, not printed by the source
                variants = {f"FedUp alpha K={ak}": {"alpha_K": ak} for ak in (0.25, 0.5, 0.75, 0.9)}
            for name, chosen in variants.items():
                spec = {**simulation(method, federation, run), "method": [method, chosen]}
                cells.append(Cell(f"{column['name']} {name}", spec, name, column["name"], source))
    return cells


_DIGITS_RUN = {"rounds": 40, "cohort": 5, "local_steps": 10, "batch_size": 10, "eval_every": 5}
_CIFAR_RUN = {"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 32, "eval_every": 10}
_WRITERS_RUN = {**_CIFAR_RUN, "batch_size": 20}
# profile -> column -> federation, run, and dataset and setting of Table 4 whose values stand beside it (same data only)
COLUMNS4: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, str] | None]]] = {
    "quick": {
        **{
            f"digits, {name}": ({**_DIGITS, "partition": partition}, _DIGITS_RUN, None)
            for name, partition in (("q=0.1", _DIRICHLET[0.1]), ("q=0.3", _DIRICHLET[0.3]), ("IID", ["IID", {}]))
        },
        "five domains of digits": (_DOMAINS, _DIGITS_RUN, None),
    },
    "desk": {
        **{
            f"CIFAR-10, {name}": (
                {"source": "cifar10", "clients": 100, "partition": partition, "model": "cifar_cnn"},
                _CIFAR_RUN, (_CIFAR10, f"{setting}, 10% sampling"),
            )
            for name, partition, setting in (
                ("q=0.3", _DIRICHLET[0.3], "q=0.3"), ("q=0.6", _DIRICHLET[0.6], "q=0.6"), ("IID", ["IID", {}], "IID"),
            )
        },
        "CIFAR-100, q=0.3": (
            {"source": "cifar100", "clients": 100, "partition": _DIRICHLET[0.3], "model": "cifar_cnn"},
            {**_CIFAR_RUN, "batch_size": 16, "rounds": 600, "clip": 10.0}, (_CIFAR100, "q=0.3, 10% sampling"),
        ),
        "MNIST by writer": (_WRITERS, _WRITERS_RUN, None),
        "FEMNIST, 105 writers": (
            {**_SOME_WRITERS, "source": "femnist", "clients": 105}, _WRITERS_RUN, (_FEMNIST, "non-IID, 10% sampling"),
        ),
    },
}  # fmt: skip


_CLAIMED = ("CIFAR-10, q=0.3", "CIFAR-10, q=0.6", "CIFAR-10, IID", "FEMNIST, 105 writers")


def _cells4(profile: str, column: str, rows: dict[str, Row]) -> list[Cell]:
    """A column of Table 4, tuned: five seeds of `desk` where a claim rests on the column, else three."""
    federation, run, _ = COLUMNS4[profile][column]
    short, seeds = (15, 10) if profile == "quick" else (30, 5 if column in _CLAIMED else 3)
    # more than two: with similar clients one noisy short run had excluded FedAvg's best rate from the finals
    finalists = 3 if column == "CIFAR-10, IID" else 2
    return searched_cells(profile, column, federation, run, short, rows, seeds, finalists=finalists)


def table4(profile: str) -> list[Cell]:
    """Accuracy after the last round, by method and heterogeneity."""
    if profile == "paper":
        return _paper_cells("seed000_table4.csv", _columns4())
    cells = []
    for column, (_, _, beside) in COLUMNS4[profile].items():
        for cell in _cells4(profile, column, ROWS):
            source = None
            if beside:
                source = printed("seed000_table4.csv", dataset=beside[0], setting=beside[1], method=cell.row)
            cells.append(replace(cell, source=source))
    return cells


_CENTRAL = ("FedAvg", "FedAvg + server momentum", "FedUp", "SCAFFOLD")
_RACE = {"race": [60, 120, 240, 600], "behind": 8.0, "finalists": 2}
# What tuning chose most often at q = 0.3: the learning rate, and the method's own parameter.
_CHOSEN_CLIPPED = {
    "FedAvg": (0.05, {}), "FedAvg + server momentum": (0.05, {"server_momentum": 0.6}),
    "FedUp": (0.0125, {"alpha_K": 0.75}), "SCAFFOLD": (0.05, {}),
}  # fmt: skip


def clipped(profile: str) -> list[Cell]:
    """Table 4 on CIFAR-10, 600 rounds, gradients clipped for every method, as registered (items b and c).

    At q = 0.3 the rows that claims compare are tuned separately for each of five seeds; the others are tuned once and
    have three seeds.  The other columns have these rows alone, with five seeds: tuning starts from what was chosen at
    q = 0.3 and tries one learning rate to either side, with half the rounds.
    """
    cells, lrs = [], [0.025, 0.05, 0.1, 0.2]
    for rows, seeds, each in ((_CENTRAL, 5, {"each": True}), ([row for row in ROWS if row not in _CENTRAL], 3, {})):
        for cell in _clipped(profile, "CIFAR-10, q=0.3", {row: ROWS[row] for row in rows}, seeds, lrs):
            cells.append(_tuned(cell, seeds=[1000], **_RACE, **each))
    for column in ("CIFAR-10, q=0.6", "CIFAR-10, IID"):
        for row, (lr, own) in _CHOSEN_CLIPPED.items():
            near, fixed = [lr / 2, lr, 2 * lr], {row: ROWS[row]._replace(fixed=own, searched={}, limits={})}
            for cell in _clipped(profile, column, fixed, 5, near):
                cells.append(_tuned(cell, seeds=[1000], rounds=[300, 300], growth=0, finalists=1))
    return cells


def _clipped(profile: str, column: str, rows: dict[str, Row], seeds: int, lrs: list[float]) -> list[Cell]:
    federation, run, (dataset, setting) = COLUMNS4[profile][column]
    run, found = {**run, "rounds": 600, "eval_every": 20, "clip": 10.0}, []
    for cell in searched_cells(profile, column, federation, run, None, rows, seeds, lrs, 2):
        source = printed("seed000_table4.csv", dataset=dataset, setting=setting, method=cell.row)
        found.append(replace(cell, source=source))
    return found


def _tuned(cell: Cell, **more: Any) -> Cell:
    return replace(cell, spec={**cell.spec, "tune": {**cell.spec["tune"], **more}})


def further(profile: str) -> list[Cell]:
    """Two of Table 4's columns with methods that the study does not compare."""
    columns = {"quick": ("digits, q=0.1", "digits, q=0.3"), "desk": ("FEMNIST, 105 writers", "CIFAR-10, q=0.3")}
    return [cell for column in columns[profile] for cell in _cells4(profile, column, FURTHER)]


_FEW = ("FedAvg", "FedAvg + server momentum", "FedUp", "FedProx", "SCAFFOLD", "MimeLite", "FedDyn", "FedPVR")


def table5(profile: str) -> list[Cell]:
    """Accuracy under small participation."""
    if profile == "paper":
        columns = []
        for rate, femnist, cifar in ((0.2, 7, 2), (0.5, 17, 5), (1, 34, 10)):
            setting = f"sampling rate {rate}%"
            columns += [
                {"name": f"FEMNIST {rate}%", "dataset": _FEMNIST, "setting": setting, "cohort": femnist,
                 **_PAPER_FEMNIST},
                {
                    "name": f"CIFAR-10 {rate}%", "dataset": _CIFAR1000, "setting": setting, "cohort": cifar,
                    "paper": {"source": "cifar10", "clients": 1000, "partition": _DIRICHLET[0.8],
                              "model": "resnet18_gn"},
                    "run": {"rounds": 1500, "lr": 0.2, "batch_size": 32},
                },
            ]  # fmt: skip
        return _paper_cells("seed000_table5.csv", columns)
    cells = []
    if profile == "quick":
        federation = {**_DIGITS, "clients": 100, "partition": _DIRICHLET[0.8]}
        for cohort in (1, 2, 4):
            run = {**_DIGITS_RUN, "rounds": 60, "cohort": cohort}
            cells += searched_cells(profile, f"digits, {cohort} of 100 clients", federation, run, 20, ROWS)
        return cells
    rows = {row: ROWS[row] for row in _FEW}
    for cohort in (1, 2, 3):
        run = {"rounds": 1000, "cohort": cohort, "local_epochs": 1, "batch_size": 20, "eval_every": 50}
        column = f"MNIST by writer, {cohort} of 539 clients"
        cells += searched_cells(profile, column, _WRITERS, run, [100, 400], rows, 5)
    return cells


def figure2(profile: str) -> list[Cell]:
    """FEMNIST with 500 and with 1020 clients per round: every method but FedDyn, as the source draws it."""
    if profile == "paper":
        columns = [
            {"name": f"{size} clients", "dataset": "", "setting": "", "cohort": size, **_PAPER_FEMNIST}
            for size in (500, 1020)
        ]
        return [cell for cell in _paper_cells("seed000_table4.csv", columns) if cell.row != "FedDyn"]
    cells, rows = [], {row: entry for row, entry in ROWS.items() if row != "FedDyn"}
    for cohort in (8, 15):
        run = {**_DIGITS_RUN, "rounds": 20, "cohort": cohort, "eval_every": 2}
        cells += searched_cells(profile, f"five domains of digits, {cohort} of 50 clients", _DOMAINS, run, 8, rows)
    return cells


def figure3(profile: str) -> list[Cell]:
    """Next-character prediction, one client per role: FedUp and FedAvg."""
    if profile == "paper":
        federation = {"source": "shakespeare", "partition": ["ByOwner", {}], "model": "lstm"}
        run = {"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 10, "lr": 1.0, "eval_every": 10}
        return [
            Cell(f"text {row}", {**simulation(row, federation, run), "method": [row, chosen]}, row, "next character")
            for row, chosen in (("FedAvg", {}), ("FedUp", {"alpha_K": 0.5}))
        ]
    rows = {row: ROWS[row] for row in ("FedAvg", "FedAvg + server momentum", "FedUp")}
    fed = {"partition": ["ByOwner", {}], "model": ["lstm", {"embedding": 8, "hidden": 32}]}
    if profile == "quick":
        run = {"rounds": 60, "cohort": 4, "local_steps": 5, "batch_size": 10, "eval_every": 5}
        return searched_cells(profile, "synthetic roles", {"source": "roles", **fed}, run, 15, rows, lrs=_TEXT_LRS)
    run = {"rounds": 200, "cohort": 10, "local_steps": 10, "batch_size": 10, "eval_every": 50}
    return searched_cells(profile, "Shakespeare", {"source": "shakespeare", **fed}, run, 20, rows, 5, _TEXT_LRS)


ALL_OF_TEN = "digits, all of 10 clients"


def table1(profile: str) -> list[Cell]:
    """The ticks of Table 1 that can be counted or measured: state, traffic, strong skew, few participants."""
    names = ("FedSGD", "FedSMB", "FedProx", "SCAFFOLD", "FedDC", "Mime", "MimeLite", "FedDyn", "MOON", "FedSplit",
             "STEM", "FedSMOO", "FedPVR", "FedUp", "FedAvg")  # fmt: skip
    cells = [
        Cell(f"{column} {row}", {"study": "cost", "method": [row, {}], "cost": kind}, row, column)
        for row in names
        for kind, column in (("state", "vectors a client keeps"), ("traffic", "model sizes sent per client and round"))
    ]
    if profile == "quick":
        rows = {**ROWS, **OTHERS}
        for column, partition, cohort in (
            ("digits, q=0.02", ["Dirichlet", {"q": 0.02, "equal_sizes": True}], 5),
            ("digits, 1 of 50 clients", _DIRICHLET[0.6], 1),
        ):
            run = {**_DIGITS_RUN, "cohort": cohort}
            cells += searched_cells(profile, column, {**_DIGITS, "partition": partition}, run, 15, rows)
        federation = {**_DIGITS, "clients": 10, "partition": _DIRICHLET[0.1]}  # FedSplit needs all of them in a round
        rows = {row: METHODS[row] for row in ("FedAvg", "FedProx", "FedDyn", "FedSplit")}
        cells += searched_cells(profile, ALL_OF_TEN, federation, {**_DIGITS_RUN, "cohort": None}, 15, rows)
    return cells


STEPS = (1, 10, 30)  # local steps per round


def skew(profile: str) -> list[Cell]:
    """FedAvg by skew and by local steps, with the same number of gradients in every row."""
    cells = []
    if profile == "paper":  # the columns of Table 4
        for column in (c for c in _columns4() if c["dataset"] == _CIFAR10):
            source = printed("seed000_table4.csv", dataset=_CIFAR10, setting=column["setting"], method="FedAvg")
            run = {"cohort": 0.1, "local_epochs": 1, "eval_every": 10, **column["run"]}
            name = f"{column['name'].removeprefix('CIFAR-10 ')}, one epoch"
            cells.append(Cell(f"CIFAR-10 {name}", simulation("FedAvg", column["paper"], run), name, "CIFAR-10", source))
        return cells
    if profile != "quick":
        return cells
    for name, partition in (("IID", ["IID", {}]), ("q=0.3", _DIRICHLET[0.3]), ("q=0.1", _DIRICHLET[0.1])):
        for K in STEPS:
            rounds = round(400 / K)
            run = {**_DIGITS_RUN, "rounds": rounds, "local_steps": K, "eval_every": max(1, rounds // 10)}
            rows = {f"{name}, K={K}": ROWS["FedAvg"]}
            cells += searched_cells(
                profile, "digits", {**_DIGITS, "partition": partition}, run, max(1, round(0.4 * rounds)), rows
            )
    return cells


PAIRS = {  # row of Table 2 -> its name in the source
    "A, C": "A vs C (not correcting A)",
    "A-B+C, C": "A-B+C vs C (using -B+C to correct A as Mime)",
    "A-B, C": "A-B vs C (only using -B to correct A)",
    "A, B": "A vs B (not correcting A)",
}


def table2(profile: str) -> list[Cell]:
    """The four cosines of the Mime ablation, on the local trajectory of FedAvg and on that of Mime."""
    cifar = {"source": "cifar10", "clients": 100, "partition": _DIRICHLET[0.3]}
    # column -> federation, learning rate, batch, and the source's dataset whose values stand beside it (same data only)
    settings: dict[str, tuple[dict[str, Any], float, int, str]] = {
        "quick": {
            "five domains of digits": ({**_DOMAINS, "partition": ["ByOwner", {"parts": 2}]}, 0.1, 10, ""),
            "digits, q=0.3": ({**_DIGITS, "clients": 10, "partition": _DIRICHLET[0.3]}, 0.1, 10, ""),
        },
        "desk": {
            "MNIST by writer": (_SOME_WRITERS, 0.02, 20, ""),
            "CIFAR-10, q=0.3": ({**cifar, "model": "cifar_cnn"}, 0.2, 32, "CIFAR-10"),
        },
        "paper": {
            "FEMNIST": (_PAPER_FEMNIST["paper"], 0.02, 20, "FEMNIST"),
            "CIFAR-10": ({**cifar, "model": "resnet18_gn"}, 0.2, 32, "CIFAR-10"),
        },
    }[profile]
    rounds = {"rounds": 30, "cohort": 0.1, "eval_every": 30} if profile == "desk" else {"rounds": 10, "eval_every": 10}
    validation = {} if profile == "paper" else {"validation": True}
    cells = []
    for column, (federation, lr, batch, dataset) in settings.items():
        for path in ("FedAvg", "Mime"):
            for pair, method in PAIRS.items():
                spec = {
                    "study": "mime",
                    "method": [path, {}],
                    "federation": {**federation, **validation},
                    "run": {**rounds, "lr": lr, "batch_size": batch},
                    "steps": 40,
                    "pair": pair,
                }
                source = printed("seed000_table2.csv", dataset=dataset, method=method) if dataset else None
                seeds = {"quick": 10, "desk": 5}.get(profile, 3)
                cells.append(Cell(f"{column} {path} {pair}", spec, pair, f"{column}, path of {path}", source, seeds))
    return cells


_table = frame("S000", proposed="FedUp")
TABLES = [
    _table(
        "fedavg-skew", "FedAvg by skew and by the number of local steps", skew, against="IID, K=10", proposed=None,
    ),
    _table(
        "fedup-table1", "What each method can handle, as far as it can be counted or measured", table1,
        unit="as the column says",
    ),
    _table("fedup-table2", "Cosines of the Mime ablation", table2, unit="cosine", proposed=None),
    _table("fedup-table4", "Accuracy by heterogeneity", table4, left_open=LEFT_OPEN),
    _table("fedup-figure1", "Curves of Table 4", table4, figure=True, axis="round", drawn_from="fedup-table4"),
    _table("fedup-clipped", "Table 4 on CIFAR-10 with clipped gradients", clipped, left_open=LEFT_OPEN),
    _table("fedup-further", "Methods that the study does not compare, in columns of its Table 4", further),
    _table(
        "fedup-table5", "Accuracy under small participation", table5,
        left_open=(*LEFT_OPEN, *left_open("fedup-table5")),
    ),
    _table("fedup-figure2", "Many clients per round", figure2, left_open=LEFT_OPEN, figure=True, axis="round"),
    _table("fedup-figure3", "A text task, one client per role", figure3, figure=True, axis="round"),
]  # fmt: skip


# Of the columns with clipped gradients, q = 0.3 alone is tuned to the end of the runs; see the page `decisions`.
_SKEWED = {"quick": ("digits, q=0.1", "digits, q=0.3"), "desk": ("CIFAR-10, q=0.3",)}
_AT_03 = {"quick": ("digits, q=0.3",), "desk": ("CIFAR-10, q=0.3",)}
_EACH = {many: f"five domains of digits, {m} of 50 clients" for many, m in (("500", 8), ("1020", 15))}
_MANY = {"quick": (_EACH["1020"],)}
_RIVALS = [row for row in ROWS if row not in ("FedUp", "FedAvg", "FedAvg + server momentum")]


def _asked(row: str, base: str, columns: dict[str, tuple[str, ...]]) -> dict[str, list[Question]]:
    return asked([row], [base], columns)


def _corrected(quick: str, desk: str) -> dict[str, list[Question]]:
    """Cosine with the global gradient: corrected against uncorrected, on both local trajectories."""
    paths = {p: [f"{name}, path of {m}" for m in ("FedAvg", "Mime")] for p, name in (("quick", quick), ("desk", desk))}
    return {profile: [("A-B+C, C", "A, C", column) for column in columns] for profile, columns in paths.items()}


QUESTIONS = {
    "fedavg-skew": {
        "quick": [(f"{q}, K=10", "IID, K=10", "digits") for q in ("q=0.3", "q=0.1")],
        "desk": [("FedAvg", "FedAvg", "CIFAR-10, q=0.3", "CIFAR-10, IID")],
    },
    "fedavg-one-step": {"quick": [(f"{q}, K=1", "IID, K=1", "digits") for q in ("q=0.3", "q=0.1")]},
    "fedup-skew": _asked("FedUp", "FedAvg", _SKEWED),
    "fedup-owners": _asked(
        "FedUp", "FedAvg", {"quick": ("five domains of digits",), "desk": ("FEMNIST, 105 writers",)}
    ),
    "fedup-iid": _asked("FedUp", "FedAvg", {"quick": ("digits, IID",)}),
    "fedup-best": asked(["FedUp"], _RIVALS, _AT_03),
    "fedup-momentum": _asked("FedUp", "FedAvg + server momentum", _SKEWED),
    "fedup-participation": _asked(
        "FedUp",
        "FedAvg",
        {
            "quick": tuple(f"digits, {m} of 100 clients" for m in (1, 2, 4)),
            "desk": tuple(f"MNIST by writer, {m} of 539 clients" for m in (1, 2, 3)),
        },
    ),
    "fedup-many": _asked("FedUp", "FedAvg", {"quick": tuple(_EACH.values())}),
    "fedup-text": _asked("FedUp", "FedAvg", {"quick": ("synthetic roles",), "desk": ("Shakespeare",)}),
    "mime-owners": _corrected("five domains of digits", "MNIST by writer"),
    "mime-skew": _corrected("digits, q=0.3", "CIFAR-10, q=0.3"),
    "fedprox-error": _asked("FedProx", "FedAvg", _SKEWED),
    "feddyn-iid": _asked("FedDyn", "FedUp", {"quick": ("digits, IID",)}),
    "feddyn-skew": _asked("FedDyn", "FedUp", _AT_03),
    "mimelite-faster": _asked("MimeLite", "FedUp", _AT_03),
    "mimelite-accuracy": _asked("MimeLite", "FedUp", _AT_03),
    "scaffold-many": {many: _asked("SCAFFOLD", "SCAFFOLD", {"quick": (column,)}) for many, column in _EACH.items()},
    "stem-many": {many: _asked("STEM", "STEM", {"quick": (column,)}) for many, column in _EACH.items()},
    "fedup-fast-many": {rival: _asked("FedUp", rival, _MANY) for rival in ("FedAvg", *_RIVALS) if rival != "FedDyn"},
    "fedup-fast-text": _asked("FedUp", "FedAvg", {"quick": ("synthetic roles",), "desk": ("Shakespeare",)}),
}
# As registered: gradients are clipped, since without a clip the table measures whose steps overflow first.
_DECIDED_CLIPPED = ("fedavg-skew", "fedup-skew", "fedup-best", "fedup-momentum", "fedprox-error",
                    "feddyn-skew", "mimelite-faster", "mimelite-accuracy")  # fmt: skip
CLAIMS = claims("S000", QUESTIONS, tables={name: {"desk": "fedup-clipped"} for name in _DECIDED_CLIPPED})
