"""Claims: each is settled by a test that exists, or asks questions of cells that exist; verdicts follow one rule."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

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

ASKED = {"quick": [("x", "y", "c"), ("x", "z", "c")], "desk": [("x", "y", "c")]}
CLAIM = Claim("a", "S000", "§1", "x beats y", "+5", "t", ASKED)
SETTLED = Claim("b", "S001", "§2", "z < y", "-", settled=("holds", "by arithmetic", "tests/test_claims.py::test_x"))


@pytest.mark.parametrize("claim", claims.every(), ids=lambda c: c.name)
def test_a_claim_is_settled_by_a_test_or_asks_of_cells_that_exist(claim):
    assert bool(claim.settled) != bool(claim.questions)
    assert "{" not in claim.text, "a sentence about several rivals is one claim for each"
    if claim.settled:
        verdict, reason, test = claim.settled
        assert verdict in judge.VERDICTS
        assert reason
        assert "::" in test, "which tests/tools/test_names.py looks up"
    for profile, asked in claim.questions.items():
        table = definitions.get(claim.decided_by(profile))
        keys = {(cell.row, cell.column) for cell in table.cells(profile)}
        assert asked
        assert {key for question in asked for key in definitions.sides(question)} <= keys
        assert not table.drawn_from, "results lie in the folder of the table that is drawn"


def leads(table, row, rivals, places):
    """For each place of a table, our row's and its rivals'."""
    return table, [[place | {"method": method} for method in (row, *rivals)] for place in places]


def steps(table, *pairs):
    """Pairs of settings, from the second to the first."""
    return table, [[{"setting": setting} for setting in pair] for pair in pairs]


CIFAR, WRITERS = {"dataset": "CIFAR-10 (100 clients), ResNet18"}, {"dataset": "FEMNIST (3400 clients), CNN"}
MANY = {"dataset": "CIFAR-10 (1000 clients, q=0.8), ResNet18"}
SKEWED = [CIFAR | {"setting": f"q={q}, 10% sampling"} for q in (0.3, 0.6)]
ALIKE = CIFAR | {"setting": "IID, 10% sampling"}
RATES = [data | {"setting": f"sampling rate {rate}%"} for data in (WRITERS, MANY) for rate in (0.2, 0.5, 1)]
SPLITS = [{"setting": split} for split in ("Dir-0.3", "Dir-0.6", "IID")]
SETS = [{"dataset": name} for name in ("EMNIST", "CIFAR-10", "CIFAR-100", "TinyImageNet")]
NARROW = ("HeteroFL", "Federated Dropout", "FedRolex")
UNEQUAL = "heterogeneous capacity r={0.99,0.5,0.25,0.125,0.0625}"
SKEWS = {r: [{"setting": f"{r}; data heterogeneity {k}"} for k in ("HIGH", "LOW")]
         for r in (UNEQUAL, "homogeneous capacity 1/4")}  # fmt: skip
COSINES = ("A-B+C vs C (using -B+C to correct A as Mime)", ["A vs C (not correcting A)"])
NETS = [{"dataset": net} for net in ("EMNIST (4-block CNN)", "CIFAR-10 (ResNet18)")]
CLASSES = {k: {"setting": f"{k} classes per client"} for k in (2, 4, 10)}
EVIDENCE = {  # claim -> the printed table, and where the entries stand whose lead or step its evidence says
    "fedup-skew": leads("000_table4", "FedUp", ["FedAvg"], SKEWED),
    "fedup-owners": leads("000_table4", "FedUp", ["FedAvg"], [WRITERS | {"setting": "non-IID, 10% sampling"}]),
    "fedup-iid": leads("000_table4", "FedUp", ["FedAvg"], [ALIKE]),
    "fedup-participation": leads("000_table5", "FedUp", ["FedAvg"], RATES),
    "fedup-best": (
        "000_table4",
        [[SKEWED[0] | {"method": m} for m in ("FedUp", rival)] for rival in ("FedSMOO", "STEM")],
    ),
    "fedavg-skew": ("000_table4", [[place | {"method": "FedAvg"} for place in (skewed, ALIKE)] for skewed in SKEWED]),
    "fedprox-error": leads("000_table4", "FedProx", ["FedAvg"], SKEWED),
    "feddyn-iid": leads("000_table4", "FedDyn", ["FedUp"], [ALIKE]),
    "feddyn-skew": leads("000_table4", "FedDyn", ["FedUp"], SKEWED[:1]),
    "mimelite-accuracy": leads("000_table4", "MimeLite", ["FedUp"], SKEWED[:1]),
    "mime-owners": leads("000_table2", *COSINES, [{"dataset": "FEMNIST"}]),
    "mime-skew": leads("000_table2", *COSINES, [{"dataset": "CIFAR-10"}]),
    "dfedgam-sam": leads("002_table1", "DFedGAM", ["DFedSAM"], SPLITS),
    "dfedgam-points": leads("002_table1", "DFedGAM", ["DFedSAM"], SPLITS),
    "dfedgam-gossip": leads("002_table1", "DFedGAM", ["D-PSGD", "DFedAvg", "DFedAvgM"], SPLITS),
    "dfedgam-server": leads("002_table1", "DFedGAM", ["FedAvg"], SPLITS),
    "dfedsam-flat": leads("002_table1", "DFedSAM", ["DFedAvg"], SPLITS),
    "feddse-high": leads("004_table3_4", "FedDSE", [*NARROW, "DepthFL"], SETS),
    "feddse-low": leads("004_table3_5", "FedDSE", [*NARROW, "DepthFL"], SETS),
    "feddse-cold": leads("004_table3_6", "FedDSE (T=0)", ["FedDSE (T=1)"], SKEWS[UNEQUAL]),
    "feddse-warm": leads("004_table3_6", "FedDSE (T=1)", ["FedDSE (T=0)"], SKEWS["homogeneous capacity 1/4"]),
    "feddse-classes": steps("004_text_numbers", [f"{k} classes per client (Fig. 3.8)" for k in (4, 2)]),
    "feddse-clients-high": steps(
        "004_text_numbers", [f"participation frc={k}%, HIGH heterogeneity (Fig. 3.9)" for k in (10, 5)]
    ),
    "feddse-samples-high": steps(
        "004_text_numbers", [f"{k} inference samples, HIGH heterogeneity (Fig. 3.10)" for k in (128, 64)]
    ),
    "fedgse-high": leads("004_table4_3", "FedGSE-CSL", NARROW, SETS),
    "fedgse-low": leads("004_table4_4", "FedGSE-SPL", NARROW, SETS),
    "fedgse-depthfl": leads("004_table4_3", "FedGSE-CSL", ["DepthFL"], SETS),
    "fedgse-csl": leads("004_table4_3", "FedGSE-CSL", ["FedGSE-SPL"], SETS),
    "fedgse-spl": leads("004_table4_4", "FedGSE-SPL", ["FedGSE-CSL"], SETS),
    "fedgse-classes": ("004_table4_5", [[net | CLASSES[k] for k in (4, 2)] for net in NETS]),
    "fedgse-classes-enough": ("004_table4_5", [[net | CLASSES[k] for k in (10, 4)] for net in NETS]),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_evidence_of_a_claim_is_what_the_documents_table_prints(name):
    table, places = EVIDENCE[name]
    evidence, found = next(claim.printed for claim in claims.every() if claim.name == name), []
    for place in places:
        ours, *theirs = (definitions.printed(f"seed{table}.csv", **entry) for entry in place)
        found.append(f"{theirs[0]} becomes {ours}" if "becomes" in evidence else f"{ours - max(theirs):+.2f}")
    assert re.findall(r"-?[\d.]+ becomes -?[\d.]+|[+-]\d+\.\d\d", evidence) == found


@pytest.mark.parametrize("claim", claims.every(), ids=lambda c: c.name)
def test_the_chapter_of_a_claim_has_it_in_its_box(claim):
    cells = book.read(book.ROOT / "book" / f"{claims.chapter(claim)}.ipynb").cells
    boxes = [cell.source for cell in cells if cell.cell_type == "code" and "show." in cell.source]
    name = claim.family or claim.name
    assert any(f'"{name}"' in box or f'"{name.partition("-")[2]}"' in box for box in boxes)


@pytest.fixture
def listed(monkeypatch):
    """`listed(*claims)`: these are the claims of all documents."""

    def of_all(*some):
        for module in (claims, show):
            monkeypatch.setattr(module, "every", lambda: [*some])
        module = type("module", (), {"__name__": "d.s000", "CLAIMS": some})
        monkeypatch.setattr(show, "documents", lambda: [module])

    return of_all


@pytest.fixture
def stored(tmp_path, monkeypatch, listed):
    """A table with rows x, y, z in two profiles that decides the only claim; `write(profile, **shares)` stores rows."""

    def cells(profile):
        spec = {"study": "simulate", "method": ["FedAvg", {}], "profile": profile}
        printed = {"desk": {"x": 80.0, "y": 75.0}}.get(profile, {})
        return [Cell(row, {**spec, "row": row}, row, "c", printed.get(row)) for row in "xyz"]

    table = definitions.Table("t", "", "S000", cells, {"quick": "tiny", "desk": "tiny"})
    for module in (claims, show):
        monkeypatch.setattr(module, "get", lambda name: table)
    listed(CLAIM)
    drawn = np.random.default_rng(0).random((3, 500))

    def write(profile, **shares):
        for cell in (cell for cell in cells(profile) if cell.row in shares):
            runs = {seed: images(v < shares[cell.row]) for seed, v in enumerate(drawn)}
            store(batch.ResultFolder(tmp_path, profile, "t"), cell, runs)

    return tmp_path, write


def test_a_claim_is_judged_once_all_its_questions_are_answered(stored):
    root, write = stored
    assert claims.judged(CLAIM, root) == []
    write("quick", x=0.9, y=0.6)
    (half,) = claims.judged(CLAIM, root)
    assert (half.missing, half.verdict) == (1, "")
    assert claims.strongest([half]) is None
    write("quick", z=0.9)
    (whole,) = claims.judged(CLAIM, root)
    assert (whole.missing, whole.verdict) == (0, "holds in part")
    assert claims.ours(whole).startswith("better: +31.2 ± 4.9 (than y); no significant difference: ")
    assert "no significant difference: +0.0 ± 0.2 (from z; " in claims.ours(whole)
    two = replace(CLAIM, questions={"quick": [("x", "z", "c"), ("y", "z", "c")]})
    assert "worse: -31.2 ± 4.9 (y)" in claims.ours(claims.judged(two, root)[0])  # rows are named if there are several


def test_no_page_says_in_part_of_runs_it_counts_the_comparisons(stored):
    root, write = stored
    write("quick", x=0.9, y=0.6, z=0.9)
    (found,) = claims.judged(CLAIM, root)
    assert "1 of 2 comparisons are decided" in show.forest([found], "Gaps").alt
    assert found.said == "holds in 1 of 2 comparisons on small data"
    shown = [show.box(["a"], root), show.verdicts(["a"], root), show.matrix("S000", root), show.glance(root)]
    assert all(found.said in page.text for page in shown)
    assert all("in part" not in page.text for page in [*shown, show.headline(root), show.ended(root)])
    assert "1 holds in some comparisons" in show.ended(root).text
    (typed,) = claims.judged(replace(SETTLED, settled=("holds in part", "one half of it", "a.py::test_x")), root)
    assert typed.said == typed.kind == "holds in part", "whose reason is written beside it"


def test_the_data_nearest_to_the_documents_decide(stored):
    root, write = stored
    write("quick", x=0.9, y=0.6, z=0.6)
    write("desk", x=0.5, y=0.8)
    found = claims.judged(CLAIM, root)
    assert [(j.profile, j.verdict) for j in found] == [("quick", "holds"), ("desk", "does not hold")]
    assert found[1].printed == {("x", "y", "c"): 5.0}
    assert found[0].printed == {}  # other data than the document's
    (line,) = claims.matrix([CLAIM], root).to_dict("records")
    assert line["verdict"] == "does not hold on larger data"
    assert line["rests on"] == "profile desk: larger data, scaled down from the document's, 3 seeds"


def test_accuracy_on_cifar10_is_decided_by_runs_with_clipped_gradients():
    asked = 0
    for claim in (claim for claim in claims.every() if claim.document != "S003" and "desk" in claim.questions):
        cells = definitions.get(claim.decided_by("desk")).cells("desk")
        clips = {(cell.row, cell.column): cell.spec.get("run", {}).get("clip") for cell in cells}
        sides = {key for question in claim.questions["desk"] for key in claims.sides(question)}
        if claims.compared(claim) == "images" and any("CIFAR-10" in column for _, column in sides):
            asked += 1
            assert all(clips[key] for key in sides if "CIFAR-10" in key[1]), claim.name
    assert asked > 10


def test_every_table_whose_claims_have_no_question_on_real_data_is_named_with_the_reason():
    text = (Path(__file__).parents[2] / "book" / "decisions.md").read_text("utf-8")
    section = text.split("## Claims that have no question on larger data")[1].split("\n## ")[0]
    without = {claim.table for claim in claims.every() if claim.table and "desk" not in claim.questions}
    assert set(re.findall(r"`([^`]+)`", section)) == without


def curves(*rounds, upto=20, step=1):
    """One run for each number: the accuracy is 50 % before that round, 90 % from it on."""
    return {
        seed: {
            **images(np.full(100, 0.9) > 0.5),
            "final": 90.0,
            "history": [[t, 90.0 if t >= first else 50.0] for t in range(0, upto + 1, step)],
        }
        for seed, first in enumerate(rounds)
    }


@pytest.fixture
def between(tmp_path, monkeypatch):
    """`between(x's runs, y's runs, ...)`: the judgement on "x beats y"; printed: the values in the document."""

    def judgement(*runs, question=("x", "y", "c"), printed=(None, None), unit="%", **more):
        places = [*dict.fromkeys(definitions.sides(question))]
        cells = [Cell(" ".join(place), {"study": "simulate", "at": place}, *place) for place in places]
        cells = [replace(cell, source=value) for cell, value in zip(cells, printed, strict=False)]
        for module in (claims, show):
            monkeypatch.setattr(module, "get", lambda name: table_of(cells, unit=unit))
        for cell, found in zip(cells, runs, strict=True):
            store(batch.ResultFolder(tmp_path, "quick", "t"), cell, found)
        (found,) = claims.judged(replace(CLAIM, questions={"quick": [question]}, **more), tmp_path)
        return found

    return judgement


def values(*finals):
    return {seed: {"final": value} for seed, value in enumerate(finals)}


def shares(*right):
    return {seed: images(np.arange(500) < 500 * share) for seed, share in enumerate(right)}


BROKEN = curves(4, 5, 99)
BROKEN[2] |= {"final": None, "history": BROKEN[2]["history"][:3]}
SLOW, QUICK, NEVER, SPEED = curves(12, 15, 12), curves(4, 5, 4), curves(12, 99, 99), {"compares": "speed"}
RARE = [curves(at, at, at, step=10) for at in (10, 20)]
HIGH, LOW, COSINE = values(0.31, 0.32, 0.30), values(0.10, 0.12, 0.11), {"unit": "cosine"}
VALUES = values(1.0, 1.1, 1.2), values(2.0, 2.2, 2.3)
UP, DOWN = shares(0.6, 0.75, 0.7), shares(0.75, 0.6, 0.7)
MANY_RIGHT, FEW_RIGHT = shares(0.8, 0.81, 0.82), shares(0.5, 0.52, 0.54)
OPEN, COLUMNS = "cannot be decided here", {"question": ("x", "x", "10%", "5%")}
BETWEEN = {  # what is compared -> x's runs, y's, how, and the verdict on "x beats y" with the words of the answer
    "cosines": (HIGH, LOW, COSINE, "holds", "turned towards the global gradient: +0.200 ± 0.025 (c)"),
    "lower cosines": (LOW, HIGH, COSINE, "does not hold", "turned away from the global gradient: -0.200 ± 0.025 (c)"),
    "two columns": (MANY_RIGHT, FEW_RIGHT, COLUMNS, "holds", "better: +29.0 ± 4.5 (10% against 5%)"),
    "a printed gap that could not be found": (UP, DOWN, {"printed": (80.0, 75.0)}, "not testable here", judge.OPEN),
    "no printed gap": (UP, DOWN, {}, OPEN, judge.OPEN),
    "rounds to a common accuracy": (QUICK, SLOW, SPEED, "holds", "better: 0.33 times the rounds, 0.30 to 0.37 (c)"),
    "more rounds": (SLOW, QUICK, SPEED, "does not hold", "worse: 3.00 times the rounds, 2.69 to 3.35 (c)"),
    "runs that never get there, with their rounds": (QUICK, NEVER, SPEED, "holds", "better: 0.26 times the rounds"),
    "a run that diverges": (BROKEN, SLOW, SPEED, OPEN, f"{judge.OPEN}: no interval"),
    "not known between two evaluations": (*RARE, SPEED, "holds", "better: 0.50 times the rounds, 0.30 to 0.83 (c)"),
    "lower values": (*VALUES, {"compares": "lower values"}, "holds", "better: -1.1 ± 0.1 (c)"),
    "values": (*VALUES, {"compares": "values"}, "does not hold", "worse: -1.1 ± 0.1 (c)"),
}


@pytest.mark.parametrize(("ours", "theirs", "how", "verdict", "words"), BETWEEN.values(), ids=BETWEEN)
def test_two_cells_are_compared_by_what_the_claim_or_its_table_says(ours, theirs, how, verdict, words, between):
    found = between(ours, theirs, **how)
    assert found.verdict == verdict
    assert claims.ours(found).startswith(words)
    assert (show.forest([found], "accuracies only") is None) == (claims.compared(found.claim) != "images")


def test_printed_points_are_not_compared_with_a_ratio_of_rounds(between):
    same, printed = curves(4, 4, 4), (80.0, 79.9)
    assert between(same, same, printed=printed).printed == pytest.approx({("x", "y", "c"): 0.1})
    faster = between(same, same, printed=printed, compares="speed")
    assert faster.printed == claims.printed_gaps(faster.claim) == {}
    assert faster.verdict == OPEN, "no factor of rounds was too small to be found"


def answered(gaps, printed, half=1.0, **more):
    """A judgement on x with these gaps to its rivals, of this half width each, and with these printed gaps."""
    asked = [("x", rival, "c") for rival in "yzuvw"[: len(gaps)]]
    error = judge.Comparison(0.0, 1.0, 0.0, 5)
    found = [judge.Comparison(gap, half / error.half, 0.0, 5) for gap in gaps]
    known = {question: gap for question, gap in zip(asked, printed, strict=True) if gap is not None}
    answers = dict(zip(asked, judge.decide(found), strict=True))
    return claims.Judgement(replace(CLAIM, questions={"desk": asked}), "desk", answers, 0, "holds", known, **more)


def test_beside_our_gap_stands_whether_the_printed_one_lies_in_our_interval(monkeypatch):
    monkeypatch.setattr(claims, "get", lambda name: table_of([]))
    for found, words in (
        (answered([3.0], [3.9]), "the printed +3.90 lies in our interval"),
        (answered([3.0], [5.92]), "the printed +5.92 lies outside our interval"),
        (answered([0.2], [-1.0]), "the printed -1.00 lies outside our interval"),  # also of an open question
        (answered([3.0, 3.0, 0.0], [3.9, 5.92, -2.0]), "the printed gap lies in our interval in 1 of 3 comparisons"),
        (answered([3.0, 3.0], [None, 5.92]), "the printed +5.92 lies outside our interval (from z)"),
    ):
        assert claims.ours(found).endswith(f"; {words}")
    for found in (answered([3.0, 1.0], [None, None]), answered([3.0], [5.92], half=float("nan"))):
        assert "printed" not in claims.ours(found), "there is no print, or no interval"


def test_accuracy_that_still_rises_by_more_than_the_gap_is_said_beside_the_verdict(between):
    flat = {seed: run | images(np.arange(100) < 90) for seed, run in curves(2, 2, 2).items()}
    risen = {seed: flat[seed] | {"history": run["history"]} for seed, run in curves(17, 17, 17).items()}
    few = images(np.arange(100) < 70) | {"history": [[t, 70.0] for t in range(21)]}
    lower = {seed: run | few for seed, run in flat.items()}
    assert claims.confidence(between(risen, lower)).endswith("; accuracy still rising after 20 rounds")
    assert claims.confidence(between(flat, lower)) == "profile quick: small digits only, 3 seeds"


@pytest.mark.parametrize(
    ("last", "verdict"),
    [((11.0, 9.0, 10.0), "holds"), ((None, 10.5, 9.5), "holds"), ((58.0, 61.0, 59.0), "does not hold")],
)
def test_a_method_does_not_converge_if_it_ends_where_it_started_or_diverges(between, last, verdict):
    runs = values(*last)
    for run in runs.values():
        run["history"] = [[0, 10.0]] + [[9, run["final"]]] * (run["final"] is not None)
    start = {"question": ("x", "x", "c"), "expected": "not better", "margin": 5.0, "compares": "start"}
    assert between(runs, **start).verdict == verdict


def test_a_picture_names_the_two_sides_of_a_question():
    for asked, words in (
        (("x", "y", "c"), "x − y, c"),
        (("x", "x", "c"), "x − untrained, c"),
        (("x", "x", "10%", "5%"), "x, 10% − 5%"),
    ):
        assert claims.label(asked) == words


def test_verdicts_are_counted_by_document(stored, listed):
    root, write = stored
    listed(CLAIM, replace(CLAIM, name="c", questions={"quick": [("x", "z", "c")]}), SETTLED)
    write("quick", x=0.9, y=0.6)
    assert "FedUp study: 2 not computed yet; SCAFFOLD page: 1 holds" in show.ended(root).text
    write("quick", z=0.6)
    assert show.ended(root).text.startswith("The documents' claims: 3 central claims")
    assert show.ended(root).text.endswith("or on larger data:\nSCAFFOLD page, §2: z < y")  # and none of small data
    assert "FedUp study: 2 hold; SCAFFOLD page: 1 holds" in show.ended(root).text


def test_the_longest_labels_of_all_claims_leave_a_phone_room_for_the_picture():
    gap = judge.compare(np.array([[1, 1, 0], [1, 0, 1]], bool), np.array([[1, 0, 0], [1, 0, 0]], bool))
    questions = [q for claim in claims.every() for asked in (claim.questions or {}).values() for q in asked]
    longest = sorted({claims.label(question) for question in questions}, key=lambda text: (len(text), text))[-20:]
    figure, _ = show._dots([show.Line(label, judge.decide([gap])[0], 0) for label in longest])
    with warnings.catch_warnings(action="error"):  # matplotlib warns where axes are left without room
        svg.svg(figure, phone=True)


def test_rows_of_two_tables_are_compared_as_one_family():
    asked = [("FedGamma", "SCAFFOLD", "digits, q=0.1"), ("FedSMOO", "FedDyn", "digits, q=0.1")]
    assert "of 1 comparisons are decided" in show.paired(["fedup-table4"], asked, "c").alt
    both = show.paired(["fedup-further", "fedup-table4"], asked, "c")
    assert "of 2 comparisons are decided" in both.alt
    assert show.paired(["fedup-further"], asked[1:], "c") is None


def test_a_claim_box_says_what_each_profile_found_and_what_the_verdict_rests_on(stored):
    root, write = stored
    assert "verdict: not computed yet" in show.box(["a"], root).text
    write("quick", x=0.9, y=0.6)
    text = show.box(["a"], root).text
    for said in (
        "1 of 2 comparisons not run yet",
        "runs that are incomplete do not decide",
        "verdict: not computed yet",
    ):
        assert said in text
    write("quick", z=0.6)
    write("desk", x=0.9, y=0.6)
    text = show.box(["a"], root).text
    for said in ("quick: better", "desk: better", "verdict: holds", "scaled down"):  # as the desk's nearer data are
        assert said in text
    with pytest.raises(KeyError, match="b"):
        show.box(["b"], root)


def test_further_claims_of_a_chapter_stand_in_the_fold_below_its_own(stored, listed):
    root, write = stored
    write("quick", x=0.9, y=0.6, z=0.6)
    listed(CLAIM, *(replace(CLAIM, name=f"b-{rival}", text=f"x beats {rival} soon", family="b") for rival in "yz"))
    above, folded = show.verdicts(["a"], root, more=["b"]).html.split("<details", 1)
    assert "2 further claims" in folded
    assert all(f"x beats {rival} soon" in folded for rival in "yz")
    assert "soon" not in above
    assert "further" not in show.verdicts(["a"], root).html


def test_the_matrix_of_all_claims_leads_to_the_line_of_each(stored, listed):
    root, write = stored
    listed(CLAIM, SETTLED)
    write("quick", x=0.9, y=0.6, z=0.6)
    html = show.glance(root).html
    assert "z &lt; y: holds (proved or counted)" in html
    assert 'href="#claim-a" data-verdict="holds" data-rests="quick"' in html
    assert 'data-verdict="holds" data-rests="proof"' in html
    assert 'id="claim-a"' in show.evidence("S000", root).html
    line = show.matrix("S001", root).html
    assert 'id="claim-b"' in line
    assert "by arithmetic" in line
    assert "<code>test_claims.py::test_x</code>" in line


def test_page_one_counts_verdicts_apart_by_what_they_rest_on_and_answers(stored, listed):
    root, write = stored
    write("quick", x=0.9, y=0.6, z=0.6)
    write("desk", x=0.9, y=0.6)
    small = replace(CLAIM, questions={"quick": [("x", "z", "c"), ("y", "z", "c")]})
    large, later = (replace(CLAIM, questions={profile: [("x", "z", "c")]}) for profile in ("paper", "desk"))
    listed(CLAIM, replace(SETTLED, settled=("does not hold", "by a count", "a.py::test_x")), small, large, later)
    lines = [" ".join(line.split()) for line in show.headline(root).text.splitlines()]
    assert lines[1] == " ".join([*(show.RESTS[rests] for rests in ("proof", "desk", "quick")), "none yet", "all"])
    assert lines[2:8] == [
        "holds 0 1 0 0 1",
        f"{claims.SOME} 0 0 1 0 1",
        "does not hold 1 0 0 0 1",
        "not computed yet 0 0 0 1 1",
        "not run yet 0 0 0 1 1",
        "all 1 1 1 2 5",
    ]
    assert lines[0] == "The 5 central claims by verdict, and by the strongest evidence for it"
    for said in (
        "Of 3 questions put to runs, 2 came out as the document says, 0 contradict it, and 1 remain open",
        "The documents print 1 gaps, with a median of 5.0 points. 3 of our questions compare accuracies, and half ",
    ):
        assert said in lines[-1]


def test_profiles_that_contradict_each_other_are_listed_with_what_differs(stored):
    root, write = stored
    write("quick", x=0.9, y=0.6, z=0.9)
    write("desk", x=0.5, y=0.8, z=0.8)
    text = show.contradictions(root).text
    assert text.startswith("Small runs and larger ones contradict each other significantly in 1 claim;")
    (line,) = text.splitlines()[1:]
    said = r": x against y is better on c in profile quick \(\+3.*\), but worse on c in profile desk \(-3.*\)"
    assert re.fullmatch(re.escape(CLAIM.text) + said, line)
    write("desk", x=0.9)
    assert show.contradictions(root).text.endswith("in no claim.")


@pytest.mark.parametrize(
    ("word", "other", "expected", "opposed"),
    [
        ("better", "equal", "better", True),
        ("equal", "worse", "better", False),  # either says that the claim does not hold
        ("better", "equal", "not worse", False),
    ],
)
def test_answers_contradict_by_their_signs_or_by_what_they_say_of_the_claim(word, other, expected, opposed):
    assert claims._opposed(word, other, expected) == claims._opposed(other, word, expected) == opposed


def test_a_documents_fold_names_the_curves_that_its_chapter_draws(tmp_path):
    assert "curves in the chapter: fedup-figure1" in show.whole("S000", tmp_path).text
    assert "curves in the chapter: scaffold-figure" in show.whole("S001", tmp_path).text
    assert "curves" not in show.whole("S003", tmp_path).text  # its figures are tables of their own


def test_a_stored_table_is_shown_with_each_profile_that_has_results(stored):
    root, write = stored
    assert "not run yet" in show.result("t", root).text
    for profile in ("quick", "desk"):
        write(profile, x=0.9)
    text = show.result("t", root).text
    assert text.index("t, desk") < text.index("t, quick")
    assert text.count("Not run yet: rows y; z.") == 2
    assert "not run yet" not in text
    write("desk", y=0.6)
    assert "Not run yet: row z." in show.result("t", root).text
    file = next((root / "quick" / "t").glob("x.json"))
    file.write_text(file.read_text()[:-20])
    assert "t, quick" not in show.result("t", root).text, "a damaged file is no result"


def test_a_question_of_the_books_own_has_a_verdict_and_is_no_claim_of_the_document(stored, listed):
    root, write = stored
    write("quick", x=0.9, y=0.6, z=0.6)
    listed(CLAIM, replace(CLAIM, name="b", own=True))
    assert "The documents' claims: 1 central claims" in show.ended(root).text
    assert "The 1 central claims by verdict" in show.headline(root).text
    assert "We added 1 claims, which are not counted" in show.headline(root).text
    assert show.glance(root).html.count("<a ") == 1, "one sign for each claim that is counted"
    text = show.box(["a", "b"], root).text
    assert text.count("verdict: holds") == 2
    assert "§1, leaves open whether: x beats y" in text


def test_an_interval_beside_zero_that_holm_keeps_open_is_told_from_one_that_holds_it(monkeypatch):
    monkeypatch.setattr(claims, "get", lambda name: table_of([]))
    one, other = claims.ours(answered([1.1, 0.5], [None, None])).removeprefix(f"{judge.OPEN}: ").split("), ")
    assert "not significant by Holm's rule" in one
    assert "Holm" not in other
    (unknown,) = judge.decide([judge.Comparison(0.5, float("nan"), 0.0, 5, 0, (1, 0))])
    assert claims._short(unknown, CLAIM) == "no interval (diverged: 1 and 0 of 5)"


def test_a_table_names_the_runs_that_its_mean_leaves_out_and_what_its_marks_say():
    import pandas as pd

    table = table_of([], against="y")
    line = {"row": "x", "column": "c", "mean": 80.0, "sd": 1.0, "n": 5, "diverged": 2, "source": float("nan")}
    tidy = pd.DataFrame([{**line, "verdict": judge.OPEN}, {**line, "row": "y", "diverged": 0, "verdict": "baseline"}])
    grid = show.grid(table, tidy)
    assert grid.loc["x", "c"] == "80.0 ± 2.5, 2 of 5 diverged ~"  # 4.303 / sqrt(3) of the three that ended
    assert grid.loc["y", "c"] == "80.0 ± 1.2"
    said = "~ no significant difference: against y; all cells of the table are tested as one family (Holm's rule)"
    assert show.legend(table, tidy) == said
    assert show.legend(table, tidy[1:]) == ""


def test_a_page_outside_a_checkout_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for shown in (lambda: show.result("fedup-table4"), lambda: show.box(["fedup-skew"]), batch.results):
        with pytest.raises(FileNotFoundError, match=r"stored results are not here.*folder book/ of a checkout"):
            shown()
