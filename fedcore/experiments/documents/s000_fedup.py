"""The FedUp study (S000): Table 4 with Figure 1, Table 5, Figures 2 and 3."""

from __future__ import annotations

from typing import Any

from ..cells import Cell
from ..claims import Claim, Question
from ..table import Table, printed
from ._common import MLP, grid, search, simulation

# row of the tables -> the method and the values of its own parameter that are tried in `quick`
METHODS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "FedAvg": ("FedAvg", [{}]),
    "FedUp": ("FedUp", [{"alpha": 0.05}, {"alpha": 0.08}]),
    "FedProx": ("FedProx", [{"mu": 0.001}, {"mu": 0.1}]),
    "SCAFFOLD": ("SCAFFOLD", [{}]),
    "MOON": ("MOON", [{"mu": 0.1}, {"mu": 1.0}]),
    "MimeLite": ("MimeLite", [{"beta": 0.5}, {"beta": 0.9}]),
    "FedDyn": ("FedDyn", [{"alpha": 0.01}, {"alpha": 0.1}]),
    "STEM": ("STEM", [{"a": 0.1}, {"a": 0.5}]),
    "FedSMOO": ("FedSMOO", [{"alpha": 0.01, "rho": 0.05}, {"alpha": 0.1, "rho": 0.05}]),
    "FedPVR": ("FedPVR", [{}]),
}
LRS = [0.2, 0.1, 0.5, 0.05, 0.02, 1.0]
# the paper profile: arguments that the source does not print, as the authors of each method chose them
CHOSEN: dict[str, dict[str, Any]] = {
    "FedProx": {"mu": 0.0001}, "FedDyn": {"alpha": 0.01}, "FedSMOO": {"alpha": 0.1, "rho": 0.1}, "MOON": {"mu": 1.0},
    "MimeLite": {"beta": 0.9}, "STEM": {"a": 0.1},
}  # fmt: skip
LEFT_OPEN = (
    (
        "every method's own parameter, and alpha",
        "quick: tuned, two values each; paper: as their authors, alpha K in four values",
    ),
    ("seeds, weight decay, momentum, decay of the learning rate", "three seeds, none, none, none"),
    ("smallest client of the partition", "FedML's routine, at least 10 samples or a tenth of the mean"),
    ("best or last round", "last round"),
)

# the protocol's rows: the method, what of it is fixed, and the values of its own parameter that a search starts from
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, list[float]]]] = {
    "FedAvg": ("FedAvg", {}, {}),
    "FedAvg + server momentum": ("FedAvg", {}, {"server_momentum": [0.3, 0.6, 0.9]}),
    "FedUp": ("FedUp", {}, {"alpha_K": [0.25, 0.5, 0.75]}),
    "FedProx": ("FedProx", {}, {"mu": [0.001, 0.01, 0.1]}),
    "SCAFFOLD": ("SCAFFOLD", {}, {}),
    "MOON": ("MOON", {}, {"mu": [0.1, 1.0, 10.0]}),
    "MimeLite": ("MimeLite", {}, {"beta": [0.3, 0.6, 0.9]}),
    "FedDyn": ("FedDyn", {}, {"alpha": [0.01, 0.03, 0.1]}),
    "STEM": ("STEM", {}, {"a": [0.1, 0.3, 0.9]}),
    "FedSMOO": ("FedSMOO", {"rho": 0.05}, {"alpha": [0.01, 0.03, 0.1]}),
    "FedPVR": ("FedPVR", {}, {}),
}
BELOW_ONE = {name: [0.0, 1.0] for name in ("method.server_momentum", "method.beta", "method.a")}


# column -> (the source's dataset, the source's setting, quick federation, paper federation, paper run)
_DIRICHLET = {q: ["Dirichlet", {"q": q}] for q in (0.02, 0.1, 0.3, 0.4, 0.6)}
_EQUAL = {q: ["Dirichlet", {"q": q, "equal_sizes": True}] for q in (0.02, 0.1)}
_FEMNIST, _CIFAR10, _CIFAR100 = (
    "FEMNIST (3400 clients), CNN",
    "CIFAR-10 (100 clients), ResNet18",
    "CIFAR-100 (100 clients), ResNet18",
)
_DIGITS = {"source": "digits", "clients": 50, "model": MLP}


def _columns4() -> list[dict[str, Any]]:
    columns = [
        {
            "name": "FEMNIST", "dataset": _FEMNIST, "setting": "non-IID, 10% sampling",
            "quick": {"source": "digit-domains", "partition": ["ByOwner", {"parts": 10}], "model": MLP},
            "quick_run": {"rounds": 40},
            "paper": {"source": "femnist", "partition": ["ByOwner", {}], "model": "femnist_cnn"},
            "run": {"rounds": 1000, "lr": 0.02, "batch_size": 20},
        }
    ]  # fmt: skip
    for name, dataset, levels, batch, rounds in (
        ("CIFAR-10", _CIFAR10, (0.3, 0.4, 0.6, None), 32, 1500),
        ("CIFAR-100", _CIFAR100, (0.02, 0.1, 0.3, 0.4, 0.6, None), 16, 1000),
    ):
        for q in levels:
            partition = _DIRICHLET[q] if q else ["IID", {}]
            columns.append(
                {
                    "name": f"{name} q={q}" if q else f"{name} IID",
                    "dataset": dataset,
                    "setting": f"q={q}, 10% sampling" if q else "IID, 10% sampling",
                    "quick": {
                        **_DIGITS,
                        "model": MLP if name == "CIFAR-10" else "digit_cnn",
                        "partition": _EQUAL.get(q, partition),
                    },
                    "paper": {"source": name.lower().replace("-", ""), "clients": 100, "partition": partition,
                              "model": "resnet18_gn"},
                    "quick_run": {"rounds": 40 if name == "CIFAR-10" else 25},
                    "run": {"rounds": rounds, "lr": 0.2, "batch_size": batch},
                }
            )  # fmt: skip
    return columns


def _cells(file: str, columns: list[dict[str, Any]], profile: str, quick_run: dict[str, Any]) -> list[Cell]:
    cells = []
    for column in columns:
        for row, (method, arguments) in METHODS.items():
            source = printed(file, dataset=column["dataset"], setting=column["setting"], method=row)
            if profile == "quick":
                federation = dict(column["quick"])
                if row == "MOON":
                    federation["model"] = ["projected", {"model": federation["model"], "dim": 32}]
                spec = simulation(
                    method, federation, {**quick_run, **column.get("quick_run", {})}, tune=grid(arguments, LRS)
                )
                cells.append(Cell(f"{column['name']} {row}", spec, row, column["name"], source))
                continue
            run = {"cohort": column.get("cohort", 0.1), "local_epochs": 1, "eval_every": 10, **column["run"]}
            federation = dict(column["paper"])
            if row == "MOON":
                federation["model"] = ["projected", {"model": federation["model"]}]
            variants = [(row, CHOSEN.get(row, {}))]
            if row == "FedUp":  # alpha times the mean number of local steps, not printed by the source
                variants = [(f"FedUp alpha K={ak}", {"alpha_K": ak}) for ak in (0.25, 0.5, 0.75, 0.9)]
            if row == "FedAvg":
                variants.append(("FedAvg + server momentum", {"server_momentum": 0.9}))
            for name, chosen in variants:
                spec = {**simulation(method, federation, run), "method": [method, chosen]}
                cells.append(
                    Cell(
                        f"{column['name']} {name}",
                        spec,
                        name,
                        column["name"],
                        source if "momentum" not in name else None,
                    )
                )
    return cells


_DIGITS_RUN = {"rounds": 40, "cohort": 5, "local_steps": 10, "batch_size": 10, "eval_every": 5}
_CIFAR_RUN = {"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 32, "eval_every": 10}
# profile -> column -> federation, run, and the setting of Table 4 whose values stand beside it (same data only)
COLUMNS4: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any], str]]] = {
    "quick": {
        **{
            f"digits, {name}": ({**_DIGITS, "partition": partition}, _DIGITS_RUN, "")
            for name, partition in (("q=0.1", _DIRICHLET[0.1]), ("q=0.3", _DIRICHLET[0.3]), ("IID", ["IID", {}]))
        },
        "five domains of digits": (
            {"source": "digit-domains", "partition": ["ByOwner", {"parts": 10}], "model": MLP}, _DIGITS_RUN, "",
        ),
    },
    "desk": {
        **{
            f"CIFAR-10, {name}": (
                {"source": "cifar10", "clients": 100, "partition": partition, "model": "cifar_cnn"},
                _CIFAR_RUN, f"{setting}, 10% sampling",
            )
            for name, partition, setting in (
                ("q=0.3", _DIRICHLET[0.3], "q=0.3"), ("q=0.6", _DIRICHLET[0.6], "q=0.6"), ("IID", ["IID", {}], "IID"),
            )
        },
        "MNIST by writer": (
            {"source": "mnist-writers", "partition": ["ByOwner", {}], "model": "femnist_cnn"},
            {"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 20, "eval_every": 10}, "",
        ),
    },
}  # fmt: skip


def table4(profile: str) -> list[Cell]:
    """Accuracy after the last round, by method and heterogeneity."""
    if profile == "paper":
        return _cells("seed000_table4.csv", _columns4(), profile, {})
    cells = []
    for column, (federation, run, setting) in COLUMNS4[profile].items():
        for row, (method, fixed, own) in ROWS.items():
            model = federation["model"]
            if row == "MOON":  # its projection head
                model = ["projected", {"model": model, "dim": 32 if profile == "quick" else 256}]
            limits = {name: BELOW_ONE[name] for name in (f"method.{key}" for key in own) if name in BELOW_ONE}
            short = (
                {"rounds": 15, "seeds": list(range(1000, 1005))}
                if profile == "quick"
                else {"rounds": [30, 120], "finalists": 2}
            )
            spec = {
                "study": "simulate", "method": [method, fixed], "run": run,
                "federation": {**federation, "model": model, "validation": True},
                "tune": search(own, **short, limits=limits),
            }  # fmt: skip
            source = printed("seed000_table4.csv", dataset=_CIFAR10, setting=setting, method=row) if setting else None
            seeds = 10 if profile == "quick" else 5 if column == "CIFAR-10, q=0.3" else 3
            cells.append(Cell(f"{column} {row}", spec, row, column, source, seeds))
    return cells


def table5(profile: str) -> list[Cell]:
    """Accuracy under small participation."""
    columns = []
    for rate, femnist, cifar, small in ((0.2, 7, 2, 1), (0.5, 17, 5, 2), (1, 34, 10, 4)):
        columns += [
            {
                "name": f"FEMNIST {rate}%", "dataset": _FEMNIST, "setting": f"sampling rate {rate}%", "cohort": femnist,
                "quick": {"source": "digit-domains", "partition": ["ByOwner", {"parts": 20}], "model": MLP},
                "quick_run": {"cohort": small},
                "paper": {"source": "femnist", "partition": ["ByOwner", {}], "model": "femnist_cnn"},
                "run": {"rounds": 1000, "lr": 0.02, "batch_size": 20},
            },
            {
                "name": f"CIFAR-10 {rate}%", "dataset": "CIFAR-10 (1000 clients, q=0.8), ResNet18",
                "setting": f"sampling rate {rate}%", "cohort": cifar,
                "quick": {**_DIGITS, "clients": 100, "partition": ["Dirichlet", {"q": 0.8}]},
                "quick_run": {"cohort": small},
                "paper": {"source": "cifar10", "clients": 1000, "partition": ["Dirichlet", {"q": 0.8}],
                          "model": "resnet18_gn"},
                "run": {"rounds": 1500, "lr": 0.2, "batch_size": 32},
            },
        ]  # fmt: skip
    quick = {"rounds": 60, "local_steps": 10, "batch_size": 10, "eval_every": 5}
    return _cells("seed000_table5.csv", columns, profile, quick)


def figure2(profile: str) -> list[Cell]:
    """FEMNIST with 500 and with 1020 clients per round: every method but FedDyn, as the source draws it."""
    columns = [
        {
            "name": f"{size} clients", "dataset": "", "setting": "", "cohort": size,
            "quick": {"source": "digit-domains", "partition": ["ByOwner", {"parts": 20}], "model": MLP},
            "quick_run": {"cohort": small},
            "paper": {"source": "femnist", "partition": ["ByOwner", {}], "model": "femnist_cnn"},
            "run": {"rounds": 1000, "lr": 0.02, "batch_size": 20},
        }
        for size, small in ((500, 15), (1020, 30))
    ]  # fmt: skip
    quick = {"rounds": 30, "local_steps": 10, "batch_size": 10, "eval_every": 3}
    return [cell for cell in _cells("seed000_table4.csv", columns, profile, quick) if cell.row != "FedDyn"]


def figure3(profile: str) -> list[Cell]:
    """Next-character prediction, one client per role: FedUp and FedAvg."""
    cells = []
    for row in ("FedAvg", "FedUp"):
        method, arguments = METHODS[row]
        if profile == "quick":
            federation = {
                "source": "roles",
                "partition": ["ByOwner", {}],
                "model": ["lstm", {"embedding": 8, "hidden": 32}],
            }
            run = {"rounds": 30, "cohort": 4, "local_steps": 5, "batch_size": 10, "eval_every": 3}
            spec = simulation(method, federation, run, tune=grid(arguments, [1.0, 2.0], 4))
        else:
            federation = {"source": "shakespeare", "partition": ["ByOwner", {}], "model": "lstm"}
            run = {"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 10, "lr": 1.0, "eval_every": 10}
            spec = {
                **simulation(method, federation, run),
                "method": [method, {"alpha_K": 0.5} if row == "FedUp" else {}],
            }
        cells.append(Cell(f"text {row}", spec, row, "next character"))
    return cells


def table1(profile: str) -> list[Cell]:
    """The ticks of Table 1 that can be counted or measured: state, traffic, few participants, strong skew."""
    names = ("FedSGD", "FedSMB", "FedProx", "SCAFFOLD", "FedDC", "Mime", "MimeLite", "FedDyn", "FedSplit", "STEM",
             "FedSMOO", "FedPVR", "FedUp", "FedAvg")  # fmt: skip
    cells = []
    for row in names:
        for kind, column in (("state", "vectors a client keeps"), ("traffic", "d sent a client and round")):
            cells.append(Cell(f"{column} {row}", {"study": "cost", "method": [row, {}], "cost": kind}, row, column))
        if row == "FedSplit":  # needs every client in every round
            continue
        method, arguments = METHODS.get(row, (row, [{}]))
        for column, q, cohort in (("accuracy, q=0.1", 0.1, 5), ("accuracy, 1 of 50 clients", 0.6, 1)):
            federation = {**_DIGITS, "partition": _DIRICHLET[q]}
            run = {"rounds": 40, "cohort": cohort, "local_steps": 10, "batch_size": 10, "eval_every": 5}
            cells.append(
                Cell(f"{column} {row}", simulation(method, federation, run, tune=grid(arguments, LRS)), row, column)
            )
    return cells


def table2(profile: str) -> list[Cell]:
    """The four cosines of the Mime ablation, on the local path of FedAvg and on that of Mime."""
    pairs = {
        "A vs C (not correcting A)": "A, C",
        "A-B+C vs C (using -B+C to correct A as Mime)": "A-B+C, C",
        "A-B vs C (only using -B to correct A)": "A-B, C",
        "A vs B (not correcting A)": "A, B",
    }
    settings = {
        "quick": {
            "FEMNIST": ({"source": "digit-domains", "partition": ["ByOwner", {"parts": 2}], "model": MLP}, 0.1, 10),
            "CIFAR-10": ({**_DIGITS, "clients": 10, "partition": _DIRICHLET[0.3]}, 0.1, 10),
        },
        "paper": {
            "FEMNIST": ({"source": "femnist", "partition": ["ByOwner", {}], "model": "femnist_cnn"}, 0.02, 20),
            "CIFAR-10": (
                {"source": "cifar10", "clients": 100, "partition": _DIRICHLET[0.3], "model": "resnet18_gn"},
                0.2,
                32,
            ),
        },
    }[profile]
    cells = []
    for dataset, (federation, lr, batch) in settings.items():
        for path in ("FedAvg", "Mime"):
            for method, pair in pairs.items():
                run = {"rounds": 10, "lr": lr, "batch_size": batch, "eval_every": 10}
                spec = {
                    "study": "mime",
                    "method": [path, {}],
                    "federation": federation,
                    "run": run,
                    "steps": 40,
                    "pair": pair,
                }
                source = printed("seed000_table2.csv", dataset=dataset, method=method)
                cells.append(Cell(f"{dataset} {path} {pair}", spec, pair, f"{dataset}, path of {path}", source))
    return cells


_SMALL = "Small scale: 8x8 digits and five domains of digits, an MLP or a small CNN, {}; six settings tuned per method."
_SEARCHED = (
    "Chosen on validation data with {2} seeds of their own: five learning rates times three values of the method's own "
    "parameter, two seeds and {0} each, growing at their ends; the best {1} again {3}."
)
_PAPER = "The source's data and models; what it leaves open is chosen as listed."
TABLES = [
    Table(
        "fedup-table1", "What each method can handle, as far as it can be counted or measured", "S000", table1,
        {"quick": _SMALL.format("50 clients, 5 or 1 a round, 40 rounds"), 
         "paper": "As quick: the source gives no setting."},
        (("what a tick means", "state and traffic are counted; skew and participation measured as accuracy"),),
        proposed="FedUp", unit="as the column says",
    ),
    Table(
        "fedup-table2", "Cosines of the Mime ablation", "S000", table2,
        {"quick": "Small scale: 10 clients, all of them, an MLP, round 10, steps 1 to 40.",
         "paper": "Round 10, all clients."},
        (("local path, round, C", "both paths; round 10; full gradients of all clients"),), unit="cosine",
    ),
    Table(
        "fedup-table4", "Accuracy of ten methods by heterogeneity", "S000", table4,
        {"quick": "8x8 digits and five domains of digits; 50 clients, 5 a round, 10 local steps, 40 rounds, an MLP. "
         + _SEARCHED.format("15 rounds", "three", "five", "in full"),
         "desk": "CIFAR-10 with 100 clients, 10 % a round, one epoch of batches of 32, 300 rounds, a CNN with 16 and "
         "32 channels (the source: ResNet18, 1,500 rounds); MNIST by its 539 writers. "
         + _SEARCHED.format("30 rounds", "two", "two", "for 120"),
         "paper": _PAPER},
        LEFT_OPEN, proposed="FedUp",
    ),
    Table(
        "fedup-figure1", "Curves of Table 4", "S000", table4,
        dict.fromkeys(("quick", "desk", "paper"), "The recorded curves of Table 4's cells."),
        figure=True, axis="round", drawn_from="fedup-table4", proposed="FedUp",
    ),
    Table(
        "fedup-table5", "Accuracy under small participation", "S000", table5,
        {"quick": _SMALL.format("100 clients, 1, 2 and 4 a round, 60 rounds"), "paper": _PAPER},
        (*LEFT_OPEN, ("rounds", "those of Table 4")), proposed="FedUp",
    ),
    Table(
        "fedup-figure2", "Many clients a round", "S000", figure2,
        {"quick": _SMALL.format("100 clients, 15 and 30 a round, 30 rounds"), "paper": _PAPER},
        LEFT_OPEN, figure=True, axis="round", proposed="FedUp",
    ),
    Table(
        "fedup-figure3", "A text task, one client per role", "S000", figure3,
        {"quick": "Small scale: made-up roles, an LSTM of width 32, 30 rounds; four settings tuned.", "paper": _PAPER},
        (("rate, batch, rounds, participation", "1.0, 10, 300, 10 %"),), figure=True, axis="round", proposed="FedUp",
    ),
]  # fmt: skip


def _lead(row: str, base: str, *settings: str, dataset: str = _CIFAR10) -> str:
    """The printed leads of one row over another in Table 4, in points."""
    pairs = [
        [printed("seed000_table4.csv", dataset=dataset, setting=setting, method=name) for name in (row, base)]
        for setting in settings
    ]
    return ", ".join(f"{a - b:+.2f}" for a, b in pairs if a is not None and b is not None)


_SKEWED = {"quick": ("digits, q=0.1", "digits, q=0.3"), "desk": ("CIFAR-10, q=0.3", "CIFAR-10, q=0.6")}
_RIVALS = [row for row in ROWS if row not in ("FedUp", "FedAvg", "FedAvg + server momentum")]
_TEN = ("q=0.3, 10% sampling", "q=0.6, 10% sampling")


def _asked(row: str, base: str, columns: dict[str, tuple[str, ...]]) -> dict[str, list[Question]]:
    return {profile: [(row, base, column) for column in names] for profile, names in columns.items()}


CLAIMS = [
    Claim(
        "fedup-skew", "S000", "Table 4", "FedUp is more accurate than FedAvg where clients have different labels",
        f"{_lead('FedUp', 'FedAvg', *_TEN)} points (CIFAR-10, q = 0.3 and 0.6)", "fedup-table4",
        _asked("FedUp", "FedAvg", _SKEWED),
    ),
    Claim(
        "fedup-owners", "S000", "Table 4",
        "FedUp is more accurate than FedAvg where each client is a writer (quick: holds one domain of digits)",
        f"{_lead('FedUp', 'FedAvg', 'non-IID, 10% sampling', dataset=_FEMNIST)} points (FEMNIST)", "fedup-table4",
        _asked("FedUp", "FedAvg", {"quick": ("five domains of digits",), "desk": ("MNIST by writer",)}),
    ),
    Claim(
        "fedup-iid", "S000", "Table 4", "FedUp is more accurate than FedAvg where clients do not differ",
        f"{_lead('FedUp', 'FedAvg', 'IID, 10% sampling')} points (CIFAR-10)", "fedup-table4",
        _asked("FedUp", "FedAvg", {"quick": ("digits, IID",), "desk": ("CIFAR-10, IID",)}),
    ),
    Claim(
        "fedup-best", "S000", "Table 4", "FedUp is more accurate than each of its eight rivals at q = 0.3",
        f"{_lead('FedUp', 'FedSMOO', _TEN[0])} (FedSMOO) to {_lead('FedUp', 'STEM', _TEN[0])} (STEM) points",
        "fedup-table4",
        {
            "quick": [("FedUp", rival, "digits, q=0.3") for rival in _RIVALS],
            "desk": [("FedUp", rival, "CIFAR-10, q=0.3") for rival in _RIVALS],
        },
    ),
    Claim(
        "fedup-momentum", "S000", "§6.2.3",
        "Momentum alone does not explain the gain: FedUp is more accurate than FedAvg with momentum at the server",
        "not compared; argued in words", "fedup-table4", _asked("FedUp", "FedAvg + server momentum", _SKEWED),
    ),
    Claim(
        "fedprox-error", "S000", "§5.2", "FedProx does not lower FedAvg's error",
        f"argued in words; Table 4 prints {_lead('FedProx', 'FedAvg', *_TEN)} points", "fedup-table4",
        _asked("FedProx", "FedAvg", _SKEWED), "not better", 1.0,
    ),
    Claim(
        "fedup-communication", "S000", "Table 1", "FedUp needs no additional communication", "a tick",
        settled=(
            "holds in part",
            "uploads are FedAvg's; a client that was not in the last cohort downloads the previous model as well",
            "tests/test_costs.py::test_a_method_costs_what_its_rule_says",
        ),
    ),
    Claim(
        "fedup-estimate", "S000", "Theorem 1", "FedUp's estimate of the global gradient becomes exact as α tends to 0",
        "a bound that tends to 0",
        settled=(
            "does not hold",
            "the estimate itself tends to 0 with α, so that its relative error tends to 100 %; it is unbiased at "
            "α = 1/K",
            "tests/test_theorems_03.py::test_thm_linear_estimator_unbiased_points_and_the_limit_of_small_alpha",
        ),
    ),
]  # fmt: skip
