"""The glossary: every word is explained, leads to a page on which it stands, and is there for whoever refers to it."""

import json
import re

import pytest

from tools import book

FOLDER = book.ROOT / "book"
SOURCE = (FOLDER / "glossary.md").read_text(encoding="utf-8")
MAIN = ("client", "cohort", "round", "local step", "client drift", "label skew", "control variate", "proximal term",
        "sub-model", "mixing matrix", "validation split", "paired difference")  # fmt: skip


def entries() -> dict[str, str]:
    """Term -> its explanation, in the order of the page."""
    body = SOURCE.split("```{glossary}\n")[1].split("\n```")[0]
    return dict(entry.split("\n  ", 1) for entry in body.split("\n\n"))


def prose(page: str) -> str:
    """What is written on a page: a chapter's Markdown cells, or the file; a folder's page by its path from `book`."""
    path = FOLDER / f"{page}.ipynb"
    if not path.exists():
        return (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


PAGES = {page.removeprefix("book/"): prose(page.removeprefix("book/")) for page in book.pages()}
TERMS = entries()
LABELS = {label: page for page, text in PAGES.items() for label in re.findall(r":label: (\S+)", text)}


def links(text: str) -> tuple[list[str], list[str]]:
    """Pages and labels that a text leads to."""
    pages = [re.sub(r".*<(.*)>", r"\1", name) for name in re.findall(r"\{doc\}`(.*?)`", text)]
    return pages, re.findall(r"\{(?:prf:ref|eq|ref)\}`(.*?)`", text)


def named(text: str) -> set[str]:
    """Terms that a text refers to, `shown <term>` by the term."""
    return {re.sub(r".*<(.*)>", r"\1", name.replace("\n", " ")) for name in re.findall(r"\{term\}`([^`]*)`", text)}


def test_there_are_enough_words_in_order_and_each_is_short():
    assert len(TERMS) >= 60
    assert list(TERMS) == sorted(TERMS, key=str.lower)
    for term, text in TERMS.items():
        assert len(text) <= 240, term
        assert text.endswith("."), term


@pytest.mark.parametrize("term", TERMS)
def test_a_word_leads_to_a_page_that_says_it(term):
    """Any page that it leads to has the word, or its last one: "norm" of "batch norm, static" is not enough."""
    pages, labels = links(TERMS[term])
    assert pages + labels
    assert not [page for page in pages if page not in PAGES]
    assert not [label for label in labels if label not in LABELS]
    told = " ".join([PAGES[page] for page in pages] + [PAGES[LABELS[label]] for label in labels]).lower()
    told = re.sub(r"[\s*]+", " ", told)
    first, _, rest = term.lower().partition(", ")
    assert f"{rest} {first}".strip() in told


@pytest.mark.parametrize("page", PAGES)
def test_a_word_that_is_referred_to_is_in_the_glossary(page):
    assert named(PAGES[page]) <= set(TERMS)


def test_the_main_words_are_linked_where_chapters_first_use_them():
    used = [term for page, text in PAGES.items() if page != "glossary" for term in named(text)]
    assert set(MAIN) <= set(used)


def test_a_word_that_is_missing_would_be_seen():
    assert named("a {term}`client` and {term}`variates <control variate>`, not `term`") == {"client", "control variate"}
    assert links("{doc}`methods/central`, {doc}`a page <drift>`, {eq}`eq-a`") == (
        ["methods/central", "drift"],
        ["eq-a"],
    )
