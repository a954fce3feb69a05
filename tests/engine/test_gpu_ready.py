"""Ready for a GPU without one: rounds on pretended devices mix none and ask the device for nothing.

`tools/pretend_gpu.py` says how.  The host reads that a round may do are listed in one place, the docstring of
`fedcore.algorithms.method.on_host`.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import helpers as h
import pytest
import torch
from battery import METHODS, contrastive
from torch import nn

import fedcore as fc
from fedcore.algorithms import personal
from tools.pretend_gpu import on_gpu, pretended_gpu

ROOT = Path(__file__).resolve().parents[2]
RUN = {"rounds": 2, "lr": 0.1, "batch_size": 4}
SIZES = (7, 4, 3, 2)  # of one or two local steps; of three in a round, two come again in the next
READS = (fc.FedALA,)  # the methods that `on_host` names
LATER = (fc.FedALA, fc.STEM)  # what they ask of the engine after a client's first round is not what they ask in it


def normed(shape, classes) -> nn.Module:
    """Convolution and batch norm, which the paths treat in ways of their own, and a representation layer."""
    body = (nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6))
    return fc.models.Projected(nn.Sequential(*body), nn.Linear(6, classes))


def waits_for_nothing(z, y):
    """A loss per sample of a user's."""
    return (z.softmax(-1) - nn.functional.one_hot(y, 3)).square().sum(-1)


def small(model=contrastive, **options) -> fc.Federation:
    """Clients with unequal numbers of local steps."""
    return h.network(SIZES, model, dtype=torch.float32, **options)


def pretend(method, fed, free=1e12, chunk=None, host_reads=False, **options):
    """Rounds on the pretended GPU; smaller networks are made before, on the CPU."""
    settings = RUN | {"cohort": None if method.full_participation else 3} | options
    fed = method.on(fed)
    if isinstance(method, fc.algorithms.Submodel):
        fc.simulate(method, fed, **settings)
    allowed = nullcontext()
    if host_reads:
        allowed = pytest.MonkeyPatch.context()
    with allowed as patch, pretended_gpu(free):
        if host_reads:  # the first look goes on, the second ends it, and the first is after the second epoch
            patch.setattr(personal, "on_host", lambda v, looks=itertools.cycle([True, False]): next(looks))
            patch.setattr(personal, "LOOK_BACK", 1)
        return fc.simulate(method, on_gpu(fed), chunk=chunk, **settings)


def on_device(history, method, home="cuda") -> None:
    for name, value in history.state.items():
        assert value.device.type == (home if name in method.client_state else "cuda"), name


def written_out(shape, classes) -> nn.Module:
    """As `normed`, of layers that the written path knows."""
    body = (nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU())
    return nn.Sequential(*body, nn.Linear(6, classes))


FEW, MORE = [fc.FedAvg(), fc.Mime(0.6), fc.SCAFFOLD("I")], {"clip": 1.0, "momentum": 0.5, "weight_decay": 0.01}
ONE, BF16 = {"rounds": 1}, {"compute": torch.bfloat16}
# methods, options of the federation, and of the run
ROUNDS = {
    "batched": (METHODS, {"model": normed, "path": "batched"}, {}),
    "written": (h.ASKING, {"model": written_out, "path": "written"}, ONE),
    "states in host memory": ([m for m in h.ASKING if m.client_state], {}, {"chunk": 100, "free": 0.0}),
    "in chunks from host memory": ([*h.ASKING, *(m for m in METHODS if m.client_state)], {}, {"chunk": 2}),
    "sequential": (h.ASKING, {"model": normed, "path": "sequential"}, ONE),
    "linear": (FEW, {"model": "mlp", "path": "written"}, ONE),
    **{f"{path} in bfloat16": (FEW, {"model": model, "path": path} | BF16, {})
       for path, model in (("batched", normed), ("sequential", normed), ("written", written_out))},
    "full batches": (FEW, {}, {"batch_size": None}),
    "cropped and mirrored": ([fc.FedAvg()], {"augment": fc.CropFlip(2)}, {}),
    "decay, clip and momentum": (FEW, {}, MORE),
    **{f"a loss of the user's, {path}, {name}": ([fc.SCAFFOLD()], {"path": path, "loss": loss}, {})
       for path in ("batched", "sequential")
       for name, loss in (("module", nn.CrossEntropyLoss(label_smoothing=0.1)), ("function", waits_for_nothing))},
}  # fmt: skip
CASES = [
    pytest.param(method, made, options, id=f"{kind}-{method!r}")
    for kind, (methods, made, options) in ROUNDS.items()
    for method in methods
    if made.get("path") != "written" or not isinstance(method, fc.MOON | fc.FixBN)  # which cannot take it
]


@pytest.mark.parametrize(("method", "made", "options"), CASES)
@pytest.mark.filterwarnings("error:.*[Aa]utocast")
def test_no_round_mixes_devices_or_waits_for_one(method, made, options):
    """The verbs of a method do not know the path: of those that ask the same of the engine, one is often enough."""
    if isinstance(method, LATER):
        options = options | {"rounds": 2}
    warns = pytest.warns(UserWarning, match="host memory") if "free" in options else nullcontext()
    with warns:
        history = pretend(method, small(**made), host_reads=isinstance(method, READS), **options)
    on_device(history, method, "cpu" if "chunk" in options else "cuda")


def test_the_script_for_a_gpus_first_minutes_runs_on_a_pretended_one():
    command = [sys.executable, "benchmarks/gpu.py", "out.json", "--dry", "--settings", "pfl-research"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "out.json").exists()


# --- the pretence would see it --------------------------------------------------------------------------------------


class Mixes(fc.FedAvg):
    def aggregate(self, r, y):
        return {"x": r.x + r.mean(y - r.x) + torch.zeros(len(r.x))}


class Waits(fc.FedAvg):
    def direction(self, G, y, r):
        return G(y) if float(y.sum()) > 0 else 2 * G(y)


def test_a_method_that_mixes_devices_or_waits_is_seen():
    with pytest.raises(RuntimeError, match=re.compile("device", re.I)):
        pretend(Mixes(), small())
    with pytest.raises(Exception, match=r"item|data-dependent|_local_scalar_dense"):
        pretend(Waits(), small())
