"""Architectures, and where each parameter lives in the flat vector.

All networks are trees of plain layers (`nn.Sequential`, `Residual`), so the engine can run them for a whole cohort
at once.  Parameter counts and their sources: FedUp study, section 6.1.2; ResNet18-GN and LeNet as the FedDyn
study's public code has them.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import checks, rng
from .data.arrays import as_array

Shape = Annotated[
    Sequence[int],
    checks.Kind(lambda value: _whole(value) and len(value) > 0, "the shape of a sample, such as (1, 28, 28)"),
]
Widths = Annotated[Sequence[int], checks.Kind(lambda value: _whole(value), "a sequence of whole numbers from 1 on")]
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of the parameters in the flat vector, in the module's own order.

    Behind them stand the buffers that training carries (`carried`), which no gradient moves.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    slices: tuple[slice, ...]
    d: int
    kinds: tuple[type, ...] = ()  # the type of the module that holds each parameter
    frozen: tuple[slice, ...] = ()  # the places of parameters that are not trained (requires_grad=False), and buffers
    carried: slice | None = None  # the place of the buffers that training carries
    called: tuple[str, ...] = ()  # the layers in the order of the forward pass, where that is not the module's own

    @staticmethod
    def of(module: nn.Module) -> Layout:
        named = entries(module)
        kinds = {id(p): type(m) for m in module.modules() for p in (*m.parameters(False), *m.buffers(False))}
        ends = list(itertools.accumulate((p.numel() for _, p in named), initial=0))
        slices = tuple(slice(a, b) for a, b in itertools.pairwise(ends))
        names, shapes = tuple(k for k, _ in named), tuple(p.shape for _, p in named)
        frozen = tuple(place for place, (_, p) in zip(slices, named, strict=True) if not p.requires_grad)
        written = slice(ends[len(named) - len(carried(module))], ends[-1]) if carried(module) else None
        return Layout(
            names, shapes, slices, ends[-1], tuple(kinds[id(p)] for _, p in named), frozen, written, called(module)
        )

    @property
    def moving(self) -> Tensor:
        """Which of the d numbers a run changes, `[d]` bool: what is trained, and the buffers that training carries."""
        moving = ~self.mask(self.frozen)
        if self.carried:
            moving[self.carried] = True
        return moving

    def batch_norm(self) -> list[slice]:
        """The places of all batch-norm parameters, found by the type of their module and not by their name."""
        places = zip(self.kinds, self.slices, strict=True)
        return [place for kind, place in places if issubclass(kind, nn.modules.batchnorm._BatchNorm)]

    def layers(self) -> list[slice]:
        """The places of the weight layers from input to output: weight, bias, and the norm behind them, as one.

        In the order of the forward pass, as a federation has seen it; else in that of the module.
        """
        owners = [name.rpartition(".")[0] for name in self.names]
        first = [
            k
            for k, kind in enumerate(self.kinds)
            if k == 0 or (owners[k] != owners[k - 1] and not issubclass(kind, NORMS))
        ]
        ends = [*(self.slices[k].start for k in first[1:]), self.d]
        places = [slice(self.slices[k].start, end) for k, end in zip(first, ends, strict=True)]
        if any(owners[k] not in self.called for k in first):
            return places
        order = sorted(range(len(first)), key=lambda i: self.called.index(owners[first[i]]))
        return [places[i] for i in order]

    def last(self, count: int) -> slice | Tensor:
        """Where the last `count` weight layers stand: the end of the flat vector, or their entries one by one."""
        places = sorted(self.layers()[-count:] if count else [], key=lambda place: place.start)
        start = self.d - sum(place.stop - place.start for place in places)
        if not places or places[0].start == start:
            return slice(start, None)
        return torch.cat([torch.arange(place.start, place.stop) for place in places])

    def named(self, layers: Iterable[str]) -> list[slice]:
        """The places of parameters by their names or the beginnings of these: "13" is the module 13 of a Sequential,
        "13.weight" its weight.  Raises ValueError for one that is not in the model."""
        places = []
        for layer in layers:
            named = zip(self.names, self.slices, strict=True)
            hits = [place for name, place in named if f"{name}.".startswith(f"{layer}.")]
            if not hits:
                raise ValueError(f"layer {layer!r} is not in the model; use names among {', '.join(self.names)}")
            places += hits
        return places

    def mask(self, places: Iterable[slice]) -> Tensor:
        """True at these places of the flat vector, `[d]`."""
        mask = torch.zeros(self.d, dtype=torch.bool)
        for place in places:
            mask[place] = True
        return mask

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Parameters as views of `flat` `[..., d]`: name -> `[..., *shape]`."""
        lead = flat.shape[:-1]
        return {
            k: flat[..., s].view((*lead, *shape))
            for k, s, shape in zip(self.names, self.slices, self.shapes, strict=True)
        }


def flatten(module: nn.Module) -> Tensor:
    """The module's parameters as one flat vector `[d]` (a copy), and behind them the buffers that training carries."""
    kind = next((p.dtype for p in module.parameters()), torch.float32)
    parts = [p.detach().reshape(-1).to(kind if k in carried(module) else p.dtype) for k, p in entries(module)]
    return torch.cat(parts) if parts else torch.zeros(0)


def copied(module: nn.Module) -> nn.Module:
    """A deep copy.  Of tensors that a layer has computed last, as pruned layers keep their weight, the values alone:
    with their graph they cannot be copied."""
    held = (value for layer in module.modules() for value in vars(layer).values())
    return copy.deepcopy(module, {id(v): v.detach().clone() for v in held if isinstance(v, Tensor) and v.grad_fn})


def carried(module: nn.Module) -> tuple[str, ...]:
    """The names of the buffers that training writes and later passes read, as `engine.trial` has seen: a client's steps
    carry them on, and the server takes their weighted mean, rounded where they are whole numbers."""
    return getattr(module, "fedcore_carried", ())


def called(module: nn.Module) -> tuple[str, ...]:
    """The names of the layers with parameters in the order of the forward pass, where a federation has seen that it is
    not the one in which they stand in the module; else none."""
    return getattr(module, "fedcore_called", ())


def entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    """What the flat vector holds: the parameters, then the buffers that training carries."""
    buffers = dict(module.named_buffers())
    return [*module.named_parameters(), *((name, buffers[name]) for name in carried(module))]


def called_with(module: nn.Module, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views of a flat vector as the module takes them: whole numbers where a buffer has these."""
    kinds = {name: b.dtype for name, b in module.named_buffers() if name in carried(module)}
    whole = {k: views[k].round().to(kind) for k, kind in kinds.items() if not kind.is_floating_point}
    return {**views, **whole}


class Residual(nn.Module):
    """`relu(body(x) + shortcut(x))`; the identity where no shortcut is given."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Scaler(nn.Module):
    """Training: x / rate, so that a layer of which a share `rate` is kept has outputs of the full layer's size;
    evaluation: x.  HeteroFL's scaler, the inverted dropout of whole sub-models (FedDSE study, section 2.2)."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or (isinstance(self.rate, float | int) and self.rate == 1):
            return x
        return x / self.rate

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class PreAct(nn.Module):
    """HeteroFL's pre-activation block: h = relu(norm(scaler(x))); conv(relu(norm(scaler(conv(h))))) + shortcut.

    The shortcut is x itself, or a 1x1 convolution of h where width or stride changes; convolutions have no bias.
    """

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(Scaler(), nn.BatchNorm2d(a), nn.ReLU())
        first, second = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.body = nn.Sequential(first, Scaler(), nn.BatchNorm2d(b), nn.ReLU(), second)
        self.shortcut = None if a == b and stride == 1 else nn.Conv2d(a, b, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        return self.body(h) + (x if self.shortcut is None else self.shortcut(h))


class Heads(nn.Module):
    """A classifier after every stage (DepthFL).  Training: logits `[B, heads, classes]`; evaluation: their mean."""

    def __init__(self, stages: Sequence[nn.Module], heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages, self.heads = nn.ModuleList(stages), nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        logits = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            logits.append(head(x))
        out = torch.stack(logits, 1)
        return out if self.training else out.mean(1)


class Projected(nn.Module):
    """`classifier(encoder(x))`, where the encoder ends in the representation that MOON contrasts."""

    def __init__(self, encoder: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, classifier

    def forward(self, x: Tensor) -> Tensor:
        self.z = self.encoder(x)
        return self.classifier(self.z)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: not the representation of the last batch, whose graph cannot be copied."""
        return {**vars(self), "z": None}


@checks.arguments
def projected(model: str | Callable = "cnn", dim: checks.Count = 256) -> Callable[[Sequence[int], int], nn.Module]:
    """A model with MOON's projection head before its classifier: features -> same width -> dim -> classes.

    model: a name in `MODELS`, or a function `(shape, classes) -> Sequential`.

    Returns a function for `model=`.  Raises ValueError for a model whose last layer is not linear.
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


def _whole(values: Any) -> bool:
    """Whether these are whole numbers from 1 on."""
    return isinstance(values, Sequence | np.ndarray) and all(
        isinstance(v, numbers.Integral) and not isinstance(v, bool) and v >= 1 for v in values
    )


@checks.arguments
def logistic(shape: Shape, classes: checks.Count) -> nn.Module:
    """Multinomial logistic regression on the flattened input (7,850 parameters for 28x28 and 10 classes)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


@checks.arguments
def mlp(shape: Shape, classes: checks.Count, hidden: Widths = (200, 200)) -> nn.Module:
    """Fully connected ReLU network; the default is the 784-200-200-10 of the FedAvg paper (199,210)."""
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@checks.arguments
def digit_cnn(shape: Shape, classes: checks.Count) -> nn.Module:
    """A small CNN for 8x8 digits: two 3x3 convolutions (16, 32), each halved by pooling (6,090 parameters)."""
    _expect("digit_cnn", shape, (1, 8, 8))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, classes),
    )  # fmt: skip


@checks.arguments
def femnist_cnn(shape: Shape, classes: checks.Count) -> nn.Module:
    """The FedUp study's FEMNIST CNN, reading (A): 320 flattened features -> classes (25,182 for 62 classes)."""
    _expect("femnist_cnn", shape, (1, 28, 28))
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, classes),
    )  # fmt: skip


@checks.arguments
def lenet(shape: Shape, classes: checks.Count, channels: Widths = (64, 64), hidden: Widths = (384, 192)) -> nn.Module:
    """The CIFAR LeNet of the FedDyn study: two 5x5 convolutions, two hidden layers (797,962 for 10 classes)."""
    _expect("lenet", shape, (3, 32, 32))
    _many("channels", channels, 2)
    _many("hidden", hidden, 2)
    (a, b), (c, e) = channels, hidden
    return nn.Sequential(
        nn.Conv2d(3, a, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(a, b, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(25 * b, c), nn.ReLU(), nn.Linear(c, e), nn.ReLU(), nn.Linear(e, classes),
    )  # fmt: skip


@checks.arguments
def cifar_cnn(shape: Shape, classes: checks.Count) -> nn.Module:
    """A CNN for a few CPU cores: four times as fast as `lenet` with as many channels (57,770 for 10 classes).

    A 5x5 convolution (16, stride 2) halved by pooling, a 3x3 convolution (32), then 800-64-classes; 3x32x32.
    """
    _expect("cifar_cnn", shape, (3, 32, 32))
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


@checks.arguments
def digit_model(shape: Shape, classes: checks.Count) -> nn.Module:
    """FedBN's digit network (Li et al. 2021), with batch norm behind each layer but the last (14,219,210).

    Three 5x5 convolutions (64, 64, 128; the first two halved by pooling), then 6272-2048-512-classes; 3x28x28.
    """
    _expect("digit_model", shape, (3, 28, 28))
    return _normed(shape, classes, (64, 64, 128), (2048, 512))


@checks.arguments
def digit_model_small(shape: Shape, classes: checks.Count) -> nn.Module:
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


@checks.arguments
def resnet18_gn(
    shape: Shape,
    classes: checks.Count,
    stem: Annotated[str, checks.OneOf(("imagenet", "3x3"))] = "imagenet",
    groups: checks.Count = 2,
) -> nn.Module:
    """ResNet18 with GroupNorm(2 groups) for BatchNorm (11,181,642 parameters for 10 classes).

    `stem="imagenet"`: 7x7 stride 2 and max-pool, as the FedDyn study (and, following it, FedUp) uses even on 32x32
    images.  `stem="3x3"`: 3x3 stride 1, no pool: 7,680 parameters less for RGB and about 15 times the arithmetic.
    """
    if len(shape) != 3:
        raise ValueError(f"resnet18_gn needs images [C, H, W], the data has shape {tuple(shape)}; use model='mlp'")

    if 64 % groups:
        raise ValueError(f"groups={groups} does not divide 64 channels; use 1, 2, 4, 8, 16, 32 or 64")

    def norm(c: int) -> nn.Module:
        return nn.GroupNorm(groups, c)

    def block(a: int, b: int, stride: int) -> nn.Module:
        body = nn.Sequential(
            nn.Conv2d(a, b, 3, stride, 1, bias=False),
            norm(b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1, bias=False),
            norm(b),
        )
        same = a == b and stride == 1
        return Residual(body, None if same else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), norm(b)))

    if stem == "imagenet":
        head = [nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    else:
        head = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
    widths = [64, 64, 128, 256, 512]
    stages = [
        layer
        for s, (a, b) in enumerate(itertools.pairwise(widths))
        for layer in (block(a, b, 1 if s == 0 else 2), block(b, b, 1))
    ]
    net = nn.Sequential(*head, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return net


@checks.arguments
def resnet18_gn_3x3(shape: Shape, classes: checks.Count) -> nn.Module:
    """`resnet18_gn` with the 3x3 stem."""
    return resnet18_gn(shape, classes, stem="3x3")


@checks.arguments
def thesis_mlp(shape: Shape, classes: checks.Count) -> nn.Module:
    """The fully connected network of the FedDSE study, section 3.1.2: 50 and 24 hidden units (40,724 on 28x28)."""
    return mlp(shape, classes, hidden=(50, 24))


@checks.arguments
def thesis_cnn(shape: Shape, classes: checks.Count, widths: Widths = (64, 128, 256, 512)) -> nn.Module:
    """The CNN of the FedDSE/FedGSE study, which is HeteroFL's `Conv` (1,556,874 parameters on 1x28x28, 10 classes).

    Four blocks [3x3 convolution, scaler, batch norm, ReLU, 2x2 max-pool], the last without its pool, then global
    average pooling and a linear layer.  The study draws a pool in every block; the public code removes the last.
    """
    if not len(widths):
        raise ValueError("widths=() has no block; use one width for each block, such as (64, 128)")
    if len(shape) != 3 or min(shape[1:]) < 2 ** (len(widths) - 1):
        raise ValueError(f"thesis_cnn needs images [C, H, W], H, W >= {2 ** (len(widths) - 1)}, not {tuple(shape)}")
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([shape[0], *widths]):
        layers += [nn.Conv2d(a, b, 3, padding=1), Scaler(), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


@checks.arguments
def thesis_cnn_small(shape: Shape, classes: checks.Count) -> nn.Module:
    """`thesis_cnn` with three blocks of 16, 32, 64 channels: its sibling for 8x8 digits (24,170 parameters)."""
    return thesis_cnn(shape, classes, widths=(16, 32, 64))


@checks.arguments
def preact_resnet(shape: Shape, classes: checks.Count, blocks: Widths) -> nn.Module:
    """The pre-activation ResNet of HeteroFL: 3x3 stem without pool, stages of 64, 128, 256, 512, `blocks` each."""
    if len(shape) != 3:
        raise ValueError(f"a ResNet needs images [C, H, W], the data has shape {tuple(shape)}; use model='mlp'")
    _many("blocks", blocks, 4)
    widths, layers = [64, 64, 128, 256, 512], [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False)]
    for s, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [PreAct(a, b, 1 if s == 0 else 2), *(PreAct(b, b, 1) for _ in range(blocks[s] - 1))]
    head = [Scaler(), nn.BatchNorm2d(512), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)]
    return nn.Sequential(*layers, *head)


@checks.arguments
def preact_resnet18(shape: Shape, classes: checks.Count) -> nn.Module:
    """The FedDSE/FedGSE study's ResNet18 (11,172,170 parameters for RGB and 10 classes, 11,218,340 for 100)."""
    return preact_resnet(shape, classes, (2, 2, 2, 2))


@checks.arguments
def preact_resnet34(shape: Shape, classes: checks.Count) -> nn.Module:
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


@checks.arguments
def lstm(shape: Shape, classes: checks.Count, embedding: checks.Count = 8, hidden: checks.Count = 100) -> nn.Module:
    """The next-character LSTM of the Shakespeare task: 80 symbols, 8-dimensional embedding, 2x100 (133,520)."""
    if len(shape) != 1:
        raise ValueError(f"lstm takes sequences of symbols [L], the data has {tuple(shape)}; use model='cnn' or 'mlp'")
    return CharLSTM(classes, embedding, hidden)


@checks.arguments
def cnn(shape: Shape, classes: checks.Count) -> nn.Module:
    """The study's network for this image size: 8x8 digit CNN, 28x28 FEMNIST CNN, 32x32 RGB LeNet, digit domains."""
    nets = {(1, 8, 8): digit_cnn, (1, 28, 28): femnist_cnn, (3, 32, 32): lenet}
    nets |= {(3, 16, 16): digit_model_small, (3, 28, 28): digit_model}
    if tuple(shape) not in nets:
        raise ValueError(
            f"model='cnn' has no network for inputs {tuple(shape)}; known are {sorted(nets)}; "
            "use model='resnet18_gn', 'mlp', or a torch.nn.Module of your own"
        )
    return nets[tuple(shape)](shape, classes)


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    f.__name__: f for f in (
        logistic, mlp, cifar_cnn, cnn, digit_cnn, digit_model, digit_model_small, femnist_cnn, lenet, lstm, resnet18_gn,
        resnet18_gn_3x3, thesis_mlp, thesis_cnn, thesis_cnn_small, preact_resnet18, preact_resnet34,
    )
}  # fmt: skip


class RoundedOnce(TorchFunctionMode):
    """Uniform initial weights with the same bits on every CPU.

    PyTorch scales its float32 draws in [0, 1), which are the same everywhere, with or without a fused multiply-add, as
    the instruction set has it: the weights then differ in their last bit, and long training makes much of it.  Here the
    draws are scaled in float64 and rounded once, which is what a fused multiply-add gives.
    """

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensor = kwargs.get("tensor")
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32:
            return func(*args, **kwargs)
        if func is nn.init.uniform_:
            low, high = kwargs["a"], kwargs["b"]
        elif func is nn.init.kaiming_uniform_ and kwargs["mode"] == "fan_in":
            gain = nn.init.calculate_gain(kwargs["nonlinearity"], kwargs["a"])
            high = math.sqrt(3) * gain / math.sqrt(tensor[0].numel())
            low = -high
        else:
            return func(*args, **kwargs)
        with torch.no_grad():
            low, high = torch.tensor([low, high]).double()
            draws = tensor.uniform_(generator=kwargs["generator"]).double()
            return tensor.copy_(low + (high - low) * draws)


def build(
    model: str | nn.Module | Callable[[Sequence[int], int], nn.Module],
    shape: Sequence[int],
    classes: int,
    seed: int,
) -> nn.Module:
    """A module for inputs `shape` and `classes` outputs; named models are initialised from `seed` alone.

    `model` is a name in `MODELS`, a function `(shape, classes) -> nn.Module`, or a module of yours, which keeps the
    weights it has.  Raises ValueError for an unknown name, a seed below 0, and for modules that are lazy, wrapped in
    DataParallel, compiled by torch.jit, or have parameters that are no real floating-point numbers, TypeError for
    anything else.
    """
    checks.integer("seed", seed, 0)
    if isinstance(model, nn.Module):
        return _checked(model)
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(f"model={model!r} is not known; use one of {sorted(MODELS)} or a torch.nn.Module")
        model = MODELS[model]
    if not callable(model):
        raise TypeError(
            f"model={checks.brief(model)}; use a name in {sorted(MODELS)}, a torch.nn.Module, or a function"
        )
    try:
        inspect.signature(model).bind(tuple(shape), classes)
    except TypeError as e:
        raise TypeError(
            f"model={checks.brief(model)} does not take (shape, classes) ({e}); use a module, as in model=Net(), or "
            "a function (shape, classes) -> torch.nn.Module"
        ) from None
    except ValueError:  # some callables tell no signature
        pass
    with rng.seeded(rng.word(seed, rng.INIT)), _float32(), RoundedOnce():
        module = model(tuple(shape), classes)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"model={checks.brief(model)} returned {checks.brief(module)}; use a function (shape, classes) "
            "-> torch.nn.Module"
        )
    return _checked(module)


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """Weights are drawn in float32 on the CPU, whatever the caller's defaults are: they are the seed's alone."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(usual)


def _checked(module: nn.Module) -> nn.Module:
    """The module; ValueError for one whose parameters are not there yet or cannot be replaced by a client's."""
    for name, part in module.named_modules():
        what = f"{type(part).__name__}{f' at {name!r}' if name else ''}"
        if nn.parameter.is_lazy(next(iter(part.parameters(recurse=False)), None)):
            raise ValueError(
                f"the model has no parameters yet in its {what}; call it once on an example, or give the layer its "
                "number of inputs"
            )
        for at, p in part.named_parameters(prefix=name, recurse=False):
            if not nn.parameter.is_lazy(p) and not p.is_floating_point():
                raise ValueError(
                    f"the model's parameter {at!r} is {p.dtype}; use real floating-point numbers, such as real and "
                    "imaginary part as two parameters, and a buffer for what is not trained"
                )
            if p.is_meta or p.layout != torch.strided:
                raise ValueError(f"the model's parameter {at!r} is {p.layout} on {p.device}; give it dense values")
            if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
                raise ValueError(
                    f"the model's parameter {at!r} has a hook on its gradient, which no client's copy would have; take "
                    "its part in the forward pass (p * mask, a hook of the layer's), or set requires_grad=False"
                )
        if isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ValueError(f"the model is wrapped in {what}; give the module inside it, {name or 'model'}.module")
        if isinstance(part, torch.jit.ScriptModule):
            raise ValueError(f"the model is compiled by torch.jit ({what}); give the nn.Module that it was made of")
    return module


def started(module: nn.Module, start: Tensor | Mapping[str, Tensor] | nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the module, in a type, with other parameters.

    start: a flat vector `[d]`, a state_dict, or a module with the same names and shapes; of what `Federation.module`
    has returned, the network in it.  Buffers in a state_dict are taken over; those of batch norm are of no use, since
    an evaluation collects its statistics anew.

    Raises ValueError for another length, for names that are missing or unknown, other shapes, and numbers that are not
    finite; TypeError for anything else than the three.
    """
    module = copied(module).to(dtype=dtype)
    if isinstance(start, nn.Module):
        start = start.state_dict()
    known, layout = module.state_dict(), Layout.of(module)
    if isinstance(start, Tensor | np.ndarray):
        checks.shape("start", start, (layout.d,), f"a flat vector of this model's {layout.d:,} parameters")
        start = layout.views(_real("start", start))
    if not isinstance(start, Mapping):
        raise TypeError(
            f"start={type(start).__name__}; use a flat vector [d] such as history.params, a state_dict, or a "
            "torch.nn.Module of the same architecture"
        )
    if all(str(name).startswith(("network.", "normalise.")) for name in start) and not start.keys() <= known.keys():
        start = {name.removeprefix("network."): v for name, v in start.items() if name.startswith("network.")}
    missing = [name for name in layout.names if name not in start]
    unknown = [name for name in start if name not in known]
    if missing or unknown:
        raise ValueError(
            f"start does not fit the model: missing are {missing[:5]}, unexpected are {unknown[:5]}; use parameters "
            f"named {', '.join(layout.names[:5])}{', ...' if len(layout.names) > 5 else ''}"
        )
    for name, value in start.items():
        value, place = _real(f"start[{name!r}]", value), known[name]
        checks.shape(f"start[{name!r}]", value, tuple(place.shape), "values of the same architecture")
        if not torch.isfinite(value).all():
            raise ValueError(f"start holds NaN or infinity in {name!r}; give finite numbers")
        with torch.no_grad():
            place.copy_(value)
    return module


def _real(name: str, value: Any) -> Tensor:
    array = as_array(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} holds {array.dtype}; give real numbers")
    return torch.tensor(array)


def _many(name: str, values: Sequence[int], wanted: int) -> None:
    if len(values) != wanted:
        raise ValueError(f"{name}={tuple(values)} has {len(values)} numbers; use {wanted}")


def _expect(name: str, shape: Sequence[int], wanted: tuple[int, ...]) -> None:
    if tuple(shape) != wanted:
        raise ValueError(f"{name} takes inputs of shape {wanted}, the data has {tuple(shape)}; use model='mlp'")
