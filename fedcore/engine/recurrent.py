"""Recurrent layers (`nn.LSTM`, `nn.GRU`) for many clients: one product per time step, and a written backward pass.

Autograd through a loop over time spends more time on its graph than on arithmetic.  Therefore a layer is one autograd
function whose backward pass is written out by the chain rule.  For Hessian-vector products, which differentiate twice,
the layer is computed again by operations that autograd can differentiate.

Shapes for m clients: inputs `x [m, L, B, F]`, weights `U [m, G, F]` of the inputs and `W [m, G, H]` of the states, and
their biases `[m, G]` or None; G is 4H with the gates (input, forget, cell, output), or 3H with (reset, update, new).  A
layer starts from zeros and returns its states `[m, L, B, H]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

aten = torch.ops.aten
States = Annotated[Tensor, "m L B _"]
Weights = Annotated[Tensor, "m G _"]
Biases = Annotated[Tensor, "m G"] | None


def states(layer: nn.LSTM | nn.GRU, x: Annotated[Tensor, "m B L _"], params: Sequence[Tensor]) -> Tensor:
    """The states `[m, B, L, H]` of the last of the module's layers, for each client by its own parameters.

    params: in the module's order, `[m, *shape]` each.
    """
    if isinstance(layer, nn.LSTM) and is_fused(x):
        return torch.stack([_fused(layer, one.contiguous(), [p[i] for p in params]) for i, one in enumerate(x)])
    kind, each = LSTM if isinstance(layer, nn.LSTM) else GRU, len(params) // layer.num_layers
    h = x.transpose(1, 2)
    with torch.autocast(x.device.type, enabled=False):
        for k in range(layer.num_layers):
            U, W, *biases = params[k * each : (k + 1) * each]
            h = kind.apply(h.to(U.dtype), U, W, *(biases or (None, None)))
    return h.transpose(1, 2)


def is_fused(x: Tensor) -> bool:
    """Whether oneDNN has an LSTM as one kernel: of one client, but no product per time step is faster than that."""
    return x.device.type == "cpu" and x.dtype != torch.float64 and torch.backends.mkldnn.is_available()


def _fused(layer: nn.LSTM, x: Annotated[Tensor, "B L _"], params: Sequence[Tensor]) -> Tensor:
    """The states `[B, L, H]` of one client; its parameters are copied for an alignment that is always the same."""
    start = x.new_zeros(layer.num_layers, len(x), layer.hidden_size)
    copies = [p.clone() for p in params]
    return torch.lstm(x, (start, start), copies, layer.bias, layer.num_layers, 0.0, True, False, True)[0]


class LSTM(Function):
    """i, f, o = sigmoid(U x + W h + b), g = tanh(U x + W h + b); c <- f c + i g; h <- o tanh(c)."""

    @staticmethod
    def forward(ctx: Any, x: States, U: Weights, W: Weights, bu: Biases, bw: Biases) -> States:
        (m, L, B, _), H = x.shape, W.shape[2]
        G, Wt = _products(x, U, None if bu is None else bu + bw), W.transpose(1, 2)
        h, c, ctx.steps = x.new_zeros(m, L + 1, B, H), x.new_zeros(m, B, H), []
        for t in range(L):
            gates = torch.baddbmm(G[:, t], h[:, t], Wt)
            i, f, g, o = gates.chunk(4, 2)
            gates[..., : 2 * H].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            before, c = c, (i * g).addcmul_(f, c)
            squashed = c.tanh()
            torch.mul(o, squashed, out=h[:, t + 1])
            ctx.steps.append((i, f, g, o, before, squashed))
        ctx.save_for_backward(x, U, W, bu, bw)
        ctx.h = h
        return h[:, 1:]

    @staticmethod
    def backward(ctx: Any, e: States) -> tuple[Tensor | None, ...]:
        inputs = x, U, W, bias, _ = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _again(LSTM.step, inputs, e)
        D = x.new_empty(*x.shape[:3], U.shape[1])  # the gradient with respect to the sums that enter the gates
        dh, dc = torch.zeros_like(e[:, 0]), 0
        for t in reversed(range(x.shape[1])):
            (i, f, g, o, before, squashed), (di, df, dg, do) = ctx.steps[t], D[:, t].chunk(4, 2)
            dh += e[:, t]
            dc = aten.tanh_backward(dh * o, squashed).add_(dc)
            aten.sigmoid_backward(dh * squashed, o, grad_input=do)
            aten.tanh_backward(dc * i, g, grad_input=dg)
            aten.sigmoid_backward(dc * g, i, grad_input=di)
            aten.sigmoid_backward(dc * before, f, grad_input=df)
            dc, dh = dc.mul_(f), torch.bmm(D[:, t], W)
        sums = D.sum((1, 2)) if bias is not None else None
        return _by_inputs(ctx, D, x, U), _by_weights(D, x), _by_weights(D, ctx.h[:, :-1]), sums, sums

    @staticmethod
    def step(by_input: Tensor, by_state: Tensor, h: Tensor, c: Tensor | int) -> tuple[Tensor, Tensor]:
        """The states (h, c) after one time step, in operations that autograd differentiates."""
        i, f, g, o = (by_input + by_state).chunk(4, 2)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GRU(Function):
    """r, z = sigmoid(U x + b + W h + b'), n = tanh(U x + b + r (W h + b')); h <- n + z (h - n)."""

    @staticmethod
    def forward(ctx: Any, x: States, U: Weights, W: Weights, bu: Biases, bw: Biases) -> States:
        (m, L, B, _), H, G = x.shape, W.shape[2], _products(x, U, bu)
        h, ctx.steps = x.new_zeros(m, L + 1, B, H), []
        for t in range(L):
            own = _products(h[:, t], W, bw)
            gates = own[..., : 2 * H].add(G[:, t, :, : 2 * H]).sigmoid_()
            (r, z), own = gates.chunk(2, 2), own[..., 2 * H :]
            n = torch.addcmul(G[:, t, :, 2 * H :], r, own).tanh_()
            torch.lerp(n, h[:, t], z, out=h[:, t + 1])
            ctx.steps.append((r, z, n, own))
        ctx.save_for_backward(x, U, W, bu, bw)
        ctx.h = h
        return h[:, 1:]

    @staticmethod
    def backward(ctx: Any, e: States) -> tuple[Tensor | None, ...]:
        inputs = x, U, W, bias, _ = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _again(GRU.step, inputs, e)
        D = x.new_empty(*x.shape[:3], U.shape[1])  # the gradient at the gates, of the part from the inputs
        E, H = torch.empty_like(D), W.shape[2]  # and of the part from the states, which r multiplies in n
        dh = torch.zeros_like(e[:, 0])
        for t in reversed(range(x.shape[1])):
            (r, z, n, own), (dr, dz, dn) = ctx.steps[t], D[:, t].chunk(3, 2)
            dh += e[:, t]
            aten.tanh_backward(dh - dh * z, n, grad_input=dn)
            aten.sigmoid_backward(dn * own, r, grad_input=dr)
            aten.sigmoid_backward((ctx.h[:, t] - n).mul_(dh), z, grad_input=dz)
            E[:, t, :, : 2 * H] = D[:, t, :, : 2 * H]
            torch.mul(dn, r, out=E[:, t, :, 2 * H :])
            dh = torch.baddbmm(dh * z, E[:, t], W)
        sums = (D.sum((1, 2)), E.sum((1, 2))) if bias is not None else (None, None)
        return _by_inputs(ctx, D, x, U), _by_weights(D, x), _by_weights(E, ctx.h[:, :-1]), *sums

    @staticmethod
    def step(by_input: Tensor, by_state: Tensor, h: Tensor, none: int) -> tuple[Tensor, int]:
        """As `LSTM.step`, without a state c."""
        (a, b, c), (i, j, k) = by_input.chunk(3, 2), by_state.chunk(3, 2)
        n = (c + (a + i).sigmoid() * k).tanh()
        return n + (b + j).sigmoid() * (h - n), none


def _products(x: Tensor, U: Weights, b: Biases) -> Tensor:
    """U x + b along the last axis of `x [m, ..., F]`."""
    rows, Ut = x.flatten(1, -2), U.transpose(1, 2)
    out = torch.bmm(rows, Ut) if b is None else torch.baddbmm(b.unsqueeze(1), rows, Ut)
    return out.view(*x.shape[:-1], -1)


def _by_inputs(ctx: Any, D: States, x: States, U: Weights) -> States | None:
    """The gradient with respect to the inputs, if it is needed."""
    return torch.bmm(D.flatten(1, 2), U).view(x.shape) if ctx.needs_input_grad[0] else None


def _by_weights(D: States, x: States) -> Weights:
    """The gradient with respect to the weights of gates whose gradient is D."""
    return torch.bmm(D.flatten(1, 2).transpose(1, 2), x.flatten(1, 2))


def _again(step: Callable[..., Any], inputs: Sequence[Tensor | None], e: States) -> tuple[Tensor | None, ...]:
    """The gradients by the inputs as functions of all that they are computed from; step: one time step."""
    x, U, W, bu, bw = inputs
    G, h, c, out = _products(x, U, bu), x.new_zeros(*x[:, 0].shape[:2], W.shape[2]), 0, []
    for t in range(x.shape[1]):
        h, c = step(G[:, t], _products(h, W, bw), h, c)
        out.append(h)
    wanted = [v for v in inputs if v is not None and v.requires_grad]
    grads = torch.autograd.grad(torch.stack(out, 1), wanted, e, create_graph=True)
    found = dict(zip(map(id, wanted), grads, strict=True))
    return tuple(None if v is None else found.get(id(v)) for v in inputs)
