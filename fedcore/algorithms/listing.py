"""A method on one page: its equation and its code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from ..support import checks
from .method import Method

VERBS = ("broadcast", "direction", "aggregate")
BESIDE = ("start", "client_start", "local_work", "prepare", "personal")


@dataclass(frozen=True)
class Shown:
    """A method's equation and code: `text` at a prompt, highlighted in a notebook and in the book."""

    name: str
    equation: str
    code: str

    @property
    def text(self) -> str:
        return f"{self.equation}\n\n{self.code}".strip()

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```text\n{self.equation}\n```\n\n" * bool(self.equation) + f"```python\n{self.code}\n```"


def shown(method: Method | type[Method]) -> Shown:
    """The equation of a method, with its source, from the docstring of its class, and the code of its verbs.

    The verbs are broadcast, direction of a local step, and aggregate.  Those that the class inherits from FedAvg's
    round are left out, unless it inherits all three.  Its other hooks, such as `start` and `prepare`, follow.

    Raises TypeError for anything but a method or its class.
    """
    kind: Any = method if inspect.isclass(method) else type(method)
    if not issubclass(kind, Method):
        raise TypeError(f"method={checks.brief(method)}; use a method such as fc.FedUp(0.05), or its class")
    own = [name for name in (*VERBS, *BESIDE) if getattr(kind, name) is not getattr(Method, name)]
    verbs = own if set(own) & set(VERBS) else [*VERBS, *own]
    code = "\n".join(dedent(inspect.getsource(getattr(kind, name))) for name in verbs).rstrip()
    return Shown(kind.__name__, _equation(inspect.getdoc(kind) or kind.__name__), code)


def _equation(docstring: str) -> str:
    """The first two paragraphs, and what an introduction that ends with a colon introduces."""
    paragraphs = docstring.split("\n\n")
    end = min(2, len(paragraphs))
    while end < len(paragraphs) and paragraphs[end - 1].endswith(":"):
        end += 1
    return "\n\n".join(paragraphs[:end])


def lines(*functions: Callable[..., Any]) -> Shown:
    """The source of functions without their docstrings, one below the other.

    Raises TypeError for an object without source.
    """
    code = []
    for function in functions:
        text = dedent(inspect.getsource(function))
        first = ast.parse(text).body[0].body[0]
        kept = text.splitlines()
        if inspect.getdoc(function) and isinstance(first, ast.Expr):
            del kept[first.lineno - 1 : first.end_lineno]
        code.append("\n".join(kept))
    return Shown(", ".join(function.__name__ for function in functions), "", "\n\n\n".join(code))
