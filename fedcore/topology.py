"""Communication graphs of decentralised methods: mixing matrices W, their spectra, and a check of a matrix.

A topology defines the neighbours of n clients in round t.  `mixing(topology, n, seed, t)` is its W as neighbour lists;
on a sparse graph, `W @ Y` for `Y [n, d]` reads each neighbour's row once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import rng
from .data.arrays import as_array, real_numbers
from .storage.identity import digest, is_own, short
from .support import checks, memory
from .support.devices import available

if TYPE_CHECKING:
    import networkx

Lists = tuple[np.ndarray, np.ndarray]
"""Neighbours `[n, k]` and their weights `[n, k]`; a client is in its own list, and an index may occur twice."""

BLOCK = 512  # columns per product on a CPU, so that a block of all rows stays in the cache
KEPT = 16  # the most matrices that `mixing` keeps
_BUILT: dict[tuple[Any, ...], Mixing] = {}
SPARSE = 10  # a dense product is as fast as the lists from n / SPARSE neighbours on (measured, one thread)


@dataclass(frozen=True)
class Mixing:
    """The matrix W of one round: row i has `weights[i, j]` in column `indices[i, j]`; both `[n, k]`, on one device."""

    indices: Tensor
    weights: Tensor

    __repr__ = checks.as_call

    def dense(self) -> Tensor:
        """W `[n, n]`."""
        n = len(self.indices)
        size, device = n * n * self.weights.element_size(), self.weights.device
        memory.check(size, device, f"the numbers of W [{n:,}, {n:,}]", "fewer clients, or W @ Y")
        W = self.weights.new_zeros(n, n)
        return W.scatter_add_(1, self.indices, self.weights)

    def __matmul__(self, Y: Tensor) -> Tensor:
        """W Y for the rows `Y [n, d]`, `[n, d]`."""
        n, k = self.indices.shape
        if k * SPARSE > n:
            return self.dense() @ Y
        width = BLOCK if Y.device.type == "cpu" else max(1, Y.shape[1])
        out = torch.empty_like(Y)
        for a in range(0, Y.shape[1], width):
            part = Y[:, a : a + width].contiguous()
            out[:, a : a + width] = F.embedding_bag(self.indices, part, mode="sum", per_sample_weights=self.weights)
        return out

    def ordered(self, clients: Tensor) -> Mixing:
        """The same W for rows in another order: row i of Y belongs to client `clients[i]`."""
        place = torch.empty_like(clients)
        place[clients] = torch.arange(len(clients), device=clients.device)
        return Mixing(place[self.indices[clients]], self.weights[clients])

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Mixing:
        """The same W on another device, with weights of another type."""
        return Mixing(self.indices.to(device), self.weights.to(device, dtype))

    def spectrum(self) -> np.ndarray:
        """The n eigenvalues of W, largest first; their moduli where W is not symmetric."""
        return spectrum(self.dense())

    def gap(self) -> float:
        """The spectral gap 1 - max(|lambda_2|, |lambda_n|); for a symmetric W, one mixing multiplies the distance to
        the mean by at most 1 - gap."""
        return gap(self.dense())


class Topology(checks.Named):
    """A graph on n clients with weights.

    varies: whether the graph is drawn anew each round.  degree: the (mean) number of neighbours of a client; None where
    it depends on n.
    """

    varies: bool = False
    degree: float | None = None

    def lists(self, n: int, seed: int, t: int) -> Lists:
        """Neighbours and weights of n clients in round t."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ring(Topology):
    """Each client and its two neighbours on a circle, weights 1/3; eigenvalues (1 + 2 cos(2 pi k / n)) / 3.

    Two clients have one neighbour each, but `degree` and costs count two.
    """

    degree = 2

    def lists(self, n: int, seed: int, t: int) -> Lists:
        return _circle(n, [0, 1, -1])


@dataclass(frozen=True)
class Torus(Topology):
    """A grid a x b closed in both directions, a the largest divisor of n up to sqrt(n); self and 4 neighbours, 1/5.

    Client i is in row i // b, column i % b.  Eigenvalues (1 + 2 cos(2 pi j / a) + 2 cos(2 pi k / b)) / 5; along a side
    of length 2 the single neighbour counts twice, also in `degree` and costs.  Raises ValueError for a prime n.
    """

    degree = 4

    def lists(self, n: int, seed: int, t: int) -> Lists:
        a = max(a for a in range(1, math.isqrt(n) + 1) if n % a == 0)
        if a == 1:
            raise ValueError(f"a torus of {n} clients has no two sides; use a number that is not prime, or fc.Ring()")
        row, column = np.divmod(np.arange(n)[:, None], n // a)
        down, right = np.array([0, 1, -1, 0, 0]), np.array([0, 0, 0, 1, -1])
        return (row + down) % a * (n // a) + (column + right) % (n // a), np.full((n, 5), 0.2)


@dataclass(frozen=True)
class Exponential(Topology):
    """Neighbours at distance 1, 2, 4, 8, ... in both directions on a circle, with equal weights; W is symmetric."""

    def lists(self, n: int, seed: int, t: int) -> Lists:
        hops = [2**j for j in range((n - 1).bit_length())]
        return _circle(n, sorted({0, *(hop % n for hop in hops), *(-hop % n for hop in hops)}))


@dataclass(frozen=True)
class Complete(Topology):
    """The complete graph, W = 11'/n: every client ends each round with the mean, as with a server."""

    def lists(self, n: int, seed: int, t: int) -> Lists:
        return _circle(n, range(n))


@dataclass(frozen=True)
class RandomRegular(Topology):
    """A random graph in which each client has `degree` neighbours, drawn anew each round; weights 1 / (1 + degree).

    These are Metropolis weights, so W is symmetric and doubly stochastic in every round.  The graph is a function of
    (seed, t): half-edges are paired at random, and pairs that would repeat an edge or join a client to itself are drawn
    again.  With degree 1 or 2 the graph of one round is seldom connected, but the union over rounds is.

    Raises TypeError or ValueError for a degree that is no integer from 1 to n - 1, and for odd n * degree.
    """

    degree: checks.Count = 10
    varies = True

    __post_init__ = checks.fields

    def lists(self, n: int, seed: int, t: int) -> Lists:
        checks.integer("degree", self.degree, 1, n - 1, hint=f"{n} clients")
        if n * self.degree % 2:
            raise ValueError(
                f"degree={self.degree} with {n} clients: {n} * {self.degree} is odd, and each edge has two ends; "
                "use an even degree or an even number of clients"
            )
        few = min(self.degree, n - 1 - self.degree)  # for a dense graph, draw its complement
        pairs = _regular(n, few, seed, t)
        if few < self.degree:
            _check(n, n)
            missing = np.zeros((n, n), bool)
            missing[pairs[:, 0], pairs[:, 1]] = True
            pairs = np.argwhere(np.triu(~missing, 1))
        return _metropolis(n, pairs)


@dataclass(frozen=True)
class DirectedRandom(Topology):
    """Each client averages itself and `degree` random others, drawn anew each round **without symmetry**.

    Public codes of decentralised methods draw graphs in this way.  The rows of W sum to 1, but its columns do not: W is
    not doubly stochastic, the mean of the models is not preserved, and the theory of gossip does not apply.

    Raises TypeError or ValueError for a degree that is no integer from 1 to n - 1.
    """

    degree: checks.Count = 10
    varies = True

    __post_init__ = checks.fields

    def lists(self, n: int, seed: int, t: int) -> Lists:
        k = checks.integer("degree", self.degree, 1, n - 1, hint=f"{n} clients")
        _check(n, k + 1)
        own = np.arange(n)[:, None]
        chosen = np.empty((n, 0), np.int64)
        for j in range(n - 1 - k, n - 1):  # Floyd's draw without replacement, all clients at once
            r = (rng.words(seed, rng.MIXING, t, own, j) % np.uint64(j + 1)).astype(np.int64)
            chosen = np.hstack([chosen, np.where((chosen == r).any(1, keepdims=True), j, r)])
        return np.hstack([own, chosen + (chosen >= own)]), np.full((n, k + 1), 1 / (k + 1))


@dataclass(frozen=True)
class Graph(Topology):
    """Any undirected graph with Metropolis weights w_ij = 1 / (1 + max(deg_i, deg_j)) and w_ii = 1 - sum_j w_ij.

    graph: a networkx graph whose nodes are the clients' numbers 0, ..., n - 1, or a list of edges (i, j).  Edge weights
    and self-loops of a networkx graph are not used.

    Raises ValueError for a graph that is directed, disconnected, has no edge between two different nodes, or other
    nodes; `networkx.convert_node_labels_to_integers(graph)` numbers them.
    """

    graph: Any

    def __post_init__(self) -> None:
        import networkx

        given = self.graph
        if getattr(given, "is_directed", bool)():
            raise ValueError("the graph is directed; use graph.to_undirected(), or fc.DirectedRandom(degree)")
        try:
            graph = networkx.Graph(given if hasattr(given, "nodes") else [(_node(i), _node(j)) for i, j in given])
        except (TypeError, ValueError) as e:
            raise ValueError(f"graph={checks.brief(given)}; use a networkx graph, or pairs (i, j) of numbers") from e
        if set(graph) != set(range(len(graph))):
            raise ValueError(
                f"the graph has {len(graph)} nodes that are not 0 to {len(graph) - 1}; number them as the clients, "
                "with networkx.convert_node_labels_to_integers(graph)"
            )
        _check_connected(graph, "the graph")
        edges = sorted((int(min(pair)), int(max(pair))) for pair in graph.edges)
        object.__setattr__(self, "graph", tuple((i, j) for i, j in edges if i != j))

    @property
    def degree(self) -> float:
        """The mean number of neighbours."""
        return 2 * len(self.graph) / (1 + max(b for _, b in self.graph))

    def lists(self, n: int, seed: int, t: int) -> Lists:
        nodes = 1 + max(b for _, b in self.graph)
        if nodes != n:
            raise ValueError(f"the graph has {nodes} nodes and the federation {n} clients; use a graph of {n} nodes")
        return _metropolis(n, np.array(self.graph))


def _node(i: Any) -> Any:
    return i.item() if isinstance(i, Tensor) else i  # tensors of equal numbers have different hashes


class Matrix(Topology):
    """A given mixing matrix `[n, n]`.

    connected: False allows a graph with several components, such as the identity, where every client is alone.
    Raises ValueError for a matrix that does not pass `check`.
    """

    def __init__(self, W: Any, *, connected: bool = True) -> None:
        self.W, self.connected = check(W, connected=connected), connected
        self.W.setflags(write=False)
        self.degree = float(((self.W > 0).sum(1) - (self.W.diagonal() > 0)).mean())
        self.digest = short(self.W.tobytes())[:12]

    def __repr__(self) -> str:
        return f"Matrix([{len(self.W)}, {len(self.W)}] {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Matrix) and np.array_equal(self.W, other.W)

    def __hash__(self) -> int:
        return hash(self.digest)

    def lists(self, n: int, seed: int, t: int) -> Lists:
        if len(self.W) != n:
            raise ValueError(f"the mixing matrix is {self.W.shape} and the federation has {n} clients; use [{n}, {n}]")
        k = int((self.W > 0).sum(1).max())
        indices = np.argsort(self.W == 0, axis=1, kind="stable")[:, :k]
        return indices, np.take_along_axis(self.W, indices, 1)


def topology(value: Any) -> Topology:
    """`value` as a topology: one of the classes here, a networkx graph, or a matrix `[n, n]`.

    The identity is allowed with a warning; the clients then train alone, without any mixing.
    Raises TypeError for anything else, ValueError for graphs and matrices that are no topology.
    """
    if isinstance(value, Topology):
        return value
    if hasattr(value, "nodes") and hasattr(value, "edges"):
        return Graph(value)
    if isinstance(value, type | str) or value is None:
        raise TypeError(
            f"mixing={checks.brief(value)}; use a topology such as fc.Ring(), a networkx graph, or a matrix [n, n]"
        )
    W = _array(value)
    alone = np.array_equal(W, np.eye(len(W)))
    if alone and len(W) > 1:
        checks.warn("mixing is the identity: no client receives another's model, each trains on its own")
    return Matrix(W, connected=not alone)


@checks.arguments
def mixing(
    topology: Annotated[Topology, checks.Kind(lambda value: isinstance(value, Topology), "fc.Ring() or another")],
    n: checks.Count,
    seed: checks.Seed = 0,
    t: checks.CountFromZero = 0,
    *,
    device: checks.Device = "cpu",
    dtype: checks.FloatType = torch.float64,
) -> Mixing:
    """The W of n clients in round t, a function of (topology, n, seed, t) alone, built once.

    Raises ValueError where the topology has no graph on n clients, and where the lists of a topology of your own have
    indices out of range, differ from call to call, or depend on the seed or the round without `varies = True`, for
    which they are compared with those of (seed, t), on a GPU in rounds 1, 2, 4, 8, ... alone.
    """
    when = (seed, t) if topology.varies else (0, 0)
    own = is_own(type(topology))
    known = digest(topology) if own else topology  # a user's topology may be mutable
    at = (known, n, *when, available(device), dtype)
    found = _BUILT.get(at)
    if found is None or found.indices._version or found.weights._version:  # built anew where a caller wrote to it
        if len(_BUILT) == KEPT:
            _BUILT.clear()
        found = _BUILT[at] = _mixing(topology, *at[1:])
    if own and not topology.varies and (at[-2].type == "cpu" or t & (t - 1) == 0):
        _same(topology, found, topology.lists(n, seed, t))
    return found


@torch.inference_mode(False)
def _mixing(topology: Topology, n: int, seed: int, t: int, device: torch.device, dtype: torch.dtype) -> Mixing:
    indices, weights = (as_array(part) for part in topology.lists(n, seed, t))
    fit = indices.ndim == 2 and len(indices) == n and indices.size > 0 and weights.shape == indices.shape
    known = fit and indices.dtype.kind in "iu" and indices.min() >= 0 and indices.max() < n
    if not known or weights.dtype.kind not in "fiu" or not (np.abs(weights.sum(1) - 1) < 1e-6).all():
        raise ValueError(
            f"{topology!r} gives clients {indices.dtype} {indices.shape} and weights {weights.dtype} {weights.shape}; "
            f"use [{n}, k] for both: whole numbers from 0 to {n - 1}, and finite weights whose rows sum to 1"
        )
    W = Mixing(torch.tensor(indices, dtype=torch.int64), torch.tensor(weights)).to(device, dtype)
    if t == 0 and is_own(type(topology)):
        _same(topology, W, topology.lists(n, seed, t) if topology.varies else topology.lists(n, seed + 1, t + 1))
    return W


def _same(topology: Topology, W: Mixing, again: Lists) -> None:
    """ValueError unless W has these lists."""
    for kept, part in zip((W.indices, W.weights), again, strict=True):
        if not torch.equal(kept, torch.tensor(as_array(part)).to(kept)):
            remedy = "draw from fedcore.rng with the seed and the round" if topology.varies else "set varies = True"
            raise ValueError(f"{topology!r} gives other lists when it is called again; {remedy}")


def spectrum(W: Any) -> np.ndarray:
    """The eigenvalues of `W [n, n]`, largest first; their moduli where W is not symmetric up to rounding in
    float32.  ValueError for NaN."""
    W = _array(W)
    if np.abs(W - W.T).max() <= 1e-6:
        return np.linalg.eigvalsh((W + W.T) / 2)[::-1]
    return np.sort(np.abs(np.linalg.eigvals(W)))[::-1]


def gap(W: Any) -> float:
    """1 - the second largest modulus of an eigenvalue of `W [n, n]`: 1 for W = 11'/n, 0 without consensus."""
    return 1.0 - float(np.sort(np.abs(spectrum(W)))[::-1][1:2].sum())


@checks.arguments
def check(W: Any, *, connected: bool = True) -> np.ndarray:
    """W `[n, n]` in float64, checked to be symmetric, doubly stochastic, and to lead to consensus.

    connected: False skips the check of consensus.  Raises ValueError where a check fails.
    """
    W = _array(W)
    tolerance = 1e-6 if np.array_equal(W, W.astype(np.float32)) else 1e-10
    sums, skew = W.sum(1), np.abs(W - W.T).max()
    if W.min() < 0 or np.abs(sums - 1).max() > tolerance or skew > tolerance:
        raise ValueError(
            f"the mixing matrix has weights from {W.min():g} on, rows that sum to {sums.min():g} to {sums.max():g}, "
            f"and entries that differ from their mirror images by up to {skew:g}; use weights >= 0 in a symmetric "
            "matrix whose rows sum to 1, such as Metropolis weights, fc.Graph(graph)"
        )
    if connected and len(W) > 1:
        import networkx

        graph = networkx.empty_graph(len(W))
        graph.add_edges_from(np.argwhere(np.triu(W, 1) > 0).tolist())
        _check_connected(graph, "the mixing matrix")
        if np.linalg.eigvalsh(W)[0] < 1e-9 - 1:
            raise ValueError(
                "the mixing matrix has the eigenvalue -1: two groups of clients swap models in every round without "
                "consensus; give each client a weight on its own model, such as (W + I) / 2"
            )
    return W


def _array(W: Any) -> np.ndarray:
    W = np.array(real_numbers("the mixing matrix", W, "[n, n]"), np.float64)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not len(W):
        raise ValueError(f"the mixing matrix has shape {W.shape}; use [n, n], a row and a column for each client")
    if not np.isfinite(W).all():
        raise ValueError("the mixing matrix holds NaN or infinity; give finite weights")
    return W


def _circle(n: int, offsets: Sequence[int]) -> Lists:
    _check(n, len(offsets))
    offsets = np.array(offsets)
    return (np.arange(n)[:, None] + offsets) % n, np.full((n, len(offsets)), 1 / len(offsets))


def _check(n: int, k: int) -> None:
    """MemoryError where the lists of k neighbours and weights of n clients exceed the memory."""
    remedy = "fewer clients, or a topology of fewer neighbours, such as fc.Exponential()"
    memory.check(16 * n * k, torch.device("cpu"), f"the lists of {k:,} neighbours for each of {n:,} clients", remedy)


def _metropolis(n: int, pairs: np.ndarray) -> Lists:
    """Lists of the graph with the edges `pairs [e, 2]`; short lists are padded by the client itself with weight 0."""
    a, b = np.concatenate([pairs, pairs[:, ::-1]]).T
    order = np.lexsort((b, a))
    a, b = a[order], b[order]
    degree = np.bincount(a, minlength=n)
    _check(n, 1 + int(degree.max()))
    place = 1 + np.arange(len(a)) - (np.cumsum(degree) - degree)[a]
    indices = np.repeat(np.arange(n)[:, None], 1 + degree.max(), 1)
    weights = np.zeros(indices.shape)
    indices[a, place], weights[a, place] = b, 1 / (1 + np.maximum(degree[a], degree[b]))
    weights[:, 0] = 1 - weights.sum(1)
    return indices, weights


@lru_cache(maxsize=1024)  # runs of several methods use the same graphs
def _regular(n: int, degree: int, seed: int, t: int) -> np.ndarray:
    """Edges `[n degree / 2, 2]` of a random graph in which every node has `degree` neighbours."""
    for attempt in range(1000):
        stubs, edges = np.repeat(np.arange(n), degree), np.empty(0, np.int64)
        for tries in range(10):  # half-edges that are left after ten tries can seldom be paired: start again
            if not len(stubs):
                return np.stack(np.divmod(np.sort(edges), n), 1)
            word = rng.words(seed, rng.MIXING, t, attempt, tries, np.arange(len(stubs)))
            pairs = np.sort(stubs[np.argsort(word, kind="stable")].reshape(-1, 2), 1)
            edge = pairs[:, 0] * n + pairs[:, 1]
            fresh = np.zeros(len(edge), bool)
            fresh[np.unique(edge, return_index=True)[1]] = True
            fresh &= (pairs[:, 0] != pairs[:, 1]) & ~np.isin(edge, edges)
            edges, stubs = np.append(edges, edge[fresh]), pairs[~fresh].reshape(-1)
    raise RuntimeError(f"no graph of {n} nodes with {degree} neighbours was found")  # not seen


def _check_connected(graph: networkx.Graph, what: str) -> None:
    import networkx

    if graph.number_of_edges() == networkx.number_of_selfloops(graph):
        raise ValueError(f"{what} has no edges but self-loops; add edges between clients, such as those of a ring")
    if missing := sorted(set(graph) - networkx.node_connected_component(graph, 0)):
        raise ValueError(
            f"{what} is disconnected: no path leads from client 0 to {missing[:5]} ({len(missing)} of {len(graph)}); "
            "add edges, or use a graph that is drawn anew each round, fc.RandomRegular(degree)"
        )
