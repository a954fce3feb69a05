"""The effect of a neuron mask on a gradient: batches of small ReLU networks, all masks of one size, neuron scores.

A network is a list of layers `(W [..., m_l, m_{l-1}], b [..., m_l])`; the leading dimensions are batched networks.
A mask keeps some units of every hidden layer, `keeps = [bool [..., m_l], ...]`, and all inputs and outputs.
f is the mean cross-entropy.  Source: the thesis of FedDSE and FedGSE, chapter 4 (equations by their numbers there).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcore import rng
from fedcore.support import checks

Network = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Backward:
    """One pass over N samples: h[0] is x, h[l] `[..., N, m_l]` the post-ReLU values of hidden layer l = 1, 2, ...

    dh[l-1] and dz[l-1] `[..., N, m_l]`: gradients of the sample's share of f with respect to hidden layer l, after
    and before its ReLU; the last entry of dz is that of the logits.  gradient: (dW, db) for every layer.
    """

    loss: Tensor
    h: list[Tensor]
    dh: list[Tensor]
    dz: list[Tensor]
    gradient: list[tuple[Tensor, Tensor]]


def random_networks(
    count: int, sizes: Sequence[int], samples: int, *, gain: float = 1.0, bias: float = 0.1, seed: int = 0
) -> tuple[Network, Tensor, Tensor]:
    """`count` ReLU networks in float64, each with its own data: `(network, x [count, N, inputs], y [count, N])`.

    sizes: inputs, hidden widths, classes.  Weights are normal with variance gain / fan-in, biases normal with standard
    deviation `bias`, inputs standard normal, labels uniform.
    """
    g = rng.numpy_generator(seed, rng.DATA)
    net = [
        tuple(torch.from_numpy(g.normal(size=(count, *shape)) * sd) for shape, sd in layer)
        for layer in ((((m, a), math.sqrt(gain / a)), ((m,), bias)) for a, m in itertools.pairwise(sizes))
    ]
    x = torch.from_numpy(g.normal(size=(count, samples, sizes[0])))
    return net, x, torch.from_numpy(g.integers(0, sizes[-1], (count, samples)))


def backward(net: Network, x: Tensor, y: Tensor) -> Backward:
    """Forward and backward pass of f = mean cross-entropy of x `[..., N, inputs]` and labels y `[..., N]`."""
    h, z = [x], []
    for W, b in net:
        z.append(h[-1] @ W.mT + b[..., None, :])
        h.append(z[-1].relu())
    logits = z[-1]
    target = F.one_hot(y, logits.shape[-1]).to(logits)
    dz, dh = [(logits.softmax(-1) - target) / y.shape[-1]], []
    for (W, _), before in zip(net[:0:-1], z[-2::-1], strict=True):
        dh.insert(0, dz[0] @ W)
        dz.insert(0, dh[0] * (before > 0))  # the derivative of ReLU at 0 is 0
    gradient = [(d.mT @ a, d.sum(-2)) for d, a in zip(dz, h, strict=False)]  # dW = sum over samples of dz h'
    return Backward(-(logits.log_softmax(-1) * target).sum(-1).mean(-1), h[:-1], dh, dz, gradient)


def scores(net: Network, x: Tensor, y: Tensor) -> dict[str, list[Tensor]]:
    """Neuron scores by name, each with one tensor `[..., m_l]` per hidden layer; sums run over samples.

    "eq. 4-3" is the source's |sum df/dh|, after the ReLU; "eq. 4-3 before ReLU" differentiates by the pre-activation;
    in "sum |df/dh|" and "sum |df/dz|" samples cannot cancel; "row norm" is the norm of the gradient of a unit's
    incoming weights and bias; "row and column norm" adds its outgoing weights; "mean activation" is the score of FedDSE
    at T = 0.
    """
    p = backward(net, x, y)
    rows = [(dW.square().sum(-1) + db.square()).sqrt() for dW, db in p.gradient[:-1]]
    columns = [dW.square().sum(-2) for dW, _ in p.gradient[1:]]
    return {
        "eq. 4-3": [d.sum(-2).abs() for d in p.dh],
        "eq. 4-3 before ReLU": [d.sum(-2).abs() for d in p.dz[:-1]],
        "sum |df/dh|": [d.abs().sum(-2) for d in p.dh],
        "sum |df/dz|": [d.abs().sum(-2) for d in p.dz[:-1]],
        "mean activation": [h.mean(-2) for h in p.h[1:]],
        "row norm": rows,
        "row and column norm": [(r.square() + c).sqrt() for r, c in zip(rows, columns, strict=True)],
    }


def top(score: Sequence[Tensor], k: Sequence[int]) -> list[Tensor]:
    """Algorithm 4.4: keep the k[l] units of highest score in each hidden layer, `[bool [..., m_l], ...]`.

    Of units with equal scores the first is kept.  Raises ValueError for a k outside 1..m_l.
    """
    keeps = []
    for s, n in zip(score, k, strict=True):
        checks.integer("k", n, 1, s.shape[-1], hint="units of the layer")
        best = s.sort(stable=True, dim=-1, descending=True).indices[..., :n]
        keeps.append(torch.zeros_like(s, dtype=torch.bool).scatter_(-1, best, True))
    return keeps


def all_masks(widths: Sequence[int], k: Sequence[int]) -> list[Tensor]:
    """Every way to keep k[l] of the widths[l] units in each hidden layer: one `bool [C, m_l]` per layer, C the product
    of the binomial coefficients, in lexicographic order."""
    sets = itertools.product(*(itertools.combinations(range(m), n) for m, n in zip(widths, k, strict=True)))
    rows = [[[i in kept for i in range(m)] for m, kept in zip(widths, choice, strict=True)] for choice in sets]
    return [torch.tensor(layer) for layer in zip(*rows, strict=True)]


def entries(keeps: Sequence[Tensor], like: Network, columns: bool = True) -> list[tuple[Tensor, Tensor]]:
    """The mask M `(bool [..., m_l, m_{l-1}], bool [..., m_l])` of every layer: an entry is kept if both its units are.

    `columns=False` masks rows only, as the source writes M_{l,i}: incoming weights and biases of dropped units.
    """
    ends = [torch.ones_like(like[0][0][..., 0, :], dtype=torch.bool), *keeps]
    ends.append(torch.ones_like(like[-1][1], dtype=torch.bool))
    return [
        (row[..., None] & (column if columns else torch.ones_like(column))[..., None, :], row)
        for column, row in itertools.pairwise(ends)
    ]


def gaps(net: Network, x: Tensor, y: Tensor, keeps: Sequence[Tensor], columns: bool = True) -> dict[str, Tensor]:
    """The distance between the gradients with and without a mask, `[..., C]`, for networks `[...]` and C masks,
    `keeps = [bool [C, m_l], ...]` (one set for all networks) or `[..., C, m_l]`.

    "sub-model": ||grad f(w) - grad f(M * w)||, of Theorem 1; "masked": ||grad f(w) - M * grad f(w)||, of its proof;
    "kept": the part of the sub-model gap on the kept entries.
    """
    full = [(dW.unsqueeze(-3), db.unsqueeze(-2)) for dW, db in backward(net, x, y).gradient]
    wide = [(W.unsqueeze(-3), b.unsqueeze(-2)) for W, b in net]  # one more dimension, for the masks
    found: dict[str, list[Tensor]] = {"sub-model": [], "masked": [], "kept": []}
    for part in zip(*(keep.split(max(1, 2**21 // x.numel()), -2) for keep in keeps), strict=True):  # bounded memory
        masks = entries(part, wide, columns)
        small = backward(times(wide, masks), x.unsqueeze(-3), y.unsqueeze(-2)).gradient
        gap = [(a - c, b - d) for (a, b), (c, d) in zip(full, small, strict=True)]
        found["sub-model"].append(_length(gap))
        found["masked"].append(_length(times(full, [(~M, ~B) for M, B in masks])))
        found["kept"].append(_length(times(gap, masks)))
    return {name: torch.cat(values, -1) for name, values in found.items()}


def times(parts: Network, masks: Sequence[tuple[Tensor, Tensor]]) -> Network:
    """M * w, eq. 4-7: the network, or its gradient, in which the entries outside the masks are 0."""
    return [(W * M, b * B) for (W, b), (M, B) in zip(parts, masks, strict=True)]


def _length(parts: Network) -> Tensor:
    return sum(dW.square().sum((-1, -2)) + db.square().sum(-1) for dW, db in parts).sqrt()


def alternate(gradient: Network, keeps: Sequence[Tensor], sweeps: int = 10) -> list[Tensor]:
    """Improve masks for the masked gap by coordinate descent: each layer in turn keeps its best units, given the
    others.

    The score of a unit is the sum of squares of its incoming entries from kept units, its bias, and its outgoing
    entries to kept units.  Therefore no step can increase the gap, and with one hidden layer the first step is optimal.
    `keeps` are the initial masks; the numbers of kept units stay the same.
    """
    squares, keeps = [(dW.square(), db.square()) for dW, db in gradient], list(keeps)
    k = [int(keep.sum(-1).max()) for keep in keeps]
    for _ in range(sweeps):
        for i in range(len(keeps)):
            free = [*keeps[:i], torch.ones_like(keeps[i]), *keeps[i + 1 :]]
            (before, _), (after, _) = entries(free, gradient)[i : i + 2]
            (dW, db), (out, _) = squares[i : i + 2]
            keeps[i] = top([(dW * before).sum(-1) + db + (out * after).sum(-2)], k[i : i + 1])[0]
    return keeps


def find(keeps: Sequence[Tensor], among: Sequence[Tensor]) -> Tensor:
    """The index `[...]` of each mask `keeps = [bool [..., m_l], ...]` among C masks `[bool [C, m_l], ...]`.

    Raises ValueError if a mask is not among them.
    """
    same = (torch.cat(list(keeps), -1).unsqueeze(-2) == torch.cat(list(among), -1)).all(-1)
    if not bool(same.any(-1).all()):
        raise ValueError("a mask is not among those enumerated; use the same number of units in both")
    return same.int().argmax(-1)


def standing(gap: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the gap of the chosen masks `[...]` is the smallest of all, `gap [..., C]`, up to rounding, and its
    ratio to the smallest.

    The ratio is 1 if both gaps are 0, and infinite if only the smallest gap is 0.
    """
    own, best = gap.gather(-1, chosen[..., None])[..., 0], gap.min(-1).values
    hit = own <= best + 1e-9 * gap.max(-1).values
    return hit, torch.where(hit, torch.ones_like(own), own / best)


def survey(
    net: Network,
    x: Tensor,
    y: Tensor,
    every: Sequence[Tensor],
    k: Sequence[int],
    data: tuple[Tensor, Tensor] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """Compare the mask that each score chooses with all masks `every` of `k` units: score -> four tensors `[...]`.

    "sub-model" and "masked": whether that gap (see `gaps`) is the smallest of all; "sub-model ratio" and "masked
    ratio": the gap over the smallest (`standing`).  In addition to the names of `scores` there are "any mask", the mean
    over all masks, and with several hidden layers "alternating", `alternate` from the row and column norms.  data:
    (x, y) on which the scores are computed, by default the data of the gaps.
    """
    gap = gaps(net, x, y, every)
    chosen = {name: top(score, k) for name, score in scores(net, *(data or (x, y))).items()}
    if len(k) > 1:
        chosen["alternating"] = alternate(backward(net, *(data or (x, y))).gradient, chosen["row and column norm"])
    found: dict[str, dict[str, Tensor]] = {}
    for name, keeps in chosen.items():
        at = find(keeps, every)
        for kind in ("sub-model", "masked"):
            hit, ratio = standing(gap[kind], at)
            found.setdefault(name, {}).update({kind: hit, f"{kind} ratio": ratio})
    found["any mask"] = {}
    for kind in ("sub-model", "masked"):
        each = [standing(gap[kind], torch.full_like(at, c)) for c in range(len(every[0]))]
        found["any mask"][kind] = torch.stack([hit for hit, _ in each]).double().mean(0)
        found["any mask"][f"{kind} ratio"] = torch.stack([ratio for _, ratio in each]).mean(0)
    return found
