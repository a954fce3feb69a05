"""What chapters say through `fedbook.pages`, and what `fedcore.cite` gives, are what was measured and used."""

import csv
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
from fedcore import show, submodels
from fedcore.algorithms import listing

ROOT = Path(__file__).resolve().parents[2]

# ---- parameters


@pytest.fixture
def cells(monkeypatch):
    """A stand-in for the notebook's shell: the test fills in the cells that have run so far."""
    import IPython

    shell = SimpleNamespace(user_ns={"In": [""]})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    return shell.user_ns["In"]


def test_a_parameter_that_papermill_injected_under_a_wrong_name_is_refused(cells):
    cells += ['profile = "quick"\nalpha = 0.1', "# Parameters\nalhpa = 0.2\n"]
    with pytest.raises(ValueError, match="unknown parameter 'alhpa'; this chapter takes: profile, alpha"):
        pages.parameters(profile="quick", alpha=0.1)


def test_known_parameters_pass_and_a_reader_may_define_anything_and_run_the_check_again(cells):
    cells += ['profile = "quick"', '# Parameters\nprofile = "paper"\nseed = 3\nmus = [1, 2]\n', "scratch = 3"]
    for _ in range(2):
        pages.parameters(profile="paper", seed=3, mus=[1, 2])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": -1}, "use seed>=0"), ({"seed": True}, "use seed>=0"), ({"seed": "1"}, "use seed>=0"),
        ({"profile": "fast"}, "profile='fast' is not known; use one of 'quick', 'paper', 'test'"),
        ({"again": "no"}, "again='no'; use True or False"),
        ({"results": "/no/such"}, "results='/no/such' is no folder of results"),
        ({"results": 3}, "results=3 is no folder"),
        ({"networks": -1}, "networks=-1 is out of range"),
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
    assert pages.spread(torch.tensor(values)) == pages.spread(np.array(values)) == pages.spread(values)


def test_what_plus_minus_means_stands_wherever_it_is_shown():
    frame = pd.DataFrame({"gap": ["+1.0 ± 0.3"], "what": ["of ten"]})
    claim = pages.Claim("a study", "it is better", "+1.0 ± 0.3", "holds")
    shown = [
        pages.table(frame, "A table").html, pages.filtered(frame, "A table.").html, pages.claims([claim], seeds=3).html,
        show(plots.figure()[0], {"gap": pages.spread([1.0, 2.0])}, caption="A picture.").html(),
    ]  # fmt: skip
    assert all("± is half a 95 % interval" in html for html in shown)
    assert "interval" not in pages.table(frame[["what"]], "A table").html


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_spread_refuses_what_is_no_measurement(values):
    with pytest.raises(ValueError, match="at least one value, all finite"):
        pages.spread(values)


def box(**line):
    items = [
        Claim("S1", "a < b & faster", "95.2 ± 0.9 (n=3)", "holds in part", test="test_it"),
        Claim("S2", "second", "1.0 (n=1)", "does not hold"),
    ]
    return pages.claims(items, seeds=3, **line)


def test_the_claim_box_shows_source_claim_measurement_verdict_test_seeds_and_setting():
    html = box(seconds=1.25, setting="digits, 20 clients")._repr_html_()
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
    assert "torch" not in machine.sub("", fast.html)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Claim("S", "c", "m", "true"), "cannot be decided here"),
        (lambda: Claim("S", "c", " ", "holds"), "measured of a claim is empty"),
        (lambda: pages.record(), "record is empty"),
        (lambda: pages.record(x=None), "a record takes numbers, texts, lists and mappings"),
        (lambda: pages.record(x={1, 2}), "a record takes numbers, texts, lists and mappings"),
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


def test_departures_are_numbered_and_complete():
    listed = pages.departures([("says <x>", "does y", "because"), ("a", "b", "c")])
    assert listed.html.startswith('<details class="fc-departures')
    assert "<summary>2 places, " in listed.html
    assert listed.html.count("<li>") == 2
    assert "says &lt;x&gt;" in listed.html
    assert repr(listed).splitlines()[0] == "1. the paper: says <x>"


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


def test_the_lines_of_functions_are_those_of_the_source_without_what_they_say_of_themselves():
    shown = listing.lines(fc.FedRolex.score, submodels.combine)
    assert shown.code.startswith("def score(self, r: Round, neurons: Neurons) -> list[Tensor]:\n    return [-(")
    assert shown.code.endswith("return torch.where(share > 0, x + server_lr * mean, x)")
    assert '"""' not in shown.code
    assert shown._repr_markdown_() == f"```python\n{shown.code}\n```"
    with pytest.raises(TypeError):
        listing.lines(3)


def test_a_table_scrolls_has_a_caption_and_rounds_for_display_only():
    frame = pd.DataFrame({"method": ["A", "B<"], "accuracy": [0.951234, float("nan")]})
    shown = pages.table(frame, "Final accuracy", digits=3)
    assert shown.html.count('<div class="fc-scroll ') == 1
    assert "<caption>Final accuracy</caption>" in shown.html
    assert "0.951<" in shown.html
    assert "0.9512" not in shown.html
    assert "B&lt;" in shown.html
    assert "–" in shown.html
    assert frame.accuracy[0] == 0.951234
    assert "<th>0</th>" not in shown.html
    assert '<thead><tr><th scope="col">method</th>' in pages.table(frame.set_index("method"), "x").html
    assert '<th scope="row">A</th>' in pages.table(frame.set_index("method"), "x").html


def test_a_table_has_its_verdict_first_its_numbers_to_the_right_and_no_empty_header():
    frame = pd.DataFrame({"runs": ["1.5 ± 0.2", "12 %"], "verdict": ["holds in part", "holds"]}, index=["A", "B"])
    shown = pages.table(frame, "c").html
    assert shown.index(">verdict<") < shown.index(">runs<")
    assert '<td class="fc-n">1.5 ± 0.2</td>' in shown
    assert "<td>holds in part</td>" in shown
    assert "></th>" not in shown
    filtered = pages.filtered(frame, "c").html
    assert filtered.index(">verdict<") < filtered.index(">runs<")


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


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDCORE_RECORD", raising=False)
    monkeypatch.chdir(tmp_path)
    pages.record(a=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [float("nan"), np.inf, [1.0, float("nan")], torch.tensor(float("nan"))])
def test_a_record_refuses_what_is_not_finite_and_leaves_the_old_file(value, tmp_path, monkeypatch):
    target = tmp_path / "record.json"
    target.write_text("{}")
    monkeypatch.setenv("FEDCORE_RECORD", str(target))
    with pytest.raises(ValueError, match=r"loss.*is not finite"):
        pages.record(loss=value)
    assert target.read_text() == "{}"


# ---- citations


def test_cite_gives_the_entries_in_order_and_each_once():
    text = cite("FedUp", "digits", "fedup")
    assert re.findall(r"@\w+\{(\w+),", text) == ["wan2024fedup", "alpaydin1998digits", "pedregosa2011sklearn"]
    assert "10.1360/SSI-2023-0107" in text


def test_cite_takes_objects_classes_and_any_spelling():
    class SCAFFOLD:
        pass

    assert cite(SCAFFOLD) == cite(SCAFFOLD()) == cite("scaffold")
    assert cite("CIFAR-10") == cite("cifar10") == cite("cifar_10")


def test_averaging_with_server_momentum_also_cites_its_source():
    class FedAvg:
        def __init__(self, server_momentum=0.0):
            self.server_momentum = server_momentum

    assert cite(FedAvg()) == cite("FedAvg")
    assert cite(FedAvg(0.9)) == cite("FedAvg", "FedAvgM")


@pytest.mark.parametrize("names", [("FedNothing",), (), ("FedUp", "nope")])
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


def test_pages_and_citations_need_neither_pandas_nor_ipython_to_be_imported():
    code = "import sys, fedbook.pages, fedbook.documents.citations; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {"pandas", "IPython", "pybtex", "matplotlib"} & set(loaded.split())


def test_pages_that_a_symbol_points_to_exist():
    rows = csv.DictReader((ROOT / "book" / "notation.csv").open(encoding="utf-8", newline=""))
    pages = {path.stem for ending in ("ipynb", "md") for path in (ROOT / "book").glob(f"*.{ending}")}
    assert {row["first used"] for row in rows} <= pages


def test_a_citation_is_shown_as_bibtex_and_not_as_a_quoted_string():
    shown = repr(cite("FedUp"))
    assert shown == cite("FedUp") == str(cite("FedUp"))
    assert shown.startswith("@article{wan2024fedup,\n")


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


@pytest.mark.parametrize("what", [3, "FedUp", int, fc.Ring()])
def test_shown_of_no_method_is_refused(what):
    with pytest.raises(TypeError, match="use a method such as"):
        fc.shown(what)
