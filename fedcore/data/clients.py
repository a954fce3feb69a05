"""The data of n clients on one device, and the inputs of a model from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..support import checks
from .arrays import Source, as_array, from_arrays
from .augment import CropFlip, Own, RandAugment
from .lists import Lists
from .normalisation import Normalise, normalisation

EVAL_CHUNK = 2048  # training samples per forward pass in evaluation; batch-norm statistics are taken over such chunks
TEST_CHUNK = 512  # test samples per forward pass, so that a layer's outputs stay in a CPU's cache
READINGS = ("own", "target", "pooled")
Chunks = Iterator[tuple[Tensor, Tensor]]
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Clients:
    """Training and test samples as tensors on one device, with each client's share of them.

    x `[N, ...]`, y `[N]`, test_x, test_y: all samples; uint8 images stay uint8 until a batch is used.  index: each
    client's rows of x; parts: the same without the copies that augmentation may have added.  statistics
    `[2, r, C, 1, 1]`: r means and standard deviations, the pooled ones last; train_rows, test_rows: the index of each
    sample's statistics.  normalise, augment: as for `federation`.  public: samples that no client has, or None.  dtype:
    the type of inputs.  kept: inputs and labels of the clients' own test data, and each client's rows of them, or None.
    Make one with `Clients.of`, and change it with `dataclasses.replace`.
    """

    source: Source
    parts: Lists
    index: Lists
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    statistics: Tensor
    train_rows: Tensor
    test_rows: Tensor
    normalise: str
    augment: RandAugment | CropFlip | Own | None
    public: tuple[Tensor, Tensor] | None
    dtype: torch.dtype
    kept: tuple[Tensor, Tensor, Lists] | None = None
    _counted: dict[int, np.ndarray] = field(default_factory=dict, init=False)  # label counts after so many writes to y

    __repr__ = checks.as_call

    @staticmethod
    def of(
        source: Source,
        parts: Sequence[np.ndarray],
        *,
        normalise: str = "pooled",
        augment: RandAugment | CropFlip | Own | None = None,
        public: Arrays | None = None,
        kept: tuple[np.ndarray, np.ndarray, Lists] | None = None,
        seed: int = 0,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> Clients:
        """The clients whose rows of the source's training set are `parts`.

        seed: for an augmentation with once=True.  Raises ValueError for clients without data.
        """
        if empty := [i for i, part in enumerate(parts) if not len(part)]:
            raise ValueError(f"clients {empty[:10]} have no training data; use fewer clients or another partition")
        parts = Lists.of(parts)
        statistics, train_rows, test_rows = normalisation(source, parts, normalise)

        def put(a: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(a)).to(device)

        x, y, index = put(source.train_x), put(source.train_y), parts
        if augment is not None and augment.once:
            x = torch.cat([x, augment(x, rng.words(seed, rng.AUGMENT, np.arange(len(y))))])
            index = Lists.of([np.concatenate([part, part + len(y)]) for part in parts])
            train_rows = np.tile(train_rows, 2)
            y = torch.cat([y, y])
        return Clients(
            source, parts, index, x, y, put(source.test_x), put(source.test_y), statistics.to(device, dtype),
            put(train_rows), put(test_rows), normalise, augment,
            None if public is None else (put(public[0]), put(public[1])), dtype,
            None if kept is None else (put(kept[0]), put(kept[1]), kept[2]),
        )  # fmt: skip

    def like(self, source: Source, parts: Sequence[np.ndarray], **more: Any) -> Clients:
        """Clients of another source, whose samples are treated in the same way but for arguments `more` of `of`."""
        same = {name: getattr(self, name) for name in ("normalise", "augment", "device", "dtype")}
        return Clients.of(source, parts, **same | more)

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.index)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.x.device

    @property
    def now(self) -> Source:
        """The source with its samples as the clients have them now, also after writes such as `fed.y[rows] = 3`."""
        N = len(self.source.train_y)
        x, y, test_x, test_y = (v.cpu().numpy() for v in (self.x[:N], self.y[:N], self.test_x, self.test_y))
        return replace(self.source, train_x=x, train_y=y, test_x=test_x, test_y=test_y)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples per client, `[n]`, read-only."""
        return read_only(self.index.sizes)

    @cached_property
    def _everyones(self) -> Tensor | slice:
        """The rows of x that belong to any client, in order."""
        rows = np.unique(self.index.rows)
        return slice(None) if len(rows) == len(self.y) else torch.as_tensor(rows, device=self.device)

    @cached_property
    def apart(self) -> bool:
        """Whether a sample of several clients is another input for each of them."""
        return self.normalise == "client" and len(np.unique(self.index.rows)) < len(self.index.rows)

    @property
    def label_counts(self) -> np.ndarray:
        """Training samples per client and label as they are now, `[n, classes]`, read-only.

        Raises ValueError where targets are no class labels.
        """
        need_classes(self.source, "counts of labels")
        now = self.y._version  # torch counts the writes to a tensor; without any, the device need not be read
        if now not in self._counted:
            y, classes = self.y.cpu().numpy() if now else self.source.train_y, self.source.classes
            counts = [np.bincount(y[part % len(y)], minlength=classes) for part in self.index]
            self._counted[now] = read_only(np.stack(counts))
        return self._counted[now]

    @cached_property
    def own(self) -> Lists | None:
        """Each client's own test data: rows of `kept`, else rows of the test set, namely the samples of its owner.

        None where no client has own test data, for example because clients mix owners.
        """
        if self.kept is not None:
            return self.kept[2]
        owner, tested = self.source.train_owner, self.source.test_owner
        if owner is None or tested is None:
            return None
        known = [np.unique(owner[part]) for part in self.parts]
        if any(len(one) > 1 for one in known):
            return None
        order = np.argsort(tested, kind="stable")
        low, high = (np.searchsorted(tested[order], np.concatenate(known), side) for side in ("left", "right"))
        own = Lists.of([order[a:b] for a, b in zip(low, high, strict=True)])
        return own if len(own.rows) else None

    def to(self, device: torch.device, dtype: torch.dtype) -> Clients:
        """The same data on another device, with inputs of another type."""
        moved = {k: getattr(self, k).to(device) for k in ("x", "y", "test_x", "test_y", "train_rows", "test_rows")}
        for name in ("x", "y"):
            if getattr(self, name)._version and not moved[name]._version:
                moved[name].add_(0)  # samples that were written over stay known as such
        public = None if self.public is None else tuple(part.to(device) for part in self.public)
        kept = None if self.kept is None else (*(part.to(device) for part in self.kept[:2]), self.kept[2])
        statistics = self.statistics.to(device, dtype)
        return replace(self, **moved, public=public, kept=kept, statistics=statistics, dtype=dtype)

    def inputs(self, x: Tensor, rows: Tensor | int | None = None) -> Tensor:
        """Samples as inputs of the model, in memory of their own: texts as whole numbers, images normalised.

        rows: with normalise="client", the index of the statistics, one for all samples or one for each leading index of
        x; None: the pooled statistics.
        """
        made = self._inputs(x, rows)
        return made.clone() if made is x else made  # a forward pass or a caller may write over it

    def _inputs(self, x: Tensor, rows: Tensor | int | None) -> Tensor:
        if self.source.text:
            return x.long()
        numbers = self.normalise == "pooled" and (x.dtype != torch.uint8 or self.x.dim() != 4)  # no images of bytes
        if self.normalise == "none" or numbers:
            return x.to(self.dtype)
        mean, std = self._statistics_of(rows)
        return (x.to(self.dtype) - mean).div_(std)

    def _statistics_of(self, rows: Tensor | int | None) -> Tensor:
        return self.statistics[:, -1 if rows is None or self.normalise != "client" else rows]

    def normaliser(self, client: int | None = None, channels_last: bool = False) -> Normalise:
        """`inputs` as a layer, with all clients' statistics or, with normalise="client", those of one client."""
        shape = tuple(self.x.shape[1:])
        if self.source.text:
            return Normalise(shape)
        mean, std = self._statistics_of(client)
        if len(shape) != 3:  # numbers as they are given: mean 0, std 1
            mean, std = mean.flatten()[0], std.flatten()[0]
        return Normalise(shape, mean, std, channels_last)

    def local_inputs(
        self, picked: Tensor, rows: Tensor, counts: Sequence[int], words: np.ndarray | None = None
    ) -> Tensor:
        """Training samples `picked [m, B]` as inputs of the clients `rows [m]` in a local step.

        counts: each client's number of samples without padding.  words: random words for augmentation in each step, one
        for each sample `[m, B]`, or for a user's function one for each client `[m]`.
        """
        # index_select is faster than x[picked]
        x = self.x.index_select(0, picked.flatten()).unflatten(0, picked.shape)
        if words is not None and isinstance(self.augment, Own):
            x = self.augment.batches(x, words, counts)
        elif words is not None:
            x = self.augment(x.flatten(0, 1), words.reshape(-1)).view_as(x)
        return self._inputs(x, rows[:, None])

    # --- samples in chunks, for evaluation --------------------------------------------------------------------------

    def train_chunks(self, client: int | None = None) -> Chunks:
        """Training inputs and labels of all clients' samples, in the order of the data set, or of one client's.

        Where they are `apart`, all clients' samples are in the order of the clients.
        """
        if client is not None:
            own, rows = torch.as_tensor(self.index[client], device=self.device), client
        elif self.apart:
            each = (self.index.rows, np.repeat(np.arange(self.n), self.sizes))
            own, rows = (torch.as_tensor(a, device=self.device) for a in each)
        else:
            own, rows = self._everyones, self.train_rows[self._everyones]
        return self._chunks(self.x[own], self.y[own], rows, EVAL_CHUNK)

    def test_chunks(self, reading: str, client: int | None = None) -> Chunks:
        """Test inputs and labels: normalised like the `client`'s images ("own"), by domain ("target"), or "pooled"."""
        rows = {"own": client, "target": self.test_rows, "pooled": None}[reading]
        return self._chunks(self.test_x, self.test_y, rows, TEST_CHUNK)

    def kept_chunks(self, client: int) -> Chunks:
        """The test data that the client keeps, normalised like its images; no chunk where it keeps none."""
        x, y, own = self.kept or (None, None, None)
        if own is not None and len(own[client]):
            rows = torch.as_tensor(own[client], device=self.device)
            yield from self._chunks(x[rows], y[rows], client, TEST_CHUNK)

    def _chunks(self, x: Tensor, y: Tensor, rows: Tensor | int | None, most: int) -> Chunks:
        parts = -(-len(y) // most)  # of equal size, because a last chunk of one sample would have no variance
        of = rows.tensor_split(parts) if isinstance(rows, Tensor) else [rows] * parts
        for a, b, r in zip(x.tensor_split(parts), y.tensor_split(parts), of, strict=True):
            yield self.inputs(a, r), b

    def on_validation(self) -> Clients:
        """The same clients with the validation data in place of all test data; ValueError where there are none.

        Training samples keep their statistics; those of the test images' domains are the validation images'.
        """
        if self.source.validation is None:
            raise ValueError("this federation has no validation data; make it with fc.federation(..., validation=True)")
        x, y, owner = self.source.validation
        owner = None if self.source.test_owner is None else owner
        source = replace(self.source, test_x=x, test_y=y, test_owner=owner)
        changed = self.like(source, self.parts, augment=None)
        test = {name: getattr(changed, name) for name in ("source", "test_x", "test_y", "test_rows")}
        n = self.n if self.normalise == "client" else 0
        mine, theirs = self.statistics, changed.statistics  # the clients', the domains', and the pooled ones last
        statistics = torch.cat([mine[:, :n], theirs[:, n:-1], mine[:, -1:]], 1)
        return replace(self, **test, kept=None, statistics=statistics)

    # --- public data ------------------------------------------------------------------------------------------------

    def with_public(self, x: Any, y: Any) -> Clients:
        """The same clients with the caller's public data.

        Raises ValueError where a sample is a client's or a test sample, or of another shape or type than the source's.
        """
        s = self.now
        need_classes(s, "public data")
        x, y = as_array(x), as_array(y)
        layout = "channels_first" if s.layout == "image" and x.shape[1:] == s.train_x.shape[1:] else s.layout
        given = from_arrays("public", x, y, x, y, layout, classes=s.classes)
        if given.train_x.shape[1:] != s.train_x.shape[1:] or given.train_x.dtype != s.train_x.dtype:
            raise ValueError(
                f"public samples are {given.train_x.dtype} {given.train_x.shape[1:]}, the source's are "
                f"{s.train_x.dtype} {s.train_x.shape[1:]}; use the same"
            )
        known = {row.tobytes() for row in given.train_x}
        held = [s.train_x[self.parts.rows], s.test_x, *([] if self.kept is None else [self.kept[0].cpu().numpy()])]
        if both := sum(row.tobytes() in known for theirs in held for row in theirs):
            raise ValueError(
                f"{both} public samples are clients' or test samples too; take public data out of the training pool "
                "with fc.federation(..., public=k), never from the test set"
            )
        x, y = (torch.as_tensor(np.ascontiguousarray(a)).to(self.device) for a in (given.train_x, given.train_y))
        return replace(self, public=(x, y))

    def set_aside(self, k: int, seed: int) -> Clients:
        """Clients whose public data are k samples per class taken from them, with the same statistics as before.

        An augmentation with once=True is made anew, unless samples or labels were written over.
        Raises ValueError where a client keeps no data, a class has too few samples, or there are public data already.
        """
        if self.public is not None:
            raise ValueError("this federation has public data already; use them, or make one without public=")
        source, public, kept = set_aside(self.now, k, seed)
        rest = self.like(source, renumbered(self.parts, kept), public=public, seed=seed)
        if self.x._version or self.y._version:
            left = torch.as_tensor(np.tile(kept, len(self.y) // len(kept)), device=self.device)
            rest = replace(rest, x=self.x[left].add_(0), y=self.y[left].add_(0))  # and are known as written over
        return replace(rest, statistics=self.statistics, kept=self.kept)


def read_only(a: np.ndarray) -> np.ndarray:
    """The array, to which nobody can write from now on: all who ask for it are given the same one."""
    a.flags.writeable = False
    return a


def renumbered(parts: Sequence[np.ndarray], kept: np.ndarray) -> list[np.ndarray]:
    """The clients' rows after the samples where `kept [N]` is false have been removed."""
    new = np.cumsum(kept) - 1
    return [new[part[kept[part]]] for part in parts]


def keep_own(
    source: Source, parts: Sequence[np.ndarray], share: float, seed: int
) -> tuple[Source, list[np.ndarray], tuple[np.ndarray, np.ndarray, Lists]]:
    """The source without a share of each client's samples, the clients' rows of it, and the clients' own test data.

    A client with N_i >= 2 samples keeps round(share * N_i) of them as test data, but at least 1 and at most N_i - 1:
    every (1 / share)-th sample when they are sorted by label and, within a label, by a hash of seed and sample.  Each
    label therefore has its share to one sample.  Raises ValueError where no client has two samples.
    """
    words = rng.words(seed, rng.OWN, np.arange(len(source.train_y)))
    labels = source.train_y if source.has_classes else np.zeros(len(words), int)
    own = []
    for part in map(np.unique, parts):  # with overlapping clients, a sample may occur twice
        N = len(part)
        n = min(max(round(share * N), 1), N - 1)
        start = int(np.bitwise_xor.reduce(words[part])) % N
        order = part[np.lexsort((words[part], labels[part]))]
        own.append(np.sort(order[(np.arange(n) * N + start) // max(n, 1)]))
    taken = np.unique(np.concatenate(own))
    if not len(taken):
        raise ValueError(f"own_test={share:g}, but no client has two samples; use fewer clients, or own_test=None")
    kept = ~np.isin(np.arange(len(words)), taken)
    own = Lists.of([np.searchsorted(taken, one) for one in own])
    return source.keeping(kept), renumbered(parts, kept), (source.train_x[taken], source.train_y[taken], own)


def set_aside(source: Source, k: int, seed: int) -> tuple[Source, Arrays, np.ndarray]:
    """The source without k training samples of each class, these samples and labels, and a mask `[N]` of the others.

    Raises ValueError where a class has fewer than k, and where targets are no class labels.
    """
    checks.integer("public", k, 1)
    need_classes(source, "public data by class")
    order = np.argsort(rng.words(seed, rng.DATA, np.arange(len(source.train_y))), kind="stable")
    by_class = [order[source.train_y[order] == c][:k] for c in np.unique(source.train_y)]
    if (least := min(map(len, by_class))) < k:
        raise ValueError(f"public={k} samples per class, but one class has {least} training samples; use fewer")
    kept = ~np.isin(np.arange(len(order)), np.concatenate(by_class))
    return source.keeping(kept), (source.train_x[~kept], source.train_y[~kept]), kept


def need_classes(source: Source, what: str) -> None:
    """ValueError where targets are no class labels; what: the plural noun that needs them."""
    if not source.has_classes:
        raise ValueError(
            f"{what} need class labels [N], the targets are {source.train_y.dtype} {source.train_y.shape}; use a "
            "source with class labels, or do without"
        )
