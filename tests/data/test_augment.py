"""Crop and flip, and augmentation by a function of one's own: the same for any chunk, path and resumed run."""

from __future__ import annotations

import itertools

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedcore as fc
from fedcore import rng

X, Y = h.images(90, (3, 6, 5), 3)
MINI = {"rounds": 2, "lr": 0.1, "batch_size": 7, "local_epochs": 2}


def fed(augment, **options) -> fc.Federation:
    settings = {"clients": 4, "partition": fc.Dirichlet(0.5), "model": "logistic", "dtype": torch.float64}
    return fc.federation((X, Y), augment=augment, **settings | options)


def noisy(images, generator):
    """Draws for the whole batch at once, so that a batch of others would be drawn otherwise."""
    images += torch.randint(0, 9, images.shape, dtype=torch.uint8, generator=generator)
    return images.flip(3) if torch.rand((), generator=generator) < 0.5 else images


def test_crop_and_flip_is_a_window_of_the_padded_image_mirrored_half_the_time():
    x, words = torch.as_tensor(X), rng.words(0, np.arange(len(X)))
    out, seen = fc.CropFlip(2)(x, words), set()
    for image, got in zip(F.pad(x, (2, 2, 2, 2)), out, strict=True):
        windows = {
            (a, b, flip): window.flip(2) if flip else window
            for a in range(5) for b in range(5) for flip in (False, True)
            for window in [image[:, a : a + 6, b : b + 5]]
        }  # fmt: skip
        found = [at for at, window in windows.items() if torch.equal(window, got)]
        assert len(found) == 1
        seen |= set(found)
    assert {at[0] for at in seen} == {at[1] for at in seen} == set(range(5))
    assert {at[2] for at in seen} == {False, True}
    assert torch.equal(fc.CropFlip(2)(x[5:9], words[5:9]), out[5:9])
    assert torch.equal(fc.CropFlip(0, flip=False)(x, words), x)


@pytest.mark.parametrize(("augment", "run"), [
    (fc.CropFlip(2), MINI), (fc.RandAugment(), MINI), (noisy, MINI), (noisy, {**MINI, "batch_size": None}),
])  # fmt: skip
def test_what_a_client_sees_depends_on_seed_round_client_and_step_alone(augment, run, monkeypatch):
    plain, whole = fed(None), fed(augment)
    wanted = fc.simulate(fc.SCAFFOLD(), whole, **run)
    assert not torch.equal(wanted.params, fc.simulate(fc.SCAFFOLD(), plain, **run).params)
    for other in (fed(augment, path="sequential"), fed(augment, path="batched"), fed(augment, block=1)):
        h.close(fc.simulate(fc.SCAFFOLD(), other, **run).params, wanted.params, 1e-9)
    monkeypatch.setattr("fedcore.support.memory.free", lambda device: 40_000)
    with pytest.warns(UserWarning, match="at a time"):
        chunked = fc.simulate(fc.SCAFFOLD(), whole, **run)
    h.close(chunked.params, wanted.params, 1e-9)


@pytest.mark.parametrize("augment", [fc.CropFlip(2), fc.RandAugment(), noisy])
def test_another_seed_round_client_or_step_sees_the_same_images_augmented_anew(augment):
    source = {"train_images": np.concatenate([X, X]), "train_labels": np.tile(Y, 2), "test_images": X, "test_labels": Y}
    made = fc.federation(
        source | {"train_owner": np.repeat([0, 1], 90)}, partition=fc.ByOwner(), model="logistic", augment=augment
    )
    seen = [
        made.batch(made.plan(seed, t, np.array([client]), steps=2, batch_size=90), k).x.sort(1).values  # in any order
        for seed, t, client, k in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    ]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(seen, 2))


def test_a_run_with_a_function_of_ones_own_is_the_plain_loop_with_it():
    made = fed(noisy, clients=1, partition=None)
    history = fc.simulate(fc.FedAvg(), made, rounds=2, lr=0.1, batch_size=20, local_steps=2, seed=5)
    w = made.x0.clone()
    for t in range(2):
        plan = made.plan(5, t, np.arange(1), steps=2, batch_size=20)
        for k in range(2):
            generator = torch.Generator().manual_seed(int(rng.words(plan.keys, rng.AUGMENT, k, 0)[0]) & (2**63 - 1))
            rows = plan.indices[k, 0]
            x = made.inputs(noisy(made.x[rows].clone(), generator)).flatten(1)
            W, b = (part.requires_grad_() for part in (w[:270].view(3, 90).clone(), w[270:].clone()))
            F.cross_entropy(x @ W.T + b, made.y[rows]).backward()
            w = w - 0.1 * torch.cat([W.grad.flatten(), b.grad])
    h.close(history.params, w, 1e-12)


def test_the_function_is_part_of_a_federations_identity():
    prints = [fed(a).fingerprint() for a in (None, noisy, lambda x, g: x // 2, fc.CropFlip(2), fc.CropFlip(3))]
    assert len(set(prints)) == len(prints)
    assert fed(noisy).fingerprint() == fed(noisy).fingerprint()
    assert fed(noisy).augment is noisy
    assert fed(fc.CropFlip(2)).augment == fc.CropFlip(2)


@pytest.mark.parametrize(("augment", "exception", "words"), [
    (lambda x, g: x[:1], ValueError, "return uint8 images of shape"), (lambda x, g: x.float(), ValueError, "float32"),
    (lambda x, g: None, ValueError, "NoneType"),
    (lambda x: x, ValueError, r"\(images \[N, C, H, W\], generator\) -> images"),
    (lambda x, g: x.flip(3) if torch.rand(()) < 0.5 else x, ValueError, "another generator"),
    (lambda x, g: x + np.random.default_rng().integers(200), ValueError, "another generator"),
    (fc.RandAugment, TypeError, "fc.CropFlip"), ("crop", TypeError, "fc.CropFlip"),
])  # fmt: skip
def test_a_function_that_gives_no_images_or_draws_elsewhere_is_refused(augment, exception, words):
    state = torch.get_rng_state()
    with pytest.raises(exception, match=words):
        fed(augment)
    assert torch.equal(torch.get_rng_state(), state)


def test_bytes_are_used_as_they_are_where_that_is_asked_for():
    made = fed(None, normalise="none")
    assert torch.equal(made.inputs(made.x), made.x.double())
    history = fc.simulate(fc.FedAvg(), made, rounds=1, lr=1e-5)
    module = made.module(history.params)
    logits = module.network(made.test[0].double())
    assert torch.equal(module(made.test[0]), logits)
    h.close(made.evaluate(history.params)["loss"], F.cross_entropy(logits, made.test[1]), 1e-9)
