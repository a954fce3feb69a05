"""The playground of sub-models: which neurons each method assigns to each client, and where the updates conflict.

A network 2-8-6-6 learns six classes of points in the plane.  As in the playground, one JavaScript module,
`submodels.js`, computes and draws the picture by the update rules of the package, and a test compares the numbers; this
module defines the problem and computes its numbers with the package itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedcore import algorithms, rng
from fedcore.algorithms.method import Method
from fedcore.algorithms.submodels import Submodel
from fedcore.data.partitions import ByOwner
from fedcore.history import History
from fedcore.objective.federation import Federation
from fedcore.objective.making import federation
from fedcore.run import Probe, simulate
from fedcore.support import checks

from . import still
from .base import Live, look, usual
from .playground import within

METHODS = ("FedAvg", "HeteroFL", "FederatedDropout", "FedRolex", "FedDSE", "FedGSE")
"""The methods of this playground."""

RANGES = {
    "ratio": (0, 1, "above"), "temperature": (0, 10), "lr": (0, 10, "above"), "local_steps": (1, 50, "whole"),
    "rounds": (1, 60, "whole"), "seed": (0, 10**6, "whole"),
}  # fmt: skip
"""Lowest and highest value of each number, as in `playground.RANGES`."""

SIDES = ("outgoing", "incoming")
CLASSES = "ABCDEF"
DEALT = ("AB", "CD", "EF", "BC", "DE", "FA")  # the classes of the first client, the second, ...
SIZES = (2, 8, 6, 6)  # inputs, two hidden layers, classes
TRAIN, PUBLIC, TEST = 8, 4, 16  # samples per class: of each client, of the server, for testing
SERVER, TESTER = 100, 101  # the owners of the public and the test samples
RADIUS, SPREAD = 2.0, 0.45  # of the circle of class centres; standard deviation of a class


def submodel_playground(
    clients: int | Sequence[str] = 3,
    method: str | Method = "FedDSE",
    *,
    ratio: float = 0.5,
    temperature: float = 0.0,
    lr: float = 0.3,
    local_steps: int = 5,
    rounds: int = 20,
    side: str = "outgoing",
    seed: int = 0,
    name: str = "submodels",
    caption: str = "",
) -> SubmodelPlayground:
    """An interactive picture of a small network: which clients train which neurons, and where their updates conflict.

    clients: a number from 2 to 6 with default classes, or the classes of each client out of A to F, such as
    `["AB", "CD"]`.  method: one of `METHODS` of this module by name, or a method such as `fc.FedDSE(0.25)`.  ratio: the
    share of each hidden layer that a client trains, in (0, 1] (FedAvg trains all).  temperature: of FedDSE.  A method
    that is no name has its own ratio and temperature, and these two are not read.  lr,
    local_steps, rounds, seed: as in `simulate`, on full local batches; the seed also determines data and initial
    weights.  side: the weights of a neuron whose updates are compared, "outgoing" or "incoming" (with its bias).  name:
    the id of the picture in addresses, for pages with several pictures.  caption: the text below the picture.

    The conflict of a neuron is the cosine of two clients' updates of its weights, -1 for opposite directions (FedDSE
    study 2024, section 3.1.2); with more than two clients it is the mean over the pairs that both train the neuron.

    Raises ValueError or TypeError with the value, the allowed range and the remedy.
    """
    state = {"clients": clients, "method": method, "ratio": ratio, "temperature": temperature, "lr": lr,
             "local_steps": local_steps, "rounds": rounds, "side": side, "seed": seed}  # fmt: skip
    return SubmodelPlayground(state, name, caption)


class SubmodelPlayground(Live):
    """A playground of sub-models: its settings as attributes (`pg.ratio = 0.25`), its numbers and its picture."""

    scripts, styles, classes = ("submodels.js",), ("submodels.css",), "fc-pg pg-net"

    def __repr__(self) -> str:
        return f"SubmodelPlayground({' '.join(self.clients)}, {self.algorithm()!r}, lr={self.lr:g})"

    @staticmethod
    def checked(given: Mapping[str, Any]) -> dict[str, Any]:
        """The validated state in plain Python types.  Raises the errors of `fc.submodel_playground`."""
        s = {"clients": _clients(given["clients"]), **_method(given)}
        s |= {name: within(name, given[name], RANGES[name]) for name in ("lr", "local_steps", "rounds")}
        s["side"] = checks.choice("side", given["side"], SIDES)
        s["seed"] = within("seed", given["seed"], RANGES["seed"])
        return s

    # --- numbers ----------------------------------------------------------------------------------------------------

    @property
    def federation(self) -> Federation:
        """The clients' data and the network as a federation in float64, with public data for FedGSE."""
        return _federation(tuple(self.clients), self.seed)

    def algorithm(self, method: str | None = None) -> Method:
        """The displayed method, or another of `METHODS` with the same settings."""
        name = checks.choice("method", method or self.method, METHODS)
        given = () if name == "FedAvg" else (self.ratio,)
        return getattr(algorithms, name)(*given, **({"temperature": self.temperature} if name == "FedDSE" else {}))

    def history(self, method: str | None = None, *probes: Probe) -> History:
        """The run of the displayed method, or of another, by `fc.simulate` on `federation`."""
        run = {"rounds": self.rounds, "lr": self.lr, "local_steps": self.local_steps, "seed": self.seed}
        return simulate(self.algorithm(method), self.federation, batch_size=None, probes=probes, progress=False, **run)

    def numbers(self, method: str | None = None) -> dict[str, np.ndarray]:
        """The numbers in the picture, for R rounds, n clients and the 14 hidden neurons in the order of the layers.

        `kept [R, n, 14]`: whether a client trains a neuron.  `conflict [R, 14]`: the mean cosine of the updates of a
        neuron over the pairs of clients that both train it, NaN without such a pair.  `shared [R]`: the mean share of
        a client's neurons that a second client trains too.  `cosine [R]`: the mean cosine of two clients' whole
        updates, without the classifier's bias, which belongs to no neuron.  `accuracy [R + 1]`: of the server's model,
        on the classes of all clients.  `params [d]`: the last model.
        """
        seen: list[tuple[np.ndarray, np.ndarray]] = []

        def look(r: Any, y: Tensor) -> dict[str, Any]:
            kept = r.kept if "kept" in r.rows else torch.ones_like(y, dtype=torch.bool)
            seen.append((kept.numpy(), torch.where(kept, y - r.x, 0).numpy()))
            return {}

        history = self.history(method, look)
        kept, updates = (np.stack(parts) for parts in zip(*seen, strict=True))
        return {
            "kept": kept[..., HIDDEN_BIASES], **_conflict(kept, updates, self.side),
            "accuracy": history.curve("accuracy")[1], "params": history.params.numpy(),
        }  # fmt: skip

    # --- the picture ------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The data for the page's script: the state, and the label and colour of each method."""
        looks = {name: look(name) | {"label": usual(name)} for name in METHODS}
        return super().config() | {"methods": looks, "clients": still.CLIENTS}

    def alt(self) -> str:
        """The alt text: the trained neurons of the first round, and the conflicts between clients."""
        return f"{self._words()} A network of 2 inputs, 8 and 6 hidden neurons, and 6 classes; {self._setting()}"

    def _setting(self) -> str:
        part = "all" if self.method == "FedAvg" else f"{self.ratio:g} of each layer"
        return f"clients with the classes {', '.join(self.clients)}, each training {part}."

    def _words(self) -> str:
        found = self.numbers()
        trained = found["kept"][0].sum(0)
        conflict = found["conflict"][0]
        return (
            f"{usual(self.method)}, round 1 of {self.rounds}: {(trained > 0).sum()} of {trained.size} hidden neurons "
            f"are trained, {(trained > 1).sum()} by several clients; at {(conflict < 0).sum()} of these their updates "
            f"pull apart. Accuracy after round {self.rounds}: {100 * found['accuracy'][-1]:.0f}%."
        )

    def still(self) -> str:
        """The HTML shown before the script runs and in pages without scripts, drawn from the package's numbers."""
        found = self.numbers()
        kept, conflict = found["kept"][0], found["conflict"][0]
        legend = [f"client {i + 1}: {classes}" for i, classes in enumerate(self.clients)]
        return still.svg_of_network(SIZES, kept, conflict, legend, self.alt(), self._words())


# ------------------------------------------------------------------------------------------------- the problem


@lru_cache(maxsize=4)
def _federation(clients: tuple[str, ...], seed: int) -> Federation:
    held = sorted(set("".join(clients)))
    parts = [(i, label) for i, classes in enumerate(clients) for label in classes]
    x, y = _samples(seed, parts, TRAIN)
    test_x, test_y = _samples(seed, [(TESTER, label) for label in held], TEST)
    arrays = {"train_images": x, "train_labels": y, "train_owner": np.repeat([i for i, _ in parts], TRAIN)}
    arrays |= {"test_images": test_x, "test_labels": test_y}
    fed = federation(arrays, partition=ByOwner(), model=_network, dtype=torch.float64, start=_start(seed), device="cpu")
    return fed.with_public(*_samples(seed, [(SERVER, label) for label in held], PUBLIC))


def _samples(seed: int, parts: Sequence[tuple[int, str]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points `[N, 2]` and labels `[N]`: `count` samples for each pair (owner, class)."""
    labels = np.array([CLASSES.index(label) for _, label in parts])
    turns = labels * math.pi / 3
    centres = RADIUS * np.stack([np.cos(turns), np.sin(turns)], 1)
    owners = np.array([owner for owner, _ in parts])[:, None, None]
    points = _normal(seed, owners, labels[:, None, None], np.arange(count)[:, None], np.arange(2))
    return (centres[:, None] + SPREAD * points).reshape(-1, 2), labels.repeat(count)


def _network(shape: Sequence[int], classes: int) -> nn.Module:
    """The network, which has six outputs whatever classes the clients have."""
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(SIZES)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def _places() -> list[tuple[slice, slice]]:
    """The slices of the flat vector with the weights `[b, a]` and the biases `[b]` of each layer."""
    places, at = [], 0
    for a, b in itertools.pairwise(SIZES):
        places.append((slice(at, at + a * b), slice(at + a * b, at + a * b + b)))
        at += a * b + b
    return places


PLACES = _places()
HIDDEN_BIASES = np.r_[PLACES[0][1], PLACES[1][1]]  # a hidden neuron is kept if its bias is kept


def _start(seed: int) -> Tensor:
    """The initial parameters `[d]`: weights of variance 2 / fan-in, biases of standard deviation 0.1."""
    scales = [np.repeat([math.sqrt(2 / a), 0.1], [a * b, b]) for a, b in itertools.pairwise(SIZES)]
    scale = np.concatenate(scales)
    return torch.as_tensor(scale * _normal(seed, np.arange(len(scale)), purpose=rng.INIT))


def _normal(seed: int, *parts: Any, purpose: int = rng.DATA) -> np.ndarray:
    """Approximately normal numbers with mean 0 and variance 1: sums of four uniforms from hashes of (seed, purpose,
    parts).

    The page's script draws the same bits, because no function is used that processors round differently.
    """
    bits = rng.words(seed, purpose, *parts)
    return math.sqrt(3) * (
        sum((bits >> np.uint64(16 * k) & np.uint64(0xFFFF)) / 65536.0 for k in range(4)) + 2**-15 - 2
    )


def _conflict(kept: np.ndarray, updates: np.ndarray, side: str) -> dict[str, np.ndarray]:
    """`conflict [R, 14]`, `shared [R]` and `cosine [R]` from masks and updates `[R, n, d]`; see `numbers`."""
    neurons = kept[..., HIDDEN_BIASES]
    first, second = np.triu_indices(kept.shape[1], 1)
    cosines = []
    for layer in (0, 1):
        (weights, bias), (after, _) = PLACES[layer : layer + 2]
        width = SIZES[layer + 1]
        if side == "incoming":
            rows = updates[..., weights].reshape(*updates.shape[:2], width, -1)
            parts = np.concatenate([rows, updates[..., bias, None]], -1)
        else:
            parts = updates[..., after].reshape(*updates.shape[:2], -1, width).swapaxes(2, 3)
        cosines.append(_cosine(parts[:, first], parts[:, second]))
    pairs = np.concatenate(cosines, -1)
    pairs = np.where(neurons[:, first] & neurons[:, second], pairs, np.nan)
    whole = _cosine(*(updates[:, rows, : PLACES[-1][1].start] for rows in (first, second)))
    both = (neurons[:, first] & neurons[:, second]).sum(-1) / neurons[:, first].sum(-1)
    return {"conflict": _mean(pairs), "shared": both.mean(-1), "cosine": _mean(whole)}


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The cosine of vectors along the last axis; NaN if one of them is zero."""
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.divide((a * b).sum(-1), lengths, out=np.full(lengths.shape, np.nan), where=lengths > 1e-24)


def _mean(values: np.ndarray) -> np.ndarray:
    """The mean over axis 1 without NaN; NaN if all entries are NaN."""
    return np.ma.masked_invalid(values).mean(1).filled(np.nan)


# ------------------------------------------------------------------------------------------------- checks


def _clients(value: Any) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        hint = "a number of clients, or the classes of each, such as ['AB', 'CD']"
        return list(DEALT[: checks.integer("clients", value, 2, 6, hint=hint)])
    checks.integer("len(clients)", len(value), 2, 6)
    for i, classes in enumerate(value):
        if not isinstance(classes, str) or not classes or set(classes) - set(CLASSES):
            raise ValueError(f"clients[{i}]={checks.brief(classes)}; use some of the letters A to F, such as 'AB'")
    return ["".join(sorted(set(classes))) for classes in value]


def _method(given: Mapping[str, Any]) -> dict[str, Any]:
    """Name, ratio and temperature, read from the method if one is given in place of a name."""
    method, settings = given["method"], {key: given[key] for key in ("ratio", "temperature")}
    name = method if isinstance(method, str) else type(method).__name__
    if name not in METHODS:
        raise ValueError(f"method={checks.brief(method)}; use one of {', '.join(METHODS)}")
    if isinstance(method, Submodel):
        settings["ratio"] = method.smallest
        settings["temperature"] = getattr(method, "temperature", settings["temperature"])
    ratio, temperature = (within(name, settings[name], RANGES[name]) for name in ("ratio", "temperature"))
    if not isinstance(method, str):
        given = {"FedAvg": {}, "FedDSE": {"capacities": ratio, "temperature": temperature}}
        if method != getattr(algorithms, name)(**given.get(name, {"capacities": ratio})):
            takes = {"FedAvg": "no parameter", "FedDSE": "one ratio and a temperature"}.get(name, "one ratio")
            raise ValueError(f"method={method!r}, but the playground's {name} takes {takes}; leave the others")
    return {"method": name, "ratio": ratio, "temperature": temperature}
