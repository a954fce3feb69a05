"""pfl-research: federated averaging on its simulated backend.  Its batches of a client stay the same."""

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from task import BATCH, LR, Clock, report, start

args, task = start()
data, rounds, clock, net = task.tensors(), args.rounds + args.warmup, Clock(), task.net()


class Model(torch.nn.Module):
    """The network with the two functions that the framework calls."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net

    def loss(self, x, y):
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x, y):
        return {}


class Rounds(TrainingProcessCallback):
    """The clock as a callback."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock()
        return False, Metrics()


wrapped = Model()
model = PyTorchModel(
    wrapped,
    local_optimizer_create=torch.optim.SGD,
    central_optimizer=torch.optim.SGD(wrapped.parameters(), lr=1.0),
)
sampled = iter(task.cohorts[:rounds].ravel().tolist())
users = FederatedDataset.from_slices({i: list(pair) for i, pair in enumerate(data)}, lambda: next(sampled))
params = NNAlgorithmParams(
    central_num_iterations=rounds,
    evaluation_frequency=10**9,
    train_cohort_size=task.cohorts.shape[1],
    val_cohort_size=None,
)
clock.ends.clear(), clock()
FederatedAveraging().run(
    params,
    SimulatedBackend(training_data=users, val_data=None),
    model,
    NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[Rounds()],
)
report(args, task, clock, task.accuracy(net))
