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


def test_markup_that_screen_readers_take_wrongly_is_mended():
    long = '<dt>f(<dl>\n<dd><em class="sig-param">n</em>, </dd>\n</dl>)</dt><dd><dl><dt>a</dt><dd>b</dd></dl></dd>'
    assert sphinx_fedcore.readable("<tr><th></th><th>a</th></tr>") == "<tr><td></td><th>a</th></tr>"
    mended = sphinx_fedcore.readable(long + '<summary aria-label="Toggle hidden content">The code</summary>')
    assert '<span class="fc-parameter"><em class="sig-param">n</em>, </span>' in mended
    assert mended.endswith("<dd><dl><dt>a</dt><dd>b</dd></dl></dd><summary>The code</summary>")


def test_the_picture_of_the_map_says_where_each_method_differs_from_fedavg(written):
    rows = cards.rows((cards.ROOT / "book" / "map.md").read_text("utf-8"))
    differ = {name: cards.differs(rows[name], rows["FedAvg"]) for name in map(cards.title, fc.ALL)}
    assert differ["FedAvg"] == (False,) * 4
    assert differ["FedProx"] == (False, True, False, False)
    assert differ["FedNova"] == (False, False, True, False)
    assert differ["SCAFFOLD"] == (True,) * 4
    text = written[cards.ROOT / "book" / "map.html"]
    for kind in fc.ALL:
        assert text.count(f'href="methods/{cards.page(kind)}.html"') == 1


def test_runs_that_diverged_are_counted_and_in_no_mean():
    line = {"finals": {"q=0.1": [50.0, 52.0], "q=0.3": [60.0, float("nan")], "q=0.6": [70.0, 70.0]}}
    assert cards._measured(line) == "51.0 to 70.0, 2 seeds, runs diverged in 1 of 3 columns"
    assert cards._measured({"finals": {"q": [float("nan")]}}) == "1 seeds, runs diverged in 1 of 1 columns"


def test_a_row_of_a_table_belongs_to_the_method_with_the_longest_fitting_name():
    named = {row: cards.trained(row, {}) for row in ("FedAvg + server momentum", "DFedAvgM", "MimeLite", "IID, K=1")}
    assert list(named.values()) == [fc.FedAvg, fc.DFedAvgM, fc.MimeLite, None]
    assert cards.trained("all data in one place", {"method": ["Central", {}]}) is fc.Central
