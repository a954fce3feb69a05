"""Sources, partitions and federations: the clients' data as two tensors on one device and an index per client."""

from .augment import RandAugment
from .domains import digit_domains, digits_five
from .federation import Federation, Quadratic, federation, quadratic
from .partitions import IID, ByOwner, Dirichlet, Shards
from .sources import DataNotFound, Source, data_root, load

__all__ = [
    "IID", "ByOwner", "DataNotFound", "Dirichlet", "Federation", "Quadratic", "RandAugment", "Shards", "Source",
    "data_root", "digit_domains", "digits_five", "federation", "load", "quadratic",
]  # fmt: skip
