"""The teachers' kit: no solution reaches a student, the checks grade, and every page works by itself."""

from __future__ import annotations

import re

import nbformat
import pytest

from fedbook.pictures import widgets
from tools import book, cards, chapter_runs, kit

CHAPTERS = kit.chapters()
SOLUTIONS = {
    name: [chapter_runs.solution_of(c, nb.cells) for c in nb.cells if "exercise" in c.metadata.get("tags", [])]
    for name, nb in CHAPTERS.items()
}
CODED = [name for name, solutions in SOLUTIONS.items() if solutions]


@pytest.fixture(scope="module")
def sheet():
    return kit.sheet()


def text(notebook):
    return "\n".join(cell.source for cell in notebook.cells)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_students_notebook_has_every_exercise_and_no_solution(name):
    given, whole = kit.student(CHAPTERS[name]), CHAPTERS[name]
    nbformat.validate(given)
    assert "{solution}" not in text(given)
    assert not [code for code in SOLUTIONS[name] if code in text(given)]
    for word in ("{exercise}", "{prf:proof}", "## ", 'print("right"'):
        assert text(given).count(word) == text(whole).count(word)


@pytest.mark.parametrize("name", CODED)
def test_nbgraders_command_would_make_the_students_version_of_the_instructors(name):
    instructor, released = (kit.assignment(CHAPTERS[name], solved) for solved in (True, False))
    for notebook in (instructor, released):
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs")]
        graded = [cell.metadata["nbgrader"] for cell in notebook.cells if "nbgrader" in cell.metadata]
        assert [meta["grade"] for meta in graded] == [False, True] * len(SOLUTIONS[name])
        assert len({meta["grade_id"] for meta in graded}) == len(graded)
        for meta in graded:
            assert meta["schema_version"] == 3
            assert re.fullmatch(r"[\w-]+", meta["grade_id"])
            assert (meta["solution"], meta["locked"]) == (not meta["grade"], meta["grade"])
            assert meta.get("points") in ((1, 2, 3) if meta["grade"] else (None,))
    cleared = re.sub(r"### BEGIN SOLUTION\n.*?### END SOLUTION", kit.STUB, text(instructor), flags=re.DOTALL)
    assert cleared == text(released)
    assert text(instructor).count("### BEGIN SOLUTION") == len(SOLUTIONS[name])
    assert not [code for code in SOLUTIONS[name] if code in text(released)]


@pytest.mark.parametrize("name", ["engine", "fedgse", "systems"])
def test_every_check_passes_with_the_solution_and_fails_with_the_stub(name, monkeypatch):
    monkeypatch.chdir(book.ROOT / "book")
    monkeypatch.setenv("FEDCORE_LIVE", "0")
    monkeypatch.setattr(widgets, "_call", widgets._call)  # the next line's change ends with the test
    chapter_runs.one_frame_each()
    for solved in (True, False):
        passed, names = [], {"__name__": "__main__"}
        for cell in kit.assignment(CHAPTERS[name], solved).cells:
            if cell.get("metadata", {}).get("nbgrader", {}).get("grade"):
                try:
                    exec(cell.source, names)
                    passed.append(True)
                except AssertionError as error:
                    passed.append(str(error) != "not yet")
            elif cell.cell_type == "code":
                exec(cell.source, names)
                names |= chapter_runs.PARAMETERS if "parameters" in cell.metadata.get("tags", []) else {}
        assert passed == [solved] * len(SOLUTIONS[name])


def test_an_exercise_without_a_check_is_named():
    for check in ("", "print(f())"):
        cell = nbformat.v4.new_code_cell(f"def f():\n    return 1\n\n\n{check}", id="loose")
        with pytest.raises(ValueError, match="exercise loose must end with print"):
            kit._split(cell, "def f():\n    return 2\n")


@pytest.mark.parametrize("name", CHAPTERS)
def test_slides_show_every_figure_and_ask_no_other_host(name):
    page = kit.slides(CHAPTERS[name])
    assert page.count("<section>") == 2 + len(list(kit.figures(CHAPTERS[name])))
    without_data = re.sub(r'"data:[^"]*"', "", page)
    assert not re.findall(r'(?:src|href|srcset)="(?!#)[^"]+"|@import|url\((?!["\']?#)', without_data)
    assert page.count("<li>", page.index("<h2>In short")) == 5
    assert len(page) < 3e6


def test_arrow_keys_move_the_slides_and_leave_the_controls_theirs(browser, tmp_path):
    from browser import opened

    (tmp_path / "slides.html").write_text(kit.slides(CHAPTERS["drift"]), encoding="utf-8")
    with opened(browser, tmp_path / "slides.html") as tab:
        seen = []
        for key in ("ArrowLeft", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "PageDown"):
            tab.keyboard.press(key)
            assert tab.locator("section:visible").count() == 1
            seen.append(tab.locator("footer").inner_text())
        assert seen == [f"{at} / 8" for at in (1, 2, 3, 2, 8, 8, 1, 2)]
        tab.locator("section:visible .fc-pg input[type=range]").first.press("ArrowRight")
        assert tab.locator("footer").inner_text() == "2 / 8"


def test_the_sheet_has_twelve_to_sixteen_methods_with_their_fixed_points(sheet):
    body = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in sheet.split("<tr>")[2:]]
    assert 12 <= len(body) <= 16
    found = {row[0]: row for row in body}
    assert len(found) == len(body)
    assert all(cell for row in body for cell in row)
    assert (found["FedAvg"][5], found["SCAFFOLD"][5], found["SCAFFOLD"][6]) == ("−0.3403", "★", "2 down, 1 up")
    assert all(row[7].startswith("Use it ") and " Not " in row[7] for row in body)
    assert "http" not in sheet.replace("http://www.w3.org", "")


def test_the_sheet_is_one_page_of_a4(sheet, browser, tmp_path):
    tab = browser.new_page()
    tab.set_content(sheet)
    pages = re.findall(rb"/Type\s*/Page\b.*?/MediaBox\s*\[([^]]*)\]", tab.pdf(prefer_css_page_size=True), re.DOTALL)
    tab.close()
    assert [[round(float(x) / 72 * 25.4) for x in box.split()] for box in pages] == [[0, 0, 297, 210]]


def test_a_formula_is_drawn_where_its_line_is():
    image = kit.formula(r"\frac12 \bar g")
    assert image.startswith(r'<img alt="\frac12 \bar g" style="height:')
    assert "vertical-align:-0." in image
    assert kit.rendered("*$x$* < **$y^*$**") == f"<i>{kit.formula('x')}</i> &lt; <b>{kit.formula('y^*')}</b>"
    assert kit.rendered("a {term}`word` and {doc}`one <page>` {cite}`key`.") == "a word and one."


def test_minutes_follow_the_stated_rule():
    figure = nbformat.v4.new_output("display_data", {"text/html": '<figure class="fc-picture"></figure>'})
    cells = [
        nbformat.v4.new_markdown_cell("# T\n\nAfter this page you can\nread `T`. More.\n\n" + "word " * 591),
        nbformat.v4.new_code_cell("", outputs=[figure, figure]),
        nbformat.v4.new_markdown_cell("```{exercise} ★★ E\n```\n\n```{solution} E\n" + "word " * 5000 + "\n```"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    assert kit.minutes(notebook) == 30  # 5 of reading, 6 for figures, 10 for the exercise
    assert kit.goal(notebook) == "read `T`."
    notebook.cells[0].source = "# T"
    with pytest.raises(ValueError, match="After this page you can"):
        kit.goal(notebook)


def test_weeks_are_in_order_and_as_equally_long_as_they_can_be():
    assert kit.weeks([30, 10, 20, 60], 2) == (1, 1, 1, 2)
    written = kit.syllabus(CHAPTERS)
    for count, names in ((12, list(CHAPTERS)), (6, list(kit.SHORT))):
        part = written.split(f"## {count} weeks")[1].split("\n## ")[0]
        assert re.findall(r"\(`(\w+)`\)", part) == names
        in_weeks = [int(week) for week in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)]
        assert in_weeks == sorted(in_weeks)
        assert set(in_weeks) == set(range(1, count + 1))


def test_the_whole_book_links_within_itself():
    page = '<head>h</head><body><article class="bd-article"><p id="a">{}</p></article>'
    links = (
        '<a href="#a"></a><a href="methods/b.html#a"></a><a href="gone.html"></a><a href="https://x.org/y.html"></a>'
    )
    back = '<a href="../a.html"></a>'
    whole = kit.together({"book/a": page.format(links), "book/methods/b": page.format(back)})
    assert re.findall(r'href="([^"]*)"', whole) == [
        "#book/a--a",
        "#book/methods/b--a",
        "https://x.org/y.html",
        "#book/a--",
    ]
    assert re.findall(r'id="([^"]*)"', whole) == ["book/a--", "book/a--a", "book/methods/b--", "book/methods/b--a"]


def test_what_a_pdf_lacks_is_said(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=r"has no page book/index; run make pages first"):
        kit.pdf(tmp_path, tmp_path / "book.pdf")
    monkeypatch.setattr(book, "pages", lambda: [])
    monkeypatch.setattr("tests.browser.find_chromium", lambda: None)
    with pytest.raises(RuntimeError, match="no Chromium found; install"):
        kit.pdf(tmp_path, tmp_path / "book.pdf")


def test_the_kits_files_are_written(tmp_path, monkeypatch, sheet):
    monkeypatch.setattr(kit, "sheet", lambda: sheet)
    kit.write(tmp_path)
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert {"methods.html", "syllabus.md", "assignments/nbgrader_config.py"} < written
    assert {f"{kind}/{name}" for name in CHAPTERS for kind in ("slides", "notebooks")} == {
        re.sub(r"\.\w+$", "", name) for name in written if name.startswith(("slides/", "notebooks/"))
    }
    assert sum(name.startswith("assignments/source/") for name in written) == len(CODED)
    assert cards.title(type(kit.MORE[0])) in (tmp_path / "methods.html").read_text(encoding="utf-8")
