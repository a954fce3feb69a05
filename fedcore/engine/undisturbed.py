"""Computations that do not depend on the modes of torch that the caller has switched on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class Held:
    """Settings of torch that all threads share, with given values while any thread is inside a block.

    The first block of any thread sets them and the last resets them, so that threads do not change one another's.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, []

    @contextlib.contextmanager
    def values(self, *settings: tuple[Any, str, Any]) -> Iterator[None]:
        """A block in which the attributes `(object, name, value)` have these values; afterwards they are as before."""
        with self.lock:
            if not self.inside:
                self.before = exchanged(settings)
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    exchanged(self.before)


def exchanged(settings: Sequence[tuple[Any, str, Any]]) -> list[tuple[Any, str, Any]]:
    """Set attributes `(object, name, value)`, and return the same with the values that they had."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    for owner, name, value in settings:
        setattr(owner, name, value)
    return before


_convolutions = Held()


@contextlib.contextmanager
def as_usual() -> Iterator[None]:
    """A block, or with `@as_usual()` a function, in which the caller's `torch.no_grad`, `torch.inference_mode`,
    `torch.autocast` and default device have no effect.

    On a GPU, convolutions take algorithms that give equal bits in equal runs.  They compute float32 in TF32, with ten
    bits instead of 23, only if matrix products may too (`torch.backends.cuda.matmul.allow_tf32`, which is off unless
    the caller switches it on), whereas torch's own default is TF32 in convolutions alone.
    """
    with contextlib.ExitStack() as stack:
        for context in (torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.cuda.is_available():
            cudnn = torch.backends.cudnn
            # the newer of torch's two switches: reading `allow_tf32` raises an error where the caller has used this one
            precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
            float32 = [(part, "fp32_precision", precision) for part in (cudnn.conv, cudnn.rnn)]
            same_bits = (cudnn, "deterministic", True), (cudnn, "benchmark", False)
            stack.enter_context(_convolutions.values(*same_bits, *float32))
        yield
