"""Flower: its FedAvg strategy on its simulation runtime (Ray), as many one-thread workers as there are threads.

Which of its nodes take part is drawn by Flower.
"""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import LR, Clock, batches, report, resident, start

args, task = start()
file, name = args.file, args.model
rounds, clock, app, server = args.rounds + args.warmup, Clock(), ClientApp(), ServerApp()
final = {}


@app.train()
def train(message, context):
    """One client's local epoch."""
    torch.set_num_threads(1)
    data, net = resident(file, name)
    x, y = data[context.node_config["partition-id"]]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for inputs, labels in batches(x, y):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    sent = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(sent), reply_to=message)


class Strategy(FedAvg):
    """FedAvg that looks at the clock when a round has been averaged."""

    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        clock()
        return out


@server.main()
def main(grid, context):
    """The server."""
    strategy = Strategy(fraction_train=task.cohorts.shape[1] / len(task.parts), fraction_evaluate=0.0)
    clock.ends.clear(), clock()
    final.update(strategy.start(grid, ArrayRecord(task.net().state_dict()), rounds).arrays.to_torch_state_dict())


resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": args.threads}}
run_simulation(server, app, num_supernodes=len(task.parts), backend_config=resources)
net = task.net()
net.load_state_dict(final)
report(args, task, clock, task.accuracy(net))
