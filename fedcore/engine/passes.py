"""Counting backward passes: what a method's cost table says can be compared with what its rounds did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

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
