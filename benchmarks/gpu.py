"""Rounds on a GPU: fedcore's ways, a sequential eager loop, and the bound from counted work.  One command:

    python benchmarks/gpu.py results/benchmarks/gpu.json --device cuda [--repeats 5] [--small]

Synthetic data in the shapes of: FL-Simulator's setting (100 clients, 10 a round, 5 epochs, batch 50, ResNet18-GN with
the ImageNet stem; it publishes 15.86 s a FedAvg round and 30.43 s FedSMOO on a V100), pfl-research's (1,000 clients of
50, 50 a round, batch 10; the two-convolution network here is the CIFAR LeNet), a cell of the FedUp study's Table 4
(batch 32, one epoch, unequal clients, 1,500 rounds with an evaluation every 10), FEMNIST's CNN, and the 3x3 stem.

First the device must give what the CPU gives, in float64, to 1e-6 of the step.  A round is timed as a whole, wall time
between synchronisations, median of the repeats after a rehearsal; the first method of a setting in every way, the
others in the way that was fastest.  The loop is plain PyTorch, one client after another, taking FedAvg's steps (those
of one round, or `--loop-steps` of them, scaled).  Both compute float32 as float32, and in TF32 where a way says so.

bound: the larger of counted operations over the device's rate and counted bytes over its bandwidth, both measured here
(a matrix product, a copy).  Operations: those of `torch.utils.flop_counter`; bytes: each activation written and read
forward and backward, and of each client and step the parameters read twice, gradients written and read, parameters
written (one gradient a step, as FedAvg).
--small runs all of it end to end on a CPU, tiny and without the ResNets; its figures mean nothing.  --dry runs all of
it on a pretended GPU (`tools/pretend_gpu.py`), so that a GPU's minutes are not spent on slips; it writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from common import record, unevaluated
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.flop_counter import FlopCounterMode

import fedcore as fc
from fedbook.results import provenance
from fedcore import rng
from fedcore.data import Plan
from fedcore.engine import replay
from fedcore.engine.undisturbed import Held, as_usual

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools import pretend_gpu

CIFAR, FEMNIST = ((3, 32, 32), 10), ((1, 28, 28), 62)
# data, model, clients, samples a client, cohort, batch, epochs, methods, partition, goal over the loop
SETTINGS = {
    "fl-simulator": (CIFAR, "resnet18_gn", 100, 500, 10, 50, 5, [fc.FedAvg(), fc.FedSMOO()], None, 10),
    "pfl-research": (CIFAR, "lenet", 1000, 50, 50, 10, 1, [fc.FedAvg()], None, 20),
    "table 4": (CIFAR, "resnet18_gn", 100, 500, 10, 32, 1, [fc.FedUp()], fc.Dirichlet(0.3), 10),
    "femnist cnn": (FEMNIST, "femnist_cnn", 1000, 200, 340, 20, 1, [fc.FedAvg()], None, 20),
    "3x3 stem": (CIFAR, "resnet18_gn_3x3", 100, 500, 10, 32, 1, [fc.FedAvg()], None, 2),
}
SMALL = {"clients": 6, "samples": 4, "cohort": 3, "batch": 2}
WAYS = {  # name: options of the federation, and whether gradients are replayed
    "batched": ({"path": "batched"}, False), "batched, graphs": ({"path": "batched"}, True),
    "written": ({"path": "written"}, False), "written, graphs": ({"path": "written"}, True),
    "batched, bfloat16": ({"path": "batched", "compute": torch.bfloat16}, False),
    "written, bfloat16": ({"path": "written", "compute": torch.bfloat16}, False),
    "written, bfloat16, graphs": ({"path": "written", "compute": torch.bfloat16}, True),
    "batched, TF32, graphs": ({"path": "batched"}, True), "written, TF32, graphs": ({"path": "written"}, True),
}  # fmt: skip


def useful(plan: Plan) -> dict[str, float]:
    """The share of real samples among those computed: `prefix` as the rows are sorted, `padded` in lock-step."""
    places = {"prefix": sum(plan.working), "padded": plan.steps.max() * len(plan.steps)}
    return {name: float(plan.counts.sum() / (plan.indices.shape[2] * n)) for name, n in places.items()}


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median wall time after one rehearsal."""
    times = []
    for _ in range(repeats + 1):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rates(device: torch.device, small: bool) -> dict[str, float]:
    """Operations a second of a large matrix product in float32 and bfloat16, bytes a second of a large copy."""
    n, out = 256 if small else 8192, {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a = torch.randn(n, n, device=device, dtype=dtype)
        out[name] = 2 * n**3 / seconds(lambda a=a: a @ a, device, 5)
    a = torch.empty(1 << (20 if small else 30), dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return out | {"bytes": 2 * a.numel() / seconds(lambda: b.copy_(a), device, 5)}


def loop(fed: fc.Federation, plan, lr: float, most: int) -> tuple[Callable[[], None], float]:
    """At most `most` steps of the round, one client after another, and the share of the round's steps that they are."""
    net = fed.engine.module
    start = [p.detach().clone() for p in net.parameters()]
    steps = [(i, k) for i in range(len(plan.steps)) for k in range(plan.steps[i])][:most]

    @as_usual()
    def go() -> None:
        net.train()
        opt = torch.optim.SGD(net.parameters(), lr=lr)
        for i, k in steps:
            if k == 0:
                with torch.no_grad():
                    for p, s in zip(net.parameters(), start, strict=True):
                        p.copy_(s)
            rows = plan.indices[k, i, : plan.counts[k, i]]
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(net(fed.inputs(fed.x[rows])), fed.y[rows]).backward()
            opt.step()

    return go, len(steps) / int(plan.steps.sum())


def bound(fed: fc.Federation, plan, rate: dict[str, float], dtype: str) -> dict[str, float]:
    """Counted work of a round, and the least time that it takes at these rates."""
    net, samples, one = fed.engine.module, int(plan.counts.sum()), fed.inputs(fed.x[:1])
    with FlopCounterMode(display=False) as counter:
        net(one).sum().backward()
    operations, size = samples * counter.get_total_flops(), 2 if dtype == "bfloat16" else 4
    moved = 4 * size * samples * fed.engine.width(fed.inputs(fed.x[:2])) + 5 * 4 * fed.d * int(plan.steps.sum())
    times = {"operations_seconds": operations / rate[dtype], "bytes_seconds": moved / rate["bytes"]}
    return {"operations": operations, "bytes": moved, **times, "bound_seconds": max(times.values())}


def deviations(make: Callable[..., fc.Federation], device: torch.device, dry: bool) -> Callable[[str, bool], float]:
    """A function of a path, replayed or not: the largest deviation of its round on the device from the round on the
    CPU, in float64, over the largest change.  It raises AssertionError where that is 1e-6 or more."""
    fed = unevaluated(make(dtype=torch.float64, device=device if dry else "cpu"))
    run = {"rounds": 1, "cohort": 2, "local_steps": 2, "batch_size": 4, "lr": 0.01, "progress": False}
    want = fc.simulate(fc.FedAvg(), fed.forced("sequential"), **run).params

    @cache
    def deviation(path: str, replayed: bool) -> float:
        own = unevaluated(fed.forced(path))
        got = fc.simulate(fc.FedAvg(), replay.graphed(own) if replayed else own, device=device, **run).params.cpu()
        if dry:  # no numbers to compare
            return math.nan
        error = float((got - want).abs().max() / (want - fed.x0).abs().max())
        if not error < 1e-6:
            raise AssertionError(f"{path}{', graphs' * replayed}: {error:.2g} from the CPU's round")
        return error

    return deviation


def setting(name: str, args: argparse.Namespace, rate: dict[str, float]) -> list[dict]:
    """The lines of one setting."""
    ((shape, classes), model, clients, samples, cohort, batch, epochs, methods, partition, goal) = SETTINGS[name]
    if args.small:
        clients, samples, cohort, batch, epochs = *SMALL.values(), 1
        model = model if shape[0] == 1 else "lenet"
    device, draw, lines = torch.device(args.device), np.random.default_rng(0), []
    x, y = draw.integers(0, 256, (clients * samples, *shape), np.uint8), draw.integers(0, classes, clients * samples)
    y[:classes] = np.arange(classes) if len(y) >= classes else y[:classes]
    test = slice(0, 4 if args.small else 10_000)

    def make(device: torch.device | str, **options) -> fc.Federation:
        options |= {"partition": partition if len(y) > 1000 else None, "model": model}
        if not args.dry:
            return fc.federation(((x, y), (x[test], y[test])), clients, device=device, **options)
        with unset_fake_temporarily():
            fed = fc.federation(((x, y), (x[test], y[test])), clients, device="cpu", **options)
        return pretend_gpu.on_gpu(fed)

    plain = make(device=device)
    plan = plain.plan(0, 0, np.array(rng.cohort(0, 0, clients, cohort)), epochs=epochs, batch_size=batch)
    eager, share = loop(plain, plan, 0.01, args.loop_steps)
    slow = seconds(eager, device, 1) / share
    evaluation = seconds(lambda: plain.evaluate(plain.x0), device, 1)
    deviation, made = deviations(make, device, args.dry), cache(lambda compute: make(device=device, compute=compute))

    def timed(way: str, method: fc.Method) -> dict:
        options, replayed = WAYS[way]
        fed = made(options.get("compute")).forced(options["path"])
        fed, error = unevaluated(replay.graphed(fed) if replayed else fed), deviation(options["path"], replayed)
        run = {"rounds": 1, "cohort": cohort, "lr": 0.01, "local_epochs": epochs, "batch_size": batch}
        if device.type == "cuda" and not args.dry:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        precision = "tf32" if "TF32" in way else "ieee"
        with Held().values((torch.backends.cuda.matmul, "fp32_precision", precision)):
            took = seconds(lambda: fc.simulate(method, fed, progress=False, **run), device, args.repeats)
        line = {
            "setting": name, "way": way, "method": repr(method), "parameters": fed.d, "cohort": cohort,
            "batch": batch, "steps": int(plan.steps.sum()), "samples": int(plan.counts.sum()),
            "useful": useful(plan), "round_seconds": took, "loop_seconds": slow, "times_the_loop": slow / took,
            "goal": goal,
            "evaluation_seconds": evaluation, "hours_of_1500_rounds": (1500 * took + 150 * evaluation) / 3600,
            **bound(plain, plan, rate, "bfloat16" if "compute" in options else "float32"), "deviation": error,
        }  # fmt: skip
        if device.type == "cuda" and not args.dry:
            line["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        print(
            f"{name:13} {way:26} {type(method).__name__:8} {took:8.4f} s a round, {slow / took:6.1f} times as fast "
            f"as the loop, {took / line['bound_seconds']:6.1f} times the bound", flush=True,
        )  # fmt: skip
        return line | {"times_the_bound": took / line["bound_seconds"]}

    first, *others = methods
    for way in WAYS:
        try:
            lines.append(timed(way, first))
        except (ValueError, RuntimeError, AssertionError) as e:  # no rule for this model, no memory, a wrong result
            print(f"{name:13} {way:26} left out: {str(e)[:300]}", flush=True)
            lines.append({"setting": name, "way": way, "left_out": str(e)[:300]})
    fastest = min((line for line in lines if "left_out" not in line), key=lambda line: line["round_seconds"])["way"]
    return [*lines, *(timed(fastest, method) for method in others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--loop-steps", type=int, default=200, help="steps of the eager loop that are timed")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--small", action="store_true", help="tiny sizes, one repeat: does it run?")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on a pretended GPU: are there slips?")
    args = parser.parse_args()
    args.small = args.small or args.dry
    if not args.dry:
        provenance.check_committed(args.out)
    if args.small:
        args.repeats, args.loop_steps = 1, 4
    with pretended() if args.dry else contextlib.nullcontext():
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Write what the device can do and the lines of each setting, as soon as they are known."""
    rate = rates(torch.device(args.device), args.small)
    about = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    lines = [{"setting": "device", **rate, **(about if args.device.startswith("cuda") else {})}]
    for name in args.settings:
        lines += setting(name, args, rate)
        if not args.dry:
            record(args, "one federated round on a device, in seconds", lines)


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """A pretended GPU for this script: nothing to wait for, to capture or to differentiate."""
    patches = [
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch.Tensor, "backward"),
        mock.patch.object(replay, "capture", lambda work, device: ((lambda: None), work())),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(pretend_gpu.pretended_gpu())
        yield


if __name__ == "__main__":
    main()
