"""One class per method, grouped by the part of the round that they change; a round is made of three verbs."""

from .averaging import FedAvg, FedSGD, FedSMB
from .central import Central
from .contrastive import MOON
from .corrected import FedCM, FedGamma, FedSpeed, MoFedSAM
from .decentralised import DPSGD, DFedAvg, DFedAvgM, DFedGAM, DFedSAM
from .heads import FedBABU, FedPer, FedRep
from .local import APFL, Ditto, LocalOnly, PerFedAvg, pFedMe
from .logits import FedLC, FedNTD
from .method import Gradient as Gradient
from .method import Method
from .method import Round as Round
from .momentum import STEM, Mime, MimeLite
from .nested import DepthFL, FjORD
from .personal import FedALA, FedBN, FixBN
from .proximal import FedProx, FedSplit, FedUp
from .server import FedAdagrad, FedAdam, FedExP, FedNova, FedYogi
from .sharpness import FedSAM, FedSMOO
from .submodels import FedDSE, FederatedDropout, FedGSE, FedRolex, HeteroFL
from .submodels import Submodel as Submodel
from .tracking import DSGT, ExactDiffusion, QGDSGDm
from .variates import SCAFFOLD, FedDC, FedDyn, FedPVR, ProxSkip

ALL: tuple[type[Method], ...] = (
    FedAvg, FedSGD, FedSMB, FedProx, SCAFFOLD, FedDC, Mime, MimeLite, FedDyn, MOON, FedSplit, STEM, FedSMOO, FedPVR,
    FedUp, FedSAM, DPSGD, DFedAvg, DFedAvgM, DFedSAM, DFedGAM, FedBN, FedALA, HeteroFL, FjORD, FederatedDropout,
    FedRolex, DepthFL, FedDSE, FedGSE, FedAdagrad, FedAdam, FedYogi, FedNova, FedExP, FedCM, MoFedSAM, FedGamma,
    FedSpeed, FedPer, FedRep, Ditto, pFedMe, LocalOnly, Central, DSGT, ExactDiffusion, QGDSGDm, ProxSkip, FedLC, FedNTD,
    FedBABU, APFL, PerFedAvg, FixBN,
)  # fmt: skip

__all__ = ["ALL", "Method", *(method.__name__ for method in ALL)]
