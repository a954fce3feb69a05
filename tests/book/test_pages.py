"""What chapters say through `fedbook.pages`, and what `fedcore.cite` gives, are what was measured and used."""

import csv
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import fedcore as fc
from fedbook import pages
from fedbook.documents import citations
from fedbook.documents.citations import cite, references
from fedbook.pages import Claim
from fedbook.pictures import plots
from fedcore import show

ROOT = Path(__file__).resolve().parents[2]

# ---- parameters


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": -1}, "use seed>=0"),
        ({"profile": "fast"}, "profile='fast' is not known; use one of 'quick', 'paper', 'test'"),
        ({"again": "no"}, "again='no'; use True or False"),
        ({"results": "/no/such"}, "results='/no/such' is no folder of results"),
        ({"results": 3}, "results=3 is no folder"),
        ({"networks": 1.5}, "networks=1.5 is not an integer"),
    ],
)  # fmt: skip
def test_a_parameter_of_another_kind_is_refused_before_anything_runs(given, words, tmp_path):
    good = {"profile": "quick", "seed": 0, "again": True, "results": str(tmp_path), "networks": 3}
    pages.parameters(**good)
    with pytest.raises((TypeError, ValueError), match=words):
        pages.parameters(**good | given)


# ---- claims, settings, departures, tables


def test_spread_is_the_mean_and_half_its_interval():
    values = [94.0, 95.0, 97.0]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert pages.spread(values) == f"95.3 ± {(high - low) / 2:.1f} (n=3)"
    assert pages.spread(values, digits=3, count=False) == f"{np.mean(values):.3f} ± {(high - low) / 2:.3f}"
    assert pages.spread([0.5], digits=2) == "0.50 (n=1)"
    assert pages.spread(torch.tensor(values)) == pages.spread(values)


def test_what_plus_minus_means_stands_wherever_it_is_shown():
    frame = pd.DataFrame({"gap": ["+1.0 ± 0.3"], "what": ["of ten"]})
    claim = pages.Claim("a study", "it is better", "+1.0 ± 0.3", "holds")
    shown = [
        pages.table(frame, "A table").html, pages.filtered(frame, "A table.").html, pages.claims([claim], seeds=3).html,
        show(plots.figure()[0], {"gap": pages.spread([1.0, 2.0])}, caption="A picture.").html(),
    ]  # fmt: skip
    assert all("± is half a 95 % interval" in html for html in shown)
    assert "interval" not in pages.table(frame[["what"]], "A table").html


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_spread_refuses_what_is_no_measurement(values):
    with pytest.raises(ValueError, match="at least one value, all finite"):
        pages.spread(values)


def box(**line):
    items = [
        Claim("S1", "a < b & faster", "95.2 ± 0.9 (n=3)", "holds in part", test="test_it"),
        Claim("S2", "second", "1.0 (n=1)", "does not hold"),
    ]
    return pages.claims(items, seeds=3, setting="digits, 20 clients", **line)


def test_the_claim_box_shows_source_claim_measurement_verdict_test_seeds_and_setting():
    html = box(seconds=1.25)._repr_html_()
    for text in ("S1 claims", "a &lt; b &amp; faster", "95.2 ± 0.9 (n=3)", "holds in part", "test_it", "does not hold"):
        assert text in html
    assert "digits, 20 clients; 3 seeds" in html
    assert html.count('class="fc-claim"') == 2
    for text in ("S1 claims: a < b & faster", "95.2 ± 0.9 (n=3)", "verdict: holds in part", "3 seeds"):
        assert text in repr(box())


def test_hardware_versions_and_seconds_stand_alone_in_the_element_that_comparisons_leave_out():
    fast, slow = box(seconds=1.25), box(seconds=99.5)
    machine = re.compile(r'<p class="fc-machine">.*?</p>')
    (line,) = machine.findall(fast.html)
    assert "1.2 s on" in line
    assert f"torch {torch.__version__}" in line
    assert machine.sub("", fast.html) == machine.sub("", slow.html)
    assert repr(fast) == repr(slow)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Claim("S", "c", "m", "true"), "cannot be decided here"),
        (lambda: Claim("S", "c", " ", "holds"), "measured of a claim is empty"),
        (lambda: pages.record(), "record is empty"),
        (lambda: pages.record(x=None), "a record takes numbers, texts, lists and mappings"),
    ],
)
def test_what_says_nothing_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_setting_line_lists_what_is_known_and_keeps_the_seconds_apart():
    line = pages.setting(data="digits", clients=20, partition="Dirichlet(0.3)", cohort=None, local_steps=5, seconds=2.0)
    assert repr(line) == "data: digits · clients: 20 · partition: Dirichlet(0.3) · local steps: 5"
    assert re.sub(r'<span class="fc-machine">.*?</span>', "", line.html).count("2.0 s") == 0
    assert "2.0 s" in line.html


def test_what_is_folded_stands_in_the_page_under_one_line():
    table = pages.table(pd.DataFrame({"a": [1]}), "c")
    shown = pages.folded("More < here", table, pages.Html("<b>x</b>", "x"))
    assert shown.html.startswith('<details class="fc-fold')
    assert "<summary>More &lt; here</summary>" in shown.html
    assert table.html in shown.html
    assert repr(shown).splitlines()[0] == "More < here"
    assert repr(shown).endswith("x")
    with pytest.raises(TypeError, match="3 has no HTML"):
        pages.folded("a", 3)


def test_a_table_scrolls_has_a_caption_and_rounds_for_display_only():
    frame = pd.DataFrame({"method": ["A", "B<"], "accuracy": [0.951234, float("nan")]})
    shown = pages.table(frame, "Final accuracy", digits=3).html
    assert shown.count('<div class="fc-scroll ') == 1
    for text in ("<caption>Final accuracy</caption>", "0.951<", "B&lt;", "–"):
        assert text in shown
    assert frame.accuracy[0] == 0.951234
    assert "<th>0</th>" not in shown
    named = pages.table(frame.set_index("method"), "x").html
    assert '<thead><tr><th scope="col">method</th>' in named
    assert '<th scope="row">A</th>' in named


def test_a_table_has_its_verdict_first_its_numbers_to_the_right_and_no_empty_header():
    frame = pd.DataFrame({"runs": ["1.5 ± 0.2", "12 %"], "verdict": ["holds in part", "holds"]}, index=["A", "B"])
    shown = pages.table(frame, "c").html
    for html in (shown, pages.filtered(frame, "c").html):
        assert html.index(">verdict<") < html.index(">runs<")
    assert '<td class="fc-n">1.5 ± 0.2</td>' in shown
    assert "<td>holds in part</td>" in shown
    assert "></th>" not in shown


def test_a_table_of_few_rows_that_is_too_wide_is_turned_round():
    frame = pd.DataFrame([[1.5] * 14] * 2, index=["mean", "median"], columns=[f"condition{k}" for k in range(14)])
    shown = pages.table(frame, "c").html
    assert shown.count("<tr>") == 15
    assert '<th scope="row">condition13</th><td class="fc-n">1.5</td><td class="fc-n">1.5</td>' in shown
    assert pages.table(frame.iloc[:, :4], "c").html.count("<tr>") == 3


# ---- record


def test_a_record_is_shown_and_written_where_the_environment_says(tmp_path, monkeypatch):
    target = tmp_path / "record.json"
    monkeypatch.setenv("FEDCORE_RECORD", str(target))
    values = {"a": 1 / 3, "n": 3, "t": torch.tensor([0.1, 0.25]), "x": np.float64(2.0), "d": {"k": (1, True)}, "s": "v"}
    shown = pages.record(**values)
    assert json.loads(target.read_text()) == {
        "a": 0.333333, "n": 3, "t": [0.1, 0.25], "x": 2.0, "d": {"k": [1, True]}, "s": "v",
    }  # fmt: skip
    assert repr(shown).splitlines()[0] == "a = 0.3333"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("value", [np.inf, [1.0, torch.tensor(float("nan"))]])
def test_a_record_refuses_what_is_not_finite_and_leaves_the_old_file(value, tmp_path, monkeypatch):
    target = tmp_path / "record.json"
    target.write_text("{}")
    monkeypatch.setenv("FEDCORE_RECORD", str(target))
    with pytest.raises(ValueError, match=r"loss.*is not finite"):
        pages.record(loss=value)
    assert target.read_text() == "{}"


# ---- citations


def test_cite_gives_the_entries_in_order_each_once_as_bibtex_and_not_as_a_quoted_string():
    text = cite("FedUp", "digits", "fedup")
    assert re.findall(r"@\w+\{(\w+),", text) == ["wan2024fedup", "alpaydin1998digits", "pedregosa2011sklearn"]
    assert repr(text) == text == str(text)
    assert text.startswith("@article{wan2024fedup,\n")


def test_cite_takes_objects_classes_and_any_spelling():
    assert cite(fc.SCAFFOLD) == cite(fc.SCAFFOLD()) == cite("scaffold")
    assert cite("CIFAR-10") == cite("cifar_10")


def test_averaging_with_server_momentum_also_cites_its_source():
    assert cite(fc.FedAvg()) == cite("FedAvg")
    assert cite(fc.FedAvg(server_momentum=0.9)) == cite("FedAvg", "FedAvgM")


@pytest.mark.parametrize("names", [(), ("FedUp", "nope")])
def test_an_unknown_name_is_refused_with_the_known_ones(names):
    with pytest.raises(ValueError, match=r"known names are FedAvg, FedSGD, .* more"):
        cite(*names)


def test_each_entry_has_a_name_and_is_given_without_loss():
    from pybtex.database import parse_file, parse_string

    bibliography = parse_file(citations.BIBLIOGRAPHY).entries
    names = [name for entry in bibliography.values() for name in entry.fields.pop("keywords").split(", ")]
    assert parse_string(cite(*names), "bibtex").entries == bibliography
    assert all({"title", "year"} <= set(entry.fields) for entry in bibliography.values())


# ---- imports


def test_pages_pictures_and_citations_load_no_plotting_and_no_notebook_library():
    code = "import sys, fedbook.pages, fedbook.documents.citations, fedbook.pictures.plots; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"pandas", "IPython", "pybtex", "matplotlib", "PIL", "ipywidgets"} & set(loaded.split())


def test_pages_that_a_symbol_points_to_exist():
    rows = csv.DictReader((ROOT / "book" / "notation.csv").open(encoding="utf-8", newline=""))
    pages = {path.stem for ending in ("ipynb", "md") for path in (ROOT / "book").glob(f"*.{ending}")}
    assert {row["first used"] for row in rows} <= pages


def test_a_chapters_references_are_sorted_by_author_and_lead_to_the_works():
    found = references("SCAFFOLD", "FedUp", "digits", "SCAFFOLD")
    assert "References (4)" in found.html
    assert "https://arxiv.org/abs/1910.06378" in found.html
    surnames = [re.search(r"(\w+)( and|,)", line)[1] for line in repr(found).splitlines()]
    assert surnames == ["Alpaydin", "Karimireddy", "Pedregosa", "Wan"]
    with pytest.raises(ValueError, match="does not know 'FedNone'"):
        references("FedNone")


CHAPTERS = {path.stem: path for path in (ROOT / "book").glob("*.ipynb")}


@pytest.mark.parametrize("chapter", sorted(CHAPTERS.keys() - {"your_own"}))  # which cites none
def test_a_chapter_lists_the_works_that_it_cites(chapter):
    cells = json.loads(CHAPTERS[chapter].read_text("utf-8"))["cells"]
    text = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    cited = {key.strip() for keys in re.findall(r"{cite}`([^`]+)`", text) for key in keys.split(",")}
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    found = re.search(r"^references(\(.*?\))(  # fmt: skip)?$", code, re.DOTALL | re.MULTILINE)
    listed = eval(f"cite{found[1]}", {"cite": cite, "fc": fc})
    assert cited == {key for key in cited if f"{{{key}," in listed}


# --- a method on one page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", fc.ALL, ids=lambda m: m.__name__)
def test_shown_has_the_equation_and_the_lines_that_run(method):
    page = fc.shown(method)
    assert page == fc.shown(method())
    doc = inspect.getdoc(method)
    assert doc.startswith(page.equation + "\n\n"), "paragraphs that are whole"
    assert page.equation.count("\n\n") >= 1
    assert "Use it " not in page.equation
    for name in ("broadcast", "direction", "aggregate"):
        lines = [line.strip() for line in inspect.getsource(getattr(method, name)).splitlines()]
        differs = getattr(method, name) is not getattr(fc.algorithms.Method, name)
        assert differs <= all(line in page.code for line in lines), name
    compile(page.code, page.name, "exec")
    assert page.equation in page._repr_markdown_()
