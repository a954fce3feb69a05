"""How the book decides: paired comparisons, families of questions, power, and verdicts on claims.

`compare` measures one difference with both of its sources of error, the seeds and the finite test set; `decide` answers
all questions of one family; `verdict` says what the answers mean for a claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

LEVEL = 0.05  # of a family: the probability of any wrong decision in it
POWER = 0.8
WORDS = BETTER, WORSE, EQUAL, OPEN = ("better", "worse", "equal", "not distinguished")
VERDICTS = ("holds", "does not hold", "holds in part", "cannot be decided here")
RULE = (
    "Two methods are compared on the same seeds and the same test images. The quantity is the mean difference in "
    "accuracy; its 95 % interval counts the spread over seeds (Student's t) and over test images, and is never "
    "narrower than one test image to either side. A diverged run counts as guessing and is named. All questions of "
    "one claim, figure or table are a family; within it Holm's rule keeps the probability of any wrong decision at "
    "5 %. Three answers: 'better', 'worse', 'not distinguished'; the last always with the smallest difference that "
    "would have been found with probability 0.8; 'equal' within a stated margin where two one-sided tests allow it."
)
CLAIMS = (
    "A claim holds where every question it asks is answered its way; it does not hold where at least one is answered "
    "the other way (also 'equal', where it speaks of a difference) and none its way; it holds in part where both "
    "occur, or where some are answered its way and others not distinguished; else it cannot be decided here."
)


@dataclass(frozen=True)
class Comparison:
    """Ours minus theirs, in points of accuracy (or in units of the values that were compared).

    gap: the mean difference.  by_seed, by_image: its standard errors from either source; NaN where fewer than two
    seeds say nothing.  seeds: pairs.  images: of the test set, 0 where there is none.  diverged: runs of ours and of
    theirs that did.
    """

    gap: float
    by_seed: float
    by_image: float
    seeds: int
    images: int = 0
    diverged: tuple[int, int] = (0, 0)

    @property
    def error(self) -> float:
        """The standard error of the gap, from both sources."""
        return math.hypot(self.by_seed, self.by_image)

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval; NaN where it cannot be known."""
        return self._bound(LEVEL / 2)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference."""
        return self.gap - self.half, self.gap + self.half

    @property
    def p(self) -> float:
        """Probability of a gap as large as this one where there is no difference; NaN where it cannot be known."""
        return 2 * self._tail(abs(self.gap))

    def equivalence(self, margin: float) -> float:
        """p of two one-sided tests (TOST): small where the difference lies between -margin and margin; 1 where all runs
        of both diverged, which are alike and say nothing."""
        if self.seeds and min(self.diverged) == self.seeds:
            return 1.0
        return max(self._tail(margin - self.gap), self._tail(margin + self.gap))

    def detectable(self, questions: int = 1, power: float = POWER) -> float:
        """The smallest true difference that this design finds with probability `power`, in a family of so many
        questions (the strictest of Holm's levels); NaN where it cannot be known."""
        from scipy.special import nctdtrinc

        if not math.isfinite(self.error):
            return math.nan
        rest = self.by_image**4 / (self.images - 1) if self.images else 0.0
        df = self.error**4 / (self.by_seed**4 / (self.seeds - 1) + rest)  # Satterthwaite's
        bound = self._bound(LEVEL / questions / 2) / self.error
        return self.error * float(nctdtrinc(df, 1 - power, bound))

    def _bound(self, tail: float) -> float:
        """What the gap exceeds with this probability where there is no difference.

        The t quantiles of both sources, added like errors (Zou and Donner 2008).  A single t quantile would trust a
        spread that is small by chance over few seeds.
        """
        from scipy.special import stdtrit

        if not math.isfinite(self.error):
            return math.nan
        images = stdtrit(self.images - 1, tail) * self.by_image if self.by_image else 0.0
        return math.hypot(stdtrit(self.seeds - 1, tail) * self.by_seed, images)

    def _tail(self, distance: float) -> float:
        """The probability with which the gap exceeds a distance where there is no difference."""
        from scipy.optimize import brentq

        if not math.isfinite(self.error):
            return math.nan
        if distance < 0:
            return 1 - self._tail(-distance)
        rare = math.log(1e-15)
        if distance >= self._bound(math.exp(rare)):
            return math.exp(rare)
        return math.exp(brentq(lambda q: self._bound(math.exp(q)) - distance, rare, math.log(0.5)))


def compare(ours: np.ndarray, theirs: np.ndarray, diverged: tuple[int, int] = (0, 0)) -> Comparison:
    """Accuracies compared in points: correctness `[seeds, images]` of two methods on the same seeds and test images.

    Values between 0 and 1; a diverged run has 1 / classes in every place.  Raises ValueError for different shapes.
    """
    if np.shape(ours) != np.shape(theirs) or np.ndim(ours) != 2:
        raise ValueError(
            f"correctness of shapes {np.shape(ours)} and {np.shape(theirs)}; give [seeds, images], of the same seeds "
            "and images"
        )
    return paired(100 * (np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)), diverged)


def paired(delta: np.ndarray, diverged: tuple[int, int] = (0, 0)) -> Comparison:
    """The mean of differences `[seeds, images]` in points, with the errors from both sources.

    The difference of seed j on image l is gap + eps_j + eps_l + eps_jl.  The spread of the seeds' means shows eps_j and
    eps_jl; that of the images' means, less what eps_jl accounts for, shows eps_l.
    """
    seeds, images = delta.shape
    gap = round(float(delta.mean()), 9)  # no sign from rounding noise
    if seeds < 2 or images < 2:
        return Comparison(gap, math.nan, math.nan, seeds, images, diverged)
    by_seed = delta.mean(1).var(ddof=1) / seeds
    left = delta - delta.mean(1, keepdims=True) - delta.mean(0) + delta.mean()
    rest = left.var() / ((seeds - 1) * (images - 1))
    by_image = max(delta.mean(0).var(ddof=1) / images - rest, 0.0)
    found = Comparison(gap, math.sqrt(by_seed), math.sqrt(by_image), seeds, images, diverged)
    return _resolved(found, 100 / images)


def compare_values(ours: Sequence[float], theirs: Sequence[float], resolution: float = 0.0) -> Comparison:
    """Any value per seed compared (log rounds to a target, a cosine): a paired t-interval over seeds.

    resolution: the interval is never narrower than this to either side.  Where a value is not finite the run diverged,
    and nothing is decided: the error is NaN.  Raises ValueError for different lengths.
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
    """The comparison with an interval no narrower than what is counted allows; no spread at all is rounding noise."""
    narrowest = max(resolution, 1e-9)
    if c.half >= narrowest:
        return c
    wider = narrowest / replace(c, by_seed=1.0, by_image=0.0).half
    return replace(c, by_seed=wider, by_image=0.0)


@dataclass(frozen=True)
class Answer:
    """What a comparison says within its family.

    word: "better", "worse", "equal" (within `margin`) or "not distinguished".  p: Holm's.  questions: of the family.
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
            OPEN: f" (would have found {smallest:.1f})" if math.isfinite(smallest) else "",
        }
        runs = f"; diverged: {c.diverged[0]} and {c.diverged[1]} of {c.seeds}" if any(c.diverged) else ""
        return f"{c.gap:+.1f} ± {c.half:.1f}, {self.word}{more.get(self.word, '')}{runs}"


def decide(
    comparisons: Sequence[Comparison], margin: float | None = None, *, lower_is_better: bool = False
) -> list[Answer]:
    """The answers to all questions of one family, by Holm's rule at 5 %.

    margin: differences below it count as equal where the equivalence test allows it; these tests are then questions of
    the same family.
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
    """Holm's adjusted p-values; a question without an answer (NaN) stays one of the family."""
    values = np.nan_to_num(np.asarray(p, dtype=float), nan=1.0)
    order, adjusted = np.argsort(values, kind="stable"), np.empty(len(values))
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)).clip(max=1.0)
    return adjusted.tolist()


def verdict(answers: Sequence[Answer | str], expected: str = BETTER) -> str:
    """One of `VERDICTS`, by the rule `CLAIMS`.

    expected: "better" or "worse" where the claim speaks of a difference, "equal" where of none, "not worse" where
    "better" and "equal" both fulfil it, "not better" the other way round.
    """
    fulfilled = {"not worse": (BETTER, EQUAL), "not better": (WORSE, EQUAL)}.get(expected, (expected,))
    words = [a if isinstance(a, str) else a.word for a in answers]
    yes, open_ = sum(w in fulfilled for w in words), sum(w == OPEN for w in words)
    no = len(words) - yes - open_
    if words and yes == len(words):
        return "holds"
    if yes:
        return "holds in part"
    return "does not hold" if no else "cannot be decided here"
