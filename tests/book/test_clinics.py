"""The two clinics of the first chapters, and what may be read off a curve that was recorded at few steps."""

import re

import numpy as np
import pytest
from helpers import prose

from fedbook.documents.definitions import get
from fedbook.pictures import plots
from fedbook.results import batch
from fedbook.verdicts import overview
from tools import book

CURVATURES, OPTIMA, LR, K = np.array([1.0, 3.0]), np.array([1.0, -1.0]), 0.1, 5
L, R2, SIGMA2 = 3, 1 / 4, 9 / 4  # of the clinics from x = 0


def path(x: float) -> np.ndarray:
    """The local iterates of a round from x, `[2, K + 1]`."""
    y = [np.array([x, x])]
    for _ in range(K):
        y.append(y[-1] - LR * CURVATURES * (y[-1] - OPTIMA))
    return np.array(y).T


def bound(lr: float, steps: int, rounds: int = 100) -> tuple[float, float]:
    """The two terms of the theorem on FedAvg's convergence."""
    return 2 * R2 / (lr * steps * rounds), 5 * L * lr**2 * steps * (steps - 1) * SIGMA2


def shown(text: str, *numbers: float) -> list[str]:
    """Those of the numbers, to the four digits of the page, that a text does not say."""
    said = set(re.findall(r"-?\d+\.\d+", text.replace("−", "-")))
    return [n for n in (f"{round(number, 4):g}" for number in numbers) if n not in said]


def test_a_round_of_the_two_clinics_is_the_one_on_the_page():
    y = path(0.0)
    sums = (CURVATURES[:, None] * (y[:, :-1] - OPTIMA[:, None])).sum(1)
    assert not shown(prose("averaging"), *y[:, 1:].ravel(), y[:, -1].mean(), *sums, sums.mean())
    assert y[:, -1].mean() == pytest.approx(-LR * sums.mean())


def test_their_fixed_point_and_its_bias_are_those_on_the_page():
    x, ways = 0.0, []
    for _ in range(200):
        x = path(x)[:, -1].mean()
        ways.append(x)
    h = 1 - (1 - LR * CURVATURES) ** K
    assert x == pytest.approx(h @ OPTIMA / h.sum())
    two = 1 - (1 - LR * CURVATURES) ** 2
    text = prose("drift")
    assert not shown(text, x, *ways[:3], *(1 - h), *two)
    assert not shown(text, round(two @ OPTIMA / two.sum(), 3), round(two @ OPTIMA / two.sum() + 0.5, 3))


def test_the_bound_promises_no_gain_from_local_steps_and_the_page_does_not_either():
    one, five = (bound(1 / (6 * L * steps), steps) for steps in (1, 5))
    assert one == pytest.approx((12 * L * R2 / 100, 0))
    assert five[0] == pytest.approx(one[0])
    assert not shown(prose("drift"), one[0], round(five[1], 3))
    for steps in (2, 5, 10, 100):
        allowed = np.geomspace(1e-6, 1, 400) / (6 * L * steps)
        assert min(sum(bound(lr, steps)) for lr in allowed) >= sum(one)
    assert "does not say that local steps *help*" in prose("drift")


def test_the_numbers_of_the_price_of_a_round_are_points_of_its_curves():
    chapter = book.read(book.ROOT / "book" / "averaging.ipynb")
    (source,) = [cell.source for cell in chapter.cells if cell.id == "price"]
    given = {"get": get, "batch": batch, "overview": overview, "plots": plots, "np": np}
    exec(source, given)
    for sending in (0, 10):
        for name, said in given["over_time"](sending)[1].items():
            number, unit, steps = re.fullmatch(r"after (\d+) (gradients|rounds), K = (\d+)", name).groups()
            rounds = int(number) if unit == "rounds" else int(number) // int(steps)
            mean = given["accuracy"][f"q=0.1, K={steps}"][:, given["at"] == rounds].mean()
            assert said == f"{mean:.1f} %", name
