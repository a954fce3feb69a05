"""Progress: tqdm's bar on a terminal or in a notebook, lines in a redirected output."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any


class Bar:
    """A bar over `total` units, of which `done` are finished.  `update()` adds one, `set_postfix_str(text)` shows a
    text beside the bar, `close()` ends it.  If the output is neither a terminal nor a notebook, lines replace the bar.

    delay: seconds until the bar appears, so that a short run shows none.  leave: whether the bar stays when it is
    closed.  each: whether there is a line for each unit, or else for each text.  A standard error that is missing,
    closed or full does not end the run.
    """

    def __init__(
        self,
        title: str,
        total: int,
        done: int,
        unit: str,
        show: bool,
        delay: float = 0,
        leave: bool = True,
        each: bool = False,
    ) -> None:
        self.title, self.total, self.done, self.unit, self.each, self.text = title, total, done, unit, each, ""
        kind = _tqdm() if show and somebody_looks() else None
        self.lines, self.make, self.bar = show and kind is None, kind, None
        self.first, self.begin, self.delay, self.leave = done, time.time(), delay, leave
        self._to_the_bar(lambda bar: None)

    def update(self) -> None:
        self.done += 1
        self._to_the_bar(lambda bar: bar.update())
        if self.lines and self.each:
            self._write()

    def set_postfix_str(self, text: str) -> None:
        self.text = text
        self._to_the_bar(lambda bar: bar.set_postfix_str(text))
        if self.lines and not self.each:
            self._write()

    def close(self) -> None:
        self.make = None
        self._to_the_bar(lambda bar: bar.close())

    def _to_the_bar(self, tell: Any) -> None:
        with _quietly():
            if self.bar is not None:
                tell(self.bar)
            elif self.make is not None and time.time() >= self.begin + self.delay:
                self.bar = self.make(
                    total=self.total, initial=self.first, desc=self.title, unit=self.unit, leave=self.leave,
                    postfix=self.text or None,
                )  # fmt: skip
                self.bar.start_t = self.begin  # the time of the whole run, also before the bar appeared
                self.bar.update(self.done - self.first)

    def _write(self) -> None:
        say(", ".join([f"{self.title}: {self.done}/{self.total} {self.unit}s", *([self.text] if self.text else [])]))


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:  # a machine with torch only
        return None
    return tqdm


def _quietly() -> contextlib.suppress:
    """Suppress the errors of a standard error that is closed, full, disconnected, or not a file."""
    return contextlib.suppress(OSError, ValueError, AttributeError)


def say(text: str) -> None:
    """Write a line to the standard error, if there is one."""
    with _quietly():
        if sys.stderr is not None:  # `print` would use the standard output instead
            print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def streams() -> Iterator[None]:
    """A block in which the null device replaces a missing standard output or error, because worker processes need
    both."""
    given = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    with contextlib.ExitStack() as stack:
        for number, (name, stream) in enumerate(given.items(), 1):
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, nowhere := stack.enter_context(open(os.devnull, "w")))
                stack.callback(setattr, sys, name, stream)
                try:
                    os.fstat(number)
                except OSError:
                    os.dup2(nowhere.fileno(), number)
                os.set_inheritable(number, True)
        yield


def somebody_looks() -> bool:
    """Whether the output is a notebook or a terminal."""
    with _quietly():
        return sys.stderr is not None and ("ipykernel" in sys.modules or sys.stderr.isatty())
    return False


def shows(progress: bool | None) -> bool:
    """Whether to show progress: as given, or for None in a notebook or on a terminal, unless a batch runs."""
    return progress if progress is not None else somebody_looks() and not os.environ.get("FEDCORE_BATCH")
