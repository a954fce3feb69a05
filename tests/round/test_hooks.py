"""A run that somebody listens to, that is stopped, scheduled, or whose clients are chosen, is as exact as any other."""

import itertools
import json
import math
import random
import subprocess
import sys
import types
import warnings
from unittest import mock

import helpers as h
import numpy as np
import pytest
import torch
from battery import private
from torch import nn

import fedcore as fc
from fedcore import rng
from fedcore.support import progress

RUN = {"rounds": 8, "local_steps": 3, "cohort": 3, "lr": 0.1}


@pytest.fixture(scope="module")
def fed():
    return fc.federation("digits", 8, fc.Dirichlet(0.3), "thesis_mlp", seed=0, validation=True)


@pytest.fixture(scope="module")
def usual(fed):
    """The run that nobody listens to or stops."""
    return fc.simulate(fc.FedAvg(), fed, **RUN)


def same(a, b):
    return torch.equal(a.params, b.params) and a.cohorts == b.cohorts and a.frame().equals(b.frame())


# --- schedules ----------------------------------------------------------------------------------------------------


def test_a_run_by_round_is_the_loop_over_rounds_with_these_settings(fed):
    chosen = [[0, 1, 2, 5], 2, 0.5, None] * 2
    h = fc.simulate(fc.FedDyn(0.1), fed, **RUN | {"lr": lambda t: 0.2 / (1 + t), "cohort": lambda t: chosen[t]})
    state = fc.start(fc.FedDyn(0.1), fed)
    for t, cohort in enumerate(chosen):
        state, seen = fc.one_round(fc.FedDyn(0.1), fed, state, t, cohort=cohort, lr=0.2 / (1 + t), local_steps=3)
        assert seen.cohort == h.cohorts[t]
    assert torch.equal(state["x"], h.params)


def test_chunks_hold_the_largest_cohort_of_the_schedule(fed):
    grows = RUN | {"cohort": lambda t: 1 + t % 8}
    whole, cut = (fc.simulate(fc.FedAvg(), fed.to(dtype=torch.float64), chunk=c, **grows) for c in (None, 2))
    assert torch.allclose(whole.params, cut.params, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": lambda t: 0.1 - 0.05 * t}, "lr in round 2: lr=0 is out of range"),
        ({"cohort": lambda t: 3 + t}, r"cohort in round 6: cohort=9 but the federation has 8 clients"),
        ({"cohort": lambda t: [1, 1]}, r"cohort in round 0: cohort=\[1, 1\]; use different clients"),
    ],
)
def test_a_schedule_out_of_range_names_the_round_before_any_is_run(fed, settings, words):
    with pytest.raises(ValueError, match=words):
        fc.simulate(fc.FedAvg(), fed, **RUN | settings)


def test_a_method_that_needs_all_clients_refuses_a_schedule_without_them(fed):
    with pytest.raises(ValueError, match="needs all 8 clients in every round"):
        fc.simulate(fc.DPSGD(fc.Ring()), fed, **RUN | {"cohort": lambda t: 8 - (t == 5)})


# --- listening and stopping ---------------------------------------------------------------------------------------


def patience(rounds, seen=None):
    """Stop after so many evaluations without a better loss."""
    best, waited = math.inf, 0

    def on_evaluate(t, metrics):
        nonlocal best, waited
        if seen is not None:
            seen.append((t, dict(metrics)))
        best, waited = (metrics["loss"], 0) if metrics["loss"] < best else (best, waited + 1)
        return waited >= rounds

    return on_evaluate


def test_on_evaluate_sees_what_the_history_keeps(fed):
    seen = []
    probes = [lambda r, y: {"size": y.norm(), "length": y.norm(dim=1)}]
    h = fc.simulate(fc.FedAvg(), fed, eval_every=3, on_evaluate=patience(99, seen), probes=probes, **RUN)
    assert [t for t, _ in seen] == [0, 3, 6, 8]
    assert seen == [(t, {k: v for at, k, i, v in h.rows if at == t and i is None}) for t, _ in seen]


def test_listening_changes_no_bit(fed, usual):
    assert same(usual, fc.simulate(fc.FedAvg(), fed, on_evaluate=patience(99), **RUN))


def test_one_that_counts_ends_a_resumed_run_where_it_ends_one_in_a_piece(fed, tmp_path):
    wild = RUN | {"lr": 1.0, "rounds": 30}
    whole = fc.simulate(fc.FedAvg(), fed, on_evaluate=patience(3), **wild)
    assert 3 < len(whole.cohorts) < 30, "the run should end by itself"
    fc.simulate(fc.FedAvg(), fed, checkpoint_dir=tmp_path, **wild | {"rounds": len(whole.cohorts) - 2})
    assert same(fc.simulate(fc.FedAvg(), fed, on_evaluate=patience(3), checkpoint_dir=tmp_path, **wild), whole)
    seen = []
    again = fc.simulate(fc.FedAvg(), fed, on_evaluate=patience(3, seen), checkpoint_dir=tmp_path, **wild)
    assert same(again, whole)
    assert [t for t, _ in seen] == list(range(len(whole.cohorts) + 1))


def at_round(t, error):
    """A probe that raises when it sees round t, once."""
    left = [t]

    def probe(r, y):
        if left == [r.t]:
            left.clear()
            raise error
        return {}

    return probe


LEFT = []


class Breaks(fc.FedAvg):
    """Raises in the round that stands in LEFT, once."""

    def aggregate(self, r, y):
        if [r.t] == LEFT:
            LEFT.clear()
            raise KeyboardInterrupt
        return fc.FedAvg.aggregate(self, r, y)


@pytest.mark.parametrize("error", [ZeroDivisionError("no such number"), KeyboardInterrupt()], ids=repr)
def test_whatever_ends_the_rounds_carries_the_history_up_to_there(fed, usual, error):
    with pytest.raises(type(error)) as e:
        fc.simulate(fc.FedAvg(), fed, probes=[at_round(4, error)], **RUN)
    assert e.value.history.rows == [row for row in usual.rows if row[0] <= 5]
    assert e.value.history.cohorts == usual.cohorts[:5]
    assert torch.equal(e.value.history.params, fc.simulate(fc.FedAvg(), fed, **RUN | {"rounds": 5}).params)
    assert "after 5 rounds; the history up to there is this error's .history" in e.value.__notes__[0]


def gives(name, value):
    def my_probe(r, y):
        return {name: value}

    return my_probe


@pytest.mark.parametrize(("probes", "error", "words"), [
    ([gives("accuracy", 1.0)], ValueError, "my_probe gave 'accuracy', the name of a metric.*another name"),
    ([gives("loss", torch.zeros(3))], ValueError, "my_probe gave 'loss', the name of a metric"),
    ([gives("a", "high")], TypeError, r"my_probe gave 'a': 'high'; return .* one for each client \[3\]"),
    ([gives("a", torch.ones(5))], ValueError, r"my_probe gave 'a' of shape \(5,\); return .* client \[3\]"),
    ([lambda r, y: 3.0], TypeError, r"<lambda> gave 3.0; return a mapping"),
    ([gives("", 1.0)], TypeError, "my_probe gave {'': 1.0}; return a mapping of names"),
    ([gives("a", 1.0), gives("a", 2.0)], ValueError, "my_probe gave 'a', the name of .* another value; use another"),
])  # fmt: skip
def test_what_a_probe_may_not_give_is_named(fed, probes, error, words):
    with pytest.raises(error, match=words):
        fc.simulate(fc.FedAvg(), fed, probes=probes, personal=True, **RUN)


@pytest.mark.parametrize(("probe", "name"), [
    (lambda r, y: {"a": y.sub_(r.x).norm()}, "y"), (lambda r, y: {"a": r.c_i.zero_().norm()}, "c_i"),
])  # fmt: skip
def test_a_probe_that_writes_to_what_it_is_given_is_named(fed, probe, name):
    with pytest.raises(ValueError, match=rf"the probe <lambda> wrote to '{name}'.* y - r\.x for y\.sub_"):
        fc.simulate(fc.SCAFFOLD(), fed, probes=[probe], **RUN)


def test_a_probe_draws_numbers_of_seed_and_round_and_leaves_the_generators_as_they_were(fed):
    def draws(r, y):
        return {"a": torch.rand(()) + random.random() + np.random.random()}  # noqa: NPY002

    states = rng.global_states()
    whole, other = (fc.simulate(fc.FedAvg(), fed, probes=[draws], **RUN | {"seed": seed}) for seed in (0, 1))
    assert rng.global_states() == states
    assert whole.rows == fc.simulate(fc.FedAvg(), fed, probes=[draws], **RUN | {"seed": 0}).rows
    values = [value for h in (whole, other) for _, name, _, value in h.rows if name == "a"]
    assert len(set(values)) == len(values) == 2 * RUN["rounds"]


def test_a_function_that_is_nearly_a_hook_is_told_of(fed):
    class Mine(fc.FedAvg):
        def agregate(self, r, y):
            return {"x": r.x}

    class Helps(Mine):
        def aggregate(self, r, y):
            return self.agregate(r, y)

    with pytest.warns(UserWarning, match=r"Mine.agregate is no hook .* rename it to aggregate") as told:
        fc.simulate(Mine(), fed, **RUN | {"rounds": 1})
    assert [one.filename for one in told if "no hook" in str(one.message)] == [__file__]
    with warnings.catch_warnings(action="error"):
        fc.simulate(Helps(), fed, **RUN | {"rounds": 1})


def test_a_checkpoint_that_cannot_be_written_costs_no_history(fed, tmp_path, monkeypatch):
    def full(*args, **arrays):
        raise OSError(28, "no space left")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space left") as e:
        fc.simulate(fc.FedAvg(), fed, checkpoint_dir=tmp_path, checkpoint_every=3, **RUN)
    assert max(t for t, *_ in e.value.history.rows) == len(e.value.history.cohorts) == 3


def test_an_interrupt_within_a_round_leaves_a_checkpoint_of_those_before(fed, tmp_path):
    LEFT.append(4)
    run = RUN | {"checkpoint_dir": tmp_path, "checkpoint_every": 8, "eval_every": 3}
    with pytest.raises(KeyboardInterrupt) as e:
        fc.simulate(Breaks(), fed, **run)
    assert len(e.value.history.cohorts) == 4
    with np.load(tmp_path / "checkpoint.npz") as z:
        assert json.loads(z["head"].tobytes())["t"] == 4
    resumed = fc.simulate(Breaks(), fed, **run)
    assert same(resumed, fc.simulate(Breaks(), fed, **RUN | {"eval_every": 3}))


@pytest.mark.parametrize("where", ["a probe", "on_evaluate"])
def test_an_interrupted_evaluation_is_made_again(fed, usual, tmp_path, where):
    probe, ends = at_round(4, KeyboardInterrupt()), patience(99)

    def on_evaluate(t, metrics):
        if where == "on_evaluate":
            probe(types.SimpleNamespace(t=t - 1), None)
        return ends(t, metrics)

    run = {"probes": [probe] if where == "a probe" else [], "on_evaluate": on_evaluate}
    run |= RUN | {"checkpoint_dir": tmp_path, "checkpoint_every": 8}
    with pytest.raises(KeyboardInterrupt) as e:
        fc.simulate(fc.FedAvg(), fed, **run)
    assert len(e.value.history.cohorts) == 5
    assert (tmp_path / "checkpoint.npz").exists() == (where == "on_evaluate"), "half an evaluation was kept"
    assert same(fc.simulate(fc.FedAvg(), fed, **run), usual)


def test_an_answer_that_is_no_truth_value_is_refused(fed):
    with pytest.raises(TypeError, match=r"on_evaluate returned 0\.\d+; return True to end the run"):
        fc.simulate(fc.FedAvg(), fed, on_evaluate=lambda t, metrics: metrics["accuracy"], **RUN)


# --- validation data, and what a run shows ------------------------------------------------------------------------


def test_validation_data_are_those_of_the_federation_on_them(fed, usual):
    h = fc.simulate(fc.FedAvg(), fed, eval_on="validation", **RUN)
    assert h.rows == fc.simulate(fc.FedAvg(), fed.on_validation(), **RUN).rows
    assert h.rows != usual.rows
    with pytest.raises(ValueError, match="validation=True"):
        fc.simulate(fc.FedAvg(), fc.federation("digits", 4), eval_on="validation", **RUN)
    with pytest.raises(ValueError, match="eval_on='validation' and a federation made with validation=True"):
        fc.simulate(fc.FedAvg(), fed, **BEST | {"eval_on": "test"})
    with pytest.raises(ValueError, match="a quadratic has no data"):
        fc.simulate(fc.FedAvg(), quadratics(), rounds=1, eval_on="validation")


def worsens(t):
    """A rate that is too large from the sixth round on."""
    return 0.1 if t < 5 else 2.0


BEST = {**RUN, "cohort": None, "lr": worsens, "eval_on": "validation", "keep": "best"}


@pytest.mark.parametrize(("method", "every"), [(fc.FedAvg(), 1), (fc.SCAFFOLD(), 3), (fc.DFedAvg(), 8)], ids=repr)
def test_the_best_model_is_that_of_the_evaluation_with_the_highest_accuracy(fed, method, every):
    h = fc.simulate(method, fed, eval_every=every, **BEST)
    state, judge = fc.start(method, fed), fed.on_validation()
    states, scores = {}, {}
    for t in range(9):
        if t % every == 0 or t == 8:
            scores[t] = float(judge.evaluate(state["x"])["accuracy"])
            states[t] = {k: v.clone() for k, v in state.items()}
        if t < 8:
            state, _ = fc.one_round(method, fed, state, t, lr=worsens(t), local_steps=3)
    assert h.kept == max(scores, key=scores.get)
    assert h.state.keys() == states[h.kept].keys()
    assert all(torch.equal(v, states[h.kept][k]) for k, v in h.state.items())
    assert torch.equal(h.params, h.state["x"])
    last = fc.simulate(method, fed, eval_every=every, **BEST | {"keep": "last"})
    assert h.rows == last.rows
    assert last.kept is None
    assert torch.equal(last.params, states[8]["x"])
    assert repr(h).splitlines()[2].startswith(f"after round {h.kept}, the best of 8: accuracy {scores[h.kept]:.4g}")


@pytest.mark.parametrize(("every", "save", "stop"), [(1, 1, 2), (1, 1, 7), (2, 2, 5), (3, 1, 4), (3, 1, 8)])
def test_the_best_model_of_a_resumed_run_is_that_of_one_that_was_never_stopped(fed, tmp_path, every, save, stop):
    whole = fc.simulate(fc.SCAFFOLD(), fed, **BEST, eval_every=every)
    run = {**BEST, "eval_every": every, "checkpoint_every": save, "checkpoint_dir": tmp_path}
    fc.simulate(fc.SCAFFOLD(), fed, **run | {"rounds": stop})
    h = fc.simulate(fc.SCAFFOLD(), fed, **run)
    again = fc.simulate(fc.SCAFFOLD(), fed, **run)
    for found in (h, again):
        assert found.kept == whole.kept
        assert same(found, whole)
        assert all(torch.equal(v, whole.state[k]) for k, v in found.state.items())
    if stop < 8:
        with pytest.raises(fc.CheckpointError, match="keep"):
            fc.simulate(fc.SCAFFOLD(), fed, **run | {"keep": "last"})


def test_a_run_that_ends_early_or_diverges_leaves_its_best_model(fed):
    whole = fc.simulate(fc.FedAvg(), fed, **BEST)
    ended = fc.simulate(fc.FedAvg(), fed, on_evaluate=lambda t, metrics: t == 7, **BEST)
    assert (ended.kept, whole.kept) == (5, 5)
    assert torch.equal(ended.params, whole.params)
    with pytest.raises(fc.Diverged) as e:
        fc.simulate(fc.FedAvg(), fed, **BEST | {"lr": lambda t: 0.1 if t < 5 else 1e30})
    assert e.value.history.kept == 5
    assert torch.equal(e.value.history.params, whole.params)


def test_the_best_model_is_the_one_of_the_lowest_loss_where_there_is_no_accuracy():
    x = np.random.default_rng(0).normal(size=(80, 4))
    fed = fc.federation((x, x[:, :1] * 2), 4, model="mlp", loss=torch.nn.MSELoss(), validation=True)
    h = fc.simulate(fc.FedAvg(), fed, **BEST | {"lr": lambda t: 0.05 if t < 4 else 0.15})
    rounds, losses = h.curve("loss")
    assert h.kept == rounds[losses.argmin()] < 8


def test_a_redirected_run_writes_one_line_an_evaluation(fed, capfd, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    fc.simulate(fc.FedAvg(), fed, eval_every=4, progress=True, **RUN)
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(", ")[0] for line in lines] == ["FedAvg: 4/8 rounds", "FedAvg: 8/8 rounds"]
    assert all("accuracy 0." in line for line in lines)


class Missing:
    """A standard error that some services give: it writes, and that is all."""

    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("shown", [None, True])
@pytest.mark.parametrize("stream", [None, Missing()], ids=["none", "full"])
def test_a_run_needs_no_standard_error(fed, usual, monkeypatch, capsys, stream, shown):
    monkeypatch.delenv("FEDCORE_BATCH")
    monkeypatch.setattr(progress.time, "time", lambda clock=itertools.count(): next(clock))  # long runs
    monkeypatch.setitem(sys.modules, "ipykernel", sys)  # as in a notebook
    monkeypatch.setattr(sys, "stderr", stream)
    assert same(usual, fc.simulate(fc.FedAvg(), fed, progress=shown, **RUN))
    assert capsys.readouterr().out == ""  # what print does with None


def test_a_sweep_on_two_processes_needs_neither_output_nor_error(tmp_path):
    program = f"""
import fedcore as fc
from fedcore import rng
fed = fc.quadratic([[[1.0]]], [[1.0]])
fc.sweep(fed, {{"lr": [0.1, 0.2]}}, seeds=1, method=fc.FedAvg(), rounds=1, workers=2).to_csv({str(tmp_path / "f")!r})
"""
    subprocess.run(["bash", "-c", 'exec "$0" -c "$1" 1>&- 2>&-', sys.executable, program], timeout=120, check=True)
    assert len((tmp_path / "f").read_text().splitlines()) > 2


def test_a_history_shows_itself_in_three_lines_and_a_table(fed):
    h = fc.simulate(fc.FedUp(0.1), fed, **RUN)
    method, rounds, metrics = repr(h).splitlines()
    assert method == "FedUp(alpha=0.1)"
    assert rounds == "8 rounds, 8 clients took part"  # and no time, which would differ
    assert h.seconds > 0
    assert metrics == f"after round 8: accuracy {h.final():.4g}, loss {h.final('loss'):.4g}"
    assert h._repr_html_().count("<tr") == 2 + 5  # two rows of heads, five evaluations


DRAWS = {"torch": lambda: torch.rand(()), "NumPy": lambda: np.random.random(), "Python": random.random}  # noqa: NPY002


@pytest.mark.parametrize(("hook", "drawn"), [
    ("prepare", "torch"), ("broadcast", "torch"), ("aggregate", "torch"),
    ("direction", "NumPy"), ("direction", "Python"),
])  # fmt: skip
def test_a_hook_that_draws_from_a_global_generator_is_told_of_once(fed, hook, drawn):
    def noisy(self, *given):
        DRAWS[drawn]()
        return getattr(fc.FedAvg, hook)(self, *given)

    method = type("Noisy", (fc.FedAvg,), {hook: noisy})()
    with pytest.warns(UserWarning, match=rf"Noisy.{hook} draws from a global generator.*r.noise\(like\)") as told:
        fc.simulate(method, fed, rounds=3, cohort=2, local_steps=3)
    assert len(told) == 1


def quadratics(noise=lambda Y, plan, k: 0, name="gradient") -> fc.Quadratic:
    """Quadratics of a class of the user's that adds noise(Y, plan, k) to its gradients."""

    def noisy(self, Y, plan, k=0, *given):
        return getattr(fc.Quadratic, name)(self, Y, plan, k, *given) + noise(Y, plan, k)

    q = fc.quadratic(np.stack([np.eye(2)] * 3), np.arange(6.0).reshape(3, 2))
    return type("Noisy", (fc.Quadratic,), {name: noisy})(q.A, q.b, q.x0)


@pytest.mark.parametrize(("method", "name"), [(fc.FedSAM(), "gradient"), (fc.Mime(), "full_gradient")])
def test_quadratics_of_ones_own_that_draw_from_a_global_generator_are_told_of_once(method, name):
    words = r"Noisy draws from a global generator.*np\.random\.default_rng\(\(int\(plan\.keys\[i\]\), k\)\)"
    with pytest.warns(UserWarning, match=words) as told:
        fc.simulate(method, quadratics(lambda Y, plan, k: DRAWS["NumPy"](), name), rounds=3, local_steps=3, lr=0.1)
    assert len(told) == 1


def test_quadratics_that_draw_from_a_generator_that_they_hold_are_told_of_once():
    noisy = quadratics(lambda Y, plan, k: torch.randn(Y.shape, generator=noisy.held))
    noisy.held = torch.Generator().manual_seed(0)
    with pytest.warns(UserWarning, match=r"Noisy changed self\.held .*neither saved.*plan\.keys.*resumed run") as told:
        fc.simulate(fc.FedAvg(), noisy, rounds=4, lr=0.1)
    assert len(told) == 1


def test_quadratics_that_draw_as_they_are_told_to_give_equal_and_resumed_runs(tmp_path):
    def noise(Y, plan, k):
        rows = [np.random.default_rng((int(plan.keys[i]), k)).normal(size=Y.shape[1]) for i in range(len(Y))]
        return torch.as_tensor(np.stack(rows))

    def run(rounds, **more):
        return fc.simulate(fc.FedAvg(), quadratics(noise), rounds=rounds, local_steps=2, lr=0.1, **more).params

    with warnings.catch_warnings(action="error"):
        whole = run(4)
        assert torch.equal(run(4, chunk=1), whole)
        run(2, checkpoint_dir=tmp_path)
        assert torch.equal(run(4, checkpoint_dir=tmp_path), whole)


def test_noise_of_the_round_and_what_a_network_draws_are_not_spoken_of():
    class Dropping(nn.Sequential):  # whose own draws are the engine's
        def forward(self, x):
            return super().forward(x) * (1 + random.random())

    net = Dropping(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(), nn.Linear(8, 3))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*draws from a global generator")
        fc.simulate(private("all"), h.network(model=net), rounds=2, lr=0.01)


@pytest.mark.parametrize(("seconds", "any_bar"), [(0.05, False), (0.4, True)])
def test_a_bar_is_made_after_a_second_and_not_before(fed, monkeypatch, seconds, any_bar):
    """A clock that moves by so many seconds at each look, of which there is one at the start and two per round."""
    tqdm, clock = mock.MagicMock(), itertools.count()
    monkeypatch.setattr(progress, "_tqdm", lambda: tqdm)
    monkeypatch.setattr(progress, "somebody_looks", lambda: True)
    monkeypatch.setattr(progress.time, "time", lambda: seconds * next(clock))
    monkeypatch.delenv("FEDCORE_BATCH")
    fc.simulate(fc.FedAvg(), fed, **RUN)
    assert tqdm.called == tqdm.return_value.close.called == any_bar


class Halves(nn.Module):
    """Two layers, of which the first is not trained; `first`: whether it stands first in the flat vector."""

    def __init__(self, first):
        super().__init__()
        torch.manual_seed(0)
        a, b = nn.Linear(64, 8).requires_grad_(False), nn.Linear(8, 10)
        for name, layer in (("a", a), ("b", b)) if first else (("b", b), ("a", a)):
            setattr(self, name, layer)

    def forward(self, x):
        return self.b(torch.relu(self.a(x.flatten(1))))


def half_frozen(first=True):
    return fc.federation("digits", clients=3, partition=fc.Dirichlet(0.3), model=Halves(first))


def test_frozen_parameters_stay_where_they_are_whatever_a_method_adds_to_the_gradient():
    method, fed = private("direction"), half_frozen()
    _, seen = fc.one_round(method, fed, fc.start(method, fed), 0, lr=0.1, local_steps=2)
    assert torch.equal(seen.y[:, ~fed.trained], fed.x0[~fed.trained].expand(3, -1))


def test_apfl_keeps_its_mixing_weight_also_where_the_first_parameters_are_frozen():
    ends = []
    for fed in (half_frozen(True), half_frozen(False)):
        history = fc.simulate(fc.APFL(0.5, adaptive=True), fed, rounds=3, lr=0.5, local_steps=2)
        ends.append(history.state["alpha_i"][:, fed.trained].mean(1))
    assert (ends[0] != 0.5).all()
    torch.testing.assert_close(*ends)


def test_a_momentum_that_dfedavgm_replaces_is_told_of():
    fed = fc.federation("digits", clients=4, model="logistic")
    with pytest.warns(UserWarning, match=r"momentum=0.5 has no effect; use DFedAvgM\(momentum=0.5\)"):
        fc.simulate(fc.DFedAvgM(), fed, rounds=1, momentum=0.5)


def test_a_run_that_diverges_names_the_rate_of_its_round(fed):
    with pytest.raises(fc.Diverged, match="lr=1e\\+30"):
        fc.simulate(fc.FedAvg(), fed, **RUN | {"lr": lambda t: 1e30 if t == 3 else 0.1})
