"""The recipes of the chapter on systems do what the chapter says: each is taken from its cell."""

import inspect
import itertools
import json
import re
from types import SimpleNamespace

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedcore as fc

CELLS, KNOWN = (
    json.loads((h.ROOT / "book" / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
    for chapter in ("systems", "known")
)


@pytest.fixture(scope="module")
def page():
    """All names of the chapter after its small run."""
    names = {"__name__": "__main__"}
    for cell in CELLS:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and "pages.record(" not in source:
            exec(compile(source, cell["id"], "exec"), names)
            names["profile"] = "test"
    return SimpleNamespace(**names)


def rounds(method, fed, number=1, **settings):
    """The states before and after each of these rounds in which all clients take part, and what the rounds saw."""
    state = fc.start(method, fed)
    for t in range(number):
        new, seen = fc.one_round(method, fed, state, t, **settings)
        yield state, new, seen
        state = new


def losses(fed, x):
    """Each client's mean cross-entropy, by torch on a module."""
    net = fed.module(x)
    with torch.no_grad():
        return torch.stack([F.cross_entropy(net(fed.x[rows]), fed.y[rows]) for rows in map(list, fed.index)])


def test_a_private_update_is_clipped_and_the_noise_has_the_stated_deviation(page):
    n, d, clip, noise = 5, 400, 0.5, 3.0
    fed = fc.quadratic(np.stack([np.eye(d)] * n), np.random.default_rng(0).normal(size=(n, d)))
    ((_, exact, seen),) = rounds(page.Private(clip, 0), fed, lr=0.1, local_steps=5)
    ((_, noisy, _),) = rounds(page.Private(clip, noise), fed, lr=0.1, local_steps=5)
    norms = seen.y.norm(dim=1, keepdim=True)  # from x = 0
    assert norms.min() > clip
    h.close(exact["x"], (clip * seen.y / norms).mean(0), 1e-14)
    assert float((noisy["x"] - exact["x"]).std()) == pytest.approx(noise * clip / n, rel=0.1)


def test_top_k_sends_k_numbers_and_its_memory_loses_nothing(page):
    method, x0, total = page.TopK(13), page.fed.x0, 0
    for before, after, seen in rounds(method, page.fed, 6, lr=0.1):
        u, ids = seen.y - before["x"], seen.round.ids
        sent = u + before["e_i"][ids] - after["e_i"][ids]
        assert (sent.abs() > 1e-12).sum(1).eq(13).all()
        total = total + u.mean(0)
    h.close(after["x"] - x0 + after["e_i"].mean(0), total, 1e-12)
    assert method.cost(page.fed.layout).up == 2 * 13 / 650
    ((_, forgetful, _),) = rounds(page.TopK(13, memory=False), page.fed, lr=0.1)
    assert not forgetful["e_i"].any()


def test_krum_and_the_median_are_theirs_and_outliers_move_the_mean_alone(page):
    g = np.random.default_rng(0)
    u = np.concatenate([g.normal(size=(9, 4)), 100 + g.normal(size=(3, 4))])
    square = ((u[:, None] - u[None]) ** 2).sum(2)
    score = [sorted(np.delete(row, i))[: 12 - 3 - 2] for i, row in enumerate(square)]
    best = np.argsort([sum(nearest) for nearest in score], kind="stable")
    t = torch.as_tensor(u)
    h.close(page.krum(t, f=3), t[best[0]], 1e-12)
    h.close(page.krum(t, f=3, keep=5), t[best[:5].copy()].mean(0), 1e-12)
    assert best[:9].max() < 9
    assert page.rules["median"](t).abs().max() < 2 < page.rules["mean"](t).abs().max()


def test_without_q_the_fair_method_is_fedavg_and_with_it_weights_by_losses(page):
    run = {"lr": 0.1, "local_steps": 3}
    ((_, fair, _),) = rounds(page.Fair(0), page.fed, **run)
    ((_, mean, _),) = rounds(fc.FedAvg(), page.fed, **run)
    h.close(fair["x"], mean["x"], 1e-13)
    ((before, fair, seen),) = rounds(page.Fair(2), page.fed, **run)
    loss, g = losses(page.fed, before["x"])[seen.round.ids], (before["x"] - seen.y) / 0.1
    steps = [2 * f * (v @ v) + f**2 / 0.1 for f, v in zip(loss, g, strict=True)]
    h.close(fair["x"], before["x"] - sum(f**2 * v for f, v in zip(loss, g, strict=True)) / sum(steps), 1e-12)


def test_a_late_client_sends_what_it_computed_at_its_last_visit(page):
    (_, one, first), (_, two, second) = rounds(page.Late(0.5), page.fed, 2, lr=0.1)
    u = [
        torch.zeros_like(seen.y).index_copy(0, torch.as_tensor(seen.round.ids), seen.y - seen.round.x)
        for seen in (first, second)
    ]
    h.close(one["x"], page.fed.x0 + u[0][25:].sum(0) / 50, 1e-12)
    h.close(two["x"], one["x"] + (0.5 * u[0][:25].sum(0) + u[1][25:].sum(0)) / 50, 1e-12)


def test_local_adam_takes_the_steps_of_torch(page):
    x, y = h.images(20)
    fed = fc.federation((x, y), 1, fc.IID(), "logistic", dtype=torch.float64)
    ((_, after, _),) = rounds(page.LocalAdam(), fed, lr=0.02, local_steps=5, batch_size=None)
    net = fed.module(fed.x0).train()
    for p in net.parameters():
        p.requires_grad_()
    adam = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(5):
        adam.zero_grad()
        F.cross_entropy(net(fed.x), fed.y).backward()
        adam.step()
    h.close(after["x"], torch.cat([p.detach().flatten() for p in net.parameters()]), 1e-9)


def test_lora_starts_as_the_network_and_moves_the_thin_matrices_alone(page):
    net = fc.models.mlp((1, 8, 8), 10, hidden=(64, 64))
    x = torch.randn(5, 1, 8, 8)
    assert torch.equal(page.adapted(net)(x), net(x))
    fed, params = page.new, fc.simulate(fc.FedAvg(), page.new, rounds=1, lr=0.3).params
    assert int(fed.trained.sum()) == page.lora["LoRA"]["sent"] == 4 * (64 + 64 + 64 + 64 + 64 + 10)
    moved = params != fed.x0
    assert not (moved & ~fed.trained).any()
    assert moved.any()
    assert fc.FedAvg().cost(fed.layout).up == pytest.approx(int(fed.trained.sum()) / fed.d)


def test_reweighted_answers_have_the_mean_of_all_clients_as_their_expectation():
    source = "".join(next(cell["source"] for cell in CELLS if cell["id"] == "rare-solution"))
    names = {"fc": fc, "torch": torch}
    exec(source.split("~~~python\n")[1].split("~~~")[0], names)
    chance, y, expected = torch.tensor([0.1, 0.5, 0.9]), torch.randn(3, 4), 0
    for answers in itertools.product((False, True), repeat=3):
        mask = torch.tensor(answers)
        r = SimpleNamespace(x=torch.ones(4), server_lr=1.0, n=3, clients=mask.nonzero()[:, 0])
        x = names["Reweighted"](chance).aggregate(r, y[mask])["x"]
        expected = expected + torch.where(mask, chance, 1 - chance).prod() * x
    h.close(expected, y.mean(0), 1e-6)


def test_the_other_simulators_on_the_page_of_known_numbers_agree_with_the_package():
    said = {"profile": "quick", "seed": 0}
    for cell in KNOWN:
        if any(words in "".join(cell["source"]) for words in ("import benchmarked", "peers = ")):
            exec(compile("".join(cell["source"]), cell["id"], "exec"), said)
    shown = [c for c in said["peers"]["cases"] if c["runner"] in said["names"] and c["model"] != "lenet"]
    assert {said["names"][c["runner"]] for c in shown} == set(said["names"].values())
    assert all(c["agrees"] for c in shown)


def test_the_words_of_the_left_column_are_arguments_of_the_package():
    (text,) = ("".join(cell["source"]) for cell in KNOWN if cell["id"] == "coming")
    left = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    words = {word for cell in left for word in re.findall(r"(\w+)=", cell)}
    assert {"cohort", "weighting", "own_test"} < words
    assert words <= {name for f in (fc.simulate, fc.federation) for name in inspect.signature(f).parameters}
