"""Partitions of the training samples among clients.

A partition is a frozen object with one method, `split(labels, clients, rng, owner) -> list of index arrays`, rows of
the training set.  `checked` requires disjoint arrays that are not empty; the partitions of this module cover every
sample, except `ByOwner(subset=True)`.  They raise ValueError where that is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np

from ..support import checks
from .arrays import as_array

Indices = list[np.ndarray]


class Partition(Protocol):
    """The interface of a partition; a class of your own needs this method alone."""

    def split(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None, /
    ) -> Sequence[np.ndarray]:
        """The rows of the training set that each client gets, without overlaps and none of them empty."""
        ...


@dataclass(frozen=True)
class IID(checks.Named):
    """The samples are shuffled and dealt out evenly; sizes differ by one at most."""

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        enough(labels, clients)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def _sizes(value: Any) -> bool:
    if callable(getattr(value, "sizes", None)) and not isinstance(value, type):
        return True
    listed = isinstance(value, list | tuple | np.ndarray) and len(value) > 0
    return listed and all(isinstance(v, int | np.integer) and not isinstance(v, bool) and v > 0 for v in value)


class Law(Protocol):
    """A law of the clients' sizes, such as `fc.Quantity(1.0)`."""

    def sizes(self, N: int, clients: int, rng: np.random.Generator, /) -> np.ndarray:
        """How many of N samples each client gets, `[clients]`."""
        ...


Sizes = Annotated[
    list | tuple | np.ndarray | Law,
    checks.Kind(_sizes, "whole numbers from 1, one for each client, or fc.Quantity(...)"),
]


@dataclass(frozen=True)
class Dirichlet(checks.Named):
    """Label skew: for each label l the clients' shares are p_l ~ Dirichlet(q, ..., q).  Small q: strong skew.

    Clients differ in size as well as in labels.  The shares of clients that already hold N/n samples are set to
    zero, and the whole partition is drawn again until each client has `min_size` samples.  This is FedML's routine,
    which the FedUp study (section 6.1.1) uses with min_size 10.  The default None means 10, or a tenth of the mean
    client size where that is less.  `equal_sizes=True` gives every client the same number of samples instead (the
    setting of FedDyn and FedDC): client i draws labels from its own p_i ~ Dirichlet(q, ..., q); labels without samples
    left are excluded.  `sizes=` does the same with given sizes: one number for each client, whose sum may leave samples
    out, or `fc.Quantity(...)`.

    Raises ValueError for q <= 0, when `max_draws` draws never gave each client min_size samples, for sizes that are
    below 1, not one for each client, or together more than the samples, and for `min_size` or `max_draws` beside
    `sizes` or `equal_sizes`.
    """

    q: checks.Positive
    equal_sizes: bool = False
    min_size: checks.Count | None = None
    max_draws: checks.Count = 10_000
    sizes: Sizes | None = None

    def __post_init__(self) -> None:
        checks.fields(self)
        if self.sizes is not None and self.equal_sizes:
            raise ValueError(f"equal_sizes=True and sizes={checks.brief(self.sizes)}; use one of the two")
        for name in ("min_size", "max_draws") if self.equal_sizes or self.sizes is not None else ():
            if (value := getattr(self, name)) != getattr(Dirichlet, name):
                given = "equal_sizes=True" if self.equal_sizes else f"sizes={checks.brief(self.sizes)}"
                raise ValueError(f"{name}={value} has no effect with {given}; leave one of the two out")
        if self.sizes is not None and not hasattr(self.sizes, "sizes"):
            object.__setattr__(self, "sizes", tuple(map(int, self.sizes)))

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        enough(labels, clients)
        if self.equal_sizes or self.sizes is not None:
            return self._sized(labels, clients, rng)
        N, least = len(labels), self.min_size or max(1, min(10, len(labels) // (10 * clients)))
        if least * clients > N:
            raise ValueError(
                f"min_size={least} for {clients} clients needs {least * clients} samples, the source has {N}; "
                f"use min_size<={N // clients} or fewer clients"
            )
        by_label = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        for _ in range(self.max_draws):
            size, cuts = np.zeros(clients, int), []
            for samples in by_label:
                share = rng.dirichlet(np.full(clients, self.q)) * (size < N / clients)
                if not share.sum() > 0:  # every share underflowed or belongs to a full client
                    share = (size == size.min()).astype(float)
                cuts.append((np.cumsum(share / share.sum())[:-1] * len(samples)).astype(int))
                size += np.diff(cuts[-1], prepend=0, append=len(samples))
            if size.min() >= least:
                dealt = [np.split(rng.permutation(s), cut) for s, cut in zip(by_label, cuts, strict=True)]
                return [np.sort(np.concatenate(part)) for part in zip(*dealt, strict=True)]
        raise ValueError(
            f"Dirichlet(q={self.q}) did not give each of {clients} clients {least} of {N} samples in "
            f"{self.max_draws} draws; use a larger q, fewer clients, a smaller min_size, or equal_sizes=True"
        )

    def _sized(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Indices:
        classes, sizes = np.unique(labels), self.sizes
        if sizes is None:
            sizes = [len(part) for part in np.array_split(np.arange(len(labels)), clients)]
        elif hasattr(sizes, "sizes"):
            sizes = sizes.sizes(len(labels), clients, rng)
        if len(sizes) != clients or sum(sizes) > len(labels):
            raise ValueError(
                f"sizes has {len(sizes)} numbers of sum {sum(sizes)}; use one for each of {clients} clients, of sum "
                f"<= {len(labels)}, the samples of the source"
            )
        left = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
        wish = rng.dirichlet(np.full(len(classes), self.q), size=clients)
        parts: list[list[int]] = [[] for _ in range(clients)]
        # one sample for each client in turn; otherwise the last clients would get only the remaining labels
        for turn in range(max(sizes)):
            for i in rng.permutation(clients):
                if turn < sizes[i]:
                    p = wish[i] * [len(pool) > 0 for pool in left]
                    if not p.sum() > 0:
                        p = np.array([len(pool) for pool in left], float)
                    parts[i].append(left[rng.choice(len(classes), p=p / p.sum())].pop())
        return [np.sort(np.array(part, int)) for part in parts]


@dataclass(frozen=True)
class Shards(checks.Named):
    """Exactly `classes` random labels per client; each label has equally many clients (to one), with equal shares.

    The "c classes per client" setting of FedAvg, HeteroFL and the FedDSE/FedGSE study (its Table 3.2, HIGH and LOW).
    The labels are dealt like shuffled cards, and a card that the client already holds is returned: with 10 labels and
    c = 2, a hundred clients hold about 42 of the 45 pairs.  The public codes of HeteroFL and of the study shuffle too,
    but there a client that is dealt the same label twice holds one label and fewer samples.

    cut: True cuts the samples, sorted by label, into clients * classes shards of equal size and deals each client
    `classes` of them at random, as McMahan et al. (2017) do: a client may then hold fewer labels, or more where a shard
    crosses two.  Raises ValueError for more classes than labels, and for fewer shards than labels (samples would be
    lost), unless `cut`.
    """

    classes: checks.Count
    cut: bool = False

    __post_init__ = checks.fields

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        enough(labels, clients * self.classes if self.cut else clients)
        known = np.unique(labels)
        c = self.classes
        if self.cut:
            shards = np.array_split(np.lexsort((rng.permutation(len(labels)), labels)), clients * c)
            dealt = rng.permutation(clients * c).reshape(clients, c)
            return [np.sort(np.concatenate([shards[k] for k in mine])) for mine in dealt]
        if c > len(known):
            raise ValueError(f"classes={c} per client, but the source has {len(known)} labels; use <= {len(known)}")
        if clients * c < len(known):
            raise ValueError(
                f"{clients} clients of {c} classes hold {clients * c} shards, fewer than the {len(known)} labels: "
                f"samples would be lost; use at least {-(-len(known) // c)} clients or more classes"
            )
        holders = self._deal(len(known), clients, rng)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label, at in zip(known, holders, strict=True):
            samples = rng.permutation(np.flatnonzero(labels == label))
            if len(samples) < len(at):
                raise ValueError(f"label {label} has {len(samples)} samples for {len(at)} clients; use fewer clients")
            for i, part in zip(at, np.array_split(samples, len(at)), strict=True):
                parts[i].append(part)
        return [np.sort(np.concatenate(part)) for part in parts]

    def _deal(self, labels: int, clients: int, rng: np.random.Generator) -> list[list[int]]:
        """The clients that hold each label, in random order."""
        left = np.full(labels, clients * self.classes // labels)  # shards of each label still to be dealt
        left[rng.permutation(labels)[: clients * self.classes % labels]] += 1
        holders: list[list[int]] = [[] for _ in range(labels)]
        for others, i in zip(range(clients - 1, -1, -1), rng.permutation(clients), strict=True):
            # drawing cards until there are `classes` different labels is top-k of log(cards left) + Gumbel noise
            with np.errstate(divide="ignore"):
                luck = np.log(left) + rng.gumbel(size=labels)
            luck[left > others] = np.inf  # the clients after this one could not hold them all
            for label in np.argsort(-luck, kind="stable")[: self.classes]:
                left[label] -= 1
                holders[label].append(int(i))
        return holders


@dataclass(frozen=True)
class ByOwner(checks.Named):
    """One client per natural owner (writer, speaker, domain), in the order of the owners' numbers.

    parts: deals each owner's samples, shuffled, to this many consecutive clients.  subset: True allows fewer clients
    than owners: the owners are drawn with the seed, and the samples of the others are left out.
    Raises ValueError when the source has no owners or the number of clients does not fit.
    """

    subset: bool = False
    parts: checks.Count = 1

    __post_init__ = checks.fields

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        if owner is None:
            raise ValueError("partition=ByOwner() needs a source with owners (FEMNIST, Shakespeare, or train_owner)")
        owners = np.unique(owner)
        whole = len(owners) * self.parts
        some = self.subset and self.parts == 1
        if clients != whole and not (some and clients < whole):
            remedy = f"clients<={whole}" if some else "parts=1 and subset=True to draw some of the owners"
            raise ValueError(
                f"clients={clients} but {len(owners)} owners in {self.parts} parts are {whole} clients; use "
                f"clients={whole} or None, or {remedy}"
            )
        if clients < whole:
            owners = np.sort(rng.choice(owners, clients, replace=False))
        dealt = (np.array_split(rng.permutation(np.flatnonzero(owner == o)), self.parts) for o in owners)
        return [np.sort(part) for parts in dealt for part in parts]


@dataclass(frozen=True, repr=False)
class Dealt:
    """The partition by a user's function `(labels, clients, rng) -> list of index arrays`."""

    function: Callable[[np.ndarray, int, np.random.Generator], Sequence[np.ndarray]]

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def split(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None
    ) -> Sequence[np.ndarray]:
        return self.function(labels, clients, rng)


@dataclass(frozen=True, eq=False, repr=False)
class Listed:
    """Index arrays as they were given, one per client.

    Indices refer to the training samples of the source as it was given; samples that became test, validation or public
    data since then are taken from their client.
    """

    parts: tuple[np.ndarray, ...]

    def __repr__(self) -> str:
        return f"<{len(self.parts)} index arrays>"

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator, owner: np.ndarray | None) -> Indices:
        return list(self.parts)


def checked(parts: Sequence[np.ndarray], clients: int, N: int, overlapping: bool = False) -> Indices:
    """The index arrays of a partition of N samples as int64.

    overlapping: whether several clients may have the same sample, and one client may have it several times.

    Raises TypeError for anything but a list; ValueError where the number of arrays differs from clients, and for arrays
    that are empty or hold other than whole numbers, an index out of range, and an index that occurs twice.
    """
    if not isinstance(parts, list | tuple):
        raise TypeError(f"the partition gave a {type(parts).__name__}; use a list of index arrays, one per client")
    if len(parts) != clients:
        raise ValueError(f"clients={clients}, but the partition has {len(parts)} index arrays; use one per client")
    parts = [as_array(part) for part in parts]
    for i, part in enumerate(parts):
        if part.ndim != 1 or not len(part) or part.dtype.kind not in "iu":
            raise ValueError(
                f"client {i} has indices {part.dtype} {part.shape} in the partition; give each client one integer at "
                "least, on one axis [N_i], np.flatnonzero(mask) of a mask"
            )
    parts = [part.astype(np.int64, copy=False) for part in parts]
    rows = np.concatenate(parts)
    if rows.min() < 0 or rows.max() >= N:
        raise ValueError(
            f"the partition has indices from {rows.min()} to {rows.max()}, but there are {N} samples; use 0 to {N - 1}"
        )
    known, counts = np.unique(rows, return_counts=True)
    if counts.max() > 1 and not overlapping:
        raise ValueError(
            f"index {known[counts.argmax()]} occurs twice in the partition; give each sample to one client, or, where "
            "samples are to be shared, write a partition class with overlapping = True"
        )
    return parts


def enough(labels: np.ndarray, clients: int) -> None:
    """ValueError for more clients than samples."""
    if clients > len(labels):
        raise ValueError(f"clients={clients} but the source has {len(labels)} training samples; use fewer clients")
