"""The table of all rules of layers, and the rule of a module."""

from __future__ import annotations

from torch import nn

from ... import models
from .. import traced
from . import composite, pointwise, sequences, weights
from .rule import Rule

RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Sequential: composite.Sequential,
    models.Residual: composite.Residual,
    models.PreAct: composite.PreAct,
    models.Heads: composite.Heads,
    models.Projected: composite.Projected,
    nn.Linear: weights.Linear,
    nn.Conv1d: weights.Conv1d,
    nn.Conv2d: weights.Conv2d,
    nn.GroupNorm: weights.GroupNorm,
    nn.LayerNorm: weights.LayerNorm,
    nn.BatchNorm1d: weights.BatchNorm,
    nn.BatchNorm2d: weights.BatchNorm,
    nn.ReLU: pointwise.ReLU,
    nn.Dropout: pointwise.Dropout,
    nn.LogSoftmax: pointwise.LogSoftmax,
    nn.Identity: pointwise.Identity,
    nn.MaxPool2d: pointwise.MaxPool2d,
    nn.AvgPool2d: pointwise.AvgPool2d,
    nn.AdaptiveAvgPool2d: pointwise.AdaptiveAvgPool2d,
    nn.Flatten: pointwise.Flatten,
    models.Scaler: pointwise.Scaler,
    nn.Embedding: sequences.Embedding,
    traced.SequenceFunction: sequences.SequenceFunction,
    traced.SequenceReduction: sequences.SequenceReduction,
    traced.Symbols: sequences.Symbols,
}
ACTIVATIONS = (
    nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.Hardswish, nn.Softplus,
)  # fmt: skip
RULES |= dict.fromkeys(ACTIVATIONS, pointwise.Pointwise)
RULES |= dict.fromkeys((nn.LSTM, nn.GRU), sequences.Recurrent)
RULES |= dict.fromkeys(models.FIXABLE.values(), weights.FixableBatchNorm)
POOLS = (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)
RULES |= dict.fromkeys(POOLS, sequences.Pool1d)


def rule_of(module: nn.Module, name: str = "") -> Rule:
    """The rule of a module and of all that is in it; a subclass of a known layer is not that layer.

    A module of no known kind is what its forward calls, where that is layers and additions.
    """
    if type(module) in RULES:
        return RULES[type(module)](module, name)
    called = traced.steps(module, lambda part: type(part) in RULES)
    if called is None:
        return Rule(module, name)
    names = [step for step, _, _ in called]
    if [reads for _, _, reads in called] == [(before,) for before in ["", *names[:-1]]]:
        return composite.Chain(module, name, [(step, layer) for step, layer, _ in called])
    return composite.Branches(module, name, called)
