"""Compare two outputs of a notebook cell: words exactly, numbers up to rounding.

Two processors round the same computation differently in its last bit, which sometimes changes a printed digit.
Therefore outputs are not compared as texts: their numbers (in plain text, HTML, alt texts, streams) may differ by
rounding, and the words between the numbers have to be equal.  Only this module defines the tolerance:

- whole numbers are counts and have to be equal;
- other numbers may differ by one unit of the last printed digit (of the number with more decimals), by the relative
  tolerance RELATIVE, or by NOISE, below which a number is the rounding error of a zero, whichever is largest.

A cell tagged `chaotic` shows results of an unstable training run.  For such a cell the words and the count of numbers
are compared, but not the values; a comment `# chaotic: ...` in the cell has to give the reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

RELATIVE, NOISE = Decimal("1e-4"), Decimal("1e-9")

# A digit inside a word (`h2`, `fc-row3`) belongs to the word, and a sign between two words is a hyphen.
_NUMBER = re.compile(r"(?:(?<![\w.)])[-+−])?(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_PICTURES = ("image/png", "image/jpeg")  # their data are in the alt text and the numbers beside them
_IGNORED = ("metadata", "execution_count", "output_type", "name", "traceback", "prompt_number")


def parted(text: str) -> tuple[list[str], list[str]]:
    """The words between the numbers of `text`, with single spaces, and its numbers as printed."""
    words = [" ".join(part.split()) for part in _NUMBER.split(text)]
    return words, _NUMBER.findall(text)


def close(a: str, b: str) -> bool:
    """Whether two printed numbers are equal up to rounding, by the rule of this module."""
    x, y = (Decimal(n.replace(",", "").replace("−", "-")) for n in (a, b))
    finest = min(x.as_tuple().exponent, y.as_tuple().exponent)
    if x == x.to_integral_value() and y == y.to_integral_value() and finest >= 0:
        return x == y
    return abs(x - y) <= max(Decimal(1).scaleb(finest), RELATIVE * max(abs(x), abs(y)), NOISE)


def difference(old: str, new: str, *, values: bool = True) -> str | None:
    """The first difference between two texts, in words, or None; `values=False` ignores the numbers' values."""
    (old_words, old_numbers), (new_words, new_numbers) = parted(old), parted(new)
    for place, (a, b) in enumerate(zip(old_words, new_words, strict=False)):
        if a != b:
            return f"the words {_near(a, b)!r} became {_near(b, a)!r}"
        if values and place < min(len(old_numbers), len(new_numbers)):
            x, y = old_numbers[place], new_numbers[place]
            if not close(x, y):
                return f"{x} became {y}, after {' '.join(old_words[place].split()[-8:])!r}"
    if len(old_numbers) != len(new_numbers):
        return f"{len(old_numbers)} numbers became {len(new_numbers)}"
    return None


def compare(
    old: Iterable[Mapping[str, Any]],
    new: Iterable[Mapping[str, Any]],
    *,
    clean: Callable[[str], str] = lambda text: text,
    values: bool = True,
) -> str | None:
    """The first difference between two lists of outputs of a cell, in words, or None.

    `clean` removes the parts of a text that may differ between two runs (seconds, hardware); `values=False` ignores the
    numbers' values.  stderr is left out, as in stored notebooks, because warnings depend on the machine, such as that
    of a processor without instructions for bfloat16.
    """
    before, after = _by_kind(old), _by_kind(new)
    if lost := sorted(set(before) - set(after)):
        return f"there is no {', '.join(lost)} any more"
    if added := sorted(set(after) - set(before)):
        return f"{', '.join(added)} came in addition"
    for kind, texts in before.items():
        if len(texts) != len(after[kind]):
            return f"{len(texts)} outputs of {kind} became {len(after[kind])}"
        if kind in _PICTURES:
            continue
        for a, b in zip(texts, after[kind], strict=True):
            if found := difference(clean(a), clean(b), values=values):
                return f"{kind}: {found}"
    return None


def _by_kind(outputs: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Kind of output (a MIME type, or `text` of a stream) -> its texts; the parts of one stream are joined."""
    found: dict[str, list[str]] = defaultdict(list)
    streams: dict[str, int] = {}
    for output in (o for o in outputs if o.get("name") != "stderr"):
        for kind, shown in output.items():
            if kind in _IGNORED:
                continue
            if kind == "data":
                for mime, content in shown.items():
                    found[mime].append(content if isinstance(content, str) else repr(content))
            elif kind == "text" and output.get("name") in streams:
                found["text"][streams[output["name"]]] += shown
            else:
                if kind == "text":
                    streams[output.get("name", "")] = len(found["text"])
                found[kind].append(shown if isinstance(shown, str) else repr(shown))
    return found


def _near(text: str, other: str, width: int = 60) -> str:
    """The part of `text` around the first character that differs from `other`."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return text[max(0, at - width // 2) : at + width]
