"""Results in prose are filled in when a chapter runs; a number that is typed is declared with its origin."""

import csv
import json
import re

import pytest

from tools import book

FILE = book.ROOT / "tests" / "expected" / "prose.csv"
NUMBER = r"(?:\d+(?:[.,]\d+)?|one|two|three|four|five|six|seven|eight|nine|ten)"
MEASURED = re.compile(
    rf"\b{NUMBER}(?: (?:to|or) {NUMBER})?\s*(?:%|\\%|percent\b|points?\b(?! to)|times as\b)", re.IGNORECASE
)
NO_PROSE = re.compile(r"\$\$.*?\$\$|```.*?```|`[^`]*`|\{[a-z:]+\}`[^`]*`", re.DOTALL)
ORIGINS = ("level", "setting", "printed", "counted", "proved")


def typed(text: str) -> list[str]:
    """Percentages, points and multiples in a text, with code and blocks left out."""
    return [" ".join(found.group().lower().split()) for found in MEASURED.finditer(NO_PROSE.sub("", text))]


def declared() -> list[dict[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("source", book.chapters(), ids=lambda p: p.stem)
def test_a_typed_number_is_declared_and_is_no_result_of_ours(source):
    cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    found = {number for text in prose for number in typed(text)}
    known = {line["number"] for line in declared() if line["chapter"] == source.stem}
    assert found == known, (
        f"tests/expected/prose.csv: without a line are {sorted(found - known)}, left over {sorted(known - found)}"
    )


def test_an_origin_is_no_experiment_of_ours():
    assert {line["origin"] for line in declared()} <= set(ORIGINS)
    assert all(line["what"] for line in declared())


def test_a_typed_result_is_seen():
    text = "It reaches 57.4 % and leads by two points; `5 %` is code, $$ 5 \\% $$ a formula, 3 clients a number."
    assert typed(text) == ["57.4 %", "two points"]
