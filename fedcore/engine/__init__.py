"""Gradients of a whole cohort: `[m, d]` in, `[m, d]` out.  The only room that knows how they are computed.

Three paths, equal to rounding.  *batched* stacks the clients: linear layers become one batched product, convolutions
one grouped convolution whose groups are the clients; a module without rules is mapped over the clients where that gives
the same.  *sequential* takes one client after another and runs any `torch.nn.Module`; it is the oracle for the others.
*written* is batched without autograd, for fewer layers, and what a CPU takes where it can.

To read it: `core` is what federations call; `rules` says what each layer is on the first and the last path and whose
its neurons are, `traced` which layers a module of the user's own is made of, `mapped` what is done without them,
`recurrent` how the steps of an LSTM or a GRU are taken for all clients; `batched`, `sequential` and `written` are the
paths, `choose` decides between them; `loss` is what is differentiated, `passes` counts how often, `units` are the
neurons, `replay` holds CUDA graphs and compiled paths.
No function here reads a number from a device, so that none ever waits for one.
"""

from .batch import Batch, OneSample
from .choose import PATHS, SEQUENTIAL_FROM
from .core import Engine
from .loss import PLAIN, CustomLoss, Loss
from .passes import counting

__all__ = ["PATHS", "PLAIN", "SEQUENTIAL_FROM", "Batch", "CustomLoss", "Engine", "Loss", "OneSample", "counting"]
