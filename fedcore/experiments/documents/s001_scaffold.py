"""The SCAFFOLD page (S001): its one figure, whose curves are invented there, drawn from runs here."""

from __future__ import annotations

from ..cells import Cell
from ..claims import Claim, Question
from ..table import Table
from .s000_fedup import table4

ROWS = ("FedAvg", "FedAvg + server momentum", "FedProx", "SCAFFOLD")
COLUMNS = {
    "quick": ("digits, q=0.1", "digits, q=0.3"),
    "desk": ("CIFAR-10, q=0.3", "FEMNIST, 105 writers", "MNIST by writer"),
    "paper": ("CIFAR-10 q=0.3", "FEMNIST"),
}


def figure(profile: str) -> list[Cell]:
    """FedAvg, FedProx and SCAFFOLD against rounds: the cells of the FedUp study's Table 4, which trains all of them."""
    return [cell for cell in table4(profile) if cell.row in ROWS and cell.column in COLUMNS[profile]]


TABLES = [
    Table(
        "scaffold-figure", "SCAFFOLD against FedAvg and FedProx by round", "S001", figure,
        dict.fromkeys(
            COLUMNS, "Curves of the FedUp study's Table 4. The page's own curves are invented ('simulated'): they are "
            "an illustration, not results.",
        ),
        (("data, model, everything", "those of the FedUp study's Table 4"),),
        figure=True, axis="round", drawn_from="fedup-table4", proposed="SCAFFOLD",
    )
]  # fmt: skip


def _asked(rival: str) -> dict[str, list[Question]]:
    columns = {"quick": ("digits, q=0.1", "digits, q=0.3"), "desk": ("CIFAR-10, q=0.3", "CIFAR-10, q=0.6")}
    return {profile: [("SCAFFOLD", rival, column) for column in names] for profile, names in columns.items()}


CLAIMS = [
    Claim(
        "scaffold-accuracy", "S001", "Figure",
        "SCAFFOLD is more accurate than FedAvg where clients have different labels",
        "an invented curve, +24 points at round 100", "fedup-table4",
        _asked("FedAvg"),
    ),
    Claim(
        "scaffold-fedprox", "S001", "Figure",
        "SCAFFOLD is more accurate than FedProx where clients have different labels",
        "an invented curve, +6 points at round 100", "fedup-table4",
        _asked("FedProx"),
    ),
    Claim(
        "scaffold-limit", "S001", "Why it works",
        "SCAFFOLD removes the drift that local steps cause", "an argument in words",
        settled=(
            "holds",
            "on quadratics its limit is the optimum for every number of local steps; FedAvg's is another point",
            "tests/test_theorems_02.py::test_scaffold_reaches_its_fixed_point_and_fedavg_another_one",
        ),
    ),
    Claim(
        "scaffold-control", "S001", "Server update",
        "c is the mean of all clients' control variates", "the printed update",
        settled=(
            "does not hold",
            "with m of n clients a round the printed update makes c n/m times that mean; the factor |S|/n is missing",
            "tests/test_theorems_02.py::test_thm_literal_scale",
        ),
    ),
    Claim(
        "scaffold-upload", "S001", "Communication",
        "SCAFFOLD doubles the communication of a round", "a count",
        settled=(
            "holds in part",
            "downloads double; the server can compute the second upload from the first, so d + 1 numbers suffice",
            "tests/test_theorems_02.py::test_the_server_can_compute_the_second_upload_itself",
        ),
    ),
]  # fmt: skip
