"""Computations that do not depend on the modes of torch that the caller has switched on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def as_usual() -> Iterator[None]:
    """A block, or with `@as_usual()` a function, in which the caller's `torch.no_grad`, `torch.inference_mode`,
    `torch.autocast` and default device have no effect."""
    with contextlib.ExitStack() as stack:
        for context in (torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
