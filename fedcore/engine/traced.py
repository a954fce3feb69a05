"""The layers that the forward of a user's own module calls, found by `torch.fx`.

If the forward is a chain of layers and of functions that are layers (`F.relu`, `F.max_pool2d`, `flatten`, ...), the
module runs like the `nn.Sequential` of the same layers, on all paths; with additions between branches, it runs on the
paths with autograd.  Recurrent layers may be followed by all their states or the last one (`out[:, -1]`, `h_n[-1]`).
"""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .. import rng


class SequenceFunction(nn.Module):
    """A function of sequences `x [..., L, F]` with fixed further arguments, such as `torch.transpose` of both axes."""

    def __init__(self, function: Callable[..., Tensor], *arguments: int) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.arguments)


class SequenceReduction(SequenceFunction):
    """A function of sequences that removes one of their axes: one step is selected, or a mean is taken."""


class Symbols(nn.Module):
    """The symbols of texts as whole numbers, whatever type they come in."""

    def forward(self, x: Tensor) -> Tensor:
        return x.long()


def _max_pool(pool: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """The pooling layer from the arguments of its function, whose order is another."""

    return lambda kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False: pool(
        kernel_size, stride, padding, dilation, return_indices, ceil_mode
    )


def _mean(dim: Any, keepdim: bool = False) -> nn.Module:
    axes = tuple(sorted(dim)) if isinstance(dim, tuple | list) else (dim,)
    if axes in ((2, 3), (-2, -1)):
        pool = nn.AdaptiveAvgPool2d(1)
        return pool if keepdim else nn.Sequential(pool, nn.Flatten())
    if axes in SEQUENCE_MEANS and not keepdim:
        return SequenceReduction(torch.mean, SEQUENCE_MEANS[axes])
    raise TypeError(f"no layer is a mean over {axes}")


SEQUENCE_MEANS = {(1,): -2, (-2,): -2, (2,): -1, (-1,): -1}
# What a call of a tensor's method, or of torch's function of this name, is as a layer, from the arguments behind the
# tensor; TypeError where there is no such layer.
LAYERS: Mapping[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu_": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "dropout": lambda p=0.5, training=True, inplace=False: nn.Dropout(p if training else 0.0),
    "max_pool1d": _max_pool(nn.MaxPool1d),
    "max_pool2d": _max_pool(nn.MaxPool2d),
    "avg_pool1d": nn.AvgPool1d,
    "avg_pool2d": nn.AvgPool2d,
    "adaptive_avg_pool1d": nn.AdaptiveAvgPool1d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "adaptive_max_pool1d": nn.AdaptiveMaxPool1d,
    "flatten": lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim),  # whose own default leaves the samples
    "log_softmax": lambda dim=None, _stacklevel=3, dtype=None: nn.LogSoftmax(dim),
    "mean": _mean,
    "contiguous": nn.Identity,
    "long": Symbols,
}
ADDITIONS = (operator.add, operator.iadd, torch.add)
RECURRENT = (nn.LSTM, nn.GRU)


class _Tracer(fx.Tracer):
    """A tracer that does not look into layers for which the engine has a rule, or into layers without children.

    A graph does not show that a call was made under `torch.no_grad` or `torch.autocast`, so that such a forward raises.
    During tracing, torch sends the calls of all modules in the process to this tracer, which must let calls from other
    threads pass unchanged.
    """

    def __init__(self, known: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.known, self.thread = known, threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        ours = threading.get_ident() == self.thread
        return super().call_module(m, forward, args, kwargs) if ours else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        ours = threading.get_ident() == self.thread
        return super().getattr(attr, attr_val, parameter_proxy_cache) if ours else attr_val

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise fx.proxy.TraceError("a call whose gradients or types are changed around it")
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.known(m) or not list(m.children())


class _Draws(TorchDispatchMode):
    """Records whether a forward draws random numbers during tracing, because the graph may depend on this one draw."""

    any = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any |= torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


READING = threading.RLock()  # one thread at a time changes torch for the whole process
Step = tuple[str, nn.Module | None, tuple[str, ...]]  # name, layer (None: an addition), what it reads


def steps(module: nn.Module, known: Callable[[nn.Module], bool]) -> list[Step] | None:
    """The layers and additions that compute a module's output, in order; None if its forward does anything else.

    The first step reads "", the module's input.  Layers of the module keep their names, and functions get a name from
    the trace.  The forward is traced once, in training mode; the result is None if it depends on its data, draws random
    numbers or mixes samples.
    """
    hooked = (
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in module.modules()
    )
    if not list(module.children()) or any(hooked):
        return None
    module = copy.deepcopy(module).train()  # a forward may leave things behind
    try:
        with rng.seeded(0), READING, torch.enable_grad(), torch.autocast("cpu", enabled=False), _Draws() as draws:
            graph = _Tracer(known).trace(module)
    except Exception:  # whatever a forward raises when it is given a stand-in: it has no graph
        return None
    if draws.any:
        return None
    reading = _Reading(module)
    for node in graph.nodes:
        if node.op == "output":
            return reading.found if reading.ends(*node.args) else None
        if (value := reading.value(node)) is None:
            return None
        reading.values[node] = value
    return None


@dataclass(frozen=True)
class _Value:
    """The output of a step, "" the input."""

    step: str


@dataclass(frozen=True)
class _Last:
    """The last states of each of a recurrent step's layers."""

    step: str
    layers: int


SIZE = "a number that is read off a shape"
UNREAD = ()  # what no layer can read


class _Reading:
    """What has been read of a graph: the steps, and what each of its values is; a tuple where it is one."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.found: list[Step] = []
        self.values: dict[fx.Node, _Value | _Last | str | tuple] = {}

    def ends(self, last: Any) -> bool:
        """Whether this is the output of the last step."""
        return bool(self.found) and self.values.get(last) == _Value(self.found[-1][0])

    def value(self, node: fx.Node) -> _Value | _Last | str | tuple | None:
        """What a node computes; None where that is neither a step nor something that steps need."""
        if node.op == "placeholder":
            if not self.values:
                return _Value("")
            return None if node.users else UNREAD  # a second input
        source = self.values.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        item = node.args[1] if node.target is operator.getitem else None
        shape = node.target == "size" or (node.target is getattr and node.args[1] == "shape")
        if shape or (source == SIZE and item is not None):
            return SIZE
        if isinstance(source, tuple):
            return source[item] if item in range(len(source)) else None
        if isinstance(source, _Last):
            only = source.layers == 1 and (item == 0 or (node.target == "squeeze" and node.args[1:] == (0,)))
            last = SequenceReduction(torch.select, -2, -1)
            return self._step(node.name, last, source) if only or item in (-1, source.layers - 1) else None
        if not isinstance(source, _Value):
            return None
        if node.op == "call_module":
            return self._module(node, source) if len(node.args) == 1 and not node.kwargs else None
        layer = self._layer(node)
        return self._sum(node) if layer is None else self._step(node.name, layer, source)

    def _step(self, name: str, layer: nn.Module | None, *reads: _Value | _Last) -> _Value:
        self.found.append((name, layer, tuple(one.step for one in reads)))
        return _Value(name)

    def _module(self, node: fx.Node, source: _Value) -> _Value | tuple | None:
        """A layer of the module's; a recurrent one returns `out, (h, c)`, a GRU `out, h`."""
        layer = self.module.get_submodule(node.target)
        out = self._step(node.target, layer, source)
        if not isinstance(layer, RECURRENT):
            return out
        last = _Last(out.step, layer.num_layers)
        return out, (last if isinstance(layer, nn.GRU) else (last, UNREAD))

    def _sum(self, node: fx.Node) -> _Value | None:
        parts = [self.values.get(a) if isinstance(a, fx.Node) else None for a in node.args]
        if node.target not in ADDITIONS or node.kwargs or not all(isinstance(part, _Value) for part in parts):
            return None
        return self._step(node.name, None, *parts)

    def _layer(self, node: fx.Node) -> nn.Module | None:
        """The layer that a call of a function or method is; None where it is none that is known."""
        name, arguments = _name(node), node.args[1:]
        if node.target is operator.getitem:
            return _selected(*arguments)
        if _swaps(node):
            return SequenceFunction(torch.transpose, -2, -1)
        if name in ("view", "reshape"):
            shape = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple | list) else arguments
            return nn.Flatten() if len(shape) == 2 else None  # one row per sample, as the trial of a module has found
        if name not in LAYERS or any(isinstance(a, fx.Node) for a in (*arguments, *node.kwargs.values())):
            return None
        try:
            return LAYERS[name](*arguments, **node.kwargs)
        except TypeError:  # an argument that the layer does not have
            return None


def _name(node: fx.Node) -> str:
    """The name of a tensor's method, or of a function of torch's; "" for other calls."""
    if node.op == "call_method":
        return node.target
    name = getattr(node.target, "__name__", "")
    return name if node.target in (getattr(F, name, None), getattr(torch, name, None)) else ""


def _swaps(node: fx.Node) -> bool:
    """Whether a transposition or permutation swaps the two axes of each sequence."""
    axes = node.args[1:]
    axes = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
    both = (1, 2), (2, 1), (-1, -2), (-2, -1), (0, 2, 1)
    return _name(node) in ("transpose", "swapaxes", "permute") and axes in both


def _selected(index: Any) -> nn.Module | None:
    """`x[:, k]` and `x[:, k, :]`."""
    whole = slice(None)
    if isinstance(index, tuple) and len(index) in (2, 3) and index[0] == whole and index[2:] in ((), (whole,)):
        return SequenceReduction(torch.select, -2, index[1]) if type(index[1]) is int else None
    return None
