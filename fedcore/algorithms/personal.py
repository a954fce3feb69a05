"""Methods for clients whose inputs differ: FedBN and FedALA, with personal models, and FixBN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..models import FixableBatchNorm, Layout, with_fixable_norms
from ..support import checks, memory
from ..support.checks import Count, CountFromZero, NonNegative, PositiveFraction
from .method import Cost, Method, Round, on_host, share

LOOK_BACK, SPREAD, EPOCHS = 10, 0.1, 100  # FedALA: converged once the last 10 epochs' losses have std < 0.1


@dataclass(frozen=True)
class FedBN(Method):
    """Batch-norm parameters stay with their client, all others are averaged (Li et al. 2021).

    y_i starts from x, with the client's own batch-norm entries, which are found by the type of the modules.
    `bn_i [n, d]` holds them; its other entries are not used.  d - d_BN numbers are sent each way.  For a model without
    batch norm the method is FedAvg, bit for bit.

    Batch-norm statistics are those of the client's own data, in training and in evaluation, and are never sent.  The
    method has no global batch norm: in `x` these entries are the mean over the cohort, which no client receives.  The
    server's accuracy is therefore that of averaged batch-norm parameters; the method's result are the clients' models.

    Use it where clients' inputs differ (scanners, cameras) and the network has batch norm; it sends less than FedAvg.
    Not where one model must serve clients that nobody has trained on.
    """

    client_state = ("bn_i",)

    def on(self, fed: Any) -> Any:
        """The federation itself; a UserWarning where its model has no batch norm to keep."""
        if fed.layout is not None and not fed.layout.batch_norm():
            checks.warn("FedBN on a model without batch norm is FedAvg; use a model with batch norm")
        return fed

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"bn_i": x}

    def prepare(self, r: Round) -> Round:
        return r.extended(server={"bn": self.mask(r.layout, r.x)})

    def mask(self, layout: Layout | None, x: Tensor) -> Tensor:
        """True where the flat vector `x [d]` holds batch-norm parameters."""
        none = torch.zeros_like(x, dtype=torch.bool)
        return none if layout is None else layout.mask(layout.batch_norm()).to(x.device)

    def broadcast(self, r: Round) -> Tensor:
        return torch.where(r.bn, r.bn_i, r.x)

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        x = r.x + r.server_lr * r.mean(y - r.x)
        return {"x": torch.where(r.bn, r.mean(y), x), "bn_i": torch.where(r.bn, y, 0)}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return merged(self.mask(layout, state["x"]), state["bn_i"], state["x"])

    def cost(self, layout: Layout | None = None) -> Cost:
        sent = 1 - share(layout, self.mask(layout, torch.zeros(layout.d if layout else 1)))
        return Cost.of(layout, down=sent, up=sent)


@dataclass(frozen=True)
class FixBN(Method):
    """FedAvg whose batch norm has fixed statistics after the first rounds (Zhong et al. 2023).

    In the first `exploration` rounds, a local step normalises by the mean and variance of its mini-batch.  At the end
    of the last of them, each client sends the statistics (mean_i, var_i) of its own model y_i on its training data, and
    the server averages them: S = sum_i p_i (mean_i, var_i).  In all later rounds, which are the paper's calibration,
    every client normalises by S, in training as in evaluation.  Scale and shift are trained throughout.  For a
    model without batch norm, and in a run of fewer than `exploration` rounds, the method is FedAvg.

    Two departures: the paper's (mean_i, var_i) is the running average over the client's mini-batches, ours is of all
    its data, by one more pass in one round; and before calibration, `evaluate` uses the statistics of all training data
    under x, as for every method.  S leaves out how far the means of the clients are apart, as the paper's does.

    The model has 2 more numbers for each channel of a batch norm, which are not trained; `method.on(fed)` is the
    federation with this model.  exploration: the paper's T*; the default 10 is ours.
    Raises ValueError for exploration < 1, and for kinds of batch norm other than `nn.BatchNorm1d` and `nn.BatchNorm2d`.

    Use it where one model with batch norm must serve clients whose labels differ much. Not where each client may keep
    its own batch norm (FedBN), or where group norm does as well.
    """

    exploration: Count = 10

    def on(self, fed: Any) -> Any:
        """The federation with batch norms whose statistics can be fixed; a UserWarning where its model has none, and a
        ValueError where it has a batch norm other than `nn.BatchNorm1d` and `nn.BatchNorm2d`."""
        if fed.layout is None or fed.layout.statistics():
            return fed
        if not fed.engine.norms:
            checks.warn("FixBN on a model without batch norm is FedAvg; use a model with batch norm")
            return fed
        changed = fed.with_model(with_fixable_norms)
        if left := [type(norm).__name__ for norm in changed.engine.norms if not isinstance(norm, FixableBatchNorm)]:
            raise ValueError(f"FixBN cannot fix the statistics of {left[0]}; use nn.BatchNorm1d or nn.BatchNorm2d")
        return changed

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        x = r.x + r.server_lr * r.mean(y - r.x)
        statistics = r.layout.statistics() if r.layout else []
        if r.t != self.exploration - 1 or not statistics:
            return {"x": x}
        S = r.mean(r.with_statistics(y))
        return {"x": torch.where(r.layout.mask(statistics).to(x.device), S, x)}

    def cost(self, layout: Layout | None = None) -> Cost:
        note = "once, 2 numbers a channel each way, and a forward pass over the local data"
        return Cost.of(layout, note=note)


def merged(mask: Tensor, own: Tensor, x: Tensor) -> Tensor:
    """The clients' models `[n, d]`: `own [n, d]` where `mask [d]` is true, else the server's `x [d]`.

    MemoryError where there is no room for them beside the state.
    """
    what = f"the models of {len(own):,} clients with {len(x):,} parameters each, to be evaluated,"
    memory.check(own.nbytes, own.device, what, "personal=False, or fewer clients")
    return torch.where(mask.to(own.device), own, x.to(own.device))


@dataclass(frozen=True)
class FedALA(Method):
    """Local training starts between the client's last model and the server's (Zhang et al. 2023).

    In the letters of the feature-shift study (Zhao and Chen 2024, eqs. 6-8), theta is the server's model.
    Lower layers: hat = theta.  Top `layers` layers: hat = theta_i + (theta - theta_i) * W_i, with theta_i the
    client's last local model and W_i in [0, 1], at first 1, learnt on mini-batches of a share of the local data:
    W <- clip(W - lr grad L(hat) * (theta - theta_i)).  A client's first round skips this (theta_i = theta), its second
    repeats epochs until the standard deviation of the last 10 epochs' losses is below 0.1 (at most 100 epochs; an
    epoch's loss is its last mini-batch's), each later one takes one epoch.  Then local SGD from hat, and the mean.

    layers: a layer is a weight with its bias and the norm behind it, in the order of the forward pass.  The default 1
    is 2 in the official code, which counts tensors (the last layer's weight and bias); the study says 5, which are all
    layers but the first of FedBN's network.  0 is FedAvg, bit for bit.  sample: share of the local data, drawn anew
    each round, at least one sample.  lr: 1.0 in both sources; without weight decay.  clip=False is the study's eq. 8 as
    printed: W may leave [0, 1], and diverges where lr * curvature * (theta - theta_i)^2 > 2.
    Raises ValueError for more layers than the model has, for top layers that have a tensor of a lower layer, for
    sample outside (0, 1], lr < 0.

    Use it where each client wants a model of its own and returns often. Not where a common model is wanted or
    clients cannot keep a model.
    """

    layers: CountFromZero = 1
    sample: PositiveFraction = 0.8
    lr: NonNegative = 1.0
    clip: bool = True
    client_state = ("theta_i", "W_i")

    def client_start(self, x: Tensor) -> dict[str, Tensor]:
        return {"theta_i": x, "W_i": torch.ones_like(x)}

    def prepare(self, r: Round) -> Round:
        W, hat = r.W_i.clone(), r.x.expand_as(r.W_i).clone()
        top = self.last(r.layout, len(r.x))
        if self.layers and r.visits.any():
            self.learn(r, top, W, hat)
        return r.extended(rows={"W": W, "hat": hat})

    def last(self, layout: Layout | None, d: int) -> slice | Tensor:
        """The position of the top layers in the flat vector; a quadratic is one layer."""
        count = len(layout.layers()) if layout else 1
        if self.layers > count:
            raise ValueError(f"layers={self.layers} but the model has {count} weight layers; use layers<={count}")
        return layout.last(self.layers) if layout else slice(0 if self.layers else d, None)

    def learn(self, r: Round, top: slice | Tensor, W: Tensor, hat: Tensor) -> None:
        """Learn the top columns of `W [m, d]` in place, and write the start of local training to `hat [m, d]`."""
        known, second = (torch.as_tensor(v, device=W.device)[:, None] for v in (r.visits > 0, r.visits == 1))
        theta_i = torch.where(known, r.theta_i, r.x)[:, top]
        D = r.x[top] - theta_i  # 0 in a client's first round
        learning, losses = torch.ones_like(second), []
        for epoch in range(EPOCHS if (r.visits == 1).any() else 1):
            steps, gradient = r.share(self.sample, epoch)
            last = W.new_zeros(len(W))
            for k in range(int(steps.max())):
                hat[:, top] = theta_i + D * W[:, top]
                g, loss = gradient(hat, k)
                W[:, top] -= learning * (self.lr * g[:, top] * D)
                if self.clip:
                    W[:, top] = W[:, top].clamp(0, 1)
                last = torch.where(torch.as_tensor(steps > k, device=W.device), loss, last)
            losses.append(last)
            learning = learning & second  # the others take one epoch
            if len(losses) > LOOK_BACK:
                learning &= (torch.stack(losses[-LOOK_BACK:]).std(0, correction=0) >= SPREAD)[:, None]
                if not on_host(learning.any()):
                    break
        hat[:, top] = torch.where(D == 0, r.x[top], theta_i + D * W[:, top])

    def broadcast(self, r: Round) -> Tensor:
        return r.hat

    def aggregate(self, r: Round, y: Tensor) -> dict[str, Tensor]:
        return {"x": r.x + r.server_lr * r.mean(y - r.x), "theta_i": y, "W_i": r.W}

    def personal(self, state: Mapping[str, Tensor], layout: Layout | None) -> Tensor:
        return state["theta_i"]

    def cost(self, layout: Layout | None = None) -> Cost:
        if not self.layers:
            return Cost.of(layout)
        note = f"0 in a client's first round, {LOOK_BACK + 1} to {EPOCHS} epochs over the share in its second"
        return Cost.of(layout, full_gradients=self.sample, note=note)
