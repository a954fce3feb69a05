"""Processes for tests and for `tools/kill_trials.py`: groups like those of torchrun, and a check whether one runs."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable

import psutil


def fork(N: int, work: Callable[[], None]) -> int:
    """Fork N processes with torchrun's environment; since torch is already imported, this takes seconds, not a minute.

    Returns the largest of their exit statuses.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "forks"}
    os.environ |= {"WORLD_SIZE": str(N), "LOCAL_WORLD_SIZE": str(N)}
    children = []
    for rank in range(N):
        if (child := os.fork()) == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            work()
            sys.exit()
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


def until(true: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, at most so many seconds; returns whether it held."""
    end = time.monotonic() + seconds
    while not (came := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return came


def runs(process: int | psutil.Process) -> bool:
    """Whether a process runs; a zombie, which has ended without being waited for, does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False
