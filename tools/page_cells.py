"""Set the tags that decide which code of a chapter its page shows: at most six folded cells, each with a name.

    python tools/page_cells.py [scaffold ...]      set the tags of all chapters, or of these

- Output without source: cells of parameters and imports, cells that only show stored results, and further folded cells
  beyond the six.
- Folded source, under a name made from the kind of output and the heading above: all other cells tagged `hide-input`.
- Folded source and output: cells tagged `hide-cell`, such as long lists of evidence; with `hide-output` the source is
  left out.
- Not on the page: the record that tests compare.

Notebooks keep every line; JupyterLab folds the same cells (`tools.book.normalise`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fedbook.pictures.alt_text import plain  # noqa: E402

BARS = 6  # folded cells per page
OURS = ("hide-input", "remove-input", "remove-cell")
STORED = re.compile(
    r"^(?:show\.(?:box|verdicts|profile|result|rates|gaps|together)|(?:fc\.(?:submodel_)?|mask_)playground|departures|listing\.lines"
    r"|references|pages\.(?:source|filtered|folded)|matrix|section|listed|forest|where|together|peers_table|memory_table"
    r"|by_table|(?:fc\.show\(\s+\*?)?engine_pictures|benchmarked)\b", re.MULTILINE,
)  # fmt: skip
REPORTS = ("report",)  # chapters that tabulate and draw what other programs measured
RECORD = "The chapter's key numbers, as compared by the regression test:"


def set_tags(notebook: Any, name: str) -> Any:
    """Set the tags of the notebook of chapter `name`, in place; a second call changes nothing."""
    heading, folded = "", []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = next(iter(re.findall(r"^#+ (.*)$", cell.source, re.MULTILINE)[::-1]), heading)
            if cell.source.strip() == RECORD:
                _tag(cell, "remove-cell")
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        found = _place(cell, name)
        _tag(cell, found)
        if found == "hide-input":
            folded.append((cell, heading))
        elif {"hide-output", "hide-cell"} & set(cell.metadata.get("tags", [])):
            words = {"code_prompt_show": f"Open: {_about(heading)}", "code_prompt_hide": "Close"}
            cell.metadata.setdefault("mystnb", words)
    # Cells that train come before cells that draw, and earlier cells before later ones.
    order = sorted(range(len(folded)), key=lambda k: ("simulate(" not in folded[k][0].source, k))
    kept = set(order[:BARS])
    for k, (cell, _) in enumerate(folded):
        if k not in kept:
            _tag(cell, "remove-input")
    names = _names([folded[k] for k in sorted(kept)])
    for cell, words in zip((folded[k][0] for k in sorted(kept)), names, strict=True):
        cell.metadata["mystnb"] = {"code_prompt_show": words, "code_prompt_hide": "Hide the code"}
    return notebook


def _place(cell: Any, name: str) -> str | None:
    """The tag of a code cell, None if the page shows its source."""
    source, tags = cell.source, cell.metadata.get("tags", [])
    if "pages.record(" in source:
        return "remove-cell"
    if "hide-output" in tags:
        return "remove-input"
    if "parameters" in tags or "pages.parameters(" in source:
        return "remove-input"
    lines = source.strip().splitlines()
    if len(lines) <= 6 and "simulate(" not in source and STORED.search(source):
        return "remove-input"
    if name in REPORTS and "simulate(" not in source and {"hide-input", "remove-input"} & set(tags):
        drawn = re.search(r"\b(?:show|explore)\(", source) and len(lines) > 6
        return "hide-input" if drawn or "hide-input" in tags else "remove-input"
    # Cells hidden beyond the six stay hidden: a second pass must not show them.
    return "hide-input" if {"hide-input", "remove-input"} & set(tags) else None


def _tag(cell: Any, tag: str | None) -> None:
    tags = [t for t in cell.metadata.get("tags", []) if t not in OURS] + ([tag] if tag else [])
    if not {"hide-output", "hide-cell"} & set(tags):  # wholly folded cells keep their author's name
        cell.metadata.pop("mystnb", None)
    cell.metadata.pop("tags", None)
    if tags:
        cell.metadata["tags"] = tags


def _about(heading: str) -> str:
    return plain(re.sub(r"\{[^}]*\}`([^`<]*)[^`]*`|`", r"\1", heading)).rstrip("?.")


def _names(cells: Sequence[tuple[Any, str]]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for cell, heading in cells:
        kinds = {"playground(": "picture", "explore(": "picture", "show(": "picture", ".table(": "table"}
        kinds |= {"simulate(": "runs"}
        kind = next((word for call, word in kinds.items() if call in cell.source), "computation")
        about = _about(heading)
        words = f"The code of the {kind}: {about}" if about else f"The code of the {kind}"
        seen[words] = seen.get(words, 0) + 1
        yield words if seen[words] == 1 else f"{words} ({seen[words]})"


if __name__ == "__main__":
    from tools import book

    for path in book._chosen(sys.argv[1:]):
        text = book.written(book.normalise(set_tags(book.read(path), path.stem), path.stem))
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
