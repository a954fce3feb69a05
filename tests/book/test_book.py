"""The book as a reader finds it: what was built, what is stored, and that the flow behind it fails when it should."""

import ast
import contextlib
import csv
import gzip
import itertools
import json
import re
import shutil
from pathlib import Path

import nbformat
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


def built_pages(html):
    return {page: (html / f"{page}.html").read_text(encoding="utf-8") for page in book.pages(ROOT)}


def test_each_page_of_the_contents_was_built_and_no_other(built_book):
    built = {str(path.relative_to(built_book).with_suffix("")) for path in (built_book / "book").glob("**/*.html")}
    assert built == set(book.pages(ROOT))


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


@each_chapter
def test_a_chapter_can_be_downloaded_and_names_no_address_that_nobody_gave(built_book, chapter):
    text = built_pages(built_book)[f"book/{chapter.stem}"]
    assert f"_sources/book/{chapter.name}" in text
    assert "mybinder.org" not in text
    assert not (built_book / "sitemap.xml").exists()


@pytest.fixture(scope="module")
def small_book(tmp_path_factory):
    """A book of two pages with a broken reference, at an address: its folder of HTML, and what the build said."""
    root = tmp_path_factory.mktemp("small")
    for name in ("_config.yml", "fedbook/documents/references.bib", "tools/sphinx_fedcore.py", "book/quizzes.csv"):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "book" / "assets", root / "book" / "assets")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters:\n- file: book/chapter\n")
    words = "Some forty letters of a first paragraph, at least.\n\n{{ report }} See {eq}`nowhere`."
    (root / "book" / "index.md").write_text(f"# Title\n\n{words}\n", "utf-8")
    nbformat.write(new_notebook(cells=[new_markdown_cell("# One")]), root / "book" / "chapter.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOOK_URL", "https://x.example/book/")
        patch.setenv("BOOK_REPOSITORY", "https://github.com/me/book")
        with pytest.raises(book.ChapterFailed) as failure:
            book.render(root / "out" / "html", root=root)
    assert not (root / "out" / "html").exists()
    return root / "out" / "html-stage" / "_build" / "html", str(failure.value)


def test_a_broken_reference_turns_the_build_red(small_book):
    assert "nowhere" in small_book[1]


def test_a_book_with_an_address_has_launch_buttons_a_site_map_and_what_other_sites_show(small_book):
    html, _ = small_book
    text, chapter = ((html / "book" / f"{name}.html").read_text("utf-8") for name in ("index", "chapter"))
    assert 'href="https://github.com/me/book/issues">Open an issue</a>' in text
    assert re.search(r"2025, version \d+\.\d+\.\d+", text)
    assert "https://colab.research.google.com/github/me/book/blob/launch/book/chapter.ipynb" in chapter
    assert "https://mybinder.org/v2/gh/me/book/launch?" in chapter
    assert "<loc>https://x.example/book/book/index.html</loc>" in (html / "sitemap.xml").read_text("utf-8")
    shown = dict(re.findall(r'<meta property="(og:\w+)" content="([^"]*)"', text))
    assert shown["og:description"] == "Some forty letters of a first paragraph, at least."
    assert shown["og:url"] == "https://x.example/book/book/index.html"
    card = shown["og:image"].removeprefix("https://x.example/book/")
    assert (html / card).read_bytes()[:4] == b"\x89PNG"
    icon = re.search(r'<link rel="icon" href="([^"]*)"', text)[1]
    assert (html / "book" / icon).resolve().is_file()


def test_figures_are_numbered_before_their_captions_with_an_anchor_each():
    body = '<figure class="fc-picture x"><img><figcaption>One.</figcaption></figure>' * 2
    numbered = sphinx_fedcore.numbered("<figure><figcaption>a theme's</figcaption></figure>" + body, "3")
    assert re.findall(r'<figcaption><b class="fc-label" id="(.*?)">(.*?)</b>', numbered) == [
        ("figure-3-1", "Figure 3.1."),
        ("figure-3-2", "Figure 3.2."),
    ]
    assert sphinx_fedcore.numbered("no picture", "3") == "no picture"


# ---- the stored chapters


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


# ---- theorems and notation


def test_each_theorem_of_a_chapter_has_a_test_of_its_name():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    texts = [cell.source for chapter in CHAPTERS for cell in read(chapter).cells if cell.cell_type == "markdown"]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")]
    for text in texts:
        starts = re.split(r"\{prf:(?:theorem|proposition|lemma|corollary)\}", text)[1:]
        labels = [re.search(r":label:\s*(\S+)", start) for start in starts]
        assert all(labels), f"a theorem without a label in: {text[:200]}"
        for label in labels:
            assert f"def test_{label[1].replace('-', '_')}(" in tests, f"no test for {label[1]}"


def test_each_name_of_the_notation_table_exists_in_the_packages():
    known = set()
    for path in (*ROOT.glob("fedcore/**/*.py"), *ROOT.glob("fedbook/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            known |= {str(getattr(node, field, "")) for field in ("arg", "attr", "id", "name", "value")}
    rows = list(csv.DictReader((ROOT / "book" / "notation.csv").open(encoding="utf-8", newline="")))
    assert len({row["symbol"] for row in rows}) == len(rows) > 15
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row["name in code"])}
    assert names
    assert not names - known


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


@pytest.mark.parametrize("kernels", ["a fork"], indirect=True)
def test_a_misspelt_parameter_that_papermill_injects_fails_in_the_chapter_too(tmp_path, monkeypatch, kernels):
    monkeypatch.setattr(book, "defaults", lambda source: ["sede"])
    with pytest.raises(book.ChapterFailed, match="unknown parameter 'sede'; this chapter takes: profile, seed"):
        book.run_chapter(a_chapter(tmp_path, setup=SETUP), {"sede": 1}, output=tmp_path / "out.ipynb", env=kernels)


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
        ("import time\ntime.sleep(60)", 2, "CellTimeoutError"),
        ("seed", 60, "no record was written"),
    ],
    ids=["a raising cell", "a killed kernel", "a cell that takes too long", "no record"],
)
@pytest.mark.parametrize("kernels", ["a fork"], indirect=True)
def test_a_run_fails_on(ending, timeout, message, tmp_path, kernels):
    (tmp_path / "out.json").write_text('{"seed": 0}')  # an old record is not taken for a new one
    chapter = a_chapter(tmp_path, ending=ending)
    with pytest.raises(book.ChapterFailed, match=message):
        book.run_chapter(chapter, output=tmp_path / "out.ipynb", timeout=timeout, env=kernels)


def test_one_broken_chapter_fails_a_refresh_the_others_still_run_and_nothing_is_written(tmp_path, capsys):
    here = Path.cwd()
    chapters = [a_chapter(tmp_path, "oops", name="tested_bad"), a_chapter(tmp_path, "print(1)", name="tested_good")]
    before = [chapter.read_bytes() for chapter in chapters]
    with pytest.raises(book.ChapterFailed, match="NameError"):
        book.refresh(chapters)
    shown = capsys.readouterr().out
    assert re.search(r"tested_bad +FAILED", shown)
    assert re.search(r"tested_good +\d+\.\d s", shown)
    assert [chapter.read_bytes() for chapter in chapters] == before
    assert Path.cwd() == here, "running chapters moved this process to another folder"


@pytest.mark.parametrize("line", ["rate = 2 * 3", "import os"])
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


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A stored chapter, and what writes it and has each run of it show other outputs."""
    path = a_chapter(tmp_path, "a box", "a sum", "a line", name="tested_refresh")

    def shows(*pages):
        notebook = read(path)
        for count, (cell, page) in enumerate(zip(notebook.cells, ("", "", *pages, ""), strict=True), 1):
            cell.update(execution_count=count, outputs=[new_output("display_data", {"text/html": page})])
        runs = {path: book.Run(book.normalise(notebook), {}, 1.0)}
        monkeypatch.setattr(book, "run_all", lambda sources, **_: runs)
        return runs

    return path, shows


def test_a_refresh_changes_no_byte_where_times_alone_differ_and_stores_other_outputs(stored):
    path, shows = stored
    box = pages.claims([pages.Claim("A", "b", "c", "holds")], seeds=1, seconds=12.5).html
    assert box.count("12.5 s") == 1
    shows(box, "45", "")
    book.refresh([path])
    first = path.read_bytes()
    assert b"fc-machine" in first
    shows(box.replace("12.5 s", "99.9 s"), "45", "")
    book.refresh([path])
    assert path.read_bytes() == first
    shows(box, "55", "")
    book.refresh([path])
    assert path.read_bytes() == first.replace(b'"45"', b'"55"')


def test_a_refresh_updates_a_remark_on_todays_code_which_a_build_does_not_compare(stored):
    path, shows = stored
    line = pages.setting(stored_cells=3, today="7 are older than the code").html
    shows("", "", line.replace("7", "9"))
    book.refresh([path])
    fresh = shows("", "", line)
    assert book.unlike_stored(fresh) == []
    book.refresh([path])
    assert path.read_bytes().count(b"7 are older") == 1


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('<p class="fc-machine">12.1 s on A, 1 thread; torch 2.15</p>', True),
        ('<p class="fc-how">digits <span class="fc-machine">· 3.4 s</span></p>', True),
        ("took 12.3 s", True),
        ("accuracy 95.2 ± 0.9 (n=3)", False),
        ("K = 5 steps, 3 seeds", False),
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


def test_a_check_runs_on_another_instruction_set_and_names_the_cell_that_differs(tmp_path, monkeypatch):
    other = "import os\nother = 'ATEN_CPU_CAPABILITY' in os.environ"
    same, wrong = "print(0.12345 + 1e-5 * other)", "print(f'accuracy {61.6 + 3 * other:.1f}')"
    chapter = a_chapter(tmp_path, other, same, wrong, name="tested_other")
    book.refresh([chapter])
    monkeypatch.setattr(chapter_runs, "records", lambda jobs, env: [env for _ in jobs])
    monkeypatch.setattr(expect, "deviations", lambda name, env: [] if env == book.ISAS["default"] else ["no"])
    with pytest.raises(book.ChapterFailed) as failure:
        book.check([chapter], "default")
    assert str(failure.value).splitlines() == [
        "on instruction set 'default':",
        "tested_other, cell 4: text: 61.6 became 64.6, after 'accuracy'",
    ]


def test_a_build_whose_chapters_show_what_is_not_stored_turns_red_with_the_book_ready(stored, monkeypatch, capsys):
    path, shows = stored
    monkeypatch.setattr(book, "chapters", lambda: [path])
    monkeypatch.setattr(book, "render", lambda target, executed: target)
    monkeypatch.setattr(book, "age", lambda: "")
    shows("", "accuracy 61.6", "")
    book.refresh([path])
    book.main(["build"])
    shows("", "accuracy 64.6", "")
    with pytest.raises(SystemExit, match="1"):
        book.main(["build"])
    shown = capsys.readouterr()
    assert "tested_refresh, cell 3: text/html: 61.6 became 64.6, after 'accuracy'" in shown.err
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
