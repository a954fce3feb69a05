"""Gradients written out: forward and backward of plain layers for a block of clients, without autograd.

What the engine's batched path leaves to autograd stands here as the chain rule, layer by layer, so that a gradient is
computed into its place: a row of G, or, in plain SGD, taken off a copy of the parameters that is laid out for the
products and lives through all local steps.  Images of a block of b clients travel as `[B, b*C, H, W]` in channels_last
(client-major channels), vectors as `[b, B, F]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .models import Layout, Residual, Scaler

aten = torch.ops.aten
LAST, FIRST = (0, 1, 3, 4, 2), (0, 1, 4, 2, 3)  # a convolution's weights with channels last, and back
ALONE = 1 << 15  # from this size on, a weight's gradient is computed for one client at a time: it stays in the cache


class Sink:
    """Where the gradients of a block go: `Q` are the places of the parameters in G, or None to step on `P` at once.

    To step, `P` is a copy that `Written.load` has made.
    """

    def __init__(self, P: dict[str, Tensor], Q: dict[str, Tensor] | None, lr: float) -> None:
        self.P, self.Q, self.lr = P, Q, lr

    def put(self, name: str, g: Tensor, tap: tuple[slice, slice] | None = None) -> None:
        """A gradient `[b, *shape]`; tap: where in the last two axes it stands, with zeros around it."""
        place = self.P[name] if self.Q is None else self.Q[name]
        if tap:
            if self.Q is not None:
                place.zero_()
            place = place[..., tap[0], tap[1]]
        if self.Q is None:
            place.sub_(g, alpha=self.lr)
        else:
            place.copy_(g)

    def product(self, name: str, e: Tensor, h: Tensor) -> None:
        """The gradient e h of a weight matrix, `[b, out, B]` times `[b, B, in]`; a step subtracts while it sums."""
        if self.Q is None:
            self.P[name].baddbmm_(e, h, alpha=-self.lr)
        elif self.P[name][0].numel() < ALONE:
            self.Q[name].copy_(torch.bmm(e, h))
        else:
            for q, left, right in zip(self.Q[name].unbind(), e.unbind(), h.unbind(), strict=True):
                torch.mm(left, right, out=q)


class Written:
    """The written-out gradient of one architecture, with cross-entropy; LookupError for layers it has no rule for.

    compute: the type of convolutions and of what lies between them, such as bfloat16; None is that of the parameters.
    Sums of products stay float32 inside the kernels, as do linear layers, parameters and gradients.
    """

    def __init__(self, module: nn.Module, layout: Layout, compute: torch.dtype | None = None) -> None:
        self.layout, self.compute = layout, compute
        self.net = _rule(module, "")
        self.flat = isinstance(module, nn.Sequential) and isinstance(next(iter(module), None), nn.Flatten)
        self.ranks = [rank for rank in (1, 3) if self.net.rank(rank) == 1]
        if not self.ranks:
            raise LookupError("no shape of inputs goes through to logits")

    @torch.no_grad()
    def gradient(self, Y: Tensor, x: Tensor, y: Tensor, w: Tensor, G: Tensor) -> None:
        """Gradients of `sum_j w_j * cross_entropy_j` of a block of clients at `Y [b, d]` into `G [b, d]`."""
        self._run(Sink(self.layout.views(Y), self.layout.views(G), 0.0), x, y, w)

    def load(self, Y: Tensor, P: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """A copy of `layout.views(Y)`, each of them contiguous, the weights of convolutions with channels last.

        P: an earlier copy of as many clients, to be written over.
        """
        views = self.layout.views(Y)
        if P is None:
            like = {k: v.permute(LAST) if v.dim() == 5 else v for k, v in views.items()}
            P = {k: torch.empty(v.shape, dtype=v.dtype, device=v.device) for k, v in like.items()}
            P = {k: v.permute(FIRST) if v.dim() == 5 else v for k, v in P.items()}
        for k, v in views.items():
            P[k].copy_(v)
        return P

    @torch.no_grad()
    def step(self, P: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor, lr: float) -> None:
        """`P <- P - lr * gradient` in place, for what `load` has given, or the first clients of it."""
        self._run(Sink(P, None, lr), x, y, w)

    def store(self, P: dict[str, Tensor], Y: Tensor) -> None:
        """`Y <- P`."""
        for k, v in self.layout.views(Y).items():
            v.copy_(P[k])

    def _run(self, s: Sink, x: Tensor, y: Tensor, w: Tensor) -> None:
        s.b, s.compute = len(x), self.compute or w.dtype
        z, back = self.net(x.flatten(2) if self.flat or x.dim() < 5 else _enter(x, s.compute), s, False)
        # d/dz of the cross-entropy: softmax minus one-hot; over the first axis, where its loop runs along the memory
        e = torch.softmax(z.permute(2, 0, 1).contiguous(), 0).permute(1, 2, 0)
        e.scatter_(2, y.unsqueeze(2), -1.0, reduce="add")
        back(e.mul_(w.unsqueeze(2)))


Step = tuple[Tensor, Callable[[Tensor], Tensor | None]]


class _Rule:
    """A layer: its call gives the output and the function that goes back from there.

    need: whether the gradient with respect to the input is wanted.  takes: the rank of a sample, 1 (vectors) or 3
    (pictures), None for both.  owned: the output may be overwritten.
    """

    owned, takes = False, 3

    def __init__(self, module: nn.Module, prefix: str) -> None:
        self.module, self.prefix = module, prefix

    def rank(self, at: int) -> int:
        """The rank of what leaves, 0 where nothing can."""
        return at if self.takes in (None, at) else 0

    def __call__(self, x: Tensor, s: Sink, need: bool) -> Step:
        raise NotImplementedError


class _Sequential(_Rule):
    def __init__(self, module: nn.Module, prefix: str) -> None:
        self.rules = [_rule(child, f"{prefix}{name}.") for name, child in module._modules.items()]
        for before, rule in zip(self.rules, self.rules[1:], strict=False):
            if isinstance(rule, _ReLU):
                rule.inplace = before.owned

    def rank(self, at):
        for rule in self.rules:
            at = rule.rank(at)
        return at

    def __call__(self, x, s, need):
        backs = []
        for rule in self.rules:
            x, back = rule(x, s, need)
            backs.append(back)
            need = need or rule.trains

        def back(e):
            for b in reversed(backs):
                if e is not None:
                    e = b(e)
            return e

        return x, back


class _Residual(_Rule):
    def __init__(self, module: nn.Module, prefix: str) -> None:
        self.body, self.shortcut = (_rule(getattr(module, k), f"{prefix}{k}.") for k in ("body", "shortcut"))

    def rank(self, at):
        return at if self.body.rank(at) == self.shortcut.rank(at) == at else 0

    def __call__(self, x, s, need):
        (a, back_a), (b, back_b) = self.body(x, s, need), self.shortcut(x, s, need)
        out = torch.add(a, b).relu_()

        def back(e):
            e = aten.threshold_backward(e, out, 0)
            over, under = back_b(e.sum_to_size(b.shape)), back_a(e.sum_to_size(a.shape))
            return under + over if need else None

        return out, back


class _Linear(_Rule):
    owned, takes = True, 1

    def __call__(self, x, s, need):
        weight, bias = self.prefix + "weight", self.prefix + "bias"
        W = s.P[weight]
        if self.module.bias is None:
            out = torch.bmm(x, W.transpose(1, 2))
        else:
            out = torch.baddbmm(s.P[bias].unsqueeze(1), x, W.transpose(1, 2))

        def back(e):
            down = torch.bmm(e, W) if need else None  # before W may move
            s.product(weight, e.transpose(1, 2), x)
            if self.module.bias is not None:
                s.put(bias, e.sum(1))
            return down

        return out, back


class _Conv2d(_Rule):
    owned = True

    def __call__(self, x, s, need):
        c, b, weight = self.module, s.b, self.prefix + "weight"
        W = s.P[weight]
        _, O, C, kh, kw = W.shape
        out = [
            (n + 2 * p - g * (k - 1) - 1) // t + 1
            for n, k, t, p, g in zip(x.shape[2:], c.kernel_size, c.stride, c.padding, c.dilation, strict=True)
        ]
        if len(x) * out[0] * out[1] <= O and c.dilation == (1, 1):  # more weights than columns: touch each but once
            return self._columns(x, s, need, out)
        bias = None if c.bias is None else s.P[self.prefix + "bias"].reshape(-1).to(x.dtype)
        w = _last(W, x.dtype).view(b * O, kh, kw, C).permute(0, 3, 1, 2)
        out = F.conv2d(x, w, bias, c.stride, c.padding, c.dilation, groups=b)

        def back(e):
            sizes = None if bias is None else [b * O]
            dx, dw, db = aten.convolution_backward(
                e, x, w, sizes, c.stride, c.padding, c.dilation, False, (0, 0), b, (need, True, bias is not None)
            )
            s.put(weight, dw.unflatten(0, (b, O)))
            if bias is not None:
                s.put(self.prefix + "bias", db.view(b, O))
            return dx

        return out, back

    def _columns(self, x, s, need, out):
        """The convolution as a product of its weights, as they lie, with the pictures' columns."""
        b, (B, _, H, Wd), (ph, pw), (sh, sw) = s.b, x.shape, self.module.padding, self.module.stride
        W, tap = s.P[self.prefix + "weight"], None
        if (H, Wd, *out) == (1, 1, 1, 1):  # one pixel: only one tap of the kernel ever sees it
            tap, ph, pw = (slice(ph, ph + 1), slice(pw, pw + 1)), 0, 0
            W = W[..., tap[0], tap[1]]
        _, O, C, kh, kw = W.shape
        whole = F.pad(x, (pw, pw, ph, ph)).unfold(2, kh, sh).unfold(3, kw, sw)  # [B, b*C, oh, ow, kh, kw]
        whole = whole.unflatten(1, (b, C)).permute(1, 0, 3, 4, 5, 6, 2)
        h, M = whole.reshape(b, -1, kh * kw * C), W.permute(LAST).flatten(2).to(x.dtype)
        z = torch.bmm(h, M.transpose(1, 2))
        if self.module.bias is not None:
            z += s.P[self.prefix + "bias"].unsqueeze(1)

        def back(e):
            e = e.unflatten(1, (b, O)).permute(1, 0, 3, 4, 2).reshape(b, -1, O)
            down = torch.bmm(e, M) if need else None  # before the weights may move
            if s.Q is None and x.dtype == W.dtype:  # M are the parameters themselves
                M.baddbmm_(e.transpose(1, 2), h, alpha=-s.lr)
            else:
                dw = torch.bmm(e.transpose(1, 2), h).view(b, O, kh, kw, C)
                s.put(self.prefix + "weight", dw.permute(FIRST), tap)
            if self.module.bias is not None:
                s.put(self.prefix + "bias", e.sum(1))
            if not need:
                return None
            down, dx = down.view(whole.shape), x.new_zeros(b, B, H + 2 * ph, Wd + 2 * pw, C)
            for i in range(kh):
                for j in range(kw):
                    dx[:, :, i : i + sh * out[0] : sh, j : j + sw * out[1] : sw] += down[:, :, :, :, i, j]
            dx = dx[:, :, ph : ph + H, pw : pw + Wd]
            return _enter(dx.permute(0, 1, 4, 2, 3), x.dtype)

        return _enter(z.view(b, B, *out, O).permute(0, 1, 4, 2, 3), x.dtype), back


class _Norm(_Rule):
    """A normalisation, then scale and shift; `_normal` gives the output and `(e, mask) -> (dx, d scale, d shift)`."""

    owned = True

    def __call__(self, x, s, need):
        n, names = self.module, (self.prefix + "weight", self.prefix + "bias")
        # kernels read scales and shifts as if contiguous; those of one channel a client are far apart in the rows
        w, b = (s.P[k].reshape(-1).contiguous() if n.affine else None for k in names)
        out, backward = self._normal(x, s.b, w, b)

        def back(e):
            dx, *scale_and_shift = backward(e, (need, n.affine, n.affine))
            for name, g in zip(names, scale_and_shift if n.affine else (), strict=False):
                s.put(name, g.view(s.b, -1))
            return dx

        return out, back


class _GroupNorm(_Norm):
    def _normal(self, x, clients, w, b):
        n, (B, C, H, W) = self.module, x.shape
        sizes = (B, C, H * W, clients * n.num_groups)
        out, mean, rstd = aten.native_group_norm(x, w, b, *sizes, n.eps)

        def backward(e, mask):
            e = e.contiguous(memory_format=torch.channels_last)
            return aten.native_group_norm_backward(e, x, mean, rstd, w, *sizes, mask)

        return out, backward


class _BatchNorm2d(_Norm):
    """On the statistics of the batch; the caller sees to it that all samples of a block are real."""

    def _normal(self, x, clients, w, b):
        out, mean, scale = aten.native_batch_norm(x, w, b, None, None, True, 0.0, self.module.eps)

        def backward(e, mask):
            return aten.native_batch_norm_backward(e, x, w, None, None, mean, scale, True, self.module.eps, mask)

        return out, backward


class _ReLU(_Rule):
    inplace, takes = False, None

    def __call__(self, x, s, need):
        out = x.relu_() if self.inplace else x.relu()
        return out, lambda e: aten.threshold_backward(e, out, 0)


class _MaxPool2d(_Rule):
    owned = True

    def __init__(self, module: nn.Module, prefix: str) -> None:
        p = module
        pair = lambda v: (v, v) if isinstance(v, int) else tuple(v)  # noqa: E731
        self.options = (*map(pair, (p.kernel_size, p.stride, p.padding, p.dilation)), p.ceil_mode)

    def __call__(self, x, s, need):
        out, where = aten.max_pool2d_with_indices(x, *self.options)
        return out, lambda e: aten.max_pool2d_with_indices_backward(e, x, *self.options, where) if need else None


class _Mean(_Rule):
    """Average pooling to one pixel."""

    owned = True

    def __init__(self, module: nn.Module, prefix: str) -> None:
        if module.output_size not in (1, (1, 1)):
            raise LookupError("adaptive pooling to more than one pixel")

    def __call__(self, x, s, need):
        size = x.shape[2] * x.shape[3]
        return x.mean((2, 3), keepdim=True), lambda e: (e / size).expand_as(x) if need else None


class _Flatten(_Rule):
    def __init__(self, module: nn.Module, prefix: str) -> None:
        if (module.start_dim, module.end_dim) != (1, -1):
            raise LookupError("flatten of some axes")

    def rank(self, at):
        return min(at, 1)

    def __call__(self, x, s, need):
        if x.dim() == 3:
            return x, lambda e: e
        B, _, H, W = x.shape
        out = x.view(B, s.b, -1, H, W).transpose(0, 1).reshape(s.b, B, -1)
        return out.to(next(iter(s.P.values())).dtype), lambda e: _enter(e.view(s.b, B, -1, H, W), s.compute)


class _Identity(_Rule):
    takes = None

    def __call__(self, x, s, need):
        return x, lambda e: e


class _Scaler(_Rule):
    takes = None

    def __call__(self, x, s, need):
        rate = self.module.rate
        return (x, lambda e: e) if rate == 1 else (x / rate, lambda e: e / rate)


def _enter(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`[b, B, C, H, W]` as `[B, b*C, H, W]` in channels_last."""
    b, B, C, H, W = x.shape
    out = torch.empty(B, H, W, b, C, dtype=dtype, device=x.device).copy_(x.permute(1, 3, 4, 0, 2))
    return out.view(B, H, W, b * C).permute(0, 3, 1, 2)


def _last(W: Tensor, dtype: torch.dtype) -> Tensor:
    """`[b, O, C, kh, kw]` as a contiguous `[b, O, kh, kw, C]`; no copy where it lies and is so already."""
    W = W.permute(LAST)
    if W.dtype == dtype and W.is_contiguous():
        return W
    return torch.empty(W.shape, dtype=dtype, device=W.device).copy_(W)


_RULES: dict[type, Any] = {
    nn.Sequential: _Sequential, Residual: _Residual, nn.Linear: _Linear, nn.Conv2d: _Conv2d, nn.GroupNorm: _GroupNorm,
    nn.BatchNorm2d: _BatchNorm2d, nn.ReLU: _ReLU, nn.MaxPool2d: _MaxPool2d, nn.AdaptiveAvgPool2d: _Mean,
    nn.Flatten: _Flatten, nn.Identity: _Identity, Scaler: _Scaler,
}  # fmt: skip


def _rule(module: nn.Module, prefix: str) -> _Rule:
    if type(module) not in _RULES:
        raise LookupError(type(module).__name__)
    rule = _RULES[type(module)](module, prefix)
    rule.trains = any(True for _ in module.parameters())
    return rule
