"""A cohort that is too large for the memory is computed in chunks of clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..algorithms.method import Method
from ..data.batches import Plan
from ..engine import PLAIN, Loss
from ..objective.base import Objective
from ..settings import Settings
from ..support import checks, memory


class Chunked:
    """Clients' objectives whose gradients are computed for `chunk` clients at a time and returned on Y's device."""

    def __init__(self, objective: Objective, chunk: int) -> None:
        self.objective, self.chunk = objective, chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def gradient(self, Y: Tensor, *given: Any) -> Tensor:
        """Gradients `[a, d]`, as the objective's."""
        return self.gradient_and_losses(Y, *given)[0]

    def gradient_and_losses(
        self, Y: Tensor, plan: Plan, k: int = 0, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradients `[a, d]` and losses `[a]`, as the objective's."""
        results = (
            # the plan is cut to step k, which becomes its step 0
            self.objective.gradient_and_losses(y, plan.of(rows, k), 0, some, direction)
            for rows, y, some, direction in self._cut(Y, loss, along)
        )
        G, losses = zip(*((g.to(Y.device), values.to(Y.device)) for g, values in results), strict=True)
        return torch.cat(G), torch.cat(losses)

    def full_gradient(
        self, Y: Tensor, plan: Plan, k: int = -1, loss: Loss = PLAIN, along: Tensor | None = None
    ) -> Tensor:
        """Gradients `[a, d]` of the whole local objectives, as the objective's."""
        pieces = self._cut(Y, loss, along)
        G = [self.objective.full_gradient(y, plan.of(rows), k, some, v).to(Y.device) for rows, y, some, v in pieces]
        return torch.cat(G)

    def logits(self, Y: Tensor, plan: Plan, k: int) -> Tensor:
        """Logits on local step k's batch, as the objective's."""
        return torch.cat([self.objective.logits(y, plan.of(rows, k), 0).to(Y.device) for rows, y, *_ in self._cut(Y)])

    def _cut(self, Y: Tensor, loss: Loss = PLAIN, along: Tensor | None = None) -> Iterator[tuple[Any, ...]]:
        device = self.objective.device
        for a in range(0, len(Y), self.chunk):
            cut = slice(a, a + self.chunk)
            direction = None if along is None else along[cut].to(device)
            yield np.arange(len(Y))[cut], Y[cut].to(device), loss.cut(cut).to(device), direction


def chunk_size(method: Method, fed: Objective, s: Settings) -> int | None:
    """How many clients may take their local steps together: None for all, a number if memory is short.

    Memory of a client: throughout the round, vectors for its parameters, their update, and its old and new states; in
    the local steps, vectors for a gradient, a direction, its intermediate values, and a velocity, and activations.
    """
    m, vector, states = s.size, fed.d * fed.x0.element_size(), len(method.client_state)
    work = s.work(method, 0, s.cohort_of(0, fed.n))
    kept, steps = (2 + 2 * states) * vector, (3 + bool(work.momentum)) * vector
    steps += fed.activation_bytes(work.batch_size)
    room = 0.8 * memory.free(fed.device)
    if m * (kept + steps) <= room:
        return None
    if memory.has_own_memory(fed.device):  # two chunks at a time: one is computed while the next is copied
        most = room // (steps + 2 * (1 + states) * vector)
    else:
        most = (room - m * kept) // steps
    chunk = max(1, min(m, int(most)))
    block = fed.block or 1
    chunk = max(chunk // block * block, min(chunk, block))  # whole blocks, so that the result is the same bit for bit
    if chunk == m:
        return None
    checks.warn(
        f"a round of {m:,} clients with {fed.d:,} parameters takes about {m * (kept + steps) / 1e9:.2f} GB and "
        f"{fed.device} has {room / 0.8e9:.2f} GB free: local steps are taken by {chunk:,} clients at a time",
    )
    return chunk
