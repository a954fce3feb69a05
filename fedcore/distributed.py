"""One run on several processes: start a script that calls `fc.simulate` with `torchrun --nproc_per_node=4 script.py`.

The cohort of a round is divided among the processes.  Each process takes the local steps of its clients, and
`Round.mean` and `Round.sum` each end in an all-reduce of one flat vector `[d]`: one per round for FedAvg, two for
SCAFFOLD.  Draws are hashes of (seed, round, client), so that the result depends on the number of processes only through
the rounding of these sums (which may change a choice between near-equal scores, as in FedDSE).  Gloo communicates
tensors on the CPU, and NCCL tensors on GPUs if each process of a machine has its own GPU, otherwise gloo does.

Client states are split: process c mod N keeps the state of client c and takes its local steps, so that the shares of a
small cohort are uneven.  For methods without client states, the cohort is divided evenly by data size.  If the
aggregation needs more than sums (`Method.across` = "rows", as for decentralised methods), every process gets all rows
of the cohort by an all-gather of `[m, d]`.  Data and server vectors are on every process.  Process 0 evaluates the
server's model, calls the probes, shows the bar and writes files; each client's own model is evaluated by the process
that keeps its state.  All processes return the same History, with the states of all clients in host memory.  A
checkpoint has the states of all clients, so that any number of processes can continue from it.  On several machines
(torchrun --nnodes) `checkpoint_dir` must be one shared folder.

`simulate` shares a run whenever torch.distributed has a process group of more than one process, and makes such a group
itself under torchrun.  Every process must then make the same calls in the same order.  If one process raises an error,
the others raise `Stopped` with its message.  If one dies, the others raise `Lost` at once; if one hangs, they raise
`Lost` after 1,800 seconds, or the number of seconds in the environment variable FEDCORE_TIMEOUT.  This must exceed the
time that process 0 takes for an evaluation, during which the others wait.  Workers end within two seconds after their
torchrun was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from .support import checks, devices
from .support.progress import say


class Stopped(RuntimeError):
    """Another process raised an error, whose message this error repeats."""


class Lost(Stopped):
    """Another process died, or did not answer in time."""


class World:
    """The processes of a run: `rank` of `size`.  With one process, every operation is the identity."""

    rank, size = 0, 1
    lost = ""  # why a process died or hangs, after which no collective is possible

    def __init__(self, root: Any = None) -> None:
        self.root, self.inside = root, False
        if root is None:
            return
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        with self._exchange():
            self.host = self.gpu = dist.new_group(backend="gloo", timeout=patience())
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        if all(self.objects(dist.is_nccl_available() and here <= torch.cuda.device_count())):
            self.gpu = dist.new_group(backend="nccl", timeout=patience())

    def agree(self, failure: str | None = None) -> None:
        """Raise Stopped if another process has failed; called before every collective.  The processes compare flags on
        the CPU, so that none waits for its accelerator."""
        if self.size == 1:
            return
        failures = torch.tensor([failure is not None], dtype=torch.int32)
        with self._exchange():
            dist.all_reduce(failures, group=self.host)
        if int(failures):
            gathered = self._gathered(failure)
            if failure is None:
                rank = next(r for r, message in enumerate(gathered) if message is not None)
                raise Stopped(f"process {rank} of {self.size} stopped: {gathered[rank]}")

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A block that all processes leave in the same way: if one raises an Exception, all others raise Stopped."""
        if self.inside or self.size == 1:
            yield
            return
        self.inside = True
        try:
            yield
            self.agree()
        except Stopped:
            raise
        except Exception as e:
            self.agree(f"{type(e).__name__}: {e}")
            raise
        finally:
            self.inside = False

    def total(self, v: Tensor) -> Tensor:
        """The sum of v over the processes, written into v; the same bits on all processes."""
        if self.size > 1:
            self.agree()
            with self._exchange():
                dist.all_reduce(v, group=self._group(v))
        return v

    def gather(self, rows: Tensor, places: Sequence[np.ndarray], to: int | None = None) -> Tensor | None:
        """The matrix whose rows `places[r]` are the first rows of process r; on process `to` alone (None elsewhere), or
        on all if `to` is None."""
        if self.size == 1:
            return rows
        self.agree()
        count = len(places[self.rank])
        own = rows.new_zeros(max(map(len, places)), *rows.shape[1:])
        own[:count] = rows[:count]
        parts = [torch.empty_like(own) for _ in places] if to in (None, self.rank) else None
        with self._exchange():
            if to is None:
                dist.all_gather(parts, own, group=self._group(own))
            else:
                dist.gather(own, parts, to, group=self._group(own))
        if parts is None:
            return None
        whole = rows.new_empty(sum(map(len, places)), *rows.shape[1:])
        for place, part in zip(places, parts, strict=True):
            whole[torch.as_tensor(place).to(rows.device)] = part[: len(place)]
        return whole

    def first(self, make: Callable[[], Any]) -> Any:
        """What `make()` returns on process 0, sent to all processes."""
        return self.objects(make() if self.rank == 0 else None)[0]

    def objects(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        self.agree()
        return self._gathered(value)

    def _gathered(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.size
        with self._exchange():
            dist.all_gather_object(gathered, value, group=self.host)
        return gathered

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """The block of a collective: raises Lost if the backend reports a dead or silent process, now or earlier."""
        if self.lost:
            raise Lost(self.lost)
        try:
            yield
        except RuntimeError as e:
            self.lost = (
                f"another of the {self.size} processes has ended or hangs, or did not answer in {_stated()}: started "
                f"again, a run goes on from its last checkpoint ({_first_line(e)})"
            )
            raise Lost(self.lost) from None

    def _group(self, v: Tensor) -> Any:
        return self.gpu if v.is_cuda else self.host


ALONE = _world = World()


def world() -> World:
    """The processes of this run; under torchrun the first call makes the process group."""
    global _world
    if not dist.is_available():
        return ALONE
    if dist.is_torchelastic_launched():
        end_with(os.getppid(), "torchrun")
    if devices.launched() and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(devices.default())
        try:
            dist.init_process_group("gloo", timeout=patience())
        except RuntimeError as e:
            all_of_them = f"the {os.environ['WORLD_SIZE']} processes of torchrun"
            raise Lost(f"{all_of_them} did not meet in {_stated()}: {_first_line(e)}") from None
        atexit.register(_part)
        sys.excepthook = functools.partial(_in_one_line, sys.excepthook)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    if _world.root is not dist.group.WORLD:
        _world = World(dist.group.WORLD)
    return _world


def patience() -> datetime.timedelta:
    """How long a process waits for the others; raises ValueError if FEDCORE_TIMEOUT is not a number of seconds."""
    given = os.environ.get("FEDCORE_TIMEOUT", "1800")
    try:
        return datetime.timedelta(seconds=checks.number("FEDCORE_TIMEOUT", float(given), 1, 1e6))
    except ValueError:
        raise ValueError(f"FEDCORE_TIMEOUT={given!r} is no time; use seconds from 1 to 1e6") from None


def _stated() -> str:
    return f"{patience().total_seconds():g} s (FEDCORE_TIMEOUT)"


def _first_line(e: Exception) -> str:
    return re.sub(r"^\[\S+\] ", "", str(e)).partition("\n")[0].partition(". ")[0][:160]


def _in_one_line(shown: Callable[..., None], kind: type, e: BaseException, traceback: Any) -> None:
    """Show an uncaught error; a `Lost` in one line, because the traceback says only where this process waited."""
    if isinstance(e, Lost):
        say(f"process {os.environ['RANK']} stops: {e}")
    else:
        shown(kind, e, traceback)


@functools.cache
def end_with(parent: int, launcher: str) -> None:
    """End this process when its launcher ends: a launcher that is killed does not end its workers itself."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        say(f"{launcher} has ended, so this worker ends too")
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _part() -> None:
    """Destroy the process group that `world` made, because its threads must not outlive Python."""
    _world.root = _world.host = _world.gpu = None
    if dist.is_initialized():
        dist.destroy_process_group()
