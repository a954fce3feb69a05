"""The mathematics of a page, read letter by letter, for `test_notation.py` to compare with the two tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GREEK = re.compile(
    r"\\(?:(?:var)?(?:epsilon|theta|pi|rho|sigma|phi)|alpha|beta|gamma|delta|zeta|eta|iota|kappa|lambda|mu|nu|xi|tau|upsilon"
    r"|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega|ell)"
)
ACCENTS = {"hat", "bar", "tilde", "check", "vec", "mathbb", "mathcal", "mathbf"}
WORDS = {"text", "texttt", "textbf", "mathrm", "operatorname", "label", "tag", "begin", "end"}  # their argument is none
NAMES = {"max", "min", "star", "ast"}  # below or above a letter, a part of its name
INDICES = set("ijklsnmceyK1234567890")  # below a letter, which of them is meant; a round t below it is part of its name
CODE = {"code-block", "code", "csv-table", "toctree", "bibliography", "image", "figure", "raw", "literalinclude"}
TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[A-Za-z0-9]|[{}_^']|\S")
FENCED = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,})(?:\{(?P<name>[\w:-]+)\}(?P<title>.*)|.*)\n(?P<body>(?:.*\n)*?) *(?P=fence) *$",
    re.MULTILINE,
)


class Use(NamedTuple):
    """A letter as it stands in a formula: its accent, the names and the number of indices below it.

    inside: whether it stands below or above something itself.
    """

    accent: str
    letter: str
    names: frozenset[str]
    indices: int
    inside: bool = False

    def shown(self) -> str:
        below = [*sorted(self.names), *"ijk"[: self.indices]]
        return (f"{self.accent} {self.letter}" if self.accent else self.letter) + (
            "_" + ",".join(below) if below else ""
        )


# --- formulas of a text ---


def formulas(text: str) -> list[str]:
    """Every formula of a MyST text: $...$, $$...$$, math directives and roles; nothing from code."""
    found = []

    def opened(fence: re.Match) -> str:
        """What a directive leaves of itself in the prose: its title and its text."""
        name, title, body = fence["name"] or "code", fence["title"] or "", fence["body"]
        if name == "math":
            found.append(re.sub(r"^\s*:[\w-]+:.*$", "", body, flags=re.MULTILINE))
        return "" if name in CODE or name == "math" else title + "\n" + FENCED.sub(opened, body)

    text = FENCED.sub(opened, text)
    found += re.findall(r"\{math\}`([^`]*)`", text)
    text = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", " ", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        pieces = re.findall(r"(?<!\\)\$\$(.+?)\$\$|(?<!\\)\$((?:\\.|[^$\\])+)\$", paragraph, re.DOTALL)
        found += [long or short for long, short in pieces]
    return found


def pages(book: Path) -> Iterator[tuple[str, str]]:
    """Name and prose of every page: chapters, other pages, and the methods' cards."""
    for path in sorted(book.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield path.stem, "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for path in sorted(book.glob("*.md")):
        yield path.stem, path.read_text(encoding="utf-8")
    for path in sorted((book / "methods").glob("*.md")):
        yield "map", path.read_text(encoding="utf-8")  # a card repeats its row of the map


# --- letters of a formula ---


def letters(formula: str) -> list[Use]:
    """Every letter of a formula, those below and above others too."""
    tokens = TOKEN.findall(formula)
    found: list[Use] = []
    _read(tokens, 0, found, False)
    return found


def _group(tokens: list[str], at: int) -> tuple[list[str], int]:
    """What stands in the braces at a place, or the one token there; and the place behind it."""
    if at >= len(tokens):
        return [], at
    if tokens[at] != "{":
        return [tokens[at]], at + 1
    depth, end = 1, at + 1
    while end < len(tokens) and depth:
        depth += {"{": 1, "}": -1}.get(tokens[end], 0)
        end += 1
    return tokens[at + 1 : end - 1], end


def _is_letter(token: str) -> bool:
    return (len(token) == 1 and token.isalpha()) or GREEK.fullmatch(token) is not None


def _read(tokens: list[str], at: int, found: list[Use], inside: bool) -> None:
    while at < len(tokens):
        token, at = tokens[at], at + 1
        accent = ""
        if token[0] == "\\" and token[1:].rstrip("*") in WORDS:
            at = _group(tokens, at)[1]
        elif token[0] == "\\" and token[1:] in ACCENTS:
            body, at = _group(tokens, at)
            if len(body) != 1 or not _is_letter(body[0]):
                _read(body, 0, found, inside)
            else:
                accent, token = token[1:], body[0]
        if _is_letter(token):
            below, above, at = _scripts(tokens, at)
            names, count = _names(below)
            names |= {"star" for piece in above if piece == ["\\star"]}
            found.append(Use(accent, token.lstrip("\\"), frozenset(names), count, inside))
            for script in (
                *([token for token in script if token.lstrip("\\") not in names] for script in below),
                *above,
            ):
                _read(script, 0, found, True)
        elif token in "_^":
            script, at = _script(tokens, at)
            _read(script, 0, found, True)


def _script(tokens: list[str], at: int) -> tuple[list[str], int]:
    """The script at a place: a group, or one token with its own argument."""
    if at < len(tokens) and tokens[at][0] == "\\" and tokens[at][1:] in WORDS | ACCENTS:
        body, end = _group(tokens, at + 1)
        return [tokens[at], "{", *body, "}"], end
    return _group(tokens, at)


def _scripts(tokens: list[str], at: int) -> tuple[list[list[str]], list[list[str]], int]:
    below, above = [], []
    while at < len(tokens) and tokens[at] in ("_", "^", "'"):
        if tokens[at] == "'":
            at += 1
            continue
        where = below if tokens[at] == "_" else above
        script, at = _script(tokens, at + 1)
        where.append(script)
    return below, above, at


def _names(below: list[list[str]]) -> tuple[set[str], int]:
    """The names and the number of indices that scripts below a letter hold."""
    names, count = set(), 0
    for script in below:
        k = 0
        while k < len(script):
            token, k = script[k], k + 1
            if token[0] == "\\" and token[1:] in WORDS:
                body, k = _group(script, k)
                names.add("".join(body))
            elif token[0] == "\\" and token[1:] in NAMES:
                names.add(token[1:])
            elif token in ("_", "^"):
                k = _group(script, k)[1]
            elif token in INDICES and (token != "K" or len(script) > 1):
                count += not token.isdigit() or len(script) == 1
            elif _is_letter(token):
                names.add(token.lstrip("\\"))
    return names, count
