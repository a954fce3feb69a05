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

    For steps, `params` is a copy made by `Written.load`; keep: the factor 1 - lr * weight decay that multiplies the
    parameters in a step.  compute: the type of convolutions.
    """

    params: dict[str, Tensor]
    grads: dict[str, Tensor] | None
    lr: float
    compute: torch.dtype
    clients: int
    keep: float = 1.0

    def __post_init__(self) -> None:
        self.steps, self.dtype = self.grads is None, next(iter(self.params.values())).dtype

    def put(self, name: str, g: Tensor, tap: tuple[slice, slice] | None = None) -> None:
        """Put a gradient `[m, *shape]`; tap: its position in the last two axes, if it is zero elsewhere."""
        place = self.params[name] if self.steps else self.grads[name]
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

    def product(self, name: str, e: Tensor, h: Tensor) -> None:
        """Put the gradient e h of a weight matrix, `[m, out, B]` times `[m, B, in]`; a step subtracts it directly."""
        if self.steps:
            self.params[name].baddbmm_(e, h, beta=self.keep, alpha=-self.lr)
        elif self.grads[name].is_contiguous():
            torch.bmm(e, h, out=self.grads[name])
        elif self.params[name][0].numel() < ALONE:
            self.grads[name].copy_(torch.bmm(e, h))
        else:
            for g, left, right in zip(self.grads[name].unbind(), e.unbind(), h.unbind(), strict=True):
                torch.mm(left, right, out=g)


class Written:
    """The written path of one architecture with the cross-entropy; raises LookupError if a layer has no written rule.

    compute: the type of convolutions and of the layers between them, such as bfloat16; None is that of the parameters.
    Sums of products inside the kernels, linear layers, parameters and gradients stay float32.
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

    def load(self, Y: Parameters, params: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """A copy of the parameters in Y: each is contiguous, and weights of convolutions have their channels last.

        params: an earlier copy for as many clients, which is overwritten.
        """
        views = self.layout.views(Y)
        if params is None:
            like = {k: v.permute(LAST) if v.dim() == 5 else v for k, v in views.items()}
            params = {k: torch.empty(v.shape, dtype=v.dtype, device=v.device) for k, v in like.items()}
            params = {k: v.permute(FIRST) if v.dim() == 5 else v for k, v in params.items()}
        for k, v in views.items():
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
        if clip is None:
            self._run(Sink(params, None, lr, compute, m, 1 - lr * decay), batch)
            return
        self._run(Sink(params, grads, lr, compute, m), batch)
        rows = [(_as_row(p), _as_row(grads[k])) for k, p in params.items()]
        if decay:
            for p, g in rows:
                g.add_(p, alpha=decay)
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
        x = x.flatten(2) if self.flat or x.dim() < 5 else side_by_side(x, s.compute)
        z, back = self.rule.written(x, s, False)
        z = z.permute(2, 0, 1).contiguous()
        e = torch.softmax(z, 0).permute(1, 2, 0)  # d/dz of the cross-entropy: softmax minus one-hot
        e.scatter_(2, batch.y.unsqueeze(2), -1.0, reduce="add")
        back(e.mul_(batch.w.unsqueeze(2)))
        return z


def _as_row(v: Tensor) -> Tensor:
    """A parameter of each client, or its gradient, as a matrix `[m, numbers]` in the order of its memory."""
    return (v.permute(LAST) if v.dim() == 5 else v).flatten(1)
