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
        table = definitions.get(claim.decided_by(profile))
        keys = {(cell.row, cell.column) for cell in table.cells(profile)}
        assert asked
        assert {key for question in asked for key in definitions.sides(question)} <= keys
        assert not table.drawn_from, "results lie in the folder of the table that is drawn"


COMPOUND = {  # sentences of several comparisons; the list may only become shorter
    "fedavg-skew", "fedavg-one-step", "fedup-skew", "fedup-best", "fedup-momentum", "fedup-participation", "fedup-many",
    "mime-owners", "mime-skew", "fedprox-error", "scaffold-accuracy", "scaffold-fedprox", "scaffold-faster",
    "dfedgam-sam", "dfedgam-gossip", "dfedgam-server", "dfedgam-equal", "dfedgam-traffic", "dfedsam-flat",
    "shift-accuracy", "shift-unseen", "shift-normalisation", "shift-start", "feddse-high", "feddse-low", "feddse-warm",
    "feddse-cold", "fedgse-high", "fedgse-low", "fedgse-depthfl", "fedgse-csl", "fedgse-spl",
}  # fmt: skip


def test_a_claim_is_one_comparison_per_profile():
    several = {claim.name for claim in claims.every() if any(len(asked) > 1 for asked in claim.questions.values())}
    assert several == COMPOUND


def test_a_sentence_about_several_rivals_is_one_claim_for_each():
    found = [claim for claim in claims.every() if claim.name.startswith("shift-fast")]
    assert [claim.name for claim in found] == ["shift-fast-fedavg", "shift-fast-fedprox", "shift-fast-fedbn"]
    assert all(rival in claim.text for claim, rival in zip(found, ("FedAvg", "FedProx", "FedBN"), strict=True))
    assert not any("{" in claim.text for claim in claims.every())
    assert show._named(["shift-fast"]) == found, "a box shows them by the name of the sentence"


CIFAR, WRITERS = {"dataset": "CIFAR-10 (100 clients), ResNet18"}, {"dataset": "FEMNIST (3400 clients), CNN"}
SKEWED, ALIKE = (
    [{"setting": f"q={q}, 10% sampling"} | CIFAR for q in (0.3, 0.6)],
    {"setting": "IID, 10% sampling"} | CIFAR,
)
RATES = [{"setting": f"sampling rate {rate}%"} for rate in (0.2, 0.5, 1)]
MANY = {"dataset": "CIFAR-10 (1000 clients, q=0.8), ResNet18"}
SPLITS = [{"setting": split} for split in ("Dir-0.3", "Dir-0.6", "IID")]
SETS = [{"dataset": name} for name in ("EMNIST", "CIFAR-10", "CIFAR-100", "TinyImageNet")]
NARROW = ("HeteroFL", "Federated Dropout", "FedRolex")
UNEQUAL = "heterogeneous capacity r={0.99,0.5,0.25,0.125,0.0625}; data heterogeneity "
FEDAVG = {"method": "FedAvg"}
COSINES = ("A vs C (not correcting A)", "A-B+C vs C (using -B+C to correct A as Mime)")
NETS = [{"dataset": net} for net in ("EMNIST (4-block CNN)", "CIFAR-10 (ResNet18)")]
CLASSES = {k: {"setting": f"{k} classes per client"} for k in (2, 4, 10)}
LEADS = {  # claim -> the printed table, a row, its rivals, and where the numbers in the claim's evidence stand
    "fedup-skew": ("000_table4", "FedUp", ("FedAvg",), SKEWED),
    "fedup-owners": ("000_table4", "FedUp", ("FedAvg",), [{"setting": "non-IID, 10% sampling"} | WRITERS]),
    "fedup-iid": ("000_table4", "FedUp", ("FedAvg",), [ALIKE]),
    "fedup-participation": (
        "000_table5",
        "FedUp",
        ("FedAvg",),
        [at | data for data in (WRITERS, MANY) for at in RATES],
    ),
    "fedprox-error": ("000_table4", "FedProx", ("FedAvg",), SKEWED),
    "feddyn-iid": ("000_table4", "FedDyn", ("FedUp",), [ALIKE]),
    "feddyn-skew": ("000_table4", "FedDyn", ("FedUp",), SKEWED[:1]),
    "mimelite-accuracy": ("000_table4", "MimeLite", ("FedUp",), SKEWED[:1]),
    "dfedgam-sam": ("002_table1", "DFedGAM", ("DFedSAM",), SPLITS),
    "dfedgam-gossip": ("002_table1", "DFedGAM", ("D-PSGD", "DFedAvg", "DFedAvgM"), SPLITS),
    "dfedgam-server": ("002_table1", "DFedGAM", ("FedAvg",), SPLITS),
    "dfedsam-flat": ("002_table1", "DFedSAM", ("DFedAvg",), SPLITS),
    "feddse-high": ("004_table3_4", "FedDSE", (*NARROW, "DepthFL"), SETS),
    "feddse-low": ("004_table3_5", "FedDSE", (*NARROW, "DepthFL"), SETS),
    "feddse-cold": (
        "004_table3_6",
        "FedDSE (T=0)",
        ("FedDSE (T=1)",),
        [{"setting": UNEQUAL + k} for k in ("HIGH", "LOW")],
    ),
    "fedgse-high": ("004_table4_3", "FedGSE-CSL", NARROW, SETS),
    "fedgse-low": ("004_table4_4", "FedGSE-SPL", NARROW, SETS),
    "fedgse-depthfl": ("004_table4_3", "FedGSE-CSL", ("DepthFL",), SETS),
    "fedgse-csl": ("004_table4_3", "FedGSE-CSL", ("FedGSE-SPL",), SETS),
    "fedgse-spl": ("004_table4_4", "FedGSE-SPL", ("FedGSE-CSL",), SETS),
    "dfedgam-points": ("002_table1", "DFedGAM", ("DFedSAM",), SPLITS),
    "feddse-warm": (
        "004_table3_6",
        "FedDSE (T=1)",
        ("FedDSE (T=0)",),
        [{"setting": f"homogeneous capacity 1/4; data heterogeneity {k}"} for k in ("HIGH", "LOW")],
    ),
}


@pytest.mark.parametrize("name", LEADS)
def test_the_evidence_of_a_claim_is_what_the_documents_table_prints(name):
    table, row, rivals, places = LEADS[name]
    evidence = next(claim.printed for claim in claims.every() if claim.name == name)
    leads = []
    for place in places:
        ours, *theirs = (definitions.printed(f"seed{table}.csv", method=m, **place) for m in (row, *rivals))
        leads.append(f"{ours - max(theirs):+.2f}")
    assert re.findall(r"[+-]\d+\.\d\d", evidence) == leads


STEPS = {  # claim -> the printed table, and the two entries of each "a becomes b" or difference in its evidence
    "fedavg-skew": ("000_table4", [(ALIKE | FEDAVG, skewed | FEDAVG) for skewed in SKEWED]),
    "fedup-best": (
        "000_table4",
        [(SKEWED[0] | {"method": rival}, SKEWED[0] | {"method": "FedUp"}) for rival in ("FedSMOO", "STEM")],
    ),
    "mime-owners": ("000_table2", [tuple({"dataset": "FEMNIST", "method": pair} for pair in COSINES)]),
    "mime-skew": ("000_table2", [tuple({"dataset": "CIFAR-10", "method": pair} for pair in COSINES)]),
    "feddse-classes": ("004_text_numbers", [tuple(f"{k} classes per client (Fig. 3.8)" for k in (2, 4))]),
    "feddse-clients-high": (
        "004_text_numbers",
        [tuple(f"participation frc={k}%, HIGH heterogeneity (Fig. 3.9)" for k in (5, 10))],
    ),
    "feddse-samples-high": (
        "004_text_numbers",
        [tuple(f"{k} inference samples, HIGH heterogeneity (Fig. 3.10)" for k in (64, 128))],
    ),
    "fedgse-classes": ("004_table4_5", [tuple(net | CLASSES[k] for k in (2, 4)) for net in NETS]),
    "fedgse-classes-enough": ("004_table4_5", [tuple(net | CLASSES[k] for k in (4, 10)) for net in NETS]),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_step_in_the_evidence_of_a_claim_is_between_two_numbers_of_the_documents_table(name):
    table, pairs = STEPS[name]
    evidence = next(claim.printed for claim in claims.every() if claim.name == name)
    found = []
    for pair in pairs:
        places = [{"setting": place} if isinstance(place, str) else place for place in pair]
        before, after = (definitions.printed(f"seed{table}.csv", **place) for place in places)
        found.append(f"{before} becomes {after}" if "becomes" in evidence else f"{after - before:+.2f}")
    assert re.findall(r"-?[\d.]+ becomes -?[\d.]+|[+-]\d+\.\d\d", evidence) == found


@pytest.mark.parametrize("claim", claims.every(), ids=lambda c: c.name)
def test_the_chapter_of_a_claim_has_it_in_its_box(claim):
    cells = book.read(book.ROOT / "book" / f"{claims.chapter(claim)}.ipynb").cells
    boxes = [cell.source for cell in cells if cell.cell_type == "code" and "show." in cell.source]
    name = claim.family or claim.name
    assert any(f'"{name}"' in box or f'"{name.partition("-")[2]}"' in box for box in boxes)


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
    assert whole.said == "holds in 1 of 2 comparisons on small data"
    assert claims.ours(whole).startswith("better: +31.2 ± 4.9 (than y); no significant difference: ")
    assert "no significant difference: +0.0 ± 0.2 (from z; " in claims.ours(whole)
    two = replace(CLAIM, questions={"quick": [("x", "z", "c"), ("y", "z", "c")]})
    assert "worse: -31.2 ± 4.9 (y)" in claims.ours(claims.judged(two, root)[0])  # rows are named if there are several


def test_no_page_says_in_part_of_runs_it_counts_the_comparisons(stored, monkeypatch):
    root, write = stored
    module = type("module", (), {"__name__": "d.s000", "CLAIMS": [CLAIM]})
    monkeypatch.setattr(show, "every", lambda: [CLAIM])
    monkeypatch.setattr(show, "documents", lambda: [module])
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.9)):
        write("quick", row, share)
    (found,) = claims.judged(CLAIM, root)
    assert found.said == "holds in 1 of 2 comparisons on small data"
    shown = [show.box(["a"], root), show.verdicts(["a"], root), show.matrix("S000", root), show.glance(root)]
    assert all(found.said in page.text for page in shown)
    assert all("in part" not in page.text for page in [*shown, show.headline(root), show.ended(root)])
    assert "1 holds in some comparisons" in show.ended(root).text
    typed = replace(CLAIM, questions={}, settled=("holds in part", "one half of it", "tests/test_claims.py::test_x"))
    (settled,) = claims.judged(typed, root)
    assert settled.said == settled.kind == "holds in part", "whose reason is written beside it"


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
    assert claims.ours(found) == "turned towards the global gradient: +0.200 ± 0.025 (c)"
    (other,) = claims.judged(Claim("b", "S000", "§1", "y beats x", "", "t", {"quick": [("y", "x", "c")]}), tmp_path)
    assert claims.ours(other) == "turned away from the global gradient: -0.200 ± 0.025 (c)"
    assert show.forest([found], "accuracies only") is None


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
def fast(tmp_path, monkeypatch):
    """`judge_of(x's runs, y's runs, compares)`: the judgement on "x is faster than y"."""
    listed = [Cell(row, {"study": "simulate", "row": row}, row, "c") for row in "xy"]
    monkeypatch.setattr(claims, "get", lambda name: table_of(listed))

    def judge_of(ours, theirs, compares="speed"):
        for cell, runs in zip(listed, (ours, theirs), strict=True):
            store(batch.ResultFolder(tmp_path, "quick", "t"), cell, runs)
        claim = Claim("a", "S000", "§1", "x is faster than y", "", "t", {"quick": [("x", "y", "c")]}, compares=compares)
        return claims.judged(claim, tmp_path)[0]

    return judge_of


def test_an_open_claim_is_not_testable_where_the_printed_gap_could_not_be_found(stored):
    root, _ = stored
    for profile, verdict in (("quick", "cannot be decided here"), ("desk", "not testable here")):
        place = batch.ResultFolder(root, profile, "t")
        for cell in claims.get("t").cells(profile)[:2]:
            shares = (0.6, 0.75, 0.7) if cell.row == "x" else (0.75, 0.6, 0.7)
            store(place, cell, {seed: images(np.arange(500) < 500 * share) for seed, share in enumerate(shares)})
        asked = replace(CLAIM, questions={profile: [("x", "y", "c")]})
        (found,) = claims.judged(asked, root)
        assert found.verdict == verdict, "only the desk profile has printed values, 5 points apart"


def test_printed_points_are_not_compared_with_a_ratio_of_rounds(tmp_path, monkeypatch):
    listed = [Cell(row, {"study": "simulate", "row": row}, row, "c", at) for row, at in (("x", 80.0), ("y", 79.9))]
    monkeypatch.setattr(claims, "get", lambda name: table_of(listed))
    for cell in listed:
        store(batch.ResultFolder(tmp_path, "quick", "t"), cell, curves(4, 4, 4))
    points = Claim("a", "S000", "§1", "x beats y", "", "t", {"quick": [("x", "y", "c")]})
    speed = replace(points, compares="speed")
    (found,), (faster,) = (claims.judged(claim, tmp_path) for claim in (points, speed))
    assert found.printed == pytest.approx({("x", "y", "c"): 0.1})
    assert faster.printed == claims.printed_gaps(speed) == {}
    assert faster.verdict == "cannot be decided here", "no factor of rounds was too small to be found"


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
    assert claims.ours(answered([3.0], [3.9])).endswith("; the printed +3.90 lies in our interval")
    assert claims.ours(answered([3.0], [5.92])).endswith("; the printed +5.92 lies outside our interval")
    assert claims.printed_inside(answered([0.2], [-1.0])).endswith("-1.00 lies outside our interval"), "also if open"
    three = answered([3.0, 3.0, 0.0], [3.9, 5.92, -2.0])
    assert claims.ours(three).endswith("; the printed gap lies in our interval in 1 of 3 comparisons")
    two = answered([3.0, 3.0], [None, 5.92])
    assert claims.printed_inside(two) == "the printed +5.92 lies outside our interval (from z)"


def test_nothing_is_said_of_a_printed_gap_without_an_interval_or_without_print(monkeypatch):
    monkeypatch.setattr(claims, "get", lambda name: table_of([]))
    for found in (answered([3.0, 1.0], [None, None]), answered([3.0], [5.92], half=float("nan"))):
        assert claims.printed_inside(found) == ""
        assert "printed" not in claims.ours(found)


@pytest.mark.parametrize("claim", [claim for claim in claims.every() if claim.questions], ids=lambda c: c.name)
def test_the_stored_results_say_of_every_printed_gap_with_an_interval_where_it_lies(claim):
    for found in claims.judged(claim, batch.results()):
        ends = {q: a.comparison.interval for q, a in found.answers.items()}
        both = [q for q in found.printed if q in ends and np.isfinite(ends[q]).all()]
        inside = sum(abs(found.printed[q] - np.mean(ends[q])) <= np.ptp(ends[q]) / 2 for q in both)
        words = claims.ours(found)
        if len(both) > 1:
            assert f"the printed gap lies in our interval in {inside} of {len(both)} comparisons" in words
        elif both:
            assert f"lies {'in' if inside else 'outside'} our interval" in words
        else:
            assert "printed" not in words


def test_accuracy_that_still_rises_by_more_than_the_gap_is_said_beside_the_verdict(fast):
    late = curves(17, 17, 17)  # 50 % in the sixth of the rounds before the last, 90 % in the last
    early, few = curves(2, 2, 2), images(np.arange(100) < 70)
    lower = {seed: {**run, **few, "history": [[t, 70.0] for t, _ in run["history"]]} for seed, run in early.items()}
    risen = {seed: {**run, **images(np.arange(100) < 90)} for seed, run in late.items()}
    flat = {seed: {**run, **images(np.arange(100) < 90)} for seed, run in early.items()}
    assert claims.confidence(fast(risen, lower, "images")).endswith("; accuracy still rising after 20 rounds")
    assert claims.confidence(fast(flat, lower, "images")) == "profile quick: small digits only, 3 seeds"


def test_speed_is_the_ratio_of_the_rounds_after_which_stored_curves_reach_a_common_accuracy(fast):
    found = fast(curves(4, 5, 4), curves(12, 15, 12))
    assert found.verdict == "holds"
    assert claims.ours(found).startswith("better: 0.33 times the rounds, 0.30 to 0.37 (c)")
    assert fast(curves(12, 15, 12), curves(4, 5, 4)).verdict == "does not hold"
    same = fast(curves(4, 4, 4), curves(4, 4, 4))
    assert same.verdict == "cannot be decided here"


def test_a_speed_between_two_evaluations_is_not_known(fast):
    found = fast(curves(10, 10, 10, step=10), curves(20, 20, 20, step=10))
    (answer,) = found.answers.values()
    low, high = answer.comparison.interval
    assert high - low > 2 * np.log1p(10 / 20), "at least the rounds between two evaluations to either side"


def test_a_run_that_never_gets_there_counts_with_its_rounds_and_one_that_diverges_leaves_it_open(fast):
    slow = curves(12, 99, 99)
    assert next(iter(fast(curves(4, 5, 4), slow).answers.values())).comparison.gap < np.log(0.3)
    broken = curves(4, 5, 99)
    broken[2] |= {"final": None, "history": broken[2]["history"][:3]}
    assert fast(broken, curves(12, 15, 12)).verdict == "cannot be decided here"


def test_values_of_which_smaller_ones_are_better_say_so(fast):
    small, large = ({s: {"final": v} for s, v in enumerate(values)} for values in ((1.0, 1.1, 1.2), (2.0, 2.2, 2.3)))
    assert fast(small, large, "lower values").verdict == "holds"
    assert fast(small, large, "values").verdict == "does not hold"


@pytest.mark.parametrize(
    ("last", "verdict"),
    [((11.0, 9.0, 10.0), "holds"), ((None, 10.5, 9.5), "holds"), ((58.0, 61.0, 59.0), "does not hold")],
)
def test_a_method_does_not_converge_if_it_ends_where_it_started_or_diverges(tmp_path, monkeypatch, last, verdict):
    cell = Cell("x", {"study": "simulate"}, "x", "c")
    monkeypatch.setattr(claims, "get", lambda name: table_of([cell]))
    curves = {seed: [[0, 10.0]] + [[9, value]] * (value is not None) for seed, value in enumerate(last)}
    runs = {seed: {"final": value, "history": curves[seed]} for seed, value in enumerate(last)}
    store(batch.ResultFolder(tmp_path, "quick", "t"), cell, runs)
    asked = {"quick": [("x", "x", "c")]}
    claim = Claim("a", "S000", "§1", "x does not converge", "", "t", asked, "not better", 5.0, compares="start")
    assert claims.judged(claim, tmp_path)[0].verdict == verdict
    assert claims.label(("x", "x", "c")) == "x − untrained, c"


def test_a_question_may_compare_two_columns(tmp_path, monkeypatch):
    listed = [Cell(f"x {column}", {"study": "simulate", "c": column}, "x", column) for column in ("5%", "10%")]
    for module in (claims, show):
        monkeypatch.setattr(module, "get", lambda name: table_of(listed))
    drawn = np.random.default_rng(0).random((3, 500))
    for cell, share in zip(listed, (0.5, 0.8), strict=True):
        runs = {seed: images(v < share) for seed, v in enumerate(drawn)}
        store(batch.ResultFolder(tmp_path, "quick", "t"), cell, runs)
    (found,) = claims.judged(Claim("a", "", "", "", "", "t", {"quick": [("x", "x", "10%", "5%")]}), tmp_path)
    assert found.verdict == "holds"
    assert claims.ours(found) == "better: +30.3 ± 5.2 (10% against 5%)"
    assert claims.label(("x", "x", "10%", "5%")) == "x, 10% − 5%"
    assert show.forest([found], "c") is not None


def test_a_settled_claim_needs_no_run(tmp_path):
    claim = Claim("b", "S000", "§2", "z", "-", settled=("holds", "by arithmetic", "tests/test_claims.py::test_x"))
    (line,) = claims.matrix([claim], tmp_path).to_dict("records")
    assert (line["verdict"], line["ours"], line["rests on"]) == ("holds", "by arithmetic", "proved or counted")


def test_verdicts_are_counted_by_document(stored, monkeypatch):
    root, write = stored
    settled = Claim("b", "S001", "§2", "z", "-", settled=("holds", "by arithmetic", "tests/test_claims.py::test_x"))
    open_ = Claim("c", "S000", "§3", "x beats z", "-", "t", {"quick": [("x", "z", "c")]})
    monkeypatch.setattr(show, "every", lambda: [CLAIM, open_, settled])
    write("quick", "x", 0.9)
    write("quick", "y", 0.6)
    assert "FedUp study: 2 not computed yet; SCAFFOLD page: 1 holds" in show.ended(root).text
    write("quick", "z", 0.6)
    assert show.ended(root).text.startswith("The documents' claims: 3 central claims")
    assert show.ended(root).text.endswith("or on larger data:\nSCAFFOLD page, §2: z")  # and none of small data
    assert "FedUp study: 2 hold; SCAFFOLD page: 1 holds" in show.ended(root).text


def test_the_longest_labels_of_all_claims_leave_a_phone_room_for_the_picture():
    gap = judge.compare(np.array([[1, 1, 0], [1, 0, 1]], bool), np.array([[1, 0, 0], [1, 0, 0]], bool))
    questions = [q for claim in claims.every() for asked in (claim.questions or {}).values() for q in asked]
    longest = sorted({claims.label(question) for question in questions}, key=lambda text: (len(text), text))[-20:]
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
    assert "verdict: not computed yet" in show.box(["a"], root).text
    write("quick", "x", 0.9)
    write("quick", "y", 0.6)
    text = show.box(["a"], root).text
    assert "1 of 2 comparisons not run yet" in text
    assert "runs that are incomplete do not decide" in text
    assert "verdict: not computed yet" in text
    for profile, rows in (("quick", "xyz"), ("desk", "xy")):
        for row in rows:
            write(profile, row, 0.9 if row == "x" else 0.6)
    text = show.box(["a"], root).text
    assert "quick: better" in text
    assert "desk: better" in text
    assert "verdict: holds" in text
    assert "scaled down" in text, "the desk's data are nearer to the document's"
    with pytest.raises(KeyError, match="b"):
        show.box(["b"], root)


def test_further_claims_of_a_chapter_stand_in_the_fold_below_its_own(stored, monkeypatch):
    root, write = stored
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.6)):
        write("quick", row, share)
    atoms = [replace(CLAIM, name=f"b-{rival}", text=f"x beats {rival} soon", family="b") for rival in "yz"]
    monkeypatch.setattr(show, "every", lambda: [CLAIM, *atoms])
    page = show.verdicts(["a"], root, more=["b"]).html
    above, folded = page.split("<details", 1)
    assert "2 further claims" in folded
    assert all(f"x beats {rival} soon" in folded for rival in "yz")
    assert "soon" not in above
    assert "further" not in show.verdicts(["a"], root).html


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
    assert show.headline(root).text.splitlines()[2].split() == ["not", "run", "yet", "1", "1"]
    for row, share in (("x", 0.9), ("y", 0.6), ("z", 0.9)):
        write("quick", row, share)
    text = show.headline(root).text
    assert text.startswith("The 1 central claims by verdict")
    assert "Of 2 questions put to runs, 1 came out as the document says, 0 contradict it" in text
    gaps = "The documents print 1 gaps, with a median of 5.0 points. 2 of our questions compare accuracies, and half "
    assert gaps in text


def test_page_one_counts_verdicts_apart_by_what_they_rest_on(stored):
    root, write = stored
    for profile, rows in (("quick", "xyz"), ("desk", "xy")):
        for row in rows:
            write(profile, row, 0.9 if row == "x" else 0.6)
    settled = Claim(
        "b", "S001", "§2", "z", "-", settled=("does not hold", "by a count", "tests/test_claims.py::test_x")
    )
    small = replace(CLAIM, questions={"quick": [("x", "z", "c"), ("y", "z", "c")]})
    large, later = (replace(CLAIM, questions={profile: [("x", "z", "c")]}) for profile in ("paper", "desk"))
    asked = [CLAIM, settled, small, large, later]
    counts = show._by_evidence([(claim, claims.strongest(claims.judged(claim, root))) for claim in asked])
    proof, desk, quick = (show.RESTS[rests] for rests in ("proof", "desk", "quick"))
    assert counts.to_dict("index") == {
        "holds": {proof: 0, desk: 1, quick: 0, "none yet": 0, "all": 1},
        claims.SOME: {proof: 0, desk: 0, quick: 1, "none yet": 0, "all": 1},
        "does not hold": {proof: 1, desk: 0, quick: 0, "none yet": 0, "all": 1},
        "not computed yet": {proof: 0, desk: 0, quick: 0, "none yet": 1, "all": 1},
        "not run yet": {proof: 0, desk: 0, quick: 0, "none yet": 1, "all": 1},
        "all": {proof: 1, desk: 1, quick: 1, "none yet": 2, "all": 5},
    }


def test_the_counts_of_page_one_are_those_of_the_stored_claims():
    best = [(claim, claims.strongest(claims.judged(claim, batch.results()))) for claim in claims.every()]
    counts = show._by_evidence(best)
    assert counts.loc["all", "all"] == len(best)
    assert counts.loc["all", show.RESTS["proof"]] == sum(claim.settled is not None for claim, _ in best)
    large = {claim.name for claim, _ in best if {*claim.questions} == {"paper"}}
    assert counts.loc["not computed yet", "all"] == len(large)


def test_profiles_that_contradict_each_other_are_listed_with_what_differs(stored, monkeypatch):
    root, write = stored
    monkeypatch.setattr(show, "every", lambda: [CLAIM])
    for profile, shares in (("quick", (0.9, 0.6, 0.9)), ("desk", (0.5, 0.8, 0.8))):
        for row, share in zip("xyz", shares, strict=True):
            write(profile, row, share)
    text = show.contradictions(root).text
    assert text.startswith("Small runs and larger ones contradict each other significantly in 1 claim;")
    (line,) = text.splitlines()[1:]
    said = r": x against y is better on c in profile quick \(\+3.*\), but worse on c in profile desk \(-3.*\)"
    assert re.fullmatch(re.escape(CLAIM.text) + said, line)
    write("desk", "x", 0.9)
    assert show.contradictions(root).text.endswith("in no claim.")
    assert claims.contradiction(CLAIM, claims.judged(CLAIM, root)[:1]) == ""


@pytest.mark.parametrize(
    ("word", "other", "expected", "opposed"),
    [
        ("better", "worse", "better", True),
        ("better", "equal", "better", True),
        ("equal", "worse", "better", False),  # either says that the claim does not hold
        ("better", "equal", "not worse", False),
        ("better", "worse", "different", True),
        ("better", "better", "better", False),
    ],
)
def test_answers_contradict_by_their_signs_or_by_what_they_say_of_the_claim(word, other, expected, opposed):
    assert claims._opposed(word, other, expected) == claims._opposed(other, word, expected) == opposed


def test_the_stored_contradictions_are_between_decided_answers_of_both_profiles():
    lines = show.contradictions().text.splitlines()[1:]
    listed = {claim.name for claim in claims.every() if any(line.startswith(f"{claim.text}: ") for line in lines)}
    assert len(listed) == len(lines)
    for claim in claims.every():
        both = [{*j.words().values()} - {judge.OPEN} for j in claims.judged(claim, batch.results()) if j.verdict]
        ways = len(both) > 1 and all(both) and len(set.union(*both)) > 1
        assert ways or claim.name not in listed, claim.name
        one_each = len(both) == 2 and all(len(words) == 1 for words in both) and not claim.settled
        if one_each and len({q[:2] for asked in claim.questions.values() for q in asked}) == 1:
            assert (claim.name in listed) == claims._opposed(*(next(iter(w)) for w in both), claim.expected), claim.name


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
    assert "The documents' claims: 1 central claims" in show.ended(root).text
    assert "The 1 central claims by verdict" in show.headline(root).text
    assert "We added 1 claims, which are not counted" in show.headline(root).text
    assert show.glance(root).html.count("<a ") == 1, "one sign for each claim that is counted"
    text = show.box(["a", "b"], root).text
    assert text.count("verdict: holds") == 2
    assert "§1, leaves open whether: x beats y" in text


def test_an_interval_beside_zero_that_holm_keeps_open_is_told_from_one_that_holds_it(monkeypatch):
    monkeypatch.setattr(claims, "get", lambda name: table_of([]))
    beside, around = (judge.Comparison(gap, 1.0, 0.0, 10, 0) for gap in (2.4, 0.5))
    one, other = judge.decide([beside, around])
    assert (one.word, other.word) == (judge.OPEN, judge.OPEN)
    assert "not significant by Holm's rule" in claims._short(one, CLAIM)
    assert "Holm" not in claims._short(other, CLAIM)
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
    assert (
        show.legend(table, tidy)
        == "~ no significant difference: against y; all cells of the table are tested as one family (Holm's rule)"
    )
    assert show.legend(table, tidy[1:]) == ""


def test_a_page_outside_a_checkout_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for shown in (lambda: show.result("fedup-table4"), lambda: show.box(["fedup-skew"]), batch.results):
        with pytest.raises(FileNotFoundError, match=r"stored results are not here.*folder book/ of a checkout"):
            shown()
