"""Interactive pictures: settings that Python code and the reader can change, as HTML, and as an anywidget in Jupyter.

In Jupyter a picture is displayed as the same HTML, which a saved notebook keeps and which works without a kernel.
While a kernel runs, the HTML figure and the model of a hidden widget share one state; a key connects the two.

Shared scripts and styles are `live.js` and `playground.css` in this folder; each picture has its own files beside them.
"""

from __future__ import annotations

import copy
import html
import importlib
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
from ..pictures.recomputed import can_be_live
from ..pictures.styles import usual
from ..pictures.widgets import asset


class Live(ABC):
    """An interactive picture: a state with attributes to read and set, displayed as HTML and connected to a widget.

    A subclass names the `scripts` and `styles` that it needs besides the shared ones and the CSS `classes` of its
    figure; it checks states, and provides the configuration, the alt text, and the static picture for pages without
    scripts.
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
        """The validated state in plain Python types.  Raises TypeError or ValueError with value, range and remedy."""

    def config(self) -> dict[str, Any]:
        """The data for the page's script: name, caption and state; a subclass adds what it needs for drawing."""
        return {"name": self.name, "caption": self.caption, "state": self.state}

    @abstractmethod
    def alt(self) -> str:
        """The alt text of the picture."""

    @abstractmethod
    def still(self) -> str:
        """The HTML shown before the script runs, and in pages without scripts."""

    @property
    def state(self) -> dict[str, Any]:
        """A copy of all settings, in the form that the page's script uses."""
        return copy.deepcopy(self._state)

    def set(self, **settings: Any) -> None:
        """Change settings by name; a displayed picture follows.  Raises ValueError for an unknown name, and the errors
        of the function that made the picture."""
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
        """The static picture with its alt text and data, and by default also the style and script for interaction.

        alone=False leaves out style and script; the page must include `page_style()` and `page_script()`, as the book's
        pages do.
        """
        return self._html(alone, self.config())

    def _html(self, alone: bool, config: Mapping[str, Any]) -> str:
        # Without "<" no text in the data can close the script element around the data.
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
        """The picture's script as one JavaScript module."""
        return _script("live.js", *cls.scripts)

    @classmethod
    def style(cls) -> str:
        """The picture's CSS."""
        return _style("playground.css", *cls.styles)

    @cached_property
    def widget(self) -> Any:
        """The widget that shares this state (made once, used by all displays).

        The widget can also be displayed itself, for front ends in which the scripts of HTML output cannot reach the
        kernel.  Raises ImportError without anywidget; the HTML needs no package.
        """
        widget = _widget_class(type(self))(state=self.state, config=self.config() | {"key": uuid.uuid4().hex})
        widget.observe(self._moved, names="state")
        return widget

    def _moved(self, change: Any) -> None:
        """Take over the state that the reader has changed in the displayed picture."""
        self._state = self.checked({**self._state, **change["new"]})

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # The pages that show the outputs of a batch run include style and script once for all pictures.
        alone = not os.environ.get("FEDCORE_BATCH")
        config = self.config() | ({"key": self.widget.config["key"]} if can_be_live() else {})
        return {"text/html": self._html(alone, config), "text/plain": repr(self)}


@cache
@needs("pictures", "a live picture")
def _widget_class(kind: type[Live]) -> type:
    import anywidget
    import traitlets

    class LiveWidget(anywidget.AnyWidget):
        """The page's script with a state that is synchronised with Python."""

        _esm, _css = kind.module(), kind.style()
        state = traitlets.Dict().tag(sync=True)
        config = traitlets.Dict().tag(sync=True)

    return LiveWidget


def look(method: str) -> dict[str, str]:
    """The style of a method, given by its class: colours on light and dark pages, marker and dashes."""
    colour, marker, line = styles.METHODS[usual(method)]
    return {"colour": colour, "dark": styles.dark(colour), "marker": marker, "dash": "" if line == "-" else "7 4"}


def page_script() -> str:
    """The scripts of all pictures as one plain script, because pages opened from files cannot load modules."""
    scripts = (f"{{\n{_script(name)}\n}}" for kind in _kinds() for name in kind.scripts)
    text = "\n".join((_script("live.js"), *scripts))
    plain = re.sub(r"^export default .*", "", text, flags=re.MULTILINE)
    return f'(() => {{\n"use strict";\n{plain}\n}})();\n'


def page_style() -> str:
    """The CSS of all pictures."""
    return _style("playground.css", *(name for kind in _kinds() for name in kind.styles)) + "\n"


def _script(*names: str) -> str:
    return _tight("\n".join(map(asset, names)))


def _tight(text: str) -> str:
    """A script without the spaces around operators; no string in it contains such an operator."""
    text = re.sub(r" (=>|[=!]==|&&|\|\||\+=|-=|[?]{1,2}|>=|<=|[+\-/:*](?! [+-])) ", r"\1", text)
    return re.sub(r"(?<=\)) (?={)|\b(?<=if|or) (?=\()|(?<=else) (?={)|(?<=}) (?=else)", "", text)


def _style(*names: str) -> str:
    """CSS without redundant spaces and semicolons."""
    return re.sub(r";(?=})|(?<=[,>]) | (?=>)", "", "\n".join(map(asset, names)))


def _kinds() -> list[type[Live]]:
    for module in ("playground", "submodel_playground", "mask_playground"):
        importlib.import_module(f"{__package__}.{module}")
    return Live.__subclasses__()
