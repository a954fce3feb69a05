"""The yardstick: a network's products and convolutions by the fastest kernels that are known, and the machine's peak.

The work of a layer in a step is its forward pass, the gradient of its weights and that of its input; each is computed
by whichever of the candidates is fastest here, measured on its own beforehand.  What lies between the layers
(activations, pooling, the loss, the gathering of batches, Python) counts as nothing.  A share of 0.8 therefore means
that a round takes 1.25 times as long as its products and convolutions alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedcore as fc
from fedcore.engine import products

Call = Callable[[], object]
SECONDS = 0.004  # for which a candidate is tried
LARGE = 2048  # rows of the matrices whose product is the peak
COPIED = 1 << 26  # float32 numbers of the copy that gives the bandwidth: 268 megabytes, more than caches hold


def peaks() -> dict[str, float]:
    """10^9 operations a second of a product of two large matrices, by library and type; bandwidth: 10^9 bytes."""
    a, b = torch.randn(LARGE, LARGE), torch.randn(LARGE, LARGE)
    low = a.bfloat16(), b.bfloat16()
    found = {"bfloat16": _speed(lambda: low[0] @ low[1])}
    for library in libraries():
        with by(library):
            found[library] = _speed(lambda: a @ b)
    return {**found, "bandwidth": bandwidth()}


def bandwidth(repeats: int = 7) -> float:
    """10^9 bytes a second, read and written, of a copy of a large tensor; the best of several."""
    source, times = torch.ones(COPIED), []
    target = torch.empty_like(source)
    for _ in range(repeats):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    return 2e-9 * source.nbytes / min(times)


def _speed(product: Call) -> float:
    return 2e-9 * LARGE**3 / seconds(product, 0.2)


@contextlib.contextmanager
def by(library: str) -> Iterator[None]:
    """A block whose float32 products are computed by this library."""
    products.use(library)
    try:
        with products.fastest():
            yield
    finally:
        products.use("auto")


def libraries() -> tuple[str, ...]:
    """The libraries whose products have float32's accuracy here, whichever of them the engine uses."""
    return ("mkl", "onednn") if products._switch() and products._is_accurate() else ("mkl",)


def seconds(call: Call, least: float = SECONDS) -> float:
    """The median time of a call, tried for at least so long."""
    call()
    times: list[float] = []
    while sum(times) < least or len(times) < 3:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


def layers(fed: fc.Federation) -> list[tuple[nn.Module, torch.Size]]:
    """The layers that are products or convolutions, in order, and the shape of a sample that enters each."""
    seen: list[tuple[nn.Module, torch.Size]] = []
    hooks = [
        layer.register_forward_hook(lambda module, inputs, _: seen.append((module, inputs[0].shape[1:])))
        for layer in fed.engine.module.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.LSTM)
    ]
    fed.engine.module(fed.inputs(fed.x[:2]))
    for hook in hooks:
        hook.remove()
    return seen


def operations(fed: fc.Federation, samples: int) -> int:
    """Multiplications and additions of all products and convolutions of the training on so many samples."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(fed.engine.module.train()(fed.inputs(fed.x[:2])), fed.y[:2]).backward()
    return counter.get_total_flops() // 2 * samples  # counted on two samples


def step(fed: fc.Federation, m: int, batch: int, low: bool = False) -> list[Call]:
    """The fastest kernels of one step of m clients, to be called one after another; low: also those in bfloat16."""
    calls: list[Call] = []
    for k, (layer, shape) in enumerate(layers(fed)):
        candidates = {nn.Linear: _linear, nn.Conv2d: _convolution, nn.LSTM: _lstm}[type(layer)]
        for name, options in candidates(layer, shape, m, batch, low).items():
            if name != "input" or k > 0:
                calls.append(min(options.values(), key=seconds))
    return calls


def _linear(layer: nn.Linear, shape: torch.Size, m: int, batch: int, low: bool) -> dict[str, dict[str, Call]]:
    """One product for all clients."""
    rows = batch * (shape.numel() // layer.in_features)
    x, w = torch.randn(m, rows, layer.in_features), layer.weight.detach().repeat(m, 1, 1)
    e = torch.randn(m, rows, layer.out_features)
    found: dict[str, dict[str, Call]] = {part: {} for part in ("forward", "weights", "input")}

    def add(name: str, x: Tensor, w: Tensor, e: Tensor) -> None:
        found["forward"][name] = lambda: torch.bmm(x, w.transpose(1, 2))
        found["weights"][name] = lambda: torch.bmm(e.transpose(1, 2), x)
        found["input"][name] = lambda: torch.bmm(e, w)

    add("float32", x, w, e)
    found["weights"]["in place"] = lambda: w.baddbmm_(e.transpose(1, 2), x, alpha=-1e-9)
    if low:
        add("bfloat16", *(v.bfloat16() for v in (x, w, e)))
    return found


def _convolution(layer: nn.Conv2d, shape: torch.Size, m: int, batch: int, low: bool) -> dict[str, dict[str, Call]]:
    """One grouped convolution for all clients, or one for each, with channels last or first."""
    where = (layer.stride, layer.padding, layer.dilation)
    found: dict[str, dict[str, Call]] = {part: {} for part in ("forward", "weights", "input")}

    def add(name: str, x: Tensor, w: Tensor, clients: int, times: int) -> None:
        groups = clients * layer.groups
        e = torch.randn_like(F.conv2d(x, w, None, *where, groups))

        def back(which: tuple[bool, bool, bool]) -> Call:
            given = (e, x, w, None, *where, False, (0, 0), groups, which)
            return lambda: [torch.ops.aten.convolution_backward(*given) for _ in range(times)]

        found["forward"][name] = lambda: [F.conv2d(x, w, None, *where, groups) for _ in range(times)]
        found["weights"][name] = back((False, True, False))
        found["input"][name] = back((True, False, False))

    for clients, times in {(m, 1), (1, m)}:
        x = torch.randn(batch, clients * shape[0], *shape[1:])
        w = layer.weight.detach().repeat(clients, 1, 1, 1)
        for dtype in (torch.float32, torch.bfloat16) if low else (torch.float32,):
            for form in (torch.channels_last, torch.contiguous_format):
                given = (v.to(dtype).contiguous(memory_format=form) for v in (x, w))
                add(f"{clients} {dtype} {form}", *given, clients, times)
    return found


def _lstm(layer: nn.LSTM, shape: torch.Size, m: int, batch: int, low: bool) -> dict[str, dict[str, Call]]:
    """One client after another, forward and back."""
    x, params = torch.randn(batch, *shape, requires_grad=True), list(layer.parameters())
    e = torch.randn_like(layer(x)[0])

    def call() -> None:
        with torch.enable_grad():
            for _ in range(m):
                torch.autograd.grad(layer(x)[0], [x, *params], e)

    return {"forward": {"fused": call}}
