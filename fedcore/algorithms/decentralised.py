"""Methods without a server: every client trains in every round, then mixes its model with its neighbours', X <- W Y."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from .. import topology
from ..models import Layout
from ..support import checks
from ..support.checks import BelowOne, Count, Fraction, NonNegative, OneOf
from ..topology import Mixing, Ring, Topology
from .method import Cost, Gradient, Method, Round, Work
from .sharpness import EPS, FedSAM, ascent


@dataclass(frozen=True)
class Gossip(Method):
    """Base of the decentralised methods: a model for each client, `X [n, d]`, and the round's mixing matrix `W`.

    `x` is the plain mean of the rows and serves evaluation only: `server_lr` must be 1, and `weighting` has no effect.
    """

    mixing: Topology | Any = Ring()  # noqa: RUF009  (a frozen value)
    full_participation = True
    has_server = False
    client_state = ("X",)
    across = "rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mixing", topology.topology(self.mixing))

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"X": x}

    def prepare(self, r: Round) -> Round:
        W = topology.mixing(self.mixing, r.n, r.seed, r.t, device=r.X.device, dtype=r.X.dtype)
        return r.extended(server={"W": W})

    def broadcast(self, r: Round) -> Tensor:
        return r.X

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        X = self.mixed(r.W.ordered(r.clients), r.X, y)
        return {"x": X.mean(0), "X": X}

    def mixed(self, W: Mixing, X: Tensor, y: Tensor) -> Tensor:
        """The clients' next models `[n, d]` from their models before the round, `X`, and their local iterates `y`."""
        return W @ y

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["X"]

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, down=self.mixing.degree, up=self.mixing.degree, note="models of and to all neighbours")


@dataclass(frozen=True)
class DPSGD(Gossip):
    """Decentralised parallel SGD (Lian et al. 2017): X <- W X - lr G(X), one mini-batch step and one mixing per round.

    The gradient is taken at the model before mixing.  The batch of round t is the t-th of the client's shuffled data,
    as in FedSMB; `local_steps` and `local_epochs` are not used.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.
    Raises ValueError for a mixing that does not suit.

    Use it without a server on fast links, as the reference of decentralised methods. Not over slow links: one step
    per exchange.
    """

    def local_work(self, work: Work) -> Work:
        return replace(work, epochs=1, steps=1, walk=True)

    def mixed(self, W: Mixing, X: Tensor, y: Tensor) -> Tensor:
        return W @ X + (y - X)  # y - X is the step, -lr g


@dataclass(frozen=True)
class DFedAvg(Gossip):
    """K local SGD steps, then X <- W Y (Sun et al. 2023).  With W = 11'/n it is FedAvg with all clients.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.
    Raises ValueError for a mixing that does not suit.

    Use it without a server where local steps save traffic and clients are alike. Not where clients differ much and
    exact convergence is wanted: it keeps a bias.
    """


@dataclass(frozen=True)
class DFedAvgM(Gossip):
    """DFedAvg with momentum (Sun et al. 2023): y+ = y - lr g + momentum (y - y_prev), y_prev = y at k = 0.

    It is torch's SGD(momentum) with a new buffer every round: v <- momentum v + g, y <- y - lr v.  This momentum
    replaces that of `simulate`.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.
    momentum (theta): usually 0.9; 0 is DFedAvg.  Raises ValueError for a mixing that does not suit, and unless
    0 <= momentum < 1.

    Use it as DFedAvg where momentum speeds up local training. Not where clients differ much: momentum then follows
    each client's own gradients further away.
    """

    momentum: BelowOne = 0.9

    def local_work(self, work: Work) -> Work:
        if work.t == 0 and work.momentum not in (0, self.momentum):
            checks.warn(f"momentum={work.momentum} has no effect; use DFedAvgM(momentum={work.momentum})")
        return replace(work, momentum=self.momentum)


@dataclass(frozen=True)
class DFedSAM(Gossip):
    """FedSAM's local steps, then Q gossip steps X <- W^Q Y (Shi et al. 2023; Q > 1 is its DFedSAM-MGS).

    rho = 0 with one gossip step is DFedAvg.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.  rho: radius
    of the perturbation.  gossip_steps (Q): mixings with the same W in a round, typically 4; each one sends a model to
    every neighbour.
    Raises ValueError for a mixing that does not suit, rho < 0, gossip_steps < 1.

    Use it without a server where neighbours' models shall generalise better and two gradients per step are
    affordable. Not as a remedy of heterogeneity.
    """

    rho: NonNegative = 0.1
    gossip_steps: Count = 1

    direction = FedSAM.direction

    def mixed(self, W: Mixing, X: Tensor, y: Tensor) -> Tensor:
        for _ in range(self.gossip_steps):
            y = W @ y
        return y

    def cost(self, layout: Layout | None = None) -> Cost:
        once = super().cost(layout)
        models = once.down and self.gossip_steps * once.down
        return replace(once, down=models, up=models, gradients=2)


@dataclass(frozen=True)
class DFedGAM(Gossip):
    """Local steps that perturb along the gradient of the gradient's norm, then X <- W Y (Fang et al. 2025).

    Three forms of v in y <- y - lr v, with G the mini-batch gradient and H v its derivative along v:

    "literal" (the study's eqs. 7-8): v = G(y + rho u / ||u||), u = H(y) g.  Two gradients and an HVP.
    "gam" (Zhang et al. 2023, the published update): v = g + alpha rho H(a) G(a) / ||G(a)||,
    a = y + rho f / ||f||, f = H(y) g / ||g||.  Two gradients and two HVPs.
    "accelerated" (the rule of the GAM authors' code, four gradients): g0 = G(y), g1 = G(y + rho_inner g0 / ||g0||),
    h = g1 - g0, a = y + rho h / ||h||, g2 = G(a), g3 = G(a + rho_inner g2 / ||g2||), w = beta1 g1 + (1 - beta1) g3,
    v = w - gamma (the part of g0 + |1 - beta0| g2 that is orthogonal to w).

    rho = 0 is DFedAvg in the forms "literal" and "gam"; where the Hessian is a multiple of the identity, "literal" is
    DFedSAM.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.  rho: radius
    of the perturbation.  form: one of the three.  alpha: weight of the flatness term, "gam" only.  rho_inner, beta0,
    beta1, gamma: "accelerated" only; the defaults are those of that code for CIFAR-10 and a ResNet, where rho is 0.2.
    Raises ValueError for a mixing that does not suit, an unknown form, rho, alpha or rho_inner < 0, and beta0, beta1
    or gamma outside [0, 1].

    Use it to study first-order flatness without a server. Not as a first choice: a step costs up to four gradients,
    and its effect is mostly that of DFedSAM.
    """

    rho: NonNegative = 0.1
    form: Annotated[str, OneOf(("literal", "gam", "accelerated"))] = "literal"
    alpha: NonNegative = 1.0
    rho_inner: NonNegative = 0.03
    beta0: Fraction = 0.1
    beta1: Fraction = 0.1
    gamma: Fraction = 0.05

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        g = G(y)
        if self.form == "accelerated":
            return self._accelerated(G, y, g)
        a = y + ascent(G(y, along=g), self.rho)  # only the direction of H g counts: no need to divide it by ||g||
        if self.form == "literal":
            return G(a)
        ga = G(a)
        return g + self.alpha * self.rho * G(a, along=ga) / (ga.norm(dim=1, keepdim=True) + EPS)

    def _accelerated(self, G: Gradient, y: Tensor, g0: Tensor) -> Tensor:
        g1 = G(y + ascent(g0, self.rho_inner))
        a = y + ascent(g1 - g0, self.rho)
        g2 = G(a)
        g3 = G(a + ascent(g2, self.rho_inner))
        w = self.beta1 * g1 + (1 - self.beta1) * g3
        g = g0 + (1 - self.beta0) * g2
        along = (g * w).sum(1, keepdim=True) / (w.square().sum(1, keepdim=True) + EPS)
        return w - self.gamma * (g - along * w)

    def cost(self, layout: Layout | None = None) -> Cost:
        gradients, products = {"literal": (2, 1), "gam": (2, 2), "accelerated": (4, 0)}[self.form]
        return replace(super().cost(layout), gradients=gradients, products=products)
