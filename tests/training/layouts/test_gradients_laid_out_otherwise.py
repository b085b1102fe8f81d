"""Operators whose gradient lies in memory as the incoming one does where the trace says otherwise, or the reverse."""

import pytest
import torch
from torch import nn

from staticrt.training import optim
from tests.support.against_eager import equal_eager

LAYERS = {
    "batch norm": lambda: nn.BatchNorm2d(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "layer norm": lambda: nn.LayerNorm(5),
    "dropout": lambda: nn.Dropout(0.4),
    "softmax": lambda: nn.Softmax(1),
    "log softmax": lambda: nn.LogSoftmax(1),
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "hardtanh": nn.Hardtanh,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
}


class Between(nn.Module):
    """A layer of images channels last, or transposed, whose gradient comes row-major, and the reverse."""

    def __init__(self, layer, layout):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(7, 60), layer(), nn.Linear(60, 2)
        self.layout = layout

    def forward(self, x):
        y = self.first(x).view(-1, 4, 3, 5)
        if self.layout == "channels last before":
            y = self.layer(y.contiguous(memory_format=torch.channels_last)).contiguous()
        elif self.layout == "channels last behind":
            y = self.layer(y).contiguous(memory_format=torch.channels_last)
        else:
            y = self.layer(y.transpose(2, 3).contiguous().transpose(2, 3)).contiguous()
        return self.last(y.flatten(1))


LAYOUTS = ["channels last before", "channels last behind", "transposed before"]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_equal_eagers(against_eager, layer, layout):
    against_eager(
        Between(LAYERS[layer], layout), lambda call: (torch.randn(3 + call // 2, 7, requires_grad=True),)
    )


@pytest.mark.filterwarnings("ignore:staticrt")  # of steps that run eagerly
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_steps(layer, layout):
    def train(compile):
        model = Between(LAYERS[layer], layout)
        optimizer = optim.SGD(model.parameters(), lr=0.01)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = [step(torch.randn(3, 7)) for _ in range(4)]
        return losses, model.state_dict(), [p.grad.stride() for p in model.parameters()]

    equal_eager(train, rtol=1e-4, atol=1e-5)
