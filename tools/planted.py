"""Plants one error at a time into a copy of the package and reports which of them a test catches.

    python -m tools.planted                 # all of them, in one process at a time
    python -m tools.planted FedSMOO mixing  # those whose place or test selection has one of these words

An error is a place in the package, a text that stands there exactly once, what replaces it, and the quickest tests that
must fail for it.  A place is a dotted name, such as `FedAvg.aggregate` or `topology.gap`, found in the source wherever
its file is.  Entries whose place or text no longer fits are refused by name before anything runs; a selection of tests
that is empty or fails without the error has a verdict of its own.  The exit status is 0 when all errors are caught.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("fedcore", "tests", "tools", "pyproject.toml", "requirements.txt", "README.md")
REF = "test_reference.py"
NO_TEST = "these tests are empty or fail without the error"


class Planted(NamedTuple):
    """An error: in the class, function or module `place`, `text` becomes `error`; `tests`: a file and a `-k` word."""

    place: str
    text: str
    error: str
    tests: tuple[str, str]


def errors(file: str, words: str, *rows: tuple[str, str, str]) -> list[Planted]:
    """Errors that the same tests must catch: `(place, text, error)` each."""
    return [Planted(*row, (file, words)) for row in rows]


METHODS = [
    *errors(
        REF,
        "FedAvg and not DFed",
        ("FedAvg.aggregate", "r.mean(y - r.x)", "r.mean(r.x - y)"),
        ("FedAvg.aggregate", "self.server_momentum * r.v + delta", "self.server_momentum * (r.v + delta)"),
        ("FedAvg.aggregate", "r.server_lr * v", "v"),
    ),
    *errors(REF, "FedSGD", ("FedSGD.local_work", "batch_size=None", "batch_size=20")),
    *errors(REF, "FedSMB", ("FedSMB.local_work", "walk=True", "walk=False")),
    *errors(
        REF,
        "FedProx",
        ("FedProx.direction", "self.mu * (y - r.x)", "0.99 * self.mu * (y - r.x)"),
        ("FedProx.direction", "+ self.mu", "- self.mu"),
    ),
    *errors(
        REF,
        "FedUp",
        ("FedUp.direction", "(r.x_prev - r.x)", "(r.x - r.x_prev)"),
        ("FedUp.direction", "self.alpha / r.lr", "self.alpha"),
        ("FedUp.direction", "+ self.alpha * (y - r.x)", ""),
        ("FedUp.aggregate", '"x_prev": r.x}', '"x_prev": r.x_prev}'),
    ),
    *errors(
        REF,
        "FedSplit",
        ("FedSplit.direction", "2 * r.x - r.z_i", "r.x - r.z_i + r.x / 1.01"),
        ("FedSplit.aggregate", "2 * (y - r.x)", "(y - r.x)"),
    ),
    *errors(
        REF,
        "SCAFFOLD",
        ("SCAFFOLD.direction", "- r.c_i + r.c", "+ r.c_i - r.c"),
        ("SCAFFOLD.aggregate", "(r.K * r.lr)", "(r.K.max() * r.lr)"),
        ("SCAFFOLD.aggregate", "r.sum(c_i - r.c_i) / r.n", "r.sum(c_i - r.c_i) / r.m"),
        ("SCAFFOLD.aggregate", "r.full_gradient(r.x.expand_as(y))", "r.full_gradient(y)"),
    ),
    *errors(
        REF,
        "FedDyn",
        ("FedDyn.direction", "r.x + r.h_i", "r.x - r.h_i"),
        ("FedDyn.aggregate", "r.sum(delta) / r.n", "r.mean(delta)"),
        ("FedDyn.aggregate", '"h_i": r.h_i + delta', '"h_i": delta'),
    ),
    *errors(
        REF,
        "FedDC",
        ("FedDC.direction", "- r.c_i + r.c", ""),
        ("FedDC.aggregate", "c_i = r.c_i - r.c -", "c_i = r.c_i + r.c -"),
        ("FedDC.aggregate", "r.mean(delta) + h", "r.mean(delta) + r.h"),
    ),
    *errors(
        REF,
        "FedPVR",
        (
            "FedPVR.aggregate",
            "torch.where(r.mask, r.c_i - r.c + (r.x - y) / (r.K * r.lr), 0)",
            "r.c_i - r.c + (r.x - y) / (r.K * r.lr)",
        ),
    ),
    *errors(REF, "FedPVR", ("Layout.named", 'f"{layer}."', "layer")),
    *errors(
        REF,
        "MimeLite",
        ("MimeLite.direction", "(1 - self.beta) * G(y)", "G(y)"),
        ("MimeLite.aggregate", "r.full_gradient(r.x.expand_as(y))", "r.full_gradient(y)"),
    ),
    *errors(
        REF,
        "Mime and not Lite",
        ("Mime.direction", "G(r.x.expand_as(y))", "r.full_gradient(r.x.expand_as(y))"),
        ("Mime.aggregate", "self.beta) * r.C + self.beta * r.s", "self.beta) * r.s + self.beta * r.C"),
        (
            "Mime.prepare",
            "r.mean(r.full_gradient(r.x.expand(r.m, -1)))",
            "r.full_gradient(r.x.expand(r.m, -1)).mean(0)",
        ),
    ),
    *errors(
        REF,
        "STEM",
        ("STEM.a_of", "self.rate(t - 1)", "self.rate(t)"),
        ("STEM.rate", "(1 / 3)", "(1 / 2)"),
        ("STEM.direction", "(1 - self.a_of(r.t))", "self.a_of(r.t)"),
        ("STEM.aggregate", "r.gradient(r.y_prev, 0)", "r.gradient(y, 0)"),
        ("STEM.aggregate", "r.gradient(y, 0) + ", "r.gradient(y, 1) + "),
    ),
    *errors(
        REF,
        "FedSAM and not DFed",
        ("FedSAM.direction", "y + ascent(", "y - ascent("),
        ("ascent", "g.norm(dim=-1, keepdim=True)", "g.norm()"),
    ),
    *errors(
        REF,
        "FedAdagrad or FedAdam or FedYogi",
        ("Adaptive.aggregate", "(1 - self.beta1) * delta", "delta"),
        ("Adaptive.aggregate", "(v.sqrt() + self.tau)", "v.sqrt()"),
        ("Adaptive.start", "self.tau**2", "self.tau"),
        ("FedAdam.second_moment", "(1 - self.beta2) * delta**2", "delta**2"),
        ("FedYogi.second_moment", "(v - delta**2).sign()", "1"),
        ("FedAdagrad.second_moment", "delta**2", "delta"),
    ),
    *errors(
        REF,
        "FedNova",
        ("FedNova.aggregate", "tau_eff * ", "r.mean(r.K[:, 0]) * "),
        ("FedNova.aggregate", "rho * (1 - rho**r.K)", "rho * (1 - rho)"),
    ),
    *errors(
        REF,
        "FedExP",
        ("FedExP.aggregate", "r.mean((delta**2).sum(1))", "(delta**2).sum(1).mean()"),
        ("FedExP.aggregate", ".clamp_min(1)", ""),
    ),
    *errors(REF, "FedCM", ("FedCM.aggregate", "(r.K * r.lr)", "(r.K.max() * r.lr)")),
    *errors(REF, "MoFedSAM", ("MoFedSAM.direction", "(1 - self.beta) * r.Delta", "r.Delta")),
    *errors(REF, "FedGamma", ("FedGamma.direction", "- r.c_i + r.c", "+ r.c_i - r.c")),
    *errors(
        REF,
        "FedSpeed",
        ("FedSpeed.direction", "y + self.rho * g", "y - self.rho * g"),
        ("FedSpeed.aggregate", "self.lam * g_i", "self.lam * r.g_i"),
    ),
    *errors(
        REF,
        "FedPer",
        ("FedPer.broadcast", "torch.where(r.top, r.head_i, r.x)", "r.x"),
        ("FedPer.aggregate", "torch.where(r.top, r.mean(y), x)", "x"),
        ("FedPer.top", "torch.zeros(", "torch.ones("),
    ),
    *errors(
        REF,
        "FedRep",
        ("FedRep.direction", "r.top == head_first", "r.top != head_first"),
        ("FedRep.direction", "self.share * r.K", "self.share * r.K.max()"),
    ),
    *errors(
        REF,
        "Ditto",
        ("Ditto.direction", "(r.v - r.x)", "(r.v - y)"),
        ("Ditto.direction", "r.velocity.mul_(r.momentum).add_(step)", "r.velocity.add_(step)"),
        ("Ditto.direction", "clipped(step, r.clip)", "clipped(step, 2 * r.clip)"),
        ("Ditto.aggregate", '"v_i": r.v}', '"v_i": r.v_i}'),
    ),
    *errors(
        REF,
        "pFedMe",
        ("pFedMe.direction", "self.lam * (theta - y)", "0"),
        ("pFedMe.direction", "r.theta.copy_(theta)", "r.theta.copy_(y)"),
    ),
    *errors(
        REF,
        "LocalOnly",
        ("LocalOnly.aggregate", "r.sum(y - r.x_i) / r.n", "r.mean(y - r.x_i)"),
        ("LocalOnly.broadcast", "r.x_i", "r.x"),
    ),
    *errors(
        "test_exact_baselines.py",
        "central",
        ("pooled._union", "np.sort(data.parts.rows)", "data.parts.rows"),
        ("Mean.objective", "/ len(self.b)", "/ self.n"),
    ),
    *errors(
        REF,
        "FedSMOO",
        ("FedSMOO.direction", "r.mu.add_(e - r.s)", "r.mu.add_(e + r.s)"),
        ("FedSMOO.direction", "G(y) - r.mu - r.s", "G(y)"),
        ("FedSMOO.direction", "G(y) - r.mu - r.s", "G(y) - r.mu"),
        ("FedSMOO.aggregate", "ascent(r.mean(r.mu), self.rho)", "r.mean(r.mu)"),
        ("FedSMOO.aggregate", '"mu_i": r.mu}', '"mu_i": r.mu_i}'),
    ),
    *errors(
        REF,
        "MOON",
        ("MOON.direction", "r.prev)", "r.x.expand_as(y))"),
        ("MOON.contrast", "far - near", "near - far"),
        ("MOON.contrast", "/ self.tau", "* self.tau"),
        ("MOON.aggregate", '"prev": y}', '"prev": r.x.expand_as(y)}'),
    ),
    *errors(
        REF,
        "DFedAvg and not DFedAvgM",
        ("Gossip.aggregate", "r.W.ordered(r.clients)", "r.W"),
        ("Gossip.broadcast", "r.X", "r.x"),
    ),
    *errors(REF, "DPSGD", ("DPSGD.mixed", "W @ X + (y - X)", "W @ y"), ("DPSGD.local_work", "walk=True", "walk=False")),
    *errors(REF, "DFedAvgM", ("DFedAvgM.local_work", "momentum=self.momentum", "momentum=work.momentum")),
    *errors(REF, "DFedSAM", ("DFedSAM.mixed", "range(self.gossip_steps)", "range(1)")),
    *errors(
        REF,
        "DFedGAM",
        ("DFedGAM.direction", "a = y + ascent(G(y, along=g), self.rho)", "a = y + ascent(g, self.rho)"),
        ("DFedGAM.direction", "return g + self.alpha", "return ga + self.alpha"),
        ("DFedGAM._accelerated", "self.rho_inner))\n        w", "self.rho))\n        w"),
        ("DFedGAM._accelerated", "(1 - self.beta0) * g2", "self.beta0 * g2"),
        ("DFedGAM._accelerated", "(g - along * w)", "g"),
    ),
    *errors(
        REF,
        "FedBN",
        ("FedBN.broadcast", "torch.where(r.bn, r.bn_i, r.x)", "r.x"),
        ("FedBN.aggregate", "torch.where(r.bn, r.mean(y), x)", "x"),
    ),
    *errors(
        REF,
        "FedALA",
        ("FedALA.learn", "theta_i + D * W[:, top]\n                g", "theta_i + D\n                g"),
        ("FedALA.learn", "W[:, top].clamp(0, 1)", "W[:, top].clamp(0, 0.9)"),
        ("FedALA.learn", "(self.lr * g[:, top] * D)", "(self.lr * g[:, top])"),
        ("FedALA.learn", "(r.visits > 0, r.visits == 1)", "(r.visits > 0, r.visits == 2)"),
        ("FedALA.learn", "len(losses) > LOOK_BACK", "len(losses) >= LOOK_BACK"),
        ("FedALA.aggregate", '"theta_i": y', '"theta_i": r.x.expand_as(y)'),
        ("FedALA.aggregate", '"W_i": r.W}', '"W_i": r.W_i}'),
    ),
]

SUBMODELS = [
    *errors(
        REF,
        "HeteroFL",
        ("Submodel.score", "-torch.arange(w", "torch.arange(w"),
        ("Submodel.aggregate", "r.mask, r.p", "r.kept, r.p"),
        ("Submodel.prepare", "self.scaled and self.smallest < 1", "False"),
        ("Submodel.split", "self.scaled", "False"),
        ("submodels._drawn", "rng.CAPACITY, t,", "rng.CAPACITY, 0,"),
        ("own_labels", '0.0 if reading == "zero"', '-1.0 if reading == "zero"'),
        ("Neurons.only_owned", "&= rows", "|= rows"),
    ),
    *errors(
        REF,
        "FedRolex",
        ("FedRolex.score", "r.t) % w", "2 * r.t) % w"),
        ("FedRolex.score", "- r.t) % w", "+ r.t) % w"),
        ("_ranks", "descending=True", "descending=False"),
    ),
    *errors(
        REF,
        "FederatedDropout",
        ("FederatedDropout.score", "noise(r, neurons)", "[n.flip(1) for n in noise(r, neurons)]"),
        ("algorithms.submodels.noise", "rng.MASK, r.t, clients", "rng.MASK, 0, clients"),
    ),
    *errors(
        REF,
        "FedDSE",
        ("FedDSE.score", "h / T - torch.log", "h * T - torch.log"),
        ("FedDSE.score", "return H\n", "return [-h for h in H]\n"),
        ("FedDSE.score", "h.std(1", "h.var(1"),
    ),
    *errors(
        REF,
        "FedGSE",
        ("FedGSE.score", "torch.where((r.last != 0).any(1, keepdim=True), r.last, r.x)", "r.last[0].expand_as(r.last)"),
        ("FedGSE.score", "torch.where((r.last != 0).any(1, keepdim=True), r.last, r.x)", "r.x.expand_as(r.last)"),
        ("FedGSE.score", "cancelled(h) if cancel else h.abs().sum(1)", "h.abs().sum(1)"),
        ("FedGSE.score", "owned[:, truth]", "~owned[:, truth]"),
        ("FedGSE.score", 'Loss(partial(own_labels, reading="zero"), rows={"owned": owned})', "PLAIN"),
        ("FedGSE.score", "logits.masked_fill(~owned[:, None], -math.inf).argmax(-1)", "logits.argmax(-1)"),
        ("algorithms.submodels", '("outputs", False)', '("sites", False)'),
        ("FedGSE.score", "guess == truth", "guess != truth"),
        ("FedGSE.similar_samples", "+ ~usable", ""),
        ("FedGSE.aggregate", "torch.where(r.kept, y, 0)", "y"),
    ),
    *errors(
        REF,
        "FjORD",
        ("FjORD.drawn", 'side="right"', 'side="left"'),
        ("FjORD.direction", ", decay=False", ""),
        ("FjORD.drawn", "r.ids, r.step", "r.ids, 0"),
        ("_soft", "teacher.softmax(-1)", "teacher.log_softmax(-1)"),
    ),
    *errors(
        REF,
        "DepthFL",
        ("DepthFL.prepare", "min(r.t, self.ramp)", "min(max(r.t - 1, 0), self.ramp)"),
        ("DepthFL.direction", "r.x + r.h_i", "r.x"),
        ("_teach", "/ (D - 1)", "/ D"),
        ("_teach", "strength * (D", "0.99 * strength * (D"),
        ("DepthFL.aggregate", "x + h, x)", "x + r.h, x)"),
        ("DepthFL.aggregate", "torch.where(r.mask, y - r.x, 0)", "0.99 * torch.where(r.mask, y - r.x, 0)"),
        ("nested._depth", "np.ceil(", "np.floor(0.5 + "),
        ("algorithms.submodels._dealt", "counts - exact", "exact - counts"),
    ),
    *errors(
        "test_submodels.py", "rounded_up", ("kept", "math.ceil(round(ratio * width, 9))", "max(1, int(ratio * width))")
    ),
    *errors("test_submodels.py", "combine", ("combine", "delta / share", "delta")),
    *errors(
        "test_submodels.py",
        "part_takes or sums",
        ("Part.add", "places[0], torch.mv(y.T, weights[:, 0])", "places[0], y.mean(0)"),
        ("Part._flat", "self._rows(v)[:, None]", "torch.arange(len(self.rows))[:, None]"),
    ),
    *errors(
        "test_submodels.py", "combine or toy", ("combine", "share > 0, x + server_lr", "share >= 0, x + server_lr")
    ),
    *errors(
        "test_submodels.py",
        "columns",
        ("Neurons.places", "keep[stream][:, :, None] * entries + inside", "keep[stream][:, :, None] + inside"),
    ),
    *errors("test_submodels.py", "residual_stream", ("Streams.join", "if self.aligned and a != b", "if False")),
    *errors("test_submodels.py", "stage", ("with_heads", "widths[-1] != inside[-1][0]", "widths[-1] < inside[-1][0]")),
    *errors("test_submodels.py", "first_stages", ("Depth.places", "< self.stages", "<= self.stages")),
]

ROUND = [
    *errors(
        REF,
        "FedProx",
        ("descent.clipped", "clip / V.norm", "1.01 * clip / V.norm"),
        ("local_steps", "add_(v)", "add_(v, alpha=1 - r.momentum)"),
        ("descent.decayed", "decay * (Y", "2 * decay * (Y"),
        ("Settings.work", "**t", "**(t + 1)"),
        ("round.play", 's.weighting == "samples"', 's.weighting != "samples"'),
        ("Round.mean", "self.p[:, 0]", "self.p[:, 0].flip(0)"),
    ),
    *errors(REF, "DFedAvgM", ("Gossip.prepare", "r.seed, r.t", "r.seed, 0")),
]

TOPOLOGY = [
    *errors("test_topology.py", "ring or symmetric or drawing", ("Ring.lists", "[0, 1, -1]", "[0, 1, 2]")),
    *errors("test_topology.py", "torus or symmetric", ("Torus.lists", "[0, 0, 0, 1, -1]", "[0, 0, 0, 1, -2]")),
    *errors("test_topology.py", "exponential", ("Exponential.lists", "2**j", "3**j")),
    *errors(
        "test_topology.py",
        "every_degree or symmetric",
        ("RandomRegular.lists", "np.triu(~missing, 1)", "np.triu(~missing, 2)"),
    ),
    *errors("test_topology.py", "directed", ("DirectedRandom.lists", "chosen >= own", "chosen > own")),
    *errors(
        "test_topology.py", "another_order", ("Mixing.ordered", "place[self.indices[clients]]", "self.indices[clients]")
    ),
    *errors(
        "test_topology.py",
        "path or symmetric",
        ("_metropolis", "np.maximum(degree[a], degree[b])", "np.minimum(degree[a], degree[b])"),
    ),
    *errors("test_topology.py", "gap", ("topology.gap", "[1:2]", "[2:3]")),
    *errors(
        "test_topology.py",
        "every_degree or symmetric or 100_client",
        ("_regular", "(pairs[:, 0] != pairs[:, 1]) &", ""),
    ),
    *errors("test_topology.py", "ring or symmetric", ("_circle", "1 / len(offsets)", "1.01 / len(offsets)")),
    *errors("test_topology.py", "refused", ("topology.check", "W.sum(axis) - 1", "W.sum(1) - 1")),
    *errors("test_topology.py", "100_client", ("_mixing", "seed, t)", "seed, 0)")),
]

DATA = [
    *errors("test_partitions.py", "same_seed", ("IID.split", "rng.permutation(len(labels))", "np.arange(len(labels))")),
    *errors(
        "test_partitions.py",
        "dirichlet",
        ("Dirichlet.split", "(size < N / clients)", "(size < 2 * N / clients)"),
        ("Dirichlet.split", "np.full(clients, self.q)", "np.full(clients, 2 * self.q)"),
        ("Dirichlet.split", ">= least", ">= 1"),
    ),
    *errors("test_partitions.py", "skewed or dirichlet", ("Dirichlet._equal", "self.q)", "1.0)")),
    *errors(
        "test_partitions.py",
        "owner",
        ("ByOwner.split", "owners = np.sort(rng.choice(owners, clients, replace=False))", "owners = owners[:clients]"),
    ),
    *errors(
        "test_randomness.py",
        "hash",
        ("rng.words", "np.uint64(27)", "np.uint64(26)"),
        ("rng.words", "np.uint64(30)", "np.uint64(31)"),
    ),
    *errors("test_randomness.py", "cohort", ("rng.cohort", "(last + 1)", "(0 * last + n)")),
    *errors(
        REF, "FedAvg and not DFed", ("batches._dealt", "valid / np.maximum(counts, 1)[..., None]", "valid / batch_size")
    ),
    *errors(
        "test_randomness.py",
        "epoch or weights",
        ("batches._dealt", "position // batch_size", "position // (batch_size + 1)"),
    ),
    *errors(
        "test_randomness.py",
        "batches",
        ("mini_batches", "rng.words(seed, rng.BATCH, t, clients)", "rng.words(seed, rng.BATCH, 0, clients)"),
    ),
    *errors("test_exact.py", "walks", ("mini_batches", "t if walk else 0", "0")),
    *errors(REF, "FedSGD", ("Federation._full_batches", "valid / sizes[rows, None]", "valid / sizes.max()")),
    *errors(
        "test_data.py",
        "bytes or normalised",
        ("Clients.inputs", "- mean).div_(std)", "- mean)"),
        ("channel_statistics", "return total / N", "return (total + N) / N"),
    ),
    *errors("test_contract.py", "objective", ("Federation.objective", "/ self.n", "/ self.sizes.sum()")),
    *errors("test_submodels.py", "public", ("clients.set_aside", "[:k] for", "[: k + 1] for")),
    *errors(
        "test_objective.py",
        "noisy",
        ("Quadratic.gradient_and_losses", "_times(self.A[i], e)", "_times(self.A[i].flip(0), e)"),
    ),
]

ENGINE = [
    *errors("test_engine_paths.py", "is_autograds and digit_cnn", ("Written._run", "-1.0, reduce", "-1.01, reduce")),
    *errors(
        REF,
        "FedAvg and not DFed",
        ("Linear.written", "e.sum(1)", "e.mean(1)"),
        ("Engine.descend", "(counts[:, part] > 0)", "(counts[:, part] > 1)"),
    ),
    *errors(
        "test_engine_paths.py",
        "decay_and_clip_in_place and digit_cnn",
        ("Written.step", "1 - lr * decay", "1 - decay"),
        ("Written.step", "alpha=decay", "alpha=2 * decay"),
        ("Written.step", "clamp_max_(1.0)", "clamp_max_(1.01)"),
        ("Sink.put", "place.mul_(self.keep)", "place.mul_(1.0)"),
        ("Sink.product", "beta=self.keep", "beta=1.0"),
        ("Conv2d.by_columns", "beta=s.keep", "beta=1.0"),
    ),
    *errors(
        "test_engine_paths.py",
        "decay_and_clip_in_place and resnet",
        ("Conv2d.by_columns", "(s.keep == 1 or not tap)", "True"),
    ),
    *errors(
        "test_engine_paths.py",
        "strange or (is_autograds and thesis_cnn_small)",
        ("Conv2d.by_columns", "x.new_zeros", "x.new_ones"),
        ("rules", "(e / size)", "(e / size.bit_length())"),
        ("ReLU.written", "threshold_backward(e, out, 0)", "threshold_backward(e, out, 0.01)"),
    ),
    *errors(REF, "HeteroFL", ("Scaler.written", "e / rate", "e")),
    *errors(
        "test_engine.py",
        "batch_norm",
        ("BatchNorm.on_pictures", "torch.rsqrt((rows.square() * real)", "torch.rsqrt(1.01 * (rows.square() * real)"),
    ),
    *errors(
        "test_engine.py",
        "on_the_module and digit_cnn",
        ("Linear.batched", "p.params[self.bias].unsqueeze(1)", "0 * p.params[self.bias].unsqueeze(1)"),
        ("Conv2d.batched", "groups=p.clients", "groups=1"),
    ),
    *errors(REF, "MOON", ("Projected.batched", "self.encoder(x, p)", "self.encoder(1.01 * x, p)")),
    *errors("test_engine.py", "padding_has", ("Sequential._logits", "batch.x[i, :count]", "batch.x[i]")),
    *errors(
        REF,
        "DFedGAM",
        ("batched.derivatives", "slope = sum((g * v)", "slope = sum((g + v)"),
        ("Residual.batched", "torch.relu(", "("),
    ),
    *errors(
        "test_contract.py",
        "evaluation_is_that",
        ("Engine.evaluate", "hits.double() / count", "hits.double() / (count + 1)"),
    ),
    *errors("test_engine.py", "diverged", ("engine.core", "norm.reset_running_stats()", "pass")),
]

ERRORS = [*METHODS, *SUBMODELS, *ROUND, *TOPOLOGY, *DATA, *ENGINE]


# --- finding and planting ----------------------------------------------------------------------------------------


def definitions(package: Path) -> list[tuple[str, Path, int, int]]:
    """Every module, class and function: dotted name from the package on, file, first and last line."""
    found: list[tuple[str, Path, int, int]] = []

    def walk(node: ast.AST, name: str, file: Path) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found.append((f"{name}.{child.name}", file, child.lineno, child.end_lineno))
                walk(child, f"{name}.{child.name}", file)

    for file in sorted(package.rglob("*.py")):
        text = file.read_text()
        name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        found.append((name, file, 1, len(text.splitlines())))
        walk(ast.parse(text), name, file)
    return found


def planted(error: Planted, known: list[tuple[str, Path, int, int]]) -> tuple[Path, str]:
    """The file that the error is in, and its text with the error; LookupError where it does not fit."""
    places = [d for d in known if f".{d[0]}".endswith(f".{error.place}")]
    if len(places) != 1:
        raise LookupError(f"{error.place}: {len(places)} definitions of that name")
    _, file, first, last = places[0]
    lines = file.read_text().splitlines(keepends=True)
    body = "".join(lines[first - 1 : last])
    if body.count(error.text) != 1:
        raise LookupError(f"{error.place}: {error.text!r} stands there {body.count(error.text)} times")
    return file, "".join([*lines[: first - 1], body.replace(error.text, error.error), *lines[last:]])


def run(folder: Path, tests: tuple[str, str]) -> int:
    """pytest's exit status for a selection, in a child process that has torch already."""
    file, words = tests
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.chdir(folder)
        sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        import pytest

        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", f"tests/{file}", "-k", words])
    finally:
        os._exit(int(status))


def main(words: list[str]) -> int:
    """Plants the errors that have one of the words (default: all), prints a table; 0 when all are caught."""
    errors = [e for e in ERRORS if not words or any(w in f"{e.place} {e.tests}" for w in words)]
    sys.dont_write_bytecode = True
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # two thirds of a child's time
    for name in ("torch", "numpy", "pytest", "pandas", "hypothesis", "matplotlib.pyplot"):  # imported once for all
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        skip = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=skip)
            else:
                shutil.copy(source, folder / name)
        known, misfits, texts = definitions(folder / "fedcore"), [], []
        for error in errors:
            try:
                texts.append(planted(error, known))
            except LookupError as e:
                misfits.append(str(e))
        if misfits:
            print("these entries no longer fit the source:", *misfits, sep="\n  ")
            return 2
        verdicts: Counter[str] = Counter()
        without: dict[tuple[str, str], int] = {}
        for error, (file, text) in zip(errors, texts, strict=True):
            sound, begin = file.read_text(), time.perf_counter()
            if error.tests not in without:
                without[error.tests] = run(folder, error.tests)
            file.write_text(text)
            status = run(folder, error.tests)
            file.write_text(sound)
            verdict = {0: "MISSED", 1: "caught"}.get(status, f"exit {status}")
            if without[error.tests]:
                verdict = f"{NO_TEST} ({without[error.tests]})"
            verdicts[verdict] += 1
            change = f"{error.text.strip()!r} -> {error.error.strip()!r}"
            print(f"{verdict:7} {time.perf_counter() - begin:5.1f} s  {error.place:28} {change}", flush=True)
        print(*(f"{verdict}: {n}" for verdict, n in verdicts.items()), sep=", ")
    return 0 if set(verdicts) == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
