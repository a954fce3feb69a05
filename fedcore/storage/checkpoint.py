"""Checkpoints: one `.npz` per run, written atomically and without pickle.

The archive has three parts: the tensors of the state; the history, as the concatenated cohorts and, for each value, a
row (round, number of the metric, client or -1); and a head in JSON, with a hash of the history.  NumPy's format keeps
a checksum of every array, which shows damage, and needs no other package.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..support import checks
from . import archives
from .identity import digest

FORMAT = 4
AROUND = "lists, mappings and objects to which the method's functions refer"  # records, or numbers of its rule


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or belongs to another run or another version of the package."""


@dataclass(frozen=True)
class Saved:
    """A run after t rounds."""

    t: int
    state: dict[str, Tensor]
    cohorts: list[list[int]]
    rows: list[tuple[int, str, int | None, float]]


class Store:
    """The checkpoint of one run in `folder`.

    identity: everything that determines the run's result.  bits: versions and hardware, on which the last bits of the
    result may depend; if these differ, a run continues with a warning.  code: a hash of the package's code for this
    run.  memory: returns a hash of the probes' memory.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        identity: Mapping[str, Any],
        bits: Mapping[str, Any],
        code: str,
        memory: Callable[[], str],
    ) -> None:
        self.path = Path(folder) / "checkpoint.npz"
        self.identity, self.bits = (json.loads(json.dumps(part)) for part in (identity, bits))
        self.code, self.memory = code, memory
        self._found: dict[str, Any] | None = None  # the head of the file when the run began, which this run may replace

    def open(self) -> None:
        """Make the folder and remove unfinished files of killed runs; raises OSError if it cannot be written."""
        self._found = self._head()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path.parent).close()
        except OSError as e:
            raise OSError(
                f"checkpoint_dir={str(self.path.parent)!r} cannot be written ({e.strerror or e}); use a folder you may "
                "write to"
            ) from e
        sweep(self.path.parent)

    def save(self, t: int, state: dict[str, Tensor], cohorts: list, rows: list) -> None:
        """Write the checkpoint atomically: a reader sees the old file or the new one.

        Raises CheckpointError if another run has written a checkpoint here since this run began.
        """
        there = self._head()
        if there is not None and there != self._found and (differs := self._differs(there)):
            raise CheckpointError(
                f"another run writes to {self.path}, which is left as it is ({differs}); give each run a "
                "checkpoint_dir of its own"
            )
        names = list(dict.fromkeys(name for _, name, _, _ in rows))
        number = {name: k for k, name in enumerate(names)}
        history = {
            "cohort_sizes": np.array([len(c) for c in cohorts], np.int32),
            "cohorts": np.array(list(itertools.chain(*cohorts)), np.int32),
            "rows": np.array([(r, number[name], -1 if c is None else c) for r, name, c, _ in rows], np.int32),
            "values": np.array([v for *_, v in rows], np.float64),
        }
        head = {
            "format": FORMAT, "t": t, "metrics": names, "identity": self.identity, "bits": self.bits,
            "code": self.code, "memory": self.memory(), "history": digest(names, history),
        }  # fmt: skip
        arrays = {f"state/{k}": v.detach().cpu().numpy() for k, v in state.items()} | history
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        try:
            with atomic(self.path) as f:
                np.savez(f, **arrays)
        except OSError as e:
            kept = "the one before is as it was" if self.path.exists() else "there is none before it"
            why = f"{self.path} cannot be written after {t} rounds ({e.strerror or e}); {kept}"
            raise OSError(e.errno, f"{why}: make room, or use another checkpoint_dir") from e

    def load(self, rounds: int, like: Mapping[str, Tensor]) -> Saved | None:
        """The saved run, or None if there is no checkpoint.

        like: tensors by name whose shapes and types the saved state must have.  Raises CheckpointError for a checkpoint
        that is damaged or belongs to another run, and OSError and MemoryError if it cannot be read now.
        """
        try:
            arrays = dict(archives.read(self.path))
            head = json.loads(arrays.pop("head").tobytes())
            self._check(head, rounds)
            saved = _saved(head, arrays)
            other = [k for k, v in self.bits.items() if head["bits"].get(k) != v]
            if wrong := _unlike(saved.state, like):
                raise ValueError(wrong)
        except CheckpointError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            return None
        except MemoryError as e:
            raise MemoryError(f"{self.path} cannot be read (no memory)") from e
        except Exception as e:  # damage shows in many ways: zip, npy header, JSON, or what is missing
            if isinstance(e, OSError) and e.errno != errno.EINVAL:  # the file may be whole
                raise OSError(e.errno, f"{self.path} cannot be read ({e.strerror})") from e
            raise CheckpointError(
                f"{self.path} is damaged or no checkpoint ({type(e).__name__}: {e}); delete it, or use resume=False"
            ) from e
        if other:
            listed = ", ".join(f"{k} {head['bits'].get(k)} and {self.bits[k]}" for k in other)
            ends = "equal to rounding and not to the bit"
            if AROUND in other:
                ends = "but by another rule where the method computes with these: use resume=False then"
            checks.warn(f"{self.path} was made with other {listed}: the run goes on, {ends}")
        return saved

    def _check(self, head: Mapping[str, Any], rounds: int) -> None:
        """Raise CheckpointError unless a run of `rounds` rounds can continue from a checkpoint with this head."""
        if head["format"] != FORMAT:
            wrong = (
                f"has format {head['format']}, this version reads {FORMAT}; go on with the version that wrote it, or "
                "use resume=False"
            )
        elif differs := self._differs(head):
            wrong = f"belongs to another run ({differs}); use another checkpoint_dir, or resume=False"
        elif head["code"] != self.code:
            wrong = (
                f"was made by another version of fedcore (code {checks.brief(head['code'])}, now {self.code}), whose "
                "rounds may be others; go on with the version that wrote it, or use resume=False"
            )
        elif head["t"] > rounds:
            wrong = (
                f"holds {head['t']} rounds, rounds={rounds} were asked for; use rounds>={head['t']}, another "
                "checkpoint_dir, or resume=False"
            )
        elif head["t"] < rounds and head["memory"] != self.memory():
            wrong = (
                "is of a run whose probes remember what they saw, which it does not hold; use probes without memory, "
                "or resume=False"
            )
        else:
            return
        raise CheckpointError(f"{self.path} {wrong}")

    def _head(self) -> dict[str, Any] | None:
        """The head of the checkpoint, or None if there is no file that can be read."""
        try:
            head = json.loads(archives.read(self.path, only=("head",))["head"].tobytes())
            return head if isinstance(head["identity"], dict) and isinstance(head["t"], int) else None
        except Exception:  # `load` refuses a damaged file, unless the run is to replace it
            return None

    def _differs(self, head: Mapping[str, Any]) -> str:
        """The differences between the run of a checkpoint and this run; "" if there are none."""
        saved, now = head["identity"], self.identity
        names = [k for k in {**now, **saved} if not _same(saved.get(k), now.get(k), head["t"])]
        brief = checks.brief
        return "; ".join(f"{k}: saved {brief(saved.get(k))}, now {brief(now.get(k))}" for k in names)


def _saved(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Saved:
    """The run in a checkpoint; raises ValueError if its history is not the one that was written."""
    names, state = head["metrics"], {k.removeprefix("state/"): v for k, v in arrays.items() if k.startswith("state/")}
    history = {k: v for k, v in arrays.items() if not k.startswith("state/")}
    sizes, clients, rows, values = history.values()
    if head["history"] != digest(names, history) or len(sizes) != head["t"]:
        raise ValueError(f"its history is not that of {head['t']} rounds")
    clients = iter(clients.tolist())
    return Saved(
        head["t"],
        {k: torch.from_numpy(v) for k, v in state.items()},
        [list(itertools.islice(clients, size)) for size in sizes.tolist()],
        [(r, names[k], None if c < 0 else c, v) for (r, k, c), v in zip(rows.tolist(), values.tolist(), strict=True)],
    )


def _unlike(saved: Mapping[str, Tensor], run: Mapping[str, Tensor]) -> str:
    """Why a saved state cannot belong to the run; "" if it can."""
    if saved.keys() != run.keys():
        return f"it holds the states {', '.join(sorted(saved)) or 'of nothing'}, not {', '.join(sorted(run))}"
    for k, found in saved.items():
        if found.shape != run[k].shape or found.dtype != run[k].dtype:
            return f"{k} is {found.dtype} {tuple(found.shape)}, not {run[k].dtype} {tuple(run[k].shape)}"
        if not torch.stack(found.aminmax()).isfinite().all() and run[k].isfinite().all():
            return f"{k} has numbers that are not finite"
    return ""


def _same(saved: Any, now: Any, rounds: int) -> bool:
    """Whether two settings are equal; a setting that changes by round is compared in the first `rounds` rounds."""
    if isinstance(saved, dict) and isinstance(now, dict) and saved.keys() == now.keys():
        values = [next(iter(part.values()), None) for part in (saved, now)]
        if not all(isinstance(v, list) for v in values):
            return saved == now
        if saved.keys() == {"by round"}:
            return saved["by round"][:rounds] == now["by round"][:rounds]
        if saved.keys() == {"about"}:
            a, b = (np.array(part["about"], float) for part in (saved, now))
            size = np.abs(a, where=np.isfinite(a), out=np.zeros(a.shape)).max(initial=0)
            return a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-3 * size, equal_nan=True)
    return saved == now


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """`with atomic(path) as f:` writes a binary file that appears under its name only when complete and on disk."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.unfinished")
    # mkstemp would ignore the user's umask; "x" follows no link that another user has placed there
    file = open(temporary, "xb")  # noqa: SIM115
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()  # Windows renames no file that is open
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # on a full disk closing fails too
            file.close()
        temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the unfinished files that `atomic` left in a folder when its process was killed, an hour ago or more."""
    for file in folder.glob(".*.unfinished"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > 3600:
                file.unlink()
