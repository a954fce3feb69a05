"""The picture of a mask computes what the package computes, and is moved by hand, by key and from the kernel."""

import pytest
import torch
from browser import NAMELESS, core_of, opened, says, slider, state, with_model, written

from fedbook.live.mask_playground import SCORES, SIZES, MaskPlayground, mask_playground
from fedbook.measures import masks


@pytest.fixture(scope="module")
def core(browser, tmp_path_factory):
    names = "widget, found, bits"
    with core_of(browser, tmp_path_factory.mktemp("core"), MaskPlayground, names) as tab:
        yield tab


def test_the_page_computes_gap_bound_and_picks_of_the_package_for_every_mask(core):
    worst = 0.0
    for seed in range(3):
        every = [format(code, "06b") for code in range(64)]
        pg = mask_playground(seed=seed)
        for number, net in enumerate(pg.config()["networks"], 1):
            pages = core.evaluate("([net, all]) => all.map((text) => core.found(net, core.bits(text)))", [net, every])
            for kept, page in zip(every, pages, strict=True):
                pg.set(kept=kept, network=number)
                found = pg.numbers()
                worst = max(worst, *(abs(page[name] - found[name]) for name in ("gap", "masked", "bound")))
                picked = {name: "".join("01"[v] for v in mask) for name, mask in page["picked"].items()}
                assert picked == found["picked"]
    assert worst < 1e-9
    print(f"{worst:.1e}")


def test_gap_and_bound_are_those_of_gradients_by_autograd():
    """One network as a torch module, its dropped neurons' weights set to zero."""
    pg = mask_playground("101100", 2)
    net, x, y = masks.random_networks(4, SIZES, 16)
    (W, b), (V, c) = [(W[1], b[1]) for W, b in net]

    def gradient(on):
        parts = [p.clone().requires_grad_() for p in (W * on[:, None], b * on, V * on, c)]
        logits = (x[1] @ parts[0].T + parts[1]).relu() @ parts[2].T + parts[3]
        return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y[1]), parts)

    on, whole = torch.tensor([1.0, 0, 1, 1, 0, 0]).double(), gradient(torch.ones(6).double())
    apart = torch.cat([(g - h).flatten() for g, h in zip(whole, gradient(on), strict=True)])
    cut = torch.cat(
        [(g * (1 - on.view(shape))).flatten() for g, shape in zip(whole[:3], ((6, 1), (6,), (1, 6)), strict=True)]
    )
    found = pg.numbers()
    assert found["gap"] == pytest.approx(float(apart.norm()))
    assert found["masked"] == pytest.approx(float(cut.norm()))
    assert found["bound"] <= found["masked"] <= found["gap"]
    pg.kept = found["picked"]["row and column norm"]
    assert pg.numbers()["masked"] == pytest.approx(found["bound"]), "this score cuts off least"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kept": "11"}, "kept='11'; use 6 letters 0 or 1, such as '110100'"),
        ({"kept": "11x000"}, "kept='11x000'; use 6 letters"),
        ({"network": 5}, "network=5 is out of range; use network>=1 and network<=4"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"name": "a b"}, "name='a b' cannot stand in an address"),
    ],
)
def test_a_wrong_setting_is_refused_with_value_range_and_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        mask_playground(**settings)


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
        assert not tab.evaluate(NAMELESS)


def test_a_model_of_the_kernel_and_the_page_hold_one_state(core):
    pg = mask_playground(caption="live")
    with_model(core, "render({model, el: document.body})", pg.config() | {"key": "k"}, pg.state)
    core.get_by_role("button", name="neuron 6").click()
    core.clock.run_for(200)
    assert core.evaluate("model.values.state") == {"kept": "111001", "network": 1}
    core.evaluate("model.values.state = {kept: '000011', network: 2}; model.listeners.forEach(f => f())")
    assert "Network 2, neurons 5 and 6 kept" in says(core)


def test_without_script_a_still_picture_stands_with_its_words(browser, tmp_path):
    pg = mask_playground("100001")
    with opened(browser, written(tmp_path, pg.html()), java_script_enabled=False) as tab:
        assert tab.get_by_role("img").get_attribute("aria-label") == pg.alt()
        assert tab.locator(".pg-says").inner_text() == pg.alt()
        assert tab.locator("button, input").count() == 0


@pytest.mark.parametrize("size", [(1280, 900), (390, 844), (320, 640)], ids=["desktop", "phone", "small phone"])
def test_nothing_leaves_the_window(browser, tmp_path, size):
    with opened(browser, written(tmp_path, mask_playground().html()), size) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
