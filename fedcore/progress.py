"""Progress bars: tqdm's where it is installed and somebody looks, else nothing."""

from __future__ import annotations

from typing import Any


class _NoBar:
    def update(self) -> None: ...
    def set_postfix_str(self, text: str) -> None: ...
    def close(self) -> None: ...


def bar(title: str, total: int, initial: int, unit: str, show: bool, delay: float = 0, leave: bool = True) -> Any:
    """A bar over `total` units of which `initial` are done; `update()` adds one, `close()` ends it.

    delay: seconds before it appears.  leave: whether it stays when it is closed.
    """
    if not show:
        return _NoBar()
    try:
        from tqdm.auto import tqdm
    except ImportError:  # a machine with torch only
        return _NoBar()
    return tqdm(total=total, initial=initial, desc=title, unit=unit, delay=delay, leave=leave)
