"""Layers without weights: activations, pooling, dropout, reshaping."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..shapes import Activations, Pictures, Vectors

if TYPE_CHECKING:
    from ..units import Streams
    from ..written import Sink
from .rule import Back, ByClient, Pass, Rule, aten, side_by_side


class Each(Rule):
    """Layers that treat every sample and channel separately, so that clients need no separate treatment."""

    def batched(self, x: Activations, p: Pass) -> Activations:
        return self.module(x)

    def units(self, streams: Streams, s: int, axes: int) -> int:
        return s


# e, input, output, layer -> the derivative of an activation times e
BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor, Tensor, nn.Module], Tensor]] = {
    nn.Tanh: lambda e, x, out, layer: aten.tanh_backward(e, out),
    nn.Sigmoid: lambda e, x, out, layer: aten.sigmoid_backward(e, out),
    nn.GELU: lambda e, x, out, layer: aten.gelu_backward(e, x, approximate=layer.approximate),
    nn.SiLU: lambda e, x, out, layer: aten.silu_backward(e, x),
    nn.LeakyReLU: lambda e, x, out, layer: aten.leaky_relu_backward(e, x, layer.negative_slope, False),
    nn.ELU: lambda e, x, out, layer: aten.elu_backward(e, layer.alpha, 1, 1, False, x),
}


class Pointwise(Each):
    """Activations: one number in, one number out."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        if getattr(module, "inplace", False):
            self.module = copy.copy(module)
            self.module.inplace = False
        self.fresh = type(module) not in (nn.Tanh, nn.Sigmoid)

    def is_written(self) -> bool:
        return type(self.module) in BACKWARD

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        out = self.module(x)
        return out, lambda e: BACKWARD[type(self.module)](e, x, out, self.module) if need else None

    def units(self, streams: Streams, s: int, axes: int) -> int:
        streams.activation(s, self.name, streams.before)
        return s


class ReLU(Pointwise):
    """`nn.ReLU`.  spares: on the written path, it leaves its input as it is."""

    spares = True

    def batched(self, x: Activations, p: Pass) -> Activations:
        return torch.relu(x)

    def is_written(self) -> bool:
        return True

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        out = x.relu() if self.spares else x.relu_()
        return out, lambda e: aten.threshold_backward(e, out, 0)


class Identity(Each):
    """`nn.Identity`."""

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        return x, lambda e: e


class AvgPool2d(Each):
    """`nn.AvgPool2d`."""

    takes = (3,)


class MaxPool2d(Each):
    """`nn.MaxPool2d`."""

    takes, fresh = (3,), True

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        pool = self.module
        sizes = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        options = (*((v, v) if isinstance(v, int) else tuple(v) for v in sizes), pool.ceil_mode)
        out, where = aten.max_pool2d_with_indices(x, *options)
        return out, lambda e: aten.max_pool2d_with_indices_backward(e, x, *options, where) if need else None


class AdaptiveAvgPool2d(Each):
    """`nn.AdaptiveAvgPool2d`; written where it averages to one pixel."""

    takes, fresh = (3,), True

    def is_written(self) -> bool:
        return self.module.output_size in (1, (1, 1))

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        size = x.shape[2] * x.shape[3]
        return x.mean((2, 3), keepdim=True), lambda e: (e / size).expand_as(x) if need else None


class LogSoftmax(ByClient):
    """`nn.LogSoftmax` of the logits; its output has the same cross-entropy as the logits."""

    takes, writes = (1, 3), (1,)

    def problem(self) -> str | None:
        return None if self.module.dim in (1, -1) else "LogSoftmax over another axis than the classes"

    def of_clients(self, x: Tensor, p: Pass) -> Tensor:
        return torch.log_softmax(x, 2 if self.module.dim == 1 else -1)  # also over the channels of pictures

    def written(self, x: Vectors, s: Sink, need: bool) -> tuple[Vectors, Back]:
        out = torch.log_softmax(x, -1)
        return out, lambda e: e - out.exp() * e.sum(-1, keepdim=True)


class Dropout(ByClient):
    """`nn.Dropout`: every client draws for its own samples, by its own generator, as it would alone."""

    def of_clients(self, x: Tensor, p: Pass) -> Tensor:
        rate = self.module.p
        if rate == 0 or not p.key:
            return x
        keep = torch.zeros_like(x)
        for mask, count, generator in zip(keep, p.count, p.generators(x.device), strict=True):
            mask[:count] = torch.empty_like(x[0, :count]).contiguous().bernoulli_(1 - rate, generator=generator)
        return x * keep.div_(1 - rate) if rate < 1 else x * keep


class Flatten(Rule):
    """`nn.Flatten` of all axes but the first: from pictures to features, a channel becoming a block of columns."""

    def problem(self) -> str | None:
        return None if (self.module.start_dim, self.module.end_dim) == (1, -1) else "Flatten of some axes"

    def batched(self, x: Activations, p: Pass) -> Vectors:
        if x.dim() == 4:
            return x.reshape(x.shape[0], p.clients, -1).transpose(0, 1)
        return x.flatten(2)

    def leaves(self, axes: int, written: bool = False) -> int:
        return min(axes, 1)

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Vectors, Back]:
        if x.dim() == 3:
            return x, lambda e: e
        (B, _, H, W), b = x.shape, s.clients
        out = x.view(B, b, -1, H, W).transpose(0, 1).reshape(b, B, -1)
        return out, lambda e: side_by_side(e.view(b, B, -1, H, W), out.dtype)

    def units(self, streams: Streams, s: int, axes: int) -> int:
        return super().units(streams, s, axes) if self.problem() else s


class Scaler(Each):
    """`models.Scaler`: x / rate."""

    def batched(self, x: Activations, p: Pass) -> Activations:
        rate = self.module.rate if p.rate is None else p.rate
        if isinstance(rate, Tensor):  # one rate per client
            if x.dim() == 4:
                return (x.unflatten(1, (p.clients, -1)) / rate.view(-1, 1, 1, 1)).flatten(1, 2)
            return x / rate.view(-1, 1, 1)
        return x if rate == 1 else x / rate

    def written(self, x: Activations, s: Sink, need: bool) -> tuple[Activations, Back]:
        rate = self.module.rate
        return (x, lambda e: e) if rate == 1 else (x / rate, lambda e: e / rate)
