"""The rule behind the report's verdicts: what it promises, on data whose truth is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedbook.verdicts import judge


@pytest.mark.parametrize(("seeds", "images"), [(3, 60), (8, 200)])
def test_thm_rule(seeds, images):
    """Part 1: the squared error that `compare` gives is on average the variance of the mean difference."""
    draw, sd = np.random.default_rng(0), {"seed": 0.1, "image": 0.5, "rest": 0.4}
    squares, gaps = [], []
    for _ in range(4000):
        a, b = sd["seed"] * draw.normal(size=(seeds, 1)), sd["image"] * draw.normal(size=images)
        D = 0.3 + a + b + sd["rest"] * draw.normal(size=(seeds, images))
        c = judge.compare(D, np.zeros_like(D))
        squares.append((c.by_seed**2, c.by_image**2))
        gaps.append(c.gap)
    variance = 1e4 * (sd["seed"] ** 2 / seeds + sd["image"] ** 2 / images + sd["rest"] ** 2 / (seeds * images))
    parts = 1e4 * np.array([sd["seed"] ** 2 + sd["rest"] ** 2 / images, sd["image"] ** 2]) / [seeds, images]
    assert np.mean(squares, 0) == pytest.approx(parts, rel=0.05)
    assert np.sum(squares, 1).mean() == pytest.approx(variance, rel=0.05)
    assert np.var(gaps) == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("together", [False, True])
def test_holm_decides_a_question_without_a_difference_in_at_most_5_percent(together):
    """Part 2: two of four questions have a difference; the others have uniform p-values, independent or opposite."""
    draw, wrong = np.random.default_rng(1), []
    for _ in range(8000):
        u = draw.random()
        none = (u, 1 - u) if together else (u, draw.random())
        wrong.append(min(judge.holm([*none, 1e-4 * draw.random(), 1e-3 * draw.random()])[:2]) < judge.LEVEL)
    assert 0.04 < np.mean(wrong) <= 0.055  # with all differences found, the level is used up


def test_holm_decides_the_first_as_bonferroni_does_and_the_others_more_easily():
    for p in itertools.product((0.001, 0.012, 0.02, 0.04), repeat=3):
        holm, bonferroni = judge.holm(p), [min(1, 3 * value) for value in p]
        assert min(holm) == pytest.approx(min(bonferroni))
        assert all(h <= b + 1e-12 for h, b in zip(holm, bonferroni, strict=True))


def test_what_no_number_of_seeds_can_find():
    """Methods that disagree on a share of the images, whatever the seed: the half-width stays, with any number."""
    ours, theirs = np.zeros((2, 359), bool)
    ours[:11], theirs[11:18] = True, True  # 18 of 359 images
    halves = [judge.compare(np.tile(ours, (S, 1)), np.tile(theirs, (S, 1))).half for S in (5, 50, 200)]
    assert halves == pytest.approx([halves[0]] * 3, rel=1e-6)
    assert halves[0] == pytest.approx(100 * 1.97 * (0.05 / 359) ** 0.5, rel=0.02)
