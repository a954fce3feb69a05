"""The figures of the chapter on the engine: one schematic, the others from stored benchmark results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import pages
from ..pictures import plots, widgets
from . import benchmarked
from .benchmarked import missing, where

LOOKS = {  # a path's colour and marker
    "written": (plots.COLOURS[0], "o"),
    "batched": (plots.COLOURS[1], "s"),
    "sequential": (plots.COLOURS[2], "^"),
    "written bfloat16": (plots.COLOURS[3], "D"),
}
STEPS = (
    ("$x$", "the server's model, $d$ numbers"),
    ("$Y$", "broadcast: one row for each client"),
    ("block", "some rows, which one thread takes"),
    ("$W$", "load: each layer's weights"),
    ("$z = h W^T$", "forward: one batched product for a layer"),
    ("$e$", "softmax minus one-hot, weighted"),
    ("$e W$", "back: the error of the layer below"),
    (r"$W - \eta\, e^T h$", "step: the product subtracts while it sums"),
    ("$Y$", "store: the rows, after $K$ steps"),
    ("$x$", "aggregate: the mean of the rows"),
)


def one_round() -> Any:
    """A schematic of a round of local SGD on the written path: the matrix Y from one server model to the next."""
    fig, ax = plots.figure(height=3.6)
    ax.set_axis_off()
    for k, (what, words) in enumerate(STEPS):
        y = -k
        ax.text(0.9, y, what, ha="center", va="center")
        ax.text(2.75, y, words, ha="left", va="center")
        if k + 1 < len(STEPS):
            ax.annotate("", (0.9, y - 0.74), (0.9, y - 0.26), arrowprops={"arrowstyle": "-|>", "color": "#767676"})
    for k, (clients, parts) in {0: (1, 1), 1: (4, 1), 2: (2, 1), 3: (2, 3), 8: (4, 1), 9: (1, 1)}.items():
        _matrix(ax, -k, clients, parts)
    ax.plot([-0.15, -0.4, -0.4, -0.15], [-7, -7, -4, -4], color=plots.COLOURS[1], linestyle="-")
    ax.annotate("", (0.1, -4), (-0.2, -4), arrowprops={"arrowstyle": "-|>", "color": plots.COLOURS[1]})
    ax.text(-0.6, -5.5, "$K$ times", rotation=90, ha="center", va="center", color=plots.COLOURS[1])
    ax.set(xlim=(-0.8, 7.2), ylim=(-9.5, 0.5))
    return fig


def _matrix(ax: Any, y: float, clients: int, parts: int) -> None:
    """Draw one row per client beside the symbol, divided into the layers of a model."""
    from matplotlib.patches import Rectangle

    height, left, width = 0.17, 1.55, 0.95
    for row in range(clients):
        for part in range(parts):
            at = left + part * width / parts, y + height * (clients / 2 - row - 1)
            size = width / parts - 0.05 * (parts > 1), height - 0.04
            ax.add_patch(Rectangle(at, *size, facecolor=plots.COLOURS[row], edgecolor="none"))


def by_path(desk: Mapping[str, Any], clients: int) -> tuple[Any, dict[str, str]]:
    """The speed of a round over plain SGD on every path that was timed, for the plain networks of the profile desk.

    clients: the size of the cohort, 10 or 54.  The bar is the speed of the fastest kernels alone, with ten clients.
    """
    cases = {case["network"]: case for case in desk["cases"] if case["cohort"] == clients}
    names = [case["network"] for case in desk["cases"] if case["share_of_kernels"] and case["path"] == "written"]
    fig, ax = plots.figure(6.4, 0.28 * len(names) + 0.9)
    found = {}
    for row, ratios in enumerate(cases[name]["ratio_to_plain"] if name in cases else {} for name in names):
        if not ratios:
            ax.text(1, row, " not timed", va="center", color="#767676")
            continue
        bare = benchmarked.bare(ratios)
        shown = {path: ratios[path] for path in LOOKS if path in ratios}
        ax.plot([min(shown.values()), bare], [row, row], "-", color="#c4c4c4", zorder=1)
        ax.plot(bare, row, "|", color="#444444", markersize=14, markeredgewidth=3)
        for path, ratio in shown.items():
            ax.plot(ratio, row, LOOKS[path][1], color=LOOKS[path][0], markersize=7)
        found[names[row]] = f"{ratios['written']:.2f}"
    for path, (colour, marker) in LOOKS.items():
        ax.plot([], [], marker, color=colour, label=path)
    ax.plot([], [], "|", color="#444444", markersize=12, markeredgewidth=3, label="kernels alone")
    ax.axvline(1, color="#9a9a9a", linestyle=":")
    ax.set_yticks(range(len(names)), names)
    ax.set_xscale("log", base=2)
    ax.set_xticks([0.5, 1, 2, 4, 8, 16], ["½", "1", "2", "4", "8", "16"])
    ax.set(xlabel="samples per second over plain SGD", xlim=(0.35, 28), ylim=(len(names) - 0.5, -0.5))
    ax.legend()
    return fig, found


def yardstick(file: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """The share of a round's time that its products and convolutions would take by the fastest known kernels, for the
    plain networks of the profile desk, in float32 and in bfloat16, beside the goals."""
    rows = [case for case in file["cases"] if case["share_of_kernels"] and case["path"] == "written"]
    limits = {g["what"]: g["goal"] for g in file["goals"] if g["group"] == benchmarked.SHARE}
    fig, ax = plots.figure(6.4, 0.2 * len(rows) + 0.9)
    for row, case in enumerate(rows):
        for k, share in enumerate(share for _, share in sorted(case["share_of_kernels"].items())):
            label = ("float32", "bfloat16")[k] if not row else None
            ax.barh(row + 0.2 - 0.4 * k, 100 * share, 0.36, color=plots.COLOURS[k], label=label)
        if limit := limits.get(f"{case['network']}, {case['cohort']} clients"):
            ax.plot([100 * limit] * 2, [row - 0.42, row + 0.42], "-", color="#444444")
    ax.plot([], [], "-", color="#444444", label="goal")
    ax.set_yticks(range(len(rows)), [case["network"] for case in rows])
    ax.set(xlabel="% of a round that its fastest kernels would take", xlim=(0, 105), ylim=(len(rows) - 0.5, -0.5))
    ax.legend()
    units = {"bandwidth": "GB/s"}
    peaks = ", ".join(f"{name} {peak:.0f} {units.get(name, 'GFLOP/s')}" for name, peak in file["peaks"].items())
    return fig, {"clients": str(rows[0]["cohort"]), "processor": file["device"], "peaks": peaks}


def roof(file: Mapping[str, Any]) -> tuple[float, float]:
    """The measured peak of float32 products and the bandwidth, in 10⁹ per second; NaN for one that was not measured."""
    peaks = file["peaks"]
    return max(peaks[library] for library in ("mkl", "onednn") if library in peaks), peaks.get("bandwidth", math.nan)


KINDS = {  # label in the figure: kinds of operators in the profile
    "convolution, LSTM": ("convolution", "recurrent kernel"),
    "products": ("products",),
    "pointwise, norms, pooling": ("pointwise, sums", "norms", "pooling", "indexing"),
    "copies": ("copies",),
    "batches, server": ("data", "server"),
    "Python": ("Python",),
}


def time_shares(file: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """The time of a round's training by kind of operator, for the profiled networks of the profile desk."""
    fig, ax = plots.figure()
    rows = [part for part in file["profile"] if not part["decay and clip"]]
    for row, part in enumerate(rows):
        left = 0.0
        for k, (label, kinds) in enumerate(KINDS.items()):
            share = 100 * sum(part["shares"].get(kind, 0.0) for kind in kinds)
            ax.barh(row, share, 0.62, left, color=plots.COLOURS[k], label=label if not row else None)
            left += share
    ax.set_yticks(range(len(rows)), [part["network"] for part in rows])
    ax.set(xlabel="% of a round's training, one thread", xlim=(0, 100), ylim=(len(rows) - 0.5, -0.5))
    ax.legend()
    return fig, {"clients": str(rows[0]["cohort"]), "processor": file["device"]}


def few_channels(file: Mapping[str, Any], network: str = "thesis_cnn, 8 to 64") -> str:
    """For a caption: what bounds a network of few channels, from its profile; nothing if it was not profiled."""
    for part in file["profile"]:
        if part["network"] == network and not part["decay and clip"]:
            of = part["shares"]
            around = sum(of.get(kind, 0.0) for kind in ("pointwise, sums", "norms", "copies"))
            convolved, python = of["convolution"], of["Python"]
            return (
                f"Networks with few channels are bounded by the work around their convolutions. In {network}, "
                f"convolutions take {100 * convolved:.0f} %, pointwise work, norms and copies {100 * around:.0f} %, "
                f"and Python {100 * python:.0f} %. If its convolutions cost nothing, a round would be "
                f"{1 / (1 - convolved):.1f} times as fast."
            )
    return ""


def peers(file: Mapping[str, Any]) -> Any:
    """Samples per second of every simulator, for two models."""
    fig, axes = plots.figure(ncols=2)
    for ax, model in zip(axes, ("mlp", "cnn"), strict=True):
        cases = sorted((c for c in file["cases"] if c["model"] == model), key=lambda c: c["samples_per_second"])
        colours = [plots.COLOURS[{"fedcore": 0, "loop": 2}.get(c["runner"].split()[0], 1)] for c in cases]
        ax.barh(range(len(cases)), [c["samples_per_second"] / 1e3 for c in cases], 0.7, color=colours)
        ax.set_yticks(range(len(cases)), [c["runner"] for c in cases])
        ax.set(xlabel="10³ samples per second", title={"mlp": "MLP", "cnn": "CNN"}[model])
    return fig


def scaling(file: Mapping[str, Any], value: str, unit: str, factor: float) -> Any:
    """A measured value against the cohort, the registered clients and the parameters, one line per method."""
    panels = {"cohort": "clients in the cohort", "registered": "registered clients", "d": "parameters $d$"}
    fig, axes = plots.figure(ncols=3)
    for ax, (against, label) in zip(axes, panels.items(), strict=True):
        key = {"registered": "clients"}.get(against, against)
        cases = [c for c in file["cases"] if c["against"] == against and c.get(value) is not None]
        for name in dict.fromkeys(c["method"] for c in cases):
            points = sorted((c[key], c[value] * factor) for c in cases if c["method"] == name)
            plots.curves(ax, {name: [v for _, v in points]}, x=[n for n, _ in points], legend=False)
        ax.set(xlabel=label, xscale="log", yscale="log")
    axes[0].set_ylabel(unit)
    axes[1].legend()
    _common(axes)
    return fig


def evidence(data: Mapping[str, Any], measured: Any) -> pages.Html:
    """The package's claims and the evidence in folds: all goals, other simulators, processors, memory, and a GPU."""
    words = "Goals and what was measured. Where a speed was missed and kernels were timed, the last two columns give "
    words += "the bar, which is the speed of the fastest known kernels alone, and the speed divided by the bar"

    def tables(*names: str) -> list[Any]:  # not everywhere are other simulators, or GPUs
        asked = {name: data[name] for name in names if data[name] or name not in ("peers", "flsimulator", "gpu")}
        return [benchmarked.table(of, name.partition("_")[0]) if of else missing(name) for name, of in asked.items()]

    others, memory = tables("peers", "flsimulator"), tables("memory")
    speeds = tables(*benchmarked.DESKS, "submodels", "bfloat16", "mixing")
    if file := data["peers"]:
        caption = "No other framework is much faster than the plain loop (green), and many are slower."
        others.insert(0, widgets.show(peers(file), caption=caption))
    if file := data["desk"]:
        caption = "Where a round's time goes. The profiler makes small operators look slower than they are. "
        speeds.insert(0, widgets.show(*time_shares(file), caption=caption + few_channels(file)))
    if file := data["scaling"]:
        taken = scaling(file, "seconds_per_round", "milliseconds per round", 1e3)
        held = scaling(file, "peak_bytes", "peak of memory, MB", 1e-6)
        caption = "Time grows with the cohort and the model, not with clients that stay at home."
        memory += [widgets.show(taken, caption=caption)]
        memory += [widgets.show(held, caption="Memory also grows with registered clients."), where(file)]
    folds = {
        "All goals": [benchmarked.claims(measured), pages.table(measured, words)],
        "Other simulators": others, "Speed by processor, of sub-models, and in bfloat16": speeds,
        "Memory, and what grows with what": memory, "On a GPU": tables("gpu"),
    }  # fmt: skip
    inner = [pages.folded(name, *parts) for name, parts in folds.items() if parts]
    return pages.folded("The package's goals, other simulators, processors, memory, and a GPU", *inner)


def _common(axes: Sequence[Any]) -> None:
    """Give all panels the same vertical scale, so that slopes can be compared."""
    low, high = (f(ax.get_ylim()[k] for ax in axes) for k, f in enumerate((min, max)))
    for ax in axes:
        ax.set_ylim(low, high)
