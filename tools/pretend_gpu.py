"""Simulate rounds on a GPU on a machine without one, by fake tensors.

Under PyTorch's FakeTensorMode a tensor has a shape, a type and a device but no values.  An operation on tensors of two
devices raises an error, and so does reading a value on the host: the two mistakes that make a run on a GPU fail or
wait.

    with pretended_gpu():
        fc.simulate(method, on_gpu(fed), rounds=3, lr=0.1)

Functions that need a driver are replaced: the check of the device, free memory, the streams that copy rows, evaluation
and the check for finite numbers (both wait for the device on purpose, between rounds), and autograd's backward pass,
which returns zeros.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

import fedcore as fc
from fedcore import run
from fedcore.engine import core
from fedcore.objective import base, making, quadratic
from fedcore.rows.host import Carrier
from fedcore.support import memory

GPU = torch.device("cuda", 0)


@contextlib.contextmanager
def pretended_gpu(free: float = 1e12) -> Iterator[None]:
    """A context in which tensors may be on a fake GPU with `free` bytes of memory."""
    patches = [
        *(mock.patch.object(module, "available", _device) for module in (making, base, quadratic)),
        mock.patch.object(nn.Module, "to", _to),
        mock.patch.object(core.copy, "deepcopy", _copied),
        mock.patch.object(memory, "free", return_value=free),
        mock.patch.object(Carrier, "__init__", _without_stream),
        mock.patch.object(fc.Federation, "evaluate", return_value={}),
        mock.patch.object(fc.Quadratic, "evaluate", return_value={}),
        mock.patch.object(run.Run, "check_finite", lambda self: self.unchecked.clear()),
        mock.patch.object(torch.autograd, "grad", _no_gradients),
        # else autocast, which needs a driver, would be switched off with a warning, and bfloat16 would not be tested
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
        mock.patch("torch.cuda.is_bf16_supported", return_value=True),
        mock.patch("torch.cuda.get_rng_state", return_value=torch.zeros(16, dtype=torch.uint8)),
        mock.patch("torch.cuda.set_rng_state", return_value=None),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def on_gpu(fed: Any) -> Any:
    """The federation on the fake GPU, with the smaller networks that it has made so far."""
    moved = fed.to(GPU)
    if isinstance(fed, fc.Federation):  # a smaller network made here would cut parameters without values
        moved._smaller.update({to: small.to(GPU) for to, small in fed._smaller.items()})
    return moved


def _copied(value: Any, memo: Any = None) -> Any:
    with unset_fake_temporarily():  # the copied object has real values
        return _deepcopy(value, memo)


_deepcopy = copy.deepcopy


def _without_stream(carrier: Carrier, device: torch.device) -> None:
    carrier.device, carrier.side = device, None


def _device(device: Any) -> torch.device:
    return torch.device("cpu") if device is None else torch.device(device)


def _to(module: nn.Module, *given: Any, **named: Any) -> nn.Module:
    for m in module.modules():
        for name, p in m._parameters.items():
            if p is not None:
                m._parameters[name] = nn.Parameter(p.detach().to(*given, **named), p.requires_grad)
        for name, b in m._buffers.items():
            if b is not None:
                m._buffers[name] = b.to(*given, **named)
    return module


def _no_gradients(_: Any, inputs: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros_like(v) for v in inputs)
