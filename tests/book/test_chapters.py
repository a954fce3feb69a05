"""Every chapter, re-run small, gives the numbers that are stored; and would not, were a rule wrong by one per cent."""

import re

import pytest

from tools import book, chapter_runs, expect, planted, structure

CHAPTERS = [source.stem for source in book.chapters()]

# Errors in code that no method of the fingerprint below runs: chapter, the tag of the cell that sees it (None: any of
# its cells), and the error.
ERRORS = [
    ("fedgse", "exact", ("masks.backward", "dh[0] * (before > 0)", "dh[0]")),  # this and the next: what is proved there
    ("fedgse", "exact", ("masks.gaps", "(a - c, b - d) for (a, b)", "(a + c, b + d) for (a, b)")),
    ("report", "again", ("FedUp", "self.alpha / r.lr", "1.01 * self.alpha / r.lr")),
    ("engine", None, ("Linear", "s.put(self.bias, e.sum(1))", "s.put(self.bias, 1.01 * e.sum(1))")),
]

# One per cent in a rule of every method, in rounds of errors that do not meet: each turns the numbers of its methods in
# the fingerprint of the comparison, the last entry or what has it in front of a comma.
ROUNDS = [
    [
        ("FedAvg", "self.server_momentum * r.v", "1.01 * self.server_momentum * r.v", "FedAvg, server momentum"),
        ("FedProx", "self.mu * (y", "1.01 * self.mu * (y", "FedProx"),
        ("FedUp", "self.alpha / r.lr", "1.01 * self.alpha / r.lr", "FedUp"),
        ("FedSplit", "2 * r.x - r.z_i", "2 * r.x - 1.01 * r.z_i", "FedSplit"),
        ("SCAFFOLD", "G(y) - r.c_i + r.c", "G(y) - 1.01 * r.c_i + r.c", "SCAFFOLD"),
        ("FedDyn", "self.alpha * (y", "1.01 * self.alpha * (y", "FedDyn"),
        ("FedDC", "self.alpha * (y", "1.01 * self.alpha * (y", "FedDC"),
        ("FedPVR", "G(y) - r.c_i + r.c", "G(y) - 1.01 * r.c_i + r.c", "FedPVR"),
        ("MimeLite.direction", "+ self.beta * r.s", "+ 1.01 * self.beta * r.s", "MimeLite"),
        ("Mime", "G(r.x.expand_as(y)) + r.C", "G(r.x.expand_as(y)) + 1.01 * r.C", "Mime"),
        ("STEM", "(r.d_i - G(r.y_prev))", "(r.d_i - 1.01 * G(r.y_prev))", "STEM"),
        ("MOON", "self.mu * F.softplus", "1.01 * self.mu * F.softplus", "MOON"),
        ("FedSAM", "ascent(G(y), self.rho)", "ascent(G(y), 1.01 * self.rho)", "FedSAM"),
        ("FedSMOO", "ascent(G(y) - r.mu - r.s, self.rho)", "ascent(G(y) - r.mu - r.s, 1.01 * self.rho)", "FedSMOO"),
        ("DPSGD", "(y - X)", "1.01 * (y - X)", "DPSGD"),
        ("DFedAvgM", "momentum=self.momentum", "momentum=1.01 * self.momentum", "DFedAvgM"),
        ("DFedGAM", "ascent(G(y, along=g), self.rho)", "ascent(G(y, along=g), 1.01 * self.rho)", "DFedGAM"),
        ("FedBN", "torch.where(r.bn, y, 0)", "torch.where(r.bn, 1.01 * y, 0)", "FedBN"),
        ("FedALA", "self.lr * g[:, top] * D", "1.01 * self.lr * g[:, top] * D", "FedALA"),
        ("FjORD", "part.take(v) + small.gradient", "part.take(v) + 1.01 * small.gradient", "FjORD"),
        ("DepthFL", "self.alpha * (y", "1.01 * self.alpha * (y", "DepthFL"),
        ("PlatformSCAFFOLD", "c_plus / r.n", "1.01 * c_plus / r.n", "shipped SCAFFOLD"),
        ("PlatformFedDyn", "self.alpha * r.sum", "1.01 * self.alpha * r.sum", "shipped FedDyn"),
        # rules that choose have no size: the next choice instead
        ("FedRolex", "- r.t)", "- r.t - 1)", "FedRolex"),
        ("FederatedDropout", "return noise(r, neurons)", "return [-u for u in noise(r, neurons)]", "FederatedDropout"),
        ("FedDSE", "return H\n", "return [-h for h in H]\n", "FedDSE"),
        ("FedGSE", ".sum(2) for h in D", ".sum(2).neg() for h in D", "FedGSE"),
    ],
    [
        ("FedUp", "self.alpha * (y", "1.01 * self.alpha * (y", "FedUp"),
        ("SCAFFOLD", "r.sum(c_i - r.c_i) / r.n", "1.01 * r.sum(c_i - r.c_i) / r.n", "SCAFFOLD"),
        ("FedDyn", "r.sum(delta) / r.n", "1.01 * r.sum(delta) / r.n", "FedDyn"),
        ("FedDC", "r.sum(c_i - r.c_i) / r.n", "1.01 * r.sum(c_i - r.c_i) / r.n", "FedDC"),
        ("FedSplit", "2 * (y - r.x)", "2.02 * (y - r.x)", "FedSplit"),
        ("MimeLite", "(1 - self.beta) * C", "1.01 * (1 - self.beta) * C", "MimeLite"),
        ("Mime.direction", "+ self.beta * r.s", "+ 1.01 * self.beta * r.s", "Mime"),
        ("STEM", "(r.d_i - r.gradient(", "(1.01 * r.d_i - r.gradient(", "STEM"),
        ("FedSMOO", "ascent(r.mean(r.mu), self.rho)", "ascent(r.mean(r.mu), 1.01 * self.rho)", "FedSMOO"),
        ("DFedSAM", "y = W @ y", "y = y + 1.01 * (W @ y - y)", "DFedSAM"),
        ("DFedGAM", "self.alpha * self.rho", "1.01 * self.alpha * self.rho", "DFedGAM, gam"),
        ("FedALA", "theta_i + D * W[:, top])", "theta_i + 1.01 * D * W[:, top])", "FedALA"),
        ("DepthFL", "math.exp(-5 *", "1.01 * math.exp(-5 *", "DepthFL"),
    ],
    [
        ("FedPVR", "r.sum(c_i - r.c_i) / r.n", "1.01 * r.sum(c_i - r.c_i) / r.n", "FedPVR"),
        ("FedDC", "r.h_i) - r.c_i", "r.h_i) - 1.01 * r.c_i", "FedDC"),
        ("DFedGAM", "self.beta1 * g1", "1.01 * self.beta1 * g1", "DFedGAM, accelerated"),
        ("Gossip", "W @ y", "y + 1.01 * (W @ y - y)", "DFedAvg"),
        ("combine", "server_lr * mean, x)", "1.01 * server_lr * mean, x)", "HeteroFL"),
        ("FedAvg", "r.server_lr * delta", "1.01 * r.server_lr * delta", "FedAvg"),
        ("FedAdagrad", "return v + delta**2", "return v + 1.01 * delta**2", "FedAdagrad"),
        ("FedAdam", "return self.beta2 * v", "return 1.01 * self.beta2 * v", "FedAdam"),
        ("FedYogi", "(1 - self.beta2) * delta**2", "1.01 * (1 - self.beta2) * delta**2", "FedYogi"),
        ("FedNova", "(y - r.x) / a", "(y - r.x) / a**1.01", "FedNova"),
        ("FedExP", "(2 * (", "(2.02 * (", "FedExP"),
        ("FedCM", "self.alpha * G(y)", "1.01 * self.alpha * G(y)", "FedCM"),
        ("MoFedSAM", "(1 - self.beta) * r.Delta", "1.01 * (1 - self.beta) * r.Delta", "MoFedSAM"),
        ("FedGamma", "- r.c_i + r.c", "- 1.01 * r.c_i + r.c", "FedGamma"),
        ("FedSpeed", "self.alpha * g_2", "1.01 * self.alpha * g_2", "FedSpeed"),
        ("FedPer", "torch.where(r.top, y, 0)", "torch.where(r.top, 1.01 * y, 0)", "FedPer"),
        ("FedRep", "self.share * r.K - 1e-3", "self.share * r.K - 1", "FedRep"),  # whole steps: one less
        ("Ditto", "self.lam * (r.v", "1.01 * self.lam * (r.v", "Ditto"),
        ("pFedMe", "return self.lam * (y", "return 1.01 * self.lam * (y", "pFedMe"),
        ("LocalOnly", '"x_i": y', '"x_i": 1.01 * y', "LocalOnly"),
        ("Federation.pooled", "np.sort(d.parts.rows)", "np.sort(d.parts.rows)[1:]", "Central"),
    ],
    [
        ("Method", "r.server_lr * r.mean(y - r.x)", "1.01 * r.server_lr * r.mean(y - r.x)", "FedSGD"),
        ("Method", "return G(y)", "return 1.01 * G(y)", "FedSMB"),
        ("PlatformSCAFFOLD", "r.clients.argmax()", "r.clients.argmin()", "shipped SCAFFOLD"),
        ("FedBN", "torch.where(r.bn, r.bn_i, r.x)", "torch.where(r.bn, r.x, r.x)", "FedBN"),
    ],
    [("local_steps", "enumerate(r.plan.working)", "enumerate(r.plan.working[:-1])", "FedProx")],
]  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    """Job -> what it records, for all jobs of this file: one process imports the libraries for all of them."""
    jobs = [chapter_runs.Job(chapter) for chapter in CHAPTERS]
    jobs += [chapter_runs.Job(chapter, (error,), only) for chapter, only, error in ERRORS]
    jobs += [chapter_runs.Job("comparison", errors_of(errors), only="fingerprint") for errors in ([], *ROUNDS)]
    jobs += [chapter_runs.Job("fedgse", (), only="exact"), chapter_runs.Job("report", (), only="again")]
    return dict(zip(jobs, chapter_runs.records(jobs), strict=True))


def errors_of(errors):
    return tuple(error[:3] for error in errors)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_gives_the_stored_numbers(recorded, chapter):
    assert not expect.deviations(chapter, recorded[chapter_runs.Job(chapter)])


@pytest.mark.parametrize(("chapter", "only", "error"), ERRORS)
def test_chapter_turns_red_when_what_it_computes_is_wrong(recorded, chapter, only, error):
    wrong = recorded[chapter_runs.Job(chapter, (error,), only)]
    assert isinstance(wrong, dict), wrong
    assert expect.deviations(chapter, wrong, only)


@pytest.mark.parametrize("errors", ROUNDS)
def test_every_method_has_a_number_that_one_per_cent_changes(recorded, errors):
    numbers = recorded[chapter_runs.Job("comparison", errors_of(errors), only="fingerprint")]
    assert isinstance(numbers, dict), numbers
    changed = expect.deviations("comparison", numbers, only="fingerprint")
    unseen = [
        f"{name}: {wrong}"
        for name, _, wrong, number in errors
        if not any(re.match(rf"fingerprint/{number}(,| is )", line) for line in changed)
    ]
    assert not unseen


@pytest.mark.parametrize(("chapter", "only"), [("comparison", "fingerprint"), ("fedgse", "exact"), ("report", "again")])
def test_a_cell_alone_gives_what_it_gives_in_its_chapter(recorded, chapter, only):
    assert not expect.deviations(chapter, recorded[chapter_runs.Job(chapter, (), only)], only)


def test_a_deviation_is_what_one_per_cent_makes_and_rounding_does_not(monkeypatch, tmp_path):
    (tmp_path / "tests" / "expected").mkdir(parents=True)
    (tmp_path / "tests" / "expected" / "a.json").write_text('{"loss": 0.25, "noise": 1e-16, "rounds": 12}')
    monkeypatch.setattr(expect, "ROOT", tmp_path)
    right = {"loss": 0.25001, "noise": 3e-12, "rounds": 12.0}
    assert expect.deviations("a", right) == []
    assert expect.deviations("a", right | {"loss": 0.2525}) == ["loss is 0.2525, stored: 0.25"]
    assert expect.deviations("a", right | {"rounds": 13}) == ["rounds is 13, stored: 12"]
    assert expect.deviations("a", right | {"more": 1}) == ["more is recorded, but not stored: run tools/expect.py"]
    assert expect.deviations("a", {"loss": 0.25, "rounds": 12}) == ["noise is no longer recorded"]
    assert len(expect.deviations("a", "Traceback")) == 1


def test_a_planted_error_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(LookupError, match=r"FedAvg: 'no such text' stands there 0 times"):
        chapter_runs.plant(tmp_path / "package", [("FedAvg", "no such text", "")])


def test_every_planted_error_fits_the_source_and_names_a_file_of_tests():
    """Else `python -m tools.planted` could no longer be run."""
    errors = planted.table()
    assert len(set(errors)) == len(errors) >= 203
    for error in errors:
        file, text = planted.planted(error)
        assert text != file.read_text(), error
        assert error.tests, error
        assert any((structure.ROOT / "tests").rglob(error.tests)), error


def test_a_solution_takes_the_place_of_what_is_to_be_written_and_must_be_right():
    """Every exercise in code is checked so by its chapter's small run."""
    cell = "def twice(x):\n    return x  # change this\n\n\nprint('right' if twice(3) == 6 else 'not yet')\n"
    right = "def twice(x):\n    return 2 * x\n"
    assert chapter_runs.solved(cell, right) == right + "\n\nprint('right' if twice(3) == 6 else 'not yet')\n"
    chapter_runs.check_solution(cell, right, {}, "here")
    with pytest.raises(ValueError, match=r"here prints 'not yet', expected 'right'"):
        chapter_runs.check_solution(cell, right.replace("2", "3"), {}, "here")
    with pytest.raises(ValueError, match=r"prints 'right', expected 'not yet'"):
        chapter_runs.check_solution(cell.replace("return x ", "return 2 * x"), right, {}, "here")
    with pytest.raises(ValueError, match="the solution defines thrice, the exercise twice"):
        chapter_runs.solved(cell, right.replace("twice", "thrice"))
    with pytest.raises(ValueError, match="cell a is an exercise, but"):
        chapter_runs.solution_of({"id": "a"}, [{"id": "a"}, {"id": "b", "cell_type": "markdown", "source": ["text"]}])


def test_a_chapter_runs_small_in_a_kernel_too(tmp_path):
    run = book.run_chapter(book.ROOT / "book" / "engine.ipynb", chapter_runs.PARAMETERS, output=tmp_path / "out.ipynb")
    assert not expect.deviations("engine", chapter_runs.flat(run.numbers))
