"""Every chapter opens with a question and ends with five lines and the way to the next."""

import csv
import re
from itertools import pairwise

import pytest
import yaml

from tools import book

PARTS = yaml.safe_load((book.ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
ORDER = [c["file"].removeprefix("book/") for part in PARTS if part.get("numbered") for c in part["chapters"]]


def faults(parts: list[dict], next_one: str | None) -> list[str]:
    """What a chapter's opening and ending lack."""
    texts = [cell["source"] for cell in parts]
    prose = "\n\n".join(text for text, cell in zip(texts, parts, strict=True) if cell["cell_type"] == "markdown")
    out = []
    if "**The question.**" not in texts[0] or "After this page you can" not in texts[0]:
        out.append("the opening has no question, or does not say what a reader can do after the page")
    if "What we found" in texts[0]:
        out.append("the opening tells the result")
    ending = prose.partition("## In short\n")[2]
    if len(re.findall(r"^- ", ending, re.MULTILINE)) != 5:
        out.append("it does not end with five lines under 'In short'")
    if next_one and f"**Next:** {{doc}}`{next_one}`" not in ending:
        out.append(f"it does not lead to {next_one}")
    if any(text.startswith("print(fc.cite(") for text in texts):
        out.append("it ends in a stub of code")
    return out


@pytest.mark.parametrize("name", ORDER)
def test_a_chapter_opens_with_a_question_and_ends_with_five_lines_and_the_way_on(name):
    next_one = dict(pairwise(ORDER)).get(name)
    assert not faults(book.read(book.ROOT / "book" / f"{name}.ipynb").cells, next_one)


def test_a_chapter_that_tells_its_result_first_would_be_seen():
    bare = [{"cell_type": "markdown", "source": "# A\n- *What we found.* It works."}]
    assert len(faults(bare, "drift")) == 4


def test_the_chapters_have_six_parts():
    parts = [part["caption"] for part in PARTS if part.get("numbered")]
    assert parts == ["Foundations", "Correcting drift", "Other goals", "Weak clients", "Evidence", "Practice"]


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
