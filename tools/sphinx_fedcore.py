"""What the book's pages get while Sphinx makes them.

The playground's style and script, once for all pages, and the landing page's picture: written by the package when a
build begins, so that no copy grows old.  And docstrings, shown in the plain words that this package writes them in.
They are no reStructuredText: `x_prev`, `*` and `|` mean themselves, what stands in backquotes is code, an indented
paragraph is an example, and a sentence that begins with "name:" explains a parameter and gets a paragraph of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NAMED = r"[a-z_]\w*(?:, [a-z_]\w*)*: "


def plain(lines: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText that shows the same words."""
    out: list[str] = []
    for paragraph in "\n".join(lines).strip().split("\n\n"):
        if paragraph.startswith("    "):
            out += ["::", "", *paragraph.splitlines(), ""]
        else:
            for part in re.split(rf"(?<=\.) (?={NAMED})", " ".join(paragraph.split())):
                named = re.match(NAMED, part)
                name = f"**{_escaped(named[0][:-2])}**: " if named else ""
                out += [name + _escaped(part[named.end() if named else 0 :]), ""]
    return out


def _escaped(text: str) -> str:
    words, *rest = re.split(r"(`[^`]+`)", text)
    parts = [re.sub(r"([*|\\]|_(?!\w))", r"\\\1", words)]
    for code, words in zip(rest[::2], rest[1::2], strict=True):
        before = "" if not parts[-1] or parts[-1][-1] in " (" else "\\ "
        after = "" if not words or words[0] in " .,;:)" else "\\ "
        parts += [f"{before}`{code}`{after}", re.sub(r"([*|\\]|_(?!\w))", r"\\\1", words)]
    return "".join(parts)


def playground(app: Any) -> None:
    """Write the playground's files into the folder of the pages."""
    from fedcore import playing

    made = {
        "assets/playground.css": playing.asset("playground.css"),
        "assets/playground.js": playing.page_script(),
        "playground.html": playing.playground().html(alone=False),
    }
    for name, text in made.items():
        (Path(app.srcdir) / "book" / name).write_text(text, encoding="utf-8")


def docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain(lines)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("builder-inited", playground)
    app.connect("autodoc-process-docstring", docstring)
    return {"parallel_read_safe": True}
