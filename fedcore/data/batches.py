"""The samples of each client's local steps, as functions of (seed, round, client) alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .. import rng
from ..support import checks

Samples = Sequence[np.ndarray]  # each client's rows of the training set, `[N_i]`
MOST = 2**30  # samples in the local steps of a round; their indices take 16 bytes each


@dataclass(frozen=True)
class Plan:
    """The samples of a cohort's local steps; made on the host and sent to the device once.

    clients `[m]` are the clients' numbers on the host, rows `[m]` the same on the device, steps `[m]` their numbers of
    local steps K_i, keys `[m]` a random word each.  indices `[K, m, B]` are rows of the training set on the device,
    weights `[K, m, B]` 1/B_i (0 where padded), counts `[K, m]` the numbers of samples without padding, samples
    `[K, m, B]` the indices on the host.  These four are None for full batches and quadratics.  first: the local step of
    the round at which this plan begins (`of`).
    """

    clients: np.ndarray
    rows: Tensor
    steps: np.ndarray
    keys: np.ndarray
    indices: Tensor | None = None
    weights: Tensor | None = None
    counts: np.ndarray | None = None
    samples: np.ndarray | None = None
    first: int = 0

    __repr__ = checks.as_call

    def of(self, rows: np.ndarray, step: int | None = None) -> Plan:
        """The plan for some rows, in ascending order, and for all local steps or for one."""
        at, steps = torch.as_tensor(rows).to(self.rows.device), self.steps[rows]
        ks = slice(int(steps.max())) if step is None else slice(step, step + 1)
        on_device = (None if a is None else a[ks][:, at] for a in (self.indices, self.weights))
        on_host = (None if a is None else a[ks][:, rows] for a in (self.counts, self.samples))
        return Plan(self.clients[rows], self.rows[at], steps, self.keys[rows], *on_device, *on_host, first=step or 0)

    @property
    def working(self) -> list[int]:
        """How many clients take each local step; they are the first rows, because rows are sorted by steps."""
        return (self.steps > np.arange(self.steps[0])[:, None]).sum(1).tolist()


def full_batches(seed: int, t: int, clients: np.ndarray, steps: int | np.ndarray, device: torch.device) -> Plan:
    """The plan of round t for clients `[m]` that use all their data in each local step.

    steps: the number of local steps, one for all clients or `[m]`.  Rows are sorted by steps, largest first.
    """
    K = np.broadcast_to(steps, len(clients))
    order = np.argsort(-K, kind="stable")
    clients = clients[order]
    keys = rng.words(seed, rng.BATCH, t, clients)
    return Plan(clients, torch.as_tensor(clients, device=device), K[order], keys)


def mini_batches(
    seed: int,
    t: int,
    clients: np.ndarray,
    samples: Samples,
    *,
    batch_size: int,
    epochs: int | np.ndarray = 1,
    steps: int | np.ndarray | None = None,
    least: int = 1,
    walk: bool = False,
    device: torch.device,
    dtype: torch.dtype,
) -> Plan:
    """The mini-batches of round t for clients `[m]` with these samples, rows of the training set `[N_i]` each.

    Every epoch visits each sample once, in a new order.  The last batch of an epoch may be smaller, and is left out
    where it has fewer than `least` samples and is not the only one.  K_i is `steps`, or `epochs` times the number of
    batches in an epoch, which is ceil(N_i / batch_size) where none is left out; both are one number for all clients or
    `[m]`.  walk: epochs continue over rounds (FedSMB).  Rows are sorted by K_i, largest first, so that the clients
    still at work are always a prefix.
    """
    if steps is None:
        steps = epochs * _per_epoch(np.array([len(s) for s in samples]), batch_size, least)
    plan = full_batches(seed, t, clients, steps, device)
    held = dict(zip(clients.tolist(), samples, strict=True))
    samples = [held[i] for i in plan.clients.tolist()]
    streams = np.repeat(rng.words(seed, rng.BATCH, -1), len(clients)) if walk else plan.keys
    return _dealt(plan, samples, streams, batch_size, least, t if walk else 0, dtype)


def share_batches(
    seed: int,
    t: int,
    clients: np.ndarray,
    samples: Samples,
    *,
    share: float,
    epoch: int,
    batch_size: int | None,
    least: int = 1,
    device: torch.device,
    dtype: torch.dtype,
) -> Plan:
    """Epoch number `epoch` over a random share of each client's samples, drawn for round t.

    The share has at least one sample, or two where batches need two (least > 1).  Rows are in the order of
    `clients [m]`; batch_size None takes a client's whole share in one step.  least: as for `mini_batches`.
    """
    sizes = [max(min(least, 2, len(s)), int(share * len(s) + 1e-9)) for s in samples]
    draws = rng.words(seed, rng.RESAMPLE, t, clients)
    subset = [
        part[np.argsort(rng.words(word, -1, np.arange(len(part))), kind="stable")[:size]]
        for part, word, size in zip(samples, draws, sizes, strict=True)
    ]
    batch_size = max(sizes) if batch_size is None else batch_size
    keys = rng.words(seed, rng.RESAMPLE, t, clients, epoch)
    plan = Plan(clients, torch.as_tensor(clients, device=device), _per_epoch(np.array(sizes), batch_size, least), keys)
    return _dealt(plan, subset, keys, batch_size, least, 0, dtype)


def _per_epoch(sizes: np.ndarray, batch_size: int, least: int) -> np.ndarray:
    """The number of batches in an epoch, without a last one of fewer than `least` samples."""
    full, rest = np.divmod(sizes, batch_size)
    return full + ((rest >= least) | (full == 0))


def _dealt(
    plan: Plan, samples: Samples, streams: np.ndarray, batch_size: int, least: int, first: int, dtype: torch.dtype
) -> Plan:
    """The plan with K_i batches of each client, beginning at its step number `first`.

    The order of the samples in epoch e is a hash of (stream, client, e).
    """
    clients, K, device = plan.clients, plan.steps, plan.rows.device
    sizes = np.array([len(s) for s in samples])
    per_epoch = _per_epoch(sizes, batch_size, least)
    if (entries := int(K.max()) * len(clients) * int(min(batch_size, sizes.max()))) > MOST:
        raise ValueError(
            f"{int(K.max()):,} local steps of {len(clients):,} clients use {entries:,} samples in a round, more than "
            f"{MOST:,}; use fewer local steps, epochs or clients"
        )
    # one entry per (row, epoch, sample) that the round may touch: hash, then sort within (row, epoch)
    e0, e1 = first // per_epoch, (first + K - 1) // per_epoch + 1
    groups = e1 - e0
    g_row = np.repeat(np.arange(len(clients)), groups)
    g_epoch = np.arange(groups.sum()) - np.repeat(np.cumsum(groups) - groups, groups) + e0[g_row]
    length = sizes[g_row]
    g = np.repeat(np.arange(len(g_row)), length)
    position = np.arange(length.sum()) - (np.cumsum(length) - length)[g]
    h = rng.words(streams[g_row][g], clients[g_row][g], g_epoch[g], position) >> np.uint64(24)
    order = np.argsort((g.astype(np.uint64) << np.uint64(40)) | h, kind="stable")
    # the sample with the k-th smallest hash of a group comes at position k
    place = position // batch_size
    k = (g_epoch * per_epoch[g_row])[g] + place - first
    inside = (k >= 0) & (k < K[g_row][g]) & (place < per_epoch[g_row][g])
    drawn = np.concatenate(samples)[(np.cumsum(sizes) - sizes)[g_row][g] + position[order]]
    shape = (int(K.max()), len(clients), int(min(batch_size, sizes.max())))
    indices, valid = np.zeros(shape, np.int64), np.zeros(shape, np.float64)
    at = (k[inside], g_row[g][inside], (position % batch_size)[inside])
    indices[at], valid[at] = drawn[inside], 1.0
    counts = valid.sum(2).astype(int)
    weights = torch.as_tensor(valid / np.maximum(counts, 1)[..., None], dtype=dtype)
    on_device = {"indices": torch.as_tensor(indices).to(device), "weights": weights.to(device)}
    return replace(plan, counts=counts, samples=indices, **on_device)
