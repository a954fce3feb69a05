"""Feature shift: whose statistics, which augmentation, and what a client keeps of its own model."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections import OrderedDict

import helpers as h
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedcore as fc
from fedbook.studies.from_spec import build_federation, build_method
from fedbook.studies.personal import domains
from fedcore import models, rng
from fedcore.algorithms import personal
from fedcore.data import clients
from fedcore.data.augment import OPERATIONS, SIGNED

RUN = {"rounds": 3, "lr": 0.1, "batch_size": 4, "seed": 2}


def normed(shape, classes) -> nn.Module:
    """A small network whose batch norm no name gives away."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3 * shape[1] * shape[2], 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, classes),
    )  # fmt: skip


def shifted(sizes=(14, 8, 20, 4, 10), shape=(3, 4, 4), model=normed, test_owner=True, pixels=np.uint8, **options):
    """Clients whose images differ in brightness and contrast; every domain has six test images."""
    n = len(sizes)
    owner = np.repeat(np.arange(n), sizes)
    x, y = h.images(sum(sizes), shape, 3)
    tx, ty = h.images(6 * n, shape, 3, seed=1)
    t_owner = np.repeat(np.arange(n), 6)
    look = lambda x, o: (x.T * (0.2 + 0.15 * o) + 8 * o).T.astype(pixels)  # noqa: E731
    arrays = {"train_images": look(x, owner), "train_labels": y, "test_images": look(tx, t_owner), "test_labels": ty}
    arrays |= {"train_owner": owner} | ({"test_owner": t_owner} if test_owner else {})
    options = {"dtype": torch.float64, "device": "cpu"} | options
    return fc.federation(arrays, partition=fc.ByOwner(), model=model, **options)


# --- channel-personalised normalisation ---------------------------------------------------------------------------


def own_inputs(fed, i):
    return fed.inputs(fed.x[torch.as_tensor(fed.index[i])], i)


def test_a_sample_of_two_clients_is_normalised_as_that_of_the_client_whose_loss_is_taken(monkeypatch):
    class Over:
        overlapping = True

        def split(self, labels, clients, rng, owner):
            return [np.arange(8, 24), np.arange(0, 16)]

    x, y = h.images(30, (3, 4, 4), 3)
    x[:8] //= 4
    fed = fc.federation(((x, y), (x, y)), 2, Over(), normed, normalise="client", dtype=torch.float64)
    monkeypatch.setattr(clients, "EVAL_CHUNK", 7)
    inputs = [own_inputs(fed, i) for i in range(2)]
    for i in range(2):
        h.close(torch.cat([part for part, _ in fed.data.train_chunks(i)]), inputs[i], 1e-12)
    nets = [fed.module(fed.x0, client=i).network for i in range(2)] + [fed.module(fed.x0).network]
    for net, seen in zip(nets, (*inputs, torch.cat(inputs)), strict=True):
        h.close(net[1].running_mean, net[0](seen).mean((0, 2, 3)), 1e-9)
    each = [F.cross_entropy(nets[2](inputs[i]), fed.y[torch.as_tensor(fed.index[i])]) for i in range(2)]
    h.close(fed.objective(fed.x0), torch.stack(each).mean(), 1e-9)


def test_a_constant_channel_has_std_0_which_counts_as_1():
    x, y = h.images(40, (3, 4, 4), 2)
    x[:, 1] = 37
    fed = fc.federation((x, y), clients=2, model="logistic", normalise="client", dtype=torch.float64)
    assert (own_inputs(fed, 0)[:, 1] == 0).all()


def test_half_maps_the_pixel_range_to_minus_one_and_one():
    fed = shifted(normalise="half")
    h.close(fed.inputs(torch.tensor([0, 255], dtype=torch.uint8)).flatten(), [-1, 1], 1e-15)


def test_a_batch_of_all_clients_gets_each_clients_own_statistics():
    fed = shifted(normalise="client")
    plan = fed.plan(0, 0, np.arange(fed.n), batch_size=4)
    Y = fed.x0.expand(fed.n, -1).clone()
    G = fed.gradient(Y, plan, 0)
    module = fed.engine.module.train()
    for row, i in enumerate(plan.clients):
        rows = plan.indices[0, row, : plan.counts[0, row]]
        own = fed.x[torch.as_tensor(fed.index[i])].double()
        mean, std = own.mean((0, 2, 3)), own.std((0, 2, 3), correction=0)
        x = (fed.x[rows].double() - mean[:, None, None]) / std[:, None, None]
        h.close(G[row], h.gradient(module, Y[row], x, fed.y[rows]), 1e-10)


def test_the_three_readings_of_a_foreign_image_are_own_target_and_pooled():
    fed = shifted(normalise="client")
    x, tested = fed.source.train_x.astype(float), fed.source.test_x.astype(float)
    stats = lambda part: (part.mean((0, 2, 3))[:, None, None], part.std((0, 2, 3))[:, None, None])  # noqa: E731
    owner, t_owner = fed.source.train_owner, fed.source.test_owner
    expected = {
        "own": [stats(x[owner == 2])] * len(tested),
        "target": [stats(x[owner == o]) for o in t_owner],
        "pooled": [stats(x)] * len(tested),
    }
    for reading, rows in expected.items():
        inputs = torch.cat([x for x, _ in fed.data.test_chunks(reading, 2)])
        truth = np.stack([(t - m) / s for t, (m, s) in zip(tested, rows, strict=True)])
        h.close(inputs, truth, 1e-12)


def test_a_domain_without_training_images_is_read_by_its_test_images_and_the_server_by_target():
    s = shifted().source
    keep = s.train_owner < 3
    fed = fc.federation(
        {"train_images": s.train_x[keep], "train_labels": s.train_y[keep], "test_images": s.test_x,
         "test_labels": s.test_y, "train_owner": s.train_owner[keep], "test_owner": s.test_owner},
        partition=fc.ByOwner(), model=normed, normalise="client", dtype=torch.float64,
    )  # fmt: skip
    inputs = torch.cat([x for x, _ in fed.data.test_chunks("target")])[torch.as_tensor(s.test_owner == 4)]
    h.close(inputs.mean((0, 2, 3)), torch.zeros(3), 1e-12)
    seen = [float(fed.evaluate(fed.x0, *reading)["loss"]) for reading in ((), ("target",), ("pooled",))]
    assert seen[0] == seen[1] != seen[2]
    with pytest.raises(ValueError, match="reading='own'"):
        fed.evaluate(fed.x0, "own")


@pytest.mark.parametrize("once", [True, False])
def test_statistics_are_those_before_augmentation(once):
    plain, augmented = (shifted(normalise="client", augment=a) for a in (None, fc.RandAugment(once=once)))
    assert torch.equal(plain.data.statistics, augmented.data.statistics)


def test_clients_models_are_evaluated_with_their_own_statistics_of_pixels_and_of_batch_norm():
    fed = shifted(normalise="client")
    X = fed.x0 + 0.1 * torch.randn(fed.n, fed.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = fed.evaluate_clients(X)
    for i in range(fed.n):
        net = normed((3, 4, 4), 3).double().train()
        nn.utils.vector_to_parameters(X[i], net.parameters())
        net[1].momentum = net[5].momentum = None
        net(own_inputs(fed, i))  # one chunk: the statistics of its own training data
        logits = net.eval()(fed.inputs(fed.test[0], i))
        hits = (logits.argmax(1) == fed.test[1]).double()
        h.close(got["accuracy"][i], hits.mean(), 0)
        h.close(got["loss"][i], F.cross_entropy(logits, fed.test[1]), 1e-10)
        h.close(got["own_accuracy"][i], hits[torch.as_tensor(fed.source.test_owner == i)].mean(), 0)
    assert {"accuracy_target", "accuracy_pooled"} < got.keys()


def test_units_are_scored_on_each_clients_own_statistics():
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 3))
    fed = shifted(normalise="client", model=net)
    weight, bias, *_ = fed.layout.views(fed.x0).values()
    for i, seen in enumerate(fed.activations(fed.x0, np.arange(fed.n))[0]):
        h.close(seen, (own_inputs(fed, i).flatten(1) @ weight.T + bias).relu().mean(0), 1e-10)


# --- RandAugment --------------------------------------------------------------------------------------------------


def pictures(n: int, channels: int = 3, size: tuple[int, int] = (12, 12)) -> torch.Tensor:
    return torch.as_tensor(h.images(n, (channels, *size), 5)[0])


@pytest.mark.parametrize("size", [(12, 12), (10, 18)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("magnitude", [3, 10])
def test_magnitude_m_is_bin_m_of_11_of_torchvision(magnitude, channels, size):
    from torchvision.transforms.v2 import InterpolationMode, RandAugment

    tv, ours = RandAugment(magnitude=magnitude, num_magnitude_bins=11), fc.RandAugment(magnitude=magnitude)
    x = pictures(4, channels, size)
    assert set(OPERATIONS) == set(tv._AUGMENTATION_SPACE)
    for name, (bins, signed) in tv._AUGMENTATION_SPACE.items():
        values = bins(11, *size)
        value = 0.0 if values is None else float(values[magnitude])
        assert (name in SIGNED) == signed
        for negative in (False, True) if signed else (False,):
            theirs = tv._apply_image_or_video_transform(
                x, name, -value if negative else value, interpolation=InterpolationMode.NEAREST, fill=tv._fill
            )
            gap = (ours.operation(name, negative, size)(x).int() - theirs.int()).abs().max()
            # its bins are float32: 0.27 is not 0.27; without a fused multiply-add its blends are off by a bit too
            assert gap <= (magnitude == 3 or name in ("Color", "Contrast")), (name, negative)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("name", ["Color", "Contrast"])
def test_a_blend_rounds_the_product_and_then_the_sum_on_every_processor(name, negative):
    from torchvision.transforms.v2 import functional as F

    x, factor = pictures(50), 0.1 if negative else 1.9
    other = F.rgb_to_grayscale(x).numpy().astype(np.float32)
    other = other if name == "Color" else other.mean((1, 2, 3), keepdims=True)
    product = np.float32(factor) * x.numpy().astype(np.float32)
    total = (product.astype(np.float64) + np.float64(np.float32(1 - factor)) * other).astype(np.float32)
    blended = fc.RandAugment().operation(name, negative, (12, 12))(x)
    assert np.array_equal(blended.numpy(), total.clip(0, 255).astype(np.uint8))


def test_operations_and_signs_are_drawn_uniformly_and_the_two_slots_independently():
    n = 40_000
    operation, negative = fc.RandAugment().draws(rng.words(0, rng.AUGMENT, np.arange(n)))
    assert operation.shape == negative.shape == (2, n)
    pairs = np.bincount(14 * operation[0] + operation[1], minlength=196)  # 196 sequences, repetition included
    chi2 = ((pairs - n / 196) ** 2 / (n / 196)).sum()
    assert abs(chi2 - 195) < 6 * math.sqrt(2 * 195)
    for slot in range(2):
        for k in range(14):
            share, of = negative[slot][operation[slot] == k], (operation[slot] == k).sum()
            expected = 0.5 if OPERATIONS[k] in SIGNED else 0
            assert abs(share.mean() - expected) <= 6 * 0.5 / math.sqrt(of) * (expected > 0)


def test_a_batch_is_one_image_at_a_time_through_exactly_two_operations():
    a, x = fc.RandAugment(), pictures(200)
    before, words = x.clone(), rng.words(3, rng.AUGMENT, np.arange(200))
    out = a(x, words)
    assert torch.equal(x, before)
    assert out.dtype == torch.uint8
    for i, (ops, signs) in enumerate(zip(*(part.T for part in a.draws(words)), strict=True)):
        image = x[i : i + 1]
        for k, sign in zip(ops, signs, strict=True):
            image = a.operation(OPERATIONS[k], bool(sign), (12, 12))(image)
        assert torch.equal(image, out[i : i + 1])


def test_once_expands_each_clients_data_by_one_augmented_copy_of_every_image():
    fed, again, other = (shifted(augment=fc.RandAugment(once=True), seed=seed) for seed in (0, 0, 1))
    plain = shifted()
    for i in range(fed.n):
        (old, labels), (new, both) = ((f.x[part], f.y[part]) for f in (plain, fed) for part in [f.index[i]])
        assert torch.equal(new[: len(old)], old)
        assert not torch.equal(new[len(old) :], old)
        assert torch.equal(both, labels.repeat(2))
    assert (fed.label_counts() == 2 * plain.label_counts()).all()
    assert torch.equal(again.x, fed.x)
    assert not torch.equal(other.x, fed.x)


def test_public_data_leave_normalisation_and_augmentation_alone():
    fed = shifted(normalise="client", augment=fc.RandAugment(once=True))
    rest = fed.set_aside(2)
    assert (rest.normalise, rest.augment) == (fed.normalise, fed.augment)
    assert rest.sizes.sum() == 2 * (len(fed.source.train_y) - 6)


# --- FedBN --------------------------------------------------------------------------------------------------------


def test_without_batch_norm_fedbn_is_fedavg_bit_for_bit():
    fed, run = h.network(), RUN | {"cohort": 3, "server_lr": 0.7}
    with pytest.warns(UserWarning, match="without batch norm is FedAvg"):
        assert torch.equal(*(fc.simulate(m, fed, **run).params for m in (fc.FedBN(), fc.FedAvg())))


def test_a_fedbn_clients_model_is_the_servers_with_its_own_batch_norm():
    fed, method = shifted(), fc.FedBN()
    history = fc.simulate(method, fed, **RUN)
    bn = torch.zeros(fed.d, dtype=torch.bool)
    for name, place in zip(fed.layout.names, fed.layout.slices, strict=True):
        bn[place] = name[0] in "15"
    X = method.personal(history.state, fed.layout)
    assert torch.equal(X[:, ~bn], history.params[~bn].expand(fed.n, -1))
    assert torch.equal(X[:, bn], history.state["bn_i"][:, bn])


# --- FixBN --------------------------------------------------------------------------------------------------------


def fixable(exploration, **options):
    """The method, and clients of equal size on a network whose norms it can fix."""
    method = fc.FixBN(exploration)
    return method, method.on(shifted(sizes=(8,) * 4, **options))


def test_while_it_explores_fixbn_is_fedavg_and_without_batch_norm_it_always_is():
    (method, fed), plain, run = fixable(3), shifted(sizes=(8,) * 4).forced("batched"), RUN | {"rounds": 2}
    a, b = fc.simulate(method, fed.forced("batched"), **run), fc.simulate(fc.FedAvg(), plain, **run)
    assert torch.equal(a.params[fed.trained], b.params)
    assert a.final("loss") == pytest.approx(b.final("loss"), rel=1e-12)
    with pytest.warns(UserWarning, match="without batch norm is FedAvg"):
        assert torch.equal(*(fc.simulate(m, h.network(), **RUN).params for m in (fc.FixBN(1), fc.FedAvg())))


def test_thm_fixbn():
    """One full step with fixed statistics is a step on the pooled data, and one with batch norm is not."""
    method, fed = fixable(1, normalise="pooled")
    step = {"local_steps": 1, "batch_size": None, "lr": 0.1}
    state = fc.start(method, fed)
    for t, alike in enumerate((False, True)):
        one, pooled = state["x"][None], fed.pooled()
        G = pooled.full_gradient(one, pooled.plan(0, t, np.arange(1), batch_size=None))[0]
        after, _ = fc.one_round(method, fed, state, t, **step)
        gap = (after["x"] - state["x"] + 0.1 * G)[fed.trained].abs().max() / (0.1 * G).abs().max()
        assert gap < 1e-12 if alike else gap > 1e-2
        state = after


def test_an_evaluation_uses_the_fixed_statistics_whatever_the_training_data():
    method, fed = fixable(1)
    x = fc.simulate(method, fed, **RUN).params
    network = normed((3, 4, 4), 3).double().eval()
    named = {k.replace("fixed", "running"): v for k, v in fed.layout.views(x).items()}
    network.load_state_dict(named, strict=False)  # but for the numbers of batches
    inputs, labels = fed.inputs(fed.test[0]), fed.test[1]
    assert fed.evaluate(x)["accuracy"] == (network(inputs).argmax(1) == labels).double().mean()
    exported = fed.module(x).network.state_dict()  # to be loaded into the user's class
    assert all(torch.equal(exported[name], value) for name, value in named.items())
    clients = fed.evaluate_clients(x.expand(4, -1))["loss"]
    h.close(clients, clients[:1].expand(4), 1e-12)


def test_fixbn_resumes_to_the_bit(tmp_path):
    method, fed = fixable(2)
    whole = fc.simulate(method, fed, **RUN | {"rounds": 4})
    for rounds in (1, 3, 4):
        part = fc.simulate(method, fed, **RUN | {"rounds": rounds}, checkpoint_dir=tmp_path)
    assert torch.equal(part.params, whole.params)
    assert method.on(fed) is fed


def test_fixbn_names_a_norm_that_it_cannot_fix():
    with pytest.raises(ValueError, match="FixBN cannot fix the statistics of SyncBatchNorm"):
        fixable(1, model=lambda shape, classes: nn.Sequential(normed(shape, classes), nn.SyncBatchNorm(classes)))


def test_statistics_are_found_by_kind_whatever_a_norm_is_called_and_whether_it_has_parameters():
    def misnamed(shape, classes):
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4), nn.Flatten())
        return nn.Sequential(OrderedDict(fixed_net=net, fixed_end=nn.Linear(16, classes)))

    method, fed = fixable(1, model=misnamed)
    found = [n for n, at in zip(fed.layout.names, fed.layout.slices, strict=True) if at in fed.layout.statistics()]
    assert found == [f"fixed_net.{k}.fixed_{kind}" for k in (1, 2) for kind in ("mean", "var")]
    history = fc.simulate(method, fed, **RUN)
    assert (history.params[fed.layout.mask(fed.layout.statistics())] != -1).all()
    assert np.isfinite(fc.simulate(fc.HeteroFL({1: 0.5, 0.5: 0.5}), fed, **RUN).final("loss"))


# --- FedALA -------------------------------------------------------------------------------------------------------


def test_without_layers_fedala_is_fedavg_bit_for_bit_and_with_w_1_to_rounding():
    for fed in (h.network(), fc.quadratic(*h.problem(4, 3))):
        plain = fc.simulate(fc.FedAvg(), fed, cohort=3, **RUN)
        assert torch.equal(fc.simulate(fc.FedALA(layers=0), fed, cohort=3, **RUN).params, plain.params)
        h.close(fc.simulate(fc.FedALA(1, lr=0), fed, cohort=3, **RUN).params, plain.params, 1e-12)


def test_a_clients_first_round_starts_from_the_servers_model_exactly():
    known = set()
    for r, _ in h.watched(fc.FedALA(2), h.network(), **RUN | {"cohort": 2, "rounds": 5})[1]:
        for row, i in enumerate(r.clients.tolist()):
            assert (r.visits[row] > 0) == (i in known)
            if i not in known:
                assert torch.equal(r.hat[row], r.x)
                assert (r.W[row] == 1).all()
        known |= set(r.clients.tolist())


class Line(fc.Quadratic):
    """F(theta) = a/2 (theta - b)^2 of one client, from a state of FedALA; counts the epochs that learn W."""

    def __init__(self, a=1.0, b=2.0, theta=1.0, theta_i=0.0, visits=1):
        one = lambda v: torch.tensor([v], dtype=torch.float64)  # noqa: E731
        super().__init__(one(a)[None, :, None], one(b)[None], one(theta))
        self.epochs, self.theta_i, self.visits = 0, one(theta_i)[None], np.array([visits])

    def plan(self, *given, share=None, **work):
        self.epochs += share is not None
        return super().plan(*given, share=share, **work)

    def learnt(self, **options) -> tuple[float, float]:
        method = fc.FedALA(1, **options)
        state = dataclasses.replace(fc.start(method, self).updated(theta_i=self.theta_i), visits=self.visits)
        _, seen = fc.one_round(method, self, state, 0)
        return float(seen.round.W), float(seen.round.hat)


def test_a_second_round_repeats_epochs_until_ten_losses_agree_and_a_later_one_takes_one():
    flat, later, first, wild = Line(), Line(visits=2), Line(visits=0), Line(a=10.0)
    assert (flat.learnt(lr=1e-6), flat.epochs)[1] == personal.LOOK_BACK + 1 == 11
    assert (later.learnt(lr=1e-6), later.epochs)[1] == 1
    assert (first.learnt(lr=1e-6), first.epochs) == ((1.0, 1.0), 0)
    assert (wild.learnt(lr=0.21, clip=False), wild.epochs)[1] == personal.EPOCHS  # diverges


def test_the_share_is_drawn_afresh_each_round_without_replacement_and_holds_at_least_one_sample():
    fed = h.network(sizes=(13, 7, 20, 1, 9))
    drawn = {}
    for t, epoch in ((0, 0), (0, 1), (1, 0)):
        plan = fed.plan(0, t, np.arange(5), batch_size=4, share=0.8, epoch=epoch)
        assert plan.clients.tolist() == [0, 1, 2, 3, 4]  # in the order asked for, whatever their steps
        for i, size in enumerate((10, 5, 16, 1, 7)):  # floor(0.8 N), 1 where that is 0
            used = [s for k in range(plan.steps[i]) for s in plan.samples[k, i, : plan.counts[k, i]].tolist()]
            assert len(used) == len(set(used)) == size
            assert set(used) <= set(fed.index[i].tolist())
            drawn[t, epoch, i] = used
            assert plan.steps[i] == -(-size // 4)
    for i in (0, 2):
        assert set(drawn[0, 0, i]) == set(drawn[0, 1, i])
        assert drawn[0, 0, i] != drawn[0, 1, i]
        assert set(drawn[0, 0, i]) != set(drawn[1, 0, i])


def test_a_layer_is_a_weight_with_its_bias_and_norm_and_five_are_all_but_the_first_of_the_digit_model():
    layout = models.Layout.of(models.digit_model_small((3, 16, 16), 10))
    groups = [[name for name in layout.names if name.rpartition(".")[0] in modules] for modules in layout.layers()]
    assert [len(g) for g in groups] == [4, 4, 4, 4, 4, 2]
    for layers, first in ((5, 4), (1, -2)):  # the last one is the official code's two tensors
        assert fc.FedALA(layers=layers).last(layout, layout.d) == slice(layout.slices[first].start, None)


def test_more_layers_than_the_model_has_are_an_error_that_tells_how_many_there_are():
    with pytest.raises(ValueError, match=r"layers=3 but the model has 2 weight layers; use layers<=2"):
        fc.simulate(fc.FedALA(layers=3), h.network(), **RUN)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_federation_is_known_by_its_normalisation_and_augmentation_and_not_by_what_was_evaluated():
    looks = ("pooled", None), ("client", None), ("pooled", fc.RandAugment()), ("pooled", fc.RandAugment(magnitude=5))
    feds = [shifted(normalise=n, augment=a) for n, a in looks]
    prints = [fed.fingerprint() for fed in feds]
    assert len(set(prints)) == 4
    for fed, known in zip(feds, prints, strict=True):
        fed.evaluate(fed.x0)
        assert fed.fingerprint() == known


def test_personal_rows_carry_client_numbers_and_local_ones_are_the_cohorts():
    fed = shifted(normalise="client")
    history, local = (fc.simulate(fc.FedAvg(), fed, cohort=3, personal=p, **RUN) for p in (True, "local"))
    for t in range(4):
        rows = [(name, i) for r, name, i, _ in history.rows if r == t]
        assert sorted(i for name, i in rows if name == "own_accuracy") == [0, 1, 2, 3, 4]
        assert {i for name, i in rows if name == "accuracy_pooled"} == {None, 0, 1, 2, 3, 4}
    for t, cohort in enumerate(local.cohorts):
        assert [i for r, name, i, _ in local.rows if (r, name) == (t + 1, "own_accuracy")] == cohort
    assert local.params.equal(history.params)


@pytest.mark.parametrize("method", [["Ditto", {"lam": 1.0}], ["Central", {}]])
def test_the_study_of_personal_models_tests_each_on_its_own_domain(method):
    """As `simulate` evaluates them with personal=True; the stored bits give the same number."""
    federation = {"source": ["digit_domains", {"train": 20, "test": 10, "size": 8}], "partition": ["ByOwner", {}],
                  "model": "digit_model_small"}  # fmt: skip
    run = {"rounds": 1, "lr": 0.1, "batch_size": 10, "local_steps": 2}
    spec = {"study": "domains", "method": method, "federation": federation, "run": run, "clients": list("abcde")}
    found = domains(spec, 0, None, None)
    fed = build_federation(federation, 0, None)
    h = fc.simulate(build_method(method, fed, run), fed, seed=0, personal=True, **run)
    if method[0] == "Central":  # its history is that of one client
        values = fed.evaluate_clients(h.params.expand(5, -1))["own_accuracy"].tolist()
    else:
        values = [h.final("own_accuracy", i) for i in range(5)]
    assert found["clients"] == pytest.approx(dict(zip("abcde", 100 * np.asarray(values), strict=True)), abs=1e-4)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(found["correct"]), np.uint8), count=found["images"])
    assert 100 * bits.mean() == found["final"] == pytest.approx(100 * np.mean(values))


def test_without_domains_there_is_no_own_accuracy():
    fed = shifted(test_owner=False)
    assert "own_accuracy" not in fed.evaluate_clients(fed.x0.expand(5, -1))


@pytest.mark.parametrize(("options", "message"), [
    ({"normalise": "clients"}, "normalise='clients'"), ({"augment": "RandAugment"}, "fc.RandAugment"),
    ({"normalise": "client", "shape": (4,), "model": "mlp"}, "normalise='client' needs images"),
    ({"augment": fc.RandAugment(), "pixels": np.float64}, "uint8 images"),
    ({"augment": fc.RandAugment(), "shape": (2, 4, 4)}, "1 or 3 channels"),
])  # fmt: skip
def test_wrong_data_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        shifted(**options)


def test_a_quadratic_has_no_models_of_clients_to_evaluate():
    with pytest.raises(ValueError, match="personal=True"):
        fc.simulate(fc.FedAvg(), fc.quadratic(*h.problem()), rounds=1, personal=True)
