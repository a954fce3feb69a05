"""The errors, gaps and contradictions found in the five documents, independent of any data, and the departures of each
chapter from its document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from .. import pages
from ..documents.definitions import rows
from ..pages import Html, filtered

LEDGER = Path(__file__).with_name("findings.csv")
DEPARTURES = LEDGER.with_name("departures.csv")
DOCUMENTS = {
    "S000": "FedUp study",
    "S001": "SCAFFOLD page",
    "S002": "DFedGAM study",
    "S003": "feature-shift study",
    "S004": "FedDSE and FedGSE thesis",
}
KINDS = ("error", "contradiction", "gap", "attribution")
SEVERITIES = ("changes a result", "changes a formula", "misleads", "slip")


@dataclass(frozen=True)
class Finding:
    """One finding about a document.

    `document` is a key of `DOCUMENTS`, `place` its section, equation, table, figure or line of an algorithm, `kind`
    one of `KINDS` and `severity` one of `SEVERITIES`. `finding` quotes the document and says why it is wrong or open,
    `here` says what this book does. `shown_by` is a test (`tests/test_x.py::test_name`) or a cell of a chapter
    (`fedup#variance`), empty where the document itself shows it.
    """

    document: str
    place: str
    kind: str
    severity: str
    finding: str
    here: str
    shown_by: str = ""


def findings() -> list[Finding]:
    """All findings, in the order of the documents."""
    return [Finding(**line) for line in rows(LEDGER)]


def departures(chapter: str, **numbers: Any) -> Html:
    """The numbered list of every departure of a chapter from its document.

    chapter: the name of its notebook.  numbers: values of the placeholders {name} in the texts, computed on the page.
    Raises ValueError for a chapter without departures and for a name that is not a placeholder.
    """
    lines = [line for line in rows(DEPARTURES) if line["chapter"] == chapter]
    if not lines:
        raise ValueError(f"chapter={chapter!r} has no line in {DEPARTURES.name}; use a notebook's name")
    items = [(line["source"], line["book"], line["why"]) for line in lines]
    for name, value in numbers.items():
        if not any(f"{{{name}}}" in text for item in items for text in item):
            raise ValueError(f"no departure of {chapter} contains {{{name}}}; see {DEPARTURES.name}")
        items = [tuple(text.replace(f"{{{name}}}", str(value)) for text in item) for item in items]
    return pages.departures(items)


def counted(items: Sequence[Finding]) -> Html:
    """The number of findings by document and by severity, and how many of them a test or a cell shows, in sentences."""
    documents, severities = (Counter(getattr(item, field) for item in items) for field in ("document", "severity"))
    shown = Counter("test" if "::" in item.shown_by else "cell" if item.shown_by else "text" for item in items)
    by_document = ", ".join(f"{documents[key]} in the {name}" for key, name in DOCUMENTS.items())
    by_severity = ", ".join(f"{severities[name]} “{name}”" for name in SEVERITIES)
    words = (
        f"{len(items)} findings: {by_document}. By severity: {by_severity}. {shown['test']} are shown by a test, "
        f"{shown['cell']} by code in a chapter, and {shown['text']} by reading the document."
    )
    return Html(f"<p>{words}</p>", words)


def listed(items: Sequence[Finding]) -> Html:
    """The findings as a table that can be sorted and filtered; cells of chapters are links to their pages."""
    import pandas as pd

    columns = ["document", "place", "kind", "severity", "what stands there", "this book", "shown by"]
    frame = pd.DataFrame([astuple(item) for item in items], columns=columns)
    frame["document"] = pd.Categorical(frame["document"].map(DOCUMENTS), DOCUMENTS.values(), ordered=True)
    frame["kind"] = pd.Categorical(frame["kind"], KINDS, ordered=True)
    frame["severity"] = pd.Categorical(frame["severity"], SEVERITIES, ordered=True)
    frame["shown by"] = frame["shown by"].map(_linked)
    return filtered(frame, "Findings that hold whatever the data", ["document", "kind", "severity"])


def _linked(shown_by: str) -> Html:
    if "::" in shown_by:
        return Html(f"<code>{shown_by.rpartition('/')[2]}</code>", shown_by)
    if shown_by:
        chapter, cell = shown_by.split("#")
        return Html(f'<a href="{chapter}.html">{chapter.replace("_", " ")}</a>, cell <code>{cell}</code>', shown_by)
    return Html("the document itself", "the document itself")
