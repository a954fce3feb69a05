"""Every method has a page, and it says what the package, the map of methods and the stored results say."""

from __future__ import annotations

import re

import pytest

import fedcore as fc
from tools import cards, sphinx_fedcore


@pytest.fixture(scope="module")
def written():
    return cards.every()


def test_pages_are_what_the_code_and_the_results_give(written):
    stale = [path.name for path, text in written.items() if not path.exists() or path.read_text("utf-8") != text]
    assert not stale, f"{', '.join(stale)}: not what code, map and results give; run tools/cards.py, which writes them"
    assert {path.stem for path in (cards.ROOT / "book" / "methods").iterdir()} == {cards.page(kind) for kind in fc.ALL}


@pytest.mark.parametrize("kind", fc.ALL, ids=lambda kind: kind.__name__)
def test_the_call_on_a_page_runs(kind, written, capsys):
    text = written[cards.ROOT / "book" / "methods" / f"{cards.page(kind)}.md"]
    call = text.split("## Try it")[1].split("```python")[1].split("```")[0]
    assert "rounds=20" in call
    exec(call.replace("rounds=20", "rounds=1"), {})
    assert kind.__name__ in capsys.readouterr().out


@pytest.mark.parametrize("kind", fc.ALL, ids=lambda kind: kind.__name__)
def test_a_page_begins_with_when_to_use_the_method_and_shows_at_most_three_results(kind, written):
    text = written[cards.ROOT / "book" / "methods" / f"{cards.page(kind)}.md"]
    first = text.split("\n\n")[2:4]
    assert [part.split("** ")[0] for part in first] == ["**Use", "**Not"]
    assert all(part.endswith(".") for part in first)
    seen = text.split("## Results")[1].split("````")[0]
    assert seen.count("| {doc}") <= cards.SHOWN


def test_every_public_name_has_a_page_or_stands_in_the_reference():
    text = (cards.ROOT / "book" / "api.md").read_text("utf-8")
    listed = set(re.findall(r"^\.\. auto\w+:: (?:fedcore\.)?(\w+)$", text, re.M))
    methods = {kind.__name__ for kind in fc.ALL}
    assert set(fc.__all__) - methods - listed == {"ALL"}


def test_docstrings_are_shown_in_their_own_words():
    doc = "Steps of y_i_ * 2.\n\nlr, mu: rates, `x_`s.  t: the\nround.\n\n    fc.start(a * b)\n\nNote: so|so."
    assert sphinx_fedcore.plain(doc.splitlines()) == [
        r"Steps of y_i\_ \* 2.", "", r"**lr, mu**: rates, ``x_``\ s.", "", "**t**: the round.", "",
        "::", "", "    fc.start(a * b)", "", r"Note: so\|so.", "",
    ]  # fmt: skip


def test_a_signature_shows_types_without_their_ranges():
    long = "(n: ~typing.Annotated[int, ~fedcore.support.checks.Within(low=1, hint='a, b')] | None = None, f: dict = {})"
    assert sphinx_fedcore.unannotated(long) == "(n: int | None = None, f: dict = {})"
    assert (
        sphinx_fedcore.unannotated("(x: ~torch.Annotated[~torch.dtype, Kind(test=<lambda>)] = 1)")
        == "(x: ~torch.dtype = 1)"
    )
