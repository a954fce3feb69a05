"""Methods that change the local loss at the logits, for clients that lack labels: FedLC, FedNTD."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine import Loss
from ..models import Layout
from ..support.checks import NonNegative, Positive
from .method import Cost, Gradient, Method, Round

FAR = 1e6  # a margin, and a negative logit, whose exponential is 0: unlike infinity it times 0 is 0


@dataclass(frozen=True)
class FedLC(Method):
    """Logit calibration (Zhang et al. 2022): local SGD on cross-entropy of f_c(x) - tau n_ic^(-1/4).

    f_c is the logit of label c, and n_ic is how many samples of it client i has: rare labels get a larger margin.  A
    label that the client lacks has an infinite margin, so it leaves the client's softmax, and its logit is not pushed
    down; with tau towards 0 this is all that remains, which is the restricted softmax of FedRS (Li and Zhan 2021) with
    its alpha towards minus infinity, where that logit is positive.  tau = 0 itself is FedAvg.  The paper prints the
    softmax's denominator without the sample's own label, so that its loss is not bounded below; here, as in public
    codes, the label is in it.

    tau: default 1 (ours; the paper tunes it).  Raises ValueError for tau < 0.

    Use it in classification where clients lack labels. Not where every client has all labels in equal numbers: it
    then changes nothing but the margin.
    """

    tau: NonNegative = 1.0

    def prepare(self, r: Round) -> Round:
        if not self.tau:
            return r
        counts = r.label_counts()
        margin = torch.where(counts > 0, self.tau * counts.clamp_min(1).to(r.x.dtype) ** -0.25, FAR)
        return r.extended(loss=Loss(calibrated, rows={"margin": margin}))


def calibrated(logits: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """Cross-entropy `[..., B]` of logits `[..., B, C]` minus each client's margins `[..., classes]`."""
    margin = F.pad(margin, (0, logits.shape[-1] - margin.shape[-1]), value=FAR)  # a model may have more logits
    log_p = (logits - margin.unsqueeze(-2)).log_softmax(-1)
    return -log_p.gather(-1, y.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class FedNTD(Method):
    """Not-true distillation (Lee et al. 2022): local SGD on cross-entropy + beta KL(q_x || q_y).

    q_x and q_y are the softmax, at temperature tau, of the logits of the server's model (constant) and of the client's,
    over all labels but the sample's own: what the server's model knows of labels that the client lacks is kept, and the
    sample's own label is learnt freely.  beta = 0 is FedAvg.  The loss has no factor tau^2, as in the paper; the
    authors' code has been published with it and without.

    beta: default 1.  tau: default 1.  Raises ValueError for beta < 0, tau <= 0.

    Use it in classification where clients forget labels that they lack. Not in regression, for which it is not
    defined.
    """

    beta: NonNegative = 1.0
    tau: Positive = 1.0

    def direction(self, G: Gradient, y: Tensor, r: Round) -> Tensor:
        if not self.beta:
            return G(y)
        loss = partial(distilled, beta=self.beta, tau=self.tau)
        return G(y, loss=Loss(loss, samples={"teacher": r.logits(r.x.expand_as(y))}))

    def cost(self, layout: Layout | None = None) -> Cost:
        return Cost.of(layout, forwards=1)


def distilled(logits: Tensor, y: Tensor, teacher: Tensor, *, beta: float, tau: float) -> Tensor:
    """Cross-entropy `[..., B]` of logits `[..., B, C]`, plus beta times the cross-entropy between the softmax of both
    over the labels other than y, which has the gradient of their KL divergence."""
    true = y.unsqueeze(-1)
    own = logits.logsumexp(-1) - logits.gather(-1, true).squeeze(-1)
    student, taught = (z.scatter(-1, true, -FAR) / tau for z in (logits, teacher))
    return own - beta * (taught.softmax(-1) * student.log_softmax(-1)).sum(-1)
