"""One class per method, grouped by what they change.  Each is a federated round in three verbs."""

from .averaging import FedAvg, FedSGD, FedSMB
from .method import Method, Round
from .proximal import FedProx, FedUp
from .variates import SCAFFOLD

ALL: tuple[type[Method], ...] = (FedAvg, FedSGD, FedSMB, FedProx, SCAFFOLD, FedUp)

__all__ = ["ALL", "SCAFFOLD", "FedAvg", "FedProx", "FedSGD", "FedSMB", "FedUp", "Method", "Round"]
