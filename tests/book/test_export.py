"""Stored tables as Markdown, LaTeX and CSV, and as a picture of paired differences."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
from scipy import stats
from tables import images, store, table_of

from fedbook import Cell, reproduce, show
from fedbook.documents import definitions
from fedbook.results import provenance
from fedbook.results.batch import ResultFolder
from fedbook.show import export

SEEDS, IMAGES = 4, 400
SPEC = {"study": "simulate", "method": ["FedAvg", {}]}
RIGHT = {"FedAvg": 0.7, "A & B_1": 0.95, "a|b 50%": 0.3, "same": 0.7}  # row -> share of images classified correctly


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Two tables with stored runs, and a third without; returns the results folder."""
    monkeypatch.setattr(definitions, "_added", [])
    for name in ("one", "two", "empty"):
        printed = {"same": 71.25}
        listed = [Cell(row, {**SPEC, "row": row}, row, "q=0.3", printed.get(row), SEEDS) for row in RIGHT]
        add(tmp_path, table_of(listed, name), listed if name != "empty" else [])
    return tmp_path


def add(root, table, listed):
    """A table of a user's, with the runs of these cells."""
    definitions._added.append((root, table))
    for cell in listed:
        store(ResultFolder(root, "quick", table.name), cell, runs(cell, RIGHT.get(cell.row, 0.7)))


def runs(cell, share):
    out = {}
    for seed in range(SEEDS):
        row = np.random.default_rng(0 if cell.row in ("FedAvg", "same") else 1).random(IMAGES) < share + 0.02 * seed
        out[seed] = images(row) | {"seconds": 1, "history": [], "code": provenance.code(cell.spec)}
    return out


def report(root, capsys, *words):
    status = reproduce.main(["report", *words, "--results", str(root)])
    return status, *capsys.readouterr()


def finals(row):
    return [run["final"] for run in runs(Cell(row, SPEC, row), RIGHT[row]).values()]


def entry(row, mark):
    mean, half = np.mean(finals(row)), stats.sem(finals(row)) * stats.t.ppf(0.975, SEEDS - 1)
    return f"{mean:.1f} ± {half:.1f}{' (71.2)' if row == 'same' else ''}{mark}"


EXPECTED = {"FedAvg": "", "A & B_1": " ✓", "a|b 50%": " ✗", "same": " ~"}


def test_a_pivot_has_mean_students_interval_the_sources_value_and_the_mark_of_the_verdict(stored, capsys):
    status, out, _ = report(stored, capsys, "one", "--format", "csv")
    assert status == 0
    title, *lines = out.splitlines()
    assert title == "# one, quick: a title"
    assert list(csv.reader(lines)) == [["row", "q=0.3"]] + [[row, entry(row, mark)] for row, mark in EXPECTED.items()]


def test_markdown_says_what_the_marks_mean(stored, capsys):
    out = report(stored, capsys, "one", "--format", "markdown")[1]
    assert f"| a\\|b 50% | {entry('a|b 50%', ' ✗')} |" in out.splitlines()
    assert "✓ better, ✗ worse, ~ no significant difference: against FedAvg" in out


def test_latex_has_its_own_marks_and_as_many_columns_in_every_line(stored, capsys):
    out = report(stored, capsys, "one", "--format", "latex")[1]
    lines = [line for line in out.splitlines() if not line.startswith("%")]
    rows = [line for line in lines if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 1 for row in rows)
    assert r"A \& B\_1 & " + entry("A & B_1", r" $\checkmark$").replace("±", r"$\pm$") + r" \\" in rows
    assert r"a|b 50\% & " + entry("a|b 50%", r" $\times$").replace("±", r"$\pm$") + r" \\" in rows
    assert "".join(lines).isascii()


def test_a_table_of_older_code_says_so_in_every_format(stored, capsys, monkeypatch):
    words = f"{4 * SEEDS} of {4 * SEEDS} runs are older than the code"
    for form in export.FORMATS:
        assert words not in report(stored, capsys, "one", "--format", form)[1]
    monkeypatch.setattr(provenance, "code", lambda spec: "edited")
    for form in export.FORMATS:
        assert words in report(stored, capsys, "one", "--format", form)[1].splitlines()[0]


@pytest.mark.parametrize("words", [(), ("--format", "csv")], ids=["verdicts", "a format"])
def test_a_report_names_the_files_that_are_damaged_and_leaves_them_out(words, stored, capsys):
    files = sorted((stored / "quick" / "one").glob("*.json"))
    files[0].write_text("{")
    status, out, err = report(stored, capsys, "one", *words)
    assert (status, len(err.splitlines())) == (0, 1)
    assert f"{files[0]} is damaged" in err
    assert "damaged" not in out
    for file in files:
        file.write_text("{")
    status, out, err = report(stored, capsys, "one", *words)
    assert all(f"{file} is damaged" in err for file in files)
    assert not words or f"nothing is stored of one in {stored}; run a table first, or add --uncommitted" in err
    assert report(stored, capsys, "two", *words)[2] == "", "those of other tables are not asked for"


def test_named_tables_are_shown_all_without_names_and_a_file_is_written(stored, capsys):
    report(stored, capsys, "two", "--format", "csv", "--output", str(stored / "out.csv"))
    assert (stored / "out.csv").read_text().splitlines()[0] == "# two, quick: a title"
    assert report(stored, capsys, "--format", "csv")[1].count("a title") == 2


def test_a_picture_of_each_table_has_a_line_for_each_row_but_the_reference(stored, capsys):
    assert report(stored, capsys, "one", "--plot", str(stored / "gaps.svg"))[0] == 0
    assert (stored / "gaps.svg").read_text().startswith("<?xml")
    report(stored, capsys, "--plot", str(stored / "gaps.png"))
    assert {p.name for p in stored.glob("*.png")} == {"gaps-one-quick.png", "gaps-two-quick.png"}
    figure = show.differences(definitions.get("one"), ResultFolder(stored, "quick", "one"))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{row} − FedAvg, q=0.3" for row in RIGHT if row != "FedAvg"
    ]
    drawn = [zip(line.get_ydata(), line.get_xdata(), strict=True) for line in axes.lines if line.get_marker() == "o"]
    points = {y: x for pairs in drawn for y, x in pairs if np.isfinite(x)}
    gaps = [np.mean(finals(row)) - np.mean(finals("FedAvg")) for row in RIGHT if row != "FedAvg"]
    assert [points[y] for y in sorted(points)] == pytest.approx(np.clip(gaps, -15, 15))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "empty", "--format", "csv"], "nothing is stored of empty"),
        (["report", "empty", "--plot", "x.png"], "no comparison of empty is complete"),
        (["report", "one", "--plot", "x.jpeg"], "x.jpeg ends with '.jpeg'; use one of .png, .svg"),
        (["report", "one", "--output", "x"], "--output x needs --format, one of markdown, latex"),
        (["report", "oen", "--format", "csv"], "no table or figure is called 'oen'"),
        (["one", "--format", "csv"], "--format, --output and --plot belong to `report`"),
    ],
)
def test_a_wrong_call_is_explained(words, message, stored, capsys):
    assert reproduce.main([*words, "--results", str(stored)]) == 2
    assert message in capsys.readouterr().err


def test_without_a_format_named_tables_get_their_tidy_values_and_the_verdicts_on_their_claims(stored, capsys):
    out = report(stored, capsys, "fedup-table4")[1]
    names = [claim.name for claim in show.every() if claim.table == "fedup-table4"]
    assert [line.split(" ", 1)[1].split(":")[0] for line in out.splitlines()] == names
    assert not (stored / "quick" / "one" / "table.csv").exists()
    assert report(stored, capsys)[1].count("not run yet") > len(names) > 2
    assert (stored / "quick" / "one" / "table.csv").exists()
    assert [table.name for table in export.chosen(["fedup-figure1", "fedup-table4"])] == ["fedup-table4"]


HOSTILE = ["+1|cmd", "a\n\\input{x}", "<script>", "**b** `c` [d](e) ![f](g)", "&lt;"]


def test_no_name_is_taken_for_a_command_or_markup(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(definitions, "_added", [])
    listed = [Cell(f"c{k}", SPEC, name, "=q\nx", seeds=SEEDS) for k, name in enumerate(["FedAvg", *HOSTILE])]
    title = "A, =title\n\\input{y} <script>"
    add(tmp_path, definitions.Table("names", title, "own", lambda p: listed, {"quick": "c"}), listed)
    out = {form: report(tmp_path, capsys, "names", "--format", form)[1] for form in export.FORMATS}
    assert len(list(csv.reader(out["csv"].splitlines()[1:]))) == 2 + len(HOSTILE)
    latex = [line for line in out["latex"].splitlines() if not line.startswith("%")]
    assert not any("\\input" in line or "<" in line.replace("$<$", "") for line in latex)
    assert len(latex) == 6 + len(HOSTILE) + 1
    body = [line for line in out["markdown"].splitlines() if line.startswith("|")]
    assert len(body) == 3 + len(HOSTILE)
    assert not re.search(r"(?<!\\)[<>`*]", "".join(body) + out["markdown"].splitlines()[0].strip("*"))
    assert "\\<script\\>" in out["markdown"]
