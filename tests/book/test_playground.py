"""The playground computes what the package computes, says what is wrong, and is operated by hand, key and address."""

import json
import re
import types

import numpy as np
import pytest
import torch
from browser import NAMELESS, core_of, opened, says, slider, state, with_model, written

import fedcore as fc
from fedbook.live import base, playground
from fedbook.live.playground import Playground

# ------------------------------------------------------------------------------------------------ the same numbers

ROUNDS, PROBLEMS = 3, 200
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
    names = "widget, placed, run, problem, cohort, checked, longRun, told, METHODS, DEFAULTS, RANGE"
    with core_of(browser, tmp_path_factory.mktemp("core"), Playground, names) as tab:
        yield tab


@pytest.mark.parametrize("method", playground.METHODS)
def test_the_page_computes_the_numbers_of_the_package_on_200_random_problems(core, method):
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


def test_the_page_draws_the_cohorts_of_the_package(core):
    draws = [(seed, t, n, m) for seed in (0, 7, 10**6) for t in (0, 1, 33) for n, m in ((2, 1), (5, 2), (8, 7))]
    got = core.evaluate("draws => draws.map((d) => core.cohort(...d))", draws)
    assert got == [fc.rng.cohort(*draw) for draw in draws]


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
    for method in (fc.FedDyn(0.005), fc.FedProx(500.0), fc.Mime(beta=0.999)):
        methods = fc.playground(methods=[method]).state["methods"]
        said = "given => { const said = []; return [core.checked(given, core.DEFAULTS, said).methods, said]; }"
        assert core.evaluate(said, {"methods": methods}) == [methods, []]


@pytest.mark.parametrize("wrong", ["lrr", "local_step", "caption_"])
def test_a_mistyped_setting_of_a_playground_is_no_new_attribute(wrong):
    for pg in (fc.playground(), fc.submodel_playground()):
        with pytest.raises(AttributeError, match=f"no setting '{wrong}'"):
            setattr(pg, wrong, 0.3)


def test_with_a_part_of_the_clients_the_sentence_gives_the_distance_at_which_a_method_hovers(core):
    """The page goes on for 2,000 rounds; the package's run of as many gives the same mean over the later half."""
    state = fc.playground(4, ["FedAvg", "SCAFFOLD"], cohort=2, lr=0.1).state
    found = core.evaluate(
        """(s) => {
            const P = core.problem(s), out = {};
            for (const name of Object.keys(s.methods)) {
                const {last, path} = core.run(P, s, name, s.rounds), far = core.longRun(P, s, name, last, 1e9);
                const d = Math.hypot(path.at(-2) - P.optimum[0], path.at(-1) - P.optimum[1]);
                const said = core.told(name, d, 1, 0, s.rounds, far.hovers ? far.away : null, "2 of 4 clients");
                out[name] = {...far, said};
            }
            return out;
        }""",
        state,
    )
    pg = fc.playground(**{**state, "rounds": 200})
    fed, work, points = pg.federation, pg._run("FedAvg"), []
    run = fc.start(fc.FedAvg(), fed)
    for t in range(30 + 2000):
        run, _ = fc.one_round(fc.FedAvg(), fed, run, t, **work)
        points.append(run["x"].numpy() - pg.optimum())
    away = np.linalg.norm(points[-1000:], axis=1).mean()
    assert found["FedAvg"]["hovers"]
    assert found["FedAvg"]["away"] == pytest.approx(away, rel=1e-6)
    assert "with 2 of 4 clients per round, hovers" in found["FedAvg"]["said"]
    assert not found["SCAFFOLD"]["hovers"]
    assert found["SCAFFOLD"]["away"] < 1e-3, "SCAFFOLD has no floor"


def test_the_sentence_under_sampling_names_no_fixed_point_and_a_stop_is_away_from_the_optimum(core):
    said = core.evaluate(
        "() => [[0.45, 0.25, 0, 30, 0.31, '2 of 6 clients'], [0.25, 0.25, 0, 30]].map((x) => core.told('FedAvg', ...x))"
    )
    hovers = "and, with 2 of 6 clients per round, hovers 0.31 from it on average."
    assert said == [
        f"FedAvg is 0.45 from the optimum after 30 rounds {hovers}",
        "FedAvg stops 0.25 away from the optimum.",
    ]


def test_a_logistic_problem_has_the_gradients_and_products_of_its_losses_and_the_curvature_that_is_given():
    fed = fc.playground(4, problem="logistic").federation
    plan = fed.plan(0, 0, np.arange(4))
    Y = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    z, q = torch.einsum("nsp,np->ns", fed.a, Y), torch.sigmoid(torch.einsum("nsp,np->ns", fed.a, fed.b))
    losses = torch.nn.functional.binary_cross_entropy_with_logits(z, q, reduction="none").mean(1)
    (g,) = torch.autograd.grad(losses.sum(), Y, create_graph=True)
    (Hg,) = torch.autograd.grad((g * g.detach()).sum(), Y)
    torch.testing.assert_close(fed.gradient(Y, plan), g)
    torch.testing.assert_close(fed.gradient(Y.detach(), plan, along=g.detach()), Hg)
    torch.testing.assert_close(fed.gradient_and_losses(Y, plan)[1], losses)
    torch.testing.assert_close(fed.A, fc.playground(4).federation.A)
    assert fed.full_gradient(fed.b, plan).abs().max() < 1e-15, "a client's own model does not minimise its objective"
    assert fed.full_gradient(fed.optimum.expand(4, -1), plan).sum(0).norm() < 1e-13
    with pytest.raises(ValueError, match="pooled"):
        fc.simulate(fc.Central(), fed, rounds=1)


def test_a_problem_without_a_minimum_says_so_in_words():
    clients = [{"optimum": (-1, 0), "curvature": (1, -2)}, {"optimum": (1, 0)}]
    pg = fc.playground(clients, rounds=5)
    assert pg.optimum() is None
    assert "no single minimum" in pg.alt()
    assert "optimum</text>" not in pg.html().split("<script")[0]


# ------------------------------------------------------------------------------------------------ in Python


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 0}, "clients=0 is out of range; use clients>=2 and clients<=8"),
        ({"clients": 2.5}, "clients=2.5 is not an integer"),
        ({"clients": [{"optimum": (0, 0)}]}, r"len\(clients\)=1 is out of range"),
        ({"clients": [{"optimum": (0, float("nan"))}] * 2}, r"clients\[0\]\['optimum'\]=nan is out of range"),
        ({"clients": [{"place": (0, 0)}] * 2}, r"use dict\(optimum=\(x, y\)"),
        ({"clients": [{"optimum": (0, 0), "curvature": (-1, 1)}] * 2, "problem": "logistic"}, "curvature.*=-1 is out"),
        ({"methods": ["FedAvg", "FedBest"]}, "methods has 'FedBest'; use some of FedAvg"),
        ({"methods": "FedAvg"}, r"use a list, methods=\['FedAvg'\]"),
        ({"methods": [fc.FedAvg(server_momentum=0.5)]}, "the playground's FedAvg takes no parameter"),
        ({"methods": [fc.FedProx(2000.0)]}, "FedProx's mu=2000 is out of range; use FedProx's mu >= 0 and <= 1000"),
        ({"lr": 0}, "lr=0 is out of range; use lr > 0 and <= 10"),
        ({"cohort": 3}, "cohort=3 is out of range; use cohort>=1 and cohort<=2"),
        ({"start": (1, 2, 3)}, r"start=\(1, 2, 3\); use two numbers"),
        ({"problem": "cubic"}, "use one of 'quadratic', 'logistic'"),
        ({"name": "two words"}, "name='two words' cannot stand in an address"),
    ],
)
def test_a_wrong_setting_is_refused_with_value_range_and_remedy(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fc.playground(**settings)


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
    assert pg.state == before


def test_histories_are_those_of_simulate():
    pg = fc.playground(methods=["FedAvg", "SCAFFOLD"], rounds=12)
    histories = pg.history()
    fed = pg.federation
    for name, method in pg.methods.items():
        same = fc.simulate(method, fed, rounds=12, lr=pg.lr, local_steps=pg.local_steps, progress=False)
        np.testing.assert_array_equal(histories[name].curve("distance")[1], same.curve("distance")[1])
        assert histories[name].final("distance") == pytest.approx(
            np.linalg.norm(pg.paths()[name][-1] - fed.optimum.numpy()), rel=1e-12
        )


def test_a_run_that_diverges_ends_where_it_did():
    pg = fc.playground(lr=3.0, local_steps=40, rounds=40, methods=["FedAvg"])
    assert len(pg.history()["FedAvg"].cohorts) < 40
    assert "FedAvg runs away." in pg.html()


# ------------------------------------------------------------------------------------------------ in Jupyter


def test_a_widget_and_python_hold_one_state(monkeypatch):
    pytest.importorskip("anywidget")
    pg = fc.playground()
    widget = pg.widget
    pg.lr = 0.3
    assert widget.state["lr"] == 0.3
    moved = pg.state | {"cohort": 1, "start": [0.25, 0.5]}
    widget.state = moved  # what a hand in the page does
    assert (pg.cohort, pg.start, pg.state) == (1, [0.25, 0.5], moved)


def test_an_output_is_html_and_names_its_model_only_where_a_kernel_would_answer(monkeypatch):
    pg, key = fc.playground(), '"key":'

    def shown():
        bundle = pg._repr_mimebundle_()
        assert set(bundle) == {"text/html", "text/plain"}, "what a saved notebook cannot show without its kernel"
        return bundle["text/html"]

    assert key not in shown()
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
        assert playground._checked(told)["local_steps"] == 20
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


@pytest.fixture
def page(tmp_path):
    return written(tmp_path, fc.playground(caption="A & <b>").html())


def test_the_picture_follows_the_pointer_before_it_lets_go(browser, page):
    with opened(browser, page) as tab:
        first, box = says(tab), tab.locator(".pg-client").first.bounding_box()
        assert first.startswith("FedAvg stops 1.13 away from the optimum.")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        tab.mouse.move(x, y)
        tab.mouse.down()
        seen = {first}
        for k in range(1, 5):
            tab.mouse.move(x + 20 * k, y - 10 * k)
            seen.add(says(tab))
            assert tab.locator(".pg-plane").get_attribute("aria-label").startswith(says(tab))
        assert len(seen) == 5, "the words did not follow the hand"
        unit = tab.locator(".pg-plane").bounding_box()["width"] / 2 / 3.05
        moved = np.array(state(tab)["clients"][0]["optimum"]) - fc.playground().clients[0]["optimum"]
        np.testing.assert_allclose(moved, [80 / unit, 40 / unit], atol=0.01)
        tab.mouse.up()
        tab.mouse.move(x, y)
        assert says(tab) in seen


def test_what_a_hand_has_set_up_is_computed_as_the_package_does(browser, page):
    with opened(browser, page) as tab:
        tab.locator(".pg-client").nth(1).press("Shift+ArrowDown")
        slider(tab, "local_steps").fill("25")
        tab.clock.run_for(300)
        pg = fc.playground(**state(tab))
        assert pg.local_steps == 25
        assert pg.clients[1]["optimum"] == [2.1, -1.25]
        d = pg.history()["FedAvg"].final("distance")
        assert says(tab).startswith(f"FedAvg stops {d:.3g} away from the optimum.")


def test_a_finger_moves_a_handle_and_the_page_stays(browser, page):
    with opened(browser, page, (390, 844), has_touch=True) as tab:
        box = tab.locator(".pg-start").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        assert min(box["width"], box["height"]) >= 34, "too small for a finger"
        send = tab.context.new_cdp_session(tab).send
        # pixel by pixel, as a finger goes: after some of them a browser that may would begin to scroll
        path = [("touchStart", [(x, y)]), *(("touchMove", [(x + k, y - k)]) for k in range(1, 41)), ("touchEnd", [])]
        before = state(tab)["start"]
        for kind, points in path:
            send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]})
        tab.clock.run_for(100)
        unit = tab.locator(".pg-plane").bounding_box()["width"] / 2 / 3.05
        moved = np.array(state(tab)["start"]) - before
        np.testing.assert_allclose(moved, [40 / unit, 40 / unit], atol=0.05)
        assert tab.evaluate("scrollY") == 0


def test_a_hand_keeps_hold_of_a_point_while_the_page_scrolls_and_its_window_changes(browser, page):
    with opened(browser, page, (1000, 400)) as tab:

        def middle(what):
            box = tab.locator(what).bounding_box()
            return np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])

        tab.mouse.move(*middle(".pg-start"))
        tab.mouse.down()
        tab.evaluate("scrollTo(0, 80)")
        for size in ((1000, 400), (500, 800)):
            tab.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
            hand = middle(".pg-plane") + np.array([31, -22])
            tab.mouse.move(*hand)
            tab.clock.run_for(100)
            np.testing.assert_allclose(middle(".pg-start"), hand, atol=1)


def test_other_buttons_of_a_mouse_and_keys_of_the_browser_move_nothing(browser, page):
    with opened(browser, page) as tab:
        before, box = state(tab), tab.locator(".pg-start").bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tab.mouse.down(button="right")
        tab.mouse.move(box["x"] + 90, box["y"] + 90)
        tab.mouse.up(button="right")
        for key in ("Alt+ArrowRight", "Control+ArrowUp", "Meta+ArrowDown"):
            tab.locator(".pg-start").press(key)
        assert state(tab) == before


def test_on_dark_pages_the_browser_s_own_controls_are_dark(browser, page):
    scheme = "getComputedStyle(document.querySelector('.fc-pg input')).colorScheme"
    with opened(browser, page) as tab:
        assert tab.evaluate(scheme) != "dark"
        tab.evaluate("document.body.dataset.jpThemeLight = 'false'")
        assert tab.evaluate(scheme) == "dark"


def test_every_point_and_control_has_a_name_and_answers_to_keys(browser, page):
    with opened(browser, page) as tab:
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
        axis = tab.get_by_role("slider", name="Axis 2 of client 1's ellipse")
        before = state(tab)["clients"][0]
        axis.press("ArrowLeft")
        after = state(tab)["clients"][0]
        assert after["curvature"][0] == before["curvature"][0]
        assert after["curvature"][1] != before["curvature"][1]
        tab.locator("summary").click()
        assert tab.evaluate(NAMELESS) == 0
        tab.get_by_role("radio", name="bytes").check()
        tab.clock.run_for(50)
        assert "against bytes: FedAvg 0.83 and SCAFFOLD" in tab.locator(".pg-chart svg").get_attribute("aria-label")


def test_methods_are_switched_on_and_off_and_bring_their_sliders(browser, page):
    with opened(browser, page) as tab:
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


def test_play_runs_the_rounds_and_reset_brings_everything_back(browser, page):
    with opened(browser, page) as tab:
        first = state(tab)
        play = tab.locator(".pg-play")
        play.click()
        tab.clock.run_for(1000)
        assert 0 < float(tab.locator(".fc-pg").get_attribute("data-round")) < 2
        play.click()
        assert play.inner_text() == "Play"
        assert tab.locator("output").nth(0).inner_text()
        slider(tab, "round").fill("0")
        tab.get_by_role("button", name="Step").click()
        tab.clock.run_for(50)
        assert slider(tab, "round").get_attribute("aria-valuetext") == "1 of 30"
        play.click()
        tab.clock.run_for(30_000)
        assert slider(tab, "round").get_attribute("aria-valuetext") == "30 of 30"
        tab.locator(".pg-start").press("ArrowLeft")
        tab.get_by_role("button", name="FedUp").click()
        assert state(tab) != first
        tab.get_by_role("button", name="Reset").click()
        assert state(tab) == first


def test_readers_who_ask_for_less_motion_get_single_rounds(browser, page):
    with opened(browser, page, reduced_motion="reduce") as tab:
        slider(tab, "round").fill("0")
        tab.locator(".pg-play").click()
        tab.clock.run_for(5000)
        assert tab.locator(".fc-pg").get_attribute("data-round") == "1"


def test_an_address_brings_back_the_very_picture(browser, page):
    with opened(browser, page) as tab:
        tab.locator(".pg-client").first.press("ArrowUp")
        slider(tab, "lr").fill("0.05")
        tab.get_by_role("button", name="FedUp").click()
        here = state(tab)
        tab.get_by_role("button", name="Link").click()
        address = tab.evaluate("location.href")
    with opened(browser, address) as tab:
        assert state(tab) == here


BAD = {
    "no number": ("lr=oops", "lr is NaN, not a number; it stays 0.1."),
    "out of range": ("local_steps=1e9", "local_steps = 1000000000 is outside 1 to 200; it stays 10."),
    "no whole number": ("local_steps=2.5", "local_steps = 2.5 is no whole number; it stays 10."),
    "at a bound that is out": ("server_lr=0", "server_lr = 0 must be greater than 0; it stays 1."),
    "an unknown method": ("methods=FedBest,FedAvg", "The playground has no method FedBest."),
    "a missing coordinate": ("clients=1,2,1,1,0;,0,1,1,0", "optimum of client 2 is NaN, not a number"),
    "indefinite": ("clients=-1,0,1,-0.5,0;1,0,1,1,0", "Client 1 has the curvature −0.5 < 0: it has no minimum"),
    "no minimum at all": ("clients=-1,0,1,-2,0;1,0,1,1,0", "The clients' mean F has no single minimum"),
    "singular": ("clients=-1,0,1,0,0;1,0,1,0,0", "Client 2 has the curvature 0: its minimum is a line"),
    "unstable": ("lr=1.5", "η · curvature is 4.05 for client 2, and local steps grow beyond 2: use η < 0.74."),
    "nonsense": ("%3Cb%3E=1&&=", ""),
    "half a code": ("seed=%E0&lr=%", "lr is NaN, not a number; it stays 0.1."),
    "a name that JavaScript has": ("methods=constructor:1,FedAvg", "The playground has no method constructor."),
    "more than there is room for": ("clients=1;2;3", "it stays 2. And 6 more."),
}


def test_bad_input_is_named_in_the_picture_which_stays_usable(browser, page):
    """Each in turn by the address, without loading the page anew."""
    with opened(browser, page) as tab:
        notice = tab.locator(".pg-notice")
        for what, (given, complaint) in BAD.items():
            tab.evaluate("hash => { location.hash = hash; }", f"playground:{given}")
            tab.wait_for_function("hash => location.hash.endsWith(hash)", arg=given)
            tab.clock.run_for(300)
            assert complaint in (notice.inner_text() if notice.is_visible() else ""), what
            assert notice.is_visible() == bool(complaint), what
            assert "NaN" not in tab.locator(".pg-plane").evaluate("e => e.innerHTML"), what
            before = state(tab)
            tab.locator(".pg-start").press("ArrowRight")
            assert state(tab)["start"] != before["start"], what
            tab.get_by_role("button", name="Reset").click()
            tab.clock.run_for(300)
            assert notice.is_hidden(), what
            assert says(tab).startswith("FedAvg stops 1.13 away"), what


def test_a_wrong_number_in_a_field_is_refused_and_said(browser, page):
    with opened(browser, page) as tab:
        tab.locator("summary").click()
        field = tab.get_by_label("curvature 1 of client 2")
        for text, complaint in (("abc", "not a number"), ("", "is empty, not a number"), ("1e9", "outside")):
            field.fill(text)
            field.press("Tab")
            tab.clock.run_for(50)
            assert complaint in tab.locator(".pg-notice").inner_text()
            assert state(tab)["clients"][1]["curvature"] == [0.2, 2.7]
        field.fill("−1,5")  # as it is written in other languages
        field.press("Tab")
        assert state(tab)["clients"][1]["curvature"] == [-1.5, 2.7]


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_without_script_a_still_picture_stands_with_words_and_caption(browser, tmp_path, kind):
    pg = fc.playground(problem=kind, caption="A & <b>")
    with opened(browser, written(tmp_path, pg.html()), java_script_enabled=False) as tab:
        assert tab.get_by_role("img").get_attribute("aria-label") == pg.alt()
        assert tab.locator("figcaption").inner_text() == "A & <b>"
        assert "SCAFFOLD reaches the optimum within 30 rounds." in tab.locator("figure").inner_text()
        assert tab.locator("button, input").count() == 0
        ends = tab.locator(".pg-paths path").evaluate_all("all => all.map(e => e.getAttribute('d').split('L').at(-1))")
        for end, path in zip(ends, pg.paths().values(), strict=True):
            x, y = path[-1] * 440 / 6.1
            np.testing.assert_allclose([float(v) for v in end.split()], [220 + x, 200 - y], atol=0.06)


@pytest.mark.parametrize("size", [(1280, 900), (390, 844), (320, 640)], ids=["desktop", "phone", "small phone"])
def test_nothing_leaves_the_window(browser, page, size):
    with opened(browser, page, size) as tab:
        tab.locator("summary").click()
        tab.get_by_role("button", name="12 more").click()
        tab.get_by_role("button", name="FedDyn").click()
        tab.clock.run_for(100)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_two_playgrounds_of_a_page_do_not_move_each_other(browser, tmp_path):
    both = fc.playground(name="left").html() + fc.playground(name="right").html()
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


def test_the_module_weighs_less_than_60_kb():
    assert len((Playground.module() + Playground.style()).encode()) < 60_000
