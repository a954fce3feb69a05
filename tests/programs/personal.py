"""Personal models: layers of their own for every client, evaluated by client, and taken out as modules."""

import numpy as np
import torch

import fedcore as fc

fed = fc.federation("digits", clients=6, partition=fc.Shards(2), model="cnn")
for method in (fc.FedPer(1), fc.Ditto(0.5), fc.LocalOnly()):
    history = fc.simulate(method, fed, rounds=2, local_steps=2, lr=0.1, personal=True, progress=False)
    frame = history.frame()
    last = frame[(frame["round"] == 2) & (frame["metric"] == "accuracy") & frame["client"].notna()]
    X = history.method.personal(history.state, fed.layout)
    assert X is not None
    assert np.allclose(fed.evaluate_clients(X)["accuracy"].numpy(), last["value"], atol=1e-6)
    net = fed.module(X[3], client=3)
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
