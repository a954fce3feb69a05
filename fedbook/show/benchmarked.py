"""Stored benchmark results beside the goals that were fixed before the measurements, for the chapter on the engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from fedcore.storage import sources

from .. import pages
from . import together

DESKS = ("desk", "desk_avx2", "desk_amx")  # by processor: AMD with AVX-512, and held to AVX2; Intel with AMX
NAMES = ("flsimulator", "scaling", "memory", "mixing", "submodels", "modules", "gpu", *DESKS[1:], "bfloat16", "speed")
SHARE = "share of the fastest kernels"
KERNELS = ("kernels, mkl", "kernels, onednn")  # of float32, by the libraries that have them
# model, type: goals for the speed over the fastest other simulator, on AMD's processors with AVX-512
PEERS = {
    ("mlp", "float32"): 2.5,
    ("cnn", "float32"): 2.5,
    ("cnn", "bfloat16"): 3.0,
    ("lenet", "float32"): 2.0,
    ("lenet", "bfloat16"): 3.0,
}
# setting of benchmarks/gpu.py, type: what it is, goal for the speed of the fastest way over a loop over the clients
ON_GPU = {
    ("femnist cnn", "float32"): ("FEMNIST CNN, 340 clients", 20),
    ("pfl-research", "float32"): ("setting of pfl-research's benchmark", 20),
    ("fl-simulator", "float32"): ("ResNet18-GN, ImageNet stem, 10 clients", 10),
    ("3x3 stem", "bfloat16"): ("ResNet18-GN, 3x3 stem, bfloat16", 2),
}
# ratio of compact sub-models: goal for their speed over the whole network
SUBMODELS = {0.5: 2.4, 0.25: 5.5}
CLAIMS = {  # group of goals: the claim
    "peers": "it is 2 to 3 times as fast as the fastest other simulator, by network and number format",
    "registered": "a round takes no longer where more clients are registered",
    "memory": "the peak memory of a round is at most 1.5 times what a count of its tensors gives",
    "desk": "single networks, unequal clients, a second thread, evaluation and sub-models reach their goals",
    "GPU": "on a GPU it is 2 to 20 times as fast as a loop over the clients",
}
OPEN = "not measured yet"
BEYOND = "more than the kernels allow"


def load(folder: Path) -> dict[str, Any]:
    """Name -> the content of a benchmark's file in a folder: cases, machine and versions; None if it was not run.

    `speed.json`, by `python -m benchmarks`, has two: "desk" and "peers".
    """
    files = {name: folder / f"{name}.json" for name in NAMES}
    found = {name: json.loads(file.read_bytes()) if file.exists() else None for name, file in files.items()}
    speed = found.pop("speed") or {}
    return {**found, "desk": speed.get("desk"), "peers": speed.get("peers")}


def outdated(folder: Path) -> list[str]:
    """The benchmarks in a folder whose code hash is missing or differs from today's.  A file without a hash of its own
    may hold several benchmarks by name."""
    stored = {file.stem: json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))}
    parts = {name: [found] if "code" in found else [*found.values()] for name, found in stored.items()}
    today = sources.library()
    return [name for name, each in parts.items() if not each or any(part.get("code") != today for part in each)]


def goals(data: Mapping[str, Any]) -> Any:
    """Every goal with its measured value (pandas.DataFrame): group, what, goal, measured, reached.

    Beside a speed over plain SGD or another simulator that was missed: the speed that the round's kernels alone reach
    (the bar), and the measured speed as a part of it.  Where the bar is below the goal, the hardware refuses the goal,
    which is not counted; the goal for the share of kernels remains.
    """
    import pandas as pd

    rows: list[tuple[str, ...]] = []
    bars = _bars(data)

    def goal(group: str, what: str, limit: float, value: float | None, least: bool = True) -> None:
        reached = OPEN if value is None else "yes" if (value >= limit if least else value <= limit) else "no"
        measured, bar, share = "–" if value is None else f"{value:.3g}", "", ""
        if reached == "no" and what in bars:
            reached = BEYOND if bars[what] < limit else reached
            bar, share = f"{bars[what]:.3g}", f"{100 * value / bars[what]:.0f}%"
        rows.append((group, what, f"{'at least' if least else 'at most'} {limit:g}", measured, reached, bar, share))

    ratios = {(g["model"], g["kind"]): g["ratio"] for g in _goals(data, "peers")}
    for (model, kind), limit in PEERS.items():
        goal("peers", f"{model}, {kind}, over the fastest peer", limit, ratios.get((model, kind)))
    ratios = {g["method"]: g["ratio"] for g in _goals(data, "scaling")}
    for method in ("FedAvg", "FedUp"):
        what = f"{method}, a round with 100,000 registered clients over one with 1,000"
        goal("registered", what, 1.05, ratios.get(method), least=False)
    peaks = [c["returned"]["ratio"] for c in _cases(data, "memory")]
    goal("memory", "largest peak over what is needed", 1.5, max(peaks, default=None), least=False)
    for g in _goals(data, "desk"):
        goal("desk", f"{g['what']}, {g['group']}", g["goal"], g["value"], g["least"])
    ratios = {c["ratio"]: c["speedup"] for c in _cases(data, "submodels") if c["training"] == "compact"}
    for part, limit in SUBMODELS.items():
        goal("desk", f"sub-models of ratio {part:g}, over the whole network", limit, ratios.get(part))
    for (setting, kind), (what, limit) in ON_GPU.items():
        cases = [c for c in _cases(data, "gpu") if c["setting"] == setting and _type(c) == kind]
        fastest = max((c["times_the_loop"] for c in cases if "left_out" not in c), default=None)
        goal("GPU", f"{what}, over a loop over the clients", limit, fastest)
    return pd.DataFrame(rows, columns=["group", "what", "goal", "measured", "reached", "bar", "of the bar"])


def _bars(data: Mapping[str, Any]) -> dict[str, float]:
    """Goal over plain SGD or over the fastest peer: the speed that the kernels alone reach.

    Over the fastest peer it is the speed of plain SGD, client by client, over this peer, times that over plain SGD; the
    two benchmarks differ in batch and clients, so that it is approximate.
    """
    plain = {c["model"]: c["ratio"] for c in _cases(data, "peers") if c["runner"] == "loop"}
    found = {}
    for c in (c for c in _cases(data, "desk") if c["share_of_kernels"]):
        name, ratios = c["network"], c["ratio_to_plain"]
        found[f"{name}, {c['cohort']} clients, over plain SGD"] = bare(ratios)
        model = {"femnist_cnn": "cnn"}.get(name, name)
        for kind, more in (("float32", ""), ("bfloat16", " bfloat16")) if model in plain else ():
            found[f"{model}, {kind}, over the fastest peer"] = plain[model] * bare(ratios, more)
    return {what: bar for what, bar in found.items() if math.isfinite(bar)}


def bare(ratios: Mapping[str, float], more: str = "") -> float:
    """The speed of a round's kernels alone over plain SGD, by the fastest library; NaN where they were not timed.

    more: "" or " bfloat16".
    """
    return max((ratio for name, ratio in ratios.items() if name in [of + more for of in KERNELS]), default=math.nan)


def _type(case: Mapping[str, Any]) -> str:
    """The type in which a way of `benchmarks/gpu.py` computes."""
    return next((kind for kind in ("bfloat16", "TF32") if kind in case.get("way", "")), "float32")


def _goals(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return (data[name] or {}).get("goals", [])


def _cases(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return (data[name] or {}).get("cases", [])


def claims(measured: Any) -> pages.Html:
    """The claim box: the package's claim for each group of goals, and the number of goals that are reached."""
    return pages.claims(
        [_judged(measured[measured["group"] == group], group) for group in CLAIMS],
        setting="stored benchmarks, each with the machine that it ran on",
    )


def _judged(part: Any, group: str) -> pages.Claim:
    count = {kind: int((part["reached"] == kind).sum()) for kind in ("yes", "no", OPEN, BEYOND)}
    asked = len(part) - count[BEYOND]
    words = f"{count['yes']} of {asked} goals reached" + f", {count[OPEN]} {OPEN}" * bool(count[OPEN])
    words += f"; {count[BEYOND]} more ask{'s' * (count[BEYOND] == 1)} for {BEYOND}" * bool(count[BEYOND])
    if 2 * count[OPEN] > asked or not asked:
        verdict = "cannot be decided here"
    elif count["yes"] == asked:
        verdict = "holds"
    else:
        verdict = "holds in part" if count["yes"] else "does not hold"
    return pages.Claim("This package", CLAIMS[group], words, verdict)


def missing(name: str) -> pages.Html:
    """The placeholder for a benchmark that was not run."""
    return pages.Html(f"<p>{name}: {OPEN}.</p>", f"{name}: {OPEN}")


def where(file: Mapping[str, Any]) -> pages.Html:
    """The machine and versions of a benchmark."""
    keys = ("device", "cores", "threads", "capability", "torch", "python", "commit", "repeats", "date")
    load = file.get("load")
    return pages.setting(
        **{k: file.get(k) for k in keys}, load="not noted" if load is None else f"{load:.1f} at its end"
    )


def _spread(case: Mapping[str, Any], of: str = "ratio", value: str = "") -> str:
    """A ratio with the smallest and largest measured value."""
    return f"{case[value or of]:.2f} ({case[f'{of}_min']:.2f} to {case[f'{of}_max']:.2f})"


def _percent(case: Mapping[str, Any]) -> str:
    return f"{100 * case['accuracy']:.1f} %"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


# benchmark -> the columns of its table: a key of a case, or a function of the case
COLUMNS: dict[str, dict[str, str | Callable[[Mapping[str, Any]], Any]]] = {
    "peers": {
        "model": "model", "runner": "runner", "seconds per round": "seconds_per_round",
        "over the fastest peer": lambda c: _spread(c) if "ratio" in c else "–",
        "accuracy": _percent, "agrees": lambda c: "yes" if c["agrees"] else "NO",
    },
    "flsimulator": {
        "runner": "runner", "beside training": "beside training", "seconds per round": "seconds_per_round",
        "over FL-Simulator as it is": lambda c: _spread(c) if c["ratio_min"] < c["ratio_max"] else f"{c['ratio']:.2f}",
        "accuracy": _percent,
    },
    "gpu": {
        "setting": "setting", "way": "way", "method": lambda c: c["method"].partition("(")[0],
        "seconds per round": "round_seconds", "over a loop": "times_the_loop",
        "over the bound": lambda c: "–" if _type(c) == "TF32" else c["times_the_bound"],
        "peak, GB": lambda c: c["peak_bytes"] / 1e9,
    },
    "desk": {
        "network": "network", "data": "data", "cohort": "cohort", "path": "path",
        "over plain SGD": lambda c: c["ratio_to_plain"][c["path"]],
        "share of kernels": lambda c: c.get("share_of_kernels", {}).get(c["path"]),
        "with decay and clip": lambda c: c["ratio_to_plain"][f"{c['path']}, decay and clip"],
        "bfloat16": lambda c: c["ratio_to_plain"].get(f"{c['path']} bfloat16"),
    },
    "bfloat16": {
        "cell": "cell", "float32, %": lambda c: mean(c["float32"]), "bfloat16, %": lambda c: mean(c["bfloat16"]),
        "lost by seed, points": lambda c: ", ".join(f"{v:+.2f}" for v in c["lost"]),
        "its time over float32's": lambda c: c["seconds"]["bfloat16"] / c["seconds"]["float32"],
    },
    "memory": {
        "model": "model", "cohort": "cohort", "path": "path", "chunk": lambda c: c["chunk"] or "–",
        "needed, MB": lambda c: c["needed"] / 1e6,
        "taken over needed": lambda c: c["returned"]["ratio"],
        "goal 1.5": lambda c: "reached" if c["returned"]["reached"] else "not reached",
        "with kept blocks": lambda c: c["kept"]["ratio"],
    },
    "mixing": {
        "clients": "clients", "d": "d", "type": "dtype",
        "dense over lists": lambda c: _spread(c, value="dense_over_lists"), "chosen": "chosen",
    },
    "submodels": {
        "r": "ratio", "training": "training", "speed-up": lambda c: _spread(c, "speedup"),
        "goal when measured": lambda c: c["goal"] if c["training"] == "compact" else None,
        "what the multiply-adds allow": lambda c: 1 / c["macs_share"],
    },
}  # fmt: skip


def table(file: Mapping[str, Any], name: str) -> pages.Html:
    """All cases of a benchmark in the columns of `COLUMNS[name]`, with its setting and machine."""
    import pandas as pd

    shown = [c for c in file["cases"] if "left_out" not in c and c.get("setting") != "device"]
    cases = [{head: c[of] if isinstance(of, str) else of(c) for head, of in COLUMNS[name].items()} for c in shown]
    caption, notes = file["what"], {}
    if name == "peers":
        caption += f"; agrees: accuracy within {100 * file['tolerance']:.0f} points of fedcore's"
        notes["versions"] = "; ".join(f"{of} {_versions(these)}" for of, these in file["versions"].items())
        notes["could_not_be_run"] = "; ".join(f"{of}: {why}" for of, why in file["missing"].items()) or "none"
    elif name == "flsimulator":
        caption = f"FL-Simulator's documented setting on {file['source']}: {caption}"
        notes = {**file["setting"], "versions": _versions(file["versions"])}
    elif name == "gpu":
        caption = f"{caption.capitalize()}; the bound is the least time for the counted work, at these rates"
        rates = {kind: f"{file['cases'][0][kind] / 1e12:.3g}" for kind in ("float32", "bfloat16", "bytes")}
        notes = {"10¹² per second": ", ".join(f"{kind} {rate}" for kind, rate in rates.items())}
        notes |= {"notes": file["notes"]} if "notes" in file else {}
    elif name == "desk":
        reached = f"{sum(g['reached'] for g in file['goals'])} of {len(file['goals'])} goals reached"
        caption = f"{file['device']}, {file['capability']}, {file['threads']} threads: {caption}; {reached}"
        for cell in file["cells"]:
            shares = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in cell["shares"].items())
            notes[f"{cell['network']}: share of a cell"] = shares
    parts = [pages.table(pd.DataFrame(cases), caption, 3)]
    parts += [pages.setting(**notes)] if notes else []
    return together([*parts, where(file)])


def choices(desk: Mapping[str, Any]) -> pages.Html:
    """The path that `path="auto"` takes for the networks of the profile desk, with the measured ratios behind it."""
    import pandas as pd

    rows = []
    for case in (case for case in desk["cases"] if case["share_of_kernels"]):
        path, ratios = case["path"], case["ratio_to_plain"]
        rows.append(
            {
                "network": case["network"],
                "path": path,
                "over plain SGD": ratios[path],
                "share of kernels": f"{100 * case['share_of_kernels'][path]:.0f}%",
                "bfloat16 over float32": ratios[f"{path} bfloat16"] / ratios[path],
                "second thread": ratios[path] / ratios[f"{path}, one thread"],
            }
        )
    return pages.table(
        pd.DataFrame(rows), "By network: two threads, ten clients (the network of five domains: five)", 3
    )


def other_choices(data: Mapping[str, Any]) -> pages.Html:
    """What to choose in which case, with the measured factors: the smallest and the largest over the networks."""
    import pandas as pd

    cases = [case for case in data["desk"]["cases"] if case["share_of_kernels"]]
    speeds = [(case["path"], case["ratio_to_plain"]) for case in cases]
    own = [row["speed over one client after another"] for row in data["modules"]["cases"] if row["path"] == "batched"]
    peaks = [c for c in data["memory"]["cases"] if (c["model"], c["cohort"], c["path"]) == ("mlp", 50, "batched")]
    chunks = {c["chunk"]: c["needed"] * c["returned"]["ratio"] for c in peaks}  # bytes, measured
    plain = [ratios["written"] for path, ratios in speeds if path == "written"]
    low = [ratios[f"{path} bfloat16"] / ratios[path] for path, ratios in speeds]
    two = [ratios[path] / ratios[f"{path}, one thread"] for path, ratios in speeds]
    rows = [
        ("plain layers", "path='auto', written", plain, "times as fast as plain SGD"),
        ("attention, LSTM, GRU", "path='auto', batched", own, "times as fast as one client after another"),
        ("networks of the fold above", "compute=torch.bfloat16", low, "times as fast as in float32"),
        ("a free core", "torch.set_num_threads(2)", two, "times as fast as one thread"),
        ("50 MLPs, little memory", "chunk=10", [chunks[10] / chunks[None]], "times the memory without chunks"),
    ]
    found = [
        (case, choice, f"{' to '.join(f'{v:.2f}' for v in sorted({min(gains), max(gains)}))} {meaning}")
        for case, choice, gains, meaning in rows
    ]
    caption = "What each setting changed: two threads and ten clients, where nothing else is said"
    return pages.table(pd.DataFrame(found, columns=["case", "setting", "effect"]), caption, 3)
