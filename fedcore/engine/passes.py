"""Counting backward passes, to compare a table of costs with the rounds, and hooks on forward passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

_listeners: list[Callable[[int], None]] = []


def backward(clients: int) -> None:
    """Report a backward pass for so many clients; every path calls this function."""
    for listen in _listeners:
        listen(clients)


@contextlib.contextmanager
def counting() -> Iterator[list[int]]:
    """A list of the numbers of clients of each backward pass in the block; its sum is the number of client gradients.

    A Hessian-vector product is two passes.  Replays of a captured CUDA graph are not counted.
    """
    seen: list[int] = []
    _listeners.append(seen.append)
    try:
        yield seen
    finally:
        _listeners.remove(seen.append)


@contextlib.contextmanager
def watching(layers: Iterable[nn.Module], hook: Callable[..., Any], behind: bool = False) -> Iterator[None]:
    """A block in which these layers call `hook(layer, inputs)` before their forward pass, or with `behind`
    `hook(layer, inputs, output)` after it."""
    add = nn.Module.register_forward_hook if behind else nn.Module.register_forward_pre_hook
    handles = [add(layer, hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
