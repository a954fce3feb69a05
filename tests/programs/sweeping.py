"""A sweep over settings and seeds, into a tidy frame; what is done is not done again."""

from functools import partial

import fedcore as fc

make = partial(fc.federation, "digits", clients=6, model="logistic")
axes = {"method": [fc.FedAvg(), fc.FedProx(0.1)], "partition": [fc.IID(), fc.Shards(2)], "lr": [0.1]}

if __name__ == "__main__":  # processes that are spawned read this file again
    frame = fc.sweep(make, axes, seeds=2, rounds=2, cohort=3, folder="sweep")
    last = frame[(frame["round"] == 2) & (frame["metric"] == "accuracy")]
    assert len(last) == 8
    means = last.groupby(["method", "partition", "lr"])["value"].mean()
    assert means.between(0, 1).all()
    again = fc.sweep(make, axes, seeds=2, rounds=2, cohort=3, folder="sweep")
    assert again.equals(frame)
