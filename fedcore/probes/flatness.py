"""The shape of an objective around a point: flatness on a sphere, and its values along segments and on slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..objective import Objective
from ..support import checks

_F = checks.Kind(lambda value: isinstance(value, Objective) or callable(value), "a federation or a function")
Function = Annotated[Objective | Callable[[Tensor], Tensor], _F]
"""A federation, whose F is the mean of its clients' training losses, or any differentiable function `x [d] -> F(x)`."""


def gradient_of(f: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """G with `G(Y)` the gradients and `G(Y, along=V)` the Hessian-vector products of f at the rows of `Y [m, d]`.

    f maps `[m, d]` to `[m]`, each row by itself, or `[d]` to a number.  G can be passed to `Method.direction`, to run a
    method's rule on a function given by a formula.
    """

    def G(Y: Tensor, along: Tensor | None = None) -> Tensor:
        Y = Y.detach().requires_grad_()
        (g,) = torch.autograd.grad(f(Y).sum(), Y, create_graph=along is not None)
        return g if along is None else torch.autograd.grad((g * along).sum(), Y)[0]

    return G


@checks.arguments
def zeroth_order_flatness(
    fed: Function,
    x: checks.Vector,
    rho: checks.Positive,
    *,
    samples: checks.Count = 32,
    steps: checks.CountFromZero = 10,
    seed: checks.Seed = 0,
) -> dict[str, float]:
    """How much F rises on the sphere of radius rho around `x [d]`: F(x + e) - F(x), the flatness that SAM lowers.

    `mean` and `sampled`: mean and largest over `samples` random directions.  `ascent`: the largest along `steps` steps
    e <- rho grad F(x + e) / ||grad F(x + e)|| from the gradient at x and from the best random direction, a lower bound
    of the maximum that SAM's objective names (Foret et al. 2021) and at least `sampled`.  SAM itself takes one step.
    Raises ValueError for rho <= 0, samples < 1 and steps < 0.
    """
    F_, slope, x = _objective(fed, x=x)
    base = F_(x)
    return _on_sphere(lambda e: F_(x + e) - base, lambda e: slope(x + e), x, rho, samples, steps, seed)


@checks.arguments
def first_order_flatness(
    fed: Function,
    x: checks.Vector,
    rho: checks.Positive,
    *,
    samples: checks.Count = 32,
    steps: checks.CountFromZero = 10,
    seed: checks.Seed = 0,
) -> dict[str, float]:
    """How steep F is on the sphere of radius rho around `x [d]`: rho ||grad F(x + e)||, the flatness that GAM lowers.

    With dropout or batch norm the gradient is that of training, which is not the gradient of the evaluated loss.
    `mean`, `sampled` and `ascent` as in `zeroth_order_flatness`; an ascent step goes along the gradient's norm,
    H(x + e) grad F(x + e), a Hessian-vector product (Zhang et al. 2023, eq. of R^(1)).  Raises ValueError likewise.
    """
    _, slope, x = _objective(fed, x=x)

    def uphill(e: Tensor) -> Tensor:
        return slope(x + e, along=slope(x + e))

    return _on_sphere(lambda e: rho * slope(x + e).norm(), uphill, x, rho, samples, steps, seed)


@checks.arguments
def loss_along(
    fed: Function, a: checks.Vector, b: checks.Vector, points: checks.Points = 21
) -> tuple[np.ndarray, np.ndarray]:
    """F on the segment a + s (b - a): s in [0, 1] and F, `[points]` each.  `a`, `b`: `[d]`."""
    s, (F_, _, a, b) = np.linspace(0, 1, points), _objective(fed, a=a, b=b)
    return s, np.array([float(F_(torch.lerp(a, b, float(v)))) for v in s])


@checks.arguments
def loss_slice(
    fed: Function,
    x: checks.Vector,
    u: checks.Vector,
    v: checks.Vector,
    radius: checks.Positive = 1.0,
    points: checks.Points = 21,
) -> tuple[np.ndarray, np.ndarray]:
    """F on the square x + s u + t v: s (and t) in [-radius, radius] `[points]`, and F `[points (t), points (s)]`.

    `x`, `u`, `v`: `[d]`.  u and v are not normalised; with unit vectors, radius is a distance.
    """
    s, (F_, _, x, u, v) = np.linspace(-radius, radius, points), _objective(fed, x=x, u=u, v=v)
    return s, np.array([[float(F_(x + a * u + b * v)) for a in s.tolist()] for b in s.tolist()])


def _objective(fed: Function, **vectors: Tensor) -> tuple[Any, ...]:
    """F as it is evaluated, its gradient as in training, with dropout and with batch norm on each client's batch, and
    the vectors in one type on one device; `slope(x, along=v)` is a Hessian-vector product.

    Raises TypeError for complex vectors, ValueError for those of another length.
    """
    first = next(iter(vectors.values()))
    d = fed.d if isinstance(fed, Objective) else len(first)
    for name, v in vectors.items():
        checks.shape(name, v, (d,), f"a vector [d] of {d} numbers")
        if v.is_complex() or v.is_meta:
            raise TypeError(f"{name} is {checks.brief(v)}; use real numbers on a device that holds them")
    alike = [v.detach().to(first.device, first.dtype) for v in vectors.values()]
    if not isinstance(fed, Objective):
        return _number(fed), gradient_of(_number(fed)), *alike
    plan = fed.plan(0, 0, np.arange(fed.n), steps=1, batch_size=None)

    def slope(x: Tensor, along: Tensor | None = None) -> Tensor:
        along = None if along is None else along.expand(fed.n, -1)
        return fed.full_gradient(x.expand(fed.n, -1), plan, along=along).mean(0)

    return fed.objective, slope, *alike


def _number(F_: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def value(x: Tensor) -> Tensor:
        found = F_(x)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise TypeError(f"fed gave {checks.brief(found)}; return one number, computed from x in torch")
        return found

    return value


def _on_sphere(
    height: Callable[[Tensor], Tensor],
    uphill: Callable[[Tensor], Tensor],
    x: Tensor,
    rho: float,
    samples: int,
    steps: int,
    seed: int,
) -> dict[str, float]:
    noise = rng.numpy_generator(seed, rng.DATA)

    def scaled(direction: Tensor) -> Tensor:
        return rho * direction / direction.norm().clamp_min(1e-30)

    found, best = [], x
    for _ in range(samples):
        e = scaled(torch.as_tensor(noise.standard_normal(len(x)), dtype=x.dtype, device=x.device))
        found.append(float(height(e)))
        best = e if found[-1] == max(found) else best
    top = max(found)
    for e in (best, torch.zeros_like(x)):
        for _ in range(steps):
            e = scaled(uphill(e))
            top = max(top, float(height(e)))
    return {"mean": float(np.mean(found)), "sampled": max(found), "ascent": top}
