"""Counting backward passes, so that a cost table can be compared with what rounds did, and watching forward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

_listeners: list[Callable[[int], None]] = []


def backward(clients: int) -> None:
    """Every path calls this with each backward pass, for how many clients it is."""
    for listen in _listeners:
        listen(clients)


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """A list that grows by the number of clients of each backward pass made inside; its sum are client gradients.

    A Hessian-vector product is two passes.  Replays of a captured CUDA graph are not seen.
    """
    seen: list[int] = []
    _listeners.append(seen.append)
    try:
        yield seen
    finally:
        _listeners.remove(seen.append)


@contextlib.contextmanager
def watching(layers: Iterable[nn.Module], hook: Callable[..., Any], behind: bool = False) -> Iterator[None]:
    """A block in which these layers call `hook(layer, inputs)` before, or `hook(layer, inputs, output)` behind."""
    add = nn.Module.register_forward_hook if behind else nn.Module.register_forward_pre_hook
    handles = [add(layer, hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
