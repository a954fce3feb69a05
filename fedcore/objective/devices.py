"""The device that was asked for, or a clear error."""

from __future__ import annotations

import torch

from .. import distributed


def available(device: str | torch.device | None) -> torch.device:
    """The device, None for this process's default; raises ValueError where it is not available."""
    device = distributed.device() if device is None else device
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as e:
        raise ValueError(
            f"device={str(device)!r} is not available here ({first_line(e)}); use 'cpu', 'cuda' on a machine with an "
            "NVIDIA GPU, or None"
        ) from e


def first_line(e: Exception) -> str:
    """The first line of an error's message, or its type's name."""
    return (str(e).splitlines() or [type(e).__name__])[0]
