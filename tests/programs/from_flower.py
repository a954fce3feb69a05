"""As in Flower or PFLlib: an own network, own tensors (x, y) of each client, FedProx, and accuracy by client."""

import torch
from torch import Tensor, nn

import fedcore as fc


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(x)).flatten(1))


torch.manual_seed(0)
means, labels = torch.randn(3, 1, 6, 6), [torch.randint(0, 1 + max(1, k % 3), (60,)) for k in range(10)]
fed = fc.federation([(means[y] + torch.randn(60, 1, 6, 6), y) for y in labels], model=Net(), own_test=0.2)
for rounds in (3, 8):  # the second run goes on from the checkpoint of the first
    settings = {"cohort": 4, "local_epochs": 2, "batch_size": 16, "lr": 0.05, "personal": True, "progress": False}
    history = fc.simulate(fc.FedProx(mu=0.1), fed, rounds=rounds, checkpoint_dir="checkpoints", **settings)
assert history.clients()["client"].nunique() == 10
assert history.final("own_accuracy_worst_tenth") > 0.7
