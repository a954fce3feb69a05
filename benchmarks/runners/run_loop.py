"""The loop that anyone writes first: PyTorch, one client after another, no framework."""

import torch
import torch.nn.functional as F
from task import LR, Clock, batches, report, start

args, task = start()
data, server, local, clock = task.tensors(), task.net(), task.net(), Clock()
for cohort in task.cohorts[: args.rounds + args.warmup]:
    total = [torch.zeros_like(p) for p in server.parameters()]
    for i in cohort:
        local.load_state_dict(server.state_dict())
        optimizer = torch.optim.SGD(local.parameters(), lr=LR)
        for x, y in batches(*data[i]):
            optimizer.zero_grad()
            F.cross_entropy(local(x), y).backward()
            optimizer.step()
        for s, p in zip(total, local.parameters(), strict=True):
            s += p.detach() / len(cohort)
    for p, s in zip(server.parameters(), total, strict=True):
        p.data.copy_(s)
    clock()
report(args, task, clock, task.accuracy(server))
