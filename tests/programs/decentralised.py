"""No server: gossip on a ring, and on a graph of one's own."""

import numpy as np

import fedcore as fc

W = np.full((5, 5), 0.2)
fed = fc.federation("digits", clients=5, partition=fc.Dirichlet(0.5), model="logistic", seed=1)
for mixing in (fc.Ring(), fc.RandomRegular(2), W):
    history = fc.simulate(fc.DFedAvg(mixing), fed, rounds=2, local_steps=3, lr=0.1, progress=False)
    assert history.params.shape == (fed.d,)
    assert history.state["X"].shape == (5, fed.d)
