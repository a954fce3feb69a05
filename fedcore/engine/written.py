"""The written path: forward and backward of plain layers for a block of clients, without autograd.

The layers' rules contain the chain rule, for which the batched path uses autograd.  Each gradient is written directly
into a row of G or, in plain SGD, subtracted from a copy of the parameters, whose memory layout suits the products and
which is kept for all local steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ..models import Layout
from . import passes
from .batch import Batch
from .layers.composite import Sequential
from .layers.pointwise import Flatten
from .layers.rule import FIRST, LAST, Rule, side_by_side
from .shapes import Parameters, PerClient

ALONE = 1 << 15  # larger weights' gradients are computed for one client at a time, which fits into the cache


@dataclass
class Sink:
    """The destination of the gradients of a block: `grads`, views of G, or if it is None, an SGD step on `params`.

    For steps, `params` is a copy by `Written.load`.  decay: weight decay, which adds `decay * params` to the
    gradients; a step multiplies the parameters by keep = 1 - lr * decay instead.  compute: the type of convolutions
    and linear layers.
    """

    params: dict[str, Tensor]
    grads: dict[str, Tensor] | None
    lr: float
    compute: torch.dtype
    clients: int
    decay: float = 0.0

    def __post_init__(self) -> None:
        self.steps, self.dtype = self.grads is None, next(iter(self.params.values())).dtype
        self.keep = 1 - self.lr * self.decay

    def put(self, name: str, g: Tensor, tap: tuple[slice, slice] | None = None) -> None:
        """Put a gradient `[m, *shape]`; tap: its position in the last two axes, if it is zero elsewhere."""
        place = whole = self.params[name] if self.steps else self.grads[name]
        if self.steps and self.keep != 1:
            place.mul_(self.keep)
        if tap:
            if not self.steps:
                place.zero_()
            place = place[..., tap[0], tap[1]]
        if self.steps:
            place.sub_(g, alpha=self.lr)
        else:
            place.copy_(g)
            if self.decay:
                whole.add_(self.params[name], alpha=self.decay)

    def product(self, name: str, e: Tensor, h: Tensor) -> None:
        """Put the gradient e h of a weight matrix, `[m, out, B]` times `[m, B, in]`; a step subtracts it directly.

        It is computed in the type of the parameters, into which it is summed without a copy.
        """
        e, h = e.to(self.dtype), h.to(self.dtype)
        if self.steps:
            self.params[name].baddbmm_(e, h, beta=self.keep, alpha=-self.lr)
        elif self.decay:
            torch.baddbmm(self.params[name], e, h, beta=self.decay, out=self.grads[name])
        elif self.grads[name].is_contiguous():
            torch.bmm(e, h, out=self.grads[name])
        elif self.params[name][0].numel() < ALONE:
            self.grads[name].copy_(torch.bmm(e, h))
        else:
            for g, left, right in zip(self.grads[name].unbind(), e.unbind(), h.unbind(), strict=True):
                torch.mm(left, right, out=g)


class Written:
    """The written path of one architecture with the cross-entropy; raises LookupError if a layer has no written rule.

    compute: the type of convolutions, linear layers and the layers between them, such as bfloat16; None is that of the
    parameters.  Convolutions of one channel, linear layers with few outputs, the gradients of linear layers' weights,
    sums inside the kernels, and the parameters stay float32.
    """

    def __init__(self, rule: Rule, layout: Layout, compute: torch.dtype | None = None) -> None:
        self.rule, self.layout, self.compute = rule, layout, compute
        self.axes = [axes for axes in (1, 2, 3) if rule.is_written() and rule.leaves(axes, written=True) == 1]
        if not self.axes:
            raise LookupError("no shape of inputs goes through to logits")
        self.flat = isinstance(rule, Sequential) and isinstance(rule.children[0], Flatten)

    @torch.no_grad()
    def gradient(self, Y: Parameters, batch: Batch, G: Parameters) -> PerClient:
        """Write the gradients of a block of clients at the rows of Y into G; return their losses `[m]`."""
        views = self.layout.views
        z = self._run(Sink(views(Y), views(G), 0.0, self.compute or Y.dtype, len(Y)), batch)
        return torch.linalg.vecdot(torch.log_softmax(z, 0).gather(0, batch.y.unsqueeze(0)), batch.w).neg_()[0]

    def memory(self, Y: Parameters) -> dict[str, Tensor]:
        """Memory for the parameters in Y: each is contiguous, and weights of convolutions have their channels last."""
        views = self.layout.views(Y)
        like = {k: v.permute(LAST) if v.dim() == 5 else v for k, v in views.items()}
        made = {k: torch.empty(v.shape, dtype=v.dtype, device=v.device) for k, v in like.items()}
        return {k: v.permute(FIRST) if v.dim() == 5 else v for k, v in made.items()}

    def load(self, Y: Parameters, memory: dict[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the parameters in Y, in the first rows of `memory`."""
        params = {k: v[: len(Y)] for k, v in memory.items()}
        for k, v in self.layout.views(Y).items():
            params[k].copy_(v)
        return params

    @torch.no_grad()
    def step(
        self,
        params: dict[str, Tensor],
        batch: Batch,
        lr: float,
        decay: float = 0.0,
        clip: float | None = None,
        grads: dict[str, Tensor] | None = None,
    ) -> None:
        """One step of gradient descent in place on parameters from `load`, or on those of the first clients.

        decay: weight decay; clip: the norm that each client's gradient with weight decay is scaled down to; grads:
        memory for the gradients, laid out as the parameters, which clipping needs.
        """
        m, compute = len(batch.y), self.compute or batch.w.dtype
        self._run(Sink(params, None if clip is None else grads, lr, compute, m, decay), batch)
        if clip is None:
            return
        rows = [(_as_row(p), _as_row(grads[k])) for k, p in params.items()]
        norm = torch.stack([torch.linalg.vector_norm(g, dim=1) for _, g in rows]).norm(dim=0)
        scale = (clip / norm.clamp_min_(1e-30)).clamp_max_(1.0).unsqueeze(1)
        for p, g in rows:
            p.addcmul_(g, scale, value=-lr)

    def store(self, params: dict[str, Tensor], Y: Parameters) -> None:
        """Copy the parameters into Y."""
        for k, v in self.layout.views(Y).items():
            v.copy_(params[k])

    def _run(self, s: Sink, batch: Batch) -> Annotated[Tensor, "C m B"]:
        """The forward and the backward pass; returns the logits with the classes first, which is the fastest layout."""
        passes.backward(s.clients)
        x = batch.x
        x = x.flatten(2) if self.flat or x.dim() < 5 else side_by_side(x, x.dtype)
        z, back = self.rule.written(x, s, False)
        z = z.permute(2, 0, 1).to(s.dtype).contiguous()
        e = torch.softmax(z, 0).permute(1, 2, 0)  # d/dz of the cross-entropy: softmax minus one-hot
        e.scatter_(2, batch.y.unsqueeze(2), -1.0, reduce="add")
        back(e.mul_(batch.w.unsqueeze(2)))
        return z


def _as_row(v: Tensor) -> Tensor:
    """A parameter of each client, or its gradient, as a matrix `[m, numbers]` in the order of its memory."""
    return (v.permute(LAST) if v.dim() == 5 else v).flatten(1)
