"""One letter, one meaning: every letter of every formula stands in a table, and no letter stands there twice.

`book/notation.csv` is for the whole book, `book/letters.csv` for single pages.  A letter of a page that has another
meaning elsewhere says there why it may.
"""

import csv
from collections import defaultdict

import mathematics
import pytest
from mathematics import Use, formulas, letters

from tools import book

BOOK = book.ROOT / "book"
CLASHES = 21  # rows of single pages that give a reason: fewer is better
FREE = {"s", "c", "e", "y"}  # as indices: of a sample, a class or channel, an entry, a label


def read(name: str) -> list[dict[str, str]]:
    with (BOOK / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keys(symbol: str) -> list[Use]:
    """The letters that a row of a table explains."""
    return [use for formula in formulas(symbol) for use in letters(formula) if not use.inside]


WHOLE = {key: row for row in read("notation.csv") for key in keys(row["symbol"])}
LOCAL: dict[str, dict[Use, dict[str, str]]] = defaultdict(dict)
for _row in read("letters.csv"):
    for _page in _row["page"].split(", "):
        for _key in keys(_row["symbol"]):
            assert _key not in LOCAL[_page], f"{_key.shown()} stands twice for {_page}"
            LOCAL[_page][_key] = _row
PAGES: dict[str, list[str]] = defaultdict(list)
for _page, _text in mathematics.pages(BOOK):
    PAGES[_page] += formulas(_text)


def explained(use: Use, table: dict[Use, dict[str, str]]) -> dict[str, str] | None:
    """The row of a table for a letter: as it stands, else without a name below it, a bar, or its indices."""
    for accent in dict.fromkeys((use.accent, "" if use.accent == "bar" else use.accent)):
        for names in dict.fromkeys((use.names, frozenset())):
            plain = Use(accent, use.letter, names, use.indices)
            if names == frozenset({"K"}):
                plain = plain._replace(names=frozenset(), indices=1)
            if plain in table:
                return table[plain]
            rows = [row for key, row in table.items() if (key.accent, key.letter, key.names) == plain[:3]]
            if rows and all(row is rows[0] for row in rows):
                return rows[0]
    return None


def row_of(use: Use, page: str) -> dict[str, str] | None:
    own = LOCAL.get(page, {})
    if use in own or use in WHOLE:
        return own.get(use) or WHOLE[use]
    return explained(use, own) or explained(use, WHOLE)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_each_letter_of_a_page_stands_in_a_table(page):
    missing = defaultdict(set)
    for formula in PAGES[page]:
        for use in letters(formula):
            index = use.inside and use.letter in FREE and not use.names
            use = use._replace(inside=False)
            if not index and row_of(use, page) is None:
                missing[use.shown()].add(formula)
    found = ", ".join(f"{letter} in {sorted(where)[0]}" for letter, where in missing.items())
    assert not missing, f"{found}: add a line to book/letters.csv, or for the whole book to book/notation.csv"


def test_no_letter_has_two_rows_in_the_table_of_the_book():
    found = [key for row in read("notation.csv") for key in keys(row["symbol"])]
    twice = {key.shown() for key in found if found.count(key) > 1}
    assert found
    assert not twice


def test_a_letter_with_another_meaning_elsewhere_says_why():
    rows = read("letters.csv")
    for row in rows:
        others = [r for r in rows if r is not row and not r["why it may clash"]] + read("notation.csv")
        clashes = {key.shown() for key in keys(row["symbol"]) for r in others if key in keys(r["symbol"])}
        assert not clashes or row["why it may clash"], (
            f"{', '.join(sorted(clashes))} of {row['page']} has another meaning"
        )
    assert sum(bool(row["why it may clash"]) for row in rows) <= CLASHES


def test_no_row_is_left_over():
    """A row of a page is used there, and a row of the book on the page that it names first."""
    used = {page: {row_of(use._replace(inside=False), page)["meaning"] for f in found for use in letters(f)
                   if row_of(use._replace(inside=False), page)} for page, found in PAGES.items()}  # fmt: skip
    for row in read("letters.csv"):
        assert all(row["meaning"] in used[page] for page in row["page"].split(", ")), row
    for row in read("notation.csv"):
        assert row["meaning"] in used[row["first used"]], row
