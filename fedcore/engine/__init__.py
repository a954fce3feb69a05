"""Gradients of a whole cohort: parameters `[m, d]` in, gradients `[m, d]` out.

Three paths compute the same up to rounding.  *batched* stacks the clients: linear layers become one batched product,
convolutions one grouped convolution whose groups are the clients; a module with layers that have no such rule is mapped
over the clients by `torch.vmap` if this gives the same result.  *sequential* takes one client after another and runs
any `torch.nn.Module`; the other paths are tested against it.  *written* is batched without autograd and has rules for
fewer layers; a CPU uses it if it can.

Where to read: federations call `core`.  `layers` has the rules of each kind of layer for the batched and the written
path, and `units` the neurons of a network.  `traced` finds the layers in a module of the user's own, `mapped` maps a
module without rules, and `recurrent` takes the steps of an LSTM or a GRU for all clients.  `batched`, `sequential` and
`written` are the paths, and `choose` decides between them.  `loss` is what a step differentiates, `passes` counts
backward passes, and `replay` has CUDA graphs.
No function here reads a number from a device, so that the CPU never waits for it.
"""

from .batch import Batch, OneSample
from .choose import PATHS, SEQUENTIAL_FROM
from .core import Engine
from .loss import PLAIN, CustomLoss, Loss
from .passes import counting

__all__ = ["PATHS", "PLAIN", "SEQUENTIAL_FROM", "Batch", "CustomLoss", "Engine", "Loss", "OneSample", "counting"]
