"""FedLC and FedNTD on a linear softmax, where the gradient of every loss at the logits has a closed form."""

from __future__ import annotations

import helpers as h
import numpy as np
import pytest

import fedcore as fc

LR, CLASSES, SIZES = 0.3, 3, (1, 3, 9)
STEP = {"rounds": 1, "lr": LR, "batch_size": None}


def softmax(logits) -> np.ndarray:
    """Row by row; a logit of minus infinity is a label that is not there."""
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def federation(**options) -> fc.Federation:
    fed = h.network(sizes=SIZES, model="logistic", classes=CLASSES, **options)
    assert fed.label_counts().tolist() == [[0, 1, 0], [0, 2, 1], [5, 1, 3]]
    return fed


def local_models(method, steps, **options) -> tuple[fc.Federation, np.ndarray]:
    """The federation, and the clients' models after these local steps from x0, `[n, classes, features + 1]`."""
    fed = federation(**options)
    _, ((_, y),) = h.watched(method, fed, local_steps=steps, **STEP)
    return fed, np.array([matrix(row) for row in y])


def matrix(flat) -> np.ndarray:
    """Weights and biases of the linear layer, `[classes, features + 1]`."""
    weight, bias = flat.numpy()[:-CLASSES], flat.numpy()[-CLASSES:]
    return np.column_stack([weight.reshape(CLASSES, -1), bias])


def data(fed, i) -> tuple[np.ndarray, np.ndarray]:
    """The client's inputs with a 1 for the bias, and its labels as rows of 0 and 1."""
    inputs, labels = h.whole(fed, i)
    return np.column_stack([inputs.flatten(1).numpy(), np.ones(len(labels))]), np.eye(CLASSES)[labels.numpy()]


@pytest.mark.parametrize("tau", [0.4, 2.0])
def test_fedlc_is_softmax_over_the_clients_labels_with_margins_and_moves_no_other_label(tau):
    fed, Y = local_models(fc.FedLC(tau), 1)
    start = matrix(fed.x0)
    for i in range(3):
        X, truth = data(fed, i)
        counts = truth.sum(0)
        logits = X @ start.T
        logits[:, counts > 0] -= tau * counts[counts > 0] ** -0.25
        logits[:, counts == 0] = -np.inf
        h.close(Y[i], start - LR * (softmax(logits) - truth).T @ X / len(X), 1e-12)
        assert np.array_equal(Y[i][counts == 0], start[counts == 0])
    h.close(Y[0], start, 1e-14)  # a client of one label has nothing to tell it from


def fedrs(fed, i, alpha) -> np.ndarray:
    """The client's model after one step from x0 by FedRS, whose loss multiplies the logits of labels that the client
    lacks by alpha; the paper takes alpha from 0 to 1."""
    X, truth = data(fed, i)
    start, scale = matrix(fed.x0), np.where(truth.sum(0) == 0, alpha, 1.0)
    return start - LR * (scale * (softmax(scale * (X @ start.T)) - truth)).T @ X / len(X)


def test_fedlc_with_tau_towards_0_is_fedrs_with_alpha_towards_minus_infinity_where_logits_are_positive():
    raised = federation().x0.clone()
    raised[-CLASSES:] += 2.0  # all logits are positive, and the softmax is what it was
    fed, calibrated = local_models(fc.FedLC(1e-14), 1, start=raised)
    plain = local_models(fc.FedAvg(), 1, start=raised)[1]
    for i in range(3):
        X, truth = data(fed, i)
        assert (X @ matrix(fed.x0).T > 0.1).all()
        h.close(fedrs(fed, i, 1.0), plain[i], 1e-12)  # its other end is FedAvg
        h.close(fedrs(fed, i, -1e3), calibrated[i], 1e-12)
        if (lacked := truth.sum(0) == 0).any():
            gaps = [np.abs(fedrs(fed, i, a) - calibrated[i]).max() for a in (0.0, -1.0, -10.0, -100.0)]
            assert gaps[0] > 0.01
            assert gaps == sorted(gaps, reverse=True)
            assert np.array_equal(calibrated[i][lacked], matrix(fed.x0)[lacked])
            assert np.array_equal(fedrs(fed, i, 0.0)[lacked], matrix(fed.x0)[lacked])  # 1 stays in the denominator


@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.7, 3.0)])
def test_fedntd_pulls_the_other_labels_to_the_servers_and_not_the_samples_own(beta, tau):
    fed, Y = local_models(fc.FedNTD(beta, tau), 2)
    start = matrix(fed.x0)
    for i in range(3):
        X, truth = data(fed, i)

        def others(M, X=X, truth=truth):
            return softmax(np.where(truth == 1, -np.inf, X @ M.T / tau))

        y = start.copy()
        for _ in range(2):  # the first step is FedAvg's, where both models agree
            slope = softmax(X @ y.T) - truth + beta / tau * (others(y) - others(start))
            y = y - LR * slope.T @ X / len(X)
        h.close(Y[i], y, 1e-12)
