"""Write the pages of the methods, each with equation, code, settings, cost, results and references.

    python tools/cards.py       write book/methods.md, book/methods/NAME.md, their lines in _toc.yml and book/map.html,
                                the map as a picture

The pages are made from the package, the map of methods in book/map.md and the stored results, and are committed, so
that the book builds without a run; `tests/book/test_cards.py` compares them with the output of this program.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fedcore as fc  # noqa: E402
from fedbook.documents.definitions import PROFILES  # noqa: E402
from fedbook.pictures import styles  # noqa: E402
from fedbook.verdicts import judge, overview  # noqa: E402
from fedcore.storage.checkpoint import atomic  # noqa: E402

SPENT = {
    "down": "received, in models of d numbers",
    "up": "sent, in models of d numbers",
    "gradients": "mini-batch gradients in a local step",
    "products": "Hessian-vector products in a local step",
    "forwards": "further forward passes in a local step",
    "full_gradients": "gradients over all local data in a round",
}
HEADER = "| method | broadcast | direction of a local step | aggregate | state |"


def title(kind: type) -> str:
    return styles.usual(kind.__name__)


def alphabetical() -> list[type]:
    return sorted(fc.ALL, key=lambda kind: title(kind).lower())


def page(kind: type) -> str:
    """The name of a method's page under book/methods, without its ending."""
    return kind.__name__.lower()


def rows(text: str) -> dict[str, list[str]]:
    """The map of methods: name -> row (name, broadcast, direction, aggregate, state)."""
    lines = text[text.index(HEADER) :].splitlines()[2:]
    found = {}
    for line in lines[: next(k for k, line in enumerate(lines) if not line.startswith("|"))]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for name in re.sub(r"\{cite\}`[^`]*`", "", re.sub(r"\{doc\}`(.*?) <.*?>`", r"\1", cells[0])).split(", "):
            found[name.strip()] = cells
    return found


def chapters(root: Path = ROOT) -> dict[Path, str]:
    """Each chapter's code and prose."""
    sources = sorted((root / "book").glob("*.ipynb"))
    return {
        path: "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
        for path in sources
    }


def trained(row: str, spec: Mapping[str, Any]) -> type | None:
    """The method of a row of a table: by the row's name ("FedAvg + server momentum", "FedGSE, SPL"), else the method in
    its specification; None if that is not one of the package."""
    named = [kind for kind in fc.ALL if re.match(rf"{re.escape(title(kind))}\b", row)]
    if named:
        return max(named, key=lambda kind: len(title(kind)))
    name = spec["method"][0] if "method" in spec else None
    return next((kind for kind in fc.ALL if kind.__name__ == name), None)


def results(root: Path = ROOT / "results") -> list[dict[str, Any]]:
    """One line for every row of a method in a stored table of accuracies."""
    found = []
    for table, place in overview.stored_tables(root):
        cells = overview.stored_cells(table, place)
        answers = overview.judged(table, cells)
        for row, kind in {row: trained(row, cell.spec) for (row, _), (cell, _) in cells.items()}.items():
            if table.unit != "%" or kind is None:
                continue
            mine = {column: (cell, result) for (r, column), (cell, result) in cells.items() if r == row and result}
            seeds = {column: cell.reporting(None) for column, (cell, _) in mine.items()}
            finals = {column: result.finals(seeds[column]) for column, (_, result) in mine.items()}
            finals = {column: values for column, values in finals.items() if len(values) == len(seeds[column])}
            words = Counter(answers[row, column].word for column in finals if (row, column) in answers)
            devices = sorted({run.get("device", "?") for _, result in mine.values() for run in result.runs.values()})
            found.append({"method": kind, "row": row, "table": table, "profile": place.profile, "finals": finals,
                          "words": words, "devices": devices})  # fmt: skip
    return found


def _measured(line: dict[str, Any]) -> str:
    """The lowest and highest mean over the columns, the number of seeds, and the number of columns with diverged
    runs."""
    finals = list(line["finals"].values())
    means = sorted(sum(values) / len(values) for values in finals if all(map(math.isfinite, values)))
    diverged = len(finals) - len(means)
    ends = list(dict.fromkeys(f"{mean:.1f}" for mean in (*means[:1], *means[-1:])))
    seeds = " or ".join(map(str, sorted({len(values) for values in finals})))
    runs = f"runs diverged in {diverged} of {len(finals)} columns"
    return ", ".join(filter(None, [" to ".join(ends), f"{seeds} seed{'s' * (seeds != '1')}", runs * bool(diverged)]))


def _compared(line: dict[str, Any]) -> str:
    against = line["table"].against
    if line["row"] == against:
        return "what others are measured from"
    words = ("better than", "worse than", "equal to", "not significantly different from")
    phrases = dict(zip(judge.WORDS, words, strict=True))
    found = [f"{words} {against} in {line['words'][word]}" for word, words in phrases.items() if line["words"][word]]
    return f"{', '.join(found)} of {len(line['finals'])}" if found else "not compared"


SHOWN = 3  # results that a page shows before its fold: those nearest to the documents' own settings


def _results(kind: type, lines: list[dict[str, Any]], pages: dict[Path, str]) -> Iterator[str]:
    mine = [line for line in lines if line["method"] is kind and line["finals"]]
    if not mine:
        yield "No stored table trains it yet; `fc.sweep` and `python -m fedcore.reproduce new` compare it on your data."
        return
    mine.sort(key=lambda line: (-PROFILES.index(line["profile"]), line["row"] != title(kind)))
    yield "Accuracy on the test set in %, means over seeds from the lowest to the highest column. The verdicts compare"
    yield "with the same seeds and images, and are corrected for all comparisons of their table ({doc}`../difference`)."
    yield ""
    yield from _table(kind, mine[:SHOWN], pages)
    settings = {}
    for line in mine:
        computed = f"{line['table'].name}, {line['profile']}, computed on {' and '.join(line['devices'])}"
        told, tuned = line["table"].caption(line["profile"], line["finals"])
        settings[computed] = f"{told} *Tuning:* {tuned}" if tuned else told
    rest = mine[SHOWN:]
    yield ""
    yield f"````{{admonition}} {f'{len(rest)} more, and how' if rest else 'How'} they were run"
    yield ":class: dropdown"
    yield ""
    if rest:
        yield from _table(kind, rest, pages)
        yield ""
    yield from (f"- {name}: {caption}" for name, caption in settings.items())
    yield "````"


def _table(kind: type, lines: list[dict[str, Any]], pages: dict[Path, str]) -> Iterator[str]:
    yield "| table | accuracy | verdicts, by column |"
    yield "|---|---|---|"
    for line in lines:
        table, row = line["table"], "" if line["row"] == title(kind) else f": {line['row']}"
        shown = next((path.stem for path, text in pages.items() if f'show.result("{table.name}"' in text), "report")
        where = f"{{doc}}`{table.name} <../{shown}>`, {line['profile']}"
        yield f"| {where}{row} | {_measured(line)} | {_compared(line)} |"


def _settings(kind: type) -> Iterator[str]:
    own = [f for f in fields(kind) if f.init] if is_dataclass(kind) else []
    if not own:
        yield "None of its own; learning rate, local steps, batches and the rest are those of the run (`fc.simulate`)."
        return
    yield "| setting | default |"
    yield "|---|---|"
    yield from (f"| `{f.name}` | `{getattr(kind(), f.name)!r}` |" for f in own)


def card(kind: type, row: list[str] | None, lines: list[dict[str, Any]], pages: dict[Path, str]) -> str:
    """A method's page, as MyST Markdown."""
    method = kind()
    cost = method.cost()
    head, *rest, advice = (" ".join(part.split()) for part in (inspect.getdoc(kind) or "").split("\n\n"))
    use, avoid = re.fullmatch(r"Use (it .*?\.) Not (.*)", advice).groups()
    out = [f"# {title(kind)}", "", head, "", f"**Use** {use}", "", f"**Not** {avoid}", ""]
    if row:
        parts = zip(HEADER.strip("| ").split(" | ")[1:], row[1:], strict=True)
        out += [line for part, rule in parts for line in (part, f": {rule}", "")]
    if rest:
        text = "\n\n".join(rest)
        out += ["````{admonition} The rule in full, its settings and sources", ":class: dropdown", ""]
        out += ["```{code-block} text", ":class: fc-wrapped", text, "```", "````", ""]
    out += ["## The lines that run", "", "```python", fc.shown(kind).code, "```", ""]
    models = {fc.MOON: 'fc.models.projected("mlp")', fc.FedBN: '"digit_model_small"', fc.FixBN: '"digit_model_small"'}
    model = f", model={models[kind]}" if kind in models else ""  # with a representation, or batch norm
    call = f"fc.{kind.__name__}()"
    out += [
        "## Try it", "", "```python", "import fedcore as fc", "",
        f'fed = fc.federation("digits", clients=20, partition=fc.Dirichlet(0.3){model})',
        f"history = fc.simulate({call}, fed, rounds=20, cohort=5, lr=0.1, seed=0)"
        if not method.full_participation
        else f"history = fc.simulate({call}, fed, rounds=20, lr=0.1, seed=0)",
        "print(history)", "```", "",
    ]  # fmt: skip
    out += ["## Settings", "", *_settings(kind), "", "## What a round costs a client", ""]
    spent = {label: getattr(cost, name) for name, label in SPENT.items()}
    out += [
        f"- {label}: {number(value)}" for label, value in spent.items() if value or value is None or "models" in label
    ]
    state = [f"`{name}`" for name in method.client_state]
    out += [f"- kept by each client between rounds: {', '.join(state) or 'nothing'}"]
    out += [f"- {cost.note}"] if cost.note else []
    out += ["", "## Results", "", *_results(kind, lines, pages), ""]
    used = [path.stem for path, text in pages.items() if re.search(rf"\b{kind.__name__}\b", text)]
    if used:
        out += ["## In the chapters", "", ", ".join(f"{{doc}}`../{name}`" for name in used), ""]
    keys = sorted({key for part in re.findall(r"\{cite\}`([^`]*)`", row[0] if row else "") for key in part.split(",")})
    if keys:
        out += [
            "## Reference",
            "",
            ", ".join(f"{{cite:t}}`{key}`" for key in keys) + f'; BibTeX: `fc.cite("{kind.__name__}")`',
            "",
        ]
    return "\n".join(out)


def number(value: float | None) -> str:
    return "depends on the number of clients" if value is None else f"{value:.3g}"


def overview_page() -> str:
    """The list of all methods with their first sentence."""
    out = [
        "# The methods, one page each",
        "",
        "Each page says when to use the method and when not, and has its equation, the lines that run, a call to copy,",
        "settings, the cost of a round, and every stored result.",
        "",
        "| method | in one sentence |",
        "|---|---|",
    ]
    for kind in alphabetical():
        head = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        out.append(f"| {{doc}}`{title(kind)} <methods/{page(kind)}>` | {head} |")
    return "\n".join(out) + "\n"


VERBS = ("broadcast", "direction", "aggregate", "state")


def differs(row: list[str], base: list[str]) -> tuple[bool, ...]:
    """For each of `VERBS`, whether a row of the map differs from FedAvg's."""

    def rule(cell: str) -> str:
        return "mean" if cell == "mean of the rows" else cell

    return tuple(rule(a) != rule(b) for a, b in zip(row[1:], base[1:], strict=True))


def picture(map_of: dict[str, list[str]]) -> str:
    """The map as HTML: one line per set of verbs in which methods differ from FedAvg, followed by these methods."""
    base = map_of["FedAvg"]
    groups: dict[tuple[bool, ...], list[str]] = {}
    page_of = {title(kind): page(kind) for kind in fc.ALL}
    for name in page_of:
        groups.setdefault(differs(map_of[name], base), []).append(name)
    head = "".join(f"<span>{verb}</span>" for verb in VERBS)
    out = [f'<div class="fc-map"><div class="fc-map-row fc-map-head" aria-hidden="true"><div>{head}</div></div>']
    for places in sorted(groups, key=lambda places: (sum(places), [not place for place in places])):
        words = " and ".join(", ".join(v for v, place in zip(VERBS, places, strict=True) if place).rsplit(", ", 1))
        label = f"differ in {words}" if words else "as FedAvg in all four"
        dots = "".join(f'<i class="{"on" if place else "off"}"></i>' for place in places)
        links = "".join(_chip(name, page_of[name]) for name in groups[places])
        out.append(
            f'<div class="fc-map-row"><div role="img" aria-label="{label}">{dots}</div>'
            f'<ul aria-label="{label}">{links}</ul></div>'
        )
    return "\n".join([*out, "</div>"]) + "\n"


def _chip(name: str, target: str) -> str:
    """A link to a method's page, with the method's colour and marker."""
    (look,) = styles.looks([name])
    colour = next(key for key, value in styles.colours().items() if value == look.colour)
    return (
        f'<li><a href="methods/{target}.html" style="--k:var(--fc-{colour})">'
        f'<svg viewBox="-8 -8 16 16" aria-hidden="true"><path d="{_outline(look.marker)}"/></svg>{name}</a></li>'
    )


def _outline(marker: str, radius: float = 6.0) -> str:
    """The outline of a marker around the origin as the data of an SVG path, y downwards."""
    corners = {"s": (4, 45, 1.2), "D": (4, 90, 1.25), "^": (3, 90, 1.3), "v": (3, -90, 1.3)}
    if marker in corners:
        count, turn, size = corners[marker]
        points = [(size, turn + 360 * k / count) for k in range(count)]
    elif marker == "o":
        points = [(1.0, 15.0 * k) for k in range(24)]
    else:  # a star, and two crosses drawn as stars of four points
        count, turn, inner = {"*": (5, 90, 0.45), "P": (4, 90, 0.45), "X": (4, 45, 0.45)}[marker]
        points = [((1.3, inner)[k % 2], turn + 180 * k / count) for k in range(2 * count)]
    at = [(radius * r * math.cos(math.radians(t)), -radius * r * math.sin(math.radians(t))) for r, t in points]
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at) + "Z"


def every(root: Path = ROOT) -> dict[Path, str]:
    """Path -> text of all pages for the repository."""
    map_of, lines, pages = (
        rows((root / "book" / "map.md").read_text(encoding="utf-8")),
        results(root / "results"),
        chapters(root),
    )
    out = {root / "book" / "methods.md": overview_page(), root / "book" / "map.html": picture(map_of)}
    contents = (root / "_toc.yml").read_text(encoding="utf-8")
    listed = "".join(f"          - file: book/methods/{page(kind)}\n" for kind in alphabetical())
    out[root / "_toc.yml"] = re.sub(r"( +- file: book/methods/\w+\n)+", listed, contents)
    for kind in fc.ALL:
        out[root / "book" / "methods" / f"{page(kind)}.md"] = card(kind, map_of.get(title(kind)), lines, pages)
    return out


if __name__ == "__main__":
    changed = {path: text for path, text in every().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in changed.items():
        with atomic(path) as f:
            f.write(text.encode())
        print(path.relative_to(ROOT))
