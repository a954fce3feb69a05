"""Claims: each is settled by a test that exists, or asks questions of cells that exist; verdicts follow one rule."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from tables import images, store, table_of

from fedbook import Cell, show
from fedbook.documents import definitions
from fedbook.documents.definitions import Claim
from fedbook.pictures import svg
from fedbook.results import batch
from fedbook.verdicts import claims, judge
from tools import book

CLAIM = Claim(
    "a", "S000", "§1", "x beats y", "+5", "t", {"quick": [("x", "y", "c"), ("x", "z", "c")], "desk": [("x", "y", "c")]}
)


@pytest.mark.parametrize("claim", claims.every(), ids=lambda c: c.name)
def test_a_claim_is_settled_by_a_test_or_asks_of_cells_that_exist(claim):
    assert bool(claim.settled) != bool(claim.questions)
    if claim.settled:
        verdict, reason, test = claim.settled
        assert verdict in judge.VERDICTS
        assert reason
        assert "::" in test, "which tests/tools/test_names.py looks up"
    for profile, asked in claim.questions.items():
        keys = {(cell.row, cell.column) for cell in definitions.get(claim.table).cells(profile)}
        assert asked
        assert {(row, column) for row, _, column in asked} | {(base, column) for _, base, column in asked} <= keys


@pytest.mark.parametrize("claim", claims.every(), ids=lambda c: c.name)
def test_the_chapter_of_a_claim_has_it_in_its_box(claim):
    cells = book._read(book.ROOT / "book" / f"{claims.chapter(claim)}.ipynb").cells
    boxes = [cell.source for cell in cells if cell.cell_type == "code" and "show." in cell.source]
    short = claim.name.partition("-")[2]
    assert any(f'"{claim.name}"' in box or f'"{short}"' in box for box in boxes)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A table with rows x, y, z in two profiles; `write(profile, row, share)` stores a cell."""

    def listed(profile):
        spec = {"study": "simulate", "method": ["FedAvg", {}], "profile": profile}
        printed = {"desk": {"x": 80.0, "y": 75.0}}.get(profile, {})
        return [Cell(row, {**spec, "row": row}, row, "c", printed.get(row)) for row in "xyz"]

    table = definitions.Table("t", "", "S000", listed, {"quick": "tiny", "desk": "tiny"})
    for module in (claims, show):
        monkeypatch.setattr(module, "get", lambda name: table)
    drawn = np.random.default_rng(0).random((3, 500))

    def write(profile, row, share):
        cell = next(c for c in listed(profile) if c.row == row)
        runs = {seed: images(v < share) for seed, v in enumerate(drawn)}
        store(batch.ResultFolder(tmp_path, profile, "t"), cell, runs)

    return tmp_path, write


def test_a_claim_is_judged_once_all_its_questions_are_answered(stored):
    root, write = stored
    assert claims.judged(CLAIM, root) == []
    write("quick", "x", 0.9)
    write("quick", "y", 0.6)
    (half,) = claims.judged(CLAIM, root)
    assert (half.missing, half.verdict) == (1, "")
    assert claims.strongest([half]) is None
    write("quick", "z", 0.9)
    (whole,) = claims.judged(CLAIM, root)
    assert (whole.missing, whole.verdict) == (0, "holds in part")
    assert claims.ours(whole).startswith("better: than y +3")
    assert "not distinguished: than z +0.0" in claims.ours(whole)
    two = replace(CLAIM, questions={"quick": [("x", "z", "c"), ("y", "z", "c")]})
    assert "worse: y" in claims.ours(claims.judged(two, root)[0]), "rows are named where there are several"


def test_the_data_nearest_to_the_documents_decide(stored):
    root, write = stored
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.6)):
        write("quick", row, share)
    write("desk", "x", 0.5)
    write("desk", "y", 0.8)
    found = claims.judged(CLAIM, root)
    assert [(j.profile, j.verdict) for j in found] == [("quick", "holds"), ("desk", "does not hold")]
    assert found[1].printed == {("x", "y", "c"): 5.0}
    assert found[0].printed == {}  # other data than the document's
    (line,) = claims.matrix([CLAIM], root).to_dict("records")
    assert line["verdict"] == "does not hold"
    assert line["rests on"] == "real data, on a smaller scale than the document's, 3 seeds"


def test_cosines_are_compared_by_seed(tmp_path, monkeypatch):
    listed = [Cell(row, {"study": "mime", "row": row}, row, "c") for row in "xy"]
    for module in (claims, show):
        monkeypatch.setattr(module, "get", lambda name: table_of(listed, unit="cosine"))
    for cell, values in zip(listed, ([0.31, 0.32, 0.30], [0.10, 0.12, 0.11]), strict=True):
        runs = {seed: {"final": value} for seed, value in enumerate(values)}
        store(batch.ResultFolder(tmp_path, "quick", "t"), cell, runs)
    asked = {"quick": [("x", "y", "c")]}
    (found,) = claims.judged(Claim("a", "S000", "§1", "x beats y", "", "t", asked), tmp_path)
    assert found.verdict == "holds"
    assert claims.ours(found) == "better: c +0.200 ± 0.025"
    assert show.forest([found], "accuracies only") is None


def test_a_settled_claim_needs_no_run(tmp_path):
    claim = Claim("b", "S000", "§2", "z", "-", settled=("holds", "by arithmetic", "tests/test_claims.py::test_x"))
    (line,) = claims.matrix([claim], tmp_path).to_dict("records")
    assert (line["verdict"], line["ours"], line["rests on"]) == ("holds", "by arithmetic", "proved or counted")


def test_verdicts_are_counted_by_document_and_by_what_they_rest_on(stored, monkeypatch):
    root, write = stored
    settled = Claim("b", "S001", "§2", "z", "-", settled=("holds", "by arithmetic", "tests/test_claims.py::test_x"))
    open_ = Claim("c", "S000", "§3", "x beats z", "-", "t", {"quick": [("x", "z", "c")]})
    monkeypatch.setattr(claims, "every", lambda: [CLAIM, open_, settled])
    write("quick", "x", 0.9)
    write("quick", "y", 0.6)
    first, second = claims.summary(root).to_dict("records")
    assert (first["document"], first["claims"], first["not run yet"]) == ("S000", 2, 2)
    assert (second["holds"], second["by proof or count"], second["by quick runs"]) == (1, 1, 0)
    write("quick", "z", 0.6)
    first, _ = claims.summary(root).to_dict("records")
    assert (first["holds"], first["not run yet"], first["by quick runs"]) == (2, 0, 2)


def test_the_longest_labels_of_all_claims_leave_a_phone_room_for_the_picture():
    gap = judge.compare(np.array([[1, 1, 0], [1, 0, 1]], bool), np.array([[1, 0, 0], [1, 0, 0]], bool))
    questions = [q for claim in claims.every() for asked in (claim.questions or {}).values() for q in asked]
    longest = sorted(
        {f"{row} − {base}, {column}" for row, base, column in questions}, key=lambda text: (len(text), text)
    )[-20:]
    figure, _ = show._dots([show.Line(label, judge.decide([gap])[0], 0) for label in longest])
    with warnings.catch_warnings(action="error"):  # matplotlib warns where axes are left without room
        svg.svg(figure, phone=True)


def test_a_forest_shows_every_question_with_its_answer(stored):
    root, write = stored
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.9)):
        write("quick", row, share)
    picture = show.forest(claims.judged(CLAIM, root), "Gaps")
    assert "1 of 2 comparisons are decided" in picture.alt
    assert "decided = 1" in repr(picture)
    assert show.forest([], "nothing") is None


def test_rows_of_two_tables_are_compared_as_one_family():
    asked = [("FedGamma", "SCAFFOLD", "digits, q=0.1"), ("FedSMOO", "FedDyn", "digits, q=0.1")]
    assert "of 1 comparisons are decided" in show.paired(["fedup-table4"], asked, "c").alt
    both = show.paired(["fedup-further", "fedup-table4"], asked, "c")
    assert "of 2 comparisons are decided" in both.alt
    assert show.paired(["fedup-further"], asked[1:], "c") is None


def test_a_claim_box_says_what_each_profile_found_and_what_the_verdict_rests_on(stored, monkeypatch):
    root, write = stored
    monkeypatch.setattr(show, "every", lambda: [CLAIM])
    assert "cannot be decided here" in show.box(["a"], root).text
    assert "not computed yet" in show.box(["a"], root).text
    write("quick", "x", 0.9)
    write("quick", "y", 0.6)
    text = show.box(["a"], root).text
    assert "1 of 2 comparisons not run yet" in text
    assert "runs that are incomplete do not decide" in text
    assert "cannot be decided here" in text
    for profile, rows in (("quick", "xyz"), ("desk", "xy")):
        for row in rows:
            write(profile, row, 0.9 if row == "x" else 0.6)
    text = show.box(["a"], root).text
    assert "quick: better" in text
    assert "desk: better" in text
    assert "verdict: holds" in text
    assert "smaller scale" in text, "the desk's data are nearer to the document's"
    with pytest.raises(KeyError, match="b"):
        show.box(["b"], root)


def test_the_matrix_of_all_claims_leads_to_the_line_of_each(stored, monkeypatch):
    root, write = stored
    reason = ("holds", "by arithmetic", "tests/test_claims.py::test_x")
    settled = Claim("b-x", "S001", "§2", "z < y", "-", settled=reason)
    monkeypatch.setattr(show, "every", lambda: [CLAIM, settled])
    monkeypatch.setattr(
        show, "documents", lambda: [type("module", (), {"__name__": "d.s000", "CLAIMS": [CLAIM, settled]})]
    )
    for row in "xyz":
        write("quick", row, 0.9 if row == "x" else 0.6)
    html = show.glance(root).html
    assert "z &lt; y: holds (proved or counted)" in html
    assert 'href="#claim-a" data-verdict="holds" data-rests="quick"' in html
    assert 'data-verdict="holds" data-rests="proof"' in html
    assert 'id="claim-a"' in show.evidence("S000", root).html
    line = show.matrix("S001", root).html
    assert 'id="claim-b-x"' in line
    assert "<code>test_claims.py::test_x</code>" in line


def test_page_one_counts_verdicts_and_answers_and_says_what_could_be_found(stored, monkeypatch):
    root, write = stored
    monkeypatch.setattr(show, "every", lambda: [CLAIM])
    assert "1 are not run yet" in show.headline(root).text
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.9)):
        write("quick", row, share)
    text = show.headline(root).text
    assert "Of 1 central claims 1 holds in part." in text
    assert "answered 2 questions: 1 as the document says, 0 the other way, and 1 remain open" in text
    assert "Half of the gaps that the documents print there are below 5.0 points; half of our questions" in text


def test_a_documents_fold_names_the_curves_that_its_chapter_draws(tmp_path):
    assert "curves in the chapter: fedup-figure1" in show.whole("S000", tmp_path).text
    assert "curves in the chapter: scaffold-figure" in show.whole("S001", tmp_path).text
    assert "curves" not in show.whole("S003", tmp_path).text  # its figures are tables of their own


def test_a_stored_table_is_shown_with_each_profile_that_has_results(stored):
    root, write = stored
    assert "not run yet" in show.result("t", root).text
    write("quick", "x", 0.9)
    assert "t, quick" in show.result("t", root).text
    write("desk", "x", 0.9)
    text = show.result("t", root).text
    assert text.index("t, desk") < text.index("t, quick")
    assert text.count("Not run yet: rows y; z.") == 2
    assert "not run yet" not in text
    write("desk", "y", 0.6)
    assert "Not run yet: row z." in show.result("t", root).text
    file = next((root / "quick" / "t").glob("x.json"))
    file.write_text(file.read_text()[:-20])
    assert "t, quick" not in show.result("t", root).text, "a damaged file is no result"


def test_a_question_of_the_books_own_has_a_verdict_and_is_no_claim_of_the_document(stored, monkeypatch):
    root, write = stored
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.6)):
        write("quick", row, share)
    both = [CLAIM, replace(CLAIM, name="b", own=True)]
    for module in (claims, show):
        monkeypatch.setattr(module, "every", lambda: both)
    assert list(claims.summary(root)["claims"]) == [1]
    assert "Of 1 central claims 1 hold" in show.headline(root).text
    assert "1 more questions are this book's own" in show.headline(root).text
    text = show.box(["a", "b"], root).text
    assert text.count("verdict: holds") == 2
    assert "§1, leaves open whether: x beats y" in text


def test_an_interval_beside_zero_that_holm_keeps_open_is_told_from_one_that_holds_it():
    table = table_of([])
    beside, around = (judge.Comparison(gap, 1.0, 0.0, 10, 0) for gap in (2.4, 0.5))
    one, other = judge.decide([beside, around])
    assert (one.word, other.word) == (judge.OPEN, judge.OPEN)
    assert "open by Holm's rule" in claims._short(one, table)
    assert "Holm" not in claims._short(other, table)


def test_a_table_names_the_runs_that_its_mean_leaves_out_and_what_its_marks_say():
    import pandas as pd

    table = table_of([], against="y")
    line = {"row": "x", "column": "c", "mean": 80.0, "sd": 1.0, "n": 5, "diverged": 2, "source": float("nan")}
    tidy = pd.DataFrame([{**line, "verdict": judge.OPEN}, {**line, "row": "y", "diverged": 0, "verdict": "baseline"}])
    grid = show.grid(table, tidy)
    assert grid.loc["x", "c"] == "80.0 ± 2.5, 2 of 5 diverged ~"  # 4.303 / sqrt(3) of the three that ended
    assert grid.loc["y", "c"] == "80.0 ± 1.2"
    assert show.legend(table, tidy) == "~ not distinguished: against y, all cells of the table one family of questions"
    assert show.legend(table, tidy[1:]) == ""


def test_a_page_outside_a_checkout_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for shown in (lambda: show.result("fedup-table4"), lambda: show.box(["fedup-skew"]), batch.results):
        with pytest.raises(FileNotFoundError, match=r"stored results are not here.*folder book/ of a checkout"):
            shown()
