"""Shapes in the annotations of this package, which the tests check at every call; a run does not check them.

m: clients, d: parameters, B: samples of a mini-batch, C: classes.  An underscore means any size.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

Parameters = Annotated[Tensor, "m d"]  # a parameter vector per client, or as many gradients
Flat = Annotated[Tensor, "d"]  # one parameter vector
PerClient = Annotated[Tensor, "m"]
PerSample = Annotated[Tensor, "m B"]
Logits = Annotated[Tensor, "m B C"] | Annotated[Tensor, "m B heads C"]
Representations = Annotated[Tensor, "m B _"]
# inside the batched and the written path: features, images with the clients' channels side by side, or sequences
Vectors = Annotated[Tensor, "m B _"]
Pictures = Annotated[Tensor, "B _ _ _"]
Sequences = Annotated[Tensor, "B m _ _"]
Activations = Vectors | Pictures
