"""The picture of a mask computes what the package computes, and is moved by hand, by key and from the kernel."""

import pytest
from browser import core_of, opened, says, slider, state, with_model, written

from fedbook.live.mask_playground import SCORES, MaskPlayground, mask_playground


@pytest.fixture(scope="module")
def core(browser, tmp_path_factory):
    names = "widget, found, bits"
    with core_of(browser, tmp_path_factory.mktemp("core"), MaskPlayground, names) as tab:
        yield tab


def test_the_page_computes_gap_bound_and_picks_of_the_package_for_every_mask(core):
    every, pg = [format(code, "06b") for code in range(64)], mask_playground()
    for number, net in enumerate(pg.config()["networks"][:2], 1):
        pages = core.evaluate("([net, all]) => all.map((text) => core.found(net, core.bits(text)))", [net, every])
        for kept, page in zip(every, pages, strict=True):
            pg.set(kept=kept, network=number)
            found = pg.numbers()
            for name in ("gap", "masked", "bound"):
                assert page[name] == pytest.approx(found[name], rel=0, abs=1e-9)
            assert {name: "".join("01"[v] for v in mask) for name, mask in page["picked"].items()} == found["picked"]


def agree(tab):
    found = mask_playground(**state(tab)).numbers()
    words = says(tab)
    for name, value in (("sub-model gap", "gap"), ("masked gap", "masked"), ("the bound", "bound")):
        assert f"{name} {found[value]:#.3g}" in words
    assert f"rank {found['rank']} of" in words
    pressed = [b.inner_text() for b in tab.locator(".pg-chips button[aria-pressed=true]").all()]
    assert pressed == [name for name in SCORES if found["picked"][name] == state(tab)["kept"]]


def test_neurons_are_toggled_by_hand_and_key_and_the_numbers_follow(browser, tmp_path):
    with opened(browser, written(tmp_path, mask_playground(caption="A & <b>").html())) as tab:
        agree(tab)
        tab.get_by_role("button", name="neuron 4").click()
        assert state(tab)["kept"] == "111100"
        agree(tab)
        tab.get_by_role("button", name="neuron 1").press("Enter")
        assert state(tab)["kept"] == "011100"
        tab.get_by_role("button", name="eq. 4-3", exact=True).click()
        slider(tab, "network").fill("3")
        agree(tab)
        for j in range(6):
            node = tab.get_by_role("button", name=f"neuron {j + 1}")
            if node.get_attribute("aria-pressed") == "true":
                node.click()
                tab.clock.run_for(100)
        assert "no neuron kept" in says(tab)
        tab.get_by_role("button", name="Reset").click()
        assert state(tab) == mask_playground().state


def test_a_model_of_the_kernel_and_the_page_hold_one_state(core):
    pg = mask_playground(caption="live")
    with_model(core, "render({model, el: document.body})", pg.config() | {"key": "k"}, pg.state)
    core.get_by_role("button", name="neuron 6").click()
    core.clock.run_for(200)
    assert core.evaluate("model.values.state") == {"kept": "111001", "network": 1}
    core.evaluate("model.values.state = {kept: '000011', network: 2}; model.listeners.forEach(f => f())")
    assert "Network 2, neurons 5 and 6 kept" in says(core)
