"""What a run refuses, what its history tells of the clients, and what its errors say of the round."""

import numpy as np
import pytest
import torch

import fedcore as fc

BOWLS = fc.quadratic(np.eye(2)[None].repeat(3, 0), np.arange(6.0).reshape(3, 2))


def points(partition, **more):
    data = torch.arange(300.0).reshape(60, 5) / 300, torch.arange(60) % 3
    return fc.federation(data, partition=partition, model="logistic", **more)


FOUR = points(fc.IID(), clients=4)


def test_checkpoints_are_not_asked_for_without_a_folder():
    with pytest.raises(ValueError, match=r"checkpoint_every=2, .*give checkpoint_dir= too"):
        fc.simulate(fc.FedAvg(), BOWLS, rounds=4, checkpoint_every=2)
    for grid, fixed in (({"checkpoint_every": [2]}, {}), ({"lr": [0.1]}, {"checkpoint_every": 2})):
        with pytest.raises(ValueError, match=r"checkpoint_every=.*2.*give folder= too"):
            fc.sweep(BOWLS, grid, method=fc.FedAvg(), rounds=4, **fixed)


@pytest.mark.parametrize(("method", "settings", "rate"), [
    (fc.FedAvg(), {"lr": 1.0, "lr_decay": 1.05}, lambda t: 1.05**t),
    (fc.FedAvg(), {"lr": lambda t: 1e3 ** (t == 3), "lr_decay": 0.9}, lambda t: 1e3 * 0.9**3),
    (fc.STEM(kappa=1e3), {"lr": 0.001}, fc.STEM(kappa=1e3).rate),
])  # fmt: skip
def test_a_diverged_run_names_the_learning_rate_of_the_round(method, settings, rate):
    with pytest.raises(fc.Diverged) as e:
        fc.simulate(method, BOWLS, rounds=200, local_steps=200, **settings)
    assert f"in round {e.value.round} with lr={rate(e.value.round):g};" in str(e.value)


def test_a_probe_of_each_client_is_not_taken_for_an_evaluation():
    history = fc.simulate(fc.FedAvg(), FOUR, rounds=1, probes=[lambda r, y: {"loss": y.norm(dim=1)}])
    assert history.final("loss", client=3) > 0
    with pytest.raises(KeyError, match="no client was evaluated; use personal=True"):
        history.clients()


def test_the_curve_of_a_client_that_is_not_there_names_those_that_are():
    history = fc.simulate(fc.FedAvg(), FOUR, rounds=1, personal=True)
    with pytest.raises(KeyError, match=r"of client 9 was not recorded; use one of the clients \[0, 1, 2, 3\]"):
        history.curve("accuracy", client=9)
    with pytest.raises(KeyError, match=r"of client 3 was not recorded; use one of \['accuracy', 'loss'\]"):
        history.curve("drift", client=3)


def test_statistics_are_of_the_metric_that_the_evaluated_clients_have():
    fed = points([[0], [1, 2, 3, 5], [6, 7, 8]], own_test=0.5)
    for client, metric in ((0, "accuracy"), (1, "own_accuracy")):
        table = fc.simulate(fc.FedAvg(), fed, rounds=1, personal="local", cohort=[client]).clients()
        names = [metric, *(f"{metric}_{end}" for end in ("mean", "weighted", "spread", "worst_tenth"))]
        assert (table["round"].unique().tolist(), table["metric"].tolist()) == ([1], names)


def test_a_probe_that_cannot_measure_the_method_is_named():
    with pytest.raises(AttributeError, match=r"control_error cannot measure FedAvg\(\): .* no 'c_i'.*; use a method"):
        fc.simulate(fc.FedAvg(), BOWLS, rounds=1, probes=[fc.probes.control_error])


@pytest.mark.parametrize("cohort", [[], lambda t: [], np.array([], int)], ids=["list", "function", "array"])
def test_a_round_without_clients_is_refused_as_that(cohort):
    with pytest.raises(ValueError, match=r"cohort=\[\]; a round needs at least one client, out of 0 to 2"):
        fc.simulate(fc.FedAvg(), BOWLS, rounds=1, cohort=cohort)
