"""The result of a run: its history, and the error of a run whose model is no longer finite."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from .algorithms.method import Method
from .support import checks
from .support.extras import needs

Row = tuple[int, str, int | None, float]
BY_CLIENT = ("own_accuracy", "accuracy", "own_loss", "loss")  # in order of preference for `History.clients`


class Diverged(FloatingPointError):
    """A model is no longer finite.  `.round` and `.client` say where it happened; `.history` is the run up to there.

    `.client` is None if all clients' models were finite but the result of the method's `aggregate` was not.
    The history's `params` and server vectors are those of the last evaluation, its `cohorts` end with this round, and
    its client states are those after the failing round.  With keep="best" all of these vectors and states are those
    of the best round, `history.kept`.  lr: the learning rate of the failing round.
    """

    def __init__(self, round: int, client: int | None, history: History, lr: float) -> None:
        self.round, self.client, self.history = round, client, history
        what = (
            f"client {client} left the finite numbers in round {round} with lr={lr:g}; use a smaller lr, clip, or a "
            "milder hyper-parameter"
            if client is not None
            else f"{type(history.method).__name__}.aggregate left the finite numbers in round {round}, in which the "
            "models of all clients were finite; look there for a division by 0 or the root of a negative number"
        )
        super().__init__(f"{what}. The history up to there is in this error's .history")


def over_clients(name: str, values: Sequence[float], sizes: Sequence[int]) -> dict[str, float]:
    """Statistics of a metric over clients: mean, mean weighted by size, spread, and mean of the worst tenth.

    The spread is the standard deviation over the clients.  The worst tenth are the clients with the lowest accuracies
    or the highest losses: a tenth of the clients, rounded down, but at least one.
    """
    v = np.sort(np.asarray(values, float))
    return {
        f"{name}_mean": float(v.mean()),
        f"{name}_weighted": float(np.average(values, weights=sizes)),
        f"{name}_spread": float(v.std()),
        f"{name}_worst_tenth": float((v[::-1] if "loss" in name else v)[: max(1, len(v) // 10)].mean()),
    }


@dataclass(eq=False)
class History:
    """The result of a run: `params [d]`, `state`, `cohorts`, and metrics by round.

    The value of a metric at `round=r` belongs to the model after r rounds; round 0 is the initial model.  `seconds` is
    the wall time of this process.  It is not part of `frame()` and the repr, which are the same when a run is repeated
    or resumed.  `kept`: with keep="best", the round of the model in `params` and `state`; the curves and `final()`
    still include the last round.
    """

    params: Tensor
    state: dict[str, Tensor]
    method: Method
    settings: dict[str, Any]
    cohorts: list[list[int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    kept: int | None = None

    def __repr__(self) -> str:
        """Three lines: the method, the rounds, the server's last metrics."""
        last = max((t for t, *_ in self.rows), default=0)
        at, which = (last, "") if self.kept is None else (self.kept, f", the best of {last}")
        metrics = {name: v for t, name, client, v in self.rows if t == at and client is None}
        clients = len({i for cohort in self.cohorts for i in cohort})
        lines = [
            checks.told(self.method),
            f"{len(self.cohorts)} rounds, {clients} clients took part",
            f"after round {at}{which}: " + ", ".join(f"{name} {v:.4g}" for name, v in metrics.items()),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The repr in a notebook: the method, the rounds, and a table of the last five evaluations."""
        try:
            frame = self.frame().query("client.isna()").drop_duplicates(["round", "metric"], keep="last")
            server = frame.pivot(index="round", columns="metric", values="value").tail()
            lines = "<br>".join(html.escape(line) for line in repr(self).splitlines()[:2])
            return f"<p>{lines}</p>{server.to_html(float_format='{:.4g}'.format)}"
        except Exception:  # pandas is missing, or fails on rows that were changed by hand
            return f"<pre>{html.escape(checks.told(self))}</pre>"

    @needs("pictures", "a frame")
    def frame(self) -> Any:
        """Tidy pandas.DataFrame: round, metric, client (None for the server), value."""
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=["round", "metric", "client", "value"])
        return frame.astype({"round": int, "client": "Int64", "value": float})

    def clients(self) -> Any:
        """One metric of each client at the last evaluation, as rows of `frame()`, for a run with `personal`.

        The metric is `own_accuracy` (`accuracy` if none of the evaluated clients has test data of its own; a loss if
        targets are not classes).  Rows without a client have the statistics of the metric over these clients:
        `own_accuracy_mean`, `own_accuracy_weighted` (by numbers of training samples), `own_accuracy_spread` (standard
        deviation) and `own_accuracy_worst_tenth` (mean of the worst tenth).  Raises KeyError if no client was
        evaluated.
        """
        # a probe too may give a `loss` of each client, but a run evaluates its clients where it has their statistics
        end = "_worst_tenth"
        known = {(t, n.removesuffix(end)) for t, n, client, _ in self.rows if client is None and n.endswith(end)}
        last = max((t for t, name in known if name in BY_CLIENT), default=None)
        name = next((name for name in BY_CLIENT if (last, name) in known), None)
        if name is None:
            raise KeyError("no client was evaluated; use personal=True in the run")
        frame = self.frame()
        statistics = frame["metric"].str.fullmatch(f"{name}_(mean|weighted|spread|worst_tenth)")
        ours = statistics | ((frame["metric"] == name) & frame["client"].notna())
        return frame[(frame["round"] == last) & ours].reset_index(drop=True)

    def curve(self, metric: str = "accuracy", client: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and values of a metric of the server or of one client; raises KeyError if it was not recorded."""
        if not isinstance(metric, str) or not isinstance(client, int | np.integer | None):
            raise TypeError(
                f"metric={checks.brief(metric)}, client={checks.brief(client)}; use a name, and a number or None"
            )
        pairs = [(t, v) for t, name, i, v in self.rows if name == metric and i == client]
        if not pairs:
            known = sorted({name for _, name, i, _ in self.rows if i == client})
            clients = sorted({i for _, name, i, _ in self.rows if name == metric and i is not None})
            remedy = f"use one of {known}" if known or client is None else "use personal=True in the run"
            if client is not None and clients:
                remedy = f"use one of the clients {checks.brief(clients)}, of which it was"
            of = "" if client is None else f" of client {client}"
            raise KeyError(f"metric={checks.brief(metric)}{of} was not recorded; {remedy}")
        t, v = zip(*pairs, strict=True)
        return np.array(t), np.array(v)

    def final(self, metric: str = "accuracy", client: int | None = None) -> float:
        """The last value of a metric, of the server or of one client."""
        return float(self.curve(metric, client)[1][-1])

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """Plot a metric against rounds (a matplotlib Figure); the default is accuracy, or loss if there is none."""
        from fedbook.pictures import plots

        if ax is not None and not hasattr(ax, "figure"):
            raise TypeError(f"ax={checks.brief(ax)}; use matplotlib axes, or None for a new figure")
        if metric is None:
            metric = "accuracy" if any(name == "accuracy" for _, name, _, _ in self.rows) else "loss"
        t, v = self.curve(metric)
        figure, axes = (ax.figure, ax) if ax is not None else plots.figure()
        plots.curves(axes, {checks.told(self.method): v[None]}, x=t)
        axes.set(xlabel="communication round", ylabel=metric)
        return figure
