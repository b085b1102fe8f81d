"""Operators whose gradient lies in memory as the incoming one does where the trace says otherwise, or the reverse."""

import pytest
import torch
from torch import nn

from staticrt.training import optim
from tests.support.against_eager import equal_eager


class Call(nn.Module):
    """A function of the images, and of row-major ones."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, y):
        other = torch.linspace(0.1, 0.9, y.numel(), dtype=y.dtype).view(y.shape)
        return self.function(y, other)


def call(function):
    return lambda: Call(function)


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
VIEWED = {
    "mse loss": call(lambda y, other: nn.functional.mse_loss(y, other, reduction="none")),
    "mean of a loss": call(lambda y, other: y + nn.functional.mse_loss(y, other)),
    "smooth l1 loss": call(lambda y, other: nn.functional.smooth_l1_loss(y, other, reduction="none")),
    "huber loss": call(lambda y, other: nn.functional.huber_loss(y, other, reduction="none")),
    "binary cross entropy": call(
        lambda y, other: nn.functional.binary_cross_entropy(y.sigmoid(), other, reduction="none")
    ),
    "glu": call(lambda y, _other: nn.functional.glu(torch.cat([y, y], 3), 3)),
    "glu of what is given": call(lambda y, _other: nn.functional.glu(y, 1).repeat(1, 2, 1, 1)),
    "reflection pad": call(
        lambda y, _other: nn.functional.pad(y, (1, 1, 1, 1), mode="reflect")[..., 1:-1, 1:-1]
    ),
    "replication pad": call(
        lambda y, _other: nn.functional.pad(y, (1, 1, 1, 1), mode="replicate")[..., 1:-1, 1:-1]
    ),
    "log sigmoid": nn.LogSigmoid,
    "roll": call(lambda y, other: y.roll(1, 1) * other),
    "logit": call(lambda y, other: torch.logit(y.sigmoid(), 1e-3) * other),
    "copysign": call(lambda y, other: torch.copysign(y, other - 0.5) * other),
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
        elif self.layout == "channels last by a view":
            y = self.layer(y.view(-1, 3, 5, 4).permute(0, 3, 1, 2)).contiguous()
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


@pytest.mark.parametrize("layer", VIEWED)
def test_gradients_of_views(against_eager, layer):
    against_eager(
        Between(VIEWED[layer], "channels last by a view"),
        lambda call: (torch.randn(3 + call // 2, 7, requires_grad=True),),
    )


@pytest.mark.filterwarnings("ignore:staticrt")  # of steps that run eagerly
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_steps(layer, layout):
    _whole_steps(LAYERS[layer], layout)


@pytest.mark.parametrize("layer", VIEWED)
def test_whole_steps_of_views(layer):
    compiled = _whole_steps(VIEWED[layer], "channels last by a view")
    assert sum(report.calls for report in compiled.explain().eager) <= 1, compiled.explain()


def _whole_steps(layer, layout):
    def train(compile):
        model = Between(layer, layout)
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

    return equal_eager(train, rtol=1e-4, atol=1e-5)
