"""What several test files share: small problems, and oracles from the equations with numpy and autograd alone."""

from __future__ import annotations

import copy
import multiprocessing
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import Dataset

import fedcore as fc
from tools import book

ROOT = Path(__file__).resolve().parent.parent
SERVER = multiprocessing.get_context("forkserver")  # a process that imports these once and forks for each process
SERVER.set_forkserver_preload(["fedcore.reproduce", "pytest"])

# a quick cell of a table
SPEC = {
    "study": "simulate",
    "method": ["FedAvg", {}],
    "federation": {"source": "digits", "clients": 10, "partition": ["Dirichlet", {"q": 0.3}], "model": "logistic"},
    "run": {"rounds": 4, "cohort": 3, "lr": 0.1, "eval_every": 2},
}

# a learning rate and local steps with all clients in every round
LR, K = 0.1, 5
FULL = {"lr": LR, "local_steps": K}


def problem(
    n: int = 4, p: int = 3, seed: int = 0, low: float = 0.3, high: float = 3.0
) -> tuple[np.ndarray, np.ndarray]:
    """n quadratics in p dimensions: eigenvalues of A_i in [low, high], own eigenvectors, minimisers b_i apart."""
    rng = np.random.default_rng(seed)
    A = np.empty((n, p, p))
    for i in range(n):
        Q, _ = np.linalg.qr(rng.normal(size=(p, p)))
        A[i] = Q @ np.diag(rng.uniform(low, high, p)) @ Q.T
    A = (A + A.transpose(0, 2, 1)) / 2
    return A, 2 * rng.normal(size=(n, p))


def turned(seed: int) -> tuple[np.ndarray, np.ndarray, fc.Quadratic]:
    """Quadratics with curvatures between 0.2 and 4: `A [n, p, p]`, `b [n, p]`, and the federation."""
    A, b = problem(seed=seed, low=0.2, high=4)
    return A, b, fc.quadratic(A, b, x0=3 * np.ones(3))


def optimum(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """x* = (sum A_i)^-1 sum A_i b_i."""
    return np.linalg.solve(A.sum(0), np.einsum("npq,nq->p", A, b))


def golden(x0: float = 0.0) -> fc.Quadratic:
    """P1 of the test catalogue: a = (1, 3), b = (1, -1); its optimum is -0.5."""
    return fc.quadratic([[[1.0]], [[3.0]]], [[1.0], [-1.0]], x0=[x0])


def images(n: int = 60, shape: tuple[int, ...] = (1, 8, 8), classes: int = 5, seed: int = 0):
    """`(x, y)`: n random uint8 images and labels, every label present."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % classes)
    x = rng.integers(0, 256, (n, *shape)).astype(np.uint8)
    x.reshape(n, -1)[:, 0] = 250 * y // classes  # something to learn
    return x, y


class Items(Dataset):
    """A list as a map-style dataset."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


def network(sizes: tuple[int, ...] = (13, 7, 20, 4, 9), model="mlp", shape=(1, 4, 4), classes=3, seed=0, **options):
    """A small federation whose clients have exactly these sizes; float64 unless told otherwise."""
    x, y = images(sum(sizes), shape, classes, seed)
    arrays = {
        "train_images": x, "train_labels": y, "test_images": x[:10], "test_labels": y[:10],
        "train_owner": np.repeat(np.arange(len(sizes)), sizes),
    }  # fmt: skip
    if model == "mlp":
        model = small_mlp
    options = {"dtype": torch.float64, "device": "cpu"} | options
    return fc.federation(arrays, partition=fc.ByOwner(), model=model, seed=seed, **options)


def small_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return fc.models.mlp(shape, classes, hidden=(8,))


def gradient(module: nn.Module, flat: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the mean cross-entropy of one model at `flat [d]`, by plain autograd."""
    flat = flat.detach().clone().requires_grad_()
    named, at = {}, 0
    for name, p in module.named_parameters():
        named[name] = flat[at : at + p.numel()].reshape(p.shape)
        at += p.numel()
    module = copy.deepcopy(module)  # functional_call leaves a module changed that uses one layer twice
    return torch.autograd.grad(F.cross_entropy(functional_call(module, named, (x,)), y), flat)[0]


def batches(fed: fc.Federation, seed: int, t: int, i: int, **work) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The mini-batches (inputs, labels) of client i in round t, one per local step."""
    plan = fed.plan(seed, t, np.array([i]), **work)
    picked = [plan.indices[k, 0, : plan.counts[k, 0]] for k in range(plan.steps[0])]
    return [(fed.inputs(fed.x[rows]), fed.y[rows]) for rows in picked]


def whole(fed: fc.Federation, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All training data of client i, as the model sees it."""
    return samples(fed, fed.index[i])


def samples(fed: fc.Federation, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """These training samples (inputs, labels), as the model sees them."""
    rows = torch.as_tensor(rows)
    return fed.inputs(fed.x[rows]), fed.y[rows]


def public(fed: fc.Federation) -> tuple[torch.Tensor, torch.Tensor]:
    """The federation's public samples (inputs, labels), as the model sees them."""
    return fed.inputs(fed.public[0]), fed.public[1]


def watched(method: fc.Method, fed, **options) -> tuple[fc.History, list]:
    """A run, and what a probe sees of its rounds: `(r, y)`, the round and the local models."""
    seen: list = []
    return fc.simulate(method, fed, probes=[lambda r, y: seen.append((r, y)) or {}], **options), seen


def trajectory(method: fc.Method, fed, rounds: int, **options) -> np.ndarray:
    """x after 0, 1, ..., rounds rounds, `[rounds + 1, d]`, from one run."""
    history, seen = watched(method, fed, rounds=rounds, **options)
    return np.array([*(r.x.numpy() for r, _ in seen), history.params.numpy()])


def close(a, b, tolerance: float) -> None:
    """Assert |a - b| <= tolerance * max(1, |b|), entry by entry."""
    a, b = (np.asarray(v.detach() if hasattr(v, "detach") else v, dtype=float) for v in (a, b))
    assert a.shape == b.shape or not b.shape, f"shapes {a.shape} and {b.shape}"
    gap = np.abs(a - b) / np.maximum(1, np.abs(b))
    assert gap.max() <= tolerance, f"largest deviation {gap.max():.3g} > {tolerance:g}"


def last(method: fc.Method, fed, rounds: int, **options) -> np.ndarray:
    return fc.simulate(method, fed, rounds=rounds, **FULL | options).params.numpy()


def linear(c: list[list[float]]) -> fc.Quadratic:
    """F_i(x) = <c_i, x>, as quadratics of curvature 1e-14 whose minimisers are 1e14 away."""
    c = np.array(c)
    return fc.quadratic(np.repeat(1e-14 * np.eye(c.shape[1])[None], len(c), 0), -1e14 * c)


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    # torch then asks the driver whether there is a GPU, without a context, which processes that fork could not share
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def prose(name: str) -> str:
    """What is written on the page book/NAME: a chapter's Markdown cells, or the file."""
    path = book.ROOT / "book" / f"{name}.ipynb"
    if not path.exists():
        return path.with_suffix(".md").read_text(encoding="utf-8")
    return "\n".join(cell.source for cell in book.read(path).cells if cell.cell_type == "markdown")


# one method for everything that rules ask of the engine: its own local steps, gradients elsewhere, of all data, along a
# direction or of the last layers, representations, smaller networks of every kind, and the scores that choose them
ASKING = [
    fc.FedAvg(), fc.SCAFFOLD("I"), fc.Mime(0.6), fc.STEM(0.4), fc.FedSAM(0.05), fc.MOON(2.0), fc.FedALA(1, 0.8, 0.5),
    fc.DFedGAM(fc.Ring(), 0.05, form="gam"), fc.HeteroFL({1: 0.5, 0.5: 0.5}), fc.FjORD({1: 0.5, 0.5: 0.5}),
    fc.FedRolex(0.5, training="masked"), fc.DepthFL(1.0, alpha=0.2), fc.FedDSE({1: 0.5, 0.5: 0.5}, 1.0),
    fc.FedGSE(0.5, "SPL", public=1),
]  # fmt: skip
