"""Methods that correct client drift with a state for each client: SCAFFOLD, ProxSkip, FedDyn, FedDC, FedPVR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from .. import rng
from ..models import Layout
from ..support import checks
from ..support.checks import NonNegative, OneOf, Positive, PositiveFraction
from .method import Cost, Gradient, Method, Round, Work, and_one, share


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Stochastic controlled averaging (Karimireddy et al. 2020).

    v = g - c_i + c.  After K_i steps, option "I": c_i+ = grad F_i(x), one full local pass at the server's model;
    option "II": c_i+ = c_i - c + (x - y_i) / (K_i lr), the mean gradient along the local path.
    x <- x + server_lr mean_S(y_i - x);  c <- c + (1/n) sum_S (c_i+ - c_i), so that c = mean_i c_i in every round.

    One of our sources on SCAFFOLD prints c <- c + (1/|S|) sum_S instead, without the factor |S|/n.
    Raises ValueError for another option.

    Use it where the same clients return often, labels are skewed and a lower training loss is worth a second vector
    in the download. Not where each client takes part once or twice, or where gradients are clipped (option II).
    """

    option: Annotated[str, OneOf(("I", "II"))] = "II"
    client_state = ("c_i",)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "c": torch.zeros_like(x)}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) - r.c_i + r.c

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        if self.option == "I":
            c_i = r.full_gradient(r.x.expand_as(y))
        else:
            c_i = r.c_i - r.c + (r.x - y) / (r.K * r.lr)
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "c": r.c + r.sum(c_i - r.c_i) / r.n, "c_i": c_i}

    def cost(self, layout: Layout | None = None) -> Cost:
        if self.option == "I":
            return Cost.of(layout, down=2, up=2, full_gradients=1)
        note = "from y_i and K_i the server computes c_i+; as written 2 d up"
        return Cost.of(layout, down=2, up=and_one(layout), note=note)


@dataclass(frozen=True)
class ProxSkip(Method):
    """ProxSkip for federated learning, named Scaffnew (Mishchenko et al. 2022, Algorithm 2).

    v = g - h_i; after each local step a coin, the same for all clients, says with probability p that they communicate:
    x <- mean_i y_i, and h_i <- h_i + (p / lr) (x - y_i).  A round here ends with a communication, so its number of
    local steps K is geometric, P(K = k) = p (1 - p)^(k-1), and 1/p on average.  With lr = 1/L and p = sqrt(mu / L),
    where the F_i are mu-strongly convex and L-smooth, it needs O(sqrt(L / mu) log(1 / eps)) rounds.

    With a fixed K instead of both K and 1/p it would be SCAFFOLD, option II, with all clients.  The method fixes
    the local work (`local_steps` and `local_epochs` are not used), and `server_lr` must be 1.

    p: default 0.2, five local steps on average.  Raises ValueError unless 0 < p <= 1.

    Use it on badly conditioned convex problems where all clients answer and gradients have little noise. Not with
    sampled clients.
    """

    p: PositiveFraction = 0.2
    full_participation = True
    client_state = ("h_i",)

    def local_work(self, work: Work) -> Work:
        return replace(work, epochs=1, steps=rng.geometric(self.p, work.seed, rng.COINS, work.t))

    def prepare(self, r: Round) -> Round:
        if r.server_lr != 1:
            raise ValueError(f"server_lr={r.server_lr:g} but ProxSkip's server takes the mean; use server_lr=1.0")
        return r

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) - r.h_i

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        x = r.x + r.mean(y - r.x)
        return {"x": x, "h_i": r.h_i + self.p / r.lr * (x - y)}


@dataclass(frozen=True)
class FedDyn(Method):
    """Dynamic regularisation (Acar et al. 2021), in the form of its authors' code.

    v = g + alpha (y - x + h_i);  h_i <- h_i + y_i - x;  x <- mean_S y_i + (1/n) sum_j h_j over all clients.
    The paper's g_i is -alpha h_i.  State `h [d]` is (1/n) sum_j h_j.  The limit alpha -> 0 is *not* FedAvg, because the
    server still adds h, which does not depend on alpha.

    alpha: 0.01 in the authors' example; tune it.  Raises ValueError for alpha <= 0.

    Use it where clients return often and exact convergence to the optimum is wanted with one model each way. Not
    with few visits per client, and not without tuning alpha: it has no harmless default.
    """

    alpha: Positive = 0.01
    client_state = ("h_i",)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "h": torch.zeros_like(x)}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.alpha * (y - r.x + r.h_i)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        delta = y - r.x
        h = r.h + r.sum(delta) / r.n
        return {"x": r.x + r.server_lr * r.mean(delta) + h, "h": h, "h_i": r.h_i + delta}


@dataclass(frozen=True)
class FedDC(Method):
    """Local drift decoupling and correction (Gao et al. 2022): FedDyn's drift term beside SCAFFOLD's variates.

    v = g + alpha (y - x + h_i) - c_i + c;  h_i <- h_i + y_i - x;  c_i+ as SCAFFOLD's option II;
    x <- mean_S y_i + (1/n) sum_j h_j;  c <- c + (1/n) sum_S (c_i+ - c_i).  State `h [d]` is (1/n) sum_j h_j.

    alpha: 0.01 in the authors' CIFAR examples.  Raises ValueError for alpha < 0.

    Use it where all or most clients take part in each round and can keep two vectors. Not where clients return
    rarely, because both of its memories are then old.
    """

    alpha: NonNegative = 0.01
    client_state = ("h_i", "c_i")

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "h": torch.zeros_like(x), "c": torch.zeros_like(x)}

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + self.alpha * (y - r.x + r.h_i) - r.c_i + r.c

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        delta = y - r.x
        c_i = r.c_i - r.c - delta / (r.K * r.lr)
        h, c = r.h + r.sum(delta) / r.n, r.c + r.sum(c_i - r.c_i) / r.n
        return {"x": r.x + r.server_lr * r.mean(delta) + h, "h": h, "c": c, "h_i": r.h_i + delta, "c_i": c_i}

    def cost(self, layout: Layout | None = None) -> Cost:
        note = "from y_i and K_i the server computes the others; as written 3 d up"
        return Cost.of(layout, down=2, up=and_one(layout), note=note)


@dataclass(frozen=True)
class FedPVR(Method):
    """Partial variance reduction (Li et al. 2023): SCAFFOLD's option II on some layers, FedAvg on the others.

    v = g - M (c_i - c), with M = 1 at the parameters of these layers and 0 elsewhere; c_i and c as in SCAFFOLD.

    layers: parameter names or their beginnings ("13" is the module 13 of a Sequential, "13.weight" its weight);
    () corrects no layer (FedAvg), "all" every layer (SCAFFOLD II).  The default None corrects the last layer in
    the order of the forward pass, with the norm behind it; a quadratic is one layer.
    Raises ValueError for layers that the model does not have, and with None for a last layer that has a tensor of
    another layer.

    Use it where SCAFFOLD would help and its state for the whole model is too large. Not where curvature couples the
    corrected layers with the others, because a bias then remains.
    """

    layers: tuple[str, ...] | str | None = None
    client_state = ("c_i",)
    start = SCAFFOLD.start

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.layers, list):
            object.__setattr__(self, "layers", tuple(self.layers))
        layers = () if self.layers is None else self.layers if isinstance(self.layers, tuple) else (self.layers,)
        if not all(isinstance(name, str) and name for name in layers):
            raise TypeError(
                f"layers={checks.brief(self.layers)}; use names of parameters or their beginnings, 'all', () or None"
            )

    def prepare(self, r: Round) -> Round:
        return r.extended(server={"mask": self.mask(r.layout, r.x)})

    def mask(self, layout: Layout | None, x: Tensor) -> Tensor:
        """True where the flat vector `x [d]` is corrected."""
        if self.layers == "all" or layout is None:
            if self.layers not in ("all", (), None):
                raise ValueError(f"layers={self.layers!r}, but a quadratic is one layer; use 'all' or ()")
            return torch.full_like(x, self.layers != (), dtype=torch.bool)
        if self.layers is None:
            mask = torch.zeros_like(x, dtype=torch.bool)
            mask[layout.last(1)] = True
            return mask
        layers = (self.layers,) if isinstance(self.layers, str) else self.layers
        return layout.mask(layout.named(layers)).to(x.device)

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) - r.c_i + r.c

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        c_i = torch.where(r.mask, r.c_i - r.c + (r.x - y) / (r.K * r.lr), 0)
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "c": r.c + r.sum(c_i - r.c_i) / r.n, "c_i": c_i}

    def cost(self, layout: Layout | None = None) -> Cost:
        if layout is None and self.layers is None:
            return Cost(note="down also c of the last layer, as written up too: its share is the network's matter")
        corrected = share(layout, self.mask(layout, torch.zeros(layout.d if layout else 1)))
        up = and_one(layout) if corrected else 1
        return Cost.of(layout, down=1 + corrected, up=up, note="as written, up as down")
