"""The picture of a mask: neurons of a small network are switched off, and the gradient's gap follows.

As in the playground, one JavaScript module, `masks.js`, computes and draws; a test compares its numbers with those of
`measures.masks`, which this module shows in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcore.support import checks

from ..measures import masks
from . import still
from .base import Live

SIZES, SAMPLES, NETWORKS = (3, 6, 3), 16, 4
SCORES = ("eq. 4-3", "eq. 4-3 before ReLU", "mean activation", "row norm", "row and column norm")
"""The scores that choose neurons, by their names in `measures.masks.scores`."""


def mask_playground(
    kept: str = "111000", network: int = 1, *, seed: int = 0, name: str = "mask", caption: str = ""
) -> MaskPlayground:
    """An interactive picture of a network with six hidden neurons: each is kept or dropped, and the picture shows how
    far the sub-model's gradient is from that of the whole network, beside all masks with as many neurons.

    kept: a 1 for each kept neuron and a 0 for each dropped one.  network: one of four random networks with 16 samples
    each, drawn from `seed`.  name: the id of the picture in addresses.  caption: the text below the picture.

    Raises ValueError or TypeError with the value, the allowed range and the remedy.
    """
    return MaskPlayground({"kept": kept, "network": network}, name, caption, seed)


class MaskPlayground(Live):
    """A mask: its settings as attributes (`pg.kept = "110100"`), its numbers and its picture."""

    scripts, styles, classes = ("masks.js",), ("masks.css",), "fc-pg pg-masks"

    def __init__(self, state: Mapping[str, Any], name: str, caption: str, seed: int = 0) -> None:
        super().__init__(state, name, caption)
        self._drawn = masks.random_networks(NETWORKS, SIZES, SAMPLES, seed=checks.integer("seed", seed, 0))

    def __repr__(self) -> str:
        return f"MaskPlayground({self.kept!r}, network={self.network})"

    @staticmethod
    def checked(given: Mapping[str, Any]) -> dict[str, Any]:
        """The validated state.  Raises the errors of `mask_playground`."""
        kept = given["kept"]
        if not isinstance(kept, str) or len(kept) != SIZES[1] or set(kept) - set("01"):
            raise ValueError(f"kept={checks.brief(kept)}; use {SIZES[1]} letters 0 or 1, such as '110100'")
        return {"kept": kept, "network": checks.integer("network", given["network"], 1, NETWORKS)}

    def numbers(self) -> dict[str, Any]:
        """The numbers in the picture, computed by `measures.masks`.

        `gap`: the distance of the sub-model's gradient from the whole network's.  `masked`: the length of what the mask
        cuts off the whole network's gradient.  `bound`: the smallest `masked` of a mask with as many neurons, which no
        `gap` of such a mask is below.  `rank`: how many of these masks have a smaller gap, plus 1.  `picked`: the mask
        that each score chooses, `{name: "110100"}`.
        """
        net, x, y = self._network()
        own, k = torch.tensor([c == "1" for c in self.kept]), self.kept.count("1")
        among = masks.all_masks([SIZES[1]], [k]) if k else [own[None]]
        every, mine = masks.gaps(net, x, y, among), masks.gaps(net, x, y, [own[None]])
        found = {"gap": float(mine["sub-model"]), "masked": float(mine["masked"])}
        found["bound"] = float(every["masked"].min())
        found["rank"] = int((every["sub-model"] < found["gap"] * (1 - 1e-9)).sum()) + 1
        scores = masks.scores(net, x, y)
        chosen = {name: masks.top(scores[name], [k])[0] if k else own for name in SCORES}
        return found | {"picked": {name: "".join("01"[int(v)] for v in mask) for name, mask in chosen.items()}}

    def _network(self) -> tuple[masks.Network, Tensor, Tensor]:
        net, x, y = self._drawn
        at = self.network - 1
        return [(W[at], b[at]) for W, b in net], x[at], y[at]

    def config(self) -> dict[str, Any]:
        """The data for the page's script: the state, the networks with their samples, and the names of the scores."""
        net, x, y = self._drawn
        drawn = [{"W": [W[k].tolist() for W, _ in net], "b": [b[k].tolist() for _, b in net],
                  "x": x[k].tolist(), "y": y[k].tolist()} for k in range(NETWORKS)]  # fmt: skip
        return super().config() | {"networks": drawn, "scores": list(SCORES)}

    def alt(self) -> str:
        """The alt text: the mask, its gap and the bound."""
        found, kept = self.numbers(), [str(j + 1) for j, c in enumerate(self.kept) if c == "1"]
        return (
            f"Network {self.network} with 3 inputs, 6 hidden neurons and 3 classes; neurons kept: "
            f"{', '.join(kept) or 'none'}. The sub-model's gradient is {found['gap']:.3g} from the whole network's, "
            f"rank {found['rank']} among the masks of this size; what the mask cuts off has length "
            f"{found['masked']:.3g}. No mask of this size has a gap below {found['bound']:.3g}."
        )

    def still(self) -> str:
        """The HTML shown before the script runs and in pages without scripts, drawn from the package's numbers."""
        kept = np.array([[c == "1" for c in self.kept]])
        return still.svg_of_network(SIZES, kept, np.full(SIZES[1], np.nan), ["kept neurons"], self.alt(), self.alt())
