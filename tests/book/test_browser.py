"""Explorers, driven in a real Chromium: on a page made here, and on every page of the built book."""

import importlib.util
import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml
from browser import DESKTOP, HEAD, PHONE, check_shown, drive, expected, opened, shown, stored

from fedbook.pictures import plots, widgets

ROOT = Path(__file__).resolve().parents[2]


def parabola(alpha, K):
    figure, ax = plots.figure(4, 2)
    x = np.linspace(-1, 1, 21)
    ax.plot(x, alpha * x**2 + K, label="</script> & <b>bound</b>")
    ax.set_ylim(0, 12)
    return figure, {"height": alpha + K, "note": f"<i>K</i> is {K} & more"}


def steps(n, fixed):
    figure, ax = plots.figure(4, 2)
    ax.bar(range(3), [min(n, 2), 1, 3])  # the last two frames look alike
    return figure, {"n": n * fixed}


HOSTILE = r"""<p>\(a^2\) \(\href{javascript:document.title='run'}{x}\)
\(\style{background:url(https://foreign.example/y.png)}{z}\)</p>"""


def test_a_formula_carries_no_script_and_no_address(browser, tmp_path):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]["mathjax3_config"]
    (package,) = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations
    path = tmp_path / "formula.html"
    script = f"<script>MathJax = {json.dumps(config)}</script>"
    source = (Path(package) / "static" / "mathjax" / "tex-chtml.js").as_uri()
    path.write_text(f'{HEAD}<title>t</title><body>{HOSTILE}{script}<script src="{source}"></script>', "utf-8")
    with opened(browser, path) as tab:
        tab.wait_for_function("window.MathJax && MathJax.startup && MathJax.startup.promise")
        tab.evaluate("MathJax.startup.promise")
        assert tab.locator("mjx-container").count() == 3
        assert tab.locator("mjx-container a[href^=javascript]").count() == 0
        assert "foreign.example" not in tab.locator("p").inner_html()


WORDS = ["one", "two & a half", "a family of methods with a name that is much too long for a phone"]


def chosen(data, setting):
    return plots.figure(4, 2)[0], {"at": f"{data} {setting}"}


@pytest.fixture(scope="module")
def explorers():
    first = widgets.explore(parabola, alpha=[0.5, 1.0, 2.0], K=[1, 5, 9], start={"K": 5}, caption="A < B & C.")
    choices = widgets.explore(chosen, data=[1, 2], setting=WORDS, start={"data": 2, "setting": WORDS[1]})
    return [first, widgets.explore(steps, n=[1, 2, 3], fixed=[7]), first, choices]


@pytest.fixture
def page(explorers, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(HEAD + "<title>t</title><body>" + "<p>text</p>".join(e.html() for e in explorers), "utf-8")
    return path


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_keys_move_picture_numbers_and_alt_text_together(browser, explorers, page, size):
    with opened(browser, page, size) as tab:
        figures = tab.locator("figure.fc-explorer").all()
        for figure, explorer in zip(figures, explorers, strict=True):
            expect = expected(explorer)
            assert check_shown(figure, expect) == explorer.start
            assert len(drive(figure, expect)) >= 3
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


MUTATIONS = {
    "numbers": ("fill(numbers, frame.numbers);", "numbers are not those of frame"),
    "picture": (
        "if (pictures.length) [image.src, phone.srcset] = frame.uris ?? pictures[frame.picture];",
        "picture is not that of frame",
    ),
    "alt text": ("image.alt = frame.alt;", "alt text is not that of frame"),
    "frame index": ("figure.dataset.frame = index;", "the figure says frame"),
    "spoken value": ('slider.setAttribute("aria-valuetext", labels[i][p]);', "says another value"),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_the_check_fails_on_a_page_whose_script_leaves_something_stale(browser, explorers, tmp_path, what):
    line, complaint = MUTATIONS[what]
    good = explorers[0].html()
    assert good.count(line) == 1
    # The line still runs once, for the start frame: only what comes after a key press is stale.
    bad = good.replace(line, "if (!figure.fcOnce) { figure.fcOnce = 1; " + line.rstrip(";") + "; }")
    path = tmp_path / "stale.html"
    path.write_text(HEAD + bad, "utf-8")
    with opened(browser, path) as tab, pytest.raises(AssertionError, match=complaint):
        drive(tab.locator("figure.fc-explorer"), expected(explorers[0]))


def test_explorers_with_the_same_content_do_not_move_each_other(browser, explorers, page):
    with opened(browser, page) as tab:
        first, _, twin, _ = tab.locator("figure.fc-explorer").all()
        first.get_by_role("slider").first.press("End")
        assert check_shown(first, expected(explorers[0])) != explorers[0].start
        assert check_shown(twin, expected(explorers[2])) == explorers[2].start
        ids = tab.evaluate("[...document.querySelectorAll('figure [id], figure[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_takes_the_colour_scheme_of_its_page_and_a_phone_its_own_picture(
    browser, explorers, tmp_path, scheme
):
    """A page on white paper that is asked for its pixels: they are paper or ink of its scheme."""
    from io import BytesIO

    from PIL import Image

    path, ground = tmp_path / "page.html", {"light": "#fff", "dark": "#000"}[scheme]
    style = f"<style>:root{{color-scheme:{scheme};background:{ground}}}</style>"
    path.write_text(HEAD + style + explorers[0].html(), "utf-8")
    with opened(browser, path, PHONE, color_scheme="light") as tab:
        image = tab.locator("img")
        assert image.evaluate("i => i.currentSrc") == tab.locator("source").get_attribute("srcset")
        pixels = Image.open(BytesIO(image.screenshot())).convert("L")
        dark = sum(pixels.histogram()[:64]) / (pixels.width * pixels.height)
        assert dark > 0.8 if scheme == "dark" else dark < 0.1


def test_play_steps_the_first_slider_and_pauses(browser, explorers, page):
    expect = expected(explorers[0])
    with opened(browser, page) as tab:
        tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + 1)  # else a slow machine plays on between two lines
        figure = tab.locator("figure.fc-explorer").first
        figure.get_by_role("button", name="Play").click()
        assert check_shown(figure, expect) == 4  # one step at once: alpha 1.0, K 5
        figure.get_by_role("button", name="Pause").click()
        tab.clock.run_for(5000)
        assert check_shown(figure, expect) == 4
        figure.get_by_role("button", name="Play").click()
        assert check_shown(figure, expect) == 7  # the last value: playing ends there
        assert figure.get_by_role("button").inner_text() == "Play"
        figure.get_by_role("button", name="Play").press("Enter")
        assert check_shown(figure, expect) == 1  # from the beginning, by keyboard
        assert figure.locator(".fc-numbers").get_attribute("aria-live") == "off"
        tab.clock.run_for(750)
        assert check_shown(figure, expect) == 4
        figure.get_by_role("slider").nth(1).press("ArrowRight")  # a hand on a slider stops the show
        tab.clock.run_for(5000)
        assert check_shown(figure, expect) == 5
        assert figure.locator(".fc-numbers").get_attribute("aria-live") == "polite"


def test_readers_who_ask_for_less_motion_get_single_steps(browser, explorers, page):
    expect = expected(explorers[0])
    with opened(browser, page, reduced_motion="reduce") as tab:
        figure = tab.locator("figure.fc-explorer").first
        figure.get_by_role("button", name="Step").click()
        tab.clock.run_for(5000)
        assert check_shown(figure, expect) == 4


def test_tab_reaches_every_control_in_order_of_the_page(browser, page):
    with opened(browser, page) as tab:
        reached = []
        for _ in range(8):
            tab.keyboard.press("Tab")
            reached.append(tab.evaluate("document.activeElement.dataset.name || document.activeElement.textContent"))
        assert reached == ["alpha", "Play", "K", "n", "Play", "alpha", "Play", "K"]


@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone_sliders_have_the_whole_width_however_long_the_words(browser, page, width):
    with opened(browser, page, (width, 800)) as tab:
        for slider in tab.get_by_role("slider").all():
            assert slider.bounding_box()["width"] > 0.85 * (width - 16)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_arrow_keys_reach_a_slider_in_jupyterlab(browser, page):
    """Its command mode takes them wherever the focus is, but from elements that say otherwise."""
    take = "e => { if (!e.target.hasAttribute('data-lm-suppress-shortcuts')) e.preventDefault(); }"
    with opened(browser, page) as tab:
        tab.evaluate(f"document.addEventListener('keydown', {take}, true)")
        slider = tab.get_by_role("slider").first
        slider.press("ArrowRight")
        assert slider.input_value() == "1"


def test_without_script_picture_numbers_and_alt_text_stand(browser, explorers, page):
    with opened(browser, page, java_script_enabled=False) as tab:
        for figure, explorer in zip(tab.locator("figure.fc-explorer").all(), explorers, strict=True):
            frame = expected(explorer).frames[explorer.start]
            assert figure.locator("img").get_attribute("src") == frame["picture"]
            assert figure.locator("img").get_attribute("alt") == frame["alt"]
            text = figure.locator("figcaption").inner_text()
            settings = explorer.settings()[explorer.start]
            for name, value in [*frame["numbers"], *settings.items()]:
                assert f"{value}" in text, f"{name} is missing from {text}"
            assert figure.locator("input, button").count() == 0


def test_text_in_the_data_is_printed_and_never_becomes_markup(browser, explorers, page):
    with opened(browser, page) as tab:
        figure = tab.locator("figure.fc-explorer").first
        assert "</script> & <b>bound</b>" in figure.locator("img").get_attribute("alt")
        assert dict(shown(figure)["numbers"])["note"] == "<i>K</i> is 5 & more"
        assert figure.locator(".fc-caption").inner_text() == "A < B & C."
        assert figure.locator("i").count() == 0


def test_the_source_of_a_page_tells_the_same_frames_as_python(explorers, page):
    assert stored(page.read_text("utf-8")) == [expected(e) for e in explorers]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>console.error('THEBE_JS_URL is late')</script>", "errors in the console.*is late"),
        ("<script>undefinedThing()</script>", "errors in the console.*undefinedThing"),
        ("<img alt='x' src='https://example.org/x.png'>", "leave the machine.*example.org"),
        ("<script>fetch('http://192.0.2.1/').catch(() => 0)</script>", "leave the machine.*192.0.2.1"),
    ],
)
def test_the_driver_fails_on_errors_and_on_requests_that_leave(browser, tmp_path, body, complaint):
    path = tmp_path / "bad.html"
    path.write_text(HEAD + body, "utf-8")
    with pytest.raises(AssertionError, match=complaint), opened(browser, path) as tab:
        tab.wait_for_load_state("networkidle")


# Inline formulas on a screen whose scroll bars take room: only one that is wider than its line may have one.
BARS = """[...document.querySelectorAll("span.math.notranslate")].filter(e => e.offsetParent
    && e.scrollWidth > e.clientWidth && e.clientWidth + 4 < e.closest("p, li, td, dd, figcaption, div").clientWidth
).map(e => e.textContent)"""
SMALL = """[...document.querySelectorAll("article figure.fc-picture img")].map(e => [e, e.getBoundingClientRect()])
    .filter(([e, box]) => box.width && (box.width < 690 || box.height < 320) && !e.closest("details"))
    .map(([e, box]) => `${Math.round(box.width)} x ${Math.round(box.height)}: ${e.alt.slice(0, 60)}`)"""
WIDER = ((1440, 900), (1920, 1080))
# Texts of a drawing that its edge cuts, in the pictures of figures, wide and for phones, and in explorers' first ones.
# The drawings stand in a document of their own, because each would have the whole page laid out again.
CUT_TEXT = """(() => {
    const frame = document.body.appendChild(document.createElement("iframe")), cut = new Set();
    const place = frame.contentDocument.body;
    for (const figure of document.querySelectorAll("article figure.fc-picture"))
        for (const uri of [figure.querySelector("img").src, figure.querySelector("source").srcset]) {
            place.innerHTML = decodeURIComponent(uri.slice(uri.indexOf(",") + 1));
            const edge = place.firstElementChild.getBoundingClientRect();
            for (const text of place.querySelectorAll("text")) {
                const {left, right, top, bottom} = text.getBoundingClientRect();
                const out = Math.max(edge.left - left, right - edge.right, edge.top - top, bottom - edge.bottom);
                if (out > 8) cut.add(`${text.textContent} by ${Math.round(out)} of ${Math.round(edge.width)} pixels`);
            }
        }
    frame.remove();
    return [...cut];
})()"""
TWICE = """[...document.querySelectorAll("[id]")].map(e => e.id).filter((id, k, all) => all.indexOf(id) < k)"""


# ------------------------------------------------------------------------------------------ the built book


def pages_of(book: Path) -> list[Path]:
    """Every page a reader sees: not the parts of the theme, not a redirection."""
    pages = (p for p in sorted(book.rglob("*.html")) if "_static" not in p.relative_to(book).parts)
    return [p for p in pages if 'http-equiv="refresh"' not in p.read_text("utf-8").lower()]


def one_of_each(book: Path) -> list[Path]:
    """The pages that a reader sees, and two of the methods' pages, which one template makes."""
    cards = ("fedavg", "heterofl")
    return [path for path in pages_of(book) if path.parent.name != "methods" or path.stem in cards]


WIDE = """[...document.querySelectorAll("article img, article figure, .fc-controls, .fc-row")].filter(e => {
    const box = e.getBoundingClientRect();
    return box.right > innerWidth + 1 || box.left < -1;
}).map(e => e.tagName + "." + e.className)"""
CUT = """[...document.querySelectorAll("article pre")].filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent.slice(0, 60))"""
SILENT = "[...document.images].filter(i => !i.alt.trim()).map(i => i.src.slice(0, 80))"


def fits(tab, size) -> None:
    tab.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
    wide = tab.evaluate(WIDE)
    assert not wide, f"{tab.url}: wider than {size[0]} pixels: {wide}"
    cut = tab.evaluate(CUT)
    assert not cut, f"{tab.url}: code that is cut at {size[0]} pixels: {cut}"


def fits_everywhere(tab, path: Path) -> int:
    """Check a page at all widths, with closed and open folds, and its explorers; returns the number of explorers."""
    silent = tab.evaluate(SILENT)
    assert not silent, f"{path.name}: pictures without alt text: {silent}"
    twice = tab.evaluate(TWICE)
    assert not twice, f"{path.name}: names of more than one element: {twice}"
    fits(tab, DESKTOP)
    # Folds are opened, as a reader does.
    tab.evaluate("document.querySelectorAll('article details').forEach(d => d.open = true)")
    fits(tab, DESKTOP)
    for size in WIDER:
        fits(tab, size)
    cut = tab.evaluate(CUT_TEXT)
    assert not cut, f"{path.name}: texts of a picture that its edge cuts: {cut}"
    explorers = list(zip(tab.locator("figure.fc-frames").all(), stored(path.read_text("utf-8")), strict=True))
    for figure, expect in explorers:
        assert check_shown(figure, expect) == expect.start, path.name
        drive(figure, expect)
    for slider in tab.locator("figure.fc-closed").get_by_role("slider").all():
        slider.press("End")
    fits(tab, PHONE)
    for figure, expect in explorers:
        for slider in figure.get_by_role("slider").all():
            slider.press("End")
            check_shown(figure, expect)
    return len(explorers)


# All rules but contrast; then contrast, which takes most of the time, on texts of looks that are not known yet.  What a
# text is like: its colour, size and weight, and the backgrounds under it.  Of each look: first, middle and last text.
AXE = """async known => {
    const given = {resultTypes: ["violations"], preload: false};
    if (!known) return axe.run(document, {...given, rules: {"color-contrast": {enabled: false}}});
    const under = new Map([[null, ""]]), looks = new Map();
    const behind = e => {
        if (!under.has(e)) {
            const s = getComputedStyle(e), own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter];
            under.set(e, behind(e.parentElement) + own + ";");
        }
        return under.get(e);
    };
    for (const e of document.querySelectorAll("body *")) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
        const s = getComputedStyle(e), look = [s.color, s.fontSize, s.fontWeight, s.textShadow, behind(e)].join("|");
        if (known.includes(look)) continue;
        if (!looks.has(look)) looks.set(look, []);
        looks.get(look).push(e);
    }
    const include = [...looks.values()].flatMap(all => [...new Set([all[0], all[all.length >> 1], all.at(-1)])]);
    if (!include.length) return {violations: [], looks: []};
    return {...await axe.run({include}, {...given, runOnly: ["color-contrast"]}), looks: [...looks.keys()]};
}"""


AXE_CORE = importlib.util.find_spec("axe_playwright_python")
INSTALL_AXE = "install it: pip install axe-playwright-python"


def with_axe(tab) -> bool:
    """Load axe-core into a page, open its folds and stop what moves; False where axe-core is missing."""
    if AXE_CORE is None:
        return False
    tab.add_style_tag(content="* { animation: none !important; transition: none !important }")
    tab.evaluate((Path(AXE_CORE.submodule_search_locations[0]) / "axe.min.js").read_text("utf-8"))
    tab.evaluate("document.querySelectorAll('article details').forEach(d => d.open = true)")
    return True


def serious(tab, known: list[str] | None = None) -> list[str]:
    """Serious findings of axe-core: of its rule for contrast on looks that are not `known`, or of all other rules."""
    result = tab.evaluate(AXE, known)
    if known is not None:
        known += result["looks"]
    found = [rule for rule in result["violations"] if rule["impact"] in ("serious", "critical")]
    return [f"{r['id']}: {r['nodes'][0]['html'][:99]}: {r['nodes'][0]['failureSummary']}" for r in found]


SCREENS, SCREEN = 12, (1280, 800)


WIDE_FORMULAS = """[...document.querySelectorAll('.bd-article mjx-container[display]')].filter(e => e.offsetParent)
    .map(e => [[...e.querySelectorAll('mjx-math, mjx-mtable')].map(x => x.getBoundingClientRect().width), e])
    .filter(([widths, e]) => Math.max(...widths) > e.clientWidth + 2)
    .map(([, e]) => e.closest("div.math").id || e.innerText)"""


def test_every_chapter_has_twelve_screens_large_figures_no_bar_under_a_formula_and_none_wider_than_a_phone(
    browser, built_book
):
    """With its folds closed: what is beyond twelve screens is said twice, or belongs into a fold."""
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    chapters = [chapter for part in parts if part.get("numbered") for chapter in part["chapters"]]
    desktop, phone = (dict(zip(("width", "height"), size, strict=True)) for size in (SCREEN, PHONE))
    tab, long, bars, small, wide = browser.new_page(), {}, {}, {}, {}
    for name in (Path(chapter["file"]).name for chapter in chapters):
        tab.set_viewport_size(desktop)
        tab.goto((built_book / "book" / f"{name}.html").as_uri())
        tab.evaluate("Promise.all([window.MathJax?.startup?.promise, document.fonts.ready])")
        screens = tab.evaluate("document.documentElement.scrollHeight / innerHeight")
        if found := tab.evaluate(BARS):
            bars[name] = found
        if found := tab.evaluate(SMALL):
            small[name] = found
        assert screens > 3, f"{name} is not rendered"
        if screens > SCREENS:
            long[name] = f"{screens:.1f} of {SCREENS}"
        tab.set_viewport_size(phone)
        tab.wait_for_timeout(200)  # formulas.js takes a tenth of a second
        if found := tab.evaluate(WIDE_FORMULAS):
            wide[name] = found
    tab.close()
    assert not long, f"longer than a chapter may be, in screens of {SCREEN[1]} pixels: {long}"
    assert not bars, f"formulas with a scroll bar, though their line has room: {bars}"
    assert not small, f"figures narrower than the column or lower than 320 pixels: {small}"
    assert not wide, f"formulas to break into lines: {wide}"


@pytest.mark.parametrize("half", [0, 1])  # for two processes
def test_every_page_fits_its_window_shows_what_its_sliders_say_and_has_no_serious_finding_of_axe_core(
    browser, built_book, half
):
    """On a desktop every control goes through its stops; on a phone, where the same script runs, sliders to their end.
    Then, with open folds: all rules of axe-core, and contrast in light and dark on some texts of each look.

    A page is loaded once, as on a desktop, and its window then narrowed: loading takes longer than most that follows.
    The first is loaded with all that belongs to it, the others without formulas and icons.
    """
    pages, driven, found, known = one_of_each(built_book)[half::2], 0, [], []
    assert pages, f"{built_book} holds no page"
    for path in pages:
        with opened(browser, path, DESKTOP, whole=path == pages[0]) as tab:
            driven += fits_everywhere(tab, path)
            tab.set_viewport_size(dict(zip(("width", "height"), DESKTOP, strict=True)))
            if not with_axe(tab):
                continue
            found += [f"{path.name}: {line}" for line in serious(tab)]
            for scheme in ("light", "dark"):
                tab.emulate_media(color_scheme=scheme)
                found += [f"{path.name}, {scheme}: {line}" for line in serious(tab, known)]
    assert driven, f"no page under {built_book} has an explorer"
    assert not found, "\n".join(found)
    if AXE_CORE is None:
        pytest.skip(f"all but axe-core was seen, which is missing; {INSTALL_AXE}")


def test_a_pale_text_is_a_finding_of_axe_core(browser, built_book):
    with opened(browser, built_book / "book" / "drift.html", DESKTOP, whole=False) as tab:
        if not with_axe(tab):
            pytest.skip(f"axe-core is missing; {INSTALL_AXE}")
        assert not serious(tab, [])
        tab.evaluate("document.querySelectorAll('article p').forEach(p => p.style.color = '#999')")
        assert serious(tab, [])


def test_a_page_on_paper_shows_its_folds_its_code_and_its_addresses(browser, built_book):
    with opened(browser, built_book / "book" / "scaffold.html", DESKTOP) as tab:
        closed = "document.querySelectorAll('article details:not([open])').length"
        before = tab.evaluate(closed)
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.evaluate(closed) == 0 < before
        held = "[...document.querySelectorAll('article details > summary ~ *')]"
        fading = f"{held}.filter(e => getComputedStyle(e).animationName !== 'none').length"
        assert tab.evaluate(f"{held}.length") > 5
        assert not tab.evaluate(fading), "the printer would not wait for it"
        assert not tab.evaluate(CUT)
        shown = "getComputedStyle(document.querySelector('article a[href^=http]'), '::after').content"
        assert "http" in tab.evaluate(shown)
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.evaluate(closed) == before


def test_a_link_shows_its_theorem_under_the_mouse_and_with_the_focus_until_escape(browser, built_book):
    with opened(browser, built_book / "book" / "scaffold.html", DESKTOP) as tab:
        link = tab.locator('article a.reference[href="drift.html#thm-fedavg-convergence"]:visible').first
        tip = tab.get_by_role("tooltip")
        link.hover()
        tip.locator("mjx-container").first.wait_for()
        assert "FedAvg on smooth convex objectives" in tip.inner_text()
        assert link.get_attribute("aria-describedby") == tip.get_attribute("id")
        tip.hover()  # on the way to the text it stays
        tab.clock.run_for(1000)
        assert tip.is_visible()
        tab.keyboard.press("Escape")
        assert not tip.count()
        assert not link.get_attribute("aria-describedby")
        link.focus()
        assert tip.is_visible()
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= DESKTOP[0]
        tab.evaluate("document.activeElement.blur()")
        tab.clock.run_for(1000)
        assert not tip.count()


@pytest.mark.parametrize("target", ["glossary.html#term-", "bibliography.html#id", "#equation-", "#thm-"])
def test_a_first_tap_shows_a_target_within_the_window_and_a_second_follows_the_link(browser, built_book, target):
    with opened(browser, built_book / "book" / "scaffold.html", PHONE, has_touch=True) as tab:
        tab.evaluate(
            "document.querySelectorAll('article .toggle-hidden').forEach(e => e.classList.remove('toggle-hidden'))"
        )
        link = tab.locator(f'article a.reference[href^="{target}"]:visible').first
        address, goal = tab.url, link.get_attribute("href").removeprefix(tab.url)
        link.tap()
        tip = tab.get_by_role("tooltip")
        assert tip.is_visible()
        assert tip.bounding_box()["width"] <= PHONE[0]
        assert tab.url == address
        tip.tap()
        assert tip.is_visible()
        link.tap()
        tab.wait_for_url(f"**{goal}")
        assert not tip.count()


def test_a_quiz_says_what_is_wrong_and_explains_what_is_right(browser, built_book):
    with opened(browser, built_book / "book" / "scaffold.html", DESKTOP) as tab:
        quiz = tab.locator(".fc-quiz")
        assert quiz.bounding_box()["height"] < 40  # folded, one line
        quiz.locator("summary").click()
        questions = quiz.get_by_role("group").filter(has=tab.get_by_role("radio"))
        assert questions.count() == 3
        for question in questions.all():
            said = question.get_by_role("status")
            for choice in question.locator("input:not([data-right])").all():
                choice.press("Space")
                assert said.inner_text() == "Not so. Try another answer."
            question.locator("input[data-right]").check()
            assert said.inner_text().startswith("Right. ")
            assert len(said.inner_text()) > 40


PREDICTION = """<div class="solution dropdown admonition" id="s"><p class="admonition-title">Solution to <a href="#e">
Exercise 1 (★ A prediction)</a></p><section><p>It rises.</p></section></div>
<div class="solution dropdown admonition" id="t"><p class="admonition-title">Solution to Exercise 2</p></div>
<script>const togglebuttonSelector = ".dropdown", toggleHintShow = "show", toggleHintHide = "hide";
const toggleOpenOnPrint = "true";</script>"""


def test_the_solution_of_a_prediction_opens_once_a_guess_is_written(browser, tmp_path):
    (package,) = importlib.util.find_spec("sphinx_togglebutton").submodule_search_locations
    scripts = ROOT / "book" / "assets" / "predict.js", Path(package) / "_static" / "togglebutton.js"
    path, hidden = tmp_path / "page.html", "document.querySelector('#s').classList.contains('toggle-hidden')"
    body = PREDICTION + "".join(f"<script>{script.read_text('utf-8')}</script>" for script in scripts)
    path.write_text(f"{HEAD}<title>t</title><body>{body}", "utf-8")
    with opened(browser, path) as tab:
        title, guess = tab.locator("#s .admonition-title"), tab.get_by_label("Your guess")
        assert guess.count() == 1, "other solutions ask for none"
        for way in (title.click, tab.locator("#s button").click, lambda: tab.locator("#s button").press("Enter")):
            way()
            assert tab.evaluate(hidden)
            assert guess.evaluate("e => e === document.activeElement"), "the guess has the focus instead"
        guess.press("Enter")
        assert tab.evaluate(hidden), "nothing was written"
        for event, closed in (("beforeprint", False), ("afterprint", True)):
            tab.evaluate(f"dispatchEvent(new Event('{event}'))")
            assert tab.evaluate(hidden) == closed, "paper shows it, and leaves it closed"
        guess.fill("it falls")
        guess.press("Enter")
        assert not tab.evaluate(hidden)
        for closed in (True, False):
            tab.locator("#s button").click()
            assert tab.evaluate(hidden) == closed, "from now on it is a fold as others"
        tab.locator("#t .admonition-title").click()
        assert not tab.evaluate("document.querySelector('#t').classList.contains('toggle-hidden')")


SEARCHED = ("FedAvg", "SCAFFOLD", "FedUp", "FedProx", "MimeLite", "FedDyn", "DFedGAM", "FedBN", "HeteroFL", "FedGSE")


def test_a_search_for_a_method_leads_to_its_card_first(browser, built_book):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("localhost", 0), partial(Quiet, directory=built_book)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab, first = browser.new_page(), {}
        for name in SEARCHED:
            tab.goto(f"http://localhost:{server.server_port}/search.html?q={name}")
            tab.wait_for_function(
                "document.querySelector('#search-results .search-summary')?.innerText.includes('Search finished')"
            )
            link = tab.locator("#search-results ul.search li > a").first.get_attribute("href")
            first[name] = link.partition("?")[0].partition("#")[0]
        tab.close()
        server.shutdown()
    assert first == {name: f"book/methods/{name.lower()}.html" for name in SEARCHED}


@pytest.mark.parametrize("moved", [("dfedgam", "thm-consensus", "gossip"), ("report", "thm-rule", "difference")])
def test_an_old_address_leads_to_the_page_that_a_statement_moved_to(browser, built_book, moved):
    old, label, new = moved
    tab = browser.new_page()
    tab.goto((built_book / "book" / f"{old}.html").as_uri() + f"#{label}")
    tab.wait_for_url(f"**/{new}.html#{label}")
    assert tab.locator(f"#{label}").count() == 1


def test_a_slider_is_out_of_reach_of_scripts_that_fill_inputs_by_name(browser, tmp_path):
    page = tmp_path / "page.html"
    explorer = widgets.explore(lambda q: plots.figure()[0], q=[1, 2, 3, 4, 5, 6], start={"q": 2})
    search = "<script>for (const i of document.querySelectorAll('input[name=q]')) i.value = '';</script>"
    page.write_text(HEAD + explorer.html() + search, encoding="utf-8")
    with opened(browser, page, DESKTOP) as tab:
        assert tab.locator("input[type=range]").input_value() == "1"
