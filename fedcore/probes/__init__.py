"""Measurements of the chapters: functions `(round, y [m, d]) -> {name: value}` for `simulate(probes=...)`, and studies
of one round from a given model (`mime_ablation`, `neuron_gradients`, `submodel_conflict`).  The functions of
`flatness`, which measure the shape of an objective around a point, can be imported from here too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithms.method import Method, Round
from ..algorithms.submodels import HeteroFL, Submodel
from ..engine import PLAIN, Loss
from ..objective import Objective
from ..objective.federation import Federation
from ..round import check_both, local_steps, one_round, start
from ..rows.state import State
from ..support import checks
from .flatness import first_order_flatness, gradient_of, loss_along, loss_slice, zeroth_order_flatness

__all__ = [
    "consensus", "control_error", "dissimilarity", "drift", "first_order_flatness", "gradient_estimate",
    "gradient_of", "loss_along", "loss_slice", "mime_ablation", "neuron_gradients", "quadratic_bound",
    "submodel_conflict", "submodel_gap", "zeroth_order_flatness",
]  # fmt: skip


def drift(r: Round, y: Tensor) -> dict[str, Tensor]:
    """`drift`: mean distance of the local models from their mean, divided by the mean norm of the updates, in the
    trained parameters.

    0 means no drift.  Orthogonal updates of equal norm give sqrt(1 - 1/m), and so does mini-batch noise alone; at a
    fixed point the ratio tends to 1, because the updates cancel.
    """
    delta = _trained(r, y - r.x)
    spread = (delta - r.mean(delta)).norm(dim=1).mean()
    return {"drift": spread / delta.norm(dim=1).mean().clamp_min(1e-30)}


def dissimilarity(r: Round, y: Tensor) -> dict[str, Tensor]:
    """`dissimilarity`: mean_i ||grad F_i(x)||^2 / ||mean_i grad F_i(x)||^2 of the cohort at the round's model x.

    This is 1 + mean_i ||grad F_i(x) - grad F(x)||^2 / ||grad F(x)||^2, hence 1 for equal gradients and larger for all
    others.  It is B(x)^2 of FedProx (Li et al. 2020).  It tends to infinity at an optimum of F where clients differ.
    """
    g = r.full_gradient(r.x.expand_as(y))
    return {"dissimilarity": r.mean(g.square()).sum() / r.mean(g).square().sum().clamp_min(1e-30)}


def control_error(r: Round, y: Tensor) -> dict[str, Tensor]:
    """`control_error [m]`: ||c_i - grad F_i(x)|| / ||grad F_i(x)|| of the cohort before the round, in the trained
    parameters."""
    g = r.full_gradient(r.x.expand_as(y))
    return {"control_error": _trained(r, r.c_i - g).norm(dim=1) / g.norm(dim=1).clamp_min(1e-30)}


@checks.arguments
def gradient_estimate(alpha: checks.NonNegative):
    """A probe of FedUp's estimate (alpha/lr)(x_prev - x) of grad F(x), against the mean of the cohort's gradients.

    Records `estimate_ratio` (length of the estimate's projection on the gradient, over the gradient's length: 1 is
    unbiased in scale), `estimate_cosine` and `estimate_error` (||estimate - gradient|| / ||gradient||).  With all
    clients in the cohort the mean of the cohort's gradients is grad F(x) itself.
    """

    def probe(r: Round, y: Tensor) -> dict[str, Tensor]:
        estimate = alpha / r.lr * _trained(r, r.x_prev - r.x)
        g = r.mean(r.full_gradient(r.x.expand_as(y)))
        return {
            "estimate_ratio": torch.dot(estimate, g) / torch.dot(g, g).clamp_min(1e-30),
            "estimate_cosine": F.cosine_similarity(estimate, g, dim=0),
            "estimate_error": (estimate - g).norm() / g.norm().clamp_min(1e-30),
        }

    return probe


def consensus(r: Round, y: Tensor) -> dict[str, Tensor]:
    """`consensus`: mean ||x_i - mean x|| of the clients' models at the start of the round (after the last mixing), and
    `consensus_local`, the same of their local iterates before this round's mixing, in the trained parameters.
    `consensus` is 0 for methods with a server.
    """
    X = getattr(r, "X", r.x[None])
    return {
        name: _trained(r, Z - Z.mean(0)).norm(dim=1).mean() for name, Z in (("consensus", X), ("consensus_local", y))
    }


@checks.arguments
def submodel_gap(
    labels: Annotated[str, checks.OneOf(("all", "zero", "-inf"))] | None = None,
    momentum: checks.BelowOne | None = None,
    others: checks.Mapped | None = None,
):
    """A probe of sub-model methods: how far each client's update is from that of the whole network (FedGSE, 4.4.3).

    The probe also trains the whole network, from the round's model, batches, learning rate and weight decay; the run's
    `clip` is not applied.  labels, momentum: None takes those of the run.  Records, `[m]` each: `length`, the norm of
    Delta_full; `gap`, the norm of Delta_full - embed(Delta_sub) with zeros where a client has no units; `sum_gap`, the
    difference of the sums of their entries, as in the source; and the `capacity`.

    others: name -> sub-model method with `training="masked"`, whose sub-models the probe trains too, at the clients'
    capacities under that method; each method adds `gap NAME`.
    Raises ValueError for other methods, and in a run whose method has a loss of its own where labels=None.
    """
    for name, method in (others or {}).items():
        if not isinstance(method, Submodel) or method.training != "masked":
            raise ValueError(
                f"others[{name!r}]={checks.brief(method)}; use a sub-model method that has training='masked', such as "
                "fc.HeteroFL(capacities, training='masked')"
            )

    def probe(r: Round, y: Tensor) -> dict[str, Tensor]:
        def update(method: Method) -> Tensor:
            mass = r.momentum if momentum is None else momentum
            beside = method.prepare(replace(r, loss=PLAIN, parts=None, momentum=mass, clip=None))
            Y = method.broadcast(beside).expand_as(y).clone()
            local_steps(method, beside, Y)
            return torch.where(beside.mask, Y - r.x, 0)

        whole = HeteroFL(1.0, labels=_reading(r.loss) if labels is None else labels, training="masked")
        full, own = update(whole), torch.where(r.mask, y - r.x, 0)
        gap = full - own
        found = {
            "gap": gap.norm(dim=1),
            "sum_gap": gap.sum(1).abs(),
            "capacity": r.capacity,
            "length": full.norm(dim=1),
        }
        return found | {f"gap {name}": (full - update(method)).norm(dim=1) for name, method in (others or {}).items()}

    return probe


def _reading(loss: Loss) -> str:
    """The `labels` of the sub-model method with this loss."""
    rule = getattr(loss.per_sample, "keywords", {}).get("labels", loss.per_sample)  # DepthFL's holds it
    if rule is not None and "reading" not in getattr(rule, "keywords", {}):
        raise ValueError(f"the run has a loss of its own, {checks.brief(rule)}; use submodel_gap(labels=...)")
    return "all" if rule is None else rule.keywords["reading"]


def quadratic_bound(F_x: Tensor, gradient: Tensor, step: Tensor, mu: float) -> Tensor:
    """The right-hand side of the FedUp study's eq. 5: F(x) + <g, s> + mu/2 ||s||^2 for steps `[..., d]`; `[...]`."""
    return F_x + step @ gradient + mu / 2 * step.square().sum(-1)


def neuron_gradients(fed: Federation, x: Tensor, clients: Sequence[int] | None = None) -> list[dict[str, Tensor]]:
    """Activations and gradients of each hidden unit of the model `x [d]`, one dict for each stream of `fed.neurons()`.

    `activation [m, width]`: mean after the nonlinearity over a client's samples and positions (FedDSE study, section
    3.1.2).  `incoming` and `outgoing [m, width, entries]`: the client's full gradient by the unit's own parameters and
    by the weights that read its output.  clients: client numbers, None for all.
    """
    who = np.arange(fed.n) if clients is None else np.asarray(clients, dtype=int)
    neurons = fed.neurons()
    G = fed.engine.layout.views(fed.full_gradient(x.expand(len(who), -1), fed.plan(0, 0, who, batch_size=None)))
    sides: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in neurons.widths]
    for g, axes in zip(G.values(), neurons.axes, strict=True):
        for side, (stream, _) in enumerate(axes):
            if stream >= 0:
                part = g.movedim(1 + side, 1)
                sides[stream][side].append(part.reshape(len(who), neurons.widths[stream], -1))
    H = fed.activations(x, who)
    return [
        {"activation": h, "incoming": torch.cat(own, 2), "outgoing": torch.cat(read, 2)}
        for h, (own, read) in zip(H, sides, strict=True)
    ]


def submodel_conflict(fed: Federation, x: Tensor, scores: Sequence[Tensor], ratio: float) -> dict[str, Tensor]:
    """How much the sub-models of x `[d]` that all clients cut by scores disagree before training (FedDSE study, 3.1.3).

    scores: `[n, width]` for each stream of `fed.neurons()`; the ceil(ratio width) units of highest score are kept.
    `shared [n, n]`: the share of client i's entries that client k keeps too.  `cosine [n, n]`: of their full gradients
    as vectors of the whole model, without the last tensor, the classifier's bias, which belongs to no unit.
    `loss [n]`: of each sub-model on its client's data.
    """
    neurons, clients = fed.neurons(), np.arange(fed.n)
    mask = torch.zeros(fed.n, fed.d, dtype=torch.bool, device=x.device)
    Y = x * mask.scatter_(1, neurons.places(neurons.top(scores, ratio)), True)
    G = mask * fed.full_gradient(Y, fed.plan(0, 0, clients, batch_size=None))
    G[:, fed.engine.layout.slices[-1]] = 0
    data = ([(fed.inputs(fed.x[part]), fed.y[part])] for part in fed.index)
    kept = mask.to(x.dtype)
    return {
        "shared": kept @ kept.T / kept.sum(1, keepdim=True),
        "cosine": torch.cosine_similarity(G[:, None], G[None], dim=2),
        "loss": torch.stack([fed.engine.evaluate(y, own, list)["loss"] for y, own in zip(Y, data, strict=True)]),
    }


@checks.arguments
def mime_ablation(
    method: Method,
    fed: Objective,
    x: checks.Vector,
    *,
    steps: checks.Count = 40,
    lr: checks.Positive,
    batch_size: checks.Count | None = 20,
    seed: checks.Seed = 0,
    t: checks.CountFromZero = 0,
    cohort: Sequence[int] | None = None,
    state: Mapping[str, Tensor] | None = None,
    targets: Sequence[int] = (),
) -> dict[str, np.ndarray]:
    """The FedUp study's Table 2 along one local path: cosines of A, B and C at k = 1, ..., steps, `[steps, m]` each.

    A = grad F_i(y_k; xi_k) and B = grad F_i(x; xi_k) share a mini-batch; C is the cohort's mean of full gradients at
    the server's model `x [d]`.  Names: "A, C", "A-B+C, C", "A-B, C" and "A, B"; columns are the cohort in its order.
    k = 0 is left out: A = B there, so A - B has no direction.  NaN where one of the two vectors is zero.

    The path y_0, y_1, ... is that of `method` in a round t from x, with the batches of (seed, t); `state` holds the
    server's vectors of a run (default: those of a start at x), rows of client states are those of a start.  cohort:
    client numbers, None for all.  targets: steps k at which the mean of the cohort's full gradients at client i's
    own y_k is taken as the target g, m full passes each; they add, `[len(targets), m]`, "A error" = ||A - g||,
    "A-B+C error" = ||A - B + C - g||, and the cosines "A, g", "A-B+C, g" and "g, C".

    Raises ValueError for an x of another shape, clients or targets that do not exist, and steps < 1; FloatingPointError
    where a client's path leaves the finite numbers.
    """
    check_both(method, fed)
    checks.shape("x", x, (fed.d,), f"the {fed.d} parameters of this federation")
    for name, given in (("cohort", () if cohort is None else cohort), ("targets", targets)):
        if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or not np.shape(given):
            raise TypeError(f"{name}={checks.brief(given)}; use a list of whole numbers")
    if not isinstance(state, Mapping | None) or not all(isinstance(v, Tensor) for v in (state or {}).values()):
        raise TypeError(f"state={checks.brief(state)}; use a mapping name -> tensor, or None")
    targets = [checks.integer("targets: step", k, 1, steps) for k in targets]
    chosen = range(fed.n) if cohort is None else [checks.integer("cohort: client", i, 0, fed.n - 1) for i in cohort]
    clients = np.array(chosen, dtype=int)
    if not len(clients) or len(set(clients.tolist())) < len(clients):
        raise ValueError(f"cohort={list(clients)}; use different clients from 0 to {fed.n - 1}, or None for all")

    first = start(method, fed)
    server = {**first.server, **(state or {}), "x": x}
    rows = {name: method.client_start(x).get(name, torch.zeros_like(x)) for name in first.clients}
    rows = {name: row.expand(fed.n, -1) for name, row in rows.items()}
    columns: dict[str, list[Tensor]] = {}

    def look(r: Round, Y: Tensor) -> None:
        """Record the cosines at step k without changing the method's trajectory."""
        X, k = r.x.expand_as(Y), r.step
        if k == 0:
            columns["C"] = [r.mean(r.full_gradient(X))]
            return
        A, B, C = r.gradient(Y), r.gradient(X), columns["C"][0]
        values = {"A, C": _cosine(A, C), "A-B+C, C": _cosine(A - B + C, C), "A-B, C": _cosine(A - B, C)}
        values["A, B"] = _cosine(A, B)
        if k in targets:
            g = torch.stack([r.mean(r.full_gradient(y.expand_as(Y))) for y in Y])
            values |= {"A error": (A - g).norm(dim=1), "A-B+C error": (A - B + C - g).norm(dim=1)}
            values |= {"A, g": _cosine(A, g), "A-B+C, g": _cosine(A - B + C, g), "g, C": _cosine(g, C)}
        for name, value in values.items():
            columns.setdefault(name, []).append(value)

    work = {"local_steps": steps + 1, "batch_size": batch_size, "lr": lr, "seed": seed}
    before = State(server, rows, first.visits)
    _, seen = one_round(method, fed, before, t, cohort=clients.tolist(), watch=look, **work)
    lost = [i for i, finite in zip(seen.cohort, seen.y.isfinite().all(dim=1).tolist(), strict=True) if not finite]
    if lost:
        raise FloatingPointError(
            f"client {lost[0]} left the finite numbers within steps={steps} with lr={lr:g}; use a smaller lr or fewer "
            "steps"
        )
    order = np.argsort(np.argsort(clients))  # rows are in the order of the clients' numbers
    return {name: torch.stack(v)[:, order].cpu().numpy() for name, v in columns.items() if name != "C"}


def _trained(r: Round, v: Tensor) -> Tensor:
    """v with zeros instead of frozen parameters and buffers that training updates."""
    return v if r.trained is None else torch.where(r.trained, v, 0)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of each row; NaN where a vector is zero, instead of a value that depends on a small constant."""
    a, b = (v / v.abs().amax(-1, keepdim=True) for v in (a, b))  # the squares of a tiny gradient would all be zero
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
