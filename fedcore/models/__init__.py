"""Architectures by name, their building, and the position of each parameter in the flat vector."""

# isort: off
from .building import RoundedOnce, build, started
from .layout import NORMS, Layout, called, called_with, carried, copied, entries, flatten, holding
from .networks import (
    MODELS, CharLSTM, cifar_cnn, cnn, digit_cnn, digit_model, digit_model_small, femnist_cnn, lenet,
    logistic, lstm, mlp, niid_cnn, preact_resnet, preact_resnet18, preact_resnet34, projected, resnet18_gn,
    resnet18_gn_3x3, thesis_cnn, thesis_cnn_small, thesis_mlp,
)  # fmt: skip
from .parts import FIXABLE, FixableBatchNorm, Heads, PreAct, Projected, Residual, Scaler, with_fixable_norms
# isort: on

__all__ = [
    "FIXABLE", "MODELS", "NORMS", "CharLSTM", "FixableBatchNorm", "Heads", "Layout", "PreAct", "Projected", "Residual",
    "RoundedOnce", "Scaler", "build", "called", "called_with", "carried", "cifar_cnn", "cnn", "copied", "digit_cnn",
    "digit_model", "digit_model_small", "entries", "femnist_cnn", "flatten", "holding", "lenet", "logistic", "lstm",
    "mlp", "niid_cnn", "preact_resnet", "preact_resnet18", "preact_resnet34", "projected", "resnet18_gn",
    "resnet18_gn_3x3", "started", "thesis_cnn", "thesis_cnn_small", "thesis_mlp", "with_fixable_norms",
]  # fmt: skip
