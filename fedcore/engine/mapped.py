"""Modules without rules, computed for all clients at once by `torch.vmap` over the module itself."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .. import models, rng
from .layers.rule import Pass, Rule
from .shapes import Logits
from .traced import READING


class Mapped(Rule):
    """The rule of a module that is mapped over the clients; `maps` says whether this is possible."""

    def entering(self, x: Tensor) -> Tensor:
        return x

    def batched(self, x: Tensor, p: Pass) -> Logits:
        self.module.train()
        with sdpa_kernel(SDPBackend.MATH):  # vmap would run fused attention client by client
            return torch.vmap(lambda params, inputs: functional_call(self.module, params, (inputs,)))(p.params, x)


REPEATED = 10  # copies of the samples, to find forward passes that depend on the number of samples


def maps(module: nn.Module, x: Tensor) -> bool:
    """Whether a module mapped over clients gives the same on `x [B, ...]` as client by client, sample by sample.

    It does not if the module draws random numbers, mixes the samples of a batch, writes to its buffers, branches on its
    data, or has an operation that `torch.vmap` would run one by one.
    """
    module = models.copied(module).double().train()
    x = x.double() if x.is_floating_point() else x
    layout, flat = models.Layout.of(module), models.flatten(module)
    draw = torch.Generator(flat.device).manual_seed(0)
    Y = flat + 0.01 * torch.randn(2, len(flat), generator=draw, dtype=flat.dtype, device=flat.device)
    try:
        with rng.seeded(0, flat.device), READING, warnings.catch_warnings():  # other threads warn as they did
            warnings.filterwarnings("error", message="There is a performance drop")  # an operation is taken one by one
            together, alone = Y.clone().requires_grad_(), Y.clone().requires_grad_()
            rule = Mapped(module, "")
            inputs = torch.stack([x, x.flip(0)]).repeat(1, REPEATED, *[1] * (x.dim() - 1))
            out = rule(inputs, Pass(layout.views(together), 2))[:, : len(x)]
            own = zip(alone, (x, x.flip(0)), strict=True)
            one = [[functional_call(module, layout.views(row), (sample[None],)) for sample in x] for row, x in own]
            want = torch.stack([torch.cat(rows) for rows in one])
            slope = torch.randn(want.shape, generator=draw, dtype=want.dtype, device=want.device)
            (G,) = torch.autograd.grad((out * slope).sum(), [together])
            (H,) = torch.autograd.grad((want * slope).sum(), [alone])
    except Exception:  # a module may raise any error under vmap
        return False
    return torch.allclose(out, want, atol=1e-9) and torch.allclose(G, H, atol=1e-9 * float(H.abs().max()))
