"""The glossary: every word is explained, leads to a page on which it stands, and is there for whoever refers to it."""

import re

import pytest
import yaml
from helpers import prose

from tools import book

FOLDER = book.ROOT / "book"
SOURCE = (FOLDER / "glossary.md").read_text(encoding="utf-8")


def entries() -> dict[tuple[str, ...], str]:
    """An entry's term, and other names that lead to it -> its explanation, in the order of the page."""
    body = SOURCE.split("```{glossary}\n")[1].split("\n```")[0]
    parts = [entry.split("\n  ", 1) for entry in body.split("\n\n")]
    return {tuple(names.split("\n")): text for names, text in parts}


PAGES = {page.removeprefix("book/"): prose(page.removeprefix("book/")) for page in book.pages()}
ENTRIES = entries()
TERMS = {names[0]: text for names, text in ENTRIES.items()}
NAMES = {name: names for names in ENTRIES for name in names}
LABELS = {label: page for page, text in PAGES.items() for label in re.findall(r":label: (\S+)", text)}


def links(text: str) -> tuple[list[str], list[str]]:
    """Pages and labels that a text leads to."""
    pages = [re.sub(r".*<(.*)>", r"\1", name) for name in re.findall(r"\{doc\}`(.*?)`", text)]
    return pages, re.findall(r"\{(?:prf:ref|eq|ref)\}`(.*?)`", text)


def test_there_are_enough_words_in_order_and_each_is_short():
    assert len(TERMS) >= 60
    assert list(TERMS) == sorted(TERMS, key=str.lower)
    for term, text in TERMS.items():
        assert len(text) <= 240, term
        assert text.endswith("."), term


@pytest.mark.parametrize("term", TERMS)
def test_a_word_leads_to_a_page_that_says_it(term):
    """Any page that it leads to has the word or another name of it; of "batch norm, static", "static batch norm"."""
    pages, labels = links(TERMS[term])
    assert pages + labels
    assert not [page for page in pages if page not in PAGES]
    assert not [label for label in labels if label not in LABELS]
    told = " ".join([PAGES[page] for page in pages] + [PAGES[LABELS[label]] for label in labels]).lower()
    told = re.sub(r"[\s*]+", " ", told)
    turned = [name.lower().partition(", ") for name in NAMES[term]]
    assert any(f"{rest} {first}".strip() in told for first, _, rest in turned)


# ---- words in the order of the book

ORDERED = ("server", "client", "cohort", "round", "local step", "aggregate", "non-IID", "Dirichlet partition",
        "client drift", "late accuracy", "paired difference", "validation split", "statistically significant",
        "family", "Holm's correction", "quick", "desk", "control variate", "pseudo-gradient", "feature shift",
        "doubly stochastic", "sub-model", "neuron conflict", "path", "block", "intensity")  # fmt: skip
LINKED = re.compile(r"(\*?)\{term\}`([^`]*)`(\*?)")
BOLD = re.compile(r"\*\*([^*`{}\n]+)\*\*")


def chapters() -> dict[str, str]:
    """The prose of the numbered chapters, in the order of the book."""
    parts = yaml.safe_load((book.ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    files = [chapter["file"] for part in parts if part.get("numbered") for chapter in part["chapters"]]
    return {file.removeprefix("book/"): prose(file.removeprefix("book/")) for file in files}


def words(text: str) -> tuple[set[str], set[str]]:
    """The words that a chapter explains (links in bold or italics), and those that it only links or writes in bold."""
    explained, used = set(), set()
    for before, name, behind in LINKED.findall(text):
        word = re.sub(r".*<(.*)>", r"\1", " ".join(name.split()))
        (explained if before or behind else used).add(NAMES.get(word, (word,))[0])
    plain = {name.lower(): names[0] for name, names in NAMES.items()}
    for phrase in BOLD.findall(text):
        word = phrase.strip(" .:,").lower()
        used |= {plain[form] for form in (word, word.removesuffix("s")) if form in plain}
    return explained, used - explained


def where(texts: dict[str, str]) -> dict[str, str]:
    """Word -> the first chapter that explains it."""
    found: dict[str, str] = {}
    for chapter, text in texts.items():
        for word in words(text)[0]:
            found.setdefault(word, chapter)
    return found


def too_early(texts: dict[str, str]) -> list[str]:
    """Uses of a word in a chapter before the one that explains it."""
    order, home = list(texts), where(texts)
    return [
        f"{chapter} uses '{word}', which {home[word]} explains"
        for chapter, text in texts.items()
        for word in sorted(words(text)[1])
        if word in home and order.index(chapter) < order.index(home[word])
    ]


def test_no_chapter_uses_a_word_that_a_later_one_explains():
    assert not too_early(chapters())


@pytest.mark.parametrize("word", ORDERED)
def test_a_main_word_is_explained_in_a_chapter(word):
    assert word in where(chapters())
