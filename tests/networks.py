"""Networks that several test files share, batches for them, and their gradients by plain autograd."""

from __future__ import annotations

import copy
from functools import lru_cache

import helpers as h
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import fedcore as fc
from fedcore import models
from fedcore.engine import Batch
from fedcore.submodels import multihead

# name, input shape, classes, parameters
NETS = [
    ("logistic", (1, 28, 28), 10, 7_850),
    ("mlp", (1, 28, 28), 10, 199_210),
    ("digit_cnn", (1, 8, 8), 10, 6_090),
    ("femnist_cnn", (1, 28, 28), 62, 25_182),
    ("lenet", (3, 32, 32), 10, 797_962),
    ("cifar_cnn", (3, 32, 32), 10, 57_770),
    ("niid_cnn", (1, 28, 28), 10, 44_426),
    ("resnet18_gn", (3, 32, 32), 10, 11_181_642),
    ("resnet18_gn_3x3", (3, 8, 8), 10, 11_173_962),
    ("cnn", (1, 8, 8), 10, 6_090),
    ("digit_model", (3, 28, 28), 10, 14_219_210),
    ("digit_model_small", (3, 16, 16), 10, 24_546),
    ("thesis_mlp", (1, 28, 28), 10, 40_724),
    ("thesis_cnn", (1, 28, 28), 10, 1_556_874),
    ("thesis_cnn_small", (1, 8, 8), 10, 24_170),
    ("preact_resnet18", (3, 9, 9), 10, 11_172_170),
    ("preact_resnet34", (3, 9, 9), 200, 21_377_800),
]
# without those that are another of them with other sizes, or more of the same blocks
DISTINCT = [n for n in NETS if n[0] not in ("mlp", "cnn", "digit_model", "thesis_cnn", "preact_resnet34")]


@lru_cache(2)
def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    return models.build(name, shape, classes, seed=0)


def thin(name: str, shape: tuple[int, ...], classes: int, by: int = 8) -> nn.Module:
    """A named model, layer by layer as it is, with an eighth of the channels where it has more than 300,000 parameters.

    What a path does with a layer does not depend on how many channels it has, or else on how they compare with the
    pictures' sizes, which stay; networks of eleven million parameters would show the same in a hundred times the time.
    """
    module = copy.deepcopy(build(name, shape, classes))
    if sum(p.numel() for p in module.parameters()) < 3e5:
        return module

    def less(n: int) -> int:
        return n if n == classes or n % by else n // by  # colours and classes stay

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                kind = "channels" if isinstance(layer, nn.Conv2d) else "features"
                for way, size in zip(("out", "in"), layer.weight.shape[:2], strict=True):
                    setattr(layer, f"{way}_{kind}", less(size))
                out, features, *kernel = layer.weight.shape
                layer.weight = nn.Parameter(torch.empty(less(out), less(features), *kernel))
                layer.bias = None if layer.bias is None else nn.Parameter(torch.empty(less(out)))
                layer.reset_parameters()
            elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.__init__(less(layer.num_features))
            elif isinstance(layer, nn.GroupNorm):
                layer.__init__(layer.num_groups, less(layer.num_channels))
    return module


def batch(m: int, B: int, shape, classes: int, dtype=torch.float64, seed: int = 0) -> Batch:
    """Random inputs for m clients; client i has B - i samples (at least one), the rest is padding."""
    g = torch.Generator().manual_seed(seed)
    count = [max(1, B - i) for i in range(m)]
    w = torch.zeros(m, B, dtype=dtype)
    for i, k in enumerate(count):
        w[i, :k] = 1 / k
    x = torch.randn(m, B, *shape, generator=g, dtype=dtype)
    return Batch(x, torch.randint(0, classes, (m, B), generator=g), w, count, list(range(1, m + 1)))


def rows(module: nn.Module, m: int, dtype=torch.float64) -> torch.Tensor:
    """m different parameter vectors near the module's own."""
    flat = models.flatten(module).to(dtype)
    noise = torch.randn(m, len(flat), generator=torch.Generator().manual_seed(1), dtype=dtype)
    return flat + 0.1 * flat.std() * noise


def by_autograd(module: nn.Module, Y: torch.Tensor, b: Batch) -> torch.Tensor:
    return torch.stack([h.gradient(module, Y[i], b.x[i, :k], b.y[i, :k]) for i, k in enumerate(b.count)])


def by_cross_entropy(module: nn.Module, Y: torch.Tensor, b: Batch) -> torch.Tensor:
    views, module = models.Layout.of(module).views, copy.deepcopy(module).train()
    clients = [functional_call(module, views(Y[i]), (b.x[i, :k],)) for i, k in enumerate(b.count)]
    return torch.stack([F.cross_entropy(z, b.y[i, : len(z)]) for i, z in enumerate(clients)])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def normed(shape, classes, p: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(p), nn.Flatten(), nn.Linear(16, classes)
    )


class Net(nn.Module):
    """Layers by name, and a forward in one line."""

    def __init__(self, forward, **layers: nn.Module) -> None:
        super().__init__()
        self.f = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.f(self, x)


LEVELS = {1: 0.2, 0.5: 0.2, 0.25: 0.2, 0.125: 0.2, 0.0625: 0.2}


def residual(shape, classes) -> nn.Module:
    """Post-activation blocks: the first on the stem's stream, the second on one of its own."""
    conv, norm = (lambda a, b: nn.Conv2d(a, b, 3, padding=1, bias=False)), nn.BatchNorm2d
    first = models.Residual(nn.Sequential(conv(8, 8), norm(8), nn.ReLU(), conv(8, 8), norm(8)))
    second = models.Residual(nn.Sequential(conv(8, 12), norm(12)), nn.Sequential(nn.Conv2d(8, 12, 1), norm(12)))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, classes)]
    return nn.Sequential(conv(shape[0], 8), norm(8), nn.ReLU(), first, second, *head)


def preact(shape, classes) -> nn.Module:
    """The thesis' ResNet in small: an identity block and one with a shortcut."""
    blocks = [models.PreAct(8, 8, 1), models.PreAct(8, 12, 2)]
    head = [
        models.Scaler(),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, classes),
    ]
    return nn.Sequential(nn.Conv2d(shape[0], 8, 3, padding=1, bias=False), *blocks, *head)


def vectors(shape, classes) -> nn.Module:
    """Batch norm after a Flatten (a block of columns a channel), on vectors, and a representation layer."""
    trunk = [nn.Conv2d(shape[0], 6, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.BatchNorm1d(54), nn.Linear(54, 10)]
    return models.Projected(
        nn.Sequential(*trunk, nn.BatchNorm1d(10, affine=False), nn.Sigmoid(), nn.Linear(10, 7)), nn.Linear(7, classes)
    )


NARROWED = {
    "thesis_mlp": models.thesis_mlp, "thesis_cnn_small": models.thesis_cnn_small, "digit_cnn": models.digit_cnn,
    "residual": residual, "preact": preact, "vectors": vectors, "heads": multihead("thesis_cnn_small"),
}  # fmt: skip


def deep(shape, classes):
    return fc.models.mlp(shape, classes, hidden=(8, 6))


def scaled(shape, classes):
    """Convolutions with scaler and batch norm, and a linear layer behind several columns a channel."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), fc.models.Scaler(), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1), fc.models.Scaler(), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Flatten(), nn.Linear(24, classes),
    )  # fmt: skip


heads = fc.submodels.multihead(lambda shape, classes: fc.models.mlp(shape, classes, hidden=(8, 6, 5)))
