"""Validation of result files: a checksum detects changed bytes, but not a file that `cells` did not write."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from fedcore.support.checks import MOST, brief

Test = Callable[[Any], bool]


def number(value: Any) -> bool:
    """Whether this is a finite number that a float represents."""
    most = 2**53 if isinstance(value, int) else 1e300
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < most


def count(value: Any) -> bool:
    """Whether this is a whole number from 0."""
    return type(value) is int and 0 <= value <= MOST


def text(value: Any) -> bool:
    """Whether this is a string."""
    return isinstance(value, str)


def none_or(test: Test) -> Test:
    return lambda value: value is None or test(value)


def each(test: Test) -> Test:
    return lambda value: isinstance(value, list) and all(map(test, value))


def named(test: Test) -> Test:
    return lambda value: isinstance(value, dict) and all(map(test, value.values()))


def _point(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and count(value[0]) and number(value[1])


def _made_of(needed: Mapping[str, Test], others: Mapping[str, Test]) -> Test:
    """The test of a mapping with all keys of `needed`, optional keys of `others`, and any further keys, unchecked."""

    def test(value: Any) -> bool:
        known = {**needed, **others}
        return isinstance(value, dict) and needed.keys() <= value.keys() and all(
            known[k](v) for k, v in value.items() if k in known
        )  # fmt: skip

    return test


_MADE = {"id": text, "code": text, "data": text, "seconds": number}


def _setting(value: Any) -> bool:
    parts = ("method", "run", "federation")
    return isinstance(value, dict) and all(isinstance(v, dict) for k, v in value.items() if k in parts)


RUN = {
    "mean": none_or(number), "history": each(_point), "device": text, "threads": count, "torch": text, "python": text,
    "version": text, "commit": none_or(text), "correct": text,
    "images": count, "classes": count, "models": count, "diverged": count, "clients": named(number),
    "server": number, "sums": number, "own": number, "accuracy": number, "train": number, "late": number,
    "right": text, "evaluations": lambda v: count(v) and v > 0,
}  # fmt: skip
TRIAL = {"setting": _setting, "rounds": none_or(count), "score": none_or(number)}
TRIAL |= {"values": each(none_or(number))}
is_tuned = _made_of({"id": text, "setting": _setting, "tried": each(_made_of(TRIAL, {})), "edges": each(text)}, _MADE)
is_run = _made_of({"id": text, "final": none_or(number)}, {**_MADE, **RUN, "tuned": is_tuned})
is_trace = _made_of({"values": each(number), "code": text}, {"same": each(text)})


def check(content: Mapping[str, Any]) -> None:
    """Raise ValueError unless the content has the form that `cells` writes."""
    parts = {"spec": named(lambda v: True), "runs": named(is_run), "tuned": none_or(is_tuned)}
    for name, test in parts.items():
        if not test(content[name]):
            raise ValueError(f"its {name} has not the form of a cell's")
    if not none_or(is_trace)(content.get("trace")):
        raise ValueError("its trace has not the form of a cell's")
    runs = content["runs"]
    for seed, run in runs.items():
        if not re.fullmatch("0|[1-9][0-9]{0,17}", seed):
            raise ValueError(f"its seed {brief(seed)} is no number")
        if "images" in run and not _says_images(run):
            raise ValueError(f"the record of single images of seed {seed} does not have {run['images']} images")
    if len({run["images"] for run in runs.values() if "images" in run}) > 1:
        raise ValueError("its runs have different numbers of test images")


def _says_images(run: Mapping[str, Any]) -> bool:
    """Whether a run's record of single images has the stated length; a diverged run needs no record."""
    if not run["images"] or not run.get("classes") or not run.get("models", 1):
        return False
    if run["final"] is None:
        return True
    try:
        if "right" in run:
            return len(zlib.decompress(base64.b64decode(run["right"], validate=True))) == run["images"]
        bits = base64.b64decode(run.get("correct", ""), validate=True)
    except (binascii.Error, zlib.error):
        return False
    return len(bits) == -(-run["images"] * run.get("models", 1) // 8)
