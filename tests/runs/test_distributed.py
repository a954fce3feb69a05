"""Several processes give the run of one, to rounding; and what goes wrong in one of them ends all.

Run by torchrun, and with a number by itself, this file is also the script that the processes execute.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import battery as every
import helpers as h
import numpy as np
import pytest
import torch

import fedcore as fc
from fedbook import reproduce as command
from fedbook.measures.platform import PlatformSCAFFOLD
from fedcore import distributed
from fedcore.rows.rows import Rows
from tools.processes import fork, runs, until

ROOT = Path(__file__).resolve().parents[2]
RUN = {"rounds": 4, "cohort": 3, "lr": 0.1, "batch_size": 4, "seed": 3}  # of 5 clients: one of 4 processes is idle
SIZES, FULL = {"weighting": "samples", "momentum": 0.5}, {"cohort": None}


def all_of_it(r, y):
    """A probe of all that a round has: what its clients compute, their rows, and the networks that they train."""
    found = {"gradient": r.gradient(y, 0), "full gradient": r.full_gradient(y), "losses": r.losses(y)}
    found |= {"p": r.p, "K": r.K}
    found |= {"visits": torch.as_tensor(r.visits), "client": r.clients} | dict(r.rows) | dict(r.memory)
    each = {f"its {name}": v.double().reshape(len(y), -1).norm(dim=1) for name, v in found.items()}
    for k, part in enumerate(r.parts or ()):
        entries = torch.zeros(y.shape)
        part.put(entries, torch.ones(part.take(entries).shape))
        each[f"part {k}"] = entries.sum(1)
    return each | {"mean": r.mean(y).norm(), "sum": r.sum(y - r.x).norm()}


def probes(kind: str, method: fc.Method) -> list:
    """Every probe of the package that says something about this method, and one of all that a probe may look at."""
    found = [fc.probes.drift, fc.probes.consensus, all_of_it]
    found += [fc.probes.control_error] if "c_i" in method.client_state else []
    found += [fc.probes.gradient_estimate(0.2)] if isinstance(method, fc.FedUp) else []
    if kind == "network" and isinstance(method, fc.algorithms.Submodel):
        beside = {"fixed": fc.HeteroFL({1: 0.5, 0.5: 0.5}, training="masked")}
        found.append(fc.probes.submodel_gap(labels=method.labels, others=beside))
    return found


CASES = {
    "server momentum": (fc.FedAvg(server_momentum=0.7), SIZES),
    "gradient before the round": (fc.Mime(0.6), {"clip": 0.5, "weight_decay": 0.01}),
    "steps by client": (fc.FedNova(), SIZES | {"local_steps": [4, 1, 3, 6, 2]}),
    "epochs by round": (fc.SCAFFOLD(), {"local_epochs": lambda t, clients: 1 + (clients + t) % 3, "eval_every": 2}),
    "last model": (fc.FedUp(alpha=0.2), {"personal": "local"}),
    "personal models": (fc.FedALA(1, 0.8, 0.5), {"personal": True}),
    "sub-models": (fc.HeteroFL({1: 0.5, 0.5: 0.5}, labels="zero", mode="dynamic"), SIZES),
    "no server": (fc.DFedSAM(fc.RandomRegular(2), 0.05), {**FULL, "probes": [fc.probes.consensus]}),
    "the last client's sum": (PlatformSCAFFOLD(), {}),
    "float32": (fc.FedAvg(), {"dtype": torch.float32}),
}  # fmt: skip
if torch.cuda.is_available():
    CASES |= {
        f"cuda {name}": (CASES[name][0], CASES[name][1] | {"device": "cuda"})
        for name in ("epochs by round", "no server")
    }
RESUMED = {"vectors": fc.FedAvg(server_momentum=0.7), "rows": fc.SCAFFOLD(), "visits": fc.FedALA(1, 0.8, 0.5)}
CHAIN = {1: 1, 2: 3, 4: 5}  # processes -> rounds after which they stop
TABLE = """
import torch
from fedcore import distributed
from fedbook import Cell, Table, studies


def flaky(spec, seed, folder, device):
    if distributed.world().rank == 1:
        raise RuntimeError("no luck here")
    return {{"final": float(distributed.world().total(torch.ones(1))), "mean": 0.0, "history": []}}


studies.STUDIES["flaky"] = flaky
CELLS = [Cell("bad", {{"study": "flaky"}}), Cell("good", {spec!r})]
TABLES = [Table("trial", "a trial", "S000", lambda profile: CELLS, {{"quick": "tiny", "paper": "tiny"}})]
"""


def federation() -> fc.Federation:
    return h.network(model=every.contrastive)


def left(history: fc.History) -> dict:
    tensors = {k: v.cpu().numpy() for k, v in {"params": history.params, **history.state}.items()}
    return {"tensors": tensors, "cohorts": history.cohorts, "rows": history.rows}


def run(name: str) -> dict:
    method, options = CASES[name]
    return left(fc.simulate(method, federation(), **RUN | options))


def battery(kind: str, method: fc.Method) -> dict:
    return left(every.run(method, every.make(kind), rounds=2, probes=probes(kind, method)))


def suits(kind: str, method: fc.Method) -> bool:
    if isinstance(method, fc.Central):  # one machine
        return False
    return kind == "network" or not every.needs_a_network(method)


BATTERY = [(kind, m) for kind in ("quadratic", "network") for m in every.METHODS if suits(kind, m)]


# --- in each process ----------------------------------------------------------------------------------------------


class Median(fc.FedAvg):
    """A prepare and an aggregate that take something from all rows by themselves."""

    def prepare(self, r):
        return r.extended(server={"middle": r.clients.double().median()}, rows={"place": r.clients.double()[:, None]})

    def direction(self, G, y, r):
        return G(y) * (1 + 0.01 * (r.place - r.middle))

    def aggregate(self, r, y):
        return {"x": y.median(0).values}


class Weighted(fc.FedAvg):
    """Weights and a rate of its own, from the rows of all clients."""

    def prepare(self, r):
        w = r.clients.to(r.p.dtype)[:, None] + 1
        return r.extended(p=w / w.sum(), lr=0.5 * r.lr)


class Falls(fc.FedAvg):
    """One process fails in its local steps of round 1."""

    def direction(self, G, y, r):
        if r.t == 1 and distributed.world().rank == distributed.world().size - 1:
            raise ZeroDivisionError("my own mistake")
        return G(y)


class Own(fc.HeteroFL):
    """Sub-models whose mean is written anew: it sees the rows and the parts of all processes."""

    def aggregate(self, r, y):
        return {"x": fc.submodels.combine(r.x, y, r.mask, r.p)}


OWN = (Median(), Weighted(), Own({1: 0.5, 0.5: 0.5}))


def failing_probe(r, y):
    raise ValueError("only the first asks")


def failing_listener(t, metrics):
    if t == 2:
        raise ValueError("the logger is gone")


WRONG = {
    "a listener": (fc.SCAFFOLD(), {"on_evaluate": failing_listener}),
    "a method": (Falls(), {"cohort": None}),
    "a probe": (fc.FedAvg(), {"probes": [failing_probe]}),
    "divergence": (fc.SCAFFOLD(), {"lr": 1e60, "eval_every": 4}),
}


def caught(call) -> tuple:
    try:
        call()
    except Exception as e:
        told = {"round": e.round, "client": e.client, **left(e.history)} if isinstance(e, fc.Diverged) else None
        return type(e).__name__, str(e), told
    return None, "nothing was raised", None


def counted(method: fc.Method) -> list[int]:
    """The lengths of the vectors that one round adds up over the processes."""
    lengths, total = [], distributed.World.total
    distributed.World.total = lambda self, v: lengths.append(v.numel()) or total(self, v)
    fc.simulate(method, federation(), **RUN | {"rounds": 1})
    distributed.World.total = total
    return lengths


def kept() -> list[int]:
    """How many clients' rows this process holds in a run with 5 clients."""
    start, states = Rows.start, []
    Rows.start = lambda self: states.append(start(self)) or states[-1]
    fc.simulate(fc.SCAFFOLD(), federation(), **RUN)
    Rows.start = start
    return [len(state["c_i"]) for state in states]


def process(folder: Path) -> None:
    torch.set_num_threads(1)
    N, fed = distributed.world().size, federation()
    found = {"wrong": {k: caught(lambda: fc.simulate(m, fed, **RUN | o)) for k, (m, o) in WRONG.items()}}  # noqa: B023
    found["crowd"] = caught(lambda: fc.simulate(fc.FedAvg(), h.golden() if N > 2 else one_client(), rounds=1))
    found["own rules"] = [left(fc.simulate(m, fed, **RUN)) for m in OWN]  # the processes are still in step
    found["cases"] = {name: run(name) for name in CASES}
    found["resumed"] = {k: left(resumed(m, folder / k, CHAIN[N])) for k, m in RESUMED.items()}
    if N == 2:
        found["battery"] = [battery(*each) for each in BATTERY]
        found["counted"] = [counted(fc.FedAvg()), counted(fc.SCAFFOLD()), counted(fc.FedUp())]
        table = ["--definitions", str(folder / "trial.py"), "--results", str(folder / "results")]
        found["command"] = command.main(["trial", "--plain", "--seeds", "1", *table])
        found["notebooks"] = command.main(["trial", *table])
    found["kept"] = kept()
    (folder / f"{N}-{distributed.world().rank}.pkl").write_bytes(pickle.dumps(found))


def one_client() -> fc.Quadratic:
    return fc.quadratic([[[1.0]]], [[1.0]])


def resumed(method: fc.Method, folder: Path, rounds: int) -> fc.History:
    return fc.simulate(method, federation(), checkpoint_dir=folder, **RUN | {"rounds": rounds})


# --- and outside ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """What 2 and then 4 processes found, `found[N][rank]`, and their printed words; 1 is this process."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "trial.py").write_text(TABLE.format(spec=h.SPEC))
    for name, method in RESUMED.items():
        resumed(method, folder / name, CHAIN[1])
    out = {"folder": folder, "said": {}}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", __file__]
    for N, call in ((2, [*torchrun, str(folder)]), (4, [__file__, str(folder), "4"])):
        told = {"capture_output": True, "text": True, "env": h.environment()}
        done = subprocess.run([sys.executable, *call], cwd=ROOT, timeout=300, **told)
        assert done.returncode == 0, done.stderr
        out[N] = [pickle.loads((folder / f"{N}-{rank}.pkl").read_bytes()) for rank in range(N)]
        out["said"][N] = done.stdout + done.stderr
    return out


def same_run(got: dict, expected: dict, tolerance: float = 1e-12) -> None:
    assert got["cohorts"] == expected["cohorts"]
    assert got["tensors"].keys() == expected["tensors"].keys()
    for name, tensor in expected["tensors"].items():
        assert got["tensors"][name].dtype == tensor.dtype
        h.close(got["tensors"][name], tensor, tolerance)
    assert [row[:3] for row in got["rows"]] == [row[:3] for row in expected["rows"]]
    h.close([row[3] for row in got["rows"]], [row[3] for row in expected["rows"]], tolerance)


def equal(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b


several = pytest.mark.parametrize("N", [2, 4])


@several
@pytest.mark.parametrize("name", CASES)
def test_several_processes_give_the_run_of_one(name, N, found):
    same_run(found[N][0]["cases"][name], run(name), 1e-5 if name == "float32" else 1e-12)


@pytest.mark.parametrize("i", range(len(BATTERY)), ids=lambda i: f"{BATTERY[i][0]}-{BATTERY[i][1]!r}")
def test_two_processes_give_the_run_of_one_for_every_method_and_all_that_probes_see_of_it(i, found):
    same_run(found[2][0]["battery"][i], battery(*BATTERY[i]))


@several
def test_all_processes_leave_the_same_history_to_the_bit(N, found):
    for other in found[N][1:]:
        assert equal(other["cases"], found[N][0]["cases"])
        assert equal(other["resumed"], found[N][0]["resumed"])


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_with_another_number_of_processes(name, found):
    method = RESUMED[name]
    for N in (2, 4):
        expected = left(fc.simulate(method, federation(), **RUN | {"rounds": CHAIN[N]}))
        same_run(found[N][0]["resumed"][name], expected)
    last = left(resumed(method, found["folder"] / name, 6))  # 1, 2, 4 and again 1
    same_run(last, left(fc.simulate(method, federation(), **RUN | {"rounds": 6})))


def test_each_process_keeps_the_states_of_its_own_clients_only(found):
    assert [one["kept"] for one in found[2]] == [[3], [2]]
    assert [one["kept"] for one in found[4]] == [[2], [1], [1], [1]]


def test_a_round_adds_up_one_flat_vector_for_each_that_a_client_sends_and_no_matrix(found):
    d = federation().d
    for one in found[2]:
        assert one["counted"] == [[d], [d, d], [d]]


@several
def test_divergence_is_the_same_error_on_all_processes(N, found):
    method, options = WRONG["divergence"]
    with pytest.raises(fc.Diverged) as e:
        fc.simulate(method, federation(), **RUN | options)
    for one in found[N]:
        name, message, told = one["wrong"]["divergence"]
        assert (name, message) == ("Diverged", str(e.value))
        assert (told["round"], told["client"]) == (e.value.round, e.value.client)
        assert told["cohorts"] == e.value.history.cohorts
        assert told["tensors"]["c_i"].shape == e.value.history.state["c_i"].shape


@several
@pytest.mark.parametrize(("what", "rank", "raised"), [
    ("a method", -1, ("ZeroDivisionError", "my own mistake")), ("a probe", 0, ("ValueError", "only the first asks")),
])  # fmt: skip
def test_an_error_on_one_process_ends_all_of_them_with_its_message(what, rank, raised, N, found):
    told = [one["wrong"][what][:2] for one in found[N]]
    assert told.pop(rank) == raised
    assert set(told) == {("Stopped", f"process {rank % N} of {N} stopped: {': '.join(raised)}")}


@several
def test_a_listener_that_fails_on_the_first_process_ends_all_in_step(N, found):
    first, *others = [one["wrong"]["a listener"][:2] for one in found[N]]
    assert first == ("ValueError", "the logger is gone")
    assert set(others) == {("RuntimeError", "on_evaluate failed on process 0: ValueError: the logger is gone")}


@several
def test_a_rule_of_ones_own_sees_the_rows_of_all_processes(N, found):
    for one in found[N]:
        for got, method in zip(one["own rules"], OWN, strict=True):
            same_run(got, left(fc.simulate(method, federation(), **RUN)))


@several
def test_more_processes_than_clients_are_refused(N, found):
    clients = N // 2
    for one in found[N]:
        assert one["crowd"][1] == f"{N} processes but {clients} clients; use --nproc_per_node<={clients}"


def test_a_table_runs_on_two_processes_and_a_cell_that_fails_on_one_does_not_stop_the_others(found):
    assert [one["command"] for one in found[2]] == [1, 1]
    assert found["said"][2].count("1 cells run, 0 stood already, 1 failed") == 1
    assert found["said"][2].count("process 1 of 2 stopped: RuntimeError: no luck here") == 1
    folder = found["folder"] / "results" / "quick" / "trial"
    assert sorted(file.name for file in folder.glob("*.json")) == ["good.json"]
    stored = command.load(folder / "good.json", h.SPEC).runs[0]
    alone = command.run_cell(h.SPEC, [0]).runs[0]
    assert stored["processes"] == 2
    assert "processes" not in alone
    h.close(stored["history"], alone["history"], 0.01)  # float32: a test picture on the boundary may change sides


def test_notebooks_under_torchrun_are_refused(found):
    assert [one["notebooks"] for one in found[2]] == [2, 2]
    assert "torchrun shares plain runs and no notebooks; add --plain" in found["said"][2]


# --- processes that die or hang -------------------------------------------------------------------------------------

LIMIT = 3  # seconds that a process waits for the others


class Slow(fc.SCAFFOLD):
    """Says once in each process that local steps are taken there."""

    def direction(self, G, y, r):
        file = Path(os.environ["FOLDER"], os.environ["RANK"])
        if r.t == 1 and not file.exists():
            file.with_suffix(".half").write_text(str(os.getpid()))
            file.with_suffix(".half").rename(file)
        time.sleep(0.02)
        return super().direction(G, y, r)


def launch(folder: Path, N: int) -> None:
    """A launcher of N workers in a run that takes minutes, each of which leaves its error in a file."""
    os.environ |= {"FOLDER": str(folder), "FEDCORE_TIMEOUT": str(LIMIT), "OMP_NUM_THREADS": "1"}

    def work() -> None:
        torch.set_num_threads(1)
        with pytest.raises(distributed.Lost) as e:
            fc.simulate(Slow(), federation(), **RUN | {"rounds": 10_000, "cohort": None})
        with contextlib.redirect_stderr(io.StringIO()) as said:
            sys.excepthook(e.type, e.value, e.tb)  # what Python does where nobody catches it
        begin = time.monotonic()
        again = caught(lambda: fc.simulate(fc.FedAvg(), federation(), **RUN))
        found = said.getvalue(), str(e.value), again[:2], time.monotonic() - begin
        half = Path(folder, f"{os.environ['RANK']}.half")
        half.write_bytes(pickle.dumps(found))
        half.rename(half.with_suffix(".error"))
        until(lambda: len(list(folder.glob("*.error"))) == N - 1, 5)  # one that ends now would be named by the others
        os._exit(0)

    fork(N, work)


@pytest.fixture(scope="module")
def groups(tmp_path_factory) -> dict:
    """Three groups at work, `{what will be done to them: (launcher, folder, pids of the workers)}`."""
    found = {}
    for what, N in (("kill", 3), ("stop", 2), ("launcher", 2)):
        folder = tmp_path_factory.mktemp(what)
        launcher = h.SERVER.Process(target=launch, args=(folder, N))
        launcher.start()
        found[what] = launcher, folder, N
    for what, (launcher, folder, N) in found.items():
        assert until(lambda: all((folder / str(r)).exists() for r in range(N)), 60), what  # noqa: B023
        found[what] = launcher, folder, [int((folder / str(r)).read_text()) for r in range(N)]
    yield found
    for launcher, _, pids in found.values():
        launcher.kill()
        for pid in filter(runs, pids):
            os.kill(pid, signal.SIGKILL)


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux what processes do")


@linux
@pytest.mark.parametrize(
    ("what", "sent", "seconds"), [("kill", signal.SIGKILL, 10), ("stop", signal.SIGSTOP, LIMIT + 5)]
)
def test_a_process_that_dies_or_hangs_is_one_line_on_all_others_in_the_stated_time(what, sent, seconds, groups):
    _, folder, pids = groups[what]
    os.kill(pids[1], sent)
    others = [folder / f"{r}.error" for r in range(len(pids)) if r != 1]
    assert until(lambda: all(map(Path.exists, others)), seconds)
    for file in others:
        said, message, again, wait = pickle.loads(file.read_bytes())
        assert said == f"process {file.stem} stops: {message}\n"
        assert re.match(rf"another of the {len(pids)} processes has ended .*a run goes on from its last", message)
        assert again == ("Lost", message)
        assert wait < 1, "what is lost is not waited for once more"


@linux
def test_workers_end_with_a_torchrun_that_was_killed(groups):
    launcher, _, pids = groups["launcher"]
    assert all(map(runs, pids))
    launcher.kill()
    assert until(lambda: not any(map(runs, pids)), 10)


@pytest.mark.parametrize("wrong", ["0", "soon", "nan", "1e9"])
def test_a_time_that_is_none_is_refused(wrong, monkeypatch):
    monkeypatch.setenv("FEDCORE_TIMEOUT", wrong)
    with pytest.raises(ValueError, match=rf"FEDCORE_TIMEOUT='{wrong}' is no time; use seconds from 1 to 1e6"):
        distributed.patience()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        process(Path(sys.argv[1]))
    else:
        sys.exit(fork(int(sys.argv[2]), lambda: process(Path(sys.argv[1]))))
