"""A round in pieces whose clients train together: the whole cohort, a chunk, or the clients of one smaller network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..algorithms.method import Round
from ..data.batches import Plan
from ..engine import PLAIN, Loss
from ..objective.base import Objective

if TYPE_CHECKING:
    from .rows import Rows


class Chunked:
    """An objective that computes gradients for `chunk` clients at a time and returns them on the device of Y."""

    def __init__(self, objective: Objective, chunk: int) -> None:
        self.objective, self.chunk = objective, chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def gradient(self, Y: Tensor, *given: Any) -> Tensor:
        """Gradients `[a, d]`, as `Objective.gradient` returns them."""
        return self.gradient_and_losses(Y, *given)[0]

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradients `[a, d]` and losses `[a]`, as `Objective.gradient_and_losses` returns them."""
        results = (
            # `plan.of(rows, k)` holds step k alone, as its step 0
            self.objective.gradient_and_losses(y, plan.of(rows, k), 0, some, direction)
            for rows, y, some, direction in self._cut(Y, loss, along)
        )
        G, losses = zip(*((g.to(Y.device), values.to(Y.device)) for g, values in results), strict=True)
        return torch.cat(G), torch.cat(losses)

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """Gradients `[a, d]` on all local data, as `Objective.full_gradient` returns them."""
        pieces = self._cut(Y, loss, along)
        G = [self.objective.full_gradient(y, plan.of(rows), k, some, v).to(Y.device) for rows, y, some, v in pieces]
        return torch.cat(G)

    def logits(self, Y: Tensor, plan: Plan, k: int) -> Tensor:
        """Logits on the batches of local step k, as `Objective.logits` returns them."""
        return torch.cat([self.objective.logits(y, plan.of(rows, k), 0).to(Y.device) for rows, y, *_ in self._cut(Y)])

    def _cut(self, Y: Tensor, loss: Loss = PLAIN, along: Tensor | None = None) -> Iterator[tuple[Any, ...]]:
        device = self.objective.device
        for a in range(0, len(Y), self.chunk):
            cut = slice(a, a + self.chunk)
            direction = None if along is None else along[cut].to(device)
            yield np.arange(len(Y))[cut], Y[cut].to(device), loss.cut(cut).to(device), direction


def pieces(rows: Rows, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
    """Pairs of a piece of the round, whose clients take their local steps together, and the iterates of these clients.

    When the next pair is requested, the iterates and memory of the last one are written back to `Y` and `r`.
    """
    if r.parts is not None:
        yield from _parts(rows, r, Y)
    elif rows.chunk is None:
        yield r, Y
    else:
        yield from _chunks(rows, r, Y)


def _parts(rows: Rows, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
    """The pieces of a round whose clients train smaller networks: the entries of each network are cut out of `Y` for
    its local steps and written back afterwards."""
    if r.memory:
        raise ValueError(f"{type(rows.method).__name__}.prepare added parts and memory; with parts, add rows alone")
    device = rows.fed.device
    for whole in r.parts:
        for part in whole.split(rows.chunk or len(whole.rows)):
            y = part.take(Y).to(device)
            yield replace(r, objective=rows.fed).within(part).to(device), y
            part.put(Y, y.to(Y.device))


def _chunks(rows: Rows, r: Round, Y: Tensor) -> Iterator[tuple[Round, Tensor]]:
    """Chunks of neighbouring rows, which have similar numbers of steps because the rows are sorted by them.

    Rows in host memory are copied to the device while the device computes the previous chunk, and iterates and memory
    are copied back.
    """
    send = rows.carrier.send if rows.hosted else (lambda tensors: lambda: tensors)
    r = replace(r, objective=rows.fed, server=r.to(rows.fed.device).server)
    cuts = [slice(a, a + rows.chunk) for a in range(0, len(Y), rows.chunk)]
    whole = [(r.some(cut), Y[cut]) for cut in cuts]
    coming = [send(_tensors(*whole[0]))]
    for i, (small, y) in enumerate(whole):
        there = coming.pop()()
        if i + 1 < len(whole):
            coming.append(send(_tensors(*whole[i + 1])))
        here = _with(small, there)
        yield here, there["y"]
        if rows.hosted:
            for back, v in [(y, there["y"]), *((small.memory[k], v) for k, v in here.memory.items())]:
                back.copy_(v, non_blocking=True)
        del there, here  # frees this chunk before another one is copied
    if rows.hosted:
        rows.carrier.wait()


def _tensors(r: Round, y: Tensor) -> dict[str, Tensor]:
    """All tensors with one row per client."""
    rows = {f"{kind}/{name}": v for kind in ("rows", "memory") for name, v in getattr(r, kind).items()}
    return {"y": y, "p": r.p, "K": r.K, **rows}


def _with(r: Round, tensors: Mapping[str, Tensor]) -> Round:
    """The round with these tensors instead of its own."""
    rows = {kind: {n: tensors[f"{kind}/{n}"] for n in getattr(r, kind)} for kind in ("rows", "memory")}
    return replace(r, p=tensors["p"], K=tensors["K"], loss=r.loss.to(tensors["y"].device), **rows)
