"""Every method once more: one client at a time, torch.nn modules and autograd, written from the equations.

Nothing here is shared with fedcore's arithmetic.  Of the package it takes what defines a run and not a rule: the data
and which samples a client has in which local step (`helpers.batches`, `Federation.plan`), the cohorts of the run at
hand, the initial parameters, mixing matrices, and the random numbers of a seed (`fedcore.rng`).  A model is a flat
vector `[d]`, a cohort a list of client numbers, and what clients keep between rounds a list or dict by client.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import helpers as h
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedcore as fc
from fedcore import rng

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


# --- derivatives --------------------------------------------------------------------------------------------------


def gradient(net: nn.Module, flat: Tensor, loss: Callable[[nn.Module], Tensor]) -> Tensor:
    """d loss / d flat; 0 for parameters that the loss does not use."""
    nn.utils.vector_to_parameters(flat, net.parameters())
    params = list(net.parameters())
    return flattened(params, torch.autograd.grad(loss(net), params, allow_unused=True))


def flattened(params: list[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(params, grads, strict=True)])


def curvature(net: nn.Module, flat: Tensor, loss: Callable[[nn.Module], Tensor], v: Tensor) -> Tensor:
    """Hessian times v, by differentiating twice."""
    nn.utils.vector_to_parameters(flat, net.parameters())
    params = list(net.parameters())
    grads = torch.autograd.grad(loss(net), params, create_graph=True)
    along = sum((g.flatten() * part).sum() for g, part in zip(grads, v.split([p.numel() for p in params]), strict=True))
    return flattened(params, torch.autograd.grad(along, params, allow_unused=True))


def unit(v: Tensor) -> Tensor:
    return v / v.norm()


# --- the skeleton: section 1 of the specification ---------------------------------------------------------------------


class Loop:
    """FedAvg's round for one client after another; a method overrides what differs."""

    work: dict = {}  # noqa: RUF012  (what a method says about its amount of local work)

    def __init__(self, method: fc.Method, fed: fc.Federation, model: Callable, **options) -> None:
        self.hp = SimpleNamespace(**{f.name: getattr(method, f.name) for f in dataclasses.fields(method)})
        defaults = {
            "lr": 0.1, "lr_decay": 1.0, "local_epochs": 1, "local_steps": None, "batch_size": 20, "server_lr": 1.0,
            "weight_decay": 0.0, "clip": None, "momentum": 0.0, "weighting": "uniform", "seed": 0,
        }  # fmt: skip
        self.run = SimpleNamespace(**defaults | options)
        self.fed, self.n, self.classes = fed, len(fed.sizes), int(fed.y.max()) + 1
        self.net = model(tuple(fed.x.shape[1:]), self.classes).double().train()
        self.x = fed.x0.clone()
        self.t = 0
        self.start()

    # what a method may override

    def start(self) -> None:
        """State before round 0."""

    def rate(self, t: int) -> float:
        return self.run.lr * self.run.lr_decay**t

    def momentum(self) -> float:
        return self.run.momentum

    def before(self, cohort: list[int]) -> None:
        """What happens before the first local step."""

    def receive(self, i: int) -> Tensor:
        return self.x

    def direction(self, i: int, y: Tensor, batch: tuple, k: int) -> Tensor:
        return self.G(y, batch)

    def server(self, cohort: list[int], Y: dict[int, Tensor]) -> None:
        self.x = self.x + self.run.server_lr * self.mean({i: Y[i] - self.x for i in cohort})

    def models(self) -> list[Tensor]:
        """The models that the clients use, where they are not the server's."""
        raise NotImplementedError

    # what all share

    def G(self, y: Tensor, batch: tuple) -> Tensor:
        """The mini-batch gradient with weight decay."""
        return gradient(self.net, y, lambda net: F.cross_entropy(net(batch[0]), batch[1])) + self.run.weight_decay * y

    def H(self, y: Tensor, batch: tuple, v: Tensor) -> Tensor:
        """The derivative of G at y along v."""
        Hv = curvature(self.net, y, lambda net: F.cross_entropy(net(batch[0]), batch[1]), v)
        return Hv + self.run.weight_decay * v

    def sam(self, y: Tensor, batch: tuple) -> Tensor:
        """The gradient at the top of a ball around y, to first order."""
        return self.G(y + self.hp.rho * unit(self.G(y, batch)), batch)

    def full(self, i: int, y: Tensor) -> Tensor:
        """The gradient of the client's whole objective, one batch of all its samples."""
        return self.G(y, h.whole(self.fed, i))

    def batches(self, i: int, **work) -> list[tuple[Tensor, Tensor]]:
        run = self.run
        epochs, steps = (self.amount(i, given) for given in (run.local_epochs, run.local_steps))
        work = {"epochs": epochs, "steps": steps, "batch_size": run.batch_size, **self.work, **work}
        if work["batch_size"] is None:
            return [h.whole(self.fed, i)] * (work["steps"] or work["epochs"])
        return h.batches(self.fed, run.seed, self.t, i, **work)

    def amount(self, i: int, given) -> int | None:
        """Client i's local work: for all, by client, or a function of the round and the clients."""
        if callable(given):
            return int(given(self.t, np.array([i]))[0])
        return given[i] if isinstance(given, list) else given

    def K(self, i: int) -> int:
        return len(self.batches(i))

    def weights(self, cohort: Sequence[int]) -> dict[int, float]:
        sizes = {i: float(self.fed.sizes[i]) if self.run.weighting == "samples" else 1.0 for i in cohort}
        return {i: size / sum(sizes.values()) for i, size in sizes.items()}

    def mean(self, rows: dict[int, Tensor]) -> Tensor:
        p = self.weights(list(rows))
        return sum(p[i] * row for i, row in rows.items())

    def local(self, i: int, y: Tensor) -> Tensor:
        """Section 1: gradient, weight decay, correction, clip, momentum (a new buffer every round), step."""
        velocity = torch.zeros_like(y)
        for k, batch in enumerate(self.batches(i)):
            v = self.direction(i, y, batch, k)
            if self.run.clip is not None and v.norm() > self.run.clip:
                v = v * self.run.clip / v.norm()
            velocity = self.momentum() * velocity + v
            y = y - self.rate(self.t) * velocity
        return y

    def round(self, cohort: list[int]) -> None:
        self.before(cohort)
        Y = {i: self.local(i, self.receive(i)) for i in cohort}
        self.server(cohort, Y)
        self.t += 1

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(self.x) for _ in range(self.n)]


# --- section 3 --------------------------------------------------------------------------------------------------------


class FedAvg(Loop):
    def start(self):
        self.v = torch.zeros_like(self.x)

    def server(self, cohort, Y):
        self.v = self.hp.server_momentum * self.v + self.mean({i: Y[i] - self.x for i in cohort})
        self.x = self.x + self.run.server_lr * self.v


class FedSGD(Loop):
    work = {"epochs": 1, "steps": 1, "batch_size": None}  # noqa: RUF012


class FedSMB(Loop):
    work = {"epochs": 1, "steps": 1, "walk": True}  # noqa: RUF012


class FedProx(Loop):
    def direction(self, i, y, batch, k):
        return self.G(y, batch) + self.hp.mu * (y - self.x)


class SCAFFOLD(Loop):
    def start(self):
        self.c, self.c_i = torch.zeros_like(self.x), self.zeros()

    def direction(self, i, y, batch, k):
        return self.G(y, batch) - self.c_i[i] + self.c

    def variate(self, i, y):
        if getattr(self.hp, "option", "II") == "I":
            return self.full(i, self.x)
        return self.c_i[i] - self.c + (self.x - y) / (self.K(i) * self.rate(self.t))

    def server(self, cohort, Y):
        change = torch.zeros_like(self.c)
        for i in cohort:
            new = self.variate(i, Y[i])
            change += new - self.c_i[i]
            self.c_i[i] = new
        super().server(cohort, Y)
        self.c = self.c + change / self.n


class ProxSkip(Loop):
    """Coins are thrown until the first success; the uniform number of the seed says how many."""

    def start(self):
        self.h_i = self.zeros()

    def batches(self, i):
        u = ((rng.word(self.run.seed, rng.COINS, self.t) >> 11) + 0.5) / 2**53
        steps = 1
        while (1 - self.hp.p) ** steps >= u:
            steps += 1
        return super().batches(i, steps=steps)

    def direction(self, i, y, batch, k):
        return self.G(y, batch) - self.h_i[i]

    def server(self, cohort, Y):
        self.x = self.mean(Y)
        for i in cohort:
            self.h_i[i] = self.h_i[i] + self.hp.p / self.rate(self.t) * (self.x - Y[i])


class FedPVR(SCAFFOLD):
    def start(self):
        super().start()
        names = [name for name, _ in self.net.named_parameters()]
        wanted = self.hp.layers
        if wanted is None:
            wanted = (names[-1].rpartition(".")[0],)
        corrected = [
            torch.full((p.numel(),), float(wanted == "all" or any(f"{name}.".startswith(f"{w}.") for w in wanted)))
            for name, p in self.net.named_parameters()
        ]
        self.corrected = torch.cat(corrected).double()

    def direction(self, i, y, batch, k):
        return self.G(y, batch) + self.corrected * (self.c - self.c_i[i])

    def variate(self, i, y):
        return self.corrected * super().variate(i, y)


class FedDyn(Loop):
    """The paper's form, with g_i and h; fedcore has the form of the authors' code."""

    def start(self):
        self.g_i, self.h = self.zeros(), torch.zeros_like(self.x)

    def direction(self, i, y, batch, k):
        return self.G(y, batch) - self.g_i[i] + self.hp.alpha * (y - self.x)

    def server(self, cohort, Y):
        for i in cohort:
            self.g_i[i] = self.g_i[i] - self.hp.alpha * (Y[i] - self.x)
            self.h = self.h - self.hp.alpha / self.n * (Y[i] - self.x)
        self.x = self.mean(Y) - self.h / self.hp.alpha


class FedDC(Loop):
    def start(self):
        self.h_i, self.c_i, self.c = self.zeros(), self.zeros(), torch.zeros_like(self.x)

    def direction(self, i, y, batch, k):
        return self.G(y, batch) + self.hp.alpha * (y - (self.x - self.h_i[i])) + self.c - self.c_i[i]

    def server(self, cohort, Y):
        change = torch.zeros_like(self.c)
        for i in cohort:
            self.h_i[i] = self.h_i[i] + Y[i] - self.x
            new = self.c_i[i] - self.c + (self.x - Y[i]) / (self.K(i) * self.rate(self.t))
            change += new - self.c_i[i]
            self.c_i[i] = new
        self.x = self.mean(Y) + sum(self.h_i) / self.n
        self.c = self.c + change / self.n


class MimeLite(Loop):
    def start(self):
        self.s = torch.zeros_like(self.x)

    def before(self, cohort):
        self.C = self.mean({i: self.full(i, self.x) for i in cohort})

    def direction(self, i, y, batch, k):
        return (1 - self.hp.beta) * self.G(y, batch) + self.hp.beta * self.s

    def server(self, cohort, Y):
        super().server(cohort, Y)
        self.s = (1 - self.hp.beta) * self.C + self.hp.beta * self.s


class Mime(MimeLite):
    def direction(self, i, y, batch, k):
        g = self.G(y, batch) - self.G(self.x, batch) + self.C
        return (1 - self.hp.beta) * g + self.hp.beta * self.s


class MOON(Loop):
    def start(self):
        self.previous = [self.x.clone() for _ in range(self.n)]

    def representation(self, flat, inputs):
        nn.utils.vector_to_parameters(flat, self.net.parameters())
        with torch.no_grad():
            return self.net.encoder(inputs).clone()

    def direction(self, i, y, batch, k):
        inputs, labels = batch
        z_glob, z_prev = self.representation(self.x, inputs), self.representation(self.previous[i], inputs)

        def loss(net):
            z = net.encoder(inputs)
            cosines = torch.stack([F.cosine_similarity(z, other) for other in (z_glob, z_prev)], 1) / self.hp.tau
            contrast = F.cross_entropy(cosines, torch.zeros(len(labels), dtype=torch.int64))
            return F.cross_entropy(net.classifier(z), labels) + self.hp.mu * contrast

        return gradient(self.net, y, loss) + self.run.weight_decay * y

    def server(self, cohort, Y):
        super().server(cohort, Y)
        for i in cohort:
            self.previous[i] = Y[i]


class FedSplit(Loop):
    def start(self):
        self.z = [self.x.clone() for _ in range(self.n)]

    def direction(self, i, y, batch, k):
        u = 2 * self.x - self.z[i]
        return self.G(y, batch) + (y - u) / self.hp.s

    def server(self, cohort, Y):
        for i in cohort:
            self.z[i] = self.z[i] + 2 * (Y[i] - self.x)
        self.x = self.mean(dict(enumerate(self.z)))


class STEM(Loop):
    """A move along d, then K corrected directions, the last of them without a move.

    The k-th correction takes the batch of local step k, the last one that of step 0, which the first move left over.
    """

    def rate(self, t):
        return super().rate(t) if self.hp.kappa is None else self.hp.kappa / (self.hp.w + t) ** (1 / 3)

    def a(self):
        if self.hp.kappa is None or self.t == 0:
            return self.hp.a
        return min(1.0, self.hp.c * self.rate(self.t - 1) ** 2)  # a_{t+1} = c lr_t^2

    def before(self, cohort):
        if self.t == 0:
            self.d = self.mean({i: self.full(i, self.x) for i in cohort})
        self.d_i = dict.fromkeys(cohort, self.d)
        self.y_prev = {}

    def correct(self, i, y, batch):
        self.d_i[i] = self.G(y, batch) + (1 - self.a()) * (self.d_i[i] - self.G(self.y_prev[i], batch))

    def direction(self, i, y, batch, k):
        if k > 0:
            self.correct(i, y, batch)
        self.y_prev[i] = y
        return self.d_i[i]

    def server(self, cohort, Y):
        for i in cohort:
            self.correct(i, Y[i], self.batches(i)[0])
        super().server(cohort, Y)
        self.d = self.mean(self.d_i)


class FedSMOO(Loop):
    def start(self):
        self.h_i, self.mu_i, self.s = self.zeros(), self.zeros(), torch.zeros_like(self.x)

    def direction(self, i, y, batch, k):
        e = self.hp.rho * unit(self.G(y, batch) - self.mu_i[i] - self.s)
        self.mu_i[i] = self.mu_i[i] + e - self.s
        return self.G(y + e, batch) + self.hp.alpha * (y - self.x + self.h_i[i])

    def server(self, cohort, Y):
        for i in cohort:
            self.h_i[i] = self.h_i[i] + Y[i] - self.x
        self.x = self.mean(Y) + sum(self.h_i) / self.n
        self.s = self.hp.rho * unit(self.mean({i: self.mu_i[i] for i in cohort}))


class FedUp(Loop):
    def start(self):
        self.x_prev = self.x

    def direction(self, i, y, batch, k):
        stale = self.hp.alpha / self.rate(self.t) * (self.x_prev - self.x)
        return self.G(y, batch) + stale + self.hp.alpha * (y - self.x)

    def server(self, cohort, Y):
        before = self.x
        super().server(cohort, Y)
        self.x_prev = before


class FedSAM(Loop):
    def direction(self, i, y, batch, k):
        return self.sam(y, batch)


# --- what reviewers ask for beside the methods of the sources -------------------------------------------------------


class FedLC(Loop):
    """The softmax runs over the labels that the client has."""

    def direction(self, i, y, batch, k):
        inputs, labels = batch
        own = h.whole(self.fed, i)[1].tolist()
        held = sorted(set(own))
        margin = torch.tensor([self.hp.tau / own.count(c) ** 0.25 for c in held], dtype=torch.float64)

        def loss(net):
            logits = net(inputs)
            if self.hp.tau == 0:
                return F.cross_entropy(logits, labels)
            return F.cross_entropy(logits[:, held] - margin, torch.tensor([held.index(c) for c in labels.tolist()]))

        return gradient(self.net, y, loss) + self.run.weight_decay * y


class FedNTD(Loop):
    def direction(self, i, y, batch, k):
        inputs, labels = batch

        def others(logits):
            """Log-probabilities of the labels that are not the sample's own, a row for each sample."""
            rows = [torch.cat([row[:c], row[c + 1 :]]) for row, c in zip(logits, labels.tolist(), strict=True)]
            return (torch.stack(rows) / self.hp.tau).log_softmax(1)

        nn.utils.vector_to_parameters(self.x, self.net.parameters())
        with torch.no_grad():
            log_q = others(self.net(inputs))

        def loss(net):
            logits = net(inputs)
            kept = (log_q.exp() * (log_q - others(logits))).sum(1).mean()
            return F.cross_entropy(logits, labels) + self.hp.beta * kept

        return gradient(self.net, y, loss) + self.run.weight_decay * y


class FedAdagrad(Loop):
    def start(self):
        self.m, self.v = torch.zeros_like(self.x), torch.full_like(self.x, self.hp.tau**2)

    def second(self, square):
        return self.v + square

    def server(self, cohort, Y):
        update = self.mean(Y) - self.x
        self.m = self.hp.beta1 * self.m + (1 - self.hp.beta1) * update
        self.v = self.second(update * update)
        self.x = self.x + self.run.server_lr * self.m / (self.v.sqrt() + self.hp.tau)


class FedAdam(FedAdagrad):
    def second(self, square):
        return self.hp.beta2 * self.v + (1 - self.hp.beta2) * square


class FedYogi(FedAdagrad):
    def second(self, square):
        return torch.where(
            self.v > square, self.v - (1 - self.hp.beta2) * square, self.v + (1 - self.hp.beta2) * square
        )


class FedNova(Loop):
    """a_i entry by entry: gradient k of K weighs 1 + rho + ... + rho^(K-1-k) in the client's last iterate."""

    def server(self, cohort, Y):
        p, rho = self.weights(cohort), self.run.momentum
        norm = {i: sum(rho**j for k in range(self.K(i)) for j in range(self.K(i) - k)) for i in cohort}
        lr, tau_eff = self.rate(self.t), sum(p[i] * norm[i] for i in cohort)
        d = {i: (self.x - Y[i]) / (lr * norm[i]) for i in cohort}
        self.x = self.x - self.run.server_lr * lr * tau_eff * self.mean(d)


class FedExP(Loop):
    def server(self, cohort, Y):
        p, updates = self.weights(cohort), {i: Y[i] - self.x for i in cohort}
        mean = self.mean(updates)
        eta = sum(p[i] * float(updates[i] @ updates[i]) for i in cohort) / (2 * (float(mean @ mean) + self.hp.eps))
        self.x = self.x + self.run.server_lr * max(1.0, eta) * mean


class FedCM(Loop):
    def start(self):
        self.Delta = torch.zeros_like(self.x)

    def direction(self, i, y, batch, k):
        return self.hp.alpha * self.G(y, batch) + (1 - self.hp.alpha) * self.Delta

    def server(self, cohort, Y):
        self.Delta = self.mean({i: (self.x - Y[i]) / (self.K(i) * self.rate(self.t)) for i in cohort})
        super().server(cohort, Y)


class MoFedSAM(FedCM):
    def direction(self, i, y, batch, k):
        return self.hp.beta * self.sam(y, batch) + (1 - self.hp.beta) * self.Delta


class FedGamma(SCAFFOLD):
    def direction(self, i, y, batch, k):
        return self.sam(y, batch) - self.c_i[i] + self.c


class FedSpeed(Loop):
    def start(self):
        self.g_i = self.zeros()

    def direction(self, i, y, batch, k):
        first = self.G(y, batch)
        second = self.G(y + self.hp.rho * first, batch)
        merged = (1 - self.hp.alpha) * first + self.hp.alpha * second
        return merged - self.g_i[i] + (y - self.x) / self.hp.lam

    def server(self, cohort, Y):
        corrected = {}
        for i in cohort:
            self.g_i[i] = self.g_i[i] - (Y[i] - self.x) / self.hp.lam
            corrected[i] = Y[i] - self.hp.lam * self.g_i[i]
        super().server(cohort, corrected)


# --- section 4 --------------------------------------------------------------------------------------------------------


class DFedAvg(Loop):
    def start(self):
        self.X = [self.x.clone() for _ in range(self.n)]

    def receive(self, i):
        return self.X[i]

    def mixed(self, rows: list[Tensor]) -> list[Tensor]:
        W = fc.topology.mixing(self.hp.mixing, self.n, self.run.seed, self.t).dense().double()
        return [sum(float(W[i, j]) * rows[j] for j in range(self.n)) for i in range(self.n)]

    def server(self, cohort, Y):
        self.X = self.mixed([Y[i] for i in range(self.n)])
        self.x = sum(self.X) / self.n

    def models(self):
        return self.X


class DPSGD(DFedAvg):
    work = {"epochs": 1, "steps": 1, "walk": True}  # noqa: RUF012

    def server(self, cohort, Y):
        steps = [Y[i] - self.X[i] for i in range(self.n)]
        self.X = [row + step for row, step in zip(self.mixed(self.X), steps, strict=True)]
        self.x = sum(self.X) / self.n


class DFedAvgM(DFedAvg):
    def momentum(self):
        return self.hp.momentum


class DFedSAM(DFedAvg):
    direction = FedSAM.direction

    def server(self, cohort, Y):
        self.X = [Y[i] for i in range(self.n)]
        for _ in range(self.hp.gossip_steps):
            self.X = self.mixed(self.X)
        self.x = sum(self.X) / self.n


class DFedGAM(DFedAvg):
    def direction(self, i, y, batch, k):
        return getattr(self, self.hp.form)(y, batch)

    def literal(self, y, batch):
        g = self.G(y, batch)
        u = self.H(y, batch, g) / g.norm()
        return self.G(y + self.hp.rho * unit(u), batch)

    def gam(self, y, batch):
        g = self.G(y, batch)
        f = self.H(y, batch, g) / g.norm()
        a = y + self.hp.rho * unit(f)
        g_a = self.G(a, batch)
        return g + self.hp.alpha * self.hp.rho * self.H(a, batch, g_a) / g_a.norm()

    def accelerated(self, y, batch):
        hp = self.hp
        g0 = self.G(y, batch)
        g1 = self.G(y + hp.rho_inner * unit(g0), batch)
        a = y + hp.rho * unit(g1 - g0)
        g2 = self.G(a, batch)
        g3 = self.G(a + hp.rho_inner * unit(g2), batch)
        w = hp.beta1 * g1 + (1 - hp.beta1) * g3
        g = g0 + (1 - hp.beta0) * g2
        across = g - (g @ w) / (w @ w) * w
        return w - hp.gamma * across


class DSGT(DFedAvg):
    def start(self):
        super().start()
        self.c = self.zeros()

    def direction(self, i, y, batch, k):
        return self.G(y, batch) + self.c[i]

    def server(self, cohort, Y):
        z = [(self.X[i] - Y[i]) / (self.K(i) * self.rate(self.t)) for i in range(self.n)]
        self.c = [c + mixed - own for c, mixed, own in zip(self.c, self.mixed(z), z, strict=True)]
        super().server(cohort, Y)


class ExactDiffusion(DSGT):
    def server(self, cohort, Y):
        DFedAvg.server(self, cohort, Y)
        if self.hp.lazy:
            self.X = [(self.X[i] + Y[i]) / 2 for i in range(self.n)]
            self.x = sum(self.X) / self.n
        most = max(self.K(i) for i in range(self.n))
        self.c = [c + (y - x) / (most * self.rate(self.t)) for c, y, x in zip(self.c, Y.values(), self.X, strict=True)]


class QGDSGDm(DFedAvg):
    def start(self):
        super().start()
        self.m = self.zeros()

    def direction(self, i, y, batch, k):
        g = self.G(y, batch)
        heavy = self.hp.beta * self.m[i] + g
        return g + self.hp.beta * heavy if self.hp.nesterov else heavy

    def server(self, cohort, Y):
        before, mu = self.X, self.hp.beta if self.hp.mu is None else self.hp.mu
        super().server(cohort, Y)
        for i in range(self.n):
            moved = (before[i] - self.X[i]) / (self.K(i) * self.rate(self.t))
            self.m[i] = mu * self.m[i] + (1 - mu) * moved


# --- section 5 --------------------------------------------------------------------------------------------------------


def entries_of_layers(net: nn.Module) -> list[int]:
    """Entries of each layer with weights, and of the norm behind it."""
    layers: list[int] = []
    for module in net.modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if isinstance(module, NORMS):
            layers[-1] += own
        elif own:
            layers.append(own)
    return layers


class FedBN(Loop):
    """Entries of a client's own; in x they are the mean of the cohort's, for evaluation."""

    def start(self):
        self.own, self.local_own = self.owned(), [self.x.clone() for _ in range(self.n)]

    def owned(self) -> Tensor:
        modules = [(m, p) for m in self.net.modules() for p in m.parameters(recurse=False)]
        return torch.cat([torch.full((p.numel(),), isinstance(m, NORMS)) for m, p in modules])

    def receive(self, i):
        return torch.where(self.own, self.local_own[i], self.x)

    def server(self, cohort, Y):
        new = self.mean({i: Y[i] for i in cohort})
        self.x = torch.where(self.own, new, self.x + self.run.server_lr * (new - self.x))
        for i in cohort:
            self.local_own[i] = Y[i]

    def models(self):
        return [self.receive(i) for i in range(self.n)]


class FixBN(Loop):
    """Averaged parameters theta, and beside them the statistics S, by which every norm normalises once they are set."""

    def start(self):
        self.theta, self.S = self.x, None
        self.norms = [m for m in self.net.modules() if isinstance(m, NORMS)]

    def round(self, cohort):
        self.x = self.theta
        super().round(cohort)
        self.theta = self.x
        self.x = self.whole()

    def server(self, cohort, Y):
        super().server(cohort, Y)
        if self.t + 1 == self.hp.exploration:
            found = {i: self.statistics(i, Y[i]) for i in cohort}
            self.S = self.mean(found)
            for norm, (mean, var) in zip(self.norms, self.by_norm(), strict=True):
                norm.eval()  # in the gradients of all later rounds
                norm.running_mean, norm.running_var = mean, var

    def statistics(self, i, y):
        """Mean and variance (with n - 1) of each channel of what enters each norm, over the client's data."""
        entered, x = [], h.whole(self.fed, i)[0]
        hooks = [norm.register_forward_pre_hook(lambda _, given: entered.append(given[0])) for norm in self.norms]
        nn.utils.vector_to_parameters(y, self.net.parameters())
        with torch.no_grad():
            self.net(x)
        for hook in hooks:
            hook.remove()
        by_channel = [x.transpose(0, 1).flatten(1) for x in entered]
        return torch.cat([v for x in by_channel for v in (x.mean(1), x.var(1))])

    def by_norm(self):
        sizes = [norm.num_features for norm in self.norms]
        parts = self.S.split([c for size in sizes for c in (size, size)])
        return list(zip(parts[::2], parts[1::2], strict=True))

    def whole(self):
        """theta with the statistics behind the parameters of each norm; means of 0 and variances of -1 before."""
        unset = [(torch.zeros(norm.num_features), -torch.ones(norm.num_features)) for norm in self.norms]
        statistics = dict(zip(self.norms, unset if self.S is None else self.by_norm(), strict=True))
        pieces, at = [], 0
        for module in self.net.modules():
            for p in module.parameters(recurse=False):
                pieces.append(self.theta[at : at + p.numel()])
                at += p.numel()
            pieces += statistics.get(module, ())
        return torch.cat(pieces)


class FedPer(FedBN):
    def owned(self):
        layers = entries_of_layers(self.net)
        return torch.arange(len(self.x)) >= sum(layers[: len(layers) - self.hp.layers])


class FedBABU(Loop):
    def direction(self, i, y, batch, k):
        head = FedPer.owned(self)
        return torch.where(head, 0.0, self.G(y, batch))


class FedRep(FedPer):
    def direction(self, i, y, batch, k):
        head_first = k < math.ceil(round(self.hp.share * self.K(i), 9))
        return torch.where(self.own == head_first, self.G(y, batch), 0.0)


class FedALA(Loop):
    def start(self):
        layers = entries_of_layers(self.net)
        self.top = len(self.x) - sum(layers[len(layers) - self.hp.layers :])
        self.theta, self.W, self.visits = {}, {}, [0] * self.n

    def receive(self, i):
        if not self.visits[i]:
            return self.x
        theta, W = self.theta[i][self.top :], self.W.get(i, torch.ones(len(self.x) - self.top).double())
        apart = self.x[self.top :] - theta
        if not apart.any():
            return self.x

        def start():
            return torch.cat([self.x[: self.top], theta + apart * W])

        last_losses: list[float] = []
        while len(last_losses) < 100:
            for inputs, labels in self.share(i, len(last_losses)):
                seen = []

                def loss(net, inputs=inputs, labels=labels, seen=seen):
                    seen.append(F.cross_entropy(net(inputs), labels))
                    return seen[0]

                W = W - self.hp.lr * gradient(self.net, start(), loss)[self.top :] * apart
                if self.hp.clip:
                    W = W.clamp(0, 1)
            last_losses.append(seen[0].item())
            settled = len(last_losses) > 10 and np.std(last_losses[-10:]) < 0.1
            if self.visits[i] > 1 or settled:  # the second visit until it has settled, later ones for one epoch
                break
        self.W[i] = W
        return start()

    def share(self, i, epoch):
        """The mini-batches of one epoch over a random share of the client's data."""
        work = {"share": self.hp.sample, "epoch": epoch, "batch_size": self.run.batch_size}
        return h.batches(self.fed, self.run.seed, self.t, i, **work)

    def server(self, cohort, Y):
        super().server(cohort, Y)
        for i in cohort:
            self.theta[i] = Y[i]
            self.visits[i] += 1

    def models(self):
        return [self.theta.get(i, self.fed.x0) for i in range(self.n)]


class LocalOnly(Loop):
    def start(self):
        self.x_i = [self.x for _ in range(self.n)]

    def receive(self, i):
        return self.x_i[i]

    def server(self, cohort, Y):
        for i in cohort:
            self.x_i[i] = Y[i]
        self.x = sum(self.x_i) / self.n

    def models(self):
        return self.x_i


class Ditto(Loop):
    """The personal models are trained after the others, on the same batches, by torch's SGD."""

    def start(self):
        self.v = [self.x for _ in range(self.n)]

    def server(self, cohort, Y):
        for i in cohort:
            v = nn.Parameter(self.v[i].clone())
            sgd = torch.optim.SGD([v], lr=self.rate(self.t), momentum=self.momentum())
            for batch in self.batches(i):
                v.grad = self.G(v.detach(), batch) + self.hp.lam * (v.detach() - self.x)
                if self.run.clip is not None and v.grad.norm() > self.run.clip:
                    v.grad *= self.run.clip / v.grad.norm()
                sgd.step()
            self.v[i] = v.detach()
        super().server(cohort, Y)

    def models(self):
        return self.v


class pFedMe(Loop):
    def start(self):
        self.theta = [self.x for _ in range(self.n)]

    def direction(self, i, y, batch, k):
        theta = y.clone()
        for _ in range(self.hp.inner_steps):
            theta = theta - self.hp.inner_lr * (self.G(theta, batch) + self.hp.lam * (theta - y))
        self.theta[i] = theta
        return self.hp.lam * (y - theta)

    def server(self, cohort, Y):
        beta = self.run.server_lr
        self.x = (1 - beta) * self.x + beta * self.mean(Y)

    def models(self):
        return self.theta


class APFL(Loop):
    """A step of y and one of v, both from the values before the step."""

    def start(self):
        self.alpha, self.v = [self.hp.alpha] * self.n, [self.x for _ in range(self.n)]

    def direction(self, i, y, batch, k):
        lr, alpha, v = self.rate(self.t), self.alpha[i], self.v[i]
        g = self.G(alpha * v + (1 - alpha) * y, batch)
        self.v[i] = v - lr * alpha * g
        if self.hp.adaptive and k == 0:
            self.alpha[i] = min(1.0, max(0.0, alpha - lr * float((v - y) @ g)))
        return self.G(y, batch)

    def models(self):
        return [alpha * v + (1 - alpha) * self.x for alpha, v in zip(self.alpha, self.v, strict=True)]


class PerFedAvg(Loop):
    def start(self):
        self.theta = [self.x for _ in range(self.n)]

    def before(self, cohort):
        for i in cohort:
            self.theta[i] = self.x - self.hp.alpha * self.full(i, self.x)

    def direction(self, i, y, batch, k):
        g = self.G(y - self.hp.alpha * self.G(y, batch), batch)
        return g if self.hp.first_order else g - self.hp.alpha * self.H(y, batch, g)

    def models(self):
        return self.theta


class Central(Loop):
    """One client with all samples in the order of the data set; which of them make a batch is the package's plan."""

    def start(self):
        self.fed = fc.Central().on(self.fed)

    def server(self, cohort, Y):
        self.x = self.x + self.run.server_lr * (Y[0] - self.x)


# --- section 6: sub-models as lists of kept units -------------------------------------------------------------------


class Divide(nn.Module):
    """HeteroFL's scaler in training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return x / self.rate


def narrow(net: nn.Sequential, keep: list[list[int]], rate: float = 1.0) -> tuple[nn.Sequential, Tensor]:
    """The network with these units of its hidden layers alone, and the places of its entries in the whole vector."""
    weighted = [layer for layer in net if isinstance(layer, nn.Linear | nn.Conv2d)]
    units, channels, at = None, 0, 0
    layers, places = [], []
    for layer in net:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan_out, fan_in = layer.weight.shape[:2]
            columns = list(range(fan_in))
            if units is not None:  # behind a Flatten a channel owns several columns
                block = fan_in // channels
                columns = [u * block + b for u in units for b in range(block)]
            number = weighted.index(layer)
            units, channels = keep[number] if layer is not weighted[-1] else list(range(fan_out)), fan_out
            kernel = layer.weight[0, 0].numel()
            places += [at + (o * fan_in + c) * kernel + q for o in units for c in columns for q in range(kernel)]
            at += layer.weight.numel()
            if layer.bias is not None:
                places += [at + o for o in units]
                at += fan_out
            if isinstance(layer, nn.Linear):
                small = nn.Linear(len(columns), len(units), bias=layer.bias is not None)
            else:
                same = {"stride": layer.stride, "padding": layer.padding, "bias": layer.bias is not None}
                small = nn.Conv2d(len(columns), len(units), layer.kernel_size, **same)
        elif isinstance(layer, NORMS):
            small = type(layer)(len(units), eps=layer.eps)
            places += [at + start + u for start in (0, channels) for u in units]
            at += 2 * channels
        elif isinstance(layer, fc.models.Scaler):
            small = Divide(rate)
        else:
            small = copy.deepcopy(layer)
        layers.append(small)
    return nn.Sequential(*layers).double().train(), torch.tensor(places)


def masked_cross_entropy(logits: Tensor, labels: Tensor, owned: list[int], reading: str) -> Tensor:
    """Cross-entropy with the logits of foreign classes at 0, or out of the sum."""
    if reading == "all":
        return F.cross_entropy(logits, labels)
    fill = torch.full_like(logits, 0.0 if reading == "zero" else -math.inf)
    fill[:, owned] = logits[:, owned]
    return F.cross_entropy(fill, labels)


class HeteroFL(Loop):
    scaled = True

    def start(self):
        self.widths = [m.weight.shape[0] for m in self.net if isinstance(m, nn.Linear | nn.Conv2d)][:-1]
        self.labels_of = [sorted(set(h.whole(self.fed, i)[1].tolist())) for i in range(self.n)]

    def capacities(self) -> list[float]:
        """The clients' ratios: dealt once in exact proportion to the shares, or drawn by chance in every round."""
        pairs, seed = sorted(self.hp.capacities, reverse=True), self.run.seed
        if self.hp.mode == "dynamic":
            ends = np.cumsum([share for _, share in pairs])
            u = [rng.word(seed, rng.CAPACITY, self.t, i) / 2**64 for i in range(self.n)]
            return [pairs[min(int((ends <= v).sum()), len(pairs) - 1)][0] for v in u]
        counts = [math.floor(share * self.n + 1e-9) for _, share in pairs]
        remainders = [share * self.n - c for (_, share), c in zip(pairs, counts, strict=True)]
        for k in sorted(range(len(pairs)), key=lambda k: -remainders[k])[: self.n - sum(counts)]:
            counts[k] += 1
        deck = [ratio for (ratio, _), count in zip(pairs, counts, strict=True) for _ in range(count)]
        order = sorted(range(self.n), key=lambda i: rng.word(seed, rng.CAPACITY, i))
        return [deck[order.index(i)] for i in range(self.n)]

    def k(self, ratio: float) -> list[int]:
        return [math.ceil(round(ratio * w, 9)) for w in self.widths]

    def keep(self, i: int, ratio: float) -> list[list[int]]:
        return [list(range(k)) for k in self.k(ratio)]

    def best(self, scores: list[Sequence[float]], ratio: float) -> list[list[int]]:
        """The units of highest score, ties to the lower index."""
        ranked = [sorted(range(len(s)), key=lambda u, s=s: (-float(s[u]), u)) for s in scores]
        return [sorted(units[:k]) for units, k in zip(ranked, self.k(ratio), strict=True)]

    def noise(self, i: int) -> list[np.ndarray]:
        """The seed's uniform numbers for this round, client, layer and unit."""
        words = [rng.words(self.run.seed, rng.MASK, self.t, i, s, np.arange(w)) for s, w in enumerate(self.widths)]
        return [((w >> np.uint64(11)).astype(float) + 0.5) / 2.0**53 for w in words]

    def before(self, cohort):
        self.ratio = self.capacities()
        self.kept = {i: self.keep(i, self.ratio[i]) for i in cohort}
        rates = {i: self.ratio[i] if self.scaled else 1.0 for i in cohort}
        self.small = {i: narrow(self.net, self.kept[i], rates[i]) for i in cohort}

    def receive(self, i):
        return self.x[self.small[i][1]]

    def direction(self, i, y, batch, k):
        inputs, labels = batch
        loss = lambda net: masked_cross_entropy(net(inputs), labels, self.labels_of[i], self.hp.labels)  # noqa: E731
        return gradient(self.small[i][0], y, loss) + self.run.weight_decay * y

    def classifiers(self) -> list[tuple[int, int, int]]:
        """Start, rows and columns of the classifier's weight; its bias follows."""
        rows, columns = [m for m in self.net if isinstance(m, nn.Linear)][-1].weight.shape
        return [(len(self.x) - rows * (columns + 1), rows, columns)]

    def foreign(self, i: int) -> set[int]:
        """The entries of the classifier's rows for labels that the client does not have, where the method masks."""
        if self.hp.labels == "all":
            return set()
        entries: set[int] = set()
        for start, rows, columns in self.classifiers():
            for label in set(range(rows)) - set(self.labels_of[i]):
                entries |= {start + label * columns + c for c in range(columns)} | {start + rows * columns + label}
        return entries

    def combined(self, trained: dict[int, dict[int, float]]) -> Tensor:
        """Entry by entry the mean over the clients that trained it; as before where nobody did."""
        x, p = self.x.clone(), self.weights(list(trained))
        for j in range(len(x)):
            owners = [i for i in trained if j in trained[i]]
            if owners:
                mean = sum(p[i] * trained[i][j] for i in owners) / sum(p[i] for i in owners)
                x[j] += self.run.server_lr * (mean - x[j])
        return x

    def server(self, cohort, Y):
        trained = {}
        for i in cohort:
            pairs = dict(zip(self.small[i][1].tolist(), Y[i].tolist(), strict=True))
            trained[i] = {j: v for j, v in pairs.items() if j not in self.foreign(i)}
        self.x = self.combined(trained)


class FederatedDropout(HeteroFL):
    def keep(self, i, ratio):
        return self.best(self.noise(i), ratio)


class FedRolex(HeteroFL):
    def keep(self, i, ratio):
        return [sorted((self.t + j) % w for j in range(k)) for w, k in zip(self.widths, self.k(ratio), strict=True)]


def trace(net: nn.Sequential, inputs: Tensor) -> tuple[Tensor, list[tuple[nn.Module, Tensor, Tensor]]]:
    """Logits, and every layer with what enters and what leaves it."""
    z, seen = inputs, []
    for layer in net:
        before, z = z, layer(z)
        seen.append((layer, before, z))
    return z, seen


class FedDSE(HeteroFL):
    def keep(self, i, ratio):
        T, noise = self.hp.temperature, self.noise(i)
        if math.inf == T:
            return self.best(noise, ratio)
        nn.utils.vector_to_parameters(self.x, self.net.parameters())
        with torch.no_grad():
            _, seen = trace(self.net, self.sample(i))
        active = [after for layer, _, after in seen if isinstance(layer, nn.ReLU)]
        scores = [a.transpose(0, 1).flatten(1).mean(1).numpy() for a in active]
        if self.hp.standardise:
            scores = [(s - s.mean()) / s.std(ddof=1) for s in scores]
        if T > 0:
            scores = [s / T - np.log(-np.log(u)) for s, u in zip(scores, noise, strict=True)]
        return self.best(scores, ratio)

    def sample(self, i):
        if self.hp.budget is None:
            return h.whole(self.fed, i)[0]
        rows, key = np.asarray(self.fed.index[i]), rng.word(self.run.seed, rng.RESAMPLE, self.t)
        order = np.argsort(rng.words(key, i, np.arange(len(rows))))
        return h.samples(self.fed, rows[order[: self.hp.budget]])[0]


class FedGSE(HeteroFL):
    """The default score of the authors' public code (section 0), and the printed one, eq. (4-3), with its variants."""

    def start(self):
        super().start()
        self.last = {}  # the client's last upload: units and entries

    def keep(self, i, ratio):
        inputs, truth = h.public(self.fed)
        owned, code = self.labels_of[i], self.hp.scoring == "public-code"
        if i in self.last:
            units, values = self.last[i]
            net = narrow(self.net, units)[0]
            nn.utils.vector_to_parameters(values, net.parameters())
        else:
            net = self.net
            nn.utils.vector_to_parameters(self.x, net.parameters())
        with torch.no_grad():
            logits = net(inputs)
        guess = torch.tensor(owned)[logits[:, owned].argmax(1)] if code else logits.argmax(1)
        usable, labels = list(range(len(truth))), guess
        if self.hp.variant == "SPL":  # the public code chooses classes, the study samples
            alike = [int(truth[s]) in owned if code else bool(guess[s] == truth[s]) for s in usable]
            usable, labels = [s for s in usable if alike[s]] or usable, truth
        draw = rng.words(self.run.seed, rng.RESAMPLE, self.t, i, np.arange(len(truth)))
        picked = sorted(usable, key=lambda s: draw[s])[: self.hp.similar]
        return self.best(self.scores(inputs[picked], labels[picked], owned), ratio)

    def scores(self, inputs, labels, owned):
        nn.utils.vector_to_parameters(self.x, self.net.parameters())
        logits, seen = trace(self.net, inputs)
        if self.hp.scoring == "public-code":
            values = [after for layer, _, after in seen if isinstance(layer, nn.Linear | nn.Conv2d)][:-1]
            loss = masked_cross_entropy(logits, labels, owned, "zero")
        else:
            before = self.hp.scoring.endswith("-before")
            values = [into if before else out for layer, into, out in seen if isinstance(layer, nn.ReLU)]
            loss = F.cross_entropy(logits, labels)
        D = [d.flatten(2) if d.dim() > 2 else d[:, :, None] for d in torch.autograd.grad(loss, values)]
        if self.hp.scoring.startswith("printed"):
            return [d.sum(0).abs().sum(1) for d in D]  # samples may cancel
        return [d.abs().sum((0, 2)) for d in D]

    def server(self, cohort, Y):
        super().server(cohort, Y)
        for i in cohort:
            self.last[i] = self.kept[i], Y[i]


class FjORD(HeteroFL):
    """Local models are whole vectors here: the width changes from batch to batch."""

    def before(self, cohort):
        self.ratio = self.capacities()
        self.levels = sorted(ratio for ratio, _ in self.hp.capacities)
        self.nets = {c: narrow(self.net, [list(range(k)) for k in self.k(c)]) for c in self.levels}

    def receive(self, i):
        return self.x

    def direction(self, i, y, batch, k):
        inputs, labels = batch
        allowed = [c for c in self.levels if c <= self.ratio[i]]
        p = allowed[rng.word(self.run.seed, rng.MASK, self.t, i, k) % len(allowed)]
        widest = self.ratio[i] if self.hp.distil else p
        net, at = self.nets[widest]
        v = torch.zeros_like(y)
        loss = lambda net: masked_cross_entropy(net(inputs), labels, self.labels_of[i], self.hp.labels)  # noqa: E731
        v[at] += gradient(net, y[at], loss) + self.run.weight_decay * y[at]
        if self.hp.distil and p < widest:
            with torch.no_grad():
                target = net(inputs).softmax(1)
            net, at = self.nets[p]
            v[at] += gradient(net, y[at], lambda net: F.cross_entropy(net(inputs), target))
        return v

    def server(self, cohort, Y):
        trained = {}
        for i in cohort:
            places = self.nets[self.ratio[i]][1].tolist()
            trained[i] = {j: float(Y[i][j]) for j in places if j not in self.foreign(i)}
        self.x = self.combined(trained)


class DepthFL(HeteroFL):
    """The network is one with heads; a client of depth D has the first D stages and heads, h_i on their entries."""

    def start(self):
        self.labels_of = [sorted(set(h.whole(self.fed, i)[1].tolist())) for i in range(self.n)]
        self.h_i, self.h = self.zeros(), torch.zeros_like(self.x)

    def before(self, cohort):
        S = len(self.net.stages)
        self.depth = {i: math.ceil(round(self.capacities()[i] * S, 9)) for i in cohort}
        stage = [int(name.split(".")[1]) for name, p in self.net.named_parameters() for _ in range(p.numel())]
        self.owned = {i: torch.tensor(stage) < self.depth[i] for i in cohort}

    def receive(self, i):
        return self.x

    def direction(self, i, y, batch, k):
        inputs, labels = batch
        D, strength = self.depth[i], math.exp(-5 * (1 - min(self.t, self.hp.ramp) / self.hp.ramp) ** 2)

        def loss(net):
            z, logits = inputs, []
            for stage, head in zip(net.stages[:D], net.heads[:D], strict=True):
                z = stage(z)
                logits.append(head(z))
            total = sum(masked_cross_entropy(out, labels, self.labels_of[i], self.hp.labels) for out in logits)
            for j in range(D if self.hp.distil else 0):
                for teacher in (t for t in range(D) if t != j):
                    p, log_q = logits[teacher].softmax(1).detach(), logits[j].log_softmax(1)
                    total = total + strength * (p * (p.log() - log_q)).sum(1).mean() / (D - 1)
            return total

        v = gradient(self.net, y, loss) + self.run.weight_decay * y + self.hp.alpha * (y - self.x + self.h_i[i])
        return torch.where(self.owned[i], v, 0.0)

    def classifiers(self):
        found, at = [], 0
        for name, p in self.net.named_parameters():
            if name.startswith("heads.") and p.dim() == 2:
                found.append((at, *p.shape))
            at += p.numel()
        return found

    def server(self, cohort, Y):
        trained = {}
        for i in cohort:
            foreign = self.foreign(i)
            places = [j for j in self.owned[i].nonzero().flatten().tolist() if j not in foreign]
            trained[i] = {j: float(Y[i][j]) for j in places}
            self.h_i[i][places] += (Y[i] - self.x)[places]
        x = self.combined(trained)
        if self.hp.alpha:
            somebody = sorted(set().union(*trained.values()))
            x[somebody] += (sum(self.h_i) / self.n)[somebody]
        self.x = x


LOOPS: dict[type[fc.Method], type[Loop]] = {m: globals()[m.__name__] for m in fc.ALL if m.__name__ in globals()}


def deviation(method: fc.Method, fed: fc.Federation, model: Callable, rounds: int, **options) -> list[float]:
    """The largest |fedcore - reference| / max(1, |reference|) of the server's model after each round, then of each
    client's model at the end, where the clients use models of their own."""
    history, seen = h.watched(method, fed, rounds=rounds, **options)
    path = [*(r.x for r, _ in seen), history.params]
    options.pop("cohort", None)
    loop, gaps = LOOPS[type(method)](method, fed, model, **options), []
    for t, cohort in enumerate(history.cohorts):
        loop.round(cohort)
        gaps.append(gap(path[t + 1], loop.x))
    personal = method.personal(history.state, fed.layout)
    if personal is not None:
        gaps += [gap(*pair) for pair in zip(personal, loop.models(), strict=True)]
    return gaps


def gap(a: Tensor, b: Tensor) -> float:
    return float(((a - b).abs() / b.abs().clamp_min(1)).max())
