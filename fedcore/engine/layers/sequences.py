"""Layers of texts and sequences."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import recurrent
from ..shapes import Pictures, Sequences, Vectors
from .pointwise import Each
from .rule import Pass, Rule


class Embedding(Rule):
    """`nn.Embedding`: each client looks its symbols up in its own table."""

    takes, fresh = (1,), True

    def problem(self) -> str | None:
        e = self.module
        unusual = e.max_norm is not None or e.sparse or e.scale_grad_by_freq
        return "Embedding with max_norm, sparse or scale_grad_by_freq" if unusual else None

    def leaves(self, axes: int, written: bool = False) -> int:
        return 2 if axes == 1 else 0

    def batched(self, x: Annotated[Tensor, "m B L"], p: Pass) -> Sequences:
        e, tables = self.module, p.params[self.weight]
        first = torch.arange(len(x), device=x.device).view(-1, 1, 1) * e.num_embeddings
        out = F.embedding(x + first, tables.flatten(0, 1))
        if e.padding_idx is not None:  # is looked up, but never learned
            out = torch.where((x == e.padding_idx).unsqueeze(3), out.detach(), out)
        return out.transpose(0, 1)


class Recurrent(Rule):
    """`nn.LSTM` and `nn.GRU`: the states of the last layer, all of them."""

    takes, fresh = (2,), True

    def problem(self) -> str | None:
        layer = self.module
        drops = layer.dropout and layer.num_layers > 1
        if layer.batch_first and not (layer.bidirectional or drops or layer.proj_size):
            return None
        return f"{type(layer).__name__} with options beside batch_first=True, num_layers and bias"

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        params = [p.params[self.below(name)] for name, _ in self.module.named_parameters()]
        return recurrent.states(self.module, x.transpose(0, 1), params).transpose(0, 1)


class SequenceFunction(Rule):
    """A function of the two axes of each sequence, such as their transposition."""

    takes = (2,)

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        return self.module(x)


class SequenceReduction(SequenceFunction):
    """A function that removes one axis of each sequence: one step, or the mean over the first or the second axis."""

    def leaves(self, axes: int, written: bool = False) -> int:
        return 1 if axes == 2 else 0

    def batched(self, x: Sequences, p: Pass) -> Vectors:
        return super().batched(x, p).transpose(0, 1)


class Symbols(Each):
    """`x.long()`: the symbols of texts, whatever the type of their numbers."""

    takes = (1,)


class Pool1d(Each):
    """`nn.MaxPool1d`, `nn.AvgPool1d` and the adaptive ones."""

    takes, fresh = (2,), True

    def problem(self) -> str | None:
        return "a pooling that returns its indices" if getattr(self.module, "return_indices", False) else None

    def batched(self, x: Sequences, p: Pass) -> Sequences:
        return self.module(x.flatten(1, 2)).unflatten(1, (p.clients, -1))


def as_pictures(x: Sequences) -> Pictures:
    """Sequences `[B, m, C, L]` as pictures `[B, m*C, 1, L]`: their first axis are the channels."""
    return x.flatten(1, 2).unsqueeze(2)


def as_sequences(x: Pictures, p: Pass) -> Sequences:
    """Pictures `[B, m*C, 1, L]` as sequences `[B, m, C, L]`."""
    return x.squeeze(2).unflatten(1, (p.clients, -1))
