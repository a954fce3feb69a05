"""Checkpoints: one `.npz` a run, written atomically and never pickled.

NumPy's own format keeps a checksum of every array, so damage is noticed, and a machine with torch and numpy alone
can resume.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import reprlib
import secrets
import socket
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

FORMAT = 3
AROUND = "lists, mappings and objects to which the method's functions refer"  # records, or numbers of its rule
FORM = {  # of the arrays beside the state: dimensions, kind of numbers
    "head": (1, "u"), "cohort_sizes": (1, "i"), "cohorts": (1, "i"), "rows": (2, "i"), "values": (1, "f"),
}  # fmt: skip


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged, or belongs to another run."""


@dataclass(frozen=True)
class Saved:
    """A run after t rounds."""

    t: int
    state: dict[str, Tensor]
    cohorts: list[list[int]]
    rows: list[tuple[int, str, int | None, float]]


class Arrays:
    """A history as arrays.  Histories grow, so what an earlier checkpoint had is not converted again."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.arrays = {
            "cohort_sizes": np.zeros(0, np.int32), "cohorts": np.zeros(0, np.int32),
            "rows": np.zeros((0, 3), np.int32), "values": np.zeros(0),
        }  # fmt: skip

    def of(self, cohorts: list[list[int]], rows: list[tuple[int, str, int | None, float]]) -> dict[str, np.ndarray]:
        """`cohorts` one after another and `cohort_sizes`; `rows` (round, number of the metric, client or -1) and
        `values`."""
        if len(cohorts) < len(self.arrays["cohort_sizes"]) or len(rows) < len(self.arrays["values"]):
            self.__init__()
        later, more = cohorts[len(self.arrays["cohort_sizes"]) :], rows[len(self.arrays["values"]) :]
        number = self.names.setdefault
        new = {
            "cohort_sizes": [len(c) for c in later],
            "cohorts": [i for c in later for i in c],
            "rows": [(r, number(name, len(self.names)), -1 if c is None else c) for r, name, c, _ in more],
            "values": [v for *_, v in more],
        }
        for k, old in self.arrays.items():
            self.arrays[k] = np.concatenate([old, np.array(new[k], old.dtype).reshape(-1, *old.shape[1:])])
        return self.arrays


class Store:
    """The checkpoint of one run in `folder`.

    identity: all that determines the run's result.  bits: what its last bits may hang on besides; where these differ,
    a run goes on with a warning.  code: a hash of the package's code for this run.  memory: what probes remember, as a
    hash.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        identity: Mapping[str, Any],
        bits: Mapping[str, Any],
        code: str = "",
        memory: Callable[[], str] = str,
    ) -> None:
        self.path = Path(folder) / "checkpoint.npz"
        self.identity, self.bits = (json.loads(json.dumps(part)) for part in (identity, bits))
        self.code, self.memory = code, memory
        self._saved = Arrays()
        self._found: dict[str, Any] | None = None  # the head of the file that this run may replace

    def open(self) -> None:
        """Make the folder, and sweep what killed runs left there; OSError where it cannot be written."""
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
        """Write the checkpoint; a reader sees the old one or the new one, never half of one.

        Raises CheckpointError where another run has written one here since this run began.
        """
        there = self._head()
        if there is not None and there != self._found and (differs := self._differs(there)):
            raise CheckpointError(
                f"another run writes to {self.path}, which is left as it is ({differs}); give each run a "
                "checkpoint_dir of its own"
            )
        arrays = {f"state/{k}": v.detach().cpu().numpy() for k, v in state.items()}
        arrays |= self._saved.of(cohorts, rows)
        names = list(self._saved.names)
        head = {
            "format": FORMAT, "t": t, "metrics": names, "identity": self.identity, "bits": self.bits,
            "code": self.code, "memory": self.memory(),
        }  # fmt: skip
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        try:
            with atomic(self.path) as f:
                np.savez(f, **arrays)
        except OSError as e:
            raise OSError(
                e.errno,
                f"{self.path} cannot be written after {t} rounds ({e.strerror or e}); "
                f"{'the one before is as it was' if self.path.exists() else 'there is none before it'}: make room, or "
                "use another checkpoint_dir",
            ) from e

    def load(self, rounds: int, like: Mapping[str, Tensor] | None = None, n: int | None = None) -> Saved | None:
        """The saved run, or None where there is none.

        like: tensors like those of the run, by name; n: its clients.  None: not compared.  Raises CheckpointError for
        what is damaged, of another form or of another run.
        """
        try:
            arrays = dict(archives.read(self.path))
            head = json.loads(arrays["head"].tobytes())
            if head["format"] != FORMAT:
                raise CheckpointError(
                    f"{self.path} has format {head['format']}, this version reads {FORMAT}; go on with the version "
                    "that wrote it, or use resume=False"
                )
            _check_form(head, arrays, n)
            flat, ends = arrays["cohorts"].tolist(), np.cumsum(arrays["cohort_sizes"]).tolist()
            cohorts = [flat[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            rows = [
                (r, head["metrics"][k], None if c < 0 else c, v)
                for (r, k, c), v in zip(arrays["rows"].tolist(), arrays["values"].tolist(), strict=True)
            ]
            state = {k.removeprefix("state/"): torch.from_numpy(v) for k, v in arrays.items() if k.startswith("state/")}
        except CheckpointError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (MemoryError, PermissionError) as e:  # the file may be whole
            raise type(e)(f"{self.path} cannot be read ({getattr(e, 'strerror', None) or e or 'no memory'})") from e
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENAMETOOLONG):
                raise OSError(e.errno, f"{self.path} cannot be read ({e.strerror})") from e
            raise self._damaged(e) from e
        except Exception as e:  # damage shows in many ways: zip, npy header, JSON, or what is missing
            raise self._damaged(e) from e
        if differs := self._differs(head):
            raise CheckpointError(
                f"{self.path} belongs to another run ({differs}); use another checkpoint_dir, or resume=False"
            )
        if head["code"] != self.code:
            raise CheckpointError(
                f"{self.path} was made by another version of fedcore (code {_brief(head['code'])}, now {self.code}), "
                "whose rounds may be others; go on with the version that wrote it, or use resume=False"
            )
        if head["t"] > rounds:
            raise CheckpointError(
                f"{self.path} holds {head['t']} rounds, rounds={rounds} were asked for; use rounds>={head['t']}, "
                "another checkpoint_dir, or resume=False"
            )
        if head["t"] < rounds and head["memory"] != self.memory():
            raise CheckpointError(
                f"{self.path} is of a run whose probes remember what they saw, which it does not hold; use probes "
                "without memory, or resume=False"
            )
        if like is not None and (wrong := _unlike(state, like)):
            raise self._damaged(ValueError(wrong))
        if other := [k for k, v in self.bits.items() if head["bits"].get(k) != v]:
            listed = ", ".join(f"{k} {head['bits'].get(k)} and {self.bits[k]}" for k in other)
            ends = "equal to rounding and not to the bit"
            if AROUND in other:
                ends = "but by another rule where the method computes with these: use resume=False then"
            checks.warn(f"{self.path} was made with other {listed}: the run goes on, {ends}")
        return Saved(head["t"], state, cohorts, rows)

    def _head(self) -> dict[str, Any] | None:
        """What the file says of its run; None where there is no file, or none that can be read."""
        try:
            head = json.loads(archives.read(self.path, only=("head",))["head"].tobytes())
            return head if isinstance(head["identity"], dict) and isinstance(head["t"], int) else None
        except Exception:  # a damaged one is `load`'s to refuse, unless the run is to replace it
            return None

    def _differs(self, head: Mapping[str, Any]) -> str:
        """In what the run of a checkpoint is another than this one; nothing where it is the same."""
        saved, now = head["identity"], self.identity
        names = [k for k in {**now, **saved} if not _same(saved.get(k), now.get(k), head["t"])]
        return "; ".join(f"{k}: saved {_brief(saved.get(k))}, now {_brief(now.get(k))}" for k in names)

    def _damaged(self, e: Exception) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged or no checkpoint ({type(e).__name__}: {e}); delete it, or use resume=False"
        )


def _check_form(head: Any, arrays: Mapping[str, np.ndarray], n: int | None) -> None:
    """ValueError where the parts of a checkpoint do not fit each other, or a run of n clients."""
    for name, (ndim, kind) in FORM.items():
        if arrays[name].ndim != ndim or arrays[name].dtype.kind != kind:
            raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}")
    kinds = {"t": int, "metrics": list, "identity": dict, "bits": dict, "code": str, "memory": str}
    if wrong := [k for k, kind in kinds.items() if type(head[k]) is not kind]:
        raise ValueError(f"its {wrong[0]} is {_brief(head[wrong[0]])}")
    t, metrics, sizes, cohorts, rows = (
        head["t"],
        head["metrics"],
        *(arrays[k] for k in ("cohort_sizes", "cohorts", "rows")),
    )
    most = np.iinfo(np.int32).max if n is None else n
    whole = len(sizes) == t and (sizes > 0).all() and sizes.sum() == len(cohorts)
    whole = whole and ((cohorts >= 0) & (cohorts < most)).all()
    if not whole or len(np.unique(np.arange(t).repeat(sizes) * most + cohorts)) < len(cohorts):  # a client twice
        raise ValueError(f"its cohorts are not those of {t} rounds")
    if not (
        rows.shape == (len(arrays["values"]), 3)
        and all(isinstance(name, str) for name in metrics)
        and ((rows >= [0, 0, -1]) & (rows <= [t, len(metrics) - 1, most - 1])).all()
        and (np.diff(rows[:, 0]) >= 0).all()
    ):
        raise ValueError(f"its rows are not metrics of {t} rounds")


def _unlike(saved: Mapping[str, Tensor], run: Mapping[str, Tensor]) -> str:
    """In what a saved state is none of the run's; "" where it may be."""
    if saved.keys() != run.keys():
        return f"it holds the states {', '.join(sorted(saved)) or 'of nothing'}, not {', '.join(sorted(run))}"
    for k, found in saved.items():
        if found.shape != run[k].shape or found.dtype != run[k].dtype:
            return f"{k} is {found.dtype} {tuple(found.shape)}, not {run[k].dtype} {tuple(run[k].shape)}"
        if not torch.stack(found.aminmax()).isfinite().all() and run[k].isfinite().all():
            return f"{k} has numbers that are not finite"
    return ""


def _same(saved: Any, now: Any, rounds: int) -> bool:
    """Whether two settings are the same; of those that change by round, the rounds that were run."""
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
    temporary = path.with_name(f".{path.name}.{_here()}.{os.getpid()}.{secrets.token_hex(8)}")
    # not mkstemp: the file keeps the permissions of the user's umask.  "x": no link that somebody placed is followed
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


def sweep(folder: Path, older: float = 60.0) -> None:
    """Remove the unfinished files that `atomic` left in a folder when its process was killed on this machine.

    older: seconds since anything was written to them.
    """
    for file in folder.glob(f".*.{_here()}.*"):
        found = re.fullmatch(rf"\..+\.{re.escape(_here())}\.(\d+)\.[0-9a-f]{{16}}", file.name)
        with contextlib.suppress(OSError):
            if found and time.time() - file.stat().st_mtime > older and not is_alive(int(found[1])):
                file.unlink()


def _here() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs; True where that cannot be asked."""
    if os.name != "posix":  # elsewhere a signal 0 is no question
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _brief(value: Any) -> str:
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 120
    return brief.repr(value)
