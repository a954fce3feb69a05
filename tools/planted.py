"""Plants one error at a time into a copy of the package and reports which of them a test catches.

    python -m tools.planted                 # all of them, in one process at a time
    python -m tools.planted FedSMOO mixing  # those whose place or test selection has one of these words

An error is a place in the package, a text that stands there exactly once, what replaces it, and the quickest tests that
must fail for it.  A place is a dotted name, such as `FedAvg.aggregate` or `topology.gap`, found in the source wherever
its file is.  An entry whose place or text no longer fits is refused, all of them by name, before anything runs; so is a
selection of tests that is empty or fails without any error.  The exit status is 0 when every error is caught.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("fedcore", "tests", "tools", "pyproject.toml", "requirements.txt", "README.md")
REF, EXACT, SUB = "test_reference.py", "test_exact.py", "test_submodels.py"


class Planted(NamedTuple):
    """An error: in the definition `place`, `text` (once) becomes `error`; `tests` are a file and a `-k` expression."""

    place: str
    text: str
    error: str
    tests: tuple[str, str]


def _of(*rows: tuple[str, str, str, tuple[str, str]]) -> list[Planted]:
    return [Planted(*row) for row in rows]


METHODS = _of(
    # averaging
    ("FedAvg.aggregate", "r.mean(y - r.x)", "r.mean(r.x - y)", (REF, "FedAvg and not DFed")),
    ("FedAvg.aggregate", "self.server_momentum * r.v + delta", "self.server_momentum * (r.v + delta)", (REF, "FedAvg and not DFed")),
    ("FedAvg.aggregate", "r.server_lr * v", "v", (REF, "FedAvg and not DFed")),
    ("FedSGD.local_work", '"batch_size": None', '"batch_size": 20', (REF, "FedSGD")),
    ("FedSMB.local_work", '"walk": True', '"walk": False', (REF, "FedSMB")),
    # proximal
    ("FedProx.direction", "self.mu * (y - r.x)", "0.99 * self.mu * (y - r.x)", (REF, "FedProx")),
    ("FedProx.direction", "+ self.mu", "- self.mu", (REF, "FedProx")),
    ("FedUp.direction", "(r.x_prev - r.x)", "(r.x - r.x_prev)", (REF, "FedUp")),
    ("FedUp.direction", "self.alpha / r.lr", "self.alpha", (REF, "FedUp")),
    ("FedUp.direction", "+ self.alpha * (y - r.x)", "", (REF, "FedUp")),
    ("FedUp.aggregate", '"x_prev": r.x}', '"x_prev": r.x_prev}', (REF, "FedUp")),
    ("FedSplit.direction", "2 * r.x - r.z_i", "r.x - r.z_i + r.x / 1.01", (REF, "FedSplit")),
    ("FedSplit.aggregate", "2 * (y - r.x)", "(y - r.x)", (REF, "FedSplit")),
    # control variates
    ("SCAFFOLD.direction", "- r.c_i + r.c", "+ r.c_i - r.c", (REF, "SCAFFOLD")),
    ("SCAFFOLD.aggregate", "(r.K * r.lr)", "(r.K.max() * r.lr)", (REF, "SCAFFOLD")),
    ("SCAFFOLD.aggregate", "r.sum(c_i - r.c_i) / r.n", "r.sum(c_i - r.c_i) / r.m", (REF, "SCAFFOLD")),
    ("SCAFFOLD.aggregate", "r.full_gradient(r.x.expand_as(y))", "r.full_gradient(y)", (REF, "SCAFFOLD")),
    ("FedDyn.direction", "r.x + r.h_i", "r.x - r.h_i", (REF, "FedDyn")),
    ("FedDyn.aggregate", "r.sum(delta) / r.n", "r.mean(delta)", (REF, "FedDyn")),
    ("FedDyn.aggregate", '"h_i": r.h_i + delta', '"h_i": delta', (REF, "FedDyn")),
    ("FedDC.direction", "- r.c_i + r.c", "", (REF, "FedDC")),
    ("FedDC.aggregate", "c_i = r.c_i - r.c -", "c_i = r.c_i + r.c -", (REF, "FedDC")),
    ("FedDC.aggregate", "r.mean(delta) + h", "r.mean(delta) + r.h", (REF, "FedDC")),
    ("FedPVR.aggregate", "r.mask * (r.c_i", "(r.c_i", (REF, "FedPVR")),
    ("FedPVR.mask", 'f"{layer}."', 'f"{layer}"', (EXACT.replace("exact", "exact_corrections"), "pvr or PVR")),
    # momentum
    ("MimeLite.direction", "(1 - self.beta) * G(y)", "G(y)", (REF, "MimeLite")),
    ("MimeLite.aggregate", "r.full_gradient(r.x.expand_as(y))", "r.full_gradient(y)", (REF, "MimeLite")),
    ("Mime.direction", "G(r.x.expand_as(y))", "r.full_gradient(r.x.expand_as(y))", (REF, "Mime and not Lite")),
    ("Mime.aggregate", "self.beta) * r.C + self.beta * r.s", "self.beta) * r.s + self.beta * r.C", (REF, "Mime and not Lite")),
    ("Mime.prepare", "r.mean(r.full_gradient(r.x.expand(r.m, -1)))", "r.full_gradient(r.x.expand(r.m, -1)).mean(0)", (REF, "Mime and not Lite")),
    ("STEM._a", "self.learning_rate(t - 1, 0.0)", "self.learning_rate(t, 0.0)", (REF, "STEM")),
    ("STEM.learning_rate", "(1 / 3)", "(1 / 2)", (REF, "STEM")),
    ("STEM.direction", "(1 - self._a(r.t))", "self._a(r.t)", (REF, "STEM")),
    ("STEM.aggregate", "r.gradient(r.y_prev, 0)", "r.gradient(y, 0)", (REF, "STEM")),
    ("STEM.aggregate", "r.gradient(y, 0) + ", "r.gradient(y, 1) + ", (REF, "STEM")),
    # sharpness
    ("FedSAM.direction", "y + ascent(", "y - ascent(", (REF, "FedSAM and not DFed")),
    ("ascent", "g.norm(dim=-1, keepdim=True)", "g.norm()", (REF, "FedSAM and not DFed")),
    ("FedSMOO.direction", "r.mu.add_(e - r.s)", "r.mu.add_(e + r.s)", (REF, "FedSMOO")),
    ("FedSMOO.direction", "G(y) - r.mu - r.s", "G(y)", (REF, "FedSMOO")),
    ("FedSMOO.direction", "G(y) - r.mu - r.s", "G(y) - r.mu", (REF, "FedSMOO")),
    ("FedSMOO.aggregate", "ascent(r.mean(r.mu), self.rho)", "r.mean(r.mu)", (REF, "FedSMOO")),
    ("FedSMOO.aggregate", '"mu_i": r.mu}', '"mu_i": r.mu_i}', (REF, "FedSMOO")),
    # contrast
    ("MOON.direction", "r.prev)", "r.x.expand_as(y))", (REF, "MOON")),
    ("MOON.contrast", "far - near", "near - far", (REF, "MOON")),
    ("MOON.contrast", "/ self.tau", "* self.tau", (REF, "MOON")),
    ("MOON.aggregate", '"prev": y}', '"prev": r.x.expand_as(y)}', (REF, "MOON")),
    # decentralised
    ("Gossip.aggregate", "r.W.ordered(r.clients)", "r.W", (REF, "DFedAvg and not DFedAvgM")),
    ("Gossip.broadcast", "r.X", "r.x", (REF, "DFedAvg and not DFedAvgM")),
    ("DPSGD.mixed", "r.W @ r.X + (y - r.X)", "r.W @ y", (REF, "DPSGD")),
    ("DPSGD.local_work", '"walk": True', '"walk": False', (REF, "DPSGD")),
    ("DFedAvgM.local_momentum", "self.momentum", "momentum", (REF, "DFedAvgM")),
    ("DFedSAM.mixed", "range(self.gossip_steps)", "range(1)", (REF, "DFedSAM")),
    ("DFedGAM.direction", "a = y + ascent(G(y, along=g), self.rho)", "a = y + ascent(g, self.rho)", (REF, "DFedGAM")),
    ("DFedGAM.direction", "return g + self.alpha", "return ga + self.alpha", (REF, "DFedGAM")),
    ("DFedGAM._accelerated", "self.rho_inner))\n        w", "self.rho))\n        w", (REF, "DFedGAM")),
    ("DFedGAM._accelerated", "(1 - self.beta0) * g2", "self.beta0 * g2", (REF, "DFedGAM")),
    ("DFedGAM._accelerated", "(g - along * w)", "g", (REF, "DFedGAM")),
    # personal
    ("FedBN.broadcast", "torch.where(r.bn, r.bn_i, r.x)", "r.x", (REF, "FedBN")),
    ("FedBN.aggregate", "torch.where(r.bn, r.mean(y), x)", "x", (REF, "FedBN")),
    ("FedALA.learn", "theta_i + D * W[:, top]\n                loss", "theta_i + D\n                loss", (REF, "FedALA")),
    ("FedALA.learn", "W[:, top].clamp_(0, 1)", "W[:, top].clamp_(0, 0.9)", (REF, "FedALA")),
    ("FedALA.learn", "active * (self.lr * g * D)", "active * (self.lr * g)", (REF, "FedALA")),
    ("FedALA.prepare", "second = r.visits == 1", "second = r.visits == 0", (REF, "FedALA")),
    ("FedALA.learn", "len(losses) > LOOK_BACK", "len(losses) >= LOOK_BACK", (REF, "FedALA")),
    ("FedALA.aggregate", '"theta_i": y', '"theta_i": r.x.expand_as(y)', (REF, "FedALA")),
    ("FedALA.aggregate", '"W_i": r.W}', '"W_i": r.W_i}', (REF, "FedALA")),
)  # fmt: skip

SUBMODELS = _of(
    ("Submodel.score", "-torch.arange(w", "torch.arange(w", (REF, "HeteroFL")),
    ("Submodel.aggregate", "r.mask, r.p", "r.kept, r.p", (REF, "HeteroFL")),
    ("Submodel.prepare", "ratio if self.scaled else np.ones_like(ratio)", "np.ones_like(ratio)", (REF, "HeteroFL")),
    ("Submodel.split", "self.scaled", "False", (REF, "HeteroFL")),
    ("Submodel.ratios", "rng.CAPACITY, t,", "rng.CAPACITY, 0,", (REF, "HeteroFL")),
    ("FedRolex.score", "r.t) % w", "2 * r.t) % w", (REF, "FedRolex")),
    ("FedRolex.score", "- r.t) % w", "+ r.t) % w", (REF, "FedRolex")),
    ("FederatedDropout.score", "noise(r, neurons)", "[n.flip(1) for n in noise(r, neurons)]", (REF, "FederatedDropout")),
    ("noise", "rng.MASK, r.t, clients", "rng.MASK, 0, clients", (REF, "FederatedDropout")),
    ("FedDSE.score", "h / T - torch.log", "h * T - torch.log", (REF, "FedDSE")),
    ("FedDSE.score", "return H\n", "return [-h for h in H]\n", (REF, "FedDSE")),
    ("FedDSE.score", "h.std(1", "h.var(1", (REF, "FedDSE")),
    ("FedGSE.score", "torch.where((r.last != 0).any(1, keepdim=True), r.last, r.x)", "r.last[0].expand_as(r.last)", (REF, "FedGSE")),
    ("FedGSE.score", "torch.where((r.last != 0).any(1, keepdim=True), r.last, r.x)", "r.x.expand_as(r.last)", (REF, "FedGSE")),
    ("FedGSE.score", "h.sum(1).abs()", "h.abs().sum(1)", (REF, "FedGSE")),
    ("FedGSE.similar_samples", "guess == truth", "guess != truth", (REF, "FedGSE")),
    ("FedGSE.similar_samples", "+ ~usable", "", (REF, "FedGSE")),
    ("FedGSE.aggregate", "torch.where(r.kept, y, 0)", "y", (REF, "FedGSE")),
    ("FjORD.drawn", 'side="right"', 'side="left"', (REF, "FjORD")),
    ("FjORD._add", "decay=teacher is None", "decay=True", (REF, "FjORD")),
    ("FjORD.drawn", "r.ids[:a], r.step", "r.ids[:a], 0", (REF, "FjORD")),
    ("_soft", "teacher.softmax(-1)", "teacher.log_softmax(-1)", (REF, "FjORD")),
    ("DepthFL.direction", "min(r.t, self.ramp)", "min(max(r.t - 1, 0), self.ramp)", (REF, "DepthFL")),
    ("DepthFL.direction", "r.x + r.h_i", "r.x", (REF, "DepthFL")),
    ("DepthFL._teach", "/ (D - 1)", "/ D", (REF, "DepthFL")),
    ("DepthFL._teach", "D * own - cross", "own - cross", (REF, "DepthFL")),
    ("DepthFL.aggregate", "x + h, x)", "x + r.h, x)", (REF, "DepthFL")),
    ("DepthFL.aggregate", "torch.where(r.mask, y - r.x, 0)", "0.99 * torch.where(r.mask, y - r.x, 0)", (REF, "DepthFL")),
    ("DepthFL.split", "np.ceil(", "np.floor(0.5 + ", (REF, "DepthFL")),
    ("own_labels", 'fill = 0.0 if reading == "zero"', 'fill = -1.0 if reading == "zero"', (REF, "HeteroFL")),
    ("_dealt", "counts - exact", "exact - counts", (SUB, "capacities_are_dealt")),
    ("kept", "math.ceil(round(ratio * width, 9))", "max(1, int(ratio * width))", (SUB, "rounded_up")),
    ("combine", "delta / share", "delta", (SUB, "combine")),
    ("combine", "share > 0, x + server_lr", "share >= 0, x + server_lr", (SUB, "combine or toy")),
    ("Neurons.places", "keep[stream][:, :, None] * block + inside", "keep[stream][:, :, None] + inside", (SUB, "columns")),
    ("Neurons.top", "descending=True", "descending=False", (REF, "FedRolex")),
    ("Neurons.only_owned", "&= owned", "|= owned", (REF, "HeteroFL")),
    ("_Walk.join", "if self.aligned and a != b", "if False", (SUB, "residual_stream")),
    ("with_heads", "widths[-1] != inside[-1][0]", "widths[-1] < inside[-1][0]", (SUB, "stage")),
    ("Depth.places", "< self.stages", "<= self.stages", (SUB, "first_stages")),
)  # fmt: skip

ROUND = _of(
    ("_Run._local", "s[\"clip\"] / v.norm", "1.01 * s[\"clip\"] / v.norm", (REF, "FedProx")),
    ("_Run._local", "mul_(momentum).add_(v)", "mul_(momentum).add_(v, alpha=1 - momentum)", (REF, "FedProx")),
    ("_Run._decayed", 'self.s["weight_decay"] * y', '2 * self.s["weight_decay"] * y', (REF, "FedProx")),
    ("_Run.round", '** t)\n', '** (t + 1))\n', (REF, "FedProx")),
    ("_Run._view", 's["weighting"] == "samples"', 's["weighting"] != "samples"', (REF, "FedProx")),
    ("Round.mean", "self.p[:, 0]", "self.p[:, 0].flip(0)", (REF, "FedProx")),
    ("Gossip.prepare", "r.seed, r.t", "r.seed, 0", (REF, "DFedAvgM")),
)  # fmt: skip

TOPOLOGY = _of(
    ("Ring.lists", "[0, 1, -1]", "[0, 1, 2]", ("test_topology.py", "ring or symmetric or drawing")),
    ("Torus.lists", "[0, 0, 0, 1, -1]", "[0, 0, 0, 1, -2]", ("test_topology.py", "torus or symmetric")),
    ("Exponential.lists", "2**j", "3**j", ("test_topology.py", "exponential")),
    ("RandomRegular.lists", "np.triu(~missing, 1)", "np.triu(~missing, 2)", ("test_topology.py", "every_degree or symmetric")),
    ("DirectedRandom.lists", "chosen >= own", "chosen > own", ("test_topology.py", "directed")),
    ("Mixing.ordered", "place[self.indices[clients]]", "self.indices[clients]", ("test_topology.py", "another_order")),
    ("_metropolis", "np.maximum(degree[a], degree[b])", "np.minimum(degree[a], degree[b])", ("test_topology.py", "path or symmetric")),
    ("topology.gap", "[1:2]", "[2:3]", ("test_topology.py", "gap")),
    ("_regular", "(pairs[:, 0] != pairs[:, 1]) &", "", ("test_topology.py", "every_degree or symmetric or 100_client")),
    ("_circle", "1 / len(offsets)", "1.01 / len(offsets)", ("test_topology.py", "ring or symmetric")),
    ("topology.check", "W.sum(axis) - 1", "W.sum(1) - 1", ("test_topology.py", "refused")),
    ("_mixing", "seed, t)", "seed, 0)", ("test_topology.py", "100_client")),
)  # fmt: skip

DATA = _of(
    ("IID.split", "rng.permutation(len(labels))", "np.arange(len(labels))", ("test_partitions.py", "same_seed")),
    ("Dirichlet.split", "(size < N / clients)", "(size < 2 * N / clients)", ("test_partitions.py", "dirichlet")),
    ("Dirichlet.split", "np.full(clients, self.q)", "np.full(clients, 2 * self.q)", ("test_partitions.py", "dirichlet")),
    ("Dirichlet._equal", "self.q)", "1.0)", ("test_partitions.py", "skewed or dirichlet")),
    ("Dirichlet.split", ">= least", ">= 1", ("test_partitions.py", "dirichlet")),
    ("ByOwner.split", "owners = np.sort(rng.choice(owners, clients, replace=False))", "owners = owners[:clients]", ("test_partitions.py", "owner")),
    ("rng.word", "h >> 27", "h >> 26", ("test_randomness.py", "hash")),
    ("rng.words", "np.uint64(30)", "np.uint64(31)", ("test_randomness.py", "hash")),
    ("rng.cohort", "% (j + 1)", "% n", ("test_randomness.py", "cohort")),
    ("Federation.plan", "valid / np.maximum(counts, 1)[..., None]", "valid / batch_size", (REF, "FedAvg and not DFed")),
    ("Federation.plan", "position // batch_size", "position // (batch_size + 1)", ("test_randomness.py", "epoch or weights")),
    ("Federation.plan", "rng.words(seed, rng.BATCH, t, clients)", "rng.words(seed, rng.BATCH, 0, clients)", ("test_randomness.py", "batches")),
    ("Federation.plan", "np.full_like(K, t if walk else 0)", "np.full_like(K, 0)", (REF, "FedSMB")),
    ("Federation.full_gradient", "valid / sizes[:, None]", "valid / sizes.max()", (REF, "FedSGD")),
    ("Federation._inputs", "- mean).div_(std)", "- mean)", ("test_data.py", "bytes or normalised")),
    ("_statistics", "x.mean((0, 2, 3))", "x.mean((0, 2, 3)) + 1", ("test_data.py", "bytes or normalised")),
    ("Federation.objective", "/ self.n", "/ self.sizes.sum()", ("test_contract.py", "objective")),
    ("_set_aside", "[:k]", "[:k + 1]", (SUB, "public")),
    ("Quadratic.gradient", "self.A[i]", "self.A[i.flip(0)]", (EXACT, "fedavg or FedAvg")),
)  # fmt: skip

ENGINE = _of(
    ("Written._run", "-1.0, reduce", "-1.01, reduce", ("test_engine_paths.py", "written_gradient or Written")),
    ("fast._Linear.__call__", "e.sum(1)", "e.mean(1)", (REF, "FedAvg and not DFed")),
    ("fast._Conv2d._columns", "x.new_zeros", "x.new_ones", ("test_engine_paths.py", "autograds")),
    ("fast._Scaler.__call__", "e / rate", "e", (REF, "HeteroFL")),
    ("fast._Mean.__call__", "e / size", "e", ("test_engine_paths.py", "autograds")),
    ("fast._ReLU.__call__", "threshold_backward(e, out, 0)", "threshold_backward(e, out, 0.01)", ("test_engine_paths.py", "autograds")),
    ("engine._batch_norm", "torch.rsqrt((rows.square() * real)", "torch.rsqrt(1.01 * (rows.square() * real)", ("test_engine.py", "batch_norm")),
    ("engine._linear", 'p[prefix + "bias"].unsqueeze(1)', '0 * p[prefix + "bias"].unsqueeze(1)', ("test_engine.py", "both_paths")),
    ("engine._conv", "groups=m", "groups=1", ("test_engine.py", "both_paths")),
    ("engine._residual", "torch.relu(body +", "(body +", ("test_engine.py", "both_paths")),
    ("engine._projected", "encoder.\", x", "encoder.\", 1.01 * x", (REF, "MOON")),
    ("Engine._sequential", "x[i, :count]", "x[i, :]", ("test_engine.py", "padding or both_paths")),
    ("Engine._derivatives", "slope = sum((g * v)", "slope = sum((g + v)", (REF, "DFedGAM")),
    ("Engine.descend", "(counts[:, part] > 0)", "(counts[:, part] >= 0)", (REF, "FedAvg and not DFed")),
    ("Engine.evaluate", "hits.double() / count", "hits.double() / (count + 1)", ("test_engine.py", "evaluat or statistics")),
    ("Engine._collect_statistics", "norm.reset_running_stats()", "pass", ("test_engine.py", "statistics or evaluated")),
)  # fmt: skip

ERRORS = [*METHODS, *SUBMODELS, *ROUND, *TOPOLOGY, *DATA, *ENGINE]


# --- finding and planting ----------------------------------------------------------------------------------------


def definitions(package: Path) -> list[tuple[str, Path, int, int]]:
    """Every function and class: dotted name from the package on, file, first and last line."""
    found: list[tuple[str, Path, int, int]] = []

    def walk(node: ast.AST, name: str, file: Path) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found.append((f"{name}.{child.name}", file, child.lineno, child.end_lineno))
                walk(child, f"{name}.{child.name}", file)

    for file in sorted(package.rglob("*.py")):
        walk(ast.parse(file.read_text()), ".".join(file.relative_to(package.parent).with_suffix("").parts), file)
    return found


def planted(error: Planted, known: list[tuple[str, Path, int, int]]) -> tuple[Path, str]:
    """The file that the error is in, and its text with the error; LookupError where it does not fit."""
    places = [d for d in known if f".{d[0]}".endswith(f".{error.place}")]
    if len(places) != 1:
        raise LookupError(f"{error.place}: {len(places)} definitions of that name")
    _, file, first, last = places[0]
    lines = file.read_text().splitlines(keepends=True)
    body = "".join(lines[first - 1 : last])
    if body.count(error.text) != 1:
        raise LookupError(f"{error.place}: {error.text!r} stands there {body.count(error.text)} times")
    return file, "".join([*lines[: first - 1], body.replace(error.text, error.error), *lines[last:]])


def run(folder: Path, tests: tuple[str, str]) -> int:
    """pytest's exit status for a selection, in a child process that has torch already."""
    file, words = tests
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(folder)
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        import pytest

        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", f"tests/{file}", "-k", words])
    finally:
        os._exit(int(status))


def main(words: list[str]) -> int:
    """Plants the errors that have one of the words (default: all), prints a table; 0 when all are caught."""
    errors = [e for e in ERRORS if not words or any(w in f"{e.place} {e.tests}" for w in words)]
    sys.dont_write_bytecode = True
    for name in ("torch", "numpy", "pytest", "pandas", "hypothesis"):  # what children need not import again
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        skip = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=skip)
            else:
                shutil.copy(source, folder / name)
        known, misfits, texts = definitions(folder / "fedcore"), [], []
        for error in errors:
            try:
                texts.append(planted(error, known))
            except LookupError as e:
                misfits.append(str(e))
        if misfits:
            print("these entries no longer fit the source:", *misfits, sep="\n  ")
            return 2
        for tests in sorted({e.tests for e in errors}):
            if status := run(folder, tests):
                misfits.append(f"tests/{tests[0]} -k {tests[1]!r}: exit status {status}")
        if misfits:
            print("these selections are empty or fail without any error:", *misfits, sep="\n  ")
            return 2
        verdicts: Counter[str] = Counter()
        for error, (file, text) in zip(errors, texts, strict=True):
            sound, begin = file.read_text(), time.perf_counter()
            file.write_text(text)
            status = run(folder, error.tests)
            file.write_text(sound)
            verdict = {0: "MISSED", 1: "caught"}.get(status, f"status {status}")
            verdicts[verdict] += 1
            change = f"{error.text.strip()!r} -> {error.error.strip()!r}"
            print(f"{verdict:8} {time.perf_counter() - begin:5.1f} s  {error.place:28} {change}", flush=True)
        print(*(f"{verdict}: {n}" for verdict, n in verdicts.items()), sep=", ")
    return 0 if set(verdicts) == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
