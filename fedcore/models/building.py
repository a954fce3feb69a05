"""Building a network from a name, a class or a function, with initial weights that depend on the seed alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import rng
from ..data.arrays import real_numbers
from ..support import checks
from .layout import Layout, copied
from .networks import MODELS


class RoundedOnce(TorchFunctionMode):
    """Uniform initial weights with the same bits on every CPU.

    PyTorch's float32 draws in [0, 1) are the same everywhere, but depending on the instruction set they are scaled with
    or without a fused multiply-add: the weights then differ in their last bit, and long training amplifies that.  Here
    the draws are scaled in float64 and rounded once, which gives the bits of a fused multiply-add.
    """

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensor = kwargs.get("tensor")
        if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or not tensor.numel():
            return func(*args, **kwargs)
        if func is nn.init.uniform_:
            low, high = kwargs["a"], kwargs["b"]
        elif func is nn.init.kaiming_uniform_ and kwargs["mode"] == "fan_in":
            gain = nn.init.calculate_gain(kwargs["nonlinearity"], kwargs["a"])
            high = math.sqrt(3) * gain / math.sqrt(tensor[0].numel())
            low = -high
        else:
            return func(*args, **kwargs)
        with torch.no_grad():
            low, high = torch.tensor([low, high]).double()
            draws = tensor.uniform_(generator=kwargs["generator"]).double()
            return tensor.copy_(low + (high - low) * draws)


def build(
    model: str | nn.Module | Callable[[Sequence[int], int], nn.Module],
    shape: Sequence[int],
    classes: int,
    seed: int,
) -> nn.Module:
    """A module for inputs `shape` and `classes` outputs; named models are initialised from `seed` alone.

    model: a name in `MODELS`, a function `(shape, classes) -> nn.Module`, or a module, which keeps its weights.
    Raises ValueError for an unknown name, a seed below 0, and for modules that are lazy, wrapped in DataParallel,
    compiled by torch.jit or torch.compile, or have parameters that are no real floating-point numbers; TypeError for
    anything else.
    """
    checks.integer("seed", seed, 0)
    if isinstance(model, nn.Module):
        return _checked(model)
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(f"model={model!r} is not known; use one of {sorted(MODELS)} or a torch.nn.Module")
        model = MODELS[model]
    if not callable(model):
        raise TypeError(
            f"model={checks.brief(model)}; use a name in {sorted(MODELS)}, a torch.nn.Module, or a function"
        )
    checks.takes("model", model, "shape, classes", "torch.nn.Module, or a module, as in model=Net()")
    with rng.seeded(rng.word(seed, rng.INIT)), _float32(), RoundedOnce():
        module = model(tuple(shape), classes)
    if not isinstance(module, nn.Module):
        raise TypeError(f"model={checks.brief(model)} returned {checks.brief(module)}; return a torch.nn.Module")
    return _checked(module)


@contextlib.contextmanager
def _float32() -> Iterator[None]:
    """A context in which weights are drawn in float32 on the CPU, independent of the caller's defaults."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(usual)


def _checked(module: nn.Module) -> nn.Module:
    """The module; ValueError where its parameters are not initialised or cannot be replaced by those of a client."""
    wrapped = nn.DataParallel | nn.parallel.DistributedDataParallel | torch.jit.ScriptModule
    for name, part in module.named_modules():
        if isinstance(part, wrapped) or "_orig_mod" in part._modules:  # of torch.compile
            raise ValueError(
                f"the model holds a {type(part).__name__}, {name or 'itself'!r}; give the nn.Module that it was made "
                "of, such as model.module, or model._orig_mod after torch.compile"
            )
    for name, p in module.named_parameters():
        empty = nn.parameter.is_lazy(p) or p.is_meta or p.layout != torch.strided or not p.numel()
        if empty or not p.is_floating_point() or p._backward_hooks or p._post_accumulate_grad_hooks:
            raise ValueError(
                f"the model's parameter {name!r} is no tensor of real floating-point numbers with values and without a "
                "hook on its gradient; call a model with lazy layers once on an example, use buffers for what is not "
                "trained, and compute in the forward pass what a hook computes (p * mask)"
            )
    return module


def started(module: nn.Module, start: Tensor | Mapping[str, Tensor] | nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the module of type `dtype` with the parameters `start`.

    start: a flat vector `[d]`, a state_dict, or a module with the same names and shapes, also one that
    `Federation.module` returned, whose network is used.  Buffers in a state_dict are copied; those of batch norm have
    no effect, because an evaluation collects its statistics anew.

    Raises ValueError for another length, for names that are missing or unknown, other shapes, and numbers that are not
    finite; TypeError for any other start.
    """
    module = copied(module).to(dtype=dtype)
    if isinstance(start, nn.Module):
        start = start.state_dict()
    known, layout = module.state_dict(), Layout.of(module)
    hint = "values of the same architecture"
    if isinstance(start, Tensor | np.ndarray):
        checks.shape("start", start, (layout.d,), f"a flat vector of this model's {layout.d:,} parameters")
        start = layout.views(torch.tensor(real_numbers("start", start, hint)))
    if not isinstance(start, Mapping):
        raise TypeError(
            f"start={type(start).__name__}; use a flat vector [d] such as history.params, a state_dict, or a "
            "torch.nn.Module of the same architecture"
        )
    if all(str(name).startswith(("network.", "normalise.")) for name in start) and not start.keys() <= known.keys():
        start = {name.removeprefix("network."): v for name, v in start.items() if name.startswith("network.")}
    values = {name: torch.tensor(real_numbers(f"start[{name!r}]", value, hint)) for name, value in start.items()}
    wrong = [name for name in layout.names if name not in values]
    for name, value in values.items():
        fits = name in known and value.shape == known[name].shape and bool(torch.isfinite(value).all())
        wrong += [] if fits else [name]
    if wrong:
        raise ValueError(
            f"start does not fit the model: {wrong[:5]} are missing, unexpected, of another shape, or hold NaN or "
            f"infinity; use finite values of {', '.join(layout.names[:5])}{', ...' if len(layout.names) > 5 else ''}"
        )
    for name, value in values.items():
        known[name].copy_(value)
    return module
