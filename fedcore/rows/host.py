"""Runs that exceed the device's memory: client states kept in host memory, and cohorts computed in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algorithms.method import Method
from ..objective.base import Objective
from ..support import checks, memory

if TYPE_CHECKING:
    from ..settings import Settings


def too_large(method: Method, fed: Objective, n: int) -> bool:
    """Whether n clients' states must be kept in host memory, because they would take over half of the device's free
    memory; a warning says so."""
    size = len(method.client_state) * n * fed.d * fed.x0.element_size()
    room = room_for_states(fed.device)
    if size <= room / 2:
        return False
    checks.warn(
        f"the client states {', '.join(method.client_state)} of {type(method).__name__} take {size / 1e9:.2f} GB "
        f"({n:,} clients x {fed.d:,} parameters) and {fed.device} has {room / 1e9:.2f} GB free: the states are "
        "kept in host memory, and each round copies the cohort's rows to the device and back",
    )
    return True


def room_for_states(device: torch.device) -> float:
    """Free bytes of an accelerator, and infinity for a CPU, where the states are in host memory anyway."""
    return memory.free(device) if memory.has_own_memory(device) else math.inf


def chunk_size(method: Method, fed: Objective, s: Settings) -> int | None:
    """How many clients can take their local steps together in the free memory, or None for the whole cohort.

    Throughout the round, a client needs vectors for its parameters, their update, and its old and new states.  During
    its local steps, it also needs vectors for a gradient, a direction, an intermediate value and a velocity, and
    memory for activations.
    """
    m, vector, states = s.size, fed.d * fed.x0.element_size(), len(method.client_state)
    work = s.work(method, 0, s.cohort_of(0, fed.n))
    kept, steps = (2 + 2 * states) * vector, (3 + bool(work.momentum)) * vector
    steps += fed.activation_bytes(work.batch_size)
    room = 0.8 * memory.free(fed.device)
    if m * (kept + steps) <= room:
        return None
    if memory.has_own_memory(fed.device):  # room for two chunks: one is computed while the next is copied
        most = room // (steps + 2 * (1 + states) * vector)
    else:
        most = (room - m * kept) // steps
    chunk = max(1, min(m, int(most)))
    block = fed.block or 1
    chunk = max(chunk // block * block, min(chunk, block))  # whole blocks keep the results bit for bit
    if chunk == m:
        return None
    checks.warn(
        f"a round of {m:,} clients with {fed.d:,} parameters takes about {m * (kept + steps) / 1e9:.2f} GB and "
        f"{fed.device} has {room / 0.8e9:.2f} GB free: local steps are taken by {chunk:,} clients at a time",
    )
    return chunk


class Carrier:
    """Copies rows to a device while the device computes (on CUDA: from pinned memory, in a separate stream)."""

    def __init__(self, device: torch.device) -> None:
        self.device, cuda = device, device.type == "cuda"
        self.side = torch.cuda.Stream(device) if cuda else None

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor in host memory, pinned for CUDA."""
        return torch.empty(*shape, dtype=dtype, pin_memory=self.side is not None)

    def gather(self, rows: Tensor, at: Tensor) -> Tensor:
        """`rows[at]`, copied into host memory that `empty` allocates."""
        return torch.index_select(rows, 0, at, out=self.empty(len(at), *rows.shape[1:], dtype=rows.dtype))

    def send(self, rows: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
        """Start to copy the tensors among `rows` to the device; return a function that waits for the copies and
        returns them."""
        if self.side is None:
            copies = {k: v.to(self.device, copy=True) if isinstance(v, Tensor) else v for k, v in rows.items()}
            return lambda: copies
        with torch.cuda.stream(self.side):
            copies = {k: v.to(self.device, non_blocking=True) if _on_host(v) else v for k, v in rows.items()}

        def arrived() -> dict[str, Any]:
            main = torch.cuda.current_stream(self.device)
            main.wait_stream(self.side)
            for k, v in copies.items():
                if _on_host(rows[k]):
                    v.record_stream(main)  # the side stream allocated v, and must not reuse it while main reads it
            return copies

        return arrived

    def wait(self) -> None:
        """Wait until everything that was copied back has arrived in host memory."""
        if self.side is not None:
            torch.cuda.current_stream(self.device).synchronize()


def _on_host(v: Any) -> bool:
    return isinstance(v, Tensor) and not v.is_cuda
