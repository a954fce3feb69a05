"""Making a federation: data, partition and network, checked before the first round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import models, rng
from ..data.arrays import as_array
from ..data.augment import CropFlip, RandAugment, augmentation
from ..data.clients import Clients, keep_own, need_classes, set_aside
from ..data.normalisation import NORMALISE, told_of_scale
from ..data.partitions import IID, ByOwner, Dealt, Dirichlet, Listed, Partition, Shards, checked
from ..data.sources import load
from ..engine import PATHS, Engine
from ..engine.choose import is_large
from ..engine.core import own_copy
from ..engine.loss import of_any
from ..engine.mapped import maps
from ..engine.trial import Unfit, computed, tried
from ..engine.undisturbed import as_usual
from ..storage.identity import is_own
from ..support import checks
from ..support.devices import available, first_line, warn_of_bfloat16
from .federation import Federation, taking
from .targets import Metric, checked_loss, checked_metrics, telling, warn_of_outputs

FIRST = 20  # training samples on which a user's loss is tried


HOOKED = "a layer that does not compute what its kind does (a hook, a parametrisation, written over what others read)"


@checks.arguments
@as_usual()
def federation(
    source: Any = "digits",
    clients: checks.Count | None = None,
    partition: Partition | Callable[..., Sequence[Any]] | Sequence[Any] | None = None,
    model: str | nn.Module | Callable[..., nn.Module] = "cnn",
    seed: checks.Seed = 0,
    *,
    root: checks.Folder | None = None,
    download: bool = True,
    device: checks.Device | None = None,
    dtype: checks.FloatType = torch.float32,
    path: Annotated[str, checks.OneOf(("auto", *PATHS))] = "auto",
    compute: Annotated[torch.dtype, checks.Kind(lambda v: v is torch.bfloat16, "torch.bfloat16, or None")]
    | None = None,
    block: checks.Count | None = None,
    normalise: Annotated[str, checks.OneOf(NORMALISE)] = "pooled",
    augment: RandAugment | CropFlip | Callable[[Tensor, torch.Generator], Tensor] | None = None,
    public: checks.Count | None = None,
    validation: bool = False,
    own_test: Annotated[float, checks.Within(0, 0.999999, open_low=True)] | None = None,
    drop_last: bool = False,
    start: Tensor | Mapping[str, Tensor] | nn.Module | None = None,
    layout: str | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Federation:
    """A federation of real data.

    source: a name (`fc.data.sources.NAMES`); arrays or tensors `(x, y)`; a map-style dataset (torchvision's, Hugging
    Face's with an input and a label column, your own); a list of either, one per client; a mapping with npz keys.
    Two of them in a tuple, `((x, y), (test_x, test_y))`, or a mapping with "train", "test" and perhaps "validation",
    are training and test data; of one alone every fifth sample is the test set.  All data are copied.  A dataset's
    items are read once, so random transforms belong in `augment`.
    layout: the meaning of the axes of samples in memory: "image" `[N, H, W]`, `[N, C, H, W]` or `[N, H, W, C]`, or
    "channels_first" or "channels_last" for one of the last two; "features" `[N, F]`, "sequence" `[N, L, F]` or
    `[N, L]`, or "text" `[N, L]`, numbers of symbols.  None infers images and features; where the shape allows two
    readings, as of numbers `[N, a, b]`, a ValueError asks for the layout (`data.arrays.from_arrays`).
    clients: their number; None means all owners with `ByOwner()`, all clients of a list, all index arrays of a
    partition.
    partition: `IID()` (default, but for a list with one entry per client), `Dirichlet(q)`, `Shards(c)`, `ByOwner()`,
    `Quantity(spread)`; `FeatureShift(kind, strength)` and `LabelSwap(share)`, which change the clients' data too; a
    function `(labels, clients, rng) -> list of index arrays`, which draws from the NumPy generator rng; an object with
    `split(labels, clients, rng, owner)` (and `overlapping = True` where clients may share samples); or a list of index
    arrays, one per client.  A list's indices refer to the training samples as they were given, and samples that become
    test, validation or public data are taken from their client; those of a function or an object refer to the labels
    that it is called with, from which these samples are already taken.  No index may occur twice, some may be left out.
    model: a name, a `torch.nn.Module`, or a function `(shape, classes) -> Module`.
    seed: decides partition and initial weights.  root: the data root.  device: default CUDA where there is one.
    path, compute, block: how gradients are computed (`Engine`): "auto" or a path forced; torch.bfloat16 for faster
    convolutions and linear layers with 8 bits of mantissa; the largest number of clients computed together.
    normalise: "pooled", "client", "half", "unit" or "none", see `Federation`.  The range of bytes is 255, or the
    largest training byte where this is below 128, as the 16 of "digits".
    augment: of training images, anew in each batch: `CropFlip(4)`, `RandAugment()`, or a function of your own,
    `(uint8 images [N, C, H, W], torch.Generator) -> images` of the same shape and type, called with one client's batch;
    its draws from the generator, which is on the images' device, depend on seed, round, client and local step alone.
    public: training samples per class that no client gets, for methods with public data (`fed.public`).
    validation: take validation data from the training set first (`Source.with_validation`), unless the source has
    some; `fed.on_validation()` is then evaluated on them, so that settings need not be chosen on test data.
    own_test: the share of its samples that each client keeps as its own test data, with its label proportions to one
    sample; at least one sample, but a client with one sample keeps none.  `simulate(..., personal=True)` then evaluates
    each client's `own_accuracy` on these data instead of on the test samples of its owner; `fed.own_test(i)` returns
    them.  They are taken after validation and public data, for every partition, and are in no client's training data.
    The server's metrics and the clients' `accuracy` still use the source's test set.  `fed.on_validation()` leaves them
    out, because settings are not to be chosen on test data.
    drop_last: leave out the last batch of an epoch where it is smaller than batch_size, as torch's DataLoader does;
    then K_i = local_epochs * floor(N_i / batch_size).  A client with fewer samples than batch_size keeps its one batch.
    Without drop_last, only a network that cannot be trained on one sample leaves out a batch, a last one of one
    sample: with BatchNorm1d, for example, which has no variance of it.
    start: initial parameters of runs (`fed.x0`) instead of the model's: a flat vector `[d]` such as an earlier
    `history.params`, a state_dict, or a module of the same architecture, also one that `fed.module` returned.
    loss: the loss to minimise instead of the cross-entropy, `(logits [B, C], targets [B, ...]) -> [B]`, one loss per
    sample, or their mean, as `torch.nn.MSELoss()` or `F.binary_cross_entropy_with_logits`.  It is called with the
    model's outputs, which may have other axes: `[B, C, H, W]` for segmentation, `[B, C, L]` for tokens, `[B]`; there is
    no accuracy then.  A weighted mean (weight=, ignore_index=) depends on the batch and is refused: use
    reduction="none", and `.flatten(1).mean(1)` for several targets per sample.  Targets may then be real numbers `[N]`
    or several per sample, `[N, T]`; models by name have T outputs.  Whole numbers `[N]` stay class labels.
    It may neither draw random numbers nor keep memory.  A mean costs a `torch.vmap` over the samples.  Accuracy is left
    out where the largest logit is no class.
    metrics: name -> `(logits [T, C], targets [T, ...]) -> a number, or one per sample [T]`, of the whole test set and
    evaluated with loss and accuracy.

    Raises DataNotFound, ValueError (unknown names, NaN, shapes, clients without data, indices out of range or given
    twice, losses and metrics of another shape), TypeError.
    """
    two = isinstance(source, list) and len(source) == 2
    source = load(source, root, download, layout, targets=loss is not None)
    owners = 0 if source.train_owner is None else len(np.unique(source.train_owner))  # before some lose all samples
    if loss is None and not source.has_classes:
        raise ValueError(
            f"the targets are {source.train_y.dtype} {source.train_y.shape} and no class labels [N]; give loss=..., "
            "such as torch.nn.MSELoss()"
        )
    by_owner = isinstance(getattr(partition, "partition", partition), ByOwner | None)
    if two and source.by_client and not (by_owner and (partition is not None or clients in (None, 2))):
        raise ValueError(
            f"source is a list of two, one entry per client, with clients={clients} and "
            f"partition={checks.brief(partition)}, but 2 owners are two clients; use a tuple ((x, y), (test_x, "
            "test_y)) for training and test data, or clients=2 or None and partition=None for one client per entry"
        )
    told_of_scale(source, normalise)
    if validation and source.validation is None:
        source = source.with_validation()
    aside = None
    if public is not None:
        source, aside, _ = set_aside(source, public, seed)
    if isinstance(partition, list | tuple):
        partition = Listed(tuple(np.array(as_array(part)) for part in partition))
    elif partition is None:
        partition = ByOwner() if source.by_client else IID()
    elif callable(partition) and not hasattr(partition, "split") and not isinstance(partition, type):
        partition = Dealt(partition)
    if not hasattr(partition, "split") or isinstance(partition, type | str | bytes | Tensor):
        raise TypeError(
            f"partition={checks.brief(partition)}; use fc.IID(), fc.Dirichlet(q), fc.Shards(c), fc.ByOwner(), a "
            "function (labels, clients, rng) -> list of index arrays, an object with split(labels, clients, rng, "
            "owner), or a list of index arrays, one per client"
        )
    if isinstance(getattr(partition, "partition", partition), Dirichlet | Shards):
        need_classes(source, f"partition={partition} and other partitions by label")
    if clients is None:
        if isinstance(partition, Listed):
            clients = len(partition.parts)
        elif isinstance(partition, ByOwner) and owners:
            if gone := owners - len(np.unique(source.train_owner)):
                raise ValueError(
                    f"public and validation data take all samples of {gone} of {owners} clients; use a smaller public, "
                    f"or clients={owners - gone} for the others"
                )
            clients = owners * partition.parts
        else:
            raise ValueError(
                "clients=None needs partition=ByOwner() on a source with owners, or a list of index arrays; "
                "use clients=n"
            )
    augment = augmentation(augment, source)
    if isinstance(partition, Dealt):
        checks.takes("partition", partition.function, "labels, clients, rng", "a list of index arrays, one per client")
    checks.takes("partition", partition.split, "labels, clients, rng, owner", "a list of index arrays, one per client")

    def dealt() -> Any:
        labels, owner = (None if part is None else part.copy() for part in (source.train_y, source.train_owner))
        return partition.split(labels, clients, rng.numpy_generator(seed, rng.PARTITION), owner)  # theirs to change

    parts = dealt()
    if isinstance(partition, Listed) and source.given is not None:
        rows = (source.given[part] for part in checked(parts, clients, len(source.given)))
        parts = [part[part >= 0] for part in rows]
    else:
        parts = checked(parts, clients, len(source.train_y), getattr(partition, "overlapping", False))
        again = dealt() if _is_users(partition) else parts
        if not all(np.array_equal(a, as_array(b)) for a, b in zip(parts, again, strict=False)):
            checks.warn(
                f"partition={checks.brief(partition)} deals other samples when it is called again, so seed= does not "
                "decide the partition; draw from the generator rng that it is given"
            )
    if hasattr(partition, "changed"):
        x, y = partition.changed(source, parts, rng.numpy_generator(seed, rng.SHIFT))
        source = replace(source, train_x=x, train_y=y)
    kept = None
    if own_test is not None:
        source, parts, kept = keep_own(source, parts, own_test, seed)
    module = models.build(model, source.train_x.shape[1:], source.classes, seed)
    data = Clients.of(
        source, parts, normalise=normalise, augment=augment, public=aside, kept=kept, seed=seed,
        device=available(device), dtype=dtype,
    )  # fmt: skip
    fed = on_network(data, module, partition, seed, path, compute, block, loss, metrics, start)
    return replace(fed, drop_last=drop_last)


def _is_users(partition: Any) -> bool:
    """Whether a partition, the one that it changes, or its sizes are drawn by code of the user."""
    inner = (getattr(partition, name, None) for name in ("partition", "sizes"))
    return isinstance(partition, Dealt) or is_own(type(partition)) or any(_is_users(p) for p in inner if p is not None)


def on_network(
    data: Clients,
    module: nn.Module,
    partition: Partition,
    seed: int,
    path: str = "auto",
    compute: torch.dtype | None = None,
    block: int | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    start: Any = None,
) -> Federation:
    """The federation of these clients on the network `module`, which starts from its own parameters or from `start`.

    Raises ValueError for parameters that are not finite and for a module, a loss or metrics that do not suit the data.
    """
    if path == "written" and loss is not None:
        raise ValueError("path='written' is for the cross-entropy alone, but loss is given; use path='auto'")
    if compute is not None:
        warn_of_bfloat16(data.device)
    example = data.inputs(data.x[:3])
    alike = own_copy(module).to(data.device, data.dtype)  # the user's own is not called
    try:
        with rng.seeded(seed, data.device):
            logits = models.copied(alike).eval()(example[:2].clone())  # copies, because a pass may write to both
        trial = tried(alike, example)
    except Unfit:
        raise
    except Exception as e:  # whatever a module of the user's raises
        raise ValueError(
            f"the model does not take inputs of shape {tuple(data.x.shape[1:])} ({first_line(e)}); "
            "use a model made for this shape, model='mlp', or another layout for data in memory"
        ) from e
    trained = [p.requires_grad for p in module.parameters()]
    if trained and not (any(trained) and logits.requires_grad):
        raise ValueError(
            "no parameter of the model is trained, or its logits have no gradient by them; set requires_grad=True for "
            "some, and return what torch computes from them, without detach(), torch.no_grad() or NumPy"
        )
    classes = data.source.classes
    if logits.is_complex() or (loss is None and (logits.ndim != 2 or logits.shape[1] < classes)):
        raise ValueError(
            f"the model gives {logits.dtype} of shape {tuple(logits.shape[1:])} a sample, the source has {classes} "
            f"classes; return real numbers and make the last layer {classes} wide, or give loss=..., which is called "
            "with what the model gives"
        )
    warn_of_outputs(loss, logits)
    for name in ("carried", "called"):
        if found := getattr(trial, name):
            module = models.copied(module)
            for one in (module, alike):
                setattr(one, f"fedcore_{name}", found)
    if start is not None:
        module = models.started(module, start, data.dtype)
    x0 = models.flatten(module).to(data.device, data.dtype)
    if not torch.isfinite(x0).all():
        raise ValueError("the model's initial parameters hold NaN or infinity; give a module with finite ones")
    kind = partial(Engine, trial=trial, criterion=of_any(logits.ndim - 1))
    by_rules = path != "sequential" and data.x.dim() - 1 in kind(alike).axes
    if by_rules and ((trial.asleep and kind(alike).random) or not computed(alike, example, trial, kind)):
        trial = replace(trial, alone=HOOKED)
    mapped = not (by_rules or trial.alone or path == "sequential") and maps(alike, example)
    apart = partial(kind, trial=replace(trial, alone=trial.alone or "no rules"))  # through the module itself
    if (trial.alone or not by_rules or is_large(len(x0), data.device)) and not computed(alike, example, trial, apart):
        raise ValueError(
            f"the model, a {type(module).__name__}, has other gradients when torch.func.functional_call replaces its "
            "parameters; do without recomputation in the backward pass, as by torch.utils.checkpoint, and without "
            "parameters that are no part of the module"
        )
    criterion = F.cross_entropy
    if loss is not None:
        with torch.no_grad():
            some = telling(data.y, FIRST)
            logits = alike.eval()(data.inputs(data.x[some]))
        accuracy = data.source.has_classes and logits.ndim == 2 and logits.shape[1] >= classes
        criterion = checked_loss(loss, logits, data.y[some], accuracy)
    engine = Engine(module, path, criterion, compute, block, mapped, trial).to(data.device, data.dtype)
    return Federation(data, taking(data, engine), x0, partition, seed, checked_metrics(metrics))
