"""BlazeFL: its FedAvg with its pool of processes, as many of one thread as there are threads, and shared memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
from blazefl.core import IPCMode
from task import BATCH, LR, Clock, batches, report, resident, start


class Loader:
    """The batches of one client: BlazeFL leaves its loaders to the user."""

    dataset = None

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return batches(self.x, self.y)


class Resident:
    """The models and the clients' data, which each process reads once from the task's file."""

    def __init__(self, file, model):
        self.file, self.model = file, model

    def select_model(self, name):
        torch.set_num_threads(1)
        return resident(self.file, self.model)[1]

    def get_dataloader(self, type_, cid, batch_size, generator):
        return Loader(*resident(self.file, self.model)[0][cid])

    def set_dataset(self, type_, cid, dataset):
        """Nothing to keep: the data do not change."""


if __name__ == "__main__":
    args, task = start()
    rounds, own = args.rounds + args.warmup, Resident(args.file, args.model)
    share = task.cohorts.shape[1] / len(task.parts)
    with TemporaryDirectory() as folder:
        handler = FedAvgBaseServerHandler(own, "net", own, rounds, len(task.parts), share, "cpu", BATCH, 0)
        handler.model, clock = task.net(), Clock()
        trainer = FedAvgProcessPoolClientTrainer(
            own, "net", Path(folder, "shared"), Path(folder, "states"), own, "cpu", len(task.parts), 1, BATCH, LR, 0,
            args.threads, IPCMode.SHARED_MEMORY,
        )  # fmt: skip
        trainer.progress_fn = lambda jobs: jobs
        clock.ends.clear(), clock()
        for cohort in task.cohorts[:rounds]:
            trainer.local_process(handler.downlink_package(), cohort.tolist())
            for package in trainer.uplink_package():
                handler.load(package)
            clock()
    torch.set_num_threads(args.threads)
    report(args, task, clock, task.accuracy(handler.model))
