"""Every chapter opens with a question and ends with five lines and the way to the next."""

import csv
import re
from itertools import pairwise

import pytest
import yaml

from tools import book

PARTS = yaml.safe_load((book.ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
ORDER = [c["file"].removeprefix("book/") for part in PARTS if part.get("numbered") for c in part["chapters"]]


@pytest.mark.parametrize("name", ORDER)
def test_a_chapter_opens_with_a_question_and_ends_with_five_lines_and_the_way_on(name):
    cells = book.read(book.ROOT / "book" / f"{name}.ipynb").cells
    first, ending = cells[0].source, "\n\n".join(c.source for c in cells if c.cell_type == "markdown")
    ending = ending.partition("## In short\n")[2]
    assert "**The question.**" in first
    assert "After this page you can" in first
    assert "What we found" not in first, "the opening tells the result"
    assert len(re.findall(r"^- ", ending, re.MULTILINE)) == 5
    next_one = dict(pairwise(ORDER)).get(name)
    assert not next_one or f"**Next:** {{doc}}`{next_one}`" in ending
    assert not any(cell.source.startswith("print(fc.cite(") for cell in cells), "it ends in a stub of code"


def test_every_chapter_has_three_questions_with_one_right_answer_that_its_length_does_not_betray():
    with (book.ROOT / "book" / "quizzes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["chapter"] for row in rows] == [name for name in ORDER for _ in range(3)]
    longest = 0
    for row in rows:
        right, *wrong = (row[name] for name in ("right", "wrong_1", "wrong_2", "wrong_3"))
        given = [right, *filter(None, wrong)]
        assert len(set(given)) == len(given) >= 3, row["question"]
        assert all(text.count("$") % 2 == 0 for text in row.values()), row["question"]
        assert row["why"].endswith("."), row["question"]
        longest += len(right) > max(map(len, wrong))
    assert longest < len(rows) / 2
