"""The sequential path: any module, one client after another.  The other paths are tested against it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import models, rng
from .batch import Batch, OneSample
from .batched import Criterion, autocast, derivatives
from .loss import Loss
from .shapes import Flat, Parameters, PerClient
from .undisturbed import exchanged


class Sequential:
    """Gradients and logits of clients, one after another.

    random: whether forward passes may draw random numbers; each client then draws from its batch's key.  outside:
    whether from Python's or NumPy's generator, too.
    A client's parameters and samples are copied before use: products can differ in the last bit between operands that
    begin at differently aligned addresses, and a client's result must not depend on its place in the cohort.  It also
    keeps the samples what they are where a module writes over its input.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: models.Layout,
        criterion: Criterion,
        compute: torch.dtype | None,
        random: bool,
        outside: bool = False,
    ) -> None:
        self.module, self.layout, self.criterion, self.compute = module, layout, criterion, compute
        self.random, self.outside = random, outside
        self.norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.scalers = [m for m in module.modules() if isinstance(m, models.Scaler)]
        self.dropouts = [m for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]

    def gradient(self, Y: Parameters, batch: Batch, loss: Loss, along: Parameters | None, G: Parameters) -> PerClient:
        """Write the gradients at the rows of Y, or their derivatives in the directions `along`, into G; return the
        clients' losses `[m]`."""
        losses = Y.new_zeros(len(Y))
        for i, count in enumerate(batch.count):
            if not count:
                G[i] = 0
                continue
            one = loss.client(i, count)
            views = self.layout.views(Y[i].detach().clone())
            leaves = {k: v.requires_grad_() for k, v in views.items() if k not in models.carried(self.module)}
            with contextlib.nullcontext() if along is None else sdpa_kernel(SDPBackend.MATH):  # twice differentiable
                logits = self._logits({**views, **leaves}, batch, i, one.rate)
            each = one.of_samples(logits, batch.y[i, :count], self.criterion)
            if one.penalty is not None:
                z = self.module.z.to(Y.dtype)
                others = [self._features(reference, batch, i, one.rate) for reference in one.references]
                each = each + one.of_representations(z, others)
            total = (each * batch.w[i, :count]).sum()
            losses[i] = total.detach()
            derivatives(total, leaves, self.layout, None if along is None else along[i], G[i], 1)
        if isinstance(self.module, models.Projected):
            self.module.z = None  # a module that holds a graph cannot be copied
        return losses

    @torch.no_grad()
    def logits(self, Y: Parameters, batch: Batch) -> Tensor:
        """Logits `[m, B, ...]` of the batch in training mode; 0 for padding."""
        rows = {
            i: self._logits(self.layout.views(Y[i].clone()), batch, i) for i, count in enumerate(batch.count) if count
        }
        first = next(iter(rows.values()))
        out = first.new_zeros(*batch.w.shape, *first.shape[1:])
        for i, row in rows.items():
            out[i, : len(row)] = row
        return out

    @torch.no_grad()
    def carry(self, Y: Parameters, batch: Batch) -> Parameters:
        """The buffers `[m, b]` that training updates, after a training pass over the batch that starts from those in
        Y."""
        rows = [Y[i, self.layout.carried] for i in range(len(Y))]
        for i, count in enumerate(batch.count):
            if count:
                written: dict[str, Tensor] = {}
                self._logits(self.layout.views(Y[i].clone()), batch, i, written=written)
                rows[i] = torch.cat([written[k].reshape(-1).to(Y.dtype) for k in models.carried(self.module)])
        return torch.stack(rows)

    @torch.no_grad()
    def _features(self, row: Flat, batch: Batch, i: int, rate: Any) -> Annotated[Tensor, "_ f"]:
        self._logits(self.layout.views(row.clone()), batch, i, rate, dropout=False)
        z, self.module.z = self.module.z, None
        return z.to(row.dtype)

    def _logits(
        self,
        params: dict[str, Tensor],
        batch: Batch,
        i: int,
        rate: Any = None,
        dropout: bool = True,
        written: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Logits of client i's real samples in training mode, with or without dropout.

        written: a dict that receives the buffers after the pass.
        """
        self.module.train()
        count, device = batch.count[i], batch.w.device
        buffers = {k: b.clone() for k, b in self.module.named_buffers()}  # forward passes may write to them
        tensors = buffers | models.called_with(self.module, params)
        tensors |= {name: tensors[name].clone() for name in models.carried(self.module)}  # the pass writes to these
        with rng.seeded(batch.key[i], device, self.outside) if self.random else contextlib.nullcontext():
            try:
                with autocast(self.compute, device), self._for_training(rate, dropout):
                    logits = functional_call(self.module, tensors, (batch.x[i, :count].clone(),))
            except ValueError as e:
                if count > 1 or not self.norms:
                    raise
                raise OneSample from e
        if written is not None:
            written |= tensors  # `functional_call` puts what a module has assigned back into what it was called with
        return logits if self.compute is None else logits.to(batch.w.dtype)

    @contextlib.contextmanager
    def _for_training(self, rate: Any, dropout: bool) -> Iterator[None]:
        """A block in which all scalers have this rate (None: their own), dropout is as given, and batch norms keep no
        statistics: with momentum=None, a batch norm would read its number of batches from the device.
        """
        layers = [(norm, "momentum", 0.0) for norm in self.norms]
        layers += [(scaler, "rate", rate) for scaler in self.scalers if rate is not None]
        layers += [(layer, "training", False) for layer in self.dropouts if not dropout]
        usual = exchanged(layers)
        try:
            yield
        finally:
            exchanged(usual)
