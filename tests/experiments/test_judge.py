"""The book's rule of decision, on simulated experiments whose truth is known."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

import fedcore as fc
from fedbook.verdicts import judge, overview
from fedbook.verdicts.judge import Comparison

DESIGNS = [  # seeds, test images, spread of a method over seeds, of a method over images (both in logits)
    (3, 2000, 0.2, 0.3),
    (5, 359, 0.05, 0.3),
    (5, 2000, 0.5, 0.3),
    (10, 359, 0.2, 0.3),
    (10, 359, 0.02, 1.0),
    (10, 2000, 0.05, 0.3),
]


def experiments(seeds, images, over_seeds, over_images, count, methods=2, ahead=0.0):
    """Correct images [methods, seeds, images], `count` times: images are unlike in difficulty, which all methods share;
    so is what a seed does to all; method 0 is `ahead` by so many logits."""
    draw = np.random.default_rng(7)
    for _ in range(count):
        logits = 1.0 + draw.normal(0, 1.5, images) + draw.normal(0, 0.2, (seeds, 1))
        logits = logits + draw.normal(0, over_images, (methods, 1, images))
        logits = logits + draw.normal(0, over_seeds, (methods, seeds, 1))
        logits[0] += ahead
        yield (logits + draw.normal(0, 0.5, (methods, seeds, images)) > 0).astype(float)


@pytest.mark.parametrize("design", DESIGNS)
def test_95_percent_intervals_hold_the_truth_in_93_to_97_percent(design):
    held = [abs((c := judge.compare(a, b)).gap) <= c.half for a, b in experiments(*design, count=800)]
    assert 0.93 <= np.mean(held) <= 0.97


def test_a_family_without_differences_gets_a_decision_in_at_most_5_percent():
    wrong = [
        min(judge.holm([judge.compare(row, base).p for row in rows])) < 0.05
        for base, *rows in experiments(3, 359, 0.2, 0.3, count=400, methods=7)
    ]
    assert np.mean(wrong) <= 0.05


def test_the_detectable_difference_is_found_in_80_percent():
    design = (5, 359, 0.05, 0.3)
    many = [judge.compare(a, b) for a, b in experiments(*design, count=400, ahead=0.25)]
    gap, detectable = np.mean([c.gap for c in many]), np.mean([c.detectable() for c in many])
    ahead = 0.25 * detectable / gap  # in logits; the gap is nearly proportional to it
    found = [judge.compare(a, b).p < 0.05 for a, b in experiments(*design, count=400, ahead=ahead)]
    assert 0.72 <= np.mean(found) <= 0.88


def test_where_owners_are_drawn_the_error_is_that_of_owners_and_single_images_would_see_too_little():
    draw, hold = np.random.default_rng(0), []
    for _ in range(600):
        owners = draw.integers(4, 60, 100)
        easy = np.repeat(draw.normal(0, 1, (2, 1, 100)), owners, axis=2)  # of an owner
        a, b = easy + draw.normal(0, 0.2, (2, 5, 1)) + draw.normal(0, 1, (2, 5, owners.sum())) > -1
        of_owners, of_images = judge.compare(a, b, owners=owners), judge.compare(a, b)
        assert of_owners.gap == of_images.gap
        hold.append([abs(c.gap) <= c.half for c in (of_owners, of_images)])
    owned, single = np.mean(hold, axis=0)
    assert 0.93 <= owned <= 0.97
    assert single < 0.85
    assert judge.compare(a, b, owners=[1] * a.shape[1]).half == pytest.approx(of_images.half)


def test_the_owners_of_stored_test_sets_are_those_of_the_data():
    roles = fc.federation("roles", partition=fc.ByOwner(), model="lstm").data.source
    counts = overview.OWNERS["roles"]
    np.testing.assert_array_equal(roles.test_owner, np.repeat(np.arange(len(counts)), counts))


def word(c, **more):
    """The answer where this comparison is the only question."""
    return judge.decide([c], **more)[0].word


def test_more_questions_ask_for_larger_differences():
    c = Comparison(0.0, 1.0, 0.5, 10, 359)
    assert c.detectable() < c.detectable(5) < c.detectable(50)
    assert c.detectable(power=0.5) == pytest.approx(c.half, rel=0.05)


def test_with_one_image_that_decides_nothing_seeds_alone_count():
    gaps = np.array([0.02, 0.05, 0.03, 0.06])
    ours = 0.5 + gaps[:, None] * np.ones(1000)  # every image moves alike: no error of the test set
    low, high = ttest_rel(100 * gaps, np.zeros(4)).confidence_interval(0.95)
    assert judge.compare(ours, np.full((4, 1000), 0.5)).interval == pytest.approx((low, high))
    assert judge.compare_values(100 * gaps, np.zeros(4)).interval == pytest.approx((low, high))


def test_equal_seeds_leave_the_error_of_the_test_set():
    draw = np.random.default_rng(0)
    a, b = draw.random((2, 400)) < 0.8
    c = judge.compare(np.tile(a, (5, 1)), np.tile(b, (5, 1)))
    low, high = ttest_rel(100.0 * a, 100.0 * b).confidence_interval(0.95)
    assert c.interval == pytest.approx((low, high))


def test_the_share_of_pairs_of_runs_in_which_ours_is_ahead_counts_ties_half():
    runs = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]], dtype=float)
    assert judge.compare(runs, runs).ahead == 0.5
    assert judge.compare(runs, runs[[2, 2, 2]]).ahead == pytest.approx(5 / 6)
    assert judge.compare(runs + 1e-12, runs).ahead == 0.5, "rounding decides no pair"
    assert np.isnan(judge.compare_values([1.0, 2.0], [1.0, 1.5]).ahead)


def test_no_interval_is_narrower_than_one_test_image():
    same = np.ones((10, 359), bool)
    c = judge.compare(same, same)
    assert (c.gap, c.half) == (0.0, pytest.approx(100 / 359))
    assert judge.compare_values([50.0] * 5, [49.9] * 5, resolution=0.25).half == pytest.approx(0.25)
    assert word(judge.compare_values([50.0] * 5, [49.9] * 5, resolution=0.25)) == judge.OPEN


def test_a_diverged_run_counts_and_is_named():
    ours, theirs = np.ones((4, 500)), np.ones((4, 500))
    ours[2] = 0.1
    answer = judge.decide([judge.compare(ours, theirs, diverged=(1, 0))])[0]
    assert answer.comparison.gap == pytest.approx(-22.5)
    assert "diverged: 1 and 0 of 4" in str(answer)
    lost = judge.compare_values([1.0, np.nan, 2.0], [1.0, 1.0, 1.0])
    assert lost.diverged == (1, 0)
    assert np.isnan(lost.half)
    assert word(lost) == judge.OPEN


def test_fewer_than_two_seeds_say_nothing():
    c = judge.compare(np.ones((1, 50)), np.zeros((1, 50)))
    assert np.isnan(c.half)
    assert word(c) == judge.OPEN
    assert np.isnan(c.detectable())


def test_holm_is_the_textbooks_and_counts_unanswered_questions():
    assert judge.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert judge.holm([0.01, float("nan")]) == pytest.approx([0.02, 1.0])
    assert judge.holm([]) == []


def test_equal_needs_a_margin_and_an_interval_within_it():
    near = Comparison(0.1, 0.2, 0.0, 21)
    assert [word(near, margin=margin) for margin in (None, 1.0, 0.3)] == [judge.OPEN, judge.EQUAL, judge.OPEN]
    assert str(judge.decide([near], margin=1.0)[0]) == "+0.1 ± 0.4, equal within 1"
    far = Comparison(-5.0, 0.5, 0.0, 10)
    assert [word(far), word(far, lower_is_better=True)] == [judge.WORSE, judge.BETTER]


@pytest.mark.parametrize(
    ("words", "expected", "verdict"),
    [
        (["better", "better"], "better", "holds"),
        (["better", "worse"], "better", "does not hold"),
        (["better", judge.OPEN], "better", "holds in part"),
        (["worse", judge.OPEN], "better", "does not hold"),
        (["equal"], "better", "does not hold"),
        (["equal", "better"], "not worse", "holds"),
        (["worse"], "different", "holds"),
        (["equal"], "different", "does not hold"),
        (["equal"], "equal", "holds"),
        (["worse", "equal"], "not better", "holds"),
        ([judge.OPEN] * 3, "better", "cannot be decided here"),
        ([], "better", "cannot be decided here"),
    ],
)
def test_verdicts_follow_the_printed_rule(words, expected, verdict):
    assert judge.verdict(words, expected) == verdict


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(3, 6\); give \[seeds, images\]"):
        judge.compare(np.ones((3, 5)), np.ones((3, 6)))
    with pytest.raises(ValueError, match="one value per seed"):
        judge.compare_values([1.0], [1.0, 2.0])
    for owners in ([2, 2], [5, 0]):
        with pytest.raises(ValueError, match=r"2 owners have . images; give counts >= 1 with sum 5"):
            judge.compare(np.ones((3, 5)), np.ones((3, 5)), owners=owners)


def test_differences_and_equivalences_are_one_family():
    near = Comparison(0.1, 0.2, 0.0, 21)
    (answer,) = judge.decide([near], margin=0.6)
    assert (answer.questions, answer.word) == (2, judge.EQUAL)
    margin = 0.1 + 0.2 * 1.8  # p between 0.025 and 0.05: equal by itself, not as one of two questions
    assert 0.025 < near.equivalence(margin) < 0.05
    assert word(near, margin=margin) == judge.OPEN


def test_two_methods_that_always_diverge_are_not_called_equal():
    guess = np.full((4, 1000), 0.1)
    assert word(judge.compare(guess, guess, diverged=(4, 4)), margin=1.0) == judge.OPEN
    assert word(judge.compare(guess, guess), margin=1.0) == judge.EQUAL
    both = judge.compare_values([np.nan] * 3, [np.nan] * 3)
    assert "diverged: 3 and 3 of 3" in str(judge.decide([both])[0])
