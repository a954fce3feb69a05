"""What a run leaves: its history, and the error of one that left the finite numbers."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from . import checks
from .algorithms.method import Method
from .extras import needs

Row = tuple[int, str, int | None, float]


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


@dataclass
class History:
    """What a run leaves: `params [d]`, `state`, `cohorts`, and metrics by round.

    Row `round=r` of a metric is the model after r rounds; round 0 is the initial model.  `seconds` is the wall time
    of this process and no part of `frame()` and the repr, which are the same when a run is repeated or resumed.
    """

    params: Tensor
    state: dict[str, Tensor]
    method: Method
    settings: dict[str, Any]
    cohorts: list[list[int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    def __repr__(self) -> str:
        """Three lines: the method, the rounds, the server's last metrics."""
        last = max((t for t, *_ in self.rows), default=0)
        metrics = {name: v for t, name, client, v in self.rows if t == last and client is None}
        clients = len({i for cohort in self.cohorts for i in cohort})
        lines = [
            f"{self.method!r}",
            f"{len(self.cohorts)} rounds, {clients} clients took part",
            f"after round {last}: " + ", ".join(f"{name} {v:.4g}" for name, v in metrics.items()),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same in a notebook, with the last five evaluations."""
        try:
            frame = self.frame()
        except ImportError:  # without pandas
            return f"<pre>{html.escape(repr(self))}</pre>"
        server = frame.query("client.isna()").pivot(index="round", columns="metric", values="value").tail()
        lines = "<br>".join(html.escape(line) for line in repr(self).splitlines()[:2])
        return f"<p>{lines}</p>{server.to_html(float_format='{:.4g}'.format)}"

    @needs("pictures", "a frame")
    def frame(self) -> Any:
        """Tidy pandas.DataFrame: round, metric, client (None for the server), value."""
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=["round", "metric", "client", "value"])
        return frame.astype({"round": int, "client": "Int64", "value": float})

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
            raise KeyError(f"metric={metric!r}{of} was not recorded; {remedy}")
        t, v = zip(*pairs, strict=True)
        return np.array(t), np.array(v)

    def final(self, metric: str = "accuracy", client: int | None = None) -> float:
        """The last value of a metric, of the server or of one client."""
        return float(self.curve(metric, client)[1][-1])

    def plot(self, metric: str | None = None, ax: Any = None) -> Any:
        """A metric against rounds (a matplotlib Figure); the default is accuracy, or loss where there is none."""
        from . import plots

        if ax is not None and not hasattr(ax, "figure"):
            raise TypeError(f"ax={checks.brief(ax)}; use matplotlib axes, or None for a new figure")
        if metric is None:
            metric = "accuracy" if any(name == "accuracy" for _, name, _, _ in self.rows) else "loss"
        t, v = self.curve(metric)
        figure, axes = (ax.figure, ax) if ax is not None else plots.figure()
        plots.curves(axes, {repr(self.method): v[None]}, x=t)
        axes.set(xlabel="communication round", ylabel=metric)
        return figure
