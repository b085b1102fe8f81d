"""A training that is saved and taken up again in other objects continues as one that never stopped."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
import staticrt.training.optim


class Run:
    def __init__(self, optim, name, compiled):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)
        ).double()
        self.optimizer = getattr(optim, name)(self.model.parameters(), lr=0.05, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.step = staticrt.compile_step(self._train) if compiled else self._train

    def _train(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def go_on(self, calls):
        losses = []
        for call in calls:
            torch.manual_seed(call)
            size = (4, 4, 7)[call % 3]
            losses.append(self.step(torch.randn(size, 6).double(), torch.randint(3, (size,))).detach())
            self.schedule.step()
        return losses

    def _parts(self):
        return self.model, self.optimizer, self.schedule

    def save(self, path):
        torch.save([part.state_dict() for part in self._parts()], path)

    def load(self, path):
        for part, state in zip(self._parts(), torch.load(path), strict=True):
            part.load_state_dict(state)


@pytest.mark.parametrize(
    ("optim", "name"),
    [
        (torch.optim, "AdamW"),
        (torch.optim, "NAdam"),
        (torch.optim, "RAdam"),
        (staticrt.training.optim, "AdamW"),
        (staticrt.training.optim, "SGD"),
    ],
)
def test_a_resumed_training_continues_as_one_that_never_stopped(optim, name, tmp_path):
    whole = Run(optim, name, compiled=False)
    expected = whole.go_on(range(10))

    first = Run(optim, name, compiled=True)
    losses = first.go_on(range(5))
    first.save(tmp_path / "state.pt")
    other = Run(optim, name, compiled=True)
    other.go_on(range(20, 23))  # what is loaded replaces
    other.load(tmp_path / "state.pt")
    losses += other.go_on(range(5, 8))
    other.save(tmp_path / "state.pt")
    eager = Run(optim, name, compiled=False)
    eager.load(tmp_path / "state.pt")
    losses += eager.go_on(range(8, 10))

    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(eager.model.state_dict(), whole.model.state_dict())
    assert eager.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
