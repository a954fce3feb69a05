"""What of a chapter's code stands on its page."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import book, page_cells

each_chapter = pytest.mark.parametrize("chapter", book.chapters(), ids=lambda path: path.stem)


def tags(cell):
    return cell.metadata.get("tags", [])


@each_chapter
def test_the_folds_of_a_chapter_are_few_and_have_names_of_their_own(chapter):
    dressed = page_cells.set_tags(nbformat.read(chapter, as_version=4), chapter.stem)
    bars = [cell.metadata.mystnb.code_prompt_show for cell in dressed.cells if "hide-input" in tags(cell)]
    assert len(bars) == len(set(bars)) <= page_cells.BARS


def test_a_fold_of_an_author_keeps_its_name():
    words = {"code_prompt_show": "All 16 rows", "code_prompt_hide": "Hide"}
    cell = new_code_cell("show.result('t')", metadata={"tags": ["hide-output"], "mystnb": words})
    page_cells.set_tags(new_notebook(cells=[cell]), "a")
    assert tags(cell) == ["hide-output", "remove-input"]
    assert cell.metadata.mystnb == words


def test_machinery_leaves_the_page_drawing_folds_and_what_is_argued_stays():
    notebook = new_notebook(
        cells=[
            new_code_cell("seed = 0", metadata={"tags": ["parameters"]}),
            new_code_cell("pages.parameters(seed=seed)"),
            new_markdown_cell("# T\n\n## Does it $x$ help?"),
            new_code_cell("h = fc.simulate(m, fed)"),
            *(new_code_cell(f"fc.show(figure, {{'k': {k}}})", metadata={"tags": ["hide-input"]}) for k in range(8)),
            new_code_cell("references('FedAvg')"),
            new_code_cell("pages.record(a=1)"),
        ]
    )
    page_cells.set_tags(notebook, "a")
    once = [list(tags(cell)) for cell in notebook.cells]
    folded = [["hide-input"]] * 6 + [["remove-input"]] * 2
    before = [["parameters", "remove-input"], ["remove-input"], [], []]
    assert once == [*before, *folded, ["remove-input"], ["remove-cell"]]
    assert [list(tags(cell)) for cell in page_cells.set_tags(notebook, "a").cells] == once
    assert notebook.cells[4].metadata.mystnb.code_prompt_show == "The code of the picture: Does it x help"
    normal = book.normalise(notebook)
    assert normal.cells[4].metadata.jupyter.source_hidden
    assert "jupyter" not in normal.cells[0].metadata, "parameters are there to be changed"
    assert "jupyter" not in normal.cells[3].metadata
