"""Settings are chosen on validation data, by a search that is the same for every method and grows at its edges."""

import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook import reproduce, studies
from fedbook.results import cells
from fedbook.studies import tuning
from fedbook.verdicts import judge
from fedcore.data import arrays

SPEC = {
    "study": "simulate",
    "method": ["FedProx", {}],
    "federation": {"source": "digits", "clients": 5, "model": "logistic", "validation": True},
    "run": {"rounds": 2, "lr": 0.1, "eval_every": 1},
}


def search(best, axes, **tune):
    """A search whose score falls with the distance, in factors, to `best`; what it ran, and what it chose."""
    ran = []

    def run(spec, seed, name):
        ran.append((spec["run"]["lr"], spec["method"][1].get("mu"), spec["run"]["rounds"], seed))
        mu = spec["method"][1].get("mu", 1)
        off = abs(np.log(spec["run"]["lr"] / best["lr"])) + abs(np.log(mu / best.get("mu", mu)))
        return {"final": float(-off)}

    return ran, tuning.choose({**SPEC, "tune": {"axes": axes, **tune}}, run)


def test_every_combination_is_run_with_every_tuning_seed():
    ran, found = search(
        {"lr": 0.1, "mu": 1.0}, {"run.lr": [0.05, 0.1, 0.2], "method.mu": [0.1, 1.0, 10.0]}, seeds=[7, 8]
    )
    assert sorted(ran) == sorted((lr, mu, 2, s) for lr in (0.05, 0.1, 0.2) for mu in (0.1, 1.0, 10.0) for s in (7, 8))
    assert found["setting"] == {"run": {"lr": 0.1}, "method": {"mu": 1.0}}
    assert found["edges"] == []
    assert len(found["tried"]) == 9


def test_an_axis_grows_where_the_best_setting_stands_at_its_end():
    _, found = search({"lr": 0.4}, {"run.lr": [0.05, 0.1, 0.2]})
    assert found["setting"] == {"run": {"lr": 0.4}}
    assert [t["setting"]["run"]["lr"] for t in found["tried"]] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert found["edges"] == []


def test_growth_ends_at_its_limit_and_the_edge_is_named():
    _, found = search({"lr": 100.0}, {"run.lr": [0.05, 0.1, 0.2]}, growth=2)
    assert found["setting"]["run"]["lr"] == 0.8
    assert found["edges"] == ["run.lr"]
    _, found = search({"lr": 0.1, "mu": 5.0}, {"run.lr": [0.1], "method.mu": [0.1, 0.9]}, limits={"method.mu": [0, 1]})
    assert found["setting"]["method"]["mu"] == 0.9
    assert found["edges"] == ["method.mu"]  # a single learning rate is no edge


def test_short_runs_choose_who_is_run_in_full():
    tune = {"axes": {"run.lr": [0.025, 0.05, 0.1, 0.2, 0.4]}, "rounds": 1, "finalists": 2, "seeds": [5, 6, 7]}
    ran, found = search({"lr": 0.1}, **tune)
    assert [(lr, s) for lr, _, rounds, s in ran if rounds == 1] == [
        (v, s) for v in tune["axes"]["run.lr"] for s in (5, 6)
    ]
    assert [(lr, s) for lr, _, rounds, s in ran if rounds == 2] == [(v, s) for v in (0.1, 0.05) for s in (5, 6, 7)]
    assert found["setting"] == {"run": {"lr": 0.1}}


def test_a_slow_rate_that_short_runs_kept_out_joins_while_the_slowest_finalist_is_best():
    def run(spec, seed, name):  # short runs prefer fast rates; full ones `best`
        lr, mu = spec["run"]["lr"], spec["method"][1]["mu"]
        if spec["run"]["rounds"] == 1:
            return {"final": lr + 0.01 * mu}
        return {"final": -abs(np.log(lr / best)) - abs(mu - 0.9)}

    tune = {"axes": {"run.lr": [0.05, 0.1, 0.2, 0.4, 0.8], "method.mu": [0.6, 0.9]}, "rounds": 1, "finalists": 2}
    for best, full in (
        (0.1, [(0.8, 0.9), (0.8, 0.6), (0.4, 0.9), (0.2, 0.9), (0.1, 0.9), (0.05, 0.9)]),  # until one is past the best
        (0.4, [(0.8, 0.9), (0.8, 0.6), (0.4, 0.9), (0.2, 0.9)]),
        (0.8, [(0.8, 0.9), (0.8, 0.6), (0.4, 0.9)]),  # the fastest finalist is the best: none joins
    ):
        found = tuning.choose({**SPEC, "tune": {**tune, "growth": 0}}, run)
        tried = [t["setting"] for t in found["tried"] if t["rounds"] is None]
        assert [(one["run"]["lr"], one["method"]["mu"]) for one in tried] == full
        assert found["setting"]["run"]["lr"] == best


@pytest.mark.parametrize(
    ("diverges", "full", "best"),
    [
        ([0.4], [0.4, 0.2, 0.1], 0.2),
        ([0.4, 0.1], [0.4, 0.2, 0.1, 0.05], 0.2),
        ([0.4, 0.2], [0.4, 0.2, 0.1, 0.05], 0.1),  # all finalists
    ],
)
def test_a_finalist_that_diverges_lets_the_next_lower_rate_join(diverges, full, best):
    def run(spec, seed, name):  # short runs end at every rate
        lr = spec["run"]["lr"]
        return {"final": None if spec["run"]["rounds"] > 1 and lr in diverges else lr}

    tune = {"axes": {"run.lr": [0.05, 0.1, 0.2, 0.4]}, "rounds": 1, "finalists": 2, "growth": 0}
    found = tuning.choose({**SPEC, "tune": tune}, run)
    assert [t["setting"]["run"]["lr"] for t in found["tried"] if t["rounds"] is None] == full
    assert found["setting"]["run"]["lr"] == best


def test_a_parameter_of_its_own_takes_no_learning_rate_from_the_last_stage():
    def run(spec, seed, name):  # short runs prefer the fast rate with any momentum, full ones 0.2
        lr, mu = spec["run"]["lr"], spec["method"][1]["mu"]
        return {
            "final": (lr if spec["run"]["rounds"] == 1 else -abs(lr - 0.2)) + 0.01 * mu
        }  # the momenta are nearly equal

    tune = {"axes": {"run.lr": [0.1, 0.2, 0.3], "method.mu": [0.3, 0.6, 0.9]}, "rounds": 1, "finalists": 2, "growth": 0}
    found = tuning.choose({**SPEC, "tune": tune}, run)
    full = [t["setting"] for t in found["tried"] if t["rounds"] is None]
    assert [(one["run"]["lr"], one["method"]["mu"]) for one in full] == [
        (0.3, 0.9), (0.3, 0.6), (0.2, 0.9), (0.1, 0.9)
    ]  # fmt: skip
    assert found["setting"]["run"]["lr"] == 0.2


def test_finalists_may_be_run_for_a_part_of_the_rounds():
    tune = {"axes": {"run.lr": [0.05, 0.1, 0.2]}, "rounds": [1, 2], "finalists": 2, "growth": 0, "seeds": [5, 6, 7]}
    ran = []

    def run(spec, seed, name):  # the longer runs, and they alone, decide
        ran.append((spec["run"]["lr"], spec["run"]["rounds"], seed))
        return {"final": spec["run"]["lr"] if spec["run"]["rounds"] == 1 else -spec["run"]["lr"]}

    found = tuning.choose({**SPEC, "run": {**SPEC["run"], "rounds": 9}, "tune": tune}, run)
    assert [one for one in ran if one[1] == 2] == [(lr, 2, s) for lr in (0.2, 0.1, 0.05) for s in (5, 6, 7)]
    assert max(rounds for _, rounds, _ in ran) == 2
    assert found["setting"] == {"run": {"lr": 0.05}}


def test_an_axis_grows_too_where_only_the_full_runs_lead_to_its_end():
    def run(spec, seed, name):  # short runs prefer 0.1, full ones 0.02
        best = 0.1 if spec["run"]["rounds"] == 1 else 0.02
        return {"final": -abs(np.log(spec["run"]["lr"] / best))}

    tune = {"axes": {"run.lr": [0.05, 0.1, 0.3]}, "rounds": 1, "finalists": 2, "growth": 2}
    found = tuning.choose({**SPEC, "tune": tune}, run)
    assert found["setting"] == {"run": {"lr": 0.025}}
    assert [t["setting"]["run"]["lr"] for t in found["tried"] if t["rounds"] is None] == [0.1, 0.05, 0.025, 0.013]
    assert found["edges"] == []


def test_a_setting_that_diverges_with_any_seed_comes_last():
    def run(spec, seed, name):
        return {"final": None if spec["run"]["lr"] > 0.1 and seed == 1001 else spec["run"]["lr"]}

    tune = {"axes": {"run.lr": [0.05, 0.1, 0.2]}, "seeds": [1000, 1001]}
    assert tuning.choose({**SPEC, "tune": tune}, run)["setting"] == {"run": {"lr": 0.1}}


def test_the_first_of_equal_scores_wins_and_lower_may_be_better():
    def run(spec, seed, name):
        return {"final": round(spec["run"]["lr"])}

    tune = {"axes": {"run.lr": [0.6, 1.0, 1.4, 2.0]}}
    assert tuning.choose({**SPEC, "tune": {**tune, "growth": 0}}, run)["setting"] == {"run": {"lr": 2.0}}
    lower = tuning.choose({**SPEC, "tune": {**tune, "growth": 0}, "better": "lower"}, run)
    assert lower["setting"] == {"run": {"lr": 0.6}}


def test_a_search_without_settings_is_refused():
    with pytest.raises(ValueError, match="no settings"):
        tuning.choose({**SPEC, "tune": {"grid": []}}, None)


def test_settings_are_chosen_on_validation_data_and_reported_on_test_data(monkeypatch):
    seen = []

    def study(spec, seed, folder, device):
        seen.append((seed, spec.get("on")))
        return {"final": 1.0, "mean": 1.0, "history": []}

    monkeypatch.setitem(studies.STUDIES, "simulate", study)
    reproduce.run_cell({**SPEC, "tune": {"axes": {"run.lr": [0.1, 0.2]}, "seeds": [1000], "growth": 0}}, [0])
    assert seen == [(1000, "validation"), (1000, "validation"), (0, None)]


# --- the split ----------------------------------------------------------------------------------------------------


def test_train_validation_and_test_are_disjoint_and_the_same_for_every_seed():
    a, b = (fc.federation("digits", clients=10, seed=seed, validation=True) for seed in (0, 1))
    whole = fc.federation("digits", clients=10)
    x, y, _ = a.source.validation
    np.testing.assert_array_equal(x, b.source.validation[0])
    assert len(a.y) + len(y) == len(whole.y)
    assert len(y) == len(whole.y) // 5
    parts = [{row.tobytes() for row in part} for part in (a.source.train_x, x, a.source.test_x)]
    assert not parts[0] & parts[1] - (parts[0] & parts[2])  # a few digits are drawn twice in the data set itself
    assert a.fingerprint() != whole.fingerprint()


def test_large_sets_give_ten_percent_but_at_most_5000_and_owners_their_share():
    y = np.repeat(np.arange(10), 2000)
    owner = np.arange(20_000) % 7
    source = arrays.Source("big", np.zeros((20_000, 1)), y, np.zeros((1, 1)), y[:1], 10, train_owner=owner)
    found = source.with_validation()
    counts = np.bincount(found.validation[2])
    assert len(found.validation[1]) == counts.sum() == pytest.approx(2000, abs=7)
    assert counts.max() - counts.min() <= 1
    assert np.bincount(found.validation[1]).min() > 120  # not the last label alone
    y = np.repeat(np.arange(10), 10_000)
    source = arrays.Source("huge", np.zeros((100_000, 1)), y, np.zeros((1, 1)), y[:1], 10)
    assert len(source.with_validation().validation[1]) == 5000


def test_a_federation_on_its_validation_data_is_the_same_but_for_what_it_is_evaluated_on():
    fed = fc.federation("digits", clients=4, model="logistic", validation=True)
    on = fed.on_validation()
    x = fc.simulate(fc.FedAvg(), fed, rounds=2, cohort=2, lr=0.1).params
    torch.testing.assert_close(x, fc.simulate(fc.FedAvg(), on, rounds=2, cohort=2, lr=0.1).params, rtol=0, atol=0)
    v = fed.source.validation
    assert torch.equal(on.test[1].cpu(), torch.as_tensor(v[1]))
    direct = fed.engine.scores(x, [(fed.inputs(torch.as_tensor(v[0])), torch.as_tensor(v[1]))], None)[1]
    assert float(on.evaluate(x)["accuracy"]) == float(direct.mean())
    assert on.fingerprint() != fed.fingerprint()


def test_domains_keep_their_readings_on_validation_data():
    fed = fc.federation("digit-domains", partition=fc.ByOwner(), model="mlp", normalise="client", validation=True)
    on = fed.on_validation()
    assert len(on.source.test_owner) == len(on.test[1])
    assert set(on.source.test_owner) == set(fed.source.train_owner)
    x = fed.x0
    own = on.evaluate_clients(x.expand(fed.n, -1))
    assert {"own_accuracy", "accuracy_target"} <= set(own)


def test_without_validation_data_there_is_nothing_to_evaluate_on():
    with pytest.raises(ValueError, match="validation=True"):
        fc.federation("digits", clients=4).on_validation()


# --- what a cell keeps --------------------------------------------------------------------------------------------


def test_a_cell_keeps_which_test_images_its_model_classifies_correctly(tmp_path):
    file = tmp_path / "cell.json"
    made = reproduce.run_cell(SPEC, [0, 1], file=file)
    held = reproduce.load(file, made.spec).correct([1, 0])
    assert held.shape == (2, 359)
    np.testing.assert_allclose(100 * held.mean(1), made.finals([1, 0]))
    fed = fc.federation("digits", clients=5, model="logistic", validation=True, seed=0)
    late = [fed.correct(fc.simulate(fc.FedProx(), fed, rounds=t, lr=0.1, seed=0).params) for t in (1, 2)]
    np.testing.assert_array_equal(held[1], sum(late).numpy() / 2)
    assert judge.compare(held, held).gap == 0


def test_a_diverged_run_counts_as_guessing_and_one_without_a_record_is_refused():
    run = {"final": None, "images": 20, "classes": 10}
    np.testing.assert_allclose(cells.Result({}, {0: run}).correct([0]), 0.1)
    with pytest.raises(ValueError, match="seed 3 has no record of single test images"):
        cells.Result({}, {0: run}).correct([3])


# --- specifications -----------------------------------------------------------------------------------------------


SPECIFIED = {
    "study": "simulate", "method": ["FedAvg", {}], "federation": {"source": "digits", "clients": 5},
    "run": {"rounds": 2, "lr": 0.1}, "tune": {"axes": {"run.lr": [0.1, 0.2]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tunes": {}}, "specification 'tunes' did you mean 'tune'?"),
        ({"better": "lowest"}, "better='lowest' 'higher', 'lower'"),
        ({"metric": "auc"}, "metric='auc' better='higher' or 'lower'"),
        ({"run": {"lr": 0.1}}, "run lacks 'rounds'"),
        ({"run": {"rounds": 2, "local_step": 3}}, "run 'local_step' did you mean 'local_steps'?"),
        ({"run": {"rounds": "40", "lr": 0.1}}, "run: rounds='40' integer; rounds>=0"),
        ({"run": {"rounds": 2, "lr": 0.1, "eval_every": 0}}, "run: eval_every=0 range"),
        ({"run": {"rounds": 2, "lr": float("nan")}}, "specification JSON finite number"),
        ({"run": {"rounds": 2, "lr": -1}, "tune": {"grid": [{}]}}, "lr=-1"),
        ({"run": 3}, "run is 3 mapping rounds"),
        ({"federation": {"clients": 5}}, "federation lacks 'source'"),
        ({"federation": {"source": "digits", "client": 5}}, "'client' did you mean 'clients'?"),
        ({"study": "simulat"}, "simulat use one of"),
        ({"method": "FedAvg"}, "method='FedAvg' arguments"),
        ({"method": ["FedAwg", {}]}, "FedAwg use one of"),
        ({"method": ["FedAvg", {"a": [1, {2}]}]}, "specification JSON set"),
        ({"tune": {"axes": {}, "seed": [1]}}, "tune 'seed' did you mean 'seeds'?"),
        ({"tune": {"axes": {"run.lr": []}}}, "axes one value run.lr"),
        ({"tune": {"axes": {"run.lr": [1]}, "seeds": []}}, "seeds=[] one seed at least [1000]"),
        ({"tune": {"axes": {"run.lr": [1]}, "rounds": 0}}, "tune: rounds=0; rounds>=1,"),
        ({"tune": {"axes": {"run.lr": [1]}, "rounds": [4, 0]}}, "tune: rounds=[4, 0]; rounds>=1"),
        ({"tune": {"axes": {"run.lr": [1]}, "finalists": 0}}, "tune: finalists=0 finalists>=1"),
        ({"method": ["FedUp", {"alfa": 0.1}]}, "FedUp() takes no 'alfa' did you mean 'alpha'?"),
        ({"federation": {"source": "digits", "partition": ["Dirichlet", {}]}}, "Dirichlet missing 'q'"),
        ({"federation": {"source": "digits", "partition": ["Dirichlet", 0.3]}}, "partition=['Dirichlet', 0.3]; [name"),
        ({"method": ["DFedAvg", {"mixing": ["Rin", {}]}]}, "topology 'Rin' did you mean 'Ring'?"),
    ],
)
def test_a_wrong_specification_is_explained_before_its_search_runs(change, words, monkeypatch):
    if not words.startswith(("lr=", "FedAwg", "FedUp", "Dirichlet", "topology")):  # those the run's own checks find
        monkeypatch.setattr(cells, "choose", lambda *_: pytest.fail("the search has begun"))
    with pytest.raises((ValueError, TypeError)) as e:
        cells.run_cell(SPECIFIED | change)
    missing = [word for word in words.split() if word not in str(e.value)]
    assert not missing, f"{missing} not in: {e.value}"


@pytest.mark.parametrize(("said", "lr"), [({}, 0.1), ({"better": "lower"}, 0.1), ({"better": "higher"}, 0.2)])
def test_a_search_by_the_loss_takes_the_smallest_unless_told_otherwise(said, lr):
    spec = SPECIFIED | {"metric": "loss", "tune": {"grid": [{"run": {"lr": v}} for v in (0.2, 0.1)]}} | said
    chosen = tuning.choose(spec, lambda spec, seed, name: {"final": spec["run"]["lr"]})
    assert chosen["setting"] == {"run": {"lr": lr}}
