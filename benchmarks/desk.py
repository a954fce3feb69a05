"""Rounds at the federations of the profile desk, against plain SGD of one model on the same samples.

    python benchmarks/desk.py results/benchmarks/desk.json [--threads 2] [--repeats 5] [--networks cifar_cnn] [--quick]

Made for 12 minutes on two cores.  Nothing is read: samples are random, in the shapes of CIFAR-10, MNIST, EMNIST's
letters, the digit domains and Shakespeare, and the clients' sizes drawn by the project's own partitions from a fixed
seed.  All are wall times of whole runs in one process, in turns; a ratio is the median over the turns.  A run of a
small network has several rounds, because what precedes the first would take up to a third of a single one.  Plain SGD
takes the same batches of the same samples with one model, inputs normalised beforehand.  Large networks keep a share
of each client's samples.

cases: samples per second of every network on every path that takes it.  share_of_kernels: the time of the network's
products and convolutions alone, each by the fastest kernel that is known (`kernels`), for the same steps of the same
clients, over that of the round.  operations: multiplications and additions of a run's products and convolutions.
peaks: 10^9 of these a second, of a product of large matrices by this machine; bandwidth: 10^9 bytes that a large copy
reads and writes a second.  "vmapped" is the batched path with `torch.vmap` over the module in place of the layers'
rules; "decay and clip" are weight decay 1e-3 and clip 10, in the round and in plain SGD alike.  profile: where a
round's time goes on one thread, by kind of operator, as `torch.profiler` sees it, which makes small operators look
slower.  cells: what is no training in a cell of a table.  goals: every goal with what was measured; a network without a
goal of its own is to be no slower than plain SGD.
How fast sub-models are is measured by `submodels.py`.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from statistics import median
from typing import Any, ClassVar

import kernels
import numpy as np
import torch
import torch.nn.functional as F
from common import Unevaluated, Watched, arguments, by_kind, in_turns, record, unevaluated
from torch import Tensor, nn
from torch.autograd.profiler import record_function

import fedcore as fc
from fedbook.results import provenance
from fedbook.show import benchmarked
from fedbook.studies.from_spec import build_model
from fedbook.studies.training import packed
from fedcore import rng
from fedcore.data.batches import Plan
from fedcore.engine import Engine, choose
from fedcore.engine.mapped import maps
from fedcore.storage import sources


@dataclass(frozen=True)
class Data:
    """Random samples and whose they are.  most: samples of a client at most."""

    shape: tuple[int, ...]
    classes: int
    samples: int
    clients: int
    partition: Any
    most: int = 10_000


@dataclass(frozen=True)
class Network:
    """A network, how it is trained at its federation, and its goals on two threads.

    goal: its speed over plain SGD.  kernels: the share of a round's time that its fastest kernels would take.  share:
    of each client's samples, so that large networks take no longer.  steps: local steps, else one epoch.  rounds: of a
    run.
    """

    data: str
    model: Any
    batch: int
    goal: float = 1.0
    kernels: float | None = None
    share: float = 1.0
    steps: int | None = None
    cohorts: Sequence[int] = (10, 54)
    rounds: int = 1


DATA = {
    "CIFAR-10": Data((3, 32, 32), 10, 45_000, 100, fc.Dirichlet(0.3)),
    "MNIST by writer": Data((1, 28, 28), 10, 54_000, 539, fc.Dirichlet(0.5, min_size=19), 131),
    "letters": Data((1, 28, 28), 26, 14_040, 100, fc.IID()),
    "five domains": Data((3, 16, 16), 10, 1_840, 5, fc.IID()),
    "Shakespeare": Data((80,), 80, 10_000, 100, fc.IID()),
}
_THESIS = {"data": "letters", "batch": 10, "kernels": 0.75}
NETWORKS = {
    "logistic": Network("MNIST by writer", "logistic", 20, 3.0, rounds=20),
    "mlp": Network("MNIST by writer", "mlp", 20, kernels=0.7, rounds=8),
    "femnist_cnn": Network("MNIST by writer", "femnist_cnn", 20, kernels=0.6, rounds=4),
    "cifar_cnn": Network("CIFAR-10", "cifar_cnn", 32, kernels=0.75, share=0.5, rounds=2),
    "lenet": Network("CIFAR-10", "lenet", 50, kernels=0.75, share=0.15, cohorts=(10,)),
    "thesis_cnn": Network(model="thesis_cnn", share=0.2, cohorts=(10,), **_THESIS),
    "thesis_cnn, 8 to 64": Network(model=["thesis_cnn", {"widths": [8, 16, 32, 64]}], **_THESIS),
    "thesis_cnn, 16 to 128": Network(model=["thesis_cnn", {"widths": [16, 32, 64, 128]}], **_THESIS),
    "thesis_cnn, 1 to 4": Network("letters", ["thesis_cnn", {"widths": [1, 1, 2, 4]}], 10, rounds=2),
    "digit_model_small": Network("five domains", "digit_model_small", 32, steps=24, cohorts=(5,)),
    "projected cifar_cnn": Network("CIFAR-10", ["projected", {"model": "cifar_cnn", "dim": 256}], 32, share=0.5),
    "projected femnist_cnn": Network("MNIST by writer", ["projected", {"model": "femnist_cnn", "dim": 256}], 20),
    "lstm": Network("Shakespeare", ["lstm", {"embedding": 8, "hidden": 32}], 10, kernels=0.8, steps=10, share=0.5),
}
UNEQUAL = ("cifar_cnn", "femnist_cnn")
PROFILED = ("cifar_cnn", "femnist_cnn", "thesis_cnn, 8 to 64", "lstm")
PROFILED += ("logistic", "thesis_cnn, 1 to 4", "digit_model_small")  # the furthest from their kernels
CELLS = ("cifar_cnn", "femnist_cnn")  # 300 rounds, a validation every 10, and the test images at the end
VALIDATION, TEST, ROUNDS, EVERY = 5_000, 10_000, 300, 10
DECAYED = ", decay and clip"
TOLD, EQUAL, OTHER = 1.7, 0.85, 0.1  # second thread; unequal over equal clients; evaluation and bookkeeping
FEW = 4  # samples that a client keeps at least


# --- federations ------------------------------------------------------------------------------------------------------


@cache
def dealt(name: str) -> list[int]:
    """How many samples each client has."""
    data, generator = DATA[name], rng.numpy_generator(0, rng.PARTITION)
    whose = data.partition.split(np.arange(data.samples) % data.classes, data.clients, generator, None)
    return [min(len(part), data.most) for part in whose]


def kept(name: str, share: float) -> list[int]:
    """The same but for a share of them."""
    return [max(FEW, round(share * size)) for size in dealt(name)]


@lru_cache(3)
def samples(name: str, n: int, test: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test samples; what they show does not matter for speed."""
    data, draw = DATA[name], np.random.default_rng(0)
    whole, y = (n + test, *data.shape), np.arange(n + test) % data.classes
    x = draw.integers(0, 80, whole) if len(data.shape) == 1 else draw.integers(0, 256, whole, np.uint8)
    return (x[test:], y[test:]), (x[:test], y[:test])


def federation(network: Network, sizes: Sequence[int], test: int = 100, **options: Any) -> fc.Federation:
    """Clients of these sizes."""
    text = {"layout": "text"} if len(DATA[network.data].shape) == 1 else {}
    whose = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    source, model = samples(network.data, sum(sizes), test), build_model(network.model)
    return fc.federation(source, partition=whose, model=model, device="cpu", **text, **options)


def vmapped(fed: fc.Federation) -> fc.Federation:
    """The same federation with `torch.vmap` over its module; ValueError where that does not take it."""
    module = fed.engine.module
    if not maps(module, fed.inputs(fed.x[:3])):
        raise ValueError("torch.vmap does not take the module")
    return replace(fed, engine=Engine(module, "batched", mapped=True))


def bfloat16() -> str | None:
    """Why bfloat16 is not measured here; None where the processor has it and may use it."""
    able = torch.cpu.get_capabilities()
    has = any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"))
    emulated = torch.backends.cpu.get_cpu_capability() == "AVX2"  # also where ATEN_CPU_CAPABILITY says so
    return None if has and not emulated else "no instructions for bfloat16"


# --- what is timed ----------------------------------------------------------------------------------------------------


def work(network: Network, **more: Any) -> dict[str, Any]:
    """The local work of a round."""
    local = {"local_epochs": 1} if network.steps is None else {"local_steps": network.steps}
    return {"lr": 0.01, "batch_size": network.batch, **local, **more}


def plans_of(fed: fc.Federation, network: Network, cohort: int) -> list[Plan]:
    """The batches of a run's rounds, which `simulate` takes too."""
    cohorts = [np.array(rng.cohort(0, t, fed.n, cohort)) for t in range(network.rounds)]
    how = {"epochs": 1, "steps": network.steps, "batch_size": network.batch}
    return [fed.plan(0, t, clients, **how) for t, clients in enumerate(cohorts)]


def rounds(fed: fc.Federation, network: Network, cohort: int, decayed: bool = False) -> Callable[[], object]:
    """A run of FedAvg."""
    run = work(network, rounds=network.rounds, cohort=cohort, progress=False)
    run |= {"weight_decay": 1e-3, "clip": 10.0} if decayed else {}
    return partial(fc.simulate, fc.FedAvg(), unevaluated(fed), **run)


def plain(fed: fc.Federation, plans: Sequence[Plan], decayed: bool = False) -> Callable[[], None]:
    """One model on the batches of all rounds and clients, one after another, as the PyTorch tutorial writes it."""
    net = fed.engine.module
    opt = torch.optim.SGD(net.parameters(), lr=0.01, weight_decay=1e-3 if decayed else 0.0)
    picked = [
        plan.indices[k, i, :n]
        for plan in plans
        for i, column in enumerate(plan.counts.T)
        for k, n in enumerate(column)
        if n
    ]
    chosen, where = torch.unique(torch.cat(picked), return_inverse=True)
    x, y, batches = fed.inputs(fed.x[chosen]), fed.y[chosen], where.split([len(rows) for rows in picked])

    def go() -> None:
        net.train()
        for rows in batches:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            if decayed:
                nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            opt.step()

    return go


def bare(fed: fc.Federation, plans: Sequence[Plan], library: str, low: bool) -> Callable[[], None]:
    """The fastest kernels of the plans' steps alone, in the engine's blocks; low: also those in bfloat16."""
    batch = plans[0].indices.shape[2]
    each = 2 * fed.x0.element_size() * (batch * fed.engine.width(fed.inputs(fed.x[:2])) + fed.d)
    blocks = choose.blocks(len(plans[0].steps), None, each, fed.d, fed.device)
    parts = [plan.steps[block] for plan in plans for block in blocks]
    active = [int(n) for steps in parts for k in range(steps.max()) if (n := (steps > k).sum())]
    with kernels.by(library):
        calls = {m: kernels.step(fed, m, batch, low) for m in set(active)}

    def go() -> None:
        with kernels.by(library), torch.no_grad():
            for m in active:
                for call in calls[m]:
                    call()

    return go


def on_threads(run: Callable[[], object], threads: int) -> Callable[[], None]:
    """The same on another number of threads."""

    def go() -> None:
        usual = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            run()
        finally:
            torch.set_num_threads(usual)

    return go


# --- the parts of the benchmark ---------------------------------------------------------------------------------------


def speeds(name: str, cohort: int, share: float, every: bool, args: Any) -> dict[str, Any]:
    """One case: samples per second of a network's runs, and their ratios to plain SGD.

    every: also on the paths that are not chosen, and on one thread.
    """
    network = NETWORKS[name]
    sizes, refused = kept(network.data, share * network.share), {}
    fed = federation(network, sizes)
    plans, path = plans_of(fed, network, cohort), _path(fed)
    runs = {"plain SGD": plain(fed, plans), f"plain SGD{DECAYED}": plain(fed, plans, True)}
    runs |= {path: rounds(fed, network, cohort), path + DECAYED: rounds(fed, network, cohort, True)}
    low = bfloat16()
    if low is None:
        halved = federation(network, sizes, compute=torch.bfloat16)
        for more in ("", DECAYED):
            runs[f"{path} bfloat16{more}"] = rounds(halved, network, cohort, bool(more))
    else:
        refused["bfloat16"] = low
    for other in (*fc.engine.PATHS, "vmapped"):
        if every and other != path:
            try:
                changed = vmapped(fed) if other == "vmapped" else fed.forced(other)
                runs[other] = rounds(changed, network, cohort)
            except ValueError as e:  # no rule for this model
                refused[other] = str(e)
    if every and args.threads > 1:
        runs[f"{path}, one thread"] = on_threads(runs[path], 1)
    own, floors = {"": path, " bfloat16": f"{path} bfloat16"}, defaultdict(list)
    for kind in own if every else ():
        for library in kernels.libraries() if own[kind] in runs else ():
            floors[kind].append(f"kernels, {library}{kind}")
            runs[floors[kind][-1]] = bare(fed, plans, library, bool(kind))
    times, count = in_turns(runs, args.repeats), sum(int(plan.counts.sum()) for plan in plans)
    floor = {k: f"plain SGD{DECAYED}" if k.endswith(DECAYED) else "plain SGD" for k in runs}
    sizes = fed.sizes[np.concatenate([plan.clients for plan in plans])]
    return {
        "network": name, "data": network.data, "parameters": fed.d, "cohort": cohort, "batch": network.batch,
        "rounds": len(plans), "samples": count, "steps": sum(int(plan.steps.sum()) for plan in plans),
        "smallest": int(sizes.min()), "largest": int(sizes.max()),
        "path": path, "refused": refused,
        "samples_per_second": {k: count / median(wall for _, wall in v) for k, v in times.items()},
        "samples_per_cpu_second": {k: count / median(cpu for cpu, _ in v) for k, v in times.items()},
        "ratio_to_plain": {k: _ratio(times[floor[k]], v) for k, v in times.items()},
        "share_of_kernels": {
            own[kind]: min(_ratio(times[floor], times[own[kind]]) for floor in names) for kind, names in floors.items()
        },
        "operations": kernels.operations(fed, count),
    }  # fmt: skip


def _path(fed: fc.Federation) -> str:
    """The path that is chosen when nothing is forced."""
    path, axes = fed.engine.chosen(fed.device), fed.x.dim() - 1
    return path if axes in fed.engine.axes else "sequential"


def _ratio(over: Sequence[tuple[float, float]], under: Sequence[tuple[float, float]]) -> float:
    """The median of the ratios of wall times."""
    return median(a / b for (_, a), (_, b) in zip(over, under, strict=True))


def unequal(name: str, cohort: int, share: float, args: Any) -> dict[str, Any]:
    """Samples per second of unequal clients over those of equal ones with as many samples in all."""
    network = NETWORKS[name]
    sizes = kept(network.data, share * network.share)
    sizes = [sizes[i] for i in rng.cohort(0, 0, len(sizes), cohort)]  # who take part in every round
    equal = [len(part) for part in np.array_split(np.arange(sum(sizes)), cohort)]
    runs = {
        kind: rounds(federation(network, each), network, cohort)
        for kind, each in (("unequal", sizes), ("equal", equal))
    }
    times = in_turns(runs, args.repeats)
    ratio = _ratio(times["equal"], times["unequal"])
    return {"network": name, "cohort": cohort, "smallest": min(sizes), "largest": max(sizes), "ratio": ratio}


class Gathered(Unevaluated):
    """A federation whose planning and gathering of batches is seen by the profiler as "data"."""

    def plan(self, *args: Any, **more: Any) -> Plan:
        with record_function("data"):
            return super().plan(*args, **more)

    def batch(self, *args: Any, **more: Any) -> Any:
        with record_function("data"):
            return super().batch(*args, **more)


class WatchedFedAvg(Watched, fc.FedAvg):
    """FedAvg whose average is seen by the profiler as "server"."""


def where_time_goes(name: str, share: float, decayed: bool) -> dict[str, Any]:
    """Shares of a round's time on one thread, by kind of operator; "Python" is what no operator took."""
    network = NETWORKS[name]
    fed = federation(network, kept(network.data, share * network.share))
    fed = Gathered(fed.data, fed.engine, fed.x0, fed.partition, fed.seed)
    run = work(network, rounds=1, cohort=network.cohorts[0], progress=False)
    run |= {"weight_decay": 1e-3, "clip": 10.0} if decayed else {}
    go = on_threads(partial(fc.simulate, WatchedFedAvg(), fed, **run), 1)
    seconds = by_kind(go)
    shares = {kind: spent / sum(seconds.values()) for kind, spent in seconds.items()}
    return {"network": name, "cohort": run["cohort"], "decay and clip": decayed, "shares": shares}


class Clocked(fc.Federation):
    """A federation that notes how long its training and its evaluations take."""

    seconds: ClassVar[dict[str, float]] = defaultdict(float)

    def descend(self, Y: Tensor, plan: Plan, lr: float, decay: float = 0.0, clip: float | None = None) -> None:
        with clock(self.seconds, "training"):
            super().descend(Y, plan, lr, decay, clip)

    def evaluate(self, x: Tensor, reading: str | None = None) -> dict[str, Tensor]:
        with clock(self.seconds, "evaluation"):
            return super().evaluate(x, reading)


@contextmanager
def clock(seconds: dict[str, float], what: str) -> Iterator[None]:
    """Add the wall time of what is done inside."""
    begin = time.perf_counter()
    yield
    seconds[what] += time.perf_counter() - begin


def cell(name: str, share: float, args: Any) -> dict[str, Any]:
    """Shares of a desk cell's time: local training, evaluations, the bits of the test images, and all else."""
    network, (few, many) = NETWORKS[name], (round(share * n) for n in (VALIDATION, TEST))
    sizes, found, seconds = kept(network.data, share), [], Clocked.seconds
    fed, last = federation(network, sizes, few), federation(network, sizes, many)
    clocked = Clocked(fed.data, fed.engine, fed.x0, fed.partition, fed.seed)
    run, periods = work(network, rounds=EVERY, eval_every=EVERY, cohort=0.1, progress=False), ROUNDS // EVERY
    for _ in range(args.repeats // 2 + 2):  # the first is a rehearsal
        seconds.clear()
        with clock(seconds, "all"):
            fc.simulate(fc.FedAvg(), clocked, **run)
        with clock(seconds, "correct"):
            packed(last.correct(last.x0))
        spent = {"training": periods * seconds["training"], "evaluation": (periods + 1) * seconds["evaluation"] / 2}
        spent["correct"] = seconds["correct"]
        spent["bookkeeping"] = periods * (seconds["all"] - seconds["training"] - seconds["evaluation"])
        found.append({what: part / sum(spent.values()) for what, part in spent.items()})
    shares = {what: median(one[what] for one in found[1:]) for what in found[0]}
    return {"network": name, "cohort": round(0.1 * fed.n), "shares": shares}


# --- goals ------------------------------------------------------------------------------------------------------------


def goal(group: str, what: str, limit: float, value: float, least: bool = True) -> dict[str, Any]:
    """A goal with what was measured; least: at least so much, else at most."""
    reached = value >= limit if least else value <= limit
    return {"group": group, "what": what, "goal": limit, "least": least, "value": value, "reached": reached}


def goals(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every goal, from the other parts."""
    rows = []
    for c in found["cases"]:
        name, path, ratio = f"{c['network']}, {c['cohort']} clients", c["path"], c["ratio_to_plain"]
        if c["share_of_kernels"] and (limit := NETWORKS[c["network"]].kernels):
            rows.append(goal(benchmarked.SHARE, name, limit, c["share_of_kernels"][path]))
        rows += [
            goal("over plain SGD", name + more, NETWORKS[c["network"]].goal, ratio[path + more])
            for more in ("", DECAYED)
        ]
        if (one := f"{path}, one thread") in ratio:
            rows.append(goal("second thread", name, TOLD, ratio[path] / ratio[one]))
    rows += [
        goal("unequal over equal clients", f"{c['network']}, {c['cohort']} clients", EQUAL, c["ratio"])
        for c in found["unequal"]
    ]
    return rows + [
        goal("evaluation and bookkeeping", c["network"], OTHER, 1 - c["shares"]["training"], least=False)
        for c in found["cells"]
    ]


def main() -> None:
    """Measure, print, write the JSON after each network."""
    quick = {"action": "store_true", "help": "a fifth of the samples, one cohort, one repeat: about a minute"}
    tiny = {"action": "store_true", "help": "a few samples a client: does it run?"}
    networks = {"nargs": "*", "choices": list(NETWORKS), "default": list(NETWORKS)}
    add = {"action": "store_true", "help": "keep what OUT holds of other networks, measured alike"}
    args = arguments(__doc__, 5, 2, networks=networks, quick=quick, tiny=tiny, add=add)
    share = 0.01 if args.tiny else 0.2 if args.quick else 1.0
    if args.quick or args.tiny:
        args.repeats = 1
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in ("cases", "unequal", "profile", "cells")}
    started, peaks = time.perf_counter(), kernels.peaks()
    if args.add and args.out.exists():
        stored = json.loads(args.out.read_text())
        here = {
            "code": sources.library(),
            **provenance.machine(args.device),
            "repeats": args.repeats,
            "share": share,
        }
        here["capability"] = torch.backends.cpu.get_cpu_capability()
        same = ("code", "device", "threads", "torch", "repeats", "share", "capability")
        if other := [key for key in same if stored.get(key) != here[key]]:
            raise SystemExit(f"{args.out} has other {', '.join(other)}; run it whole, without --add")
        found = {part: [row for row in stored[part] if row["network"] not in args.networks] for part in found}

    def keep(part: str, row: dict[str, Any]) -> None:
        found[part].append(row)
        figures = row.get("ratio_to_plain") or row.get("shares") or {"over equal clients": row["ratio"]}
        shown = ", ".join(f"{k} {v:.2f}" for k, v in figures.items())
        print(f"{part:8} {row['network']:26} {row['cohort']:3} {shown}", flush=True)

    for name in args.networks:
        cohorts = NETWORKS[name].cohorts[: 1 if args.quick else None]
        for cohort in cohorts:
            keep("cases", speeds(name, cohort, share, cohort == cohorts[0], args))
            if name in UNEQUAL:
                keep("unequal", unequal(name, cohort, share, args))
        if name in CELLS:
            keep("cells", cell(name, share, args))
        for decayed in (False, True) if name in PROFILED else ():
            keep("profile", where_time_goes(name, share, decayed))
        told = {
            **found,
            "peaks": peaks,
            "goals": goals(found),
            "seconds": time.perf_counter() - started,
            "share": share,
        }
        record(args, "rounds at the federations of the profile desk", told.pop("cases"), **told)


if __name__ == "__main__":
    main()
