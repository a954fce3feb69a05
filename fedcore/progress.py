"""Progress: tqdm's bar on a terminal or in a notebook, lines in a redirected output."""

from __future__ import annotations

import sys
from typing import Any


class _NoBar:
    def update(self) -> None: ...
    def set_postfix_str(self, text: str) -> None: ...
    def close(self) -> None: ...


class _Lines:
    """A line for each unit that is done, or, where these are many, for each text."""

    def __init__(self, title: str, total: int, done: int, unit: str, each: bool) -> None:
        self.title, self.total, self.done, self.unit, self.each, self.text = title, total, done, unit, each, ""

    def update(self) -> None:
        self.done += 1
        if self.each:
            self._write()

    def set_postfix_str(self, text: str) -> None:
        self.text = text
        if not self.each:
            self._write()

    def close(self) -> None: ...

    def _write(self) -> None:
        parts = [f"{self.title}: {self.done}/{self.total} {self.unit}s", *([self.text] if self.text else [])]
        print(", ".join(parts), file=sys.stderr, flush=True)


def somebody_looks() -> bool:
    """Whether progress is seen as it is made: in a notebook, or on a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


def bar(
    title: str,
    total: int,
    initial: int,
    unit: str,
    show: bool,
    delay: float = 0,
    leave: bool = True,
    each: bool = False,
) -> Any:
    """A bar over `total` units of which `initial` are done; `update()` adds one, `set_postfix_str(text)` says what is
    at work or was found, `close()` ends it.

    delay: seconds before it appears.  leave: whether it stays when it is closed.  each: where nobody looks, a line for
    each unit; else for each text.
    """
    if not show:
        return _NoBar()
    if not somebody_looks():
        return _Lines(title, total, initial, unit, each)
    try:
        from tqdm.auto import tqdm
    except ImportError:  # a machine with torch only
        return _Lines(title, total, initial, unit, each)
    return tqdm(total=total, initial=initial, desc=title, unit=unit, delay=delay, leave=leave)
