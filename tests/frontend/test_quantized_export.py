"""Models that `torch.export` quantised: quantize and dequantize operators around float ones are traced as arithmetic."""

import re

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
from torch import nn
from torch.nn import functional as F

import staticrt

pytestmark = pytest.mark.usefixtures("no_gradients")

ops = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
UINT8 = (0, 255, torch.uint8)
INT16 = (-(2**15), 2**15 - 1, torch.int16)


def expect_eager(model, *calls):
    """Equal to the bit in the first call, which infers, and in later ones, which are prepared."""
    compiled = staticrt.compile(model)
    for args in [*calls, *calls]:
        torch.testing.assert_close(compiled(*args), model(*args), rtol=0, atol=0, equal_nan=True)
    text = str(compiled.explain())
    assert "quantized_decomposed" not in text
    assert "1 traced graph" in text
    assert "runs eagerly" not in text


@pytest.mark.parametrize("limits", [INT8, UINT8, INT16], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (7, 33), (2, 3, 4, 5)], ids=str)
def test_per_tensor(limits, shape):
    def model(x):
        q = ops.quantize_per_tensor(x, 0.037, 3, *limits)
        return q, ops.dequantize_per_tensor(q, 0.037, 3, *limits)

    values = torch.randn(shape) * 10
    odd = values.clone()
    odd.view(-1)[: min(3, odd.numel())] = torch.tensor([float("inf"), -float("inf"), 1e30])[: odd.numel()]
    expect_eager(model, (values,), (odd,))
    expect_eager(model, (values.half(),))


def test_ties_round_to_even():
    def model(x):
        return ops.quantize_per_tensor(x, 1.0, 0, *INT8)

    expect_eager(model, (torch.arange(-40, 40) / 2,))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("points", ["int64", "zero"])
def test_per_channel(axis, points):
    size = (4, 6, 5)[axis]
    scales = torch.rand(size) * 0.1 + 0.01
    zero_points = torch.randint(-5, 5, (size,)) if points == "int64" else torch.zeros(size, dtype=torch.int64)

    def model(x):
        q = ops.quantize_per_channel(x, scales, zero_points, axis, *INT8)
        return q, ops.dequantize_per_channel(q, scales, zero_points, axis, *INT8)

    expect_eager(model, (torch.randn(4, 6, 5),))


def test_per_token():
    def model(x, scales, zero_points):
        q = ops.quantize_per_token(x, scales, zero_points, *INT8)
        return q, ops.dequantize_per_token(q, scales, zero_points, *INT8, torch.float32)

    for rows in (4, 9):
        scales = torch.rand(rows, 1, dtype=torch.float64) * 0.1 + 0.01
        expect_eager(model, (torch.randn(rows, 8), scales, torch.randint(-3, 3, (rows, 1))))


class Quantised(nn.Module):
    """A linear layer of int8 weights between quantised activations, as exporters write it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (64, 48), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(64) * 0.01 + 1e-3)
        self.register_buffer("zero_points", torch.zeros(64, dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(64))

    def forward(self, x):
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.02, 3, *UINT8), 0.02, 3, *UINT8)
        weight = ops.dequantize_per_channel(
            self.weight, self.scales, self.zero_points, 0, -127, 127, torch.int8
        )
        x = F.relu(F.linear(x, weight, self.bias))
        return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, 0.05, 0, *UINT8), 0.05, 0, *UINT8)


def test_a_layer_and_its_weights_changed():
    model = Quantised()
    compiled = staticrt.compile(model)
    for rows in (8, 3, 8, 8):
        x = torch.randn(rows, 48)
        expected = model(x)
        # Products may round differently from eager's, by one step of the quantised result.
        assert ((compiled(x) - expected).abs() <= 0.0501).all()
        assert (compiled(x) == expected).float().mean() > 0.95
        model.weight.copy_(torch.randint(-127, 127, (64, 48), dtype=torch.int8))
    assert "quantized_decomposed" not in str(compiled.explain())


def test_the_weights_are_dequantised_once():
    model = Quantised()
    compiled = staticrt.compile(model)
    x = torch.randn(8, 48)
    for _ in range(3):
        compiled(x)
    kernels = str(compiled.explain()).split("kernels:")[1].split("\n")[0]
    # Quantise x; multiply, relu, quantise; the result.
    assert sum(map(int, re.findall(r"×(\d+)", kernels))) == 3


def test_wrong_limits_raise_as_in_eager():
    def model(x):
        return ops.quantize_per_tensor(x, 0.1, 0, -200, 127, torch.int8)

    with pytest.raises(AssertionError, match="quant_min"):
        model(torch.randn(3))
    with pytest.raises(AssertionError, match="quant_min"):
        staticrt.compile(model)(torch.randn(3))


def test_tensors_of_quantised_dtypes_run_eagerly_and_uncut():
    weight = torch.quantize_per_tensor(torch.randn(8, 16), 0.01, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, torch.randn(8))

    def model(x):
        q = torch.quantize_per_tensor(x, 0.05, 128, torch.quint8)
        return torch.ops.quantized.linear(q, packed, 0.1, 100).dequantize()

    compiled = staticrt.compile(model)
    for rows in (4, 2):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
    text = str(compiled.explain())
    assert "tensors of quantised dtypes" in text
    assert "0 traced graphs" in text  # in parts it was four times as slow as eager
