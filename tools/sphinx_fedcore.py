"""The book's Sphinx extension.

At the start of a build the package writes the colour tokens, the playground's CSS and script, shared by all pages, and
the landing page's picture, so that no copy becomes outdated.  The extension numbers figures, adds OpenGraph metadata,
the quizzes and what a link shows before it is followed, and, if `BOOK_URL` and `BOOK_REPOSITORY` give the book's
address, a site map and launch buttons.  It also converts docstrings, which are plain text and not reStructuredText:
`x_prev`, `*` and `|` are literal, text in backquotes is code, an indented paragraph is an example, and a sentence that
begins with "name:" explains a parameter and gets its own paragraph.
"""

from __future__ import annotations

import csv
import hashlib
import html
import itertools
import os
import posixpath
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from docutils import nodes

NAMED = r"[a-z_]\w*(?:, [a-z_]\w*)*: "


def plain(lines: list[str]) -> list[str]:
    """Convert a docstring's lines to reStructuredText that shows the same words."""
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
    from fedbook.live import base, playground
    from fedbook.pictures.widgets import asset

    made = {
        "assets/tokens.css": asset("tokens.css"),
        "assets/playground.css": base.page_style(),
        "assets/playground.js": base.page_script(),
        "playground.html": playground.playground().html(alone=False),
    }
    for name, text in made.items():
        (Path(app.srcdir) / "book" / name).write_text(text, encoding="utf-8")


def docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain(lines)


def addresses(app: Any, config: Any) -> None:
    """Set version and date, and the options that depend on the book's address; without it they stay off."""
    config.copyright += edition()
    config.html_baseurl = os.environ.get("BOOK_URL", "").rstrip("/")
    config.myst_substitutions = {"report": "Tell those who gave you the book."}
    if repository := os.environ.get("BOOK_REPOSITORY"):
        config.myst_substitutions = {"report": f"[Open an issue]({repository}/issues)."}
        config.html_theme_options |= {
            "repository_url": repository, "use_repository_button": True, "use_issues_button": True,
            "repository_branch": "launch",  # whose chapters install the book: tools/launch.py
            "launch_buttons": {"notebook_interface": "jupyterlab", "binderhub_url": "https://mybinder.org",
                               "colab_url": "https://colab.research.google.com"},
        }  # fmt: skip


def edition() -> str:
    """The version, and the date of the last commit, so that one commit gives one footer; elsewhere no date."""
    import fedcore

    try:
        command = ["git", "-C", str(Path(fedcore.__file__).parent), "log", "-1", "--format= of %cs"]
        date = subprocess.run(command, capture_output=True, text=True, check=False).stdout.rstrip()
    except OSError:  # no git
        date = ""
    return f", version {fedcore.__version__}{date}"


def numbered(body: str, chapter: str) -> str:
    """The page with a number before each figure's caption, and an anchor for links."""
    count = itertools.count(1)

    def number(found: re.Match[str]) -> str:
        at = f"{chapter}.{next(count)}" if chapter else str(next(count))
        name = f"figure-{at.replace('.', '-')}"
        head = re.sub(r"^<figure", f'<figure data-figure="{name}"', found[0])
        return re.sub(r"<figcaption>$", f'<figcaption><b class="fc-label" id="{name}">Figure {at}.</b>', head)

    return re.sub(r'<figure class="fc-p(?:icture|g)\b(?:(?!</figure>).)*?<figcaption>', number, body, flags=re.DOTALL)


def readable(body: str) -> str:
    """The page without markup that misleads screen readers: general labels that hide the names of folded cells, empty
    headers, a list of works that are no list items, duplicate ids, and the lines of a long signature, which Sphinx
    writes as a definition list without terms.
    """
    body = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    body = re.sub(r"<th[^>]*>(<p></p>)?</th>", "<td></td>", body)  # the corner of a table is not a header
    body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')

    def lines(found: re.Match[str]) -> str:
        inner = found[1].replace("<dd>", '<span class="fc-parameter">').replace("</dd>", "</span>")
        return f"<span>{inner}</span>"

    named: set[str] = set()

    def once(found: re.Match[str]) -> str:  # for proofs, and pictures named like their chapter
        again = found[2] in named
        named.add(found[2])
        return found[1] if again else found[0]

    body = re.sub(r'(<[a-z][^>]*?) id="([^"]*)"', once, body)
    return re.sub(r'<dl>\s*(<dd><(?:em|span) class="sig-param.*?)</dl>', lines, body, flags=re.DOTALL)


def quiz(rows: list[dict[str, str]]) -> str:
    """A chapter's questions, folded; book/assets/quiz.js answers.  `rows` are lines of book/quizzes.csv, whose texts
    may have formulas between dollars."""

    def words(text: str) -> str:
        formula = r'<span class="math notranslate nohighlight">\\(\1\\)</span>'
        return re.sub(r"\$([^$]+)\$", formula, html.escape(text, quote=False))

    questions = ""
    for k, row in enumerate(rows, 1):
        given = filter(None, (row[name] for name in ("right", "wrong_1", "wrong_2", "wrong_3")))
        answers = sorted(given, key=lambda text: hashlib.sha256(text.encode()).digest())  # the right one is anywhere
        choices = "".join(
            f'<label><input type="radio" name="question-{k}"{" data-right" if text == row["right"] else ""}> '
            f"<span>{words(text)}</span></label>"
            for text in answers
        )
        questions += (
            f"<fieldset><legend>{k}. {words(row['question'])}</legend>{choices}"
            f'<p role="status"></p><template>{words(row["why"])}</template></fieldset>'
        )
    return f'<details class="fc-fold fc-quiz"><summary>Test yourself: three questions</summary>{questions}</details>'


TARGET = r'<(?:dt|div class="(?:proof|math|citation)\b[^>]*) id="{}"'  # a term, a theorem, an equation, a work


def tip(text: str, name: str) -> str:
    """What a link to `name` in the page `text` shows: the element of this name, or a term's definition, without links
    and names of its own; empty if it is none of TARGET."""
    if not (found := re.search(TARGET.format(re.escape(name)), text)):
        return ""
    kind = "dd" if found[0].startswith("<dt") else "div"
    depth, start = 0, text.index(f"<{kind}", found.start())
    for tag in re.finditer(rf"<(/?){kind}\b[^>]*>", text[start:]):
        depth += -1 if tag[1] else 1
        if not depth:
            break
    shown = text[start : start + tag.end()].replace("<dd", "<div").replace("</dd>", "</div>")
    shown = re.sub(r'<a class="headerlink".*?</a>|</?a\b[^>]*>', "", shown)
    return re.sub(r' (?:id|role)="[^"]*"', "", shown)


def with_tips(name: str, pages: dict[str, str]) -> str:
    """The page `name` of `pages` (address -> HTML) with a template for each link that assets/hover.js shows."""
    text, tips = pages[name], ""
    for link in dict.fromkeys(re.findall(r'<a class="reference internal" href="([^"]*#[^"]+)"', text)):
        at, _, target = link.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(name), at)) if at else name
        if shown := tip(pages.get(there, ""), target):
            tips += f'<template data-for="{link}">{shown}</template>\n'
    return text.replace("</body>", f"{tips}</body>")


def page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Number a page's figures, and add its quiz and its metadata."""
    # Cells do not run in the page; thebe's settings, which are included twice, would raise a script error.
    context["script_files"] = [f for f in context["script_files"] if "thebe" not in f"{f} {vars(f)}".lower()]
    if doctree is None:
        return
    chapter = ".".join(map(str, app.env.toc_secnumbers.get(name, {}).get("", ())))
    context["body"] = readable(numbered(context["body"], chapter))
    with (Path(app.srcdir) / "book" / "quizzes.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if f"book/{row['chapter']}" == name]
    if rows:
        before = '<section id="in-short">'
        context["body"] = context["body"].replace(before, f"{quiz(rows)}\n{before}", 1)
    words = next((p.astext() for p in doctree.findall(nodes.paragraph) if len(p.astext()) > 40), context["title"])
    title = re.sub("<.*?>", "", context["title"])
    about = {"og:type": "article", "og:site_name": app.config.html_title, "og:title": title,
             "og:description": textwrap.shorten(words, 200, placeholder=" ...")}  # fmt: skip
    if base := app.config.html_baseurl:
        about |= {"og:url": f"{base}/{name}.html", "og:image": f"{base}/_static/card.png"}
    tags = [f'<meta property="{key}" content="{html.escape(value)}">' for key, value in about.items()]
    tags.append(f'<meta name="description" content="{html.escape(about["og:description"])}">')
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


# Labels of the theme's buttons that have none, or whose label hides their text.
SEARCH = 'search-button-field search-button__button pst-js-only" title="Search"'
BUTTONS = {
    '<summary><span class="toctree-toggle"': '<summary aria-label="pages of this section"><span class="toctree-toggle"',
    f'{SEARCH} aria-label="Search"': SEARCH,
}


def finished(app: Any, error: Exception | None) -> None:
    """Label the theme's buttons, add what links show, and write a site map if the book has an address."""
    if error is not None:
        return
    out = Path(app.outdir)
    files = [*out.glob("*.html"), *out.glob("book/**/*.html")]
    pages = {f.relative_to(out).as_posix(): f.read_text(encoding="utf-8") for f in files}
    for name in pages:
        text = with_tips(name, pages)
        for before, after in BUTTONS.items():
            text = text.replace(before, after)
        (out / name).write_text(text, encoding="utf-8")
    if app.config.html_baseurl:
        pages = "".join(f"<url><loc>{app.config.html_baseurl}/{name}.html</loc></url>" for name in app.env.found_docs)
        text = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{pages}</urlset>'
        (Path(app.outdir) / "sitemap.xml").write_text(text, encoding="utf-8")


def unannotated(signature: str) -> str:
    """A signature with `int` for `Annotated[int, Within(low=1, ...)]`; the text below it states the ranges."""
    while found := re.search(r"~?(?:typing|types|torch)?\.?Annotated\[", signature):
        depth, at, comma = 1, found.end(), None
        while depth and at < len(signature):
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(signature[at], 0)
            if signature[at] == "," and depth == 1 and comma is None:
                comma = at
            at += 1
        signature = signature[: found.start()] + signature[found.end() : comma] + signature[at:]
    return signature


def signature(app: Any, what: str, name: str, obj: Any, options: Any, given: str | None, returned: str | None) -> Any:
    return given and unannotated(given), returned and unannotated(returned)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("config-inited", addresses, priority=100)
    app.connect("builder-inited", playground)
    app.connect("html-page-context", page)
    app.connect("build-finished", finished)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    return {"parallel_read_safe": True}
