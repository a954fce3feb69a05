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
# Words of our own for what has a standard term: fixed point, local optimum, no significant difference, synthetic, ...
PRIVATE = re.compile(
    r"place of rest|comes? to rest|\bown optim(?:um|a)\b|not distinguished|distinguished from|told apart|made-up"
    r"|\bthe search\b|in the place of|\bdearer\b|\bis dear\b|leaves? (?:\w+ )?away\b|looks? whether|goes on falling"
    r"|\b(?:\d+|clients|labels|classes|steps?|row|seconds|gradients) a (?:client|round|row|step)\b",
    re.IGNORECASE,
)
FILES = [*book.chapters(), *map(book.ROOT.joinpath, ("README.md", "USAGE.md", "CONTRIBUTING.md"))]
for words in ("book/*.md", "book/*.csv", "book/methods/*.md", "fedbook/documents/*.csv", "fedbook/verdicts/*.csv"):
    FILES += book.ROOT.glob(words)
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


@pytest.mark.parametrize("source", FILES, ids=lambda p: p.name)
def test_a_page_says_the_standard_term(source):
    chapter = source.suffix == ".ipynb"  # with its captions, which stand in code
    text = "\n".join(cell.source for cell in book.read(source).cells) if chapter else source.read_text(encoding="utf-8")
    assert not PRIVATE.findall(text.replace("Also called the search.", ""))  # the glossary


def test_a_word_of_our_own_is_seen():
    assert PRIVATE.findall("FedProx comes to rest; it looks whether the search in the place of SGD is dear.") == [
        "comes to rest", "looks whether", "the search", "in the place of", "is dear",
    ]  # fmt: skip


def test_a_typed_result_is_seen():
    text = "It reaches 57.4 % and leads by two points; `5 %` is code, $$ 5 \\% $$ a formula, 3 clients a number."
    assert typed(text) == ["57.4 %", "two points"]
