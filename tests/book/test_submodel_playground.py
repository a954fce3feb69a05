"""The playground of sub-models computes what the package computes, says what is wrong, and is moved by hand and key."""

import re

import numpy as np
import pytest
from browser import NAMELESS, core_of, opened, says, slider, state, written

import fedcore as fc
from fedbook.live import base
from fedbook.live.submodel_playground import CLASSES, METHODS, SIDES, SubmodelPlayground

# ------------------------------------------------------------------------------------------------ the same numbers

PROBLEMS = 50


def random_state(number):
    """2 to 6 clients with one to four classes each, any ratio, T = 0 in every second problem."""
    g = np.random.default_rng(number)
    clients = ["".join(g.choice(list(CLASSES), g.integers(1, 5), replace=False)) for _ in range(g.integers(2, 7))]
    return fc.submodel_playground(
        clients,
        ratio=round(g.uniform(0.05, 1), 9),
        temperature=0.0 if number % 2 else round(g.uniform(0.05, 2), 9),
        lr=round(g.uniform(0.05, 0.8), 9),
        local_steps=int(g.integers(1, 6)),
        rounds=3,
        side=SIDES[number % 2],
        seed=int(g.integers(0, 10**6)),
    ).state


@pytest.fixture(scope="module")
def core(browser, tmp_path_factory):
    names = "widget, run, problem, checked, fromHash, toHash, DEFAULTS, DEALT, METHODS"
    with core_of(browser, tmp_path_factory.mktemp("core"), SubmodelPlayground, names) as tab:
        yield tab


@pytest.fixture(scope="module")
def states():
    return [random_state(k) for k in range(PROBLEMS)]


@pytest.mark.parametrize("method", METHODS)
def test_the_page_takes_the_neurons_and_computes_the_numbers_of_the_package(core, states, method):
    """Equal scores, as of neurons that fire on no sample, go to the lower number in both."""
    pages = core.evaluate(
        """([states, method]) => states.map((s) => {
            const {rounds, x, accuracy} = core.run(core.problem(s), s, method, s.rounds);
            const of = (name) => rounds.map((r) => r[name]);
            return {kept: of("units"), conflict: of("conflict"), shared: of("shared"), cosine: of("cosine"), accuracy,
                    params: [...x]};
        })""",
        [states, method],
    )
    worst = 0.0
    for given, page in zip(states, pages, strict=True):
        found = fc.submodel_playground(**given).numbers(method)
        np.testing.assert_array_equal(found.pop("kept"), page.pop("kept"), err_msg=str(given))
        for name, values in found.items():
            theirs = np.array(page[name], float)  # null is NaN
            np.testing.assert_array_equal(np.isnan(theirs), np.isnan(values))
            worst = max(worst, np.nanmax(np.abs(theirs - values), initial=0))
    assert worst < 1e-9, f"{method}: {worst:.2e}"
    print(f"{method}: {worst:.1e}")


def test_the_page_and_the_package_start_from_one_setting(core):
    assert core.evaluate("core.DEFAULTS") == fc.submodel_playground().state
    assert core.evaluate("core.METHODS") == list(METHODS)
    assert core.evaluate("core.DEALT") == fc.submodel_playground(6).clients
    for given in (fc.submodel_playground().state, random_state(1)):
        assert core.evaluate("s => core.checked(core.fromHash(core.toHash(s)))", given) == given


def test_conflict_is_the_cosine_of_what_two_clients_add_to_a_neuron():
    """One round of two clients on the whole network, against gradients taken one by one."""
    pg = fc.submodel_playground(["AB", "CD"], "FedAvg", local_steps=1, rounds=1, side="incoming")
    fed = pg.federation
    G = fed.full_gradient(fed.x0.expand(2, -1), fed.plan(0, 0, np.arange(2), batch_size=None))
    layers = fc.probes.neuron_gradients(fed, fed.x0)
    for side in SIDES:
        pg.side = side
        cosines = [(a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)) for a, b in (layer[side] for layer in layers)]
        np.testing.assert_allclose(pg.numbers()["conflict"][0], np.concatenate(cosines), atol=1e-12)
    whole = G[:, :114]
    cosine = whole[0] @ whole[1] / (whole[0].norm() * whole[1].norm())
    assert pg.numbers()["cosine"][0] == pytest.approx(float(cosine))
    assert pg.numbers()["shared"][0] == 1


def test_the_last_model_is_that_of_simulate():
    pg = fc.submodel_playground(4, fc.FedRolex(0.25), rounds=4)
    run = {"rounds": 4, "lr": 0.3, "local_steps": 5, "batch_size": None}
    history = fc.simulate(fc.FedRolex(0.25), pg.federation, **run)
    np.testing.assert_array_equal(pg.numbers()["params"], history.params)
    assert pg.numbers()["accuracy"][-1] == history.final("accuracy")


def test_chapter_8_says_what_the_picture_shows():
    pg = fc.submodel_playground()
    rolex, hetero, dse, dropout = (pg.numbers(m) for m in ("FedRolex", "HeteroFL", "FedDSE", "FederatedDropout"))
    np.testing.assert_array_equal(rolex["kept"][1, 0, :8], np.roll(rolex["kept"][0, 0, :8], 1))
    assert not hetero["kept"][:, :, 4:8].any()
    assert dse["cosine"].mean() < -0.2 < -0.1 < dropout["cosine"].mean()
    assert dse["accuracy"][-1] > dropout["accuracy"][-1] + 0.2
    pg.clients = ["AB"] * 3
    alike = pg.numbers()
    assert alike["shared"][0] == 1
    assert not (alike["conflict"][0] < 0).any()


# ------------------------------------------------------------------------------------------------ in Python


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 1}, "clients=1 is out of range; use clients>=2 and clients<=6"),
        ({"clients": "AB"}, "clients='AB' is not an integer; use .*the classes of each"),
        ({"clients": ["AB"]}, r"len\(clients\)=1 is out of range"),
        ({"clients": ["AB", "G"]}, r"clients\[1\]='G'; use some of the letters A to F"),
        ({"clients": ["AB", ""]}, r"clients\[1\]=''; use some"),
        ({"method": "FedBest"}, "method='FedBest'; use one of FedAvg, HeteroFL"),
        ({"method": fc.SCAFFOLD()}, r"method=SCAFFOLD\(.*; use one of FedAvg"),
        ({"method": fc.FedDSE({1: 0.5, 0.5: 0.5})}, "the playground's FedDSE takes one ratio and a temperature"),
        ({"method": fc.FedGSE(0.5, "SPL")}, "the playground's FedGSE takes one ratio"),
        ({"ratio": 0}, "ratio=0 is out of range; use ratio > 0 and <= 1"),
        ({"temperature": -1}, "temperature=-1 is out of range"),
        ({"side": "both"}, "side='both' is not known; use one of 'outgoing', 'incoming'"),
        ({"caption": 3}, "caption=3 is no text; give a text"),
    ],
)
def test_a_wrong_setting_is_refused_with_value_range_and_remedy(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fc.submodel_playground(**settings)


def test_settings_are_read_from_a_method():
    pg = fc.submodel_playground(["BA", "CC"], fc.FedDSE(0.25, temperature=0.5))
    assert (pg.clients, pg.method, pg.ratio, pg.temperature) == (["AB", "C"], "FedDSE", 0.25, 0.5)
    assert pg.algorithm() == fc.FedDSE(0.25, temperature=0.5)
    assert pg.algorithm("FedRolex") == fc.FedRolex(0.25)
    with pytest.raises(ValueError, match="method='Best' is not known; use one of 'FedAvg'"):
        pg.numbers("Best")


# ------------------------------------------------------------------------------------------------ by hand


@pytest.fixture
def page(tmp_path):
    return written(tmp_path, fc.submodel_playground(caption="A & <b>").html())


def agree(tab, shown):
    """Words, neurons and chart say what the package computes for the state and the round that are shown."""
    words, pg = says(tab), fc.submodel_playground(**state(tab))
    found, t = pg.numbers(), shown - 1
    trained = found["kept"][t].sum(0)
    assert f"round {shown}: {(trained > 0).sum()} of 14 hidden neurons are trained, {(trained > 1).sum()} by" in words
    assert f"at {(found['conflict'][t] < 0).sum()} of these their updates pull apart" in words
    assert f"Accuracy {np.floor(100 * found['accuracy'][shown] + 0.5):.0f}%." in words
    assert tab.locator(".pg-plane").get_attribute("aria-label").startswith(words)
    neurons = tab.locator(".pg-neuron").evaluate_all("all => all.map(e => e.getAttribute('aria-label'))")
    for label, who, cosine in zip(neurons, found["kept"][t].T, found["conflict"][t], strict=True):
        clients = [int(k) for k in re.findall(r"\d", label.partition(":")[2].partition(", cosine")[0])]
        assert clients == (np.flatnonzero(who) + 1).tolist()
        assert ("cosine" in label) == bool(np.isfinite(cosine))
    assert f"after round {shown}:" in tab.locator(".pg-chart svg").get_attribute("aria-label")


def test_what_a_hand_sets_up_is_what_the_package_computes(browser, page):
    with opened(browser, page) as tab:
        agree(tab, 1)
        tab.get_by_role("button", name="FedRolex").click()
        tab.get_by_role("button", name="class C of client 1").click()
        slider(tab, "ratio").fill("0.3")
        slider(tab, "round").fill("4")
        agree(tab, 4)
        tab.locator("summary").click()
        slider(tab, "clients").fill("5")
        tab.get_by_role("radio", name="incoming").check()
        agree(tab, 4)
        assert state(tab)["clients"] == ["ABC", "CD", "EF", "BC", "DE"]
        tab.get_by_role("radio", name="shared").check()
        tab.clock.run_for(1000)  # the other methods' curves are computed in the pauses
        chart = tab.locator(".pg-chart svg").get_attribute("aria-label")
        assert "another one trains after round 4:" in chart
        for method in ("FedAvg", "FedGSE"):
            share = fc.submodel_playground(**state(tab)).numbers(method)["shared"][3]
            assert f"{base.usual(method)} {share:.2g}" in chart
        tab.get_by_role("button", name="Reset").click()
        tab.clock.run_for(100)
        assert state(tab) == fc.submodel_playground().state
        agree(tab, 1)


def test_a_client_is_picked_and_its_sub_model_drawn(browser, page):
    with opened(browser, page) as tab:
        tab.clock.run_for(100)
        kept = fc.submodel_playground().numbers()["kept"][0][1]
        a, b = kept[:8].sum(), kept[8:].sum()
        client = tab.get_by_role("button", name="client 2", exact=True)
        client.press("Enter")
        tab.clock.run_for(100)
        assert client.get_attribute("aria-pressed") == "true"
        assert tab.locator(".pg-mine").get_attribute("d").count("M") == 2 * a + a * b + 6 * b
        client.press("Enter")
        tab.clock.run_for(100)
        assert tab.locator(".pg-mine").count() == 0


def test_every_control_has_a_name_and_says_its_value(browser, page):
    with opened(browser, page) as tab:
        tab.locator("summary").click()
        tab.clock.run_for(100)
        assert tab.evaluate(NAMELESS) == 0
        slider(tab, "ratio").press("ArrowRight")
        tab.clock.run_for(50)
        assert slider(tab, "ratio").get_attribute("aria-valuetext") == "0.51"
        assert slider(tab, "temperature").get_attribute("aria-label") == "temperature of FedDSE"
        tab.get_by_role("button", name="HeteroFL").press("Enter")
        tab.clock.run_for(50)
        assert slider(tab, "temperature").is_hidden()
        pressed = tab.locator(".pg-chips [aria-pressed=true]").all_inner_texts()
        assert pressed == ["HeteroFL"]


def test_an_address_brings_back_the_very_picture_and_a_wrong_one_is_named(browser, page):
    with opened(browser, page) as tab:
        tab.get_by_role("button", name="FedGSE").click()
        tab.get_by_role("button", name="class F of client 2").click()
        slider(tab, "ratio").fill("0.7")
        here = state(tab)
        tab.get_by_role("button", name="Link").click()
        address = tab.evaluate("location.href")
    with opened(browser, address) as tab:
        assert state(tab) == here
        for given, complaint in (
            ("ratio=oops", "ratio is NaN, not a number; it stays 0.5."),
            ("rounds=1e9", "rounds = 1000000000 is outside 1 to 60; it stays 20."),
            ("method=FedBest", "method FedBest is not known; use FedAvg, HeteroFL"),
            ("clients=AB", "1 clients were given; use 2 to 6."),
            ("clients=AB,X", "Client 2 needs classes, some of A to F"),
            ("%3Cb%3E=1&&=", ""),
            ("%", ""),
        ):
            tab.evaluate("hash => { location.hash = hash; }", f"submodels:{given}")
            tab.wait_for_function("hash => location.hash.endsWith(hash)", arg=given)
            assert says(tab).startswith("FedDSE, round 1")
            notice = tab.locator(".pg-notice")
            assert complaint in (notice.inner_text() if notice.is_visible() else ""), given
            assert notice.is_visible() == bool(complaint), given
        tab.get_by_role("button", name="class A of client 1").click()
        tab.get_by_role("button", name="class B of client 1").click()
        tab.clock.run_for(100)
        assert "Client 1 needs classes" in tab.locator(".pg-notice").inner_text()
        assert state(tab)["clients"][0] == "B"


def test_without_script_a_still_picture_stands_with_words_and_caption(browser, tmp_path):
    pg = fc.submodel_playground(["AB", "CD"], caption="A & <b>")
    with opened(browser, written(tmp_path, pg.html()), java_script_enabled=False) as tab:
        assert tab.get_by_role("img").get_attribute("aria-label") == pg.alt()
        assert tab.locator("figcaption").inner_text() == "A & <b>"
        assert tab.locator("button, input").count() == 0
        assert tab.locator(".pg-legend li").all_inner_texts() == ["client 1: AB", "client 2: CD"]
        drawn = tab.locator(".pg-neuron").evaluate_all(
            "all => all.map(g => [...g.querySelectorAll('path')].map(p => p.getAttribute('fill') !== 'none'))"
        )
        np.testing.assert_array_equal(np.array(drawn).T, pg.numbers()["kept"][0])


@pytest.mark.parametrize("size", [(1280, 900), (390, 844), (320, 640)], ids=["desktop", "phone", "small phone"])
def test_nothing_leaves_the_window(browser, page, size):
    with opened(browser, page, size) as tab:
        tab.locator("summary").click()
        tab.clock.run_for(100)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_second_picture_adds_less_than_26_kb():
    added = "".join(map(base.asset, (*SubmodelPlayground.scripts, *SubmodelPlayground.styles)))
    assert len(added.encode()) < 26_000
