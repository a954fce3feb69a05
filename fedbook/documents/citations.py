"""`cite` and `references`: works on methods, data and models, from the book's bibliography."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from fedcore.support import checks
from fedcore.support.extras import needs

from ..pictures.widgets import Html

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")


@cache
def _bibliography() -> tuple[dict[str, str], dict[str, list[str]]]:
    """The entries of the bibliography as key -> BibTeX, and name in the code -> keys of the works to cite."""
    with needs("pictures", "fc.cite"):
        from pybtex.database import BibliographyData, parse_file
        from pybtex.database.output.bibtex import Writer
    entries, works = parse_file(BIBLIOGRAPHY).entries, {}
    for key, entry in entries.items():
        for name in entry.fields.pop("keywords").split(", "):
            works.setdefault(name, []).append(key)
    written = Writer()  # `entry.to_string` would search all installed packages for its plugin at every entry
    return {key: written.to_string(BibliographyData({key: entry})).strip() for key, entry in entries.items()}, works


def cite(*names: object) -> BibTeX:
    """BibTeX entries for methods, data and software, without duplicates, in the order of `names`; a notebook prints
    them.

    `names` are methods, data sets, partitions, models or software by their name in the package
    (`cite("FedUp", "digits")`; case, blanks, `-` and `_` do not matter), the objects and classes
    themselves (`cite(fc.FedUp(alpha=0.05))`), or keys of the bibliography (`cite("zhu2019leakage")`). A FedAvg with
    server momentum also cites the paper that introduced it.

    Raises ValueError for an unknown name, listing the known ones, and for a call without names.
    """
    entries, works = _bibliography()
    known = {_plain(name): keys for name, keys in works.items()} | {_plain(key): [key] for key in entries}
    some = f"known names are {', '.join(list(works)[:8])} and {len(works) - 8} more, and the bibliography's keys"
    if not names:
        raise ValueError(f"cite() needs at least one name; {some}")
    keys: dict[str, None] = {}
    for item in names:
        name = item if isinstance(item, str) else getattr(item, "__name__", type(item).__name__)
        if _plain(name) not in known:
            raise ValueError(f"cite() does not know {checks.brief(name)}; {some}")
        keys |= dict.fromkeys(known[_plain(name)])
        if not isinstance(item, str) and getattr(item, "server_momentum", 0):
            keys |= dict.fromkeys(works["FedAvgM"])
    return BibTeX("\n\n".join(entries[key] for key in keys))


def references(*names: object) -> Html:
    """The works that `cite` names, as a folded list with their links: the end of a chapter.

    Raises ValueError as `cite` does.
    """
    from pybtex.backends.html import Backend
    from pybtex.database import parse_string
    from pybtex.style.formatting.plain import Style  # sorted by author and year

    works = list(Style().format_bibliography(parse_string(cite(*names), "bibtex")))
    backend = Backend("utf-8")
    items = "".join(f"<li>{work.text.render(backend)}</li>" for work in works)
    summary = f"<summary>References ({len(works)})</summary>"
    html = f'<details class="fc-fold fc-references">{summary}<ul>{items}</ul></details>'
    return Html(html, "\n".join(work.text.render_as("text") for work in works))


class BibTeX(str):
    """Text whose repr is the text itself, so that a notebook or a prompt shows its lines."""

    __slots__ = ()
    __repr__ = str.__str__


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()
