"""FLSim: its synchronous trainer, one client after another.  Its batches of a client stay the same."""

import logging

import torch
from flsim.clients.base_client import ClientConfig
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig
from flsim.servers.aggregator import AggregationType
from flsim.servers.sync_servers import SyncServerConfig
from flsim.trainers.sync_trainer import SyncTrainer, SyncTrainerConfig
from flsim.utils.example_utils import DataProvider, FLModel
from omegaconf import OmegaConf
from task import BATCH, LR, Clock, report, start

args, task = start()
logging.disable(logging.CRITICAL)
rounds, clock, net = args.rounds + args.warmup, Clock(), task.net()


class Loader:
    """Each client's batches; nobody evaluates."""

    def fl_train_set(self):
        for x, y in task.tensors():
            yield {"features": map(list, x.split(BATCH)), "labels": (some.tolist() for some in y.split(BATCH))}

    def fl_eval_set(self):
        return iter(())

    fl_test_set = fl_eval_set


class Rounds(SyncTrainer):
    """The trainer with the task's cohorts, looking at the clock after each round."""

    def _client_selection(self, *_, **__):
        cohort = task.cohorts[len(clock.ends) - 1].tolist()
        return [self.create_or_get_client_for_data(i, self.data_provider) for i in cohort]

    def _train_one_round(self, *given, **named):
        super()._train_one_round(*given, **named)
        clock()


epochs = rounds * task.cohorts.shape[1] / len(task.parts)
settings = SyncTrainerConfig(
    epochs=epochs,
    eval_epoch_frequency=epochs,  # which has to be in range
    users_per_round=task.cohorts.shape[1],
    do_eval=False,
    report_train_metrics=False,
    always_keep_trained_model=True,
    client=ClientConfig(epochs=1, optimizer=LocalOptimizerSGDConfig(lr=LR)),
    server=SyncServerConfig(aggregation_type=AggregationType.WEIGHTED_AVERAGE),
)
trainer = Rounds(model=FLModel(net, torch.device("cpu")), cuda_enabled=False, **OmegaConf.structured(settings))
provider = DataProvider(Loader())
clock.ends.clear(), clock()
model, _ = trainer.train(provider, None, len(task.parts), 1)
report(args, task, clock, task.accuracy(model.fl_get_module()))
