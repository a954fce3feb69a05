"""Checkpoints: one `.npz` a run, written atomically and never pickled.

NumPy's own format keeps a checksum of every array, so damage is noticed, and a machine with torch and numpy alone
can resume.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged, or belongs to another run."""


@dataclass(frozen=True)
class Saved:
    """A run after t rounds."""

    t: int
    state: dict[str, Tensor]
    cohorts: list[list[int]]
    rows: list[tuple[int, str, int | None, float]]


class Store:
    """The checkpoint of one run in `folder`; `identity` is all that determines the run's result."""

    def __init__(self, folder: str | os.PathLike, identity: dict[str, Any]) -> None:
        self.path, self.identity = Path(folder) / "checkpoint.npz", json.loads(json.dumps(identity))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.path.parent).close()
        except OSError as e:
            raise OSError(
                f"checkpoint_dir={str(folder)!r} cannot be written ({e.strerror or e}); use a folder you may write to"
            ) from e

    def save(self, t: int, state: dict[str, Tensor], cohorts: list, rows: list) -> None:
        """Write the checkpoint; a reader sees the old one or the new one, never half of one."""
        names = sorted({name for _, name, _, _ in rows})
        arrays = {f"state/{k}": v.detach().cpu().numpy() for k, v in state.items()}
        arrays["cohort_sizes"] = np.array([len(c) for c in cohorts], np.int64)
        arrays["cohorts"] = np.array([i for c in cohorts for i in c], np.int64)
        arrays["rows"] = np.array(
            [(r, names.index(name), -1 if c is None else c) for r, name, c, _ in rows], np.int64
        ).reshape(-1, 3)
        arrays["values"] = np.array([v for *_, v in rows], np.float64)
        head = {"format": FORMAT, "t": t, "metrics": names, "identity": self.identity}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        try:
            with atomic(self.path) as f:
                np.savez(f, **arrays)
        except OSError as e:
            raise OSError(
                e.errno,
                f"{self.path} cannot be written after {t} rounds ({e.strerror or e}); the checkpoint before it is "
                "as it was: make room, or use another checkpoint_dir",
            ) from e

    def load(self, rounds: int) -> Saved | None:
        """The saved run, or None where there is none.  Raises CheckpointError."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as z:
                arrays = {k: z[k] for k in z.files}
            head = json.loads(arrays.pop("head").tobytes())
            if head["format"] != FORMAT:
                raise CheckpointError(
                    f"{self.path} has format {head['format']}, this version reads {FORMAT}; use resume=False"
                )
            flat, ends = arrays["cohorts"].tolist(), np.cumsum(arrays["cohort_sizes"]).tolist()
            cohorts = [flat[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            rows = [
                (r, head["metrics"][k], None if c < 0 else c, v)
                for (r, k, c), v in zip(arrays["rows"].tolist(), arrays["values"].tolist(), strict=True)
            ]
            state = {k.removeprefix("state/"): torch.from_numpy(v) for k, v in arrays.items() if k.startswith("state/")}
        except CheckpointError:
            raise
        except Exception as e:  # damage shows in many ways: zip, npy header, JSON, or what is missing
            raise CheckpointError(
                f"{self.path} is damaged or no checkpoint ({type(e).__name__}: {e}); delete it, or use resume=False"
            ) from e
        saved = head["identity"]
        differs = {k: (saved.get(k), v) for k, v in self.identity.items() if not _same(saved.get(k), v, head["t"])}
        if differs:
            listed = "; ".join(f"{k}: saved {a!r}, now {b!r}" for k, (a, b) in differs.items())
            raise CheckpointError(
                f"{self.path} belongs to another run ({listed}); use another checkpoint_dir, or resume=False"
            )
        if head["t"] > rounds:
            raise CheckpointError(
                f"{self.path} holds {head['t']} rounds, rounds={rounds} were asked for; use rounds>={head['t']}, "
                "another checkpoint_dir, or resume=False"
            )
        return Saved(head["t"], state, cohorts, rows)


def _same(saved: Any, now: Any, rounds: int) -> bool:
    """Whether two settings are the same; of those that change by round, the rounds that were run."""
    if isinstance(saved, dict) and isinstance(now, dict) and saved.keys() == now.keys() == {"by round"}:
        return saved["by round"][:rounds] == now["by round"][:rounds]
    return saved == now


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """`with atomic(path) as f:` writes a binary file that appears under its name only when complete and on disk."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    file = open(temporary, "wb")  # noqa: SIM115  (not mkstemp: the file keeps the permissions of the user's umask)
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
