"""Studies that train: accuracy of a run, and accuracy of one client's model."""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedcore import Diverged, Federation, History, Method, distributed
from fedcore import simulate as run
from fedcore.storage.checkpoint import atomic

from .from_spec import build_method, curve, federation_of, trained

LEAST = 5  # evaluations late in a run


def late_rounds(rounds: int, every: int) -> list[int]:
    """The evaluations whose mean is the accuracy late in a run of so many rounds: those in its last sixth.

    They are the multiples of `every` there, and the last round; if these are fewer than `LEAST`, rounds in between are
    evaluated too, and if the last sixth has fewer rounds than that, rounds before it.
    """
    chosen = sorted(
        {rounds, *range(every, rounds + 1, every)} & set(range(rounds - max(0, rounds - 1) // 6, rounds + 1))
    )
    step = max(1, rounds // (6 * LEAST))
    between = range(rounds, max(0, rounds - LEAST * step), -step) if len(chosen) < LEAST else ()
    return sorted({*chosen, *between})


def late(history: Sequence[Sequence[float]]) -> float:
    """The mean of a stored curve `[[round, value], ...]` over its points in the last sixth of the rounds."""
    end = history[-1][0]
    return float(np.mean([value for t, value in history if t >= end - max(0, end - 1) // 6]))


def simulate(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """A run of `fc.simulate`; the metric is the test accuracy in % unless `spec["metric"]` says "loss".

    `late`: the mean accuracy in % over the `evaluations` late in the run (`late_rounds`), which is what is judged, and
    `right`: how often each of the `images` test images is classified correctly in them, as base64 of zlib of bytes.
    `final` is the value at the last round, which alone is judged and counted where the metric is a loss.
    """
    fed = federation_of(spec, seed, device)
    metric, settings = spec.get("metric", "accuracy"), spec["run"]
    scale = 100.0 if "accuracy" in metric else 1.0
    judged_late = fed.classifies and "accuracy" in metric
    found: dict[str, Any] = {}
    try:
        method = build_method(spec["method"], fed, settings)
        if fed.classifies:
            rounds = settings["rounds"]
            stops = late_rounds(rounds, settings.get("eval_every", 1)) if judged_late else [rounds]
            with _checkpoints(folder) as place:
                history, right = _counted(method, fed, seed, settings, stops, place)
            found = {"late": 100 * float(right.sum()) / (len(right) * len(stops))} if judged_late else {}
            found |= {"right": _packed(right), "evaluations": len(stops)}
        else:
            history = run(method, fed, seed=seed, checkpoint_dir=folder, **settings)
    except Diverged as e:
        history, found = e.history, {"diverged": e.round}
    rounds, values = history.curve(metric)
    values = scale * values
    return {
        "final": None if "diverged" in found else float(values[-1]),
        "mean": float(values[1:].mean()) if len(values) > 1 else float(values.mean()),
        "history": curve(rounds, values),
        **found,
        "images": len(fed.test[1]),
        "classes": fed.classes,
    }


def best(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """The highest test accuracy in % of a run: optimistic, because its round is chosen on the test images."""
    fed = federation_of(spec, seed, device)
    history, ended = trained(spec, fed, seed, checkpoint_dir=folder, checkpoint_every=folder and 1)
    rounds, values = history.curve()
    highest = 100 * float(values.max())
    return {"final": None if ended else highest, "mean": highest, "history": curve(rounds, 100 * values), **ended}


def _counted(
    method: Method, fed: Federation, seed: int, settings: Mapping[str, Any], stops: Sequence[int], folder: Path
) -> tuple[History, np.ndarray]:
    """The history of a run, and in how many of the models after `stops` rounds each test image is classified correctly,
    `[T]`.

    The run goes on from its checkpoint after each stop, so that it is to the bit a run without stops.
    """
    folder.mkdir(parents=True, exist_ok=True)  # a run of no rounds writes no checkpoint
    right = np.zeros(len(fed.test[1]), np.uint8)
    for t in stops:
        file = folder / f"right{t}.npy"
        if not file.exists() or t == stops[-1]:
            distributed.world().agree()  # no process reads a checkpoint that the first has not written yet
            history = run(method, fed, seed=seed, checkpoint_dir=folder, **{**settings, "rounds": t})
            # the model that the method trained: DepthFL's has heads that the federation's lacks
            bits = method.on(fed).correct(history.params).cpu().numpy()
            with atomic(file) as f:
                np.save(f, bits)
        right += np.load(file)
    return history, right


@contextlib.contextmanager
def _checkpoints(folder: Path | None) -> Iterator[Path]:
    """The folder, or where none is given one for this block, the same in all processes."""
    if folder is not None:
        yield folder
        return
    world = distributed.world()
    own = Path(world.first(tempfile.mkdtemp))
    try:
        yield own
    finally:
        if world.rank == 0:
            shutil.rmtree(own, ignore_errors=True)


def _packed(counts: np.ndarray) -> str:
    """Base64 of zlib of counts `[T]`, a byte each."""
    return base64.b64encode(zlib.compress(counts.tobytes(), 9)).decode()


def packed(bits: Tensor) -> str:
    """Base64 of bits `[T]`, packed eight to a byte."""
    return base64.b64encode(np.packbits(bits.cpu().numpy())).decode()


def personal(spec: Mapping[str, Any], seed: int, folder: Path | None, device: str | None) -> dict[str, Any]:
    """Accuracy in % on the union test set: of the model of client `spec["client"]`, or of the server's for "global"."""
    fed = federation_of(spec, seed, device)
    method = build_method(spec["method"], fed, spec["run"])
    history = run(method, fed, seed=seed, checkpoint_dir=folder, personal="local", **spec["run"])
    rounds, values = history.curve(client=None if spec["client"] == "global" else spec["client"])
    values = 100 * values
    return {"final": float(values[-1]), "mean": float(values[1:].mean()), "history": curve(rounds, values)}
