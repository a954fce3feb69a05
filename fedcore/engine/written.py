"""The written path: forward and backward of plain layers for a block of clients, without autograd.

What the batched path leaves to autograd stands in the layers' rules as the chain rule, so that a gradient is computed
into its place: a row of G, or, in plain SGD, taken off a copy of the parameters that is laid out for the products and
lives through all local steps.
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

ALONE = 1 << 15  # from this size on, a weight's gradient is computed for one client at a time: it stays in the cache


@dataclass
class Sink:
    """Where the gradients of a block go: into `grads`, views of G, or, where there are none, as a step into `params`.

    To step, `params` is a copy that `Written.load` has made; keep: what they are multiplied by in a step, 1 - lr times
    the weight decay.  compute: the type of convolutions.
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
        """A gradient `[m, *shape]`; tap: where in the last two axes it stands, with zeros around it."""
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
        """The gradient e h of a weight matrix, `[m, out, B]` times `[m, B, in]`; a step subtracts while it sums."""
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
    """The written path of one architecture, with cross-entropy; LookupError where a layer has no rule for it.

    compute: the type of convolutions and of what lies between them, such as bfloat16; None is that of the parameters.
    Sums of products stay float32 inside the kernels, as do linear layers, parameters and gradients.
    """

    def __init__(self, rule: Rule, layout: Layout, compute: torch.dtype | None = None) -> None:
        self.rule, self.layout, self.compute = rule, layout, compute
        self.axes = [axes for axes in (1, 2, 3) if rule.is_written() and rule.leaves(axes, written=True) == 1]
        if not self.axes:
            raise LookupError("no shape of inputs goes through to logits")
        self.flat = isinstance(rule, Sequential) and isinstance(rule.children[0], Flatten)

    @torch.no_grad()
    def gradient(self, Y: Parameters, batch: Batch, G: Parameters) -> PerClient:
        """Gradients of a block of clients at the rows of Y into G; their losses."""
        views = self.layout.views
        z = self._run(Sink(views(Y), views(G), 0.0, self.compute or Y.dtype, len(Y)), batch)
        return torch.linalg.vecdot(torch.log_softmax(z, 0).gather(0, batch.y.unsqueeze(0)), batch.w).neg_()[0]

    def load(self, Y: Parameters, params: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """A copy of the parameters in Y, each of them contiguous, the weights of convolutions with channels last.

        params: an earlier copy of as many clients, to be written over.
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
        """One step of gradient descent in place, for what `load` has given, or the first clients of it.

        decay, clip: weight decay, and the norm that each client's gradient with it is cut to; grads: room for the
        gradients, laid out as the parameters, which a clip needs.
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
        """Forward and back; the logits, with the classes first: there, loops over them run along the memory."""
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
    """A parameter of each client, or its gradient, as it lies in memory: `[m, numbers]`."""
    return (v.permute(LAST) if v.dim() == 5 else v).flatten(1)
