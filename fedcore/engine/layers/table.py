"""The table of the layers that the engine knows, and which rule a module has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ... import models
from .. import traced
from ..traced import steps

if TYPE_CHECKING:
    pass
from .composite import Branches, Chain, Heads, PreAct, Projected, Residual, Sequential
from .pointwise import (
    AdaptiveAvgPool2d,
    Dropout,
    Each,
    Flatten,
    Identity,
    LogSoftmax,
    MaxPool2d,
    Pointwise,
    ReLU,
    Scaler,
)
from .rule import Rule
from .sequences import Conv1d, Embedding, Mean, Pool1d, Recurrent, Select, Swap, Symbols
from .weights import BatchNorm, Conv2d, GroupNorm, LayerNorm, Linear

RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Sequential: Sequential,
    models.Residual: Residual,
    models.PreAct: PreAct,
    models.Heads: Heads,
    models.Projected: Projected,
    nn.Linear: Linear,
    nn.Conv2d: Conv2d,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.ReLU: ReLU,
    nn.Tanh: Pointwise,
    nn.Sigmoid: Pointwise,
    nn.GELU: Pointwise,
    nn.SiLU: Pointwise,
    nn.ELU: Pointwise,
    nn.LeakyReLU: Pointwise,
    nn.ReLU6: Pointwise,
    nn.Hardswish: Pointwise,
    nn.Softplus: Pointwise,
    nn.Dropout: Dropout,
    nn.LogSoftmax: LogSoftmax,
    nn.Identity: Identity,
    nn.MaxPool2d: MaxPool2d,
    nn.AvgPool2d: Each,
    nn.AdaptiveAvgPool2d: AdaptiveAvgPool2d,
    nn.Flatten: Flatten,
    models.Scaler: Scaler,
    nn.Embedding: Embedding,
    nn.LSTM: Recurrent,
    nn.GRU: Recurrent,
    nn.Conv1d: Conv1d,
    nn.MaxPool1d: Pool1d,
    nn.AvgPool1d: Pool1d,
    nn.AdaptiveAvgPool1d: Pool1d,
    nn.AdaptiveMaxPool1d: Pool1d,
    traced.Select: Select,
    traced.Mean: Mean,
    traced.Swap: Swap,
    traced.Symbols: Symbols,
}


def rule_of(module: nn.Module, name: str = "") -> Rule:
    """The rule of a module and of all that is in it; a subclass of a known layer is not that layer.

    A module of no known kind is what its forward calls, where that is layers and additions.
    """
    if type(module) in RULES:
        return RULES[type(module)](module, name)
    called = steps(module, lambda part: type(part) in RULES)
    if called is None:
        return Rule(module, name)
    names = [step for step, _, _ in called]
    if [reads for _, _, reads in called] == [(before,) for before in ["", *names[:-1]]]:
        return Chain(module, name, [(step, layer) for step, layer, _ in called])
    return Branches(module, name, called)
