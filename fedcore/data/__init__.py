"""Data: sources, partitions, the clients' samples as tensors on one device, and the batches of a round."""

from .arrays import DataNotFound, Source, data_root
from .augment import CropFlip, RandAugment
from .batches import Plan
from .clients import Clients
from .domains import digit_domains, digits_five
from .generated import Gaussians
from .kinds import FeatureShift, LabelSwap, Quantity
from .partitions import IID, ByOwner, Dirichlet, Shards
from .sources import load

__all__ = [
    "IID", "ByOwner", "Clients", "CropFlip", "DataNotFound", "Dirichlet", "FeatureShift", "Gaussians", "LabelSwap",
    "Plan", "Quantity", "RandAugment", "Shards", "Source", "data_root", "digit_domains", "digits_five", "load",
]  # fmt: skip
