"""What the benchmarks stored, beside the goals that were written down before: the chapter on the engine shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedcore.storage import sources

from .. import pages
from . import together

NAMES = (
    "paths",
    "paths_2threads",
    "peers",
    "peers_lenet",
    "flsimulator",
    "scaling",
    "memory",
    "mixing",
    "submodels",
    "modules",
    "compile",
    "gpu",
    "desk",
    "desk_avx2",
)
# model: a sample's shape and the number of classes, as benchmarks/paths.py trains it
SHAPES = {
    "logistic": ((1, 28, 28), 10),
    "mlp": ((1, 28, 28), 10),
    "femnist_cnn": ((1, 28, 28), 62),
    "lenet": ((3, 32, 32), 10),
    "thesis_cnn": ((1, 28, 28), 10),
    "resnet18_gn": ((3, 32, 32), 10),
    "resnet18_gn_3x3": ((3, 32, 32), 10),
}
# model: times plain SGD of one model in float32, one thread; the same with convolutions in bfloat16
PLAIN = {
    "logistic": (4.0, None),
    "mlp": (3.5, None),
    "femnist_cnn": (2.2, 3.2),
    "lenet": (1.15, 2.2),
    "thesis_cnn": (1.0, 1.75),
    "resnet18_gn": (1.0, 2.1),
    "resnet18_gn_3x3": (1.0, 2.1),
}
# model, type: times the fastest other simulator
PEERS = {
    ("mlp", "float32"): 3.0,
    ("cnn", "float32"): 3.0,
    ("cnn", "bfloat16"): 4.5,
    ("lenet", "float32"): 1.8,
    ("lenet", "bfloat16"): 3.0,
}
ON_GPU = {
    "FEMNIST CNN, over the sequential eager loop": 20,
    "setting of pfl-research's benchmark, over the sequential eager loop": 20,
    "ResNet18-GN, ImageNet stem, 10 clients, over the sequential eager loop": 10,
    "ResNet18-GN, 3x3 stem, bfloat16, over the sequential eager loop": 2,
}
CLAIMS = {  # group of goals: what is claimed
    "one thread": "on its best path training a cohort together beats plain SGD on the same samples, one thread",
    "two threads": "a second thread makes a round at least 1.7 times as fast",
    "peers": "it is 1.8 to 4.5 times as fast as the fastest of the other simulators",
    "registered": "a round takes no longer where more clients are registered",
    "memory": "a round takes at most 1.5 times the memory that it must",
    "desk": "at the unequal clients of the profile desk, networks, second thread and evaluation reach their goals",
    "GPU": "on a GPU it is 2 to 20 times as fast as a loop over the clients",
}
FLOAT32 = ("written", "batched", "sequential")
OPEN = "not measured yet"


def load(folder: Path) -> dict[str, Any]:
    """Name -> a benchmark's file under a folder: its cases, machine and versions; None where it was not run."""
    files = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(file.read_bytes()) if file.exists() else None for name, file in files.items()}


def outdated(folder: Path) -> list[str]:
    """The benchmarks in a folder that measured another code than today's, or do not say which."""
    stored = {file.stem: json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))}
    return [name for name, found in stored.items() if found.get("code") != sources.library()]


def best(case: Mapping[str, Any], kind: str = "float32", of: str = "ratio_to_plain") -> tuple[float, str] | None:
    """The fastest path of a case, and its figure; None where no path of that kind was timed."""
    names = FLOAT32 if kind == "float32" else ("written bfloat16",)
    found = [(case[of][name], name) for name in names if name in case[of]]
    return max(found) if found else None


def typical(data: Mapping[str, Any], file: str, model: str) -> dict[str, Any] | None:
    """The case of a model that goals are about: 10 clients (5 where no more were run), batch 20."""
    cases = [c for c in (data[file] or {"cases": []})["cases"] if c["model"] == model and c["batch"] == 20]
    return max((c for c in cases if c["cohort"] <= 10), key=lambda c: c["cohort"], default=None)


class Work(NamedTuple):
    """What a step of local SGD must compute and move, counted, not timed.

    operations: multiplications and additions of all products and convolutions for one sample, forward and back.  d: the
    client's parameters.  width: numbers that the layers give for one sample, its own among them.
    """

    operations: int
    d: int
    width: int

    def moved(self, batch: int, size: int = 4) -> int:
        """Bytes of one client's step that move at least: parameters and activations, each written and read once."""
        return 2 * size * (self.d + batch * self.width)

    def intensity(self, batch: int, size: int = 4) -> float:
        """Operations for each byte moved; the same for every number of clients."""
        return batch * self.operations / self.moved(batch, size)


def work(model: str) -> Work:
    """The counts of a model of the benchmarks: PyTorch's counter over one gradient, the engine's over the layers."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    from fedcore import models
    from fedcore.engine import Engine

    shape, classes = SHAPES[model]
    net = models.MODELS[model](shape, classes)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(net(torch.zeros(1, *shape)), torch.zeros(1, dtype=torch.int64)).backward()
    engine = Engine(net)
    return Work(counter.get_total_flops(), engine.layout.d, engine.width(torch.zeros(2, *shape)))


def settings(data: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    """Samples of a step -> the cohort and the batch that were timed, for the models that were timed at several."""
    pairs = sorted((c["cohort"], c["batch"]) for c in data["paths"]["cases"] if c["model"] == "mlp")
    return dict(sorted({m * batch: (m, batch) for m, batch in pairs}.items()))


def goal(group: str, what: str, limit: float, value: float | None, least: bool = True) -> dict[str, str]:
    """A row of the table of goals."""
    reached = OPEN if value is None else ("yes" if (value >= limit if least else value <= limit) else "no")
    measured = "–" if value is None else f"{value:.3g}"
    return {
        "group": group,
        "what": what,
        "goal": f"{'at least' if least else 'at most'} {limit:g}",
        "measured": measured,
        "reached": reached,
    }


def goals(data: Mapping[str, Any]) -> Any:
    """Every goal with what was measured (pandas.DataFrame): group, what, goal, measured, reached."""
    import pandas as pd

    rows = []
    for model, limits in PLAIN.items():
        for kind, limit in zip(("float32", "bfloat16"), limits, strict=True):
            case = typical(data, "paths", model)
            found = case and best(case, kind)
            if limit is not None:
                rows.append(goal("one thread", f"{model}, {kind}, over plain SGD", limit, found[0] if found else None))
    for model in PLAIN:
        one, two = typical(data, "paths", model), typical(data, "paths_2threads", model)
        value = best(two, of="samples_per_second")[0] / best(one, of="samples_per_second")[0] if one and two else None
        rows.append(goal("two threads", f"{model}, best path, over one thread", 1.7, value))
    ratios = {(g["model"], g["kind"]): g["ratio"] for g in (data["peers"] or {"goals": []})["goals"]}
    for (model, kind), limit in PEERS.items():
        rows.append(goal("peers", f"{model}, {kind}, over the fastest peer", limit, ratios.get((model, kind))))
    ratios = {g["method"]: g["ratio"] for g in (data["scaling"] or {"goals": []})["goals"]}
    for method in ("FedAvg", "FedUp"):
        what = f"{method}, a round with 100,000 registered clients over one with 1,000"
        rows.append(goal("registered", what, 1.05, ratios.get(method), least=False))
    peaks = [c["returned"]["ratio"] for c in (data["memory"] or {"cases": []})["cases"]]
    rows.append(goal("memory", "largest peak over what is needed", 1.5, max(peaks, default=None), least=False))
    for g in (data["desk"] or {"goals": []})["goals"]:
        rows.append(goal("desk", f"{g['what']}, {g['group']}", g["goal"], g["value"], g["least"]))
    ratios = {g["kind"]: g["ratio"] for g in (data["gpu"] or {}).get("goals", [])}
    for what, limit in ON_GPU.items():
        rows.append(goal("GPU", what, limit, ratios.get(what)))
    return pd.DataFrame(rows)


def claims(measured: Any) -> pages.Html:
    """The claim box: what this package claims for each group of goals, and how many of them are reached."""
    return pages.claims(
        [_judged(measured[measured["group"] == group], group) for group in CLAIMS],
        seeds=1,
        setting="stored benchmarks, each with the machine that it ran on",
    )


def _judged(part: Any, group: str) -> pages.Claim:
    count = {kind: int((part["reached"] == kind).sum()) for kind in ("yes", "no", OPEN)}
    words = f"of {len(part)} goals {count['yes']} are reached, {count['no']} are not"
    words += f", {count[OPEN]} are {OPEN}" * bool(count[OPEN])
    if 2 * count[OPEN] > len(part):
        verdict = "cannot be decided here"
    elif count["yes"] == len(part):
        verdict = "holds"
    else:
        verdict = "holds in part" if count["yes"] else "does not hold"
    return pages.Claim("This package", CLAIMS[group], words, verdict)


def missing(name: str) -> pages.Html:
    """In place of a benchmark that was not run."""
    return pages.Html(f"<p>{name}: {OPEN}.</p>", f"{name}: {OPEN}")


def where(file: Mapping[str, Any]) -> pages.Html:
    """The machine and versions of a benchmark."""
    keys = ("device", "cores", "threads", "capability", "torch", "python", "commit", "repeats", "date")
    load = file.get("load")
    return pages.setting(
        **{k: file.get(k) for k in keys}, load="not noted" if load is None else f"{load:.1f} at its end"
    )


def peers_table(file: Mapping[str, Any]) -> pages.Html:
    """Every runner of the comparison with other simulators: seconds, ratio, accuracy; and what could not be run."""
    import pandas as pd

    lines = [
        {
            "model": c["model"],
            "runner": c["runner"],
            "seconds a round": c["seconds_per_round"],
            "over the fastest peer": "–"
            if "ratio" not in c
            else f"{c['ratio']:.2f} ({c['ratio_min']:.2f} to {c['ratio_max']:.2f})",
            "accuracy": f"{100 * c['accuracy']:.1f} %",
            "agrees": "yes" if c["agrees"] else "NO",
        }
        for c in file["cases"]
    ]
    caption = f"{file['what']}; accuracies agree within {100 * file['tolerance']:.0f} points of fedcore's"
    versions = "; ".join(
        f"{k} {', '.join(f'{n} {v}' for n, v in file['versions'][k].items())}" for k in file["versions"]
    )
    out = "; ".join(f"{k}: {v}" for k, v in file["missing"].items()) or "none"
    notes = pages.setting(versions=versions, could_not_be_run=out)
    return together([pages.table(pd.DataFrame(lines), caption, 3), notes, where(file)])


def memory_table(file: Mapping[str, Any]) -> pages.Html:
    """The peak of memory of a round over what it must take."""
    import pandas as pd

    found = [
        {
            "model": c["model"],
            "cohort": c["cohort"],
            "path": c["path"],
            "chunk": c["chunk"] or "–",
            "needed, MB": c["needed"] / 1e6,
            "taken over needed": c["returned"]["ratio"],
            "goal 1.5": "reached" if c["returned"]["reached"] else "not reached",
            "with kept blocks": c["kept"]["ratio"],
        }
        for c in file["cases"]
    ]
    return together([pages.table(pd.DataFrame(found), file["what"], 3), where(file)])


def choices(data: Mapping[str, Any]) -> pages.Html:
    """What to choose when, each row with the measured ratio that it rests on and the machine it was measured on."""
    import pandas as pd
    import torch

    from fedcore.engine.choose import blocks

    rows = []
    for model in PLAIN:
        one, two = typical(data, "paths", model), typical(data, "paths_2threads", model)
        (ratio, path), low, counts = best(one), best(one, "bfloat16"), work(model)
        parts = blocks(one["cohort"], None, counts.moved(20), counts.d, torch.device("cpu"))
        size = max(part.stop - part.start for part in parts)
        gain = best(two, of="samples_per_second")[0] / best(one, of="samples_per_second")[0]
        rows.append(
            {
                "model": model,
                "path": path,
                "clients in a block": size,
                "over plain SGD": ratio,
                "bare products' share": f"{100 * ratio / one['ratio_to_plain']['bare work']:.0f} %",
                "bfloat16 over float32": low[0] / ratio if low else None,
                "second thread": gain,
            }
        )
    return pages.table(pd.DataFrame(rows), "By model: 10 clients (5 of the last), batch 20", 3)


def other_choices(data: Mapping[str, Any]) -> pages.Html:
    """What else can be chosen, beside the path of plain layers."""
    import pandas as pd

    own = [row["speed over one client after another"] for row in data["modules"]["cases"] if row["path"] == "batched"]
    eager = [case["compiled_seconds"] / case["written_seconds"] for case in data["compile"]["cases"]]
    chunks = {c["chunk"]: c["needed"] for c in data["memory"]["cases"] if (c["model"], c["cohort"]) == ("mlp", 50)}
    lists = next(c for c in data["mixing"]["cases"] if (c["clients"], c["dtype"]) == (1000, "float32"))
    small = next(c for c in data["submodels"]["cases"] if (c["ratio"], c["training"]) == (0.25, "compact"))
    rows = [
        ("attention, LSTM, GRU", "path='auto', batched", own, "one client after another"),
        ("mlp, femnist_cnn", "no torch.compile", eager, "the compiled batched gradient"),
        ("50 MLPs, little memory", "chunk=10", [chunks[None] / chunks[10]], "no chunks, in memory needed"),
        ("1,000 clients, no server", "lists of neighbours", [lists["dense_over_lists"]], "a dense product"),
        ("a quarter of the width", "training='compact'", [small["speedup"]], "the whole network"),
    ]
    found = [(*row[:2], " to ".join(f"{v:.2f}" for v in sorted({min(row[2]), max(row[2])})), row[3]) for row in rows]
    return pages.table(pd.DataFrame(found, columns=["when", "choose", "ratio", "over"]), "Beside the path", 3)


def at_home(data: Mapping[str, Any]) -> dict[str, str]:
    """What a registered client that stays at home takes, in bytes of a round's peak: method -> bytes."""
    found = {}
    for method in dict.fromkeys(c["method"] for c in data["scaling"]["cases"]):
        cases = [c for c in data["scaling"]["cases"] if c["against"] == "registered" and c["method"] == method]
        few, many = (pick(cases, key=lambda c: c["clients"]) for pick in (min, max))
        each = (many["peak_bytes"] - few["peak_bytes"]) / (many["clients"] - few["clients"])
        found[f"{method}, a client at home"] = f"{each:,.0f} bytes"
    return found


def mixing_table(file: Mapping[str, Any]) -> pages.Html:
    """A mixing step over lists of neighbours against a dense product."""
    import pandas as pd

    found = [
        {
            "clients": c["clients"],
            "d": c["d"],
            "type": c["dtype"],
            "dense over lists": f"{c['dense_over_lists']:.2f} ({c['ratio_min']:.2f} to {c['ratio_max']:.2f})",
            "chosen": c["chosen"],
        }
        for c in file["cases"]
    ]
    return together([pages.table(pd.DataFrame(found), file["what"]), where(file)])


def desk_table(file: Mapping[str, Any]) -> pages.Html:
    """The networks of the profile desk at its federations, against plain SGD of one model on the same samples."""
    import pandas as pd

    found = [
        {
            "network": case["network"],
            "data": case["data"],
            "cohort": case["cohort"],
            "path": case["path"],
            "over plain SGD": case["ratio_to_plain"][case["path"]],
            "with decay and clip": case["ratio_to_plain"][f"{case['path']}, decay and clip"],
            "bfloat16": case["ratio_to_plain"].get(f"{case['path']} bfloat16"),
        }
        for case in file["cases"]
    ]
    shares = {
        f"{cell['network']}: share of a cell": ", ".join(f"{k} {100 * v:.0f} %" for k, v in cell["shares"].items())
        for cell in file["cells"]
    }
    reached = sum(g["reached"] for g in file["goals"])
    caption = (
        f"{file['what'].capitalize()}, {file['threads']} threads, {file['capability']}; "
        f"{reached} of {len(file['goals'])} goals reached"
    )
    table = pages.table(pd.DataFrame(found), caption, 3)
    return together([table, pages.setting(**shares), where(file)])


def submodels_table(file: Mapping[str, Any]) -> pages.Html:
    """A round on compact sub-models against one on the whole network."""
    import pandas as pd

    found = [
        {
            "r": c["ratio"],
            "training": c["training"],
            "speed-up": f"{c['speedup']:.2f} ({c['speedup_min']:.2f} to {c['speedup_max']:.2f})",
            "goal": c["goal"] if c["training"] == "compact" else None,
            "what the multiply-adds allow": 1 / c["macs_share"],
        }
        for c in file["cases"]
    ]
    spent = {part["ratio"]: {k: 1e3 * v for k, v in part["seconds"].items()} for part in file["profile"]}
    kinds = [
        {
            "operators": kind,
            **{f"r = {r:g}, ms": spent[r].get(kind, 0.0) for r in spent},
            **{f"over r = {r:g}": whole / spent[r][kind] if spent[r].get(kind) else None for r in spent if r < 1},
        }
        for kind, whole in spent[1.0].items()
    ]
    caption = "Where a round's time goes: what shrinks like the multiply-adds, and what does not"
    tables = [pages.table(pd.DataFrame(found), file["what"], 3), pages.table(pd.DataFrame(kinds), caption, 3)]
    return together([*tables, where(file)])


def flsimulator_table(file: Mapping[str, Any]) -> pages.Html:
    """FL-Simulator as its users run it, and fedcore on the same federation."""
    import pandas as pd

    found = [
        {
            "runner": c["runner"],
            "beside training": c["beside training"],
            "seconds a round": c["seconds_per_round"],
            "over FL-Simulator as it is": f"{c['ratio']:.2f}"
            + (f" ({c['ratio_min']:.2f} to {c['ratio_max']:.2f})" if file["repeats"] > 1 else ""),
            "accuracy": f"{100 * c['accuracy']:.1f} %",
        }
        for c in file["cases"]
    ]
    caption = f"FL-Simulator's documented setting on {file['source']}: {file['what']}"
    versions = ", ".join(f"{name} {version}" for name, version in file["versions"].items())
    setting = pages.setting(**file["setting"], versions=versions)
    return together([pages.table(pd.DataFrame(found), caption, 3), setting, where(file)])
