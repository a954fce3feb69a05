"""The free memory of a device, and an error before a computation asks for more."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import torch

LARGE = 1 << 28  # bytes up to which nothing is checked


def check(size: float, device: torch.device, what: str, remedy: str) -> None:
    """Raise MemoryError, before anything is allocated, if `what` takes more bytes than are free on the device."""
    if size > LARGE and size > (room := free(device)):
        raise MemoryError(f"{what} take {size / 1e9:,.1f} GB, and {device} has {room / 1e9:,.1f} GB free; use {remedy}")


def has_own_memory(device: torch.device) -> bool:
    """Whether the device, such as a GPU, has memory apart from the host's."""
    return device.type != "cpu"


def free(device: torch.device) -> float:
    """Free bytes of the accelerator, or of the host within the limit of a container."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    room = math.inf
    try:
        room = 1024 * int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1])
        group = Path("/sys/fs/cgroup")
        used = int(re.search(r"anon (\d+)", (group / "memory.stat").read_text())[1])
        return min(room, int((group / "memory.max").read_text()) - used)  # ValueError if there is no limit: "max"
    except (OSError, TypeError, ValueError):
        pass
    if room == math.inf and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2  # half, as the free part is not known
    return room
