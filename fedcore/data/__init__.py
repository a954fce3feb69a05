"""Sources, partitions and federations: the clients' data as two tensors on one device and an index per client."""

from .federation import Federation, Quadratic, federation, quadratic
from .partitions import IID, ByOwner, Dirichlet, Shards
from .sources import DataNotFound, Source, data_root, load

__all__ = [
    "IID", "ByOwner", "DataNotFound", "Dirichlet", "Federation", "Quadratic", "Shards", "Source", "data_root",
    "federation", "load", "quadratic",
]  # fmt: skip
