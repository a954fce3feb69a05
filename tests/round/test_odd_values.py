"""Odd values that Python and torch let through: refused in one line, whatever they say of themselves."""

from __future__ import annotations

import os
from urllib.parse import unquote

import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook import reproduce

QUADRATIC = fc.quadratic(np.eye(3)[None].repeat(4, 0), np.ones((4, 3)))
LONG = "x" * 5000
x = QUADRATIC.x0


def itself():
    """A list that holds itself."""
    held: list = []
    held.append(held)
    return held


def run(**given):
    return fc.simulate(given.pop("method", fc.FedAvg()), QUADRATIC, **{"rounds": 1, **given})


@pytest.mark.parametrize("call", [
    lambda held: fc.quadratic(held, [[1.0]]), lambda held: fc.quadratic([[[1.0]]], held),
    lambda held: fc.DFedSAM(held), lambda held: fc.topology.spectrum(held), lambda held: fc.Matrix(held),
    lambda held: fc.federation((held, [0, 1])), lambda held: fc.federation((np.eye(4), held)),
    lambda held: fc.federation((np.eye(9), np.arange(9) % 2), model="logistic", partition=[held]),
])  # fmt: skip
@pytest.mark.parametrize("held", [itself, lambda: (itself(),), lambda: [itself(), 1]])
def test_a_list_that_holds_itself_is_refused_and_not_followed(call, held):
    with pytest.raises((ValueError, TypeError), match=r"holds itself|use "):
        call(held())


@pytest.mark.parametrize("call", [
    lambda: QUADRATIC.evaluate(np.float64), lambda: fc.quadratic([[[1.0]]], [[1.0]], device=LONG),
    lambda: fc.cite(LONG), lambda: fc.playground(2, name=LONG + "!"), lambda: run().curve(LONG),
    lambda: fc.federation(LONG), lambda: fc.playground(2, np.array(1.0)), lambda: fc.playground(2, torch.tensor(1)),
    lambda: run(local_steps=torch.ones(4, device="meta")), lambda: run(cohort=torch.eye(2).to_sparse()),
    lambda: run(cohort=torch.ones(2, device="meta")), lambda: run(local_epochs=torch.ones(4).to_sparse()),
    lambda: fc.sweep(QUADRATIC, {"lr": [0.1]}, method=fc.FedAvg(), seeds=torch.ones(2, device="meta"), rounds=1),
    lambda: fc.probes.mime_ablation(fc.FedAvg(), QUADRATIC, x, steps=1, lr=0.1, cohort=np.array(1)),
    lambda: fc.probes.mime_ablation(fc.FedAvg(), QUADRATIC, x, steps=1, lr=0.1, targets=np.array(1)),
    lambda: fc.probes.mime_ablation(fc.FedAvg(), QUADRATIC, x, steps=1, lr=0.1, state={"c": 0.5}),
])  # fmt: skip
def test_an_odd_value_is_one_line_with_a_remedy(call):
    with pytest.raises((ValueError, TypeError, KeyError), match=r"\b(use|known names|known are|give)\b") as e:
        call()
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 3000


@pytest.mark.parametrize("wrong", [
    torch.ones(2), torch.ones(0), torch.ones(3, dtype=torch.complex64), torch.ones(3, device="meta"), torch.ones(4),
])  # fmt: skip
@pytest.mark.parametrize("call", [
    lambda v: fc.probes.loss_along(QUADRATIC, x, v, 3), lambda v: fc.probes.loss_along(QUADRATIC, v, x, 3),
    lambda v: fc.probes.loss_slice(QUADRATIC, v, x, x, points=2), lambda v: fc.probes.loss_along(torch.sum, v, x, 3),
    lambda v: fc.probes.loss_slice(torch.sum, x, x, v, points=2),
    lambda v: fc.probes.first_order_flatness(QUADRATIC, v, 0.1),
    lambda v: fc.probes.zeroth_order_flatness(QUADRATIC, v, 0.1),
])  # fmt: skip
def test_vectors_of_another_length_or_without_numbers_are_refused_where_a_loss_is_looked_at(call, wrong):
    with pytest.raises((ValueError, TypeError), match="use "):
        call(wrong)


def test_vectors_of_two_types_are_looked_at_in_that_of_the_first():
    s, F = fc.probes.loss_along(QUADRATIC, x, torch.ones(3), 3)
    assert np.array_equal(F, fc.probes.loss_along(QUADRATIC, x, torch.ones(3, dtype=x.dtype), 3)[1])
    assert s.tolist() == [0, 0.5, 1]


def test_clients_with_a_mask_are_refused():
    made = fc.federation((np.eye(8), np.arange(8) % 2), clients=3, model="logistic")
    with pytest.raises(ValueError, match="masked"):
        made.evaluate_clients(made.x0.expand(2, -1), np.ma.masked_equal([0, 1], 1))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_letters_that_no_page_can_hold_stand_in_a_picture_as_unknown():
    pytest.importorskip("matplotlib")
    figure = run(rounds=2).plot()
    figure.axes[0].set_title("red \x1b[31m\x00")
    assert "red \ufffd[31m\ufffd" in unquote(str(fc.show(figure)._repr_mimebundle_()))


@pytest.mark.parametrize("file", ["/dev/zero", "pipe"])
def test_definitions_that_are_no_file_are_refused_and_not_read_for_ever(file, tmp_path, capsys):
    if file == "pipe":
        file = str(tmp_path / "pipe.py")
        os.mkfifo(file)
    assert reproduce.main(["list", "--definitions", file]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["auto", "sequential"])
def test_a_model_of_which_nothing_is_trained_is_refused(path):
    frozen = torch.nn.Sequential(torch.nn.Linear(9, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match=r"no parameter of the model is trained.*requires_grad"):
        fc.federation((np.eye(9), np.arange(9) % 2), clients=2, model=frozen, path=path)
