"""A run that is listened to, scheduled and ended; its model goes out as a module and starts the next run."""

import torch

import fedcore as fc

seen: list[float] = []


def enough(t: int, metrics: dict[str, float]) -> bool:
    seen.append(metrics["accuracy"])
    return metrics["accuracy"] > 0.7


fed = fc.federation("digits", clients=8, model="logistic")
settings = {"rounds": 30, "cohort": lambda t: [t % 8, (t + 1) % 8], "lr": lambda t: 0.1 / (1 + t / 10)}
history = fc.simulate(fc.FedAvg(), fed, on_evaluate=enough, progress=False, **settings)
assert 0.7 < seen[-1] == history.final("accuracy")
net: torch.nn.Module = fed.module(history.params)
warm = fc.federation("digits", clients=8, model="logistic", start=net)
assert float(warm.evaluate(warm.x0)["accuracy"]) == seen[-1]
