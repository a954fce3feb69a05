"""One colour, marker and line for a method in the whole book, and colours that can be read on light and dark pages."""

import re

import pytest

import fedcore as fc
from fedbook.documents import definitions as table
from fedbook.live import base, playground
from fedbook.pictures import plots, styles, widgets
from tools import book, cards

WORDS = ["ink", "muted", "accent", "accent-strong", "holds", "part", "fails", "open"]
GROUNDS = ["paper", "surface", "code"]
LINES = [name for name in styles.colours() if name in styles.NAMES and name != "ink"]


def contrast(one, other):
    """The contrast ratio of two colours by WCAG 2, from 1 to 21."""
    low, high = sorted(
        sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), styles._linear(c), strict=True)) for c in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def test_looks_are_of_methods_and_no_two_the_same():
    assert set(styles.METHODS) <= {cards.title(kind) for kind in fc.ALL} | {"FedAvg + server momentum"}
    assert len(set(styles.METHODS.values())) == len(styles.METHODS)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("names", "grounds", "least"), [(WORDS, GROUNDS, 4.5), (LINES, GROUNDS[:2], 3)])
def test_words_have_a_contrast_of_four_and_a_half_and_lines_of_three(names, grounds, least, dark):
    colours = styles.colours(dark)
    for name in names:
        assert min(contrast(colours[name], colours[ground]) for ground in grounds) >= least, name


def test_each_token_of_a_light_page_has_its_pair_and_names_are_known():
    assert styles.colours().keys() == styles.colours(dark=True).keys()
    assert set(styles.NAMES) <= styles.colours().keys()
    texts = [(book.ROOT / "book" / "assets" / "book.css").read_text("utf-8"), widgets.asset("explore.css")]
    defined = set(re.findall(r"(--fc-[a-z0-9-]+):", widgets.asset("tokens.css")))
    assert {name for text in texts for name in re.findall(r"var\((--fc-[a-z0-9-]+)", text)} <= defined


def test_a_light_colour_becomes_dark_and_a_scale_keeps_its_order():
    greys = [f"#{k:02x}{k:02x}{k:02x}" for k in range(0, 256, 15)]
    turned = [contrast(styles.dark(grey), "#000000") for grey in greys]
    assert turned == sorted(turned, reverse=True)
    assert styles.dark(styles.colours()["blue"]) == styles.colours(dark=True)["blue"]


def test_no_two_rows_of_a_stored_table_look_the_same_in_its_figure():
    drawn = [(name, profile) for name, made in table.tables().items() for profile in made.captions]
    assert len(drawn) > 20
    for name, profile in drawn:
        rows = list(dict.fromkeys(cell.row for cell in table.get(name).cells(profile)))
        found = styles.looks(rows)
        assert len(set(found)) == len(rows), name
        first = {styles.method(row): look for row, look in reversed(list(zip(rows, found, strict=True)))}
        assert all(look == styles.METHODS[method] for method, look in first.items() if method), name


@pytest.mark.parametrize(
    "pair", [("FedAvg", "FedAvg + server momentum"), ("FedAvg", "FedUp"), ("FedAvg", "SCAFFOLD"), ("FedDyn", "FedDC")]
)
def test_methods_that_are_often_drawn_together_differ_in_colour(pair):
    first, second = styles.looks(pair)
    assert first.colour != second.colour


def test_what_is_no_method_takes_no_colour_of_a_method_beside_it():
    found = styles.looks(["FedAvg", "the optimum", "SCAFFOLD", *map(str, range(30))])
    assert len(set(found)) == 33
    assert found[1].colour not in {found[0].colour, found[2].colour}


def test_the_playground_draws_a_method_as_the_pictures_do():
    for name, look in playground.playground().config()["methods"].items():
        assert (look["colour"], look["marker"]) == styles.METHODS[base.usual(name)][:2]
    assert styles.looks(["FedAvg(lr=1)"])[0] == styles.METHODS["FedAvg"]
    assert styles.method("FedAvgX") is None


def test_curves_of_methods_are_drawn_as_these_methods():
    ax = plots.figure()[1]
    plots.curves(ax, {name: [1.0, 2.0] for name in styles.METHODS})
    assert [(line.get_color(), line.get_marker()) for line in ax.lines] == [
        look[:2] for look in styles.METHODS.values()
    ]
    shapes = {(line.get_color(), line.get_marker(), str(line._unscaled_dash_pattern)) for line in ax.lines}
    assert len(shapes) == len(styles.METHODS)
