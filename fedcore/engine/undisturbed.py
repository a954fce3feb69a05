"""What a caller has switched on does not reach into a computation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def as_usual() -> Iterator[None]:
    """A block, or with `@as_usual()` a function, that computes and trains alike wherever it is called: a caller's
    `torch.no_grad`, `torch.inference_mode`, `torch.autocast` and default device do not hold in it."""
    with contextlib.ExitStack() as stack:
        for context in (torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
