"""fluke: its FedAVG with its own fast loader, without evaluation between the rounds."""

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from task import BATCH, LR, Clock, report, start

args, task = start()
rounds, n = args.rounds + args.warmup, len(task.parts)
FlukeENV().set_seed(0)
FlukeENV().set_device("cpu")
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
loaders = [FastDataLoader(x, y, num_labels=10, batch_size=BATCH, shuffle=True) for x, y in task.tensors()]
splitter = DataSplitter(DummyDataContainer(loaders, [None] * n, None, 10))
settings = {
    "model": task.net(),
    "client": {
        "batch_size": BATCH, "local_epochs": 1, "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": LR}, "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    },
    "server": {"weighted": True},
}  # fmt: skip
algorithm, clock = FedAVG(n, splitter, DDict(settings)), Clock()


class Rounds(FederationObserver):
    """The clock as an observer."""

    def end_round(self, round):
        clock()


algorithm.set_callbacks([Rounds()])
cohorts = iter(task.cohorts)
algorithm.server.get_eligible_clients = lambda share: [algorithm.clients[i] for i in next(cohorts)]
clock.ends.clear(), clock()
algorithm.run(n_rounds=rounds, eligible_perc=task.cohorts.shape[1] / n, finalize=False)
report(args, task, clock, task.accuracy(algorithm.server.model))
