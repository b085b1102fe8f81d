"""Operators whose gradient lies in memory as the incoming one does where the trace says otherwise, or the reverse."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.training import optim

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
    torch.manual_seed(0)
    model = Between(LAYERS[layer], layout)
    other = copy.deepcopy(model)
    seen = []
    for each in (model, other):
        optimizer = optim.SGD(each.parameters(), lr=0.01)

        def step(x, each=each, optimizer=optimizer):
            optimizer.zero_grad()
            loss = each(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = staticrt.compile_step(step) if each is model else step
        torch.manual_seed(1)
        seen.append([run(torch.randn(3, 7)) for _ in range(4)])
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad.stride() == theirs.grad.stride()
