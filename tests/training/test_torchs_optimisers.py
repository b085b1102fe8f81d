"""Whole steps with torch's own optimisers compute with numbers as precise as eager's."""

import copy

import pytest
import torch
from torch import nn

import staticrt

OPTIMISERS = {
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adagrad": {"lr_decay": 0.1},
    "RMSprop": {"momentum": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_in_double_precision_equal_eagers(name, foreach):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    eager = copy.deepcopy(model)
    found = []
    for owner, compiled in ((model, True), (eager, False)):
        options = {"lr": 1e-2, "foreach": foreach, **OPTIMISERS[name]}
        optimizer = getattr(torch.optim, name)(owner.parameters(), **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        def train(x, owner=owner, optimizer=optimizer):
            optimizer.zero_grad()
            loss = owner(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = staticrt.compile_step(train) if compiled else train
        losses = []
        for call, size in enumerate((8, 8, 3, 1, 8, 5, 5)):
            torch.manual_seed(call)
            losses.append(step(torch.randn(size, 4, dtype=torch.float64)).detach())
            scheduler.step()
        found.append((losses, owner.state_dict(), optimizer.state_dict()["state"]))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)
