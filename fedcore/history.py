"""What a run leaves: its history, and the error of one that left the finite numbers."""

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
BY_CLIENT = ("own_accuracy", "accuracy", "own_loss", "loss")  # the first that there is tells how clients fare


class Diverged(FloatingPointError):
    """A model is no longer finite.  `.round`, `.client`, and `.history` of everything before.

    `.client` is None where all clients' models were finite and what the method's `aggregate` made of them was not.
    The history's `params` and server vectors are those of the last evaluation, its `cohorts` end with this round;
    client states are as the failing round left them.
    """

    def __init__(self, round: int, client: int | None, history: History) -> None:
        self.round, self.client, self.history = round, client, history
        lr = history.settings["lr"]
        lr = lr["by round"][round] if isinstance(lr, dict) else lr
        what = (
            f"client {client} left the finite numbers in round {round} with lr={lr:g}; use a smaller lr, clip, or a "
            "milder hyper-parameter"
            if client is not None
            else f"{type(history.method).__name__}.aggregate left the finite numbers in round {round}, in which the "
            "models of all clients were finite; look there for a division by 0 or the root of a negative number"
        )
        super().__init__(f"{what}. The history up to there is in this error's .history")


def over_clients(name: str, values: Sequence[float], sizes: Sequence[int]) -> dict[str, float]:
    """How a metric differs between clients: their mean, that weighted by size, the spread, the mean of a worst tenth.

    The spread is the standard deviation over the clients; the worst tenth are the lowest accuracies, or the highest
    losses, of a tenth of them, rounded down, and of one at least.
    """
    v = np.sort(np.asarray(values, float))
    return {
        f"{name}_mean": float(v.mean()),
        f"{name}_weighted": float(np.average(values, weights=sizes)),
        f"{name}_spread": float(v.std()),
        f"{name}_worst_tenth": float((v[::-1] if "loss" in name else v)[: max(1, len(v) // 10)].mean()),
    }


@dataclass
class History:
    """What a run leaves: `params [d]`, `state`, `cohorts`, and metrics by round.

    Row `round=r` of a metric is the model after r rounds; round 0 is the initial model.  `seconds` is the wall time
    of this process and no part of `frame()` and the repr, which are the same when a run is repeated or resumed.
    `kept`: of a run with keep="best", the round after which the model was what `params` and `state` have; the curves
    and `final()` go on to the last.
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
        """The same in a notebook, with the last five evaluations."""
        try:
            frame = self.frame().query("client.isna()").drop_duplicates(["round", "metric"], keep="last")
            server = frame.pivot(index="round", columns="metric", values="value").tail()
            lines = "<br>".join(html.escape(line) for line in repr(self).splitlines()[:2])
            return f"<p>{lines}</p>{server.to_html(float_format='{:.4g}'.format)}"
        except Exception:  # without pandas, and whatever it makes of rows that were changed by hand
            return f"<pre>{html.escape(checks.told(self))}</pre>"

    @needs("pictures", "a frame")
    def frame(self) -> Any:
        """Tidy pandas.DataFrame: round, metric, client (None for the server), value."""
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=["round", "metric", "client", "value"])
        return frame.astype({"round": int, "client": "Int64", "value": float})

    @needs("pictures", "a frame")
    def clients(self) -> Any:
        """How the clients fare at the last evaluation: the rows of `frame()` that say it, for a run with `personal`.

        Each client's `own_accuracy` (`accuracy` where no client has test data of its own; a loss where targets are no
        classes), and over these clients, as rows without a client, their mean, the mean weighted by their numbers of
        training samples, the standard deviation and the mean of the worst tenth, as `own_accuracy_mean`,
        `own_accuracy_weighted`, `own_accuracy_spread` and `own_accuracy_worst_tenth`.  KeyError where there are none.
        """
        last = max((t for t, _, client, _ in self.rows if client is not None), default=None)
        known = {name for t, name, client, _ in self.rows if t == last and client is not None}
        name = next((name for name in BY_CLIENT if name in known), None)
        if name is None:
            raise KeyError("no client was evaluated; use personal=True in the run")
        frame = self.frame()
        ours = frame["metric"].str.match(f"{name}_") | ((frame["metric"] == name) & frame["client"].notna())
        return frame[(frame["round"] == last) & ours].reset_index(drop=True)

    def curve(self, metric: str = "accuracy", client: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and values of a metric of the server, or of one client; raises KeyError naming those there are."""
        if not isinstance(metric, str) or not isinstance(client, int | np.integer | None):
            raise TypeError(
                f"metric={checks.brief(metric)}, client={checks.brief(client)}; use a name, and a number or None"
            )
        pairs = [(t, v) for t, name, i, v in self.rows if name == metric and i == client]
        if not pairs:
            known = sorted({name for _, name, i, _ in self.rows if i == client})
            remedy = f"use one of {known}" if known or client is None else "use personal=True in the run"
            of = "" if client is None else f" of client {client}"
            raise KeyError(f"metric={checks.brief(metric)}{of} was not recorded; {remedy}")
        t, v = zip(*pairs, strict=True)
        return np.array(t), np.array(v)

    def final(self, metric: str = "accuracy", client: int | None = None) -> float:
        """The last value of a metric, of the server or of one client."""
        return float(self.curve(metric, client)[1][-1])

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """A metric against rounds (a matplotlib Figure); the default is accuracy, or loss where there is none."""
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
