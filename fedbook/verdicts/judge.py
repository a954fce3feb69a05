"""Statistical decisions of the book: paired comparisons, families of questions, power, and verdicts on claims.

`compare` estimates one difference with its two sources of error, the seeds and the finite test set; `decide` answers
all questions of one family; `verdict` derives the verdict on a claim from the answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

LEVEL = 0.05  # of a family: the probability of any wrong decision in it
POWER = 0.8
WORDS = BETTER, WORSE, EQUAL, OPEN = ("better", "worse", "equal", "no significant difference")
VERDICTS = ("holds", "does not hold", "holds in part", "not testable here", "cannot be decided here")


@dataclass(frozen=True)
class Comparison:
    """The difference of ours minus theirs, in percentage points of accuracy (or in units of the compared values).

    gap: the mean difference.  by_seed, by_image: its standard errors from seeds and from test images; NaN with fewer
    than two seeds.  seeds: the number of pairs.  images: the size of the test set, or the number of its owners; 0 if
    there is none.  diverged: the numbers of diverged runs, (ours, theirs).  ahead: the share of pairs of runs, one of
    each, in which ours is more accurate, where equal ones count half; NaN for other values than accuracies.
    """

    gap: float
    by_seed: float
    by_image: float
    seeds: int
    images: int = 0
    diverged: tuple[int, int] = (0, 0)
    ahead: float = math.nan

    @property
    def error(self) -> float:
        """The standard error of the gap, from both sources."""
        return math.hypot(self.by_seed, self.by_image)

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval; NaN if the error is unknown."""
        return self._bound(LEVEL / 2)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference."""
        return self.gap - self.half, self.gap + self.half

    @property
    def p(self) -> float:
        """The two-sided p-value of the hypothesis of no difference; NaN if the error is unknown."""
        return 2 * self._tail(abs(self.gap))

    def equivalence(self, margin: float) -> float:
        """The p-value of two one-sided tests (TOST): small if the difference lies between -margin and margin; 1 if all
        runs of both sides diverged, because their equality is no evidence."""
        if self.seeds and min(self.diverged) == self.seeds:
            return 1.0
        return max(self._tail(margin - self.gap), self._tail(margin + self.gap))

    def detectable(self, questions: int = 1, power: float = POWER) -> float:
        """The smallest true difference that this design detects with probability `power` in a family of `questions` (at
        the strictest of Holm's levels); NaN if the error is unknown."""
        from scipy.special import nctdtrinc

        if not math.isfinite(self.error):
            return math.nan
        rest = self.by_image**4 / (self.images - 1) if self.images else 0.0
        df = self.error**4 / (self.by_seed**4 / (self.seeds - 1) + rest)  # Satterthwaite's
        bound = self._bound(LEVEL / questions / 2) / self.error
        return self.error * float(nctdtrinc(df, 1 - power, bound))

    def _bound(self, tail: float) -> float:
        """The value that the gap exceeds with probability `tail` if there is no difference.

        The t quantiles of both sources are added in quadrature (Zou and Donner 2008).  A single t quantile would
        underestimate the error if the spread over few seeds is small by chance.
        """
        from scipy.special import stdtrit

        if not math.isfinite(self.error):
            return math.nan
        images = stdtrit(self.images - 1, tail) * self.by_image if self.by_image else 0.0
        return math.hypot(stdtrit(self.seeds - 1, tail) * self.by_seed, images)

    def _tail(self, distance: float) -> float:
        """The probability that the gap exceeds `distance` if there is no difference: the inverse of `_bound`."""
        from scipy.optimize import brentq

        if not math.isfinite(self.error):
            return math.nan
        if distance < 0:
            return 1 - self._tail(-distance)
        rare = math.log(1e-15)
        if distance >= self._bound(math.exp(rare)):
            return math.exp(rare)
        return math.exp(brentq(lambda q: self._bound(math.exp(q)) - distance, rare, math.log(0.5)))


def compare(
    ours: np.ndarray, theirs: np.ndarray, diverged: tuple[int, int] = (0, 0), owners: Sequence[int] = ()
) -> Comparison:
    """Compare accuracies in points: correctness `[seeds, images]` of two methods on the same seeds and images.

    Entries are shares of a run's late evaluations, in [0, 1] but for older results (`Result.correct`); all entries of a
    diverged run are 1 / classes.  owners: where owners (writers, roles) are drawn rather than single images, how many
    consecutive images each has.  Raises ValueError for different shapes, and for counts that do not sum to the images.
    """
    if np.shape(ours) != np.shape(theirs) or np.ndim(ours) != 2:
        raise ValueError(
            f"correctness of shapes {np.shape(ours)} and {np.shape(theirs)}; give [seeds, images], of the same seeds "
            "and images"
        )
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    pairs = (a.mean(1)[:, None] - b.mean(1)).round(9)  # rounding errors decide no pair
    delta = 100 * (a - b)
    found = paired(by_owner(delta, owners), diverged, 100 / a.shape[1]) if len(owners) else paired(delta, diverged)
    return replace(found, ahead=float((np.sign(pairs) + 1).mean() / 2))


def by_owner(delta: np.ndarray, owners: Sequence[int]) -> np.ndarray:
    """The sums of `delta [seeds, images]` over each owner's images, scaled to the mean of `delta`: `[seeds, owners]`.

    Raises ValueError unless every owner has images and together they have all.
    """
    if min(owners) < 1 or sum(owners) != delta.shape[1]:
        raise ValueError(f"{len(owners)} owners have {sum(owners)} images; give counts >= 1 with sum {delta.shape[1]}")
    first = np.cumsum(owners) - owners
    return np.add.reduceat(delta, first, axis=1) * (len(owners) / delta.shape[1])


def paired(delta: np.ndarray, diverged: tuple[int, int] = (0, 0), resolution: float | None = None) -> Comparison:
    """The mean of differences `[seeds, images]` in percentage points, with the standard errors from both sources.

    resolution: the least half width of the interval; None for the weight of one image.  With owners in place of images,
    `delta` is `[seeds, owners]`.

    The difference of seed j on image l is modelled as gap + eps_j + eps_l + eps_jl.  The variance of the seeds' means
    estimates the error from eps_j and eps_jl; the variance of the images' means, minus the part of eps_jl, estimates
    the error from eps_l.
    """
    seeds, images = delta.shape
    gap = round(float(delta.mean()), 9)  # rounding errors must not give a zero a sign
    if seeds < 2 or images < 2:
        return Comparison(gap, math.nan, math.nan, seeds, images, diverged)
    by_seed = delta.mean(1).var(ddof=1) / seeds
    left = delta - delta.mean(1, keepdims=True) - delta.mean(0) + delta.mean()
    rest = left.var() / ((seeds - 1) * (images - 1))
    by_image = max(delta.mean(0).var(ddof=1) / images - rest, 0.0)
    found = Comparison(gap, math.sqrt(by_seed), math.sqrt(by_image), seeds, images, diverged)
    return _resolved(found, 100 / images if resolution is None else resolution)


def compare_values(ours: Sequence[float], theirs: Sequence[float], resolution: float = 0.0) -> Comparison:
    """Compare one value per seed (log rounds to a target, a cosine) by a paired t-interval over seeds.

    resolution: the least half width of the interval.  A value that is not finite marks a diverged run; the error is
    then NaN, so that the question stays open.  Raises ValueError for different lengths.
    """
    a, b = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"values of shapes {a.shape} and {b.shape}; give one value per seed, of the same seeds")
    diverged = int((~np.isfinite(a)).sum()), int((~np.isfinite(b)).sum())
    D = (a - b)[np.isfinite(a) & np.isfinite(b)]
    gap = round(float(D.mean()), 9) if len(D) else math.nan
    if any(diverged) or len(D) < 2:
        return Comparison(gap, math.nan, 0.0, len(a), 0, diverged)
    return _resolved(Comparison(gap, float(D.std(ddof=1)) / math.sqrt(len(D)), 0.0, len(D)), resolution)


def _resolved(c: Comparison, resolution: float) -> Comparison:
    """The comparison, its interval widened to a half width of at least `resolution` (and 1e-9, for equal values)."""
    narrowest = max(resolution, 1e-9)
    if c.half >= narrowest:
        return c
    wider = narrowest / replace(c, by_seed=1.0, by_image=0.0).half
    return replace(c, by_seed=wider, by_image=0.0)


@dataclass(frozen=True)
class Answer:
    """The answer to one question of a family.

    word: "better", "worse", "equal" (within `margin`) or "no significant difference".  p: the p-value by Holm's method.
    questions: the number of questions in the family.
    """

    comparison: Comparison
    word: str
    p: float
    questions: int
    margin: float | None = None

    @property
    def detectable(self) -> float:
        """The smallest difference that would have been found with probability 0.8."""
        return self.comparison.detectable(self.questions)

    def __str__(self) -> str:
        c = self.comparison
        smallest = self.detectable if self.word == OPEN else math.nan
        more = {
            EQUAL: f" within {self.margin:g}" if self.margin is not None else "",
            OPEN: f" (detectable: {smallest:.1f})" if math.isfinite(smallest) else "",
        }
        runs = f"; diverged: {c.diverged[0]} and {c.diverged[1]} of {c.seeds}" if any(c.diverged) else ""
        return f"{c.gap:+.1f} ± {c.half:.1f}, {self.word}{more.get(self.word, '')}{runs}"


def decide(
    comparisons: Sequence[Comparison], margin: float | None = None, *, lower_is_better: bool = False
) -> list[Answer]:
    """The answers to all questions of one family, by Holm's rule at 5 %.

    margin: differences below it count as equal if the equivalence test is significant; the equivalence tests are then
    questions of the same family.
    """
    asked = [c.p for c in comparisons] + [c.equivalence(margin) for c in comparisons if margin is not None]
    adjusted = holm(asked)
    equal = adjusted[len(comparisons) :] or [1.0] * len(comparisons)
    answers = []
    for c, p, same in zip(comparisons, adjusted[: len(comparisons)], equal, strict=True):
        better = c.gap < 0 if lower_is_better else c.gap > 0
        word = (BETTER if better else WORSE) if p < LEVEL else EQUAL if same < LEVEL else OPEN
        answers.append(Answer(c, word, p, len(adjusted), margin))
    return answers


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values; a NaN counts as 1 and stays in the family."""
    values = np.nan_to_num(np.asarray(p, dtype=float), nan=1.0)
    order, adjusted = np.argsort(values, kind="stable"), np.empty(len(values))
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)).clip(max=1.0)
    return adjusted.tolist()


def verdict(answers: Sequence[Answer | str], expected: str = BETTER) -> str:
    """One of `VERDICTS`.

    A claim holds where every question is answered its way, and does not hold where at least one is answered the other
    way; "equal" is the other way where the claim speaks of a difference.  It holds in part where some are answered its
    way and the others are open.  Else it cannot be decided here; "not testable here" is for who knows the printed gaps
    (`claims.judged`).

    expected: "better" or "worse" if the claim asserts a difference, "equal" if it asserts none, "not worse" if "better"
    and "equal" both fulfil it, "not better" if "worse" and "equal" both do, "different" if "better" and "worse" do.
    """
    yes, no = tally(answers, expected)
    if no:
        return "does not hold"
    return "cannot be decided here" if not yes else "holds" if yes == len(answers) else "holds in part"


def tally(answers: Sequence[Answer | str], expected: str = BETTER) -> tuple[int, int]:
    """How many answers are as a claim expects (`verdict`), and how many are the other way; the others are open."""
    either = {"not worse": (BETTER, EQUAL), "not better": (WORSE, EQUAL), "different": (BETTER, WORSE)}
    words = [a if isinstance(a, str) else a.word for a in answers]
    yes = sum(word in either.get(expected, (expected,)) for word in words)
    return yes, len(words) - yes - words.count(OPEN)
