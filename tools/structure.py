"""The lines of code of each part of the packages, the imports between parts, and a diagram of them.

    python tools/structure.py            # lines by part, levels and cycles
    python tools/structure.py --draw     # and book/assets/structure.svg, for CONTRIBUTING and the engine's page
    python tools/structure.py --accept [fedcore/engine tests ...]  # and allow the lines of these parts; none named: all

A part is a file or a folder at the top of a package.  Only lines with code count: not blank lines, comments and
docstrings.  A part is one level above the highest part that it imports.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fedcore.storage.sources import Sources  # noqa: E402

ALLOWED = ROOT / "tests" / "expected" / "structure.csv"
PICTURE = ROOT / "book" / "assets" / "structure.svg"
PACKAGES = ("fedcore", "fedbook")
COUNTED = (*PACKAGES, "tests", "tools", "benchmarks")
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """The number of lines with code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    used = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(used - docstrings)


def lines(package: str) -> Counter[str]:
    """Part -> its lines of code."""
    found: Counter[str] = Counter()
    for file in sorted((ROOT / package).rglob("*.py")):
        found[file.relative_to(ROOT / package).parts[0].removesuffix(".py")] += code_lines(file.read_text("utf-8"))
    return found


def imports(package: str) -> nx.DiGraph:
    """The graph of imports between parts, at module level and in functions, without imports for type checkers only."""
    files = sorted((ROOT / package).rglob("*.py"))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files)
    source, graph = Sources.of(dict(zip(names, files, strict=True))), nx.DiGraph()
    for module in source.texts:
        graph.add_node(_part(module))
        for base, name, _ in source.imports_of(module):
            target = f"{base}.{name}" if f"{base}.{name}" in source.texts else base
            if target in source.texts and _part(target) != _part(module):
                graph.add_edge(_part(module), _part(target))
    return graph


def _part(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def cycles(graph: nx.DiGraph) -> list[list[str]]:
    """Parts that import each other, directly or through others."""
    return [sorted(found) for found in nx.strongly_connected_components(graph) if len(found) > 1]


def levels(graph: nx.DiGraph) -> dict[str, int]:
    """Part -> its level, from 0; parts of a cycle share one."""
    joined = nx.condensation(graph)
    level: dict[int, int] = {}
    for node in reversed(list(nx.topological_sort(joined))):
        level[node] = max((level[below] + 1 for below in joined.successors(node)), default=0)
    return {part: level[node] for node, data in joined.nodes(data=True) for part in data["members"]}


def _allowed() -> dict[tuple[str, str], int]:
    """(package, part) -> the lines that `tests/expected/structure.csv` allows."""
    with ALLOWED.open(newline="", encoding="utf-8") as f:
        return {(row["package"], row["part"]): int(row["lines"]) for row in csv.DictReader(f)}


def grown() -> list[str]:
    """The parts with more lines of code than allowed, in words."""
    allowed = _allowed()
    return [
        f"{package}/{part} has {found} lines of code, {allowed.get((package, part), 0)} are allowed"
        for package, part, found in _counted()
        if found > allowed.get((package, part), 0)
    ]


def _counted() -> list[tuple[str, str, int]]:
    """(package, part, lines); for tests, tools and benchmarks, which are not packages, the total."""
    return [
        (package, part, found)
        for package in COUNTED
        for part, found in (sorted(lines(package).items()) if package in PACKAGES else [("", lines(package).total())])
    ]


def accept(parts: Sequence[str] = ()) -> None:
    """Write today's numbers of lines as the allowed ones, and print those that grew.

    parts: those that may have grown, such as "fedcore/engine" or "tests"; none: all.
    """
    before, allowed, rows = grown(), _allowed(), []
    for package, part, found in _counted():
        named = not parts or f"{package}/{part}".removesuffix("/") in parts
        rows.append((package, part, found if named else min(found, allowed.get((package, part), 0))))
    with ALLOWED.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f, lineterminator="\n").writerows([("package", "part", "lines"), *rows])
    after = grown()
    print("\n".join(f"accepted: {line}" for line in before if line not in after) or "nothing accepted")


def draw(package: str = "fedcore") -> None:
    """Draw the parts of a package as boxes by level, with a line down to each imported part, without implied lines:
    from a to c if a imports b and b imports c."""
    import matplotlib
    from matplotlib.figure import Figure

    graph = imports(package)
    graph.remove_nodes_from([part for part in graph if part.startswith("_") or not graph.degree(part)])
    level = levels(graph)
    rows = [sorted(part for part in graph if level[part] == k) for k in range(max(level.values()) + 1)]
    shift = [0.5, 0.3, 0.7, 0.4, 0.6]  # a single part in the middle would hide the lines of other levels
    place = {
        part: (shift[k % 5] if len(row) == 1 else (i + 0.5) / len(row), k)
        for k, row in enumerate(rows)
        for i, part in enumerate(row)
    }
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": package}):
        fig = Figure(figsize=(6.4, 0.36 * len(rows) + 0.3))
        ax = fig.add_axes((0, 0, 1, 1))
        for above, below in sorted(nx.transitive_reduction(graph).edges):
            ax.plot(*zip(place[above], place[below], strict=True), color="#7a8794", linewidth=0.9, zorder=1)
        for part, (x, y) in sorted(place.items()):
            box = {"boxstyle": "round,pad=0.3", "facecolor": "#ffffff", "edgecolor": "#3b6ea5", "linewidth": 0.9}
            ax.text(x, y, part, ha="center", va="center", fontsize=9, bbox=box, color="#1b2733")
        ax.set(xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4))
        ax.axis("off")
        fig.savefig(PICTURE, format="svg", metadata={"Date": None})


def main(words: list[str] | None = None) -> int:
    """Print the structure; returns 1 if a part grew or parts import each other in a cycle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw book/assets/structure.svg")
    parser.add_argument(
        "--accept", nargs="*", metavar="PART", help="allow today's lines in tests/expected/structure.csv"
    )
    given = parser.parse_args(words)
    for package in PACKAGES:
        graph, found = imports(package), lines(package)
        level = levels(graph)
        print(f"{package}: {found.total()} lines of code, {len(found)} parts, {max(level.values()) + 1} levels")
        for part in sorted(found, key=lambda part: (-level.get(part, 0), part)):
            print(f"  level {level.get(part, 0):2}  {part:20} {found[part]:6}")
        print(*(f"  a cycle: {', '.join(names)}\n" for names in cycles(graph)), sep="", end="")
    print(*(f"{name}: {lines(name).total()} lines of code" for name in COUNTED if name not in PACKAGES), sep="\n")
    if given.draw:
        draw()
    if given.accept is not None:
        accept(given.accept)
    more = grown()
    print(*(f"{line}\n" for line in more), sep="", end="")
    return int(bool(more or any(cycles(imports(package)) for package in PACKAGES)))


if __name__ == "__main__":
    sys.exit(main())
