"""Methods without a server that reach the optimum of all clients' data: each client corrects its own drift."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import topology
from ..models import Layout
from ..storage.identity import is_own
from ..support.checks import BelowOne
from ..topology import DirectedRandom, Topology
from .decentralised import Gossip
from .method import Cost, Gradient, Round


@dataclass(frozen=True)
class Corrected(Gossip):
    """Base of the decentralised methods with a correction `c_i [n, d]` of each client's gradient, sum_i c_i = 0.

    The sum stays 0 because the columns of W sum to 1; therefore a directed graph is refused.
    """

    client_state = ("X", "c_i")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.mixing, DirectedRandom):
            raise _unbalanced(self.mixing)

    def prepare(self, r: Round) -> Round:
        if is_own(type(self.mixing)):
            W = topology.mixing(self.mixing, r.n, r.seed, r.t)  # on the host
            columns = torch.zeros(r.n, dtype=W.weights.dtype).index_add_(0, W.indices.flatten(), W.weights.flatten())
            if (columns - 1).abs().max() > 1e-6:
                raise _unbalanced(self.mixing)
        return super().prepare(r)

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        return G(y) + r.c_i


def _unbalanced(mixing: Topology) -> ValueError:
    return ValueError(
        f"mixing={mixing!r}, whose W is not doubly stochastic, so that the corrections would not sum to 0; use "
        "fc.RandomRegular(degree)"
    )


@dataclass(frozen=True)
class DSGT(Corrected):
    """Decentralised SGD with gradient tracking and local steps (Nedic et al. 2017; K-GT of Liu et al. 2024).

    v = g + c_i.  After K_i steps, z_i = (x_i - y_i) / (K_i lr) is the client's mean direction, and
    c_i <- c_i + sum_j w_ij z_j - z_i;  X <- W Y.

    With one local step z_i is the tracker of the mean gradient, z^t = W z^{t-1} + g^t - g^{t-1}, and X <- W (X - lr Z)
    (some codes take X <- W X - lr Z).  With W = 11'/n it is SCAFFOLD, option II, with all clients.  K-GT starts the
    corrections at the mean gradient minus the client's own; here they start at 0, as those of SCAFFOLD.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.
    Raises ValueError for a mixing that does not suit, and for a directed graph.

    Use it without a server where clients differ and exact convergence is wanted. Not over very slow links: each
    neighbour receives two vectors per round.
    """

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        W = r.W.ordered(r.clients)
        z = (r.X - y) / (r.K * r.lr)
        X = W @ y
        return {"x": X.mean(0), "X": X, "c_i": r.c_i + W @ z - z}

    def cost(self, layout: Layout | None = None) -> Cost:
        once = super().cost(layout)
        models = once.down and 2 * once.down
        return replace(once, down=models, up=models, note="y_j and z_j of and to all neighbours")


@dataclass(frozen=True)
class ExactDiffusion(Corrected):
    """Exact Diffusion (Yuan et al. 2019) and D2 (Tang et al. 2018), with local steps (LED of Alghunaim 2024).

    v = g + c_i;  X <- W~ Y, and c_i <- c_i + (y_i - x_i) / (K lr) with the new x_i: in the next round
    the steps pull as mixing did.  W~ = (I + W) / 2 if `lazy`, which is Exact Diffusion, else W, which is D2.
    The papers have one K for all clients; here K = max_i K_i, with which sum_i c_i stays 0 if the K_i differ.

    With one local step X^{t+1} = W~ (2 X^t - X^{t-1} - lr (g^t - g^{t-1})), at a constant lr.  Each neighbour receives
    one model, where gradient tracking sends two vectors.  With lazy=False, W = 11'/n and equal K_i it is SCAFFOLD,
    option II, with all clients.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.  lazy:
    False needs a W whose eigenvalues are not below -1/3, unless W changes in every round.  Raises ValueError for a
    mixing that does not suit, and for a directed graph.

    Use it without a server where clients differ and exact convergence is wanted at one model per neighbour. Not on
    directed graphs or with changing weights.
    """

    lazy: bool = True

    def on(self, fed: Any) -> Any:
        """The federation itself; ValueError for lazy=False with a W under which the iterates would grow."""
        if not self.lazy and not self.mixing.varies:
            W, least = topology.mixing(self.mixing, fed.n), -1 / 3 - 1e-6  # rounding of float32 is smaller
            kept = torch.where(W.indices == torch.arange(fed.n)[:, None], W.weights, 0).sum(1).min()
            # by Gershgorin no eigenvalue is below 2 kept - 1, so that most graphs need no spectrum
            if 2 * kept - 1 < least and (low := float(W.spectrum()[-1])) < least:
                raise ValueError(
                    f"mixing={self.mixing!r}, whose W has the eigenvalue {low:.4g}, and lazy=False allows none below "
                    "-1/3; use lazy=True, or weights that leave more with the clients themselves"
                )
        return fed

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        X = r.W.ordered(r.clients) @ y
        if self.lazy:
            X = (X + y) / 2
        return {"x": X.mean(0), "X": X, "c_i": r.c_i + (y - X) / (r.K.max() * r.lr)}


@dataclass(frozen=True)
class QGDSGDm(Gossip):
    """Decentralised SGD with quasi-global momentum (Lin et al. 2021, Algorithm 1).

    v = beta m_i + g;  X <- W Y;  m_i <- mu m_i + (1 - mu) (x_i^t - x_i^{t+1}) / (K_i lr).  The buffer `m_i [n, d]`
    follows the model after mixing and therefore the movement of all models, not only the client's own gradients; it is
    constant during a round.  With `nesterov`, v = g + beta (beta m_i + g).  beta = 0 is DFedAvg.

    mixing: a topology, a networkx graph, or a matrix `[n, n]`; default a ring.  `weighting` has no effect.  beta:
    default 0.9.  mu: default beta, as in the paper.  Raises ValueError for a mixing that does not suit, and unless
    0 <= beta, mu < 1.

    Use it without a server where momentum helps but clients differ. Not where exact convergence is needed: it damps
    the disagreement of the momenta and keeps a bias.
    """

    beta: BelowOne = 0.9
    mu: BelowOne | None = None
    nesterov: bool = False
    client_state = ("X", "m_i")

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        g = G(y)
        m = self.beta * r.m_i + g
        return g + self.beta * m if self.nesterov else m

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        X, mu = r.W.ordered(r.clients) @ y, self.beta if self.mu is None else self.mu
        return {"x": X.mean(0), "X": X, "m_i": mu * r.m_i + (1 - mu) * (r.X - X) / (r.K * r.lr)}
