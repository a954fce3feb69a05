"""The playground of sub-models computes what the package computes, says what is wrong, and is moved by hand and key."""

import re

import numpy as np
import pytest
from browser import core_of, opened, says, slider, state, written

import fedcore as fc
from fedbook.live import base
from fedbook.live.submodel_playground import CLASSES, METHODS, SIDES, SubmodelPlayground

# ------------------------------------------------------------------------------------------------ the same numbers

PROBLEMS = 6


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
    names = "run, problem, DEFAULTS, DEALT, METHODS"
    with core_of(browser, tmp_path_factory.mktemp("core"), SubmodelPlayground, names) as tab:
        yield tab


@pytest.mark.parametrize("number", range(PROBLEMS))
def test_the_page_takes_the_neurons_and_computes_the_numbers_of_the_package(core, number):
    """Equal scores, as of neurons that fire on no sample, go to the lower number in both."""
    given = random_state(number)
    pages = core.evaluate(
        """([s, methods]) => methods.map((method) => {
            const {rounds, x, accuracy} = core.run(core.problem(s), s, method, s.rounds);
            const of = (name) => rounds.map((r) => r[name]);
            return {kept: of("units"), conflict: of("conflict"), shared: of("shared"), cosine: of("cosine"), accuracy,
                    params: [...x]};
        })""",
        [given, list(METHODS)],
    )
    for method, page in zip(METHODS, pages, strict=True):
        found = fc.submodel_playground(**given).numbers(method)
        np.testing.assert_array_equal(found.pop("kept"), page.pop("kept"), err_msg=method)
        for name, values in found.items():
            theirs = np.array(page[name], float)  # null is NaN
            np.testing.assert_allclose(theirs, values, rtol=0, atol=1e-9, err_msg=f"{method}: {name}")


def test_the_page_and_the_package_start_from_one_setting(core):
    assert core.evaluate("core.DEFAULTS") == fc.submodel_playground().state
    assert core.evaluate("core.METHODS") == list(METHODS)
    assert core.evaluate("core.DEALT") == fc.submodel_playground(6).clients


# ------------------------------------------------------------------------------------------------ in Python


def test_settings_are_read_from_a_method():
    pg = fc.submodel_playground(["BA", "CC"], fc.FedDSE(0.25, temperature=0.5))
    assert (pg.clients, pg.method, pg.ratio, pg.temperature) == (["AB", "C"], "FedDSE", 0.25, 0.5)
    assert pg.algorithm() == fc.FedDSE(0.25, temperature=0.5)
    assert pg.algorithm("FedRolex") == fc.FedRolex(0.25)
    with pytest.raises(ValueError, match="method='Best' is not known; use one of 'FedAvg'"):
        pg.numbers("Best")


# ------------------------------------------------------------------------------------------------ by hand


ROUNDS = 5


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return written(tmp_path_factory.mktemp("page"), fc.submodel_playground(rounds=ROUNDS).html())


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
        assert state(tab) == fc.submodel_playground(rounds=ROUNDS).state
        agree(tab, 1)


def test_a_client_is_picked_and_its_sub_model_drawn(browser, page):
    with opened(browser, page) as tab:
        tab.clock.run_for(100)
        kept = fc.submodel_playground(rounds=ROUNDS).numbers()["kept"][0][1]
        a, b = kept[:8].sum(), kept[8:].sum()
        client = tab.get_by_role("button", name="client 2", exact=True)
        client.press("Enter")
        tab.clock.run_for(100)
        assert client.get_attribute("aria-pressed") == "true"
        assert tab.locator(".pg-mine").get_attribute("d").count("M") == 2 * a + a * b + 6 * b
        client.press("Enter")
        tab.clock.run_for(100)
        assert tab.locator(".pg-mine").count() == 0


def test_an_address_brings_back_the_very_picture_and_a_wrong_one_is_named(browser, page):
    with opened(browser, page) as tab:
        tab.get_by_role("button", name="FedGSE").click()
        tab.get_by_role("button", name="class F of client 2").click()
        here = state(tab)
        tab.get_by_role("button", name="Link").click()
        address = tab.evaluate("location.href")
        for letter in "AB":  # client 1 has no other class
            tab.get_by_role("button", name=f"class {letter} of client 1").click()
        tab.clock.run_for(100)
        assert "Client 1 needs classes" in tab.locator(".pg-notice").inner_text()
        assert state(tab)["clients"][0] == "B"
    with opened(browser, address) as tab:
        assert state(tab) == here
        for given, complaint in (
            ("ratio=oops", "ratio is NaN, not a number; it stays 0.5."),
            ("method=FedBest", "method FedBest is not known; use FedAvg, HeteroFL"),
            ("clients=AB", "1 clients were given; use 2 to 6."),
            ("clients=AB,X", "Client 2 needs classes, some of A to F"),
        ):
            tab.evaluate("hash => { location.hash = hash; }", f"submodels:{given}")
            tab.wait_for_function("hash => location.hash.endsWith(hash)", arg=given)
            assert says(tab).startswith("FedDSE, round 1")
            assert complaint in tab.locator(".pg-notice").inner_text(), given


def test_the_still_picture_marks_the_neurons_of_each_client():
    pg = fc.submodel_playground(["AB", "CD"], rounds=1)
    still = pg.still()
    assert re.findall(r"<li[^>]*>(.*?)</li>", still) == ["client 1: AB", "client 2: CD"]
    neurons = [neuron.split("<circle")[0] for neuron in still.split('class="pg-neuron"')[1:]]
    drawn = [[fill != "none" for fill in re.findall('<path fill="(.*?)"', neuron)] for neuron in neurons]
    np.testing.assert_array_equal(np.array(drawn).T, pg.numbers()["kept"][0])
