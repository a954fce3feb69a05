"""The house: how many lines of code stand in which room, which room imports which, and a picture of that.

    python tools/house.py            # lines by room, floors and circles
    python tools/house.py --draw     # and book/assets/house.svg, the picture of CONTRIBUTING and of the engine's page
    python tools/house.py --accept   # and tests/expected/house.csv, which says how many lines a room may have

A room is a file or a folder at the top of a package.  A line counts if code stands on it: no blank line, no comment, no
docstring.  A room stands one floor above the highest room that it imports.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.util
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tests" / "expected" / "house.csv"
PICTURE = ROOT / "book" / "assets" / "house.svg"
PACKAGES = ("fedcore", "fedbook")
COUNTED = (*PACKAGES, "tests", "tools", "benchmarks")
QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines on which code stands."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                told |= set(range(first.lineno, first.end_lineno + 1))
    used = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in QUIET
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(used - told)


def rooms(package: str) -> Counter[str]:
    """Room -> its lines of code."""
    found: Counter[str] = Counter()
    for file in sorted((ROOT / package).rglob("*.py")):
        found[file.relative_to(ROOT / package).parts[0].removesuffix(".py")] += code_lines(file.read_text("utf-8"))
    return found


def arrows(package: str) -> nx.DiGraph:
    """Which room imports which, at the top of a module or inside of a function; not what type checkers alone read."""
    files = {_name(file): file for file in (ROOT / package).rglob("*.py")}
    graph = nx.DiGraph()
    for module, file in files.items():
        inside = module if file.name == "__init__.py" else module.rpartition(".")[0]
        graph.add_node(_room(module))
        for base, name in _imported(ast.parse(file.read_text("utf-8")), inside):
            target = f"{base}.{name}" if f"{base}.{name}" in files else base
            if target in files and _room(target) != _room(module):
                graph.add_edge(_room(module), _room(target))
    return graph


def _imported(tree: ast.AST, package: str) -> list[tuple[str, str]]:
    """(module, name) of everything that is imported from a package of ours."""
    found: list[tuple[str, str]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found += [(base, alias.name) for alias in node.names]
        found += _imported(node, package)
    return found


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def circles(graph: nx.DiGraph) -> list[list[str]]:
    """Rooms that import each other, directly or through others."""
    return [sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1]


def floors(graph: nx.DiGraph) -> dict[str, int]:
    """Room -> its floor, from 0; rooms of a circle share one."""
    joined = nx.condensation(graph)
    level: dict[int, int] = {}
    for node in reversed(list(nx.topological_sort(joined))):
        level[node] = max((level[below] + 1 for below in joined.successors(node)), default=0)
    return {room: level[node] for node, data in joined.nodes(data=True) for room in data["members"]}


def grown() -> list[str]:
    """What has more lines or rooms than `tests/expected/house.csv` allows, in words."""
    with LEDGER.open(newline="", encoding="utf-8") as f:
        allowed = {(row["package"], row["room"]): int(row["lines"]) for row in csv.DictReader(f)}
    found = {(package, room): lines for package in COUNTED for room, lines in _ledger(package).items()}
    return [
        f"{package}/{room} has {lines} lines of code, {allowed.get((package, room), 0)} are allowed"
        for (package, room), lines in found.items()
        if lines > allowed.get((package, room), 0)
    ]


def _ledger(package: str) -> dict[str, int]:
    """The lines of a package by room; of what is no package of ours, in all."""
    found = rooms(package)
    return dict(sorted(found.items())) if package in PACKAGES else {"": found.total()}


def accept() -> None:
    """Write today's numbers as those that are allowed."""
    with LEDGER.open("w", newline="", encoding="utf-8") as f:
        rows = csv.writer(f, lineterminator="\n")
        rows.writerow(("package", "room", "lines"))
        rows.writerows((package, room, lines) for package in COUNTED for room, lines in _ledger(package).items())


def draw(package: str = "fedcore") -> None:
    """The rooms of a package as boxes, floor above floor, and its imports as lines from a room down to another."""
    import matplotlib
    from matplotlib.figure import Figure

    graph = arrows(package)
    graph.remove_nodes_from([room for room in graph if room.startswith("_") or not graph.degree(room)])
    level = floors(graph)
    rows = [sorted(room for room in graph if level[room] == k) for k in range(max(level.values()) + 1)]
    shift = [0.5, 0.3, 0.7, 0.4, 0.6]  # rooms that stand alone on their floor would hide the lines between others
    place = {
        room: (shift[k % 5] if len(row) == 1 else (i + 0.5) / len(row), k)
        for k, row in enumerate(rows)
        for i, room in enumerate(row)
    }
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": package}):
        fig = Figure(figsize=(6.4, 0.36 * len(rows) + 0.3))
        ax = fig.add_axes((0, 0, 1, 1))
        for above, below in sorted(graph.edges):
            ax.plot(*zip(place[above], place[below], strict=True), color="#7a8794", linewidth=0.6, alpha=0.6, zorder=1)
        for room, (x, y) in sorted(place.items()):
            box = {"boxstyle": "round,pad=0.3", "facecolor": "#ffffff", "edgecolor": "#3b6ea5", "linewidth": 0.9}
            ax.text(x, y, room, ha="center", va="center", fontsize=9, bbox=box, color="#1b2733")
        ax.set(xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4))
        ax.axis("off")
        fig.savefig(PICTURE, format="svg", metadata={"Date": None})


def main(words: list[str] | None = None) -> int:
    """Print the house; 1 where a room grew or rooms of the core import each other in a circle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw book/assets/house.svg")
    parser.add_argument("--accept", action="store_true", help="allow today's numbers of lines")
    given = parser.parse_args(words)
    for package in PACKAGES:
        graph, lines = arrows(package), rooms(package)
        level = floors(graph)
        print(f"{package}: {lines.total()} lines of code, {len(lines)} rooms, {max(level.values()) + 1} floors")
        for room in sorted(lines, key=lambda room: (-level.get(room, 0), room)):
            print(f"  floor {level.get(room, 0):2}  {room:20} {lines[room]:6}")
        print(*(f"  a circle: {', '.join(found)}" for found in circles(graph)), sep="\n")
    print(*(f"{name}: {rooms(name).total()} lines of code" for name in COUNTED if name not in PACKAGES), sep="\n")
    if given.draw:
        draw()
    if given.accept:
        accept()
    print(*grown(), sep="\n")
    return int(bool(grown() or circles(arrows("fedcore"))))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
