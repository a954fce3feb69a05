"""Rows between host memory and a device with memory of its own: how much there is room for, and how they travel."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Carrier:
    """Copies rows to a device beside what the device computes (on CUDA: a stream of its own, from pinned memory)."""

    def __init__(self, device: torch.device) -> None:
        self.device, cuda = device, device.type == "cuda"
        self.side = torch.cuda.Stream(device) if cuda else None

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Host memory that the device can read by itself."""
        return torch.empty(*shape, dtype=dtype, pin_memory=self.side is not None)

    def gather(self, rows: Tensor, at: Tensor) -> Tensor:
        """`rows[at]` in such memory."""
        return torch.index_select(rows, 0, at, out=self.empty(len(at), *rows.shape[1:], dtype=rows.dtype))

    def send(self, rows: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
        """Start copying the tensors among `rows`; the function returned has the copies wait for their arrival."""
        if self.side is None:
            copies = {k: v.to(self.device, copy=True) if isinstance(v, Tensor) else v for k, v in rows.items()}
            return lambda: copies
        with torch.cuda.stream(self.side):
            copies = {k: v.to(self.device, non_blocking=True) if _away(v) else v for k, v in rows.items()}

        def arrived() -> dict[str, Any]:
            main = torch.cuda.current_stream(self.device)
            main.wait_stream(self.side)
            for k, v in copies.items():
                if _away(rows[k]):
                    v.record_stream(main)  # its memory is the side stream's: not to be given away while main reads
            return copies

        return arrived

    def wait(self) -> None:
        """Wait until all that was sent back has arrived in host memory."""
        if self.side is not None:
            torch.cuda.current_stream(self.device).synchronize()


def _away(v: Any) -> bool:
    return isinstance(v, Tensor) and not v.is_cuda


def apart(device: torch.device) -> bool:
    """Whether the device has memory of its own."""
    return device.type != "cpu"


def free(device: torch.device) -> float:
    """Bytes that a run may take: of the accelerator, or of the host and the container that it runs in."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    room = math.inf
    try:
        room = 1024 * int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1])
        group = Path("/sys/fs/cgroup")
        used = int(re.search(r"anon (\d+)", (group / "memory.stat").read_text())[1])
        return min(room, int((group / "memory.max").read_text()) - used)  # ValueError where it says "max"
    except (OSError, TypeError, ValueError):
        pass
    if room == math.inf and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2  # what is free is not told here
    return room
