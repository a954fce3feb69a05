"""FedLab: its serial trainer and synchronous handler, run as its standalone pipeline does."""

import logging

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from task import BATCH, LR, Clock, batches, report, start

args, task = start()
logging.disable(logging.INFO)
data, rounds = task.tensors(), args.rounds + args.warmup


class InMemory:
    """The dataset that the trainer asks for loaders."""

    def get_dataloader(self, client, batch_size):
        return batches(*data[client])


handler = SyncServerHandler(task.net(), rounds, task.cohorts.shape[1] / len(task.parts))
handler.num_clients = len(task.parts)
trainer = SGDSerialClientTrainer(task.net(), len(task.parts))
trainer.setup_dataset(InMemory())
trainer.setup_optim(1, BATCH, LR)
clock = Clock()
for cohort in task.cohorts[:rounds]:
    trainer.local_process(handler.downlink_package, cohort)
    for package in trainer.uplink_package:
        handler.load(package)
    clock()
report(args, task, clock, task.accuracy(handler.model))
