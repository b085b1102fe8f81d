"""Numbers of two kinds in one call, which torch's own exporter refuses."""

import pytest
import torch
from torch import nn

import staticrt


class Clamped(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x):
        return (x * 2).clamp(self.low, self.high)


@pytest.mark.parametrize(("low", "high"), [(-0.9, 2), (-1, 0.5)])
def test_a_clamp_between_an_integer_and_a_fraction(low, high):
    module = Clamped(low, high).eval()
    x = torch.linspace(-3, 3, 20).reshape(4, 5)
    back = staticrt.from_onnx(staticrt.to_onnx(module, x))
    torch.testing.assert_close(back(x), module(x))
    torch.testing.assert_close(back(x[:3]), module(x[:3]))
