"""A user's own module as the layers that its forward calls: `torch.fx` reads them off.

A module whose forward is a chain of layers and of functions that are layers (`F.relu`, `F.max_pool2d`, `flatten`, ...)
then runs like the `nn.Sequential` of the same layers, on all paths; with additions between branches, on the paths with
autograd.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)  # whose own default leaves the samples


def _log_softmax(dim: int | None, dtype: torch.dtype | None = None) -> nn.Module:
    if dtype is not None:
        raise TypeError(f"dtype={dtype}: the layer has none")
    return nn.LogSoftmax(dim)


def _max_pool2d(
    kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.Module:  # fmt: skip
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


# What a call of a function or of a tensor's method is as a layer: its arguments behind the tensor -> the layer.
Layer = Callable[..., nn.Module]
FUNCTIONS: Mapping[Any, Layer] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    F.relu6: nn.ReLU6,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.elu: nn.ELU,
    F.leaky_relu: nn.LeakyReLU,
    F.softplus: nn.Softplus,
    F.tanh: nn.Tanh,
    torch.tanh: nn.Tanh,
    F.sigmoid: nn.Sigmoid,
    torch.sigmoid: nn.Sigmoid,
    F.dropout: lambda p=0.5, training=True, inplace=False: nn.Dropout(p if training else 0.0),
    torch.max_pool2d: _max_pool2d,
    F.max_pool2d: _max_pool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    torch.flatten: _flatten,
    F.log_softmax: lambda dim=None, _stacklevel=3, dtype=None: _log_softmax(dim, dtype),
    torch.log_softmax: _log_softmax,
}
METHODS: Mapping[str, Layer] = {
    "relu": nn.ReLU,
    "relu_": lambda: nn.ReLU(inplace=True),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "flatten": _flatten,
    "log_softmax": _log_softmax,
    "contiguous": nn.Identity,
}
ADDITIONS = (operator.add, operator.iadd, torch.add)


class _Tracer(fx.Tracer):
    """Stops at what the engine has a rule for, and at layers without parts.

    A graph does not say that a call stood under `torch.no_grad` or `torch.autocast`: such a forward has none.
    """

    def __init__(self, known: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.known = known

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise fx.proxy.TraceError("a call whose gradients or types are changed around it")
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.known(m) or not list(m.children())


Step = tuple[str, nn.Module | None, tuple[str, ...]]  # name, layer (None: an addition), what it reads


def steps(module: nn.Module, known: Callable[[nn.Module], bool]) -> list[Step] | None:
    """The layers and additions that compute a module's output, in order; None where its forward does anything else.

    The first step reads "", the module's input.  Layers of the module have their own names, functions a name of the
    trace.  What the forward does is read once, in training mode: a forward that depends on its data, draws numbers or
    mixes samples is none of layers and additions.
    """
    hooked = (m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules())
    if not list(module.children()) or any(hooked):
        return None
    module = copy.deepcopy(module).train()  # a forward may leave things behind
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            graph = _Tracer(known).trace(module)
    except Exception:  # whatever a forward raises when it is given a stand-in: it has no graph
        return None
    found: list[Step] = []
    names: dict[fx.Node, str] = {}
    sizes: set[fx.Node] = set()  # numbers that are read off shapes
    for node in graph.nodes:
        if node.op == "placeholder":
            if names and node.users:
                return None  # a second input
            names[node] = "" if not names else names.get(node, "")
        elif _is_size(node, sizes):
            sizes.add(node)
        elif node.op == "output":
            (last,) = node.args
            return found if found and names.get(last) == found[-1][0] else None
        elif (layer := _layer(node, module, sizes)) is not None and _reads(node, names):
            names[node] = node.target if node.op == "call_module" else node.name
            found.append((names[node], layer, (names[node.args[0]],)))
        elif node.target in ADDITIONS and not node.kwargs and all(_known(a, names) for a in node.args):
            if node.target is operator.iadd and not _is_new(
                node.args[0], {step: layer for step, layer, _ in found}, names
            ):
                return None
            names[node] = node.name
            found.append((node.name, None, tuple(names[a] for a in node.args)))
        else:
            return None
    return None


def _known(a: Any, names: Mapping[fx.Node, str]) -> bool:
    return isinstance(a, fx.Node) and a in names


def _is_new(node: fx.Node, layers: Mapping[str, nn.Module | None], names: Mapping[fx.Node, str]) -> bool:
    """Whether `+=` may write over a tensor: a layer has made it for this alone."""
    layer = layers.get(names[node])
    return len(node.users) == 1 and bool(names[node]) and not isinstance(layer, nn.Flatten | nn.Identity | nn.Dropout)


def _reads(node: fx.Node, names: Mapping[fx.Node, str]) -> bool:
    """Whether a call reads one tensor of the chain, and layers nothing besides."""
    return bool(node.args) and _known(node.args[0], names) and (node.op != "call_module" or len(node.args) == 1)


def _is_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    """`x.size(0)`, `x.shape[0]`, `len(x)`: how many samples, or one of their sizes."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] == "shape"
    return node.op == "call_function" and node.target is operator.getitem and node.args[0] in sizes


def _layer(node: fx.Node, module: nn.Module, sizes: set[fx.Node]) -> nn.Module | None:
    """The layer that a call is; None where it is none that is known."""
    if node.op == "call_module":
        return None if node.kwargs else module.get_submodule(node.target)
    arguments, options = node.args[1:], dict(node.kwargs)
    if node.op == "call_method" and node.target in ("view", "reshape"):
        return nn.Flatten() if _keeps_samples(arguments, sizes) else None
    if (node.op == "call_method" and node.target == "mean") or node.target is torch.mean:
        axes, keep = _mean(*arguments, **options)
        pool = nn.AdaptiveAvgPool2d(1)
        return (pool if keep else nn.Sequential(pool, nn.Flatten())) if axes in ((2, 3), (-2, -1)) else None
    make = METHODS.get(node.target) if node.op == "call_method" else FUNCTIONS.get(node.target)
    if make is None or any(isinstance(a, fx.Node) for a in (*arguments, *options.values())):
        return None
    try:
        return make(*arguments, **options)
    except TypeError:  # an argument that the layer does not have
        return None


def _keeps_samples(arguments: tuple, sizes: set[fx.Node]) -> bool:
    """Whether `view(*arguments)` is one row a sample: (B, -1), (B, number), (-1, number).

    A (-1, number) that is none would change how many samples there are, and no layer here changes that back.
    """
    shape = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple | list) else arguments
    if len(shape) != 2:
        return False
    rows, columns = shape
    if rows == -1 and not isinstance(rows, fx.Node):
        return isinstance(columns, int) and columns > 0
    return rows in sizes and (isinstance(columns, int) or columns in sizes)


def _mean(dim: Any = None, keepdim: bool = False, dtype: Any = None) -> tuple[tuple, bool]:
    return (tuple(sorted(dim)) if isinstance(dim, tuple | list) and dtype is None else ()), keepdim
