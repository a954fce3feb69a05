"""The teachers' kit: no solution reaches a student, the checks grade, and every page works by itself."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest
from browser import opened

from tools import book, chapter_runs, kit

CHAPTERS = kit.chapters()


def exercises(name):
    return [cell for cell in CHAPTERS[name].cells if "exercise" in cell.metadata.get("tags", [])]


SOLUTIONS = {name: [chapter_runs.solution_of(c, nb.cells) for c in exercises(name)] for name, nb in CHAPTERS.items()}
CODED = [name for name, solutions in SOLUTIONS.items() if solutions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of the kit."""
    folder = tmp_path_factory.mktemp("kit")
    kit.write(folder)
    return folder


def text(notebook):
    return "\n".join(cell.source for cell in notebook.cells)


def test_the_kits_files_are_written(folder):
    written = {file.relative_to(folder).as_posix() for file in folder.rglob("*.*")}
    named = {f"slides/{name}.html" for name in CHAPTERS} | {f"notebooks/{name}.ipynb" for name in CHAPTERS}
    named |= {f"assignments/{kind}/{name}/{name}.ipynb" for name in CODED for kind in ("source", "release")}
    assert written == named | {"methods.html", "syllabus.md", "assignments/nbgrader_config.py"}


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_students_notebook_has_every_exercise_and_no_solution(name, folder):
    given, whole = book.read(folder / "notebooks" / f"{name}.ipynb"), CHAPTERS[name]
    nbformat.validate(given)
    assert "{solution}" not in text(given)
    assert not [code for code in SOLUTIONS[name] if code in text(given)]
    for word in ("{exercise}", "{prf:proof}", "## ", 'print("right"'):
        assert text(given).count(word) == text(whole).count(word)


def nbgrader(folder, kind, name):
    """A notebook of an assignment, and its cells for nbgrader."""
    notebook = book.read(folder / "assignments" / kind / name / f"{name}.ipynb")
    return notebook, [cell for cell in notebook.cells if "nbgrader" in cell.metadata]


@pytest.mark.parametrize("name", CODED)
def test_nbgraders_command_would_make_the_students_version_of_the_instructors(name, folder):
    (instructor, solved), (released, cells) = (nbgrader(folder, kind, name) for kind in ("source", "release"))
    graded = [cell.metadata["nbgrader"] for cell in cells]
    assert graded == [cell.metadata["nbgrader"] for cell in solved]
    assert [meta["grade"] for meta in graded] == [False, True] * len(SOLUTIONS[name])
    assert len({meta["grade_id"] for meta in graded if re.fullmatch(r"[\w-]+", meta["grade_id"])}) == len(graded)
    for meta in graded:
        assert (meta["solution"], meta["locked"]) == (not meta["grade"], meta["grade"])
        assert meta.get("points") in ((1, 2, 3) if meta["grade"] else (None,))
    for notebook in (instructor, released):
        nbformat.validate(notebook)
        assert not [cell for cell in notebook.cells if cell.get("outputs")]
    assert all(code.strip() in text(instructor) for code in SOLUTIONS[name])
    cleared = re.sub(r"### BEGIN SOLUTION\n.*?### END SOLUTION", kit.STUB, text(instructor), flags=re.DOTALL)
    assert cleared == text(released)
    assert not [code for code in SOLUTIONS[name] if code in text(released)]


@pytest.mark.parametrize("name", CODED)
def test_a_students_exercise_is_the_chapters_whose_last_line_asserts_what_it_printed(name, folder):
    _, cells = nbgrader(folder, "release", name)
    for answer, check, exercise in zip(cells[::2], cells[1::2], exercises(name), strict=True):
        *lines, asserted = ast.parse(f"{answer.source}\n{check.source}").body
        *same, printed = ast.parse(exercise.source).body
        assert list(map(ast.dump, lines)) == list(map(ast.dump, same))
        assert ast.dump(asserted.test) == ast.dump(printed.value.args[0].test)
        assert asserted.msg.value == "not yet"


def test_an_exercise_without_a_check_is_named():
    cell = nbformat.v4.new_code_cell("def f():\n    return 1\n\n\nprint(f())", id="loose")
    with pytest.raises(ValueError, match="exercise loose must end with print"):
        kit._split(cell, "def f():\n    return 2\n")


@pytest.mark.parametrize("name", CHAPTERS)
def test_slides_show_every_figure_and_ask_no_other_host(name, folder):
    page = (folder / "slides" / f"{name}.html").read_text("utf-8")
    assert page.count("<section>") == 2 + len(list(kit.figures(CHAPTERS[name])))
    without_data = re.sub(r'"data:[^"]*"', "", page)
    assert not re.findall(r'(?:src|href|srcset)="(?!#)[^"]+"|@import|url\((?!["\']?#)', without_data)
    assert page.count("<li>", page.index("<h2>In short")) == 5
    assert len(page) < 3e6


def test_arrow_keys_move_the_slides_and_leave_the_controls_theirs(browser, folder):
    with opened(browser, folder / "slides" / "drift.html") as tab:
        seen = []
        for key in ("ArrowLeft", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "PageDown"):
            tab.keyboard.press(key)
            assert tab.locator("section:visible").count() == 1
            seen.append(tab.locator("footer").inner_text())
        assert seen == [f"{at} / 8" for at in (1, 2, 3, 2, 8, 8, 1, 2)]
        tab.locator("section:visible .fc-pg input[type=range]").first.press("ArrowRight")
        assert tab.locator("footer").inner_text() == "2 / 8"


def test_the_sheet_has_twelve_to_sixteen_methods_with_their_fixed_points(folder):
    sheet = (folder / "methods.html").read_text("utf-8")
    body = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in sheet.split("<tr>")[2:]]
    found = {row[0]: row for row in body}
    assert 12 <= len(found) == len(body) <= 16
    assert all(cell for row in body for cell in row)
    assert (found["FedAvg"][5], found["SCAFFOLD"][5], found["SCAFFOLD"][6]) == ("−0.3403", "★", "2 down, 1 up")
    assert all(row[7].startswith("Use it ") and " Not " in row[7] for row in body)
    assert "http" not in sheet.replace("http://www.w3.org", "")


def test_the_sheet_is_one_page_of_a4(folder, browser):
    tab = browser.new_page()
    tab.set_content((folder / "methods.html").read_text("utf-8"))
    pages = re.findall(rb"/Type\s*/Page\b.*?/MediaBox\s*\[([^]]*)\]", tab.pdf(prefer_css_page_size=True), re.DOTALL)
    tab.close()
    assert [[round(float(x) / 72 * 25.4) for x in box.split()] for box in pages] == [[0, 0, 297, 210]]


def test_a_formula_is_drawn_where_its_line_is_and_roles_leave_their_words():
    assert "vertical-align:-0." in kit.formula(r"\frac12 \bar g")
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


def test_weeks_are_in_order_and_as_equally_long_as_they_can_be(folder):
    assert kit.weeks([30, 10, 20, 60], 2) == (1, 1, 1, 2)
    written = (folder / "syllabus.md").read_text("utf-8")
    for count, names in ((12, list(CHAPTERS)), (6, list(kit.SHORT))):
        part = written.split(f"## {count} weeks")[1].split("\n## ")[0]
        assert re.findall(r"\(`(\w+)`\)", part) == names
        in_weeks = [int(week) for week in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)]
        assert in_weeks == sorted(in_weeks)
        assert set(in_weeks) == set(range(1, count + 1))


def test_the_whole_book_links_within_itself():
    page = '<head>h</head><body><article class="bd-article"><p id="a">{}</p></article>'
    to = ("#a", "methods/b.html#a", "gone.html", "https://x.org/y.html")
    links = "".join(f'<a href="{address}"></a>' for address in to)
    whole = kit.together({"book/a": page.format(links), "book/methods/b": page.format('<a href="../a.html"></a>')})
    found = re.findall(r'href="([^"]*)"', whole)
    assert found == ["#book/a--a", "#book/methods/b--a", "https://x.org/y.html", "#book/a--"]
    assert set(re.findall(r'id="([^"]*)"', whole)) >= {address[1:] for address in found if address[0] == "#"}


def test_what_a_pdf_lacks_is_said(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=r"has no page book/index; run make pages first"):
        kit.pdf(tmp_path, tmp_path / "book.pdf")
    monkeypatch.setattr(book, "pages", lambda: [])
    monkeypatch.setattr("tests.browser.find_chromium", lambda: None)
    with pytest.raises(RuntimeError, match="no Chromium found; install"):
        kit.pdf(tmp_path, tmp_path / "book.pdf")
