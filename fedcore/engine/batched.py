"""The batched path: one forward pass for all clients by the layers' rules, and a backward pass by autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..models import Layout
from . import passes
from .batch import Batch
from .layers.rule import Pass, Rule
from .loss import Loss
from .shapes import Logits, Parameters, PerClient, Representations

Criterion = Callable[..., Tensor]


class Batched:
    """Gradients, logits, representations and activations of a block of clients."""

    def __init__(self, rule: Rule, layout: Layout, criterion: Criterion, compute: torch.dtype | None) -> None:
        self.rule, self.layout, self.criterion, self.compute = rule, layout, criterion, compute

    def gradient(self, Y: Parameters, batch: Batch, loss: Loss, along: Parameters | None, G: Parameters) -> PerClient:
        """Write the gradients at the rows of Y, or their derivatives in the directions `along`, into G; return the
        clients' losses `[m]`."""
        # one leaf per parameter, a strided view of the rows: differentiating with respect to the flat matrix
        # would split and concatenate it once more
        leaves = {k: v.requires_grad_() for k, v in self.layout.views(Y.detach()).items()}
        p = self._pass(leaves, batch, loss.rate)
        logits = self._logits(batch, p)
        each = loss.of_samples(logits, batch.y, self.criterion)
        if loss.penalty is not None:
            others = [self.features(reference, batch, loss) for reference in loss.references]
            each = each + loss.of_representations(p.z.to(Y.dtype), others)
        losses = each * batch.w
        derivatives(losses.sum(), leaves, self.layout, along, G, len(Y))
        return losses.detach().sum(1)

    @torch.no_grad()
    def logits(self, Y: Parameters, batch: Batch) -> Logits:
        """Logits of the batch in training mode."""
        return self._logits(batch, self._pass(self.layout.views(Y), batch, None))

    @torch.no_grad()
    def features(self, Y: Parameters, batch: Batch, loss: Loss) -> Representations:
        """Representations of the batch, with the loss's rate for scalers, without dropout, for use as references."""
        p = self._pass(self.layout.views(Y), batch, loss.rate)
        p.key = ()
        self._logits(batch, p)
        return p.z.to(Y.dtype)

    def observe(self, Y: Parameters, batch: Batch, sites: Sequence[str], loss: Loss | None) -> list[Tensor]:
        """Activations `[m, B, channels, positions]` at some layers, or a loss's derivatives with respect to them, both
        without scaling and dropout."""
        backward = loss is not None
        with torch.set_grad_enabled(backward):
            leaves = {k: v.requires_grad_(backward) for k, v in self.layout.views(Y.detach()).items()}
            p = self._pass(leaves, batch, 1.0)
            p.sites, p.key = dict.fromkeys(sites), ()
            logits = self.rule(self.rule.entering(batch.x), p)
            seen = list(p.sites.values())
            if loss is not None:
                each = loss.of_samples(logits, batch.y, self.criterion)
                passes.backward(len(Y))
                seen = torch.autograd.grad((each * batch.w).sum(), seen)
        views = (h.unflatten(1, (len(Y), -1)).transpose(0, 1) if h.dim() == 4 else h for h in seen)
        return [h.flatten(3) if h.dim() > 3 else h.unsqueeze(3) for h in views]

    def _pass(self, params: dict[str, Tensor], batch: Batch, rate: Any) -> Pass:
        if isinstance(rate, Tensor):  # one rate per client
            rate = rate.to(batch.w.device, batch.w.dtype)
        return Pass(params, len(batch.y), batch.real(), rate, count=batch.count, key=batch.key)

    def _logits(self, batch: Batch, p: Pass) -> Logits:
        with autocast(self.compute, batch.w.device):
            logits = self.rule(self.rule.entering(batch.x), p)
        return logits if self.compute is None else logits.to(batch.w.dtype)


# --- what both paths through autograd share -------------------------------------------------------------------------


def autocast(compute: torch.dtype | None, device: torch.device) -> contextlib.AbstractContextManager:
    """A block of `torch.autocast` to the type `compute`; None: without it."""
    return contextlib.nullcontext() if compute is None else torch.autocast(device.type, compute)


def derivatives(
    loss: Tensor, leaves: dict[str, Tensor], layout: Layout, along: Tensor | None, G: Tensor, clients: int
) -> None:
    """Write the gradients of a scalar by the leaves, or their derivatives in the directions `along [..., d]`, to their
    places in `G [..., d]`."""
    wrt, places = list(leaves.values()), layout.views(G)
    passes.backward(clients)
    grads = torch.autograd.grad(loss, wrt, create_graph=along is not None, allow_unused=True)
    if along is not None:
        directions = layout.views(along.detach())
        slope = sum((g * v).sum() for g, v in zip(grads, map(directions.get, leaves), strict=True) if g is not None)
        passes.backward(clients)
        grads = torch.autograd.grad(slope, wrt, allow_unused=True)
    grads = list(grads)[::-1]
    for name in leaves:  # each gradient is released as soon as it is copied
        g = grads.pop()
        places[name].zero_() if g is None else places[name].copy_(g)
