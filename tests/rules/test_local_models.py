"""The clients' own models of gossip: overfitting is what is left where labels are alike, and settings are Table 1's."""

from __future__ import annotations

import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook import Cell, show
from fedbook.documents import definitions
from fedbook.documents import s002_dfedgam as document
from fedbook.results import batch, cells
from fedbook.results.cells import identity
from fedbook.studies import local_models
from fedbook.verdicts import overview

APART = ["Matrix", {"W": np.eye(4).tolist(), "connected": False}]
SPEC = {
    "study": "overfitting", "better": "lower", "method": ["DFedAvg", {"mixing": APART}],
    "federation": {"source": "digits", "clients": 4, "partition": ["Dirichlet", {"q": 0.3}], "model": "mlp"},
    "run": {"rounds": 2, "lr": 0.3, "local_steps": 5, "batch_size": 10},
}  # fmt: skip


def run(**changed):
    return local_models.overfitting({**SPEC, **changed}, 0, None, None)


def test_expected_accuracy_is_that_of_each_own_samples_label_on_the_test_set():
    fed = h.network((30, 12), classes=3)
    model = fed.x0 + 0.5 * torch.randn(fed.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    right = fed.correct(model).double()
    for i in range(2):
        labels = h.whole(fed, i)[1].tolist()
        by_hand = np.mean([float(right[fed.test[1] == label].mean()) for label in labels])
        assert local_models.expected(fed, model, i) == pytest.approx(by_hand, abs=1e-12)


def test_clients_that_never_talk_have_after_mixing_the_models_from_before():
    found = run()
    assert found["consensus"] == pytest.approx(found["consensus_local"], abs=1e-3) != 0
    fed = fc.federation("digits", 4, fc.Dirichlet(0.3), "mlp", seed=0)
    method = fc.DFedAvg(fc.Matrix(np.eye(4), connected=False))
    X = fc.simulate(method, fed, seed=0, **SPEC["run"]).state["X"]
    gaps = [local_models.on_own(fed, X[i], i) - local_models.expected(fed, X[i], i) for i in range(4)]
    assert found["final"] == pytest.approx(100 * np.mean(gaps), abs=1e-9)
    assert found["own"] == pytest.approx(100 * float(fed.evaluate_clients(X)["accuracy"].mean()), abs=1e-3)
    mean = [float(local_models.on_own(fed, X.mean(0), i)) for i in range(4)]
    assert found["train"] == pytest.approx(100 * np.average(mean, weights=fed.sizes), abs=1e-3)


def test_consensus_is_measured_after_mixing_and_before():
    found = run(method=["DFedAvg", {"mixing": ["Complete", {}]}])
    assert found["consensus"] < 1e-3 < found["consensus_local"]


def test_a_method_with_a_server_is_refused_and_a_run_that_diverges_is_a_result():
    with pytest.raises(ValueError, match=r"FedAvg has a server.*use a gossip method"):
        run(method=["FedAvg", {}])
    lost = run(run={**SPEC["run"], "lr": 1e30, "rounds": 3})
    assert lost["final"] is None
    assert lost["diverged"] >= 0


def test_a_run_that_was_stopped_after_its_last_round_gives_the_same(tmp_path):
    first = local_models.overfitting(SPEC, 0, tmp_path, None)
    assert local_models.overfitting(SPEC, 0, tmp_path, None) == first == run()


@pytest.mark.parametrize("profile", document.CHOSEN)
def test_the_settings_are_those_that_table_1s_search_chose(profile):
    place = batch.ResultFolder(batch.results(), profile, "dfedgam-table1")
    stored = overview.stored_cells(definitions.get("dfedgam-table1"), place)
    for row, (lr, own) in document.CHOSEN[profile].items():
        chosen = stored[row, f"{document.DATA[profile]}, Dir-0.3"][1].tuned["setting"]
        assert {"run": {"lr": lr}, **({"method": own} if own else {})} == chosen


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Two rows, of which one of the second's runs diverged where asked."""

    def write(lost=False):
        listed = [Cell(row, {"study": "overfitting", "better": "lower", "row": row}, row, "c") for row in "xy"]
        table = definitions.Table("t", "", "S002", lambda profile: listed, {"quick": "tiny"}, unit="points")
        monkeypatch.setattr(show, "get", lambda name: table)
        place = batch.ResultFolder(tmp_path, "quick", "t")
        place.folder.mkdir(parents=True, exist_ok=True)
        for cell in listed:
            finals = [1.1, 1.2, None if lost and cell.row == "y" else 1.0]
            runs = {s: {"id": identity(cell.spec, s), "final": v, "own": 90.0 + s} for s, v in enumerate(finals)}
            cells._store(place.file(cell), cells.Result(cell.spec, runs))
        return tmp_path

    return write


def test_numbers_beside_the_final_ones_are_means_over_the_runs_that_ended(stored):
    own = {"own": "own models (%)"}
    assert "91" in show.beside("t", "c", own, "caption", stored()).text
    assert "90.5" in show.beside("t", "c", own, "caption", stored(lost=True)).text
    assert "not run yet" in show.beside("t", "c", own, "caption", stored() / "elsewhere").text


def test_accuracy_by_client_counts_each_image_for_its_owner_and_averages_over_seeds(stored, monkeypatch):
    owner = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    hits = np.array([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0, 1, 0]])  # clients: 100, 50, 0, and 50 each
    monkeypatch.setattr(cells.Result, "correct", lambda self, seeds: hits[: len(seeds)].astype(float))
    lines = show.by_client("t", "c", owner, "caption", root=stored()).text.splitlines()
    spread = np.std([100, 50, 0]) / 2
    assert lines[2].split() == ["x", "50.0", f"{spread:.1f}", "25.0"]
    assert "not run yet" in show.by_client("t", "c", owner, "caption", root=stored() / "elsewhere").text
    assert len(show.by_client("t", "c", owner, "caption", ["y"], stored()).text.splitlines()) == 3


def test_no_method_of_the_comparison_closes_the_gap_between_looks_and_sharing_serves_the_worst_look():
    def table(name, column, source):
        lines = show.by_client(name, column, source.test_owner, "").text.splitlines()[2:]
        parts = [line.rsplit(maxsplit=3) for line in lines]
        return {row: [float(value) for value in values] for row, *values in parts}

    found = table("fedup-table4", "five domains of digits", fc.data.digit_domains())
    assert len(found) == 11
    assert min(spread for _, spread, _ in found.values()) > np.ptp([mean for mean, *_ in found.values()])
    own = table("shift-personal", "own domain", fc.data.digit_domains(200, 150, size=12))
    assert min(own, key=lambda row: own[row][2]) == "clients alone"
    assert max(own, key=lambda row: own[row][2]) == "FedAvg"
