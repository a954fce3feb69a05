"""Explorers that the page computes: its formulas give the lines and the numbers of the chapters' own functions."""

import json
from io import BytesIO

import numpy as np
import pytest
from browser import DESKTOP, HEAD, PHONE, opened, shown
from PIL import Image
from scipy import stats

import fedcore as fc
from fedbook.pictures import plots, svg, widgets
from fedbook.pictures.alt_text import printed
from tools import book

# Chapter, function, the start of a cell that it needs, settings that no frame has.
FORMULAS = {
    "bias": ("drift", "def fixed_point", {"second_curvature": 1.7, "lr": 0.033}, {"second_curvature": 5.9, "lr": 0.15}),
    "pull": ("fedup", None, {"alpha_K": 0.33, "a": 0.05}, {"alpha_K": 1.9, "a": 0.011}, {"alpha_K": 0.06, "a": 1.0}),
    "pulled": ("personal", None, {"pull": 0.27, "differ": 0.35, "images": 7}, {"pull": 61, "differ": 1, "images": 90}),
    "steps_of_W": ("personal", None, {"gamma": 0.15, "best": -0.3}, {"gamma": 2.55, "best": 1.1}),
    "learning": ("gossip", "KINDS =", {"K": 6}, {"K": 73}),
    "price": ("proximal", None, {"K": 1}, {"K": 37}),
    "scanners": (
        "feature_shift",
        None,
        {"brightness": 1.23, "contrast": 0.61, "ill": 0.85, "statistics": "averaged"},
        {"brightness": 2.9, "contrast": 1.9, "ill": 0.15, "statistics": "own"},
    ),
    "servers": ("server", None, {"momentum": 0.0, "K": 1}, {"momentum": 0.93, "K": 29}),
}


@pytest.fixture(scope="module")
def explorers():
    """The explorers of the chapters by name, with the frames of the smallest profile."""
    made, explore = {}, fc.explore
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            fc,
            "explore",
            lambda fn, **more: fn.__name__ in FORMULAS and made.update({fn.__name__: explore(fn, **more)}),
        )
        for name, (chapter, needed, *_) in FORMULAS.items():
            cells = json.loads((book.ROOT / "book" / f"{chapter}.ipynb").read_text("utf-8"))["cells"]
            names = {"fc": fc, "np": np, "plots": plots, "stats": stats, "tiny": True, "blue": plots.COLOURS[0]}
            for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
                if f"def {name}(" in source or (needed and source.startswith(needed)):
                    exec(source, names)
    return made


@pytest.fixture(scope="module")
def page(explorers, tmp_path_factory):
    path = tmp_path_factory.mktemp("closed") / "page.html"
    figures = (explorers[name].html().replace("<figure", f'<figure data-figure="{name}"', 1) for name in FORMULAS)
    path.write_text(f"{HEAD}<title>t</title><body>{''.join(figures)}", "utf-8")
    return path


def data(line):
    """The points of a line or an area, [2, points]."""
    return np.array(line.get_data() if hasattr(line, "get_data") else line.get_xy().T, float)


def test_every_formula_gives_the_lines_and_the_numbers_of_its_chapter(browser, explorers, page):
    with opened(browser, page) as tab:
        assert set(tab.evaluate("Object.keys(fcClosed.formulas)")) == set(FORMULAS)
        for name, (*_, first, second) in ((name, case[1:]) for name, case in FORMULAS.items()):
            explorer = explorers[name]
            for setting in (explorer.at_start(), first, second):
                figure, numbers = explorer.fn(**setting)
                call = "([f, s, c]) => fcClosed.formulas[f](s, c)"
                told = tab.evaluate(call, [name, setting, explorer.closed["constants"]])
                lines = svg.number_lines(figure)
                for k, (line, got) in enumerate(zip(lines, told["lines"], strict=True)):
                    where = f"{name}({setting}), line {k}"
                    np.testing.assert_allclose(got, data(line), rtol=1e-9, atol=1e-9, err_msg=where)
                said = tab.evaluate(
                    "all => Object.entries(all).map(([n, v]) => [n, fcClosed.printed(v)])", told["numbers"]
                )
                assert dict(said) == printed(numbers), f"{name}({setting})"


def painted(figure):
    """The picture's pixels, from 0 to 255, [rows, columns]."""
    figure.locator("img").evaluate("image => image.decode()")
    return np.asarray(Image.open(BytesIO(figure.locator("img").screenshot())).convert("L"), float)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_keys_move_the_picture_to_what_python_draws_of_a_value_that_no_frame_has(browser, explorers, page, size):
    with opened(browser, page, size) as tab:
        for name, explorer in explorers.items():
            figure = tab.locator(f"figure[data-figure={name}]")
            before = painted(figure)
            for slider in figure.get_by_role("slider").all():
                slider.press("PageDown" if slider.input_value() == slider.get_attribute("max") else "PageUp")
            setting = {control["name"]: control["printed"] for control in shown(figure)["controls"]}
            for parameter, ends in explorer.live.items():
                whole = widgets.scale_of(explorer.values[parameter], ends) == "whole"
                setting[parameter] = (int if whole else float)(setting[parameter])
            at = explorer.at(**setting)
            now, after = shown(figure), painted(figure)
            assert dict(now["numbers"]) == at.numbers
            assert now["alt"].startswith(at.alt[: at.alt.index(". ")]), now["alt"]
            assert all(f"{pair[0]} {pair[1]}" in now["alt"] for pair in now["numbers"])
            uri = svg.uri(at.drawn.phone if size == PHONE else at.drawn.wide)
            figure.locator("source, img").evaluate_all(
                "(all, uri) => all.forEach(e => e[e.src ? 'src' : 'srcset'] = uri)", uri
            )
            wanted = painted(figure)
            wrong, moved = (np.mean(abs(other - wanted) > 64) for other in (after, before))
            # The dashes of the line that leaves the axes begin elsewhere: matplotlib cuts it where it leaves.
            assert wrong < (0.02 if name == "steps_of_W" else 0.001), f"{name}: {wrong:.2%} of the pixels are others"
            assert moved > 5 * wrong, f"{name}: {moved:.2%} moved"


def test_an_address_says_where_the_controls_stand(browser, page):
    with opened(browser, page) as tab:
        tab.locator("figure[data-figure=pull]").get_by_role("slider").first.press("End")
        tab.clock.run_for(400)
        address = tab.evaluate("location.href")
    assert address.endswith("#pull:alpha_K=2&a=0.02")
    with opened(browser, address.replace("a=0.02", "a=0.0257&b=1")) as tab:
        here = [control["printed"] for control in shown(tab.locator("figure[data-figure=pull]"))["controls"]]
        assert here == ["2", "0.0257"]


def test_a_formula_that_the_page_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"closed='bais' is no formula.*use one of bias, learning"):
        widgets.explore(lambda a: plots.figure()[0], a=[1, 2], closed="bais")
