"""A definitions file to begin with: a method of the user beside ten baselines, searched alike."""

from __future__ import annotations

import importlib.util
import keyword
import sys
from pathlib import Path
from string import Template

from .documents.definitions import tables
from .studies import user_files

_PROFILES = {
    "quick": {
        "source": '"digits", "clients": 50', "model": "protocol.MLP", "short": "15", "seeds": "10",
        "run": '{"rounds": 40, "cohort": 5, "local_epochs": 4, "batch_size": 10, "eval_every": 5}',
        "caption": "8x8 digits, Dirichlet 0.3, 50 clients, 5 a round, 4 epochs, 40 rounds, an MLP.",
    },
    "desk": {
        "source": '"cifar10", "clients": 100', "model": '"cifar_cnn"', "short": "[30, 120]", "seeds": "5",
        "run": '{"rounds": 300, "cohort": 0.1, "local_epochs": 1, "batch_size": 32, "eval_every": 10}',
        "caption": "CIFAR-10, Dirichlet 0.3, 100 clients, 10 a round, one epoch, 300 rounds, a small CNN.",
    },
}  # fmt: skip
_TEXT = Template('''\
"""$title beside ten baselines: every method searched alike on validation data, $seeds seeds, paired comparisons."""

from dataclasses import dataclass

import fedcore as fc
from fedbook import Table
from fedbook.documents import protocol


@dataclass(frozen=True)
class $title(fc.Method):
    """Replace this rule by yours: FedAvg with every client's update cut to length `longest`."""

    longest: float = 1.0

    # direction(self, G, y, r) is a local step's: y <- y - lr * direction.  prepare(self, r) comes before the first one.
    # client_state = ("h",) keeps a vector for each client, start(self, x) gives the server further ones.
    def aggregate(self, r, y):
        delta = y - r.x  # one row per client of the cohort
        shorter = (self.longest / delta.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
        return {"x": r.x + r.server_lr * r.mean(shorter * delta)}


# the values that the search starts from; limits={"longest": [0, 5]} would keep it between these
ROWS = {"$title": protocol.Row("$name.py:$title", searched={"longest": [0.3, 1.0, 3.0]}), **protocol.BASELINES}
# a model, a partition or data of yours: "file.py:Name" or ["file.py:Name", {arguments}], seen from this file's folder
FEDERATION = {"source": $source, "partition": ["Dirichlet", {"q": 0.3}], "model": $model}
# epochs: clients take unequal numbers of local steps, as FedNova supposes
RUN = $run


def cells(profile):
    return protocol.searched_cells(profile, "q=0.3", FEDERATION, RUN, $short, ROWS, seeds=$seeds)


CAPTIONS = {"$profile": "$caption"}
TABLES = [Table("$name", "$title beside ten baselines", "your own", cells, CAPTIONS, proposed="$title")]
''')


def write(name: str, profile: str, folder: Path) -> Path:
    """Write `NAME.py` with a method and its table, called NAME; returns the file.

    Raises ValueError for a name that is no Python identifier, belongs to a table or a row of the baselines, is a word
    of the command or a module that Python would import, for a profile without a template, and where the file exists.
    """
    from fedcore import algorithms

    from .documents.protocol import BASELINES

    title = name[:1].upper() + name[1:]
    if not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_":
        raise ValueError(f"{name!r} cannot name a module; use letters, digits and _, such as FedNew")
    taken = {*tables(), *algorithms.__all__, *BASELINES, "Table", "all", "list", "new", "report"}
    if {name, title} & taken:
        raise ValueError(f"{name!r} is taken by the package; choose another name")
    file = folder / f"{name}.py"
    if not file.exists() and _is_importable(name):
        raise ValueError(f"{file} would hide the module {name}, which Python imports; choose another name")
    if profile not in _PROFILES:
        raise ValueError(f"profile {profile!r} has no template; use one of {', '.join(_PROFILES)}")
    text = _TEXT.substitute(_PROFILES[profile], name=name, title=title, profile=profile)
    try:
        with open(file, "x", encoding="utf-8") as f:
            f.write(text)
    except FileExistsError as e:
        raise ValueError(f"{file} exists and is left as it is; choose another name") from e
    return file


def _is_importable(name: str) -> bool:
    """Whether a module has this name, in letters of either case: some systems take `Torch.py` for `torch.py`."""
    if name.lower() in {known.lower() for known in sys.stdlib_module_names}:
        return True
    try:
        found = [importlib.util.find_spec(one) for one in {name, name.lower()}]
    except (ImportError, ValueError):  # one that is there and broken
        return True
    return any(spec is not None and str(Path(spec.origin or "").parent) not in user_files.ADDED for spec in found)
