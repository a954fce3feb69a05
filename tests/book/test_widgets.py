"""Pictures, their words and their numbers; explorers; the recurring plots."""

import base64
import gzip
import json
import re
import time
import types
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import fedcore as fc
from fedbook.pictures import plots, recomputed, styles, svg, widgets
from fedbook.pictures.alt_text import rounded
from fedbook.pictures.widgets import describe, explore, show


def line(slope=2.0, K=3):
    figure, ax = plots.figure(4, 2.4)
    ax.plot(np.arange(K + 1), slope * np.arange(K + 1) - 1, label="loss")
    ax.set(title="Descent", xlabel="round", ylabel="training loss")
    return figure


def unpacked(page):
    store = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.S)[1])
    return store | {"pictures": json.loads(gzip.decompress(base64.b64decode(store["pictures"].split(",")[1])))}


def numbered_line(slope, K):
    return line(slope, K), {"last": slope * K - 1}


# --------------------------------------------------------------------------------------------------- alt text


def test_alt_text_says_the_message_first_then_the_numbers_then_what_is_drawn():
    figure, ax = plots.figure()
    ax.plot([0, 1], [5.0, 1.0], label="SCAFFOLD")
    ax.plot([0, 1], [5.0, 3.0], label="FedAvg")
    ax.plot([0, 1], [0.0, 9.0])
    ax.set(xlabel="round", ylabel="loss")
    text = describe(figure, {"final loss": 0.123456, "rounds": 3})
    assert text.startswith(
        "Loss against round. FedAvg ends highest, at 3, SCAFFOLD lowest, at 1. "
        "Numbers: final loss 0.1235, rounds 3. SCAFFOLD: from 5"
    )
    assert "A line" not in text, "what a legend does not name is left out"


def test_alt_text_is_never_empty_and_never_longer_than_two_hundred_words():
    assert describe(Figure()).strip()
    figure, axes = plots.figure(8, 8, ncols=3, nrows=3)
    for ax in axes.flat:
        plots.curves(ax, {f"method {k}": np.arange(5.0) * k for k in range(8)})
    assert len(describe(figure).split()) <= 200


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda ax: ax.bar(["a", "b"], [1, 2.5], label="size"), "Bars of size: a 1, b 2.5."),
        (lambda ax: ax.hist(np.arange(100), bins=20), "Bars: 20, from 5 to 5, 100 in all."),
        (lambda ax: ax.imshow([[0, 1], [7, 3]]), "2 rows by 2 columns, values from 0 to 7, highest in row 1, column 0"),
        (lambda ax: ax.scatter([1, 4], [2, -3], label="c"), "2 points (c), across from 1 to 4, up from -3 to 2."),
        (lambda ax: ax.axhline(0.5, label="target"), "target: horizontal at 0.5."),
        (lambda ax: ax.axvline(2), "A line: vertical at 2."),
        (lambda ax: ax.plot([1], [2], "o", label="optimum"), "optimum: one point at (1, 2)."),
        (lambda ax: ax.plot([0, 1, 2], [1, np.nan, 4], label="run"), "highest 4, 1 points missing."),
        (lambda ax: ax.semilogy([1, 2], [[1, 5], [9, 2]]), "Y (log scale) against x. A line: from 1 at 1"),
        (lambda ax: ax.fill_between([0, 1], 0, 1), "1 shaded band."),
        (lambda ax: ax.quiver([0, 0], [0, 0], [3, 0], [4, 1]), "2 arrows of length 1 to 5."),
        (lambda ax: ax.annotate("here", (0, 0)), "Notes: here."),
        (lambda ax: ax.set_title(r"$\alpha_i = \mathrm{max}$"), "alpha_i = max: y against x."),
        (lambda ax: plots.contours(ax, lambda p: (p**2).sum(1), (-1, 1), (-1, 1)), "8 level lines from"),
        (lambda ax: plots.arrows(ax, {"drift": [[0, 0], [1, 2], [2, 2]]}),
         "drift: path of 3 points from (0, 0) to (2, 2)"),
    ],
)  # fmt: skip
def test_alt_text_knows_every_kind_of_picture_of_the_book(draw, words):
    figure, ax = plots.figure()
    draw(ax)
    assert words in describe(figure)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"), (12346.7, "12350"), (11181642, "11181642"), (-0.0, "0"), (1e-7, "1e-07"), (True, "True"),
        (float("nan"), "nan"), (np.float32(3.0), "3"), ("as it is", "as it is"), (2.5e9, "2.5e+09"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_to_what_a_reader_wants(value, text):
    assert rounded(value) == text


# --------------------------------------------------------------------------------------------- static picture


def test_a_picture_is_a_small_svg_with_the_same_text_each_time_and_leaves_its_figure_alone():
    figure = line()
    before = figure.canvas, figure.dpi, tuple(figure.get_size_inches()), figure.patch.get_visible()
    first, again = show(figure).drawn, show(figure).drawn
    assert first == again == show(line()).drawn
    assert first != show(line(2.5)).drawn
    assert (figure.canvas, figure.dpi, tuple(figure.get_size_inches()), figure.patch.get_visible()) == before
    assert first.size == (440, 264)
    assert len(first.wide) < 9_000


def test_a_picture_has_no_paper_and_its_colours_turn_on_a_dark_page():
    figure = line()
    figure.axes[0].plot([0, 1], [0, 1], "k-")
    text = show(figure).drawn.wide
    day, night = re.findall(r":root{([^}]*)}", text)
    by_day, by_night = (dict(pair.split(":") for pair in part.rstrip(";").split(";")) for part in (day, night))
    assert "@media(prefers-color-scheme:dark)" in text
    for name, colour in by_day.items():
        assert by_night[name] == styles.dark(colour)
    assert styles.colours()["ink"] in by_day.values()
    assert not re.search(r'<path class="c\d+" d="M0 [\d.]+L', text), "the figure's white paper is drawn"
    figure.patch.set_facecolor("#ffeeaa")
    assert "#ffeeaa" in show(figure).drawn.wide


def test_on_a_phone_panels_are_stacked_and_letters_are_as_large_as_text():
    figure, axes = plots.figure(7.4, 3.0, ncols=3)
    for k, ax in enumerate(axes):
        ax.plot([0, 1], [k, 1], label=f"curve {k}")
    handles = [handle for ax in axes for handle in ax.get_lines()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    drawn, specs = show(figure).drawn, [ax.get_subplotspec() for ax in axes]
    assert drawn.phone_size[0] / widgets.CSS_INCH == svg.PHONE
    assert drawn.phone_size[1] > 2 * drawn.size[1]
    for text in (drawn.wide, drawn.phone):
        heights = [float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>curve \d<', text)]
        assert len(heights) == 3
        assert len(set(heights)) == (1 if text is drawn.wide else 2), "two names a line on a phone"
    assert 11 / 72 * 358 / svg.PHONE > 12, "CSS pixels of a label in a column of 358"
    assert [ax.get_subplotspec() for ax in axes] == specs
    assert show(figure).drawn == drawn


def test_on_a_phone_long_names_of_rows_stand_clear_above_their_markers():
    figure, ax = plots.figure()
    ax.plot([0, 1], [0, 1], "o", markersize=6)
    ax.set_yticks([0, 1], ["the first of two long names", "the second of two long names"])
    drawn = show(figure).drawn
    for text, above in ((drawn.wide, False), (drawn.phone, True)):
        names = sorted(float(y) for y in re.findall(r'<text [^>]*y="([-\d.]+)"[^>]*>the ', text))
        marks = sorted(map(float, re.findall(r'<use [^>]*y="([-\d.]+)"', text)[-2:]))
        assert [name < mark - 3 for name, mark in zip(names, marks, strict=True)] == [above] * 2
    assert show(figure).drawn == drawn


def test_letters_of_a_formula_become_words_and_a_heat_map_one_image():
    figure, ax = plots.figure()
    ax.set_xlabel(r"round $t$ of $\alpha_i$")
    ax.pcolormesh(np.arange(900.0).reshape(30, 30))
    text = show(figure).drawn.wide
    assert ">round\xa0</tspan>" in text
    assert text.count("<image") == 1
    assert "image{filter:invert" in text
    ax.imshow(np.zeros((4, 4, 3)))
    assert "image{filter:invert" not in show(figure).drawn.wide  # a photograph keeps its colours


def test_a_picture_prints_its_numbers_and_says_them():
    bundle = show(line(), {"final <loss>": 0.123456}, caption="One & two")._repr_mimebundle_()
    assert bundle["text/plain"] == "final <loss> = 0.1235"
    page = bundle["text/html"]
    assert "<span>final &lt;loss&gt;</span> <b>0.1235</b>" in page
    assert "One &amp; two" in page
    assert "Numbers: final &lt;loss&gt; 0.1235." in re.search(r'alt="([^"]*)"', page)[1]
    assert page.count("data:image/svg+xml,") == 2  # for a column and for a phone
    assert "<script" not in page
    for part in re.findall(r'(?:src|srcset)="data:image/svg\+xml,([^"]*)"', page):
        ElementTree.fromstring(unquote(part))


def test_words_of_the_author_replace_the_description_but_not_the_numbers():
    assert show(line(), {"loss": 1}, alt='A "steep" fall.').alt == 'A "steep" fall. Numbers: loss 1.'
    assert 'alt="A &quot;steep&quot; fall."' in show(line(), alt='A "steep" fall.').html()
    assert show(line(), alt="  ").alt == describe(line())


# -------------------------------------------------------------------------------------------------- explorers


def test_every_combination_is_drawn_once_in_row_major_order():
    calls = []

    def fn(slope, K):
        calls.append((slope, K))
        return numbered_line(slope, K)

    explorer = explore(fn, slope=[1.0, 2.0], K=range(1, 3), start={"K": 2})
    assert calls == [(1.0, 1), (1.0, 2), (2.0, 1), (2.0, 2)]
    assert [f.numbers["last"] for f in explorer.frames] == ["0", "1", "1", "3"]
    assert [f.alt.split(".")[0] for f in explorer.frames[:2]] == ["At slope 1, K 1", "At slope 1, K 2"]
    assert explorer.start == 1


def test_text_form_lists_the_numbers_of_every_frame():
    rows = repr(explore(numbered_line, slope=np.array([1.0, 1 / 3]), K=[3])).splitlines()
    assert [row.split() for row in rows] == [["slope", "K", "last"], ["1", "3", "2"], ["0.333333", "3", "0"]]


def test_equal_frames_are_stored_once():
    explorer = explore(lambda n, m: line(n), n=[1, 2], m=[1, 2])
    assert len(explorer.frames) == 4
    assert len(explorer.pictures) == 2
    assert len(unpacked(explorer.html())["pictures"]) == 2


def test_html_is_one_block_that_markdown_and_sphinx_leave_alone():
    figure = explore(lambda n: (line(n), {"</script>": "<!-- "}), n=[1, 2]).html()
    assert all(row.strip() == row for row in figure.split("\n"))
    assert "" not in figure.split("\n")
    assert figure.startswith("<figure")
    assert figure.count("<script") == figure.count("</script>") == 2
    assert "<!--" not in figure
    assert not re.search(r'\b(?:src|href)="(?!data:)', figure)
    assert unpacked(figure)["frames"][1]["numbers"] == [["</script>", "<!-- "]]


def test_html_is_the_same_each_time_and_the_script_is_small():
    first, again = (explore(numbered_line, slope=[1.0, 2.0], K=[1], caption="Same.").html() for _ in range(2))
    assert first == again
    assert len(widgets.asset("explore.js")) < 6000


def test_values_too_close_for_a_short_label_are_written_out():
    explorer = explore(lambda a: line(a), a=[0.1234567, 0.1234568])
    assert [row["a"] for row in explorer.settings()] == ["0.1234567", "0.1234568"]


def test_drawing_leaves_pyplot_and_its_settings_alone():
    import matplotlib
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    explore(numbered_line, slope=[1.0], K=[1, 2])
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


# ----------------------------------------------------------------------------- controls that compute in the kernel


def test_a_stored_frame_is_shown_without_a_call_and_an_error_stands_in_the_picture_until_the_next_value(monkeypatch):
    monkeypatch.setattr(recomputed, "SOON", 60)  # wait for the pictures, on a busy machine too
    calls = []

    def fn(slope):
        calls.append(slope)
        if slope > 3:
            raise ValueError(f"slope={slope} <is> too steep")
        return line(slope)

    slider, bar, shown = explore(fn, slope=[1e-13, 2.0], live={"slope": (1e-14, 4.0)}).widget.children
    slider.value = 2.0
    assert calls == [1e-13, 2.0]
    slider.value = 3e-13
    slider.value = 4.0
    assert calls == [1e-13, 2.0, 3e-13, 4.0], "small values are values of their own"
    assert "ValueError: slope=4.0 &lt;is&gt; too steep" in shown.value
    assert "<img" not in shown.value
    assert bar.layout.display == "none"
    slider.value = 2.5
    assert "<img" in shown.value


def test_a_slow_function_is_called_when_the_slider_is_released(monkeypatch):
    monkeypatch.setattr(recomputed, "SOON", 60)
    slider = explore(line, slope=[1.0, 2.0], live=True).widget.children[0]
    monkeypatch.setattr(recomputed, "DRAGGED", 0)
    slider.value = 1.5
    assert not slider.continuous_update
    monkeypatch.setattr(recomputed, "DRAGGED", 100)
    slider.value = 1.6
    assert slider.continuous_update, "a quick picture follows a dragged slider"


def test_a_new_value_cancels_the_one_that_computes(monkeypatch):
    left = []

    def fn(slope):
        try:
            while slope > 2:
                time.sleep(0.001)
        finally:
            left.append(slope)
        return line(slope)

    monkeypatch.setattr(recomputed, "SOON", 60)
    slider, waiting, shown = explore(fn, slope=[1.0, 2.0], live={"slope": (0.0, 5.0)}).widget.children
    monkeypatch.setattr(recomputed, "SOON", 0.05)
    slider.value = 4.0
    assert waiting.layout.display is None
    monkeypatch.setattr(recomputed, "SOON", 60)
    slider.value = 1.25
    assert left[-2:] == [4.0, 1.25], "one at a time"
    assert "slope 1.25" in shown.value
    assert waiting.layout.display == "none"


def test_words_are_chosen_and_a_mask_has_a_button_for_each_place():
    fn = lambda kept, kind, T: (line(), {"kept": kept.count("1"), "T": T})  # noqa: E731
    explorer = explore(fn, kept=["111"], kind=["a", "b", "c"], T=[1.0, np.inf], live={"T": (0.1, 9.0)})
    mask, kind, T, _, shown = explorer.widget.children
    assert [button.description for button in mask.children[1:]] == ["1", "2", "3"]
    mask.children[2].value = False
    assert mask.value == "101"
    assert "<b>2</b>" in shown.value
    kind.value, T.value = "c", 4.5
    assert "kind c, T 4.5" in shown.value
    assert explorer.settings()[1]["T"] == "∞"


def test_what_is_stored_is_the_frames_alone_also_in_a_kernel_if_no_control_was_asked_for(monkeypatch):
    frames, live = (explore(numbered_line, slope=[1.0, 2.0], K=[1, 3], live=live) for live in (False, True))
    stored = {"text/html": frames.html(), "text/plain": repr(frames)}
    assert live._repr_mimebundle_() == frames._repr_mimebundle_() == stored
    monkeypatch.delenv("FEDCORE_LIVE", raising=False)
    monkeypatch.setattr("IPython.get_ipython", lambda: types.SimpleNamespace(kernel=True))
    assert frames._repr_mimebundle_() == stored


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1], "text"), ([1, 2], "toggle"), (["a", "b"], "toggle"), ([False, True], "toggle"), ([1, 2, 3.5], "slider"),
        (np.arange(3), "slider"), ([0.0, 1.0, np.inf], "slider"), (["a", "b", "c"], "menu"), ([None, 1, 2], "menu"),
        ([(1,), (2,), (3,)], "menu"),
    ],
)  # fmt: skip
def test_numbers_get_a_slider_two_values_a_toggle_and_all_else_a_menu(values, kind):
    assert widgets.control_kind(values) == kind


# ------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: explore(line), r"no parameter; give at least one list"),
        (lambda: explore(line, slope=[]), r"slope=\[\] is empty; give at least one value"),
        (lambda: explore(line, slope=3.0), r"slope=3.0 is not a sequence.*give a list"),
        (lambda: explore(line, slope=[1.0, 1.0]), r"slope has the value 1.0 2 times; give each value once"),
        (lambda: explore(line, slop=[1.0]), r"fn cannot be called with slop \(got an unexpected keyword"),
        (lambda: explore(numbered_line, slope=[1.0]), r"required argument: 'K'\); give each parameter a list"),
        (lambda: explore(line, slope=range(8), K=range(8)), r"8 slope x 8 K = 64 combinations.*max_frames=60"),
        (lambda: explore(line, slope=[1.0, 2.0], start={"slope": 3.0}), r"start has slope=3.0; use one of 1, 2"),
        (lambda: explore(line, slope=[1.0, 2.0], play="K"), r"play='K' is not a parameter.*use one of \['slope'\]"),
        (lambda: explore(line, slope=[1.0], live={"L": (0, 1)}), r"live names 'L', which is no parameter"),
        (lambda: explore(line, slope=[1.0, 5.0], live={"slope": (0, 2)}), r"live has slope=\(0, 2\); give two finite"),
        (lambda: explore(line, slope=[1.0], live={"slope": (0, np.inf)}), "two finite numbers"),
        (lambda: explore(line, slope=[1, 2, np.inf], start={"slope": np.inf}, live={"slope": (1, 2)}), "cannot show"),
        (lambda: explore(line, slope=[1.0, 2.0]).widget, r"shows stored frames; give explore\(\.\.\., live=True\)"),
        (lambda: explore(3, slope=[1.0]), r"fn is a int; give a function"),
        (lambda: explore(lambda n: None, n=[1]), r"what fn\(n=1\) returned is a NoneType, not a matplotlib Figure"),
        (lambda: explore(lambda n: (line(), {"x": [1, 2]}), n=[1]), r"numbers\['x'\] is \[1, 2\]; give one number"),
        (lambda: show(Figure(), {"a": 1, "a ": 2}), "twice"),
        (lambda: show(None), r"figure is a NoneType, not a matplotlib Figure"),
        (lambda: show(line(), [1.0]), r"numbers is a list; give a dictionary"),
        (lambda: plots.curves(line().axes[0], {"a": np.zeros(3)}, x=[1, 2]), r"shape \(1, 3\) and x \(2,\)"),
        (lambda: plots.density(line().axes[0], {"a": [2.0, 2.0]}), r"group 'a' has no density; give at least two"),
        (lambda: plots.partition([1, 2]), r"counts has shape \(2,\); give finite numbers >= 0 as \[clients, labels\]"),
        (lambda: plots.arrows(line().axes[0], {"p": [1, 2, 3]}), r"path 'p' has shape \(3,\); give points as \[k, 2\]"),
    ],
)  # fmt: skip
def test_a_wrong_call_names_the_value_the_range_and_the_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ------------------------------------------------------------------------------------------------------- plots


def test_curves_draw_the_mean_and_one_standard_deviation_of_the_seeds():
    ax = plots.figure()[1]
    runs = np.array([[1.0, 2.0, 3.0], [3.0, 4.0, 7.0]])
    plots.curves(ax, {"FedAvg": runs, "one seed": runs[0]}, x=[10, 20, 30])
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[10, 2], [20, 3], [30, 5]])
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].min(), 2 - np.sqrt(2))
    np.testing.assert_allclose(band[:, 1].max(), 5 + np.sqrt(8))
    assert len(ax.collections) == 1  # one seed has no band
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["FedAvg", "one seed"]


def test_a_density_lies_between_the_lowest_and_the_highest_value():
    values = np.random.default_rng(0).gamma(9.0, size=200)
    x = plots.density(plots.figure()[1], {"a": values}).lines[0].get_xdata()
    assert (x[0], x[-1]) == pytest.approx((values.min(), values.max()))


def test_groups_stand_beside_each_other_with_their_mean_and_deviation_in_their_own_style():
    groups = {"FedAvg": {0.5: [1.0, 3.0], 0.25: [5.0, 5.0]}, "FedProx": {0.5: [2.0, np.nan], 0.25: [4.0, 8.0]}}
    points = plots.grouped(plots.figure()[1], groups)
    assert [t.get_text() for t in points.get_xticklabels()] == ["0.25", "0.5"]
    lines = [line for line in points.lines if line.get_marker() != "None"]
    np.testing.assert_allclose([line.get_ydata() for line in lines], [[5, 2], [6, np.nan]])  # no mean without a seed
    assert (np.diff([line.get_xdata()[0] for line in lines]) > 0).all()
    np.testing.assert_allclose(points.lines[2].get_ydata(), [2 - np.sqrt(2), 2 + np.sqrt(2)])
    bars = plots.grouped(plots.figure()[1], {name: {"a": [1.0, 3.0]} for name in groups}, bars=True).containers
    assert [[bar.get_height() for bar in group] for group in bars] == [[2.0], [2.0]]
    shown = [line.get_color() for line in lines] + [group[0].get_facecolor() for group in bars]
    assert [to_hex(colour) for colour in shown] == 2 * [styles.METHODS[name].colour for name in groups]


def test_a_statistical_picture_is_the_same_every_time_and_has_colours_for_dark_pages():
    def drawn():
        figure, axes = plots.figure(7.4, 3.0, ncols=3)
        plots.density(axes[0], {"FedAvg": [1.0, 2.0, 4.0]})
        plots.grouped(axes[1], {"FedAvg": {"a": [1.0, 2.0]}, "SCAFFOLD": {"a": [3.0, 4.0]}}, bars=True)
        plots.heat(axes[2], [[0.0, 1.0], [2.0, 3.0]], "cosine", cmap="Blues")
        plots.legend(figure, ["FedAvg", "SCAFFOLD"])
        return show(figure)

    picture = drawn()
    assert picture.drawn == drawn().drawn
    assert "Heat map of 2 rows by 2 columns, cosine from 0 to 3, highest in row 1, column 1" in picture.alt
    for name in ("FedAvg", "SCAFFOLD"):
        assert styles.dark(styles.METHODS[name].colour) in picture.drawn.wide
        assert f">{name}<" in picture.drawn.phone


def test_a_partition_picture_shows_the_counts_of_a_hundred_clients_and_sixty_two_labels():
    counts = np.random.default_rng(0).integers(0, 9, (100, 62))
    ax = plots.partition(counts)
    np.testing.assert_array_equal(np.asarray(ax.collections[0].get_array()), counts.T)
    assert len(show(ax.figure).drawn.wide) < 60_000
    assert len(ax.get_xticks()) <= 12
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, 100), (0, 62)), "the label 0 is below"


def test_arrows_are_as_long_as_the_steps():
    ax = plots.figure()[1]
    plots.arrows(ax, {"client": np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0]])})
    arrows = ax.collections[0]
    np.testing.assert_allclose(np.column_stack([arrows.U, arrows.V]), [[1, 2], [2, -1]])
    assert arrows.scale == 1
    assert ax.get_aspect() == 1
    plots.arrows(ax, [np.zeros((1, 2))])  # a single point is a path without an arrow


def test_walks_draw_a_path_for_each_method_and_say_how_far_it_ends_from_the_optimum():
    ax, problem = plots.figure()[1], fc.playground().federation
    run = {"rounds": 4, "lr": 0.1, "local_steps": 10}
    ends = plots.walks(ax, problem, {"FedAvg": fc.FedAvg(), "by hand": fc.SCAFFOLD()}, (-3, 3), (-2, 2), **run)
    drawn = {line.get_label(): line.get_xydata() for line in ax.lines if line.get_gid() == "path"}
    last = fc.simulate(fc.FedAvg(), problem, **run).params
    assert list(drawn) == list(ends) == ["FedAvg", "by hand"]
    assert len(drawn["FedAvg"]) == 5, "the start and every round"
    assert np.allclose(drawn["FedAvg"][-1], last)
    assert ends["FedAvg"] == pytest.approx(float((last - problem.optimum).norm()))


def test_contours_of_a_quadratic_are_evenly_spaced():
    ax = plots.figure()[1]
    plots.contours(ax, lambda p: 0.5 * (p**2).sum(axis=1), (-1, 1), (-1, 1), levels=3)
    np.testing.assert_allclose(np.diff(np.sqrt(ax.collections[0].levels)), 0.25, atol=1e-6)
    plots.contours(ax, lambda p: np.zeros(len(p)), (0, 1), (0, 1))  # a flat function has no level line
    assert len(ax.collections) == 1


def test_a_figure_of_pyplot_is_closed_and_keeps_its_layout():
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(4, 2))
    ax.set(xlabel="a label that needs room", title="title\nof two lines")
    widgets.show(figure)
    assert not plt.fignum_exists(figure.number)
    assert figure.get_layout_engine() is None


def test_curves_that_end_within_a_hundredth_of_the_panel_or_below_it_are_named_together():
    for nudge in (1e-12, -1e-12, 1e-2, -1e-2):
        figure, ax = plots.figure(4, 2)
        for name, end in (("a", 1.0), ("b", 1.0 + nudge), ("c", 0.5), ("d", 0.1)):
            ax.plot([0, 1], [2, end], label=name)
        ax.set(xlabel="round", ylabel="distance", ylim=(0.6, 2.1))
        assert f"a and b end highest, at {max(1, 1 + nudge):.3g}, c and d lowest, at 0.1." in describe(figure)
        for line in ax.lines[2:]:
            line.remove()
        assert "highest, at" not in describe(figure), "both end together"
