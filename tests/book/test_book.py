"""The book as a reader finds it: what was built, what is stored, and that the flow behind it fails when it should."""

import ast
import contextlib
import csv
import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import types
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fedbook import pages
from fedbook.results.notebooks import forks
from tools import book, chapter_runs, expect, sphinx_fedcore

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = book.chapters(ROOT)
OF_NO_SOURCE = ("your_own", "systems", "known", "gossip")  # show no claim of a document
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code" and cell.source.strip()]


def calls(path, name):
    """All calls of `name` or `something.name` in the code of a notebook, in order."""
    plain = [re.sub(r"^[%!].*$", "pass", cell.source, flags=re.MULTILINE) for cell in code_cells(path)]
    nodes = [node for source in plain for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [node for node in nodes if name in (getattr(node.func, "attr", None), getattr(node.func, "id", None))]


STORED = {"grown", "speed"}  # functions of pictures that look up stored results


@each_chapter
def test_a_picture_to_move_takes_any_value_in_jupyter_unless_it_shows_stored_results(chapter):
    still = {
        call.args[0].id for call in calls(chapter, "explore") if "live" not in {word.arg for word in call.keywords}
    }
    assert still <= STORED, f"{chapter.stem}: give live= to fc.explore({', '.join(still - STORED)}, ...)"


SETUP = "from fedbook import pages\npages.parameters(profile=profile, seed=seed)"
RECORD = "import json, os\njson.dump({'seed': seed}, open(os.environ['FEDCORE_RECORD'], 'w'))"


def a_chapter(folder, *sources, name="small", setup="pass", ending=RECORD):
    """A notebook in `folder` made as chapters are: parameters, check, the given cells, record.

    SETUP checks and pages.record(...) records as chapters do; the flow asks for the file alone, and writing it without
    the package leaves out the seconds that importing it takes.
    """
    cells = [new_code_cell(s) for s in ('profile = "quick"\nseed = 0', setup, *sources, ending)]
    cells[0].metadata["tags"] = ["parameters"]
    path = Path(folder) / f"{name}.ipynb"
    language = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(new_notebook(cells=cells, metadata=language), path)
    return path


# ---- the built pages


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def built_pages(html):
    return {page: (html / f"{page}.html").read_text(encoding="utf-8") for page in book.pages(ROOT)}


def requests_of(text):
    """What a browser loads by itself when it opens a page: not links, which a reader follows or does not."""
    for tag, attrs in Elements(text).found:
        loads = tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "object", "image")
        if tag == "link":
            loads = (attrs.get("rel") or "") in ("stylesheet", "icon", "shortcut icon", "preload", "modulepreload")
        yield from (attrs[name] or "" for name in ("src", "href", "data", "srcset") if loads and name in attrs)
    yield from re.findall(
        r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", "".join(re.findall(r"<style.*?</style>", text, re.S))
    )


def outside(addresses):
    return [address for address in addresses if re.match(r"\s*(https?:)?//", address)]


def test_each_page_of_the_contents_was_built_and_no_other(built_book):
    built = {str(path.relative_to(built_book).with_suffix("")) for path in (built_book / "book").glob("**/*.html")}
    assert built == set(book.pages(ROOT))
    assert len(built) >= 6


def test_opening_the_folder_leads_to_the_landing_page(built_book):
    assert 'url=book/index.html"' in (built_book / "index.html").read_text(encoding="utf-8")


def test_no_stored_chapter_or_result_weighs_more_than_2_mib():
    files = [*ROOT.glob("book/*.ipynb"), *ROOT.glob("results/**/*.json")]
    assert max((file.stat().st_size, file.name) for file in files) < (2**21,)


def test_no_page_weighs_more_than_3_mb_and_half_of_that_on_its_way(built_book):
    pages = {page: text.encode() for page, text in built_pages(built_book).items()}
    assert max(map(len, pages.values())) < 3e6
    sent = {page: len(gzip.compress(text)) / 1e6 for page, text in pages.items()}
    assert max(sent.values()) < 1.5, sent


def test_no_page_asks_another_machine_for_anything(built_book):
    for page, text in built_pages(built_book).items():
        assert not outside(requests_of(text)), page
    for sheet in (built_book / "_static").glob("**/*.css"):
        found = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)", sheet.read_text(encoding="utf-8"))
        assert not outside(found), sheet.name


def test_the_request_check_sees_a_foreign_address():
    loads = '<script src="https://x.y/a.js">', '<img src="//x.y/a.png">', '<link rel="stylesheet" href="http://x.y">'
    for tag in (*loads, "<style>a{b:url(https://x.y)}</style>"):
        assert outside(requests_of(f"<html>{tag}</html>"))


def test_mathjax_is_in_the_build(built_book):
    (script,) = {s for s in requests_of(built_pages(built_book)["book/index"]) if "mathjax" in s.lower()}
    assert (built_book / "book" / script).resolve().is_file()


def torn(text):
    """Formulas that end before their environment does, and pieces of formulas among the words."""
    formulas = re.findall(
        r'<(?:div|span) class="[^"]*\bmath\b[^>]*>(?:\s*<span class="eqno">.*?</span>)?(.*?)</', text, re.S
    )
    yield from (f for f in formulas if f.count(r"\begin{") != f.count(r"\end{"))
    yield from re.findall(r"<p>[^<]*\\(?:begin|end|frac|leftarrow)\b[^<]*</p>", text)


def test_no_formula_of_a_page_is_torn(built_book):
    found = {page: list(torn(text)) for page, text in built_pages(built_book).items()}
    assert not {page: each for page, each in found.items() if each}


def test_a_torn_formula_would_be_noticed():
    whole = (
        r'<div class="math notranslate"><span class="eqno">(1)</span>\[\begin{aligned}a\end{aligned}\]</div><p>text</p>'
    )
    assert not list(torn(whole))
    cut = r'<div class="math notranslate"><span class="eqno">(1)</span>\[\begin{aligned}\]</div>'
    assert list(torn(cut)) == [r"\[\begin{aligned}\]"]
    assert list(torn(r"<p>u &amp;= x \end{aligned}</p>")) == [r"<p>u &amp;= x \end{aligned}</p>"]


def test_each_picture_of_each_page_has_a_text_alternative(built_book):
    for page, text in built_pages(built_book).items():
        for tag, attrs in Elements(text).found:
            assert tag != "img" or (attrs.get("alt") or "").strip(), f"{page}: {str(attrs)[:120]}"


@each_chapter
def test_a_chapter_can_be_downloaded_and_names_no_address_that_nobody_gave(built_book, chapter):
    text = built_pages(built_book)[f"book/{chapter.stem}"]
    assert f"_sources/book/{chapter.name}" in text
    assert "mybinder.org" not in text
    assert not (built_book / "sitemap.xml").exists()


@pytest.fixture(scope="module")
def small_book(tmp_path_factory):
    """A book of two pages in the look of this one, at an address: its folder of HTML."""
    root = tmp_path_factory.mktemp("small")
    skeleton(root)
    (root / "book" / "index.md").write_text("# Title\n\nSome forty letters of a first paragraph, at least.\n", "utf-8")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters:\n- file: book/chapter\n")
    nbformat.write(new_notebook(cells=[new_markdown_cell("# One")]), root / "book" / "chapter.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOOK_URL", "https://x.example/book/")
        patch.setenv("BOOK_REPOSITORY", "https://github.com/me/book")
        return book.render(root / "out" / "html", root=root).parent


def test_a_book_with_an_address_has_launch_buttons_a_site_map_and_what_other_sites_show(small_book):
    text = (small_book / "book" / "index.html").read_text("utf-8")
    assert "https://github.com/me/book" in text
    chapter = (small_book / "book" / "chapter.html").read_text("utf-8")
    assert "https://colab.research.google.com/github/me/book/blob/launch/book/chapter.ipynb" in chapter
    assert "https://mybinder.org/v2/gh/me/book/launch?" in chapter
    assert "<loc>https://x.example/book/book/index.html</loc>" in (small_book / "sitemap.xml").read_text("utf-8")
    shown = {attrs.get("property"): attrs.get("content") for tag, attrs in Elements(text).found if tag == "meta"}
    assert shown["og:description"] == "Some forty letters of a first paragraph, at least."
    assert shown["og:url"] == "https://x.example/book/book/index.html"
    card = shown["og:image"].removeprefix("https://x.example/book/")
    assert (small_book / card).read_bytes()[:4] == b"\x89PNG"
    (icon,) = {attrs["href"] for tag, attrs in Elements(text).found if tag == "link" and "icon" in attrs.get("rel", "")}
    assert (small_book / "book" / icon).resolve().is_file()


def test_a_link_to_a_term_a_theorem_an_equation_or_a_work_carries_its_text_and_others_do_not():
    targets = {
        "term-a": '<dt id="term-a">a<a class="headerlink">#</a></dt><dd><p>A <a href="x">word</a>.</p></dd>',
        "thm-b": '<div class="proof theorem" id="thm-b"><div><p id="c">Let <i>it</i> be.</p></div></div><div>No.</div>',
        "equation-d": '<div class="math notranslate" id="equation-d"><span class="eqno">(1)</span>x</div>',
        "id9": '<div class="citation" id="id9" role="doc-biblioentry"><p>Who.</p></div>',
        "section": '<section id="section"><p>Much.</p></section>',
    }  # fmt: skip
    links = "".join(f'<a class="reference internal" href="../b.html#{name}">x</a>' for name in targets)
    pages = {"book/m/a.html": f"<body>{links * 2}</body>", "book/b.html": "".join(targets.values())}
    found = re.findall(
        r'<template data-for="../b.html#(.*?)">(.*?)</template>', sphinx_fedcore.with_tips("book/m/a.html", pages)
    )
    assert dict(found) == {
        "term-a": "<div><p>A word.</p></div>",
        "thm-b": '<div class="proof theorem"><div><p>Let <i>it</i> be.</p></div></div>',
        "equation-d": '<div class="math notranslate"><span class="eqno">(1)</span>x</div>',
        "id9": '<div class="citation"><p>Who.</p></div>',
    }
    assert len(found) == 4  # once for two links


def test_the_footer_says_version_and_day_of_the_commit_and_errors_have_an_address_only_with_a_repository(monkeypatch):
    def configured():
        config = types.SimpleNamespace(copyright="2025", html_theme_options={})
        sphinx_fedcore.addresses(None, config)
        return config

    monkeypatch.delenv("BOOK_REPOSITORY", raising=False)
    assert re.fullmatch(r"2025, version \d+\.\d+\.\d+( of \d{4}-\d\d-\d\d)?", configured().copyright)
    assert configured().copyright == configured().copyright
    assert "http" not in configured().myst_substitutions["report"]
    monkeypatch.setenv("BOOK_REPOSITORY", "https://github.com/me/book")
    assert "https://github.com/me/book/issues" in configured().myst_substitutions["report"]
    monkeypatch.setenv("PATH", "")  # no git
    assert " of " not in configured().copyright


def test_figures_are_numbered_before_their_captions_with_an_anchor_each():
    body = '<figure class="fc-picture x"><img><figcaption>One.</figcaption></figure>' * 2
    numbered = sphinx_fedcore.numbered("<figure><figcaption>a theme's</figcaption></figure>" + body, "3")
    assert re.findall(r'<figcaption><b class="fc-label" id="(.*?)">(.*?)</b>', numbered) == [
        ("figure-3-1", "Figure 3.1."),
        ("figure-3-2", "Figure 3.2."),
    ]
    assert sphinx_fedcore.numbered("no picture", "3") == "no picture"


def skeleton(root):
    """What a book needs beside its pages."""
    for name in ("_config.yml", "fedbook/documents/references.bib", "tools/sphinx_fedcore.py", "book/quizzes.csv"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "book" / "assets", root / "book" / "assets")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\n")


def test_a_broken_reference_turns_the_build_red(tmp_path):
    skeleton(tmp_path)
    (tmp_path / "book" / "index.md").write_text("# Title\n\nSee {eq}`nowhere`.\n")
    with pytest.raises(book.ChapterFailed, match="nowhere"):
        book.render(tmp_path / "out" / "html", root=tmp_path)


def test_every_test_of_built_pages_is_run_by_make_book():
    """`make test` leaves out what is marked `built`, which is what asks for the fixture of the built pages."""
    files = (ROOT / "tests").rglob("test_*.py")
    asking = {path.relative_to(ROOT).as_posix() for path in files if "built_book" in path.read_text("utf-8")}
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\nbook: env\n")[1].split("\n\n")[0]
    assert "-m built" in recipe
    assert asking == set(re.findall(r"tests/\S+", recipe))


# ---- the stored chapters


def test_the_book_has_its_chapters():
    """A chapter's number is its place in _toc.yml, so that its file's name, and its address, outlive a new order."""
    assert not [path.stem for path in CHAPTERS if any(c.isdigit() for c in path.stem)]
    assert {path.stem for path in CHAPTERS} == {path.stem for path in (ROOT / "book").glob("*.ipynb")}
    assert len(CHAPTERS) >= 3


@each_chapter
def test_a_chapter_is_stored_as_refresh_writes_it_with_every_cell_run(chapter):
    notebook = read(chapter)
    every = all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip())
    assert every, f"{chapter.name} has cells that were not run: tools/book.py refresh {chapter.stem}"
    stored = chapter.read_text(encoding="utf-8")
    assert book.written(book.normalise(notebook)) == stored, f"run tools/book.py refresh {chapter.stem}"


@each_chapter
def test_a_chapter_checks_all_its_parameters_and_ends_with_its_record(chapter):
    values = book.defaults(chapter)
    for name in ("parameters", "record"):
        assert len(calls(chapter, name)) == 1, f"{chapter.name} needs one call of pages.{name}(...)"
    (call,) = calls(chapter, "parameters")
    assert {"profile", "seed"} <= set(values)
    assert sorted(keyword.arg for keyword in call.keywords) == sorted(values)
    assert values["profile"] == "quick"
    assert "record(" in code_cells(chapter)[-1].source


@pytest.mark.parametrize("chapter", [path for path in CHAPTERS if path.stem not in OF_NO_SOURCE], ids=lambda p: p.stem)
def test_a_chapter_has_a_claim_box_filled_by_code(chapter):
    pages = [str(o.get("data", {}).get("text/html", "")) for cell in code_cells(chapter) for o in cell.outputs]
    assert any('class="fc-claims ' in page for page in pages)


@each_chapter
def test_no_output_shows_an_object_address_or_a_path_of_this_machine(chapter):
    for cell in code_cells(chapter):
        text = json.dumps(
            [{**o, "data": {k: v for k, v in o.get("data", {}).items() if "image" not in k}} for o in cell.outputs]
        )
        text = re.sub(r"base64,[A-Za-z0-9+/=\\n]+", "", text)
        assert not re.search(r" at 0x[0-9a-f]{6,}", text), cell.source[:80]
        assert not paths(text), (cell.source[:80], paths(text)[:3])


def paths(text: str) -> list[str]:
    """Paths from the root of a file system in JSON text, however the machine is laid out; web addresses are none."""
    text = re.sub(r"https?://\S+", "", text.replace("\\n", "\n").replace("\\t", "\t"))
    return re.findall(r"(?<![\w.<])/(?:[\w.-]+/)+[\w.-]+", text)


@pytest.mark.parametrize("message", ["in {}", "line\n{}", 'File "{}"', "file://{}"])
@pytest.mark.parametrize("folder", ["home", "Users", "srv", "root", "anything"])
def test_a_path_of_a_machine_would_be_noticed(message, folder):
    assert paths(json.dumps(message.format("/" + folder + "/someone/file.py")))
    assert not paths(json.dumps("half, 1/2 and m/n; </b></td> https://doi.org/10.1/x.y/z text/html ../shared/x"))


# ---- theorems and notation

PROVED = r"\{prf:(?:theorem|proposition|lemma|corollary)\}.*?:label:\s*(\S+)"


def labels(text):
    return re.findall(PROVED, text, re.DOTALL)


def test_each_theorem_of_a_chapter_has_a_test_of_its_name():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    texts = [cell.source for chapter in CHAPTERS for cell in read(chapter).cells if cell.cell_type == "markdown"]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")]
    for text in texts:
        starts = len(re.findall(r"\{prf:(?:theorem|proposition|lemma|corollary)\}", text))
        assert starts == len(labels(text)), f"a theorem without a label in: {text[:200]}"
        for label in labels(text):
            assert f"def test_{label.replace('-', '_')}(" in tests, f"no test for {label}"


def test_theorem_labels_are_found_in_both_spellings():
    text = "```{prf:theorem} Name\n:label: thm-a\nx\n```\n\n:::{prf:lemma}\n:class: y\n:label: thm-b\n:::"
    assert labels(text) == ["thm-a", "thm-b"]


def test_each_name_of_the_notation_table_exists_in_the_packages():
    known = set()
    for path in (*ROOT.glob("fedcore/**/*.py"), *ROOT.glob("fedbook/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            known |= {
                getattr(node, field)
                for field in ("arg", "attr", "id", "name")
                if isinstance(getattr(node, field, None), str)
            }
            known |= {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
    rows = list(csv.DictReader((ROOT / "book" / "notation.csv").open(encoding="utf-8", newline="")))
    assert len({row["symbol"] for row in rows}) == len(rows) > 15
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row["name in code"])]
    assert names
    assert not set(names) - known


# ---- running chapters


@pytest.fixture(scope="module", params=["a new interpreter", "a fork"])
def kernels(request):
    """The environment with which a chapter's kernel is started in this way."""
    with forks({"PYTHONPATH": str(ROOT)}) if request.param == "a fork" else contextlib.nullcontext({}) as env:
        yield env


def test_a_misspelt_parameter_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(book.ChapterFailed, match="no parameter sede; it takes: profile, seed"):
        book.run_chapter(a_chapter(tmp_path), {"sede": 1}, output=tmp_path / "out.ipynb")
    assert not (tmp_path / "out.ipynb").exists()


def test_a_misspelt_parameter_fails_in_a_plain_papermill_call_too(tmp_path, monkeypatch):
    import papermill

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    chapter, out = str(a_chapter(tmp_path, setup=SETUP)), str(tmp_path / "out.ipynb")
    with pytest.raises(papermill.PapermillExecutionError, match="unknown parameter 'sede'"):
        papermill.execute_notebook(chapter, out, {"sede": 1}, kernel_name="python3", progress_bar=False)


def test_a_chapter_runs_with_its_parameters_here_without_live_widgets_and_hands_back_its_record(tmp_path, kernels):
    import sys

    import fedcore

    look = "import os, sys, fedcore\nprint(os.environ['FEDCORE_LIVE'], os.environ['FEDCORE_BATCH'], os.getcwd())"
    ending = "pages.record(seed=seed, python=sys.executable, package=fedcore.__file__)"
    chapter = a_chapter(tmp_path, look, setup=SETUP, ending=ending)
    run = book.run_chapter(chapter, {"seed": 7}, output=tmp_path / "out.ipynb", env=kernels)
    assert run.numbers == {"seed": 7, "python": sys.executable, "package": fedcore.__file__}
    assert run.seconds > 0
    (printed,) = [o.text for cell in run.notebook.cells for o in cell.get("outputs", []) if o.output_type == "stream"]
    assert printed == f"0 1 {tmp_path}\n"


@pytest.mark.parametrize(
    ("ending", "timeout", "message"),
    [
        ("1 / 0", 60, r"small.ipynb, cell \[3\]: ZeroDivisionError"),
        ("import os\nos._exit(9)", 60, "DeadKernelError"),
        ("import time\ntime.sleep(60)", 3, "CellTimeoutError"),
        ("seed", 60, "no record was written"),
    ],
    ids=["a raising cell", "a killed kernel", "a cell that takes too long", "no record"],
)
def test_a_run_fails_on(ending, timeout, message, tmp_path, kernels):
    (tmp_path / "out.json").write_text('{"seed": 0}')  # an old record is not taken for a new one
    chapter = a_chapter(tmp_path, ending=ending)
    with pytest.raises(book.ChapterFailed, match=message):
        book.run_chapter(chapter, output=tmp_path / "out.ipynb", timeout=timeout, env=kernels)


def test_one_broken_chapter_fails_the_book_and_the_others_still_run(tmp_path, capsys):
    here = Path.cwd()
    bad = a_chapter(tmp_path, "oops", name="tested_bad")
    good = a_chapter(tmp_path, "import time\ntime.sleep(1)", name="tested_good")
    with pytest.raises(book.ChapterFailed, match="NameError"):
        book.run_all([bad, good])
    shown = capsys.readouterr().out
    assert re.search(r"tested_bad +FAILED", shown)
    assert re.search(r"tested_good +\d+\.\d s", shown)
    assert Path.cwd() == here, "running chapters moved this process to another folder"


@pytest.mark.parametrize("line", ["rate = 2 * 3", "import os", "a = b = 1", "x: int"])
def test_a_parameters_cell_holds_literals_only(line, tmp_path):
    notebook = new_notebook(cells=[new_code_cell(f"seed = 0\n{line}", metadata={"tags": ["parameters"]})])
    nbformat.write(notebook, tmp_path / "x.ipynb")
    with pytest.raises(book.ChapterFailed, match="is not `name = literal`"):
        book.defaults(tmp_path / "x.ipynb")


# ---- storing outputs


def messy():
    """A notebook as papermill leaves it."""
    cell = new_code_cell("print(1); 2", execution_count=7, metadata={"tags": ["x"], "papermill": {"duration": 1.5}})
    cell.metadata["mystnb"] = {"image": {"alt": "a line"}}
    streams = [new_output("stream", name=n, text=t) for n, t in (("stdout", "a\n"), ("stderr", "w"), ("stdout", "b\n"))]
    cell.outputs = [*streams, new_output("execute_result", data={"text/plain": "2"}, execution_count=7)]
    twin = new_code_cell("3", execution_count=9)
    notebook = new_notebook(cells=[new_markdown_cell("# A"), cell, twin], metadata={"papermill": {}, "widgets": {}})
    del twin["id"]
    notebook.metadata["language_info"] = {"name": "python", "version": "3.12.1"}
    return notebook


def test_normalising_keeps_tags_alt_texts_and_outputs_and_drops_the_rest():
    original = messy()
    notebook = book.normalise(original)
    cell = notebook.cells[1]
    assert cell.metadata == {"tags": ["x"], "mystnb": {"image": {"alt": "a line"}}}
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert "version" not in notebook.metadata.language_info
    assert [c.execution_count for c in notebook.cells[1:]] == [1, 2]
    assert [o.get("text") or o.data["text/plain"] for o in cell.outputs] == ["a\nb\n", "2"]
    assert cell.outputs[1].execution_count == 1
    assert [c.id for c in notebook.cells[:2]] == [c.id for c in original.cells[:2]]
    assert re.fullmatch("[0-9a-f]{8}", notebook.cells[2].id)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.outputs.append(new_output("error", ename="E", evalue="v", traceback=[])), "holds an error: E: v"),
        (lambda c: c.metadata.update(tags=["injected-parameters"]), "injected by papermill"),
        (
            lambda c: c.outputs.append(new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}})),
            "shows a live widget",
        ),
    ],
    ids=["an error", "injected parameters", "a live widget"],
)
def test_normalising_refuses(change, message):
    notebook = messy()
    change(notebook.cells[1])
    with pytest.raises(book.ChapterFailed, match=message):
        book.normalise(notebook)


def test_refreshing_twice_gives_the_same_bytes_though_times_differ(tmp_path):
    box = pages.claims([pages.Claim("A", "b", "c", "holds")], seeds=1, seconds=12.5).html
    assert box.count("12.5 s") == 1
    slow = f"import time\nfrom IPython.display import HTML\nHTML({box!r}.replace('12.5 s', f'{{time.time():.1f}} s'))"
    chapter = a_chapter(tmp_path, slow, "print(sum(range(10)))", name="tested_refresh")
    book.refresh([chapter])
    first = chapter.read_bytes()
    assert b"fc-machine" in first
    assert read(chapter).cells[3].outputs[0].text == "45\n"
    book.refresh([chapter])
    assert chapter.read_bytes() == first
    changed = first.replace(b"range(10)", b"range(11)")
    chapter.write_bytes(changed)
    book.refresh([chapter])
    assert read(chapter).cells[3].outputs[0].text == "55\n"


def test_a_refresh_updates_a_remark_on_todays_code_which_a_build_does_not_compare(tmp_path):
    line = pages.setting(stored_cells=3, today="7 are older than the code").html.replace("7", "{3 + 4}")
    chapter = a_chapter(tmp_path, f"from IPython.display import HTML\nHTML(f{line!r})", name="tested_remark")
    book.refresh([chapter])
    fresh = chapter.read_bytes()
    assert fresh.count(b"7 are older") == 1
    chapter.write_bytes(fresh.replace(b"7 are older", b"9 are older"))
    assert book.unlike_stored(book.run_all([chapter])) == []
    book.refresh([chapter])
    assert chapter.read_bytes() == fresh


def test_a_failing_refresh_writes_nothing(tmp_path):
    chapter = a_chapter(tmp_path, "oops", name="tested_failure")
    before = chapter.read_bytes()
    with pytest.raises(book.ChapterFailed, match="NameError"):
        book.refresh([chapter])
    assert chapter.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('<p class="fc-machine">12.1 s on A, 1 thread; torch 2.15</p>', True),
        ('<p class="fc-how">digits <span class="fc-machine">· 3.4 s</span></p>', True),
        ("took 12.3 s", True),
        ("950 ms", True),
        ("accuracy 95.2 ± 0.9 (n=3)", False),
        ("K = 5 steps, 3 seeds", False),
        ("x = 0.5", False),
    ],
)
def test_only_times_and_hardware_are_hidden_from_comparison(text, hidden):
    other = re.sub(r"\d+\.?\d*", "7.7", text).replace("A, 1", "B, 2")
    rules = ROOT / "tests" / "nbval_sanitize.cfg"
    assert (book._timeless(text, rules) == book._timeless(other, rules)) is hidden


def test_two_chapters_a_day_come_round_to_all_but_the_engines_which_nbval_compares_every_time():
    others = {path.stem for path in CHAPTERS} - {"engine"}
    turns = [[path.stem for path in book.in_turn(day)] for day in range(20_000, 20_000 + len(others))]
    assert {name for turn in turns for name in turn} == others
    assert all(len(set(turn)) == 2 and turn != after for turn, after in itertools.pairwise(turns))


def test_the_turn_is_the_day_of_the_commit_and_outside_of_a_repository_today(tmp_path):
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%d"]
    made = subprocess.run(command, env={**os.environ, "TZ": "UTC"}, capture_output=True, text=True, check=False).stdout
    today = datetime.now(UTC).date().isoformat()
    assert str(np.datetime64(book.day(), "D")) == (made.strip() or today)
    assert str(np.datetime64(book.day(tmp_path), "D")) == today


def test_nbval_reads_every_rule_of_the_sanitiser():
    from nbval.plugin import get_sanitize_patterns

    text = (ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8")
    patterns = dict(get_sanitize_patterns(text))
    assert len(patterns) == text.count("\nregex: ") == text.count("\nreplace: ") >= 6
    page = '<img src="data:image/svg+xml,%3Csvg%20d=%22M1.52%203%22" alt="a curve that ends at 0.95">'
    for pattern, replacement in patterns.items():
        page = re.sub(pattern, replacement, page)
    assert page == '<img src="PICTURE" alt="a curve that ends at 0.95">'


def test_a_check_runs_on_another_instruction_set_and_names_the_cell_that_differs(tmp_path, monkeypatch):
    other = "import os\nother = 'ATEN_CPU_CAPABILITY' in os.environ"
    same, wrong = "print(0.12345 + 1e-5 * other)", "print(f'accuracy {61.6 + 3 * other:.1f}')"
    chapters = [
        a_chapter(tmp_path, other, same, name="tested_same"),
        a_chapter(tmp_path, other, same, wrong, name="tested_other"),
    ]
    book.refresh(chapters)
    monkeypatch.setattr(chapter_runs, "records", lambda jobs, env: [env for _ in jobs])
    monkeypatch.setattr(expect, "deviations", lambda name, env: [] if env == book.ISAS["default"] else ["no"])
    book.check(chapters[:1], "default")
    with pytest.raises(book.ChapterFailed) as failure:
        book.check(chapters, "default")
    assert str(failure.value).splitlines() == [
        "on instruction set 'default':",
        "tested_other, cell 4: text: 61.6 became 64.6, after 'accuracy'",
    ]


def test_a_build_whose_chapters_show_what_is_not_stored_turns_red_with_the_book_ready(tmp_path, monkeypatch, capsys):
    chapter = a_chapter(tmp_path, "print(f'accuracy {61.6:.1f}')", name="tested_stale")
    book.refresh([chapter])
    monkeypatch.setattr(book, "chapters", lambda: [chapter])
    monkeypatch.setattr(book, "render", lambda target, executed: target)
    book.main(["build"])
    chapter.write_text(chapter.read_text().replace("accuracy 61.6\\n", "accuracy 64.6\\n"))
    with pytest.raises(SystemExit, match="1"):
        book.main(["build"])
    shown = capsys.readouterr()
    assert "tested_stale, cell 2: text: 64.6 became 61.6, after 'accuracy'" in shown.err
    assert shown.out.count("the book is ready") == 2


# ---- the repository as a newcomer finds it


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "USAGE.md"))
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    small = (
        re.sub(r"rounds=\d+", "rounds=2", "\n".join(blocks))
        .replace("seeds=3", "seeds=1")
        .replace("workers=2", "workers=1")
    )
    names: dict = {}
    exec(compile(small, "README.md", "exec"), names)
    assert len(names["frame"].groupby(["method", "partition", "lr"])) == 3 * 2 * 2
