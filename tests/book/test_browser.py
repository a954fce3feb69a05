"""Explorers, driven in a real Chromium: on a page made here, and on every page of the built book."""

import importlib.util
import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import yaml
from browser import DESKTOP, PHONE, check_shown, drive, opened, shown, written
from PIL import Image

from fedbook.pictures import plots, svg, widgets

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


HOSTILE = r"""<p>\(\href{javascript:document.title='run'}{x}\)
\(\style{background:url(https://foreign.example/y.png)}{z}\)</p>"""


def test_a_formula_carries_no_script_and_no_address(browser, tmp_path):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]["mathjax3_config"]
    (package,) = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations
    source = (Path(package) / "static" / "mathjax" / "tex-chtml.js").as_uri()
    script = f'<script>MathJax = {json.dumps(config)}</script><script src="{source}"></script>'
    with opened(browser, written(tmp_path, HOSTILE + script)) as tab:
        tab.wait_for_function("window.MathJax && MathJax.startup && MathJax.startup.promise")
        tab.evaluate("MathJax.startup.promise")
        assert tab.locator("mjx-container").count() == 2
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
    return written(tmp_path, "<p>text</p>".join(e.html() for e in explorers))


def test_keys_move_picture_numbers_and_alt_text_together(browser, explorers, page):
    """Numbers and alt text with the markup in them as it was written."""
    with opened(browser, page) as tab:
        for figure, explorer in zip(tab.locator("figure.fc-explorer").all(), explorers, strict=True):
            assert check_shown(figure, explorer) == explorer.start
            assert len(drive(figure, explorer)) >= 3
        assert tab.locator(".fc-caption").first.inner_text() == "A < B & C."


def test_explorers_with_the_same_content_do_not_move_each_other(browser, explorers, page):
    with opened(browser, page) as tab:
        first, _, twin, _ = tab.locator("figure.fc-explorer").all()
        first.get_by_role("slider").first.press("End")
        assert check_shown(first, explorers[0]) != explorers[0].start
        assert check_shown(twin, explorers[2]) == explorers[2].start
        ids = tab.evaluate("[...document.querySelectorAll('figure [id], figure[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))
        assert not tab.locator("figure [name]").count(), "the page's search fills inputs by name"


def test_a_picture_takes_the_dark_scheme_of_its_page_and_a_phone_its_own_picture(browser, explorers, tmp_path):
    """A page on black paper that is asked for its pixels."""
    style = "<style>:root{color-scheme:dark;background:#000}</style>"
    with opened(browser, written(tmp_path, style + explorers[0].html()), PHONE, color_scheme="light") as tab:
        image = tab.locator("img")
        assert image.evaluate("i => i.currentSrc") == tab.locator("source").get_attribute("srcset")
        pixels = Image.open(BytesIO(image.screenshot())).convert("L")
        assert sum(pixels.histogram()[:64]) > 0.8 * pixels.width * pixels.height


def test_play_steps_the_first_slider_and_pauses(browser, explorers, page):
    with opened(browser, page) as tab:
        tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + 1)  # else a slow machine plays on between two lines
        figure = tab.locator("figure.fc-explorer").first
        figure.get_by_role("button", name="Play").click()
        assert check_shown(figure, explorers[0]) == 4  # one step at once: alpha 1.0, K 5
        figure.get_by_role("button", name="Pause").click()
        tab.clock.run_for(5000)
        assert check_shown(figure, explorers[0]) == 4
        figure.get_by_role("button", name="Play").click()
        assert check_shown(figure, explorers[0]) == 7  # the last value: playing ends there
        assert figure.get_by_role("button").inner_text() == "Play"
        figure.get_by_role("button", name="Play").press("Enter")
        assert check_shown(figure, explorers[0]) == 1  # from the beginning, by keyboard
        assert figure.locator(".fc-numbers").get_attribute("aria-live") == "off"
        tab.clock.run_for(750)
        assert check_shown(figure, explorers[0]) == 4
        figure.get_by_role("slider").nth(1).press("ArrowRight")  # a hand on a slider stops the show
        tab.clock.run_for(5000)
        assert check_shown(figure, explorers[0]) == 5
        assert figure.locator(".fc-numbers").get_attribute("aria-live") == "polite"


def test_readers_who_ask_for_less_motion_get_single_steps(browser, explorers, page):
    with opened(browser, page, reduced_motion="reduce") as tab:
        figure = tab.locator("figure.fc-explorer").first
        figure.get_by_role("button", name="Step").click()
        tab.clock.run_for(5000)
        assert check_shown(figure, explorers[0]) == 4


def test_tab_reaches_every_control_in_order_of_the_page(browser, page):
    with opened(browser, page) as tab:
        reached = []
        for _ in range(8):
            tab.keyboard.press("Tab")
            reached.append(tab.evaluate("document.activeElement.dataset.name || document.activeElement.textContent"))
        assert reached == ["alpha", "Play", "K", "n", "Play", "alpha", "Play", "K"]


def test_on_a_narrow_phone_sliders_have_the_whole_width_however_long_the_words(browser, page):
    with opened(browser, page, (320, 800)) as tab:
        for slider in tab.get_by_role("slider").all():
            assert slider.bounding_box()["width"] > 0.85 * 304
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
            frame = explorer.frames[explorer.start]
            assert figure.locator("img").get_attribute("src") == svg.uri(explorer.pictures[frame.picture].wide)
            assert figure.locator("img").get_attribute("alt") == frame.alt
            text = figure.locator("figcaption").inner_text()
            for name, value in (frame.numbers | explorer.settings()[explorer.start]).items():
                assert f"{value}" in text, f"{name} is missing from {text}"
            assert figure.locator("input, button").count() == 0


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


def resize(tab, size) -> None:
    tab.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))


def fits(tab, size) -> None:
    resize(tab, size)
    wide = tab.evaluate(WIDE)
    assert not wide, f"{tab.url}: wider than {size[0]} pixels: {wide}"
    cut = tab.evaluate(CUT)
    assert not cut, f"{tab.url}: code that is cut at {size[0]} pixels: {cut}"


def fits_everywhere(tab, path: Path) -> int:
    """Check a page at all widths, with closed and open folds; returns the number of explorers that were moved."""
    silent = tab.evaluate(SILENT)
    assert not silent, f"{path.name}: pictures without alt text: {silent}"
    twice = tab.evaluate(TWICE)
    assert not twice, f"{path.name}: names of more than one element: {twice}"
    fits(tab, DESKTOP)
    # Folds are opened, as a reader does.
    tab.evaluate("document.querySelectorAll('article details').forEach(d => d.open = true)")
    for size in (DESKTOP, *WIDER):
        fits(tab, size)
    cut = tab.evaluate(CUT_TEXT)
    assert not cut, f"{path.name}: texts of a picture that its edge cuts: {cut}"
    explorers = tab.locator("figure.fc-explorer:has(input[type=range])").all()
    for figure in explorers:
        before = shown(figure)
        for slider in figure.get_by_role("slider").all():
            slider.press("Home" if slider.input_value() == slider.get_attribute("max") else "End")
        assert shown(figure) != before, f"{path.name}: sliders that move nothing"
    fits(tab, PHONE)
    return len(explorers)


AXE_CORE = importlib.util.find_spec("axe_playwright_python")
CONTRASTED = ("index", "averaging", "scaffold", "fedgse", "report", "map", "glossary", "fedavg")  # all kinds of parts


def serious(tab, contrast: bool) -> list[str]:
    """Serious findings of axe-core with open folds: of its rule for contrast, which takes most of the time, or of all
    other rules."""
    rules = {"runOnly": ["color-contrast"]} if contrast else {"rules": {"color-contrast": {"enabled": False}}}
    result = tab.evaluate(
        "given => axe.run(document, given)", {"resultTypes": ["violations"], "preload": False, **rules}
    )
    found = [rule for rule in result["violations"] if rule["impact"] in ("serious", "critical")]
    return [f"{r['id']}: {r['nodes'][0]['html'][:99]}: {r['nodes'][0]['failureSummary']}" for r in found]


SCREENS, SCREEN = 12, (1280, 800)


WIDE_FORMULAS = """[...document.querySelectorAll('.bd-article mjx-container[display]')].filter(e => e.offsetParent)
    .map(e => [[...e.querySelectorAll('mjx-math, mjx-mtable')].map(x => x.getBoundingClientRect().width), e])
    .filter(([widths, e]) => Math.max(...widths) > e.clientWidth + 2)
    .map(([, e]) => e.closest("div.math").id || e.innerText)"""


def test_every_chapter_has_twelve_screens_large_figures_and_whole_formulas_without_bars_and_none_wider_than_a_phone(
    browser, built_book
):
    """With its folds closed: what is beyond twelve screens is said twice, or belongs into a fold."""
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    chapters = [chapter["file"] for part in parts if part.get("numbered") for chapter in part["chapters"]]
    tab, found = browser.new_page(), []
    for name in chapters:
        resize(tab, SCREEN)
        tab.goto((built_book / f"{name}.html").as_uri())
        tab.evaluate("Promise.all([window.MathJax?.startup?.promise, document.fonts.ready])")
        screens = tab.evaluate("document.documentElement.scrollHeight / innerHeight")
        assert screens > 3, f"{name} is not rendered"
        faults = {
            f"longer than {SCREENS} screens of {SCREEN[1]} pixels": [screens] if screens > SCREENS else [],
            "formulas with a scroll bar, though their line has room": tab.evaluate(BARS),
            "formulas that are torn": tab.locator("mjx-merror").all_inner_texts(),
            "figures narrower than the column or lower than 320 pixels": tab.evaluate(SMALL),
        }
        resize(tab, PHONE)
        tab.wait_for_timeout(200)  # formulas.js takes a tenth of a second
        faults["formulas to break into lines"] = tab.evaluate(WIDE_FORMULAS)
        found += [f"{name}: {fault}: {where}" for fault, where in faults.items() if where]
    tab.close()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("half", [0, 1])  # for two processes
def test_every_page_fits_its_window_has_sliders_that_move_and_has_no_serious_finding_of_axe_core(
    browser, built_book, half
):
    """All rules of axe-core but contrast, and that in light and dark on some pages.

    A page is loaded once, as on a desktop, and its window then narrowed: loading takes longer than most that follows.
    The first is loaded with all that belongs to it, the others without formulas and icons.
    """
    pages, driven, found = one_of_each(built_book)[half::2], 0, []
    for path in pages:
        with opened(browser, path, DESKTOP, whole=path == pages[0]) as tab:
            driven += fits_everywhere(tab, path)
            resize(tab, DESKTOP)
            if AXE_CORE is None:
                continue
            tab.add_style_tag(content="* { animation: none !important; transition: none !important }")
            tab.evaluate((Path(AXE_CORE.submodule_search_locations[0]) / "axe.min.js").read_text("utf-8"))
            found += [f"{path.name}: {line}" for line in serious(tab, contrast=False)]
            for scheme in ("light", "dark") if path.stem in CONTRASTED else ():
                tab.emulate_media(color_scheme=scheme)
                found += [f"{path.name}, {scheme}: {line}" for line in serious(tab, contrast=True)]
    assert driven, f"no page under {built_book} has an explorer"
    assert not found, "\n".join(found)
    if AXE_CORE is None:
        pytest.skip("all but axe-core was seen, which is missing; install it: pip install axe-playwright-python")


def test_a_page_on_paper_shows_its_folds_its_code_and_its_addresses(browser, built_book):
    with opened(browser, built_book / "book" / "scaffold.html", whole=False) as tab:
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
        tab.evaluate("document.activeElement.blur()")
        tab.clock.run_for(1000)
        assert not tip.count()


@pytest.mark.parametrize("target", ["glossary.html#term-", "bibliography.html#id", "#equation-", "#thm-"])
def test_a_first_tap_shows_a_target_within_the_window_and_a_second_follows_the_link(browser, built_book, target):
    with opened(browser, built_book / "book" / "scaffold.html", PHONE, whole=False, has_touch=True) as tab:
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
    with opened(browser, built_book / "book" / "scaffold.html", whole=False) as tab:
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
    hidden = "document.querySelector('#s').classList.contains('toggle-hidden')"
    body = PREDICTION + "".join(f"<script>{script.read_text('utf-8')}</script>" for script in scripts)
    with opened(browser, written(tmp_path, body)) as tab:
        title, guess = tab.locator("#s .admonition-title"), tab.get_by_label("Your guess")
        assert guess.count() == 1, "other solutions ask for none"
        for way in (title.click, tab.locator("#s button").click, lambda: tab.locator("#s button").press("Enter")):
            way()
            assert tab.evaluate(hidden)
            assert guess.evaluate("e => e === document.activeElement"), "the guess has the focus instead"
        guess.press("Enter")
        assert tab.evaluate(hidden), "nothing was written"
        guess.fill("it falls")
        guess.press("Enter")
        assert not tab.evaluate(hidden)
        for closed in (True, False):
            tab.locator("#s button").click()
            assert tab.evaluate(hidden) == closed, "from now on it is a fold as others"
        tab.locator("#t .admonition-title").click()
        assert not tab.evaluate("document.querySelector('#t').classList.contains('toggle-hidden')")


def test_an_old_address_leads_to_the_page_that_a_statement_moved_to(browser, built_book):
    tab, label = browser.new_page(), "thm-rule"
    tab.goto((built_book / "book" / "report.html").as_uri() + f"#{label}")
    tab.wait_for_url(f"**/difference.html#{label}")
    assert tab.locator(f"#{label}").count() == 1
