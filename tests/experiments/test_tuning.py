"""Settings are chosen on validation data, by a search that is the same for every method and grows at its edges."""

import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook import reproduce, studies
from fedbook.results import cells
from fedbook.studies import tuning
from fedcore.data import arrays

SPEC = {
    "study": "simulate",
    "method": ["FedProx", {}],
    "federation": {"source": "digits", "clients": 5, "model": "logistic", "validation": True},
    "run": {"rounds": 2, "lr": 0.1, "eval_every": 1},
}


def choose(score, spec=SPEC, **tune):
    """What a search chooses, and what it ran, in order; score: (learning rate, mu, rounds, seed) -> that of a run."""
    ran = []

    def run(spec, seed, name):
        ran.append((spec["run"]["lr"], spec["method"][1].get("mu", 1), spec["run"]["rounds"], seed))
        return {"final": score(*ran[-1])}

    return tuning.choose({**spec, "tune": tune}, run), ran


def near(best, mu=1.0):
    """A score that falls with the distance, in factors, to the best setting."""
    return lambda lr, m, rounds, seed: -abs(np.log(lr / best)) - abs(np.log(m / mu))


def in_full(found):
    return [t["setting"]["run"]["lr"] for t in found["tried"] if t["rounds"] is None]


def test_every_combination_is_run_with_every_tuning_seed():
    rates, momenta = [0.05, 0.1, 0.2], [0.1, 1.0, 10.0]
    found, ran = choose(near(0.1), axes={"run.lr": rates, "method.mu": momenta}, seeds=[7, 8])
    assert sorted(ran) == [(lr, mu, 2, seed) for lr in rates for mu in momenta for seed in (7, 8)]
    assert found["setting"] == {"run": {"lr": 0.1}, "method": {"mu": 1.0}}
    assert found["edges"] == []
    assert len(found["tried"]) == 9


@pytest.mark.parametrize(
    ("score", "tune", "tried", "best", "edges"),
    [
        (near(0.4), {}, [0.05, 0.1, 0.2, 0.4, 0.8], 0.4, []),
        (near(100.0), {"growth": 2}, [0.05, 0.1, 0.2, 0.4, 0.8], 0.8, ["run.lr"]),
        (near(100.0), {"limits": {"run.lr": [0, 0.4]}}, [0.05, 0.1, 0.2], 0.2, ["run.lr"]),
        (near(0.4), {"axes": {"run.lr": [0.1]}}, [0.1], 0.1, []),
    ],
    ids=["until it is no end", "a number of times, and the end is named", "within limits", "no single value"],
)
def test_an_axis_grows_where_the_best_setting_stands_at_its_end(score, tune, tried, best, edges):
    found, _ = choose(score, **{"axes": {"run.lr": [0.05, 0.1, 0.2]}, **tune})
    assert in_full(found) == tried
    assert (found["setting"], found["edges"]) == ({"run": {"lr": best}}, edges)


def test_short_runs_choose_who_is_run_in_full():
    rates = [0.025, 0.05, 0.1, 0.2, 0.4]
    found, ran = choose(near(0.1), axes={"run.lr": rates}, rounds=1, finalists=2, seeds=[5, 6, 7])
    assert [(lr, seed) for lr, _, rounds, seed in ran if rounds == 1] == [(lr, s) for lr in rates for s in (5, 6)]
    assert [(lr, s) for lr, _, rounds, s in ran if rounds == 2] == [(lr, s) for lr in (0.1, 0.05) for s in (5, 6, 7)]
    assert found["setting"] == {"run": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("best", "joined"), [(0.1, [0.2, 0.1, 0.05]), (0.8, [])], ids=["until one is past the best", "none below the best"]
)
def test_a_slow_rate_that_short_runs_kept_out_joins_while_the_slowest_finalist_is_best(best, joined):
    """The finalists are the two best settings and the best at each of the two best rates."""

    def score(lr, mu, rounds, seed):  # short runs prefer fast rates; full ones `best`
        return lr + 0.01 * mu if rounds == 1 else -abs(np.log(lr / best)) - abs(mu - 0.9)

    axes = {"run.lr": [0.05, 0.1, 0.2, 0.4, 0.8], "method.mu": [0.6, 0.9]}
    found, ran = choose(score, axes=axes, rounds=1, finalists=2, growth=0)
    full = [(lr, mu) for lr, mu, rounds, _ in ran if rounds == 2]
    assert full == [(0.8, 0.9), (0.8, 0.6), (0.4, 0.9), *((lr, 0.9) for lr in joined)]
    assert found["setting"]["run"]["lr"] == best


@pytest.mark.parametrize(("diverges", "best"), [([0.4, 0.1], 0.2), ([0.4, 0.2], 0.1)], ids=["two", "all finalists"])
def test_a_finalist_that_diverges_lets_the_next_lower_rate_join(diverges, best):
    def score(lr, mu, rounds, seed):  # short runs end at every rate
        return None if rounds > 1 and lr in diverges else lr

    found, _ = choose(score, axes={"run.lr": [0.05, 0.1, 0.2, 0.4]}, rounds=1, finalists=2, growth=0)
    assert in_full(found) == [0.4, 0.2, 0.1, 0.05]
    assert found["setting"]["run"]["lr"] == best


def test_finalists_may_be_run_for_a_part_of_the_rounds():
    def score(lr, mu, rounds, seed):  # the longer runs, and they alone, decide
        return lr if rounds == 1 else -lr

    tune = {"axes": {"run.lr": [0.05, 0.1, 0.2]}, "rounds": [1, 2], "finalists": 2, "growth": 0, "seeds": [5, 6, 7]}
    found, ran = choose(score, {**SPEC, "run": {**SPEC["run"], "rounds": 9}}, **tune)
    longer = [(lr, rounds, seed) for lr, _, rounds, seed in ran if rounds > 1]
    assert longer == [(lr, 2, seed) for lr in (0.2, 0.1, 0.05) for seed in (5, 6, 7)]
    assert found["setting"] == {"run": {"lr": 0.05}}


def test_an_axis_grows_too_where_only_the_full_runs_lead_to_its_end():
    def score(lr, mu, rounds, seed):  # short runs prefer 0.1, full ones 0.02
        return -abs(np.log(lr / (0.1 if rounds == 1 else 0.02)))

    found, _ = choose(score, axes={"run.lr": [0.05, 0.1, 0.3]}, rounds=1, finalists=2, growth=2)
    assert found["setting"] == {"run": {"lr": 0.025}}
    assert in_full(found) == [0.1, 0.05, 0.025, 0.013]
    assert found["edges"] == []


def test_a_setting_that_diverges_with_any_seed_comes_last():
    def score(lr, mu, rounds, seed):
        return None if lr > 0.1 and seed == 1001 else lr

    found, _ = choose(score, axes={"run.lr": [0.05, 0.1, 0.2]}, seeds=[1000, 1001])
    assert found["setting"] == {"run": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("said", "best"),
    [({}, 0.6), ({"better": "lower"}, 0.2), ({"metric": "loss"}, 0.2), ({"metric": "loss", "better": "higher"}, 0.6)],
)
def test_the_first_of_the_best_wins_and_of_losses_the_smallest_are_best_unless_told_otherwise(said, best):
    found, _ = choose(
        lambda lr, *_: min(1, round(lr)), {**SPEC, **said}, axes={"run.lr": [0.2, 0.6, 1.4, 1.6]}, growth=0
    )
    assert found["setting"] == {"run": {"lr": best}}


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


def test_without_validation_data_or_settings_there_is_nothing_to_choose_by():
    with pytest.raises(ValueError, match="validation=True"):
        fc.federation("digits", clients=4).on_validation()
    with pytest.raises(ValueError, match="no settings"):
        choose(near(0.1), grid=[])


# --- what a cell keeps --------------------------------------------------------------------------------------------


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
        ({"run": {"lr": 0.1}}, "run lacks 'rounds'"),
        ({"better": "lowest"}, "better='lowest' 'higher', 'lower'"),
        ({"metric": "auc"}, "metric='auc' better='higher' or 'lower'"),
        ({"run": {"rounds": 2, "local_step": 3}}, "run 'local_step' did you mean 'local_steps'?"),
        ({"run": {"rounds": "40", "lr": 0.1}}, "run: rounds='40' integer; rounds>=0"),
        ({"run": {"rounds": 2, "lr": float("nan")}}, "specification JSON finite number"),
        ({"run": 3}, "run is 3 mapping rounds"),
        ({"federation": {"clients": 5}}, "federation lacks 'source'"),
        ({"study": "simulat"}, "simulat use one of"),
        ({"method": "FedAvg"}, "method='FedAvg' arguments"),
        ({"tune": {"axes": {}, "seed": [1]}}, "tune 'seed' did you mean 'seeds'?"),
        ({"tune": {"axes": {"run.lr": []}}}, "axes one value run.lr"),
        ({"tune": {"axes": {"run.lr": [1]}, "seeds": []}}, "seeds=[] one seed at least [1000]"),
        ({"tune": {"axes": {"run.lr": [1]}, "rounds": 0}}, "tune: rounds=0; rounds>=1,"),
        ({"method": ["FedUp", {"alfa": 0.1}]}, "FedUp() takes no 'alfa' did you mean 'alpha'?"),
        ({"federation": {"source": "digits", "partition": ["Dirichlet", {}]}}, "Dirichlet missing 'q'"),
        ({"federation": {"source": "digits", "partition": ["Dirichlet", 0.3]}}, "partition=['Dirichlet', 0.3]; [name"),
        ({"method": ["DFedAvg", {"mixing": ["Rin", {}]}]}, "topology 'Rin' did you mean 'Ring'?"),
    ],
)
def test_a_wrong_specification_is_explained_before_its_search_runs(change, words, monkeypatch):
    if not words.startswith(("FedUp", "Dirichlet", "topology")):  # those the run's own checks find
        monkeypatch.setattr(cells, "choose", lambda *_: pytest.fail("the search has begun"))
    with pytest.raises((ValueError, TypeError)) as e:
        cells.run_cell(SPECIFIED | change)
    missing = [word for word in words.split() if word not in str(e.value)]
    assert not missing, f"{missing} not in: {e.value}"


def test_domains_keep_their_readings_on_validation_data():
    fed = fc.federation("digit-domains", partition=fc.ByOwner(), model="mlp", normalise="client", validation=True)
    on = fed.on_validation()
    assert len(on.source.test_owner) == len(on.test[1])
    assert {"own_accuracy", "accuracy_target"} <= set(on.evaluate_clients(fed.x0.expand(fed.n, -1)))
