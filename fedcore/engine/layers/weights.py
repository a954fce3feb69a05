"""Layers with weights, and normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.parts import STATISTICS
from ..batch import OneSample
from ..shapes import Activations, Pictures, Sequences, Vectors

if TYPE_CHECKING:
    from ..units import Streams
    from ..written import Sink
from .rule import FIRST, LAST, Back, ByClient, Pass, Rule, aten, channels_last, side_by_side
from .sequences import as_pictures, as_sequences

FEW = 32  # linear layers with fewer outputs are no faster in bfloat16, and logits keep their digits
COLUMNS = 1 << 19  # numbers in a client's columns up to which a GPU takes products: faster at 0.3 million, not at 0.6


class Linear(ByClient):
    """`nn.Linear`: one product per client."""

    writes, fresh = (1,), True

    def of_clients(self, x: Tensor, p: Pass) -> Tensor:
        if x.dim() > 3:  # the product is along the last axis
            return self.of_clients(x.flatten(1, 3), p).view(*x.shape[:-1], -1)
        return self.product(x, p.params[self.weight], p.params)

    def product(self, x: Vectors, W: Annotated[Tensor, "m out in"], params: dict[str, Tensor]) -> Vectors:
        """W x + b."""
        if self.module.bias is None:
            return torch.bmm(x, W.transpose(1, 2))
        return torch.baddbmm(params[self.bias].unsqueeze(1).to(x.dtype), x, W.transpose(1, 2))

    def written(self, x: Vectors, s: Sink, need: bool) -> tuple[Vectors, Back]:
        given = x.dtype
        x = x.to(s.compute if self.module.out_features >= FEW else s.dtype)
        W = s.params[self.weight].to(x.dtype)
        out = self.product(x, W, s.params)

        def back(e: Tensor) -> Tensor | None:
            e = e.to(x.dtype)
            down = torch.bmm(e, W).to(given) if need else None  # before W may move
            s.product(self.weight, e.transpose(1, 2), x)
            if self.module.bias is not None:
                s.put(self.bias, e.sum(1))
            return down

        return out, back

    def units(self, streams: Streams, s: int, axes: int) -> int:
        if axes != 1:
            raise ValueError(
                f"Linear ({self.name or 'the model'}) reads samples with axes={axes}, along which each of its units "
                "has many outputs; the linear layers of sub-models read features, with axes=1: put nn.Flatten() before "
                "it, or use capacities=1"
            )
        new = streams.start(self.module.out_features, self.name)
        streams.owns(self, ((new, 1), (s, streams.entries(s, self.module.in_features, self.name))))
        return new


class Convolution(Rule):
    """A convolution whose groups are the clients, each with the groups of the layer."""

    fresh = True
    function: Callable[..., Tensor]

    def batched(self, x: Tensor, p: Pass) -> Tensor:
        c, padding = self.module, self.module.padding
        if c.padding_mode != "zeros":
            x, padding = F.pad(x, c._reversed_padding_repeated_twice, c.padding_mode), 0
        bias = None if c.bias is None else p.params[self.bias].reshape(-1)
        weight = p.params[self.weight].flatten(0, 1)
        return self.function(x, weight, bias, c.stride, padding, c.dilation, groups=p.clients * c.groups)


class Conv1d(Convolution):
    """`nn.Conv1d`, of sequences `[B, m, C, L]`."""

    takes, function = (2,), staticmethod(F.conv1d)

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        return super().batched(x.flatten(1, 2), p).unflatten(1, (p.clients, -1))


class Conv2d(Convolution):
    """`nn.Conv2d`."""

    takes, function = (3,), staticmethod(F.conv2d)

    def batched(self, x: Pictures, p: Pass) -> Pictures:
        if x.is_cuda and self.is_written() and self.module.in_channels > 1:
            (B, _, *size), taps = x.shape, self.module.weight[0].numel()
            if B * math.prod(self.size(size)) * taps <= COLUMNS:
                return self.by_product(x, p)
        return super().batched(x, p)

    def by_product(self, x: Pictures, p: Pass) -> Pictures:
        """The convolution as one product per client, of its weights with the columns of the images (im2col).

        cuDNN convolves the clients one after another, with four kernels each: where they are small, launching them
        takes longer than computing them.
        """
        c, W = self.module, p.params[self.weight]
        columns = F.unfold(x, c.kernel_size, c.dilation, c.padding, c.stride).unflatten(1, (p.clients, -1))
        out = torch.einsum("mok,bmkl->bmol", W.flatten(2), columns)
        if c.bias is not None:
            out = out + p.params[self.bias].unsqueeze(2)
        return out.flatten(1, 2).unflatten(2, self.size(x.shape[2:]))

    def size(self, given: Sequence[int]) -> list[int]:
        """Height and width of the output for images of this height and width."""
        c = self.module
        return [
            (n + 2 * p - g * (k - 1) - 1) // t + 1
            for n, k, t, p, g in zip(given, c.kernel_size, c.stride, c.padding, c.dilation, strict=True)
        ]

    def is_written(self) -> bool:
        c = self.module
        return c.groups == 1 and not isinstance(c.padding, str) and c.padding_mode == "zeros"

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        c, b, W, given = self.module, s.clients, s.params[self.weight], x.dtype
        _, O, C, kh, kw = W.shape
        x = x.to(s.compute if C > 1 else s.dtype)  # with one channel, oneDNN is slower in bfloat16
        out = self.size(x.shape[2:])
        if len(x) * out[0] * out[1] <= O and c.dilation == (1, 1):  # more weights than columns: touch each but once
            return self.by_columns(x, s, need, out)
        whole, stride, (sh, sw) = x, c.stride, c.stride
        if (kh, kw) == (1, 1) and c.padding == (0, 0) and stride != (1, 1):
            # The pixels that are read, alone: oneDNN's way back through strided 1x1 convolutions in channels_last
            # writes outside of its memory where there are fewer than 8 channels (3.13, seen on an AMD EPYC).
            x, stride = x[:, :, ::sh, ::sw].contiguous(memory_format=torch.channels_last), (1, 1)
        bias = None if c.bias is None else s.params[self.bias].reshape(-1).to(x.dtype)
        w = channels_last(W, x.dtype).view(b * O, kh, kw, C).permute(0, 3, 1, 2)
        out = F.conv2d(x, w, bias, stride, c.padding, c.dilation, groups=b).to(s.compute)

        def back(e: Tensor) -> Tensor | None:
            e, sizes = e.to(x.dtype), None if bias is None else [b * O]
            dx, dw, db = aten.convolution_backward(
                e, x, w, sizes, stride, c.padding, c.dilation, False, (0, 0), b, (need, True, bias is not None)
            )
            if need and x is not whole:
                dx, some = torch.zeros_like(whole), dx
                dx[:, :, ::sh, ::sw] = some
            s.put(self.weight, dw.unflatten(0, (b, O)))
            if bias is not None:
                s.put(self.bias, db.view(b, O))
            return dx.to(given) if need else None

        return out, back

    def by_columns(self, x: Pictures, s: Sink, need: bool, out: list[int]) -> tuple[Pictures, Back]:
        """The convolution as a product of its weights, without a copy, with the columns of the images (im2col)."""
        b, (B, _, H, Wd), (ph, pw), (sh, sw) = s.clients, x.shape, self.module.padding, self.module.stride
        W, tap = s.params[self.weight], None
        if (H, Wd, *out) == (1, 1, 1, 1):  # one pixel: only one tap of the kernel ever sees it
            tap, ph, pw = (slice(ph, ph + 1), slice(pw, pw + 1)), 0, 0
            W = W[..., tap[0], tap[1]]
        _, O, C, kh, kw = W.shape
        whole = F.pad(x, (pw, pw, ph, ph)).unfold(2, kh, sh).unfold(3, kw, sw)  # [B, b*C, oh, ow, kh, kw]
        whole = whole.unflatten(1, (b, C)).permute(1, 0, 3, 4, 5, 6, 2)
        h, M = whole.reshape(b, -1, kh * kw * C), W.permute(LAST).flatten(2).to(x.dtype)
        z = torch.bmm(h, M.transpose(1, 2))
        if self.module.bias is not None:
            z += s.params[self.bias].unsqueeze(1)

        def back(e: Tensor) -> Tensor | None:
            e = e.unflatten(1, (b, O)).permute(1, 0, 3, 4, 2).reshape(b, -1, O)
            down = torch.bmm(e, M) if need else None  # before the weights may move
            if s.steps and x.dtype == W.dtype and (s.keep == 1 or not tap):  # M are the parameters, with a tap a part
                M.baddbmm_(e.transpose(1, 2), h, beta=s.keep, alpha=-s.lr)
            else:
                dw = torch.bmm(e.transpose(1, 2), h).view(b, O, kh, kw, C)
                s.put(self.weight, dw.permute(FIRST), tap)
            if self.module.bias is not None:
                s.put(self.bias, e.sum(1))
            if not need:
                return None
            down, dx = down.view(whole.shape), x.new_zeros(b, B, H + 2 * ph, Wd + 2 * pw, C)
            for i in range(kh):
                for j in range(kw):
                    dx[:, :, i : i + sh * out[0] : sh, j : j + sw * out[1] : sw] += down[:, :, :, :, i, j]
            dx = dx[:, :, ph : ph + H, pw : pw + Wd]
            return side_by_side(dx.permute(0, 1, 4, 2, 3), x.dtype)

        return side_by_side(z.view(b, B, *out, O).permute(0, 1, 4, 2, 3), x.dtype), back

    def units(self, streams: Streams, s: int, axes: int) -> int:
        if self.module.groups != 1:
            return super().units(streams, s, axes)
        new = streams.start(self.module.out_channels, self.name)
        streams.channels.add(new)
        streams.owns(self, ((new, 1), (s, 1)))
        return new


class GroupNorm(Rule):
    """`nn.GroupNorm`: groups of one client never mix with another's, so one call serves all.  It mixes channels."""

    writes, fresh = (3,), True

    def batched(self, x: Activations, p: Pass) -> Activations:
        n, groups = self.module, p.clients * self.module.num_groups
        if x.dim() == 4 and x.shape[1] != p.clients * n.num_channels:  # a sequence, whose first axis are the channels
            return as_sequences(self.batched(as_pictures(x), p), p)
        w, b = scale_and_shift(self, p.params)
        if x.dim() == 3:  # features are channels
            flat = x.transpose(0, 1).flatten(1)
            return F.group_norm(flat, groups, w, b, n.eps).view(-1, p.clients, x.shape[2]).transpose(0, 1)
        return F.group_norm(x, groups, w, b, n.eps)

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        (B, C, H, W), (w, b) = x.shape, scale_and_shift(self, s.params)
        given, layout = x.dtype, torch.channels_last
        if x.device.type != "cpu":  # whose kernels take this layout alone, and one type for pictures and weights
            x, layout = x.to(s.dtype), torch.contiguous_format
        x = x.contiguous(memory_format=layout)
        sizes = (B, C, H * W, s.clients * self.module.num_groups)
        out, mean, rstd = aten.native_group_norm(x, w, b, *sizes, self.module.eps)

        def back(e: Tensor) -> Tensor | None:
            e = e.to(x.dtype).contiguous(memory_format=layout)
            mask = (need, self.module.affine, self.module.affine)
            dx = put_norm(self, s, *aten.native_group_norm_backward(e, x, mean, rstd, w, *sizes, mask))
            return dx.to(given) if need else None

        return out.to(given), back


class LayerNorm(ByClient):
    """`nn.LayerNorm`: over the last axes of each sample."""

    fresh = True

    def of_clients(self, x: Tensor, p: Pass) -> Tensor:
        n = self.module
        x = F.layer_norm(x, n.normalized_shape, None, None, n.eps)
        shape = (p.clients, *(1,) * (x.dim() - 1 - len(n.normalized_shape)), *n.normalized_shape)
        if n.elementwise_affine:
            x = x * p.params[self.weight].view(shape)
            if n.bias is not None:
                x = x + p.params[self.bias].view(shape)
        return x


class BatchNorm(Rule):
    """`nn.BatchNorm1d` and `nn.BatchNorm2d`, on the statistics of each client's own batch."""

    fresh = True

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.takes = (1, 2) if isinstance(module, nn.BatchNorm1d) else (3,)

    def batched(self, x: Activations, p: Pass) -> Activations:
        """The output if clients have different numbers of samples: padding does not count in the statistics."""
        if x.dim() == 4 and isinstance(self.module, nn.BatchNorm1d):  # sequences, whose first axis are the channels
            return as_sequences(self.on_pictures(as_pictures(x), p), p)
        return self.on_pictures(x, p)

    def on_pictures(self, x: Activations, p: Pass) -> Activations:
        """`batched` for features and pictures."""
        n, real = self.module, p.real
        if 1 in p.count and (x.dim() == 3 or x.shape[2:].numel() == 1):
            raise OneSample
        if x.dim() == 4 and real is None:
            return F.batch_norm(x, None, None, *scale_and_shift(self, p.params), training=True, eps=n.eps)
        # [m, B, C, positions]
        rows = x.unflatten(1, (p.clients, -1)).transpose(0, 1).flatten(3) if x.dim() == 4 else x.unsqueeze(3)
        real = torch.ones_like(rows[..., :1]) if real is None else real[..., None, None].to(x.dtype)
        count = (real.sum(1, keepdim=True) * rows.shape[3]).clamp_min(1)
        mean = (rows * real).sum((1, 3), keepdim=True) / count
        rows = rows - mean
        rows = rows * torch.rsqrt((rows.square() * real).sum((1, 3), keepdim=True) / count + n.eps)
        if n.affine:
            rows = rows * p.params[self.weight][:, None, :, None] + p.params[self.bias][:, None, :, None]
        return rows.transpose(0, 1).flatten(1, 2).view_as(x) if x.dim() == 4 else rows.squeeze(3)

    def is_written(self) -> bool:
        return isinstance(self.module, nn.BatchNorm2d)

    def written(self, x: Pictures, s: Sink, need: bool) -> tuple[Pictures, Back]:
        """The caller guarantees that there is no padding."""
        eps, (w, b) = self.module.eps, scale_and_shift(self, s.params)
        out, mean, scale = aten.native_batch_norm(x, w, b, None, None, True, 0.0, eps)

        def back(e: Tensor) -> Tensor | None:
            mask = (need, self.module.affine, self.module.affine)
            grads = aten.native_batch_norm_backward(e, x, w, None, None, mean, scale, True, eps, mask)
            return put_norm(self, s, *grads)

        return out, back

    def units(self, streams: Streams, s: int, axes: int) -> int:
        streams.owns(self, ((s, streams.entries(s, self.module.num_features, self.name)),))
        return s


class FixableBatchNorm(BatchNorm):
    """`models.FixableBatchNorm`: each client's fixed statistics where they are set, else those of its batch."""

    def on_pictures(self, x: Activations, p: Pass) -> Activations:
        """`batched` for features and pictures."""
        shape = (p.clients, 1, -1) if x.dim() == 3 else (1, -1, 1, 1)
        mean, var = (p.params[self.below(name)].detach().reshape(shape) for name in STATISTICS)
        fixed = (x - mean) * torch.rsqrt(var.clamp_min(0) + self.module.eps)
        if self.module.affine:
            fixed = fixed * p.params[self.weight].reshape(shape) + p.params[self.bias].reshape(shape)
        return torch.where(var >= 0, fixed, super().on_pictures(x, p))


def scale_and_shift(norm: Rule, params: dict[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """A norm's weights and biases, all clients' in a row.

    Contiguous, as the kernels read them: those of a norm with one channel are far apart in the rows.
    """
    if not norm.module.affine:
        return None, None
    return params[norm.weight].reshape(-1).contiguous(), params[norm.bias].reshape(-1).contiguous()


def put_norm(norm: Rule, s: Sink, dx: Tensor | None, dw: Tensor | None, db: Tensor | None) -> Tensor | None:
    """Put the gradients of a norm's weights and biases into s, and return that of its input."""
    if norm.module.affine:
        s.put(norm.weight, dw.view(s.clients, -1))
        s.put(norm.bias, db.view(s.clients, -1))
    return dx
