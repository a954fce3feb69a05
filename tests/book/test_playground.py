"""The playground computes what the package computes, says what is wrong, and is operated by hand, key and address."""

import json
import re
import types
from functools import partial

import numpy as np
import pytest
from browser import NAMELESS, core_of, opened, says, slider, state, with_model, written

import fedcore as fc
from fedbook.live import base, playground
from fedbook.live.mask_playground import mask_playground
from fedbook.live.playground import Playground
from fedbook.live.submodel_playground import SubmodelPlayground

# ------------------------------------------------------------------------------------------------ the same numbers

ROUNDS, PROBLEMS = 3, 24  # each kind with each topology, with and without cohorts and uneven work
HYPER = {"mu": (0, 2), "alpha": (0.01, 0.3), "beta": (0, 0.95), "rho": (0, 0.5), "p": (0.1, 1)}


def random_state(method, number):
    """A problem at random: both kinds, 2 to 8 clients, with and without cohorts and uneven work."""
    g = np.random.default_rng([number, *method.encode()])
    n = int(g.integers(2, 9))
    curvature = g.uniform(0.05, 3, (n, 2))
    clients = [
        {"optimum": g.uniform(-2, 2, 2).tolist(), "curvature": c.tolist(), "angle": float(g.uniform(-180, 180))}
        for c in curvature
    ]
    hyper = {name: float(g.uniform(*HYPER[name])) for name in playground.METHODS[method]}
    return {
        "problem": ("quadratic", "logistic")[number % 2],
        "clients": clients,
        "methods": {method: hyper},
        "start": g.uniform(-2, 2, 2).tolist(),
        "lr": float(g.uniform(0.01, 1.5) / curvature.max()),
        "local_steps": int(g.integers(1, 9)),
        "server_lr": float(g.uniform(0.3, 1.5)),
        "cohort": None if number % 4 < 2 else int(g.integers(1, n + 1)),
        "uneven": float(g.uniform(0, 1)) if number % 3 == 0 else 0.0,
        "rounds": ROUNDS,
        "seed": int(g.integers(0, 10**6)),
        "topology": playground.TOPOLOGIES[number // 2 % 4],
    }


@pytest.fixture(scope="module")
def core(browser, tmp_path_factory):
    names = "placed, run, problem, checked, longRun, told, METHODS, DEFAULTS, RANGE"
    with core_of(browser, tmp_path_factory.mktemp("core"), Playground, names) as tab:
        yield tab


@pytest.mark.parametrize("method", playground.METHODS)
def test_the_page_computes_the_numbers_of_the_package_on_random_problems(core, method):
    """Paths of the server and the optimum, relative to the largest coordinate on the path, in both kinds of problem."""
    states = [random_state(method, k) for k in range(PROBLEMS)]
    got = core.evaluate(
        """([states, method]) => states.map((s) => {
            const P = core.problem(s);
            return {path: core.run(P, s, method, s.rounds).path, optimum: P.optimum};
        })""",
        [states, method],
    )
    worst = 0.0
    for given, page in zip(states, got, strict=True):
        pg = fc.playground(**given)
        path = pg.paths()[method]
        fed = pg.federation
        scale = np.abs(path).max()
        assert len(page["path"]) == 2 * (ROUNDS + 1)
        worst = max(worst, np.abs(path.ravel() - page["path"]).max() / scale)
        worst = max(worst, np.abs(fed.optimum.numpy() - page["optimum"]).max())
    assert worst < 1e-9, f"{method}: {worst:.2e}"
    print(f"{method}: {worst:.1e}")


def test_the_page_and_the_package_start_from_one_setting(core):
    """Defaults and parameters stand in both files: the page must work without Python."""
    defaults = core.evaluate("core.DEFAULTS")
    assert playground._checked(defaults) == fc.playground().state
    starts = core.evaluate(
        "Object.fromEntries(Object.keys(core.METHODS).map((m) => [m, core.checked({methods: {[m]: {}}}).methods[m]]))"
    )
    assert starts == playground.METHODS
    placed = core.evaluate("[0, 1, 2, 3, 4, 5, 6, 7].map(core.placed)")
    assert playground._checked({**defaults, "clients": placed}) == fc.playground(8).state


def test_python_and_the_page_allow_the_same_numbers(core):
    assert core.evaluate("core.RANGE") == json.loads(json.dumps(playground.RANGES))
    methods = fc.playground(methods=[fc.FedDyn(0.005), fc.FedProx(500.0), fc.Mime(beta=0.999)]).state["methods"]
    said = "given => { const said = []; return [core.checked(given, core.DEFAULTS, said).methods, said]; }"
    assert core.evaluate(said, {"methods": methods}) == [methods, []], "beyond the ends of a slider"


def test_with_a_part_of_the_clients_the_sentence_gives_the_distance_at_which_a_method_hovers(core):
    """The mean over the later half of 2,000 rounds after those that are shown."""
    state = fc.playground(4, ["FedAvg", "SCAFFOLD"], cohort=2, lr=0.1).state
    fedavg, scaffold = core.evaluate(
        """(s) => Object.keys(s.methods).map((name) => {
            const P = core.problem(s), far = core.longRun(P, s, name, core.run(P, s, name, s.rounds).last, 1e9);
            const said = core.told(name, 0.5, 1, 0, 30, far.away, "2 of 4 clients");
            return {...far, said, path: [...core.run(P, s, name, s.rounds + 2000).path]};
        })""",
        state,
    )
    points = np.reshape(fedavg["path"], (-1, 2))[-1000:]
    away = np.linalg.norm(points - fc.playground(**state).optimum(), axis=1).mean()
    assert fedavg["away"] == pytest.approx(away, rel=1e-6)
    assert f"and, with 2 of 4 clients per round, hovers {away:.2g} from it" in fedavg["said"]
    assert fedavg["hovers"]
    assert not scaffold["hovers"]
    assert scaffold["away"] < 1e-3, "SCAFFOLD has no floor"


def test_samples_of_logistic_problems_are_not_pooled():
    with pytest.raises(ValueError, match="pooled"):
        fc.simulate(fc.Central(), fc.playground(4, problem="logistic").federation, rounds=1)


def test_a_problem_without_a_minimum_says_so_in_words():
    clients = [{"optimum": (-1, 0), "curvature": (1, -2)}, {"optimum": (1, 0)}]
    pg = fc.playground(clients, rounds=5)
    assert pg.optimum() is None
    assert "no single minimum" in pg.alt()
    assert "optimum</text>" not in pg.html().split("<script")[0]


# ------------------------------------------------------------------------------------------------ in Python


SUBMODEL = fc.submodel_playground
REFUSED = [
    (fc.playground, {"clients": 0}, "clients=0 is out of range; use clients>=2 and clients<=8"),
    (fc.playground, {"clients": [{"optimum": (0, 0)}]}, r"len\(clients\)=1 is out of range"),
    (fc.playground, {"clients": [{"place": (0, 0)}] * 2}, r"use dict\(optimum=\(x, y\)"),
    (fc.playground, {"clients": [{"optimum": (0, 0), "curvature": (-1, 1)}] * 2, "problem": "logistic"}, "=-1 is out"),
    (fc.playground, {"methods": ["FedAvg", "FedBest"]}, "methods has 'FedBest'; use some of FedAvg"),
    (fc.playground, {"methods": "FedAvg"}, r"use a list, methods=\['FedAvg'\]"),
    (fc.playground, {"methods": [fc.FedAvg(server_momentum=0.5)]}, "the playground's FedAvg takes no parameter"),
    (fc.playground, {"methods": [fc.FedProx(2000.0)]}, "use FedProx's mu >= 0 and <= 1000"),
    (fc.playground, {"lr": 0}, "lr=0 is out of range; use lr > 0 and <= 10"),
    (fc.playground, {"cohort": 3}, "cohort=3 is out of range; use cohort>=1 and cohort<=2"),
    (fc.playground, {"start": (1, 2, 3)}, r"start=\(1, 2, 3\); use two numbers"),
    (fc.playground, {"problem": "cubic"}, "use one of 'quadratic', 'logistic'"),
    (fc.playground, {"name": "two words"}, "name='two words' cannot stand in an address"),
    (SUBMODEL, {"caption": 3}, "caption=3 is no text; give a text"),
    (SUBMODEL, {"clients": "AB"}, "clients='AB' is not an integer; use .*the classes of each"),
    (SUBMODEL, {"clients": ["AB"]}, r"len\(clients\)=1 is out of range"),
    (SUBMODEL, {"clients": ["AB", "G"]}, r"clients\[1\]='G'; use some of the letters A to F"),
    (SUBMODEL, {"clients": ["AB", ""]}, r"clients\[1\]=''; use some"),
    (SUBMODEL, {"method": "FedBest"}, "method='FedBest'; use one of FedAvg, HeteroFL"),
    (SUBMODEL, {"method": fc.FedDSE({1: 0.5, 0.5: 0.5})}, "the playground's FedDSE takes one ratio and a temperature"),
    (SUBMODEL, {"ratio": 0}, "ratio=0 is out of range; use ratio > 0 and <= 1"),
    (SUBMODEL, {"side": "both"}, "side='both' is not known; use one of 'outgoing', 'incoming'"),
    (mask_playground, {"kept": "11"}, "kept='11'; use 6 letters 0 or 1, such as '110100'"),
    (mask_playground, {"kept": "11x000"}, "kept='11x000'; use 6 letters"),
    (mask_playground, {"network": 5}, "network=5 is out of range; use network>=1 and network<=4"),
    (mask_playground, {"seed": -1}, "seed=-1 is out of range"),
]


@pytest.mark.parametrize(("make", "settings", "message"), REFUSED)
def test_a_wrong_setting_is_refused_with_value_range_and_remedy(make, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**settings)


def test_settings_are_read_and_set_and_a_wrong_one_changes_nothing():
    pg = fc.playground(3, [fc.FedAvg(), fc.FedProx(mu=0.3)], lr=0.2)
    assert pg.methods == {"FedAvg": fc.FedAvg(), "FedProx": fc.FedProx(0.3)}
    pg.lr, pg.cohort, pg.methods = 0.05, 2, ["SCAFFOLD"]
    clients = pg.clients
    clients[0]["optimum"] = [0.5, 0.5]
    assert pg.clients[0]["optimum"] != [0.5, 0.5], "a copy was handed out"
    pg.clients = clients
    assert (pg.lr, pg.cohort, list(pg.methods), pg.clients[0]["optimum"]) == (0.05, 2, ["SCAFFOLD"], [0.5, 0.5])
    before = pg.state
    with pytest.raises(ValueError, match="cohort=7"):
        pg.cohort = 7
    with pytest.raises(ValueError, match="'speed' is no setting of a playground; did you mean 'seed'"):
        pg.set(speed=1)
    with pytest.raises(AttributeError, match="no setting 'lrr'"):
        pg.lrr = 0.3
    assert pg.state == before


def test_a_run_that_diverges_ends_where_it_did():
    pg = fc.playground(lr=3.0, local_steps=40, rounds=40, methods=["FedAvg"])
    assert len(pg.history()["FedAvg"].cohorts) < 40
    assert "FedAvg runs away." in pg.html()


# ------------------------------------------------------------------------------------------------ in Jupyter


def test_an_output_is_html_and_names_its_model_only_where_a_kernel_would_answer(monkeypatch):
    pg, key = fc.playground(rounds=1), '"key":'

    def shown():
        return pg._repr_mimebundle_()["text/html"]

    assert key not in shown()
    assert set(pg._repr_mimebundle_()) == {"text/html", "text/plain"}, "what a saved notebook shows without its kernel"
    IPython = pytest.importorskip("IPython")
    pytest.importorskip("anywidget")
    monkeypatch.delenv("FEDCORE_LIVE", raising=False)
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace(kernel=True))
    assert f'{key}"{pg.widget.config["key"]}"' in shown()
    assert key not in pg.html()
    monkeypatch.setenv("FEDCORE_LIVE", "0")
    assert key not in shown()
    monkeypatch.delenv("FEDCORE_LIVE")
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None)
    assert key not in shown()


def test_the_widget_face_follows_its_model_and_tells_it_what_a_hand_does(browser, tmp_path):
    pg = fc.playground(caption="<i>live</i>")
    with core_of(browser, tmp_path, Playground, "widget") as tab:
        with_model(tab, "render({model, el: document.body})", pg.config(), pg.state)
        assert tab.locator("figcaption").inner_text() == "<i>live</i>"
        tab.locator(".pg-start").press("ArrowRight")
        slider(tab, "local_steps").fill("20")
        tab.clock.run_for(300)
        told = tab.evaluate("model.values.state")
        saved = tab.evaluate("model.saved")
        assert saved in (1, 2), "changes that follow each other closely are told together"
        assert (told["local_steps"], told["start"]) == (20, [-1.55, 1.9])
        new = fc.playground(3, ["FedAvg", "FedProx"], lr=0.05).state
        tab.evaluate("state => { model.values.state = state; model.listeners.forEach((f) => f()); }", new)
        tab.clock.run_for(300)
        assert tab.locator(".pg-client").count() == 3
        assert slider(tab, "lr").input_value() == "0.05"
        assert slider(tab, "FedProx.mu").count() == 1
        assert tab.evaluate("model.saved") == saved, "what came from Python was sent back"
        tab.evaluate("leave()")
        assert tab.evaluate("model.listeners.length") == 0


# ------------------------------------------------------------------------------------------------ by hand


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page"), fc.playground().html())


@pytest.fixture
def tab(browser, page):
    with opened(browser, page) as tab:
        yield tab


def middle(tab, what=".pg-start"):
    """The middle of the first such thing, in pixels of the window."""
    box = tab.locator(what).first.bounding_box()
    return np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])


def test_a_point_and_the_words_follow_the_hand_while_the_page_scrolls_and_its_window_changes(tab):
    seen = {says(tab)}
    tab.set_viewport_size({"width": 1000, "height": 400})
    tab.mouse.move(*middle(tab, ".pg-client"))
    tab.mouse.down()
    tab.evaluate("scrollTo(0, 80)")
    for width, height, away in ((1000, 400, 31), (500, 800, -40)):
        tab.set_viewport_size({"width": width, "height": height})
        hand = middle(tab, ".pg-plane") + np.array([away, -22])
        tab.mouse.move(*hand)
        seen.add(says(tab))
        np.testing.assert_allclose(middle(tab, ".pg-client"), hand, atol=1)
        assert tab.locator(".pg-plane").get_attribute("aria-label").startswith(says(tab))
    assert len(seen) == 3, "the words did not follow the hand"
    tab.mouse.up()
    tab.mouse.move(*hand + 50)
    assert says(tab) in seen, "the point did not stay"


def test_a_finger_moves_a_handle_and_the_page_stays(browser, page):
    with opened(browser, page, (390, 844), has_touch=True) as tab:
        box, (x, y) = tab.locator(".pg-start").bounding_box(), middle(tab)
        assert min(box["width"], box["height"]) >= 34, "too small for a finger"
        send = tab.context.new_cdp_session(tab).send
        # pixel by pixel, as a finger goes: after some of them a browser that may would begin to scroll
        path = [("touchStart", [(x, y)]), *(("touchMove", [(x + k, y - k)]) for k in range(1, 41)), ("touchEnd", [])]
        for kind, points in path:
            send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]})
        tab.clock.run_for(100)
        np.testing.assert_allclose(middle(tab), [x + 40, y - 40], atol=2)
        assert tab.evaluate("scrollY") == 0


def test_other_buttons_of_a_mouse_and_keys_of_the_browser_move_nothing(tab):
    before, at = state(tab), middle(tab)
    tab.mouse.move(*at)
    tab.mouse.down(button="right")
    tab.mouse.move(*at + 80)
    tab.mouse.up(button="right")
    for key in ("Alt+ArrowRight", "Control+ArrowUp", "Meta+ArrowDown"):
        tab.locator(".pg-start").press(key)
    assert state(tab) == before


def test_every_point_says_its_place_and_answers_to_keys(tab):
    for handle in tab.locator(".pg-handle").all():
        names = ("label", "valuenow", "valuetext", "valuemin", "valuemax")
        spoken = {name: handle.get_attribute(f"aria-{name}") for name in names}
        assert all(spoken.values()), spoken
        assert float(spoken["valuemin"]) <= float(spoken["valuenow"]) <= float(spoken["valuemax"])
    handle = tab.get_by_role("slider", name="Optimum of client 1")
    x = float(handle.get_attribute("aria-valuenow"))
    for key, moved in (("ArrowRight", 0.05), ("ArrowLeft", 0), ("Shift+ArrowRight", 0.25)):
        handle.press(key)
        tab.clock.run_for(50)
        assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(x + moved, abs=1e-9)
    assert handle.get_attribute("aria-valuetext").startswith("x −1.95, y −0.4;")
    before = state(tab)["clients"][0]["curvature"]
    tab.get_by_role("slider", name="Axis 2 of client 1's ellipse").press("ArrowLeft")
    after = state(tab)["clients"][0]["curvature"]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_the_chart_of_distances_says_them_against_bytes_too(tab):
    tab.get_by_role("radio", name="bytes").check()
    tab.clock.run_for(50)
    assert "against bytes: FedAvg 1.13 and SCAFFOLD" in tab.locator(".pg-chart svg").get_attribute("aria-label")


def test_methods_are_switched_on_and_off_and_bring_their_sliders(tab):
    tab.get_by_role("button", name="FedProx").click()
    assert list(state(tab)["methods"]) == ["FedAvg", "FedProx", "SCAFFOLD"]
    slider(tab, "FedProx.mu").fill("2")
    assert state(tab)["methods"]["FedProx"] == {"mu": 2}
    assert "FedProx" in says(tab)
    for name in ("FedAvg", "FedProx", "SCAFFOLD"):
        tab.get_by_role("button", name=name).press("Enter")
    assert says(tab) == "Choose a method."
    tab.get_by_role("button", name="12 more").click()
    names = tab.locator(".pg-chip[data-name]").evaluate_all("all => all.map(e => e.dataset.name)")
    assert names == list(playground.METHODS)
    tab.get_by_role("button", name="FedProx").click()
    assert state(tab)["methods"]["FedProx"] == {"mu": 2}, "a method forgot its parameter"


def test_play_runs_the_rounds_and_step_one_of_them(tab):
    play = tab.locator(".pg-play")
    play.click()
    tab.clock.run_for(1000)
    assert 0 < float(tab.locator(".fc-pg").get_attribute("data-round")) < 2
    play.click()
    assert play.inner_text() == "Play"
    slider(tab, "round").fill("0")
    tab.get_by_role("button", name="Step").click()
    tab.clock.run_for(50)
    assert slider(tab, "round").get_attribute("aria-valuetext") == "1 of 30"
    play.click()
    tab.clock.run_for(30_000)
    assert slider(tab, "round").get_attribute("aria-valuetext") == "30 of 30"


def test_readers_who_ask_for_less_motion_get_single_rounds(browser, page):
    with opened(browser, page, reduced_motion="reduce") as tab:
        slider(tab, "round").fill("0")
        tab.locator(".pg-play").click()
        tab.clock.run_for(5000)
        assert tab.locator(".fc-pg").get_attribute("data-round") == "1"


def test_what_a_hand_has_set_up_is_what_the_package_computes_and_its_address_brings_back(browser, page):
    with opened(browser, page) as tab:
        tab.locator(".pg-client").nth(1).press("Shift+ArrowDown")
        slider(tab, "local_steps").fill("25")
        tab.get_by_role("button", name="FedUp").click()
        here, pg = state(tab), fc.playground(**state(tab))
        assert (pg.local_steps, pg.clients[1]["optimum"]) == (25, [2.1, -1.25])
        words = f"FedAvg stops {pg.history()['FedAvg'].final('distance'):.3g} away from the optimum."
        assert says(tab).startswith(words)
        tab.get_by_role("button", name="Link").click()
        address = tab.evaluate("location.href")
    with opened(browser, address) as tab:
        assert state(tab) == here
        assert says(tab).startswith(words)


BAD = {
    "no number": ("lr=oops", "lr is NaN, not a number; it stays 0.1."),
    "out of range": ("local_steps=1e9", "local_steps = 1000000000 is outside 1 to 200; it stays 10."),
    "no whole number": ("local_steps=2.5", "local_steps = 2.5 is no whole number; it stays 10."),
    "at a bound that is out": ("server_lr=0", "server_lr = 0 must be greater than 0; it stays 1."),
    "an unknown method": ("methods=constructor:1,FedAvg", "The playground has no method constructor."),
    "a missing coordinate": ("clients=1,2,1,1,0;,0,1,1,0", "optimum of client 2 is NaN, not a number"),
    "indefinite": ("clients=-1,0,1,-0.5,0;1,0,1,1,0", "Client 1 has the curvature −0.5 < 0: it has no minimum"),
    "no minimum at all": ("clients=-1,0,1,-2,0;1,0,1,1,0", "The clients' mean F has no single minimum"),
    "singular": ("clients=-1,0,1,0,0;1,0,1,0,0", "Client 2 has the curvature 0: its minimum is a line"),
    "unstable": ("lr=1.5", "η · curvature is 4.05 for client 2, and local steps grow beyond 2: use η < 0.74."),
    "half a code": ("seed=%E0&lr=%", "lr is NaN, not a number; it stays 0.1."),
    "more than there is room for": ("clients=1;2;3", "it stays 2. And 6 more."),
}


def test_bad_input_is_named_in_the_picture_which_stays_usable(tab):
    """Each in turn by the address, without loading the page anew."""
    notice = tab.locator(".pg-notice")
    for what, (given, complaint) in BAD.items():
        tab.evaluate("hash => { location.hash = hash; }", f"playground:{given}")
        tab.wait_for_function("hash => location.hash.endsWith(hash)", arg=given)
        tab.clock.run_for(300)
        assert complaint in notice.inner_text(), what
        assert "NaN" not in tab.locator(".pg-plane").evaluate("e => e.innerHTML"), what
        before = state(tab)
        tab.locator(".pg-start").press("ArrowRight")
        assert state(tab)["start"] != before["start"], what
        tab.get_by_role("button", name="Reset").click()
        tab.clock.run_for(300)
        assert notice.is_hidden(), what
        assert says(tab).startswith("FedAvg stops 1.13 away"), what


def test_a_wrong_number_in_a_field_is_refused_and_said(tab):
    tab.locator("summary").click()
    field = tab.get_by_label("curvature 1 of client 2")
    field.fill("")
    field.press("Tab")
    tab.clock.run_for(50)
    assert "is empty, not a number" in tab.locator(".pg-notice").inner_text()
    assert state(tab)["clients"][1]["curvature"] == [0.2, 2.7]
    field.fill("−1,5")  # as it is written in other languages
    field.press("Tab")
    assert state(tab)["clients"][1]["curvature"] == [-1.5, 2.7]


PICTURES = {
    "quadratic": partial(fc.playground, rounds=5),
    "logistic": partial(fc.playground, problem="logistic", rounds=5),
    "sub-models": partial(fc.submodel_playground, ["AB", "CD"], rounds=2),
    "mask": mask_playground,
}


@pytest.fixture(params=PICTURES.values(), ids=PICTURES)
def picture(request):
    return request.param(caption="A & <b>")


def test_without_script_a_still_picture_stands_with_words_and_caption(browser, tmp_path, picture):
    with opened(browser, written(tmp_path, picture.html()), java_script_enabled=False) as tab:
        assert tab.get_by_role("img").get_attribute("aria-label") == picture.alt()
        assert tab.locator("figcaption").inner_text() == "A & <b>"
        assert tab.locator(".pg-says").inner_text() in picture.alt()
        assert tab.locator("button, input").count() == 0


@pytest.mark.parametrize("problem", ["quadratic", "logistic"])
def test_the_still_paths_end_where_those_of_the_package_do(problem):
    pg = fc.playground(problem=problem)
    drawn = pg.still().split('class="pg-paths"')[1].split("</g>")[0]
    ends = [list(map(float, end.split())) for end in re.findall(r'L([^L]*?)"', drawn)]
    for end, path in zip(ends, pg.paths().values(), strict=True):
        x, y = path[-1] * 440 / 6.1
        np.testing.assert_allclose(end, [220 + x, 200 - y], atol=0.06)


def test_on_a_small_phone_every_control_has_a_name_and_nothing_leaves_the_window(browser, tmp_path, picture):
    with opened(browser, written(tmp_path, picture.html()), (320, 640)) as tab:
        for opener in tab.locator("summary, .pg-all").all():
            opener.click()
        tab.clock.run_for(100)
        assert tab.evaluate(NAMELESS) == 0
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_two_playgrounds_of_a_page_do_not_move_each_other(browser, tmp_path):
    both = "".join(fc.playground(rounds=5, name=name).html() for name in ("left", "right"))
    with opened(browser, f"{written(tmp_path, both).as_uri()}#right:lr=0.05") as tab:
        tab.locator("#left .pg-start").press("ArrowUp")
        left, right = (tab.evaluate(f"document.querySelector('#{k}').playground.get()") for k in ("left", "right"))
        assert (left["lr"], right["lr"]) == (0.1, 0.05)
        assert left["start"] != right["start"] == list(fc.playground().start)


def test_no_text_in_the_scripts_has_an_operator_that_loses_its_spaces():
    code = "\n".join(map(base.asset, ("live.js", "playground.js", "submodels.js", "masks.js")))
    texts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', code)
    texts += re.split(r"\$\{[^{}]*\}", " ".join(re.findall(r"`([^`]*)`", code)))
    assert [text for text in texts if base._tight(text) != text] == []


def test_the_playground_weighs_less_than_60_kb_and_that_of_sub_models_adds_less_than_26():
    added = "".join(map(base.asset, (*SubmodelPlayground.scripts, *SubmodelPlayground.styles)))
    assert len((Playground.module() + Playground.style()).encode()) < 60_000
    assert len(added.encode()) < 26_000
