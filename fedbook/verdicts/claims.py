"""The central claims of the documents: the statement, the comparisons that decide it, and the verdict.

A claim is one statement that can be right or wrong.  It is decided by a proof or by arithmetic, which a test carries
out, or by questions about stored results: is this row better than that one, in this column?  All questions of a claim
are one family of `judge.decide`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from ..documents.definitions import PROFILES, Cell, Claim, Key, Question, documents, get, sides
from ..results.batch import ResultFolder
from ..results.cells import Result
from . import judge
from .findings import DOCUMENTS
from .judge import Answer
from .overview import answered, rise, stored_cells

# the chapter that discusses a claim: the value of the first key with which the claim's name starts
CHAPTERS = {
    "fedavg-mean": "drift", "fedavg": "heterogeneity", "fedprox": "proximal", "fedup-momentum": "server",
    "fedup-bound": "fedup", "fedup-estimate": "fedup", "fedup-communication": "fedup", "fedup-skew": "fedup",
    "fedup": "comparison", "feddyn": "proximal", "mime": "mime", "stem": "mime", "scaffold": "scaffold",
    "dfed": "dfedgam",
    "shift-start": "personal", "shift-converges": "personal", "shift": "feature_shift",
    "fedgse": "fedgse", "": "feddse",
}  # fmt: skip

# What a changed cosine means, instead of the words for a changed accuracy.
TURNS = {judge.BETTER: "turned towards the global gradient", judge.WORSE: "turned away from the global gradient"}


# what the runs of a profile are made on, in a verdict
DATA = {"quick": "small data", "desk": "larger data", "paper": "the document's data"}
SOME = "holds in some comparisons"
KINDS = ("holds", "holds in part", SOME, "does not hold", "not testable here", "cannot be decided here")


@dataclass(frozen=True)
class Judgement:
    """The state of a claim in a profile: the answered questions, the number of unanswered ones, and the verdict.

    printed: the gaps that the document prints, for the questions whose values it prints.  rising: question -> the
    rounds after which an accuracy still rose by more than the gap in question (`overview.rise`).
    """

    claim: Claim
    profile: str
    answers: Mapping[Question, Answer]
    missing: int
    verdict: str
    printed: Mapping[Question, float] = field(default_factory=dict)
    rising: Mapping[Question, int] = field(default_factory=dict)

    def words(self) -> dict[Question, str]:
        """Question -> its answer."""
        return {q: a.word for q, a in self.answers.items()}

    @property
    def partial(self) -> bool:
        """Whether runs answer some comparisons as the claim says, and others not."""
        return self.verdict == "holds in part" and not self.claim.settled

    @property
    def said(self) -> str:
        """The verdict as pages show it: on which data runs decided it, and in how many comparisons if not in all."""
        yes, _ = judge.tally([*self.words().values()], self.claim.expected)
        if not self.answers or self.verdict in ("", "not testable here", "cannot be decided here"):
            return self.verdict
        part = f"holds in {yes} of {len(self.answers)} comparisons" if self.partial else self.verdict
        return f"{part} on {DATA[self.profile]}"

    @property
    def kind(self) -> str:
        """The verdict as pages count it, one of `KINDS`."""
        return SOME if self.partial else self.verdict


def every() -> list[Claim]:
    """The claims of all documents, in their order."""
    return [claim for module in documents() for claim in getattr(module, "CLAIMS", ())]


def judged(claim: Claim, root: Path) -> list[Judgement]:
    """A judgement for every profile with questions and stored results; a settled claim has one, without a profile.

    While a question has no answer yet, the verdict is "".
    """
    if claim.settled:
        return [Judgement(claim, "", {}, 0, claim.settled[0])]
    out = []
    for profile in (p for p in PROFILES if p in claim.questions):
        asked = claim.questions[profile]
        cells = {key for question in asked for key in sides(question)}
        table = claim.decided_by(profile)
        results = stored_cells(get(table), ResultFolder(root, profile, table), cells)
        answers = answered(results, asked, margin=claim.margin, compared=compared(claim))
        missing = len(asked) - len(answers)
        if answers:
            printed = _gaps(claim, asked, {key: cell.source for key, (cell, _) in results.items()})
            rising = _rising(answers, printed, results) if compared(claim) == "images" else {}
            found = Judgement(claim, profile, answers, missing, "", printed, rising)
            out.append(replace(found, verdict="" if missing else _verdict(found)))
    return out


def _verdict(found: Judgement) -> str:
    """A claim that runs leave open is not testable here if one of its experiments was too small for the printed gap."""
    verdict = judge.verdict([*found.words().values()], found.claim.expected)
    tried = {q: a for q, a in found.answers.items() if a.word == judge.OPEN}
    small = any(a.detectable > abs(found.printed[q]) > 0 for q, a in tried.items() if q in found.printed)
    return "not testable here" if small and verdict == judge.VERDICTS[-1] else verdict


def _rising(
    answers: Mapping[Question, Answer], printed: Mapping[Question, float], results: Mapping[Key, tuple[Cell, Result]]
) -> dict[Question, int]:
    """The questions of `Judgement.rising`: the gap in question is the printed one, else the one that was found."""
    out = {}
    for question, answer in answers.items():
        gap = printed.get(question, 0 if answer.word == judge.OPEN else answer.comparison.gap)
        rises = [rise(result, cell.reporting(None)) for cell, result in map(results.get, sides(question))]
        if gap and any(abs(value) > abs(gap) for value, _ in rises):
            out[question] = max(rounds for _, rounds in rises)
    return out


def compared(claim: Claim) -> str:
    """What the questions of a claim compare, see `overview.answered`."""
    return claim.compares or get(claim.table).compared


def _gaps(claim: Claim, asked: Sequence[Question], sources: Mapping[Key, float | None]) -> dict[Question, float]:
    """The gaps between printed values, for the questions with two of them; none for a claim that compares something
    else than its table prints, such as logarithms of rounds instead of points."""
    if claim.compares or compared(claim) == "logs":
        return {}
    pairs = {question: [sources[key] for key in sides(question)] for question in asked}
    return {question: ours - theirs for question, (ours, theirs) in pairs.items() if None not in (ours, theirs)}


def strongest(judgements: Sequence[Judgement]) -> Judgement | None:
    """The judgement that counts: the settled one, else that of the profile nearest to the document."""
    decided = [j for j in judgements if j.verdict]
    return decided[-1] if decided else None  # ordered from quick to paper


def chapter(claim: Claim) -> str:
    """The chapter whose claim box has this claim."""
    return next(chapter for start, chapter in CHAPTERS.items() if claim.name.startswith(start))


def printed_gaps(claim: Claim) -> dict[Question, float]:
    """The gaps that the document prints, for all questions whose values it prints, also unanswered ones."""
    if not claim.table:
        return {}
    cells = [c for profile in PROFILES for c in get(claim.decided_by(profile)).cells(profile)]
    sources = {(c.row, c.column): c.source for c in cells}
    return _gaps(claim, [question for asked in claim.questions.values() for question in asked], sources)


def confidence(judgement: Judgement | None) -> str:
    """The evidence behind a verdict, in words."""
    if judgement is None:
        return "not run yet"
    if judgement.claim.settled:
        return "proved or counted"
    seeds = min(a.comparison.seeds for a in judgement.answers.values())
    synthetic = any("roles" in q[2] or "domain" in q[2] for q in judgement.answers)
    data = {
        "quick": "synthetic data only" if synthetic else "small digits only",
        "desk": "larger data, scaled down from the document's",
        "paper": "the document's own setting",
    }
    notes = [f"profile {judgement.profile}: {data[judgement.profile]}, {seeds} seed{'s' * (seeds != 1)}"]
    if judgement.rising:
        several = f" in {len(judgement.rising)} of {len(judgement.answers)} comparisons" * (len(judgement.answers) > 1)
        notes += [f"accuracy still rising after {max(judgement.rising.values())} rounds{several}"]
    return "; ".join(notes)


def matrix(claims: Sequence[Claim], root: Path) -> Any:
    """A line per claim (pandas.DataFrame): place, claim, verdict, ours, printed, rests on, ahead in.

    ahead in: in which share of pairs of runs, one of each method's, the first method of the strongest evidence is more
    accurate, the mean over its questions.
    """
    import pandas as pd

    lines = []
    for claim in claims:
        found = judged(claim, root)
        by_profile = {j.profile: ours(j) for j in found}
        best = strongest(found)
        lines.append(
            {
                "place": claim.place,
                "claim": claim.text + " (ours)" * claim.own,
                "verdict": best.said if best else "",
                "ours": claim.settled[1] if claim.settled else "; ".join(f"{p}: {w}" for p, w in by_profile.items()),
                "printed": claim.printed,
                "rests on": confidence(best),
                "ahead in": _ahead(best),
            }
        )
    return pd.DataFrame(lines)


def _ahead(best: Judgement | None) -> str:
    shares = [a.comparison.ahead for a in best.answers.values()] if best else []
    return f"{sum(shares) / len(shares):.0%} of pairs of runs" if shares and all(map(math.isfinite, shares)) else ""


def ours(judgement: Judgement) -> str:
    """The answers of a judgement in words, grouped by answer, and where the printed gaps lie."""
    table = judgement.claim.table  # none where a proof or a count decides
    turns, parts = TURNS if table and get(table).unit == "cosine" else {}, []
    for word in dict.fromkeys(a.word for a in judgement.answers.values()):
        same = [(q, a) for q, a in judgement.answers.items() if a.word == word]
        margin = f" within {same[0][1].margin:g}" if word == judge.EQUAL else ""
        than = {judge.EQUAL: "to", judge.OPEN: "from"}.get(word, "than")
        gaps = [_short(a, judgement.claim, _named(q, judgement, than)) for q, a in same]
        parts.append(f"{turns.get(word, word)}{margin}: {', '.join(gaps)}")
    asked = judgement.missing + len(judgement.answers)
    parts += [f"{judgement.missing} of {asked} comparisons not run yet"] if judgement.missing else []
    return "; ".join(filter(None, [*parts, printed_inside(judgement)]))


def printed_inside(judgement: Judgement) -> str:
    """Whether the gaps that the document prints lie in our 95 % intervals, in words.

    Only comparisons with both count; "" if there is none.
    """
    ends = {q: a.comparison.interval for q, a in judgement.answers.items()}
    known = {q: gap for q, gap in judgement.printed.items() if q in ends and all(map(math.isfinite, ends[q]))}
    inside = [question for question, gap in known.items() if ends[question][0] <= gap <= ends[question][1]]
    source = get(judgement.claim.decided_by(judgement.profile)).document if known else judgement.claim.document
    whose = f"the {DOCUMENTS[source]}'s" if source != judgement.claim.document else "the"
    if len(known) > 1:
        return f"{whose} printed gap lies in our interval in {len(inside)} of {len(known)} comparisons"
    for question, gap in known.items():
        which = f" ({_named(question, judgement, 'from')})" if len(judgement.answers) + judgement.missing > 1 else ""
        digits = 3 if get(judgement.claim.table).unit == "cosine" else 2
        return f"{whose} printed {gap:+.{digits}f} lies {'in' if inside else 'outside'} our interval{which}"
    return ""


def contradiction(claim: Claim, found: Sequence[Judgement]) -> str:
    """What two profiles whose runs contradict each other found, and in what their runs differ; "" if none do.

    They do where both decide about the same two rows, with opposite signs or only one of them as the claim says.
    """
    for one, other in combinations([j for j in found if j.verdict and j.answers], 2):
        for pair in dict.fromkeys(question[:2] for question in one.answers):
            here, there = (
                [q for q, word in j.words().items() if q[:2] == pair and word != judge.OPEN] for j in (one, other)
            )
            words = product({one.words()[q] for q in here}, {other.words()[q] for q in there})
            if here and there and all(_opposed(*both, claim.expected) for both in words):
                rows = f"{pair[0]} against {pair[1]} is " if len({q[:2] for q in one.answers}) > 1 else ""
                sizes = zip(("clients", "rounds"), _sizes(one, here[0]), _sizes(other, there[0]), strict=True)
                more = ", ".join(f"{a} and {b} {what}" for what, a, b in sizes if a and b and a != b)
                return f"{rows}{_decided(one, here)}, but {_decided(other, there)}" + f"; with {more}" * bool(more)
    return ""


def _opposed(word: str, other: str, expected: str) -> bool:
    agree = [judge.tally([w], expected)[0] for w in (word, other)]
    return {word, other} == {judge.BETTER, judge.WORSE} or agree[0] != agree[1]


def _decided(judgement: Judgement, questions: Sequence[Question]) -> str:
    """The answer to the first of these questions in words, with the number of the others."""
    first, answer = questions[0], judgement.answers[questions[0]]
    word = f"{answer.word} within {answer.margin:g}" if answer.word == judge.EQUAL else answer.word
    others = len(questions) - 1
    more = f" and in {others} other column{'s' * (others > 1)}" if others else ""
    return f"{word} on {first[2]} in profile {judgement.profile} ({_short(answer, judgement.claim)}){more}"


def _sizes(judgement: Judgement, question: Question) -> tuple[int | None, int | None]:
    """The numbers of clients and of rounds in a question's runs; None where the specification does not say."""
    cells = get(judgement.claim.decided_by(judgement.profile)).cells(judgement.profile)
    spec = next(cell.spec for cell in cells if (cell.row, cell.column) == sides(question)[0])
    return spec.get("federation", {}).get("clients"), spec.get("run", {}).get("rounds")


def label(question: Question) -> str:
    """A question as the difference that it asks about."""
    (row, column), (base, other) = sides(question)
    if (row, column) == (base, other):
        return f"{row} − untrained, {column}"
    return f"{row} − {base}, {column}" if column == other else f"{row}, {column} − {other}"


def _named(question: Question, judgement: Judgement, than: str) -> str:
    """The names that tell a question from the others of its claim, and what its answer says `than`, "from" or "to"."""
    (row, column), (base, other) = sides(question)
    if other != column:
        return f"{column} against {other}"
    rows, bases, columns = ({q[k] for q in judgement.claim.questions[judgement.profile]} for k in (0, 1, 2))
    named = [row] * (len(rows) > 1) + [f"{than} {base}"] * (len(bases) > 1)
    return ", ".join(named + [column] * (len(columns) > 1 or not named))


def _short(answer: Answer, claim: Claim, about: str = "") -> str:
    """The gap with half its 95 % interval; in brackets what it is about, and what limits it."""
    c, smallest, digits = answer.comparison, answer.detectable, 3 if get(claim.table).unit == "cosine" else 1
    if compared(claim) in ("logs", "speed"):
        found, words = f"a factor of {math.exp(smallest):.1f}", factor(c)
    else:
        digits += f"{abs(c.gap):.{digits}f}" == f"{c.half:.{digits}f}"  # does the interval reach zero?
        found, words = f"{smallest:.{digits}f}", f"{c.gap:+.{digits}f} ± {c.half:.{digits}f}"
    low, high = c.interval
    why = "" if low <= 0 <= high else "not significant by Holm's rule; "
    notes = [f"{why}detectable: {found}"] if answer.word == judge.OPEN else []
    if not math.isfinite(c.half):  # a run diverged, or there is only one
        words, notes = "no interval", []
    notes += [f"diverged: {c.diverged[0]} and {c.diverged[1]} of {c.seeds}"] if any(c.diverged) else []
    return words + (f" ({'; '.join(filter(None, [about, *notes]))})" if about or notes else "")


def factor(c: judge.Comparison) -> str:
    """A difference of logarithms as a ratio with its 95 % interval, in words."""
    low, high = (math.exp(end) for end in c.interval)
    return f"{math.exp(c.gap):.2f} times the rounds, {low:.2f} to {high:.2f}"
