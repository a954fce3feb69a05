"""Live pictures: settings that Python and a hand can set, HTML for pages, and a widget in anywidget's form for Jupyter.

In Jupyter too a picture is its HTML, which a saved notebook keeps and which moves without a kernel.  While the kernel
runs, the figure and the widget's model, which is shown nowhere, hold one state: they find each other by a key.

Scripts and styles stand in `assets`: what all pictures share in `live.js` and `playground.css`, each picture's beside.
"""

from __future__ import annotations

import copy
import html
import importlib.util
import json
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, ClassVar

from fedcore.support import checks
from fedcore.support.extras import needs

from ..pictures import styles
from ..pictures.widgets import asset


class Live(ABC):
    """A live picture's state, readable and settable by name, and its faces: HTML, and a widget in Jupyter.

    A subclass says which `scripts` and `styles` of `assets` it needs beside the shared ones, the `classes` of its
    figure, checks states, and gives configuration, words, and the still picture that stands where no script runs.
    """

    scripts: ClassVar[tuple[str, ...]]
    styles: ClassVar[tuple[str, ...]] = ()
    classes: ClassVar[str] = "fc-pg"

    def __init__(self, state: Mapping[str, Any], name: str, caption: str) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"name={checks.brief(name)} cannot stand in an address; use letters, digits and _, such as 'drift'"
            )
        if not isinstance(caption, str):
            raise TypeError(f"caption={checks.brief(caption)} is no text; give a text such as 'Drag the squares.'")
        self._state, self.name, self.caption = self.checked(state), name, caption

    @staticmethod
    @abstractmethod
    def checked(given: Mapping[str, Any]) -> dict[str, Any]:
        """The state with numbers of plain Python; raises TypeError or ValueError with value, range and remedy."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What the page's script is given: name, caption, state, and what else it draws with."""

    @abstractmethod
    def alt(self) -> str:
        """The picture in words."""

    @abstractmethod
    def still(self) -> str:
        """HTML that stands in the page before the script runs, and where none does."""

    @property
    def state(self) -> dict[str, Any]:
        """A copy of all settings, as the page's script has them."""
        return copy.deepcopy(self._state)

    def set(self, **settings: Any) -> None:
        """Change settings by their names; a live picture follows.  Raises what the function that made it raises."""
        unknown = sorted(set(settings) - set(self._state))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no setting of a playground; {checks.nearest(unknown[0], self._state)}")
        self._state = self.checked({**self._state, **settings})
        if "widget" in vars(self):
            self.widget.state = self.state

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self._state:
            return self.state[name]
        raise AttributeError(f"a playground has no {name!r}; its settings are {', '.join(self._state)}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name in vars(self).get("_state", {}):
            self.set(**{name: value})
        elif name.startswith("_") or name in ("name", "caption"):
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(f"a playground has no setting {name!r}; {checks.nearest(name, self._state)}")

    def html(self, alone: bool = True) -> str:
        """HTML: a still picture with its words and, where it stands alone, the style and script that make it move.

        alone=False: the page that shows it brings `page_style()` and `page_script()`, as the book's pages do.
        """
        return self._html(alone, self.config())

    def _html(self, alone: bool, config: Mapping[str, Any]) -> str:
        # Without "<" no text in the data can end the script element that holds it.
        data = json.dumps(config, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        caption = f"\n<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        style = f"\n<style>\n{self.style()}\n</style>" if alone else ""
        script = f'\n<script type="module">\n{self.module()}\n</script>' if alone else ""
        return (
            f'<figure class="{self.classes}" id="{self.name}">{style}\n<div class="pg-body">{self.still()}</div>'
            f'{caption}\n<script type="application/json">{data}</script>{script}\n</figure>'
        )

    @classmethod
    def module(cls) -> str:
        """The picture's script, one JavaScript module."""
        return _script("live.js", *cls.scripts)

    @classmethod
    def style(cls) -> str:
        """The picture's style."""
        return _style("playground.css", *cls.styles)

    @cached_property
    def widget(self) -> Any:
        """The live widget whose state is this one's (made once, shared by all displays).

        Shown by itself it is the picture once more, for places where a page's scripts do not reach the kernel.
        Raises ImportError where anywidget is missing; the HTML face needs nothing.
        """
        widget = _widget_class(type(self))(state=self.state, config=self.config() | {"key": uuid.uuid4().hex})
        widget.observe(self._moved, names="state")
        return widget

    def _moved(self, change: Any) -> None:
        """A hand on the live picture has changed its state."""
        self._state = self.checked({**self._state, **change["new"]})

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # A batch run's outputs are shown by pages that bring style and script, once for all of them.
        alone = not os.environ.get("FEDCORE_BATCH")
        config = self.config() | ({"key": self.widget.config["key"]} if can_be_live() else {})
        return {"text/html": self._html(alone, config), "text/plain": repr(self)}


def can_be_live() -> bool:
    """Whether live widgets make sense: not switched off, anywidget there, and a kernel that would answer."""
    if os.environ.get("FEDCORE_LIVE", "1") == "0" or not importlib.util.find_spec("anywidget"):
        return False
    from IPython import get_ipython  # comes with anywidget

    return getattr(get_ipython(), "kernel", None) is not None


@cache
@needs("pictures", "a live picture")
def _widget_class(kind: type[Live]) -> type:
    import anywidget
    import traitlets

    class LiveWidget(anywidget.AnyWidget):
        """The page's script, with its state in both places."""

        _esm, _css = kind.module(), kind.style()
        state = traitlets.Dict().tag(sync=True)
        config = traitlets.Dict().tag(sync=True)

    return LiveWidget


def look(method: str) -> dict[str, str]:
    """The colours of a method, called as the field writes its name, by day and by night, its marker and its dashes."""
    colour, marker, line = styles.METHODS[method]
    return {"colour": colour, "dark": styles.dark(colour), "marker": marker, "dash": "" if line == "-" else "7 4"}


def page_script() -> str:
    """All pictures' scripts as one plain script: pages that are opened from files may load no modules."""
    scripts = (f"{{\n{_script(name)}\n}}" for kind in _kinds() for name in kind.scripts)
    text = "\n".join((_script("live.js"), *scripts))
    plain = re.sub(r"^export default .*", "", text, flags=re.MULTILINE)
    return f'(() => {{\n"use strict";\n{plain}\n}})();\n'


def page_style() -> str:
    """All pictures' styles."""
    return _style("playground.css", *(name for kind in _kinds() for name in kind.styles)) + "\n"


def _script(*names: str) -> str:
    """Scripts without the spaces around signs that no text of theirs has."""
    text = re.sub(r" (=>|[=!]==|&&|\|\||\+=|-=|[?]{1,2}|>=|<=|\*) ", r"\1", "\n".join(map(asset, names)))
    return re.sub(r"(?<=\)) (?={)|\b(?<=if|or) (?=\()|(?<=else) (?={)|(?<=}) (?=else)", "", text)


def _style(*names: str) -> str:
    """Styles without the spaces and semicolons that say nothing."""
    return re.sub(r";(?=})|(?<=[,>]) | (?=>)", "", "\n".join(map(asset, names)))


def _kinds() -> list[type[Live]]:
    return Live.__subclasses__()
