"""`cite`: the BibTeX of the methods, data and models that were used, from the book's own bibliography."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")

# Name in code (case does not matter) -> keys of references.bib.
WORKS: dict[str, tuple[str, ...]] = {
    "FedAvg": ("mcmahan2017fedavg",),
    "FedSGD": ("mcmahan2017fedavg",),
    "FedSMB": ("nasirigerdeh2020fedsmb",),
    "FedProx": ("li2020fedprox",),
    "SCAFFOLD": ("karimireddy2020scaffold",),
    "FedUp": ("wan2024fedup",),
    "FedAvgM": ("hsu2019measuring",),  # FedAvg(server_momentum > 0)
    "FedCM": ("xu2021fedcm",),
    "Mime": ("karimireddy2020mime",),
    "MimeLite": ("karimireddy2020mime",),
    "FedDyn": ("acar2021feddyn",),
    "FedDC": ("gao2022feddc",),
    "FedSplit": ("pathak2020fedsplit",),
    "STEM": ("khanduri2021stem",),
    "FedSMOO": ("sun2023fedsmoo",),
    "FedPVR": ("li2023fedpvr",),
    "FedSAM": ("qu2022fedsam",),
    "MOON": ("li2021moon",),
    "FedBN": ("li2021fedbn",),
    "FedALA": ("zhang2023fedala",),
    "FeatureShift": ("zhao2024feature",),  # the study of chapter 7
    "RandAugment": ("cubuk2020randaugment",),
    "DPSGD": ("lian2017dpsgd",),
    "DFedAvg": ("sun2023dfedavg",),
    "DFedAvgM": ("sun2023dfedavg",),
    "DFedSAM": ("shi2023dfedsam",),
    "DFedGAM": ("fang2025dfedgam", "zhang2023gam"),
    "GAM": ("zhang2023gam",),
    "SAM": ("foret2021sam",),
    "Exponential": ("ying2021exponential",),
    "Metropolis": ("xiao2007metropolis",),
    "DirectedRandom": ("dai2022dispfl",),
    "HeteroFL": ("diao2021heterofl",),
    "FjORD": ("horvath2021fjord",),
    "FederatedDropout": ("caldas2018dropout",),
    "FedRolex": ("alam2022fedrolex",),
    "DepthFL": ("kim2023depthfl",),
    "FedDSE": ("jia2024submodels",),
    "FedGSE": ("jia2024submodels",),
    "Dirichlet": ("hsu2019measuring",),
    "Shards": ("mcmahan2017fedavg",),
    "digits": ("alpaydin1998digits", "pedregosa2011sklearn"),
    "MNIST": ("lecun1998mnist",),
    "FashionMNIST": ("xiao2017fashion",),
    "EMNIST": ("cohen2017emnist",),
    "CIFAR10": ("krizhevsky2009cifar",),
    "CIFAR100": ("krizhevsky2009cifar",),
    "SVHN": ("netzer2011svhn",),
    "USPS": ("hull1994usps",),
    "MNIST-M": ("ganin2016dann",),
    "SynthDigits": ("ganin2016dann",),
    "digit-domains": ("alpaydin1998digits", "pedregosa2011sklearn", "ganin2016dann"),
    "digits-five": ("li2021fedbn", "ganin2016dann", "lecun1998mnist", "netzer2011svhn", "hull1994usps"),
    "FEMNIST": ("caldas2018leaf", "cohen2017emnist"),
    "Shakespeare": ("caldas2018leaf", "mcmahan2017fedavg"),
    "TinyImageNet": ("le2015tiny",),
    "LEAF": ("caldas2018leaf",),
    "ResNet18-GN": ("he2016resnet", "wu2018groupnorm"),
    "GroupNorm": ("wu2018groupnorm",),
    "FedML": ("he2020fedml",),
    "torch": ("paszke2019pytorch",),
}


@cache
def _bibliography() -> dict[str, str]:
    """The entries of the bibliography as BibTeX, by key."""
    try:
        from pybtex.database import parse_file
    except ImportError as e:
        raise ImportError("fc.cite reads the bibliography with pybtex; pip install pybtex") from e
    return {key: entry.to_string("bibtex").strip() for key, entry in parse_file(BIBLIOGRAPHY).entries.items()}


def cite(*names: object) -> BibTeX:
    """BibTeX entries of what was used, each once, in the order asked for; a cell that ends in it prints them.

    `names` are methods, data sets, partitions, models or software by their name in the contract
    (`cite("FedUp", "digits")`; case, blanks, `-` and `_` do not matter), or the objects and classes
    themselves (`cite(fc.FedUp(alpha=0.05))`). A FedAvg with server momentum also cites the paper that
    introduced it.

    Raises ValueError for an unknown name, listing the known ones, and for a call without names.
    """
    known = {_plain(name): keys for name, keys in WORKS.items()}
    if not names:
        raise ValueError(f"cite() needs at least one name; known names: {', '.join(WORKS)}")
    keys: dict[str, None] = {}
    for item in names:
        name = item if isinstance(item, str) else getattr(item, "__name__", type(item).__name__)
        if _plain(name) not in known:
            raise ValueError(f"cite() does not know {name!r}; known names: {', '.join(WORKS)}")
        keys |= dict.fromkeys(known[_plain(name)])
        if not isinstance(item, str) and getattr(item, "server_momentum", 0):
            keys |= dict.fromkeys(WORKS["FedAvgM"])
    return BibTeX("\n\n".join(_bibliography()[key] for key in keys))


class BibTeX(str):
    """Text that a notebook or a prompt shows as it is, line by line, when it is the value of a cell."""

    __slots__ = ()
    __repr__ = str.__str__


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()
