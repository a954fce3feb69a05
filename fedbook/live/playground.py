"""The playground: federated methods on interactive problems with two parameters, in a page or in Jupyter.

One JavaScript module, `playground.js`, computes and draws the picture by the same update rules as the package (a test
compares the numbers).  This module defines the problem, computes its numbers with the package itself, and draws the
static picture for pages without scripts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedcore import algorithms
from fedcore.algorithms.method import Method
from fedcore.history import Diverged, History
from fedcore.objective.quadratic import Quadratic
from fedcore.run import Probe, simulate
from fedcore.support import checks
from fedcore.topology import Complete, Graph, Ring, Topology

from . import still
from .base import Live, look
from .logistic import Logistic

METHODS = {
    "FedAvg": {}, "FedProx": {"mu": 0.5}, "SCAFFOLD": {}, "FedUp": {"alpha": 0.05}, "FedDyn": {"alpha": 0.3},
    "FedDC": {"alpha": 0.1}, "Mime": {"beta": 0.5}, "MimeLite": {"beta": 0.5}, "FedSAM": {"rho": 0.2}, "FedNova": {},
    "ProxSkip": {"p": 0.2}, "DFedAvg": {}, "DFedSAM": {"rho": 0.2}, "DFedGAM": {"rho": 0.2}, "DSGT": {},
    "ExactDiffusion": {}, "QGDSGDm": {"beta": 0.5},
}  # fmt: skip
"""The methods of the playground, with the initial values of their sliders."""

RANGES = {
    "lr": (0, 10, "above"), "local_steps": (1, 200, "whole"), "server_lr": (0, 10, "above"), "uneven": (0, 1),
    "rounds": (1, 200, "whole"), "seed": (0, 10**6, "whole"), "place": (-1e3, 1e3), "curvature": (-1e3, 1e3),
    "angle": (-1e4, 1e4), "mu": (0, 1e3), "alpha": (0, 1e3), "beta": (0, 0.999), "rho": (0, 1e3), "p": (0.01, 1),
    "FedDyn": {"alpha": (0, 1e3, "above")},
}  # fmt: skip
"""Lowest and highest value of each number, as in playground.js; "above" excludes the lowest, "whole" fractions."""

TOPOLOGIES = ("ring", "complete", "star", "path")
GOSSIP = ("DFedAvg", "DFedSAM", "DFedGAM", "DSGT", "ExactDiffusion", "QGDSGDm")
DEFAULT_CLIENTS = (
    {"optimum": (-2.2, -0.4), "curvature": (0.4, 2.0), "angle": 55.0},
    {"optimum": (2.1, -1.0), "curvature": (0.2, 2.7), "angle": 75.0},
)

PLACES = ((1.9, 1.4), (-0.8, -1.8), (-2.3, 1.0), (0.9, -2.0), (0.4, 2.1), (2.5, 0.2))  # from the third client on


def playground(
    clients: int | Sequence[Mapping[str, Any]] = 2,
    methods: Sequence[str | Method] = ("FedAvg", "SCAFFOLD"),
    *,
    problem: str = "quadratic",
    start: Sequence[float] = (-1.6, 1.9),
    lr: float = 0.1,
    local_steps: int = 10,
    cohort: int | None = None,
    server_lr: float = 1.0,
    uneven: float = 0.0,
    rounds: int = 30,
    seed: int = 0,
    topology: str = "ring",
    name: str = "playground",
    caption: str = "",
) -> Playground:
    """An interactive picture of the plane in which the reader moves the clients' optima, the start and the ellipses.

    clients: a number from 2 to 8 with default positions, or one mapping per client with `optimum` (x, y), `curvature`
    (along the client's two axes; with a negative or zero one the page states that there is no single minimum) and
    `angle` of the first axis in degrees.  methods: names or methods, such as `["FedAvg", fc.FedProx(mu=0.3)]`, out of
    `METHODS` of this module.  problem: "quadratic", 0.5 (x - b_i)' A_i (x - b_i), or "logistic", the cross-entropy of
    four samples whose labels are probabilities, with the same optimum, and the same curvature at x = 0.

    topology: the graph of methods without a server, "ring", "complete", "star" (client 1 in the middle) or "path".
    These methods, and ProxSkip, take all clients and a server learning rate of 1; ProxSkip draws its local steps.
    start: the initial model (x, y).  lr, local_steps, cohort, server_lr, seed: as in `simulate`.  uneven: client i of n
    takes K (1 - uneven i / (n - 1)) of the K local steps, at least one.  rounds: the number of rounds shown.  name: the
    id of the picture in addresses, for pages with several pictures.  caption: the text below the picture.

    Raises ValueError or TypeError with the value, the allowed range and the remedy.
    """
    state = {"clients": clients, "methods": methods, "problem": problem, "start": start, "lr": lr,
             "local_steps": local_steps, "cohort": cohort, "server_lr": server_lr, "uneven": uneven, "rounds": rounds,
             "seed": seed, "topology": topology}  # fmt: skip
    return Playground(state, name, caption)


class Playground(Live):
    """A playground: its settings as attributes (`pg.clients`, `pg.lr = 0.3`), its numbers and its picture."""

    scripts = ("playground.js",)

    @staticmethod
    def checked(given: Mapping[str, Any]) -> dict[str, Any]:
        """The validated state in plain Python types.  Raises the errors of `fc.playground`."""
        return _checked(given)

    def __repr__(self) -> str:
        return (
            f"Playground({len(self._state['clients'])} clients, {self._state['problem']}, "
            f"{', '.join(map(repr, self.methods.values()))}, lr={self.lr:g}, local_steps={self.local_steps})"
        )

    @property
    def methods(self) -> dict[str, Method]:
        """The displayed methods, by name."""
        graph = {"mixing": graph_of(self._state["topology"], len(self._state["clients"]))}
        return {
            name: getattr(algorithms, name)(**h, **(graph if name in GOSSIP else {}))
            for name, h in self._state["methods"].items()
        }

    # --- the picture ------------------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The data for the page's script: the state, and the style and cost of each method."""
        return super().config() | {"methods": _methods_of_the_page()}

    def alt(self) -> str:
        """The alt text: the result of each method, and the setting."""
        return f"{' '.join(self._told())} The plane of two parameters; {self._setting()}"

    def _setting(self) -> str:
        part = f", {self.cohort} clients per round" if self.cohort else ""
        return f"{len(self._state['clients'])} clients, K = {self.local_steps}, η = {self.lr:g}{part}."

    def _told(self) -> list[str]:
        """A sentence for each method, from its distance to the optimum at the start and at the end."""
        optimum, out = self.optimum(), []
        if optimum is None:
            return ["The clients' mean objective has no single minimum."]
        for name, path in self.paths().items():
            first, last = (float(np.linalg.norm(path[t] - optimum)) for t in (0, -1))
            if not last < 1e6:
                out.append(f"{name} runs away.")
            elif last < 1e-3:
                out.append(f"{name} reaches the optimum within {self.rounds} rounds.")
            else:
                after = f"after {self.rounds} rounds"
                out.append(f"{name} starts {first:.2f} from the optimum and is {last:.2f} from it {after}.")
        return out

    def still(self) -> str:
        """The HTML shown before the script runs and in pages without scripts, drawn from the package's numbers."""
        return still.svg_of_playground(
            self.federation, self.optimum(), self._state["clients"], self.paths(), _methods_of_the_page(), self.alt(),
            self._told(),
        )  # fmt: skip

    # --- numbers ----------------------------------------------------------------------------------------------------

    @property
    def federation(self) -> Quadratic:
        """The problem as a federation of the package, in float64."""
        s = self._state
        b = torch.tensor([c["optimum"] for c in s["clients"]], dtype=torch.float64)
        x0 = torch.tensor(s["start"], dtype=torch.float64)
        l1, l2 = torch.tensor([c["curvature"] for c in s["clients"]], dtype=torch.float64).T
        t = torch.tensor([math.radians(c["angle"]) for c in s["clients"]], dtype=torch.float64)
        u, v = torch.stack([t.cos(), t.sin()], 1), torch.stack([-t.sin(), t.cos()], 1)
        if s["problem"] == "quadratic":
            A = l1[:, None, None] * u[:, :, None] * u[:, None] + l2[:, None, None] * v[:, :, None] * v[:, None]
            return Quadratic(A, b, x0)
        p, q = (8 * l1).sqrt()[:, None] * u, (8 * l2).sqrt()[:, None] * v
        return Logistic(torch.stack([p, q, (p + q) / 2**0.5, (p - q) / 2**0.5], 1), b, x0)

    def optimum(self) -> np.ndarray | None:
        """The minimiser of F `[2]`, or None if F has no unique minimiser."""
        fed = self.federation
        low, high = np.linalg.eigvalsh(fed.A.sum(0).numpy())
        return fed.optimum.numpy() if low > 1e-10 * max(1.0, high) else None

    def _run(self, name: str) -> dict[str, Any]:
        """The run's settings for `simulate`; methods without a server, and ProxSkip, have neither a cohort nor a server
        learning rate."""
        s, everyone = self._state, name in (*GOSSIP, "ProxSkip")
        n = len(s["clients"])
        work = s["local_steps"] * (1 - s["uneven"] * np.arange(n) / (n - 1))
        return {
            "lr": s["lr"], "local_steps": np.floor(work + 0.5).astype(int).clip(1), "seed": s["seed"],
            "cohort": None if everyone else s["cohort"], "server_lr": 1.0 if everyone else s["server_lr"],
        }  # fmt: skip

    def history(self) -> dict[str, History]:
        """Each method's `History` from `fc.simulate` on `federation`; a diverged one ends at its last finite round."""
        fed = self.federation
        return {name: self._history(fed, name, method) for name, method in self.methods.items()}

    def paths(self) -> dict[str, np.ndarray]:
        """Method -> the server's models `[rounds + 1, 2]`, the trajectories in the picture, computed by the package."""
        fed, out = self.federation, {}
        for name, method in self.methods.items():
            points = []
            history = self._history(fed, name, method, lambda r, y, points=points: points.append(r.x) or {})
            out[name] = torch.stack([*points, history.params]).numpy()
        return out

    def _history(self, fed: Quadratic, name: str, method: Method, *probes: Probe) -> History:
        try:
            return simulate(method, fed, rounds=self.rounds, progress=False, probes=probes, **self._run(name))
        except Diverged as e:
            return e.history


def _methods_of_the_page() -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each method, and its cost per client: communication in units of d, and gradients."""
    out = {}
    for name, given in METHODS.items():
        cost = getattr(algorithms, name)(**given).cost()
        out[name] = {
            **look(name), "down": cost.down, "up": cost.up,
            "gradients": cost.gradients + 2 * cost.products, "full": cost.full_gradients,
        }  # fmt: skip
    return out


# ------------------------------------------------------------------------------------------------- checks


def graph_of(name: str, n: int) -> Topology:
    """The graph of n clients with this name and Metropolis weights (1/n for the complete graph)."""
    if name in ("star", "path"):
        return Graph([(0 if name == "star" else i - 1, i) for i in range(1, n)])
    return {"ring": Ring, "complete": Complete}[name]()


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The validated state in plain Python types.  Raises TypeError or ValueError with value, range and remedy."""
    checks.choice("problem", given["problem"], ("quadratic", "logistic"))
    s: dict[str, Any] = {"problem": given["problem"]}
    s["clients"] = _clients(given["clients"], s["problem"])
    s["start"] = _pair("start", given["start"], RANGES["place"])
    s["methods"] = _methods(given["methods"])
    for name in ("lr", "server_lr", "uneven", "local_steps", "rounds", "seed"):
        s[name] = within(name, given[name], RANGES[name])
    s["topology"] = checks.choice("topology", given["topology"], TOPOLOGIES)
    n, cohort = len(s["clients"]), given["cohort"]
    s["cohort"] = None if cohort is None else checks.integer("cohort", cohort, 1, n, hint="or None for all clients")
    s["cohort"] = None if s["cohort"] == n else s["cohort"]
    return s


def _clients(value: Any, problem: str) -> list[dict[str, Any]]:
    hint = "a number of clients, or one dict(optimum=(x, y), curvature=(1, 1), angle=0) each"
    if isinstance(value, Sequence) and not isinstance(value, str):
        checks.integer("len(clients)", len(value), 2, 8)
    else:
        value = _placed(checks.integer("clients", value, 2, 8, hint=hint))
    low, high = RANGES["curvature"]
    bent = (0 if problem == "logistic" else low, high)  # a cross-entropy has no negative curvature
    clients = []
    for i, c in enumerate(value):
        if not isinstance(c, Mapping) or not {"optimum"} <= set(c) <= {"optimum", "curvature", "angle"}:
            raise ValueError(f"clients[{i}]={checks.brief(c)}; use dict(optimum=(x, y), curvature=(1, 1), angle=0)")
        clients.append(
            {
                "optimum": _pair(f"clients[{i}]['optimum']", c["optimum"], RANGES["place"]),
                "curvature": _pair(f"clients[{i}]['curvature']", c.get("curvature", (1, 1)), bent),
                "angle": within(f"clients[{i}]['angle']", c.get("angle", 0), RANGES["angle"]),
            }
        )
    return clients


def _placed(n: int) -> list[dict[str, Any]]:
    """The first n default clients: the two of the opening picture, then others around them."""
    rest = [{"optimum": p, "curvature": (0.4, (1.2, 2)[i % 2]), "angle": 40 * i} for i, p in enumerate(PLACES)]
    return [*DEFAULT_CLIENTS, *rest][:n]


def within(name: str, value: Any, allowed: Sequence[Any]) -> float:
    """The number, if it lies in `allowed`, an entry of `RANGES`; else raises TypeError or ValueError."""
    low, high, kind = (*allowed, "")[:3]
    if kind == "whole":
        return checks.integer(name, value, low, high)
    return checks.number(name, value, low, high, open_low=kind == "above")


def _pair(name: str, value: Any, allowed: Sequence[Any]) -> list[float]:
    try:
        x, y = (float(v) if hasattr(v, "dtype") else v for v in value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}={checks.brief(value)}; use two numbers, such as (1.0, -0.5)") from None
    return [within(name, v, allowed) for v in (x, y)]


def _methods(value: Any) -> dict[str, dict[str, float]]:
    if isinstance(value, str | Method):
        raise TypeError(f"methods={checks.brief(value)} is one method; use a list, methods=[{checks.brief(value)}]")
    if not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise TypeError(f"methods={checks.brief(value)}; use a list of names or methods, such as ['FedAvg']")
    if isinstance(value, Mapping):  # the form of a state, which may be empty after the reader's changes
        value = [getattr(algorithms, name)(**h) if name in METHODS else name for name, h in value.items()]
    elif not (value := list(value)):
        raise ValueError("methods is empty; give one at least, such as ['FedAvg']")
    chosen: dict[str, dict[str, float]] = {}
    for method in value:
        kind = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
        if kind not in METHODS:
            raise ValueError(f"methods has {checks.brief(method)}; use some of {', '.join(METHODS)}")
        if kind in chosen:
            raise ValueError(f"methods has {kind} twice; give each method once")
        given = METHODS[kind] if isinstance(method, str | type) else {k: getattr(method, k) for k in METHODS[kind]}
        own = RANGES.get(kind, {})
        chosen[kind] = {k: float(within(f"{kind}'s {k}", v, own.get(k, RANGES.get(k)))) for k, v in given.items()}
        if isinstance(method, Method) and method != getattr(algorithms, kind)(**chosen[kind]):
            sliders = ", ".join(METHODS[kind]) or "no parameter"
            raise ValueError(
                f"methods has {method!r}, but the playground's {kind} takes {sliders}; leave the others"
                + (", and choose the graph by topology=" if kind in GOSSIP else "")
            )
    return chosen
