"""Architectures by name.

All networks are trees of plain layers (`nn.Sequential`, `Residual`), so the engine can run them for a whole cohort
at once.  Parameter counts follow the FedUp study, section 6.1.2; ResNet18-GN and LeNet follow the FedDyn study's public
code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated

from torch import Tensor, nn

from ..support import checks
from .parts import PreAct, Projected, Residual, Scaler


@checks.arguments
def projected(model: str | Callable = "cnn", dim: checks.Count = 256) -> Callable[[Sequence[int], int], nn.Module]:
    """A function for `model=` that makes a model with MOON's projection head: features -> same width -> dim -> classes.

    model: a name in `MODELS`, or a function `(shape, classes) -> Sequential`.

    The returned function raises ValueError for a model whose last layer is not linear.
    """

    def make(shape: Sequence[int], classes: int) -> nn.Module:
        *layers, last = (model if callable(model) else MODELS[model])(shape, classes)
        if not isinstance(last, nn.Linear):
            raise ValueError(f"model={model!r} does not end in a linear layer; use one that does")
        width = last.in_features
        head = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)]
        return Projected(nn.Sequential(*layers, *head), nn.Linear(dim, classes))

    if not callable(model):
        checks.choice("model", model, MODELS)
    return make


def logistic(shape: Sequence[int], classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened input (7,850 parameters for 28x28 and 10 classes)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (200, 200), dropout: float = 0.0) -> nn.Module:
    """Fully connected ReLU network; the default is the 784-200-200-10 of the FedAvg paper (199,210).

    dropout: the probability with which a hidden unit is set to 0 in training.
    """
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def digit_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """A small CNN for 8x8 digits: two 3x3 convolutions (16, 32), each halved by pooling (6,090 parameters)."""
    _expect("digit_cnn", shape, (1, 8, 8))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, classes),
    )  # fmt: skip


def femnist_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """The FedUp study's FEMNIST CNN, reading (A): 320 flattened features -> classes (25,182 for 62 classes)."""
    _expect("femnist_cnn", shape, (1, 28, 28))
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, classes),
    )  # fmt: skip


def lenet(shape: Sequence[int], classes: int) -> nn.Module:
    """The CIFAR LeNet of the FedDyn study: two 5x5 convolutions, two hidden layers (797,962 for 10 classes)."""
    _expect("lenet", shape, (3, 32, 32))
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, classes),
    )  # fmt: skip


def cifar_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """A CNN for a few CPU cores: four times as fast as `lenet` with as many channels (57,770 for 10 classes).

    A 5x5 convolution (16, stride 2) halved by pooling, a 3x3 convolution (32), then 800-64-classes; 3x32x32.
    """
    _expect("cifar_cnn", shape, (3, 32, 32))
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def niid_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """NIID-Bench's CNN (Li et al. 2022): 5x5 convolutions (6, 16), pooled, then 120-84 (44,426 for 28x28 digits)."""
    side = ((shape[-1] - 4) // 2 - 4) // 2 if len(shape) == 3 else 0
    if side < 1 or shape[1] != shape[2]:
        raise ValueError(f"niid_cnn takes square images of 16 pixels or more, the data has shape {tuple(shape)}")
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * side**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


def digit_model(shape: Sequence[int], classes: int) -> nn.Module:
    """FedBN's digit network (Li et al. 2021), with batch norm behind each layer but the last (14,219,210).

    Three 5x5 convolutions (64, 64, 128; the first two halved by pooling), then 6272-2048-512-classes; 3x28x28.
    """
    _expect("digit_model", shape, (3, 28, 28))
    return _normed(shape, classes, (64, 64, 128), (2048, 512))


def digit_model_small(shape: Sequence[int], classes: int) -> nn.Module:
    """`digit_model` with 8, 8, 16 channels and 64-32 features, for any image of at least 4x4 (24,546 for 3x16x16)."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(f"digit_model_small needs images [C, H, W] of at least 4x4, the data has {tuple(shape)}")
    return _normed(shape, classes, (8, 8, 16), (64, 32))


def _normed(shape: Sequence[int], classes: int, channels: Sequence[int], features: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for k, (a, b) in enumerate(itertools.pairwise([shape[0], *channels])):
        layers += [nn.Conv2d(a, b, 5, padding=2), nn.BatchNorm2d(b), nn.ReLU(), *([nn.MaxPool2d(2)] if k < 2 else [])]
    widths = [channels[-1] * (shape[1] // 4) * (shape[2] // 4), *features]
    layers.append(nn.Flatten())
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


Stem = Annotated[str, checks.OneOf(("imagenet", "3x3"))]


@checks.arguments
def resnet18_gn(shape: Sequence[int], classes: int, stem: Stem = "imagenet") -> nn.Module:
    """ResNet18 with GroupNorm (2 groups) instead of BatchNorm (11,181,642 parameters for 10 classes).

    `stem="imagenet"`: 7x7 stride 2 and max-pool, as the FedDyn study (and, following it, FedUp) uses even on 32x32
    images.  `stem="3x3"`: 3x3 stride 1 without pool, 7,680 parameters fewer for RGB and about 15 times the arithmetic.
    """
    if len(shape) != 3:
        raise ValueError(f"resnet18_gn needs images [C, H, W], the data has shape {tuple(shape)}; use model='mlp'")

    def norm(c: int) -> nn.Module:
        return nn.GroupNorm(2, c)

    def block(a: int, b: int, stride: int) -> nn.Module:
        first = [nn.Conv2d(a, b, 3, stride, 1, bias=False), norm(b), nn.ReLU()]
        body = nn.Sequential(*first, nn.Conv2d(b, b, 3, 1, 1, bias=False), norm(b))
        same = a == b and stride == 1
        return Residual(body, None if same else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), norm(b)))

    size, stride, padding = (7, 2, 3) if stem == "imagenet" else (3, 1, 1)
    layers = [nn.Conv2d(shape[0], 64, size, stride, padding, bias=False), norm(64), nn.ReLU()]
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, 2, 1))
    for s, (a, b) in enumerate(itertools.pairwise([64, 64, 128, 256, 512])):
        layers += [block(a, b, 1 if s == 0 else 2), block(b, b, 1)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return net


def resnet18_gn_3x3(shape: Sequence[int], classes: int) -> nn.Module:
    """`resnet18_gn` with the 3x3 stem."""
    return resnet18_gn(shape, classes, stem="3x3")


def thesis_mlp(shape: Sequence[int], classes: int) -> nn.Module:
    """The fully connected network of the FedDSE study, section 3.1.2: 50 and 24 hidden units (40,724 on 28x28)."""
    return mlp(shape, classes, hidden=(50, 24))


def thesis_cnn(shape: Sequence[int], classes: int, widths: Sequence[int] = (64, 128, 256, 512)) -> nn.Module:
    """The CNN of the FedDSE/FedGSE study, which is HeteroFL's `Conv` (1,556,874 parameters on 1x28x28, 10 classes).

    Four blocks [3x3 convolution, scaler, batch norm, ReLU, 2x2 max-pool], the last without its pool, then global
    average pooling and a linear layer.  The study draws a pool in every block; the public code removes the last.
    """
    if len(shape) != 3 or min(shape[1:]) < 2 ** (len(widths) - 1):
        raise ValueError(f"thesis_cnn needs images [C, H, W], H, W >= {2 ** (len(widths) - 1)}, not {tuple(shape)}")
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([shape[0], *widths]):
        layers += [nn.Conv2d(a, b, 3, padding=1), Scaler(), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def thesis_cnn_small(shape: Sequence[int], classes: int) -> nn.Module:
    """`thesis_cnn` with three blocks of 16, 32, 64 channels, for 8x8 digits (24,170 parameters)."""
    return thesis_cnn(shape, classes, widths=(16, 32, 64))


def preact_resnet(shape: Sequence[int], classes: int, blocks: Sequence[int]) -> nn.Module:
    """The pre-activation ResNet of HeteroFL: 3x3 stem without pool, stages of 64, 128, 256, 512, `blocks` each."""
    if len(shape) != 3:
        raise ValueError(f"a ResNet needs images [C, H, W], the data has shape {tuple(shape)}; use model='mlp'")
    if len(blocks) != 4:
        raise ValueError(f"blocks={tuple(blocks)} has {len(blocks)} numbers; use 4, one for each stage")
    widths, layers = [64, 64, 128, 256, 512], [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False)]
    for s, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [PreAct(a, b, 1 if s == 0 else 2), *(PreAct(b, b, 1) for _ in range(blocks[s] - 1))]
    head = [Scaler(), nn.BatchNorm2d(512), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*layers, *head)


def preact_resnet18(shape: Sequence[int], classes: int) -> nn.Module:
    """The FedDSE/FedGSE study's ResNet18 (11,172,170 parameters for RGB and 10 classes, 11,218,340 for 100)."""
    return preact_resnet(shape, classes, (2, 2, 2, 2))


def preact_resnet34(shape: Sequence[int], classes: int) -> nn.Module:
    """The FedDSE/FedGSE study's ResNet34 (21,377,800 parameters for RGB and 200 classes)."""
    return preact_resnet(shape, classes, (3, 4, 6, 3))


class CharLSTM(nn.Module):
    """Embedding, two LSTM layers, and a linear layer on the last step: `[B, L]` symbols -> `[B, classes]`."""

    def __init__(self, symbols: int = 80, embedding: int = 8, hidden: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(hidden, symbols)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(x))[0][:, -1])


def lstm(shape: Sequence[int], classes: int, embedding: int = 8, hidden: int = 100) -> nn.Module:
    """The next-character LSTM of the Shakespeare task: 80 symbols, 8-dimensional embedding, 2x100 (133,520)."""
    if len(shape) != 1:
        raise ValueError(f"lstm takes sequences of symbols [L], the data has {tuple(shape)}; use model='cnn' or 'mlp'")
    return CharLSTM(classes, embedding, hidden)


def cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """The study's network for this image size: 8x8 digit CNN, 28x28 FEMNIST CNN, 32x32 RGB LeNet, digit domains."""
    nets = {(1, 8, 8): digit_cnn, (1, 28, 28): femnist_cnn, (3, 32, 32): lenet}
    nets |= {(3, 16, 16): digit_model_small, (3, 28, 28): digit_model}
    if tuple(shape) not in nets:
        raise ValueError(
            f"model='cnn' has no network for inputs {tuple(shape)}; known are {sorted(nets)}; use model='resnet18_gn', "
            "'mlp', or a torch.nn.Module of your own"
        )
    return nets[tuple(shape)](shape, classes)


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    f.__name__: f for f in (
        logistic, mlp, cifar_cnn, cnn, digit_cnn, digit_model, digit_model_small, femnist_cnn, lenet, lstm, niid_cnn,
        resnet18_gn, resnet18_gn_3x3, thesis_mlp, thesis_cnn, thesis_cnn_small, preact_resnet18, preact_resnet34,
    )
}  # fmt: skip


def _expect(name: str, shape: Sequence[int], wanted: tuple[int, ...]) -> None:
    if tuple(shape) != wanted:
        raise ValueError(f"{name} takes inputs of shape {wanted}, the data has {tuple(shape)}; use model='mlp'")
