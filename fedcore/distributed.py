"""One run on several processes: `torchrun --standalone --nproc_per_node=4 script.py`, with `fc.simulate` as ever.

The cohort of a round is dealt to the processes; each takes the local steps of its rows, and `Round.mean` and
`Round.sum` each end in an all-reduce of one flat vector `[d]`: one a round for FedAvg, two for SCAFFOLD.  Draws are
hashes of (seed, round, client), so a result does not depend on the number of processes but for the rounding of these
sums (which may turn a choice between near-equal scores, as in FedDSE).  Gloo carries tensors of the CPU, NCCL those of
GPUs where each process of a machine has its own, else gloo.

Per-client state is split: client c lives on process c mod N, which also takes its local steps, so shares of a small
cohort are uneven.  Methods without such state deal the cohort evenly by data size.  A method whose aggregation needs
more than sums (`Method.across` = "rows": the decentralised ones) gets all rows of the cohort on every process, by an
all-gather of `[m, d]`.  Data and server vectors are on every process.  Process 0 evaluates the server's model, calls
the probes, shows the bar and writes files; clients' own models are evaluated where they live.  The History is the same
on all, with client states whole and in host memory; a checkpoint holds them whole too, so any number of processes can
go on from it.  On several machines (torchrun --nnodes) `checkpoint_dir` must be one folder for all.

`simulate` shards whenever torch.distributed has a process group of more than one process, and makes one itself under
torchrun.  Every process must then make the same calls in the same order.  An error on one of them ends the call on all:
the others raise `Stopped` with its message.  Where one dies, the others raise `Lost` at once; where one hangs, after
1,800 seconds, or as many as the environment variable FEDCORE_TIMEOUT says: more than process 0 ever takes for an
evaluation, during which the others wait.  Workers end within two seconds of a torchrun that was killed.
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
    """Another process raised an error; the message is its."""


class Lost(Stopped):
    """Another process died, or did not answer in time."""


class World:
    """The processes of a run: `rank` of `size`.  With one process, every operation is the identity."""

    rank, size = 0, 1
    lost = ""  # what is known of a process that died or hangs: nothing more can be done together

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
        """Before every collective: nobody has failed.  On the host, so that no accelerator is waited for."""
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
        """A block that all processes leave in the same way: an Exception in one of them is raised in all."""
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
        """The sum of v over the processes, in its place; the same bits on all of them."""
        if self.size > 1:
            self.agree()
            with self._exchange():
                dist.all_reduce(v, group=self._group(v))
        return v

    def gather(self, rows: Tensor, places: Sequence[np.ndarray], to: int | None = None) -> Tensor | None:
        """The matrix whose rows `places[r]` are the first rows of process r; on process `to` alone, else on all."""
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
        """What `make()` gives on process 0, on all."""
        return self.objects(make() if self.rank == 0 else None)[0]

    def objects(self, value: Any) -> list[Any]:
        """The values of all processes."""
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
        """Around every collective: what a backend reports of a dead or silent process is `Lost`, from then on."""
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
    """The processes at hand; under torchrun the first call meets the others."""
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
    """How long a process waits for the others; raises ValueError for a FEDCORE_TIMEOUT that is no time."""
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
    """An uncaught error: where a process was waiting when another was lost helps nobody."""
    if isinstance(e, Lost):
        say(f"process {os.environ['RANK']} stops: {e}")
    else:
        shown(kind, e, traceback)


@functools.cache
def end_with(parent: int, launcher: str) -> None:
    """End this process when its launcher does, which ends its workers itself, but not where it was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        say(f"{launcher} has ended, so this worker ends too")
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _part() -> None:
    """Leave the group that `world` made; its threads must not outlive Python."""
    _world.root = _world.host = _world.gpu = None
    if dist.is_initialized():
        dist.destroy_process_group()
